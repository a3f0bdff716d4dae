"""Put other seeds of the same study into a committed one: python tools/joined.py results/wikitext2-large OTHER [OTHER …]

Each OTHER is a study's folder, or one like those under results/: experiment.json, about.json, tables/. Runs, their losses and what was
measured at their sites are put together, and all claims judged again by the rules that the runs were made under; figures and page are
made by `trisect report` afterwards. Refused: another design, another text, other rules or another kind of device, seeds that are already
there, and folders whose tables are not those of the seeds that they state.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from trisect import claims
from trisect.claims.controls import judge_controls
from trisect.core.errors import StudyError, TrisectError
from trisect.core.files import read_json, replace_file, write_json
from trisect.core.tables import SCHEMAS, frame, read_table, write_table

# tables that are no verdicts, and what of them names a run
JOINED = {"runs": "run", "metrics": "run", "sites": "subject"}
ASKED = ["edit", "site", "label", "strength", "variant"]
MEASURED = ["site", "measure", "label", "split"]
TIMES = ("wall_seconds", "seconds")


class Kept(NamedTuple):
    """What is kept of a study: where, the record of it, and the tables that are no verdicts."""

    place: Path
    about: dict[str, Any]
    tables: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, place: Path) -> Kept:
        """A study from its folder; raises StudyError where its files do not agree."""
        stated = _statement(place)
        about = read_json(place / "about.json", "Take the folder as it was written.")
        kept = cls(place, about, {name: read_table(place / "tables", name) for name in JOINED})
        for known in kept.faults(stated):
            raise StudyError(
                f"{place} does not agree with itself.", known, "Take a study that has ended, as it was written."
            )
        return kept

    @property
    def asked(self) -> dict[str, Any]:
        """The statement of the study."""
        return self.about["experiment"]

    @property
    def seeds(self) -> list[int]:
        """Its seeds."""
        return list(self.asked["seeds"])

    def faults(self, stated: dict[str, Any]) -> list[str]:
        """What does not agree: the two statements, the seeds, the runs, or what was measured of each seed."""
        runs, seed_of = self.tables["runs"], pl.col("seed")
        found = [] if stated == self.asked else ["experiment.json and about.json state two designs."]
        if sorted(runs["seed"].unique()) != sorted(self.seeds):
            found.append(f"Stated are seeds {self.seeds}, run were {sorted(runs['seed'].unique())}.")
        if runs["run"].n_unique() < runs.height:
            found.append("Its table of runs has one of them twice.")
        for name, column in JOINED.items():
            if stray := set(self.tables[name][column]) - set(runs["run"]):
                found.append(f"Its table {name} is also about {min(stray)}, which is no run of it.")
        measured = self.tables["sites"].join(runs.select("seed", "status", subject="run"), on="subject")
        whole = measured.filter((pl.col("status") == "finished").all().over(seed_of))
        for rows, columns in ((runs, ASKED), (whole, MEASURED)):
            sets = {frozenset(of.select(columns).unique().rows()) for _, of in rows.group_by("seed")}
            if len(sets) > 1:
                found.append(f"Not every seed has the same {'runs' if columns is ASKED else 'measures'}.")
        return found

    @property
    def key(self) -> dict[str, Any]:
        """What has to be alike: all that was asked but the seeds and the names, the text, the rules and the kind of device."""
        asked = {name: value for name, value in self.asked.items() if name not in ("seeds", "name", "text")}
        text = {name: value for name, value in self.asked["text"].items() if name != "corpus"}
        runs = {name: sorted(self.tables["runs"][name].unique()) for name in ("revision", "device", "claims_hash")}
        of = {"text": text, "corpus": self.about["corpus"]["fingerprint"], "precision": self.about.get("precision")}
        return asked | runs | of


def _statement(place: Path) -> dict[str, Any]:
    path = place / "experiment.json"
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        known = f"{type(error).__name__}: {error}"
        raise StudyError(f"{path} cannot be read.", known, "Give a study's folder.") from error
    if not isinstance(stated, dict):
        known = "It holds a list, since not every seed was asked for the same runs."
        raise StudyError(f"{path} is no one statement.", known, "Join studies of one statement each.")
    return stated


def check(kept: Kept, other: Kept) -> None:
    """Raise StudyError where two are no seeds of one study."""
    ours, theirs = kept.key, other.key
    if differs := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
        known = f"They differ in {', '.join(differs)}."
        raise StudyError(f"{other.place} is another study than {kept.place}.", known, "Join seeds of one design.")
    if twice := sorted(set(kept.seeds) & set(other.seeds)):
        known = f"{kept.place} has seed {', '.join(map(str, twice))}."
        raise StudyError(f"{other.place} has seeds that are already there.", known, "Join other seeds.")


def join(kept: Kept, other: Kept) -> Kept:
    """Both together; rows in the order in which a study of all these seeds has them."""
    check(kept, other)
    tables = {
        name: pl.concat([kept.tables[name], other.tables[name]]).sort(list(SCHEMAS[name]), nulls_last=True)
        for name in JOINED
    }
    about = {
        name: value for name, value in kept.about.items() if name != "run"
    }  # the mark of the one run that wrote it
    for name in TIMES:
        if name in about and name in other.about:
            about[name] += other.about[name]
        else:
            about.pop(name, None)
    about["experiment"] = kept.asked | {"seeds": sorted([*kept.seeds, *other.seeds])}
    return Kept(kept.place, about, tables)


def judged(kept: Kept) -> dict[str, pl.DataFrame]:
    """All tables, verdicts by the rules of the runs, and by today's where those are older."""
    about: Any = {"experiment": kept.asked}
    earlier = claims.revision_of(kept.tables["runs"]) < claims.REVISION
    return kept.tables | {
        "claims": claims.judge(kept.tables, about),
        "claims_revised": claims.judge(kept.tables, about, claims.REVISION) if earlier else frame("claims_revised", ()),
        "controls": judge_controls(kept.tables, about),
    }


def main(given: list[str]) -> None:
    """Join, judge, write; a join that is stopped while it writes leaves a folder that is refused until it is put back."""
    if len(given) < 2:
        raise StudyError(f"{len(given)} folders were given.", "One is joined with others.", "Give two or more.")
    place, *others = map(Path, given)
    if (place / "study.json").exists():
        known = "Its tables are made again from its own runs, which would drop the others."
        raise StudyError(
            f"{place} is a study that goes on.", known, "Copy its tables, experiment.json and about.json elsewhere."
        )
    kept = Kept.read(place)
    for other in others:
        kept = join(kept, Kept.read(other))
    for name, table in judged(kept).items():
        write_table(place / "tables", name, table)
    text = json.dumps(kept.asked, indent=1) + "\n"
    replace_file(place / "experiment.json", lambda scratch: scratch.write_text(text, encoding="utf-8"))
    write_json(place / "about.json", kept.about)
    print(f"{place}: seeds {', '.join(map(str, kept.seeds))}, {kept.tables['runs'].height} runs")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TrisectError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
