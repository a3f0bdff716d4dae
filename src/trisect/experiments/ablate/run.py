"""Ablation of a given model: how much its own loss changes when q, k or v of a site is replaced, text by text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.files import digest
from trisect.core.finding import Json
from trisect.core.subject import Batch, EditedPasses, RowScores, Subject, Texts
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.ablate.replacements import TextsRead, make_replacement
from trisect.experiments.ablate.settings import AblateFacts, AblateSettings
from trisect.lab.experiment import ROW, Bench, Measured, Replicates
from trisect.lab.mapped import held_weights
from trisect.lab.passes import EditedPass, Tally, compare_components, edited_passes, plan_edits, what_was_read
from trisect.measure.ablation import put
from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.ratios import ratios
from trisect.stats.tested import finite

ZEROS = (
    "Queries or keys of 0 make every product of theirs 0, so that both leave a head the same, even pattern: their numbers are equal "
    "unless the model adds something to the products. --how mean or resample distinguishes them."
)


def measure(settings: AblateSettings, bench: Bench) -> Measured[AblateFacts]:
    """Replace what each site holds, one pass each.

    A site's components are replaced together in one layer at a time, or in one head at a time. With `hold` every layer's
    attention weights stay those of the unedited pass, in the edited layer only where v alone is edited: this separates what
    is carried from where it is taken. Values are changes of the subject's own loss in nats per predicted token, or of its
    output where it has no loss; intervals are 95 % of a bootstrap over articles (texts where none is
    marked). Raises SiteError, CorpusError, ModelError.
    """
    subject, texts, how, batch = bench.subject, bench.texts, settings.how, settings.batch
    edits = plan_edits(subject.shape, settings.sites, settings.per)
    addresses, read = tuple(dict.fromkeys(edit.address for edit in edits)), TextsRead.of(texts, settings.seed)
    with bench.progress(f"{how} at {len(edits)} places") as step:
        rounds = read.count * (2 if how == "mean" else 1)
        replace = make_replacement(subject, read, addresses, how, batch, settings.seed, lambda n: step(n, rounds))
        tally, notes, passes = Tally(), dict.fromkeys(texts.notes), edited_passes(subject)
        for one in subject.batches(read.stream(), batch, scored=True):
            notes |= dict.fromkeys(one.notes)
            tally.add(one, *_passes(subject, passes, one, edits, replace(one), settings.hold))
            step(rounds - read.count + one.rows[-1][0] + 1, rounds)
    table, articles = tally.table(texts.name), tally.articles(texts)
    notes |= dict.fromkeys((*articles.notes, *tally.left_out(table), *_alike(edits, how), *passes.notes))
    units = articles.sums(table, tally.kept)
    replicates = drawn_ratios(units[:, 1:], units[:, 0], settings.seed)
    rows = _rows(subject, units, edits, settings, replicates)
    measures = frame("measures", rows)
    if not measures["value"].is_not_null().all():
        notes["Where no number stands, the edited model's loss was not finite."] = None
    compared = compare_components(edits, units[:, 2:] / units[:, :1])
    columns = replicates[:, -len(rows) :].T  # without a loss of its own the unedited pass is no row
    which = digest(json.dumps(tally.kept).encode(), 8)
    unit = "text" if articles.numbers is None else "article"
    drawn = {
        tuple(r.get(n) for n in ROW): Replicates(c, len(units), which, unit) for r, c in zip(rows, columns, strict=True)
    }
    facts = _facts(subject, texts, table, settings, compared, None if articles.numbers is None else len(units))
    return Measured({"measures": measures}, facts, tuple(notes), replicates=drawn)


def _alike(edits: Sequence[EditedPass], how: str) -> tuple[str, ...]:
    """Why an ablation by zero gives queries and keys the same number, where both are ablated."""
    alone = {e.site.components for e in edits}
    return (ZEROS,) if how == "zero" and {("q",), ("k",)} <= alone else ()


def _passes(
    subject: Subject,
    passes: EditedPasses,
    batch: Batch,
    edits: Sequence[EditedPass],
    sources: Mapping[Address, Any],
    hold: bool,
) -> tuple[RowScores, list[RowScores]]:
    """The unedited pass over one batch, and one for each edit."""
    with torch.no_grad():
        clean = passes.score(batch)
        kept = held_weights(subject, batch) if hold else None
        if kept is not None:
            passes.begin(batch, kept)
        edited: list[RowScores] = []
        for (address, _), some in groupby(edits, lambda e: (e.address, e.routes)):
            own = list(some)
            writers = [put(e.targets, sources[address]) for e in own]
            edited += passes.several(batch, writers, address, _held(kept, own[0]), clean)
    return clean, edited


def _held(kept: Mapping[Address, Tensor] | None, edit: EditedPass) -> dict[Address, Tensor] | None:
    """The weights that an edit leaves alone: all, less those of its own layer where it is them that it edits."""
    if kept is None:
        return None
    return {address: weights for address, weights in kept.items() if not (edit.routes and address == edit.address)}


def _rows(
    subject: Subject,
    table: Float[np.ndarray, "N C"],
    edits: Sequence[EditedPass],
    settings: AblateSettings,
    replicates: Float[np.ndarray, "R C"],
) -> list[NewRow]:
    """The unedited loss, where there is one, and every edit's change, each with its interval."""
    counts, sums = table[:, 0], table[:, 1:]
    values = ratios(sums, counts)
    ends = percentile_interval(replicates, len(table))
    own = subject.objective != "output"
    rows: list[NewRow] = []
    for i, edit in enumerate([None, *edits]):
        if edit is None and not own:
            continue
        row: NewRow = {"subject": subject.name, "n": len(table), "measure": "loss_nats"}
        if edit is not None:
            single = edit.site.heads is not None and len(edit.site.heads) == 1
            some = "" if edit.site.heads is None or single else f", heads {str(edit.site).rpartition('.h')[2]}"
            row |= {
                "stack": edit.address.stack,
                "layer": edit.address.layer,
                "head": edit.site.heads[0] if single and edit.site.heads else None,
                "component": "+".join(edit.site.components),
                "measure": "loss_change_nats" if own else "output_change",
                "group": f"{settings.how}{some}{', pattern held' if settings.hold else ''}",
            }
        found = (values[i], ends.low[i], ends.high[i])
        named = zip(("value", "low", "high"), found, strict=True)
        rows.append(row | {name: finite(v) for name, v in named})
    return rows


def _facts(
    subject: Subject,
    texts: Texts,
    table: Float[np.ndarray, "N C"],
    settings: AblateSettings,
    compared: Mapping[str, Json] | None,
    articles: int | None,
) -> AblateFacts:
    return AblateFacts(
        *what_was_read(subject, texts, table),
        None if settings.sites is None else tuple(map(str, settings.sites)),
        settings.how,
        settings.per,
        settings.hold,
        settings.seed,
        settings.batch,
        compared,
        articles=articles,
    )
