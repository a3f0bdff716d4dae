"""What README of results/alignment says, from the tables beside it; tools/written.py writes it, and uses its words for the others."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from trisect.core.files import read_json
from trisect.core.tables import read_table, write_table
from trisect.experiments.align.run import judge_rates
from trisect.measure.alignment import KINDS
from trisect.report.format import Mean, interval

ROOT = Path(__file__).parents[1] / "results"
shared = runpy.run_path(str(Path(__file__).with_name("recalled.py")))
table: Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]] = shared["table"]
said: Callable[..., str] = shared["said"]
first: Callable[..., dict[str, Any] | None] = shared["first"]

ALIGNMENT = """# Word alignment from cross-attention: what was found

English and French Hansards: the 447 test pairs with sure and possible links, and 37 trial pairs that choose the best layer. Three
small models (seeds 1 to 3: 2 + 2 layers, width 256, 4 heads) learnt from 23,365 different train pairs of at most 15 words a side,
nine times over. Sentences are not part of this project, so that the page and its pictures of pairs are left out. Written by
`python tools/written.py` from the tables here.

```sh
trisect translate-train --data word-alignment --seeds 3 --out hansards
trisect align hansards/seed-1 hansards/seed-2 hansards/seed-3 --source test.en --target test.fr --gold test.talp \\
  --trial trial.en trial.fr trial.talp --out alignment
python tools/aligners.py word-alignment --longest 15 --out aligners
```
"""


HANSARDS = """## Five models of the Hansards

Five models (seeds 1 to 5: 2 + 2 layers, width 128, 4 heads, no dropout) learnt four times from the 55,787 different train pairs of at
most 30 words a side: longer sentences and more text than the three models above had, since 283 of the 447 test pairs have a side of more
than 15 words. Training took 80 minutes of two cores. The recipe was chosen after models of other recipes had been scored on these same test
pairs (docs/log.md), so that the rates are not quite held out from it. Below, layers are chosen on the trial pairs.

```sh
trisect translate-train --data word-alignment --seeds 5 --set epochs=4 --set width=128 --set inner=256 --set dropout=0 \\
  --set longest=30 --set pieces=4000 --set rate=2e-3 --keep 1 --out five
cd word-alignment
for passes in -epoch-1 -epoch-2 -epoch-3 ""; do
  trisect align ../five/seed-{1,2,3,4,5}$passes --source test.en --target test.fr --gold test.talp \\
    --trial trial.en trial.fr trial.talp --out ../aligned$passes
done
```
"""
PASSES = (1, 2, 3)  # passes after which the models were kept, before the last


SETTINGS = {"awi": "AWI, the word is the decoder's input", "awo": "AWO, the word is the decoder's output"}


def folds_said(sites: pl.DataFrame) -> str:
    """Of what the folds of held-out text were made that probes were fitted and scored on, by the rows of a study's `sites`."""
    of = sites.filter(measure="probe_articles")["value"]
    if of.is_empty():
        return "(over whole articles where it has such)"
    if (of > 0).all():
        return "over whole articles"
    return "(in stretches of rows that follow one another: articles that are neighbours are too uneven in length to be dealt whole)"


REFOLDED = """## The same with folds of whole articles

The study's folds are stretches of rows, so that a probe read other parts of the articles that it was scored on. Below, the same probes of
the same runs have folds of whole articles that may lie apart (`fitted` 'articles', as new studies have;
[decision 141](../../docs/decisions/0141-whole-articles-though-uneven.md)). Folds are as uneven as articles are, so that probes that are
scored on the largest were fitted to less text. That too leaves fewer bits to be found, and is not separated here from what a probe knows
of an article that it has read. From the root of a checkout, STUDY being the folder that the command above made:

```sh
python tools/refolded.py results/{name} STUDY
```
"""


def refolded(place: Path, sites: pl.DataFrame) -> pl.DataFrame:
    """A study's table `sites` with what its probes found with folds of whole articles (tools/refolded.py) in place of theirs."""
    rest = sites.filter(~pl.col("measure").str.starts_with("probe_"))
    return pl.concat([rest, read_table(place / "whole-articles" / "tables", "sites")])


def mean_said(mean: Mean | None, places: int = 3) -> str:
    """A mean over seeds with its interval."""
    return "–" if mean is None else said({"value": mean.mean, "low": mean.low, "high": mean.high}, 1.0, places)


def verdicts(claims: pl.DataFrame, only: Sequence[str] = ()) -> list[str]:
    """The claims that were judged, their verdicts and effects."""
    rows = [
        [
            row["claim"],
            row["verdict"] + (f": {row['reason']}" if row["reason"] else ""),
            row["sentence"],
            said(row | {"value": row["effect"]}),
            str(row["n"]),
        ]
        for row in claims.filter(pl.col("part").is_null(), pl.col("effect").is_not_null()).iter_rows(named=True)
        if not only or row["claim"] in only
    ]
    return table(["claim", "verdict", "", "effect of the weakest part (95 %)", "n"], rows)


EMBEDDED = """## Models that align, on generated sentences

Five small models (seeds 1 to 5: 2 + 2 layers, width 64) of the embedded bitext, whose links are known. They align far better than the
diagonal where the word is the decoder's output (AWO), and not at all where it is its input (AWI), which is C-5's first part: two
layers of a decoder that is given a word look at the next one. So C-5 as a whole stays undecided even with models that align; where it can
be read, in AWO, norms are no better than weights. Training took 11 minutes of one core beside other work, aligning 80 seconds.

```sh
trisect translate-train --seeds 5 --set pieces=2000 --workers 0 --out tr
trisect align tr/seed-1 tr/seed-2 tr/seed-3 tr/seed-4 tr/seed-5 --source tr/pairs/test.source --target tr/pairs/test.target \\
  --gold tr/pairs/test.pharaoh --trial tr/pairs/trial.source tr/pairs/trial.target tr/pairs/trial.pharaoh --out aligned
```
"""


def hansards() -> list[str]:
    """Five models of the Hansards that align: C-5 by Student's t over them, and their error rates by pass."""
    place = ROOT / "alignment" / "hansards"
    rows, claims = (read_table(place / "tables", name) for name in ("measures", "claims"))
    models = list(read_json(place / "align.json", "")["models"])
    several = ", ".join(models)
    straight = said(first(rows, subject="diagonal", measure="aer"), 100, 1)
    diagonal = table(
        ["alignment error rate without a model, %", "all pairs"], [["linking along the diagonal", straight]]
    )
    parts = per_layer(rows, several) + by_length(rows, several) + passes(rows, several)
    return [HANSARDS, *over_models(claims), *rates(rows, several), *diagonal, *parts]


def over_models(claims: pl.DataFrame) -> list[str]:
    """C-5 and its parts, tested over models."""
    parts = [
        [row["part"] or f"C-5: {row['verdict']}", said(row | {"value": row["effect"]}), row["reason"] or ""]
        for row in claims.filter(claim="C-5").iter_rows(named=True)
    ]
    return table(["C-5, over models", "effect (95 %, Student t)", ""], parts)


def passes(last: pl.DataFrame, several: str) -> list[str]:
    """Loss and error rates after each pass that was kept, and after the last."""
    place = ROOT / "alignment" / "hansards"
    metrics = read_table(place / "training", "metrics").filter(split="train", name="smoothed_loss_nats")
    end = len(PASSES) + 1
    assert metrics["epoch"].max() == end, "the text above says how many passes there were"
    body = []
    for number in (*PASSES, end):
        rows, named = last, several
        if number != end:
            kept = place / "passes" / str(number)
            rows, named = (
                read_table(kept / "tables", "measures"),
                ", ".join(read_json(kept / "align.json", "")["models"]),
            )
        loss = interval(metrics.filter(epoch=number)["value"].to_list())
        cells = [
            said(first(rows, subject=named, layer=None, measure="aer_best", group=f"{s} {k}"), 100, 1)
            for s in SETTINGS
            for k in ("weight", "norm")
        ]
        body.append([str(number), mean_said(loss, 2), *cells])
    columns = ("AWI weights", "AWI norms", "AWO weights", "AWO norms")
    return table(["passes", "train loss, nats (smoothed labels)", *(f"{c}, %" for c in columns)], body)


def embedded() -> list[str]:
    """Five models of generated sentences: C-5 by Student's t over them, and their error rates."""
    place = ROOT / "alignment" / "embedded"
    rows, claims = (read_table(place / "tables", name) for name in ("measures", "claims"))
    several = ", ".join(read_json(place / "align.json", "")["models"])
    diagonal = [f"Linking along the diagonal: {said(first(rows, subject='diagonal', measure='aer'), 100, 1)} %.", ""]
    return [EMBEDDED, *over_models(claims), *rates(rows, several), *diagonal]


def alignment() -> str:
    """results/alignment/README.md, as it should be."""
    place = ROOT / "alignment"
    rows, claims = (read_table(place / "tables", name) for name in ("measures", "claims"))
    about = read_json(place / "align.json", "")
    several = ", ".join(about["models"])
    revised = read_table(place / "tables", "claims_revised").filter(pl.col("part").is_null()).row(0, named=True)
    today = f"Under revision 2, by Student's t over the models, C-5 is {revised['verdict']}: {revised['reason']}."
    lines = [ALIGNMENT, *verdicts(claims), today, ""]
    diagonal = first(rows, subject="diagonal", measure="aer")
    lines += rates(rows, several)
    lines += [f"Linking along the diagonal, without a model: {said(diagonal, 100, 1)} %.", ""]
    lines += per_layer(rows, several) + by_length(rows, several) + seeds(rows, list(about["models"])) + aligners(place)
    return "\n".join([*lines, *hansards(), *embedded()]).rstrip() + "\n"


def rates(rows: pl.DataFrame, several: str) -> list[str]:
    """Error rates of several models together, by weight and by norm."""
    body = []
    for setting, words in SETTINGS.items():
        for measure, what in (("aer", "mean over layers"), ("aer_best", "layer chosen on trial")):
            body.append(
                [f"{words}; {what}"]
                + [
                    said(first(rows, subject=several, layer=None, measure=measure, group=f"{setting} {k}"), 100, 1)
                    for k in ("weight", "norm")
                ]
                + [
                    said(
                        first(rows, subject=several, layer=None, measure=f"{measure}_difference", group=setting), 100, 1
                    )
                ]
            )
    return table(["alignment error rate, %", "weights", "norms", "norms less weights"], body)


def judge_again() -> None:
    """C-5 of the committed models by the rules of today, from each model's own error rates."""
    for place, name in ((ROOT / "alignment", "claims_revised"), (ROOT / "alignment" / "embedded", "claims")):
        bound = json.loads(read_table(place / "tables", name)["runs"][0])  # what the verdict is about
        write_table(place / "tables", name, judged(read_table(place / "tables", "measures"), bound))


def judged(rows: pl.DataFrame, bound: Mapping[str, Any]) -> pl.DataFrame:
    """C-5 over models, from each model's own error rates."""
    values: dict[str, list[float]] = {}
    for model in bound["models"]:
        for measure, setting in product(("aer", "aer_best"), SETTINGS):
            own = {
                kind: first(rows, subject=model, layer=None, measure=measure, group=f"{setting} {kind}")
                for kind in KINDS
            }
            rates = {kind: float(row["value"]) for kind, row in own.items() if row is not None}
            for kind, rate in rates.items():
                values.setdefault(f"{measure}_{setting}_{kind}", []).append(rate)
            values.setdefault(f"{measure}_difference_{setting}", []).append(rates["norm"] - rates["weight"])
    diagonal = first(rows, subject="diagonal", measure="aer")
    assert diagonal is not None
    return judge_rates(values, float(diagonal["value"]), bound)


def per_layer(rows: pl.DataFrame, subject: str) -> list[str]:
    """Error rates of every layer."""
    layers = rows.filter(subject=subject, measure="aer")["layer"].drop_nulls().unique().sort().to_list()
    body = [
        [f"layer {n}, {s.upper()}"]
        + [
            said(first(rows, subject=subject, layer=n, head=None, measure="aer", group=f"{s} {k}"), 100, 1)
            for k in ("weight", "norm")
        ]
        for n in layers
        for s in SETTINGS
    ]
    return table(["by layer, %", "weights", "norms"], body)


def by_length(rows: pl.DataFrame, subject: str) -> list[str]:
    """Error rates by the words of the longer side."""
    found = rows.filter(subject=subject, measure="aer_by_length")
    body = []
    for most in found["at"].unique().sort(nulls_last=True).to_list():
        named = {g: first(found, at=most, group=g) for s in SETTINGS for g in (f"{s} weight", f"{s} norm")}
        pairs = next(row["n"] for row in named.values() if row)
        title = "longer" if most is None else f"at most {most:.0f}"
        body.append([title, *(said(row, 100, 1) for row in named.values()), str(pairs)])
    head = ["words of the longer side, %", "AWI weights", "AWI norms", "AWO weights", "AWO norms", "pairs"]
    return table(head, body)


def seeds(rows: pl.DataFrame, models: list[str]) -> list[str]:
    """Error rates of each model alone, means over layers."""
    groups = [f"{s} {k}" for s in SETTINGS for k in ("weight", "norm")]
    body = [
        [m, *(said(first(rows, subject=m, layer=None, measure="aer", group=g), 100, 1) for g in groups)] for m in models
    ]
    found = table(["model alone, mean over layers, %", "AWI weights", "AWI norms", "AWO weights", "AWO norms"], body)
    return [*found, *paired(rows, models)]


def paired(rows: pl.DataFrame, models: list[str]) -> list[str]:
    """Norms less weights, paired over seeds alone: what the source's sentence is about, beside the rule that draws pairs too."""
    means = {}
    for setting in SETTINGS:
        ends = [
            [first(rows, subject=m, layer=None, measure="aer", group=f"{setting} {k}") for k in ("norm", "weight")]
            for m in models
        ]
        means[setting] = interval([100 * (a["value"] - b["value"]) for a, b in ends if a and b])
    text = "; ".join(f"{setting.upper()} {mean_said(mean, 1)}" for setting, mean in means.items())
    return [
        f"Norms less weights, points, mean over layers, paired over the {len(models)} seeds alone (Student t): {text}. The claim's",
        "own p resamples sentence pairs and models, with the degrees of freedom of few models (decision 67), and does not decide.",
        "In AWI every rate is above that of the diagonal: two layers of a decoder that is given a word look at the next one.",
        "",
    ]


def aligners(place: Path) -> list[str]:
    """The same test pairs aligned without a neural network."""
    found = read_json(place / "aligners.json", "")["aer"]
    groups = ["all", *(g for g in next(iter(found.values())) if g != "all")]
    body = [[name, *(f"{100 * rates[g]:.1f}" for g in groups)] for name, rates in found.items()]
    text = ["The same test pairs without a neural network, learnt from the same 23,365 pairs:", ""]
    return [*text, *table(["error rate, %", *(f"{g} words" if g != "all" else g for g in groups)], body)]
