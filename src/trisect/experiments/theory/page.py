"""The page of attention by hand: one self-contained HTML file, interactive without a server, and what a run found."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from markupsafe import Markup, escape

from trisect import theory
from trisect.core.errors import TheoryError
from trisect.core.finding import About, Estimate, Finding
from trisect.experiments.theory.build import build
from trisect.experiments.theory.figures import figure
from trisect.report import template
from trisect.report.sheet import Document
from trisect.theory import Construction, KeyDraws

if TYPE_CHECKING:
    from trisect.experiments.theory.settings import TheoryFacts

HERE = Path(__file__).parent
ROOMS = ("math.js", "given.js", "drawn.js", "draw.js", "views.js", "spec.js", "save.js", "page.js")
SAMPLES, SHOWN, KEYS = 2000, 300, 8  # samples in the page, those drawn as dots, and the most keys of its sliders
RELATIONS = {"equals": "=", "at most": "≤", "near": "≈"}
ROUNDING = 1e-14  # a number whose digits would be those of float64's rounding
SHAPE = {"samples": 64, "variance": 1e-4, "keys": 5}  # of the results whose words the page quotes

_LOWERED = re.compile(r"_(\{[^}]*\}|\w)")
_NEGATIVE = re.compile(r"(?<!\w)-(?=\d)")
_RAISED = re.compile(r"\^(\{[^}]*\}|\([^)]*\)|[−-]?\w+)")


def page(tables: Mapping[str, pl.DataFrame], about: About[TheoryFacts]) -> Document:
    """The interactive page, and a figure for each construction at its last β, built again from what was noted of it."""
    last = {str(one["name"]): one for one in about.facts.settings}
    drawn = tuple(figure(build(name, _arguments(one), about.facts.seed)) for name, one in last.items())
    return Document("theory.html", html(base_draws()), drawn)


def _arguments(noted: Mapping[str, str | float]) -> dict[str, float]:
    return {name: value for name, value in noted.items() if not isinstance(value, str)}


def findings(tables: Mapping[str, pl.DataFrame], about: About[TheoryFacts]) -> tuple[Finding, ...]:
    """A finding for each row of the table: what was computed beside the law, and what varies less with two heads."""
    return tuple(map(_finding, tables["theory"].iter_rows(named=True)))


def _finding(row: Mapping[str, Any]) -> Finding:
    sign = RELATIONS[row["relation"]]
    said = (
        f"{row['name']}  β {row['beta']:g}: {row['measured']} = {row['error']:.3g}; law: {sign} {row['expected']:.3g}"
    )
    values = [Estimate("error", row["error"], n=row["samples"]), Estimate("law", row["expected"])]
    if row["variance_one"] is not None:
        said += f"; variance of c {row['variance_one']:.3g} with one head, {row['variance_two']:.3g} with two"
        values += [Estimate(name, row[name], n=row["samples"]) for name in ("variance_one", "variance_two")]
    held = {True: "error ≤ law", False: "error > law"}[row["error"] <= row["expected"]]
    return Finding(row["name"], said, row["measured"], tuple(values), held if row["relation"] == "at most" else "")


def base_draws(seed: int = 0, samples: int = SAMPLES) -> KeyDraws:
    """Normal draws that every sample on the page is made of, rounded to float32, so that the page holds them exactly."""
    numbers = np.random.default_rng(seed).standard_normal((samples, 1 + 2 * KEYS)).astype(np.float32).astype(np.float64)
    return KeyDraws(numbers[:, 0], numbers[:, 1:].reshape(samples, KEYS, 2))


def html(draws: KeyDraws) -> str:
    """The whole page as one text: the article, the draws as base64, and the script. The same draws give the same text.

    Draws are 8 keys by 300 samples or more, and are kept in float32. Raises TheoryError for fewer.
    """
    samples, keys = draws.along.shape[:2]
    if samples < SHOWN or keys < KEYS:
        raise TheoryError(
            f"Draws of {samples} samples and {keys} keys were given.",
            f"The page shows up to {KEYS} keys and draws {SHOWN} samples as dots.",
            "Use those of base_draws(), or larger ones.",
        )
    results = constructions()
    return template.fill(
        HERE / "theory.html",
        template.read(template.STYLE) + template.read(HERE / "theory.css"),
        template.closed(template.SAVE, *(HERE / name for name in ROOMS)),
        {"rich": rich, "figures": figures},
        results=results,
        draws=Markup(packed(draws)),
        samples=samples,
        keys=keys,
        chance=results["stretched_key_one_head"].expected * math.sqrt(SHAPE["samples"]),
    )


def constructions() -> dict[str, Construction]:
    """All eight, small: the page takes its questions, laws, domains and errata from them."""
    sampled = {"keys": int(SHAPE["keys"]), "variance": SHAPE["variance"], "samples": int(SHAPE["samples"])}
    found = (
        theory.copying(),
        theory.average(),
        theory.random_keys_one_head(**sampled),
        theory.stretched_key_one_head(**sampled),
        theory.random_keys_two_heads(**sampled),
        theory.stretched_key_two_heads(**sampled),
        theory.identity_attention(),
        theory.key_query_value(),
    )
    return {result.name: result for result in found}


def packed(draws: KeyDraws) -> str:
    """The stretch of every sample, then the noise of every key along μ_a and μ_b, as little-endian float32 in base64."""
    return b64encode(b"".join(np.ascontiguousarray(part, dtype="<f4").tobytes() for part in draws)).decode()


def rich(text: str) -> Markup:
    """A formula in plain letters as HTML: in "α_a = e^β" what is lowered and raised; everything is escaped."""

    def tag(name: str) -> Callable[[re.Match[str]], str]:
        return lambda match: f"<{name}>{match[1].removeprefix('{').removesuffix('}')}</{name}>"

    return Markup(_RAISED.sub(tag("sup"), _LOWERED.sub(tag("sub"), _NEGATIVE.sub("−", str(escape(text))))))


def figures(numbers: tuple[float, ...]) -> Markup:
    """Numbers in a row, three digits each."""
    return Markup(", ").join(_figure(number) for number in numbers)


def _figure(number: float) -> Markup:
    digits, _, power = f"{number if abs(number) > ROUNDING else 0:.3g}".replace("-", "−").partition("e")
    return (
        Markup("{}·10<sup>{}</sup>").format(digits, power.replace("−0", "−").lstrip("+0")) if power else Markup(digits)
    )
