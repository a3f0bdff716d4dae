"""Moments, rank correlations and norms summed over any number of texts in constant memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.trace import Side, Trace
from trisect.measure import norms as measure_norms
from trisect.measure.norms import AttentionSums, attention_sums, to_single_precision, transformed_and_layer_norms
from trisect.stats.bootstrap import DrawnEstimate
from trisect.stats.describe import mean_ranks, spearman_of_counts

MAX_WAITING_PAIRS = 1 << 15  # pairs (times series) stored until the bins are fixed


class Sums:
    """Sums per group of texts, so that groups can be resampled later.

    `group_of` says which group a text belongs to: with no more texts than groups, a group is a text. What lies on another
    device is added up there, and leaves it when the rows are asked for.
    """

    def __init__(self, groups: int, *shape: int) -> None:
        self._rows = np.zeros((groups, *shape))
        self._device_rows: Tensor | None = None

    @property
    def rows(self) -> Float[np.ndarray, "G ..."]:
        """The sums so far."""
        if self._device_rows is not None:
            self._rows += self._device_rows.cpu().numpy()
            self._device_rows = None
        return self._rows

    def add(self, group: Int[Tensor, " B"], values: Float[Tensor, "B ..."]) -> None:
        """Add a row per text of a batch to its group."""
        if values.device.type == "cpu":
            np.add.at(self._rows, group.numpy(), values.double().numpy())
            return
        # a product, since CUDA adds rows of one group to each other in no fixed order
        belongs = group[:, None] == torch.arange(len(self._rows), device=values.device)
        rows = (belongs.double().T @ values.double().reshape(len(values), -1)).view(self._rows.shape)
        self._device_rows = (
            rows if self._device_rows is None else self._device_rows.add_(rows.to(self._device_rows.device))
        )

    def total(self, used: int) -> Float[np.ndarray, "*S"]:
        """The sum over the first `used` groups."""
        return np.asarray(self.rows[:used].sum(0))

    def resample(self, times: Float[np.ndarray, "R G"]) -> Float[np.ndarray, "R ..."]:
        """The sum over the first G groups in every draw."""
        rows = self.rows[: times.shape[1]]
        return (times @ rows.reshape(len(rows), -1)).reshape(len(times), *rows.shape[1:])


def group_of(numbers: Int[Tensor, " B"], texts: int, groups: int) -> Int[Tensor, " B"]:
    """The group of each text by its number from 0, of `texts` in total: consecutive texts form a group.

    Texts of one article are similar: spread over groups, they would make intervals too narrow.
    """
    return numbers * min(groups, texts) // max(1, texts)


def moments(values: Float[Tensor, "B ... T"], real: Tensor) -> Float[Tensor, "B ... 3"]:
    """Number, sum and sum of squares over the last axis where `real` (broadcast to `values`)."""
    counted = torch.where(real, values.double(), 0.0)
    count = real.expand_as(values).sum(-1).double()
    return torch.stack([count, counted.sum(-1), counted.square().sum(-1)], -1)


class Ranks:
    """Spearman's rank correlation of streamed pairs for S series at once, by their joint counts in bins of rank.

    The first pairs fix each series' bins, MAX_WAITING_PAIRS / S of them: `bins` parts of equal weight for x and for y, or one for each
    value where there are fewer values. Pairs within a bin count as tied: with 64 bins and one series ρ of continuous
    values moves by less than 0.001, with 32 bins and 12 series by less than 0.003; where later pairs lie one standard
    deviation off those that fixed the bins by less than 0.001 and 0.005, two off by less than 0.003 and 0.015. Each of
    `groups` groups of texts has its own counts.
    """

    def __init__(self, series: int = 1, groups: int = 1, bins: int = 64) -> None:
        self.series, self.groups, self.bins = series, groups, bins
        self.counts = torch.zeros(series * groups * bins * bins, dtype=torch.int32)
        self._edges: tuple[Tensor, Tensor] | None = None
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._size = 0

    def add(self, x: Float[Tensor, "S N"], y: Float[Tensor, "S N"], group: Int[Tensor, " N"]) -> None:
        """Add N pairs to every series, with the group of texts of each; counted on their device."""
        if not x.shape[1]:
            return
        # for a model on several devices: the device of the first pairs
        device = (self._edges or (self._waiting[0] if self._waiting else (x,)))[0].device
        pairs = (x.float().to(device), y.float().to(device), group.to(device))
        if self._edges is not None:
            self._count(*pairs, self._edges)
            return
        self._waiting.append(pairs)
        self._size += x.shape[1]
        if self._size * self.series >= MAX_WAITING_PAIRS:
            self._fix()

    def estimate(self, times: Float[np.ndarray, "R G"] | None = None, used: int | None = None) -> DrawnEstimate:
        """ρ of every series on the first `used` groups, and in every draw of groups (none without `times`).

        NaN where x or y has one value only.
        """
        if self._edges is None and self._waiting:
            self._fix()
        counts = self.counts.cpu().numpy().reshape(self.series, self.groups, self.bins * self.bins)
        used = self.groups if used is None else used
        value = spearman_of_counts(counts[:, :used].sum(1, dtype=float).reshape(-1, self.bins, self.bins))
        if times is None:
            return DrawnEstimate(value, np.empty((0, self.series)))
        draws = [self._resample(times, series[: times.shape[1]]) for series in counts]
        return DrawnEstimate(value, np.stack(draws, -1))

    def _resample(self, times: Float[np.ndarray, "R G"], counts: Int[np.ndarray, "G C"]) -> Float[np.ndarray, " R"]:
        """ρ of one series in every draw, in blocks of draws to limit memory."""
        weights, blocks = counts.astype(float), np.array_split(times, max(1, len(times) // 500))
        tables = ((block @ weights).reshape(-1, self.bins, self.bins) for block in blocks)
        return np.concatenate([spearman_of_counts(table) for table in tables])

    def _fix(self) -> None:
        x, y, _ = (torch.cat(parts, -1) for parts in zip(*self._waiting, strict=True))
        self._edges = (_edges(x, self.bins), _edges(y, self.bins))
        self.counts = self.counts.to(x.device)
        for pairs in self._waiting:
            self._count(*pairs, self._edges)
        self._waiting.clear()

    def _count(self, x: Tensor, y: Tensor, group: Tensor, edges: tuple[Tensor, Tensor]) -> None:
        across = torch.searchsorted(edges[0], x.contiguous(), right=True)
        down = torch.searchsorted(edges[1], y.contiguous(), right=True)
        place = torch.arange(self.series, device=x.device)[:, None] * self.groups + group % self.groups
        flat = ((place * self.bins + across) * self.bins + down).reshape(-1)
        self.counts.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))


def _edges(values: Float[Tensor, "S N"], bins: int) -> Float[Tensor, "S E"]:
    """Inner edges of bins; a value equal to an edge lies above it. Unused edges lie beyond all values."""
    edges = torch.full((len(values), bins - 1), torch.inf, device=values.device)
    for row, series in enumerate(values):
        distinct = torch.unique(series)
        if len(distinct) > bins:
            ranks = torch.arange(1, bins, device=values.device) * len(series) // bins
            distinct = torch.cat([distinct[:1], torch.unique(series.sort().values[ranks])])
        edges[row, : len(distinct[1:bins])] = distinct[1:bins]
    return edges


CATEGORIES = ("cls", "sep", "first", "punctuation", "other")
OTHER_CATEGORY = CATEGORIES.index("other")
MARKED_CATEGORIES = tuple(map(CATEGORIES.index, ("cls", "sep", "punctuation")))  # what claim C-2 is about
WORD_MARKERS = ("Ġ", "▁", "##")  # how tokenizers write the start, or the inside, of a word


def find_categories(side: Side, causal: bool = False) -> Int[Tensor, "B S"]:
    """The category of every position, as an index into CATEGORIES; padding is 'other'.

    A special token that opens a text is its [CLS] and every later one a [SEP], whatever the tokenizer calls them (<s>,
    </s>). Where attention is `causal`, the first token of a window is 'first', special or not. Science C2.
    """
    real, special = side.real.cpu(), (side.special & side.real).cpu()
    categories = torch.full(real.shape, OTHER_CATEGORY)
    for row, tokens in enumerate(side.tokens):
        marks = [place for place, token in enumerate(tokens) if strip_markers(token) in (".", ",")]
        categories[row, marks] = CATEGORIES.index("punctuation")
    start = _starts(real)
    categories[special] = CATEGORIES.index("sep")
    categories[special & start] = CATEGORIES.index("cls")
    if causal:
        categories[start & real] = CATEGORIES.index("first")
    return categories.masked_fill(~real, OTHER_CATEGORY)


def _starts(real: Bool[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
    return torch.arange(real.shape[1]) == real.int().argmax(1, keepdim=True)


def opening_tokens(side: Side) -> set[str]:
    """The special tokens that texts open with."""
    real = side.real.cpu()
    places = _starts(real) & side.special.cpu() & real
    return {side.tokens[row][place] for row, place in places.nonzero().tolist()}


def find_words(side: Side) -> Bool[Tensor, "B S"]:
    """Positions with a word or a piece of one: a letter or digit in a token that the tokenizer did not add."""
    words = (side.real & ~side.special).cpu()
    for row, tokens in enumerate(side.tokens):
        marks = [place for place, token in enumerate(tokens) if not any(map(str.isalnum, strip_markers(token)))]
        words[row, marks] = False
    return words


def strip_markers(token: str) -> str:
    """A token without its marks and spaces of a word's start."""
    for mark in WORD_MARKERS:
        token = token.removeprefix(mark)
    return token.strip()


GROUPS = 256  # groups of texts, the units of resampling
LAYER_GROUPS = 64  # the same for a layer's rank correlations
BINS, FINE = 32, 64  # bins for the rank correlations of a layer, and of all layers
MIN_WORDS = 3  # in a text, for rank correlations within it
SINK_SHARE = 0.30  # a token with more than this share of a head's weight in a text is a sink
MIN_TOKENS = 8  # in a text, for sinks
DORMANT_SHARE = 0.25  # a head that adds less than this share of the heads' mean ‖o‖ in a text is dormant there
QUERIES = 32  # per row, for rank correlations of pairs (papers.norms.QUERIES in sentences)


class TokenNorms(NamedTuple):
    """Numbers of one trace per token: ‖f(x)‖, and its mean weight over the queries that may attend to it.

    `af` is the mean of ‖a f(x)‖ as it is added: a f, unless a norm behind W_O scales every query's parts.
    """

    f: Float[Tensor, "B H S"]
    a: Float[Tensor, "B H S"]
    af: Float[Tensor, "B H S"]


class TokenFacts(NamedTuple):
    """Facts per position: category, frequency rank (NaN: none), and whether the tokenizer added it.

    `word` marks words and pieces of words. `group` and `layer_group` are each row's group of texts, out of GROUPS and LAYER_GROUPS.
    """

    category: Int[Tensor, "B S"]
    rank: Float[Tensor, "B S"]
    special: Bool[Tensor, "B S"]
    word: Bool[Tensor, "B S"]
    group: Int[Tensor, " B"]
    layer_group: Int[Tensor, " B"]

    def to(self, device: torch.device) -> TokenFacts:
        """A copy on a device."""
        return TokenFacts(*(part.to(device) for part in self))


class PooledTally:
    """Sums over all layers of a stack: cancelling by category, and frequency, also of words alone."""

    def __init__(self) -> None:
        self.cancel = [Ranks(1, GROUPS, FINE) for _ in CATEGORIES]  # of a_ij and ‖f(x_j)‖ over pairs, by j's category
        self.frequency, self.words, self.within = (
            {name: Ranks(1, GROUPS, FINE) for name in ("f", "a")} for _ in range(3)
        )

    def add_frequency(self, seen: list[TokenNorms], facts: TokenFacts) -> None:
        """Add every token with a rank, its ‖f(x)‖ and its weight being means over heads and layers.

        `within` gets words alone (no special tokens, no punctuation), and ranks within the text instead of values, since the mean
        weight is about 1 / length and would be confounded by length. Layers may be on several devices; their means over heads are
        moved to the device of the first.
        """
        device = seen[0].f.device
        facts = facts.to(device)
        for name in ("f", "a"):
            mean = torch.stack([getattr(norms, name).mean(1).to(device) for norms in seen]).mean(0)[:, None]
            for ranks, which in ((self.frequency[name], None), (self.words[name], ~facts.special)):
                rank, values, row = _rank_pairs(mean, facts, which)
                ranks.add(rank, values, facts.group[row])
            self.within[name].add(*_within_texts(mean, facts))


def find_sinks(trace: Trace, received: Float[Tensor, "B H S"] | None = None) -> Bool[Tensor, "B H S"]:
    """Tokens with more than SINK_SHARE of all the weight of a head in a row of at least MIN_TOKENS tokens.

    `received` are the weights summed over queries, 0 at padding, if they are known.
    """
    queries, keys = trace.query_real.sum(1), trace.key_real.sum(1)
    if received is None:
        weights = to_single_precision(trace.weights)
        received = (trace.query_real.to(weights)[:, None, None] @ weights)[:, :, 0] * trace.key_real[:, None]
    shares = received / queries.clamp_min(1)[:, None, None]
    return (shares > SINK_SHARE) & (torch.minimum(queries, keys) >= MIN_TOKENS)[:, None, None]


class LayerTally:
    """The tally of one layer; add its trace of every batch, then read the sums.

    With a `kind` of block other than 'attention', its norms are summed too; claims are about those of attention alone.
    """

    def __init__(self, heads: int, kind: str) -> None:
        categories, kinds = len(CATEGORIES), 2
        self.kind = kind
        self.views = ("weight", "norm") if kind == "attention" else ("weight", "norm", "block")
        self.x = Sums(GROUPS, 3)  # of ‖x‖; NaN where v was not made of the block's input x
        self.f, self.a, self.af = (Sums(GROUPS, heads, 3) for _ in range(3))
        self.sums = Sums(
            GROUPS, len(self.views), categories
        )  # by weight, by norm, by the block's: added up over queries
        self.head_sums = Sums(GROUPS, kinds, heads, categories)
        self.queries = Sums(GROUPS)
        self.means = Sums(GROUPS, kinds, heads, categories)  # of a and ‖f(x)‖, added up over tokens
        self.tokens = Sums(GROUPS, categories)
        self.mixing = Sums(GROUPS, kinds)  # by weight, by norm: added up over queries
        self.contributions = Sums(
            GROUPS, heads + 1, categories
        )  # of the layer, then of its heads: added up over queries
        self.sinks, self.sink_kinds = Sums(GROUPS, heads, 9), Sums(GROUPS, categories)  # what _add_sinks counts
        self.cancel, self.head_cancel = (
            [Ranks(series, groups, BINS) for _ in CATEGORIES] for series, groups in ((1, LAYER_GROUPS), (heads, 1))
        )
        self.frequency, self.head_frequency = (
            {name: Ranks(series, groups, BINS) for name in ("f", "a")}
            for series, groups in ((1, LAYER_GROUPS), (heads, 1))
        )

    @torch.no_grad()
    def add(self, trace: Trace, facts: TokenFacts, model: PooledTally) -> TokenNorms:
        """Add one batch, all on one device; `model` gets the pairs too. Raises ModelError where a norm cannot be computed."""
        sums = attention_sums(trace)
        f, attention = transformed_and_layer_norms(trace)
        layer = [attention] if self.kind == "attention" else [attention, measure_norms.norms(trace, self.kind)]
        a, scaled = (part / sums.allowed.clamp_min(1)[:, None] for part in (sums.weights, sums.scaled))
        seen = TokenNorms(f, a.to(f), f * scaled.to(f))
        x = None if trace.crosses else measure_norms.layer_input(trace)
        if x is not None:
            real, sizes = (
                measure_norms.values_match_input(trace, x),
                torch.linalg.vector_norm(to_single_precision(x), dim=-1),
            )
            sizes = sizes.where(real, torch.nan) if real.shape == sizes.shape else f[:, 0] * torch.nan
            self.x.add(facts.group, moments(sizes, trace.key_real))
        for tally, values in ((self.f, seen.f), (self.a, seen.a), (self.af, seen.af)):
            tally.add(facts.group, moments(values, trace.key_real[:, None]))
        self._add_shares(trace, sums, layer, seen, facts)
        self._add_sinks(trace, sums, seen, facts)
        self._add_pairs(trace, seen, facts, model)
        for name in ("f", "a"):
            values = getattr(seen, name)
            rank, mean, row = _rank_pairs(values.mean(1, keepdim=True), facts)
            self.frequency[name].add(rank, mean, facts.layer_group[row])
            rank, each, row = _rank_pairs(values, facts)
            self.head_frequency[name].add(rank, each, torch.zeros_like(row))
        return seen

    def _add_shares(
        self, trace: Trace, sums: AttentionSums, norms: list[Tensor], seen: TokenNorms, facts: TokenFacts
    ) -> None:
        group, plain, added = facts.group, sums.weights.to(seen.f), sums.scaled.to(seen.f)
        belongs = torch.nn.functional.one_hot(facts.category, len(CATEGORIES)).to(plain.dtype)
        belongs = belongs * trace.key_real[..., None]
        heads = torch.stack([plain @ belongs, (added * seen.f) @ belongs], 1)
        layers = [pairs.sum(1, keepdim=True) @ belongs for pairs in norms]
        self.head_sums.add(group, heads)
        self.sums.add(group, torch.cat([heads[:, 0].mean(1, keepdim=True), *layers], 1))
        self.queries.add(group, trace.query_real.sum(1).double())
        self.means.add(group, torch.stack([seen.a @ belongs, seen.f @ belongs], 1))
        self.tokens.add(group, belongs.sum(1))
        if not trace.crosses:
            views = (measure_norms.mixing_by_weights, measure_norms.mixing_ratio)
            self.mixing.add(group, torch.stack([view(trace, self.kind, sums).sum(1) for view in views], 1))

    def _add_sinks(self, trace: Trace, sums: AttentionSums, seen: TokenNorms, facts: TokenFacts) -> None:
        """What tokens contribute; and of every head: rows, rows with a sink, the sinks' weight and contribution, how many sinks and
        other tokens there are and their ‖f(x)‖, and rows in which the head is dormant. Rows shorter than MIN_TOKENS do not count.
        """
        contributed = torch.cat([sums.layer[:, None], sums.heads], 1)
        belongs = (
            torch.nn.functional.one_hot(facts.category, len(CATEGORIES)).to(contributed) * trace.key_real[..., None]
        )
        self.contributions.add(facts.group, contributed @ belongs)
        sinks, queries = find_sinks(trace, sums.weights), trace.query_real.sum(1)
        long = torch.minimum(queries, trace.key_real.sum(1)) >= MIN_TOKENS
        others = (~sinks & trace.key_real[:, None]) & long[:, None, None]
        w_o = measure_norms.effective_projection(trace)
        sizes = measure_norms.projected_norms(sums.output.to(w_o), w_o).sum(2)
        per_query = [(part * sinks).sum(2) / queries.clamp_min(1)[:, None] for part in (sums.weights, sums.heads)]
        dormant = (sizes < DORMANT_SHARE * sizes.mean(1, keepdim=True)) & long[:, None]
        counts = [long[:, None].expand_as(sizes), sinks.any(2), *per_query, sinks.sum(2), (seen.f * sinks).sum(2)]
        counts += [others.sum(2), (seen.f * others).sum(2), dormant]
        self.sinks.add(facts.group, torch.stack([part.double() for part in counts], 2))
        self.sink_kinds.add(facts.group, sinks.sum(1).to(belongs)[:, None].matmul(belongs)[:, 0])

    def _add_pairs(self, trace: Trace, seen: TokenNorms, facts: TokenFacts, model: PooledTally) -> None:
        """At most QUERIES evenly spaced queries of a row stand for all: their pairs are alike, and time is not."""
        queries = trace.weights.shape[2]
        chosen = torch.linspace(0, queries - 1, min(QUERIES, queries)).round().long().to(trace.weights.device)
        chosen_weights = to_single_precision(trace.weights[:, :, chosen])
        allowed = (chosen_weights > 0).any(1) & trace.query_real[:, chosen, None]
        for category in range(len(CATEGORIES)):
            real = allowed & (facts.category == category)[:, None] & trace.key_real[:, None]
            row, query, key = real.nonzero(as_tuple=True)
            x, y = chosen_weights[row, :, query, key].T, seen.f[row, :, key].T
            group, fewer = facts.group[row], facts.layer_group[row]
            self.head_cancel[category].add(x, y, torch.zeros_like(group))
            flat = x.reshape(1, -1), y.reshape(1, -1)
            self.cancel[category].add(*flat, fewer.repeat(len(x)))
            model.cancel[category].add(*flat, group.repeat(len(x)))


def _rank_pairs(
    values: Float[Tensor, "B H S"], facts: TokenFacts, which: Bool[Tensor, "B S"] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Ranks and values as [H N] of tokens with a rank (all, or `which`), and the row of each."""
    ranked = torch.isfinite(facts.rank)
    row, place = (ranked if which is None else ranked & which).nonzero(as_tuple=True)
    pairs = values[row, :, place].T
    return facts.rank[row, place].expand(len(pairs), -1), pairs, row


def _within_texts(values: Float[Tensor, "B 1 S"], facts: TokenFacts) -> tuple[Tensor, Tensor, Tensor]:
    """Words with a rank, by text: relative ranks of their frequency and values within it, from −½ to ½, as [1 N], and groups.

    A row of tokens is a text; one with fewer than MIN_WORDS words says nothing and is left out.
    """
    values, facts = values.cpu(), facts.to(torch.device("cpu"))
    ranked = torch.isfinite(facts.rank) & facts.word
    ranks: list[np.ndarray] = []
    groups: list[Tensor] = []
    for row in (ranked.sum(1) >= MIN_WORDS).nonzero()[:, 0].tolist():
        counted = ranked[row]
        both = np.stack([facts.rank[row, counted].double().numpy(), values[row, 0][counted].double().numpy()])
        ranks.append((mean_ranks(both) - 0.5) / both.shape[1] - 0.5)
        groups.append(facts.group[row].expand(both.shape[1]))
    if not ranks:
        return torch.empty(1, 0), torch.empty(1, 0), torch.empty(0, dtype=torch.long)
    places = torch.from_numpy(np.concatenate(ranks, 1))
    return places[:1], places[1:], torch.cat(groups)


def frequency_ranks(counts: Int[np.ndarray, " V"]) -> Float[Tensor, " V"]:
    """Frequency rank of every token type, 1 the most frequent, ties with their mean rank; NaN for types without a token."""
    met = counts > 0
    ranks = np.full(len(counts), np.nan)
    ranks[met] = mean_ranks(-counts[met])
    return torch.from_numpy(ranks)
