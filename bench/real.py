"""Every command of README's table on pretrained models of other kinds: what it ends in, its seconds and its memory.

REAL_MODELS="FOLDER=INPUT FOLDER=INPUT …" python bench/table.py real     INPUT is a file of texts, or a folder of sounds, with .txt beside
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

Row = dict[str, object]
COMMANDS = ("explore", "norms", "profile", "ablate", "patch", "similarity", "align", "erase")


def arguments(command: str, model: Path, data: Path, pairs: Path) -> list[str]:
    """The words after `trisect` for a command on a model, with a few texts or sounds as it takes them."""
    if command in ("similarity",):
        return [command, str(model)]
    if command == "align":
        return [command, str(model), "--source", str(pairs), "--target", str(pairs)]
    if command == "patch":
        return [command, str(model), "--task", "bindings", "--count", "8"]
    if command == "erase":
        return [command, str(model), "--corpus", "embedded", "--limit", "100"]
    if command == "profile":
        return [command, str(model), "--corpus", "sample", "--split", "test", "--limit", "100"]
    if data.is_dir():
        words = []
        for sound in sorted(data.glob("*.wav"))[: 1 if command == "explore" else 2]:
            said = (
                []
                if command == "explore"
                else ["--text", sound.with_suffix(".txt").read_text(encoding="utf-8").strip()]
            )
            words += ["--audio", str(sound), *said]
        return [command, str(model), *words]
    texts = data.read_text(encoding="utf-8").splitlines()[:8]
    if command == "explore":
        return [command, str(model), texts[0]]
    return [command, str(model), *(word for text in texts for word in ("--text", text))]


def run(words: list[str]) -> tuple[str, float, float]:
    """What a command ended in, in a sentence; CPU seconds; peak memory in MiB."""
    child = subprocess.Popen(
        [sys.executable, "-m", "trisect.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert child.stdout is not None
    output = child.stdout.read().decode(errors="replace")
    _, status, usage = os.wait4(child.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        ended = f"exit {code}: " + output.split("trisect: ")[-1].strip().replace("\n", " ")
    else:
        findings = json.loads(output[output.index("{") :])["findings"]
        ended = f"{len(findings)} findings" if findings else "a page"
    return ended, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def rows() -> list[Row]:
    """A row for each command and model that REAL_MODELS names."""
    made: list[Row] = []
    for entry in os.environ.get("REAL_MODELS", "").split():
        model, data = map(Path, entry.split("="))
        for command in COMMANDS:
            with tempfile.TemporaryDirectory() as place:
                pairs = Path(place) / "pairs"
                pairs.write_text("a b ||| a b\n" * 4, encoding="utf-8")
                words = arguments(command, model, data, pairs)
                ended, seconds, memory = run([*words, "--json", "--out", f"{place}/out"])
            what = f"`trisect {command}` on {model.name}"
            made.append({"what": what, "plain": "", "ours": f"{seconds:.1f} s, {memory:,.0f} MiB", "notes": [ended]})
            print(what, made[-1]["ours"], ended, file=sys.stderr, flush=True)
    return made
