"""Numbers and findings as words, made from the rows alone: no sentence here knows how a study came out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trisect.core.files import digest
from trisect.report.rows import Mean, Point, Rows, by_component, by_site

COMPONENT = {"q": "the queries", "k": "the keys", "v": "the values"}
GROUP = {"q": "q: queries", "k": "k: keys", "v": "v: values"}
KNOWN_LABELS = {"pos": "POS", "dep": "DEP"}


def number(value: float | None, signed: bool = False, places: int = 3) -> str:
    """A number with a true minus sign and a fixed number of decimals; a dash where there is none."""
    if value is None:
        return "–"
    text = f"{value:{'+' if signed else ''}.{places}f}" if abs(value) < 1000 else f"{value:{'+' if signed else ''}.3g}"
    if not float(text):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def count(value: int | None) -> str:
    """A whole number with thin thousands."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def several(n: int, one: str, many: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def label_name(label: str) -> str:
    """A label column as a reader knows it."""
    return KNOWN_LABELS.get(label, label)


def slug(text: str) -> str:
    """A text as part of a file's name; what has to be replaced is told apart by a hash."""
    plain = re.sub(r"[^\w-]+", "-", text, flags=re.ASCII).strip("-")
    return plain if plain == text else f"{plain[:24] or 'label'}-{digest(text, 3)}"


def spoken(mean: Mean, unit: str = "", signed: bool = True) -> str:
    """A mean with its interval, as in `+0.120 nats (95 %: +0.010 to +0.230)`."""
    unit = f"\u00a0{unit}" if unit else ""
    ends = "one seed" if mean.low is None else f"95\u00a0%: {number(mean.low, signed)} to {number(mean.high, signed)}"
    return f"{number(mean.mean, signed)}{unit} ({ends})"


def extremes(points: Sequence[Point], unit: str, signed: bool = True) -> str:
    """Where the mean is largest and where it is smallest, as it stands after a subject."""
    means = by_site(points)
    top, low = max(means, key=lambda s: means[s].mean), min(means, key=lambda s: means[s].mean)
    if top == low:
        return f"at {top} it is {spoken(means[top], unit, signed)}."
    return (
        f"largest at {top}, {spoken(means[top], unit, signed)}; smallest at {low}, {spoken(means[low], unit, signed)}."
    )


def ranking(points: Sequence[Point], signed: bool = True) -> str:
    """The components' means over layers, largest first; says when the intervals of the first two overlap."""
    means = by_component(points)
    rank = sorted(means, key=lambda g: -means[g].mean)
    if len(rank) < 2:
        return ""
    said = [f"{g} {number(means[g].mean, signed)}" for g in rank]
    first, second = means[rank[0]], means[rank[1]]
    tail = ""
    if first.low is not None and second.high is not None and first.low <= second.high:
        tail = f" (the intervals of {rank[0]} and {rank[1]} overlap)"
    return f"Mean over layers: {listed(said)}{tail}."


def methods(rows: Rows) -> list[tuple[str, str, str, list[Point]]]:
    """What the answer's panels show: (kind, title, unit, points), for each method that the study has."""
    found = []
    for label in rows.labels:
        found.append(("attack", f"Attack on {label_name(label)}", "nats", rows.effects("attack", "valid", label)))
    found.append(("criticality", "Criticality", "α", rows.measure("criticality", "train")))
    found.append(("area", "Rewinding area", "nats", rows.measure("rewind_area", "train")))
    found.append(("area", "Mid-stage area", "nats", rows.measure("midstage_area", "train")))
    found.append(("freeze", "Freezing", "nats", rows.effects("freeze", "valid")))
    return [item for item in found if item[3]]


LEADS = {
    "attack": "change of the validation loss against the baseline,",
    "criticality": "how far a site must come from its initial to its final weights until the train loss stays near the final one,",
    "area": "rise of the train loss on the way from the initial to the final weights, mean over that way,",
    "freeze": "change of the validation loss against the baseline when the site keeps its initial weights,",
}


def answer(rows: Rows) -> list[tuple[str, str]]:
    """The answer in words: for each method its name and what its rows say."""
    said = []
    for kind, title, unit, points in methods(rows):
        signed = kind in ("attack", "freeze")
        shown = "" if kind == "criticality" else unit
        said.append((title, f"{LEADS[kind]} {extremes(points, shown, signed)} {ranking(points, signed)}".strip()))
    return said


def lead(rows: Rows) -> str:
    """Which component has the largest mean over layers, and in how many methods; empty where there is nothing to rank."""
    first: dict[str, list[str]] = {}
    items = [(title, by_component(points)) for _, title, _, points in methods(rows)]
    items = [(title, means) for title, means in items if len(means) > 1]
    for title, means in items:
        first.setdefault(max(means, key=lambda g: means[g].mean), []).append(title)
    if not first:
        return ""
    ranked = sorted(first, key=lambda g: -len(first[g]))
    parts = [f"{COMPONENT.get(g, g)} in {len(first[g])} ({', '.join(first[g])})" for g in ranked]
    return f"Of {several(len(items), 'method')}, the largest mean over layers belongs to {listed(parts)}."


def tally(verdicts: Mapping[str, int]) -> str:
    """How many claims came out how."""
    total = sum(verdicts.values())
    parts = [f"{verdicts.get(v, 0)} {v}" for v in ("supported", "refuted", "inconclusive")]
    return f"Of {several(total, 'claim')}, {listed(parts)} here."


def left_out(rows: Rows) -> list[str]:
    """What the paper has and this study has not, in words."""
    gone = []
    for label in ("pos", "dep"):
        if label not in rows.labels:
            gone.append(f"attacks on {label_name(label)} (figures {'3 and 4' if label == 'pos' else '5 and 6'})")
    if not rows.measure("rewind_loss_nats", "train"):
        gone.append("convex rewinding (figures 8 and 9)")
    if not rows.measure("midstage_loss_nats", "train"):
        gone.append("mid-stage rewinding (figure 10)")
    if not rows.curves("freeze", "valid"):
        gone.append("freezing (figures 11 and 12)")
    return gone
