"""The drawing kit of all pages: tables in, figures and one self-contained HTML page out."""
