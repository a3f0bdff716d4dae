"""Survival: which answers are counted, what is put in place, and the shares with their intervals."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from trisect.core.subject import Heads, Parts, Shape
from trisect.core.tables import frame
from trisect.core.trace import Address
from trisect.experiments.recall.rows import survival_measures
from trisect.experiments.recall.run import group_of, survival
from trisect.hf.small.gpt import Answerer, GptShape, make_model, make_tokenizer, save

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
    parts: Parts


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
        return {a: Parts(*(torch.full((1, 2, 1, 3), 10.0 * a.layer + i) for i in range(3))) for a in (FIRST, SECOND)}

    def reproduces(self, questions, answers, write=None):
        names = np.array([q[10] for q in questions])
        if not write:
            return names != "J"
        ((address, writer),) = write.items()
        here = Parts(*(torch.full((4, 2, 5, 3), 2.0) for _ in range(3)))
        self.seen.append(Write(address, writer(here)))
        edited = [name for name, part in self.seen[-1].parts._asdict().items() if not (part == 2).all()]
        return np.full(len(names), True) if (address, edited) == (FIRST, ["q"]) else names < "E"


@pytest.mark.parametrize(
    ("category", "correct", "group"),
    [
        ("pretraining only", True, "retrieved"),
        ("pretraining only", False, "wrong"),
        ("pretraining only", None, None),
        ("pretraining and fine-tuning", True, "taught"),
        ("fine-tuning only", True, "taught"),
        ("fine-tuning only", False, None),
        ("neither", None, "made up"),
        ("neither", True, "made up"),
    ],
)
def test_the_kind_of_an_answer(category, correct, group):
    assert group_of(row("A", category, correct)) == group


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


def test_measures_fit_their_table_whatever_the_order_of_the_rows():
    rows: Any = [
        {"model": m, "seed": s, **r}
        for m in ("pretrained", "left-out")
        for s in (0, 1)
        for r in survival(Planted(), ROWS)
    ]
    table = frame("measures", survival_measures(rows))
    assert len(table) == 2 * 4 * 12
    assert table.equals(frame("measures", survival_measures(rows[::-1])))
    assert set(table["group"]) == {"retrieved", "taught", "wrong", "made up"}


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
