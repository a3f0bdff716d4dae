"""Names: one public type name stands once in the whole project."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "trisect"


def type_names(tree: ast.Module) -> list[str]:
    """Public classes and type aliases of a module; constants, which are in capitals, are no types."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.append(node.targets[0].id)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found += [node.target.id] if "TypeAlias" in ast.unparse(node.annotation) else []
    return [name for name in found if name[0].isupper() and not name.isupper()]


def test_type_names_are_found():
    tree = ast.parse(
        "class Site: ...\nRow = dict[str, int]\nLink: TypeAlias = int\nMOST = 1\nT = 2\n_Own = 3\nn: int = 4"
    )
    assert type_names(tree) == ["Site", "Row", "Link"]


def test_one_public_type_name_stands_once():
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for name in type_names(ast.parse(path.read_text(encoding="utf-8"))):
            where[name].append(str(path.relative_to(SRC)))
    assert {"Site", "Trace"} <= set(where)
    assert not {name: found for name, found in where.items() if len(found) > 1}
