"""Machinery that experiments share: the study folder, resuming, progress and tracking."""
