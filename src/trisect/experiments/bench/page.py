"""The page of a benchmark: how well each method finds the known sites, by world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.report import format as words
from trisect.report.format import Mean
from trisect.report.maps import label_maps
from trisect.report.sheet import Section, Sheet, Table, notes_section, present, provenance

ALL = "all"
REFERENCES = (
    "Goro Kobayashi, Tatsuki Kuribayashi, Sho Yokoi, Kentaro Inui. Attention is Not Only a Weight: Analyzing Transformers with "
    "Vector Norms. EMNLP 2020.",
    "Nelson Elhage et al. A Mathematical Framework for Transformer Circuits. 2021.",
    "Neel Nanda. Attribution Patching: Activation Patching At Industrial Scale. 2023.",
    "János Kramár, Tom Lieberum, Rohin Shah, Neel Nanda. AtP*: An efficient and scalable method for localizing LLM behaviour to "
    "components. 2024.",
    "Decomposing Query-Key Feature Interactions Using Contrastive Covariance. arXiv 2602.04752, 2026.",
)


def _areas_of(tables: Mapping[str, pl.DataFrame]) -> dict[str, dict[str, Mean]]:
    """Mean AUROC over seeds with its interval, by method (best first) and world (all together first)."""
    areas: dict[str, dict[str, Mean]] = {}
    for world, method, value, low, high, n in sorted(tables["auroc"].rows(), key=lambda row: row[0] != ALL):
        areas.setdefault(method, {})[world] = Mean(value, low, high, n)
    return dict(sorted(areas.items(), key=lambda item: -next(iter(item[1].values())).mean))


def page(tables: Mapping[str, pl.DataFrame], about: About[Any]) -> Sheet:
    """The page from the tables auroc, worlds and methods."""
    areas, facts = _areas_of(tables), about.facts
    worlds = list(next(iter(areas.values())))
    shown = ["all worlds" if world == ALL else world for world in worlds]
    n = f"{words.sample(len(facts.seeds), 'seed')}, {words.quantity(facts.pairs, 'pair')} of texts for each property"
    rows = [
        ("", method, name, by_world[world].mean, False)
        for method, by_world in areas.items()
        for world, name in zip(worlds, shown, strict=True)
    ]
    caption = (
        f"Mean AUROC over seeds: the probability that a site by which the answer is computed scores above one that it does not "
        f"depend on; 0.5 by chance. {n}."
    )
    figure = label_maps(("auroc", "", "AUROC by method and world"), caption, rows, "AUROC", "method", "world", False)
    cells = tuple((method, *(_cell(by_world[world]) for world in worlds)) for method, by_world in areas.items())
    caption = f"Mean AUROC over seeds with 95 % intervals, none where seeds agree. {n}."
    table = Table(("Method", *shown), cells, caption, wrap=False)
    is_trained = "roles-trained" in tables["worlds"]["world"]
    but, truth = " but that of roles-trained" * is_trained, "; of roles-trained it follows from the roles" * is_trained
    scope = (
        f"Each model{but} is built by hand: which of q, k and v of which head carries a property of the texts to the answer is "
        f"known by construction{truth}. A method scores every such site for every property; it reads the model and texts, not the truth. "
        "The truth is causal, so that patching, with a pass for each site, is the upper bound: the question is which method comes close at "
        "lower cost. No world has redundant heads, which patching one site would miss.",
    )
    described = Table(("World", "what it is", "sites", "positive", "negative"), _rows(tables["worlds"]), prose=True)
    methods = Table(("Method", "what its score is", "from"), _rows(tables["methods"]), prose=True, folded=False)
    best, *others = [f"{name} {words.number(area[worlds[0]].mean, places=2)}" for name, area in areas.items()]
    details = (("Seeds", ", ".join(map(str, facts.seeds))), ("Pairs", f"{facts.pairs} for each property"))
    about_worlds = "Sites and properties of one model; a property that reaches no answer has no positive."
    where = "over all worlds" if worlds[0] == ALL else f"in {worlds[0]}"
    return Sheet(
        "Which methods find the sites that matter?",
        "trisect · RolesBench",
        f"{words.quantity(len(areas), 'method')} · {words.quantity(len(tables['worlds']), 'world')} · "
        f"{words.quantity(len(facts.seeds), 'seed')}",
        present(
            Section("AUROC by world", scope, (figure,), (table,)),
            Section("Worlds", (about_worlds,), (), (described,)),
            Section("Methods", (), (), (methods,)),
            notes_section(about),
        ),
        provenance(about, *details),
        REFERENCES,
        f"The queries, keys and values that carry the answer are found best by {best} (AUROC {where}; 0.5 is chance)"
        f"{', then ' * bool(others)}{', '.join(others)}.",
    )


def findings(tables: Mapping[str, pl.DataFrame], about: About[Any]) -> tuple[Finding, ...]:
    """The AUROC of every method, a finding for each world, that of all worlds first."""
    areas, results = _areas_of(tables), []
    for world in next(iter(areas.values())):
        ranked = sorted(areas, key=lambda method: -areas[method][world].mean)
        ranking = ", ".join(f"{method} {_cell(areas[method][world])}" for method in ranked)
        values = tuple(Estimate(method, *areas[method][world]) for method in ranked)
        name = "all worlds" if world == ALL else world
        about_world = {"what": "AUROC of sites", "groups": (world,), "per": "seed", "signed": False, "title": name}
        results.append(Finding("auroc", f"{ranking}.", "AUROC", values, **about_world))
    return tuple(results)


def _cell(area: Mean) -> str:
    """An AUROC with its interval, where it has one."""
    value = words.number(area.mean, places=2)
    return value if area.low is None else f"{value} ({words.ends(area, places=2)})"


def _rows(table: pl.DataFrame) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(str(cell) for cell in row) for row in table.iter_rows())
