"""Laws of corruption: the pieces give the text back, lengths and marks are as defined, and what is to be predicted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trisect.core.errors import CorpusError
from trisect.text.birth_places import IGNORED, check_block, draw_span, pretraining_example, question_example

MASK = 99
texts = st.text(st.characters(exclude_characters="\N{WHITE SQUARE}"), max_size=200)
blocks = st.integers(5, 160)
seeds = st.integers(0, 2**32 - 1)
ids = st.lists(st.integers(0, 90), min_size=1, max_size=40)


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


@given(ids, ids)
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
