"""Grammars of what commands read, each with things done to it; and the tiny model that they are tried on."""

import json
import random
import string
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

NASTY = [
    "\x00", "\x01", "\x1b[2J", "\ufffe", "\u2028", "\ufeff", "\u202e", "é", "漢", "\U0001f600", "\t", "\r", "\n", " ", "",
    "NaN", "-1", "0", "1e999", str(10**30), "9" * 5000, "../../x", "/", "null", "[]", "{}", '"', "\\", "<script>", "%s", "x" * 5000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, -1, 0, 1, 10**9, 10**30, 1.5, float("nan"), float("inf"), -0.0, "", "a", "\x00", "x" * 4000, [], [1], [[]], {}, {"a": 1},
    [None], "q@1", "k@99", ["q@1", "q@1"], [-1], [10**20], "cuda", "../x",
]  # fmt: skip


def hurt(rng: random.Random, text: str) -> bytes:
    """A text with up to three things done to it, as bytes."""
    if rng.random() < 0.25:
        return text.encode("utf-8", "surrogatepass")
    content = text
    for _ in range(rng.randint(1, 3)):
        at, end = sorted((rng.randint(0, len(content)), rng.randint(0, len(content))))
        way = rng.randrange(7)
        if way == 0:
            content = content[:at] + rng.choice(NASTY) + content[at:]
        elif way == 1:
            content = content[:at] + content[end:]
        elif way == 2:
            content = content[:at] + content[at:end] * rng.randint(2, 4) + content[end:]
        elif way == 3:
            lines = content.split("\n")
            rng.shuffle(lines)
            content = "\n".join(lines)
        elif way == 4:
            content = content.replace(rng.choice("\t \n-:,0123"), rng.choice(NASTY), rng.randint(1, 5))
        elif way == 5:
            content = content[: max(0, at)]
        else:
            content = content.replace("\n", "\r\n")
    made = content.encode("utf-8", "surrogatepass")
    match rng.randrange(12):
        case 0:
            at = rng.randint(0, len(made))
            return made[:at] + bytes(rng.randrange(256) for _ in range(3)) + made[at:]
        case 1:
            return content.encode("utf-16", "surrogatepass")
        case 2:
            return b"\xef\xbb\xbf" + made
        case _:
            return made


def hurt_one(rng: random.Random, files: Mapping[Path, str]) -> None:
    """Write texts, one of which, drawn by chance, has things done to it: what lies behind the readers of the others is reached."""
    drawn = rng.choice(list(files))
    for path, text in files.items():
        path.write_bytes(hurt(rng, text) if path == drawn else text.encode("utf-8", "surrogatepass"))


def words(rng: random.Random, least: int = 1, most: int = 9) -> list[str]:
    """Some words, a few of them odd."""
    plain = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 7))) for _ in range(rng.randint(least, most))]
    return [rng.choice(NASTY) if rng.random() < 0.03 else word for word in plain]


def conllu(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A treebank's folder."""
    files = {}
    for split in ("train", "dev"):
        lines = []
        for _ in range(rng.randint(1, 6)):
            lines.append(f"# text = {' '.join(words(rng))}")
            for i, word in enumerate(words(rng, 3, 12), 1):
                feats = rng.choice(["_", "Number=Sing", "Number=Sing|Case=Nom"])
                cells = [
                    str(i),
                    word,
                    word,
                    rng.choice(["NOUN", "VERB", "_"]),
                    "X",
                    feats,
                    str(max(0, i - 1)),
                    "dep",
                    "_",
                    "_",
                ]
                lines.append("\t".join(cells))
            lines.append("")
        files[place / f"{split}.conllu"] = "\n".join(lines) + "\n"
    hurt_one(rng, files)
    return ["corpus", "show", str(place)]


def wikitext(rng: random.Random, place: Path, _: Path) -> list[str]:
    """WikiText's files."""
    files = {}
    for split in ("train", "valid"):
        lines = [" = Title = ", *(f" {' '.join(words(rng))} @-@ <unk> . " for _ in range(rng.randint(1, 8)))]
        files[place / f"wiki.{split}.tokens"] = "\n".join(lines)
    hurt_one(rng, files)
    return ["corpus", "show", str(place), *(["--reader", "wikitext"] if rng.random() < 0.5 else [])]


def plain(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Text files, shown, planned as a study, or read by a model."""
    files = {}
    for split in ("train", "valid"):
        text = "\n".join(" ".join(words(rng, 5, 30)) for _ in range(rng.randint(100, 300)))
        files[place / f"{split}.txt"] = text
    hurt_one(rng, files)
    corpus, out = ["--corpus", str(place)], ["--out", str(place / "out")]
    norms = ["norms", str(model / "gpt2"), *corpus, "--limit", "2", "--split", "valid", *out]
    return rng.choice([["plan", "quick", *corpus, "--only", "rewind,freeze"], ["corpus", "show", str(place)], norms])


def pharaoh(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Sentence pairs with links, aligned by a model."""
    count = rng.randint(1, 4)
    sides = [[[f"w{rng.randint(1, 30)}" for _ in range(rng.randint(1, 5))] for _ in range(count)] for _ in range(2)]
    links, base = [], rng.randint(0, 1)
    for s, t in zip(*sides, strict=True):
        links.append(
            " ".join(f"{rng.randrange(len(s)) + base}{rng.choice('-p')}{rng.randrange(len(t)) + base}" for _ in s)
        )
    hurt_at = rng.randrange(3)
    for i, (name, rows) in enumerate(
        (("s", [" ".join(r) for r in sides[0]]), ("t", [" ".join(r) for r in sides[1]]), ("g", links))
    ):
        text = "\n".join(rows) + "\n"
        (place / name).write_bytes(hurt(rng, text) if i == hurt_at else text.encode())
    gold = place / "g"
    if rng.random() < 0.4:
        gold = gold.rename(place / "g.talp")
    said = rng.choice([["--base", str(base)], ["--base", str(base)], [], ["--base", rng.choice(["0", "1", "7"])]])
    return ["align", str(model / "bart"), "--source", str(place / "s"), "--target", str(place / "t"), "--gold", str(gold), *said,
            "--out", str(place / "out")]  # fmt: skip


def replaced(rng: random.Random, body: Any) -> Any:
    """JSON-ready data with one value somewhere in it replaced, left out, or added to."""
    if isinstance(body, dict) and body and rng.random() < 0.75:
        key = rng.choice(list(body))
        match rng.randrange(8):
            case 0:
                return {k: v for k, v in body.items() if k != key}
            case 1:
                return body | {rng.choice(NASTY): rng.choice(VALUES)}
            case _:
                return body | {key: replaced(rng, body[key])}
    if isinstance(body, list) and body and rng.random() < 0.6:
        at = rng.randrange(len(body))
        return [*body[:at], replaced(rng, body[at]), *body[at + 1 :]]
    return rng.choice(VALUES)


def as_json(rng: random.Random, body: Any) -> bytes:
    """JSON, now and then with things done to its text."""
    text = json.dumps(body, indent=rng.choice([None, 1]))
    return hurt(rng, text) if rng.random() < 0.25 else text.encode()


def experiment(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A statement of an experiment."""
    body = json.loads((model / "experiment.json").read_text())
    for _ in range(rng.randint(0, 3)):
        body = replaced(rng, body)
    (place / "e.json").write_bytes(as_json(rng, body))
    return ["plan", str(place / "e.json")]


def copied(model: Path, name: str, place: Path) -> Path:
    """A copy of a tiny model."""
    import shutil

    return Path(shutil.copytree(model / name, place / name))


def config(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A model's configuration."""
    name = rng.choice(["gpt2", "bert", "bart"])
    folder = copied(model, name, place)
    file = folder / rng.choice(
        ["config.json"] * 5 + ["generation_config.json", "tokenizer_config.json", "tokenizer.json"]
    )
    if file.exists():
        body = json.loads(file.read_text())
        for _ in range(rng.randint(1, 2)):
            body = replaced(rng, body)
        file.write_bytes(as_json(rng, body))
    if rng.random() < 0.5:
        return ["check", str(folder)]
    return ["norms", str(folder), "--text", "w1 w2 w3", "--out", str(place / "out")]


def safetensors(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A model's weights, or the header of them."""
    folder = copied(model, "gpt2", place)
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    match rng.randrange(5):
        case 0:
            path.write_bytes(content[: rng.randint(0, len(content))])
        case 1:
            path.write_bytes(
                struct.pack("<Q", rng.choice([0, 1, length - 1, length + 1, 2**40, 2**64 - 1])) + content[8:]
            )
        case 2:
            header = replaced(rng, json.loads(content[8 : 8 + length]))
            made = json.dumps(header).encode()
            path.write_bytes(struct.pack("<Q", len(made)) + made + content[8 + length :])
        case 3:
            made = hurt(rng, content[8 : 8 + length].decode())
            path.write_bytes(struct.pack("<Q", len(made)) + made + content[8 + length :])
        case _:
            at = rng.randrange(8 + length, len(content) - 4)
            path.write_bytes(
                content[:at] + struct.pack("<f", rng.choice([float("nan"), float("inf"), 1e38])) + content[at + 4 :]
            )
    return ["norms", str(folder), "--text", "w1 w2 w3", "--out", str(place / "out")]


def sites(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Sites of an ablation."""
    odd = rng.random() < 0.6
    component = rng.choice(["q", "q+k", "v", "k", *["cross.v", "pre.k", "w"] * odd])
    text = f"{component}@{rng.choice(['1', '2', 'all', '1-2', *['2-1', '0', '9'] * odd])}"
    text += rng.choice(["", "", ".h1", ".h2", ".h1-2", *[".h9", ".h0", ".hx"] * odd])
    if odd and rng.random() < 0.6:
        text = hurt(rng, text).decode("utf-8", "replace")
    how = rng.choice(["zero", "zero", "mean", "mean", *["resample", "nothing"] * odd])
    return [
        "ablate",
        str(model / "gpt2"),
        "--text",
        "w1 w2 w3",
        f"--sites={text}",
        "--how",
        how,
        "--out",
        str(place / "out"),
    ]


def options(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Numbers and words as values of options."""
    value = rng.choice(
        [
            "-1",
            "0",
            "1",
            "2",
            "1e3",
            "nan",
            "inf",
            str(10**20),
            "9" * 5000,
            "x" * 4000,
            "",
            " ",
            "é",
            "\x1b[0m",
            "1,1",
            "0x1",
        ]
    )
    command = rng.choice([
        ["plan", "quick", "--seeds"], ["plan", "quick", "--epochs"], ["plan", "quick", "--only"], ["plan"], ["plan", "quick", "--sites"],
        ["theory", "average", "--out", str(place / "out"), "--beta"], ["theory", "average", "--out", str(place / "out"), "--dim"],
        ["similarity", str(model / "gpt2"), "--out", str(place / "out"), "--draws"],
        ["norms", str(model / "gpt2"), "--out", str(place / "out"), "--text", "w1 w2", "--limit"],
        ["norms", str(model / "gpt2"), "--out", str(place / "out"), "--text"],
        ["ablate", str(model / "gpt2"), "--out", str(place / "out"), "--text", "w1 w2", "--seed"],
        ["translate-train", "--out", str(place / "out"), "--seeds"], ["recall", "--recipe", "nothing", "--out"],
        ["study", "nothing", "--out"], ["corpus", "show"], ["check"], ["report"], ["claims"],
        ["explore", str(model / "gpt2"), "--out", str(place / "out")],
    ])  # fmt: skip
    return [*command, value]


def ledger(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A study's ledger with a right checksum and a wrong content."""
    import shutil

    from trisect.core.files import write_json

    folder = Path(shutil.copytree(model / "study", place / "out", dirs_exist_ok=True))
    body = json.loads((folder / "study.json").read_text())["body"]
    for _ in range(rng.randint(1, 2)):
        body = replaced(rng, body)
    try:
        write_json(folder / "study.json", body)
    except ValueError:  # NaN, which such a file cannot hold
        (folder / "study.json").write_text(json.dumps(body))
    return [rng.choice(["check", "report"]), str(folder)]


KINDS: dict[str, Callable[[random.Random, Path, Path], list[str]]] = {
    "CoNLL-U": conllu, "WikiText": wikitext, "plain text": plain, "Pharaoh and talp": pharaoh,
    "experiment.json": experiment,
    "a model's JSON": config, "safetensors": safetensors, "sites": sites, "options": options, "ledger": ledger,
}  # fmt: skip


def later(place: Path) -> None:
    """A finished run, a spaCy pipeline, and an annotation with it that is finished and one that was stopped."""
    from tests.contract.test_annotate import pipeline

    import trisect
    from trisect.cli import main as line
    from trisect.text.annotation_folder import shards_of

    line(["theory", "average", "--out", str(place / "run")], standalone_mode=False)
    pipeline(place / "pipeline", tagger=True)
    (place / "texts").mkdir()
    for split in ("train", "valid"):
        (place / "texts" / f"{split}.txt").write_text("\n".join(f"the cat sees the w{i} ." for i in range(9)))
    made = trisect.annotate(place / "texts", place / "pipeline", place / "annotated", engine="here")
    assert made.labels
    with mock.patch("trisect.text.annotate.land_corpus", side_effect=KeyboardInterrupt):
        try:
            trisect.annotate(place / "texts", place / "pipeline", place / "stopped", engine="here")
        except KeyboardInterrupt:
            assert shards_of(place / "stopped").is_dir()


def main() -> None:
    """Write the tiny models, an experiment and a study that has begun into a folder."""
    root = Path(__file__).parent.parent.parent
    sys.path.insert(0, str(root))
    from tests import tiny, tinyhf

    import trisect
    from trisect.core.spec import plain as stated
    from trisect.experiments.study.ledger import join_ledger
    from trisect.lab.folder import Folder

    place = Path(sys.argv[1])
    for name, made, specials in (
        ("gpt2", tinyhf.gpt2(), False),
        ("bert", tinyhf.bert(), True),
        ("bart", tinyhf.bart(), True),
    ):
        tinyhf.save(made, place / name, specials)
    tinyhf.save(tinyhf.gpt2(3), place / "second", False)
    later(place)
    (place / "experiment.json").write_text(json.dumps(stated(tiny.EXPERIMENT)))
    corpus = trisect.plan(place / "experiment.json").corpus.fingerprint
    (place / "study").mkdir()
    join_ledger(Folder(place / "study"), [tiny.EXPERIMENT], corpus)


if __name__ == "__main__":
    main()
