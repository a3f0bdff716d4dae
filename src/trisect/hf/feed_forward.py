"""The feed-forward block behind an attention layer, found by value: its maps, its activation, and the norms around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from trisect.core.trace import FeedForward, Rescaling
from trisect.hf.affine import Normed, Passed, PassRecord
from trisect.hf.norms import as_added, measure_norm, near, same
from trisect.measure.activations import NAMES, activation


class _Inner(NamedTuple):
    """What makes the hidden units: the activation's name, its operand and what that is multiplied by, as rows of maps."""

    activation: str
    operand: tuple[Passed, slice]
    gate: tuple[Passed, slice] | None


def find_forward(
    order: int, kind: str, record: PassRecord, out: Passed, allowed: float
) -> tuple[FeedForward, tuple[Passed, ...]] | None:
    """The feed-forward block behind the call of that order, with the uses of its maps; null where there is none of the kind.

    Its first maps are given what the sum with attention's result became (`kind` 'post': its norm), or a norm of that;
    what the last one makes, perhaps through a norm, is added to it. All is recomputed within `allowed`.
    """
    start = next(i for i, p in enumerate(record.passed) if p is out) + 1
    later = [p for p in record.passed[start:] if p.calls == order + 1 and p.x.dim() == 3]
    norms = [n for n in record.normed if n.calls == order + 1 and n.x.dim() == 3]
    for first in later:
        maps = [p for p in later if same(p.x, first.x)]
        rest = [p for p in later if all(p is not m for m in maps)]
        if not rest or rest[0].leaf.shape != first.x.shape:
            return None
        last, inner = rest[0], _inner(maps, rest[0], allowed)
        if inner is None:
            return None
        entered = next((n for n in norms if same(n.y, first.x)), None)
        own = entered if kind != "post" else None  # behind a post-norm the norm is attention's own
        z = first.x.detach() if own is None else own.x
        return _whole(inner, last, z, own, kind, (norms, later), allowed)
    return None


def _inner(maps: Sequence[Passed], last: Passed, allowed: float) -> _Inner | None:
    hidden = last.x.detach()
    width, cut = hidden.shape[-1], list[tuple[Passed, slice]]()
    for p in maps:
        if p.leaf.shape[-1] == width:
            cut.append((p, slice(0, width)))
        elif p.leaf.shape[-1] == 2 * width:
            cut += [(p, slice(0, width)), (p, slice(width, 2 * width))]
    if len(cut) not in (1, 2):
        return None
    values = [p.leaf.detach()[..., rows] for p, rows in cut]
    found: list[tuple[float, _Inner]] = []
    for name in NAMES:
        phi = activation(name)
        if len(cut) == 1:
            found.append((_off(phi(values[0]), hidden), _Inner(name, cut[0], None)))
        for one, other in ((0, 1), (1, 0)) if len(cut) == 2 else ():
            found.append((_off(phi(values[one]) * values[other], hidden), _Inner(name, cut[one], cut[other])))
    off, best = min(
        found, key=lambda pair: pair[0]
    )  # GELU and its approximation are nearer to each other than rounding
    return best if off <= allowed else None


def _off(made: Tensor, given: Tensor) -> float:
    return float((made - given).abs().max() / given.abs().max().clamp_min(1e-30))


def _whole(
    inner: _Inner,
    last: Passed,
    z: Tensor,
    own: Normed | None,
    kind: str,
    later: tuple[Sequence[Normed], Sequence[Passed]],
    allowed: float,
) -> tuple[FeedForward, tuple[Passed, ...]] | None:
    """The block with what follows its last map; null where the sum with z is not met, or a norm is none by its numbers."""
    norms, maps = later
    met = [n.given for n in norms] + [p.x for p in maps]
    behind, y = None, last.leaf.detach()
    if not any(near(z + y, g, allowed) and as_added(g, last.leaf) for g in met if g.shape == z.shape):
        behind = next((n for n in norms if same(n.x, y)), None)
        if behind is None or not any(near(z + behind.y, g, allowed) for g in met if g.shape == z.shape):
            return None
        y = behind.y
    after = None
    if kind == "post":
        after = next((n for n in norms if n.x.shape == z.shape and near(z + y, n.x, allowed)), None)
        if after is None:
            return None
    around = [_rescaling(n) for n in (own, behind, after)]
    if any(n is not None and found is None for n, found in zip((own, behind, after), around, strict=True)):
        return None
    pairs = [_rows(*cut) if cut is not None else (None, None) for cut in (inner.operand, inner.gate)]
    (first, bias), (gate, gate_bias), final = pairs[0], pairs[1], last.map()
    assert first is not None
    outer = final.weight.detach(), None if final.bias is None else final.bias.detach()
    uses = (inner.operand[0], *(() if inner.gate is None else (inner.gate[0],)), last)
    return FeedForward(inner.activation, first, bias, gate, gate_bias, *outer, *around), tuple(dict.fromkeys(uses))


def _rows(p: Passed, rows: slice) -> tuple[Tensor, Tensor | None]:
    affine = p.map()
    return affine.weight.detach()[rows], None if affine.bias is None else affine.bias.detach()[rows]


def _rescaling(used: Normed | None) -> Rescaling | None:
    norm = None if used is None else measure_norm(used)
    return None if norm is None else Rescaling(norm.gamma, norm.beta, norm.epsilon, norm.centred)
