"""Settings: their words on a command line and back, what Python takes by place, and groups and values of several kinds."""

import inspect
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import click
import pytest
from pydantic import Field
from tests import tinyhf

import trisect
from trisect.api import signature
from trisect.cli.options import parameters_of, parse_options
from trisect.core.errors import ModelError, SpecError
from trisect.core.schema import Option, Setting, build, flat_settings, record
from trisect.experiments import EXPERIMENTS, UTILITIES
from trisect.experiments.ablate.settings import AblateSettings
from trisect.hf.load import load
from trisect.lab import driver
from trisect.lab.experiment import Experiment
from trisect.lab.inputs import ModelSource, ModelsSource, TextSource
from trisect.lab.records import command


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


FLAGS = [
    pytest.param(experiment, one, id=f"{experiment.name}-{one.name}")
    for experiment in EXPERIMENTS
    for one in flat_settings(experiment.settings)
    if one.kind is bool and one.words
]


def alone(one: Setting) -> type[Any]:
    """Settings of that flag alone."""
    hint: Any = Annotated[bool, Field(description=one.help), one.option]
    own = {"__annotations__": {one.name: hint | None if one.optional else hint}, one.name: one.default}
    return record(type("Alone", (), own))


def from_words(settings: type[Any], *words: str) -> Any:
    context = click.Command("alone", params=parameters_of(settings)).make_context("alone", list(words))
    return build(settings, parse_options(settings, context.params))


@pytest.mark.parametrize(("experiment", "one"), FLAGS)
def test_a_flag_comes_back_from_the_recorded_command(experiment: Experiment[Any, Any], one: Setting):
    settings = alone(one)
    for value in (True, False):
        words = shlex.split(command(experiment.name, settings(value)))[2:]
        assert getattr(from_words(settings, *words), one.name) is value
    assert bool(getattr(from_words(settings), one.name)) is bool(one.default)


BY_PLACE = {  # what may be given without its name: the model, and what is read or asked
    "ablate": ["model", "texts"],
    "align": ["models", "source"],
    "ask": ["model", "question"],
    "audit": ["model", "handle"],
    "bench": ["files"],
    "compare": ["models", "texts"],
    "compose": ["model", "pairs"],
    "dissect": [],
    "erase": ["model", "corpus"],
    "explore_page": ["model", "text"],
    "lookup": [],
    "norms": ["model", "texts"],
    "patch": ["model", "pairs"],
    "plan": ["experiment"],
    "profile": ["model", "corpus"],
    "quantise": ["model", "texts"],
    "recall": ["data"],
    "rewind": ["model", "texts"],
    "similarity": ["model", "texts"],
    "study": ["experiment"],
    "theory_page": ["names"],
    "translate_train": ["data"],
}


@pytest.mark.parametrize("command", [*EXPERIMENTS, *UTILITIES], ids=lambda command: command.python)
def test_a_function_takes_the_model_and_what_it_reads_by_place_and_all_else_by_name(command):
    """So a new setting between others breaks no call."""
    function = getattr(trisect, command.python)
    by_name = inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(function).parameters
    assert [name for name, one in parameters.items() if one.kind is not by_name] == BY_PLACE[command.python]
    for field in flat_settings(command.settings):
        annotation = parameters[field.name].annotation
        assert annotation is Any or (NoneType in get_args(annotation)) == field.optional
    with pytest.raises(TypeError, match="too many positional arguments"):
        function(*("w1" for _ in BY_PLACE[command.python]), "w1")
    with pytest.raises(
        TypeError, match="'quite'; did you mean 'quiet'" if "quiet" in parameters else "argument 'quite'"
    ):
        function(quite=True)


@pytest.mark.parametrize("name", ["patch", "compose", "compare"])
def test_a_file_of_pairs_is_named_in_python_as_on_the_command_line(name, tmp_path):
    settings = next(one.settings for one in EXPERIMENTS if one.name == name)
    file, model = tmp_path / "pairs.json", {"models": ("m", "n")} if name == "compare" else {"model": "m"}
    for pairs in (str(file), file):
        assert build(settings, {**model, "pairs": pairs}).pairs == pairs
    with pytest.raises(SpecError, match=r"(?s)pairs is \[\('w1', 'w2'\)\].*It is a text or a path"):
        build(settings, {**model, "pairs": [("w1", "w2")]})


def test_a_site_has_one_spelling_in_a_command():
    spelt = [AblateSettings(ModelSource("a"), TextSource(), sites=(site,)) for site in ("q@1,2", "q@2,1", "q@1-2")]
    assert len({command("ablate", settings) for settings in spelt}) == 1


def test_a_group_of_which_nothing_is_given_is_missing_and_its_help_says_what_stands():
    assert from_words(Asked, "m", "--where", "w").read is None
    assert from_words(Asked, "m", "--where", "w", "--corpus", "c").read == TextSource("c")
    assert from_words(Asked, "m", "--where", "w", "--text", "a b", "--split", "valid").read == TextSource(
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
    with pytest.raises(SpecError, match=r"(?s)text holds 5\..*Each value is a text"):
        TextSource(text=[5])  # pyright: ignore[reportArgumentType]


def test_a_value_of_several_types_is_one_of_them():
    assert build(Asked, {"model": Path("m"), "where": "w"}).model == Path("m")
    with pytest.raises(SpecError) as error:
        build(Asked, {"model": "m", "where": 3})
    assert (error.value.problem, error.value.reason) == ("where is 3.", "It is a text or a path.")


def test_a_command_repeats_a_run_without_paths_of_this_machine(tmp_path):
    (tmp_path / "bank").mkdir()
    here = Asked(tmp_path, tmp_path / "bank")
    assert command("made", here) == "trisect made MODEL --where bank"
    assert command("made", Asked("owner/model", "hf:a/b")) == "trisect made owner/model --where hf:a/b"


def test_a_folder_is_named_by_the_model_that_an_experiment_opens_itself():
    assert driver._place(MADE, Asked("owner/model/", "w"), None, ()) == Path("made-model")
    assert driver._place(MADE, Asked("m", "w"), "there", ()) == Path("there")


def test_so_many_values_are_so_many():
    assert build(Trio, {"models": "m", "files": ["a", Path("b"), "c"]}) == Trio(
        ModelsSource(("m",)), ("a", Path("b"), "c")
    )
    with pytest.raises(SpecError) as error:
        build(Trio, {"models": "m", "files": ("a", "b")})
    assert (error.value.problem, error.value.reason) == ("files was given 2 values.", "It takes 3: A B C.")
    (files,) = (p for p in parameters_of(Trio) if p.name == "files")
    assert files.nargs == 3


def test_models_of_one_name_get_numbers_and_none_is_no_answer():
    one = load(tinyhf.bert(), tinyhf.tokenizer())
    other = replace(one, name="other")
    assert [m.name for m in ModelsSource((one, other, one)).open()] == [f"{one.name} (1)", "other", f"{one.name} (3)"]
    with pytest.raises(ModelError, match="dtype was given") as error:
        ModelsSource((one,), dtype="float64").open()
    assert "loaded already" in error.value.reason
    with pytest.raises(ModelError, match="No model was given"):
        build(Trio, {"models": ()}).models.open()
    two = Trio(ModelsSource((one, other)), ("a", "b", "c"))
    assert command("made", two, (one, other), None) == "trisect made MODEL MODEL --files a b c"


@record
class _Listed:
    names: Annotated[tuple[str, ...], Field(description="Names."), Option(many="commas", metavar="NAME")] = ()


@pytest.mark.parametrize("name", ["a", ""])
def test_what_a_list_names_twice_is_refused_also_where_it_is_empty(name):
    with pytest.raises(SpecError, match="twice"):
        build(_Listed, {"names": [name, name]})
