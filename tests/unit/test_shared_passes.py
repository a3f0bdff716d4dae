"""Several edits in one pass where that does not do: memory for fewer, a model that fails, and inputs without a row for each text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tinyhf

from trisect.core.subject import Batch
from trisect.hf.files.model_errors import ModelOutOfMemoryError
from trisect.hf.forward import APART, FAILED, NO_ROWS, SharedPasses
from trisect.hf.load import Pretrained, load
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
        made = passes.several(batch, writers, address, None, clean)
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
    assert passes.notes == (FAILED.format("RuntimeError"),)
    assert "ended in an error (RuntimeError)" in passes.notes[0]
    passes, _ = edited(subject, of(subject, position_ids=torch.arange(7)[None]), fail)
    assert passes.notes == (NO_ROWS,)
    assert APART not in passes.notes
