"""Path patching: what each earlier writer puts into the query, key or value of a later head, and what that does to the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.subject import (
    AnsweringSubject,
    Batch,
    EditedPasses,
    Parts,
    SiteTarget,
    StreamPoint,
    StreamSubject,
    Writer,
)
from trisect.core.trace import Address, Reading, StreamWriter, Trace, WrittenStream
from trisect.measure.patching import UNKNOWN, put_at

EMBEDDING, POSITION = "embedding", "position"
ROUNDING = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}  # of the stream's largest number
BLOCKS = ("pre", "bare")  # where what a layer adds is part of every later layer's input as it is


def not_additive(name: str, why: str) -> ModelError:
    """The error of a model whose stream is not the sum of what its writers add."""
    todo = "Choose a model whose norms stand inside its blocks, such as GPT-2, GPT-NeoX or Llama."
    return ModelError(f"The writers of {name} do not add up to its residual stream.", why, todo)


def read_stream(subject: AnsweringSubject, batch: Batch, reading: Reading | None = None) -> WrittenStream:
    """What each writer adds, with the law that all of them together are the stream; raises ModelError where they are not.

    `reading` is that of the batch, where it was read before.
    """
    if not isinstance(subject, StreamSubject) or subject.shape.stacks != ("plain",):
        known = f"It has the stacks {', '.join(subject.shape.stacks)}; paths are read in one stack of self-attention."
        raise not_additive(subject.name, known)
    traces = {trace.layer: trace for trace in (reading or subject.trace(batch)).traces}
    layers = subject.shape.layers("plain")
    found: dict[tuple[int, str], list[Tensor]] = {}

    def note(layer: int, where: str, x: Tensor) -> Tensor:
        found.setdefault((layer, where), []).append(x.detach().clone())
        return x

    points = [(n, where) for n in layers for where in ("input", "attention", "output", "parts")] + [(1, "embeddings")]
    streams = {StreamPoint(Address("plain", n), where): lambda x, n=n, w=where: note(n, w, x) for n, where in points}
    subject.stream_outputs(batch, streams)
    if missing := [n for n in layers for where in ("input", "attention", "output") if (n, where) not in found]:
        raise not_additive(subject.name, f"What its layer {missing[0]} adds does not pass through one block.")
    first, inputs = found[layers[0], "input"][0], dict[int, Tensor]()
    written = _embedded(first, found.get((1, "embeddings"), []))
    total = sum(written.values(), torch.zeros_like(first))
    for layer in layers:
        x, attention, y = (found[layer, where][0] for where in ("input", "attention", "output"))
        inputs[layer], trace = x, traces.get(layer)
        _near(subject.name, total, x, f"The writers before layer {layer} are not what enters it.")
        block = None if trace is None else trace.block
        if trace is None or trace.w_o is None or block is None or block.kind not in BLOCKS or block.after is not None:
            normed = block is not None and (block.kind == "post" or block.after is not None)
            why = "followed by a norm" if normed else "in no block that is known"
            why = "not verified" if trace is None or trace.w_o is None else why
            raise not_additive(subject.name, f"The attention of layer {layer} is {why}.")
        heads = torch.einsum("bhte,hed->hbtd", trace.output.to(x), trace.w_o.to(x))
        shift = trace.projections.b_o
        bias = torch.zeros_like(x) if shift is None else shift.to(x).expand_as(x)
        made = heads.sum(0) + bias
        if not _is_near(made, attention) and _is_near(made + x, attention):  # some add the residual in there
            attention = attention - x
        _near(subject.name, made, attention, f"The heads of layer {layer} are not what its attention adds.")
        parts = [p.reshape(x.shape) if p.numel() == x.numel() else p for p in found.get((layer, "parts"), [])]
        idle = not all(bool(part.any()) for part in parts) and _is_near(x + attention, y)
        forward = torch.zeros_like(x) if idle else y - x - attention  # a network that gives nothing leaves rounding
        # a feed-forward block may be known to add to the sum that it gives
        verified = block.forward is not None and block.forward.after is None and any(torch.equal(p, y) for p in parts)
        if not verified and not any(_adds_up((x, attention, part), y) for part in parts):
            zero = torch.zeros_like(forward)
            _near(
                subject.name, forward + x, zero + x, f"Of layer {layer} no module gives what is added beside attention."
            )
        written |= {StreamWriter(f"{layer}.h{n}", layer, n): of for n, of in enumerate(heads, start=1)}
        for name, added in (("mlp", forward), ("bias", bias)):
            if bool(added.any()):
                written[StreamWriter(f"{layer}.{name}", layer)] = added
        total = total + made + forward
    last = found[layers[-1], "output"][0]
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


def _near(name: str, made: Tensor, there: Tensor, why: str) -> None:
    if not _is_near(made, there):
        raise not_additive(name, why)


class Paths:
    """The paths of one batch of pairs into q, k and v of later heads; base and donor have as many tokens.

    `answers` are ids of tokens, the base's first, UNKNOWN where a pair has none. `passes`, where there are any, share what lies below
    a head.
    """

    def __init__(
        self,
        subject: AnsweringSubject,
        base: Batch,
        donor: Batch,
        places: Int[Tensor, " B"],
        answers: Int[Tensor, "B A"],
        passes: EditedPasses | None = None,
    ) -> None:
        assert isinstance(subject, StreamSubject), "read_stream has looked"
        self.subject, self.base, self.places, self.answers = subject, base, places, answers
        self.passes: AnsweringSubject | EditedPasses = subject if passes is None else passes
        self.stream, other = read_stream(subject, base), read_stream(subject, donor)
        written = self.stream.written
        self.change = {w: other.written[w] - own for w, own in written.items() if not w.is_bias}
        self.clean = self._logged(self.passes.outputs(base, None, places=places))
        self._parts: dict[tuple[tuple[StreamWriter, ...], bool, bool], dict[int, Parts]] = {}

    def effect(
        self,
        writers: Sequence[StreamWriter],
        layer: int,
        component: str,
        head: int | None,
        direct: bool,
        rows: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B A"]:
        """How each answer's log-probability changes, in nats, where these writers' donor contributions reach a head alone.

        `direct` holds all between them; else what lies between reacts. `component` may be joint, as in q+k+v; a head of k or v is a
        key/value head, which several query heads share with grouped queries; None: all heads of the layer. With `rows` each base has
        the donor of that row.
        """
        written = self.stream.written
        changes = {
            writer: self.change[writer]
            if rows is None
            else (self.change[writer] + written[writer])[rows] - written[writer]
            for writer in writers
        }
        if not any(bool(change.any()) for change in changes.values()):
            return torch.zeros_like(self.clean)
        parts, address = self._parts_with(changes, layer, direct, rows is not None), Address("plain", layer)
        real = self.base.source.real
        targets = [SiteTarget(address, name, None if head is None else (head,)) for name in component.split("+")]
        made = self.passes.outputs(self.base, {address: put_at(targets, parts, real, real)}, places=self.places)
        return self._logged(made) - self.clean

    def lies_between(self, writer: StreamWriter, layer: int) -> bool:
        """Whether anything can react to a writer before a layer reads."""
        later = (w for w in self.stream.before(layer) if bool(self.stream.written[w].any()))
        return any(w.layer > writer.layer or (w.layer == writer.layer and writer.head and not w.head) for w in later)

    def _parts_with(
        self, changes: Mapping[StreamWriter, Float[Tensor, "B T D"]], layer: int, direct: bool, unrelated: bool
    ) -> Parts:
        """q, k and v of a layer with some writers' contributions changed."""
        key = tuple(changes), direct, unrelated
        if layer not in self._parts.setdefault(key, {}):
            wanted = [layer] if direct else [n for n in self.stream.inputs if n > max(w.layer for w in changes)]
            seen: dict[int, Parts] = {}

            def note(n: int) -> Writer:
                return lambda parts: seen.setdefault(n, Parts(*(part.detach().clone() for part in parts)))

            if direct:
                change = sum(changes.values(), torch.zeros_like(self.stream.inputs[layer]))
                streams = {
                    StreamPoint(Address("plain", layer)): lambda x: self.stream.inputs[layer].to(x) + change.to(x)
                }
            else:
                by_point: dict[StreamPoint, Tensor] = {}
                for w, change in changes.items():
                    where = "attention" if w.head else "output" if w.layer else "input"
                    point = StreamPoint(Address("plain", w.layer or 1), where)
                    by_point[point] = by_point.get(point, 0) + change
                streams = {point: lambda x, more=more: x + more.to(x) for point, more in by_point.items()}
            self.subject.stream_outputs(self.base, streams, {Address("plain", n): note(n) for n in wanted}, self.places)
            self._parts[key].update(seen)
        return self._parts[key][layer]

    def forget(self) -> None:
        """Let go of what was recorded."""
        self._parts.clear()

    def attributed(self, layers: Sequence[int]) -> dict[tuple[int, str, int], Float[Tensor, "W B"]]:
        """By layer, component and head how the base's answer's log-probability changes by way of each writer before it, to first order.

        One pass with gradients for all; effects are direct.
        """
        gradients = self.subject.path_gradients(self.base, self.places, self.answers[:, 0], layers)
        changes = torch.stack(list(self.change.values()))
        return {
            (layer, component, head): torch.einsum(
                "wbtd,btd->wb", changes[: len(self.stream.before(layer))].to(gradient), gradient
            )
            for (layer, component, head), gradient in gradients.items()
        }

    def _logged(self, outputs: Float[Tensor, "B 1 V"]) -> Float[Tensor, "B A"]:
        logged = outputs[:, 0].double().log_softmax(-1).gather(1, self.answers.clamp_min(0).to(outputs.device))
        return torch.where(self.answers.to(outputs.device) == UNKNOWN, torch.nan, logged)


def composition_scores(traces: Mapping[int, Trace]) -> dict[tuple[str, int, str, int], float]:
    """Elhage's weight-only scores of each earlier head into q, k and v of each later one, by writer's name, layer, component and head.

    ‖W_OV W_QK‖ / (‖W_OV‖ ‖W_QK‖) for q (of its transpose for k), with W_OV of the reader for v; the norm's γ is part of the reader.
    Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, section on composition.
    """
    found: dict[tuple[str, int, str, int], float] = {}
    for layer, reader in traces.items():
        for earlier, writer in ((n, t) for n, t in traces.items() if n < layer):
            for h in range(1, reader.heads + 1):
                ends = _reading_maps(reader, h - 1)
                for w in range(1, writer.heads + 1) if ends else ():
                    score = _scores(writer, w - 1, ends)
                    for component, value in score.items():
                        own = h if component == "q" else (h - 1) // reader.group + 1
                        key = f"{earlier}.h{w}", layer, component, own
                        found[key] = max(value, found.get(key, 0.0))  # of the query heads that share a key/value head
    return found


def _reading_maps(trace: Trace, head: int) -> dict[str, tuple[Float[Tensor, "D E"], Float[Tensor, "D E"]]]:
    """For q, k and v the map by which a head reads the stream and the one that follows it; none where they are not known."""
    if trace.w_q is None or trace.w_k is None or trace.w_v is None or trace.w_o is None:
        return {}
    gamma = (
        torch.ones_like(trace.w_q[0, :, :1])
        if trace.block is None or trace.block.kind != "pre"
        else trace.block.gamma[:, None]
    )
    q, k, v = (gamma.double() * of[head * len(of) // trace.heads].double() for of in (trace.w_q, trace.w_k, trace.w_v))
    return {"q": (q, k), "k": (k, q), "v": (v, trace.w_o[head].double().T)}


def _scores(
    writer: Trace, head: int, ends: Mapping[str, tuple[Float[Tensor, "D E"], Float[Tensor, "D E"]]]
) -> dict[str, float]:
    if writer.w_v is None or writer.w_o is None:
        return {}
    value, out = writer.w_v[head * len(writer.w_v) // writer.heads].double(), writer.w_o[head].double()

    def norm(first: Tensor, middle: Tensor, last: Tensor) -> Tensor:
        """‖A M Bᵀ‖ without the product, which is as large as the stream."""
        return ((first.T @ first) @ middle * (middle @ (last.T @ last))).sum().clamp_min(0).sqrt()

    ov = norm(value, torch.eye(value.shape[1], dtype=torch.float64), out.T)
    found = {}
    for component, (reads, follows) in ends.items():
        whole = norm(reads, torch.eye(reads.shape[1], dtype=torch.float64), follows)
        found[component] = float(norm(value, out @ reads, follows) / (ov * whole).clamp_min(1e-300))
    return found
