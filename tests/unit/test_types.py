"""What crosses a module has a type: no container of Any, and nothing that returns Any, in public functions and fields."""

import ast
from collections.abc import Iterator

from tests.shaped import names_shapes
from tests.unit.test_layers import PATHS, SRC, trees

CONTAINERS = {"dict", "list", "tuple", "set", "frozenset", "Mapping", "Sequence", "Iterable", "Iterator", "Collection"}
# where Any stands all the same, and why
ALLOWED = {
    "calls.py edit": "the module itself, of a class of its own",
    "core/trace.py Reading.to_xarray": "xarray is no dependency, and so gives no type",
    "core/trace.py Reading.to_pandas": "pandas is no dependency, and so gives no type",
    "hf/verify/proof.py Proof.to_pandas": "pandas is no dependency, and so gives no type",
    "core/errors.py import_optional": "a package that is no dependency gives no type",
    "lab/experiment.py Result.to_pandas": "pandas is no dependency, and so gives no type",
    "measure/intervention.py Intervention.to_pandas": "pandas is no dependency, and so gives no type",
    "core/subject.py ModelInputs": "what a model's own forward takes by name; it means nothing to others",
    "experiments/study/rows.py StudyRows.statement": "a part of a statement, as JSON",
    "report/charts.py marks": "marks are charts of Altair, whose types say nothing",
    "report/measures.py Measures.distinct": "cells of any column",
    "report/measures.py Measures.by": "cells of any column",
    "report/measures.py Measures.first": "cells of any column",
    "core/schema.py to_json_data": "JSON of any record",
    "experiments/study/plan.py Plan.data": "JSON of any plan",
    "lm/snapshots.py read_snapshot": "a note of any kind, as JSON",
    "text/sources.py describe": "cells of any column",
    "hf/files/fetch.py OwnTokenizer": "tokenizers of transformers share no type",
    "hf/files/tokenizers.py load_tokenizer": "tokenizers of transformers share no type",
    "hf/files/tokenizers.py tokenize": "a tokenizer's answer is a mapping of lists of several kinds",
    "hf/files/fetch.py fetch": "tokenizers of transformers share no type",
    "hf/hooks/calls.py map_tensors": "what a foreign model's forward gives, of a class of its own",
    "hf/processor.py load_processor": "processors of transformers share no type",
    "hf/hooks/calls.py Arguments": "what foreign functions are called with",
    "hf/hooks/calls.py NamedArguments": "what foreign functions are called with",
    "hf/hooks/calls.py ModelOutput": "what a foreign model's forward gives, of a class of its own",
}
# settings take what Python gives: a model, texts and pairs of any kind, checked where they are opened
GIVEN = "Annotated"


def is_any(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Name) and node.id == "Any"


def parsed(node: ast.expr | None) -> ast.AST | None:
    """An annotation; one that is a text is read as what it says."""
    return (
        ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else node
    )


def holds_any(node: ast.AST | None) -> bool:
    """Whether a container in an annotation is one of Any: dict[str, Any], not Experiment[Any, Any]."""
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id in CONTAINERS:
            inner = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
            if any(map(is_any, inner)):
                return True
    return False


def gives_any(node: ast.AST | None) -> bool:
    """Whether a return is Any, or may be: Any | None."""
    if isinstance(node, ast.BinOp):
        return gives_any(node.left) or gives_any(node.right)
    return is_any(node) or holds_any(node)


def found(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """The public functions, fields and aliases of a module, or of a class, with a container of Any or a return of it."""
    for node in body:
        name = getattr(node, "name", "")
        if isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from found(node.body, f"{prefix}{name}.")
        elif isinstance(node, ast.FunctionDef) and not name.startswith("_"):
            own = node.args
            given = [a for a in (*own.posonlyargs, *own.args, *own.kwonlyargs) if holds_any(parsed(a.annotation))]
            if given or gives_any(parsed(node.returns)):
                yield prefix + name
        elif (
            isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_")
        ):
            kind = parsed(node.annotation)
            alias = isinstance(kind, ast.Name) and kind.id == "TypeAlias"
            said = node.value if alias else kind
            if GIVEN not in ast.unparse(node.annotation) and (holds_any(said) or (alias and is_any(said))):
                yield prefix + node.target.id


def test_no_container_of_any_and_no_return_of_it_crosses_a_module():
    there = {
        f"{PATHS[module].relative_to(SRC)} {name}" for module, tree in trees().items() for name in found(tree.body)
    }
    assert there - set(ALLOWED) == set()
    assert set(ALLOWED) - there == set()


def test_whatever_names_a_shape_is_checked_when_it_is_called():
    """By jaxtyping's hook, which tests.shaped has leave out the rest."""
    said = """
def one(x: Float[Tensor, "N D"]): ...
def two(*, x: "Mapping[str, Int[np.ndarray, 'N']]"): ...
def three(*xs: Bool[Tensor, "N"]): ...
def four() -> tuple[int, UInt8[Tensor, "N"]]: ...
def five(hold: HeldWeights): ...
def six(x: Tensor, *given: Any, **named: int) -> Tensor: ...
"""
    assert [names_shapes(one) for one in ast.parse(said).body if isinstance(one, ast.FunctionDef)] == [True] * 5 + [
        False
    ]
