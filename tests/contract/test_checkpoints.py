"""Rewinding between checkpoints: slices bit for bit, full evaluations, what it writes and notes, and what it refuses."""

import math
import re
import shutil
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape
from tests import revisions
from tests.conftest import leave_undrawn
from tests.pages import foreign

import trisect
from trisect.core.errors import CorpusError, ModelError, SiteError, SpecError
from trisect.core.site import Site
from trisect.core.subject import Heads, Shape, SiteTarget, Texts
from trisect.core.tables import read_table
from trisect.core.trace import Address, Origin, Projections
from trisect.experiments.checkpoints import REWIND
from trisect.experiments.checkpoints.run import above_chance, plan_places
from trisect.hf.files.checkpoints import blend, cuts_of, locate, replaced, take
from trisect.hf.load import load
from trisect.lab.driver import render
from trisect.lab.passes import plan_edits
from trisect.measure.criticality import criticality
from trisect.measure.intervention import put, zeros

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


def test_every_site_is_rewound_and_every_word_stands_on_the_page_as_text(result):
    rows = result.tables["sites"]
    assert rows.equals(read_table(result.folder / "tables", "sites"))
    assert set(rows["site"]) == {f"{c}@{n}" for n in (1, 2) for c in "qkv"}
    first, untrained, cut = result.notes
    assert (first, cut) == ("a & b", "Texts longer than 16 tokens were cut into windows that do not see each other.")
    assert untrained.startswith("The final model's loss, 3.95 nats per token, is above")
    text = result.report.read_text()
    assert "<script" not in foreign(text)
    assert "<i>" not in text
    assert "a &lt;i&gt;model@last" in text
    assert "&lt;script&gt;made&lt;/script&gt;" in text
    assert str(escape(result.findings[0].words)) in text
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


def test_ends_that_are_one_revision_are_noted_and_without_stages_there_is_no_midstage(folder, tmp_path):
    found = rewind(folder, tmp_path / "one", initial="last", stages=["mid"])
    assert "At v@1 the initial weights are the final ones." in found.notes
    losses = found.tables["sites"].filter(measure="rewind_loss_nats")["value"]
    assert losses.max() == pytest.approx(losses.min(), abs=1e-12)  # interpolating rounds
    text = found.report.read_text()
    for words in ("the measure is at its floor", "last (0)", "last (2)", "Mid-stage"):
        assert words in text
    at = found.tables["sites"].filter(measure="midstage_loss_nats").sort("at")["value"]
    assert at[0] == at[2]
    found = rewind(folder, tmp_path / "bare")
    assert not found.tables["sites"]["measure"].str.starts_with("midstage").any()
    assert "Mid-stage" not in found.report.read_text()


def test_revisions_are_subfolders_and_one_that_is_not_there_is_named_before_anything_is_loaded(folder, tmp_path):
    assert locate(folder, "mid") == (folder / "mid", None)
    assert locate("owner/model", "step1000") == ("owner/model", "step1000")
    for stages in (["first"], ["mid", "last"]):  # in means over all each counts once; before the model is looked for
        with pytest.raises(SpecError, match=f"The revision {stages[-1]!r} was given twice"):
            rewind(tmp_path / "none", tmp_path / "out", stages=stages)
    for revision in ("step9", "..", "first/../mid"):
        with pytest.raises(ModelError, match=re.escape(f"has no revision {revision!r}")) as error:
            rewind(folder, tmp_path / "out", stages=[revision])
        assert error.value.reason == "Its subfolders with a model are also, first, last, mid."
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="has no revision 'first'") as error:
        rewind(tmp_path / "empty", tmp_path / "out")
    assert error.value.reason == "None of its subfolders has a model."
    mixed = tmp_path / "mixed"
    shutil.copytree(folder / "last", mixed / "last")
    revisions.save(mixed, "fused", {"wide": 0}, wide=32)
    revisions.save(mixed, "masked", {"other": 0})
    with pytest.raises(ModelError, match="Revision 'wide' has another shape") as error:
        rewind(mixed, tmp_path / "other", initial="wide")
    assert "16×48 in the final revision and 32×96 in this one" in error.value.reason
    with pytest.raises(ModelError, match="Revision 'other' is another model") as error:
        rewind(mixed, tmp_path / "other", initial="other")
    assert error.value.reason == "The final one is a GPT2LMHeadModel, this one a BertForMaskedLM."
    assert not (tmp_path / "other").exists()


def test_a_model_without_a_loss_is_rewound_by_how_far_its_output_moves(tmp_path):
    bare = revisions.save(tmp_path / "bare", "bare", {"first": 0, "mid": 1, "last": 2})
    found = rewind(bare, tmp_path / "out", exact=True, stages=["mid"], epsilon=0.5)
    rows = found.tables["sites"]
    curve = rows.filter(measure="rewind_output_change").sort("at")["value"].to_list()
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
    scores = rows.filter(measure="criticality")["value"]
    assert scores[0] == next(a for a, v in zip((0, 0.25, 0.5, 0.75, 1), curve, strict=True) if v < 0.5)
    text = found.report.read_text()
    for word in ("stays within", "is within"):  # ε is a share of squares, as the scores above are
        assert f"{word} 50 % of the output&#39;s squared length (70.7 % of its length)" in text
    assert " nats" not in text.split("How it was made")[0].split("<main")[-1]
    assert [f.measure for f in found.findings] == ["rewind_area", "midstage_area"]
    assert {f.unit for f in found.findings} == {"share"}
    assert any("The model has no loss of its own" in note for note in found.notes)


def test_what_is_made_by_no_one_module_is_refused_and_what_is_more_than_weights_is_said():
    address = Address("plain", 3)
    origins = {"k": Origin("mixed", "k is computed from a and b")}
    with pytest.raises(SiteError, match=r"(?s)k of layer 3 cannot be rewound.*k is computed from a and b"):
        cuts_of(SiteTarget(address, "k", None), Projections(address, origins))
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
    rows = torch.tensor([[0, 1], [6, 7]])  # q, k, v of head 1, then those of head 2
    origins = {"q": Origin("rows", "some rows", "in_proj.weight", "q_bias", rows)}
    weight, bias = cuts_of(SiteTarget(address, "q", (2,)), Projections(address, origins))
    state = {"in_proj.weight": torch.zeros(12, 4), "q_bias": torch.zeros(2, 2)}
    weight.put(state, torch.ones(2, 4))
    bias.put(state, torch.tensor([3.0, 4.0]))
    assert state["in_proj.weight"].sum(1).nonzero().flatten().tolist() == [6, 7]
    assert state["q_bias"].tolist() == [[0, 0], [3, 4]]
    assert bias.get(state).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("named", "kind", "said"),
    [
        ({"epsilon": 1}, SpecError, "epsilon is 1."),
        ({"sites": ["v@3"]}, SiteError, "The site 'v@3' lies outside the model: layer 3. The model has layers 1, 2"),
        ({"sites": []}, SiteError, "No site was given. The model has layers 1, 2 with 4 heads."),
        ({"lines": []}, CorpusError, "The texts '<script>made</script>' have no loss. 0 were read"),
    ],
)
def test_what_cannot_be_done_is_said(folder, tmp_path, named, kind, said):
    with pytest.raises(kind) as error:
        rewind(folder, tmp_path / "out", **named)
    assert str(error.value).replace("\n  ", " ").startswith(said)


def test_a_head_that_was_never_trained_is_warned_of():
    """Iff the loss is above that of equal guesses, ln V."""
    assert above_chance(4.60, 100) == ()
    assert above_chance(math.log(100), 100) == ()
    assert above_chance(9.0, None) == ()
    (said,) = above_chance(4.62, 100)
    assert said.startswith("The final model's loss, 4.62 nats per token, is above that of equal guesses, ln 100 = 4.61")
    assert "never have been trained" in said


KINDS = ("fused", "grouped", "masked", "shared", "paired")
SHORT_LINES = [line for line in revisions.lines(9) if len(line.split()) <= 14]  # one window each
SAME = 2e-7  # of mean losses of order 4: each token's is rounded to float32
ENDS = {
    "plain": (("plain", 2), ("plain", 1)),
    "enc": (("cross", 2), ("enc", 1)),
}  # the last layer to attend, and the first
NAMES = {"q": "query", "k": "key", "v": "value"}

# where q, k and v of a layer stand, written down by hand: parameter, its rows or columns
BY_HAND = {
    "fused": lambda c, n: [
        (f"transformer.h.{n}.attn.c_attn.weight", (slice(None), slice(16 * "qkv".find(c), 16 * "qkv".find(c) + 16))),
        (f"transformer.h.{n}.attn.c_attn.bias", (slice(16 * "qkv".find(c), 16 * "qkv".find(c) + 16),)),
    ],
    "grouped": lambda c, n: [(f"model.layers.{n}.self_attn.{c}_proj.weight", (slice(None),))],
    "masked": lambda c, n: [
        (f"bert.encoder.layer.{n}.attention.self.{NAMES[c]}.{kind}", (slice(None),)) for kind in ("weight", "bias")
    ],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("revisions")
    return {kind: revisions.save(root / kind, kind, {"step0": 0, "step1": 1, "step2": 2}) for kind in KINDS}


@pytest.fixture(scope="module")
def subjects(folders):
    return {kind: load(folders[kind] / "step2") for kind in KINDS}


def copies(module):
    return {name: t.clone() for name, t in module.state_dict().items()}


@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS[:3]),
    place=st.sampled_from(["q@1", "k@2", "v@1", "q+v@1-2", "k@1.h2", "v@all", "q@2.h1-2"]),
)
def test_only_the_sites_own_slices_move_and_all_come_back_bit_for_bit(subjects, kind, place):
    subject, site = subjects[kind], Site.parse(place)
    ((_, cuts),), _ = plan_places(subject.shape, subject.projections(), [site])
    before = copies(subject.model)
    values = tuple(torch.full_like(v, 7.0) for v in take(before, cuts))
    heads = {"q": 4, "k": 2 if kind == "grouped" else 4, "v": 2 if kind == "grouped" else 4}
    with replaced(subject.model, cuts, values):
        within = copies(subject.model)
    own = {name: torch.zeros_like(t, dtype=torch.bool) for name, t in before.items()}
    for component in site.components:
        for n in site.layers or (1, 2):
            for name, where in BY_HAND[kind](component, n - 1):
                rows = own[name][where]
                rows = rows.T if kind == "fused" and rows.dim() == 2 else rows  # its units are columns
                each = len(rows) // heads[component]
                for head in site.heads or range(1, heads[component] + 1):
                    rows[(head - 1) * each : head * each] = True
    for name, t in before.items():
        assert torch.equal(within[name], torch.where(own[name], 7.0, t)), name
    after = copies(subject.model)
    assert all(torch.equal(after[name], t) for name, t in before.items())


def test_what_goes_wrong_in_between_puts_everything_back(subjects):
    subject = subjects["fused"]
    ((_, cuts),), _ = plan_places(subject.shape, subject.projections(), ["q@1"])
    before = copies(subject.model)

    def stop():
        with replaced(subject.model, cuts, tuple(v + 1 for v in take(before, cuts))):
            assert not torch.equal(subject.model.state_dict()[cuts[0].parameter], before[cuts[0].parameter])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert all(torch.equal(subject.model.state_dict()[name], t) for name, t in before.items())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@given(alpha=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_blend_is_exact_at_its_ends_and_of_equals_and_rounded_once_between(kind, alpha, seed):
    draw = torch.Generator().manual_seed(seed)
    first, last = ((torch.randn(9, generator=draw, dtype=torch.float64).to(kind),) for _ in range(2))
    assert torch.equal(blend(first, last, 0.0)[0], first[0])
    assert torch.equal(blend(first, last, 1.0)[0], last[0])
    assert torch.equal(blend(first, first, alpha)[0], first[0])
    wanted = (1 - alpha) * first[0].double() + alpha * last[0].double()
    # half a step of the kind's own rounding, and float64's own in sums of order one
    room = 0.5 * torch.finfo(kind).eps * wanted.abs() + 1e-15
    assert ((blend(first, last, alpha)[0].double() - wanted).abs() <= room).all()


def plain_loss(kind, edits):
    """Mean loss of the last revision with some slices of others mixed in, the plain way: a text at a time."""
    model, words, total, count = revisions.make(kind, 2), revisions.tokenizer(), 0.0, 0
    state = model.state_dict()
    for name, where, values in edits:
        state[name][where] = values
    with torch.no_grad():
        for line in SHORT_LINES:
            ids = words(line, return_tensors="pt")["input_ids"]
            losses = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="sum")
            total, count = total + float(losses), count + ids.shape[1] - 1
    return total / count


def rewound(folder, out, **named):
    texts = Texts("made", lambda: iter(SHORT_LINES))
    return trisect.rewind(
        folder, initial="step0", final="step2", texts=texts, stages=["step1"], out=out, quiet=True, **named
    )


def curve(result, measure, site):
    picked = result.tables["sites"].filter(measure=measure, site=site).sort("at")
    return dict(picked.select("at", "value").rows())


def test_every_point_is_the_loss_of_a_model_that_was_edited_by_hand(folders, tmp_path):
    result = rewound(folders["fused"], tmp_path, points=5, exact=True, sites=["q@1", "v@2", "k+v@1-2"])
    states = [revisions.make("fused", seed).state_dict() for seed in (0, 1, 2)]

    def edits(site, values):
        named = [(c, n) for c in site.components for n in site.layers or ()]
        return [(name, where, values(name, where)) for c, n in named for name, where in BY_HAND["fused"](c, n - 1)]

    for place in ("q@1", "v@2", "k+v@1-2"):
        site = Site.parse(place)
        losses = curve(result, "rewind_loss_nats", place)
        assert list(losses) == [0, 0.25, 0.5, 0.75, 1]
        for alpha, loss in losses.items():
            mixed = edits(site, lambda n, w, a=alpha: (1 - a) * states[0][n][w] + a * states[2][n][w])
            assert loss == pytest.approx(plain_loss("fused", mixed), abs=SAME)
        stages = curve(result, "midstage_loss_nats", place)
        assert list(stages) == [0, 1, 2]
        for number, loss in stages.items():
            own = edits(site, lambda n, w, i=int(number): states[i][n][w])
            assert loss == pytest.approx(plain_loss("fused", own), abs=SAME)
        assert losses[0] == stages[0] != losses[1] == stages[2]


def test_summaries_are_those_of_the_curve_and_lie_within_their_intervals(folders, tmp_path):
    result = rewound(folders["masked"], tmp_path, points=11, exact=True, epsilon=0.02, sites=["q@1", "v@1", "k@2"])
    rows = result.tables["sites"].filter(pl.col("at").is_null()).select("site", "measure", "value")
    single = {(site, measure): value for site, measure, value in rows.iter_rows()}
    assert {site for site, _ in single} == {"q@1", "v@1", "k@2"}
    for site in ("q@1", "v@1", "k@2"):
        losses = curve(result, "rewind_loss_nats", site)
        found = criticality(np.array(list(losses)), np.array(list(losses.values())), 0.02)
        assert single[site, "criticality"] == found.score
        assert single[site, "criticality_first"] == found.first
        assert single[site, "rewind_area"] == pytest.approx(found.area, abs=1e-12)
        for measure in ("rewind_area", "midstage_area", "criticality"):
            low, high = single[site, f"{measure}_low"], single[site, f"{measure}_high"]
            assert low <= single[site, measure] <= high
        rises = curve(result, "rewind_rise_low_nats", site)
        assert rises[1] == 0  # the last point is its own reference
        assert single[site, "rewind_evaluations"] == 11


def test_texts_of_one_article_are_resampled_together(folders, tmp_path):
    """Each text stands four times, as an article of its own, so that texts as units would say far too much."""
    many = [line for line in SHORT_LINES for _ in range(4)]
    marked = {"apart": None, "together": lambda: (i // 4 for i in range(len(many)))}
    asked = {"sites": ["v@1"], "points": 3, "exact": True, "quiet": True}
    found, ends = {}, {}
    for name, articles in marked.items():
        texts = Texts(name, lambda: iter(many), articles=articles)
        found[name] = trisect.rewind(
            folders["fused"], initial="step0", final="step2", texts=texts, out=tmp_path / name, **asked
        )
        single = found[name].tables["sites"].filter(pl.col("at").is_null())
        ends[name] = dict(single.select("measure", "value").iter_rows())
    assert ends["together"]["rewind_area"] == pytest.approx(ends["apart"]["rewind_area"], abs=1e-12)
    apart, together = (of["rewind_area_high"] - of["rewind_area_low"] for of in ends.values())
    assert together > 1.5 * apart
    facts = found["together"].about.facts
    assert (facts.texts, facts.articles) == (len(many), len(SHORT_LINES))
    assert f"bootstrap over {len(SHORT_LINES)} articles ({len(many)} texts)" in found["together"].report.read_text()


def test_weights_that_serve_several_layers_are_one_site_and_every_stack_is_rewound_by_itself(
    subjects, folders, tmp_path
):
    subject = subjects["shared"]
    places, notes = plan_places(subject.shape, subject.projections(), None)
    assert [str(site) for site, _ in places] == ["q@1-2", "k@1-2", "v@1-2"]
    assert notes == [f"{c}@1-2 is one set of weights, and is rewound as one." for c in "qkv"]
    ((site, _),), notes = plan_places(subject.shape, subject.projections(), ["q@2.h3"])
    assert str(site) == "q@1-2.h3"
    assert notes == ["q@1-2.h3 is one set of weights, and is rewound as one."]
    places, notes = plan_places(subjects["paired"].shape, subjects["paired"].projections(), None)
    every = {f"{stack}.{c}@{n}" for stack in ("enc", "dec", "cross") for c in "qkv" for n in (1, 2)}
    assert {str(site) for site, _ in places} == every
    assert not notes
    some = ["enc.v@1", "dec.v@1", "cross.v@1"]
    result = rewound(folders["paired"], tmp_path, points=3, exact=True, sites=some)
    sites = result.tables["sites"]
    starts = sites.filter(measure="rewind_loss_nats", at=0)
    assert sorted(starts["site"]) == sorted(some)
    assert starts["value"].n_unique() == 3
    text = result.report.read_text()
    assert all(
        f"{title}, {name}" in text for title in ("Area", "Criticality") for name in ("encoder", "cross-attention")
    )


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("place", ["q@1", "k@2.h2", "v@1", "v@2.h1"])
def test_ablating_by_zero_is_a_model_without_the_weights(subjects, kind, place):
    subject = subjects[kind]
    ((_, cuts),), _ = plan_places(subject.shape, subject.projections(), [place])
    (edit,) = plan_edits(subject.shape, [place], "layer")
    batch = next(subject.batches(SHORT_LINES, 4, scored=True))
    written = subject.score(batch, {edit.address: put(edit.targets, zeros())}).total
    clean = subject.score(batch).total
    with replaced(subject.model, cuts, tuple(map(torch.zeros_like, take(subject.model.state_dict(), cuts)))):
        assert torch.allclose(subject.score(batch).total, written, rtol=1e-5)  # one of them computes in float32
    assert (written - clean).abs().max() > 1e-4
    assert torch.equal(subject.score(batch).total, clean)


def test_a_shared_key_of_zero_is_queries_of_zero_in_every_head_that_shares_it(subjects, tmp_path):
    texts = Texts("made", lambda: iter(SHORT_LINES))
    result = trisect.ablate(
        subjects["grouped"], texts, sites=["k@2.h2", "q@2.h3-4", "q@2.h3"], how="zero", out=tmp_path, quiet=True
    )
    found = {(r["component"], r["group"]): r["value"] for r in result.tables["measures"].iter_rows(named=True)}
    assert found["k", "zero"] == pytest.approx(found["q", "zero, heads 3-4"], abs=1e-6)
    assert abs(found["q", "zero"] - found["k", "zero"]) > 1e-4
    heads = trisect.ablate(subjects["grouped"], texts, out=tmp_path / "heads", per="head", quiet=True)
    assert heads.tables["measures"].height == 2 * (4 + 2 + 2) + 1


@pytest.mark.parametrize(
    ("kind", "how"), [*((kind, "mean") for kind in KINDS), ("grouped", "resample"), ("paired", "resample")]
)
def test_every_kind_of_model_can_be_ablated_in_every_way(subjects, tmp_path, kind, how):
    texts = Texts("made", lambda: iter(SHORT_LINES))
    free, held = (
        trisect.ablate(subjects[kind], texts, out=tmp_path / str(h), how=how, hold=h, quiet=True).tables["measures"]
        for h in (False, True)
    )
    stacks = ("enc", "dec", "cross") if kind == "paired" else ("plain",)
    both = free.join(held, on=["stack", "component", "layer"], validate="1:1", suffix="_held")
    assert sorted(both.select("stack", "component", "layer").rows()) == sorted(
        (stack, c, n) for stack in stacks for c in "qkv" for n in (1, 2)
    )
    moved = (both["value"] - both["value_held"]).abs().to_numpy()
    last, first = (((both["stack"] == stack) & (both["layer"] == n)).to_numpy() for stack, n in ENDS[stacks[0]])
    # above the last layer nothing is left to hold; float32 sums differ where eager attention is not the held product
    assert moved[last].max() < 1e-6
    assert moved[first].max() > 1e-5
