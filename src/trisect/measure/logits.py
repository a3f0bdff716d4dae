"""Direct logit attribution (logits as sums over writers to the residual stream), and the logit lens at every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.tables import INTEGER, REAL, TEXT, NewRow
from trisect.core.trace import StreamWriter, Unembedding, WrittenStream
from trisect.measure.norms import rescale_parts

CONSTANT = "constant"  # contribution of the final norm's β and the output's bias to a logit
DIRECT = {
    **{"token": TEXT, "against": TEXT},  # the token of the logit, and the token whose logit is subtracted
    **{"writer": TEXT, "layer": INTEGER, "head": INTEGER},
    **{"source": INTEGER, "source_token": TEXT},  # a position from 0; None: the head's total
    "logit": REAL,
}
LENS = {
    **{"layer": INTEGER, "position": INTEGER, "token": TEXT},  # layer 0 is the embedding; positions count from 0
    **{"rank": INTEGER, "prediction": TEXT, "probability": REAL},
    "kl_nats": REAL,  # KL(model's own distribution ‖ this layer's)
}


def lens_logits(
    stream: WrittenStream, unembedding: Unembedding, start: int = 0
) -> Iterator[tuple[int, Float[Tensor, "B T V"]]]:
    """Logit lens: yield for each layer (0 before the first) the final norm and output map applied to the stream after it.

    Positions are those from `start`. The norm uses each layer's own scale; the last layer gives the model's logits.
    Source: nostalgebraist 2020, Interpreting GPT: the logit lens.
    """
    layers = list(stream.inputs)
    states = dict(zip((0, *layers), (*stream.inputs.values(), stream.output), strict=True))
    for layer, state in states.items():
        x = state[:, start:]
        logits = rescale_parts(x.flatten(0, 1)[:, None], unembedding.norm)[:, 0] @ unembedding.weight.T
        logits = logits if unembedding.bias is None else logits + unembedding.bias
        yield layer, logits.view(*x.shape[:2], -1)


def lens_table(
    stream: WrittenStream, unembedding: Unembedding, tokens: Sequence[str], name: Callable[[int], str], top: int
) -> pl.DataFrame:
    """The likeliest tokens of the first row by the logit lens, and each layer's KL divergence from the model's distribution."""
    by_layer = {layer: logits[0].double().log_softmax(-1) for layer, logits in lens_logits(stream, unembedding)}
    last, rows = by_layer[max(by_layer)], list[NewRow]()
    for layer, logs in by_layer.items():
        divergence = (last.exp() * (last - logs)).nan_to_num(0.0).sum(-1).clamp_min(0)
        best = logs.topk(min(top, logs.shape[-1]), -1)
        for position, token in enumerate(tokens):
            for rank, number in enumerate(best.indices[position].tolist()):
                row: NewRow = {"layer": layer, "position": position, "token": token, "rank": rank + 1}
                row["prediction"], row["kl_nats"] = name(number), float(divergence[position])
                row["probability"] = float(best.values[position, rank].exp())
                rows.append(row)
    return pl.DataFrame(rows, LENS, orient="row")


def direct_table(
    stream: WrittenStream,
    unembedding: Unembedding,
    tokens: Sequence[str],
    name: Callable[[int], str],
    place: int,
    number: int,
    against: int | None = None,
) -> pl.DataFrame:
    """Contribution of each writer, and of each source token of each head, to a token's logit at position `place` of the first row.

    The final norm is linear with its scale fixed at this pass's value; its β and the output's bias are the row 'constant'. Rows
    without a source sum to the logit (less that of the token `against`), those of a head's sources to the head's.
    """
    weight, bias = unembedding.weight, unembedding.bias
    direction = weight[number].double() - (0 if against is None else weight[against].double())
    shift = 0.0 if bias is None else float(bias[number]) - (0.0 if against is None else float(bias[against]))
    about: NewRow = {"token": name(number), "against": None if against is None else name(against)}

    def split(parts: Float[Tensor, "P D"], rest: Float[Tensor, " D"]) -> list[float]:
        """Contributions to the logit of parts of the stream, and last of the rest with the norm's β."""
        return (rescale_parts(torch.cat([parts, rest[None]])[None], unembedding.norm)[0] @ direction).tolist()

    def row(writer: StreamWriter, logit: float, source: int | None = None) -> NewRow:
        where: NewRow = {"writer": writer.name, "layer": writer.layer or None, "head": writer.head or None}
        at = None if source is None else tokens[source]
        return {**about, **where, "source": source, "source_token": at, "logit": logit}

    written = torch.stack([values[0, place].double() for values in stream.written.values()])
    *alone, constant = split(written, torch.zeros_like(written[0]))
    rows = [row(writer, logit) for writer, logit in zip(stream.written, alone, strict=True)]
    rows.append(row(StreamWriter(CONSTANT), constant + shift))
    for layer, trace in stream.traces.items():
        assert trace.w_o is not None, "checked by read_stream"
        values = trace.weights[0, :, place, :, None].double() * trace.values[0].double()
        sources = torch.einsum("hse,hed->hsd", values, trace.w_o.double()).to(direction)
        logits = iter(split(sources.flatten(0, 1), written.sum(0) - sources.sum((0, 1))))
        rows += [
            row(StreamWriter(f"{layer}.h{head + 1}", layer, head + 1), next(logits), source)
            for head in range(trace.heads)
            for source in range(sources.shape[1])
        ]
    return pl.DataFrame(rows, DIRECT, orient="row")


def head_tokens(
    stream: WrittenStream, unembedding: Unembedding, start: int, count: int
) -> Iterator[tuple[Int[Tensor, "T H 2"], Float[Tensor, "T H 2"]]]:
    """Yield for each layer the `count` tokens that each head raises most, then those that it lowers most, at positions from `start`.

    Of the first row; with the head's contribution to their logit as in `direct_table`, less the mean over all tokens.
    """
    for layer, trace in stream.traces.items():
        parts = torch.stack([stream[f"{layer}.h{n + 1}"][0, start:] for n in range(trace.heads)], 1)
        rest = stream.output[0, start:] - parts.sum(1)
        scaled = rescale_parts(torch.cat([parts, rest[:, None]], 1), unembedding.norm)[:, :-1]
        extremes = list[tuple[Tensor, Tensor]]()
        for position in scaled:  # one position at a time: [H V] logits are large
            logits = position @ unembedding.weight.T
            logits = logits - logits.mean(-1, keepdim=True)
            best = [logits.topk(min(count, logits.shape[-1]), -1, largest=largest) for largest in (True, False)]
            extremes.append((torch.cat([b.indices for b in best], -1), torch.cat([b.values for b in best], -1)))
        numbers, values = (torch.stack(each).cpu() for each in zip(*extremes, strict=True))
        yield numbers, values.float()
