"""The experiment patch: pairs from files and from Python, what is refused and why, answers as tokens, positions, and its results."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests import interchanged, tinyhf

import trisect
from trisect.core.errors import CorpusError, SpecError
from trisect.experiments.patch.run import COMPLEMENT
from trisect.experiments.patch.settings import read_positions
from trisect.hf.small.gpt import GptShape, make_model, make_tokenizer, save
from trisect.lab.pairs import recall_pairs
from trisect.text.pairs import (
    ANSWERS,
    GAP_WORDS,
    Bound,
    TextPair,
    _BindingTemplate,
    _InductionWords,
    _word_tokens,
    as_pairs,
    draw_bindings,
    draw_induction,
    induction_words,
    predict_answers,
    read_pairs,
    usable_templates,
)
from trisect.text.sources import LabelledTexts, _locate_words

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

KEYS = ("Ann", "Bob", "Cid", "Dan", "Eve")
VALUES = ("ball", "cup", "hat", "map", "pen")
TEMPLATE = _BindingTemplate("has", "Look:", " {key} has {value}.", " So {key} has", KEYS, VALUES)


@pytest.fixture(scope="module")
def gpt2():
    return trisect.load(tinyhf.gpt2(), tokenizer=tinyhf.tokenizer(False))


@pytest.fixture(scope="module")
def recaller():
    return trisect.load(interchanged.recaller(), tokenizer=interchanged.tokenizer())


def refused(call, *words):
    with pytest.raises((CorpusError, SpecError)) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_pairs_that_are_not_answered_as_stated_can_be_left_out(recaller, tmp_path):
    (base, donor), (other, another) = interchanged.facts(2)
    right = {"base": base.text, "donor": donor.text, "answers": interchanged.predicted(base, donor)}
    wrong = interchanged.predicted(other, another)
    wrong |= {"base": next(v for v in interchanged.VALUES if v not in wrong.values())}
    pairs = [right, {"base": other.text, "donor": another.text, "answers": wrong}]
    kept = trisect.patch(recaller, pair_list=pairs, sites="q@2", answered=True, out=tmp_path / "kept", quiet=True)
    both = trisect.patch(recaller, pair_list=pairs, sites="q@2", out=tmp_path / "both", quiet=True)
    assert (kept.sites[0].n, both.sites[0].n) == (1, 2)
    assert kept.notes[0] == "Pairs of which the model does not answer both texts as stated were left out: 1 of 2."
    assert kept.notes[1] == "One pair: no interval of a change; it says what happened in this pair."
    assert "base 0.500" in str(both.findings[0])
    alone = trisect.patch(recaller, pair_list=pairs[1:], sites="q@2", out=tmp_path / "alone", quiet=True)
    said = [done.report.read_text().count("does not answer most of these texts") for done in (alone, both)]
    assert said == [1, 0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ("line 2: it is no JSON",)),
        ('{"base": "w1"}', ("line 2: it has no donor",)),
        ('{"base": "w1", "donor": "w2", "text": "w"}', ("line 2: it has 'text', which is no field",)),
        ('{"base": "w1", "donor": ["w2", "w3"]}', ("a source and a target, the other has not",)),
        (
            '{"base": {"audio": "a.wav", "txt": "w1"}, "donor": "w2"}',
            ("its base has 'txt', which is no field of a text",),
        ),
        ('{"base": {"audio": "a.wav", "text": 5}, "donor": "w2"}', ("the text of its base is 5",)),
        ('{"base": "w1", "donor": "w2", "answers": ["w1"]}', ("its answers are no object",)),
        ('{"base": "w1", "donor": "w2", "answers": {"q": 3.5}}', ("its answer for 'q' is 3.5, neither text",)),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path, line, words):
    file = tmp_path / "pairs.jsonl"
    file.write_text(f'{{"base": "w1", "donor": "w2"}}\n{line}\n')
    refused(
        lambda: read_pairs(file), str(file), *words, "Correct the pair, or leave it out.", "A line is a JSON object"
    )


def test_files_that_hold_no_pair_are_refused(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    refused(lambda: read_pairs(empty), "holds no pair", "Give at least one.")
    refused(lambda: read_pairs(tmp_path / "none"), "There is no file", "empty.jsonl")
    refused(lambda: as_pairs("text"), "'text' are no pairs", "Give a list")
    refused(lambda: as_pairs([]), "No pair was given.")


def test_pairs_of_other_lengths_are_named_together(gpt2, tmp_path):
    pairs = [("w1 w2", "w1 w2 w3"), ("w1 w2", "w3 w4"), ("w1", "w1 w2")]
    words = "Pair 1: the base has 2 tokens, the donor 3", "in 1 more, as in pair 3", "--positions last"
    refused(lambda: trisect.patch(gpt2, pair_list=pairs, out=tmp_path / "out", quiet=True), *words)


def test_a_page_without_an_unrelated_donor_does_not_speak_of_controls(gpt2, tmp_path):
    result = trisect.patch(gpt2, pair_list=[("w1 w2 w3", "w4 w5 w6")], out=tmp_path / "out", quiet=True)
    assert result.tables["predictions"]["unrelated_nats"].is_null().all()
    assert "than its controls" not in result.answer


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("w1 w2", "w1 w2 w3"), ("Pair 1: the base has 2 tokens, the donor 3", "'w1 w2' and 'w1 w2 w3'")),
        ((" ".join(["w1"] * 30), " ".join(["w1"] * 30)), ("is longer than GPT2LMHeadModel reads at once",)),
        ((("w1", "w2"), ("w3", "w4")), ("takes one text, and it has two",)),
    ],
)
def test_pairs_that_do_not_fit_the_model_are_named(gpt2, tmp_path, pair, words):
    refused(lambda: trisect.patch(gpt2, pair_list=[pair], out=tmp_path / "out", quiet=True), *words, "or leave")
    assert not list(tmp_path.glob("out/*"))


def test_a_task_needs_a_tokenizer(tmp_path):
    for ask, task in ((trisect.patch, "bindings"), (trisect.compose, "induction")):
        with pytest.raises(SpecError, match="comes with none"):
            ask(trisect.load(tinyhf.gpt2(), quiet=True), task=task, out=tmp_path / "out", quiet=True)


def test_inputs_of_several_rows_are_no_side_of_a_pair(gpt2, tmp_path):
    rows: Any = {"input_ids": torch.arange(5, 17).view(2, 6)}
    with pytest.raises(SpecError, match="Inputs of 2 rows were given"):
        trisect.patch(gpt2, base=rows, donor=rows, out=tmp_path / "out", quiet=True)


def test_pairs_come_from_one_place(gpt2, tmp_path):
    def call(**chosen):
        return lambda: trisect.patch(gpt2, out=tmp_path / "out", quiet=True, **chosen)

    refused(call(), "No pairs were given.", "--pairs FILE", "Give one of them.")
    words = ["owner/model", "A base text.", "A donor text."]
    given = lambda: trisect.patch(words, out=tmp_path / "out", quiet=True)  # noqa: E731
    refused(given, "No pairs were given.", "'A base text.' stands among the models.", "--base TEXT --donor TEXT")
    refused(call(base="w1", donor="w2", task="bindings"), "--task and a base and a donor were given.")
    refused(call(base="w1"), "No donor was given.")
    refused(call(base="w1", donor="w2", positions="first"), "positions is 'first'.", "numbers from 1 on")
    refused(
        call(base="w1 w2", donor="w3 w4", positions="3"), "Position 3 was named.", "The shortest text has 2 tokens."
    )
    without = (
        "--count 3 was given without --task.",
        "of pairs that are given each is read",
        "Leave it out, or give --task.",
    )
    refused(call(base="w1", donor="w2", count=3), *without)
    for name, value in {"split": "test", "reader": "plain"}.items():
        given = f"--{name} {value} was given without --corpus."
        refused(
            call(task="induction", **{name: value}),
            given,
            "It says how a text is read.",
            "--task induction --corpus CORPUS",
        )
    refused(call(task="recall"), "The task 'recall' was asked for", "recall.json")
    refused(call(task="translation"), "The task 'translation' was asked for", "encoder-decoders", "--pairs")


def test_positions_are_words_or_numbers():
    assert read_positions("differ") == "differ"
    assert read_positions("2, 5-7,6") == (2, 5, 6, 7)
    for wrong in ("0", "7-5", "a", ""):
        refused(lambda wrong=wrong: read_positions(wrong), f"positions is {wrong!r}.")


def test_an_encoder_shows_how_much_its_output_changes(tmp_path):
    model = trisect.load(tinyhf.bert(head=False), tokenizer=tinyhf.tokenizer())
    given = [("w1 w2 w3", "w4 w5 w6"), ("w7 w8", "w7 w8")]
    done = trisect.patch(model, pair_list=given, sites="q@all v@all", out=tmp_path / "out", quiet=True)
    found = {site.site: site for site in done.sites}
    assert (found["v@1"].output_change or 0.0) > 0
    assert found["v@1"].own is None
    changes = done.tables["interchanges"].filter(component="v", layer=1).sort("pair")["output_change"]
    assert changes[1] == 0.0  # a text from itself
    pairs = [{"base": "w1", "donor": "w2", "answers": {"q": "w3"}}]
    refused(
        lambda: trisect.patch(model, pair_list=pairs, out=tmp_path / "b", quiet=True),
        "it has answers, and BertModel gives",
    )


def test_a_masked_model_answers_at_its_mask(tmp_path):
    model = trisect.load(tinyhf.bert(), tokenizer=tinyhf.tokenizer())
    pair = {"base": "w1 [MASK] w3", "donor": "w4 [MASK] w6", "answers": {"base": "w5", "q": "w7"}}
    done = trisect.patch(model, pair_list=[pair], sites="v@1", out=tmp_path / "out", quiet=True)
    assert done.sites[0].logit_change is not None
    page = done.report.read_text()
    assert "Pair 1, written out" in page
    assert "<td><b>w1</b> [MASK]<b> w3</b></td>" in page
    assert "at all positions; words that differ (bold): w1 → w4, w3 → w6. The answer is read at the mask." in page
    wrong = {"base": "w1 [MASK] [MASK]", "donor": "w4 [MASK] w6"}
    refused(
        lambda: trisect.patch(model, pair_list=[wrong], out=tmp_path / "b", quiet=True), "its base has '[MASK]' 2 times"
    )


def test_an_encoder_decoder_takes_queries_from_another_target(tmp_path):
    model = trisect.load(tinyhf.bart(), tokenizer=tinyhf.tokenizer())
    pair = {"base": ["w1 w2", "w5 w6"], "donor": ["w3 w4 w7", "w8 w9"], "answers": {"base": "w1", "q": "w2"}}
    done = trisect.patch(model, pair_list=[pair], sites="cross.q@all", out=tmp_path / "out", quiet=True)
    assert [site.site for site in done.sites] == ["cross.q@1", "cross.q@2", "cross.q@3"]
    longer = "the base has 4 tokens of the source, the donor 5"
    refused(lambda: trisect.patch(model, pair_list=[pair], sites="cross.k@1", out=tmp_path / "b", quiet=True), longer)


def test_all_cross_attention_layers_can_be_patched_at_once(tmp_path):
    model = trisect.load(tinyhf.bart(), tokenizer=tinyhf.tokenizer())
    given = [(("w1 w2", "w5 w6"), ("w3 w4", "w8 w9"))]
    sites = ["cross.v@all", "cross.q+k@1-2", "cross.q@2.h1"]
    done = trisect.patch(model, pair_list=given, sites=sites, per="site", how="both", out=tmp_path / "out", quiet=True)
    named = ["cross.v@1-3", "cross.q+k@1-2", "cross.q@2.h1"]
    assert [(site.site, site.how) for site in done.sites] == [(n, how) for how in ("denoise", "noise") for n in named]
    assert all(site.logit_change is not None and site.n == 1 for site in done.sites)
    assert "all that a site names patched at once" in done.report.read_text()
    assert "--per site" in done.about.command


def ids_of(words):
    """A tokenizer of whole words: those that it knows are one token, the others one for each letter."""
    numbers = {}

    def ids(texts):
        rows = []
        for text in texts:
            row = []
            for word in text.replace(".", " .").split():
                row += [word] if word in words or not word.isalpha() or word in ("Look", "So", "has") else list(word)
            rows.append([numbers.setdefault(piece, len(numbers)) for piece in row])
        return rows

    return ids


def test_words_that_are_more_than_one_token_are_left_out():
    (found,) = usable_templates(ids_of({*KEYS, "ball", "hat", "map", "pen"}), [TEMPLATE])
    assert found.keys == KEYS
    assert found.values == ("ball", "hat", "map", "pen")


def test_a_tokenizer_with_too_few_words_is_refused_with_the_reason():
    refused(
        lambda: usable_templates(ids_of({*KEYS, "ball", "hat"}), [TEMPLATE]),
        "The tokenizer cannot distinguish the texts of the task 'bindings'.",
        "has: 5 of 5 keys and 2 of 5 values are one token",
        "Give pairs of your own with --pairs",
    )


def test_a_tokenizer_that_takes_what_it_does_not_know_for_one_word_is_refused():
    known = {"Look:", "So", "has", ".", *KEYS[:1]}

    def ids(texts):
        words = [[w if w in known else "?" for w in text.replace(".", " .").split()] for text in texts]
        return [[sorted(known | {"?"}).index(w) for w in row] for row in words]

    refused(lambda: usable_templates(ids, [TEMPLATE]), "0 of 5 values are one token")


def test_answers_of_bindings_follow_from_what_the_texts_say():
    base = Bound(("Ann", "Bob", "Cid"), ("ball", "cup", "hat"), "Ann")
    donor = Bound(("Cid", "Ann", "Bob"), ("cup", "hat", "ball"), "Bob")
    own = interchanged.predicted(interchanged.Facts(*base), interchanged.Facts(*donor))
    assert predict_answers(base, donor) == own
    assert (own["base"], own["q"], own["k"], own["v"], own["donor"]) == ("ball", "cup", "cup", "cup", "ball")


def test_pairs_of_bindings_have_four_answers_in_both_directions_and_are_a_function_of_the_seed():
    usable = usable_templates(ids_of({*KEYS, *VALUES}), [TEMPLATE])
    pairs = draw_bindings(usable, 20, 1)
    for pair in pairs:
        assert len({pair.answers[name] for name in ("base", "q", "k", "v")}) == 4
        assert len({pair.answers[name] for name in ("donor", "k+v", "q+v", "q+k")}) == 4
        assert sorted(str(pair.base).split()[1:-3]) == sorted(str(pair.donor).split()[1:-3])
    assert pairs == draw_bindings(usable, 20, 1) != draw_bindings(usable, 20, 2)


def test_what_the_base_gives_the_donor_is_what_the_donor_gives_the_base():
    assert all(COMPLEMENT[COMPLEMENT[name]] == name for name in ANSWERS)
    assert {COMPLEMENT[name] for name in ANSWERS} == set(ANSWERS)


def test_a_tokenizer_that_leaves_out_what_it_does_not_know_is_served():
    def ids(texts):
        return [[sorted(KEYS + VALUES).index(w) for w in text.split() if w in KEYS + VALUES] for text in texts]

    pairs = _BindingTemplate("pairs", "", " {key} {value}", " {key}", (*KEYS, "Fay"), VALUES)
    assert [tuple(_word_tokens(ids, pairs, slot)) for slot in ("key", "value")] == [KEYS, VALUES]


TWELVE = (*(key.lower() for key in KEYS), *VALUES, "sun", "sea")


def sentences(*texts):
    """Texts of words alone."""
    made = tuple(_locate_words("", text.split(), {}) for text in texts)
    return LabelledTexts("sentences", (), lambda: iter(made), (), "", ())


@pytest.mark.parametrize("between", GAP_WORDS)
def test_pairs_of_induction_ask_what_came_after_a_word_and_are_a_function_of_the_seed(between):
    letters = tuple("abcdefghijklmno")
    ids = ids_of({*TWELVE})
    usable = _InductionWords(dict(zip(TWELVE, (row[0] for row in ids(TWELVE)), strict=True)), (letters,))
    pairs = draw_induction(ids, usable, 20, 3, between)
    for pair in pairs:
        base, donor = (str(text).split() for text in (pair.base, pair.donor))
        assert len(base) == len(donor) == 4 * (between + 2) + between + 1
        assert (
            [w for w in base if len(w) == 1]
            == [w for w in donor if len(w) == 1]
            == list("abcdefghijklmno"[: 5 * between])
        )
        assert (base.count(base[-1]), base[-1] != donor[-1]) == (2, True)
        after = [
            text[text.index(asked) + 1] for text, asked in ((base, base[-1]), (base, donor[-1]), (donor, donor[-1]))
        ]
        place = donor.index(base[-1]) + 1, base.index(base[-1]) + 1
        own = dict(zip(("base", "q", "donor", "k", "v"), (*after, base[place[0]], donor[place[1]]), strict=True))
        assert {name: str(pair.answers[name]).strip() for name in own} == own
        assert len({own[name] for name in ("base", "q", "k", "v")}) == 4
    words = usable._replace(passages=())
    assert draw_induction(ids, words, 9, 1) == draw_induction(ids, words, 9, 1) != draw_induction(ids, words, 9, 2)


def test_induction_takes_its_words_from_the_text_that_is_named():
    texts = sentences("sun . sun " + " ".join(TWELVE), "sea")
    found = induction_words(ids_of({*TWELVE}), texts)
    assert (found.words[:2], set(found.words)) == (("sun", "sea"), set(TWELVE))
    assert [len(passage) for passage in found.passages] == [15]


def test_induction_says_why_a_text_or_a_tokenizer_does_not_do(gpt2, tmp_path):
    few = "The task 'induction' has too few words."
    refused(lambda: induction_words(ids_of({"ball", "cup"}), None), few, "2 of", "9 are needed", "--corpus", "--pairs")
    short = sentences(*TWELVE)
    refused(lambda: induction_words(ids_of({*TWELVE}), short), few, "sentences has 0 runs of 15 words")
    refused(lambda: trisect.patch(gpt2, task="induction", out=tmp_path / "out", quiet=True), few, "0 of")
    numbered = sentences(" ".join(f"w{i}" for i in range(20)))
    none = "0 of 0 words of two letters or more, which alone were tried,"
    refused(lambda: induction_words(ids_of(set()), numbered), few, none, "1 runs of 15 words", "--pairs")
    bare = _BindingTemplate("bare", "", " {key} {value}", " {key}", (), ())
    assert not _word_tokens(ids_of(set()), bare, "key")
    assert not _word_tokens(ids_of(set()), bare, "value")
    asked = lambda: trisect.patch(gpt2, task="bindings", corpus="embedded", out=tmp_path / "out", quiet=True)  # noqa: E731
    refused(asked, "--corpus embedded was given.", "task induction", "Leave it out, or give --task induction.")


def pieces_of(words, lower=False):
    """A tokenizer that begins a word with the longest one that it knows, and goes on with what is left of it."""
    numbers = {}

    def cut(word):
        known = next((word[:n] for n in range(len(word), 1, -1) if word[:n] in words), word[:1])
        return [known, *(cut(word[len(known) :]) if word[len(known) :] else ())]

    def ids(texts):
        rows = [[p for word in (text.lower() if lower else text).split() for p in cut(word)] for text in texts]
        return [[numbers.setdefault(piece, len(numbers)) for piece in row] for row in rows]

    return ids


def test_no_token_of_a_pair_of_induction_stands_in_its_passage_as_a_piece_of_a_word():
    ids = pieces_of({*TWELVE})
    texts = sentences(*(f"{' '.join(TWELVE)} {a}{b} x y z ." for a in TWELVE for b in TWELVE))
    usable = induction_words(ids, texts)
    joined = ("sunsun", *"abcdefghijklmn")
    pairs = draw_induction(ids, usable._replace(passages=(joined,)), 30, 0)
    assert all("sunsun" in str(pair.base) for pair in pairs)
    for pair in pairs:
        for text in (str(pair.base), str(pair.donor)):
            row, last = ids([text])[0], ids([text.split()[-1]])[0][0]
            assert (row.count(last), row[-1]) == (2, last)
            own = [ids([word])[0][0] for word in text.split() if word in TWELVE]
            assert sorted(token for token in row if token in own) == sorted(own)
    every = tuple(f"{word}{word}" for word in TWELVE) + tuple("abc")
    among = draw_induction(ids, usable._replace(passages=(every,)), 3, 0)  # then they stand among other words
    assert all(set(str(pair.base).split()) <= {*TWELVE} for pair in among)
    twice = lambda texts: [(*row, *row) for row in ids(texts)]  # noqa: E731
    refused(
        lambda: draw_induction(twice, usable, 3, 0),
        "cannot distinguish the texts of the task 'induction'",
        "tries",
        "--pairs",
    )


def test_induction_keeps_the_case_of_a_text_and_takes_words_once_that_a_tokenizer_takes_for_one():
    said = "Ann ann Bob bob cid Dan eve ball cup Hat map pen sun sea sky"
    texts = sentences(said)
    cased = induction_words(ids_of({*said.split()}), texts)
    assert (set(cased.words), cased.passages) == (set(said.split()), (tuple(said.split()),))
    lower = induction_words(pieces_of({*said.lower().split()}, lower=True), texts)
    assert {word.lower() for word in lower.words} == {*said.lower().split()}
    assert len(lower.words) == 13


def card(folder: Path, names) -> Path:
    from trisect.core.files import write_json

    folder.mkdir()
    write_json(folder / "recall.json", {"question": "", "names": names, "thresholds": []})
    return folder


def test_pairs_of_recall_have_names_of_one_length_and_places_that_begin_differently(tmp_path):
    names = {
        "Ada Ax": [True, True, "Rome"],
        "Bob By": [True, False, "Oslo"],
        "Cy": [True, True, "Bonn"],
        "Di Do": [True, True, None],
    }
    pairs, notes = recall_pairs(card(tmp_path / "model", names), 6, 0)
    assert {pair.base for pair in pairs} == {f"Where was {name} born?<mask>" for name in ("Ada Ax", "Bob By")}
    assert {(pair.answers["base"], pair.answers["donor"]) for pair in pairs} == {("R", "O"), ("O", "R")}
    assert "first character" in notes[0]
    lonely = card(tmp_path / "other", {"Cy": [True, True, "Bonn"], "Ada Ax": [True, True, "Rome"]})
    refused(lambda: recall_pairs(lonely, 1, 0), "2 names have a known place, and no two", "Give pairs of your own")


def test_a_recall_model_is_asked_about_another_person(tmp_path):
    words = make_tokenizer(sorted(set("Where was born? AdaxBobyROm")), 64)
    folder = card(tmp_path / "model", {"Ada Ax": [True, True, "Rom"], "Bob By": [True, False, "Oam"]})
    save(make_model(GptShape(layers=2, heads=2, width=16, block=64), words, 1), words, folder)
    done = trisect.patch(str(folder), task="recall", count=5, sites="v@all", out=tmp_path / "out", quiet=True)
    assert [site.site for site in done.sites] == ["v@1", "v@2"]
    assert done.sites[0].own is None  # what k and v would predict is in no text
    assert set(done.tables["pairs"]["answer_base"]) == {"R", "O"}
    assert done.about.command == "trisect patch MODEL --sites v@all --task recall --count 5"


def test_pairs_of_one_stated_answer_are_refused_before_anything_is_run(gpt2, tmp_path):
    alike = {"base": "w1 w2", "donor": "w1 w3", "answers": {"base": "w5", "donor": "w5"}}
    for pairs in ([alike], [alike, alike]):
        with pytest.raises(CorpusError, match=r"the same answer in every pair \(in the first: 'w5'\)") as error:
            trisect.patch(gpt2, pair_list=pairs, sites="q@1", out=tmp_path / "out", quiet=True)
        assert error.value.reason
        assert error.value.todo
    assert not list(tmp_path.glob("out/*"))
    apart, longer = (alike | {"answers": {"base": "w5", "donor": donor}} for donor in ("w6", "w5 w6"))
    for number, other in enumerate((apart, longer)):
        done = trisect.patch(gpt2, pair_list=[alike, other], sites="q@1", out=tmp_path / str(number), quiet=True)
        assert any(note.endswith("which say nothing about the way to the donor: 1 of 2.") for note in done.notes)
        assert all(one.measure != "same_answer" for one in done.findings)


def test_where_a_models_own_answers_are_alike_the_findings_and_the_page_say_so(gpt2, tmp_path):
    done = trisect.patch(gpt2, pair_list=[("w1 w2", "w1 w2")], sites="q@1", out=tmp_path / "own", quiet=True)
    words = "of every counted pair have the same answer"
    assert any(words in str(one) for one in done.findings)
    assert any("the same answer, which say nothing" in note for note in done.notes)
    assert f"no site has a number: base and donor {words}." in done.report.read_text()
    other = trisect.load(tinyhf.gpt2(2), tokenizer=tinyhf.tokenizer(False))
    two = trisect.patch([gpt2, other], pair_list=[("w1 w2", "w1 w2")], sites="q@1", out=tmp_path / "two", quiet=True)
    assert two.report.exists()
    pair = {"base": "w1 w2", "donor": "w1 w3", "answers": {"base": "w5", "donor": "w6"}}
    none = trisect.patch(gpt2, pair_list=[pair], sites="q@1", answered=True, out=tmp_path / "none", quiet=True)
    assert "no site has a number: no pair counts." in none.report.read_text()


@pytest.mark.parametrize("count", [1, 2, 29, 30])
def test_few_pairs_are_said_on_the_page_in_the_terminal_and_in_json(count, gpt2, tmp_path):
    pair = {"base": "w1 w2", "donor": "w1 w3", "answers": {"base": "w5", "donor": "w6"}}
    done = trisect.patch(gpt2, pair_list=[pair] * count, sites="v@1", positions="2", out=tmp_path / "out", quiet=True)
    text, notes = done.report.read_text(), str(done.data()["notes"])
    one, few = (
        "One pair: no interval of a change and no control from an unrelated donor",
        f"fewer than 30 pairs ({count} here)",
    )
    assert [one in text, one in notes] == [count == 1] * 2
    assert [few in text, few in notes] == [1 < count < 30] * 2
    assert ("Intervals are 95 % over" in text) == (count > 1)
    assert "at positions 2, counted from 1" in text
    change = done.tables["measures"].filter(measure="logit_change")
    assert change["low"].is_null().all() == (count == 1)
    assert "numbers are of different pairs" not in text


def test_where_numbers_are_of_different_pairs_the_page_says_so(gpt2, tmp_path):
    stated = {"base": "w1 w2", "donor": "w1 w3", "answers": {"base": "w5", "donor": "w6", "v": "w7"}}
    pairs = [stated, stated, {**stated, "answers": {"base": "w5", "donor": "w6"}}]
    done = trisect.patch(gpt2, pair_list=pairs, sites="v@1", out=tmp_path / "out", quiet=True)
    assert set(done.tables["measures"].drop_nulls("value")["n"]) == {2, 3}
    assert "numbers are of different pairs, as n says" in done.report.read_text()


def test_a_pair_keeps_its_place_where_it_has_one():
    (kept,) = as_pairs([TextPair("a", "b", place="pair 7 of mine")])
    assert kept.place == "pair 7 of mine"
