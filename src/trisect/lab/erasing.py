"""Fit LEACE erasers at a model's q, k or v, apply them at words, and measure what the loss rises by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.errors import CorpusError
from trisect.core.finding import Json
from trisect.core.subject import Batch, EditedPasses, Parts, RowScores, Subject, Writer
from trisect.core.tables import NewRow
from trisect.core.trace import Address
from trisect.lab.passes import EditedPass, compare_components
from trisect.lab.word_labels import WordLabels, fitting, ordinary
from trisect.measure.erasure import Eraser, LabelMoments
from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.ratios import ratios
from trisect.stats.tested import finite
from trisect.text.labelled import LabelledTexts


class ErasedSite(NamedTuple):
    """An edit's site and a label column: the statistics of both, and once these are read the erasers."""

    edit: EditedPass
    label: str
    erasers: tuple[Eraser, ...] = ()  # LEACE, then the random ones
    fitted: int = 0
    explained: float = 0.0


def fit_erasers(
    marker: WordLabels,
    texts: LabelledTexts,
    edits: Sequence[EditedPass],
    tokens: int,
    size: int,
    draws: int,
    seed: int,
    step: Callable[[int], object],
    shrinkage: bool = True,
) -> list[ErasedSite]:
    """Read the train texts until so many positions are labelled, and make every place's erasers."""
    moments: dict[tuple[int, str], LabelMoments] = {}
    for batch in marker.batches(texts.texts(), size):
        listening: dict[Address, list[int]] = {}
        for i, edit in enumerate(edits):
            listening.setdefault(edit.address, []).append(i)

        def listener(here: Sequence[int], batch: Batch = batch) -> Writer:
            def write(parts: Parts) -> Parts:
                for i in here:
                    _count(marker, batch, edits[i], i, parts, moments, shrinkage)
                return parts

            return write

        with torch.no_grad():
            marker.subject.score(batch, {address: listener(here) for address, here in listening.items()})
        done = min(found.count for found in moments.values())
        step(done)
        if done >= tokens:
            break
    return [_place(texts, edits[i], label, found, draws, seed) for (i, label), found in moments.items()]


def _count(
    marker: WordLabels,
    batch: Batch,
    edit: EditedPass,
    i: int,
    parts: Parts,
    moments: dict[tuple[int, str], LabelMoments],
    shrinkage: bool,
) -> None:
    """Add one batch to the statistics of an edit's site, for every label column."""
    x = gather(edit, parts)
    component = edit.targets[0].component
    fitting(batch, edit.address, component, x.shape[1])
    for label, classes in marker.classes.items():
        y = marker.at(batch, edit.address, component, label).to(x.device)
        if (i, label) not in moments:
            moments[i, label] = LabelMoments(x.shape[2], len(classes), x.device, shrinkage=shrinkage)
        moments[i, label].add(x[y >= 0], y[y >= 0])


def _place(
    texts: LabelledTexts, edit: EditedPass, label: str, moments: LabelMoments, draws: int, seed: int
) -> ErasedSite:
    if moments.count < 2:
        known = f"Of the positions that are read {moments.count} carry one."
        raise CorpusError(f"Too few labels '{label}' in {texts.name}.", known, "Use another column or a longer text.")
    leace = moments.leace()
    key = np.random.default_rng([seed, *f"{edit.site}/{label}".encode()]).integers(2**62)
    draw = torch.Generator().manual_seed(int(key))
    randoms = (moments.random(leace.rank, draw) for _ in range(draws))
    return ErasedSite(edit, label, (leace, *randoms), moments.count, moments.explained())


def gather(edit: EditedPass, parts: Parts) -> Float[Tensor, "B T I"]:
    """What a site of one layer holds: its components and heads side by side, a row a position."""
    found = []
    for target in edit.targets:
        there: Tensor = getattr(parts, target.component)
        chosen = there if target.heads is None else there[:, [h - 1 for h in target.heads]]
        found.append(chosen.transpose(1, 2).flatten(2))
    return torch.cat(found, 2)


def scatter(edit: EditedPass, parts: Parts, x: Float[Tensor, "B T I"]) -> Parts:
    """The parts with the site's own replaced by x, which is laid out as `gather` gives it."""
    new, start = parts._asdict(), 0
    for target in edit.targets:
        there: Tensor = new[target.component].clone()
        heads = list(range(there.shape[1])) if target.heads is None else [h - 1 for h in target.heads]
        width = len(heads) * there.shape[3]
        own = x[..., start : start + width].unflatten(2, (len(heads), -1)).transpose(1, 2)
        there[:, heads] = own.to(there)
        new[target.component], start = there, start + width
    return Parts(**new)


def make_writer(batch: Batch, edit: EditedPass, eraser: Eraser) -> Writer:
    """What erases at a site wherever neither padding nor a special token stands; the rest stays bit for bit."""

    def write(parts: Parts) -> Parts:
        x = gather(edit, parts)
        side = fitting(batch, edit.address, edit.targets[0].component, x.shape[1])
        return scatter(edit, parts, torch.where(ordinary(side).to(x.device)[..., None], eraser(x), x))

    return write


@torch.no_grad()
def passes(sharing: EditedPasses, batch: Batch, places: Sequence[ErasedSite]) -> tuple[RowScores, list[RowScores]]:
    """The unedited pass over one batch, and one for each eraser of each place."""
    clean = sharing.score(batch)
    edits = [(place.edit, eraser) for place in places for eraser in place.erasers]
    return clean, [sharing.score(batch, {e.address: make_writer(batch, e, by)}, None, clean) for e, by in edits]


def compare_by_label(places: Sequence[ErasedSite], table: Float[np.ndarray, "N C"], draws: int) -> dict[str, Json]:
    """For each label what paired differences over texts say of the rises at q, k and v beyond random subspaces."""
    edited = (table[:, 2:] / table[:, :1]).reshape(len(table), len(places), 1 + draws)
    with np.errstate(invalid="ignore"):
        beyond, found = edited[:, :, 0] - edited[:, :, 1:].mean(2), {}
    for label in dict.fromkeys(place.label for place in places):
        mine = [i for i, place in enumerate(places) if place.label == label]
        compared = compare_components([places[i].edit for i in mine], beyond[:, mine])
        if compared is not None:
            found[label] = dict(compared)
    return found


def erasure_rows(
    subject: Subject, table: Float[np.ndarray, "N C"], places: Sequence[ErasedSite], draws: int, seed: int
) -> Iterator[NewRow]:
    """The unedited loss, and of each place its rise, those of its controls, and the rise beyond their mean.

    `table` is a Tally's, or its sums by article.
    """
    sums = _with_excess(table, places, draws)
    values, ends = (
        ratios(sums, table[:, 0]),
        percentile_interval(drawn_ratios(sums, table[:, 0], seed), len(table)),
    )
    unit = "share" if subject.objective == "output" else "nats"

    def row(column: int, measure: str, interval: bool = True, **more: Any) -> NewRow:
        named = {"value": values[column]} | ({"low": ends.low[column], "high": ends.high[column]} if interval else {})
        known = {name: finite(v) for name, v in named.items()}
        return {"subject": subject.name, "measure": measure, "n": len(table)} | known | more

    if unit == "nats":
        yield row(0, "loss_nats")
    for i, place in enumerate(places):
        where = _where(place)
        first = 1 + i * (1 + draws)
        yield row(first, f"erase_rise_{unit}", **where)
        yield row(1 + len(places) * (1 + draws) + i, f"erase_excess_{unit}", **where)
        for n in range(1, draws + 1):
            yield row(first + n, f"erase_random_rise_{unit}", False, at=float(n), **where)
        shared = {"subject": subject.name, "n": place.fitted} | where
        yield shared | {"measure": "erase_rank", "value": float(place.erasers[0].rank)}
        yield shared | {"measure": "erase_explained", "value": place.explained}


def erasure_replicates(
    subject: Subject, table: Float[np.ndarray, "N C"], places: Sequence[ErasedSite], draws: int, seed: int
) -> Iterator[tuple[NewRow, Float[np.ndarray, " R"]]]:
    """Each place's rise and its rise beyond random subspaces in draws of the rows of `table`, by the columns that name it."""
    sums = _with_excess(table, places, draws)
    first = [1 + i * (1 + draws) for i in range(len(places))]
    columns = [*first, *range(1 + len(places) * (1 + draws), sums.shape[1])]
    drawn = drawn_ratios(sums[:, columns], table[:, 0], seed)
    names = [f"erase_{kind}_{'share' if subject.objective == 'output' else 'nats'}" for kind in ("rise", "excess")]
    for number, place in enumerate(places):
        for kind, name in enumerate(names):
            yield _where(place) | {"measure": name}, drawn[:, kind * len(places) + number]


def _with_excess(table: Float[np.ndarray, "N C"], places: Sequence[ErasedSite], draws: int) -> Float[np.ndarray, "N D"]:
    """The sums of a table, and behind them what each place's eraser adds beyond the mean of its random ones."""
    edited = table[:, 2:].reshape(len(table), len(places), 1 + draws)
    return np.concatenate([table[:, 1:], edited[:, :, 0] - edited[:, :, 1:].mean(2)], 1)


def _where(place: ErasedSite) -> dict[str, Any]:
    """The columns that say what was erased where."""
    heads = place.edit.site.heads
    single = heads is not None and len(heads) == 1
    some = "" if heads is None or single else f", heads {str(place.edit.site).rpartition('.h')[2]}"
    return {
        "stack": place.edit.address.stack,
        "layer": place.edit.address.layer,
        "head": heads[0] if heads and single else None,
        "component": "+".join(place.edit.site.components),
        "group": f"{place.label}{some}",
    }
