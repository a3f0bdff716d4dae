"""Studies killed at random moments, and resumed until they end: the tables are those of a study left in peace.

python bench/reliability/kills.py [--kills 50] [--others 8] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from common import TWO, Tally, ended, fork, in_copy, same, study, write_experiment
from watched import prepare

import trisect.experiments.study.page  # noqa: F401  (what it imports is imported before the first fork)
from trisect.experiments.study import tasks  # noqa: F401  (likewise)

ALL, PARENT, WORKER, TERM, INT = "kill -9 of all", "kill -9 of the parent", "kill -9 of a worker", "SIGTERM", "SIGINT"
PHASES = (
    "training step",
    "evaluation after an epoch",
    "rewinding",
    "making tables",
    "drawing the report",
    *(
        f"writing {kind}"
        for kind in ("study.json", "corpus npy", "checkpoint", "epoch snapshot", "final.safetensors", "run.json")
    ),
    *(f"writing {kind}" for kind in ("evaluation", "table", "figure", "report.html", "about.json")),
)


@dataclass
class Campaign:
    """Where things lie, the chance that is drawn from, and how long a study takes when left alone."""

    root: Path
    draw: random.Random
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    hit: Counter[str] = field(default_factory=Counter)

    @property
    def file(self) -> Path:
        """The experiment."""
        return self.root / "two.json"

    def start(self, out: Path, workers: int, page: bool) -> tuple[int, Path]:
        """A watched study, and the folder of its notes."""
        notes = Path(tempfile.mkdtemp(dir=self.root, prefix="notes-"))

        def do() -> None:
            prepare(notes)
            study(self.file, out, workers, page)

        return fork(do, notes / "words"), notes

    def finish(self, out: Path, page: bool = False) -> bool:
        """Run the study to its end; says whether it came there."""
        child, notes = self.start(out, 0, page)
        status = ended(child)
        return self.tally.expect(status == 0, f"{out}: resuming ended with {status}: {(notes / 'words').read_text()}")


def workers(notes: Path) -> list[int]:
    """Ids of the study's workers that are there."""
    return [w for w in (int(p.name.removeprefix("worker-")) for p in notes.glob("worker-*")) if alive(w)]


def alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_moment(campaign: Campaign, child: int, notes: Path, phase: str | None, need: bool) -> bool:
    """Wait for a random moment, or a random moment within a phase; false where the study ended before it."""
    if phase is None and not need:
        time.sleep(campaign.draw.uniform(0, campaign.seconds))
        return alive(child)
    while alive(child):
        said = [p.read_bytes().decode().strip() for p in notes.iterdir() if p.name != "words"]
        if (phase is None or phase in said) and (not need or workers(notes)):
            time.sleep(campaign.draw.choice((0, 0.001, 0.01, 0.1)) if phase else campaign.draw.uniform(0, 1))
            return alive(child)
        time.sleep(0.0005)
    return False


def strike(campaign: Campaign, out: Path, way: str, phase: str | None) -> bool:
    """Start the study in `out` and end it in that way; false where it had ended by itself."""
    team = 2 if way in (PARENT, WORKER) else (2 if campaign.draw.random() < 0.1 else 0)
    page = (
        phase in ("drawing the report", "writing figure", "writing report.html")
        if phase
        else campaign.draw.random() < 0.3
    )
    child, notes = campaign.start(out, team, page=page)
    there = await_moment(campaign, child, notes, phase, need=way == WORKER)
    victims = workers(notes)
    if way == ALL:
        for victim in (child, *victims):
            os.kill(victim, signal.SIGKILL)
    elif way == WORKER:
        for victim in victims[:1]:
            os.kill(victim, signal.SIGKILL)
    else:
        os.kill(child, {TERM: signal.SIGTERM, INT: signal.SIGINT}.get(way, signal.SIGKILL))
    status, said = ended(child), (notes / "words").read_text() if (notes / "words").exists() else ""
    if not there:
        return False
    well = {ALL: (-9,), PARENT: (-9,), WORKER: (0,), TERM: (-15,), INT: (130, 1, -2)}[way]
    campaign.tally.expect(status in (*well, 0), f"{way}: exit status {status}: {said[-800:]}")
    if way == INT:
        campaign.tally.expect(status == 0 or "Stopped. Call the same command again" in said, f"{way} said {said}")
    until = time.monotonic() + 120  # a worker that is just starting notices when it has started
    while workers(notes) and time.monotonic() < until:
        time.sleep(0.02)
    campaign.tally.expect(not workers(notes), f"{way}: a worker outlived its study")
    campaign.tally.seen[f"{way} ({'workers' if team else 'one process'})"] += 1
    for path in notes.iterdir() if way == ALL else ():
        if path.name != "words":
            campaign.hit[f"{path.name.partition('-')[0]}: {path.read_bytes().decode().strip()}"] += 1
    return True


def main() -> int:
    """Kill, resume, compare; print what was hit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--others", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        campaign = Campaign(Path(place), random.Random(wanted.seed))
        write_experiment(campaign.root, TWO)
        began = time.monotonic()
        campaign.finish(campaign.root / "peace")
        campaign.seconds = time.monotonic() - began
        # every other kill waits for a phase, in turn, or phases of a few milliseconds would hardly ever be hit
        plan = [(ALL, PHASES[(i // 2 + 8 * wanted.seed) % len(PHASES)] if i % 2 else None) for i in range(wanted.kills)]
        plan += [(way, None) for way in (PARENT, WORKER, TERM, INT) for _ in range(wanted.others)]
        campaign.draw.shuffle(plan)
        number = 0
        while plan:
            out = campaign.root / f"study-{number}"
            if strike(campaign, out, *plan[0]):
                plan.pop(0)
                print(f"{len(plan)} to go", flush=True)
                if plan and campaign.draw.random() < 0.75:
                    continue  # the next process goes on in the same folder, and is killed as well
            done = campaign.finish(out)
            alike = done and in_copy(lambda out=out: same(out, campaign.root / "peace"))
            if campaign.tally.expect(alike, f"{out} has other tables"):
                campaign.tally.seen["studies that ended with the same tables"] += 1
            number += 1
        print(f"a study left in peace took {campaign.seconds:.0f} s; what kill -9 of all hit:")
        for name, count in sorted(campaign.hit.items(), key=lambda pair: (pair[0][:6], -pair[1])):
            print(f"  {count:>4}  {name}")
        return campaign.tally.report("kills")


if __name__ == "__main__":
    raise SystemExit(main())
