"""Notebook output: studies, verdicts, claims and charts as HTML and SVG, without scripts or network.

Text and lines inherit the page's colour, for light and dark themes; a chart keeps its own background.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl
from markupsafe import Markup

from trisect.core.errors import TrisectError
from trisect.core.printable import safe
from trisect.report import cards, render
from trisect.report import format as words
from trisect.report.cards import Card

STYLE = Markup("""<style>
.trisect { max-width: 62rem; line-height: 1.45; font-variant-numeric: tabular-nums; }
.trisect table { border-collapse: collapse; margin: .4rem 0; font-size: inherit; }
.trisect th, .trisect td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; background: none;
  border: 0; white-space: normal; color: inherit; }
.trisect thead th { border-bottom: 1px solid; }
.trisect .soft { opacity: .75; }
.trisect .claim { border-top: 1px solid; padding: .4rem 0; }
.trisect .part { display: flex; flex-wrap: wrap; gap: .2rem 1rem; align-items: center; padding: .15rem 0 .15rem 1.7rem; }
.trisect .part > div { flex: 1 1 20rem; }
.trisect svg { flex: none; vertical-align: middle; }
.trisect svg text { fill: currentColor; font-size: 10.5px; opacity: .75; }
.trisect .badge > * { fill: none; stroke: currentColor; stroke-width: 2; }
.trisect .claimed { fill: currentColor; opacity: .14; }
.trisect .zero { stroke: currentColor; stroke-dasharray: 3 2; opacity: .6; }
.trisect .bound { stroke: currentColor; opacity: .6; }
.trisect .family { stroke: currentColor; stroke-width: 1.2; }
.trisect .ci { stroke: currentColor; stroke-width: 4; }
.trisect .arrow { fill: none; stroke: currentColor; stroke-width: 1.4; }
.trisect .dot { fill: currentColor; }
.trisect .early { fill: currentColor; opacity: .6; }
</style>""")
ROW = Markup("<tr><th>{name}</th><td>{said}</td></tr>")


class Chart(alt.ConcatChart):
    """An Altair chart whose notebook representation is a static SVG, which needs no network."""

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        picture = render.svg(self, "chart")
        name = f"chart-{hashlib.blake2b(picture.encode(), digest_size=4).hexdigest()}"  # one page holds many charts
        return {"image/svg+xml": render.stable(picture, name), "text/plain": "a chart of trisect"}


def _frame(body: Markup) -> str:
    return safe(str(Markup('{}<div class="trisect">{}</div>').format(STYLE, body)))


def chart(original: alt.ConcatChart) -> Chart:
    """The chart with an SVG representation."""
    shown = Chart.__new__(Chart)  # the constructor would validate every part again, a second each
    shown.__dict__.update(original.__dict__)
    return shown


@dataclass(frozen=True)
class Verdict:
    """A study's verdict on one claim, displayed as a card.

    `effect`, its 95 % `interval` and its `margin` are those of the part with the least evidence for the claim, None without data;
    with one seed there is no interval.
    """

    card: Card
    effect: float | None
    interval: tuple[float, float] | None
    margin: float | None

    @property
    def id(self) -> str:
        """The claim's name, for example A-3."""
        return self.card.id

    @property
    def verdict(self) -> str:
        """supported, refuted or inconclusive."""
        return self.card.verdict

    def __str__(self) -> str:
        return f"{self.id} {self.verdict}: {self.card.sentence}"

    def __repr__(self) -> str:
        return f"<Verdict {self}>"

    def _repr_html_(self) -> str:
        return _frame(_claim(self.card))


class StudyVerdicts(dict[str, Verdict]):
    """The verdicts of a study by claim, in the order of the sources; displayed as a card per claim."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self.values())) or "no verdicts"

    def _repr_html_(self) -> str:
        tally = words.tally(cards.tally(v.card for v in self.values()))
        body = Markup("").join(_claim(v.card) for v in self.values())
        return _frame(Markup("<p><b>{}</b></p>{}").format(tally, body))


def verdicts(claims: pl.DataFrame) -> StudyVerdicts:
    """Every claim's verdict, from the table `claims`."""
    results = StudyVerdicts()
    rows = {row["claim"]: row for row in claims.filter(pl.col("part").is_null()).iter_rows(named=True)}
    for card in cards.cards(claims):
        row = rows[card.id]
        interval = None if row["low"] is None or row["high"] is None else (row["low"], row["high"])
        results[card.id] = Verdict(card, row["effect"], interval, row["margin"])
    return results


def _claim(card: Card) -> Markup:
    parts = []
    for part in card.parts:
        aside = "" if part.decides else " (shown, does not decide)"
        note = Markup(' <span class="soft">{}</span>').format(part.note) if part.note else ""
        text = Markup('<div>{}{}<br><span class="soft">{}</span>{}</div>')
        text = text.format(part.sentence, aside, part.numbers, note)
        parts.append(Markup('<div class="part">{}{}</div>').format(text, part.drawing))
    head = Markup("<div>{} <b>{} {}</b> {}</div>").format(card.badge, card.id, card.verdict, card.sentence)
    reason = Markup('<div class="soft" style="padding-left:1.7rem">{}</div>').format(card.reason) if card.reason else ""
    return Markup('<div class="claim">{}{}{}</div>').format(head, reason, Markup("").join(parts))


def error_html(error: TrisectError) -> str:
    """An error in its three parts, in place of a study that cannot be displayed."""
    parts = Markup("<br>").join((error.problem, error.reason, error.todo))
    return _frame(Markup("<p>{}</p>").format(parts))


class Listing(list[dict[str, Any]]):
    """Claims as plain data, a dictionary per part; in a notebook a table of sentences, margins and their reasons."""

    def _repr_html_(self) -> str:
        lines = []
        for i, row in enumerate(self):
            if not i or self[i - 1]["claim"] != row["claim"]:
                head = Markup('<tr><th>{}</th><th colspan="2">{}</th></tr>')
                lines.append(head.format(row["claim"], row["claim_sentence"]))
            aside = "" if row["decides"] else " (shown, does not decide)"
            part = Markup('<tr><td></td><td>{}{}</td><td class="soft">{}</td></tr>')
            lines.append(part.format(row["sentence"], aside, row["reason"]))
        head = "<thead><tr><th>claim</th><th>part, with its margin</th><th>why this margin</th></tr></thead>"
        table = Markup("<table>{}{}</table>").format(Markup(head), Markup("").join(lines))
        return _frame(table)
