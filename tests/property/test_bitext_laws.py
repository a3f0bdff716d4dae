"""Bitexts: links come back as they were written, a file shows what it counts from, and the embedded pairs are what they say."""

from collections import defaultdict

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trisect.core.errors import CorpusError
from trisect.core.schema import read, to_json_data
from trisect.hf.small.translator import TranslationLoss, TranslatorShape, encode, learn_tokenizer, make_model
from trisect.text.bitext import Bitext, SentencePair, _format_links, make_bitext, read_links, write_links
from trisect.text.generated import OBJECT, STOP, bitext_corpus

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def gold(draw):
    """Lengths of some sentence pairs, and for each its sure and its possible links, counted from 0."""
    lengths, rows = [], []
    for _ in range(draw(st.integers(1, 4))):
        source, target = draw(st.integers(1, 6)), draw(st.integers(1, 6))
        link = st.tuples(st.integers(0, source - 1), st.integers(0, target - 1))
        sure, more = draw(st.frozensets(link, max_size=5)), draw(st.frozensets(link, max_size=5))
        lengths.append((source, target))
        rows.append((sure, sure | more))
    return lengths, rows


def signs(lengths, rows, base):
    """What a file that counts from `base` shows: an index 0, an index as large as its sentence."""
    ends = [
        (i + base, n)
        for (_, links), size in zip(rows, lengths, strict=True)
        for one in links
        for i, n in zip(one, size, strict=True)
    ]
    return any(i == 0 for i, _ in ends), any(i == n for i, n in ends)


@QUICK
@given(gold(), st.sampled_from([0, 1]), st.sampled_from(["links.pharaoh", "links.talp"]))
def test_links_come_back_as_they_were_written(tmp_path, given_gold, base, name):
    lengths, rows = given_gold
    write_links(tmp_path / name, rows, base)
    assert read_links(tmp_path / name, lengths, base)[:2] == (tuple(rows), base)


@QUICK
@given(gold(), st.sampled_from([0, 1]))
def test_a_file_is_undecided_exactly_where_it_shows_neither_sign(tmp_path, given_gold, base):
    lengths, rows = given_gold
    path = tmp_path / "links.pharaoh"
    write_links(path, rows, base)
    zero, last = signs(lengths, rows, base)
    assert not (zero and last)  # a right file never contradicts itself
    if zero or last:
        assert base == (0 if zero else 1)
        assert read_links(path, lengths)[:2] == (tuple(rows), base)
        with pytest.raises(CorpusError):
            read_links(path, lengths, 1 - base)
    elif any(links for _, links in rows):
        with pytest.raises(CorpusError):
            read_links(path, lengths)


@QUICK
@given(gold(), st.sampled_from([0, 1]))
def test_a_link_behind_the_last_word_is_refused_by_either_count(tmp_path, given_gold, base):
    lengths, rows = given_gold
    path = tmp_path / "links.talp"
    source, target = lengths[-1]
    (sure, possible), outside = rows[-1], (source + 1 - base, target - 1)
    write_links(path, [*rows[:-1], (sure | {outside}, possible)], base)
    with pytest.raises(CorpusError):
        read_links(path, lengths, base)


@QUICK
@given(gold(), st.integers(0, 1))
def test_a_possible_link_that_is_sure_is_written_once(given_gold, base):
    for sure, possible in given_gold[1]:
        assert _format_links(sure, possible, base) == _format_links(sure, possible - sure, base)
        assert len(_format_links(sure, possible, base).split()) == len(possible)


WORDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple)
PAIRS = st.lists(st.tuples(WORDS, WORDS).map(lambda both: SentencePair(*both)), max_size=12)


@QUICK
@given(PAIRS, PAIRS, PAIRS, st.integers(1, 4))
def test_lessons_are_short_once_in_order_and_never_scored(train, valid, test, longest):
    bitext = make_bitext("x", {"train": train, "valid": valid, "test": test}, ())
    lessons = bitext.training_pairs(longest)
    assert len(set(lessons)) == len(lessons)
    assert set(lessons) == {p for p in train if p.longest <= longest} - {*valid, *test}
    assert list(lessons) == sorted(lessons, key=train.index)
    kept = make_bitext("x", {"train": lessons, "valid": valid, "test": test}, ())
    assert kept.training_pairs(longest) == lessons


@QUICK
@given(PAIRS, PAIRS)
def test_bitexts_travel_as_json_and_have_marks_of_their_own(train, test):
    bitext = make_bitext("x", {"train": train, "test": test}, ("a note",))
    assert read(Bitext, to_json_data(bitext), "x") == bitext
    assert (make_bitext("y", {"train": test, "test": train}, ()).fingerprint == bitext.fingerprint) == (train == test)


EMBEDDED = bitext_corpus(seed=3, train=300, valid=20, test=30)


def test_the_embedded_pairs_are_a_function_of_the_seed_and_no_two_are_the_same():
    pairs = [*EMBEDDED.train, *EMBEDDED.valid, *EMBEDDED.test]
    assert bitext_corpus(seed=3, train=300, valid=20, test=30) == EMBEDDED
    assert bitext_corpus(seed=4, train=300, valid=20, test=30).fingerprint != EMBEDDED.fingerprint
    assert len({pair.source for pair in pairs}) == len(pairs) == 350


def test_every_target_word_but_the_object_marker_is_surely_of_some_source_word_and_links_are_inside():
    for pair in EMBEDDED.train:
        assert pair.sure is not None
        assert pair.possible is not None
        assert pair.sure <= pair.possible
        assert all(i < len(pair.source) and j < len(pair.target) for i, j in pair.possible)
        surely = {j for _, j in pair.sure}
        assert {pair.target[j] for j in range(len(pair.target)) if j not in surely} <= {OBJECT}


def test_the_embedded_pairs_have_all_that_makes_aligning_hard():
    """Reordering, one word for several, several for one, words without a counterpart, links that are only possible."""
    found = defaultdict(int)
    for pair in EMBEDDED.train:
        sure, possible = pair.sure or frozenset(), pair.possible or frozenset()
        ends = [[link[side] for link in sure] for side in (0, 1)]
        found["reordered"] += any(a < c and b > d for a, b in sure for c, d in sure)
        found["one to many"] += len(set(ends[0])) < len(ends[0])
        found["apart"] += any(_apart([t for s, t in sure if s == i]) for i in set(ends[0]))
        found["many to one"] += len(set(ends[1])) < len(ends[1])
        found["alone"] += len({s for s, _ in possible}) < len(pair.source)
        found["only possible"] += possible > sure
        assert (len(pair.source) - 1, len(pair.target) - 1) in sure
        assert pair.source[-1] == pair.target[-1] == STOP
    assert all(count > 30 for count in found.values()), dict(found)


def _apart(places):
    """Whether there is something between two of the places."""
    return max(places) - min(places) >= len(places)


TOKENIZER = learn_tokenizer((side for pair in EMBEDDED.train for side in pair.sides), 120)
MODEL = make_model(TranslatorShape(2, 2, 8, 16, 0.0), TOKENIZER, 1).double().eval()


@QUICK
@given(st.lists(st.sampled_from([w for p in EMBEDDED.test for w in (*p.source, *p.target)]), min_size=1, max_size=9))
def test_pieces_map_back_to_the_words_that_they_are_of(words):
    read = TOKENIZER([words], is_split_into_words=True)
    pieces, of = TOKENIZER.convert_ids_to_tokens(read.input_ids[0]), read.word_ids(0)
    joined = defaultdict(str)
    for piece, word in zip(pieces, of, strict=True):
        joined[word] += piece
    assert joined.pop(None) == "</s>"
    assert [joined[i] for i in range(len(words))] == [f"▁{word}" for word in words]
    assert TOKENIZER(" ".join(words)).input_ids == read.input_ids[0]
    assert TOKENIZER.decode(read.input_ids[0], skip_special_tokens=True) == " ".join(words)


@settings(max_examples=10)
@given(st.lists(st.sampled_from(EMBEDDED.test), min_size=1, max_size=5), st.sampled_from([0.0, 0.1]))
def test_a_batch_loses_what_its_pairs_lose_alone(pairs, smoothing):
    objective = TranslationLoss(TOKENIZER.pad_token_id, smoothing)
    rows = encode([(pair.source, pair.target) for pair in pairs], TOKENIZER)
    alone = torch.stack([objective.loss(MODEL, [row]) for row in rows]).sum()
    assert torch.allclose(objective.loss(MODEL, rows), alone, rtol=1e-10)  # float64, sums in another order
    chances = objective.logits(MODEL, rows[:1]).log_softmax(-1)[0]
    right = chances[torch.arange(len(rows[0].target)), torch.tensor(rows[0].target)]
    by_hand = -((1 - smoothing) * right + smoothing * chances.mean(-1)).sum()
    assert torch.allclose(objective.loss(MODEL, rows[:1]), by_hand, rtol=1e-10)


def test_no_position_of_the_target_sees_a_later_one_and_every_one_sees_the_whole_source():
    objective = TranslationLoss(TOKENIZER.pad_token_id)
    row, other = encode(
        [(EMBEDDED.test[0].source, EMBEDDED.test[0].target), (EMBEDDED.test[1].source, ("he",))], TOKENIZER
    )
    first = objective.logits(MODEL, [row])[0]
    cut = objective.logits(MODEL, [type(row)(row.source, row.target[:3])])[0]
    assert torch.allclose(first[:3], cut, rtol=1e-10)
    moved = objective.logits(MODEL, [type(row)(other.source, row.target)])[0]
    assert bool(((first - moved).abs().amax(-1) > 1e-6).all())
