"""Readings for the explorer's tests, from random numbers: self-attention, causal, grouped queries, encoder and decoder."""

import torch

from trisect.core.trace import Address, Origin, Projections, Reading, Side, Trace

NASTY = "</script><script>alert('&')</script>"


def side(length: int, special: tuple[int, ...] = (0, -1), padding: int = 0, pieces: tuple[str, ...] = ()) -> Side:
    """Words w0, w1, …, `padding` more at the end, and the first and last real one added by the tokenizer."""
    words = list(pieces) or [f"w{i}" for i in range(length)]
    added = torch.zeros(length + padding, dtype=torch.bool)
    for i in special:
        added[i % length] = True
    added[length:] = True
    real = torch.arange(length + padding) < length
    return Side((tuple(words + ["[PAD]"] * padding),), real[None], added[None])


def trace(
    address: Address,
    queries: Side,
    keys: Side,
    heads: tuple[int, int] = (3, 3),
    width: int = 8,
    causal: bool = False,
    bias: bool = False,
    projected: bool = True,
    seed: int = 0,
) -> Trace:
    """One layer whose weights are the softmax of scale·q·k, or of that and a bias, on the real positions."""
    made = torch.Generator().manual_seed(seed * 1000 + address.layer)
    (H, K), T, S = heads, queries.real.shape[1], keys.real.shape[1]

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made) * 1.5

    q, k, v = random(1, H, T, width), random(1, K, S, width), random(1, K, S, width)
    scores = q @ k.repeat_interleave(H // K, 1).mT * width**-0.5
    if bias:
        scores = scores + random(1, H, T, S)
    hidden = ~keys.real[:, None, None, :].expand(1, H, T, S)
    if causal:
        hidden = hidden | torch.ones(T, S).triu(1).bool()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    w_o = random(H, width, H * width) if projected else None
    origins = {} if projected else {"o": Origin("gated", "a gate multiplies the output")}
    return Trace(
        address,
        q,
        k,
        v,
        weights,
        weights @ v.repeat_interleave(H // K, 1),
        queries.real,
        keys.real,
        Projections(address, origins, w_o=w_o),
        scale=width**-0.5,
    )


def encoder(length: int = 12, layers: int = 2, heads: int = 3, padding: int = 0, width: int = 8) -> Reading:
    """A bidirectional model of one sequence."""
    text = side(length, padding=padding)
    found = [trace(Address("plain", n), text, text, (heads, heads), width) for n in range(1, layers + 1)]
    return Reading("tiny/encoder", tuple(found), text)


def decoder(length: int = 12) -> Reading:
    """A causal model with grouped queries, whose second layer has a gate and adds a bias to its scores."""
    text = side(length, special=(0,))
    first = trace(Address("plain", 1), text, text, (4, 2), causal=True)
    second = trace(Address("plain", 2), text, text, (4, 2), causal=True, bias=True, projected=False)
    return Reading("tiny/decoder", (first, second), text)


def translator(source: int = 9, target: int = 6) -> Reading:
    """A model of two sequences: encoder, decoder and cross-attention, a layer each."""
    one, two = side(source), side(target, special=(0,), pieces=tuple(f"t{i}" for i in range(target)))
    layers = (
        trace(Address("enc", 1), one, one),
        trace(Address("dec", 1), two, two, causal=True, seed=1),
        trace(Address("cross", 1), two, one, seed=2),
    )
    return Reading("tiny/translator", layers, one, two)
