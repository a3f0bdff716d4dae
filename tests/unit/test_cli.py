"""The command line: bad input is one message of three parts and exit 2, never a traceback; good input prints."""

import gc
import json
import re
import sys
import webbrowser
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests import tiny

from trisect.cli import main
from trisect.cli.group import SECTIONS
from trisect.cli.options import finding_lines, parse_options
from trisect.core.errors import SpecError, StudyError, unknown_name
from trisect.core.finding import Finding
from trisect.core.schema import build, flat_settings
from trisect.core.spec import to_json_data
from trisect.experiments import EXPERIMENTS
from trisect.experiments.study import STUDY
from trisect.lab.driver import _place
from trisect.papers import SOURCES

ROOT = Path(__file__).parents[2]


def call(*words: str):
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


BAD = [
    (
        ("study", "quik"),
        "Unknown preset or file 'quik'; did you mean 'quick'?",
        "Presets are quick, wikitext2-small, paper, all-layers, beyond",
    ),
    (("study", "quick", "--device", "tpu"), "device is 'tpu'", "There is auto, cpu and cuda"),
    (("study", "quick", "--precision", "bfloat16"), "The precision 'bfloat16' was asked for", "Leave --precision out"),
    (("study", "quick", "--seeds", "0"), "seeds is 0", "1 or more"),
    (("study", "quick", "--seeds", "two"), "'two' are not seeds", "whole numbers"),
    (("study", "quick", "--seeds", "1,1"), "The seeds [1, 1]", "different whole numbers"),
    (("study", "quick", "--epochs", "0"), "epochs is 0", "1 or more"),
    (("study", "quick", "--workers", "-1"), "workers is -1", "from 0 to 1,024"),
    (
        ("study", "quick", "--only", "melt"),
        "'melt' is not an experiment",
        "attack, control, rewind, freeze, tie, probe, erase",
    ),
    (("study", "quick", "--sites", "k@6"), "'k@6' lies outside the model", "layers 1-5"),
    (("study", "quick", "--sites", "k@2-1"), "'2-1' is reversed", "A site reads"),
    (("study", "quick", "--sites", "pre.q@1"), "at 'pre.q@1' is not possible in a study", "q, k, v, o, attn, ffn"),
    (("study", "paper"), "names no corpus", "leaves the text to you"),
    (("study", "quick", "--corpus", "nowhere"), "nowhere", ""),
    (("corpus", "show", "hf:"), "'hf:' names no dataset", "hf:NAME:CONFIG"),
    (("plan", "quick", "--only", "rewind", "--sites", "k@1.h9"), "names head 9 of k", "k has heads 1-5"),
    (("plan", "quick", "--only", "tie", "--sites", "k@1"), "tie at 'k@1' is not possible", "shares one matrix"),
    (("plan", "quick", "--seeds", "999999999"), "seeds is 999999999", "at most 10,000"),
    (("report", "nowhere"), "nowhere holds no study", "study.json"),
    (("erase", "M"), "--corpus was not given", "It is needed: A labelled text"),
    (("align", "M"), "--source was not given", "It is needed: A file of source sentences"),
    (("align", "M", "--source", "s"), "s has no target", "--marker or --spans says where the two are"),
    (("norms", "M", "embedded", "--text", "a"), "embedded was given as a model", "It is a text"),
    (("norms", "M", "--corpus", "embeded"), "folder embeded; did you mean 'embedded'?", "sample"),
    (("erase", "M", "--corpus", "smaple", "--labels", "pos"), "folder smaple; did you mean 'sample'?", "embedded"),
]


@pytest.mark.parametrize(("words", "given", "known"), BAD, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_bad_input_is_one_message_and_exit_2(words, given, known, tmp_path):
    result = call(*words)
    assert result.exit_code == 2
    message = result.stderr
    assert given in message
    assert known in message
    assert message.startswith("trisect: ")
    assert len(message.strip().splitlines()) == 3
    assert "Traceback" not in message
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_command_ends_without_a_search_for_garbage(monkeypatch):
    asked = []
    monkeypatch.setattr("atexit.register", asked.append)
    said = call("--version")
    assert said.exit_code == 0
    numbers = {name: metadata.version(name) for name in ("trisect", "torch", "transformers")}
    assert all(f"{name} {number}" in said.output for name, number in numbers.items())
    assert asked == [gc.freeze]


def test_a_folder_with_an_experiment_alone_is_one_to_run_again(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "experiment.json").write_text("{}")
    said = call("report", "kept").stderr
    assert "Run its experiment again: trisect study kept/experiment.json --out FOLDER." in said


def test_plan_as_json_is_an_experiment_that_study_takes(tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
    data = json.loads(call("plan", "tiny.json", "--json").stdout)
    (tmp_path / "again.json").write_text(json.dumps(data["experiment"]))
    assert json.loads(call("plan", "again.json", "--json").stdout)["runs"] == data["runs"]


def test_a_corpus_is_shown_by_the_sizes_of_its_splits():
    assert "train  30,002 tokens = 1,500 rows × 20 columns" in call("corpus", "show", "embedded").stdout


def test_epochs_are_those_of_attacks_too():
    from trisect.experiments.study.plan import designs
    from trisect.experiments.study.settings import DesignSource

    for epochs in (3, 300):
        runs = list(designs(DesignSource("paper", epochs=epochs))[0].runs("text"))
        assert {r.training.epochs for r in runs} == {epochs}


def test_one_seed_by_name():
    for given, seeds in (
        ("7,", {"7"}),
        ("7-7", {"7"}),
        ("2-4", {"2", "3", "4"}),
        ("9,2-3", {"9", "2", "3"}),
        ("2", {"1", "2"}),
    ):
        runs = json.loads(call("plan", "quick", "--seeds", given, "--only", "freeze", "--json").stdout)["runs"]
        assert {re.findall(r"-s(\d+)-", r)[0] for r in runs} == seeds
    refused = call("plan", "quick", "--seeds", "4-2")
    assert refused.exit_code == 2
    assert "'4-2' are not seeds." in refused.stderr


def test_claims_prints_every_claim_part_margin_and_reason():
    rows = json.loads(call("claims", "--json").stdout)
    text = call("claims").stdout
    assert {r["claim"] for r in rows} == {claim.id for source in SOURCES for claim in source.claims}
    assert {*(f"A-{i}" for i in range(1, 16)), "B-4", "C-5", "D-3"} <= {r["claim"] for r in rows}
    for row in rows:
        assert row["sentence"] in text
        assert row["reason"] in text
    assert ".," not in text
    assert len(rows) > 60


def test_ctrl_c_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr("trisect.lab.driver.run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    result = call("study", "quick")
    assert result.exit_code == 130
    assert "Run the same command again" in result.stderr


def test_commands_stand_in_groups_and_every_command_in_one():
    shown = call("--help").stdout
    titles = [shown.index(f"\n{title}:") for title in SECTIONS]
    assert titles == sorted(titles)
    assert "\nMore:" not in shown
    known = [name for names in SECTIONS.values() for name in names]
    assert len(known) == len(set(known))
    assert set(main.commands) <= set(known)


def test_a_page_is_opened_where_that_is_asked(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or False)
    made = call("theory", "copying", "--samples", "100", "--out", str(tmp_path / "a"), "--open", "--quiet")
    page = tmp_path / "a" / "theory.html"
    assert opened == [page.resolve().as_uri()]
    assert made.stdout.splitlines() == [f"report  {page.resolve()}"]
    assert f"No browser could be opened here. Open the page yourself: {page.resolve()}" in made.stderr
    call("theory", "copying", "--samples", "100", "--out", str(tmp_path / "b"))
    assert len(opened) == 1


def test_the_closest_name_is_proposed_and_no_other():
    assert unknown_name("split", "tset", ("train", "valid", "test")) == "Unknown split 'tset'; did you mean 'test'?"
    assert unknown_name("setting", "depth", ("width", "layers")) == "Unknown setting 'depth'."
    assert unknown_name("split", 3, ("train",)) == "Unknown split 3."
    assert unknown_name("split", "x" * 100, ()) == f"Unknown split '{'x' * 59}…."


def read(name: str, *words: str) -> dict[str, object]:
    """What the settings of a command are given by these words."""
    parent = main.make_context("trisect", [name])
    context = main.commands[name].make_context(name, list(words), parent)
    return parse_options(next(e.settings for e in EXPERIMENTS if e.name == name), context.params)


def test_a_list_is_written_with_commas_or_by_giving_the_option_again():
    for words in (["--labels", "pos,dep"], ["--labels", "pos", "--labels", "dep"], ["--labels=pos", "--labels=dep"]):
        assert read("erase", "MODEL", "--corpus", "embedded", *words)["labels"] == ("pos", "dep")
    assert read("theory", "--beta", "2, 8", "--beta", "1e1")["beta"] == (2.0, 8.0, 10.0)
    said = call("theory", "average", "--beta", "2,many")
    assert said.exit_code == 2
    assert said.stderr == "trisect: beta is 'many'.\n  It is a number.\n  Change beta accordingly.\n"


def test_lists_of_one_kind_have_one_spelling_in_every_command():
    several = [
        (e.name, d)
        for e in EXPERIMENTS
        for d in flat_settings(e.settings)
        if d.is_many and d.words and not d.option.argument
    ]
    forms = {(d.words, d.option.many) for _, d in several}
    assert len({words for words, _ in forms}) == len(forms)  # one form for each name
    assert {words for words, many in forms if many == "repeat"} == {"audio", "image", "text", "trial"}


def test_values_of_an_option_that_is_given_twice_are_joined_or_refused_and_none_is_lost():
    lists = [
        (e, d)
        for e in EXPERIMENTS
        for d in flat_settings(e.settings)
        if d.is_many and d.words and not d.option.argument
    ]
    for experiment, one in lists:
        if one.option.count is not None:
            continue
        sample = {"words": ("q@1", "k@1"), "seeds": ("1,2", "7")}.get(one.option.many, ("1", "2"))
        arguments = [x for d in flat_settings(experiment.settings) if d.option.argument for x in ("one",)]
        words = [*arguments, f"--{one.words}", sample[0], f"--{one.words}", sample[1]]
        made = main.commands[experiment.name]
        context = made.make_context(experiment.name, [*words, *_needed(experiment, one)], **main.context_settings)
        if one.option.many == "seeds":
            with pytest.raises(SpecError, match="given 2 times"):
                parse_options(experiment.settings, context.params)
        else:
            assert len(context.params[one.name]) == 2, (experiment.name, one.words)


def test_what_a_list_names_twice_is_refused_in_every_command_but_texts_and_images():
    samples = {
        "sites": "q@1",
        "what": "norms",
        "only": "freeze",
        "names": "average",
        "beta": 2.0,
        "bits": 2,
        "rank": 2,
        "by": "token",
        "edits": "tie-k+v",
    }
    samples |= dict.fromkeys(("files", "functions", "methods", "worlds"), "x")
    lists = [(e, d) for e in EXPERIMENTS for d in flat_settings(e.settings) if d.is_many and d.option.many != "seeds"]
    lists = [(e, d) for e, d in lists if d.option.count is None and d.name not in ("audio", "text", "image", "models")]
    assert {d.name for _, d in lists} == {*samples, "labels", "checkpoints", "stages", "join"}
    for experiment, one in lists:
        given = {d.name: "x" for d in flat_settings(experiment.settings) if d.required}
        for value in [samples.get(one.name, "x")]:
            with pytest.raises(SpecError) as error:
                build(experiment.settings, {**given, one.name: [value, value]})
            assert error.value.problem == f"{one.name} was given {str(value)!r} twice.", experiment.name
    said = call("theory", "average", "average")
    assert said.stderr == (
        "trisect: names was given 'average' twice.\n  names are 'average', 'average'.\n  Give each once.\n"
    )


def _needed(experiment, but):
    """The options without which a command does not begin."""
    found = [
        d for d in flat_settings(experiment.settings) if d.required and not d.option.argument and d.words != but.words
    ]
    return [word for d in found for word in (f"--{d.words}", "1")]


def test_results_go_to_the_commands_name_and_what_it_reads_and_the_manual_names_each():
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("## Where results go")[2]
    for one in EXPERIMENTS:
        assert re.fullmatch(rf"{one.name}(-MODEL|-NAME)?(\.html)?", one.where), one.where
        assert f"| `trisect {one.name}` | `{one.where}` |" in manual


def test_a_site_and_a_place_that_cannot_be_are_met_before_the_heavy_imports(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trisect.lab.driver", None)  # to import it would be an error
    (tmp_path / "file").write_text("mine")
    for words, named in (
        (("--sites", "q@@1"), "q@@1"),
        (("--sites", "q@1", "--out", str(tmp_path / "file")), "is a file"),
    ):
        said = call("ablate", "MODEL", "--text", "some words", *words)
        assert (said.exit_code, named in said.stderr) == (2, True)


def test_a_default_place_is_one_folder_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError, match=r"a/b"):
        _place(STUDY, STUDY.settings(), None, (), "a/b")
    assert _place(STUDY, STUDY.settings(), None, (), "quick") == Path("study-quick")


def test_every_command_that_works_for_a_while_has_json_and_quiet_and_every_one_with_a_page_open():
    nested = {"annotate": main.commands["corpus"], "show": main.commands["corpus"]}
    own = {name: one for name, one in main.commands.items() if name not in ("serve", "corpus", "claims")}
    own |= {name: group.commands[name] for name, group in nested.items()}  # pyright: ignore[reportAttributeAccessIssue]
    for name, one in own.items():
        options = {option for parameter in one.params for option in parameter.opts}
        assert {"--json", "--quiet"} <= options, name
    for name in ("report", *(e.name for e in EXPERIMENTS if e.paged)):
        assert "--open" in {option for parameter in own[name].params for option in parameter.opts}, name


def test_a_utility_that_is_quiet_prints_its_reply_alone():
    done = call("plan", "quick", "--quiet", "--json")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)


def test_the_answer_comes_first_in_three_lines_and_verdicts_are_counted():
    answer = Finding("answer", "A query says what is looked for.", title="Query")
    more = [Finding("other", f"Number {i}.") for i in range(4)]
    verdicts = ("refuted", *["not tested"] * 5, "inconclusive")
    claims = [Finding("claim", f"A-{i}", claim=f"A-{i}", verdict=verdict) for i, verdict in enumerate(verdicts)]
    part = Finding("claim", "a part of it", claim="A-1", verdict="not tested", part="train")
    lines = finding_lines([*more, *claims, part, answer], "One sentence.")
    assert lines[:3] == ["One sentence.", "Query: A query says what is looked for.", "Number 0."]
    assert lines[3].startswith("claims: 1 refuted, 1 undecided, 5 not tested (")
    assert finding_lines(more, paged=False) == [str(one) for one in more]
