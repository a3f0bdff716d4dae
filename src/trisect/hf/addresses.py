"""Addresses of attention calls: which call of a forward pass is which layer of which stack."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.trace import Address
from trisect.hf.calls import Call

SOURCE, TARGET = 7, 5  # of different length, so that cross-attention shows in the shape of its weights
SAFE = 6  # ids below are likely special tokens


def example_inputs(name: str, model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Inputs that any model of its kind takes: token ids, pixels, samples or spectra, drawn at random.

    Raises ModelError where the model's main input is of another kind.
    """
    config, draw = getattr(model, "config", None), torch.Generator().manual_seed(seed)
    if config is None:
        known = "It is no model of Hugging Face's, whose configuration says what its forward takes."
        todo = f"Give an example of its inputs: load(model, inputs={{...}}), of {_taken(model)}."
        raise ModelError(f"{name} cannot be tried out.", known, todo)
    main = getattr(model, "main_input_name", "input_ids")
    device = next(model.parameters()).device
    kind = next(model.parameters()).dtype
    sizes = getattr(config, "vision_config", config)
    if main == "input_ids":
        made = {"input_ids": _ids(config, SOURCE, draw)}
    elif main == "pixel_values":
        side = getattr(sizes, "image_size", 224)
        high, wide = (side, side) if isinstance(side, int) else tuple(side)
        made = {"pixel_values": torch.randn(2, getattr(sizes, "num_channels", 3), high, wide, generator=draw)}
    elif main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 50)
        made = {"input_features": torch.randn(2, getattr(config, "num_mel_bins", 80), frames, generator=draw)}
    elif main == "input_values":
        made = {"input_values": torch.randn(2, 3200, generator=draw)}
    else:
        known = f"Its main input is {main!r}, and no example of that is known."
        raise ModelError(
            f"{name} cannot be tried out.", known, "Give an example of its inputs: load(model, inputs={...})."
        )
    if getattr(config, "is_encoder_decoder", False):
        made["decoder_input_ids"] = _ids(config, TARGET, draw)
    return {n: t.to(device, kind if t.is_floating_point() else t.dtype) for n, t in made.items()}


def _taken(model: nn.Module) -> str:
    """The names of what a module's forward has to be given."""
    takes = inspect.signature(model.forward).parameters.values()
    needed = [p.name for p in takes if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return ", ".join(needed) or "what its forward takes"


def _ids(config: Any, length: int, draw: torch.Generator) -> Tensor:
    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    sizes = [getattr(text, n, None) for n in ("vocab_size", "src_vocab_size", "tgt_vocab_size")]
    top = min(n for n in sizes if isinstance(n, int))
    return torch.randint(min(SAFE, top - 1), top, (2, length), generator=draw)


def find_addresses(
    name: str, model: nn.Module, calls: Sequence[Call], inputs: Mapping[str, Any]
) -> tuple[Address, ...]:
    """The address of every call of one forward pass, in order.

    Calls inside the encoder of an encoder-decoder are 'enc'; of the others those that attend to as many positions as
    they ask from are 'dec', the rest 'cross'. The layer is the number in the module's name that counts the layers of
    the stack, plus one; where no number does (one module for all layers), calls are counted.
    """
    encoder = _encoder_of(model)
    stacks = []
    for call in calls:
        if encoder is None:
            stacks.append("plain")
        elif call.module.startswith(encoder):
            stacks.append("enc")
        else:
            stacks.append("dec" if call.q.shape[2] == call.k.shape[2] else "cross")
    if encoder is not None and "dec" in stacks and "cross" not in stacks:
        known = "Source and target are equally long, so that cross-attention looks like self-attention."
        raise ModelError(f"The example inputs of {name}.", known, "Give a source and a target of different lengths.")
    numbers: dict[str, list[int]] = {}
    for stack in dict.fromkeys(stacks):
        numbers[stack] = _layers([call.module for call, own in zip(calls, stacks, strict=True) if own == stack])
    found = tuple(Address(stack, numbers[stack].pop(0)) for stack in stacks)
    assert len(set(found)) == len(found), f"{name}: two calls with one address"
    return found


def _encoder_of(model: nn.Module) -> str | None:
    """The dotted name of the encoder of an encoder-decoder, with a dot at its end; null for any other model."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    for name, _ in model.named_modules():
        if re.fullmatch(r"(?:.*\.)?encoder", name):
            return name + "."
    return None


def _layers(modules: Sequence[str]) -> list[int]:
    """A layer number from 1 for each module name; names without a counting number are numbered in order."""
    paths = [[int(part) for part in name.split(".") if part.isdigit()] for name in modules]
    for place in range(max((len(path) for path in paths), default=0)):
        if all(len(path) > place for path in paths):
            numbers = [path[place] + 1 for path in paths]
            if all(a < b for a, b in pairwise(numbers)):
                return numbers
    return list(range(1, len(modules) + 1))
