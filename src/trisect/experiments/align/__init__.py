"""Word alignment from cross-attention, by weight and by norm."""
