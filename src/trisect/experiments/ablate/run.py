"""Ablation of a given model: how much its own loss changes when q, k or v of a site is replaced, text by text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.errors import SpecError
from trisect.core.files import write_json
from trisect.core.site import Site
from trisect.core.subject import Batch, Scores, Subject, Texts
from trisect.core.tables import frame, write_table
from trisect.core.trace import Address
from trisect.experiments.ablate.replacements import Read, make_replacement
from trisect.lab.live import bar
from trisect.lab.passes import PER, Edit, Tally, every_site, plan_edits
from trisect.lab.versions import versions
from trisect.measure.ablation import HOW, put
from trisect.stats.bootstrap import drawn_ratios, percentile_interval
from trisect.stats.ratios import ratios
from trisect.stats.tested import finite


@dataclass(frozen=True, eq=False)
class AblationResult:
    """What was found: the table measures, the page, notes on the way, and a few sentences for a terminal."""

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    report: Path
    notes: tuple[str, ...]
    findings: tuple[str, ...]


def run_ablation(
    subject: Subject,
    texts: Texts,
    out: Path,
    sites: Sequence[Site | str] | None = None,
    how: str = "zero",
    per: str = "layer",
    hold: bool = False,
    batch: int = 8,
    seed: int = 0,
    quiet: bool = False,
) -> AblationResult:
    """Replace what each site holds, one pass each, and write table, figures and page into `out`.

    `sites` is q, k and v of every layer where null. `how`: 'zero', 'mean' (over all real tokens of the texts) or
    'resample' (from another text, place by place). `per`: a site's components are replaced together in one 'layer' at
    a time, or in one 'head' at a time. With `hold` every layer's attention weights stay those of the unedited pass, in the
    edited layer only where v alone is edited: this tells what is carried from where it is taken. Values are changes of
    the subject's own loss in nats per predicted token, or of its output where it has no loss; intervals are 95 % of a
    bootstrap over texts. Raises TrisectError.
    """
    _check(how, per, batch)
    edits = plan_edits(subject.shape, every_site(subject.shape) if sites is None else sites, per)
    addresses, read = tuple(dict.fromkeys(edit.address for edit in edits)), Read.of(texts, seed)
    with bar(f"{how} at {len(edits)} places", quiet) as told:
        rounds = read.count * (2 if how == "mean" else 1)
        replace = make_replacement(subject, read, addresses, how, batch, seed, lambda n: told(n, rounds))
        tally, notes = Tally(), dict.fromkeys(texts.notes)
        for one in subject.batches(read.stream(), batch, scored=True):
            notes |= dict.fromkeys(one.notes)
            tally.add(one, *_passes(subject, one, edits, replace(one), hold))
            told(rounds - read.count + one.rows[-1][0] + 1, rounds)
    table = tally.table(texts.name)
    if dropped := len(tally.texts) - len(table):
        notes[f"Texts without a token to predict were left out: {dropped} of {len(tally.texts)}."] = None
    measures = frame("measures", _rows(subject, table, edits, how, hold, seed))
    if not measures["value"].is_not_null().all():
        notes["Where no number stands, the edited model's loss was not finite."] = None
    about = _about(subject, texts, table, tuple(notes))
    options = {"sites": None if sites is None else [str(s) for s in sites], "how": how, "per": per, "hold": hold}
    about |= options | {"seed": seed, "batch": batch, "command": _command(subject, texts, options | {"seed": seed})}
    return _write(out, measures, about)


def _passes(
    subject: Subject, batch: Batch, edits: Sequence[Edit], sources: Mapping[Address, Any], hold: bool
) -> tuple[Scores, list[Scores]]:
    """The unedited pass over one batch, and one for each edit."""
    with torch.no_grad():
        clean = subject.score(batch)
        kept = {t.address: t.weights for t in subject.trace(batch).traces} if hold else None
        edited = [
            subject.score(batch, {e.address: put(e.targets, sources[e.address])}, _held(kept, e), clean) for e in edits
        ]
    return clean, edited


def _held(kept: Mapping[Address, Tensor] | None, edit: Edit) -> dict[Address, Tensor] | None:
    """The weights that an edit leaves alone: all, less those of its own layer where it is them that it edits."""
    if kept is None:
        return None
    return {address: weights for address, weights in kept.items() if not (edit.routes and address == edit.address)}


def _rows(
    subject: Subject, table: Float[np.ndarray, "N C"], edits: Sequence[Edit], how: str, hold: bool, seed: int
) -> list[dict[str, Any]]:
    """The unedited loss, where there is one, and every edit's change, each with its interval."""
    counts, sums = table[:, 0], table[:, 1:]
    values = ratios(sums, counts)
    ends = percentile_interval(drawn_ratios(sums, counts, seed), len(table))
    own = subject.objective != "output"
    rows: list[dict[str, Any]] = []
    for i, edit in enumerate([None, *edits]):
        if edit is None and not own:
            continue
        row: dict[str, Any] = {"subject": subject.name, "n": len(table), "measure": "loss_nats"}
        if edit is not None:
            single = edit.site.heads is not None and len(edit.site.heads) == 1
            some = "" if edit.site.heads is None or single else f", heads {str(edit.site).rpartition('.h')[2]}"
            row |= {
                "stack": edit.address.stack,
                "layer": edit.address.layer,
                "head": edit.site.heads[0] if single and edit.site.heads else None,
                "component": "+".join(edit.site.components),
                "measure": "loss_change_nats" if own else "output_change",
                "group": f"{how}{some}{', pattern held' if hold else ''}",
            }
        found = (values[i], ends.low[i], ends.high[i])
        named = zip(("value", "low", "high"), found, strict=True)
        rows.append(row | {name: finite(v) for name, v in named})
    return rows


def _about(subject: Subject, texts: Texts, table: Float[np.ndarray, "N C"], notes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "subject": subject.name,
        "fingerprint": subject.fingerprint,
        "objective": subject.objective,
        "corpus": texts.name,
        "corpus_fingerprint": texts.fingerprint,
        "texts": len(table),
        "tokens": int(table[:, 0].sum()),
        "notes": list(notes),
        "versions": versions("transformers"),
    }


def _command(subject: Subject, texts: Texts, options: Mapping[str, Any]) -> str:
    words = ["trisect", "ablate", *subject.options, *texts.options]
    words += ["--sites", " ".join(options["sites"])] if options["sites"] else []
    words += ["--how", options["how"], "--per", options["per"], *(["--hold", "pattern"] if options["hold"] else [])]
    return shlex.join([*words, "--seed", str(options["seed"])])


def _write(out: Path, measures: pl.DataFrame, about: dict[str, Any]) -> AblationResult:
    from trisect.experiments.ablate import page

    write_table(out / "tables", "measures", measures)
    write_json(out / "ablation.json", about)
    tables, report = {"measures": measures}, page.write(out, measures, about)
    return AblationResult(out, tables, report, tuple(about["notes"]), page.findings(measures, about))


def _check(how: str, per: str, batch: int) -> None:
    for name, given, known in (("how", how, HOW), ("per", per, PER)):
        if given not in known:
            todo = "Use one of them."
            raise SpecError(f"{given!r} is not a '{name}' of an ablation.", f"There is {', '.join(known)}.", todo)
    if batch < 1:
        raise SpecError(f"A batch of {batch} texts was asked for.", "A batch has at least one.", "Use for example 8.")
