"""A small translation model trained on the embedded pairs: what it learns, and what its run leaves."""

import pytest

import trisect
from trisect.hf.small import gpt
from trisect.hf.small.translator import Translator
from trisect.text.bitext import read_pairs
from trisect.text.generated import bitext_corpus


def test_a_small_model_learns_the_embedded_pairs(tmp_path, monkeypatch):
    """On pairs that it never saw, the right source tells it more of the target than another pair's source does."""
    monkeypatch.setattr(gpt, "PIECES", 1)  # more padding, fewer and quicker steps
    settings = {"layers": 1, "width": 32, "inner": 32, "epochs": 2, "rate": 1e-2}
    made = trisect.translate_train(
        out=tmp_path, seeds=[1], settings=settings, keep=1, device="cpu", workers=0, quiet=True
    )
    last = made.tables["metrics"].filter(epoch=2)
    scores = {(row["split"], row["name"]): row["value"] for row in last.iter_rows(named=True)}
    translator, pairs = Translator.open(next(iter(made.paths.values()))), bitext_corpus().test
    right = translator.score([(pair.source, pair.target) for pair in pairs])
    wrong = translator.score([(p.source, q.target) for p, q in zip(pairs, (*pairs[1:], pairs[0]), strict=True)])
    # the run's float32 products may be another library's, whose sums are in another order
    assert (scores["test", "loss_nats"], scores["test", "accuracy"]) == pytest.approx(tuple(right), rel=1e-5)
    assert list(made.paths) == ["seed-1", "seed-1-epoch-1"]
    earlier = Translator.open(made.paths["seed-1-epoch-1"]).score([(pair.source, pair.target) for pair in pairs])
    assert right.loss_nats < earlier.loss_nats
    assert right.loss_nats < wrong.loss_nats - 0.25
    read = read_pairs(*(tmp_path / "pairs" / f"test.{end}" for end in ("source", "target", "pharaoh")))
    assert read.pairs == pairs
    assert "counts words from 0" in read.notes[0]
    assert made.tables["translations"]["target"].to_list() == [" ".join(pair.target) for pair in pairs[:8]]
