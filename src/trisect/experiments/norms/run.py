"""Norms of a given model over texts: read, tallied and forgotten batch by batch, then rows, verdicts and a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from trisect.claims import claims_hash, judge_sampled
from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.files import write_json
from trisect.core.subject import Batch, Subject, Texts
from trisect.core.tables import frame, write_table
from trisect.core.trace import Reading
from trisect.experiments.norms.rows import Resampled, StackTally, judged, stack_rows
from trisect.lab.live import bar
from trisect.lab.versions import versions
from trisect.measure.block import KINDS, expansion_rate
from trisect.measure.categories import CATEGORIES, find_categories
from trisect.measure.norms import output_projection
from trisect.measure.tally import GROUPS, Layer, Whose, frequency_ranks
from trisect.papers.norms import SOURCE
from trisect.stats.sums import Estimate

Told = Callable[[int, int], None]
MISSING = {
    "cls": "No special token opens a text here: there is no category [CLS].",
    "sep": "No special token stands inside or after a text here: there is no category [SEP].",
    "punctuation": "No token is a period or a comma: that category is absent.",
}


@dataclass(frozen=True, eq=False)
class NormsResult:
    """What was found: the tables measures and claims, the page, and a few sentences for a terminal."""

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    report: Path
    notes: tuple[str, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Counted:
    """What a first look at the texts gives: how many, how many tokens, and the frequency rank of every token id."""

    texts: int
    tokens: int
    ranks: torch.Tensor | None
    notes: tuple[str, ...]


def run_norms(
    subject: Subject,
    texts: Texts,
    out: Path,
    block: str = "attention",
    batch: int = 8,
    seed: int = 0,
    quiet: bool = False,
) -> NormsResult:
    """Norm-based beside weight-based analysis (science C1 to C4), written into `out`: tables, figures, page.

    Texts are gone through twice: once for the frequency of their tokens, without the model, then through the model.
    Memory does not grow with their number. `block` says what mixing is of, and whose norm is shown beside that of
    attention, which the claims are about: 'residual' (x added) or 'full' (and the layer norm). Intervals and claims
    resample texts. Raises ModelError where no layer has a plain output projection, or where the block around one is not
    known; CorpusError without texts.
    """
    if block not in KINDS:
        raise SpecError(f"The block '{block}' is not known.", f"There are {', '.join(KINDS)}.", "Use one of them.")
    layers = {p.address: p for p in subject.projections() if p.address in subject.shape.heads}
    left_out = _left_out(subject, layers.values())
    counted = _count(subject, texts, batch)
    heads = {a: len(p.w_o) for a, p in layers.items() if p.w_o is not None}
    tallies = {
        stack: StackTally(stack, {a: Layer(h, block) for a, h in heads.items() if a.stack == stack})
        for stack in dict.fromkeys(address.stack for address in heads)
    }
    with bar("Reading texts", quiet) as told:
        for one in subject.batches(texts.texts(), batch):
            _read(subject, one, tallies, counted.ranks)
            told(one.rows[-1][0] + 1, counted.texts)
    drawn, statistics = Resampled(counted.texts, seed), {}
    rows = [
        row for i, tally in enumerate(tallies.values()) for row in stack_rows(tally, drawn, {} if i else statistics)
    ]
    rows += _expansion(layers.values())
    measures = frame("measures", [{"subject": subject.name} | row for row in rows])
    notes = tuple(dict.fromkeys((*texts.notes, *counted.notes, *left_out, *_missing(next(iter(tallies.values()))))))
    about = _about(subject, texts, counted, next(iter(tallies)), block, seed, batch, notes)
    return _write(out, measures, _judge(statistics, counted.texts, about), about)


def _judge(statistics: Mapping[str, Estimate], n: int, about: Mapping[str, Any]) -> pl.DataFrame:
    named = {
        "subject": about["subject"],
        "fingerprint": about["fingerprint"],
        "corpus": about["corpus"],
        "corpus_fingerprint": about["corpus_fingerprint"],
        "texts": about["texts"],
        "block": about["block"],
        "seed": about["seed"],
    }
    return judge_sampled(SOURCE, *judged(statistics), n, named, GROUPS)


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
    return Counted(last + 1, tokens, frequency_ranks(seen) if known else None, tuple(notes))


@torch.no_grad()
def _read(subject: Subject, batch: Batch, tallies: Mapping[str, StackTally], ranks: torch.Tensor | None) -> None:
    """One batch through the model and into the tallies."""
    reading = subject.trace(batch)
    group = torch.tensor([text % GROUPS for text, _ in batch.rows])
    for stack, tally in tallies.items():
        whose = _whose(reading, stack, group, ranks, subject.objective == "causal")
        traces = [t for t in reading.traces if t.stack == stack and t.address in tally.layers]
        seen = [tally.layers[trace.address].add(trace, whose, tally.model) for trace in traces]
        tally.model.add_frequency(seen, whose)


def _whose(reading: Reading, stack: str, group: torch.Tensor, ranks: torch.Tensor | None, causal: bool) -> Whose:
    keys = reading.target if reading.target is not None and stack == "dec" else reading.source
    rank = torch.full(keys.real.shape, torch.nan, dtype=torch.float64)
    if ranks is not None and keys.ids is not None and keys is reading.source:
        real = keys.real.cpu()
        rank[real] = ranks[keys.ids.cpu()[real]]
    return Whose(find_categories(keys, causal or stack == "dec"), rank, keys.special.cpu(), group)


def _left_out(subject: Subject, layers: Any) -> tuple[str, ...]:
    """Layers whose norms cannot be taken, in words; raises ModelError when that is all of them."""
    layers = list(layers)
    if not layers:
        given = f"{subject.name} has no attention layer whose norms can be taken."
        raise ModelError(given, subject.shape.words(), "Choose another model.")
    without = [p for p in layers if p.w_o is None]
    if without and len(without) == len(layers):
        output_projection(without[0])
    said = (
        f"{p.address}: {p.origins['o'].words if 'o' in p.origins else 'no output projection was found'}"
        for p in without
    )
    return tuple(f"Left out, {words}." for words in said)


def _missing(tally: StackTally) -> list[str]:
    """Which categories no token of the texts is in."""
    tokens = sum(layer.tokens.rows.sum(0) for layer in tally.layers.values())
    return [said for name, said in MISSING.items() if not np.asarray(tokens)[CATEGORIES.index(name)]]


def _expansion(layers: Any) -> list[dict[str, Any]]:
    """Rows of the expansion rate, which needs no text."""
    rows: list[dict[str, Any]] = []
    layers = [p for p in layers if p.w_o is not None and p.w_v is not None]
    for p in layers:
        own = {"stack": p.address.stack, "layer": p.address.layer, "measure": "expansion_rate"}
        found = expansion_rate(p)
        rows.append(own | {"value": found.layer})
        rows += [own | {"head": h + 1, "value": float(v)} for h, v in enumerate(found.heads)]
    return rows


def _about(
    subject: Subject,
    texts: Texts,
    counted: Counted,
    stack: str,
    block: str,
    seed: int,
    batch: int,
    notes: tuple[str, ...],
) -> dict[str, Any]:
    words = ["trisect", "norms", *subject.options, *texts.options, "--block", block, "--seed", str(seed)]
    return {
        "subject": subject.name,
        "fingerprint": subject.fingerprint,
        "objective": subject.objective,
        "shape": subject.shape.words(),
        "corpus": texts.name,
        "corpus_fingerprint": texts.fingerprint,
        "texts": counted.texts,
        "tokens": counted.tokens,
        "stack": stack,
        "block": block,
        "seed": seed,
        "batch": batch,
        "command": shlex.join(words),
        "claims_hash": claims_hash("text"),
        "notes": list(notes),
        "versions": versions("transformers"),
    }


def _write(out: Path, measures: pl.DataFrame, claims: pl.DataFrame, about: dict[str, Any]) -> NormsResult:
    from trisect.experiments.norms import page

    tables = {"measures": measures, "claims": claims}
    for name, table in tables.items():
        write_table(out / "tables", name, table)
    write_json(out / "norms.json", about)
    return NormsResult(out, tables, page.write(out, tables, about), tuple(about["notes"]), page.findings(tables))
