"""The READMEs of results/wikitext2-dose and wikitext2-dose-layers-2-4 from the tables beside them; tools/written.py writes them."""

from __future__ import annotations

import json
import runpy
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from trisect.core.files import read_json
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.experiments.study import figures
from trisect.experiments.study.removal import baselines
from trisect.experiments.study.rows import StudyRows
from trisect.report.format import Mean, Point, by_site, interval

ROOT = Path(__file__).parents[1] / "results"
shared = runpy.run_path(str(Path(__file__).with_name("written_alignment.py")))
table: Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]] = shared["table"]
mean_said: Callable[..., str] = shared["mean_said"]
folds_said: Callable[..., str] = shared["folds_said"]
refolded: Callable[..., pl.DataFrame] = shared["refolded"]

TOP = """# Attacks by dose on WikiText-2

How much an attack on the next word's part of speech costs is compared at equal bits removed, not at equal λ: weak attacks (λ = 0.03, 0.1,
0.3), attacks whose gain is bounded, and attacks bounded and confined to the attacked projection, beside an attack on labels that each
word type drew by chance. q, k and v of {layers} of the model of [wikitext2-small](../wikitext2-small/README.md), on the same text and
labels.
Written by `python tools/written.py` from the tables here.

```sh
mkdir wikitext-2  # the first lines of ../wikitext-2, and all of its test text
head -n 2136 ../wikitext-2/train.txt > wikitext-2/train.txt
head -n 801 ../wikitext-2/valid.txt > wikitext-2/valid.txt
cp ../wikitext-2/test.txt wikitext-2
trisect corpus annotate wikitext-2 --pipeline en_ud_ewt_sm --columns pos,dep --out wikitext-2-labelled
trisect study experiment.json --corpus wikitext-2-labelled --out dose
```

Bits are what a linear probe, fitted afresh and cross-fitted on held-out text
{folds},
finds at the attacked site of the baseline and no longer finds after the attack. At whole width q, k and v of a layer hold the same of a
label: no order of the three is read from these numbers. After the cut to 100,000 words the text's fingerprint is 1f80759ec36e347f.{beside}
"""
PLACES = {  # folder: which layers, and what else is to be said
    "wikitext2-dose": (
        "layers 1, 3 and 5",
        " Layers 2 and 4 are [beside](../wikitext2-dose-layers-2-4/README.md).",
    ),
    "wikitext2-dose-layers-2-4": (
        "layers 2 and 4",
        "\n[Layers 1, 3 and 5](../wikitext2-dose/README.md) were run before, on another processor: every run is compared with the\n"
        "baseline of its own study.",
    ),
}


class Kind(NamedTuple):
    """One kind of attack at one strength, and its heading."""

    variant: str
    strength: float
    name: str


def kinds(rows: StudyRows) -> list[Kind]:
    """Every kind of attack that was run, plain ones by strength first."""
    plain = [Kind("plain", x, f"λ = {x:g}") for x in rows.strengths_of("plain")]
    names = {"bounded": "bounded", "bounded+site": "bounded, confined", "control": "control labels"}
    return plain + [Kind(v, x, f"{name}, λ = {x:g}") for v, name in names.items() for x in rows.strengths_of(v)]


def effects(rows: StudyRows, kind: Kind, split: str = "valid") -> list[Point]:
    """What the attacks of one kind do to the loss."""
    return rows.effects("attack", split, "pos", kind.strength, variant=kind.variant)


def changes(rows: StudyRows, split: str) -> list[str]:
    """What each kind of attack does to the loss; with how many runs fell to the unigram loss."""
    body = []
    found = {kind: effects(rows, kind, split) for kind in kinds(rows)}
    means = {kind: by_site(points) for kind, points in found.items()}
    for site in next(iter(means.values())):
        cells = []
        for kind, points in found.items():
            here = [p for p in points if p.site == site]
            fell = sum(p.run in rows.collapsed for p in here)
            cells.append(mean_said(means[kind].get(site)) + (f"; {fell} of {len(here)} collapsed" if fell else ""))
        body.append([site, *cells])
    return table(["site", *(kind.name for kind in found)], body)


def lost(rows: StudyRows) -> list[str]:
    """The bits of part of speech that each kind of attack removes at its site, beside those that the baseline has."""
    bits, columns = figures.BITS, [kind for kind in kinds(rows) if kind.variant != "control"]
    before = rows.measure(bits, "valid", "pos", baselines(rows))
    known = {(p.site, p.seed): p.value for p in before}
    after = {(p.site, p.run): p.value for p in rows.measure(bits, "valid", "pos")}
    base, found = by_site(before), {}
    for kind in columns:
        points = [p for p in effects(rows, kind) if (p.site, p.run) in after and (p.site, p.seed) in known]
        found[kind] = [p._replace(value=known[p.site, p.seed] - after[p.site, p.run]) for p in points]

    def cell(site: str, kind: Kind) -> str:
        here = [p for p in found[kind] if p.site == site]
        fell = sum(p.run in rows.collapsed for p in here)
        return mean_said(by_site(here).get(site)) + (f"; {fell} of {len(here)} collapsed" if fell else "")

    body = [[s, mean_said(base.get(s)), *(cell(s, k) for k in columns)] for s in by_site(found[columns[0]])]
    return table(["site, bits", "the baseline has", *(kind.name for kind in columns)], body)


def over_sites(points: Sequence[Point]) -> Mean:
    """Mean over sites in each seed, then over seeds."""
    return interval(
        [statistics.fmean(p.value for p in points if p.seed == seed) for seed in sorted({p.seed for p in points})]
    )


def together(rows: StudyRows) -> list[str]:
    """Each kind of attack at the sites where none of its runs collapsed: the losses' changes, and the share of the bits that it removes."""
    before = {(p.site, p.seed): p.value for p in rows.measure(figures.BITS, "valid", "pos", baselines(rows))}
    after = {(p.site, p.run): p.value for p in rows.measure(figures.BITS, "valid", "pos")}
    body = []
    for kind in kinds(rows):
        points = {split: effects(rows, kind, split) for split in ("train", "valid")}
        fell = {p.site for p in points["valid"] if p.run in rows.collapsed}
        kept = {split: [p for p in of if p.site not in fell] for split, of in points.items()}
        shares = [
            p._replace(value=1 - after[p.site, p.run] / before[p.site, p.seed])
            for p in kept["valid"]
            if kind.variant != "control" and (p.site, p.run) in after
        ]
        sites = f"{len({p.site for p in kept['valid']})} of {len({p.site for p in points['valid']})}"
        means = (mean_said(over_sites(of) if of else None, 4) for of in (kept["train"], kept["valid"], shares))
        body.append([kind.name, sites, *means])
    return table(["attack", "sites", "train loss, nats", "validation loss, nats", "share of the bits removed"], body)


def compared_at(rows: StudyRows) -> tuple[float, float]:
    """The fewest and the most bits at which an attack and its control are compared, over sites and seeds."""
    sites = {p.site for p in figures.against_control(rows, "pos").points}
    attack, control = (figures.doses(rows, "pos", variant) for variant in ("plain", "control"))
    both = [
        min(attack[key][-1].bits, control[key][-1].bits) for key in attack.keys() & control.keys() if key[0] in sites
    ]
    return min(both), max(both)


def equal(rows: StudyRows) -> list[str]:
    """What an attack costs more than its control where both remove as many bits, at the sites where every seed has both."""
    lines = list[str]()
    against, half = figures.against_control(rows, "pos"), figures.at_half(rows, "pos")
    for words, reached in (
        ("attack minus control labels at equal bits removed", against),
        ("at half of the baseline's bits removed", half),
    ):
        lines += [f"Change of the validation loss, {words}: every seed at {reached.words}.", ""]
        if reached.points and reached is against:
            least, most = (f"{end:.3f}" for end in compared_at(rows))
            lines += [
                f"Where they are compared each removes {least} to {most} bits: the most that both remove in a seed.",
                "",
            ]
        if reached.points:
            lines += table(["site", "nats (95 %)"], [[s, mean_said(m, 4)] for s, m in by_site(reached.points).items()])
    return lines


def doses(name: str = "wikitext2-dose") -> str:
    """The README.md of results/wikitext2-dose, or of its other layers, as it should be."""
    place, (layers, beside) = ROOT / name, PLACES[name]
    tables = {name: read_table(place / "tables", name) for name in STUDY_TABLES}
    experiment = json.loads((place / "experiment.json").read_text(encoding="utf-8"))
    about = read_json(place / "about.json", "") | {"experiment": experiment}
    rows = StudyRows.of(tables, about)
    runs = tables["runs"]
    made = f"{len(runs)} runs, seeds {', '.join(map(str, rows.seeds))}; {runs['wall_seconds'].sum() / 60:.0f} core-minutes of training."
    fell = (
        f"{len(rows.collapsed)} of {len(runs)} runs collapsed (their validation loss never fell 0.05 nats below the unigram loss) "
        "and are not compared."
    )
    lines = [TOP.format(layers=layers, beside=beside, folds=folds_said(rows.sites)), made, fell, ""]
    lines += ["## Mean over sites where no run collapsed", "", *together(rows)]
    lines += ["## Change of the validation loss, nats", "", *changes(rows, "valid")]
    lines += ["## Change of the train loss, nats", "", *changes(rows, "train"), "## Bits removed", "", *lost(rows)]
    lines += ["## At equal bits", "", *equal(rows)]
    if (place / "whole-articles").exists():
        dealt = StudyRows.of(tables | {"sites": refolded(place, tables["sites"])}, about)
        lines += [shared["REFOLDED"].format(name=name), "Mean over sites where no run collapsed:", "", *together(dealt)]
        lines += ["Bits removed:", "", *lost(dealt), "At equal bits:", "", *equal(dealt)]
    return "\n".join(lines).rstrip() + "\n"
