"""Everything that a GPU can tell, piece by piece, each call going on where the last one stopped:

python tools/gpu_campaign.py --out campaign --corpus wikitext-2-labelled --people birth-places
python tools/gpu_campaign.py --out campaign --pieces            what there is to do, and what is done
python tools/gpu_campaign.py --out trial --dry-run              every piece on a CPU at a tiny size

A piece that does not end within --minutes is interrupted and goes on later: its checkpoints lie in its folder. What is small of every
piece (tables, figures, pages, records, final weights of at most 20 MB) is copied to OUT/home, with the device and the seconds that it took.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SMALL = 20_000_000  # bytes of a folder's file that comes home
KINDS = {".json", ".parquet", ".svg", ".png", ".html", ".md", ".txt"}
WEIGHTS = {"final.safetensors", "model.safetensors"}  # not those of every epoch
PATIENCE = 60.0  # seconds that an interrupted piece has to end
TINY = ("--seeds", "1", "--epochs", "1")


@dataclass(frozen=True)
class Piece:
    """A command, and the folder below the campaign's whose small files come home."""

    name: str
    command: tuple[str, ...]
    folder: str = ""


def pieces(out: Path, corpus: str, people: str | None, dry: bool) -> list[Piece]:
    """All pieces in their order: what decides most stands first."""
    python, trisect = (sys.executable,), (sys.executable, "-m", "trisect.cli")
    device = ("--device", "cpu" if dry else "cuda")
    study = (*trisect, "study", "paper", "--corpus", corpus, *device, "--out", str(out / "paper"), "--quiet")
    study += ("--workers", "0", *TINY, "--fleet", "2") if dry else ()
    seed = () if dry else ("--seeds", "1")
    laws = ("training", "edit", "rewind")
    tests = (*(f"tests/property/test_{name}_laws.py" for name in laws), "tests/contract/test_elsewhere.py")
    sizes = ("bench/gpu.py", "--sizes", str(out / "sizes" / "sizes.json"), *(("--tiny",) if dry else ()))
    plan = [
        Piece("tests", (*python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *tests)),
        Piece("sizes", (*python, *sizes), "sizes"),
        Piece("rewinding", (*study, *seed, "--only", "rewind", *sites(dry, "k@1")), "paper"),
        Piece("freezing", (*study, *seed, "--only", "freeze", *sites(dry, "k@1")), "paper"),
    ]
    for layer in (1,) if dry else (1, 3, 5, 2, 4):
        places = sites(True, *((f"{c}@{layer}" for c in "qkv") if not dry else ("k@1",)))
        plan.append(Piece(f"attacks in layer {layer}", (*study, *seed, "--only", "attack", *places), "paper"))
    for number in () if dry else (2, 3, 4, 5):
        plan.append(Piece(f"seed {number}", (*study, "--seeds", f"{number},", "--only", "rewind,freeze"), "paper"))
    recall = (*trisect, "recall", *device, "--out", str(out / "recall"), "--quiet")
    if dry:
        recall += (
            "--workers",
            "0",
            "--set",
            "pretraining_epochs=1",
            "--set",
            "epochs_after=1",
            "--set",
            "epochs_without=1",
        )
        plan.append(Piece("recall", recall, "recall"))
    elif people is not None:
        plan.append(Piece("recall", (*recall, "--data", people, "--recipe", "course"), "recall"))
    shape = ("2", "4", "32") if dry else ("24", "16", "1024")
    model, limit = str(out / "random"), ("--limit", "20" if dry else "200")
    plan.append(Piece("random model", (*python, __file__, "--make", model, *shape)))
    for name, more in (
        ("norms", ("--corpus", "embedded", *limit)),
        ("profile", ("--corpus", "embedded", "--labels", "position,pos", *limit)),
        ("patch", ("--base", "Ann Lee was here.", "--donor", "Bob Ray was here.")),
    ):
        place = out / name
        set_aside(place, name)
        if ended(place):  # such a folder is of one run
            plan.append(Piece(name, (), name))
        else:
            more = (*more, "--out", str(place), "--quiet")
            plan.append(Piece(name, (*trisect, name, model, *more, *device), name))
    return plan


def ended(folder: Path) -> bool:
    """Whether a folder holds a run that ended, with every file as it was left; one that was interrupted goes on where it stopped."""
    from trisect.core.errors import DamagedFileError
    from trisect.lab.run_folder import RunFolder

    try:
        return RunFolder(folder).has_run and not RunFolder(folder).check()
    except DamagedFileError:
        return False


def set_aside(folder: Path, name: str) -> None:
    """Move a folder that the command would refuse, since it holds no run of it that could go on, to FOLDER.aside (or .aside2, …)."""
    from trisect.core.errors import TrisectError
    from trisect.experiments import EXPERIMENTS
    from trisect.lab.driver import free_folder

    try:
        free_folder(next(one for one in EXPERIMENTS if one.name == name), folder)
    except TrisectError:
        numbers = (f".aside{number or ''}" for number in range(1000))
        folder.rename(next(to for each in numbers if not (to := folder.with_name(folder.name + each)).exists()))


def sites(is_limited: bool, *names: str) -> tuple[str, ...]:
    """The option --sites, where there is to be one."""
    return tuple(word for name in names for word in ("--sites", name)) if is_limited else ()


def make_random(folder: Path, layers: int, heads: int, width: int) -> None:
    """A model with random weights that reads single characters."""
    from trisect.hf.small.gpt import GptShape, make_model, make_tokenizer, save

    tokenizer = make_tokenizer([chr(code) for code in range(32, 127)], 512)
    save(make_model(GptShape("gpt2", layers, heads, width, 512), tokenizer, 1), tokenizer, folder)


class Campaign:
    """The pieces of a folder, and what is noted of each: whether it is done, its seconds over all calls, the device."""

    def __init__(self, out: Path, pieces: Sequence[Piece]) -> None:
        self.out, self.pieces, self.record = out, pieces, out / "campaign.json"
        self.notes: dict[str, dict[str, Any]] = json.loads(self.record.read_text()) if self.record.exists() else {}

    def left(self) -> list[Piece]:
        """What is not done."""
        return [piece for piece in self.pieces if not self.notes.get(piece.name, {}).get("done")]

    def run(self, minutes: float, whole: float) -> bool:
        """Run what is left, each piece for so many minutes at most, until `whole` are over; whether all is done.

        A piece that ends with an error is noted, and the next one runs: it is tried again by the next call.
        """
        began = time.monotonic()
        for piece in self.left():
            rest = 60 * whole - (time.monotonic() - began)
            if rest <= 0:
                break
            self.note(piece, min(60 * minutes, rest))
        return not self.left()

    def note(self, piece: Piece, seconds: float) -> None:
        """Run one piece and write down how it went."""
        began = time.monotonic()
        print(f"{piece.name} …", flush=True)
        state, code = self.call(piece, seconds)
        before = self.notes.get(piece.name, {})
        took = before.get("seconds", 0.0) + time.monotonic() - began
        self.notes[piece.name] = {"done": state == "done", "state": state, "code": code, "seconds": took}
        self.notes[piece.name] |= {"command": list(piece.command), "device": device()}
        self.record.write_text(json.dumps(self.notes, indent=1) + "\n")
        if piece.folder and (self.out / piece.folder).is_dir():
            bring(self.out / piece.folder, self.out / "home" / piece.folder)
        print(f"{piece.name}: {state}, {took:.0f} s in all", flush=True)

    def call(self, piece: Piece, seconds: float) -> tuple[str, int]:
        """How the command ended: done, interrupted, or failed; 5 of pytest is that there was nothing to run."""
        if not piece.command:
            return "done", 0
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
        with (self.out / "logs" / f"{piece.name}.txt").open("a") as log:
            running = subprocess.Popen(
                piece.command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": paths}
            )
            try:
                code = running.wait(seconds)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGINT)
                try:
                    code = running.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    running.kill()
                    code = running.wait()
                return "interrupted", code
        return ("done" if code in (0, 5) else "failed"), code


def bring(folder: Path, home: Path) -> None:
    """Copy what is small of a folder: tables, figures, pages, records, and the final weights of its models."""
    for path in folder.rglob("*"):
        is_wanted = path.suffix in KINDS or path.name in WEIGHTS
        if is_wanted and path.is_file() and path.stat().st_size <= SMALL and "corpus" not in path.parts:
            target = home / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def device() -> str:
    """The GPU's name, else the processor's."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        name = ""
    if name:
        return name
    from trisect.core.machine import processor

    return processor()


def main() -> None:
    """Run the campaign, or say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("campaign"))
    parser.add_argument("--corpus", default="embedded", help="a labelled corpus folder for the preset paper")
    parser.add_argument("--people", help="the folder of birth places for recall's recipe course")
    parser.add_argument("--minutes", type=float, default=9.0, help="at most, of one piece in one call")
    parser.add_argument("--whole", type=float, default=9.5, help="minutes at most, of one call")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU at a tiny size")
    parser.add_argument("--pieces", action="store_true", help="list the pieces; run nothing")
    parser.add_argument("--make", nargs=4, metavar=("DIR", "LAYERS", "HEADS", "WIDTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make is not None:
        return make_random(Path(options.make[0]), *map(int, options.make[1:]))
    out = options.out.absolute()
    campaign = Campaign(out, pieces(out, options.corpus, options.people, options.dry_run))
    if options.pieces:
        for piece in campaign.pieces:
            note = campaign.notes.get(piece.name, {})
            print(f"{note.get('state', 'to do'):12} {note.get('seconds', 0.0):6.0f} s  {piece.name}")
        return None
    out.mkdir(parents=True, exist_ok=True)
    done = campaign.run(options.minutes, options.whole)
    print("All is done." if done else "Run the same command again: it goes on.")
    return None


if __name__ == "__main__":
    main()
