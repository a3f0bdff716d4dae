"""Rows of the norm analysis: a stack's tallies into the table `measures`, and the statistics that claims speak of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from trisect.claims.sampled import UnitTest
from trisect.core.tables import NewRow
from trisect.core.trace import Address, crosses
from trisect.measure.running_sums import FEWER, GROUPS, LayerTally, PooledTally
from trisect.measure.sums import Sums
from trisect.measure.token_categories import CATEGORIES, MARKED
from trisect.stats.bootstrap import DrawnEstimate, draw_times, percentile_interval
from trisect.stats.describe import spearman, variation
from trisect.stats.orders import permuted_spearman
from trisect.stats.tested import Reals, finite, value_row

SEP, FIRST = CATEGORIES.index("sep"), CATEGORIES.index("first")
KINDS = ("weight", "norm")
DRAWS = 4_000


@dataclass
class StackTally:
    """The tallies of one stack: of every layer, and of what is pooled over them."""

    stack: str
    layers: dict[Address, LayerTally]
    model: PooledTally = field(default_factory=PooledTally)


class DrawnTexts:
    """Values and intervals of numbers from `n` texts in `units` articles (null: each is one); every number meets the same draws."""

    def __init__(self, n: int, seed: int, draws: int = DRAWS, units: int | None = None) -> None:
        self.n, self.seed, drawn = n, seed, n if units is None else units
        self.times, self.fewer = (
            draw_times(np.random.default_rng(seed), min(drawn, groups), draws) for groups in (GROUPS, FEWER)
        )

    def sums(self, sums: Sums) -> DrawnEstimate:
        """A tally's sums, on all texts and in every draw."""
        return DrawnEstimate(sums.total(self.times.shape[1]), sums.drawn(self.times))

    def row(self, estimate: DrawnEstimate, place: tuple[int, ...] = (), fewer: bool = False) -> dict[str, float | None]:
        """Columns value, low, high, n of one number of an estimate; null where it is no number.

        Degrees of freedom are of the groups that were drawn: `fewer` where those were.
        """
        drawn, groups = estimate.draws[(slice(None), *place)], (self.fewer if fewer else self.times).shape[1]
        return value_row(estimate.value[place], percentile_interval(drawn, groups), self.n)


def each(function: Any, *estimates: DrawnEstimate) -> DrawnEstimate:
    """A function of sums, on all texts and in every draw; where it divides by nothing the result is NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return DrawnEstimate(function(*(e.value for e in estimates)), function(*(e.draws for e in estimates)))


def mean_of(parts: list[DrawnEstimate]) -> DrawnEstimate:
    """The mean of several numbers."""
    return DrawnEstimate(np.mean([p.value for p in parts], 0), np.mean([p.draws for p in parts], 0))


def stack_rows(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    """Every row of a stack; fills `statistics` with what the claims of papers.norms speak of."""
    for part in (_dispersion, _shares, _cancelling, _frequency, _mixing):
        for row in part(tally, drawn, statistics):
            yield {"stack": tally.stack} | row


def _dispersion(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    for name in ("x", "f", "a", "af"):
        found = []
        for address, layer in tally.layers.items():
            heads = each(variation, drawn.sums(getattr(layer, name)))
            own = {"layer": address.layer, "measure": f"cv_{name}"}
            if heads.value.ndim:
                yield from (own | {"head": h + 1} | drawn.row(heads, (h,)) for h in range(len(heads.value)))
            whole = each(lambda v: v.mean(-1), heads) if heads.value.ndim else heads
            if np.isfinite(whole.value):
                found.append(whole)
                yield own | drawn.row(whole)
        if found:
            mean = mean_of(found)
            yield {"measure": f"cv_{name}"} | drawn.row(mean)
            statistics[f"cv_{name}"] = mean


def _shares(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    present = _present(tally)
    views = next(iter(tally.layers.values())).views
    whole: dict[str, list[DrawnEstimate]] = {kind: [] for kind in (*views, "norm_heads")}
    for address, layer in tally.layers.items():
        queries, sums, heads = (drawn.sums(s) for s in (layer.queries, layer.sums, layer.head_sums))
        own = {"layer": address.layer}
        layered = each(lambda s, q: s / q[..., None, None], sums, queries)
        headed = each(lambda s, q: s / q[..., None, None, None], heads, queries)
        shares = each(_shared, sums)
        whole["norm_heads"].append(each(lambda s: _shared(s[..., 1, :, :].mean(-2)), heads))
        for k, kind in enumerate(views):
            whole[kind].append(DrawnEstimate(shares.value[k], shares.draws[:, k]))
            for c in present:
                group = {"group": CATEGORIES[c]}
                yield own | group | {"measure": f"{kind}_sum"} | drawn.row(layered, (k, c))
                yield own | group | {"measure": f"{kind}_share"} | drawn.row(shares, (k, c))
                for h in range(headed.value.shape[1] if kind in KINDS else 0):
                    yield own | group | {"measure": f"{kind}_sum", "head": h + 1} | drawn.row(headed, (k, h, c))
    for kind, parts in whole.items():
        mean = mean_of(parts)
        for c in present:
            yield {"measure": f"{kind}_share", "group": CATEGORIES[c]} | drawn.row(mean, (c,))
        if set(present) & set(MARKED):
            statistics[f"special_share_{kind}"] = each(lambda v: v[..., list(MARKED)].sum(-1), mean)
        if FIRST in present:
            statistics[f"first_share_{kind}"] = each(lambda v: v[..., FIRST], mean)


def _cancelling(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    over: list[DrawnEstimate] = []
    for address, layer in tally.layers.items():
        sums, tokens = drawn.sums(layer.means), drawn.sums(layer.tokens)
        heads = each(lambda s, t: s / t[..., None, None, :], sums, tokens)
        means = each(lambda v: v.mean(-2), heads)
        over.append(means)
        for c in _present(tally):
            own = {"layer": address.layer, "group": CATEGORIES[c]}
            rho = layer.cancel.ranks[c].estimate(drawn.fewer, drawn.fewer.shape[1])
            yield own | {"measure": "spearman_a_f"} | drawn.row(rho, (0,), fewer=True)
            each_head = layer.head_cancel.ranks[c].estimate()
            for h in range(heads.value.shape[1]):
                known = {"value": finite(each_head.value[h]), "n": drawn.n}
                yield own | {"measure": "spearman_a_f", "head": h + 1} | known
            for k, name in enumerate(("mean_a", "mean_f")):
                yield own | {"measure": name} | drawn.row(means, (k, c))
                for h in range(heads.value.shape[1]):
                    yield own | {"measure": name, "head": h + 1} | drawn.row(heads, (k, h, c))
    for c in _present(tally):
        group = CATEGORIES[c]
        rho = tally.model.cancel.ranks[c].estimate(drawn.times, drawn.times.shape[1])
        rho = DrawnEstimate(rho.value[0], rho.draws[:, 0])
        layers = DrawnEstimate(
            spearman(np.stack([e.value[:, c] for e in over], -1)),
            spearman(np.stack([e.draws[:, :, c] for e in over], -1)),
        )
        yield {"measure": "spearman_a_f", "group": group} | drawn.row(rho)
        yield {"measure": "spearman_a_f_layers", "group": group} | drawn.row(layers)
        if c == SEP:
            statistics |= {"spearman_sep": rho, "spearman_sep_layers": layers}


def _frequency(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    for name in ("f", "a"):
        own = (("", tally.model.frequency), ("_words", tally.model.words), ("_within", tally.model.within))
        for tail, ranks in own:
            rho = ranks[name].estimate(drawn.times, drawn.times.shape[1])
            if np.isfinite(rho.value[0]):
                statistics[f"spearman_rank_{name}{tail}"] = DrawnEstimate(rho.value[0], rho.draws[:, 0])
                yield {"measure": f"spearman_rank_{name}{tail}"} | drawn.row(rho, (0,))
        measure = {"measure": f"spearman_rank_{name}"}
        for address, layer in tally.layers.items():
            own = measure | {"layer": address.layer}
            yield own | drawn.row(layer.frequency[name].estimate(drawn.fewer, drawn.fewer.shape[1]), (0,), fewer=True)
            heads = layer.head_frequency[name].estimate().value
            yield from (own | {"head": h + 1, "value": finite(v), "n": drawn.n} for h, v in enumerate(heads))


def _mixing(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    if crosses(tally.stack):
        return
    found = []
    for address, layer in tally.layers.items():
        ratio = each(lambda s, q: s / q[..., None], drawn.sums(layer.mixing), drawn.sums(layer.queries))
        found.append(ratio)
        for k, kind in enumerate(KINDS):
            yield {"layer": address.layer, "measure": "mixing_ratio", "group": kind} | drawn.row(ratio, (k,))
    mean = mean_of(found)
    for k, kind in enumerate(KINDS):
        yield {"measure": "mixing_ratio", "group": kind} | drawn.row(mean, (k,))


def layer_test(tally: StackTally, drawn: DrawnTexts) -> UnitTest | None:
    """Whether mean a and mean ‖f(x)‖ on [SEP] fall against each other over layers: every order of the layers, null without [SEP]."""
    if SEP not in _present(tally):
        return None
    means = []
    for layer in tally.layers.values():
        sums, tokens = layer.means.total(drawn.times.shape[1]), layer.tokens.total(drawn.times.shape[1])
        means.append(sums[:, :, SEP].mean(-1) / tokens[SEP])
    weights, norms = np.array(means).T
    return UnitTest(permuted_spearman(weights, norms, drawn.seed), len(means), "layer")


def _shared(sums: Float[np.ndarray, "... C"]) -> Float[np.ndarray, "... C"]:
    return sums / sums.sum(-1, keepdims=True)


def _present(tally: StackTally) -> list[int]:
    """The categories of which there is at least one token."""
    tokens = sum(layer.tokens.rows.sum(0) for layer in tally.layers.values())
    return [c for c in range(len(CATEGORIES)) if np.asarray(tokens)[c] > 0]


def judged(statistics: Mapping[str, DrawnEstimate]) -> tuple[dict[str, Reals], dict[str, float]]:
    """Replicates and estimates by name, as claims.judge_sampled takes them."""
    return {k: e.draws for k, e in statistics.items()}, {k: float(e.value) for k, e in statistics.items()}
