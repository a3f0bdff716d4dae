"""Every spelling of a site in every command that takes one, and labels whose names would lead out of a folder."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from polars.testing import assert_frame_equal
from tests import tiny, tinyhf

import trisect
from trisect.core.errors import CorpusError, SiteError, SpecError, TrisectError
from trisect.core.methods import Attack, Erase, Probe
from trisect.core.site import Site
from trisect.core.spec import Text, to_json_data
from trisect.experiments.study import tasks
from trisect.hf.load import load
from trisect.lab.folder import Folder

WORDS = "w1 w2 w3 w4"
SPELLINGS = [
    f"{stack}{part}@{layer}{heads}"
    for stack, part, layer, heads in product(
        ("", "enc.", "cross."),
        ("q", "k", "v", "o", "ffn", "attn", "pre.q", "pre.k", "q+k", "k+v", "q+k+v"),
        ("1", "3", "1-2", "all"),
        ("", ".h2", ".h1,4", ".h9"),
    )
]


@pytest.fixture(scope="module", params=["llama", "bert"])
def subject(request):
    """Two layers; in the first queries share keys in pairs, and keys are turned by rotary positions."""
    if request.param == "llama":
        return load(tinyhf.llama(), tinyhf.tokenizer())
    return load(tinyhf.bert(), tinyhf.tokenizer())


def _site(text: str) -> Site | None:
    try:
        return Site.parse(text)
    except SiteError:
        return None


def test_a_switch_zeroes_the_part_that_is_named_and_no_other_of_its_layer(subject):
    from trisect.measure.intervention import PreparedText

    ready = PreparedText.of(subject, WORDS)
    plain, switched = subject.read(WORDS), 0
    for text in SPELLINGS:
        site = _site(text)
        try:
            edited = ready.reading(ready.plan({text: "zero"}))
        except TrisectError:
            continue
        assert site is not None, text
        first = min(site.layers or (1,))
        here, before = edited[f"layer {first}"], plain[f"layer {first}"]
        switched += 1
        for name in ("q", "k", "v"):
            mine, was = getattr(here, name), getattr(before, name)
            count = was.shape[1]
            named = set(range(count)) if site.heads is None else {h - 1 for h in site.heads}
            for head in range(count):
                if name in site.components and head in named:
                    assert not mine[:, head].any(), (text, name, head)
                else:
                    torch.testing.assert_close(mine[:, head], was[:, head], msg=f"{text}, {name}, head {head + 1}")
    assert switched >= 12


@pytest.mark.parametrize("command", ["ablate", "patch", "quantise", "erase"])
def test_a_command_takes_what_the_model_has_and_refuses_the_rest_by_name(subject, command, tmp_path):
    given = {
        "ablate": {"text": (WORDS,)},
        "quantise": {"text": (WORDS,), "bits": (2, 4)},
        "patch": {"pair_list": [{"base": WORDS, "donor": "w4 w3 w2 w1"}]},
        "erase": {"corpus": "embedded", "limit": 2, "tokens": 60},
    }[command]
    for number, text in enumerate(("v@2.h1", "k+v@1", "k@1.h9", "q@3", "enc.q@1", "o@1", "pre.k@1")):
        call = partial(
            getattr(trisect, command), subject, sites=(text,), out=tmp_path / str(number), quiet=True, **given
        )
        try:
            subject.shape.resolve(Site.parse(text))
        except SiteError:
            with pytest.raises(SiteError, match=re.escape(text)):
                call()
            continue
        tables = call().tables.values()
        rows = next(table for table in tables if "component" in table.columns or "site" in table.columns)
        assert len(rows), (command, text)


def test_an_audit_compares_with_the_part_that_is_named_or_refuses(subject):
    names = [name for name, _ in subject.model.named_modules()]
    kind = next(name for name in names if re.search(r"0.*(v_proj|value)$", name))
    assert trisect.audit(subject, kind, site="v@1", text=WORDS).same
    for text in ("v@2", "k@1", "q@1", "k+v@1", "k@1.h9", "q@3", "enc.q@1", "o@1"):
        try:
            same = trisect.audit(subject, kind, site=text, text=WORDS).same
        except TrisectError as error:
            same = text not in str(error)  # refused without a name
        assert not same, text


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
    bare = replace(tiny.EXPERIMENT, text=Text(str(source)), seeds=(1,), rewind=None, freeze=None)
    probe, erase = Probe(SITE, labels, ("linear",)), Erase(SITE, labels, draws=2)
    return replace(bare, attack=Attack(SITE, labels), probe=probe, erase=erase)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study of labels that lead out of a folder; the folders above it, and its own."""
    pytest.importorskip("concept_erasure", reason="LEACE is the optional extra trisect[erase]")
    above = tmp_path_factory.mktemp("above")
    treebank(above / "source")
    out = above / "a" / "b" / "c" / "d" / "study"
    return above, trisect.study(experiment(above / "source"), out=out, workers=0, quiet=True)


def test_nothing_is_written_outside_the_folder_or_lost_and_its_models_are_read(done, monkeypatch):
    above, study = done
    assert {p.name for p in (*above.iterdir(), *above.glob("a/*"), *above.glob("a/b/*"))} == {"source", "a", "b", "c"}
    assert not list(above.parent.glob("PWN*"))
    runs, sites = study.tables["runs"], study.tables["sites"]
    assert set(runs["label"].drop_nulls()) == set(LABELS)
    for measure in ("erase_rank", "probe_linear_bits"):
        assert set(sites.filter(measure=measure)["label"]) == set(LABELS), sites["measure"].unique().to_list()
    assert study.report.is_file()
    assert {run for run in runs["run"] if WILD in run}, "ids hash data and stay as they are"
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
    path.write_text(json.dumps(to_json_data(tiny.EXPERIMENT.resolved()) | {"name": name}))
    with pytest.raises(SpecError, match="is not a name"):
        trisect.study(path, workers=0, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["experiment.json"]
