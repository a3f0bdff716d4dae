"""Corpora and texts (files, treebanks, datasets, generated languages) as token ids with aligned labels."""
