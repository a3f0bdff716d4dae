"""Names of models as people read them: what it is and its seed, and never the hash of an id."""

import pytest

from trisect.report.format import display_name, display_names


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("baseline-s1-30631197", "baseline, seed 1"),
        ("pretrained-1", "model with pretraining, seed 1"),
        ("plain-12", "model without pretraining, seed 12"),
        ("seed-3", "model, seed 3"),
        ("seed-1, seed-2, seed-3", "models, seeds 1, 2 and 3"),
        ("pretrained-1, pretrained-2", "models with pretraining, seeds 1 and 2"),
        ("pretrained-1, plain-1", "pretrained-1, plain-1"),
        ("seed-1, my model", "seed-1, my model"),
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("my-pretrained-1", "my-pretrained-1"),
        ("org/model-2", "org/model-2"),
    ],
)
def test_a_trained_model_is_called_by_what_it_is_and_its_seed(name, said):
    assert display_name(name) == said


@pytest.mark.parametrize("folder", ["model", "final", "best", "latest"])
def test_a_folder_that_says_nothing_is_left_out_and_a_name_of_a_hub_is_not(folder):
    name = f"trained/{folder}"
    assert display_name(name, "trisect norms MODEL --corpus ud-english-ewt") == "trained"
    assert display_name(name, f"trisect norms {name} --corpus ud-english-ewt") == name
    assert display_name(name) == name


def test_two_models_are_never_called_the_same():
    assert display_names(["baseline-s1-30631197", "baseline-s2-e4d3a164"]) == ("baseline, seed 1", "baseline, seed 2")
    two = ("baseline-s1-30631197", "baseline-s1-e4d3a164")
    assert display_names(two) == two
