"""What handles of q, k and v of other libraries are, over small models of many kinds: rows of docs/audits.csv, and their counts.

PYTHONPATH=. python bench/audits.py [KIND …]     needs the extra `peers`; kinds of tests/zoo.py, each in a process of its own; those
                                                 that the table has are left as they are where none is named
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import torch
from tests import tinyhf, zoo

import trisect
from trisect.core.errors import TrisectError

TABLE = Path(__file__).parents[1] / "docs" / "audits.csv"
COLUMNS = ("library", "version", "model", "handle", "site", "fires", "tensor", "heads", "write", "axes", "reason")
PACKAGES = {"transformer_lens": "transformer-lens", "pyvene": "pyvene", "nnterp": "nnterp"}
HANDLES = {
    f"transformer_lens:blocks.1.attn.hook_{name}": f"{name[-1]}@2" for name in ("q", "k", "v", "rot_q", "rot_k")
} | {f"pyvene:1.{head}{name}_output": f"{name[0]}@2" for head in ("", "head_") for name in ("query", "key", "value")}


def audit_kind(kind: str) -> list[dict[str, str]]:
    """A row for each handle of a small model with sharpened random weights; empty where trisect does not read it."""
    inputs = {"input_ids": torch.tensor([[7, 8, 9, 10, 11, 12, 13, 14]])}
    with tempfile.TemporaryDirectory() as folder:
        module = zoo.build(kind)
        module.config.architectures = [type(module).__name__]
        module.save_pretrained(folder)
        tinyhf.tokenizer(False).save_pretrained(folder)
        try:
            model = trisect.load(folder, inputs=inputs)
        except TrisectError:
            return []
        rows, places = [], zip(model.proof.weights, model.projections(), strict=True)
        maps = [(w.module, p, of.origins[p].parameter) for w, of in places if of.address.layer == 2 for p in "qkv"]
        names = [(name.removesuffix(".weight")[len(module) :], part) for module, part, name in maps if name]
        inner = [(f"nnterp:layers.1.self_attn{name}.output", f"{part}@2") for name, part in names]
        for handle, site in [*HANDLES.items(), *inner]:
            library, _, name = handle.partition(":")
            row = dict.fromkeys(COLUMNS, "") | {"library": library, "version": version(PACKAGES[library])}
            row |= {"model": kind, "handle": name, "site": site}
            try:
                audit = trisect.audit(model, handle, site=site, text=inputs)
            except TrisectError as error:
                row |= {"fires": "raises", "reason": " ".join(str(error).split())[:200]}
            else:
                row |= {question: verdict for question, verdict, _ in audit.rows} | {"axes": audit.axes}
                row["reason"] = "; ".join(reason for _, verdict, reason in audit.rows if verdict != "right")
            rows.append(row)
    refusing = {row["library"] for row in rows} - {row["library"] for row in rows if row["fires"] != "raises"}
    first = {row["library"]: row | {"handle": "", "site": ""} for row in reversed(rows) if row["library"] in refusing}
    return [row for row in rows if row["library"] not in refusing] + list(first.values())


def main() -> None:
    """Audit every kind, write the table, and print how many handles of each name are what."""
    if sys.argv[1:2] == ["--one"]:
        with contextlib.redirect_stdout(io.StringIO()):
            rows = audit_kind(sys.argv[2])
        print(json.dumps(rows))
        return
    rows = list(csv.DictReader(TABLE.open(encoding="utf-8"))) if TABLE.exists() else []
    texts = {kind for kind, maker in zoo.ZOO.items() if maker.endswith(("MaskedLM", "CausalLM"))}
    for kind in sys.argv[1:] or sorted(texts - {row["model"] for row in rows}):
        done = subprocess.run([sys.executable, __file__, "--one", kind], capture_output=True, text=True, timeout=900)
        print(kind, done.returncode, done.stderr[-200:] if done.returncode else "", flush=True)
        if done.returncode == 0:
            new_rows = json.loads(done.stdout.strip().splitlines()[-1])
            rows = sorted(
                [row for row in rows if row["model"] != kind] + new_rows, key=lambda row: (row["library"], row["model"])
            )
            with TABLE.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                table.writeheader()
                table.writerows(rows)
    for (library, name), count in sorted(Counter((row["library"], row["handle"]) for row in rows).items()):
        verdicts = Counter(verdict_of(row) for row in rows if (row["library"], row["handle"]) == (library, name))
        words = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common())
        print(library, name or "does not take the model", f"{count} models:", words)


def verdict_of(row: dict[str, str]) -> str:
    """One word for a row: right, raises, silent, before rotation, or different."""
    if row["fires"] != "right":
        return row["fires"]
    if all(row[question] in ("right", "") for question in ("tensor", "heads", "write")):
        return "right"
    if "before" in row["reason"] and row["write"] in ("right", "") and row["heads"] == "right":
        return "before rotation or norm"
    return "different"


if __name__ == "__main__":
    main()
