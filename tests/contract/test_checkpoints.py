"""Rewinding between checkpoints from a folder to a page: what it writes, what it notes, and what it refuses."""

import math
import re
import shutil
from typing import Any

import polars as pl
import pytest
import torch
from markupsafe import escape
from tests import revisions
from tests.conftest import leave_undrawn
from tests.pages import foreign

import trisect
from trisect.core.errors import CorpusError, ModelError, SiteError, SpecError
from trisect.core.subject import Heads, Shape, SiteTarget, Texts
from trisect.core.tables import read_table
from trisect.core.trace import Address, Origin, Projections
from trisect.experiments.checkpoints import REWIND
from trisect.experiments.checkpoints.run import above_chance, plan_places
from trisect.hf.files.checkpoints import cuts_of, locate
from trisect.lab.driver import render

LINES = [*revisions.lines(3), " ".join(revisions.WORDS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return revisions.save(
        tmp_path_factory.mktemp("models") / "a <i>model", "fused", {"first": 0, "mid": 1, "also": 1, "last": 2}
    )


def texts(lines=LINES, name="<script>made</script>"):
    return Texts(name, lambda: iter(lines), ("a & b",))


def rewind(folder, out, lines=LINES, initial="first", final="last", **named):
    named = {"points": 5, "sites": ["v@1"], "quiet": True} | named
    return trisect.rewind(folder, initial=initial, final=final, texts=texts(lines), out=out, **named)


@pytest.fixture(scope="module")
def result(folder, tmp_path_factory):
    return rewind(folder, tmp_path_factory.mktemp("out"), stages=["mid", "also"], sites=None, exact=True)


def test_it_writes_the_measures_of_a_studys_rewinding_and_every_word_as_text(result, folder):
    rows = result.tables["sites"]
    assert rows.equals(read_table(result.folder / "tables", "sites"))
    assert set(rows["subject"]) == {f"{folder.name}@last"}
    curves = {"loss_nats", "rise_low_nats", "rise_high_nats", "area", "area_low", "area_high"}
    single = {"criticality", "criticality_first", "criticality_low", "criticality_high"}
    checks = {"rewind_check_nats", "rewind_evaluations", "rewind_nodes"}
    assert set(rows["measure"]) == {f"{k}_{c}" for k in ("rewind", "midstage") for c in curves} | single | checks
    counts = rows.filter(pl.col("measure").str.ends_with("loss_nats")).group_by("site", "measure").len()
    assert set(counts.select("measure", "len").rows()) == {("rewind_loss_nats", 5), ("midstage_loss_nats", 4)}
    first, untrained, cut = result.notes
    assert (first, cut) == ("a & b", "Texts longer than 16 tokens were cut into windows that do not see each other.")
    assert untrained.startswith("The final model's loss, 3.95 nats per token, is above")
    text = result.report.read_text()
    assert "<script" not in foreign(text)
    assert "<i>" not in text
    assert "a &lt;i&gt;model@last" in text
    assert "&lt;script&gt;made&lt;/script&gt;" in text
    assert all(str(escape(finding.words)) in text for finding in result.findings)
    command = "trisect rewind MODEL --initial first --final last --stages mid,also --points 5 --exact"
    assert result.about.command == command
    assert command in text
    facts = result.about.facts
    assert (facts.initial, facts.stages, facts.final) == ("first", ("mid", "also"), "last")
    assert (facts.points, facts.exact) == (5, True)


def test_the_same_rows_give_the_same_bytes_and_the_figures_name_every_revision(result, tmp_path, undrawn):
    shutil.copytree(result.folder, tmp_path / "again", ignore=lambda *_: ["report.html", "figures"])
    undrawn.undo()
    drawn = render(REWIND, tmp_path / "again").report.read_text()
    leave_undrawn(undrawn)
    assert ">mid<" in drawn
    assert ">also<" in drawn
    again = render(REWIND, tmp_path / "again")
    assert again.report.read_bytes() == result.report.read_bytes()
    assert (again.findings, again.about) == (result.findings, result.about)
    names = {p.stem for p in (result.folder / "figures").glob("*.svg")}
    assert names == {
        "checkpoints-short", "checkpoints-convex", "checkpoints-criticality", "checkpoints-stages", "checkpoints-stages-area",
    }  # fmt: skip


def test_findings_are_the_final_loss_and_the_areas_of_every_site(result):
    rows = result.tables["sites"]
    assert [f.measure for f in result.findings] == ["final_loss", "rewind_area", "midstage_area"]
    last = rows.filter((pl.col("measure") == "rewind_loss_nats") & (pl.col("at") == 1))["value"]
    assert result.findings[0].values[0].mean == last[0]
    for finding in result.findings[1:]:
        found = {(r["site"], r["measure"]): r["value"] for r in rows.to_dicts()}
        every = [f"{c}@{n}" for n in (1, 2) for c in "qkv"]
        assert sorted(one.name for one in finding.values) == sorted(every)
        for one in finding.values:
            ends = (found[one.name, f"{finding.measure}{end}"] for end in ("", "_low", "_high"))
            assert (one.mean, one.low, one.high) == tuple(ends)
            assert one.n == result.about.facts.texts
        most = max(finding.values, key=lambda one: one.mean)
        assert finding.comparison.startswith(f"most {most.name}")


def test_ends_that_are_one_revision_are_noted_and_distinguished_by_their_place(folder, tmp_path):
    found = rewind(folder, tmp_path, initial="last", stages=["mid"])
    assert "At v@1 the initial weights are the final ones." in found.notes
    losses = found.tables["sites"].filter(pl.col("measure") == "rewind_loss_nats")["value"]
    assert losses.max() == pytest.approx(losses.min(), abs=1e-12)  # interpolating rounds
    text = found.report.read_text()
    for words in ("the measure is at its floor", "last (0)", "last (2)", "Mid-stage"):
        assert words in text
    at = found.tables["sites"].filter(measure="midstage_loss_nats").sort("at")["value"]
    assert at[0] == at[2]


def test_without_stages_there_is_no_midstage(folder, tmp_path):
    found = rewind(folder, tmp_path)
    assert not found.tables["sites"]["measure"].str.starts_with("midstage").any()
    assert "Mid-stage" not in found.report.read_text()


@pytest.mark.parametrize("stages", [["first"], ["mid", "last"]])
def test_a_revision_in_between_counts_once_in_means_over_all(tmp_path, stages):
    with pytest.raises(SpecError, match=f"The revision {stages[-1]!r} was given twice"):
        rewind(tmp_path / "none", tmp_path / "out", stages=stages)  # before the model is looked for


def test_revisions_are_subfolders_of_a_folder_and_else_a_hubs(folder):
    assert locate(folder, "mid") == (folder / "mid", None)
    assert locate("owner/model", "step1000") == ("owner/model", "step1000")


def test_a_revision_that_is_not_there_is_named_before_anything_is_loaded(folder, tmp_path):
    for revision in ("step9", "..", "first/../mid"):
        with pytest.raises(ModelError, match=re.escape(f"has no revision {revision!r}")) as error:
            rewind(folder, tmp_path / "out", stages=[revision])
        assert error.value.reason == "Its subfolders with a model are also, first, last, mid."
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="has no revision 'first'") as error:
        rewind(tmp_path / "empty", tmp_path / "out")
    assert error.value.reason == "None of its subfolders has a model."


def test_revisions_of_another_shape_or_kind_are_refused(folder, tmp_path):
    mixed = tmp_path / "mixed"
    shutil.copytree(folder / "last", mixed / "last")
    revisions.save(mixed, "fused", {"wide": 0}, wide=32)
    revisions.save(mixed, "masked", {"other": 0})
    with pytest.raises(ModelError, match="Revision 'wide' has another shape") as error:
        rewind(mixed, tmp_path / "out", initial="wide")
    assert "16×48 in the final revision and 32×96 in this one" in error.value.reason
    with pytest.raises(ModelError, match="Revision 'other' is another model") as error:
        rewind(mixed, tmp_path / "out", initial="other")
    assert error.value.reason == "The final one is a GPT2LMHeadModel, this one a BertForMaskedLM."
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_loss_is_rewound_by_how_far_its_output_moves(tmp_path):
    bare = revisions.save(tmp_path / "bare", "bare", {"first": 0, "mid": 1, "last": 2})
    found = rewind(bare, tmp_path / "out", exact=True, stages=["mid"], epsilon=0.5)
    rows = found.tables["sites"]
    curve = rows.filter(pl.col("measure") == "rewind_output_change").sort("at")["value"].to_list()
    assert not rows["measure"].str.contains("nats").any()
    subjects: list[Any] = [trisect.load(bare / name) for name in ("last", "first")]
    final, first = subjects
    batch = next(iter(final.batches(LINES)))
    y = final.outputs(batch).double()
    with torch.no_grad():
        state, own = final.model.state_dict(), first.model.state_dict()
        for part in ("weight", "bias"):
            name = f"encoder.layer.0.attention.self.value.{part}"
            state[name].copy_(own[name])
    off = (final.outputs(batch).double() - y).square().sum(-1) / y.square().sum(-1)
    assert curve[-1] == 0
    assert curve[0] == pytest.approx(float(off[batch.source.real].mean()), rel=1e-6)
    scores = rows.filter(pl.col("measure") == "criticality")["value"]
    assert scores[0] == next(a for a, v in zip((0, 0.25, 0.5, 0.75, 1), curve, strict=True) if v < 0.5)
    text = found.report.read_text()
    assert "the change of the output is largest for" in text
    assert "Change of the output along the line" in text
    assert "Relative squared change of the model&#39;s output" in text
    for word in ("stays within", "is within"):  # ε is a share of squares, as the scores above are
        assert f"{word} 50 % of the output&#39;s squared length (70.7 % of its length)" in text
    assert " nats" not in text.split("How it was made")[0].split("<main")[-1]
    assert [f.measure for f in found.findings] == ["rewind_area", "midstage_area"]
    assert {f.unit for f in found.findings} == {"share"}
    assert any("The model has no loss of its own" in note for note in found.notes)


def test_a_component_that_is_not_made_by_one_module_is_refused():
    address = Address("plain", 3)
    origins = {"k": Origin("mixed", "k is put together from a and b")}
    with pytest.raises(SiteError, match=r"(?s)k of layer 3 cannot be rewound.*k is put together from a and b"):
        cuts_of(SiteTarget(address, "k", None), Projections(address, origins))


@pytest.mark.parametrize(
    ("named", "kind", "said"),
    [
        ({"points": 1}, SpecError, "points is 1."),
        ({"epsilon": 0.0}, SpecError, "epsilon is 0.0."),
        ({"epsilon": 1}, SpecError, "epsilon is 1."),
        ({"batch": 0}, SpecError, "batch is 0."),
        ({"sites": ["v@3"]}, SiteError, "The site 'v@3' lies outside the model: layer 3. The model has layers 1, 2"),
        ({"sites": []}, SiteError, "No site was given. The model has layers 1, 2 with 4 heads."),
        ({"lines": []}, CorpusError, "The texts '<script>made</script>' have no loss. 0 were read"),
    ],
)
def test_what_cannot_be_done_is_said(folder, tmp_path, named, kind, said):
    with pytest.raises(kind) as error:
        rewind(folder, tmp_path / "out", **named)
    assert str(error.value).replace("\n  ", " ").startswith(said)


def test_normed_components_are_rewound_and_said_to_be_more_than_weights():
    address, rows = Address("plain", 1), torch.arange(4).view(2, 2)
    origins = {
        "q": Origin("normed", "rows of q_proj, normed in each head", "q_proj.weight", None, rows),
        "k": Origin("unknown", "k is not made by an affine map of this model"),
        "v": Origin("rows", "rows of v_proj", "v_proj.weight", None, rows),
    }
    shape = Shape({address: Heads(2, 2)})
    ((_, cuts),), notes = plan_places(shape, [Projections(address, origins)], ["q@1"])
    assert [cut.parameter for cut in cuts] == ["q_proj.weight"]
    assert notes == ["q of layer 1 is not a selection of weights alone: rows of q_proj, normed in each head."]


def test_a_head_that_was_never_trained_is_warned_of():
    """Iff the loss is above that of equal guesses, ln V."""
    assert above_chance(4.60, 100) == ()
    assert above_chance(math.log(100), 100) == ()
    assert above_chance(9.0, None) == ()
    (said,) = above_chance(4.62, 100)
    assert said.startswith("The final model's loss, 4.62 nats per token, is above that of equal guesses, ln 100 = 4.61")
    assert "never have been trained" in said
