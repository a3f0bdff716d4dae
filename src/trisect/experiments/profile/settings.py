"""What a profile is asked, and what it notes of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from trisect.core.bounds import RESAMPLES
from trisect.core.fields import Setting
from trisect.lab.experiment import Experiment, LayerMeasure
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Seed, Units
from trisect.text.names import SPLITS
from trisect.text.readers import HELP

SELF, CROSS = ATTENTION = ("self", "cross")
FEWEST = 200  # random maps of a layer's input
WORDS = 40_000


@dataclass(frozen=True)
class ProfileSettings:
    """Which labels of which words are looked for in a model's queries, keys and values."""

    source: Models
    corpus: Annotated[
        str | Path,
        Setting(
            "A treebank's folder, a corpus folder, a raw text's folder, or 'embedded'; with --attention cross a bitext's folder, or "
            "'embedded'.",
            metavar="CORPUS",
        ),
    ]
    attention: Annotated[
        str,
        Setting(
            "Which attention is read: self, of one text; or cross, of sentence pairs: queries of the target's words, keys and values of "
            "the source's.",
            choices=ATTENTION,
            metavar="ATTENTION",
        ),
    ] = SELF
    labels: (
        Annotated[
            tuple[str, ...],
            Setting(
                "Labels with commas: word, position, frequency, a column such as pos, or one of another word, as in "
                "previous, next, head, previous.dep; of sentence pairs word, position, frequency, linked and linked.position.",
                many="commas",
                metavar="LABELS",
                unset="word, position, frequency, pos, dep, previous, next and head, of pairs linked and linked.position, as far as the "
                "text has them",
            ),
        ]
        | None
    ) = None
    split: Annotated[
        str, Setting("The words that are read: train, valid or test.", choices=SPLITS, metavar="SPLIT")
    ] = "train"
    reader: Annotated[str, Setting(f"{HELP}.", unset="detected")] | None = None
    limit: Annotated[int, Setting("Read at most this many texts.", low=1)] | None = None
    words: Annotated[int, Setting("Read at most about this many words.", low=100)] = WORDS
    per: Annotated[
        str,
        Setting(
            "What the page shows: a layer (the mean over its heads), or each head as well.",
            choices=("layer", "head"),
            metavar="PER",
        ),
    ] = "layer"
    draws: Annotated[
        int,
        Setting(
            "Random maps of each layer's input.",
            low=FEWEST,
            high=RESAMPLES,
            known=f"With fewer than {FEWEST} what a random map finds is not known well enough to compare with.",
        ),
    ] = FEWEST
    checkpoints: Annotated[
        tuple[str, ...],
        Setting(
            "Checkpoints in the order of training, with commas: epochs of a study's run, or 'all'; revisions on a hub, "
            "or folders beside MODEL.",
            many="commas",
            metavar="CHECKPOINTS",
        ),
    ] = ()
    mlp: Annotated[bool, Setting("Also fit MLP probes, to some of the words, as a check.")] = False
    causal: (
        Annotated[
            int,
            Setting(
                "Also erase each label (LEACE) from each layer's q, k or v, and measure the change on this many texts of another split.",
                low=2,
                metavar="TEXTS",
            ),
        ]
        | None
    ) = None
    folds: Annotated[
        int, Setting("Parts of the text; each is predicted from the others.", low=2, high=1_000, option="")
    ] = 5
    batch: BatchSize = 16
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)


@dataclass(frozen=True)
class ProfileFacts:
    """Model, texts and settings of a profile; `classes` says how many each of `labels` has, `groups` what folds keep whole.

    `checkpoints` are those that the rows' `at` counts from 0; `causal_corpus` are the texts of the causal twin, null where
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


PROFILE = Experiment(
    "profile",
    """Measure which properties of a word each head's queries, keys and values keep, against random maps of the same input.

    \b
    trisect profile MODEL --corpus ud-english-ewt --labels position,pos
    trisect profile TRANSLATOR --attention cross --corpus embedded
    """,
    ProfileSettings,
    ProfileFacts,
    "trisect.experiments.profile",
    source="profile",
    out="profile-{model}",
    record="profile.json",
    checks=True,
    checks_model=True,
    result="Profile",
    by_layer=(LayerMeasure("profile_gain", "more than random maps", "accuracy", finding="profile"),),
)
