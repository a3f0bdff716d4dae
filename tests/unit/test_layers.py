"""The layers of design.md: imports point down, some packages never know each other, and there is no cycle."""

import ast
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "trisect"
PATHS = sorted(p for p in SRC.rglob("*.py"))
LAYER = {
    "core": 0,
    "stats": 1,
    **dict.fromkeys(("lab", "engine", "report", "claims", "papers", "text", "lm", "hf", "measure", "theory"), 2),
    "experiments": 3,
    **dict.fromkeys(("cli", "server", "api", "calls", ""), 4),  # the Python API, the command line, the served page
}
READS_OTHERS = "dissect"  # the one experiment that reads what the others found


def module(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def package(name: str) -> str:
    return name.split(".")[0]


MODULES = {module(p) for p in PATHS}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, typing: bool = True) -> set[str]:
    """Every module that a file imports, wherever in it; without `typing`, not what it imports for type checking alone."""
    found: set[str] = set()
    todo: list[ast.AST] = [tree(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += [*node.body, *node.orelse] if typing else []
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = {f"{node.module}.{a.name}" for a in node.names}  # a module of a package, else a name in that module
            found |= {n if n.removeprefix("trisect.") in MODULES else node.module or "" for n in names}
        elif not isinstance(node, ast.expr):  # no statement stands inside an expression
            todo += ast.iter_child_nodes(node)
    return found


@cache
def ours(typing: bool = True) -> dict[str, set[str]]:
    """By module: the project's own modules that it imports."""
    graph: dict[str, set[str]] = {}
    for path in PATHS:
        named = (i for i in imports(path, typing) if i.split(".")[0] == "trisect")
        found = {i.removeprefix("trisect").lstrip(".") for i in named}
        graph[module(path)] = found & (MODULES - {module(path), ""})
    return graph


@cache
def theirs() -> dict[str, set[str]]:
    """By module: the packages of others that it imports when it runs."""
    return {module(p): {i.split(".")[0] for i in imports(p, typing=False)} - {"trisect"} for p in PATHS}


def experiment(name: str) -> str | None:
    return name.split(".")[1] if name.startswith("experiments.") else None


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_down_or_stay_in_the_layer(name):
    for other in ours()[name]:
        assert LAYER[package(other)] <= LAYER[package(name)], f"{name} imports {other}"


@pytest.mark.parametrize("name", sorted(n for n in MODULES if experiment(n)))
def test_one_experiment_never_imports_another(name):
    if experiment(name) != READS_OTHERS:
        assert {experiment(o) for o in ours()[name]} <= {None, experiment(name)}, name


def test_what_must_never_know_what():
    forbidden = {
        "lm": {"hf"},
        "hf": {"lm"},
        "measure": {"lm", "hf"},
        "text": {"lm", "hf", "measure"},
        "papers": {"lm", "text", "claims"},
        "theory": {"lm", "hf", "text", "measure", "claims", "report"},
        "core": set(LAYER) - {"core"},
        "stats": set(LAYER) - {"core", "stats"},
    }
    for name, found in ours().items():
        assert not {package(o) for o in found} & forbidden.get(package(name), set()), name


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in sorted(MODULES)
        if package(n) in ("report", "claims", "core", "stats", "papers", "theory")
        or (experiment(n) and n.endswith(".page"))
    ],
)
def test_no_torch_below_the_verdicts_and_in_pages(name):
    reached, todo = set(), {name}
    while todo:
        here = todo.pop()
        reached.add(here)
        todo |= ours(typing=False)[here] - reached
    assert not {n for n in reached if "torch" in theirs()[n]}


def test_transformers_only_in_hf():
    assert not [n for n, found in theirs().items() if "transformers" in found and package(n) != "hf"]


def test_there_is_no_cycle():
    """Also among imports for type checking alone."""
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in ours()[name]:
                walk(other, (*path, name))
            done.add(name)

    for name in MODULES:
        walk(name, ())


@pytest.mark.parametrize("path", PATHS, ids=module)
def test_modules_are_small_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 900
    assert (ast.get_docstring(tree(path)) or "").splitlines()[0].endswith((".", "?"))
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            limit = 60 if isinstance(node, ast.FunctionDef) else 250
            assert (node.end_lineno or 0) - node.lineno < limit, node.name


def test_importing_the_package_is_light():
    import subprocess
    import sys

    heavy = (
        "torch",
        "polars",
        "altair",
        "spacy",
        "scipy",
        "rich",
        "datasets",
        "transformers",
        "sklearn",
    )
    code = f"import sys, trisect, trisect.cli; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
