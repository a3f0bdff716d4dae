"""A number made of the bits of every tensor: of any type, of any place in a larger one, and of tied weights."""

from typing import Any

import pytest
import torch
from torch import nn

from trisect.hf.files.checkpoints import State

KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 130, 40_001])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_one_byte_that_changed_is_noticed(kind, count, first):
    model: Any = nn.Module()
    model.register_buffer("part", torch.zeros(first + count, dtype=torch.uint8).to(kind)[first:])
    model.register_buffer("empty", torch.zeros(0, 3))
    state = State.of(model)
    assert state.changed(model) is None
    for place in {0, count // 2, count - 1}:
        model.part[place] = 1
        assert state.changed(model) == "part"
        model.part[place] = 0
    assert state.changed(model) is None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 64, 256])
def test_rows_columns_and_numbers_that_change_places_are_noticed(kind, width):
    model = nn.Linear(width, width, dtype=kind)
    state, kept = State.of(model), model.weight.data.clone()
    for one, other in ((0, 1), (0, 2), (0, 4), (1, width - 1)):
        order = list(range(width))
        order[one], order[other] = other, one
        for changed in (kept[order], kept[:, order]):
            model.weight.data[:] = changed
            assert state.changed(model) == "weight"
        model.weight.data[:] = kept
        model.bias.data[:] = model.bias.data[order]
        assert state.changed(model) == "bias"
        model.bias.data[:] = model.bias.data[order]
    assert state.changed(model) is None


@pytest.mark.parametrize(
    "part",
    [torch.ones(64)[::2], torch.ones(1).expand(8), torch.ones(8, 8).T, torch.eye(3).to_sparse(), torch.tensor(1.0)],
    ids=["strided", "expanded", "turned", "sparse", "one number"],
)
def test_tensors_of_any_layout_have_a_number(part):
    model = nn.Module()
    model.register_buffer("part", part)
    state = State.of(model)
    assert state.changed(model) is None
    model.part = part.clone() * 2
    assert state.changed(model) == "part"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_weights_and_their_scale_are_in_it():
    module = nn.Sequential(nn.Linear(8, 8))
    model = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    state = State.of(model)
    assert state.changed(model) is None
    weight, bias = model[0]._weight_bias()
    doubled, scale = weight.dequantize() * 2, weight.q_scale() * 2
    scaled = torch.quantize_per_tensor(doubled, scale, weight.q_zero_point(), torch.qint8)
    model[0].set_weight_bias(scaled, bias)
    assert "0._packed_params._packed_params" in str(state.changed(model))
