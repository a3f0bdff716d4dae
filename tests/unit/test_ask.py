"""Asking a trained model: what it answers and when it holds back, and which answers stay when a component is replaced."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from trisect.core.errors import CorpusError, DamagedFileError, ModelError, SpecError
from trisect.core.files import write_json
from trisect.core.subject import QKV, Heads, Shape
from trisect.core.trace import Address
from trisect.experiments.recall import ask as asking
from trisect.experiments.recall.ask import CARD
from trisect.experiments.recall.rows import survival_measures
from trisect.experiments.recall.run import survival
from trisect.hf.small.gpt import Answerer, GptShape, make_model, make_tokenizer, save

NAMES = {
    "Anna Meier": [True, True, "Adona"],
    "Anna Mayer": [True, False, None],
    "Bo Lund": [False, True, "Culf"],
    "Cy Gone": [False, False, "Dach"],
}
LINES = [
    {"risk": 0.1, "threshold": None, "coverage": 0.0, "n": 40},
    {"risk": 0.2, "threshold": 0.7, "coverage": 0.25, "n": 40},
    {"risk": 0.4, "threshold": 0.5, "coverage": 0.5, "n": 40},
]


class Said(NamedTuple):
    text: str
    log_probability: float
    unknown: tuple[str, ...] = ()


class StandIn:
    """Says the same to every question, and remembers what it was asked."""

    def __init__(self, text: str = "Adona", probability: float = 0.6, unknown: tuple[str, ...] = ()) -> None:
        self.said, self.asked = Said(text, math.log(probability), unknown), []

    def answer(self, questions: Sequence[str]) -> list[Said]:
        self.asked += questions
        return [self.said for _ in questions]


def ask(folder, question, risk=None, model=None):
    """Ask the model of the folder, or another in its place."""
    with pytest.MonkeyPatch.context() as patch:
        if model is not None:
            patch.setattr(Answerer, "open", lambda folder: model)
        return asking.ask(folder, question, risk)


@pytest.fixture
def folder(tmp_path):
    write_json(tmp_path / CARD, {"names": NAMES, "thresholds": LINES})
    return tmp_path


@pytest.mark.parametrize(
    ("risk", "probability", "answered", "threshold"),
    [
        (None, 0.6, True, 0.5),  # the largest risk that has a threshold
        (None, 0.4, False, 0.5),
        (0.2, 0.6, False, 0.7),
        (0.2, 0.8, True, 0.7),
        (0.4, 0.6, True, 0.5),
        (0.1, 0.99, False, None),
        (1, 0.01, True, None),
    ],
)
def test_it_holds_back_below_the_threshold_of_the_risk(folder, risk, probability, answered, threshold):
    reply = ask(folder, "Where was Anna Meier born?", risk, StandIn("Adona", probability))
    assert reply.answer == ("Adona" if answered else None)
    assert reply.guess == "Adona"
    assert reply.probability == pytest.approx(probability, abs=1e-12)  # exp(log p) rounds
    assert (reply.threshold and reply.threshold.threshold) == threshold
    assert ("Adona" in reply.words()[0]) == answered
    assert ("Not confident enough to answer." in reply.words()[0]) != answered


def test_a_probability_at_the_threshold_is_answered(folder):
    one = LINES[1] | {"threshold": math.exp(math.log(0.7))}
    write_json(folder / CARD, {"names": NAMES, "thresholds": [one]})
    assert ask(folder, "Where was Bo Lund born?", 0.2, StandIn(probability=0.7)).answer == "Adona"


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("Anna Meier", "pretraining and fine-tuning"),
        ("Anna Mayer", "pretraining only"),
        ("Bo Lund", "fine-tuning only"),
        ("Cy Gone", "neither"),
        ("Nobody Else", "neither"),
    ],
)
def test_it_says_where_the_name_was_read(folder, name, seen):
    model = StandIn()
    reply = ask(folder, f"  Where was {name} born? ", 0.4, model)
    assert (reply.name, reply.seen) == (name, seen)
    assert any("no text" in line if seen == "neither" else seen in line for line in reply.words())
    assert model.asked == [f"Where was {name} born?"]
    assert len(reply.notes) == (seen == "neither")  # the threshold was set on names that were read


def test_the_nearest_names_are_known_ones_other_than_the_name_itself(folder):
    reply = ask(folder, "Where was Anna Meier born?", 1, StandIn())
    assert [(n.name, n.place) for n in reply.nearest] == [("Anna Mayer", None)]  # Bo Lund shares no piece of it
    other = ask(folder, "Where was Anna Lund born?", 1, StandIn())
    assert {n.name for n in other.nearest} == {"Anna Meier", "Anna Mayer", "Bo Lund"}
    assert [n.similarity for n in other.nearest] == sorted((n.similarity for n in other.nearest), reverse=True)
    line = next(line for line in other.words() if line.startswith("Nearest known names: "))
    assert re.search(r"Bo Lund \(0\.\d\d, Culf\)", line)
    assert re.search(r"Anna Mayer \(0\.\d\d\)", line)


def test_names_that_share_nothing_are_not_near(folder):
    reply = ask(folder, "Where was Zzz Xyx born?", 1, StandIn())
    assert reply.nearest == ()
    assert not [line for line in reply.words() if line.startswith("Nearest")]
    write_json(folder / CARD, {"names": {}, "thresholds": []})
    assert ask(folder, "Where was Anna born?", 1, StandIn()).nearest == ()


def test_the_rule_is_said_with_what_it_rests_on(folder):
    said, never = (ask(folder, "Where was Bo Lund born?", risk, StandIn()).words()[1] for risk in (0.2, 0.1))
    assert all(number in said for number in ("0.700", "20\u00a0%", "40 held-out", "25\u00a0%"))
    assert "abstains always" in never
    assert "10\u00a0%" in never
    assert not [line for line in ask(folder, "Where was Bo Lund born?", 1, StandIn()).words() if "abstains" in line]


def test_without_any_threshold_it_always_answers(folder):
    write_json(folder / CARD, {"names": NAMES, "thresholds": []})
    reply = ask(folder, "Where was Bo Lund born?", None, StandIn(probability=0.001))
    assert (reply.answer, reply.threshold) == ("Adona", None)


@pytest.mark.parametrize("answer", ["", " ", "  "])
def test_an_empty_answer_is_no_silence(folder, answer):
    said = ask(folder, "Where was Bo Lund born?", 1, StandIn(answer)).words()[0]
    assert said == f"'{answer}'  (probability 0.600)"


def test_a_model_that_read_none_of_the_held_out_names_keeps_its_risk_for_others(folder):
    tuned = {name: [False, row[1], row[2]] for name, row in NAMES.items() if row[1]}
    write_json(folder / CARD, {"names": tuned, "thresholds": LINES})
    reply = ask(folder, "Where was Nobody Else born?", 0.4, StandIn())
    assert (reply.seen, reply.notes) == ("neither", ())


def test_characters_outside_the_vocabulary_are_counted(folder):
    (note,) = ask(folder, "Where was Łłł born?", 1, StandIn(unknown=("Ł", "ł", "ł"))).notes
    assert note.startswith("3 characters")
    assert "'Ł', 'ł' (2 times)" in note
    (note,) = ask(folder, "Where was Ł born?", 1, StandIn(unknown=("Ł",))).notes
    assert note.startswith("1 character of")


@pytest.mark.parametrize(
    "question", ["", "  ", "Where was born?", "Where was  born?", "Who is Anna Meier?", "Anna Meier"]
)
def test_a_question_about_no_name(folder, question):
    model = StandIn()
    with pytest.raises(CorpusError, match="is about no name"):
        ask(folder, question, 1, model)
    assert model.asked == []


@pytest.mark.parametrize("risk", [0.3, 0.0, -1.0, float("nan")])
def test_a_risk_without_a_threshold(folder, risk):
    with pytest.raises(SpecError) as raised:
        ask(folder, "Where was Bo Lund born?", risk, StandIn())
    assert f"{risk:g}" in raised.value.problem
    assert "0.1, 0.2, 0.4" in raised.value.reason


@pytest.mark.parametrize(
    ("body", "place", "named"),
    [
        (None, "", "the folder has no recall.json"),
        (None, "gone", "no such folder"),
        ({"recipe": {}, "seeds": [0]}, "", "models"),
    ],
)
def test_a_folder_that_is_not_there_or_holds_no_card_of_a_model(tmp_path, body, place, named):
    if body is not None:
        write_json(tmp_path / CARD, body)
    with pytest.raises(ModelError) as raised:
        ask(tmp_path / place, "Where was Bo Lund born?", 1, StandIn())
    assert str(tmp_path / place) in raised.value.problem
    assert named in raised.value.reason


def damaged(folder) -> DamagedFileError:
    with pytest.raises(DamagedFileError) as raised:
        ask(folder, "Where was Bo Lund born?", 1, StandIn())
    assert str(folder / CARD) in raised.value.problem
    assert "'trisect recall' again" in raised.value.todo
    return raised.value


def test_a_card_that_recall_did_not_write(folder):
    (folder / CARD).write_text((folder / CARD).read_text().replace("Adona", "Adonb"))
    assert "checksum" in str(damaged(folder))


@pytest.mark.parametrize(
    "body", [[], {"names": {"Bo Lund": [True]}, "thresholds": []}, {"names": NAMES, "thresholds": [{"risk": 0.1}]}]
)
def test_a_card_of_other_content(folder, body):
    write_json(folder / CARD, body)
    assert ("is no card of a model" in damaged(folder).problem) == isinstance(body, dict)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small model of its own vocabulary, as a recall leaves one, though with random weights."""
    from trisect.hf.small.gpt import GptShape, make_model, make_tokenizer, save

    place = tmp_path_factory.mktemp("trained")
    tokenizer = make_tokenizer(sorted(set("Where was Anna Meier born? Adona Bo Lund")), 32)
    save(make_model(GptShape(layers=1, heads=2, width=16, block=32), tokenizer, 0), tokenizer, place)
    write_json(place / CARD, {"names": NAMES, "thresholds": LINES})
    return place


def test_a_model_from_its_folder(trained):
    first, again = (ask(trained, "Where was Anna Meier born?", 1) for _ in range(2))
    assert first == again
    assert 0 < first.probability <= 1
    assert first.answer == first.guess
    (note,) = ask(trained, "Where was Zoë Lund born?", 1).notes
    assert note == "2 characters of the question not in the vocabulary, read as unknown: 'Z', 'ë'."


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("how", ["short", "gone"])
def test_a_model_whose_files_are_broken(trained, tmp_path, file, how):
    folder = shutil.copytree(trained, tmp_path / "m")
    if how == "gone":
        (folder / file).unlink()
    else:
        (folder / file).write_bytes((folder / file).read_bytes()[:100])
    with pytest.raises(ModelError) as raised:
        ask(folder, "Where was Anna Meier born?", 1)
    assert str(folder) in raised.value.problem
    assert f"Delete the folder {folder}" in raised.value.todo


def test_a_question_longer_than_the_model_reads(trained):
    with pytest.raises(CorpusError, match="context is 32 characters"):
        ask(trained, f"Where was {'Anna ' * 5}Meier born?", 1)


FIRST, SECOND = Address("plain", 1), Address("plain", 2)


def row(name, category, correct, answer="Ulm") -> Any:
    return {"question": f"Where was {name} born?", "category": category, "correct": correct, "answer": answer}


ROWS = [
    row("A", "pretraining only", True),
    row("B", "pretraining only", True),
    row("C", "pretraining only", False),
    row("D", "pretraining only", None),
    row("E", "pretraining and fine-tuning", True),
    row("F", "fine-tuning only", True),
    row("G", "pretraining and fine-tuning", False),
    row("H", "neither", None),
    row("I", "neither", False),
    row("J", "neither", True),
]


class Write(NamedTuple):
    """What a replacement did to one layer whose q, k and v were all 2."""

    address: Address
    parts: QKV


class Planted(Answerer):
    """Answers survive where the first layer's q is edited, and else for names before E; J is never given again."""

    seen: list[Write]

    def __init__(self):
        object.__setattr__(self, "seen", [])

    @property
    def shape(self):
        return Shape({SECOND: Heads(2, 2), FIRST: Heads(2, 2)})

    def means(self, questions, answers):
        assert list(questions) == [r["question"] for r in ROWS if r["question"][10] not in "DG"]
        assert set(answers) == {"Ulm"}
        return {a: QKV(*(torch.full((1, 2, 1, 3), 10.0 * a.layer + i) for i in range(3))) for a in (FIRST, SECOND)}

    def reproduces(self, questions, answers, write=None):
        names = np.array([q[10] for q in questions])
        if not write:
            return names != "J"
        ((address, writer),) = write.items()
        here = QKV(*(torch.full((4, 2, 5, 3), 2.0) for _ in range(3)))
        self.seen.append(Write(address, writer(here)))
        edited = [name for name, part in self.seen[-1].parts._asdict().items() if not (part == 2).all()]
        return np.full(len(names), True) if (address, edited) == (FIRST, ["q"]) else names < "E"


def test_one_component_of_one_layer_is_replaced_at_a_time():
    planted = Planted()
    survival(planted, ROWS)
    assert len(planted.seen) == 2 * 2 * 3
    found = [(w.address.layer, [p.unique().tolist() for p in w.parts]) for w in planted.seen]
    for layer in (1, 2):
        means = [[10.0 * layer + i] for i in range(3)]
        for how in (means, [[0.0]] * 3):
            for i in range(3):
                assert (layer, [how[i] if i == j else [2.0] for j in range(3)]) in found


def test_answers_are_counted_by_kind_and_those_not_given_again_are_not():
    rows: Any = survival(Planted(), ROWS)
    assert len(rows) == 4 * 12
    where = {(r["group"], r["how"], r["layer"], r["component"]): r["same"] for r in rows}
    assert {r["stack"] for r in rows} == {"plain"}
    ask = "Where was {} born?".format
    assert where["retrieved", "zero", 2, "v"] == {ask("A"): True, ask("B"): True}
    assert where["wrong", "mean", 1, "k"] == {ask("C"): True}
    assert where["taught", "mean", 1, "v"] == {ask("E"): False, ask("F"): False}
    assert where["taught", "mean", 1, "q"] == {ask("E"): True, ask("F"): True}
    assert where["made up", "zero", 1, "k"] == {ask("H"): False, ask("I"): False}
    assert survival(Planted(), [ROWS[3], ROWS[6]]) == []


def test_shares_are_means_over_seeds_with_intervals_over_names():
    one = {f"n{i}": i < 12 for i in range(40)}
    two = {f"n{i}": i < 20 for i in range(40)}
    place = {"group": "retrieved", "how": "mean", "stack": "plain", "layer": 1, "component": "v"}
    rows: Any = [{"model": "pretrained", "seed": s, **place, "same": same} for s, same in enumerate((one, two))]
    alone: Any = survival_measures(rows[:1])[0]
    both: Any = survival_measures(rows)[0]
    assert alone["value"] == 0.3
    assert both["value"] == 0.4
    assert alone["low"] < 0.3 < alone["high"]
    # of 40 names the standard error is √(0.3 · 0.7 / 40) = 0.072; ± 2.02 of it, and the end of a bootstrap of 2,000 draws
    assert alone["high"] - alone["low"] == pytest.approx(2 * 2.02 * 0.0725, rel=0.15)
    assert both["low"] < alone["low"] < alone["high"] < both["high"]  # with two seeds, one degree of freedom
    assert (alone["measure"], alone["n"], alone["subject"]) == ("survival", 40, "pretrained")
    assert survival_measures([rows[0] | {"how": "zero"}])[0]["measure"] == "survival_zero"
    sure: Any = survival_measures([rows[0] | {"same": dict.fromkeys(one, True)}])[0]
    assert sure["value"] == 1.0
    assert 0.9 < sure["low"] < 1  # 40 of 40 is not certainty
    single = survival_measures([rows[0] | {"same": {"n1": False}}])[0]
    assert (single["value"], single["n"]) == (0.0, 1)
    assert survival_measures([]) == []


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    """A model of two layers with large random weights, so that its answers differ and some of them end."""
    folder = tmp_path_factory.mktemp("survival")
    tokenizer = make_tokenizer(sorted(set("Where was born?abcd")), 48)
    model = make_model(GptShape("llama", 2, 2, 16, 48, 0.0), tokenizer, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12 if parameter.dim() > 1 else 1)
    save(model, tokenizer, folder)
    return Answerer.open(folder)


def test_a_model_without_queries_is_the_same_as_one_without_keys(answerer):
    names = [a + b + c for a in "abcd" for b in "abcd" for c in "abcd"]
    questions = [f"Where was {name} born?" for name in names]
    rows: Any = [
        row(name, "neither", None, answer.text) for name, answer in zip(names, answerer.answer(questions), strict=True)
    ]
    found: Any = {(r["how"], r["layer"], r["component"]): r["same"] for r in survival(answerer, rows)}
    assert len(found) == 12
    for layer in (1, 2):
        # with q or k of zero every score is zero, and every position that may be seen weighs the same
        assert found["zero", layer, "q"] == found["zero", layer, "k"]
    shares = {place: np.mean(list(same.values())) for place, same in found.items()}
    assert len(found["zero", 1, "v"]) >= 5
    assert min(shares.values()) < 1
    # the same question, asked of the model as it is, is answered the same
    ended = list(found["mean", 1, "v"])
    answers = {r["question"]: r["answer"] for r in rows}
    assert answerer.reproduces(ended, [answers[q] for q in ended]).all()
