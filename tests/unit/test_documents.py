"""Training and evaluation where only some words are to be predicted, layers that are idle, and interchange."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.unit.test_worlds import SMALL

from trisect.core.edits import make_edit
from trisect.core.errors import SpecError
from trisect.core.methods import Interchange
from trisect.core.schema import read
from trisect.core.site import Site
from trisect.core.spec import Model, Run, Training, to_json_data
from trisect.experiments.study.tasks import interchange
from trisect.lm import edits as _registered  # noqa: F401
from trisect.lm.adversary import control_labels
from trisect.lm.feed import Windows, evaluation_pieces
from trisect.lm.fleet import forward, views
from trisect.lm.rewind import blend, draw_rows, evaluate_variants, self_only_loss
from trisect.lm.train import Trainer

MODEL = Model(width=8, layers=2, heads=1, feedforward=8, dropout=0.0, idle=(1,))
TRAINING = Training(
    epochs=1, columns=4, eval_columns=2, window=5, optimizer="adamw", rate=5e-3, warmup=3, train_sample=100
)
CORPUS = SMALL.corpus({"train": 60, "valid": 22})


def trainer(*edits, model: Model = MODEL) -> Trainer:
    runs = [Run(CORPUS.fingerprint, model, TRAINING, 1, edit) for edit in (None, *edits)]
    return Trainer(runs, CORPUS, dtype=torch.float64)


def test_the_loss_is_that_of_answers_alone_in_training_and_evaluation():
    made = trainer()
    parameters = views(made.flat, made.places)
    piece = Windows(CORPUS, TRAINING, (), "cpu")[0]
    hidden = forward(parameters, piece.inputs, MODEL).hidden[0, :, 3]  # where questions stand
    logits = hidden @ parameters["decoder.weight"][0].T + parameters["decoder.bias"][0]
    answers = torch.from_numpy(CORPUS.splits["train"].tokens.reshape(4, 15, 5)[:, 0, 4]).long()
    wanted = F.cross_entropy(logits, answers)
    loss, _, _ = made.step()
    torch.testing.assert_close(loss[0], wanted)
    pieces = evaluation_pieces(CORPUS, TRAINING, "valid", (), "cpu")
    assert sum(piece.tokens for piece in pieces) == 22


def test_the_gradient_is_that_of_answers_alone():
    made = trainer()
    parameters = {n: v.clone().requires_grad_() for n, v in views(made.flat, made.places).items()}
    piece = Windows(CORPUS, TRAINING, (), "cpu")[0]
    logits = (
        forward(parameters, piece.inputs, MODEL).hidden[0] @ parameters["decoder.weight"][0].T
        + parameters["decoder.bias"][0]
    )
    assert piece.scored is not None
    F.cross_entropy(logits.flatten(0, 1)[piece.scored], piece.gold).backward()
    made.step()
    for name, leaf in parameters.items():
        own = made.gradients[name]
        wanted = torch.zeros_like(own) if leaf.grad is None else leaf.grad
        norm = torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None]).norm().item()
        torch.testing.assert_close(own, wanted * min(1.0, TRAINING.clip / (norm + 1e-6)))


def test_variants_and_cut_attention_are_evaluated_on_answers():
    made = trainer()
    final = views(made.flat, made.places)
    bare = {name: values[0] for name, values in final.items()}
    pieces = evaluation_pieces(CORPUS, TRAINING, "valid", (), "cpu")
    found = {name: value for split, name, value in made.evaluate()[0] if split == "valid"}
    curve = evaluate_variants(final, MODEL, pieces, Site.parse("v@2"), blend(bare, bare, [0.0, 1.0]))
    assert curve.loss_nats == pytest.approx([found["loss_nats"]] * 2)
    assert curve.n == curve.row_tokens.sum() == 22
    assert self_only_loss(final, MODEL, pieces).n == 22
    few = draw_rows(pieces, 40, "some")
    assert sum(piece.tokens for piece in few) == sum(len(piece.inputs) for piece in few) < 22


def test_nothing_of_an_idle_layers_attention_reaches_the_model():
    made = trainer(*(make_edit("freeze", Site.parse(f"{c}@1")) for c in ("q", "k", "v", "o")))
    for _ in range(5):
        made.step()
    places = made.places
    held = torch.ones(made.flat.shape[1], dtype=torch.bool)
    for name in ("in", "out"):
        for kind in ("weight", "bias"):
            held[places[f"layers.1.{name}.{kind}"].start : places[f"layers.1.{name}.{kind}"].stop] = False
    for other in made.flat[1:]:  # sums within a member may be cut elsewhere: rounding of float64
        torch.testing.assert_close(other[held], made.flat[0, held], rtol=0, atol=1e-15)
    working = trainer(make_edit("freeze", Site.parse("v@1")), model=replace(MODEL, idle=()))
    for _ in range(5):
        working.step()
    assert (working.flat[0, held] - working.flat[1, held]).abs().max() > 1e-4


def test_idle_layers_are_stated_only_where_there_are_some():
    run = Run("0" * 16, MODEL, TRAINING, 1)
    assert to_json_data(run)["model"].get("idle") == [1]
    assert read(Run, to_json_data(run), "a file") == run
    assert "idle" not in to_json_data(replace(run, model=Model()))["model"]
    assert run.id != replace(run, model=replace(MODEL, idle=())).id
    with pytest.raises(SpecError, match=r"(?s)idle is \[3\].*layers from 1 to 2.*Leave it out"):
        replace(MODEL, idle=(3,))


def test_control_labels_are_those_of_the_word_that_is_read():
    made = trainer(make_edit("attack", Site.parse("k@2"), {"label": "item.a", "strength": 1.0, "variant": "control"}))
    piece = Windows(CORPUS, TRAINING, ("item.a",), "cpu")[0]
    (group,) = made.objectives
    drawn = torch.from_numpy(control_labels(CORPUS, "item.a", 1)[0]).long()
    answers = group.answers(piece.label_words(group.columns), piece.labels)  # type: ignore[attr-defined]
    known = piece.labels["item.a"] >= 0
    assert torch.equal(answers[known], drawn[piece.inputs.flatten()][known])
    assert int(known.sum()) == 4 * 3


def test_a_donor_changes_nothing_in_an_idle_layer_and_everything_is_counted():
    made = trainer()
    final = {name: values[0] for name, values in views(made.flat, made.places).items()}
    pairs = SMALL.pairs(40, 1)
    rows = [interchange(final, MODEL, CORPUS.vocabulary, Site.parse(f"{c}@1"), pairs) for c in "qkv"]
    shares = [{row.measure: row.value or 0.0 for row in own} for own in rows]
    assert len({own["interchange_unchanged"] for own in shares}) == 1
    assert all(row.n == 40 and row.split == "valid" for own in rows for row in own)
    assert {"interchange_as_k", "interchange_as_v", "interchange_others", "interchange_own"} < set(shares[0])
    assert shares[0]["interchange_others"] == pytest.approx(
        shares[0]["interchange_as_k"] + shares[0]["interchange_as_v"]
    )


def test_putting_a_layers_own_representations_back_changes_nothing():
    made = trainer()
    parameters = views(made.flat, made.places)
    piece = Windows(CORPUS, TRAINING, (), "cpu")[0]
    passed = forward(parameters, piece.inputs, MODEL, blocks=[("qkv", 2)])
    again = forward(parameters, piece.inputs, MODEL, put={2: passed.blocks["qkv", 2]})
    torch.testing.assert_close(again.hidden, passed.hidden, rtol=0, atol=0)
    other = forward(parameters, piece.inputs, MODEL, put={2: passed.blocks["qkv", 2].roll(1, 1)})
    assert not torch.equal(other.hidden, passed.hidden)


def test_interchange_is_asked_at_single_components_of_single_layers():
    assert Interchange((Site.parse("q@2"),)).pairs == 1_000
    with pytest.raises(SpecError, match=r"(?s)interchange is at q\+k@2.*another answer.*such as k@2"):
        Interchange((Site.parse("q+k@2"),))
