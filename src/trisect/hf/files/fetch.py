"""Load a model and its tokenizer from a folder or the Hugging Face hub; by default only safetensors and no remote code."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch import nn

from trisect.core import files
from trisect.core.errors import ModelError, check_name, report_step, shorten, unknown_name
from trisect.core.files import Json
from trisect.core.machine import without_collection
from trisect.hf.files.model_errors import (
    LOADING,
    check_finite,
    loading_error,
    memory_guard,
    summarize_error,
    translate_errors,
)
from trisect.hf.files.tokenizers import load_tokenizer
from trisect.hf.hooks.calls import synchronized

ADAPTER = "adapter_config.json"  # of PEFT, beside an adapter's weights
# kinds of input by the name of a model's main input, and how to give them on the command line
MEDIA = {"input_features": "sound", "input_values": "sound", "pixel_values": "images", "pixel_values_videos": "videos"}
INPUT_ADVICE = {
    "sound": "Give sound with --audio FILE to a command that has it, such as norms or ablate.",
    "images": "Give images with --image FILE to a command that has it, such as norms or ablate.",
}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FLOATS = re.compile(r"F[0-9]+.*|BF16")
LAYERS = re.compile(r"n_layers?|(.*_)?layers|depth")
HEADS = re.compile(r"n_heads?|(.*_)?heads")
WIDTHS = re.compile(
    r"(.*_)?(hidden_size|vocab_size|intermediate_size|embedding_size|n_embd|d_model|d_ff|ffn_dim|dim|head_dim)"
)
PLACES = re.compile(r"n_positions|n_ctx|max_position_embeddings|max_source_positions|max_target_positions")
MAX_SHARED_LAYERS = 64  # layers that a model may have with fewer tensors: some share the weights of all layers
RANGES = {LAYERS: (0, 10_000), HEADS: (1, 100_000), WIDTHS: (0, 100_000_000), PLACES: (0, 100_000_000)}
POINTER = b"version https://git-lfs.github.com/spec/"
TODO = "Check that its files are complete and belong to one model."
# a tokenizer of transformers with tokens for padding, unknown words, and a mask or an end
OwnTokenizer: TypeAlias = Any


def check_files(folder: Path, weights: bool = True) -> None:
    """Raise ModelError for a folder whose configuration is invalid, or larger than its weights allow.

    With `weights` its safetensors files are checked too. Raises OSError if a file cannot be read.
    """
    body = _read_object(folder / CONFIG, "configuration")
    named = body.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(item, str) for item in named)):
        reason = "It has to be null or a list of class names, such as ['GPT2LMHeadModel']."
        raise ModelError(f"architectures of {folder / CONFIG} is {shorten(named)}.", reason, TODO)
    check_sizes(str(folder), body, _count_weights(folder) if weights else None)


def _read_object(path: Path, kind: str) -> dict[str, Json]:
    """Read the JSON object in a file of a model; raises ModelError if it holds anything else."""
    todo = "Give the file that save_pretrained wrote."
    if not path.is_file():
        reason = "It is a folder." if path.is_dir() else "It is a link to nothing."
        raise ModelError(f"{path} is no {kind}.", reason, todo)
    try:
        body = files.read_strict(path, strict=False)
    except ValueError as error:
        raise ModelError(f"{path} is no {kind}.", f"It is no JSON: {error}", todo) from error
    if not isinstance(body, dict):
        raise ModelError(f"{path} is no {kind}.", f"It holds {shorten(body)}, and no JSON object.", todo)
    return body


def check_sizes(name: str, body: Mapping[str, object], weights: tuple[int, int] | None) -> None:
    """Raise ModelError for counts of layers, heads, widths and positions that are impossible, or larger than these weights allow.

    `weights` holds the numbers of tensors and of values: building far too many layers would never end.
    """
    for field, value in _fields(body):
        kind = next((kind for kind in RANGES if kind.fullmatch(field.rpartition(".")[2])), None)
        if kind is None or isinstance(value, bool) or not isinstance(value, int):
            continue
        least, limit = RANGES[kind]
        reason = f"It is a whole number from {least} to {limit:,}."
        if weights is not None and kind in (LAYERS, WIDTHS):
            tensors, numbers = weights
            available = max(tensors, MAX_SHARED_LAYERS) if kind is LAYERS else numbers
            if available < limit:
                limit = available
                reason = f"Its weights hold {tensors:,} tensors with {numbers:,} numbers in all: too few for that."
        if value < least:
            reason = f"It is a whole number, {least} or more."
        if not least <= value <= limit:
            raise ModelError(f"{field} of {name} is {shorten(value)}.", reason, TODO)


def _fields(body: Mapping[str, object], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a configuration with their values, and those of nested configurations."""
    for key, value in body.items():
        if isinstance(value, Mapping):
            if not before.count("."):
                yield from _fields(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder's model; raises ModelError for an index or files that are none."""
    if (folder / INDEX).exists() and not (folder / WEIGHTS).exists():
        shards = _read_object(folder / INDEX, "index of weights").get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(v, str) for v in shards.values()):
            reason = "It has no weight_map from names of tensors to names of files."
            raise ModelError(f"{folder / INDEX} is no index of weights.", reason, TODO)
        shard_names = sorted({str(shard) for shard in shards.values()})
        if outside := [shard for shard in shard_names if Path(shard).name != shard]:
            reason = "A model's weights have to lie in its own folder."
            raise ModelError(f"{folder / INDEX} names {outside[0]!r}.", reason, "Put that file into the folder.")
        paths = [folder / shard for shard in shard_names]
    elif (folder / WEIGHTS).exists() or (folder / WEIGHTS).is_symlink():
        paths = [folder / WEIGHTS]
    else:
        present = ", ".join(sorted(path.name for path in folder.glob("*.safetensors"))[:4])
        reason = f"It holds {present}, but neither that name nor an index says that this is the model's."
        raise ModelError(f"{folder} has no {WEIGHTS}.", reason, f"Rename it to {WEIGHTS}, or add {INDEX}.")
    for path in paths:
        if not path.is_file():
            reason = "It is a folder." if path.is_dir() else "It does not exist, or is a broken link."
            raise ModelError(f"The weights {path} cannot be read.", reason, "Give all files of the model.")
    return paths


def _broken(path: Path, error: BaseException) -> ModelError:
    reason, todo = f"It is not a complete safetensors file: {summarize_error(error, 120)}.", "Give the complete file."
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            reason, todo = "It is a pointer of Git LFS, not the file itself.", "Fetch the file itself: git lfs pull."
    return ModelError(f"The weights {path} cannot be read.", reason, todo)


def _count_weights(folder: Path) -> tuple[int, int]:
    """Count the tensors and numbers of a folder's weights; raises ModelError for a file that is not safetensors, or without floats."""
    tensors = numbers = 0
    floats = False
    for path in weight_files(folder):
        with translate_errors(functools.partial(_broken, path)), safe_open(path, "pt") as file:
            parts = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 (no mapping)
            tensors, numbers = tensors + len(parts), numbers + sum(math.prod(part.get_shape()) for part in parts)
            floats = floats or any(FLOATS.fullmatch(part.get_dtype()) for part in parts)
    if not floats:
        reason = f"Of its {tensors:,} tensors none holds floating-point numbers."
        raise ModelError(f"{folder} has no weights that can be computed with.", reason, "Give the model's own weights.")
    return tensors, numbers


PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin", "*.pt", "*.pth", "*.ckpt")
POOLER = "pooler."  # of BERT and similar models: often not saved, and no part of attention
HUB_TIMEOUT, HUB_PAUSE = 10.0, 60.0  # seconds: timeout of a hub, and how long a hub that timed out is not asked again
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Options:
    """How a model is loaded: `dtype` None keeps the stored one, `device_map` is passed on to from_pretrained.

    `pickle` and `remote_code` allow formats that can run foreign code.
    """

    revision: str | None = None
    dtype: str | None = None
    device: str = "auto"
    device_map: str | None = None
    pickle: bool = False
    remote_code: bool = False


@synchronized
def fetch(where: str | Path, options: Options) -> tuple[nn.Module, Any, str]:
    """Load the model in evaluation mode, its tokenizer or None, and its objective: causal, masked, seq2seq or output.

    The objective follows the architecture that the configuration names; it is "output" for a model saved without a
    language-model head. Raises ModelError.
    """
    config, device, how = _look_for(where, options)
    name, (kind, objective) = str(where), _head(config)
    stated = getattr(config, "quantization_config", None)  # a dict that may lack its method
    method = stated.get("quant_method", "unknown") if isinstance(stated, dict) else stated
    report_step(f"Loading {name} …")
    with memory_guard(name, LOADING), translate_errors(_refusal(name, method)), quiet():
        model, info = kind.from_pretrained(
            name,
            config=config,
            dtype="auto" if options.dtype is None else _dtype(options.dtype),
            device_map=options.device_map,
            use_safetensors=None if options.pickle else True,
            output_loading_info=True,
            **how,
        )
    if missing := sorted(key for key in info["missing_keys"] if POOLER not in key):
        listed = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
        known_of = f"{len(missing)} of its parameters are not in its files: {listed}. They would be random numbers."
        raise ModelError(f"The weights of {name} are incomplete.", known_of, "Give the files of the whole model.")
    check_finite(name, model)
    if options.device_map is None:
        with memory_guard(name, LOADING):
            model = model.to(device)
    return model.eval(), load_tokenizer(name, how), objective


def takes_no_text(name: str, main: str) -> ModelError:
    """The error for text alone given to a model with another main input."""
    todo = INPUT_ADVICE.get(MEDIA[main], "Give its own inputs as a dict of tensors, in Python.")
    return ModelError(f"Text alone was given to {name}.", f"It takes {MEDIA[main]}.", todo)


def commit_of(name: str, revision: str | None, remote_code: bool) -> str:
    """The commit hash of the hub's model that `fetch` loads; empty if unknown. Raises ModelError."""
    import transformers

    how = {"revision": revision, "trust_remote_code": remote_code, "local_files_only": not _reachable(name, revision)}
    with memory_guard(name, LOADING), translate_errors(_refusal(name)), quiet():
        config = transformers.AutoConfig.from_pretrained(name, **how)
    return str(getattr(config, "_commit_hash", None) or "")


@without_collection()
def check_exists(where: str | Path, options: Options, text: bool = False) -> None:
    """Raise the ModelError that `fetch` would raise before reading weights: no such model, invalid files, unknown options.

    With `text`, also for a model that takes sound or images instead of text.
    """
    config = _look_for(where, options)[0]
    kind, _ = _head(config)
    model_class = getattr(kind, "_model_mapping", {type(config): kind}).get(type(config), None) if text else None
    main = getattr(model_class[0] if isinstance(model_class, tuple) else model_class, "main_input_name", None)
    if main in MEDIA:
        raise takes_no_text(str(where), str(main))


@without_collection()
def _look_for(where: str | Path, options: Options) -> tuple[Any, torch.device, dict[str, Any]]:
    """A model's configuration, its device, and the options of from_pretrained, without reading weights; raises ModelError."""
    import transformers

    check_name("a model", where)
    how = {"revision": options.revision, "trust_remote_code": options.remote_code}
    device = _device(options.device)
    name, local = str(where), Path(where).is_dir()
    if Path(where).is_file():
        reason = "A model is a folder with config.json and model.safetensors."
        raise ModelError(f"{name} is a file.", reason, "Give the folder that it lies in.")
    if not local:
        how["local_files_only"] = not _reachable(name, options.revision)
    elif options.revision is not None:
        problem = f"Revision {options.revision!r} of the folder {name} was asked for."
        raise ModelError(problem, "A folder holds one revision.", "Leave the revision out, or name a model of a hub.")
    else:
        _check_folder(Path(where), options)
    with translate_errors(_refusal(name)):
        config = transformers.AutoConfig.from_pretrained(name, **how)
    if not local:
        check_sizes(name, config.to_dict(), None)
    if options.dtype is not None:
        _dtype(options.dtype)
    return config, device, how


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and logs inside."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


_NO_ANSWER: dict[str, float] = {}  # time.monotonic() of the last timeout of each hub, by address


def _reachable(name: str, revision: str | None) -> bool:
    """Whether a hub answers for this model within `ANSWER` seconds; raises ModelError if it has no such model."""
    from huggingface_hub import HfApi, is_offline_mode
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils import validate_repo_id

    todo = "Give a folder with config.json and model.safetensors, or a name such as OWNER/MODEL."
    hub = HfApi()
    try:
        validate_repo_id(name)
        if is_offline_mode() or _is_silent(hub.endpoint):
            return False
        report_step(f"Asking {hub.endpoint} for {name} …")
        hub.model_info(name, revision=revision, timeout=HUB_TIMEOUT)
    except HFValidationError:
        reason = "There is no folder of that name, and it is no valid name on a hub."
        raise ModelError(f"{name!r} is no model.", reason, todo) from None
    except GatedRepoError:
        reason = "It is gated: the hub gives it only to accounts with access."
        raise ModelError(f"No access to the model {name!r}.", reason, "Log in with 'hf auth login'.") from None
    except RevisionNotFoundError:
        reason = "The hub has the model, but not this revision."
        raise ModelError(f"Revision {revision!r} of {name!r}.", reason, "Choose one of its branches or tags.") from None
    except RepositoryNotFoundError:
        reason = "There is no folder of that name, and the hub has no such model."
        raise ModelError(f"{name!r} is no model.", reason, todo) from None
    except Exception as error:  # no network, a proxy, a hub that is down: the cache may have the model
        message = f"{hub.endpoint} answered with {summarize_error(error, 60)}"
        kinds = {kind.__name__ for kind in type(error).__mro__}
        # the hub's library changed its own errors from httpx to httpx2
        if isinstance(error, ConnectionError | TimeoutError) or "TransportError" in kinds:
            _NO_ANSWER[hub.endpoint] = time.monotonic()
            message = f"No answer from {hub.endpoint}"
        report_step(f"{message}: looking for {name} among earlier downloads …")
        return False
    return True


def _is_silent(endpoint: str) -> bool:
    return time.monotonic() - _NO_ANSWER.get(endpoint, -HUB_PAUSE) < HUB_PAUSE


def _refusal(name: str, method: object = None) -> Callable[[BaseException], ModelError]:
    """An error factory as `loading_error`, which for a hub's model also says if the hub timed out and was not asked again."""

    def refusal(error: BaseException) -> ModelError:
        from huggingface_hub import HfApi, is_offline_mode

        refused, endpoint = loading_error(name, method, error), HfApi().endpoint
        if Path(name).is_dir() or is_offline_mode() or not _is_silent(endpoint):
            return refused
        reason = f"{endpoint} gave no answer, and is not asked again for {HUB_PAUSE:.0f} seconds. {refused.reason}"
        return ModelError(refused.problem, reason, refused.todo)

    return refusal


def _check_folder(folder: Path, options: Options) -> None:
    """Raise ModelError for a folder without a model, or with one that the options do not allow."""
    present = sorted(path.name for path in folder.iterdir())
    listed = ", ".join(present[:12]) or "nothing"
    if ADAPTER in present and "config.json" not in present:
        base = _read_object(folder / ADAPTER, "adapter's configuration").get("base_model_name_or_path")
        facts = f"Its base is {shorten(base)}." if base else "It names no base."
        merged = "PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload()"
        todo = f"Give the base model, or merge both in Python and give trisect.load the result: {merged}."
        raise ModelError(f"{folder} holds an adapter of PEFT, and no model.", facts, todo)
    if "config.json" not in present:
        reason = f"A model's folder has a config.json; this one holds {listed}."
        todo = "Give the folder that save_pretrained wrote, or one with results of a command."
        raise ModelError(f"{folder} is no model's folder.", reason, todo)
    if any(folder.glob("*.safetensors")) or INDEX in present:
        check_files(folder)
        return
    pickles = sorted({path.name for pattern in PICKLES for path in folder.glob(pattern)})
    if pickles and not options.pickle:
        reason = f"Its weights are {', '.join(pickles[:4])}: a pickle can run any code when it is opened."
        todo = "Convert it, or allow it with --pickle if you trust it."
        raise ModelError(f"{folder} has no safetensors.", reason, todo)
    if not pickles:
        raise ModelError(f"{folder} has no weights.", f"It holds {listed}.", "Add model.safetensors.")
    check_files(folder, weights=False)


def _head(config: Any) -> tuple[Any, str]:
    """The auto class of the configuration's architecture, and the model's objective."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    named = (config.architectures or [""])[0]
    objective = objective_of(named, config)
    heads = {
        "seq2seq": (transformers.AutoModelForSeq2SeqLM, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        "causal": (transformers.AutoModelForCausalLM, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        "masked": (transformers.AutoModelForMaskedLM, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    }
    if objective == "output":
        return transformers.AutoModel, objective
    kind, classes = heads[objective]
    is_default = named in classes.values() or named not in dir(transformers)  # the latter: remote code
    return (kind if is_default else getattr(transformers, named)), objective


def objective_of(named: str, config: Any) -> str:
    """The objective of a class of that name; 'causal' is checked against its attention in `load`."""
    head = named.endswith(("LMHeadModel", "ForCausalLM", "ForConditionalGeneration"))
    if getattr(config, "is_encoder_decoder", False):
        return "seq2seq" if head or named.endswith(("MTModel", "EncoderDecoderModel")) else "output"
    if named.endswith("ForMaskedLM"):
        return "masked"
    return "causal" if head else "output"


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ModelError(unknown_name("dtype", name, DTYPES), f"There are {', '.join(DTYPES)}.", "Use one of them.")
    return DTYPES[name]


def _device(name: str) -> torch.device:
    devices = ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count())))
    if name == "auto":
        return torch.device("cuda" if len(devices) > 1 else "cpu")
    if name not in (*devices, *(("cuda",) if len(devices) > 1 else ())):
        reason = f"There is {', '.join(devices)}."
        raise ModelError(unknown_name("device", name, devices), reason, "Use one of them, or auto.")
    return torch.device(name)
