"""Probes and erasers of studies are fitted on held-out text, cross-fitted over articles."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from tests import tiny

from trisect.core.errors import StudyError
from trisect.core.methods import Probe
from trisect.core.site import Site
from trisect.experiments.study import probing, words
from trisect.experiments.study.plan import join_ledger
from trisect.experiments.study.probing import Fold, assign_folds, probe, read_folds
from trisect.experiments.study.rows import StudyRows
from trisect.lab.folder import Folder
from trisect.lm.feed import evaluation_pieces
from trisect.lm.fleet import initial, layout, views
from trisect.lm.rewind import Curve
from trisect.text.corpus import Corpus, Split
from trisect.text.sources import article_starts

TRAINING = replace(tiny.TRAINING, columns=4, eval_columns=4)
MODEL = replace(tiny.MODEL, width=16)
SITE, TOKENS = Site.parse("q@1"), 2_000
WORDS = ("a", "b", "c", "d")


def overfitted(random=False):
    """A text of four words. In train a and b tell the next word's label, as if learnt by heart; in validation c and d do."""
    rng, splits = np.random.default_rng(1), {}
    for name, telling in (("train", (0, 1)), ("valid", (2, 3))):
        tokens = rng.integers(4, size=2_400).astype(np.int32)
        label = rng.integers(2, size=2_400)
        if not random:
            for value, word in enumerate(telling):
                label[1:][tokens[:-1] == word] = value
        splits[name] = Split(tokens, {"y": label.astype(np.int16)})
    return Corpus.make("overfitted", WORDS, {"y": ("n", "m")}, splits)


def weights(corpus):
    flat = initial(MODEL, len(corpus.vocabulary), 1).double()
    return {n: v[0] for n, v in views(flat[None], layout(MODEL, len(corpus.vocabulary))).items()}


def bits(corpus):
    found = probe(weights(corpus), MODEL, corpus, TRAINING, "y", ("linear",), (SITE,), 1, TOKENS)
    return {row.measure: row.value or 0.0 for row in found}["probe_linear_bits"]


def test_a_probe_of_an_over_fitted_text_finds_what_held_out_text_tells():
    assert bits(overfitted()) > 0.4  # half a bit: two words of four tell the label, others than in train


def test_an_eraser_of_an_over_fitted_text_takes_the_label_out_of_held_out_text():
    corpus, left = overfitted(), []
    final = weights(corpus)
    for fold in read_folds(corpus, TRAINING, "y", 1, TOKENS, torch.device("cpu")):
        changed = dict(final)
        moments = probing.fit(final, MODEL, fold.fit, SITE, "y", 2)
        assert moments.linear_share() > 0.3
        probing.apply(changed, SITE, moments.leace(), MODEL)
        left.append(probing.fit(changed, MODEL, fold.scored, SITE, "y", 2).linear_share())
    assert float(np.mean(left)) < 0.05


def test_nothing_is_found_of_labels_that_say_nothing():
    corpus = overfitted(random=True)
    fold = read_folds(corpus, TRAINING, "y", 1, TOKENS, torch.device("cpu"))[0]
    with_itself = probing.fit(weights(corpus), MODEL, fold.scored, SITE, "y", 2).linear_share()
    assert with_itself > 0.002  # fitted and scored on the same tokens
    assert bits(corpus) < 0.002


def test_an_erasure_measures_validation_and_shrinkage_changes_what_is_taken_out():
    corpus, rises = overfitted(), {}
    for shrinkage in (True, False):
        rows = probing.erase(weights(corpus), MODEL, corpus, TRAINING, SITE, "y", 1, 1, 60, shrinkage=shrinkage)
        assert {r.split for r in rows} == {"valid"}
        values = {r.measure: r.value for r in rows}
        assert values["erase_rank"] == 1
        rises[shrinkage] = values["erase_rise_nats"]
    assert rises[True] != rises[False]


TEXT = "= one = w w . = = past = = w w . = = end = = = two = w w w x = 3 w . = = = deep = = = w . = three x = w . = four = w"
VOCABULARY = tuple(dict.fromkeys(TEXT.split()))


def test_articles_begin_at_headings_of_the_first_level():
    tokens = np.array([VOCABULARY.index(w) for w in TEXT.split()])
    found = [TEXT.split()[i + 1] for i in article_starts(tokens, VOCABULARY)]
    # headings under a title, formulas and marks after a word that ends nothing begin no article
    assert found == ["one", "two", "three", "four"]
    assert not len(article_starts(tokens, ("w", "v")))


def articles_of(lengths):
    """A text of articles of so many words, each of which has a label."""
    text = [word for n in lengths for word in ("=", "title", "=", *["w", "v"] * ((n - 4) // 2), ".")]
    vocabulary = ("w", "v", "=", "title", ".")
    tokens = np.array([vocabulary.index(word) for word in text], np.int32)
    return Corpus.make(
        "marked",
        vocabulary,
        {"y": ("n", "m")},
        {s: Split(tokens, {"y": (tokens % 2).astype(np.int16)}) for s in ("train", "valid")},
    )


def positions(pieces):
    return {int(s): int(s) + p.inputs.shape[1] for p in pieces for s in p.starts}


def test_folds_are_whole_articles_and_no_row_is_in_two():
    corpus = articles_of([200] * 12)
    pieces = evaluation_pieces(corpus, TRAINING, "valid", ("y",), "cpu")
    folds = assign_folds(corpus, pieces, "y")
    begun = article_starts(corpus.splits["valid"].tokens, corpus.vocabulary)
    seen = [positions(fold.scored) for fold in folds]
    for fold, own in zip(folds, seen, strict=True):
        assert positions(fold.fit).keys() == set().union(*(other for other in seen if other is not own))
        assert set(fold.articles) == {int(np.searchsorted(begun, s, side="right")) for s in own}
    touched = [{int(a) for a in fold.articles} for fold in folds]
    assert not any(a & b for i, a in enumerate(touched) for b in touched[:i])
    every = positions(pieces)
    left_out = every.keys() - set().union(*seen)
    assert len(left_out) <= 2  # at most one row lies across each of two cuts


def test_a_text_without_headings_is_cut_into_stretches_of_equal_share():
    corpus = overfitted()
    folds = assign_folds(corpus, evaluation_pieces(corpus, TRAINING, "valid", ("y",), "cpu"), "y")
    sizes = [sum(p.targets.numel() for p in fold.scored) for fold in folds]
    assert max(sizes) - min(sizes) <= 4 * TRAINING.window
    ends = [positions(fold.scored) for fold in folds]
    assert all(max(a.values()) <= min(b) for a, b in itertools.pairwise(ends))


def dealt(lengths):
    corpus = articles_of(lengths)
    return assign_folds(corpus, evaluation_pieces(corpus, TRAINING, "valid", ("y",), "cpu"), "y")


def share(folds):
    sizes = [sum(int((p.labels["y"] >= 0).sum()) for p in fold.scored) for fold in folds]
    return max(sizes) / sum(sizes)


@pytest.mark.parametrize(
    ("lengths", "most"), [([1000, 200, 200, 200, 1000, 200], 0.45), ([1000, 200, 200, 800, 200], 0.5)]
)
def test_uneven_articles_are_dealt_as_evenly_as_they_can_be(lengths, most):
    folds = dealt(lengths)  # of the first, both cuts of equal shares are next to one article's beginning
    assert all(fold.by_article for fold in folds)
    assert share(folds) < most


# more than half of the text lies in one article, and what follows it is less than a tenth, as in 20,000 words of WikiText-2
UNEVEN = [160, 250, 90, 140, 1080, 150]


def test_articles_of_a_fold_may_lie_apart_where_neighbours_are_uneven():
    folds = dealt(UNEVEN)
    assert all(fold.by_article for fold in folds)
    touched = [set(fold.articles.tolist()) for fold in folds]
    assert {5} in touched  # the longest alone, and no article in two folds
    assert sorted(a for own in touched for a in own) == [1, 2, 3, 4, 5, 6]
    corpus = articles_of(UNEVEN)
    begun = [*article_starts(corpus.splits["valid"].tokens, corpus.vocabulary), sum(UNEVEN) + 1]
    for fold, own in zip(folds, touched, strict=True):  # not a token of any other article is scored
        for start, stop in positions(fold.scored).items():
            assert {int(np.searchsorted(begun, at, side="right")) for at in range(start, stop)} <= own
    assert share(folds) == pytest.approx(1080 / sum(UNEVEN), abs=0.03)


@pytest.mark.parametrize("length", [20, 60])
def test_short_articles_stay_together_where_the_longest_is_alone(length):
    short = [length] * (2_000 // length)
    folds = dealt([*short, 3_000, *short[: len(short) // 4]])
    assert all(fold.by_article for fold in folds)
    assert 0.5 < share(folds) < 0.6
    kept = sum(int((p.labels["y"] >= 0).sum()) for fold in folds for p in fold.scored)
    assert kept > 0.95 * (3_000 + 1.2 * 2_000)
    touched = [set(fold.articles.tolist()) for fold in folds]
    assert {len(short) + 1} in touched


@pytest.mark.parametrize("lengths", [[2000, 200, 200, 200], [1200, 1200], [1200, 1200, 80]])
def test_where_no_three_parts_of_whole_articles_are_even_rows_are_dealt_and_are_the_units(lengths):
    folds = dealt(lengths)
    assert not any(fold.by_article for fold in folds)
    assert share(folds) < 0.4
    units = np.concatenate([fold.articles for fold in folds])
    assert len(np.unique(units)) == len(units)


@pytest.mark.parametrize(
    ("lengths", "said"), [([200] * 12, "by whole articles)"), ([2000, 200, 200], "by rows of a window")]
)
def test_what_was_dealt_reaches_the_captions(lengths, said):
    corpus = articles_of(lengths)
    found = probe(weights(corpus), MODEL, corpus, TRAINING, "y", ("linear",), (SITE,), 1, TOKENS)
    found += probing.erase(weights(corpus), MODEL, corpus, TRAINING, SITE, "y", 1, 1, TOKENS)
    measured = pl.DataFrame(
        [row._asdict() | {"label": "y", "subject": "run", "seed": 1, "status": "finished"} for row in found]
    )
    rows = replace(StudyRows.of({}, {}), sites=measured)
    for kind in ("probe", "erase"):
        assert said in words.fit_words(rows, kind, "y")
    assert ("which are the units of intervals too" in words.fit_words(rows, "erase", "y")) == ("rows" in said)


def test_rows_of_one_article_count_once_in_an_interval():
    rng = np.random.default_rng(2)
    nats = np.stack([rng.normal(3, 1, 8), np.full(8, 2.0)])

    def width(times, articles):
        rows = np.repeat(nats, times, 1)
        curve = Curve(rows.mean(1), rows[:, 0], rows.shape[1], rows, np.ones(rows.shape[1], int))
        _, low, high, _ = probing._rises([curve], [Fold([], [], 1, articles, True)])
        return high[0] - low[0]

    alike = width(5, np.repeat(np.arange(8), 5))
    assert alike == pytest.approx(width(1, np.arange(8)))
    assert width(5, np.arange(40)) < alike / 2  # what taking rows for units would say


def test_random_maps_are_one_number_in_all_of_a_study(tmp_path):
    head = Site.parse("q@1.h1")
    first, other = (
        replace(tiny.EXPERIMENT, attack=None, probe=Probe((head,), ("pos",), random_maps=n)) for n in (2, 3)
    )
    ledger = join_ledger(Folder(tmp_path), [first], "text")
    assert join_ledger(Folder(tmp_path), [first], "text") == ledger
    with pytest.raises(StudyError, match=r"probe.random_maps \(there 2, here 3\)"):
        join_ledger(Folder(tmp_path), [other], "text")
    assert Folder(tmp_path).read_ledger() == ledger


def test_rows_that_say_nothing_of_folds_are_of_probes_that_were_fitted_on_train():
    for kind in ("probe", "erase"):
        assert words.fit_words(StudyRows.of({}, {}), kind, "pos") == "fitted on the text that the model was trained on"
