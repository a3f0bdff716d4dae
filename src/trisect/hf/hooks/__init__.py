"""Record and edit the attention calls of a forward pass."""
