"""Steps in a stretch never wait for the device, and train as steps that are looked at one by one do, to the bit."""

import contextlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import tiny
from torch.utils._python_dispatch import TorchDispatchMode

from trisect.core.site import Site
from trisect.lm import feed, fleet, loss, train
from trisect.lm.fleet import views
from trisect.lm.rewind import blend, evaluate_variants
from trisect.lm.train import Trainer, _RunningMeans

CORPUS = tiny.corpus()
CALM = [r for r in tiny.runs() if r.edit is None or r.edit.kind == "freeze"]
ATTACKED = [r for r in tiny.runs() if r.edit is not None and r.edit.kind == "attack"]
FLEETS = {"calm": CALM, "attacked": ATTACKED}
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal")
METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a device: numbers that are read, and shapes that depend on numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        for name in METHODS:
            monkeypatch.setattr(torch.Tensor, name, self.counted(name, getattr(torch.Tensor, name)))

    def counted(self, name, method):
        def wrapped(*given, **more):
            self.found[name] += 1
            return method(*given, **more)

        return wrapped

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masked = "index" in name and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for a in args[1:2] if isinstance(a, list) for i in a
        )
        if name in WAITS or masked:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FLEETS)
def test_a_step_of_a_stretch_waits_for_nothing_and_copies_no_window(name, monkeypatch):
    trainer = Trainer(FLEETS[name], CORPUS)
    trainer.windows.caches = True  # as on a GPU
    norms: list[torch.Tensor] = []
    for _ in range(trainer.steps_per_epoch):
        trainer.step(norms)
    monkeypatch.setattr(feed, "batch", None)  # from the second epoch on nothing is cut from the text
    waits = Waits(monkeypatch)
    with waits:
        steps = [trainer.step(norms) for _ in range(4)]
    # AdamW of a CPU reads its own count of steps, which lies on a CPU with any device
    assert not waits.found, waits.found
    with waits:
        trainer.step()
        _RunningMeans(len(FLEETS[name])).add(steps)
    assert sum(waits.found.values()) >= 2  # looked at and gathered it is counted


class Pretended:
    """The module `torch`, where a device has neither generators nor autocast."""

    def __getattr__(self, name):
        if name == "Generator":
            return lambda device: torch.Generator()
        return (lambda *given, **more: contextlib.nullcontext()) if name == "autocast" else getattr(torch, name)


@pytest.mark.parametrize("name", FLEETS)
def test_on_another_device_a_step_mixes_no_devices_and_reads_no_numbers(name, monkeypatch):
    """Tensors of the device 'meta' have no numbers: whatever asks for one, or mixes them with a CPU's, is an error."""
    for sizes in (fleet.SCORES_PER_BLOCK, loss.BLOCK, loss.MEMBER_LOGITS, loss.SOFTMAX_LOGITS):
        monkeypatch.setitem(sizes, "meta", sizes["cuda"])
    for module in (fleet, train):
        monkeypatch.setattr(module, "torch", Pretended())
    monkeypatch.setattr(
        train.Dropout, "factor", lambda self, shape, dtype: torch.empty(shape, dtype=dtype, device="meta")
    )
    trainer, norms = Trainer(FLEETS[name], CORPUS, "meta"), []
    groups = tiny.attackers_of(trainer)
    for learner in (trainer.descent, *groups):
        monkeypatch.setattr(learner.optimizer, "step", lambda: None)  # PyTorch's has no rule for such tensors
    assert all(group.masked for group in groups)
    steps = [trainer.step(norms) for _ in range(3)]
    assert {one.loss.device.type for one in steps} == {"meta"} == {trainer.gradient.device.type}
    assert [len(one.notes) for one in steps] == [len(groups and FLEETS[name])] * 3


@pytest.mark.parametrize("name", FLEETS)
def test_stretches_train_as_steps_do_to_the_bit(name):
    one, other = (Trainer(FLEETS[name], CORPUS) for _ in range(2))
    steps = [one.step() for _ in range(7)]
    ahead = other.advance(3) + other.advance(4)
    assert torch.equal(one.flat, other.flat)
    seen = [_RunningMeans(len(FLEETS[name])) for _ in range(2)]
    for step in steps:
        seen[0].add([step])
    seen[1].add(ahead)
    assert [seen[0].rows(i) for i in range(len(FLEETS[name]))] == [seen[1].rows(i) for i in range(len(FLEETS[name]))]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("begun", [0, 2])
def test_a_stretch_in_which_a_member_diverges_is_done_again_and_ends_the_same(optimizer, begun, monkeypatch):
    runs = [replace(r, training=replace(r.training, optimizer=optimizer)) for r in (*CALM, *ATTACKED[:1])]
    one, other = (Trainer(runs, CORPUS) for _ in range(2))
    original = Trainer._backward

    def spoiled(self, piece):
        result = original(self, piece)
        if self.steps_done == begun + 1:
            self.gradient[1, 3] = torch.nan
        return result

    monkeypatch.setattr(Trainer, "_backward", spoiled)
    for _ in range(begun):
        one.step()
        other.step()
    for _ in range(4):
        one.step()
    assert len(other.advance(4)) == 4
    assert one.dead == other.dead == {1: begun + 2}
    assert torch.equal(one.flat, other.flat)
    assert one.steps_done == other.steps_done
    assert torch.isfinite(other.flat).all()


def test_rewinding_with_fewer_looks_finds_the_same_bits(monkeypatch):
    trainer = Trainer(CALM[:1], CORPUS)
    final = views(trainer.flat, trainer.places)
    start = {name: value[0] + 0.1 * torch.randn(value.shape[1:]) for name, value in final.items()}
    made = blend(start, {name: value[0] for name, value in final.items()}, [i / 10 for i in range(11)])
    given = final, trainer.model, trainer.pieces["valid"], Site.parse("q@1").resolve(2, 2), made
    found = []
    for looks in (1, 8):  # as on a CPU, and as on a GPU
        monkeypatch.setitem(loss.DIRECTIONS_PER_CHECK, "cpu", looks)
        found.append(evaluate_variants(*given))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    assert found[0].loss_nats.std() > 0
