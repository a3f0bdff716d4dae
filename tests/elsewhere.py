"""A device that is pretended: tensors with numbers that lie 'elsewhere', which refuse to be mixed with those of a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

PLACE = torch.device("meta")  # what such a tensor says of its device; PyTorch's own of that device have no numbers
COPIES = ("_to_copy", "copy_", "index", "index_put_")  # a CPU may say which rows are meant, with any device


class Elsewhere(torch.Tensor):
    """A tensor whose numbers lie on a CPU, though it says otherwise."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Elsewhere:
        about = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, device=PLACE, **about)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        """As of any device; PyTorch has none for a class of its own."""
        return self.cpu().tolist()


class Pretended(TorchDispatchMode):
    """Inside, what is made on that device has numbers; `left` counts those that leave it, and `looks` how often."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.looks = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _computed(func, args, kwargs or {})
        given = [x for x in tree_flatten((args, kwargs or {}))[0] if isinstance(x, torch.Tensor)]
        if any(isinstance(x, Elsewhere) for x in given) and not isinstance(found, Elsewhere):
            name = func.overloadpacket.__name__
            if name == "_local_scalar_dense":
                self.looks += 1
            elif isinstance(found, torch.Tensor):
                self.left += found.numel()
        return found


class _Literal(TorchFunctionMode):
    """`torch.tensor` of numbers on that device, which no dispatcher is asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is torch.tensor and torch.device(given.get("device") or "cpu") == PLACE:
            return func(*args, **(given | {"device": "cpu"})).to(PLACE)
        return func(*args, **given)


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A function of numbers that lie elsewhere, or that makes some there; RuntimeError where devices are mixed."""
    name = func.overloadpacket.__name__
    given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    there = [x for x in given if isinstance(x, Elsewhere)]
    near = [x for x in given if not isinstance(x, Elsewhere) and x.dim()]
    if there and near and name not in COPIES:
        raise RuntimeError(f"{name} mixes devices: {[tuple(x.shape) for x in given]}.")
    to = kwargs.get("device", PLACE if there else None)
    device = torch.device("cpu") if to is None else torch.device(to)
    if not there and device != PLACE:
        return func(*args, **kwargs)
    plain = tree_map(lambda x: x.held if isinstance(x, Elsewhere) else x, (args, kwargs))
    plain[1].pop("device", None)
    if name == "copy_":
        args[0].held.copy_(plain[0][1]) if isinstance(args[0], Elsewhere) else args[0].copy_(plain[0][1])
        return args[0]
    found = func(*plain[0], **(plain[1] | ({"device": "cpu"} if "device" in kwargs else {})))
    if device != PLACE:
        return found
    mine = {id(x.held): x for x in there}  # what is written in place stays the same tensor

    def back(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return mine[id(x)] if id(x) in mine else Elsewhere(x)

    return tree_map(back, found)


def moved(value: Any) -> Any:
    """A dataclass, a named tuple or a tensor with all its tensors elsewhere."""
    if isinstance(value, torch.Tensor):
        return Elsewhere(value.detach().clone())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(moved, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: moved(getattr(value, f.name)) for f in fields(value)})
    return value


@contextlib.contextmanager
def elsewhere() -> Iterator[Pretended]:
    """A context in which that device can be used."""
    with _Literal(), Pretended() as mode:
        yield mode


def put(model: nn.Module) -> nn.Module:
    """A model with its parameters and buffers elsewhere."""
    for module in model.modules():
        for name, own in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(Elsewhere(own.detach())))
        for name, own in module.named_buffers(recurse=False):
            setattr(module, name, Elsewhere(own))
    return model


def divided(model: nn.Module, there: nn.Module, behind: Sequence[nn.Module]) -> nn.Module:
    """A model of which one part lies elsewhere, as by a device map: what enters that part and what is `behind` is brought to it."""
    put(there)
    for module, device in ((there, PLACE), *((one, torch.device("cpu")) for one in behind)):

        def bring(_m: nn.Module, args: Any, kwargs: Any, to: torch.device = device) -> Any:
            return tree_map(lambda x: x.to(to) if isinstance(x, torch.Tensor) else x, (args, kwargs))

        module.register_forward_pre_hook(bring, with_kwargs=True)
    return model
