"""Tensors kept in a temporary file come back bit for bit; what a pass holds or borrows lies in one."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
import torch
from tests import tinyhf
from torch import Tensor

from trisect.core.errors import StudyError
from trisect.core.subject import Texts
from trisect.experiments.ablate.run import TextsRead, make_replacement
from trisect.hf.load import Pretrained, load
from trisect.lab.passes import to_disk, weights_to_hold

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int64)


@pytest.fixture(scope="module")
def subject() -> Pretrained:
    return load(tinyhf.llama(), tinyhf.tokenizer())


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (7, 1, 3)])
def test_tensors_come_back_bit_for_bit_whatever_their_kind_and_shape(kind, shape):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 9).to(kind)
    found = to_disk(tensor)
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    assert bits(found) == bits(tensor)


def test_order_and_numbers_that_are_none_stay_and_one_that_is_written_to_is_the_writers_own():
    for tensor in (torch.randn(4, 6).T, torch.tensor([float("nan"), -0.0, float("inf")])):
        one, two = to_disk(tensor), to_disk(tensor)
        one += 1
        assert bits(two) == bits(tensor) != bits(one)


@pytest.mark.parametrize("size", [4, 1 << 16])
def test_a_full_folder_of_temporary_files_is_named(size, monkeypatch):
    """A small tensor is refused when all is written, a large one at once."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("r+b"))  # noqa: SIM115
    with pytest.raises(StudyError) as caught:
        to_disk(torch.ones(size))
    assert str(caught.value) == (
        f"What is held over all layers cannot be kept in the folder of temporary files, {tempfile.gettempdir()}.\n  It is full.\n"
        "  Free some space there, or set TMPDIR to a folder with more of it, and call the same command again."
    )


def test_a_system_without_a_folder_of_temporary_files_says_so(monkeypatch):
    def none(*given):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(StudyError) as caught:
        to_disk(torch.ones(3))
    assert caught.value.problem == "What is held over all layers cannot be kept in the folder of temporary files."
    assert caught.value.reason == "The system says: No usable temporary directory found."


def test_held_weights_are_those_of_the_unedited_pass(subject):
    batch = next(iter(subject.batches(["the cat sat on the mat"] * 2, 2)))
    own = {trace.address: trace.weights for trace in subject.trace(batch).traces}
    held = weights_to_hold(subject, batch)
    assert set(held) == set(own)
    assert all(bits(held[a]) == bits(own[a]) for a in own)


def test_what_another_text_lends_is_put_together_for_one_layer_at_a_time(subject):
    lines = ["the cat sat on the mat", "a dog ran", "the mat"]
    texts = Texts("lines", lambda: iter(lines))
    read = TextsRead.of(texts, 0)
    list(read.stream())
    replace = make_replacement(subject, read, subject.addresses, "resample", 3, 0, lambda n: None)
    batch = next(iter(subject.batches(lines, 3, scored=True)))
    lent, again = replace(batch), replace(batch)
    assert list(lent) == list(subject.addresses)
    assert len(lent) == len(subject.addresses)
    first = lent[subject.addresses[0]]
    assert lent[subject.addresses[0]] is first
    for address in reversed(subject.addresses):  # in any order the same
        assert all(bits(a) == bits(b) for a, b in zip(lent[address], again[address], strict=True))
        assert lent[address].q.shape[0] == len(lines)
    assert lent[subject.addresses[0]] is not first
