"""ModelErrors for what transformers, tokenizers and safetensors raise, and for weights and token ids that are invalid."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError, TrisectError, is_out_of_memory, is_panic, reraise_out_of_memory
from trisect.core.subject import ModelInputs

PART = 1 << 22  # numbers that are converted at once


@contextlib.contextmanager
def translate_errors(refusal: Callable[[BaseException], ModelError]) -> Iterator[None]:
    """Turn any error raised inside into the ModelError that `refusal` makes of it; wrap only calls of other libraries.

    On corrupt files those raise all kinds of errors (TypeError, AttributeError, ZeroDivisionError, plain Exception, a panic).
    Errors of the file system and of memory are left to translate_system_errors.
    """
    try:
        yield
    except (TrisectError, PermissionError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reraise_out_of_memory(error)
        raise refusal(error) from error


def summarize_error(error: BaseException, limit: int = 300) -> str:
    """The kind of an error and its first words, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:limit]}"


def loading_error(name: str, method: object, error: BaseException) -> ModelError:
    """The error for a model that could not be loaded; `method` is its quantisation method by its configuration, or None."""
    message = " ".join(str(error).split())
    if "trust_remote_code" in message or "remote code" in message:
        reason = "Its code is not part of transformers and would have to be run from its repository."
        return ModelError(f"{name} needs code of its own.", reason, "Read that code, then allow it with --remote-code.")
    if method is not None:
        problem = f"{name} is quantised, and cannot be loaded here."
        todo = "Install the package that it names, or give the model before quantisation."
        return ModelError(problem, f"Its method is {method!r}. {summarize_error(error, 200)}", todo)
    if "accelerate" in message:
        reason = "A device map needs the package accelerate, which is not installed."
        todo = "Run 'pip install accelerate', or leave the device map out."
        return ModelError(f"{name} cannot be loaded with a device map.", reason, todo)
    if "ignore_mismatched_sizes" in message or "size mismatch" in message:
        reason = "Its weights have other shapes than its config.json says."
        return ModelError(f"The model {name} cannot be loaded.", reason, "Give config.json and weights of one model.")
    if isinstance(error, OSError) and "safetensors" in message and not Path(name).is_dir():
        reason = "It has no safetensors file; a pickle can run any code when it is opened."
        todo = "Choose a revision with safetensors, or allow it with --pickle."
        return ModelError(f"{name} cannot be loaded.", reason, todo)
    if "device_map" in message:
        todo = "Give a valid device map, or leave it out."
        return ModelError(f"{name} cannot be loaded with a device map.", summarize_error(error), todo)
    hub = "Check the name, the revision and the network; a folder works without one."
    todo = "Check that its files are complete and belong to one model." if Path(name).is_dir() else hub
    return ModelError(f"The model {name} cannot be loaded.", summarize_error(error), todo)


def forward_error(
    name: str, inputs: ModelInputs, accepts: Iterable[str], limit: int | None, error: Exception
) -> ModelError:
    """The error for inputs on which a model's forward raised; `limit` is the model's number of positions, if known."""
    ids = inputs.get("input_ids")
    if limit is not None and isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[1] > limit:
        problem = f"{ids.shape[1]:,} tokens were given to {name}."
        return ModelError(problem, f"It has positions for {limit:,}.", "Give shorter texts, or parts of one.")
    reason = f"The model says: {summarize_error(error, 200)}"
    todo = f"Give what its forward takes: {', '.join(sorted(accepts)[:8])}."
    problem = f"The forward pass of {name} failed with the inputs {', '.join(map(repr, inputs))}."
    return ModelError(problem, reason, todo)


def check_finite(name: str, model: nn.Module) -> None:
    """Raise ModelError if a parameter of a model holds NaN or infinity, or is on the meta device."""
    if empty := next((key for key, p in model.named_parameters() if p.is_meta and type(p) is nn.Parameter), None):
        reason = f"{empty} is on the device 'meta': it has a shape and no numbers."
        todo = "Load its weights onto a device first."
        if any(getattr(m, "_hf_hook", None) is not None for m in model.modules()):
            reason = f"{empty} is offloaded: accelerate loads it only while its module runs, but projections have to be in memory."
            todo = "Load it without offloading, on devices that hold all of it."
        raise ModelError(f"Weights of {name} are not there.", reason, todo)
    # a finite sum means finite numbers: only a sum that overflows needs a look at every number; numbers of 8 bits have no sum
    total = lambda p: (p.float() if p.element_size() == 1 else p).sum()  # noqa: E731
    finite = lambda p: bool(torch.isfinite(total(p))) or bool(torch.isfinite(p.float()).all())  # noqa: E731
    floats = [(key, p) for key, p in model.named_parameters() if p.is_floating_point() and not p.is_meta]
    wrong = [(key, p) for key, p in floats if not all(map(finite, p.detach().flatten().split(PART)))]
    if not wrong:
        return
    key, tensor = wrong[0]
    values = tensor.detach().float()
    nan, infinite = int(values.isnan().sum()), int(values.isinf().sum())
    counts = " and ".join(f"{n:,} {word}" for n, word in ((nan, "NaN"), (infinite, "infinite")) if n)
    more = "" if len(wrong) == 1 else f", and {len(wrong) - 1:,} more parameters hold some"
    reason = f"{key} holds {counts} of {tensor.numel():,} numbers{more}."
    todo = "Give weights from before its training diverged, or the complete file."
    raise ModelError(f"Weights of {name} are not finite.", reason, todo)


def check_ids(name: str, model: nn.Module, tokenizer: Any, inputs: ModelInputs) -> None:
    """Raise ModelError for token ids that a model's embedding has no row for."""
    for field in ("input_ids", "decoder_input_ids"):
        ids = inputs.get(field)
        if not isinstance(ids, Tensor) or ids.is_floating_point() or not ids.numel():
            continue
        rows: int | None = None  # of the model's token embedding
        with contextlib.suppress(NotImplementedError, AttributeError):
            inside: Any = getattr(model, "get_decoder", lambda: None)() if field.startswith("decoder") else None
            inside = inside or model
            weight = getattr(inside.get_input_embeddings(), "weight", None)
            rows = len(weight) if isinstance(weight, Tensor) and weight.dim() == 2 else None
        low, high = int(ids.min()), int(ids.max())
        if rows is None or 0 <= low <= high < rows:
            continue
        wrong = high if high >= rows else low
        word = None
        with contextlib.suppress(Exception):  # of its own: an id that it does not know either
            word = None if tokenizer is None else tokenizer.convert_ids_to_tokens(wrong)
        token = f"The token {word!r}, id {wrong}," if isinstance(word, str) and word else f"The token id {wrong}"
        reason = f"The model has a row for each of the ids 0 to {rows - 1}."
        todo = "Give ids of the model." if tokenizer is None else "Give the tokenizer that the model was trained with."
        raise ModelError(f"{token} is not in the vocabulary of {name}.", reason, todo)


LOADING = "Loading"
MEMORY_ADVICE = (
    "Read fewer texts at once (--batch), shorter ones (--window), or in a narrower precision (--dtype bfloat16)."
)
LOAD_ADVICE = "Load it in a narrower precision (--dtype bfloat16), over several devices (--device-map auto), or choose a smaller one."


class ModelOutOfMemoryError(ModelError):
    """Out of memory while loading or running a model; says nothing about whether the model is readable."""


@contextlib.contextmanager
def memory_guard(name: str, doing: str, inputs: Mapping[str, object] | None = None) -> Iterator[None]:
    """Turn out-of-memory errors inside into ModelOutOfMemoryError; `doing` names the step, such as "Loading"."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        tensors = ((n, t) for n, t in (inputs or {}).items() if isinstance(t, Tensor) and t.dim())
        first = next((f" with {n} of {'×'.join(map(str, t.shape))}" for n, t in tensors), "")
        problem = f"{doing} {name}{first} needs more memory than there is."
        message = " ".join(str(error).split())[:200]
        reason = f"The system says: {message}" if message else "The system could not allocate it."
        raise ModelOutOfMemoryError(problem, reason, LOAD_ADVICE if doing == LOADING else MEMORY_ADVICE) from error
