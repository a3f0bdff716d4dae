"""Settings and facts of a profile."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from trisect.core.schema import MAX_INT, MAX_RESAMPLES, Option, record
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Seed, Units
from trisect.text.lines import SPLITS
from trisect.text.readers import HELP

SELF, CROSS = ATTENTION = ("self", "cross")
MIN_DRAWS = 200  # random maps of a layer's input
WORDS = 40_000


@record
class ProfileSettings:
    """Settings of a profile: labels of words, and the queries, keys and values to probe."""

    source: Models
    corpus: Annotated[
        str | Path,
        Field(
            description="A treebank's folder or file, a corpus or a raw text's folder, 'sample' (English) or 'embedded'; with "
            "--attention cross a bitext's folder, or 'embedded'."
        ),
        Option(metavar="CORPUS", positional=True),
    ]
    attention: Annotated[
        str,
        Field(
            description="Which attention is read: self, of one text; or cross, of sentence pairs: queries of the target's "
            "words, keys and values of "
            "the source's."
        ),
        Option(choices=ATTENTION, metavar="ATTENTION"),
    ] = SELF
    labels: (
        Annotated[
            tuple[str, ...],
            Field(
                description="Labels separated by commas: word, position, frequency, a column such as pos, or one of another word, as in "
                "previous, next, head, previous.dep; of sentence pairs word, position, frequency, linked and linked.position."
            ),
            Option(
                many="commas",
                metavar="LABELS",
                unset="word, position, frequency, pos, dep, previous, next and head, of pairs linked and linked.position, as far as the "
                "text has them",
            ),
        ]
        | None
    ) = None
    split: Annotated[
        str,
        Field(description="The words that are read: train, valid or test."),
        Option(choices=SPLITS, metavar="SPLIT"),
    ] = "train"
    reader: Annotated[str, Field(description=f"{HELP}."), Option(unset="detected")] | None = None
    limit: Annotated[int, Field(description="Read at most this many texts.", ge=1, le=MAX_INT)] | None = None
    words: Annotated[int, Field(description="Read at most about this many words.", ge=100, le=MAX_INT)] = WORDS
    per: Annotated[
        str,
        Field(description="What the page shows: a layer (the mean over its heads), or each head as well."),
        Option(choices=("layer", "head"), metavar="PER"),
    ] = "layer"
    draws: Annotated[
        int,
        Field(description="Random maps of each layer's input.", ge=MIN_DRAWS, le=MAX_RESAMPLES),
        Option(reason=f"With fewer than {MIN_DRAWS} what a random map finds is not known well enough to compare with."),
    ] = MIN_DRAWS
    checkpoints: Annotated[
        tuple[str, ...],
        Field(
            description="Checkpoints in the order of training, with commas: epochs of a study's run, or 'all'; revisions on a hub, "
            "or folders beside MODEL."
        ),
        Option(many="commas", metavar="CHECKPOINTS"),
    ] = ()
    mlp: Annotated[bool, Field(description="Also fit MLP probes, to some of the words, as a check.")] = False
    causal: (
        Annotated[
            int,
            Field(
                description="Also erase each label (LEACE) from each layer's q, k or v, and measure the change on this many "
                "texts of another split.",
                ge=2,
                le=MAX_INT,
            ),
            Option(metavar="TEXTS"),
        ]
        | None
    ) = None
    folds: Annotated[
        int, Field(description="Parts of the text; each is predicted from the others.", ge=2, le=1_000), Option(name="")
    ] = 5
    batch: BatchSize = 16
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@record
class ProfileFacts:
    """Facts of a profile; `classes` has the number of classes of each of `labels`, `groups` the units that folds do not split.

    `checkpoints` are those that the rows' `at` counts from 0; `causal_corpus` are the texts of the causal twin, None where
    there is none, and `unit` is what it is measured in. Of cross-attention `texts` are pairs, `words` and `classes` are the
    target's (q), and `source_words` and `source_classes` the source's (k and v). `as_used` are components that are no plain
    map of a layer's input and so are read as attention used them.
    """

    subject: str
    fingerprint: str
    corpus: str
    corpus_fingerprint: str
    texts: int
    words: int
    groups: int
    labels: tuple[str, ...]
    classes: tuple[int, ...]
    per: str
    draws: int
    folds: int
    seed: int
    limit: int | None
    checkpoints: tuple[str, ...] = ()
    mlp: bool = False
    causal_corpus: str | None = None
    causal_texts: int = 0
    unit: str = "nats"
    attention: str = SELF
    source_words: int = 0
    source_classes: tuple[int, ...] = ()
    as_used: tuple[str, ...] = ()
