import math

import pytest
import torch
from bench.plain import names, plain_of
from hypothesis import given, settings
from hypothesis import strategies as st

from trisect.core.spec import Model
from trisect.lm.fleet import causal, forward, initial, layout, views
from trisect.lm.loss import loss_and_gradients, token_scores


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
    gradients = dict(
        zip(
            body,
            torch.autograd.grad(passed.hidden, [leaves[n] for n in body], found.hidden.view_as(passed.hidden)),
            strict=True,
        )
    )
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
