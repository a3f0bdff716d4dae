"""The vocabulary that every package shares: sites, edits, runs, traces, claims, tables, files and errors."""
