"""The READMEs of results/wikitext2-all-layers and wikitext2-large* from the tables beside them; tools/written.py writes them."""

from __future__ import annotations

import functools
import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from trisect.core.files import read_json
from trisect.core.finding import ALIKE, NOT_TESTED
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.experiments.study.rows import StudyRows
from trisect.report.format import Mean, Point, by_site, interval, place
from trisect.stats.compare import compare
from trisect.stats.paired import summary, t_test
from trisect.stats.tested import holm, two_sided

ROOT = Path(__file__).parents[1] / "results"
shared = runpy.run_path(str(Path(__file__).with_name("written_alignment.py")))
table: Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]] = shared["table"]
said: Callable[..., str] = shared["said"]
mean_said: Callable[..., str] = shared["mean_said"]
verdicts: Callable[..., list[str]] = shared["verdicts"]

TOGETHER = """# All layers at once on WikiText-2, five seeds

One component, or several, in all five layers at a time: rewound to its initial weights, frozen throughout training, or replaced by its mean
over the text. The model of [wikitext2-small](../wikitext2-small/README.md), on the same text without labels. Written by
`python tools/written.py` from the tables here.

```sh
trisect study wikitext2-small --corpus wikitext-2 --seeds 5 --only freeze,rewind,ablate \\
  --sites q@all --sites k@all --sites v@all --sites q+k@all --sites q+k+v@all --out all-layers
```
"""
FULL = (
    ("rewound to initialisation, train loss", "rewind_loss_nats", "train"),
    ("rewound to initialisation, validation loss", "rewind_loss_nats", "valid"),
    ("mean ablation, validation loss", "ablate_rise_nats", "valid"),
)
SPLITS = {"train": "train", "validation": "valid"}


def changes(rows: StudyRows) -> dict[str, Mapping[str, Mean]]:
    """What every edit of a site changes the loss by, where it was made: frozen, at its initial weights, at its mean."""
    return {name: by_site(points) for name, points in changed(rows).items()}


def changed(rows: StudyRows) -> dict[str, list[Point]]:
    """The same for each seed."""
    found = {f"frozen, {split} loss": rows.effects("freeze", split) for split in ("train", "valid")}
    for name, measure, split in FULL:
        points = rows.measure(measure, split)
        if measure == "rewind_loss_nats":
            end = {(p.site, p.seed): p.value for p in points if p.at == 1}
            points = [p._replace(value=p.value - end[p.site, p.seed], at=None) for p in points if p.at == 0]
        found[name] = points
    return {name: list(points) for name, points in found.items() if points}


def paired(points: Sequence[Point], sites: Sequence[str]) -> list[str]:
    """What paired differences over seeds say of three sites: in words, then each difference with its interval."""
    values = {(p.site, p.seed): p.value for p in points}
    seeds = sorted({seed for site, seed in values if all((s, seed) in values for s in sites)})
    found = compare({site[0]: [values[site, seed] for seed in seeds] for site in sites}, ALIKE)
    said = (f"{p.first} − {p.second} {mean_said(Mean(p.effect, p.low, p.high, found.n), 3)}" for p in found.pairs)
    return [found.words(), "; ".join(said)]


def which_component(rows: StudyRows, sites: Sequence[str]) -> list[str]:
    """q, k and v of all layers by paired differences: a line of words and a table, a row for each change of the loss."""
    lines = [[name, *paired(points, sites)] for name, points in changed(rows).items()]
    return [
        "Which of the three is largest, by paired differences over seeds (Student t, Holm over the three pairs):",
        "",
        *table(["change of the loss", "", "differences, nats (95 %)"], lines),
    ]


def which_layer(rows: StudyRows) -> list[str]:
    """The first layer against each other one, mean of q, k and v, by paired differences over seeds; empty without single layers."""
    measured = {name: points for name, points in changed(rows).items() if name.startswith("rewound")}
    measured |= {
        f"area of rewinding, {name} loss": rows.measure("rewind_area", split) for name, split in SPLITS.items()
    }
    found = {name: _by_layer(points) for name, points in measured.items()}
    layers = sorted({layer for means in found.values() for layer in means})
    lines = []
    for name, means in found.items():
        if list(means) != layers or len(layers) < 2:
            continue
        less = [[means[layers[0]][seed] - means[n][seed] for seed in means[n]] for n in layers[1:]]
        p = holm([float(two_sided(t_test(summary(d), "above", 0.0))) for d in less])
        lines.append([name, *(f"{mean_said(interval(d), 4)}, p {q:.2g}" for d, q in zip(less, p, strict=True))])
    if not lines:
        return []
    return [
        f"Layer {layers[0]} less each other layer, mean of q, k and v, paired over seeds (nats; Student t, p after Holm over the row):",
        "",
        *table(["change of the loss", *(f"layer {layers[0]} − layer {n}" for n in layers[1:])], lines),
    ]


def _by_layer(points: Sequence[Point]) -> dict[int, dict[int, float]]:
    """Mean of q, k and v of every single layer, by seed, layers upwards; seeds that have all of them."""
    places = {point.site: place(point.site) for point in points}
    single = {
        (int(places[p.site].layers), places[p.site].group, p.seed): p.value
        for p in points
        if places[p.site].single and places[p.site].group in ("q", "k", "v")
    }
    layers, seeds = sorted({n for n, _, _ in single}), sorted({seed for _, _, seed in single})
    whole = [seed for seed in seeds if all((n, c, seed) in single for n in layers for c in "qkv")]
    return {n: {seed: sum(single[n, c, seed] for c in "qkv") / 3 for seed in whole} for n in layers}


def together() -> str:
    """results/wikitext2-all-layers/README.md, as it should be."""
    place = ROOT / "wikitext2-all-layers"
    tables = {name: read_table(place / "tables", name) for name in STUDY_TABLES}
    experiment = json.loads((place / "experiment.json").read_text(encoding="utf-8"))
    rows = StudyRows.of(tables, {"experiment": experiment[0] if isinstance(experiment, list) else experiment})
    runs = tables["runs"]
    made = f"{len(runs)} runs, seeds {', '.join(map(str, rows.seeds))}; {runs['wall_seconds'].sum() / 60:.0f} core-minutes of training."
    means = changes(rows)
    sites = list(next(iter(means.values())))
    body = [[name, *(mean_said(mean.get(site), 4) for site in sites)] for name, mean in means.items()]
    asked = tables["claims"].filter(pl.col("claim") == "A-15")
    head = ["change of the loss, nats", *sites]
    note = (
        "With keys at their mean every score of a query is the same, so that queries no longer matter: q+k is k. With values at their mean "
        "nothing depends on the scores: q+k+v is v."
    )
    three = [site for site in sites if "+" not in site]
    lines = [TOGETHER, made, "", *verdicts(asked), *table(head, body), note, "", *which_component(rows, three)]
    return "\n".join([*lines, *parts_of(asked)]).rstrip() + "\n"


def parts_of(asked: pl.DataFrame) -> list[str]:
    """What decides each claim, part by part."""
    lines = list[str]()
    for claim in asked.filter(pl.col("part").is_null())["claim"]:
        parts = [
            [
                row["part"],
                said(row | {"value": row["effect"]}, 1.0, 4),
                f"{row['margin']:g}",
                row["unit"],
                row["reason"] or "",
            ]
            for row in asked.filter(pl.col("part").is_not_null(), claim=claim).iter_rows(named=True)
        ]
        lines += table([f"part of {claim}", "effect (95 %)", "margin", "unit", ""], parts)
    return lines


LARGER = """# A model of the source's kind on all of WikiText-2

Five layers of width 200 with five heads, 28,782 words, 2,049,990 tokens of training text, AdamW, three epochs: a model that uses its
attention. q, k and v of every layer, and of all layers at once, put back to their initial weights or replaced by their mean. Train losses
are of a sample of 14,000 tokens, validation losses of rewinding of one of 20,020, all others of the whole validation text. Written by
`python tools/written.py` from the tables here.

```sh
trisect study experiment.json --corpus wikitext-2 --fleet 1 --out larger
```

Freezing, in models of one epoch, is in
[wikitext2-large-freezing](../wikitext2-large-freezing/README.md).
"""
FROZEN = """# The larger model with q, k or v frozen in all layers

The model and text of [wikitext2-large](../wikitext2-large/README.md), for one epoch of training: q, k or v of all five layers kept at their
initial weights from the first step on, beside the same models rewound and ablated. Minutes of training count waiting for other work.
Losses are of the same samples. Written by `python tools/written.py` from the tables here.

```sh
trisect study experiment.json --corpus wikitext-2 --fleet 1 --out freezing
```
"""
LONGER = """# The larger model with q, k or v frozen in all layers, three epochs

The same as [wikitext2-large-freezing](../wikitext2-large-freezing/README.md) for three epochs of training: q, k or v of all five layers
kept at their initial weights from the first step on, beside the same models rewound and ablated.
Losses are of the same samples. Written by `python tools/written.py` from the tables here.

```sh
trisect study experiment.json --corpus wikitext-2 --fleet 1 --out freezing
```
"""


def larger(name: str, about: str) -> str:
    """README.md of the larger model's results in a folder, as it should be."""
    place = ROOT / name
    tables = {name: read_table(place / "tables", name) for name in STUDY_TABLES}
    experiment = json.loads((place / "experiment.json").read_text(encoding="utf-8"))
    rows = StudyRows.of(tables, read_json(place / "about.json", "") | {"experiment": experiment})
    runs = tables["runs"]
    metrics = tables["metrics"].join(runs.filter(pl.col("edit") == "none"), on="run", how="semi")
    seeds = ", ".join(map(str, rows.seeds))
    made = f"Runs: {len(runs)}, of seeds {seeds}; {runs['wall_seconds'].sum() / 60:.0f} core-minutes of training."
    names = {"train": "train loss, nats", "valid": "validation loss, nats"}
    learnt = [
        [str(epoch), *(_mean(metrics, epoch, split, name) for split in names for name in ("loss_nats", "accuracy"))]
        for epoch in sorted(metrics["epoch"].unique())
    ]
    heads = ["epoch", *(x for said_so in names.values() for x in (said_so, "accuracy"))]
    beside = (
        "The source reports a validation loss of 5.222 and an accuracy of 23.53 % for its model of 200 epochs with SGD."
    )
    means = changes(rows)
    whole = list(dict.fromkeys(site for mean in means.values() for site in mean if "-" in site))
    every = [[name, *(mean_said(mean.get(site), 3) for site in whole)] for name, mean in means.items()]
    rewound = means.get("rewound to initialisation, validation loss", {})
    layers = sorted({site.split("@")[1] for site in rewound if "-" not in site})
    each = [[layer, *(mean_said(rewound.get(f"{c}@{layer}"), 4) for c in "qkv")] for layer in layers]
    lines = [about, made, "", *table(heads, learnt), beside, "", "## All layers at once", ""]
    lines += table(["change of the loss, nats", *whole], every)
    three = [site for site in whole if "+" not in site]
    if len(rows.seeds) > 1:
        lines += which_component(rows, three)
    if each:
        lines += ["## One layer at its initial weights", ""]
        lines += table(["layer", *(f"{c}: change of the validation loss, nats" for c in "qkv")], each)
        lines += which_layer(rows)
    tested = tables["claims"].filter(pl.col("part").is_null(), pl.col("verdict") != NOT_TESTED)["claim"]
    asked = tables["claims"].filter(pl.col("claim").is_in(tested.implode()))
    lines += ["## The source's claims that this study judges", "", *verdicts(asked), *parts_of(asked)]
    return "\n".join(lines).rstrip() + "\n"


def _mean(metrics: pl.DataFrame, epoch: int, split: str, name: str) -> str:
    own = metrics.filter(pl.col("epoch") == epoch, pl.col("split") == split, pl.col("name") == name)
    return f"{own['value'].mean():.3f}"


PAGES = {
    "wikitext2-large": functools.partial(larger, "wikitext2-large", LARGER),
    "wikitext2-large-freezing": functools.partial(larger, "wikitext2-large-freezing", FROZEN),
    "wikitext2-large-freezing-three-epochs": functools.partial(larger, "wikitext2-large-freezing-three-epochs", LONGER),
    "wikitext2-all-layers": together,
}
