"""Build the sdist and the wheel, check both, and use the wheel in a fresh environment: python tools/dist.py [--light]

With `--light` the wheel is installed without its dependencies, and only its files are looked at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TOOLS = ("build", "check-wheel-contents", "twine")
SIZE = 1_300_000  # bytes of a wheel: code, pages and the sample text
USE = """
import pathlib, trisect
assert "site-packages" in trisect.__file__, trisect.__file__
page = trisect.theory_page(("copying",), samples=100, out="theory", quiet=True).report
assert "<svg" in page.read_text(encoding="utf-8") or "<script" in page.read_text(encoding="utf-8")
from transformers import BertConfig, BertModel
import torch
small = BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=32, intermediate_size=32, vocab_size=40)
reading = trisect.load(BertModel(small).eval()).read({"input_ids": torch.tensor([[2, 5, 6, 3]])})
assert reading["k@1"].k.shape == (1, 2, 4, 16)
print("used", trisect.__file__)
"""


def run(*words: str | Path, at: Path = ROOT, **environment: str) -> None:
    """A command that has to succeed."""
    print("+", *words, flush=True)
    subprocess.run(list(map(str, words)), cwd=at, check=True, env={**os.environ, **environment})


def fresh(place: Path) -> Path:
    """The folder of programs of a new environment."""
    venv.create(place, with_pip=True)
    return place / ("Scripts" if os.name == "nt" else "bin")


def check_files(wheel: Path) -> None:
    """Pages, styles, scripts and stubs are in the wheel, tests and data are not."""
    names = zipfile.ZipFile(wheel).namelist()
    for folder in (ROOT / "src" / "trisect", ROOT / "src" / "trisect" / "report"):
        assert folder.is_dir()
    wanted = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "trisect").rglob("*") if p.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    if missing := sorted(wanted - set(names)):
        sys.exit(f"the wheel lacks {', '.join(missing[:5])}: add them to package-data in pyproject.toml")
    if strange := [name for name in names if not name.startswith(("trisect/", "trisect-"))]:
        sys.exit(f"the wheel holds {', '.join(strange[:5])}")
    if wheel.stat().st_size > SIZE:
        sys.exit(f"the wheel has {wheel.stat().st_size:,} bytes")


def main() -> None:
    """Build, check, install, use."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        programs = fresh(place / "tools")
        run(programs / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *TOOLS)
        run(programs / "python", "-m", "build", "--outdir", DIST)
        sdist, wheel = next(DIST.glob("*.tar.gz")), next(DIST.glob("*.whl"))
        run(programs / "python", "-m", "twine", "check", "--strict", sdist, wheel)
        run(programs / "check-wheel-contents", wheel)
        check_files(wheel)
        used = fresh(place / "used")
        if "--light" in sys.argv:
            run(used / "python", "-m", "pip", "install", "-q", "--no-deps", wheel)
            return
        run(used / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel)
        outside = place / "outside"
        outside.mkdir()
        run(used / "trisect", "--version", at=outside, PYTHONPATH="")
        run(used / "trisect", "theory", "copying", "--samples", "100", "--quiet", at=outside, PYTHONPATH="")
        run(used / "python", "-c", USE, at=outside, PYTHONPATH="")
    print(f"built  {sdist.name}, {wheel.name}")


if __name__ == "__main__":
    main()
