"""Interchange interventions: patch q, k and v of each site from a donor, pair by pair, beside controls, and note which answer comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, product, zip_longest
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError, is_installed
from trisect.core.files import digest
from trisect.core.site import Site
from trisect.core.subject import (
    AnsweringSubject,
    Batch,
    EditedPasses,
    Parts,
    SiteTarget,
    StreamPoint,
    StreamSubject,
    StreamWriters,
    Subject,
    Writer,
)
from trisect.core.tables import REAL, ROW, TEXT, WHOLE, NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.patch.page import few_pairs
from trisect.experiments.patch.predictions import (
    PREDICTIONS,
    AnswerScores,
    hypotheses,
    judge_speech,
    prediction_rows,
    spoken_hits,
    usable_pairs,
)
from trisect.experiments.patch.settings import PatchFacts, PatchSettings, read_positions
from trisect.lab.experiment import Measured, Replicates, RunContext
from trisect.lab.pairs import (
    PatchedSides,
    PreparedPairs,
    answer_places,
    extend,
    patched_sides,
    prepare_pairs,
    text_words,
)
from trisect.lab.passes import EditedPass, edited_passes, gather, plan_edits, scatter
from trisect.measure.intervention import relative_change
from trisect.measure.patching import (
    BASE,
    UNKNOWN,
    hold_later,
    logit_ratio,
    match_prediction,
    moved,
    put_at,
    ratio_of_sums,
    record,
    share_hits,
    share_of,
)
from trisect.measure.probes import Eraser, LabelMoments
from trisect.stats.bootstrap import bootstrap_ratios
from trisect.stats.tested import finite
from trisect.text.pairs import ANSWERS, CONTENT

# which text is patched, and which it is patched from
ROLES = {"denoise": ("base", "donor"), "noise": ("donor", "base")}
DONOR = "donor"
SINGLE = ("q", "k", "v")
# what is from the donor -> what is from the donor where base and donor change places
COMPLEMENT: dict[str, str] = dict(zip(ANSWERS, ("donor", "k+v", "q+v", "q+k", "v", "k", "q", "base"), strict=True))
PAIRS = {
    **{"pair": WHOLE, "kind": TEXT, "base": TEXT, "donor": TEXT},
    **{f"answer_{name}": TEXT for name in ANSWERS},
    **{"own_base": TEXT, "own_donor": TEXT, "counted": pl.Boolean},  # what the model answers unpatched
}
TOKENS = {
    **{"pair": WHOLE, "side": TEXT, "position": WHOLE, "base": TEXT, "donor": TEXT},
    # components that are patched there, and whether the answer is read there
    **{"patched": TEXT, "answers": pl.Boolean},
}
CHANGES = {
    **{"pair": WHOLE, "stack": TEXT, "layer": WHOLE, "head": WHOLE, "component": TEXT, "group": TEXT},
    **{"came": TEXT, "answer": TEXT},  # whose prediction it was (of the patched text's answers), and the token
    **{"logit_difference": REAL, "output_change": REAL},
}
REPLICATED = ("own", DONOR, "logit_change", "output_change")  # measures whose differences between models are tested
ROOM = 64 * 2**20  # bytes of another text's q, k and v that are held at once: a layer's at least
FEW = 2  # edits of a batch for which one more pass, to begin from, would cost more than it spares
DRAWS = 20  # random subspaces beside that of a label
STREAM = "stream"  # of what an edit is computed from: the residual stream, or (of cross-attention's k and v) its keys and values


class ReadText(NamedTuple):
    """One side of some pairs as the model reads it unpatched: batch, where it answers, what it gives there, q, k and v.

    `outputs` are logits [B 1 V] at `places`, or all outputs [B T D] where the model gives no answers (`places` None). `streams` are
    what enters the blocks of layers.
    """

    batch: Batch
    places: Int[Tensor, " B"] | None
    outputs: Float[Tensor, "B T V"]
    parts: Mapping[Address, Parts]
    streams: Mapping[Address, Float[Tensor, "B T D"]] = {}


class _PatchedSite(NamedTuple):
    """One site patched in one direction: the id that each pair then answered, the difference of logits, and every answer's score.

    `values` are changes of the output where there are no answers. `shown` says whether it is a site that was asked for, and not
    a control of one; `controls` are the scores with what is patched from elsewhere.
    """

    how: str
    edit: EditedPass
    positions: str
    shown: bool
    answers: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]
    scores: AnswerScores
    controls: dict[str, list[AnswerScores]]

    @property
    def component(self) -> str:
        """What is patched, joined."""
        return "+".join(self.edit.site.components)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it is computed from: the stream at a layer's block, or what cross-attention's k and v are of."""
        kinds = {STREAM if t.component == "q" or t.address.stack != "cross" else "cross" for t in self.edit.targets}
        return tuple(sorted(kinds))


class _Question(NamedTuple):
    """A batch of texts in which some answers are scored: by number of the answer its tokens in each row (none: not here).

    `places` are those of the answers' tokens in each row, as many as the longest has.
    """

    batch: Batch
    places: Int[Tensor, "B N"]
    pieces: Mapping[int, Sequence[tuple[int, ...]]]


@dataclass(eq=False)
class PatchedRuns:
    """All that is run, pair by pair, as arrays over the N pairs.

    `predicted` are ids of answers as the pairs have them, the model's own where base or donor is not stated; `own` what it
    answers to both texts unpatched (empty: it gives no answers), `differences` the base's answer's logit less the donor's
    there; `tokens` both texts of every pair side by side, as rows of that table. `pieces` are all answers' tokens, `plain` their scores
    unpatched, `answered` whether both texts are answered correctly.
    """

    prepared: PreparedPairs
    names: tuple[str, ...]
    sites: Sequence[_PatchedSite]
    predicted: dict[str, Int[np.ndarray, " N"]]
    pieces: list[dict[str, tuple[int, ...]]]
    plain: AnswerScores
    answered: Bool[np.ndarray, " N"]
    own: dict[str, Int[np.ndarray, " N"]] = field(default_factory=dict)
    differences: dict[str, Float[np.ndarray, " N"]] = field(default_factory=dict)
    tokens: list[NewRow] = field(default_factory=list)

    @classmethod
    def begin(cls, prepared: PreparedPairs, sites: Sequence[_PatchedSite] = ()) -> PatchedRuns:
        """Room for what comes of some pairs."""
        names, count = hypotheses(prepared.pieces), len(prepared.pairs)
        predicted = {name: ids.copy() for name, ids in prepared.answers.items()}
        pieces, plain = [dict(of) for of in prepared.pieces], AnswerScores.empty(count, len(names))
        return cls(prepared, names, sites, predicted, pieces, plain, np.ones(count, dtype=bool))

    def note(self, texts: Mapping[str, ReadText], part: Int[np.ndarray, " B"]) -> None:
        """What the model answers to both texts by itself, and how far apart it holds their answers."""
        if texts["base"].places is None:
            return
        count = len(self.prepared.pairs)
        for name, text in texts.items():
            mine = text.outputs[:, 0].argmax(-1).numpy()
            self.own.setdefault(name, np.zeros(count, int))[part] = mine
            known = self.predicted.setdefault(name, np.full(count, UNKNOWN))
            known[part] = np.where(known[part] == UNKNOWN, mine, known[part])
            for number, answer in zip(part, mine, strict=True):
                self.pieces[number].setdefault(name, (int(answer),))
        for name, text in texts.items():
            self.differences.setdefault(name, np.zeros(count))[part] = self.difference(text.outputs, part)

    def keep(self, one: _PatchedSite, made: Float[Tensor, "B T V"], run: ReadText, part: Int[np.ndarray, " B"]) -> None:
        """What came of one patch, the patched text being `run`."""
        if run.places is None:
            one.values[part] = output_change(made, run.outputs, run.batch).numpy()
        else:
            one.answers[part], one.values[part] = made[:, 0].argmax(-1).numpy(), self.difference(made, part)

    def questions(self, text: ReadText, part: Int[np.ndarray, " B"], names: Iterable[str]) -> list[_Question]:
        """The text itself for answers of one token, and one that goes on with it for every answer of several."""
        assert text.places is not None, "outputs that are no answers have no scores"
        single, longer = dict[int, Sequence[tuple[int, ...]]](), []
        for column, name in ((self.names.index(name), name) for name in names):
            own = [self.pieces[number].get(name, ()) for number in part]
            single[column] = [ids if len(ids) == 1 else () for ids in own]
            if any(len(ids) > 1 for ids in own):
                several = [ids if len(ids) > 1 else () for ids in own]
                batch = extend(text.batch, text.places, several)
                side = batch.source if batch.target is None else batch.target
                places = text.places[:, None] + torch.arange(max(map(len, several)))
                longer.append(_Question(batch, places.clamp(max=side.real.shape[1] - 1), {column: several}))
        return [_Question(text.batch, text.places[:, None], single), *longer]

    def difference(self, outputs: Float[Tensor, "B 1 V"], part: Int[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
        """How far the logit of the base's answer lies above that of the donor's."""
        ids = [torch.from_numpy(self.predicted[name][part])[:, None] for name in ("base", "donor")]
        base, donor = (outputs[:, 0].double().gather(1, of)[:, 0] for of in ids)
        return (base - donor).numpy()

    def counted(self, answered: bool) -> Bool[np.ndarray, " N"]:
        """Pairs that count: with `answered` those whose two texts the model answers as stated."""
        right = np.ones(len(self.prepared.pairs), dtype=bool)
        for name, mine in self.own.items() if answered else ():
            known = self.prepared.answers.get(name, np.full(len(mine), UNKNOWN))
            right &= (mine == known) | (known == UNKNOWN)
        return right


def score(
    question: _Question, outputs: Float[Tensor, "B N V"], into: AnswerScores, part: Int[np.ndarray, " B"]
) -> None:
    """Add the log-probabilities of a question's answers, the sum over tokens, to scores of pairs; `outputs` are at its places."""
    for row, number in enumerate(part.tolist()):
        mine = {column: own[row] for column, own in question.pieces.items() if own[row]}
        if not mine:
            continue
        logged = outputs[row, : max(map(len, mine.values()))].double().log_softmax(-1)
        best = logged.argmax(-1).tolist()
        for column, ids in mine.items():
            into.nats[number, column] = sum(float(logged[at, token]) for at, token in enumerate(ids))
            into.comes[number, column] = best[: len(ids)] == list(ids)


def check_model(settings: PatchSettings, subject: Subject) -> None:
    """Raise TrisectError where the model lacks a site, cannot do the task, or splits a pair's texts so that they do not fit."""
    prepare(settings, subject)


def prepare(
    settings: PatchSettings, subject: Subject
) -> tuple[AnsweringSubject, tuple[EditedPass, ...], PreparedPairs]:
    """The subject, what is edited, and the pairs, each checked against the model."""
    if not isinstance(subject, AnsweringSubject):
        known = "It says what its loss is, and not what it predicts."
        raise ModelError(f"{subject.name} cannot be patched.", known, "Give a model that trisect.load gives.")
    edits = plan_edits(subject.shape, settings.sites, settings.per)
    prepared = prepare_pairs(settings, subject, [target for edit in edits for target in edit.targets])
    return prepared.reader or subject, edits, prepared


def _joint_edits(subject: AnsweringSubject, edits: Sequence[EditedPass]) -> Iterator[EditedPass]:
    """q, k and v of each site together, where that is no site that is patched anyway and all three have the same heads."""
    seen = {str(edit.site) for edit in edits}
    for edit in edits:
        site, counts = edit.site, [subject.shape.heads[address] for address in edit.addresses]
        layers = tuple(address.layer for address in edit.addresses)
        joint = Site(SINGLE, layers, site.heads, site.stack)
        if str(joint) not in seen and (site.heads is None or all(of.query == of.key for of in counts)):
            seen.add(str(joint))
            targets = tuple(SiteTarget(a, c, site.heads) for a in edit.addresses for c in SINGLE)
            yield EditedPass(joint, edit.address, targets)


def measure(settings: PatchSettings, context: RunContext) -> Measured[PatchFacts]:
    """Patch each site of every pair, one pass each, in one layer or one head at a time, or all that a site names.

    A patch puts what the other text has at the site in place of the patched text's own, at the chosen positions, and lets
    the model go on. With the path 'direct' q, k and v of all layers after the site are put back to what they were without
    the patch: what is left is what the layer's own attention output does through the residual stream and the feed-forward
    networks, and nothing that a later layer's attention carries on; of a site of several layers those after its first.
    Where answers are read, each patch is made again from another pair's donor and of the residual stream at the same positions,
    and q, k and v of each site together. Raises SiteError, SpecError, CorpusError, ModelError.
    """
    subject, edits, prepared = prepare(settings, context.subject)
    sites, uneven = _planned_sites(settings, subject, edits, prepared)
    runs = PatchedRuns.begin(prepared, [one for one in sites if one.shown])
    passes = edited_passes(subject)
    control = _Controls(subject, passes, runs, sites)
    with context.progress(f"patching {len(edits)} sites") as step:
        _patch_pairs(settings, control, edits, sites, step)
        # with later layers put back, what passes through a label's subspace would be another intervention
        with_labels = subject.objective != "output" and settings.path != "direct"
        said = control.subspaces(settings.seed) if with_labels else tuple(control.notes)
        if control.alone:
            of = f"{control.alone} of {len(prepared.pairs)}"
            said += (f"Pairs without an unrelated donor, since no other answer stands beside their donor's: {of}.",)
    whole, noted, counted = tables(subject, runs, settings)
    rows = control.rows() if subject.objective != "output" else ()
    whole["predictions"] = pl.DataFrame(list(rows), PREDICTIONS, orient="row")
    notes = (*prepared.notes, *uneven, *noted, *said, *subject.notes, *passes.notes)
    facts, drawn = facts_of(settings, subject, runs, counted), pair_replicates(runs, counted, settings.seed)
    if settings.task != "audio-words":
        return Measured(whole, facts, notes, replicates=drawn)
    each = ((o.edit.site, o.positions, [o.scores, *o.controls.get("unrelated", ())]) for o in control.sites)
    hits = spoken_hits(subject.shape.layers("cross"), each, runs.names, runs.pieces, runs.answered)
    return Measured(whole, facts, notes, partial(judge_speech, hits, settings.seed), "pair", replicates=drawn)


def facts_of(
    settings: PatchSettings, subject: AnsweringSubject, runs: PatchedRuns, counted: Bool[np.ndarray, " N"]
) -> PatchFacts:
    """Model, pairs and settings of what was run."""
    prepared = runs.prepared
    options = (settings.per, settings.positions or "all", settings.path, settings.how, settings.answered, settings.seed)
    return PatchFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        "answers" if runs.own else "output",
        prepared.name,
        prepared.fingerprint,
        len(prepared.pairs),
        int(counted.sum()),
        tuple(name for name in SINGLE if name in prepared.answers),
        None if settings.sites is None else tuple(map(str, settings.sites)),
        *options,
    )


def _planned_sites(
    settings: PatchSettings, subject: AnsweringSubject, edits: Sequence[EditedPass], prepared: PreparedPairs
) -> tuple[list[_PatchedSite], tuple[str, ...]]:
    """Every site in every direction and at all positions that are asked for, with room for what comes of it, and notes.

    Those that are shown are the edits that were asked for; others stand in the table of predictions alone.
    """
    count, answers, names = len(prepared.pairs), subject.objective != "output", hypotheses(prepared.pieces)
    directions = ("denoise", "noise") if settings.how == "both" else (settings.how,)
    beside = tuple(_joint_edits(subject, edits)) if answers and "denoise" in directions else ()
    first, *other = (settings.positions or "all",) if settings.positions or not answers else ("all", "last")

    def site(how: str, edit: EditedPass, positions: str, shown: bool) -> _PatchedSite:
        room = AnswerScores.empty(count, len(names))
        return _PatchedSite(how, edit, positions, shown, np.zeros(count, int), np.zeros(count), room, {})

    asked = [site(how, edit, first, True) for how, edit in product(directions, edits)]
    asked += [site("denoise", edit, first, False) for edit in beside]
    asked += [site("denoise", e, p, False) for p in other if "denoise" in directions for e in (*edits, *beside)]
    sites = [one for one in asked if one.positions == "last" or not prepared.uneven & _sides(one.edit)]
    left = sorted({one.component for one in asked} - {one.component for one in sites if one.positions != "last"})
    uneven = f"Base and donor have other numbers of tokens: {', '.join(left)} patched at the last position alone."
    return sites, (uneven,) if prepared.uneven and left else ()


def _patch_pairs(
    settings: PatchSettings,
    control: _Controls,
    edits: Sequence[EditedPass],
    sites: Sequence[_PatchedSite],
    step: Callable[[int, int], None],
) -> None:
    """Patch every site of all pairs, some pairs at a time."""
    subject, passes, runs, prepared = control.subject, control.passes, control.runs, control.runs.prepared
    order, done = list(subject.shape.heads), 0
    in_order = sorted(sites, key=lambda one: order.index(one.edit.address))
    directions = tuple(dict.fromkeys(one.how for one in sites))
    edited = tuple(dict.fromkeys(address for one in in_order for address in one.edit.addresses))
    wanted: dict[str, tuple[Address, ...]] = {ROLES[how][1]: edited for how in directions}
    later = order if settings.path == "direct" else ()  # where the patched text's own are put back
    aside = any(one.positions == "last" and "cross" in one.kinds for one in sites)
    if later or aside:
        wanted = {"base": tuple(order), "donor": tuple(order)}
    room = None if later or aside or settings.per == "site" else ROOM
    for part in prepared.groups(settings.batch):
        texts = _read(subject, prepared, part, wanted, room)
        runs.note(texts, part)
        control.begin(texts, part)
        positions = read_positions(settings.positions or "all")
        sides = patched_sides(texts["base"].batch, texts["donor"].batch, positions, texts["base"].places)
        runs.tokens += token_rows(texts, edits, sides, part)
        for how in directions:
            run, donor = ROLES[how]
            scored = how == "denoise" and texts[run].places is not None and texts[donor].places is not None
            for question in control.questions if scored else [None]:
                batch = texts[run].batch if question is None else question.batch
                if len(edits) > FEW:
                    passes.begin(batch)
                control.residual_known.clear()
                mine = (one for one in in_order if one.how == how)
                for address, together in groupby(mine, key=lambda one: one.edit.address):
                    group = list(together)
                    if address not in texts[donor].parts:
                        _hold(subject, texts, donor, edited[edited.index(address) :])
                    if question is not None:
                        control.patch(question, group, texts, part, later)
                        continue
                    writes = [_writers(one, texts[run], texts[donor], batch, later) for one in group]
                    made = passes.output_each(batch, writes, texts[run].places)
                    for one, answer in zip(group, made, strict=True):
                        runs.keep(one, answer, texts[run], part)
        done += len(part)
        step(done, len(prepared.pairs))


def _sides(edit: EditedPass) -> set[str]:
    """The sides whose positions an edit is patched at, where these are all."""
    return {
        "target" if t.address.stack == "dec" or (t.address.stack == "cross" and t.component == "q") else "source"
        for t in edit.targets
    }


def _read(
    subject: AnsweringSubject,
    prepared: PreparedPairs,
    part: Int[np.ndarray, " B"],
    wanted: Mapping[str, Sequence[Address]],
    room: int | None,
) -> dict[str, ReadText]:
    """Both texts of some pairs, each read once without a patch, with q, k and v at what is wanted of it and there is room for."""
    found = {}
    for name in ("base", "donor"):
        batch = prepared.batch(subject, part, name)
        places = None if subject.objective == "output" else answer_places(batch, subject.mask)
        found[name] = ReadText(batch, places, *record(subject, batch, wanted.get(name, ()), places, room))
    return found


def _hold(subject: AnsweringSubject, texts: dict[str, ReadText], name: str, later: Sequence[Address]) -> None:
    """Read again what a text has at the first of some addresses, and at as many of the others as there is room for."""
    texts[name] = text = texts[name]._replace(parts={})  # the earlier ones are let go before others are read
    texts[name] = text._replace(parts=record(subject, text.batch, later, text.places, ROOM).parts)


def _alignment(
    one: _PatchedSite, run: ReadText, other: ReadText, batch: Batch, rows: Int[Tensor, " B"]
) -> tuple[PatchedSides, tuple[Tensor, Tensor] | None]:
    """Which positions of a batch (the run's texts, or longer ones) are patched, and from which to which a single one moves."""
    positions = read_positions(one.positions)
    sides = patched_sides(run.batch, other.batch, positions, run.places).widened(batch)
    if positions != "last" or run.places is None or other.places is None:
        return sides.cut(other.batch, rows), None
    crossed = sides.cut(other.batch, rows).crossed if run.batch.target is not None else sides.crossed
    return sides._replace(crossed=crossed), (other.places[rows], run.places)


def _writers(
    one: _PatchedSite,
    run: ReadText,
    other: ReadText,
    batch: Batch,
    later: Sequence[Address] = (),
    rows: Int[Tensor, " B"] | None = None,
    through: tuple[Eraser, bool] | None = None,
    joint: bool = False,
) -> dict[Address, Writer]:
    """What puts one site from the other text into a run's, its own q, k and v being put back in `later` layers than the site's.

    `rows` are those of the other text (None: the same); `through` patches no more than what a subspace holds, or all but that; `joint`
    patches k and v of cross-attention together.
    """
    edit, rows = one.edit, torch.arange(len(batch.rows)) if rows is None else rows
    sides, way = _alignment(one, run, other, batch, rows)

    def put_from(address: Address, here: Sequence[SiteTarget], parts: Parts) -> Parts:
        """The copies of what is put are made when it is put."""
        source = Parts(*(part[rows.to(part.device)] for part in other.parts[address]))
        if way is not None and address.stack != "cross":
            source = Parts(*(moved(part, *way) for part in source))
        elif way is not None:
            source = source._replace(q=moved(source.q, *way))
        return put_at(here, source, sides.queries(address.stack), sides.keys(address.stack))(parts)

    write: dict[Address, Writer] = dict(hold_later(run.parts, later, edit.address)) if later else {}
    crossed = [t.address for t in edit.targets if t.address.stack == "cross" and t.component != "q"]
    if one.positions == "last" and crossed and run.places is not None:
        # keys and values as the answering position alone reads them: whatever else read them leaves no trace in what that one meets
        aside = batch.target.real & (torch.arange(batch.target.real.shape[1]) != run.places[:, None])  # type: ignore[union-attr]
        none = torch.zeros_like(aside)
        for address in [a for a in run.parts if a.stack == "dec"]:
            if list(run.parts).index(address) > list(run.parts).index(crossed[0]):
                both = [SiteTarget(address, name, None) for name in ("k", "v")]
                write[address] = put_at(both, run.parts[address], none, aside)
    for address in edit.addresses:
        here = [target for target in edit.targets if target.address == address]
        if joint:
            here = [SiteTarget(address, name, None) for name in ("k", "v")]
        put: Writer = partial(put_from, address, here)
        if through is not None:
            put = _through(edit, put, *through)
        held = write.get(address)
        write[address] = put if held is None else lambda parts, held=held, put=put: put(held(parts))
    return write


def _through(edit: EditedPass, put: Writer, eraser: Eraser, beside: bool) -> Writer:
    """A writer that changes what another one would, within the subspace that an eraser takes out, or `beside` it."""

    def write(parts: Parts) -> Parts:
        own = gather(edit, parts)
        change = (gather(edit, put(parts)) - own).to(eraser.left)
        inside = (change @ eraser.right.T) @ eraser.left.T
        return scatter(edit, parts, own + (change - inside if beside else inside).to(own))

    return write


class _Controls:
    """What is patched beside the sites themselves, and the scores of every answer under all of it."""

    def __init__(
        self, subject: AnsweringSubject, passes: EditedPasses, runs: PatchedRuns, sites: Sequence[_PatchedSite]
    ) -> None:
        self.subject, self.passes, self.runs = subject, passes, runs
        self.sites = [one for one in sites if one.how == "denoise"]
        self.rows_of: Int[Tensor, " B"] | None = None
        self.questions: list[_Question] = []
        self.notes: dict[str, None] = {}
        self.alone = 0  # pairs without an unrelated donor
        # one result for all sites that are computed from the same stream at the same positions
        self.residual: dict[tuple[object, ...], AnswerScores] = {}
        self.residual_known: set[tuple[object, ...]] = set()  # those that a question is already scored under

    def begin(self, texts: dict[str, ReadText], part: Int[np.ndarray, " B"]) -> None:
        """Read the residual stream of some pairs' donors, score what the unpatched model says, and choose unrelated donors."""
        base, donor = texts["base"], texts["donor"]
        if base.places is None or donor.places is None:
            return
        runs = self.runs
        self.questions = runs.questions(base, part, runs.names)
        for question in self.questions:
            alone = question.batch is base.batch
            made = base.outputs if alone else self.subject.outputs(question.batch, places=question.places)
            score(question, made, runs.plain, part)
        right = AnswerScores.empty(*runs.plain.nats.shape)
        for question in runs.questions(donor, part, [DONOR]):
            alone = question.batch is donor.batch
            made = donor.outputs if alone else self.subject.outputs(question.batch, places=question.places)
            score(question, made, right, part)
        stated = np.array([[name in runs.prepared.pieces[number] for name in (BASE, DONOR)] for number in part])
        mine = np.stack([runs.plain.comes[part, 0], right.comes[part, runs.names.index(DONOR)]], 1)
        runs.answered[part] = (mine | ~stated).all(1)
        self.rows_of = self._unrelated(part, donor.places)
        texts["donor"] = donor._replace(streams=self._streams(donor.batch))

    def _unrelated(self, part: Int[np.ndarray, " B"], places: Int[Tensor, " B"]) -> Int[Tensor, " B"] | None:
        """For each pair of a batch another with another answer of its donor; None where a pair has none. `places` are the donors'."""
        pairs, pieces = self.runs.prepared.pairs, self.runs.pieces
        found = []
        for row in range(len(part)):
            others = [(row + step) % len(part) for step in range(1, len(part))]
            others = [o for o in others if pieces[part[o]].get(DONOR) != pieces[part[row]].get(DONOR)]
            if not others:
                self.alone += len(part)
                return None
            # of the same kind, and one that has come elsewhere: where it stands may be all that it says
            unlike = lambda o, row=row: (pairs[part[o]].kind != pairs[part[row]].kind, places[o] == places[row])  # noqa: E731
            found.append(min(others, key=unlike))
        return torch.tensor(found)

    def _streams(self, batch: Batch) -> dict[Address, Float[Tensor, "B T D"]]:
        wanted = dict.fromkeys(a for one in self.sites if STREAM in one.kinds for a in one.edit.addresses)
        found: dict[Address, Float[Tensor, "B T D"]] = {}
        if not isinstance(self.subject, StreamSubject) or not wanted:
            return found

        def note(address: Address, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
            found[address] = x.detach().clone()
            return x

        try:
            points = {StreamPoint(a): lambda x, a=a: note(a, x) for a in wanted}
            self.subject.stream_outputs(batch, points)
        except ModelError as error:
            self.notes[f"The residual stream is no control here: {error}"] = None
        return found if len(found) == len(wanted) else {}

    def patch(
        self,
        question: _Question,
        sites: Sequence[_PatchedSite],
        texts: Mapping[str, ReadText],
        part: Int[np.ndarray, " B"],
        later: Sequence[Address],
    ) -> None:
        """Patch sites of one layer from their donor, from an unrelated one, and of the residual stream, and score a question's answers."""
        base, donor, batch = texts["base"], texts["donor"], question.batch
        jobs = [(one.scores, _writers(one, base, donor, batch, later)) for one in sites]
        if self.rows_of is not None:
            for one in sites:
                into = one.controls.setdefault("unrelated", [AnswerScores.empty(*one.scores.nats.shape)])[0]
                jobs.append((into, _writers(one, base, donor, batch, later, self.rows_of)))
        # what attention further up carries on is put back with `later`, which the stream at a layer's block is not
        for one in sites if not later else ():
            origin = one.edit.addresses, one.positions, one.kinds
            into = self.residual.setdefault(origin, AnswerScores.empty(*one.scores.nats.shape))
            one.controls["residual"] = [into]
            if origin in self.residual_known:
                continue
            self.residual_known.add(origin)
            if one.kinds == ("cross",):
                jobs.append((into, _writers(one, base, donor, batch, joint=True)))
            elif donor.streams and one.kinds == (STREAM,):
                assert isinstance(self.subject, StreamSubject)
                streams = self._stream_writers(one, base, donor, batch)
                score(question, self.subject.stream_outputs(batch, streams, None, question.places), into, part)
        made = self.passes.output_each(batch, [write for _, write in jobs], question.places)
        for (into, _), answer in zip(jobs, made, strict=True):
            score(question, answer, into, part)
        for one, answer in zip(sites, made, strict=False) if batch is base.batch else ():
            self.runs.keep(one, answer, base, part)

    def _stream_writers(self, one: _PatchedSite, base: ReadText, donor: ReadText, batch: Batch) -> StreamWriters:
        """What puts the donor's residual stream into the base's at a site's layers and positions."""
        rows = torch.arange(len(batch.rows))
        sides, way = _alignment(one, base, donor, batch, rows)

        def write(address: Address, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
            source = donor.streams[address]
            if way is not None:
                source = moved(source[:, None], *way)[:, 0]
            chosen = sides.queries(address.stack).to(x.device)
            if chosen.shape[1] != x.shape[1]:  # a stack that sees other positions than the texts'
                return x
            missing = x.shape[1] - source.shape[1]
            source = torch.nn.functional.pad(source, (0, 0, 0, missing)) if missing > 0 else source[:, : x.shape[1]]
            return torch.where(chosen[..., None], source.to(x), x)

        return {StreamPoint(a): lambda x, a=a: write(a, x) for a in one.edit.addresses}

    def subspaces(self, seed: int) -> tuple[str, ...]:
        """Patch the site of each component with the largest effect once more: within a label's subspace, beside it, and in random ones.

        The label of a query is the key that it asks for, of a key and a value those of the fact that ends there. Returns notes.
        """
        runs, prepared = self.runs, self.runs.prepared
        best: dict[str, tuple[float, _PatchedSite]] = {}
        for one in self.sites:
            if one.component in SINGLE and len(one.edit.addresses) == 1 and one.edit.address.stack == "plain":
                effect = max((float(str(row.get("shift_nats") or "-inf")) for row in self._rows(one)), default=-np.inf)
                if one.component not in best or effect > best[one.component][0]:
                    best[one.component] = effect, one
        if not prepared.tokens or not best or any(pair.facts is None for pair in prepared.pairs):
            return tuple(self.notes)
        if not is_installed("concept_erasure"):
            return (*self.notes, "Subspaces of labels are no control here: the extra trisect[erase] is not installed.")
        places = tuple(dict.fromkeys(one.edit.address for _, one in best.values()))
        wanted = {"base": places, "donor": places}
        whole = [(part, _read(self.subject, prepared, part, wanted, None)) for part in prepared.groups(64)]
        for _, one in best.values():
            moments = self._label_moments(one, whole)
            if moments.count < 2:
                continue
            leace, draw = moments.leace(), torch.Generator().manual_seed(seed)
            ways = [("label", leace, False), ("complement", leace, True)]
            ways += [("random", moments.random(leace.rank, draw), False) for _ in range(DRAWS)]
            rooms = [AnswerScores.empty(*one.scores.nats.shape) for _ in ways]
            for into, (name, *_) in zip(rooms, ways, strict=True):
                one.controls.setdefault(name, []).append(into)
            for part, texts in whole:
                for question in runs.questions(texts["base"], part, runs.names):
                    batch, both = question.batch, (texts["base"], texts["donor"])
                    self.passes.begin(batch)
                    writes = [_writers(one, *both, batch, through=(eraser, beside)) for _, eraser, beside in ways]
                    made = self.passes.output_each(batch, writes, question.places)
                    for into, answer in zip(rooms, made, strict=True):
                        score(question, answer, into, part)
            self.notes[
                f"{one.edit.site} ({one.positions}): the label's subspace has {leace.rank} dimensions of {leace.left.shape[0]}, "
                f"from {moments.count} positions; {DRAWS} random ones of the same rank."
            ] = None
        return tuple(self.notes)

    def _label_moments(
        self, one: _PatchedSite, whole: Sequence[tuple[Int[np.ndarray, " B"], Mapping[str, ReadText]]]
    ) -> LabelMoments:
        """Statistics of what a site holds at the positions of its label, over both texts of all pairs."""
        prepared, found = self.runs.prepared, None
        classes = {word: number for number, word in enumerate(sorted(prepared.tokens))}
        for part, texts in whole:
            for side, text in enumerate((texts["base"], texts["donor"])):
                x, labels, rows, at = gather(one.edit, text.parts[one.edit.address]), [], [], []
                for row, number in enumerate(part):
                    facts, ids = prepared.pairs[number].facts, text.batch.source.ids
                    if facts is None or ids is None or text.places is None:
                        continue
                    bound = facts[side]
                    ends = [_only(ids[row], prepared.tokens.get(value, UNKNOWN)) for value in bound.values]
                    places = [int(text.places[row])] if one.component == "q" else ends
                    words = {"q": [bound.query], "k": bound.keys, "v": bound.values}[one.component]
                    for place, word in zip(places, words, strict=True):
                        if place is not None and word in classes:
                            rows, at, labels = [*rows, row], [*at, place], [*labels, classes[word]]
                found = LabelMoments(x.shape[2], len(classes), x.device) if found is None else found
                found.add(x[rows, at], torch.tensor(labels, dtype=torch.long, device=x.device))
        assert found is not None, "there is at least one pair"
        return found

    def _rows(self, one: _PatchedSite) -> Iterator[NewRow]:
        runs = self.runs
        usable = usable_pairs(runs.names, runs.pieces)
        where = str(one.edit.site), one.positions
        return prediction_rows(where, runs.names, usable, runs.answered, runs.plain, one.scores, one.controls)

    def rows(self) -> Iterator[NewRow]:
        """The table of predictions."""
        for one in self.sites:
            yield from self._rows(one)


def _only(ids: Int[Tensor, " T"], token: int) -> int | None:
    """Where a token stands that a text has once; None for any other."""
    found = (ids == token).nonzero().flatten().tolist()
    return found[0] if len(found) == 1 else None


def output_change(made: Float[Tensor, "B T D"], clean: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, " B"]:
    """|y − clean|² / |clean|² of the outputs, averaged over a text's real positions; without positions, of the one output."""
    new, old = (t.flatten(2) if t.dim() > 2 else t[:, None] for t in (made, clean))
    real = batch.queries("dec").real
    real = real if real.shape == old.shape[:2] else torch.ones(old.shape[:2], dtype=torch.bool)
    return torch.where(real, relative_change(new, old), 0.0).sum(1) / real.sum(1)


def token_rows(
    texts: Mapping[str, ReadText], edits: Sequence[EditedPass], sides: PatchedSides, part: Int[np.ndarray, " B"]
) -> Iterator[NewRow]:
    """Both texts of each pair side by side, token by token, with what is patched where."""
    base, donor = (texts[name].batch for name in ("base", "donor"))
    places = texts["base"].places
    stacks = {(t.address.stack, t.component) for edit in edits for t in edit.targets}
    for name in ("source", "target"):
        run, other, mask = (getattr(of, name) for of in (base, donor, sides))
        if (
            run is None or other is None or mask is None or run.ids is None
        ):  # positions of sound and images have no tokens
            continue
        written = [
            c
            for c in SINGLE
            if any((base.queries if c == "q" else base.keys)(stack) is run for stack, part in stacks if part == c)
        ]
        answers = places if name == "target" or base.target is None else None
        for row in range(len(run.tokens)):
            own, others = (
                [token for token, real in zip(side.tokens[row], side.real[row].tolist(), strict=True) if real]
                for side in (run, other)
            )
            patched = ["+".join(written) if on else "" for on in mask[row][run.real[row]].tolist()]
            answer = None if answers is None else int(answers[row])
            for place, (token, donors, on) in enumerate(zip_longest(own, others, patched)):
                named: NewRow = {"pair": int(part[row]) + 1, "side": name, "position": place + 1}
                yield named | {"base": token, "donor": donors, "patched": on or "", "answers": place == answer}


def tables(
    subject: AnsweringSubject, runs: PatchedRuns, settings: PatchSettings
) -> tuple[dict[str, pl.DataFrame], tuple[str, ...], Bool[np.ndarray, " N"]]:
    """Tables by name, what a reader has to know, and which pairs count.

    `measures`: a row per site and number; `pairs`, `tokens` and `interchanges`: what was read and what came.
    """
    counted, stated, own = runs.counted(settings.answered), runs.prepared.answers, {"subject": subject.name}
    rows: list[NewRow] = []
    for name, mine in runs.own.items():  # how many texts the model answers as stated, unpatched
        if name in stated:
            share = share_of((mine == stated[name])[stated[name] != UNKNOWN])
            rows.append(own | {"measure": "answered", "group": name} | share.row())
    for one in runs.sites:
        for measure, above, below, _ in sums_over_pairs(one, runs, counted):
            row = share_of(above).row() if above.dtype == bool else ratio_of_sums(above, below, settings.seed)
            rows.append(own | one.edit.row(one.how) | {"measure": measure} | row)
    notes = []
    if settings.answered and not counted.all():
        left = int((~counted).sum())
        notes.append(
            f"Pairs of which the model does not answer both texts as stated were left out: {left} of {len(counted)}."
        )
    notes += few_pairs(int(counted.sum()), len(counted))
    if runs.own and (alike := int((runs.predicted["base"] == runs.predicted["donor"]).sum())):
        if alike == len(counted) and not set(stated) - {BASE, DONOR}:
            same = f"Base and donor of every pair have the same answer ({subject.token(int(runs.predicted['base'][0]))!r})."
            known = "How far the model moves from the base's answer to the donor's is measured; of several tokens the first counts."
            raise CorpusError(same, known, "Give texts whose answers differ, or pairs that state other answers.")
        notes.append(
            f"Pairs whose base and donor have the same answer, which say nothing about the way to the donor: {alike} of {len(counted)}."
        )
    words, pairs, came = dict[int, str](), list[NewRow](), list[NewRow]()

    def word(number: int) -> str:
        if number not in words:
            words[number] = subject.token(number)
        return words[number]

    for i, pair in enumerate(runs.prepared.pairs):
        base, donor = (text_words(text, None) for text in (pair.base, pair.donor))
        row: NewRow = {"pair": i + 1, "kind": pair.kind, "base": base, "donor": donor, "counted": bool(counted[i])}
        said = {CONTENT.get(name, name): answer for name, answer in pair.answers.items()}
        spelled = {n: a if isinstance(a, str) else "".join(map(word, a)) for n, a in said.items()}
        row |= {f"answer_{name}": spelled.get(name) for name in ANSWERS}
        pairs.append(row | {f"own_{name}": word(int(mine[i])) for name, mine in runs.own.items()})
    for one in runs.sites:
        where, value = one.edit.row(one.how), "logit_difference" if runs.own else "output_change"
        who = match_prediction(one.answers, predictions(one.how, one.component, runs.predicted)) if runs.own else ()
        for i, number in enumerate(one.values):
            answer = {"came": who[i], "answer": word(int(one.answers[i]))} if who else {}
            came.append({**where, "pair": i + 1, value: finite(number), **answer})
    made = {
        "measures": frame("measures", rows),
        "pairs": pl.DataFrame(pairs, PAIRS),
        "tokens": pl.DataFrame(runs.tokens, TOKENS),
        "interchanges": pl.DataFrame(came, CHANGES),
    }
    return made, tuple(notes), counted


def predictions(
    how: str, component: str, answers: Mapping[str, Int[np.ndarray, " N"]]
) -> dict[str, Int[np.ndarray, " N"]]:
    """Which answer each name predicts in one direction: 'base' is the patched text's own, 'donor' that of the other.

    The component comes second, since where two predict the same answer the first is named.
    """
    own = DONOR if component == "q+k+v" else component
    names = {name: name if how == "denoise" else COMPLEMENT[name] for name in (BASE, own, *SINGLE, *ANSWERS)}
    return {name: answers[source] for name, source in names.items() if source in answers}


SumsOverPairs = tuple[str, np.ndarray, np.ndarray, Bool[np.ndarray, " P"]]


def sums_over_pairs(one: _PatchedSite, runs: PatchedRuns, counted: Bool[np.ndarray, " N"]) -> Iterator[SumsOverPairs]:
    """The numbers of one site in one direction, each a ratio of sums over some of the P pairs that count.

    Of each its measure, what every such pair adds above and below, and which these are; of a share what is added above is
    true or false. They are the change of the logit difference (of the output where there are no answers) and shares of
    answers: of the other text's, the component's own where it has one, the patched text's, and other components'.
    """
    values, whole = one.values[counted], np.ones(int(counted.sum()), dtype=bool)
    if not runs.own:
        yield "output_change", values, whole.astype(float), whole
        return
    own, other = ROLES[one.how]
    yield "logit_change", *logit_ratio(values, runs.differences[own][counted], runs.differences[other][counted])
    named = {name: of[counted] for name, of in predictions(one.how, one.component, runs.predicted).items()}
    both = {name: named[name] for name in (BASE, DONOR)}
    # a measure, whose prediction is counted, and the predictions that have to differ
    asked = [(DONOR, DONOR, both)]
    if one.component == "q+k+v":
        asked.append(("own", DONOR, both))
    elif one.component in named:
        beside = SINGLE if one.component in SINGLE else ()  # four values leave a joint component no answer of its own
        ours = {name: named[name] for name in (BASE, *beside, one.component) if name in named}
        asked.append(("own", one.component, ours))
    for measure, component, predicted in asked:
        hits, clear = share_hits(one.answers[counted], predicted, component)
        each = np.ones(int(clear.sum()))
        yield measure, hits.pop(component)[clear], each, clear
        if measure == asked[-1][0]:
            yield "unchanged", hits.pop(BASE)[clear], each, clear
            for name, hit in hits.items():
                yield f"as {name}", hit[clear], each, clear


def pair_replicates(
    runs: PatchedRuns, counted: Bool[np.ndarray, " P"], seed: int
) -> Mapping[tuple[str | float | int | bool | None, ...], Replicates]:
    """Numbers of REPLICATED measures in draws of pairs, by what names their rows; those of the same pairs meet the same draws."""
    together: dict[tuple[bytes, bytes], list[tuple[NewRow, SumsOverPairs]]] = {}
    for one in runs.sites:
        for found in sums_over_pairs(one, runs, counted):
            measure, _, below, which = found
            if measure in REPLICATED:
                row = one.edit.row(one.how) | {"measure": measure}
                together.setdefault((which.tobytes(), below.tobytes()), []).append((row, found))
    replicates: dict[tuple[str | float | int | bool | None, ...], Replicates] = {}
    for ratios in together.values():
        _, (_, _, below, which) = ratios[0]
        if len(below) < 2 or below.sum() == 0:
            continue
        pairs = counted.copy()
        pairs[counted] = which
        some = [pair for pair, on in zip(runs.prepared.pairs, pairs, strict=True) if on]
        texts = [[t if isinstance(t, str | tuple) else text_words(t, None) for t in (p.base, p.donor)] for p in some]
        mark = digest(json.dumps(texts), 8)
        drawn = bootstrap_ratios(np.stack([above.astype(float) for _, (_, above, *_) in ratios], 1), below, seed)
        for column, (row, (_, above, *_)) in enumerate(ratios):
            each = above.astype(float) if above.dtype == bool else None  # of a share each pair adds 0 or 1
            key = tuple(row.get(name) for name in ROW)
            replicates[key] = Replicates(drawn[:, column], len(below), mark, "pair", each)
    return replicates
