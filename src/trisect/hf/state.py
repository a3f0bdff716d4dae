"""The state of a model's weights: a hash of them, and whether they are others than when the model was verified."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.hf.one_thread import alone

ROW = 4096  # words of 64 bits
AT_ONCE = {"cpu": 1 << 15}  # words that are summed at once: in a processor's cache
ON_A_DEVICE = 1 << 24
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class State(NamedTuple):
    """A model's weights in short: how often its parameters were written to, and a number made of the bits of every tensor."""

    writes: int
    marks: dict[str, int]

    @classmethod
    def of(cls, model: nn.Module) -> State:
        """The state that a model is in: of its parameters, and of the buffers that are saved with them."""
        return cls(_writes(model), _marks(model))

    def settled(self, model: nn.Module) -> State:
        """The same without the buffers that the model has written to since."""
        now, own = _marks(model), {name for name, _ in model.named_parameters()}
        return self._replace(marks={n: mark for n, mark in self.marks.items() if n in own or now.get(n) == mark})

    def changed(self, model: nn.Module) -> str | None:
        """The name of a tensor that is another by now, if one is; what was written and put back again is no change."""
        now = _marks(model)
        return next((name for name, mark in self.marks.items() if now.get(name) != mark), None)


def _writes(model: nn.Module) -> int:
    return sum(0 if p.is_inference() else p._version for p in model.parameters())


@torch.no_grad()
def _marks(model: nn.Module) -> dict[str, int]:
    """A number for every tensor of a model, each tensor once; what is on no device has none."""
    own: dict[int, tuple[str, Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        for part in value if isinstance(value, tuple) else (value,):  # a quantised module's weight and bias
            if isinstance(part, Tensor) and not part.is_meta:
                own.setdefault(id(part), (name, part))
    devices: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in own.values():
        devices.setdefault(tensor.device, []).append((name, tensor))
    marks: dict[str, int] = {}
    for device, tensors in devices.items():
        words = max(t.numel() for _, t in tensors) * 2  # of complex numbers in double precision
        factors = _factors(2 * ROW + 8 + words // ROW, device)
        numbers = torch.stack([_mark(tensor, factors) for _, tensor in tensors]).tolist()
        for (name, _), number in zip(tensors, numbers, strict=True):
            marks[name] = marks.get(name, 0) + number
    return marks


def _factors(count: int, device: torch.device) -> Int[Tensor, " N"]:
    """Odd numbers without an order."""
    place = torch.arange(count, device=device) * 0x5851F42D4C957F2D + 0x14057B7EF767814F
    return (place ^ (place >> 29)) * 0x2545F4914F6CDD1D | 1


def _mark(tensor: Tensor, factors: Int[Tensor, " N"]) -> Int[Tensor, ""]:
    """A number of its bits as words in rows, modulo 2⁶⁴: the sums along rows and across them, each with a factor of its place.

    What changes places in a row is in other sums across rows, and what changes places between rows in other sums along them.
    """
    words, end = _words(tensor)
    whole = len(words) // ROW * ROW
    along, across = [words[:0]], torch.zeros(ROW, dtype=torch.int64, device=tensor.device)
    for block in words[:whole].view(-1, ROW).split(max(1, AT_ONCE.get(tensor.device.type, ON_A_DEVICE) // ROW)):
        along.append(block.sum(1))
        across += block.sum(0)
    found = torch.cat([across, words[whole:], across.new_zeros(ROW + whole - len(words)), end, *along])
    return ((found ^ (found >> 32)) * factors[: len(found)]).sum()


def _words(tensor: Tensor) -> tuple[Int[Tensor, " N"], Int[Tensor, " 8"]]:
    """A tensor's bits as whole numbers: as many of 64 bits as there are, and then the rest."""
    own = tensor.detach()
    own = own.dequantize() if own.is_quantized else own.to_dense() if own.layout != torch.strided else own
    flat = own.resolve_conj().resolve_neg().flatten().contiguous()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    flat = flat.view(WHOLE[flat.element_size()])
    several = 8 // flat.element_size()
    flat = flat.clone() if flat.storage_offset() % several else flat
    whole = len(flat) // several * several
    rest = flat[whole:].long()
    return flat[:whole].view(torch.int64), torch.cat([rest, rest.new_zeros(8 - len(rest))])


@alone
def mark_of(model: nn.Module) -> str:
    """Hex digits of a model's weights: the same for the same weights."""
    found = hashlib.blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        _add_to(found, name, value)
    return found.hexdigest()


def _add_to(found: Any, name: str, value: object) -> None:
    """Add an entry of a state dict to a hash; a quantised module's may be no plain tensor."""
    if isinstance(value, tuple):
        for part in value:
            _add_to(found, name, part)
    elif isinstance(value, Tensor):
        plain = value.detach().cpu()
        plain = (plain.dequantize() if plain.is_quantized else plain).contiguous()
        found.update(f"{name}{tuple(plain.shape)}{value.dtype}".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    else:
        found.update(f"{name}{value}".encode())


def check_state(name: str, state: State | None, model: nn.Module) -> None:
    """Raise ModelError where a model's weights are others than those of a state."""
    if state is not None and (changed := state.changed(model)):
        known = (
            f"{changed} is not what it was; what was found of its projections belongs to the weights that it had then."
        )
        raise ModelError(f"The weights of {name} have changed since it was loaded.", known, "Load it again.")


def check_writes(name: str, state: State | None, model: nn.Module) -> None:
    """The same where PyTorch knows of writes since then, as it does of all but those to `.data`: costs nothing where it does not."""
    if state is not None and _writes(model) != state.writes:
        check_state(name, state, model)
