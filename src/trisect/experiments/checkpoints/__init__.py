"""Rewinding q, k and v between published checkpoints of one model."""
