"""Studied: lines of evidence on q, k and v from a training study: attacks, controls, probes, erasure, rewinding, freezing, ties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trisect.claims.controls import CONTROLS
from trisect.experiments.dissect.evidence import COMPONENTS, Line
from trisect.experiments.study import removal
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import Rows
from trisect.report import format as words
from trisect.report.points import Mean, Point, by_component, interval, place

VALID = "change of the validation loss"
AT = {
    "attack": (("A-1", "A-2", "A-3", "A-4", "A-5", "A-9"), ("A-6", "A-7", "A-8", "A-9")),
    "rewinding": ("A-10", "A-11", "A-14"),
    "midstage": ("A-12",),
    "freezing": ("A-13", "A-14"),
    "tying": ("D-2",),
}


def study_lines(rows: Rows, link: str = "") -> list[Line]:
    """Every line that the study has numbers for; `link` is where its page lies, from the page that shows the lines."""
    verdicts = dict(rows.claims.filter(rows.claims["part"].is_null()).select("claim", "verdict").iter_rows())
    found: list[Line | None] = []
    for label in rows.labels:
        claims = AT["attack"][label == "dep"] if label in ("pos", "dep") else ()
        noun = study_words.label_name(label)
        plain = rows.effects("attack", "valid", label)
        found.append(_line("attack", "submodules", noun, VALID, "nats", plain, link, _of(verdicts, claims)))
        found += [_control(rows, label, variant, plain, link) for variant in CONTROLS]
        what = "accuracy that a linear probe loses at the site itself"
        taken = removal.removed(rows, label, "probe_linear_accuracy")
        found.append(_line("probe", "", noun, what, "of the tokens", taken, link))
        what = "rise of the validation loss by LEACE, less that by random subspaces"
        found.append(_line("erasure", "", noun, what, "nats", removal.beyond_chance(rows, label), link))
    for kind, measure, noun in (
        ("rewinding", "rewind_area", "initial weights"),
        ("midstage", "midstage_area", "weights of every epoch"),
    ):
        points, chosen = rows.measure(measure, "train"), _of(verdicts, AT[kind])
        found.append(
            _line(kind, "submodules", noun, "area under the rise of the train loss", "nats", points, link, chosen)
        )
    frozen = rows.effects("freeze", "valid")
    found.append(_line("freezing", "submodules", "", VALID, "nats", frozen, link, _of(verdicts, AT["freezing"])))
    found.append(_tying(rows, link, _of(verdicts, AT["tying"])))
    return [line for line in found if line is not None]


def _control(rows: Rows, label: str, variant: str, plain: Sequence[Point], link: str) -> Line | None:
    """The attack less one of its controls, paired by seed and site."""
    other = {(p.site, p.seed): p.value for p in rows.effects("attack", "valid", label, variant=variant)}
    less = [p._replace(value=p.value - other[p.site, p.seed]) for p in plain if (p.site, p.seed) in other]
    layers = words.listed(sorted({place(p.site).layers for p in less}))
    kind = {
        "control": "control labels",
        "bounded": "the bounded attack",
        "site": "the attack that reaches one projection",
        "bounded+site": "the bounded attack that reaches one projection",
    }
    what = f"{VALID}, less that by {kind[variant]}, at layer{'s' * (' ' in layers)} {layers}"
    return _line("control", "", study_words.label_name(label), what, "nats", less, link)


def _tying(rows: Rows, link: str, verdicts: tuple[tuple[str, str], ...]) -> Line | None:
    """Mean over the pairs tied in every layer that hold a component, by seed."""
    pairs: dict[str, dict[int, list[float]]] = {c: {} for c in COMPONENTS}
    for point in rows.effects("tie", "valid"):
        parts = place(point.site).group.split("+")
        for component in parts if len(parts) == 2 and not place(point.site).single else ():
            pairs[component].setdefault(point.seed, []).append(point.value)
    if not any(pairs.values()):
        return None
    q, k, v = (interval([sum(x) / len(x) for x in pairs[c].values()]) if pairs[c] else None for c in COMPONENTS)
    what = f"{VALID} when it shares its matrix with one other, mean of two ties"
    return Line("tying", "tying", what, "nats", q, k, v, verdicts=verdicts, link=link)


def _of(verdicts: Mapping[str, str], claims: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((claim, verdicts[claim]) for claim in claims if claim in verdicts)


def _line(
    kind: str,
    source: str,
    noun: str,
    what: str,
    unit: str,
    points: Sequence[Point],
    link: str,
    verdicts: tuple[tuple[str, str], ...] = (),
) -> Line | None:
    """The mean over layers within each seed, then over seeds, of q, k and v."""
    means: dict[str, Mean] = by_component(points)
    q, k, v = (means.get(c) for c in COMPONENTS)
    if not any((q, k, v)):
        return None
    said = ", ".join(filter(None, (noun, what, "mean over layers")))
    return Line(kind, source, said, unit, q, k, v, verdicts=verdicts, link=link)
