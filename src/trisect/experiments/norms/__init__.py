"""Norm-based analysis of attention beside its weights."""
