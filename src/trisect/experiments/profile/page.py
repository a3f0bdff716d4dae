"""The page of a profile: what queries, keys and values encode of each label, by layer and by head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from trisect.core.files import Json
from trisect.core.finding import About, Estimate, Finding
from trisect.core.trace import Address, crosses, spell_layers
from trisect.papers import profile
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import number_words
from trisect.report.maps import grid, label_maps
from trisect.report.measures import Bar, MeasuredValue, Measures, layer_figure
from trisect.report.sheet import (
    Section,
    Sheet,
    Table,
    present,
    provenance,
    quiet,
    small_multiples,
    verdict_findings,
)
from trisect.stats.significance import ALPHA

if TYPE_CHECKING:
    from trisect.experiments.profile.settings import ProfileFacts


COMPONENTS = ("q", "k", "v")
PAIRS = ("q-v", "k-v", "q-k")
HELD_WEIGHTS = "weights held"
EXCHANGE_CHANGE, KINDS = "exchange_change", ("weights free", HELD_WEIGHTS)
ERASURE_MEASURES = ("erase_excess_nats", "erase_excess_share")
MISSING = MeasuredValue("", "", None, None, None, "", None, None, float("nan"))


class _ProfileGain(NamedTuple):
    """The excess of the mean over heads over random maps, with its interval, and p after Holm."""

    mean: float
    low: float | None
    high: float | None
    p_holm: float
    n: int

    @property
    def side(self) -> int:
        """1 above random maps after Holm's correction, −1 below, else 0."""
        if not self.p_holm < ALPHA:
            return 0
        return 1 if self.mean > 0 else -1


@dataclass(frozen=True, eq=False)
class ProfileNumbers:
    """The table `measures`, indexed; `spots` are layers, `labels` the labels in their order."""

    measures: Measures
    spots: tuple[Address, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, measures: pl.DataFrame, labels: tuple[str, ...] = ()) -> ProfileNumbers:
        """Index the rows; labels in the given order, else in order of appearance."""
        rows = Measures.of(measures, missing=True)
        probed = [row for row in rows if row.measure.startswith("profile_") and row.at is None]
        spots = sorted({Address(row.stack, row.layer) for row in probed if row.layer is not None})
        return cls(rows, tuple(spots), tuple(dict.fromkeys([*labels, *(row.group or "" for row in probed)])))

    def get(
        self, spot: Address, label: str, measure: str, component: str | None = None, head: int | None = None
    ) -> MeasuredValue:
        """One number, NaN if missing; `input` and `majority` are those of the component's own words."""
        if measure in ("input", "majority") and not self.apart:
            component = None
        return self.measures.get(f"profile_{measure}", component, label, spot.layer, head, spot.stack) or MISSING

    @property
    def apart(self) -> bool:
        """Whether q reads other words than k and v: in cross-attention."""
        return crosses(self.spots[0].stack)

    def gain(self, label: str, component: str, spot: Address | None = None, measure: str = "gain") -> _ProfileGain:
        """A component's excess over random maps in one layer, or over all layers; for a pair, the measure `difference`."""
        stack, layer = (self.spots[0].stack, None) if spot is None else spot
        row, p = (
            self.measures.get(f"profile_{measure}{tail}", component, label, layer, stack=stack) or MISSING
            for tail in ("", "_p_holm")
        )
        return _ProfileGain(row.mean or 0.0, row.low, row.high, 1.0 if p.mean is None else p.value, row.n or 0)

    def stage(self, at: int, component: str, label: str, layer: int | None = None) -> MeasuredValue:
        """A gain at a checkpoint, by the checkpoint's number from 0."""
        stack = self.measures.rows[0].stack
        return self.measures.get("profile_stage_gain", component, label, layer, None, stack, float(at)) or MISSING

    def input_gain(self, spot: Address, label: str, component: str | None = None) -> float:
        """The accuracy from all of a component's input above the most frequent class; without a layer, the largest."""
        each = COMPONENTS if component is None else (component,)
        return max(self.get(spot, label, "input", c).value - self.get(spot, label, "majority", c).value for c in each)

    def heads(self, component: str, spot: Address | None = None) -> int:
        """The number of heads of a component in a layer or in all; heads with shared weights count once."""
        return self.gain(self.labels[0], component, spot).n

    def layer_rows(self) -> list[dict[str, Json]]:
        """A row for each layer and label."""
        rows: list[dict[str, Json]] = []
        for label, spot in product(self.labels, self.spots):
            q, v = (self.get(spot, label, "random", c) for c in ("q", "v"))
            row: dict[str, Json] = {"stack": spot.stack, "layer": spot.layer, "label": label}
            row |= {c: self.get(spot, label, "accuracy", c).mean for c in COMPONENTS}
            row |= {"random": q.mean, "random_low": q.low, "random_high": q.high, "random_v": v.mean}
            for measure in ("input", "majority"):
                row |= {
                    f"{measure}{tail}": self.get(spot, label, measure, c).mean for c, tail in (("q", ""), ("v", "_v"))
                }
            row["gains"] = {c: self.gain(label, c, spot)._asdict() for c in COMPONENTS}
            row["differences"] = {p: self.gain(label, p, spot, "difference")._asdict() for p in PAIRS}
            rows.append(row)
        return rows

    def head_rows(self) -> list[dict[str, Json]]:
        """A row for each head, component and label."""
        measures = ("accuracy", "bits", "z", "p", "p_holm", "among")
        return [
            {"stack": spot.stack, "layer": spot.layer, "head": head, "component": component, "label": label}
            | {"random": self.get(spot, label, "random", component).mean}
            | {m: self.get(spot, label, m, component, head).mean for m in measures}
            for label, spot, component, head in self.each_head()
        ]

    def each_head(self) -> list[tuple[str, Address, str, int]]:
        """Every label, layer, component and head."""
        return [
            (label, spot, component, head)
            for label, spot, component in product(self.labels, self.spots, COMPONENTS)
            for head in range(1, self.heads(component, spot) + 1)
        ]


MARGIN = profile.MARGIN
TABLE_HEADS = 12  # heads in the table of those that differ most
CROSS = "cross"
LABELS = {
    "word": "which word it is (identity)",
    "position": "its position in the text (position)",
    "frequency": "its frequency (frequency)",
    "pos": "its part of speech (pos)",
    "dep": "its dependency relation (dep)",
    "previous": "the part of speech of the word before (previous)",
    "next": "the part of speech of the next word (next)",
    "head": "the part of speech of its syntactic head (head)",
    "linked": "the word of the other side that it is linked to (linked)",
    "linked.position": "the position of the word that it is linked to (linked.position)",
}
SHORT_LABELS = {  # of the map's columns
    "word": "identity",
    "pos": "POS",
    "dep": "dependency",
    "previous": "POS before",
    "next": "POS after",
    "head": "POS of head",
}
UNIT = "accuracy"
NOT_CARRIED = (
    f"Not carried (a linear probe of the whole input is less than {MARGIN:g} better than the most frequent class), so that there is "
    "nothing to keep or to drop"
)
DIFFERENCES = "Differences of q from k and v are of gains over random maps, since their words are not the same"
GAIN_CAPTION = (
    "Accuracy from a head's own queries, keys or values minus that from random maps of the same input, mean over all heads with its 95 % "
    "interval: right of 0 a label is kept, left of it dropped."
)
REFERENCES = (
    "John Hewitt, Percy Liang. Designing and Interpreting Probes with Control Tasks. EMNLP 2019.",
    "Yilun Xu et al. A Theory of Usable Information under Computational Constraints. ICLR 2020.",
    "Ronald Fisher. The Use of Multiple Measurements in Taxonomic Problems. Annals of Eugenics 7, 1936.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[ProfileFacts]) -> Sheet:
    """The page from the tables measures and claims."""
    facts, cross = about.facts, about.facts.attention == CROSS
    numbers = ProfileNumbers.of(tables["measures"], facts.labels)
    name = words.display_name(facts.subject, about.command)
    of_each, unit, sample = f"words of {facts.corpus}", "text", f"{words.count(facts.words)} words"
    classes = [f"{n} classes" for n in facts.classes]
    if cross:
        unit = "pair"
        sample = f"{words.count(facts.words)} words of the target (q) and {words.count(facts.source_words)} of the source (k, v)"
        sides = zip(facts.classes, facts.source_classes, strict=True)
        classes = [f"{n} classes in the target, {m} in the source" for n, m in sides]
        of_each = (
            f"the words of sentence pairs of {facts.corpus}, in cross-attention (queries of each word of the target, as the decoder "
            "reads it, keys and values of each word of the source, at the encoder's output)"
        )
    lede = f"{name} · {of_each} · n = {sample} · {facts.draws} random projections per layer"
    by_label = [_label(numbers, label, facts.as_used) for label in numbers.labels]
    answer, picture = _lead(numbers, facts, sample)
    figures = present(picture, small_multiples("profile-short", "Label by label", GAIN_CAPTION, by_label))
    absent = [f"{label} in {spell_layers(spots)}" for label in numbers.labels if (spots := _absent(numbers, label))]
    limits = (
        *([f"{NOT_CARRIED}: {'; '.join(absent)}."] if absent else ()),
        *([_as_used_words(facts.as_used)] if facts.as_used else ()),
    )
    rule = (
        f"Heads are resampled with replacement, {words.quantity(numbers.heads('v'), 'head')} in all; with fewer than 30 in a part there "
        "is no verdict. Both claims were fixed after a trial on one model (MiniLM), so that on it they are no prediction. Where queries "
        "and keys act by attention's weights alone, the share of the change by v with these held is 1 by what is done: no finding."
    )
    if cross:
        rule = (
            "Both claims speak of the words of one text. In cross-attention queries are of words of the target, keys and values of words "
            "of the source, so that the claims are not judged here."
        )
    sections = (
        Section("Which labels q, k and v encode", (), figures, blocks=quiet(limits)),
        Section("Results of the claims", (rule,), cards=tables["claims"]),
        Section("Layer by layer", _how(cross, facts.folds), (_by_label(numbers),), (_table(numbers),)),
        _heads(numbers, facts),
        *_further(numbers, facts),
        Section("Notes", tuple(about.notes)),
    )
    made_by = provenance(
        about,
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        ("Texts", f"{facts.corpus}: {words.quantity(facts.texts, unit)}, fingerprint {facts.corpus_fingerprint}"),
        ("Words", f"{sample} in {words.quantity(facts.groups, 'group')} of {unit}s"),
        ("Labels", ", ".join(f"{n} ({c})" for n, c in zip(facts.labels, classes, strict=True))),
        ("Probes", f"{facts.folds} folds, {facts.draws} random maps a layer, seed {facts.seed}"),
        timed=False,
    )
    title = f"What do the queries, keys and values of {name} encode?"
    return Sheet(title, "trisect · profile", lede, sections, made_by, REFERENCES, answer)


def _lead(numbers: ProfileNumbers, facts: ProfileFacts, sample: str) -> tuple[str, Figure]:
    """What is kept and dropped most, in a sentence; and heat maps of all labels, layers and components."""
    gains = (
        (c, str(spot.layer), SHORT_LABELS.get(label, label), gain.mean, gain.side != 0)
        for c, spot, label in product(COMPONENTS, numbers.spots, numbers.labels)
        for gain in (numbers.gain(label, c, spot),)
    )
    heads = words.quantity(numbers.heads("q", numbers.spots[0]), "head")
    caption = (
        f"Orange: a head encodes more of the label than {words.count(facts.draws)} random projections of its input to the same "
        f"dimension do on average; violet: less. Means over the {heads} of a layer; a dot where "
        f"p < 0.05, Holm-corrected over layers, q, k and v; n\u00a0=\u00a0{sample}. POS: part of speech, of the word, of the one "
        "before and after, and of its syntactic head; dependency: its relation to that head."
    )
    titles = ("profile", "Figure 1", "What each encodes more and less of than random projections")
    picture = label_maps(titles, caption, gains, UNIT)
    means = {(c, label): numbers.gain(label, c) for c, label in product(COMPONENTS, numbers.labels)}
    carried = [
        (c, label)
        for c, label in means
        if c not in facts.as_used and any(numbers.input_gain(s, label, c) >= MARGIN for s in numbers.spots)
    ]
    ends = []
    same = "than from random projections of " + ("what each reads" if numbers.apart else "the same input")
    for way, how in ((1, "better"), (-1, "worse")):
        if clear := [pair for pair in carried if means[pair].side == way]:
            c, label = max(clear, key=lambda pair: abs(means[pair].mean))
            label_words, mean = LABELS.get(label, label).partition(" (")[0], words.number(means[c, label].mean, True, 3)
            size = mean if ends else f"accuracy {mean}"
            ends.append(f"{label_words} {how} from {words.COMPONENT_NAMES[c]}{'' if ends else f' {same}'} ({size})")
    answer = "No label is encoded clearly better or worse than by random projections, over all heads together."
    if ends:
        answer = f"For a word, a linear probe predicts {', and '.join(ends)}; means over heads."
    return answer, picture


def _how(cross: bool, folds: int) -> tuple[str, ...]:
    """How a profile is made, and its limits."""
    dealt = "runs of pairs that follow one another" if cross else "articles, or runs of texts where none is marked,"
    maps = "q, k and v are three invertible maps of the same input almost surely"
    if cross:
        maps = "q is an invertible map of what the decoder's layer reads almost surely, k and v are of the encoder's output"
    note = f"{DIFFERENCES}: an accuracy follows from how many classes one side's words have, and how often each."
    return (
        "The probe is linear discriminant analysis, in closed form from moments. Every word is predicted by a probe that was "
        f"fitted to other texts: {dealt} are dealt into {folds} folds as a whole.",
        f"All heads together, {maps}, and hold the same: nothing here says "
        "how much of a label is there. What differs is what one head's few numbers keep of it, so layers are means over heads.",
        *([note] * cross),
        "Intervals are 95 % of Student's t over heads; of one head alone, those of random maps.",
    )


def _further(numbers: ProfileNumbers, facts: ProfileFacts) -> Iterator[Section]:
    """Optional sections of a profile: checkpoints, exchange, MLP probes, erasure."""
    if facts.checkpoints:
        yield _checkpoint_section(numbers, facts.checkpoints)
    if exchange := _exchange(numbers, facts):
        how = (
            "In each layer, one at a time, the queries, keys or values of another text of as many tokens take the place of the text's "
            "own (interchange intervention, activation patching). Held, all attention weights stay as they were: queries and keys then "
            "have nothing to act by, and all that still changes came by the values."
        )
        yield Section("By which of them content arrives", (how, *map(str, exchange)))
    if facts.mlp:
        how = (
            "An MLP probe has one hidden layer of 64; it is fitted to some of the words of three folds, ended by a fourth, and "
            "predicts the fifth, with 12 random maps a layer."
        )
        yield Section("With MLP probes", (str(_mlp(numbers)), how))
    if facts.causal_corpus is not None:
        yield _causal_section(numbers, facts)


def findings(tables: Mapping[str, pl.DataFrame], about: About[ProfileFacts]) -> tuple[Finding, ...]:
    """A sentence for each label: which of q, k and v keep or drop it, and in which layers; then every verdict."""
    facts = about.facts
    numbers = ProfileNumbers.of(tables["measures"], facts.labels)
    return (
        *_answer(numbers, facts.as_used),
        *(_label(numbers, label, facts.as_used) for label in numbers.labels),
        *checkpoint_findings(numbers, facts.checkpoints),
        *_exchange(numbers, facts),
        *([_mlp(numbers)] if facts.mlp else ()),
        *_erasure_findings(numbers, facts, False),
        *_erasure_findings(numbers, facts, True),
        *verdict_findings(tables["claims"]),
    )


def _answer(numbers: ProfileNumbers, as_used: Sequence[str]) -> tuple[Finding, ...]:
    """What queries, keys and values encode, over all heads; empty if nothing.

    Nothing of components that are read as attention used them: what they keep may not be by their weights.
    """
    parts = []
    for c in (c for c in COMPONENTS if c not in as_used):
        carried = [la for la in numbers.labels if any(numbers.input_gain(s, la, c) >= MARGIN for s in numbers.spots)]
        ways = []
        for way, verb in ((1, "keep"), (-1, "drop")):
            if clear := [label for label in carried if numbers.gain(label, c).side == way]:
                ways.append(f"{verb} {words.join_words(clear)}")
        if ways:
            parts.append(f"{words.COMPONENT_NAMES[c]} {' and '.join(ways)}")
    if not parts:
        return ()
    same = "the same input"
    if numbers.apart:
        same = "what each reads (cross-attention: q of words of the target, k and v of words of the source)"
    text = (
        f"Compared with random maps of {same}, over {words.quantity(numbers.heads('q'), 'head')}: {'; '.join(parts)}."
    )
    return (Finding("profile_answer", text, UNIT),)


def _label(numbers: ProfileNumbers, label: str, as_used: Sequence[str]) -> Finding:
    """The rows of one label, and which of q, k and v keeps more over all heads, paired."""
    gains = {c: numbers.gain(label, c) for c in COMPONENTS}
    values = tuple(Estimate(c, g.mean, g.low, g.high, g.n) for c, g in gains.items())
    title = f"{label} (q: target, k and v: source)" if numbers.apart else label
    more = []
    for pair in PAIRS:
        if side := numbers.gain(label, pair, None, "difference").side:
            more.append(" > ".join(pair.split("-")[::side]))
    text, compared = _sentence(numbers, label, as_used), ", ".join(more) or "alike, or too uncertain"
    return Finding("profile", text, UNIT, values, compared, title=title, what="kept", groups=(label,), per="head")


def _as_used_words(as_used: Sequence[str]) -> str:
    return f"Of {words.join_words(as_used)}, read as attention used them, this may not be by their weights."


def _absent(numbers: ProfileNumbers, label: str) -> list[Address]:
    """The layers whose whole input does not carry a label."""
    return [spot for spot in numbers.spots if numbers.input_gain(spot, label) < MARGIN]


def _sentence(numbers: ProfileNumbers, label: str, as_used: Sequence[str]) -> str:
    """The rows of one label in a sentence: whether it is encoded, which components keep and drop it, and the clearest layer."""
    absent = _absent(numbers, label)
    if len(absent) == len(numbers.spots):
        return (
            f"not carried: in no layer does a linear probe of the whole input tell {LABELS.get(label, label)} better than by the "
            f"most frequent class by {MARGIN:g}, so that there is nothing to keep or to drop."
        )
    sides = {c: numbers.gain(label, c).side for c in COMPONENTS}
    parts = [
        f"{words.join_words([words.COMPONENT_NAMES[c] for c in COMPONENTS if sides[c] == side])} {verb} it"
        for side, verb in ((1, "keep"), (-1, "drop"))
        if side in sides.values()
    ]
    text = (", ".join(parts) or "neither kept nor dropped over all heads together") + ". "
    ends = []  # the layers where a component lies above random maps, or below, by more than the margin and after Holm
    for word, way in (("above", 1), ("below", -1)):
        places = []
        for c in COMPONENTS:
            gains = {s: numbers.gain(label, c, s) for s in numbers.spots}
            if layers := [s for s, gain in gains.items() if gain.side == way and abs(gain.mean) >= MARGIN]:
                layer_words = "every layer" if len(layers) == len(numbers.spots) > 1 else spell_layers(layers)
                places.append(f"{c} in {layer_words}")
        if places:
            ends.append(f"{word} random maps by {MARGIN:g} or more: {', '.join(places)}")
    none = f"In no layer does a mean over heads lie {MARGIN:g} or more from random maps after Holm. "
    text += f"{words.capital('; '.join(ends))}. " if ends else none
    spot = max(numbers.spots, key=lambda s: max(abs(numbers.gain(label, c, s).mean) for c in COMPONENTS))
    at = ", ".join(f"{c} {words.number(numbers.get(spot, label, 'accuracy', c).value)}" for c in COMPONENTS)
    q, v = (words.number(numbers.get(spot, label, "random", c).value) for c in ("q", "v"))
    random = f"{q} for q, {v} for k and v" if numbers.apart else q
    text += f"Clearest in {spell_layers([spot])}, probe accuracy: {at}, random maps {random}."
    if absent:
        text += f" Not carried in {spell_layers(absent)}."
    if as_used:
        text += f" {_as_used_words(as_used)}"
    return text


def _by_label(numbers: ProfileNumbers) -> Figure:
    """Means of each label by layer, with intervals, on one axis."""
    panels = {
        label: [
            Bar(c, str(s.layer), g.mean, g.low, g.high)
            for s, c in product(numbers.spots, COMPONENTS)
            for g in (numbers.gain(label, c, s),)
        ]
        for label in numbers.labels
    }
    caption = "Accuracy minus that of random maps, mean over heads with its 95 % interval."
    return layer_figure(("profile-layers", "Figure 2", "By layer"), caption, panels, UNIT, "random maps")


def _table(numbers: ProfileNumbers) -> Table:
    """Accuracies by label and layer beside their references; by side, if q reads other words than k and v."""
    titles = {"majority": "most frequent class", "input": "whole input", "random": "random maps"}
    sides = ((", q", "q"), (", k, v", "v")) if numbers.apart else (("", "q"),)
    references = [(f"{title}{side}", measure, c) for measure, title in titles.items() for side, c in sides]
    lines = []
    for label, spot in product(numbers.labels, numbers.spots):
        differences = (numbers.gain(label, p, spot, "difference") for p in PAIRS)
        line = [f"{label}, {spot.layer}"]
        for _, measure, c in references:
            row = numbers.get(spot, label, measure, c)
            ends = f" ({_accuracy(row.low)} to {_accuracy(row.high)})" if measure == "random" else ""
            line.append(_accuracy(row.mean) + ends)
        line += [_accuracy(numbers.get(spot, label, "accuracy", c).mean) for c in COMPONENTS]
        lines.append((*line, *(f"{words.number(g.mean, True, 3)}{'*' if g.side else ''}" for g in differences)))
    columns = ("label, layer", *(title for title, *_ in references), "q", "k", "v", "q − v", "k − v", "q − k")
    caption = "Accuracies; a star where a difference over heads has p < 0.05 after Holm over the three pairs"
    caption += f". {DIFFERENCES}" if numbers.apart else ""
    return Table(columns, tuple(lines), caption)


def _accuracy(value: float | None) -> str:
    return words.number(value, False, 3)


def _heads(numbers: ProfileNumbers, facts: ProfileFacts) -> Section:
    """The number of heads above and below random maps, and the most different heads; every head if set."""
    encoded = []  # label, layer, component, head, how far above random maps, and whether clearly
    for label, spot, c, head in numbers.each_head():
        gain = numbers.get(spot, label, "accuracy", c, head).value - numbers.get(spot, label, "random", c).value
        encoded.append((label, spot, c, head, gain, numbers.get(spot, label, "p_holm", c, head).value < 0.05))

    def sides(label: str, component: str) -> str:
        gains = [gain for la, _, c, _, gain, clear in encoded if clear and (la, c) == (label, component)]
        return f"{sum(gain > 0 for gain in gains)} above, {sum(gain < 0 for gain in gains)} below"

    by_component = sorted(encoded, key=lambda o: (numbers.labels.index(o[0]), COMPONENTS.index(o[2])))
    extremes = []
    for label, spot, c, head, *_ in sorted(by_component, key=lambda o: -abs(o[4]))[:TABLE_HEADS]:
        accuracy, z, among = (numbers.get(spot, label, m, c, head).mean for m in ("accuracy", "z", "among"))
        random = numbers.get(spot, label, "random", c).mean
        line = (f"{label}, {c}@{spot.layer}.h{head}", _accuracy(accuracy), _accuracy(random), words.number(z, True, 1))
        extremes.append((*line, _accuracy(among)))
    heads, places = numbers.heads("q"), sum(numbers.heads("q", spot) for spot in numbers.spots)
    shared = f", met at {places} places in layers that share their weights" * (places > heads)
    text = (
        f"Of {words.quantity(heads, 'head')}{shared}, how many lie above or below random maps, each "
        "counted as one more random map (Student's t; Holm over all heads, q, k and v of the label). The last column of the second table "
        "is the share of the layer's other heads' q, k and v that find less of the label"
        f"{' beyond random maps' * numbers.apart}."
    )
    tables = (
        Table(
            ("label", *(words.GROUP[c] for c in COMPONENTS)),
            tuple((label, *(sides(label, c) for c in COMPONENTS)) for label in numbers.labels),
            "Heads above and below random maps",
        ),
        Table(
            ("label, place", "accuracy", "random maps", "z", "among the layer's"),
            tuple(extremes),
            "Heads that differ most from random maps",
        ),
    )
    figures = []  # a figure a label: every head's q, k and v, all labels in one scale
    top = max((abs(gain) for *_, gain, _ in encoded), default=0.0) or 1.0
    for number, label in enumerate(numbers.labels if facts.per == "head" else (), start=3):
        values, clear = {}, {}
        for c in COMPONENTS:
            heads_of = [(s.layer, h, v, p) for la, s, x, h, v, p in encoded if (la, x) == (label, c)]
            values[words.GROUP[c]] = [cell[:3] for cell in heads_of]
            clear[words.GROUP[c]] = {cell[:2] for cell in heads_of if cell[3]}
        caption = f"Accuracy for {label} minus that of random maps, head by head; a dot where p < 0.05 after Holm."
        titles = (f"profile-heads-{words.slug(label)}", f"Figure {number}", f"{label}, by head")
        figures.append(grid(*titles, caption, values, UNIT, True, (-top, top), clear))
    return Section("Head by head", (text,), tuple(figures), tables)


def checkpoint_findings(numbers: ProfileNumbers, names: Sequence[str]) -> Iterator[Finding]:
    """A sentence for each label: the checkpoint from which each component keeps or drops it until the last."""
    for label in numbers.labels if names else ():
        parts = []
        for c in COMPONENTS:
            sides = [numbers.stage(at, c, label).side for at in range(len(names))]
            first = len(names) - 1
            while first and sides[first - 1] == sides[-1]:
                first -= 1
            if sides[-1]:
                parts.append(
                    f"{words.COMPONENT_NAMES[c]} {'keep' if sides[-1] > 0 else 'drop'} it from checkpoint {names[first]} on"
                )
        text, title = f"{', '.join(parts) or 'neither kept nor dropped'}.", f"{label}, last checkpoint"
        values = tuple(numbers.stage(len(names) - 1, c, label).estimate(c) for c in COMPONENTS)
        yield Finding("profile_checkpoints", text, UNIT, values, title=title, groups=(label,), per="head")


def _checkpoint_section(numbers: ProfileNumbers, names: Sequence[str]) -> Section:
    rule = (
        "A component keeps (or drops) a label from a checkpoint on where from there to the last one the 95 % interval over all heads, "
        "not corrected for how many there are, lies above (or below) random maps."
    )
    gains = (
        (c, name, label, gain.mean or 0.0, gain.side != 0)
        for c, (at, name), label in product(COMPONENTS, enumerate(names), numbers.labels)
        for gain in (numbers.stage(at, c, label),)
    )
    caption = (
        "Checkpoints downwards, in the order of training: orange keeps more of the label than random maps, violet less. Means over "
        "all heads of all layers, a dot where the 95 % interval leaves 0 out."
    )
    titles = ("profile-checkpoints", "Checkpoints", "Over checkpoints")
    figure = label_maps(titles, caption, gains, UNIT, "checkpoint")
    lines = []
    for label, spot, c in product(numbers.labels, numbers.spots, COMPONENTS):
        stages = (numbers.stage(at, c, label, spot.layer).mean for at in range(len(names)))
        lines.append((f"{label}, {spot.layer}, {c}", *(words.number(gain, True, 3) for gain in stages)))
    caption = "Accuracy minus random maps, mean over heads, by checkpoint"
    table = Table(("label, layer, component", *names), tuple(lines), caption, wrap=False)
    return Section("When it begins", (*map(str, checkpoint_findings(numbers, names)), rule), (figure,), (table,))


def _mlp(numbers: ProfileNumbers) -> Finding:
    """How often an MLP probe agrees with the closed form on the side of random maps on which a mean over heads lies."""
    places = list(product(numbers.labels, numbers.spots, COMPONENTS))
    linear = np.array([numbers.gain(label, c, s).mean for label, s, c in places])
    mlp, random = (
        np.array([numbers.get(s, label, measure, c).value for label, s, c in places])
        for measure in ("mlp", "mlp_random")
    )
    clear = abs(linear) >= MARGIN
    same, n = int((clear & ((linear > 0) == (mlp - random > 0))).sum()), int(clear.sum())
    text = (
        f"Where a mean over heads lies {MARGIN:g} or more from random maps by linear probes, MLP probes put it on the same side in "
        f"{same} of {words.quantity(n, 'case')} (labels, layers, q, k and v)."
    )
    values = (Estimate("same side", same / n if n else None, n=n),)
    if linear.std() > 0 and (mlp - random).std() > 0:
        r = float(np.corrcoef(linear, mlp - random)[0, 1])
        text += f" Over all {len(places)} the two differences correlate by {words.number(r)}."
        values = (*values, Estimate("correlation", r, n=len(places)))
    return Finding("profile_mlp", text, "share", values, title="MLP probes", per="case")


def _exchange(numbers: ProfileNumbers, facts: ProfileFacts) -> tuple[Finding, ...]:
    """The change by another text's queries, keys and values in one layer, with attention weights free and held."""
    changes = {(row.group, row.component): row for row in numbers.measures.where(EXCHANGE_CHANGE, layer=None)}
    if len(changes) < len(KINDS) * len(COMPONENTS):
        return ()
    unit = "share of the output" if facts.unit == "share" else "nats, without the sign"
    free = ", ".join(f"{c} {number_words(changes[KINDS[0], c])}" for c in COMPONENTS)
    # queries and keys act by the weights alone, so that theirs are 0 by what is done and no finding
    text = (
        f"Another text's part in one layer changes the model by ({unit}, mean over layers, "
        f"{words.quantity(changes[KINDS[0], 'q'].n or 0, 'text')}): with attention's {KINDS[0]} {free}; with them held, so that "
        f"values alone can act, v {number_words(changes[HELD_WEIGHTS, 'v'])}."
    )
    values = tuple(changes[kind, c].estimate(f"{c}, {kind}") for kind, c in product(KINDS, COMPONENTS))
    return (Finding("exchange", text, facts.unit, values, title="Exchange", per="text"),)


def _erasure_findings(numbers: ProfileNumbers, facts: ProfileFacts, single: bool) -> Iterator[Finding]:
    """For each label where erasing it costs most beyond random subspaces, for each of q, k and v; of `single` heads also in how many."""
    tail = "" if facts.unit == "share" else " nats"
    for label in numbers.labels if facts.causal_corpus is not None else ():
        parts, values = [], []
        for c in COMPONENTS:
            numbers_of_component = numbers.measures.where(*ERASURE_MEASURES, component=c, group=label).finite
            if not (rows := [row for row in numbers_of_component if (row.head is not None) == single]):
                continue
            largest = max(rows, key=lambda row: row.value)
            place = f"{c}@{largest.spot}"
            values.append(largest.estimate(place))
            costly = f"{c} in {sum((row.low or 0.0) > 0 for row in rows)} of {len(rows)} heads, most at "
            parts.append(f"{costly * single}{place} {number_words(largest)}{tail * single}")
        name = "profile_erased"
        text = f"erased, it costs most beyond random subspaces of the same rank at {', '.join(parts)}{tail}."
        if single:
            name = "profile_erased_head"
            text = (
                f"erased in one head alone it costs more than random subspaces of the same rank, in {'; '.join(parts)}."
            )
        if parts:
            yield Finding(name, text, facts.unit, tuple(values), title=label, groups=(label,), per="text")


def _causal_section(numbers: ProfileNumbers, facts: ProfileFacts) -> Section:
    quantity, n = "the rise of the loss (nats)", words.quantity(facts.causal_texts, "text")
    if facts.unit == "share":
        quantity = "the change of the output (as a share)"
    how = (
        f"A model need not use what it encodes. Here LEACE erases each label from all heads of a layer's queries, keys or values, so that "
        f"no linear map finds it there. Measured on {n} of {facts.causal_corpus}: {quantity.partition(' (')[0]}, minus that with "
        "random subspaces of the same rank. Intervals are 95 % of a bootstrap over texts."
    )
    erasures = tuple(map(str, _erasure_findings(numbers, facts, True)))
    note = "In single heads intervals are 95 % each, and not corrected for how many heads there are."
    text = (how, *map(str, _erasure_findings(numbers, facts, False)), *erasures, *([note] * bool(erasures)))
    rows = (
        (c, str(row.layer), label, row.value, row.side != 0)
        for c, spot, label in product(COMPONENTS, numbers.spots, numbers.labels)
        for row in numbers.measures.where(
            *ERASURE_MEASURES, component=c, group=label, layer=spot.layer, stack=spot.stack, head=None
        )
    )
    caption = (
        f"{words.capital(quantity)} with a label erased at one layer, minus the mean of random subspaces; a dot where the 95 % interval "
        f"leaves 0 out, {words.sample(facts.causal_texts, 'text')}."
    )
    figure = label_maps(("profile-causal", "Causal twin", "Erasing each label"), caption, rows, facts.unit)
    return Section("Is the information used?", text, (figure,))
