"""A number made of the bits of every tensor: of any type, of any place in a larger one, and of tied weights."""

import pytest
import torch
from torch import nn

from trisect.hf.state import State

KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 130, 40_001])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_one_byte_that_changed_is_noticed(kind, count, first):
    model = nn.Module()
    model.register_buffer("part", torch.zeros(first + count, dtype=torch.uint8).to(kind)[first:])
    model.register_buffer("empty", torch.zeros(0, 3))
    state = State.of(model)
    assert state.changed(model) is None
    for place in {0, count // 2, count - 1}:
        model.part[place] = 1
        assert state.changed(model) == "part"
        model.part[place] = 0
    assert state.changed(model) is None


def test_rows_and_columns_that_change_places_are_noticed():
    model = nn.Linear(128, 256)
    for dim in (0, 1):
        state, kept = State.of(model), model.weight.data.clone()
        model.weight.data[:] = kept.flip(dim)
        assert state.changed(model) == "weight"
        model.weight.data[:] = kept
        assert state.changed(model) is None
