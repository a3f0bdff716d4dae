"""Memory and growth of norms, profile, ablate and patch beside the model's plain forward pass.

python bench/memory.py WAY KIND     MiB of one of them: plain, norms, profile, ablate, patch; llama, small
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from paired import Row, one_core, row
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import trisect

LIMIT = 1.3  # times the plain pass's


class Size(NamedTuple):
    """A model as large as a known one, with random weights, and the texts that it is given at once."""

    words: str
    build: Callable[[], nn.Module]
    texts: int
    tokens: int
    sites: tuple[str, ...]


def llama(layers: int = 22, width: int = 2048, inner: int = 5632, words: int = 32_000) -> nn.Module:
    """A causal language model of TinyLlama's kind, in bfloat16."""
    size = {"vocab_size": words, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    config = LlamaConfig(**size, num_attention_heads=width // 64, num_key_value_heads=max(1, width // 512))
    torch.set_default_dtype(torch.bfloat16)
    try:
        return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


SIZES = {
    "llama": Size("TinyLlama's size (1.1 billion), bfloat16", llama, 1, 128, ("q@11", "k@11", "v@11")),
    "small": Size("158 million weights in bfloat16", lambda: llama(10, 1024, 2816), 2, 256, ("q@5", "k@5", "v@5")),
}
VOCABULARY = 500
PROFILED = 6  # texts of a profile, in groups of which five are folds


def tokenizer() -> Any:
    """Whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    words = [*names.values(), *(f"w{i}" for i in range(VOCABULARY))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=4096, **names)


def made_texts(count: int, tokens: int) -> list[str]:
    """Texts of random words, of so many tokens each."""
    draw = random.Random(0)
    return [" ".join(f"w{draw.randrange(VOCABULARY)}" for _ in range(tokens)) for _ in range(count)]


def run_norms(subject: Any, texts: list[str], sites: tuple[str, ...], out: Path) -> None:
    """`trisect norms`."""
    trisect.norms(subject, texts, out=out, batch=min(2, len(texts)), quiet=True)


def run_ablate(subject: Any, texts: list[str], sites: tuple[str, ...], out: Path) -> None:
    """`trisect ablate`, of one layer: the others take as much."""
    trisect.ablate(subject, texts, sites=sites, out=out, batch=min(2, len(texts)), quiet=True)


def run_patch(subject: Any, texts: list[str], sites: tuple[str, ...], out: Path) -> None:
    """`trisect patch`, of one layer."""
    masked = [" ".join([*t.split()[:-1], "w1"]) for t in texts]
    texts, other = masked, [" ".join([*reversed(t.split()[:-1]), "w1"]) for t in masked]
    pairs = out.with_suffix(".jsonl")
    pairs.write_text("".join(json.dumps({"base": a, "donor": b}) + "\n" for a, b in zip(texts, other, strict=True)))
    trisect.patch(subject, pairs=pairs, sites=sites, out=out, batch=min(2, len(texts)), quiet=True)


def run_profile(subject: Any, texts: list[str], sites: tuple[str, ...], out: Path) -> None:
    """`trisect profile` of a word's position, over as many texts as folds need; every layer is profiled."""
    corpus = out.with_suffix(".text")
    corpus.mkdir()
    # a text's words turned round so many times, so that folds have texts of one length to be dealt
    few = [" ".join([*w[i:], *w[:i]]) for w in map(str.split, texts) for i in range(max(1, PROFILED // len(texts)))]
    for split in ("train", "valid", "test"):
        (corpus / f"{split}.txt").write_text("\n".join(few) + "\n")
    trisect.profile(subject, corpus=corpus, labels=("position",), out=out, batch=min(2, len(texts)), quiet=True)


RUNS = {"norms": run_norms, "profile": run_profile, "ablate": run_ablate, "patch": run_patch}


def peak_of(work: Callable[[], object]) -> float:
    """MiB that tensors take at most while `work` runs, those that were there before it not counted (PyTorch's own account).

    Resident memory is not looked at: what the system takes back of a process depends on what else it does.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as account:
        work()
    results: Any = account.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(itertools.accumulate(sizes), default=0) / 2**20


def run_plain(model: nn.Module, words: Any, texts: list[str]) -> None:
    """The model's plain forward pass."""
    with torch.no_grad():
        inputs = dict(words(texts, return_tensors="pt", padding=True))
        model(**{k: v for k, v in inputs.items() if k != "token_type_ids"})


def measure(way: str, kind: str) -> float:
    """MiB that a command takes at most over a model, the model with it; or its plain forward pass over the same texts."""
    torch.manual_seed(0)
    size = SIZES[kind]
    model, texts, words = size.build(), made_texts(size.texts, size.tokens), tokenizer()
    weights = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())) / 2**20
    with tempfile.TemporaryDirectory() as folder:
        if way == "plain":
            return weights + peak_of(lambda: run_plain(model, words, texts))
        return weights + peak_of(lambda: RUNS[way](trisect.load(model, words), texts, size.sites, Path(folder) / "run"))


def child(way: str, kind: str) -> float:
    """The same, measured by a process of its own."""
    command = [sys.executable, __file__, way, kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def memory_rows() -> list[Row]:
    """How many times the plain pass's memory each command takes, LIMIT at most; of larger kinds: python bench/memory.py WAY KIND."""
    plain, size, rows = child("plain", "small"), SIZES["small"], list[Row]()
    for way in RUNS:
        read, edited, ours = f"{size.texts} texts of {size.tokens} tokens", "one layer is edited", child(way, "small")
        if way == "profile":
            read, edited = f"{PROFILED} such texts, {size.texts} at once", "every layer is profiled and edited"
        notes = [
            f"{ours / plain:.2f} times the plain pass's memory; the aim is {LIMIT}.",
            f"Tensors, the model's own among them, at most, {read}; {edited}.",
        ]
        what = f"memory of `trisect {way}`, {size.words}, beside a forward pass"
        rows.append(row(what, f"{plain:.0f} MiB", f"{ours:.0f} MiB", plain / ours, notes))
    return rows


GROWTH = {  # heads of 64
    "texts": (8, 16, 32, 64),
    "tokens": (128, 256, 512, 1024, 2048),
    "layers": (2, 4, 8, 16),
    "heads": (2, 4, 8, 16),
}
USUAL, SHORT = {"texts": 8, "tokens": 128, "layers": 4, "heads": 4}, {"tokens": {"texts": 2}}  # two long texts


def growth_rows(ways: Sequence[str] = ("norms", "profile", "patch")) -> list[Row]:
    """Exponents of time in texts, tokens, layers and heads, of commands and of the plain pass; memory against texts."""
    rows = list[Row]()
    for way in ways:
        exponents, notes = [], ["Eager attention in both; seconds of plain pass and command, and its memory."]
        growth(way, USUAL, False)  # with what is imported at the first
        for axis, sizes in GROWTH.items():
            ends = (sizes[0], sizes[-1]) if axis == "texts" else ()
            spent = np.array([growth(way, USUAL | SHORT.get(axis, {}) | {axis: n}, n in ends) for n in sizes])
            # of the steps from size to size, without what every run takes (figures, files)
            steps = np.log(np.maximum(np.diff(spent[:, :2], axis=0), 1e-3))
            exponents.append(np.polyfit(np.log(sizes[1:]), steps, 1)[0])
            each = zip(sizes, spent, strict=True)
            shown = "; ".join(f"{n:,}: {a:.2f}, {b:.1f}{f', {m:,.0f} MiB' * int(m > 0)}" for n, (a, b, m) in each)
            notes.append(f"{axis.capitalize()} {shown}.")
        plain, ours = (", ".join(f"{e:.2f}" for e in each) for each in zip(*exponents, strict=True))
        rows.append(row(f"`trisect {way}`: exponents of time in {', '.join(GROWTH)}", plain, ours, None, notes))
    return rows


@one_core()
def growth(way: str, size: dict[str, int], counts_memory: bool) -> tuple[float, float, float]:
    """CPU seconds of the plain pass and of a command, and MiB of tensors that the command takes at most."""
    torch.manual_seed(0)
    model: Any = llama(size["layers"], 64 * size["heads"], 176 * size["heads"], VOCABULARY + 2).float()
    model.set_attn_implementation("eager")
    texts, sites, words = made_texts(size["texts"], size["tokens"]), ("q@1", "k@1", "v@1"), tokenizer()
    subject = trisect.load(model, words, window=size["tokens"])
    with tempfile.TemporaryDirectory() as folder:
        command = lambda: RUNS[way](subject, texts, sites, Path(folder) / str(time.time_ns()))  # noqa: E731
        plain = lambda: [run_plain(model, words, texts[i : i + 2]) for i in range(0, len(texts), 2)]  # noqa: E731
        memory, ends = peak_of(command) if counts_memory else 0.0, [time.process_time()]
        for work in (plain, command):
            work()
            ends.append(time.process_time())
        return ends[1] - ends[0], ends[2] - ends[1], memory


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(measure(*sys.argv[1:]))
