"""What each world has planted: which component carries which attribute at the layer that reads. No method reads this."""

from __future__ import annotations

from typing import NamedTuple

from trisect.text.corpus import Corpus


class PlantedCell(NamedTuple):
    """A site and a label column, and whether the answer needs that the one carries the other."""

    site: str
    column: str
    carried: bool


class Planted(NamedTuple):
    """A world's cells; the layer that reads; and the sites whose every effect is a false alarm."""

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
TRUTH: dict[str, Planted] = {
    "roles": Planted(
        _cells(2, {"q": _ASKED, "k": _FOUND, "v": _FOUND}, {"q": "question.a", "k": "item.a", "v": "item.b"}),
        2,
        ("q@1", "k@1", "v@1"),
    ),
}


def planted_in(corpus: Corpus | str) -> Planted | None:
    """What is planted in a text, or null where nothing is."""
    return TRUTH.get(corpus if isinstance(corpus, str) else corpus.name)
