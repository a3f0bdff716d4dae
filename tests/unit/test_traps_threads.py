"""Traps of threads: several of them that read, score and edit one model, or two models, get what one thread gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests import fooling, tinyhf
from tests.fooling import Fooling
from torch import Tensor

from trisect.core.subject import Parts
from trisect.hf.batches import first_tensor
from trisect.hf.load import load

THREADS, TIMES = 4, 2


def at_once(jobs: Sequence[Callable[[], list[Tensor]]]) -> list[list[Tensor]]:
    """What jobs give that begin together, a thread each."""
    begin, made, errors = threading.Barrier(len(jobs)), {}, list[BaseException]()

    def run(number: int) -> None:
        try:
            begin.wait(60)
            made[number] = jobs[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(jobs))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    if errors:
        raise errors[0]
    return [made[n] for n in range(len(jobs))]


def used(subject: Any, length: int) -> list[Tensor]:
    """What reading, running and editing a model gives for inputs of one length."""
    inputs, found = fooling.ids(length), list[Tensor]()
    flipped = lambda parts: Parts(-parts.q, parts.k, parts.v)  # noqa: E731
    for _ in range(TIMES):
        found += [t for trace in subject.read(inputs).traces for t in (trace.q, trace.v, trace.weights)]
        found.append(first_tensor(subject.predict(inputs)))
        found.append(first_tensor(subject.predict(inputs, {subject.addresses[0]: flipped})))
        found += [own.w_v for own in subject.projections() if own.w_v is not None]
    return found


@pytest.mark.parametrize("build", [tinyhf.gpt2, Fooling])
def test_one_model_in_several_threads(build):
    model: Any = build()
    subjects = [load(model, inputs=fooling.ids()) for _ in range(2)]
    jobs = [lambda n=n: used(subjects[n % 2], 6 + n) for n in range(THREADS)]
    wanted = [job() for job in jobs]
    same(wanted, at_once(jobs))


def test_two_models_are_loaded_and_read_in_several_threads():
    models: list[Any] = [tinyhf.gpt2(), Fooling(), tinyhf.gpt2(seed=2), Fooling(seed=2)]
    jobs = [lambda n=n, m=m: used(load(m, inputs=fooling.ids()), 6 + n) for n, m in enumerate(models)]
    wanted, fast = [job() for job in jobs], torch.backends.mha.get_fastpath_enabled()
    same(wanted, at_once(jobs))
    assert torch.backends.mha.get_fastpath_enabled() == fast


def same(wanted: Sequence[Sequence[Tensor]], given: Sequence[Sequence[Tensor]]) -> None:
    """Every thread's tensors are those that were wanted of it, bit for bit."""
    for want, got in zip(wanted, given, strict=True):
        assert [torch.equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)
