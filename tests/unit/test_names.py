"""Names: one public type name stands once in the whole project."""

import ast
import re
from collections import defaultdict

from tests.unit.test_layers import PATHS, SRC, trees


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


def test_one_public_type_name_stands_once():
    where: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for name in type_names(tree):
            where[name].append(module)
    assert {"Site", "Trace"} <= set(where)
    assert not {name: found for name, found in where.items() if len(found) > 1}


IRREGULAR = set(
    re.findall(
        r"\w+",
        "found said known held kept made given asked drawn told taken shown written seen left met sent got built thought begun "
        "chosen spoken broken lost meant learnt spent hidden forgotten driven grown laid led bound split done",
    )
)
NO_PARTICIPLE = frozenset(("need", "seed", "feed", "embed", "red", "speed", "exceed"))
HOUSE_WORDS = set(
    re.findall(
        r"\w+",
        "desk bench crew luggage parcels depot lay spoilt unspoilt halfway begun sureness thumbs sparing eagerly teach lesson "
        "apprentice telling barred stretch slack borrow anew",
    )
)


NOT_NOUNS = set(
    re.findall(
        r"\w+",
        "found known own said given asked drawn made kept held told one several some mine theirs whole gone taken came wanted "
        "whose begun",
    )
)
STORED = {  # names of stored fields
    ("core/spec.py", "asked"),
    ("experiments/erase/settings.py", "whose"),
    ("experiments/lookup/page.py", "own"),
    ("experiments/patch/result.py", "own"),
    ("experiments/patch/predictions.py", "kept"),
    ("text/corpus.py", "own"),
    ("theory/constructions.py", "one"),
}


def bound_names(tree: ast.Module) -> set[str]:
    """Functions, classes, arguments, variables and attributes of `self` of a module, without underscores at their ends."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return {name.strip("_") for name in names}


def test_no_name_is_a_pronoun_or_participle():
    text = "async def f(_own): one = g(kept); self._said = _made = x.taken = 1"
    assert bound_names(ast.parse(text)) == {"f", "own", "one", "said", "made"}
    modules = ((PATHS[name].relative_to(SRC).as_posix(), tree) for name, tree in trees().items())
    assert {(path, name) for path, tree in modules for name in bound_names(tree) & NOT_NOUNS} == STORED


def words_of(name: str) -> list[str]:
    """The words of an identifier, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def is_participle(word: str) -> bool:
    """Whether a word is a past participle by its form."""
    return word in IRREGULAR or (len(word) > 3 and word.endswith("ed") and word not in NO_PARTICIPLE)


def function_names() -> list[str]:
    """The name of every function of the source."""
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_few_functions_are_named_by_a_participle():
    names = function_names()
    assert is_participle("kept")
    assert is_participle("prepared")
    assert not is_participle("seed")
    assert sum(any(map(is_participle, words_of(name))) for name in names) / len(names) < 0.04


def test_no_public_name_has_a_house_word():
    names = set(function_names())
    for module, tree in trees().items():
        names |= {PATHS[module].stem, *type_names(tree)}
    assert {name for name in names if not name.startswith("_") and HOUSE_WORDS & set(words_of(name))} == set()
