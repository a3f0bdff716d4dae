"""Align: word links from cross-attention by weight and by norm, against gold links — read, scored, judged, written."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from trisect.claims import claims_hash
from trisect.core.errors import CorpusError, ModelError
from trisect.core.files import inside, write_json
from trisect.core.subject import Subject
from trisect.core.tables import TEXT, WHOLE, frame, write_table
from trisect.experiments.align.examples import FIRST, RULE, choose_pictures
from trisect.experiments.align.links import Linked, hits, left_out, link
from trisect.experiments.align.rows import DRAWS, Scored, alignment_rows, choose_layers, judge_alignment, link_rows
from trisect.lab.live import bar
from trisect.lab.versions import versions
from trisect.measure.alignment import as_links, count_hits, diagonal, gold_of
from trisect.stats.bootstrap import CrossedBootstrap
from trisect.text.bitext import Bitext, Pair, assemble, read_pairs
from trisect.text.links import write_links

if TYPE_CHECKING:
    from trisect.hf.load import Pretrained

LINKS = {
    "subject": TEXT,
    "pair": WHOLE,  # from 1, as the lines of the files
    "setting": TEXT,  # awi, awo
    "kind": TEXT,  # weight, norm
    "layer": WHOLE,
    "source": WHOLE,  # words from 1
    "target": WHOLE,
}
Place: TypeAlias = str | Path
Trial: TypeAlias = tuple[Place, Place, Place]


@dataclass(frozen=True, eq=False)
class AlignResult:
    """What was found: the tables measures, claims and links, the page, and a few sentences for a terminal.

    `links` is the folder with a file for every model, setting, kind and layer, as Pharaoh (from 0) and .talp (from 1).
    """

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    links: Path
    report: Path
    notes: tuple[str, ...]
    findings: tuple[str, ...]


def run_align(
    models: Any,
    source: Place,
    target: Place,
    gold: Place | None = None,
    base: int | None = None,
    trial: Trial | None = None,
    out: Path = Path("align"),
    limit: int | None = None,
    batch: int = 16,
    seed: int = 0,
    quiet: bool = False,
    draws: int = DRAWS,
) -> AlignResult:
    """Word alignment from cross-attention (science C5), written into `out`: tables, links, figures, page.

    `models` is one encoder–decoder or several that were trained alike but for their seed: loaded, or what
    lab.subject.load takes. `source` and `target` are files with a sentence a line, words apart by white space; `gold` has
    a line of links for each, counted from `base` (found out where null); `trial` are the same three files of other pairs,
    by which the best layer is chosen. `limit` keeps the first pairs. Intervals and the claim resample pairs, and models
    across them. Raises ModelError for a model without cross-attention, CorpusError for files that do not fit together.
    """
    subjects = open_models(models)
    found = read_pairs(source, target, gold, base)
    notes, pairs = found.notes, found.pairs
    words = ["--source", Path(source).name, "--target", Path(target).name]
    words += [] if gold is None else ["--gold", Path(gold).name]
    words += [] if base is None else ["--base", str(base)]
    valid: tuple[Pair, ...] = ()
    if trial is not None:
        other = read_pairs(*trial, base)
        valid, notes = other.pairs, (*notes, *other.notes)
        words += ["--trial", *(Path(path).name for path in trial)]
    if limit is not None:
        pairs, notes = _first(pairs, limit), (*notes, f"Only the first {limit:,} sentence pairs are read.")
        words += ["--limit", str(limit)]
    bitext = assemble(f"{Path(source).name} and {Path(target).name}", {"valid": valid, "test": pairs}, notes)
    return align_bitext(subjects, bitext, out, batch, seed, quiet, draws, tuple(words))


def align_bitext(
    models: Any,
    bitext: Bitext,
    out: Path,
    batch: int = 16,
    seed: int = 0,
    quiet: bool = False,
    draws: int = DRAWS,
    words: Sequence[str] = (),
) -> AlignResult:
    """The same of the test pairs of a bitext; its valid pairs, where they have gold links, choose the best layer.

    `words` are those of a command line that name the pairs. Raises as run_align.
    """
    subjects, pairs = open_models(models), bitext.test
    if not pairs:
        raise CorpusError(f"{bitext.name} has no test pairs.", "Those are what is aligned.", "Give some.")
    test = [_link(subject, pairs, batch, quiet) for subject in subjects]
    _check_alike(test)
    names = tuple(one.subject for one in test)
    kept = [n for n in range(len(pairs)) if all(n in one.best for one in test)]
    if not kept:
        known = "Their pieces are more than it reads at once."
        raise ModelError(f"No pair of {bitext.name} fits into {', '.join(names)}.", known, "Give shorter sentences.")
    redrawn, gold = CrossedBootstrap(seed, draws), pairs[0].sure is not None
    chosen: tuple[Mapping[tuple[str, str], int], ...] = ()
    if gold and bitext.valid and bitext.valid[0].sure is not None:
        chosen = tuple(_chosen(_link(subject, bitext.valid, batch, quiet), bitext.valid) for subject in subjects)
    scored = _score(test, pairs, kept, chosen) if gold else None
    rows = link_rows(test, pairs, kept, redrawn)
    rows += [] if scored is None else alignment_rows(scored, redrawn)
    about = _about(subjects, bitext, kept, seed, draws, words)
    about["chosen"] = {
        name: {f"{s.upper()} by {k}": layer for (s, k), layer in layers.items()}
        for name, layers in zip(names, chosen, strict=False)
    }
    about["pictures"] = choose_pictures(test[0], pairs, kept, chosen[0] if chosen else None)
    spoken_of = {name: about[name] for name in ("models", "corpus", "corpus_fingerprint", "pairs", "seed")}
    tables = {
        "measures": frame("measures", rows),
        "claims": judge_alignment(scored, redrawn, spoken_of),
        "links": _table(test),
    }
    return _write(out, tables, test, len(pairs), about)


def _first(pairs: tuple[Pair, ...], limit: int) -> tuple[Pair, ...]:
    if limit < 1:
        given = f"A limit of {limit} sentence pairs."
        raise CorpusError(given, "At least one is needed.", "Give 1 or more, or leave it out.")
    return pairs[:limit]


def open_models(models: Any) -> tuple[Pretrained, ...]:
    """One model or several, loaded; raises ModelError for one of another kind, by name."""
    from trisect.hf.crossing import check_crossing
    from trisect.hf.load import Pretrained
    from trisect.lab.subject import load

    several = list(models) if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    if not several:
        raise ModelError("No model was given.", "Links are those of at least one.", "Give a model.")
    found = []
    for model in several:
        subject = model if isinstance(model, Subject) else load(model)
        if not isinstance(subject, Pretrained):
            known = f"{subject.shape.words()} Word alignments are read from attention between a source and a target."
            raise ModelError(f"{subject.name} has no cross-attention.", known, "Choose an encoder–decoder model.")
        check_crossing(subject)
        found.append(subject)
    return _named_apart(found)


def _named_apart(subjects: Sequence[Pretrained]) -> tuple[Pretrained, ...]:
    """Models of the same name get numbers, so that rows tell them apart."""
    names = [subject.name for subject in subjects]
    return tuple(
        replace(subject, name=f"{subject.name} ({number})") if names.count(subject.name) > 1 else subject
        for number, subject in enumerate(subjects, start=1)
    )


def _link(subject: Pretrained, pairs: Sequence[Pair], batch: int, quiet: bool) -> Linked:
    with bar(f"Reading pairs with {subject.name}", quiet) as told:
        return link(subject, pairs, batch, told)


def _check_alike(several: Sequence[Linked]) -> None:
    for one in several[1:]:
        if one.columns != several[0].columns:
            given = f"{one.subject} has other layers or heads than {several[0].subject}."
            known = "Several models are taken for one that was trained several times, and are averaged."
            raise ModelError(given, known, "Give one at a time.")


def _chosen(linked: Linked, pairs: Sequence[Pair]) -> dict[tuple[str, str], int]:
    kept = sorted(linked.best)
    return choose_layers(hits(linked, pairs, kept), linked.columns)


def _score(
    several: Sequence[Linked],
    pairs: Sequence[Pair],
    kept: Sequence[int],
    chosen: tuple[Mapping[tuple[str, str], int], ...],
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


def _about(
    subjects: Sequence[Pretrained], bitext: Bitext, kept: Sequence[int], seed: int, draws: int, words: Sequence[str]
) -> dict[str, Any]:
    lost, gold = len(bitext.test) - len(kept), bitext.test[0].sure is not None
    long = f"{lost} of {len(bitext.test)} sentence pairs have more pieces than the model reads, and are left out."
    notes = [*bitext.notes, *([long] if lost else []), *(note for subject in subjects for note in left_out(subject))]
    loaded = [*(subject.options[0] for subject in subjects), *subjects[0].options[1:]]
    return {
        "subject": ", ".join(subject.name for subject in subjects),
        "models": {subject.name: subject.fingerprint for subject in subjects},
        "shape": subjects[0].shape.words(),
        "corpus": bitext.name,
        "corpus_fingerprint": bitext.fingerprint,
        "trial": len(bitext.valid),
        "gold": gold,
        "pairs": len(kept),
        "seed": seed,
        "draws": draws,
        "command": shlex.join(["trisect", "align", *loaded, *words, "--seed", str(seed)]),
        "picture_rule": RULE if gold else FIRST,
        "claims_hash": claims_hash("sentence"),
        "notes": list(dict.fromkeys(notes)),
        "versions": versions("transformers"),
    }


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


def _write(
    out: Path, tables: dict[str, pl.DataFrame], several: Sequence[Linked], pairs: int, about: dict[str, Any]
) -> AlignResult:
    from trisect.experiments.align import page

    for name, table in tables.items():
        write_table(out / "tables", name, table)
    folder = out / "links"
    for number, linked in enumerate(several, start=1):
        mark = f"model-{number}-" if len(several) > 1 else ""
        for i, column in enumerate(linked.columns):
            if column.head is None:
                name = f"{mark}{column.setting}-{column.kind}-layer-{column.layer}"
                lines = [as_links(linked.best[n][i]) if n in linked.best else set() for n in range(pairs)]
                for ending, base in ((".pharaoh", 0), (".talp", 1)):
                    write_links(inside(folder, f"{name}{ending}"), [(links, ()) for links in lines], base)
    write_json(out / "align.json", about)
    report = page.write(out, tables, about)
    return AlignResult(out, tables, folder, report, tuple(about["notes"]), page.findings(tables, about))
