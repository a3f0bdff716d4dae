"""One training step of the paper's model (28,782 types, 20 x 35 tokens) against eager torch, one thread each.

python bench/step.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from plain import names, plain_of, zipf_corpus_ids

from trisect.core.spec import Run
from trisect.experiments.study.presets import find_experiment
from trisect.lm.feed import training_piece
from trisect.lm.fleet import views
from trisect.lm.matmul import fast_products
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus, Split

VOCABULARY, TOKENS = 28_782, 20 * 36 * 12


def corpus() -> Corpus:
    """Zipf-distributed ids over the types of WikiText-2: enough for a dozen steps."""
    ids = zipf_corpus_ids(VOCABULARY, TOKENS).numpy().astype(np.int32)
    words = tuple(str(i) for i in range(VOCABULARY))
    return Corpus.make("zipf", words, {}, {"train": Split(ids, {}), "valid": Split(ids[:720], {})}, ())


def trainer(
    text: Corpus,
    dropout: float,
    clip: float = 0.5,
    dtype: torch.dtype = torch.float32,
    products: torch.dtype | None = None,
) -> Trainer:
    """A fleet of one: the paper's baseline."""
    paper = find_experiment("paper")
    model, training = replace(paper.model, dropout=dropout), replace(paper.training, clip=clip, train_sample=700)
    return Trainer([Run(text.fingerprint, model, training, 1)], text, dtype=dtype, products=products)


def eager_step(text: Corpus, dropout: float) -> Callable[[], None]:
    """The tutorial's step: forward, CrossEntropyLoss, backward, clip_grad_norm_, SGD."""
    like = trainer(text, dropout)
    one = {n: v[0].clone() for n, v in views(like.flat, like.places).items()}
    model = plain_of(like.model, VOCABULARY, one, dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    criterion = torch.nn.CrossEntropyLoss()
    steps = iter(range(10**9))

    def step() -> None:
        piece = training_piece(text, like.training, next(steps) % like.steps_per_epoch, (), "cpu")
        optimizer.zero_grad()
        loss = criterion(model(piece.inputs).flatten(0, 1), piece.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return step


def our_step(text: Corpus, dropout: float, products: torch.dtype | None = None) -> Callable[[], None]:
    """The product's own step."""
    own = trainer(text, dropout, products=products)

    def step() -> None:
        own.step()

    return step


def gradient_errors(text: Corpus) -> tuple[float, float, float]:
    """Relative error of one step's gradient against float64, without dropout and clipping: eager's, ours, ours in bfloat16."""
    like, narrow = (trainer(text, 0.0, clip=1e30, products=kind) for kind in (None, torch.bfloat16))
    one = {n: v[0].clone() for n, v in views(like.flat, like.places).items()}
    piece = training_piece(text, like.training, 0, (), "cpu")

    def eager(dtype: torch.dtype) -> torch.Tensor:
        model = plain_of(like.model, VOCABULARY, {n: v.to(dtype) for n, v in one.items()})
        torch.nn.functional.cross_entropy(model(piece.inputs).flatten(0, 1), piece.targets).backward()
        own = dict(model.named_parameters())
        found = [own[theirs].grad for theirs in names(like.model, VOCABULARY).values()]
        return torch.cat([g.double().flatten() for g in found if g is not None])

    exact, plain = eager(torch.float64), eager(torch.float32)
    like.step()
    narrow.step()
    found = [plain, like.gradient[0].double(), narrow.gradient[0].double()]
    first, second, third = (float((one - exact).norm() / exact.norm()) for one in found)
    return first, second, third


def _memory(key: str) -> float:
    """MiB of this process, from the kernel's account (Linux)."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) / 1024


def _grown(way: str) -> None:
    """Print by how many MiB steps raise this process's memory at their highest, over what model and text hold."""
    torch.set_num_threads(1)
    text = corpus()
    with fast_products():
        step = {"plain": eager_step, "ours": our_step}[way](text, 0.2)
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        for _ in range(5):
            step()
    print(json.dumps(_memory("VmHWM") - before))


def peak(way: str) -> float:
    """MiB that steps need beyond what the model and its text hold, measured in a process of its own."""
    found = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True)
    return float(json.loads(found.stdout))


def products(narrow: torch.dtype | None = None) -> tuple[Callable[[], None], float]:
    """The step's own products and nothing else, each whole and into room that is there; and how many operations they are.

    `narrow` is of the decoder's three, which are four fifths of it; those of the encoder are float32.
    """
    model, tokens = find_experiment("paper").model, 20 * 35
    wide, each, heads = model.width, model.width // model.heads, model.heads * 20
    draw = torch.Generator().manual_seed(0)

    def factors(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(*shape, generator=draw).to(dtype)

    kind = narrow or torch.float32
    hidden, decoder = factors(tokens, wide, dtype=kind), factors(VOCABULARY, wide, dtype=kind)
    logits = torch.empty(tokens, VOCABULARY, dtype=kind)
    pairs = [(hidden, decoder.t(), logits), (logits, decoder, torch.empty_like(hidden))]
    pairs.append((logits.t(), hidden, torch.empty_like(decoder)))
    x = factors(tokens, wide)
    inner = model.feedforward
    for out, into in ((3 * wide, wide), (wide, wide), (inner, wide), (wide, inner)):
        w, y, g = factors(out, into), x if into == wide else factors(tokens, into), factors(tokens, out)
        pairs += [(y, w.t(), g.clone()), (g, w, y.clone()), (g.t(), y, w.clone())] * model.layers
    short, square = factors(heads, 35, each), factors(heads, 35, 35)
    score = (short, short.transpose(1, 2), torch.empty_like(square))
    mixed = (square, short, torch.empty_like(short))
    pairs += [score, mixed, score, mixed, mixed, mixed] * model.layers

    def work() -> None:
        for a, b, into in pairs:
            torch.matmul(a, b, out=into)

    return work, float(sum(2 * a.numel() * b.shape[-1] for a, b, _ in pairs))


def set_to(setting: str, way: Callable[[], object]) -> Callable[[], None]:
    """A way with float32 products at a setting of its own."""

    def work() -> None:
        torch.set_float32_matmul_precision(setting)
        way()

    return work


def timed(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each way in every round, in turn, after one round that is thrown away."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            spent[name].append(time.process_time() - began)
    return {name: seconds[1:] for name, seconds in spent.items()}


def row(what: str, spent: Mapping[str, list[float]], plain: str, ours: str, notes: list[str]) -> dict[str, object]:
    """One row of the table, of two of the ways that were timed."""
    ratios = sorted(a / b for a, b in zip(spent[plain], spent[ours], strict=True))
    plain_ms, our_ms = (f"{statistics.median(spent[name]) * 1e3:.0f} ms" for name in (plain, ours))
    found: dict[str, object] = {"what": what, "plain": plain_ms, "ours": our_ms}
    return found | {"ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1], "notes": notes}


def share(spent: Mapping[str, list[float]], limit: str, way: str) -> str:
    """What share of a way's time its products alone would take: median, and the middle half of the rounds."""
    shares = [a / b for a, b in zip(spent[limit], spent[way], strict=True)]
    low, middle, high = statistics.quantiles(shares, n=4)
    return f"{100 * middle:.0f} % ({100 * low:.0f} % to {100 * high:.0f} %)"


HALF = 95  # GFLOP/s of float32 products of the core for which the aims were set


def beside(spent: Mapping[str, list[float]], limit: str, way: str, rate: float) -> str:
    """What of a way is not its products, in ms, and the share if products took as much longer as at HALF."""
    own, alone = (statistics.median(spent[name]) * 1e3 for name in (way, limit))
    other, slower = own - alone, alone * rate / HALF
    return (
        f"{own:.0f} ms are {alone:.0f} ms of products and {other:.0f} ms of all else; the share falls as products get faster: a core of "
        f"{HALF} GFLOP/s, for which the aim was set, would multiply for {slower:.0f} ms, and with as much of all else "
        f"that is {100 * slower / (slower + other):.0f} % (reckoned, not measured)"
    )


def rows(rounds: int = 15) -> list[dict[str, object]]:
    """The table's rows: a step against eager torch at its defaults, and with the same products; shares of the limit."""
    torch.set_num_threads(1)
    text, (alone, operations) = corpus(), products()
    with fast_products() as setting:
        errors = gradient_errors(text)
        ways = {
            "defaults": set_to("highest", eager_step(text, 0.2)),
            "same": set_to(setting, eager_step(text, 0.2)),
            "ours": set_to(setting, our_step(text, 0.2)),
            "limit": set_to(setting, alone),
            "narrow": set_to(setting, our_step(text, 0.2, torch.bfloat16)),
            "narrow limit": set_to(setting, products(torch.bfloat16)[0]),
        }
        spent = timed(ways, rounds)
    peak_rate = operations / statistics.median(spent["limit"]) / 1e9
    limit = f"{statistics.median(spent['limit']) * 1e3:.0f} ms"
    step = "one training step, 28,782 types, 20 x 35 tokens"
    return [
        row(
            f"{step}: eager PyTorch at its defaults",
            spent,
            "defaults",
            "ours",
            [
                f"the step's products alone, each whole: {limit}, {peak_rate:.0f} GFLOP/s, {operations / 1e9:.1f} GFLOP",
                "share of the time that these products alone would take (middle half of the rounds): "
                f"ours {share(spent, 'limit', 'ours')}, eager with the same products {share(spent, 'limit', 'same')}, "
                f"eager at its defaults {share(spent, 'limit', 'defaults')}; the aim is 85%",
                beside(spent, "limit", "ours", peak_rate),
                f"float32 products: {setting} (chosen by the self-check) in ours, highest in eager at its defaults",
                f"CPU seconds; load average of the machine at the end: {os.getloadavg()[0]:.0f}",
            ],
        ),
        row(
            f"{step}: eager PyTorch with the same products",
            spent,
            "same",
            "ours",
            [
                f"gradient's relative error against float64: eager {errors[0]:.1e}, ours {errors[1]:.1e}",
                f"memory that steps need beside the weights: eager {peak('plain'):.0f} MiB, ours {peak('ours'):.0f} MiB",
            ],
        ),
        row(
            f"{step}, --precision bfloat16: eager PyTorch at its defaults (float32)",
            spent,
            "defaults",
            "narrow",
            [
                f"share of the time that its products alone would take (the decoder's in bfloat16, the encoder's in float32: "
                f"{statistics.median(spent['narrow limit']) * 1e3:.0f} ms): {share(spent, 'narrow limit', 'narrow')}; the aim is 65%",
                f"gradient's relative error against float64: {errors[2]:.1e}",
            ],
        ),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _grown(sys.argv[1])
    else:
        print(json.dumps(rows(), indent=1))
