"""Labels whose names would lead out of a folder: read from a treebank, attacked, probed, erased, and kept inside it."""

import json
from dataclasses import replace

import pytest
from polars.testing import assert_frame_equal
from tests import tiny

import trisect
from trisect.core.errors import CorpusError, SpecError
from trisect.core.methods import Attack, Erase, Probe
from trisect.core.site import Site
from trisect.core.spec import Text, plain
from trisect.experiments.study import tasks
from trisect.lab.folder import Folder

WILD = "/../../../../../PWN"
LABELS = ("pos", f"morph.{WILD}", "morph.../../x")
SITE = (Site(("k",), (1,)),)


def treebank(folder, feature=WILD):
    folder.mkdir(parents=True)
    for split, sentences in (("train", 60), ("valid", 20)):
        rows = []
        for n in range(sentences):
            for i in range(1, 8):
                values = f"{feature}={'ab'[(n + i) % 2]}|../../x={'cd'[i % 2]}"
                rows.append(f"{i}\tw{(n * i) % 9}\t_\t{('NOUN', 'VERB', 'X')[i % 3]}\t_\t{values}\t_\t_\t_\t_")
            rows.append("")
        (folder / f"{split}.conllu").write_text("\n".join(rows) + "\n")
    return folder


def experiment(source, labels=LABELS):
    return replace(
        tiny.EXPERIMENT,
        text=Text(str(source)),
        seeds=(1,),
        attack=Attack(SITE, labels),
        rewind=None,
        freeze=None,
        probe=Probe(SITE, labels, ("linear",)),
        erase=Erase(SITE, labels, draws=2),
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study of labels that lead out of a folder; the folders above it, and its own."""
    pytest.importorskip("concept_erasure", reason="LEACE is the optional extra trisect[erase]")
    above = tmp_path_factory.mktemp("above")
    treebank(above / "source")
    out = above / "a" / "b" / "c" / "d" / "study"
    return above, trisect.study(experiment(above / "source"), out=out, workers=0, quiet=True)


def test_nothing_is_written_outside_the_folder_and_nothing_is_lost(done):
    above, study = done
    assert {p.name for p in (*above.iterdir(), *above.glob("a/*"), *above.glob("a/b/*"))} == {"source", "a", "b", "c"}
    assert not list(above.parent.glob("PWN*"))
    runs, sites = study.tables["runs"], study.tables["sites"]
    assert set(runs["label"].drop_nulls()) == set(LABELS)
    for measure in ("erase_rank", "probe_linear_bits"):
        assert set(sites.filter(measure=measure)["label"]) == set(LABELS), sites["measure"].unique().to_list()
    assert study.report.is_file()
    assert {run for run in runs["run"] if WILD in run}, "ids hash data and stay as they are"


def test_it_goes_on_is_checked_and_its_models_are_read(done, monkeypatch):
    above, study = done
    monkeypatch.setattr(tasks, "_train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(tasks, "_evaluate", lambda *_: pytest.fail("evaluated again"))
    again = trisect.study(experiment(above / "source"), out=study.folder, workers=0, quiet=True)
    for name in ("metrics", "sites"):
        assert_frame_equal(again.tables[name], study.tables[name], check_exact=True)
    assert trisect.check(study.folder) == []
    wild = next(run for run in study.tables["runs"]["run"] if WILD in run)
    place = Folder(study.folder).run(wild).parent
    assert place.parent == study.folder / "runs"
    assert trisect.load(place).name == wild


@pytest.mark.parametrize("feature", ["a\0b", "a\x1bb"])
def test_a_feature_with_a_control_character_is_refused_by_its_line(tmp_path, feature):
    source = treebank(tmp_path / "source", feature)
    with pytest.raises(CorpusError, match=r"train\.conllu, line 1: .* holds a control character"):
        trisect.study(experiment(source), out=tmp_path / "study", workers=0, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("name", ["../x", "/../../x", "a/b", "a\\b", "a\0b"])
def test_the_name_in_a_settings_file_is_no_way_out_of_here(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(plain(tiny.EXPERIMENT.resolved()) | {"name": name}))
    with pytest.raises(SpecError, match="is not a name"):
        trisect.study(path, workers=0, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["experiment.json"]
