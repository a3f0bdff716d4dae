"""The manual: its contents name pages that exist, and every page of the docs is reached from them."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from trisect.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.S)


def listed(page: Path) -> list[Path]:
    """The pages that a page's tables of contents name, with their suffix."""
    names = [
        line
        for block in TOCTREE.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    return [found(page.parent / name.rpartition("<")[2].rstrip(">")) for name in names]


def found(place: Path) -> Path:
    path = next((p for p in (place.with_name(place.name + s) for s in (".md", ".ipynb")) if p.exists()), None)
    assert path is not None, f"a table of contents names {place}, which is no page"
    return path.resolve()


def test_every_page_is_reached_from_the_contents_and_every_entry_exists():
    reached, todo = {DOCS / "index.md"}, [DOCS / "index.md"]
    while todo:
        new = [page for page in listed(todo.pop()) if page not in reached]
        assert len(new) == len(set(new))
        reached |= set(new)
        todo += new
    pages = {path for suffix in ("md", "ipynb") for path in DOCS.rglob(f"*.{suffix}")}
    assert len(pages) > 60
    decisions = {path for path in pages if path.parent.name == "decisions" and path.name != "README.md"}
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in index for path in decisions)
    assert pages - decisions <= reached
    assert set((ROOT / "results").glob("*/README.md")) <= reached


def test_the_planted_worlds_table_is_that_of_the_results():
    rows = re.findall(
        r"^\| .* \| (?:cells|sites) \| .*$", (DOCS / "explanation" / "methods.md").read_text("utf-8"), re.M
    )
    results = (ROOT / "results" / "roles" / "README.md").read_text(encoding="utf-8")
    assert len(rows) > 10
    assert not [row for row in rows if row not in results]


def test_the_readme_is_short_and_its_answer_is_that_of_the_results():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert "[serve]" in readme.partition("## Start")[2].partition("\n## ")[0]  # what a command or method needs besides
    assert re.search(r"to_pandas\(\).*needs pandas", readme)
    assert {"make study", "make test"} <= {line.split("  ")[0].strip() for line in readme.splitlines()}
    results = (ROOT / "results" / "roles" / "README.md").read_text(encoding="utf-8")
    own = [
        float(found)
        for found in re.findall(r"^\| [qkv]@2 \| ([\d.]+)", results.split("interchange, share of pairs")[1], re.M)
    ]
    assert len(own) == 3
    assert all(f"{100 * share:.1f} %" in readme for share in own)


COMMON = ("--out", "--open", "--json", "--quiet")


def commands(group: click.Group, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, those of groups with them."""
    for word, one in group.commands.items():
        if isinstance(one, click.Group):
            yield from commands(one, f"{word} ")
        else:
            yield name + word, one


def test_the_page_on_options_lists_the_commands_that_lack_one():
    rows = re.findall(r"^\| (`.*?) \| (`--.*?) \|", (DOCS / "how-to" / "shell.md").read_text(encoding="utf-8"), re.M)
    said = {name: {*re.findall(r"`(.*?)`", lacks)} for names, lacks in rows for name in re.findall(r"`(.*?)`", names)}
    lacking = {
        name: missing
        for name, one in commands(main)
        if not one.hidden and (missing := set(COMMON) - {word for option in one.params for word in option.opts})
    }
    assert said == lacking
    assert len(lacking) > 5


def test_every_column_of_the_shared_tables_is_explained():
    rows = re.findall(
        r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", (DOCS / "reference" / "tables.md").read_text(encoding="utf-8"), re.M
    )
    assert len(rows) > 80
    assert [name for name, _, said in rows if not said] == []
