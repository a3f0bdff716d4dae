"""Matrix products in float32 and sums over repeated rows: fast, accurate, and in a fixed order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import StudyError

STEP_REVISION = 2  # of the training step: raised when results change in the last bits of float32
BFLOAT16_NAME = "bfloat16 (revision 2)"  # revision of the bfloat16 decoder, which does not concern float32 runs
TOLERANCE = 1e-5  # oneDNN in float32 is within 6e-7; bfloat16 products err by 3e-3


def _relative_error(precision: str) -> float:
    """Relative error of a product of 256 × 256 matrices under a setting, against float64."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(256, 256, generator=generator, dtype=torch.float64) - 0.5 for _ in range(2))
    exact = a @ b
    torch.set_float32_matmul_precision(precision)
    return float(((a.float() @ b.float()).double() - exact).norm() / exact.norm())


@contextlib.contextmanager
def fast_products() -> Iterator[str]:
    """Context in which float32 products on the CPU use the fastest setting with float32's accuracy.

    On processors where PyTorch's 'medium' moves the product to another library that still computes in float32 this
    is up to twice as fast; where 'medium' means bfloat16 the check of accuracy fails and nothing changes. Yields the setting.
    """
    before = torch.get_float32_matmul_precision()
    try:
        setting = "medium" if not torch.cuda.is_available() and _relative_error("medium") < TOLERANCE else "highest"
        torch.set_float32_matmul_precision(setting)
        yield setting
    finally:
        torch.set_float32_matmul_precision(before)


def numerics(device: str, precision: str, setting: str) -> str:
    """What a run's numbers depend on besides its specification: the step's revision, precision and library of matrix products, device.

    The device is given as the instruction set that PyTorch uses on a CPU, as its name for a GPU. Versions of libraries and drivers are not
    in it, nor what a library chooses by the model of the processor: two machines that agree may still differ in last bits.
    `setting` is what `fast_products` yields. Example: 'step 2, float32 products by oneDNN (medium) on AVX512'.
    """
    library, hardware = "cuBLAS", torch.backends.cpu.get_cpu_capability()
    if device != "cpu":
        hardware = torch.cuda.get_device_name()
    elif setting == "medium" or precision != "float32":
        library = "oneDNN"
    else:
        names = {"Math Kernel Library": "MKL", "BLAS_INFO=open": "OpenBLAS", "BLAS_INFO=accelerate": "Accelerate"}
        library = next((name for marker, name in names.items() if marker in torch.__config__.show()), "BLAS")
    products = BFLOAT16_NAME if precision == "bfloat16" else precision
    return f"step {STEP_REVISION}, {products} products by {library} ({setting}) on {hardware}"


def check_numerics(recorded: str | None, current: str) -> None:
    """Raise StudyError if a study would resume with other numerics than the `recorded` ones (None: unknown)."""
    if recorded not in (None, current):
        reason = f"Here it would be: {current}. That changes measured effects, and the runs of a study are compared with one another."
        todo = "Resume on a machine like the one where the study began, or choose another folder with --out."
        raise StudyError(f"The study was trained so far with: {recorded}.", reason, todo)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Context in which sums are computed by one thread, so that they equal those of the workers."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def add_at(
    table: Float[Tensor, "F V ..."], places: Int[Tensor, " N"], rows: Float[Tensor, "F N ..."], alpha: float = 1.0
) -> Float[Tensor, "F V ..."]:
    """table[:, places] += alpha · rows, in place; repeated places get the sum of their rows.

    CUDA's `index_add_` adds in no fixed order where a place repeats, so that on a GPU rows of one place are
    summed first. That takes a product of N × N with the rows, under one per cent of a training step.
    """
    rows = rows if table.device.type == "cpu" else _sum_repeats(places, rows)
    return table.index_add_(1, places, rows, alpha=alpha)


def _sum_repeats(places: Int[Tensor, " N"], rows: Float[Tensor, "F N ..."]) -> Float[Tensor, "F N ..."]:
    """For each place, put the sum of its rows in the first of them and 0 in the others; shapes do not depend on repetitions."""
    is_same = places[:, None] == places
    is_first = ~is_same.tril(-1).any(1)
    sums = (is_same & is_first[:, None]).to(rows.dtype)
    return torch.matmul(sums, rows.flatten(2) if rows.dim() > 2 else rows[..., None]).view(rows.shape)
