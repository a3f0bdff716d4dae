"""Models that look up: rows that repeat, pairs whose answers stand in the windows, the measure of induction heads, a study resumed."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

import trisect
from trisect.core.errors import CorpusError, SpecError, TrisectError
from trisect.core.files import read_json, write_json
from trisect.experiments.lookup.settings import RECIPES, SMALL_RECIPE, LookupRecipe
from trisect.hf.load import load
from trisect.hf.small.gpt import save
from trisect.hf.small.lookup import LookupShape, learn_tokenizer, make_model, measure_induction
from trisect.text.pairs import draw_lookups, open_training_text, repeat_rows

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

WORDS = [f"w{i:02d}" for i in range(60)]
TINY = {"width": 16, "heads": 2, "pieces": 300, "checkpoints": 2, "steps": 4, "batch": 8, "warmup": 2}


def lines(count, seed=0):
    draw = np.random.default_rng(seed)
    return tuple(" ".join(draw.choice(WORDS, 30)) for _ in range(count))


def test_rows_repeat_a_segment_to_their_end_and_the_rest_are_windows_of_the_text():
    ids = np.arange(1000)
    rows = repeat_rows(ids, 40, 33, np.random.default_rng(1), 0.75, 4, 10)
    assert rows.shape == (40, 33)
    periods = [next((p for p in range(1, 33) if (row[p:] == row[:-p]).all()), None) for row in rows]
    assert all(period is not None and 4 <= period <= 10 for period in periods[:30])
    assert set(periods[30:]) == {None}
    assert all((np.diff(row) == 1).all() for row in rows[30:])


def test_a_text_shorter_than_a_row_is_refused():
    with pytest.raises(CorpusError, match="Give a longer text"):
        repeat_rows(np.arange(7), 2, 8, np.random.default_rng(0), 0.5, 2, 3)


def test_a_text_with_too_few_questions_is_refused_before_anything_is_trained(corpus, tmp_path):
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "train.txt").write_text((corpus / "train.txt").read_text())
    (tmp_path / "short" / "valid.txt").write_text("".join((corpus / "valid.txt").read_text().splitlines(True)[:2]))
    with pytest.raises(TrisectError, match="too few windows"):
        study(tmp_path / "short", tmp_path / "out", [1])
    assert not list((tmp_path / "out").glob("models/*/model.safetensors"))


def test_answers_are_the_words_that_stand_there_and_texts_are_read_as_they_were():
    tokenizer = learn_tokenizer(lines(40), 300, 64)
    ids = np.array([i for line in lines(40) for i in tokenizer(line)["input_ids"]])
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert sum(piece.lstrip("▁") in WORDS for piece in pieces) == len(WORDS)
    pairs = draw_lookups(ids, pieces, 25, 30, 0)
    for pair in pairs:
        base, donor = (tokenizer.tokenize(text) for text in (pair.base, pair.donor))
        assert len(base) == len(donor) == 26
        (*b, asked), (*d, other) = base, donor
        at = {c: b.index(word) + 1 for c, word in (("base", asked), ("q", other))}
        there = {c: d.index(word) + 1 for c, word in (("k", asked), ("donor", other))}
        assert b.count(asked) == b.count(other) == d.count(asked) == d.count(other) == 1
        wanted = {
            **{"base": b[at["base"]], "q": b[at["q"]], "k": b[there["k"]], "v": d[at["base"]]},
            **{"k+v": d[there["k"]], "donor": d[there["donor"]]},
        }
        assert {name: str(answer).replace(" ", "▁") for name, answer in pair.answers.items()} == wanted
        assert len(set(wanted.values())) == 6
    with pytest.raises(CorpusError, match="too few windows for 30 questions"):
        draw_lookups(ids[:60], pieces, 25, 30, 0)


def test_induction_is_what_looks_back_at_the_piece_after_the_copy_and_nothing_else():
    windows, half = torch.arange(40).reshape(4, 10), 5

    def model(offset):
        """Weights on the piece `offset` before, and the piece after the last copy as the next one, surely where it is known."""

        def run(input_ids, use_cache, output_attentions=False):
            rows, length = input_ids.shape
            weights = torch.zeros(rows, 2, length, length)
            for i in range(offset, length):
                weights[:, 1, i, i - offset] = 1.0
            logits = torch.zeros(rows, length, 50)
            if offset == half - 1:
                for i in range(half - 1, length):
                    logits[torch.arange(rows), i, input_ids[:, i - half + 1]] = 30.0
            return SimpleNamespace(logits=logits, attentions=(weights,))

        return Mock(side_effect=run, get_input_embeddings=lambda: torch.nn.Embedding(50, 2))

    looked, before = (measure_induction(model(offset), windows, torch.arange(2, 50)) for offset in (half - 1, 1))
    assert [(h.layer, h.head, h.previous, h.induction) for h in looked.heads] == [(1, 1, 0, 0), (1, 2, 0, 1)]
    assert [(h.previous, h.induction) for h in before.heads] == [(0, 0), (1, 0)]
    assert looked.second < 1e-6
    assert [looked.first, before.first, before.second] == pytest.approx([np.log(50)] * 3)


def test_without_feed_forward_networks_attention_alone_adds_to_the_stream(tmp_path):
    tokenizer = learn_tokenizer(lines(20), 300, 32)
    for inner in (0, 8):
        model: Any = make_model(LookupShape(2, 2, 16, inner, 32), tokenizer, 1)
        model(input_ids=torch.tensor([tokenizer("w01 w02 w03")["input_ids"]])).logits.sum().backward()
        for layer in model.model.layers:
            assert bool(layer.mlp(torch.ones(1, 3, 16)).any()) == bool(inner)
            assert all((p.grad is None) == (not inner) for p in layer.mlp.parameters())
    save(make_model(LookupShape(2, 2, 16, 0, 32), tokenizer, 1), tokenizer, tmp_path / "m")
    subject = load(tmp_path / "m")
    assert (subject.objective, len(subject.addresses), subject.notes) == ("causal", 2, ())
    first, again, other = (make_model(LookupShape(block=32), tokenizer, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize(
    ("change", "given"),
    [
        ({"layers": 0}, "layers is 0."),
        ({"width": 30}, "A width of 30."),
        ({"shortest": 9, "longest": 8}, "Segments of 9 to 8 pieces."),
        ({"block": 20}, "Segments of 4 to 20 pieces."),
    ],
)
def test_a_recipe_that_cannot_be(change, given):
    with pytest.raises(SpecError, match=given):
        LookupRecipe(**change).check()


def test_a_recipe_says_whether_it_has_feed_forward_networks():
    assert ["with feed-forward networks" in recipe.words() for recipe in (SMALL_RECIPE, RECIPES["deep"])] == [
        False,
        True,
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    for split, seed in (("train", 0), ("valid", 1)):
        (place / f"{split}.txt").write_text("".join(f"{line}.\n" for line in lines(120, seed)))
    return place


def study(corpus, out, seeds, edits=(), **settings):
    how = {"device": "cpu", "workers": 0, "quiet": True, "edits": edits}
    return trisect.lookup(corpus=corpus, out=out, seeds=seeds, pairs=8, settings={**TINY, **settings}, **how)


def test_a_text_needs_both_splits(corpus, tmp_path):
    text = open_training_text(corpus)
    assert (text.name, len(text.train), len(text.valid)) == (corpus.name, 120, 120)
    (tmp_path / "train.txt").write_text("a b\n")
    with pytest.raises(CorpusError, match="valid"):
        open_training_text(tmp_path)


def test_a_study_is_extended_and_repeated_to_the_same_weights(corpus, tmp_path):
    study(corpus, tmp_path / "a", [1])
    more = study(corpus, tmp_path / "a", [2])
    assert sorted(path.name for path in (tmp_path / "a" / "models").iterdir()) == [
        f"seed-{seed}{step}" for seed in (1, 2) for step in ("", "-step-0", "-step-4")
    ]
    again = study(corpus, tmp_path / "b", [2])
    for step in ("", "-step-0", "-step-4"):
        one, other = (load_file(tmp_path / out / "models" / f"seed-2{step}" / "model.safetensors") for out in "ab")
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert again.tables["measures"].equals(more.tables["measures"].filter(subject="seed-2"))
    assert more.about.facts.settings["steps"] == 4
    assert str(again.findings[0]) == "Induction heads formed in 0 of 1 model."
    leads = again.tables["predictions"].filter(step=8, site="k@2", hypothesis="k")
    assert leads.select("shift_nats", "unrelated_nats", "residual_nats").null_count().sum_horizontal().to_list() == [0]
    other = trisect.lookup(  # another number of pairs is measured, and not taken from what the first one left
        corpus=corpus, out=tmp_path / "b", seeds=[2], pairs=6, settings=TINY, device="cpu", workers=0, quiet=True
    )
    assert other.tables["predictions"]["used"].max() == 6
    assert again.tables["predictions"]["used"].max() == 8


def test_an_edit_ties_or_freezes_matrices_beside_the_plain_model_that_is_not_trained_again(corpus, tmp_path):
    def weights(model):
        tensors = load_file(tmp_path / "models" / model / "model.safetensors")
        return {c: tensors[f"model.layers.1.self_attn.{c}_proj.weight"] for c in "qkv"}

    study(corpus, tmp_path, [1])
    results = tmp_path / "pairs-8" / "seed-1.json"
    rows: Any = read_json(results, "")
    write_json(
        results, {name: [{k: v for k, v in row.items() if k != "edit"} for row in of] for name, of in rows.items()}
    )
    plain = weights("seed-1")
    trained = (tmp_path / "models" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    both = study(corpus, tmp_path, [1], ("tie-k+v", "freeze-q+k"))
    assert (tmp_path / "models" / "seed-1" / "model.safetensors").stat().st_mtime_ns == trained
    tied, frozen, start = (weights(model) for model in ("tie-k+v-seed-1", "freeze-q+k-seed-1", "seed-1-step-0"))
    assert torch.equal(tied["k"], tied["v"])
    assert not torch.equal(tied["q"], tied["k"])
    assert not torch.equal(plain["k"], plain["v"])
    assert all(torch.equal(frozen[c], start[c]) for c in "qk")
    assert not torch.equal(frozen["v"], start["v"])
    assert both.tables["predictions"].filter(pl.col("edit") != "")["step"].unique().to_list() == [8]
    # results of a folder that was begun before there were edits lack the column
    assert both.tables["predictions"].filter(edit="", seed=1)["step"].unique().sort().to_list() == [0, 4, 8]
    assert [one.measure for one in both.findings if "_tie" in one.measure] == ["loss_tie-k+v", "excess_tie-k+v"]
    less = study(corpus, tmp_path, [1], ("tie-k+v",))
    assert "Models with freeze-q+k are in the folder, and are not shown without --edit freeze-q+k." in less.about.notes
    assert "freeze" not in " ".join(less.tables["measures"]["subject"].unique())
    with pytest.raises(SpecError, match="freeze-x"):
        study(corpus, tmp_path, [1], ("freeze-x",))
    with pytest.raises(SpecError, match="twice"):
        study(corpus, tmp_path, [1], ("tie-q+k", "tie-q+k"))
