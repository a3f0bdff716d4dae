"""Small models and translators: they learn, are kept as folders and answer greedily; what translated pairs predict."""

import json
import shlex
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

import trisect
from trisect.cli.options import experiment_command, parse_options
from trisect.core.errors import CorpusError, DamagedFileError, SpecError
from trisect.core.schema import build
from trisect.core.subject import SiteTarget
from trisect.experiments.translate import TRANSLATE
from trisect.experiments.translate.settings import EMBEDDED, RECIPES, SMALL_RECIPE, TranslateSettings
from trisect.hf.load import load
from trisect.hf.small.gpt import (
    UNKNOWN_PIECE,
    Answerer,
    GptShape,
    Practice,
    Schedule,
    ids_of,
    is_model,
    load_weights,
    make_model,
    make_tokenizer,
    save,
)
from trisect.hf.small.translator import POSITIONS, TranslationLoss, Translator, TranslatorShape, encode, learn_tokenizer
from trisect.hf.small.translator import make_model as make_translator
from trisect.lab.inputs import choose_recipe
from trisect.measure.intervention import put, zeros
from trisect.text.birth_places import question_example
from trisect.text.bitext import SentencePair
from trisect.text.generated import RoledSentence
from trisect.text.pairs import (
    FROM_BASE,
    FROM_DONOR,
    NO_WORD,
    _TranslatedText,
    draw_translations,
    predict_words,
    read_roles,
)

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

SIDES = [("the big dog", "le gros chien"), ("a dog", "un chien"), ("the dog eats", "le chien mange")] * 4
TINY = {"width": 16, "inner": 16, "layers": 1, "heads": 2, "pieces": 60, "epochs": 2, "batch": 4, "warmup_steps": 2}


@pytest.fixture
def files(tmp_path):
    for i, end in enumerate(("en", "fr")):
        (tmp_path / f"t.{end}").write_text("".join(f"{words[i]}{' .' * (n % 5)}\n" for n, words in enumerate(SIDES)))
    return tmp_path / "t.en", tmp_path / "t.fr"


def train(sides, out, seeds, settings):
    source, target = sides or (None, None)
    return trisect.translate_train(
        source=source, target=target, out=out, seeds=seeds, settings=settings, device="cpu", workers=0, quiet=True
    )


def models(made):
    return list(made.paths.values())


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("shape", "change", "given"),
    [
        (TranslatorShape, {"inner": 0}, "inner 0."),
        (TranslatorShape, {"width": 3, "heads": 3}, "A width of 3."),
        *((shape, {"layers": 0}, "layers 0.") for shape in (TranslatorShape, GptShape)),
        *((shape, {"width": 30}, "A width of 30.") for shape in (TranslatorShape, GptShape)),
        *((shape, {"dropout": 1.0}, "A dropout of 1.0.") for shape in (TranslatorShape, GptShape)),
        (GptShape, {"kind": "bert"}, "Unknown kind of model 'bert'"),
        (GptShape, {"kind": "llama", "width": 24, "heads": 8}, "A width of 24"),
    ],
)
def test_an_architecture_that_cannot_be(shape, change, given):
    with pytest.raises(SpecError) as raised:
        shape(**change)
    assert raised.value.problem.startswith(given)
    assert raised.value.reason


def test_a_vocabulary_smaller_than_the_letters():
    with pytest.raises(SpecError) as raised:
        learn_tokenizer([["abc", "de"]], 5)
    assert raised.value.problem == "A vocabulary of 5 pieces."
    assert "18" in raised.value.todo  # twice the 6 letters and 3 marks


def test_a_sentence_longer_than_the_model_reads():
    tokenizer = learn_tokenizer([["ab"]], 40)
    assert encode([], tokenizer) == []
    assert len(encode([(["ab"], ["ab"] * (POSITIONS - 1))], tokenizer)[0].target) == POSITIONS
    with pytest.raises(CorpusError) as raised:
        encode([(["ab"], ["ab"]), (["ab"], ["ab"] * POSITIONS)], tokenizer)
    assert raised.value.problem == "Pair 2, 'ab'."
    assert str(POSITIONS + 1) in raised.value.reason


def test_a_saved_model_is_an_ordinary_folder_that_the_proof_accepts(tmp_path):
    tokenizer = learn_tokenizer([["abc", "cab"]], 40)
    model = make_translator(TranslatorShape(2, 2, 16, 16), tokenizer, 1).eval()
    save(model, tokenizer, tmp_path)
    subject = load(tmp_path)
    assert subject.objective == "seq2seq"
    assert [f"{a.stack}{a.layer}" for a in subject.addresses] == ["enc1", "enc2", "dec1", "cross1", "dec2", "cross2"]
    ahead = {a: law.ahead for law, a in zip(subject.proof.laws, subject.addresses, strict=True) if a.stack != "cross"}
    assert all(is_ahead == (a.stack == "enc") for a, is_ahead in ahead.items())
    again = Translator.open(tmp_path)
    rows = encode([(["abc"], ["cab", "abc"])], again.tokenizer)
    assert rows == encode([(["abc"], ["cab", "abc"])], tokenizer)
    objective = TranslationLoss(tokenizer.pad_token_id)
    # one attention implementation against another, in float32
    assert torch.allclose(objective.logits(model, rows), objective.logits(again.model, rows), atol=1e-5)


def test_weights_are_a_function_of_the_seed_alone():
    tokenizer = learn_tokenizer([["abc", "cab"]], 40)
    shape = TranslatorShape(1, 2, 16, 16)
    first, second, other = (dict(make_translator(shape, tokenizer, s).named_parameters()) for s in (1, 1, 2))
    assert same(first, second)
    assert not same(first, other)
    assert learn_tokenizer([["abc", "cab"]], 40).get_vocab() == tokenizer.get_vocab()


def test_what_a_run_tells(files, tmp_path):
    made = train(files, tmp_path / "a", [3], {**TINY, "longest": 5})
    assert made.folder == tmp_path / "a"
    assert made.notes[-1].startswith("Learnt from are 8 different train pairs of at most 5 words a side")
    about = json.loads((tmp_path / "a" / "about.json").read_text())["body"]
    words = shlex.split(about["command"])
    assert words[:6] == ["trisect", "translate-train", "--source", "t.en", "--target", "t.fr"]
    context = experiment_command(TRANSLATE).make_context("translate-train", words[2:])
    read = build(TranslateSettings, parse_options(TranslateSettings, context.params))
    assert (read.seeds, read.recipe) == ((3,), "small")
    # only what is not the recipe's own is said; its batches of 4, its width of 16 ...
    assert read.settings == {key: str(value) for key, value in {**TINY, "longest": 5}.items()}
    assert [found.measure for found in made.findings] == ["smoothed_loss_nats"]
    assert made.tables["metrics"]["split"].unique().to_list() == ["train"]


def test_no_pair_is_short_enough(files, tmp_path):
    with pytest.raises(CorpusError, match="No train pair of at most 1 words") as raised:
        train(files, tmp_path / "a", [1], {**TINY, "longest": 1})
    assert "The 12 train pairs" in raised.value.reason


def test_recipes_follow_the_data_and_take_settings():
    assert choose_recipe(RECIPES, None, embedded=True) == EMBEDDED
    changed = choose_recipe(RECIPES, None, embedded=False, changes={"epochs": "20", "pieces": 6000})
    assert changed == replace(SMALL_RECIPE, epochs=20, pieces=6000)
    assert list(RECIPES) == ["embedded", "small"]
    schedule = SMALL_RECIPE.schedule(100)  # 4 steps of 32 pairs an epoch
    assert (schedule.warmup_tokens, schedule.decay_tokens) == (32_000, 9 * 4 * 32)
    for settings, given in (({"longest": 0}, "longest is 0."), ({"batch": 0}, "batch is 0.")):
        with pytest.raises(SpecError) as raised:
            choose_recipe(RECIPES, None, False, settings)
        assert raised.value.problem == given
    with pytest.raises(SpecError) as raised:
        choose_recipe(RECIPES, "course", False)
    assert raised.value.reason == "There are embedded, small."


def word_ids(texts):
    """Every word is one token, those of no language are one unknown token."""
    number = lambda word: 0 if word == NO_WORD else hash_of(word)  # noqa: E731
    return [both_sides([number(word) for word in side.split()] for side in text) for text in texts]


def both_sides(sides):
    source, target = sides
    return source, target


def hash_of(word):
    return 1 + int.from_bytes(word.encode(), "big")


def text(*said):
    """(role, source word, target word) by source place; the target in the same order."""
    roles, source, target = zip(*said, strict=True)
    places = {role: i for i, role in enumerate(roles)}
    return _TranslatedText(source, target, places, dict(enumerate(target)), dict(enumerate(roles)))


BASE = text(("adverb", "a", "A"), ("subject noun", "n", "N"), ("verb", "v", "V"), ("object noun", "m", "M"))
DONOR = text(("subject noun", "s", "S"), ("verb", "w", "W"), ("object noun", "o", "O"), ("adverb", "b", "B"))


def test_a_query_asks_a_role_a_key_says_its_place_and_a_value_what_is_there():
    """The base asks its subject (place 1; the donor's place 0), the donor its verb (place 1; the base's place 2)."""
    answers = predict_words(BASE._replace(at=1), DONOR._replace(at=1))
    one = {"base": "N", "q": "V", "k": "A", "v": "W", "donor": "W"}
    assert answers == one | {"q+k": "N", "q+v": "O", "k+v": "S"}
    turned = predict_words(DONOR._replace(at=1), BASE._replace(at=1))
    assert turned is not None
    assert (turned["base"], turned["donor"]) == ("W", "N")


def test_a_pair_whose_answers_are_not_all_different_is_none():
    alike = text(("subject noun", "n", "N"), ("verb", "v", "V"), ("object noun", "m", "N"), ("adverb", "b", "N"))
    assert predict_words(BASE._replace(at=1), alike._replace(at=2)) is None
    assert predict_words(BASE._replace(at=1), BASE._replace(at=1)) is None


def test_a_word_that_stands_for_several_or_for_none_has_no_place():
    links = frozenset({(0, 0), (1, 1), (1, 2), (2, 3), (3, 3), (4, 4)})
    pair = SentencePair(tuple("abcde"), tuple("ABCDE"), links, links)
    roles = {0: "adverb", 1: "verb", 2: "subject noun", 3: "object noun", 4: "determiner"}
    found = read_roles(RoledSentence(pair, roles), frozenset("ABCD"))
    assert (found.places, found.words, found.roles) == ({"adverb": 0}, {0: "A"}, {0: "adverb"})
    assert read_roles(RoledSentence(pair, roles), frozenset("ABCDE")).places == {"adverb": 0, "determiner": 4}


def test_pairs_are_different_begun_as_far_and_a_function_of_the_seed():
    pairs = draw_translations(word_ids, 60, 3)
    assert pairs == draw_translations(word_ids, 60, 3) != draw_translations(word_ids, 60, 4)
    assert len({(pair.base, pair.donor) for pair in pairs}) == 60
    for pair in pairs:
        for side in (0, 1):
            base, donor = (str(cast(tuple[str, str], text)[side]) for text in (pair.base, pair.donor))
            assert len(base.split()) == len(donor.split())
        assert len({pair.answers[name] for name in FROM_DONOR}) == len(FROM_DONOR)
        assert pair.answers["donor"] != pair.answers["base"]
        if set(FROM_BASE) <= set(pair.answers):
            assert len({pair.answers[name] for name in FROM_BASE}) == len(FROM_BASE)
    assert len({pair.kind for pair in pairs}) > 3


def test_a_tokenizer_that_splits_words_is_refused_with_what_to_do():
    def letters(texts):
        return [both_sides([hash_of(letter) for letter in side] for side in text) for text in texts]

    with pytest.raises(CorpusError) as raised:
        draw_translations(letters, 5, 0)
    assert "one token" in raised.value.reason
    assert "translate-train" in raised.value.todo


def test_words_that_share_a_token_are_no_answers():
    one, other, *_ = sorted(
        {str(word).strip() for pair in draw_translations(word_ids, 5, 1) for word in pair.answers.values()}
    )

    def merged(texts):
        alike = {
            text: tuple(" ".join(one if w == other else w for w in side.split()) for side in text) for text in texts
        }
        return word_ids([alike[text] for text in texts])

    found = {str(word).strip() for pair in draw_translations(merged, 5, 1) for word in pair.answers.values()}
    assert found
    assert not {one, other} & found


def test_more_pairs_than_there_are_is_refused_with_how_many_were_found():
    def few(texts):
        """Only short words are whole, so that few sentences can be used."""
        split = lambda word: [hash_of(word)] if len(word) < 6 else [hash_of(letter) for letter in word]  # noqa: E731
        return [both_sides([i for word in side.split() for i in split(word)] for side in text) for text in texts]

    with pytest.raises(CorpusError) as raised:
        draw_translations(few, 30, 0)
    assert raised.value.problem.startswith("30 pairs")
    assert raised.value.reason.startswith("0 different ones")
    assert "pieces" in raised.value.todo


CHARACTERS = tuple(" ?.abcdehinorsvwBW\n")
KINDS = ("gpt2", "llama")
QUESTIONS = ("Where was Bo born?", "Where was Bea born?", "Where was ed born?", "Where was Bab born?")


def made(kind, seed=1, block=32):
    """A model with larger random weights than it is born with, so that its answers differ."""
    tokenizer = make_tokenizer(CHARACTERS, block)
    model = make_model(GptShape(kind, layers=2, heads=2, width=16, block=block, dropout=0.0), tokenizer, seed)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    return model, tokenizer


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    save(*made(request.param), tmp_path / "m")
    return tmp_path / "m"


def test_tokens_are_characters_and_come_back():
    tokenizer = make_tokenizer(CHARACTERS, 64)
    ids = tokenizer("Where was\nBo?")["input_ids"]
    assert len(ids) == len("Where was\nBo?")
    assert tokenizer.decode(ids) == "Where was\nBo?"
    assert ids == ids_of("Where was\nBo?", tokenizer)
    assert tokenizer("aÿb")["input_ids"][1] == tokenizer.unk_token_id == ids_of("ÿ", tokenizer)[0]
    assert tokenizer("<mask>")["input_ids"] == [tokenizer.mask_token_id]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_a_function_of_the_seed(kind):
    def weights(seed):
        tokenizer = make_tokenizer(CHARACTERS, 16)
        model = make_model(GptShape(kind, 1, 2, 8, 16), tokenizer, seed)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    before = torch.random.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(before, torch.random.get_rng_state())


def test_saved_weights_come_back_bit_for_bit(folder):
    kind = "llama" if "llama" in (folder / "config.json").read_text() else "gpt2"
    other, tokenizer = made(kind, seed=2)
    first, _ = made(kind)
    ids = torch.tensor([ids_of("Where was", tokenizer)])
    assert not torch.equal(other(ids).logits, first(ids).logits)
    load_weights(other, folder)
    assert torch.equal(other.eval()(ids).logits, first.eval()(ids).logits)
    assert is_model(folder)


def test_damaged_weights_are_named(folder):
    model, _ = made("gpt2")
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(DamagedFileError, match="to train it again"):
        load_weights(model, folder)


def plainly(model, tokenizer, question, steps=32):
    """Greedy decoding without a cache, and the numbers of each position."""
    mask, ids, numbers = tokenizer.mask_token_id, [*ids_of(question, tokenizer), tokenizer.mask_token_id], []
    start = len(ids)
    for _ in range(min(steps, tokenizer.model_max_length - start)):
        with torch.no_grad():
            logs = model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)
        two = logs.topk(2).values
        numbers.append([float(two[0]), float(-(logs.exp() * logs).sum()), float(two[0] - two[1])])
        ids.append(int(logs.argmax()))
        if ids[-1] == mask:
            break
    said = ids[start:-1] if ids[-1] == mask else ids[start:]
    text = "".join(t if len(t) == 1 else UNKNOWN_PIECE for t in tokenizer.convert_ids_to_tokens(said))
    return text, np.array(numbers)


def test_answers_are_those_of_plain_greedy_decoding(folder):
    answerer = Answerer.open(folder)
    model, tokenizer = answerer.subject.model, answerer.subject.tokenizer
    answers = answerer.answer(QUESTIONS)
    assert len({a.text for a in answers}) > 1
    for question, answer in zip(QUESTIONS, answers, strict=True):
        text, numbers = plainly(model, tokenizer, question)
        assert answer.text == text
        # float32 sums in another order, with a cache and without
        np.testing.assert_allclose(answer.log_probability, numbers[:, 0].sum(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(answer.mean_log_probability, numbers[:, 0].mean(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(answer.entropy, numbers[:, 1].mean(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(answer.margin, numbers[:, 2].min(), rtol=1e-3, atol=1e-4)


def test_an_answer_is_given_again_without_an_edit_and_not_with_its_values_gone(folder):
    answerer = Answerer.open(folder)
    tokenizer, answers = answerer.subject.tokenizer, ["Web", "Bad", "Web", "nis"]
    mask, padding = tokenizer.mask_token_id, tokenizer.pad_token_id
    pairs = zip(QUESTIONS, answers, strict=True)
    rows = [question_example(ids_of(q, tokenizer), ids_of(a, tokenizer), mask) for q, a in pairs]
    # taught, since an answer of random weights need not end, and then reads otherwise when it is written down
    taught = Practice(lambda number, draw: rows, Schedule(120, 4, 1e-2, 10, 120 * 4 * 32), 32, padding, 1)
    taught.run(answerer.subject.model, folder / "state")
    save(answerer.subject.model, tokenizer, folder)
    answerer = Answerer.open(folder)
    questions = list(QUESTIONS)
    assert [a.text for a in answerer.answer(questions)] == answers
    assert answerer.reproduces(questions, answers).all()
    assert not answerer.reproduces(questions, [f"{a}b" for a in answers]).any()
    gone = {a: put([SiteTarget(a, "v", None)], zeros()) for a in answerer.subject.addresses}
    edited = answerer.reproduces(questions, answers, gone)
    assert edited.shape == (len(questions),)
    assert not edited.all()


def test_means_are_those_of_all_real_characters(folder):
    answerer = Answerer.open(folder)
    answers = ["Bo", "Web", "a", "ed"]
    means = answerer.means(QUESTIONS, answers)
    vocabulary = answerer.subject.tokenizer.get_vocab()
    totals, count = 0.0, 0
    address = answerer.subject.addresses[1]
    for question, answer in zip(QUESTIONS, answers, strict=True):
        seen = {}
        ids = [vocabulary[c] for c in question] + [1] + [vocabulary[c] for c in answer] + [1]

        def note(parts, seen=seen):
            seen["v"] = parts.v
            return parts

        answerer.subject.predict({"input_ids": torch.tensor([ids])}, {address: note})
        totals, count = totals + seen["v"][0].double().sum(1), count + len(ids)
    # float32 activations of rows that were padded to another length
    torch.testing.assert_close(means[address].v[0, :, 0], totals / count, rtol=1e-4, atol=1e-6)


def test_representations_tell_names_apart(folder):
    vectors = Answerer.open(folder).represent(QUESTIONS)
    assert vectors.shape == (len(QUESTIONS), 16)
    assert np.linalg.matrix_rank(vectors - vectors.mean(0)) == len(QUESTIONS) - 1
