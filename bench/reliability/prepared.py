"""The commands of the campaign, each at a size of seconds, with the models and texts that they read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trisect.core.spec import Design

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

TRISECT = [sys.executable, "-m", "trisect.cli"]
TRANSLATION = {"layers": 1, "width": 16, "heads": 2, "epochs": 1, "inner": 16, "pieces": 200}
RECALL = {"layers": 1, "width": 16, "heads": 2, "pretraining_epochs": 1, "epochs_after": 1, "epochs_without": 1}


class Call(NamedTuple):
    """A command: its name here, and what does it into a folder; `words` are those of a command line, without --out.

    `ending` is the share of kills after which it is called to its end; `copied` says of one that goes on, but takes a minute
    and more, that its writes are tried in one run of it, by copies of the process.
    """

    name: str
    do: Callable[[Path], object]
    resumes: bool = False
    workers: bool = False
    ending: float = 0.3
    words: Sequence[str] = ()
    copied: bool = False


def _line(words: list[str], out: Path) -> None:
    from trisect.cli import main

    main.main([*words, "--out", str(out)], standalone_mode=True)


def _bare(words: list[str], _: Path) -> None:
    from trisect.cli import main

    main.main(words, standalone_mode=True)


def _annotate(words: list[str], out: Path) -> None:
    from trisect.text import annotate

    annotate.SHARD = 150
    _line(words, out)


def _dissect(out: Path) -> None:
    """The whole study at the smallest size that has all of its parts, as tests have it."""
    from tests.contract.test_dissect import ASKED

    from trisect.experiments.dissect.settings import DISSECT
    from trisect.lab import driver

    driver.run(DISSECT, ASKED, out)


def some(settings: dict[str, int]) -> list[str]:
    """Settings of a recipe as options."""
    return [f"--set={name}={value}" for name, value in settings.items()]


def small_roles() -> Design:
    """The study of planted roles at the smallest size that has donors: one seed, one epoch, one site interchanged."""
    from trisect.core.methods import Interchange, Rewind
    from trisect.core.site import Site
    from trisect.core.spec import Text
    from trisect.experiments.study.planted_presets import ROLES

    site = (Site.parse("v@1"),)
    first = ROLES[0]
    less = {"attack": None, "control": None, "tie": None, "probe": None, "erase": None, "ablate": None, "freeze": None}
    text = Text("roles", train_tokens=7_680, valid_tokens=1_200)
    training = replace(first.training, epochs=1)
    own = {"rewind": Rewind(site, points=2, midstage=False), "interchange": Interchange(site, pairs=50)}
    return replace(first, seeds=(1,), text=text, training=training, **own, **less)


def calls(place: Path) -> list[Call]:
    """Every command that leaves a folder."""
    texts = ["--corpus", str(place / "texts")]
    gpt2, second, bart = str(place / "gpt2"), str(place / "second"), str(place / "bart")
    pairs = ["--source", str(place / "a"), "--target", str(place / "b"), "--gold", str(place / "g")]
    steps = ["--initial", "step0", "--final", "step1", "--points", "3", "--sites", "v@1"]
    annotate = ["corpus", "annotate", str(place / "texts"), "--pipeline", str(place / "pipeline"), "--engine", "here"]
    lines = {
        "norms": ["norms", gpt2, *texts, "--limit", "8"],
        "norms of two": ["norms", gpt2, second, *texts, "--limit", "8"],
        "ablate": ["ablate", gpt2, *texts, "--sites", "v@1", "--limit", "8"],
        "similarity": ["similarity", gpt2],
        "align": ["align", bart, *pairs],
        "patch": ["patch", gpt2, "--base", "w1 w2 w3", "--donor", "w1 w4 w3", "--sites", "v@1"],
        "profile": [
            "profile",
            gpt2,
            "--corpus",
            str(place / "bank"),
            "--words",
            "200",
            "--labels",
            "pos,dep",
            "--draws",
            "200",
        ],
        "erase": ["erase", gpt2, "--corpus", str(place / "bank"), "--draws", "2", "--limit", "8"],
        "rewind": ["rewind", str(place / "steps"), *steps, *texts],
        "compare": ["compare", gpt2, second, *texts, "--limit", "4"],
        "theory": ["theory", "average"],
    }

    def of(name: str, words: list[str], resumes: bool = False, workers: bool = False, ending: float = 0.3) -> Call:
        return Call(name, partial(_line, words), resumes, workers, ending, words)

    staged = [of(name, words) for name, words in lines.items()]
    study = str(place / "study.json")
    return [
        *staged,
        Call("annotate", partial(_annotate, annotate), resumes=True, words=annotate),
        of("study", ["study", study, "--workers", "0"], True),
        of("study, workers", ["study", study, "--workers", "2"], True, True),
        of("translate-train", ["translate-train", "--seeds", "1,", "--workers", "0", *some(TRANSLATION)], True),
        of("recall", ["recall", "--seeds", "1,", "--workers", "0", *some(RECALL)], True),
        Call("dissect", _dissect, resumes=True, ending=0.1, words=["dissect", "--workers", "0"], copied=True),
    ]  # fmt: skip


def others(place: Path) -> list[Call]:
    """Commands that leave no folder, for the network alone."""
    gpt2 = str(place / "gpt2")
    lines = {
        "check": ["check", gpt2],
        "check a run": ["check", str(place / "norms" / "peace")],
        "plan": ["plan", "quick"],
        "claims": ["claims"],
        "corpus show": ["corpus", "show", str(place / "texts")],
        "explore": ["explore", gpt2, "w1 w2", "--out", str(place / "explored" / "page.html")],
        "report": ["report", str(place / "study" / "peace")],
        "ask": [
            "ask",
            str(min((place / "recall" / "peace" / "models").glob("*"), default=place)),
            "Where was Ann born?",
        ],
    }
    return [Call(name, partial(_bare, words), words=words) for name, words in lines.items()]


def prepare(place: Path) -> None:
    """Tiny models and texts."""
    from common import TWO
    from tests import tinyhf
    from tests.contract.test_annotate import pipeline

    from trisect.core.spec import plain

    place.mkdir(parents=True, exist_ok=True)
    tinyhf.save(tinyhf.gpt2(), place / "gpt2", False)
    tinyhf.save(tinyhf.gpt2(3), place / "second", False)
    tinyhf.save(tinyhf.bart(), place / "bart")
    for name, number in (("step0", 1), ("step1", 2)):
        tinyhf.save(tinyhf.gpt2(number), place / "steps" / name, False)
    small = replace(TWO, seeds=(1,), training=replace(TWO.training, epochs=1))
    (place / "study.json").write_text(json.dumps(plain(small)))
    pipeline(place / "pipeline", tagger=True)
    lines = [f"w{i} w{i + 1} , w{i + 2} w{(3 * i) % 40} ." for i in range(36)]
    for name in ("texts", "bank"):
        (place / name).mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (place / "texts" / f"{split}.txt").write_text("\n".join(lines))
        rows: list[str] = []
        for i in range(60):
            for j in range(6):
                word, tag = f"w{(7 * i + j) % 40}", ("NOUN", "VERB", "ADJ")[(7 * i + j) % 3]
                rows.append("\t".join([str(j + 1), word, word, tag, tag, "_", str(j), ("dep", "obj")[j % 2], "_", "_"]))
            rows.append("")
        (place / "bank" / f"{split}.conllu").write_text("\n".join(rows) + "\n")
    for name, text in (("a", "w1 w2 w3\nw4 w5\n"), ("b", "w2 w3\nw6 w7 w8\n"), ("g", "0-0 1-1\n0-0 1p2\n")):
        (place / name).write_text(text)
