"""Small encoder-decoders trained to translate."""
