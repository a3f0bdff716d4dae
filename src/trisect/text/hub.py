"""Hugging Face datasets by name or folder, as rows of text for the readers; needs the extra trisect[hub]."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trisect.core.errors import CorpusError, is_installed

if TYPE_CHECKING:
    from datasets import Dataset

PREFIX = "hf:"
NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
BATCH = 100  # rows in memory at once
MAX_MESSAGE = 300  # characters of the library's own words in a message
FAILURES = (  # of the library, the first that applies: what is wrong, and what to do
    (ConnectionError, "cannot be reached", "Check name and network; what was fetched once, and hf:FOLDER, need none."),
    (FileNotFoundError, "is not there", "Check its name (a private one needs 'hf auth login'), or the folder's path."),
    (Exception, "cannot be opened", "Name a configuration that there is, as hf:NAME:CONFIG, or correct what it says."),
)


@dataclass(frozen=True, eq=False)
class DatasetTexts:
    """The texts of one split, mapped from the dataset's files, a batch at a time."""

    name: str
    dataset: Dataset
    column: str

    def __str__(self) -> str:
        return self.name

    def texts(self) -> Iterator[str]:
        """The text of each row, with a line end; rows without text are skipped."""
        batches = self.dataset.select_columns([self.column]).iter(BATCH)
        for batch in cast("Iterator[Mapping[str, list[str | None]]]", batches):
            yield from (f"{text}\n" for text in batch[self.column] if text is not None)

    def checksum(self) -> str:
        """BLAKE2b of the texts, 16 bytes in hex."""
        state = hashlib.blake2b(digest_size=16)
        for text in self.texts():
            state.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
        return state.hexdigest()

    def size(self) -> int:
        """The approximate size of the rows in bytes."""
        return self.dataset.data.nbytes


def is_hub(where: str | Path) -> bool:
    """Whether a text is named hf:NAME[:CONFIG]."""
    return str(where).startswith(PREFIX)


def parse_name(where: str) -> tuple[str, str | None]:
    """Parse `hf:NAME[:CONFIG]`; raises CorpusError for an empty name."""
    rest = where.removeprefix(PREFIX)
    name, colon, config = rest.rpartition(":")
    if not colon or Path(rest).is_dir():
        name, config = rest, ""
    if not name or (colon and not config and rest != name):
        reason = "A dataset is named as hf:NAME or hf:NAME:CONFIG; NAME may be a folder."
        raise CorpusError(f"'{where[:200]}' names no dataset.", reason, "Use for example hf:Salesforce/wikitext.")
    return name, config or None


def revision_of(where: str) -> str:
    """The commit of `hf:NAME[:CONFIG]` as fetched by `open_dataset`; empty if unknown."""
    return _load(where, *parse_name(where))[1] or ""


def open_dataset(where: str) -> tuple[str, dict[str, DatasetTexts], tuple[str, ...]]:
    """Open `hf:NAME[:CONFIG]`, fetching it once into the library's cache; raises CorpusError on failure.

    Returns its name without folders, the rows of its splits by our names (`validation` is our valid split), and notes.
    The text is the column `text`, or else the only column of strings.
    """
    name, config = parse_name(where)
    splits, revision = _load(where, name, config)
    local = Path(name).is_dir()
    short = (Path(name).resolve().name if local else name) + (f":{config}" if config else "")
    rows = {}
    for split, names in NAMES.items():
        key = next((n for n in names if n in splits), None)
        if key is not None:
            features = splits[key].features.items()
            strings = [n for n, kind in features if getattr(kind, "dtype", "") in ("string", "large_string")]
            if "text" not in strings and len(strings) != 1:
                problem = f"The dataset '{where}' has no column 'text'; it has {', '.join(splits[key].column_names) or 'none'}."
                reason = (
                    f"Its columns of strings are {', '.join(strings)}." if strings else "It has no column of strings."
                )
                todo = "Use a dataset with one text a row, or save its texts as train.txt and valid.txt in a folder."
                raise CorpusError(problem, reason, todo)
            rows[split] = DatasetTexts(f"{short}, {key}", splits[key], "text" if "text" in strings else strings[0])
        elif split != "test":
            reason = f"Looked for {' or '.join(names)}; its splits are {', '.join(map(str, splits)) or 'none'}."
            todo = "Use a dataset that has both, or a folder with train.txt and valid.txt."
            raise CorpusError(f"The dataset '{where}' has no {split} split.", reason, todo)
    notes = (f"Read from the Hugging Face dataset {short}{f' at revision {revision}' if revision else ''}.",)
    return short, rows, notes


def _load(where: str, name: str, config: str | None) -> tuple[Mapping[str, Any], str | None]:
    """All splits of the dataset, and its revision on the hub."""
    try:
        if not is_installed("datasets"):  # a folder of that name would be imported, as a package with nothing in it
            raise ImportError("datasets")
        import datasets
    except ImportError as error:
        reason = "Reading Hugging Face datasets is an optional extra."
        todo = "Install it: pip install 'trisect[hub]'"
        raise CorpusError(f"'{where}' is asked for, but the package 'datasets' is not there.", reason, todo) from error
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        if (Path(name) / "dataset_dict.json").is_file():  # what DatasetDict.save_to_disk wrote
            return {str(split): rows for split, rows in datasets.DatasetDict.load_from_disk(name).items()}, None
        builder = datasets.load_dataset_builder(name, config)
        builder.download_and_prepare()
        dataset = builder.as_dataset()
        assert isinstance(dataset, dict), "asked for no split, all of them come"
        revision = builder.hash if builder.repo_id else None
        return {str(split): rows for split, rows in dataset.items()}, revision
    except Exception as error:  # foreign code and foreign files: anything may go wrong in it
        problem, todo = next((problem, todo) for kind, problem, todo in FAILURES if isinstance(error, kind))
        words = " ".join(str(error).split()) or type(error).__name__
        reason = f"The library says: {words if len(words) <= MAX_MESSAGE else f'{words[:MAX_MESSAGE]}…'}"
        raise CorpusError(f"The dataset '{where}' {problem}.", reason, todo) from error
