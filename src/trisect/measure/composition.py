"""Path patching: the effect of each earlier writer on the answer through the query, key or value of a later head."""

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
from trisect.measure.patching import UNKNOWN, replace_at

EMBEDDING, POSITION = "embedding", "position"
# tolerances relative to the largest number of the stream
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
EDITS_AT_ONCE = 64  # edits whose q, k and v are in memory at once
BLOCKS = ("pre", "bare")  # kinds of block in which a layer's output is added unchanged to every later layer's input


def _not_additive(name: str, reason: str) -> ModelError:
    """The error for a model whose residual stream is not the sum of its writers' outputs."""
    todo = "Choose a model whose norms stand inside its blocks, such as GPT-2, GPT-NeoX or Llama."
    return ModelError(f"The writers of {name} do not add up to its residual stream.", reason, todo)


def read_stream(subject: AnsweringSubject, batch: Batch, reading: Reading | None = None) -> WrittenStream:
    """Split the residual stream into the outputs of its writers; raises ModelError if they do not sum to the stream.

    `reading` is that of the batch, if it has been read before.
    """
    if not isinstance(subject, StreamSubject) or subject.shape.stacks != ("plain",):
        reason = f"It has the stacks {', '.join(subject.shape.stacks)}; paths are read in one stack of self-attention."
        raise _not_additive(subject.name, reason)
    traces = {trace.layer: trace for trace in (reading or subject.trace(batch)).traces}
    layers = subject.shape.layers("plain")
    recorded: dict[tuple[int, str], list[Tensor]] = {}

    def note(layer: int, where: str, x: Tensor) -> Tensor:
        recorded.setdefault((layer, where), []).append(x.detach().clone())
        return x

    points = [(n, where) for n in layers for where in ("input", "attention", "output", "parts")] + [(1, "embeddings")]
    streams = {StreamPoint(Address("plain", n), where): lambda x, n=n, w=where: note(n, w, x) for n, where in points}
    subject.stream_outputs(batch, streams)
    if missing := [n for n in layers for where in ("input", "attention", "output") if (n, where) not in recorded]:
        raise _not_additive(subject.name, f"The output of layer {missing[0]} does not pass through one block.")
    first, inputs = recorded[layers[0], "input"][0], dict[int, Tensor]()
    written = _split_embedding(first, recorded.get((1, "embeddings"), []))
    total = sum(written.values(), torch.zeros_like(first))
    for layer in layers:
        x, attention, y = (recorded[layer, where][0] for where in ("input", "attention", "output"))
        inputs[layer], trace = x, traces.get(layer)
        _check_near(subject.name, total, x, f"The writers before layer {layer} do not sum to its input.")
        block = None if trace is None else trace.block
        if trace is None or trace.w_o is None or block is None or block.kind not in BLOCKS or block.after is not None:
            normed = block is not None and (block.kind == "post" or block.after is not None)
            why = "followed by a norm" if normed else "in no known kind of block"
            why = "not verified" if trace is None or trace.w_o is None else why
            raise _not_additive(subject.name, f"The attention of layer {layer} is {why}.")
        heads = torch.einsum("bhte,hed->hbtd", trace.output.to(x), trace.w_o.to(x))
        shift = trace.projections.b_o
        bias = torch.zeros_like(x) if shift is None else shift.to(x).expand_as(x)
        added = heads.sum(0) + bias
        if not _is_near(added, attention) and _is_near(added + x, attention):  # the module adds the residual
            attention = attention - x
        _check_near(subject.name, added, attention, f"The heads of layer {layer} do not sum to its attention's output.")
        parts = [p.reshape(x.shape) if p.numel() == x.numel() else p for p in recorded.get((layer, "parts"), [])]
        has_forward = all(bool(part.any()) for part in parts) or not _is_near(x + attention, y)
        forward = y - x - attention if has_forward else torch.zeros_like(x)  # not the rounding error of the difference
        # a located feed-forward block may return the sum with the residual
        verified = (
            block.forward is not None and block.forward.sum_norm is None and any(torch.equal(p, y) for p in parts)
        )
        if not verified and not any(_adds_up((x, attention, part), y) for part in parts):
            _check_near(
                subject.name, forward + x, x, f"In layer {layer} no module returns what is added beside attention."
            )
        written |= {StreamWriter(f"{layer}.h{n}", layer, n): head for n, head in enumerate(heads, start=1)}
        for name, part in (("mlp", forward), ("bias", bias)):
            if bool(part.any()):
                written[StreamWriter(f"{layer}.{name}", layer)] = part
        total = total + added + forward
    last = recorded[layers[-1], "output"][0]
    _check_near(subject.name, total, last, f"All writers do not sum to the output of layer {layers[-1]}.")
    return WrittenStream(inputs, last, written, traces)


def _split_embedding(
    first: Float[Tensor, "B T D"], parts: Sequence[Tensor]
) -> dict[StreamWriter, Float[Tensor, "B T D"]]:
    """Split the stream before the first layer into embedding and positions, if it is the sum of two recorded embeddings."""
    fitting = [p.expand_as(first) for p in parts if p.shape[-2:] == first.shape[-2:] and p.shape[0] in (1, len(first))]
    if len(fitting) == 2 and _is_near(fitting[0] + fitting[1], first):
        return {StreamWriter(EMBEDDING): fitting[0], StreamWriter(POSITION): fitting[1]}
    return {StreamWriter(EMBEDDING): first}


def _is_near(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return float((a - b).abs().max()) <= ROUNDING[b.dtype] * max(float(b.abs().max()), 1e-30)


def _adds_up(parts: Sequence[Tensor], y: Float[Tensor, "B T D"]) -> bool:
    """Whether tensors sum to y, each number within the rounding of its terms."""
    if any(part.shape != y.shape for part in parts):
        return False
    exact = [part.double() for part in parts]
    bound = 16 * torch.finfo(y.dtype).eps * sum(part.abs() for part in exact)
    return bool(((sum(exact) - y.double()).abs() <= bound).all())


def _check_near(name: str, a: Tensor, b: Tensor, reason: str) -> None:
    if not _is_near(a, b):
        raise _not_additive(name, reason)


class Paths:
    """Path patching of one batch of pairs into q, k and v of later heads; base and donor have equally many tokens.

    `answers` [B A] are token ids, the base's first, UNKNOWN if a pair has none; `places` are the positions of the answers.
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
        assert isinstance(subject, StreamSubject), "checked by read_stream"
        self.subject, self.base, self.places, self.answers, self.passes = subject, base, places, answers, passes
        self.stream, other = read_stream(subject, base), read_stream(subject, donor)
        written = self.stream.written
        self.change = {w: other.written[w] - value for w, value in written.items() if not w.is_bias}

    @functools.cached_property
    def clean(self) -> Float[Tensor, "B A"]:
        """The answers' log-probabilities without an edit, in nats."""
        return self._log_probabilities(self.passes.outputs(self.base, None, places=self.places))

    def effects(
        self, edits: Sequence[tuple[Sequence[StreamWriter], int, str, int | None, bool, Int[Tensor, " B"] | None]]
    ) -> list[Float[Tensor, "B A"]]:
        """For each edit the change of each answer's log-probability, in nats, if a head reads the donor's output of some writers.

        An edit is (writers, layer, component, head, direct, rows). A direct edit freezes everything between writers and head, else
        layers in between react. The component may be joint, as q+k+v; a head of k or v is a key/value head, shared by several query
        heads with grouped queries; None means all heads of the layer. With rows [B] each base gets the donor of that row.
        """
        clean, real = self.clean, self.base.source.real
        changed = [torch.zeros_like(clean) for _ in edits]
        # direct edits restart at the reading layer, the others at their first writer's layer
        start_layers = [edit[1] if edit[4] else min(writer.layer for writer in edit[0]) for edit in edits]
        numbers = sorted(range(len(edits)), key=lambda i: (edits[i][1], start_layers[i]), reverse=True)
        groups = itertools.groupby(numbers, lambda i: (edits[i][1], start_layers[i]))
        for (layer, _), indices in ((key, list(group)) for key, group in groups):
            address = Address("plain", layer)
            for chunk in (indices[start : start + EDITS_AT_ONCE] for start in range(0, len(indices), EDITS_AT_ONCE)):
                keys = {i: (tuple(edits[i][0]), edits[i][4], id(edits[i][5])) for i in chunk}
                first = {key: edits[i] for i, key in reversed(keys.items())}
                changes = {k: self._changes(edit[0], layer if edit[4] else None, edit[5]) for k, edit in first.items()}
                changes = {k: points for k, points in changes.items() if any(bool(x.any()) for x in points.values())}
                replaced = self.passes.stream_parts(self.base, list(changes.values()), address)
                parts = dict(zip(changes, replaced, strict=True))
                keys = {i: key for i, key in keys.items() if key in parts}
                writes = list[dict[Address, Writer]]()
                for i, key in keys.items():
                    heads = None if (head := edits[i][3]) is None else (head,)
                    targets = [SiteTarget(address, name, heads) for name in edits[i][2].split("+")]
                    writes.append({address: replace_at(targets, parts[key], real, real)})
                outputs = self.passes.output_each(self.base, writes, self.places)
                for i, output in zip(keys, outputs, strict=True):
                    changed[i] = self._log_probabilities(output) - clean
        return changed

    def _changes(
        self, writers: Sequence[StreamWriter], reader: int | None, rows: Int[Tensor, " B"] | None
    ) -> dict[StreamPoint, Float[Tensor, "B T D"]]:
        """Changes of the stream by the donor, after each writer or before the layer `reader`; with `rows` by other pairs' donors."""
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

    def has_writer_between(self, writer: StreamWriter, layer: int) -> bool:
        """Whether another writer lies between a writer and a later layer, so that it could react."""
        later = (w for w in self.stream.writers_before(layer) if bool(self.stream.written[w].any()))
        return any(w.layer > writer.layer or (w.layer == writer.layer and writer.head and not w.head) for w in later)

    def attribute(self, layers: Sequence[int]) -> dict[tuple[int, str, int], Float[Tensor, "W B"]]:
        """First-order direct effects of each earlier writer on the base answer's log-probability, by (layer, component, head).

        Computed from one pass with gradients.
        """
        gradients = self.subject.path_gradients(self.base, self.places, self.answers[:, 0], layers)
        changes = torch.stack(list(self.change.values()), 1).flatten(2)
        effects: dict[tuple[int, str, int], Tensor] = {}
        for layer in layers:
            layer_gradients = {key: gradient for key, gradient in gradients.items() if key[0] == layer}
            slopes = torch.stack(list(layer_gradients.values()), 1).flatten(2)
            before = changes[:, : len(self.stream.writers_before(layer))].to(slopes)
            effects |= zip(layer_gradients, (slopes @ before.mT).permute(1, 2, 0), strict=True)
        return effects

    def _log_probabilities(self, outputs: Float[Tensor, "B 1 V"]) -> Float[Tensor, "B A"]:
        logged = outputs[:, 0].double().log_softmax(-1).gather(1, self.answers.clamp_min(0).to(outputs.device))
        return torch.where(self.answers.to(outputs.device) == UNKNOWN, torch.nan, logged)


def composition_scores(traces: Mapping[int, Trace]) -> dict[tuple[str, int, str, int], float]:
    """Weight-only composition scores of each earlier head with q, k and v of each later one, by (writer, layer, component, head).

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
                    scores[key] = max(
                        score, scores.get(key, 0.0)
                    )  # the maximum over query heads that share a key/value head
    return scores


def _per_head(trace: Trace, weights: Float[Tensor, "K D E"]) -> Float[Tensor, "H D E"]:
    """A projection per query head in float64; those of key/value heads are repeated."""
    return weights.double().repeat_interleave(trace.heads // len(weights), 0)


def _reading_maps(trace: Trace) -> dict[str, tuple[Float[Tensor, "H D E"], Float[Tensor, "H D E"]]]:
    """For q, k and v each head's map from the stream and the map that follows it; empty if they are unknown."""
    if trace.w_q is None or trace.w_k is None or trace.w_v is None or trace.w_o is None:
        return {}
    gamma = 1.0 if trace.block is None or trace.block.kind != "pre" else trace.block.gamma[:, None].double()
    q, k, v = (gamma * _per_head(trace, weights) for weights in (trace.w_q, trace.w_k, trace.w_v))
    return {"q": (q, k), "k": (k, q), "v": (v, trace.w_o.double().mT)}


def _product_norms(
    first: Float[Tensor, "... D E"], middle: Float[Tensor, "... E F"], last: Float[Tensor, "... D F"]
) -> Float[Tensor, "..."]:
    """Frobenius norms ‖A M Bᵀ‖ without forming the D × D product."""
    squares = (first.mT @ first) @ middle * (middle @ (last.mT @ last))
    return squares.sum((-2, -1)).clamp_min(0).sqrt()
