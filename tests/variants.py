"""Models drawn from a grammar of attention variants, half of them wrong by construction, and what becomes of each.

A model is wrong where a plain reading of its modules says something else than it computes: keys of other tokens, a change behind
W_O that its gradient hides. Each is loaded and read, and every number that is read is compared with what the model computed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from transformers.pytorch_utils import Conv1D

from tests.fooling import HIDDEN
from trisect.core.errors import ModelError
from trisect.core.trace import Trace
from trisect.hf.load import load
from trisect.measure import norms

WIDTH, HEADS, SIZE, WORDS, LONG, RARE = 16, 4, 4, 40, 32, 39
NEAR = 2e-4  # float32, of the largest number
GRAMMAR = {
    "maps": ("separate", "fused", "interleaved", "transposed", "low rank", "values are keys", "of the layer below"),
    "groups": ("4", "2", "1"),  # heads of keys and values
    "axes": ("texts first", "positions first", "heads and texts in one"),
    "norm": ("none", "each head", "across heads"),
    "places": ("none", "turned", "added to scores"),
    "mask": ("none", "causal", "window"),
    "scores": ("plain", "capped", "scaled queries"),
    "sink": ("none", "a column", "one"),
    "product": ("matmul", "einsum", "sdpa"),
    "gate": ("none", "before W_O", "behind W_O"),
    "block": ("pre", "post", "parallel", "norm behind"),
    "quantiser": ("none", "of weights"),
    "cache": ("none", "kept"),
    "detach": ("none", "q", "weights"),
}
PLAIN = {name: choices[0] for name, choices in GRAMMAR.items()}


class Truth(NamedTuple):
    """What a layer computed: q, k and v [B T H E] at the positions of their tokens, what they are made of, weights, and what is added."""

    parts: tuple[Tensor, Tensor, Tensor]
    given: tuple[Tensor, Tensor, Tensor]
    weights: Callable[[], Tensor]
    scale: float | None
    added: Tensor


class RoundedWeights(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return HIDDEN["rounded"](4 * weight) / 4


FACTORS = {"twice": 2.0, "a tenth less": 0.9, "backward of its own": 1.5}
MOVED: dict[str, Any] = {"rolled": lambda t: t.roll(1, 1), "flipped": lambda t: t.flip(1)}
OTHERS = ("over units", "over heads", "keys of another text", "positions turned", "texts turned", "dropout", "sigmoid")
WRONG = (
    *(f"{where} {how}" for where in ("W_O", "module", "q", "k", "v", "scores") for how in HIDDEN),
    *(f"{parts} {how}" for parts in ("keys", "values", "keys+values") for how in MOVED),
    *("heads mixed", "weights changed", "a second attention", "keys of the pass before"),
    *("values doubled in long texts", "values doubled at one word", *OTHERS),
)


class Attention(nn.Module):
    """One choice of every rule, and what is wrong with it, if anything is."""

    def __init__(self, rules: dict[str, str], wrong: str = "") -> None:
        super().__init__()
        self.rules, self.wrong, self.kept = rules, wrong, list[Tensor]()
        self.truth: Truth | None = None
        maps, inner = rules["maps"], int(rules["groups"]) * SIZE
        wide, low = WIDTH + 2 * inner, 6 if maps == "low rank" else WIDTH
        if maps in ("fused", "interleaved", "transposed"):
            self.qkv = Conv1D(wide, WIDTH) if maps == "transposed" else nn.Linear(WIDTH, wide)
        else:
            self.down = nn.Linear(WIDTH, low) if low < WIDTH else nn.Identity()
            sizes = (WIDTH, WIDTH), (low, inner), (low, inner)
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(*both) for both in sizes)
        self.o_proj, self.gate, self.beside = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        each = rules["norm"] == "each head"
        self.q_norm, self.k_norm = (nn.RMSNorm(SIZE if each else n, eps=1e-6) for n in (WIDTH, inner))
        self.sink = nn.Parameter(torch.linspace(-1, 1, HEADS))
        for module in [m for m in self.children() if isinstance(m, nn.Linear) and rules["quantiser"] != "none"]:
            register_parametrization(module, "weight", RoundedWeights(), unsafe=True)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k and v [B T H E], and what k and v are made of."""
        groups, maps, given = int(self.rules["groups"]), self.rules["maps"], x
        if maps == "interleaved":
            each = self.qkv(x).unflatten(-1, (groups, -1, SIZE))
            q, k, v = each[..., :-2, :].flatten(-3), each[..., -2, :].flatten(-2), each[..., -1, :].flatten(-2)
        elif maps in ("fused", "transposed"):
            q, k, v = self.qkv(x).split((WIDTH, groups * SIZE, groups * SIZE), -1)
        else:
            given = self.down(x)
            q, k = self.q_proj(x), self.k_proj(given)
            v = k if maps == "values are keys" else self.v_proj(given)
        if self.rules["norm"] == "across heads":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, SIZE)) for t in (q, k, v))
        return (self.q_norm(q), self.k_norm(k), v, given) if self.rules["norm"] == "each head" else (q, k, v, given)

    def hide(self, t: Tensor, where: str) -> Tensor:
        """t [B T …], changed where that is what is wrong."""
        place, _, how = self.wrong.partition(" ")
        return HIDDEN[how](t) if place == where else t

    def forward(self, x: Tensor, ids: Tensor, below: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        rules, wrong = self.rules, self.wrong
        axis = (1,) if wrong == "positions turned" else (0,) if wrong == "texts turned" else ()
        h = x.flip(axis)
        if rules["axes"] == "positions first":
            q, k, v, given = (t.transpose(0, 1) for t in self.project(h.transpose(0, 1).contiguous()))
        else:
            q, k, v, given = self.project(h)
        q, k = (rotate(q), rotate(k)) if rules["places"] == "turned" else (q, k)
        if rules["maps"] == "of the layer below" and below is not None:
            k, v, given = below
        passed = k, v, given
        q, k, v = self.hide(q, "q"), self.hide(k, "k"), self.hide(v, "v")
        q = q.detach() if rules["detach"] == "q" else q
        q = q * SIZE**-0.5 if rules["scores"] == "scaled queries" else q
        v = 2 * v if wrong.endswith("long texts") and x.shape[1] > 8 else v
        v = v * (1 + ids.eq(RARE))[..., None, None] if wrong.endswith("one word") else v
        if wrong == "keys of the pass before" and self.kept and self.kept[0].shape == k.shape:
            k, self.kept = self.kept[0], [k.detach()]
        elif wrong == "keys of the pass before" or rules["cache"] == "kept":
            self.kept = [k.detach()]
        parts, (moved, _, how) = (q, k, v), wrong.partition(" ")
        if how in MOVED:
            k, v = MOVED[how](k) if "keys" in moved else k, MOVED[how](v) if "values" in moved else v
        k = k.roll(1, 0) if wrong == "keys of another text" else k
        mixed, weights, scale = self.attend(*(t.transpose(1, 2) for t in (q, k, v)))
        mixed = mixed * torch.sigmoid(self.gate(h)) if rules["gate"] == "before W_O" else mixed
        y = self.hide(self.o_proj(mixed), "W_O")
        if wrong == "a second attention":
            scores = self.beside(x) @ x.transpose(1, 2) / 4
            y = y + torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ self.gate(x)
        y = (y * torch.sigmoid(self.gate(h)) if rules["gate"] == "behind W_O" else y).flip(axis)
        self.truth = None if how in MOVED or wrong in OTHERS else Truth(parts, (x, given, given), weights, scale, y)
        return y, passed

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Callable[[], Tensor], float | None]:
        """What is mixed [B T D], the weights that mix, and the one number that multiplies q·k in the scores, if there is one."""
        rules, wrong, (rows, heads, length, _) = self.rules, self.wrong, q.shape
        k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
        scale = 1.0 if rules["scores"] == "scaled queries" else SIZE**-0.5
        if wrong in ("over units", "over heads"):
            q, k, v = (t.transpose(2, 3) if wrong == "over units" else t.transpose(1, 2) for t in (q, k, v))
            mixed = torch.softmax(q @ k.transpose(2, 3) * scale, -1) @ v
            return (mixed.permute(0, 3, 1, 2) if wrong == "over units" else mixed).flatten(2), lambda: mixed, None
        apart = torch.arange(length)[:, None] - torch.arange(length)
        added = torch.zeros(heads, length, length)
        if rules["places"] == "added to scores":
            added = added - apart.abs() * torch.linspace(0.1, 1, heads)[:, None, None]
        if rules["mask"] != "none":
            is_seen = (apart >= 0) & (apart < (3 if rules["mask"] == "window" else length))
            added = added.masked_fill(~is_seen, -1e9)
        is_plain = rules["sink"] == rules["detach"] == "none" and rules["scores"] != "capped"
        is_plain = is_plain and not wrong.startswith(("scores", "heads", "weights", "dropout", "sigmoid"))
        if rules["product"] == "sdpa" and is_plain:
            mixed = F.scaled_dot_product_attention(q, k, v, added.expand(rows, -1, -1, -1), scale=scale)
            return mixed.transpose(1, 2).flatten(2), lambda: torch.softmax(q @ k.mT * scale + added, -1), scale
        if rules["axes"] == "heads and texts in one":
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.einsum("...te,...se->...ts", q, k) if rules["product"] == "einsum" else q @ k.transpose(-1, -2)
        scores = self.hide((scores * scale).view(rows, heads, length, length).transpose(1, 2), "scores").transpose(1, 2)
        scores = (torch.tanh(scores / 2) * 2 if rules["scores"] == "capped" else scores) + added
        if rules["sink"] != "none":
            column = self.sink if rules["sink"] == "a column" else torch.zeros(heads)
            scores = torch.cat([scores, column.view(1, heads, 1, 1).expand(rows, -1, length, -1)], -1)
        weights = torch.sigmoid(scores) if wrong == "sigmoid" else torch.softmax(scores, -1)
        weights = weights[..., :length]
        if wrong == "heads mixed":
            weights = torch.einsum("bhts,hg->bgts", weights, self.beside.weight[:heads, :heads].softmax(0))
        if wrong == "weights changed":
            weights = weights + 0.5 * (weights.square() - weights).detach()
        weights = F.dropout(weights, 0.2, training=wrong == "dropout")
        weights = weights.detach() if rules["detach"] == "weights" else weights
        mixed = (weights.reshape(*q.shape[:-1], length) @ v).view(rows, heads, length, SIZE)
        place, _, how = wrong.partition(" ")
        times = None if rules["scores"] == "capped" else FACTORS.get(how) if place == "scores" else 1.0
        return mixed.transpose(1, 2).flatten(2), lambda: weights, None if times is None else scale * times


def rotate(t: Tensor) -> Tensor:
    """t [B T H E] turned by rotary positions."""
    angle = torch.arange(t.shape[1])[:, None, None] * torch.tensor([1.0, 0.1])
    one, other = t.chunk(2, -1)
    return torch.cat([one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()], -1)


class Layer(nn.Module):
    """Attention and a feed-forward part, with norms and sums as its rules say."""

    def __init__(self, rules: dict[str, str], wrong: str) -> None:
        super().__init__()
        self.attn, self.block = Attention(rules, wrong), rules["block"]
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, ids: Tensor, below: Any) -> tuple[Tensor, Any]:
        h = x if self.block == "post" else self.norm1(x)
        a, passed = self.attn(h, ids, below)
        a = self.attn.hide(a, "module")
        self.attn.truth = self.attn.truth and self.attn.truth._replace(added=a)
        if self.block == "parallel":
            return x + a + self.down(F.gelu(self.up(h))), passed
        x = self.norm1(x + a) if self.block == "post" else x + (self.norm2(a) if self.block == "norm behind" else a)
        return x + self.down(F.gelu(self.up(self.norm2(x)))), passed


class Variant(nn.Module):
    """Two layers by the same rules; `wrong` is what is wrong with one of them."""

    main_input_name = "input_ids"

    def __init__(self, rules: dict[str, str], wrong: str = "", where: int = 0, seed: int = 0) -> None:
        super().__init__()
        self.rules, self.wrong, self.where = rules, wrong, where
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONG, WIDTH)
            self.layers = nn.ModuleList(Layer(self.rules, wrong if n == self.where else "") for n in range(2))
            self.head = nn.Linear(WIDTH, WORDS)
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x, below = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1])), None
        for layer in self.layers:
            x, below = layer(x, input_ids, below)
        return self.head(x)


def find_untrue(trace: Trace, truth: Truth | None, is_part: bool) -> str:
    """The first number of a layer that is read and is not what the layer computed; empty where all are."""
    if truth is None:
        return "read at all"
    own = trace.projections
    claims = {"weights": (trace.weights, truth.weights())}
    for n, x, part in zip("qkv", truth.given, truth.parts, strict=True):
        made, w, b = getattr(trace, n), getattr(own, f"w_{n}"), getattr(own, f"b_{n}")
        true = part.transpose(1, 2).repeat_interleave(made.shape[1] // part.shape[2], 1)
        claims[n] = made, true
        if w is not None:
            made = (torch.einsum("btd,hde->bhte", x, w) + (0 if b is None else b[:, None])) * own.origins[n].scale
            # positions may turn q and k
            claims[f"W of {n}"] = (made, true) if n == "v" else (made.norm(dim=-1), true.norm(dim=-1))
    if own.w_o is not None and not is_part:
        claims["W_O"] = norms.attention_output(trace), truth.added
    if trace.scale is not None:
        claims["scale"] = torch.tensor(trace.scale), torch.tensor(float("nan") if truth.scale is None else truth.scale)
    near = {n: a.shape == b.shape and bool((a - b).abs().max() <= NEAR * b.abs().max()) for n, (a, b) in claims.items()}
    return next((name for name, is_near in near.items() if not is_near), "")


@torch.no_grad()
def judge(model: Variant) -> tuple[str, str]:
    """What becomes of a model, "read", "in part" (one layer of it), "refused" or "wrong", and why."""
    first, second, third = texts(7), texts(9, 1), texts(9, 2)
    third["input_ids"][:, -2] = RARE
    try:
        subject = load(model, inputs=first)
        subject.read(second)
        reading = subject.read(third)
    except ModelError as error:
        return "refused", f"{error.problem} {error.reason}"
    found = {f.projections.address: f for f in subject.proof.weights}
    for trace in reading.traces:
        attention: Any = model.get_submodule(found[trace.address].module)
        if name := find_untrue(trace, attention.truth, found[trace.address].share < 1):
            return "wrong", f"{trace.address}: {name}"
    return "read" if len(reading.traces) == len(model.layers) else "in part", " ".join(subject.notes)


def texts(length: int, seed: int = 0) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(RARE, (2, length), generator=torch.Generator().manual_seed(seed))}


def draw_models(count: int, seed: int = 0) -> list[Variant]:
    """Models of the grammar, every second one wrong, in one way after another."""
    draw, models = random.Random(seed), list[Variant]()
    ways = draw.sample(WRONG, len(WRONG))
    for n in range(count):
        # a third of the rules are as in most models, so that one that is not read hides few others
        chosen = {name: draw.choice(of) if draw.random() < 2 / 3 else of[0] for name, of in GRAMMAR.items()}
        wrong = ways[n // 2 % len(ways)] if n % 2 else ""
        models.append(Variant(chosen, wrong, draw.randrange(2), 1000 * seed + n))
    return models
