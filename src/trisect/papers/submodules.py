"""Xie and Jiang on key, query and value submodules: their fourteen claims as data, and a fifteenth on all layers at once.

"Close to initialisation" is counted from word frequencies; the measures of rewinding and freezing have to be off their
floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trisect.core.claim import (
    AboveUnigram,
    Claim,
    Combination,
    CurveDistance,
    Effect,
    Leaf,
    LearnedFraction,
    LossChange,
    Part,
    RewindChange,
    RewindRise,
    SiteMean,
    Source,
)

MARGIN = 0.02
LAYERS = (1, 2, 3, 4, 5)
COMPONENTS = ("q", "k", "v")
SPLITS = ("train", "valid")
LABELS = ("pos", "dep")

WHY_MARGIN = "0.02 nats is a change of 2 % in perplexity; the same margin is used for every loss."
WHY_INIT = "Less than a tenth of what the baseline learned counts as close to initialisation."
WHY_UNIGRAM = (
    "A model at word frequencies has learned some four fifths of what the baseline has: less than a tenth of what lies "
    "above them counts as close to initialisation."
)
WHY_CLOSE = "More than half of what the baseline learned is closer to the baseline than to initialisation."
WHY_DIRECTION = "Only the direction is claimed."
WHY_EPSILON = "1 % of the baseline's final train loss is the source's own threshold for a drop."
WHY_CRITICALITY = "Five steps of the grid of α."
_LEARNED = "of what the baseline learned"
WHY_AREA = "The areas are in nats, so the margin of every loss is used: 0.02 nats, 2 % in perplexity."


def _sites(components: str | tuple[str, ...], *layers: int) -> tuple[str, ...]:
    return tuple(f"{component}@{layer}" for layer in layers for component in components)


def _change(edit: str, label: str | None, sites: tuple[str, ...], where: str, split: str, sign: str) -> Part:
    """A loss change of at least the margin (`+`), at most minus the margin (`-`), or within it (`0`)."""
    effect = LossChange(edit, sites, split, label)
    direction, bound = {"+": ("above", MARGIN), "-": ("below", -MARGIN), "0": ("within", MARGIN)}[sign]
    title = f"{label.upper()} at {where}" if label else f"{edit} {where}"
    return Part(f"{title}, {split} loss change", effect, direction, bound, "nats", WHY_MARGIN)


def _attack(label: str, sites: tuple[str, ...], where: str, *signs: str) -> tuple[Part, ...]:
    return tuple(_change("attack", label, sites, where, *split) for split in zip(SPLITS, signs, strict=True))


def _freeze(site: str, *signs: str) -> tuple[Part, ...]:
    return tuple(_change("freeze", None, (site,), site, *split) for split in zip(SPLITS, signs, strict=True))


def _close_to_start(label: str, sites: tuple[str, ...], where: str, split: str) -> tuple[Part, ...]:
    """A small fraction above word frequencies decides; a small one of all that was learned is shown beside it."""
    name, above = f"{label.upper()} at {where}", f"{_LEARNED} above word frequencies"
    fractions = AboveUnigram(label, sites, split), LearnedFraction(label, sites, split)
    return (
        Part(f"{name}, fraction above unigram ({split})", fractions[0], "below", 0.10, above, WHY_UNIGRAM),
        Part(f"{name}, learned fraction ({split})", fractions[1], "below", 0.10, _LEARNED, WHY_INIT, decides=False),
    )


def _close_to_start_at(label: str, sites: tuple[str, ...], splits: tuple[str, ...] = SPLITS) -> tuple[Part, ...]:
    return tuple(part for site in sites for split in splits for part in _close_to_start(label, (site,), site, split))


def _secondary(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(replace(part, decides=False) for part in parts)


def _minus(left: Leaf, right: Leaf) -> Combination:
    return Combination(((1.0, left), (-1.0, right)))


def _direction(name: str, effect: Effect, unit: str, direction: str = "above") -> Part:
    return Part(name, effect, direction, 0.0, unit, WHY_DIRECTION)


def _contrasts(measure: str, noun: str, unit: str, same: float, why_same: str) -> tuple[Part, ...]:
    """Layer 1 lowest, v above k and q, k as q, and rising over the layers: eight parts of one measure."""

    def layer(number: int) -> SiteMean:
        return SiteMean(measure, _sites(COMPONENTS, number))

    def component(name: str) -> SiteMean:
        return SiteMean(measure, _sites(name, *LAYERS))

    middle = sum(LAYERS) / len(LAYERS)
    scale = sum((number - middle) ** 2 for number in LAYERS)
    slope = Combination(tuple(((number - middle) / scale, layer(number)) for number in LAYERS))
    k_q = _minus(component("k"), component("q"))
    return (
        *(_direction(f"{noun}, layer {j} minus layer 1", _minus(layer(j), layer(1)), unit) for j in LAYERS[1:]),
        _direction(f"{noun}, v minus k", _minus(component("v"), component("k")), unit),
        _direction(f"{noun}, v minus q", _minus(component("v"), component("q")), unit),
        Part(f"{noun}, k minus q", k_q, "within", same, unit, why_same),
        _direction(f"{noun}, slope over layers", slope, f"{unit} a layer"),
    )


def _curves(split: str, standardised: bool) -> tuple[Part, ...]:
    def distance(x: str, y: str) -> CurveDistance:
        return CurveDistance((x, y), LAYERS, LABELS, split, standardised)

    noun = f"{'standardised ' if standardised else ''}{split} curves"
    unit = "of the range" if standardised else "nats"
    near = distance("k", "q")
    return tuple(_direction(f"{noun}, D({x},v) minus D(k,q)", _minus(distance(x, "v"), near), unit) for x in ("k", "q"))


def _first_layer(noun: str, effect: Callable[[tuple[str, ...]], Leaf], unit: str, direction: str) -> Part:
    both = _minus(effect(_sites(COMPONENTS, 1)), effect(_sites(COMPONENTS, *LAYERS[1:])))
    return _direction(f"{noun}, layer 1 minus the others", both, unit, direction)


def _first_layer_frozen(split: str) -> Part:
    noun = f"size of the {split} loss change by freezing"
    return _first_layer(noun, lambda sites: LossChange("freeze", sites, split, absolute=True), "nats", "above")


def _first_layer_rewound(measure: str, noun: str, unit: str) -> Part:
    return _first_layer(noun, lambda sites: SiteMean(measure, sites, absolute=True), unit, "below")


def _all_layers(title: str, effect: Callable[[tuple[str, ...]], Leaf]) -> tuple[Part, ...]:
    """v less k and v less q above the margin, k less q within it, in all layers at once."""
    return tuple(
        Part(
            f"{title}, {x}@all minus {y}@all",
            _minus(effect((f"{x}@all",)), effect((f"{y}@all",))),
            direction,
            MARGIN,
            "nats",
            WHY_MARGIN,
        )
        for x, y, direction in (("v", "k", "above"), ("v", "q", "above"), ("k", "q", "within"))
    )


_ALL_K, _ALL_Q, _ALL_V = (_sites(c, *LAYERS) for c in "kqv")
_UPPER_V = _sites("v", 2, 3, 4, 5)
_OTHER_SITES = tuple(site for site in _sites(COMPONENTS, *LAYERS) if site not in _UPPER_V)
_AREA = _contrasts("rewind_area", "rewinding area", "nats", MARGIN, WHY_AREA)
_SHARE = "of the final train loss"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "A-1",
        "Removing part of speech from the keys of layer 1 makes the model over-fit.",
        "4.1, figures 3 and 4",
        _attack("pos", ("k@1",), "k@1", "-", "+"),
    ),
    Claim(
        "A-2",
        "Removing part of speech from the keys of the middle layers makes the model more robust.",
        "4.1, figures 3 and 4",
        _attack("pos", ("k@2", "k@3"), "k@2–3 (mean)", "+", "-"),
    ),
    Claim(
        "A-3",
        "Removing part of speech from the keys of the late layers keeps the model close to initialisation.",
        "4.1, figures 3 and 4",
        _close_to_start_at("pos", ("k@4", "k@5")),
    ),
    Claim(
        "A-4",
        "Removing part of speech from the queries of any layer makes the train loss worse and the validation loss "
        "better.",
        "4.1, figures 3 and 4",
        (
            *_attack("pos", _ALL_Q, "q, mean over layers", "+", "-"),
            *_secondary(tuple(part for site in _ALL_Q for part in _attack("pos", (site,), site, "+", "-"))),
        ),
    ),
    Claim(
        "A-5",
        "Removing part of speech from the values keeps the model close to initialisation in middle and late layers; "
        "in layer 1 it makes the train loss worse and leaves the validation loss alone.",
        "4.1, figures 3 and 4",
        (*_close_to_start_at("pos", _UPPER_V), *_attack("pos", ("v@1",), "v@1", "+", "0")),
    ),
    Claim(
        "A-6",
        "Removing dependency relations from the keys makes the train loss worse everywhere: close to initialisation in "
        "middle and late layers, close to the baseline and with a better validation loss in early ones.",
        "4.1, figures 5 and 6",
        (
            _change("attack", "dep", _ALL_K, "k, mean over layers", "train", "+"),
            *_close_to_start_at("dep", ("k@3", "k@4", "k@5"), ("train",)),
            *(
                Part(
                    f"DEP at {site}, learned fraction (train)",
                    LearnedFraction("dep", (site,), "train"),
                    "above",
                    0.5,
                    _LEARNED,
                    WHY_CLOSE,
                )
                for site in ("k@1", "k@2")
            ),
            *(_change("attack", "dep", (site,), site, "valid", "-") for site in ("k@1", "k@2")),
        ),
    ),
    Claim(
        "A-7",
        "Removing dependency relations from the queries does to the train loss what removing part of speech from the "
        "keys does.",
        "4.1, figures 3 and 5",
        (
            Part(
                "train loss change, mean over layers, DEP at q minus POS at k",
                _minus(LossChange("attack", _ALL_Q, "train", "dep"), LossChange("attack", _ALL_K, "train", "pos")),
                "within",
                MARGIN,
                "nats",
                WHY_MARGIN,
            ),
        ),
    ),
    Claim(
        "A-8",
        "Removing dependency relations from the values of any layer keeps the model close to initialisation.",
        "4.1, figures 5 and 6",
        tuple(part for split in SPLITS for part in _close_to_start("dep", _ALL_V, "v, mean over layers", split)),
    ),
    Claim(
        "A-9",
        "Attacks on keys and attacks on queries look more like each other than either looks like attacks on values.",
        "4.2, figures 3 to 6",
        (
            *_curves("train", False),
            *_curves("train", True),
            *_secondary((*_curves("valid", False), *_curves("valid", True))),
        ),
    ),
    Claim(
        "A-10",
        "Rewinding the values of layers 2 to 5 makes the model clearly worse; rewinding another submodule hardly does.",
        "5.1.1, figure 8",
        (
            Part(
                "rise of the loss at α = 0, v@2–5 minus the other 11 sites",
                _minus(RewindRise(_UPPER_V), RewindRise(_OTHER_SITES)),
                "above",
                0.01,
                _SHARE,
                WHY_EPSILON,
            ),
            Part(
                "rise of the loss at α = 0, other 11 sites",
                RewindRise(_OTHER_SITES),
                "below",
                0.01,
                _SHARE,
                WHY_EPSILON,
            ),
        ),
        floored=True,
    ),
    Claim(
        "A-11",
        "Under convex rewinding layer 1 is the least critical, values are more critical than keys and queries, which "
        "are alike, and upper layers are more critical than lower ones.",
        "5.1.1, figure 9",
        (*_AREA, *_secondary(_contrasts("criticality", "criticality", "of α", 0.05, WHY_CRITICALITY))),
        floored=True,
    ),
    Claim(
        "A-12",
        "Rewinding to weights of mid-training moves values most and keys and queries hardly; layer 1 is the most "
        "robust.",
        "5.1.2, figure 10",
        _contrasts("midstage_area", "mid-stage area", "nats", MARGIN, WHY_AREA),
        floored=True,
    ),
    Claim(
        "A-13",
        "Freezing the keys or the queries of layer 1 makes the model over-fit, freezing its values makes it under-fit, "
        "and freezing upper layers changes nothing.",
        "5.1.3, figures 11 and 12",
        (
            *_freeze("k@1", "-", "+"),
            *_freeze("q@1", "-", "+"),
            *_freeze("v@1", "+", "+"),
            *(part for site in _sites(COMPONENTS, 4, 5) for part in _freeze(site, "0", "0")),
        ),
        floored=True,
    ),
    Claim(
        "A-14",
        "Layer 1 matters most during training and least when the trained model is used.",
        "5.2",
        (
            _first_layer_frozen("train"),
            _first_layer_rewound("rewind_area", "rewinding area", "nats"),
            *_secondary((_first_layer_frozen("valid"), _first_layer_rewound("criticality", "criticality", "of α"))),
        ),
        floored=True,
    ),
    Claim(
        "A-15",
        "In all layers at once, values matter more than keys and queries, which are alike.",
        "6, future work; revision 2",
        (
            *_all_layers("rise of the train loss at α = 0", RewindChange),
            *_all_layers("train loss change by freezing", lambda sites: LossChange("freeze", sites, "train")),
            *_secondary(
                _all_layers("valid loss change by freezing", lambda sites: LossChange("freeze", sites, "valid"))
            ),
        ),
        floored=True,
    ),
)

SOURCE = Source(
    key="submodules",
    title="Investigating the functionality of Key, Query, Value submodules in Attention Mechanism",
    authors="Ziyi Xie, Letian Jiang",
    citation="Ziyi Xie and Letian Jiang. Investigating the functionality of Key, Query, Value submodules in Attention "
    "Mechanism. Center for Data Science, New York University.",
    claims=CLAIMS,
)
