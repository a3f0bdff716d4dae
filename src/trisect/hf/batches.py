"""Texts and a model's own inputs as batches, and what a pass over them gives: traces and losses."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import Batch, ModelInputs, RowScores, TextOrPair, check_text
from trisect.core.trace import Address, Projections, ResidualBlock, Side, Trace, crosses, key_side_of, keys_of, side_of
from trisect.hf.files.fetch import TAKES, takes_no_text
from trisect.hf.files.tokenizers import tokenize
from trisect.hf.hooks.calls import Call, tensors_in
from trisect.measure.intervention import relative_change

LONGEST = 512  # tokens a window where neither model nor tokenizer has a limit
USUAL = 1_024  # tokens a window at most, where none is asked for: weights grow with its square
BOUNDLESS = 1_000_000  # tokenizers without a limit report a very large one
MASKED_SHARE = 0.15
OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
IGNORED = -100  # of labels: not predicted


class _TokenWindow(NamedTuple):
    """One row of a batch: which text, where in it, its token ids, which of them were added; `alike`: source and target are one text."""

    text: int
    start: int
    ids: list[int]
    special: list[bool]
    target: list[int]
    target_special: list[bool]
    alike: bool


@dataclass(frozen=True, eq=False)
class TextBatcher:
    """What is needed to make texts ready for one model; `limit` is how long it reads, None where nothing says."""

    name: str
    tokenizer: Any
    objective: str
    window: int
    accepts: frozenset[str]
    start: int
    device: torch.device
    limit: int | None = None
    main: str = "input_ids"

    @classmethod
    def of(cls, name: str, model: nn.Module, tokenizer: Any, objective: str, window: int | None) -> TextBatcher:
        """The batcher of a model; `window` overrides what model and tokenizer say of their longest input."""
        kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        config = getattr(model, "config", None)
        parameters = inspect.signature(model.forward).parameters.values()
        accepts = frozenset(p.name for p in parameters if p.kind not in kinds)
        start = getattr(config, "decoder_start_token_id", None)
        if start is None:
            start = getattr(config, "bos_token_id", None) or getattr(config, "pad_token_id", None) or 0
        device, limit = next(model.parameters()).device, longest_window(config, tokenizer)
        chosen = choose_window(name, window, limit)
        main = getattr(model, "main_input_name", "input_ids")
        main = main if main in accepts and "input_ids" not in accepts else "input_ids"
        return cls(name, tokenizer, objective, chosen, accepts, int(start), device, limit, main)

    def batches(self, texts: Iterable[tuple[int, TextOrPair]], size: int, scored: bool) -> Iterator[Batch]:
        """Batches of at most `size` windows, in the order of the texts, which have a number each."""
        if self.main in TAKES:
            raise takes_no_text(self.name, self.main)
        if self.tokenizer is None:
            reason = "It came without a tokenizer, or takes no text at all."
            raise ModelError(f"A text was given to {self.name}.", reason, "Give its own inputs as a dict of tensors.")
        windows = (window for number, text in texts for window in self._windows(number, text))
        while rows := list(itertools.islice(windows, size)):
            yield self._batch(rows, scored)

    def _windows(self, number: int, text: TextOrPair) -> Iterator[_TokenWindow]:
        paired = self.objective == "seq2seq" or "decoder_input_ids" in self.accepts
        source, target = check_text(self.name, number, text, paired)
        pieces, aims = list(self._cut(source)), list(self._cut(target, True)) if paired else []
        if aims and len(aims) != len(pieces):
            problem = f"Text {number + 1} is {len(pieces)} windows of source and {len(aims)} of target."
            reason = "Each window of a source is read with its own of the target."
            raise ModelError(problem, reason, "Give shorter texts.")
        for i, (start, ids, special) in enumerate(pieces):
            _, aim, aim_special = aims[i] if aims else (0, [], [])
            yield _TokenWindow(number, start, ids, special, aim, aim_special, not isinstance(text, tuple))

    def _cut(self, text: str, aim: bool = False) -> Iterator[tuple[int, list[int], list[bool]]]:
        """Windows of a text, special tokens in each: where it begins, ids, which are special; some cut a target (`aim`) otherwise."""
        options = {"add_special_tokens": True, "return_special_tokens_mask": True}
        encoded = tokenize(self.name, self.tokenizer, text, aim, **options)
        ids, special = list(encoded["input_ids"]), [bool(m) for m in encoded["special_tokens_mask"]]
        if len(ids) <= self.window:
            if not ids:
                reason = "The tokenizer makes no token of it."
                raise ModelError(f"The text {text[:40]!r} is empty.", reason, "Give a text with words that it knows.")
            yield 0, ids, special
            return
        inner_places = [i for i, s in enumerate(special) if not s]
        before, after = ids[: inner_places[0]], ids[inner_places[-1] + 1 :]
        room = self.window - len(before) - len(after)
        if room < 1:
            reason = f"The tokenizer adds {len(before) + len(after)} tokens to every text."
            raise ModelError(f"A window of {self.window} tokens.", reason, "Use a longer window.")
        inner, flags = ids[inner_places[0] : inner_places[-1] + 1], special[inner_places[0] : inner_places[-1] + 1]
        for start in range(0, len(inner), room):
            piece = inner[start : start + room]
            marks = [True] * len(before) + flags[start : start + room] + [True] * len(after)
            yield start, [*before, *piece, *after], marks

    def _batch(self, rows: list[_TokenWindow], scored: bool) -> Batch:
        ids, real = self._pad([row.ids for row in rows])
        special = _flags([row.special for row in rows], ids.shape[1])
        shown = ids
        inputs: dict[str, Tensor] = {}
        if scored and self.objective == "masked":
            ids, labels = self._hide(ids, real & ~special, rows)
            inputs["labels"] = labels
        inputs |= {"input_ids": ids, "attention_mask": real.long()}
        target = None
        if rows[0].target:
            aim, aim_real = self._pad([row.target for row in rows])
            shifted = torch.cat([torch.full_like(aim[:, :1], self.start), aim[:, :-1]], 1)
            inputs |= {"decoder_input_ids": shifted, "labels": torch.where(aim_real, aim, IGNORED)}
            flags = _flags([[True, *row.target_special[:-1]] for row in rows], aim.shape[1])
            target = Side(self._pieces(shifted, aim_real), aim_real, flags, shifted)
        notes = []
        if rows[0].target and any(row.alike for row in rows):
            notes.append("A single text was given where the model takes two: it is both source and target.")
        if any(row.start for row in rows):
            is_chosen = self.window != USUAL or self.limit is None or self.limit <= USUAL
            more = "" if is_chosen else f" The model reads up to {self.limit:,}: choose a longer window for that."
            notes.append(
                f"Texts longer than {self.window:,} tokens were cut into windows that do not see each other.{more}"
            )
        accepted = {name: t.to(self.device) for name, t in inputs.items() if name in self.accepts or name == "labels"}
        source = Side(self._pieces(shown, real), real, special, shown)
        return Batch(accepted, source, target, tuple((row.text, row.start) for row in rows), tuple(notes))

    def _pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        filler = self.tokenizer.pad_token_id
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), 0 if filler is None else int(filler))
        real = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            real[i, : len(row)] = True
        return ids, real

    def _pieces(self, ids: Tensor, real: Tensor) -> tuple[tuple[str, ...], ...]:
        rows = []
        for row, is_real in zip(ids.tolist(), real.tolist(), strict=True):
            pieces = self.tokenizer.convert_ids_to_tokens(row)
            pairs = zip(pieces, is_real, strict=True)
            rows.append(tuple("" if not ok or piece is None else piece for piece, ok in pairs))
        return tuple(rows)

    def _hide(self, ids: Tensor, may: Tensor, rows: list[_TokenWindow]) -> tuple[Tensor, Tensor]:
        """Replace 15 % of each row's own tokens, at least one, by the mask; a function of text and window alone."""
        mask = self.tokenizer.mask_token_id
        if mask is None:
            problem, reason = f"The loss of {self.name} cannot be computed.", "Its tokenizer has no mask token."
            raise ModelError(problem, reason, "Use the tokenizer it was trained with.")
        hidden, labels = ids.clone(), torch.full_like(ids, IGNORED)
        for i, row in enumerate(rows):
            draw = torch.Generator().manual_seed(row.text * 1_000_003 + row.start)
            places = may[i].nonzero().flatten()
            count = max(1, round(MASKED_SHARE * len(places)))
            chosen = places[torch.randperm(len(places), generator=draw)[:count]]
            labels[i, chosen] = ids[i, chosen]
            hidden[i, chosen] = mask
        return hidden, labels


def takes_any(model: nn.Module) -> bool:
    """Whether its forward takes names that it does not list."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _flags(rows: list[list[bool]], width: int) -> Tensor:
    return torch.tensor([[*row, *[True] * (width - len(row))] for row in rows])


def longest_window(config: Any, tokenizer: Any) -> int | None:
    """The longest input that model and tokenizer both allow; None where neither says."""
    # RoBERTa and its kin count positions from the padding index on, so that two of them are never used
    offset = 2 if getattr(config, "model_type", "") in OFFSET else 0
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")]
    limits = [n - offset if isinstance(n, int) else None for n in limits]
    limits.append(getattr(tokenizer, "model_max_length", None))
    return min((int(n) for n in limits if isinstance(n, (int, float)) and 0 < n < BOUNDLESS), default=None)


def choose_window(name: str, window: int | None, limit: int | None) -> int:
    """The window asked for, else the limit, but 1,024 at most; raises ModelError where it does not fit."""
    if window is None:
        return min(limit or LONGEST, USUAL)
    if not isinstance(cast(object, window), int) or window < 1 or (limit is not None and window > limit):
        reason = "A window is 1 token or more" + ("." if limit is None else f", and {name} reads at most {limit}.")
        raise ModelError(f"A window of {window} tokens.", reason, "Choose another, or leave it out.")
    return window


MAIN = ("plain", "part", "enc", "dec", "cross", "merged")
MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}
PLACEHOLDERS = ("image", "video", "audio")


@dataclass(frozen=True, eq=False)
class _Stack:
    """The calls of one stack, as far as their positions go."""

    name: str
    calls: Sequence[Call]

    @property
    def asks(self) -> tuple[int, int]:
        """Rows, and the most positions that are asked from."""
        return self.calls[0].q.shape[0], max(c.q.shape[2] for c in self.calls)

    @property
    def sees(self) -> tuple[int, int]:
        """Rows, and the most positions that are seen."""
        return self.calls[0].k.shape[0], max(c.k.shape[2] for c in self.calls)

    @property
    def main(self) -> bool:
        """Whether it is one of those whose positions are a text's, where the model is given a text."""
        return self.name.rstrip("0123456789") in MAIN or self.name.split("_")[0] == "text"

    def seen(self) -> Tensor:
        """Which keys any query gives weight to, in any layer that sees the most positions."""
        rows, length = self.sees
        weights = [c.weights for c in self.calls if c.weights is not None and c.weights.shape[3] == length]
        positions = [w.detach().ne(0).flatten(1, 2).any(1).cpu() for w in weights if w.shape[0] == rows]
        return torch.stack(positions).any(0) if positions else torch.ones(rows, length, dtype=torch.bool)


def find_sides(
    inputs: ModelInputs, tokenizer: Any, calls: Sequence[Call], addresses: Sequence[Address]
) -> tuple[Side, Side | None, dict[str, Side]]:
    """Source, target and the sides of other stacks, of a dict of the model's own inputs: for as many positions as attention saw."""
    stacks = [
        _Stack(name, [c for c, a in zip(calls, addresses, strict=True) if a.stack == name])
        for name in dict.fromkeys(a.stack for a in addresses)
    ]
    by_name = {stack.name: stack for stack in stacks}
    # of an encoder without attention, or whose output is given, cross-attention still sees the positions
    rest = "cross" if {"dec", "cross"} <= by_name.keys() else stacks[0].name
    named = next((n for n in ("enc", "plain", "text") if n in by_name), rest)
    first, targets = by_name[named], {stack.name: stack for stack in stacks if stack.name in ("dec", "merged")}
    source = _side(inputs, "input_ids", tokenizer, first, first.sees if crosses(named) else first.asks)
    target = None
    for stack in targets.values():
        target = target or _side(inputs, "decoder_input_ids", tokenizer, stack, stack.asks)
    beside: dict[str, Side] = {}
    for stack in stacks:
        usual = side_of(stack.name, source, target, beside)
        if stack.name != named and not (stack.main and tuple(usual.real.shape) == stack.asks):
            beside[stack.name] = _side(inputs, "input_ids", tokenizer, stack, stack.asks)
    for stack in stacks:
        beside |= _keys(stack, source, target, beside)
    return source, target, beside


def _keys(stack: _Stack, source: Side, target: Side | None, beside: Mapping[str, Side]) -> dict[str, Side]:
    """The side of a stack's keys, where it is not the usual one."""
    usual = key_side_of(stack.name, source, target, beside)
    joined = stack.name.split("_")[-1] == "merged"
    if not joined and tuple(usual.real.shape) == stack.sees and (stack.main or not crosses(stack.name)):
        return {}
    asks = side_of(stack.name, source, target, beside)
    if joined and asks.real.shape[0] == stack.sees[0] == source.real.shape[0]:
        # where the queries' own keys come first, they are not looked ahead to
        length = stack.asks[1]
        causal = (c.weights is not None and not bool(c.weights[..., :length].triu(1).any()) for c in stack.calls)
        both = [asks, source] if all(causal) else [source, asks]
        if sum(side.real.shape[1] for side in both) == stack.sees[1]:
            pairs = zip(both[0].tokens, both[1].tokens, strict=True)
            real, special = (torch.cat(parts, 1) for parts in zip(*((s.real, s.special) for s in both), strict=True))
            ids = [s.ids for s in both if s.ids is not None]
            joined = torch.cat(ids, 1) if len(ids) == len(both) else None
            return {keys_of(stack.name): Side(tuple((*a, *b) for a, b in pairs), real, special, joined)}
    others = [s for name, s in beside.items() if name != stack.name] + [source] if crosses(stack.name) else []
    fitting = [side for side in others if tuple(side.real.shape) == stack.sees]
    return {keys_of(stack.name): fitting[0] if fitting else _nameless(stack.seen())}


def _side(inputs: ModelInputs, key: str, tokenizer: Any, stack: _Stack, shape: tuple[int, int]) -> Side:
    entry, mask = inputs.get(key), inputs.get(MASKS[key])
    fits = stack.main and isinstance(entry, Tensor) and tuple(entry.shape) == shape
    masked = stack.main and isinstance(mask, Tensor) and tuple(mask.shape) == shape
    if not fits:
        seen = stack.seen() if stack.sees == shape and not crosses(stack.name) else torch.ones(shape, dtype=torch.bool)
        return _nameless(mask.bool().cpu() if masked and isinstance(mask, Tensor) else seen)
    assert isinstance(entry, Tensor)
    ids = entry.cpu()
    real = mask.bool().cpu() if masked and isinstance(mask, Tensor) else torch.ones(shape, dtype=torch.bool)
    special = ~real
    if tokenizer is None:
        return Side(tuple(tuple(str(i) for i in row) for row in ids.tolist()), real, special, ids)
    specials = set(tokenizer.all_special_ids)
    tokens = tuple(tuple(tokenizer.convert_ids_to_tokens(row)) for row in ids.tolist())
    return Side(tokens, real, special | torch.tensor([[i in specials for i in row] for row in ids.tolist()]), ids)


def _nameless(real: Tensor) -> Side:
    rows, length = real.shape
    return Side(tuple(tuple(f"position {n + 1}" for n in range(length)) for _ in range(rows)), real, ~real)


def labelled(inputs: ModelInputs, config: Any) -> dict[str, object]:
    """The inputs; where token ids stand for images, sounds or videos, with labels that leave those out."""
    ids, result = inputs.get("input_ids"), dict(inputs)
    names = [f"{kind}_token_{end}" for kind in PLACEHOLDERS for end in ("id", "index")]
    marks = [n for name in names if isinstance(n := getattr(config, name, None), int)]
    if isinstance(ids, Tensor) and marks:
        is_placeholder = torch.isin(ids, torch.tensor(marks, device=ids.device))
        if bool(is_placeholder.any()):
            result.setdefault("labels", ids.masked_fill(is_placeholder, IGNORED))
    return result


CPU = torch.device("cpu")
SINGLE = ("mps",)  # devices without float64, in which norms are added up


class Seen(NamedTuple):
    """One attention call that was read, and the residual around it, on one device."""

    projections: Projections
    call: Call
    block: ResidualBlock | None


def computed_at(call: Call) -> torch.device:
    """Where measures of a call are computed: where the call was, if that device has float64; else the CPU."""
    return CPU if call.q.device.type in SINGLE else call.q.device


def seen_at(
    device: torch.device, projections: Projections, call: Call, block: ResidualBlock | None, copies: bool
) -> Seen:
    """A call with copies of its weights, all on a device; `copies` are made of the rest too, as the model may write to it."""
    weights = None if call.weights is None else call.weights.detach().to(device, copy=copies)
    q, k, v, output = (t.detach().to(device, copy=copies) for t in (call.q, call.k, call.v, call.output))
    moved = Call(call.module, call.order, q, k, v, weights, output, call.scale)
    if block is None:
        return Seen(projections.copied(device), moved, None)
    # its feed-forward block stays where the model has it, which few measures need
    after, beta = block.after, None if block.beta is None else block.beta.to(device)
    if after is not None:
        shift = None if after.beta is None else after.beta.to(device)
        after = replace(after, gamma=after.gamma.to(device), beta=shift)
    residual, gamma = block.residual.to(device), block.gamma.to(device)
    placed = replace(block, residual=residual, gamma=gamma, beta=beta, after=after)
    return Seen(projections.copied(device), moved, placed)


def trace_of(batch: Batch, seen: Seen) -> Trace:
    """The Trace of a call of one batch."""
    projections, call, block = seen
    address, weights = projections.address, call.weights
    assert weights is not None
    asks, sees = batch.queries(address.stack).real, batch.keys(address.stack).real
    real = _fit(asks, call.q), _fit(sees, call.k)
    parts = (call.q, call.k, call.v, weights, call.output)
    return Trace(address, *parts, *real, projections, call.scale, block)


def _fit(real: Tensor, part: Tensor) -> Tensor:
    """Which positions are real, for a layer that sees another number of them (pooled, or patched): all of them."""
    shape = part.shape[0], part.shape[2]
    fits = real.shape == shape
    return real.to(part.device) if fits else torch.ones(shape, dtype=torch.bool, device=part.device)


LOGIT_ROWS = 1 << 21  # logits whose losses are computed at once
UNSCORED = "The model's loss cannot be computed."


def first_tensor(answer: Any) -> Tensor:
    """Logits, else the last hidden state, else whatever comes first in a model's answer."""
    if isinstance(answer, Tensor):
        return answer
    if isinstance(answer, Mapping):
        for name in ("logits", "last_hidden_state"):
            if isinstance(answer.get(name), Tensor):
                return answer[name]
        answer = tuple(answer.values())
    tensor = next((t for t in tensors_in((answer,)) if t.is_floating_point()), None)
    if tensor is None:
        reason = f"It gives {type(answer).__name__}."
        raise ModelError("The model answers with no tensor of floats.", reason, "Choose a model that gives one.")
    return tensor


def output_at(answer: Any, places: Int[Tensor, "B ..."] | None) -> Float[Tensor, "B T V"]:
    """Logits, else last hidden states, on the CPU; at each row's place, or places, alone where `places` are given."""
    tensor = first_tensor(answer).detach()
    if places is None:
        return tensor.cpu()
    at = places.to(tensor.device).view(len(tensor), -1)
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], at].cpu()


def row_scores(model_answer: Any, batch: Batch, objective: str, clean: RowScores | None) -> RowScores:
    """Sums over predicted tokens and their number, per row; see `core.subject.RowScores` for the units.

    Labels say which tokens are predicted, where the inputs have some; else a causal model predicts every next one.
    """
    answer = first_tensor(model_answer)
    if objective == "output":
        # relative squared change of the answer at real positions; an answer without positions counts as one
        output = answer.detach().cpu()
        output = output.flatten(2) if output.dim() > 2 else output[:, None]
        real = batch.queries("dec").real if batch.target is not None else batch.source.real
        if real.shape != output.shape[:2]:
            real = torch.ones(output.shape[:2], dtype=torch.bool)
        if clean is None or clean.output is None:
            copy = output.clone()  # a model may write its next answer into the same memory
            return RowScores(torch.zeros(len(output), dtype=torch.float64), real.sum(1).double(), copy)
        total = torch.where(real, relative_change(output, clean.output), 0.0).sum(1)
        return RowScores(total, real.sum(1).double())
    labels = batch.inputs.get("labels")
    if objective == "causal":
        # of the next token, wherever both it and the position before it are real: a row may be padded on its left
        ids, real = batch.inputs.get("input_ids"), batch.source.real.to(answer.device)
        if ids is None or ids.shape != answer.shape[:2] or real.shape != ids.shape:
            shape = "none" if ids is None else str(tuple(ids.shape))
            reason = f"Its answer is of shape {tuple(answer.shape)}. Its token ids, of shape {shape}, would have to be as many."
            raise ModelError(UNSCORED, reason, "Give input_ids, a token for every position.")
        if labels is not None and labels.shape != ids.shape:
            problem = f"Labels of shape {tuple(labels.shape)} were given."
            reason = f"The token ids are of shape {tuple(ids.shape)}, and a label is of one of them."
            raise ModelError(problem, reason, "Give a label for every token id.")
        predicted = (ids if labels is None else labels).to(answer.device)
        return _sums(answer[:, :-1], torch.where(real[:, :-1] & real[:, 1:], predicted[:, 1:], IGNORED))
    if labels is None:
        reason = "The batch says of no token that it is to be predicted."
        raise ModelError(UNSCORED, reason, "Make the batch with batches(texts, scored=True).")
    if labels.shape != answer.shape[:2]:
        reason = f"Its answer is of shape {tuple(answer.shape)}."
        raise ModelError(UNSCORED, reason, "Load it with its language-model head.")
    return _sums(answer, labels)


def _sums(logits: Float[Tensor, "B T V"], labels: Int[Tensor, "B T"]) -> RowScores:
    """The losses of every row, over the last axis, as logits lie in memory, and some positions at once: no row is held a second time."""
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    size, rows = max(1, LOGIT_ROWS // logits.shape[2]), list[Tensor]()
    for row, row_labels in zip(logits, labels, strict=True):
        pairs = zip(row.split(size), row_labels.split(size), strict=True)
        losses = [F.cross_entropy(y.to(kind), at, ignore_index=IGNORED, reduction="none") for y, at in pairs]
        rows.append(torch.cat([*losses, logits.new_zeros(0, dtype=kind)]))
    return RowScores(torch.stack(rows).double().sum(1).cpu(), (labels != IGNORED).sum(1).double().cpu())
