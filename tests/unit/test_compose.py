"""Path patching: laws of writers and paths, and a model set by hand whose keys are made by one head of the layer before."""

import json
from typing import Any, cast

import polars as pl
import pytest
import torch
from tests import interchanged, tinyhf

import trisect
from trisect.core.errors import ModelError, SpecError
from trisect.core.site import Site
from trisect.core.subject import SharingSubject, StreamPoint
from trisect.core.trace import Address
from trisect.experiments.compose.run import ALL
from trisect.hf import forward
from trisect.lab.passes import WholePasses
from trisect.measure.composition import Paths, composition_scores, read_stream
from trisect.measure.patching import record, replace_at
from trisect.text.pairs import ENGLISH

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = ENGLISH[:30]
ROUNDING = 1e-9  # float64 sums of a few hundred terms


def load(kind):
    made = {"gpt2": tinyhf.gpt2, "llama": tinyhf.llama}[kind]().double()
    return trisect.load(made, tokenizer=tinyhf.tokenizer(False))


def effect(paths, writers, layer, component, head, direct, rows=None):
    return paths.effects([(writers, layer, component, head, direct, rows)])[0]


def paths_of(model):
    base, donor = (next(model.batches(texts)) for texts in (["w1 w2 w3", "w9 w8 w7"], ["w4 w5 w6", "w1 w3 w2"]))
    return (
        Paths(model, base, donor, torch.tensor([2, 2]), torch.tensor([[5, 7], [6, 8]]), WholePasses(model)),
        base,
        donor,
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_all_writers_together_are_the_donors_stream_and_its_queries_keys_and_values(kind):
    model = load(kind)
    paths, base, donor = paths_of(model)
    other = read_stream(model, donor)
    last = max(paths.stream.inputs)
    made = paths.stream.inputs[last] + sum(paths.change[writer] for writer in paths.stream.writers_before(last))
    torch.testing.assert_close(made, other.inputs[last], rtol=0, atol=ROUNDING)
    address, writers = Address("plain", last), paths.stream.writers_before(last)
    theirs = record(model.outputs, donor, [address]).parts[address]
    for component in "qkv":
        (edit,) = model.shape.resolve(Site.parse(f"{component}@{last}"))
        swapped = model.outputs(
            base, {address: replace_at([edit], theirs, base.source.real, base.source.real)}, places=paths.places
        )
        wanted = paths._log_probabilities(swapped) - paths.clean
        torch.testing.assert_close(effect(paths, writers, last, component, None, True), wanted, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_path_into_q_k_and_v_together_is_what_attention_does_with_that_writer(kind):
    """Its attention reads the changed stream, and everything else the one that was there."""
    model = load(kind)
    paths, base, _ = paths_of(model)
    last = max(paths.stream.inputs)
    for writer in paths.stream.writers_before(last):
        both = effect(paths, [writer], last, "q+k+v", None, True)
        seen = {}
        address = Address("plain", last)
        changed = paths.stream.inputs[last] + paths.change[writer]
        note = lambda x, seen=seen: seen.setdefault("out", x.clone())  # noqa: E731
        model.stream_outputs(
            base, {StreamPoint(address): lambda x, c=changed: c, StreamPoint(address, "attention"): note}
        )
        made = model.stream_outputs(
            base, {StreamPoint(address, "attention"): lambda x, s=seen: s["out"]}, places=paths.places
        )
        torch.testing.assert_close(both, paths._log_probabilities(made) - paths.clean, rtol=0, atol=ROUNDING)


def with_halved_head():
    """A llama whose queries of head 2 in layer 2 are halved behind their map."""
    model: Any = tinyhf.llama().double()
    map_q, size = model.model.layers[1].self_attn.q_proj, model.config.hidden_size // model.config.num_attention_heads
    scale = torch.ones(map_q.out_features)
    scale[size : 2 * size] = 0.5
    map_q.register_forward_hook(lambda _module, _inputs, output: output * scale.to(output))
    return trisect.load(model, tokenizer=tinyhf.tokenizer(False))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama, head 2 halved"])
def test_gradients_of_heads_by_their_own_rows_of_weights_are_whole_gradients(kind, monkeypatch):
    paths, *_ = paths_of(with_halved_head() if "halved" in kind else load(kind))
    asked = paths.base, paths.places, paths.answers[:, 0], [1, 2]
    own = paths.subject.path_gradients(*asked)
    whole, head_gradients = [], forward._head_gradients

    def without_maps(part, gradient, stream, maps):
        (slope,) = torch.autograd.grad(part, stream, gradient, retain_graph=True)
        whole.append((slope, head_gradients(part, gradient, stream, ())))
        return whole[-1][1]

    monkeypatch.setattr(forward, "_head_gradients", without_maps)
    for key, gradient in paths.subject.path_gradients(*asked).items():
        torch.testing.assert_close(own[key], gradient, rtol=0, atol=1e-6)  # a llama's norm rounds to float32
    for slope, each in whole:
        torch.testing.assert_close(sum(each), slope, rtol=0, atol=1e-6)


def test_first_order_effects_are_the_slope_of_exact_ones():
    paths, *_ = paths_of(load("gpt2"))
    slope = paths.attribute([2])
    for number, writer in enumerate(paths.stream.writers_before(2)):
        whole = paths.change[writer]
        paths.change[writer] = whole * 1e-5
        for component in "qkv":
            small = effect(paths, [writer], 2, component, 1, True)[:, 0] / 1e-5
            torch.testing.assert_close(small, slope[2, component, 1][number], rtol=1e-3, atol=1e-5)
        paths.change[writer] = whole


def test_an_unrelated_donor_is_the_path_of_another_pair_and_shared_passes_are_whole_ones():
    model = load("gpt2")
    paths, base, donor = paths_of(model)
    rows, first = torch.tensor([1, 0]), paths.stream.writers_before(2)[2]
    assert first.name == "1.h1"
    crossed = effect(paths, [first], 2, "k", 1, True, rows)
    theirs = next(model.batches(["w1 w3 w2", "w4 w5 w6"]))
    swapped = Paths(model, base, theirs, paths.places, paths.answers, paths.passes)
    torch.testing.assert_close(crossed, effect(swapped, [first], 2, "k", 1, True), rtol=0, atol=ROUNDING)
    assert isinstance(model, SharingSubject)
    shared = Paths(model, base, donor, paths.places, paths.answers, model.edited_passes())
    edits = [([first], 2, "v", 2, True, None), ([first], 2, "k", 1, False, None), ([first], 2, "q", 1, True, rows)]
    calls = []
    for layer, block in enumerate(cast(Any, model.model).transformer.h, start=1):
        block.attn.register_forward_pre_hook(lambda _m, _given, layer=layer: calls.append(layer))
    wanted = [effect(paths, *edit) for edit in edits]
    for _ in range(
        3
    ):  # the first are compared with whole passes, also after an edit below; the last begin at their layer
        calls.clear()
        for together, alone in zip(shared.effects(edits), wanted, strict=True):
            torch.testing.assert_close(together, alone, rtol=0, atol=ROUNDING)
    assert (calls.count(1), calls.count(2)) == (1, 4)  # for direct ones and the other: q, k and v, and the answers


def test_total_is_run_only_where_something_can_react():
    paths, *_ = paths_of(load("gpt2"))
    there = {writer.name: paths.has_writer_between(writer, 2) for writer in paths.stream.writers_before(2)}
    assert [name for name, reacts in there.items() if not reacts] == ["1.mlp"]
    assert len(there) == 7


def test_tasks_that_it_refuses_are_not_offered(tmp_path):
    with pytest.raises(SpecError, match="translation"):
        trisect.compose("model", task="translation", out=tmp_path / "out", quiet=True)


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """Head 1 of layer 1 copies the word before; layer 2 looks for it."""
    model = trisect.load(interchanged.inductor(WORDS, 24), tokenizer=interchanged.tokenizer(WORDS, 24))
    return trisect.compose(
        model, task="induction", count=12, out=tmp_path_factory.mktemp("compose") / "out", quiet=True
    )


def test_the_previous_token_head_makes_the_keys_and_nothing_else(composed):
    found = {(path.writer, path.into): path for path in composed.composition}
    whole = {component: found[ALL, f"{component}@2.h1"].effect_nats for component in "qkv"}
    assert found["1.h1", "k@2.h1"].effect_nats == pytest.approx(whole["k"], abs=1e-6)
    assert whole["k"] > 0.5
    for component in "qv":
        assert found["1.h1", f"{component}@2.h1"].effect_nats == pytest.approx(0.0, abs=1e-6)
        assert found["embedding", f"{component}@2.h1"].effect_nats == pytest.approx(whole[component], abs=1e-6)
    assert found["embedding", "k@2.h1"].effect_nats > 0  # by way of head 1 of layer 1
    assert found["embedding", "k@2.h1"].direct == pytest.approx(0.0, abs=1e-6)
    assert found["1.h1", "k@2.h1"].shifts["k"] > 0.5  # the answer where the donor has the question
    assert found["1.h1", "q@2.h1"].shifts["q"] == pytest.approx(0.0, abs=1e-6)
    scores = {component: found["1.h1", f"{component}@2.h1"].weights_only for component in "qkv"}
    assert scores["k"] > 0.1
    assert scores["q"] == scores["v"] == pytest.approx(0.0, abs=1e-12)


def test_one_head_can_be_asked_for(tmp_path):
    model = load("gpt2")
    done = trisect.compose(model, base="w1 w2 w3", donor="w4 w5 w6", into="k@2.h1", out=tmp_path / "out", quiet=True)
    assert {path.into for path in done.composition} == {"k@2.h1"}
    assert all(path.exact for path in done.composition)
    with pytest.raises(SpecError, match="reads the embedding alone"):
        trisect.compose(model, base="w1 w2", donor="w3 w4", into="k@1", out=tmp_path / "first", quiet=True)


def test_models_whose_writers_do_not_add_up_are_refused_by_name(tmp_path):
    model = trisect.load(tinyhf.bert().double(), tokenizer=tinyhf.tokenizer())
    with pytest.raises(ModelError, match="BertForMaskedLM"):
        read_stream(model, next(model.batches(["w1 w2"])))
    with pytest.raises(ModelError, match="BertForMaskedLM"):
        trisect.compose(model, base="w1 [MASK]", donor="w2 [MASK]", out=tmp_path / "out", quiet=True)


def test_what_a_block_adds_is_known_in_narrow_numbers_too():
    """The difference of what leaves and what enters has lost most of its digits there."""
    made = tinyhf.llama()
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.mul_(300 if "o_proj" in name else 1)  # attention adds far more than the block behind it
    model = trisect.load(made.to(torch.bfloat16), tokenizer=tinyhf.tokenizer(False))
    stream = read_stream(model, next(model.batches(["w1 w2 w3 w4 w5 w6"])))
    assert {writer.name for writer in stream.written} >= {f"{layer}.mlp" for layer in stream.inputs}


def test_composition_scores_are_ratios_of_norms():
    """As the products themselves say."""
    model = load("gpt2")
    traces = {trace.layer: trace for trace in model.read("w1 w2 w3").traces}
    score = composition_scores(traces)["1.h1", 2, "k", 2]
    writer, reader = traces[1], traces[2]
    assert reader.block is not None
    assert not [t for t in (writer.w_v, writer.w_o, reader.w_k, reader.w_q) if t is None]
    ov = writer.w_v[0] @ writer.w_o[0]  # type: ignore[index]
    gamma = reader.block.gamma[:, None]
    qk = (gamma * reader.w_k[1]) @ (gamma * reader.w_q[1]).T  # type: ignore[index]
    assert score == pytest.approx(float((ov @ qk).norm() / (ov.norm() * qk.norm())))


def test_a_path_is_drawn_from_the_layer_that_writes_to_the_head_that_reads():
    from trisect.experiments.compose.page import _drawing

    rows = [{"writer": "1.h2", "into": "k@3.h4", "direct": 1.5, "exact": True}]
    figure = _drawing(pl.DataFrame(rows))
    assert figure is not None
    tables = [
        json.loads(rows) for rows in cast(Any, figure.panels[0].chart).to_dict(validate=False)["datasets"].values()
    ]
    points = {row["name"]: (row["x"], row["y"]) for table in tables for row in table if "name" in row}
    assert points == {"1.h2": (2.0, 1.0), "3.h4": (4.0, 3.0)}
