"""Memory that does not suffice is said as such, wherever it is met: it says nothing of the model, nor of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tinyhf

from trisect.core.errors import ModelError, is_out_of_memory
from trisect.hf.files.model_errors import LESS, SMALLER, ModelOutOfMemoryError, memory_guard
from trisect.hf.load import Pretrained, load

TOO_MANY = 2**60


def allocate() -> None:
    """What no machine has: PyTorch's own error, whatever its words are here."""
    torch.empty(TOO_MANY, dtype=torch.uint8)


def gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def python() -> None:
    raise MemoryError


FAILURES = [allocate, gpu, python]


@pytest.fixture(scope="module")
def subject() -> Pretrained:
    return load(tinyhf.llama())


@pytest.fixture
def failing(subject: Pretrained) -> Any:
    """The model, whose second layer does what it is given before it runs."""
    now: list[Callable[[], None]] = []

    def meet(*_given: Any) -> None:
        for fail in now:
            fail()

    handle = subject.model.get_submodule("model.layers.1").register_forward_pre_hook(meet)
    yield now
    handle.remove()


@pytest.mark.parametrize("fail", FAILURES)
def test_reading_and_running_without_enough_memory_say_what_makes_a_pass_smaller(subject, failing, fail):
    ids = torch.arange(6, 20).view(2, 7)
    batch = subject.batch_of({"input_ids": ids})
    failing.append(fail)
    for call in (
        lambda: subject.read({"input_ids": ids}),
        lambda: subject.batch_of({"input_ids": ids}),
        lambda: subject.score(batch),
        lambda: subject.each(batch, lambda trace: None),
    ):
        with pytest.raises(ModelOutOfMemoryError) as found:
            call()
        given, known, todo = found.value.problem, found.value.reason, found.value.todo
        assert "input_ids of 2×7" in given
        assert "needs more memory than there is" in given
        assert known.startswith("The system ")
        assert todo == LESS
        assert all(option in todo for option in ("--batch", "--window", "--dtype"))
        assert "do not go through" not in str(found.value)


@pytest.mark.parametrize("fail", FAILURES)
def test_a_model_that_memory_does_not_suffice_for_is_not_refused_as_one_that_cannot_be_verified(fail):
    model = tinyhf.llama()
    model.get_submodule("model.layers.1").register_forward_pre_hook(lambda *_: fail())
    with pytest.raises(ModelOutOfMemoryError, match="Verifying LlamaForCausalLM") as found:
        load(model)
    assert "cannot be tried out" not in str(found.value)


def test_what_is_wrong_with_inputs_is_still_said_of_them(subject, failing):
    def wrong() -> None:
        raise RuntimeError("shapes cannot be multiplied")

    failing.append(wrong)
    with pytest.raises(ModelError, match="do not go through") as found:
        subject.batch_of({"input_ids": torch.arange(6, 13)[None]})
    assert not isinstance(found.value, ModelOutOfMemoryError)


def test_loading_names_what_loads_less():
    refused = pytest.raises(ModelOutOfMemoryError, match="Loading M needs more memory")
    with refused as found, memory_guard("M", "Loading"):
        gpu()
    assert found.value.todo == SMALLER
    assert "--dtype" in SMALLER


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match=r"^no$"), memory_guard("M", "Running"):
        raise RuntimeError("no")
    assert not is_out_of_memory(ValueError("out of memory"))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
