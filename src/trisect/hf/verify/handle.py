"""Audit a handle (a module path, another library's name or functions): is its tensor q, k or v of a verified site, do writes work?"""

from __future__ import annotations

import copy
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree as trees

from trisect.core.errors import ModelError, SpecError, require_extra, reraise_out_of_memory, shorten, unknown_name
from trisect.core.files import Json
from trisect.core.site import Site, format_spans
from trisect.core.subject import Batch, ModelInputs, Readable, SiteTarget
from trisect.core.trace import Address, Reading
from trisect.hf.batches import first_tensor
from trisect.hf.forward import own_inputs
from trisect.hf.hooks.calls import copy_caches, evaluating, synchronized
from trisect.hf.load import Pretrained, single_batch
from trisect.hf.locate.affine import watch_uses
from trisect.hf.locate.blocks import loose

RIGHT, DIFFERENT, SILENT = "right", "different", "silent"
MAX_UNIT_CHARACTERS = 60  # characters of the units of an axis
MIN_POSITIONS = 4  # fewest positions: with fewer, unrelated numbers may happen to be multiples of each other
Capture: TypeAlias = Callable[[Any, ModelInputs], "Tensor | None"]
Write: TypeAlias = Callable[[Any, ModelInputs, Tensor], Any]
_Functions: TypeAlias = tuple[Capture, Write]


@dataclass(frozen=True)
class Audit:
    """Comparison of a handle with a site: a verdict and its reason for each question.

    `rows` are (question, verdict, reason); questions are fires, tensor, heads and write, verdicts right, different and silent.
    `axes` names each axis of the handle's tensor: B row, T position, H head, E dimension of a head; empty if none
    of its numbers are q, k or v; units of an axis count from 0. `factor` is that of the tensor relative to the site.
    """

    model: str
    handle: str
    site: str
    axes: str
    factor: float | None
    rows: tuple[tuple[str, str, str], ...]

    @property
    def same(self) -> bool:
        """Whether every question has the verdict right."""
        return all(verdict == RIGHT for _, verdict, _ in self.rows)

    def words(self) -> tuple[str, ...]:
        """The verdicts as lines for a terminal."""
        lines = [f"{question:<7} {verdict:<10} {reason}" for question, verdict, reason in self.rows]
        return (f"{self.handle} of {self.model}, beside {self.site}:", *lines)

    def data(self) -> dict[str, Json]:
        """The verdicts as JSON-ready data."""
        rows: list[Json] = [dict(zip(("question", "verdict", "reason"), row, strict=True)) for row in self.rows]
        named: dict[str, Json] = {"model": self.model, "handle": self.handle, "site": self.site}
        return {**named, "same": self.same, "axes": self.axes, "factor": self.factor, "rows": rows}

    def assert_same(self) -> None:
        """Raise AssertionError, with all verdicts, unless each is right; for use in tests of a handle."""
        if not self.same:
            raise AssertionError("\n".join(self.words()))


class _Candidate(NamedTuple):
    """A tensor that a handle may hold: q, k or v of a layer, at attention (stage '') or earlier."""

    address: Address
    component: str
    stage: str
    values: Float[Tensor, "B H T E"]
    real: Tensor

    def __str__(self) -> str:
        return f"{self.component} of {self.address}{self.stage and f', {self.stage}'}"

    def heads_in(self, units_held: Float[Tensor, "N U"]) -> dict[int, tuple[Tensor, float]]:
        """For each head contained in the units, by cosine over N real positions: its units [copies E], and their factor."""
        allowed = max(loose(units_held.dtype), loose(self.values.dtype))
        heads, units_held = self.values.transpose(1, 2)[self.real].double().cpu(), units_held.double()  # [N H E]
        sizes, matched = units_held.square().sum(0).clamp_min(1e-60), dict[int, tuple[Tensor, float]]()
        for head, part in enumerate(heads.unbind(1), start=1):
            products, size = part.T @ units_held, part.square().sum(0).clamp_min(1e-60)[:, None]
            near = 1 - products.square() / (size * sizes) <= allowed**2
            # numbers that heads have in common are at units of each of them, in their order, or at units of all
            alike = (heads - part[:, None]).norm(dim=0) <= allowed * part.norm(dim=0)
            counts, sharing = near.sum(1), alike.sum(0).clamp_min(1)
            copies = int((counts // sharing).clamp_min(1).minimum(counts).min())
            if not copies:
                continue
            first = alike[: head - 1].sum(0) * (counts // sharing)
            chosen = first[:, None] + torch.arange(copies)
            units = near.int().argsort(dim=1, descending=True, stable=True).gather(1, chosen)
            factors = (products / size).gather(1, units)
            factor = float(factors.median())
            if float((factors - factor).abs().max()) <= 2 * allowed * abs(factor):
                matched[head] = units.T, factor
        return matched


class _Match(NamedTuple):
    """Where a candidate's heads are in a handle's nth tensor: axes and indices of `_layouts`, and units and factor of each head."""

    candidate: _Candidate
    nth: int
    names: Sequence[str]
    places: Int[Tensor, "B T ..."]
    heads: dict[int, tuple[Tensor, float]]

    @property
    def axes(self) -> str:
        """The name of each axis of the tensor, and the part that the heads occupy if it holds more."""
        rest = self.places.shape[2:]
        units, stride, words = torch.cat([units for units, _ in self.heads.values()]), prod(rest), list[str]()
        for size in rest:
            stride //= size
            index = units // stride % size
            by_head, by_number = bool((index != index[:1]).any()), bool((index != index[:, :1]).any())
            word = "H·E" if by_head and by_number else "H" * by_head + "E" * by_number
            if by_head and by_number and int(index[0, 1] - index[0, 0]) != 1:
                word = "E·H"
            indices = index.unique().tolist()
            part = format_spans(tuple(indices)) if len(indices) < size else ""
            part = part if len(part) < MAX_UNIT_CHARACTERS else f"{len(indices)} units"
            words.append((word or "1") + f" at {part} of {size}" * bool(part))
        left = iter(words)
        return f"[{', '.join('·'.join(part or next(left) for part in name.split('·')) for name in self.names)}]"


@synchronized
@torch.no_grad()
def audit_handle(
    model: Pretrained, handle: str | Capture, site: Site, text: Readable, end: str, write: Write | None
) -> Audit:
    """Compare a handle's tensor in a pass over a text with verified q, k or v of one site.

    `handle` is the path of a module of the model, of whose input or output (`end`) the first floating-point tensor is taken;
    or a name of another library, 'library:name', see `_peer_functions`; or a function (model, inputs) -> tensor, or None if
    it does not fire, perhaps with `write` (model, inputs, tensor) -> output, which runs the model with that tensor in its place.
    The write that is tested sets one head to zero at one position. Raises TrisectError.
    """
    where = model.shape.resolve(site)
    if len(where) != 1:
        reason = "A handle is compared with q, k or v of one layer, of all its heads or of some."
        raise SpecError(f"{site} names {len(where)} of them.", reason, "Name one, as in v@3 or v@3.h2.")
    (target,) = where
    model, batch = single_batch(model, text)
    inputs = own_inputs(model._with_proof, batch.inputs)
    reading = model.trace(batch)
    named = handle if isinstance(handle, str) else getattr(handle, "__name__", type(handle).__name__)
    if isinstance(handle, str) and ":" in handle and handle not in dict(model.model.named_modules()):
        if write is not None or end != "output":
            reason = "For a name of another library that library reads and writes its output."
            raise SpecError(f"{handle} was given with write or end.", reason, "Leave these out.")
        handle, write = _peer_functions(model, handle, batch)
    with evaluating(model.model), copy_caches(model.model):
        if isinstance(handle, str):
            if handle not in (modules := dict(model.model.named_modules())):
                owner = dict(zip(model.addresses, model._with_proof.modules, strict=True))[target.address]
                reason = f"It has {len(modules):,} modules; {target.address} attends in {owner!r}."
                todo = "Give a path as named_modules() of the model has it."
                raise ModelError(f"{unknown_name(f'module of {model.name}', handle, modules)}", reason, todo)
            tensors, _ = _run_module(model, handle, end, inputs, None)
        else:
            returned: object = handle(model.model, inputs)
            if returned is not None and not (isinstance(returned, Tensor) and returned.is_floating_point()):
                reason = "A handle's function returns a floating-point tensor, or None if it does not fire."
                raise ModelError(f"{shorten(returned)} was returned.", reason, "Return the tensor alone.")
            tensors = [] if returned is None else [returned.detach()]
        named += f" ({end})" if isinstance(handle, str) else ""
        about = (model.name, named, str(site))
        if not tensors:
            return Audit(*about, "", None, (("fires", SILENT, "not once in a pass over this text"),))
        candidates = _candidates(model, reading, inputs, target)
        if int(candidates[0].real.sum()) < MIN_POSITIONS:
            reason = f"Tensors are compared at {MIN_POSITIONS} positions at least."
            raise SpecError("The text is too short.", reason, "Give a longer text.")
        match = _find(candidates, tensors)
        nth = match.nth if match is not None else 0
        count = f"{len(tensors)} times in a pass" + (f"; call {nth + 1} was compared" if len(tensors) > 1 else "")
        rows = [("fires", RIGHT, "once in a pass" if len(tensors) == 1 else count)]
        rows += _tensor_rows(model, target, candidates[0], match, tensors[nth])
        if isinstance(handle, str):
            put = lambda t: _run_module(model, handle, end, inputs, (nth, t))[1]  # noqa: E731
        else:
            put = None if write is None else functools.partial(write, model.model, inputs)
        if put is not None:
            rows.append(("write", *_compare_write(model, batch, target, candidates[0], match, tensors[nth], put)))
    factors = [factor for _, factor in match.heads.values()] if match is not None else []
    return Audit(*about, match.axes if match else "", factors[0] if factors else None, tuple(rows))


def _run_module(
    model: Pretrained, path: str, end: str, inputs: ModelInputs, put: tuple[int, Tensor] | None
) -> tuple[list[Tensor], Any]:
    """A module's input or output tensors in one pass, call by call, and the model's output; `put` (n, tensor) replaces that of call n."""
    met: list[Tensor] = []

    def meet(nest: Any) -> Any:
        leaves, spec = trees.tree_flatten(nest)
        at = next((n for n, t in enumerate(leaves) if isinstance(t, Tensor) and t.is_floating_point()), None)
        if at is None:
            return nest
        met.append(leaves[at].detach().clone())
        if put is not None and put[0] == len(met) - 1:
            leaves[at] = put[1]
        return trees.tree_unflatten(leaves, spec)

    module = model.model.get_submodule(path)
    if end == "input":
        hook = module.register_forward_pre_hook(lambda _m, args, named: meet((args, named)), with_kwargs=True)
    else:
        hook = module.register_forward_hook(lambda _m, _a, output: meet(output))
    with hook:
        answer = model.model(**inputs)
    return met, answer


def _candidates(model: Pretrained, reading: Reading, inputs: ModelInputs, target: SiteTarget) -> list[_Candidate]:
    """q, k and v of every layer at attention, and before norms and rotation if these were located; the target's first."""
    laws = {a: law for a, law in zip(model.addresses, model.proof.call_laws(), strict=True) if law is not None}
    names = {part.map.name for law in laws.values() for part in law.parts.values()}
    uses, counts = dict[tuple[str, int], Tensor](), defaultdict[str, Iterator[int]](itertools.count)

    def note(name: str, _x: Tensor, y: Tensor) -> None:
        uses[name, next(counts[name])] = y.detach().cpu()

    with watch_uses(model.model, names, note):
        model.model(**inputs)
    candidates: list[_Candidate] = []
    for trace in reading.traces:
        for component, real in (("q", trace.query_real), ("k", trace.key_real), ("v", trace.key_real)):
            values: Tensor = getattr(trace, component)
            about = (trace.address, component)
            candidates.append(_Candidate(*about, "", values, real))
            part = laws[trace.address].parts.get(component)
            output = None if part is None else uses.get((part.map.name, part.map.nth))
            rows, length = values.shape[0], values.shape[2]
            if part is None or output is None or output.numel() != rows * length * output.shape[-1]:
                continue
            flat = output.reshape(*((length, rows) if part.time_first else (rows, length)), -1)
            before = (flat.transpose(0, 1) if part.time_first else flat)[..., part.units.cpu()]
            steps = {"its norm": part.norm is not None, "rotation": part.turned, "an addition": part.extra is not None}
            if later := [step for step, is_made in steps.items() if is_made]:
                candidates.append(_Candidate(*about, f"before {' and '.join(later)}", before.transpose(1, 2), real))
            if part.turned and part.norm is not None:
                device = part.units.device
                normed = part.norm(before.flatten(0, 1).to(device)).cpu().unflatten(0, (rows, length))
                candidates.append(_Candidate(*about, "after its norm, before rotation", normed.transpose(1, 2), real))
    return sorted(candidates, key=lambda c: (c.address, c.component) != (target.address, target.component))


def _find(candidates: Sequence[_Candidate], tensors: Sequence[Tensor]) -> _Match | None:
    """The first candidate whose heads a tensor holds completely, else the one with most heads; None if no head is held."""
    best: _Match | None = None
    for candidate in candidates:
        for nth, tensor in enumerate(tensors):
            values, (rows, count, length, width) = tensor.detach().cpu(), candidate.values.shape
            for names, places in _layouts(tuple(values.shape), rows, length):
                if prod(places.shape[2:]) < width:
                    continue
                heads = candidate.heads_in(values.reshape(-1)[places[candidate.real.cpu()].flatten(1)])
                if heads and (best is None or len(heads) > len(best.heads)):
                    best = _Match(candidate, nth, names, places, heads)
                if len(heads) == count:
                    return best
    return best


def _layouts(shape: tuple[int, ...], rows: int, length: int) -> Iterator[tuple[list[str], Tensor]]:
    """Yield every way to assign rows and positions to a tensor's axes: the axes' names ('' for neither), and flat indices [B T ...]."""
    places = torch.arange(prod(shape)).view(shape)
    axes = tuple(range(len(shape)))
    views = [(places, axes)] if rows > 1 or 1 in shape else [(places[None], (-1, *axes))]
    for n, size in enumerate(shape):
        if rows > 1 and size > rows and size % rows == 0:
            owners = (*range(n + 1), *range(n, len(shape)))
            views += [(places.unflatten(n, (rows, -1)), owners), (places.unflatten(n, (-1, rows)), owners)]
    for view, owners in views:
        for batch in (n for n, size in enumerate(view.shape) if size == rows):
            for time in (n for n, size in enumerate(view.shape) if size == length and n != batch):
                words = ["B" if n == batch else "T" if n == time else "" for n in range(view.dim())]
                names = ["·".join(w for w, o in zip(words, owners, strict=True) if o == n) for n in axes]
                yield names, view.movedim((batch, time), (0, 1))


def _tensor_rows(
    model: Pretrained, target: SiteTarget, first: _Candidate, match: _Match | None, tensor: Tensor
) -> list[tuple[str, str, str]]:
    """Verdicts on the tensor and on its heads."""
    if match is None:
        values, values_held, fault = first.values.double(), tensor.detach().cpu().double(), "its shape is another"
        shape = [n for n in values_held.shape if n > 1]
        for layout in (values, values.transpose(1, 2), values.flatten(2), values.transpose(1, 2).flatten(2)):
            if shape == [n for n in layout.shape if n > 1]:
                off = float((values_held.reshape(layout.shape) - layout).norm() / layout.norm().clamp_min(1e-30))
                fault = f"it is off by {off:.2g} of the site's size"
        reason = f"{list(tensor.shape)} holds no whole head of q, k or v, in any order of axes, whatever the factor"
        return [("tensor", DIFFERENT, f"{reason}; {fault}")]
    candidate, heads = match.candidate, match.heads
    factors = [factor for _, factor in heads.values()]
    allowed = 2 * loose(candidate.values.dtype)
    even = max(factors) - min(factors) <= allowed * abs(factors[0])
    scaled = not even or abs(factors[0] - 1) > allowed
    words = f"{candidate}, as {match.axes}"
    if scaled:
        words += f", times {factors[0]:.6g}" if even else f", times {', '.join(f'{f:.4g}' for f in factors)} by head"
    places, flat = match.places.flatten(2), tensor.detach().cpu().double().reshape(-1)
    real, in_order = candidate.real.cpu(), [flat[places[..., units[0]]] / factor for units, factor in heads.values()]
    recovered = torch.stack(in_order, 2)[real]
    values = candidate.values.transpose(1, 2)[real][:, [head - 1 for head in heads]].cpu().double()
    words += f"; off by {float((recovered - values).norm() / values.norm()):.1e} of its size"
    is_target = (candidate.address, candidate.component) == (target.address, target.component)
    rows = [("tensor", RIGHT if is_target and not candidate.stage and not scaled else DIFFERENT, words)]
    order = sorted((int(copy.min()), head) for head, (units, _) in heads.items() for copy in units)
    listed, count = [head for _, head in order], candidate.values.shape[1]
    heads_meant = target.heads or tuple(range(1, count + 1))
    kind = f"{candidate.component} has {count} head{'s' * (count > 1)}"
    count_of = model.shape.heads[candidate.address]
    if count_of.query != count_of.key and candidate.component != "q":
        kind = f"key/value head 1 is of query heads 1–{count_of.query // count_of.key}, and so on: {kind}"
    is_single = is_target and len(heads_meant) == 1 and heads_meant[0] in heads
    if is_single and len(listed) == len(set(listed)):
        units = heads[heads_meant[0]][0][0]
        kind += f"; head {heads_meant[0]} is units {int(units.min())}–{int(units.max())} of a position's {prod(match.places.shape[2:])}"
    in_order = listed == sorted(set(listed))
    spelt = format_spans(tuple(listed)) if in_order else ", ".join(map(str, listed))
    if shared := len(order) - len({unit for unit, _ in order}):
        kind += f", {shared} of them the same numbers as another's"
    right = is_target and set(heads_meant) <= set(heads) and in_order and not shared
    return [*rows, ("heads", RIGHT if right else DIFFERENT, f"in its order: {spelt}; {kind}")]


def _compare_write(
    model: Pretrained,
    batch: Batch,
    target: SiteTarget,
    first: _Candidate,
    match: _Match | None,
    tensor: Tensor,
    put: Callable[[Tensor], Any],
) -> tuple[str, str]:
    """Whether zeros at one head and position of a handle reach the output, and change it as those of `trisect.edit` do."""
    head = target.heads[0] if target.heads else 1
    site, place = Site((target.component,), (target.address.layer,), (head,), target.address.site.stack), 0
    real = first.real[0].nonzero()[:, 0].tolist()

    def clear(part: Tensor, _where: SiteTarget) -> Tensor:
        part[0, :, place] = 0
        return part

    clean = edited = first_tensor(model.predict(batch.inputs))
    for place in sorted(real, key=lambda n: abs(n - real[len(real) // 2])):  # noqa: B007 - `clear` takes it
        edited = first_tensor(model.predict(batch.inputs, {str(site): clear}))
        if not torch.equal(edited, clean):
            break
    else:
        reason = f"Zeros at {site}, at any position, do not change the output."
        raise SpecError("A write cannot be tested on this text.", reason, "Give a longer text, or name another head.")
    changed = tensor.detach().contiguous().clone()
    written = match is not None and head in match.heads and place < match.places.shape[1]
    if match is not None and written:
        units, _ = match.heads[head]
        changed.view(-1)[match.places[0, place].flatten()[units.flatten()].to(changed.device)] = 0
    else:
        changed.zero_()
    answers = (put(tensor), put(changed), clean, edited)
    same, answer_written, clean, edited = (first_tensor(answer).detach().cpu().double() for answer in answers)
    if answer_written.shape != same.shape or answer_written.numel() != clean.numel():
        reason = f"The model's is of {list(clean.shape)}."
        problem = f"A write returned an output of shape {list(answer_written.shape)}."
        raise ModelError(problem, reason, "Return the output of the full pass.")
    moved, expected = answer_written - same, (edited - clean).reshape(answer_written.shape)
    zeros = f"zeros at head {head}, position {place}," if written else "zeros all over it"
    if not moved.any():
        return SILENT, f"{zeros} reach no number of the answer"
    off = float((moved - expected).norm() / expected.norm())
    if written and off <= 10 * loose(first.values.dtype):
        return RIGHT, f"{zeros} change the answer as those of trisect.edit do; off by {off:.1e} of that change"
    return DIFFERENT, f"{zeros} change the answer, but not as those of trisect.edit do: off by {off:.2g} of that change"


def _peer_functions(model: Pretrained, handle: str, batch: Batch) -> _Functions:
    """Return `capture(model, inputs)` and `write(model, inputs, tensor)` of a handle 'library:name', with the library's own name.

    transformer_lens:blocks.1.attn.hook_q · pyvene:1.query_output · nnsight:model.layers.1.self_attn.q_proj.output · nnterp:the same
    after its renaming. Layers count from 0, as in these libraries, which wrap a copy of the model, since they change modules.
    Raises ModelError with the library's error, and SpecError if `batch` is not one text without padding.
    """
    if len(batch.source.real) != 1 or not batch.source.real.all():
        reason = "Other libraries are run on one text without padding."
        raise SpecError(f"{handle} was given with {len(batch.source.real)} rows.", reason, "Give one text.")
    library, _, name = handle.partition(":")
    if library not in PEERS:
        reason = f"Handles of other libraries begin with {', '.join(f'{peer}:' for peer in PEERS)}."
        raise ModelError(unknown_name("library", library, PEERS), reason, "Give one of these, or the path of a module.")
    require_extra(library, "peers", f"A handle {library}:…")
    wrap = PEERS[library]
    capture, write = _run_peer(handle, lambda: wrap(copy.deepcopy(model.model), model, name))
    return functools.partial(_run_peer, handle, capture), functools.partial(_run_peer, handle, write)


def _run_peer(handle: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call another library; raises ModelError with its error."""
    try:
        return function(*args)
    except Exception as error:
        reraise_out_of_memory(error)
        message = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:150]}"
        problem, reason = f"{handle} raises {message}.", "It does not take this model, or this name."
        raise ModelError(problem, reason, "Try another.") from error


def _transformer_lens(module: Any, model: Pretrained, name: str) -> _Functions:
    bridges = import_module("transformer_lens.model_bridge")
    bridge = bridges.TransformerBridge.boot_transformers(
        module.config.name_or_path,
        hf_model=module,
        tokenizer=model.tokenizer,
        device=str(next(module.parameters()).device),
        dtype=module.dtype,
    )

    def capture(_model: Any, inputs: ModelInputs) -> Tensor | None:
        _, cache = bridge.run_with_cache(inputs["input_ids"], prepend_bos=False)
        return cache[name] if name in cache else None  # noqa: SIM401 - a cache of TransformerLens has no get

    def write(_model: Any, inputs: ModelInputs, tensor: Tensor) -> Any:
        hooks = [(name, lambda _t, hook: tensor)]
        return bridge.run_with_hooks(inputs["input_ids"], fwd_hooks=hooks, prepend_bos=False)

    return capture, write


def _pyvene(module: Any, model: Pretrained, name: str) -> _Functions:
    pyvene = import_module("pyvene")
    layer, _, component = name.partition(".")
    heads = next(count for address, count in model.shape.heads.items() if address.layer == int(layer) + 1)
    by_key = component in ("head_key_output", "head_value_output")

    def run(inputs: ModelInputs, kind: Any, source: Tensor | None) -> Any:
        size, unit = inputs["input_ids"].shape[1], "pos"
        if component.startswith("head_"):
            size, unit = heads.key if by_key else heads.query, "h"
        place = {"layer": int(layer), "component": component, "unit": unit, "max_number_of_units": size}
        wrapped = pyvene.IntervenableModel({**place, "intervention_type": kind}, model=module)
        locations = {"base": [[list(range(size))]]}
        return wrapped(base=dict(inputs), unit_locations=locations, source_representations=source)

    def capture(_model: Any, inputs: ModelInputs) -> Tensor | None:
        (_, collected), _ = run(inputs, pyvene.CollectIntervention, None)
        return torch.cat(list(collected)) if collected else None

    def write(_model: Any, inputs: ModelInputs, tensor: Tensor) -> Any:
        return run(inputs, pyvene.VanillaIntervention, tensor)[1]

    return capture, write


def _traced(library: str, kind: str, module: Any, model: Pretrained, name: str) -> _Functions:
    """A value of an nnsight trace, by its path from the model, which a class of a library wraps."""
    wrapped = getattr(import_module(library), kind)(module, tokenizer=model.tokenizer)
    *path, end = name.split(".")

    def owner() -> Any:
        part = wrapped
        for step in path:
            part = part[int(step)] if step.isdecimal() else getattr(part, step)
        return part

    def capture(_model: Any, inputs: ModelInputs) -> Tensor | None:
        with wrapped.trace(dict(inputs)):
            value = getattr(owner(), end).save()
        return value  # noqa: RET504 - a trace's body is run elsewhere: nothing returns from it

    def write(_model: Any, inputs: ModelInputs, tensor: Tensor) -> Any:
        with wrapped.trace(dict(inputs)):
            setattr(owner(), end, tensor)
            answer = wrapped.output.save()
        return answer  # noqa: RET504

    return capture, write


PEERS = {
    "transformer_lens": _transformer_lens,
    "pyvene": _pyvene,
    "nnsight": functools.partial(_traced, "nnsight", "LanguageModel"),
    "nnterp": functools.partial(_traced, "nnterp", "StandardizedTransformer"),
}
