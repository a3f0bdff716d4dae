"""What a comparison of two models is asked, and what it notes of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.schema import Option, record
from trisect.lab.experiment import LayerMeasure
from trisect.lab.inputs import BatchSize, ModelsSource, Seed, TextSource

PARTS = ("norms", "similarity", "ablate", "erase", "profile", "patch")  # in this order on the page
TASKS = ("bindings",)


@record
class CompareSettings:
    """Two models, texts, and what they are compared by."""

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
            Path, Field(description="For patch: a file of pairs, as 'trisect patch' takes it."), Option(metavar="FILE")
        ]
        | None
    ) = None
    task: (
        Annotated[
            str, Field(description="For patch: pairs that are made (bindings)."), Option(choices=TASKS, metavar="TASK")
        ]
        | None
    ) = None
    batch: BatchSize = 8
    seed: Seed = 0

    def __post_init__(self) -> None:
        if len(self.source.models) != 2:
            count = len(self.source.models)
            given = "1 model was given." if count == 1 else f"{count} models were given."
            raise SpecError(given, "Two are compared.", "For several give them to trisect norms, ablate, ….")
        if wrong := [name for name in self.what or () if name not in PARTS]:
            there = f"There is {', '.join(PARTS)}."
            raise SpecError(f"{wrong[0]!r} cannot be compared.", there, "Use some of them.")
        self._check_parts()

    @property
    def corpus(self) -> str | Path | None:
        """The text that profiles are of; null where texts were given one by one."""
        given = self.read.texts
        named = isinstance(given, Path) or (
            isinstance(given, str) and (len(given.split()) == 1 or Path(given[:200]).exists())
        )
        return given if named else None

    @property
    def parts(self) -> tuple[str, ...]:
        """What is compared, in the order of the page."""
        if self.what is not None:
            return tuple(name for name in PARTS if name in self.what)
        cannot = {"erase": True, "profile": self.corpus is None, "patch": self.pairs is None and self.task is None}
        return tuple(name for name in PARTS if not cannot.get(name))

    def _check_parts(self) -> None:
        """Raise SpecError where a part is asked for without what it is of, or pairs come from two places."""
        named = ", ".join(self.what or ())
        for part, is_of in (("erase", "Erasing is of the labels"), ("profile", "A profile is of the words")):
            if part in (self.what or ()) and self.corpus is None:
                known = f"{is_of} of a corpus, and texts were given one by one."
                raise SpecError(f"--what {named} was given.", known, f"Name a corpus, or leave {part} out.")
        if "patch" in (self.what or ()) and self.pairs is None and self.task is None:
            known = "Interchange is over pairs of texts, and none are named."
            raise SpecError(f"--what {named} was given.", known, "Add --pairs FILE or --task, or leave patch out.")
        if self.pairs is not None and self.task is not None:
            raise SpecError(
                "--pairs and --task were both given.", "Pairs come from one place.", "Leave one of them out."
            )
        if self.what is not None and "patch" not in self.what and (self.pairs is not None or self.task is not None):
            given = f"--{'pairs' if self.pairs is not None else 'task'} was given with --what {named}."
            raise SpecError(given, "Pairs are for patch.", "Add patch, or leave that out.")


@record
class ComparedPart:
    """One measurement of both models: what it is called, what is drawn of it by layer, and the models' own pages."""

    name: str
    by_layer: tuple[LayerMeasure, ...]
    pages: tuple[str, str]
    findings: tuple[tuple[str, ...], tuple[str, ...]]


@record
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
