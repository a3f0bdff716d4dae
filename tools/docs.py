"""Fill in what the docs generate from the code: the README's tree and the page of --help texts."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import click

from trisect.cli import main

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "trisect"
WINGS = ("core", "text", "lm", "hf", "measure", "theory", "claims", "papers", "lab", "report", "door", "cli")
BEGIN, END = "<!-- tree: made by tools/docs.py -->", "<!-- /tree -->"


def sentence(path: Path) -> str:
    """The first line of a room's docstring: what it is."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()[0]


def tree() -> str:
    """Every wing and room with its sentence."""
    lines = ["src/trisect/"]
    for wing in WINGS:
        lines.append(f"  {wing + '/':<22}{sentence(HOUSE / wing / '__init__.py')}")
        rooms = sorted(p for p in (HOUSE / wing).glob("*.py") if p.name != "__init__.py")
        lines += [f"    {p.name:<20}{sentence(p)}" for p in rooms]
    lines += [f"  {p.name:<22}{sentence(p)}" for p in sorted(HOUSE.glob("*.py"))]
    return "\n".join(lines)


def readme() -> str:
    """The README with its tree filled in."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n```text\n{tree()}\n```\n{END}{rest.split(END)[1]}"


def commands(command: click.Command, name: str, parent: click.Context | None = None) -> list[tuple[str, str]]:
    """(full name, --help text) of a command and of all below it."""
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True, terminal_width=100)
    found = [(name, command.get_help(context))]
    for each, child in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
        found += commands(child, f"{name} {each}", context)
    return found


def cli_page() -> str:
    """docs/cli.md, as it should be."""
    parts = ["# The command line\n\nMade by `make docs` from the commands themselves.\n"]
    parts += [f"## {name}\n\n```text\n{text}\n```\n" for name, text in commands(main, "trisect")]
    return "\n".join(parts)


PAGES = {ROOT / "README.md": readme, ROOT / "docs" / "cli.md": cli_page}

if __name__ == "__main__":
    stale = [path for path, make in PAGES.items() if not path.exists() or path.read_text(encoding="utf-8") != make()]
    if "--check" not in sys.argv:
        for path in stale:
            path.write_text(PAGES[path](), encoding="utf-8")
    elif stale:
        sys.exit(f"stale: {', '.join(map(str, stale))}; run 'make docs'")
