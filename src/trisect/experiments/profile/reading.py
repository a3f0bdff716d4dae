"""Read words: what each attention layer takes in at every word, kept on disk in half precision, and the words' classes."""

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

from trisect.core.errors import CorpusError, ModelError, SpecError
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
MOST, LEAST = 100, 20  # classes of a label that are distinguished, and words that such a class has at least
_RARE = f"classes beyond the {MOST} most frequent, or of fewer than {LEAST} words, are one."
RUN = 20  # at most so many texts that follow one another are one group where no article is marked
PLAIN = 1e-2  # of the largest number: what a weight makes of the input may differ from what attention used by so much
FLAT = 1e-3  # of the mean deviation: a direction that varies less is stored as if it varied so much
_UNFOUND = "what its projections read was not found"


@dataclass
class StoredWords:
    """Vectors of words in half precision, in a temporary file: shifted and scaled as the first of them are spread."""

    shift: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]
    kept: GrowingArray = field(default_factory=lambda: GrowingArray(np.float16))
    whole: Float[np.ndarray, "N D"] | None = None

    @classmethod
    def like(cls, rows: Float[Tensor, "N D"]) -> StoredWords:
        """An empty store for rows like these."""
        spread = rows.std(0, correction=0)
        floor = max(FLAT * float(spread.mean()), torch.finfo(torch.float32).tiny)
        return cls(rows.mean(0), spread.clamp_min(floor))

    def add(self, rows: Float[Tensor, "N D"]) -> None:
        """Put rows at the end."""
        self.kept.append(((rows - self.shift) / self.scale).flatten().numpy())

    def finish(self) -> Float[np.ndarray, "N D"]:
        """All rows, read-only; nothing can be added afterwards."""
        if self.whole is None:
            self.whole = self.kept.finish().reshape(-1, len(self.scale))
        return self.whole


@dataclass
class LayerWords:
    """One layer: what each of q, k and v reads, and those that are no plain maps of it, as attention used them.

    A component that attention only rotates (RoPE) is taken before that, as its weights make it.

    `weights` gives the layer's weights, which nobody holds meanwhile; `heads` are how many heads each component has, and how wide.
    Components of the same words share one store in `taken`.
    """

    weights: Callable[[], Projections]
    heads: Mapping[str, tuple[int, int]]
    taken: Mapping[str, StoredWords]
    own: Mapping[str, StoredWords]


class ReadSide(NamedTuple):
    """Words of one sequence: the components that are of them, their labels, and their groups; `name` is the side of a pair."""

    components: tuple[str, ...]
    labels: tuple[WordClasses, ...]
    groups: Int[np.ndarray, " N"]
    name: str = ""


class WordsRead(NamedTuple):
    """What was read: layers by address, words by whose they are, the number of texts, and notes."""

    layers: Mapping[Address, LayerWords]
    sides: tuple[ReadSide, ...]
    texts: int
    notes: tuple[str, ...]

    @property
    def labels(self) -> tuple[WordClasses, ...]:
        """The labels of the first side, in a text of all words."""
        return self.sides[0].labels

    @property
    def groups(self) -> Int[np.ndarray, " N"]:
        """The groups of the first side's words, in a text of all."""
        return self.sides[0].groups


# of each side what a layer's projections read, or why there is nothing; empty where nothing is asked for
LayerInputs: TypeAlias = Sequence[Float[Tensor, "B T D"]] | str
SidePlaces: TypeAlias = tuple[
    tuple[str, ...], Int[Tensor, " W"], Int[Tensor, " W"]
]  # components, and where their words stand
_Words: TypeAlias = list[
    tuple[int, int, int, int]
]  # row and position in a batch, number of the text, and of the word in it
_Labels: TypeAlias = Mapping[int, Mapping[str, tuple[str | None, ...]]]  # by text and name, a label a word


def layer_input(trace: Trace) -> Float[Tensor, "B T D"] | None:
    """What an attention layer's projections read; None where it was not found."""
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
    """A component's weights and biases per head; None where it is no plain map."""
    w, b = {"q": (p.w_q, p.b_q), "k": (p.w_k, p.b_k), "v": (p.w_v, p.b_v)}[component]
    if w is None:
        return None
    w = w.detach().float().cpu()
    return w, torch.zeros(w.shape[0], w.shape[2]) if b is None else b.detach().float().cpu()


def component_vectors(trace: Trace, component: str) -> Float[Tensor, "B T P E"]:
    """A component as attention used it, heads last but one."""
    parts: dict[str, Tensor] = {"q": trace.q, "k": trace.k, "v": trace.v}
    return parts[component].float().transpose(1, 2)


def _project(trace: Trace, component: str, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor] | None:
    """A component at every real position: what its weights make of the input, and as attention used it.

    None where it has no weights that read the input.
    """
    found = weights_of(trace.projections, component)
    if found is None or found[0].shape[1] != x.shape[2]:
        return None
    weight, bias = (t.to(x.device) for t in found)
    real = trace.query_real if component == "q" else trace.key_real
    return (torch.einsum("btd,pde->btpe", x, weight) + bias)[real], component_vectors(trace, component)[real]


def is_plain(trace: Trace, component: str, x: Float[Tensor, "B T D"]) -> bool:
    """Whether a component is what its weights make of the input, at every real position: not where RoPE rotates it."""
    if (both := _project(trace, component, x)) is None:
        return False
    projected, there = both
    return bool((projected - there).abs().max() <= PLAIN * there.abs().max())


def is_rotated(trace: Trace, component: str, x: Float[Tensor, "B T D"]) -> bool:
    """Whether a component is as long, in every head at every real position, as what its weights make of the input, and another vector.

    So it is with rotary position embeddings (RoPE), which rotate queries and keys by an angle that their position gives. Lengths may
    differ by one factor, as where they are scaled for longer texts (YaRN).
    """
    if component == "v" or is_plain(trace, component, x) or (both := _project(trace, component, x)) is None:
        return False
    lengths, there = (t.norm(dim=-1) for t in both)
    factor = (lengths * there).sum() / lengths.square().sum().clamp_min(torch.finfo(lengths.dtype).tiny)
    return bool((factor * lengths - there).abs().max() <= PLAIN * there.max())


def head_maps(layer: LayerWords, component: str) -> Float[Tensor, "P D E"]:
    """A component's maps of what is stored for it: its weights, or what takes each head out of all heads side by side."""
    if component not in layer.own:
        found = weights_of(layer.weights(), component)
        assert found is not None, "a component that is no plain map is stored itself"
        return found[0]
    heads, into = layer.heads[component]
    return torch.eye(heads * into).view(heads * into, heads, into).transpose(0, 1)


@dataclass
class _LayerCollector:
    """Layers as they are met in the first batch, and rows of every batch; `weights` gives each layer's."""

    weights: Mapping[Address, Callable[[], Projections]]
    layers: dict[Address, LayerWords] = field(default_factory=dict)
    rotated: dict[Address, set[str]] = field(default_factory=dict)
    left: dict[str, list[str]] = field(default_factory=dict)
    begun: bool = False

    def read(
        self, subject: Subject, batch: Batch, sides: Sequence[SidePlaces], inputs: Callable[[Trace], LayerInputs]
    ) -> None:
        """Keep what every layer reads at the words of a batch; `inputs` gives what a layer's maps read, or why not."""
        subject.each(batch, lambda trace: self._add(trace, sides, inputs(trace)))
        self.begun = True

    def _add(self, trace: Trace, sides: Sequence[SidePlaces], inputs: LayerInputs) -> None:
        if isinstance(inputs, str):
            if inputs and not self.begun:
                self.left.setdefault(inputs, []).append(str(trace.address))
            return
        on = trace.q.device
        sides = [(components, rows.to(on), columns.to(on)) for components, rows, columns in sides]
        if not self.begun:
            self._begin(trace, sides, inputs)
        if (layer := self.layers.get(trace.address)) is not None:
            for (components, rows, columns), x in zip(sides, inputs, strict=True):
                layer.taken[components[0]].add(x[rows, columns].cpu())
                for component in (c for c in components if c in layer.own):
                    layer.own[component].add(component_vectors(trace, component)[rows, columns].flatten(1).cpu())

    def _begin(self, trace: Trace, sides: Sequence[SidePlaces], inputs: Sequence[Float[Tensor, "B T D"]]) -> None:
        taken, own = dict[str, StoredWords](), dict[str, StoredWords]()
        for (components, rows, columns), x in zip(sides, inputs, strict=True):
            taken |= dict.fromkeys(components, StoredWords.like(x[rows, columns].cpu()))
            rotated = {c for c in components if is_rotated(trace, c, x)}
            for component in (c for c in components if c not in rotated and not is_plain(trace, c, x)):
                vectors = component_vectors(trace, component)[rows, columns].flatten(1).cpu()
                own[component] = StoredWords.like(vectors)
            if rotated:
                self.rotated.setdefault(trace.address, set()).update(rotated)
        heads = {c: (parts.shape[2], parts.shape[3]) for c in COMPONENTS for parts in [component_vectors(trace, c)]}
        self.layers[trace.address] = LayerWords(self.weights[trace.address], heads, taken, own)

    def check(self, subject: Subject) -> None:
        """Raise ModelError where no layer was kept."""
        if not self.layers:
            known = " ".join(self.notes()) or "In none of the texts is a word read."
            todo = "Choose another model or other texts."
            raise ModelError(f"{subject.name} has no layer to be profiled.", known, todo)

    def notes(self) -> Iterator[str]:
        """Which layers were left out and why, and which components are no plain maps."""
        for why, where in self.left.items():
            yield f"Left out, {', '.join(where)}: {why}."
        if self.rotated:
            yield (
                f"{self._spell_components(self.rotated)} are read as their weights make them of the layer's input, before rotary position "
                "embeddings (RoPE) rotate them: a rotated vector has its word's position in it by construction. Erasures "
                "(--causal) are of what attention uses."
            )
        if used_own := {address: layer.own.keys() for address, layer in self.layers.items() if layer.own}:
            yield (
                f"{self._spell_components(used_own)} are read as attention used them, which is no plain map of the layer's "
                "input (such as behind a norm, with or without rotary position embeddings): what they have beyond random maps may come "
                "from there and not from the weights, and no verdict is read from it."
            )

    def _spell_components(self, by_layer: Mapping[Address, Collection[str]]) -> str:
        """The components named, with their layers where these are not all that were kept."""
        of: dict[tuple[Address, ...], list[str]] = {}
        for component in COMPONENTS:
            if where := tuple(address for address, components in by_layer.items() if component in components):
                of.setdefault(where, []).append(component)
        return "; ".join(
            ", ".join(named) + ("" if len(where) == len(self.layers) else f" of {', '.join(map(str, where))}")
            for where, named in of.items()
        )


def own_inputs(trace: Trace) -> LayerInputs:
    """What a layer reads whose words are those of one text, or why it cannot be profiled."""
    if trace.stack not in ("plain", "enc"):
        return "its words are not those of the text alone"
    x = layer_input(trace)
    if x is None:
        return _UNFOUND
    if x.shape[:2] != trace.query_real.shape or trace.key_real.shape != trace.query_real.shape:
        return "its positions are not those of the text"
    return (x,)


def _collect(
    subject: Subject,
    batches: Iterable[tuple[Batch, Sequence[_Words], Sequence[_Labels], Callable[[Trace], LayerInputs]]],
    sides: Sequence[tuple[str, tuple[str, ...]]],
    labels: Sequence[str],
    words: int,
    advance: Callable[[int, int], object],
) -> tuple[_LayerCollector, list[list[int]], list[tuple[WordClasses, ...]]]:
    """Read batches in which each side has words: the layers, and for each side the words' texts by number, and their labels.

    Raises ModelError where no layer can be read.
    """
    weights = subject.projections()
    collector = _LayerCollector({p.address: partial(weights.__getitem__, i) for i, p in enumerate(weights)})
    numbers: list[list[int]] = [[] for _ in sides]
    names: list[dict[str, list[str | None]]] = [{name: [] for name in labels} for _ in sides]
    same: dict[str | None, str | None] = {}  # one string for all words of a class
    with torch.no_grad():
        for batch, met, given, inputs in batches:
            places: list[SidePlaces] = []
            for (_, components), own in zip(sides, met, strict=True):
                rows, columns = (torch.tensor([one[axis] for one in own]) for axis in (0, 1))
                places.append((components, rows, columns))
            collector.read(subject, batch, places, inputs)
            for side, own in enumerate(met):
                for _, _, number, word in own:
                    numbers[side].append(number)
                    for name, kept in names[side].items():
                        label = given[side][number][name][word]
                        kept.append(same.setdefault(label, label))
            advance(min(max(map(len, numbers)), words), words)
    collector.check(subject)
    classes: list[tuple[WordClasses, ...]] = []
    for of in names:  # rare classes are one
        found = []
        for name, words_of in of.items():
            kept = frequent_classes(words_of, MOST, LEAST)
            index, rest = {c: i for i, c in enumerate(kept)}, len(kept) - 1
            y = np.array([-1 if c is None else index.get(c, rest) for c in words_of])
            found.append(WordClasses(name, kept, y))
        classes.append(tuple(found))
    return collector, numbers, classes


def read_words(
    subject: Subject,
    texts: LabelledTexts,
    label: WordLabeller,
    settings: ProfileSettings,
    advance: Callable[[int, int], object],
) -> WordsRead:
    """Read texts until there are `words` words; memory holds the labels and one batch, all else is on disk.

    A word is read at its first piece, in causal models at its last, which alone has seen all of it. Raises CorpusError where
    too few words are read, ModelError where no layer can be.
    """
    marker, last = WordTexts(subject), subject.objective == "causal"
    notes, articles, count = dict.fromkeys(texts.notes), dict[int, int | None](), 0

    def batches() -> Iterator[tuple[Batch, Sequence[_Words], Sequence[_Labels], Callable[[Trace], LayerInputs]]]:
        nonlocal count
        given: dict[int, Mapping[str, tuple[str | None, ...]]] = {}
        for batch in marker.batches(_first_texts(texts, settings.limit, settings.words), settings.batch, scored=False):
            words: _Words = []
            for place in marker.words(batch, last):
                one = marker.text(place.text)
                if not is_unknown(one.text[slice(*one.spans[place.word])]):
                    words.append((place.row, place.position, place.text, place.word))
                    articles[place.text] = one.article
            there = dict.fromkeys(number for _, _, number, _ in words)
            given = {number: given.get(number) or label(marker.text(number)) for number in there}
            notes.update(dict.fromkeys(batch.notes))
            count = batch.rows[-1][0] + 1
            if words:
                yield batch, [words], [given], own_inputs

    collector, (numbers,), (classes,) = _collect(
        subject, batches(), (("", COMPONENTS),), label.labels, settings.words, advance
    )
    groups = _groups(numbers, len(set(numbers)), settings.folds, [articles[number] for number in numbers])
    side = ReadSide(COMPONENTS, classes, groups)
    _check_side(texts.name, side)
    said = f"A word is read at its {'last' if last else 'first'} piece; {_RARE}"
    return WordsRead(collector.layers, (side,), count, (*notes, *subject.notes, said, *collector.notes()))


def _groups(
    numbers: Sequence[int], texts: int, folds: int, articles: Sequence[int | None] = ()
) -> Int[np.ndarray, " N"]:
    """Articles; where none is marked, runs of texts (or pairs) that follow one another, shorter ones where there are few."""
    if articles and articles[0] is not None:
        return np.array(articles)
    return np.array(numbers, dtype=np.int64) // max(1, min(RUN, texts // (2 * folds)))


def _first_texts(texts: LabelledTexts, limit: int | None, words: int) -> Iterator[Labelled]:
    """The first `limit` texts with words, until they have so many."""
    read = 0
    for one in islice((one for one in texts.texts() if one.spans), limit):
        if read >= words:
            return
        read += len(one.leading_words())
        yield one


def _check_side(name: str, side: ReadSide) -> None:
    """Raise CorpusError where a label has one class alone, or there is one group of texts alone."""
    if len(np.unique(side.groups)) < 2:
        known = "It has one group of texts that follow one another, and each is predicted from others."
        raise CorpusError(f"Too little of {name} was read.", known, "Read more of it, or give a longer text.")
    for one in side.labels:
        if len(one.classes) < 2:
            known = f"Of {len(one.y):,} words all that carry it have one class, or too few have any other."
            raise CorpusError(f"The label '{one.name}' holds no words of {name} apart.", known, "Leave it out.")


PAIRED = "A profile of cross-attention is of sentence pairs, which a source and a target side read."
TOGETHER = 64  # batches whose pieces are in memory at once
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
    """Read pairs until their longer side has `words` words; memory holds the labels and a few batches' pieces.

    The decoder reads the target itself. A word of the target is read at its last piece, which alone has seen all of it, one of
    the source at its first. Raises CorpusError where too few words are read, ModelError where no layer can be.
    """
    from trisect.hf.load import cross_batches

    model, long, read = check_crossing(subject, PAIRED), 0, 0
    pairs = _first_pairs(texts, settings.limit, settings.words)

    def batches() -> Iterator[tuple[Batch, Sequence[_Words], Sequence[_Labels], Callable[[Trace], LayerInputs]]]:
        nonlocal long, read
        together = settings.batch * TOGETHER
        for start in range(0, len(pairs), together):
            sides = [pair.sides for pair in pairs[start : start + together]]
            crossings, left = cross_batches(model, sides, settings.batch)
            long += len(left)
            for crossed in crossings:
                numbers = [start + number for number in crossed.pairs]
                read += len(numbers)
                words = _find_words(crossed, numbers, pairs)
                if all(words):
                    given = {number: label(pairs[number])[::-1] for number in numbers}  # target, source
                    by_side = [{number: of[side] for number, of in given.items()} for side in (0, 1)]
                    yield crossed.batch, words, by_side, _cross_inputs(model, crossed)

    collector, numbers, classes = _collect(subject, batches(), SIDES, label.labels, settings.words, advance)
    sides = tuple(
        ReadSide(components, of, _groups(own, len(pairs), settings.folds), name)
        for (name, components), of, own in zip(SIDES, classes, numbers, strict=True)
    )
    for side in sides:
        _check_side(f"{texts.name} ({side.name})", side)
    lost = f"{long:,} of {len(pairs):,} sentence pairs have more pieces than the model reads, and are left out."
    notes = (*texts.notes, *subject.notes, *([lost] if long else []), WHOSE, _GAINS, f"{_RARE[0].upper()}{_RARE[1:]}")
    for labels in zip(*(side.labels for side in sides), strict=True):
        counts = [int((label.y >= 0).sum()) for label in labels]
        if any(count < len(label.y) for count, label in zip(counts, labels, strict=True)):
            each = (f"{count:,} of the {side.name}" for count, side in zip(counts, sides, strict=True))
            notes += (f"Words that carry '{labels[0].name}': {', '.join(each)}.",)
    return WordsRead(collector.layers, sides, read, (*notes, *collector.notes()))


def _first_pairs(texts: PairTexts, limit: int | None, words: int) -> tuple[SentencePair, ...]:
    """The first `limit` pairs, until their longer side has so many words."""
    found, counts = list["SentencePair"](), [0, 0]
    for pair in texts.pairs[:limit]:
        if max(counts) >= words:
            break
        found.append(pair)
        counts = [count + len(side) for count, side in zip(counts, pair.sides, strict=True)]
    return tuple(found)


def _find_words(crossed: Crossed, numbers: Sequence[int], pairs: Sequence[SentencePair]) -> tuple[_Words, _Words]:
    """Where each word of the target, and each of the source, is read; row by row."""
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
    """What gives the inputs of a layer in a batch: of q the decoder's, of k and v the encoder's output."""
    output: Float[Tensor, "B S D"] | None = getattr(
        model.predict(crossed.batch.inputs), "encoder_last_hidden_state", None
    )

    def inputs(trace: Trace) -> LayerInputs:
        if trace.stack != "cross":
            return ""
        asks = layer_input(trace)
        if asks is None or output is None or asks.shape[:2] != trace.query_real.shape:
            return _UNFOUND
        answers = output.float().to(trace.q.device)
        if answers.shape[:2] != trace.key_real.shape or not any(is_plain(trace, c, answers) for c in ("k", "v")):
            return "neither its keys nor its values are a plain map of the encoder's output"
        return asks, answers

    return inputs


def check_pairs(settings: ProfileSettings) -> None:
    """Raise SpecError for what has no meaning with cross-attention."""
    refused = {
        "--causal": (settings.causal, "The causal twin erases labels of the words of one text."),
        "--reader": (settings.reader, "A bitext is two files of sentences, which no reader is chosen for."),
    }
    for name, (value, known) in refused.items():
        if value is not None:
            given = f"{name} {value} was given with --attention cross."
            raise SpecError(given, known, "Leave it out.")


def no_bitext(error: CorpusError) -> CorpusError:
    """The error where a bitext was given to be read as one text."""
    known = "It is a bitext, sentences of two languages, and self-attention is read over one text."
    return CorpusError(error.given, known, "Say --attention cross to profile cross-attention, or give another corpus.")
