"""Attention written to fool whoever reads it: right at the first look, and something else at the second.

A plain causal or two-way transformer over token ids, without transformers, whose pieces a test replaces one at a time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, WORDS, LONG = 16, 4, 40, 64
Made = Callable[..., Tensor]


def ids(length: int = 7, rows: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """Token ids, drawn at random."""
    return {"input_ids": torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))}


class Attention(nn.Module):
    """q, k, v, softmax, o; what happens to q, k and v after their maps, and between output and answer, is given."""

    def __init__(
        self, q: Any = None, k: Any = None, v: Any = None, out: Any = None, scale: Any = None, inside: Any = None
    ) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.on_q, self.on_k, self.on_v, self.out = q, k, v, out
        self.scale, self.inside = scale, inside

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        x = x if self.inside is None else self.inside(x)
        mixed = self.attend(*self.heads(x), x).transpose(1, 2).flatten(2)
        return self.o_proj(mixed) if self.out is None else self.out(self, mixed, x, ids)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v [B H T E], each behind its change."""
        maps = (self.q_proj, self.on_q), (self.k_proj, self.on_k), (self.v_proj, self.on_v)
        parts = (project(x) if change is None else change(project(x)) for project, change in maps)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """The output [B H T E]."""
        scale = (WIDTH // HEADS) ** -0.5 if self.scale is None else self.scale(x.shape[1])
        return torch.softmax(q @ k.transpose(2, 3) * scale, -1) @ v


class Layer(nn.Module):
    """x + attention(LN(x)), then x + ffn(LN(x))."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention(**changes)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), ids)
        return x + self.down(torch.tanh(self.up(self.norm2(x))))


class Fooling(nn.Module):
    """Two layers; the changes are those of the first."""

    main_input_name = "input_ids"

    def __init__(self, seed: int = 0, **changes: Any) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONG, WIDTH)
            self.layers = nn.ModuleList([Layer(**changes), Layer()])
            self.head = nn.Linear(WIDTH, WORDS)
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            x = layer(x, input_ids)
        return self.head(x)

    @property
    def attention(self) -> Any:
        """The first layer's attention."""
        return self.layers[0].attn


def parts(*shapes: tuple[int, int], seed: int = 5, size: float = 0.5) -> list[nn.Linear]:
    """Linear maps without bias, with weights of the given size."""
    draw, made = torch.Generator().manual_seed(seed), []
    for inside, outside in shapes:
        module = nn.Linear(inside, outside, bias=False)
        with torch.no_grad():
            module.weight.copy_(size * torch.randn(outside, inside, generator=draw))
        made.append(module)
    return made


class OwnBackward(torch.autograd.Function):
    """Half as much again, and a gradient that says nothing of it."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return 1.5 * y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return grad_outputs[0]


HIDDEN: dict[str, Callable[[Tensor], Tensor]] = {  # changes of y [B T D] that its gradient does not show
    "twice": lambda y: y + y.detach(),
    "a tenth less": lambda y: y - 0.1 * y.detach(),
    "backward of its own": OwnBackward.apply,  # pyright: ignore[reportAssignmentType]
    "rounded": lambda y: y + ((8 * y).round() / 8 - y).detach(),  # to eighths, straight through
    "at one position": lambda y: torch.cat([y[:, :3], y[:, 3:4] + y[:, 3:4].detach(), y[:, 4:]], 1),
}
