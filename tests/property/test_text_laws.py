"""Laws of corpora, windows, readers and corruption."""

import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trisect.core.errors import CorpusError
from trisect.core.spec import Text
from trisect.text.birth_places import IGNORED, check_block, draw_span, pretraining_example, question_example
from trisect.text.corpus import Corpus, Split, batch, sample_steps, steps, unigram_loss
from trisect.text.generated import stem
from trisect.text.readers import basic_english, basic_english_spans

ids = st.lists(st.integers(0, 7), min_size=2, max_size=60)
words = ("a", "b", "c", "d", "<unk>", "e", "f", "g")


def corpus(train, valid, name="x", notes=()):
    def split(tokens):
        array = np.array(tokens, np.int32)
        return Split(array, {"pos": np.where(array == 4, -1, array % 3).astype(np.int16)})

    return Corpus.make(name, words, {"pos": ("X", "Y", "Z")}, {"train": split(train), "valid": split(valid)}, notes)


@given(st.integers(2, 300), st.integers(1, 9), st.integers(1, 40))
def test_windows_cover_every_row_but_the_last_once_and_in_order(n, columns, window):
    part = Split(np.arange(n, dtype=np.int32), {"l": np.arange(n, dtype=np.int16)})
    if n < 2 * columns:
        return
    rows = n // columns
    batches = [batch(part, columns, window, i, ("l",)) for i in range(steps(part, columns, window))]
    inputs = np.concatenate([b.inputs for b in batches], axis=1)
    assert (inputs == np.arange(columns * rows).reshape(columns, rows)[:, :-1]).all()
    assert batch(part, columns, window, 0).labels == {}
    for b in batches:
        assert b.inputs.dtype == b.labels["l"].dtype == np.int64
        assert (b.targets == b.inputs + 1).all()
        assert (b.labels["l"] == b.targets).all()
    assert {b.inputs.shape[1] for b in batches[:-1]} <= {window}


@given(st.integers(2, 300), st.integers(1, 9), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 400)))
def test_a_sample_is_rising_and_within_the_split(n, columns, window, tokens):
    part = Split(np.zeros(n, np.int32))
    if n < 2 * columns:
        return
    sample = sample_steps(part, columns, window, tokens)
    assert sample
    assert list(sample) == sorted(set(sample))
    assert sample[-1] < steps(part, columns, window)
    if tokens is not None and rows_with_a_next(n, columns) >= window:
        assert all(batch(part, columns, window, i).inputs.shape[1] == window for i in sample)


def rows_with_a_next(n, columns):
    return n // columns - 1


@given(ids, ids, st.integers(1, 4))
def test_cutting_twice_is_cutting_once(train, valid, least):
    text = Text(min_count=least)
    once = corpus(train, valid).cut(text)
    assert once.cut(text).fingerprint == once.fingerprint
    assert once.cut(text).vocabulary == once.vocabulary


@given(ids, ids, st.integers(1, 4))
def test_a_kept_word_is_frequent_in_train_and_every_other_word_is_unk(train, valid, least):
    cut = corpus(train, valid).cut(Text(min_count=least))
    for split, before in (("train", train), ("valid", valid)):
        after = [cut.vocabulary[i] for i in cut.splits[split].tokens]
        for old, new in zip(before, after, strict=True):
            frequent = train.count(old) >= least
            assert new == (words[old] if frequent else "<unk>")
    counts = np.bincount(cut.splits["train"].tokens, minlength=len(cut.vocabulary))
    assert sorted(zip(-counts, cut.vocabulary, strict=True)) == list(zip(-counts, cut.vocabulary, strict=True))


@given(ids, ids, st.data())
def test_the_fingerprint_is_of_the_content_and_of_nothing_else(train, valid, data):
    here = corpus(train, valid)
    assert here.fingerprint == corpus(train, valid, "y", ("a note",)).fingerprint
    assert re.fullmatch("[0-9a-f]{16}", here.fingerprint)
    at = data.draw(st.integers(0, len(train) - 1))
    other = [*train[:at], (train[at] + 1) % 8, *train[at + 1 :]]
    assert corpus(other, valid).fingerprint != here.fingerprint
    for vocabulary, labels in (((*words[:-1], "h"), here.labels), (words, {"pos": ("X", "Y", "W")})):
        assert Corpus.make("x", vocabulary, labels, here.splits).fingerprint != here.fingerprint


@given(ids, ids)
def test_the_unigram_loss_is_least_on_what_it_was_counted_on(train, valid):
    here = corpus(train, valid)
    uniform = np.log(len(words))
    assert 0 < unigram_loss(here, here.splits["train"].tokens) <= uniform + 1e-12  # 1e-12: rounding of the sum


letters = st.one_of(st.sampled_from([*string.punctuation, *"aB İß\u00a0\u2003\t", "<br />", "<BR />"]), st.characters())


@given(st.lists(letters).map("".join))
def test_the_words_of_basic_english_are_where_its_spans_say(line):
    assert [line[a:b].replace('"', "") for a, b in basic_english_spans(line)] == basic_english(line)


@pytest.mark.parametrize("syllables", [2, 3])
def test_stems_are_all_different_and_never_look_inflected(syllables):
    stems = [stem(i, syllables) for i in range(600)]
    assert len(set(stems)) == 600
    assert not any(s.endswith("s") for s in stems)


MASK = 99
texts = st.text(st.characters(exclude_characters="\N{WHITE SQUARE}"), max_size=200)
blocks = st.integers(5, 160)
seeds = st.integers(0, 2**32 - 1)
word_ids = st.lists(st.integers(0, 90), min_size=1, max_size=40)


@given(texts, blocks, seeds)
def test_what_is_read_holds_two_marks_and_every_character_once(text, block, seed):
    mask = ord("\N{WHITE SQUARE}")
    span = draw_span(len(text), block, np.random.default_rng(seed))
    example = pretraining_example([*map(ord, text)], span, mask)
    assert example.ids[1:] == example.labels[:-1]  # every next id is to be predicted
    joined = "".join(map(chr, (*example.ids, example.labels[-1])))
    before, after, moved = joined.split(chr(mask))
    assert before + moved + after == text[: span.length]
    assert moved == text[span.start : span.end]
    assert len(joined) == span.length + 2
    assert example.size == span.length + 1 <= max(block, 5)


@given(st.integers(3, 400), blocks, seeds)
def test_the_span_lies_inside_what_is_kept(size, block, seed):
    span = draw_span(size, block, np.random.default_rng(seed))
    assert min(4, size) <= span.length <= min(size, block * 7 / 8)
    assert 1 <= span.start < span.end < span.length  # its first and its last character never move
    assert span.end - span.start <= max(1, span.length / 2 - 1)


@given(st.integers(0, 2), blocks, seeds)
def test_a_text_without_a_middle_stays_whole(size, block, seed):
    span = draw_span(size, block, np.random.default_rng(seed))
    assert span == (size, size, size)
    assert pretraining_example([1, 2][:size], span, MASK).ids == (*[1, 2][:size], MASK)


@given(st.integers(3, 200), blocks, seeds)
def test_a_cut_is_a_function_of_the_generator(size, block, seed):
    one, two = (draw_span(size, block, np.random.default_rng(seed)) for _ in range(2))
    assert one == two


def test_lengths_are_uniform_spans_are_a_quarter_on_average_and_lie_anywhere():
    draw = np.random.default_rng(0)
    spans = [draw_span(1000, 64, draw) for _ in range(40_000)]
    length, start, end = np.array(spans).T
    assert (
        stats.chisquare(np.bincount(length, minlength=57)[4:]).pvalue > 1e-3
    )  # one draw in a thousand fails, not ours
    assert (length.min(), length.max()) == (4, 56)
    # of an even length n the width is uniform from 1 to n/2 − 1, a quarter of n on average; 5 standard errors
    for n in (16, 40, 56):
        width = (end - start)[length == n]
        assert abs(width.mean() - n / 4) < 5 * (n / 2 - 1) / np.sqrt(12 * len(width))
        assert (width.min(), width.max()) == (1, n / 2 - 1)
        narrow = start[(length == n) & (end - start == 1)]
        assert (narrow.min(), narrow.max()) == (1, n - 2)


@given(word_ids, word_ids)
def test_of_a_question_only_the_answer_and_its_end_are_to_be_predicted(question, answer):
    example = question_example(question, answer, MASK)
    assert example.ids == (*question, MASK, *answer)
    assert example.labels == (*[IGNORED] * len(question), *answer, MASK)
    # what is to be predicted at the first mask is the first of the answer
    assert example.labels[example.ids.index(MASK)] == answer[0]


@given(st.lists(texts, max_size=5), st.integers(1, 200))
def test_a_block_holds_the_longest_or_is_refused(some, block):
    longest = max(map(len, some), default=0)
    if longest <= block:
        check_block(some, block, "The question")
        return
    with pytest.raises(CorpusError) as error:
        check_block(some, block, "The question")
    shown = next(text for text in some if len(text) == longest)[:60]
    assert error.value.problem == f"A block of {block} characters."
    assert error.value.reason == f"The question {shown!r} takes {longest} characters with its marks."
    assert error.value.todo == f"Give a block of at least {longest}."
