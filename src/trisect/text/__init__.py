"""Corpora and texts: files, treebanks, datasets and generated languages, as token ids with aligned labels."""
