"""A profile's checkpoints on its page: since when queries, keys and values keep or drop each label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trisect.core.finding import Estimate, Finding
from trisect.experiments.profile.numbers import COMPONENTS, MeasuredNumber, ProfileNumbers
from trisect.report import format as words
from trisect.report.label_maps import LabelCell, label_grid
from trisect.report.panels import Figure
from trisect.report.sheet import Section, Table

NAMES = {"q": "queries", "k": "keys", "v": "values"}
UNIT = "accuracy"


def checkpoint_findings(numbers: ProfileNumbers, names: Sequence[str]) -> Iterator[Finding]:
    """A sentence a label: from which checkpoint on each component keeps it, or drops it, to the last one."""
    for label in numbers.labels if names else ():
        since = {c: _since(numbers, label, c, len(names)) for c in COMPONENTS}
        parts = [
            f"{NAMES[c]} {'keep' if way > 0 else 'drop'} it from checkpoint {names[first]} on"
            for c, (first, way) in since.items()
            if way
        ]
        said = f"{', '.join(parts) or 'neither kept nor dropped'}."
        values = tuple(Estimate(c, *_gain(numbers, len(names) - 1, None, c, label)) for c in COMPONENTS)
        yield Finding(
            "profile_checkpoints", said, UNIT, values, title=f"{label}, last checkpoint", groups=(label,), per="head"
        )


def _since(numbers: ProfileNumbers, label: str, component: str, count: int) -> tuple[int, int]:
    """The first checkpoint from which on the interval over all heads lies on the last one's side of 0; and that side."""
    sides = [_side(_gain(numbers, at, None, component, label)) for at in range(count)]
    first = count - 1
    while first and sides[first - 1] == sides[-1]:
        first -= 1
    return first, sides[-1]


def _side(gain: MeasuredNumber) -> int:
    if gain.low is None or gain.high is None:
        return 0
    return int(gain.low > 0) - int(gain.high < 0)


def _gain(numbers: ProfileNumbers, at: int, layer: int | None, component: str, label: str) -> MeasuredNumber:
    return numbers.stages[at, layer, component, label]


def over_checkpoints(numbers: ProfileNumbers, names: Sequence[str]) -> tuple[Section, ...]:
    """The section: sentences, the picture of checkpoints by labels, and the numbers layer by layer."""
    said = tuple(map(str, checkpoint_findings(numbers, names)))
    rule = (
        "A component keeps (or drops) a label from a checkpoint on where from there to the last one the 95 % interval over all heads, "
        "not corrected for how many there are, lies above (or below) random maps."
    )
    return (Section("When it begins", (*said, rule), (_picture(numbers, names),), (_table(numbers, names),)),)


def _picture(numbers: ProfileNumbers, names: Sequence[str]) -> Figure:
    values: dict[str, list[LabelCell]] = {}
    marked: dict[str, set[tuple[str, str]]] = {}
    for c in COMPONENTS:
        for at, name in enumerate(names):
            for label in numbers.labels:
                gain = _gain(numbers, at, None, c, label)
                values.setdefault(words.GROUP[c], []).append(LabelCell(name, label, gain.value or 0.0))
                if _side(gain):
                    marked.setdefault(words.GROUP[c], set()).add((name, label))
    caption = (
        "Checkpoints downwards, in the order of training: orange keeps more of the label than random maps, violet less. Means over "
        "all heads of all layers, a dot where the 95 % interval leaves 0 out."
    )
    return label_grid(
        "profile-checkpoints", "Checkpoints", "Over checkpoints", caption, values, UNIT, marked, "checkpoint"
    )


def _table(numbers: ProfileNumbers, names: Sequence[str]) -> Table:
    columns = ("label, layer, component", *names)
    rows = [
        (f"{label}, {spot.layer}, {c}", *_cells(numbers, names, spot.layer, c, label))
        for label in numbers.labels
        for spot in numbers.spots
        for c in COMPONENTS
    ]
    return Table(columns, tuple(rows), "Accuracy minus random maps, mean over heads, by checkpoint", wrap=False)


def _cells(numbers: ProfileNumbers, names: Sequence[str], layer: int, component: str, label: str) -> list[str]:
    found = (_gain(numbers, at, layer, component, label).value for at in range(len(names)))
    return [words.number(value, True, 3) for value in found]
