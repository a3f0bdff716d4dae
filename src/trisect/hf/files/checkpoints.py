"""Weights of a model: reading and interpolating checkpoints, and checksums that show changes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from trisect.core.errors import ModelError, SiteError
from trisect.core.subject import SiteTarget
from trisect.core.trace import Origin, Projections
from trisect.hf.files.fetch import Options, fetch
from trisect.hf.hooks.calls import RECORDING, synchronized

SliceValues = tuple[Tensor, ...]  # of each cut, in the order of the cuts


class ParameterSlice(NamedTuple):
    """Some units of one parameter: distinct ascending indices along `axis`, or into the flattened parameter if it is None."""

    parameter: str
    units: tuple[int, ...]
    axis: int | None

    def get(self, state: Mapping[str, Tensor]) -> Tensor:
        """A copy of the units."""
        tensor = state[self.parameter]
        index = torch.tensor(self.units, device=tensor.device)
        return tensor.flatten()[index] if self.axis is None else tensor.index_select(self.axis, index)

    @torch.no_grad()
    def put(self, state: Mapping[str, Tensor], value: Tensor) -> None:
        """Write the units in place, and nothing else."""
        tensor = state[self.parameter]
        index = torch.tensor(self.units, device=tensor.device)
        flat = tensor.view(-1) if self.axis is None else tensor
        flat.index_copy_(self.axis or 0, index, value.to(tensor))


def cuts_of(target: SiteTarget, projections: Projections) -> tuple[ParameterSlice, ...]:
    """The weight and bias rows of one component of one layer, of all heads or of those that the target names.

    Raises SiteError if the component is not a selection of one module's units.
    """
    origin: Origin = projections.origins[target.component]
    if origin.parameter is None or origin.rows is None:
        problem = f"{target.component} of {target.address} cannot be rewound."
        reason = f"It has no weights of its own: {origin.words}."
        raise SiteError(problem, reason, "Leave this site out.")
    which = slice(None) if target.heads is None else [head - 1 for head in target.heads]
    units = lambda rows: tuple(rows[which].flatten().unique().tolist())  # noqa: E731
    cuts = [ParameterSlice(origin.parameter, units(origin.rows), 1 if origin.transposed else 0)]
    if origin.bias is not None:
        # a bias outside the module is indexed by heads, not by the module's units
        is_apart = origin.bias.rpartition(".")[0] != origin.parameter.rpartition(".")[0]
        rows = torch.arange(origin.rows.numel()).view_as(origin.rows) if is_apart else origin.rows
        cuts.append(ParameterSlice(origin.bias, units(rows), None))
    return tuple(cuts)


def locate(model: str | Path, revision: str) -> tuple[str | Path, str | None]:
    """Find a revision: a subfolder of that name, else one on the hub; raises ModelError for a missing subfolder."""
    folder = Path(model)
    if not folder.is_dir():
        return model, revision
    place = folder / revision
    if place.name == revision and (place / "config.json").exists():
        return place, None
    reason = "None of its subfolders has a model."
    todo = "Save every checkpoint in its own subfolder with save_pretrained."
    if present := sorted(p.parent.name for p in folder.glob("*/config.json")):
        reason, todo = f"Its subfolders with a model are {', '.join(present)}.", "Name one of them."
    raise ModelError(f"{folder} has no revision {revision!r}.", reason, todo)


def read_cuts(
    model: str | Path, revision: str, cuts: Sequence[ParameterSlice], like: nn.Module, options: Options
) -> SliceValues:
    """Values of a revision at the cuts; the rest of the revision is freed.

    `like` is the model that the values are meant for. Raises ModelError if the revision does not exist, or is a model
    of another kind or shape.
    """
    where, name = locate(model, revision)
    other, _, _ = fetch(where, Options(name, options.dtype, "cpu", None, options.pickle, options.remote_code))
    if type(other) is not type(like):
        reason = f"The final one is a {type(like).__name__}, this one a {type(other).__name__}."
        raise ModelError(f"Revision {revision!r} is another model.", reason, "Choose revisions of one model.")
    state, like_state = other.state_dict(), like.state_dict()
    for parameter in dict.fromkeys((*(cut.parameter for cut in cuts), *like_state, *state)):
        both = (tensors.get(parameter) for tensors in (like_state, state))
        here, stored = (None if t is None else tuple(t.shape) for t in both)
        if here != stored:
            first, second = ("missing" if n is None else "×".join(map(str, n)) for n in (here, stored))
            reason = f"{parameter} is {first} in the final revision and {second} in this one."
            reason = f"It has {parameter}, which is missing in the final revision." if here is None else reason
            raise ModelError(f"Revision {revision!r} has another shape.", reason, "Choose revisions of one model.")
    return take(state, cuts)


def take(state: Mapping[str, Tensor], cuts: Sequence[ParameterSlice]) -> SliceValues:
    """Copies of what the cuts select."""
    return tuple(cut.get(state) for cut in cuts)


def blend(first: SliceValues, last: SliceValues, alpha: float) -> SliceValues:
    """Convex rewinding (definitions A5): (1 − α)·θ⁰ + α·θᶠ, formed in float64; exact at both ends and where θ⁰ = θᶠ."""
    if alpha in (0.0, 1.0):
        return last if alpha else first
    pairs = ((a.to(b.device).double(), b.double(), b.dtype) for a, b in zip(first, last, strict=True))
    return tuple((b + (1 - alpha) * (a - b)).to(kind) for a, b, kind in pairs)


@contextlib.contextmanager
def replaced(model: nn.Module, cuts: Sequence[ParameterSlice], values: SliceValues) -> Iterator[None]:
    """Set the model's parameters to `values` at the cuts inside; restore them bit for bit afterwards."""
    with RECORDING:
        state = model.state_dict()
        before = take(state, cuts)
        try:
            _put(state, cuts, values)
            yield
        finally:
            _put(state, cuts, before)


def _put(state: Mapping[str, Tensor], cuts: Sequence[ParameterSlice], values: SliceValues) -> None:
    for cut, value in zip(cuts, values, strict=True):
        cut.put(state, value)


ROW = 4096  # words of 64 bits
AT_ONCE = {"cpu": 1 << 16}  # words that are summed at once: they fit a processor's cache
ON_A_DEVICE = 1 << 24
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class State(NamedTuple):
    """The state of a model's weights: the number of writes to its parameters, and a checksum of every tensor."""

    writes: int
    marks: dict[str, int]

    @classmethod
    def of(cls, model: nn.Module) -> State:
        """The present state of a model's parameters and persistent buffers."""
        return cls(_writes(model), _marks(model))

    def without_changed_buffers(self, model: nn.Module) -> State:
        """This state without the buffers that the model has written to since."""
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        now = _marks(model, parameters)
        return self._replace(marks={n: mark for n, mark in self.marks.items() if n in parameters or now.get(n) == mark})

    def changed(self, model: nn.Module) -> str | None:
        """The name of a tensor whose bits differ from this state, or None."""
        now = _marks(model)
        return next((name for name, mark in self.marks.items() if now.get(name) != mark), None)


def _writes(model: nn.Module) -> int:
    return sum(0 if p.is_inference() else p._version for p in model.parameters())


@torch.no_grad()
def _marks(model: nn.Module, without: Container[str] = ()) -> dict[str, int]:
    """A checksum of every tensor of a model that is on a device, but those of some names; a shared tensor counts once."""
    parts: dict[int, tuple[str, Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        for part in value if isinstance(value, tuple) else (value,):  # a quantised module's weight and bias
            if name not in without and isinstance(part, Tensor) and not part.is_meta:
                parts.setdefault(id(part), (name, part))
    devices: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in parts.values():
        devices.setdefault(tensor.device, []).append((name, tensor))
    marks: dict[str, int] = {}
    for device, tensors in devices.items():
        words = max(t.numel() for _, t in tensors) * 2  # of complex numbers in double precision
        # pseudo-random odd factors
        count = 2 * ROW + 8 + words // ROW
        place = torch.arange(count, device=device) * 0x5851F42D4C957F2D + 0x14057B7EF767814F
        factors = (place ^ (place >> 29)) * 0x2545F4914F6CDD1D | 1
        numbers = torch.stack([_mark(tensor, factors) for _, tensor in tensors]).tolist()
        for (name, _), number in zip(tensors, numbers, strict=True):
            marks[name] = marks.get(name, 0) + number
    return marks


def _mark(tensor: Tensor, factors: Int[Tensor, " N"]) -> Int[Tensor, ""]:
    """Checksum of a tensor's bits modulo 2⁶⁴: its words in rows, summed along and across rows, each sum times its own factor."""
    plain = tensor.detach()
    plain = plain.dequantize() if plain.is_quantized else plain.to_dense() if plain.layout != torch.strided else plain
    flat = plain.resolve_conj().resolve_neg().flatten().contiguous()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    flat = flat.view(INTEGERS[flat.element_size()])
    per_word = 8 // flat.element_size()
    flat = flat.clone() if flat.storage_offset() % per_word else flat
    full = len(flat) // per_word * per_word
    words, rest = flat[:full].view(torch.int64), flat[full:].long()  # the rest fills no word
    end = torch.cat([rest, rest.new_zeros(8 - len(rest))])
    in_rows = len(words) // ROW * ROW
    along, across = [words[:0]], torch.zeros(ROW, dtype=torch.int64, device=tensor.device)
    for block in words[:in_rows].view(-1, ROW).split(max(1, AT_ONCE.get(tensor.device.type, ON_A_DEVICE) // ROW)):
        along.append(block.sum(1))
        across += block.sum(0)
    sums = torch.cat([across, words[in_rows:], across.new_zeros(ROW + in_rows - len(words)), end, *along])
    return ((sums ^ (sums >> 32)) * factors[: len(sums)]).sum()


@synchronized
def hash_weights(model: nn.Module) -> str:
    """Hash a model's state dict to 16 hex digits."""
    state_hash = hashlib.blake2b(digest_size=8)
    for name, value in sorted(model.state_dict().items()):
        for part in value if isinstance(value, tuple) else (value,):  # a quantised module's weight and bias
            if not isinstance(part, Tensor):
                state_hash.update(f"{name}{part}".encode())
                continue
            plain = part.detach().cpu()
            plain = (plain.dequantize() if plain.is_quantized else plain).contiguous()
            state_hash.update(f"{name}{tuple(plain.shape)}{part.dtype}".encode())
            state_hash.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return state_hash.hexdigest()


def check_state(name: str, state: State | None, model: nn.Module) -> None:
    """Raise ModelError if a model's weights differ from a state."""
    if state is not None and (changed := state.changed(model)):
        reason = f"{changed} is not what it was on loading; the projections were located for the weights at loading."
        raise ModelError(f"The weights of {name} have changed since it was loaded.", reason, "Load it again.")


def check_writes(name: str, state: State | None, model: nn.Module) -> None:
    """`check_state`, but only if PyTorch's version counters show writes since then (writes to `.data` do not count): fast."""
    if state is not None and _writes(model) != state.writes:
        check_state(name, state, model)
