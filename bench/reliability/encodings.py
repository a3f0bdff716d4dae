"""Every command under other encodings, with a closed standard output, in a folder not named in ASCII, on texts with control characters.

python bench/reliability/encodings.py [--only norms] [--only 'study, workers'] [--way latin-1] [--less dissect]

What reads another command's folder (report, ask, check a run) is called where that command was called before it. `--only 'roles as
shipped'` is the preset with one seed, which needs minutes. Status 1 where anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from phases import descendants, processor_seconds
from prepared import TRISECT, Call, calls, others, prepare, small_roles

from trisect.core.spec import plain

CONTROL = ("\x00", "\x01", "\x1b", "\ufffe", "\x7f", "\u202e")
LOCALE = ("PYTHONIOENCODING", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "LC_ALL", "LANG")
ASCII = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
WAYS: Mapping[str, tuple[dict[str, str], str]] = {
    "latin-1": ({"PYTHONIOENCODING": "latin-1"}, ""),
    "names in ASCII alone": (ASCII, ""),
    "standard output closed": ({}, ">&-"),
    "control characters": ({}, ""),
}
LONGEST, CLOCK = (
    900,
    5400,
)  # seconds of a processor that a command may use, however busy the machine is, and of the clock
SHIPPED = "roles as shipped"
SMALL = [sys.executable, str(Path(__file__).with_name("small_dissect.py"))]
TRAINED = ("roles", "training", "recall", "translation")
NO_TEXTS = ("dissect", "roles", SHIPPED)  # of their own, into which nothing can be put


def run(words: list[str], way: str, work: Path, ends: bool = True) -> tuple[int, str]:
    """A command's status and what it said; one that does not end by itself is interrupted when it says where it is."""
    environment, shell = WAYS[way]
    own = {k: v for k, v in os.environ.items() if k not in LOCALE} | environment
    command = [*(SMALL if words[0] == "dissect" else TRISECT), *words]
    command = ["sh", "-c", f'exec "$0" "$@" {shell}', *command] if shell else command
    said = work / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=work, env=own, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        began = time.monotonic()
        while process.poll() is None:
            time.sleep(0.1)
            lasted, used = time.monotonic() - began, processor_seconds(descendants(process.pid))
            if not ends and listens(process.pid):
                process.send_signal(signal.SIGINT)
                ends = True
            if used > LONGEST or lasted > CLOCK:
                process.kill()
    return process.returncode, said.read_bytes().decode("latin-1")


def listens(number: int) -> bool:
    """Whether a process listens at an address, also where what it says goes nowhere."""
    with suppress(OSError):  # it has ended
        rows = [line.split() for line in Path(f"/proc/{number}/net/tcp").read_text().splitlines()[1:]]
        listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
        return any(os.readlink(path) in listening for path in Path(f"/proc/{number}/fd").iterdir())
    return False


def spoil(place: Path) -> None:
    """Put control characters into every text that commands read."""
    for path in (*place.glob("texts/*.txt"), place / "a", place / "b"):
        words = path.read_text().split(" ")
        for number, character in enumerate(CONTROL):
            words[(7 * number + 1) % len(words)] += character
        path.write_text(" ".join(words), encoding="utf-8")
    for path in place.glob("bank/*.conllu"):
        text = path.read_text()
        for number, character in enumerate(CONTROL):
            text = text.replace(f"\tw{number + 1}\tw{number + 1}\t", f"\tw{number + 1}{character}\tw{number + 1}\t", 2)
        path.write_text(text, encoding="utf-8")


def unshown(folder: Path) -> list[str]:
    """Pages and figures with a character that XML has not."""
    files = [*folder.rglob("*.html"), *folder.rglob("*.svg")]
    return [path.name for path in files if any(c in path.read_text(encoding="utf-8") for c in CONTROL[:4])]


def wrong_with(way: str, status: int, said: str, out: Path) -> str:
    """What is not as it should be; empty where nothing is."""
    lines = said.strip().splitlines()
    parts = any(line.startswith("trisect: ") for line in lines) and lines[-1].startswith("  ")
    if "Traceback" in said or status < 0:
        return f"status {status}: {said[-500:]}"
    if status == 2 and parts and way in ("names in ASCII alone", "control characters"):
        return "" if way == "control characters" or "PYTHONUTF8=1" in said else said[-300:]
    if status != 0:
        return f"status {status}: {said[-500:]}"
    return f"not XML: {found[:3]}" if out.exists() and (found := unshown(out)) else ""


def every(place: Path) -> list[Call]:
    """Every command, those that leave a folder first."""
    roles = ["study", str(place / "roles.json"), "--workers", "0"]
    shipped = ["study", "roles", "--seeds", "1,", "--workers", "0"]
    serve = Call("serve", lambda _: None, words=["serve", str(place / "gpt2"), "--text", "w1 w2"])
    made = [Call("roles", lambda _: None, words=roles), Call(SHIPPED, lambda _: None, words=shipped)]
    return [*calls(place), *made, serve, *others(place)]


def names(place: Path) -> list[str]:
    """Their names; empty for what is no command line, or reads what another one has left."""
    return [one.name if one.words else "" for one in every(place)]


def there(name: str, place: Path) -> bool:
    """Whether the folder that a command reads was made by another one before it."""
    read = {"ask": "recall", "check a run": "norms", "report": "study"}.get(name)
    return read is None or (place / read / "peace").is_dir()


def main() -> int:
    """Every command in every way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--less", action="append", default=[SHIPPED])
    parser.add_argument("--way", action="append", choices=[*WAYS], default=[])
    parser.add_argument("--begun", type=Path, help="A finished dissect of commands.py, whose trained models are there.")
    wanted = parser.parse_args()
    only = set(wanted.only)
    seen: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        unspoilt, spoilt = Path(root) / "caf\xe9 \u6f22", Path(root) / "control"
        for place in (unspoilt, spoilt):
            prepare(place)
            (place / "roles.json").write_text(json.dumps(plain(small_roles())))
        spoil(spoilt)
        for number, name in enumerate(names(unspoilt)):
            chosen = name in only if only else name not in wanted.less
            for way in wanted.way or WAYS if name and chosen else ():
                place = spoilt if way == "control characters" else unspoilt
                if not there(name, place) or (place == spoilt and name in NO_TEXTS):
                    continue
                call, out = every(place)[number], place / f"out {way} {name}"
                leaves = number <= len(calls(place)) + 1
                words = [*call.words, *(["--out", str(out)] if leaves else [])]
                for part in TRAINED if name == "dissect" and wanted.begun else ():
                    shutil.copytree(wanted.begun / part, out / part)
                    shutil.copy2(wanted.begun / "parts.json", out)
                status, said = run(words, way, Path(root), name != "serve")
                status = 0 if name == "serve" and status in (130, -signal.SIGINT) else status
                wrong = wrong_with(way, status, said, out)
                if name in ("norms", "study", "recall") and not status and not (place / name / "peace").exists():
                    shutil.copytree(out, place / name / "peace")
                seen[f"{way}: {'refused' if status else 'ended well'}"] += 1
                failed += bool(wrong)
                print("WRONG" if wrong else "ok   ", "refused" if status else "well", way, name, wrong, flush=True)
    for what, number in seen.items():
        print(f"{number:5} {what}")
    print(f"{failed} went wrong")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
