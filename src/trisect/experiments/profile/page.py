"""A profile's page: what queries, keys and values keep and drop of each label, in one picture, then by layer and by head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.experiments.profile import page_whose as whose
from trisect.experiments.profile.numbers import COMPONENTS, PAIRS, LayerSpot, ProfileNumbers
from trisect.experiments.profile.page_beyond import (
    causal_findings,
    causal_twin,
    exchange_findings,
    exchanged,
    head_twins,
    mlp_check,
    mlp_findings,
)
from trisect.experiments.profile.page_checkpoints import checkpoint_findings, over_checkpoints
from trisect.papers import profile
from trisect.report import format as words
from trisect.report.heatmaps import grid
from trisect.report.label_maps import LabelCell, label_grid
from trisect.report.layers import Bar, component_key, cut, frame_of, layer_panel
from trisect.report.multiples import sentences, small_multiples
from trisect.report.panels import Figure
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet, Table

if TYPE_CHECKING:
    from trisect.experiments.profile.settings import ProfileFacts

MARGIN = profile.MARGIN
SHOWN = 12  # heads in the table of those that differ most
NAMES = {"q": "queries", "k": "keys", "v": "values"}
SAID = {
    "word": "which word it is (identity)",
    "position": "its place in the text (position)",
    "frequency": "how frequent it is (frequency)",
    "pos": "its part of speech (pos)",
    "dep": "its relation (dep)",
    "previous": "the word before's part of speech (previous)",
    "next": "the next word's part of speech (next)",
    "head": "its head's part of speech (head)",
    "linked": "the word of the other side that it is linked to (linked)",
    "linked.position": "the place of the word that it is linked to (linked.position)",
}
UNIT = "accuracy"
SHORT = (
    "Accuracy from a head's own queries, keys or values minus that from random maps of the same input, mean over all heads with its 95 % "
    "interval: right of 0 a label is kept, left of it dropped. Each panel has an axis of its own."
)
REFERENCES = (
    "John Hewitt, Percy Liang. Designing and Interpreting Probes with Control Tasks. EMNLP 2019.",
    "Yilun Xu et al. A Theory of Usable Information under Computational Constraints. ICLR 2020.",
    "Ronald Fisher. The Use of Multiple Measurements in Taxonomic Problems. Annals of Eugenics 7, 1936.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[ProfileFacts]) -> Sheet:
    """The page from the tables measures and claims."""
    facts = about.facts
    numbers = ProfileNumbers.of(tables["measures"], facts.labels)
    name = words.called(facts.subject, about.command)
    lede = (
        f"What the queries, keys and values of {name} keep of {whose.of_each(facts)}, "
        "and what they drop: how well a linear probe predicts a label from one head's numbers, minus how well it does from "
        f"random maps of {whose.same(facts)} to as many numbers. This speaks of this one model on these texts."
    )
    each = [_label(numbers, label, facts.as_used) for label in numbers.labels]
    drawn = small_multiples("profile-short", "Label by label", SHORT, each)
    in_words = sentences(each, "Label by label, in words")
    sections = (
        Section(
            "What is kept, what is dropped",
            tuple(one.words for one in _answer(numbers, facts.as_used)),
            (*((drawn,) if drawn else ()), _picture(numbers, facts)),
            (in_words,) if in_words else (),
        ),
        Section("What the claims come to", (_rule(numbers),), cards=tables["claims"]),
        Section("Layer by layer", whose.how(facts), tuple(_by_label(numbers)), (_table(numbers),)),
        _heads(numbers, facts),
        *(over_checkpoints(numbers, facts.checkpoints) if facts.checkpoints else ()),
        *exchanged(numbers, facts),
        *(mlp_check(numbers) if facts.mlp else ()),
        *(causal_twin(numbers, facts) if facts.causal_corpus is not None else ()),
        Section("Notes", tuple(about.notes)),
    )
    own = provenance(
        about,
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        (
            "Texts",
            f"{facts.corpus}: {words.several(facts.texts, whose.unit(facts))}, fingerprint {facts.corpus_fingerprint}",
        ),
        ("Words", f"{whose.counted(facts)} in {words.several(facts.groups, 'group')} of {whose.unit(facts)}s"),
        ("Labels", whose.classes(facts)),
        ("Probes", f"{facts.folds} folds, {facts.draws} random maps a layer, seed {facts.seed}"),
        timed=False,
    )
    return Sheet(f"What {name} keeps and drops", "Profile", lede, sections, own, REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: About[ProfileFacts]) -> tuple[Finding, ...]:
    """A sentence a label: which of q, k and v keep it and which drop it, and where; then every verdict."""
    numbers = ProfileNumbers.of(tables["measures"], about.facts.labels)
    named = (_label(numbers, label, about.facts.as_used) for label in numbers.labels)
    begun = checkpoint_findings(numbers, about.facts.checkpoints)
    twins: tuple[Finding, ...] = ()
    if about.facts.causal_corpus is not None:
        twins = (*causal_findings(numbers, about.facts), *head_twins(numbers, about.facts))
    checked = mlp_findings(numbers) if about.facts.mlp else ()
    moved = exchange_findings(numbers, about.facts)
    return (
        *_answer(numbers, about.facts.as_used),
        *named,
        *begun,
        *moved,
        *checked,
        *twins,
        *verdict_findings(tables["claims"]),
    )


def _answer(numbers: ProfileNumbers, as_used: Sequence[str]) -> tuple[Finding, ...]:
    """Over all heads, what queries keep and drop, what keys do, what values do; nothing where none does.

    Nothing of components that are read as attention used them: what they keep may not be by their weights.
    """
    carried = [la for la in numbers.labels if any(numbers.carried(s, la) >= MARGIN for s in numbers.spots)]
    parts = []
    for c in (c for c in COMPONENTS if c not in as_used):
        mine = [la for la in carried if any(numbers.carried(s, la, c) >= MARGIN for s in numbers.spots)]
        sides = {way: [la for la in mine if numbers.gain(la, c).side == way] for way in (1, -1)}
        said = [f"{verb} {words.listed(sides[way])}" for way, verb in ((1, "keep"), (-1, "drop")) if sides[way]]
        if said:
            parts.append(f"{NAMES[c]} {' and '.join(said)}")
    if not parts:
        return ()
    heads = sum(numbers.heads(s, "q") for s in numbers.spots)
    said = f"Compared with random maps of {whose.same_input(numbers.apart)}, over {words.several(heads, 'head')}: {'; '.join(parts)}."
    return (Finding("profile_answer", said, UNIT),)


def _label(numbers: ProfileNumbers, label: str, as_used: Sequence[str]) -> Finding:
    gains = {c: numbers.gain(label, c) for c in COMPONENTS}
    values = tuple(Estimate(c, g.value, g.low, g.high, g.n) for c, g in gains.items())
    said, title = _sentence(numbers, label, as_used), whose.titled(label, numbers.apart)
    return Finding(
        "profile", said, UNIT, values, _compared(numbers, label), title=title, what="kept", groups=(label,), per="head"
    )


def _sentence(numbers: ProfileNumbers, label: str, as_used: Sequence[str]) -> str:
    """What the rows say of one label: where it is carried at all, who keeps and who drops it, and the clearest layer."""
    absent = [s for s in numbers.spots if numbers.carried(s, label) < MARGIN]
    if len(absent) == len(numbers.spots):
        return (
            f"not carried: in no layer does a linear probe of the whole input tell {SAID.get(label, label)} better than by the "
            f"most frequent class by {MARGIN:g}, so that there is nothing to keep or to drop."
        )
    sides = {c: _side(numbers, label, c) for c in COMPONENTS}
    parts = [
        f"{words.listed([NAMES[c] for c in COMPONENTS if sides[c] == side])} {verb} it"
        for side, verb in ((1, "keep"), (-1, "drop"))
        if side in sides.values()
    ]
    said = (", ".join(parts) or "neither kept nor dropped over all heads together") + ". "
    said += _where(numbers, label)
    spot = max(numbers.spots, key=lambda s: max(abs(numbers.gain(label, c, s).value) for c in COMPONENTS))
    at = ", ".join(f"{c} {words.number(numbers.value(spot, label, 'accuracy', c))}" for c in COMPONENTS)
    random = whose.random_maps(numbers, spot, label)
    said += f"Clearest in {_spoken([spot])}, probe accuracy: {at}, random maps {random}."
    if absent:
        said += f" Not carried in {_spoken(absent)}."
    if as_used:
        said += f" Of {words.listed(as_used)}, read as attention used them, this may not be by their weights."
    return said


def _side(numbers: ProfileNumbers, label: str, component: str) -> int:
    """Whether all heads together keep (1) or drop (−1) a label by Holm over q, k and v."""
    return numbers.gain(label, component).side


def _where(numbers: ProfileNumbers, label: str) -> str:
    """The layers where a component lies above random maps, or below, by more than the margin and after Holm."""
    found = []
    for word, way in (("Above", 1), ("below", -1)):
        named = []
        for c in COMPONENTS:
            there = [
                s for s in numbers.spots if (g := numbers.gain(label, c, s)).side == way and abs(g.value) >= MARGIN
            ]
            if there:
                every = "every layer" if len(there) == len(numbers.spots) > 1 else _spoken(there)
                named.append(f"{c} in {every}")
        if named:
            found.append(f"{word} random maps by {MARGIN:g} or more: {', '.join(named)}")
    if not found:
        return f"In no layer does a mean over heads lie {MARGIN:g} or more from random maps after Holm. "
    text = "; ".join(found)
    return f"{text[0].upper()}{text[1:]}. "


def _spoken(spots: Sequence[LayerSpot]) -> str:
    """Layers as words, runs of them as ranges."""
    runs: list[list[int]] = []
    for spot in spots:
        if runs and spot.layer == runs[-1][-1] + 1:
            runs[-1].append(spot.layer)
        else:
            runs.append([spot.layer])
    named = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return f"layer{'s'[: len(spots) > 1]} {words.listed(named)}"


def _compared(numbers: ProfileNumbers, label: str) -> str:
    """Which of q, k and v keeps more, over all heads, paired; as in 'q > v, k > v'."""
    found = []
    for pair in PAIRS:
        gain, (one, other) = numbers.gain(label, pair, None, "difference"), pair.split("-")
        if gain.side:
            found.append(f"{one} > {other}" if gain.side > 0 else f"{other} > {one}")
    return ", ".join(found) or "alike, or too uncertain"


def _picture(numbers: ProfileNumbers, facts: ProfileFacts) -> Figure:
    values: dict[str, list[LabelCell]] = {}
    marked: dict[str, set[tuple[str, str]]] = {}
    for c in COMPONENTS:
        title = words.GROUP[c]
        for spot in numbers.spots:
            for label in numbers.labels:
                gain = numbers.gain(label, c, spot)
                values.setdefault(title, []).append(LabelCell(str(spot.layer), label, gain.value))
                if gain.side:
                    marked.setdefault(title, set()).add((str(spot.layer), label))
    heads = numbers.heads(numbers.spots[0], "q")
    caption = (
        f"Orange: a head keeps more of the label than {words.count(facts.draws)} random maps of what it reads to as many numbers "
        f"do on average; violet: it drops it. Means over the {words.several(heads, 'head')} of a layer, a dot where "
        f"p < 0.05 after Holm over layers, q, k and v; n\u00a0=\u00a0{whose.counted(facts)}."
    )
    return label_grid("profile", "Figure 1", "What each keeps and drops", caption, values, UNIT, marked)


def _rule(numbers: ProfileNumbers) -> str:
    if numbers.apart:
        return whose.UNJUDGED
    heads = sum(numbers.heads(s, "v") for s in numbers.spots)
    return (
        f"Heads are resampled with replacement, {words.several(heads, 'head')} in all; with fewer than 30 in a part there is no verdict. "
        "Both claims were fixed after a trial on one model (MiniLM), so that on it they are no prediction."
    )


def _by_label(numbers: ProfileNumbers) -> Iterable[Figure]:
    """Each label's means by layer with their intervals, on one axis."""
    named = {
        label: [
            Bar(c, str(s.layer), g.value, g.low, g.high)
            for s in numbers.spots
            for c in COMPONENTS
            for g in (numbers.gain(label, c, s),)
        ]
        for label in numbers.labels
    }
    every = [bar for bars in named.values() for bar in bars]
    axis = frame_of(every, UNIT)
    panels = tuple(layer_panel(label, bars, axis) for label, bars in named.items())
    caption = f"Accuracy minus that of random maps, mean over heads with its 95 % interval.{cut(every, axis)}"
    yield Figure("profile-layers", "Figure 2", "By layer", caption, panels, component_key(every, "random maps"))


def _table(numbers: ProfileNumbers) -> Table:
    references = whose.references(numbers.apart)
    columns = ("label, layer", *(title for title, _, _ in references), "q", "k", "v", "q − v", "k − v", "q − k")

    def row(label: str, spot: LayerSpot) -> tuple[str, ...]:
        means = (numbers.get(spot, label, "accuracy", c).value for c in COMPONENTS)
        pairs = (numbers.gain(label, p, spot, "difference") for p in PAIRS)
        return (
            f"{label}, {spot.layer}",
            *(_reference(numbers, spot, label, measure, c) for _, measure, c in references),
            *map(_accuracy, means),
            *(f"{words.number(g.value, True, 3)}{'*' if g.side else ''}" for g in pairs),
        )

    caption = "Accuracies; a star where a difference over heads has p < 0.05 after Holm over the three pairs"
    caption += f". {whose.DIFFERENCES}" if numbers.apart else ""
    return Table(columns, tuple(row(la, s) for la in numbers.labels for s in numbers.spots), caption)


def _reference(numbers: ProfileNumbers, spot: LayerSpot, label: str, measure: str, component: str) -> str:
    if measure != "random":
        return _accuracy(numbers.read(spot, label, measure, component).value)
    null = numbers.get(spot, label, measure, component)
    return f"{_accuracy(null.value)} ({_accuracy(null.low)} to {_accuracy(null.high)})"


def _accuracy(value: float | None) -> str:
    return words.number(value, False, 3)


def _heads(numbers: ProfileNumbers, facts: ProfileFacts) -> Section:
    """How many heads lie above and below random maps, and those that differ most; every head where that was asked for."""
    rows, most = [], []
    for label in numbers.labels:
        cells = [f"{label}"]
        for c in COMPONENTS:
            above = below = 0
            for spot in numbers.spots:
                for head in range(1, numbers.heads(spot, c) + 1):
                    gain = numbers.value(spot, label, "accuracy", c, head) - numbers.value(spot, label, "random", c)
                    p = numbers.value(spot, label, "p_holm", c, head)
                    above, below = above + (p < 0.05 and gain > 0), below + (p < 0.05 and gain < 0)
                    most.append((abs(gain), label, spot, c, head, gain))
            cells.append(f"{above} above, {below} below")
        rows.append(tuple(cells))
    every = sum(numbers.heads(s, "q") for s in numbers.spots)
    said = (
        f"Of {words.several(every, 'head')}, how many lie above or below random maps, each counted as one more random map "
        "(Student's t; Holm over all heads, q, k and v of the label). The last column of the second table is the share of the "
        f"layer's other heads' q, k and v that find less of the label{whose.beyond(numbers.apart)}."
    )
    tables = (
        Table(("label", *(words.GROUP[c] for c in COMPONENTS)), tuple(rows), "Heads above and below random maps"),
        Table(
            ("label, place", "accuracy", "random maps", "z", "among the layer's"),
            tuple(_extreme(numbers, *one[1:5]) for one in sorted(most, key=lambda o: -o[0])[:SHOWN]),
            "Heads that differ most from random maps",
        ),
    )
    figures = tuple(_grids(numbers)) if facts.per == "head" else ()
    return Section("Head by head", (said,), figures, tables)


def _extreme(numbers: ProfileNumbers, label: str, spot: LayerSpot, component: str, head: int) -> tuple[str, ...]:
    found = {m: numbers.get(spot, label, m, component, head).value for m in ("accuracy", "z", "among")}
    random = numbers.get(spot, label, "random", component).value
    z = words.number(found["z"], True, 1)
    place = f"{label}, {component}@{spot.layer}.h{head}"
    return place, _accuracy(found["accuracy"]), _accuracy(random), z, _accuracy(found["among"])


def _grids(numbers: ProfileNumbers) -> Iterable[Figure]:
    """A figure a label: every head's q, k and v, all labels in one scale."""
    gains = {
        (label, c): [
            (s.layer, h, numbers.value(s, label, "accuracy", c, h) - numbers.value(s, label, "random", c))
            for s in numbers.spots
            for h in range(1, numbers.heads(s, c) + 1)
        ]
        for label in numbers.labels
        for c in COMPONENTS
    }
    most = max((abs(v) for rows in gains.values() for _, _, v in rows), default=0.0) or 1.0
    for number, label in enumerate(numbers.labels, start=3):
        values = {words.GROUP[c]: gains[label, c] for c in COMPONENTS}
        marked = {
            words.GROUP[c]: {
                (s.layer, h)
                for s in numbers.spots
                for h in range(1, numbers.heads(s, c) + 1)
                if numbers.value(s, label, "p_holm", c, h) < 0.05
            }
            for c in COMPONENTS
        }
        caption = f"Accuracy for {label} minus that of random maps, head by head; a dot where p < 0.05 after Holm."
        name = f"profile-heads-{words.slug(label)}"
        yield grid(name, f"Figure {number}", f"{label}, by head", caption, values, UNIT, True, (-most, most), marked)
