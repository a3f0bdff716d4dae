"""Products in float32 and sums over repeated rows: the fastest that are accurate and in a fixed order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import StudyError

STEP = 2  # the training step's sums, in their order: another number wherever a float32 run's last bits would be others
NARROW = "bfloat16 (revision 2)"  # the narrow decoder's own revision: float32's bits are those of the step alone
TOLERANCE = 1e-5  # oneDNN in float32 is within 6e-7; bfloat16 products err by 3e-3


def _error(precision: str) -> float:
    """Relative error of a product of 256 × 256 matrices under a setting, against float64."""
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.rand(256, 256, generator=draw, dtype=torch.float64) - 0.5 for _ in range(2))
    exact = a @ b
    torch.set_float32_matmul_precision(precision)
    return float(((a.float() @ b.float()).double() - exact).norm() / exact.norm())


@contextlib.contextmanager
def fast_products() -> Iterator[str]:
    """Context in which float32 products on the CPU use the fastest setting with float32's accuracy.

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


def numerics(device: str, precision: str, setting: str) -> str:
    """What a run's numbers depend on besides its statement: the step's revision, precision and library of products, device.

    On a CPU that is the instruction set that PyTorch uses, on a GPU the device's name. Versions of libraries and drivers are not
    in it, nor what a library chooses by the model of the processor: two machines that agree may still differ in last bits.
    `setting` is what `fast_products` gave. Such as 'step 2, float32 products by oneDNN (medium) on AVX512'.
    """
    library, where = "cuBLAS", torch.backends.cpu.get_cpu_capability()
    if device != "cpu":
        where = torch.cuda.get_device_name()
    elif setting == "medium" or precision != "float32":
        library = "oneDNN"
    else:
        names = {"Math Kernel Library": "MKL", "BLAS_INFO=open": "OpenBLAS", "BLAS_INFO=accelerate": "Accelerate"}
        library = next((name for sign, name in names.items() if sign in torch.__config__.show()), "BLAS")
    products = NARROW if precision == "bfloat16" else precision
    return f"step {STEP}, {products} products by {library} ({setting}) on {where}"


def check_numerics(before: str | None, now: str) -> None:
    """Raise StudyError if a study would resume with other numerics than before (None: unknown)."""
    if before not in (None, now):
        reason = f"Here it would be: {now}. That moves effects, and the runs of a study are compared with one another."
        todo = "Go on where the study began, or choose another folder with --out."
        raise StudyError(f"The study was trained so far with: {before}.", reason, todo)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Context in which sums are computed by one thread, as in every worker, so that they are equal."""
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

    CUDA's `index_add_` adds in no fixed order where a place repeats, so that elsewhere than on a CPU no place gets two rows that are
    not zero. That takes a product of N × N with the rows, under one per cent of a step of the paper's model.
    """
    rows = rows if table.device.type == "cpu" else _sum_repeats(places, rows)
    return table.index_add_(1, places, rows, alpha=alpha)


def _sum_repeats(places: Int[Tensor, " N"], rows: Float[Tensor, "F N ..."]) -> Float[Tensor, "F N ..."]:
    """The sum of all rows of a place in its first row, and 0 in its others; shapes do not depend on repetitions."""
    same = places[:, None] == places
    first = ~same.tril(-1).any(1)
    sums = (same & first[:, None]).to(rows.dtype)
    return torch.matmul(sums, rows.flatten(2) if rows.dim() > 2 else rows[..., None]).view(rows.shape)
