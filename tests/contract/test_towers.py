"""Addresses by the tree of modules and by whose positions keys are; what stands at the positions of each tower."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import towers

from trisect.core.errors import CorpusError, SiteError
from trisect.core.site import Site
from trisect.core.subject import QKV
from trisect.core.trace import Side
from trisect.experiments.explore.run import take_picture
from trisect.hf.load import load
from trisect.hf.verify.sources import KeySource, layer_numbers, name_stacks, number_layers
from trisect.report.format import stack_order, stack_words


@pytest.fixture(scope="module", params=list(towers.TOWERS))
def towered(request):
    made = towers.build(request.param)
    return made, load(made.model, inputs=made.inputs)


def test_addresses_follow_the_modules_and_traces_have_sides_as_long_as_what_they_attend_to(towered):
    made, subject = towered
    assert tuple(map(str, subject.addresses)) == made.addresses
    for address in subject.shape.heads:
        site = Site(("k",), (address.layer,), stack=address.site.stack)
        assert Site.parse(str(site)) == site
        assert [t.address for t in subject.shape.resolve(site)] == [address]
    reading = subject.read(made.inputs)
    for trace in reading.traces:
        for side, part, real in (
            (reading.queries(trace), trace.q, trace.query_real),
            (reading.keys(trace), trace.k, trace.key_real),
        ):
            assert side.real.shape == real.shape == (part.shape[0], part.shape[2])
            assert torch.equal(side.real, real)
            assert all(len(row) == part.shape[2] for row in side.tokens)
    assert take_picture(reading).layers


def test_a_site_of_a_tower_is_written_to_and_what_a_page_cannot_place_is_left_out_and_said():
    made = towers.build("clip")
    subject = load(made.model, inputs=made.inputs)
    (target,) = subject.shape.resolve(Site.parse("vision.v@3"))
    clean = subject.predict(made.inputs)
    edited = subject.predict(made.inputs, write={target.address: lambda p: QKV(p.q, p.k, torch.zeros_like(p.v))})
    assert torch.equal(edited.text_embeds, clean.text_embeds)
    assert not torch.equal(edited.image_embeds, clean.image_embeds)
    with pytest.raises(SiteError, match="names no stack"):
        subject.shape.resolve(Site.parse("k@1"))
    reading = subject.read(made.inputs)
    picture = take_picture(reading)
    assert {layer.stack for layer in picture.layers} == {"text"}
    assert "Not shown, since it attends to other positions: vision." in picture.notes
    alone = type(reading)(
        reading.model, tuple(t for t in reading.traces if t.stack == "vision"), side("a"), sides=reading.sides
    )
    with pytest.raises(CorpusError, match="No layer of"):
        take_picture(alone)


def test_padding_of_a_text_is_not_taken_for_patches():
    """Seventeen patches and seventeen tokens: the text's mask says nothing of an image."""
    made = towers.build("clip")
    ids = towers.ids(length=17)
    mask = torch.ones_like(ids)
    mask[1, -4:] = 0
    given = made.inputs | {"input_ids": ids, "attention_mask": mask}
    reading = load(made.model, inputs=made.inputs).read(given)
    for trace in reading.traces:
        wanted = mask.bool() if trace.stack == "text" else torch.ones_like(mask).bool()
        assert torch.equal(trace.key_real, wanted)
        assert torch.equal(trace.query_real, wanted)
        assert trace.weights[1][..., -4:].any() == (trace.stack == "vision")


def test_a_language_model_that_sees_images_has_its_next_tokens_loss():
    """What its vision tower sees ahead of it does not matter, and tokens that stand for images are not predicted."""
    made = towers.build("llava")
    subject = load(made.model, inputs=made.inputs)
    assert subject.objective == "causal"
    scores = subject.score(subject.batch_of(made.inputs))
    labels = made.inputs["input_ids"].masked_fill(made.inputs["input_ids"] == 5, -100)
    with torch.no_grad():
        logits = made.model(**made.inputs).logits
    own = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").sum(1)
    assert scores.count.tolist() == [6, 6]
    assert torch.allclose(scores.total, own.double(), rtol=1e-4)


def test_keys_that_are_joined_are_the_targets_own_and_the_sources():
    made = towers.build("t5gemma2")
    reading = load(made.model, inputs=made.inputs).read(made.inputs)
    trace = next(t for t in reading.traces if t.stack == "merged")
    both = [*reading.queries(trace).tokens[0], *reading.source.tokens[0]]
    assert trace.crosses
    assert list(reading.keys(trace).tokens[0]) == both


def side(token: str) -> Side:
    return Side(((token,),), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.bool))


def met(*rows: Any) -> list[KeySource]:
    return [KeySource(*row) for row in rows]


def test_layers_count_by_the_number_that_counts_and_towers_keep_their_names():
    assert layer_numbers(["h.1.attn", "h.3.attn"]) == [2, 4]
    assert layer_numbers(["groups.0.layers.0", "groups.0.layers.1"]) == [1, 2]
    assert layer_numbers(["layers.0.blocks.0", "layers.0.blocks.1", "layers.1.blocks.0"]) is None
    assert layer_numbers(["attention"]) == [1]
    stages = met(*((f"layers.{n}.blocks.{i}.attn", 0, "self", 4, 4) for n in range(2) for i in range(2)))
    assert [n for _, n in number_layers(stages, ["plain"] * 4)] == [1, 2, 3, 4]
    shared = met(*(("shared.attn", n, "self", 4, 4) for n in range(3)))
    assert [n for _, n in number_layers(shared, ["plain"] * 3)] == [1, 2, 3]
    # BridgeTower's text tower and its cross-modal layers of text run by turns: two lists of layers, two stacks
    turns = [f"{where}.{n}.self" for n in range(3) for where in ("text_model.layer", "cross_modal_text_layers")]
    bridge = met(*((module, 0, "self", 7, 7) for module in turns))
    assert number_layers(bridge, ["text"] * 6) == [(name, n) for n in (1, 2, 3) for name in ("text", "text_modal")]
    twice = met(*(("h.0.attn", 0, "self", 4, 4) for _ in range(2)))
    assert number_layers(twice, ["plain"] * 2) == [("plain", 1), ("part2", 1)]
    reads = met(
        ("vision.layers.0.attn", 0, "self", 9, 9),
        ("qformer.layers.0.attn", 0, "self", 4, 4),
        ("qformer.layers.0.crossattention", 0, "cross", 4, 9),
    )
    assert name_stacks(reads, ["vision", "qformer", "qformer"]) == ["vision", "qformer", "qformer_cross"]
    assert name_stacks(reads[1:], ["", ""]) == ["dec", "cross"]
    assert [stack_words(s) for s in ("plain", "enc", "vision", "qformer_cross", "vision_enc")] == [
        "", "encoder", "vision", "qformer: cross-attention", "vision: encoder"
    ]  # fmt: skip
    assert sorted(["vision", "cross", "audio", "plain"], key=stack_order) == ["plain", "cross", "audio", "vision"]
