"""Put other seeds of the same study into a committed one: python tools/joined.py results/wikitext2-large OTHER [OTHER …]

Each OTHER is a study's folder, or one like those under results/: experiment.json, about.json, tables/. Runs, their losses and what was
measured at their sites are put together, and all claims judged again by the rules that the runs were made under; figures and page are
made by `trisect report` afterwards. What asks anything else, is of another text, or has a seed that is there is refused.
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
from trisect.core.tables import frame, read_table, write_table

JOINED = ("runs", "metrics", "sites")


class Kept(NamedTuple):
    """What is kept of a study: where, what was asked, the record of it, and the tables that are no verdicts."""

    place: Path
    asked: dict[str, Any]
    about: dict[str, Any]
    tables: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, place: Path) -> Kept:
        """A study from its folder."""
        stated = json.loads((place / "experiment.json").read_text(encoding="utf-8"))
        if not isinstance(stated, dict):
            known = "Its runs were added unevenly, so that no one statement has all of them."
            raise StudyError(f"{place} has several statements.", known, "Join studies of one statement each.")
        about = read_json(place / "about.json", "Take the folder as it was written.")
        return cls(place, stated, about, {name: read_table(place / "tables", name) for name in JOINED})

    @property
    def seeds(self) -> list[int]:
        """Its seeds."""
        return list(self.asked["seeds"])

    @property
    def key(self) -> dict[str, Any]:
        """What has to be alike: all that was asked but the seeds and the names, the text, and the rules."""
        asked = {name: value for name, value in self.asked.items() if name not in ("seeds", "name", "text")}
        text = {name: value for name, value in self.asked["text"].items() if name != "corpus"}
        mark = self.about["corpus"]["fingerprint"]
        rules = claims.revision_of(self.tables["runs"])
        return asked | {"text": text, "corpus": mark, "revision": rules, "precision": self.about.get("precision")}


def check(kept: Kept, other: Kept) -> None:
    """Raise StudyError where two are no seeds of one study."""
    differs = [name for name, value in kept.key.items() if other.key.get(name) != value]
    if differs:
        known = f"They differ in {', '.join(differs)}."
        raise StudyError(f"{other.place} is another study than {kept.place}.", known, "Join seeds of one design.")
    if twice := sorted(set(kept.seeds) & set(other.seeds)):
        known = f"{kept.place} has seed {', '.join(map(str, twice))}."
        raise StudyError(f"{other.place} has seeds that are there.", known, "Join other seeds.")


def join(kept: Kept, other: Kept) -> Kept:
    """Both together, in the order of their seeds."""
    check(kept, other)
    seeds = sorted([*kept.seeds, *other.seeds])
    tables = {name: pl.concat([kept.tables[name], other.tables[name]]) for name in JOINED}
    number = dict(tables["runs"].select("run", "seed").iter_rows())
    for name, column in (("runs", "run"), ("metrics", "run"), ("sites", "subject")):
        of_seed = pl.col(column).replace_strict(number, default=None, return_dtype=pl.Int64)
        tables[name] = tables[name].sort(of_seed, maintain_order=True, nulls_last=True)
    seconds = kept.about["wall_seconds"] + other.about["wall_seconds"]
    asked = kept.asked | {"seeds": seeds}
    inner = kept.about["experiment"] | {"seeds": seeds}
    return Kept(kept.place, asked, kept.about | {"experiment": inner, "wall_seconds": seconds}, tables)


def judged(kept: Kept) -> dict[str, pl.DataFrame]:
    """All tables, verdicts by the rules of the runs, and by today's where those are older."""
    about: Any = {"experiment": kept.asked}
    earlier = claims.revision_of(kept.tables["runs"]) < claims.REVISION
    return kept.tables | {
        "claims": claims.judge(kept.tables, about),
        "claims_revised": claims.judge(kept.tables, about, claims.REVISION) if earlier else frame("claims_revised", ()),
        "controls": judge_controls(kept.tables, about),
    }


def main(place: Path, others: list[Path]) -> None:
    """Join, judge, write."""
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
        main(Path(sys.argv[1]), [Path(given) for given in sys.argv[2:]])
    except TrisectError as error:
        sys.exit(str(error))
