"""Beside a profile's linear probes on its page: MLP probes as a check, and the causal twin by erasure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from trisect.core.finding import Estimate, Finding
from trisect.experiments.profile.numbers import COMPONENTS, KINDS, LayerSpot, MeasuredNumber, ProfileNumbers
from trisect.papers.profile import MARGIN
from trisect.report import format as words
from trisect.report.label_maps import LabelCell, label_grid
from trisect.report.panels import Figure
from trisect.report.sheet import Section
from trisect.report.subject import spoken

if TYPE_CHECKING:
    from trisect.experiments.profile.settings import ProfileFacts


def mlp_findings(numbers: ProfileNumbers) -> tuple[Finding, ...]:
    """How often an MLP probe agrees with the closed form on which side of random maps a mean over heads lies."""
    pairs = [
        (numbers.gain(label, c, s).value, numbers.value(s, label, "mlp", c) - numbers.value(s, label, "mlp_random", c))
        for label in numbers.labels
        for s in numbers.spots
        for c in COMPONENTS
    ]
    clear = [(a, b) for a, b in pairs if abs(a) >= MARGIN]
    same = sum((a > 0) == (b > 0) for a, b in clear)
    said = (
        f"Where a mean over heads lies {MARGIN:g} or more from random maps by linear probes, MLP probes put it on the same side in "
        f"{same} of {words.several(len(clear), 'case')} (labels, layers, q, k and v)."
    )
    left, right = (np.array(column) for column in zip(*pairs, strict=True))
    values = (Estimate("same side", same / len(clear) if clear else None, n=len(clear)),)
    if left.std() > 0 and right.std() > 0:
        r = float(np.corrcoef(left, right)[0, 1])
        said += f" Over all {len(pairs)} the two differences correlate by {words.number(r)}."
        values = (*values, Estimate("correlation", r, n=len(pairs)))
    return (Finding("profile_mlp", said, "share", values, title="MLP probes", per="case"),)


def mlp_check(numbers: ProfileNumbers) -> tuple[Section, ...]:
    """The section: how far MLP probes agree."""
    how = (
        "An MLP probe has one hidden layer of 64; it is fitted to some of the words of three folds, ended by a fourth, and "
        "predicts the fifth, with 12 random maps a layer."
    )
    return (Section("With MLP probes", (*map(str, mlp_findings(numbers)), how)),)


def exchange_findings(numbers: ProfileNumbers, facts: ProfileFacts) -> tuple[Finding, ...]:
    """What another text's queries, keys and values change in one layer, with attention's weights free and held."""
    found = {(kind, c): one for kind in KINDS for c in COMPONENTS if (one := numbers.exchanged.get((None, kind, c)))}
    if len(found) < len(KINDS) * len(COMPONENTS):
        return ()
    what = "share of the output" if facts.unit == "share" else "nats, without the sign"
    parts = [
        f"with attention's {kind} "
        + ", ".join(f"{c} {spoken(one.value, one.low, one.high)}" for (k, c), one in found.items() if k == kind)
        for kind in KINDS
    ]
    n = found[KINDS[0], "q"].n
    said = (
        f"Another text's part in one layer changes the model by ({what}, mean over layers, {words.several(n or 0, 'text')}): "
        f"{'; '.join(parts)}."
    )
    values = tuple(Estimate(f"{c}, {kind}", one.value, one.low, one.high, one.n) for (kind, c), one in found.items())
    return (Finding("exchange", said, facts.unit, values, title="Exchange", per="text"),)


def exchanged(numbers: ProfileNumbers, facts: ProfileFacts) -> tuple[Section, ...]:
    """The section: by which of q, k and v another text's content arrives."""
    found = exchange_findings(numbers, facts)
    if not found:
        return ()
    how = (
        "In each layer, one at a time, the queries, keys or values of another text of as many tokens take the place of the text's "
        "own (interchange intervention, activation patching). Held, all attention weights stay as they were: queries and keys then have "
        "nothing to act by, and all that still changes came by the values."
    )
    return (Section("By which of them content arrives", (how, *map(str, found))),)


def causal_findings(numbers: ProfileNumbers, facts: ProfileFacts) -> Iterator[Finding]:
    """For each label where erasing it costs most beyond random subspaces, for each of q, k and v."""
    for label in numbers.labels:
        most = {c: max(numbers.spots, key=lambda s: _size(_erased(numbers, s, c, label))) for c in COMPONENTS}
        found = {f"{c}@{spot.layer}": _erased(numbers, spot, c, label) for c, spot in most.items()}
        parts = ", ".join(f"{place} {spoken(e.value, e.low, e.high)}" for place, e in found.items())
        tail = "" if facts.unit == "share" else " nats"
        values = tuple(Estimate(place, e.value, e.low, e.high, e.n) for place, e in found.items())
        said = f"erased, it costs most beyond random subspaces of the same rank at {parts}{tail}."
        yield Finding("profile_erased", said, facts.unit, values, title=label, groups=(label,), per="text")


def head_twins(numbers: ProfileNumbers, facts: ProfileFacts) -> Iterator[Finding]:
    """For each label in how many heads erasing it there costs more than random subspaces, and where most."""
    tail = "" if facts.unit == "share" else " nats"
    for label in numbers.labels:
        parts, values = [], []
        for c in COMPONENTS:
            mine = {
                f"{c}@{spot.layer}.h{head}": one
                for (spot, head, component, of), one in numbers.erased_heads.items()
                if (component, of) == (c, label) and one.value is not None
            }
            if not mine:
                continue
            place, most = max(mine.items(), key=lambda found: found[1].value or 0.0)
            costly = sum(one.low is not None and one.low > 0 for one in mine.values())
            parts.append(
                f"{c} in {costly} of {len(mine)} heads, most at {place} {spoken(most.value, most.low, most.high)}{tail}"
            )
            values.append(Estimate(place, most.value, most.low, most.high, most.n))
        if parts:
            said = (
                f"erased in one head alone it costs more than random subspaces of the same rank, in {'; '.join(parts)}."
            )
            yield Finding(
                "profile_erased_head", said, facts.unit, tuple(values), title=label, groups=(label,), per="text"
            )


def _erased(numbers: ProfileNumbers, spot: LayerSpot, component: str, label: str) -> MeasuredNumber:
    return numbers.erased.get((spot, component, label), MeasuredNumber(None, None, None, None))


def _size(one: MeasuredNumber) -> float:
    return -np.inf if one.value is None else one.value


def causal_twin(numbers: ProfileNumbers, facts: ProfileFacts) -> tuple[Section, ...]:
    """The section: what each label's erasure costs, beyond random subspaces."""
    what = "the output changes by (as a share)" if facts.unit == "share" else "the loss rises by (nats)"
    how = (
        f"What a model keeps it need not use. Here each label is erased by LEACE from all heads of a layer's queries, keys or values, "
        f"so that no linear map finds it there, and {what.partition(' (')[0]} more than with random subspaces of the same rank is "
        f"measured on {words.several(facts.causal_texts, 'text')} of {facts.causal_corpus}. Intervals are 95 % of a bootstrap over texts."
    )
    alone = tuple(map(str, head_twins(numbers, facts)))
    note = (
        ("In single heads intervals are 95 % each, and not corrected for how many heads there are.",) if alone else ()
    )
    said = (how, *map(str, causal_findings(numbers, facts)), *alone, *note)
    return (Section("Is it used?", said, (_picture(numbers, facts, what),)),)


def _picture(numbers: ProfileNumbers, facts: ProfileFacts, what: str) -> Figure:
    values: dict[str, list[LabelCell]] = {}
    marked: dict[str, set[tuple[str, str]]] = {}
    for c in COMPONENTS:
        for spot in numbers.spots:
            for label in numbers.labels:
                one = _erased(numbers, spot, c, label)
                value = float("nan") if one.value is None else one.value
                values.setdefault(words.GROUP[c], []).append(LabelCell(str(spot.layer), label, value))
                if one.low is not None and one.high is not None and (one.low > 0 or one.high < 0):
                    marked.setdefault(words.GROUP[c], set()).add((str(spot.layer), label))
    caption = (
        f"What {what} with a label erased at one layer, minus the mean of random subspaces; a dot where the 95 % interval "
        f"leaves 0 out, n\u00a0=\u00a0{words.several(facts.causal_texts, 'text')}."
    )
    return label_grid("profile-causal", "Causal twin", "Erasing each label", caption, values, facts.unit, marked)
