"""Translators: small models that learn a generated language pair, are kept as folders, and go on where they stopped."""

import json
import shlex
from dataclasses import replace

import pytest
import torch

import trisect
from trisect.cli.options import command, parse_options, say_result
from trisect.core.errors import CorpusError, SpecError
from trisect.core.schema import build
from trisect.experiments.translate import TRANSLATE
from trisect.experiments.translate.settings import EMBEDDED, RECIPES, SMALL, TranslateSettings
from trisect.hf.load import load
from trisect.hf.small.gpt import save
from trisect.hf.small.translator import (
    POSITIONS,
    TranslationLoss,
    Translator,
    TranslatorShape,
    encode,
    learn_tokenizer,
    make_model,
)
from trisect.lab.inputs import choose_recipe

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
    ("change", "given"),
    [
        ({"layers": 0}, "layers 0."),
        ({"inner": 0}, "inner 0."),
        ({"width": 30}, "A width of 30."),
        ({"width": 3, "heads": 3}, "A width of 3."),
        ({"dropout": 1.0}, "A dropout of 1.0."),
    ],
)
def test_an_architecture_that_cannot_be(change, given):
    with pytest.raises(SpecError) as raised:
        TranslatorShape(**change)
    assert raised.value.problem == given
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
    model = make_model(TranslatorShape(2, 2, 16, 16), tokenizer, 1).eval()
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
    first, second, other = (dict(make_model(shape, tokenizer, s).named_parameters()) for s in (1, 1, 2))
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
    context = command(TRANSLATE, say_result).make_context("translate-train", words[2:])
    read = build(TranslateSettings, parse_options(TranslateSettings, context.params))
    assert (read.seeds, read.recipe) == ((3,), "small")
    # only what is not the recipe's own is said; its batches of 4, its width of 16 ...
    assert read.settings == {key: str(value) for key, value in {**TINY, "longest": 5}.items()}
    assert [found.measure for found in made.findings] == ["smoothed_loss_nats"]
    assert made.tables["metrics"]["split"].unique().to_list() == ["train"]


@pytest.mark.parametrize("seeds", [[], [1, 1], [-1], [2**32]])
def test_seeds_that_are_none(files, tmp_path, seeds):
    with pytest.raises(SpecError) as raised:
        train(files, tmp_path / "a", seeds, TINY)
    assert (str(seeds) if len(seeds) != 1 else str(seeds[0])) in raised.value.problem
    assert not (tmp_path / "a").exists()


def test_no_pair_is_short_enough(files, tmp_path):
    with pytest.raises(CorpusError, match="No train pair of at most 1 words") as raised:
        train(files, tmp_path / "a", [1], {**TINY, "longest": 1})
    assert "The 12 train pairs" in raised.value.reason


def test_recipes_follow_the_data_and_take_settings():
    assert choose_recipe(RECIPES, None, embedded=True) == EMBEDDED
    changed = choose_recipe(RECIPES, None, embedded=False, changes={"epochs": "20", "pieces": 6000})
    assert changed == replace(SMALL, epochs=20, pieces=6000)
    assert list(RECIPES) == ["embedded", "small"]
    schedule = SMALL.schedule(100)  # 4 steps of 32 pairs an epoch
    assert (schedule.warmup_tokens, schedule.decay_tokens) == (32_000, 9 * 4 * 32)
    for settings, given in (({"longest": 0}, "longest is 0."), ({"batch": 0}, "batch is 0.")):
        with pytest.raises(SpecError) as raised:
            choose_recipe(RECIPES, None, False, settings)
        assert raised.value.problem == given
    with pytest.raises(SpecError) as raised:
        choose_recipe(RECIPES, "course", False)
    assert raised.value.reason == "There are embedded, small."
