"""Path patching: what each earlier writer puts into the query, key or value of a later head, and what that does to the answer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import (
    AnsweringSubject,
    Batch,
    EditedPasses,
    SiteTarget,
    StreamPoint,
    StreamSubject,
    Writer,
)
from trisect.core.trace import Address, Reading, StreamWriter, Trace, WrittenStream
from trisect.measure.patching import UNKNOWN, put_at

EMBEDDING, POSITION = "embedding", "position"
# of the stream's largest number
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
TOGETHER = 64  # edits whose q, k and v are held at once
BLOCKS = ("pre", "bare")  # where what a layer adds is part of every later layer's input as it is


def _not_additive(name: str, why: str) -> ModelError:
    """The error of a model whose stream is not the sum of what its writers add."""
    todo = "Choose a model whose norms stand inside its blocks, such as GPT-2, GPT-NeoX or Llama."
    return ModelError(f"The writers of {name} do not add up to its residual stream.", why, todo)


def read_stream(subject: AnsweringSubject, batch: Batch, reading: Reading | None = None) -> WrittenStream:
    """What each writer adds, with the law that all of them together are the stream; raises ModelError where they are not.

    `reading` is that of the batch, where it was read before.
    """
    if not isinstance(subject, StreamSubject) or subject.shape.stacks != ("plain",):
        reason = f"It has the stacks {', '.join(subject.shape.stacks)}; paths are read in one stack of self-attention."
        raise _not_additive(subject.name, reason)
    traces = {trace.layer: trace for trace in (reading or subject.trace(batch)).traces}
    layers = subject.shape.layers("plain")
    seen: dict[tuple[int, str], list[Tensor]] = {}

    def note(layer: int, where: str, x: Tensor) -> Tensor:
        seen.setdefault((layer, where), []).append(x.detach().clone())
        return x

    points = [(n, where) for n in layers for where in ("input", "attention", "output", "parts")] + [(1, "embeddings")]
    streams = {StreamPoint(Address("plain", n), where): lambda x, n=n, w=where: note(n, w, x) for n, where in points}
    subject.stream_outputs(batch, streams)
    if missing := [n for n in layers for where in ("input", "attention", "output") if (n, where) not in seen]:
        raise _not_additive(subject.name, f"What its layer {missing[0]} adds does not pass through one block.")
    first, inputs = seen[layers[0], "input"][0], dict[int, Tensor]()
    written = _embedded(first, seen.get((1, "embeddings"), []))
    total = sum(written.values(), torch.zeros_like(first))
    for layer in layers:
        x, attention, y = (seen[layer, where][0] for where in ("input", "attention", "output"))
        inputs[layer], trace = x, traces.get(layer)
        _near(subject.name, total, x, f"The writers before layer {layer} are not what enters it.")
        block = None if trace is None else trace.block
        if trace is None or trace.w_o is None or block is None or block.kind not in BLOCKS or block.after is not None:
            normed = block is not None and (block.kind == "post" or block.after is not None)
            why = "followed by a norm" if normed else "in no block that is known"
            why = "not verified" if trace is None or trace.w_o is None else why
            raise _not_additive(subject.name, f"The attention of layer {layer} is {why}.")
        heads = torch.einsum("bhte,hed->hbtd", trace.output.to(x), trace.w_o.to(x))
        shift = trace.projections.b_o
        bias = torch.zeros_like(x) if shift is None else shift.to(x).expand_as(x)
        added = heads.sum(0) + bias
        if not _is_near(added, attention) and _is_near(added + x, attention):  # some add the residual in there
            attention = attention - x
        _near(subject.name, added, attention, f"The heads of layer {layer} are not what its attention adds.")
        parts = [p.reshape(x.shape) if p.numel() == x.numel() else p for p in seen.get((layer, "parts"), [])]
        idle = not all(bool(part.any()) for part in parts) and _is_near(x + attention, y)
        forward = torch.zeros_like(x) if idle else y - x - attention  # a network that gives nothing leaves rounding
        # a feed-forward block may be known to add to the sum that it gives
        verified = (
            block.forward is not None and block.forward.sum_norm is None and any(torch.equal(p, y) for p in parts)
        )
        if not verified and not any(_adds_up((x, attention, part), y) for part in parts):
            _near(subject.name, forward + x, x, f"Of layer {layer} no module gives what is added beside attention.")
        written |= {StreamWriter(f"{layer}.h{n}", layer, n): of for n, of in enumerate(heads, start=1)}
        for name, part in (("mlp", forward), ("bias", bias)):
            if bool(part.any()):
                written[StreamWriter(f"{layer}.{name}", layer)] = part
        total = total + added + forward
    last = seen[layers[-1], "output"][0]
    _near(subject.name, total, last, f"All writers are not what leaves layer {layers[-1]}.")
    return WrittenStream(inputs, last, written, traces)


def _embedded(first: Float[Tensor, "B T D"], parts: Sequence[Tensor]) -> dict[StreamWriter, Float[Tensor, "B T D"]]:
    """The stream before the first layer as embedding and positions, where the model adds two that are known."""
    fitting = [p.expand_as(first) for p in parts if p.shape[-2:] == first.shape[-2:] and p.shape[0] in (1, len(first))]
    if len(fitting) == 2 and _is_near(fitting[0] + fitting[1], first):
        return {StreamWriter(EMBEDDING): fitting[0], StreamWriter(POSITION): fitting[1]}
    return {StreamWriter(EMBEDDING): first}


def _is_near(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return float((a - b).abs().max()) <= ROUNDING[b.dtype] * max(float(b.abs().max()), 1e-30)


def _adds_up(parts: Sequence[Tensor], y: Float[Tensor, "B T D"]) -> bool:
    """Whether tensors sum to y, each number to within the rounding of what is added."""
    if any(part.shape != y.shape for part in parts):
        return False
    exact = [part.double() for part in parts]
    bound = 16 * torch.finfo(y.dtype).eps * sum(part.abs() for part in exact)
    return bool(((sum(exact) - y.double()).abs() <= bound).all())


def _near(name: str, a: Tensor, b: Tensor, why: str) -> None:
    if not _is_near(a, b):
        raise _not_additive(name, why)


class Paths:
    """The paths of one batch of pairs into q, k and v of later heads; base and donor have as many tokens.

    `answers` are ids of tokens, the base's first, UNKNOWN where a pair has none. `passes` share what they can.
    """

    def __init__(
        self,
        subject: AnsweringSubject,
        base: Batch,
        donor: Batch,
        places: Int[Tensor, " B"],
        answers: Int[Tensor, "B A"],
        passes: EditedPasses,
    ) -> None:
        assert isinstance(subject, StreamSubject), "read_stream has looked"
        self.subject, self.base, self.places, self.answers, self.passes = subject, base, places, answers, passes
        self.stream, other = read_stream(subject, base), read_stream(subject, donor)
        written = self.stream.written
        self.change = {w: other.written[w] - value for w, value in written.items() if not w.is_bias}

    @functools.cached_property
    def clean(self) -> Float[Tensor, "B A"]:
        """The answers' log-probabilities without an edit, in nats."""
        return self._logged(self.passes.outputs(self.base, None, places=self.places))

    def effects(
        self, edits: Sequence[tuple[Sequence[StreamWriter], int, str, int | None, bool, Int[Tensor, " B"] | None]]
    ) -> list[Float[Tensor, "B A"]]:
        """How each answer's log-probability changes, in nats, where some writers' donor contributions reach a head alone, for each edit.

        An edit is writers, layer, component, head, whether it is direct, and rows. A direct one holds all between them; else what lies
        between reacts. The component may be joint, as in q+k+v; a head of k or v is a key/value head, which several query heads share
        with grouped queries; None: all heads of the layer. With rows each base has the donor of that row.
        """
        clean, real = self.clean, self.base.source.real
        changed = [torch.zeros_like(clean) for _ in edits]
        # direct ones begin at the layer that reads, the others where their first writer stands
        begins = [of[1] if of[4] else min(writer.layer for writer in of[0]) for of in edits]
        numbers = sorted(range(len(edits)), key=lambda i: (edits[i][1], begins[i]), reverse=True)
        groups = itertools.groupby(numbers, lambda i: (edits[i][1], begins[i]))
        for (layer, _), numbered in ((key, list(group)) for key, group in groups):
            address = Address("plain", layer)
            for few in (numbered[start : start + TOGETHER] for start in range(0, len(numbered), TOGETHER)):
                keys = {i: (tuple(edits[i][0]), edits[i][4], id(edits[i][5])) for i in few}
                first = {key: edits[i] for i, key in reversed(keys.items())}
                changes = {key: self._changes(of[0], layer if of[4] else None, of[5]) for key, of in first.items()}
                changes = {key: of for key, of in changes.items() if any(bool(change.any()) for change in of.values())}
                replaced = self.passes.stream_parts(self.base, list(changes.values()), address)
                parts = dict(zip(changes, replaced, strict=True))
                keys = {i: key for i, key in keys.items() if key in parts}
                writes = list[dict[Address, Writer]]()
                for i, key in keys.items():
                    heads = None if (head := edits[i][3]) is None else (head,)
                    targets = [SiteTarget(address, name, heads) for name in edits[i][2].split("+")]
                    writes.append({address: put_at(targets, parts[key], real, real)})
                outputs = self.passes.output_each(self.base, writes, self.places)
                for i, output in zip(keys, outputs, strict=True):
                    changed[i] = self._logged(output) - clean
        return changed

    def _changes(
        self, writers: Sequence[StreamWriter], reader: int | None, rows: Int[Tensor, " B"] | None
    ) -> dict[StreamPoint, Float[Tensor, "B T D"]]:
        """What a donor changes where it is written, or before the layer that reads; with rows of the batch, another pair's donor."""
        points: dict[StreamPoint, Tensor] = {}
        for writer in writers:
            base, change = self.stream.written[writer], self.change[writer]
            if reader is not None:
                point = StreamPoint(Address("plain", reader))
            elif writer.head:
                point = StreamPoint(Address("plain", writer.layer), "attention")
            else:
                point = StreamPoint(Address("plain", next(n for n in self.stream.inputs if n > writer.layer)))
            points[point] = points.get(point, 0) + (change if rows is None else (change + base)[rows] - base)
        return points

    def lies_between(self, writer: StreamWriter, layer: int) -> bool:
        """Whether anything can react to a writer before a layer reads."""
        later = (w for w in self.stream.writers_before(layer) if bool(self.stream.written[w].any()))
        return any(w.layer > writer.layer or (w.layer == writer.layer and writer.head and not w.head) for w in later)

    def attributed(self, layers: Sequence[int]) -> dict[tuple[int, str, int], Float[Tensor, "W B"]]:
        """By layer, component and head how the base's answer's log-probability changes by way of each writer before it, to first order.

        One pass with gradients for all; effects are direct.
        """
        gradients = self.subject.path_gradients(self.base, self.places, self.answers[:, 0], layers)
        changes = torch.stack(list(self.change.values()), 1).flatten(2)
        effects: dict[tuple[int, str, int], Tensor] = {}
        for layer in layers:
            of_layer = {key: gradient for key, gradient in gradients.items() if key[0] == layer}
            slopes = torch.stack(list(of_layer.values()), 1).flatten(2)
            before = changes[:, : len(self.stream.writers_before(layer))].to(slopes)
            effects |= zip(of_layer, (slopes @ before.mT).permute(1, 2, 0), strict=True)
        return effects

    def _logged(self, outputs: Float[Tensor, "B 1 V"]) -> Float[Tensor, "B A"]:
        logged = outputs[:, 0].double().log_softmax(-1).gather(1, self.answers.clamp_min(0).to(outputs.device))
        return torch.where(self.answers.to(outputs.device) == UNKNOWN, torch.nan, logged)


def composition_scores(traces: Mapping[int, Trace]) -> dict[tuple[str, int, str, int], float]:
    """Elhage's weight-only scores of each earlier head into q, k and v of each later one, by writer's name, layer, component and head.

    ‖W_OV W_QK‖ / (‖W_OV‖ ‖W_QK‖) for q (of its transpose for k), with W_OV of the reader for v; the norm's γ is part of the reader.
    Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, section on composition.
    """
    scores: dict[tuple[str, int, str, int], float] = {}
    for layer, reader in traces.items():
        for component, (reads, follows) in _reading_maps(reader).items():
            unchanged = torch.eye(reads.shape[2], dtype=reads.dtype, device=reads.device)
            reading = _product_norms(reads, unchanged, follows)
            for earlier, writer in traces.items():
                if earlier >= layer or writer.w_v is None or writer.w_o is None:
                    continue
                values, outputs = _per_head(writer, writer.w_v), writer.w_o.double()
                writing = _product_norms(values, torch.eye(values.shape[2]).to(values), outputs.mT)
                both = _product_norms(values[:, None], torch.einsum("wed,hdf->whef", outputs, reads), follows)
                ratios = both / (writing[:, None] * reading).clamp_min(1e-300)
                for (w, h), score in zip(np.ndindex(*ratios.shape), ratios.flatten().tolist(), strict=True):
                    key = f"{earlier}.h{w + 1}", layer, component, h + 1 if component == "q" else h // reader.group + 1
                    scores[key] = max(score, scores.get(key, 0.0))  # of the query heads that share a key/value head
    return scores


def _per_head(trace: Trace, weights: Float[Tensor, "K D E"]) -> Float[Tensor, "H D E"]:
    """A projection of every query head, those of key/value heads repeated, in float64."""
    return weights.double().repeat_interleave(trace.heads // len(weights), 0)


def _reading_maps(trace: Trace) -> dict[str, tuple[Float[Tensor, "H D E"], Float[Tensor, "H D E"]]]:
    """For q, k and v the map by which each head reads the stream and the one that follows it; none where they are not known."""
    if trace.w_q is None or trace.w_k is None or trace.w_v is None or trace.w_o is None:
        return {}
    gamma = 1.0 if trace.block is None or trace.block.kind != "pre" else trace.block.gamma[:, None].double()
    q, k, v = (gamma * _per_head(trace, of) for of in (trace.w_q, trace.w_k, trace.w_v))
    return {"q": (q, k), "k": (k, q), "v": (v, trace.w_o.double().mT)}


def _product_norms(
    first: Float[Tensor, "... D E"], middle: Float[Tensor, "... E F"], last: Float[Tensor, "... D F"]
) -> Float[Tensor, "..."]:
    """‖A M Bᵀ‖ of each, without the product, which is as large as the stream."""
    squares = (first.mT @ first) @ middle * (middle @ (last.mT @ last))
    return squares.sum((-2, -1)).clamp_min(0).sqrt()
