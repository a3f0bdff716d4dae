"""What a view into one text is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.schema import Option, record
from trisect.lab.inputs import ModelSource

if TYPE_CHECKING:
    from trisect.experiments.explore.picture import ExplorerPicture

MOST = 2  # texts: a source and a target


@record
class ExploreSettings:
    """One text inside one model, with images or without; of an encoder–decoder two, source and target."""

    read: ModelSource
    text: Annotated[
        tuple[Any, ...],
        Field(description="The text; an encoder-decoder takes two, source and target."),
        Option(argument=True, metavar="TEXT..."),
    ] = ()
    image: Annotated[
        tuple[Any, ...],
        Field(description="An image file beside a text, or alone (repeatable)."),
        Option(metavar="FILE"),
    ] = ()

    def __post_init__(self) -> None:
        given = f"{len(self.text)} texts were given"
        if self.image and len(self.text) > 1:
            raise SpecError(f"{given} beside an image.", "Images stand beside one text, or alone.", "Put it in quotes.")
        if not self.image and not 1 <= len(self.text) <= MOST:
            raise SpecError(f"{given}.", "A page shows one text, or a source and a target.", "Put it in quotes.")


@dataclass(frozen=True, eq=False)
class ExploreFacts:
    """All that the page shows: there are no tables to make it from."""

    picture: ExplorerPicture
