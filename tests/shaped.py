"""Shapes are checked where a signature names some: jaxtyping's hook would check every call of every function, also of what has none.

A function inside a function is decorated again each time it is defined, which took a tenth of the time of tests that load models.
"""

import ast
import re
from typing import Any

from beartype import beartype
from jaxtyping import _import_hook

__all__ = ["beartype", "check_shapes_alone"]  # the checker is named in pyproject.toml

NAMED = re.compile(r"\b(?:Bool|Float|Int|Shaped|UInt8|HeldWeights|_NullDraws)\b")
_visit: Any = _import_hook.JaxtypingTransformer.visit_FunctionDef


def names_shapes(node: ast.FunctionDef) -> bool:
    """Whether a parameter or the result is of a stated shape."""
    of = node.args
    named = [one for one in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg) if one is not None]
    annotations = [one for one in (*(one.annotation for one in named), node.returns) if one is not None]
    return any(NAMED.search(ast.unparse(one)) for one in annotations)


def check_shapes_alone() -> None:
    """Have the hook leave out functions without shapes; before anything is imported that it changes."""

    def visit(self: Any, node: ast.FunctionDef) -> Any:
        return _visit(self, node) if names_shapes(node) else self.generic_visit(node)

    _import_hook.JaxtypingTransformer.visit_FunctionDef = visit
