"""Inputs that several experiments share: a model to read, texts, and the machine; declared once, opened once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar, cast

from pydantic import Field

from trisect.core.errors import CorpusError, ModelError, SpecError, shorten, unknown_name
from trisect.core.files import Json
from trisect.core.machine import Machine
from trisect.core.schema import MAX_INT, MODEL_BOUNDS, TRAINING_BOUNDS, Option, flat_settings, read_word, record
from trisect.core.site import Site
from trisect.text.hub import is_hub
from trisect.text.lines import SPLITS
from trisect.text.readers import HELP

if TYPE_CHECKING:
    from trisect.core.subject import Subject, Texts
    from trisect.lab.subject import FetchOptions

Seed = Annotated[int, Field(description="Random seed.", ge=0, le=2**32 - 1)]
Seeds = Annotated[
    tuple[int, ...],
    Field(description="Number of seeds (5: seeds 1 to 5), or a list: 1,2,7 or 3-6 (seed 7 alone: 7-7)."),
    Option(many="seeds", metavar="SEEDS"),
]
Changes = Annotated[
    Mapping[str, Any],
    Field(description="A setting of the recipe to override (repeatable)."),
    Option(name="set", many="pairs", metavar="NAME=VALUE"),
]
BatchSize = Annotated[
    int, Field(description="Texts read at once.", ge=1, le=TRAINING_BOUNDS["columns"]), Option(name="")
]
Sites = Annotated[
    tuple[Site | str, ...],
    Field(description="Sites such as q@all or v@2.h4, one or several."),
    Option(many="words", metavar="SITE", unset="q, k and v of every layer", grammar=Site.parse),
]
Per = Annotated[
    str,
    Field(description="What is edited at a time: a whole layer or one head."),
    Option(choices=("layer", "head"), metavar="PER"),
]
Revision = Annotated[str, Field(description="A branch, tag or commit of a model on a hub."), Option(metavar="REVISION")]
Dtype = Annotated[
    str, Field(description="float32, bfloat16, float16 or float64."), Option(metavar="DTYPE", unset="as stored")
]
Device = Annotated[str, Field(description="Where the model runs: auto, cpu or cuda."), Option(metavar="DEVICE")]
Pickle = Annotated[bool, Field(description="Allow weights that are a pickle, which can run code.")]
RemoteCode = Annotated[bool, Field(description="Allow code from the model's repository to run here.")]
Window = Annotated[
    int,
    Field(description="Tokens read at once.", ge=1, le=10_000_000),
    Option(unset="the model's own limit, 1,024 at most"),
]


class _Source:
    """A model or several, and how to fetch them."""

    def fetch_options(self) -> FetchOptions:
        """The options of `load` besides model and window."""
        names = ("revision", "dtype", "device", "device_map", "pickle", "remote_code")
        return cast("FetchOptions", {name: getattr(self, name, None) for name in names})

    def _open(self, model: Any, **options: Any) -> Subject:
        """Open one model, unless it is open already; raises ModelError for options that then come too late."""
        from trisect.core.subject import Subject  # with PyTorch, which a command's help does without
        from trisect.lab.subject import load

        if not isinstance(model, Subject):
            return load(model, quiet=True, **self.fetch_options(), **options)
        source: Any = self
        options_of = [f for f in fields(source) if f.name not in ("model", "models")]
        if late := [f.name for f in options_of if getattr(self, f.name) != f.default]:
            reason = f"{model.name} is loaded already, so that they cannot be applied."
            raise ModelError(f"{', '.join(late)} was given.", reason, "Give them to trisect.load instead.")
        return model


@record
class ModelSource(_Source):
    """A model to read, and how to fetch it."""

    model: Annotated[
        Any,
        Field(description="A folder, a name on a hub, a study or a run of one; in Python also a loaded model."),
        Option(argument=True),
    ]
    revision: Revision | None = None
    dtype: Dtype | None = None
    device: Device = "auto"
    device_map: (
        Annotated[str, Field(description="Passed on to from_pretrained, such as auto (needs the package accelerate).")]
        | None
    ) = None
    pickle: Pickle = False
    remote_code: RemoteCode = False
    window: Window | None = None

    def open(self) -> Subject:
        """Open the model; raises ModelError if it cannot be read."""
        return self._open(self.model, window=self.window)


Models = Annotated[
    ModelSource,
    Field(
        description="One or several: a folder, a name on a hub, a study or a run of one, a revision as NAME@REVISION; in "
        "Python also loaded models."
    ),
    Option(many="models", metavar="MODEL..."),
]
UNITS = ("models", "revisions")
Units = Annotated[
    str,
    Field(
        description="How several models are related: models (of one recipe: means and claims are over them), or revisions "
        "(of one model, in the given order)."
    ),
    Option(choices=UNITS, metavar="UNITS", unset="revisions where all are of one model, else models"),
]


@record
class ModelsSource(_Source):
    """Models to read side by side, and how to fetch them."""

    models: Annotated[
        tuple[Any, ...],
        Field(description="One or several, each as `trisect.load` takes it; in Python also loaded models."),
        Option(argument=True, metavar="MODEL..."),
    ]
    revision: Revision | None = None
    dtype: Dtype | None = None
    device: Device = "auto"
    pickle: Pickle = False
    remote_code: RemoteCode = False

    def open(self) -> tuple[Subject, ...]:
        """Open the models; those of one name get numbers. Raises ModelError, also if there is none."""
        if not self.models:
            raise ModelError("No model was given.", "At least one is read.", "Give a model.")
        opened: list[Any] = [self._open(model) for model in self.models]
        names = [subject.name for subject in opened]
        return tuple(
            replace(subject, name=f"{subject.name} ({number})") if names.count(subject.name) > 1 else subject
            for number, subject in enumerate(opened, start=1)
        )


@record
class TextSource:
    """Texts to read: of a corpus, or given one by one."""

    texts: (
        Annotated[
            Any,
            Field(
                description="A raw folder, a treebank's file, a corpus folder, hf:NAME[:CONFIG], 'sample' (some 300 English "
                "sentences) or 'embedded' (an invented language); in Python also texts themselves."
            ),
            Option(name="corpus", metavar="CORPUS", positional=True),
        ]
        | None
    ) = None
    text: Annotated[tuple[str, ...], Field(description="A text (repeatable)."), Option()] = ()
    audio: Annotated[
        tuple[Any, ...],
        Field(
            description="A sound file, for a model of speech (repeatable). --text gives its transcript: one for each file, or none."
        ),
        Option(metavar="FILE"),
    ] = ()
    image: Annotated[
        tuple[Any, ...],
        Field(
            description="An image file, for a model of images (repeatable). --text goes with it: one for each file, or none."
        ),
        Option(metavar="FILE"),
    ] = ()
    split: Annotated[str, Field(description="train, valid or test."), Option(metavar="SPLIT")] = "test"
    reader: Annotated[str, Field(description=f"{HELP}."), Option(unset="detected")] | None = None
    limit: Annotated[int, Field(description="Read at most this many texts.", ge=1, le=MAX_INT)] | None = None

    def open(self, published: bool = False) -> Texts:
        """The texts, WikiText as it was `published` or joined; raises SpecError where none are named, CorpusError where they
        cannot be read.
        """
        if self.audio or self.image:
            return self._samples()
        if self.texts is not None and self.text:
            reason = "Texts come from one place."
            raise SpecError("--corpus and --text were both given.", reason, "Leave one of them out.")
        if self.texts is None and not self.text:
            raise SpecError(
                "No text was given.", "Texts come from --corpus, --text, --audio or --image.", "Give one of them."
            )
        if self.split not in SPLITS:
            raise CorpusError(
                unknown_name("split", self.split, SPLITS), f"Splits are {', '.join(SPLITS)}.", "Use one of them."
            )
        if self.text and (self.reader is not None or self.split != "test"):
            name = "--split" if self.reader is None else "--reader"
            reason = "It says how a corpus is read, and the texts stand in the command."
            raise SpecError(f"{name} and --text were both given.", reason, "Leave one of them out.")
        texts = self.text or self.texts
        return open_any(
            [texts] if isinstance(texts, tuple) and not self.text else texts,
            self.split,
            self.reader,
            self.limit,
            published,
        )

    def _samples(self) -> Texts:
        """Sound or images, all with texts or all without; raises SpecError for a mixture."""
        from trisect.core.subject import InputSample
        from trisect.text.sources import as_texts, first_texts

        name, files = ("audio", self.audio) if self.audio else ("image", self.image)
        need_files(name, files)
        options = {"--corpus": self.texts, "--image": self.image and self.audio, "--reader": self.reader}
        options |= {"--split": self.split != "test"}
        if clash := [option for option, value in options.items() if value]:
            reason = "What is read is sound, images, or texts of a corpus."
            raise SpecError(f"--{name} and {clash[0]} were both given.", reason, "Leave one of them out.")
        if self.text and len(self.text) != len(files):
            problem = f"--{name} was given {len(files)} times, --text {len(self.text)} times."
            raise SpecError(problem, "Each has a text of its own, or none has one.", "Give as many, in the same order.")
        texts = self.text or (None,) * len(files)
        pairs = zip(files, texts, strict=True)
        samples = [
            InputSample(text, (file,)) if self.audio else InputSample(text, images=(file,)) for file, text in pairs
        ]
        samples_read = as_texts(samples)
        return samples_read if self.limit is None else first_texts(samples_read, self.limit)


def need_files(name: str, files: Iterable[object]) -> None:
    """Raise SpecError for a path without a file, before a model is loaded; arrays pass."""
    for file in files:
        if isinstance(file, str | Path) and not Path(file).is_file():
            raise SpecError(
                f"--{name} {shorten(str(file))} was given.", "There is no file of that name.", "Check the path."
            )


def open_any(
    where: Any, split: str = "test", reader: str | None = None, limit: int | None = None, published: bool = False
) -> Texts:
    """The texts of one split of a corpus ('embedded', a folder, hf:NAME), or a list of texts."""
    from trisect.core.subject import Texts
    from trisect.text.sources import as_texts, first_texts, open_texts

    if isinstance(where, Texts):
        texts = where
    elif isinstance(where, str) and len(where.split()) > 1 and not (is_hub(where) or _is_path(Path(where[:200]))):
        texts = as_texts([where])  # a text itself, and no folder's name
    else:
        named = isinstance(where, (str, Path))
        texts = open_texts(where, split, reader, published) if named else as_texts(where)
    return texts if limit is None else first_texts(texts, limit)


def _is_path(path: Path) -> bool:
    """Whether a string is a path: it exists, or its folder does."""
    return path.exists() or path.is_absolute() or (len(path.parts) > 1 and path.parent.exists())


@record
class Workers:
    """Settings of worker processes for training."""

    device: Annotated[
        str, Field(description="auto, cpu or cuda."), Option(choices=("auto", "cpu", "cuda"), metavar="DEVICE")
    ] = "auto"
    workers: (
        Annotated[
            int,
            Field(description="Worker processes; 0 runs everything in one.", ge=0, le=1_024),
            Option(unset="one a core, or one a GPU"),
        ]
        | None
    ) = None
    engine: (
        Annotated[
            str,
            Field(
                description="here (this process), processes, or ray (the cluster of RAY_ADDRESS, else this machine; needs trisect[ray])."
            ),
            Option(choices=("here", "processes", "ray"), metavar="ENGINE", unset="processes, here with --workers 0"),
        ]
        | None
    ) = None

    def machine(self, quiet: bool) -> Machine:
        """The Machine of the settings."""
        return Machine(self.device, self.workers, quiet, engine=self.engine)


@record
class ModelWorkers:
    """Settings of workers for several models: one after the other in this process, or several jobs at a time."""

    workers: (
        Annotated[
            int,
            Field(
                description="How many of several models are measured at the same time, each by a process with one thread.",
                ge=0,
                le=1_024,
            ),
            Option(unset="0: one after the other, in this process"),
        ]
        | None
    ) = None
    engine: (
        Annotated[
            str,
            Field(
                description="Where several models are measured: here (this process), processes, or ray "
                "(the cluster of RAY_ADDRESS, else this machine; needs trisect[ray])."
            ),
            Option(choices=("here", "processes", "ray"), metavar="ENGINE", unset="here, processes with --workers"),
        ]
        | None
    ) = None

    @property
    def away(self) -> bool:
        """Whether jobs run in other processes."""
        return self.engine in ("processes", "ray") or (self.engine is None and bool(self.workers))

    @property
    def stated(self) -> str:
        """The first of its options that was given, as on a command line; empty if none was."""
        options = {"workers": self.workers, "engine": self.engine}
        return next((f"--{name} {value}" for name, value in options.items() if value is not None), "")

    def machine(self, quiet: bool, device: str = "auto") -> Machine:
        """The Machine of the settings; raises SpecError for options of workers without workers."""
        here = None if self.away or self.workers == 0 or self.engine else "here"
        return Machine(device, self.workers, quiet, engine=here or self.engine)


TASKS = ("bindings", "induction", "recall", "translation", "audio-words")
SPLIT = "valid"  # unless another is asked for

BaseText = Annotated[
    Any,
    Field(description="A base text; for encoder-decoders in Python (source, target)."),
    Option(metavar="TEXT"),
]
DonorText = Annotated[Any, Field(description="A donor text, as many tokens long as the base."), Option(metavar="TEXT")]
PairsFile = Annotated[
    str | Path,
    Field(description="A file of pairs, one a line as JSON: base, donor and, where they are known, answers."),
    Option(metavar="FILE", positional=True),
]
PairList = Annotated[
    Any, Field(description="Pairs in memory: (base, donor), or mappings as in a file."), Option(name="")
]
PairTask = Annotated[
    str,
    Field(
        description="Generated pairs for the model: bindings (who has what), induction (… A B … A), recall (for a model of "
        "trisect recall), translation (for a model of trisect translate-train and the embedded bitext), or audio-words (for a "
        "model of speech, of recordings of single words: --corpus names their folder)."
    ),
    Option(choices=TASKS, metavar="TASK"),
]
PairCorpus = Annotated[
    str | Path,
    Field(
        description="For induction: a text whose words and passages the pairs are made of (default: English words among others); "
        "for audio-words: a folder of sound files, a word each, named by it, or of a folder of them for each speaker."
    ),
    Option(metavar="CORPUS"),
]
PairSplit = Annotated[
    str, Field(description="Of that text: train, valid or test."), Option(choices=SPLITS, metavar="SPLIT")
]
PairReader = Annotated[str, Field(description=f"{HELP}."), Option(unset="detected")]


class PairSettings(Protocol):
    """Settings of experiments on pairs; see the types of the same names. `positions` None is every position, and the last alone."""

    source: Final[ModelSource]  # read-only, as all of them: settings are frozen
    base: Final[object]
    donor: Final[object]
    pairs: Final[str | Path | None]
    pair_list: Final[object]
    task: Final[str | None]
    corpus: Final[str | Path | None]
    split: Final[str]
    reader: Final[str | None]
    count: Final[int]
    seed: Final[int]

    @property
    def positions(self) -> str | None: ...  # noqa: D102


def check_source(settings: PairSettings, count: int) -> None:
    """Raise SpecError unless pairs have one source, and options fit it; `count` is its default."""
    single = settings.base is not None or settings.donor is not None
    sources = {
        "--pairs": settings.pairs,
        "--task": settings.task,
        "pair_list": settings.pair_list,
        "a base and a donor": single or None,
    }
    named = [name for name, value in sources.items() if value is not None]
    if len(named) != 1:
        problem = f"{' and '.join(named)} were given." if named else "No pairs were given."
        reason = (
            "Pairs come from one place: --pairs FILE, --task, or a base with its donor (in Python also pair_list=)."
        )
        # of several models those that can only be texts: neither a folder nor a name that a hub could have
        models = settings.source.model if isinstance(settings.source.model, list | tuple) and not named else ()
        texts = (m for m in models if isinstance(m, str) and len(m.split()) > 1 and not Path(m[:200]).exists())
        if (text := next(texts, None)) is not None:
            todo = "Give texts by name: --base TEXT --donor TEXT."
            raise SpecError(problem, f"{reason} {text!r} stands among the models.", todo)
        raise SpecError(problem, reason, "Give one of them.")
    if settings.corpus is not None and settings.task not in ("induction", "audio-words"):
        reason = (
            "A text is what the pairs of the task induction are made of, a folder of recordings those of audio-words."
        )
        raise SpecError(f"--corpus {settings.corpus} was given.", reason, "Leave it out, or give --task induction.")
    if settings.task == "audio-words" and (settings.corpus is None or not Path(settings.corpus).is_dir()):
        reason = "It is a folder of sound files, each of one word and named by it."
        raise SpecError(
            f"The task 'audio-words' was asked for with --corpus {settings.corpus}.", reason, "Name such a folder."
        )
    if settings.count != count and settings.task is None:
        reason = "So many pairs a task makes; of pairs that are given each is read."
        raise SpecError(f"--count {settings.count} was given without --task.", reason, "Leave it out, or give --task.")
    of_text = {"split": settings.split if settings.split != SPLIT else None, "reader": settings.reader}
    for name, value in of_text.items():
        if value is not None and settings.corpus is None:
            problem, todo = f"--{name} {value} was given without --corpus.", "--task induction --corpus CORPUS"
            raise SpecError(problem, "It says how a text is read.", f"Leave it out, or give {todo}.")
    if single and (settings.base is None or settings.donor is None):
        missing = "base" if settings.base is None else "donor"
        raise SpecError(f"No {missing} was given.", "A pair is a base and a donor.", f"Give the {missing}.")


@record
class Recipe:
    """Model and training of small models; the learning rate warms up, then falls as a cosine to the share `floor`.

    Defaults are those of Stanford's CS 224N, assignment 5.
    """

    name: Annotated[str, Field(description="What it is called."), Option(name="")] = "course"
    layers: Annotated[
        int, Field(description="Layers, of encoder and decoder each.", ge=1, le=MODEL_BOUNDS["layers"])
    ] = 4
    heads: Annotated[int, Field(description="Heads of a layer.", ge=1, le=MODEL_BOUNDS["heads"])] = 8
    width: Annotated[int, Field(description="Floats of the residual stream.", ge=1, le=MODEL_BOUNDS["width"])] = 256
    dropout: Annotated[float, Field(description="Share that is dropped in training.", ge=0, lt=1)] = 0.1
    batch: Annotated[int, Field(description="Questions, or pairs, of a step.", ge=1, le=TRAINING_BOUNDS["columns"])] = (
        256
    )
    rate: Annotated[float, Field(description="Highest learning rate (of fine-tuning).", gt=0)] = 6e-4
    floor: Annotated[float, Field(description="The share of the rate that it falls to.", ge=0, le=1)] = 0.1
    weight_decay: Annotated[float, Field(description="Weight decay, on matrices alone.", ge=0)] = 0.1
    beta1: Annotated[float, Field(description="AdamW's first decay of moments.", ge=0, le=0.999)] = 0.9
    beta2: Annotated[float, Field(description="AdamW's second decay of moments.", ge=0, le=0.9999)] = 0.95
    clip: Annotated[float, Field(description="Bound of the gradient's norm.", gt=0)] = 1.0

    def check(self) -> None:
        """Raise SpecError for an impossible model or schedule."""

    def data(self) -> dict[str, Json]:
        """The recipe as JSON-ready data."""
        return asdict(self)


R = TypeVar("R", bound=Recipe)


def choose_recipe(
    recipes: Mapping[str, R], name: str | None, embedded: bool, changes: Mapping[str, object] | None = None
) -> R:
    """A recipe with some settings replaced, each given as a value or a string.

    Without a name it is 'embedded' for generated data and 'small' for others. Raises SpecError for a recipe, a setting or a
    value that there is not.
    """
    chosen, changes = name or ("embedded" if embedded else "small"), changes or {}
    if chosen not in recipes:
        problem = unknown_name("recipe", chosen, recipes)
        raise SpecError(problem, f"There are {', '.join(recipes)}.", "Use one of them, and change settings with --set.")
    fields = {field.name: field for field in flat_settings(type(recipes[chosen])) if field.words}
    if strange := [setting for setting in changes if setting not in fields]:
        problem, reason = unknown_name("setting of a recipe", strange[0], fields), f"There are {', '.join(fields)}."
        raise SpecError(problem, reason, "Use one of them, as in --set layers=2.")
    recipe = replace(recipes[chosen], **{setting: read_word(fields[setting], to) for setting, to in changes.items()})
    recipe.check()
    return recipe


def changes_of(recipes: Mapping[str, R], recipe: R) -> dict[str, Json]:
    """The settings in which a recipe differs from the predefined one of its name."""
    base = recipes[recipe.name].data()
    return {name: value for name, value in recipe.data().items() if value != base[name]}
