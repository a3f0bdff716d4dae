"""All four sources at the smallest size that has them all: what is written, linked and said, and that it goes on."""

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import polars as pl
import pytest
from tests.golden import test_commands as golden

from trisect.core.finding import Finding
from trisect.core.spec import read_experiment
from trisect.experiments.ablate import ABLATE
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.dissect import DISSECT, parts
from trisect.experiments.dissect.page import Line, from_table
from trisect.experiments.dissect.parts import KINDS, PARTS, DissectStep, each_model, over_models
from trisect.experiments.dissect.run import page_links, step_key, tutorial_path
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.profile import PROFILE
from trisect.experiments.profile.settings import ProfileSettings
from trisect.lab import driver
from trisect.lab.inputs import ModelSource, Workers
from trisect.papers import SOURCES, lookup

SITES = golden.SITES[:3]
SMALL = read_experiment(
    golden.STUDY
    | dict.fromkeys(("control", "probe", "erase", "ablate"))
    | {
        "attack": {"sites": SITES, "labels": ["pos"]},
        "rewind": {"sites": SITES, "points": 3},
        "freeze": {"sites": SITES},
        "tie": {"narrow": False},
    },
    "study",
)
ROLES = read_experiment(golden.ROLES | {"seeds": [1]} | dict.fromkeys(("rewind", "freeze", "erase")), "roles")
RECALL = {"width": 16, "heads": 2, "layers": 1, "pretraining_epochs": 1, "epochs_without": 1, "epochs_after": 1}
RECALL |= {"invented": 40, "pretraining_batch": 64}
TRANSLATION = {"width": 16, "heads": 2, "layers": 1, "inner": 16, "epochs": 1, "batch": 128, "longest": 6}
LOOKUP = {"width": 16, "checkpoints": 1, "steps": 2, "batch": 8, "warmup": 1}
LOOKUP |= {"repeats": 0.75, "longest": 16, "weight_decay": 0.02}
ASKED = DissectSettings(
    machine=Workers(workers=0), lookup=LOOKUP, study=SMALL, recall=RECALL, translation=TRANSLATION, roles=ROLES
)
OF_MODELS = {"norms", "alignment", "similarity", "ablation", "interchange", "profile"}


def dissect(out, asked=ASKED):
    return driver.run(DISSECT, asked, out, quiet=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return dissect(tmp_path_factory.mktemp("all") / "study")


def test_it_measures_what_it_did(done, capsys):
    golden.check_record("dissect", golden.record_folder(done.folder, done.data(), golden.LIMITS["dissect"]), capsys)


def test_every_claim_of_every_source_is_judged_once_and_every_kind_of_evidence_has_a_line(done):
    wholes = done.tables["claims"].filter(pl.col("part").is_null())
    # a dissection has no model of speech
    asked = [c.id for source in SOURCES for c in source.claims if source is not lookup.SPEECH]
    assert sorted(wholes["claim"]) == sorted(asked)
    assert set(wholes["verdict"]) <= {"supported", "refuted", "inconclusive", "not tested"}
    untested = set(wholes.filter(verdict="not tested")["claim"])
    assert untested == set(wholes.filter(pl.col("reason").str.contains("not measured"))["claim"])
    assert not untested & {"A-1", "B-1", "C-1", "C-2", "C-5", "D-1", "D-2", "D-3", "F-1"}  # these have their numbers
    assert [one.claim for one in done.findings if one.claim] == wholes["claim"].to_list()
    retrieved = done.folder / "recall" / "tables" / "measures.parquet"
    some = not pl.read_parquet(retrieved).filter(measure="survival", group="retrieved").is_empty()
    lines = from_table(done.tables["evidence"])
    asked = {"attack", "rewinding", "midstage", "freezing", "tying"}
    assert asked < set(KINDS)
    assert {line.kind for line in lines} == asked | OF_MODELS | ({"recall"} if some else set())
    for line in lines:
        rows = done.tables["evidence"].filter(kind=line.kind, what=line.what)
        assert dict(rows.select("component", "value").iter_rows()) == {c: m.mean for c, m in line.means.items()}
    for kind in ("rewinding", "ablation"):
        assert done.tables["evidence"].filter(kind=kind)["n"].to_list() == [len(SMALL.seeds)] * 3
    # a line of a measure is the mean over the trained models
    tables = [pl.read_parquet(done.folder / f"ablate/seed-{s}/tables/measures.parquet") for s in SMALL.seeds]
    for component, value in done.tables["evidence"].filter(kind="ablation").select("component", "value").iter_rows():
        each = [fmean(t.filter(measure="loss_change_nats", component=component)["value"]) for t in tables]
        assert value == pytest.approx(fmean(each), rel=1e-12)
    (norms,) = (line for line in lines if line.kind == "norms")
    assert (norms.means["q"], norms.compared) == (norms.means["k"], None)


def test_the_page_answers_first_and_every_page_that_it_names_is_there(done):
    """Where no induction head formed there is no answer, and the planted task calibrates."""
    assert not [one for one in done.findings if one.measure == "answer"]
    page = done.report.read_text()
    short = page[page.index('id="short-answer"') : page.index('id="sure"')]
    assert "In 2 models no induction head formed" in short
    assert 'Calibration: in <a href="roles/report.html">' in short
    for place in ("How sure?", "Inconclusive comparisons, and why", "What decides it", "trisect study roles"):
        assert place in page
    assert page.index('id="open"') < page.index(PARTS[0].question)
    page = done.report.read_text(encoding="utf-8")
    links = re.findall(r'href="([^"]+)"', short)
    assert "explore.html" in links
    for link in ("explore.html", "theory/theory.html"):
        assert (done.folder / link).exists(), link
    clone = Path(__file__).parents[2]
    assert tutorial_path(clone / "study") == "../docs/one-head.md"
    assert tutorial_path(done.folder) is None  # a link out of a clone does not last
    page = done.report.read_text()
    links = set(re.findall(r'href="([^"#:]+)"', page))
    assert {"training/report.html", "theory/theory.html", "recall/report.html", "alignment/report.html"} <= links
    assert {f"{name}/seed-1/report.html" for name in ("norms", "similarity", "ablate")} <= links
    for link in links:
        assert (done.folder / link).is_file(), link
    for row in done.tables["claims"].filter(pl.col("part").is_null()).iter_rows(named=True):
        assert re.search(rf"<th[^>]*>{row['claim']}</th>.*?<td>{row['verdict']}</td>", page, re.DOTALL), row["claim"]
    for part in PARTS:
        assert part.question in page
    pages = [way for _, models in page_links(ASKED) for way in models.values()]
    assert {"report.html", "theory/theory.html", "explore.html", "ablate/seed-1/report.html"} <= set(pages)
    assert len(page_links(ASKED)) == len(PARTS) + 2
    for way in pages:
        path = done.folder / way
        header = path.read_text(encoding="utf-8").partition('<nav class="study-links"')[2].partition("</nav>")[0]
        links = re.findall(r'href="([^"]+)"', header)
        assert len(links) >= len(PARTS) + 1, way
        assert all((path.parent / link).is_file() for link in links), way


def test_called_again_it_runs_no_part_and_says_the_same_as_its_tables_and_record_alone(done, monkeypatch):
    run, page = driver.run, done.report.read_bytes()

    def only(experiment, *rest, **named):
        assert experiment is DISSECT, f"{experiment.name} was run again"
        return run(experiment, *rest, **named)

    monkeypatch.setattr(driver, "run", only)

    def made():
        weights = done.folder.rglob("*.safetensors")
        return {path: path.stat().st_mtime_ns for path in (*weights, done.folder / "explore.html")}

    before = made()
    again = driver.run(DISSECT, ASKED, done.folder, quiet=True)
    assert made() == before
    assert again.findings == done.findings
    for name in ("evidence", "claims"):
        assert again.tables[name].equals(done.tables[name])
    drawn = driver.render(DISSECT, done.folder)
    assert drawn.report.read_bytes() == page
    assert (drawn.findings, drawn.about.facts) == (done.findings, done.about.facts)


def test_a_part_that_is_missing_or_damaged_is_run_again_and_no_other(done, monkeypatch, tmp_path):
    folder = Path(shutil.copytree(done.folder, tmp_path / "study"))
    run, seen = driver.run, []
    monkeypatch.setattr(driver, "run", lambda one, *rest, **named: seen.append(one.name) or run(one, *rest, **named))
    (folder / "ablate/seed-1/report.html").unlink()
    (folder / "norms/seed-2/tables/measures.parquet").write_bytes(b"PAR1")
    again = driver.run(DISSECT, ASKED, folder, quiet=True)
    assert seen == ["dissect", "norms", "ablate"]
    assert (folder / "ablate/seed-1/report.html").is_file()
    assert again.tables["evidence"].equals(done.tables["evidence"])


class Zeroing(type(ABLATE)):
    """Ablation under another name."""

    name = "zeroing"


def test_a_part_that_is_added_is_run_alone_and_has_its_section_and_its_line(done, monkeypatch, tmp_path):
    """What a new part is: one file with this, and its place in PARTS."""

    def evidence(found):
        yield Line.of(over_models(found, Finding("zeroing", "", "nats", what="rise with zeros"), "mean_change"))

    settings = partial(AblateSettings, how="zero")
    ablation = next(part for part in PARTS if part.name == "ablation")
    zeroing = replace(ablation, name="zeroing", title="Zeroing", question="What breaks with zeros?", evidence=evidence)
    zeroing = replace(zeroing, run=each_model(Zeroing(), settings))
    monkeypatch.setattr("trisect.experiments.dissect.run.PARTS", (*PARTS, zeroing))
    run, seen = driver.run, []
    monkeypatch.setattr(driver, "run", lambda one, *rest, **named: seen.append(one.name) or run(one, *rest, **named))
    folder = Path(shutil.copytree(done.folder, tmp_path / "study"))
    more = driver.run(DISSECT, ASKED, folder, quiet=True)
    assert seen == ["dissect", *["zeroing"] * len(SMALL.seeds)]
    page = more.report.read_text()
    assert "zeroing/seed-1/report.html" in page
    assert more.tables["evidence"].filter(kind="zeroing")["component"].to_list() == ["q", "k", "v"]
    assert more.tables["evidence"].filter(pl.col("kind") != "zeroing").equals(done.tables["evidence"])
    assert ">Zeroing</a></th>" in page


@pytest.mark.parametrize("installed", [True, False])
def test_erasure_is_measured_where_its_package_is_installed(monkeypatch, installed):
    monkeypatch.setattr(parts, "is_installed", lambda package: installed and package == "concept_erasure")
    [step] = next(part for part in PARTS if part.name == "roles").begins(DissectSettings())
    assert ("erase" in step.settings.what.only) == installed
    assert {*step.settings.what.only} == {*parts.METHODS} - ({"erase"} if not installed else set())


def test_a_model_that_is_given_by_its_name_is_read_again_when_its_weights_change(tmp_path):
    """The key of a step is of what lies in the folder, whether it was given as a path or as text."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one")

    def keys() -> set[str]:
        steps = [
            DissectStep(PROFILE, ProfileSettings(ModelSource(of), "embedded"), "profile") for of in (model, str(model))
        ]
        return {step_key(step, tmp_path) for step in steps}

    before = keys()
    assert len(before) == 1
    (model / "model.safetensors").write_bytes(b"two")
    assert not before & keys()
