"""The page: one self-contained report.html made from the tables and the study's description alone."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trisect.claims import Check, listing, preconditions
from trisect.core.files import inside, replace_file
from trisect.experiments.study import curves, facts, figures, findings
from trisect.experiments.study import words as study_words
from trisect.experiments.study.exactness import exactness
from trisect.experiments.study.rows import Rows
from trisect.report import cards, drawing, marks, palette, render
from trisect.report import format as words
from trisect.report.panels import Figure
from trisect.report.points import Mean
from trisect.report.sheet import HERE


def write(folder: Path, tables: Mapping[str, pl.DataFrame], about: Mapping[str, Any]) -> Path:
    """Write `folder/report.html` and `folder/figures/NAME.svg` and `.png`; returns the page's path.

    `tables` holds runs, metrics, sites, claims and controls (schemas of core.tables). The same rows give the same bytes.
    Raises StudyError when the folder cannot be written.
    """
    rows = Rows.of(tables, about)
    drawn = figures.collect(rows)
    for figure in drawn:
        text = render.svg(figure.chart(), figure.name)
        _store(inside(folder, "figures", f"{figure.name}.svg"), text.encode())
        _store(inside(folder, "figures", f"{figure.name}.png"), render.png(text))
    page = folder / "report.html"
    _store(page, html(tables, rows, drawn).encode())
    return page


def html(tables: Mapping[str, pl.DataFrame], rows: Rows, drawn: list[Figure]) -> str:
    """The whole page as one text, with its style sheet and its figures inside."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=words.number, count=words.count, several=words.several, listed=words.listed)
    found = cards.cards(rows.claims, rows.controls)
    checks = preconditions({name: tables.get(name, getattr(rows, name)) for name in ("runs", "metrics", "sites")})
    views = {figure.name: _view(figure) for figure in drawn}
    script = _script()
    return environment.get_template("page.html").render(
        script=Markup(script),
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        about=rows.about,
        experiment=rows.about.get("experiment") or {},
        corpus=rows.about.get("corpus") or {},
        study=facts.study(rows),
        checks=[_check(check) for check in checks],
        attention=all(check.ok for check in checks),
        answer=views.pop("answer", None),
        words=[(one.title, one.words) for one in findings.found(rows)],
        lead=study_words.lead(rows),
        numbers=facts.numbers(rows),
        cards=found,
        several_sources=rows.claims["source"].n_unique() > 1,
        tally=words.tally(cards.tally(found)),
        badge=cards.badge,
        figures=[view for name, view in views.items() if _group(name) == "figures"],
        groups=[
            (group, title, said, [view for name, view in views.items() if _group(name) == group])
            for group, (title, said) in GROUPS.items()
            if any(_group(name) == group for name in views)
        ],
        exactness=exactness(rows),
        left_out=study_words.left_out(rows),
        references=(*dict.fromkeys(part["citation"] for part in listing("seed")), *REFERENCES),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8") + _dark_ramp(rows)),
    )


REFERENCES = (
    "Ashish Vaswani et al. Attention Is All You Need. NeurIPS 2017.",
    "Stephen Merity et al. Pointer Sentinel Mixture Models (WikiText-2). ICLR 2017.",
    "Chiyuan Zhang, Samy Bengio, Yoram Singer. Are All Layers Created Equal? JMLR 2022.",
    "Niladri Chatterji, Behnam Neyshabur, Hanie Sedghi. The Intriguing Role of Module Criticality in the Generalization of Deep "
    "Networks. ICLR 2020.",
    "John Hewitt, Percy Liang. Designing and Interpreting Probes with Control Tasks. EMNLP 2019.",
    "Yilun Xu et al. A Theory of Usable Information Under Computational Constraints. ICLR 2020.",
    "Nora Belrose et al. LEACE: Perfect Linear Concept Erasure in Closed Form. NeurIPS 2023.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


# Figures that are not the paper's, by how their names begin: the section's title and what it asks.
GROUPS = {
    "controls": (
        "Is it the label, or the attack?",
        "An attack may hurt because of what it removes, or because it is an attack. Controls attack the same sites in another way; "
        "fresh probes say what was really removed, and erasure takes the label out of the trained baseline at once.",
    ),
    "tying": (
        "Three matrices or fewer",
        "A fourth experiment: what a model loses when queries, keys and values share a matrix from the first step, against separate "
        "matrices with as many parameters.",
    ),
    "future": (
        "Beyond single submodules",
        "What the paper leaves to future work: components together against the sum of their effects, and single heads.",
    ),
}
PREFIXES = {
    "controls": ("controls-", "removed-", "erasure-"),
    "tying": ("tying",),
    "future": ("combinations", "heads-"),
}


def _group(name: str) -> str:
    """The section that a figure stands in."""
    return next((group for group, starts in PREFIXES.items() if name.startswith(starts)), "figures")


def _script() -> str:
    """The page's script as one closed text, exactly as it stands between its tags."""
    rooms = "".join((HERE / name).read_text(encoding="utf-8") for name in ("plot.js", "picture.js", "page.js"))
    return f'"use strict";\n(() => {{\n{rooms}}})();\n'


def _store(path: Path, content: bytes) -> None:
    replace_file(path, lambda scratch: scratch.write_bytes(content), durable=False)


def _check(check: Check) -> dict[str, Any]:
    said = "not measured"
    if check.effect is not None:
        said = words.spoken(Mean(check.effect, check.low, check.high, check.n), "nats")
    return {
        "name": check.name,
        "sentence": check.sentence,
        "ok": check.ok,
        "said": said,
        "margin": check.margin,
        "n": check.n,
    }


def _view(figure: Figure) -> dict[str, Any]:
    """A figure for the page: a drawing per panel, so that they can stand side by side or one above the other."""
    ends = figure.ramp and {"low": figure.ramp[0], "high": figure.ramp[1], "unit": figure.ramp[2]}
    views = [(view.name, [(p.series, p.strokes) for p in view.panels]) for view in figure.views]
    numbers = json.dumps(marks.pack(views, figure.at), ensure_ascii=False, separators=(",", ":"))
    return {
        "name": figure.name,
        "number": figure.number,
        "title": figure.title,
        "caption": figure.caption,
        "views": [
            drawing.arrangement(f"{figure.name}{'-' if i else ''}{view.name if i else ''}", view)
            for i, view in enumerate(figure.views)
        ],
        "ramp": ends,
        "stops": figure.stops,
        # Inside <script>, "<" could end the block; as an escape it is the same text.
        "numbers": Markup(numbers.replace("<", "\\u003c")),
    }


def _dark_ramp(rows: Rows) -> str:
    """Style rules that give each layer's colour its lighter twin on a dark background."""
    share = curves.depth_share(rows)
    pairs = {palette.layer_colour(share(s)): palette.layer_colour(share(s), dark=True) for s in rows.edited}
    rules = [
        f'  .view [stroke="{a}"] {{ stroke: {b}; }}\n  .view [fill="{a}"] {{ fill: {b}; }}'
        for a, b in sorted(pairs.items())
    ]
    return "\n@media screen and (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}\n"
