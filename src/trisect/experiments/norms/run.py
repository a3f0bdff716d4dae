"""Measure norms of a model's attention over texts, in constant memory: rows, and the statistics of claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from trisect.claims import judge_sampled
from trisect.core.errors import CorpusError, ModelError
from trisect.core.finding import About
from trisect.core.subject import Batch, Subject, Texts
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Projections, Trace
from trisect.experiments.norms.rows import DrawnTexts, StackTally, judged, layer_test, stack_rows
from trisect.experiments.norms.settings import NormsFacts, NormsSettings
from trisect.lab.articles import find_articles
from trisect.lab.experiment import Bench, Measured, Replicates
from trisect.measure.mixing import expansion_rate
from trisect.measure.norms import output_projection
from trisect.measure.running_sums import (
    FEWER,
    GROUPS,
    LayerTally,
    TokenNorms,
    Whose,
    frequency_ranks,
)
from trisect.measure.sums import group_of
from trisect.measure.token_categories import CATEGORIES, find_categories, find_words
from trisect.papers.norms_revised import SOURCE

BEHIND = (
    "A norm or a factor lies behind W_O at {where}: norms are of what is really added, each part scaled as its query is. ‖f(x)‖ is "
    "without that scale, which no token has by itself, and expansion rates are of W_V and W_O alone."
)
LOST = "What is added to the residual stream was not found at {where}: norms there are of what W_O makes."
OTHER_INPUT = (
    "Values at {where} are not known to be W_V times the block's input x, so that no dispersion of ‖x‖ is given there."
)
MISSING = {
    "cls": "No special token opens a text here: there is no category [CLS].",
    "sep": "No special token stands inside or after a text here: there is no category [SEP].",
    "punctuation": "No token is a period or a comma: that category is absent.",
}


@dataclass(frozen=True)
class Counted:
    """What a first look at the texts gives: how many, how many tokens, and the frequency rank of every token id.

    `articles` is the number of each text's article, from 0; null where none is marked.
    """

    texts: int
    tokens: int
    ranks: torch.Tensor | None
    notes: tuple[str, ...]
    articles: torch.Tensor | None = None

    @property
    def units(self) -> int:
        """How many articles there are, or texts where none is marked: what is resampled."""
        return self.texts if self.articles is None else int(self.articles.max()) + 1


def measure(settings: NormsSettings, bench: Bench) -> Measured[NormsFacts]:
    """Norm-based beside weight-based analysis (science C1 to C4).

    Texts are gone through twice: once for the frequency of their tokens, without the model, then through the model.
    Memory does not grow with their number, but for the numbers of their articles. `block` says what mixing is of, and whose norm
    is shown beside that of attention, which the claims are about: 'residual' (x added) or 'full' (and the layer norm). Intervals
    and claims resample articles, or texts where none is marked. Raises ModelError where no layer has a plain output projection, or
    where the block around one is not known; CorpusError without texts.
    """
    subject, texts, block = bench.subject, bench.texts, settings.block
    left_out, expansion, heads = _layers(subject)
    counted = _count(subject, texts, settings.batch)
    tallies = {
        stack: StackTally(stack, {a: LayerTally(h, block) for a, h in heads.items() if a.stack == stack})
        for stack in dict.fromkeys(address.stack for address in heads)
    }
    around: dict[Address, str] = {}
    with bench.progress("Reading texts") as step:
        for one in subject.batches(texts.texts(), settings.batch):
            _read(subject, one, tallies, counted, around)
            step(one.rows[-1][0] + 1, counted.texts)
    drawn, statistics = DrawnTexts(counted.texts, settings.seed, units=counted.units), {}
    rows = [
        row for i, tally in enumerate(tallies.values()) for row in stack_rows(tally, drawn, {} if i else statistics)
    ]
    rows += expansion
    measures = frame("measures", [{"subject": subject.name} | row for row in rows])
    absent = _missing(next(iter(tallies.values())))
    notes = tuple(
        dict.fromkeys((*texts.notes, *counted.notes, *left_out, *_noted(around), *_noted(_elsewhere(tallies)), *absent))
    )
    facts = _facts(subject, texts, counted, next(iter(tallies)), settings)

    orders = layer_test(next(iter(tallies.values())), drawn)
    own = {} if orders is None else {"spearman_sep_layers": orders}

    def judge(about: About[NormsFacts]) -> pl.DataFrame:
        groups = min(counted.units, GROUPS)
        return judge_sampled(SOURCE, *judged(statistics), counted.texts, _named(about.facts), groups, own=own)

    whole = next(iter(tallies.values())).stack
    replicates = {
        (whole, None, None, None, name, None, None): Replicates(
            found.draws,
            min(counted.units, GROUPS),
            f"first {counted.texts}",
            "text" if counted.articles is None else "article",
        )
        for name, found in statistics.items()
        if found.draws.ndim == 1
    }
    return Measured({"measures": measures}, facts, notes, judge, "text", replicates=replicates)


def _named(facts: NormsFacts) -> dict[str, str | int]:
    """What a verdict is bound to."""
    names = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "texts", "block", "seed")
    return {name: getattr(facts, name) for name in names}


def _count(subject: Subject, texts: Texts, batch: int) -> Counted:
    """Go through the texts once without the model."""
    seen = np.zeros(0, dtype=np.int64)
    last, tokens, known = -1, 0, True
    notes: dict[str, None] = {}
    for one in subject.batches(texts.texts(), batch):
        side = one.source
        last, tokens = max(last, *(text for text, _ in one.rows)), tokens + int(side.real.sum())
        notes |= dict.fromkeys(one.notes)
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
    return Counted(last + 1, tokens, frequency_ranks(seen) if known else None, tuple(notes), numbers)


@torch.no_grad()
def _read(
    subject: Subject,
    batch: Batch,
    tallies: Mapping[str, StackTally],
    counted: Counted,
    around: dict[Address, str],
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
                raise _unnamed(subject.name, trace, own.category.shape[1])
            if trace.block is None or trace.block.after is not None:
                around[trace.address] = LOST if trace.block is None else BEHIND
            seen[trace.stack].append(tally.layers[trace.address].add(trace, own, tally.model))

    subject.each(batch, see)
    for stack, tally in tallies.items():
        tally.model.add_frequency(seen[stack], whose[stack])


def _unnamed(name: str, trace: Trace, tokens: int) -> ModelError:
    given = f"{str(trace.address).capitalize()} of {name} sees {trace.key_real.shape[1]} positions."
    known = f"The texts have {tokens} tokens: which of them stands where is not known."
    return ModelError(given, known, "Choose a model whose layers see the tokens of its texts, one a position.")


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
            rows += [] if p.w_v is None else _expansion(p)
            continue
        without = without or p
        said.append(f"{p.address}: {p.origins['o'].words if 'o' in p.origins else 'no output projection was found'}")
    if not heads and without is not None:
        output_projection(without)
    if not heads:
        given = f"{subject.name} has no attention layer whose norms can be computed."
        raise ModelError(given, subject.shape.words(), "Choose another model.")
    return tuple(f"Left out, {words}." for words in said), rows, heads


def _missing(tally: StackTally) -> list[str]:
    """Which categories no token of the texts is in."""
    tokens = sum(layer.tokens.rows.sum(0) for layer in tally.layers.values())
    return [said for name, said in MISSING.items() if not np.asarray(tokens)[CATEGORIES.index(name)]]


def _noted(around: Mapping[Address, str]) -> list[str]:
    """A note for each sentence about layers, which names them."""
    said = []
    for words in dict.fromkeys(around.values()):
        where = [str(address) for address, own in around.items() if own == words]
        shown = ", ".join(where) if len(where) <= 4 else f"{', '.join(where[:3])} and {len(where) - 3} more"
        said.append(words.format(where=shown))
    return said


def _elsewhere(tallies: Mapping[str, StackTally]) -> dict[Address, str]:
    """The layers whose values were made of something else than the block's input."""
    layers = [pair for tally in tallies.values() for pair in tally.layers.items()]
    return {address: OTHER_INPUT for address, layer in layers if np.isnan(np.asarray(layer.x.rows)).any()}


def _expansion(p: Projections) -> list[NewRow]:
    """Rows of one layer's expansion rate, which needs no text."""
    own: NewRow = {"stack": p.address.stack, "layer": p.address.layer, "measure": "expansion_rate"}
    found = expansion_rate(p)
    return [
        own | {"value": found.layer},
        *(own | {"head": h + 1, "value": float(v)} for h, v in enumerate(found.heads)),
    ]


def _facts(subject: Subject, texts: Texts, counted: Counted, stack: str, settings: NormsSettings) -> NormsFacts:
    return NormsFacts(
        subject.name,
        subject.fingerprint,
        subject.objective,
        subject.shape.words(),
        texts.name,
        texts.fingerprint,
        counted.texts,
        counted.tokens,
        stack,
        settings.block,
        settings.seed,
        settings.batch,
    )
