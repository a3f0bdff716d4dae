"""Imports inside functions: only of what a command's start, a model of one's own or an install without extras does without."""

import ast
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "trisect"
FILES = {
    ".".join(p.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__"): p for p in SRC.rglob("*.py")
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
SLOW = {
    "safetensors",
    "scipy",
    "sklearn",
    "tokenizers",
    "torch",
    "transformers",
}  # seconds before the first line is run
EXTRAS = {
    "PIL",
    "anywidget",
    "datasets",
    "fsspec",
    "huggingface_hub",
    "ray",
    "spacy",
    "traitlets",
    "uvicorn",
}
START = (
    "trisect.api",
    "trisect.calls",
    "trisect.server.run",
    "trisect.lab.experiment",
    "trisect.lab.inputs",
)  # import trisect; trisect --help
BEHIND_EXTRAS = {  # modules whose first lines import an extra
    "trisect.engine.on_ray",
    "trisect.server.app",
}


def named(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that one statement imports."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    within = [f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in FILES]
    return within or [node.module or ""]


def at_the_top(body: list[ast.stmt]) -> set[str]:
    """What a module imports when it is imported."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= set(named(node))
        elif isinstance(node, ast.If) and not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            found |= at_the_top([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            found |= at_the_top(node.body)
    return found


@cache
def loaded_with(name: str) -> frozenset[str]:
    """Every module of the package that is imported with one, packages above it included."""
    found, todo = set[str](), [name]
    while todo:
        here = todo.pop()
        if here in FILES and here not in found:
            found.add(here)
            todo += [here.rpartition(".")[0], *at_the_top(TREES[here].body)]
    return frozenset(found)


def lazy() -> list[tuple[str, str]]:
    """(module, what a function of it imports)."""
    found = set[tuple[str, str]]()
    for name, tree in TREES.items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                statements = (n for n in ast.walk(function) if isinstance(n, ast.Import | ast.ImportFrom))
                found |= {(name, one) for statement in statements for one in named(statement)}
    return sorted(found)


def reason(name: str, imported: str) -> str | None:
    """Why that import waits for its function to be called; null where nothing says so."""
    package = imported.split(".")[0]
    if package in EXTRAS or imported in BEHIND_EXTRAS:
        return "an extra"
    if package in SLOW:
        return "a slow library"
    begins = name in START or name in loaded_with("trisect.cli") or name.endswith(".result")
    if package != "trisect" or imported in loaded_with(name):
        return None
    if begins:
        return "the start of a command"
    return "models of others" if imported.startswith("trisect.hf.") else None


@pytest.mark.parametrize(("name", "imported"), lazy())
def test_an_import_inside_a_function_has_its_reason(name, imported):
    assert reason(name, imported) is not None


def test_an_import_without_a_reason_is_found():
    assert reason("trisect.stats.interval", "math") is None
    assert reason("trisect.calls", "trisect.core.errors") is None  # loaded with it anyway
    assert reason("trisect.measure.norms", "trisect.stats.interval") is None
