"""What a run is: sites, recipes, presets, and the id made of its content."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests import tiny

from trisect.core.edits import make_edit
from trisect.core.errors import SiteError, SpecError
from trisect.core.machine import Machine
from trisect.core.methods import METHODS, PAPER_SITES, Attack, Control, Erase, Freeze, Probe, Rewind, Tie
from trisect.core.schema import read
from trisect.core.site import Site
from trisect.core.spec import Design, Model, Run, Text, Training, narrow_heads, read_experiment, to_json_data
from trisect.core.tables import read_table
from trisect.experiments.recall.settings import COURSE, RECIPES
from trisect.experiments.study.presets import BEYOND, CONTROL_SITES, PRESETS, find_experiments, is_preset, only
from trisect.hf.small.gpt import GptShape, Schedule
from trisect.lab.inputs import choose_recipe


def test_an_experiment_survives_the_way_through_json():
    for experiment in (*PRESETS, tiny.EXPERIMENT):
        assert read_experiment(json.loads(json.dumps(to_json_data(experiment))), "a file") == experiment


def test_a_run_survives_the_way_through_json_and_keeps_its_id():
    for run in tiny.runs():
        again = read(Run, json.loads(json.dumps(to_json_data(run))), "a file")
        assert again == run
        assert again.id == run.id


def test_every_setting_and_nothing_else_changes_an_id():
    run = tiny.runs()[-1]
    assert run.edit
    variants = [
        replace(run, seed=9),
        replace(run, corpus="other"),
        *(
            replace(run, model=replace(run.model, **{k: v}))
            for k, v in {"width": 16, "layers": 3, "heads": 4, "feedforward": 9, "dropout": 0.5}.items()
        ),
        *(
            replace(run, training=replace(run.training, **{f.name: _other(getattr(run.training, f.name))}))
            for f in fields(Training)
        ),
        replace(run, edit=replace(run.edit, strength=2.0)),
        replace(run, edit=replace(run.edit, label="dep")),
        *(replace(run, edit=replace(run.edit, variant=v)) for v in ("control", "bounded", "site")),
        replace(run, edit=make_edit("narrow", Site.parse("q+k+v@1"), {"width": 2})),
        replace(run, edit=make_edit("narrow", Site.parse("q+k+v@1"), {"width": 3})),
        replace(run, edit=make_edit("tie", Site.parse("q+k@1"))),
        replace(run, edit=make_edit("freeze", run.edit.site)),
        replace(run, edit=None),
    ]
    assert len({v.id for v in variants} | {run.id}) == len(variants) + 1


def _other(value):
    if isinstance(value, str):
        return "sgd" if value == "adamw" else "adamw"
    return 7 if value is None else value + 1 if isinstance(value, int) else value / 2 + 0.1


def test_runs_of_published_studies_keep_their_ids():
    folder = Path(__file__).parents[2] / "results" / "wikitext2-small"
    runs = read_table(folder / "tables", "runs")
    again = read_experiment(json.loads((folder / "experiment.json").read_text()), "experiment.json")
    fingerprint = runs["corpus"][0].rpartition(":")[2]
    assert set(runs["run"]) == {run.id for run in again.runs(fingerprint)}


def test_a_tie_is_compared_with_separate_matrices_of_as_nearly_as_many_parameters():
    wide, heads = 100, 5
    shape = Model(width=wide, heads=heads, feedforward=100)

    def attention(width):  # parameters of a layer's four matrices and biases with heads of `width` dimensions
        return 4 * wide * heads * width + 3 * heads * width + wide

    for text, saved in {"q+k@all": 1, "q+k+v@2": 2, "q+v@1-3": 1}.items():
        site = Site.parse(text)
        edit = narrow_heads(shape, make_edit("tie", site))
        left = attention(wide // heads) - saved * (wide**2 + wide)
        assert (edit.kind, edit.site.components, edit.site.layers) == ("narrow", ("q", "k", "v"), site.layers)
        assert edit.setting("width") == min(range(1, wide // heads + 1), key=lambda w: abs(attention(w) - left))
    assert narrow_heads(shape, make_edit("identity", Site.parse("q@all"))) == narrow_heads(
        shape, make_edit("tie", Site.parse("q+k@all"))
    )


def test_lists_and_whole_numbers_are_settled_so_that_the_same_statement_has_the_same_id():
    loose = replace(tiny.EXPERIMENT, seeds=[1, 2], training=replace(tiny.TRAINING, clip=1, rate=2))  # type: ignore[arg-type]
    strict = replace(tiny.EXPERIMENT, training=replace(tiny.TRAINING, clip=1.0, rate=2.0))
    assert loose == strict
    assert [r.id for r in loose.runs("text")] == [r.id for r in strict.runs("text")]
    assert replace(tiny.EXPERIMENT, seeds=range(1, 3)) == tiny.EXPERIMENT  # type: ignore[arg-type]


BAD = [
    (lambda: Model(width=10, heads=3), "3 heads do not divide a width of 10"),
    (lambda: Model(layers=0), "layers is 0"),
    (lambda: Model(width=5, heads=5), "width is 5"),
    (lambda: Training(optimizer="adam"), "optimizer is 'adam'; did you mean 'adamw'?"),
    (lambda: Training(rate=float("nan")), "rate is nan"),
    (lambda: Attack(sites=()), "The attack has no sites"),
    (lambda: read_experiment({"seeds": 3}, "f"), "seeds in f is 3"),
    (lambda: read_experiment({"seeds": [1.5]}, "f"), r"seeds in f holds 1.5"),
    (lambda: read_experiment({"name": 3}, "f"), "name in f is 3"),
    (lambda: read_experiment({"text": None}, "f"), "text in f is None"),
    (lambda: read_experiment({"training": {"epochs": True}}, "f"), "training.epochs in f is True"),
    (lambda: read_experiment({"freeze": {"sites": "q@1"}}, "f"), "freeze.sites in f is 'q@1'"),
    (lambda: read_experiment({"attack": {"strengths": ["x"]}}, "f"), r"attack.strengths in f holds 'x'"),
    (lambda: Attack(labels=("pos", "pos")), "labels are"),
    (lambda: Design("x", training=Training(epochs=2), attack=Attack(epochs=5)), "Attacks last 5 epochs"),
    (lambda: Design("x", seeds=(10**20,)), "seeds holds 100000000000000000000"),
    (lambda: Model(dropout=0.9999999), "dropout is 0.9999999"),
    (lambda: replace(PRESETS[0], rewind=Rewind((Site.parse("pre.q@1"),))).resolved(), "rewind at 'pre.q@1' is not"),
    (lambda: replace(PRESETS[0], erase=Erase((Site.parse("ffn@1"),))).resolved(), "Studies erase q, k, v and their"),
    (lambda: replace(PRESETS[0], erase=Erase((Site.parse("q@1.h2"),))).resolved(), "all heads together"),
    (lambda: Control(variants=("plain",)), "Unknown control 'plain'"),
    (lambda: Tie(sites=(), identity=()), "tie has no sites"),
    (lambda: Probe(kinds=("deep",)), "kinds is 'deep'"),
    (lambda: Probe(kinds=()), "The probe has no kinds"),
    (lambda: Erase(sites=PAPER_SITES[:1] * 2), "sites are q@1, q@1"),
    (lambda: make_edit("tie", Site.parse("q+ffn@1")), "q is D×D, ffn is F×D and D×F"),
    (lambda: make_edit("tie", Site.parse("q@1")), "tie at 'q@1' is not possible: q is D×D"),
    (lambda: make_edit("identity", Site.parse("q+k@1")), "An identity stands in for one of q, k and v"),
    (lambda: make_edit("narrow", Site.parse("q+k@1"), {"width": 2}), "narrow at 'q\\+k@1' is not possible"),
    (lambda: make_edit("narrow", Site.parse("q+k+v@1")), "has width=None"),
    (lambda: make_edit("freeze", Site.parse("q@1"), {"width": 2}), "has width=2"),
    (
        lambda: make_edit("attack", Site.parse("q@1"), {"label": "pos", "strength": 1.0, "variant": "gentle"}),
        "variant is 'gentle'",
    ),
    (lambda: Design("x", seeds=()), "The design has no seeds"),
    (lambda: Design("x", seeds=(1, 1)), r"seeds are 1, 1"),
    (lambda: Design("a b"), "'a b' is not a name"),
    (lambda: Machine(device="tpu"), "device is 'tpu'"),
    (lambda: make_edit("melt", Site.parse("q@1")), "Unknown edit 'melt'"),
    (lambda: make_edit("attack", Site.parse("q@1")), "The edit attack at q@1 has label=None"),
    (
        lambda: make_edit("freeze", Site.parse("q@1"), {"label": "pos", "strength": 1.0}),
        "The edit freeze at q@1 has label='pos'",
    ),
    (lambda: make_edit("attack", Site.parse("q@1"), {"label": "pos", "strength": float("inf")}), "strength is inf"),
    (lambda: make_edit("freeze", Site.parse("cross.q@1")), "freeze at 'cross.q@1' is not possible in a study"),
    (lambda: read_experiment([], "f.json"), "f.json does not hold a design"),
    (lambda: read_experiment([], ""), "What was given does not hold a design"),
    (lambda: read_experiment({"nom": 1}, "f.json"), "f.json has nom"),
    (lambda: read_experiment({"model": {"depth": 1}}, "f.json"), "model in f.json has depth"),
    (lambda: read_experiment({"model": 3}, "f.json"), "model in f.json is 3"),
    (lambda: find_experiments("quik")[0], "Unknown preset or file 'quik'; did you mean 'quick'?"),
    (lambda: only((PRESETS[0],), ("melt",)), "'melt' is not an experiment"),
    (lambda: only((replace(PRESETS[0], attack=None),), ("attack",)), "quick has no attack"),
]


@pytest.mark.parametrize(("make", "given"), BAD)
def test_bad_statements_are_refused_in_three_parts(make, given):
    with pytest.raises(SpecError, match=given) as caught:
        make()
    assert caught.value.reason.endswith(".")
    assert caught.value.todo.endswith(".")


NUMBERS = [
    (kind, field.name)
    for kind in (Model, Training, Text, Attack, Rewind, Probe, Erase, Machine)
    for field in fields(kind)
    if type(field.default) in (int, float)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_no_number_of_a_statement_is_negative(kind, name):
    with pytest.raises(SpecError, match=f"{name} is -1"):
        kind(**{name: -1})


def test_sites_are_resolved_against_the_model_before_anything_runs():
    with pytest.raises(SiteError, match="lies outside the model"):
        list(replace(PRESETS[0], model=Model(layers=2, width=10)).runs("text"))
    wide = replace(tiny.EXPERIMENT, freeze=Freeze((Site.parse("v@all"), Site.parse("v@1-2"))))
    assert [str(s) for s in (wide.resolved().freeze or Freeze()).sites] == ["v@1-2"]


def test_a_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(SpecError, match=r"x\.json is not JSON"):
        find_experiments(tmp_path / "x.json")
    (tmp_path / "y.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    assert find_experiments(tmp_path / "y.json") == (tiny.EXPERIMENT,)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("k+q@2,1", "q+k@1-2"),
        ("v@2.h4,1-2", "v@2.h1-2,4"),
        ("enc.pre.k+k@1,2,3,7", "enc.pre.k@1-3,7"),
        (" q@1 ", "q@1"),
    ],
)
def test_one_canonical_spelling(text, canonical):
    assert str(Site.parse(text)) == canonical
    assert Site.parse(canonical) == Site.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not of that form"),
        ("k@2-1", "the span '2-1' is reversed"),
        ("k@0", "layers and heads count from 1"),
        ("k@x", "'x' is neither a number nor a span"),
        ("z@1", "'z' is no component"),
        ("ffn@1.h2", "only q, k, v, o have heads"),
        ("pre.o@1", "only q, k and v have a projection"),
    ],
)
def test_what_is_no_site_says_why_what_there_is_and_what_to_do(text, why):
    with pytest.raises(SiteError) as caught:
        Site.parse(text)
    assert why in caught.value.problem
    assert caught.value.reason.startswith("A site reads [stack.][pre.]component@layer[.hHEAD]")
    assert caught.value.todo == "Write for example k@3, q+k@1-2, v@all, v@2.h4, cross.v@4 or pre.k@3."


@pytest.mark.parametrize("text", ["q@3,k@3", "q@3 k@3", "q@1.h2,v@2.h1", "q@3;k@3"])
def test_several_sites_in_one_text_are_told_how_to_stand(text):
    with pytest.raises(SiteError, match="names several sites") as caught:
        Site.parse(text)
    assert "--sites q@3 k@3" in caught.value.todo


def test_outside_the_model_is_an_error_never_an_empty_set():
    with pytest.raises(SiteError, match=r"'k@6' lies outside the model: layer 6") as caught:
        Site.parse("k@6").resolve(5, 5)
    assert caught.value.reason == "The model has layers 1-5 and heads 1-5."
    with pytest.raises(SiteError, match=r"names head 4 of q") as caught:
        Site.parse("q+k@1.h4").resolve(5, 2)
    assert "q has heads 1-2" in caught.value.reason
    assert str(Site.parse("q@1.h4").resolve(5, 8)) == "q@1.h4"
    with pytest.raises(SiteError, match="names the stack 'dec'"):
        Site.parse("dec.k@1").resolve(5, 5)


def test_parts_of_an_unresolved_site_are_refused():
    with pytest.raises(SiteError, match="no layer numbers yet"):
        Site.parse("k@all").parts()


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
    assert not any(is_preset(what) for what in ("quik", PRESETS[0], None, CONTROL_SITES))
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


LINES = 2_937  # of the course's pretraining text


def test_the_courses_recipe_is_the_one_on_record():
    """The figures of the data's own description: model, epochs, batches, rates, warm-up, decay, AdamW."""
    course = choose_recipe(RECIPES, "course", embedded=False)
    assert course == COURSE
    assert course.architecture() == GptShape("gpt2", layers=4, heads=8, width=256, block=128, dropout=0.1)
    falls = 200 * LINES * 128
    rest = {"floor": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.95), "clip": 1.0}
    assert course.pretraining(LINES) == Schedule(650, 128, 6e-3, 10_240, falls, **rest)
    assert course.fine_tuning(LINES, pretrained=False) == Schedule(75, 256, 6e-4, 10_240, falls, **rest)
    assert course.fine_tuning(LINES, pretrained=True) == Schedule(10, 256, 6e-4, 10_240, falls, **rest)
    assert course.trained_people == 0
    changed = choose_recipe(RECIPES, "course", False, {"layers": "3", "dropout": 0, "pretraining_rate": "1e-3"})
    assert (changed.layers, changed.dropout, changed.pretraining_rate) == (3, 0.0, 1e-3)  # as numbers or as words
    assert (changed.width, changed.name) == (256, "course")
    # it follows the data where none is named
    assert [choose_recipe(RECIPES, None, embedded).name for embedded in (True, False)] == ["embedded", "small"]
    assert set(RECIPES) == {"embedded", "small", "course"}


def test_no_such_recipe_and_no_such_setting():
    with pytest.raises(SpecError, match=r"(?s)Unknown recipe 'large'.*There are embedded, small, course"):
        choose_recipe(RECIPES, "large", False)
    for key in ("depth", "name"):
        with pytest.raises(SpecError, match=f"Unknown setting of a recipe '{key}'") as raised:
            choose_recipe(RECIPES, None, True, {key: 2})
        assert raised.value.reason.startswith("There are layers, heads, width, dropout, batch, ")


@pytest.mark.parametrize(
    ("setting", "value", "known"),
    [
        ("layers", "1.5", "It is a whole number"),
        ("layers", 1.5, "It is a whole number"),
        ("layers", -1, "from 1 to 1,000"),
        ("dropout", "much", "It is a number"),
        ("rate", float("nan"), "above 0"),
        ("span", 0.6, "from 0 to 0.5"),
        *((name, 0, "from 1") for name in ("layers", "batch", "epochs_after", "epochs_without", "pretraining_epochs")),
        *((name, 0, "above 0") for name in ("rate", "decay_epochs")),
        ("dropout", 1, "below 1"),
        ("kind", "bert", "gpt2 and llama"),
    ],
)
def test_a_value_of_another_kind_or_out_of_bounds(setting, value, known):
    with pytest.raises(SpecError) as raised:
        choose_recipe(RECIPES, "course", False, {setting: value})
    assert raised.value.problem == f"{setting} is {value!r}."
    assert known in raised.value.reason


@pytest.mark.parametrize(
    ("settings", "said"), [({"width": 30}, "A width of 30"), ({"decay_epochs": 1e-9}, "A schedule with decay_tokens 0")]
)
def test_a_recipe_that_nothing_can_be_trained_with(settings, said):
    with pytest.raises(SpecError, match=said):
        choose_recipe(RECIPES, "course", False, settings)
