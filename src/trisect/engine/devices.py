"""The device that training runs on."""

from __future__ import annotations

import torch

from trisect.core.errors import SpecError
from trisect.core.machine import Machine


def choose_device(machine: Machine) -> str:
    """cpu or cuda; raises SpecError for cuda where there is none, and for narrow products without it."""
    have = torch.cuda.is_available() or (machine.engine == "ray" and machine.device == "cuda")  # the nodes' then
    if machine.device == "cuda" and not have:
        raise SpecError(
            "The device 'cuda' was asked for.", "PyTorch finds no CUDA device here.", "Use --device cpu, or auto."
        )
    device = "cuda" if have and machine.device != "cpu" else "cpu"
    if device == "cpu" and machine.precision != "float32":
        raise SpecError(
            f"The precision {machine.precision!r} was asked for on the CPU.",
            "Products are narrower than float32 on GPUs only.",
            "Leave --precision out, or give --device cuda where there is one.",
        )
    return device
