"""Mutants: one operator, constant, condition or returned value in the code is changed, and tests have to fail.

`make mutants`, or `python tools/mutants.py --count 100 --seed 1 [PART_OF_A_NAME ...]`. Drawn from all modules that decide numbers or
safety, each made in a copy of src and tried with the test files nearest to it by imports; what survives, with the nearest tests of
whole commands, then with further files of both. Notes in build/mutants.json let a call that was stopped go on, as long as sources
and tests are the same. Survivors in tools/survivors.txt, with their reasons, are not drawn. Status 1 where another survives.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import transformers.modeling_utils  # noqa: F401 - what tests need is loaded once

from trisect.stats.shares import wilson

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "trisect"
NOTES, SURVIVORS = ROOT / "build" / "mutants.json", ROOT / "tools" / "survivors.txt"
LOOKS = ("cli/", "report/", "papers/")  # and pages: words and pictures
PAGES = {"page.py", "words.py", "figures.py", "settings.py", "widget.py", "__init__.py"}
UNITS, RUNS = ("unit", "property"), ("contract", "golden")  # folders of tests
SECONDS = 300  # of processor time for eight files of tests
STAGES = (UNITS, 0, 8), (RUNS, 0, 4), (UNITS, 8, 40), (RUNS, 4, 16)  # from and to which file, the nearest first
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div,
    ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
SAME = ast.JoinedStr | ast.Assert | ast.Raise  # not changed, nor is the `strict` of a zip


class Mutant(NamedTuple):
    """A part of a file below src/trisect, from byte to byte, the function that it is in, and what stands in its place."""

    file: str
    function: str
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        """As it is printed, and listed among survivors."""
        return f"{self.file} {self.function}: {' '.join(self.old.split())[:70]} -> {' '.join(self.new.split())[:70]}"


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one thing changed; None where nothing of it is to be."""
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in SWAPS:
            return ast.Compare(left, [SWAPS[type(operator)]()], right)
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS:
            text = any(isinstance(getattr(side, "value", side), str | ast.JoinedStr) for side in (left, right))
            return None if text else ast.BinOp(left, SWAPS[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(SWAPS[type(operator)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(int() | float() as value):
            return ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.IfExp(_, body, orelse):
            return ast.IfExp(ast.Constant(True), body, orelse)
        case ast.Return(value) if value is not None and not (
            isinstance(value, ast.Constant) and value.value in (None, False)
        ):
            return ast.Return(ast.Constant(None))
    return None


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    content = path.read_bytes()
    starts = [0, *(n + 1 for n, byte in enumerate(content) if byte == 10)]

    def walk(node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = node.name
        if (new := changed(node)) is not None and isinstance(node, ast.expr | ast.stmt):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
            text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            yield Mutant(str(path.relative_to(SRC)), function, start, end, content[start:end].decode(), text)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list", "type_params"):
                for part in value if isinstance(value, list) else [value]:
                    if (
                        isinstance(part, ast.AST)
                        and not isinstance(part, SAME)
                        and getattr(part, "arg", "") != "strict"
                    ):
                        yield from walk(part, function)

    return walk(ast.parse(content), "module")


def imported(path: Path) -> set[str]:
    """The modules, or names in them, that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = getattr(node, "module", None)
            names |= {f"{base}.{alias.name}" if base else alias.name for alias in node.names} | {base or ""}
    return names


def module_of(name: str) -> str:
    """The module of a file below src/trisect."""
    return ".".join(["trisect", *Path(name).with_suffix("").parts]).removesuffix(".__init__")


def nearest(mutant: Mutant, sources: dict[str, set[str]], tests: dict[Path, set[str]]) -> list[list[str]]:
    """For each stage, the test files that reach a mutant's module by the fewest imports, one less for those that name its function."""
    distance, edge = {module_of(mutant.file): 0}, {module_of(mutant.file)}
    while edge:
        edge = {name for name, of in sources.items() if of & edge and name not in distance}
        distance |= dict.fromkeys(edge, max(distance.values()) + 1)
    ranked = []
    for path, of in tests.items():
        far = min((distance[name] for name in of if name in distance), default=None)
        if far is not None:
            named = re.search(rf"\b{mutant.function}\b", path.read_text(encoding="utf-8")) is not None
            ranked.append((far - named, path.stat().st_size, str(path.relative_to(ROOT))))
    files = [path for *_, path in sorted(ranked)]
    return [[path for path in files if Path(path).parent.name in kinds][start:end] for kinds, start, end in STAGES]


def run_tests(tests: list[str], place: Path) -> int:
    """The status of pytest with the sources in that place, in a copy of this process; −SIGPROF where it does not end."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seconds = SECONDS * max(1, len(tests) // 8)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)
    os.chdir(ROOT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ |= {"PYTHONPATH": f"{place}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path[:0], sys.dont_write_bytecode = [str(place), str(ROOT)], True
    for name in [name for name in sys.modules if name.partition(".")[0] == "trisect"]:
        del sys.modules[name]
    options = "-q -x -p no:cacheprovider --jaxtyping-packages= -W ignore::pytest.PytestAssertRewriteWarning"
    try:
        os._exit(pytest.main([*options.split(), *tests]))
    finally:
        os._exit(3)


def outcome(mutant: Mutant, place: Path, stages: list[list[str]]) -> str:
    """What became of a mutant: killed, survived, or why it was not tried."""
    path, whole = place / "trisect" / mutant.file, (SRC / mutant.file).read_bytes()
    path.write_bytes(whole[: mutant.start] + mutant.new.encode() + whole[mutant.end :])
    try:
        statuses = (status for tests in filter(None, stages) if (status := run_tests(tests, place)))
        words = {0: "survived", 1: "killed", 2: "killed", -signal.SIGPROF: "killed", 5: "not tried (no tests)"}
        return words.get(status := next(statuses, 0 if any(stages) else 5), f"not tried ({status})")
    finally:
        path.write_bytes(whole)


def main() -> None:
    """Draw mutants, try each, and print the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of files; none: all")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = {path: str(path.relative_to(SRC)) for path in sorted(SRC.rglob("*.py"))}
    paths = [path for path, name in names.items() if path.name not in PAGES and not name.startswith(LOOKS)]
    paths = [path for path in paths if not options.names or any(part in names[path] for part in options.names)]
    survivors = {line.partition(" | ")[0] for line in SURVIVORS.read_text(encoding="utf-8").splitlines()}
    there = [one for path in paths for one in mutants(path) if str(one) not in survivors]
    sample = random.Random(options.seed).sample(there, min(options.count, len(there)))
    sources = {module_of(name): imported(path) for path, name in names.items()}
    helpers = {f"tests.{path.stem}": imported(path) for path in (ROOT / "tests").glob("*.py")}
    tests = {path: imported(path) for path in (ROOT / "tests").glob("*/test_*.py")}
    tests = {path: of.union(*(helpers[n] for n in of & helpers.keys())) for path, of in tests.items()}
    mark = hashlib.sha256(b"".join(path.read_bytes() for path in (*names, *sorted(tests)))).hexdigest()
    notes = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    ends: dict[str, str] = notes["became"] if notes.get("sources") == mark else {}
    NOTES.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(SRC, Path(name) / "trisect", ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in sample:
            began, key = time.monotonic(), f"{mutant.start} {mutant}"
            ends[key] = ends.get(key) or outcome(mutant, Path(name), nearest(mutant, sources, tests))
            print(f"{ends[key]:<10} {time.monotonic() - began:5.0f} s  {mutant}", flush=True)
            NOTES.write_text(json.dumps({"sources": mark, "became": ends}, indent=1))
    verdicts = [ends[f"{one.start} {one}"] for one in sample if not ends[f"{one.start} {one}"].startswith("not")]
    low, high = wilson((kills := verdicts.count("killed")) / len(verdicts), len(verdicts))
    print(f"{kills} of {len(verdicts)} killed, {kills / len(verdicts):.0%} (95 % interval {low:.0%} to {high:.0%})")
    sys.exit(kills < len(verdicts))


if __name__ == "__main__":
    main()
