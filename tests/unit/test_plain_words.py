"""Plain words: what a person reads — texts of the program, first lines of docstrings, pages, docs — has none of a list of expressions."""

import ast
import re
from collections.abc import Iterator

from tests.unit.test_layers import PATHS, SRC, trees

ROOT = SRC.parents[1]
BANNED = re.compile(
    r"\b(told|tells|taken|anew|heard|mended|believed?|believes|heeded|put up with|puts up with|the house|stands? twice"
    r"|may stand several times|reach of the site alone|less its control|barred: no number|each view stands"
    r"|rows read, columns are read|narrows the factors"
    r"|luggage|parcels|depot|crew|spoilt|halfway|sureness|apprentice|put in order|handed over|asked for paths"
    r"|of every random draw|share of the line's largest|no method tells|found out when|is no (?:split|recipe|dtype|device|setting))\b",
    re.I,
)
GENERATED = {"api.md", "cli.md"}  # from docstrings, which are read at their source
# sentences of sources, as they were fixed: their hash stands in every run
CLAIMS = ROOT / "src" / "trisect" / "papers"


def texts(tree: ast.Module) -> Iterator[str]:
    """String literals of a module, and of docstrings the first line."""
    docstrings = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            docstrings[id(first.value)] = (ast.get_docstring(node) or "").splitlines()[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield docstrings.get(id(node), node.value)


def found() -> list[str]:
    """Every banned expression with its place."""
    said = []
    for module, tree in trees().items():
        if not PATHS[module].is_relative_to(CLAIMS):
            said += [(PATHS[module], match[0]) for text in texts(tree) for match in BANNED.finditer(text)]
    pages = [p for suffix in ("html", "js") for p in (ROOT / "src").rglob(f"*.{suffix}")]
    docs = [p for p in (ROOT / "docs").rglob("*.md") if p.name not in GENERATED]
    for path in (*pages, *docs, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"):
        said += [(path, match[0]) for match in BANNED.finditer(path.read_text(encoding="utf-8"))]
    return [f"{path.relative_to(ROOT)}: {word}" for path, word in said]


def test_no_banned_expression_is_shown():
    assert found() == []


def test_the_list_is_looked_for_in_whole_words():
    tree = ast.parse('"""What it was told.\n\nUnseen: anew.\n"""\nx = "overheard; the household; mistaken; Anew"\n')
    assert [m[0] for text in texts(tree) for m in BANNED.finditer(text)] == ["told", "Anew"]


def test_a_percentage_has_a_space_before_its_sign():
    tight = re.compile(r"(?<!\\u00a)\d%(?![\w\"'*])|:\.?\d?%\}")
    python = [p for p in (ROOT / "src").rglob("*.py") if p.name != "percent.py"]
    docs = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "results").rglob("*.md")]
    docs.remove(ROOT / "results" / "recall" / "README.md")  # quotes what its corpora said of themselves
    said = [
        f"{path.relative_to(ROOT)}: {line.strip()[:80]}"
        for path in (*python, *docs)
        for line in path.read_text(encoding="utf-8").splitlines()
        if tight.search(line) and "width" not in line and not line.lstrip().startswith("#")
    ]
    assert said == []
