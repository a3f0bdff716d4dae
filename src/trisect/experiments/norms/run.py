"""Measure norms of a model's attention over texts, in constant memory: rows, and the statistics of claims."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from trisect.claims import judge_by_draws
from trisect.claims.models import UnitTest
from trisect.core.errors import CorpusError, ModelError
from trisect.core.finding import About
from trisect.core.subject import Batch, Subject, Texts
from trisect.core.tables import NewRow, Scalar, frame
from trisect.core.trace import Address, Projections, Trace, crosses, spell_addresses
from trisect.experiments.norms.settings import NormsFacts, NormsSettings
from trisect.lab.experiment import Measured, Replicates, RunContext
from trisect.lab.passes import Tally
from trisect.lab.word_labels import find_articles
from trisect.measure.norms import expansion_rate, output_projection, rollout_step
from trisect.measure.sums import (
    CATEGORIES,
    FEWER,
    GROUPS,
    MARKED,
    SHORTEST,
    LayerTally,
    PooledTally,
    Sums,
    TokenNorms,
    Whose,
    find_categories,
    find_sinks,
    find_words,
    frequency_ranks,
    group_of,
    opening_tokens,
)
from trisect.papers.norms import SOURCE
from trisect.stats.bootstrap import DrawnEstimate, bootstrap_ratios, draw_times, percentile_interval
from trisect.stats.describe import permutation_spearman, spearman, variation
from trisect.stats.shares import ratios
from trisect.stats.tested import finite, value_row

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
    """Values and intervals of numbers from `n` texts in `units` articles (None: each is one); every number meets the same draws."""

    def __init__(self, n: int, seed: int, draws: int = DRAWS, units: int | None = None) -> None:
        self.n, self.seed, drawn = n, seed, n if units is None else units
        self.times, self.fewer = (
            draw_times(np.random.default_rng(seed), min(drawn, groups), draws) for groups in (GROUPS, FEWER)
        )

    def sums(self, sums: Sums) -> DrawnEstimate:
        """A tally's sums, on all texts and in every draw."""
        return DrawnEstimate(sums.total(self.times.shape[1]), sums.resample(self.times))

    def row(self, estimate: DrawnEstimate, place: tuple[int, ...] = (), fewer: bool = False) -> dict[str, float | None]:
        """Columns value, low, high, n of one number of an estimate; None where it is no number.

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
    for part in (_dispersion, _shares, _cancelling, _frequency, _mixing, _contributions, _sinks):
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

    def to_shares(sums: Float[np.ndarray, "... C"]) -> Float[np.ndarray, "... C"]:
        return sums / sums.sum(-1, keepdims=True)

    for address, layer in tally.layers.items():
        queries, sums, heads = (drawn.sums(s) for s in (layer.queries, layer.sums, layer.head_sums))
        own = {"layer": address.layer}
        layered = each(lambda s, q: s / q[..., None, None], sums, queries)
        headed = each(lambda s, q: s / q[..., None, None, None], heads, queries)
        shares = each(to_shares, sums)
        whole["norm_heads"].append(each(lambda s: to_shares(s[..., 1, :, :].mean(-2)), heads))
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
            rho = layer.cancel[c].estimate(drawn.fewer, drawn.fewer.shape[1])
            yield own | {"measure": "spearman_a_f"} | drawn.row(rho, (0,), fewer=True)
            each_head = layer.head_cancel[c].estimate()
            for h in range(heads.value.shape[1]):
                known = {"value": finite(each_head.value[h]), "n": drawn.n}
                yield own | {"measure": "spearman_a_f", "head": h + 1} | known
            for k, name in enumerate(("mean_a", "mean_f")):
                yield own | {"measure": name} | drawn.row(means, (k, c))
                for h in range(heads.value.shape[1]):
                    yield own | {"measure": name, "head": h + 1} | drawn.row(heads, (k, h, c))
    for c in _present(tally):
        group = CATEGORIES[c]
        rho = tally.model.cancel[c].estimate(drawn.times, drawn.times.shape[1])
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


def _contributions(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    """contribution_share: the mean over queries of a category's contribution weights, of heads, of layers, and over layers."""
    present, every = _present(tally), []
    for address, layer in tally.layers.items():
        shares = each(lambda s: s / s.sum(-1, keepdims=True), drawn.sums(layer.contributions))
        every.append(DrawnEstimate(shares.value[0], shares.draws[:, 0]))
        for c in present:
            own = {"layer": address.layer, "group": CATEGORIES[c], "measure": "contribution_share"}
            yield own | drawn.row(shares, (0, c))
            yield from (own | {"head": h} | drawn.row(shares, (h, c)) for h in range(1, len(shares.value)))
    mean = mean_of(every)
    for c in present:
        yield {"measure": "contribution_share", "group": CATEGORIES[c]} | drawn.row(mean, (c,))


def _sinks(tally: StackTally, drawn: DrawnTexts, statistics: dict[str, DrawnEstimate]) -> Iterator[NewRow]:
    """sink_texts, sink_weight, sink_contribution and dormant_texts: the share of texts in which a head has a sink, what of its

    weight and of its output goes to sinks, and the share of texts in which it is dormant; sink_norm: the mean ‖f(x)‖ of sinks over
    that of other tokens. Of heads, layers (heads averaged) and over layers; sink_share is how sinks are shared out among categories.
    """
    names = ("sink_texts", "sink_weight", "sink_contribution", "dormant_texts", "sink_norm")

    def to_numbers(s: Float[np.ndarray, "... H 9"]) -> Float[np.ndarray, "... H 5"]:
        long, some, weight, contribution, sinks, f, others, rest, dormant = np.moveaxis(s, -1, 0)
        norm = (f / sinks) / (rest / others)
        return np.stack([some / long, weight / long, contribution / long, dormant / long, norm], -1)

    every, kinds = [], []
    for address, layer in tally.layers.items():
        sums = drawn.sums(layer.sinks)
        kinds.append(drawn.sums(layer.sink_kinds))
        if not sums.value[..., 0].any():
            return
        heads = each(to_numbers, sums)
        whole = each(lambda s: to_numbers(s.sum(-2, keepdims=True))[..., 0, :], sums)
        every.append(sums)
        for i, name in enumerate(names):
            own = {"layer": address.layer, "measure": name}
            if np.isfinite(whole.value[i]):
                yield own | drawn.row(whole, (i,))
            for h in range(len(heads.value)):
                if np.isfinite(heads.value[h, i]):
                    yield own | {"head": h + 1} | drawn.row(heads, (h, i))
    over = each(
        lambda *parts: to_numbers(np.add.reduce([part.sum(-2, keepdims=True) for part in parts]))[..., 0, :], *every
    )
    for i, name in enumerate(names):
        if np.isfinite(over.value[i]):
            yield {"measure": name} | drawn.row(over, (i,))
    shares = each(lambda *parts: np.add.reduce(parts) / np.add.reduce(parts).sum(-1, keepdims=True), *kinds)
    for c in _present(tally):
        if np.isfinite(shares.value[c]):
            yield {"measure": "sink_share", "group": CATEGORIES[c]} | drawn.row(shares, (c,))


WITHOUT = 64  # texts of which the loss without sinks is measured
TAKEN = ("sinks", "other tokens")  # whose weight is set to 0


@torch.no_grad()
def loss_without_sinks(
    subject: Subject, texts: Texts, heads: Collection[Address], batch: int, seed: int
) -> list[NewRow]:
    """How the loss of the first WITHOUT texts changes when heads give their sinks nothing, and as many other tokens for comparison.

    All other weights stay those of the pass before, in every layer, so that what sinks give is taken away, and nothing is put in its
    place. Rows without_sinks, by whose weight is 0, in nats per predicted token, or as a relative squared change of the
    output where the model has no loss. None where no text has a sink.
    """
    tally, any_sink = Tally(), False
    found = list[bool]()
    for one in subject.batches(islice(texts.texts(), WITHOUT), batch, scored=True):
        held: tuple[dict[Address, torch.Tensor], ...] = ({}, {})

        def see(trace: Trace, held: tuple[dict[Address, torch.Tensor], ...] = held, one: Batch = one) -> None:
            if trace.address not in heads:
                return
            sinks = find_sinks(trace)
            found.append(bool(sinks.any()))
            chance = torch.full(sinks.shape, -1.0, dtype=torch.float64)
            for row, real in enumerate(trace.key_real.cpu()):  # of the text and the layer alone, in any batch
                draw = np.random.default_rng([trace.layer, *one.rows[row]])
                chance[row, :, real] = torch.from_numpy(draw.random((len(sinks[row]), int(real.sum()))))
            order = chance.to(sinks.device).masked_fill(sinks, -1.0).argsort(-1, descending=True).argsort(-1)
            others = (order < sinks.sum(-1, keepdim=True)) & ~sinks & trace.key_real[:, None]
            for own, which in zip(held, (sinks, others), strict=True):
                own[trace.address] = trace.weights.masked_fill(which[:, :, None], 0.0)

        found.clear()
        subject.each(one, see)
        clean, here = subject.score(one), any(found)
        any_sink = any_sink or here
        tally.add(one, clean, [subject.score(one, hold=own, clean=clean) if here else clean for own in held])
    if not any_sink:
        return []
    table = tally.table(texts.name)
    units = tally.articles(texts).sums(table, tally.indices)
    drawn = bootstrap_ratios(units[:, 2:], units[:, 0], seed)
    numbers = ratios(units[:, 2:], units[:, 0]), *percentile_interval(drawn, len(units))
    rows = [
        dict(zip(("value", "low", "high"), map(finite, values), strict=True)) for values in zip(*numbers, strict=True)
    ]
    return [
        {"stack": next(iter(heads)).stack, "measure": "without_sinks", "group": what, "n": len(table)} | row
        for what, row in zip(TAKEN, rows, strict=True)
    ]


ROLLED = 64  # texts of which rollouts are compared with a gradient
ROLLOUTS = (*KINDS, "contribution")
NEARNESS = "nearness"  # minus the distance in tokens: what a comparison has to exceed


def rollout_rows(subject: Subject, texts: Texts, seed: int) -> tuple[list[NewRow], str]:
    """How far rollouts over all layers rank the tokens of a text as a gradient does: mean rank correlation over the first ROLLED texts.

    Rows rollout_gradient, by weight, norm and contribution, and of nearness alone, of one position of each text: the last, or of a
    masked model the first mask. The gradient is of its largest logit, times the input. Rows or a reason why there are none.
    """
    from trisect.hf.load import Pretrained, input_gradients

    if (
        not isinstance(subject, Pretrained)
        or subject.objective not in ("causal", "masked")
        or subject.shape.stacks != ("plain",)
    ):
        return (
            [],
            "Rollouts are not compared with a gradient: that needs a language model of Hugging Face's with one stack.",
        )
    found, steps = list[list[float]](), list[list[torch.Tensor]]()  # of one text, layer by layer
    for one in subject.batches(islice(texts.texts(), ROLLED), 1, scored=True):
        real = one.source.real[0]
        places = real.nonzero()[:, 0]
        if len(places) < SHORTEST or one.rows[0][1]:
            continue
        labels = one.inputs.get("labels") if subject.objective == "masked" else None
        place = int(places[-1]) if labels is None else int((labels[0].cpu() >= 0).nonzero()[0, 0])
        rolled = {kind: torch.eye(len(real), dtype=torch.float64)[place] for kind in ROLLOUTS}
        try:
            steps.clear()
            subject.each(one, lambda trace: steps.append([rollout_step(trace, kind)[0].cpu() for kind in ROLLOUTS]))
            for made in reversed(steps):
                rolled = {kind: rolled[kind] @ step for kind, step in zip(ROLLOUTS, made, strict=True)}
            gradient = input_gradients(subject, one, torch.tensor([place]))[0]
        except ModelError as error:
            return [], f"Rollouts are not compared with a gradient. {error}"
        seen = places if labels is not None else places[places <= place]
        ranks = [*rolled.values(), -(torch.arange(len(real)) - place).abs().double()]
        found.append([float(spearman(np.stack([part[seen].numpy() for part in (of, gradient)]))) for of in ranks])
    table = np.array([row for row in found if np.isfinite(row).all()])
    if len(table) < 2:
        return [], f"Rollouts are not compared with a gradient: that needs two texts of at least {SHORTEST} tokens."
    drawn = bootstrap_ratios(table, np.ones(len(table)), seed)
    numbers = zip(table.mean(0), *percentile_interval(drawn, len(table)), strict=True)
    rows: list[NewRow] = [
        {"stack": "plain", "measure": "rollout_gradient", "group": group, "n": len(table)}
        | dict(zip(("value", "low", "high"), map(finite, values), strict=True))
        for group, values in zip((*ROLLOUTS, NEARNESS), numbers, strict=True)
    ]
    return rows, ""


def layer_test(tally: StackTally, drawn: DrawnTexts) -> UnitTest | None:
    """Whether mean a and mean ‖f(x)‖ on [SEP] fall against each other over layers: every order of the layers, None without [SEP]."""
    if SEP not in _present(tally):
        return None
    means = []
    for layer in tally.layers.values():
        sums, tokens = layer.means.total(drawn.times.shape[1]), layer.tokens.total(drawn.times.shape[1])
        means.append(sums[:, :, SEP].mean(-1) / tokens[SEP])
    weights, norms = np.array(means).T
    return UnitTest(permutation_spearman(weights, norms, drawn.seed), len(means), "layer")


def _present(tally: StackTally) -> list[int]:
    """The categories of which there is at least one token."""
    tokens = sum(layer.tokens.rows.sum(0) for layer in tally.layers.values())
    return [c for c in range(len(CATEGORIES)) if np.asarray(tokens)[c] > 0]


BEHIND = (
    "A norm or a factor lies behind W_O at {where}: norms are of what is really added, each part scaled as its query is. ‖f(x)‖ is "
    "without that scale, which no token has by itself, and expansion rates are of W_V and W_O alone."
)
LOST = "What is added to the residual stream was not found at {where}: norms there are of what W_O makes."
OTHER_INPUT = (
    "Values at {where} are not known to be W_V times the block's input x, so that no dispersion of ‖x‖ is given there."
)
OPENED = "A text opens with {tokens} here, which is counted as its first token: there is no category [CLS]."
MISSING = {
    "cls": "No special token opens a text here: there is no category [CLS].",
    "sep": "No special token stands inside or after a text here: there is no category [SEP].",
    "punctuation": "No token is a period or a comma: that category is absent.",
}


@dataclass(frozen=True)
class Counted:
    """What a first look at the texts gives: how many, how many tokens, and the frequency rank of every token id.

    `articles` is the number of each text's article, from 0; None where none is marked. `opening` are the special tokens that
    texts open with.
    """

    texts: int
    tokens: int
    ranks: torch.Tensor | None
    notes: tuple[str, ...]
    articles: torch.Tensor | None = None
    opening: frozenset[str] = frozenset()

    @property
    def units(self) -> int:
        """How many articles there are, or texts where none is marked: what is resampled."""
        return self.texts if self.articles is None else int(self.articles.max()) + 1


def measure(settings: NormsSettings, context: RunContext) -> Measured[NormsFacts]:
    """Norm-based beside weight-based analysis (definitions C1 to C4).

    Texts are gone through twice: for the frequency of their tokens, then through the model, in constant memory. `block` says what
    mixing is of, and whose norm is shown beside that of attention, which the claims are about: 'residual' (x added) or 'full' (and
    the layer norm). Intervals and claims resample articles, or texts where none is marked. Raises ModelError where no layer has a
    plain output projection, or where the block around one is not known; CorpusError without texts.
    """
    subject, texts = context.subject, context.texts
    left_out, expansion, heads = _layers(subject)
    counted = _count(subject, texts, settings.batch, next(iter(heads)).stack)
    tallies = {
        stack: StackTally(stack, {a: LayerTally(h, settings.block) for a, h in heads.items() if a.stack == stack})
        for stack in dict.fromkeys(address.stack for address in heads)
    }
    around: dict[Address, str] = {}
    with context.progress("Reading texts") as step:
        for one in subject.batches(texts.texts(), settings.batch):
            _read(subject, one, tallies, counted, around)
            step(one.rows[-1][0] + 1, counted.texts)
    drawn, first = DrawnTexts(counted.texts, settings.seed, units=counted.units), next(iter(tallies.values()))
    statistics: dict[str, DrawnEstimate] = {}
    rows = [row for t in tallies.values() for row in stack_rows(t, drawn, statistics if t is first else {})]
    rolled, why = rollout_rows(subject, texts, settings.seed)
    rows += rolled + loss_without_sinks(subject, texts, tuple(first.layers), settings.batch, settings.seed)
    measures = frame("measures", [{"subject": subject.name} | row for row in (*rows, *expansion)])
    facts = NormsFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        subject.shape.words(),
        texts.name,
        texts.fingerprint,
        counted.texts,
        counted.tokens,
        first.stack,
        settings.block,
        settings.seed,
        settings.batch,
    )
    orders, groups = layer_test(first, drawn), min(counted.units, GROUPS)
    exact = {} if orders is None else {"spearman_sep_layers": orders}

    def judge(about: About[NormsFacts]) -> pl.DataFrame:
        named = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "texts", "block", "seed")
        bound = {name: getattr(about.facts, name) for name in named}
        draws = {name: found.draws for name, found in statistics.items()}
        values = {name: float(found.value) for name, found in statistics.items()}
        return judge_by_draws(SOURCE, draws, values, counted.texts, bound, groups, tests=exact)

    unit = "text" if counted.articles is None else "article"
    replicates: dict[tuple[Scalar, ...], Replicates] = {
        (first.stack, None, None, None, name, None, None): Replicates(
            found.draws, groups, f"first {counted.texts}", unit
        )
        for name, found in statistics.items()
        if found.draws.ndim == 1
    }
    said = (*texts.notes, *counted.notes, *left_out, *filter(None, (why,)), *_notes(tallies, around, counted.opening))
    return Measured({"measures": measures}, facts, tuple(dict.fromkeys(said)), judge, "text", replicates=replicates)


def _count(subject: Subject, texts: Texts, batch: int, stack: str) -> Counted:
    """Go through the texts once without the model; `stack` is the one that claims are about."""
    seen = np.zeros(0, dtype=np.int64)
    last, tokens, known, opening = -1, 0, True, set[str]()
    notes: dict[str, None] = {}
    for one in subject.batches(texts.texts(), batch):
        side = one.source
        last, tokens = max(last, *(text for text, _ in one.rows)), tokens + int(side.real.sum())
        notes |= dict.fromkeys(one.notes)
        opening |= opening_tokens(one.keys(stack))
        if side.ids is None:
            known = False
            continue
        more = np.bincount(side.ids[side.real].cpu().numpy(), minlength=len(seen))
        more[: len(seen)] += seen
        seen = more
    if last < 0:
        raise CorpusError(f"There is no text in {texts.name!r}.", "Nothing was read.", "Give texts, or another split.")
    if not known:
        notes["The model takes no token ids, so that there is no frequency to look at."] = None
    articles = find_articles(texts, last + 1)
    notes |= dict.fromkeys(articles.notes)
    numbers = None if articles.numbers is None else torch.from_numpy(articles.numbers)
    return Counted(
        last + 1, tokens, frequency_ranks(seen) if known else None, tuple(notes), numbers, frozenset(opening)
    )


@torch.no_grad()
def _read(
    subject: Subject, batch: Batch, tallies: Mapping[str, StackTally], counted: Counted, around: dict[Address, str]
) -> None:
    """One batch through the model and into the tallies; `around` gets what lies behind W_O where that is not nothing."""
    numbers = torch.tensor([text for text, _ in batch.rows])
    whose = {stack: _whose(batch, stack, numbers, counted, subject.objective == "causal") for stack in tallies}
    seen: dict[str, list[TokenNorms]] = {stack: [] for stack in tallies}

    def see(trace: Trace) -> None:
        tally = tallies.get(trace.stack)
        if tally is not None and trace.address in tally.layers:
            own = whose[trace.stack] = whose[trace.stack].on(trace.weights.device)
            if own.category.shape != trace.key_real.shape:
                given = f"{str(trace.address).capitalize()} of {subject.name} sees {trace.key_real.shape[1]} positions."
                known = f"The texts have {own.category.shape[1]} tokens: which of them stands where is not known."
                todo = "Choose a model whose layers see the tokens of its texts, one a position."
                raise ModelError(given, known, todo)
            if trace.block is None or trace.block.after is not None:
                around[trace.address] = LOST if trace.block is None else BEHIND
            seen[trace.stack].append(tally.layers[trace.address].add(trace, own, tally.model))

    subject.each(batch, see)
    for stack, tally in tallies.items():
        tally.model.add_frequency(seen[stack], whose[stack])


def _whose(batch: Batch, stack: str, numbers: torch.Tensor, counted: Counted, causal: bool) -> Whose:
    ranks = counted.ranks
    keys = batch.keys(stack)
    rank = torch.full(keys.real.shape, torch.nan, dtype=torch.float64)
    if ranks is not None and keys.ids is not None and keys is batch.source:
        real = keys.real.cpu()
        rank[real] = ranks[keys.ids.cpu()[real]]
    units = numbers if counted.articles is None else counted.articles[numbers]
    group, fewer = (group_of(units, counted.units, groups) for groups in (GROUPS, FEWER))
    category = find_categories(keys, causal or stack == "dec")
    return Whose(category, rank, keys.special.cpu(), find_words(keys), group, fewer)


def _layers(subject: Subject) -> tuple[tuple[str, ...], list[NewRow], dict[Address, int]]:
    """Layers whose norms cannot be computed, in words, rows of the others' expansion rates, and their heads; one layer is held at a time.

    Raises ModelError where no layer's norms can be computed.
    """
    said, rows, heads = [], list[NewRow](), dict[Address, int]()
    without: Projections | None = None
    for p in (p for p in subject.projections() if p.address in subject.shape.heads):
        if p.w_o is not None:
            heads[p.address] = len(p.w_o)
            if p.w_v is not None:  # rates need no text
                own: NewRow = {"stack": p.address.stack, "layer": p.address.layer, "measure": "expansion_rate"}
                rate = expansion_rate(p)
                rows.append(own | {"value": rate.layer})
                rows += [own | {"head": h, "value": float(value)} for h, value in enumerate(rate.heads, start=1)]
            continue
        without = without or p
        said.append(f"{p.address}: {p.origins['o'].words if 'o' in p.origins else 'no output projection was found'}")
    if not heads and without is not None:
        output_projection(without)
    if not heads:
        given = f"{subject.name} has no attention layer whose norms can be computed."
        raise ModelError(given, subject.shape.words(), "Choose another model.")
    return tuple(f"Left out, {words}." for words in said), rows, heads


def _notes(tallies: Mapping[str, StackTally], around: Mapping[Address, str], opening: Collection[str]) -> list[str]:
    """What lies `around` layers, which have other values than of the block's input, and which categories are absent.

    `opening` are the special tokens that texts open with.
    """
    elsewhere = {
        address: OTHER_INPUT
        for tally in tallies.values()
        for address, layer in tally.layers.items()
        if np.isnan(np.asarray(layer.x.rows)).any()
    }
    categories = [CATEGORIES[c] for c in _present(next(iter(tallies.values())))]
    missing = MISSING | ({"cls": OPENED.format(tokens=" or ".join(sorted(opening)))} if opening else {})
    absent = (note for name, note in missing.items() if name not in categories)
    found = []
    for words in dict.fromkeys((*around.values(), *elsewhere.values())):
        where = [address for of in (around, elsewhere) for address, own in of.items() if own == words]
        found.append(words.format(where=spell_addresses(where)))
    return [*found, *absent]
