"""What breaks when q, k or v of a site is replaced."""
