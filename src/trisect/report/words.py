"""Numbers and findings as words, made from the rows alone: no sentence here knows how a study came out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from trisect.core.files import digest
from trisect.report.rows import Mean, Point, Rows, alike, by_component, by_site, extreme

COMPONENT = {"q": "the queries", "k": "the keys", "v": "the values"}
GROUP = {"q": "q: queries", "k": "k: keys", "v": "v: values"}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
KNOWN_LABELS = {"pos": "POS", "dep": "DEP"}


FEW, NOTHING = 3, 1e-12


def number(value: float | None, signed: bool = False, places: int | None = None) -> str:
    """A number with a true minus sign, three decimals, and below 0.1 three digits that count; a dash where there is none.

    `places` fixes the decimals, for a column of a table.
    """
    if value is None:
        return "–"
    size, sign = abs(value), "+" if signed else ""
    if places is None and NOTHING < size < 0.1:
        form = f".{2 - math.floor(math.log10(size))}f" if size >= 1e-6 else ".2e"
    else:
        form = f".{3 if places is None else places}f" if size < 1000 else ".3g"
    text = f"{value:{sign}{form}}"
    if not float(text):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def decimals(values: Sequence[float]) -> int:
    """How many decimals a column of a table needs: three, and up to five where its smallest number would hide."""
    sizes = [abs(v) for v in values if abs(v) > NOTHING]
    return min(5, max(3, 1 - math.floor(math.log10(min(sizes))))) if sizes else 3


def count(value: int | None) -> str:
    """A whole number with thin thousands."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def several(n: int, one: str, many: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def seeds(rows: Rows) -> str:
    """`n = 3 seeds`, for a caption."""
    return f"n\u00a0=\u00a0{several(len(rows.seeds), 'seed')}"


def label_name(label: str) -> str:
    """A label column as a reader knows it."""
    return KNOWN_LABELS.get(label, label)


def slug(text: str) -> str:
    """A text as part of a file's name; what has to be replaced is told apart by a hash."""
    plain = re.sub(r"[^\w-]+", "-", text, flags=re.ASCII).strip("-")
    return plain if plain == text and len(text) <= 80 else f"{plain[:24] or 'label'}-{digest(text, 3)}"


def spoken(mean: Mean, unit: str = "", signed: bool = True) -> str:
    """A mean with its interval, as in `+0.120 nats (95 %: +0.0100 to +0.230)`."""
    unit = f"\u00a0{unit}" if unit else ""
    ends = "one seed" if mean.n < 2 else f"the same in all {mean.n} seeds"
    if mean.low is not None:
        ends = f"95\u00a0%: {number(mean.low, signed)} to {number(mean.high, signed)}"
    return f"{number(mean.mean, signed)}{unit} ({ends})"


def extremes(points: Sequence[Point], unit: str, signed: bool = True) -> str:
    """Where the mean is highest and where it is lowest, as it stands after a subject; ties are said as ties.

    Numbers that have no sign of their own are called largest and smallest.
    """
    means = by_site(points)
    top, low = extreme(means, 1), extreme(means, -1)
    if len(means) == 1:
        return f"at {top[0]} it is {spoken(means[top[0]], unit, signed)}."
    if len(top) == len(means):
        return f"the same at all {several(len(means), 'site')}: {_bare(means[top[0]], unit, signed)}."
    high_word, low_word = ("highest", "lowest") if signed else ("largest", "smallest")
    ends = ((high_word, top), (low_word, low))
    return "; ".join(f"{word} {_where(means, sites, unit, signed)}" for word, sites in ends) + "."


def _where(means: Mapping[str, Mean], sites: Sequence[str], unit: str, signed: bool) -> str:
    mean = means[sites[0]]
    if len(sites) == 1:
        return f"at {sites[0]}, {spoken(mean, unit, signed)}"
    place = listed(sites) if len(sites) <= FEW else f"{len(sites)} of {several(len(means), 'site')}"
    return f"{_bare(mean, unit, signed)} at {place}"


def _bare(mean: Mean, unit: str, signed: bool) -> str:
    return number(mean.mean, signed) + (f"\u00a0{unit}" if unit else "")


class Size(NamedTuple):
    """How large a component's mean is, with the ends of its interval; a difference counts without its sign."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, mean: Mean, signed: bool) -> Size:
        """The size of a mean; one without an interval is its own interval."""
        low, high = (mean.mean if end is None else end for end in (mean.low, mean.high))
        if not signed:
            return cls(mean.mean, low, high)
        least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return cls(abs(mean.mean), least, max(abs(low), abs(high)))


def ranked(points: Sequence[Point], signed: bool = True) -> tuple[list[str], list[str]]:
    """Components by the size of their mean over layers, largest first, and those not told apart from the first.

    Not told apart: the same mean, or a 95 % interval that overlaps that of the first.
    """
    sizes = {group: Size.of(mean, signed) for group, mean in by_component(points).items()}
    rank = sorted(sizes, key=lambda g: -sizes[g].mean)
    if not rank:
        return [], []
    first = sizes[rank[0]]
    return rank, [g for g in rank[1:] if alike(sizes[g].mean, first.mean) or sizes[g].high >= first.low]


def ranking(points: Sequence[Point], signed: bool = True) -> str:
    """The components' means over layers, largest first; says which are not told apart from the first."""
    means = by_component(points)
    rank, rivals = ranked(points, signed)
    if len(rank) < 2:
        return ""
    said = [f"{g} {number(means[g].mean, signed)}" for g in rank]
    tail = f" ({listed([rank[0], *rivals])} are not told apart)" if rivals else ""
    return f"Mean over layers{' (largest change first)' if signed else ''}: {listed(said)}{tail}."


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


SIGNED = ("attack", "freeze")


def answer(rows: Rows) -> list[tuple[str, str]]:
    """The answer in words: for each method its name and what its rows say."""
    said = []
    for kind, title, unit, points in methods(rows):
        signed = kind in SIGNED
        shown = "" if kind == "criticality" else unit
        said.append((title, f"{LEADS[kind]} {extremes(points, shown, signed)} {ranking(points, signed)}".strip()))
    return said


def lead(rows: Rows) -> str:
    """Which component has the largest mean over layers, and in how many methods; empty where there is nothing to rank.

    A method whose intervals overlap, or whose means tie, is counted for none.
    """
    first: dict[str, list[str]] = {}
    open_ones: list[str] = []
    kinds = set()
    for kind, title, _, points in methods(rows):
        rank, rivals = ranked(points, kind in SIGNED)
        if len(rank) < 2:
            continue
        kinds.add(kind in SIGNED)
        if rivals:
            open_ones.append(f"{title} ({listed([rank[0], *rivals])})")
        else:
            first.setdefault(rank[0], []).append(title)
    if not kinds:
        return ""
    total = sum(map(len, first.values())) + len(open_ones)
    what = " or ".join(["largest change"] * (True in kinds) + ["largest mean"] * (False in kinds))
    parts = [
        f"{COMPONENT.get(g, g)} in {len(first[g])} ({', '.join(first[g])})"
        for g in sorted(first, key=lambda g: -len(first[g]))
    ]
    said = []
    if parts:
        said.append(f"Of {several(total, 'method')}, the {what} over layers belongs to {listed(parts)}.")
    if open_ones:
        start = (
            "No method tells"
            if not parts
            else "One does not tell"
            if len(open_ones) == 1
            else f"{len(open_ones)} do not tell"
        )
        said.append(f"{start} the first apart from others: {'; '.join(open_ones)}.")
    if len(rows.seeds) == 1:
        said.append("One seed says nothing of chance.")
    return " ".join(said)


def budget(rows: Rows) -> str:
    """What was spent: epochs, optimizer and rate, the attacks' own epochs and strengths, seeds."""
    training = (rows.about.get("experiment") or {}).get("training") or {}
    epochs = training.get("epochs", 0)
    said = [
        f"{several(epochs, 'epoch')} of {OPTIMIZERS.get(training.get('optimizer', ''), '–')} at rate {training.get('rate', '–')}"
    ]
    if rows.strengths:
        short = [several(n, "epoch") for n in rows.attack_epochs if n != epochs]
        strengths = f"λ = {listed([f'{s:g}' for s in rows.strengths])}"
        said.append(f"attacks {f'for {short[0]} ' if short else ''}with {strengths}")
    return ", ".join([*said, several(len(rows.seeds), "seed")])


def attacked(rows: Rows) -> str:
    """With which strength, and for how long, the attacks that the answer shows were made; empty without attacks."""
    if rows.strength is None:
        return ""
    others = [s for s in rows.strengths if s != rows.strength]
    also = f" (also run: {listed([f'{s:g}' for s in others])})" if others else ""
    long = listed([several(n, "epoch") for n in rows.attack_epochs])
    return f" Attacks are shown with λ = {rows.strength:g}{also}, after {long}."


def from_diverged(points: Sequence[Point]) -> str:
    """How many of the values rest on a diverged run, and what became of them; empty where none does."""
    many = sum(p.diverged for p in points)
    verb = "comes" if many == 1 else "come"
    return (
        f" {many} of {several(len(points), 'value')} {verb} from diverged runs; the final loss of such a run is the last finite "
        "one, clipped at the loss at initialisation."
        if many
        else ""
    )


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


def verdict_lines(claims: pl.DataFrame) -> list[str]:
    """A line for each claim: its verdict, its effect with its interval, and why if it is inconclusive."""
    said = []
    for row in claims.filter(pl.col("part").is_null()).iter_rows(named=True):
        line = f"{row['claim']}  {row['verdict']}: {row['sentence']}"
        if row["effect"] is not None and row["low"] is not None:
            ends = f"{number(row['low'], True)} to {number(row['high'], True)}"
            line += f" {number(row['effect'], True)} {row['unit']} (95 %: {ends})"
        said.append(line + (f" ({row['reason']})" if row["reason"] else ""))
    return said
