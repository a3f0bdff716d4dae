"""Which float32 matrix product to use: the faster one only where it proves itself against float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

TOLERANCE = 1e-5  # oneDNN in float32 is within 6e-7; bfloat16 products err by 3e-3


def _error(precision: str) -> float:
    """Relative error of a 256² product under that setting, against float64."""
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.rand(256, 256, generator=draw, dtype=torch.float64) - 0.5 for _ in range(2))
    exact = a @ b
    torch.set_float32_matmul_precision(precision)
    return float(((a.float() @ b.float()).double() - exact).norm() / exact.norm())


@contextlib.contextmanager
def fast_products() -> Iterator[str]:
    """Within the context, float32 products on the CPU run at the fastest setting that keeps float32's accuracy.

    On processors where PyTorch's 'medium' moves the product to another library that still computes in float32 this
    is up to twice as fast; where 'medium' means bfloat16 the check fails and nothing changes. Yields the setting.
    """
    before = torch.get_float32_matmul_precision()
    try:
        chosen = "medium" if not torch.cuda.is_available() and _error("medium") < TOLERANCE else "highest"
        torch.set_float32_matmul_precision(chosen)
        yield chosen
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within the context sums are taken by one thread, as in every worker, so that they come out the same."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)
