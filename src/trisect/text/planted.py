"""What each world has planted: which component carries which attribute at the layer that reads. No method reads this."""

from __future__ import annotations

from typing import NamedTuple


class PlantedCell(NamedTuple):
    """A site and a label column, and whether the answer needs that the one carries the other."""

    site: str
    column: str
    carried: bool


class Planted(NamedTuple):
    """A world in words; its cells; the layer that reads; and the sites whose every effect is a false alarm."""

    words: str
    cells: tuple[PlantedCell, ...]
    layer: int
    idle: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """q, k and v of the layer that reads."""
        return tuple(f"{component}@{self.layer}" for component in "qkv")


def _cells(layer: int, columns: dict[str, tuple[str, ...]], carried: dict[str, str]) -> tuple[PlantedCell, ...]:
    """Every component with each of its columns; `carried` names the one that it has to carry."""
    return tuple(
        PlantedCell(f"{component}@{layer}", column, column == carried[component])
        for component, own in columns.items()
        for column in own
    )


_ASKED, _FOUND = (tuple(f"{of}.{name}" for name in "abc") for of in ("question", "item"))
_QUESTION, _VALUE = (tuple(f"{of}.{name}" for name in ("own", "before")) for of in ("question", "value"))


TRUTH: dict[str, Planted] = {
    "roles": Planted(
        "A document is four items and a question, and only the answer is predicted. An item is one word with three attributes, as "
        "in a3b1c6; the question names an a; the answer is the b of the item that has it; c is for nothing. So at the layer that "
        "reads, layer 2, the query must carry the a that is asked for, the key the item's a, the value the item's b, and none of "
        "them needs anything else. Layer 1 is idle: its attention adds nothing, in training or after.",
        _cells(2, {"q": _ASKED, "k": _FOUND, "v": _FOUND}, {"q": "question.a", "k": "item.a", "v": "item.b"}),
        2,
        ("q@1", "k@1", "v@1"),
    ),
    "induction": Planted(
        "A document is four keys, each with a value after it, and one of the keys again; only the answer is predicted, the value "
        "that came after that key. So at the layer that reads, layer 2, the query must carry its own word, the key the word "
        "before it, the value its own word; and at layer 1, which hands each key on to the value after it, the value must "
        "carry the key's own word. Layer 3 is idle: its attention adds nothing, in training or after.",
        (
            *_cells(
                2,
                {"q": _QUESTION, "k": _VALUE, "v": _VALUE},
                {"q": "question.own", "k": "value.before", "v": "value.own"},
            ),
            PlantedCell("v@1", "key.own", True),
            PlantedCell("v@1", "value.own", False),
        ),
        2,
        ("q@3", "k@3", "v@3"),
    ),
}
