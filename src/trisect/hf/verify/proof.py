"""Verification of a loaded model (its proof): coverage, laws of attention, projections and cause, with a verdict per layer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trisect.core.errors import ModelError, import_optional, report_step, reraise_out_of_memory
from trisect.core.files import Json
from trisect.core.machine import without_collection
from trisect.core.subject import QKV, Heads, ModelInputs, Shape
from trisect.core.trace import NAMES, Address, find_shared_weights, spell_layers
from trisect.hf.batches import first_tensor
from trisect.hf.files.model_errors import memory_guard, summarize_error, translate_errors
from trisect.hf.hooks.calls import (
    NO_EDITS,
    Call,
    CallHook,
    Calls,
    Edits,
    ProductMemo,
    copy_caches,
    copy_call,
    evaluating,
    gradients_of,
    replace_forwards,
    synchronized,
    traceable_forward,
    without_compile,
    without_recompute,
)
from trisect.hf.hooks.edit import open_edits
from trisect.hf.hooks.interface_hook import eager, record_interface
from trisect.hf.hooks.product_hook import IN_PIECES, UnreadAttention, find_pieces, following, record_products
from trisect.hf.locate.affine import TOLERANCE, CallLaws, is_affine
from trisect.hf.locate.blocks import Around
from trisect.hf.locate.weights import CallWeights, find_weights, tolerance
from trisect.hf.verify.agreement import (
    NO_ROUNDING,
    Agreement,
    Response,
    Rounding,
    autocast_of,
    check_kv_cache,
    copy_saved_tensors,
    differentiate_quantisation,
    find_other_scales,
    find_response,
    largest_rounding_tolerance,
    longest,
    rounding_of,
)
from trisect.hf.verify.examples import example_inputs, shorten_positions
from trisect.hf.verify.sources import find_addresses, find_position_shifts

NO_SOFTMAX = "it mixes its sequence without a softmax of one product of queries and keys"


class _Coverage(NamedTuple):
    """Attention that the better hook records, and that no hook does; by how much recording (`moved`) and eager attention (`apart`,
    relative) change the output.
    """

    hook: CallHook
    words: str
    calls: tuple[Call, ...]
    unread: tuple[UnreadAttention, ...]
    answer: Tensor
    moved: float
    apart: float


@torch.no_grad()
def _read_coverage(model: nn.Module, inputs: ModelInputs, memo: ProductMemo) -> _Coverage:
    """Run both hooks and choose the one that records more, else the interface; raises ModelError for a model that is not deterministic."""
    with _attending(model) as ran, without_compile():
        own_answer = first_tensor(model(**inputs))
    with memo.suspended():
        with following(model, calls=Calls(copy_call)) as follower:
            followed = first_tensor(model(**inputs))
        # a second pass that differs may be the hook's doing or the model's
        is_same = torch.equal(own_answer, followed) or torch.equal(own_answer, first_tensor(model(**inputs)))
    if not is_same:
        if count := int(own_answer.isnan().sum()):  # NaN differs from itself
            reason = f"{count:,} of {own_answer.numel():,} numbers of its output are NaN: its activations overflow."
            todo = "Look at its weights, or read it in a wider precision, such as float64."
            raise ModelError(f"{type(model).__name__} returns NaN.", reason, todo)
        problem = f"{type(model).__name__} answers the same inputs in two ways."
        raise ModelError(problem, "It cannot be verified unless it is deterministic.", "Switch its randomness off.")
    plain = error = None
    with traceable_forward():
        # PyTorch's fast path may give another output
        open_own = own_answer if torch.equal(own_answer, followed) else first_tensor(model(**inputs))
        try:
            with eager(model):
                plain = first_tensor(model(**inputs))
        except RuntimeError as own_error:  # it has no eager attention that runs
            reraise_out_of_memory(own_error)
            error = own_error
    calls, taped = Calls(copy_call), own_answer
    if plain is not None:
        with record_interface(model, NO_EDITS, calls=calls):
            taped = first_tensor(model(**inputs))
    elif not follower.calls:
        problem = f"{type(model).__name__} cannot be computed with eager attention, which shows its weights."
        reason = f"The model says: {' '.join(str(error).split())[:200]}"
        raise ModelError(problem, reason, "Choose a model whose eager attention runs.") from error
    read = [c.module for c in (*calls, *follower.calls)]
    cut = [s for s in follower.unread if s.words == IN_PIECES and not _among(s.module, read)]
    pieces = find_pieces(model, inputs, cut)
    if pieces:
        with following(model, pieces=pieces, calls=Calls(copy_call)) as follower:
            followed = first_tensor(model(**inputs))
    by_tape = bool(calls) and len(calls) >= len(follower.calls)
    limit = max(TOLERANCE[own_answer.dtype], largest_rounding_tolerance(model))
    if plain is not None and len(calls) == len(follower.calls) and not _apart(plain, own_answer) <= limit:
        by_tape = not _apart(open_own, own_answer) <= limit  # as it was loaded, where eager attention is another
    chosen, other = (calls, follower.calls) if by_tape else (follower.calls, calls)
    read = [c.module for c in chosen]
    covered = [p.module for p in pieces] + (read if by_tape else [])
    unread = [s for s in follower.unread if not _among(s.module, covered)]
    unread += [UnreadAttention(c.module, "only the other hook sees it") for c in other if not _among(c.module, read)]
    named = read + [s.module for s in unread]
    unread += [UnreadAttention(name, NO_SOFTMAX) for name in ran if not _among(name, named)]
    silent = _silent_layers(model, named) if chosen else []
    unread += [s for s in silent if not _among(s.module, [*named, *(u.module for u in unread)])]
    hook, words = (record_interface, "interface") if by_tape else (partial(record_products, pieces=pieces), "product")
    shown, answer = plain if by_tape and plain is not None else open_own, taped if by_tape else followed
    changes = _change(answer, shown), _apart(shown, own_answer)
    return _Coverage(hook, words, tuple(chosen), tuple(dict.fromkeys(unread)), answer, *changes)


def _silent_layers(model: nn.Module, attending: Sequence[str]) -> list[UnreadAttention]:
    """The layers of a hybrid model without attention, beside layers with attention in one list."""
    silent, shared = [], {id(model.get_submodule(name)) for name in attending}
    for name, module in model.named_modules():
        layers = {f"{name}.{n}" if name else n: c for n, c in module.named_children()}
        inner = any(part.isdigit() for part in name.split("."))  # a list of the parts of one layer, as in T5
        if inner or not isinstance(module, nn.ModuleList) or len(layers) < 2:
            continue
        loud = {place for place in layers if any(a.startswith(f"{place}.") or a == place for a in attending)}
        loud |= {place for place, layer in layers.items() if not shared.isdisjoint(map(id, layer.modules()))}
        usual = {n for place in loud for n, _ in layers[place].named_children()}
        for place in layers.keys() - loud if loud else ():
            extra = [n for n, _ in layers[place].named_children() if n not in usual]
            mixer = f"{place}.{extra[0]}" if extra else place
            words = f"it computes no softmax of one product of queries and keys ({type(model.get_submodule(mixer)).__name__})"
            silent.append(UnreadAttention(mixer, words))
    return sorted(silent)


@contextlib.contextmanager
def _attending(model: nn.Module) -> Iterator[list[str]]:
    """Collect the names of modules that run inside and look like attention: by class name with three affine maps, or torch's own."""
    ran: list[str] = []
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            kind = type(module).__name__.lower()
            is_named = ("attention" in kind or "attn" in kind) and sum(map(is_affine, module.children())) >= 3
            if is_named or isinstance(module, nn.MultiheadAttention):
                hook = partial(lambda name, *_args: ran.append(name), name)
                stack.callback(module.register_forward_pre_hook(hook).remove)
        yield ran


def _among(name: str, others: Sequence[str]) -> bool:
    """Whether a module is one of the others, inside one, or around one."""
    return any(name == o or name.startswith(f"{o}.") or o.startswith(f"{name}.") or not o for o in others)


def _apart(a: Tensor, answer: Tensor) -> float:
    """Largest difference from the model's output, relative to its largest magnitude, without zeros (the fast path's padding)."""
    if a.shape != answer.shape or not answer.dim():
        return _change(a, answer)
    off = float((a - answer)[answer.ne(0)].abs().amax() if answer.any() else 0.0)
    return off / float(answer.abs().max().clamp_min(1e-30))


def _change(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.shape == b.shape else float("inf")


TODO = "Choose a model with softmax attention over full sequences, or run `trisect check` for details."


PART = "part of the layer's output, {:.2g} %"
SUM_OF = "its scores are a sum of {} products; q and k are those of one of them"
SUM_BELOW_ONE = "rows of weights sum to less than 1, and not because of a sink in the softmax"
OTHER_STEPS = "with gradients it makes other attention calls than without"


class Law(NamedTuple):
    """Results of checking the laws of one attention call.

    `rows` is the largest |sum of weights − 1|, `mixing` the largest |weights v − output| relative to the largest
    output, `sink` whether rows may sum to less, `ahead` whether a position attends to a later one. `cause` says
    of q, k and v whether a write there reaches the output, `order` why rows are not in the order of positions. `fault` is
    another reason not to read the call; `scaled` says that its weights respond to q and k as a softmax
    of `scale` q·k does, by derivatives and by values; `terms` is that of the Call.
    """

    rows: float
    mixing: float
    sink: bool
    cause: tuple[bool, bool, bool]
    allowed: float
    ahead: bool = False
    order: str = ""
    fault: str = ""
    scaled: bool = True
    terms: int = 1

    @property
    def failure(self) -> str:
        """The law that fails, in words; empty if all hold."""
        if self.fault:
            return self.fault
        if not (self.rows <= self.allowed or self.sink):
            return f"rows of weights sum to 1 only within {self.rows:.1e}"
        if not self.mixing <= self.allowed:
            return f"weights times v miss the output by {self.mixing:.1e}"
        if not all(self.cause):
            dead = ", ".join(n for n, reached in zip("qkv", self.cause, strict=True) if not reached)
            return f"writes to {dead} do not reach the output"
        return self.order


@dataclass(frozen=True, eq=False)
class Proof:
    """The result of verifying a model, one attention call at a time, and how to read it.

    `weights` follows the order of calls; `unread` is attention that no hook reads. A layer whose law fails is not valid
    and is not read. `refusal` is the error if nothing can be read, or reading changes the output. `rounding` says
    how far q, k, v and the output of a quantised model would move without rounding of inputs. `shared`
    says which layers, or which of q, k, v and W_O, use the same parameters.
    """

    name: str
    hook: CallHook
    words: str
    addresses: tuple[Address, ...]
    weights: tuple[CallWeights, ...] = field(repr=False)
    laws: tuple[Law, ...]
    shape: Shape
    unread: tuple[UnreadAttention, ...] = ()
    refusal: ModelError | None = None
    rounding: Rounding = NO_ROUNDING
    agreement: Agreement = field(default_factory=lambda: Agreement(0, float("inf")), repr=False)
    shared: tuple[str, ...] = ()

    def rows(self) -> tuple[dict[str, str], ...]:
        """A row of words per layer, and one per attention that is not read."""
        rows = []
        for address, weights, law in zip(self.addresses, self.weights, self.laws, strict=True):
            row = {"layer": str(address), "module": weights.module, "hook": self.words}
            row["laws"] = f"rows {law.rows:.0e}{' (sink)' if law.sink else ''}, output {law.mixing:.0e}"
            for name in NAMES:
                origin = weights.projections.origins[name]
                row[name] = origin.how + ("" if origin.residual is None else f" ({origin.residual:.0e})")
            row["cause"] = " ".join(n for n, yes in zip("qkv", law.cause, strict=True) if yes) or "none"
            hows = {n: weights.projections.origins[n].how for n in NAMES}
            short = [f"{n} {how}" for n, how in hows.items() if how not in ("rows", "normed")]
            short += [PART.format(100 * weights.share)] if weights.share < 1 else []
            verdict = f"not verified: {law.failure}" if law.failure else ", ".join(["verified", *short])
            rows.append(row | {"verdict": verdict})
        empty = dict.fromkeys(("layer", "module", "hook", "laws", *NAMES, "cause"), "")
        for missing in self.unread:
            rows.append(empty | {"module": missing.module, "hook": "none", "verdict": f"not verified: {missing.words}"})
        return tuple(rows)

    def __repr__(self) -> str:
        read = sum(weights.valid for weights in self.weights)
        return f"<Proof of {self.name}: {read} of {len(self.weights) + len(self.unread)} attention layers verified>"

    def to_dict(self) -> dict[str, Json]:
        """The rows, shared parameters, and why nothing is read (or None), as JSON-ready data."""
        rows: list[Json] = [dict(row) for row in self.rows()]
        refusal = None if self.refusal is None else str(self.refusal)
        return {"model": self.name, "layers": rows, "shared": list(self.shared), "refusal": refusal}

    def to_pandas(self) -> Any:
        """The rows as a pandas.DataFrame; needs the package pandas."""
        rows = self.rows()
        return import_optional("pandas").DataFrame(
            {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        )

    def call_laws(self) -> tuple[CallLaws | None, ...]:
        """The laws that every read checks, call by call; None for calls that are not read."""
        return tuple(weights.laws if weights.valid else None for weights in self.weights)

    def around(self) -> dict[Address, Around]:
        """The norm and the residual around attention, for every layer where they were located."""
        return {f.projections.address: f.around for f in self.weights if f.around is not None}

    def read_at(self, call: Call) -> CallWeights | None:
        """The weights of a call that is read, by its order and module; None for other calls."""
        weights = self.weights[call.order] if call.order < len(self.weights) else None
        return weights if weights is not None and weights.module == call.module and weights.valid else None

    def notes(self) -> tuple[str, ...]:
        """Notes on what is left out, on parts without a linear map, on sums of scores and on shared parameters, with reasons."""
        failed = zip(self.addresses, self.laws, strict=True)
        left = [f"Left out, {address}: {law.failure}." for address, law in failed if law.failure]
        left += [f"Left out, {missing.module}: {missing.words}." for missing in self.unread]
        alike: dict[str, tuple[str, list[Address]]] = {}
        for address, weights, law in zip(self.addresses, self.weights, self.laws, strict=True):
            origins = weights.projections.origins
            words = [f", {name}: {origins[name].words}" for name in NAMES if origins[name].how != "rows"]
            words += [f": {SUM_OF.format(law.terms)}"] if law.terms > 1 else []
            words += [f": {PART.format(100 * weights.share)}"] if weights.share < 1 else []
            for text in () if law.failure else words:  # notes of several layers differ in module numbers only
                alike.setdefault(re.sub(r"\.\d+\.", "..", text), (text, []))[1].append(address)
        sentences = (f"{spell_layers(addresses)}{words}." for words, addresses in alike.values())
        return (*left, *(f"{text[0].upper()}{text[1:]}" for text in sentences), *self.shared)


@synchronized
@torch.inference_mode(False)
@torch.enable_grad()
def prove(name: str, model: nn.Module, inputs: ModelInputs | None = None) -> Proof:
    """Verify on one forward pass that what is read of a model's attention is what the model computes.

    In this order: coverage (every attention is recorded), laws (weights sum to one, weights v = output, the model's output is
    unchanged bit for bit), projections (with residuals), cause (a write reaches the output). `inputs` are the model's
    own; None draws random ones. Raises ModelError if the model cannot be run at all.
    """
    report_step(f"Verifying {name} …")
    if open_edits(model):
        reason = "A model is verified without edits."
        raise ModelError(f"{name} is being edited.", reason, "Load it before the `with` block of the edit.")
    with contextlib.closing(ProductMemo(model)) as memo:
        return _prove_with_memo(name, model, inputs, memo)


def _prove_with_memo(name: str, model: nn.Module, inputs: ModelInputs | None, memo: ProductMemo) -> Proof:
    with (
        memory_guard(name, "Verifying", inputs),
        evaluating(model),
        copy_caches(model),
        differentiate_quantisation(model),
        copy_saved_tensors(model),
        without_recompute(),
        without_collection(),
        replace_forwards(memo.forwards),
    ):
        try:
            if inputs is None:
                # a fixed-length model is verified on a few positions if all laws hold there: the first
                # read over the full length is compared with the model's own output, as with any longer text
                with shorten_positions(model) as is_short, contextlib.suppress(ModelError):
                    proof = _prove(name, model, example_inputs(name, model), memo) if is_short else None
                    if proof is not None and proof.refusal is None and not any(law.failure for law in proof.laws):
                        return proof
                return _prove(name, model, example_inputs(name, model), memo)
            # inference tensors allow no gradients
            example = {n: t.clone() if isinstance(t, Tensor) and t.is_inference() else t for n, t in inputs.items()}
            if empty := next((n for n, t in example.items() if isinstance(t, Tensor) and 0 in t.shape[:2]), None):
                problem = f"The input {empty!r} of {name} is empty: its shape is {tuple(example[empty].shape)}."
                raise ModelError(problem, "A pass has at least one row and one position.", "Give an example with some.")
            shapes = ", ".join(f"{n} {tuple(t.shape)}" if isinstance(t, Tensor) else n for n, t in example.items())
            problem = f"{name} does not run with the example {shapes}."
            todo = "Give an example of what its forward takes, as tensors: load(model, inputs={...})."
            refuse = translate_errors(lambda error: ModelError(problem, summarize_error(error, 200), todo))
            with refuse, without_compile(), torch.no_grad():
                model(**example)
            return _prove(name, model, example, memo)
        except RuntimeError as error:
            if "Inference tensors cannot be saved for backward" not in str(error):
                raise
            reason = "Verification needs gradients, which such a tensor does not allow."
            todo = "Load the model again, and run it in torch.inference_mode only once it is verified."
            raise ModelError(f"{name} keeps a tensor that was made in inference mode.", reason, todo) from error


def _prove(name: str, model: nn.Module, example: Mapping[str, Any], memo: ProductMemo) -> Proof:
    seen = _read_coverage(model, example, memo)
    if not seen.calls:
        words = f"{name} has no attention that can be read."
        reason = f"A forward pass of {type(model).__name__} makes no softmax of a product of queries and keys."
        if seen.unread:
            first, more = seen.unread[0], len(seen.unread) - 1
            others = f", and so for {more} more" if more else ""
            words, kind = f"{name} cannot be read.", type(model.get_submodule(first.module)).__name__
            reason = f"{kind} {first.module!r}: {first.words}{others}."
        refusal = ModelError(words, reason, TODO)
        return Proof(name, seen.hook, seen.words, (), (), (), Shape({}), seen.unread, refusal)
    if all(call.k.shape[2] == 1 for call in seen.calls):
        reason = "With a single key every weight is 1, whatever queries and keys are."
        raise ModelError(f"The example of inputs of {name} has one position.", reason, "Give one with several.")
    addresses, orders = find_addresses(name, model, seen.calls, example, seen.hook)
    causes = _find_causes(model, example, seen.hook, seen.calls)
    unscaled = find_other_scales(model, example, seen.hook, seen.calls, memo)
    checked: list[Law] = []
    for call, (reached, response) in zip(seen.calls, causes, strict=True):
        module = model.get_submodule(call.module)
        sizes = [p.numel() for p in module.parameters(recurse=False)]
        sizes += [m.out_features for m in module.children() if isinstance(m, nn.Linear)]
        # sinks have one parameter per head, or a map that makes one number per head
        law = check_law(call, reached, call.q.shape[1] in sizes)
        fault = law.fault or response.fault or (SUM_BELOW_ONE if law.sink and not response.sink else "")
        scaled = response.scaled and call.order not in unscaled
        checked.append(law._replace(scaled=scaled, fault=fault, sink=law.sink and response.sink))
    weights = find_weights(model, example, seen.hook, addresses)
    elsewhere, moved = find_position_shifts(name, model, example, seen.hook, addresses, memo)
    both = enumerate(zip(weights, orders, strict=True))
    orders = [f.order or elsewhere.get(n, "") or order for n, (f, order) in both]
    laws = tuple(law._replace(order=order) for order, law in zip(orders, checked, strict=True))
    weights = tuple(replace(f, valid=not law.failure) for f, law in zip(weights, laws, strict=True))
    valid = [(a, c) for a, c, f in zip(addresses, seen.calls, weights, strict=True) if f.valid]
    heads = {address: Heads(call.q.shape[1], call.v.shape[1]) for address, call in valid}
    rounding = rounding_of(model, example, seen.hook, seen.calls, seen.answer)
    allowed = max(*(law.allowed for law in laws), largest_rounding_tolerance(model), 2 * rounding.answer)
    refusal = check_kv_cache(name, model, example, seen.calls, seen.answer, allowed)
    refusal = refusal or moved or _find_refusal(name, seen, addresses, laws, allowed)
    agreement = Agreement(longest(seen.calls), allowed, autocast_of(model))
    about = (addresses, weights, laws, Shape(heads), seen.unread, refusal, rounding, agreement)
    ids = {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)}  # one may have several names
    matrices = {
        address: {
            n: (ids.get(o.parameter, o.parameter), b"" if o.rows is None else o.rows.cpu().numpy().tobytes())
            for n, o in f.projections.origins.items()
            if o.parameter is not None
        }
        for address, f in zip(addresses, weights, strict=True)
    }
    return Proof(name, seen.hook, seen.words, *about, shared=find_shared_weights(matrices))


def check_law(call: Call, cause: tuple[bool, bool, bool], sink: bool = False) -> Law:
    """The laws of one call; with a sink, rows of weights may sum to less than one but not to more."""
    if call.weights is None:
        return Law(float("inf"), float("inf"), False, cause, tolerance(call.v), fault=call.fault)
    weights, v, output = (t.detach().double() for t in (call.weights, call.v, call.output))
    sums = weights.sum(-1)
    product = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    size = float(output.abs().max().clamp_min(1e-30))
    allowed = tolerance(call.v)
    below = sink and bool((sums <= 1 + allowed).all()) and bool((weights >= 0).all())
    # a padded position may have only zero weights
    nothing = weights.eq(0).all(-1) & output.eq(0).all(-1)
    rows = float((sums - 1).masked_fill(nothing, 0).abs().max()) if not nothing.all() else float("inf")
    ahead = weights.shape[2] == weights.shape[3] and bool(weights.triu(1).ne(0).any())
    mixing = float((product - output).abs().max()) / size
    return Law(rows, mixing, below and rows > allowed, cause, allowed, ahead, fault=call.fault, terms=call.terms)


def _find_causes(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, calls: Sequence[Call]
) -> list[tuple[tuple[bool, bool, bool], Response]]:
    """For each call whether a write to its q, k and v reaches the output (by the derivative of an added zero; if that is 0, by
    writing the negative), and how its weights respond to q and k.
    """
    written: dict[int, tuple[Tensor, ...]] = {}

    def nudge(order: int, parts: QKV) -> QKV:
        written[order] = tuple(torch.zeros_like(t).requires_grad_() for t in parts)
        return QKV(*(t + amount for t, amount in zip(parts, written[order], strict=True)))

    orders, unreached = range(len(calls)), (False, False, False)
    edits = Edits(write={n: partial(nudge, n) for n in orders})
    try:
        with torch.enable_grad(), hook(model, edits, calls=Calls(copy_call)) as edited:
            answer = first_tensor(model(**inputs))
    except ModelError as error:  # a hook that cannot write here
        return [(unreached, Response(False, f"it cannot be edited ({error.reason})"))] * len(calls)
    if len(edited) != len(calls) or len(written) != len(calls):
        return [(unreached, Response(False, OTHER_STEPS))] * len(calls)
    grads = gradients_of(answer, [amount for n in orders for amount in written[n]])

    def reaches(order: int, part: int) -> bool:
        grad = grads[3 * order + part]
        is_reached = grad is not None and bool(grad.any())
        return is_reached or _answers_to_opposite(model, inputs, hook, order, part, answer.detach())

    return [((reaches(n, 0), reaches(n, 1), reaches(n, 2)), find_response(edited[n], *written[n][:2])) for n in orders]


@torch.no_grad()
def _answers_to_opposite(
    model: nn.Module, inputs: ModelInputs, hook: CallHook, order: int, part: int, clean: Tensor
) -> bool:
    """Whether the output changes when q, k or v of a call is negated; for q and k also with random values, since all
    values of an example may be equal.
    """

    def answer(opposite: bool, random: bool) -> Tensor:
        def write(parts: QKV) -> QKV:
            edited = QKV(*(-t if opposite and i == part else t for i, t in enumerate(parts)))
            draw = torch.Generator().manual_seed(order)
            return edited._replace(v=torch.randn(edited.v.shape, generator=draw).to(edited.v)) if random else edited

        with hook(model, Edits(write={order: write})):
            return first_tensor(model(**inputs))

    if not torch.equal(answer(True, False), clean):
        return True
    return NAMES[part] != "v" and not torch.equal(answer(True, True), answer(False, True))


def _find_refusal(
    name: str, seen: _Coverage, addresses: Sequence[Address], laws: Sequence[Law], allowed: float
) -> ModelError | None:
    """The error for a model that cannot be read; None if a layer passes and recording and eager attention keep the output."""
    if seen.moved:
        reason = f"With recording its output differs by {seen.moved:.1e}."
        return ModelError(f"The output of {name} differs while it is read.", reason, TODO)
    if seen.apart > allowed:
        problem = f"{name} has two attention implementations that do not agree."
        reason = (
            f"With eager attention, which returns weights, the relative difference of its output is {seen.apart:.1e}."
        )
        return ModelError(problem, reason, TODO)
    failures = [f"{a}: {law.failure}" for a, law in zip(addresses, laws, strict=True) if law.failure]
    if len(failures) == len(laws):
        return ModelError(f"{name} does not pass verification.", f"{failures[0]}; no layer passes.", TODO)
    return None
