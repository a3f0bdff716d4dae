"""RolesBench: the truth holds in the models built by hand, controls are 0.5 and 1, and what has to fail by construction fails."""

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import trisect
from trisect.cli import main
from trisect.core.errors import SpecError
from trisect.core.site import Site
from trisect.experiments.bench import BENCHMARK
from trisect.experiments.bench.run import METHODS, area, choose, place_of, score_sites
from trisect.hf.small.gpt import Schedule
from trisect.hf.small.lookup import WORLDS, build_world


def built(name, pairs=6, seed=3):
    return build_world(WORLDS[name], seed, pairs)


def areas(name, *methods, pairs=6):
    rows = score_sites({method: METHODS[method] for method in methods}, *built(name, pairs))
    return [area(rows, method) for method in methods]


@pytest.mark.parametrize("name", ["roles-grouped", "roles-shared", "induction-shared", "lookup"])
def test_the_answer_is_computed_by_the_positive_sites_and_no_others(name):
    model, texts, truth = built(name)
    for pairs in texts.values():
        logits = model.outputs(next(iter(model.batches([pair.base for pair in pairs]))))[:, -1]
        assert model.tokenizer.convert_ids_to_tokens(logits.argmax(-1).tolist()) == [p.answers["base"] for p in pairs]
        assert all(
            len(str(pair.base).split()) == len(str(pair.donor).split()) and pair.base != pair.donor for pair in pairs
        )
    rows = pl.DataFrame(score_sites({"patching": METHODS["patching"]}, model, texts, truth))
    positive, negative = rows.filter("truth")["score"].to_numpy(), rows.filter(~pl.col("truth"))["score"].to_numpy()
    assert positive.min() > 0.3  # of a logit of about 1
    assert negative.max() < positive.min() / 4
    assert len(positive) == (3 if name.startswith("roles") else 4)


def test_the_truth_scores_1_a_constant_half_and_chance_about_half():
    model, texts, truth = built("composition", 2)
    methods = {
        "truth": lambda model, texts, site: float(site in truth["key"]),
        "constant": lambda model, texts, site: 3.0,
    }
    rows = score_sites(methods, model, texts, truth)
    assert [area(rows, name) for name in methods] == [1.0, 0.5]
    draw, some = np.random.default_rng(1), [row for row in rows if row["method"] == "truth"]
    random = [area([row | {"score": draw.random()} for row in some], "truth") for _ in range(60)]
    assert abs(np.mean(random) - 0.5) < 0.09  # three standard errors with two positives
    chance = [METHODS["chance"](model, texts["key"], Site.parse(f"q@1.h{head}")) for head in (1, 2, 3)]
    assert len({*chance}) == 3
    assert all(0 <= score < 1 for score in chance)


def test_weights_alone_find_the_sites_where_weights_decide_and_not_those_of_one_layer():
    assert areas("composition", "composition", pairs=2) == [1.0]
    assert areas("roles", "composition", pairs=2)[0] < 0.8


def test_a_gradient_fails_where_the_softmax_is_saturated_and_its_correction_does_not():
    gradient, corrected, patched = areas("roles-saturated", "gradient", "atp_star", "patching", pairs=4)
    assert gradient < 0.8
    assert corrected == patched == 1.0


def test_the_correction_misses_most_of_what_v_does_through_a_later_saturated_softmax():
    model, texts, truth = built("induction-saturated", 4)
    [copying] = [site for site in truth["key"] if site.components == ("v",)]
    corrected, patched = (METHODS[name](model, texts["key"], copying) for name in ("atp_star", "patching"))
    assert patched > 0.5
    assert corrected < patched / 5


def test_attention_and_norms_take_heads_that_look_more_sharply_for_the_one_that_answers():
    attention, norm, patched = areas("roles-decoys", "attention", "norm", "patching", pairs=4)
    assert attention < 0.2
    assert norm < 0.5
    assert patched == 1.0


def test_a_world_is_trained_once_and_one_head_alone_answers(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("trisect.hf.small.lookup.SCHEDULE", Schedule(2, 64, 3e-3, 10_000, 200_000, weight_decay=0.0))
    monkeypatch.setattr("trisect.hf.small.lookup.DOCUMENTS", 640)
    model, texts, truth = built("roles-trained", 2)
    [path] = tmp_path.rglob("model.safetensors")
    before = path.stat().st_mtime_ns
    again, *_ = built("roles-trained", 2)
    assert (path.stat().st_mtime_ns, again.fingerprint) == (before, model.fingerprint)
    _, layer, head = next(place_of(site) for site in truth["key"])
    assert {name: [str(site) for site in sites] for name, sites in truth.items()} == {
        **{name: [f"{c}@{layer}.h{head}"] for name, c in zip(("asked", "key", "value"), "qkv", strict=True)},
        "other": [],
    }
    rows = pl.DataFrame(score_sites({"patching": METHODS["patching"]}, model, texts, truth))
    acting = set(rows.filter(pl.col("score") > 1e-5)["site"])
    assert {f"{c}@{layer}.h{head}" for c in "qkv"} >= acting
    assert acting
    assert "roles-trained" not in choose(BENCHMARK.settings())[1]


def test_methods_of_a_file_are_scored_beside_built_in_ones(tmp_path):
    lines = [
        "from __future__ import annotations",
        "from dataclasses import dataclass",
        "@dataclass",
        "class Note:",
        "    layer: int",
        "def mine(model, texts, site):",
        "    'Layers.'",
        "    return Note(site.layers[0]).layer",
        "def _other(model, texts, site): ...",
    ]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    words = ["bench", str(tmp_path / "mine.py"), "--methods", "chance", "--worlds", "composition", "--seeds", "1,2"]
    result = CliRunner().invoke(main, [*words, "--pairs", "2", "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    reply = json.loads(result.stdout.strip().splitlines()[-1])
    assert [(one["name"], one["n"]) for one in reply["records"][0]["values"]].count(("mine", 2)) == 1
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "mine.py" in page
    assert "Layers." in page


def test_functions_and_tables_in_python(tmp_path):
    def layer(model, texts, site):
        return site.layers[0]

    result = trisect.bench(
        functions=(layer,),
        methods="chance",
        worlds="composition roles-saturated",
        seeds=(4, 5),
        pairs=2,
        out=tmp_path,
        quiet=True,
    )
    whole = result.tables["auroc"].filter(world="all", method="layer")
    each = result.tables["seeds"].filter(method="layer")
    assert whole["value"][0] == pytest.approx(each["auroc"].mean())
    assert len(each) == 4
    assert result.findings[0].groups == ("all",)
    scores = result.tables["scores"].filter(method="layer", seed=4, world="composition")
    assert scores.filter(truth=True)["property"].unique().to_list() == ["key"]
    assert len(scores) == 24
    assert set(scores["score"]) == {1.0, 2.0}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x = 1", "has no such function"),
        ("def f(model, texts): ...", "has no such function"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def chance(model, texts, site): ...", "name of two methods"),
    ],
)
def test_a_file_without_methods_is_refused(tmp_path, text, match):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SpecError, match=match):
        choose(BENCHMARK.settings(files=(tmp_path / "mine.py",)))


def test_what_is_no_method_and_no_world_is_refused():
    settings = BENCHMARK.settings
    for wrong, match in (
        (settings(files=("nothing.py",)), "is no file"),
        (settings(functions=(3,)), "is no function"),
        (settings(methods=("atp_sta",)), "did you mean 'atp_star'"),
        (settings(worlds=("role",)), "did you mean 'roles'"),
    ):
        with pytest.raises(SpecError, match=match):
            BENCHMARK.check(wrong)


@pytest.mark.parametrize(("score", "match"), [(float("nan"), "returned nan at"), ("x", "fails at q@1.h1: ValueError")])
def test_a_score_that_is_no_number_is_refused(score, match):
    world = built("composition", 2)
    with pytest.raises(SpecError, match=match):
        score_sites({"mine": lambda model, texts, site: score}, *world)
