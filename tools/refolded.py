"""Probe a study's runs again with folds of whole articles: python tools/refolded.py RESULT STUDY [STUDY …]

RESULT is a folder under results/ whose probes were fitted on held-out text with folds of neighbouring articles ('held-out'), or of rows
where these are uneven; each STUDY is the folder of some of its seeds, with weights. What the same probes find with folds of whole articles
that may lie apart ('articles') becomes RESULT/whole-articles/tables: in each baseline at all probed sites, in each attacked run at those of
the attacked layers. A study whose statement says 'articles' gives the same numbers, but for rounding. What is done is kept in the
STUDY, one file a run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trisect.core.errors import StudyError, TrisectError
from trisect.core.files import digest, read_json, write_json
from trisect.core.methods import ARTICLES, HELD_OUT
from trisect.core.site import Site
from trisect.core.spec import Run, read_run
from trisect.core.tables import frame, read_table, write_table
from trisect.experiments.study.probing import probe
from trisect.lab.folder import Folder, read_finished, weights
from trisect.text.corpus import Corpus

PLACE = "whole-articles"


def sites_of(run: Run, how: dict[str, Any]) -> list[Site]:
    """What is probed in a run: all that the study probes in a baseline, in others what lies in the edited layers."""
    stated = [Site.parse(s) for s in how["sites"] or ()]
    every = stated or [Site((c,), (layer,)) for layer in range(1, run.model.layers + 1) for c in "qkv"]
    layers = set(range(1, run.model.layers + 1)) if run.edit is None else set(run.edit.site.layers or ())
    return [site for site in every if set(site.layers or ()) <= layers]


def refold(folder: Folder, how: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of the table `sites` about each run of a study; a run that was done before is read."""
    corpus, of = Corpus.load(folder.corpus), digest(json.dumps(how, sort_keys=True))[:8]
    for name, spec in folder.read_ledger()["runs"].items():
        if read_finished(folder, name)["status"] == "diverged":
            continue  # as a study does
        kept = folder.path / PLACE / f"{name}-{of}.json"
        if not kept.exists():
            run = read_run(spec)
            final, rows = weights(folder, name, "final.safetensors", "cpu"), list[dict[str, Any]]()
            for label in how["labels"]:
                found = probe(
                    final,
                    run.model,
                    corpus,
                    run.training,
                    label,
                    how["kinds"],
                    sites_of(run, how),
                    run.seed,
                    fitted=ARTICLES,
                    maps=how.get("random_maps", 0),
                )
                rows += [{"subject": name, "label": label} | row._asdict() for row in found]
            kept.parent.mkdir(exist_ok=True)
            write_json(kept, {"rows": rows})
        stored: Any = read_json(kept, f"Delete {kept}.")
        yield from stored["rows"]


def check(place: Path, studies: Sequence[Path]) -> None:
    """Raise StudyError where the studies' runs, by their names and their last losses, are not those of the result."""
    table = read_table(place / "tables", "metrics")
    committed = {(r["run"], r["epoch"], r["split"], r["name"]): r["value"] for r in table.iter_rows(named=True)}
    folders, known = [Folder(study) for study in studies], ""
    runs = {name: folder for folder in folders for name in folder.read_ledger()["runs"]}
    if odd := set(read_table(place / "tables", "runs")["run"]) ^ runs.keys():
        known = f"{len(odd)} runs are in one of them alone, such as {min(odd)}."
    else:
        for name, folder in runs.items():
            epoch, split, what, value = read_finished(folder, name)["metrics"][-1]
            if committed.get((name, epoch, split, what)) != value:
                known = f"{what} of {name} after {epoch} epochs is {value} here: it was trained again, to other bits."
    if known:
        raise StudyError(f"{place} is of other runs than {', '.join(map(str, studies))}.", known, "Give all its seeds.")


def main(given: list[str]) -> None:
    """Probe all runs and write the table; raises StudyError where the runs are not those of the result."""
    if len(given) < 2:
        raise StudyError(f"{len(given)} folders were given.", "One is a result, the others its study.", "Give both.")
    place, *studies = map(Path, given)
    how = json.loads((place / "experiment.json").read_text(encoding="utf-8"))["probe"]
    if not how or how.get("fitted") != HELD_OUT:
        raise StudyError(f"{place} has no probes of the rule before.", f"Its statement says {how}.", "Take another.")
    check(place, studies)
    rows = [row for study in studies for row in refold(Folder(study), how)]
    (place / PLACE / "tables").mkdir(parents=True, exist_ok=True)
    write_table(place / PLACE / "tables", "sites", frame("sites", rows))
    print(f"{place / PLACE}: {len({row['subject'] for row in rows})} runs, {len(rows)} rows")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TrisectError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
