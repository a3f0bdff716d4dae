"""Laws of a fleet in training: each member is a torch model, members never mix, and attackers learn apart from the models."""

import math
from dataclasses import replace

import pytest
import torch
from bench.plain import names, plain_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from trisect.core.spec import Model, Run
from trisect.lm.fleet import Dropout, causal, forward, generator, initial, layout, views
from trisect.lm.loss import loss_and_gradients, token_scores
from trisect.lm.train import Trainer

CORPUS = tiny.corpus()
RUNS = tiny.runs()


def trained(runs: list[Run], steps: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    trainer = Trainer(runs, CORPUS, dtype=dtype)
    for _ in range(steps):
        trainer.step()
    return trainer.flat


def with_training(runs: list[Run], **changes: object) -> list[Run]:
    return [replace(r, training=replace(r.training, **changes)) for r in runs]


def test_members_differ_from_the_baseline_by_their_edit_alone():
    flat = trained(RUNS, 3)
    base = RUNS.index(next(r for r in RUNS if r.edit is None))
    assert all(not torch.equal(flat[base], flat[i]) for i in range(len(RUNS)) if i != base)


@pytest.fixture
def attackers():
    """A group of attackers."""
    trainer = Trainer([r for r in RUNS if r.edit and r.edit.kind == "attack"], CORPUS, dtype=torch.float64)
    return tiny.attackers_of(trainer)[0]


def test_batch_statistics_are_updated_by_the_attackers_own_pass_and_not_by_the_models(attackers):
    x = torch.randn(len(attackers.slots), attackers.places["1.weight"].shape[1], 30, dtype=torch.float64)
    y = torch.arange(30) % len(CORPUS.column("pos"))
    mean, flat = attackers.mean.clone(), attackers.flat.clone()
    attackers.gradient(x, y)
    attackers.judge(x, y)
    assert torch.equal(attackers.mean, mean)
    assert torch.equal(attackers.flat, flat)
    attackers.learn(x, y)
    assert not torch.equal(attackers.mean, mean)
    assert not torch.equal(attackers.flat, flat)


def test_tokens_without_a_label_teach_the_attacker_nothing(attackers):
    x = torch.randn(len(attackers.slots), attackers.places["1.weight"].shape[1], 30, dtype=torch.float64)
    y = torch.arange(30) % 3
    y[10:] = -1
    changed = x.clone()
    changed[..., 10:] = 7.0
    assert torch.equal(attackers.gradient(x, y)[..., :10], attackers.gradient(changed, y)[..., :10])
    assert torch.equal(attackers.gradient(x, y)[..., 10:], torch.zeros_like(x[..., 10:]))
    assert attackers.learn(x, torch.full_like(y, -1)) is None
    assert torch.equal(attackers.gradient(x, torch.full_like(y, -1)), torch.zeros_like(x))


def test_an_attacker_learns_what_the_representation_holds_and_the_push_unlearns_it():
    trainer = Trainer([r for r in RUNS if r.edit and r.edit.kind == "attack"][:1], CORPUS, dtype=torch.float64)
    group = tiny.attackers_of(trainer)[0]
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (200,), generator=draw)
    x = torch.randn(1, 8, 200, generator=draw, dtype=torch.float64) * 0.1
    x[0, 0] += y * 2.0
    for _ in range(150):
        group.learn(x, y)
    loss, correct = group.judge(x, y)
    assert float(correct.double().mean()) > 0.95
    pushed = x - 400 * group.gradient(x, y)  # downhill on −λ·CE
    assert float(group.judge(pushed, y)[0].mean()) > float(loss.mean())


def test_each_member_is_clipped_by_its_own_norm():
    base = next(r for r in RUNS if r.edit is None)
    wild = next(replace(r, edit=replace(r.edit, strength=1e4)) for r in RUNS if r.edit and r.edit.kind == "attack")
    runs = with_training([base, wild], optimizer="sgd", rate=1.0, warmup=0, clip=0.01)
    trainer = Trainer(runs, CORPUS, dtype=torch.float64)
    before = trainer.flat.clone()
    trainer.step()
    norms = (trainer.flat - before).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((2,), 0.01, dtype=torch.float64), rtol=1e-3, atol=0)


def test_a_member_that_diverges_is_buried_and_leaves_the_others_alone():
    base = next(r for r in RUNS if r.edit is None)
    frozen = next(r for r in RUNS if r.edit and r.edit.kind == "freeze")
    trainer, clean = (Trainer([base, frozen], CORPUS, dtype=torch.float64) for _ in range(2))
    for t in (trainer, clean):
        t.step()
    trainer.flat[1, trainer.places["layers.1.up.weight"].start] = float("nan")
    poisoned = trainer.flat[1].clone()
    for t in (trainer, clean):
        t.step()
        t.step()
    assert trainer.dead == {1: 2}
    assert torch.equal(trainer.flat[0], clean.flat[0])
    assert torch.equal(trainer.flat[1].isnan(), poisoned.isnan())
    assert clean.dead == {}


def test_initial_weights_are_drawn_as_the_source_says():
    model, vocabulary = Model(40, 2, 5, 30, 0.1), 500
    p = views(initial(model, vocabulary, 3)[None], layout(model, vocabulary))
    bounds = {"embed.weight": 0.1, "decoder.weight": 0.1, "layers.1.in.weight": (6 / 160) ** 0.5}
    bounds |= {"layers.2.out.weight": 40**-0.5, "layers.1.up.weight": 40**-0.5, "layers.1.down.weight": 30**-0.5}
    for name, bound in bounds.items():
        assert 0.97 * bound < float(p[name].abs().max()) <= bound, name
        assert float(p[name].std()) == pytest.approx(bound / 3**0.5, rel=0.06)
    for name, value in p.items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif "norm" in name:
            assert (value == 1).all(), name
    assert not torch.equal(initial(model, vocabulary, 3), initial(model, vocabulary, 4))


def test_the_rate_warms_up_by_step_and_decays_by_epoch():
    base = next(r for r in RUNS if r.edit is None)
    trainer = Trainer(with_training([base], rate=0.5, warmup=4, decay=0.5), CORPUS)
    optimizer, rates = trainer.descent.optimizer, []
    assert optimizer is not None
    for _ in range(2 * trainer.steps_per_epoch + 1):
        trainer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:5] == [0.125, 0.25, 0.375, 0.5, 0.5]
    assert rates[trainer.steps_per_epoch] == 0.25
    assert rates[2 * trainer.steps_per_epoch] == 0.125


def test_weight_decay_acts_in_both_optimisers():
    base = next(r for r in RUNS if r.edit is None)
    for optimizer in ("sgd", "adamw"):
        with_decay, without = (
            trained(with_training([base], optimizer=optimizer, rate=0.1, weight_decay=d), 2) for d in (0.1, 0.0)
        )
        assert not torch.equal(with_decay, without)


def test_the_dead_stay_dead_after_a_snapshot(tmp_path):
    runs = RUNS[:2]
    trainer, again = Trainer(runs, CORPUS), Trainer(runs, CORPUS)
    trainer.step()
    trainer.flat[1, 0] = float("nan")
    trainer.step()
    trainer.save(tmp_path / "x", {"epoch": 1})
    assert again.load(tmp_path / "x") == {"epoch": 1}
    assert again.dead == trainer.dead == {1: 2}
    for t in (trainer, again):
        t.step()
    assert torch.equal(trainer.flat[0], again.flat[0])


def test_a_member_whose_evaluation_is_no_number_has_diverged():
    from trisect.lm.train import _record

    trainer = Trainer(RUNS[:2], CORPUS)
    rows = [[], []]
    _record(rows, 1, trainer, {0: [("train", "loss_nats", 3.0)], 1: [("train", "loss_nats", float("inf"))]})
    assert rows == [[(1, "train", "loss_nats", 3.0)], []]
    assert set(trainer.dead) == {1}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_an_accelerator_a_snapshot_goes_on_as_if_never_stopped(tmp_path):
    trainer, again = Trainer(RUNS, CORPUS, "cuda"), Trainer(RUNS, CORPUS, "cuda")
    trainer.step()
    trainer.save(tmp_path / "x", None)
    again.load(tmp_path / "x")
    for t in (trainer, again):
        t.step()
    torch.testing.assert_close(trainer.flat, again.flat, rtol=1e-4, atol=1e-5)


def test_dropout_masks_are_shared_by_members_and_a_function_of_seed_and_step():
    x = torch.ones(3, 4, 50, 8)
    a, b = Dropout(0.2, generator("dropout", 1, 5)), Dropout(0.2, generator("dropout", 1, 5))
    one = a(x)
    assert torch.equal(one[0], one[2])
    assert torch.equal(one[:1], b(x[:1]))
    assert not torch.equal(one, a(x))
    assert not torch.equal(one, Dropout(0.2, generator("dropout", 1, 6))(x))
    assert not torch.equal(one, Dropout(0.2, generator("dropout", 2, 5))(x))
    # 8,000 draws of share 0.2: five standard deviations are 0.022
    many = Dropout(0.2, generator("dropout", 3, 0))(torch.ones(1, 8_000))
    assert float((many == 0).double().mean()) == pytest.approx(0.2, abs=0.023)
    assert float(many.max()) == pytest.approx(1.25, abs=1e-4)
    assert torch.equal(Dropout(0.0, generator("dropout", 1, 1))(x), x)


@settings(max_examples=12, deadline=None)
@given(
    heads=st.integers(1, 3),
    each=st.sampled_from([2, 4, 6]),
    layers=st.integers(1, 3),
    inner=st.integers(1, 9),
    members=st.integers(1, 3),
    length=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_each_member_agrees_with_torch_encoder_in_logits_and_all_gradients(
    heads, each, layers, inner, members, length, seed
):
    model, vocabulary = Model(heads * each, layers, heads, inner, 0.0), 7
    places = layout(model, vocabulary)
    draw = torch.Generator().manual_seed(seed)
    flat = torch.stack([initial(model, vocabulary, seed + i).double() for i in range(members)])
    flat += 0.3 * torch.randn(flat.shape, generator=draw, dtype=torch.float64)  # biases and norms off their start
    x, y = (torch.randint(vocabulary, (2, length), generator=draw) for _ in range(2))
    leaves = {n: v.detach().requires_grad_() for n, v in views(flat, places).items()}
    passed = forward(leaves, x, model)
    scores, found = loss_and_gradients(
        passed.hidden.detach().flatten(1, 2),
        leaves["decoder.weight"].detach(),
        leaves["decoder.bias"].detach(),
        y.flatten(),
    )
    body = [n for n in places if not n.startswith("decoder")]
    of_hidden = found.hidden.view_as(passed.hidden)
    of_body = torch.autograd.grad(passed.hidden, [leaves[n] for n in body], of_hidden)
    gradients = dict(zip(body, of_body, strict=True))
    gradients |= {"decoder.weight": found.weight, "decoder.bias": found.bias}
    for i in range(members):
        reference = plain_of(model, vocabulary, {n: v[i].detach() for n, v in leaves.items()})
        logits = reference(x)
        ours = passed.hidden[i] @ leaves["decoder.weight"][i].T + leaves["decoder.bias"][i]
        torch.testing.assert_close(ours, logits, rtol=1e-10, atol=1e-10)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        assert float(scores.loss[i].mean()) == pytest.approx(loss.item(), abs=1e-10)
        assert torch.equal(scores.correct[i], logits.flatten(0, 1).argmax(-1) == y.flatten())
        theirs = dict(reference.named_parameters())
        assert len(theirs) == len(gradients)
        for ours_name, their_name in names(model, vocabulary).items():
            torch.testing.assert_close(gradients[ours_name][i], theirs[their_name].grad, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(
    members=st.integers(1, 3),
    rows=st.integers(1, 9),
    vocabulary=st.integers(2, 9),
    block=st.integers(1, 60),
    shared=st.booleans(),
)
def test_blocks_of_any_size_give_the_same_scores(members, rows, vocabulary, block, shared, monkeypatch_block):
    draw = torch.Generator().manual_seed(rows)
    h = torch.randn(members, rows, 4, generator=draw, dtype=torch.float64)
    w = torch.randn(1 if shared else members, vocabulary, 4, generator=draw, dtype=torch.float64)
    b = torch.randn(w.shape[0], vocabulary, generator=draw, dtype=torch.float64)
    y = torch.randint(vocabulary, (rows,), generator=draw)
    with monkeypatch_block(block):
        scores = token_scores(h, w, b, y)
    z = h @ w.transpose(1, 2) + b[:, None]
    torch.testing.assert_close(scores.loss, z.logsumexp(-1) - z[:, torch.arange(rows), y], rtol=1e-12, atol=1e-12)
    assert torch.equal(scores.correct, z.argmax(-1) == y)


def test_causal_mask_hides_exactly_the_future():
    model = Model(8, 2, 2, 8, 0.0)
    flat = initial(model, 11, 0).double()[None]
    p = views(flat, layout(model, 11))
    x = torch.tensor([[1, 2, 3, 4, 5]])
    changed = x.clone()
    changed[0, 3] = 9
    one, other = forward(p, x, model).hidden, forward(p, changed, model).hidden
    assert torch.equal(one[:, :, :3], other[:, :, :3])
    assert not torch.allclose(one[:, :, 3:], other[:, :, 3:])
    assert causal(3, torch.float64, "cpu").tolist()[1] == [0.0, 0.0, -math.inf]
