"""Interchange interventions in GPT-2 small: pairs a second beside a plain loop of hooks.

python bench/patching.py
"""

from __future__ import annotations

import json

import torch
from paired import paired
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import trisect
from trisect.hf.load import Pretrained
from trisect.lab.passes import edited_passes, plan_edits
from trisect.measure.patching import put_at, record

PAIRS, TOKENS, ROUNDS = 4, 24, 3
LAYERS = tuple(range(1, 13))
SITES = tuple(f"{component}@{layer}" for component in "qkv" for layer in LAYERS)


@torch.no_grad()
def plain(model: GPT2LMHeadModel, base: Tensor, donor: Tensor) -> list[Tensor]:
    """One hook that keeps what c_attn gives for the donor, and one that puts a third of it into the base, layer by layer."""
    kept: dict[int, Tensor] = {}
    layers = [model.transformer.h[layer - 1].attn.c_attn for layer in LAYERS]
    hooks = [m.register_forward_hook(lambda _m, _i, out, n=n: kept.update({n: out})) for n, m in enumerate(layers)]
    model(donor)
    for hook in hooks:
        hook.remove()
    model(base)
    width, found = model.config.n_embd, []
    for part in range(3):
        columns = slice(part * width, (part + 1) * width)
        for n, module in enumerate(layers):

            def put(_m: object, _i: object, out: Tensor, n: int = n, columns: slice = columns) -> Tensor:
                new = out.clone()
                new[..., columns] = kept[n][..., columns]
                return new

            hook = module.register_forward_hook(put)
            found.append(model(base).logits[:, -1])
            hook.remove()
    return found


def ours(subject: Pretrained, base: Tensor, donor: Tensor) -> list[Tensor]:
    """The same as `trisect patch` does it: both texts read, then passes that begin at the layer they patch."""
    edits = plan_edits(subject.shape, SITES, "layer")
    batches = [subject.batch_of({"input_ids": ids}) for ids in (base, donor)]
    places = torch.full((PAIRS,), TOKENS - 1)
    real, addresses = batches[0].source.real, [edit.address for edit in edits]
    record(subject, batches[0], addresses, places)
    parts = record(subject, batches[1], addresses, places).parts
    made = ({e.address: put_at(e.targets, parts[e.address], real, real)} for e in edits)
    passes = edited_passes(subject)
    passes.begin(batches[0])
    return [passes.outputs(batches[0], write, places)[:, 0] for write in made]


def rows() -> list[dict[str, object]]:
    """Both ways, and how far apart their logits are."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    subject = trisect.load(model)
    base, donor = (torch.randint(model.config.vocab_size, (PAIRS, TOKENS)) for _ in range(2))
    one, other = plain(model, base, donor), ours(subject, base, donor)
    apart = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
    largest = max(float(a.abs().max()) for a in one)
    found = paired(lambda: plain(model, base, donor), lambda: ours(subject, base, donor), ROUNDS)
    done = len(one) * PAIRS
    return [
        {
            "what": f"q, k and v of GPT-2 small patched, one layer at a time, {PAIRS} pairs of {TOKENS} tokens",
            "plain": f"{done / found.plain:.1f} patched pairs a second",
            "ours": f"{done / found.ours:.1f} patched pairs a second",
            "ratio": found.ratio,
            "low": found.low,
            "high": found.high,
            "notes": [
                "Plain: a hook on each layer's c_attn by its name, in the model's own (fused) attention, and whole passes; both ways"
                " end with the logits of the last place.",
                f"Largest difference of the two ways' logits: {apart:.1e}, the largest logit being {largest:.1f}.",
            ],
        }
    ]


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
