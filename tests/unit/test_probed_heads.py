"""Single heads before and after attacks, beside random maps of the same input: whose bits are compared, and what the page says."""

from dataclasses import replace

import polars as pl
import pytest
from tests.controlled import SEEDS, made

from trisect.core.tables import frame
from trisect.experiments.study import figures, removal
from trisect.experiments.study.removal import MAPS, OTHERS, OWN
from trisect.experiments.study.rows import StudyRows
from trisect.report.format import by_site

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

BEFORE = {"q": 0.6, "k": 0.5, "v": 0.4, "maps": 0.45}
TAKEN = {"own": 0.30, "others": 0.12, "maps": 0.05}  # bits that an attack takes
NAMES = ("removed-pos-linear-heads", "removed-pos-linear-heads-lost")


def with_heads(study, maps=True, layer=1):
    """The study with two heads of each of q, k and v of a layer probed, and three random maps of its input."""
    tables, described = study
    runs = tables["runs"].filter(
        (pl.col("edit") == "none")
        | ((pl.col("edit") == "attack") & (pl.col("label") == "pos") & pl.col("site").str.ends_with(f"@{layer}"))
    )
    rows = []
    for run, site, seed in runs.select("run", "site", "seed").iter_rows():
        fixed = {"subject": run, "label": "pos", "split": "valid", "n": 100}
        attacked = set((site or "").partition("@")[0].split("+")) - {""}
        for c in "qkv":
            lost = 0.0 if not attacked else TAKEN["own" if c in attacked else "others"]
            for head, apart in ((1, -0.02), (2, 0.02)):
                value = BEFORE[c] - lost + apart + 0.001 * seed
                rows.append(fixed | {"site": f"{c}@{layer}.h{head}", "measure": "probe_linear_bits", "value": value})
        for draw, apart in enumerate((-0.1, 0.0, 0.1) if maps else ()):
            value = BEFORE["maps"] - (TAKEN["maps"] if attacked else 0.0) + apart + 0.001 * seed
            own = {"site": f"q+k+v@{layer}", "measure": "probe_linear_random_bits", "at": float(draw), "value": value}
            rows.append(fixed | own)
    sites = pl.concat([tables["sites"], frame("sites", rows)])
    return StudyRows.of({**tables, "sites": sites}, described)


@pytest.fixture(scope="module")
def study():
    return made({})


@pytest.fixture(scope="module")
def rows(study):
    return with_heads(study)


def means(points):
    return {site: mean.mean for site, mean in by_site(points).items()}


def test_heads_and_maps_are_means_of_a_layer(rows):
    subjects = rows.baselines
    assert means(removal.in_heads(rows, "pos", "linear", subjects)) == pytest.approx(
        {f"{c}@1": BEFORE[c] + 0.003 for c in "qkv"}
    )
    assert means(removal.in_maps(rows, "pos", "linear", subjects)) == pytest.approx({"q+k+v@1": BEFORE["maps"] + 0.003})


def test_what_an_attack_takes_is_paired_by_seed_and_kept_apart_by_whose_heads(rows):
    found = removal.information_loss_in_heads(rows, "pos")
    single = {"q@1", "k@1", "v@1"}
    assert single <= {p.site for p in found[OWN]}
    for points, whose in zip(found.values(), ("own", "others", "maps"), strict=True):
        assert {p.seed for p in points} == set(SEEDS)
        taken = [p.value for p in points if p.site in single]
        assert taken == pytest.approx([TAKEN[whose]] * len(taken))
    assert "q+k+v@1" not in {p.site for p in found[OTHERS]}  # there are no others


def test_the_page_compares_heads_with_random_maps(rows):
    drawn = {one.name: one for one in figures.collect(rows)}
    assert [name for name in drawn if name in NAMES] == list(NAMES)
    before, after = (drawn[name] for name in NAMES)
    assert [panel.title for panel in before.panels] == ["Heads", "Random maps"]
    assert "show what any map of that width holds" in before.caption
    assert [panel.title for panel in after.panels][:3] == [OWN, OTHERS, MAPS]
    assert (
        "Attacked there: bits lost by heads of the attacked site less those of other heads of the layer +0.18"
        in after.caption
    )
    assert "less those of random maps +0.25" in after.caption


def test_heads_without_random_maps_say_what_is_missing(study):
    drawn = {one.name: one for one in figures.collect(with_heads(study, maps=False))}
    before, after = (drawn[name] for name in NAMES)
    assert [panel.title for panel in before.panels] == ["Heads"]
    assert "it is not known what any map of a head's width holds" in before.caption
    assert "those of random maps" not in after.caption


def test_no_heads_no_figures(study):
    assert not set(NAMES) & {one.name for one in figures.collect(StudyRows.of(*study))}


def test_one_head_that_is_attacked_is_compared_with_every_other(study):
    rows = with_heads(study)
    site = pl.when(pl.col("site") == "q@1").then(pl.lit("q@1.h2")).otherwise("site").alias("site")
    headed = replace(rows, runs=rows.runs.with_columns(site))._separate_heads()
    assert headed.heads is not None
    for kept in (headed, headed.heads):  # heads are probed, and so are random maps, wherever was edited
        assert means(removal.in_heads(kept, "pos", "linear", kept.baselines)).keys() == {"q@1", "k@1", "v@1"}
        assert removal.in_maps(kept, "pos", "linear", kept.baselines)
    found = removal.information_loss_in_heads(headed.heads, "pos")
    assert means(found[OWN]) == pytest.approx({"q@1.h2": TAKEN["own"]})
    # four heads of k and v, and one of q that its attack, made at all of q in these rows, took as much from
    assert means(found[OTHERS]) == pytest.approx({"q@1.h2": (4 * TAKEN["others"] + TAKEN["own"]) / 5})
    assert means(found[MAPS]) == pytest.approx({"q@1.h2": TAKEN["maps"]})


def test_what_reads_no_layer_has_no_heads_to_lose(study):
    rows = with_heads(study)
    site = pl.when(pl.col("site") == "q@1").then(pl.lit("o@1")).otherwise("site").alias("site")
    found = removal.information_loss_in_heads(replace(rows, runs=rows.runs.with_columns(site)), "pos")
    assert "o@1" not in {p.site for points in found.values() for p in points}


def test_heads_of_attacks_that_collapsed_are_not_compared(study):
    tables, described = study
    lost = tables["runs"].filter((pl.col("edit") == "attack") & (pl.col("site") == "q@1"))["run"].to_list()
    raised = pl.when(pl.col("run").is_in(lost) & (pl.col("name") == "loss_nats")).then(99.0).otherwise("value")
    moved = {**tables, "metrics": tables["metrics"].with_columns(raised.alias("value"))}
    rows = with_heads((moved, described))
    assert set(lost) <= rows.collapses
    one = {f.name: f for f in figures.collect(rows)}[NAMES[1]]
    assert "runs collapsed" in one.caption
    kept = [p for p in removal.information_loss_in_heads(rows, "pos")[OWN] if p.site == "q@1"]
    assert kept  # drawn all the same
    assert not rows.readable(kept)
