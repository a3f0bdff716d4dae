"""Text pairs made ready for one model: opened, checked token by token, their answers as ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from typing_extensions import TypedDict

from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.files import digest, read_record
from trisect.core.subject import AnsweringSubject, Batch, PlainText, SiteTarget, Subject
from trisect.core.trace import Side
from trisect.experiments.patch.settings import PatchSettings
from trisect.measure.patching import UNKNOWN
from trisect.text.birth_places import QUESTION
from trisect.text.pairs import (
    ANSWERS,
    BETWEEN,
    TextPair,
    bad_pair,
    draw_bindings,
    draw_induction,
    draw_translations,
    given_pairs,
    induction_words,
    read_pairs,
    usable_templates,
)
from trisect.text.sources import open_labelled


class PatchedSides(NamedTuple):
    """Which positions of the source and of the target are patched; None where there is no target."""

    source: Bool[Tensor, "B S"]
    target: Bool[Tensor, "B T"] | None

    def queries(self, stack: str) -> Bool[Tensor, "B T"]:
        """Those of a stack's queries."""
        return self.target if self.target is not None and stack in ("dec", "cross") else self.source

    def keys(self, stack: str) -> Bool[Tensor, "B S"]:
        """Those of a stack's keys and values."""
        return self.target if self.target is not None and stack == "dec" else self.source


def answer_places(batch: Batch, mask: str | None) -> Int[Tensor, " B"] | None:
    """Where each row's answer is predicted: at its one mask, else at its last own token, the decoder's where there is one.

    Null where a masked language model is given a text without exactly one mask.
    """
    side = batch.source if batch.target is None else batch.target
    if mask is None:
        return _last(side)
    found = torch.tensor([[token == mask for token in row] for row in side.tokens])
    return found.int().argmax(1) if bool((found.sum(1) == 1).all()) else None


def patched_sides(
    run: Batch, other: Batch, wanted: tuple[int, ...] | str, places: Int[Tensor, " B"] | None
) -> PatchedSides:
    """The positions of a batch that are patched from another one of the same lengths."""
    if run.target is None or other.target is None:
        return PatchedSides(_chosen(run.source, other.source, wanted, places), None)
    source = _chosen(run.source, other.source, wanted, None)
    return PatchedSides(source, _chosen(run.target, other.target, wanted, places))


def _last(side: Side) -> Int[Tensor, " B"]:
    """Each row's last own token, or its last real one where it has none of its own."""
    own = side.real & ~side.special
    own = torch.where(own.any(1, keepdim=True), own, side.real)
    return (own.long() * torch.arange(1, own.shape[1] + 1)).argmax(1)


def _chosen(
    run: Side, other: Side, wanted: tuple[int, ...] | str, places: Int[Tensor, " B"] | None
) -> Bool[Tensor, "B T"]:
    if wanted == "all":
        return run.real
    if wanted == "last":
        at = _last(run) if places is None else places
        return torch.arange(run.real.shape[1]) == at[:, None]
    chosen = torch.zeros_like(run.real)
    if wanted == "differ":
        shared = min(run.real.shape[1], other.real.shape[1])
        for row, (own, donor) in enumerate(zip(run.tokens, other.tokens, strict=True)):
            chosen[row, :shared] = torch.tensor([a != b for a, b in zip(own[:shared], donor[:shared], strict=True)])
        return chosen & run.real
    longest = int(run.real.sum(1).min())
    if beyond := [n for n in wanted if not isinstance(n, int) or n > longest]:
        known = f"The shortest text has {longest} tokens."
        raise CorpusError(f"Position {beyond[0]} was named.", known, "Name positions that every text has.")
    chosen[:, [int(n) - 1 for n in wanted]] = True
    return chosen & run.real


MASK = "<mask>"  # ends a question (hf.small.gpt)


class NamesData(TypedDict):
    """What is read of a model's card: of each name whether it stood in pretraining, in fine-tuning, and its place."""

    names: dict[str, tuple[bool, bool, str | None]]


def recall_pairs(model: object, count: int, seed: int) -> tuple[tuple[TextPair, ...], tuple[str, ...]]:
    """Pairs of questions about people whose place a text of questions says, in a model's folder that `trisect recall` wrote.

    Names are as long as each other, so that characters stand at the same positions, and places begin with different
    characters, by which an answer is recognised; the answer of a pair is that first character. Raises SpecError where there
    is no such folder, or no such pair, DamagedFileError for a card that is none.
    """
    path = Path(model) / "recall.json" if isinstance(model, str | Path) else None
    if path is None or not path.is_file():
        known = "It needs the names that the model has read, which stand in its folder's recall.json: there is none."
        todo = "Give the folder of a model that 'trisect recall' trained."
        raise SpecError(f"The task 'recall' was asked for with {model!s:.80}.", known, todo)
    todo = "Call 'trisect recall' again for the folder of the experiment: it writes every card."
    places = {name: place for name, (*_, place) in read_record(path, todo, NamesData)["names"].items() if place}
    by_length: dict[int, list[str]] = {}
    for name in sorted(places):
        by_length.setdefault(len(name), []).append(name)
    able = {n: names for n, names in by_length.items() if len({places[name][0] for name in names}) > 1}
    if not able:
        known = f"{len(places)} names have a known place, and no two of one length have places that begin differently."
        raise SpecError("The task 'recall' was asked for.", known, "Give pairs of your own with --pairs.")
    draw, lengths = np.random.default_rng([seed, 12]), sorted(able)
    weights = np.array([len(able[n]) for n in lengths], dtype=float)
    found = []
    while len(found) < count:
        names = able[lengths[int(draw.choice(len(lengths), p=weights / weights.sum()))]]
        one, other = (names[int(i)] for i in draw.integers(len(names), size=2))
        if places[one][0] != places[other][0]:
            texts = [QUESTION.format(name=name) + MASK for name in (one, other)]
            answers = {"base": places[one][0], "donor": places[other][0]}
            found.append(TextPair(texts[0], texts[1], answers, f"pair {len(found) + 1} of recall", "birth place"))
    note = "Names of a pair are as long as each other; an answer is recognised by the first character of the place."
    return tuple(found), (note,)


TOGETHER = 64  # texts that are tokenized at once


class _TokenizedText(NamedTuple):
    """A text's own tokens, and how many positions it takes with those that the tokenizer adds; target 0 where there is none."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    lengths: tuple[int, int]

    @property
    def last(self) -> tuple[int, ...]:
        """The side that an answer follows on."""
        return self.target if self.lengths[1] else self.source


@dataclass(frozen=True, eq=False)
class PreparedPairs:
    """Pairs that fit a model, with the ids of their answers by name, UNKNOWN where one is not stated."""

    name: str
    fingerprint: str
    pairs: tuple[TextPair, ...]
    answers: Mapping[str, Int[np.ndarray, " N"]]
    notes: tuple[str, ...] = ()


def stated_pairs(settings: PatchSettings) -> tuple[str, tuple[TextPair, ...]] | None:
    """The pairs that are named or given, and what they are called; None where a task makes them. Raises CorpusError."""
    if settings.base is not None:
        return "one pair", given_pairs([{"base": settings.base, "donor": settings.donor}])
    if settings.pairs is not None:
        return settings.pairs.name, read_pairs(settings.pairs)
    return None if settings.given is None else ("given pairs", given_pairs(settings.given))


def prepare_pairs(settings: PatchSettings, subject: AnsweringSubject, targets: Sequence[SiteTarget]) -> PreparedPairs:
    """The pairs of the settings, each checked against the model; raises SpecError, CorpusError naming pair and difference."""
    notes: tuple[str, ...] = ()
    if (stated := stated_pairs(settings)) is not None:
        name, pairs = stated
    elif settings.task == "recall":
        name, (pairs, notes) = "recall", recall_pairs(settings.source.model, settings.count, settings.seed)
    else:
        name, (pairs, notes) = str(settings.task), _task_pairs(settings, subject)
    _check_kinds(subject, pairs)
    texts = [text for pair in pairs for text in (pair.base, pair.donor)]
    noted: dict[str, None] = {}
    read = tokenize(subject, texts, [pair.place for pair in pairs for _ in range(2)], noted)
    needed = set()  # the sides whose lengths have to be the same: those that are patched
    for target in targets:
        stack = target.address.stack
        of_target = stack in ("dec", "cross") if target.component == "q" else stack == "dec"
        needed.add("target" if of_target else "source")
    for number, pair in enumerate(pairs):
        base, donor = read[2 * number], read[2 * number + 1]
        for side, own, other in zip(("source", "target"), base.lengths, donor.lengths, strict=True):
            if side in needed and own != other:
                of = f" of the {side}" if base.lengths[1] else ""
                shown = f"{_words(pair.base)!r} and {_words(pair.donor)!r}"
                raise bad_pair(pair.place, f"the base has {own} tokens{of}, the donor {other}: {shown}")
    answers = _answer_ids(subject, pairs, {texts[i]: one for i, one in enumerate(read)})
    body = [[pair.base, pair.donor, dict(pair.answers)] for pair in pairs]
    return PreparedPairs(name, digest(json.dumps(body).encode(), 8), pairs, answers, (*notes, *noted))


def tokenize(
    subject: Subject,
    texts: Sequence[PlainText],
    places: Sequence[str] | None = None,
    noted: dict[str, None] | None = None,
) -> list[_TokenizedText]:
    """The tokens of every text; with `places`, which name them, raises CorpusError for one that is longer than a window.

    What is to be said of how they are read is added to `noted`.
    """
    found: list[_TokenizedText] = []
    for batch in subject.batches(texts, TOGETHER):
        if noted is not None:
            noted.update(dict.fromkeys(batch.notes))
        sides = [side for side in (batch.source, batch.target) if side is not None]
        for row, (text, start) in enumerate(batch.rows):
            ids = []
            for side in sides:
                if side.ids is None:
                    known = "Pairs are aligned by them."
                    raise ModelError(f"{subject.name} gives no ids of tokens.", known, "Use a model with a tokenizer.")
                ids.append(tuple(side.ids[row][(side.real & ~side.special)[row]].tolist()))
            lengths = [int(side.real[row].sum()) for side in sides]
            own = _TokenizedText(ids[0], ids[-1] if len(ids) > 1 else (), (lengths[0], lengths[-1] * (len(ids) > 1)))
            if not start:
                found.append(own)
            elif places is not None:
                what = f"{_words(texts[text])!r} is longer than {subject.name} reads at once"
                raise bad_pair(places[text], what)
            else:
                before = found.pop()
                found.append(own._replace(source=before.source + own.source, target=before.target + own.target))
    return found


DOES = {
    "causal": "goes on with a text",
    "masked": "fills in masked tokens",
    "seq2seq": "is an encoder-decoder",
    "output": "gives vectors, and predicts no tokens",
}


def _task_pairs(settings: PatchSettings, subject: AnsweringSubject) -> tuple[tuple[TextPair, ...], tuple[str, ...]]:
    """The pairs of a task that are made for the model's own tokenizer, with a note."""
    task, count, seed = settings.task, settings.count, settings.seed
    wants = "seq2seq" if task == "translation" else "causal"
    if subject.objective != wants:
        for_whom = "encoder-decoders" if task == "translation" else "models that go on with a text"
        known = f"{subject.name} {DOES[subject.objective]}; the task is for {for_whom}."
        raise SpecError(f"The task {task!r} was asked for.", known, "Give pairs of your own with --pairs.")
    if task == "translation":
        pairs = draw_translations(
            lambda texts: [(one.source, one.target) for one in tokenize(subject, texts)], count, seed
        )
        return pairs, ("Sentences are of the embedded bitext's languages, whose links and roles are known.",)

    def ids(texts: Sequence[str]) -> list[tuple[int, ...]]:
        return [one.source for one in _tried(subject, texts)]

    if task == "induction":
        opened, of, notes = None, "other such words", ()
        if settings.corpus is not None:
            opened = open_labelled(settings.corpus, settings.split, settings.reader, True)
            of, notes = f"runs of words of {opened.name}", opened.notes
        words = induction_words(ids, opened)
        said = f"A and B are drawn from {len(words.words)} words that are one token each; what stands between them are {of}."
        pairs: tuple[TextPair, ...] = ()
        for between in BETWEEN:  # as much as the model reads at once; the shortest where it reads none of them
            pairs = draw_induction(ids, words, count, seed, between)
            rows = (row for batch in subject.batches([pair.base for pair in pairs], TOGETHER) for row in batch.rows)
            if between == BETWEEN[-1] or not any(start for _, start in rows):
                break
        return pairs, (said, *notes)
    usable = usable_templates(ids)
    names = ", ".join(f"'{one.name}' ({len(one.keys)} keys, {len(one.values)} values)" for one in usable)
    return draw_bindings(usable, count, seed), (f"Templates that the tokenizer can distinguish: {names}.",)


def _tried(subject: Subject, texts: Sequence[PlainText]) -> list[_TokenizedText]:
    """The tokens of every text; none for a text of whose words the model knows too few."""
    try:
        return tokenize(subject, texts)
    except ModelError:
        found = []
        for text in texts:
            try:
                rows = any(True for _ in subject.batches([text], 1))
            except ModelError:
                rows = False
            found.append(tokenize(subject, [text])[0] if rows else _TokenizedText((), (), (0, 0)))
        return found


def _check_kinds(subject: AnsweringSubject, pairs: Sequence[TextPair]) -> None:
    """Sources with targets for encoder-decoders, texts for the others; answers for models that give any."""
    paired = subject.objective == "seq2seq"
    for pair in pairs:
        if isinstance(pair.base, tuple) != paired:
            wants = "a source and a target" if paired else "one text"
            raise bad_pair(pair.place, f"{subject.name} takes {wants}, and it has {'one text' if paired else 'two'}")
        if pair.answers and subject.objective == "output":
            raise bad_pair(pair.place, f"it has answers, and {subject.name} gives none")
    if (mask := subject.mask) is None:
        return
    # for a masked language model all texts have one mask, where the answer is read, or none has any
    counts = [(pair, name, str(getattr(pair, name)).count(mask)) for pair in pairs for name in ("base", "donor")]
    if any(n for _, _, n in counts) or any(pair.answers for pair in pairs):
        for pair, name, n in counts:
            if n != 1:
                what = f"its {name} has {mask!r} {n} times, where an answer is read at exactly one"
                raise bad_pair(pair.place, what)


def _answer_ids(
    subject: AnsweringSubject, pairs: Sequence[TextPair], read: Mapping[PlainText, _TokenizedText]
) -> dict[str, Int[np.ndarray, " N"]]:
    """Every stated answer as the one token that it is behind the base (the donor's behind the donor)."""
    mask, asked = subject.mask, []
    for number, pair in enumerate(pairs):
        before = pair.base[1] if isinstance(pair.base, tuple) else pair.base
        for name, answer in pair.answers.items():
            spaced = answer[:1].isspace() or before[-1:].isspace()
            for candidate in (answer.strip(),) if mask else (answer,) if spaced else (f" {answer}", answer):
                if isinstance(pair.base, tuple):
                    text = pair.base[0], pair.base[1] + candidate
                else:
                    text = pair.base.replace(mask, candidate) if mask else pair.base + candidate
                asked.append((number, name, text))
    texts = list(dict.fromkeys(text for *_, text in asked))
    made = dict(zip(texts, _tried(subject, texts), strict=True)) if texts else {}
    found: dict[str, Int[np.ndarray, " N"]] = {}
    for number, name, text in asked:
        column = found.setdefault(name, np.full(len(pairs), UNKNOWN))
        if column[number] == UNKNOWN:
            before, whole = read[pairs[number].base].last, made[text].last
            changed = [b for a, b in zip(before, whole, strict=False) if a != b]
            if mask is None and len(whole) == len(before) + 1 and not changed:
                column[number] = whole[-1]
            elif mask is not None and len(before) == len(whole) and len(changed) == 1:
                column[number] = changed[0]
    for number, pair in enumerate(pairs):
        if wrong := [name for name in pair.answers if found[name][number] == UNKNOWN]:
            what = f"its answer for {wrong[0]!r}, {pair.answers[wrong[0]]!r}, is not one token behind {_words(pair.base)!r}"
            raise bad_pair(pair.place, what)
    return {name: found[name] for name in ANSWERS if name in found}


def _words(text: PlainText) -> str:
    shown = " → ".join(text) if isinstance(text, tuple) else text
    return shown if len(shown) <= 80 else f"{shown[:77]}…"
