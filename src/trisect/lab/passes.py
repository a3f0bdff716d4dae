"""Edited passes over texts: which sites of which layers are edited, and the loss of every text under each edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from trisect.core.errors import CorpusError, SiteError
from trisect.core.finding import ALIKE, Json
from trisect.core.site import Site
from trisect.core.subject import (
    AnsweringSubject,
    Batch,
    EditedPasses,
    RowScores,
    Shape,
    SharingSubject,
    SiteTarget,
    Subject,
    Texts,
    Writer,
)
from trisect.core.trace import Address
from trisect.lab.articles import Articles, find_articles
from trisect.stats.compare import compare
from trisect.text.labelled import LabelledTexts


class WholePasses(NamedTuple):
    """Passes of a model that shares nothing between them."""

    subject: Subject
    notes: tuple[str, ...] = ()

    def begin(self, batch: Batch, hold: Mapping[Address, Float[torch.Tensor, "B H T S"]] | None = None) -> None:
        """Nothing: every pass is a whole one."""

    def score(
        self,
        batch: Batch,
        write: Mapping[Address, Writer] | None = None,
        hold: Mapping[Address, Float[torch.Tensor, "B H T S"]] | None = None,
        clean: RowScores | None = None,
    ) -> RowScores:
        """The subject's own."""
        return self.subject.score(batch, write, hold, clean)

    def several(
        self,
        batch: Batch,
        writers: Sequence[Writer],
        address: Address,
        hold: Mapping[Address, Float[torch.Tensor, "B H T S"]] | None = None,
        clean: RowScores | None = None,
    ) -> list[RowScores]:
        """One pass for each."""
        return [self.score(batch, {address: writer}, hold, clean) for writer in writers]

    def outputs(
        self, batch: Batch, write: Mapping[Address, Writer] | None = None, places: Int[torch.Tensor, " B"] | None = None
    ) -> Float[torch.Tensor, "B T V"]:
        """The subject's own."""
        assert isinstance(self.subject, AnsweringSubject), "whoever asks for outputs has looked"
        return self.subject.outputs(batch, write, places=places)


def edited_passes(subject: Subject) -> EditedPasses:
    """Many edited passes over the same batches, which share what they can."""
    return subject.edited_passes() if isinstance(subject, SharingSubject) else WholePasses(subject)


class EditedPass(NamedTuple):
    """One edited pass: components of one layer (of several where a site is edited as a whole), all of its heads or some.

    `address` is the first that is edited.
    """

    site: Site
    address: Address
    targets: tuple[SiteTarget, ...]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All that are edited, in the order of the layers."""
        return tuple(dict.fromkeys(target.address for target in self.targets))

    @property
    def routes(self) -> bool:
        """Whether it edits what the layer's attention weights are made of."""
        return any(t.component in ("q", "k") for t in self.targets)


@dataclass
class Tally:
    """Per text: how many tokens were predicted, their summed loss, and what each edit adds to that sum."""

    texts: dict[int, Float[np.ndarray, " C"]] = field(default_factory=dict)

    def add(self, batch: Batch, clean: RowScores, edited: Sequence[RowScores]) -> None:
        """Count in one batch; the windows of a text are added up."""
        columns = torch.stack([clean.count, clean.total, *(s.total - clean.total for s in edited)], 1).double()
        for (text, _), row in zip(batch.rows, columns.cpu().numpy(), strict=True):
            self.texts[text] = self.texts[text] + row if text in self.texts else row

    @property
    def kept(self) -> tuple[int, ...]:
        """The texts of which a token is predicted, in their order."""
        return tuple(text for text in sorted(self.texts) if self.texts[text][0] > 0)

    def table(self, name: str) -> Float[np.ndarray, "N C"]:
        """The texts in their order, without those of which no token is predicted; raises CorpusError when none is left."""
        kept = [self.texts[text] for text in self.kept]
        if not kept:
            known = f"{len(self.texts)} were read, and in none is a token predicted from others."
            raise CorpusError(f"The texts {name!r} have no loss.", known, "Give texts of more than one token.")
        return np.stack(kept)

    def articles(self, texts: Texts) -> Articles:
        """Which article each text is of; those of which no token is predicted do not count."""
        return find_articles(texts, max(self.texts) + 1, self.kept)

    def left_out(self, table: Float[np.ndarray, "N C"]) -> tuple[str, ...]:
        """A note on the texts that are not in the table."""
        dropped = len(self.texts) - len(table)
        said = f"Texts without a token to predict were left out: {dropped} of {len(self.texts)}."
        return (said,) if dropped else ()


def compare_components(edits: Sequence[EditedPass], changes: Float[np.ndarray, "N C"]) -> Mapping[str, Json] | None:
    """What paired differences over texts (or articles) say of q, k and v (science E, r2), as JSON-ready data; `changes` are each edit's.

    A text's number is its mean over the layers whose heads are edited together, where all of q, k and v are; null without such layers.
    """
    found: dict[str, dict[Address, int]] = {}
    for i, edit in enumerate(edits):
        if edit.site.heads is None and len(edit.site.components) == 1:
            found.setdefault(edit.site.components[0], {})[edit.address] = i
    whole = {name: found[name] for name in ("q", "k", "v") if name in found}
    shared = set.intersection(*(set(of) for of in whole.values())) if len(whole) > 1 else set()
    if not shared:
        return None
    with np.errstate(invalid="ignore"):  # an edited loss may be infinite; such texts are left out
        values = {name: changes[:, sorted(of[a] for a in shared)].mean(1) for name, of in whole.items()}
    return compare(values, ALIKE).data()


def what_was_read(
    subject: Subject, texts: Texts | LabelledTexts, table: Float[np.ndarray, "N C"]
) -> tuple[str, str, str, str, str, int, int]:
    """What ReadFacts holds, in its order; `table` is a Tally's."""
    mine = subject.name, subject.fingerprint, subject.objective
    return *mine, texts.name, texts.fingerprint, len(table), int(table[:, 0].sum())


def plan_edits(shape: Shape, sites: Sequence[Site | str] | None, per: str) -> tuple[EditedPass, ...]:
    """The edits that the sites stand for: one for each layer, or each head, that a site names, or for the whole site; none twice.

    Null stands for q, k and v of every layer. Raises SiteError where a site lies outside the model, and where the
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
            here = tuple(t for t in targets if t.address == address)
            for heads in [site.heads] if per == "layer" else _heads(shape, site, address):
                edited = tuple(t._replace(heads=heads) for t in here)
                place = Site(site.components, (address.layer,), heads, site.stack)
                edits.setdefault(str(place), EditedPass(place, address, edited))
    if not edits:
        raise SiteError("No site was given.", shape.words(), "Give sites such as q@all k@all v@all.")
    return tuple(edits.values())


def every_site(shape: Shape) -> tuple[Site, ...]:
    """q, k and v of every layer of every stack."""
    stacks = ["" if stack == "plain" else stack for stack in shape.stacks]
    return tuple(Site((component,), None, stack=stack) for stack in stacks for component in ("q", "k", "v"))


def _heads(shape: Shape, site: Site, address: Address) -> list[tuple[int, ...]]:
    if site.heads is not None:
        return [(head,) for head in site.heads]
    known = shape.heads[address]
    counts = {c: known.query if c == "q" else known.key for c in site.components}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{c} has {n}" for c, n in counts.items())
        todo = "Give the components as sites of their own, or name heads that all of them have."
        raise SiteError(f"The site '{site}' joins components of different heads.", f"At {address} {said}.", todo)
    return [(head,) for head in range(1, max(counts.values()) + 1)]
