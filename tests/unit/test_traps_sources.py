"""Traps of what a call is called: gates behind a softmax that look like sinks, and two sequences that look like one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import fooling
from tests.fooling import HEADS, LONG, WIDTH, WORDS
from tests.unit.test_traps_hidden import Split, loaded, made
from torch import Tensor, nn

from trisect.hf.load import load
from trisect.hf.verify.proof import BEHIND

# -- sinks and gates ---------------------------------------------------------------------------------------------


class ByMap(Split):
    """With a map that makes a number for each head, word by word."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(WIDTH, HEADS)

    def number(self, x: Tensor) -> Tensor:
        return self.extra(x).transpose(1, 2)[..., None]


class ByParameter(Split):
    """With a number for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.linspace(-1, 1, HEADS))

    def number(self, x: Tensor) -> Tensor:
        return self.extra.view(1, -1, 1, 1).expand(len(x), -1, x.shape[1], 1)


class SinkByMap(ByMap):
    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(torch.cat([scores, self.number(x)], -1), -1)[..., :-1]


class SinkBehind(ByParameter):
    """A sink, taken into account after the softmax."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(torch.logsumexp(scores, -1, True) - self.number(x))


class GateByMap(ByMap):
    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(self.number(x))


class GateByParameter(ByParameter):
    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(self.number(x))


class GateOfScores(ByMap):
    """Moves with the keys, and not as a sink does."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(scores.mean(-1, keepdim=True) + self.number(x))


class Router(ByMap):
    """A gate of every key."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(self.number(x)).transpose(2, 3)


@pytest.mark.parametrize("kind", [SinkByMap, SinkBehind, GateByMap, GateByParameter, GateOfScores, Router])
def test_a_sink_stands_in_the_softmax_and_a_gate_behind_it_is_none(kind):
    law = loaded(made(kind), 9).proof.laws[0]
    assert law.sink == kind.__name__.startswith("Sink")
    assert law.failure == ("" if law.sink else BEHIND)


# -- one sequence or two -----------------------------------------------------------------------------------------


class Between(fooling.Attention):
    """Queries of one sequence, keys and values of what is given beside; no position looks ahead."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, (_, k, v) = self.heads(x)[0], self.heads(ids)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = torch.softmax((q @ k.transpose(2, 3)).masked_fill(ahead, -torch.inf), -1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class Reading(nn.Module):
    """A layer that attends to itself and then to what it is given beside, through a norm for each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.own, self.other = Between(), Between()

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        mine = self.norm1(x)
        x = x + self.own(mine, mine)
        return x + self.other(self.norm2(x), self.norm3(other))


class InStep(nn.Module):
    """Layers that read a second sequence step by step, or the words that they are made of."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.words, self.seconds, self.places = (nn.Embedding(n, WIDTH) for n in (WORDS, WORDS, LONG))
        self.encoder, self.layers = fooling.Layer(), nn.ModuleList([Reading(), Reading()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor, second: Tensor | None = None) -> Tensor:
        x = other = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        if second is not None:
            other = self.encoder(self.seconds(second) + self.places(torch.arange(second.shape[1])), second)
        for layer in self.layers:
            x = layer(x, other)
        return self.head(x)


@pytest.mark.parametrize("second", [None, 0, 1])
def test_two_sequences_that_are_read_in_step_are_two(second):
    torch.manual_seed(0)
    inputs: dict[str, Any] = fooling.ids(9)
    if second is not None:
        inputs["second"] = fooling.ids(9, seed=second)["input_ids"]
    proof = load(InStep().eval(), inputs=inputs).proof
    stacks = {f.module: a.stack for f, a in zip(proof.weights, proof.addresses, strict=True)}
    crossing = {module for module, stack in stacks.items() if "cross" in stack}
    assert crossing == (set() if second is None else {"layers.0.other", "layers.1.other"})
