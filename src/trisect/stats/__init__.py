"""Tests, intervals, bootstraps and corrections, each once: numbers in, numbers out."""
