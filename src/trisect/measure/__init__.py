"""Arrays, curves or Traces in, rows out; knows nothing of who made them."""
