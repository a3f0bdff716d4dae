"""Subject: the door to every model that can be read — a pretrained one, or one that a study trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trisect.core.errors import ModelError
from trisect.core.spec import Run, read_run
from trisect.lab.folder import Folder, is_study
from trisect.lab.tasks import read_finished, weights
from trisect.lm.reading import OwnModel
from trisect.text.corpus import Corpus

if TYPE_CHECKING:
    from trisect.hf.load import Pretrained


def load(
    model: Any,
    tokenizer: Any = None,
    inputs: Any = None,
    window: int | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    proof: bool = True,
) -> Pretrained | OwnModel:
    """Load a model to be read: a folder, a name on a hub, or a module of Hugging Face's; or what a study of ours trained.

    A study's folder gives the baseline of its first seed, `STUDY/runs/RUN` that run; the other options are for
    pretrained models, see `trisect.hf.load.load`. Raises ModelError for what is not there or does not pass the proof.
    """
    if isinstance(model, (str, Path)):
        place = Path(model)
        if is_study(place):
            return _own(Folder(place), None, window)
        if place.parent.name == "runs" and (place / "run.json").exists():
            return _own(Folder(place.parent.parent), place.name, window)
    from trisect.hf.load import load as load_pretrained

    return load_pretrained(
        model, tokenizer, inputs, window, revision, dtype, device, device_map, pickle, remote_code, proof
    )


def _own(folder: Folder, name: str | None, window: int | None) -> OwnModel:
    run = _baseline(folder) if name is None else read_run(read_finished(folder, name)["spec"])
    if read_finished(folder, run.id)["status"] == "diverged":
        todo = "Choose another run: trisect.load('STUDY/runs/RUN')."
        raise ModelError(
            f"The run {run.id} of {folder.path}.", "Its training diverged: its weights mean nothing.", todo
        )
    corpus = Corpus.load(folder.corpus)
    parameters = {n: v[None] for n, v in weights(folder, run.id, "final.safetensors", "cpu").items()}
    return OwnModel(run.id, run.model, parameters, corpus.vocabulary, window or run.training.window)


def _baseline(folder: Folder) -> Run:
    """The first finished baseline of a study, by seed."""
    runs = [read_run(spec) for spec in folder.read_ledger()["runs"].values()]
    done = [run for run in runs if run.edit is None and folder.run(run.id).exists()]
    if not done:
        known = f"Of its {len(runs)} runs no baseline is finished."
        raise ModelError(f"{folder.path} has no trained model yet.", known, "Run 'trisect study' on it to the end.")
    return min(done, key=lambda run: run.seed)
