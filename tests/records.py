"""Records of what a command measured: its tables and its reply as JSON, and in what one record differs from another.

Words of pages are no part of a record, nor is what a run says of its machine: times, versions, folders, and hashes of either.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import polars as pl

Json: TypeAlias = Any

DIGITS = 8  # significant ones that are stored: a thousandth of the tolerance
LONGEST = 60  # characters of a text that are stored; of a longer one its first half and a hash are
HASH = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{32}|[0-9a-f]{16})(?![0-9a-f])|(?<=-)[0-9a-f]{8}(?![0-9a-f])")
RESIDUAL = re.compile(r"[0-9.]+e[+-][0-9]+")  # of a law that holds: nothing but rounding
FIXED = frozenset(("sentence", "margin_reason"))  # of claims: claims.txt has them
PROSE = frozenset(("words", "title", "notes", "findings", "facts"))
MACHINE = frozenset(("versions", "commit", "device", "path", "folder", "link", "report", "models", "cores", "workers"))
OF_A_RUN = re.compile(r"seconds|_time$|hash$|fingerprint$")


class Tolerance(NamedTuple):
    """How far two numbers may be apart: a share of the larger one, and a size."""

    share: float
    size: float

    def accepts(self, before: float, after: float, scale: float | None = None) -> bool:
        """Whether the numbers agree; `scale` is what the share is of, where they are a sum of larger numbers."""
        if not (math.isfinite(before) and math.isfinite(after)):
            return str(before) == str(after)
        most = max(abs(before), abs(after)) if scale is None else scale
        return abs(before - after) <= self.share * most + self.size


class RowLimit(NamedTuple):
    """How much of a table is stored: every row up to `most` of them, else `shown` rows and each column's total."""

    most: int = 200
    shown: int = 30


def is_left_out(name: str) -> bool:
    """Whether values of that name are words, or depend on the machine or the hour."""
    return name in FIXED | PROSE | MACHINE or OF_A_RUN.search(name) is not None


def simplify(value: object) -> Json:
    """A value as records have it: numbers rounded, texts shortened, JSON in a text read, what is empty or left out dropped."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return float(f"{value:.{DIGITS}g}")
        case str():
            return _simplify_text(value)
        case Mapping():
            items = {str(name): simplify(one) for name, one in value.items() if not is_left_out(str(name))}
            return {name: one for name, one in items.items() if one not in (None, "", [], {})}
        case Sequence():
            return [simplify(one) for one in value]
    raise TypeError(f"{type(value)} is not JSON")


def _simplify_text(value: str) -> Json:
    if value[:1] in ("{", "[") and "." in value:  # it may hold fractions
        try:
            content = json.loads(value)
        except ValueError:
            content = None
        if isinstance(content, dict | list):
            return simplify(content)
    value = RESIDUAL.sub("#", HASH.sub("#", value))
    return value if len(value) <= LONGEST else f"{value[: LONGEST // 2]}… {_hash(value)}"


def _hash(value: Json) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]


def read_tables(folder: Path) -> dict[str, pl.DataFrame]:
    """Every table of a folder of results, and of those inside it, by its path without `tables`."""
    paths = {path: path.relative_to(folder).with_suffix("").parts for path in sorted(folder.rglob("*.parquet"))}
    return {
        "/".join(part for part in parts if part != "tables"): pl.read_parquet(path)
        for path, parts in paths.items()
        if "tables" in parts
    }


def record_table(table: pl.DataFrame, limit: RowLimit) -> Json:
    """A table by column, its rows in an order that depends on names and values alone."""
    columns = {
        name: [simplify(value) for value in table[name]] for name in sorted(table.columns) if not is_left_out(name)
    }
    rows = _sort_rows(columns)
    shown = (
        [rows[i * (len(rows) - 1) // (limit.shown - 1)] for i in range(limit.shown)] if len(rows) > limit.most else rows
    )
    record = {"rows": len(rows), "columns": {name: [row[i] for row in shown] for i, name in enumerate(columns)}}
    if len(rows) > limit.most:
        record["totals"] = {name: _total([row[i] for row in rows]) for i, name in enumerate(columns)}
    return record


def _sort_rows(columns: Mapping[str, Sequence[Json]]) -> list[tuple[Json, ...]]:
    """Rows sorted by the columns without fractions, then by those with fractions, which rounding may have changed."""
    fractions = [any(isinstance(value, float) for value in values) for values in columns.values()]
    order = sorted(range(len(columns)), key=lambda i: fractions[i])
    return sorted(zip(*columns.values(), strict=True), key=lambda row: [_sort_key(row[i]) for i in order])


def _sort_key(value: Json) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float):
        return 0, value, ""
    return 1, 0.0, value if isinstance(value, str) else json.dumps(value)


def _total(values: Sequence[Json]) -> Json:
    """Of numbers: how many, their sum, the sum weighted by their place, and that of their sizes; else a hash of all."""
    numbers = [(i + 1, value) for i, value in enumerate(values) if _is_number(value)]
    if not numbers or len(numbers) < sum(value is not None for value in values):
        return _hash(list(values))
    sums = {
        "sum": math.fsum(value for _, value in numbers),
        "by place": math.fsum(value * place / len(values) for place, value in numbers),
        "size": math.fsum(abs(value) for _, value in numbers),
    }
    return {"n": len(numbers), **simplify(sums)}


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def dump_record(record: Json, depth: int = 0) -> str:
    """A record as JSON with a line for each column, in which a value that repeats stands once with its count."""
    if isinstance(record, list) and len(runs := _count_runs(record)) < len(record) / 2:
        record = {"runs": runs}
    elif isinstance(record, dict) and record and depth < 5:
        indent = "\n" + " " * depth
        lines = (
            f"{indent} {json.dumps(name, ensure_ascii=False)}: {dump_record(one, depth + 1)}"
            for name, one in record.items()
        )
        return f"{{{','.join(lines)}{indent}}}"
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _count_runs(values: Sequence[Json]) -> list[list[Json]]:
    runs: list[list[Json]] = []
    for value in values:
        if runs and type(runs[-1][0]) is type(value) and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def load_record(text: str) -> Json:
    """The record that such JSON holds."""

    def expand(content: dict[str, Json]) -> Json:
        return (
            [value for value, count in content["runs"] for _ in range(count)] if set(content) == {"runs"} else content
        )

    return json.loads(text, object_hook=expand)


def compare_records(before: Json, after: Json, tolerances: Mapping[str, Tolerance], where: str) -> Iterator[str]:
    """A line for each difference; `where` begins the path of each number, and the first pattern that fits a path has its tolerance."""
    if _is_table(before) and _is_table(after):
        yield from _compare_tables(before, after, tolerances, where)
    elif isinstance(before, dict) and isinstance(after, dict):
        yield from _compare_names(before, after, where)
        for name in (name for name in before if name in after):
            yield from compare_records(before[name], after[name], tolerances, f"{where}/{name}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{where}: {len(before)} values were there, {len(after)} are"
            return
        for i, (first, second) in enumerate(zip(before, after, strict=True)):
            yield from compare_records(first, second, tolerances, f"{where}/{i}")
    elif not _same_value(before, after, tolerances, where):
        yield f"{where}: {before!r} was there, {after!r} is"


def _is_table(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("columns"), dict)


def _agree(before: Json, after: Json, tolerances: Mapping[str, Tolerance], where: str) -> bool:
    return not any(compare_records(before, after, tolerances, where))


def _same_value(before: Json, after: Json, tolerances: Mapping[str, Tolerance], where: str) -> bool:
    if _is_number(before) and _is_number(after):
        return before == after or _tolerance(tolerances, where).accepts(before, after)
    return type(before) is type(after) and before == after


def _tolerance(tolerances: Mapping[str, Tolerance], where: str) -> Tolerance:
    return next(one for pattern, one in tolerances.items() if fnmatchcase(where, pattern))


def _compare_names(before: Mapping[str, Json], after: Mapping[str, Json], where: str) -> Iterator[str]:
    if names := [name for name in before if name not in after]:
        yield f"{where} lacks {', '.join(names)}"
    if names := [name for name in after if name not in before]:
        yield f"{where} has {', '.join(names)}, which was not there"


def _compare_tables(before: Json, after: Json, tolerances: Mapping[str, Tolerance], where: str) -> Iterator[str]:
    """Columns of one side alone; of each other column how many rows differ and the first of them; then totals.

    Where a column came or went, rows may stand in another order: they are sorted again by the columns that both have, and of a
    table of which some rows are stored the sums alone are compared.
    """
    yield from _compare_names(before["columns"], after["columns"], where)
    if before["rows"] != after["rows"]:
        yield f"{where}: {before['rows']} rows were there, {after['rows']} are"
        return
    names = [name for name in before["columns"] if name in after["columns"]]
    same, whole = (
        len(names) == len(before["columns"]) == len(after["columns"]),
        "totals" not in before and "totals" not in after,
    )
    if same or whole:
        sides = [{name: side["columns"][name] for name in names} for side in (before, after)]
        rows = [list(zip(*side.values(), strict=True)) if same else _sort_rows(side) for side in sides]
        for i, name in enumerate(names):
            place = f"{where}/{name}"
            apart = [pair for pair in zip(*rows, strict=True) if not _agree(pair[0][i], pair[1][i], tolerances, place)]
            if apart:
                (first, second), of = apart[0], len(rows[0])
                key = ", ".join(
                    f"{n} {v}" for n, v in zip(names, first, strict=True) if v is not None and not isinstance(v, float)
                )
                yield f"{place}: {len(apart)} of {of} rows differ: {first[i]!r} was there, {second[i]!r} is, where {key}"
    for name in names if "totals" in before and "totals" in after else ():
        yield from _compare_totals(before["totals"][name], after["totals"][name], tolerances, f"{where}/{name}", same)


def _compare_totals(
    before: Json, after: Json, tolerances: Mapping[str, Tolerance], where: str, same: bool
) -> Iterator[str]:
    """Of numbers their sums, and where rows stand in the same order those weighted by place too; else the hash."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        if before != after and same:
            yield f"{where}: other values, or in other rows"
        return
    one = _tolerance(tolerances, where)
    tolerance = one._replace(size=one.size * before["n"])
    for name in ("sum", "by place") if same else ("sum",):
        if before["n"] != after["n"] or not tolerance.accepts(before[name], after[name], before["size"]):
            yield f"{where}, {name} of all rows: {before[name]!r} over {before['n']} was there, {after[name]!r} over {after['n']} is"
