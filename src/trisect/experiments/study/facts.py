"""What the page says of the study itself: its text, model and budget, what made its runs, and the answer as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from trisect.claims import claims_hash
from trisect.core.methods import METHODS
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.report import format as words
from trisect.report.points import Mean, Point, by_site, order

POINTS = "percentage points, valid"


class NumbersTable(NamedTuple):
    """A title and a unit for each column, and for each site its cells: the mean and its interval, in words."""

    columns: list[tuple[str, str]]
    rows: list[tuple[str, list[tuple[str, str]]]]


def numbers(rows: StudyRows) -> NumbersTable:
    """The answer's picture as a table: a row per site, a column per method, and the changes of accuracy."""
    items: list[tuple[str, str, bool, list[Point]]] = []
    for one in study_words.methods(rows):
        items.append((one.title, one.unit, one.kind in study_words.SIGNED, rows.readable(one.points)))
    items += [(title, POINTS, True, points) for title, points in _accuracies(rows)]
    columns = [(title, unit, signed, by_site(points)) for title, unit, signed, points in items]
    places = [
        2 if unit == POINTS else words.decimals([m.mean for m in means.values()]) for _, unit, _, means in columns
    ]
    sites = sorted({site for *_, means in columns for site in means}, key=order)

    def cell(mean: Mean | None, signed: bool, digits: int) -> tuple[str, str]:
        if mean is None:
            return "–", ""
        return words.number(mean.mean, signed, digits), "" if mean.low is None else words.ends(mean, signed, digits)

    return NumbersTable(
        [(title, unit) for title, unit, _, _ in columns],
        [
            (site, [cell(c[3].get(site), c[2], digits) for c, digits in zip(columns, places, strict=True)])
            for site in sites
        ],
    )


def _accuracies(rows: StudyRows) -> list[tuple[str, list[Point]]]:
    """Changes of the validation accuracy in percentage points: what attacks, freezing and α = 0 do to it."""
    found = [
        (
            f"Attack on {study_words.label_name(label)}: accuracy",
            rows.readable(rows.effects("attack", "valid", label, name="accuracy")),
        )
        for label in rows.labels
    ]
    found.append(("Initial weights (α = 0): accuracy", rows.rewound_accuracy()))
    found.append(("Freezing: accuracy", rows.effects("freeze", "valid", name="accuracy")))
    return [(title, [p._replace(value=100 * p.value) for p in points]) for title, points in found if points]


def study(rows: StudyRows) -> dict[str, Any]:
    """What the head, the cards and the last section say about the study; `today` is the hash of today's claims, `changed` that runs
    carry another.
    """
    experiment, corpus = rows.about.get("experiment") or {}, rows.about.get("corpus") or {}
    edits = experiment.get("edits")
    model, splits = experiment.get("model") or {}, corpus.get("splits") or {}
    layers, heads = model.get("layers", 0), model.get("heads", 0)
    said_model = f"{words.several(layers, 'layer')}, {words.several(heads, 'head')}, width {model.get('width', '–')}"
    said_corpus = (
        f"{corpus.get('name', '–')} ({words.count(splits.get('train'))} train and {words.count(splits.get('valid'))} validation tokens, "
        f"{words.count(corpus.get('types'))} types)"
    )
    states = rows.runs["status"].value_counts().sort("status").rows()
    seconds, precision = rows.about.get("wall_seconds"), rows.about.get("precision", "float32")
    # Runs name their text as NAME:FINGERPRINT; the fingerprint alone says whether it is the same text.
    texts = {*rows.runs["corpus"].drop_nulls().unique().to_list(), corpus.get("fingerprint", "–")}
    hashes = [mark for mark in rows.runs["claims_hash"].drop_nulls().unique().sort().to_list() if mark]
    return {
        "model": said_model,
        "corpus": said_corpus,
        "budget": study_words.budget(rows),
        "seeds": words.listed([str(s) for s in rows.seeds]) or "–",
        "runs": ", ".join(f"{words.count(n)} {state}" for state, n in states) or "none",
        "hashes": hashes,
        "today": claims_hash(),
        "many": len(rows.seeds) > 1,
        "changed": any(mark != claims_hash() for mark in hashes),
        "fingerprints": sorted({text.rpartition(":")[2] for text in texts}),
        "wall": _duration(seconds) if seconds else "–",  # none where nobody noted them
        "products": "" if precision == "float32" else f", with {precision} products in training",
        "versions": _versions(rows),
        "settings": [
            (name, [(key, _setting(key, part[key])) for key in sorted(part)])
            for name in SECTIONS
            if (part := experiment.get(name))
        ]
        + ([("edits", [_edit(one) for one in edits])] if edits else []),
    }


SECTIONS = ("text", "model", "training", *METHODS)
UNSET = {"epochs": "as in training"}


def _setting(name: str, value: Any) -> str:
    """One setting in words; what is null is said as what it stands for."""
    if value is None:
        return UNSET.get(name, "all")
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _edit(edit: Mapping[str, Any]) -> tuple[str, str]:
    """One edit of its own as its kind, and its site and settings in words."""
    own = [f"{name} {edit[name]}" for name in sorted(edit) if name not in ("kind", "site") and edit[name] is not None]
    return edit["kind"], ", ".join((edit["site"], *own))


def _versions(rows: StudyRows) -> list[str]:
    """Every distinct set of versions that made runs, in words; those of the study's description where runs name none."""
    found = [json.loads(text) for text in rows.runs["versions"].drop_nulls().unique().sort().to_list()]
    found = [versions for versions in found if versions] or [rows.about.get("versions") or {}]
    return [", ".join(f"{name} {versions[name]}" for name in sorted(versions)) or "–" for versions in found]


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
