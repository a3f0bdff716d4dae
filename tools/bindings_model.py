"""Train a small GPT-2 that answers the texts of `trisect patch --task bindings`: python tools/bindings_model.py OUT [--seed N]

Two layers, one head, width 64, one token a word. At the key that is asked for, and at each word after it, the model learns the
answer, for the first four fifths of training; then at the last word alone. It begins with one template, and reads the next when it
answers nine of ten. Without both it stays at chance (0.25) for 6,000 steps and more: it would have to learn at once to hand the asked
key on to the last word and to hand each key on to its value.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trisect.hf.files.fetch import quiet
from trisect.text.pairs import BINDINGS, TEMPLATES, draw_bindings

WORD = re.compile(r"\w+|[^\w\s]")
SPECIALS = ("<pad>", "<unk>")
LAYERS, HEADS, WIDTH, LONGEST, BATCH, RATE = 2, 1, 64, 64, 64, 2e-3
LEARNT = 0.9  # right in recent steps, after which the next template is read as well
HELPED = 0.8  # of training, where the answer is learnt at the asked key too
IGNORED = -100


class Frame(NamedTuple):
    """A template as ids, with -1 for the key and -2 for the value, and the ids of the words for both."""

    lead: list[int]
    binding: list[int]
    question: list[int]
    keys: list[int]
    values: list[int]


def words_of(text: str) -> list[str]:
    """Words and marks, as the tokenizer's."""
    return WORD.findall(text)


def vocabulary() -> dict[str, int]:
    """Every word of the task."""
    words: set[str] = set()
    for template in TEMPLATES:
        for part in (template.lead, template.binding, template.question):
            words |= set(words_of(part.format(key=template.keys[0], value=template.values[0])))
        words |= {*template.keys, *template.values}
    return {word: i for i, word in enumerate((*SPECIALS, *sorted(words)))}


def frames(known: Mapping[str, int]) -> list[Frame]:
    """The templates, as ids."""
    templates = []
    for t in TEMPLATES:
        marks = {t.keys[0]: -1, t.values[0]: -2}
        parts = (part.format(key=t.keys[0], value=t.values[0]) for part in (t.lead, t.binding, t.question))
        lead, binding, question = ([marks.get(word, known.get(word, 0)) for word in words_of(part)] for part in parts)
        templates.append(
            Frame(lead, binding, question, [known[key] for key in t.keys], [known[value] for value in t.values])
        )
    return templates


def batch(frames: Sequence[Frame], draw: np.random.Generator, helped: bool) -> tuple[Tensor, Tensor]:
    """Texts and, at each place, the id to be learnt there: [B T] each."""
    rows, labels = [], []
    for _ in range(BATCH):
        frame = frames[int(draw.integers(len(frames)))]
        keys, values = (list(map(int, draw.permutation(of)[:BINDINGS])) for of in (frame.keys, frame.values))
        query = int(draw.integers(BINDINGS))
        facts = [{-1: keys[i], -2: values[i]}.get(x, x) for i in range(BINDINGS) for x in frame.binding]
        question = [keys[query] if x == -1 else x for x in frame.question]
        rows.append([*frame.lead, *facts, *question])
        first = len(rows[-1]) - (len(question) - frame.question.index(-1) if helped else 1)
        labels.append([IGNORED] * first + [values[query]] * (len(rows[-1]) - first))
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return ids, torch.tensor([row + [IGNORED] * (longest - len(row)) for row in labels])


def make(known: Mapping[str, int], seed: int) -> Any:
    """A GPT-2 with word embeddings of variance 1, so that attention tells words apart from the first step."""
    import transformers

    marks = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    shape = {"n_positions": LONGEST, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": 2 * WIDTH}
    config = transformers.GPT2Config(vocab_size=len(known), tie_word_embeddings=False, **shape, **off, **marks)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                scale = {"wte": 1.0, "wpe": 0.1}.get(name.split(".")[1])
                p.normal_(0, scale) if scale else p.uniform_(-(WIDTH**-0.5), WIDTH**-0.5)
    return model


def right(model: Any, known: Mapping[str, int], seed: int, count: int = 400) -> float:
    """The share of drawn texts that the model answers."""
    pairs = draw_bindings(TEMPLATES, count, seed)
    with torch.no_grad():
        answers = [
            model(torch.tensor([[known[word] for word in words_of(str(pair.base))]])).logits[0, -1].argmax().item()
            == known[pair.answers["base"].strip()]
            for pair in pairs
        ]
    return sum(answers) / count


def train(model: Any, known: Mapping[str, int], steps: int, seed: int) -> None:
    """In place, with AdamW and a rate that falls to a twentieth."""
    draw, every = np.random.default_rng(seed), frames(known)
    read, recent = 1, 0.0
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / 100) * max(0.05, 1 - step / steps)
        ids, labels = batch(every[:read], draw, step < HELPED * steps)
        logits = model(ids, attention_mask=torch.ones_like(ids)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        learnt = labels != IGNORED
        recent += 0.05 * (float((logits.argmax(-1) == labels)[learnt].double().mean()) - recent)
        if recent > LEARNT and read < len(every):
            read, recent = read + 1, 0.0
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 0:
            print(
                f"step {step}: {read} templates, loss {float(loss.detach()):.3f} nats, right {right(model, known, 3):.3f}",
                flush=True,
            )


def main() -> None:
    """Train, say how often it is right, and write a Hugging Face folder."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    parser = argparse.ArgumentParser(description="Train a small GPT-2 that answers bindings.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = vocabulary()
    model = make(known, options.seed)
    train(model, known, options.steps, options.seed)
    inner = Tokenizer(models.WordLevel(known, SPECIALS[1]))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=SPECIALS[0], unk_token=SPECIALS[1], model_max_length=LONGEST
    )
    with quiet():
        model.save_pretrained(options.out)
        tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
