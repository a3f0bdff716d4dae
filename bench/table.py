"""All measurements of speed in one table, docs/bench.md.

PYTHONPATH=. python bench/table.py
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Callable
from functools import partial
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
KEPT = PAGE.with_suffix(".json")  # by processor, part and release, rows with the day on which they were measured
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
    "load": reading.load_rows,
    "reading": reading.read_rows,
    "patching": reading.patching_rows,
    "gradient": reading.gradient_rows,
    "explorer": pages.explorer_rows,
    "serving": pages.serving_rows,
    "real": real.rows,
    "start": partial(real.rows, "start"),
    "gpu": gpu.rows,
}


def processor() -> str:
    """The processor's name, as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    wide = next((w for w in ("amx_tile", "avx512f", "avx2") if any(w in x for x in lines if x.startswith("flags"))), "")
    return f"{names[0] if names else platform.processor()} ({wide}), {len(names)} cores"


def line(seen: list[tuple[str, str, dict[str, Any]]]) -> str:
    """One row of the table, of its measurements: processor, release and row, the newest first."""
    _, release, new = seen[0]
    alike = {name: row for name, of, row in reversed(seen) if of == release}
    ratio = f"**{new['ratio']:.2f}**" if "ratio" in new else ""
    before = ", ".join(f"{of}: {row['ratio']:.2f}" for _, of, row in seen if "ratio" in row and of != release)
    spread = [
        f"{edge(row[name] for row in alike.values()):.2f}" for edge, name in ((min, "low"), (max, "high")) if ratio
    ]
    two = f" ({len(alike)} processors)" if len(alike) > 1 and ratio else ""
    return f"| {new['what']} | {new['plain']} | {new['ours']} | {ratio} | {'–'.join(spread)}{two} | {before} |"


def page(parts: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The page: how it was measured, and a table of all rows, each over the processors that it was measured on."""
    text = [
        "# Speed",
        "",
        "Written by `make bench` (`PYTHONPATH=. python bench/table.py PART…` measures those parts again and keeps the others).",
        "Ratios are plain (of several tools, the nearest) / trisect: both ways in one run, in turn, one thread each unless the row",
        "says otherwise; the newest run's median, and least and largest over all rounds and processors of that release. Seconds are of",
        "CPU unless a row says wall time. Of GPT-2, BERT, TinyLlama and Whisper tiny.en only the size:",
        f"random weights. Processors: {'; '.join(sorted(parts))}. Versions, days and notes: `docs/bench.json`.",
        "",
        "| what | plain | trisect | ratio | least–largest | before |",
        "| --- " * 6 + "|",
    ]
    for part in PARTS:
        each = [(release, of["made"], name, of) for name in parts for release, of in parts[name].get(part, {}).items()]
        found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
        for release, _, name, of in sorted(each, key=lambda one: one[:3], reverse=True):
            for row in of["rows"]:
                found.setdefault(row["what"].partition("; plain")[0], []).append((name, release, row))
        text += [line(seen) for seen in found.values() if seen[0][1] == max(each)[0]]
    return "\n".join([*text, "", *"".join(PAGE.read_text(encoding="utf-8").partition(pages.SHEETS)[1:]).split("\n")])


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
            of.setdefault(name, {})[versions()["trisect"]] = {"made": f"{day}: {software}", "rows": part()}
            torch.set_num_threads(threads)
            KEPT.write_text(json.dumps(parts, indent=1, ensure_ascii=False), encoding="utf-8")
            PAGE.write_text(page(parts), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
