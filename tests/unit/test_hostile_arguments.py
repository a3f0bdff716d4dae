"""Arguments of `load`, `read` and of edits that are something else than they should be: three parts, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests import fooling, tinyhf
from tests.fooling import Fooling
from torch import Tensor, nn

from trisect.core.errors import ModelError, SiteError
from trisect.core.subject import QKV
from trisect.core.trace import Address
from trisect.hf.hooks.calls import check_inputs, check_model, check_readable
from trisect.hf.load import load

IDS = fooling.ids()["input_ids"]
WRONG: dict[str, tuple[Any, str, str]] = {
    "a number": (42, "int was given as a model.", "a folder, a name on a hub, or a PyTorch module"),
    "a class": (Fooling, "type was given as a model.", "a folder, a name on a hub"),
    "a state dict": (Fooling().state_dict(), "OrderedDict was given as a model.", "a folder, a name on a hub"),
}
EXAMPLES: dict[str, tuple[Any, str, str]] = {
    "nothing": ({}, "The inputs hold no tensor.", "It holds nothing."),
    "lists": ({"input_ids": [[1, 2]]}, "The inputs hold no tensor.", "It holds 'input_ids'."),
    "arrays": ({"input_ids": np.ones((1, 3), int)}, "The inputs hold no tensor.", "It holds 'input_ids'."),
    "another name": (
        {"nope": IDS},
        "Fooling does not run with the example nope (2, 7).",
        "unexpected keyword argument",
    ),
    "floats": ({"input_ids": IDS.float()}, "Fooling does not run with the example input_ids (2, 7).", "RuntimeError"),
    "ids beyond": ({"input_ids": IDS + 99}, "Fooling does not run with the example input_ids (2, 7).", "index out of"),
    "no rows": ({"input_ids": IDS[:0]}, "The input 'input_ids' of Fooling is empty: its shape is (0, 7).", "one row"),
    "one position": (
        {"input_ids": IDS[:, :1]},
        "The example of inputs of Fooling has one position.",
        "every weight is 1",
    ),
}
READ: dict[str, tuple[Any, str, str]] = {
    "another name": ({"input_ids": IDS, "mask": IDS}, "'mask' was given to Fooling.", "Its forward takes input_ids."),
    "no positions": (
        {"input_ids": IDS[:, :0]},
        "The input 'input_ids' of Fooling is empty: its shape is (2, 0).",
        "one row",
    ),
}


@contextmanager
def refused(given: str, known: str) -> Iterator[None]:
    """Inside, a ModelError with these parts and something to do."""
    with pytest.raises(ModelError) as caught:
        yield
    assert caught.value.problem == given
    assert known in caught.value.reason
    assert caught.value.todo.endswith(".")


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_model(name):
    what, given, known = WRONG[name]
    with refused(given, known):
        check_model(what)


def test_what_is_no_text_and_no_inputs():
    """By the functions themselves: types are checked at every call of these tests."""
    with refused("The inputs are a Tensor.", "by name"):
        check_inputs(IDS)
    with refused("int was given to be read.", "a text, several of them, or its own inputs"):
        check_readable(42)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_no_example(name):
    what, given, known = EXAMPLES[name]
    with refused(given, known):
        load(Fooling(), inputs=what)


def test_a_model_without_numbers_and_a_tokenizer_that_is_a_name():
    with refused("Weights of Fooling are not there.", "is on the device 'meta'"):
        load(Fooling().to("meta"), inputs=fooling.ids())
    offloaded: Any = Fooling()
    offloaded.layers[1].attn.to("meta")._hf_hook = "as accelerate leaves it"
    known = "layers.1.attn.q_proj.weight is offloaded: accelerate loads it only while its module runs"
    with refused("Weights of Fooling are not there.", known):
        load(offloaded, inputs=fooling.ids())
    with refused("'gpt2' was given as a tokenizer.", "an object of transformers"):
        load(Fooling(), tokenizer="gpt2", inputs=fooling.ids())


@pytest.fixture(scope="module")
def subject() -> Any:
    return load(Fooling(), inputs=fooling.ids())


@pytest.mark.parametrize("name", READ)
def test_what_cannot_be_read(name, subject):
    what, given, known = READ[name]
    with refused(given, known):
        subject.read(what)


WRITERS: dict[str, tuple[Any, str]] = {
    "nothing": (lambda p: None, "A writer for layer 1 returned NoneType."),
    "two": (lambda p: (p.q, p.k), "A writer for layer 1 returned tuple."),
    "other shapes": (
        lambda p: QKV(p.q, p.k, p.v[..., :3]),
        "A writer for layer 1 returned (2, 4, 7, 4), (2, 4, 7, 4), (2, 4, 7, 3).",
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_writer_gives_is_as_it_was_given(name, subject):
    writer, given = WRITERS[name]
    with refused(given, "Its q, k and v were of (2, 4, 7, 4), (2, 4, 7, 4), (2, 4, 7, 4)."):
        subject.predict(fooling.ids(), write={subject.addresses[0]: writer})


def test_edits_elsewhere_and_weights_that_do_not_fit(subject):
    with pytest.raises(SiteError) as caught:
        subject.predict(fooling.ids(), write={Address("plain", 7): lambda p: p})
    assert caught.value.problem == "An edit names ('plain', 7)."
    assert caught.value.reason == "The model has layer 1, layer 2."
    for one in (subject, load(tinyhf.llama())):
        with refused("Weights of shape (2, 4, 2, 2) are to be held.", "Those of the call are of (2, 4, 7, 7)"):
            one.predict(fooling.ids(), hold={one.addresses[0]: torch.ones(2, 4, 2, 2)})


def test_labels_are_one_a_token():
    one = load(tinyhf.llama())
    batch = one.batch_of({"input_ids": torch.arange(6, 14)[None], "labels": torch.arange(6, 12)[None]})
    with refused("Labels of shape (1, 6) were given.", "The token ids are of shape (1, 8)"):
        one.score(batch)


class Passing(nn.Module):
    """Takes whatever it is given by name, and has inputs of its own where that is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Fooling()

    def forward(self, **given: Tensor) -> Tensor:
        return self.inner(given.get("input_ids", torch.ones(2, 5, dtype=torch.long)))


def test_a_forward_that_lists_no_names_is_given_what_was_given():
    reading = load(Passing(), inputs=fooling.ids()).read(fooling.ids(9, 3))
    assert reading.traces[0].weights.shape == (3, 4, 9, 9)


class ThreeAxes(nn.Linear):
    """A map of [rows, positions, units] and nothing else."""

    def forward(self, input: Tensor) -> Tensor:
        rows, positions, units = input.shape
        return super().forward(input.reshape(rows * positions, units)).reshape(rows, positions, -1)


def test_a_map_that_takes_three_axes_only_is_read():
    model: Any = Fooling()
    own = model.attention.v_proj
    model.attention.v_proj = ThreeAxes(own.in_features, own.out_features)
    found = load(model, inputs=fooling.ids()).read(fooling.ids()).traces[0]
    assert found.w_v is not None
    assert torch.equal(found.w_v.transpose(1, 2).flatten(0, 1), model.attention.v_proj.weight.detach())


class Mapped(fooling.Attention):
    """Attention of one row, mapped over the batch."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        mapped: Any = torch.vmap(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v)
        return mapped(q, k, v)


def test_attention_inside_vmap_is_named():
    model: Any = Fooling()
    model.layers[0].attn = Mapped().eval()
    words = "it is computed inside a transform of torch.func (vmap), from which no tensor can be recorded"
    assert load(model, inputs=fooling.ids()).notes[0] == f"Left out, layers.0.attn: {words}."


def test_positions_of_packed_texts_are_read_as_the_model_takes_them():
    """Where it keeps no cache transformers cuts rows at positions that begin again; called as it stands, LLaMA does not."""
    model: Any = tinyhf.llama()
    model.set_attn_implementation("eager")
    given = {"input_ids": torch.arange(6, 14)[None], "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])}
    with torch.no_grad():
        want = model(**given, output_attentions=True).attentions
    for trace, own in zip(load(model).read(given).traces, want, strict=True):
        assert torch.allclose(trace.weights, own, atol=1e-6)
