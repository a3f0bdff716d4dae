"""Word links from cross-attention by weight and by norm, against gold links: sentence pairs are read, scored and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from trisect.core.errors import CorpusError, ModelError
from trisect.core.files import inside
from trisect.core.finding import About
from trisect.core.subject import Subject
from trisect.core.tables import TEXT, WHOLE, frame
from trisect.experiments.align.examples import FIRST, RULE, choose_pictures
from trisect.experiments.align.links import Linked, hits, left_out, link
from trisect.experiments.align.rows import Scored, alignment_rows, choose_layers, judge_alignment, link_rows
from trisect.experiments.align.settings import AlignFacts, AlignSettings, PicturedPair
from trisect.lab.experiment import Bench, Measured
from trisect.measure.alignment import as_links, count_hits, diagonal, gold_of
from trisect.stats.bootstrap import CrossedBootstrap
from trisect.text.alignment_files import write_links
from trisect.text.bitext import Bitext, SentencePair, assemble, read_pairs

if TYPE_CHECKING:
    from trisect.hf.load import Pretrained

Chosen = tuple[Mapping[tuple[str, str], int], ...]  # a layer by setting and kind, for each model
LINKS = {
    "subject": TEXT,
    "pair": WHOLE,  # from 1, as the lines of the files
    "setting": TEXT,  # awi, awo
    "kind": TEXT,  # weight, norm
    "layer": WHOLE,
    "source": WHOLE,  # words from 1
    "target": WHOLE,
}


def check(settings: AlignSettings) -> None:
    """Raise CorpusError where the sentence pairs that are named cannot be read, or do not fit together."""
    if settings.bitext is None:
        _pairs(settings)


def measure(settings: AlignSettings, bench: Bench) -> Measured[AlignFacts]:
    """Word alignment from cross-attention (science C5).

    The models are one encoder–decoder or several that were trained alike but for their seed. Intervals and the claim resample
    pairs, and models across them. Beside the tables lies the folder `links`, with a file for every model, setting, kind and
    layer, as Pharaoh (from 0) and .talp (from 1). Raises ModelError for a model without cross-attention, CorpusError for files
    that do not fit together.
    """
    subjects = tuple(map(_crossing, bench.subjects))
    bitext = _pairs(settings) if settings.bitext is None else settings.bitext
    pairs = bitext.test
    if not pairs:
        raise CorpusError(f"{bitext.name} has no test pairs.", "Those are what is aligned.", "Give some.")
    test = [_link(subject, pairs, settings.batch, bench) for subject in subjects]
    _check_alike(test)
    names = tuple(one.subject for one in test)
    kept = [n for n in range(len(pairs)) if all(n in one.best for one in test)]
    if not kept:
        known = "Their pieces are more than it reads at once."
        raise ModelError(f"No pair of {bitext.name} fits into {', '.join(names)}.", known, "Give shorter sentences.")
    redrawn, gold = CrossedBootstrap(settings.seed, settings.draws), pairs[0].sure is not None
    chosen: Chosen = ()
    if gold and bitext.valid and bitext.valid[0].sure is not None:
        chosen = tuple(
            _chosen(_link(subject, bitext.valid, settings.batch, bench), bitext.valid) for subject in subjects
        )
    scored = _score(test, pairs, kept, chosen) if gold else None
    rows = link_rows(test, pairs, kept, redrawn)
    rows += [] if scored is None else alignment_rows(scored, redrawn)
    pictures = choose_pictures(test[0], pairs, kept, chosen[0] if chosen else None)
    facts = _facts(subjects, bitext, len(kept), settings, chosen, pictures)

    def judge(about: About[AlignFacts]) -> pl.DataFrame:
        named = ("models", "corpus", "corpus_fingerprint", "pairs", "seed")
        return judge_alignment(scored, {name: getattr(about.facts, name) for name in named})

    tables = {"measures": frame("measures", rows), "links": _table(test)}
    notes = _notes(subjects, bitext, len(kept))
    return Measured(
        tables, facts, notes, judge, "model", paths={"links": _write_links(bench.folder / "links", test, len(pairs))}
    )


def _pairs(settings: AlignSettings) -> Bitext:
    """The pairs of the files that the settings name, those of the trial as valid ones."""
    source, target = Path(settings.source), Path(settings.target)
    found = read_pairs(source, target, settings.gold, settings.base)
    notes, pairs, valid = found.notes, found.pairs, ()
    if settings.trial is not None:
        beside, across, linked = settings.trial
        other = read_pairs(beside, across, linked, settings.base)
        valid, notes = other.pairs, (*notes, *other.notes)
    if settings.limit is not None:
        pairs = pairs[: settings.limit]
        notes = (*notes, f"Only the first {settings.limit:,} sentence pairs are read.")
    return assemble(f"{source.name} and {target.name}", {"valid": valid, "test": pairs}, notes)


def _crossing(subject: Subject) -> Pretrained:
    """The model, if it has cross-attention that links words; raises ModelError for one of another kind, by name."""
    from trisect.hf.load import Pretrained
    from trisect.hf.sentence_pairs import check_crossing

    if not isinstance(subject, Pretrained):
        known = f"{subject.shape.words()} Word alignments are read from attention between a source and a target."
        raise ModelError(f"{subject.name} has no cross-attention.", known, "Choose an encoder–decoder model.")
    check_crossing(subject)
    return subject


def _link(subject: Pretrained, pairs: Sequence[SentencePair], batch: int, bench: Bench) -> Linked:
    with bench.progress(f"Reading pairs with {subject.name}") as step:
        return link(subject, pairs, batch, step)


def _check_alike(several: Sequence[Linked]) -> None:
    for one in several[1:]:
        if one.columns != several[0].columns:
            given = f"{one.subject} has other layers or heads than {several[0].subject}."
            known = "Several models are treated as one that was trained several times, and are averaged."
            raise ModelError(given, known, "Give one at a time.")


def _chosen(linked: Linked, pairs: Sequence[SentencePair]) -> dict[tuple[str, str], int]:
    kept = sorted(linked.best)
    return choose_layers(hits(linked, pairs, kept), linked.columns)


def _score(
    several: Sequence[Linked],
    pairs: Sequence[SentencePair],
    kept: Sequence[int],
    chosen: Chosen,
) -> Scored:
    """Counts of all models against gold, and those of the diagonal."""
    straight = []
    for number in kept:
        pair, words = pairs[number], (len(pairs[number].source), len(pairs[number].target))
        straight.append(count_hits(diagonal(words), gold_of(pair.sure or set(), pair.possible or set(), words)))
    lengths = np.array([max(len(pairs[n].source), len(pairs[n].target)) for n in kept])
    counts = tuple(hits(one, pairs, kept) for one in several)
    names = tuple(one.subject for one in several)
    return Scored(names, several[0].columns, counts, chosen, lengths, np.stack(straight))


def _facts(
    subjects: Sequence[Pretrained],
    bitext: Bitext,
    kept: int,
    settings: AlignSettings,
    chosen: Chosen,
    pictures: Sequence[PicturedPair],
) -> AlignFacts:
    names, gold = [subject.name for subject in subjects], bitext.test[0].sure is not None
    return AlignFacts(
        ", ".join(names),
        {subject.name: subject.fingerprint for subject in subjects},
        subjects[0].shape.words(),
        bitext.name,
        bitext.fingerprint,
        len(bitext.valid),
        gold,
        kept,
        settings.seed,
        settings.draws,
        {
            name: {f"{setting.upper()} by {kind}": layer for (setting, kind), layer in layers.items()}
            for name, layers in zip(names, chosen, strict=False)
        },
        RULE if gold else FIRST,
        tuple(pictures),
    )


def _notes(subjects: Sequence[Pretrained], bitext: Bitext, kept: int) -> tuple[str, ...]:
    lost = len(bitext.test) - kept
    long = f"{lost} of {len(bitext.test)} sentence pairs have more pieces than the model reads, and are left out."
    notes = [*bitext.notes, *([long] if lost else []), *(note for subject in subjects for note in left_out(subject))]
    return tuple(dict.fromkeys(notes))


def _table(several: Sequence[Linked]) -> pl.DataFrame:
    """Every link of a whole layer; words and pairs count from 1."""
    rows: dict[str, list[Any]] = {name: [] for name in LINKS}
    for linked in several:
        for i, column in enumerate(linked.columns):
            if column.head is not None:
                continue
            for number in sorted(linked.best):
                links = sorted(as_links(linked.best[number][i]))
                named = (linked.subject, number + 1, column.setting, column.kind, column.layer)
                for name, value in zip(LINKS, named, strict=False):
                    rows[name] += [value] * len(links)
                rows["source"] += [source + 1 for source, _ in links]
                rows["target"] += [target + 1 for _, target in links]
    return pl.DataFrame(rows, schema=LINKS)


def _write_links(folder: Path, several: Sequence[Linked], pairs: int) -> Path:
    """A file for every model, setting, kind and layer in either form, with a line for each of `pairs`; returns the folder."""
    for number, linked in enumerate(several, start=1):
        mark = f"model-{number}-" if len(several) > 1 else ""
        for i, column in enumerate(linked.columns):
            if column.head is None:
                name = f"{mark}{column.setting}-{column.kind}-layer-{column.layer}"
                lines = [as_links(linked.best[n][i]) if n in linked.best else set() for n in range(pairs)]
                for ending, base in ((".pharaoh", 0), (".talp", 1)):
                    write_links(inside(folder, f"{name}{ending}"), [(links, ()) for links in lines], base)
    return folder
