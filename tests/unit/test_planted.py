"""Scores of methods on known roles, from tables made by hand; the truth is read by scores and pages alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats as scipy_stats
from tests.unit.test_layers import graph

from trisect import claims
from trisect.core.spec import Design, StudyAbout, to_json_data
from trisect.core.tables import frame
from trisect.experiments.study import planted
from trisect.experiments.study.page import make_sheet
from trisect.experiments.study.planted import TRUTH, _MethodScore, score_rows, scores
from trisect.experiments.study.presets import find_experiments
from trisect.experiments.study.rows import StudyRows
from trisect.report.sheet import Table, TextBlock
from trisect.stats.shares import jeffreys_draws, least_spread
from trisect.text.worlds import WORLDS

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

CELLS = {(cell.site, cell.column): cell.carried for cell in TRUTH["roles"].cells}
CARRIED = ("question.a", "item.a", "item.b")
SEEDS = (1, 2, 3)
QUICK: tuple[Design, ...] = find_experiments("roles-quick")


def tables(
    effect: Callable[[str, str | None, int], float], seeds: tuple[int, ...] = SEEDS, own: float = 0.99
) -> dict[str, pl.DataFrame]:
    """A finished study's, with that effect of whatever is done at a site, about a column, in a seed."""
    runs, metrics, sites = [], [], []
    for run in dict.fromkeys(run for one in QUICK for run in one.runs("text") if run.seed == 1):
        for seed in seeds:
            name, edit = f"{run.edit.slug if run.edit else 'baseline'}-s{seed}", run.edit
            settings = {n: edit.setting(n) if edit else None for n in ("label", "strength", "variant")}
            kind, site = (edit.kind, str(edit.site)) if edit else ("none", None)
            shared = {"run": name, "edit": kind, "site": site, "seed": seed, "epochs": 1, "status": "finished"}
            runs.append({**shared, **settings, "corpus": "roles:text", "versions": "{}", "claims_hash": ""})
            last = 0.1 + (effect(str(edit.site), edit.column, seed) if edit else 0.0)
            for split in ("train", "valid"):
                row = {"run": name, "split": split, "name": "loss_nats"}
                metrics += [{**row, "epoch": 0, "value": 2.0}, {**row, "epoch": 1, "value": last}]
            if edit is None:
                sites += [
                    {"subject": name, "split": "valid", "n": 1_000, **row} for row in of_baseline(effect, seed, own)
                ]
    return {"runs": frame("runs", runs), "metrics": frame("metrics", metrics), "sites": frame("sites", sites)}


def of_baseline(effect: Callable[[str, str | None, int], float], seed: int, own: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"site": None, "measure": "unigram_loss_nats", "value": 1.8},
        {"site": "attn@all", "measure": "self_only_loss_nats", "value": 1.7},
    ]
    for site, column in CELLS:
        rise = effect(site, column, seed)
        rows.append({"site": site, "label": column, "measure": "erase_rise_nats", "value": rise})
        rows += [
            {"site": site, "label": column, "measure": "erase_random_rise_nats", "at": i, "value": 0.001 * i}
            for i in (1.0, 2.0)
        ]
        rows.append({"site": site, "label": column, "measure": "interchange_rise_nats", "value": rise})
    for site in (*TRUTH["roles"].reads, *TRUTH["roles"].idle):
        moved = effect(site, None, seed)
        rows.append({"site": site, "measure": "ablate_rise_nats", "value": moved})
        rows += [
            {"site": site, "measure": "rewind_loss_nats", "at": a, "value": 0.1 + (1 - a) * moved} for a in (0.0, 1.0)
        ]
        reads = site in TRUTH["roles"].reads
        shares = {"own": own if reads else 0.0, "unchanged": 0.0 if reads else 1.0, "others": 0.0}
        shares |= {f"as_{c}": 0.0 for c in "qkv" if c != site[0]}
        rows += [{"site": site, "measure": f"interchange_{name}", "value": value} for name, value in shares.items()]
    return rows


def perfect(site: str, column: str | None, seed: int) -> float:
    """Large where something is planted, with a spread over seeds; nothing elsewhere."""
    carried = site in TRUTH["roles"].reads if column is None else CELLS[site, column]
    return (1.0 + 0.1 * seed) if carried else 0.001 * (seed - 2)


def asked(tables: Mapping[str, pl.DataFrame], corpus: str = "roles") -> StudyRows:
    about = StudyAbout(corpus={"name": corpus}, experiment=to_json_data(QUICK[0]))
    return StudyRows.of(tables, about)


def by_key(tables: Mapping[str, pl.DataFrame]) -> dict[str, _MethodScore]:
    return {one.key: one for one in scores(asked(tables))}


def test_what_finds_everything_scores_one_without_alarms_or_misses():
    found = by_key(tables(perfect))
    cells = {"attack", "bounded_site", "leace", "leace_alone", "interchange"}
    assert set(found) == cells | {"rewind", "freeze", "ablate", "interchange_whole"}
    assert all((one.auroc, one.false_alarms, one.misses) == (1, 0, 0) for key, one in found.items() if key in cells)
    assert {one.over for key, one in found.items() if key in cells} == {"cells"}
    assert [len(found[key].effects) for key in ("attack", "rewind")] == [9, 6]
    assert all(one.auroc == 1 for one in found.values())
    assert found["interchange_whole"].misses == 0  # every pair in every seed: the spread is that of drawing pairs


def test_scores_are_those_of_ranks_and_of_a_t_test():
    generator = np.random.default_rng(3)
    drawn = {
        (site, column, seed): generator.normal(0.3 * CELLS[site, column], 0.2)
        for site, column in CELLS
        for seed in SEEDS
    }

    def effect(site: str, column: str | None, seed: int) -> float:
        return perfect(site, column, seed) if column is None else drawn[site, column, seed]

    found = by_key(tables(effect))["leace_alone"]
    true = [v for (site, column, _), v in drawn.items() if CELLS[site, column]]
    false = [v for (site, column, _), v in drawn.items() if not CELLS[site, column]]
    assert found.auroc == pytest.approx(np.mean([t > f for t in true for f in false]))
    assert 0.5 < found.auroc < 1
    for one in found.effects:
        values = [drawn[one.case.site, one.case.column, seed] for seed in SEEDS]
        result: Any = scipy_stats.ttest_1samp(values, 0.02, alternative="greater")
        assert one.p == pytest.approx(result.pvalue)
        assert one.effect.mean == pytest.approx(np.mean(values))


@pytest.mark.parametrize(
    ("effect", "seeds", "key", "scored"),
    [
        (lambda site, column, seed: 1.0 + 0.1 * seed, SEEDS, "attack", (0.5, 1, 0)),  # fires everywhere
        (lambda site, column, seed: 1e-12 * seed, SEEDS, "freeze", (0.5, 0, 1)),  # sees nothing
        (perfect, (1,), "attack", (1, None, None)),  # one seed has a score and no alarms
    ],
)
def test_what_guesses_scores_a_half_and_one_seed_has_no_alarms(effect, seeds, key, scored):
    found = by_key(tables(effect, seeds))[key]
    assert (found.auroc, found.false_alarms, found.misses) == scored


def test_nothing_is_scored_where_nothing_is_planted():
    made = tables(perfect)
    assert scores(asked(made, "embedded")) == ()
    assert score_rows(asked(made, "embedded")) == []
    assert list(planted.section(asked(made, "embedded"))) == []


def test_claims_read_each_seeds_score_and_the_shares_of_pairs():
    five = (1, 2, 3, 4, 5)
    made = tables(perfect, five)
    rows = score_rows(asked(made))
    assert {(row["measure"], row["subject"]) for row in rows} >= {("auroc_leace", f"baseline-s{s}") for s in five}
    made["sites"] = pl.concat([made["sites"], frame("sites", rows)])
    about = StudyAbout(corpus={"name": "roles"}, experiment=to_json_data(QUICK[0]))
    found = claims.judge(made, about)
    whole = {row["claim"]: row for row in found.filter(pl.col("part").is_null()).iter_rows(named=True)}
    assert (
        whole["F-1"]["verdict"] == "supported"
    )  # shares that are the same in all seeds have the spread of their pairs
    assert list(whole) == ["F-1"]  # how well methods find what is planted is measured, and no claim
    low = claims.judge(tables(perfect, five, own=0.7), about).filter(
        (pl.col("claim") == "F-1") & pl.col("part").is_null()
    )
    assert low["verdict"].to_list() == ["refuted"]
    few = claims.judge(tables(perfect), about).filter((pl.col("claim") == "F-1") & pl.col("part").is_null())
    assert few.select("verdict", "reason").row(0) == ("inconclusive", "5 seeds are asked for, 3 given")


def test_the_spread_of_a_share_is_that_of_its_posterior():
    for share, units in ((0.0, 10), (0.3, 50), (1.0, 200)):
        drawn = jeffreys_draws(share, units, np.random.default_rng(0), 200_000)
        assert least_spread(share, units) == pytest.approx(float(drawn.std()), rel=0.02)


def test_the_page_begins_with_it_and_marks_the_truth():
    rows = asked(tables(perfect))
    sheet = make_sheet(tables(perfect), rows, ())
    assert [one.id for one in sheet.sections[:4]] == ["short-answer", "sure", "open", "planted"]
    assert sheet.sections[3].title == "Which methods find the known roles?"
    found = {block.id: block for block in sheet.sections[3].blocks if isinstance(block, Table)}
    assert list(found) == ["planted-methods", "planted-interchange", "planted-cells", "planted-sites"]
    heads = found["planted-cells"].columns[1:]
    marked = [head for head in heads if "●" in head]
    assert marked == [f"{c}@2 ●<small>{column}</small>" for c, column in zip("qkv", CARRIED, strict=True)]
    assert len(heads) == 9
    notices = [
        block.text for block in sheet.sections[3].blocks if isinstance(block, TextBlock) and block.look == "notice"
    ]
    assert notices == ["A verdict asks for at least 5 seeds; this study has 3 seeds."]
    many = next(planted.section(asked(tables(perfect, seeds=(1, 2, 3, 4, 5)))))
    assert not any(isinstance(block, TextBlock) and block.look == "notice" for block in many.blocks)
    records = {one.groups[0]: one for one in planted.findings(rows) if one.measure == "planted"}
    assert "AUROC 1.00 over 9 cells and 3 seeds; false alarms 0\u00a0%, misses 0\u00a0%." in str(records["attack"])
    assert records["attack"].values[0].mean == 1


def test_every_world_has_its_truth():
    assert set(TRUTH) == set(WORLDS)
    for name, truth in TRUTH.items():
        assert {cell.column for cell in truth.cells} <= set(WORLDS[name].columns)
        assert {cell.site for cell in truth.cells if cell.carried} >= set(truth.reads)
        assert {cell.site for cell in truth.cells if not cell.carried} >= set(truth.reads)


def test_the_truth_is_read_by_scores_and_pages_alone():
    readers = {name for name, of in graph().items() if "experiments.study.planted" in of}
    assert readers == {"experiments.study.run", "experiments.study.page"}
