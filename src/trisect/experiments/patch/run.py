"""Interchange interventions: patch q, k or v of each site from a donor text, pair by pair, and note which answer comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import AnsweringSubject, Batch, EditedPasses, Parts, Subject, Writer
from trisect.core.trace import Address
from trisect.experiments.patch.named_positions import read_positions
from trisect.experiments.patch.positions import PatchedSides, answer_places, patched_sides
from trisect.experiments.patch.preparation import PreparedPairs, prepare_pairs
from trisect.experiments.patch.replicates import pair_replicates
from trisect.experiments.patch.rows import Interchanged, PairReading, PatchedRuns, counted_pairs, tables
from trisect.experiments.patch.settings import PatchFacts, PatchSettings
from trisect.lab.experiment import Bench, Measured
from trisect.lab.passes import EditedPass, edited_passes, plan_edits
from trisect.measure.ablation import relative_change
from trisect.measure.interchange import UNKNOWN
from trisect.measure.patching import hold_later, put_at, record
from trisect.text.labelled import open_labelled
from trisect.text.pairs import TextPair, given_pairs, read_pairs

# which text is patched, and which it is patched from
ROLES = {"denoise": ("base", "donor"), "noise": ("donor", "base")}


ROOM = 64 * 2**20  # bytes of another text's q, k and v that are held at once: a layer's at least
FEW = 2  # edits of a batch for which one more pass, to begin from, would cost more than it spares


class ReadText(NamedTuple):
    """One side of some pairs as the model reads it unpatched: batch, where it answers, what it gives there, q, k and v.

    `outputs` are logits [B 1 V] at `places`, or all outputs [B T D] where the model gives no answers (`places` null).
    """

    batch: Batch
    places: Int[Tensor, " B"] | None
    outputs: Float[Tensor, "B T V"]
    parts: Mapping[Address, Parts]


@dataclass
class _Found:
    """What is gathered pair by pair: by direction and edit, answers and differences of logits (or changes of the output)."""

    answers: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)
    values: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)
    own: dict[str, list[Tensor]] = field(default_factory=dict)
    differences: dict[str, list[Tensor]] = field(default_factory=dict)
    readings: list[PairReading] = field(default_factory=list)


def check(settings: PatchSettings) -> None:
    """Raise CorpusError where the pairs or the text that are named or given cannot be read, whatever the model is."""
    if settings.base is not None:
        given_pairs([{"base": settings.base, "donor": settings.donor}])
    if settings.pairs is not None:
        read_pairs(settings.pairs)
    if settings.corpus is not None:
        open_labelled(settings.corpus, settings.split, settings.reader, bare=True)
    if isinstance(settings.given, list | tuple):
        given_pairs(settings.given)


def check_model(settings: PatchSettings, subject: Subject) -> None:
    """Raise TrisectError where the model lacks a site, cannot do the task, or splits a pair's texts so that they do not fit."""
    _prepared(settings, answering(subject))


def measure(settings: PatchSettings, bench: Bench) -> Measured[PatchFacts]:
    """Patch each site of every pair, one pass each, in one layer or one head at a time, or all that a site names.

    A patch puts what the other text has at the site in place of the patched text's own, at the chosen positions, and lets
    the model go on. With the path 'direct' q, k and v of all layers after the site are put back to what they were without
    the patch: what is left is what the layer's own attention output does through the residual stream and the feed-forward
    networks, and nothing that a later layer's attention carries on; of a site of several layers those after its first.
    Raises SiteError, SpecError, CorpusError, ModelError.
    """
    subject = answering(bench.subject)
    wanted = read_positions(settings.positions)
    edits, prepared = _prepared(settings, subject)
    found, passes = _Found(), edited_passes(subject)
    directions = ("denoise", "noise") if settings.how == "both" else (settings.how,)
    order = list(subject.shape.heads)
    in_order = sorted(enumerate(edits), key=lambda one: order.index(one[1].address))
    edited = tuple(dict.fromkeys(address for _, edit in in_order for address in edit.addresses))
    wanted_parts: dict[str, tuple[Address, ...]] = {ROLES[how][1]: edited for how in directions}
    if settings.path == "direct":  # the patched text's own are put back in all later layers
        wanted_parts = {"base": tuple(order), "donor": tuple(order)}
    room = None if settings.path == "direct" or settings.per == "site" else ROOM
    with bench.progress(f"patching {len(edits)} sites") as step:
        for start in range(0, len(prepared.pairs), settings.batch):
            stop = min(start + settings.batch, len(prepared.pairs))
            texts = _read(subject, prepared.pairs[start:stop], wanted_parts, room)
            _note(found, prepared, texts, edits, wanted, start)
            for how in directions:
                if len(edits) > FEW:
                    passes.begin(texts[ROLES[how][0]].batch)
                for number, edit in in_order:
                    _hold(subject, texts, ROLES[how][1], edit.address, edited)
                    made = _patched(subject, passes, texts, how, edit, wanted, settings.path)
                    _keep(found, (how, number), made, texts[ROLES[how][0]], prepared, found.own, start)
            step(stop, len(prepared.pairs))
    runs = _runs(subject, found, prepared, edits, directions)
    made = tables(subject.name, runs, settings)
    facts = _facts(subject, prepared, runs, settings, made.counted)
    notes = (*prepared.notes, *made.notes, *subject.notes, *passes.notes)
    drawn = pair_replicates(runs, counted_pairs(runs, settings.answered), settings.seed)
    return Measured(made.tables, facts, notes, replicates=drawn)


def _prepared(settings: PatchSettings, subject: AnsweringSubject) -> tuple[tuple[EditedPass, ...], PreparedPairs]:
    """What is edited, and the pairs, each checked against the model."""
    edits = plan_edits(subject.shape, settings.sites, settings.per)
    return edits, prepare_pairs(settings, subject, [target for edit in edits for target in edit.targets])


def answering(subject: Subject) -> AnsweringSubject:
    """The subject, whose outputs can be read; raises ModelError where they cannot."""
    if not isinstance(subject, AnsweringSubject):
        known = "It says what its loss is, and not what it predicts."
        raise ModelError(f"{subject.name} cannot be patched.", known, "Give a model that trisect.load gives.")
    return subject


def _read(
    subject: AnsweringSubject, pairs: Sequence[TextPair], wanted: Mapping[str, Sequence[Address]], room: int | None
) -> dict[str, ReadText]:
    """Both texts of some pairs, each read once without a patch, with q, k and v at what is wanted of it and there is room for."""
    found = {}
    for name in ("base", "donor"):
        texts = [pair.base if name == "base" else pair.donor for pair in pairs]
        batch = next(iter(subject.batches(texts, len(texts))))
        places = None if subject.objective == "output" else answer_places(batch, subject.mask)
        found[name] = ReadText(batch, places, *record(subject, batch, wanted.get(name, ()), places, room))
    return found


def _hold(
    subject: AnsweringSubject, texts: dict[str, ReadText], name: str, address: Address, edited: Sequence[Address]
) -> None:
    """See that what one text has at an address is there, with that of as many of the addresses behind as there is room for."""
    text = texts[name]
    if address in text.parts:
        return
    texts[name] = text._replace(parts={})  # the earlier ones are let go before others are read
    later = edited[edited.index(address) :]
    texts[name] = text._replace(parts=record(subject, text.batch, later, text.places, ROOM).parts)


def _patched(
    subject: AnsweringSubject,
    passes: EditedPasses,
    texts: Mapping[str, ReadText],
    how: str,
    edit: EditedPass,
    wanted: tuple[int, ...] | str,
    path: str,
) -> Float[Tensor, "B T V"]:
    """What one text gives with one site from the other."""
    run, other = (texts[name] for name in ROLES[how])
    sides = patched_sides(run.batch, other.batch, wanted, run.places)
    write: dict[Address, Writer] = {}
    if path == "direct":
        write |= hold_later(run.parts, list(subject.shape.heads), edit.address)
    for address in edit.addresses:
        here, stack = [target for target in edit.targets if target.address == address], address.stack
        put = put_at(here, other.parts[address], sides.queries(stack), sides.keys(stack))
        write[address] = put if address not in write else _both(write[address], put)
    return passes.outputs(run.batch, write, run.places)


def _both(first: Writer, second: Writer) -> Writer:
    return lambda parts: second(first(parts))


def _note(
    found: _Found,
    prepared: PreparedPairs,
    texts: Mapping[str, ReadText],
    edits: Sequence[EditedPass],
    wanted: tuple[int, ...] | str,
    start: int,
) -> None:
    """What the model answers to both texts by itself, how far apart it holds their answers, and the texts token by token."""
    base, donor = texts["base"], texts["donor"]
    if base.places is not None:
        for name, text in texts.items():
            found.own.setdefault(name, []).append(text.outputs[:, 0].argmax(-1))
        for name, text in texts.items():
            ends = _ends(prepared, found.own, start)
            found.differences.setdefault(name, []).append(_difference(text.outputs, *ends))
    sides = patched_sides(base.batch, donor.batch, wanted, base.places)
    found.readings += _readings(texts, edits, sides, start)


def _keep(
    found: _Found,
    key: tuple[str, int],
    made: Float[Tensor, "B T V"],
    run: ReadText,
    prepared: PreparedPairs,
    own: Mapping[str, Sequence[Tensor]],
    start: int,
) -> None:
    if run.places is None:
        found.values.setdefault(key, []).append(output_change(made, run.outputs, run.batch))
        return
    found.answers.setdefault(key, []).append(made[:, 0].argmax(-1))
    found.values.setdefault(key, []).append(_difference(made, *_ends(prepared, own, start)))


def output_change(made: Float[Tensor, "B T D"], clean: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, " B"]:
    """|y − clean|² / |clean|² of the outputs, averaged over a text's real positions; without positions, of the one output."""
    new, old = (t.flatten(2) if t.dim() > 2 else t[:, None] for t in (made, clean))
    real = batch.queries("dec").real
    real = real if real.shape == old.shape[:2] else torch.ones(old.shape[:2], dtype=torch.bool)
    return torch.where(real, relative_change(new, old), 0.0).sum(1) / real.sum(1)


def _ends(prepared: PreparedPairs, own: Mapping[str, Sequence[Tensor]], start: int) -> tuple[Tensor, Tensor]:
    """Ids of the base's and the donor's answers of the latest batch: as stated, else what the model gives by itself."""
    ends = []
    for name in ("base", "donor"):
        mine = own[name][-1]
        stated = prepared.answers.get(name)
        kept = torch.full_like(mine, UNKNOWN) if stated is None else torch.from_numpy(stated[start : start + len(mine)])
        ends.append(torch.where(kept == UNKNOWN, mine, kept))
    return ends[0], ends[1]


def _difference(
    outputs: Float[Tensor, "B 1 V"], base: Int[Tensor, " B"], donor: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """How far the logit of the base's answer lies above that of the donor's."""
    logits = outputs[:, 0].double()
    return (logits.gather(1, base[:, None]) - logits.gather(1, donor[:, None]))[:, 0]


def _readings(
    texts: Mapping[str, ReadText], edits: Sequence[EditedPass], sides: PatchedSides, start: int
) -> list[PairReading]:
    """Both texts of each pair side by side, token by token, with what is patched where."""
    base, donor = (texts[name] for name in ("base", "donor"))
    stacks = {(t.address.stack, t.component) for edit in edits for t in edit.targets}
    found = []
    for name, mask in (("source", sides.source), ("target", sides.target)):
        run = base.batch.source if name == "source" else base.batch.target
        other = donor.batch.source if name == "source" else donor.batch.target
        if run is None or other is None or mask is None:
            continue
        written = [c for c in "qkv" if any(_side(stack, c, base.batch) == name for stack, part in stacks if part == c)]
        answers = base.places if base.places is not None and (name == "target" or base.batch.target is None) else None
        for row in range(len(run.tokens)):
            found.append(
                PairReading(
                    start + row,
                    name,
                    tuple(t for t, real in zip(run.tokens[row], run.real[row].tolist(), strict=True) if real),
                    tuple(t for t, real in zip(other.tokens[row], other.real[row].tolist(), strict=True) if real),
                    tuple("+".join(written) if on else "" for on in mask[row][run.real[row]].tolist()),
                    None if answers is None else int(answers[row]),
                )
            )
    return found


def _side(stack: str, component: str, batch: Batch) -> str:
    of = batch.queries(stack) if component == "q" else batch.keys(stack)
    return "target" if of is batch.target else "source"


def _runs(
    subject: AnsweringSubject,
    found: _Found,
    prepared: PreparedPairs,
    edits: Sequence[EditedPass],
    directions: Sequence[str],
) -> PatchedRuns:
    """Everything as arrays over pairs."""
    own = {name: torch.cat(parts).numpy() for name, parts in found.own.items()}
    stated = {name: np.asarray(ids) for name, ids in prepared.answers.items()}
    completed = dict(stated)
    for name, mine in own.items():
        known = stated.get(name, np.full(len(mine), UNKNOWN))
        completed[name] = np.where(known == UNKNOWN, mine, known)
    done = []
    for how in directions:
        for number, edit in enumerate(edits):
            answers = found.answers.get((how, number))
            values = torch.cat(found.values[how, number]).numpy()
            done.append(Interchanged(how, edit, None if answers is None else torch.cat(answers).numpy(), values))
    differences = {name: torch.cat(parts).numpy() for name, parts in found.differences.items()}
    ids = {int(i) for of in (*own.values(), *(one.answers for one in done if one.answers is not None)) for i in of}
    words = {i: subject.token(i) for i in sorted(ids)}
    return PatchedRuns(prepared.pairs, stated, completed, own, differences, tuple(done), tuple(found.readings), words)


def _facts(
    subject: AnsweringSubject, prepared: PreparedPairs, runs: PatchedRuns, settings: PatchSettings, counted: int
) -> PatchFacts:
    return PatchFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        "answers" if runs.own else "output",
        prepared.name,
        prepared.fingerprint,
        len(prepared.pairs),
        counted,
        tuple(name for name in ("q", "k", "v") if name in prepared.answers),
        None if settings.sites is None else tuple(map(str, settings.sites)),
        settings.per,
        settings.positions,
        settings.path,
        settings.how,
        settings.answered,
        settings.seed,
    )
