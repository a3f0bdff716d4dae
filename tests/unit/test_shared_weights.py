"""Matrices that several layers, or several of q, k, v and o, use: found by their numbers, and said."""

from __future__ import annotations

from dataclasses import replace

from tests.traces import random_projections

from trisect.core.trace import Address, find_shared_weights


def test_layers_that_share_are_named_together():
    alone = {Address("plain", n): {name: (name, n) for name in "qkvo"} for n in range(1, 5)}
    assert find_shared_weights(alone) == ()
    whole = {address: {name: name for name in "qkvo"} for address in alone}
    assert find_shared_weights(whole) == ("Layers 1–4 share one set of weights.",)
    some = {a: own | ({"k": "K", "v": "V"} if a.layer in (1, 3, 4) else {}) for a, own in alone.items()}
    assert find_shared_weights(some) == ("Layers 1, 3–4 share one k and v.",)


def test_stacks_that_share_are_named_both():
    tied = {Address(stack, n): {name: (name, n) for name in "qkvo"} for stack in ("enc", "dec") for n in (1, 2)}
    said = [f"Enc layer {n} and dec layer {n} share one set of weights." for n in (1, 2)]
    assert list(find_shared_weights(tied)) == said


def test_components_that_are_one_matrix_are_named():
    tied = {Address("plain", n): {"q": n, "k": n, "v": -n} for n in (1, 2)}
    assert find_shared_weights(tied) == ("Layers 1–2: q and k are one matrix.",)


def test_hashes_are_of_the_numbers():
    one, other = (random_projections(seed, bias=True) for seed in (1, 2))
    assert one.hashes() == replace(one, w_q=one.w_q.clone()).hashes()  # type: ignore[union-attr]
    assert not set(one.hashes().items()) & set(other.hashes().items())
    assert one.hashes()["q"][0] == replace(one, b_q=None).hashes()["q"][0]
    assert replace(one, w_v=None).hashes().keys() == {"q", "k", "o"}
