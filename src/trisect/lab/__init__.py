"""Machinery that experiments share: the study folder, resuming and progress."""
