"""Settings and facts of a word alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from trisect.core.schema import MAX_INT, MAX_RESAMPLES, Option, record
from trisect.lab.inputs import BatchSize, ModelsSource, Seed

DRAWS = 10_000  # where few models leave few degrees of freedom, the tails of fewer draws end too early


@record
class AlignSettings:
    """Settings of an alignment by cross-attention over sentence pairs, or by self-attention within texts; models differ by seed alone.

    With a `marker` or `spans` each line of `source` is a text that holds source and target, and `target` is not given.

    `bitext` are pairs that are in memory: its test pairs are then aligned, its valid pairs choose the best layer where they
    have gold links, and `source` and the other files are only what the command names.
    """

    read: ModelsSource
    source: Annotated[
        str | Path,
        Field(
            description="A file of source sentences, one a line, words separated by spaces; or of texts that contain both sides."
        ),
        Option(metavar="FILE", positional=True),
    ]
    target: (
        Annotated[
            str | Path,
            Field(description="The file of their translations; the source's again where a line is source ||| target."),
            Option(metavar="FILE"),
        ]
        | None
    ) = None
    gold: (
        Annotated[
            str | Path,
            Field(description="A file of sure and possible links, Pharaoh (0-0 1p2) or .talp, a line a pair."),
            Option(metavar="FILE"),
        ]
        | None
    ) = None
    base: (
        Annotated[
            int,
            Field(description="The number of the first word in the gold links: 0 or 1.", ge=0, le=1),
            Option(unset="detected and reported"),
        ]
        | None
    ) = None
    trial: (
        Annotated[
            tuple[str | Path, ...],
            Field(description="Other pairs, to choose the best layer on; not for texts with a marker or spans."),
            Option(count=3, metavar="SOURCE TARGET GOLD"),
        ]
        | None
    ) = None
    limit: Annotated[int, Field(description="Read at most this many pairs.", ge=1, le=MAX_INT)] | None = None
    batch: BatchSize = 16
    marker: (
        Annotated[
            str,
            Field(description="What stands between source and target in a text, such as >>: self-attention is read."),
            Option(metavar="TEXT"),
        ]
        | None
    ) = None
    spans: (
        Annotated[
            str | Path,
            Field(description="In the marker's place: characters of source and target in each text, as 0-12 15-30."),
            Option(metavar="FILE"),
        ]
        | None
    ) = None
    word: Annotated[
        str, Field(description="A regular expression: what is a word of such a text."), Option(metavar="REGEX")
    ] = r"\S+"
    draws: Annotated[
        int, Field(description="Draws of the pairs that intervals come from.", ge=1, le=MAX_RESAMPLES), Option(name="")
    ] = DRAWS
    seed: Seed = 0
    bitext: Annotated[Any, Field(description="Pairs in memory, read instead of the files."), Option(name="")] | None = (
        None
    )


class PicturedPair(TypedDict):
    """A sentence pair that the page shows; words and links (source, target) count from 1."""

    title: str
    source: Sequence[str]
    target: Sequence[str]
    sure: Sequence[Sequence[int]]
    possible: Sequence[Sequence[int]]
    layers: Mapping[str, int]  # by kind, whose links these are
    weight: Sequence[Sequence[int]]
    norm: Sequence[Sequence[int]]


@record
class AlignFacts:
    """Models, sentence pairs and settings of a word alignment.

    `models` are fingerprints by name. `pairs` were aligned, `trial` are those that chose a layer: `chosen` by model, and by
    setting and kind such as 'AWI by norm'; empty where none were given. `gold` says whether there are gold links. `within` says
    how source and target stand apart in texts that hold both; empty of an encoder-decoder.
    """

    subject: str
    models: Mapping[str, str]
    shape: str
    corpus: str
    corpus_fingerprint: str
    trial: int
    gold: bool
    pairs: int
    seed: int
    draws: int
    chosen: Mapping[str, Mapping[str, int]]
    picture: PicturedPair | None = None
    within: str = ""
