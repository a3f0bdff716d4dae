"""Tables of paired differences on the pages of results: planted differences are printed with their sign, over the right units."""

import runpy
import sys
from pathlib import Path

import polars as pl
import pytest
from tests.markdown import cells
from tests.synthetic import about, study_tables

from trisect.core.tables import frame, write_table
from trisect.experiments.study.rows import StudyRows

TOOLS = Path(__file__).parents[2] / "tools"
SHIFT = (0.0, 0.3, -0.2, 0.1)  # what the models or seeds have in common: in no difference
COLUMNS = {
    **dict.fromkeys(("model", "stack", "component", "measure", "group"), pl.String),
    **dict.fromkeys(("layer", "head", "n"), pl.Int64),
    "value": pl.Float64,
}
NOISE = (0.001, -0.001, 0.002, -0.002)


@pytest.fixture(scope="module")
def interchange():
    sys.path.insert(0, str(TOOLS))  # it imports the one beside it
    try:
        return runpy.run_path(str(TOOLS / "interchange.py"))
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def layers():
    return runpy.run_path(str(TOOLS / "written_layers.py"))


def patched(sizes, measure="donor"):
    """Measures of models in which each component has a share of its own, and what the models have in common."""
    return [
        {"model": f"m{m}", "stack": "plain", "layer": layer, "component": c, "measure": name, "group": "denoise",
         "value": 0.5 + size + SHIFT[m] + NOISE[(m + "qkv".index(c)) % 4], "n": 9}
        for name in (measure, "logit_change")
        for layer, of in sizes.items()
        for c, size in of.items()
        for m in range(4)
    ]  # fmt: skip


def test_components_are_compared_over_models_layer_by_layer(interchange):
    sizes = {1: {"q": 0.0, "k": 0.001, "v": 0.2}, 2: {"q": 0.1, "k": 0.0, "v": 0.0}}
    head = {"head": 1, "value": 9.0}
    rows = pl.DataFrame([*patched(sizes), *({**row, **head} for row in patched(sizes))], COLUMNS)
    found = {(row[0], row[1]): row[2:] for row in cells(interchange["compared_part"](rows, "donor"))}
    assert set(found) == {(f"layer {n}", m) for n in (1, 2) for m in ("donor's answer", "logit change")}
    words, pairs = found["layer 1", "donor's answer"]
    assert words == "v most"
    assert pairs.startswith("v − k +0.199 (95\u00a0%: +0.19")
    assert found["layer 2", "logit change"][0] == "q most"


def test_answers_are_counted_over_models(interchange):
    shares = {"a": {"base": 0.01, "donor": 0.0}, "b": {"base": 0.02, "donor": 0.01}}
    rows = [
        {"model": model, "measure": "answered", "group": group, "value": value, "n": 200}
        for model, of in shares.items()
        for group, value in of.items()
    ]
    ((said, base, donor, models),) = cells(interchange["answered_part"](pl.DataFrame(rows, COLUMNS)))
    assert (said, base, donor, models) == ("answered as stated, of 200", "3.0 (2 to 4)", "1.0 (0 to 2)", "2")


def test_the_page_is_written_from_its_tables(interchange):
    page = (interchange["ROOT"] / "README.md").read_text(encoding="utf-8")
    assert page == interchange["page"](), "run 'python tools/interchange.py'"


def test_gains_by_epoch_are_means_over_models(tmp_path, monkeypatch):
    tool = runpy.run_path(str(TOOLS / "profiled.py"))
    for m, shift in enumerate((-0.01, 0.0, 0.01)):
        rows = [
            {"subject": f"m{m}", "stack": "plain", "layer": layer, "component": c, "measure": "profile_stage_gain",
             "group": "position", "at": float(at), "value": 0.1 * at + 0.01 * "qkv".index(c) + shift if layer is None else 9.0}
            for layer in (None, 1)
            for at in (0, 1)
            for c in "qkv"
        ]  # fmt: skip
        (tmp_path / f"larger-epochs-{m}" / "tables").mkdir(parents=True)
        write_table(tmp_path / f"larger-epochs-{m}" / "tables", "measures", frame("measures", rows))
    monkeypatch.setitem(tool["over_epochs"].__globals__, "ROOT", tmp_path)
    lines = tool["over_epochs"]([f"larger-epochs-{m}" for m in range(3)]).splitlines()
    found = {row[0]: row[1:] for row in cells(lines)}
    assert set(found) == {"position, 0", "position, 1"}
    assert found["position, 1"][0] == "+0.100 (+0.075 to +0.125)"  # 4.303 · 0.01 / √3 to each side
    assert found["position, 0"][2].startswith("+0.020 (")


def planted(rises, without=()):
    """A study whose sites rise by what is given when rewound."""
    effects = {f"rewind-{c}@{n}": rise for n, of in rises.items() for c, rise in zip("qkv", of, strict=True)}
    tables = study_tables((1, 2, 3, 4), 2, max(rises), effects=effects, spread=0.001)
    kept = ~pl.struct("measure", "split").is_in([{"measure": m, "split": s} for m, s in without])
    tables["sites"] = tables["sites"].filter(kept) if without else tables["sites"]
    return StudyRows.of(tables, about((1, 2, 3, 4), 2, max(rises)))


def test_the_first_layer_is_compared_with_each_other_layer_as_a_mean_of_components(layers):
    rows = planted(
        {1: (0.3, 0.3, 0.6), 2: (0.1, 0.1, 0.1), 10: (0.8, 0.8, 0.8), **dict.fromkeys(range(3, 10), (0.4, 0.4, 0.4))}
    )
    lines = layers["which_layer"](rows)
    head = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert head[1:] == [f"layer 1 − layer {n}" for n in range(2, 11)]  # upwards by number, not by letters
    found = {row[0]: row[1:] for row in cells(lines)}
    first = found["rewound to initialisation, train loss"]
    assert [float(cell.partition(" (")[0]) for cell in (first[0], first[1], first[-1])] == pytest.approx(
        [0.3, 0.0, -0.4], abs=0.01
    )
    assert float(first[0].rpartition("p ")[2]) < 0.001 < 0.05 < 1


def test_a_measure_that_is_missing_leaves_the_other_rows_whole(layers):
    rows = planted({1: (0.3, 0.3, 0.6), 2: (0.1, 0.1, 0.1)}, without=[("rewind_area", "valid")])
    lines = layers["which_layer"](rows)
    assert lines[2].count("|") == lines[4].count("|") == 3
    assert "area of rewinding, validation loss" not in {row[0] for row in cells(lines)}
    assert "area of rewinding, train loss" in {row[0] for row in cells(lines)}
    none = planted({1: (0.3, 0.3, 0.6)})
    assert layers["which_layer"](none) == []
