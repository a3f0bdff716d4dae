"""Tasks: the pieces of a study that a worker takes on, and what it does with each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from typing_extensions import TypedDict

from trisect.claims import REVISION, claims_hash
from trisect.core.files import Json, digest, write_json
from trisect.core.machine import processor, versions
from trisect.core.methods import Rewind
from trisect.core.schema import Many, plain, record
from trisect.core.site import Site
from trisect.core.spec import Design, Model, Run
from trisect.core.study_data import FinishedRun
from trisect.engine.jobs import JobContext, job
from trisect.engine.start import check_narrow
from trisect.experiments.study.probing import SiteRow, erase, loss_rises, probe
from trisect.lab.folder import Folder, epoch_weights, read_finished, weights
from trisect.lm.edited import parameters_of
from trisect.lm.feed import Piece, evaluation_pieces
from trisect.lm.fleet import COMPONENT_ROW, forward, weights_of
from trisect.lm.matmul import check_numerics, fast_products, numerics, one_thread
from trisect.lm.rewind import blend, draw_rows, evaluate_variants, parts_of, self_only_loss, stages
from trisect.lm.snapshots import write_snapshot
from trisect.lm.train import Progress, RunFiles, train_fleet
from trisect.measure.criticality import adaptive_curves, exact_curves
from trisect.measure.patching import BASE, shares
from trisect.stats.shares import paired_band
from trisect.stats.tested import finite
from trisect.text.corpus import Corpus, unigram_loss
from trisect.text.worlds import DonorPairs, world_of


def ablate(
    final: Mapping[str, Tensor], model: Model, site: Site, pieces: Mapping[str, Sequence[Piece]]
) -> list[SiteRow]:
    """Rise of the loss on train and validation, with 95 % intervals over rows, at a resolved site of q, k or v.

    `final` are a baseline's weights without a member axis, `pieces` what is evaluated, by split. Means are over the tokens
    of the train pieces, of the unedited model; at a site of several layers all are replaced at once.
    """
    changed = mean_ablated(final, model, site, pieces["train"])
    found = []
    for split, own in pieces.items():
        rises, low, high, n = loss_rises(final, model, list(own), site, [changed])
        named = (("", rises[0]), ("low_", low[0]), ("high_", high[0]))
        found += [SiteRow(str(site), f"ablate_rise_{end}nats", None, split, finite(value), n) for end, value in named]
    return found


@torch.no_grad()
def mean_ablated(final: Mapping[str, Tensor], model: Model, site: Site, pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """The weights under which a resolved site of q, k or v is its mean over the pieces at every token."""
    changed, means = dict(final), _means(final, model, site, pieces)
    for n, mean in means.items():
        for name, part in weights_of(site, model, n):
            whole = f"layers.{n}.{name}"
            if changed[whole] is final[whole]:
                changed[whole] = final[whole].clone()
            changed[whole][part] = mean.to(final[whole])[part] if name == "in.bias" else 0.0
    return changed


def _means(
    final: Mapping[str, Tensor], model: Model, site: Site, pieces: Sequence[Piece]
) -> dict[int, Float[Tensor, " W"]]:
    """The mean of q, k and v side by side, by layer."""
    whole = {name: values[None] for name, values in final.items()}
    sums: dict[int, Tensor] = {}
    for piece in pieces:
        kept = forward(whole, piece.inputs, model, blocks=[("qkv", n) for n in site.layers or ()]).kept
        for (_, n), x in kept.items():
            here = x[0].flatten(0, 1).double().sum(0)
            sums[n] = sums[n] + here if n in sums else here
    count = sum(piece.inputs.numel() for piece in pieces)
    return {n: total / count for n, total in sums.items()}


TOGETHER = 500  # documents read at once


@torch.no_grad()
def interchange(
    final: Mapping[str, Tensor], model: Model, vocabulary: Sequence[str], site: Site, pairs: DonorPairs
) -> list[SiteRow]:
    """Shares of pairs that answer by the site's own prediction, by each other component's, or as without, at a resolved
    site of one of q, k and v.

    `final` are a baseline's weights without a member axis. The site's representation of the donor stands in the base's
    place at every token. Pairs with words that the vocabulary lacks are left out.
    """
    whole = {name: values[None] for name, values in final.items()}
    ids = {word: i for i, word in enumerate(vocabulary)}
    base, donor, kept = _known(pairs, ids)
    predictions = {
        name: _numbers(words, ids)[kept] for name, words in {BASE: pairs.unchanged, **pairs.predicted}.items()
    }
    answers = np.concatenate([logits.argmax(1).numpy() for logits in _patched_logits(whole, model, site, base, donor)])
    found = shares(answers, predictions, site.components[0])
    others = {f"interchange_as_{name}": share for name, share in found.others.items()}
    named = {"interchange_own": found.own, "interchange_unchanged": found.unchanged, **others}
    rows = [SiteRow(str(site), name, None, "valid", share.value, share.n) for name, share in named.items()]
    total = sum(share.hits for share in found.others.values()) / found.n if found.n else None
    return [*rows, SiteRow(str(site), "interchange_others", None, "valid", total, found.n)]


@torch.no_grad()
def change_one(
    final: Mapping[str, Tensor], model: Model, vocabulary: Sequence[str], site: Site, pairs: DonorPairs
) -> SiteRow:
    """Rise of the loss of the base's answer, in nats, where the donor differs in one attribute alone, at a resolved site."""
    whole = {name: values[None] for name, values in final.items()}
    ids = {word: i for i, word in enumerate(vocabulary)}
    base, donor, kept = _known(pairs, ids)
    gold = torch.from_numpy(_numbers(pairs.unchanged, ids)[kept])

    def loss(other: np.ndarray) -> float:
        logits = torch.cat(list(_patched_logits(whole, model, site, base, other)))
        return float(F.cross_entropy(logits.double(), gold))

    rise = loss(donor) - loss(base) if len(gold) else None
    return SiteRow(str(site), "interchange_rise_nats", None, "valid", rise, len(gold))


def _known(pairs: DonorPairs, ids: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Base and donor as numbers [N T] where all words are known, and which pairs these are."""
    base, donor = (_numbers(texts, ids) for texts in (pairs.base, pairs.donor))
    kept = np.concatenate([base, donor], 1).min(1) >= 0
    return base[kept], donor[kept], kept


def _patched_logits(
    final: Mapping[str, Tensor], model: Model, site: Site, base: np.ndarray, donor: np.ndarray
) -> Iterator[Tensor]:
    """What each patched document says of the next word, some documents at a time."""
    device = final["decoder.bias"].device
    for start in range(0, max(1, len(base)), TOGETHER):
        few = [torch.from_numpy(ids[start : start + TOGETHER]).to(device) for ids in (base, donor)]
        hidden = forward(final, few[0], model, put=_patched(final, model, site, *few)).hidden[0, :, -1]
        yield (hidden @ final["decoder.weight"][0].T + final["decoder.bias"][0]).cpu()


def _patched(final: Mapping[str, Tensor], model: Model, site: Site, base: Tensor, donor: Tensor) -> dict[int, Tensor]:
    """q, k and v side by side of the site's only layer: the base's, with the donor's at the site."""
    (layer,) = site.layers or (1,)
    own, other = (forward(final, ids, model, blocks=[("qkv", layer)]).kept["qkv", layer] for ids in (base, donor))
    start = COMPONENT_ROW[site.components[0]] * model.width
    mixed = own.clone()
    mixed[..., start : start + model.width] = other[..., start : start + model.width]
    return {layer: mixed}


def _numbers(words: Sequence[str] | Sequence[Sequence[str]], ids: Mapping[str, int]) -> np.ndarray:
    """Words as numbers, -1 for those that are unknown."""
    shape = np.array(words)
    return np.array([ids.get(word, -1) for word in shape.ravel().tolist()], int).reshape(shape.shape)


class CurveData(TypedDict):
    """Loss and accuracy of one split over n tokens at every place of a curve; what is not finite is missing."""

    at: list[float]
    loss_nats: list[float | None]
    accuracy: list[float | None]
    n: int
    check_nats: NotRequired[float]
    rise_low_nats: NotRequired[list[float | None]]
    rise_high_nats: NotRequired[list[float | None]]
    area_low: NotRequired[float | None]
    area_high: NotRequired[float | None]


class EvaluationData(TypedDict, total=False):
    """One evaluation: `rows` where it has them, else a curve for each split."""

    kind: str
    site: str
    label: str
    wall_seconds: float
    diverged: bool
    rows: list[dict[str, Json]]
    train: CurveData
    valid: CurveData
    unigram: dict[str, float]
    evaluations: int
    nodes: int


Parameters = Mapping[str, Tensor]
Pieces = Mapping[str, Sequence[Piece]]
CurveSums = dict[str, Float[np.ndarray, "A R"]]  # split -> each row's summed loss along the curve, in nats


def rewind(
    run: Run, site: Site, final: Parameters, epochs: Sequence[Parameters], convex: bool, pieces: Pieces, how: Rewind
) -> EvaluationData:
    """What an evaluation's file holds: towards the first of the stored epochs (convex), or through all of them.

    `final` and `epochs` have no member axis; `pieces` are all that is evaluated, by split.
    """
    sample, drawn = how.sample_tokens, pieces
    if sample is not None:
        drawn = {split: draw_rows(part, sample, how.sample_seed, split) for split, part in pieces.items()}
    body: EvaluationData = {}
    if convex:
        curves, sums = _convex(run, site, final, epochs[0], drawn, how, body)
    else:
        curves, sums = _midstage(run, site, final, epochs, drawn)
    if sample is not None:
        for split, part in drawn.items():
            tokens = np.array([p.tokens // len(p.inputs) for p in part for _ in p.inputs])
            band = paired_band(sums[split], tokens, sum(len(p.inputs) for p in pieces[split]))
            ends = numbers(np.array([band.area_low, band.area_high]))
            curve = curves[split]
            curve["rise_low_nats"], curve["rise_high_nats"] = numbers(band.low), numbers(band.high)
            curve["area_low"], curve["area_high"] = ends
    body["train"], body["valid"] = curves["train"], curves["valid"]
    return body


def _midstage(
    run: Run, site: Site, final: Parameters, epochs: Sequence[Parameters], pieces: Pieces
) -> tuple[dict[str, CurveData], CurveSums]:
    whole, at = {n: v[None] for n, v in final.items()}, [float(i) for i in range(len(epochs))]
    found = {s: evaluate_variants(whole, run.model, p, site, stages(epochs)) for s, p in pieces.items()}
    body = {s: curve_data(at, c.loss_nats, c.accuracy, c.n) for s, c in found.items()}
    return body, {s: c.row_nats for s, c in found.items()}


def _convex(
    run: Run, site: Site, final: Parameters, first: Parameters, pieces: Pieces, how: Rewind, body: EvaluationData
) -> tuple[dict[str, CurveData], CurveSums]:
    """Loss and accuracy along (1 - α)·θ⁰ + α·θᶠ, exactly or between self-checking nodes, which `body` counts."""
    whole, grid = {n: v[None] for n, v in final.items()}, np.arange(how.points) / (how.points - 1)
    rows: dict[float, list[np.ndarray]] = {}

    def evaluate(alphas: list[float]) -> np.ndarray:
        variants = blend(first, final, alphas)
        found = [evaluate_variants(whole, run.model, p, site, variants) for p in pieces.values()]
        rows.update({a: [c.row_nats[i] for c in found] for i, a in enumerate(alphas)})
        return np.stack([c.loss_nats for c in found] + [c.accuracy for c in found])

    curves = (
        exact_curves(evaluate, grid, len(pieces))
        if how.mode == "exact"
        else adaptive_curves(evaluate, grid, len(pieces), how.epsilon)
    )
    body["evaluations"], body["nodes"] = curves.evaluations, curves.nodes
    found: dict[str, CurveData] = {}
    for i, (split, part) in enumerate(pieces.items()):
        n = sum(p.tokens for p in part)
        found[split] = curve_data(grid.tolist(), curves.values[i], curves.values[i + len(pieces)], n)
        found[split]["check_nats"] = float(curves.checks[i])
    return found, {s: curves.mix @ np.stack([rows[x][i] for x in curves.points]) for i, s in enumerate(pieces)}


def curve_data(at: list[float], losses: np.ndarray, accuracies: np.ndarray, n: int) -> CurveData:
    """One split's curve, over n tokens."""
    return {"at": at, "loss_nats": numbers(losses), "accuracy": numbers(accuracies), "n": n}


def numbers(values: np.ndarray) -> list[float | None]:
    """Finite ones as they are, the others missing."""
    return [float(v) if np.isfinite(v) else None for v in values]


@dataclass(frozen=True)
class Task:
    """One piece of work: train a fleet, or evaluate one trained run.

    A baseline is evaluated with its attention cut, one site rewound or replaced by its mean, or a label erased at a site; it
    and attacked runs are probed for a label. `runs` are a fleet's run ids, or the one; `seconds` is the expected cost on one core.
    """

    kind: str
    runs: tuple[str, ...]
    site: str = ""
    seconds: float = 1.0
    label: str = ""

    @property
    def title(self) -> str:
        """What a progress line calls it."""
        seed = self.runs[0].rsplit("-", 2)[1]
        if self.kind == "train":
            return f"train {len(self.runs)} runs from {self.runs[0].rsplit('-', 2)[0]} ({seed})"
        return f"{' '.join(filter(None, (self.kind, self.label, self.site)))} ({seed})"


def evaluation_advice(path: Path) -> str:
    """What to do about a damaged evaluation."""
    return f"Delete {path} and call 'trisect study' again: only this is then done again."


def fleet_name(runs: Sequence[str]) -> str:
    """A short name that is a function of the fleet's members."""
    return digest("\n".join(runs), 6)


def is_done(task: Task, folder: Folder) -> bool:
    """Whether all that the task leaves behind is there."""
    return all(path.exists() for path in left_by(task, folder))


def left_by(task: Task, folder: Folder) -> list[Path]:
    """The files that say that a task is done."""
    if task.kind == "train":
        return [folder.run(run) for run in task.runs]
    return [folder.evaluation(task.runs[0], task.kind, task.site, task.label)]


@record
class StudyJob:
    """A task as a worker reads it: its runs, all that the study is asked, and what trained the runs that are finished.

    Of the matrices of sites that the study rewinds the weights of every epoch are kept.
    """

    kind: str
    runs: Many[Run]
    site: str
    label: str
    design: Design
    device: str
    precision: str
    numerics: str | None = None


@job
def execute(asked: StudyJob, context: JobContext) -> None:
    """Do one task; its files lie in the scratch folder as they lie in the study's."""
    folder, corpus = Folder(context.scratch), context.read("corpus", Corpus.load)
    run = asked.runs[0]
    with one_thread(), fast_products() as products:
        if asked.kind == "train":
            _train(asked, folder, corpus, context, products)
        else:
            began = time.monotonic()
            body = _evaluate(asked, folder, run, corpus)
            body["kind"], body["site"], body["label"] = asked.kind, asked.site, asked.label
            body["wall_seconds"] = time.monotonic() - began
            write_json(folder.evaluation(run.id, asked.kind, asked.site, asked.label), body)


def _train(asked: StudyJob, folder: Folder, corpus: Corpus, context: JobContext, products: str) -> None:
    check_narrow(asked.device, asked.precision)
    how = numerics(asked.device, asked.precision, products)
    check_numerics(asked.numerics, how)
    runs, rewind = list(asked.runs), asked.design.rewind
    kept = {slot: folder.epochs(run.id) for slot, run in enumerate(runs) if run.edit is None}
    parts = tuple(dict.fromkeys(("in", *parts_of(rewind.sites if rewind else (), runs[0].model))))
    checkpoint, epoch = folder.checkpoint(fleet_name([run.id for run in runs])), [0]

    def progress(p: Progress) -> None:
        if p.epoch != epoch[0]:  # the first step after a checkpoint
            epoch[0] = p.epoch
            context.keep()
        context.say(p.done / p.total, f"epoch {p.epoch}, loss {p.loss_nats:.3f}" if p.loss_nats is not None else "")

    files = RunFiles(checkpoint, kept, parts, how)
    outcomes = train_fleet(runs, corpus, files, asked.device, progress, asked.precision)
    for run, outcome in zip(runs, outcomes, strict=True):
        write_snapshot(folder.final(run.id), outcome.final, {"run": run.id})
        finished = FinishedRun(
            spec=run,
            status=outcome.status,
            diverged_step=outcome.diverged_step,
            parameters=parameters_of(run.model, len(corpus.vocabulary), run.edit),
            versions=versions(),
            claims_hash=claims_hash(),
            revision=REVISION,
            device=asked.device,
            precision=asked.precision,
            products=products,
            numerics=how,
            processor=processor(),
            recorded=outcome.recorded,
            wall_seconds=outcome.wall_seconds,
            metrics=tuple(outcome.rows),
        )
        write_json(folder.run(run.id), plain(finished))
    checkpoint.unlink(missing_ok=True)  # nobody goes on from it


def _evaluate(task: StudyJob, folder: Folder, run: Run, corpus: Corpus) -> EvaluationData:
    if read_finished(folder, run.id).status == "diverged":
        return {"diverged": True}  # its last weights mean nothing, and the study goes on
    bare = weights(folder, run.id, "final.safetensors", task.device)
    if task.kind in ("probe", "erase"):
        return _labelled(task, run, bare, corpus)
    final = {n: v[None] for n, v in bare.items()}
    pieces = {s: evaluation_pieces(corpus, run.training, s, (), task.device) for s in ("train", "valid")}
    if task.kind == "cut":
        cut = {s: self_only_loss(final, run.model, p) for s, p in pieces.items()}
        found = {s: curve_data([0.0], c.loss_nats, c.accuracy, c.n) for s, c in cut.items()}
        gold = {s: np.concatenate([piece.gold.cpu().numpy() for piece in own]) for s, own in pieces.items()}
        unigram = {split: unigram_loss(corpus, targets) for split, targets in gold.items()}
        return {"train": found["train"], "valid": found["valid"], "unigram": unigram}
    site = Site.parse(task.site)
    if task.kind == "ablate":
        return {"rows": [row._asdict() for row in ablate(bare, run.model, site, pieces)]}
    design = task.design
    if task.kind == "interchange" and design.interchange:
        return {"rows": _interchanged(run, bare, corpus, site, design.interchange.pairs)}
    assert design.rewind, f"no design asks for {task.kind}"
    epochs, convex = epoch_weights(folder, run.id, run.training.epochs), task.kind == "rewind"
    stored = [weights(folder, run.id, e, task.device) for e in epochs[: 1 if convex else None]]
    return rewind(run, site, bare, stored, convex, pieces, design.rewind)


def _labelled(task: StudyJob, run: Run, final: dict[str, Tensor], corpus: Corpus) -> EvaluationData:
    """Rows of the table `sites` about one run: probes of a label at every site, or a label erased at one."""
    design, label, model, training = task.design, task.label, run.model, run.training
    if task.kind == "probe":
        assert design.probe, "no design probes"
        sites = design.probe.sites or [Site((c,), (n,)) for n in range(1, model.layers + 1) for c in ("q", "k", "v")]
        kinds, maps = design.probe.kinds, design.probe.random_maps
        found = probe(final, model, corpus, training, label, kinds, sites, run.seed, maps=maps)
    else:
        assert design.erase, "no design erases"
        site, draws, shrinkage = Site.parse(task.site), design.erase.draws, design.erase.shrinkage
        found = erase(final, model, corpus, training, site, label, draws, run.seed, shrinkage=shrinkage)
    return {"rows": [row._asdict() | {"label": label} for row in found]}


def _interchanged(run: Run, final: dict[str, Tensor], corpus: Corpus, site: Site, count: int) -> list[dict[str, Json]]:
    """Rows of the table `sites`: what donors that differ in everything change, and those that differ in one attribute."""
    world, words = world_of(corpus), corpus.vocabulary
    whole = interchange(final, run.model, words, site, world.pairs(count, run.seed))
    each = {c: change_one(final, run.model, words, site, world.near_pairs(count, run.seed, c)) for c in world.columns}
    return [row._asdict() for row in whole] + [row._asdict() | {"label": c} for c, row in each.items()]
