"""A training study: attack, freeze, tie, rewind, probe and erase q, k and v of small language models."""
