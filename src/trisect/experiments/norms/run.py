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
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Projections, Trace, crosses, spell_addresses
from trisect.experiments.norms.settings import NormsFacts, NormsSettings
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.passes import Tally
from trisect.lab.word_labels import find_articles
from trisect.lm.reading import OwnModel
from trisect.measure.norms import expansion_rate, output_projection, rollout_step
from trisect.measure.sums import (
    CATEGORIES,
    GROUPS,
    LAYER_GROUPS,
    MARKED_CATEGORIES,
    MIN_TOKENS,
    LayerTally,
    PooledTally,
    Sums,
    TokenFacts,
    TokenNorms,
    find_categories,
    find_sinks,
    find_words,
    frequency_ranks,
    group_of,
    opening_tokens,
)
from trisect.papers.norms import SOURCE
from trisect.stats.bootstrap import DrawnEstimate, bootstrap_ratios, percentile_interval, resample_counts, value_rows
from trisect.stats.describe import permutation_spearman, spearman, variation
from trisect.stats.shares import ratios
from trisect.stats.significance import finite, value_row

Statistics = dict[str, DrawnEstimate]  # what the claims of papers.norms speak of
SEP, FIRST_TOKEN = CATEGORIES.index("sep"), CATEGORIES.index("first")
KINDS = ("weight", "norm")
DRAWS = 4_000
# the facts that a verdict is bound to
BOUND = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "texts", "block", "seed")


@dataclass
class StackTally:
    """The tallies of one stack: of every layer, and pooled over layers."""

    stack: str
    layers: dict[Address, LayerTally]
    model: PooledTally = field(default_factory=PooledTally)


class TextDraws:
    """Values and intervals of numbers from `n` texts in `units` articles; all numbers share the bootstrap draws."""

    def __init__(self, n: int, seed: int, units: int) -> None:
        self.n, self.seed = n, seed
        self.times, self.fewer = (
            resample_counts(np.random.default_rng(seed), min(units, groups), DRAWS) for groups in (GROUPS, LAYER_GROUPS)
        )

    def sums(self, sums: Sums) -> DrawnEstimate:
        """The sums of a tally, over all texts and in every draw."""
        return DrawnEstimate(sums.total(self.times.shape[1]), sums.resample(self.times))

    def row(self, estimate: DrawnEstimate, place: tuple[int, ...] = (), fewer: bool = False) -> dict[str, float | None]:
        """Columns value, low, high and n of one number of an estimate; None if it is not finite.

        Degrees of freedom are of the groups that were drawn: `fewer` where those were.
        """
        groups = (self.fewer if fewer else self.times).shape[1]
        ends = percentile_interval(estimate.draws[(slice(None), *place)], groups)
        return value_row(estimate.value[place], ends, self.n)


def _each(function: Any, *estimates: DrawnEstimate) -> DrawnEstimate:
    """Apply a function of sums to all texts and to every draw; a division by zero gives NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return DrawnEstimate(function(*(e.value for e in estimates)), function(*(e.draws for e in estimates)))


def _mean_of(parts: list[DrawnEstimate]) -> DrawnEstimate:
    """The mean of several numbers."""
    return DrawnEstimate(np.mean([p.value for p in parts], 0), np.mean([p.draws for p in parts], 0))


def _to_shares(sums: Float[np.ndarray, "... C"]) -> Float[np.ndarray, "... C"]:
    return sums / sums.sum(-1, keepdims=True)


def _dispersion(tally: StackTally, draws: TextDraws, statistics: Statistics) -> Iterator[NewRow]:
    for name in ("x", "f", "a", "af"):
        measure, layers = {"measure": f"cv_{name}"}, []
        for address, layer in tally.layers.items():
            heads = mean = _each(variation, draws.sums(getattr(layer, name)))
            place = measure | {"layer": address.layer}
            if heads.value.ndim:
                yield from (place | {"head": h + 1} | draws.row(heads, (h,)) for h in range(len(heads.value)))
                mean = _each(lambda v: v.mean(-1), heads)
            if np.isfinite(mean.value):
                layers.append(mean)
                yield place | draws.row(mean)
        if layers:
            statistics[f"cv_{name}"] = _mean_of(layers)
            yield measure | draws.row(statistics[f"cv_{name}"])


def _shares(tally: StackTally, draws: TextDraws, statistics: Statistics) -> Iterator[NewRow]:
    present = _present(tally)
    views = next(iter(tally.layers.values())).views
    layers: dict[str, list[DrawnEstimate]] = {kind: [] for kind in (*views, "norm_heads")}
    for address, layer in tally.layers.items():
        queries, sums, heads = (draws.sums(s) for s in (layer.queries, layer.sums, layer.head_sums))
        layered = _each(lambda s, q: s / q[..., None, None], sums, queries)
        headed = _each(lambda s, q: s / q[..., None, None, None], heads, queries)
        shares = _each(_to_shares, sums)
        layers["norm_heads"].append(_each(lambda s: _to_shares(s[..., 1, :, :].mean(-2)), heads))
        for k, kind in enumerate(views):
            layers[kind].append(DrawnEstimate(shares.value[k], shares.draws[:, k]))
            for c in present:
                place = {"layer": address.layer, "group": CATEGORIES[c]}
                yield place | {"measure": f"{kind}_sum"} | draws.row(layered, (k, c))
                yield place | {"measure": f"{kind}_share"} | draws.row(shares, (k, c))
                for h in range(headed.value.shape[1] if kind in KINDS else 0):
                    yield place | {"measure": f"{kind}_sum", "head": h + 1} | draws.row(headed, (k, h, c))
    for kind, parts in layers.items():
        mean = _mean_of(parts)
        for c in present:
            yield {"measure": f"{kind}_share", "group": CATEGORIES[c]} | draws.row(mean, (c,))
        if set(present) & set(MARKED_CATEGORIES):
            statistics[f"special_share_{kind}"] = _each(lambda v: v[..., list(MARKED_CATEGORIES)].sum(-1), mean)
        if FIRST_TOKEN in present:
            statistics[f"first_share_{kind}"] = _each(lambda v: v[..., FIRST_TOKEN], mean)


def _cancelling(tally: StackTally, draws: TextDraws, statistics: Statistics) -> Iterator[NewRow]:
    over: list[DrawnEstimate] = []
    for address, layer in tally.layers.items():
        heads = _each(lambda s, t: s / t[..., None, None, :], *map(draws.sums, (layer.means, layer.tokens)))
        means = _each(lambda v: v.mean(-2), heads)
        over.append(means)
        numbers = range(heads.value.shape[1])
        for c in _present(tally):
            place = {"layer": address.layer, "group": CATEGORIES[c]}
            rho = layer.cancel[c].estimate(draws.fewer, draws.fewer.shape[1])
            yield place | {"measure": "spearman_a_f"} | draws.row(rho, (0,), fewer=True)
            of_heads = layer.head_cancel[c].estimate().value
            for h in numbers:
                row = {"measure": "spearman_a_f", "head": h + 1, "value": finite(of_heads[h]), "n": draws.n}
                yield place | row
            for k, name in enumerate(("mean_a", "mean_f")):
                yield place | {"measure": name} | draws.row(means, (k, c))
                for h in numbers:
                    yield place | {"measure": name, "head": h + 1} | draws.row(heads, (k, h, c))
    for c in _present(tally):
        group = {"group": CATEGORIES[c]}
        rho = tally.model.cancel[c].estimate(draws.times, draws.times.shape[1])
        rho = DrawnEstimate(rho.value[0], rho.draws[:, 0])
        layers = DrawnEstimate(
            spearman(np.stack([e.value[:, c] for e in over], -1)),
            spearman(np.stack([e.draws[:, :, c] for e in over], -1)),
        )
        yield group | {"measure": "spearman_a_f"} | draws.row(rho)
        yield group | {"measure": "spearman_a_f_layers"} | draws.row(layers)
        if c == SEP:
            statistics |= {"spearman_sep": rho, "spearman_sep_layers": layers}


def _frequency(tally: StackTally, draws: TextDraws, statistics: Statistics) -> Iterator[NewRow]:
    model, fewer = tally.model, draws.fewer
    for name in ("f", "a"):
        measure = f"spearman_rank_{name}"
        for tail, ranks in (("", model.frequency), ("_words", model.words), ("_within", model.within)):
            rho = ranks[name].estimate(draws.times, draws.times.shape[1])
            if np.isfinite(rho.value[0]):
                statistics[measure + tail] = DrawnEstimate(rho.value[0], rho.draws[:, 0])
                yield {"measure": measure + tail} | draws.row(rho, (0,))
        for address, layer in tally.layers.items():
            place = {"measure": measure, "layer": address.layer}
            rho = layer.frequency[name].estimate(fewer, fewer.shape[1])
            yield place | draws.row(rho, (0,), fewer=True)
            heads = layer.head_frequency[name].estimate().value
            yield from (place | {"head": h + 1, "value": finite(v), "n": draws.n} for h, v in enumerate(heads))


def _mixing(tally: StackTally, draws: TextDraws, statistics: Statistics) -> Iterator[NewRow]:
    if crosses(tally.stack):
        return
    places: list[NewRow] = [{"layer": address.layer} for address in tally.layers]
    ratios = [
        _each(lambda s, q: s / q[..., None], draws.sums(layer.mixing), draws.sums(layer.queries))
        for layer in tally.layers.values()
    ]
    for place, ratio in zip([*places, {}], [*ratios, _mean_of(ratios)], strict=True):
        for k, kind in enumerate(KINDS):
            yield place | {"measure": "mixing_ratio", "group": kind} | draws.row(ratio, (k,))


def _contributions(tally: StackTally, draws: TextDraws, statistics: Statistics) -> Iterator[NewRow]:
    """contribution_share: the mean over queries of a category's contribution weights, by head, by layer, and over layers."""
    present, estimates = _present(tally), []
    for address, layer in tally.layers.items():
        shares = _each(_to_shares, draws.sums(layer.contributions))
        estimates.append(DrawnEstimate(shares.value[0], shares.draws[:, 0]))
        for c in present:
            place = {"layer": address.layer, "group": CATEGORIES[c], "measure": "contribution_share"}
            yield place | draws.row(shares, (0, c))
            yield from (place | {"head": h} | draws.row(shares, (h, c)) for h in range(1, len(shares.value)))
    mean = _mean_of(estimates)
    for c in present:
        yield {"measure": "contribution_share", "group": CATEGORIES[c]} | draws.row(mean, (c,))


def _sinks(tally: StackTally, draws: TextDraws, statistics: Statistics) -> Iterator[NewRow]:
    """sink_texts, sink_weight, sink_contribution and dormant_texts: the share of texts in which a head has a sink, what of its

    weight and of its output goes to sinks, and the share of texts in which it is dormant; sink_norm: the mean ‖f(x)‖ of sinks over
    that of other tokens. Of heads, layers (heads averaged) and over layers; sink_share is how sinks are shared out among categories.
    """
    names = ("sink_texts", "sink_weight", "sink_contribution", "dormant_texts", "sink_norm")

    def to_numbers(s: Float[np.ndarray, "... H 9"]) -> Float[np.ndarray, "... H 5"]:
        long, with_sink, weight, contribution, sinks, f, others, rest, dormant = np.moveaxis(s, -1, 0)
        norm = (f / sinks) / (rest / others)
        return np.stack([with_sink / long, weight / long, contribution / long, dormant / long, norm], -1)

    def over_heads(*parts: Float[np.ndarray, "... H 9"]) -> Float[np.ndarray, "... 5"]:
        return to_numbers(np.add.reduce([part.sum(-2, keepdims=True) for part in parts]))[..., 0, :]

    tallies, kinds = [], []
    for address, layer in tally.layers.items():
        sums = draws.sums(layer.sinks)
        kinds.append(draws.sums(layer.sink_kinds))
        if not sums.value[..., 0].any():
            return
        tallies.append(sums)
        heads, layered = _each(to_numbers, sums), _each(over_heads, sums)
        for i, name in enumerate(names):
            place = {"layer": address.layer, "measure": name}
            if np.isfinite(layered.value[i]):
                yield place | draws.row(layered, (i,))
            for h in np.flatnonzero(np.isfinite(heads.value[:, i])).tolist():
                yield place | {"head": h + 1} | draws.row(heads, (h, i))
    over = _each(over_heads, *tallies)
    for i, name in enumerate(names):
        if np.isfinite(over.value[i]):
            yield {"measure": name} | draws.row(over, (i,))
    shares = _each(lambda *parts: _to_shares(np.add.reduce(parts)), *kinds)
    for c in _present(tally):
        if np.isfinite(shares.value[c]):
            yield {"measure": "sink_share", "group": CATEGORIES[c]} | draws.row(shares, (c,))


SINK_LOSS_TEXTS = 64  # texts of which the loss without sinks is measured
REMOVED_TOKENS = ("sinks", "other tokens")  # whose weight is set to 0


@torch.no_grad()
def loss_without_sinks(
    subject: Subject, texts: Texts, heads: Collection[Address], size: int, seed: int
) -> list[NewRow]:
    """Change of the loss of the first WITHOUT texts without the heads' sinks, and without as many other tokens for comparison.

    All other weights stay those of the pass before, in every layer, so that what sinks give is taken away, and nothing is put in its
    place. Rows without_sinks, by whose weight is 0, in nats per predicted token, or as a relative squared change of the
    output where the model has no loss. None where no text has a sink.
    """
    tally, any_sink = Tally(), False
    for batch in subject.batches(islice(texts.texts(), SINK_LOSS_TEXTS), size, scored=True):
        seen: dict[Address, tuple[torch.Tensor, ...]] = {}  # weights, sinks, other tokens

        def see(trace: Trace, seen: dict[Address, tuple[torch.Tensor, ...]] = seen, batch: Batch = batch) -> None:
            if trace.address not in heads:
                return
            sinks = find_sinks(trace)
            chance = torch.full(sinks.shape, -1.0, dtype=torch.float64)
            for row, real in enumerate(trace.key_real.cpu()):  # of the text and the layer alone, in any batch
                draw = np.random.default_rng([trace.layer, *batch.rows[row]])
                chance[row, :, real] = torch.from_numpy(draw.random((len(sinks[row]), int(real.sum()))))
            order = chance.to(sinks.device).masked_fill(sinks, -1.0).argsort(-1, descending=True).argsort(-1)
            others = (order < sinks.sum(-1, keepdim=True)) & ~sinks & trace.key_real[:, None]
            seen[trace.address] = trace.weights.clone(), sinks, others

        subject.each(batch, see)
        clean = subject.score(batch)
        scores = [clean, clean]
        if any(bool(sinks.any()) for _, sinks, _ in seen.values()):
            any_sink = True
            for i in (0, 1):
                parts = {a: (weights, masks[i]) for a, (weights, *masks) in seen.items()}
                hold = {a: weights.masked_fill(mask[:, :, None], 0.0) for a, (weights, mask) in parts.items()}
                scores[i] = subject.score(batch, hold=hold, clean=clean)
        tally.add(batch, clean, scores)
    if not any_sink:
        return []
    table = tally.table(texts.name)
    units = tally.articles(texts).sums(table, tally.indices)
    values, draws = ratios(units[:, 2:], units[:, 0]), bootstrap_ratios(units[:, 2:], units[:, 0], seed)
    place: NewRow = {"stack": next(iter(heads)).stack, "measure": "without_sinks"}
    numbers = zip(REMOVED_TOKENS, value_rows(values, draws, len(units)), strict=True)
    return [place | {"group": group} | columns | {"n": len(table)} for group, columns in numbers]


ROLLOUT_TEXTS = 64  # texts of which rollouts are compared with a gradient
ROLLOUTS = (*KINDS, "contribution")


def _rollout_rows(subject: Subject, texts: Texts, seed: int) -> tuple[list[NewRow], str]:
    """How far rollouts over all layers rank the tokens of a text as a gradient does: mean rank correlation over the first ROLLED texts.

    Rows rollout_gradient, by weight, norm and contribution, and of nearness alone, of one position of each text: the last, or of a
    masked model the first mask. The gradient is of its largest logit, times the input. Rows or a reason why there are none.
    """
    from trisect.hf.load import Pretrained, input_gradients

    no = "Rollouts are not compared with a gradient"
    suits = subject.objective in ("causal", "masked") and subject.shape.stacks == ("plain",)
    if not isinstance(subject, Pretrained) or not suits:
        return [], f"{no}: that needs a language model of Hugging Face's with one stack."
    correlations, steps = list[list[float]](), list[list[torch.Tensor]]()  # steps of one text, layer by layer
    for batch in subject.batches(islice(texts.texts(), ROLLOUT_TEXTS), 1, scored=True):
        real = batch.source.real[0]
        positions = real.nonzero()[:, 0]
        if len(positions) < MIN_TOKENS or batch.rows[0][1]:
            continue
        labels = batch.inputs.get("labels") if subject.objective == "masked" else None
        query = int(positions[-1]) if labels is None else int((labels[0].cpu() >= 0).nonzero()[0, 0])
        rolled = {kind: torch.eye(len(real), dtype=torch.float64)[query] for kind in ROLLOUTS}
        try:
            steps.clear()
            subject.each(batch, lambda trace: steps.append([rollout_step(trace, kind)[0].cpu() for kind in ROLLOUTS]))
            for layer in reversed(steps):
                rolled = {kind: rolled[kind] @ step for kind, step in zip(ROLLOUTS, layer, strict=True)}
            gradient = input_gradients(subject, batch, torch.tensor([query]))[0]
        except ModelError as error:
            return [], f"{no}. {error}"
        seen = positions if labels is not None else positions[positions <= query]
        ranks = [*rolled.values(), -(torch.arange(len(real)) - query).abs().double()]
        pairs = [np.stack([part[seen].numpy() for part in (rank, gradient)]) for rank in ranks]
        correlations.append([float(spearman(pair)) for pair in pairs])
    table = np.array([row for row in correlations if np.isfinite(row).all()])
    if len(table) < 2:
        return [], f"{no}: that needs two texts of at least {MIN_TOKENS} tokens."
    numbers = value_rows(table.mean(0), bootstrap_ratios(table, np.ones(len(table)), seed), len(table))
    place: NewRow = {"stack": "plain", "measure": "rollout_gradient"}
    groups = (*ROLLOUTS, "nearness")  # minus the distance in tokens: what a comparison has to exceed
    return [place | {"group": group} | columns for group, columns in zip(groups, numbers, strict=True)], ""


def _layer_test(tally: StackTally, draws: TextDraws) -> dict[str, UnitTest]:
    """Whether mean a and mean ‖f(x)‖ on [SEP] are anticorrelated over layers, by permutation of layers; empty without [SEP]."""
    if SEP not in _present(tally):
        return {}
    groups = draws.times.shape[1]
    sums = [(layer.means.total(groups), layer.tokens.total(groups)) for layer in tally.layers.values()]
    weights, norms = np.array([means[:, :, SEP].mean(-1) / tokens[SEP] for means, tokens in sums]).T
    return {"spearman_sep_layers": UnitTest(permutation_spearman(weights, norms, draws.seed), len(sums), "layer")}


def _present(tally: StackTally) -> list[int]:
    """The categories with at least one token."""
    return np.flatnonzero(sum(layer.tokens.rows.sum(0) for layer in tally.layers.values())).tolist()


BEHIND = (
    "A norm or a factor lies behind W_O at {where}: norms are of what is really added, each part scaled as its query is. ‖f(x)‖ is "
    "without that scale, which no token has by itself, and expansion rates are of W_V and W_O alone."
)
STREAM_NOTE = "What is added to the residual stream was not found at {where}: norms there are of what W_O makes."
OTHER_INPUT = (
    "Values at {where} are not known to be W_V times the block's input x, so that no dispersion of ‖x‖ is given there."
)
NO_LANGUAGE = "C-2 and C-4 speak of a language and are not judged here: the texts are "
OF_LANGUAGE = ("special_share", "first_share", "spearman_rank")  # how the statistics that these rest on begin
SAMPLE = 100  # texts whose script is looked at
LONGEST_WORDS = 20  # letters of a word of a language, on average
LATIN_END = "\u0250"
FIRST_TOKEN_NOTE = "A text opens with {tokens} here, which is counted as its first token: there is no category [CLS]."
MISSING = {
    "cls": "No special token opens {what}: there is no category [CLS].",
    "sep": "No special token stands inside or after {what}: there is no category [SEP].",
    "punctuation": "No token is a period or a comma: that category is absent.",
}


@dataclass(frozen=True)
class Counted:
    """The counts of a first pass over the texts: texts, tokens, and the frequency rank of every token id.

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
        """The number of articles, or of texts if there are no articles: the units that are resampled."""
        return self.texts if self.articles is None else int(self.articles.max()) + 1


def measure(settings: NormsSettings, context: RunContext) -> Measured[NormsFacts]:
    """Norm-based beside weight-based analysis (definitions C1 to C4).

    Texts are read three times: for token frequencies, through the model, and the first for rollouts and sinks. `block` says what
    mixing is of, and whose norm is shown beside that of attention, which the claims are about. Intervals and claims resample
    articles (texts where none is marked). Raises ModelError if no layer has a plain W_O or its block is unknown; CorpusError of no text.
    """
    subject, texts = context.subject, context.texts
    left_out, expansion, heads = _layers(subject)
    counted = _count(subject, texts, settings.batch, next(iter(heads)).stack)
    tallies = {
        stack: StackTally(stack, {a: LayerTally(h, settings.block) for a, h in heads.items() if a.stack == stack})
        for stack in dict.fromkeys(address.stack for address in heads)
    }
    around, statistics = dict[Address, str](), Statistics()
    with context.progress("Reading texts") as step:
        for batch in subject.batches(texts.texts(), settings.batch):
            _read(subject, batch, tallies, counted, around)
            step(batch.rows[-1][0] + 1, counted.texts)
    draws, first = TextDraws(counted.texts, settings.seed, counted.units), next(iter(tallies.values()))
    rows: list[NewRow] = [
        {"stack": tally.stack} | row
        for tally in tallies.values()
        for part in (_dispersion, _shares, _cancelling, _frequency, _mixing, _contributions, _sinks)
        for row in part(tally, draws, statistics if tally is first else {})
    ]
    rolled, why = _rollout_rows(subject, texts, settings.seed)
    rows += rolled + loss_without_sinks(subject, texts, tuple(first.layers), settings.batch, settings.seed)
    tables = {"measures": frame("measures", [{"subject": subject.name} | row for row in (*rows, *expansion)])}
    facts = NormsFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        subject.shape.describe(),
        texts.name,
        texts.fingerprint,
        counted.texts,
        counted.tokens,
        first.stack,
        settings.block,
        settings.seed,
        settings.batch,
    )
    groups, reason = min(counted.units, GROUPS), _why_no_language(subject, texts)
    language_free = {n: estimate for n, estimate in statistics.items() if not (reason and n.startswith(OF_LANGUAGE))}

    def judge(about: About[NormsFacts]) -> pl.DataFrame:
        bound = {name: getattr(about.facts, name) for name in BOUND}
        values = {name: float(estimate.value) for name, estimate in language_free.items()}
        replicates = {name: language_free[name].draws for name in values}
        return judge_by_draws(SOURCE, replicates, values, counted.texts, bound, groups, tests=_layer_test(first, draws))

    notes = (*texts.notes, *counted.notes, *left_out, reason, why, *_notes(tallies, around, counted.opening))
    return Measured(tables, facts, tuple(filter(None, dict.fromkeys(notes))), judge, "text")


def _why_no_language(subject: Subject, texts: Texts) -> str:
    """Why claims about language are not judged on these texts; empty if they are. Scripts without spaces count as language."""
    if texts.name.partition(",")[0] == "embedded" and not isinstance(subject, OwnModel):
        return f"{NO_LANGUAGE}of an invented language, which a pretrained model has never read."
    each = (text if isinstance(text, tuple) else (text,) for text in islice(texts.texts(), SAMPLE))
    sample = " ".join(part for parts in each for part in parts if isinstance(part, str))
    lengths, letters = [len(word) for word in sample.split()], [sign for sign in sample if sign.isalpha()]
    is_latin = 2 * sum(letter < LATIN_END for letter in letters) >= len(letters)
    if lengths and is_latin and (sum(lengths) > LONGEST_WORDS * len(lengths) or max(lengths) == 1):
        return f"{NO_LANGUAGE}no words with spaces between them."
    return ""


def _count(subject: Subject, texts: Texts, batch: int, stack: str) -> Counted:
    """Read the texts once without the model; `stack` is the one that claims are about."""
    seen = np.zeros(0, dtype=np.int64)
    last, tokens, has_ids, opening = -1, 0, True, set[str]()
    notes: dict[str, None] = {}
    for part in subject.batches(texts.texts(), batch):
        side = part.source
        last, tokens = max(last, *(text for text, _ in part.rows)), tokens + int(side.real.sum())
        notes |= dict.fromkeys(part.notes)
        opening |= opening_tokens(part.keys(stack))
        if side.ids is None:
            has_ids = False
            continue
        more = np.bincount(side.ids[side.real].cpu().numpy(), minlength=len(seen))
        more[: len(seen)] += seen
        seen = more
    if last < 0:
        raise CorpusError(f"There is no text in {texts.name!r}.", "Nothing was read.", "Give texts, or another split.")
    if not has_ids:
        notes["The model takes no token ids, so that there is no frequency to look at."] = None
    articles = find_articles(texts, last + 1)
    notes |= dict.fromkeys(articles.notes)
    numbers = None if articles.numbers is None else torch.from_numpy(articles.numbers)
    ranks = frequency_ranks(seen) if has_ids else None
    return Counted(last + 1, tokens, ranks, tuple(notes), numbers, frozenset(opening))


@torch.no_grad()
def _read(
    subject: Subject, batch: Batch, tallies: Mapping[str, StackTally], counted: Counted, around: dict[Address, str]
) -> None:
    """Read a batch and add it to the tallies; `around` collects what lies behind W_O."""
    numbers, causal = torch.tensor([text for text, _ in batch.rows]), subject.objective == "causal"
    owners = {stack: _owners(batch, stack, numbers, counted, causal) for stack in tallies}
    seen: dict[str, list[TokenNorms]] = {stack: [] for stack in tallies}

    def see(trace: Trace) -> None:
        tally = tallies.get(trace.stack)
        if tally is not None and trace.address in tally.layers:
            tokens = owners[trace.stack] = owners[trace.stack].to(trace.weights.device)
            if tokens.category.shape != trace.key_real.shape:
                sees = f"{str(trace.address).capitalize()} of {subject.name} sees {trace.key_real.shape[1]} positions."
                have = f"The texts have {tokens.category.shape[1]} tokens: which of them stands where is not known."
                raise ModelError(sees, have, "Choose a model whose layers see the tokens of its texts, one a position.")
            if trace.block is None or trace.block.after is not None:
                around[trace.address] = STREAM_NOTE if trace.block is None else BEHIND
            seen[trace.stack].append(tally.layers[trace.address].add(trace, tokens, tally.model))

    subject.each(batch, see)
    for stack, tally in tallies.items():
        tally.model.add_frequency(seen[stack], owners[stack])


def _owners(batch: Batch, stack: str, numbers: torch.Tensor, counted: Counted, causal: bool) -> TokenFacts:
    """The tokens behind a stack's keys in a batch, with the `numbers` of the rows' texts."""
    keys = batch.keys(stack)
    rank = torch.full(keys.real.shape, torch.nan, dtype=torch.float64)
    if counted.ranks is not None and keys.ids is not None and keys is batch.source:
        real = keys.real.cpu()
        rank[real] = counted.ranks[keys.ids.cpu()[real]]
    units = numbers if counted.articles is None else counted.articles[numbers]
    group, fewer = (group_of(units, counted.units, groups) for groups in (GROUPS, LAYER_GROUPS))
    category = find_categories(keys, causal or stack == "dec")
    return TokenFacts(category, rank, keys.special.cpu(), find_words(keys), group, fewer)


def _layers(subject: Subject) -> tuple[tuple[str, ...], list[NewRow], dict[Address, int]]:
    """Layers whose norms cannot be computed, in words; rows of the others' expansion rates; and their heads, one layer at a time.

    Raises ModelError where no layer's norms can be computed.
    """
    notes, rows, heads = [], list[NewRow](), dict[Address, int]()
    without: Projections | None = None
    for p in (p for p in subject.projections() if p.address in subject.shape.heads):
        if p.w_o is None:
            without = without or p
            reason = p.origins["o"].words if "o" in p.origins else "no output projection was found"
            notes.append(f"Left out, {p.address}: {reason}.")
            continue
        heads[p.address] = len(p.w_o)
        if p.w_v is not None:  # rates need no text
            place: NewRow = {"stack": p.address.stack, "layer": p.address.layer, "measure": "expansion_rate"}
            rate = expansion_rate(p)
            rows.append(place | {"value": rate.layer})
            rows += [place | {"head": h, "value": float(value)} for h, value in enumerate(rate.heads, start=1)]
    if not heads and without is not None:
        output_projection(without)
    if not heads:
        message = f"{subject.name} has no attention layer whose norms can be computed."
        raise ModelError(message, subject.shape.describe(), "Choose another model.")
    return tuple(notes), rows, heads


def _notes(tallies: Mapping[str, StackTally], around: Mapping[Address, str], opening: Collection[str]) -> list[str]:
    """Notes on what lies `around` layers, on layers whose values are not of the block's input, and on absent categories.

    `opening` are the special tokens that texts open with.
    """
    elsewhere = {
        address: OTHER_INPUT
        for tally in tallies.values()
        for address, layer in tally.layers.items()
        if np.isnan(np.asarray(layer.x.rows)).any()
    }
    categories = [CATEGORIES[c] for c in _present(next(iter(tallies.values())))]
    missing = MISSING | ({"cls": FIRST_TOKEN_NOTE.format(tokens=" or ".join(sorted(opening)))} if opening else {})
    first = next(iter(tallies))
    what = "a text here" if len(tallies) == 1 else f"what {first} reads"
    absent = (note.replace("{what}", what) for name, note in missing.items() if name not in categories)
    notes = []
    for words in dict.fromkeys((*around.values(), *elsewhere.values())):
        where = [address for layers in (around, elsewhere) for address, text in layers.items() if text == words]
        notes.append(words.format(where=spell_addresses(where)))
    return [*notes, *absent]
