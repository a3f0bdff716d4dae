"""Every command on a folder that it may not read or write, as a user without rights: one message of three parts each.

python bench/reliability/permissions.py   (as root, which becomes nobody for it; status 1 where anything went wrong)
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

NOBODY = 65534


def commands(locked: Path) -> list[list[str]]:
    """Each command, with the folder in each of its places."""
    model, out = str(locked / "model"), ["--out", str(locked / "o")]
    return [
        ["theory", *out],
        ["explore", model, "a text"],
        ["recall", "--data", str(locked)],
        ["recall", *out],
        ["norms", model, "--text", "a"],
        ["norms", "no/model", "--text", "a", *out],
        ["corpus", "show", str(locked)],
        ["corpus", "annotate", str(locked), "--pipeline", "en_core_web_sm", *out],
        ["check", model],
        ["report", model],
        ["study", str(locked / "x.json")],
        ["study", "quick", *out],
        ["plan", "quick", "--corpus", str(locked)],
        ["dissect", *out],
        ["align", model, "--source", str(locked / "a"), "--target", str(locked / "b")],
        ["translate-train", "--data", str(locked)],
        ["translate-train", *out],
        ["similarity", model],
        ["ablate", model, "--text", "a"],
        ["erase", model, "--corpus", str(locked)],
        ["patch", model, "--base", "a", "--donor", "b"],
        ["profile", model, "--corpus", str(locked)],
        ["rewind", model, "--initial", "a", "--final", "b", "--corpus", str(locked)],
        ["ask", model, "Where was Ann born?"],
        ["serve", model, "--port", "0"],
        ["compare", model, model, "--text", "a"],
        ["norms", model, str(locked / "other"), "--text", "a"],
        ["similarity", model, *out],
        ["profile", "no/model", "--corpus", "embedded", *out],
        ["patch", "no/model", "--pairs", str(locked / "p.jsonl")],
        ["patch", "no/model", "--base", "a", "--donor", "b", *out],
        ["align", "no/model", "--source", str(locked / "a"), "--target", str(locked / "b")],
        ["erase", "no/model", "--corpus", str(locked)],
        ["profile", "no/model", "--corpus", str(locked)],
        ["rewind", "no/model", "--initial", "a", "--final", "b", "--text", "a", *out],
        ["explore", "no/model", "a text", "--out", str(locked / "page.html")],
        ["study", "roles", *out],
        ["study", "induction", "--corpus", str(locked)],
        ["plan", str(locked / "x.json")],
    ]


def main() -> int:
    """Call each, and look at what it said."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        locked, work = place / "locked", place / "work"
        (locked / "model").mkdir(parents=True)
        (locked / "model" / "study.json").write_text("{}")
        locked.chmod(0o700)
        work.mkdir()
        work.chmod(0o777)
        nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        environment = {**os.environ, "HOME": str(work), "HF_HUB_OFFLINE": "1"}
        for words in commands(locked):
            command = [*nobody, sys.executable, "-m", "trisect.cli", *words]
            done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
            lines = done.stderr.strip().splitlines()
            good = (
                done.returncode == 2
                and len(lines) == 3
                and lines[0].startswith("trisect: ")
                and "ermission" in lines[1]
            )
            print("ok   " if good else "WRONG", " ".join(words[:2]), "" if good else done.stderr[-400:], flush=True)
            wrong += [] if good else [words]
    print(f"{len(commands(Path()))} commands, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
