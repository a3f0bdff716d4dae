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
from trisect.core.tables import REAL, ROW, TEXT, WHOLE, NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.patch.preparation import (
    PatchedSides,
    PreparedPairs,
    answer_places,
    patched_sides,
    prepare_pairs,
    stated_pairs,
)
from trisect.experiments.patch.settings import PatchFacts, PatchSettings, read_positions
from trisect.lab.experiment import Measured, Replicates, RunContext
from trisect.lab.passes import EditedPass, edited_passes, plan_edits
from trisect.measure.intervention import relative_change
from trisect.measure.patching import (
    BASE,
    UNKNOWN,
    hold_later,
    logit_ratio,
    put_at,
    ratio_of_sums,
    record,
    share_hits,
    share_of,
    which_came,
)
from trisect.stats.bootstrap import bootstrap_ratios
from trisect.stats.tested import finite
from trisect.text.pairs import ANSWERS, TextPair
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
REPLICATED = ("own", DONOR, "logit_change", "output_change")  # measures whose differences between models are tested
ROOM = 64 * 2**20  # bytes of another text's q, k and v that are held at once: a layer's at least
FEW = 2  # edits of a batch for which one more pass, to begin from, would cost more than it spares


class _ReadText(NamedTuple):
    """One side of some pairs as the model reads it unpatched: batch, where it answers, what it gives there, q, k and v.

    `outputs` are logits [B 1 V] at `places`, or all outputs [B T D] where the model gives no answers (`places` None).
    """

    batch: Batch
    places: Int[Tensor, " B"] | None
    outputs: Float[Tensor, "B T V"]
    parts: Mapping[Address, Parts]


class _PatchedSite(NamedTuple):
    """One site patched in one direction: the id that each pair then answered, and the difference of logits.

    `values` are changes of the output where there are no answers.
    """

    how: str
    edit: EditedPass
    answers: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]

    @property
    def component(self) -> str:
        """What is patched, joined."""
        return "+".join(self.edit.site.components)


@dataclass(eq=False)
class _PatchedRuns:
    """All that is run, pair by pair, as arrays over the N pairs.

    `predicted` are ids of answers as the pairs have them, the model's own where base or donor is not stated; `own` what it
    answers to both texts unpatched (empty: it gives no answers), `differences` the base's answer's logit less the donor's
    there; `tokens` both texts of every pair side by side, as rows of that table.
    """

    prepared: PreparedPairs
    sites: Sequence[_PatchedSite]
    predicted: dict[str, Int[np.ndarray, " N"]]
    own: dict[str, Int[np.ndarray, " N"]] = field(default_factory=dict)
    differences: dict[str, Float[np.ndarray, " N"]] = field(default_factory=dict)
    tokens: list[NewRow] = field(default_factory=list)

    def note(self, texts: Mapping[str, _ReadText], part: slice) -> None:
        """What the model answers to both texts by itself, and how far apart it holds their answers."""
        count = len(self.prepared.pairs)
        for name, text in texts.items() if texts["base"].places is not None else ():
            mine = text.outputs[:, 0].argmax(-1).numpy()
            self.own.setdefault(name, np.zeros(count, int))[part] = mine
            known = self.predicted.setdefault(name, np.full(count, UNKNOWN))
            known[part] = np.where(known[part] == UNKNOWN, mine, known[part])
        for name, text in texts.items() if texts["base"].places is not None else ():
            self.differences.setdefault(name, np.zeros(count))[part] = self._difference(text.outputs, part)

    def keep(self, one: _PatchedSite, made: Float[Tensor, "B T V"], run: _ReadText, part: slice) -> None:
        """What came of one patch, the patched text being `run`."""
        if run.places is None:
            one.values[part] = output_change(made, run.outputs, run.batch).numpy()
        else:
            one.answers[part], one.values[part] = made[:, 0].argmax(-1).numpy(), self._difference(made, part)

    def _difference(self, outputs: Float[Tensor, "B 1 V"], part: slice) -> Float[np.ndarray, " B"]:
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


def check(settings: PatchSettings) -> None:
    """Raise CorpusError where the pairs or the text that are named or given cannot be read, whatever the model is."""
    if settings.given is None or isinstance(settings.given, list | tuple):  # else they can be gone through once
        stated_pairs(settings)
    if settings.corpus is not None:
        open_labelled(settings.corpus, settings.split, settings.reader, bare=True)


def check_model(settings: PatchSettings, subject: Subject) -> None:
    """Raise TrisectError where the model lacks a site, cannot do the task, or splits a pair's texts so that they do not fit."""
    _prepared(settings, subject)


def _prepared(
    settings: PatchSettings, subject: Subject
) -> tuple[AnsweringSubject, tuple[EditedPass, ...], PreparedPairs]:
    """The subject, what is edited, and the pairs, each checked against the model."""
    if not isinstance(subject, AnsweringSubject):
        known = "It says what its loss is, and not what it predicts."
        raise ModelError(f"{subject.name} cannot be patched.", known, "Give a model that trisect.load gives.")
    edits = plan_edits(subject.shape, settings.sites, settings.per)
    return subject, edits, prepare_pairs(settings, subject, [target for edit in edits for target in edit.targets])


def measure(settings: PatchSettings, context: RunContext) -> Measured[PatchFacts]:
    """Patch each site of every pair, one pass each, in one layer or one head at a time, or all that a site names.

    A patch puts what the other text has at the site in place of the patched text's own, at the chosen positions, and lets
    the model go on. With the path 'direct' q, k and v of all layers after the site are put back to what they were without
    the patch: what is left is what the layer's own attention output does through the residual stream and the feed-forward
    networks, and nothing that a later layer's attention carries on; of a site of several layers those after its first.
    Raises SiteError, SpecError, CorpusError, ModelError.
    """
    subject, edits, prepared = _prepared(settings, context.subject)
    positions, passes = read_positions(settings.positions), edited_passes(subject)
    directions = ("denoise", "noise") if settings.how == "both" else (settings.how,)
    count, order = len(prepared.pairs), list(subject.shape.heads)
    sites = [_PatchedSite(how, edit, np.zeros(count, int), np.zeros(count)) for how, edit in product(directions, edits)]
    runs = _PatchedRuns(prepared, sites, {name: ids.copy() for name, ids in prepared.answers.items()})
    in_order = sorted(sites, key=lambda one: order.index(one.edit.address))
    edited = tuple(dict.fromkeys(address for one in in_order for address in one.edit.addresses))
    wanted: dict[str, tuple[Address, ...]] = {ROLES[how][1]: edited for how in directions}
    later = order if settings.path == "direct" else ()  # where the patched text's own are put back
    if later:
        wanted = {"base": tuple(order), "donor": tuple(order)}
    room = None if later or settings.per == "site" else ROOM
    with context.progress(f"patching {len(edits)} sites") as step:
        for start in range(0, count, settings.batch):
            part = slice(start, min(start + settings.batch, count))
            texts = _read(subject, prepared.pairs[part], wanted, room)
            runs.note(texts, part)
            sides = patched_sides(texts["base"].batch, texts["donor"].batch, positions, texts["base"].places)
            runs.tokens += _token_rows(texts, edits, sides, start)
            for how in directions:
                run, other = ROLES[how]
                if len(edits) > FEW:
                    passes.begin(texts[run].batch)
                for one in (one for one in in_order if one.how == how):
                    if one.edit.address not in texts[other].parts:
                        _hold(subject, texts, other, edited[edited.index(one.edit.address) :])
                    made = _patched(passes, texts[run], texts[other], one.edit, positions, later)
                    runs.keep(one, made, texts[run], part)
            step(part.stop, count)
    whole, noted, counted = tables(subject, runs, settings)
    facts = PatchFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        "answers" if runs.own else "output",
        prepared.name,
        prepared.fingerprint,
        count,
        int(counted.sum()),
        tuple(name for name in SINGLE if name in prepared.answers),
        None if settings.sites is None else tuple(map(str, settings.sites)),
        settings.per,
        settings.positions,
        settings.path,
        settings.how,
        settings.answered,
        settings.seed,
    )
    notes = (*prepared.notes, *noted, *subject.notes, *passes.notes)
    return Measured(whole, facts, notes, replicates=pair_replicates(runs, counted, settings.seed))


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


def _hold(subject: AnsweringSubject, texts: dict[str, _ReadText], name: str, later: Sequence[Address]) -> None:
    """Read again what a text has at the first of some addresses, and at as many of the others as there is room for."""
    texts[name] = text = texts[name]._replace(parts={})  # the earlier ones are let go before others are read
    texts[name] = text._replace(parts=record(subject, text.batch, later, text.places, ROOM).parts)


def _patched(
    passes: EditedPasses,
    run: _ReadText,
    other: _ReadText,
    edit: EditedPass,
    positions: tuple[int, ...] | str,
    later: Sequence[Address],
) -> Float[Tensor, "B T V"]:
    """What one text gives with one site from the other, its own q, k and v being put back in `later` layers than the site's."""
    sides = patched_sides(run.batch, other.batch, positions, run.places)
    write: dict[Address, Writer] = dict(hold_later(run.parts, later, edit.address)) if later else {}
    for address in edit.addresses:
        here, stack = [target for target in edit.targets if target.address == address], address.stack
        put, held = put_at(here, other.parts[address], sides.queries(stack), sides.keys(stack)), write.get(address)
        write[address] = put if held is None else lambda parts, held=held, put=put: put(held(parts))
    return passes.outputs(run.batch, write, run.places)


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
    base, donor = (texts[name].batch for name in ("base", "donor"))
    places = texts["base"].places
    stacks = {(t.address.stack, t.component) for edit in edits for t in edit.targets}
    for name in ("source", "target"):
        run, other, mask = (getattr(of, name) for of in (base, donor, sides))
        if run is None or other is None or mask is None:
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
                named: NewRow = {"pair": start + row + 1, "side": name, "position": place + 1}
                yield named | {"base": token, "donor": donors, "patched": on or "", "answers": place == answer}


def tables(
    subject: AnsweringSubject, runs: _PatchedRuns, settings: PatchSettings
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
    if runs.own and (alike := int((runs.predicted["base"] == runs.predicted["donor"]).sum())):
        notes.append(
            f"Pairs whose base and donor have the same answer, which say nothing about the way to the donor: {alike} of {len(counted)}."
        )
    words, pairs, came = dict[int, str](), list[NewRow](), list[NewRow]()

    def word(number: int) -> str:
        if number not in words:
            words[number] = subject.token(number)
        return words[number]

    for i, pair in enumerate(runs.prepared.pairs):
        base, donor = (text if isinstance(text, str) else " → ".join(text) for text in (pair.base, pair.donor))
        row: NewRow = {"pair": i + 1, "kind": pair.kind, "base": base, "donor": donor, "counted": bool(counted[i])}
        row |= {f"answer_{name}": pair.answers.get(name) for name in ANSWERS}
        pairs.append(row | {f"own_{name}": word(int(mine[i])) for name, mine in runs.own.items()})
    for one in runs.sites:
        where, value = one.edit.row(one.how), "logit_difference" if runs.own else "output_change"
        who = which_came(one.answers, predictions(one.how, one.component, runs.predicted)) if runs.own else ()
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


def sums_over_pairs(one: _PatchedSite, runs: _PatchedRuns, counted: Bool[np.ndarray, " N"]) -> Iterator[SumsOverPairs]:
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
    runs: _PatchedRuns, counted: Bool[np.ndarray, " P"], seed: int
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
        texts = [[pair.base, pair.donor] for pair, on in zip(runs.prepared.pairs, pairs, strict=True) if on]
        mark = digest(json.dumps(texts), 8)
        drawn = bootstrap_ratios(np.stack([above.astype(float) for _, (_, above, *_) in ratios], 1), below, seed)
        for column, (row, (_, above, *_)) in enumerate(ratios):
            each = above.astype(float) if above.dtype == bool else None  # of a share each pair adds 0 or 1
            key = tuple(row.get(name) for name in ROW)
            replicates[key] = Replicates(drawn[:, column], len(below), mark, "pair", each)
    return replicates
