"""The presets beyond the paper's grid: controls where they decide, ties, and everything in `beyond`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from trisect.core.errors import SpecError
from trisect.core.methods import METHODS, PAPER_SITES
from trisect.core.spec import Design, Run
from trisect.experiments.study.presets import BEYOND, DECIDING, PRESETS, find_experiments, is_preset, only

SMALL = [one for one in PRESETS if one.name in ("quick", "wikitext2-small")]


def kinds(experiment: Design) -> Counter[tuple[str, object]]:
    """How many runs of one seed have which edit and variant."""
    runs = [run for run in experiment.runs("text") if run.seed == 1]
    return Counter((run.edit.kind, run.edit.setting("variant") or "plain") for run in runs if run.edit)


@pytest.mark.parametrize("preset", SMALL, ids=lambda one: one.name)
def test_small_presets_control_the_sites_that_decide(preset: Design):
    found = kinds(preset)
    assert [found["attack", variant] for variant in ("plain", "control", "bounded", "site")] == [30, 6, 6, 6]
    # pairs save one matrix a layer, as an identity does, and three in one save two: two widths of heads
    assert [found[kind, "plain"] for kind in ("tie", "identity", "narrow")] == [4, 2, 2]
    assert all(getattr(preset, method) for method in METHODS if method != "interchange")  # that needs a world
    assert preset.control is not None
    assert {str(site) for site in preset.control.sites} == {f"{c}@{layer}" for c in "qkv" for layer in (1, 5)}


def test_the_papers_own_preset_stays_the_papers():
    paper = find_experiments("paper")[0]
    assert not any((paper.control, paper.tie, paper.probe, paper.erase))


def test_beyond_is_a_grid_of_everything_and_a_sweep_of_strengths():
    grid, sweep = find_experiments("beyond")
    assert find_experiments("beyond")[0] == grid
    assert {one.text for one in BEYOND} == {one.text for one in BEYOND[:1]}  # one folder holds one text
    assert grid.attack is not None
    assert sweep.attack is not None
    spelt = {str(site) for site in grid.resolved().attack.sites}  # type: ignore[union-attr]
    wanted = ("q@3", "q+k@1", "k+v@2", "q+v@4", "q+k+v@5", "v@1-5", "o@2", "attn@3", "ffn@4", "k@5.h5", "v@1.h1")
    assert set(wanted) <= spelt
    assert len(spelt) == 15 + 20 + 3 + 15 + 75
    assert sweep.attack.strengths == (0.3, 3.0)
    assert sweep.attack.sites == PAPER_SITES
    assert kinds(grid)["tie", "plain"] == 4 * (1 + 5)
    runs: list[Run] = [run for one in BEYOND for run in one.runs("text")]
    assert len({run.id for run in runs if run.edit}) == sum(run.edit is not None for run in runs)


@pytest.mark.parametrize("name", ["roles", "roles-quick"])
def test_worlds_have_a_cell_for_each_component_and_attribute(name: str):
    designs = find_experiments(name)
    assert {one.name for one in designs} == {name}
    assert len({(one.text, one.model, one.training) for one in designs}) == 1  # one folder holds them
    cells = {(str(s), label) for one in designs if one.attack for s in one.attack.sites for label in one.attack.labels}
    wanted = {("q@2", f"question.{a}") for a in "abc"} | {(f"{c}@2", f"item.{a}") for c in "kv" for a in "abc"}
    assert cells == wanted
    erased = {(str(s), label) for one in designs if one.erase for s in one.erase.sites for label in one.erase.labels}
    assert erased == cells
    (idle,) = designs[0].model.idle
    for method in (designs[0].freeze, designs[0].rewind, designs[0].ablate, designs[0].interchange):
        assert method is not None
        assert {str(site) for site in method.sites} == {f"{c}@{layer}" for c in "qkv" for layer in (idle, 2)}


def test_a_preset_is_known_by_its_name():
    assert all(is_preset(name) for name in ("quick", "beyond", Path("paper")))
    assert not any(is_preset(what) for what in ("quik", PRESETS[0], None, DECIDING))
    with pytest.raises(
        SpecError, match="Presets are quick, wikitext2-small, paper, all-layers, beyond, roles, roles-quick"
    ):
        find_experiments("quik")


def test_of_a_preset_of_several_designs_those_stay_that_have_what_is_asked_for():
    whole = find_experiments("roles-quick")
    attacked, ablated = only(whole, ("attack",)), only(whole, ("ablate", "erase"))
    assert [one.attack for one in attacked] == [one.attack for one in whole if one.attack]
    assert all(one.erase is None and one.control is None for one in attacked)
    assert [one.ablate is not None for one in ablated] == [True, False]
    with pytest.raises(SpecError, match="roles-quick has no tie"):
        only(whole, ("attack", "tie"))
