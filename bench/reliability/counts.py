"""Counts of a campaign by command: what was tried, what a kill hit, what went wrong; kept in a file, so that a campaign can go on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path


class Counts:
    """What was tried and what went wrong, by command, in a file that is written after each trial."""

    def __init__(self, path: Path) -> None:
        self.path = path
        body = json.loads(path.read_text()) if path.exists() else {}
        self.tried: dict[str, Counter[str]] = {n: Counter(c) for n, c in body.get("tried", {}).items()}
        self.during: dict[str, Counter[str]] = {n: Counter(c) for n, c in body.get("during", {}).items()}
        self.seconds: dict[str, float] = body.get("seconds", {})
        self.processor: dict[str, float] = body.get(
            "processor", {}
        )  # seconds of it, which do not depend on a busy machine
        self.spent: dict[str, float] = body.get(
            "spent", {}
        )  # of these, by calls that were killed in the folder that is there
        self.phases: dict[str, list[str]] = body.get("phases", {})
        self.wrong: list[str] = body.get("wrong", [])

    def add(self, name: str, what: str, number: int = 1) -> None:
        """Count a trial."""
        self.tried.setdefault(name, Counter())[what] += number
        self.save()

    def of(self, name: str, what: str) -> int:
        """How many there were."""
        return self.tried.get(name, Counter())[what]

    def expect(self, ok: bool, words: str) -> bool:
        """Note something that is not as it should be."""
        if not ok:
            self.wrong.append(words)
            print("WRONG:", words, flush=True)
            self.save()
        return ok

    def save(self) -> None:
        """Write the file, whole or not at all."""
        body = {"tried": self.tried, "during": self.during, "wrong": self.wrong, "seconds": self.seconds}
        body |= {"processor": self.processor, "spent": self.spent, "phases": self.phases}
        scratch = self.path.with_suffix(".part")
        scratch.write_text(json.dumps(body, indent=1))
        scratch.replace(self.path)


def report(counts: Counts) -> None:
    """The counts as a table."""
    whats = list(dict.fromkeys(what for found in counts.tried.values() for what in found))
    for what in whats:
        print(f"{sum(found[what] for found in counts.tried.values()):5} {what}: ", end="")
        print(", ".join(f"{name} {found[what]}" for name, found in counts.tried.items() if found[what]))
    hit: Counter[str] = Counter()
    for name, found in counts.during.items():
        for what, number in found.items():
            hit[what.partition(": ")[2]] += number
        print(f"{name}: " + ", ".join(f"{what} {number}" for what, number in found.most_common()))
    print("hit: " + ", ".join(f"{what} {number}" for what, number in hit.most_common()))
    for words in counts.wrong:
        print("WRONG", words)
    print(f"{len(counts.wrong)} went wrong")
