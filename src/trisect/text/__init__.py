"""Texts in: corpora as token ids with aligned labels."""
