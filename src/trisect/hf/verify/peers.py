"""Handles of other libraries by their own names, as functions for an audit: TransformerLens, pyvene, nnsight and nnterp.

Each library wraps a copy of the model, since it changes modules.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trisect.core.errors import ModelError, SpecError, require_extra, reraise_out_of_memory, unknown_name
from trisect.core.subject import Batch, ModelInputs
from trisect.hf.load import Pretrained

Functions: TypeAlias = tuple[Callable[[Any, ModelInputs], "Tensor | None"], Callable[[Any, ModelInputs, Tensor], Any]]


def peer_functions(model: Pretrained, handle: str, batch: Batch) -> Functions:
    """Return `capture(model, inputs)` and `write(model, inputs, tensor)` of a handle 'library:name', with the library's own name.

    transformer_lens:blocks.1.attn.hook_q · pyvene:1.query_output · nnsight:model.layers.1.self_attn.q_proj.output · nnterp:the same
    after its renaming. Layers count from 0, as in these libraries. Raises ModelError with the library's error, and SpecError
    if `batch` is not one text without padding.
    """
    if len(batch.source.real) != 1 or not batch.source.real.all():
        reason = "Other libraries are run on one text without padding."
        raise SpecError(f"{handle} was given with {len(batch.source.real)} rows.", reason, "Give one text.")
    library, _, name = handle.partition(":")
    if library not in PEERS:
        reason = f"Handles of other libraries begin with {', '.join(f'{peer}:' for peer in PEERS)}."
        raise ModelError(unknown_name("library", library, PEERS), reason, "Give one of these, or the path of a module.")
    require_extra(library, "peers", f"A handle {library}:…")
    capture, write = _run_peer(handle, lambda: PEERS[library](copy.deepcopy(model.model), model, name))
    return lambda *args: _run_peer(handle, lambda: capture(*args)), lambda *args: _run_peer(
        handle, lambda: write(*args)
    )


def _run_peer(handle: str, call: Callable[[], Any]) -> Any:
    """Call another library; raises ModelError with its error."""
    try:
        return call()
    except Exception as error:
        reraise_out_of_memory(error)
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:150]}"
        raise ModelError(
            f"{handle} raises {reason}.", "It does not take this model, or this name.", "Try another."
        ) from error


def _transformer_lens(module: Any, model: Pretrained, name: str) -> Functions:
    bridges = import_module("transformer_lens.model_bridge")
    bridge = bridges.TransformerBridge.boot_transformers(
        module.config.name_or_path,
        hf_model=module,
        tokenizer=model.tokenizer,
        device=str(next(module.parameters()).device),
        dtype=module.dtype,
    )

    def capture(_model: Any, inputs: ModelInputs) -> Tensor | None:
        _, cache = bridge.run_with_cache(inputs["input_ids"], prepend_bos=False)
        return cache[name] if name in cache else None  # noqa: SIM401 - a cache of TransformerLens has no get

    def write(_model: Any, inputs: ModelInputs, tensor: Tensor) -> Any:
        return bridge.run_with_hooks(
            inputs["input_ids"], fwd_hooks=[(name, lambda _t, hook: tensor)], prepend_bos=False
        )

    return capture, write


def _pyvene(module: Any, model: Pretrained, name: str) -> Functions:
    pyvene = import_module("pyvene")
    layer, _, component = name.partition(".")
    heads = next(count for address, count in model.shape.heads.items() if address.layer == int(layer) + 1)

    by_key = component in ("head_key_output", "head_value_output")

    def run(inputs: ModelInputs, kind: Any, source: Tensor | None) -> Any:
        size, unit = inputs["input_ids"].shape[1], "pos"
        if component.startswith("head_"):
            size, unit = heads.key if by_key else heads.query, "h"
        place = {"layer": int(layer), "component": component, "unit": unit, "max_number_of_units": size}
        wrapped = pyvene.IntervenableModel({**place, "intervention_type": kind}, model=module)
        locations = {"base": [[list(range(size))]]}
        return wrapped(base=dict(inputs), unit_locations=locations, source_representations=source)

    def capture(_model: Any, inputs: ModelInputs) -> Tensor | None:
        (_, collected), _ = run(inputs, pyvene.CollectIntervention, None)
        return torch.cat(list(collected)) if collected else None

    def write(_model: Any, inputs: ModelInputs, tensor: Tensor) -> Any:
        return run(inputs, pyvene.VanillaIntervention, tensor)[1]

    return capture, write


def _traced(library: str, kind: str, module: Any, model: Pretrained, name: str) -> Functions:
    """A value of an nnsight trace, by its path from the model, which a class of a library wraps."""
    wrapped = getattr(import_module(library), kind)(module, tokenizer=model.tokenizer)
    *path, end = name.split(".")

    def owner() -> Any:
        part = wrapped
        for step in path:
            part = part[int(step)] if step.isdecimal() else getattr(part, step)
        return part

    def capture(_model: Any, inputs: ModelInputs) -> Tensor | None:
        with wrapped.trace(dict(inputs)):
            value = getattr(owner(), end).save()
        return value  # noqa: RET504 - a trace's body is run elsewhere: nothing returns from it

    def write(_model: Any, inputs: ModelInputs, tensor: Tensor) -> Any:
        with wrapped.trace(dict(inputs)):
            setattr(owner(), end, tensor)
            answer = wrapped.output.save()
        return answer  # noqa: RET504

    return capture, write


PEERS = {
    "transformer_lens": _transformer_lens,
    "pyvene": _pyvene,
    "nnsight": functools.partial(_traced, "nnsight", "LanguageModel"),
    "nnterp": functools.partial(_traced, "nnterp", "StandardizedTransformer"),
}
