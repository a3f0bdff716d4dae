"""Write the READMEs of results/alignment, induction, roles and wikitext2-* from the tables beside them: python tools/written.py

With --judge the error rates of the translation models are first judged by the rules of today, into tables/claims_revised.parquet.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from trisect.core.files import read_json
from trisect.core.finding import ALIKE
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.experiments.study import planted, removal, tying
from trisect.experiments.study.rows import StudyRows
from trisect.report.points import Mean, Point, by_site, interval
from trisect.stats.compare import compare

ROOT = Path(__file__).parents[1] / "results"
shared = runpy.run_path(str(Path(__file__).with_name("written_alignment.py")))
table: Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]] = shared["table"]
said: Callable[..., str] = shared["said"]
mean_said: Callable[..., str] = shared["mean_said"]
verdicts: Callable[..., list[str]] = shared["verdicts"]
alignment: Callable[[], str] = shared["alignment"]
judge_again: Callable[[], None] = shared["judge_again"]
doses: Callable[[], str] = runpy.run_path(str(Path(__file__).with_name("written_dose.py")))["doses"]

CONTROLS = """# Controls and ties on WikiText-2, five seeds

The model, text and labels of [wikitext2-small](../wikitext2-small/README.md): 100,000 train tokens, five layers of width 100, part of
speech by a spaCy pipeline. Attacks at q, k and v of layers 1 and 5 beside their controls, ties in all layers, linear probes, LEACE.
Written by `python tools/written.py` from the tables here.

```sh
trisect corpus annotate wikitext-2 --pipeline en_ud_ewt_sm --out wikitext-2-labelled --columns pos,dep
trisect study experiment.json --corpus wikitext-2-labelled --out controls
```

Probes and erasers were fitted on the text that the models were trained on (revision 1's rule); a study that is begun today fits them on
held-out text, over whole articles, and says so ([decision 108](../../docs/decisions/0108-probes-and-erasers-on-held-out-text.md)).
To repeat these numbers, give `"fitted": "train"` in `probe` and `erase`.
"""


def controls() -> str:
    """results/wikitext2-controls/README.md, as it should be."""
    place = ROOT / "wikitext2-controls"
    tables = {name: read_table(place / "tables", name) for name in STUDY_TABLES}
    experiment = json.loads((place / "experiment.json").read_text(encoding="utf-8"))
    rows = StudyRows.of(tables, read_json(place / "about.json", "") | {"experiment": experiment})
    runs = tables["runs"]
    made = f"{len(runs)} runs, seeds {', '.join(map(str, rows.seeds))}; {runs['wall_seconds'].sum() / 60:.0f} core-minutes of training."
    lines = [CONTROLS, made, "", *verdicts(tables["claims"], ("D-2",)), *ties(rows), *attacks(rows)]
    return "\n".join(lines + readings(tables["controls"]) + probes(rows) + erasure(rows)).rstrip() + "\n"


ROLES = """# Which methods can tell? A world with planted roles, five seeds

Documents of four items (a, b, c) and a question that names an a; the answer is the b of the item that has it. At the layer that reads,
2, the query has to carry the asked a, the key the item's a, the value the item's b, and nothing else; layer 1 is idle. Written by
`python tools/written.py` from the tables here.

```sh
trisect study roles --out roles
```

The linear probe and LEACE were fitted on the text that the models were trained on; a study that is begun today fits them on held-out text
([decision 108](../../docs/decisions/0108-probes-and-erasers-on-held-out-text.md)).
"""


INDUCTION = """# Which methods can tell? A second world with planted roles: induction, five seeds

Documents of four keys, each with a value after it, and one of the keys again: the answer is the value that came after it. Layer 1 hands
each key on to its value, layer 2 finds it, layer 3 is idle. At layer 2 the query has to carry its own word, the key the word before it,
the value its own word; the value of layer 1 the key's own word. Written by `python tools/written.py` from the tables here.

```sh
trisect study induction --out induction
```

The linear probe and LEACE were fitted on the text that the models were trained on; a study that is begun today fits them on held-out text
([decision 108](../../docs/decisions/0108-probes-and-erasers-on-held-out-text.md)).
"""


def roles() -> str:
    """results/roles/README.md, as it should be."""
    return planted_world("roles", ROLES, trial)


def induction() -> str:
    """results/induction/README.md, as it should be."""
    return planted_world("induction", INDUCTION)


def planted_world(
    name: str, head: str, also: Callable[[Mapping[str, planted.MethodScore]], list[str]] | None = None
) -> str:
    """What the methods find in a world whose truth is known, from the tables of its study."""
    place = ROOT / name
    tables = {name: read_table(place / "tables", name) for name in STUDY_TABLES}
    experiment = json.loads((place / "experiment.json").read_text(encoding="utf-8"))
    about = read_json(place / "about.json", "") | {"experiment": experiment[0]}
    rows, runs = StudyRows.of(tables, about), tables["runs"]
    made = f"{len(runs)} runs, seeds {', '.join(map(str, rows.seeds))}; {runs['wall_seconds'].sum() / 60:.0f} core-minutes of training."
    lines = [head, made, "", *verdicts(tables["claims"], ("F-1", "F-4"))]
    found = planted.scores(rows)
    columns = ["method", "over", "AUROC", "false alarms", "misses"]
    share = {True: "–"}
    body = [
        [
            one.title,
            one.over,
            f"{one.auroc:.2f}",
            *(share.get(value is None) or f"{100 * value:.0f} %" for value in (one.false_alarms, one.misses)),
        ]
        for one in found
    ]
    lines += [
        *table(columns, body),
        *(also({one.key: one for one in found}) if also else []),
        "Effects, mean over seeds (95 %); ● is planted, ✓ found by the method's own rule:",
        "",
    ]
    for over in ("cells", "sites"):
        own = [one for one in found if one.over == over and one.key != "tie"]
        cases = [one.case for one in own[0].effects] if own else []
        names = [f"{case.site} {case.column}".strip() + " ●" * case.carried for case in cases]
        body = [
            [f"{one.title}, {one.unit}", *(mean_said(e.effect, 2) + " ✓" * bool(e.found) for e in one.effects)]
            for one in own
        ]
        lines += table([over, *names], body)
    shares = {
        n: by_site(rows.measure(f"interchange_{n}", "valid")) for n in ("own", "as_q", "as_k", "as_v", "unchanged")
    }
    body = [[site, *(mean_said(of.get(site)) for of in shares.values())] for site in shares["own"]]
    return "\n".join(lines + table(["interchange, share of pairs", *shares], body)).rstrip() + "\n"


def trial(found: Mapping[str, planted.MethodScore]) -> list[str]:
    """What a trial of one seed and another size had seen, and whether it was so here."""

    def finds(key: str) -> list[str]:
        return [f"{e.case.site} {e.case.column}".strip() for e in found[key].effects if e.case.carried and e.found]

    query = next(e.effect for e in found["attack"].effects if e.case.site == "q@2" and e.case.carried)
    said = (
        (
            "LEACE finds the planted cells",
            f"{len(finds('leace'))} of 3, with {100 * found['leace'].false_alarms:.0f} % false alarms",
        ),
        ("the unbounded attack with λ = 1 misses the query's", f"it costs {mean_said(query, 2)} nats there"),
        ("rewinding may see nothing", f"found: {', '.join(finds('rewind')) or 'nothing'}"),
        ("freezing may see nothing", f"found: {', '.join(finds('freeze')) or 'nothing'}"),
    )
    return table(["a trial of one seed and another size", "here"], said)


def ties(rows: StudyRows) -> list[str]:
    """Models with fewer matrices, and those with narrower heads, against the baseline of the same seed."""
    body = [
        [one.name, f"{one.parameters:,}"]
        + [mean_said(interval([p.value for p in points])) for points in (one.loss, one.train, one.accuracy)]
        for one in tying.fewer(rows)
    ]
    head = ["in all layers", "parameters", "validation loss, nats", "train loss, nats", "validation accuracy"]
    whole = f"The baseline has {tying.parameters(rows):,} parameters. Changes against it, mean over seeds (95 %):"
    return [whole, "", *table(head, body)]


def attacks(rows: StudyRows) -> list[str]:
    """What attacks and their controls do to the losses, site by site."""
    variants = [v for v in ("plain", "control", "bounded", "site") if rows.effects("attack", "valid", "pos", variant=v)]
    found: dict[tuple[str, str], Mapping[str, Mean]] = {
        (split, v): by_site(rows.effects("attack", split, "pos", variant=v))
        for split in ("valid", "train")
        for v in variants
    }
    sites = list(found["valid", "plain"])
    names = {"plain": "attack", "control": "control labels", "bounded": "bounded", "site": "reach site"}
    body = [
        [f"{s}, {split}", *(mean_said(found[split, v].get(s), 2) for v in variants)]
        for split in ("valid", "train")
        for s in sites
    ]
    return table(["change of the loss, nats", *(names[v] for v in variants)], body)


def readings(found: pl.DataFrame) -> list[str]:
    """How the claims' parts stand beside each control."""
    body = [
        [
            row["claim"],
            row["part"],
            row["control"],
            said({"value": row["difference"], "low": row["low"], "high": row["high"]}, 1.0, 3),
            row["reading"],
        ]
        for row in found.iter_rows(named=True)
    ]
    return table(["claim", "part", "control", "effect less the control's (95 %)", "reading"], body)


def probes(rows: StudyRows) -> list[str]:
    """What a linear probe finds at the attacked site, beside the baseline's."""
    base = by_site(rows.measure("probe_linear_accuracy", "valid", "pos", removal.baselines(rows)))
    variants = ("plain", "control", "bounded", "site")
    own = {v: by_site(removal.own(rows, "pos", "probe_linear_accuracy", v)) for v in variants}
    bits = by_site(removal.removed(rows, "pos", "probe_linear_bits"))
    kept = [v for v in variants if own[v]]
    names = {"plain": "after the attack", "control": "after control labels", "bounded": "bounded", "site": "reach site"}
    body = [
        [s, mean_said(base.get(s)), *(mean_said(own[v].get(s)) for v in kept), mean_said(bits.get(s))]
        for s in own["plain"]
    ]
    majority = rows.measure("probe_majority", "valid", "pos")
    note = f"Always the commonest class: {interval([p.value for p in majority]).mean:.3f}." if majority else ""
    head = ["linear probe of POS at the attacked site, accuracy", "baseline", *(names[v] for v in kept), "bits removed"]
    return [*table(head, body), note, ""]


def erasure(rows: StudyRows) -> list[str]:
    """What the trained baselines lose when part of speech is erased, beside random subspaces."""
    rise, chance = removal.erased(rows, "pos")
    label, random = by_site(rise), by_site(chance)
    beyond = by_site(_paired(rise, chance))
    body = [[s, *(mean_said(x.get(s), 4) for x in (label, random, beyond))] for s in label]
    return table(["LEACE at, rise of the validation loss, nats", "the label", "random subspaces", "difference"], body)


def _paired(rise: Sequence[Point], chance: Sequence[Point]) -> list[Point]:
    known = {(p.site, p.run): p.value for p in chance}
    return [p._replace(value=p.value - known[p.site, p.run]) for p in rise if (p.site, p.run) in known]


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
    lines = [TOGETHER, made, "", *verdicts(asked), *table(head, body), note, ""]
    return "\n".join([*lines, *parts_of(asked)]).rstrip() + "\n"


def parts_of(asked: pl.DataFrame) -> list[str]:
    """What decides A-15, part by part."""
    parts = [
        [row["part"], said(row | {"value": row["effect"]}, 1.0, 4), f"{row['margin']:g}", row["reason"] or ""]
        for row in asked.filter(pl.col("part").is_not_null()).iter_rows(named=True)
    ]
    return table(["part of A-15", "effect (95 %)", "margin", ""], parts)


LARGER = """# A model of the source's kind on all of WikiText-2

Five layers of width 200 with five heads, 28,782 words, 2,049,990 tokens of training text, AdamW, three epochs: a model that uses its
attention. q, k and v of every layer, and of all layers at once, put back to their initial weights or replaced by their mean. Losses of
rewinding are of 20,000 tokens drawn from each text. Written by `python tools/written.py` from the tables here.

```sh
trisect study experiment.json --corpus wikitext-2 --fleet 1 --out larger
```

Five seeds are planned; what is below is what has been run. Freezing, in models of one epoch, is in
[wikitext2-large-freezing](../wikitext2-large-freezing/README.md).
"""
FROZEN = """# The larger model with q, k or v frozen in all layers

The model and text of [wikitext2-large](../wikitext2-large/README.md), for one epoch of training: q, k or v of all five layers kept at their
initial weights from the first step on, beside the same models rewound and ablated. Minutes of training count waiting for other work.
Written by `python tools/written.py` from the tables here.

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
        lines += [
            "Which of the three is largest, by paired differences over seeds (Student t, Holm over the three pairs):",
            "",
        ]
        compared = [[name, *paired(points, three)] for name, points in changed(rows).items()]
        lines += table(["change of the loss", "", "differences, nats (95 %)"], compared)
    asked = tables["claims"].filter(pl.col("claim") == "A-15", pl.col("effect").is_not_null())
    if asked["part"].is_null().any():
        lines += [*verdicts(asked), *parts_of(asked)]
    if each:
        lines += ["## One layer at its initial weights", ""]
        lines += table(["layer", *(f"{c}: change of the validation loss, nats" for c in "qkv")], each)
    return "\n".join(lines).rstrip() + "\n"


def _mean(metrics: pl.DataFrame, epoch: int, split: str, name: str) -> str:
    own = metrics.filter(pl.col("epoch") == epoch, pl.col("split") == split, pl.col("name") == name)
    return f"{own['value'].mean():.3f}"


PAGES = {
    "wikitext2-large": functools.partial(larger, "wikitext2-large", LARGER),
    "wikitext2-large-freezing": functools.partial(larger, "wikitext2-large-freezing", FROZEN),
    "wikitext2-all-layers": together,
    "alignment": alignment,
    "wikitext2-controls": controls,
    "wikitext2-dose": doses,
    "roles": roles,
    "induction": induction,
}

if __name__ == "__main__":
    if "--judge" in sys.argv:
        judge_again()
    for name, page in PAGES.items():
        if not (ROOT / name).is_dir():
            continue
        (ROOT / name / "README.md").write_text(page(), encoding="utf-8")
