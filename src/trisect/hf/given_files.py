"""What a model's folder holds, read before anything is built from it: its configuration, its weights' headers, their sizes."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trisect.core import json_text
from trisect.core.errors import ModelError, shortened
from trisect.core.json_text import Json

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HEADER = 100_000_000  # bytes of a header, as safetensors itself allows
FLOATS = re.compile(r"F[0-9]+.*|BF16")
LAYERS = re.compile(r"n_layers?|(.*_)?layers|depth")
HEADS = re.compile(r"n_heads?|(.*_)?heads")
WIDTHS = re.compile(
    r"(.*_)?(hidden_size|vocab_size|intermediate_size|embedding_size|n_embd|d_model|d_ff|ffn_dim|dim|head_dim)"
)
PLACES = re.compile(r"n_positions|n_ctx|max_position_embeddings|max_source_positions|max_target_positions")
FEW = 64  # layers that a model may have on so few tensors: some share the weights of all layers
MOST = {LAYERS: 10_000, HEADS: 100_000, WIDTHS: 100_000_000, PLACES: 100_000_000}
LEAST = {LAYERS: 0, HEADS: 1, WIDTHS: 0, PLACES: 0}
TODO = "Check that its files are whole, and those of one model."


class WeightsHeld(NamedTuple):
    """What the weights of a folder hold: how many tensors, how many numbers in all, and whether any are floats."""

    tensors: int
    numbers: int
    floats: bool


def check_files(folder: Path, weights: bool = True) -> None:
    """Raise ModelError where a folder's configuration is none, or asks for more than its weights hold.

    `weights` says that they have to be safetensors; else they are not looked at. Raises OSError where a file cannot be read.
    """
    body = read_object(folder / CONFIG, "configuration")
    check_architectures(folder, body.get("architectures"))
    check_sizes(str(folder), body, held(folder) if weights else None)


def read_object(path: Path, what: str) -> dict[str, Json]:
    """The object in a JSON file of a model; raises ModelError where it holds anything else."""
    todo = "Give the file that save_pretrained wrote."
    if not path.is_file():
        known = "It is a folder." if path.is_dir() else "It is a link to nothing."
        raise ModelError(f"{path} is no {what}.", known, todo)
    try:
        found = json_text.read(path, strict=False)
    except ValueError as error:
        raise ModelError(f"{path} is no {what}.", f"It is no JSON: {error}", todo) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is no {what}.", f"It holds {shortened(found)}, and no JSON object.", todo)
    return found


def check_architectures(folder: Path, named: object) -> None:
    """Raise ModelError where a configuration names its classes otherwise than by a list of texts."""
    if named is None or (isinstance(named, list) and all(isinstance(one, str) for one in named)):
        return
    known = "It is null, or a list of names of classes, such as ['GPT2LMHeadModel']."
    raise ModelError(f"architectures of {folder / CONFIG} is {shortened(named)}.", known, TODO)


def check_sizes(name: str, body: Mapping[str, object], weights: WeightsHeld | None) -> None:
    """Raise ModelError for numbers of layers, heads, widths and positions that no model, or not these weights, can have.

    A number of layers is built one after the other: one that is beyond the tensors that there are would not come to an end.
    """
    for field, value in _fields(body):
        kind = next((kind for kind in MOST if kind.fullmatch(field.rpartition(".")[2])), None)
        if kind is None or isinstance(value, bool) or not isinstance(value, int):
            continue
        most, known = MOST[kind], f"It is a whole number from {LEAST[kind]} to {MOST[kind]:,}."
        if weights is not None and kind in (LAYERS, WIDTHS):
            there = max(weights.tensors, FEW) if kind is LAYERS else weights.numbers
            if there < most:
                held_words = f"{weights.tensors:,} tensors with {weights.numbers:,} numbers in all"
                most, known = there, f"Its weights hold {held_words}: too few for that."
        if value < LEAST[kind]:
            known = f"It is a whole number, {LEAST[kind]} or more."
        if not LEAST[kind] <= value <= most:
            raise ModelError(f"{field} of {name} is {shortened(value)}.", known, TODO)


def _fields(body: Mapping[str, object], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a configuration, those of the configurations inside it too."""
    for key, value in body.items():
        if isinstance(value, Mapping):
            if not before.count("."):
                yield from _fields(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder's model; raises ModelError for an index or files that are none."""
    if (folder / INDEX).exists() and not (folder / WEIGHTS).exists():
        shards = read_object(folder / INDEX, "index of weights").get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(v, str) for v in shards.values()):
            known = "It has no weight_map from names of tensors to names of files."
            raise ModelError(f"{folder / INDEX} is no index of weights.", known, TODO)
        found = sorted({str(shard) for shard in shards.values()})
        if outside := [one for one in found if Path(one).name != one]:
            known = "A model's weights lie in its own folder."
            raise ModelError(f"{folder / INDEX} names {outside[0]!r}.", known, "Put that file into the folder.")
        paths = [folder / one for one in found]
    elif (folder / WEIGHTS).exists() or (folder / WEIGHTS).is_symlink():
        paths = [folder / WEIGHTS]
    else:
        there = ", ".join(sorted(path.name for path in folder.glob("*.safetensors"))[:4])
        known = f"It holds {there}, which nothing says to be the model's."
        raise ModelError(f"{folder} has no {WEIGHTS}.", known, f"Rename it to {WEIGHTS}, or add {INDEX}.")
    for path in paths:
        if not path.is_file():
            known = "It is a folder." if path.is_dir() else "It is not there, or a link to nothing."
            raise ModelError(f"The weights {path} cannot be read.", known, "Give the files of the whole model.")
    return paths


def held(folder: Path) -> WeightsHeld:
    """What the headers of a folder's weights say; raises ModelError for a file that is no safetensors, or without floats."""
    tensors = numbers = 0
    floats = False
    for path in weight_files(folder):
        for entry in _header(path).values():
            count = 1
            for length in entry["shape"]:
                count *= length
            tensors, numbers = tensors + 1, numbers + count
            floats = floats or bool(FLOATS.fullmatch(entry["dtype"]))
    if not floats:
        known = f"Of its {tensors:,} tensors none holds floating-point numbers."
        raise ModelError(f"{folder} has no weights that can be computed with.", known, "Give the model's own weights.")
    return WeightsHeld(tensors, numbers, floats)


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors that a safetensors file says to hold, by name: dtype and shape."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(HEADER, size - 8):
            known = f"It has {size:,} bytes, and no header of safetensors."
            raise ModelError(f"The weights {path} cannot be read.", known, "Give the whole file.")
        content = file.read(length)
    try:
        body = json.loads(content)
        entries = {name: entry for name, entry in body.items() if name != "__metadata__"}
        end = 0
        for entry in entries.values():
            if not all(isinstance(n, int) and n >= 0 for n in entry["shape"]) or not isinstance(entry["dtype"], str):
                raise TypeError("a tensor without shape or dtype")
            end = max(end, int(entry["data_offsets"][1]))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        known = f"Its header is none of safetensors: {type(error).__name__}: {' '.join(str(error).split())[:120]}."
        raise ModelError(f"The weights {path} cannot be read.", known, "Give the whole file.") from error
    if end > size - 8 - length:
        known = f"Its tensors take {end:,} bytes, and it holds {size - 8 - length:,}: it was cut off."
        raise ModelError(f"The weights {path} cannot be read.", known, "Give the whole file.")
    return entries
