"""Claims as plain data: a source's sentence as effects, directions and margins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from html import escape
from typing import TypeAlias

DIRECTIONS = ("above", "below", "within")
REVISION = 3  # version of the rules by which claims are judged
MIN_SEEDS = 5  # fewer seeds than these give no verdict on a claim about training


@dataclass(frozen=True)
class LossChange:
    """What an edit does to the final loss: edited minus baseline of the same seed, nats, mean over `sites`.

    For the edit `narrow`, `sites` are those of the tie or identity that it is compared with: the model with narrower heads
    and the closest number of parameters, at the same layers. `absolute` averages absolute changes.
    """

    edit: str
    sites: tuple[str, ...]
    split: str
    label: str | None = None
    absolute: bool = False


@dataclass(frozen=True)
class LearnedFraction:
    """(L_init − L) / (L_init − L_baseline) of attacked runs, mean over `sites`: 0 untrained, 1 as the baseline."""

    label: str
    sites: tuple[str, ...]
    split: str


@dataclass(frozen=True)
class AboveUnigram(LearnedFraction):
    """(L_unigram − L) / (L_unigram − L_baseline) of attacked runs, mean over `sites`: 0 as good as word frequencies alone."""


@dataclass(frozen=True)
class SiteMean:
    """A measure of the trained baseline's sites (criticality, rewind_area, midstage_area), mean over `sites`."""

    measure: str
    sites: tuple[str, ...]
    split: str = "train"
    absolute: bool = False


@dataclass(frozen=True)
class RewindRise:
    """Rise of the loss with a site's initial weights (α = 0), as a share of the final loss; mean over `sites`."""

    sites: tuple[str, ...]
    split: str = "train"


@dataclass(frozen=True)
class RewindChange:
    """Rise of the loss in nats with a site's initial weights (α = 0); mean over `sites`."""

    sites: tuple[str, ...]
    split: str = "train"


@dataclass(frozen=True)
class CurveDistance:
    """D(x, y): mean over layers, labels and epochs of |curve_x − curve_y|, x and y being attacked components.

    Curves are losses by epoch in nats; `standardised` rescales each to the range 0 to 1 first.
    """

    pair: tuple[str, str]
    layers: tuple[int, ...]
    labels: tuple[str, ...]
    split: str = "train"
    standardised: bool = False


@dataclass(frozen=True)
class Statistic:
    """A number of a measure for one model on its texts, by name, such as `cv_f`; resampled over units."""

    name: str


Leaf: TypeAlias = LossChange | LearnedFraction | SiteMean | RewindRise | RewindChange | CurveDistance | Statistic


@dataclass(frozen=True)
class Combination:
    """A weighted sum of effects: a contrast has the weights 1 and −1, a slope over layers sums to 0."""

    terms: tuple[tuple[float, Leaf], ...]


Effect: TypeAlias = Leaf | Combination


@dataclass(frozen=True)
class Part:
    """An effect with what is claimed of it: above `bound`, below `bound`, or within ±`bound`.

    `reason` justifies the bound. A part with `decides` False is shown, and does not enter the verdict.
    """

    name: str
    effect: Effect
    direction: str
    bound: float
    unit: str
    reason: str
    decides: bool = True

    def __post_init__(self) -> None:
        assert self.direction in DIRECTIONS
        assert self.direction != "within" or self.bound > 0

    @property
    def margin(self) -> float:
        """The absolute value of the bound."""
        return abs(self.bound)

    @property
    def sentence(self) -> str:
        """The part in words and numbers, for example `POS at k@1, train loss < −0.02 nats`."""
        sign = {"above": "> ", "below": "< ", "within": "within ±"}[self.direction]
        bound = f"{self.bound:g}".replace("-", "−")
        return f"{self.name} {sign}{bound} {self.unit}"

    def leaves(self) -> Iterator[Leaf]:
        """The effects that this part's effect consists of."""
        if isinstance(self.effect, Combination):
            yield from (leaf for _, leaf in self.effect.terms)
        else:
            yield self.effect


@dataclass(frozen=True)
class Claim:
    """A sentence of a source and the parts that must all hold for it; `where` is its place in the source.

    With `floored`, there is no verdict unless rewinding at least one of its sites to its initial weights changes the loss;
    there is none either with fewer than MIN_SEEDS seeds or models, or fewer than three layers.
    """

    id: str
    sentence: str
    where: str
    parts: tuple[Part, ...]
    floored: bool = False

    def deciding(self) -> tuple[Part, ...]:
        """The parts that the verdict depends on."""
        return tuple(part for part in self.parts if part.decides)

    def _repr_html_(self) -> str:
        """The sentence and its parts, for a notebook."""
        notes = ("(shown, does not decide)", "")  # by whether the part decides
        parts = "".join(f"<li>{escape(p.sentence)} {notes[p.decides]}<br>{escape(p.reason)}</li>" for p in self.parts)
        return f"<b>{escape(self.id)}</b> {escape(self.sentence)} ({escape(self.where)})<ul>{parts}</ul>"


@dataclass(frozen=True)
class Source:
    """A source: its citation and its claims; those that are tested together are one family for Holm's correction.

    `unit` is the resampled unit of their intervals: 'seed' for claims about training, 'text', 'name' or 'head' for claims
    about one model, 'model' for models trained with the same settings. `needs` is the unit that an inconclusive verdict
    needs more of, if it is another one. `revision` is the version of the rules.
    """

    key: str
    title: str
    authors: str
    citation: str
    claims: tuple[Claim, ...]
    unit: str = "seed"
    needs: str = ""
    revision: int = REVISION


def claim_data(value: object) -> object:
    """A claim, a part or an effect as JSON-ready data; every effect names its kind."""
    if isinstance(value, (Source, Claim, Part)):
        return {f.name: claim_data(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Effect):
        return {"kind": type(value).__name__, **{f.name: claim_data(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, tuple):
        return [claim_data(v) for v in value]
    return value
