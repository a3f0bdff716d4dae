"""Laws of reading attention: what is recorded is what is computed, and what is found makes what is recorded."""

import functools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import zoo
from torch import nn

from trisect.core.errors import SiteError
from trisect.core.site import COMPONENTS, Site
from trisect.core.subject import QKV
from trisect.core.trace import Address
from trisect.hf.batches import first_tensor
from trisect.hf.hooks.calls import Edits
from trisect.hf.hooks.interface_hook import eager, record_interface
from trisect.hf.hooks.product_hook import record_products
from trisect.hf.load import load
from trisect.hf.locate.blocks import watch
from trisect.hf.locate.weights import find_weights
from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import prove
from trisect.hf.verify.sources import find_addresses

EXACT = 1e-12  # float64: sums over at most 64 terms
# grouped queries, rotary, position bias, sliding window, softcap, sinks, fused, Conv1D, cross, and the product hook
VARIETY = ("bert", "gpt2", "mistral", "gemma2", "gpt_oss", "t5", "gpt_neox", "qwen2")
VARIETY += ("bloom", "mpt", "xlnet", "deberta")
SINGLE = ("gpt_oss",)  # its experts have no float64 product
ROUNDED = {"gpt_oss": 1e-5, "mistral": 1e-5, "esm": 1e-5}  # float32 norms and rotary tables inside
INTERFACE = ("bert", "gpt2", "mistral", "gemma2", "gpt_oss", "t5", "gpt_neox", "bart", "whisper")
seeds = st.integers(0, 9999)


@functools.cache
def double(name, seed=0):
    return zoo.build(name, seed) if name in SINGLE else zoo.build(name, seed).double()


def inputs_of(name, model, seed=0):
    return example_inputs(name, model, seed)


def hook_of(name):
    return record_interface if name in INTERFACE or name == "qwen2" else record_products


def run(model: Any, inputs: Any, hook: Any, edits: Edits | None = None) -> tuple[Any, list[Any]]:
    with torch.no_grad(), hook(model, edits or Edits()) as calls:
        return first_tensor(model(**inputs)), list(calls)


@pytest.mark.parametrize("name", VARIETY)
@settings(max_examples=2)
@given(seed=seeds)
def test_contributions_and_bias_equal_the_modules_output(name, seed):
    model, hook = double(name), hook_of(name)
    inputs = inputs_of(name, model, seed)
    _, calls = run(model, inputs, hook)
    addresses, _ = find_addresses(name, model, calls, inputs, hook)
    for call, found in zip(calls, find_weights(model, inputs, hook, addresses), strict=True):
        p, weights = found.projections, call.weights
        assert p.w_o is not None
        assert p.w_v is not None
        assert weights is not None
        group = weights.shape[1] // call.v.shape[1]
        f = torch.einsum("bhse,hed->bhsd", call.v.repeat_interleave(group, 1), p.w_o)
        summed = torch.einsum("bhts,bhsd->btd", weights, f)
        summed = summed if p.b_o is None else summed + p.b_o
        parameter = p.origins["o"].parameter
        if parameter is not None:  # XLNet multiplies by a parameter without a module
            module = model.get_submodule(parameter.removesuffix(".weight"))
            mixed = call.output.transpose(1, 2).flatten(2)
            assert (summed - module(mixed)).abs().max() <= ROUNDED.get(name, EXACT) * summed.abs().max()
        for name_, origin in p.origins.items():
            assert origin.residual is not None
            assert origin.residual <= ROUNDED.get(name, EXACT), (name_, origin)


@pytest.mark.parametrize("name", INTERFACE)
@settings(max_examples=2)
@given(seed=seeds)
def test_both_doors_read_the_same(name, seed):
    """The product hook knows nothing of the interface, and reads an eager model through it."""
    model = double(name)
    inputs = inputs_of(name, model, seed)
    answer, by_interface = run(model, inputs, record_interface)
    with eager(model):
        again, by_product = run(model, inputs, record_products)
    assert torch.equal(answer, again)
    assert [c.module for c in by_interface] == [c.module for c in by_product]
    for one, other in zip(by_interface, by_product, strict=True):
        repeat = other.k.shape[1] // one.k.shape[1]
        assert torch.equal(one.q, other.q)
        assert torch.equal(one.k.repeat_interleave(repeat, 1), other.k)
        assert torch.equal(one.v.repeat_interleave(repeat, 1), other.v)
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.output, other.output)
        if one.scale is not None and other.scale is not None:
            assert one.scale == pytest.approx(other.scale, rel=EXACT)


@pytest.mark.parametrize("name", [*VARIETY, "longformer", "led", "funnel"])
def test_writing_back_what_was_read_changes_nothing(name):
    model = zoo.build(name)
    inputs, hook = inputs_of(name, model), hook_of(name) if name in VARIETY else prove(name, model).hook
    plain, calls = run(model, inputs, hook)
    same = {n: lambda parts: parts for n in range(len(calls))}
    written, again = run(model, inputs, hook, Edits(write=same))
    assert torch.equal(plain, written)
    assert [c.order for c in again] == list(range(len(calls)))
    held, _ = run(model, inputs, hook, Edits(hold={n: c.weights for n, c in enumerate(calls) if c.weights is not None}))
    assert (held - plain).abs().max() <= 1e-5 * plain.abs().max()  # float32, once more through a softmax


@pytest.mark.parametrize("name", ["bert", "mistral", "t5", "gpt_neox", "bloom", "falcon"])
@settings(max_examples=2)
@given(data=st.data())
def test_values_of_zero_in_a_head_are_that_heads_columns_of_w_o_set_to_zero(name, data):
    model = double(name)
    inputs, hook = inputs_of(name, model), hook_of(name)
    _, calls = run(model, inputs, hook)
    order = data.draw(st.integers(0, len(calls) - 1))
    heads = calls[order].v.shape[1]
    head = data.draw(st.integers(0, heads - 1))
    addresses, _ = find_addresses(name, model, calls, inputs, hook)
    origin = find_weights(model, inputs, hook, addresses)[order].projections.origins["o"]
    assert origin.rows is not None

    def silence(parts):
        v = parts.v.clone()
        v[:, head] = 0
        return parts._replace(v=v)

    written, _ = run(model, inputs, hook, Edits(write={order: silence}))
    weight = model.get_parameter(origin.parameter or "")
    group = calls[order].q.shape[1] // heads
    columns = origin.rows[head * group : (head + 1) * group].flatten()
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:, columns] = 0
    try:
        without, _ = run(model, inputs, hook)
    finally:
        with torch.no_grad():
            weight.copy_(before)
    plain, _ = run(model, inputs, hook)
    assert (written - without).abs().max() <= EXACT * plain.abs().max()
    assert (written - plain).abs().max() > 1e-6 * plain.abs().max()


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "gpt_neox", "esm", "albert", "opt", "openai_gpt", "fsmt"])
def test_blocks_hold_the_residual_and_the_norm(name):
    """A post block's norm of residual + attention is what goes on; a pre block's norm of the residual is attention's x."""
    model = double(name)
    inputs, hook = inputs_of(name, model), prove(name, double(name)).hook
    _, calls = run(model, inputs, hook)
    addresses, _ = find_addresses(name, model, calls, inputs, hook)
    found = find_weights(model, inputs, hook, addresses)
    with watch(model, name, {f.projections.address: f.around for f in found if f.around}) as blocks:
        _, calls = run(model, inputs, hook)
    assert set(blocks) == set(addresses)
    for call, one in zip(calls, found, strict=True):
        block, p = blocks[one.projections.address], one.projections
        assert p.w_q is not None
        x = block.residual
        if block.kind == "pre":
            centred = x - x.mean(-1, keepdim=True) if block.centred else x
            x = centred / (centred.square().mean(-1, keepdim=True) + block.epsilon).sqrt() * block.gamma
            x = x if block.beta is None else x + block.beta
        q = torch.einsum("btd,hde->bhte", x, p.w_q)
        q = q if p.b_q is None else q + p.b_q[None, :, None]
        q = q * p.origins["q"].scale
        # position 0, which rotary positions do not turn
        assert (q[:, :, 0] - call.q[:, :, 0]).abs().max() <= ROUNDED.get(name, EXACT) * q.abs().max()


class Written(nn.Module):
    """Attention as anyone may write it, without transformers: heads of any number, keys and values shared by groups."""

    def __init__(self, heads, group, width, depth, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.heads, self.width = heads, width
        self.fused = nn.Linear(depth, (heads + 2 * heads // group) * width)
        self.out = nn.Linear(heads * width, depth)
        self.double()

    def forward(self, x):
        shared = (self.fused.out_features // self.width - self.heads) // 2
        q, k, v = self.fused(x).unflatten(-1, (-1, self.width)).split([self.heads, shared, shared], dim=2)
        group = self.heads // k.shape[2]
        q, k, v = q.transpose(1, 2), k.repeat_interleave(group, 2).transpose(1, 2), v.repeat_interleave(group, 2)
        weights = torch.softmax(q @ k.transpose(2, 3) / self.width**0.5, -1)
        return self.out((weights @ v.transpose(1, 2)).transpose(1, 2).flatten(2))


@settings(max_examples=15)
@given(groups=st.integers(1, 3), group=st.integers(1, 3), width=st.integers(1, 5), depth=st.integers(2, 9), seed=seeds)
def test_any_selection_is_found(groups, group, width, depth, seed):
    """Repeated keys and values come from the same rows; what is found makes q, k, v and the output again."""
    heads = groups * group
    model = Written(heads, group, width, depth, seed)
    inputs = {"x": torch.randn(2, 4, depth, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))}
    (found,) = find_weights(model, inputs, record_products, [Address("plain", 1)])
    _, (call,) = run(model, inputs, record_products)
    p = found.projections
    for name, t in (("q", call.q), ("k", call.k), ("v", call.v)):
        w, b = getattr(p, f"w_{name}"), getattr(p, f"b_{name}")
        made = torch.einsum("btd,hde->bhte", inputs["x"], w) + b[None, :, None]
        assert (made - t).abs().max() <= EXACT
    for name in ("k", "v"):
        rows = p.origins[name].rows
        assert rows is not None
        assert torch.equal(rows, rows[::group].repeat_interleave(group, 0))
    assert p.w_o is not None
    assert p.b_o is not None
    made = torch.einsum("bhte,hed->btd", call.output, p.w_o) + p.b_o
    assert (made - model(**inputs)).abs().max() <= EXACT
    assert call.scale == pytest.approx(width**-0.5)


@settings(max_examples=5)
@given(seed=seeds, scale=st.floats(-2, 2))
def test_what_a_writer_gives_is_what_is_used(seed, scale):
    model = Written(4, 2, 3, 5, seed)
    x = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def write(parts):
        return QKV(parts.q * scale, parts.k + parts.v, parts.v - parts.q)

    _, (clean,) = run(model, {"x": x}, record_products)
    answer, (call,) = run(model, {"x": x}, record_products, Edits(write={0: write}))
    q, k, v = clean.q * scale, clean.k + clean.v, clean.v - clean.q
    weights = torch.softmax(q @ k.transpose(2, 3) / 3**0.5, -1)
    assert (weights - call.weights).abs().max() <= EXACT
    assert (model.out((weights @ v).transpose(1, 2).flatten(2)) - answer).abs().max() <= EXACT


@functools.cache
def grouped():
    """A reading of four heads of queries for two of keys, in two layers, with rotary positions."""
    return load(zoo.build("llama")).read({"input_ids": torch.arange(3, 12)[None]})


@settings(max_examples=300)
@given(
    parts=st.lists(st.sampled_from((*COMPONENTS, "qk")), min_size=1, max_size=3, unique=True),
    layers=st.sampled_from(["1", "2", "3", "1-2", "all", "0"]),
    heads=st.sampled_from(["", ".h1", ".h2", ".h3", ".h1,4", ".h1-2", ".h9", ".h0"]),
    before=st.sampled_from(["", "pre.", "plain.", "enc.", "enc.pre."]),
)
def test_a_site_of_a_reading_is_what_it_names_or_is_refused(parts, layers, heads, before):
    """Every spelling: q, k, v and attn as attention takes them, at one layer that was read, and heads that are there."""
    spelt, whole = f"{before}{'+'.join(parts)}@{layers}{heads}", grouped()
    counts = {"q": 4, "k": 2, "v": 2}
    chosen = {"": (), ".h1,4": (1, 4), ".h1-2": (1, 2)}.get(heads) or tuple(map(int, heads.removeprefix(".h")))
    numbers = {counts.get(part, 0) for part in parts}
    fits = not chosen or (len(numbers) == 1 and all(1 <= h <= max(numbers) for h in chosen))
    if before or layers not in ("1", "2") or not fits or not set(parts) <= {*counts, "attn"}:
        with pytest.raises(SiteError):
            whole[spelt]
        return
    part, full = whole[spelt], whole.layer(int(layers))
    assert whole[Site.parse(spelt)].address == part.address == full.address
    for name in parts if chosen else (*counts, "weights", "output"):
        expected = getattr(full, name)
        assert torch.equal(getattr(part, name), expected[:, [h - 1 for h in chosen]] if chosen else expected)
    if chosen:
        queries = [i for h in chosen for i in range((h - 1) * 4 // max(numbers), h * 4 // max(numbers))]
        assert torch.equal(part.weights, full.weights[:, queries])
        assert torch.equal(part.output, full.output[:, queries])
