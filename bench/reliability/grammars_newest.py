"""Grammars of what came last: several models, comparisons, images, erasures, quantised models, small studies, replies as JSON."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from grammars import NASTY, VALUES, as_json, copied, hurt, hurt_one, replaced

SPLITS = ("train", "valid", "test")
MODELS = ("gpt2", "second", "bert", "bart", "images")
ODD = [*NASTY, *(str(value) for value in VALUES)]


def chance(rng: random.Random, sound: list[str], odd: float = 0.1) -> str:
    """One of what is sound, or now and then anything."""
    return rng.choice(ODD if rng.random() < odd else sound)


def some_options(rng: random.Random, options: dict[str, list[str]], most: int = 3, odd: float = 0.08) -> list[str]:
    """Up to so many options with values."""
    chosen = rng.sample(list(options), rng.randint(0, min(most, len(options))))
    return [f"{name}={chance(rng, options[name], odd)}" for name in chosen]


def bank(rng: random.Random, place: Path, whole: float = 0.7) -> str:
    """A treebank of words that the tiny models know; now and then one file of it is damaged."""
    (place / "bank").mkdir()
    files = {}
    for split in SPLITS:
        rows: list[str] = []
        for i in range(24):
            for j in range(5):
                word, tag = f"w{(7 * i + j) % 40}", ("NOUN", "VERB", "ADJ")[(7 * i + j) % 3]
                rows.append("\t".join([str(j + 1), word, word, tag, tag, "_", str(j), ("dep", "obj")[j % 2], "_", "_"]))
            rows.append("")
        files[place / "bank" / f"{split}.conllu"] = "\n".join(rows) + "\n"
    if rng.random() < whole:
        for path, text in files.items():
            path.write_text(text)
    else:
        hurt_one(rng, files)
    return str(place / "bank")


def units(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Several models, with options of several."""
    there = [str(model / name) for name in MODELS] + [str(place / "nothing"), str(model / "steps"), str(model)]
    sound = [str(model / "gpt2"), str(model / "second")]
    models = sound if rng.random() < 0.7 else rng.choices(there, k=rng.randint(2, 4))
    if rng.random() < 0.25:
        models = [f"{model / 'steps'}@{chance(rng, ['step0', 'step1'], 0.2)}" for _ in range(2)]
    text = ["--text", "w1 w2 w3"]
    command = rng.choice([
        ["norms", *text], ["ablate", "--sites", "v@1", *text], ["similarity", "--draws", "50"],
        ["patch", "--base", "w1 w2", "--donor", "w1 w4", "--sites", "v@1"],
        ["erase", "--corpus", bank(rng, place, 0.9), "--draws", "1", "--sites", "v@1", "--limit", "4"],
        ["profile", "--corpus", str(place / "bank"), "--words", "100", "--draws", "200"],
    ])  # fmt: skip
    workers = ["1", "2"] if rng.random() < 0.2 else ["0"]
    options = {
        "--units": ["models", "revisions"], "--workers": workers, "--losses": ["1", "3"], "--engine": ["here"], "--seed": ["0", "7"],
        "--window": ["4", "24"], "--dtype": ["float64", "float32", "bfloat16"], "--device": ["cpu", "auto"], "--per-gpu": ["1"],
        "--address": ["auto"], "--scratch": [str(place / "scratch")], "--revision": ["step0"], "--limit": ["1", "9"],
    }  # fmt: skip
    return [command[0], *models, *command[1:], *some_options(rng, options), "--out", str(place / "out")]


def comparison(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Two models side by side, by some of the parts."""
    models = ["gpt2", "second"] if rng.random() < 0.75 else rng.choices(MODELS, k=rng.randint(1, 3))
    rows = [{"base": "w1 w2", "donor": "w1 w3", "answers": {"base": "w4", "v": "w5"}} for _ in range(2)]
    text = "\n".join(json.dumps(replaced(rng, row) if rng.random() < 0.3 else row) for row in rows)
    (place / "p.jsonl").write_bytes(hurt(rng, text) if rng.random() < 0.4 else text.encode())
    parts = rng.sample(["norms", "similarity", "ablate", "profile", "patch"], rng.randint(1, 3))
    if rng.random() < 0.2:
        parts.append(rng.choice(NASTY))
    options = {
        "--task": ["bindings"], "--pairs": [str(place / "p.jsonl")], "--limit": ["2", "9"], "--split": list(SPLITS), "--seed": ["1"],
        "--reader": ["conllu"], "--dtype": ["float64"], "--revision": ["main"], "--device": ["cpu"],
    }  # fmt: skip
    given = ["--corpus", bank(rng, place, 0.7)] if rng.random() < 0.6 else ["--text", chance(rng, ["w1 w2 w3"])]
    what = [f"--what={','.join(parts)}"] if rng.random() < 0.8 else []
    words = ["compare", *(str(model / name) for name in models), *given, *what, *some_options(rng, options, 3, 0.15)]
    return [*words, "--out", str(place / "out")]


def image(rng: random.Random, place: Path, model: Path) -> list[str]:
    """An image beside a text, or alone; the file, or the processor's own, was changed."""
    folder, picture = model / "images", place / rng.choice(["p.png", "p.gif", "p.txt"])
    content = (model / rng.choice(["noise.png", "noise.jpeg", "noise.gif", "noise.tiff"])).read_bytes()
    if rng.random() < 0.5:
        content = hurt(rng, content.decode("latin-1")) if rng.random() < 0.3 else flipped(rng, content)
    picture.write_bytes(content)
    if rng.random() < 0.4:
        folder = copied(model, "images", place)
        names = ["processor_config.json", "preprocessor_config.json", "config.json", "tokenizer_config.json"]
        file = folder / rng.choice([name for name in names if (folder / name).exists()])
        file.write_bytes(as_json(rng, replaced(rng, json.loads(file.read_text()))))
    if rng.random() < 0.1:
        folder = model / rng.choice(["gpt2", "bert", "bart"])
    text = [chance(rng, ["w1 <image> w2", "w1 w2"], 0.15)] * (rng.random() < 0.8)
    more = [f"--image={chance(rng, [str(picture), str(place), str(model / 'noise.png')], 0.5)}"] * (rng.random() < 0.3)
    own = ["--json"] * (rng.random() < 0.2)
    return ["explore", str(folder), *text, f"--image={picture}", *more, *own, "--out", str(place / "out" / "page.html")]


def flipped(rng: random.Random, content: bytes) -> bytes:
    """Bytes of which some are others, or the end is gone."""
    made = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made[: rng.randint(0, len(made))] if rng.random() < 0.3 else made)


def erasure(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Erasing a label of a treebank that may be damaged."""
    options = {
        "--labels": ["pos", "dep", "word"], "--draws": ["1", "3"], "--per": ["layer", "head"], "--whose": ["own", "next"],
        "--sites": ["v@1", "q@2.h1"], "--split": list(SPLITS), "--limit": ["2", "9"], "--seed": ["3"], "--window": ["6"],
        "--dtype": ["float64", "bfloat16"],
    }  # fmt: skip
    name = rng.choice(["gpt2", "gpt2", "gpt2", "bert", "bart", "images"])
    own = ["--no-shrinkage"] * (rng.random() < 0.6) + ["--json"] * (rng.random() < 0.2)
    words = ["erase", str(model / name), "--corpus", bank(rng, place), *own, *some_options(rng, options, 4, 0.15)]
    return [*words, "--out", str(place / "out")]


def profile(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A profile of a treebank that may be damaged."""
    sound = ["pos", "dep", "position", "pos,dep"]  # of words that repeat, few others are held apart
    labels = [chance(rng, [*sound, *sound, "word", "frequency", "head"], 0.1)]
    options = {
        "--words": ["100", "110"], "--draws": ["200", "300"], "--per": ["layer", "head"], "--causal": ["2"], "--seed": ["1"],
        "--split": list(SPLITS), "--limit": ["9"], "--checkpoints": ["step0,step1", "step0"], "--window": ["6"],
    }  # fmt: skip
    which = rng.choice(["gpt2", "gpt2", "bert", "bart", "steps"])
    own = ["--mlp"] * (rng.random() < 0.1) + ["--json"] * (rng.random() < 0.2)
    words = ["profile", str(model / which), "--corpus", bank(rng, place, 0.7), f"--labels={','.join(labels)}", *own]
    return [*words, "--words=100", "--draws=200", *some_options(rng, options, 3, 0.15), "--out", str(place / "out")]


def patches(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Options of activation patching."""
    texts = ["w1 w2 w3", "w1 w4 w3", "w1"]
    given = [f"--base={chance(rng, texts, 0.15)}", f"--donor={chance(rng, texts, 0.15)}"]
    given = (
        given if rng.random() < 0.7 else [f"--task={chance(rng, ['bindings'], 0.1)}", f"--count={chance(rng, ['2'])}"]
    )
    options = {
        "--sites": ["v@1", "q@all", "k@2.h1"], "--per": ["layer", "head"], "--positions": ["all", "last", "differ", "1", "1,2"],
        "--path": ["all", "direct"], "--how": ["denoise", "noise", "both"], "--seed": ["1"], "--window": ["6"],
        "--count": ["2"], "--dtype": ["float64"],
    }  # fmt: skip
    own = ["--answered"] * (rng.random() < 0.2) + ["--json"] * (rng.random() < 0.2)
    name = rng.choice(["gpt2", "gpt2", "gpt2", "bert", "bart"])
    return ["patch", str(model / name), *given, *own, *some_options(rng, options, 4, 0.2), "--out", str(place / "out")]


def rewinding(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Checkpoints of a model, one of which may be another model or damaged."""
    folder = Path(shutil.copytree(model / "steps", place / "steps"))
    if rng.random() < 0.4:
        file = folder / rng.choice(["step0", "step1"]) / rng.choice(["config.json", "tokenizer.json"])
        file.write_bytes(as_json(rng, replaced(rng, json.loads(file.read_text()))))
    if rng.random() < 0.2:
        shutil.copytree(model / "bert", folder / "step0", dirs_exist_ok=True)
    options = {
        "--initial": ["step0"], "--final": ["step1"], "--stages": ["step0,step1", "step0"], "--sites": ["v@1", "q@all"],
        "--points": ["2", "5"], "--epsilon": ["0.1", "0"], "--window": ["6"], "--seed": ["1"], "--dtype": ["float64"],
    }  # fmt: skip
    needed = ["--initial=step0", "--final=step1", "--points=3"]
    own = ["--exact"] * (rng.random() < 0.3) + ["--json"] * (rng.random() < 0.2)
    words = ["rewind", str(folder), *needed, *own, *some_options(rng, options, 3), "--text", "w1 w2 w3"]
    return [*words, "--out", str(place / "out")]


QUANTISATIONS = (
    {"quant_method": "bitsandbytes", "load_in_8bit": True}, {"quant_method": "bitsandbytes", "load_in_4bit": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128}, {"quant_method": "awq", "bits": 4}, {"quant_method": "fp8"},
    {"quant_method": "torchao", "quant_type": "int8_weight_only"}, {"quant_method": "compressed-tensors", "format": "x"},
    {"quant_method": "hqq"}, {"quant_method": "quanto", "weights": "int8"}, {"quant_method": "nosuch"}, {}, {"bits": 4},
    {"quant_method": "mxfp4"}, {"quant_method": "eetq", "weights": "int8"}, {"quant_method": "aqlm"},
)  # fmt: skip


def quantisation(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A model that says it is quantised, or an adapter."""
    folder = copied(model, rng.choice(["gpt2", "bert", "bart"]), place)
    if rng.random() < 0.7:
        body = json.loads((folder / "config.json").read_text())
        says = rng.choice(QUANTISATIONS)
        body["quantization_config"] = replaced(rng, says) if rng.random() < 0.4 else says
        (folder / "config.json").write_bytes(as_json(rng, body))
    else:
        says = {
            "peft_type": "LORA",
            "base_model_name_or_path": str(model / "gpt2"),
            "r": 2,
            "target_modules": ["c_attn"],
        }
        (folder / "adapter_config.json").write_bytes(as_json(rng, replaced(rng, says) if rng.random() < 0.7 else says))
        for name in ("config.json", "model.safetensors"):
            if rng.random() < 0.7:
                (folder / name).unlink()
        if rng.random() < 0.5:
            shutil.copyfile(model / "gpt2" / "model.safetensors", folder / "adapter_model.safetensors")
    if rng.random() < 0.4:
        return ["check", str(folder), *(["--json"] * (rng.random() < 0.5))]
    dtype = [f"--dtype={chance(rng, ['float16', 'bfloat16', 'float64'])}"] * (rng.random() < 0.3)
    return ["norms", str(folder), "--text", "w1 w2 w3", *dtype, "--out", str(place / "out")]


def small_study(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A statement of an experiment that is run, or planned, with options; three in ten are left whole."""
    name = rng.choice(["least.json", "least.json", "planted.json"])
    body = json.loads((model / name).read_text())
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        body = replaced(rng, body)
    file = place / "e.json"
    file.write_bytes(as_json(rng, body))
    options = {
        "--seeds": ["1,", "2-2"], "--epochs": ["1"], "--sites": ["q@1", "k@2"], "--only": ["rewind", "freeze", "attack"],
        "--fleet": ["1", "4"], "--corpus": ["embedded"],
    }  # fmt: skip
    if name == "planted.json" or rng.random() < 0.5:
        more = {**options, "--workers": ["1", "2"], "--gpus": ["0", "1"]}
        own = ["--json"] * (rng.random() < 0.5) + ["--runs"] * (rng.random() < 0.5) + ["--force"] * (rng.random() < 0.2)
        return ["plan", str(file), *some_options(rng, more), *own]
    more = {**options, "--precision": ["float32"], "--losses": ["1"], "--engine": ["here"]}
    own = ["--json"] * (rng.random() < 0.3) + ["--quiet"] * (rng.random() < 0.3)
    return ["study", str(file), "--workers", "0", *some_options(rng, more), *own, "--out", str(place / "out")]


def asked(rng: random.Random, place: Path, model: Path) -> list[str]:
    """A question to a model trained by recall, one of whose files may be damaged."""
    folder = Path(shutil.copytree(model / "recalled", place / "recalled"))
    if rng.random() < 0.6:
        file = rng.choice(sorted(folder.rglob("*.json")))
        file.write_bytes(as_json(rng, replaced(rng, json.loads(file.read_text()))))
    options = {"--risk": ["0.1", "0", "1", "0.5"]}
    which = rng.choice([*sorted((folder / "models").glob("*")), folder]) if rng.random() < 0.9 else model / "gpt2"
    question = chance(rng, ["Where was Ann Lee born?", "?", "w1"])
    return [
        "ask",
        str(which),
        *some_options(rng, options, 1, 0.2),
        *(["--json"] * (rng.random() < 0.5)),
        "--",
        question,
    ]


def own_copy(folder: Path, to: Path) -> Path:
    """A copy of a folder for a command that writes in it; a place without one where there is none."""
    return Path(shutil.copytree(folder, to, dirs_exist_ok=True)) if folder.is_dir() else to


def reply(rng: random.Random, place: Path, model: Path) -> list[str]:
    """Commands whose reply is JSON, which is read."""
    gpt2, out, odd = str(model / "gpt2"), ["--out", str(place / "out")], chance(rng, ["1", "2"], 0.4)
    text = ["--text", chance(rng, ["w1 w2"], 0.4)]
    return [*rng.choice([
        ["norms", gpt2, *text, *out], ["ablate", gpt2, *text, "--sites", "v@1", *out, f"--seed={odd}"],
        ["similarity", gpt2, *out, "--draws=50", f"--seed={odd}"], ["theory", "average", *out, f"--dim={odd}"],
        ["norms", gpt2, str(model / "second"), *text, *out], ["claims"], ["plan", "quick", f"--seeds={odd}"],
        ["check", gpt2], ["check", str(model / "run")], ["corpus", "show", chance(rng, ["embedded", bank(rng, place)], 0.3)],
        ["report", str(own_copy(model / chance(rng, ["study", "run"], 0.2), place / "out"))],
        ["explore", gpt2, text[1], "--out", str(place / "out" / "p.html")],
        ["align", str(model / "bart"), "--source", str(model / "s"), "--target", str(model / "t"), *out],
        ["patch", gpt2, "--base", "w1 w2", "--donor", "w1 w3", "--sites=v@1", *out],
    ]), "--json"]  # fmt: skip


def prepare(place: Path) -> None:
    """What these need beside the tiny models that are there: images and a model of them, checkpoints, statements, a recall."""
    import torch
    from common import ONE
    from PIL import Image
    from prepared import RECALL, small_roles, some
    from tests import tinyhf, towers, zoo
    from tests.contract.test_images import processor

    from trisect.cli import main
    from trisect.core.spec import plain

    model = zoo.sharpen(towers.llava().model)
    getattr(model, "save_pretrained")(place / "images")  # noqa: B009
    processor().save_pretrained(place / "images")
    noise = torch.randint(0, 255, (20, 30, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for kind in ("png", "jpeg", "gif", "tiff"):
        Image.fromarray(noise.numpy()).save(place / f"noise.{kind}")
    for name, number in (("step0", 1), ("step1", 2)):
        tinyhf.save(tinyhf.gpt2(number), place / "steps" / name, False)
    (place / "least.json").write_text(json.dumps(plain(ONE)))
    (place / "planted.json").write_text(json.dumps(plain(small_roles())))
    (place / "s").write_text("w1 w2\n")
    (place / "t").write_text("w3 w4\n")
    words = ["recall", "--seeds", "1,", "--workers", "0", *some(RECALL), "--out", str(place / "recalled")]
    main(words, standalone_mode=False)


NEWEST: dict[str, Callable[[random.Random, Path, Path], list[str]]] = {
    "units": units, "comparisons": comparison, "images": image, "erasures": erasure, "profiles": profile, "patches": patches,
    "rewinding": rewinding, "quantised": quantisation, "small studies": small_study, "questions": asked, "replies": reply,
}  # fmt: skip

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    prepare(Path(sys.argv[1]))
