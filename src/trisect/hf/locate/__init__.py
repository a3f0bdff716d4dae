"""Find W_Q, W_K, W_V, W_O and what lies around attention."""
