"""Activation patching at q, k and v: replace one text's by another's, and see which predicted answer comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import QKV, Batch, SiteTarget, Writer, Writers
from trisect.core.tables import NewRow
from trisect.core.trace import Address, Trace
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval
from trisect.stats.shares import jeffreys, ratios
from trisect.stats.significance import finite


class _RecordedPass(NamedTuple):
    """A model's outputs for a batch, and q, k and v at some addresses as they enter the dot product."""

    outputs: Float[Tensor, "B T V"]
    parts: Mapping[Address, QKV]


def record(
    outputs_of: Callable[[Batch, Writers, Int[Tensor, " B"] | None], Float[Tensor, "B T V"]],
    batch: Batch,
    addresses: Iterable[Address],
    places: Int[Tensor, " B"] | None = None,
    max_bytes: int | None = None,
) -> _RecordedPass:
    """Read a batch in an unedited pass, by a subject's `outputs` or the `read` of edited passes; with `places`, at one position a row.

    Addresses are recorded in the order of the model's calls: the first, and the following ones while all fit in `max_bytes`.
    """
    parts_at: dict[Address, QKV] = {}
    sizes: list[int] = []

    def listener(address: Address) -> Writer:
        def write(parts: QKV) -> QKV:
            sizes.append(sum(part.numel() * part.element_size() for part in parts))
            if max_bytes is None or len(sizes) == 1 or sum(sizes) <= max_bytes:
                parts_at[address] = QKV(*(part.detach().clone() for part in parts))
            return parts

        return write

    outputs = outputs_of(batch, {address: listener(address) for address in addresses}, places)
    return _RecordedPass(outputs, parts_at)


def replace_at(
    targets: Sequence[SiteTarget], source: QKV, queries: Bool[Tensor, "B T"], keys: Bool[Tensor, "B S"]
) -> Writer:
    """A writer that replaces components and heads of the targets by `source`, at positions that are True.

    `queries` are positions of q, `keys` those of k and v; every other number stays bit for bit. The targets are of one
    address; a `source` with more padding than the call that is written to is cut, one with less is filled up. Raises
    ModelError in a pass whose call has another number of positions than the tokens that were named.
    """

    def write(parts: QKV) -> QKV:
        new = parts._asdict()
        for target in targets:
            old: Tensor = new[target.component]
            chosen = (queries if target.component == "q" else keys)[:, None, :, None].to(old.device)
            if chosen.shape[2] != old.shape[2]:
                problem = f"{target.component} at {target.address} has {old.shape[2]} positions."
                reason = f"The texts have {chosen.shape[2]} tokens: which of them stands where is not known."
                raise ModelError(problem, reason, "Patch where layers see the tokens of the texts, one a position.")
            if target.heads is not None:
                heads = torch.zeros(old.shape[1], dtype=torch.bool, device=old.device)
                heads[[head - 1 for head in target.heads]] = True
                chosen = chosen & heads[None, :, None, None]
            part = getattr(source, target.component).to(old)[:, :, : old.shape[2]]
            missing = old.shape[2] - part.shape[2]  # padded at the end
            part = torch.nn.functional.pad(part, (0, 0, 0, missing)) if missing else part
            new[target.component] = torch.where(chosen, part, old)
        return QKV(**new)

    return write


def attribute(
    trace: Trace, donor: QKV, queries: Bool[Tensor, "B T"], keys: Bool[Tensor, "B S"]
) -> dict[str, tuple[Float[Tensor, "B H T"], Float[Tensor, "B H T"]]]:
    """Estimated effects of replacing each head at each position of q, k, v by the donor's: corrected, and to first order.

    `trace` was read with gradients, and a backward pass was run from the patched quantity. To first order an effect is gradient ×
    difference (Nanda 2023, Attribution Patching). Corrected, the attention weights with the donor's q or k are computed exactly and
    only the later computation is taken as linear (Kramár et al. 2024, AtP*, section 3.1). For v, and if the scale of q·k is unknown,
    the two are equal. 0 at positions where `queries` or `keys` is false.
    """
    moves = {}
    for name, chosen in (("q", queries), ("k", keys), ("v", keys)):
        part: Tensor = getattr(trace, name)
        base, source = part.detach().double(), getattr(donor, name).to(part.device).double()[:, :, : part.shape[2]]
        source = torch.nn.functional.pad(source, (0, 0, 0, base.shape[2] - source.shape[2]))
        change = torch.where(chosen[:, None, :, None].to(base.device), source - base, 0.0)
        plain = change.sum(-1) * 0 if part.grad is None else (part.grad.double() * change).sum(-1)
        corrected = plain
        if name != "v" and trace.scale is not None and trace.output.grad is not None:
            weights, values = trace.weights.detach().double(), trace.values.detach().double()
            slopes = trace.output.grad.double() @ values.transpose(-1, -2)  # the derivative by each weight
            if name == "q":
                scores = trace.scale * change @ trace.keys.detach().double().transpose(-1, -2)
                corrected = (slopes * (_shift_weights(weights, scores) - weights)).sum(-1)
            else:  # one position's k at a time, by key/value head
                group = trace.heads // change.shape[1]
                changes = change.repeat_interleave(group, 1).transpose(-1, -2)
                scores = trace.scale * trace.q.detach().double() @ changes
                corrected = _raise_each(weights, scores, slopes).sum(2).unflatten(1, (-1, group)).sum(2)
        moves[name] = corrected, plain
    return moves


SINK_REST = 1e-4  # 1 − Σ weights of a row: below this it is rounding, above it is the weight of a sink


def _shift_weights(weights: Float[Tensor, "*R S"], scores: Float[Tensor, "*R S"]) -> Float[Tensor, "*R S"]:
    """Softmax weights after scores change; a sink keeps its score."""
    rest = 1 - weights.sum(-1, keepdim=True)
    rest = torch.where(rest > SINK_REST, rest, 0.0)
    top = torch.where(weights > 0, scores, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(rest > 0, top.clamp_min(0.0), top).nan_to_num(neginf=0.0)
    raised = torch.where(weights > 0, weights * (scores - top).exp(), 0.0)
    # top ≥ 0 if rest > 0
    total = raised.sum(-1, keepdim=True) + rest * (-top).clamp(max=0.0).exp()
    return raised / total.clamp_min(torch.finfo(total.dtype).tiny)


def _raise_each(
    weights: Float[Tensor, "*R S"], scores: Float[Tensor, "*R S"], slopes: Float[Tensor, "*R S"]
) -> Float[Tensor, "*R S"]:
    """Change of a row's sum of weights × `slopes` with each single score; a sink keeps its score.

    The rest of a row is the sum of the other weights, not 1 − weight, which for a weight near 1 would be rounding error.
    """

    def others(x: Tensor) -> Tensor:
        one_way, other = x.cumsum(-1), x.flip(-1).cumsum(-1)
        pad = torch.nn.functional.pad
        return pad(one_way[..., :-1], (1, 0)) + pad(other[..., :-1], (1, 0)).flip(-1)

    sink = 1 - weights.sum(-1, keepdim=True)
    rest, mixed = others(weights) + torch.where(sink > SINK_REST, sink, 0.0), others(weights * slopes)
    top = scores.clamp_min(0.0)
    raised, shrunk = weights * (scores - top).exp(), (-top).exp()
    total = (rest * shrunk + raised).clamp_min(torch.finfo(weights.dtype).tiny)
    moves = (mixed * shrunk + raised * slopes) / total - (mixed + weights * slopes) / (rest + weights)
    return torch.where((weights > 0) & (rest > 0), moves, 0.0)


def move_position(
    part: Float[Tensor, "B H T E"], start: Int[Tensor, " B"], end: Int[Tensor, " B"]
) -> Float[Tensor, "B H S E"]:
    """Each row's numbers moved from one position to another, zeros elsewhere."""
    rows = torch.arange(len(part), device=part.device)
    result = part.new_zeros(*part.shape[:2], int(end.max()) + 1, part.shape[3])
    result[rows, :, end.to(part.device)] = part[rows, :, start.to(part.device)]
    return result


def freeze_later_layers(
    recorded: Mapping[Address, QKV], order: Sequence[Address], address: Address
) -> dict[Address, Writer]:
    """Writers that restore recorded q, k and v of every layer after `address`, for the same batch; `order` is the calls'."""

    def hold(source: QKV) -> Writer:
        return lambda parts: QKV(*(new.to(old) for new, old in zip(source, parts, strict=True)))

    return {later: hold(recorded[later]) for later in order[order.index(address) + 1 :]}


BASE = "base"  # the answer of the run that is patched, as it is without
OTHER_ANSWER = "other"  # an answer that nothing predicted
UNKNOWN = -1  # a prediction that is not known


class _PairShare(NamedTuple):
    """A share of pairs with Jeffreys' 95 % interval; all None without pairs."""

    value: float | None
    low: float | None
    high: float | None
    hits: int
    n: int

    def row(self) -> NewRow:
        """The columns of a table."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def match_answers(
    answers: ArrayLike, predictions: Mapping[str, ArrayLike], component: str
) -> tuple[dict[str, Bool[np.ndarray, " N"]], Bool[np.ndarray, " N"]]:
    """For each prediction, the pairs with that answer under the donor's `component`, and the pairs that count.

    `answers` [N] are token ids of the patched answers. `predictions` holds token ids [N] under 'base' (the answer without the patch)
    and, where there are predictions, under 'q', 'k', 'v' and joint components such as 'q+k' (the answer predicted if that component
    works as its name says); UNKNOWN if there is none. Only pairs count whose predictions are all known and all different.
    """
    assert {BASE, component} <= set(predictions), f"predictions of {BASE} and {component} are needed"
    # the answers of the base, of q, k and v (if predicted) and of the component have to differ
    names = dict.fromkeys([BASE, *(name for name in "qkv" if name in predictions), component])
    table = np.stack([np.asarray(predictions[name]) for name in names])
    ordered = np.sort(table, 0)
    clear = (ordered[0] >= 0) & (np.diff(ordered, axis=0) != 0).all(0)
    return dict(zip(names, np.asarray(answers) == table, strict=True)), clear


def shares(answers: ArrayLike, predictions: Mapping[str, ArrayLike], component: str) -> dict[str, _PairShare]:
    """The share of each prediction of `match_answers` among the pairs that count; the rest gave no predicted answer."""
    hits, clear = match_answers(answers, predictions, component)
    return {name: hit_share(hit[clear]) for name, hit in hits.items()}


def hit_share(hits: Bool[np.ndarray, " N"]) -> _PairShare:
    """The share of True pairs; by convention its interval reaches 0 or 1 if all pairs agree."""
    n, count = len(hits), int(hits.sum())
    if not n:
        return _PairShare(None, None, None, 0, 0)
    value = count / n
    low, high = jeffreys(value, n)
    return _PairShare(value, min(low, value) if count else 0.0, max(high, value) if count < n else 1.0, count, n)


def match_prediction(answers: ArrayLike, predictions: Mapping[str, ArrayLike]) -> tuple[str, ...]:
    """For each pair the first name in `predictions` whose answer came, or OTHER."""
    numbers = np.asarray(answers)
    matched = np.full(len(numbers), OTHER_ANSWER, dtype=object)
    for name in reversed(list(predictions)):
        predicted = np.asarray(predictions[name])
        matched[(numbers == predicted) & (predicted >= 0)] = name
    return tuple(map(str, matched))


def logit_ratio_terms(
    patched: Float[np.ndarray, " N"], base: Float[np.ndarray, " N"], other: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Terms over pairs for Σ (base − patched) / Σ (base − other), which is 0 for no effect and 1 for the other text's output.

    Arguments [N] are differences of the logits of the two runs' answers: `base` in the run that is patched, `other` in the run
    patched from, `patched` under the patch. Returns the terms of the numerator and of the denominator, of the M pairs whose
    terms are finite and not both 0. A ratio of sums, since the ratio of a pair with nearly equal runs is unbounded.
    Source: Wang et al. 2022, Interpretability in the Wild; Zhang & Nanda 2024, Towards Best Practices of Activation Patching.
    """
    change, total = base - patched, base - other
    counts = np.isfinite(change) & np.isfinite(total) & ((total != 0) | (change != 0))
    return change[counts], total[counts]


def ratio_of_sums(numerators: Float[np.ndarray, " N"], denominators: Float[np.ndarray, " N"], seed: int = 0) -> NewRow:
    """Σ numerators / Σ denominators over N pairs with its 95 % interval, as columns of a table; None if it is not finite."""
    n = len(denominators)
    if not n or denominators.sum() == 0:
        return {"value": None, "low": None, "high": None, "n": n}
    ends = percentile_interval(bootstrap_ratios(numerators[:, None], denominators, seed), n)
    value = ratios(numerators[:, None], denominators)[0]
    return {"value": finite(value), "low": finite(ends.low[0]), "high": finite(ends.high[0]), "n": n}
