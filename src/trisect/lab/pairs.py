"""Prepare pairs of texts for one model: opened, checked token by token, answers as ids, and read in batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import TypedDict

from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.files import digest, read_record
from trisect.core.subject import AnsweringSubject, Batch, InputSample, SiteTarget, Subject, TextOrPair
from trisect.core.trace import Side
from trisect.lab.inputs import PairSettings
from trisect.measure.patching import UNKNOWN
from trisect.text.birth_places import QUESTION
from trisect.text.pairs import (
    ANSWERS,
    CONTENT,
    GAP_WORDS,
    SPOKEN_KINDS,
    SpokenText,
    TextPair,
    as_pairs,
    bad_pair,
    draw_bindings,
    draw_induction,
    draw_spoken,
    draw_translations,
    induction_words,
    read_pairs,
    usable_templates,
)
from trisect.text.sources import open_labels


class PatchedSides(NamedTuple):
    """Patched positions of the source, of the target (None if there is none) and of the source in cross-attention."""

    source: Bool[Tensor, "B S"]
    target: Bool[Tensor, "B T"] | None
    crossed: Bool[Tensor, "B S"]

    def queries(self, stack: str) -> Bool[Tensor, "B T"]:
        """The mask for a stack's queries."""
        return self.target if self.target is not None and stack in ("dec", "cross") else self.source

    def keys(self, stack: str) -> Bool[Tensor, "B S"]:
        """The mask for a stack's keys and values."""
        if stack == "cross":
            return self.crossed
        return self.target if self.target is not None and stack == "dec" else self.source

    def cut(self, other: Batch, rows: Int[Tensor, " B"]) -> PatchedSides:
        """The masks cut to the rows' lengths in another batch."""
        source, target = other.source.real[rows], None if other.target is None else other.target.real[rows]
        source = _filled(source, self.source.shape[1])
        both = None if self.target is None or target is None else self.target & _filled(target, self.target.shape[1])
        return PatchedSides(self.source & source, both, self.crossed & source)

    def widened(self, batch: Batch) -> PatchedSides:
        """The masks for a batch with extended texts, whose further positions are not patched."""
        width, other = batch.source.real.shape[1], batch.target
        target = None if self.target is None or other is None else _filled(self.target, other.real.shape[1])
        return PatchedSides(_filled(self.source, width), target, _filled(self.crossed, width))


def answer_places(batch: Batch, mask: str | None) -> Int[Tensor, " B"] | None:
    """The position before each row's answer: its only mask, else its last own token, the decoder's if there is one.

    None where a masked language model is given a text without exactly one mask.
    """
    side = batch.source if batch.target is None else batch.target
    if mask is None:
        return _last(side)
    masks = torch.tensor([[token == mask for token in row] for row in side.tokens])
    return masks.int().argmax(1) if bool((masks.sum(1) == 1).all()) else None


def patched_sides(
    run: Batch, other: Batch, positions: tuple[int, ...] | str, places: Int[Tensor, " B"] | None
) -> PatchedSides:
    """The positions of a batch that are patched from another batch of the same lengths.

    'last' is the position of the answer; the source of cross-attention has none, and is patched whole (as that position reads it).
    """
    if run.target is None or other.target is None:
        source = _patched(run.source, other.source, positions, places)
        return PatchedSides(source, None, source)
    source = _patched(run.source, other.source, positions, None)
    crossed = run.source.real if positions == "last" else source
    return PatchedSides(source, _patched(run.target, other.target, positions, places), crossed)


def _last(side: Side) -> Int[Tensor, " B"]:
    """Each row's last own token, or last real one if it has no own token."""
    plain = side.real & ~side.special
    plain = torch.where(plain.any(1, keepdim=True), plain, side.real)
    return (plain.long() * torch.arange(1, plain.shape[1] + 1)).argmax(1)


def _patched(
    run: Side, other: Side, positions: tuple[int, ...] | str, places: Int[Tensor, " B"] | None
) -> Bool[Tensor, "B T"]:
    """The patched positions of one side."""
    if positions == "all":
        return run.real
    if positions == "last":
        at = _last(run) if places is None else places
        return torch.arange(run.real.shape[1]) == at[:, None]
    mask = torch.zeros_like(run.real)
    if positions == "differ":
        for row, (base, donor) in enumerate(zip(run.tokens, other.tokens, strict=True)):
            differ = [a != b for a, b in zip(base, donor, strict=False)]
            mask[row, : len(differ)] = torch.tensor(differ)
        return mask & run.real
    longest = int(run.real.sum(1).min())
    if beyond := [n for n in positions if not isinstance(n, int) or n > longest]:
        reason = f"The shortest text has {longest} tokens."
        raise CorpusError(f"Position {beyond[0]} was named.", reason, "Name positions that every text has.")
    mask[:, [int(n) - 1 for n in positions]] = True
    return mask & run.real


MASK = "<mask>"  # ends a question (hf.small.gpt)


def recall_pairs(model: object, count: int, seed: int) -> tuple[tuple[TextPair, ...], tuple[str, ...]]:
    """Pairs of questions about people, from a text of questions with places in the folder of a `trisect recall` model.

    Names are as long as each other, so that characters stand at the same positions, and places begin with different
    characters, by which an answer is recognised; the answer of a pair is that first character. Raises SpecError where there
    is no such folder, or no such pair, DamagedFileError for a card that is none.
    """
    path = Path(model) / "recall.json" if isinstance(model, str | Path) else None
    if path is None or not path.is_file():
        reason = "It needs the names that the model has read, which stand in its folder's recall.json: there is none."
        todo = "Give the folder of a model that 'trisect recall' trained."
        raise SpecError(f"The task 'recall' was asked for with {model!s:.80}.", reason, todo)
    todo = "Call 'trisect recall' again for the folder of the experiment: it writes every card."
    places = {name: place for name, (*_, place) in read_record(path, todo, _NamesData)["names"].items() if place}
    by_length: dict[int, list[str]] = {}
    for name in sorted(places):
        by_length.setdefault(len(name), []).append(name)
    lengths = [n for n in sorted(by_length) if len({places[name][0] for name in by_length[n]}) > 1]
    if not lengths:
        reason = f"{len(places)} names have a known place, and no two of one length have places that begin differently."
        raise SpecError("The task 'recall' was asked for.", reason, "Give pairs of your own with --pairs.")
    draw, sizes = np.random.default_rng([seed, 12]), np.array([len(by_length[n]) for n in lengths], dtype=float)
    pairs: list[TextPair] = []
    while len(pairs) < count:
        names = by_length[lengths[int(draw.choice(len(lengths), p=sizes / sizes.sum()))]]
        base, donor = (names[int(i)] for i in draw.integers(len(names), size=2))
        if places[base][0] != places[donor][0]:
            texts = [QUESTION.format(name=name) + MASK for name in (base, donor)]
            answers = {"base": places[base][0], "donor": places[donor][0]}
            pairs.append(TextPair(texts[0], texts[1], answers, f"pair {len(pairs) + 1} of recall", "birth place"))
    note = "Names of a pair are as long as each other; an answer is recognised by the first character of the place."
    return tuple(pairs), (note,)


class _NamesData(TypedDict):
    """Names on a model's card: whether each was in pretraining and in fine-tuning, and its place."""

    names: dict[str, tuple[bool, bool, str | None]]


TOKENIZER_BATCH = 64  # texts that are tokenized at once


class _TokenizedText(NamedTuple):
    """A text's own tokens, and its number of positions with added tokens; target 0 if there is none."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    lengths: tuple[int, int]

    @property
    def last(self) -> tuple[int, ...]:
        """The side that an answer follows."""
        return self.target if self.lengths[1] else self.source


@dataclass(frozen=True, eq=False)
class PreparedPairs:
    """Pairs that fit a model.

    `answers` are the first token's ids of the answers that a part from the donor predicts, by name, UNKNOWN where one is not
    stated; `pieces` all tokens of each pair's answers. `read` holds both batches of a pair that is no text; `tokens` are the one
    token of every word that `facts` of pairs name; on the sides `uneven` base and donor have other numbers of tokens. `reader` is
    the model as it reads `read`, where that is not as it was given: what its encoder made is read in place of sound.
    """

    name: str
    fingerprint: str
    pairs: tuple[TextPair, ...]
    answers: Mapping[str, Int[np.ndarray, " N"]]
    pieces: tuple[Mapping[str, tuple[int, ...]], ...]
    notes: tuple[str, ...] = ()
    read: Sequence[Mapping[str, Batch]] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)
    uneven: frozenset[str] = frozenset()
    reader: AnsweringSubject | None = None

    def groups(self, size: int) -> list[Int[np.ndarray, " B"]]:
        """Indices of pairs that are read together: texts in order, other inputs with equal shapes."""
        if not self.read:
            return [np.arange(start, min(start + size, len(self.pairs))) for start in range(0, len(self.pairs), size)]
        alike: dict[object, list[int]] = {}
        for number, batches in enumerate(self.read):
            shapes = [
                [(n, _shapes(t)) for n, t in sorted(b.inputs.items()) if n not in DECODED or DECODER_MASK in b.inputs]
                for b in batches.values()
            ]
            alike.setdefault(str(shapes), []).append(number)
        # as even as can be, so that none stands alone whose donor could be another's
        return [
            part for numbers in alike.values() for part in np.array_split(np.array(numbers), -(-len(numbers) // size))
        ]

    def batch(self, subject: Subject, numbers: Int[np.ndarray, " B"], side: str) -> Batch:
        """Base or donor of some pairs."""
        if self.read:
            return _joined([self.read[number][side] for number in numbers])
        texts = [getattr(self.pairs[number], side) for number in numbers]
        return next(iter(subject.batches(texts, len(texts))))


DECODED = {"decoder_input_ids": 0, "labels": -100}  # what a decoder reads and says, with what fills it up at the end
DECODER_MASK = "decoder_attention_mask"


def _shapes(value: object) -> object:
    """The shape of a tensor, or of each in a tuple."""
    return [_shapes(item) for item in value] if isinstance(value, tuple) else tuple(getattr(value, "shape", ()))


def _joined(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches of equal shapes; for decoders, which ignore later positions, shorter texts are padded."""
    if len(batches) == 1:
        return batches[0]

    def side(sides: Sequence[Side]) -> Side:
        width = max(side.real.shape[1] for side in sides)
        ids = [_filled(side.ids, width) for side in sides if side.ids is not None]
        real = torch.cat([_filled(side.real, width) for side in sides])
        special = torch.cat([_filled(side.special, width, True) for side in sides])
        tokens = tuple((*row, *[""] * (width - len(row))) for side in sides for row in side.tokens)
        return Side(tokens, real, special, torch.cat(ids) if len(ids) == len(sides) else None)

    def joined(name: str, values: Sequence[Any]) -> Any:
        if isinstance(values[0], tuple):
            return tuple(joined(name, items) for items in zip(*values, strict=True))
        if not isinstance(values[0], Tensor) or not values[0].dim():
            return values[0]
        if name in DECODED:
            width = max(value.shape[1] for value in values)
            values = [_filled(value, width, DECODED[name]) for value in values]
        return torch.cat(list(values))

    first = batches[0]
    inputs = {name: joined(name, [batch.inputs[name] for batch in batches]) for name in first.inputs}
    targets = [batch.target for batch in batches if batch.target is not None]
    sides = {name: side([batch.sides[name] for batch in batches]) for name in first.sides}
    rows = tuple((number, 0) for number in range(sum(len(batch.rows) for batch in batches)))
    source = side([batch.source for batch in batches])
    return Batch(inputs, source, side(targets) if targets else None, rows, first.notes, sides)


def _filled(rows: Tensor, width: int, value: int = 0) -> Tensor:
    """Rows padded or cut at their end."""
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=value)


def extend(batch: Batch, places: Int[Tensor, " B"], pieces: Sequence[Sequence[int]]) -> Batch:
    """Extend texts behind the answer's position with all tokens of each answer but the last; raises ModelError for other inputs."""
    side = batch.source if batch.target is None else batch.target
    names = [n for n in ("decoder_input_ids", "input_ids", "ids") if n in batch.inputs]
    if side.ids is None or not names or set(batch.inputs) & {"position_ids", "token_type_ids"}:
        reason = f"It is given {', '.join(map(repr, batch.inputs))}."
        todo = "Give answers of one token each."
        raise ModelError("An answer of several tokens cannot be put behind what this model is given.", reason, todo)
    rows = [[*side.ids[i, : int(places[i]) + 1].tolist(), *more[:-1]] for i, more in enumerate(pieces)]
    width = max(side.ids.shape[1], *map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=side.ids.dtype)
    real = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)], real[i, : len(row)] = torch.tensor(row), True
    old = batch.inputs[names[0]]
    inputs = {n: t for n, t in batch.inputs.items() if n != "labels"} | {names[0]: ids.to(old)}
    mask = DECODER_MASK if names[0] == "decoder_input_ids" else "attention_mask"
    if mask in inputs:
        inputs[mask] = real.to(inputs[mask])
    tokens = tuple((*row, *[""] * (width - len(row))) for row in side.tokens)
    longer = Side(tokens, real, ~real, ids)
    return replace(batch, inputs=inputs, **{"source" if batch.target is None else "target": longer})


def check_pairs(settings: PairSettings) -> None:
    """Raise CorpusError if the pairs or the text cannot be read, for any model."""
    if settings.pair_list is None or isinstance(settings.pair_list, list | tuple):  # else they can be gone through once
        _stated_pairs(settings)
    if settings.corpus is not None and settings.task == "induction":
        open_labels(settings.corpus, settings.split, settings.reader, bare=True)


def _stated_pairs(settings: PairSettings) -> tuple[str, tuple[TextPair, ...]] | None:
    """The given pairs, and their name; None if a task makes them. Raises CorpusError."""
    if settings.base is not None:
        return "one pair", as_pairs([{"base": settings.base, "donor": settings.donor}])
    if settings.pairs is not None:
        return Path(settings.pairs).name, read_pairs(Path(settings.pairs))
    return None if settings.pair_list is None else ("given pairs", as_pairs(settings.pair_list))


def prepare_pairs(settings: PairSettings, subject: AnsweringSubject, targets: Sequence[SiteTarget]) -> PreparedPairs:
    """The pairs of the settings, each checked against the model; raises SpecError, CorpusError naming pair and difference."""
    notes: dict[str, None] = {}
    if (stated := _stated_pairs(settings)) is not None:
        name, pairs = stated
    else:
        name = str(settings.task)
        if name == "recall":
            pairs, of_task = recall_pairs(settings.source.model, settings.count, settings.seed)
        else:
            pairs, of_task = _task_pairs(settings, subject)
        notes |= dict.fromkeys(of_task)
    _check_kinds(subject, pairs)
    samples = any(isinstance(pair.base, InputSample) for pair in pairs)
    both: list[dict[str, Batch]] = []
    reader: AnsweringSubject | None = None
    if samples:
        reader, both = _read_samples(subject, pairs, all(target.address.stack != "enc" for target in targets))
        batches = [batch for sides in both for batch in sides.values()]
        if (rows := max(len(batch.source.real) for batch in batches)) > 1:
            reason = "Each side of a pair is one text, one sound or one set of images."
            raise SpecError(f"Inputs of {rows} rows were given.", reason, "Give a pair for each row.")
        notes |= dict.fromkeys(note for batch in batches for note in batch.notes)
        read = [_of_batch(batches[side]) for batches in both for side in ("base", "donor")]
    else:
        texts = [text for pair in pairs for text in (pair.base, pair.donor)]
        read = _tokenize(subject, texts, [pair.place for pair in pairs for _ in range(2)], notes)
    uneven = _compare_lengths(settings, pairs, read, targets, samples and settings.positions is None)
    pieces = _answer_pieces(subject, pairs, read[::2])
    answers: dict[str, Int[np.ndarray, " N"]] = {}
    for number, ids_by_name in enumerate(pieces):
        for hypothesis, ids in ids_by_name.items():
            classic = CONTENT.get(hypothesis, hypothesis)
            if classic in ANSWERS and (hypothesis == classic or classic not in ids_by_name):
                answers.setdefault(classic, np.full(len(pairs), UNKNOWN))[number] = ids[0]
    body: list[Any] = []
    for pair in pairs:
        shown = (t if isinstance(t, str | tuple) else text_words(t, None) for t in (pair.base, pair.donor))
        body.append([*shown, dict(pair.answers)])
    words = dict.fromkeys(
        w for pair in pairs if pair.facts for bound in pair.facts for w in (*bound.keys, *bound.values)
    )
    spelled = _tokenize_readable(subject, [f" {word}" for word in words]) if words else []
    tokens = {word: text.source[-1] for word, text in zip(words, spelled, strict=True) if text.source}
    ordered = {name: answers[name] for name in ANSWERS if name in answers}
    mark = digest(json.dumps(body).encode(), 8)
    return PreparedPairs(name, mark, pairs, ordered, pieces, tuple(notes), both, tokens, uneven, reader)


def _compare_lengths(
    settings: PairSettings,
    pairs: Sequence[TextPair],
    read: Sequence[_TokenizedText],
    targets: Sequence[SiteTarget],
    may_differ: bool,
) -> frozenset[str]:
    """The sides with different lengths, if they `may_differ`; raises CorpusError if they are patched position by position."""
    needed = set[str]()
    for target in targets:
        stack = target.address.stack
        of_target = stack in ("dec", "cross") if target.component == "q" else stack == "dec"
        if settings.positions != "last" or stack == "enc" or (stack == "cross" and target.component != "q"):
            needed.add("target" if of_target else "source")
    uneven = set[str]()  # of what is no text, these sides are patched at the last position alone
    wrong: list[tuple[str, str]] = []  # places of pairs, and what is wrong with each
    for pair, base, donor in zip(pairs, read[::2], read[1::2], strict=True):
        for side, length, other in zip(("source", "target"), base.lengths, donor.lengths, strict=True):
            if side not in needed or length == other:
                continue
            if not may_differ:
                of_side = f" of the {side}" if base.lengths[1] else ""
                shown = f"{text_words(pair.base)!r} and {text_words(pair.donor)!r}"
                wrong.append((pair.place, f"the base has {length} tokens{of_side}, the donor {other}: {shown}"))
            uneven.add(side)
    if wrong:
        more = f" So it is in {len(wrong) - 1:,} more, as in {wrong[1][0]}." if wrong[1:] else ""
        reason = (
            f"They are patched position by position, so that both need as many tokens of the model's tokenizer.{more}"
        )
        todo = "Choose words of as many tokens, patch the last position alone (--positions last), or leave these pairs out."
        raise bad_pair(*wrong[0], reason, todo)
    return frozenset(uneven)


def _read_samples(
    subject: AnsweringSubject, pairs: Sequence[TextPair], past_encoder: bool
) -> tuple[AnsweringSubject | None, list[dict[str, Batch]]]:
    """Both batches of every pair, and the model that reads them, with sounds and images encoded once.

    That is done where nothing of the encoder is patched (`past_encoder`) and the model takes what its encoder makes.
    """
    from trisect.hf.load import Pretrained, decoder_of, encode_sample

    first, reader = pairs[0].base, None
    media = all(isinstance(t, InputSample) and (t.audio or t.images) for pair in pairs for t in (pair.base, pair.donor))
    if isinstance(subject, Pretrained) and past_encoder and media and isinstance(first, InputSample):
        reader = decoder_of(subject, first)

    def read(sample: TextOrPair) -> Batch:
        if reader is None or not isinstance(subject, Pretrained) or not isinstance(sample, InputSample):
            return next(iter(subject.batches([sample], 1)))
        encoded = encode_sample(subject, sample)
        assert encoded is not None, "another such sample was encoded"
        batch = next(iter(reader.batches([encoded[0]], 1)))
        return replace(batch, notes=(*batch.notes, *encoded[1]))

    return reader, [{"base": read(pair.base), "donor": read(pair.donor)} for pair in pairs]


def _tokenize(
    subject: Subject, texts: Sequence[TextOrPair], places: Sequence[str] = (), notes: dict[str, None] | None = None
) -> list[_TokenizedText]:
    """The tokens of every text, and in `notes` how they are read; with `places`, which name the texts, raises CorpusError for
    one that is longer than a window.
    """
    tokenized: list[_TokenizedText] = []
    for batch in subject.batches(texts, TOKENIZER_BATCH):
        if notes is not None:
            notes.update(dict.fromkeys(batch.notes))
        if any(side is not None and side.ids is None for side in (batch.source, batch.target)):
            reason = "Pairs are aligned by them."
            raise ModelError(f"{subject.name} gives no ids of tokens.", reason, "Use a model with a tokenizer.")
        for row, (text, start) in enumerate(batch.rows):
            tokens = _of_batch(batch, row)
            if start and places:
                what = f"{text_words(texts[text])!r} is longer than {subject.name} reads at once"
                raise bad_pair(places[text], what)
            if start:
                before = tokenized.pop()
                tokens = tokens._replace(source=before.source + tokens.source, target=before.target + tokens.target)
            tokenized.append(tokens)
    return tokenized


def _of_batch(batch: Batch, row: int = 0) -> _TokenizedText:
    """The tokens of one row; None for a side without ids, which has its length alone."""
    sides = [side for side in (batch.source, batch.target) if side is not None]
    ids = [() if s.ids is None else tuple(s.ids[row][(s.real & ~s.special)[row]].tolist()) for s in sides]
    lengths = [int(side.real[row].sum()) for side in sides]
    return _TokenizedText(ids[0], ids[-1] if len(ids) > 1 else (), (lengths[0], lengths[-1] * (len(ids) > 1)))


def _tokenize_readable(subject: Subject, texts: Sequence[TextOrPair]) -> list[_TokenizedText]:
    """The tokens of every text; empty for a text with too many unknown words."""
    try:
        return _tokenize(subject, texts)
    except ModelError:
        tokenized = []
        for text in texts:
            try:
                is_readable = any(True for _ in subject.batches([text], 1))
            except ModelError:
                is_readable = False
            tokenized.append(_tokenize(subject, [text])[0] if is_readable else _TokenizedText((), (), (0, 0)))
        return tokenized


TASK_WORDS = {
    "causal": "goes on with a text",
    "masked": "fills in masked tokens",
    "seq2seq": "is an encoder-decoder",
    "output": "gives vectors, and predicts no tokens",
}


def _task_pairs(settings: PairSettings, subject: AnsweringSubject) -> tuple[tuple[TextPair, ...], tuple[str, ...]]:
    """Pairs that a task makes for the model's tokenizer, with a note."""
    task, count, seed = settings.task, settings.count, settings.seed
    if task == "audio-words":
        return _spoken_pairs(settings, subject)
    objective = "seq2seq" if task == "translation" else "causal"
    if subject.objective != objective:
        for_whom = "encoder-decoders" if task == "translation" else "models that go on with a text"
        reason = f"{subject.name} {TASK_WORDS[subject.objective]}; the task is for {for_whom}."
        raise SpecError(f"The task {task!r} was asked for.", reason, "Give pairs of your own with --pairs.")
    if getattr(subject, "tokenizer", subject) is None:
        reason = f"Its texts are for a tokenizer, and {subject.name} comes with none."
        raise SpecError(f"The task {task!r} was asked for.", reason, "Load the model with its tokenizer.")
    if task == "translation":
        pairs = draw_translations(lambda texts: [(t.source, t.target) for t in _tokenize(subject, texts)], count, seed)
        return pairs, ("Sentences are of the embedded bitext's languages, whose links and roles are known.",)

    def ids(texts: Sequence[str]) -> list[tuple[int, ...]]:
        return [text.source for text in _tokenize_readable(subject, texts)]

    if task != "induction":
        usable = usable_templates(ids)
        names = ", ".join(
            f"'{template.name}' ({len(template.keys)} keys, {len(template.values)} values)" for template in usable
        )
        return draw_bindings(usable, count, seed), (f"Templates that the tokenizer can distinguish: {names}.",)
    labels, between_words, notes = None, "other such words", ()
    if settings.corpus is not None:
        labels = open_labels(settings.corpus, settings.split, settings.reader, True)
        between_words, notes = f"runs of words of {labels.name}", labels.notes
    words = induction_words(ids, labels)
    note = f"A and B are drawn from {len(words.words)} words that are one token each; what stands between them are {between_words}."
    pairs = draw_induction(ids, words, count, seed, GAP_WORDS[0])
    for between in GAP_WORDS[1:]:  # as much as the model reads at once; the shortest where it reads none of them
        rows = (row for batch in subject.batches([pair.base for pair in pairs], TOKENIZER_BATCH) for row in batch.rows)
        if not any(start for _, start in rows):
            break
        pairs = draw_induction(ids, words, count, seed, between)
    return pairs, (note, *notes)


GAP = 0.25  # seconds of silence before the first word
SLOT = 0.9  # seconds of a word with the silence behind it, unless a recording is longer
SOUNDS = (".wav", ".flac", ".ogg")


def _spoken_pairs(settings: PairSettings, subject: AnsweringSubject) -> tuple[tuple[TextPair, ...], tuple[str, ...]]:
    """Pairs of sounds joined from recordings of single words, with the preceding words as the decoder's input.

    The folder holds a sound file for each word, named by it, or folders of such files, one for each speaker or pace: these take
    turns, and both sounds of a pair are of the same. Words are those that are one token behind a comma. Raises SpecError,
    CorpusError, ModelError.
    """
    from trisect.hf.processor import open_sound

    folder, rate = Path(settings.corpus or ""), getattr(getattr(subject, "processor", None), "rate", None)
    if rate is None or subject.objective != "seq2seq":
        reason = f"{subject.name} {TASK_WORDS[subject.objective]}, and takes {'text' if rate is None else 'sound'}."
        todo = "Give a model of speech with a decoder, such as Whisper."
        raise SpecError("The task 'audio-words' was asked for.", reason, todo)
    tokenizer: Any = getattr(subject, "tokenizer", None)
    speakers = [place for place in sorted(folder.iterdir()) if place.is_dir()] or [folder]
    files = [{f.stem: f for f in sorted(place.iterdir()) if f.suffix.lower() in SOUNDS} for place in speakers]
    shared = [word for word in files[0] if all(word in by_word for by_word in files)]
    words = [word for word in shared if len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1]
    waves = [{word: open_sound(by_word[word], rate)[0] for word in words} for by_word in files]
    slot = max(int(SLOT * rate), *(len(wave) for by_word in waves for wave in by_word.values())) if words else 1

    def sound(text: SpokenText, by_word: Mapping[str, Float[np.ndarray, " S"]]) -> InputSample:
        first = int(GAP * rate) + text.delay * slot
        samples = np.zeros(first + len(text.words) * slot + int(GAP * rate), np.float32)
        for number, word in enumerate(text.words):
            samples[first + number * slot :][: len(by_word[word])] = by_word[word]
        written = [word.capitalize() if not i else word for i, word in enumerate(text.words[: text.written])]
        return InputSample("".join(f" {word}," for word in written), (samples,))

    pairs = []
    for number, (base, donor, answers, kind) in enumerate(draw_spoken(words, settings.count, settings.seed)):
        who = number // len(SPOKEN_KINDS) % len(speakers)  # so that each says as many pairs of every kind
        place = f"pair {number + 1} of audio-words ({speakers[who].name})"
        spaced = {name: f" {word}" for name, word in answers.items()}
        pairs.append(TextPair(sound(base, waves[who]), sound(donor, waves[who]), spaced, place, kind))
    speech = f", said by {len(speakers)} speakers or at as many paces" if len(speakers) > 1 else ""
    note = f"{len(words)} of {len(shared)} recordings of {folder.name} are words of one token{speech}; a word has {slot / rate:.2f} s."
    return tuple(pairs), (note,)


def _check_kinds(subject: AnsweringSubject, pairs: Sequence[TextPair]) -> None:
    """Check that encoder-decoders get sources with targets, others texts; and that models with answers get answers."""
    paired = subject.objective == "seq2seq"
    mixed = {isinstance(text, InputSample) for pair in pairs for text in (pair.base, pair.donor)}
    for pair in pairs:
        if len(mixed) > 1:
            raise bad_pair(pair.place, "some pairs are texts and others sound, images or inputs; they are read alike")
        if mixed == {False} and isinstance(pair.base, tuple) != paired:
            takes = "a source and a target" if paired else "one text"
            raise bad_pair(pair.place, f"{subject.name} takes {takes}, and it has {'one text' if paired else 'two'}")
        if pair.answers and subject.objective == "output":
            raise bad_pair(pair.place, f"it has answers, and {subject.name} gives none")
    if (mask := subject.mask) is None or mixed == {True}:
        return
    # for a masked language model all texts have one mask, where the answer is read, or none has any
    counts = [(pair, name, str(getattr(pair, name)).count(mask)) for pair in pairs for name in ("base", "donor")]
    if any(n for _, _, n in counts) or any(pair.answers for pair in pairs):
        for pair, name, n in counts:
            if n != 1:
                reason = f"its {name} has {mask!r} {n} times, where an answer is read at exactly one"
                raise bad_pair(pair.place, reason)


def _answer_pieces(
    subject: AnsweringSubject, pairs: Sequence[TextPair], bases: Sequence[_TokenizedText]
) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Every stated answer as tokens after the base: one at a mask, else one or several; raises CorpusError."""
    mask, readings = subject.mask, list[tuple[int, str, TextOrPair]]()
    pieces: list[dict[str, list[tuple[int, ...]]]] = [
        {} for _ in pairs
    ]  # what an answer may be, by the texts it is tried in
    tokenizer: Any = getattr(subject, "tokenizer", None)
    for number, pair in enumerate(pairs):
        base = pair.base
        before = base[1] if isinstance(base, tuple) else (base.text or "") if isinstance(base, InputSample) else base
        for name, answer in pair.answers.items():
            if not isinstance(answer, str):
                pieces[number][name] = [answer]
                continue
            spaced = answer[:1].isspace() or before[-1:].isspace()
            for candidate in (answer.strip(),) if mask else (answer,) if spaced else (f" {answer}", answer):
                if isinstance(base, InputSample):
                    if tokenizer is not None and base.text is not None:
                        texts = (before, before + candidate)
                        start, full = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
                        pieces[number].setdefault(name, []).append(_behind(start, full))
                elif isinstance(base, tuple):
                    readings.append((number, name, (base[0], base[1] + candidate)))
                else:
                    readings.append((number, name, base.replace(mask, candidate) if mask else base + candidate))
    different = list(dict.fromkeys(text for *_, text in readings))
    tokens = dict(zip(different, _tokenize_readable(subject, different), strict=True)) if different else {}
    for number, name, text in readings:
        start, full = bases[number].last, tokens[text].last
        changed = tuple(b for a, b in zip(start, full, strict=False) if a != b)
        at_mask = changed if len(start) == len(full) and len(changed) == 1 else ()
        pieces[number].setdefault(name, []).append(_behind(start, full) if mask is None else at_mask)
    for pair, by_name in zip(pairs, pieces, strict=True):
        if wrong := [name for name in pair.answers if not any(by_name.get(name, ()))]:
            how = "one token at the mask of" if mask else "one or several tokens behind"
            reason = f"its answer for {wrong[0]!r}, {pair.answers[wrong[0]]!r}, is not {how} {text_words(pair.base)!r}"
            raise bad_pair(pair.place, reason)
    # of a word with and without a space in front that which is one token, else the first
    return tuple(
        {name: min(filter(None, by_name[name]), key=lambda ids: len(ids) > 1) for name in pair.answers}
        for pair, by_name in zip(pairs, pieces, strict=True)
    )


def _behind(start: Sequence[int], full: Sequence[int]) -> tuple[int, ...]:
    """The tokens after the first ones; None if the first ones differ."""
    return tuple(full[len(start) :]) if list(full[: len(start)]) == list(start) else ()


def text_words(text: TextOrPair, limit: int | None = 80) -> str:
    """A text, or a name of other inputs, in at most so many characters."""
    if isinstance(text, InputSample):
        kind = "sound" if text.audio else "image" if text.images else "inputs"
        shown = f"[{kind}] {text.text or ''}".strip()
        if text.inputs is not None:
            ids = text.inputs.get("input_ids")
            shown = f"ids {ids.flatten().tolist()}" if isinstance(ids, Tensor) else shown
    else:
        shown = " → ".join(text) if isinstance(text, tuple) else text
    return shown if limit is None or len(shown) <= limit else f"{shown[: limit - 3]}…"
