"""Random example inputs for a model: token ids, pixels, audio samples or spectra, in the shapes that its kind takes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError, reraise_out_of_memory
from trisect.hf.hooks.calls import without_compile

TEXTS, LONG = 2, 5
BINS = ("num_mel_bins", "input_feat_size", "n_mels", "input_size", "feature_size")


def input_groups(config: Any, takes: Sequence[str], draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Yield groups of inputs that belong together for a forward with those argument names; none for most models."""
    if "grid_thw" in takes:
        yield from _patches(config, takes, draw)
    sizes = getattr(config, "vision_config", None) or config
    side = _number(sizes, "patch_size") or 16
    if {"pixel_values", "pixel_attention_mask", "spatial_shapes"} <= set(takes):
        # patches as rows, equally many for every picture, with their numbers in height and width; and a text if the model takes one
        width = (_number(sizes, "num_channels") or 3) * side**2
        rows, shapes = torch.randn(TEXTS, 6, width, generator=draw), torch.tensor([[2, 3]] * TEXTS)
        mask = torch.ones(rows.shape[:2]).long()
        group = {"pixel_values": rows, "pixel_attention_mask": mask, "spatial_shapes": shapes}
        text = {"input_ids": torch.randint(6, 20, (TEXTS, LONG + 2), generator=draw)} if "input_ids" in takes else {}
        yield group | text
    if "flattened_patches" in takes:
        # patches as rows that begin with their coordinates, and the beginning of a text about them
        places = torch.cartesian_prod(torch.arange(1, 3), torch.arange(1, 4)).float().expand(TEXTS, 6, 2)
        rows = torch.cat((places, torch.randn(TEXTS, 6, 3 * side**2, generator=draw)), -1)
        text = torch.randint(6, 20, (TEXTS, LONG), generator=draw)
        yield {"flattened_patches": rows, "attention_mask": torch.ones(TEXTS, 6), "decoder_input_ids": text}
    if "pixel_position_ids" in takes:
        width = (_number(config, "num_channels") or 3) * (_number(config, "patch_size") or 16) ** 2
        side = _number(config, "pooling_kernel_size") or 1
        places = torch.cartesian_prod(torch.arange(2 * side), torch.arange(3 * side)).expand(TEXTS, -1, 2)
        rows = torch.randn(TEXTS, places.shape[1], width, generator=draw)
        yield {"pixel_values": rows, "pixel_position_ids": places}
    if "audio_mel_mask" in takes:
        bins = _number(config, *BINS) or 128
        spectra = torch.randn(TEXTS, 64, bins, generator=draw)
        yield {"audio_mel": spectra, "audio_mel_mask": torch.zeros(TEXTS, 64, dtype=torch.bool)}
    elif "input_features_mask" in takes:  # spectra, bins first and frames first, with a mask of frames
        bins, frames = _number(config, *BINS) or 128, 2 * (_number(config, "max_source_positions") or 64)
        for shape in ((TEXTS, bins, frames), (TEXTS, frames, bins)):
            mask = torch.ones(TEXTS, frames, dtype=torch.long)
            yield {"input_features": torch.randn(shape, generator=draw), "input_features_mask": mask}
    if "past_values" in takes:
        yield from _series(config, takes, draw)
    if {"states", "actions", "timesteps"} <= set(takes):
        # states, actions and rewards of two short trajectories
        widths = {"states": _number(config, "state_dim") or 1, "actions": _number(config, "act_dim") or 1}
        widths |= {"rewards": 1, "returns_to_go": 1}
        group = {n: torch.randn(TEXTS, LONG, w, generator=draw) for n, w in widths.items()}
        yield group | {"timesteps": torch.arange(LONG).expand(TEXTS, LONG), "attention_mask": torch.ones(TEXTS, LONG)}
    if {"query_embeds", "encoder_hidden_states"} <= set(takes):
        widths = _number(config, "hidden_size") or 1, _number(config, "encoder_hidden_size") or 1
        lengths = zip((LONG, LONG + 2), widths, strict=True)
        asking, source = (torch.randn(TEXTS, n, w, generator=draw) for n, w in lengths)
        yield {"query_embeds": asking, "encoder_hidden_states": source}


def _number(config: Any, *names: str) -> int | None:
    """The first of those settings that is an integer; of a list the last item."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and value:
            value = value[-1]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _patches(config: Any, takes: Sequence[str], draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Yield the patches of one picture, each as a row or as a square."""
    merged = _number(config, "spatial_merge_size", "merge_kernel_size", "merge_size") or 1
    high, wide = 2 * merged, 3 * merged
    grid = torch.tensor([[1, high, wide]])
    bands = _number(config, "in_channels", "in_chans", "num_channels") or 3
    side, frames = _number(config, "patch_size") or 14, _number(config, "temporal_patch_size") or 1
    shapes: list[tuple[int, ...]] = [(bands * frames * side * side,), (bands, side, side), (bands, frames, side, side)]
    shapes.append((bands * (2 if frames == 1 else 1) * side * side,))
    name = next((n for n in ("hidden_states", "pixel_values", "pixel_values_videos") if n in takes), None)
    grids = {"grid_thw": grid} | ({"merge_sizes": torch.tensor([merged])} if "merge_sizes" in takes else {})
    for shape in shapes if name is not None else ():
        yield {str(name): torch.randn(high * wide, *shape, generator=draw)} | grids


def _series(config: Any, takes: Sequence[str], draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Yield past values of time series with the other inputs of a forecast."""
    context, ahead = _number(config, "context_length"), _number(config, "prediction_length") or 1
    if context is None:
        return
    if _number(config, "num_input_channels") is None and not {"future_values", "past_observed_mask"} & set(takes):
        group = {"past_values": torch.randn(TEXTS, context, generator=draw)}
        rest = {"past_values_padding": torch.zeros(TEXTS, context, dtype=torch.long), "freq": torch.zeros(TEXTS).long()}
        yield group | {n: t for n, t in rest.items() if n in takes}
        return
    lags = getattr(config, "lags_sequence", None)
    past = context + (max(lags) if isinstance(lags, (list, tuple)) and lags else 0)
    wide = _number(config, "num_input_channels")
    apart = _number(config, "input_size") or 1
    features = _number(config, "num_time_features") or 0
    classes = _number(config, "num_static_categorical_features") or 0
    shape = (TEXTS, past, wide) if wide is not None else (TEXTS, past) if apart == 1 else (TEXTS, past, apart)
    group = {"past_values": torch.randn(shape, generator=draw)}
    future = (TEXTS, ahead, *shape[2:])
    rest = {
        "past_time_features": torch.randn(TEXTS, past, features, generator=draw),
        "past_observed_mask": torch.ones(shape),
        "future_values": torch.randn(future, generator=draw),
        "future_time_features": torch.randn(TEXTS, ahead, features, generator=draw),
    }
    if classes:
        rest["static_categorical_features"] = torch.zeros(TEXTS, classes, dtype=torch.long)
    yield group | {n: t for n, t in rest.items() if n in takes}
    yield group


SOURCE, TARGET = 7, 5  # of different length, so that cross-attention shows in the shape of its weights
SAFE = 6  # ids below are likely special tokens
PLACES = ("_token_id", "_token_index")
SAMPLES, FRAMES, SPECTRA = 3200, 50, 160
POSITIONS = 20  # fewest positions to which a fixed-length encoder is shortened
SEPARATE_INPUTS = ("decoder_input_ids", "pixel_values_videos", "inputs_embeds")  # not beside the main input
BLOCK = 1920  # some models take a multiple of this many samples
FORWARD_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
    StopIteration,
    ImportError,
)


@contextlib.contextmanager
def shorten_positions(model: nn.Module) -> Iterator[bool]:
    """Shorten fixed-length encoders inside, such as Whisper's of 1,500 positions; yields whether there is one.

    Only the length in the configuration and in the position table changes; the weights stay.
    """
    name, changes = "max_source_positions", list[tuple[Any, str, int]]()
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    for config in configs.values():
        length = getattr(config, name, None)
        if not isinstance(length, int) or length < 4 * POSITIONS:
            continue
        tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == length]
        changes += [(config, name, length), *((table, "num_embeddings", length) for table in tables)] if tables else []
    try:
        for holder, attribute, length in changes:  # pooling needs a divisor of the length
            setattr(holder, attribute, next(n for n in range(POSITIONS, length + 1) if length % n == 0))
        yield bool(changes)
    finally:
        for holder, attribute, length in changes:
            setattr(holder, attribute, length)


def example_inputs(name: str, model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Find inputs with which the model's forward runs: its main input, else all inputs of known names, in the first shapes that work.

    Raises ModelError if it takes no known input, or none works.
    """
    takes = list(inspect.signature(model.forward).parameters.values())
    needed = [p.name for p in takes if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = ", ".join(needed) or ", ".join(p.name for p in takes[:6] if p.kind is not p.VAR_KEYWORD)
    todo = f"Give an example of its inputs: load(model, inputs={{...}}), of {names}."
    if getattr(model, "config", None) is None:
        reason = "It has no Hugging Face configuration, which would say what its forward takes."
        raise ModelError(f"{name} cannot be tried out.", reason, todo)
    first: Exception | None = None
    for inputs in _candidates(model, seed):
        try:
            with torch.no_grad(), without_compile(), torch.random.fork_rng(devices=[]):
                model(**inputs)
        except FORWARD_ERRORS as error:
            reraise_out_of_memory(error)
            first = first or error
            continue
        return inputs
    main = _main_input(model)
    reason = f"Its main input is {main!r}. No example is known."
    if first:
        message = " ".join(str(first).split())[:200]
        reason = f"It raises an error for every known example of its main input {main!r}. The model says: {message}"
    raise ModelError(f"{name} cannot be tried out.", reason, todo) from first


def _main_input(model: nn.Module) -> str:
    """The name of the model's main input; the first of several."""
    named: Any = getattr(model, "main_input_name", None) or "input_ids"
    return named if isinstance(named, str) else str(named[0])


def _candidates(model: nn.Module, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield inputs to try: the main input with what it requires, in every known shape; then all inputs of known names."""
    config: Any = model.config
    takes = inspect.signature(model.forward).parameters
    main = _main_input(model)
    like = next((p for p in model.parameters() if p.is_floating_point()), None)

    def to_model(group: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if like is None:
            return dict(group)
        return {n: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype) for n, t in group.items()}

    def make_inputs(name: str) -> list[Tensor]:
        tensors = MAKERS[name](config, torch.Generator().manual_seed(seed)) if name in MAKERS else []
        return tensors if name in takes or name == main else []

    is_pair = getattr(config, "is_encoder_decoder", False)
    target_ids = _ids(config, TARGET, torch.Generator().manual_seed(seed + 1))[0]
    targets = {"decoder_input_ids": target_ids} if is_pair else {}
    needed = [p.name for p in takes.values() if p.default is p.empty and p.name in MAKERS and p.name != main]
    for group in input_groups(config, list(takes), torch.Generator().manual_seed(seed)):
        yield to_model(group)
    for tensor in make_inputs(main):
        yield to_model({main: tensor, **({n: tensors[0] for n in needed if (tensors := make_inputs(n))}), **targets})
    others = [n for n in MAKERS if n in takes and n != main and n not in SEPARATE_INPUTS]
    beside_main = {n: tensors for n in others if (tensors := make_inputs(n))}
    for tensor in make_inputs(main) or [None]:
        for turn in range(max(map(len, beside_main.values()), default=0)):
            rest = {n: tensors[min(turn, len(tensors) - 1)] for n, tensors in beside_main.items()}
            yield to_model(({main: tensor} if tensor is not None else {}) | rest | targets)
    for n in others:
        for tensor in make_inputs(n):
            yield to_model({n: tensor} | targets)


def _ids(config: Any, length: int, draw: torch.Generator) -> list[Tensor]:
    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    names = ("vocab_size", "src_vocab_size", "tgt_vocab_size")
    sizes = [getattr(part, n, None) for part in (text, config) for n in names]
    top = min([n for n in sizes if isinstance(n, int) and n > 1] or [1000])  # 1,000: hashed ids or characters
    ids = torch.randint(min(SAFE, top - 1), top, (2, length), generator=draw)
    parts = (text, config)
    marks = {v for part in parts for n, v in vars(part).items() if n.endswith(PLACES) and isinstance(v, int)}
    for mark in marks:  # placeholders of images, or padding
        ids[ids == mark] = min(SAFE, top - 1) if min(SAFE, top - 1) not in marks else 0
    ids[:, -1] = max((n for n in range(top - 20, top) if n >= 0 and n not in marks), default=top - 1)
    return [ids]  # some text towers pool at the position of the largest id


def _part(config: Any, *kinds: str) -> Any:
    for kind in kinds:
        for name in (f"{kind}_config", kind):  # the latter of encoder-decoders that are made of two models
            part = getattr(config, name, None)
            if hasattr(part, "to_dict"):
                return part
    return config


def _pixels(config: Any, draw: torch.Generator) -> list[Tensor]:
    sizes = _part(config, "vision", "image", "backbone", "encoder")
    side = getattr(sizes, "image_size", getattr(config, "image_size", None)) or 224
    high, wide = (side, side) if isinstance(side, int) else tuple(side)[-2:]
    bands = getattr(sizes, "num_channels", None) or getattr(sizes, "in_channels", None) or 3
    frames = getattr(sizes, "num_frames", None) or getattr(sizes, "frames_per_clip", None) or 2
    shapes = [(2, *more, bands, high, wide) for more in ((), (frames,), (1,), (2,))]
    return [torch.randn(shape, generator=draw) for shape in shapes]


def _features(config: Any, draw: torch.Generator) -> list[Tensor]:
    sizes = _part(config, "audio", "encoder", "speech")
    frames = getattr(sizes, "max_source_positions", None) or getattr(config, "max_source_positions", None) or FRAMES
    named = ("num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", "input_dim", "feat_dim", "num_mels")
    counts = [n for part in (sizes, config) for name in named if isinstance(n := getattr(part, name, None), int)]
    shapes: list[tuple[int, ...]] = []
    for bins in dict.fromkeys([*counts, 80, 128]):
        for length in sorted((SPECTRA, 2 * frames)):
            shapes += [(2, bins, length), (2, length, bins)]
        shapes.append((2, bins, 3000))
    return [torch.randn(shape, generator=draw) for shape in dict.fromkeys(shapes)]


def _samples(config: Any, draw: torch.Generator) -> list[Tensor]:
    bins, frames = getattr(config, "num_mel_bins", 128), getattr(config, "max_length", 1024)
    shapes: list[tuple[int, ...]] = [(2, SAMPLES), (2, 1, SAMPLES), (2, 2 * BLOCK), (2, 1, 2 * BLOCK)]
    if isinstance(frames, int) and isinstance(bins, int):
        shapes.append((2, frames, bins))
    return [torch.randn(shape, generator=draw) for shape in shapes]


def _regions(config: Any, draw: torch.Generator) -> list[Tensor]:
    named = ("visual_feat_dim", "visual_embedding_dim")
    width = next((n for name in named if isinstance(n := getattr(config, name, None), int)), 32)
    return [torch.randn(2, TARGET, width, generator=draw)]


MAKERS: dict[str, Callable[[Any, torch.Generator], list[Tensor]]] = {
    "input_ids": lambda c, d: _ids(c, SOURCE, d),
    "pixel_values": _pixels,
    "pixel_values_videos": _pixels,
    "input_features": _features,
    "input_values": _samples,
    "decoder_input_ids": lambda c, d: _ids(c, TARGET, d),
    "qformer_input_ids": lambda c, d: _ids(c, TARGET, d),
    "bbox": lambda c, d: [(b := torch.randint(0, 30, (2, SOURCE, 4), generator=d).sort(-1).values), b.float() / 30],
    "visual_feats": _regions,
    "visual_pos": lambda c, d: [torch.rand(2, TARGET, getattr(c, "visual_pos_dim", 4), generator=d)],
    "visual_embeds": _regions,
    "query_embeds": lambda c, d: [torch.randn(2, TARGET, getattr(c, "hidden_size", 32), generator=d)],
    "inputs_embeds": lambda c, d: [torch.randn(2, TARGET, getattr(c, "hidden_size", 32), generator=d)],
    "task_inputs": lambda c, d: _ids(c, getattr(c, "task_seq_len", TARGET), d),
}
