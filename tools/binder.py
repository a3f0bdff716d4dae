"""Train a small GPT-2 that answers bindings (who has what), for results/interchange: python tools/binder.py FOLDER [SEED]"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from trisect.text.bindings import BINDINGS, TEMPLATES

LAYERS, HEADS, WIDTH, LONGEST = 2, 1, 64, 48
STEPS, BATCH, RATE = 6_000, 32, 3e-3


KNOWN = 12  # names and things that the model has words for
WHO = TEMPLATES[0]._replace(keys=TEMPLATES[0].keys[:KNOWN], values=TEMPLATES[0].values[:KNOWN])


def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words and punctuation."""
    plain = " ".join((WHO.lead, WHO.binding, WHO.question, *WHO.keys, *WHO.values))
    plain = plain.replace("{key}", "").replace("{value}", "")
    splitter = pre_tokenizers.Whitespace()
    words = ["<pad>", "<unk>", *dict.fromkeys(word for word, _ in splitter.pre_tokenize_str(plain))]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = splitter
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", model_max_length=LONGEST
    )


def draw_text(draw: np.random.Generator) -> str:
    """A text as the task has them, that goes on with its answer and with the other keys' questions and answers."""
    keys, values = draw.permutation(WHO.keys)[:BINDINGS], draw.permutation(WHO.values)[:BINDINGS]
    told = [WHO.binding.format(key=k, value=v) for k, v in zip(keys, values, strict=True)]
    asked = [f"{WHO.question.format(key=keys[i])} {values[i]}." for i in draw.permutation(BINDINGS)]
    return WHO.lead + "".join(told) + "".join(asked)


def train(folder: Path, seed: int) -> None:
    """Train on the answers alone until they are right, and save model and tokenizer."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    words, draw, began = tokenizer(), np.random.default_rng(seed), time.monotonic()
    config = GPT2Config(
        vocab_size=len(words), n_positions=LONGEST, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    steps = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    right: list[float] = []
    for step in range(STEPS):
        for group in steps.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 100) * max(0.05, 1 - step / STEPS)
        ids = torch.tensor(words([draw_text(draw) for _ in range(BATCH)])["input_ids"])
        asked = len(words(WHO.question.format(key=WHO.keys[0]) + " x.")["input_ids"])
        answers = torch.arange(ids.shape[1] - 2, 0, -asked)[:BINDINGS]  # before each period
        logits = model.lm_head(model.transformer(ids).last_hidden_state[:, answers - 1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, answers].flatten())
        steps.zero_grad()
        loss.backward()
        steps.step()
        right.append(float((logits.argmax(-1) == ids[:, answers]).float().mean()))
        if step % 200 == 199:
            share = float(np.mean(right[-200:]))
            print(f"step {step + 1}: {share:.3f} right, {time.monotonic() - began:.0f} s", flush=True)
            if share > 0.998:
                break
    model.save_pretrained(folder)
    words.save_pretrained(folder)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
