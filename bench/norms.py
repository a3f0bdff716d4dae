"""Norms at BERT-base size against building every transformed vector, and against the model's own forward pass.

python bench/norms.py
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from paired import paired
from torch import Tensor

from trisect.core.trace import Address, Origin, Projections, Trace

HEADS, WIDTH, INNER, LAYERS = 12, 768, 64, 12
WORDS = 2_000
ROUNDS = 3


def trace(texts: int, tokens: int, seed: int = 0) -> Trace:
    """One layer of BERT-base's shape from random inputs and weights."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(texts, HEADS, tokens, INNER, generator=draw) for _ in "qkv")
    w_o = torch.randn(HEADS, INNER, WIDTH, generator=draw) * WIDTH**-0.5
    real = torch.ones(texts, tokens, dtype=torch.bool)
    weights = torch.softmax(q @ k.mT * INNER**-0.5, -1)
    projections = Projections(Address("plain", 1), {"o": Origin("rows", "random")}, w_o=w_o)
    return Trace(Address("plain", 1), q, k, v, weights, weights @ v, real, real, projections, INNER**-0.5)


@torch.no_grad()
def naive(given: Trace) -> tuple[Tensor, Tensor]:
    """Per head and per layer from all weighted vectors, [B H T T D], as the formula is written."""
    assert given.w_o is not None
    f = torch.einsum("bhte,hed->bhtd", given.v, given.w_o)
    vectors = given.weights[..., None] * f[:, :, None]
    return vectors.norm(dim=-1), vectors.sum(1).norm(dim=-1)


@torch.no_grad()
def ours(given: Trace) -> tuple[Tensor, Tensor]:
    """The same two by trisect."""
    from trisect.measure.norms import both

    found = both(given)
    return given.weights * found.transformed[:, :, None], found.layer


def child(*words: object) -> dict[str, Any]:
    """What a fresh process measures: its peak memory is its own."""
    command = [sys.executable, __file__, *map(str, words)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def held(key: str) -> float:
    """MiB of this process alone, from the kernel's account (Linux): a child's ru_maxrss begins at its parent's."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) / 1024


def measure_memory(way: str, texts: int, tokens: int) -> dict[str, Any]:
    """Peak memory of one layer's norms beyond that of its inputs."""
    given = trace(texts, tokens)
    Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    {"naive": naive, "ours": ours, "none": lambda _: None}[way](given)
    return {"before": before, "peak": held("VmHWM")}


def bert(layers: int, width: int, heads: int, seed: int = 0) -> Any:
    """A random BERT with eager attention."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    config._attn_implementation = "eager"
    return BertModel(config).eval()


def tokenizer() -> Any:
    """Whole words between [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", ",", *(f"w{i}" for i in range(WORDS - 6))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=512, **names)


def measure_forward(tokens: int) -> dict[str, Any]:
    """BERT-base's own eager forward pass, and all its layers' norms from the traces, in turn."""
    from trisect.hf.load import load

    model = bert(LAYERS, WIDTH, HEADS)
    subject = load(model, tokenizer(), proof=True)
    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(WORDS - 6)}" for _ in range(tokens - 2)) for _ in range(8)]
    batch = next(iter(subject.batches(texts, 8)))
    with torch.no_grad():
        traces = subject.trace(batch).traces
        found = paired(lambda: model(**batch.inputs), lambda: [ours(t) for t in traces], ROUNDS)
    return found._asdict()


def measure_stream(tokens: int) -> dict[str, Any]:
    """Peak memory and seconds of the whole analysis of a 6-layer model over so many tokens."""
    import trisect
    from trisect.core.subject import Texts
    from trisect.hf.load import load

    subject = load(bert(6, 384, 12), tokenizer(), proof=True)

    def texts() -> Any:
        made = random.Random(1)
        for _ in range(tokens // 50):
            yield " ".join(f"w{int(made.paretovariate(0.5)) % (WORDS - 6)}" for _ in range(made.randint(38, 57))) + " ."

    with tempfile.TemporaryDirectory() as out:
        started = time.process_time()
        done = trisect.norms(subject, Texts("made", texts), out=Path(out), quiet=True)
        read = json.loads((done.folder / "norms.json").read_text())["body"]["tokens"]
    return {"peak": held("VmHWM"), "seconds": time.process_time() - started, "tokens": read}


def rows() -> list[dict[str, object]]:
    """Rows for docs/bench.md."""
    shape = f"{HEADS} heads of {INNER}, width {WIDTH}"
    speed = child("speed", 8, 128)
    found: list[dict[str, object]] = [
        {
            "what": f"norms of one layer, batch 8 of 128 tokens ({shape})",
            "plain": f"{speed['plain']:.2f} s",
            "ours": f"{1000 * speed['ours']:.0f} ms",
            "ratio": speed["ratio"],
            "low": speed["low"],
            "high": speed["high"],
            "notes": [
                "Both give the norms per head and per layer. Plain: every weighted vector as an array [B H T T D].",
                f"Largest difference of the two: {speed['error']:.1e} of the largest norm.",
            ],
        }
    ]
    for tokens in (128, 512):
        pair = child("forward", tokens)
        found.append(
            {
                "what": f"norms of all 12 layers, beside BERT-base's eager forward pass (plain), batch 8 of {tokens} tokens",
                "plain": f"{pair['plain']:.2f} s",
                "ours": f"{pair['ours']:.2f} s",
                **{k: pair[k] for k in ("ratio", "low", "high")},
            }
        )
    return found


def memory_rows() -> list[dict[str, object]]:
    """Rows of memory for docs/bench.md."""
    found: list[dict[str, object]] = []
    memory = {way: child("memory", way, 1, 512) for way in ("naive", "ours")}
    extra = {way: m["peak"] - m["before"] for way, m in memory.items()}
    whole = {way: m["peak"] for way, m in memory.items()}
    found.append(
        {
            "what": "memory of the norms of one layer, 1 text of 512 tokens",
            "plain": f"{extra['naive'] / 1024:.1f} GiB",
            "ours": f"{extra['ours']:.0f} MiB",
            "ratio": extra["naive"] / max(1.0, extra["ours"]),
            "low": extra["naive"] / max(1.0, extra["ours"]),
            "high": extra["naive"] / max(1.0, extra["ours"]),
            "notes": [
                "Peak of a fresh process beyond what its inputs take; the whole processes: "
                f"{whole['naive'] / 1024:.1f} GiB and {whole['ours'] / 1024:.2f} GiB ({whole['naive'] / whole['ours']:.0f} times).",
                "A batch of 8 would take the plain way about 80 GiB.",
            ],
        }
    )
    few, many = child("stream", 10_000), child("stream", 100_000)
    found.append(
        {
            "what": "memory of `trisect norms`, 10,000 tokens (plain) and 100,000, 6 layers of 12 heads, width 384",
            "plain": f"{few['peak']:.0f} MiB",
            "ours": f"{many['peak']:.0f} MiB",
            "ratio": few["peak"] / many["peak"],
            "low": few["peak"] / many["peak"],
            "high": few["peak"] / many["peak"],
            "notes": [
                f"{many['tokens']:,} tokens took {many['seconds']:.0f} CPU seconds in one thread, page included."
            ],
        }
    )
    return found


def measure_speed(texts: int, tokens: int) -> dict[str, Any]:
    """Paired rounds of both ways, and how far they are apart."""
    given = trace(texts, tokens)
    apart = [(a - b).abs().max() / b.abs().max() for a, b in zip(ours(given), naive(given), strict=True)]
    found = paired(lambda: naive(given), lambda: ours(given), ROUNDS)
    return found._asdict() | {"error": float(max(apart))}


def main(words: list[str]) -> None:
    """Without words the rows as a table; with words one measurement of a child."""
    torch.set_num_threads(1)
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "speed": lambda: measure_speed(int(words[1]), int(words[2])),
        "memory": lambda: measure_memory(words[1], int(words[2]), int(words[3])),
        "forward": lambda: measure_forward(int(words[1])),
        "stream": lambda: measure_stream(int(words[1])),
    }
    if words:
        print(json.dumps(made[words[0]]()))
        return
    for row in (*rows(), *memory_rows()):
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1:])
