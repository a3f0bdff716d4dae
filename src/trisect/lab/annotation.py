"""Annotate a corpus: check the folder, and write corpus and its statement completely or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trisect.core.errors import CorpusError, translate_system_errors
from trisect.core.files import canonical, digest, read_json, write_json
from trisect.core.machine import Machine
from trisect.core.schema import build
from trisect.lab.inputs import Workers
from trisect.lab.run_folder import RunFolder, check_output_path
from trisect.text.annotate import PIECE, check_settings, describe_pipeline, label_inputs, label_text
from trisect.text.corpus import Corpus
from trisect.text.hub import DatasetTexts
from trisect.text.sources import find_source

NAME = "corpus annotate"  # whose run the folder's list of files names
STATEMENT = "annotation.json"


@translate_system_errors()
def annotate(
    source: str | Path,
    pipeline: str | Path,
    out: str | Path,
    reader: str | None = None,
    placeholder: str = "Unk",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    columns: Sequence[str] | None = None,
) -> Corpus:
    """Label every token of a raw text (a folder, or hf:NAME[:CONFIG]) with a spaCy pipeline; store the result in `out`.

    A finished corpus of the same text, pipeline and settings is not made again. Words are split first and tagged as they
    stand, with their case; `<unk>` is shown as `placeholder` and gets no label (definitions A1). `columns` are some of pos (part of
    speech), tag (fine-grained), dep (relation) and ent (entity type, 'O' outside); None is pos and dep, and tag and ent where the
    pipeline sets them (a note of the corpus says where it does not). `workers` processes (None: one a core) label pieces of the
    text; where the system spawns processes (macOS, Windows) a script then needs `if __name__ == "__main__":`. `progress` is called
    with (tokens done, tokens in all). Needs the extra `trisect[annotate]`. Raises CorpusError for a text, a pipeline or a folder
    that cannot be used.
    """
    build(Workers, {"workers": workers})  # within its bounds
    check_output_path(out)
    check_settings(placeholder, workers, columns)
    out, pipeline = Path(out), str(pipeline)
    _check_folder(out)
    raw = find_source(source, reader)
    with RunFolder(out).lock(lambda: _check_folder(out), lambda: (out,)):
        RunFolder(out).recover()
        about = describe_pipeline(pipeline, columns)
        noted = label_inputs(raw, placeholder, about)
        if RunFolder(out).has_run and (out / "corpus.json").is_file():
            before = read_json(out / STATEMENT, f"Delete {out} and annotate again.")
            if other := [key for key in noted if before.get(key) != noted[key]]:
                raise _another(out, f"It differs in {', '.join(other)}.")
            return Corpus.load(out)
        if not workers:  # one a core, and no more than the text is worth
            parts = raw.parts.values()
            sizes = (part.size() if isinstance(part, DatasetTexts) else part.stat().st_size for part in parts)
            workers = min(Machine().cores(), 1 + sum(sizes) // (5 * PIECE))
        corpus = label_text(raw, pipeline, about, placeholder, workers, progress)
        with RunFolder(out).stage() as stage:
            corpus.save(stage)
            write_json(stage / STATEMENT, noted)
            RunFolder(out).commit(stage, NAME, digest(canonical(noted)))
    return Corpus.load(out)


def _check_folder(out: Path) -> None:
    """Raise StudyError or CorpusError if the folder has a study, another command's run, or foreign files."""
    if RunFolder(out).check_command(NAME):
        return
    if (out / "corpus.json").is_file():
        raise _another(out, "It was not made by annotating.")
    RunFolder(out).check_empty("annotated corpus")


def _another(out: Path, reason: str) -> CorpusError:
    return CorpusError(f"{out} already holds another corpus.", reason, "Choose another folder, or delete this one.")
