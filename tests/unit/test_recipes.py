"""Recipes: the course's own is the one on record, and what no recipe can be is refused with what there is."""

from __future__ import annotations

import pytest

from trisect.core.errors import SpecError
from trisect.experiments.recall.settings import COURSE, RECIPES
from trisect.hf.small.gpt import GptShape, Schedule
from trisect.lab.inputs import choose_recipe

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
        ("layers", "two", "It is a whole number"),
        ("layers", "1.5", "It is a whole number"),
        ("layers", 1.5, "It is a whole number"),
        ("layers", None, "It is a whole number"),
        ("layers", float("inf"), "It is a whole number"),
        ("layers", -1, "from 1 to 1,000"),
        ("dropout", "much", "It is a number"),
        ("rate", [], "It is a number"),
        ("rate", float("nan"), "above 0"),
        ("rate", float("inf"), "above 0"),
        ("span", 0.6, "from 0 to 0.5"),
        ("beta1", 1.0, "from 0 to 0.999"),
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
