"""The house's floors: imports point down, wings do not know each other, and there is no circle."""

import ast
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2] / "src" / "trisect"
ROOMS = sorted(p for p in HOUSE.rglob("*.py"))
FLOOR = {
    "core": 1,
    "text": 2,
    "lm": 2,
    "hf": 2,
    "measure": 2,
    "papers": 2,
    "theory": 2,
    "claims": 2.5,  # reads what papers hold
    "engine": 3,
    "report": 3,
    "lab": 3.5,  # knows all workers, and the report
    "door": 4,
    "cli": 5,
    "": 6,  # the package's face
}


def room(path: Path) -> str:
    return ".".join(path.relative_to(HOUSE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def wing(name: str) -> str:
    return name.split(".")[0]


def imports(path: Path) -> set[str]:
    """Every module that a room imports, wherever in the file, except for type checking alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
    return found


OURS = {
    room(p): {i.removeprefix("trisect").lstrip(".") for i in imports(p) if i.split(".")[0] == "trisect"} for p in ROOMS
}
OURS = {name: {i for i in found if i in {room(p) for p in ROOMS} - {name, ""}} for name, found in OURS.items()}
THEIRS = {room(p): {i.split(".")[0] for i in imports(p)} - {"trisect"} for p in ROOMS}


@pytest.mark.parametrize("name", sorted(OURS))
def test_imports_point_down_or_stay_in_the_wing(name):
    for other in OURS[name]:
        if wing(other) != wing(name):
            assert FLOOR[wing(other)] <= FLOOR[wing(name)], f"{name} imports {other}"


def test_what_must_never_know_what():
    forbidden = {
        "lm": {"hf"},
        "hf": {"lm"},
        "measure": {"lm", "hf"},
        "text": {"lm", "hf", "measure"},
        "papers": {"lm", "text", "claims"},
        "theory": {"lm", "hf", "text", "measure", "claims", "report"},
    }
    for name, found in OURS.items():
        assert not {wing(o) for o in found} & forbidden.get(wing(name), set()), name
        if wing(name) == "core":
            assert {wing(o) for o in found} <= {"core"}, name
        if wing(name) not in ("", "cli"):
            assert "cli" not in {wing(o) for o in found}, name


@pytest.mark.parametrize(
    "name", [n for n in sorted(OURS) if wing(n) in ("report", "claims", "core", "papers", "theory")]
)
def test_no_torch_below_the_verdicts_and_in_the_report(name):
    reached, todo = set(), {name}
    while todo:
        here = todo.pop()
        reached.add(here)
        todo |= OURS[here] - reached
    assert not {n for n in reached if "torch" in THEIRS[n]}


def test_transformers_only_in_hf():
    assert not [n for n, found in THEIRS.items() if "transformers" in found and wing(n) != "hf"]


def test_there_is_no_circle():
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in OURS[name]:
                walk(other, (*path, name))
            done.add(name)

    for name in OURS:
        walk(name, ())


@pytest.mark.parametrize("path", ROOMS, ids=room)
def test_rooms_are_small_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 400
    assert (ast.get_docstring(tree) or "").splitlines()[0].endswith((".", "?"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            limit = 60 if isinstance(node, ast.FunctionDef) else 200
            assert (node.end_lineno or 0) - node.lineno < limit, node.name


def test_importing_the_face_is_light():
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
        "wandb",
        "trackio",
        "tensorboard",
        "transformers",
        "sklearn",
    )
    code = f"import sys, trisect, trisect.cli; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
