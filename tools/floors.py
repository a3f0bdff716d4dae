"""The lowest versions that pyproject.toml declares: as requirements for pip, or tried out by a short list of commands.

python tools/floors.py                      the requirements, a line each
python tools/floors.py PATH/TO/trisect      run the commands with the trisect of an environment that has them
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINNED = ("torch",)  # as in constraints.txt: others come with CUDA, and are not asked for again
TINY = [f"--set={name}" for name in ("layers=1", "width=16", "heads=2", "epochs=1", "inner=16")]
TRAIN = ["translate-train", "--seeds", "1,", *TINY, "--out", "translation", "--workers", "0"]
COMMANDS = [
    ["--version"],
    ["claims", "--json"],
    ["plan", "quick"],
    ["corpus", "show", "embedded"],
    ["theory", "average", "--out", "theory"],
    TRAIN,
    ["check", "translation/seed-1"],
    ["check", "translation"],
    ["norms", "translation/seed-1", "--text", "a b c .", "--out", "norms"],
    ["explore", "translation/seed-1", "a b", "b a", "--out", "page.html"],
    ["study", "quick", "--seeds", "1,", "--epochs", "1", "--only", "rewind", "--sites", "q@1", "--out", "study"],
]  # fmt: skip


def floors() -> list[str]:
    """Every dependency at the version that it needs at least."""
    found = []
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    for one in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+).*", one)
        assert match, f"{one} has no lowest version"
        name, low = match.groups()
        found.append(f"{name}=={pins[name] if name in PINNED else low}")
    return found


def main() -> None:
    """Print the requirements, or run the commands and end with status 1 where one fails."""
    if len(sys.argv) < 2:
        print("\n".join(floors()))
        return
    trisect, failed = str(Path(sys.argv[1]).absolute()), 0
    with tempfile.TemporaryDirectory() as place:
        for words in COMMANDS:
            done = subprocess.run(
                [trisect, *words], cwd=place, capture_output=True, text=True, timeout=600, check=False
            )
            print("ok    " if done.returncode == 0 else "FAILED", " ".join(words), flush=True)
            failed += done.returncode != 0
            if done.returncode:
                print(done.stdout[-500:], done.stderr[-1500:])
    print(f"{len(COMMANDS) - failed} of {len(COMMANDS)} commands")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
