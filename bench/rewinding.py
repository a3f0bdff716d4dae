"""The rewind grid, 101 α × 15 sites of the paper's model, against loading blended weights and evaluating every token.

python bench/rewinding.py
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from paired import summary
from plain import Plain, names, plain_of, zipf_corpus_ids
from torch import Tensor

from trisect.core.methods import PAPER_SITES
from trisect.core.site import Site
from trisect.core.spec import Model, Run, Training
from trisect.lm.feed import Piece
from trisect.lm.fleet import initial, layout, spans, views
from trisect.lm.matmul import one_thread
from trisect.lm.rewind import blend, evaluate_variants
from trisect.lm.train import RunFiles, train_fleet
from trisect.measure.criticality import GridCurves, adaptive_curves, exact_curves
from trisect.text.corpus import Corpus, Split

TYPES, SEEN, STEPS, MODEL, GRID = 28_782, 2_000, 150, Model(), np.arange(101) / 100
BATCH, LENGTH = 20, 35
PLAIN = 3  # of the 101 α are evaluated the plain way at each site; the cost is the same at every α
PLACES = layout(MODEL, TYPES)


class Round(NamedTuple):
    """One site: seconds of all 101 α the plain way and ours, evaluations, page faults of each, largest difference."""

    plain: float
    ours: float
    evaluations: int
    plain_faults: int
    our_faults: int
    difference: float


def text(tokens: int, seed: int) -> np.ndarray:
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
    splits = {"train": Split(text(STEPS * BATCH * LENGTH + BATCH, 1)), "valid": Split(text(400, 2))}
    corpus = Corpus("copies", tuple(map(str, range(SEEN))), {}, splits, (), "0" * 16)
    run = Run(corpus.fingerprint, MODEL, training, 1)
    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(Path(folder) / "checkpoint.safetensors", {0: Path(folder) / "epochs"})
        learned = train_fleet([run], corpus, files, "cpu", lambda _: None)[0].final
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
    loss, theirs, found = torch.nn.CrossEntropyLoss(), names(MODEL, TYPES), []
    own = [n for n in PLACES if any(n.startswith(f"layers.{layer}.in.") for layer in site.layers or ())]
    state = model.state_dict()
    for alpha in at:
        for name in own:
            place = PLACES[name]
            blended = final[place.start : place.stop].clone()
            for cut in spans(site, MODEL, PLACES):
                if place.start <= cut.start < place.stop:
                    part = slice(cut.start - place.start, cut.stop - place.start)
                    blended[part] = (1 - alpha) * first[cut] + alpha * final[cut]
            state[theirs[name]].copy_(blended.view(place.shape))
        total = 0.0
        with torch.no_grad():
            for x, y in zip(piece.inputs.split(BATCH), piece.targets.split(BATCH * LENGTH), strict=True):
                total += loss(model(x).flatten(0, 1), y).item() * y.numel()
        found.append(total / piece.targets.numel())
    for name in own:
        state[theirs[name]].copy_(views(final[None], PLACES)[name][0])
    return found


def timed(work: Callable[[], Any]) -> tuple[float, int, Any]:
    """Seconds of the processor, page faults, and what came out."""
    faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    found = work()
    return time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults, found


def rounds(batches: int, sites: Sequence[Site]) -> dict[str, list[Round]]:
    """Each site one round: some α the plain way, then all in both modes."""
    first, final = weights()
    ends = [{n: v[0] for n, v in views(flat[None], PLACES).items()} for flat in (first, final)]
    ids = torch.from_numpy(text(batches * BATCH * (LENGTH + 1), 3).astype(np.int64)).view(-1, LENGTH + 1)
    piece = Piece(ids[:, :-1].contiguous(), ids[:, 1:].flatten(), {})
    model, draw = plain_of(MODEL, TYPES, ends[1]).eval(), np.random.default_rng(0)
    evaluation(ends, piece, sites[0])([1.0])
    found: dict[str, list[Round]] = {"exact": [], "adaptive": []}
    for site in sites:
        some = [0.0, 1.0, *draw.choice(GRID[1:-1], PLAIN - 2, replace=False).tolist()]
        slow, slow_faults, losses = timed(lambda s=site, a=some: plain_losses(model, first, final, s, piece, a))
        evaluate, curves = evaluation(ends, piece, site), {}
        for mode, make in {"exact": exact, "adaptive": adaptive}.items():
            seconds, faults, curve = timed(lambda m=make, e=evaluate: m(e))
            curves[mode] = curve.values[0]
            far = np.abs(np.interp(some, GRID, curves[mode]) - losses).max()
            far = max(far, np.abs(curves[mode] - curves["exact"]).max())
            share = len(GRID) / PLAIN
            one = Round(slow * share, seconds, curve.evaluations, round(slow_faults * share), faults, float(far))
            found[mode].append(one)
    return found


def evaluation(ends: list[Mapping[str, Tensor]] | Any, piece: Piece, site: Site) -> Callable[[list[float]], np.ndarray]:
    """Loss and accuracy of a site's blends, as a study finds them."""
    whole = {n: v[None] for n, v in ends[1].items()}

    def evaluate(alphas: list[float]) -> np.ndarray:
        curve = evaluate_variants(whole, MODEL, [piece], site, blend(ends[0], ends[1], alphas))
        return np.stack([curve.loss_nats, curve.accuracy])

    return evaluate


def exact(evaluate: Callable[[list[float]], np.ndarray]) -> GridCurves:
    """Every point."""
    return exact_curves(evaluate, GRID, 1)


def adaptive(evaluate: Callable[[list[float]], np.ndarray]) -> GridCurves:
    """As a study does it unless asked otherwise."""
    return adaptive_curves(evaluate, GRID, 1, 0.01)


def rows(batches: int = 1, sites: Sequence[Site] = PAPER_SITES) -> list[dict[str, Any]]:
    """A row for each mode: seconds of the whole grid on one thread, and the median ratio of rounds paired by site."""
    with one_thread():
        found = rounds(batches, sites)
    return [_row(mode, each, batches * BATCH * LENGTH) for mode, each in found.items()]


def _row(mode: str, each: list[Round], tokens: int) -> dict[str, Any]:
    pair = summary([(one.plain, one.ours) for one in each])
    low, _, high = np.quantile([one.plain / one.ours for one in each], [0.25, 0.5, 0.75])
    evaluations = sum(one.evaluations for one in each)
    faults = sum(one.plain_faults for one in each), sum(one.our_faults for one in each)
    return {
        "what": f"rewind grid of 101 α, {mode} mode, a site of the paper's model",
        "plain": f"{pair.plain:.0f} s",
        "ours": f"{pair.ours:.1f} s",
        "ratio": pair.ratio,
        "low": pair.low,
        "high": pair.high,
        "notes": [
            f"{pair.rounds} sites, one round each, {tokens} tokens; half of the ratios lie between {low:.1f} and {high:.1f}",
            f"the plain way is timed at {PLAIN} of the 101 α (0, 1 and random ones) and scaled up",
            f"{evaluations:,} evaluations in all; losses within {max(one.difference for one in each):.1e} nats of the plain way's",
            f"page faults: {faults[0]:,} the plain way, {faults[1]:,} ours",
        ],
    }


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1, ensure_ascii=False))
