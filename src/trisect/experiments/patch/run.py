"""Activation patching (interchange): give each site of a base text the donor's q, k or v, and record the answer, beside controls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, product
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError, is_installed
from trisect.core.site import Site
from trisect.core.subject import (
    QKV,
    AnsweringSubject,
    Batch,
    EditedPasses,
    SiteTarget,
    StreamPoint,
    StreamSubject,
    StreamWriters,
    Subject,
    Writer,
)
from trisect.core.tables import INTEGER, REAL, TEXT, NewRow, frame
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
from trisect.lab.experiment import Measured, RunContext
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
from trisect.measure.intervention import output_change
from trisect.measure.patching import (
    BASE,
    UNKNOWN,
    freeze_later_layers,
    hit_share,
    logit_ratio_terms,
    match_answers,
    match_prediction,
    move_position,
    ratio_of_sums,
    record,
    replace_at,
)
from trisect.measure.probes import Eraser, LabelMoments
from trisect.stats.significance import finite
from trisect.text.pairs import ANSWERS, CONTENT

# which text is patched, and which it is patched from
ROLES = {"denoise": ("base", "donor"), "noise": ("donor", "base")}
DONOR = "donor"
COMPONENTS_ALONE = ("q", "k", "v")
# components taken from the donor -> those taken from the donor when base and donor change places
COMPLEMENT: dict[str, str] = dict(zip(ANSWERS, ("donor", "k+v", "q+v", "q+k", "v", "k", "q", "base"), strict=True))
PAIRS = {
    **{"pair": INTEGER, "kind": TEXT, "base": TEXT, "donor": TEXT},
    **{f"answer_{name}": TEXT for name in ANSWERS},
    **{"own_base": TEXT, "own_donor": TEXT, "counted": pl.Boolean},  # what the model answers unpatched
}
CHANGES = {
    **{"pair": INTEGER, "stack": TEXT, "layer": INTEGER, "head": INTEGER, "component": TEXT, "group": TEXT},
    **{"came": TEXT, "answer": TEXT},  # whose prediction it was (of the patched text's answers), and the token
    **{"logit_difference": REAL, "output_change": REAL},
}
ROOM = 64 * 2**20  # bytes of another text's q, k and v in memory at a time; at least one layer's
MAX_UNSHARED_EDITS = 2  # up to so many edits of a batch, a shared pass to start from costs more than it saves
DRAWS = 20  # random subspaces beside that of a label
STREAM = "stream"  # the input of an edit: the residual stream; for k and v of cross-attention "cross"


class ReadText(NamedTuple):
    """One side of some pairs in an unpatched pass: batch, position of the answer, outputs there, q, k and v.

    `outputs` are logits [B 1 V] at `places`, or all outputs [B T D] if the model gives no answers (`places` None). `streams` are
    the inputs of the layers' blocks.
    """

    batch: Batch
    places: Int[Tensor, " B"] | None
    outputs: Float[Tensor, "B T V"]
    parts: Mapping[Address, QKV]
    streams: Mapping[Address, Float[Tensor, "B T D"]] = {}


class _PatchedSite(NamedTuple):
    """One site patched in one direction: each pair's answer (token id), its logit difference, and the scores of all answers.

    `values` are changes of the output if there are no answers. `shown` is false for sites that are patched as controls alone;
    `controls` are the scores under control interventions, by name.
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
        """The components, joined by '+'."""
        return "+".join(self.edit.site.components)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Inputs of the components: the residual stream, or for k and v of cross-attention the encoder's output."""
        kinds = {STREAM if t.component == "q" or t.address.stack != "cross" else "cross" for t in self.edit.targets}
        return tuple(sorted(kinds))


class _Question(NamedTuple):
    """A batch of texts in which some answers are scored: by index of the answer, its tokens in each row (empty: not scored).

    `places` are the positions of the answers' tokens in each row, padded to the longest.
    """

    batch: Batch
    places: Int[Tensor, "B N"]
    pieces: Mapping[int, Sequence[tuple[int, ...]]]


@dataclass(eq=False)
class PatchedRuns:
    """Results of all patched runs, as arrays over the N pairs.

    `predicted` are ids of answers as the pairs have them, the model's own where base or donor is not stated; `model_answers` what it
    answers to both texts unpatched (empty: it gives no answers), `differences` the logit of the base's answer less the donor's
    there; `tokens` are rows of the table of that name. `pieces` are all answers' tokens, `plain` their scores
    unpatched, `answered` whether both texts are answered correctly.
    """

    prepared: PreparedPairs
    names: tuple[str, ...]
    sites: Sequence[_PatchedSite]
    predicted: dict[str, Int[np.ndarray, " N"]]
    pieces: list[dict[str, tuple[int, ...]]]
    plain: AnswerScores
    answered: Bool[np.ndarray, " N"]
    model_answers: dict[str, Int[np.ndarray, " N"]] = field(default_factory=dict)
    differences: dict[str, Float[np.ndarray, " N"]] = field(default_factory=dict)

    @classmethod
    def begin(cls, prepared: PreparedPairs, sites: Sequence[_PatchedSite] = ()) -> PatchedRuns:
        """Empty results for the pairs."""
        names, count = hypotheses(prepared.pieces), len(prepared.pairs)
        predicted = {name: ids.copy() for name, ids in prepared.answers.items()}
        pieces, plain = [dict(answers) for answers in prepared.pieces], AnswerScores.empty(count, len(names))
        return cls(prepared, names, sites, predicted, pieces, plain, np.ones(count, dtype=bool))

    def note(self, texts: Mapping[str, ReadText], part: Int[np.ndarray, " B"]) -> None:
        """Store the unpatched answers to both texts, and the difference of their logits."""
        if texts["base"].places is None:
            return
        count = len(self.prepared.pairs)
        for name, text in texts.items():
            answers = text.outputs[:, 0].argmax(-1).numpy()
            self.model_answers.setdefault(name, np.zeros(count, int))[part] = answers
            ids = self.predicted.setdefault(name, np.full(count, UNKNOWN))
            ids[part] = np.where(ids[part] == UNKNOWN, answers, ids[part])
            for number, answer in zip(part, answers, strict=True):
                self.pieces[number].setdefault(name, (int(answer),))
        for name, text in texts.items():
            self.differences.setdefault(name, np.zeros(count))[part] = self.difference(text.outputs, part)

    def keep(
        self, site: _PatchedSite, outputs: Float[Tensor, "B T V"], run: ReadText, part: Int[np.ndarray, " B"]
    ) -> None:
        """Store the outputs of one patch of the text `run`."""
        if run.places is None:
            site.values[part] = output_change(outputs, run.outputs, run.batch).numpy()
        else:
            site.answers[part], site.values[part] = outputs[:, 0].argmax(-1).numpy(), self.difference(outputs, part)

    def questions(self, text: ReadText, part: Int[np.ndarray, " B"], names: Iterable[str]) -> list[_Question]:
        """The text itself for answers of one token, and for each longer answer the text extended by its tokens."""
        assert text.places is not None, "outputs that are no answers have no scores"
        single, longer = dict[int, Sequence[tuple[int, ...]]](), []
        for column, name in ((self.names.index(name), name) for name in names):
            tokens = [self.pieces[number].get(name, ()) for number in part]
            single[column] = [ids if len(ids) == 1 else () for ids in tokens]
            if any(len(ids) > 1 for ids in tokens):
                extensions = [ids if len(ids) > 1 else () for ids in tokens]
                batch = extend(text.batch, text.places, extensions)
                side = batch.source if batch.target is None else batch.target
                places = text.places[:, None] + torch.arange(max(map(len, extensions)))
                longer.append(_Question(batch, places.clamp(max=side.real.shape[1] - 1), {column: extensions}))
        return [_Question(text.batch, text.places[:, None], single), *longer]

    def difference(self, outputs: Float[Tensor, "B 1 V"], part: Int[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
        """Logit difference: the base's answer less the donor's."""
        ids = [torch.from_numpy(self.predicted[name][part])[:, None] for name in ("base", "donor")]
        base, donor = (outputs[:, 0].double().gather(1, answer)[:, 0] for answer in ids)
        return (base - donor).numpy()

    def counted(self, answered: bool) -> Bool[np.ndarray, " N"]:
        """Pairs that count: with `answered` those whose two texts the model answers as stated."""
        right = np.ones(len(self.prepared.pairs), dtype=bool)
        for name, answers in self.model_answers.items() if answered else ():
            stated = self.prepared.answers.get(name, np.full(len(answers), UNKNOWN))
            right &= (answers == stated) | (stated == UNKNOWN)
        return right


def score(
    question: _Question, outputs: Float[Tensor, "B N V"], into: AnswerScores, part: Int[np.ndarray, " B"]
) -> None:
    """Write the log-probabilities of a question's answers, summed over tokens, into the pairs' scores; `outputs` are at its places."""
    for row, number in enumerate(part.tolist()):
        pieces = {column: by_row[row] for column, by_row in question.pieces.items() if by_row[row]}
        if not pieces:
            continue
        logged = outputs[row, : max(map(len, pieces.values()))].double().log_softmax(-1)
        best = logged.argmax(-1).tolist()
        for column, ids in pieces.items():
            into.nats[number, column] = sum(float(logged[at, token]) for at, token in enumerate(ids))
            into.comes[number, column] = best[: len(ids)] == list(ids)


def prepare(
    settings: PatchSettings, subject: Subject
) -> tuple[AnsweringSubject, tuple[EditedPass, ...], PreparedPairs]:
    """The model, its edits and the pairs.

    Raises TrisectError if the model lacks a site, cannot do the task, or tokenizes a pair's texts so that they do not align.
    """
    if not isinstance(subject, AnsweringSubject):
        requirement = "It returns a loss, but no predictions."
        raise ModelError(f"{subject.name} cannot be patched.", requirement, "Give a model that trisect.load returns.")
    edits = plan_edits(subject.shape, settings.sites, settings.per)
    prepared = prepare_pairs(settings, subject, [target for edit in edits for target in edit.targets])
    if all(set(answers) == {BASE, DONOR} and answers[BASE] == answers[DONOR] for answers in prepared.pieces):
        first = prepared.pairs[0].answers[BASE]
        answer = first if isinstance(first, str) else "".join(map(subject.token, first))
        same = f"Base and donor have the same answer in every pair (in the first: {answer!r})."
        reason = "The measure is the change from the base's answer to the donor's."
        raise CorpusError(same, reason, "Give texts whose answers differ, or pairs that state other answers.")
    return prepared.reader or subject, edits, prepared


def measure(settings: PatchSettings, context: RunContext) -> Measured[PatchFacts]:
    """Patch each site of every pair, one pass each, in one layer or one head at a time, or all that a site names.

    A patch replaces the patched text's activation at the site and the chosen positions by the other text's, and the pass
    continues. With the path 'direct', q, k and v of all layers after the site (of several layers: after the first) are held at
    their unpatched values: the effect is that of the layer's attention output through the residual stream and the feed-forward
    networks, without later attention. Where answers are read, controls patch each site from another pair's donor, the residual
    stream at the same positions, and q, k and v of each site together. Raises SiteError, SpecError, CorpusError, ModelError.
    """
    subject, edits, prepared = prepare(settings, context.subject)
    sites, uneven = _planned_sites(settings, subject, edits, prepared)
    runs = PatchedRuns.begin(prepared, [site for site in sites if site.shown])
    passes = edited_passes(subject)
    control = _Controls(subject, passes, runs, sites)
    with context.progress(f"patching {len(edits)} sites") as step:
        _patch_pairs(settings, control, edits, sites, step)
        # with later layers held, a patch within a label's subspace would be another intervention
        with_labels = subject.objective != "output" and settings.path != "direct"
        control_notes = control.subspaces(settings.seed) if with_labels else tuple(control.notes)
        if control.alone:
            count = f"{control.alone} of {len(prepared.pairs)}"
            control_notes += (
                f"Pairs without an unrelated donor, since all donors of their batch have the same answer: {count}.",
            )
    frames, noted, counted = tables(subject, runs, settings)
    rows = control.rows() if subject.objective != "output" else ()
    frames["predictions"] = pl.DataFrame(list(rows), PREDICTIONS, orient="row")
    notes = (*prepared.notes, *uneven, *noted, *control_notes, *subject.notes, *passes.notes)
    facts = facts_of(settings, subject, runs, counted)
    if settings.task != "audio-words":
        return Measured(frames, facts, notes)
    each = ((o.edit.site, o.positions, [o.scores, *o.controls.get("unrelated", ())]) for o in control.sites)
    hits = spoken_hits(subject.shape.layers("cross"), each, runs.names, runs.pieces, runs.answered)
    return Measured(frames, facts, notes, partial(judge_speech, hits, settings.seed), "pair")


def facts_of(
    settings: PatchSettings, subject: AnsweringSubject, runs: PatchedRuns, counted: Bool[np.ndarray, " N"]
) -> PatchFacts:
    """Facts of a run: model, pairs and settings."""
    prepared = runs.prepared
    options = (settings.per, settings.positions or "all", settings.path, settings.how, settings.answered, settings.seed)
    return PatchFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        "answers" if runs.model_answers else "output",
        prepared.name,
        prepared.fingerprint,
        len(prepared.pairs),
        int(counted.sum()),
        tuple(name for name in COMPONENTS_ALONE if name in prepared.answers),
        None if settings.sites is None else tuple(map(str, settings.sites)),
        *options,
    )


def _planned_sites(
    settings: PatchSettings, subject: AnsweringSubject, edits: Sequence[EditedPass], prepared: PreparedPairs
) -> tuple[list[_PatchedSite], tuple[str, ...]]:
    """Every site in every direction and at all positions of the settings, with empty scores, and notes.

    `shown` sites are the edits of the settings; the others are in the table of predictions alone.
    """
    count, answers, names = len(prepared.pairs), subject.objective != "output", hypotheses(prepared.pieces)
    directions = ("denoise", "noise") if settings.how == "both" else (settings.how,)
    seen, joint_edits = {str(edit.site) for edit in edits}, list[EditedPass]()
    # q, k and v of each site together, unless that is patched anyway or the three have different heads
    for edit in edits if answers and "denoise" in directions else ():
        counts = [subject.shape.heads[address] for address in edit.addresses]
        joint = Site(
            COMPONENTS_ALONE, tuple(address.layer for address in edit.addresses), edit.site.heads, edit.site.stack
        )
        if str(joint) not in seen and (joint.heads is None or all(heads.query == heads.key for heads in counts)):
            seen.add(str(joint))
            targets = tuple(SiteTarget(a, c, joint.heads) for a in edit.addresses for c in COMPONENTS_ALONE)
            joint_edits.append(EditedPass(joint, edit.address, targets))
    first, *other = (settings.positions or "all",) if settings.positions or not answers else ("all", "last")

    def site(how: str, edit: EditedPass, positions: str, shown: bool) -> _PatchedSite:
        room = AnswerScores.empty(count, len(names))
        return _PatchedSite(how, edit, positions, shown, np.zeros(count, int), np.zeros(count), room, {})

    plans = [site(how, edit, first, True) for how, edit in product(directions, edits)]
    plans += [site("denoise", edit, first, False) for edit in joint_edits]
    plans += [site("denoise", e, p, False) for p in other if "denoise" in directions for e in (*edits, *joint_edits)]

    def is_even(edit: EditedPass) -> bool:
        """Whether base and donor have as many tokens on every side on which the edit patches positions."""
        on_target = {a.stack == "dec" or (a.stack == "cross" and c == "q") for a, c, _ in edit.targets}
        return not prepared.uneven & {"target" if is_target else "source" for is_target in on_target}

    sites = [plan for plan in plans if plan.positions == "last" or is_even(plan.edit)]
    left = sorted({plan.component for plan in plans} - {plan.component for plan in sites if plan.positions != "last"})
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
    in_order = sorted(sites, key=lambda site: order.index(site.edit.address))
    directions = tuple(dict.fromkeys(site.how for site in sites))
    edited = tuple(dict.fromkeys(address for site in in_order for address in site.edit.addresses))
    addresses: dict[str, tuple[Address, ...]] = {ROLES[how][1]: edited for how in directions}
    later = order if settings.path == "direct" else ()  # layers whose unpatched values are restored
    aside = any(site.positions == "last" and "cross" in site.kinds for site in sites)
    if later or aside:
        addresses = {"base": tuple(order), "donor": tuple(order)}
    room = None if later or aside or settings.per == "site" else ROOM
    reuses_prefix = len(edits) > MAX_UNSHARED_EDITS
    for part in prepared.groups(settings.batch):
        texts = _read(subject, passes if reuses_prefix else None, prepared, part, addresses, room)
        current_batch = texts["base"].batch if reuses_prefix else None
        runs.note(texts, part)
        control.begin(texts, part)
        for how in directions:
            run, donor = ROLES[how]
            scored = how == "denoise" and texts[run].places is not None and texts[donor].places is not None
            for question in control.questions if scored else [None]:
                batch = texts[run].batch if question is None else question.batch
                if reuses_prefix and batch is not current_batch:
                    passes.begin(batch)
                    current_batch = batch
                control.residual_known.clear()
                selection = (site for site in in_order if site.how == how)
                for address, members in groupby(selection, key=lambda site: site.edit.address):
                    group = list(members)
                    if address not in texts[donor].parts:
                        text = texts[donor] = texts[donor]._replace(parts={})  # frees them before others are read
                        rest = edited[edited.index(address) :]
                        texts[donor] = text._replace(
                            parts=record(subject.outputs, text.batch, rest, text.places, ROOM).parts
                        )
                    if question is not None:
                        control.patch(question, group, texts, part, later)
                        continue
                    writes = [_writers(site, texts[run], texts[donor], batch, later) for site in group]
                    outputs = passes.output_each(batch, writes, texts[run].places)
                    for site, answer in zip(group, outputs, strict=True):
                        runs.keep(site, answer, texts[run], part)
        done += len(part)
        step(done, len(prepared.pairs))


def _read(
    subject: AnsweringSubject,
    passes: EditedPasses | None,
    prepared: PreparedPairs,
    part: Int[np.ndarray, " B"],
    addresses: Mapping[str, Sequence[Address]],
    room: int | None,
) -> dict[str, ReadText]:
    """Both texts of some pairs from one unpatched pass each, with q, k and v at as many of the `addresses` as fit in `room` bytes.

    With `passes` the base's is the one from which its edited passes begin.
    """
    texts = {}
    for name in ("base", "donor"):
        batch = prepared.batch(subject, part, name)
        places = None if subject.objective == "output" else answer_places(batch, subject.mask)
        outputs = subject.outputs if passes is None or name == "donor" else passes.read
        texts[name] = ReadText(batch, places, *record(outputs, batch, addresses.get(name, ()), places, room))
    return texts


def _alignment(
    site: _PatchedSite, run: ReadText, other: ReadText, batch: Batch, rows: Int[Tensor, " B"]
) -> tuple[PatchedSides, tuple[Tensor, Tensor] | None]:
    """The patched positions of a batch (the run's texts, or extended ones); for a single position, its source and target."""
    positions = read_positions(site.positions)
    sides = patched_sides(run.batch, other.batch, positions, run.places).widened(batch)
    if positions != "last" or run.places is None or other.places is None:
        return sides.cut(other.batch, rows), None
    crossed = sides.cut(other.batch, rows).crossed if run.batch.target is not None else sides.crossed
    return sides._replace(crossed=crossed), (other.places[rows], run.places)


def _writers(
    site: _PatchedSite,
    run: ReadText,
    other: ReadText,
    batch: Batch,
    later: Sequence[Address] = (),
    rows: Int[Tensor, " B"] | None = None,
    through: tuple[Eraser, bool] | None = None,
    joint: bool = False,
) -> dict[Address, Writer]:
    """Writers that patch one site of a run from the other text, and restore the run's q, k and v in `later` layers.

    `rows` are those of the other text (None: the same); `through` restricts the patch to a subspace, or to its complement; `joint`
    patches k and v of cross-attention together.
    """
    edit, rows = site.edit, torch.arange(len(batch.rows)) if rows is None else rows
    sides, way = _alignment(site, run, other, batch, rows)

    def put_from(address: Address, targets: Sequence[SiteTarget], parts: QKV) -> QKV:
        """Copies of the source are made when it is written."""
        source = QKV(*(part[rows.to(part.device)] for part in other.parts[address]))
        if way is not None and address.stack != "cross":
            source = QKV(*(move_position(part, *way) for part in source))
        elif way is not None:
            source = source._replace(q=move_position(source.q, *way))
        return replace_at(targets, source, sides.queries(address.stack), sides.keys(address.stack))(parts)

    write: dict[Address, Writer] = dict(freeze_later_layers(run.parts, later, edit.address)) if later else {}
    crossed = [t.address for t in edit.targets if t.address.stack == "cross" and t.component != "q"]
    if site.positions == "last" and crossed and run.places is not None:
        # keys and values as the answering position alone reads them: later layers are held at all other positions
        aside = batch.target.real & (torch.arange(batch.target.real.shape[1]) != run.places[:, None])  # type: ignore[union-attr]
        none = torch.zeros_like(aside)
        for address in [a for a in run.parts if a.stack == "dec"]:
            if list(run.parts).index(address) > list(run.parts).index(crossed[0]):
                both = [SiteTarget(address, name, None) for name in ("k", "v")]
                write[address] = replace_at(both, run.parts[address], none, aside)
    for address in edit.addresses:
        targets = [target for target in edit.targets if target.address == address]
        if joint:
            targets = [SiteTarget(address, name, None) for name in ("k", "v")]
        put: Writer = partial(put_from, address, targets)
        if through is not None:
            put = _through(edit, put, *through)
        earlier = write.get(address)
        write[address] = put if earlier is None else lambda parts, earlier=earlier, put=put: put(earlier(parts))
    return write


def _through(edit: EditedPass, put: Writer, eraser: Eraser, beside: bool) -> Writer:
    """A writer that applies another one's change within an eraser's subspace, or in its complement (`beside`)."""

    def write(parts: QKV) -> QKV:
        before = gather(edit, parts)
        change = (gather(edit, put(parts)) - before).to(eraser.left)
        inside = (change @ eraser.right.T) @ eraser.left.T
        return scatter(edit, parts, before + (change - inside if beside else inside).to(before))

    return write


class _Controls:
    """Control interventions beside the sites, and the scores of every answer under each."""

    def __init__(
        self, subject: AnsweringSubject, passes: EditedPasses, runs: PatchedRuns, sites: Sequence[_PatchedSite]
    ) -> None:
        self.subject, self.passes, self.runs = subject, passes, runs
        self.sites = [site for site in sites if site.how == "denoise"]
        self.rows_of: Int[Tensor, " B"] | None = None
        self.questions: list[_Question] = []
        self.notes: dict[str, None] = {}
        self.alone = 0  # pairs without an unrelated donor
        # one result for all sites that are computed from the same stream at the same positions
        self.residual: dict[tuple[object, ...], AnswerScores] = {}
        self.residual_known: set[tuple[object, ...]] = set()  # those whose scores of the current question are complete

    def begin(self, texts: dict[str, ReadText], part: Int[np.ndarray, " B"]) -> None:
        """Read the residual stream of some pairs' donors, score the unpatched answers, and choose unrelated donors."""
        base, donor = texts["base"], texts["donor"]
        if base.places is None or donor.places is None:
            return
        runs = self.runs
        self.questions = runs.questions(base, part, runs.names)
        right, of_donor = AnswerScores.empty(*runs.plain.nats.shape), runs.questions(donor, part, [DONOR])
        for text, questions, into in ((base, self.questions, runs.plain), (donor, of_donor, right)):
            for question in questions:
                is_text = question.batch is text.batch
                outputs = text.outputs if is_text else self.subject.outputs(question.batch, places=question.places)
                score(question, outputs, into, part)
        stated = np.array([[name in runs.prepared.pieces[number] for name in (BASE, DONOR)] for number in part])
        correct = np.stack([runs.plain.comes[part, 0], right.comes[part, runs.names.index(DONOR)]], 1)
        runs.answered[part] = (correct | ~stated).all(1)
        self.rows_of = self._unrelated(part, donor.places)
        texts["donor"] = donor._replace(streams=self._streams(donor.batch))

    def _unrelated(self, part: Int[np.ndarray, " B"], places: Int[Tensor, " B"]) -> Int[Tensor, " B"] | None:
        """For each pair of a batch another one whose donor has another answer; None if a pair has none. `places` are the donors'."""
        pairs, pieces = self.runs.prepared.pairs, self.runs.pieces
        rows = []
        for row in range(len(part)):
            others = [(row + step) % len(part) for step in range(1, len(part))]
            others = [o for o in others if pieces[part[o]].get(DONOR) != pieces[part[row]].get(DONOR)]
            if not others:
                self.alone += len(part)
                return None
            # preferably of the same kind, with the answer at another position: the position may be all that is encoded
            unlike = lambda o, row=row: (pairs[part[o]].kind != pairs[part[row]].kind, places[o] == places[row])  # noqa: E731
            rows.append(min(others, key=unlike))
        return torch.tensor(rows)

    def _streams(self, batch: Batch) -> dict[Address, Float[Tensor, "B T D"]]:
        addresses = dict.fromkeys(a for site in self.sites if STREAM in site.kinds for a in site.edit.addresses)
        streams: dict[Address, Float[Tensor, "B T D"]] = {}
        if not isinstance(self.subject, StreamSubject) or not addresses:
            return streams

        def note(address: Address, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
            streams[address] = x.detach().clone()
            return x

        try:
            points = {StreamPoint(a): lambda x, a=a: note(a, x) for a in addresses}
            self.subject.stream_outputs(batch, points)
        except ModelError as error:
            self.notes[f"There is no control by the residual stream: {error}"] = None
        return streams if len(streams) == len(addresses) else {}

    def patch(
        self,
        question: _Question,
        sites: Sequence[_PatchedSite],
        texts: Mapping[str, ReadText],
        part: Int[np.ndarray, " B"],
        later: Sequence[Address],
    ) -> None:
        """Patch sites of one layer from their donor, an unrelated one and the residual stream, and score a question's answers."""
        base, donor, batch = texts["base"], texts["donor"], question.batch
        jobs = [(site.scores, _writers(site, base, donor, batch, later)) for site in sites]
        if self.rows_of is not None:
            for site in sites:
                into = site.controls.setdefault("unrelated", [AnswerScores.empty(*site.scores.nats.shape)])[0]
                jobs.append((into, _writers(site, base, donor, batch, later, self.rows_of)))
        # with `later` the effect through later attention is removed, which a patch of the stream cannot do
        for site in sites if not later else ():
            origin = site.edit.addresses, site.positions, site.kinds
            into = self.residual.setdefault(origin, AnswerScores.empty(*site.scores.nats.shape))
            site.controls["residual"] = [into]
            if origin in self.residual_known:
                continue
            self.residual_known.add(origin)
            if site.kinds == ("cross",):
                jobs.append((into, _writers(site, base, donor, batch, joint=True)))
            elif donor.streams and site.kinds == (STREAM,):
                assert isinstance(self.subject, StreamSubject)
                streams = self._stream_writers(site, base, donor, batch)
                score(question, self.subject.stream_outputs(batch, streams, None, question.places), into, part)
        outputs = self.passes.output_each(batch, [write for _, write in jobs], question.places)
        for (into, _), answer in zip(jobs, outputs, strict=True):
            score(question, answer, into, part)
        for site, answer in zip(sites, outputs, strict=False) if batch is base.batch else ():
            self.runs.keep(site, answer, base, part)

    def _stream_writers(self, site: _PatchedSite, base: ReadText, donor: ReadText, batch: Batch) -> StreamWriters:
        """Writers that patch the base's residual stream from the donor's at a site's layers and positions."""
        rows = torch.arange(len(batch.rows))
        sides, way = _alignment(site, base, donor, batch, rows)

        def write(address: Address, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
            source = donor.streams[address]
            if way is not None:
                source = move_position(source[:, None], *way)[:, 0]
            chosen = sides.queries(address.stack).to(x.device)
            if chosen.shape[1] != x.shape[1]:  # a stack that sees other positions than the texts'
                return x
            missing = x.shape[1] - source.shape[1]
            source = torch.nn.functional.pad(source, (0, 0, 0, missing)) if missing > 0 else source[:, : x.shape[1]]
            return torch.where(chosen[..., None], source.to(x), x)

        return {StreamPoint(a): lambda x, a=a: write(a, x) for a in site.edit.addresses}

    def subspaces(self, seed: int) -> tuple[str, ...]:
        """Patch each component's site with the largest effect again: within a label's subspace, in its complement, and in random ones.

        The label of a query is the key that it looks for; of a key and a value, that of the fact that ends there. Returns notes.
        """
        runs, prepared = self.runs, self.runs.prepared
        best: dict[str, tuple[float, _PatchedSite]] = {}
        for site in self.sites:
            if (
                site.component in COMPONENTS_ALONE
                and len(site.edit.addresses) == 1
                and site.edit.address.stack == "plain"
            ):
                effect = max((float(str(row.get("shift_nats") or "-inf")) for row in self._rows(site)), default=-np.inf)
                if site.component not in best or effect > best[site.component][0]:
                    best[site.component] = effect, site
        if not prepared.tokens or not best or any(pair.facts is None for pair in prepared.pairs):
            return tuple(self.notes)
        if not is_installed("concept_erasure"):
            return (
                *self.notes,
                "There are no controls by subspaces of labels: the extra trisect[erase] is not installed.",
            )
        places = tuple(dict.fromkeys(site.edit.address for _, site in best.values()))
        addresses = {"base": places, "donor": places}
        reads = [(part, _read(self.subject, None, prepared, part, addresses, None)) for part in prepared.groups(64)]
        for _, site in best.values():
            moments = self._label_moments(site, reads)
            if moments.count < 2:
                continue
            leace, draw = moments.leace(), torch.Generator().manual_seed(seed)
            ways = [("label", leace, False), ("complement", leace, True)]
            ways += [("random", moments.random(leace.rank, draw), False) for _ in range(DRAWS)]
            scores = [AnswerScores.empty(*site.scores.nats.shape) for _ in ways]
            for into, (name, *_) in zip(scores, ways, strict=True):
                site.controls.setdefault(name, []).append(into)
            for part, texts in reads:
                for question in runs.questions(texts["base"], part, runs.names):
                    batch, both = question.batch, (texts["base"], texts["donor"])
                    self.passes.begin(batch)
                    writes = [_writers(site, *both, batch, through=(eraser, beside)) for _, eraser, beside in ways]
                    outputs = self.passes.output_each(batch, writes, question.places)
                    for into, answer in zip(scores, outputs, strict=True):
                        score(question, answer, into, part)
            self.notes[
                f"{site.edit.site} ({site.positions}): the label's subspace has {leace.rank} dimensions of {leace.left.shape[0]}, "
                f"from {moments.count} positions; {DRAWS} random ones of the same rank."
            ] = None
        return tuple(self.notes)

    def _label_moments(
        self, site: _PatchedSite, reads: Sequence[tuple[Int[np.ndarray, " B"], Mapping[str, ReadText]]]
    ) -> LabelMoments:
        """Label moments of a site's activations at the positions of its label, over both texts of all pairs."""
        prepared, moments = self.runs.prepared, None
        classes = {word: number for number, word in enumerate(sorted(prepared.tokens))}
        for part, texts in reads:
            for side, text in enumerate((texts["base"], texts["donor"])):
                x, labels, rows, at = gather(site.edit, text.parts[site.edit.address]), [], [], []
                for row, number in enumerate(part):
                    facts, ids = prepared.pairs[number].facts, text.batch.source.ids
                    if facts is None or ids is None or text.places is None:
                        continue
                    bound = facts[side]
                    matches = [
                        (ids[row] == prepared.tokens.get(v, UNKNOWN)).nonzero()[:, 0].tolist() for v in bound.values
                    ]
                    ends = [positions[0] if len(positions) == 1 else None for positions in matches]
                    places = [int(text.places[row])] if site.component == "q" else ends
                    words = {"q": [bound.query], "k": bound.keys, "v": bound.values}[site.component]
                    for place, word in zip(places, words, strict=True):
                        if place is not None and word in classes:
                            rows, at, labels = [*rows, row], [*at, place], [*labels, classes[word]]
                moments = LabelMoments(x.shape[2], len(classes), x.device) if moments is None else moments
                moments.add(x[rows, at], torch.tensor(labels, dtype=torch.long, device=x.device))
        assert moments is not None, "there is at least one pair"
        return moments

    def _rows(self, site: _PatchedSite) -> Iterator[NewRow]:
        runs = self.runs
        usable = usable_pairs(runs.names, runs.pieces)
        where = str(site.edit.site), site.positions
        return prediction_rows(where, runs.names, usable, runs.answered, runs.plain, site.scores, site.controls)

    def rows(self) -> Iterator[NewRow]:
        """The table of predictions."""
        for site in self.sites:
            yield from self._rows(site)


def tables(
    subject: AnsweringSubject, runs: PatchedRuns, settings: PatchSettings
) -> tuple[dict[str, pl.DataFrame], tuple[str, ...], Bool[np.ndarray, " N"]]:
    """Tables by name, notes for the reader, and a mask of the pairs that count.

    `measures` has a row per site and number; `pairs` and `interchanges` hold texts and answers.
    """
    counted, stated, subject_row = runs.counted(settings.answered), runs.prepared.answers, {"subject": subject.name}
    rows: list[NewRow] = []
    for name, answers in runs.model_answers.items():  # how many texts the model answers as stated, unpatched
        if name in stated:
            share = hit_share((answers == stated[name])[stated[name] != UNKNOWN])
            rows.append(subject_row | {"measure": "answered", "group": name} | share.row())
    for site in runs.sites:
        for measure, above, below in _sums_over_pairs(site, runs, counted):
            row = hit_share(above).row() if above.dtype == bool else ratio_of_sums(above, below, settings.seed)
            rows.append(subject_row | site.edit.row(site.how) | {"measure": measure} | row)
    notes = []
    if settings.answered and not counted.all():
        sentence = "Pairs of which the model does not answer both texts as stated were left out"
        notes.append(f"{sentence}: {int((~counted).sum())} of {len(counted)}.")
    notes += few_pairs(int(counted.sum()), len(counted))
    if runs.model_answers and (alike := sum(answers[BASE] == answers[DONOR] for answers in runs.pieces)):
        notes.append(
            f"Pairs whose base and donor have the same answer, which say nothing about the way to the donor: {alike} of {len(counted)}."
        )
    words, pairs, changes = dict[int, str](), list[NewRow](), list[NewRow]()

    def word(number: int) -> str:
        if number not in words:
            words[number] = subject.token(number)
        return words[number]

    for i, pair in enumerate(runs.prepared.pairs):
        base, donor = (text_words(text, None) for text in (pair.base, pair.donor))
        row: NewRow = {"pair": i + 1, "kind": pair.kind, "base": base, "donor": donor, "counted": bool(counted[i])}
        by_name = {CONTENT.get(name, name): answer for name, answer in pair.answers.items()}
        spelled = {n: a if isinstance(a, str) else "".join(map(word, a)) for n, a in by_name.items()}
        row |= {f"answer_{name}": spelled.get(name) for name in ANSWERS}
        pairs.append(row | {f"own_{name}": word(int(answers[i])) for name, answers in runs.model_answers.items()})
    for site in runs.sites:
        where, value = site.edit.row(site.how), "logit_difference" if runs.model_answers else "output_change"
        by_name = predictions(site.how, site.component, runs.predicted) if runs.model_answers else {}
        who = match_prediction(site.answers, by_name) if runs.model_answers else ()
        for i, number in enumerate(site.values):
            answer = {"came": who[i], "answer": word(int(site.answers[i]))} if who else {}
            changes.append({**where, "pair": i + 1, value: finite(number), **answer})
    frames = {
        "measures": frame("measures", rows),
        "pairs": pl.DataFrame(pairs, PAIRS),
        "interchanges": pl.DataFrame(changes, CHANGES),
    }
    return frames, tuple(notes), counted


def predictions(
    how: str, component: str, answers: Mapping[str, Int[np.ndarray, " N"]]
) -> dict[str, Int[np.ndarray, " N"]]:
    """The answer that each name predicts in one direction: 'base' is the patched text's, 'donor' the other's.

    The component comes second, since of two names that predict the same answer the first counts.
    """
    prediction = DONOR if component == "q+k+v" else component
    names = {
        name: name if how == "denoise" else COMPLEMENT[name] for name in (BASE, prediction, *COMPONENTS_ALONE, *ANSWERS)
    }
    return {name: answers[source] for name, source in names.items() if source in answers}


def _sums_over_pairs(
    site: _PatchedSite, runs: PatchedRuns, counted: Bool[np.ndarray, " N"]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The numbers of one site in one direction, each a ratio of sums over some of the pairs that count.

    Each is a measure, every pair's numerator (a boolean for shares) and denominator. Measures are the change of the logit
    difference (of the output if there are no answers), and shares of answers: the other text's, the one predicted for the
    component, the patched text's, and those predicted for other components.
    """
    values = site.values[counted]
    if not runs.model_answers:
        yield "output_change", values, np.ones(len(values))
        return
    text, other = ROLES[site.how]
    yield "logit_change", *logit_ratio_terms(values, runs.differences[text][counted], runs.differences[other][counted])
    named = {name: ids[counted] for name, ids in predictions(site.how, site.component, runs.predicted).items()}
    both = {name: named[name] for name in (BASE, DONOR)}
    # a measure, the prediction that counts as a hit, and the predictions that have to differ
    comparisons = [(DONOR, DONOR, both)]
    if site.component == "q+k+v":
        comparisons.append(("own", DONOR, both))
    elif site.component in named:
        # with four values, two components together predict no new answer
        components = COMPONENTS_ALONE if site.component in COMPONENTS_ALONE else ()
        ours = {name: named[name] for name in (BASE, *components, site.component) if name in named}
        comparisons.append(("own", site.component, ours))
    for measure, component, predicted in comparisons:
        hits, clear = match_answers(site.answers[counted], predicted, component)
        each = np.ones(int(clear.sum()))
        yield measure, hits.pop(component)[clear], each
        if measure == comparisons[-1][0]:
            yield "unchanged", hits.pop(BASE)[clear], each
            for name, hit in hits.items():
                yield f"as {name}", hit[clear], each
