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
    if machine.engine != "ray":  # else the nodes look for themselves
        check_narrow(device, machine.precision)
    return device


def check_narrow(device: str, precision: str) -> None:
    """Raise SpecError for narrow products on a processor that has none; a node that trains looks at its own."""
    if device == "cpu" and precision == "bfloat16" and not narrow_here():
        raise SpecError(
            "The precision 'bfloat16' was asked for on the CPU.",
            "PyTorch has no fast bfloat16 products on this processor (it needs AVX-512 or AMX).",
            "Leave --precision out, or give --device cuda where there is one.",
        )


def narrow_here() -> bool:
    """Whether this processor multiplies in bfloat16."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
