"""Laws of alignments: the error rate on cases worked by hand, words from pieces, and scores that are the sums they stand for."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.traces import random_trace

from trisect.core.errors import CorpusError
from trisect.measure.alignment import (
    aer,
    as_links,
    best_links,
    count_hits,
    diagonal,
    error_rates,
    gold_tables,
    precisions,
    recalls,
    views,
    word_scores,
)

FAR = 100  # more than any index drawn
LINKS = st.frozensets(st.tuples(st.integers(0, 6), st.integers(0, 5)), max_size=12)
CORPORA = st.lists(st.tuples(LINKS, LINKS, LINKS), min_size=1, max_size=5)


def by_hand(links, sure, possible):
    """The formula, word for word."""
    possible = set(possible) | set(sure)
    return 1 - (len(set(links) & set(sure)) + len(set(links) & possible)) / (len(links) + len(sure))


@pytest.mark.parametrize(
    ("links", "sure", "possible", "rate"),
    [
        ({(0, 0), (1, 1), (2, 1), (3, 0)}, {(0, 0), (1, 1), (2, 2)}, {(2, 1)}, 1 - (2 + 3) / 7),
        # the example of the documentation of NLTK's alignment_error_rate, which has sure links alone
        ({(0, 0), (1, 2), (2, 1)}, {(0, 0), (1, 1), (2, 2)}, {(0, 0), (1, 1), (2, 2)}, 2 / 3),
    ],
)
def test_cases_worked_by_hand(links, sure, possible, rate):
    assert aer(links, sure, possible) == pytest.approx(rate, abs=1e-12)
    assert aer([links], [sure], [possible]) == aer(links, sure, possible)


@given(LINKS, LINKS, LINKS)
def test_the_rate_is_the_formula_from_0_to_1_and_0_exactly_where_nothing_is_wrong(links, sure, possible):
    if not links and not sure:
        with pytest.raises(CorpusError, match="no link and no sure link"):
            aer(links, sure, possible)
        return
    rate = aer(links, sure, possible)
    assert rate == pytest.approx(by_hand(links, sure, possible), abs=1e-12)
    assert aer(list(links) or set(), frozenset(sure), list(possible)) == rate
    assert 0 <= rate <= 1
    assert (rate == 0) == (sure <= links and links <= sure | possible)


@given(CORPORA)
def test_a_corpus_is_one_long_sentence_whatever_its_order(corpus):
    def joined(which):
        return {(s + FAR * i, t + FAR * i) for i, row in enumerate(corpus) for s, t in row[which]}

    whole = tuple(joined(which) for which in range(3))
    if not whole[0] and not whole[1]:
        return
    lists = [list(some) for some in zip(*corpus, strict=True)]
    assert aer(*lists) == pytest.approx(aer(*whole), abs=1e-12)
    assert aer(*(some[::-1] for some in lists)) == aer(*lists)


PIECES = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def pieces_of(sizes, ends=1):
    """The word of every piece, with special ones behind."""
    return torch.tensor([i for i, size in enumerate(sizes) for _ in range(size)] + [-1] * ends)


@given(PIECES, PIECES, st.integers(0, 1000))
def test_words_get_the_sum_over_source_pieces_and_the_mean_over_target_pieces(source, target, seed):
    draw = torch.Generator().manual_seed(seed)
    across, down = pieces_of(source, 2), pieces_of(target)
    scores = torch.rand(3, len(down), len(across), generator=draw, dtype=torch.float64)
    found = word_scores(scores, down, across, (len(source), len(target)))
    assert found.shape == (3, len(target), len(source) + 2)
    ends = [0, *accumulate(source)]
    rows = [0, *accumulate(target)]
    for j in range(len(target)):
        mine = scores[:, rows[j] : rows[j + 1]].mean(1)
        wanted = [mine[:, ends[i] : ends[i + 1]].sum(-1) for i in range(len(source))] + [mine[:, -2], mine[:, -1]]
        torch.testing.assert_close(
            found[:, j], torch.stack(wanted, -1), rtol=0, atol=1e-12
        )  # sums of at most 9 numbers


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_planted_links_are_found_and_the_end_of_the_sentence_is_none(source, target, data):
    planted = data.draw(st.lists(st.integers(0, source), min_size=target, max_size=target))
    scores = 0.4 * torch.rand(target + 1, source + 1, generator=torch.Generator().manual_seed(source)).double()
    for j, i in enumerate(planted):
        scores[j, i] = 0.5
    whole = word_scores(scores, pieces_of([1] * target), pieces_of([1] * source), (source, target))
    best = best_links(whole, source)
    assert best.tolist() == [i if i < source else -1 for i in planted]
    assert as_links(best) == {(i, j) for j, i in enumerate(planted) if i < source}


def test_a_word_without_a_piece_gets_no_link_and_takes_none():
    scores = torch.tensor([[0.1, 0.6, 0.3], [0.7, 0.1, 0.2]], dtype=torch.float64)
    down, across = torch.tensor([0, -1]), torch.tensor([1, 2, -1])
    whole = word_scores(scores, down, across, (3, 2))
    assert whole[:, 0].tolist() == [0, 0]
    assert best_links(whole, 3).tolist() == [2, -1]


@given(st.integers(1, 5), st.integers(1, 6), LINKS, LINKS, st.integers(0, 1000))
def test_counts_in_tables_are_counts_of_sets(source, target, sure, possible, seed):
    words = (source, target)
    sure, possible = ({(s, t) for s, t in some if s < source and t < target} for some in (sure, possible))
    best = np.random.default_rng(seed).integers(-1, source, size=(2, target))
    counts = count_hits(best, gold_tables(sure, possible, words))
    for row, found in zip(best, counts, strict=True):
        links = as_links(row)
        assert found.tolist() == [len(links & sure), len(links & (sure | possible)), len(links), len(sure)]
        if links or sure:
            assert float(error_rates(found)) == pytest.approx(aer(links, sure, possible), abs=1e-12)
        else:
            assert math.isnan(float(error_rates(found)))
        if links:
            assert float(precisions(found)) == len(links & (sure | possible)) / len(links)
        if sure:
            assert float(recalls(found)) == len(links & sure) / len(sure)


@given(st.integers(1, 30), st.integers(1, 30))
def test_the_diagonal_rises_from_the_first_word_to_the_last(source, target):
    found = diagonal((source, target))
    assert len(found) == target
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0
    assert found.max() <= source - 1
    if source == target:
        assert found.tolist() == list(range(source))
    if target >= source:
        assert set(found.tolist()) == set(range(source))


def test_the_diagonal_takes_the_middle_of_a_word():
    assert diagonal((10, 3)).tolist() == [1, 5, 8]
    assert diagonal((3, 7)).tolist() == [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("groups", [None, 2])
def test_scores_are_weights_and_lengths_of_what_is_added(groups):
    """By the definitions, vector by vector; float64, sums of a dozen numbers: 1e-12."""
    trace = random_trace(3, queries=4, keys=6, heads=4, groups=groups, padding=2)
    seen = views(trace)
    w_o = trace.projections.w_o
    assert w_o is not None
    vectors = torch.einsum("bhts,bhse,hed->bhtsd", trace.weights, trace.values, w_o)
    lengths = torch.cat([vectors.sum(1, keepdim=True).norm(dim=-1), vectors.norm(dim=-1)], 1)
    torch.testing.assert_close(seen.norm, lengths, rtol=0, atol=1e-12)
    weights = torch.cat([trace.weights.mean(1, keepdim=True), trace.weights], 1)
    torch.testing.assert_close(seen.weight, weights, rtol=0, atol=1e-12)
    assert not seen.weight[-1, :, :, -2:].any()
    assert not seen.norm[-1, :, :, -2:].any()
    assert seen.norm[0, :, :, -2:].all()


def test_norms_differ_from_weights_where_values_do():
    """With values of one length both rank the same; a value of length 0 loses its links by norm alone."""
    trace = random_trace(5, texts=1, queries=4, keys=5, heads=1)
    trace.v[0, 0] /= views(trace).norm[0, 1].max(0).values[:, None]
    w_o = trace.projections.w_o
    assert w_o is not None
    trace.v[0, 0] /= (trace.v[0, 0] @ w_o[0]).norm(dim=-1, keepdim=True)
    seen = views(trace)
    torch.testing.assert_close(seen.norm[:, 1], seen.weight[:, 1], rtol=0, atol=1e-12)
    most = int(seen.weight[0, 1, 0].argmax())
    trace.v[0, 0, most] = 0
    muted = views(trace)
    assert int(muted.weight[0, 1, 0].argmax()) == most
    assert not muted.norm[0, 1, :, most].any()
