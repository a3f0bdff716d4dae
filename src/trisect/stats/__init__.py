"""Tests, intervals, bootstraps and corrections: numbers in, numbers out."""
