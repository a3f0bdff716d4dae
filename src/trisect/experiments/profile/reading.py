"""Read the inputs of attention layers at every word, stored on disk in half precision, and the words' classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError, ModelError
from trisect.core.subject import Batch, Subject
from trisect.core.trace import Address, Projections, Trace
from trisect.experiments.profile.settings import ProfileSettings
from trisect.lab.subject import check_crossing
from trisect.lab.word_labels import WordTexts
from trisect.measure.profile import WordClasses
from trisect.text.corpus import GrowingArray
from trisect.text.labels import PairLabeller, PairTexts, WordLabeller, frequent_classes, is_unknown
from trisect.text.sources import Labelled, LabelledTexts

if TYPE_CHECKING:
    from trisect.hf.load import Crossed, Pretrained
    from trisect.text.bitext import SentencePair


COMPONENTS = ("q", "k", "v")
# classes of a label that are distinguished, and words that such a class has at least
MAX_CLASSES, MIN_CLASS_WORDS = 100, 20
_RARE = f"classes beyond the {MAX_CLASSES} most frequent, or of fewer than {MIN_CLASS_WORDS} words, are one."
RUN = 20  # at most so many texts that follow one another are one group where no article is marked
PLAIN = 1e-2  # of the largest number: what a weight makes of the input may differ from what attention used by so much
FLAT = 1e-3  # of the mean deviation: a direction that varies less is stored as if it varied so much
_NO_INPUT = "what its projections read was not found"


@dataclass
class StoredWords:
    """Word vectors in half precision in a temporary file, shifted and scaled by the first ones' mean and spread."""

    shift: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]
    numbers: GrowingArray = field(default_factory=lambda: GrowingArray(np.float16))
    rows: Float[np.ndarray, "N D"] | None = None

    @classmethod
    def like(cls, rows: Float[Tensor, "N D"]) -> StoredWords:
        """An empty store for rows like these."""
        spread = rows.std(0, correction=0)
        floor = max(FLAT * float(spread.mean()), torch.finfo(torch.float32).tiny)
        return cls(rows.mean(0), spread.clamp_min(floor))

    def add(self, rows: Float[Tensor, "N D"]) -> None:
        """Append rows."""
        self.numbers.append(((rows - self.shift) / self.scale).flatten().numpy())

    def finish(self) -> Float[np.ndarray, "N D"]:
        """All rows, read-only; none can be added afterwards."""
        if self.rows is None:
            self.rows = self.numbers.finish().reshape(-1, len(self.scale))
        return self.rows


@dataclass
class LayerWords:
    """One layer: the `inputs` of q, k and v, and components that are no plain maps of them, `as_used` by attention.

    A component that attention only rotates (RoPE) is read before that, as its weights make it.

    `weights` returns the layer's weights, which nothing holds meanwhile; `heads` are how many heads each component has, and how
    wide. Components of the same words share one store in `inputs`.
    """

    weights: Callable[[], Projections]
    heads: Mapping[str, tuple[int, int]]
    inputs: Mapping[str, StoredWords]
    as_used: Mapping[str, StoredWords]


class ReadSide(NamedTuple):
    """Words of one sequence, with the components that read them, labels and groups; `name` is the side of a pair."""

    components: tuple[str, ...]
    labels: tuple[WordClasses, ...]
    groups: Int[np.ndarray, " N"]
    name: str = ""


class WordsRead(NamedTuple):
    """The reading: layers by address, words by side, the number of texts, and notes."""

    layers: Mapping[Address, LayerWords]
    sides: tuple[ReadSide, ...]
    texts: int
    notes: tuple[str, ...]


# of each side what a layer's projections read, or why there is nothing; empty where nothing is asked for
LayerInputs: TypeAlias = Sequence[Float[Tensor, "B T D"]] | str
SidePlaces: TypeAlias = tuple[tuple[str, ...], Int[Tensor, " W"], Int[Tensor, " W"]]  # components, their words' places
_Words: TypeAlias = list[tuple[int, int, int, int]]  # row and position in a batch, numbers of the text and of its word
_Labels: TypeAlias = Mapping[int, Mapping[str, tuple[str | None, ...]]]  # by text and name, a label a word
# a batch, and for each side its words and their labels; what gives a layer's inputs
_Read: TypeAlias = tuple[Batch, Sequence[_Words], Sequence[_Labels], Callable[[Trace], LayerInputs]]


def layer_input(trace: Trace) -> Float[Tensor, "B T D"] | None:
    """The input of an attention layer's projections; None if it was not located."""
    block = trace.block
    if block is None:
        return None
    x = block.residual.float()
    if block.kind != "pre":
        return x
    x = x - x.mean(-1, keepdim=True) if block.centred else x
    x = x / (x.square().mean(-1, keepdim=True) + block.epsilon).sqrt() * block.gamma.float()
    return x if block.beta is None else x + block.beta.float()


def weights_of(p: Projections, component: str) -> tuple[Float[Tensor, "P D E"], Float[Tensor, "P E"]] | None:
    """A component's weights and biases per head; None if it is no plain map."""
    w, b = {"q": (p.w_q, p.b_q), "k": (p.w_k, p.b_k), "v": (p.w_v, p.b_v)}[component]
    if w is None:
        return None
    w = w.detach().float().cpu()
    return w, torch.zeros(w.shape[0], w.shape[2]) if b is None else b.detach().float().cpu()


def component_vectors(trace: Trace, component: str) -> Float[Tensor, "B T P E"]:
    """A component as attention used it, with the head axis second to last."""
    parts: dict[str, Tensor] = {"q": trace.q, "k": trace.k, "v": trace.v}
    return parts[component].float().transpose(1, 2)


def _project(trace: Trace, component: str, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor] | None:
    """A component at every real position: computed from its weights, and as attention used it.

    None where it has no weights that read the input.
    """
    maps = weights_of(trace.projections, component)
    if maps is None or maps[0].shape[1] != x.shape[2]:
        return None
    weight, bias = (t.to(x.device) for t in maps)
    real = trace.query_real if component == "q" else trace.key_real
    return (torch.einsum("btd,pde->btpe", x, weight) + bias)[real], component_vectors(trace, component)[real]


def is_plain(trace: Trace, component: str, x: Float[Tensor, "B T D"]) -> bool:
    """Whether a component equals its weights times its input at every real position; with RoPE it does not."""
    if (both := _project(trace, component, x)) is None:
        return False
    projected, used = both
    return bool((projected - used).abs().max() <= PLAIN * used.abs().max())


def is_rotated(trace: Trace, component: str, x: Float[Tensor, "B T D"]) -> bool:
    """Whether a component has the norm of its weights times its input, at every head and position, but is another vector.

    So it is with rotary position embeddings (RoPE), which rotate queries and keys by an angle that their position gives. Lengths may
    differ by one factor, as where they are scaled for longer texts (YaRN).
    """
    if component == "v" or is_plain(trace, component, x) or (both := _project(trace, component, x)) is None:
        return False
    lengths, used = (t.norm(dim=-1) for t in both)
    factor = (lengths * used).sum() / lengths.square().sum().clamp_min(torch.finfo(lengths.dtype).tiny)
    return bool((factor * lengths - used).abs().max() <= PLAIN * used.max())


def head_maps(layer: LayerWords, component: str) -> Float[Tensor, "P D E"]:
    """Maps of a component from what is stored: its weights, or selections of each head from all heads' units."""
    if component not in layer.as_used:
        maps = weights_of(layer.weights(), component)
        assert maps is not None, "a component that is no plain map is stored itself"
        return maps[0]
    heads, into = layer.heads[component]
    return torch.eye(heads * into).view(heads * into, heads, into).transpose(0, 1)


@dataclass
class _LayerCollector:
    """Collects the layers of the first batch, and rows of every batch; `weights` returns each layer's."""

    weights: Mapping[Address, Callable[[], Projections]]
    layers: dict[Address, LayerWords] = field(default_factory=dict)
    rotated: dict[Address, set[str]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)  # by the reason

    def add(
        self, trace: Trace, sides: Sequence[SidePlaces], inputs: Callable[[Trace], LayerInputs], is_first: bool
    ) -> None:
        """Store a layer's inputs at the words of a batch; `inputs` returns them, or why there are none."""
        read = inputs(trace)
        if isinstance(read, str):
            if read and is_first:
                self.left_out.setdefault(read, []).append(str(trace.address))
            return
        device = trace.q.device
        sides = [(components, rows.to(device), columns.to(device)) for components, rows, columns in sides]
        if is_first:
            self._begin(trace, sides, read)
        if (layer := self.layers.get(trace.address)) is not None:
            for (components, rows, columns), x in zip(sides, read, strict=True):
                layer.inputs[components[0]].add(x[rows, columns].cpu())
                for component in (c for c in components if c in layer.as_used):
                    layer.as_used[component].add(component_vectors(trace, component)[rows, columns].flatten(1).cpu())

    def _begin(self, trace: Trace, sides: Sequence[SidePlaces], inputs: Sequence[Float[Tensor, "B T D"]]) -> None:
        stores, as_used = dict[str, StoredWords](), dict[str, StoredWords]()
        for (components, rows, columns), x in zip(sides, inputs, strict=True):
            stores |= dict.fromkeys(components, StoredWords.like(x[rows, columns].cpu()))
            for component in components:
                if is_rotated(trace, component, x):
                    self.rotated.setdefault(trace.address, set()).add(component)
                elif not is_plain(trace, component, x):
                    vectors = component_vectors(trace, component)[rows, columns].flatten(1).cpu()
                    as_used[component] = StoredWords.like(vectors)
        heads = {c: (parts.shape[2], parts.shape[3]) for c in COMPONENTS for parts in [component_vectors(trace, c)]}
        self.layers[trace.address] = LayerWords(self.weights[trace.address], heads, stores, as_used)

    def notes(self) -> Iterator[str]:
        """The layers that were left out, with reasons, and the components that are no plain maps."""
        for reason, layers in self.left_out.items():
            yield f"Left out, {', '.join(layers)}: {reason}."
        if self.rotated:
            yield (
                f"{self._spell_components(self.rotated)} are read as their weights make them of the layer's input, before rotary position "
                "embeddings (RoPE) rotate them: a rotated vector has its word's position in it by construction. Erasures "
                "(--causal) are of what attention uses."
            )
        if as_used := {address: layer.as_used.keys() for address, layer in self.layers.items() if layer.as_used}:
            yield (
                f"{self._spell_components(as_used)} are read as attention used them, which is no plain map of the layer's "
                "input (such as behind a norm, with or without rotary position embeddings): what they have beyond random maps may come "
                "from there and not from the weights, and no verdict is read from it."
            )

    def _spell_components(self, by_layer: Mapping[Address, Collection[str]]) -> str:
        """The components, with their layers unless these are all."""
        by_places: dict[tuple[Address, ...], list[str]] = {}
        for component in COMPONENTS:
            if places := tuple(address for address, components in by_layer.items() if component in components):
                by_places.setdefault(places, []).append(component)
        return "; ".join(
            ", ".join(components) + ("" if len(places) == len(self.layers) else f" of {', '.join(map(str, places))}")
            for places, components in by_places.items()
        )


def _text_inputs(trace: Trace) -> LayerInputs:
    """Inputs of a layer that reads the words of one text, or why it cannot be profiled."""
    if trace.stack not in ("plain", "enc"):
        return "its words are not those of the text alone"
    x = layer_input(trace)
    if x is None:
        return _NO_INPUT
    if x.shape[:2] != trace.query_real.shape or trace.key_real.shape != trace.query_real.shape:
        return "its positions are not those of the text"
    return (x,)


def _collect(
    subject: Subject,
    batches: Iterable[_Read],
    sides: Sequence[tuple[str, tuple[str, ...]]],
    labels: Sequence[str],
    words: int,
    advance: Callable[[int, int], object],
) -> tuple[_LayerCollector, list[list[int]], list[tuple[WordClasses, ...]]]:
    """Read batches in which each side has words: layers, and for each side text numbers and labels of words.

    Raises ModelError where no layer can be read.
    """
    weights = subject.projections()
    collector = _LayerCollector({p.address: partial(weights.__getitem__, i) for i, p in enumerate(weights)})
    numbers: list[list[int]] = [[] for _ in sides]
    names: list[dict[str, list[str | None]]] = [{name: [] for name in labels} for _ in sides]
    same: dict[str | None, str | None] = {}  # one string for all words of a class
    is_first = True
    with torch.no_grad():
        for batch, words_read, labels_read, inputs in batches:
            places: list[SidePlaces] = []
            for side, ((_, components), places_read) in enumerate(zip(sides, words_read, strict=True)):
                rows, columns, texts, positions = zip(*places_read, strict=True)
                places.append((components, torch.tensor(rows), torch.tensor(columns)))
                numbers[side] += texts
                for name, values in names[side].items():
                    of_words = (
                        labels_read[side][text][name][word] for text, word in zip(texts, positions, strict=True)
                    )
                    values += (same.setdefault(label, label) for label in of_words)
            subject.each(batch, partial(collector.add, sides=places, inputs=inputs, is_first=is_first))
            is_first = False
            advance(min(max(map(len, numbers)), words), words)
    if not collector.layers:
        reason = " ".join(collector.notes()) or "In none of the texts is a word read."
        todo = "Choose another model or other texts."
        raise ModelError(f"{subject.name} has no layer to be profiled.", reason, todo)
    classes: list[tuple[WordClasses, ...]] = []
    for by_name in names:  # rare classes are one
        of_side = []
        for name, values in by_name.items():
            frequent = frequent_classes(values, MAX_CLASSES, MIN_CLASS_WORDS)
            index, rest = {c: i for i, c in enumerate(frequent)}, len(frequent) - 1
            y = np.array([-1 if c is None else index.get(c, rest) for c in values])
            of_side.append(WordClasses(name, frequent, y))
        classes.append(tuple(of_side))
    return collector, numbers, classes


def read_words(
    subject: Subject,
    texts: LabelledTexts,
    label: WordLabeller,
    settings: ProfileSettings,
    advance: Callable[[int, int], object],
) -> WordsRead:
    """Read texts until there are `words` words; labels and one batch are in memory, the rest on disk.

    A word is read at its first piece, in causal models at its last, which alone has seen all of it. Raises CorpusError where
    too few words are read, ModelError where no layer can be.
    """
    marker, last = WordTexts(subject), subject.objective == "causal"
    notes, articles, count = dict.fromkeys(texts.notes), dict[int, int | None](), 0

    def first_texts() -> Iterator[Labelled]:
        read = 0
        for text in islice((text for text in texts.texts() if text.spans), settings.limit):
            if read >= settings.words:
                return
            read += len(text.leading_words())
            yield text

    def batches() -> Iterator[_Read]:
        nonlocal count
        labels: dict[int, Mapping[str, tuple[str | None, ...]]] = {}
        for batch in marker.batches(first_texts(), settings.batch, scored=False):
            words: _Words = []
            for place in marker.words(batch, last):
                *_, number, word = place
                text = marker.text(number)
                if not is_unknown(text.text[slice(*text.spans[word])]):
                    words.append(place)
                    articles[number] = text.article
            numbers = dict.fromkeys(number for _, _, number, _ in words)
            labels = {number: labels.get(number) or label(marker.text(number)) for number in numbers}
            notes.update(dict.fromkeys(batch.notes))
            count = batch.rows[-1][0] + 1
            if words:
                yield batch, [words], [labels], _text_inputs

    collector, (numbers,), (classes,) = _collect(
        subject, batches(), (("", COMPONENTS),), label.labels, settings.words, advance
    )
    groups = _groups(numbers, len(set(numbers)), settings.folds, [articles[number] for number in numbers])
    side = ReadSide(COMPONENTS, classes, groups)
    _check_side(texts.name, side)
    piece = f"A word is read at its {'last' if last else 'first'} piece; {_RARE}"
    return WordsRead(collector.layers, (side,), count, (*notes, *subject.notes, piece, *collector.notes()))


def _groups(
    numbers: Sequence[int], texts: int, folds: int, articles: Sequence[int | None] = ()
) -> Int[np.ndarray, " N"]:
    """Articles, or without articles runs of consecutive texts (or pairs), shorter for few texts."""
    if articles and articles[0] is not None:
        return np.array(articles)
    return np.array(numbers, dtype=np.int64) // max(1, min(RUN, texts // (2 * folds)))


def _check_side(name: str, side: ReadSide) -> None:
    """Raise CorpusError for a label with a single class, or for a single group of texts."""
    if len(np.unique(side.groups)) < 2:
        reason = "It has one group of texts that follow one another, and each is predicted from others."
        raise CorpusError(f"Too little of {name} was read.", reason, "Read more of it, or give a longer text.")
    for label in side.labels:
        if len(label.classes) < 2:
            reason = f"Of {len(label.y):,} words all that carry it have one class, or too few have any other."
            raise CorpusError(f"The label '{label.name}' holds no words of {name} apart.", reason, "Leave it out.")


PAIRED = "A profile of cross-attention is of sentence pairs, which a source and a target side read."
CHUNK_BATCHES = 64  # batches whose pieces are in memory at once
SIDES = (("target", ("q",)), ("source", ("k", "v")))
WHOSE = (
    "Queries are of words of the target, where the decoder reads their last piece; keys and values of words of the source, at their "
    "first piece in the encoder's output."
)
_GAINS = (
    "Since q is of other words than k and v, q is compared with them by gains over random maps, each of what the component itself reads; "
    "k and v are of the same words."
)


def read_pairs(
    subject: Subject,
    texts: PairTexts,
    label: PairLabeller,
    settings: ProfileSettings,
    advance: Callable[[int, int], object],
) -> WordsRead:
    """Read pairs until their longer side has `words` words; labels and a few batches' tokens are in memory.

    The decoder reads the target itself. A word of the target is read at its last piece, which alone has seen all of it, one of
    the source at its first. Raises CorpusError where too few words are read, ModelError where no layer can be.
    """
    from trisect.hf.load import cross_batches

    model, long, read = check_crossing(subject, PAIRED), 0, 0
    pairs, counts = list["SentencePair"](), [0, 0]
    for pair in texts.pairs[: settings.limit]:
        if max(counts) >= settings.words:
            break
        pairs.append(pair)
        counts = [count + len(side) for count, side in zip(counts, pair.sides, strict=True)]

    def batches() -> Iterator[_Read]:
        nonlocal long, read
        chunk = settings.batch * CHUNK_BATCHES
        for start in range(0, len(pairs), chunk):
            sides = [pair.sides for pair in pairs[start : start + chunk]]
            crossings, left = cross_batches(model, sides, settings.batch)
            long += len(left)
            for crossed in crossings:
                numbers = [start + number for number in crossed.pairs]
                read += len(numbers)
                words = _find_words(crossed, numbers, pairs)
                if all(words):
                    labels = {number: label(pairs[number])[::-1] for number in numbers}  # target, source
                    by_side = [{number: sides[side] for number, sides in labels.items()} for side in (0, 1)]
                    yield crossed.batch, words, by_side, _cross_inputs(model, crossed)

    collector, numbers, classes = _collect(subject, batches(), SIDES, label.labels, settings.words, advance)
    sides = tuple(
        ReadSide(components, labels, _groups(of_words, len(pairs), settings.folds), name)
        for (name, components), labels, of_words in zip(SIDES, classes, numbers, strict=True)
    )
    for side in sides:
        _check_side(f"{texts.name} ({side.name})", side)
    lost = f"{long:,} of {len(pairs):,} sentence pairs have more pieces than the model reads, and are left out."
    notes = (*texts.notes, *subject.notes, *([lost] if long else []), WHOSE, _GAINS, f"{_RARE[0].upper()}{_RARE[1:]}")
    for labels in zip(*(side.labels for side in sides), strict=True):
        if any((label.y < 0).any() for label in labels):
            each = (f"{(label.y >= 0).sum():,} of the {side.name}" for label, side in zip(labels, sides, strict=True))
            notes += (f"Words that carry '{labels[0].name}': {', '.join(each)}.",)
    return WordsRead(collector.layers, sides, read, (*notes, *collector.notes()))


def _find_words(crossed: Crossed, numbers: Sequence[int], pairs: Sequence[SentencePair]) -> tuple[_Words, _Words]:
    """The positions of each word of the target and of the source, row by row."""
    target: _Words = []
    source: _Words = []
    length = crossed.source.shape[1]
    for row, number in enumerate(numbers):
        pair = pairs[number]
        last = {word: at for at, word in enumerate(crossed.shifted[row].tolist()) if word >= 0}
        first = {word: -at for at, word in enumerate(reversed(crossed.source[row].tolist()), 1) if word >= 0}
        target += [(row, at, number, w) for w, at in sorted(last.items()) if not is_unknown(pair.target[w])]
        source += [(row, length + at, number, w) for w, at in sorted(first.items()) if not is_unknown(pair.source[w])]
    return target, source


def _cross_inputs(model: Pretrained, crossed: Crossed) -> Callable[[Trace], LayerInputs]:
    """Returns the inputs of a layer in a batch: q's from the decoder, k's and v's from the encoder's output."""
    output: Float[Tensor, "B S D"] | None = getattr(
        model.predict(crossed.batch.inputs), "encoder_last_hidden_state", None
    )

    def inputs(trace: Trace) -> LayerInputs:
        if trace.stack != "cross":
            return ""
        asks = layer_input(trace)
        if asks is None or output is None or asks.shape[:2] != trace.query_real.shape:
            return _NO_INPUT
        answers = output.float().to(trace.q.device)
        if answers.shape[:2] != trace.key_real.shape or not any(is_plain(trace, c, answers) for c in ("k", "v")):
            return "neither its keys nor its values are a plain map of the encoder's output"
        return asks, answers

    return inputs
