"""The report: tables in, figures and one self-contained page out; never knows how the rows were made."""
