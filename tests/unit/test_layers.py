"""The layers of docs/architecture.md: which package imports which, no cycle, files of one subject, and imports that wait.

An import inside a function is only of what a command's start, a model of one's own or an install without extras does without.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "trisect"
BELOW = {"core"}
USED = BELOW | {"stats", "text", "lm", "hf", "measure", "theory", "papers", "claims", "report", "engine"}
# by package: those that it may import besides itself; '' is `import trisect`
ALLOWED = {
    "core": set[str](),
    "stats": BELOW,
    "text": BELOW,
    "theory": BELOW,
    "papers": BELOW,
    "engine": BELOW,
    "measure": BELOW | {"stats"},
    "lm": BELOW | {"text"},
    "hf": BELOW | {"text", "measure"},
    "claims": BELOW | {"stats", "papers"},
    "report": BELOW | {"stats", "papers", "claims"},
    "lab": USED,
    "experiments": USED | {"lab"},
    **dict.fromkeys(("cli", "server", "api", "calls", ""), USED | {"lab", "experiments", "server", "calls"}),
}
READS_OTHERS = "dissect"  # the one experiment that reads what the others found
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
    "h11",
    "huggingface_hub",
    "ray",
    "soundfile",
    "spacy",
    "traitlets",
    "uvicorn",
}
BEHIND_EXTRAS = {"engine.on_ray", "server.app"}  # whose first lines import an extra
START = {"api", "calls", "lm.edits", "server.run", "lab.experiment", "lab.inputs"}  # a first command, and its help


def module(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix("__init__").rstrip(".")


PATHS = {module(path): path for path in sorted(SRC.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """Every module's statements, read when a test first asks for them: each process that runs tests imports this file."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in PATHS.items()}


def package(name: str) -> str:
    return name.split(".")[0]


def experiment(name: str) -> str | None:
    return name.split(".")[1] if name.startswith("experiments.") else None


def named(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The modules that a statement imports; ours begin with 'trisect.'"""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert node.level == 0, "a relative import"
    names = {f"{node.module}.{alias.name}" for alias in node.names}  # a module of a package, else a name in that module
    return {one if one.removeprefix("trisect.") in PATHS else node.module or "" for one in names}


def imports(body: list[ast.stmt], typing: bool = True, inside: bool = True) -> Iterator[str]:
    """What statements import; without `typing` not for type checking alone, without `inside` not in functions and classes."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from named(node)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from imports([*node.body, *node.orelse] if typing else node.orelse, typing, inside)
        elif inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.expr)]
            yield from imports([part for part in parts if isinstance(part, ast.stmt)], typing, inside)
            handlers = [part for part in parts if isinstance(part, ast.ExceptHandler | ast.match_case)]
            yield from imports([one for part in handlers for one in part.body], typing, inside)


@cache
def graph(typing: bool = True, inside: bool = True) -> dict[str, set[str]]:
    """By module: the project's own modules that it imports."""
    found = {name: set(imports(tree.body, typing, inside)) for name, tree in trees().items()}
    ours = {
        n: {o.removeprefix("trisect").lstrip(".") for o in of if package(o) == "trisect"} for n, of in found.items()
    }
    return {name: (of & set(PATHS)) - {name, ""} for name, of in ours.items()}


@cache
def foreign() -> dict[str, set[str]]:
    """By module: the packages of others that it imports when it runs."""
    return {n: {package(one) for one in imports(tree.body, typing=False)} - {"trisect"} for n, tree in trees().items()}


@cache
def reached(name: str, inside: bool) -> frozenset[str]:
    """Every module of ours that a module leads to when it runs, packages above it included; without `inside`, when it is imported."""
    found, todo = set[str](), [name]
    while todo:
        here = todo.pop()
        if here not in found:
            found.add(here)
            todo += [*graph(False, inside)[here], *([] if inside else [here.rpartition(".")[0]])]
    return frozenset(found)


def test_a_package_imports_those_that_it_may():
    pairs = {(package(name), package(other)): (name, other) for name, of in graph().items() for other in of}
    wrong = [said for (one, other), said in pairs.items() if one != other and other not in ALLOWED[one]]
    assert not wrong
    assert {one for one, _ in pairs} <= set(ALLOWED)
    assert len(pairs) > 60


def test_one_experiment_never_imports_another():
    for name, of in graph().items():
        if experiment(name) not in (None, READS_OTHERS):
            assert {experiment(other) for other in of} <= {None, experiment(name)}, name


def test_no_torch_below_the_verdicts_and_in_pages():
    light = ("report", "claims", "core", "stats", "papers", "theory")
    for name in PATHS:
        if package(name) in light or (experiment(name) and name.endswith(".page")):
            assert not {one for one in reached(name, True) if "torch" in foreign()[one]}, name


def test_transformers_only_in_hf():
    assert {package(name) for name, found in foreign().items() if "transformers" in found} == {"hf"}


def test_there_is_no_cycle():
    """Also among imports for type checking alone."""
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in graph()[name]:
                walk(other, (*path, name))
            done.add(name)

    for name in PATHS:
        walk(name, ())


@pytest.mark.parametrize("name", PATHS)
def test_modules_are_small_and_say_what_they_are(name):
    assert len(PATHS[name].read_text(encoding="utf-8").splitlines()) <= 900
    assert (ast.get_docstring(trees()[name]) or "").splitlines()[0].endswith((".", "?"))
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            limit = 60 if isinstance(node, ast.FunctionDef) else 250
            assert (node.end_lineno or 0) - node.lineno < limit, node.name


def test_importing_the_package_the_engines_and_claims_is_light():
    heavy = ("torch", "polars", "altair", "spacy", "scipy", "rich", "datasets", "transformers", "sklearn", "ray")
    code = "import sys, trisect; assert 'pydantic' not in sys.modules; import trisect.engine.processes, trisect.engine.start; "
    code += f"import trisect.cli; print([m for m in {heavy} if m in sys.modules]); "
    code += "import trisect.claims; print([m for m in ('torch', 'scipy.stats', 'altair') if m in sys.modules]); "
    code += "import trisect.lab.driver, trisect.experiments.explore.page; print([m for m in ('altair',) if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["[]", "[]", "[]"]


def waits(name: str, imported: str) -> bool:
    """Whether there is a reason for an import to wait for its function to be called."""
    if package(imported) in EXTRAS | SLOW or imported.removeprefix("trisect.") in BEHIND_EXTRAS:
        return True
    if package(imported) != "trisect" or imported.removeprefix("trisect").lstrip(".") in reached(name, False):
        return False
    commands = (reached(one, False) for one in ("cli", *graph(False, True)["experiments"]))
    begins = name in START.union(*commands) or name.endswith(".result")
    return begins or imported.startswith("trisect.hf.")


def test_an_import_inside_a_function_has_its_reason():
    lazy = {
        (name, imported)
        for name, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for imported in imports(function.body)
    }
    assert len(lazy) > 50
    assert not {one for one in lazy if not waits(*one)}
    assert not waits("stats.interval", "math")
    assert not waits("calls", "trisect.core.errors")  # loaded with it anyway
    assert not waits("measure.norms", "trisect.stats.interval")
