"""Training against eager torch: one step of the paper's model (28,782 types, 20 x 35 tokens), fleets, rewinding, a whole study."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from paired import Ratio, Row, one_core, paired, row, summary, timed
from plain import Plain, names, plain_of, zipf_corpus_ids
from torch import Tensor

import trisect
from trisect.core.machine import Machine
from trisect.core.methods import PAPER_SITES
from trisect.core.site import Site
from trisect.core.spec import Model, Run, Training
from trisect.experiments.study.presets import find_experiments
from trisect.lm.feed import Piece, Windows
from trisect.lm.fleet import initial, layout, mark, views
from trisect.lm.matmul import fast_products
from trisect.lm.rewind import blend, evaluate_variants
from trisect.lm.train import RunFiles, Trainer, train_fleet
from trisect.measure.criticality import GridCurves, adaptive_curves, exact_curves
from trisect.text.corpus import Corpus, Split
from trisect.text.sources import load_text

TYPES, BATCH, LENGTH = 28_782, 20, 35  # of WikiText-2
HALF = 95  # GFLOP/s of float32 products of the core for which the aims were set


def corpus() -> Corpus:
    """Zipf-distributed ids over the types of WikiText-2: enough for a dozen steps."""
    ids = zipf_corpus_ids(TYPES, BATCH * (LENGTH + 1) * 12).numpy().astype(np.int32)
    words = tuple(str(i) for i in range(TYPES))
    return Corpus.make("zipf", words, {}, {"train": Split(ids, {}), "valid": Split(ids[:720], {})}, ())


def trainer(text: Corpus, dropout: float, clip: float = 0.5, products: torch.dtype | None = None) -> Trainer:
    """A fleet of one: the paper's baseline."""
    paper = find_experiments("paper")[0]
    model, training = replace(paper.model, dropout=dropout), replace(paper.training, clip=clip, train_sample=700)
    return Trainer([Run(text.fingerprint, model, training, 1)], text, products=products)


def eager_step(text: Corpus, run: Run, device: str = "cpu") -> Callable[[], None]:
    """The tutorial's step: forward, CrossEntropyLoss, backward, clip_grad_norm_, SGD."""
    like = Trainer([run], text)
    first = {n: v[0].clone() for n, v in views(like.flat, like.places).items()}
    model = plain_of(like.model, TYPES, first, run.model.dropout).to(device)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=5.0), torch.nn.CrossEntropyLoss()
    pieces = [Windows(text, run.training, (), device)[i] for i in range(like.steps_per_epoch)]
    steps = iter(range(10**9))

    def step() -> None:
        piece = pieces[next(steps) % len(pieces)]
        optimizer.zero_grad()
        criterion(model(piece.inputs).flatten(0, 1), piece.targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    return step


def gradient_errors(text: Corpus) -> tuple[float, float, float]:
    """Relative error of one step's gradient against float64, without dropout and clipping: eager's, ours, ours in bfloat16."""
    like, narrow = (trainer(text, 0.0, clip=1e30, products=kind) for kind in (None, torch.bfloat16))
    first = {n: v[0].clone() for n, v in views(like.flat, like.places).items()}
    piece = Windows(text, like.training, (), "cpu")[0]

    def eager(dtype: torch.dtype) -> Tensor:
        model = plain_of(like.model, TYPES, {n: v.to(dtype) for n, v in first.items()})
        torch.nn.functional.cross_entropy(model(piece.inputs).flatten(0, 1), piece.targets).backward()
        parameters = dict(model.named_parameters())
        gradients = [parameters[theirs].grad for theirs in names(like.model, TYPES).values()]
        return torch.cat([g.double().flatten() for g in gradients if g is not None])

    exact, plain = eager(torch.float64), eager(torch.float32)
    like.step()
    narrow.step()
    errors = (
        (g - exact).norm() / exact.norm() for g in (plain, like.gradient[0].double(), narrow.gradient[0].double())
    )
    first_error, second, third = map(float, errors)
    return first_error, second, third


def products(narrow: torch.dtype | None = None) -> tuple[Callable[[], None], float]:
    """The step's own products and nothing else, each whole and into room that is there; and how many operations they are.

    `narrow` is of the decoder's three, which are four fifths of it; those of the encoder are float32.
    """
    model, tokens = find_experiments("paper")[0].model, BATCH * LENGTH
    wide, each, heads = model.width, model.width // model.heads, model.heads * BATCH
    draw = torch.Generator().manual_seed(0)

    def factors(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(*shape, generator=draw).to(dtype)

    kind = narrow or torch.float32
    hidden, decoder = factors(tokens, wide, dtype=kind), factors(TYPES, wide, dtype=kind)
    logits = torch.empty(tokens, TYPES, dtype=kind)
    pairs = [(hidden, decoder.t(), logits), (logits, decoder, torch.empty_like(hidden))]
    pairs.append((logits.t(), hidden, torch.empty_like(decoder)))
    x, inner = factors(tokens, wide), model.feedforward
    for out, into in ((3 * wide, wide), (wide, wide), (inner, wide), (wide, inner)):
        w, y, g = factors(out, into), x if into == wide else factors(tokens, into), factors(tokens, out)
        pairs += [(y, w.t(), g.clone()), (g, w, y.clone()), (g.t(), y, w.clone())] * model.layers
    short, square = factors(heads, LENGTH, each), factors(heads, LENGTH, LENGTH)
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


def share(spent: Mapping[str, list[float]], limit: str, way: str) -> str:
    """What share of a way's time its products alone would take: median, and the middle half of the rounds."""
    shares = [a / b for a, b in zip(spent[limit], spent[way], strict=True)]
    low, middle, high = statistics.quantiles(shares, n=4)
    return f"{100 * middle:.0f} % ({100 * low:.0f} % to {100 * high:.0f} %)"


@one_core()
def step_rows(rounds: int = 15) -> list[Row]:
    """A step against eager torch at its defaults, and with the same products; shares of the limit."""
    text, (alone, operations) = corpus(), products()
    with fast_products() as setting:
        errors = gradient_errors(text)
        ours, narrow = trainer(text, 0.2), trainer(text, 0.2, products=torch.bfloat16)
        ways = {
            "defaults": set_to("highest", eager_step(text, ours.runs[0])),
            "same": set_to(setting, eager_step(text, ours.runs[0])),
            "ours": set_to(setting, ours.step),
            "limit": set_to(setting, alone),
            "narrow": set_to(setting, narrow.step),
            "narrow limit": set_to(setting, products(torch.bfloat16)[0]),
        }
        spent = timed(ways, rounds)
    ms = {name: statistics.median(seconds) * 1e3 for name, seconds in spent.items()}
    rate = operations / ms["limit"] / 1e6  # GFLOP/s
    other, slower = ms["ours"] - ms["limit"], ms["limit"] * rate / HALF

    def against(what: str, plain: str, way: str, *notes: str) -> Row:
        pair = summary((spent[plain], spent[way]))
        step = "one training step, 28,782 types, 20 x 35 tokens"
        return row(f"{step}{what}", f"{ms[plain]:.0f} ms", f"{ms[way]:.0f} ms", pair, notes)

    return [
        against(
            ": eager PyTorch at its defaults",
            "defaults",
            "ours",
            f"the step's products alone, each whole: {ms['limit']:.0f} ms, {rate:.0f} GFLOP/s, {operations / 1e9:.1f} GFLOP",
            "share of the time that these products alone would take (middle half of the rounds): "
            f"ours {share(spent, 'limit', 'ours')}, eager with the same products {share(spent, 'limit', 'same')}, "
            f"eager at its defaults {share(spent, 'limit', 'defaults')}; the aim is 85 %",
            f"{ms['ours']:.0f} ms are {ms['limit']:.0f} ms of products and {other:.0f} ms of all else; the share falls as products "
            f"get faster: a core of {HALF} GFLOP/s, for which the aim was set, would multiply for {slower:.0f} ms, and with as much of all "
            f"else that is {100 * slower / (slower + other):.0f} % (reckoned, not measured)",
            f"float32 products: {setting} (chosen by the self-check) in ours, highest in eager at its defaults",
            f"CPU seconds; load average of the machine at the end: {os.getloadavg()[0]:.0f}",
        ),
        against(
            ": eager PyTorch with the same products",
            "same",
            "ours",
            f"gradient's relative error against float64: eager {errors[0]:.1e}, ours {errors[1]:.1e}",
        ),
        against(
            ", --precision bfloat16: eager PyTorch at its defaults (float32)",
            "defaults",
            "narrow",
            "share of the time that its products alone would take (the decoder's in bfloat16, the encoder's in float32: "
            f"{ms['narrow limit']:.0f} ms): {share(spent, 'narrow limit', 'narrow')}; the aim is 65 %",
            f"gradient's relative error against float64: {errors[2]:.1e}",
        ),
    ]


@one_core()
def fleet_rows(rounds: int = 9, members: int = 8) -> list[Row]:
    """A fleet of eight against eight fleets of one, at the size of `quick`; CPU seconds of one member's step."""
    quick = find_experiments("quick")[0]
    text = load_text(quick.text)
    runs = [r for r in quick.runs(text.fingerprint) if r.seed == 1 and (r.edit is None or r.edit.kind == "freeze")]

    def steps(trainers: Sequence[Trainer]) -> None:
        for one in (*trainers, *trainers):
            one.step()

    with fast_products():
        single, fleet = [Trainer([r], text) for r in runs[:members]], [Trainer(runs[:members], text)]
        pair = paired(lambda: steps(single), lambda: steps(fleet), rounds)
    plain, ours = (f"{seconds * 1e3 / (2 * members):.1f} ms" for seconds in (pair.plain, pair.ours))
    what = f"one member's step in a fleet of {members} against {members} single runs, at the size of `quick`"
    notes = [f"the grouping into fleets of at most {members} is made by the plan; single runs are fleets of one"]
    return [row(what, plain, ours, pair, notes)]


def study_rows() -> list[Row]:
    """`trisect study quick` as a whole: minutes; there is no plain way to measure it against."""
    workers = Machine().cores()
    with tempfile.TemporaryDirectory() as scratch:
        walls = list[float]()
        for _ in range(2):
            began = time.perf_counter()
            trisect.study("quick", out=Path(scratch) / "study", quiet=True)
            walls.append(time.perf_counter() - began)
    note = f"reading, judging, drawing and writing the report: {walls[1] / 60:.2f} minutes (the same command on a finished study)"
    what = f"`trisect study quick` from start to end, {workers} workers"
    return [row(what, "", f"{walls[0] / 60:.1f} minutes", notes=[note])]


SEEN, STEPS, MODEL, GRID = 2_000, 150, Model(), np.arange(101) / 100
PLAIN = 3  # of the 101 α are evaluated the plain way at each site; the cost is the same at every α
PLACES = layout(MODEL, TYPES)
Evaluate = Callable[[list[float]], np.ndarray]
MODES: dict[str, Callable[[Evaluate], GridCurves]] = {
    "exact": lambda evaluate: exact_curves(evaluate, GRID, 1),
    "adaptive": lambda evaluate: adaptive_curves(evaluate, GRID, 1, 0.01),
}


class Round(NamedTuple):
    """One site: seconds of all 101 α the plain way and ours, evaluations, largest difference."""

    plain: float
    ours: float
    evaluations: int
    difference: float


def copies(tokens: int, seed: int) -> np.ndarray:
    """Zipf-distributed ids, half of them copied from one to seven places back, so that attention has something to do."""
    ids, draw = zipf_corpus_ids(SEEN, tokens, seed).numpy().astype(np.int32), np.random.default_rng(seed)
    back, copied = draw.integers(1, 8, tokens), draw.random(tokens) < 0.5
    for i in np.flatnonzero(copied[7:]) + 7:
        ids[i] = ids[i - back[i]]
    return ids


def weights() -> tuple[Tensor, Tensor]:
    """Flat weights before and after a brief training.

    The text has SEEN of the types, so that training takes seconds; the other words keep the weights they began with.
    """
    training = Training(epochs=1, optimizer="adamw", rate=1e-3, warmup=20, weight_decay=0.01, train_sample=700)
    splits = {"train": Split(copies(STEPS * BATCH * LENGTH + BATCH, 1)), "valid": Split(copies(400, 2))}
    text = Corpus("copies", tuple(map(str, range(SEEN))), {}, splits, (), "0" * 16)
    run = Run(text.fingerprint, MODEL, training, 1)
    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(Path(folder) / "checkpoint.safetensors", {0: Path(folder) / "epochs"})
        learned = train_fleet([run], text, files, "cpu", lambda _: None)[0].final
    small = views(initial(MODEL, SEEN, 1)[None], layout(MODEL, SEEN))
    first = initial(MODEL, TYPES, 2)
    for name, whole in views(first[None], PLACES).items():
        whole[0, : small[name].shape[1]] = small[name][0]
    final = first.clone()
    for name, whole in views(final[None], PLACES).items():
        whole[0, : learned[name].shape[0]] = learned[name]
    return first, final


def plain_losses(model: Plain, first: Tensor, final: Tensor, site: Site, piece: Piece, at: Sequence[float]) -> Any:
    """For each α the site's blended weights are loaded and every token is evaluated, 700 at a time."""
    loss, theirs, losses = torch.nn.CrossEntropyLoss(), names(MODEL, TYPES), []
    changing = [n for n in PLACES if any(n.startswith(f"layers.{layer}.in.") for layer in site.layers or ())]
    state = model.state_dict()
    for alpha in at:
        for name in changing:
            place = PLACES[name]
            here, last = slice(place.start, place.stop), final[place.start : place.stop]
            mixed = (1 - alpha) * first[here] + alpha * last
            blended = torch.where(mark(site, MODEL, PLACES)[here], mixed, last)
            state[theirs[name]].copy_(blended.view(place.shape))
        total = 0.0
        with torch.no_grad():
            for x, y in zip(piece.inputs.split(BATCH), piece.targets.split(BATCH * LENGTH), strict=True):
                total += loss(model(x).flatten(0, 1), y).item() * y.numel()
        losses.append(total / piece.targets.numel())
    for name in changing:
        state[theirs[name]].copy_(views(final[None], PLACES)[name][0])
    return losses


def spent_on(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor, and what came out."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def rewind_rounds(sites: Sequence[Site]) -> dict[str, list[Round]]:
    """Each site one round: some α the plain way, then all in both modes."""
    first, final = weights()
    ends = [{n: v[0] for n, v in views(flat[None], PLACES).items()} for flat in (first, final)]
    whole = {n: v[None] for n, v in ends[1].items()}
    ids = torch.from_numpy(copies(BATCH * (LENGTH + 1), 3).astype(np.int64)).view(-1, LENGTH + 1)
    piece = Piece(ids[:, :-1].contiguous(), ids[:, 1:].flatten(), {})
    model, draw = plain_of(MODEL, TYPES, ends[1]).eval(), np.random.default_rng(0)

    def evaluate(site: Site, alphas: list[float]) -> np.ndarray:
        curve = evaluate_variants(whole, MODEL, [piece], site, blend(ends[0], ends[1], alphas))
        return np.stack([curve.loss_nats, curve.accuracy])

    evaluate(sites[0], [1.0])
    rounds: dict[str, list[Round]] = {mode: [] for mode in MODES}
    for site in sites:
        some = [0.0, 1.0, *draw.choice(GRID[1:-1], PLAIN - 2, replace=False).tolist()]
        slow, losses = spent_on(lambda s=site, a=some: plain_losses(model, first, final, s, piece, a))
        curves, scale = dict[str, Any](), len(GRID) / PLAIN
        for mode, make in MODES.items():
            seconds, curve = spent_on(lambda m=make, s=site: m(lambda alphas: evaluate(s, alphas)))
            curves[mode] = curve.values[0]
            far = np.abs(np.interp(some, GRID, curves[mode]) - losses).max()
            far = max(far, np.abs(curves[mode] - curves["exact"]).max())
            rounds[mode].append(Round(slow * scale, seconds, curve.evaluations, float(far)))
    return rounds


@one_core()
def rewind_rows(sites: Sequence[Site] = PAPER_SITES) -> list[Row]:
    """The rewind grid, 101 α × 15 sites of the paper's model, against loading blended weights and evaluating every token."""
    return [_rewind_row(mode, each) for mode, each in rewind_rounds(sites).items()]


def _rewind_row(mode: str, each: list[Round]) -> Row:
    pair: Ratio = summary(([one.plain for one in each], [one.ours for one in each]))
    low, _, high = np.quantile([one.plain / one.ours for one in each], [0.25, 0.5, 0.75])
    notes = [
        f"{pair.rounds} sites, one round each, {BATCH * LENGTH} tokens; half of the ratios lie between {low:.1f} and {high:.1f}",
        f"the plain way is timed at {PLAIN} of the 101 α (0, 1 and random ones) and scaled up",
        f"{sum(one.evaluations for one in each):,} evaluations in all; losses within {max(one.difference for one in each):.1e} nats of "
        "the plain way's",
    ]
    what = f"rewind grid of 101 α, {mode} mode, a site of the paper's model"
    return row(what, f"{pair.plain:.0f} s", f"{pair.ours:.1f} s", pair, notes)
