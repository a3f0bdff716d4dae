"""Another text's q, k or v in one layer, with attention's weights free and held: by which of them its content arrives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.claims.heads import ResampledHeads
from trisect.core.files import digest
from trisect.core.subject import Batch, EditedPasses, Parts, RowScores, Subject, Writer
from trisect.core.tables import NewRow
from trisect.core.trace import Address
from trisect.experiments.profile.numbers import COMPONENTS, EXCHANGED, HELD, KINDS
from trisect.lab.mapped import held_weights
from trisect.lab.passes import edited_passes
from trisect.lab.word_labels import WordTexts
from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.ratios import ratios
from trisect.stats.tested import value_row
from trisect.text.labelled import Labelled

TEXTS = 48  # that are given another's parts; a claim that resamples them asks for 30
LOOKED = 600  # texts among which as many of one length are looked for


class Exchange(NamedTuple):
    """Changes of the loss, without their sign, or of the output: N texts, L layers, weights free and held, and q, k, v."""

    addresses: tuple[Address, ...]
    changes: Float[np.ndarray, "N L 2 3"]
    notes: tuple[str, ...] = ()
    mark: str = ""  # of the texts


def exchange(
    subject: Subject, texts: Callable[[], Iterator[Labelled]], layers: Sequence[Address], size: int, seed: int
) -> Exchange | None:
    """Put q, k or v of another text of as many tokens in each layer, one at a time; null where no two are as long.

    The other text is one of the same batch. With the weights held, all attention weights are those of the text's own: then
    queries and keys have nothing to act by, and what still changes came by the values (science F-2).
    """
    found, passes, read = list[Float[np.ndarray, "N L 2 3"]](), edited_passes(subject), list[str]()
    chosen = _alike(subject, list(islice(texts(), LOOKED)), size, np.random.default_rng([seed, 7]))
    with torch.no_grad():
        for batch in WordTexts(subject).batches(iter(chosen), size):
            donors = _donors(batch, np.random.default_rng([seed, batch.rows[0][0], 6]))
            if (given := donors != torch.arange(len(donors))).any():
                read += [chosen[text].text for (text, _), on in zip(batch.rows, given.tolist(), strict=True) if on]
                found.append(_changes(subject, passes, batch, layers, donors)[given.numpy()])
            if sum(map(len, found)) >= TEXTS:
                break
    mark = digest(json.dumps(read[:TEXTS]), 8)
    return Exchange(tuple(layers), np.concatenate(found)[:TEXTS], passes.notes, mark) if found else None


def _alike(subject: Subject, given: Sequence[Labelled], size: int, draw: np.random.Generator) -> list[Labelled]:
    """Texts of which another has as many tokens, those of one length together; about TEXTS, from lengths that are drawn."""
    of: dict[int, list[int]] = {}
    for batch in WordTexts(subject).batches(iter(given), size, scored=False):
        for (text, start), length in zip(batch.rows, batch.source.real.sum(1).tolist(), strict=True):
            if not start:
                of.setdefault(length, []).append(text)
    lengths = sorted(length for length, alike in of.items() if len(alike) > 1)
    kept: list[list[int]] = []
    for place in draw.permutation(len(lengths)):
        if sum(map(len, kept)) < TEXTS:
            kept.append(of[lengths[place]][:size])
    return [given[text] for alike in kept for text in alike]


def _donors(batch: Batch, draw: np.random.Generator) -> Int[Tensor, " B"]:
    """For each row the place of another of as many tokens, of another text; its own where there is none."""
    lengths, donors = batch.source.real.sum(1).tolist(), list(range(len(batch.rows)))
    for length in set(lengths):
        alike = [int(i) for i in draw.permutation([i for i, own in enumerate(lengths) if own == length])]
        for one, other in zip(alike, [*alike[1:], alike[0]], strict=True):
            if batch.rows[one][0] != batch.rows[other][0]:
                donors[one] = other
    return torch.tensor(donors)


def _changes(
    subject: Subject, passes: EditedPasses, batch: Batch, layers: Sequence[Address], donors: Int[Tensor, " B"]
) -> Float[np.ndarray, "B L 2 3"]:
    """Passes begin at the layer that is edited, first with all weights free, then with all of them held."""
    clean = passes.score(batch)
    changed = np.zeros((len(donors), len(layers), len(KINDS), len(COMPONENTS)))
    for j, kind in enumerate(KINDS):
        hold = held_weights(subject, batch) if kind == HELD else None
        if hold is not None:
            passes.begin(batch, hold)
        for i, address in enumerate(layers):
            for c, component in enumerate(COMPONENTS):
                scores = passes.score(batch, {address: _swap(component, donors)}, hold, clean)
                changed[:, i, j, c] = _change(scores, clean, subject.objective)
    return changed


def _swap(component: str, donors: Int[Tensor, " B"]) -> Writer:
    """A writer that gives every row the component of its donor."""

    def write(parts: Parts) -> Parts:
        there: Tensor = getattr(parts, component)
        return parts._replace(**{component: there[donors.to(there.device)]})

    return write


def _change(scores: RowScores, clean: RowScores, objective: str) -> Float[np.ndarray, " B"]:
    """How far each row moved, per token: its loss, in nats without the sign, or its output, as a share."""
    moved = scores.total if objective == "output" else (scores.total - clean.total).abs()
    return (moved / scores.count.clamp_min(1)).double().cpu().numpy()


def exchange_rows(found: Exchange, seed: int) -> Iterator[NewRow]:
    """Mean changes with 95 % intervals over texts: of every layer, and without a layer the mean over layers."""
    every = np.concatenate([found.changes, found.changes.mean(1, keepdims=True)], 1)
    n = len(every)
    flat = every.reshape(n, -1)
    ends = percentile_interval(drawn_ratios(flat, np.ones(n), seed), n)
    shape = every.shape[1:]
    low, high, mean = (one.reshape(shape) for one in (ends.low, ends.high, flat.mean(0)))
    for i, address in enumerate([*found.addresses, None]):
        where: NewRow = {"stack": found.addresses[0].stack if address is None else address.stack}
        where |= {} if address is None else {"layer": address.layer}
        for j, kind in enumerate(KINDS):
            for c, component in enumerate(COMPONENTS):
                own = value_row(mean[i, j, c], ends._replace(low=low[i, j, c], high=high[i, j, c]), n)
                yield where | {"measure": EXCHANGED, "group": kind, "component": component} | own


def held_share(found: Exchange, seed: int) -> ResampledHeads | None:
    """With the weights held, the share of all change that goes by v, texts being resampled; null where nothing changed."""
    held = found.changes[:, :, 1].sum(1)
    total = held.sum(1)
    if not total.sum() > 0:
        return None
    draws = drawn_ratios(held[:, 2:], total, seed)[:, 0]
    return ResampledHeads(float(ratios(held[:, 2:], total)[0]), draws, len(held), "text")
