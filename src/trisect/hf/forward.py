"""Forward passes of a verified model, recorded and edited; from the first layer, or restarted at the edited layer."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from trisect.core.errors import ModelError, reraise_out_of_memory
from trisect.core.subject import QKV, Batch, ModelInputs, RowScores, StreamPoint, Writer
from trisect.core.trace import Address
from trisect.hf.batches import first_tensor, output_at, row_scores
from trisect.hf.files.checkpoints import State, check_state, check_writes
from trisect.hf.files.model_errors import ModelOutOfMemoryError, check_ids, memory_guard
from trisect.hf.hooks.calls import (
    NO_EDITS,
    Call,
    Calls,
    Edits,
    ModelOutput,
    copy_caches,
    edits_at,
    evaluating,
    map_tensors,
    outline,
    replace_forwards,
    synchronized,
    tensors_in,
)
from trisect.hf.hooks.edit import beside_edits, edited_streams, list_around, open_edits
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.locate.affine import affine_modules
from trisect.hf.verify.laws import checking
from trisect.hf.verify.proof import Proof

HASH_BLOCK = 1 << 20  # numbers that are hashed at once
# bytes of block outputs that may be stored: at least, and as a share of the weights' bytes
MIN_CACHE_BYTES, CACHE_SHARE = 64 * 2**20, 0.2


class _RestartBlock(NamedTuple):
    """A module of a ModuleList (named `row`) in one pass: attention calls made before and after it, and its output, or None."""

    module: nn.Module
    row: str
    before: int
    after: int
    output: Any


class _RestartPoint(NamedTuple):
    """Where a pass can restart: after block `last`, skipping `calls` attention calls; `outputs` replaces the skipped blocks."""

    last: int
    calls: int
    outputs: Mapping[nn.Module, ModelOutput]


@dataclass(eq=False)
class PrefixReuse:
    """Which shortcuts of edited passes are known to give a model's own numbers.

    `works` becomes false for good once a restart differs from a full pass. `checked` holds the restarts compared with a full
    pass, bit for bit: the block, and whether an edit below it ran before, since a model may cache what it computed there.
    `apart` is the reason why edits run one at a time, empty while several share a pass; `compared` holds the shared passes
    checked so far: first edited call, restart, and whether maps were narrowed (None: q, k and v only).
    `narrows` becomes false if maps above the last attention (`late`) cannot be restricted to the requested positions.
    """

    works: bool = True
    checked: set[tuple[int, bool]] = field(default_factory=set)
    apart: str = ""
    compared: set[tuple[int, tuple[int, bool] | None, bool | None]] = field(default_factory=set)
    narrows: bool = True
    late: list[nn.Module] = field(default_factory=list)


class Prefix:
    """One unedited pass over one batch: the blocks that ran, in order, and their outputs.

    If all outputs would take too much memory, every n-th is stored, and the last of each ModuleList.
    """

    def __init__(self, model: nn.Module, attention: Sequence[str]) -> None:
        self.blocks: list[_RestartBlock] = []
        self.usable = True
        # the innermost ModuleList around each attention module, by its dotted name
        names = dict.fromkeys(list_around(model, name) for name in attention)
        rows: dict[str, Any] = {name: model.get_submodule(name) for name in names if name is not None}
        self._rows: dict[str, list[nn.Module]] = {name: list(row) for name, row in rows.items()}
        total_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self._max_bytes = max(MIN_CACHE_BYTES, int(CACHE_SHARE * total_bytes))
        self._open = 0

    @contextmanager
    def recording(self, calls: Calls) -> Iterator[None]:
        """Record every block of the pass inside; `calls` is the growing list of attention calls."""
        starts = dict[nn.Module, int]()

        def enter(module: nn.Module, _inputs: Any) -> None:
            self.usable = self.usable and not self._open and module not in starts  # no nested and no repeated block
            self._open += 1
            starts[module] = len(calls)

        def leave(row: str, module: nn.Module, _inputs: Any, output: Any) -> None:
            self._open -= 1
            self.blocks.append(_RestartBlock(module, row, starts[module], len(calls), output))
            # drop outputs that exceed the memory limit
            total, size = sum(map(len, self._rows.values())), _bytes(output)
            self.usable = self.usable and size is not None
            every = max(1, -(-total * (size or 0) // self._max_bytes))
            if len(self.blocks) > 1 and (len(self.blocks) - 1) % every and self.blocks[-2].row == row:
                self.blocks[-2] = self.blocks[-2]._replace(output=None)

        with ExitStack() as hooks:
            for row, module in ((row, module) for row, modules in self._rows.items() for module in modules):
                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(functools.partial(leave, row)))
            yield
        # every attention call up to the last block has to be made inside a block
        ends = [0, *(block.after for block in self.blocks)]
        in_a_row = all(block.before == end for block, end in zip(self.blocks, ends, strict=False))
        self.usable = self.usable and bool(self.blocks) and in_a_row

    def before(self, order: int) -> _RestartPoint | None:
        """The last restart point for a pass that edits call `order`; None if it needs a full pass."""
        if not self.usable:
            return None
        below = [i for i, block in enumerate(self.blocks) if block.after <= order]
        for last in reversed(range(len(below))):
            blocks = self.blocks[: last + 1]
            ends = {block.row: block for block in blocks}
            # each output is stored, or the block only feeds the last one of its list, whose output can stand in if the classes agree
            outputs = {b.module: ends[b.row].output if b.output is None else b.output for b in blocks}
            alike = all(b.output is not None or type(ends[b.row].module) is type(b.module) for b in blocks)
            if alike and all(output is not None for output in outputs.values()):
                return _RestartPoint(last, blocks[-1].after, outputs)
        return None


def hash_tensor(t: Tensor) -> str:
    """Hash a tensor's shape, type and bits; zeros of either sign are equal, and so are all NaNs."""
    digest = hashlib.blake2b(str((tuple(t.shape), t.dtype)).encode(), digest_size=16)
    for part in t.detach().flatten().split(HASH_BLOCK):
        bits = torch.where(part.isnan(), torch.nan, part) + 0.0
        digest.update(bits.cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _bytes(output: Any) -> int | None:
    """Bytes of the tensors in an output; None if it holds anything but tensors, numbers, strings, tuples, lists and None."""
    if isinstance(output, Tensor):
        return output.numel() * output.element_size()
    if output is None or isinstance(output, bool | int | float | str):
        return 0
    if type(output) not in (tuple, list):
        return None
    sizes = [_bytes(item) for item in output]
    return None if None in sizes else sum(size or 0 for size in sizes)


class OtherCallsError(ModelError):
    """A pass with other attention calls than the one on loading: the inputs are of another kind."""


class _EarlyEndError(Exception):
    """Stops a forward pass after the layer to be read."""


class ProvedModel(NamedTuple):
    """A model with its tokenizer, its forward's argument names, its proof, and the state of its weights at loading."""

    name: str
    model: nn.Module
    tokenizer: Any
    accepts: frozenset[str]
    proof: Proof
    state: State | None = None

    @property
    def modules(self) -> list[str]:
        """The modules that make its attention calls, in order."""
        return [call.module for call in self.proof.weights]


def run_forward(
    proved: ProvedModel,
    inputs: ModelInputs,
    edits: Edits,
    take: Callable[[Call], Call] = outline,
    prefix: Prefix | None = None,
    start: _RestartPoint | None = None,
    follow: bool = False,
    narrow: tuple[Sequence[nn.Module], Int[Tensor, "B N"], int] | None = None,
    looks: bool = True,
) -> tuple[Sequence[Call], ModelOutput]:
    """Run one forward pass; return its attention calls, each as `take` reduces it, and the model's output, with a graph if `follow`.

    Outputs of blocks are recorded in `prefix`; with `start` the pass restarts there. `narrow` = (maps, positions [B N], T)
    computes these maps, after the last attention, only at the given positions of T: the output is valid there alone.
    Raises OtherCallsError for more or fewer calls than on loading, ModelError for another order of calls.
    """
    values = own_inputs(proved, inputs)
    check_ids(proved.name, proved.model, proved.tokenizer, values)
    proved.proof.agreement.check_autocast(proved.name, proved.model)
    calls = Calls(take, looks)
    if start is not None:
        nothing = torch.empty(0, device="meta")
        left_out = enumerate(proved.modules[: start.calls])
        calls.extend(Call(name, order, nothing, nothing, nothing, None, nothing, None) for order, name in left_out)
    with ExitStack() as around:
        hook = proved.proof.hook(proved.model, around.enter_context(beside_edits(proved.model, edits)), calls=calls)
        for context in (torch.set_grad_enabled(follow), evaluating(proved.model), copy_caches(proved.model), hook):
            around.enter_context(context)
        if prefix is not None:
            around.enter_context(prefix.recording(calls))
        if start is not None:
            # the blocks below return their recorded outputs without being run
            fresh = {id(output): map_tensors(output, Tensor.clone) for output in start.outputs.values()}
            give = lambda output, *_args, **_kwargs: output  # noqa: E731
            replaced = {m: functools.partial(give, fresh[id(output)]) for m, output in start.outputs.items()}
            around.enter_context(replace_forwards(replaced))
        if narrow is not None:
            late, *at = narrow
            is_early = lambda: len(calls) < len(proved.modules)  # noqa: E731
            forwards = {module: functools.partial(_map_at, module.forward, is_early, *at) for module in late}
            around.enter_context(replace_forwards(forwards))
        around.enter_context(memory_guard(proved.name, "Running", values))
        answer = proved.model(**values)
    todo = (
        "Give inputs of the kind that it was loaded with, or load it with these as an example: load(model, inputs=...)."
    )
    if len(calls) != len(proved.modules):
        problem = f"{proved.name} made {len(calls)} attention calls."
        raise OtherCallsError(problem, f"On loading it made {len(proved.modules)}.", todo)
    for call, module in zip(calls, proved.modules, strict=True):
        if call.module != module:
            problem = f"Attention call {call.order} of {proved.name}, counted from 0, was made by {call.module!r}."
            raise ModelError(problem, f"On loading it was made by {module!r}.", todo)
    return list(calls), answer


def _map_at(
    forward: Callable[..., Any],
    is_early: Callable[[], bool],
    places: Int[Tensor, "B N"],
    length: int,
    x: Any,
    *rest: Any,
) -> Any:
    """Apply a map at some positions of each row and return arbitrary values elsewhere; at all positions while `is_early()`."""
    if is_early() or rest or not isinstance(x, Tensor) or x.dim() != 3 or x.shape[:2] != (len(places), length):
        return forward(x, *rest)
    rows, places = torch.arange(len(places), device=x.device)[:, None], places.to(x.device)
    narrow = forward(x[rows, places])
    if places.shape[1] == 1:
        return narrow.expand(-1, length, -1)
    filled = narrow.new_zeros(*x.shape[:2], narrow.shape[-1])
    filled[rows, places] = narrow
    return filled


def _run_clean(
    proved: ProvedModel, inputs: ModelInputs, prefix: Prefix | None, listeners: Mapping[Address, Writer]
) -> tuple[Sequence[Call], ModelOutput]:
    """Run one forward pass without edits and check its laws, unless edits are in force; raises ModelError if a law fails.

    Listeners get q, k and v of the interface hook's calls.
    """
    addresses = enumerate(proved.proof.addresses)
    by_order = {order: listeners[address] for order, address in addresses if address in listeners}
    proof, looks = proved.proof, proved.proof.agreement.should_check_laws(inputs)
    laws = proof.call_laws() if looks and not open_edits(proved.model) else ()

    def meet(call: Call) -> Call:
        if proof.read_at(call) is not None:
            checker.call(call)
        if call.order in by_order:
            by_order[call.order](QKV(call.q, call.k, call.v))
        return outline(call)

    with torch.no_grad(), checking(proved.model, proved.name, laws, proof.addresses, inputs) as checker:
        calls, answer = run_forward(proved, inputs, NO_EDITS, meet, prefix, looks=looks)
    check_after(proved, looks)
    confirm(proved, inputs, calls, answer)
    return calls, answer


def check_after(proved: ProvedModel, looks: bool = True) -> None:
    """Raise ModelError if weights changed since loading; all of them are hashed if the pass `looks` at its laws, but not inside a command
    that samples its checks, which hashes them at its end.
    """
    hashes = looks and proved.proof.agreement.draw is None
    (check_state if hashes else check_writes)(proved.name, proved.state, proved.model)


def confirm(proved: ProvedModel, inputs: ModelInputs, calls: Sequence[Call], answer: ModelOutput) -> None:
    """Compare a pass without edits with the model's own output, if its texts are longer than any before."""
    if open_edits(proved.model):
        return
    proved.proof.agreement.confirm(proved.name, proved.model, own_inputs(proved, inputs), calls, answer)


def own_inputs(proved: ProvedModel, inputs: ModelInputs) -> ModelInputs:
    """The inputs of a batch that the model gets, without labels; raises ModelError for a name that its forward does not take."""
    values = {name: value for name, value in inputs.items() if name != "labels"}
    strange = sorted(values.keys() - proved.accepts)
    parameters = inspect.signature(proved.model.forward).parameters.values() if strange else ()
    if strange and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        problem = f"{', '.join(map(repr, strange))} was given to {proved.name}."
        reason = f"Its forward takes {', '.join(sorted(proved.accepts - {'labels'})[:8]) or 'no named arguments'}."
        raise ModelError(problem, reason, "Leave it out, or give it by the name that the model has for it.")
    for name, value in values.items():
        if isinstance(value, Tensor) and 0 in value.shape[:2]:
            problem = f"The input {name!r} of {proved.name} is empty: its shape is {tuple(value.shape)}."
            raise ModelError(problem, "A pass has at least one row and one position.", "Leave empty texts out.")
    # without mask and cache, transformers reads a row whose position ids restart as several packed texts
    places = values.get("position_ids")
    packed = isinstance(places, Tensor) and values.get("attention_mask") is None and (places.diff(dim=-1) != 1).any()
    return values | ({"use_cache": False} if "use_cache" in proved.accepts and not packed else {})


def path_gradients(
    proved: ProvedModel, batch: Batch, places: Int[Tensor, " B"], answers: Int[Tensor, " B"], layers: Sequence[int]
) -> dict[tuple[int, str, int], Float[Tensor, "B T D"]]:
    """Gradients of an answer's log-probability with respect to a layer's input, through one head's q, k or v alone.

    By (layer, component, head) of the stack 'plain', from one forward pass.
    """
    addresses = proved.proof.addresses
    streams: dict[int, Tensor] = {}
    seen: dict[int, QKV] = {}
    uses: list[tuple[nn.Module, Tensor, Tensor]] = []  # linear maps with input and output, since the start of the layer
    maps: dict[int, list[tuple[nn.Module, Tensor, Tensor]]] = {}

    def enter(n: int, x: Tensor) -> Tensor:
        uses.clear()
        streams[n] = x if x.requires_grad else x.detach().requires_grad_()
        return streams[n]

    def note(n: int, parts: QKV) -> QKV:
        maps[n] = [use for use in uses if use[2].requires_grad]
        return seen.setdefault(n, parts)

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        uses.extend([(module, inputs[0], output)] if inputs else [])

    points = {StreamPoint(a): functools.partial(enter, a.layer) for a in addresses}
    write = {Address("plain", n): functools.partial(note, n) for n in layers}
    paths: dict[tuple[int, str, int], Tensor] = {}
    calls = list(zip(addresses, proved.modules, strict=True))
    with ExitStack() as around:
        for module in proved.model.modules():
            if type(module) in (nn.Linear, Conv1D):
                around.callback(module.register_forward_hook(keep).remove)
        around.enter_context(torch.enable_grad())
        around.enter_context(edited_streams(proved.name, proved.model, calls, points))
        answer = run_forward(proved, batch.inputs, edits_at(addresses, write), follow=True)[1]
        logits = first_tensor(answer)[torch.arange(len(places)), places].double().log_softmax(-1)
        total = logits.gather(1, answers[:, None].to(logits.device)).sum()
        gradients = iter(torch.autograd.grad(total, [part for n in layers for part in seen[n]], retain_graph=True))
        for n in layers:
            for component, part in zip("qkv", seen[n], strict=True):
                by_head = _head_gradients(part, next(gradients), streams[n], maps[n])
                paths |= {(n, component, head): into for head, into in enumerate(by_head, start=1)}
    return paths


def _head_gradients(
    part: Float[Tensor, "B H T E"],
    gradient: Float[Tensor, "B H T E"],
    stream: Float[Tensor, "B T D"],
    maps: Sequence[tuple[nn.Module, Tensor, Tensor]],
) -> list[Float[Tensor, "B T D"]]:
    """The gradient through each head of q, k or v with respect to the layer's input.

    A head's gradient is 0 at the other heads' outputs of W: if one linear map makes the part, only the head's own rows of the
    weight are multiplied, and the sum over heads is checked against the gradient of all heads.
    """

    def through(output: Tensor, entered: Tensor, head: int) -> Tensor:
        upstream = torch.zeros_like(gradient)
        upstream[:, head] = gradient[:, head]
        return torch.autograd.grad(output, entered, upstream, retain_graph=True)[0].detach()

    outputs = [output for _, _, output in maps]
    used = torch.autograd.grad(part, outputs, gradient, retain_graph=True, allow_unused=True) if maps else ()
    makers = [entry for entry, value in zip(maps, used, strict=True) if value is not None]
    if len(makers) == 1 and all(p.device == part.device for p in makers[0][0].parameters()):
        module, x, y = makers[0]
        weight: Any = module.weight if isinstance(module, nn.Linear) else module.weight.T

        def narrow(head: int) -> Tensor:
            slopes = through(part, y, head)
            columns = slopes.flatten(0, -2).any(0).nonzero()[:, 0]
            upstream = slopes[..., columns] @ weight.detach()[columns].to(slopes)
            return torch.autograd.grad(x, stream, upstream, retain_graph=True)[0].detach()

        (joint,) = torch.autograd.grad(part, stream, gradient, retain_graph=True)
        by_head = [narrow(head) for head in range(part.shape[1])]
        bound = max(OUTPUT_TOLERANCES[joint.dtype], 1e-6) * float(joint.abs().max())  # some norms round to float32
        if float((sum(by_head) - joint).abs().max()) <= bound:
            return by_head
    return [through(part, stream, head) for head in range(part.shape[1])]


def stream_parts(
    proved: ProvedModel,
    batch: Batch,
    changes: Sequence[Mapping[StreamPoint, Float[Tensor, "B T D"]]],
    address: Address,
    start: _RestartPoint | None,
) -> list[QKV]:
    """q, k and v of a layer under each of several additions to the residual stream, from one pass over a copy of the batch for each."""
    rows, count, seen = len(batch.source.tokens), len(changes), list[QKV]()

    def note(parts: QKV) -> QKV:
        seen.append(QKV(*(part.detach().clone() for part in parts)))
        if proved.proof.hook is record_interface:
            raise _EarlyEndError
        return parts

    def add(point: StreamPoint, x: Tensor) -> Tensor:
        nothing = torch.zeros_like(x[: len(x) // count])
        return x + torch.cat([change.get(point, nothing).to(x) for change in changes])

    streams = {point: functools.partial(add, point) for change in changes for point in change}
    calls = list(zip(proved.proof.addresses, proved.modules, strict=True))
    begin = None if start is None else start._replace(outputs=_copies(start.outputs, rows, count))
    edits = edits_at(proved.proof.addresses, {address: note})
    with edited_streams(proved.name, proved.model, calls, streams), suppress(_EarlyEndError):
        run_forward(proved, _copies(batch.inputs, rows, count), edits, start=begin)
    return [QKV(*parts) for parts in zip(*(part.chunk(count) for part in seen[0]), strict=True)]


FULL_PASS_NOTE = (
    "Every edited pass ran from the first layer: restarted at the edited layer, this model gives other numbers."
)
SEPARATE_NOTE = (
    "Edits were made one at a time: several in one pass gave other numbers, since the rows of this model's batch are not "
    "independent."
)
NO_ROWS = (
    "Edits were made one at a time: this model's inputs or outputs have no row for each text of a batch, so that copies of a batch "
    "cannot share a pass."
)
ERROR_NOTE = "Edits were made one at a time: a pass with several of them raised an error in this model ({})."
# relative tolerance of outputs whose sums run in another order
OUTPUT_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
K = TypeVar("K")
ON_GPU = 8  # edits that share a pass on a GPU; on a CPU as many as the three limits below allow
MAX_STREAM_NUMBERS = 1 << 20  # numbers of the residual stream in a pass of several edits
MAX_WEIGHT_NUMBERS = 1 << 21  # attention weights of a layer in one: beyond the cache, sharing is slower
MAX_OUTPUT_NUMBERS = 1 << 24  # numbers of the output in one
HeldWeights = Mapping[Address, Float[Tensor, "B H T S"]] | None
Written = Mapping[Address, Writer] | None


@dataclass(eq=False)
class SharedPasses:
    """Edited passes over batches of one model that reuse the unedited outputs of the layers below the edit.

    Each restart point is compared with a full pass once, bit for bit; if it differs, all later passes are full ones, as are all of
    models recorded by the product hook. Up to `together` edits share a pass over as many copies of a small batch; the result equals
    that of single edits to rounding, which is checked once per call. If memory runs out, the number is halved.
    """

    proved: ProvedModel
    objective: str
    restarts: PrefixReuse
    together: int = 64
    _batch: Batch | None = None
    _answer: tuple[int, ...] = ()
    _hold: HeldWeights = None
    _prefix: Prefix | None = None
    _lowest: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Which shortcuts were not used, and why."""
        return (*(() if self.restarts.works else (FULL_PASS_NOTE,)), *filter(None, (self.restarts.apart,)))

    @synchronized
    def begin(self, batch: Batch, hold: HeldWeights = None, listeners: Written = None) -> ModelOutput:
        """Run one unedited pass, store its blocks' outputs, and return the model's output; without `hold`, listeners get its q, k and v."""
        self._batch, self._hold, self._prefix, self._lowest = batch, hold, None, None
        shares = self.restarts.works and self.proved.proof.hook is record_interface
        prefix = Prefix(self.proved.model, self.proved.modules) if shares else None
        if hold:
            check_after(self.proved)
            edits = edits_at(self.proved.proof.addresses, None, hold)
            answer = run_forward(self.proved, batch.inputs, edits, prefix=prefix)[1]
        else:
            answer = _run_clean(self.proved, batch.inputs, prefix, listeners or {})[1]
        self._prefix, self._answer = prefix, tuple(first_tensor(answer).shape)
        return answer

    @synchronized
    def read(
        self, batch: Batch, listeners: Mapping[Address, Writer], places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """As `begin`, with the outputs of `output_at`; of the product hook the listeners are edits of another pass."""
        listens = self.proved.proof.hook is record_interface
        answer = self.begin(batch, None, listeners if listens else None)
        return output_at(answer, places) if listens else self.outputs(batch, listeners, places)

    @synchronized
    def score(
        self, batch: Batch, write: Written = None, hold: HeldWeights = None, clean: RowScores | None = None
    ) -> RowScores:
        """The model's own loss of one batch, row by row."""
        answer = self.begin(batch, hold) if not write else self._run_edits(batch, write, hold)
        return row_scores(answer, batch, self.objective, clean)

    @synchronized
    def score_each(
        self,
        batch: Batch,
        writers: Sequence[Writer],
        address: Address,
        hold: HeldWeights = None,
        clean: RowScores | None = None,
    ) -> list[RowScores]:
        """The score under each of several edits of one call."""
        writes = [{address: writer} for writer in writers]
        return [row_scores(y, batch, self.objective, clean) for y in self._answers(batch, writes, hold, None)]

    @synchronized
    def output_each(
        self, batch: Batch, writes: Sequence[Mapping[Address, Writer]], places: Int[Tensor, "B ..."] | None = None
    ) -> list[Float[Tensor, "B T V"]]:
        """The outputs under each of several edits."""
        places = None if places is None else places.view(len(places), -1)
        return [output_at(answer, places) for answer in self._answers(batch, writes, None, places)]

    def _answers(
        self,
        batch: Batch,
        writes: Sequence[Mapping[Address, Writer]],
        hold: HeldWeights,
        places: Int[Tensor, "B N"] | None,
    ) -> Iterator[ModelOutput]:
        """Yield the model's output under each edit, several per pass; only at the positions `places` if given."""
        done, heads = 0, max((sizes.query for sizes in self.proved.proof.shape.heads.values()), default=1)
        while done < len(writes):
            outputs = [block.output for block in self._prefix.blocks] if self._prefix is not None else []
            room = [self.together]
            for stream in tensors_in(outputs)[:1]:
                pairs = heads * stream.shape[0] * stream.shape[1] ** 2 if stream.dim() == 3 else 1
                limits = [MAX_STREAM_NUMBERS // stream.numel(), MAX_WEIGHT_NUMBERS // pairs]
                limits += [MAX_OUTPUT_NUMBERS // math.prod(self._answer)] if places is None else []
                room += [ON_GPU] if stream.is_cuda else limits
            group = writes[done : done + max(1, min(room))]
            try:
                answers = self._together(batch, group, hold, places) if len(group) > 1 or places is not None else None
            except (torch.OutOfMemoryError, ModelOutOfMemoryError):
                if len(group) == 1:
                    raise
                self.together = len(group) // 2
                continue
            yield from (self._run_edits(batch, write, hold) for write in group) if answers is None else answers
            done += len(group)

    def _together(
        self,
        batch: Batch,
        writes: Sequence[Mapping[Address, Writer]],
        hold: HeldWeights,
        places: Int[Tensor, "B N"] | None,
    ) -> Sequence[Tensor] | None:
        """The outputs from one pass over a copy of the batch for each edit; None if edits have to run one at a time."""
        count, rows = len(writes), len(batch.source.tokens)
        addresses, restarts = self.proved.proof.addresses, self.restarts

        def write(address: Address, parts: QKV) -> QKV:
            split = (QKV(*row_parts) for row_parts in zip(*(part.chunk(count) for part in parts), strict=True))
            pairs = zip((edit.get(address) for edit in writes), split, strict=True)
            written = (row_parts if writer is None else writer(row_parts) for writer, row_parts in pairs)
            return QKV(*(torch.cat(parts) for parts in zip(*written, strict=True)))

        while not restarts.apart and self.proved.proof.hook is record_interface:
            written = {address: functools.partial(write, address) for edit in writes for address in edit}
            edits = edits_at(addresses, written, _copies(hold or {}, rows, count))
            start, narrow, fault = self._start(batch, edits, hold), None, ""
            if places is not None and restarts.narrows and batch is self._batch and len(self._answer) == 3:
                narrow = self._late(), places.repeat(count, 1), self._answer[1]
            key = min(edits.write), None if start is None else self._place(start), narrow is not None
            begin = None if start is None else start._replace(outputs=_copies(start.outputs, rows, count))
            try:
                inputs = _copies(batch.inputs, rows, count)
                answer = first_tensor(run_forward(self.proved, inputs, edits, start=begin, narrow=narrow)[1])
                fault = "" if answer.shape[0] == rows * count else NO_ROWS
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                reraise_out_of_memory(error)
                fits = all(t.dim() and t.shape[0] == rows for t in tensors_in(batch.inputs.values()))
                answer, fault = torch.empty(0), ERROR_NOTE.format(type(error).__name__) if fits else NO_ROWS
            if not fault and key not in restarts.compared:
                reference = run_forward(self.proved, batch.inputs, edits_at(addresses, writes[-1], hold))[1]
                fault = "" if near(output_at(answer[-rows:], places), output_at(reference, places)) else SEPARATE_NOTE
            if not fault:
                self._note_lowest(edits)
                restarts.compared.add(key)
                return answer.split(rows)
            if narrow is not None:
                restarts.narrows = False
            elif start is not None and key[1] not in restarts.checked:
                self._run_edits(batch, writes[-1], hold)  # compares a pass restarted there with a full one
            else:
                restarts.apart = fault
        return None

    def _late(self) -> list[nn.Module]:
        """The affine maps that may run after the last attention: those outside the blocks below the last."""
        if not self.restarts.late:
            below = self._prefix.blocks[:-1] if self._prefix is not None and self._prefix.usable else ()
            inside = {module for block in below for module in block.module.modules()}
            maps = (m for _, m in affine_modules(self.proved.model) if not isinstance(m, nn.Conv1d))
            self.restarts.late = [module for module in maps if module not in inside]
        return self.restarts.late

    @synchronized
    def stream_parts(
        self, batch: Batch, changes: Sequence[Mapping[StreamPoint, Float[Tensor, "B T D"]]], address: Address
    ) -> list[QKV]:
        """q, k and v of a layer under each of several additions to the residual stream; only the layers in between are run.

        Checked once per restart point against a full pass, to rounding.
        """
        order, parts_seen = {a: i for i, a in enumerate(self.proved.proof.addresses)}, list[QKV]()
        while len(parts_seen) < len(changes):
            shares = not self.restarts.apart and self.proved.proof.hook is record_interface
            first = next(iter(changes[0].values()))
            room = min(self.together, ON_GPU if first.is_cuda else MAX_STREAM_NUMBERS // first.numel()) if shares else 1
            group = changes[len(parts_seen) : len(parts_seen) + max(1, room)]
            lowest = min(order[point.address] for change in group for point in change)
            prefix = self._prefix if shares and batch is self._batch and not self._hold else None
            start = None if prefix is None else prefix.before(lowest)
            key = lowest, None if start is None else self._place(start), None
            try:
                group_parts = stream_parts(self.proved, batch, group, address, start)
            except (torch.OutOfMemoryError, ModelOutOfMemoryError):
                if len(group) == 1:
                    raise
                self.together = len(group) // 2
                continue
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                if not shares:
                    raise
                self.restarts.apart = ERROR_NOTE.format(type(error).__name__)
                continue
            if shares and key not in self.restarts.compared and (start is not None or len(group) > 1):
                (stream,) = stream_parts(self.proved, batch, group[-1:], address, None)
                if not all(near(*both) for both in zip(group_parts[-1], stream, strict=True)):
                    if start is None:
                        self.restarts.apart = SEPARATE_NOTE
                    else:
                        self.restarts.works, self._prefix = False, None
                    continue
                self.restarts.compared.add(key)
            self._lowest = lowest if self._lowest is None else min(lowest, self._lowest)
            parts_seen += group_parts
        return parts_seen

    @synchronized
    def outputs(
        self, batch: Batch, write: Written = None, places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """Logits, or last hidden states, on the CPU; see `output_at`."""
        answer = self.begin(batch, None) if not write else self._run_edits(batch, write, None)
        return output_at(answer, places)

    def _run_edits(self, batch: Batch, write: Mapping[Address, Writer], hold: HeldWeights) -> Any:
        edits = edits_at(self.proved.proof.addresses, write, hold)
        start = self._start(batch, edits, hold)
        place = None if start is None else self._place(start)
        self._note_lowest(edits)
        if start is None or place is None:
            return run_forward(self.proved, batch.inputs, edits)[1]
        if place in self.restarts.checked:
            return run_forward(self.proved, batch.inputs, edits, start=start)[1]
        digest = None  # a hash, so that the first output need not be stored
        try:
            digest = hash_tensor(first_tensor(run_forward(self.proved, batch.inputs, edits, start=start)[1]))
        except ModelOutOfMemoryError:
            raise
        except Exception as error:  # this model cannot be restarted
            reraise_out_of_memory(error)
        complete = run_forward(self.proved, batch.inputs, edits)[1]
        if digest != hash_tensor(first_tensor(complete)):
            self.restarts.works, self._prefix = False, None
        self.restarts.checked.add(place)
        return complete

    def _note_lowest(self, edits: Edits) -> None:
        """Record the lowest call that was edited since the unedited pass."""
        self._lowest = min(n for n in (self._lowest, *edits.write, *edits.hold) if n is not None)

    def _place(self, start: _RestartPoint) -> tuple[int, bool]:
        """The block after which a pass restarts, and whether a pass since the unedited one was edited below it."""
        return start.last, self._lowest is not None and self._lowest < start.calls

    def _start(self, batch: Batch, edits: Edits, hold: HeldWeights) -> _RestartPoint | None:
        """The restart point of a pass: below it nothing is edited and held weights are unchanged."""
        if self._prefix is None or batch is not self._batch:
            return None
        order = {address: i for i, address in enumerate(self.proved.proof.addresses)}
        before, now = self._hold or {}, hold or {}
        changed = [order[a] for a in {*before, *now} if before.get(a) is not now.get(a)]
        return self._prefix.before(min([*edits.write, *changed]))


def _copies(values: Mapping[K, Any], rows: int, count: int) -> dict[K, Any]:
    """Repeat tensors that have the batch's rows as their first axis `count` times; names of one object share the copy."""
    repeat = lambda t: torch.cat([t] * count) if t.dim() and t.shape[0] == rows else t  # noqa: E731
    originals = {id(value): value for value in values.values()}
    same = {key: map_tensors(value, repeat) for key, value in originals.items()}
    return {name: same[id(value)] for name, value in values.items()}


def near(answer: Tensor, reference: Tensor) -> bool:
    """Whether two outputs are equal to rounding."""
    if answer.shape != reference.shape:
        return False
    is_finite = reference.isfinite() & answer.isfinite()
    size = float(reference[is_finite].abs().max()) if bool(is_finite.any()) else 0.0
    same = bool((reference.isfinite() == answer.isfinite()).all())
    return same and bool(((answer - reference)[is_finite].abs() <= OUTPUT_TOLERANCES[reference.dtype] * size).all())
