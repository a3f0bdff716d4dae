"""Settings and facts of a comparison of two models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.schema import Option, record
from trisect.lab.experiment import UnitsFacts
from trisect.lab.inputs import BatchSize, ModelsSource, Seed, TextSource

PARTS = ("norms", "similarity", "ablate", "erase", "profile", "patch")  # in this order on the page
REQUIREMENTS = {  # what a part reads that texts given one by one do not have
    "erase": ("Erasing is of the labels of a corpus, and texts were given one by one.", "Name a corpus"),
    "profile": ("A profile is of the words of a corpus, and texts were given one by one.", "Name a corpus"),
    "patch": ("Interchange is over pairs of texts, and none are named.", "Add --pairs FILE or --task"),
}


@record
class CompareSettings:
    """Settings of a comparison: two models, texts, and the parts."""

    source: ModelsSource
    read: TextSource
    what: (
        Annotated[
            tuple[str, ...],
            Field(description="What is compared, with commas: norms, similarity, ablate, erase, profile, patch."),
            Option(
                many="commas",
                metavar="PARTS",
                unset="all but erase; profile where --corpus names the texts, patch with --pairs or --task",
            ),
        ]
        | None
    ) = None
    pairs: (
        Annotated[
            str | Path,
            Field(description="For patch: a file of pairs, as 'trisect patch' takes it."),
            Option(metavar="FILE"),
        ]
        | None
    ) = None
    task: (
        Annotated[
            str,
            Field(description="For patch: pairs that are made (bindings)."),
            Option(choices=("bindings",), metavar="TASK"),
        ]
        | None
    ) = None
    batch: BatchSize = 8
    seed: Seed = 0

    def __post_init__(self) -> None:
        if (count := len(self.source.models)) != 2:
            message = "1 model was given." if count == 1 else f"{count} models were given."
            raise SpecError(message, "Two are compared.", "For several give them to trisect norms, ablate, ….")
        if wrong := [name for name in self.what or () if name not in PARTS]:
            parts = f"There is {', '.join(PARTS)}."
            raise SpecError(f"{wrong[0]!r} cannot be compared.", parts, "Use some of them.")
        for part in (part for part in self.what or () if part in REQUIREMENTS and not self._can(part)):
            reads, todo = REQUIREMENTS[part]
            raise SpecError(f"--what {', '.join(self.what or ())} was given.", reads, f"{todo}, or leave {part} out.")
        if self.pairs is not None and self.task is not None:
            todo = "Leave one of them out."
            raise SpecError("--pairs and --task were both given.", "Pairs come from one place.", todo)
        if self.what is not None and "patch" not in self.what and self._can("patch"):
            option = f"--{'pairs' if self.pairs is not None else 'task'} was given with --what {', '.join(self.what)}."
            raise SpecError(option, "Pairs are for patch.", "Add patch, or leave that out.")

    @property
    def corpus(self) -> str | Path | None:
        """The corpus for profiles and erasure; None if texts were given."""
        texts = self.read.texts
        is_text = isinstance(texts, str) and len(texts.split()) != 1 and not Path(texts[:200]).exists()
        return texts if isinstance(texts, str | Path) and not is_text else None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts, in the order of the page."""
        if self.what is not None:
            return tuple(name for name in PARTS if name in self.what)
        return tuple(name for name in PARTS if name != "erase" and self._can(name))

    def _can(self, part: str) -> bool:
        """Whether the inputs of a part were given."""
        if part == "patch":
            return self.pairs is not None or self.task is not None
        return part not in REQUIREMENTS or self.corpus is not None


@record
class CompareFacts:
    """Facts of a comparison."""

    parts: tuple[UnitsFacts, ...]
    shapes: tuple[str, str]
    corpus: str
    corpus_fingerprint: str
