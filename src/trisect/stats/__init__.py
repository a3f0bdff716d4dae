"""Tests, intervals, bootstraps and corrections: arrays in, numbers out."""
