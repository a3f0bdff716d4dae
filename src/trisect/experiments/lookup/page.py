"""A lookup study's page: one worked pair, what q, k and v each say, and when each takes up its role in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.experiments.lookup.rows import GAIN, WEIGHT, LookupNumbers
from trisect.report import format as words
from trisect.report import render
from trisect.report.charts import CurveLine, Figure, Measure, Panel, Series, around, curve_panel
from trisect.report.sheet import Section, Sheet, Table, notes_section, present, provenance

if TYPE_CHECKING:
    from trisect.experiments.lookup.settings import LookupFacts

REFERENCES = (
    "Catherine Olsson et al. In-context Learning and Induction Heads. Transformer Circuits Thread, 2022.",
    "Nelson Elhage et al. A Mathematical Framework for Transformer Circuits. Transformer Circuits Thread, 2021.",
    "Stephen Merity et al. Pointer Sentinel Mixture Models (WikiText). ICLR 2017.",
)
RULE = (
    f"A model has induction heads from the checkpoint on at which a head's mean weight on the piece after the earlier copy is at least "
    f"{WEIGHT:g} and random pieces cost at least {GAIN:g} nat less when they come again."
)
GREY = ((), (7, 3), (2, 2), (8, 2, 2, 2))


def page(tables: Mapping[str, pl.DataFrame], about: About[LookupFacts]) -> Sheet:
    """The page; what was not measured leaves no section."""
    numbers, facts = LookupNumbers.of(tables), about.facts
    sections = present(_formation(numbers), notes_section(about))
    lede = f"{facts.corpus} · {words.several(len(numbers.seeds), 'seed')}, {len(numbers.formed)} with induction heads"
    settings = ", ".join(f"{name} {value}" for name, value in sorted(facts.settings.items()))
    made = provenance(about, ("Text", facts.corpus), ("Settings", settings))
    title = "A model that looks up in real text: what do q, k and v say, and since when?"
    return Sheet(title, "trisect · lookup", lede, sections, made, REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: About[LookupFacts]) -> tuple[Finding, ...]:
    """How many models formed induction heads, and when."""
    return (_share_formed(LookupNumbers.of(tables)),)


def _share_formed(numbers: LookupNumbers) -> Finding:
    formed, seeds = numbers.formed, numbers.seeds
    steps = sorted(formed.values())
    when = f", at steps {', '.join(words.count(round(step)) for step in steps)}" if steps else ""
    text = f"Induction heads formed in {len(formed)} of {words.several(len(seeds), 'model')}{when}."
    value = Estimate("formed", len(formed) / len(seeds) if seeds else None, n=len(seeds))
    return Finding(
        "formed", text, "of the models", (value,), what="models with induction heads", per="seed", signed=False
    )


def _formation(numbers: LookupNumbers) -> Section:
    """When the heads form: their weight and what a repetition saves, by step, and a row for each seed."""
    lines = (
        ("weight", "Weight of the best induction head", "share of attention", numbers.weights),
        ("gain", "What a repetition saves", "nats", numbers.gains),
    )
    panels = [_curves(title, unit, {"": of}) for _, title, unit, of in lines]
    last = numbers.steps[-1] if numbers.steps else 0.0
    rows = []
    for seed in numbers.seeds:
        head, when = numbers.induction_head(seed), numbers.formed.get(seed)
        texts = [words.number(numbers.loss(seed, part, last)) for part in ("text", "first", "second")]
        formed = words.count(round(when)) if when is not None else "not formed"
        rows.append((str(seed), formed, f"{head.layer}.{head.head}", words.number(head.value), *texts))
    caption = (
        "By step of training, a thin line for each seed, their mean bold. Left: the largest mean attention weight of any head on the "
        f"piece after the earlier copy, on random pieces that come twice. Right: their loss the first time less that the second time. "
        f"{words.sample(len(numbers.seeds), 'seed')}."
    )
    columns = ("Seed", "formed at step", "head", "its weight", "loss on text", "random, first", "random, again")
    table = Table(columns, tuple(rows), f"After {words.count(round(last))} steps; losses in nats a piece", folded=False)
    figure = Figure("lookup-formation", "Figure 1", "When induction heads form", caption, tuple(panels), at="step")
    return Section("When do they learn to look up?", (str(_share_formed(numbers)), RULE), (figure,), (table,))


def _curves(title: str, unit: str, found: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]) -> Panel:
    """Curves by step: a line for each name with its seeds; q, k and v have their own looks."""
    lines = []
    for number, (name, seeds) in enumerate(found.items()):
        look = render.mark(name) if name else None
        series = tuple(
            Series(
                Measure(title, unit),
                name,
                f"seed {seed}",
                seed,
                tuple(at for at, _ in points),
                tuple(value for _, value in points),
            )
            for seed, points in seeds.items()
            if points
        )
        colour, shape = (render.BASELINE, None) if look is None else (look.colour, look.shape)
        lines.append(CurveLine(name, colour, GREY[number % len(GREY)] if look is None else (), series, shape))
    values = [value for line in lines for one in line.series for value in one.values]
    return curve_panel(title, lines, around(values, unit, zero=True), "step")
