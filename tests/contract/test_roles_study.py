"""A study of a world with planted roles: interchange in its table and in its JSON, and a text without donors refused."""

import json
from dataclasses import replace

import polars as pl
import pytest

import trisect
from trisect.core.errors import CorpusError
from trisect.core.methods import Interchange
from trisect.core.site import Site
from trisect.core.spec import Design, Text, plain
from trisect.experiments.study.presets import INDUCTION, ROLES

pytestmark = pytest.mark.usefixtures("undrawn")

EVERY = tuple(Site((c,), (layer,)) for layer in (1, 2) for c in "qkv")
BARE = dict.fromkeys(("attack", "control", "tie", "probe", "erase", "ablate", "rewind", "freeze"))


@pytest.fixture(scope="module")
def design() -> Design:
    first = ROLES[0]
    text, training = Text("roles", train_tokens=7_680, valid_tokens=1_200), replace(first.training, epochs=1)
    return replace(first, seeds=(1, 2), text=text, training=training, interchange=Interchange(EVERY, pairs=50), **BARE)


@pytest.fixture(scope="module")
def study(design, tmp_path_factory):
    return trisect.study(design, out=tmp_path_factory.mktemp("roles") / "study", workers=0, quiet=True)


def test_every_site_and_seed_has_its_shares_of_pairs(study):
    sites = study.tables["sites"]
    for measure in ("interchange_own", "interchange_others", "interchange_unchanged"):
        rows = sites.filter(sites["measure"] == measure)
        assert sorted(rows["site"]) == sorted([f"{c}@{layer}" for c in "qkv" for layer in (1, 2)] * 2)
        assert rows["value"].is_between(0, 1).all()
        assert set(rows["n"]) == {50}
    whole = sites.filter(sites["measure"].is_in(["interchange_own", "interchange_others", "interchange_unchanged"]))
    assert whole.group_by("subject", "site").agg(pl.col("value").sum())["value"].max() <= 1 + 1e-9


def test_only_the_claims_on_planted_roles_are_asked(study):
    claims = study.tables["claims"]
    assert claims["source"].unique().to_list() == ["roles"]
    assert claims["claim"].unique().sort().to_list() == ["F-1"]


def test_a_text_without_donors_is_refused_before_anything_is_trained(design, tmp_path):
    other = replace(design, text=Text("embedded", train_tokens=7_680, valid_tokens=1_200))
    with pytest.raises(CorpusError) as caught:
        trisect.study(other, out=tmp_path / "study", workers=0, quiet=True)
    for words in ("asked for in the text 'embedded'", "documents of roles, induction", "Leave interchange out"):
        assert words in str(caught.value)
    assert not (tmp_path / "study").exists()


def test_induction_is_learnt_and_its_first_layers_values_act_as_keys(tmp_path):
    """Two layers learn it in a few hundred steps; v of layer 1 passes on what the key of layer 2 is matched on."""
    cut = []
    for one in INDUCTION:
        erase, pairs = (
            one.erase and replace(one.erase, draws=1),
            one.interchange and replace(one.interchange, pairs=100),
        )
        kept = BARE | {"erase": erase, "ablate": one.ablate, "interchange": pairs}
        cut.append(replace(one, seeds=(1,), training=replace(one.training, epochs=3), **kept))
    (tmp_path / "induction.json").write_text(json.dumps([plain(one) for one in cut]), encoding="utf-8")
    study = trisect.study(tmp_path / "induction.json", out=tmp_path / "study", workers=0, quiet=True)
    sites = study.tables["sites"]
    found = {(site, name): value for site, name, value in sites.select("site", "measure", "value").iter_rows()}
    assert min(found[f"{c}@2", "interchange_own"] for c in "qkv") > 0.9
    assert found["v@1", "interchange_as_k"] > 0.9
    assert {found[f"{c}@3", "interchange_unchanged"] for c in "qkv"} == {found["q@3", "interchange_unchanged"]}
    told = {one.groups[0]: one.values[0].mean for one in study.findings if one.measure == "planted"}
    assert told["interchange"] == 1
    assert {"leace", "interchange", "ablate", "interchange_whole"} <= set(told)
    assert "Which methods can tell?" in study.report.read_text(encoding="utf-8")
