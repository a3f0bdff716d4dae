"""Another text's parts in one layer: what the swap does, which texts meet, and the share that goes by the values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests import tinyhf

from trisect.core.trace import Address
from trisect.experiments.profile import run
from trisect.experiments.profile.run import Exchange, exchange
from trisect.hf.load import Pretrained, load
from trisect.text.sources import Labelled

WORDS = [f"w{i}" for i in range(1, 30)]


def labelled(words: list[str]) -> Labelled:
    text, spans = " ".join(words), []
    for word in words:
        start = spans[-1][1] + 1 if spans else 0
        spans.append((start, start + len(word)))
    return Labelled(text, tuple(spans), {})


def texts(lengths: tuple[int, ...]) -> Iterator[Labelled]:
    draw = np.random.default_rng(0)
    return iter([labelled([WORDS[int(i)] for i in draw.integers(len(WORDS), size=n)]) for n in lengths])


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def model(request) -> Pretrained:
    return load(getattr(tinyhf, request.param)(), tinyhf.tokenizer())


def layers(model: Pretrained) -> tuple[Address, ...]:
    return tuple(p.address for p in model.projections())


def test_with_the_weights_held_queries_and_keys_change_nothing_and_values_do(model):
    found = exchange(model, lambda: texts((6, 6, 6, 9, 9, 9)), layers(model), 8, 0)
    assert found is not None
    assert found.changes.shape == (6, len(layers(model)), 2, 3)
    free, held = found.changes[:, :, 0], found.changes[:, :, 1]
    assert (free > 0).all()
    assert held[:, :, :2].max() == 0  # q and k, to the bit
    assert (held[:, :, 2] > 0).all()
    share = found.held_share(0)
    assert share is not None
    assert (share.effect, share.n, share.unit) == (1.0, 6, "text")


def test_a_change_is_that_of_the_very_values_of_the_other_text(model):
    """The last layer's q of another text, put in by hand."""
    address = layers(model)[-1]
    found = exchange(model, lambda: texts((7, 7)), (address,), 8, 0)
    assert found is not None
    (batch,) = model.batches((one.text for one in texts((7, 7))), 8, scored=True)
    clean = model.score(batch)
    turned = model.score(batch, {address: lambda parts: parts._replace(q=parts.q.flip(0))}, None, clean)
    moved = turned.total if model.objective == "output" else (turned.total - clean.total).abs()
    np.testing.assert_allclose(found.changes[:, 0, 0, 0], (moved / turned.count).numpy(), rtol=1e-6)


def test_only_texts_of_as_many_tokens_meet(model):
    assert exchange(model, lambda: texts((4, 5, 6, 7)), layers(model), 8, 0) is None
    met = exchange(model, lambda: texts((4, 5, 5, 7)), layers(model), 8, 0)
    assert met is not None
    assert len(met.changes) == 2


def test_rows_are_means_over_texts_with_intervals():
    changes = np.random.default_rng(1).uniform(0.1, 1.0, size=(40, 2, 2, 3))
    found = Exchange((Address("plain", 1), Address("plain", 2)), changes)
    rows = [row for row, _ in found.rows(0)]
    assert len(rows) == 3 * 2 * 3
    whole = [r for r in rows if r["layer"] is None and (r["group"], r["component"]) == ("weights held", "v")]
    assert len(whole) == 1
    assert whole[0]["value"] == pytest.approx(changes[:, :, 1, 2].mean())
    low, value, high = (float(whole[0][name] or 0.0) for name in ("low", "value", "high"))
    assert 0 < low < value < high
    assert whole[0]["n"] == 40
    first = next(r for r in rows if r.get("layer") == 2 and (r["group"], r["component"]) == ("weights free", "q"))
    assert first["value"] == pytest.approx(changes[:, 1, 0, 0].mean())


def test_the_share_is_of_all_change_and_says_where_queries_act_besides():
    changes = np.zeros((40, 1, 2, 3))
    changes[:, 0, 1] = (0.1, 0.1, 0.8)
    share = Exchange((Address("plain", 1),), changes).held_share(0)
    assert share is not None
    assert share.effect == pytest.approx(0.8)
    assert Exchange((Address("plain", 1),), np.zeros((40, 1, 2, 3))).held_share(0) is None


def test_texts_are_drawn_up_to_a_number(model, monkeypatch):
    monkeypatch.setattr(run, "TEXTS", 4)
    found = exchange(model, lambda: texts((5,) * 9 + (6,) * 9), layers(model)[:1], 8, 0)
    assert found is not None
    assert len(found.changes) == 4
    assert torch.isfinite(torch.from_numpy(found.changes)).all()
