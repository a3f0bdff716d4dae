"""The shape of the source, beside its ceilings: sizes, names, functions, record types, import cycles.

python tools/shape.py
python tools/shape.py --norms MODEL     also what `trisect norms MODEL` loads and runs on two sentences
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import tempfile
from collections import Counter
from inspect import CO_NEWLOCALS
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "trisect"
CEILINGS = {
    "source files": 260,
    "source lines": 50_000,
    "public names": 1_400,
    "functions": 3_000,
    "record types": 360,
    "private functions called once": 450,
    "modules in import cycles": 0,
    "lines of tools and bench": 3_500,
    "lines of tests": 38_000,
    "modules loaded by norms": 130,
    "functions run by norms": 1_000,
}


def count_shape(src: Path = SRC, root: Path = ROOT) -> dict[str, float]:
    """Counts over every module below `src`, and over the lines of tools, bench and tests below `root`."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(src.rglob("*.py"))}
    sizes = [count_lines(path) for path in trees]
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    private = [use for tree in trees.values() for use in private_uses(tree)]
    return {
        "source files": len(sizes),
        "source lines": sum(sizes),
        "median file": statistics.median(sizes),
        "largest file": max(sizes),
        "public names": sum(len(public_names(tree)) for tree in trees.values()),
        "functions": len(functions),
        "record types": sum(is_record(node) for tree in trees.values() for node in ast.walk(tree)),
        "private functions": len(private),
        "private functions called once": sum(uses == 1 for uses in private),
        "modules in import cycles": len(find_cycles({dotted(p, src): imports(t, src) for p, t in trees.items()})),
        "lines of tools and bench": sum(count_lines(p) for d in ("tools", "bench") for p in (root / d).rglob("*.py")),
        "lines of tests": sum(count_lines(path) for path in (root / "tests").rglob("*.py")),
    }


def count_lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def dotted(path: Path, src: Path) -> str:
    """A module's name below the package, with dots."""
    return ".".join(path.relative_to(src).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def public_names(tree: ast.Module) -> list[str]:
    """Functions and classes of a module without a leading underscore, methods aside."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def private_uses(tree: ast.Module) -> list[int]:
    """How often a module uses each of its own private functions, methods aside."""
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    private = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("_"))
    return [uses[function.name] for function in private]


def is_record(node: ast.AST) -> bool:
    """Whether a node is a class that holds fields: a dataclass, a named tuple, a typed dictionary or a pydantic model."""
    if not isinstance(node, ast.ClassDef):
        return False
    bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    is_derived = bool(bases & {"NamedTuple", "TypedDict", "BaseModel"})
    return is_derived or any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def imports(tree: ast.Module, src: Path) -> set[str]:
    """The package's own modules that a module imports, for type checking too."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == src.name:
            base = (node.module or "").removeprefix(src.name).lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                path = src.joinpath(*inner.split("."))
                modules.add(inner if path.with_suffix(".py").exists() or path.is_dir() else base)
    return modules


def find_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Modules that reach themselves by imports."""
    reached = {module: names & graph.keys() for module, names in graph.items()}
    for middle in graph:  # Warshall's transitive closure
        for names in reached.values():
            names |= reached[middle] if middle in names else set()
    return {module for module in graph if module and module in reached[module]}


def count_run(model: str) -> dict[str, float]:
    """Modules of ours that `trisect norms MODEL` loads on two sentences, and different functions that it runs."""
    codes: set[object] = set()

    def note(frame: object, event: str, _: object) -> None:
        code = getattr(frame, "f_code")  # noqa: B009
        is_function = code.co_flags & CO_NEWLOCALS and (code.co_name[0] != "<" or code.co_name == "<lambda>")
        if event == "call" and is_function and str(SRC) in code.co_filename:
            codes.add(code)

    from trisect.cli import main

    words = ["norms", model, "--text", "The cat sat on the mat.", "--text", "She gave him the book.", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["trisect", *words, "--out", str(Path(folder) / "norms")]
        sys.setprofile(note)
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise
        finally:
            sys.setprofile(None)
    loaded = sum(name.split(".")[0] == "trisect" for name in sys.modules)
    return {"modules loaded by norms": loaded, "functions run by norms": len(codes)}


def main() -> None:
    """Print every count beside its ceiling."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--norms", metavar="MODEL", help="also run `trisect norms MODEL` on two sentences")
    options = ask.parse_args()
    counts = count_shape() | (count_run(options.norms) if options.norms else {})
    for name, value in counts.items():
        print(f"{name:<32}{value:>8,.0f}" + (f"   at most {CEILINGS[name]:,}" if name in CEILINGS else ""))


if __name__ == "__main__":
    main()
