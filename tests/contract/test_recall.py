"""Recall as a whole: it goes on where it stopped, is extended, refuses what differs; its models serve every command."""

import json
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tests.raw import call, read_json

import trisect
from trisect.cli.options import experiment_command, parse_options
from trisect.core.errors import CorpusError, DamagedFileError, StudyError
from trisect.core.schema import build
from trisect.engine.processes import Processes
from trisect.experiments.recall import RECALL, rows
from trisect.experiments.recall import run as lessons
from trisect.experiments.recall.rows import AnswerBootstrap
from trisect.experiments.recall.settings import RECIPES, RecallSettings
from trisect.hf.small import gpt
from trisect.hf.small.gpt import make_tokenizer
from trisect.lab import training
from trisect.lab.inputs import choose_recipe
from trisect.lab.training import ModelFiles
from trisect.report.sheet import Sheet
from trisect.text.birth_places import People, Question, _CutSpan, open_people


def test_characters_that_no_text_to_learn_from_has_are_counted():
    learnt = Question("A", "Where is A?", "B")
    people = People("made", (), (learnt,), (learnt,), (Question("Z", "Where is Z?", "Z"), learnt), (), ())
    (note,) = lessons._missing(people)
    assert note == "1 questions or their places hold characters outside the vocabulary, read as unknown: 'Z' 2×."
    assert lessons._missing(replace(people, test=(learnt,))) == []


TINY = {"layers": 1, "heads": 2, "width": 16, "pretraining_batch": 128, "batch": 128, "invented": 12}
TINY |= dict.fromkeys(("pretraining_epochs", "epochs_without", "epochs_after"), 2)


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """Intervals of few draws and an empty page: how they come about is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trisect.experiments.recall.page.page", lambda tables, about: Sheet("t", "k", "l", ()))
        patch.setattr(rows, "AnswerBootstrap", lambda seed, draws=0: AnswerBootstrap(seed, 100))
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return trisect.recall(out=tmp_path_factory.mktemp("recall") / "r", settings=TINY, workers=0, quiet=True)


@pytest.fixture
def births(tmp_path):
    """A folder of birth places, as small as it may be, in words of ours."""
    firsts, lasts = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo"), ("Moor", "Pell", "Quill", "Rand", "Sand")
    grid = [(i, j) for i in range(6) for j in range(5) if (i + j) % 3]  # a third of the names is nobody's
    names = [f"{firsts[i]} {lasts[j]}" for i, j in grid]
    places = ("Upton", "Vale", "Wold")
    pairs = [(name, places[i % 3]) for i, name in enumerate(names)]
    folder = tmp_path / "births"
    folder.mkdir()
    (folder / "wiki.txt").write_text("".join(f"{n}. {n} was born in {p}.\n" for n, p in pairs), encoding="utf-8")
    asked = [f"Where was {n} born?\t{p}\n" for n, p in pairs]
    (folder / "birth_places_train.tsv").write_text("".join(asked[:10]), encoding="utf-8")
    (folder / "birth_dev.tsv").write_text("".join(asked[10:18]), encoding="utf-8")
    questions = "".join(a.split("\t")[0] + "\n" for a in asked[18:])
    (folder / "birth_test_inputs.tsv").write_text(questions, encoding="utf-8")
    return folder


def test_another_recipe_or_text_does_not_mix_with_it(done, births):
    with pytest.raises(StudyError, match="layers: 1 there, 2 here"):
        trisect.recall(out=done.folder, settings=TINY | {"layers": 2}, quiet=True)
    with pytest.raises(StudyError, match="belongs to another recall experiment"):
        trisect.recall(births, out=done.folder, recipe="embedded", settings=TINY | {"left_out": 2}, quiet=True)


def test_a_run_that_is_stopped_and_whose_worker_is_killed_ends_the_same(done, tmp_path, monkeypatch):
    def begin(desk, kind):
        people, emit = training.begin(desk, kind)

        def stop(share, words):
            emit(share, words)
            if words.startswith("fine-tuning, epoch 1"):
                raise KeyboardInterrupt

        return people, stop

    with monkeypatch.context() as patch:
        patch.setattr(lessons, "begin", begin)
        patch.setattr(gpt, "SAVED_EVERY", -1.0)
        with pytest.raises(KeyboardInterrupt):
            trisect.recall(out=tmp_path, settings=TINY, workers=0, quiet=True)
    assert (tmp_path / "state" / "pretrained-1-fine-tuning.pt").exists()
    killed, take = [], Processes._take

    def kill(engine, worker, message, on_event):
        take(engine, worker, message, on_event)
        if not killed and worker.job is not None and message and "fine-tuning" in message.get("words", ""):
            worker.process.kill()
            killed.append(worker.job)

    monkeypatch.setattr(Processes, "_take", kill)
    again = trisect.recall(out=tmp_path, settings=TINY, workers=1, quiet=True)
    assert len(killed) == 1
    for name in ("answers", "measures", "claims", "metrics"):
        assert again.tables[name].equals(done.tables[name]), name
    assert not list((tmp_path / "state").iterdir())


def test_real_files_with_names_left_out(births, tmp_path):
    settings = TINY | {"left_out": 3, "invented": 5, "trained_people": 0}
    made = trisect.recall(births, out=tmp_path / "r", recipe="small", settings=settings, workers=0, quiet=True)
    answers = made.tables["answers"]
    assert set(answers["model"]) == {"plain", "pretrained", "left-out"}
    valid = answers.filter(split="valid")
    counts = {m: dict(valid.filter(model=m)["category"].value_counts().iter_rows()) for m in ("pretrained", "left-out")}
    assert counts == {"pretrained": {"pretraining only": 8}, "left-out": {"pretraining only": 5, "neither": 3}}
    assert answers.filter(split="test")["correct"].null_count() == 6  # two names, three models
    assert json.loads((made.paths["left-out-1"] / "config.json").read_text())["model_type"] == "llama"
    question = (births / "birth_test_inputs.tsv").read_text(encoding="utf-8").splitlines()[0]
    reply = trisect.ask(made.paths["pretrained-1"], question)  # of whom only the text tells
    assert reply.seen == "pretraining only"


def test_a_model_without_some_names_reads_no_line_that_holds_them(births, tmp_path, monkeypatch):
    read = {}

    def practise(files, practice, model, tokenizer, stage, report, version=""):
        examples = practice.rows(1, np.random.default_rng(0))
        if stage == "pretraining":
            read[files.title.removesuffix("-1")] = {
                "".join(tokens[i] for i in row.ids if len(tokens[i]) == 1) for row in examples
            }

    people = open_people(births, left_out=3, invented=2)
    tokenizer = make_tokenizer(people.characters(), 64)
    tokens = {i: token for token, i in tokenizer.get_vocab().items()}
    monkeypatch.setattr(ModelFiles, "train", practise)
    monkeypatch.setattr(lessons.Answerer, "open", lambda folder, device: None)
    monkeypatch.setattr(lessons, "answer", lambda *_: ([], []))
    monkeypatch.setattr(lessons, "survival", lambda answerer, rows: [])
    # whole lines, so that a name that is there is seen
    monkeypatch.setattr(lessons, "draw_span", lambda size, block, draw, *cut: _CutSpan(size, size - 1, size))
    recipe = choose_recipe(RECIPES, "small", False, TINY | {"trained_people": 0, "block": 64})
    for model in ("pretrained", "left-out"):
        asked = lessons.RecallJob(model, 1, recipe, "cpu")
        lessons.train_and_ask(asked, asked.files(tmp_path), people, lambda share, words: None)
    assert len(people.left_out) == 3
    for name in people.left_out:
        assert any(name in line for line in read["pretrained"])
        assert not any(name in line for line in read["left-out"])
    assert len(read["left-out"]) == len(read["pretrained"]) - 3


def test_what_is_damaged_is_named_and_can_be_made_again(done, tmp_path):
    out = tmp_path / "r"
    shutil.copytree(done.folder, out)
    for path in (out / "answers" / "plain-1.json", out / "losses" / "plain-1-fine-tuning.json"):
        kept = path.read_text(encoding="utf-8")
        path.write_text(kept[:-20], encoding="utf-8")
        with pytest.raises(DamagedFileError, match=f"Delete {path} and run the same command again"):
            trisect.recall(out=out, settings=TINY, workers=0, quiet=True)
        path.write_text(kept, encoding="utf-8")
    # what is gone is made again, the same: a model, answers, and losses, without which their table would be smaller without a word
    shutil.rmtree(out / "models" / "plain-1")
    (out / "answers" / "plain-1.json").unlink()
    (out / "losses" / "pretrained-1-pretraining.json").unlink()
    again = trisect.recall(out=out, settings=TINY, workers=0, quiet=True)
    for model in ("plain-1", "pretrained-1"):
        same = [(folder / "models" / model / "model.safetensors").read_bytes() for folder in (out, done.folder)]
        assert same[0] == same[1]
    (out / "losses" / "plain-1-fine-tuning.json").unlink()
    last = trisect.recall(out=out, settings=TINY, workers=0, quiet=True)
    for name in ("answers", "metrics"):
        assert again.tables[name].equals(done.tables[name])
        assert last.tables[name].equals(done.tables[name])


def test_a_loss_that_is_no_number_ends_the_training(tmp_path):
    with pytest.raises(StudyError, match=r"is not finite(.|\n)*Give a lower rate"):
        trisect.recall(out=tmp_path, settings=TINY | {"pretraining_rate": 1e30, "clip": 1e30}, workers=0, quiet=True)


def test_it_is_extended_by_seeds_trains_nothing_twice_and_the_pages_command_repeats_all_calls(done, tmp_path):
    """Its words are read back as the settings that stand in the folder, whatever the last call asked for."""
    out = tmp_path / "r"
    shutil.copytree(done.folder, out)
    plan = read_json(out / "recall.json", "")
    again = trisect.recall(out=out, settings=TINY, workers=0, quiet=True)
    words = shlex.split(again.about.command)
    assert words[:2] == ["trisect", "recall"]
    context = experiment_command(RECALL).make_context("recall", words[2:])
    read = build(RecallSettings, parse_options(RecallSettings, context.params))
    assert (read.data, read.seeds) == ("embedded", (1,))
    assert choose_recipe(RECIPES, read.recipe, True, read.settings).data() == plan["recipe"]
    kept = {path: path.stat().st_mtime_ns for path in (out / "models").rglob("model.safetensors")}
    more = trisect.recall(out=out, seeds=2, settings=TINY, workers=0, quiet=True)
    assert set(more.tables["answers"]["seed"]) == {1, 2}
    assert more.tables["answers"].filter(seed=1).equals(done.tables["answers"])
    assert kept == {path: path.stat().st_mtime_ns for path in kept}


def test_bad_files_and_questions_that_do_not_fit_are_named_before_any_training(births, tmp_path):
    def refused(line, mode, match):
        with (births / "birth_dev.tsv").open(mode, encoding="utf-8") as file:
            file.write(line)
        with pytest.raises(CorpusError, match=match):
            trisect.recall(births, out=tmp_path / "r", settings=TINY | {"left_out": 1}, quiet=True)
        assert not (tmp_path / "r").exists()

    refused(f"Where was {'Bo ' * 50}Pell born?\tVale\n", "a", "Give a block of at least")
    refused("Who is Bo?\tVale\n", "w", r"birth_dev\.tsv, line 1")


def test_a_smaller_world_is_of_the_people_who_are_left(births):
    whole = open_people(births, left_out=1, invented=4)
    smaller = whole.smaller(4)
    assert len(smaller.lines) == 12
    assert {a.name for a in smaller.train} | {a.name for a in smaller.valid} == {line.name for line in smaller.lines}
    assert smaller.invented
    assert not {a.name for a in smaller.invented} & set(whole.names())
    assert "reads 12 of 20 lines" in smaller.notes[-1]


def test_its_models_are_ordinary_ones_and_can_be_asked(done, tmp_path):
    model = done.paths["pretrained-1"]
    texts = [row["question"] for row in done.tables["answers"].filter(split="valid").head(8).iter_rows(named=True)]
    subject = trisect.load(model)
    questions = list(dict.fromkeys(texts))
    assert trisect.norms(subject, questions, out=tmp_path / "n", quiet=True).report.is_file()
    assert trisect.ablate(subject, questions, sites="v@1", out=tmp_path / "a", quiet=True).report.is_file()
    assert trisect.similarity(subject, out=tmp_path / "s", quiet=True).report.is_file()
    assert trisect.explore_page(subject, questions[0], out=tmp_path / "e.html").report.is_file()
    reply = trisect.ask(model, questions[0])
    assert reply.seen == "pretraining only"
    assert 0 < reply.probability <= 1
    assert len(reply.nearest) == 3
    said = call("ask", done.paths["plain-1"], "Where was Zzz Zzz born?", "--risk", 1)
    assert said.exit_code == 0
    assert "in no text that the model read" in said.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recall", "--set", "layers"], "A setting has a name, '=' and a value."),
        (["recall", "--set", "depth=2"], "Unknown setting of a recipe 'depth'."),
        (["recall", "--set", "layers=two"], "layers is 'two'."),
        (["recall", "--recipe", "large"], "Unknown recipe 'large'."),
        (["recall", "--seeds", "1,1"], "They are different whole numbers from 0"),
        (["recall", "--set", "left_out=3"], "It has people of its own who are in no text."),
        (["recall", "--set", "block=20"], "Give a block of at least"),
        (["recall", "--data", "nowhere"], "There is no file nowhere/wiki.txt."),
        (["ask", "nowhere", "Where was Bo born?"], "nowhere cannot be asked."),
        (["ask", "nowhere", "Who is Bo?"], "is about no name"),
        (["theory", "paste"], "Unknown construction 'paste'."),
        (["theory", "average", "--beta", "1e301"], "1e+300"),
        (["theory", "average", "--dim", "2", "--keys", "5"], "dim 2 was given with 5 orthogonal keys"),
    ],
)
def test_bad_input_is_one_message(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = call(*words)
    assert found.exit_code == 2
    assert said in found.output
    assert "Traceback" not in found.output
    assert not list(tmp_path.glob("*/models"))
