"""What a model loses when a label is erased linearly from q, k or v (LEACE)."""
