"""Page: attention by hand as one self-contained HTML file, interactive without a server."""

from __future__ import annotations

import hashlib
import math
import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from trisect import theory
from trisect.core.errors import TheoryError
from trisect.core.files import replace_file
from trisect.report import sheet as report
from trisect.theory import Construction, Draws

HERE = Path(__file__).parent
ROOMS = ("math.js", "given.js", "drawn.js", "draw.js", "views.js", "spec.js", "page.js")
SAMPLES, SHOWN, KEYS = 2000, 300, 8  # samples in the page, those drawn as dots, and the most keys of its sliders
ROUNDING = 1e-14  # a number whose digits would be those of float64's rounding
SHAPE = {"samples": 64, "variance": 1e-4, "keys": 5}  # of the results whose words the page quotes

_LOWERED = re.compile(r"_(\{[^}]*\}|\w)")
_NEGATIVE = re.compile(r"(?<!\w)-(?=\d)")
_RAISED = re.compile(r"\^(\{[^}]*\}|\([^)]*\)|[−-]?\w+)")


def base_draws(seed: int = 0, samples: int = SAMPLES) -> Draws:
    """Normal draws that every sample on the page is made of, rounded to float32, so that the page holds them exactly."""
    numbers = np.random.default_rng(seed).standard_normal((samples, 1 + 2 * KEYS)).astype(np.float32).astype(np.float64)
    return Draws(numbers[:, 0], numbers[:, 1:].reshape(samples, KEYS, 2))


def write(path: Path, draws: Draws | None = None) -> Path:
    """Write the page; the same draws give the same bytes. Returns `path`.

    `draws` are 8 keys by 300 samples or more, and are kept in float32; null means `base_draws()`. Raises TheoryError for
    fewer, StudyError when the file cannot be written.
    """
    text = html(base_draws() if draws is None else draws)
    replace_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"), durable=False)
    return path


def html(draws: Draws) -> str:
    """The whole page as one text: the article, the draws as base64, and the script."""
    samples, keys = draws.along.shape[:2]
    if samples < SHOWN or keys < KEYS:
        raise TheoryError(
            f"Draws of {samples} samples and {keys} keys were given.",
            f"The page shows up to {KEYS} keys and draws {SHOWN} samples as dots.",
            "Use those of base_draws(), or larger ones.",
        )
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(rich=rich, figures=figures)
    code = f'"use strict";\n(() => {{\n{"".join(map(_read, ROOMS))}}})();\n'
    results = constructions()
    return environment.get_template("theory.html").render(
        results=results,
        draws=Markup(packed(draws)),
        samples=samples,
        keys=keys,
        chance=results["stretched_key_one_head"].expected * math.sqrt(SHAPE["samples"]),
        script=Markup(code),
        script_hash=b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        style=Markup((report.HERE / "page.css").read_text(encoding="utf-8") + _read("theory.css")),
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


def packed(draws: Draws) -> str:
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


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
