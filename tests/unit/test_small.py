"""Small models: tokens are characters, folders are ordinary ones, answers are those of plain greedy decoding."""

import numpy as np
import pytest
import torch

from trisect.core.errors import DamagedFileError, SpecError
from trisect.core.subject import SiteTarget
from trisect.hf.load import load
from trisect.hf.small.gpt import (
    STRANGE,
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
from trisect.measure.intervention import put, zeros
from trisect.text.birth_places import question_example

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


def test_a_saved_model_is_an_ordinary_one(folder):
    subject = load(folder)
    assert subject.objective == "causal"
    assert len(subject.addresses) == 2
    assert not subject.notes
    reading = subject.read("Where was Bo born?")
    assert [t.weights.shape[-1] for t in reading.traces] == [len("Where was Bo born?")] * 2


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
    with pytest.raises(DamagedFileError, match="is trained again"):
        load_weights(model, folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "bert"}, "Unknown kind of model 'bert'"),
        ({"layers": 0}, "layers 0"),
        ({"width": 30}, "A width of 30"),
        ({"kind": "llama", "width": 24, "heads": 8}, "evenly for rotary positions"),
        ({"dropout": 1.0}, "A dropout of 1.0"),
    ],
)
def test_a_model_that_cannot_be_is_refused(settings, said):
    with pytest.raises(SpecError, match=said):
        GptShape(**settings)


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
    text = "".join(t if len(t) == 1 else STRANGE for t in tokenizer.convert_ids_to_tokens(said))
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
