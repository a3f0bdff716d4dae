"""What every command measures, as it was measured before: a number, a name or a verdict that changes shows here.

Each command runs on tiny models and texts; its tables, and what it replies as JSON, are compared with commands/NAME.json. Where
a change is meant, update the records, read which values the call says are others, and say in the commit why:

    python -m tests.golden.test_commands --update [NAME ...]

The same by pytest: TRISECT_GOLDEN=update python -m pytest tests/golden/test_commands.py -k NAME. That of `dissect`, which takes the
longest, is of the run of tests/contract/test_dissect.py, and is compared and updated there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests import interchanged, tinyhf
from tests.records import (
    Json,
    RowLimit,
    Tolerance,
    compare_records,
    dump_record,
    load_record,
    read_tables,
    record_table,
    simplify,
)
from tokenizers import models
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

import trisect
from trisect.cli import main
from trisect.report.sheet import Sheet

pytestmark = pytest.mark.usefixtures("undrawn")

RECORDS = Path(__file__).with_name("commands")
UPDATE = os.environ.get("TRISECT_GOLDEN") == "update"

# What only measures a model in float64 agrees to 1e-9 on any processor: 1e-5 is far from that, and below any change that matters;
# 1e-7 is for what is 0 but for rounding. What trains in float32 agrees to the bit on one processor. Another adds in another order,
# which training enlarges: these numbers are at least twice what came of holding PyTorch, MKL and oneDNN to AVX2, or to no vectors.
TOLERANCES = {
    "recall-and-ask/*": Tolerance(1e-4, 5e-5),  # AdamW divides a small gradient by its own size
    "dissect/tables/patch/*": Tolerance(2e-3, 1e-4),  # intervals of differences between logits of that model
    "dissect/*": Tolerance(3e-4, 1e-5),  # the same model, and one of each kind that is trained
    "study/*/p": Tolerance(0.2, 0.05),  # of losses that hardly differ, over two seeds
    "study/*/p_holm": Tolerance(0.2, 0.05),
    "study/tables/claims/*_family": Tolerance(1e-4, 1e-4),  # with two seeds hundreds of standard errors wide
    "study/tables/metrics/*": Tolerance(1e-5, 5e-7),  # losses: a float32 of 3 is no finer than 2e-7
    "study/tables/sites/*": Tolerance(1e-5, 5e-7),
    "study/*": Tolerance(1e-4, 1e-5),  # their differences, with intervals of 13 standard errors
    "study-roles/*": Tolerance(1e-5, 1e-6),
    "bench/*": Tolerance(1e-3, 1e-4),  # scores of models in float32, of which negatives are small differences
    "*": Tolerance(1e-5, 1e-7),
}

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SYLLABLES = (*LETTERS, *(consonant + vowel for consonant in LETTERS for vowel in "aeiou"))
BINDINGS = (
    *("Here", "they", "are", "has", "the", "So", "John", "Mary"),
    *("Tom", "James", "Anna", "ball", "book", "key", "cup", "hat"),
)
# words of the embedded corpus are cut into syllables, so that most are several tokens
PIECES = tuple(dict.fromkeys((*SPECIALS, *".,?:", *BINDINGS, *SYLLABLES, *(f"##{one}" for one in SYLLABLES))))
SENTENCE = "teri ga kivol ."

SITES = [f"{component}@{layer}" for layer in (1, 2) for component in "qkv"]
# few large steps of plain descent: a step of AdamW, or a hundred, would make of rounding what no tolerance could tell from a change
STUDY = {
    "name": "tiny",
    "text": {"corpus": "embedded", "train_tokens": 1_200, "valid_tokens": 400},
    "model": {"width": 8, "layers": 2, "heads": 2, "feedforward": 8, "dropout": 0.1},
    "training": {
        "epochs": 2, "columns": 50, "eval_columns": 4, "window": 12, "train_sample": 600, "optimizer": "sgd", "rate": 1.0, "warmup": 2,
    },
    "seeds": [1, 2],
    "attack": {"sites": ["q@1", "v@1"], "labels": ["pos"]},
    "control": {"sites": ["q@1"], "labels": ["pos"], "variants": ["control", "bounded"]},
    "rewind": {"sites": ["q@1", "k@2", "v@1-2"], "points": 5},
    "freeze": {"sites": SITES},
    "tie": {"sites": ["q+k@1-2"], "identity": ["q@1"], "narrow": False},
    "probe": {"sites": ["q@1", "v@1"], "labels": ["pos"], "kinds": ["linear"]},
    "erase": {"sites": ["q@1", "v@2"], "labels": ["pos"], "draws": 2},
    "ablate": {"sites": SITES},
}  # fmt: skip
ROLES = {
    "name": "roles-tiny",
    "text": {"corpus": "roles", "train_tokens": 7_680, "valid_tokens": 1_200},
    "model": {"width": 8, "layers": 2, "heads": 1, "feedforward": 8, "dropout": 0.0, "idle": [1]},
    "training": {
        "epochs": 1, "columns": 64, "eval_columns": 100, "window": 6, "train_sample": 1_536, "optimizer": "adamw", "rate": 5e-3,
        "warmup": 50,
    },
    "seeds": [1, 2],
    "attack": None,
    "rewind": {"sites": ["k@2"], "points": 2, "midstage": False},
    "freeze": {"sites": SITES[3:]},
    "erase": {"sites": ["q@2"], "labels": ["question.a"], "draws": 2},
    "interchange": {"sites": SITES, "pairs": 50},
}  # fmt: skip
BITEXT = (
    ("the big dog", "le gros chien", "1-1 2-3 3-2"),
    ("a dog", "un chien", "1-1 2p2"),
    ("the dog eats", "le chien mange", "1-1 2-2 3-3"),
    ("a cat eats", "un chat mange", "1-1 2-2 3p3"),
) * 9
TRANSLATION = {"width": 16, "inner": 16, "layers": 1, "heads": 2, "warmup_steps": 2}
RECALL = {
    "width": 32, "heads": 2, "layers": 1, "pretraining_epochs": 1, "epochs_without": 3, "epochs_after": 2, "invented": 20, "batch": 200,
    "pretraining_batch": 64, "warmup_tokens": 512, "rate": 0.01, "pretraining_rate": 0.01,
}  # fmt: skip

# measures: the words of each command; {} is the folder of its models and texts
MEASURES = {
    "norms": "norms {}/bert --corpus embedded --limit 32",
    "norms-feed-forward": "norms {}/gpt2 --corpus embedded --limit 12 --block feed-forward",
    "norms-of-models": "norms {}/bert {}/bert-2 --corpus embedded --limit 8 --units models",
    "profile": "profile {}/bert --corpus embedded --limit 60 --labels pos,position,previous --causal 6",
    "ablate": "ablate {}/bert --corpus embedded --limit 20 --how mean --per head",
    "ablate-of-models": "ablate {}/gpt2 {}/steps/step1 --corpus embedded --limit 8 --how resample --units models",
    "patch": "patch {}/gpt2 --task bindings --count 10 --how both",
    "patch-pairs": "patch {}/recaller --pairs {}/pairs.jsonl --per head",
    "compose": "compose {}/gpt2 --task bindings --count 6 --exact 5",
    "quantise": "quantise {}/gpt2 --corpus embedded --limit 12 --bits 2,4,8 --memory 3",
    "bench": "bench --worlds roles --worlds composition --seeds 1,2 --pairs 2 --methods contribution --methods composition "
    "--methods contrast --methods atp_star --methods patching",
    "similarity": "similarity {}/bert",
    "erase": "erase {}/bert --corpus embedded --limit 10 --draws 2 --sites k@1 v@2",
    "rewind": "rewind {}/steps --initial step1 --final step3 --stages step2 --corpus embedded --limit 6 --points 5 --sites k@1 v@2",
    "compare": "compare {}/bert {}/bert-2 --corpus embedded --limit 8 --what norms,ablate",
    "theory": "theory --samples 10000",
}
LIMITS = {
    **dict.fromkeys(("norms-of-models", "compare", "compose", "quantise"), RowLimit(60, 20)),
    **dict.fromkeys(("dissect", "bench"), RowLimit(50, 8)),
}
REPORTS = ("norms", "ablate-of-models")  # whose page is made again


def make_bert() -> PreTrainedModel:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
        )
    )  # fmt: skip


def make_gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(PIECES), n_embd=16, n_layer=2, n_head=4, n_positions=48, n_inner=24, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=2, eos_token_id=3,
        )
    )  # fmt: skip


def save(model: PreTrainedModel, folder: Path, seed: int, specials: bool = True) -> None:
    """Save a model in float64 with weights and biases that NumPy draws, which no processor draws differently."""
    draw = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.double().parameters():
            spread, mean = (
                (0.4, 0.0) if parameter.dim() > 1 else (0.1, float(parameter.mean() > 0.5))
            )  # 1: a norm's scale
            parameter.copy_(torch.from_numpy(mean + spread * draw.standard_normal(tuple(parameter.shape))))
    model.save_pretrained(folder)
    tinyhf.tokenizer(specials, PIECES, 48, models.WordPiece).save_pretrained(folder)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, texts and settings that commands are given."""
    folder = tmp_path_factory.mktemp("golden")
    save(make_bert(), folder / "bert", 1)
    save(make_bert(), folder / "bert-2", 2)
    save(make_gpt2(), folder / "gpt2", 3, False)
    for step in (1, 2, 3):
        save(make_gpt2(), folder / "steps" / f"step{step}", 3 + step, False)
    interchanged.recaller().save_pretrained(folder / "recaller")
    interchanged.tokenizer().save_pretrained(folder / "recaller")
    pairs = [
        {"base": base.text, "donor": donor.text, "answers": interchanged.predicted(base, donor)}
        for base, donor in interchanged.facts(12)
    ]
    sides = dict(zip(("t.en", "t.fr", "t.talp"), zip(*BITEXT, strict=True), strict=True))
    settings = {"study.json": [json.dumps(STUDY)], "roles.json": [json.dumps(ROLES)]}
    for name, lines in (settings | sides | {"pairs.jsonl": map(json.dumps, pairs)}).items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def call(*words: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def reply(*words: object) -> Json:
    """The JSON that a command prints, below what it did meanwhile."""
    return json.loads(call(*words, "--json").strip().splitlines()[-1])


def options(settings: dict[str, Any]) -> list[str]:
    """Settings of a recipe in words."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def record_folder(out: Path, content: Json = None, limit: RowLimit | None = None) -> Json:
    """The tables of a folder, and a reply without its sentence and the findings that are a claim's verdict, which are in a table."""
    if isinstance(content, dict) and "records" in content:
        records = [one for one in content["records"] if one.get("claim") is None]
        content = {name: value for name, value in content.items() if name != "answer"} | {"records": records}
    if isinstance(content, dict) and "composition" in content:  # every path, which the table paths has too
        content = {**content, "composition": content["composition"][:8]}
    tables = {name: record_table(table, limit or RowLimit()) for name, table in read_tables(out).items()}
    return {"tables": tables, "reply": simplify(content)}


def check_again(out: Path, record: Json, limit: RowLimit | None = None) -> None:
    """Make the page again, of a study the tables too: the folder is then as sound, and what it holds is the same."""
    call("report", out)
    assert record_folder(out, None, limit)["tables"] == record["tables"]


def run_measure(name: str) -> Callable[[Path, Path], Json]:
    def run(inputs: Path, out: Path) -> Json:
        record = record_folder(
            out, reply(*MEASURES[name].replace("{}", str(inputs)).split(), "--out", out), LIMITS.get(name)
        )
        if name in REPORTS:
            check_again(out, record, LIMITS.get(name))
        call("check", out)
        return record

    return run


def run_explore(inputs: Path, out: Path) -> Json:
    """What the page holds in numbers beside its maps: the largest of each head's."""
    reply("explore", inputs / "bert", SENTENCE, "--out", out / "page.html")
    page = re.search(r'id="manifest">(.*?)</script>', (out / "page.html").read_text(encoding="utf-8"), re.DOTALL)
    assert page is not None
    manifest = json.loads(page[1])
    return {name: simplify(manifest[name]) for name in ("sides", "layers")}


def run_serve(inputs: Path, out: Path) -> Json:
    """What changes in a sentence where v of a head is zero and q of a layer is its mean."""
    page = trisect.serve(inputs / "gpt2", wait=False)
    try:
        state = {"text": [SENTENCE], "second": [], "switches": [["v@1.h2", "zero"], ["q@2", "mean"]], "place": None}
        body = json.dumps({"client": "a", "sequence": 1, "has": "", "state": state}).encode()
        question = urllib.request.Request(f"{page.address}answer", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(question, timeout=300) as answer:
            content = answer.read()
    finally:
        page.stop()
    words = json.loads(content[4 : 4 + int.from_bytes(content[:4], "big")])
    return {name: simplify(words[name]) for name in ("switches", "moved", "predictions")}


def run_check(inputs: Path, out: Path) -> Json:
    return {name: simplify(reply("check", inputs / name)) for name in ("bert", "gpt2", "recaller")}


def run_corpus_show(inputs: Path, out: Path) -> Json:
    return simplify(json.loads(call("corpus", "show", "embedded", "--json")))


def run_plan(inputs: Path, out: Path) -> Json:
    """The runs of a preset and of a file, and what they would take."""
    return {
        Path(what).stem: simplify(reply("plan", what, "--workers", 1))
        for what in ("roles-quick", inputs / "study.json")
    }


def run_study(name: str) -> Callable[[Path, Path], Json]:
    def run(inputs: Path, out: Path) -> Json:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trisect.experiments.study.page.page", lambda tables, about: Sheet("t", "k", "l", ()))
            record = record_folder(out, reply("study", inputs / f"{name}.json", "--workers", 0, "--out", out))
            shutil.rmtree(out / "tables")
            check_again(out, record)
        call("check", out)
        return record

    return run


def run_align(inputs: Path, out: Path) -> Json:
    """The losses of two small translation models, and the alignment by both."""
    sides = ("--source", inputs / "t.en", "--target", inputs / "t.fr")
    recipe = options(TRANSLATION | {"pieces": 60, "batch": 8, "epochs": 3})
    reply("translate-train", *sides, *recipe, "--seeds", 2, "--workers", 0, "--out", out / "models")
    trial = ("--trial", inputs / "t.en", inputs / "t.fr", inputs / "t.talp")
    seeds = (out / "models" / "seed-1", out / "models" / "seed-2")
    return record_folder(
        out, reply("align", *seeds, *sides, "--gold", inputs / "t.talp", *trial, "--out", out / "align")
    )


def run_recall(inputs: Path, out: Path) -> Json:
    """Models with and without pretraining, and the answer of one to one question."""
    record = record_folder(out, reply("recall", "--workers", 0, *options(RECALL), "--out", out))
    question = (out / "models" / "pretrained-1", "Where was Numo Temil born?")
    return {**record, "answer": simplify(reply("ask", *question, "--risk", 1))}


COMMANDS: dict[str, Callable[[Path, Path], Json]] = {
    "study": run_study("study"),  # the longest first, for workers that share the tests
    "study-roles": run_study("roles"),
    "recall-and-ask": run_recall,
    "translate-train-and-align": run_align,
    **{name: run_measure(name) for name in MEASURES},
    "explore": run_explore,
    "serve": run_serve,
    "check": run_check,
    "corpus-show": run_corpus_show,
    "plan": run_plan,
}
EXTRAS = {"erase": "concept_erasure", "study": "concept_erasure", "study-roles": "concept_erasure", "serve": "uvicorn"}


def check_record(name: str, record: Json, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare what a command measured with its record; update the record where that is asked for."""
    path = RECORDS / f"{name}.json"
    before = load_record(path.read_text(encoding="utf-8")) if path.exists() else {}
    differences = list(compare_records(before, record, TOLERANCES, name))
    if UPDATE and differences:
        path.write_text(f"{dump_record(record)}\n", encoding="utf-8")
        with capsys.disabled():
            print(f"\n{path.name} is updated:", *differences, sep="\n  ")
    else:
        assert not differences, "\n".join(differences[:50])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_measures_what_it_did(name, inputs, tmp_path, capsys):
    if name in EXTRAS and importlib.util.find_spec(EXTRAS[name]) is None:
        pytest.skip(f"needs {EXTRAS[name]}")
    (tmp_path / "out").mkdir()
    check_record(name, COMMANDS[name](inputs, tmp_path / "out"), capsys)


def test_every_record_is_of_a_command_and_all_are_small():
    assert {path.stem for path in RECORDS.iterdir()} == {"dissect", *COMMANDS}
    assert sum(path.stat().st_size for path in RECORDS.iterdir()) < 400_000


if __name__ == "__main__":
    if sys.argv[1:2] != ["--update"]:
        sys.exit(__doc__)
    tests = [f"{__file__}::test_a_command_measures_what_it_did[{name}]" for name in sys.argv[2:]] or [__file__]
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    sys.exit(subprocess.run(command, env=os.environ | {"TRISECT_GOLDEN": "update"}, check=False).returncode)
