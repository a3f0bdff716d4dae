"""Tasks: units of a study's work, and their execution by workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from typing_extensions import TypedDict

from trisect.claims import REVISION, claims_hash
from trisect.core.files import Json, write_json
from trisect.core.machine import processor, versions
from trisect.core.methods import Rewind
from trisect.core.schema import Many, record, to_json_data
from trisect.core.site import Site
from trisect.core.spec import Design, FinishedRun, Model, Run
from trisect.engine.jobs import JobContext, job
from trisect.engine.start import check_narrow
from trisect.experiments.study.plan import fleet_name
from trisect.experiments.study.probing import Parameters, SiteRow, erase, loss_rises, probe
from trisect.lab.folder import Folder, epoch_weights, read_run, weights
from trisect.lm.feed import Piece, evaluation_pieces
from trisect.lm.fleet import COMPONENT_ROW, forward, weights_of
from trisect.lm.matmul import check_numerics, fast_products, numerics, one_thread
from trisect.lm.rewind import blend, draw_rows, evaluate_variants, parts_of, self_only_loss, stages
from trisect.lm.snapshots import write_snapshot
from trisect.lm.train import Progress, RunFiles, parameters_of, train_fleet
from trisect.measure.criticality import adaptive_curves, criticality, exact_curves, mean_difference
from trisect.measure.patching import BASE, shares
from trisect.stats.shares import paired_band
from trisect.stats.significance import finite
from trisect.text.corpus import Corpus, unigram_loss
from trisect.text.worlds import DonorPairs, world_of

Pieces = Mapping[str, Sequence[Piece]]


def ablate(final: Parameters, model: Model, site: Site, pieces: Pieces) -> list[SiteRow]:
    """Rise of the loss on train and validation, with 95 % intervals over rows, at a resolved site of q, k or v.

    `final` are a baseline's weights without a member axis, `pieces` what is evaluated, by split. Means are over the tokens
    of the train pieces, of the unedited model; at a site of several layers all are replaced at once.
    """
    changed, rows = ablate_mean(final, model, site, pieces["train"]), list[SiteRow]()
    for split, part in pieces.items():
        rises, low, high, n = loss_rises(final, model, list(part), site, [changed])
        for end, (value,) in (("", rises), ("low_", low), ("high_", high)):
            rows.append(SiteRow(str(site), f"ablate_rise_{end}nats", None, split, finite(value), n))
    return rows


@torch.no_grad()
def ablate_mean(final: Parameters, model: Model, site: Site, pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """The weights under which a resolved site of q, k or v is its mean over the pieces at every token."""
    changed, members = dict(final), {name: values[None] for name, values in final.items()}
    sums: dict[int, Tensor] = {}  # of q, k and v side by side, by layer
    for piece in pieces:
        outputs = forward(members, piece.inputs, model, blocks=[("qkv", n) for n in site.layers or ()]).blocks
        for (_, n), x in outputs.items():
            here = x[0].flatten(0, 1).double().sum(0)
            sums[n] = sums[n] + here if n in sums else here
    count = sum(piece.inputs.numel() for piece in pieces)
    for n, total in sums.items():
        for name, part in weights_of(site, model, n):
            parameter = f"layers.{n}.{name}"
            if changed[parameter] is final[parameter]:
                changed[parameter] = final[parameter].clone()
            changed[parameter][part] = (total / count).to(final[parameter])[part] if name == "in.bias" else 0.0
    return changed


READ_DOCUMENTS = 500  # documents read at once


def interchange(
    final: Parameters, model: Model, vocabulary: Sequence[str], site: Site, pairs: DonorPairs
) -> list[SiteRow]:
    """Shares of pairs that answer by the site's own prediction, by each other component's, or as without, at a resolved
    site of one of q, k and v.

    `final` are a baseline's weights without a member axis. The site's representation of the donor stands in the base's
    place at every token. Pairs with words that the vocabulary lacks are left out.
    """
    words = {BASE: pairs.unchanged, **pairs.predicted}
    base, donor, predictions = _token_ids(pairs, words, vocabulary)
    answers = _logits_with_donor(final, model, site, base, donor).argmax(1).numpy()
    predicted = shares(answers, predictions, site.components[0])
    named = {"own": predicted.pop(site.components[0]), "unchanged": predicted.pop(BASE)}
    named |= {f"as_{name}": share for name, share in predicted.items()}
    values, n = {name: (share.value, share.n) for name, share in named.items()}, named["own"].n
    values["others"] = (sum(share.hits for share in predicted.values()) / n if n else None, n)
    return [SiteRow(str(site), f"interchange_{name}", None, "valid", *value) for name, value in values.items()]


def _change_one(final: Parameters, model: Model, vocabulary: Sequence[str], site: Site, pairs: DonorPairs) -> SiteRow:
    """Rise of the loss of the base's answer, in nats, where the donor differs in one attribute alone, at a resolved site."""
    base, donor, predictions = _token_ids(pairs, {BASE: pairs.unchanged}, vocabulary)
    gold = torch.from_numpy(predictions[BASE])
    logits = (_logits_with_donor(final, model, site, base, other).double() for other in (donor, base))
    changed, unchanged = (float(F.cross_entropy(scores, gold)) for scores in logits)
    rise = changed - unchanged if len(gold) else None
    return SiteRow(str(site), "interchange_rise_nats", None, "valid", rise, len(gold))


def _token_ids(
    pairs: DonorPairs, answers: Mapping[str, Sequence[str]], vocabulary: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Base and donor [N T] and answers [N] as ids, for pairs whose words are all in the vocabulary."""
    ids = {word: i for i, word in enumerate(vocabulary)}

    def numbers(words: Sequence[str] | Sequence[Sequence[str]]) -> np.ndarray:
        shape = np.array(words)
        return np.array([ids.get(word, -1) for word in shape.ravel().tolist()], int).reshape(shape.shape)

    base, donor = numbers(pairs.base), numbers(pairs.donor)
    complete = np.concatenate([base, donor], 1).min(1) >= 0
    return base[complete], donor[complete], {name: numbers(words)[complete] for name, words in answers.items()}


@torch.no_grad()
def _logits_with_donor(
    final: Parameters, model: Model, site: Site, base: np.ndarray, donor: np.ndarray
) -> Float[Tensor, "N V"]:
    """Each document's next-word logits with the donor's representation at the site's only layer."""
    members, device = {name: values[None] for name, values in final.items()}, final["decoder.bias"].device
    (layer,), start = site.layers or (1,), COMPONENT_ROW[site.components[0]] * model.width
    logits = []
    for first in range(0, max(1, len(base)), READ_DOCUMENTS):
        batches = [torch.from_numpy(ids[first : first + READ_DOCUMENTS]).to(device) for ids in (base, donor)]
        passes = (forward(members, ids, model, blocks=[("qkv", layer)]) for ids in batches)
        mixed, other = (outputs.blocks["qkv", layer].clone() for outputs in passes)
        mixed[..., start : start + model.width] = other[..., start : start + model.width]
        hidden = forward(members, batches[0], model, put={layer: mixed}).hidden[0, :, -1]
        logits.append((hidden @ final["decoder.weight"].T + final["decoder.bias"]).cpu())
    return torch.cat(logits)


class EvaluationData(TypedDict, total=False):
    """An evaluation: rows of the table `sites` without their subject; empty for a diverged run."""

    kind: str
    site: str
    label: str
    wall_seconds: float
    rows: list[dict[str, Json]]


def rewind(
    run: Run, site: Site, final: Parameters, epochs: Sequence[Parameters], convex: bool, pieces: Pieces, how: Rewind
) -> list[SiteRow]:
    """Curves of each split, exact or interpolated between checked nodes, and measures of them.

    Along (1 - α)·θ⁰ + α·θᶠ with the first of the stored epochs (convex), or through all of them. `final` and `epochs` have no
    member axis; `pieces` are all that is evaluated, by split. Where rows are a sample, rises have intervals.
    """
    kind, sample, read = "rewind" if convex else "midstage", how.sample_tokens, pieces
    if sample is not None:
        read = {split: draw_rows(part, sample, how.sample_seed, split) for split, part in pieces.items()}
    members, at = {n: v[None] for n, v in final.items()}, np.arange(len(epochs), dtype=float)
    by_row: dict[float, list[np.ndarray]] = {}  # each row's summed loss by split, at α

    def evaluate(alphas: list[float]) -> np.ndarray:
        variants = blend(epochs[0], final, alphas) if convex else stages(epochs)
        curves = [evaluate_variants(members, run.model, part, site, variants) for part in read.values()]
        by_row.update({a: [c.row_nats[i] for c in curves] for i, a in enumerate(alphas)})
        return np.stack([c.loss_nats for c in curves] + [c.accuracy for c in curves])

    mix, nodes, single = np.eye(len(epochs)), at.tolist(), dict[str, list[float]]()
    if convex:
        at = np.arange(how.points) / (how.points - 1)
        many, exact = len(pieces), how.mode == "exact"
        curves = exact_curves(evaluate, at, many) if exact else adaptive_curves(evaluate, at, many, how.epsilon)
        values, mix, nodes = curves.values, curves.mix, curves.points
        counts = {"rewind_evaluations": curves.evaluations, "rewind_nodes": curves.nodes}
        single = {"rewind_check_nats": list(curves.checks)}
        single |= {name: [float(count)] * many for name, count in counts.items()}
    else:
        values = evaluate(nodes)
    values, rows = np.where(np.isfinite(values), values, np.nan), list[SiteRow]()
    for i, (split, part) in enumerate(read.items()):
        losses, n = values[i], sum(p.tokens for p in part)
        shown, numbers = {"loss_nats": losses, "accuracy": values[i + len(pieces)]}, dict[str, float]()
        if convex:
            drop = criticality(at, losses, how.epsilon)
            numbers |= {"criticality": drop.score, "criticality_first": drop.first, "rewind_area": drop.area}
        else:
            numbers["midstage_area"] = mean_difference(losses, losses[-1])
        if sample is not None:
            tokens = np.array([p.tokens // len(p.inputs) for p in part for _ in p.inputs])
            sums = mix @ np.stack([by_row[x][i] for x in nodes])
            band = paired_band(sums, tokens, sum(len(p.inputs) for p in pieces[split]))
            shown |= {"rise_low_nats": band.low, "rise_high_nats": band.high}
            numbers |= {f"{kind}_area_low": band.area_low, f"{kind}_area_high": band.area_high}
        numbers |= {name: numbers_by_run[i] for name, numbers_by_run in single.items()}
        rows += [
            SiteRow(str(site), f"{kind}_{name}", float(a), split, finite(value), n)
            for name, curve in shown.items()
            for a, value in zip(at, curve, strict=True)
        ]
        rows += [SiteRow(str(site), name, None, split, finite(value), n) for name, value in numbers.items()]
    return rows


@record
class StudyJob:
    """A task for a worker: its runs, the whole design, and the numerics of finished runs.

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
def execute(task: StudyJob, context: JobContext) -> None:
    """Run a task; paths in the scratch folder are those in the study's."""
    folder, corpus = Folder(context.scratch), context.read("corpus", Corpus.load)
    with one_thread(), fast_products() as products:
        if task.kind == "train":
            _train(task, folder, corpus, context, products)
        else:
            began, named = time.monotonic(), {"kind": task.kind, "site": task.site, "label": task.label}
            rows = _evaluate(task, folder, task.runs[0], corpus)
            body = {**named, "rows": rows, "wall_seconds": time.monotonic() - began}
            write_json(folder.evaluation(task.runs[0].id, *named.values()), body)


def _train(task: StudyJob, folder: Folder, corpus: Corpus, context: JobContext, products: str) -> None:
    check_narrow(task.device, task.precision)
    how = numerics(task.device, task.precision, products)
    check_numerics(task.numerics, how)
    runs, rewind = list(task.runs), task.design.rewind
    epochs = {slot: folder.epochs(run.id) for slot, run in enumerate(runs) if run.edit is None}
    parts = tuple(dict.fromkeys(("in", *parts_of(rewind.sites if rewind else (), runs[0].model))))
    checkpoint, epoch = folder.checkpoint(fleet_name([run.id for run in runs])), [0]

    def progress(p: Progress) -> None:
        if p.epoch != epoch[0]:  # the first step after a checkpoint
            epoch[0] = p.epoch
            context.send_files()
        context.report(p.done / p.total, f"epoch {p.epoch}, loss {p.loss_nats:.3f}" if p.loss_nats is not None else "")

    files = RunFiles(checkpoint, epochs, parts, how)
    outcomes = train_fleet(runs, corpus, files, task.device, progress, task.precision)
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
            device=task.device,
            precision=task.precision,
            products=products,
            numerics=how,
            processor=processor(),
            recorded=outcome.recorded,
            wall_seconds=outcome.wall_seconds,
            metrics=tuple(outcome.rows),
        )
        write_json(folder.run(run.id), to_json_data(finished))
    checkpoint.unlink(missing_ok=True)  # nobody goes on from it


def _evaluate(task: StudyJob, folder: Folder, run: Run, corpus: Corpus) -> list[dict[str, Json]]:
    """Rows of the table `sites` for the run."""
    if read_run(folder, run.id).status == "diverged":
        return []  # its last weights mean nothing, and the study goes on
    final = weights(folder, run.id, "final.safetensors", task.device)
    design, label, model, training = task.design, task.label, run.model, run.training
    rows: list[SiteRow] = []
    if task.kind == "probe":
        assert design.probe, "no design probes"
        sites = design.probe.sites or [Site((c,), (n,)) for n in range(1, model.layers + 1) for c in ("q", "k", "v")]
        kinds, maps = design.probe.kinds, design.probe.random_maps
        rows = probe(final, model, corpus, training, label, kinds, sites, run.seed, maps=maps)
        return [row._asdict() | {"label": label} for row in rows]
    pieces = {s: evaluation_pieces(corpus, training, s, (), task.device) for s in ("train", "valid")}
    if task.kind == "cut":
        for split, part in pieces.items():
            cut = self_only_loss({n: v[None] for n, v in final.items()}, model, part)
            unigram = unigram_loss(corpus, np.concatenate([piece.gold.cpu().numpy() for piece in part]))
            rows.append(SiteRow(task.site, "self_only_loss_nats", None, split, finite(cut.loss_nats[0]), cut.n))
            rows.append(SiteRow(None, "unigram_loss_nats", None, split, finite(unigram), cut.n))
        return [row._asdict() for row in rows]
    site = Site.parse(task.site)
    if task.kind == "ablate":
        rows = ablate(final, model, site, pieces)
    elif task.kind == "erase":
        assert design.erase, "no design erases"
        draws, shrinkage = design.erase.draws, design.erase.shrinkage
        rows = erase(final, model, corpus, training, site, label, draws, run.seed, shrinkage=shrinkage)
        return [row._asdict() | {"label": label} for row in rows]
    elif task.kind == "interchange":  # by donors that differ in everything, and by those that differ in one attribute
        assert design.interchange, "no design interchanges"
        world, words, count = world_of(corpus), corpus.vocabulary, design.interchange.pairs
        rows = interchange(final, model, words, site, world.pairs(count, run.seed))
        near = {c: world.near_pairs(count, run.seed, c) for c in world.columns}
        each = [_change_one(final, model, words, site, pairs)._asdict() | {"label": c} for c, pairs in near.items()]
        return [row._asdict() for row in rows] + each
    else:
        assert design.rewind, f"no design asks for {task.kind}"
        epochs, convex = epoch_weights(folder, run.id, training.epochs), task.kind == "rewind"
        stored = [weights(folder, run.id, e, task.device) for e in epochs[: 1 if convex else None]]
        rows = rewind(run, site, final, stored, convex, pieces, design.rewind)
    return [row._asdict() for row in rows]
