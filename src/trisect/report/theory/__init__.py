"""Theory's page: the eight constructions with sliders, as one file that asks for nothing."""

from trisect.report.theory.page import base_draws, write

__all__ = ["base_draws", "write"]
