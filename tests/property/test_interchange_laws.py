"""Laws of interchange interventions: a text from itself changes nothing, all of a layer is its output, and known roles show."""

import functools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import interchanged, tinyhf
from tests.property.test_ablation_laws import BATCH, OWN, WORDS, lines

import trisect
from trisect.core.machine import Machine
from trisect.core.site import Site
from trisect.core.subject import Parts
from trisect.core.trace import Address
from trisect.experiments.patch.run import measure
from trisect.experiments.patch.settings import PatchSettings
from trisect.hf.forward import run_forward
from trisect.hf.hooks.calls import Edits
from trisect.hf.load import Pretrained
from trisect.lab.experiment import RunContext
from trisect.lab.inputs import ModelSource
from trisect.lab.pairs import patched_sides
from trisect.lab.passes import every_site, plan_edits
from trisect.measure.patching import hold_later, put_at, record
from trisect.text.pairs import ENGLISH

ROUNDING = 1e-12  # float64 sums of a few dozen terms of order one


@functools.cache
def subject(kind):
    """A tiny model of a family, in float64."""
    made = {"gpt2": tinyhf.gpt2, "llama": tinyhf.llama, "bart": tinyhf.bart, "bert": tinyhf.bert}[kind]
    return trisect.load(made().double(), tokenizer=tinyhf.tokenizer(kind not in ("gpt2", "llama")))


def two(kind):
    """Base and donor texts of one length, three pairs."""
    base = ["w1 w2 w3 w4 w1", "w9 w8 w7 w6", "w5 w4"]
    donor = ["w3 w4 w1 w5 w3", "w1 w2 w3 w4", "w2 w7"]
    return (
        (list(zip(base, donor, strict=True)), list(zip(donor, base, strict=True))) if kind == "bart" else (base, donor)
    )


def read(kind, texts):
    batch = next(iter(subject(kind).batches(texts, 8)))
    return batch, record(subject(kind), batch, subject(kind).shape.heads)


@pytest.mark.parametrize(("kind", "per"), [("gpt2", "layer"), ("llama", "head"), ("bart", "layer"), ("bert", "layer")])
def test_a_text_patched_from_itself_changes_nothing_bit_for_bit(kind, per):
    model, (batch, (clean, parts)) = subject(kind), read(kind, two(kind)[0])
    order = list(model.shape.heads)
    for edit in plan_edits(model.shape, None, per):
        sides = patched_sides(batch, batch, "all", None)
        stack = edit.address.stack
        write = {edit.address: put_at(edit.targets, parts[edit.address], sides.queries(stack), sides.keys(stack))}
        for later in ({}, hold_later(parts, order, edit.address)):
            assert torch.equal(model.outputs(batch, write | later), clean)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bart", "bert"])
def test_another_text_changes_every_site(kind):
    """So that the law before is not about writers that write nothing; q and k of the first position alone cannot matter."""
    model, (base, (clean, _)), (donor, (_, parts)) = subject(kind), read(kind, two(kind)[0]), read(kind, two(kind)[1])
    for edit in plan_edits(model.shape, None, "layer"):
        sides, stack = patched_sides(base, donor, "all", None), edit.address.stack
        write = {edit.address: put_at(edit.targets, parts[edit.address], sides.queries(stack), sides.keys(stack))}
        assert (model.outputs(base, write) - clean).abs().max() > 1e-6, str(edit.site)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_q_k_and_v_of_a_layer_together_are_its_attention_output(kind):
    model, (base, _), (donor, (_, parts)) = subject(kind), read(kind, two(kind)[0]), read(kind, two(kind)[1])
    assert isinstance(model, Pretrained)
    there = {call.order: call.output for call in run_forward(model._with_proof, donor.inputs, Edits())[0]}
    for order, address in enumerate(model.shape.heads):
        (edit,) = plan_edits(model.shape, [Site(("q", "k", "v"), (address.layer,))], "layer")
        write = put_at(edit.targets, parts[address], base.source.real, base.source.real)
        made = run_forward(model._with_proof, base.inputs, Edits({order: write}))[0][order].output
        real = base.source.real
        torch.testing.assert_close(
            made.transpose(1, 2)[real], there[order].transpose(1, 2)[real], rtol=0, atol=ROUNDING
        )


def test_it_holds_of_our_own_models_too():
    base = next(OWN.batches(lines(8), 8))
    real, address = base.source.real, Address("plain", 2)
    clean, parts = record(OWN, base, OWN.shape.heads)
    for edit in plan_edits(OWN.shape, None, "head"):
        assert torch.equal(
            OWN.outputs(base, {edit.address: put_at(edit.targets, parts[edit.address], real, real)}), clean
        )
    other = Parts(*(part.flip(0) for part in parts[address]))
    (edit,) = plan_edits(OWN.shape, ["q+k+v@2"], "layer")
    seen = []
    OWN._pass(
        base.inputs["ids"],
        {address: put_at(edit.targets, other, torch.ones_like(real), torch.ones_like(real))},
        {},
        seen,
    )
    before = []
    OWN._pass(base.inputs["ids"], {}, {}, before)
    torch.testing.assert_close(seen[1][3], before[1][3].flip(0), rtol=0, atol=ROUNDING)
    assert len(WORDS) == OWN.outputs(BATCH).shape[-1]


@settings(max_examples=20, deadline=None)
@given(place=st.integers(1, 4), component=st.sampled_from("qkv"), layer=st.integers(1, 2))
def test_a_patch_at_one_position_leaves_what_a_causal_model_said_before_it(place, component, layer):
    model, (base, (clean, _)), (_, (_, parts)) = (
        subject("gpt2"),
        read("gpt2", two("gpt2")[0]),
        read("gpt2", two("gpt2")[1]),
    )
    chosen = torch.zeros_like(base.source.real)
    chosen[0, place] = True
    (edit,) = plan_edits(model.shape, [f"{component}@{layer}"], "layer")
    made = model.outputs(base, {edit.address: put_at(edit.targets, parts[edit.address], chosen, chosen)})
    assert torch.equal(made[0, :place], clean[0, :place])
    assert torch.equal(made[1:], clean[1:])
    assert not torch.equal(made[0, place:], clean[0, place:])


@functools.cache
def inductor():
    """A model whose weights were set by hand: after … A B … A it says B, whatever stands between."""
    words = ENGLISH[:30]
    return trisect.load(interchanged.inductor(words, 24), tokenizer=interchanged.tokenizer(words, 24))


def induced(**chosen):
    asked = PatchSettings(ModelSource(inductor()), task="induction", count=30, **chosen)
    return measure(asked, RunContext(folder=Path(), machine=Machine(quiet=True), subjects=(inductor(),))).tables


def test_an_induction_head_set_by_hand_gives_each_components_own_answer_always():
    found = shares_of(induced(how="both"))
    for how in ("denoise", "noise"):
        for component in "qkv":
            assert (found[f"{component}@2", how, "own"], found[f"{component}@2", how, "unchanged"]) == (1.0, 0.0)
        assert found["v@1", how, "as k"] == 1.0  # the word before is what a position is matched on
        assert found["q@1", how, "unchanged"] == found["k@1", how, "unchanged"] == 1.0


@pytest.mark.parametrize(("path", "came"), [("all", "k+v"), ("direct", "v")])
def test_layers_patched_at_once_act_together(path, came):
    """The values of both layers: the first hands on keys, so that keys and values are the donor's, unless keys are held."""
    tables = induced(sites=("q@all", "k@all", "v@all", "q+k+v@all"), per="site", path=path)
    pairs = tables["pairs"]
    for component, name in (("q", "q"), ("k", "k"), ("v", came), ("q+k+v", "donor")):
        rows = tables["interchanges"].filter(component=component).sort("pair")
        assert [answer.strip() for answer in pairs[f"answer_{name}"]] == rows["answer"].to_list(), component
        assert set(rows["group"]) == {"denoise, layers 1-2"}
        assert rows["layer"].is_null().all()


def test_all_layers_of_a_text_patched_from_itself_change_nothing_bit_for_bit():
    given = [(text, text) for text in ("w1 w2 w3 w4 w1", "w9 w8 w7 w6")]
    asked = PatchSettings(ModelSource(subject("gpt2")), pair_list=given, per="site", sites=("q+k+v@all", "v@all"))
    made = measure(asked, RunContext(folder=Path(), machine=Machine(quiet=True), subjects=(subject("gpt2"),))).tables
    own = dict(made["pairs"].select("pair", "own_base").iter_rows())
    assert all(own[pair] == answer for pair, answer in made["interchanges"].select("pair", "answer").iter_rows())
    assert made["interchanges"]["logit_difference"].to_list() == [0.0] * 4


def sites_of(count=40, **chosen):
    """The sites of the model whose weights were set by hand, patched from texts whose answers are known."""
    model = trisect.load(interchanged.recaller(), tokenizer=interchanged.tokenizer())
    pairs = [
        {"base": b.text, "donor": d.text, "answers": interchanged.predicted(b, d)} for b, d in interchanged.facts(count)
    ]
    asked = PatchSettings(ModelSource(model), pair_list=pairs, **chosen)
    context = RunContext(folder=Path(), machine=Machine(quiet=True), subjects=(model,))
    return asked, context


def shares_of(tables):
    rows = tables["measures"].filter(tables["measures"]["measure"] != "logit_change").iter_rows(named=True)
    return {(f"{r['component']}@{r['layer']}", r["group"], r["measure"]): r["value"] for r in rows}


@pytest.fixture(scope="module")
def planted():
    asked, context = sites_of(how="both", sites=("q@all", "k@all", "v@all", "q+k@2", "q+v@2", "k+v@2", "q+k+v@2"))
    return shares_of(measure(asked, context).tables)


@pytest.mark.parametrize("how", ["denoise", "noise"])
def test_a_model_set_by_hand_gives_each_components_own_answer_always(planted, how):
    for component in ("q", "k", "v", "q+k", "q+v", "k+v", "q+k+v"):
        site = f"{component}@2"
        assert planted[site, how, "own"] == 1.0, component
        assert planted[site, how, "unchanged"] == 0.0, component
    for component in "qkv":
        assert {planted[f"{component}@2", how, f"as {other}"] for other in "qkv" if other != component} == {0.0}


def test_what_is_a_value_in_its_first_layer_acts_as_the_key_of_its_second(planted):
    assert planted["v@1", "denoise", "own"] == 0.0
    assert planted["v@1", "denoise", "as k"] == 1.0
    assert planted["q@1", "denoise", "unchanged"] == planted["k@1", "denoise", "unchanged"] == 1.0


def test_a_direct_path_ends_where_a_later_layer_reads():
    """The first layer's value reaches the answer through the second layer's keys alone; the second is read directly."""
    found = shares_of(measure(*sites_of(path="direct")).tables)
    assert found["v@1", "denoise", "unchanged"] == 1.0
    assert all(found[f"{component}@2", "denoise", "own"] == 1.0 for component in "qkv")


def test_batches_of_any_size_say_the_same():
    one, many = (measure(*sites_of(9, batch=size)).tables["interchanges"] for size in (2, 9))
    assert one["came"].to_list() == many["came"].to_list()
    torch.testing.assert_close(*(t["logit_difference"].to_torch() for t in (one, many)), rtol=0, atol=1e-9)


def test_positions_that_do_not_hold_the_key_do_not_matter():
    """Keys and values of the last position are nobody's: the answer stands; its query is all that asks."""
    found = shares_of(measure(*sites_of(positions="last")).tables)
    assert found["q@2", "denoise", "own"] == 1.0
    assert found["k@2", "denoise", "unchanged"] == found["v@2", "denoise", "unchanged"] == 1.0


def test_sites_are_all_of_a_models_sites_where_none_are_named():
    assert [str(site) for site in every_site(subject("gpt2").shape)] == ["q@all", "k@all", "v@all"]
    parts = [Parts(*(torch.full((1,), value) for _ in range(3))) for value in (0.0, 1.0)]
    addresses = [Address("plain", n) for n in (1, 2)]
    held = hold_later({addresses[1]: parts[1]}, addresses, addresses[0])
    assert list(held) == addresses[1:]
    assert held[addresses[1]](parts[0]).q == 1
