"""Query, key and value weights of one model at several checkpoints: read, interpolated, and put in place of others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from trisect.core.errors import ModelError, SiteError
from trisect.core.subject import SiteTarget
from trisect.core.trace import Origin, Projections
from trisect.hf.fetch import Options, fetch
from trisect.hf.one_thread import RECORDING

SliceValues = tuple[Tensor, ...]  # of each cut, in the order of the cuts


class ParameterSlice(NamedTuple):
    """Some units of one parameter, rising and none twice: places along `axis`, or in all its numbers where it is null."""

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
        there = tensor.view(-1) if self.axis is None else tensor
        there.index_copy_(self.axis or 0, index, value.to(tensor))


def cuts_of(target: SiteTarget, projections: Projections) -> tuple[ParameterSlice, ...]:
    """The weight and bias behind one component of one layer, of all heads or of those that the target names.

    Raises SiteError where the component is no selection of one module's units.
    """
    origin: Origin = projections.origins[target.component]
    if origin.parameter is None or origin.rows is None:
        given = f"{target.component} of {target.address} cannot be rewound."
        known = f"It has no weights of its own: {origin.words}."
        raise SiteError(given, known, "Leave this site out.")
    which = slice(None) if target.heads is None else [head - 1 for head in target.heads]
    cuts = [ParameterSlice(origin.parameter, _units(origin.rows[which]), 1 if origin.transposed else 0)]
    if origin.bias is not None:
        # a bias that stands outside the module is counted by heads, not by the module's units
        apart = origin.bias.rpartition(".")[0] != origin.parameter.rpartition(".")[0]
        rows = torch.arange(origin.rows.numel()).view_as(origin.rows) if apart else origin.rows
        cuts.append(ParameterSlice(origin.bias, _units(rows[which]), None))
    return tuple(cuts)


def _units(rows: Int[Tensor, "H E"]) -> tuple[int, ...]:
    return tuple(rows.flatten().unique().tolist())


def locate(model: str | Path, revision: str) -> tuple[str | Path, str | None]:
    """Where a revision is: a folder's subfolder of that name, else the hub's; raises ModelError for a missing subfolder."""
    folder = Path(model)
    if not folder.is_dir():
        return model, revision
    place = folder / revision
    if place.name == revision and (place / "config.json").exists():
        return place, None
    there = sorted(p.parent.name for p in folder.glob("*/config.json"))
    known = f"Its subfolders with a model are {', '.join(there)}." if there else "No subfolder of it holds a model."
    todo = "Name one of them." if there else "Save every checkpoint with save_pretrained in a subfolder of its own."
    raise ModelError(f"{folder} has no revision {revision!r}.", known, todo)


def read_cuts(
    model: str | Path, revision: str, cuts: Sequence[ParameterSlice], like: nn.Module, options: Options
) -> SliceValues:
    """What a revision holds at the cuts; the rest of it is let go again.

    `like` is the model that the values are meant for. Raises ModelError where the revision is not there, or is a model
    of another kind or shape.
    """
    where, name = locate(model, revision)
    found, _, _ = fetch(where, Options(name, options.dtype, "cpu", None, options.pickle, options.remote_code))
    if type(found) is not type(like):
        known = f"The final one is a {type(like).__name__}, this one a {type(found).__name__}."
        raise ModelError(f"Revision {revision!r} is another model.", known, "Choose revisions of one model.")
    state, own = found.state_dict(), like.state_dict()
    for parameter in dict.fromkeys((*(cut.parameter for cut in cuts), *own, *state)):
        if parameter not in own:
            known = f"It has {parameter}, which the final revision has not."
            raise ModelError(f"Revision {revision!r} has another shape.", known, "Choose revisions of one model.")
        shape = tuple(state[parameter].shape) if parameter in state else None
        if shape != tuple(own[parameter].shape):
            given = f"Revision {revision!r} has another shape."
            known = f"{parameter} is {_by(own[parameter].shape)} in the final revision and {_by(shape)} in this one."
            raise ModelError(given, known, "Choose revisions of one model.")
    return take(state, cuts)


def take(state: Mapping[str, Tensor], cuts: Sequence[ParameterSlice]) -> SliceValues:
    """Copies of what the cuts select."""
    return tuple(cut.get(state) for cut in cuts)


def blend(first: SliceValues, last: SliceValues, alpha: float) -> SliceValues:
    """Convex rewinding (science A5): (1 − α)·θ⁰ + α·θᶠ, formed in float64; exact at both ends and where θ⁰ = θᶠ."""
    if alpha in (0.0, 1.0):
        return last if alpha else first
    pairs = ((a.to(b.device).double(), b.double(), b.dtype) for a, b in zip(first, last, strict=True))
    return tuple((b + (1 - alpha) * (a - b)).to(kind) for a, b, kind in pairs)


@contextlib.contextmanager
def replaced(model: nn.Module, cuts: Sequence[ParameterSlice], values: SliceValues) -> Iterator[None]:
    """The model with those values at the cuts, all else untouched; afterwards its own again, bit for bit."""
    with RECORDING:
        state = model.state_dict()
        own = take(state, cuts)
        try:
            _put(state, cuts, values)
            yield
        finally:
            _put(state, cuts, own)


def _put(state: Mapping[str, Tensor], cuts: Sequence[ParameterSlice], values: SliceValues) -> None:
    for cut, value in zip(cuts, values, strict=True):
        cut.put(state, value)


def _by(shape: Sequence[int] | None) -> str:
    return "missing" if shape is None else "×".join(str(n) for n in shape)
