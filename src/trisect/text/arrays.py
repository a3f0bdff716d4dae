"""Arrays longer than memory: appended to in a temporary file, memory-mapped when read, hashed in pieces."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from trisect.core.errors import CorpusError, DamagedFileError
from trisect.core.files import replace_file

CHUNK = 1 << 22


class GrowingArray:
    """An integer array that only grows; it lives in a nameless temporary file, which goes when the array goes."""

    def __init__(self, dtype: npt.DTypeLike, folder: Path | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self._length = 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed by `finish`, or with self
        except OSError as error:
            raise self._full(error) from error
        weakref.finalize(self, _close, self._file)

    def __len__(self) -> int:
        return self._length

    def append(self, values: npt.ArrayLike) -> None:
        """Add values at the end; raises CorpusError when the temporary folder is full."""
        block = np.asarray(values, self.dtype)
        try:
            self._file.write(block.tobytes())
        except OSError as error:
            raise self._full(error) from error
        self._length += len(block)

    def finish(self) -> np.ndarray:
        """The whole array, read-only and mapped; nothing can be added afterwards. Raises CorpusError as `append`."""
        try:
            with self._file as file:
                file.flush()
                if not self._length:
                    return np.zeros(0, self.dtype)
                return np.memmap(file, self.dtype, "r", shape=(self._length,))
        except OSError as error:
            raise self._full(error) from error

    def _full(self, error: OSError) -> CorpusError:
        return CorpusError(
            f"A text of more than {self._length:,} tokens could not be kept while it was read.",
            f"The temporary folder {tempfile.gettempdir()} says: {error}",
            "Free some space there, or name a roomier folder in the variable TMPDIR.",
        )


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # on a full disk what is still to be written fails once more
        file.close()


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array piece by piece, so that only a piece is ever in memory."""
    for start in range(0, len(array), CHUNK):
        yield array[start : start + CHUNK]


def counts(array: np.ndarray, classes: int) -> np.ndarray:
    """How often each of 0..classes-1 occurs; negative entries are left out. Shape [classes]."""
    total = np.zeros(classes, np.int64)
    for piece in chunks(array):
        total += np.bincount(piece[piece >= 0], minlength=classes)
    return total


def mapped(array: np.ndarray, lookup: np.ndarray) -> np.ndarray:
    """lookup[array], in memory when it is short, else in a temporary file."""
    if len(array) <= CHUNK:
        return lookup[array]
    grown = GrowingArray(lookup.dtype)
    for piece in chunks(array):
        grown.append(lookup[piece])
    return grown.finish()


def checksum(array: np.ndarray) -> str:
    """BLAKE2b of the array's values (little-endian, in its own width), 16 bytes in hex."""
    state = hashlib.blake2b(digest_size=16)
    for piece in chunks(array):
        state.update(np.ascontiguousarray(piece, piece.dtype.newbyteorder("<")).data)
    return state.hexdigest()


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file whole or not at all, straight from the mapping when there is one."""

    def write(scratch: Path) -> None:
        with scratch.open("wb") as handle:
            np.save(handle, array, allow_pickle=False)

    replace_file(path, write)


def read_array(path: Path, dtype: npt.DTypeLike, length: int, todo: str) -> np.ndarray:
    """Map a .npy file; raises DamagedFileError when it is missing or of another kind or length."""
    try:
        array = np.load(path, mmap_mode="r" if length else None, allow_pickle=False)
    except Exception as error:  # NumPy reads the header as Python, which fails in many ways
        raise DamagedFileError(f"{path} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if array.dtype != np.dtype(dtype) or array.shape != (length,):
        found = f"It holds {array.dtype} of shape {array.shape}, not {np.dtype(dtype)} of shape ({length},)."
        raise DamagedFileError(f"{path} is damaged.", found, todo)
    return array
