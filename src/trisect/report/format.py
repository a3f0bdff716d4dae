"""Format numbers, counts and names as words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from trisect.claims.rule import UNDECIDED
from trisect.core.files import digest
from trisect.report.points import Interval, Mean

COMPONENT = {"q": "the queries", "k": "the keys", "v": "the values"}
GROUP = {"q": "q: queries", "k": "k: keys", "v": "v: values"}


FEW, NOTHING = 3, 1e-12
_RUN = re.compile(r"(.+)-s([0-9]+)-[0-9a-f]{8}")  # the id of a study's run
TRAINED = {
    "plain": " without pretraining",
    "pretrained": " with pretraining",
    "left-out": " pretrained with names left out",
    "seed": "",
}
# A folder whose name says nothing, below one whose name does.
_FOLDER = re.compile(r"(.+)/(?:model|checkpoint|final|best|latest|weights)")
_OWN = re.compile(rf"({'|'.join(TRAINED)})-([0-9]+)")  # the folder of a model that recall or translate trained


def number(value: float | None, signed: bool = False, places: int | None = None) -> str:
    """A number with a true minus sign, three decimals, and below 0.1 three digits that count; a dash where there is none.

    `places` fixes the decimals, for a column of a table.
    """
    if value is None:
        return "–"
    size, sign = abs(value), "+" if signed else ""
    if places is None and NOTHING < size < 0.1:
        form = f".{2 - math.floor(math.log10(size))}f" if size >= 1e-6 else ".2e"
    else:
        form = f".{3 if places is None else places}f" if size < 1000 else ".3g"
    text = f"{value:{sign}{form}}"
    if not float(text):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def ends(
    one: Interval, signed: bool = False, places: int | None = None, text: Callable[[float], str] | None = None
) -> str:
    """The ends of an interval, as in `0.191 to 0.270`, or a dash; `text` spells an end where it is no plain number."""
    if one.low is None or one.high is None:
        return "–"
    return " to ".join(text(end) if text else number(end, signed, places) for end in (one.low, one.high))


def decimals(values: Sequence[float]) -> int:
    """How many decimals a column of a table needs: three, and up to five where its smallest number would hide."""
    sizes = [abs(v) for v in values if abs(v) > NOTHING]
    return min(5, max(3, 1 - math.floor(math.log10(min(sizes))))) if sizes else 3


def count(value: int | None) -> str:
    """A whole number with thin thousands."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def several(n: int, one: str, many: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def called(name: str, command: str = "") -> str:
    """A model by a name for people: of one that a study, recall or translate trained what it is and its seed, as in `baseline, seed 1`.

    Several of one kind, as in `seed-1, seed-2`, are one name: `models of seeds 1 and 2`. A folder such as
    `model` below one with a name is left out where the `command` of a record says MODEL, as it does of folders: a hub's
    OWNER/model stands there as it is. Any other name stays.
    """
    if run := _RUN.fullmatch(name):
        return f"{run[1].replace('-', ' ')}, seed {run[2]}"
    own = [_OWN.fullmatch(one) for one in name.split(", ")]
    found = [one for one in own if one is not None]
    if "MODEL" in command.split() and (plain := _FOLDER.fullmatch(name)):
        return plain[1]
    if len(found) < len(own) or len({one[1] for one in found}) > 1:
        return name
    of, seeds = TRAINED[found[0][1]], listed([one[2] for one in found])
    return f"model{of}, seed {seeds}" if len(found) == 1 else f"models{of}, seeds {seeds}"


def called_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Several models by names for people, or all by their own where two would be called the same."""
    found = tuple(map(called, names))
    return found if len(set(found)) == len(found) else tuple(names)


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def slug(text: str) -> str:
    """A text as part of a file's name; what has to be replaced is distinguished by a hash."""
    plain = re.sub(r"[^\w-]+", "-", text, flags=re.ASCII).strip("-")
    return plain if plain == text and len(text) <= 80 else f"{plain[:24] or 'label'}-{digest(text, 3)}"


def spoken(mean: Mean, unit: str = "", signed: bool = True) -> str:
    """A mean with its interval, as in `+0.120 nats (95 %: +0.0100 to +0.230)`."""
    unit = f"\u00a0{unit}" if unit else ""
    said = "one seed" if mean.n < 2 else f"the same in all {mean.n} seeds"
    said = said if mean.low is None else f"95\u00a0%: {ends(mean, signed)}"
    return f"{number(mean.mean, signed)}{unit} ({said})"


def tally(verdicts: Mapping[str, int]) -> str:
    """How many claims came out how."""
    total = sum(verdicts.values())
    parts = [f"{verdicts.get(v, 0)} {v}" for v in ("supported", "refuted", "inconclusive")]
    parts += [f"{verdicts['not tested']} not tested"] if verdicts.get("not tested") else []
    return f"Of {several(total, 'claim')}, {listed(parts)} here."


ClaimRow = dict[str, Any]  # a row of the table claims


def verdicts_said(claims: pl.DataFrame) -> list[tuple[ClaimRow, str]]:
    """Each claim's row with a line: its verdict, its effect with its interval, and why if it is inconclusive."""
    return [(row, _verdict_line(row)) for row in claims.filter(pl.col("part").is_null()).iter_rows(named=True)]


def _verdict_line(row: ClaimRow) -> str:
    line = f"{row['claim']}  {row['verdict']}: {row['sentence']}"
    if row["effect"] is not None and row["low"] is not None:
        ends = f"{number(row['low'], True)} to {number(row['high'], True)}"
        line += f" {number(row['effect'], True)} {row['unit']} (95\u00a0%: {ends})"
    why = why_open(row)
    return line + (f" ({why})" if why else "")


def why_open(row: ClaimRow) -> str:
    """Why a claim is open, in words; empty where it is not. What decides is how many units there are and were needed."""
    if row["reason"] != UNDECIDED:
        return row["reason"] or ""
    if row.get("seeds_needed"):
        return f"too uncertain: about {count(row['seeds_needed'])} needed, {count(row['n'])} run"
    return "too uncertain at the measured spread"


def verdict_lines(claims: pl.DataFrame) -> list[str]:
    """A line for each claim, as in `verdicts_said`."""
    return [line for _, line in verdicts_said(claims)]
