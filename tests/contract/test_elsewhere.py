"""Models on another device, which is pretended: measures are computed there, equal those of a CPU, and little leaves it."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import tinyhf
from tests.elsewhere import PLACE, Elsewhere, divided, elsewhere, moved, put
from tests.raw import write_splits

import trisect
from trisect.core.subject import Texts
from trisect.core.trace import Trace
from trisect.experiments.norms import run
from trisect.hf.load import Pretrained, load
from trisect.measure.norms import sum_norms
from trisect.measure.sums import LayerTally, PooledTally, Ranks, Sums

TEXTS = ["w1 w2 w3 , w4 w5 .", "w6 w7 w8 w9", "w7 w8 w9 w10 w11 w12", "w3 w4 w1"]
MODELS = {"bert": tinyhf.bert, "gpt2": tinyhf.gpt2}
MEASURES = {
    "norms": partial(trisect.norms, texts=TEXTS, block="full"),
    "ablate": partial(trisect.ablate, texts=TEXTS, hold=True),
    "patch": partial(trisect.patch, pair_list=[("w1 w2 w3", "w4 w5 w6")]),
    "profile": lambda subject, out, quiet: trisect.profile(
        subject, words_of(out), labels=("position",), words=100, folds=2, out=out, quiet=quiet
    ),
}
SUMS = ("x", "f", "a", "af", "sums", "head_sums", "queries", "means", "tokens", "mixing")


def words_of(out: Path) -> Path:
    """A folder of text beside `out`, in lines of four lengths."""
    lines = "\n".join(" ".join(f"w{(7 * i + 3 * j) % 40}" for j in range(4 + i % 4)) for i in range(20))
    return write_splits(out.with_suffix(".text"), lines)


def both_of(name: str) -> tuple[Pretrained, Pretrained]:
    """The same model on the CPU, and elsewhere."""
    near = load(MODELS[name](), tinyhf.tokenizer())
    with elsewhere():
        return near, load(put(MODELS[name]()), tinyhf.tokenizer())


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """Intervals of few draws: values alone are compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "DRAWS", 100)
        yield


Values = Callable[[str, str], np.ndarray]


def values_of(subject: Pretrained, measure: str, out: Path) -> np.ndarray:
    return MEASURES[measure](subject, out=out, quiet=True).tables["measures"]["value"].to_numpy()


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Values:
    """What a measure of a model on the CPU gives, computed once."""

    @cache
    def values(model: str, measure: str) -> np.ndarray:
        subject = load(MODELS[model](), tinyhf.tokenizer())
        return values_of(subject, measure, tmp_path_factory.mktemp("near") / measure)

    return values


@pytest.mark.parametrize(("model", "measures"), [("bert", ("norms",)), ("gpt2", ("ablate", "patch"))])
def test_measures_of_a_model_on_another_device_are_those_of_a_cpu(model, measures, here, tmp_path):
    with elsewhere():
        far = load(put(MODELS[model]()), tinyhf.tokenizer())
        there = {name: values_of(far, name, tmp_path / name) for name in measures}
    for name, made in there.items():
        np.testing.assert_allclose(made, here(model, name), rtol=1e-5, atol=1e-6)


def on_two(name: str) -> tuple[Pretrained, Pretrained]:
    """The same model on the CPU, and with the last of its two layers elsewhere."""
    model = MODELS[name]()
    body = model.base_model
    last, behind = (
        (body.h[-1], [body.ln_f]) if name == "gpt2" else (body.encoder.layer[-1], [model.get_submodule("cls")])
    )
    with elsewhere():
        return load(MODELS[name](), tinyhf.tokenizer()), load(divided(model, last, behind), tinyhf.tokenizer())


@pytest.mark.parametrize(("model", "measures"), [("bert", ("norms", "profile")), ("gpt2", ("ablate", "patch"))])
def test_a_model_on_two_devices_is_read_and_measured_as_on_one(model, measures, here, tmp_path):
    near, far = on_two(model)
    assert far.shape == near.shape
    with elsewhere():
        seen: list[Trace] = []
        far.each(next(far.batches(TEXTS)), seen.append)
        assert [trace.weights.device.type for trace in seen] == ["cpu", PLACE.type]
        assert all(trace.block is not None for trace in seen)
        there = {name: values_of(far, name, tmp_path / name) for name in measures}
    for name, made in there.items():
        np.testing.assert_allclose(made, here(model, name), rtol=1e-5, atol=1e-6)


def test_layers_are_handed_over_where_they_are_computed_and_a_reading_lies_on_the_cpu():
    _, far = both_of("bert")
    seen: list[Trace] = []
    with elsewhere() as mode:
        batch = next(far.batches(TEXTS))
        far.each(batch, seen.append)
        given = mode.left
        reading = far.trace(batch)
        weights = [t for p in far.projections() for t in (p.w_q, p.w_o) if t is not None]
    for trace, home in zip(seen, reading.traces, strict=True):
        assert trace.block is not None
        assert home.block is not None
        parts = ("q", "k", "v", "weights", "output", "query_real", "key_real", "w_q", "w_o")
        assert {getattr(trace, part).device for part in parts} == {PLACE} == {trace.block.residual.device}
        assert {getattr(home, part).device.type for part in parts} == {"cpu"} == {home.block.residual.device.type}
    whole = sum(home.weights.numel() + 4 * home.q.numel() for home in reading.traces)
    assert given < whole / 2  # what the laws look at, and no trace
    assert {t.device.type for t in weights} == {"cpu"}


def counted(subject: Pretrained, causal: bool) -> tuple[Any, Any, list[Trace]]:
    """A batch of four texts, whose its positions are, and its traces."""
    texts = [" ".join(f"w{(7 * i * n) % 40}" for i in range(1, 20)) for n in range(1, 5)]
    batch, traces = next(subject.batches(texts)), list[Trace]()
    found = run._count(subject, Texts("four", lambda: iter(texts)), 4, "plain")
    subject.each(batch, traces.append)
    return batch, run._owners(batch, "plain", torch.arange(4), found, causal=causal), traces


@pytest.mark.parametrize("kind", ["attention", "full", "feed-forward"])
def test_of_norms_no_more_leaves_the_device_than_numbers_of_tokens(kind):
    batch, whose, traces = counted(load(tinyhf.bert(), tinyhf.tokenizer()), causal=False)
    near, far = (([LayerTally(t.heads, kind) for t in traces], PooledTally()) for _ in range(2))
    near[1].add_frequency([x.add(t, whose, near[1]) for x, t in zip(near[0], traces, strict=True)], whose)
    with elsewhere() as mode:
        own = whose.to(PLACE)
        far[1].add_frequency([x.add(moved(t), own, far[1]) for x, t in zip(far[0], traces, strict=True)], own)
        assert mode.looks == 0
        assert mode.left <= 16 * batch.source.real.numel()
        for one, other in zip(near[0], far[0], strict=True):
            for name in SUMS:
                want, found = (getattr(tally, name).rows for tally in (one, other))
                np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
            for a, b in zip(one.cancel, other.cancel, strict=True):
                want, found = a.estimate(), b.estimate()
                assert int(a.counts.sum()) == int(b.counts.sum())
                np.testing.assert_allclose(found.value, want.value, atol=0.02)  # a number at an edge may change bins
            assert sum(int(b.counts.sum()) for b in other.cancel) > 100


def test_tallies_over_layers_on_two_devices_are_those_of_one():
    """A device map puts layers on several: what is pooled over them is counted where the first of it lies."""
    _, whose, traces = counted(load(tinyhf.gpt2(), tinyhf.tokenizer(False)), causal=True)
    alone, both = PooledTally(), PooledTally()
    alone.add_frequency([LayerTally(t.heads, "attention").add(t, whose, alone) for t in traces], whose)
    with elsewhere():
        for _ in range(2):  # the second time their bins are fixed
            first, second = (LayerTally(t.heads, "attention") for t in traces)
            seen = first.add(traces[0], whose, both), second.add(moved(traces[1]), whose.to(PLACE), both)
            both.add_frequency(list(seen), whose.to(PLACE))
            for pooled in (alone, both):
                _ = [ranks.estimate() for ranks in _pooled(pooled)]
        for one, other in zip(_pooled(alone), _pooled(both), strict=True):
            assert 2 * int(one.counts.sum()) == int(other.counts.sum())
            np.testing.assert_allclose(other.estimate().value, one.estimate().value, atol=0.02)
        sums = Sums(4, 1)
        for values in (torch.ones(2, 1), torch.ones(2, 1, device=PLACE)):
            sums.add(torch.arange(2, device=values.device), values)
        assert sums.rows[:, 0].tolist() == [2.0, 2.0, 0.0, 0.0]


def _pooled(tally: PooledTally) -> list[Ranks]:
    return [*tally.cancel, *tally.frequency.values(), *tally.words.values(), *tally.within.values()]


@pytest.mark.parametrize("ratio", [1e-1, 1e-3, 1e-5])
def test_norms_of_heads_that_cancel_keep_their_digits_elsewhere(ratio):
    """All heads' vectors but a small part of them sum to zero: products in single precision would leave nothing right."""
    draw = torch.Generator().manual_seed(1)
    v, w_o = torch.randn(2, 4, 6, 3, generator=draw), torch.randn(4, 3, 8, generator=draw)
    v[:, 1], w_o[1] = v[:, 0], ratio * torch.randn(3, 8, generator=draw) - w_o[0]
    weights = torch.zeros(2, 4, 5, 6)
    weights[:, :2] = 0.5
    exact = (0.5 * (v[:, 0].double() @ w_o[0].double() + v[:, 1].double() @ w_o[1].double())).norm(dim=-1)
    with elsewhere():
        found = sum_norms(moved(weights), moved(v), moved(w_o))[1].cpu()
    rounding = 1e-6 / ratio  # of the vectors themselves, which are in single precision
    torch.testing.assert_close(found.double(), exact[:, None].expand_as(found), rtol=rounding, atol=0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", MEASURES)
def test_on_an_accelerator_measures_are_those_of_a_cpu(name, tmp_path):
    near, far = load(tinyhf.bert(), tinyhf.tokenizer()), load(tinyhf.bert().to("cuda"), tinyhf.tokenizer())
    seen: list[Trace] = []
    far.each(next(far.batches(TEXTS)), seen.append)
    assert {trace.weights.device.type for trace in seen} == {"cuda"}
    here, there = (values_of(one, name, tmp_path / place) for place, one in (("near", near), ("far", far)))
    np.testing.assert_allclose(there, here, rtol=1e-3, atol=1e-5)


def test_the_pretended_device_refuses_to_be_mixed_and_counts_what_leaves_it():
    with elsewhere() as mode:
        there = torch.arange(6.0, device=PLACE).view(2, 3)
        assert isinstance(there, Elsewhere)
        with pytest.raises(RuntimeError, match="mixes devices"):
            _ = there + torch.ones(2, 3)
        assert (there * 2).sum().item() == 30.0
        assert there.cpu().tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert (mode.left, mode.looks) == (6, 1)
