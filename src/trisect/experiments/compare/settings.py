"""What a comparison of two models is asked, and what it notes of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from trisect.core.errors import SpecError
from trisect.core.fields import Setting
from trisect.lab.experiment import Experiment, LayerMeasure
from trisect.lab.inputs import BatchSize, ModelsSource, Seed, TextSource

PARTS = ("norms", "similarity", "ablate")  # in this order on the page


@dataclass(frozen=True)
class CompareSettings:
    """Two models, texts, and what they are compared by."""

    source: ModelsSource
    read: TextSource
    what: Annotated[
        tuple[str, ...],
        Setting("What is compared, with commas: norms, similarity, ablate.", many="commas", metavar="PARTS"),
    ] = PARTS
    batch: BatchSize = 8
    seed: Seed = 0

    def __post_init__(self) -> None:
        if len(self.source.models) != 2:
            count = len(self.source.models)
            given = "1 model was given." if count == 1 else f"{count} models were given."
            raise SpecError(given, "Two are compared.", "For several give them to trisect norms, ablate, ….")
        if wrong := [name for name in self.what if name not in PARTS]:
            there = f"There is {', '.join(PARTS)}."
            raise SpecError(f"{wrong[0]!r} cannot be compared.", there, "Use some of them.")


@dataclass(frozen=True)
class ComparedPart:
    """One measurement of both models: what it is called, what is drawn of it by layer, and the models' own pages."""

    name: str
    by_layer: tuple[LayerMeasure, ...]
    pages: tuple[str, str]
    findings: tuple[tuple[str, ...], tuple[str, ...]]

    @classmethod
    def of(cls, given: ComparedPart | Mapping[str, object]) -> ComparedPart:
        """From what a record holds of it."""
        if isinstance(given, ComparedPart):
            return given
        own: dict[str, Any] = dict(given)
        first, second = own["findings"]
        drawn = tuple(LayerMeasure(*one) for one in own["by_layer"])
        return cls(own["name"], drawn, tuple(own["pages"]), (tuple(first), tuple(second)))


@dataclass(frozen=True)
class CompareFacts:
    """Both models, the texts, and the parts; `paired` says that both split the texts into the same tokens."""

    models: tuple[str, str]
    fingerprints: tuple[str, str]
    shapes: tuple[str, str]
    corpus: str
    corpus_fingerprint: str
    tokens: tuple[int, int]
    paired: bool
    parts: tuple[ComparedPart, ...]
    seed: int
    batch: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(map(ComparedPart.of, self.parts)))


COMPARE = Experiment(
    "compare",
    """Put two models side by side: norms, similarity and ablation, with differences paired by text.

    \b
    trisect compare MODEL OTHER --corpus wikitext-2
    """,
    CompareSettings,
    CompareFacts,
    "trisect.experiments.compare",
    out="compare-{model}",
    record="compare.json",
)
