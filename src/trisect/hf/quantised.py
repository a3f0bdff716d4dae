"""Quantised affine modules, known by their interface: what they round their input to, and their precision.

Weights are found as of any other affine module, by feeding it; nothing of a quantisation library is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

DYNAMIC = "torch.ao.nn.quantized.dynamic"
EIGHT, FOUR = "Linear8bitLt", ("Linear4bit", "LinearFP4", "LinearNF4")
LEVELS = 127.0


class Quantised(NamedTuple):
    """How a quantised map computes: how it rounds its input (null: not), and its coarsest precision (null: the model's)."""

    words: str
    rounds: Callable[[Float[Tensor, "... in"]], Float[Tensor, "... in"]] | None = None
    kind: torch.dtype | None = None

    def entered(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... in"]:
        """x as it is multiplied."""
        return x if self.rounds is None else self.rounds(x.detach())


def quantised(module: nn.Module) -> Quantised | None:
    """What is known of a quantised map; null for one that is not, or of a kind that is not known."""
    kinds = [kind.__name__ for kind in type(module).__mro__]
    if type(module).__module__.startswith(DYNAMIC) and kinds[0] == "Linear":
        if _packed_kind(module) == torch.qint8:
            return Quantised("8-bit integers, with inputs rounded to 7 bits of each call's range", _by_range)
        return Quantised("16-bit numbers", None, torch.float16)
    state: Any = getattr(module, "state", None)
    if EIGHT in kinds and state is not None:
        limit = float(getattr(state, "threshold", 0.0) or 0.0)
        return Quantised(
            "8-bit integers, with inputs rounded to 8 bits at every position",
            lambda x: _by_row(x, limit),
            torch.float16,
        )
    if any(kind in kinds for kind in FOUR):
        return Quantised("4-bit numbers", None, _four_bit_kind(module))
    return None


def share_of(lost: Tensor, made: Tensor) -> float:
    """The largest number of one tensor as a share of the largest of another."""
    return float(lost.detach().abs().max()) / float(made.detach().abs().max().clamp_min(torch.finfo(made.dtype).tiny))


def _packed_kind(module: nn.Module) -> torch.dtype | None:
    return getattr(getattr(module, "_packed_params", None), "dtype", None)


def _by_range(x: Tensor) -> Tensor:
    """As PyTorch's dynamic quantisation rounds: one step for all of a call's numbers."""
    return torch.quantize_per_tensor_dynamic(x.float(), torch.quint8, True).dequantize().to(x.dtype)


def _by_row(x: Tensor, limit: float) -> Tensor:
    """As LLM.int8() rounds: a step for each position, and whole columns kept where any number reaches the limit (0: none)."""
    flat = x.reshape(-1, x.shape[-1])
    half = flat.half()
    outliers = half.abs() >= limit if limit > 0 else torch.zeros_like(half, dtype=torch.bool)
    inner = half.masked_fill(outliers, 0)
    step = inner.abs().amax(1, keepdim=True).float().clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
    rounded = ((inner / step).round() * step).to(flat.dtype)
    return torch.where(outliers.any(0), flat, rounded).view_as(x)


def _four_bit_kind(module: nn.Module) -> torch.dtype | None:
    """bfloat16 where its processor's kernel may be used, else what it computes in."""
    named = getattr(module, "compute_dtype", None)
    return torch.bfloat16 if getattr(module, "support_avx512bf16_for_cpu", False) else named
