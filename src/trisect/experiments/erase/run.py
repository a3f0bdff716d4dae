"""Erase labels from a model: the rise of its loss when q, k or v of a site loses all linear information on one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from trisect.core.errors import CorpusError, SiteError, SpecError, require_extra
from trisect.core.tables import frame
from trisect.core.trace import crosses
from trisect.experiments.erase.settings import EraseFacts, EraseSettings
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.passes import (
    EditedPass,
    Tally,
    compare_by_label,
    edited_passes,
    erasure_rows,
    fit_erasers,
    passes,
    plan_edits,
    what_was_read,
)
from trisect.lab.word_labels import WordLabels, number_articles
from trisect.text.sources import LabelledTexts, open_labels


def check(settings: EraseSettings) -> None:
    """Raise TrisectError if a label, the package for erasure, the corpus or its splits are missing."""
    if not settings.labels:
        raise SpecError("No label was given.", "Erasing takes a label out.", "Name a label column, such as pos.")
    require_extra("concept_erasure", "erase", "Erasing a label")
    texts, _ = (open_labels(settings.corpus, split, settings.reader) for split in ("train", settings.split))
    if strange := [label for label in settings.labels if label not in texts.columns]:
        columns = f"It has {', '.join(sorted(texts.columns))}."
        raise CorpusError(f"{texts.name} has no label column '{strange[0]}'.", columns, "Use a column that there is.")


def measure(settings: EraseSettings, context: RunContext) -> Measured[EraseFacts]:
    """Erase each label column at each site, in a pass of its own.

    LEACE is fitted to about `tokens` labelled positions of the corpus's train split and applied to the (first `limit`)
    texts of `split`, wherever no special token stands; its control takes out `draws` random subspaces of the same rank
    from the same whitened space. Every piece of a word carries the word's label; with `whose` 'next' a position carries
    that of the piece after it, with 'own' its own (None: 'next' for causal models, as in studies). `sites` is q, k
    and v of every layer where None, `per` layer or head. Intervals are 95 % of a bootstrap over articles (texts where none is
    marked). Raises TrisectError.
    """
    subject, tokens, batch = context.subject, settings.tokens, settings.batch
    carrier = settings.whose or ("next" if subject.objective == "causal" else "own")
    edits = plan_edits(subject.shape, settings.sites, settings.per)
    refuse_two_sides(edits)
    fit, read = (open_labels(settings.corpus, split, settings.reader) for split in ("train", settings.split))
    classes = {label: _classes(fit, label) for label in dict.fromkeys(settings.labels)}
    marker = WordLabels(subject, classes, carrier == "next")
    with context.progress(f"{', '.join(classes)} at {len(edits)} place{'s' * (len(edits) != 1)}") as step:
        places = fit_erasers(
            marker,
            fit,
            edits,
            tokens,
            batch,
            settings.draws,
            settings.seed,
            lambda n: step(min(n, tokens), 2 * tokens),
            settings.shrinkage,
        )
        texts = list(islice(read.texts(), settings.limit))
        carried = "the label of the piece after it" if carrier == "next" else "the label of the word that it belongs to"
        note = f"A position carries {carried}; special tokens carry none and are left as they are."
        sharing, tally, notes = edited_passes(subject), Tally(), dict.fromkeys((*read.notes, note))
        for part in marker.batches(texts, batch):
            notes |= dict.fromkeys(part.notes)
            tally.add(part, *passes(sharing, part, places))
            step(tokens + int(tokens * (part.rows[-1][0] + 1) / len(texts)), 2 * tokens)
    table, articles = tally.table(read.name), number_articles((text.article for text in texts), tally.indices)
    units = articles.sums(table, tally.indices)
    notes |= dict.fromkeys((*articles.notes, *tally.note_omissions(table), *sharing.notes))
    if settings.limit is not None:
        notes[f"Only the first {settings.limit:,} texts are read."] = None
    measures = frame("measures", erasure_rows(subject, units, places, settings.draws, settings.seed))
    facts = EraseFacts(
        *what_was_read(subject, read, table),
        min(place.fitted for place in places),
        tuple(classes),
        None if settings.sites is None else tuple(map(str, settings.sites)),
        settings.draws,
        carrier,
        settings.per,
        settings.seed,
        settings.limit,
        compare_by_label(places, units, settings.draws),
        settings.shrinkage,
        articles=None if articles.numbers is None else len(units),
    )
    return Measured({"measures": measures}, facts, tuple(notes), packages=("transformers", "concept-erasure"))


def _classes(texts: LabelledTexts, label: str) -> dict[str, int]:
    """The classes of a column that occur in train; raises CorpusError without at least two."""
    classes = sorted({name for text in texts.texts() for name in text.labels[label] if name is not None})
    if len(classes) < 2:
        carry = f"Its words carry {classes[0]!r} alone." if classes else "None of its words carries one."
        todo = "Use a column with at least two classes: there is nothing to distinguish."
        raise CorpusError(f"The label column '{label}' of {texts.name} has fewer than two classes.", carry, todo)
    return {name: i for i, name in enumerate(classes)}


def refuse_two_sides(edits: Sequence[EditedPass]) -> None:
    """Raise SiteError where a site joins queries with keys or values of another text."""
    for edit in edits:
        components = {t.component for t in edit.targets}
        if crosses(edit.address.stack) and "q" in components and len(components) > 1:
            sides = "In cross-attention queries are of the target's tokens, keys and values of the source's."
            raise SiteError(f"The site '{edit.site}' joins them.", sides, "Give them as sites of their own.")
