"""Similarity of a model: why three matrices — every head's maps against random ones, and its scores on texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.claims.models import HeadsAgainstNull, ResampledHeads, judge_heads
from trisect.core.errors import CorpusError, ModelError
from trisect.core.finding import About
from trisect.core.subject import Batch, Texts
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Projections, Trace, crosses, find_shared_weights, spell_addresses
from trisect.experiments.similarity.page import AFFINE, CORPUS, ELSEWHERE
from trisect.experiments.similarity.settings import SimilarityFacts, SimilaritySettings
from trisect.lab.experiment import Measured, RunContext
from trisect.measure import similarity
from trisect.measure.similarity import SCORE_SUMS, MapSpan, PartMoments, effective_ranks, score_row
from trisect.papers import matrices
from trisect.stats.bootstrap import DrawnEstimate, bootstrap_means, bootstrap_ratios, percentile_interval
from trisect.stats.null import Null
from trisect.stats.power import fewest_draws, is_decided
from trisect.stats.shares import ratios
from trisect.stats.significance import ALPHA, Interval, holm, nan_to_none

PAIRS = (("q", "k"), ("k", "v"), ("q", "v"))
KINDS = ("subspaces", "cosines", "forms", "ranks", "products")
SCORES = ("score_unequal_share", "score_correlation", "self_first_share", "self_ahead_share")
_SPARE = 1.25  # times the draws with which a p-value could just survive Holm's correction
_MORE_DRAWS, ROUNDS = 4, 2  # times as many draws, and how often, while a claim hangs on what few of them say
SHARED_NOTE = "A matrix that several layers use counts once, at the first of them."
Key = tuple[str, tuple[int, ...]]  # a kind of null distribution and its shape
Hashes = Mapping[str, tuple[str, str]]  # of q, k, v and o: a hash of the weight, and one of the bias


class _MapMeasure(NamedTuple):
    """A measure of all heads of a layer, and the null distribution of each head (None: it has none).

    `matrices` are the hashes of those that it is of.
    """

    address: Address
    component: str
    measure: str
    group: str | None
    values: Float[np.ndarray, " H"]
    keys: tuple[Key | None, ...]
    matrices: tuple[object, ...] = ()


@dataclass
class Nulls:
    """Null distributions, drawn once each from a generator of their own, so that the order of draws does not matter.

    `draws` of each were asked for; where a p-value could not survive its family of `heads` with so few, more are made, and of
    subspaces `times` as many as that.
    """

    draws: int
    seed: int
    heads: int = 0
    times: int = 1
    cache: dict[Key, dict[str, Null]] = field(default_factory=dict)

    @classmethod
    def of(cls, draws: int, seed: int, measured: Sequence[_MapMeasure]) -> Nulls:
        """The nulls for these measures; `heads` is the largest number of heads over all layers."""
        counts: Counter[tuple[str, str]] = Counter()
        for m in measured:
            counts[m.component, m.measure] += len(m.values) if m.group is None else 0
        return cls(draws, seed, max(counts.values(), default=0))

    def get(self, key: Key, measure: str) -> Null:
        """The null of a measure for one shape."""
        if key not in self.cache:
            self.cache[key] = {name: Null.of(draws) for name, draws in self._draw(*key).items()}
        return self.cache[key][measure]

    def count(self, kind: str = "subspaces") -> int:
        """The number of draws for one shape: enough that one head can be significant on either side within its family.

        A family is a measure's pairs, and a claim about all of them. Overlaps are tested with and without biases, and a second
        time in claim D-1, whose correction for its parts and for the claims that are judged beside it comes on top of that for
        heads. Effective ranks are a family for each component, since a draw of theirs costs a decomposition.
        """
        overlaps = (len(matrices.CLAIMS) + 1) * len(PAIRS)
        tests = {"subspaces": overlaps, "ranks": 1, "products": 1}.get(kind, len(PAIRS)) * self.heads
        return max(self.draws, fewest_draws(tests, _SPARE)) * (self.times if kind == "subspaces" else 1)

    def draw_further(self) -> None:
        """Draw more of all subspaces."""
        self.times *= _MORE_DRAWS
        self.cache = {key: nulls for key, nulls in self.cache.items() if key[0] != "subspaces"}

    def _draw(self, kind: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        draw, count = np.random.default_rng([self.seed, KINDS.index(kind), *shape]), self.count(kind)
        if kind in ("ranks", "products"):
            ranks = similarity.random_ranks if kind == "ranks" else similarity.random_product_ranks
            return {"effective_rank": ranks(draw, shape[0], shape[1], count)}
        if kind == "cosines":
            return {"cosine": similarity.random_cosines(draw, shape[0], count)}
        dim, left, right = shape
        if kind == "forms":
            forms = similarity.random_map_pairs(draw, dim, left, right, count)
            return {"cka": forms.cka, "symmetric_share": forms.symmetric}
        spans = similarity.random_subspaces(draw, dim, left, right, count)
        return {"overlap": spans.overlap, "least_angle_degrees": np.degrees(spans.angle)}


def measure_weights(projections: Iterable[Projections]) -> list[_MapMeasure]:
    """All measures of every layer whose weights are plain maps of its input.

    What would be said of the same matrices again, since a later layer uses them too, is left out.
    """
    measured, keys = list[_MapMeasure](), set[object]()
    for p in projections:
        hashes = p.hashes()
        layer = (crosses(p.address.stack), *hashes.items())
        for m in () if layer in keys else _measure_layer(p):
            maps = tuple(hashes[name] if m.group == AFFINE else hashes[name][0] for name in m.component.split("-"))
            key = (m.component, m.measure, m.group, *maps)
            if key not in keys:
                keys.add(key)
                measured.append(m._replace(matrices=maps))
        keys.add(layer)
    return measured


def describe_omissions(projections: Iterable[Projections]) -> tuple[str, ...]:
    """What could not be measured, with reasons: a sentence for each reason, with its layers."""
    layers: dict[tuple[str, str], list[Address]] = {}
    for p in projections:
        for name in (n for n, w in (("q", p.w_q), ("k", p.w_k), ("v", p.w_v), ("o", p.w_o)) if w is None):
            origin = p.origins.get(name)
            where = "" if origin is None else re.sub(r"\d+", "N", origin.words)  # alike in every layer
            if name in p.normed:
                reason = (
                    f"{name} has a norm behind its projection ({where}), which leaves alone what the projection reads: overlaps "
                    "and angles are of that"
                )
                left = "What changes with the norm (cosine, CKA, symmetric share, effective rank) is left out"
            else:
                instead = "" if origin is None else f" but {origin.how} ({where})"
                reason, left = f"{name} is not a plain map of its input{instead}", "What needs it is left out"
            layers.setdefault((reason, left), []).append(p.address)
    return tuple(f"{left} at {spell_addresses(where)}: {reason}." for (reason, left), where in layers.items())


@dataclass(frozen=True, eq=False)
class _Map:
    """q, k or v of a layer: its weights, bias and row space, computed once.

    With a norm behind it only what it reads is known of the head: it is not `plain`.
    """

    weight: Float[Tensor, "H D E"]
    bias: Float[Tensor, "H E"] | None
    plain: bool = True

    @cached_property
    def span(self) -> MapSpan:
        """The row space of the weights."""
        return similarity.span(self.weight)

    @cached_property
    def affine(self) -> MapSpan:
        """The row space of weights and bias, with a constant input of 1."""
        return similarity.span(similarity.append_bias(self.weight, self.bias))

    def spread(self, heads: int) -> _Map:
        """Key/value heads repeated for the query heads that share them."""
        times = heads // len(self.weight)
        if times == 1:
            return self
        bias = None if self.bias is None else self.bias.repeat_interleave(times, 0)
        return _Map(self.weight.repeat_interleave(times, 0), bias, self.plain)

    @property
    def shape(self) -> tuple[int, int]:
        """Widths of the model and of a head."""
        return self.weight.shape[1], self.weight.shape[2]


def _measure_layer(p: Projections) -> list[_MapMeasure]:
    """The measures of one layer; in cross-attention, where q reads other vectors than k and v, pairs have names of their own."""
    measures: list[_MapMeasure] = []

    def note(name: str, measure: str, values: Tensor | np.ndarray, *keys: Key | None, group: str | None = None) -> None:
        """Record values of all heads; a single key is the null of every head with a number."""
        array = values.cpu().numpy() if isinstance(values, Tensor) else values
        per_head = keys if len(keys) != 1 else tuple(keys[0] if np.isfinite(value) else None for value in array)
        measures.append(_MapMeasure(p.address, name, measure, group, array, per_head))

    def compare_spans(name: str, left: MapSpan, right: MapSpan, group: str | None) -> None:
        angles, dim = similarity.angles(left, right), left.basis.shape[1]
        ranks = zip(left.rank.tolist(), right.rank.tolist(), strict=True)
        keys: list[Key | None] = [("subspaces", (dim, a, b)) if min(a, b) else None for a, b in ranks]
        note(name, "overlap", angles.overlap, *keys, group=group)
        note(name, "least_angle_degrees", np.degrees(angles.least.cpu().numpy()), *keys, group=group)

    plain = {"q": (p.w_q, p.b_q), "k": (p.w_k, p.b_k), "v": (p.w_v, p.b_v)}
    maps = {name: _Map(w, b) for name, (w, b) in plain.items() if w is not None}
    maps |= {name: _Map(under.weight, under.bias, plain=False) for name, under in p.normed.items()}
    heads = max((len(w) for w in (*(m.weight for m in maps.values()), p.w_o) if w is not None), default=0)
    for name, first in maps.items():
        if first.plain:
            note(name, "effective_rank", effective_ranks((first.span.values**2).cpu().numpy()), ("ranks", first.shape))
    for left, right in ((a, b) for a, b in PAIRS if a in maps and b in maps):
        name, first, second = f"{left}-{right}", maps[left], maps[right]
        shared = 1
        if left == "q":
            shared = heads // min(len(first.weight), len(second.weight))
            first, second = first.spread(heads), second.spread(heads)
        group = ELSEWHERE if crosses(p.address.stack) and left == "q" else None
        compare_spans(name, first.span, second.span, group)
        if first.bias is not None or second.bias is not None:
            compare_spans(name, first.affine, second.affine, AFFINE)
        if first.plain and second.plain:  # else only what they read is known
            forms: Key = ("forms", (first.shape[0], first.shape[1], second.shape[1]))
            note(name, "cka", similarity.white_cka(first.weight, second.weight), forms, group=group)
            if first.shape == second.shape:
                cosines: Key = ("cosines", (first.shape[0] * first.shape[1],))
                note(name, "cosine", similarity.cosine(first.weight, second.weight), cosines, group=group)
                if name == "q-k":
                    shares = similarity.symmetric_share(first.weight, second.weight)
                    note(name, "symmetric_share", shares, forms, group=group)
        if group is None and (beside := _beside_others(first.span, second.span, shared)) is not None:
            note(name, "overlap_among", beside[0], None)
            note(name, "overlap_others_above", beside[1], None)
    if all(name in maps and maps[name].plain for name in "qk"):
        ranks = similarity.product_rank(maps["q"].weight, maps["k"].spread(heads).weight)
        note("q-k", "effective_rank", ranks, ("products", maps["q"].shape))
    if "v" in maps and maps["v"].plain and p.w_o is not None:
        ranks = similarity.product_rank(maps["v"].spread(heads).weight, p.w_o.mT)
        note("v-o", "effective_rank", ranks, ("products", maps["v"].shape))
    return measures


def _beside_others(left: MapSpan, right: MapSpan, shared: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Every head's overlap less its mean with the layer's other heads, and the share of those that overlap at least as much.

    All heads of a layer read one input, some directions of which are larger than others: a second null beside the
    Gaussian one. `shared` heads that follow one another have one key/value head, and are not others. None for a layer without others.
    """
    overlaps = similarity.overlaps(left, right).cpu().numpy()
    heads = np.arange(len(overlaps)) // shared
    others = heads[:, None] != heads[None]
    if not others.any():
        return None
    values = np.diag(overlaps)
    other_heads = [np.concatenate([overlaps[i, others[i]], overlaps[others[:, i], i]]) for i in range(len(overlaps))]
    less = np.array([value - rest.mean() for value, rest in zip(values, other_heads, strict=True)])
    return less, np.array([(rest >= value).mean() for value, rest in zip(values, other_heads, strict=True)])


def compare_with_nulls(
    measured: Sequence[_MapMeasure], nulls: Nulls, step: Callable[[int, int], object]
) -> list[NewRow]:
    """Rows of the table `measures`: each value, the null's mean and middle 95 %, z, p (two-sided) and p after Holm.

    Holm's family is one measure over all heads, pairs and layers, and for effective ranks one component of all heads; pairs
    with queries from elsewhere are a family of their own. Pairs of the same matrices, as q and v, k and v where q and k are
    one, are one test. `step` is called with how many of how many are done.
    """
    rows: list[NewRow] = []
    tests: dict[tuple[str, str], dict[object, list[tuple[NewRow, float]]]] = {}
    for done, m in enumerate(measured, start=1):
        name = m.measure
        layer: NewRow = {"stack": m.address.stack, "layer": m.address.layer, "component": m.component}
        layer |= {"measure": name, "group": m.group}
        for key in dict.fromkeys(m.keys):
            where = [i for i, k in enumerate(m.keys) if k == key]
            values, heads = m.values[where], [layer | {"head": i + 1} for i in where]
            rows += [row | {"value": nan_to_none(v)} for row, v in zip(heads, values, strict=True)]
            if key is None:
                continue
            null = nulls.get(key, name)
            count, ends = {"n": len(null.draws)}, (null.quantile(ALPHA / 2), null.quantile(1 - ALPHA / 2))
            middle = {"measure": f"{name}_null", "value": null.mean, "low": ends[0], "high": ends[1]} | count
            rows += [row | middle for row in ([layer] if len(where) == len(m.keys) else heads)]
            scores, p = null.scores(values), null.beyond(values)
            rows += [
                row | count | {"measure": f"{name}_z", "value": nan_to_none(z)}
                for row, z in zip(heads, scores, strict=True)
            ]
            component = m.component * (name == "effective_rank")
            family = tests.setdefault((name, ELSEWHERE if m.group == ELSEWHERE else component), {})
            for i, row, x in zip(where, heads, p, strict=True):
                family.setdefault((m.group, frozenset(m.matrices), i), []).append((row | count, float(x)))
        step(done, len(measured))
    for (name, _), family in tests.items():
        adjusted = holm([same[0][1] for same in family.values()])
        for same, p_holm in zip(family.values(), adjusted, strict=True):
            for row, p in same:
                rows.append(row | {"measure": f"{name}_p", "value": p})
                rows.append(row | {"measure": f"{name}_p_holm", "value": float(p_holm)})
    return rows


@dataclass
class _LayerReading:
    """Statistics of one attention layer over texts: moments of q, k and v, and sums and counts of scores by text.

    `group` query heads share a key/value head.
    """

    group: int
    moments: PartMoments = field(default_factory=PartMoments)
    texts: dict[int, Float[np.ndarray, "8 H"]] = field(default_factory=dict)

    def add(self, batch: Batch, trace: Trace) -> None:
        """Add one layer of one batch to the sums."""
        self.moments.add(trace)
        for row, (text, _) in enumerate(batch.rows):
            if (score := score_row(trace, row)) is not None:
                counts = np.repeat([[float(score.queries)], [float(score.pairs)]], trace.heads, 1)
                sums = np.concatenate([score.sums.cpu().numpy(), counts])
                self.texts[text] = self.texts[text] + sums if text in self.texts else sums

    def scores(self, seed: int) -> DrawnEstimate:
        """SCORES [4 H] over all texts and [R 4 H] over draws of them; the correlation is that of s_ij and s_ji, 1 for a symmetric score."""
        sums = np.stack([self.texts[text] for text in sorted(self.texts)])
        flat, shape = sums[:, :-2].reshape(len(sums), -1), (-1, len(SCORE_SUMS), sums.shape[2])
        # the texts, then draws of them; one seed for both, so that a draw is the same texts whatever is counted
        per_pair, per_query = (
            np.vstack([ratios(flat, count), bootstrap_ratios(flat, count, seed)]).reshape(shape)
            for count in (sums[:, -1, 0], sums[:, -2, 0])
        )
        unequal, product, square, total = (per_pair[:, i] for i in range(4))
        spread = square - total**2
        correlation = np.divide(product - total**2, spread, out=np.full_like(spread, np.nan), where=spread > 0)
        values = np.stack([unequal, correlation, per_query[:, 4], per_query[:, 5]], 1)
        return DrawnEstimate(values[0], values[1:])


def measure(settings: SimilaritySettings, context: RunContext) -> Measured[SimilarityFacts]:
    """Compare W_Q, W_K and W_V of every head with each other and with random matrices.

    With texts also what needs them: linear CKA of q, k and v as the model used them, and whether a score is a similarity
    (s_ij against s_ji, a word's score with itself against others), with intervals over texts. `draws` is how many random
    matrices of each shape are compared at least. Raises ModelError, CorpusError.
    """
    subject, texts, seed = context.subject, context.given_texts, settings.seed
    # copied layer by layer, whenever it is gone through
    projections, heads = subject.projections(), subject.shape.heads
    measured = measure_weights(p for p in projections if p.address in heads)
    hashes = {p.address: p.hashes() for p in projections if p.address in heads}
    shared = find_shared_weights(
        {address: {n: weight for n, (weight, _) in maps.items()} for address, maps in hashes.items()}
    )
    left_out = describe_omissions(p for p in projections if p.address in heads)
    once = (SHARED_NOTE,) if any("share" in words for words in shared) else ()
    notes = dict.fromkeys((*subject.notes, *left_out, *shared, *once))
    if not measured:
        reason = " ".join(notes) or "It has no attention layer."
        raise ModelError(f"{subject.name} has no head whose matrices can be compared.", reason, "Choose another model.")
    nulls = Nulls.of(settings.draws, seed, measured)
    excess = overlap_evidence(measured, nulls)
    with context.progress("matrices") as step:
        rows = compare_with_nulls(measured, nulls, step)
    read: dict[Address, _LayerReading] = {}
    if texts is not None:
        notes |= dict.fromkeys(texts.notes)
        read = read_scores(context, texts, settings.batch, notes)
    scored = {address: r.scores(seed) for address, r in read.items() if r.texts}
    rows += _text_rows(read, scored)
    fewest = min((len(r.texts) for r in read.values() if r.texts), default=0)
    evidence = {**excess, **_over_heads(measured, scored, fewest, hashes, seed)}

    def judge(about: About[SimilarityFacts]) -> pl.DataFrame:
        names = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "texts", "seed", "draws")
        return judge_heads(matrices.SOURCE, evidence, {name: getattr(about.facts, name) for name in names})

    facts = SimilarityFacts(
        subject.name,
        subject.fingerprint,
        None if texts is None else texts.name,
        None if texts is None else texts.fingerprint,
        None if texts is None else max((len(r.texts) for r in read.values()), default=0),
        max((r.moments.count for r in read.values()), default=None),
        settings.draws,
        nulls.count(),
        seed,
    )
    measures = frame("measures", [row | {"subject": subject.name} for row in rows])
    return Measured({"measures": measures}, facts, tuple(notes), judge, "head")


def read_scores(context: RunContext, texts: Texts, batch: int, notes: dict[str, None]) -> dict[Address, _LayerReading]:
    """Read every text once; memory grows by a few numbers per text and head."""
    read, subject = dict[Address, _LayerReading](), context.subject
    count = sum(1 for _ in texts.texts())
    if not count:
        raise CorpusError(f"The texts {texts.name!r} are none.", "At least one is needed.", "Give texts to read.")

    def add(part: Batch, trace: Trace) -> None:
        read.setdefault(trace.address, _LayerReading(trace.group)).add(part, trace)

    with torch.no_grad(), context.progress("texts") as step:
        for part in subject.batches(texts.texts(), batch):
            notes |= dict.fromkeys(part.notes)
            subject.each(part, partial(add, part))
            step(part.rows[-1][0] + 1 if part.rows else 1, count)
    return read


def _text_rows(read: Mapping[Address, _LayerReading], scored: Mapping[Address, DrawnEstimate]) -> Iterator[NewRow]:
    """CKA of q, k and v over tokens, and statistics of scores, with intervals over texts."""
    for address, layer in read.items():
        place = {"stack": address.stack, "layer": address.layer, "measure": "cka", "group": CORPUS}
        for left, right in PAIRS:
            cka = layer.moments.cka(left, right)
            values = [] if cka is None else cka[:: layer.group if left == "k" else 1].tolist()
            for head, value in enumerate(values, start=1):
                named = {"head": head, "component": f"{left}-{right}"}
                yield place | named | {"value": nan_to_none(value), "n": layer.moments.count}
    for address, scores in scored.items():
        texts = len(read[address].texts)
        place = {"stack": address.stack, "layer": address.layer, "component": "q-k", "group": CORPUS}
        for i, measure in enumerate(SCORES):
            ends = percentile_interval(scores.draws[:, i], texts)
            for head, columns in enumerate(zip(scores.value[i], ends.low, ends.high, strict=True), start=1):
                numbers = dict(zip(("value", "low", "high"), map(nan_to_none, columns), strict=True))
                yield place | {"head": head, "measure": measure, "n": texts} | numbers


def overlap_evidence(measured: Sequence[_MapMeasure], nulls: Nulls) -> dict[str, HeadsAgainstNull]:
    """For each pair, every head's overlap less the mean of its null, and the null's p-value for the claim's margin.

    Heads whose null has no spread, because two spans of their size fill the model, are left out. Nulls are drawn further while
    so few draws lie beyond a head that others might turn the verdict of claim D-1.
    """
    family = len(matrices.CLAIMS)
    for _ in range(ROUNDS):
        evidence, draws = _evidence(measured, nulls), nulls.count()
        pairs = [a for a in evidence.values() if len(a.effects)]
        against = [(float(a.p_against.min()), 2 * len(PAIRS) * family * len(a.effects)) for a in pairs]
        weakest = (max((float(a.p_for.max()) for a in pairs), default=1.0), 2 * family)
        refuted = any(n * p < ALPHA and is_decided(p, draws, n) for p, n in against)
        if refuted or all(is_decided(p, draws, n) for p, n in (*against, weakest)):
            return evidence
        nulls.draw_further()
    return _evidence(measured, nulls)


def _evidence(measured: Sequence[_MapMeasure], nulls: Nulls) -> dict[str, HeadsAgainstNull]:
    def interval(heads: Sequence[tuple[float, Null]], head: int, alpha: float) -> Interval:
        value, null = heads[head]
        return null.excess_interval(value, alpha)

    evidence = {}
    for pair in map("-".join, PAIRS):
        layers = [m for m in measured if (m.measure, m.group, m.component) == ("overlap", None, pair)]
        columns, heads = [], list[tuple[float, Null]]()
        each = (item for m in layers for item in zip(m.values, m.keys, strict=True))
        for value, key in ((value, key) for value, key in each if key is not None):
            null, beyond = nulls.get(key, "overlap"), np.array([value - matrices.MARGIN])
            if null.spread > 0:
                columns.append([value - null.mean, null.below(beyond)[0], null.above(beyond)[0]])
                heads.append((float(value), null))
        if layers:
            effects, p_for, p_against = np.array(columns, dtype=float).reshape(-1, 3).T
            evidence[f"overlap_excess_{pair}"] = HeadsAgainstNull(effects, p_for, p_against, partial(interval, heads))
    return evidence


def _over_heads(
    measured: Sequence[_MapMeasure],
    scored: Mapping[Address, DrawnEstimate],
    fewest: int,
    hashes: Mapping[Address, Hashes],
    seed: int,
) -> dict[str, ResampledHeads]:
    """Means over heads with heads resampled; if they are from texts (`fewest` in a layer), heads and texts.

    A head whose queries and keys several layers make by the same matrices is one, with the mean over these layers.
    """
    draw, evidence = np.random.default_rng([seed, 1]), {}
    shares = [m.values[np.isfinite(m.values)] for m in measured if (m.measure, m.group) == ("symmetric_share", None)]
    if shares and (all_shares := np.concatenate(shares)).size:
        means = bootstrap_means(all_shares, draw)
        evidence["symmetric_share"] = ResampledHeads(float(all_shares.mean()), means, len(all_shares))
    for pair in map("-".join, PAIRS):
        among = [m.values for m in measured if (m.measure, m.component) == ("overlap_among", pair)]
        if among and (less := np.concatenate(among)).size > 1 and np.isfinite(less).all():
            means = bootstrap_means(less, draw)
            evidence[f"overlap_among_{pair}"] = ResampledHeads(float(less.mean()), means, less.size)
    if scored:
        heads_of: dict[object, list[DrawnEstimate]] = {}
        for address, layer in scored.items():
            maps = [hashes.get(address, {}).get(name) for name in "qk"]
            heads_of.setdefault(address if None in maps else tuple(maps), []).append(layer)
        first = np.concatenate([np.mean([s.draws[:, 2] for s in layers], 0) for layers in heads_of.values()], 1)
        heads = first.shape[1]
        values = [np.mean([s.value[2] for s in layers], 0) for layers in heads_of.values()]
        mean, means = float(np.concatenate(values).mean()), bootstrap_means(first, draw, len(first))
        unit = "head" if heads <= fewest else "text"
        evidence["self_first_share"] = ResampledHeads(mean, means, min(heads, fewest), unit)
    return evidence
