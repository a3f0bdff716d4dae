"""Attention worked by hand: eight constructions and their laws."""
