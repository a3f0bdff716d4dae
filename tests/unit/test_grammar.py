"""The embedded language: deterministic, agreeing, ambiguous, Zipfian, and full of what only other words tell."""

from collections import Counter, defaultdict
from itertools import islice

import numpy as np
import pytest

from trisect.text.generated import FUNCTION, VERSION, _Lexicon, draw_sentences, embedded_corpus
from trisect.text.sources import Text as TextSpec
from trisect.text.sources import load_text

UD_POS = {"NOUN", "DET", "VERB", "PUNCT", "PRON", "ADJ", "ADP", "AUX", "CCONJ", "SCONJ", "PROPN", "ADV", "NUM", "INTJ"}
UD_POS |= {"PART"}
UD_DEP = {"det", "nsubj", "punct", "obj", "root", "amod", "case", "aux", "obl", "nmod:poss", "cc", "conj", "advmod"}
UD_DEP |= {"acl:relcl", "nmod", "mark", "nummod", "cop", "ccomp", "discourse", "advcl"}


@pytest.fixture(scope="module")
def corpus():
    return embedded_corpus()


@pytest.fixture(scope="module")
def trees():
    return list(islice(draw_sentences("trees"), 3000))


def children(tree, at, dep):
    return [w for w in tree if w.head == at and w.dep == dep]


def test_golden_fingerprint(corpus):
    """Ids of runs depend on it: when the grammar changes, so does VERSION, and then this line."""
    assert (VERSION, corpus.fingerprint) == (1, "c191fe768de9e567")
    assert load_text(TextSpec()).fingerprint == "e6e4d5c451867e2c"


def test_the_same_twice_and_other_with_another_seed(corpus):
    assert embedded_corpus().fingerprint == corpus.fingerprint
    assert embedded_corpus(seed=1).fingerprint != corpus.fingerprint
    assert embedded_corpus(train=500, valid=50, test=50).splits["train"].tokens.tolist() == (
        corpus.splits["train"]
        .tokens[: len(embedded_corpus(train=500, valid=50, test=50).splits["train"].tokens)]
        .tolist()
    )


def test_sizes(corpus):
    sizes = {name: len(split.tokens) for name, split in corpus.splits.items()}
    assert 30_000 <= sizes["train"] < 30_060
    assert 6_000 <= sizes["valid"] < 6_060
    assert 6_000 <= sizes["test"] < 6_060
    assert 270 <= len(corpus.vocabulary) <= 330
    assert f"(version {VERSION})" in corpus.notes[0]


def test_the_splits_share_no_long_stretch(corpus):
    train = corpus.splits["train"].tokens.tolist()
    stretches = {tuple(train[i : i + 25]) for i in range(len(train))}
    valid = corpus.splits["valid"].tokens.tolist()
    assert not any(tuple(valid[i : i + 25]) in stretches for i in range(len(valid) - 25))


def test_every_word_and_class_of_valid_and_test_is_in_train(corpus):
    train = corpus.splits["train"]
    for name in ("valid", "test"):
        assert set(corpus.splits[name].tokens) <= set(train.tokens)
    assert set(corpus.labels["pos"]) == UD_POS
    assert set(corpus.labels["dep"]) == UD_DEP
    for label in ("pos", "dep"):
        assert set(range(len(corpus.labels[label]))) == set(train.labels[label])


def test_a_fifth_of_the_tokens_and_more_have_a_type_of_several_parts_of_speech(corpus):
    train = corpus.splits["train"]
    seen = defaultdict(Counter)
    for token, pos in zip(train.tokens, train.labels["pos"], strict=True):
        seen[token][pos] += 1
    ambiguous = [token for token in seen if len(seen[token]) > 1]
    assert np.isin(train.tokens, ambiguous).mean() >= 0.20
    best_guess = sum(max(parts.values()) for parts in seen.values()) / len(train.tokens)
    assert best_guess < 0.90  # knowing the word alone gets more than a tenth wrong
    stems = {v.stem for menu in _Lexicon().verbs for v in menu.items} & {
        n.stem for menu in _Lexicon().nouns for n in menu[None].items
    }
    assert len(stems) >= 20


def test_frequencies_fall_as_zipf_says(corpus):
    counts = np.sort(np.bincount(corpus.splits["train"].tokens))[::-1]
    ranks = np.arange(1, len(counts) + 1)
    slope = np.polyfit(np.log(ranks[3:200]), np.log(counts[3:200]), 1)[0]
    assert -1.2 < slope < -0.7


def test_every_tree_has_one_root_and_no_cycle(trees):
    for tree in trees:
        assert [w.dep for w in tree].count("root") == 1
        for word in tree:
            assert (word.head == 0) == (word.dep == "root")
            at, steps = word, 0
            while at.head:
                at, steps = tree[at.head - 1], steps + 1
                assert steps <= len(tree)


def test_determiners_and_numerals_agree_with_their_noun(trees):
    seen = Counter()
    for tree in trees:
        for word in tree:
            if word.dep in ("det", "nummod") and word.plural is not None:
                assert word.plural == tree[word.head - 1].plural
                seen[word.dep] += 1
    assert min(seen["det"], seen["nummod"]) > 100


def finite(tree, at):
    """The word that shows the number of the predicate at `at` (from 1): its auxiliary, its copula, or itself."""
    helpers = children(tree, at, "aux") + children(tree, at, "cop")
    return helpers[0] if helpers else tree[at - 1]


def test_verbs_agree_with_their_subject_also_across_other_nouns(trees):
    near = far = modal = 0
    for tree in trees:
        for place, word in enumerate(tree, 1):
            if word.dep != "nsubj":
                continue
            plural = True if children(tree, place, "conj") else word.plural
            verb = finite(tree, word.head)
            if verb.plural is None:
                modal += 1
                assert verb.form in (FUNCTION["will"], FUNCTION["may"])
                continue
            assert verb.plural == plural, " ".join(w.form for w in tree)
            between = tree[place : tree.index(verb)]
            misleading = any(w.pos == "NOUN" and w.plural != plural for w in between)
            near, far = near + (not misleading), far + misleading
    assert near > 1000
    assert far > 100
    assert modal > 100


def test_a_second_predicate_agrees_with_the_subject_of_the_first(trees):
    checked = 0
    for tree in trees:
        for place, word in enumerate(tree, 1):
            if word.dep == "conj" and word.pos == "VERB" and not children(tree, place, "nsubj"):
                first, second = finite(tree, word.head), finite(tree, place)
                if first.plural is not None and second.plural is not None:
                    assert first.plural == second.plural
                    checked += 1
    assert checked > 50


def test_both_kinds_of_relative_clause_occur(trees):
    kinds = Counter()
    for tree in trees:
        for place, word in enumerate(tree, 1):
            if word.dep == "acl:relcl":
                assert tree[word.head - 1].pos == "NOUN"
                relative = next(w for w in tree if w.head == place and w.pos == "PRON")
                kinds[relative.dep] += 1
    assert kinds["nsubj"] > 100
    assert kinds["obj"] > 100


def test_the_end_of_a_sentence_depends_on_its_beginning(trees):
    for tree in trees:
        assert tree[-1].form == {"AUX": "?", "INTJ": "!"}.get(tree[0].pos, ".")


def test_verbs_select_the_kind_of_their_object(trees):
    lexicon = _Lexicon()
    kinds = {n.stem + s: n.kind for menu in lexicon.nouns for n in menu[None].items for s in ("", "s")}
    wanted = {v.stem + s: v.kind for menu in lexicon.verbs for v in menu.items for s in ("", "s")}
    right = total = 0
    for tree in trees:
        for word in tree:
            if word.dep == "obj" and word.pos == "NOUN":
                right += kinds[word.form] == wanted[tree[word.head - 1].form]
                total += 1
    assert total > 1000
    assert right / total > 0.9  # the rest: what the paragraph is about may be named anywhere


def test_what_was_said_before_tells_more_than_the_word_before(corpus):
    """A noun of the last 30 words comes again far more often than among as many words from elsewhere."""
    train = corpus.splits["train"]
    nouns = train.labels["pos"] == corpus.labels["pos"].index("NOUN")
    places = np.flatnonzero(nouns)[200:]
    away = len(train.tokens) // 2

    def repeated(shift):
        hits = 0
        for place in places:
            start = (place + shift) % (len(train.tokens) - 40)
            hits += train.tokens[place] in train.tokens[max(0, start - 30) : start]
        return hits / len(places)

    assert repeated(0) > 2 * repeated(away)
