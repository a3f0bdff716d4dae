"""Edited passes that begin at the layer they edit: the same bits as whole passes, or whole passes, and said so."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import tinyhf, zoo
from tests.contract.test_quantised import dynamic
from torch import nn

from trisect.core.subject import Batch, SharingSubject
from trisect.core.trace import Side
from trisect.hf import batches
from trisect.hf.batches import IGNORED, row_scores
from trisect.hf.forward import (
    FULL_PASS_NOTE,
    MIN_CACHE_BYTES,
    SEPARATE_NOTE,
    Prefix,
    PrefixReuse,
    SharedPasses,
    hash_tensor,
)
from trisect.hf.hooks.calls import Call, Calls
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.load import Pretrained, load
from trisect.hf.verify.examples import example_inputs
from trisect.lab.passes import EditedPass, WholePasses, edited_passes, plan_edits
from trisect.measure.intervention import put, zeros
from trisect.measure.patching import freeze_later_layers, record

NOWHERE = torch.zeros(3, 17, dtype=torch.bool)
SIDE = Side((("",) * 17,) * 3, ~NOWHERE, NOWHERE, None)
TEXTS = [f"w{i} w{i % 7} , w{i % 5} w{i % 3} ." for i in range(5)]


def loaded(name: str) -> Pretrained:
    return load(getattr(tinyhf, name)(), tinyhf.tokenizer(name != "gpt2"))


def shared(subject: Pretrained) -> SharedPasses:
    assert isinstance(subject, SharingSubject)
    found = edited_passes(subject)
    assert isinstance(found, SharedPasses)
    return found


def writing(edit: EditedPass) -> Any:
    return {edit.address: put(edit.targets, zeros())}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "bare"])
def test_several_edits_in_one_pass_are_those_of_one_at_a_time_to_rounding(name):
    model = tinyhf.bert(head=False) if name == "bare" else getattr(tinyhf, name)()
    subject = load(model, tinyhf.tokenizer(name != "gpt2"))
    passes, single, ran = shared(subject), WholePasses(subject), []
    passes.together = 3
    handle = model.register_forward_hook(lambda *_: ran.append(1))
    texts = [(t, t) for t in TEXTS] if name == "bart" else TEXTS
    for number, batch in enumerate(subject.batches(texts, 3, scored=True)):
        clean, own = passes.score(batch), single.score(batch)
        writers: list[Any] = []
        for address in subject.addresses:
            edits = [e for e in plan_edits(subject.shape, None, "head") if e.address == address]
            writers = [put(e.targets, zeros()) for e in edits]
            ran.clear()
            made = passes.score_each(batch, writers, address, None, clean)
            assert not number or len(ran) == -(-len(writers) // 3)
            for writer, score in zip(writers, made, strict=True):
                whole = single.score(batch, {address: writer}, None, own)
                assert torch.allclose(score.total, whole.total, rtol=1e-4, atol=1e-5)
                assert torch.equal(score.count, whole.count)
                assert not torch.equal(score.total, clean.total)
        kept: Any = {}
        subject.each(batch, lambda trace, kept=kept: kept.update({trace.address: trace.weights}))
        passes.begin(batch, kept)
        held = passes.score_each(batch, writers, subject.addresses[-1], kept, clean)
        alone = [single.score(batch, {subject.addresses[-1]: writer}, kept, own) for writer in writers]
        assert all(torch.allclose(a.total, b.total, rtol=1e-4, atol=1e-5) for a, b in zip(held, alone, strict=True))
    handle.remove()
    assert passes.notes == ()


class Averaging(nn.Module):
    """A map of what all positions of a text hold together."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x + x.mean(1, keepdim=True))


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "mixed"])
def test_answers_at_places_are_those_of_whole_passes_though_maps_above_leave_out_the_others(name):
    model = getattr(tinyhf, "llama" if name == "mixed" else name)()
    if name == "mixed":
        model.lm_head = Averaging(model.lm_head)
    subject = load(model, tinyhf.tokenizer())
    batch = next(iter(subject.batches([(t, t) for t in TEXTS] if name == "bart" else TEXTS, 3)))
    passes, places, writes = shared(subject), torch.tensor([[2, 4], [0, 1], [3, 3]]), list[Any]()
    passes.begin(batch)
    for address in subject.addresses:
        writes = [writing(e) for e in plan_edits(subject.shape, None, "head") if e.address == address]
        made = passes.output_each(batch, writes, places)
        for write, answer in zip(writes, made, strict=True):
            whole = subject.outputs(batch, write, places=places)
            torch.testing.assert_close(answer, whole, rtol=1e-4, atol=1e-5)
    assert subject.restarts.narrows == (name != "mixed")
    assert passes.notes == ()
    rest = next(iter(passes._answers(batch, writes, None, places)))[0]
    alike = torch.allclose(rest, subject.outputs(batch, writes[0])[0], rtol=1e-4, atol=1e-5)
    assert alike == (name == "mixed")  # elsewhere they are anything where they are left out


def test_edits_are_made_one_at_a_time_where_rows_of_a_batch_are_not_independent():
    """int8 maps that round by a whole call's range: another edit beside it moves an edit."""
    subject = load(dynamic("llama"))
    ids = torch.arange(6, 27).view(3, 7)
    batch = subject.batch_of({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    passes, single = shared(subject), WholePasses(subject)
    passes.together = 4
    clean, address = passes.score(batch), subject.addresses[1]
    writers = [put(e.targets, zeros()) for e in plan_edits(subject.shape, None, "head") if e.address == address]
    for _ in range(2):
        made = passes.score_each(batch, writers, address, None, clean)
        whole = [single.score(batch, {address: writer}, None, clean) for writer in writers]
        assert all(torch.equal(a.total, b.total) for a, b in zip(made, whole, strict=True))
    assert passes.notes == (SEPARATE_NOTE,)


def spared(subject: Pretrained, passes: SharedPasses, batch: Any) -> list[int]:
    """How many calls of attention each edit of a layer leaves out."""
    passes.score(batch)
    prefix, found = passes._prefix, []
    for order in range(len(subject.addresses)):
        point = None if prefix is None else prefix.before(order)
        found.append(0 if point is None else point.calls)
    return found


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart"])
def test_scores_are_those_of_whole_passes_bit_for_bit_and_what_lies_below_the_edit_is_left_out(name):
    subject = loaded(name)
    passes = shared(subject)
    texts = [(t, t) for t in TEXTS] if name == "bart" else TEXTS
    for batch in subject.batches(texts, 3, scored=True):
        clean, own = passes.score(batch), subject.score(batch)
        assert torch.equal(clean.total, own.total)
        for edit in plan_edits(subject.shape, None, "head"):
            made = passes.score(batch, writing(edit), None, clean)
            whole = subject.score(batch, writing(edit), None, own)
            assert torch.equal(made.total, whole.total), edit.site
    assert subject.restarts.works
    assert {place for place, _ in subject.restarts.checked} == set(range(4 if name == "bart" else 1))
    assert passes.notes == ()
    if name == "bart":  # two layers of the encoder, then three of the decoder with self- and cross-attention each
        assert spared(subject, shared(subject), next(iter(subject.batches(texts, 3, scored=True)))) == (
            [0, 1, 2, 2, 4, 4, 6, 6]
        )


def test_held_weights_and_later_writes_keep_their_bits():
    subject = loaded("gpt2")
    passes, batch = shared(subject), next(iter(subject.batches(TEXTS, 3)))
    kept = {t.address: t.weights for t in subject.trace(batch).traces}
    passes.begin(batch, kept)
    for edit in plan_edits(subject.shape, ["q@2", "v@2"], "layer"):
        hold = {a: w for a, w in kept.items() if not edit.routes or a != edit.address}
        for _ in range(2):  # the first is compared with a whole pass, the second is not
            made = passes.score(batch, writing(edit), hold)
            assert torch.equal(made.total, subject.score(batch, writing(edit), hold).total)
        assert torch.equal(passes.score(batch, writing(edit)).total, subject.score(batch, writing(edit)).total)
    parts = record(subject.outputs, batch, list(subject.shape.heads)).parts
    passes.begin(batch)
    edit = plan_edits(subject.shape, ["v@1"], "layer")[0]
    write = writing(edit) | freeze_later_layers(parts, list(subject.shape.heads), edit.address)
    assert torch.equal(passes.outputs(batch, write), subject.outputs(batch, write))


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
def test_a_recorded_read_is_the_pass_from_which_edited_ones_begin(family):
    model: Any = tinyhf.gpt2() if family == "gpt2" else zoo.build(family)
    subject = load(model, tinyhf.tokenizer(False))
    passes, batch = shared(subject), next(iter(subject.batches(TEXTS, 3)))
    addresses = list(subject.shape.heads)
    read, plain = (record(outputs, batch, addresses) for outputs in (passes.read, subject.outputs))
    assert torch.equal(read.outputs, plain.outputs)
    for address in addresses:
        assert all(torch.equal(*both) for both in zip(read.parts[address], plain.parts[address], strict=True))
    write = writing(plan_edits(subject.shape, ["v@2"], "layer")[0])
    assert (passes._prefix is None or passes._prefix.before(1) is None) == (family == "bloom")
    assert torch.equal(passes.outputs(batch, write), subject.outputs(batch, write))


class Counting(nn.Module):
    """A layer whose answer depends on how often it ran since it was counted."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.runs, self.counted = inner, 0, False

    def forward(self, x: Any, *given: Any, **named: Any) -> Any:
        self.runs += self.counted
        return self.inner(x + 1e-3 * self.runs, *given, **named)


def test_a_model_that_gives_other_numbers_is_run_whole_and_said_so():
    model: Any = tinyhf.gpt2()
    model.transformer.h[1] = Counting(model.transformer.h[1])
    subject = load(model, tinyhf.tokenizer(False))
    passes, batch = shared(subject), next(iter(subject.batches(TEXTS, 3)))
    edit = plan_edits(subject.shape, ["v@2"], "layer")[0]
    model.transformer.h[1].counted = True
    passes.score(batch)
    passes.score(batch, writing(edit))
    assert passes.notes == (FULL_PASS_NOTE,)
    assert shared(subject).notes == (FULL_PASS_NOTE,)  # for good
    ran = model.transformer.h[1].runs
    passes.score(batch)
    passes.score(batch, writing(edit))
    assert model.transformer.h[1].runs == ran + 2


@pytest.mark.parametrize(("name", "calls"), [("t5", [0, 1, 2]), ("albert", None), ("bloom", None)])
def test_kinds_of_models_begin_later_or_are_run_whole_by_rule(name, calls):
    model = zoo.build(name)
    subject = load(model)
    batch = subject.batch_of(example_inputs(name, model))
    passes = shared(subject)
    passes.begin(batch)
    prefix = passes._prefix
    assert (subject.proof.hook is record_interface) == (name != "bloom")  # the others' products are followed
    if calls is None:
        assert prefix is None or prefix.before(1) is None
    else:
        assert prefix is not None
        assert [point.calls if (point := prefix.before(n)) else 0 for n in range(3)] == calls
    edit = plan_edits(subject.shape, None, "layer")[1]
    for _ in range(2):
        one, other = (s.outputs(batch, writing(edit)) for s in (passes, subject))
        assert hash_tensor(one) == hash_tensor(other)
    assert passes.notes == ()


def test_of_a_large_model_some_outputs_are_kept_and_the_last_of_each_list():
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Identity() for _ in range(5)])
            self.more = nn.ModuleList([nn.Identity() for _ in range(3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in (*self.layers, *self.more):
                x = layer(x)
                calls.append(call)
            return x

    nothing = torch.empty(1, 1, 1, 1)
    call = Call("layers.0", 0, nothing, nothing, nothing, None, nothing, None)
    calls, model = Calls(lambda call: call), Rows()
    prefix = Prefix(model, ["layers.0", "more.0"])
    with prefix.recording(calls):
        model(torch.empty(MIN_CACHE_BYTES // 4 // 4))  # eight of them are twice what may be kept
    assert [block.output is not None for block in prefix.blocks] == [False, True, False, True, True, True, False, True]
    assert PrefixReuse().works
    assert prefix._max_bytes == 64 * 2**20  # bytes, or a fifth of what the weights take
    assert Prefix(nn.Linear(2**14, 2**14, False, device="meta"), [])._max_bytes == 2**30 // 5


def test_a_model_of_our_own_shares_nothing():
    class Plain:
        """No more than a score."""

        score = None

    assert isinstance(edited_passes(Plain()), WholePasses)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_losses_row_by_row_and_in_parts_are_those_of_the_whole_batch_bit_for_bit(kind, monkeypatch):
    monkeypatch.setattr(batches, "LOGIT_ROWS", 5 * 999)  # five positions at once
    draw = torch.Generator().manual_seed(1)
    logits = (4 * torch.randn(3, 17, 999, generator=draw)).to(kind)
    labels = torch.randint(999, (3, 17), generator=draw)
    labels[:, ::3] = IGNORED
    wide = logits if kind == torch.float64 else logits.float()
    flat = F.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    whole = flat.view(labels.shape)
    found = row_scores(logits, Batch({"labels": labels}, SIDE, None, ()), "masked", None)
    assert torch.equal(found.total, whole.double().sum(1))
    assert found.count.tolist() == [11.0] * 3


def test_losses_of_a_large_vocabulary_keep_their_digits():
    draw = torch.Generator().manual_seed(2)
    logits = 4 * torch.randn(1, 6, 50_257, generator=draw) - 80
    labels = torch.randint(50_257, (1, 6), generator=draw)
    exact = F.cross_entropy(logits[0].double(), labels[0], reduction="sum")
    found = row_scores(logits, Batch({"labels": labels}, SIDE, None, ()), "masked", None)
    assert found.total.item() == pytest.approx(exact.item(), abs=6e-5)  # 1e-5 a token; over transposed logits 1e-4
