"""What a study's finished runs hold: rows and weights."""

from __future__ import annotations

from torch import Tensor

from trisect.core.errors import DamagedFileError, StudyError
from trisect.core.files import as_record, read_json
from trisect.core.study_data import FinishedRun
from trisect.lab.folder import Folder
from trisect.lm.snapshots import read_snapshot

FORMAT = 1  # of run.json; a file without a number is of format 1


def read_finished(folder: Folder, run: str) -> FinishedRun:
    """A finished run's statement and rows; raises DamagedFileError naming what to delete, StudyError for a later format."""
    path = folder.run(run)
    todo = f"Delete {path.parent} and call 'trisect study' again: its fleet is then trained again."
    body = read_json(path, todo)
    if (found := body.get("format", FORMAT)) != FORMAT:
        raise StudyError(
            f"{path} has format {found}.",
            f"This version reads format {FORMAT}.",
            "Use the version of trisect that wrote it, or run the study again in another folder.",
        )
    return as_record(body, path, todo, FinishedRun)


def weights(folder: Folder, run: str, file: str, device: str) -> dict[str, Tensor]:
    """A trained baseline's parameters or one epoch's in-projections, without a member axis."""
    base = folder.run(run).parent
    todo = f"Delete the folder {base} and call 'trisect study' again: its fleet is then trained again."
    return {n: v.to(device) for n, v in read_snapshot(base / file, todo).tensors.items()}


def epoch_weights(folder: Folder, run: str, epochs: int) -> list[str]:
    """The files of a baseline's epochs 0 to `epochs`, as `weights` takes them; raises DamagedFileError if one is gone."""
    found = [f"epochs/{p.name}" for p in sorted(folder.epochs(run).glob("*.safetensors"))]
    if len(found) != epochs + 1:
        raise DamagedFileError(
            f"The site weights of {run} are incomplete.",
            f"There are {len(found)} of {epochs + 1} epochs.",
            f"Delete the folder {folder.run(run).parent} and call 'trisect study' again: its fleet is then trained again.",
        )
    return found
