"""Ablation from texts to page: what it writes, what it says, and what it refuses."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from markupsafe import escape
from tests import tiny
from tests.raw import read_json

import trisect
from trisect.core.errors import CorpusError, ModelError, SiteError, SpecError
from trisect.core.finding import Comparison, Estimate, Finding
from trisect.core.subject import QKV, Batch, Heads, RowScores, Shape, Subject, Texts
from trisect.core.trace import Address, Side
from trisect.experiments.ablate import ABLATE
from trisect.experiments.ablate.page import lead
from trisect.lab.driver import read_about, render
from trisect.lab.passes import compare_components, plan_edits
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel
from trisect.report.format import COMPONENT_NAMES, comparison_words, number

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = tiny.corpus().vocabulary
FLAT = initial(tiny.MODEL, len(WORDS), 1).double()
OWN = OwnModel("a <b>model</b>", tiny.MODEL, dict(views(FLAT[None], layout(tiny.MODEL, len(WORDS)))), WORDS, 12)
LINES = [" ".join(WORDS[5 + i : 9 + 3 * i]) for i in range(6)]


def made(lines, name="made <script>alert(1)</script>", notes=("a & b",)):
    return Texts(name, lambda: iter(lines), notes, options=("--corpus", name))


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    out = tmp_path_factory.mktemp("layers")
    return trisect.ablate(OWN, made([*LINES, WORDS[7]]), out=out, hold=True, quiet=True)


@pytest.mark.parametrize("how", ["mean", "resample"])
def test_texts_are_read_as_often_for_many_places_as_for_one(how, tmp_path):
    reads: dict[str, list[int]] = {"k@1": [], "all": []}
    for name, sites in (("k@1", ("k@1",)), ("all", None)):
        texts = replace(made(LINES), texts=lambda name=name: reads[name].append(1) or iter(LINES))
        trisect.ablate(OWN, texts, sites=sites, how=how, out=tmp_path / name, quiet=True)
    assert 1 < len(reads["all"]) == len(reads["k@1"])


def test_what_was_done_to_the_texts_is_noted(layers):
    cut = "Texts longer than 12 words were cut into windows that do not see each other."
    assert layers.notes == ("a & b", cut, "Texts without a token to predict were left out: 1 of 7.")
    about = read_json(layers.folder / "ablation.json", "")
    assert about["fingerprint"] == OWN.fingerprint
    assert about["command"] == "trisect ablate STUDY --corpus 'made <script>alert(1)</script>' --hold pattern"
    assert [about[name] for name in ("how", "per", "hold", "seed", "sites")] == ["mean", "layer", True, 0, None]
    assert about["corpus_fingerprint"] == ""


def test_the_page_shows_every_word_as_text_and_the_same_rows_give_the_same_bytes(layers, tmp_path):
    text = layers.report.read_text()
    assert "<script>alert" not in text
    assert "made &lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "a &lt;b&gt;model&lt;/b&gt;" in text
    assert str(escape(layers.findings[0].words)) in text
    assert "attention weights held" in text
    assert "With fewer than 30 texts such intervals are too narrow" in text
    shutil.copytree(layers.folder, tmp_path / "again", ignore=lambda *_: ["report.html", "figures"])
    again = render(ABLATE, tmp_path / "again")
    assert again.report.read_bytes() == layers.report.read_bytes()
    assert again.findings == layers.findings
    assert again.about == read_about(ABLATE, layers.folder) == layers.about


def test_q_k_and_v_are_compared_by_paired_differences_over_texts():
    """Every text's v costs 0.3 more than its k and q, whatever the text costs: paired, that is certain with eight texts."""
    edits = plan_edits(OWN.shape, None, "layer")
    draw = np.random.default_rng(1)
    own = draw.normal(0, 5, (8, 1)) + draw.normal(0, 0.001, (8, len(edits)))
    changes = own + 0.3 * np.array([edit.site.components == ("v",) for edit in edits])
    data = compare_components(edits, changes)
    assert data is not None
    compared = Comparison.from_data(data)
    assert (compared.kind, compared.largest, compared.n) == ("most", "v", 8)
    assert "v largest" in comparison_words(data, "text")
    single = [edit for edit in edits if edit.site.components == ("q",)]
    assert compare_components(single, changes[:, : len(single)]) is None
    assert compare_components(plan_edits(OWN.shape, None, "head"), np.zeros((8, 12))) is None
    assert not comparison_words(None, "text")


def test_texts_of_one_article_are_resampled_and_paired_together(tmp_path):
    """Every article is one text four times, so that texts as units would say far too much."""
    many = [line for line in LINES for _ in range(4)]
    marks = {"apart": None, "together": [i // 4 for i in range(len(many))], "one": [0] * len(many)}
    results, changes = {}, {}
    for name, marked in marks.items():
        texts = replace(made(many, name), articles=None if marked is None else lambda marked=marked: iter(marked))
        results[name] = trisect.ablate(OWN, texts, out=tmp_path / name, quiet=True)
        found = results[name].tables["measures"].filter(measure="loss_change_nats")
        changes[name] = found.with_columns(width=pl.col("high") - pl.col("low"))
    apart, together = changes["apart"], changes["together"]
    assert np.allclose(apart["value"], together["value"], rtol=0, atol=1e-12)
    assert (together["width"] > 1.5 * apart["width"]).all()
    assert (set(apart["n"]), set(together["n"])) == ({24}, {6})
    assert changes["one"].drop("subject").equals(apart.drop("subject"))
    mean = results["together"].findings[-1]
    assert mean.compared is not None
    assert (mean.compared.n, mean.per) == (6, "article")
    assert "Paired by article (n = 6" in mean.words
    page = results["together"].report.read_text()
    assert "bootstrap over 6 articles (24 texts)" in page
    assert "With fewer than 30 articles such intervals" in page
    assert "Texts of one article are resampled together: 6 articles." in results["together"].notes
    alone = "All texts are of one article: intervals are over its texts, and speak of it alone."
    assert alone in results["one"].notes
    assert results["one"].about.facts.articles is None
    lone = replace(made([*many, WORDS[7]], "lone"), articles=lambda: iter([0] * len(many) + [1]))
    left = trisect.ablate(OWN, lone, sites="v@1", out=tmp_path / "lone", quiet=True)
    assert alone in left.notes  # the other article has no token to predict
    assert left.about.facts.articles is None
    assert left.tables["measures"].filter(measure="loss_change_nats")["low"].is_not_null().all()
    assert read_about(ABLATE, tmp_path / "together").facts.articles == 6


@pytest.mark.parametrize(("means", "kind"), [((-0.3, -0.2, -0.1), "most"), ((-0.3, 0.1, 0.1), "above")])
def test_the_first_sentence_has_every_components_number_and_names_none_that_was_not_tested(layers, means, kind):
    edits = plan_edits(OWN.shape, None, "layer")
    own = dict(zip("qkv", means, strict=True))
    draw = np.random.default_rng(0).normal(0, 0.001, (8, len(edits)))
    data = compare_components(edits, draw + [own[edit.site.components[0]] for edit in edits])
    assert data is not None
    compared = Comparison.from_data(data)
    assert compared.kind == kind
    values = tuple(Estimate(name, value) for name, value in own.items())
    facts = replace(layers.about.facts, articles=4)
    said = lead([Finding("mean_change", "", "nats", values, compared=compared)], facts)
    for name, value in own.items():
        assert f"{COMPONENT_NAMES[name]} by {number(value, True)}" in said
    assert compared.words("article") in said
    whole = lead([Finding("mean_change", "", "share", values)], replace(facts, objective="output"))
    assert "The output changes" in whole
    assert "of its squared length" in whole
    mine = lead([Finding("mean_change", "", "nats", values)], replace(facts, how="nothing"))
    assert "changes with a function in one layer's queries" in mine


def test_heads_alone_have_no_mean_over_layers(tmp_path):
    found = trisect.ablate(OWN, made(LINES), sites="v@1", per="head", out=tmp_path, quiet=True).findings
    assert [f.measure for f in found] == ["unedited", "largest_change"]


@pytest.mark.parametrize("name", ["ablate-mean-held-ud", "ablate-heads-ud", "own-ablate"])
def test_results_written_before_are_rendered_and_their_tables_stay(tmp_path, name):
    before = Path(__file__).parents[2] / "results" / "minilm" / name
    shutil.copytree(before, tmp_path / name)
    done = render(ABLATE, tmp_path / name)
    assert {f.measure for f in done.findings} >= {"unedited", "largest_change"}
    assert done.about.facts.subject in done.report.read_text()
    for table in before.rglob("*.parquet"):
        assert (tmp_path / name / table.relative_to(before)).read_bytes() == table.read_bytes()


def test_heads_are_a_map_and_lists_of_heads_one_edit(tmp_path):
    sites = ["q@all", "v@2"]
    result = trisect.ablate(OWN, made(LINES), out=tmp_path, sites=sites, per="head", how="resample", quiet=True)
    found = result.tables["measures"].filter(pl.col("head").is_not_null())
    assert sorted(found.select("component", "layer", "head").rows()) == [
        ("q", 1, 1), ("q", 1, 2), ("q", 2, 1), ("q", 2, 2), ("v", 2, 1), ("v", 2, 2),
    ]  # fmt: skip
    assert (tmp_path / "figures" / "ablation-heads.svg").exists()
    out = tmp_path / "several"
    several = trisect.ablate(OWN, made(LINES), out=out, sites=["v@2.h1-2", "v@2"], quiet=True).tables["measures"]
    assert set(several["group"].drop_nulls()) == {"mean", "mean, heads 1-2"}
    assert several.filter(pl.col("layer") == 2)["value"].n_unique() == 1
    assert "v@2.h1-2" in (out / "report.html").read_text()


def nothing(tensor, _where):
    return torch.zeros_like(tensor)


def same(tensor, _where):
    return tensor


def test_functions_by_site_are_the_ways_of_how_and_an_identity_changes_nothing(tmp_path):
    edits = {"v@1": nothing, "q@all": same, "v@2.h1": "zero", "k@2": "mean"}
    done = trisect.ablate(OWN, made(LINES), edits=edits, out=tmp_path / "own", quiet=True)
    rows = done.tables["measures"].filter(measure="loss_change_nats")
    found = {(r["component"], r["layer"], r["head"], r["group"]): r["value"] for r in rows.to_dicts()}
    assert [found["q", n, None, "same"] for n in (1, 2)] == [0, 0]
    for site, how, key in (
        ("v@1", "zero", ("v", 1, None, "nothing")),
        ("v@2.h1", "zero", ("v", 2, 1, "zero")),
        ("k@2", "mean", ("k", 2, None, "mean")),
    ):
        one = trisect.ablate(OWN, made(LINES), sites=site, how=how, out=tmp_path / site, quiet=True)
        value = one.tables["measures"].filter(measure="loss_change_nats")["value"].item()
        assert found[key] == pytest.approx(value, abs=1e-12)
        assert value
    said = "Edited from Python, which the command does not repeat: v@1 by nothing, q@all by same, v@2.h1 by zero, k@2 by mean."
    assert said in done.notes
    assert done.about.facts.how == "nothing, same, zero, mean"
    assert done.about.facts.sites == tuple(edits)
    assert "changed by nothing, same, zero, mean" in done.report.read_text()


def test_a_function_of_each_head_is_given_that_head(tmp_path):
    seen = set()

    def note(tensor, where):
        seen.add((where.address.layer, where.component, where.heads, tensor.shape[1]))
        return 2 * tensor

    done = trisect.ablate(OWN, made(LINES), edits={"v@all": note}, per="head", out=tmp_path, quiet=True)
    assert seen == {(n, "v", (h,), 1) for n in (1, 2) for h in (1, 2)}
    assert done.tables["measures"].filter(measure="loss_change_nats").height == 4


class Blurred:
    """A subject without a loss, whose attention in its second layer sees fewer positions than its texts have."""

    name, fingerprint, objective, options, notes = "blurred", "00", "output", ("MODEL",), ()
    shape = Shape({Address("enc", 1): Heads(2, 1), Address("cross", 1): Heads(2, 2)})

    def projections(self):
        return ()

    def batches(self, texts, size=8, scored=False):
        for i, _ in enumerate(texts):
            real = torch.ones(1, 4, dtype=torch.bool)
            side = Side((("a",) * 4,), real, ~real)
            yield Batch({}, side, side, ((i, 0),))

    def trace(self, batch):
        raise AssertionError

    def each(self, batch, see):
        raise AssertionError

    def score(self, batch, write=None, hold=None, clean=None):
        total = 0.0
        for address, writer in (write or {}).items():
            t = 4 if address.stack == "enc" else 2
            before = QKV(torch.ones(1, 2, t, 3), torch.ones(1, 1, 4, 3), torch.ones(1, 1, 4, 3))
            total += float((writer(before).v - before.v).square().sum())
            total = torch.inf if address.stack == "cross" else total
        return RowScores(torch.tensor([total]), torch.tensor([4.0]), torch.zeros(1, 4, 3))


def test_a_model_without_a_loss_is_measured_by_its_output_and_infinities_are_missing(tmp_path):
    subject = Blurred()
    assert isinstance(subject, Subject)
    result = trisect.ablate(subject, made(LINES), out=tmp_path, how="zero", quiet=True)
    assert set(result.tables["measures"]["measure"]) == {"output_change"}
    found = {(r["stack"], r["component"]): r["value"] for r in result.tables["measures"].iter_rows(named=True)}
    # v is 12 ones a text, over 4 tokens
    assert found == {("enc", "q"): 0.0, ("enc", "k"): 0.0, ("enc", "v"): 3.0} | {("cross", c): None for c in "qkv"}
    assert result.notes[-1] == "Where no number stands, the edited model's loss was not finite."
    assert "the squared length of the change over that of the output" in result.report.read_text()


@pytest.mark.parametrize(
    ("other", "how", "noted"), [("k@1", "zero", True), ("k@1", "mean", False), ("v@1", "zero", False)]
)
def test_the_notes_say_that_queries_and_keys_of_zero_cost_the_same(other, how, noted, tmp_path):
    done = trisect.ablate(OWN, made(LINES), out=tmp_path, sites=["q@1", other], how=how, quiet=True)
    assert any("Queries or keys of 0" in note for note in done.notes) == noted


def test_a_mean_over_positions_that_texts_do_not_have_is_refused(tmp_path):
    with pytest.raises(ModelError, match="cross layer 1 cannot be split") as error:
        trisect.ablate(Blurred(), made(LINES), out=tmp_path, sites=["cross.q@1"], how="mean", quiet=True)
    assert error.value.reason == "The texts have 4 positions, the attention there 2."


def test_components_with_different_heads_are_not_edited_head_by_head():
    with pytest.raises(SiteError, match=r"'enc.q\+k@1' joins components of different heads") as error:
        plan_edits(Blurred.shape, ["enc.q+k@1"], "head")
    assert error.value.reason == "At enc layer 1 q has 2, k has 1."
    assert len(plan_edits(Blurred.shape, ["enc.q@1", "enc.k@1"], "head")) == 3
    with pytest.raises(SiteError, match="No site was given"):
        plan_edits(Blurred.shape, [], "layer")


@pytest.mark.parametrize(
    ("named", "kind", "said"),
    [
        ({"how": "mode"}, SpecError, "how is 'mode'."),
        ({"edits": {}}, SpecError, "edits is empty."),
        ({"edits": {"v@1": nothing}, "how": "zero"}, SpecError, "edits was given with sites or how."),
        ({"edits": {"v@1": "second"}}, SpecError, "v@1 is to be edited by 'second'."),
        ({"edits": {"v@1": nothing, "v@all": same}}, SpecError, "edits has v@1 twice."),
        ({"sites": ["q@3"]}, SiteError, "The site 'q@3' lies outside the model"),
        ({"sites": ["nothing"]}, SiteError, "'nothing' is not a site"),
        ({"lines": [], "how": "zero"}, CorpusError, "The texts 'made' are none."),
        ({"lines": [WORDS[5], WORDS[6]], "how": "zero"}, CorpusError, "The texts 'made' have no loss."),
        ({"lines": [LINES[2]] * 3, "how": "resample"}, CorpusError, "The texts 'made' cannot be resampled."),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, named, kind, said):
    lines = named.get("lines", LINES)
    asked = {name: value for name, value in named.items() if name != "lines"}
    with pytest.raises(kind) as error:
        trisect.ablate(OWN, made(lines, "made"), out=tmp_path, quiet=True, **asked)
    assert str(error.value).startswith(said)
    assert error.value.reason
    assert error.value.todo
    assert not (tmp_path / "report.html").exists()
