"""Tokenizers: loading one beside a model, and running it so that a panic or an exploding normalizer becomes a ModelError."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from trisect.core.errors import ModelError, is_panic, shorten
from trisect.hf.files.model_errors import summarize_error, translate_errors

FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
# most characters that normalizers may make of one text, or GROWTH for each of its characters if that is more
CHARACTERS = 10_000_000
GROWTH = 64
MAX_EXPANSION = {"NFKC": 18, "NFKD": 18}  # most characters that a normalizer makes of one; 4 for all others
SAVE_AGAIN = "Save the tokenizer again beside the model."
_NORMALIZED = re.compile(rb'"normalized"\s*:\s*true')
# the normalizers of a tokenizer of the library 'tokenizers', in order, with the most characters each makes of one
_STAGES: WeakKeyDictionary[Any, list[tuple[dict[str, Any], float]]] = WeakKeyDictionary()


def load_tokenizer(name: str, options: dict[str, Any]) -> Any:
    """Load the tokenizer of a folder or of a name on a hub, None if it has none; `options` go to from_pretrained.

    Raises ModelError for a tokenizer that cannot be read.
    """
    import transformers

    # without tokenizer files AutoTokenizer would return an empty one for some families
    present = [file for file in FILES if (Path(name) / file).exists()]
    if Path(name).is_dir() and not present and not (Path(name) / "tokenizer_config.json").exists():
        return None
    try:
        _check_added(name, options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
    except (ModelError, PermissionError, MemoryError):
        raise
    except BaseException as error:  # vision and speech models have none, and raise different errors
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if present:
            problem = f"The tokenizer of {name} cannot be read: {', '.join(present)}."
            raise ModelError(problem, summarize_error(error, 200), SAVE_AGAIN) from error
        return None
    longest = getattr(tokenizer, "model_max_length", None)  # transformers accepts whatever stands there
    if longest is not None and type(longest) not in (int, float):
        todo = "Correct tokenizer_config.json, or save the tokenizer again beside the model."
        raise ModelError(f"model_max_length of {name} is {shorten(longest)}.", "It is a number of tokens.", todo)
    return tokenizer


def tokenize(name: str, tokenizer: Any, text: str, is_target: bool = False, **options: Any) -> Any:
    """Tokenize a text; with `is_target` by the tokenizer's rules for targets, which may be those of another language.

    Raises ModelError if the tokenizer fails, or if its normalizers would make far more characters than the text has.
    """
    stages = _STAGES.get(tokenizer)
    if stages is None:
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        statement = None if normalizer is None else json.loads(normalizer.__getstate__())
        stages = _STAGES[tokenizer] = [(stage, _growth(stage)) for stage in _flat(statement)]
    _check_growth(name, stages, text)
    todo = "Save the tokenizer again beside the model, or give another text."
    problem = f"The tokenizer of {name} fails on {text[:40]!r}."
    with translate_errors(lambda error: ModelError(problem, summarize_error(error, 200), todo)):
        return tokenizer(**{"text_target" if is_target else "text": text}, verbose=False, **options)


def _flat(statement: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    if statement is not None and statement["type"] == "Sequence":
        for part in statement["normalizers"]:
            yield from _flat(part)
    elif statement is not None:
        yield dict(statement)


def _growth(stage: Mapping[str, Any]) -> float:
    if stage["type"] == "Precompiled":  # a table of what characters become, each ended by a zero
        table = base64.b64decode(stage["precompiled_charsmap"])
        return float(max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")), default=1))
    if stage["type"] == "Prepend":
        return 1.0 + len(stage["prepend"])
    if stage["type"] == "Replace":
        pattern, content = stage["pattern"], len(stage["content"])
        # a regular expression may match the empty string before every character
        return max(1.0, content / len(pattern["String"])) if pattern.get("String") else 1.0 + content
    return float(MAX_EXPANSION.get(stage["type"], 4))


def _check_growth(name: str, stages: list[tuple[dict[str, Any], float]], text: str) -> None:
    """Raise ModelError if normalizers make too many characters of a text; they are run one by one only if they might."""
    limit = max(CHARACTERS, GROWTH * len(text))
    if len(text) * math.prod(growth for _, growth in stages) <= limit:
        return
    from tokenizers import normalizers

    words = text
    for statement, growth in stages:
        if len(words) * growth > limit:
            problem = f"The tokenizer of {name} makes too many characters of {text[:40]!r}."
            reason = f"Its normalizers make more than {limit:,} characters of these {len(text):,}."
            raise ModelError(problem, reason, "Give the tokenizer that the model was trained with.")
        stage = normalizers.NFC()
        stage.__setstate__(json.dumps(statement).encode())
        words = stage.normalize_str(words)


def _check_added(name: str, options: Mapping[str, Any]) -> None:
    """`_check_growth` for a tokenizer file's added tokens, which are normalized while it loads."""
    from transformers.utils.hub import cached_file

    how = {key: options[key] for key in ("revision", "local_files_only") if key in options}
    silent = {f"_raise_exceptions_for_{kind}": False for kind in ("gated_repo", "missing_entries", "connection_errors")}
    place = cached_file(name, FILES[0], **how, **silent)
    content = b"" if place is None else Path(place).read_bytes()
    if content.count(b'"Replace"') + content.count(b'"Precompiled"') < 2 or not _NORMALIZED.search(content):
        return
    body = json.loads(content)
    stages = [(stage, _growth(stage)) for stage in _flat(body["normalizer"])]
    for token in body["added_tokens"]:
        if token["normalized"]:
            _check_growth(name, stages, token["content"])
