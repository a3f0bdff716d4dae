"""Images, alone or beside a text, as inputs of a model, made by the processor that was saved with it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.extras import need_extra
from trisect.core.subject import ImagesGiven, ModelInputs, check_text
from trisect.core.trace import Reading
from trisect.hf.refusal import said_of, saying

FILES = ("processor_config.json", "preprocessor_config.json")


class ImageInputs(NamedTuple):
    """One row of a model's own inputs, and what was decided about its images."""

    inputs: ModelInputs
    notes: tuple[str, ...]


@runtime_checkable
class ImageReader(Protocol):
    """A model that is read by inputs of its own."""

    @property
    def name(self) -> str:
        """How it is called."""
        ...

    @property
    def model(self) -> nn.Module:
        """The module."""
        ...

    def read(self, texts: ModelInputs, /) -> Reading:
        """Read its own inputs."""
        ...


@dataclass(frozen=True, eq=False)
class ImageDesk:
    """What makes images ready for one model; `opened` gives its processor when it is first needed."""

    name: str
    opened: Callable[[], Any]

    @classmethod
    def of(cls, name: str, place: str, known: Mapping[str, str | bool | None]) -> ImageDesk:
        """That of a model's folder, or of a name on a hub; `known` is how transformers is to fetch it."""
        return cls(name, functools.cache(lambda: _processor(name, place, known)))

    @classmethod
    def given(cls, name: str, processor: Any) -> ImageDesk:
        """That of a processor in memory."""
        return cls(name, lambda: processor)

    def inputs(self, text: str | None, images: Sequence[object], like: Tensor) -> ImageInputs:
        """The inputs of a text with images, as `like` in device and precision; images stand before a text that names no place."""
        processor, pictures, notes = self.opened(), [open_image(one) for one in images], ()
        mark, takes = getattr(processor, "image_token", None), getattr(processor, "tokenizer", None) is not None
        if text is not None:
            check_text(self.name, 0, text, False)
            if not takes:
                known = "Its processor takes images alone."
                raise ModelError(f"The text {text[:40]!r} was given to {self.name}.", known, "Leave the text out.")
        if takes and isinstance(mark, str) and mark not in (text or ""):
            if text is not None:
                notes = (f"The text names no place for images, with {mark}: they stand before it.",)
            text = mark * len(pictures) + (text or "")
        named = {"images": pictures} | ({} if text is None else {"text": text})
        with saying(lambda error: _not_processed(self.name, error)):
            made = processor(**named, return_tensors="pt")
        return ImageInputs({n: _placed(t, like) for n, t in made.items()}, notes)


def listed(images: ImagesGiven) -> tuple[object, ...]:
    """Images as several of them."""
    return tuple(images) if isinstance(images, (list, tuple)) else (images,) if images is not None else ()


def read_images(subject: ImageReader, desk: ImageDesk | None, text: object, images: Sequence[object]) -> Reading:
    """Read images beside a text, or alone; raises ModelError where there is nothing to read, or no processor."""
    if not images:
        raise ModelError("No text was given.", "A Reading is of at least one, or of an image.", "Give a text.")
    if text is not None and not isinstance(text, str):
        known = "Images stand beside one text."
        raise ModelError(
            f"{type(text).__name__} was given beside images.", known, "Give one text, or the model's own inputs."
        )
    if desk is None:
        known = "It is a module, without the processor that makes inputs of them."
        todo = "Load it with its processor, load(model, processor), or give the processor's outputs to read."
        raise ModelError(f"Images were given to {subject.name}.", known, todo)
    like = next(p for p in subject.model.parameters() if p.is_floating_point())
    made = desk.inputs(text, images, like)
    reading = subject.read(made.inputs)
    return replace(reading, notes=(*reading.notes, *made.notes))


def open_image(image: object) -> object:
    """A file as a picture in red, green and blue; what is no path is given on as it is. Raises ModelError."""
    if not isinstance(image, (str, Path)):
        return image
    need_extra("PIL", "images", "Opening an image")
    from PIL import Image

    place, todo = Path(image), "Give an image file, such as PNG or JPEG."
    if not place.is_file():
        raise ModelError(f"The image {str(image)!r} was given.", "There is no such file.", todo)
    with warnings.catch_warnings(), saying(lambda error: _not_opened(image, error)):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(place) as opened:
            return opened.convert("RGB")


def _processor(name: str, place: str, known: Mapping[str, str | bool | None]) -> Any:
    """The processor beside a model; raises ModelError where there is none that takes images."""
    from transformers import AutoProcessor

    from trisect.hf.fetch import quiet

    todo = "Save it beside the model, as AutoProcessor.from_pretrained(NAME).save_pretrained(FOLDER), or give its outputs to read."
    if Path(place).is_dir() and not any((Path(place) / file).exists() for file in FILES):
        given = f"{name} has no processor, which images need."
        raise ModelError(given, f"Its folder has none of {', '.join(FILES)}.", todo)
    with (
        quiet(),
        saying(lambda error: ModelError(f"The processor of {name} cannot be read.", said_of(error, 200), todo)),
    ):
        found = AutoProcessor.from_pretrained(place, **dict[str, Any](known))
    if getattr(found, "image_processor", None) is None and not hasattr(found, "image_mean"):
        kind = type(found).__name__
        raise ModelError(
            f"{name} takes no images.", f"Its processor is {kind}.", "Give a text, or the model's own inputs."
        )
    return found


def _not_opened(image: object, error: Exception) -> ModelError:
    todo = "Give an image file, such as PNG or JPEG."
    return ModelError(f"The image {str(image)!r} cannot be opened.", said_of(error, 200), todo)


def _not_processed(name: str, error: Exception) -> ModelError:
    todo = "Name a place in the text for each image as the model's card says, or give the model's own inputs."
    return ModelError(f"The processor of {name} cannot make inputs of that.", said_of(error, 200), todo)


def _placed(value: Any, like: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
