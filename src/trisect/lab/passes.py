"""Edited passes over texts: the loss of every text under each edit, erasers among them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError, SiteError, translate_temporary_errors
from trisect.core.finding import EQUIVALENCE_MARGIN, Json
from trisect.core.site import Site
from trisect.core.subject import (
    QKV,
    AnsweringSubject,
    Batch,
    EditedPasses,
    RowScores,
    Shape,
    SharingSubject,
    SiteTarget,
    StreamPoint,
    StreamSubject,
    Subject,
    Texts,
    WeightsByAddress,
    Writer,
    Writers,
)
from trisect.core.tables import NewRow
from trisect.core.trace import Address
from trisect.lab.word_labels import Articles, WordLabels, find_articles, fitting, ordinary
from trisect.measure.probes import Eraser, LabelMoments
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval
from trisect.stats.paired import compare
from trisect.stats.shares import ratios
from trisect.stats.significance import finite
from trisect.text.sources import LabelledTexts


class WholePasses:
    """Passes of a model that share no computation."""

    notes: tuple[str, ...] = ()

    def __init__(self, subject: Subject) -> None:
        self.subject, self.score = subject, subject.score

    def begin(self, batch: Batch, hold: WeightsByAddress | None = None) -> None:
        """Do nothing: every pass is a whole one."""

    def read(
        self, batch: Batch, listeners: Writers, places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """The subject's outputs."""
        return self.outputs(batch, listeners, places)

    def score_each(
        self,
        batch: Batch,
        writers: Sequence[Writer],
        address: Address,
        hold: WeightsByAddress | None = None,
        clean: RowScores | None = None,
    ) -> list[RowScores]:
        """Run a pass for each edit."""
        return [self.score(batch, {address: writer}, hold, clean) for writer in writers]

    def output_each(
        self, batch: Batch, writes: Sequence[Writers], places: Int[Tensor, "B ..."] | None = None
    ) -> list[Float[Tensor, "B T V"]]:
        """Run a pass for each edit."""
        return [self.outputs(batch, write, places) for write in writes]

    def stream_parts(
        self, batch: Batch, changes: Sequence[Mapping[StreamPoint, Float[Tensor, "B T D"]]], address: Address
    ) -> list[QKV]:
        """Run a pass for each edit."""
        assert isinstance(self.subject, StreamSubject), "whoever asks for its stream has looked"
        seen = list[QKV]()
        note = lambda parts: seen.append(QKV(*map(torch.clone, parts))) or parts  # noqa: E731
        for change in changes:
            streams = {point: lambda x, more=more: x + more.to(x) for point, more in change.items()}
            self.subject.stream_outputs(batch, streams, {address: note})
        return seen

    def outputs(
        self, batch: Batch, write: Writers | None = None, places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """The subject's outputs."""
        assert isinstance(self.subject, AnsweringSubject), "whoever asks for outputs has looked"
        return self.subject.outputs(batch, write, places=places)


def edited_passes(subject: Subject) -> EditedPasses:
    """Edited passes over the same batches, with shared computation where possible."""
    return subject.edited_passes() if isinstance(subject, SharingSubject) else WholePasses(subject)


class EditedPass(NamedTuple):
    """An edited pass: components of one layer (of several if a site is edited as a whole), with all or some heads.

    `address` is the first that is edited.
    """

    site: Site
    address: Address
    targets: tuple[SiteTarget, ...]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All edited addresses, in layer order."""
        return tuple(dict.fromkeys(target.address for target in self.targets))

    @property
    def routes(self) -> bool:
        """Whether it edits q or k, from which attention weights are computed."""
        return any(t.component in ("q", "k") for t in self.targets)

    def row(self, group: str) -> NewRow:
        """The columns of a table that name the edit; `group` has layers and heads if there are several."""
        heads, is_joined = self.site.heads, len(self.addresses) > 1
        single = heads is not None and len(heads) == 1
        layers, _, spelt = str(self.site).rpartition("@")[2].partition(".h")
        more = f", layers {layers}" * is_joined + ("" if heads is None or single else f", heads {spelt}")
        return {
            "stack": self.address.stack,
            "layer": None if is_joined else self.address.layer,
            "head": heads[0] if heads and single else None,
            "component": "+".join(self.site.components),
            "group": group + more,
        }


@dataclass
class Tally:
    """Per text: the number of predicted tokens, their summed loss, and each edit's addition to the sum."""

    texts: dict[int, Float[np.ndarray, " C"]] = field(default_factory=dict)

    def add(self, batch: Batch, clean: RowScores, edited: Sequence[RowScores]) -> None:
        """Add a batch; windows of one text are summed."""
        columns = torch.stack([clean.count, clean.total, *(s.total - clean.total for s in edited)], 1).double()
        for (text, _), row in zip(batch.rows, columns.cpu().numpy(), strict=True):
            self.texts[text] = self.texts[text] + row if text in self.texts else row

    @property
    def indices(self) -> tuple[int, ...]:
        """The texts with a predicted token, in order."""
        return tuple(text for text in sorted(self.texts) if self.texts[text][0] > 0)

    def table(self, name: str) -> Float[np.ndarray, "N C"]:
        """The texts in order, without those that have no predicted token; raises CorpusError if none is left."""
        sums = [self.texts[text] for text in self.indices]
        if not sums:
            reason = f"{len(self.texts)} were read, and in none is a token predicted from others."
            raise CorpusError(f"The texts {name!r} have no loss.", reason, "Give texts of more than one token.")
        return np.stack(sums)

    def articles(self, texts: Texts) -> Articles:
        """The article of each text with a predicted token."""
        return find_articles(texts, max(self.texts) + 1, self.indices)

    def note_omissions(self, table: Float[np.ndarray, "N C"]) -> tuple[str, ...]:
        """A note on the texts that are not in the table."""
        dropped = len(self.texts) - len(table)
        note = f"Texts without a token to predict were left out: {dropped} of {len(self.texts)}."
        return (note,) if dropped else ()


def compare_components(edits: Sequence[EditedPass], changes: Float[np.ndarray, "N C"]) -> Mapping[str, Json] | None:
    """What paired differences over texts (or articles) say of q, k and v (definitions E), as JSON-ready data; `changes` are each edit's.

    A text's number is its mean over the layers whose heads are edited together, where all of q, k and v are; None without such layers.
    """
    numbers: dict[str, dict[Address, int]] = {}
    for i, edit in enumerate(edits):
        if edit.site.heads is None and len(edit.site.components) == 1:
            numbers.setdefault(edit.site.components[0], {})[edit.address] = i
    by_component = {name: numbers[name] for name in ("q", "k", "v") if name in numbers}
    shared = set.intersection(*(set(heads) for heads in by_component.values())) if len(by_component) > 1 else set()
    if not shared:
        return None
    with np.errstate(invalid="ignore"):  # an edited loss may be infinite; such texts are left out
        values = {name: changes[:, sorted(heads[a] for a in shared)].mean(1) for name, heads in by_component.items()}
    return compare(values, EQUIVALENCE_MARGIN).data()


def what_was_read(
    subject: Subject, texts: Texts | LabelledTexts, table: Float[np.ndarray, "N C"]
) -> tuple[str, str, str, str, str, int, int]:
    """Values of ReadFacts, in order; `table` is a Tally's."""
    model = subject.name, subject.fingerprint, subject.objective
    return *model, texts.name, texts.fingerprint, len(table), int(table[:, 0].sum())


def plan_edits(shape: Shape, sites: Sequence[Site | str] | None, per: str) -> tuple[EditedPass, ...]:
    """The edits of the sites: one for each layer or head that a site names, or for the whole site; duplicates once.

    None stands for q, k and v of every layer. Raises SiteError where a site lies outside the model, and where the
    components of one have different heads.
    """
    edits: dict[str, EditedPass] = {}
    for site in (Site.parse(s) if isinstance(s, str) else s for s in (every_site(shape) if sites is None else sites)):
        targets = shape.resolve(site)
        if per == "site":
            layers = tuple(dict.fromkeys(t.address.layer for t in targets))
            place = Site(site.components, layers, site.heads, site.stack)
            edits.setdefault(str(place), EditedPass(place, targets[0].address, targets))
            continue
        for address in dict.fromkeys(t.address for t in targets):
            at_address = tuple(t for t in targets if t.address == address)
            for heads in [site.heads] if per == "layer" else _heads(shape, site, address):
                edited = tuple(t._replace(heads=heads) for t in at_address)
                place = Site(site.components, (address.layer,), heads, site.stack)
                edits.setdefault(str(place), EditedPass(place, address, edited))
    if not edits:
        raise SiteError("No site was given.", shape.describe(), "Give sites such as q@all k@all v@all.")
    return tuple(edits.values())


def every_site(shape: Shape) -> tuple[Site, ...]:
    """q, k and v of every layer of every stack."""
    stacks = ["" if stack == "plain" else stack for stack in shape.stacks]
    return tuple(Site((component,), None, stack=stack) for stack in stacks for component in ("q", "k", "v"))


def _heads(shape: Shape, site: Site, address: Address) -> list[tuple[int, ...]]:
    if site.heads is not None:
        return [(head,) for head in site.heads]
    sizes = shape.heads[address]
    counts = {c: sizes.query if c == "q" else sizes.key for c in site.components}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{c} has {n}" for c, n in counts.items())
        todo = "Give the components as sites of their own, or name heads that all of them have."
        raise SiteError(f"The site '{site}' joins components of different heads.", f"At {address} {shown}.", todo)
    return [(head,) for head in range(1, max(counts.values()) + 1)]


class _ErasedSite(NamedTuple):
    """An edit's site and a label column, with statistics of both, from which erasers are fitted."""

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
) -> list[_ErasedSite]:
    """Read train texts until enough positions are labelled, and fit every site's erasers."""
    moments: dict[tuple[int, str], LabelMoments] = {}
    by_address: dict[Address, list[int]] = {}
    for i, edit in enumerate(edits):
        by_address.setdefault(edit.address, []).append(i)

    def add_moments(batch: Batch, numbers: Sequence[int]) -> Writer:
        def write(parts: QKV) -> QKV:
            for i in numbers:
                x, edit, component = gather(edits[i], parts), edits[i], edits[i].targets[0].component
                fitting(batch, edit.address, component, x.shape[1])
                for label, classes in marker.classes.items():
                    y = marker.at(batch, edit.address, component, label).to(x.device)
                    if (i, label) not in moments:
                        moments[i, label] = LabelMoments(x.shape[2], len(classes), x.device, shrinkage=shrinkage)
                    moments[i, label].add(x[y >= 0], y[y >= 0])
            return parts

        return write

    for batch in marker.batches(texts.texts(), size):
        with torch.no_grad():
            marker.subject.score(batch, {address: add_moments(batch, here) for address, here in by_address.items()})
        done = min(labelled.count for labelled in moments.values())
        step(done)
        if done >= tokens:
            break
    sites = []
    for (i, label), labelled in moments.items():
        if labelled.count < 2:
            reason = f"Of the positions that are read {labelled.count} carry one."
            todo = "Use another column or a longer text."
            raise CorpusError(f"Too few labels '{label}' in {texts.name}.", reason, todo)
        leace = labelled.leace()
        key = np.random.default_rng([seed, *f"{edits[i].site}/{label}".encode()]).integers(2**62)
        draw = torch.Generator().manual_seed(int(key))
        randoms = (labelled.random(leace.rank, draw) for _ in range(draws))
        sites.append(_ErasedSite(edits[i], label, (leace, *randoms), labelled.count, labelled.linear_share()))
    return sites


def gather(edit: EditedPass, parts: QKV) -> Float[Tensor, "B T I"]:
    """The activations of a site of one layer: components and heads side by side, a row per position."""
    pieces = []
    for target in edit.targets:
        values: Tensor = getattr(parts, target.component)
        chosen = values if target.heads is None else values[:, [h - 1 for h in target.heads]]
        pieces.append(chosen.transpose(1, 2).flatten(2))
    return torch.cat(pieces, 2)


def scatter(edit: EditedPass, parts: QKV, x: Float[Tensor, "B T I"]) -> QKV:
    """The parts with the site's activations replaced by x, in the layout of `gather`."""
    new, start = parts._asdict(), 0
    for target in edit.targets:
        values: Tensor = new[target.component].clone()
        heads = list(range(values.shape[1])) if target.heads is None else [h - 1 for h in target.heads]
        width = len(heads) * values.shape[3]
        piece = x[..., start : start + width].unflatten(2, (len(heads), -1)).transpose(1, 2)
        values[:, heads] = piece.to(values)
        new[target.component], start = values, start + width
    return QKV(**new)


def make_writer(batch: Batch, edit: EditedPass, eraser: Eraser) -> Writer:
    """A writer that erases at a site, except at padding and special tokens, which stay bit for bit."""

    def write(parts: QKV) -> QKV:
        x = gather(edit, parts)
        side = fitting(batch, edit.address, edit.targets[0].component, x.shape[1])
        return scatter(edit, parts, torch.where(ordinary(side).to(x.device)[..., None], eraser(x), x))

    return write


@torch.no_grad()
def passes(sharing: EditedPasses, batch: Batch, places: Sequence[_ErasedSite]) -> tuple[RowScores, list[RowScores]]:
    """The unedited pass over one batch, and one for each eraser of each site."""
    clean = sharing.score(batch)
    edits = [(place.edit, eraser) for place in places for eraser in place.erasers]
    return clean, [sharing.score(batch, {e.address: make_writer(batch, e, source)}, None, clean) for e, source in edits]


def compare_by_label(places: Sequence[_ErasedSite], table: Float[np.ndarray, "N C"], draws: int) -> dict[str, Json]:
    """For each label, paired differences over texts of the rises at q, k and v beyond random subspaces."""
    edited = (table[:, 2:] / table[:, :1]).reshape(len(table), len(places), 1 + draws)
    with np.errstate(invalid="ignore"):
        beyond, compared_by_label = edited[:, :, 0] - edited[:, :, 1:].mean(2), {}
    for label in dict.fromkeys(place.label for place in places):
        of_label = [i for i, place in enumerate(places) if place.label == label]
        compared = compare_components([places[i].edit for i in of_label], beyond[:, of_label])
        if compared is not None:
            compared_by_label[label] = dict(compared)
    return compared_by_label


def erasure_rows(
    subject: Subject, table: Float[np.ndarray, "N C"], places: Sequence[_ErasedSite], draws: int, seed: int
) -> Iterator[NewRow]:
    """Rows of the unedited loss, and for each site of the rise, its controls', and the rise beyond their mean.

    `table` is a Tally's, or its sums by article.
    """
    sums = _with_excess(table, places, draws)
    values, ends = (
        ratios(sums, table[:, 0]),
        percentile_interval(bootstrap_ratios(sums, table[:, 0], seed), len(table)),
    )
    unit = "share" if subject.objective == "output" else "nats"

    def row(column: int, measure: str, interval: bool = True, **more: Any) -> NewRow:
        named = {"value": values[column]} | ({"low": ends.low[column], "high": ends.high[column]} if interval else {})
        finite_values = {name: finite(v) for name, v in named.items()}
        return {"subject": subject.name, "measure": measure, "n": len(table)} | finite_values | more

    if unit == "nats":
        yield row(0, "loss_nats")
    for i, place in enumerate(places):
        where: dict[str, Any] = place.edit.row(place.label)
        first = 1 + i * (1 + draws)
        yield row(first, f"erase_rise_{unit}", **where)
        yield row(1 + len(places) * (1 + draws) + i, f"erase_excess_{unit}", **where)
        for n in range(1, draws + 1):
            yield row(first + n, f"erase_random_rise_{unit}", False, at=float(n), **where)
        shared = {"subject": subject.name, "n": place.fitted} | where
        yield shared | {"measure": "erase_rank", "value": float(place.erasers[0].rank)}
        yield shared | {"measure": "erase_explained", "value": place.explained}


def _with_excess(
    table: Float[np.ndarray, "N C"], places: Sequence[_ErasedSite], draws: int
) -> Float[np.ndarray, "N D"]:
    """The sums of a table, followed by each eraser's addition beyond the mean of its random ones."""
    edited = table[:, 2:].reshape(len(table), len(places), 1 + draws)
    return np.concatenate([table[:, 1:], edited[:, :, 0] - edited[:, :, 1:].mean(2)], 1)


def to_disk(tensor: Tensor) -> Tensor:
    """The same tensor on the CPU, memory-mapped from an anonymous temporary file.

    Writing to it changes neither the file nor another copy. Raises StudyError where the folder of temporary files cannot hold it.
    """
    plain = tensor.detach().cpu().contiguous()
    if not plain.numel():
        return plain
    content = plain.reshape(-1).view(torch.uint8).numpy()
    with translate_temporary_errors("What is held over all layers"), tempfile.TemporaryFile() as file:
        file.write(content.data)
        file.flush()
        mapped = np.memmap(file, np.uint8, "c", shape=content.shape)
    return torch.from_numpy(mapped).view(plain.dtype).view(plain.shape)


def weights_to_hold(subject: Subject, batch: Batch) -> dict[Address, Float[Tensor, "B H T S"]]:
    """The attention weights of every layer in the unedited pass, to hold in edited ones."""
    weights: dict[Address, Tensor] = {}
    subject.each(batch, lambda trace: weights.__setitem__(trace.address, to_disk(trace.weights)))
    return weights
