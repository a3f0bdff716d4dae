"""Ablation head by head: whole passes beside passes that begin at the layer they edit, the same numbers bit for bit.

python bench/restarting.py
"""

from __future__ import annotations

import json

import torch
from paired import paired
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import trisect
from trisect.core.subject import Batch, EditedPasses, RowScores
from trisect.hf.load import Pretrained
from trisect.lab.passes import EditedPass, WholePasses, edited_passes, plan_edits
from trisect.measure.intervention import put, zeros

TEXTS, TOKENS, ROUNDS = 8, 40, 3
HEAD = 5  # a pass costs the same whichever head it edits: one head of each layer stands for its twelve
SITES = tuple(f"v@{layer}.h{HEAD}" for layer in range(1, 13))


def every_edit(passes: EditedPasses, batch: Batch, edits: tuple[EditedPass, ...]) -> list[RowScores]:
    """The unedited pass and one for each edit."""
    clean = passes.score(batch)
    return [passes.score(batch, {e.address: put(e.targets, zeros())}, None, clean) for e in edits]


def measured(what: str, subject: Pretrained, ids: torch.Tensor) -> dict[str, object]:
    """Both ways over one batch, and whether they agree."""
    batch, edits = subject.batch_of({"input_ids": ids}), plan_edits(subject.shape, SITES, "head")
    whole, shared = WholePasses(subject), edited_passes(subject)
    pairs = zip(every_edit(whole, batch, edits), every_edit(shared, batch, edits), strict=True)
    alike = all(torch.equal(a.total, b.total) for a, b in pairs) and not shared.notes
    found = paired(lambda: every_edit(whole, batch, edits), lambda: every_edit(shared, batch, edits), ROUNDS)
    return {
        "what": f"ablation of one head in each of 12 layers, {what}, {TEXTS} texts of {TOKENS} tokens",
        "plain": f"{1e3 * found.plain / len(edits):.0f} ms an edit, whole passes",
        "ours": f"{1e3 * found.ours / len(edits):.0f} ms an edit, begun at its layer",
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "notes": [f"Sums of losses {'equal to the bit' if alike else 'DIFFER'} in all edits; CPU time of one thread."],
    }


def rows() -> list[dict[str, object]]:
    """A model of GPT-2 small's size with its loss, and one of MiniLM's size with its output."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gpt2, small = GPT2Config(), BertConfig(hidden_size=384, intermediate_size=1536, num_hidden_layers=12)
    with torch.no_grad():
        return [
            measured(
                "GPT-2 small",
                trisect.load(GPT2LMHeadModel(gpt2).eval()),
                torch.randint(gpt2.vocab_size, (TEXTS, TOKENS)),
            ),
            measured(
                "an encoder of MiniLM-L12's size",
                trisect.load(BertModel(small).eval()),
                torch.randint(1000, small.vocab_size, (TEXTS, TOKENS)),
            ),
        ]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
