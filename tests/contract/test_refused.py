"""What a command may not touch: files of others in the folder that it is given, whether it is refused or runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests import tiny, tinyhf
from tests.raw import call, write_splits

import trisect
from trisect.core.errors import StudyError
from trisect.core.files import read_json, write_json
from trisect.core.schema import build
from trisect.core.spec import to_json_data
from trisect.experiments.dissect import DISSECT
from trisect.experiments.dissect.parts import PARTS
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.recall import RECALL
from trisect.experiments.recall.settings import RecallSettings
from trisect.experiments.study import run as lab
from trisect.experiments.translate import TRANSLATE
from trisect.experiments.translate.settings import TranslateSettings
from trisect.lab import driver
from trisect.lab.inputs import Workers
from trisect.lab.run_folder import RunFolder

TEXTS = [f"w{i} w{i + 1} , w{i + 2} w{(3 * i) % 40} ." for i in range(36)]
FOREIGN = {
    "notes.txt": "mine",
    ".draft.part": "mine, half",
    "deep/.important.txt.part": "mine",
    "deep/.results.json.123.part": "another program's, or another study's",
    "deep/.study.json.77-0123abcd.trisect-part": "another study's",
    "runs/.thesis.tex.part": "mine",
    "models/seed-1/.weights.part": "mine",
    "deep/er/.lock": "",
}
SMALL = {"width": 16, "heads": 2, "layers": 1, "epochs": 1}


def fill(folder: Path) -> Path:
    for name, content in FOREIGN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def seen(folder: Path) -> dict[str, bytes | None]:
    """Every file with its bytes and every folder, below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of each kind, texts, and sentences."""
    base = tmp_path_factory.mktemp("given")
    tinyhf.save(tinyhf.gpt2(), base / "causal", False)
    tinyhf.save(tinyhf.bart(), base / "pairs")
    for name, seed in (("step0", 1), ("step1", 2)):
        tinyhf.save(tinyhf.gpt2(seed), base / "steps" / name, False)
    write_splits(base / "texts", "\n".join(TEXTS))
    (base / "a").write_text("w1 w2\n")
    (base / "b").write_text("w1 w2\nw3\n")
    (base / "experiment.json").write_text(json.dumps(to_json_data(tiny.EXPERIMENT.resolved())))
    return base


def commands(place: Path) -> dict[str, tuple[object, ...]]:
    """Each command that writes, as it is refused in a folder of something else; --out follows."""
    texts = ("--corpus", place / "texts")
    return {
        "study": ("study", place / "experiment.json", "--workers", 0),
        "study, of no such preset": ("study", "nothing"),
        "dissect": ("dissect", "--workers", 0),
        "dissect, with no seeds": ("dissect", "--seeds", 0),
        "recall": ("recall", "--workers", 0),
        "recall, of no such recipe": ("recall", "--recipe", "nothing"),
        "translate-train": ("translate-train", "--workers", 0),
        "translate-train, of nothing": ("translate-train", "--data", place / "nothing"),
        "lookup": ("lookup", "--workers", 0),
        "lookup, of nothing": ("lookup", "--corpus", place / "nothing"),
        "norms": ("norms", place / "causal", *texts, "--block", "nothing"),
        "similarity": ("similarity", place / "causal", "--draws", 1),
        "ablate": ("ablate", place / "causal", *texts, "--sites", "q@9"),
        "erase": ("erase", place / "causal", *texts, "--labels", "nothing"),
        "rewind": ("rewind", place / "steps", "--initial", "step0", "--final", "step1", *texts, "--points", 1),
        "align": ("align", place / "pairs", "--source", place / "a", "--target", place / "b"),
        "theory": ("theory", "nothing"),
        "corpus annotate": ("corpus", "annotate", place / "texts", "--pipeline", "nothing"),
    }


NAMES = tuple(commands(Path()))


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_command_leaves_a_folder_of_others_as_it_was(place, tmp_path, name):
    before = seen(fill(tmp_path))
    done = call(*commands(place)[name], "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert len(done.output.strip().splitlines()) == 3, done.output
    if name not in ("study", "dissect", "lookup", "recall", "translate-train"):  # else it makes no folder either
        assert call(*commands(place)[name], "--out", tmp_path / "new" / "folder").exit_code == 2
    assert seen(tmp_path) == before


def test_what_reads_a_study_or_writes_a_page_leaves_a_folder_of_others_as_it_was(place, tmp_path):
    before = seen(fill(tmp_path))
    for command in ("report", "check"):
        for folder in (tmp_path, tmp_path / "new"):
            assert call(command, folder).exit_code == 2
    for out, text in ((tmp_path / "notes.txt" / "page.html", ("w1 w2",)), (tmp_path / "page.html", ("w1", "w2", "w3"))):
        assert call("explore", place / "causal", *text, "--out", out).exit_code == 2
    assert seen(tmp_path) == before


def test_annotating_leaves_alone_what_it_did_not_write(place, tmp_path):
    pytest.importorskip("spacy", reason="spaCy is the optional extra trisect[annotate]")
    wanted = ("--pipeline", "nothing", "--out")
    for name in ("letter.txt", "train.npy", "annotation.json"):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        before = seen(out)
        done = call("corpus", "annotate", place / "texts", *wanted, out)
        assert done.exit_code == 2
        assert "is not empty, and holds no annotated corpus" in done.output
        assert seen(out) == before


@pytest.mark.parametrize(
    "words",
    [("theory", "average"), ("norms", "causal", "--corpus", "texts", "--limit", 2)],
    ids=lambda words: words[0],
)
def test_a_command_refuses_a_folder_with_other_things_and_leaves_them_alone(place, tmp_path, words, monkeypatch):
    monkeypatch.chdir(place)
    before = seen(fill(tmp_path))
    done = call(*words, "--out", tmp_path)
    assert done.exit_code == 2, done.output
    assert "is not empty, and holds no results of" in done.output
    assert seen(tmp_path) == before
    own = tmp_path / "own"
    assert call(*words, "--out", own).exit_code == 0
    there = seen(fill(own))
    assert call(*words, "--out", own).exit_code == 0  # its own, with files of others that came later
    assert {name: seen(own)[name] for name in FOREIGN} == {name: there[name] for name in FOREIGN}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A study that was stopped before its first run."""
    out = tmp_path_factory.mktemp("begun") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "run_jobs", _stop)
        with pytest.raises(KeyboardInterrupt):
            study(out)
    return out


def _stop(*_):
    raise KeyboardInterrupt


def study(out, experiment=tiny.EXPERIMENT, **how):
    return trisect.study(experiment, out=out, workers=0, quiet=True, **how)


def copied(begun: Path, out: Path) -> Path:
    """The study with files of others in it, and with scratch files of its own."""
    fill(Path(shutil.copytree(begun, out)))
    for name in SCRATCH:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("half")
    return out


SCRATCH = (
    ".study.json.4711-0a1b2c3d.trisect-part",
    "tables/.runs.parquet.4711-0a1b2c3d.trisect-part",
    "corpus/.train.npy.4711-0a1b2c3d.trisect-part",
    "fleets/.abc.safetensors.4711-0a1b2c3d.trisect-part",
)


@pytest.mark.parametrize("harm", ["another model", "about.json", "study.json", "another precision"])
def test_a_study_that_is_refused_stays_as_it_was(begun, tmp_path, harm):
    out, experiment = copied(begun, tmp_path / "study"), tiny.EXPERIMENT
    (out / ".lock").unlink(missing_ok=True)
    if harm in ("another model", "about.json"):  # with a lock file as without one
        (out / ".lock").touch()
    if harm == "another model":
        experiment = replace(experiment, model=replace(tiny.MODEL, width=16))
    elif harm == "another precision":
        write_json(out / "study.json", read_json(out / "study.json", "") | {"precision": "bfloat16"})
    else:
        (out / harm).write_text("{")
        experiment = replace(experiment, seeds=(1, 2, 3))
    before = seen(tmp_path)
    with pytest.raises(StudyError):
        study(out, experiment)
    assert seen(tmp_path) == before


@pytest.mark.parametrize("name", ["norms", "similarity", "theory", "recall", "dissect", "translate-train"])
def test_a_study_is_no_folder_for_results_of_others(begun, place, tmp_path, name):
    out = copied(begun, tmp_path / "study")
    before = seen(tmp_path)
    words = {"theory": ("theory", "average"), "norms": ("norms", place / "causal", "--text", "w1 w2")}
    assert call(*words.get(name, commands(place)[name]), "--out", out).exit_code == 2
    assert seen(tmp_path) == before


def test_a_study_in_use_or_with_a_lock_of_somebody_elses_stays_as_it_is(begun, tmp_path):
    out = copied(begun, tmp_path / "study")
    with RunFolder(out).lock():
        before = seen(tmp_path)
        with pytest.raises(StudyError, match="is in use"):
            study(out)
        assert seen(tmp_path) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".lock").write_text("mine")
    with pytest.raises(StudyError, match=r"There is \.lock\."):
        study(tmp_path / "other")
    assert seen(tmp_path / "other") == {".lock": b"mine"}


def test_a_study_that_goes_on_removes_its_own_scratch_files_and_no_others(begun, tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "run_jobs", lambda *_: None)
    out = copied(begun, tmp_path / "study")
    nested = out / "runs" / "another-study"
    nested.mkdir(parents=True)
    (nested / SCRATCH[0]).write_text("another study's")
    with pytest.raises(StudyError, match="is not there any more"):  # for nothing is trained
        study(out)
    after = seen(out)
    assert {name: after[name] for name in FOREIGN} == {name: text.encode() for name, text in FOREIGN.items()}
    assert not set(SCRATCH) & set(after)
    assert (nested / SCRATCH[0]).read_text() == "another study's"


@pytest.mark.parametrize("what", ["recall", "translate"])
def test_a_recall_or_a_translation_that_is_refused_stays_as_it_was(tmp_path, what):
    settings, here = {k: v for k, v in SMALL.items() if k != "epochs"}, Workers(workers=0)

    def run(**changed):
        if what == "recall":
            asked = RecallSettings(settings=settings | changed, machine=here)
            return driver.run(RECALL, asked, tmp_path / "x", quiet=True)
        made = TranslateSettings(seeds=(1,), settings=settings | {"inner": 16} | changed, machine=here)
        return driver.run(TRANSLATE, made, tmp_path / "x", quiet=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trisect.lab.training.run_jobs", _stop)
        with pytest.raises(KeyboardInterrupt):
            run()
    fill(tmp_path / "x")
    (tmp_path / "x" / SCRATCH[0]).write_text("half")
    before = seen(tmp_path)
    with pytest.raises(StudyError, match="belongs to another"):
        run(width=32)
    assert seen(tmp_path) == before


def test_a_dissection_that_is_refused_stays_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("trisect.experiments.dissect.run.PARTS", PARTS[1:])  # from the study of roles on
    monkeypatch.setattr("trisect.experiments.study.run.run_jobs", _stop)

    def run(out, **given):
        asked = {"roles": tiny.EXPERIMENT, "study": tiny.EXPERIMENT, "workers": 0} | given
        return driver.run(DISSECT, build(DissectSettings, asked), out, quiet=True)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "x")
    fill(tmp_path / "x")
    before = seen(tmp_path)
    for given in ({"roles": replace(tiny.EXPERIMENT, model=replace(tiny.MODEL, width=16))}, {"seeds": 0}):
        with pytest.raises(trisect.TrisectError):
            run(tmp_path / "x", **given)
        assert seen(tmp_path) == before
    for given in ({"recall": {"nothing": 1}}, {"translation": {"nothing": 1}}):
        for out in ("x", "new"):
            with pytest.raises(trisect.TrisectError):
                run(tmp_path / out, **given)
            assert seen(tmp_path) == before
