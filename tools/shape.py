"""The shape of a source tree: sizes, cycles, lazy imports, repeated type names. `python tools/shape.py [FOLDER]`."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).parents[1] / "src" / "trisect"


class Shape(NamedTuple):
    """Counts over a package: modules and lines, the median and largest module, and what makes it hard to change."""

    modules: int
    lines: int
    median_module: float
    largest_module: int
    modules_in_cycles: int
    lazy_imports: int
    repeated_public_types: int
    dict_of_any_lines: int
    public_functions_returning_any: int


def shape(src: Path) -> Shape:
    """Count over every module below `src`."""
    texts = {p: p.read_text(encoding="utf-8") for p in sorted(src.rglob("*.py"))}
    trees = {p: ast.parse(text) for p, text in texts.items()}
    sizes = [len(text.splitlines()) for text in texts.values()]
    types = Counter(name for tree in trees.values() for name in public_types(tree))
    return Shape(
        len(texts),
        sum(sizes),
        statistics.median(sizes),
        max(sizes),
        len(in_cycles({name(p, src): imported(tree, src) for p, tree in trees.items()})),
        sum(map(lazy, trees.values())),
        sum(n > 1 for n in types.values()),
        sum("dict[str, Any]" in line for text in texts.values() for line in text.splitlines()),
        sum(map(returning_any, trees.values())),
    )


def name(path: Path, src: Path) -> str:
    """A module's name below the package, with dots."""
    return ".".join(path.relative_to(src).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def imported(tree: ast.Module, src: Path) -> set[str]:
    """The package's own modules that a module imports, for type checking too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == src.name:
            base = (node.module or "").removeprefix(src.name).lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                place = src.joinpath(*inner.split("."))
                found.add(inner if place.with_suffix(".py").exists() or place.is_dir() else base)
    return found


def in_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Modules that reach themselves by imports."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            here = todo.pop()
            if here not in seen and here in graph:
                seen.add(here)
                todo += graph[here]
        return seen

    return {module for module in graph if module and module in reached(module)}


def lazy(tree: ast.Module) -> int:
    """Imports of the package's own modules inside functions."""
    inside = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trisect")
    }
    return len(inside)


def public_types(tree: ast.Module) -> list[str]:
    """Classes and aliases of types that a module defines, without a leading underscore."""
    found = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            found.append(ast.unparse(node.target))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and node.targets[0]:
            known = ast.unparse(node.value.value).split(".")[-1]
            if known in ("dict", "list", "tuple", "Callable", "Mapping", "Sequence", "Annotated", "Iterator"):
                found.append(ast.unparse(node.targets[0]))
    return [name for name in found if not name.startswith("_")]


def returning_any(tree: ast.Module) -> int:
    """Public functions and methods whose result is annotated as Any."""
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and not n.name.startswith("_"))
    return sum(function.returns is not None and ast.unparse(function.returns) == "Any" for function in functions)


if __name__ == "__main__":
    found = shape(Path(sys.argv[1]) if len(sys.argv) > 1 else SRC)
    for key, value in found._asdict().items():
        print(f"{key.replace('_', ' '):<32}{value:,}")
