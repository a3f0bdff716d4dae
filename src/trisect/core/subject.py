"""Subject: the protocol of a model whose attention can be read, scored and edited; batches and texts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from trisect.core.errors import ModelError, SiteError, SpecError, shorten
from trisect.core.site import Site, format_spans
from trisect.core.trace import Address, Projections, Reading, Side, Trace, key_side_of, side_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class Heads(NamedTuple):
    """Query heads and key/value heads of one attention layer."""

    query: int
    key: int


class SiteTarget(NamedTuple):
    """One component at one address, with heads (from 1; None: all). Heads of k and v are key/value heads."""

    address: Address
    component: str
    heads: tuple[int, ...] | None


@dataclass(frozen=True)
class Shape:
    """The heads of every attention layer of a model."""

    heads: Mapping[Address, Heads]

    @property
    def stacks(self) -> tuple[str, ...]:
        """The model's stacks, in order of appearance."""
        return tuple(dict.fromkeys(address.stack for address in self.heads))

    def layers(self, stack: str) -> tuple[int, ...]:
        """The attention layers of a stack."""
        return tuple(address.layer for address in self.heads if address.stack == stack)

    def describe(self) -> str:
        """The shape in words, for an error's second part."""
        parts = []
        for stack in self.stacks:
            layers = self.layers(stack)
            heads_of_layers = {self.heads[Address(stack, n)] for n in layers}
            query, key = max(h.query for h in heads_of_layers), max(h.key for h in heads_of_layers)
            heads = f"{query} heads" if query == key else f"{query} query heads, {key} key/value heads"
            name = "" if stack == "plain" else f"{stack}: "
            parts.append(f"{name}layers {', '.join(map(str, layers))} with {heads}")
        return f"The model has {'; '.join(parts)}."

    def resolve(self, site: Site) -> tuple[SiteTarget, ...]:
        """The components, layers and heads of a site, in canonical order.

        Raises SiteError when any part of it lies outside the model, or is not q, k or v.
        """
        stack = site.stack or "plain"
        if stack not in self.stacks:
            what = f"the stack {site.stack!r}" if site.stack else "no stack"
            raise SiteError(
                f"The site '{site}' names {what}.", self.describe(), "Name a stack that it has, as in enc.k@1."
            )
        if wrong := [c for c in site.components if c not in ("q", "k", "v")]:
            raise SiteError(
                f"The site '{site}' names {wrong[0]}.", "Only q, k and v can be read and edited.", "Use one of them."
            )
        if site.pre:
            reason = "Pretrained models are read at what enters the dot product."
            raise SiteError(
                f"The site '{site}' is the projection's output, before rotary positions.",
                reason,
                "Leave 'pre.' out.",
            )
        have = self.layers(stack)
        layers = have if site.layers is None else site.layers
        if outside := [n for n in layers if n not in have]:
            problem = f"The site '{site}' lies outside the model: layer {outside[0]}."
            raise SiteError(problem, self.describe(), "Choose a layer that attends.")
        targets = []
        for n in layers:
            address = Address(stack, n)
            for component in site.components:
                count = self.heads[address].query if component == "q" else self.heads[address].key
                if site.heads is not None and site.heads[-1] > count:
                    problem = f"The site '{site}' names head {site.heads[-1]} of {component}."
                    reason = f"{self.describe()} {component} has heads 1-{count} there."
                    raise SiteError(problem, reason, "Choose a head in that range.")
                targets.append(SiteTarget(address, component, site.heads))
        return tuple(targets)

    def writers(self, edits: SiteEdits) -> dict[Address, Writer]:
        """A writer for each address of sites such as 'v@3.h2'; functions of one address run in the mapping's order.

        Writers by address are kept. Raises SiteError for a site outside the model, SpecError for an object that is no function.
        """
        writers: dict[Address, list[Writer]] = {}
        for site, function in edits.items():
            if not isinstance(site, str):
                writers.setdefault(site, []).append(cast(Writer, function))
                continue
            reason = "An edit is a function of a tensor and of its SiteTarget."
            todo = "Give one such as lambda tensor, where: 2 * tensor."
            if not callable(function):
                raise SpecError(f"{site} is to be edited by {shorten(function)}.", reason, todo)
            try:
                inspect.signature(function).bind(None, None)
            except TypeError as error:
                raise SpecError(
                    f"{site} is to be edited by a function that cannot take two arguments.", reason, todo
                ) from error
            except ValueError:  # one of C, whose arguments Python does not know
                pass
            targets = self.resolve(Site.parse(site))
            for address in dict.fromkeys(target.address for target in targets):
                at_address = tuple(target for target in targets if target.address == address)
                writers.setdefault(address, []).append(edit_writer(at_address, cast(EditFunction, function)))
        return {
            address: functools.partial(write_in_order, tuple(at_address)) for address, at_address in writers.items()
        }


class QKV(NamedTuple):
    """q, k, v of one attention call, before key/value heads are repeated; argument and result of writers."""

    q: Float[Tensor, "B H T E"]
    k: Float[Tensor, "B K S E"]
    v: Float[Tensor, "B K S E"]


Writer: TypeAlias = Callable[[QKV], QKV]
Writers: TypeAlias = Mapping[Address, Writer]
WeightsByAddress: TypeAlias = "Mapping[Address, Float[Tensor, 'B H T S']]"  # that replace the softmax's
# (tensor at a site, the site's SiteTarget) -> the tensor that replaces it
EditFunction: TypeAlias = Callable[["Tensor", SiteTarget], "Tensor"]
SiteEdits: TypeAlias = Mapping[str, EditFunction] | Writers


def edit_writer(targets: Sequence[SiteTarget], function: EditFunction) -> Writer:
    """A writer that calls a function with each target's part, and writes its result; all targets are of one address.

    The function is given a copy. Raises ModelError where it returns another shape, dtype or device.
    """

    def write(parts: QKV) -> QKV:
        new = parts._asdict()
        for target in targets:
            tensor: Tensor = new[target.component]
            heads = tuple(range(1, tensor.shape[1] + 1)) if target.heads is None else target.heads
            which, where = [head - 1 for head in heads], target._replace(heads=heads)
            part = tensor.clone() if target.heads is None else tensor[:, which]
            kind = tuple(part.shape), part.dtype, part.device
            changed: Any = function(part, where)
            returned = tuple(getattr(changed, name, None) for name in ("shape", "dtype", "device"))
            if returned[0] is None or (tuple(returned[0]), *returned[1:]) != kind:
                shown = (
                    f"{list(returned[0])}, {returned[1]}, {returned[2]}"
                    if returned[0] is not None
                    else type(changed).__name__
                )
                component = f"{where.component} of {where.address}, heads {format_spans(heads)}"
                problem = f"The function {edit_name(function)} returned {shown} for {component}."
                reason = f"It was given {list(kind[0])}, {kind[1]}, {kind[2]}."
                raise ModelError(problem, reason, "Return a tensor like it.")
            if target.heads is not None:
                replaced = tensor.clone()
                replaced[:, which] = changed
                changed = replaced
            new[target.component] = changed
        return QKV(**new)

    return write


def edit_name(how: str | EditFunction) -> str:
    """A short name of an edit: its function's name, or its kind."""
    return how if isinstance(how, str) else getattr(how, "__name__", type(how).__name__)


def describe_edits(edits: Mapping[str, str | EditFunction]) -> str:
    """Sites with their edits, for a message."""
    return ", ".join(f"{site} by {edit_name(how)}" for site, how in edits.items())


def write_in_order(writers: Sequence[Writer], parts: QKV) -> QKV:
    """Apply writers one after the other."""
    return functools.reduce(lambda now, write: write(now), writers, parts)


ModelInputs: TypeAlias = Mapping[str, Any]  # keyword arguments of a model's own forward, usually tensors
Media: TypeAlias = object  # a path, audio samples or an image of Pillow, or several of these


@dataclass(frozen=True, eq=False)
class InputSample:
    """Inputs other than text alone: sound or images, with or without text, or a model's own inputs.

    `audio` and `images` are files, or samples at the rate that the model's processor takes and images as Pillow has them.
    `text` is the text with them; for an encoder-decoder, the decoder's.
    """

    text: str | None = None
    audio: tuple[object, ...] = ()
    images: tuple[object, ...] = ()
    inputs: ModelInputs | None = None


PlainText: TypeAlias = str | tuple[str, str]  # a text, or source and target
TextOrPair: TypeAlias = PlainText | InputSample


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts prepared for one forward pass; `inputs` are the model's own.

    `rows` has, for each row, the number of its text and of the token at which its window begins (from 0); `sides` are those of
    stacks with positions of their own, neither the source's nor the target's.
    """

    inputs: ModelInputs
    source: Side
    target: Side | None
    rows: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()
    sides: Mapping[str, Side] = field(default_factory=dict)

    def queries(self, stack: str) -> Side:
        """The side of a stack's queries."""
        return side_of(stack, self.source, self.target, self.sides)

    def keys(self, stack: str) -> Side:
        """The side of a stack's keys and values."""
        return key_side_of(stack, self.source, self.target, self.sides)


@dataclass(frozen=True, eq=False)
class RowScores:
    """Scores of a forward pass by row: the sum over predicted tokens, and their number.

    In nats for the objectives causal, masked and seq2seq. For 'output', which has no loss, the sum over real
    positions of |y - clean|² / |clean|², where y are the model's last hidden states and `clean` those of the pass without edits,
    whose RowScores have them as `output`; 0 for that pass itself.
    """

    total: Float[Tensor, " B"]
    count: Float[Tensor, " B"]
    output: Float[Tensor, "B T D"] | None = None


@runtime_checkable
class Subject(Protocol):
    """A model that can be measured: a pretrained one, or a study's."""

    @property
    def name(self) -> str:
        """The model's name in rows and on pages."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of the weights."""
        ...

    @property
    def objective(self) -> str:
        """causal, masked, seq2seq or output."""
        ...

    @property
    def shape(self) -> Shape:
        """Layers and heads."""
        ...

    @property
    def options(self) -> tuple[str, ...]:
        """Words of a command line that load it again: MODEL for a folder's, then options."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what is not read, and why; batches have the same."""
        ...

    def projections(self) -> Sequence[Projections]:
        """Per-head weights of every attention layer; may compute a layer's again at each access."""
        ...

    def batches(self, texts: Iterable[TextOrPair], size: int = 8, scored: bool = False) -> Iterator[Batch]:
        """Texts as batches of at most `size` rows, longer texts cut into windows; `scored` masks tokens for a masked LM."""
        ...

    def trace(self, batch: Batch) -> Reading:
        """Read a batch."""
        ...

    def each(self, batch: Batch, see: Callable[[Trace], object]) -> None:
        """Read a batch, one layer in memory at a time. Its tensors are on the device where the model computes."""
        ...

    def score(
        self,
        batch: Batch,
        write: Writers | None = None,
        hold: WeightsByAddress | None = None,
        clean: RowScores | None = None,
    ) -> RowScores:
        """Score a batch; writers replace q, k, v at their addresses, `hold` replaces the softmax's weights."""
        ...


@runtime_checkable
class AnsweringSubject(Subject, Protocol):
    """A Subject with readable predictions, not only a loss."""

    @property
    def mask(self) -> str | None:
        """The placeholder of a token to be predicted; None if it is always the next one."""
        ...

    def token(self, number: int) -> str:
        """The text of a token id."""
        ...

    def trace(self, batch: Batch, write: Writers | None = None) -> Reading:
        """Read a batch, after writers have replaced q, k, v at their addresses."""
        ...

    def outputs(
        self,
        batch: Batch,
        write: Writers | None = None,
        places: Int[Tensor, "B ..."] | None = None,
        hold: WeightsByAddress | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Outputs at every position: logits, or last hidden states without a loss; at one place of each row, [B 1 V]."""
        ...


class StreamPoint(NamedTuple):
    """A point of the residual stream at an attention layer.

    `where` is 'input' or 'output', those of the layer's block; 'attention', the output of its attention; 'parts', the outputs of
    the block's direct children, one after the other; or 'embeddings', the output of the model's embeddings.
    """

    address: Address
    where: str = "input"


StreamWriters: TypeAlias = Mapping[StreamPoint, Callable[["Float[Tensor, 'B T D']"], "Float[Tensor, 'B T D']"]]


@runtime_checkable
class StreamSubject(AnsweringSubject, Protocol):
    """An AnsweringSubject whose residual stream can be read and edited."""

    def stream_outputs(
        self,
        batch: Batch,
        streams: StreamWriters,
        write: Writers | None = None,
        places: Int[Tensor, "B ..."] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """As `outputs`; writers replace the stream at their points."""
        ...

    def path_gradients(
        self, batch: Batch, places: Int[Tensor, " B"], answers: Int[Tensor, " B"], layers: Sequence[int]
    ) -> dict[tuple[int, str, int], Float[Tensor, "B T D"]]:
        """Gradients of an answer's log-probability with respect to a layer's input, through q, k or v of one head only.

        By (layer, component, head).
        """
        ...


@runtime_checkable
class SeeingSubject(Subject, Protocol):
    """A Subject that takes images or sound."""

    def for_sample(self, sample: InputSample) -> Subject:
        """The model, verified with the sample if that uses other attention than it was verified with."""
        ...

    def read(self, texts: Any = None, images: Media = (), audio: Media = ()) -> Reading:
        """Read a text, images or sound, or several of them."""
        ...


@runtime_checkable
class EditedPasses(Protocol):
    """Edited passes over the same batches, which may share the computation below their edits.

    `score` and `outputs` return the model's own numbers, bit for bit.
    """

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers on how the numbers were computed."""
        ...

    def begin(self, batch: Batch, hold: WeightsByAddress | None = None) -> None:
        """Read a batch unedited, with these weights held, for the following passes over it."""
        ...

    def read(
        self, batch: Batch, listeners: Writers, places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """As `begin`, with its outputs; the listeners get q, k and v, and return them as they are."""
        ...

    def score(
        self,
        batch: Batch,
        write: Writers | None = None,
        hold: WeightsByAddress | None = None,
        clean: RowScores | None = None,
    ) -> RowScores:
        """As `Subject.score`; a pass without edits also begins."""
        ...

    def score_each(
        self,
        batch: Batch,
        writers: Sequence[Writer],
        address: Address,
        hold: WeightsByAddress | None = None,
        clean: RowScores | None = None,
    ) -> list[RowScores]:
        """The score under each of several edits; those that share a pass equal single ones to rounding."""
        ...

    def output_each(
        self, batch: Batch, writes: Sequence[Writers], places: Int[Tensor, "B ..."] | None = None
    ) -> list[Float[Tensor, "B T V"]]:
        """The outputs under each of several edits, equal to single ones to rounding; `places` are one or several per row."""
        ...

    def stream_parts(
        self, batch: Batch, changes: Sequence[Mapping[StreamPoint, Float[Tensor, "B T D"]]], address: Address
    ) -> list[QKV]:
        """q, k and v of a layer with each of several changes added to the residual stream, equal to those of whole passes to rounding."""
        ...

    def outputs(
        self, batch: Batch, write: Writers | None = None, places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """As `AnsweringSubject.outputs`."""
        ...


@runtime_checkable
class SharingSubject(Subject, Protocol):
    """A Subject whose edited passes share the computation below their edits."""

    def edited_passes(self) -> EditedPasses:
        """Edited passes, which hold a batch's numbers until the next batch begins."""
        ...


@dataclass(frozen=True)
class Texts:
    """Texts with a name, a fingerprint and notes; `texts()` restarts at the first.

    `options` are the words of a command line that name the same texts. `articles()` gives for each text the number of the
    article (document) that it is from, None outside marked articles; it is None if the format marks none.
    """

    name: str
    texts: Callable[[], Iterator[TextOrPair]]
    notes: Sequence[str] = field(default_factory=tuple)
    fingerprint: str = ""
    options: tuple[str, ...] = ()
    articles: Callable[[], Iterator[int | None]] | None = None


Readable: TypeAlias = TextOrPair | ModelInputs | Batch


def as_sample(text: Readable) -> TextOrPair:
    """A text or pair unchanged; a model's own inputs, or a Batch, as an InputSample."""
    if isinstance(text, Batch):
        return InputSample(inputs=text.inputs)
    return InputSample(inputs=text) if isinstance(text, Mapping) else text


NAMED = 24  # unknown words that the notes of one reading name in all
MAX_EXCERPT = 60  # characters of a word that are shown


def note_unknown(lead: str, rest: str, words: Iterable[str], named: set[str]) -> list[str]:
    """Notes on unknown words: `lead` and those not yet in `named`, which grows by them; `rest` beyond NAMED."""
    new = [word for word in dict.fromkeys(words) if word not in named]
    shown = new[: NAMED - len(named)]
    named.update(shown)
    return [f"{lead}: {quote_words(shown, NAMED)}."] * bool(shown) + [rest] * (len(shown) < len(new))


def quote_words(words: Sequence[str], limit: int) -> str:
    """The first words in quotes, and the number of others."""
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(repr(word[:MAX_EXCERPT]) for word in words[:limit]) + more


def check_text(name: str, number: int, text: object, paired: bool) -> tuple[str, str]:
    """Source and target of a text, equal if one was given; raises ModelError for an input that is no text of this model."""
    problem = f"Text {number + 1} is {shorten(text)}."
    parts = text if isinstance(text, tuple) else (text,)
    if isinstance(text, tuple) and (len(text) != 2 or not paired):
        reason = f"{name} takes a source and a target." if paired else f"{name} takes one text at a time, and no pairs."
        raise ModelError(
            problem, reason, "Give pairs of texts." if paired else "Give a single text, in quotes on a command line."
        )
    texts: list[str] = []
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            reason = "A text has at least one character that is not white space."
            raise ModelError(problem, reason, "Leave it out, or give its words.")
        try:
            part.encode()
        except UnicodeEncodeError:
            reason = "It has bytes that are not UTF-8."
            raise ModelError(
                problem.encode("ascii", "backslashreplace").decode(), reason, "Give it as UTF-8."
            ) from None
        texts.append(part)
    return texts[0], texts[-1]
