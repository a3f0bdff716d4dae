"""Laws of ablation and of interchange: an edit does what it says and nothing else, and known roles show."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import interchanged, tiny, tinyhf

import trisect
from trisect.core.machine import Machine
from trisect.core.site import Site
from trisect.core.subject import QKV, SiteTarget, Texts
from trisect.core.trace import Address
from trisect.experiments.ablate.run import TextsRead, make_replacement
from trisect.experiments.patch.run import measure
from trisect.experiments.patch.settings import PatchSettings
from trisect.hf.forward import run_forward
from trisect.hf.hooks.calls import Edits
from trisect.hf.load import Pretrained
from trisect.lab.experiment import RunContext
from trisect.lab.inputs import ModelSource
from trisect.lab.pairs import patched_sides
from trisect.lab.passes import every_site, plan_edits
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel
from trisect.measure.intervention import Means, put, tile_donors, zeros
from trisect.measure.patching import freeze_later_layers, record, replace_at
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval
from trisect.stats.shares import ratios

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = tiny.corpus().vocabulary
PLACES = layout(tiny.MODEL, len(WORDS))
EACH = tiny.MODEL.width // tiny.MODEL.heads
EXACT = 1e-12  # float64 sums of a few dozen terms of order one


def model(change=None):
    """A model with random weights, sharp enough for its patterns to matter; `change` edits them in place."""
    draw = torch.Generator().manual_seed(7)
    flat = initial(tiny.MODEL, len(WORDS), 1).double()
    flat += 0.4 * torch.randn(flat.shape, generator=draw, dtype=torch.float64)
    parameters = dict(views(flat[None], PLACES))
    if change:
        change(parameters)
    return OwnModel("made", tiny.MODEL, parameters, WORDS, 12)


def lines(count, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS[5:], size=draw.integers(2, 30))) for _ in range(count)]


def given_texts(found):
    return Texts("made", lambda: iter(found))


OWN = model()
LINES = lines(12)
BATCH = next(OWN.batches(LINES, 8, scored=True))
CLEAN = OWN.score(BATCH)
TRACES = {t.address: t for t in OWN.trace(BATCH).traces}


def at(layer, component, heads=None):
    return SiteTarget(Address("plain", layer), component, heads)


def parts_like(heads=4, kv=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    sizes = (heads, kv, kv)
    return QKV(*(torch.randn(2, n, 5, 3, generator=draw, dtype=torch.float64) for n in sizes))


@given(component=st.sampled_from("qkv"), heads=st.sampled_from([None, (1,), (2,), (1, 2)]))
def test_a_write_replaces_what_it_names_and_leaves_the_rest_bit_for_bit(component, heads):
    there, source = parts_like(), parts_like(seed=1)
    before = QKV(*(t.clone() for t in there))
    new = put([at(1, component, heads)], source)(there)
    assert all(torch.equal(a, b) for a, b in zip(there, before, strict=True))  # what came in is not written to
    for name in QKV._fields:
        own = getattr(new, name).shape[1]
        edited = set() if name != component else set(heads or range(1, own + 1))
        for head in range(1, own + 1):
            wanted = source if head in edited else there
            assert torch.equal(getattr(new, name)[:, head - 1], getattr(wanted, name)[:, head - 1])


@pytest.mark.parametrize("place", ["q@1", "k@2", "v@1", "v@2.h2", "q@1.h1"])
def test_zeroing_a_component_is_zeroing_the_weights_that_make_it(place):
    site = Site.parse(place)
    (edit,) = plan_edits(OWN.shape, [site], "layer")
    row = {"q": 0, "k": 1, "v": 2}[site.components[0]] * tiny.MODEL.width
    first, count = (site.heads[0] - 1, 1) if site.heads else (0, tiny.MODEL.heads)
    rows = slice(row + first * EACH, row + (first + count) * EACH)

    def without(parameters):
        for kind in ("weight", "bias"):
            parameters[f"layers.{edit.address.layer}.in.{kind}"][:, rows] = 0

    written = OWN.score(BATCH, {edit.address: put(edit.targets, zeros())}).total
    torch.testing.assert_close(written, model(without).score(BATCH).total, rtol=0, atol=1e-10)
    assert (written - CLEAN.total).abs().max() > 1e-3


@pytest.mark.parametrize("layer", [1, 2])
def test_queries_of_zero_keys_of_zero_and_mean_keys_all_leave_an_even_pattern(layer):
    address = Address("plain", layer)
    read = TextsRead.of(given_texts(LINES), 0)
    means = make_replacement(OWN, read, [address], "mean", 4, 0, lambda n: None)(BATCH)
    even = torch.ones(len(BATCH.rows), tiny.MODEL.heads, 12, 12, dtype=torch.float64).tril()
    pattern = OWN.score(BATCH, hold={address: even / even.sum(-1, keepdim=True)}).total
    for component, source in (("q", zeros()), ("k", zeros()), ("k", means(address))):
        found = OWN.score(BATCH, {address: put([at(layer, component)], source)}).total
        torch.testing.assert_close(found, pattern, rtol=0, atol=1e-10)


def test_with_the_pattern_held_an_edit_of_q_acts_through_its_own_pattern_alone():
    address, above = Address("plain", 1), Address("plain", 2)
    trace = TRACES[address]
    q = torch.randn(trace.q.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    writer = put([at(1, "q")], QKV(q, trace.k, trace.v))
    mask = torch.full((12, 12), -torch.inf, dtype=torch.float64).triu(1)
    pattern = torch.softmax(q @ trace.k.mT / EACH**0.5 + mask, -1)
    held = OWN.score(BATCH, {address: writer}, {above: TRACES[above].weights}).total
    by_hand = OWN.score(BATCH, hold={address: pattern, above: TRACES[above].weights}).total
    torch.testing.assert_close(held, by_hand, rtol=0, atol=1e-10)
    assert (held - OWN.score(BATCH, {address: writer}).total).abs().max() > 1e-3


def values(result):
    kept = result.tables["measures"].sort("layer", "head", "component", nulls_last=True)
    return kept["value"].to_numpy()


def ablate(tmp_path, found=LINES, **named):
    return trisect.ablate(OWN, given_texts(found), out=tmp_path / "out", quiet=True, **named)


def test_in_the_last_layer_nothing_is_left_to_hold_and_below_it_holding_matters(tmp_path):
    free, held = (values(ablate(tmp_path / str(hold), hold=hold)) for hold in (False, True))
    above = [False] * 3 + [True] * 3 + [True]  # layer 1, layer 2, the unedited loss
    np.testing.assert_allclose(held[above], free[above], rtol=0, atol=EXACT)
    assert np.abs(held - free)[:3].min() > 1e-6


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_batches_of_any_size_give_the_same_changes(tmp_path, how):
    one, many = (values(ablate(tmp_path, sites=["q+k@1", "v@2"], how=how, batch=size, per="head")) for size in (1, 7))
    assert len(one) == 5
    np.testing.assert_allclose(one, many, rtol=0, atol=1e-10)


def test_changes_are_sums_over_tokens_of_the_subjects_own_loss(tmp_path):
    result = ablate(tmp_path, sites=["v@1"], how="zero")
    clean = total = count = 0.0
    for line in LINES:
        for batch in OWN.batches([line], 3):
            writer = {Address("plain", 1): put([at(1, "v")], zeros())}
            before, after = OWN.score(batch), OWN.score(batch, writer)
            clean, total, count = (
                a + float(b.sum()) for a, b in ((clean, before.total), (total, after.total), (count, before.count))
            )
    assert values(result)[0] == pytest.approx((total - clean) / count, abs=EXACT)
    assert values(result)[1] == pytest.approx(clean / count, abs=EXACT)


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_means_add_up_over_batches_and_never_count_padding(cuts, seed):
    draw, means, kept = torch.Generator().manual_seed(seed), Means(), {"q": [], "k": [], "v": []}
    for size in cuts:
        parts = QKV(*(torch.randn(size, 2, 6, 3, generator=draw, dtype=torch.float64) for _ in range(3)))
        real = torch.rand(size, 6, generator=draw) < 0.6
        real[:, 0] = True
        for name in QKV._fields:
            kept[name].append(getattr(parts, name).transpose(1, 2)[real])
            getattr(parts, name).transpose(1, 2)[~real] = torch.inf
        means.add(parts, real, real)
    for name in QKV._fields:
        wanted = torch.cat(kept[name]).mean(0)[None, :, None]
        torch.testing.assert_close(getattr(means.parts(), name), wanted, rtol=0, atol=EXACT)


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4), left=st.booleans(), seed=st.integers(0, 99))
def test_what_is_borrowed_keeps_its_place_and_a_short_text_begins_again(lengths, left, seed):
    draw = torch.Generator().manual_seed(seed)
    donors = [torch.randn(2, n, 3, generator=draw, dtype=torch.float64) for n in lengths]
    real = torch.ones(len(lengths), 9, dtype=torch.bool)
    real[:, :2] = not left
    found = tile_donors(donors, real)
    for row, donor in enumerate(donors):
        places = real[row].nonzero().flatten().tolist()
        for n, place in enumerate(places):
            assert torch.equal(found[row, :, place], donor[:, n % donor.shape[1]])


@given(texts=st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=30), seed=st.integers(0, 9))
def test_nobody_borrows_from_a_text_that_is_their_own(texts, seed):
    if len(set(texts)) == 1:
        return
    read = TextsRead.of(given_texts(texts), seed)
    assert list(read.stream()) == texts
    chosen = [read.other(i, seed) for i in range(len(texts))]
    assert all(a != b for a, b in zip(chosen, texts, strict=True))
    assert chosen == [read.other(i, seed) for i in range(len(texts))]


def test_the_texts_that_can_be_borrowed_from_are_drawn_evenly():
    kept = np.zeros(1_000)
    for seed in range(40):
        kept[[int(str(t)) for t in TextsRead.of(given_texts([str(i) for i in range(1_000)]), seed).pool]] += 1
    assert kept.sum() == 40 * 256
    # four groups of 250: each expects 2,560 of 10,240 draws, and 5 standard deviations are under 220
    assert np.abs(kept.reshape(4, 250).sum(1) - 2_560).max() < 220


def test_pairs_stay_together_and_one_text_tells_nothing():
    sums, counts = np.random.default_rng(1).normal(size=(9, 2)), np.ones(9)
    both = bootstrap_ratios(np.column_stack([sums, sums.sum(1)]), counts, 3)
    np.testing.assert_allclose(both[:, 2], both[:, 0] + both[:, 1], rtol=0, atol=EXACT)
    assert ratios(sums, counts) == pytest.approx(sums.mean(0))
    assert np.isnan(percentile_interval(bootstrap_ratios(sums[:1], counts[:1], 0), 1).low).all()
    lost = bootstrap_ratios(np.array([[1.0], [np.inf]]), np.ones(2), 0)
    assert np.isnan(percentile_interval(lost, 2).high).all()


def test_every_site_is_every_component_of_every_layer_once():
    named = [str(edit.site) for edit in plan_edits(OWN.shape, every_site(OWN.shape), "layer")]
    assert named == ["q@1", "q@2", "k@1", "k@2", "v@1", "v@2"]
    again = plan_edits(OWN.shape, ["q@all", "q@2", "q+v@1"], "layer")
    assert [str(edit.site) for edit in again] == ["q@1", "q@2", "q+v@1"]
    heads = plan_edits(OWN.shape, ["q+v@1", "k@2.h2"], "head")
    assert [str(edit.site) for edit in heads] == ["q+v@1.h1", "q+v@1.h2", "k@2.h2"]


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
    return batch, record(subject(kind).outputs, batch, subject(kind).shape.heads)


@pytest.mark.parametrize(("kind", "per"), [("gpt2", "layer"), ("llama", "head"), ("bart", "layer"), ("bert", "layer")])
def test_a_text_patched_from_itself_changes_nothing_bit_for_bit(kind, per):
    model, (batch, (clean, parts)) = subject(kind), read(kind, two(kind)[0])
    order = list(model.shape.heads)
    for edit in plan_edits(model.shape, None, per):
        sides = patched_sides(batch, batch, "all", None)
        stack = edit.address.stack
        write = {edit.address: replace_at(edit.targets, parts[edit.address], sides.queries(stack), sides.keys(stack))}
        for later in ({}, freeze_later_layers(parts, order, edit.address)):
            assert torch.equal(model.outputs(batch, write | later), clean)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bart", "bert"])
def test_another_text_changes_every_site(kind):
    """So that the law before is not about writers that write nothing; q and k of the first position alone cannot matter."""
    model, (base, (clean, _)), (donor, (_, parts)) = subject(kind), read(kind, two(kind)[0]), read(kind, two(kind)[1])
    for edit in plan_edits(model.shape, None, "layer"):
        sides, stack = patched_sides(base, donor, "all", None), edit.address.stack
        write = {edit.address: replace_at(edit.targets, parts[edit.address], sides.queries(stack), sides.keys(stack))}
        assert (model.outputs(base, write) - clean).abs().max() > 1e-6, str(edit.site)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_q_k_and_v_of_a_layer_together_are_its_attention_output(kind):
    model, (base, _), (donor, (_, parts)) = subject(kind), read(kind, two(kind)[0]), read(kind, two(kind)[1])
    assert isinstance(model, Pretrained)
    there = {call.order: call.output for call in run_forward(model._with_proof, donor.inputs, Edits())[0]}
    for order, address in enumerate(model.shape.heads):
        (edit,) = plan_edits(model.shape, [Site(("q", "k", "v"), (address.layer,))], "layer")
        write = replace_at(edit.targets, parts[address], base.source.real, base.source.real)
        made = run_forward(model._with_proof, base.inputs, Edits({order: write}))[0][order].output
        real = base.source.real
        torch.testing.assert_close(made.transpose(1, 2)[real], there[order].transpose(1, 2)[real], rtol=0, atol=EXACT)


def test_it_holds_of_our_own_models_too():
    base = next(OWN.batches(lines(8), 8))
    real, address = base.source.real, Address("plain", 2)
    clean, parts = record(OWN.outputs, base, OWN.shape.heads)
    for edit in plan_edits(OWN.shape, None, "head"):
        same = replace_at(edit.targets, parts[edit.address], real, real)
        assert torch.equal(OWN.outputs(base, {edit.address: same}), clean)
    other = QKV(*(part.flip(0) for part in parts[address]))
    (edit,) = plan_edits(OWN.shape, ["q+k+v@2"], "layer")
    everywhere, seen, before = torch.ones_like(real), [], []
    OWN._pass(base.inputs["ids"], {address: replace_at(edit.targets, other, everywhere, everywhere)}, {}, seen)
    OWN._pass(base.inputs["ids"], {}, {}, before)
    torch.testing.assert_close(seen[1][3], before[1][3].flip(0), rtol=0, atol=EXACT)
    assert len(WORDS) == OWN.outputs(BATCH).shape[-1]


@settings(max_examples=20)
@given(place=st.integers(1, 4), component=st.sampled_from("qkv"), layer=st.integers(1, 2))
def test_a_patch_at_one_position_leaves_what_a_causal_model_said_before_it(place, component, layer):
    model, (base, (clean, _)) = subject("gpt2"), read("gpt2", two("gpt2")[0])
    _, (_, parts) = read("gpt2", two("gpt2")[1])
    chosen = torch.zeros_like(base.source.real)
    chosen[0, place] = True
    (edit,) = plan_edits(model.shape, [f"{component}@{layer}"], "layer")
    made = model.outputs(base, {edit.address: replace_at(edit.targets, parts[edit.address], chosen, chosen)})
    assert torch.equal(made[0, :place], clean[0, :place])
    assert torch.equal(made[1:], clean[1:])
    assert not torch.equal(made[0, place:], clean[0, place:])


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


@pytest.mark.parametrize(("path", "came"), [("all", "k+v"), ("direct", "v")])
def test_layers_patched_at_once_act_together(path, came):
    """The values of both layers: the first hands on keys, so that keys and values are the donor's, unless keys are held."""
    tables = measure(*sites_of(sites=("q@all", "k@all", "v@all", "q+k+v@all"), per="site", path=path)).tables
    pairs = tables["pairs"]
    for component, name in (("q", "q"), ("k", "k"), ("v", came), ("q+k+v", "donor")):
        rows = tables["interchanges"].filter(component=component).sort("pair")
        assert [answer.strip() for answer in pairs[f"answer_{name}"]] == rows["answer"].to_list(), component
        assert set(rows["group"]) == {"denoise, layers 1-2"}
        assert rows["layer"].is_null().all()


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
    parts = [QKV(*(torch.full((1,), value) for _ in range(3))) for value in (0.0, 1.0)]
    addresses = [Address("plain", n) for n in (1, 2)]
    held = freeze_later_layers({addresses[1]: parts[1]}, addresses, addresses[0])
    assert list(held) == addresses[1:]
    assert held[addresses[1]](parts[0]).q == 1
