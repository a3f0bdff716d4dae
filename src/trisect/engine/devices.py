"""The device that training runs on."""

from __future__ import annotations

import torch

from trisect.core.errors import SpecError
from trisect.core.machine import Machine


def choose_device(machine: Machine) -> str:
    """cpu or cuda; raises SpecError for cuda where there is none, and for narrow products where the processor has none."""
    have = torch.cuda.is_available() or (machine.engine == "ray" and machine.device == "cuda")  # the nodes' then
    if machine.device == "cuda" and not have:
        raise SpecError(
            "The device 'cuda' was asked for.", "PyTorch finds no CUDA device here.", "Use --device cpu, or auto."
        )
    device = "cuda" if have and machine.device != "cpu" else "cpu"
    if device == "cpu" and machine.precision == "bfloat16" and machine.engine != "ray" and not narrow_here():
        raise SpecError(
            "The precision 'bfloat16' was asked for on the CPU.",
            "PyTorch has no fast bfloat16 products on this processor (it needs AVX-512 or AMX).",
            "Leave --precision out, or give --device cuda where there is one.",
        )
    return device


def narrow_here() -> bool:
    """Whether this processor multiplies in bfloat16."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
