"""Write the READMEs of results/alignment, induction, roles and wikitext2-* from the tables beside them: python tools/written.py

With --judge the error rates of the translation models are first judged by the rules of today, into tables/claims_revised.parquet.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import polars as pl

from trisect.core.files import read_json
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.experiments.study import planted, removal
from trisect.experiments.study.rows import StudyRows
from trisect.report.format import Point, by_site, interval

ROOT = Path(__file__).parents[1] / "results"
shared = runpy.run_path(str(Path(__file__).with_name("written_alignment.py")))
table: Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]] = shared["table"]
said: Callable[..., str] = shared["said"]
mean_said: Callable[..., str] = shared["mean_said"]
verdicts: Callable[..., list[str]] = shared["verdicts"]
alignment: Callable[[], str] = shared["alignment"]
judge_again: Callable[[], None] = shared["judge_again"]
doses: Callable[..., str] = runpy.run_path(str(Path(__file__).with_name("written_dose.py")))["doses"]
heads: Callable[[], str] = runpy.run_path(str(Path(__file__).with_name("written_heads.py")))["heads"]
layers: Mapping[str, Callable[[], str]] = runpy.run_path(str(Path(__file__).with_name("written_layers.py")))["PAGES"]

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
    again = (
        read_table(place / "tables", "claims_revised").filter(pl.col("part").is_null(), claim="D-2").row(0, named=True)
    )
    beside = f"Under revision 2 D-2 is {again['verdict']}: {again['reason']}."
    lines = [CONTROLS, made, "", *verdicts(tables["claims"], ("D-2",)), beside, "", *ties(rows), *attacks(rows)]
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
        for one in removal.fewer(rows)
    ]
    head = ["in all layers", "parameters", "validation loss, nats", "train loss, nats", "validation accuracy"]
    whole = f"The baseline has {removal.parameters(rows):,} parameters. Changes against it, mean over seeds (95 %):"
    return [whole, "", *table(head, body)]


def attacks(rows: StudyRows) -> list[str]:
    """What attacks and their controls do to the losses, site by site; with how many runs fell to the unigram loss."""
    variants = [v for v in ("plain", "control", "bounded", "site") if rows.effects("attack", "valid", "pos", variant=v)]
    points = {
        (split, v): rows.effects("attack", split, "pos", variant=v) for split in ("valid", "train") for v in variants
    }
    means = {key: by_site(found) for key, found in points.items()}
    names = {"plain": "attack", "control": "control labels", "bounded": "bounded", "site": "reach site"}

    def cell(site: str, split: str, variant: str) -> str:
        here = [p for p in points[split, variant] if p.site == site]
        fell = sum(p.run in rows.collapsed for p in here)
        return mean_said(means[split, variant].get(site), 2) + (f"; {fell} of {len(here)} collapsed" if fell else "")

    body = [
        [f"{s}, {split}", *(cell(s, split, v) for v in variants)]
        for split in ("valid", "train")
        for s in means["valid", "plain"]
    ]
    note = (
        f"{len(rows.collapsed)} of these runs collapsed: they never fell 0.05 nats below the unigram loss. By revision 2 nothing is read "
        "from them, so that layer 1 alone remains; the readings below are revision 1's. At equal bits removed an attack costs less in "
        "layer 5 than its control does: [attacks by dose](../wikitext2-dose/README.md)."
    )
    return [*table(["change of the loss, nats", *(names[v] for v in variants)], body), note, ""]


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


PAGES = {
    **layers,
    "alignment": alignment,
    "wikitext2-controls": controls,
    "wikitext2-dose": doses,
    "wikitext2-dose-layers-2-4": partial(doses, "wikitext2-dose-layers-2-4"),
    "wikitext2-heads": heads,
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
