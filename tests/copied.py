"""A copy of the package, to which files and lines are added, and commands that run from it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import trisect


class Copy:
    """The package in `base`; `changed` says which files differ from the ones that were copied."""

    def __init__(self, base: Path) -> None:
        self.base = base
        shutil.copytree(
            Path(trisect.__file__).parent, base / "trisect"
        )  # with what is compiled: the same times, the same code
        self._before = self._files()

    def _files(self) -> dict[str, str]:
        found = (p for p in self.base.rglob("*") if p.suffix in (".py", ".html", ".css", ".js", ".pyi"))
        return {str(p.relative_to(self.base / "trisect")): p.read_text(encoding="utf-8") for p in found}

    def write(self, path: str, text: str) -> None:
        """Add a file, with its folder."""
        place = self.base / "trisect" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        assert not place.exists()
        place.write_text(text, encoding="utf-8")

    def insert(self, path: str, **after: str) -> None:
        """Put lines behind others, of which each stands once; names are of no meaning."""
        place = self.base / "trisect" / path
        text = place.read_text(encoding="utf-8")
        for pair in after.values():
            anchor, line = pair.split("|")
            assert text.count(anchor) == 1, anchor
            text = text.replace(anchor, f"{anchor}{line}")
        place.write_text(text, encoding="utf-8")

    def changed(self) -> set[str]:
        now = self._files()
        return {name for name in now.keys() | self._before.keys() if now.get(name) != self._before.get(name)}

    def call(self, *args: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
        """The command line of the copy, or a piece of Python, in a process of its own."""
        command = [sys.executable, *(("-m", "trisect.cli", *args) if code is None else ("-c", code, *args))]
        env = {**os.environ, "PYTHONPATH": str(self.base), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
