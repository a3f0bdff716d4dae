"""Verdict cards: the table of claims as HTML, with each part's effect beside its margin, and whether it survives controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import polars as pl
from markupsafe import Markup

from trisect.claims.models import MAX_UNITS
from trisect.claims.reasons import read_reason
from trisect.claims.verdicts import CONTROLS, LOST_EFFECT, NO_EFFECT, SURVIVAL_UNDECIDED, SURVIVES
from trisect.core.claim import REVISION
from trisect.papers import source_of
from trisect.report import format as words
from trisect.report.format import Mean, count, number, quantity, why_open
from trisect.stats.power import MAX_SEEDS

ALSO_WORDS = ("does it too", "does not do it")
CONTROL_WORDS = {  # of each control its name, who is compared, and what that one does where a claim survives, and where not
    "control": ("Control labels", "a label drawn by chance", "does not do as much", "does as much"),
    "bounded": ("Bounded attack", "an attack whose loss has a floor", *ALSO_WORDS),
    "site": (
        "Gradient limited to this projection",
        "an attack that trains the site's own projection alone",
        *ALSO_WORDS,
    ),
    "bounded+site": (
        "Bounded, gradient limited to this projection",
        "a bounded attack that trains the site's own projection alone",
        *ALSO_WORDS,
    ),
}
NAMES = {control: name for control, (name, *_) in CONTROL_WORDS.items()}
OPEN_WORDS = {
    SURVIVAL_UNDECIDED: "undecided at these seeds",
    NO_EFFECT: "nothing to survive: the attack has no such effect here",
}
HEADS = {
    SURVIVES: "survive",
    LOST_EFFECT: "do not",
    SURVIVAL_UNDECIDED: "undecided",
    NO_EFFECT: "no such effect to begin with",
}
# the reading of a claim is the first of its parts' in this order
RANK = (LOST_EFFECT, NO_EFFECT, SURVIVAL_UNDECIDED, SURVIVES)


class _Survival(NamedTuple):
    """The reading of a claim against one control: in words, and a line of numbers for each part."""

    name: str
    reading: str
    parts: tuple[str, ...]


def survivals(controls: pl.DataFrame, source: str, claim: str) -> tuple[_Survival, ...]:
    """The controls of one claim in words; empty if none was run."""
    rows = controls.filter(pl.col("source") == source, pl.col("claim") == claim, pl.col("control").is_in(CONTROLS))
    results = []
    for (control,), group in rows.sort("part").group_by("control", maintain_order=True):
        parts = []
        for row in group.iter_rows(named=True):
            difference = words.mean_words(Mean(row["difference"], row["low"], row["high"], row["n"]))
            attack, beside = (words.number(row[name], True) for name in ("effect", "control_effect"))
            numbers = f"{attack} with the attack, {beside} with the control; difference {difference}"
            parts.append(f"{row['part']}: {numbers}. {row['reading'].capitalize()}.")
        name, who, survives, fails = CONTROL_WORDS[control]
        reading = _joint_reading(group["reading"].to_list())
        clear = f"survives: {who} {survives}" if reading == SURVIVES else f"does not survive: {who} {fails}"
        results.append((CONTROLS.index(control), _Survival(name, OPEN_WORDS.get(reading, clear), tuple(parts))))
    return tuple(survival for _, survival in sorted(results, key=lambda pair: pair[0]))


def _joint_reading(readings: Sequence[str]) -> str:
    """The reading of a claim from those of its parts: it survives if all parts do."""
    return next(reading for reading in RANK if reading in readings)


def tally_survival(table: pl.DataFrame) -> dict[str, dict[str, list[str]]]:
    """For each control that was run, the claims by their reading against it."""
    by_control: dict[str, dict[str, list[str]]] = {}
    for control in CONTROLS:
        readings: dict[str, list[str]] = {}
        for row in table.filter(pl.col("control") == control).iter_rows(named=True):
            readings.setdefault(row["claim"], []).append(row["reading"])
        sorts: dict[str, list[str]] = {}
        for claim in sorted(readings, key=lambda c: (c.partition("-")[0], int(c.partition("-")[2]))):
            sorts.setdefault(_joint_reading(readings[claim]), []).append(claim)
        if sorts:
            by_control[control] = {reading: sorts[reading] for reading in HEADS if reading in sorts}
    return by_control


def survival_sentence(control: str, sorts: Mapping[str, Sequence[str]]) -> str:
    """Which claims survive one control and which do not, as a sentence."""
    parts = [f"{HEADS[reading]}: {words.join_words(claims)}" for reading, claims in sorts.items()]
    return f"{NAMES[control]}: {'; '.join(parts)}."


WIDTH, HEIGHT, EDGE = 220, 34, 8
MIDDLE, FOOT, TIGHT_PITCH = 11, 22, 36
TRAINING_UNITS = ("seed", "model")  # units that are trained, whose differences are paired
PLACES = {"name": 3}  # decimals, fixed where the effects are shares of such units
VERDICTS = ("supported", "refuted", "inconclusive", "not tested")


@dataclass(frozen=True)
class _PartView:
    """A part of a claim for the page: sentence, numbers as words, and drawing."""

    sentence: str
    numbers: str
    reading: str
    drawing: Markup
    decides: bool
    note: str


@dataclass(frozen=True)
class Card:
    """A claim for the page."""

    id: str
    sentence: str
    verdict: str
    badge: Markup
    reason: str
    parts: tuple[_PartView, ...]
    facts: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    early_stopping: str
    diverged: str
    replication: bool
    controls: tuple[_Survival, ...] = ()
    collapsed: str = ""
    revision: int = REVISION


def cards(claims: pl.DataFrame, controls: pl.DataFrame | None = None) -> list[Card]:
    """A card for every claim, in the order of the table (schema `claims`).

    `controls` is the table of that name, for claims about attacks that were controlled.
    """
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in claims.iter_rows(named=True):
        grouped.setdefault((row["source"], row["claim"]), []).append(row)
    by_claim = {key: _card(rows) for key, rows in grouped.items() if any(r["part"] is None for r in rows)}
    if controls is None:
        return list(by_claim.values())
    return [replace(card, controls=survivals(controls, *key)) for key, card in by_claim.items()]


def tally(cards: Iterable[Card]) -> dict[str, int]:
    """How many cards have each verdict."""
    counts = Counter(card.verdict for card in cards)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def badge(verdict: str, size: int = 22) -> Markup:
    """The verdict as a shape: a filled disc, a filled square, or an open diamond, with a sign in it."""
    shapes = {
        "supported": '<circle cx="12" cy="12" r="11"/><path class="sign" d="M6.5 12.5l4 4 7-8.5"/>',
        "refuted": '<rect x="1" y="1" width="22" height="22" rx="2"/><path class="sign" d="M7 7l10 10M17 7L7 17"/>',
        "inconclusive": '<path class="open" d="M12 1.5L22.5 12 12 22.5 1.5 12Z"/><path class="dash" d="M8 12h8"/>',
        "not tested": '<circle class="open" cx="12" cy="12" r="10.5" stroke-dasharray="3 3"/>',
    }
    shape = shapes.get(verdict, shapes["inconclusive"])
    return Markup(
        '<svg class="badge" viewBox="0 0 24 24" width="{0}" height="{0}" aria-hidden="true">{1}</svg>'
    ).format(size, Markup(shape))


def _card(rows: Sequence[Mapping[str, Any]]) -> Card:
    claim = next(r for r in rows if r["part"] is None)
    parts = [r for r in rows if r["part"] is not None]
    spans = {unit: _span([r for r in parts if r["unit"] == unit]) for unit in dict.fromkeys(r["unit"] for r in parts)}
    verdict = claim["verdict"] if claim["verdict"] in VERDICTS else "inconclusive"
    many, fell = claim["diverged"] or 0, claim["collapsed"] or 0
    unit = f" {claim['unit']}" if claim["unit"] else ""
    source = source_of(claim["source"])
    varies, needs = claim["over"] or source.unit, claim["over"] or source.needs or source.unit
    spread = "–" if claim["spread"] is None else f"{number(claim['spread'])}{unit}"
    turned, early = [r["part"] for r in parts if r["early_stopping"]], ""
    if claim["early_stopping"] is not None:
        early = "Early stopping: no part about validation turns round at the best epoch or at matched train loss."
        if claim["early_stopping"] or turned:
            early = "Explained by early stopping: turned round at the best validation epoch or at matched train loss: "
            early += f"{'; '.join(turned)}."
    return Card(
        id=claim["claim"],
        sentence=claim["sentence"] or "",
        verdict=verdict,
        badge=badge(verdict),
        reason=why_open(dict(claim)),
        parts=tuple(_part(r, spans[r["unit"]]) for r in parts),
        facts=(
            (f"{varies.capitalize()}s (n)", count(claim["n"])),
            (f"{needs.capitalize()}s needed", _units_needed(claim, parts, varies)),
            ("Paired spread" if varies in TRAINING_UNITS else "Spread", spread),
            ("p (Holm)", words.p_value(claim["p_holm"])),
        ),
        reasons=tuple(dict.fromkeys(r["margin_reason"] for r in parts if r["margin_reason"])),
        early_stopping=early,
        diverged=f"{quantity(many, 'run')} of this claim diverged and entered with the last finite loss." * bool(many),
        collapsed=f"{quantity(fell, 'run')} of this claim collapsed: the attack kept the model at word frequencies throughout."
        * bool(fell),
        revision=claim["revision"],
        replication=verdict != "supported",
    )


def _units_needed(claim: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], varies: str) -> str:
    """The number of seeds, or texts, that would decide the claim; none if a rule prevents a verdict.

    Nobody can give a model more heads, and a spread that is not known tells nothing.
    """
    if claim["verdict"] == "not tested":
        return "not tested"
    if claim["verdict"] != "inconclusive":
        return "sample size sufficient"
    if claim["seeds_needed"] is not None:
        return count(claim["seeds_needed"])
    reason = read_reason(claim["reason"])
    match reason.kind:
        case "few trained" if reason.unit != "layer":
            return str(reason.need)
        case "undecided" if varies in TRAINING_UNITS:
            return f"more than {MAX_SEEDS - 1}"
        case "undecided" if varies != "head" and all(r["spread"] for r in parts if r["decides"]):
            return f"more than {count(MAX_UNITS)}"
        case "undecided" | "undecided over" | "few resampled" | "single" | "single seed":
            return "not known"
        case "no spread" if reason.unit != "layer":
            return "not known"
        case _:
            return "not testable here"


def _part(row: Mapping[str, Any], span: tuple[float, float]) -> _PartView:
    unit = f" {row['unit']}" if row["unit"] else ""
    places = PLACES.get(row["over"] or source_of(row["source"]).unit)
    effect, low, high = (number(row[column], True, places) for column in ("effect", "low", "high"))
    if row["effect"] is None:
        numbers = "no number"
    elif row["low"] is None:
        numbers = f"{effect}{unit}, no interval"
    else:
        numbers = f"{effect}{unit}, 95\u00a0% {low} to {high}"
    readings = [
        f"{name} {number(row[key], True)}"
        for key, name in (
            ("effect_best_valid", "at the best validation epoch"),
            ("effect_matched_train", "at matched train loss"),
            ("above_unigram", "fraction above unigram"),
        )
        if row[key] is not None
    ]
    return _PartView(
        sentence=row["sentence"] or row["part"],
        numbers=numbers,
        reading="; ".join(readings),
        drawing=_forest(row, span),
        decides=row["decides"] is not False,
        note=row["reason"] or "",
    )


def _span(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The range shared by all parts of a unit: bounds, effects, and intervals that are not much longer than the rest."""
    core = [0.0]
    for row in rows:
        bound = row["bound"] or 0.0
        core += [bound * 1.6, -bound * 1.6 if row["direction"] == "within" else 0.0]
        core += [] if row["effect"] is None else [row["effect"]]
    left, right = min(core), max(core)
    for ends, room in ((("low", "high"), 3.0), (("low_family", "high_family"), 1.0)):
        reach = room * ((right - left) or 0.01)
        core += [min(max(row[e], left - reach), right + reach) for row in rows for e in ends if row[e] is not None]
    air = 0.06 * (max(core) - min(core)) or 0.01
    return min(core) - air, max(core) + air


def _forest(row: Mapping[str, Any], span: tuple[float, float]) -> Markup:
    """A part as SVG: the claimed side tinted, the baseline dashed, the 95 % interval thick, the family's thin."""
    low, high = span

    def at(value: float) -> float:
        share = (value - low) / (high - low)
        return round(EDGE + (WIDTH - 2 * EDGE) * min(max(share, 0.0), 1.0), 1)

    bound = row["bound"] or 0.0
    left, right = {
        "above": (at(bound), WIDTH - EDGE),
        "below": (EDGE, at(bound)),
        "within": (at(-abs(bound)), at(abs(bound))),
    }.get(row["direction"], (0, 0))
    size = f'width="{max(0.0, round(right - left, 1))}" height="{FOOT}"'
    marks = [
        f'<rect class="claimed" x="{left}" y="0" {size}/>',
        f'<line class="zero" x1="{at(0.0)}" x2="{at(0.0)}" y1="0" y2="{FOOT}"/>',
    ]
    for bound in _bounds(row):
        marks.append(f'<line class="bound" x1="{at(bound)}" x2="{at(bound)}" y1="0" y2="{FOOT}"/>')
    ticks = {value: f"{value:+g}".replace("-", "−") if value else "0" for value in (*_bounds(row), 0.0)}
    if len(ticks) == 3 and at(max(ticks)) - at(0.0) < TIGHT_PITCH:
        ticks = {0.0: f"±{max(ticks):g}"}
    places: list[float] = []
    for value, text in ticks.items():  # less those that would run into their neighbour
        x = min(max(at(value), EDGE + 10), WIDTH - EDGE - 10)
        if all(abs(x - other) >= TIGHT_PITCH for other in places):
            places.append(x)
            marks.append(f'<text x="{x}" y="{HEIGHT - 2}" text-anchor="middle"><tspan>{text}</tspan></text>')
    for kind, first, last in (("family", "low_family", "high_family"), ("ci", "low", "high")):
        a, b = row[first], row[last]
        if a is not None and b is not None and not (b < low or a > high):
            marks.append(f'<line class="{kind}" x1="{at(a)}" x2="{at(b)}" y1="{MIDDLE}" y2="{MIDDLE}"/>')
            marks += [_arrow(at(low), -1)] if a < low else []
            marks += [_arrow(at(high), 1)] if b > high else []
    for key, y, way in (("effect_best_valid", 6, -1), ("effect_matched_train", FOOT - 6, 1)):
        if row[key] is not None and low <= row[key] <= high:
            marks.append(f'<path class="early" d="M{at(row[key])} {y}l3.5 {5 * way}h-7Z"/>')
    if row["effect"] is not None:
        marks.append(f'<circle class="dot" cx="{at(row["effect"])}" cy="{MIDDLE}" r="4"/>')
    effect = "no number" if row["effect"] is None else f"effect {number(row['effect'], True)}"
    head = Markup('<svg class="forest" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">')
    head = head.format(w=WIDTH, h=HEIGHT, label=f"{row['sentence'] or row['part']}: {effect}")
    return head + Markup("".join(marks) + "</svg>")


def _bounds(row: Mapping[str, Any]) -> tuple[float, ...]:
    if not (bound := row["bound"]):
        return ()
    return (-bound, bound) if row["direction"] == "within" else (bound,)


def _arrow(x: float, way: int) -> str:
    return f'<path class="arrow" d="M{x} {MIDDLE - 3.5}l{way * 5} 3.5l{-way * 5} 3.5"/>'
