"""All measurements of speed in one table, docs/bench.md.

PYTHONPATH=. python bench/table.py
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import gpu
import memory
import reading
import real
import torch
import training

import pages
from trisect.core.machine import versions

PAGE = pages.PAGE
KEPT = PAGE.with_suffix(".json")  # by processor, every part's rows with the day on which they were measured
PARTS: dict[str, Callable[[], list[dict[str, object]]]] = {
    "step": training.step_rows,
    "rewinding": training.rewind_rows,
    "fleets": training.fleet_rows,
    "whole": training.study_rows,
    "norms": reading.norms_rows,
    "memory": memory.memory_rows,
    "growth": memory.growth_rows,
    "similarity": reading.similarity_rows,
    "profiling": reading.probe_rows,
    "proof": reading.proof_rows,
    "reading": reading.read_rows,
    "patching": reading.patching_rows,
    "explorer": pages.explorer_rows,
    "serving": pages.serving_rows,
    "serving-memory": pages.memory_rows,
    "real": real.rows,
    "gpu": gpu.rows,
}


def processor() -> str:
    """The processor's name, as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    wide = next((w for w in ("amx_tile", "avx512f", "avx2") if any(w in x for x in lines if x.startswith("flags"))), "")
    return f"{names[0] if names else platform.processor()} ({wide}), {len(names)} cores"


def line(row: dict[str, object]) -> str:
    """One row of the table."""
    ratio = row.get("ratio")
    spread = f"{row['low']:.2f}–{row['high']:.2f}" if ratio is not None else ""
    times = f"**{ratio:.2f}**" if ratio is not None else ""
    return f"| {row['what']} | {row['plain']} | {row['ours']} | {times} | {spread} |"


def page(parts: dict[str, dict[str, Any]]) -> str:
    """The page: how it was measured, and for each processor a table, the fullest first."""
    text = [
        "# Speed",
        "",
        "Written by `make bench` (`PYTHONPATH=. python bench/table.py PART…` measures those parts again and keeps the others).",
        "Ratios are plain (of several tools, the nearest) / trisect: both ways in one run, in turn, one thread each unless the row",
        "says otherwise; medians of paired rounds, with least and largest. Seconds are of CPU unless a row says wall time.",
        "Versions and notes stand in `docs/bench.json`.",
        "",
    ]
    newest = {
        part: max((of[part]["made"], name) for name, of in parts.items() if part in of)[1]
        for part in {*PARTS} & {*chain(*parts.values())}
    }
    for name, of in sorted(parts.items(), key=lambda item: -len(item[1])):
        text += section(name, [of[part] for part in PARTS if newest.get(part) == name])
    return "\n".join([*text, *"".join(PAGE.read_text(encoding="utf-8").partition(pages.SHEETS)[1:]).split("\n")])


def section(name: str, parts: list[dict[str, Any]]) -> list[str]:
    """What was measured on one processor."""
    rows = [row for part in parts for row in part["rows"]]
    return [
        f"## {name}",
        "",
        f"Measured on {', '.join(sorted({part['made'][:10] for part in parts}))}.",
        "",
        "| what | plain | trisect | ratio | over rounds |",
        "| --- | --- | --- | --- | --- |",
        *map(line, rows),
        "",
    ]


def main(wanted: list[str]) -> None:
    """Measure the parts named (all, where none is) and write the page."""
    threads, here = torch.get_num_threads(), processor()
    parts = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    software = ", ".join(f"{name} {number}" for name, number in versions().items())
    of = parts.setdefault(here, {})
    for name, part in PARTS.items():
        if not wanted or name in wanted:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            day = datetime.datetime.now(datetime.UTC).date()
            of[name] = {"made": f"{day}: {software}", "rows": part()}
            torch.set_num_threads(threads)
            KEPT.write_text(json.dumps(parts, indent=1, ensure_ascii=False), encoding="utf-8")
            PAGE.write_text(page(parts), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
