"""Alignment's rooms one by one: what is no link, pieces and their words, what the decoder reads, rows, claim, pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.stats
import torch
from tests import tinyhf, zoo
from tests.aligned import COLUMNS, pictured, planted
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trisect.core.claim import REVISION
from trisect.core.errors import CorpusError, ModelError
from trisect.experiments.align.run import alignment_rows, choose_picture, judge_alignment, link_across
from trisect.hf.load import PADDING, SPECIAL, Pretrained, check_crossing, cross_batches, cut, load
from trisect.measure.alignment import aer, error_rates, gold_tables
from trisect.report.cards import cards
from trisect.stats.bootstrap import CrossedBootstrap
from trisect.text.bitext import SentencePair

SENTENCES = (
    ("w1 w2 .", "w3 w4 w5"),
    ("w6", "w7 w8"),
    ("w9 , w10 w11 .", "w12 ."),
    ("w13 w14 w15 w16", "w17 w18 w19 w20 w21"),
)
PAIRS = tuple((tuple(a.split()), tuple(b.split())) for a, b in SENTENCES)


@pytest.fixture(scope="module")
def bart() -> Pretrained:
    return load(tinyhf.bart(), tinyhf.tokenizer())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([{(0, 0)}], [{(0, 0)}, {(1, 1)}], [set()]), "Links of 1 sentences, sure links of 2 and possible links of 1"),
        (({(0, 0)}, {(0, 0, 1)}, set()), r"Among the links is \(0, 0, 1\)"),
        (([{(0, 0)}], [{3}], [set()]), "Among the links of sentence 1 is 3"),
        (([{(0, 0)}], {(0, 0)}, set()), "Among the links is {(0, 0)}".replace("(", r"\(").replace(")", r"\)")),
        (("0-0 1-1", {(0, 0)}, set()), "'0-0 1-1' was given as links"),
        ((set(), set(), {(0, 0)}), "There is no link and no sure link"),
        (([], [], []), "There is no link and no sure link"),
    ],
)
def test_what_is_no_set_of_links_is_refused(given, message):
    with pytest.raises(CorpusError, match=message):
        aer(*given)


def test_a_gold_link_outside_its_pair_is_refused():
    with pytest.raises(CorpusError, match="The link 2-0 lies outside its pair") as error:
        gold_tables({(2, 0)}, set(), (2, 3))
    assert "source is 1, and of its target 2" in error.value.reason


def trained(inner: Tokenizer, trainer, **options) -> PreTrainedTokenizerFast:
    inner.train_from_iterator([*(s for pair in SENTENCES for s in pair), "unwieldy wordings , in-between"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")


SPECIALS = ["<pad>", "</s>", "<unk>"]


def byte_level() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(inner, trainers.BpeTrainer(vocab_size=270, special_tokens=SPECIALS, initial_alphabet=alphabet))


def metaspace() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    return trained(inner, trainers.UnigramTrainer(vocab_size=40, special_tokens=SPECIALS, unk_token="<unk>"))


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_pieces_are_of_the_words_that_their_letters_are_of(bart, make):
    subject = replace(bart, tokenizer=make())
    words = ("unwieldy", "in-between", ",", "wé")
    ids, places = cut(subject, words, True)
    assert places[-1] == SPECIAL
    assert set(places[:-1]) == set(range(4))
    assert places[:-1] == sorted(places[:-1])
    assert places.count(0) > 1
    alone = [len(subject.tokenizer(word, add_special_tokens=False)["input_ids"]) for word in words]
    assert [places.count(i) for i in range(4)] == alone
    assert ids[-1] == subject.tokenizer.eos_token_id


class Slow:
    """A tokenizer without offsets: letters, '▁' before a word, and 'ab' joined only inside a sentence."""

    is_fast = False
    pad_token_id = 0
    vocabulary = ("</s>", "▁", "a", "b", "▁a", "ab", "c")

    def __init__(self, joins: str = "", marked: bool = True):
        self.joins, self.marked = joins, marked
        self.asked = []

    def __call__(self, text=None, text_target=None, add_special_tokens=True, **options):
        self.asked.append("target" if text is None else "source")
        said = text_target if text is None else text
        assert said is not None
        pieces = [p for word in said.split() for p in ([*("▁" * self.marked), *word])]
        if self.joins and " " in said:
            at = next(i for i in range(len(pieces)) if pieces[i] + pieces[i + 1] == self.joins)
            pieces[at : at + 2] = [self.joins]
        ids = [self.vocabulary.index(p) for p in pieces] + [0] * add_special_tokens
        return {"input_ids": ids, "special_tokens_mask": [0] * len(pieces) + [1] * add_special_tokens}

    def convert_ids_to_tokens(self, ids):
        return [self.vocabulary[i] for i in ids]


def test_without_offsets_words_are_cut_alone_and_else_by_their_marks(bart):
    plain = replace(bart, tokenizer=Slow())
    assert cut(plain, ("ab", "c"), False)[1] == [0, 0, 0, 1, 1, SPECIAL]
    assert set(plain.tokenizer.asked) == {"source"}
    assert cut(plain, ("ab", "c"), True)[1] == [0, 0, 0, 1, 1, SPECIAL]
    assert "target" in plain.tokenizer.asked
    joined = replace(bart, tokenizer=Slow("ab"))
    assert cut(joined, ("ab", "c"), False)[1] == [0, 0, 1, 1, SPECIAL]
    unmarked = replace(bart, tokenizer=Slow("ab", marked=False))
    with pytest.raises(ModelError, match=r"tokens of 'ab c' in .* do not belong to single words") as error:
        cut(unmarked, ("ab", "c"), False)
    assert "splits at white space" in error.value.todo


@pytest.mark.parametrize("joins", ["", "ab"])
def test_a_word_with_a_no_break_space_begins_twice_and_one_that_is_a_space_never(bart, joins):
    _, places = cut(replace(bart, tokenizer=Slow(joins)), ("ab\u00a0b", "\u3000", "c"), False)
    assert places == [0, 0, 0, 0, 0, 2, 2, SPECIAL][bool(joins) :]


def test_every_command_cuts_a_target_as_a_target(bart):
    """Marian has one vocabulary of pieces for each side."""
    slow = Slow()
    subject = replace(bart, tokenizer=slow, batcher=replace(bart.batcher, tokenizer=slow))
    (batch,) = subject.batches([("ab c", "c")])
    assert slow.asked == ["source", "target"]
    assert batch.target is not None
    assert batch.inputs["labels"].tolist() == [[1, 6, 0]]


def test_a_piece_of_two_words_is_refused(bart):
    inner = Tokenizer(models.WordLevel({"a b": 0, "<unk>": 1}, "<unk>"))
    subject = replace(bart, tokenizer=PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>"))
    with pytest.raises(ModelError, match=r"tokens of 'a b' in .* do not belong to single words"):
        cut(subject, ("a", "b"), False)


def test_the_decoder_reads_the_target_one_position_later_than_it_is_to_say_it(bart):
    batches, long = cross_batches(bart, PAIRS, 3)
    assert not long
    assert sorted(n for one in batches for n in one.pairs) == [0, 1, 2, 3]
    for one in batches:
        shown, labels = one.batch.inputs["decoder_input_ids"], one.batch.inputs["labels"]
        assert (shown[:, 0] == 3).all()
        real = labels[:, 1:] != -100
        assert torch.equal(shown[:, 1:][real], labels[:, :-1][real])
        assert torch.equal(one.shifted[:, 1:][real], one.predicted[:, :-1][real])
        for row, number in enumerate(one.pairs):
            source, target = PAIRS[number]
            for words, side in ((one.source[row], source), (one.shifted[row], target), (one.predicted[row], target)):
                kept = [w for w in words.tolist() if w >= 0]
                assert kept == list(range(len(side)))
            asked = one.predicted[row][one.predicted[row] != PADDING]
            assert asked[-1] == SPECIAL
            tokens = bart.tokenizer.convert_ids_to_tokens(labels[row][: len(asked)].tolist())
            assert [t for t, w in zip(tokens, asked.tolist(), strict=True) if w >= 0] == list(target)


@pytest.mark.parametrize("name", ["t5", "marian", "mbart", "m2m_100", "bart"])
def test_every_kind_is_read_as_it_was_trained(name):
    """Its own shift of the labels gives the same logits as being called with labels alone; float32 of small numbers."""
    model = zoo.build(name)
    subject = load(model, tinyhf.tokenizer())
    one = cross_batches(subject, PAIRS, 4)[0][0]
    inputs = {k: v for k, v in one.batch.inputs.items() if k != "labels"}
    with torch.no_grad():
        ours = model(**inputs).logits
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        own = model(**given, labels=one.batch.inputs["labels"])
    real = one.predicted != PADDING
    torch.testing.assert_close(ours[real], own.logits[real], rtol=1e-4, atol=1e-4)
    linked = link_across(subject, [SentencePair(*pair) for pair in PAIRS], 4, lambda done, of: None)
    groups = {f"{way} {by}" for way in ("awi", "awo") for by in ("weight", "norm", "contribution")}
    assert {column.group for column in linked.columns} == groups
    for number, (source, target) in enumerate(PAIRS):
        assert linked.best[number].shape == (len(linked.columns), len(target))
        assert ((linked.best[number] >= -1) & (linked.best[number] < len(source))).all()


def test_pairs_longer_than_the_model_reads_are_left_out(bart):
    long = (tuple(f"w{i}" for i in range(tinyhf.LONGEST)), ("w1",))
    batches, left = cross_batches(bart, (*PAIRS, long), 16)
    assert left == (4,)
    assert {n for one in batches for n in one.pairs} == {0, 1, 2, 3}


def test_a_model_without_cross_attention_or_tokenizer_is_refused_by_name(bart):
    with pytest.raises(ModelError, match="BertForMaskedLM has no cross-attention") as error:
        check_crossing(load(tinyhf.bert(), tinyhf.tokenizer()))
    assert "Choose an encoder–decoder" in error.value.todo
    assert "layers 1, 2 with 4 heads" in error.value.reason
    with pytest.raises(ModelError, match="BartForConditionalGeneration came without a tokenizer"):
        check_crossing(load(tinyhf.bart()))
    bare = replace(bart, name="bare")
    blind = [replace(found, projections=replace(found.projections, w_o=None)) for found in bart.proof.weights]
    object.__setattr__(bare, "proof", replace(bart.proof, weights=tuple(blind)))
    with pytest.raises(ModelError, match="No norm can be computed in the cross-attention of bare"):
        link_across(bare, [SentencePair(*pair) for pair in PAIRS], 4, lambda done, all_: None)


def test_links_are_those_of_the_formulas_on_what_the_model_itself_gives(bart):
    """Weights from output_attentions, values from its own modules, words by hand, for both settings and all kinds."""
    pairs = [SentencePair(*pair) for pair in PAIRS]
    found = link_across(bart, pairs, 3, lambda done, all_: None)
    model, number = bart.model, 3
    source, target = PAIRS[number]
    ids = bart.tokenizer(" ".join(source), return_tensors="pt").input_ids
    aim = bart.tokenizer(" ".join(target), return_tensors="pt").input_ids
    given = torch.cat([torch.tensor([[3]]), aim[:, :-1]], 1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        made = model(input_ids=ids, decoder_input_ids=given, output_attentions=True)
    model.set_attn_implementation("sdpa")
    layers = {c.layer for c in found.columns}
    assert layers == {1, 2, 3}
    for i, column in enumerate(found.columns):
        weights = made.cross_attentions[column.layer - 1][0]
        inside = model.model.decoder.layers[column.layer - 1].encoder_attn
        values = inside.v_proj(made.encoder_last_hidden_state[0]).reshape(ids.shape[1], 4, -1)
        moved = torch.einsum("jhe,dhe->hjd", values, inside.out_proj.weight.reshape(-1, 4, values.shape[-1]))
        if column.kind == "weight":
            scores = weights.mean(0) if column.head is None else weights[column.head - 1]
        elif column.kind == "contribution":
            some = slice(None) if column.head is None else slice(column.head - 1, column.head)
            parts = torch.einsum("hij,hjd->ijd", weights[some], moved[some])
            scores = torch.einsum("ijd,id->ij", parts, parts.sum(1))
        elif column.head is None:
            scores = torch.einsum("hij,hjd->ijd", weights, moved).norm(dim=-1)
        else:
            scores = weights[column.head - 1] * moved[column.head - 1].norm(dim=-1)
        # [CLS] comes first on both sides: word w is the label at w + 1, and the input at w + 2
        rows = scores[2:] if column.setting == "awi" else scores[1 : len(target) + 1]
        place = rows[: len(target)].argmax(-1)
        wanted = torch.where((place >= 1) & (place <= len(source)), place - 1, -1)
        assert found.best[number][i].tolist() == wanted.tolist(), column


def row(
    rows: Any, measure: Any, group: Any = None, layer: Any = None, head: Any = None, subject: Any = "seed-1"
) -> Any:
    wanted = {"measure": measure, "group": group, "layer": layer, "head": head, "subject": subject}
    found = [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


def test_rows_are_the_rates_of_the_counts_with_intervals_over_pairs():
    scored = planted((0.5, 0.6), (0.8, 0.7))
    rows = alignment_rows(scored, CrossedBootstrap(0, 500))
    hits = scored.counts[0][..., 0].sum(0)
    for i, c in enumerate(COLUMNS):
        found = row(rows, "aer", c.group, c.layer, c.head)
        assert found["value"] == pytest.approx(1 - hits[i] / 400)
        assert found["low"] < found["value"] < found["high"]
        assert found["n"] == 40
    whole = row(rows, "aer", "awi norm")["value"] - row(rows, "aer", "awi weight")["value"]
    assert row(rows, "aer_difference", "awi")["value"] == pytest.approx(whole)
    parts = [row(rows, "aer_difference", "awi", layer)["value"] for layer in (1, 2)]
    assert np.mean(parts) == pytest.approx(whole)
    assert row(rows, "precision", "awo norm", 2)["value"] == pytest.approx(1 - row(rows, "aer", "awo norm", 2)["value"])
    assert row(rows, "aer", subject="diagonal")["value"] == pytest.approx(0.7)
    best = row(rows, "aer_best", "awi weight")
    assert (best["at"], best["value"]) == (2.0, row(rows, "aer", "awi weight", 2)["value"])
    assert row(rows, "aer_best", "awi norm")["at"] == 1.0
    lengths = {r["at"]: r["n"] for r in rows if r["measure"] == "aer_by_length" and r["group"] == "awi norm"}
    assert lengths == {10.0: 8, 15.0: 8, 20.0: 8, 30.0: 8, None: 8}


def test_of_several_models_there_is_a_mean_a_spread_and_each_alone():
    scored = planted((0.5, 0.6), (0.8, 0.7), models=3)
    rows = alignment_rows(scored, CrossedBootstrap(0, 500))
    name = "seed-1, seed-2, seed-3"
    alone = [row(rows, "aer", "awi norm", 1, subject=f"seed-{i}")["value"] for i in (1, 2, 3)]
    assert row(rows, "aer", "awi norm", 1, subject=name)["value"] == pytest.approx(np.mean(alone))
    spread = row(rows, "aer_sd", "awi norm", 1, subject=name)
    assert spread["value"] == pytest.approx(np.std(alone, ddof=1))
    assert spread["n"] == 3
    assert not [r for r in rows if r["measure"] == "aer_best" and r["subject"] == name and r.get("at")]


@pytest.mark.parametrize(
    ("weight", "norm", "models", "verdict"),
    [
        ((0.5, 0.6), (0.8, 0.8), 5, "supported"),
        ((0.8, 0.8), (0.5, 0.6), 5, "refuted"),
        ((0.7, 0.7), (0.7, 0.7), 5, "inconclusive"),
        ((0.5, 0.6), (0.8, 0.8), 4, "inconclusive"),
        ((0.5, 0.6), (0.8, 0.8), 1, "inconclusive"),
    ],
)
def test_the_claim_follows_the_planted_difference_over_models(weight, norm, models, verdict):
    scored = planted(weight, norm, models)
    table = judge_alignment(scored, {"models": "planted"})
    whole = table.row(0, named=True)
    assert (whole["claim"], whole["verdict"], whole["revision"]) == ("C-5", verdict, REVISION)
    parts = table.filter(pl.col("part").is_not_null())
    assert len(parts) == 4
    assert parts["decides"].to_list() == [True, False, False, False]
    assert parts["n"].to_list() == [models] * 4
    assert whole["effect"] == parts["effect"][0]
    if models > 1:
        means = [list(COLUMNS).index(c) for c in COLUMNS if c.setting == "awi" and c.head is None]
        rates = [error_rates(one.sum(0))[means] for one in scored.counts]
        kinds = [COLUMNS[i].kind for i in means]
        signs = np.array([1 if kind == "norm" else -1 for kind in kinds])
        own = [float(2 * np.mean(signs * rate)) for rate in rates]
        test: Any = scipy.stats.ttest_1samp(own, 0.0)
        assert parts["effect"][0] == pytest.approx(np.mean(own))
        assert parts["p"][0] == pytest.approx(min(1.0, float(test.pvalue)))
        assert (
            whole["p_holm"] == whole["p"]
        )  # alone in its family: the other claims of its source are about given models


def test_few_models_or_models_that_do_not_align_decide_nothing():
    few = judge_alignment(planted((0.5, 0.6), (0.8, 0.8), 3), {}).row(0, named=True)
    assert few["reason"] == "5 models trained alike are asked for, 3 given"
    one = judge_alignment(planted((0.5, 0.6), (0.8, 0.8)), {}).row(0, named=True)
    assert one["reason"] == "one model gives numbers and no verdict"
    lost = judge_alignment(planted((0.1, 0.1), (0.2, 0.2), 5), {}).row(0, named=True)
    assert lost["verdict"] == "inconclusive"
    assert "5 of 5 are no better than the diagonal (AER 0.700)" in lost["reason"]
    assert lost["effect"] < 0
    three = cards(judge_alignment(planted((0.5, 0.6), (0.8, 0.8), 3), {}))[0]
    assert three.facts[:2] == (("Models (n)", "3"), ("Models needed", "5"))


def test_the_first_pair_that_is_short_enough_is_shown():
    linked, pairs = pictured([3, 5, 0])
    pairs[0] = SentencePair(("a",), ("b",))
    shown = choose_picture(linked, pairs, range(3), None)
    assert shown is not None
    assert (shown["title"], shown["layers"]) == ("Pair 2", {"weight": 2, "norm": 2})
    assert shown["norm"] == [[i, i] for i in range(1, 6)]
    assert shown["weight"] == [[1, 1], [2, 2]]
    chosen = choose_picture(linked, pairs, range(3), {("awi", "weight"): 3, ("awi", "norm"): 1})
    assert chosen is not None
    assert chosen["layers"] == {"weight": 3, "norm": 1}
    assert choose_picture(linked, pairs, range(1), None) is None
