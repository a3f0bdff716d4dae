"""A damaged byte, and a cut, in every kind of file that a study leaves: named, and mended by deleting what is named.

python bench/reliability/corrupt.py [--places 6] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import torch
from common import ONE, Said, Tally, call, files_of, same, without_page, write_experiment

REWRITTEN = ("report.html", "figure", "experiment.json")  # each call writes them again and reads none


def harm(content: bytes, how: str, draw: random.Random) -> bytes:
    """The content with one byte changed, cut in half, or gone."""
    if how == "byte":
        place = draw.randrange(len(content))
        return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    return content[: len(content) // 2] if how == "half" else b""


def named(said: Said) -> Path | None:
    """What the message says to delete."""
    found = re.search(r"Delete (?:the folder )?(/.*?)(?: and call|: )", said.parts[2]) if len(said.parts) == 3 else None
    return Path(found[1]) if found else None


def mend(tally: Tally, where: str, victim: Path, words: tuple[object, ...], said: Said) -> None:
    """Delete what messages say until the study runs to its end; one deletion has to do."""
    target = named(said)
    if not tally.expect(target is not None, f"{where}: status {said.status}, said {said.err[-500:]}"):
        return
    assert target is not None
    tally.expect(victim.is_relative_to(target), f"{where}: says to delete {target}")
    tally.expect(str(victim) in said.err or str(victim.parent) in said.err, f"{where}: is not named: {said.err}")
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    again = call(*words)
    tally.expect(again.status == 0, f"{where}: after deleting {target}: {again.err[-500:]}")


def one(tally: Tally, study: Path, kind: str, path: Path, how: str, draw: random.Random, peace: Path) -> None:
    """Damage one file of a copy of the study, see who notices, mend, and compare."""
    out = study.with_name("copy")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(study, out)
    victim = out / path.relative_to(study)
    victim.write_bytes(harm(victim.read_bytes(), how, draw))
    where, words = f"{kind} ({path.name}), {how}", ("study", study.with_name("one.json"), "--out", out, "--workers", 0)
    checked = call("check", out)
    if kind not in REWRITTEN:
        if checked.status == 0:
            tally.expect(how == "byte", f"{where}: 'trisect check' finds nothing")
            tally.seen[f"{kind}: a byte that changes no content, and no number of the tables"] += 1
        else:
            tally.expect(checked.status == 2 and len(checked.parts) == 3, f"{where}: check said {checked.err[-500:]}")
            tally.expect(
                str(victim) in checked.err or str(victim.parent) in checked.err, f"{where}: check said {checked.err}"
            )
            tally.seen[f"{kind}: named by 'trisect check'"] += 1
    said = call(*words)
    if said.status != 0:
        tally.seen[f"{kind}: named by 'trisect study'"] += 1
        mend(tally, where, victim, words, said)
    elif checked.status != 0:
        # what a finished study does not read again, or writes again: the advice of `check` holds as well
        mend(tally, where, victim, words, checked) if call("check", out).status != 0 else None
    tally.expect(same(out, peace), f"{where}: other tables")
    tally.expect(call("check", out).status == 0, f"{where}: 'trisect check' still finds something")
    tally.seen[f"{kind}: damaged, and in the end the same tables"] += 1


def unfinished(root: Path, file: Path) -> Path:
    """A study that was cut off after its first checkpoint."""
    from trisect.lm import train

    out, step, count = root / "unfinished", train.Trainer.step, [0]

    def stopping(self: train.Trainer) -> object:
        count[0] += 1
        if self.steps_done > self.steps_per_epoch:
            raise KeyboardInterrupt
        return step(self)

    with mock.patch.object(train.Trainer, "step", stopping):
        call("study", file, "--out", out, "--workers", 0)
    return out


def main() -> int:
    """Damage, mend, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--places", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    tally, draw = Tally(), random.Random(wanted.seed)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        file = write_experiment(root, ONE)
        call("study", file, "--out", root / "peace", "--workers", 0)
        stopped = unfinished(root, file)
        with without_page():
            for study in (root / "peace", stopped):
                for kind, paths in files_of(study).items():
                    if study == stopped and kind != "checkpoint":
                        continue
                    for how in ["byte"] * wanted.places + ["half", "nothing left"]:
                        one(tally, study, kind, draw.choice(paths), how, draw, root / "peace")
    return tally.report("damaged files")


if __name__ == "__main__":
    raise SystemExit(main())
