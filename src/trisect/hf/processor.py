"""Model inputs from sound and images by the model's own processor, with a text or alone."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trisect.core.errors import ModelError, require_extra
from trisect.core.subject import InputSample, ModelInputs, check_text
from trisect.hf.files.fetch import quiet
from trisect.hf.files.model_errors import summarize_error, translate_errors
from trisect.hf.files.tokenizers import tokenize

FILES = ("processor_config.json", "preprocessor_config.json")
MAX_SECONDS = 3_600  # seconds of one sound
SAVE = "Save it beside the model, as AutoProcessor.from_pretrained(NAME).save_pretrained(FOLDER), or give its outputs to read."
SOUND = "Give a sound file, such as WAV or FLAC."
SAMPLES = "Samples are numbers from -1 to 1."
PICTURE = "Give an image file, such as PNG or JPEG."


@dataclass(frozen=True, eq=False)
class Processor:
    """A model's processor of sound and images; `opened` returns it when it is first needed."""

    name: str
    opened: Callable[[], Any]

    @property
    def rate(self) -> int | None:
        """Sampling rate in Hz of the sounds that it takes; None if it takes none. Raises ModelError if it cannot be read."""
        extractor = _extractor(self.opened())
        return None if extractor is None else int(extractor.sampling_rate)

    def inputs(
        self, sample: InputSample, like: Tensor, tokenizer: Any, start: int | None
    ) -> tuple[ModelInputs, tuple[str, ...]]:
        """The model's inputs for a sample, with the device and dtype of `like`, and notes on how they were made.

        `start` is the first token of an encoder–decoder's decoder: a text is then the decoder's target, with labels.
        Otherwise sound and images are put before a text that has no placeholder for them. Raises ModelError.
        """
        processor = self.opened()
        kind = "audio" if sample.audio else "images"
        data, notes = self._sounds(sample, processor) if sample.audio else self._images(sample, processor)
        text, takes = sample.text, getattr(processor, "tokenizer", None) is not None and start is None
        if text is not None:
            check_text(self.name, 0, text, False)
            if not takes and start is None:
                reason = f"Its processor takes {kind} alone."
                raise ModelError(f"The text {text[:40]!r} was given to {self.name}.", reason, "Leave the text out.")
        mark = getattr(processor, "audio_token" if sample.audio else "image_token", None)
        if takes and isinstance(mark, str) and mark not in (text or ""):
            if text is not None:
                notes = (*notes, f"The text has no placeholder {mark} for {kind}: they are put before it.")
            text = mark * len(data) + (text or "")
        named: dict[str, object] = {"text": text} if takes and text is not None else {}
        if sample.audio:
            named |= {"audio" if takes else "raw_speech": data, "sampling_rate": _extractor(processor).sampling_rate}
        else:
            named |= {"images": data}
        maker = processor if takes or not sample.audio else _extractor(processor)
        words = f"The processor of {self.name} cannot make inputs of that."
        todo = f"Put a placeholder into the text for each of the {kind}, as the model card says, or give the model's own inputs."
        with translate_errors(lambda error: ModelError(words, summarize_error(error, 200), todo)):
            values = dict(maker(**named, return_tensors="pt"))
        shape: Any = getattr(values.get("pixel_values"), "shape", ())
        sizes = [getattr(picture, "size", None) for picture in data]
        if len(shape) in (4, 5) and any(isinstance(size, tuple) and size != shape[:-3:-1] for size in sizes):
            how = "read in tiles of" if len(shape) == 5 else "scaled or cut to"
            notes = (*notes, f"Images are {how} {shape[-1]} × {shape[-2]} pixels, as the model reads them.")
        if start is not None:
            # the decoder's input ids and labels of a text; without a text the ids that it begins with
            ids = [] if tokenizer is None else list(tokenize(self.name, tokenizer, text or "")["input_ids"])
            ids = ids[1:] if ids[:1] == [start] else ids
            prefix = ids[:-1]
            if text is not None and tokenizer is not None:
                values["labels"] = torch.tensor([ids] * len(data))
            elif ids[-1:] != [getattr(tokenizer, "eos_token_id", None)]:
                prefix = ids
            values["decoder_input_ids"] = torch.tensor([[start, *prefix]] * len(data))
            if text is None:
                notes = (*notes, "No text was given: the decoder reads only its initial tokens.")
        kind = lambda t: like.dtype if t.is_floating_point() else t.dtype  # noqa: E731
        return {n: t.to(like.device, kind(t)) if isinstance(t, Tensor) else t for n, t in values.items()}, notes

    def _sounds(self, sample: InputSample, processor: Any) -> tuple[list[Any], tuple[str, ...]]:
        """Waveforms at the processor's sampling rate; raises ModelError for one that is longer than the model reads."""
        extractor = _extractor(processor)
        if extractor is None:
            reason = f"Its processor is {type(processor).__name__}."
            raise ModelError(f"{self.name} takes no sound.", reason, "Give what that takes, or the model's own inputs.")
        rate, limit = int(extractor.sampling_rate), getattr(extractor, "n_samples", None)
        waves, notes = [], dict[str, None]()
        for sound in sample.audio:
            wave, changes = open_sound(sound, rate)
            if limit is not None and len(wave) > limit:
                reason = f"{self.name} reads {limit / rate:g} s at a time."
                raise ModelError(f"A sound of {len(wave) / rate:.1f} s was given.", reason, "Cut it into parts.")
            waves.append(wave)
            notes |= dict.fromkeys(changes)
        if limit is not None:
            notes[f"Sounds are padded with silence to {limit / rate:g} s, as the model reads them."] = None
        return waves, tuple(notes)

    def _images(self, sample: InputSample, processor: Any) -> tuple[list[Any], tuple[str, ...]]:
        if getattr(processor, "image_processor", None) is None and not hasattr(processor, "image_mean"):
            problem, reason = f"{self.name} takes no images.", f"Its processor is {type(processor).__name__}."
            raise ModelError(problem, reason, "Give what that takes, or the model's own inputs.")
        pictures, notes = zip(*map(open_image, sample.images), strict=True)
        return list(pictures), tuple(dict.fromkeys(chain(*notes)))


def _extractor(processor: Any) -> Any:
    """The feature extractor of a processor; None if it has none."""
    inner = getattr(processor, "feature_extractor", None) or processor
    return inner if hasattr(inner, "sampling_rate") else None


def is_processor(value: object) -> bool:
    """Whether an object given as tokenizer is a feature extractor or image processor without a tokenizer."""
    return hasattr(value, "sampling_rate") or hasattr(value, "image_mean")


def open_sound(sound: object, rate: int) -> tuple[Float[np.ndarray, " S"], tuple[str, ...]]:
    """Load a sound as one channel at `rate` samples a second, with notes on what was changed for that.

    A sound is a file, or samples at that rate. Raises ModelError.
    """
    own_rate, name, notes = rate, "the sound", list[str]()
    if isinstance(sound, (str, Path)):
        require_extra("soundfile", "audio", "Opening a sound")
        import soundfile

        place, words = Path(sound), f"The sound {str(sound)!r} cannot be opened."
        name = place.name
        if not place.is_file():
            raise ModelError(f"The sound {str(place)!r} was given.", "There is no such file.", SOUND)
        with translate_errors(lambda error: ModelError(words, summarize_error(error, 200), SOUND)):
            about = soundfile.info(place, verbose=True)
            length, own_rate = about.frames / about.samplerate, about.samplerate
            wave = soundfile.read(place, dtype="float32", always_2d=True)[0] if length <= MAX_SECONDS else None
        if wave is None or not len(wave):
            reason = f"It lasts {length:.0f} s; at least one sample and at most {MAX_SECONDS:,} s are read."
            raise ModelError(words, reason, "Cut it into parts, or give another.")
        # libsndfile's wording for a length in the header that is not the file's
        notes += [f"{name} is not as long as its header says."] if "should be" in about.extra_info else []
    else:
        wave = np.asarray(sound)
        if wave.ndim != 1 or not len(wave) or wave.dtype.kind != "f":
            reason = "Samples are one row of floating-point numbers, from -1 to 1."
            raise ModelError(f"Samples of shape {wave.shape} and type {wave.dtype} were given.", reason, SOUND)
        wave = wave.astype(np.float32)[:, None]
    if not np.isfinite(wave).all():
        bad = int((~np.isfinite(wave)).sum())
        raise ModelError(f"{name} has samples that are infinite or NaN: {bad:,} of {wave.size:,}.", SAMPLES, SOUND)
    if wave.shape[1] > 1:
        notes.append(f"The {wave.shape[1]} channels of {name} are averaged.")
    channel = wave.mean(axis=1)
    if own_rate != rate:
        from scipy.signal import resample_poly

        notes.append(f"{name} is resampled from {own_rate:,} to {rate:,} samples a second.")
        common = gcd(own_rate, rate)
        channel = resample_poly(channel, rate // common, own_rate // common).astype(np.float32)
    return channel, tuple(notes)


def open_image(image: object) -> tuple[object, tuple[str, ...]]:
    """Open an image file as RGB, rotated by its EXIF orientation, with notes; anything but a path is returned unchanged.

    Raises ModelError, also for several pictures in a file and for more than 8 bits a colour, which would be truncated.
    """
    if not isinstance(image, (str, Path)):
        return image, ()
    require_extra("PIL", "images", "Opening an image")
    from PIL import Image, ImageOps

    place = Path(image)
    if not place.is_file():
        raise ModelError(f"The image {str(image)!r} was given.", "There is no such file.", PICTURE)
    words = f"The image {str(image)!r} cannot be opened."
    with (
        warnings.catch_warnings(),
        translate_errors(lambda error: ModelError(words, summarize_error(error, 200), PICTURE)),
    ):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(place) as opened:
            # a camera's MPO has further views beside its picture
            frames, mode = 1 if opened.format == "MPO" else getattr(opened, "n_frames", 1), opened.mode
            picture = ImageOps.exif_transpose(opened).convert("RGB")
            clear = opened.has_transparency_data and not mode.startswith(("I", "F"))
            clear = clear and min(opened.convert("RGBA").getchannel("A").tobytes()) < 255
    if frames > 1:
        raise ModelError(words, f"It holds {frames} pictures.", "Save the one that is meant in a file of its own.")
    if mode.startswith(("I", "F")):
        raise ModelError(words, f"Its mode is {mode}, not 8 bits a colour.", "Save it with 8 bits a colour.")
    return picture, (f"{place.name} has transparent parts; transparency is ignored.",) * clear


def load_processor(name: str, place: str, options: Mapping[str, str | bool | None]) -> Any:
    """The processor of a model's folder or name on a hub; `options` go to from_pretrained; raises ModelError where there is none."""
    import transformers

    if Path(place).is_dir() and not any((Path(place) / file).exists() for file in FILES):
        problem = f"{name} has no processor, which sound and images need."
        raise ModelError(problem, f"Its folder has none of {', '.join(FILES)}.", SAVE)
    words = f"The processor of {name} cannot be read."
    with quiet(), translate_errors(lambda error: ModelError(words, summarize_error(error, 200), SAVE)):
        processor = transformers.AutoProcessor.from_pretrained(place, **dict[str, Any](options))
        if hasattr(processor, "image_processor") or hasattr(processor, "feature_extractor") or is_processor(processor):
            return processor
        # for models made of two, AutoProcessor returns the tokenizer
        for kind in ("AutoImageProcessor", "AutoFeatureExtractor"):
            with contextlib.suppress(ValueError, OSError):
                return getattr(transformers, kind).from_pretrained(place, **dict[str, Any](options))
        return processor
