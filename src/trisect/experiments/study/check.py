"""Check: every file that a study reads back is read once, and whatever is damaged is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from trisect.core.errors import CorpusError, DamagedFileError, StudyError
from trisect.core.files import read_json
from trisect.core.study_data import Ledger
from trisect.core.tables import STUDY_TABLES, read_table
from trisect.experiments.study.join import ABOUT
from trisect.experiments.study.run import read_study_about
from trisect.experiments.study.tasks import evaluation_advice, fleet_name
from trisect.lab.folder import Folder, epoch_weights, read_finished, weights
from trisect.lm.snapshots import read_snapshot
from trisect.text.corpus import Corpus


def check_study(out: Path) -> list[StudyError]:
    """An error for each damaged file of a study, saying what to delete; none where all is whole.

    Figures, report and experiment.json are not read: each call writes them again. Raises StudyError where there is no
    study or it is in use, DamagedFileError where its ledger is damaged, since that says what else there is.
    """
    folder, found = Folder(out), []
    ledger = folder.read_ledger()
    with folder.lock():
        for read in _readers(folder, ledger):
            try:
                read()
            except StudyError as error:
                found.append(error)
    return found


def unfinished(out: Path) -> tuple[int, int]:
    """How many runs of a study are not finished, and of how many; raises as `check_study` does."""
    folder = Folder(out)
    runs = folder.read_ledger().runs
    return sum(not folder.run(run).exists() for run in runs), len(runs)


def _readers(folder: Folder, ledger: Ledger) -> Iterator[Callable[[], object]]:
    """Something that reads, for each file that is there; a finished run's own must be there."""
    if folder.copy.exists():
        todo = f"Delete {folder.copy} and call 'trisect study' again: it is written again."
        yield lambda: read_json(folder.copy, todo)
    if (folder.path / ABOUT).exists():
        yield lambda: read_study_about(folder)
    if folder.corpus.exists():
        yield lambda: _corpus(folder)
    for run, statement in ledger.runs.items():
        if folder.run(run).exists():
            yield lambda run=run: read_finished(folder, run)
            yield lambda run=run: weights(folder, run, "final.safetensors", "cpu")
            if statement.edit is None:
                epochs = statement.training.epochs
                yield lambda run=run, epochs=epochs: _epochs(folder, run, epochs)
        else:  # still in training: what it has kept so far is not written again
            for path in sorted(folder.epochs(run).glob("*.safetensors")):
                yield lambda run=run, file=f"epochs/{path.name}": weights(folder, run, file, "cpu")
    for fleet in ledger.fleets:
        if (path := folder.checkpoint(fleet_name(fleet))).exists():
            todo = f"Delete {path} and call 'trisect study' again: this fleet then starts again."
            yield lambda path=path, todo=todo: read_snapshot(path, todo)
    for path in sorted((folder.path / "evaluations").glob("*/*.json")):
        yield lambda path=path: read_json(path, evaluation_advice(path))
    for name in STUDY_TABLES:
        if (folder.tables / f"{name}.parquet").exists():
            yield lambda name=name: read_table(folder.tables, name)


def _corpus(folder: Folder) -> None:
    try:
        Corpus.load(folder.corpus)
    except (CorpusError, DamagedFileError) as error:
        todo = f"Delete {folder.corpus} and call 'trisect study' again: it is written again."
        raise DamagedFileError(error.given, error.known, todo) from error


def _epochs(folder: Folder, run: str, epochs: int) -> None:
    try:
        finished = read_finished(folder, run).status == "finished"
    except StudyError:
        return  # named already
    for file in epoch_weights(folder, run, epochs) if finished else ():
        weights(folder, run, file, "cpu")
