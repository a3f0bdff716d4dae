"""Traps of addresses, losses, masks and hooks: each gave a wrong number or a crash once, and each is a test."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import shrunk, tinyhf, towers, zoo
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from trisect.core.errors import ModelError
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.load import load
from trisect.hf.verify import examples


def own_loss(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """The next token's loss row by row, of the tokens that follow a real one, as transformers would count it."""
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    labels = torch.where((mask[:, 1:] * mask[:, :-1]) > 0, ids[:, 1:], -100)
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none").sum(1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_position_predicts_nothing(side):
    """The first real token of a row that is padded on its left follows padding, which says nothing of it."""
    model = zoo.build("llama")
    subject = load(model)
    ids = torch.randint(6, 99, (2, 8), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    scores = subject.score(subject.batch_of({"input_ids": ids, "attention_mask": mask}))
    assert scores.count.tolist() == [7, 4]
    assert torch.allclose(scores.total, own_loss(model, ids, mask).double(), atol=1e-4)


def test_labels_of_the_inputs_say_what_is_predicted():
    model = zoo.build("llama")
    subject = load(model)
    ids = torch.randint(6, 99, (1, 8), generator=torch.Generator().manual_seed(3))
    labels = ids.clone()
    labels[:, :4] = -100
    scores = subject.score(subject.batch_of({"input_ids": ids, "labels": labels}))
    assert scores.count.tolist() == [4]
    with torch.no_grad():
        assert float(scores.total / 4) == pytest.approx(float(model(input_ids=ids, labels=labels).loss), rel=1e-5)


class Named:
    """Attention that gives its function everything by name, as many models of transformers do."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self.places = places

    def give(self, function: Any) -> Any:
        def call(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **named: Any) -> Any:
            values: dict[str, Any] = {"query": q, "key": k, "value": v, "attention_mask": mask}
            by_name = {place: values.pop(place) for place in self.places}
            return function(module, *values.values(), **by_name, **named)

        return call


@pytest.mark.parametrize(
    "places", [("attention_mask",), ("value", "attention_mask"), ("query", "key", "value", "attention_mask")]
)
def test_what_attention_is_given_by_name_is_read_as_what_is_given_by_place(places, monkeypatch):
    model = zoo.build("llama")
    ids = {"input_ids": torch.arange(6, 14)[None]}
    with torch.no_grad(), record_interface(model) as calls:
        answer = model(**ids).logits
    wrapper, module = Named(places), __import__(type(model).__module__, fromlist=["x"])
    original = module.LlamaAttention.forward

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        own = AttentionInterface.get_interface
        with monkeypatch.context() as patched:
            patched.setattr(AttentionInterface, "get_interface", lambda s, i, d: wrapper.give(own(s, i, d)))
            return original(self, *args, **named)

    monkeypatch.setattr(module.LlamaAttention, "forward", forward)
    with torch.no_grad(), record_interface(model) as named:
        assert torch.equal(model(**ids).logits, answer)
    assert len(named) == len(calls) == 2
    for a, b in zip(calls, named, strict=True):
        assert all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("q", "k", "v", "weights", "output"))
    assert "eager" not in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert load(model).shape.stacks == ("plain",)


def test_a_sink_that_scales_the_output_is_part_of_the_weights():
    """Granite's sliding-window kind scales what attention gives by a factor per query; its weights then sum to less than one."""
    model = shrunk.build("granite_swa")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.add_(2.0)
    ids = {"input_ids": torch.arange(6, 14)[None]}
    subject = load(model)
    for trace in subject.read(ids).traces:
        sums = trace.weights.sum(-1)
        assert sums.min() < 0.9
        assert sums.max() < 1 + 1e-5
        assert (trace.weights @ trace.values - trace.output).abs().max() < 1e-5 * trace.output.abs().max()


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("muse_glimmer_assistant", "Its main input is 'noise_embeds'. No example is known."),
        ("bros", "You have to specify bbox"),
    ],
)
def test_a_model_whose_inputs_are_not_known_is_told_what_to_give(kind, known, monkeypatch):
    model = shrunk.build(kind)
    monkeypatch.delitem(examples.MAKERS, "bbox")
    with pytest.raises(ModelError) as caught:
        load(model)
    assert caught.value.problem.endswith("cannot be tried out.")
    assert known in caught.value.reason
    assert caught.value.todo.startswith("Give an example of its inputs: load(model, inputs={...}), of ")


def test_inputs_beside_the_main_one_are_tried():
    """CLIP takes a text and an image, and says only when it runs that it lacks one."""
    made = towers.build("clip").model
    assert load(made).shape.stacks == ("vision", "text")


def test_layers_of_a_hybrid_that_do_not_attend_are_named():
    """Whatever their class is called: they stand beside layers that attend."""
    notes = load(zoo.build("jamba")).notes
    words = "in it nothing calls softmax on one product of queries and keys (JambaMambaMixer)"
    assert notes == (f"Left out, model.layers.0.mamba: {words}.",)
    assert load(zoo.build("llama")).notes == load(zoo.build("t5")).notes == ()
    kinds: Any = {"layer_types": ["linear_attention", "full_attention"]}
    assert "model.layers.0.linear_attn" in load(zoo.build("qwen3_next", **kinds)).notes[0]


@pytest.mark.parametrize("build", [tinyhf.gpt2, tinyhf.bert])
def test_more_tokens_than_positions_are_counted(build):
    subject = load(build())
    model: Any = subject.model
    limit = model.config.max_position_embeddings
    subject.read(torch.full((1, limit), 7))
    words = rf"{limit + 1} tokens were given .*\n.*positions for {limit}\.\n.*shorter"
    with pytest.raises(ModelError, match=words) as found:
        subject.read(torch.full((1, limit + 1), 7))
    assert "index out of range" not in str(found.value)
