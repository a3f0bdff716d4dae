"""Fill in what the docs generate from the code: the trees of packages and modules, and the page of --help texts."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
import textwrap
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import click

import trisect
from trisect import measure, theory
from trisect.api import signature
from trisect.cli import main
from trisect.core.schema import flat_settings
from trisect.core.tables import MeasureName
from trisect.experiments import EXPERIMENTS, UTILITIES
from trisect.lab.experiment import Experiment, Result, Utility

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "trisect"
KINDS = {"TEXT": "text", "REAL": "real number", "INTEGER": "whole number", "pl.Boolean": "true or false"}
FULL = ("Reading", "Site", "Trace")  # classes whose whole docstring the API shows
SHARED = 2  # commands that have the same option, from which on it is explained once
COMMON = {  # options of nearly every command: the page on options lists those that lack one
    "--help": "Show this message and exit.",
    "--out": "The folder for the results (of explore, the page). [default: below](#where-results-go)",
    "--open": "Open the page in a browser at the end.",
    "--json": "Print the result as JSON.",
    "--quiet": "Show no progress, and print only where the results are.",
}
GROUPS = {  # options that come together, as a command has them
    "model": ("norms", "--revision --dtype --device --pickle --remote-code"),
    "texts": ("norms", "--corpus --text --audio --image --split --reader --limit"),
    "pairs": ("patch", "--base --donor --pairs --split"),
    "several": ("norms", "--units --workers --engine"),
    "training": ("recall", "--device --workers --engine"),
    "study": ("study", "--corpus --epochs --sites --only --force --fleet"),
}
CLI = """# The command line

Made by `make docs` from the commands themselves. Options of several commands stand here once: the first five are those of
[nearly every command](how-to/shell.md), others are named at the end of a command, [in brackets] those under such a heading.

| option | is |
| --- | --- |"""
RESULTS = """## Where results go

Without `--out`, in the folder where the command is called: under the command's name, followed by the model that it reads or the
preset that it trains. What lies there and is not of the same command is never written over; a study, a dissection, recall and
translation go on where they stopped.

| command | results |
| --- | --- |"""


def commands(command: click.Command, name: str, parent: click.Context | None = None) -> list[tuple[str, str]]:
    """(full name, --help text) of a command and of all below it."""
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True, terminal_width=100)
    helps = [(name, command.get_help(context).partition("\n\nLook:")[0])]
    for each, child in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
        helps += commands(child, f"{name} {each}", context)
    return helps


def cli_page() -> str:
    """docs/cli.md: the help of every command; options of several commands stand in one table, by group."""
    entry = re.compile(r"^  (-\S[^\n]*(?:\n {4,}[^\n]*)*)\n?", re.M)
    texts = {name: text.replace("  -h, --help", "  --help") for name, text in commands(main, "trisect")}
    found = {name: [option(raw) for raw in entry.findall(text)] for name, text in texts.items()}
    counts = Counter((title, text) for options in found.values() for title, text, _ in options)
    defaults = {key: {one[2] for options in found.values() for one in options if one[:2] == key} for key in counts}
    groups = {
        f"[{group}]": [one[:2] for one in found[f"trisect {like}"] if one[0].split()[0] in words.split()]
        for group, (like, words) in GROUPS.items()
    }
    grouped = {key: group for group, keys in groups.items() for key in keys}
    rows = {group: [f"| **{group}** | |"] if group else [] for group in ("", *groups)}
    for title, text in sorted(counts, key=lambda key: key[0].split()[0] not in COMMON):
        if counts[title, text] >= SHARED:
            default = max(defaults[title, text]) if len(defaults[title, text]) == 1 else ""
            rows[grouped.get((title, text), "")].append(f"| `{title}` | {cell(f'{text} {default}'.strip())} |")
    parts = [CLI, *(row for table in rows.values() for row in table), ""]
    for name, text in texts.items():
        shared = {one[:2]: one for one in found[name] if counts[one[:2]] >= SHARED}
        text = entry.sub(lambda match: "" if option(match[1])[:2] in shared else match[0], text)  # noqa: B023
        also: list[str] = []
        for key, (title, _, default) in shared.items():
            word = title.split()[0]
            if word not in COMMON:
                whole = key in grouped and all(each in shared for each in groups[grouped[key]])
                varies = f" (default: {default[10:-1]})" if default and len(defaults[key]) > 1 else ""
                also.append(grouped[key] if whole else word + varies)
        more = f"\n\n  And {' '.join(dict.fromkeys(also))}" if also else ""
        text = re.sub(r"Options:\n+(?=Commands|$)", "", text.rstrip() + "\n").rstrip()
        parts.append(f"## {name}\n\n```text\n{text}{more}\n```\n")
    parts += [RESULTS, *(f"| `trisect {one.name}` | `{one.where}` |" for one in EXPERIMENTS), ""]
    return "\n".join(parts)


def option(raw: str) -> tuple[str, str, str]:
    """An option's lines in a help text as its name and value, what it is, and its default."""
    title, _, text = re.sub(r"\n\s+", " ", raw).partition("  ")
    text, mark, default = re.sub(r"\s+", " ", text.strip()).partition("[default: ")
    name = title.split()[0]
    if name in COMMON and (default or name != "--out"):  # the folder that must be named is another
        return (title, COMMON[name], "")
    return title, text.strip(), mark + default


MEASURES = """# Measures

Made by `make docs` from `trisect.MeasureName`, whose members are these names: `table.filter(measure=trisect.MeasureName.OVERLAP)`.
They stand in the columns `measure` and `name` of the [tables](tables.md). Any may end in `_low`, `_high` (95 % interval), `_p`
(one test), `_p_holm` (after Holm over its family), `_z` (standard deviations from its null), `_null` (mean of the null), `_sd` (over
models). Letters with numbers are sections of [definitions](../explanation/definitions.md)."""
API = """# The Python API

Made by `make docs` from the code. A command and its function have one name (`-` is `_`), an option and its setting too: they
stand in [the command line](cli.md), defaults in `help(trisect.NAME)`. Texts (`--corpus`, `--split`, `--reader`, `--limit`, `--text`)
are the one argument `texts`. Where a package has a command's name the function has another: `explore_page`, `theory_page`,
`render` (`report`), `list_claims` (`claims`), `prove` (`check` of a model), `corpus` and `annotate` (`corpus …`).

| function | command |
| --- | --- |"""


def api_page() -> str:
    """docs/api.md: every function of an experiment beside its command, then everything else that `trisect` exports."""
    functions = (*EXPERIMENTS, *UTILITIES)
    parts = [API]
    for one in functions:
        inputs = [p.name for p in signature(one).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        parts.append(f"| `trisect.{one.python}({', '.join([*inputs, '…'])})` | `trisect {one.name}` |")
    parts += ["", "Settings without an option of their own:\n", "| setting | is |\n| --- | --- |"]
    bare = {
        (s.name, s.help) for one in functions for s in flat_settings(one.settings) if not (s.words or s.option.argument)
    }
    parts += [*(f"| `{name}` | {cell(text)} |" for name, text in sorted(bare)), ""]
    parts += [documented(f"trisect.{name}", getattr(trisect, name)) for name in sorted(trisect._HOME)]
    for package in (measure, theory):
        names = sorted(f"`{info.name}`" for info in pkgutil.iter_modules(package.__path__))
        parts.append(f"## {package.__name__}\n\n{cell(inspect.getdoc(package) or '')} Modules: {', '.join(names)}.\n")
    return "\n".join(parts)


def cell(text: str) -> str:
    """The first line of a text as a cell of a table."""
    return text.partition("\n")[0].replace("|", "\\|")


def documented(name: str, thing: Any, level: str = "##") -> str:
    """A function or class by its name, parameters and docstring."""
    try:
        members = issubclass(thing, Enum) if inspect.isclass(thing) else False
        inputs = inspect.signature(thing).parameters.values()
        parameters = "name" if members else ", ".join(map(parameter, inputs))
    except ValueError:
        parameters = "…"
    short = name.split(".")[-1]
    called = textwrap.fill(f"{short}({parameters})", 116, subsequent_indent="    ", break_on_hyphens=False)
    text = inspect.getdoc(thing) or ""
    said = text.partition("\n\n")[0] if inspect.isclass(thing) and short not in FULL else text
    return f"{level} {name}\n\n```text\n{called}\n\n{said}\n```\n"


def parameter(one: inspect.Parameter) -> str:
    """A parameter with its default, the same on every machine."""
    star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    value = re.sub(r" at 0x[0-9a-f]+", "", repr(one.default))
    default = "" if one.default is one.empty else f"={value if len(value) <= 24 and one.default is not ... else '…'}"
    return f"{star}{one.name}{default}"


def measures_page() -> str:
    """docs/reference/measures.md: every measure's name, unit, meaning and equation, under the comment above it in the code."""
    lines = [MEASURES]
    source = inspect.getsource(MeasureName)
    for title, name in re.findall(r"^    (?:# (.+)|([A-Z_]+) = )", source, re.M):
        if title:
            lines += ["", f"## {title}", "", "| name | unit | meaning | equation |", "| --- | --- | --- | --- |"]
        else:
            one = MeasureName[name]
            cells = (f"`{one}`", one.unit, one.meaning, one.equation)
            lines.append(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |")
    return "\n".join(lines) + "\n"


def tables_page() -> str:
    """docs/reference/tables.md: every column of the tables that experiments share, with its comment in the code."""
    lines = [
        "# Tables",
        "",
        "Made by `make docs` from `trisect.core.tables`. Every table is a Parquet file, `OUT/tables/NAME.parquet`.",
        "A missing value is null. Tables of one experiment alone (`interchanges`, `pairs`, …) say their columns themselves.",
    ]
    source = (SRC / "core" / "tables.py").read_text(encoding="utf-8")
    for name, columns in re.findall(r'^    "(\w+)": \{(.*?)\}', source, re.S | re.M):
        lines += ["", f"## {name}", "", "| column | type | is |", "| --- | --- | --- |"]
        for column, kind, said in re.findall(r'"(\w+)": ([\w.]+),?(?: *# (.*))?', columns):
            lines.append(f"| `{column}` | {KINDS[kind]} | {said} |")
    return "\n".join(lines) + "\n"


def shown(one: Experiment[Any, Any] | Utility[Any]) -> str:
    """A function's parameters and result, one a line, as they stand in the stub."""
    lines, starred = [], False
    for name, each in signature(one).parameters.items():
        if each.kind is each.KEYWORD_ONLY and not starred:
            lines, starred = [*lines, "*"], True
        default = "" if each.default is each.empty else f" = {each.default!r}"
        lines.append(f"{name}: {spelt(each.annotation)}{default}")
    return "(\n    " + ",\n    ".join(lines) + f",\n) -> {result(one)}"


def spelt(annotation: Any) -> str:
    """A type as source has it."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(annotation))


def result(one: Experiment[Any, Any] | Utility[Any]) -> str:
    """The type of what a function returns."""
    if isinstance(one, Utility):
        return one.gives.__name__
    return f"Result[{one.facts.__name__}]" if one.returns is Result else one.returns.__name__


def stub() -> str:
    """src/trisect/__init__.pyi: what a type checker knows of the package, whose names are imported on first use."""
    lines = [
        "# Made by `make docs` from trisect.__init__ and the experiments' settings.",
        "",
        "from collections.abc import Mapping, Sequence",
        "from pathlib import Path",
        "from typing import Any",
        "",
        "from trisect import measure as measure",
        "from trisect import theory as theory",
    ]
    lines += [f"from trisect.{home} import {name} as {name}" for name, home in sorted(trisect._HOME.items())]
    lines += ["from trisect.lab.experiment import Result"]
    results = [
        one.returns for one in EXPERIMENTS if one.returns is not Result and one.returns.__name__ not in trisect._HOME
    ]
    lines += [f"from {one.__module__} import {one.__name__}" for one in results]
    for one in EXPERIMENTS:
        lines.append(f"from {one.settings.__module__} import {one.facts.__name__}")
    lines += [f"from {one.gives.__module__} import {one.gives.__name__}" for one in UTILITIES]
    for one in (*EXPERIMENTS, *UTILITIES):
        lines += ["", f"def {one.python}{shown(one)}: ..."]
    return "\n".join(lines) + "\n"


PAGES = {
    ROOT / "docs" / "cli.md": cli_page,
    ROOT / "docs" / "api.md": api_page,
    ROOT / "docs" / "reference" / "tables.md": tables_page,
    ROOT / "docs" / "reference" / "measures.md": measures_page,
    SRC / "__init__.pyi": stub,
}

if __name__ == "__main__":
    stale = [path for path, make in PAGES.items() if not path.exists() or path.read_text(encoding="utf-8") != make()]
    if "--check" not in sys.argv:
        for path in stale:
            path.write_text(PAGES[path](), encoding="utf-8")
    elif stale:
        sys.exit(f"stale: {', '.join(map(str, stale))}; run 'make docs'")
