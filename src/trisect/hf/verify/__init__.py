"""Laws of attention, and the proof that a model is read as it computes."""
