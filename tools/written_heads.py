"""The README of results/wikitext2-heads from the tables beside it; tools/written.py writes it."""

from __future__ import annotations

import json
import runpy
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from trisect.core.files import read_json
from trisect.core.finding import ALIKE
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.experiments.study.rows import StudyRows
from trisect.report.format import Mean, interval
from trisect.stats.compare import compare

ROOT = Path(__file__).parents[1] / "results"
shared = runpy.run_path(str(Path(__file__).with_name("written_alignment.py")))
table: Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]] = shared["table"]
mean_said: Callable[..., str] = shared["mean_said"]
folds_said: Callable[[pl.DataFrame], str] = shared["folds_said"]
refolded: Callable[[Path, pl.DataFrame], pl.DataFrame] = shared["refolded"]

TOP = """# Single heads before and after an attack on the next word's part of speech

Bounded attacks on the next word's part of speech at q, k and v of layers 1 and 5 of the model of
[wikitext2-small](../wikitext2-small/README.md), on the text and labels of [the attacks by dose](../wikitext2-dose/README.md), five seeds;
linear probes of every head of those layers, and of five random maps of each layer's input to as many numbers as a head has, in the
unattacked models and in the attacked ones, fitted afresh and cross-fitted on held-out text
{folds}.
Written by `python tools/written.py` from the tables here.

```sh
trisect study experiment.json --corpus wikitext-2-labelled --out heads
```

At whole width q, k and v of a layer are invertible maps of the same vector and hold the same of a label. A head is 20 numbers of 100: its
weights determine which, so that heads can be compared, with each other and with random maps. After an attack a probe of one head loses far
more bits than a probe of the whole component does: most of what a head no longer shows is still there at whole width. Random maps lose bits
as well, so that only what heads lose beyond them is the heads' own. A star marks differences whose interval excludes 0; intervals are of
Student t over seeds and not corrected for their number.

The attacks are those of wikitext2-dose, in part in other fleets: beside runs at v other runs were trained, which changes the rounding of
sums ([decision 3](../../docs/decisions/0003-fleets-and-the-ledger.md)) and so, after six epochs, the numbers; all others are the same.
"""
BITS, RANDOM, CHANGE = "probe_linear_bits", "probe_linear_random_bits", "loss_nats"
Held = Mapping[tuple[str, str, int], float]  # (attacked site or "", probed site, seed) -> bits


def bits_found(runs: pl.DataFrame, sites: pl.DataFrame) -> Held:
    """What a probe finds, by the attacked site (empty: unattacked), the probed site and the seed."""
    of = sites.filter(pl.col("measure").is_in([BITS, RANDOM]), label="pos", split="valid")
    rows = (
        of.join(runs, left_on="subject", right_on="run")
        .group_by("site_right", "site", "seed")
        .agg(pl.col("value").mean())
    )
    return {(r["site_right"] or "", r["site"], r["seed"]): r["value"] for r in rows.iter_rows(named=True)}


def maps_site(layer: str) -> str:
    """The site of the random maps of a layer's input."""
    return f"q+k+v@{layer}"


def heads_of(held: Held, component: str, layer: str) -> list[str]:
    """The heads of one component and layer that were probed."""
    return sorted({site for _, site, _ in held if site.startswith(f"{component}@{layer}.h")})


def head_mean(held: Held, attacked: str, component: str, layer: str, seed: int) -> float:
    """Bits in the heads of a component, their mean in one seed."""
    return statistics.fmean(held[attacked, head, seed] for head in heads_of(held, component, layer))


def before(held: Held, layers: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """What heads of unattacked models hold, and which of q, k and v holds most."""
    body, compared = [], []
    for layer in layers:
        found = {c: [head_mean(held, "", c, layer, seed) for seed in seeds] for c in "qkv"}
        whole = {c: [held["", f"{c}@{layer}", seed] for seed in seeds] for c in "qkv"}
        drawn = [held["", maps_site(layer), seed] for seed in seeds]
        body += [
            [
                f"layer {layer}, one head (mean)",
                *(mean_said(interval(found[c])) for c in "qkv"),
                mean_said(interval(drawn)),
            ],
            [
                f"layer {layer}, one head less random maps",
                *(starred(less(found[c], drawn)) for c in "qkv"),
                "–",
            ],
            [f"layer {layer}, whole width", *(mean_said(interval(whole[c])) for c in "qkv"), "–"],
        ]
        result = compare(found, ALIKE)
        said = (f"{p.first} − {p.second} {mean_said(Mean(p.effect, p.low, p.high, result.n))}" for p in result.pairs)
        compared.append([f"layer {layer}", result.words(), "; ".join(said)])
    return [
        *table(["bits of part of speech", "q", "k", "v", "random maps (mean)"], body),
        f"Which holds most in a head, by paired differences over seeds (Student t, Holm over the three pairs; alike: within {ALIKE} bits):",
        "",
        *table(["heads of", "", "differences, bits (95 %)"], compared),
    ]


def less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Differences, seed by seed."""
    return [a - b for a, b in zip(first, second, strict=True)]


def starred(values: Sequence[float]) -> str:
    """The mean with its interval, and a star where that excludes 0."""
    mean = interval(values)
    clear = mean.low is not None and mean.high is not None and (mean.low > 0 or mean.high < 0)
    return mean_said(mean) + "*" * clear


def removed(held: Held, attacked: str, component: str, seed: int) -> float:
    """The mean bits that an attack takes from the heads of a component in the attacked layer."""
    layer = attacked.partition("@")[2]
    return head_mean(held, "", component, layer, seed) - head_mean(held, attacked, component, layer, seed)


def after(held: Held, attacked: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """What each attack takes from the heads of its layer, and how much more from those that it is made at."""
    body, parts, beyond = list[list[str]](), list[list[str]](), list[list[str]]()
    for site in attacked:
        own, layer = site.partition("@")[0], site.partition("@")[2]
        lost = {c: [removed(held, site, c, seed) for seed in seeds] for c in "qkv"}
        maps = [held["", maps_site(layer), seed] - held[site, maps_site(layer), seed] for seed in seeds]
        whole = interval([held["", site, seed] - held[site, site, seed] for seed in seeds])
        each = [
            statistics.fmean(held["", head, seed] - held[site, head, seed] for seed in seeds)
            for head in heads_of(held, own, layer)
        ]
        spread = f"{min(each):.3f} to {max(each):.3f}"
        shares = {
            "whole width": [1 - held[site, site, seed] / held["", site, seed] for seed in seeds],
            "its heads": [lost[own][i] / head_mean(held, "", own, layer, seed) for i, seed in enumerate(seeds)],
        }
        body.append(
            [site, mean_said(whole), *(mean_said(interval(lost[c])) for c in "qkv"), mean_said(interval(maps)), spread]
        )
        parts.append([site, *(mean_said(interval(of)) for of in shares.values())])
        beyond.append([site, *(starred(less(lost[c], maps)) for c in "qkv")])
    head = [
        "attacked",
        "whole width",
        "q heads",
        "k heads",
        "v heads",
        "random maps",
        "its own, head by head, least to most",
    ]
    compared = ["attacked; bits lost beyond random maps by", "heads of q", "heads of k", "heads of v"]
    return (
        table(head, body)
        + table(compared, beyond)
        + table(["attacked", "share removed at whole width", "share removed from one of its heads"], parts)
    )


def costs(runs: pl.DataFrame, metrics: pl.DataFrame, attacked: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """What each attack does to the losses at the end."""
    last = metrics.filter(name=CHANGE).join(runs, on="run").filter(pl.col("epoch") == pl.col("epoch").max().over("run"))
    ends = {
        (r["site"] or "", r["seed"], r["split"]): r["value"]
        for r in last.iter_rows(named=True)
        if r["value"] is not None
    }

    def cell(site: str, split: str) -> str:
        return mean_said(interval([ends[site, seed, split] - ends["", seed, split] for seed in seeds]), 4)

    body = [[site, cell(site, "train"), cell(site, "valid")] for site in attacked]
    return table(["attacked", "train loss, nats", "validation loss, nats"], body)


def heads() -> str:
    """results/wikitext2-heads/README.md, as it should be."""
    place = ROOT / "wikitext2-heads"
    runs, metrics, sites = (read_table(place / "tables", name) for name in ("runs", "metrics", "sites"))
    experiment = json.loads((place / "experiment.json").read_text(encoding="utf-8"))
    about = read_json(place / "about.json", "") | {"experiment": experiment}
    rows = StudyRows.of({name: read_table(place / "tables", name) for name in STUDY_TABLES}, about)
    seeds: Sequence[int] = rows.seeds
    named = runs.select("run", "site", "seed")
    held = bits_found(named, sites)
    attacked = sorted({site for site, _, _ in held if site}, key=lambda s: (s[2:], "qkv".index(s[0])))
    layers = sorted({site.partition("@")[2] for site in attacked})
    made = f"{len(runs)} runs, seeds {', '.join(map(str, seeds))}; {runs['wall_seconds'].sum() / 60:.0f} core-minutes of training."
    fell = f"{len(rows.collapsed)} of {len(runs)} runs collapsed (their validation loss never fell 0.05 nats below the unigram loss)."
    lines = [
        TOP.format(folds=folds_said(sites)),
        made,
        fell,
        "",
        "## Before",
        "",
        *before(held, layers, seeds),
        "## Bits that an attack removes",
        "",
    ]
    lines += [*after(held, attacked, seeds), "## What the attacks cost", "", *costs(named, metrics, attacked, seeds)]
    dealt = bits_found(named, refolded(place, sites))
    lines += [shared["REFOLDED"].format(name=place.name), *before(dealt, layers, seeds)]
    lines += ["Bits that an attack removes:", "", *after(dealt, attacked, seeds)]
    return "\n".join(lines).rstrip() + "\n"
