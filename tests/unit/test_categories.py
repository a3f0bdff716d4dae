"""Categories of tokens, whatever a tokenizer calls and marks them."""

from __future__ import annotations

import torch
from tests.traces import random_side

from trisect.measure.sums import CATEGORIES, bare, find_categories


def named(tokens, special, causal=False):
    side = random_side(tuple(map(tuple, tokens)), torch.tensor(special))
    found = find_categories(side, causal)
    return [[CATEGORIES[c] for c in row] for row in found.tolist()]


def test_an_encoders_tokens():
    special = [[True, False, False, True], [True, False, True, False]]
    assert named([["[CLS]", "a", ".", "[SEP]"], ["<s>", ",", "</s>", ""]], special) == [
        ["cls", "other", "punctuation", "sep"],
        ["cls", "punctuation", "sep", "other"],
    ]


def test_two_segments_have_two_separators_and_a_lone_end_is_one():
    assert named([["[CLS]", "a", "[SEP]", "b", "[SEP]"]], [[True, False, True, False, True]]) == [
        ["cls", "other", "sep", "other", "sep"]
    ]
    assert named([["a", "</s>"]], [[False, True]]) == [["other", "sep"]]


def test_a_decoders_first_token_special_or_not():
    assert named([["<s>", "a", "."]], [[True, False, False]], True) == [["first", "other", "punctuation"]]
    assert named([[".", "a", "."]], [[False, False, False]], True) == [["first", "other", "punctuation"]]


def test_padding_on_the_left_belongs_to_nothing():
    assert named([["", "a", "b"]], [[False, False, False]], True) == [["other", "first", "other"]]
    assert named([["", "[CLS]", "b"]], [[False, True, False]]) == [["other", "cls", "other"]]


def test_marks_of_a_words_start_are_not_part_of_it():
    assert [bare(t) for t in ("Ġ.", "▁,", "##.", " .", "...", "a.")] == [".", ",", ".", ".", "...", "a."]
