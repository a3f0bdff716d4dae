"""Grammars of what trains and what came later: bitexts, birth places, several models, runs, stopped annotations, requests of a page."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from grammars import KINDS, NASTY, VALUES, as_json, copied, hurt, hurt_one, replaced, words
from grammars_newest import NEWEST
from prepared import RECALL, TRANSLATION, some

from trisect.core.files import write_json

ONE_SEED = ["--seeds", "1,", "--workers", "0"]
STATE = "!state"  # not a command: a request that the served page reads


def bitext(rng: random.Random, place: Path, _: Path) -> list[str]:
    """A folder of translations, trained on."""
    count, files = rng.randint(20, 40), {}
    for name in ("train", "valid", "test"):
        rows = [[f"w{rng.randint(1, 30)}" for _ in range(rng.randint(1, 5))] for _ in range(count)]
        sides = {"en": rows, "fr": [[f"v{word[1:]}" for word in row] for row in rows]}
        lines = {end: "\n".join(" ".join(row) for row in side) + "\n" for end, side in sides.items()}
        lines["talp"] = "\n".join(" ".join(f"{i}-{i}" for i in range(len(row))) for row in rows) + "\n"
        files |= {place / f"{name}.{end}": text for end, text in lines.items()}
    hurt_one(rng, files)
    return ["translate-train", "--data", str(place), *ONE_SEED, *some(TRANSLATION), "--out", str(place / "out")]


def birth_places(rng: random.Random, place: Path, _: Path) -> list[str]:
    """A folder of people, their birth places and texts on them, trained on."""
    names = [f"{first} {last}" for first in ("Ann", "Bob", "Cid", "Dan") for last in ("Lee", "May", "Orr", "Poe")]
    people = [(name, f"Town{i % 5}") for i, name in enumerate(names)]
    files = {"wiki.txt": "\n".join(f"{name}. {name} was born in {town}." for name, town in people)}
    for name, mine in (("birth_places_train.tsv", people), ("birth_dev.tsv", people[:4])):
        files[name] = "\n".join(f"Where was {who} born?\t{town}" for who, town in mine)
    files["birth_test_inputs.tsv"] = "\n".join(f"Where was {who} born?" for who, _ in people[:3])
    hurt_one(rng, {place / name: text for name, text in files.items()})
    return [
        "recall",
        "--data",
        str(place),
        *ONE_SEED,
        *some(RECALL),
        "--set",
        "left_out=0",
        "--out",
        str(place / "out"),
    ]


def recipe(rng: random.Random, place: Path, _: Path) -> list[str]:
    """A setting of a recipe."""
    name, small = rng.choice([("translate-train", TRANSLATION), ("recall", RECALL)])
    value = rng.choice([*NASTY, *(str(v) for v in VALUES if v not in (1, True))])
    which = rng.choice([*small, "rate", "dropout", "seed", "nosuch", ""])
    if rng.random() < 0.4:
        which, value = rng.choice(
            [
                ("layers", "2"),
                ("width", "24"),
                ("heads", "1"),
                ("heads", "4"),
                ("inner", "1"),
                ("rate", "0.1"),
                ("dropout", "0.5"),
            ]
        )
    return [name, *ONE_SEED, *some(small), "--set", f"{which}={value}", "--out", str(place / "out")]


def several(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Two models, one of them with a file that was changed."""
    one = copied(model, "gpt2", place)
    file = one / rng.choice(["config.json", "tokenizer.json", "tokenizer_config.json"])
    body = json.loads(file.read_text())
    file.write_bytes(as_json(rng, replaced(rng, body)))
    both = [str(one), str(model / "second")]
    rng.shuffle(both)
    command = rng.choice([["norms"], ["ablate", "--sites", "v@1"], ["similarity"], ["compare", "--what", "similarity"]])
    text = [] if command[0] == "similarity" else ["--text", "w1 w2 w3"]
    return [command[0], *both, *command[1:], *text, "--out", str(place / "out")]


def run(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A finished run of which one file was changed, with a right checksum where it has one."""
    folder = Path(shutil.copytree(model / "run", place / "out", dirs_exist_ok=True))
    file = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"))
    if rng.random() < 0.2:
        pass  # it is left whole
    elif file.suffix == ".json":
        body = replaced(rng, json.loads(file.read_text())["body"])
        try:
            write_json(file, body)
        except ValueError:  # NaN, which such a file cannot hold
            file.write_text(json.dumps(body))
    else:
        file.write_bytes(hurt(rng, file.read_bytes().decode("latin-1")))
    return rng.choice([["check", str(folder)], ["theory", "average", "--out", str(folder)]])


def annotation(rng: random.Random, place: Path, model: Path) -> list[str]:
    """An annotation that was stopped, or is finished, of which one file was changed."""
    (place / "text").mkdir()
    texts = {split: "\n".join(" ".join(["the cat", *words(rng)]) for _ in range(9)) for split in ("train", "valid")}
    hurt_one(rng, {place / "text" / f"{split}.txt": text for split, text in texts.items()})
    if rng.random() < 0.6:
        folder = Path(shutil.copytree(model / rng.choice(["annotated", "stopped"]), place / "out", dirs_exist_ok=True))
        shutil.copytree(model / "texts", place / "text", dirs_exist_ok=True)
        file = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"))
        if file.suffix == ".json":
            body = replaced(rng, json.loads(file.read_text())["body"])
            with suppress(ValueError):  # NaN, which such a file cannot hold: it is left whole
                write_json(file, body)
        else:
            file.write_bytes(hurt(rng, file.read_bytes().decode("latin-1")))
    command = ["corpus", "annotate", str(place / "text"), "--pipeline", str(model / "pipeline")]
    return [*command, "--engine", "here", "--out", str(place / "out")]


def request(rng: random.Random, place: Path, _: Path) -> list[str]:
    """What a served page sends."""
    odd = rng.random() < 0.7
    sites = rng.sample(["q@1", "v@all", "k@2.h1", *NASTY * odd], rng.randint(0, 3))
    switches = [[site, rng.choice(["zero", "mean", *NASTY * odd])] for site in sites]
    state = {"text": ["w1 w2"], "second": [], "switches": switches, "place": rng.choice([None, 0, 10**9 if odd else 1])}
    body = {"client": "a", "sequence": 1, "has": "", "state": state}
    body = replaced(rng, body) if odd else body
    (place / "body").write_bytes(as_json(rng, body))
    return [STATE, str(place / "body")]


def pairs(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Pairs of texts as JSON lines; one line in four has a value that was replaced."""
    rows = []
    for _ in range(rng.randint(1, 4)):
        one, other = ([f"w{rng.randint(1, 30)}" for _ in range(3)] for _ in range(2))
        body = {"base": " ".join(one), "donor": " ".join(other), "answers": {"base": " w1", "v": " w2"}, "kind": "k"}
        rows.append(json.dumps(replaced(rng, body) if rng.random() < 0.25 else body))
    text = "\n".join(rows)
    (place / "p.jsonl").write_bytes(hurt(rng, text) if rng.random() < 0.5 else text.encode())
    command = ["patch", str(model / "gpt2"), "--pairs", str(place / "p.jsonl"), "--sites", "v@1"]
    return [*command, "--out", str(place / "out")]


MORE: dict[str, Callable[[random.Random, Path, Path], list[str]]] = {
    "bitexts": bitext, "birth places": birth_places, "recipes": recipe, "several models": several, "runs": run,
    "annotations": annotation, "requests": request, "pairs": pairs,
}  # fmt: skip
ALL = {**KINDS, **MORE, **NEWEST}
