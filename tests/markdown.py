"""Tables of Markdown, as their rows of cells."""

from collections.abc import Iterable


def cells(lines: Iterable[str]) -> list[list[str]]:
    """The cells of every row of the one table among `lines`, without its two lines of heading."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
