"""Interchange interventions: patch q, k or v of each site from a donor text, pair by pair, and note which answer comes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.files import digest
from trisect.core.subject import AnsweringSubject, Batch, EditedPasses, Parts, Subject, Writer
from trisect.core.tables import REAL, TEXT, WHOLE, NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.patch.preparation import (
    PatchedSides,
    PreparedPairs,
    answer_places,
    patched_sides,
    prepare_pairs,
)
from trisect.experiments.patch.settings import PatchFacts, PatchSettings, read_positions
from trisect.lab.experiment import ROW, Measured, Replicates, RunContext
from trisect.lab.passes import EditedPass, edited_passes, plan_edits
from trisect.measure.intervention import relative_change
from trisect.measure.patching import (
    BASE,
    UNKNOWN,
    LogitChange,
    PairShare,
    hold_later,
    logit_change,
    logit_ratio,
    put_at,
    record,
    share_hits,
    share_of,
    shares,
    which_came,
)
from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.tested import finite
from trisect.text.pairs import ANSWERS, TextPair, given_pairs, read_pairs
from trisect.text.sources import open_labelled

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


class _Interchanged(NamedTuple):
    """One site patched in one direction: what each pair then answered (null: no answers), and the difference of logits.

    `values` are changes of the output where there are no answers.
    """

    how: str
    edit: EditedPass
    answers: Int[np.ndarray, " N"] | None
    values: Float[np.ndarray, " N"]


class _PatchedRuns(NamedTuple):
    """All that was run, as arrays over pairs.

    `stated` are ids of answers as the pairs have them, `predicted` the same with the model's own where base or donor is not
    stated; `own` what it answers to both texts unpatched, `differences` the base's answer's logit less the donor's there; `tokens`
    both texts of every pair side by side, as rows of that table.
    """

    pairs: tuple[TextPair, ...]
    stated: Mapping[str, Int[np.ndarray, " N"]]
    predicted: Mapping[str, Int[np.ndarray, " N"]]
    own: Mapping[str, Int[np.ndarray, " N"]]
    differences: Mapping[str, Float[np.ndarray, " N"]]
    done: tuple[_Interchanged, ...]
    tokens: tuple[NewRow, ...]
    words: Mapping[int, str]


def tables(
    subject: str, runs: _PatchedRuns, settings: PatchSettings
) -> tuple[dict[str, pl.DataFrame], tuple[str, ...], int]:
    """Tables by name, what a reader has to know, and how many pairs count.

    `measures`: a row per site and number; `pairs`, `tokens` and `interchanges`: what was read and what came.
    """
    counted = _counted_pairs(runs, settings.answered)
    rows = []
    for name, mine in runs.own.items():  # how many texts the model answers as stated, unpatched
        if name in runs.stated:
            share = share_of((mine == runs.stated[name])[runs.stated[name] != UNKNOWN])
            rows.append({"subject": subject, "measure": "answered", "group": name} | _row(share))
    for one in runs.done:
        where = where_patched(one)
        rows += [{"subject": subject} | where | row for row in _site(one, runs, counted, settings.seed)]
    notes = []
    if settings.answered and not counted.all():
        left = int((~counted).sum())
        notes.append(
            f"Pairs of which the model does not answer both texts as stated were left out: {left} of {len(counted)}."
        )
    if runs.own and (alike := int((runs.predicted["base"] == runs.predicted["donor"]).sum())):
        notes.append(
            f"Pairs whose base and donor have the same answer, which say nothing about the way to the donor: {alike} of {len(counted)}."
        )
    pairs = []
    for i, pair in enumerate(runs.pairs):
        texts = (text if isinstance(text, str) else " → ".join(text) for text in (pair.base, pair.donor))
        row = (
            dict.fromkeys(PAIRS) | {"pair": i + 1, "kind": pair.kind} | dict(zip(("base", "donor"), texts, strict=True))
        )
        row |= {f"answer_{name}": pair.answers.get(name) for name in ANSWERS} | {"counted": bool(counted[i])}
        pairs.append(row | {f"own_{name}": runs.words.get(int(mine[i])) for name, mine in runs.own.items()})
    made = {
        "measures": frame("measures", rows),
        "pairs": pl.DataFrame(pairs, PAIRS, orient="row"),
        "tokens": pl.DataFrame(list(runs.tokens), TOKENS, orient="row"),
        "interchanges": pl.DataFrame([row for one in runs.done for row in _came(one, runs)], CHANGES, orient="row"),
    }
    return made, tuple(notes), int(counted.sum())


def predictions(
    how: str, component: str, answers: Mapping[str, Int[np.ndarray, " N"]]
) -> dict[str, Int[np.ndarray, " N"]]:
    """Which answer each name predicts in one direction: 'base' is the patched text's own, 'donor' that of the other.

    The component comes second, since where two predict the same answer the first is named.
    """
    own = DONOR if component == "q+k+v" else component
    found = {}
    for name in dict.fromkeys([BASE, own, *SINGLE, *ANSWERS]):
        source = name if how == "denoise" else COMPLEMENT[name]
        if source in answers:
            found[name] = answers[source]
    return found


def _counted_pairs(runs: _PatchedRuns, answered: bool) -> Bool[np.ndarray, " N"]:
    """Pairs that count: with `answered` those whose two texts the model answers as stated."""
    right = np.ones(len(runs.pairs), dtype=bool)
    for name, mine in runs.own.items() if answered else ():
        known = runs.stated.get(name, np.full(len(mine), UNKNOWN))
        right &= (mine == known) | (known == UNKNOWN)
    return right


def where_patched(one: _Interchanged) -> NewRow:
    """The columns that say which site was patched, and in which direction."""
    heads, several = one.edit.site.heads, len(one.edit.addresses) > 1
    single = heads is not None and len(heads) == 1
    layers, _, spelt = str(one.edit.site).rpartition("@")[2].partition(".h")
    some = f", layers {layers}" * several + ("" if heads is None or single else f", heads {spelt}")
    return {
        "stack": one.edit.address.stack,
        "layer": None if several else one.edit.address.layer,
        "head": heads[0] if single and heads else None,
        "component": "+".join(one.edit.site.components),
        "group": f"{one.how}{some}",
    }


def _site(one: _Interchanged, runs: _PatchedRuns, counted: Bool[np.ndarray, " N"], seed: int) -> list[NewRow]:
    """The numbers of one site in one direction."""
    values = one.values[counted]
    if one.answers is None:
        ends = percentile_interval(drawn_ratios(values[:, None], np.ones(len(values)), seed), len(values))
        row = {
            "value": finite(values.mean()),
            "low": finite(ends.low[0]),
            "high": finite(ends.high[0]),
            "n": len(values),
        }
        return [{"measure": "output_change"} | row]
    own, other = ROLES[one.how]
    ends = (runs.differences[own][counted], runs.differences[other][counted])
    found = [{"measure": "logit_change"} | _row(logit_change(values, *ends, seed))]
    asked = compared(one, runs, counted)
    scored = [shares(one.answers[counted], of.predicted, of.component) for of in asked]
    found += [{"measure": of.measure} | _row(share.own) for of, share in zip(asked, scored, strict=True)]
    found.append({"measure": "unchanged"} | _row(scored[-1].unchanged))
    return [*found, *({"measure": f"as {name}"} | _row(share) for name, share in scored[-1].others.items())]


class _ComparedAnswers(NamedTuple):
    """A share of answers: the column `measure` of its row, whose prediction is counted, and the predictions that have to differ."""

    measure: str
    component: str
    predicted: Mapping[str, Int[np.ndarray, " N"]]


def compared(one: _Interchanged, runs: _PatchedRuns, counted: Bool[np.ndarray, " P"]) -> list[_ComparedAnswers]:
    """Shares of one site in one direction: of the other text's answer and, where it has one, of the component's own."""
    component = "+".join(one.edit.site.components)
    named = {name: of[counted] for name, of in predictions(one.how, component, runs.predicted).items()}
    both = {name: named[name] for name in (BASE, DONOR)}
    found = [_ComparedAnswers(DONOR, DONOR, both)]
    if component == "q+k+v":
        found.append(_ComparedAnswers("own", DONOR, both))
    elif component in named:
        beside = SINGLE if component in SINGLE else ()  # four values leave a joint component no answer of its own
        ours = {name: named[name] for name in (BASE, *beside, component) if name in named}
        found.append(_ComparedAnswers("own", component, ours))
    return found


def _row(found: PairShare | LogitChange) -> NewRow:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def _came(one: _Interchanged, runs: _PatchedRuns) -> list[NewRow]:
    """What came of every pair."""
    where, count = where_patched(one), len(runs.pairs)
    came: Sequence[str | None] = [None] * count
    if one.answers is not None:
        came = which_came(one.answers, predictions(one.how, "+".join(one.edit.site.components), runs.predicted))
    value = "output_change" if one.answers is None else "logit_difference"
    return [
        dict.fromkeys(CHANGES)
        | where
        | {"pair": i + 1, "came": came[i], value: finite(one.values[i])}
        | {"answer": None if one.answers is None else runs.words.get(int(one.answers[i]))}
        for i in range(count)
    ]


def pair_replicates(
    runs: _PatchedRuns, counted: Bool[np.ndarray, " P"], seed: int
) -> Mapping[tuple[str | float | int | bool | None, ...], Replicates]:
    """Shares of the own and of the other text's answer, and changes of logits or outputs, by what names their rows.

    Each is a ratio of sums over some of the pairs; those over the same pairs with the same sum below meet the same draws.
    """
    together: dict[tuple[bytes, bytes], list[tuple[NewRow, np.ndarray, np.ndarray, np.ndarray, bool]]] = {}
    for one in runs.done:
        values = one.values[counted]
        ratios = [("output_change", values, np.ones(len(values)), np.ones(len(values), dtype=bool), False)]
        if one.answers is not None:
            own, other = ROLES[one.how]
            ends = (runs.differences[own][counted], runs.differences[other][counted])
            ratios = [("logit_change", *logit_ratio(values, *ends), False)]
            for measure, component, predicted in compared(one, runs, counted):
                hits, clear = share_hits(one.answers[counted], predicted, component)
                ratios.append((measure, hits[component][clear], np.ones(int(clear.sum())), clear, True))
        for measure, above, below, kept, is_share in ratios:
            pairs = counted.copy()
            pairs[counted] = kept
            row, below = where_patched(one) | {"measure": measure}, below.astype(float)
            of_pairs = together.setdefault((pairs.tobytes(), below.tobytes()), [])
            of_pairs.append((row, above.astype(float), below, pairs, is_share))
    found: dict[tuple[str | float | int | bool | None, ...], Replicates] = {}
    for ratios in together.values():
        _, _, below, pairs, _ = ratios[0]
        if len(below) < 2 or below.sum() == 0:
            continue
        which = digest(json.dumps([[p.base, p.donor] for p, on in zip(runs.pairs, pairs, strict=True) if on]), 8)
        drawn = drawn_ratios(np.stack([above for _, above, *_ in ratios], 1), below, seed)
        for column, (row, above, *_, is_share) in enumerate(ratios):
            each = above if is_share else None  # of a share each pair adds 0 or 1
            key = tuple(row.get(name) for name in ROW)
            found[key] = Replicates(drawn[:, column], len(below), which, "pair", each)
    return found


ROOM = 64 * 2**20  # bytes of another text's q, k and v that are held at once: a layer's at least
FEW = 2  # edits of a batch for which one more pass, to begin from, would cost more than it spares


class _ReadText(NamedTuple):
    """One side of some pairs as the model reads it unpatched: batch, where it answers, what it gives there, q, k and v.

    `outputs` are logits [B 1 V] at `places`, or all outputs [B T D] where the model gives no answers (`places` null).
    """

    batch: Batch
    places: Int[Tensor, " B"] | None
    outputs: Float[Tensor, "B T V"]
    parts: Mapping[Address, Parts]


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


def measure(settings: PatchSettings, context: RunContext) -> Measured[PatchFacts]:
    """Patch each site of every pair, one pass each, in one layer or one head at a time, or all that a site names.

    A patch puts what the other text has at the site in place of the patched text's own, at the chosen positions, and lets
    the model go on. With the path 'direct' q, k and v of all layers after the site are put back to what they were without
    the patch: what is left is what the layer's own attention output does through the residual stream and the feed-forward
    networks, and nothing that a later layer's attention carries on; of a site of several layers those after its first.
    Raises SiteError, SpecError, CorpusError, ModelError.
    """
    subject = answering(context.subject)
    wanted = read_positions(settings.positions)
    edits, prepared = _prepared(settings, subject)
    found, passes = _Gathered(prepared, edits, wanted), edited_passes(subject)
    directions = ("denoise", "noise") if settings.how == "both" else (settings.how,)
    order = list(subject.shape.heads)
    in_order = sorted(enumerate(edits), key=lambda one: order.index(one[1].address))
    edited = tuple(dict.fromkeys(address for _, edit in in_order for address in edit.addresses))
    wanted_parts: dict[str, tuple[Address, ...]] = {ROLES[how][1]: edited for how in directions}
    if settings.path == "direct":  # the patched text's own are put back in all later layers
        wanted_parts = {"base": tuple(order), "donor": tuple(order)}
    room = None if settings.path == "direct" or settings.per == "site" else ROOM
    with context.progress(f"patching {len(edits)} sites") as step:
        for start in range(0, len(prepared.pairs), settings.batch):
            stop = min(start + settings.batch, len(prepared.pairs))
            texts = _read(subject, prepared.pairs[start:stop], wanted_parts, room)
            found.note(texts, start)
            for how in directions:
                if len(edits) > FEW:
                    passes.begin(texts[ROLES[how][0]].batch)
                for number, edit in in_order:
                    _hold(subject, texts, ROLES[how][1], edit.address, edited)
                    made = _patched(subject, passes, texts, how, edit, wanted, settings.path)
                    found.keep((how, number), made, texts[ROLES[how][0]], start)
            step(stop, len(prepared.pairs))
    runs = found.runs(subject, directions)
    made, noted, counted = tables(subject.name, runs, settings)
    facts = _facts(subject, prepared, runs, settings, counted)
    notes = (*prepared.notes, *noted, *subject.notes, *passes.notes)
    drawn = pair_replicates(runs, _counted_pairs(runs, settings.answered), settings.seed)
    return Measured(made, facts, notes, replicates=drawn)


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
) -> dict[str, _ReadText]:
    """Both texts of some pairs, each read once without a patch, with q, k and v at what is wanted of it and there is room for."""
    found = {}
    for name in ("base", "donor"):
        texts = [pair.base if name == "base" else pair.donor for pair in pairs]
        batch = next(iter(subject.batches(texts, len(texts))))
        places = None if subject.objective == "output" else answer_places(batch, subject.mask)
        found[name] = _ReadText(batch, places, *record(subject, batch, wanted.get(name, ()), places, room))
    return found


def _hold(
    subject: AnsweringSubject, texts: dict[str, _ReadText], name: str, address: Address, edited: Sequence[Address]
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
    texts: Mapping[str, _ReadText],
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
        put, held = put_at(here, other.parts[address], sides.queries(stack), sides.keys(stack)), write.get(address)
        write[address] = put if held is None else lambda parts, held=held, put=put: put(held(parts))
    return passes.outputs(run.batch, write, run.places)


@dataclass
class _Gathered:
    """What is gathered pair by pair: by direction and edit, answers and differences of logits (or changes of the output)."""

    prepared: PreparedPairs
    edits: Sequence[EditedPass]
    wanted: tuple[int, ...] | str
    answers: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)
    values: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)
    own: dict[str, list[Tensor]] = field(default_factory=dict)
    differences: dict[str, list[Tensor]] = field(default_factory=dict)
    tokens: list[NewRow] = field(default_factory=list)

    def note(self, texts: Mapping[str, _ReadText], start: int) -> None:
        """What the model answers to both texts by itself, how far apart it holds their answers, and the texts token by token."""
        base, donor = texts["base"], texts["donor"]
        if base.places is not None:
            for name, text in texts.items():
                self.own.setdefault(name, []).append(text.outputs[:, 0].argmax(-1))
            for name, text in texts.items():
                self.differences.setdefault(name, []).append(self._difference(text.outputs, start))
        sides = patched_sides(base.batch, donor.batch, self.wanted, base.places)
        self.tokens += _token_rows(texts, self.edits, sides, start)

    def keep(self, key: tuple[str, int], made: Float[Tensor, "B T V"], run: _ReadText, start: int) -> None:
        """What came of one edit, the patched text being `run`."""
        if run.places is None:
            self.values.setdefault(key, []).append(output_change(made, run.outputs, run.batch))
            return
        self.answers.setdefault(key, []).append(made[:, 0].argmax(-1))
        self.values.setdefault(key, []).append(self._difference(made, start))

    def _difference(self, outputs: Float[Tensor, "B 1 V"], start: int) -> Float[Tensor, " B"]:
        """How far the logit of the base's answer lies above that of the donor's, of the latest batch.

        Answers are as stated, else what the model gives by itself.
        """
        logits, found = outputs[:, 0].double(), []
        for name in ("base", "donor"):
            mine, stated = self.own[name][-1], self.prepared.answers.get(name)
            ids = mine if stated is None else torch.from_numpy(stated[start : start + len(mine)])
            found.append(logits.gather(1, torch.where(ids == UNKNOWN, mine, ids)[:, None])[:, 0])
        return found[0] - found[1]

    def runs(self, subject: AnsweringSubject, directions: Sequence[str]) -> _PatchedRuns:
        """Everything as arrays over pairs."""
        own = {name: torch.cat(parts).numpy() for name, parts in self.own.items()}
        stated = {name: np.asarray(ids) for name, ids in self.prepared.answers.items()}
        completed = dict(stated)
        for name, mine in own.items():
            known = stated.get(name, np.full(len(mine), UNKNOWN))
            completed[name] = np.where(known == UNKNOWN, mine, known)
        done = []
        for how, (number, edit) in product(directions, enumerate(self.edits)):
            answers, values = self.answers.get((how, number)), torch.cat(self.values[how, number]).numpy()
            done.append(_Interchanged(how, edit, None if answers is None else torch.cat(answers).numpy(), values))
        differences = {name: torch.cat(parts).numpy() for name, parts in self.differences.items()}
        ids = {int(i) for of in (*own.values(), *(one.answers for one in done if one.answers is not None)) for i in of}
        words, pairs = {i: subject.token(i) for i in sorted(ids)}, self.prepared.pairs
        return _PatchedRuns(pairs, stated, completed, own, differences, tuple(done), tuple(self.tokens), words)


def output_change(made: Float[Tensor, "B T D"], clean: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, " B"]:
    """|y − clean|² / |clean|² of the outputs, averaged over a text's real positions; without positions, of the one output."""
    new, old = (t.flatten(2) if t.dim() > 2 else t[:, None] for t in (made, clean))
    real = batch.queries("dec").real
    real = real if real.shape == old.shape[:2] else torch.ones(old.shape[:2], dtype=torch.bool)
    return torch.where(real, relative_change(new, old), 0.0).sum(1) / real.sum(1)


def _token_rows(
    texts: Mapping[str, _ReadText], edits: Sequence[EditedPass], sides: PatchedSides, start: int
) -> Iterator[NewRow]:
    """Both texts of each pair side by side, token by token, with what is patched where."""
    base, donor = (texts[name] for name in ("base", "donor"))
    stacks = {(t.address.stack, t.component) for edit in edits for t in edit.targets}
    for name, mask in (("source", sides.source), ("target", sides.target)):
        run = base.batch.source if name == "source" else base.batch.target
        other = donor.batch.source if name == "source" else donor.batch.target
        if run is None or other is None or mask is None:
            continue
        written = []
        for c in "qkv":
            side_of = base.batch.queries if c == "q" else base.batch.keys
            of = [side_of(stack) for stack, part in stacks if part == c]
            if any(("target" if side is base.batch.target else "source") == name for side in of):
                written.append(c)
        answers = base.places if base.places is not None and (name == "target" or base.batch.target is None) else None
        for row in range(len(run.tokens)):
            own, others = (
                [token for token, real in zip(side.tokens[row], side.real[row].tolist(), strict=True) if real]
                for side in (run, other)
            )
            patched = ["+".join(written) if on else "" for on in mask[row][run.real[row]].tolist()]
            answer = None if answers is None else int(answers[row])
            for place, (token, donors, on) in enumerate(zip_longest(own, others, patched)):
                named: NewRow = {"pair": start + row + 1, "side": name, "position": place + 1}
                yield named | {"base": token, "donor": donors, "patched": on or "", "answers": place == answer}


def _facts(
    subject: AnsweringSubject, prepared: PreparedPairs, runs: _PatchedRuns, settings: PatchSettings, counted: int
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
