"""How alike W_Q, W_K and W_V are, head by head, against random matrices."""
