"""Settings and facts of activation patching."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.schema import MAX_RESAMPLES, Option, record
from trisect.core.site import Site
from trisect.lab.inputs import (
    SPLIT,
    BaseText,
    BatchSize,
    DonorText,
    Models,
    ModelWorkers,
    PairCorpus,
    PairList,
    PairReader,
    PairsFile,
    PairSplit,
    PairTask,
    Seed,
    Units,
    check_source,
)

POSITION_WORDS = ("all", "last", "differ")
POSITION_REASON = "They are all, last, differ, or numbers from 1 on such as 3,5-7."


def read_positions(text: str) -> tuple[int, ...] | str:
    """Parse one of WORDS, or position numbers; raises SpecError for other text."""
    if text in POSITION_WORDS:
        return text
    numbers: set[int] = set()
    for piece in text.split(","):
        span = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", piece)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, 0)
        if first < 1 or last < first:
            raise SpecError(f"positions is {text!r}.", POSITION_REASON, "Give one of these.")
        numbers |= set(range(first, last + 1))
    return tuple(sorted(numbers))


PATHS = ("all", "direct")
PATCH_DIRECTIONS = ("denoise", "noise", "both")
PATCH_METHODS = ("patch", "gradient")
DEFAULT_PAIRS = 100  # pairs by default
SHARE_MARGIN = 0.05  # components count as alike if their shares of own answers differ by less


@record
class PatchSettings:
    """Which queries, keys or values of a base text are replaced by a donor text's, and where the texts are from."""

    source: Models
    base: BaseText | None = None
    donor: DonorText | None = None
    sites: (
        Annotated[
            tuple[Site | str, ...],
            Field(description="Sites such as q@all v@2.h4, one or several."),
            Option(many="words", metavar="SITE", unset="q, k and v of every layer", grammar=Site.parse),
        ]
        | None
    ) = None
    pairs: PairsFile | None = None
    pair_list: PairList | None = None
    task: PairTask | None = None
    corpus: PairCorpus | None = None
    split: PairSplit = SPLIT
    reader: PairReader | None = None
    count: Annotated[int, Field(description="Number of pairs of a task.", ge=1, le=MAX_RESAMPLES)] = DEFAULT_PAIRS
    per: Annotated[
        str,
        Field(
            description="What is patched at a time: a layer, a head, or a whole site (v@all: the values of every layer)."
        ),
        Option(choices=("layer", "head", "site"), metavar="PER"),
    ] = "layer"
    positions: (
        Annotated[
            str,
            Field(
                description="Positions that are patched: all, last (of the answer; keys and values of a source as it reads them), differ "
                "(where the texts do), or numbers such as 3,5-7."
            ),
            Option(metavar="WHERE", grammar=read_positions, unset="all; last in the table of predictions"),
        ]
        | None
    ) = None
    path: Annotated[
        str,
        Field(description="all, or direct: q, k and v of all later layers are held as without the patch."),
        Option(choices=PATHS, metavar="PATH"),
    ] = "all"
    how: Annotated[
        str,
        Field(
            description="denoise (the donor's activations in the base's pass), noise (the base's in the donor's), or both."
        ),
        Option(choices=PATCH_DIRECTIONS, metavar="HOW"),
    ] = "denoise"
    by: Annotated[
        str,
        Field(
            description="patch (one pass for each site), or gradient: every head at every position estimated in three passes, then the "
            "twenty largest patched."
        ),
        Option(choices=PATCH_METHODS, metavar="BY"),
    ] = "patch"
    answered: Annotated[
        bool, Field(description="Count only pairs for which the model gives the expected answer to both texts.")
    ] = False
    batch: BatchSize = 16
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)

    def __post_init__(self) -> None:
        """Raise SpecError unless pairs come from one source, and the options fit each other; no model is opened."""
        check_source(self, DEFAULT_PAIRS)
        if self.by == "gradient" and (self.path, self.how, self.per) != ("all", "denoise", "layer"):
            problem = f"by='gradient' was given with path {self.path!r}, how {self.how!r} and per {self.per!r}."
            requirement = "An estimate is of one head at one position, from the donor into the base, along all paths."
            raise SpecError(problem, requirement, "Leave these options out, or use by='patch'.")


@record
class PatchFacts:
    """Model, pairs and settings of a run.

    `objective` is the model's; `scored` is what is measured: answers, or output if the model gives none. `pairs` is the number of
    pairs read, `counted` that of the pairs which shares and changes are computed over. `predicted` are the components whose own
    answer is known.
    """

    subject: str
    fingerprint: str
    objective: str
    scored: str
    corpus: str
    corpus_fingerprint: str
    pairs: int
    counted: int
    predicted: tuple[str, ...]
    sites: tuple[str, ...] | None
    per: str
    positions: str
    path: str
    how: str
    answered: bool
    seed: int
