"""Batches of texts or of a model's own inputs, and the traces and losses of a forward pass over them."""

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
from trisect.core.subject import Batch, ModelInputs, RowScores, TextOrPair, check_text, note_unknown
from trisect.core.trace import Address, Projections, ResidualBlock, Side, Trace, crosses, key_side_of, keys_of, side_of
from trisect.hf.files.fetch import MEDIA, takes_no_text
from trisect.hf.files.tokenizers import tokenize
from trisect.hf.hooks.calls import Call, tensors_in
from trisect.measure.intervention import relative_change

DEFAULT_WINDOW = 512  # default window, in tokens, where neither model nor tokenizer has a limit
LARGEST_DEFAULT_WINDOW = 1_024  # largest default window, in tokens: memory for attention weights grows with its square
NO_LIMIT = 1_000_000  # tokenizers without a limit report a very large `model_max_length`
MASKED_SHARE = 0.15
TYPES_WITH_OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
IGNORED = -100  # of labels: not predicted


class _TokenWindow(NamedTuple):
    """One row of a batch: text number, first token of the window, token ids and special-token flags, of source and target.

    `single_text` is true if one text is both source and target.
    """

    text: int
    start: int
    ids: list[int]
    special: list[bool]
    target: list[int]
    target_special: list[bool]
    single_text: bool


@dataclass(frozen=True, eq=False)
class TextBatcher:
    """Turns texts into batches for one model; `limit` is its longest input in tokens, None if it states none."""

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
        """Make the batcher of a model; `window` overrides the longest input that model and tokenizer state."""
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
        """Yield batches of at most `size` windows, in the order of `texts`, which are (number, text) pairs."""
        if self.main in MEDIA:
            raise takes_no_text(self.name, self.main)
        if self.tokenizer is None:
            reason = "It has no tokenizer, or does not read text."
            raise ModelError(f"A text was given to {self.name}.", reason, "Give its own inputs as a dict of tensors.")
        lacking, named, mark = list[str](), set[str](), getattr(self.tokenizer, "unk_token", None)
        lead = f"Read as {mark}, which stands for what the tokenizer does not know"
        rest = f"Other words are read as {mark} as well."
        windows = (window for number, text in texts for window in self._windows(number, text, lacking))
        while rows := list(itertools.islice(windows, size)):
            yield self._batch(rows, scored, note_unknown(lead, rest, lacking, named))
            lacking.clear()

    def _windows(self, number: int, text: TextOrPair, lacking: list[str]) -> Iterator[_TokenWindow]:
        """The windows of a text; `lacking` grows by its words that the tokenizer does not know."""
        paired = self.objective == "seq2seq" or "decoder_input_ids" in self.accepts
        source, target = check_text(self.name, number, text, paired)
        sources = list(self._split_text(source, lacking))
        targets = list(self._split_text(target, lacking, True)) if paired else []
        if targets and len(targets) != len(sources):
            problem = f"Text {number + 1} makes {len(sources)} windows of source and {len(targets)} of target."
            reason = "Source and target are read window by window and need equally many."
            raise ModelError(problem, reason, "Give shorter texts.")
        for i, (start, ids, special) in enumerate(sources):
            _, target_ids, target_special = targets[i] if targets else (0, [], [])
            yield _TokenWindow(number, start, ids, special, target_ids, target_special, not isinstance(text, tuple))

    def _split_text(
        self, text: str, lacking: list[str], is_target: bool = False
    ) -> Iterator[tuple[int, list[int], list[bool]]]:
        """Yield each window of a text: the number of its first token, its ids with special tokens, and special-token flags.

        `is_target` tokenizes as a target, for which some tokenizers have other rules.
        """
        options = {"add_special_tokens": True, "return_special_tokens_mask": True}
        encoded = tokenize(self.name, self.tokenizer, text, is_target, **options)
        ids, special = list(encoded["input_ids"]), [bool(m) for m in encoded["special_tokens_mask"]]
        lacking += self._unknown_words(text, ids, is_target)
        if len(ids) <= self.window:
            if not ids:
                reason = "The tokenizer makes no token of it."
                raise ModelError(f"The text {text[:40]!r} is empty.", reason, "Give a text of at least one token.")
            yield 0, ids, special
            return
        inner_places = [i for i, s in enumerate(special) if not s]
        before, after = ids[: inner_places[0]], ids[inner_places[-1] + 1 :]
        size = self.window - len(before) - len(after)
        if size < 1:
            reason = f"The tokenizer adds {len(before) + len(after)} tokens to every text."
            raise ModelError(f"A window of {self.window} tokens.", reason, "Use a longer window.")
        inner, flags = ids[inner_places[0] : inner_places[-1] + 1], special[inner_places[0] : inner_places[-1] + 1]
        for start in range(0, len(inner), size):
            piece = inner[start : start + size]
            marks = [True] * len(before) + flags[start : start + size] + [True] * len(after)
            yield start, [*before, *piece, *after], marks

    def _unknown_words(self, text: str, ids: Sequence[int], is_target: bool) -> list[str]:
        """The words of a text that the tokenizer does not know, where it does not say where its pieces stand each tokenized alone."""
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if unknown is None or unknown not in ids:
            return []
        if not getattr(self.tokenizer, "is_fast", False):
            by_word = {w: tokenize(self.name, self.tokenizer, w, is_target)["input_ids"] for w in text.split()}
            return [w for w, pieces in by_word.items() if unknown in pieces and w != self.tokenizer.unk_token]
        spans = tokenize(self.name, self.tokenizer, text, is_target, return_offsets_mapping=True)["offset_mapping"]
        words = (text[start:end].strip() for piece, (start, end) in zip(ids, spans, strict=True) if piece == unknown)
        return [word for word in words if word not in ("", self.tokenizer.unk_token)]

    def _batch(self, rows: list[_TokenWindow], scored: bool, unknown: list[str]) -> Batch:
        ids, real = self._pad([row.ids for row in rows])
        special = pad_rows([row.special for row in rows], True)
        unmasked_ids = ids
        inputs: dict[str, Tensor] = {}
        if scored and self.objective == "masked":
            ids, labels = self._mask_tokens(ids, real & ~special, rows)
            inputs["labels"] = labels
        inputs |= {"input_ids": ids, "attention_mask": real.long()}
        target = None
        if rows[0].target:
            target_ids, target_real = self._pad([row.target for row in rows])
            shifted = torch.cat([torch.full_like(target_ids[:, :1], self.start), target_ids[:, :-1]], 1)
            inputs |= {"decoder_input_ids": shifted, "labels": torch.where(target_real, target_ids, IGNORED)}
            flags = pad_rows([[True, *row.target_special[:-1]] for row in rows], True)
            target = Side(self._pieces(shifted, target_real), target_real, flags, shifted)
        notes = []
        if rows[0].target and any(row.single_text for row in rows):
            notes.append("A single text was given where the model takes two: it is both source and target.")
        if any(row.start for row in rows):
            notes.append(f"Texts longer than {self.window:,} tokens were cut into windows that do not see each other.")
            if self.window == LARGEST_DEFAULT_WINDOW < (self.limit or 0):
                notes[-1] += f" The model reads up to {self.limit:,}: choose a longer window for that."
        accepted = {name: t.to(self.device) for name, t in inputs.items() if name in self.accepts or name == "labels"}
        source = Side(self._pieces(unmasked_ids, real), real, special, unmasked_ids)
        return Batch(accepted, source, target, tuple((row.text, row.start) for row in rows), (*notes, *unknown))

    def _pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        filler = self.tokenizer.pad_token_id
        real = pad_rows([[True] * len(row) for row in rows], False)
        return pad_rows(rows, 0 if filler is None else int(filler)), real

    def _pieces(self, ids: Tensor, real: Tensor) -> tuple[tuple[str, ...], ...]:
        rows = []
        for row, is_real in zip(ids.tolist(), real.tolist(), strict=True):
            pieces = self.tokenizer.convert_ids_to_tokens(row)
            pairs = zip(pieces, is_real, strict=True)
            rows.append(tuple("" if not ok or piece is None else piece for piece, ok in pairs))
        return tuple(rows)

    def _mask_tokens(self, ids: Tensor, eligible: Tensor, rows: list[_TokenWindow]) -> tuple[Tensor, Tensor]:
        """Replace 15 % of each row's tokens, at least one, by the mask token; the choice depends on text and window alone."""
        mask = self.tokenizer.mask_token_id
        if mask is None:
            problem, reason = f"The loss of {self.name} cannot be computed.", "Its tokenizer has no mask token."
            raise ModelError(problem, reason, "Use the tokenizer it was trained with.")
        hidden, labels = ids.clone(), torch.full_like(ids, IGNORED)
        for i, row in enumerate(rows):
            draw = torch.Generator().manual_seed(row.text * 1_000_003 + row.start)
            places = eligible[i].nonzero().flatten()
            count = max(1, round(MASKED_SHARE * len(places)))
            chosen = places[torch.randperm(len(places), generator=draw)[:count]]
            labels[i, chosen] = ids[i, chosen]
            hidden[i, chosen] = mask
        return hidden, labels


def pad_rows(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Pad rows at their ends to one tensor [B T]; of integers, or of booleans if rows and filler are."""
    longest, dtype = max(len(row) for row in rows), torch.bool if isinstance(filler, bool) else torch.long
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows], dtype=dtype)


def longest_window(config: Any, tokenizer: Any) -> int | None:
    """The longest input, in tokens, that model and tokenizer both allow; None where neither states a limit."""
    # RoBERTa and its kin count positions from the padding index on, so that two of them are never used
    offset = 2 if getattr(config, "model_type", "") in TYPES_WITH_OFFSET else 0
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")]
    limits = [n - offset if isinstance(n, int) else None for n in limits]
    limits.append(getattr(tokenizer, "model_max_length", None))
    return min((int(n) for n in limits if isinstance(n, (int, float)) and 0 < n < NO_LIMIT), default=None)


def choose_window(name: str, window: int | None, limit: int | None) -> int:
    """`window` if given, else the limit or 1,024, whichever is smaller; raises ModelError if `window` exceeds the limit."""
    if window is None:
        return min(limit or DEFAULT_WINDOW, LARGEST_DEFAULT_WINDOW)
    if not isinstance(cast(object, window), int) or window < 1 or (limit is not None and window > limit):
        reason = "A window is 1 token or more" + ("." if limit is None else f", and {name} reads at most {limit}.")
        raise ModelError(f"A window of {window} tokens.", reason, "Choose another, or leave it out.")
    return window


MAIN = ("plain", "part", "enc", "dec", "cross", "merged")
MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}


@dataclass(frozen=True, eq=False)
class _Stack:
    """The attention calls of one stack, and the shapes of their queries and keys."""

    name: str
    calls: Sequence[Call]

    @property
    def query_shape(self) -> tuple[int, int]:
        """Rows, and the largest number of query positions."""
        return self.calls[0].q.shape[0], max(c.q.shape[2] for c in self.calls)

    @property
    def key_shape(self) -> tuple[int, int]:
        """Rows, and the largest number of key positions."""
        return self.calls[0].k.shape[0], max(c.k.shape[2] for c in self.calls)

    @property
    def is_text(self) -> bool:
        """Whether its positions are those of the text, for a model that is given one."""
        return self.name.rstrip("0123456789") in MAIN or self.name.split("_")[0] == "text"

    def attended_keys(self) -> Tensor:
        """Which keys get weight from any query, over the layers with the most keys."""
        rows, length = self.key_shape
        weights = [c.weights for c in self.calls if c.weights is not None and c.weights.shape[3] == length]
        positions = [w.detach().ne(0).flatten(1, 2).any(1).cpu() for w in weights if w.shape[0] == rows]
        return torch.stack(positions).any(0) if positions else torch.ones(rows, length, dtype=torch.bool)


def find_sides(
    inputs: ModelInputs, tokenizer: Any, calls: Sequence[Call], addresses: Sequence[Address]
) -> tuple[Side, Side | None, dict[str, Side]]:
    """Return the source, the target and the sides of other stacks for a dict of model inputs, sized by attention's queries and keys."""
    by_stack: dict[str, list[Call]] = {}
    for call, address in zip(calls, addresses, strict=True):
        by_stack.setdefault(address.stack, []).append(call)
    by_name = {name: _Stack(name, of_stack) for name, of_stack in by_stack.items()}
    stacks = list(by_name.values())
    # an encoder without attention, or one whose output is an input, has its positions in cross-attention only
    default_name = "cross" if {"dec", "cross"} <= by_name.keys() else stacks[0].name
    source_name = next((n for n in ("enc", "plain", "text") if n in by_name), default_name)
    first, targets = by_name[source_name], {stack.name: stack for stack in stacks if stack.name in ("dec", "merged")}
    shape, target = first.key_shape if crosses(source_name) else first.query_shape, None
    source = _side(inputs, "input_ids", tokenizer, first, shape)
    for stack in targets.values():
        target = target or _side(inputs, "decoder_input_ids", tokenizer, stack, stack.query_shape)
    other_sides: dict[str, Side] = {}
    for stack in stacks:
        default_side = side_of(stack.name, source, target, other_sides)
        if stack.name != source_name and not (stack.is_text and tuple(default_side.real.shape) == stack.query_shape):
            other_sides[stack.name] = _side(inputs, "input_ids", tokenizer, stack, stack.query_shape)
    for stack in stacks:
        other_sides |= _keys(stack, source, target, other_sides)
    return source, target, other_sides


def _keys(stack: _Stack, source: Side, target: Side | None, other_sides: Mapping[str, Side]) -> dict[str, Side]:
    """The side of a stack's keys, by name; empty if it is the default one of `key_side_of`."""
    default_side = key_side_of(stack.name, source, target, other_sides)
    joined = stack.name.split("_")[-1] == "merged"
    if not joined and tuple(default_side.real.shape) == stack.key_shape and (stack.is_text or not crosses(stack.name)):
        return {}
    query_side = side_of(stack.name, source, target, other_sides)
    if joined and query_side.real.shape[0] == stack.key_shape[0] == source.real.shape[0]:
        # keys of the queries' own sequence come first if attention to the first keys is causal
        length = stack.query_shape[1]
        causal = (c.weights is not None and not bool(c.weights[..., :length].triu(1).any()) for c in stack.calls)
        both = [query_side, source] if all(causal) else [source, query_side]
        if sum(side.real.shape[1] for side in both) == stack.key_shape[1]:
            pairs = zip(both[0].tokens, both[1].tokens, strict=True)
            real, special = (torch.cat(parts, 1) for parts in zip(*((s.real, s.special) for s in both), strict=True))
            ids = [s.ids for s in both if s.ids is not None]
            joined = torch.cat(ids, 1) if len(ids) == len(both) else None
            return {keys_of(stack.name): Side(tuple((*a, *b) for a, b in pairs), real, special, joined)}
    others = [s for name, s in other_sides.items() if name != stack.name] + [source] if crosses(stack.name) else []
    fitting = [side for side in others if tuple(side.real.shape) == stack.key_shape]
    return {keys_of(stack.name): fitting[0] if fitting else _unnamed_side(stack.attended_keys())}


def _side(inputs: ModelInputs, key: str, tokenizer: Any, stack: _Stack, shape: tuple[int, int]) -> Side:
    entry, mask, real = inputs.get(key), inputs.get(MASKS[key]), torch.ones(shape, dtype=torch.bool)
    is_masked = stack.is_text and isinstance(mask, Tensor) and tuple(mask.shape) == shape
    real = mask.bool().cpu() if is_masked and isinstance(mask, Tensor) else real
    if not stack.is_text or not isinstance(entry, Tensor) or tuple(entry.shape) != shape:
        is_seen = not is_masked and stack.key_shape == shape and not crosses(stack.name)
        return _unnamed_side(stack.attended_keys() if is_seen else real)
    ids, special = entry.cpu(), ~real
    if tokenizer is None:
        return Side(tuple(tuple(str(i) for i in row) for row in ids.tolist()), real, special, ids)
    specials = set(tokenizer.all_special_ids)
    tokens = tuple(tuple(tokenizer.convert_ids_to_tokens(row)) for row in ids.tolist())
    return Side(tokens, real, special | torch.tensor([[i in specials for i in row] for row in ids.tolist()]), ids)


def _unnamed_side(real: Tensor) -> Side:
    rows, length = real.shape
    return Side(tuple(tuple(f"position {n + 1}" for n in range(length)) for _ in range(rows)), real, ~real)


CPU = torch.device("cpu")
WITHOUT_FLOAT64 = ("mps",)  # devices without float64, in which norms are summed


class RecordedCall(NamedTuple):
    """A recorded attention call with its projections and its residual block, on one device."""

    projections: Projections
    call: Call
    block: ResidualBlock | None


def measure_device(call: Call) -> torch.device:
    """The device on which measures of a call are computed: the call's own if it has float64, else the CPU."""
    return CPU if call.q.device.type in WITHOUT_FLOAT64 else call.q.device


def copy_to_device(
    device: torch.device, projections: Projections, call: Call, block: ResidualBlock | None, copies: bool
) -> RecordedCall:
    """Move a recorded call to `device`; `copies` clones tensors that are there already, since the model may overwrite them."""
    projections = projections.copy_to(device, copies)
    weights = None if call.weights is None else call.weights.detach().to(device, copy=copies)
    q, k, v, output = (t.detach().to(device, copy=copies) for t in (call.q, call.k, call.v, call.output))
    moved = Call(call.module, call.order, q, k, v, weights, output, call.scale)
    if block is None:
        return RecordedCall(projections, moved, None)
    # the feed-forward block, which few measures need, stays on the model's device
    after, beta = block.after, None if block.beta is None else block.beta.to(device)
    if after is not None:
        shift = None if after.beta is None else after.beta.to(device)
        after = replace(after, gamma=after.gamma.to(device), beta=shift)
    residual, gamma = block.residual.to(device), block.gamma.to(device)
    placed = replace(block, residual=residual, gamma=gamma, beta=beta, after=after)
    return RecordedCall(projections, moved, placed)


def trace_of(batch: Batch, seen: RecordedCall) -> Trace:
    """The Trace of a call of one batch."""
    projections, call, block = seen
    address, weights = projections.address, call.weights
    assert weights is not None
    query_real, key_real = batch.queries(address.stack).real, batch.keys(address.stack).real
    real = _real_or_all(query_real, call.q), _real_or_all(key_real, call.k)
    parts = (call.q, call.k, call.v, weights, call.output)
    return Trace(address, *parts, *real, projections, call.scale, block)


def _real_or_all(real: Tensor, part: Tensor) -> Tensor:
    """`real` if it has as many positions as `part`, else all true: layers may pool or cut positions."""
    shape = part.shape[0], part.shape[2]
    return (real if real.shape == shape else torch.ones(shape, dtype=torch.bool)).to(part.device)


LOGIT_ROWS = 1 << 21  # size of a block of logits whose losses are computed at once
NO_LOSS = "The model's loss cannot be computed."


def first_tensor(answer: Any) -> Tensor:
    """Return the logits, else the last hidden state, else the first floating-point tensor of a model's output."""
    if isinstance(answer, Tensor):
        return answer
    if isinstance(answer, Mapping):
        for name in ("logits", "last_hidden_state"):
            if isinstance(answer.get(name), Tensor):
                return answer[name]
        answer = tuple(answer.values())
    tensor = next((t for t in tensors_in((answer,)) if t.is_floating_point()), None)
    if tensor is None:
        reason = f"It returns {type(answer).__name__}."
        raise ModelError("The model returns no floating-point tensor.", reason, "Choose a model that returns one.")
    return tensor


def output_at(answer: Any, places: Int[Tensor, "B ..."] | None) -> Float[Tensor, "B T V"]:
    """Logits, else last hidden states, on the CPU; only at each row's positions `places` if given."""
    tensor = first_tensor(answer).detach()
    if places is None:
        return tensor.cpu()
    at = places.to(tensor.device).view(len(tensor), -1)
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], at].cpu()


def row_scores(model_answer: Any, batch: Batch, objective: str, clean: RowScores | None) -> RowScores:
    """Sum the losses over predicted tokens and count these tokens, per row; see `core.subject.RowScores` for the units.

    The predicted tokens are those of the labels; without labels a causal model predicts every next token.
    """
    answer = first_tensor(model_answer)
    if objective == "output":
        # relative squared change of the output at real positions; an output without positions counts as one position
        output = answer.detach().cpu()
        output = output.flatten(2) if output.dim() > 2 else output[:, None]
        real = batch.queries("dec").real if batch.target is not None else batch.source.real
        if real.shape != output.shape[:2]:
            real = torch.ones(output.shape[:2], dtype=torch.bool)
        if clean is None or clean.output is None:
            clone = output.clone()  # a model may write its next output into the same memory
            return RowScores(torch.zeros(len(output), dtype=torch.float64), real.sum(1).double(), clone)
        total = torch.where(real, relative_change(output, clean.output), 0.0).sum(1)
        return RowScores(total, real.sum(1).double())
    labels = batch.inputs.get("labels")
    if objective == "causal":
        # loss of the next token where both it and the position before it are real: a row may be padded on its left
        ids, real = batch.inputs.get("input_ids"), batch.source.real.to(answer.device)
        if ids is None or ids.shape != answer.shape[:2] or real.shape != ids.shape:
            shape = "none" if ids is None else str(tuple(ids.shape))
            reason = f"Its output is of shape {tuple(answer.shape)}. Rows and positions of its token ids, of shape {shape}, have to agree."
            raise ModelError(NO_LOSS, reason, "Give input_ids with one token per position.")
        if labels is not None and labels.shape != ids.shape:
            problem = f"Labels of shape {tuple(labels.shape)} were given."
            reason = f"The token ids are of shape {tuple(ids.shape)}, and each of them has one label."
            raise ModelError(problem, reason, "Give a label for every token id.")
        predicted = (ids if labels is None else labels).to(answer.device)
        return _sums(answer[:, :-1], torch.where(real[:, :-1] & real[:, 1:], predicted[:, 1:], IGNORED))
    if labels is None:
        reason = "The batch has no labels."
        raise ModelError(NO_LOSS, reason, "Make the batch with batches(texts, scored=True).")
    if labels.shape != answer.shape[:2]:
        reason = f"Its output is of shape {tuple(answer.shape)}."
        raise ModelError(NO_LOSS, reason, "Load it with its language-model head.")
    return _sums(answer, labels)


def _sums(logits: Float[Tensor, "B T V"], labels: Int[Tensor, "B T"]) -> RowScores:
    """Sum of losses and number of labels per row, computed in blocks of positions so that the logits are never copied at once."""
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    size, rows = max(1, LOGIT_ROWS // logits.shape[2]), list[Tensor]()
    for row, row_labels in zip(logits, labels, strict=True):
        pairs = zip(row.split(size), row_labels.split(size), strict=True)
        losses = [F.cross_entropy(y.to(kind), at, ignore_index=IGNORED, reduction="none") for y, at in pairs]
        rows.append(torch.cat([*losses, logits.new_zeros(0, dtype=kind)]))
    return RowScores(torch.stack(rows).double().sum(1).cpu(), (labels != IGNORED).sum(1).double().cpu())
