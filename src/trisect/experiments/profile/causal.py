"""The causal twin of a profile: each label erased (LEACE) from each layer's queries, keys or values, as a change of the loss."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from trisect.core.errors import CorpusError
from trisect.core.extras import need_extra
from trisect.core.tables import NewRow
from trisect.core.trace import Address
from trisect.experiments.profile.settings import ProfileSettings
from trisect.lab.articles import marked_articles
from trisect.lab.erasing import erasure_rows, fit_erasers, passes
from trisect.lab.experiment import Bench
from trisect.lab.passes import Tally, edited_passes, plan_edits
from trisect.lab.word_labels import WordLabels
from trisect.measure.profile import WordClasses
from trisect.text.labelled import Labelled, LabelledTexts, open_labelled
from trisect.text.word_classes import OTHER, WordLabeller

DRAWS = 3  # random subspaces beside each erasure
FITTED = 10_000  # labelled positions that erasers are fitted to, about
SPLITS = ("test", "valid", "train")


class CausalTwin(NamedTuple):
    """Rows of erasures, the texts that they were measured on by name and number, and notes."""

    rows: tuple[NewRow, ...]
    corpus: str
    texts: int
    notes: tuple[str, ...]


def erase_labels(
    settings: ProfileSettings,
    label: WordLabeller,
    classes: Sequence[WordClasses],
    addresses: Collection[Address],
    bench: Bench,
) -> CausalTwin:
    """Erase every label from every layer's q, k or v, all heads together, with erasers fitted to the profile's own split.

    Where a profile is asked for head by head, from each head alone as well. Measured on the first `causal` texts of another split.
    A position carries the label of its own word. Raises TrisectError.
    """
    need_extra("concept_erasure", "erase", "The causal twin of a profile")
    subject, wanted = bench.subject, settings.causal or 0
    ways = dict.fromkeys(("layer", settings.per))
    edits = tuple(e for per in ways for e in plan_edits(subject.shape, None, per) if e.address in addresses)
    fit = relabelled(open_labelled(settings.corpus, settings.split, settings.reader, bare=True), label, classes)
    other = relabelled(_other(settings), label, classes)
    marker = WordLabels(subject, {one.name: {c: i for i, c in enumerate(one.classes)} for one in classes}, False)
    fitted = min(FITTED, settings.words)
    with bench.progress(f"erasing {', '.join(label.labels)} at {len(edits)} places") as step:
        places = fit_erasers(
            marker, fit, edits, fitted, settings.batch, DRAWS, settings.seed, lambda n: step(min(n, fitted), 4 * fitted)
        )
        sharing, tally, texts = (
            edited_passes(subject),
            Tally(),
            list(islice((one for one in other.texts() if one.spans), wanted)),
        )
        for batch in marker.batches(texts, settings.batch):
            tally.add(batch, *passes(sharing, batch, places))
            step(fitted + int(3 * fitted * (batch.rows[-1][0] + 1) / len(texts)), 4 * fitted)
    table = tally.table(other.name)
    articles = marked_articles((one.article for one in texts), tally.kept)
    rows = tuple(erasure_rows(subject, articles.sums(table, tally.kept), places, DRAWS, settings.seed))
    return CausalTwin(rows, other.name, len(table), (*articles.notes, *tally.left_out(table), *sharing.notes))


def relabelled(texts: LabelledTexts, label: WordLabeller, classes: Sequence[WordClasses]) -> LabelledTexts:
    """The texts with a profile's labels in the place of their own, rare classes as one."""
    known = {one.name: frozenset(one.classes) for one in classes}

    def made() -> Iterator[Labelled]:
        for one in texts.texts():
            names = label(one)
            yield one._replace(labels={n: tuple(_folded(c, known[n]) for c in of) for n, of in names.items()})

    return replace(texts, columns=label.labels, texts=made)


def _folded(name: str | None, known: frozenset[str]) -> str | None:
    return name if name is None or name in known else OTHER


def _other(settings: ProfileSettings) -> LabelledTexts:
    """The texts of a split that the profile does not read; its own where there is no other."""
    for split in SPLITS:
        if split != settings.split:
            try:
                return open_labelled(settings.corpus, split, settings.reader, bare=True)
            except CorpusError:
                continue
    return open_labelled(settings.corpus, settings.split, settings.reader, bare=True)
