"""What an interchange intervention is asked, and what it notes of itself."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trisect.core.errors import SpecError
from trisect.core.schema import RESAMPLES, Option, record
from trisect.core.site import Site
from trisect.lab.inputs import BatchSize, Models, ModelWorkers, Seed, Units
from trisect.text.lines import SPLITS
from trisect.text.readers import HELP

WORDS = ("all", "last", "differ")
KNOWN = "They are all, last, differ, or numbers from 1 on such as 3,5-7."


def read_positions(text: str) -> tuple[int, ...] | str:
    """One of WORDS, or numbers; raises SpecError for what is neither."""
    if text in WORDS:
        return text
    numbers: set[int] = set()
    for piece in text.split(","):
        span = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", piece)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, 0)
        if first < 1 or last < first:
            raise SpecError(f"positions is {text!r}.", KNOWN, "Give one of these.")
        numbers |= set(range(first, last + 1))
    return tuple(sorted(numbers))


TASKS = ("bindings", "induction", "recall", "translation", "audio-words")
PATHS = ("all", "direct")
HOW = ("denoise", "noise", "both")
COUNT, SPLIT = 100, "valid"  # unless others are asked for
SAME_PAIRS = 0.05  # components whose own answers come in shares of pairs that differ by less are alike


@record
class PatchSettings:
    """Which parts of a donor text's queries, keys or values a model is given in a base text, and where the texts are from."""

    source: Models
    base: (
        Annotated[
            Any,
            Field(description="A base text; for encoder-decoders in Python (source, target)."),
            Option(metavar="TEXT", placed=True),
        ]
        | None
    ) = None
    donor: (
        Annotated[
            Any,
            Field(description="A donor text, as many tokens long as the base."),
            Option(metavar="TEXT", placed=True),
        ]
        | None
    ) = None
    sites: (
        Annotated[
            tuple[Site | str, ...],
            Field(description="Sites such as q@all v@2.h4, one or several."),
            Option(many="words", metavar="SITE", unset="q, k and v of every layer", placed=True, grammar=Site.parse),
        ]
        | None
    ) = None
    pairs: (
        Annotated[
            Path,
            Field(description="A file of pairs, one a line as JSON: base, donor and, where they are known, answers."),
            Option(metavar="FILE"),
        ]
        | None
    ) = None
    given: (
        Annotated[Any, Field(description="Pairs in memory: (base, donor), or mappings as in a file."), Option(name="")]
        | None
    ) = None
    task: (
        Annotated[
            str,
            Field(
                description="Pairs that are made for the model: bindings (who has what), induction (… A B … A), recall (for a model of "
                "trisect recall), translation (for a model of trisect translate-train and the embedded bitext), or audio-words (for a "
                "model of speech, of recordings of single words: --corpus names their folder)."
            ),
            Option(choices=TASKS, metavar="TASK"),
        ]
        | None
    ) = None
    corpus: (
        Annotated[
            str | Path,
            Field(
                description="For induction: a text whose words and passages the pairs are made of (default: English words among others); "
                "for audio-words: a folder of sound files, a word each, named by it."
            ),
            Option(metavar="CORPUS"),
        ]
        | None
    ) = None
    split: Annotated[
        str, Field(description="Of that text: train, valid or test."), Option(choices=SPLITS, metavar="SPLIT")
    ] = SPLIT
    reader: Annotated[str, Field(description=f"{HELP}."), Option(unset="detected")] | None = None
    count: Annotated[int, Field(description="Pairs that a task makes.", ge=1, le=RESAMPLES)] = COUNT
    per: Annotated[
        str,
        Field(
            description="What is patched at a time: a layer, a head, or all that a site names (v@all: the values of every layer)."
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
            Option(metavar="WHERE", grammar=read_positions, unset="all, and in the table of predictions last"),
        ]
        | None
    ) = None
    path: Annotated[
        str,
        Field(description="all, or direct: q, k and v of all later layers stay as without the patch."),
        Option(choices=PATHS, metavar="PATH"),
    ] = "all"
    how: Annotated[
        str,
        Field(description="denoise (the donor's into the base), noise (the base's into the donor), or both."),
        Option(choices=HOW, metavar="HOW"),
    ] = "denoise"
    answered: Annotated[
        bool, Field(description="Count only pairs for which the model answers both texts as stated.")
    ] = False
    batch: BatchSize = 16
    seed: Seed = 0
    units: Units | None = None
    machine: ModelWorkers = field(default_factory=ModelWorkers)

    def __post_init__(self) -> None:
        """Raise SpecError unless pairs come from one place, and options are of what is there: known before any model is opened."""
        single = self.base is not None or self.donor is not None
        sources = {
            "--pairs": self.pairs,
            "--task": self.task,
            "given": self.given,
            "a base and a donor": single or None,
        }
        named = [name for name, value in sources.items() if value is not None]
        if len(named) != 1:
            given = f"{' and '.join(named)} were given." if named else "No pairs were given."
            known = "Pairs come from one place: --pairs FILE, --task, or a base with its donor (in Python also given=)."
            # of several models those that can only be texts: neither a folder nor a name that a hub could have
            models = self.source.model if isinstance(self.source.model, list | tuple) and not named else ()
            texts = (m for m in models if isinstance(m, str) and len(m.split()) > 1 and not Path(m[:200]).exists())
            if (text := next(texts, None)) is not None:
                todo = "Give texts by name: --base TEXT --donor TEXT."
                raise SpecError(given, f"{known} {text!r} stands among the models.", todo)
            raise SpecError(given, known, "Give one of them.")
        if self.corpus is not None and self.task not in ("induction", "audio-words"):
            known = "A text is what the pairs of the task induction are made of, a folder of recordings those of audio-words."
            raise SpecError(f"--corpus {self.corpus} was given.", known, "Leave it out, or give --task induction.")
        if self.task == "audio-words" and (self.corpus is None or not Path(self.corpus).is_dir()):
            known = "It is a folder of sound files, each of one word and named by it."
            raise SpecError(
                f"The task 'audio-words' was asked for with --corpus {self.corpus}.", known, "Name such a folder."
            )
        if self.count != COUNT and self.task is None:
            known = "So many pairs a task makes; of pairs that are given each is read."
            raise SpecError(f"--count {self.count} was given without --task.", known, "Leave it out, or give --task.")
        of_text = {"split": self.split if self.split != SPLIT else None, "reader": self.reader}
        for name, value in of_text.items():
            if value is not None and self.corpus is None:
                given, todo = f"--{name} {value} was given without --corpus.", "--task induction --corpus CORPUS"
                raise SpecError(given, "It says how a text is read.", f"Leave it out, or give {todo}.")
        if single and (self.base is None or self.donor is None):
            missing = "base" if self.base is None else "donor"
            raise SpecError(f"No {missing} was given.", "A pair is a base and a donor.", f"Give the {missing}.")


@record
class PatchFacts:
    """Model, pairs and settings of an interchange.

    `objective` is the model's; `scored` says what is measured: answers, or output where the model gives none. `pairs` are those that
    were read, `counted` those that shares and changes are of. `predicted` are the components whose own answer is known.
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
