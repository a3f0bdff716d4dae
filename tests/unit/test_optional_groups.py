"""Settings that may be missing as a group, values that may be a text or a path, and the words that repeat a run."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from pydantic import Field
from tests import tinyhf

from trisect.api import signature
from trisect.cli.options import parameters_of, parse_options
from trisect.core.errors import ModelError, SpecError
from trisect.core.schema import Option, build, record
from trisect.hf.load import load
from trisect.lab import driver
from trisect.lab.command import command
from trisect.lab.experiment import Experiment
from trisect.lab.inputs import ModelsSource, TextSource


@record
class Asked:
    model: Annotated[str | Path, Field(description="A model."), Option(argument=True)]
    where: Annotated[str | Path, Field(description="A folder.")]
    read: TextSource | None = None


@record
class Trio:
    models: ModelsSource
    files: (
        Annotated[tuple[str | Path, ...], Field(description="Three files."), Option(count=3, metavar="A B C")] | None
    ) = None


@dataclass(frozen=True)
class Noted:
    model: str


class Made(Experiment[Asked, Noted]):
    """Make."""

    name = "made"
    settings = Asked
    facts = Noted
    out = "made-{model}"


MADE = Made()


def from_words(*words: str) -> Any:
    command = click.Command("made", params=parameters_of(Asked))
    return build(Asked, parse_options(Asked, command.make_context("made", list(words)).params))


def test_a_group_of_which_nothing_is_given_is_missing_and_its_help_says_what_stands():
    assert from_words("m", "--where", "w").read is None
    assert from_words("m", "--where", "w", "--corpus", "c").read == TextSource("c")
    assert from_words("m", "--where", "w", "--text", "a b", "--split", "valid").read == TextSource(
        None, ("a b",), split="valid"
    )
    (split,) = (p for p in parameters_of(Asked) if p.name == "split")
    assert isinstance(split, click.Option)
    assert split.default is None
    assert "[default: test]" in str(split.help)
    assert signature(MADE).parameters["split"].annotation == str | None


@pytest.mark.parametrize("text", ["w1 w2", ["w1 w2"], ("w1 w2",)])
def test_one_text_or_a_list_of_them_is_given_in_python(text):
    assert TextSource(text=text).text == ("w1 w2",)
    with pytest.raises(SpecError, match=r"(?s)text holds 5\..*Each of it is a text"):
        TextSource(text=[5])  # pyright: ignore[reportArgumentType]


def test_a_value_of_several_types_is_one_of_them():
    assert build(Asked, {"model": Path("m"), "where": "w"}).model == Path("m")
    with pytest.raises(SpecError) as error:
        build(Asked, {"model": "m", "where": 3})
    assert (error.value.given, error.value.known) == ("where is 3.", "It is a text or a path.")


def test_a_command_repeats_a_run_without_paths_of_this_machine(tmp_path):
    (tmp_path / "bank").mkdir()
    here = Asked(tmp_path, tmp_path / "bank")
    assert command("made", here, (), None) == "trisect made MODEL --where bank"
    assert command("made", Asked("owner/model", "hf:a/b"), (), None) == "trisect made owner/model --where hf:a/b"


def test_a_folder_is_named_by_the_model_that_an_experiment_opens_itself():
    assert driver._place(MADE, Asked("owner/model/", "w"), None, ()) == Path("made-model")
    assert driver._place(MADE, Asked("m", "w"), "there", ()) == Path("there")


def test_so_many_values_are_so_many():
    assert build(Trio, {"models": "m", "files": ["a", Path("b"), "c"]}) == Trio(
        ModelsSource(("m",)), ("a", Path("b"), "c")
    )
    with pytest.raises(SpecError) as error:
        build(Trio, {"models": "m", "files": ("a", "b")})
    assert (error.value.given, error.value.known) == ("files was given 2 values.", "It takes 3: A B C.")
    (files,) = (p for p in parameters_of(Trio) if p.name == "files")
    assert files.nargs == 3


def test_models_of_one_name_get_numbers_and_none_is_no_answer():
    one = load(tinyhf.bert(), tinyhf.tokenizer())
    other = replace(one, name="other")
    assert [m.name for m in ModelsSource((one, other, one)).open()] == [f"{one.name} (1)", "other", f"{one.name} (3)"]
    with pytest.raises(ModelError, match="dtype was given") as error:
        ModelsSource((one,), dtype="float64").open()
    assert "loaded already" in error.value.known
    with pytest.raises(ModelError, match="No model was given"):
        build(Trio, {"models": ()}).models.open()
    two = Trio(ModelsSource((one, other)), ("a", "b", "c"))
    assert command("made", two, (one, other), None) == "trisect made MODEL MODEL --files a b c"
