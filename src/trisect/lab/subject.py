"""Load a model to read: a pretrained one, or one of a study."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import TypedDict

from trisect.core.errors import ModelError, check_name, translate_system_errors
from trisect.core.files import digest, digest_file
from trisect.core.machine import without_collection
from trisect.core.spec import Run
from trisect.core.subject import InputSample, SeeingSubject, Subject, Texts
from trisect.lab.folder import Folder, epoch_weights, read_run, weights
from trisect.lab.jobs import screen
from trisect.lab.run_folder import is_study, unfinished_plan
from trisect.lm.reading import OwnModel
from trisect.text.corpus import Corpus, is_corpus
from trisect.text.readers import READERS
from trisect.text.worlds import is_built_in

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trisect.hf.load import Pretrained

MODEL = "MODEL"  # on a command line, for what only its owner can name
CONFIGS = ("config.json", "adapter_config.json")  # a model's folder has one of them
WEIGHTS = (".safetensors", ".bin")  # and files that end so
DEPTH = 3  # levels of folders that are looked at for models
MAX_FOLDERS = 2_000  # folders at most are looked into
MAX_NAMES = 6  # models are named


class FetchOptions(TypedDict):
    """The options of `load` besides the model, its tokenizer, its inputs and its window."""

    revision: str | None
    dtype: str | None
    device: str
    device_map: str | None
    pickle: bool
    remote_code: bool


class _NamedRevision(NamedTuple):
    """A revision of a model, written NAME@REVISION: `base` is a name on a hub, or a folder of checkpoints."""

    base: str
    revision: str

    @property
    def folder(self) -> Path | None:
        """The revision's own folder; None of a model on a hub."""
        return Path(self.base) / self.revision if Path(self.base).is_dir() else None

    @property
    def name(self) -> str:
        """What the model is called."""
        return f"{self.base if self.folder is None else Path(self.base).resolve().name}@{self.revision}"


def at_revision(model: Any) -> _NamedRevision | None:
    """Parse NAME@REVISION; None for anything else, such as a folder with that character in its name."""
    if not isinstance(model, str) or "@" not in model or Path(model).exists():
        return None
    base, _, revision = model.rpartition("@")
    return _NamedRevision(base, revision) if base and revision else None


@translate_system_errors()
def load(
    model: Any,
    tokenizer: Any = None,
    inputs: Any = None,
    window: int | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    proof: bool = True,
    quiet: bool = False,
) -> Pretrained | OwnModel:
    """Load a model to be read: a folder, a name on a hub, or a module of Hugging Face's; or what a study of ours trained.

    NAME@REVISION is a revision of a model on a hub, or a subfolder of a folder of checkpoints. A study's folder gives the
    baseline of its first seed, `STUDY/runs/RUN` that run; the other options are for
    pretrained models, see `trisect.hf.load.load`. On a terminal a line says what is being done, unless `quiet`.
    Raises ModelError for what is not there or does not pass verification.
    """
    check_name("a model", model)
    with screen("trisect.load", quiet):
        if (trained := _find_study(model, revision, dtype, device, device_map)) is not None:
            return _load_trained(*trained, window)
        check_folder(model)
        with without_collection():
            from torch.nn import Module

            from trisect.hf.load import load as load_pretrained

        if not isinstance(model, (str, Path, Module)):
            reason = "A model is a folder, a name on a hub, or a module of Hugging Face's."
            raise ModelError(f"{model!r} is no model.", reason, "Give one of these.")
        named, place, name = _place_of(model, revision)
        options = (dtype, device, device_map, pickle, remote_code, proof)
        read = load_pretrained(place, tokenizer, inputs, window, name, *options)
        if named is None:
            return read
        words = read.options if named.folder is None else (f"{MODEL}@{named.revision}", *read.options[1:])
        return replace(read, name=named.name, options=words)


def for_texts(subject: Subject, texts: Texts | None) -> Subject:
    """Verify a model for its inputs: for samples, with the first one; raises ModelError."""
    first = None if texts is None else next(texts.texts(), None)
    if isinstance(first, InputSample) and isinstance(subject, SeeingSubject):
        return subject.for_sample(first)
    return subject


def check_crossing(subject: Subject, why: str) -> Pretrained:
    """The model, if it reads a source and a target; raises ModelError for others, with `why`."""
    from trisect.hf.load import Pretrained
    from trisect.hf.load import check_crossing as check

    if not isinstance(subject, Pretrained):
        reason = f"{subject.shape.describe()} {why}"
        raise ModelError(f"{subject.name} has no cross-attention.", reason, "Choose an encoder–decoder model.")
    check(subject, why)
    return subject


def check_pretrained(subject: Subject) -> Pretrained:
    """The model, if it has a tokenizer of its own; raises ModelError for a study's."""
    from trisect.hf.load import Pretrained

    if not isinstance(subject, Pretrained):
        reason = "Words are found by where a tokenizer's pieces stand in a text."
        raise ModelError(f"{subject.name} has no tokenizer.", reason, "Choose a model of Hugging Face's.")
    return subject


def sampled(subject: Subject) -> AbstractContextManager[None]:
    """Context in which laws are checked in part of a pretrained model's reads, and at the end; see `hf.load.sampled_laws`."""
    if isinstance(subject, OwnModel):
        return nullcontext()
    from trisect.hf.load import Pretrained, sampled_laws

    return sampled_laws(subject) if isinstance(subject, Pretrained) else nullcontext()


def check_exists(model: Any, text: bool = False, **fetched: Unpack[FetchOptions]) -> None:
    """Raise ModelError where `load` would before it reads weights; models in memory pass.

    With `text`, also for a model that is to read text alone and takes sound or images.
    """
    if not isinstance(model, (str, Path)):
        return
    named: Any = {name: value for name, value in fetched.items() if name not in ("pickle", "remote_code")}
    if (trained := _find_study(model, **named)) is not None:
        _find_run(*trained)
        return
    check_folder(model)
    with without_collection():
        from trisect.hf.files.fetch import Options
        from trisect.hf.files.fetch import check_exists as check_files_there

    _, place, name = _place_of(model, fetched["revision"])
    check_files_there(place, Options(**{**fetched, "revision": name}), text)


def is_study_model(model: Any) -> bool:
    """Whether a model is a study's, loaded or given by its folder."""
    return isinstance(model, OwnModel) or _find_study(model) is not None


def name_before(model: Any) -> str:
    """The name by which `load` will call a model on this machine or on a hub; models in memory have their own."""
    if not isinstance(model, (str, Path)):
        return getattr(model, "name", type(model).__name__)
    if (trained := _find_study(model)) is not None:
        return _find_run(*trained).id
    if (named := at_revision(model)) is not None:
        return named.name
    from trisect.hf.load import folder_name

    return folder_name(Path(model)) if Path(model).is_dir() else str(model)


def files_mark(model: Any, revision: str | None = None, remote_code: bool = False) -> str:
    """A hash of all files from which a model is loaded, with tokenizer and configuration; of a hub's model its commit.

    Empty for a model in memory, an adapter, and where a hub's commit is not known: nobody can say whether it is the same
    another time.
    """
    if not isinstance(model, (str, Path)):
        return ""
    if (trained := _find_study(model)) is not None:
        folder, run = trained[0], _find_run(*trained).id
        files = (folder.run(run), folder.final(run), folder.corpus / "corpus.json")
        return digest("".join(map(digest_file, files)))
    named = at_revision(model)
    if named is not None:
        model, revision = named.folder or named.base, named.revision
    if Path(model).is_dir():
        files_of_model = sorted(path for path in Path(model).iterdir() if path.is_file())
        if "adapter_config.json" in [path.name for path in files_of_model]:
            return ""
        return digest("\n".join(f"{path.name} {digest_file(path)}" for path in files_of_model))
    from trisect.hf.files.fetch import commit_of

    return commit_of(str(model), revision, remote_code)


def beside(model: str | Path, name: str) -> tuple[str | Path, str | None]:
    """The place and revision of another checkpoint of a model: beside a folder, or on the hub.

    Raises ModelError for a folder that is not there.
    """
    from trisect.hf.files.checkpoints import locate

    folder = Path(model)
    return locate(folder.resolve().parent if folder.is_dir() else model, name)


def checkpoints_mark(model: Any, names: Sequence[str], remote_code: bool = False) -> str:
    """A hash of all files from which a model's checkpoints are loaded, as `files_mark`; of a study's run all its files.

    Empty where that is not known; raises TrisectError for one that is not there.
    """
    if not isinstance(model, (str, Path)):
        return ""
    if (trained := _find_study(model)) is not None:
        folder, run = trained[0], _find_run(*trained)
        files = epoch_weights(folder, run.id, run.training.epochs)
        return digest("".join(digest_file(folder.run(run.id).parent / file) for file in files))
    marks = [files_mark(*beside(model, name), remote_code) for name in names]
    return digest("\n".join(marks)) if all(marks) else ""


def _find_study(
    model: Any,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
) -> tuple[Folder, str | None] | None:
    """The study and run of a folder (run None: first baseline); raises ModelError for options that do not apply."""
    place = Path(model) if isinstance(model, (str, Path)) else None
    if place is None:
        return None
    study, run = is_study(place), place.parent.name == "runs" and (place / "run.json").exists()
    chosen = {
        "revision": revision,
        "dtype": dtype,
        "device_map": device_map,
        "device": None if device in ("auto", "cpu") else device,
    }
    if (study or run) and (options := [option for option, value in chosen.items() if value is not None]):
        reason = "It is a model that a study trained: float32, on the CPU, of one revision."
        raise ModelError(f"{', '.join(options)} for {place}.", reason, "Leave that out.")
    if study:
        return Folder(place), None
    return (Folder(place.parent.parent), place.name) if run else None


def check_folder(model: Any) -> None:
    """Raise ModelError for a text, and for a folder without a model, naming models below it, and training that is not finished."""
    place = Path(model) if isinstance(model, (str, Path)) else None
    if place is None or any((place / name).exists() for name in CONFIGS):
        return
    if is_built_in(place) if not place.exists() else is_corpus(place) or any(reader.suits(place) for reader in READERS):
        problem, todo = f"{place} was given as a model.", f"Name a model first, and the text with --corpus {place}."
        raise ModelError(problem, "It is a text.", todo)
    if not place.is_dir():
        return
    # the folders of models and of studies below a folder, those nearest to it first; links are not followed
    models, level, looked = list[Path](), [place], 0
    for _ in range(DEPTH):
        below, looked = level[: max(0, MAX_FOLDERS - looked)], looked + len(level)
        level = []
        for folder in below:
            with suppress(OSError):
                for inner in sorted(p for p in folder.iterdir() if not p.name.startswith(".") and not p.is_symlink()):
                    if inner.is_dir():
                        (models if _is_model(inner) else level).append(inner)
    plan = unfinished_plan(place)
    if not models and not plan:
        return
    listed = ", ".join(str(path.relative_to(place)) for path in models[:MAX_NAMES])
    listed += f" and {len(models) - MAX_NAMES} more" if len(models) > MAX_NAMES else ""
    reason, todo = f"It has models in it: {listed}.", f"Give one of them, such as {models[0]}." if models else ""
    if plan:
        reason = (
            f"It has {plan}: a command trains models there, and was interrupted or is running. {reason * bool(models)}"
        )
        todo = f"Call the same command again: it goes on from there. {todo}"
    raise ModelError(f"{place} is no model's folder.", reason.rstrip(), todo.rstrip())


def _is_model(place: Path) -> bool:
    with suppress(OSError):
        if is_study(place):
            return True
        names = [path.name for path in place.iterdir()]
        return any(name in names for name in CONFIGS) and any(name.endswith(WEIGHTS) for name in names)
    return False


def _place_of(model: Any, revision: str | None) -> tuple[_NamedRevision | None, Any, str | None]:
    """The place and revision of NAME@REVISION; raises ModelError if a second revision is given."""
    named = at_revision(model)
    if named is None:
        return None, model, revision
    if revision is not None:
        reason = "It names a revision already."
        raise ModelError(f"--revision {revision} was given for {model}.", reason, "Leave one of them out.")
    from trisect.hf.files.checkpoints import locate

    return named, *locate(named.base, named.revision)


def _load_trained(folder: Folder, name: str | None, window: int | None) -> OwnModel:
    run = _find_run(folder, name)
    if window is not None and window < 1:
        reason = "It was trained on windows of " + f"{run.training.window} words, and reads 1 word or more."
        raise ModelError(f"A window of {window} words.", reason, "Choose another, or leave it out.")
    corpus = Corpus.load(folder.corpus)
    parameters = {n: v[None] for n, v in weights(folder, run.id, "final.safetensors", "cpu").items()}
    options = ("STUDY",) if window is None else ("STUDY", "--window", str(window))
    return OwnModel(run.id, run.model, parameters, corpus.vocabulary, window or run.training.window, options)


def _find_run(folder: Folder, name: str | None) -> Run:
    """A run with a model, by name or the first baseline; raises ModelError if its training diverged."""
    run = _baselines(folder)[0] if name is None else read_run(folder, name).spec
    if read_run(folder, run.id).status == "diverged":
        todo = "Choose another run: trisect.load('STUDY/runs/RUN')."
        raise ModelError(
            f"The run {run.id} of {folder.path}.", "Its training diverged: its weights mean nothing.", todo
        )
    return run


def _baselines(folder: Folder) -> list[Run]:
    """The finished baselines of a study, by seed; raises ModelError if there is none."""
    runs = list(folder.read_ledger().runs.values())
    done = [run for run in runs if run.edit is None and folder.run(run.id).exists()]
    if not done:
        reason = f"Of its {len(runs)} runs no baseline is finished."
        raise ModelError(f"{folder.path} has no trained model yet.", reason, "Run 'trisect study' on it to the end.")
    return sorted(done, key=lambda run: run.seed)


def baselines(study: str | Path) -> tuple[Path, ...]:
    """The folders of a study's finished baselines, by seed, for `load`; raises ModelError if there is none."""
    folder = Folder(Path(study))
    return tuple(folder.run(run.id).parent for run in _baselines(folder))


def read_epochs(model: OwnModel, where: str | Path) -> tuple[OwnModel, ...]:
    """A study's baseline with its queries', keys' and values' weights of every epoch, 0 as they were initialised; all else final.

    Raises ModelError for a run that keeps no epochs, DamagedFileError where one is gone.
    """
    place = Path(where)
    folder = Folder(place) if is_study(place) else Folder(place.parent.parent)
    run = read_run(folder, model.name).spec
    if run.edit is not None:
        reason = "The weights of every epoch are kept of baselines alone."
        raise ModelError(f"{run.id} has no epochs.", reason, "Give a baseline, or the study's folder.")
    files = epoch_weights(folder, run.id, run.training.epochs)
    stored = (weights(folder, run.id, file, "cpu") for file in files)
    return tuple(
        replace(model, parameters={**model.parameters, **{n: v[None] for n, v in stored_weights.items()}})
        for stored_weights in stored
    )
