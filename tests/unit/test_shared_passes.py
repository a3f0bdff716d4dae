"""Several edits in one pass where that does not do, and what a command looks at: memory for fewer edits, a model that fails or changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tinyhf

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, StreamPoint
from trisect.hf import forward
from trisect.hf.files.model_errors import ModelOutOfMemoryError
from trisect.hf.forward import ERROR_NOTE, NO_ROWS, SEPARATE_NOTE, SharedPasses, near
from trisect.hf.load import Pretrained, load, sampled_laws
from trisect.hf.verify import agreement
from trisect.hf.verify.laws import Checker
from trisect.lab.passes import WholePasses, edited_passes, plan_edits
from trisect.measure.intervention import put, zeros

ROWS = 3


@pytest.fixture(scope="module")
def subject() -> Pretrained:
    return load(tinyhf.llama())


def of(subject: Pretrained, **more: torch.Tensor) -> Batch:
    ids = torch.arange(6, 27).view(ROWS, 7)
    return subject.batch_of({"input_ids": ids, "attention_mask": torch.ones_like(ids), **more})


def edited(subject: Pretrained, batch: Batch, meet: Callable[[int], None]) -> tuple[SharedPasses, list[int]]:
    """All edits of a layer, four in a pass, where `meet` is given the rows of each; their scores are those of one at a time."""
    passes, single, sizes = edited_passes(subject), WholePasses(subject), list[int]()
    assert isinstance(passes, SharedPasses)
    passes.restarts.apart, passes.together = "", 4
    passes.restarts.compared.clear()
    address = subject.addresses[1]
    writers = [put(e.targets, zeros()) for e in plan_edits(subject.shape, None, "head") if e.address == address][:6]
    clean = passes.score(batch)
    passes.score(batch, {address: writers[0]})  # a place to begin from is compared with a whole pass first

    def look(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        sizes.append(len(given["input_ids"]))
        meet(sizes[-1])

    handle = subject.model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        made = passes.score_each(batch, writers, address, None, clean)
    finally:
        handle.remove()
    whole = [single.score(batch, {address: writer}, None, clean) for writer in writers]
    assert all(torch.allclose(a.total, b.total, rtol=1e-4, atol=1e-5) for a, b in zip(made, whole, strict=True))
    return passes, sizes


@pytest.mark.parametrize(
    ("most", "sizes", "left"), [(2, [12, 6, 3, 6, 6], 2), (1, [12, 6, *[3] * 6], 1), (4, [12, 3, 6], 4)]
)
def test_where_memory_does_not_do_half_as_many_share_a_pass_and_nothing_is_said(subject, most, sizes, left):
    def meet(rows: int) -> None:
        if rows > ROWS * most:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    passes, met = edited(subject, of(subject), meet)
    assert (met, passes.together, passes.notes) == (sizes, left, ())


def test_memory_that_does_not_do_for_one_is_an_error(subject):
    def meet(_rows: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(ModelOutOfMemoryError):
        edited(subject, of(subject), meet)


def fail(rows: int) -> None:
    if rows > ROWS:
        raise RuntimeError("no")


def test_a_model_that_fails_and_inputs_without_rows_are_called_so(subject):
    passes, _ = edited(subject, of(subject), fail)
    assert passes.notes == (ERROR_NOTE.format("RuntimeError"),)
    assert "raised an error in this model (RuntimeError)" in passes.notes[0]
    passes, _ = edited(subject, of(subject, position_ids=torch.arange(7)[None]), fail)
    assert passes.notes == (NO_ROWS,)
    assert SEPARATE_NOTE not in passes.notes


def change_weights(model: Any) -> None:
    """As none of PyTorch's counters shows."""
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] += 1


def change_answer(model: Any) -> None:
    model.model.layers[1].self_attn.v_proj.register_forward_hook(lambda _m, _a, out: 1.1 * out)


def change_nothing(_model: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "words"), [(change_weights, "have changed"), (change_answer, "does not compute"), (change_nothing, "")]
)
@pytest.mark.parametrize("clean", [False, True])
def test_a_command_looks_at_the_laws_of_some_reads_and_finds_at_its_end_what_changed_in_it(
    change, words, clean, monkeypatch
):
    monkeypatch.setattr(agreement, "CHECKED_SHARE", 0.0)
    subject, looked = load(tinyhf.llama()), list[int]()
    batch, own = of(subject), Checker.judge
    monkeypatch.setattr(Checker, "judge", lambda self, *given: looked.append(len(self.findings)) or own(self, *given))

    def command() -> None:
        with sampled_laws(subject):
            for n in range(5):
                change(subject.model) if n == 3 else None
                subject.edited_passes().score(batch) if clean else subject.each(batch, lambda _trace: None)

    if words:
        with pytest.raises(ModelError, match=words):
            command()
    else:
        command()
    full = [1] * (words != "have changed")
    assert [min(1, count) for count in looked] == [1, 1, 0, 0, 0, *full]
    assert subject.proof.agreement.draw is None
    if words:
        with pytest.raises(ModelError):
            subject.each(batch, lambda _trace: None)


@pytest.mark.parametrize(
    ("kind", "most"), [(torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 0.05), (torch.float16, 0.01)]
)
def test_answers_that_are_more_than_rounding_apart_are_not_the_same(kind, most):
    answer = torch.tensor([1.0, 100.0, float("inf")], dtype=kind)
    moved = [answer + torch.tensor([share * most * 100, 0, 0]).to(kind) for share in (0.8, 1.3)]
    assert [near(t, answer) for t in moved] == [True, False]
    assert not near(answer.nan_to_num(0), answer)
    assert not near(answer[:2], answer)


@pytest.mark.parametrize(
    ("begun", "left"),
    [(True, (False, "", (forward.FULL_PASS_NOTE,))), (False, (True, SEPARATE_NOTE, (SEPARATE_NOTE,)))],
    ids=["later", "at the bottom"],
)
def test_changes_of_the_stream_that_are_not_those_of_one_at_a_time_are_made_again(monkeypatch, begun, left):
    own = load(tinyhf.llama())
    passes, batch, top = edited_passes(own), of(own), own.addresses[1]
    assert isinstance(passes, SharedPasses)
    if begun:
        passes.begin(batch)
    changes = [
        {StreamPoint(top): size * torch.ones(ROWS, 7, next(own.model.parameters()).shape[-1])} for size in (1.0, 2.0)
    ]
    compared = iter([False])
    monkeypatch.setattr(forward, "near", lambda *_: next(compared, True))
    made = passes.stream_parts(batch, changes, top)
    assert (passes.restarts.works, passes.restarts.apart, passes.notes) == left
    single = [passes.stream_parts(batch, [change], top)[0] for change in changes]
    assert all(
        torch.allclose(a, b, atol=1e-5) for parts in zip(made, single, strict=True) for a, b in zip(*parts, strict=True)
    )
