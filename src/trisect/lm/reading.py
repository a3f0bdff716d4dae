"""Read a language model of a study with the measures of pretrained models."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import ModelError
from trisect.core.spec import Model
from trisect.core.subject import (
    MAX_EXCERPT,
    QKV,
    Batch,
    EditFunction,
    Heads,
    InputSample,
    ModelInputs,
    PlainText,
    RowScores,
    Shape,
    SiteEdits,
    StreamPoint,
    StreamWriters,
    TextOrPair,
    Writer,
    as_sample,
    check_text,
    describe_edits,
    note_unknown,
    quote_words,
    write_in_order,
)
from trisect.core.trace import Address, FeedForward, Origin, Projections, Reading, Rescaling, ResidualBlock, Side, Trace
from trisect.lm.fleet import causal, embed, embedding_rows, finish, linear, project
from trisect.text.lines import UNKNOWN
from trisect.text.readers import basic_english

STACK = "plain"
NORM_AND_FFN_WEIGHTS = tuple(
    f"{part}.{kind}" for part in ("norm1", "up", "down", "norm2") for kind in ("weight", "bias")
)
NORM_EPSILON = 1e-5  # of the fleet's layer norms
COMPONENTS = ("q", "k", "v")
LEFT_OUT = 1 / 4  # of a text's words, at most: with fewer than three in four of them it is another text
MAX_NAMES = 8  # words that a message names


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A trained member of a fleet, to read, score and edit; `parameters` have a member axis of 1.

    Texts are split by the `basic_english` rules and lower-cased; a word that the vocabulary lacks becomes its unknown
    word. Where there is none it is left out, and a text with more than a quarter of such words is refused. Notes of the
    batches name them. `window` is the longest run of words that is read at once.
    """

    name: str
    model: Model
    parameters: Mapping[str, Tensor]
    vocabulary: tuple[str, ...]
    window: int
    options: tuple[str, ...] = ("STUDY",)
    objective: str = field(default="causal", init=False)
    mask: str | None = field(default=None, init=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on this thread's active edits."""
        return tuple(f"Measured with an edit: {block.words}." for block in _edits_here(self))

    @property
    def fingerprint(self) -> str:
        """Hex digits of the weights."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        total = hashlib.blake2b(digest_size=8)
        for name, value in sorted(self.parameters.items()):
            total.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()

    @property
    def shape(self) -> Shape:
        """The same heads in every layer."""
        heads = Heads(self.model.heads, self.model.heads)
        return Shape({Address(STACK, n): heads for n in range(1, self.model.layers + 1)})

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.vocabulary)}

    def projections(self) -> tuple[Projections, ...]:
        """Per-head weights of every layer: slices of the in-projection, and of the output projection's columns."""
        return tuple(_projections(self.model, self.parameters, n) for n in range(1, self.model.layers + 1))

    def batches(self, texts: Iterable[TextOrPair], size: int = 8, scored: bool = False) -> Iterator[Batch]:
        """Texts as batches of at most `size` windows; `scored` has no effect, since nothing is masked."""
        rows: list[tuple[int, int, list[int]]] = []
        lacking, named = list[str](), set[str]()
        for number, text in enumerate(map(as_sample, texts)):
            if isinstance(text, InputSample):
                problem = f"Sound, images or inputs were given to {self.name}."
                raise ModelError(problem, "It is a model of a study, and reads words.", "Give texts.")
            words = [word.lower() for word in basic_english(check_text(self.name, number, text, False)[0])]
            unknown = [word for word in words if word not in self._ids]
            ids = self._word_ids(number, text, words, unknown)
            lacking += unknown
            for start in range(0, len(ids), self.window):
                rows.append((number, start, ids[start : start + self.window]))
                if len(rows) == size:
                    yield self._batch(rows, _unknown_notes(self._ids, lacking, named))
                    rows, lacking = [], []
        if rows:
            yield self._batch(rows, _unknown_notes(self._ids, lacking, named))

    def _word_ids(self, number: int, text: PlainText, words: Sequence[str], lacking: Sequence[str]) -> list[int]:
        """The ids of a text's words; raises ModelError if too few are in the vocabulary."""
        if words and (UNKNOWN in self._ids or len(lacking) <= LEFT_OUT * len(words)):
            unknown = self._ids.get(UNKNOWN)
            return [i for word in words if (i := self._ids.get(word, unknown)) is not None]
        excerpt = f"{text[:MAX_EXCERPT]}…" if len(text) > MAX_EXCERPT else text
        reason = "It has no word."
        if words:
            those = quote_words(list(dict.fromkeys(lacking)), MAX_NAMES)
            reason = f"{len(lacking)} of its {len(words)} words are not among the {len(self.vocabulary):,} that {self.name} knows: {those}."
        todo = "Give words of the corpus that it was trained on; trisect.load('STUDY').vocabulary lists them in Python."
        raise ModelError(f"Text {number + 1} is {excerpt!r}.", reason, todo)

    def _batch(self, rows: list[tuple[int, int, list[int]]], notes: Iterable[str]) -> Batch:
        longest = max(len(ids) for _, _, ids in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        real = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, (_, _, words) in enumerate(rows):
            ids[i, : len(words)] = torch.tensor(words)
            real[i, : len(words)] = True
        tokens = tuple(tuple(self.vocabulary[n] for n in row) + ("",) * (longest - len(row)) for _, _, row in rows)
        cut = f"Texts longer than {self.window} words were cut into windows that do not see each other."
        notes = (*self.notes, *([cut] if any(start for _, start, _ in rows) else []), *notes)
        return Batch({"ids": ids}, Side(tokens, real, ~real, ids), None, tuple((t, s) for t, s, _ in rows), notes)

    def read(self, texts: TextOrPair | Iterable[TextOrPair], size: int = 1_000) -> Reading:
        """Read one or several texts as one Reading; raises ModelError for more than `size` windows."""
        texts = [cast(TextOrPair, texts)] if isinstance(texts, (str, tuple, InputSample)) else texts
        batches = list(self.batches(texts, size))
        if not batches:
            raise ModelError("No text was given.", "A Reading is of at least one.", "Give a text.")
        if len(batches) != 1:
            reason = f"A Reading holds one batch of at most {size:,} windows, all in memory."
            raise ModelError(
                f"{len(batches)} batches were given.", reason, "Use batches and trace, one batch at a time."
            )
        return self.trace(batches[0])

    def each(self, batch: Batch, see: Callable[[Trace], object]) -> None:
        """Read a batch, and yield its layers one by one; small models are read as a whole."""
        for trace in self.trace(batch).traces:
            see(trace)

    @torch.no_grad()
    def trace(self, batch: Batch, write: Mapping[Address, Writer] | None = None) -> Reading:
        """Read a batch: a Trace per layer, after writes to q, k and v."""
        real, traces, seen = batch.source.real, [], []
        self._pass(batch.inputs["ids"], write or {}, {}, seen)
        scale = (self.model.width // self.model.heads) ** -0.5
        for n, (x, (q, k, v), weights, output) in enumerate(seen, 1):
            address = Address(STACK, n)
            around = {name: self.parameters[f"layers.{n}.{name}"][0] for name in NORM_AND_FFN_WEIGHTS}
            first, second = ((around[f"{norm}.weight"], around[f"{norm}.bias"]) for norm in ("norm1", "norm2"))
            maps = around["up.weight"], around["up.bias"], None, None, around["down.weight"], around["down.bias"]
            forward = FeedForward("relu", *maps, sum_norm=Rescaling(*second, NORM_EPSILON, centred=True))
            block = ResidualBlock("post", x, *first, NORM_EPSILON, forward=forward)
            projections = _projections(self.model, self.parameters, n)
            traces.append(Trace(address, q, k, v, weights, output, real, real, projections, scale, block))
        return Reading(self.name, tuple(traces), batch.source, None, batch.rows, batch.notes, self.objective)

    @torch.no_grad()
    def score(
        self,
        batch: Batch,
        write: Mapping[Address, Writer] | None = None,
        hold: Mapping[Address, Float[Tensor, "B H T S"]] | None = None,
        clean: RowScores | None = None,
    ) -> RowScores:
        """Next-word losses of one batch, row by row, in nats."""
        ids, real = batch.inputs["ids"], batch.source.real
        hidden = self._pass(ids, write or {}, hold or {}, None)
        logits = self._logits(hidden[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)
        return RowScores((losses.double() * real[:, 1:]).sum(1), real[:, 1:].sum(1).double())

    def token(self, number: int) -> str:
        """A word of the vocabulary."""
        return self.vocabulary[number]

    @torch.no_grad()
    def predict(
        self,
        inputs: ModelInputs,
        write: SiteEdits | None = None,
        hold: Mapping[Address, Float[Tensor, "B H T S"]] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits for its own inputs, `ids` [B T] of the vocabulary, parts written by address or by site (see trisect.edit)."""
        if not isinstance(ids := inputs.get("ids"), Tensor) or ids.dim() != 2:
            problem = f"{self.name} was given {', '.join(map(repr, inputs)) or 'nothing'}."
            raise ModelError(problem, "It takes ids [B T] of its vocabulary.", "Give those of a batch: batch.inputs.")
        return self._logits(self._pass(ids, self.shape.writers(write or {}), hold or {}, None))

    @torch.no_grad()
    def outputs(
        self,
        batch: Batch,
        write: Mapping[Address, Writer] | None = None,
        places: Int[Tensor, "B ..."] | None = None,
        hold: Mapping[Address, Float[Tensor, "B H T S"]] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the next word at every position, or at places of each row."""
        return self._logits(self._pass(batch.inputs["ids"], write or {}, hold or {}, None), places)

    @torch.no_grad()
    def stream_outputs(
        self,
        batch: Batch,
        streams: StreamWriters,
        write: Mapping[Address, Writer] | None = None,
        places: Int[Tensor, "B ..."] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """`outputs` with the input of a layer's block replaced; raises ModelError for other points of the stream."""
        if other := [point for point in streams if point.where != "input"]:
            reason = "Its norms stand behind the sums, so that what a layer adds is no part of the next layer's input."
            problem = f"The writers of {self.name} do not add up to its residual stream, asked for at {other[0].where}."
            raise ModelError(problem, reason, "Ask for a layer's input, or choose a pretrained model.")
        return self._logits(self._pass(batch.inputs["ids"], write or {}, {}, None, streams), places)

    def path_gradients(
        self, batch: Batch, places: Int[Tensor, " B"], answers: Int[Tensor, " B"], layers: Sequence[int]
    ) -> dict[tuple[int, str, int], Float[Tensor, "B T D"]]:
        """None: raises ModelError, since writers do not add up in a residual stream."""
        reason = "Its norms stand behind the sums."
        raise ModelError(f"The writers of {self.name} do not add up.", reason, "Choose a pretrained model.")

    def _logits(
        self, hidden: Float[Tensor, "B T D"], places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B _ V"]:
        if places is not None:
            hidden = hidden[torch.arange(len(hidden))[:, None], places.view(len(hidden), -1)]
        flat = linear(hidden.flatten(0, 1)[None], self.parameters["decoder.weight"], self.parameters["decoder.bias"])
        return flat[0].view(*hidden.shape[:2], flat.shape[-1])

    def _pass(
        self,
        ids: Int[Tensor, "B T"],
        write: Mapping[Address, Writer],
        hold: Mapping[Address, Tensor],
        seen: list[tuple[Tensor, QKV, Tensor, Tensor]] | None,
        streams: StreamWriters | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The last hidden states. Of every layer its input [B T D], its q, k, v as they were used, the weights [B H T T] and the
        heads' outputs [B H T E] are added to `seen`, where there is such a list.
        """
        p, heads = self.parameters, self.model.heads
        blocks = _edits_here(self)
        each = (*(block.writers for block in blocks), write)
        writers = {a: tuple(stage[a] for stage in each if a in stage) for a in self.shape.heads}
        x = embed(embedding_rows(p["embed.weight"], ids), ids, None)
        mask = causal(ids.shape[1], x.dtype, x.device)
        for n in range(1, self.model.layers + 1):
            if streams and (change := streams.get(StreamPoint(Address(STACK, n)))) is not None:
                x = change(x[0])[None]
            split = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in project(p, n, x)[0].chunk(3, -1))
            parts = QKV(*(t.contiguous() for t in split))
            address = Address(STACK, n)
            parts = write_in_order(writers[address], parts)
            if address in hold:
                weights = hold[address]
            else:  # the same products in the same order as `fleet.attend`
                q, k = parts.q.flatten(0, 1), parts.k.flatten(0, 1)
                scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).add_(mask)
                weights = torch.softmax(scores, -1).view(*parts.q.shape[:3], -1)
            output = torch.bmm(weights.flatten(0, 1), parts.v.flatten(0, 1)).view(*weights.shape[:3], -1)
            if seen is not None:
                seen.append((x[0], parts, weights, output))
            mixed = output.transpose(1, 2).reshape(1, *x.shape[1:])
            x = finish(p, n, x, mixed, None, idle=self.model.idle)
        for block in blocks:
            block.passes += 1
        return x[0]


class _Edit:
    """The functions of one block of edits on an OwnModel, their thread, and the number of passes that they ran in."""

    def __init__(self, words: str, writers: Mapping[Address, Writer]) -> None:
        self.words, self.writers, self.thread, self.passes = words, writers, threading.get_ident(), 0


OPEN_EDITS: WeakKeyDictionary[OwnModel, list[_Edit]] = WeakKeyDictionary()


def _edits_here(model: OwnModel) -> list[_Edit]:
    """The active edits of this thread."""
    return [block for block in OPEN_EDITS.get(model, ()) if block.thread == threading.get_ident()]


@contextmanager
def edit_own(model: OwnModel, edits: Mapping[str, EditFunction]) -> Iterator[None]:
    """Context in which functions run at sites in every pass of this thread, those of outer blocks first.

    Raises SiteError, SpecError; and ModelError where no pass was made to its end.
    """
    block = _Edit(describe_edits(edits), model.shape.writers(edits))
    OPEN_EDITS.setdefault(model, []).append(block)
    try:
        yield
    finally:
        OPEN_EDITS[model].remove(block)
    if not block.passes:
        reason = f"No pass of {model.name} was made in the block, in this thread."
        raise ModelError(f"The edit of {block.words} was not made.", reason, "Read, score or predict inside.")


def _unknown_notes(ids: Mapping[str, int], lacking: Sequence[str], named: set[str]) -> list[str]:
    """Notes on words that the vocabulary lacks, except those in `named`, which grows by the others."""
    how = f"read as {UNKNOWN}" if UNKNOWN in ids else "left out"
    vocabulary = f"the {len(ids):,} words of the vocabulary (trisect.load('STUDY').vocabulary)"
    lead, rest = f"Not among {vocabulary}, and {how}", f"Other words that the vocabulary lacks are {how} as well."
    return note_unknown(lead, rest, lacking, named)


def _projections(model: Model, parameters: Mapping[str, Tensor], n: int) -> Projections:
    """Slices of a layer's in-projection, and of its output projection's columns."""
    wide, heads = model.width, model.heads
    each, name = wide // heads, f"layers.{n}.in"
    w, b = parameters[f"{name}.weight"][0], parameters[f"{name}.bias"][0]
    maps, shifts, origins = list[Tensor](), list[Tensor](), dict[str, Origin]()
    for i, component in enumerate(COMPONENTS):
        rows = torch.arange(i * wide, (i + 1) * wide).view(heads, each)
        maps.append(w[rows].transpose(1, 2))
        shifts.append(b[rows])
        words = f"rows {i * wide + 1}-{(i + 1) * wide} of the in-projection"
        origins[component] = Origin("rows", words, f"{name}.weight", f"{name}.bias", rows, residual=0.0)
    out = f"layers.{n}.out"
    columns = torch.arange(wide).view(heads, each)
    origins["o"] = Origin("rows", "the output projection", f"{out}.weight", f"{out}.bias", columns, residual=0.0)
    output = parameters[f"{out}.weight"][0].view(wide, heads, each).permute(1, 2, 0)
    (w_q, w_k, w_v), (b_q, b_k, b_v) = maps, shifts
    b_o = parameters[f"{out}.bias"][0]
    return Projections(Address(STACK, n), origins, w_q, w_k, w_v, output, b_q, b_k, b_v, b_o)
