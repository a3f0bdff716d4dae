"""Verify that what is read of a model is what it computes: laws of attention, and their proof on loading."""
