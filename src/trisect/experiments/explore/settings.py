"""Settings and facts of the explorer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.schema import Option, record
from trisect.lab.inputs import ModelSource, need_files

if TYPE_CHECKING:
    from trisect.experiments.explore.page import ExplorerPicture

MAX_TEXTS = 2  # texts: a source and a target
MEDIA_ADVICE = "Put a text in quotes; --audio FILE and --image FILE give a sound or an image."


@record
class ExploreSettings:
    """Settings of the explorer: one text in one model, with sound or images or without; source and target for encoder-decoders."""

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

    audio: Annotated[
        tuple[Any, ...],
        Field(description="A sound file, for a model of speech; a text beside it is what is said in it (repeatable)."),
        Option(metavar="FILE"),
    ] = ()

    def __post_init__(self) -> None:
        message = f"{len(self.text)} texts were given" if self.text else "No text was given"
        for medium, name, files in (("an image", "image", self.image), ("a sound", "audio", self.audio)):
            need_files(name, files)
            if files and len(self.text) > 1:
                raise SpecError(
                    f"{message} beside {medium}.", "It stands beside one text, or alone.", "Put it in quotes."
                )
        if self.image and self.audio:
            raise SpecError("--image and --audio were given.", "A page shows one of them.", "Leave one of them out.")
        if not (self.image or self.audio) and not 1 <= len(self.text) <= MAX_TEXTS:
            raise SpecError(
                f"{message}.", "A page shows one text, a source and a target, a sound or an image.", MEDIA_ADVICE
            )


@dataclass(frozen=True, eq=False)
class ExploreFacts:
    """Facts of the explorer: the picture itself, since there are no tables."""

    picture: ExplorerPicture
