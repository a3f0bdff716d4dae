"""Labels of words: those of treebanks placed in their text, and those made from the words themselves."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.text.bitext import Bitext, LinkSet, SentencePair, open_bitext
from trisect.text.corpus import UNKNOWN, Corpus
from trisect.text.generated import NAME, bitext_corpus
from trisect.text.hub import DatasetTexts, is_hub
from trisect.text.readers.base import Reader, SplitText, Token, join_tokens
from trisect.text.sources import LONGEST_SENTENCE, STOP, RawSource, find_source, open_corpus
from trisect.text.worlds import is_generated

WORD = re.compile(r"<unk>|\w+(?:['’-]\w+)*|[^\w\s]")
Labels = Mapping[str, tuple[str | None, ...]]


class Labelled(NamedTuple):
    """A text, where in it each word stands (first character, and the one after the last), and each column's labels.

    Words that are written as one (zum: zu dem) share its place, unless they make it up (don't: do n't).
    `heads` is the number of each word's syntactic head among the words, from 1, and 0 for a root; empty where it is not known.
    `article` counts the articles (documents) that texts follow one another in; null where they are not marked.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    labels: Labels
    heads: tuple[int, ...] = ()
    article: int | None = None

    def leading_words(self) -> list[int]:
        """The first word, from 0, of each place: where words share one, a model's positions there are this one's."""
        return [i for i, span in enumerate(self.spans) if not i or span != self.spans[i - 1]]


@dataclass(frozen=True)
class LabelledTexts:
    """The labelled texts of one split; `texts()` starts from the first each time. `options` are the words of a command line."""

    name: str
    columns: tuple[str, ...]
    texts: Callable[[], Iterator[Labelled]]
    notes: tuple[str, ...]
    fingerprint: str
    options: tuple[str, ...]


def open_labelled(where: str | Path, split: str, reader: str | None = None, bare: bool = False) -> LabelledTexts:
    """A treebank's sentences, as their `# text` lines have them, or a corpus folder's runs of words up to a full stop.

    Raises CorpusError where there is no such split, or where the words carry no labels; with `bare` words may carry none, and
    a raw text is read as paragraphs or lines.
    """
    shown = str(where) if is_hub(where) or is_generated(where) else Path(where).resolve().name
    options = ("--corpus", shown, "--split", split, *(() if reader is None else ("--reader", reader)))
    if is_generated(where) or (reader is None and (Path(where) / "corpus.json").is_file()):
        corpus = open_corpus(where)
        _need_split(corpus.name, split, tuple(corpus.splits))
        if not bare:
            _need_labels(corpus.name, tuple(corpus.labels))
        notes = (*corpus.notes, "A text is a run of words up to a full stop, joined by spaces.")
        mark = f"{corpus.fingerprint}-{split}"
        name = f"{corpus.name}, {split}"
        return LabelledTexts(name, tuple(corpus.labels), lambda: _runs(corpus, split), notes, mark, options)
    source = find_source(where, reader)
    _need_split(source.name, split, tuple(source.parts))
    part = source.parts[split]
    if bare and not source.kind.columns:
        return _unlabelled(source, split, options)
    _need_labels(source.name, source.kind.columns)
    met, counted = _survey(source.kind, part)
    columns = (*source.kind.columns, *sorted(met - {*source.kind.columns}))  # features of a treebank's morphology
    mark = digest("\n".join(part.texts()), 8) if isinstance(part, DatasetTexts) else digest(part.read_bytes(), 8)

    def texts() -> Iterator[Labelled]:
        for found, paragraph in zip(source.kind.raw(part), source.kind.paragraphs(part), strict=True):
            none = [None] * len(paragraph.words)
            labels = {c: tuple(paragraph.labels.get(c) or none) for c in columns}
            one = placed(found.text, paragraph.words, labels, found.tokens)
            yield one._replace(heads=found.heads, article=found.article)

    notes = (*source.notes, *source.kind.label_notes, source.kind.unit, *counted)
    return LabelledTexts(f"{source.name}, {split}", columns, texts, notes, mark, options)


def placed(said: str, words: Sequence[str], labels: Labels, tokens: Sequence[Token] = ()) -> Labelled:
    """Words found one after the other in what was said, as the tokens have them; the tokens joined where they do not make it up.

    Words of one token share its place, unless they make it up. Without tokens every word is one.
    """
    tokens = tokens or [Token(word) for word in words]
    spans = _places(said, words, tokens)
    if len(spans) < len(words):
        said = join_tokens(tokens)
        spans = _places(said, words, tokens)
    return Labelled(said, tuple(spans), labels)


def _places(said: str, words: Sequence[str], tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """Where the words stand, up to the first token that is not there."""
    spans: list[tuple[int, int]] = []
    end = 0
    for token in tokens:
        whole = _in_turn(said, (token.form,), end)
        apart = whole if token.words == 1 else _in_turn(said, words[len(spans) :][: token.words], end)
        if not whole and not apart:
            break
        own = apart if apart and (not whole or apart[-1][1] == whole[0][1]) else whole * token.words
        spans += own
        end = (own or whole)[-1][1]
    return spans


def _in_turn(said: str, forms: Sequence[str], end: int) -> list[tuple[int, int]]:
    """Where these stand one after the other, but for white space; nothing where they do not."""
    spans = []
    for form in forms:
        start = said.find(form, end)
        if start >= 0 and not said[end:start].strip():
            end = start + len(form)
        else:
            start = len(said) - len(said[end:].lstrip())
            end, sought = start, _spelling(form)
            while end < len(said) and len(_spelling(said[start:end])) < len(sought):
                end += 1
            if _spelling(said[start:end]) != sought:
                return []
        spans.append((start, end))
    return spans


def _spelling(text: str) -> str:
    """The same for é as one character and as e with an accent, and for every kind of space."""
    return re.sub(r"\s", " ", unicodedata.normalize("NFD", text))


def _survey(kind: Reader, part: SplitText) -> tuple[set[str], list[str]]:
    """The label columns of a split, and notes on sentences that are not read, or not word by word, as they are written."""
    met: set[str] = set()
    texts = words = rebuilt = shared = 0
    for found, paragraph in zip(kind.raw(part), kind.paragraphs(part), strict=True):
        one = placed(found.text, paragraph.words, {}, found.tokens)
        met |= paragraph.labels.keys()
        texts, words = texts + 1, words + len(one.spans)
        rebuilt += one.text != found.text
        shared += len(one.spans) - len(one.leading_words())
    notes = []
    if rebuilt:
        which = f"In {rebuilt:,} of {texts:,} sentences the '# text' line does not hold the words"
        notes.append(f"{which}: what is read is their tokens, joined.")
    if shared:
        which = f"{shared:,} of {words:,} words are written as one with the word before (as French 'du' is for 'de le')"
        notes.append(f"{which}: what is written carries the labels of its first word.")
    return met, notes


def _runs(corpus: Corpus, split: str) -> Iterator[Labelled]:
    part, start = corpus.splits[split], 0
    names = {column: (*classes, None) for column, classes in corpus.labels.items()}  # -1 is the last, null
    for i, token in enumerate(part.tokens):
        last = i + 1 == len(part.tokens)
        if corpus.vocabulary[token] == STOP or i + 1 - start == LONGEST_SENTENCE or last:
            words = [corpus.vocabulary[t] for t in part.tokens[start : i + 1]]
            labels = {c: tuple(known[n] for n in part.labels[c][start : i + 1]) for c, known in names.items()}
            yield placed("", words, labels)
            start = i + 1


def _unlabelled(source: RawSource, split: str, options: tuple[str, ...]) -> LabelledTexts:
    """A raw text's paragraphs or lines without labels; headings of the first level begin articles."""
    part = source.parts[split]

    def texts() -> Iterator[Labelled]:
        for one in source.kind.raw(part):
            yield Labelled(one.text, tuple(found.span() for found in WORD.finditer(one.text)), {}, (), one.article)

    notes = (*source.notes, source.kind.unit)
    mark = digest("\n".join(part.texts()), 8) if isinstance(part, DatasetTexts) else digest(part.read_bytes(), 8)
    return LabelledTexts(f"{source.name}, {split}", (), texts, notes, mark, options)


def _need_split(name: str, split: str, there: tuple[str, ...]) -> None:
    if split not in there:
        raise CorpusError(
            f"{name} has no {split} split.", f"It has {', '.join(there)}.", "Choose one of them with --split."
        )


def _need_labels(name: str, columns: tuple[str, ...]) -> None:
    if not columns:
        known = "Erasing takes a label out, so that the words have to carry one."
        todo = "Give a treebank (CoNLL-U), or a corpus that 'trisect corpus annotate' wrote."
        raise CorpusError(f"The words of {name} carry no labels.", known, todo)


OWN = ("word", "position", "frequency")  # what every text has
OTHERS = ("previous", "next", "head")  # of another word, its column 'pos' or the one named after a dot
PART = "pos"
USUAL = ("word", "position", "frequency", "pos", "dep", "previous", "next", "head")
STEP, STEPS = 3, 8  # a bin of positions is so many words wide, the last one open
OTHER = "(other)"

Names = tuple[str | None, ...]


@dataclass(frozen=True)
class WordLabeller:
    """Gives every word of a text its class of each label; `counts` is how often each word stands in the texts, in lower case."""

    labels: tuple[str, ...]
    counts: Counter[str]

    def __call__(self, one: Labelled) -> dict[str, Names]:
        """The class of each word by label; null where a word carries none."""
        leading = one.leading_words()
        ends = (*leading[1:], len(one.spans))
        places = [n for n, (i, end) in enumerate(zip(leading, ends, strict=True)) for _ in range(i, end)]
        return {label: self._named(label, one, leading, places) for label in self.labels}

    def _named(self, label: str, one: Labelled, leading: Sequence[int], places: Sequence[int]) -> Names:
        """One label; `places` numbers what is written at each word, `leading` is its first word."""
        words = [one.text[a:b].lower() for a, b in one.spans]
        if label == "word":
            return tuple(words)
        if label == "position":
            return tuple(position_bin(n) for n in places)
        if label == "frequency":
            return tuple(frequency_bin(self.counts[word]) for word in words)
        which, _, column = label.partition(".")
        if which not in OTHERS:
            return one.labels[label]
        names = one.labels[column or PART]
        beside = ("start", *(names[i] for i in leading), "end")
        if which == "previous":
            return tuple(beside[n] for n in places)
        if which == "next":
            return tuple(beside[n + 2] for n in places)
        return tuple("root" if h == 0 else names[h - 1] for h in one.heads) or (None,) * len(names)


def position_bin(place: int) -> str:
    """The bin of a word's place in its text, from 0."""
    step = min(place // STEP, STEPS - 1)
    return f"{step * STEP + 1} on" if step == STEPS - 1 else f"{step * STEP + 1}–{step * STEP + STEP}"


def frequency_bin(count: int) -> str:
    """The bin of how often a word stands in the texts: 1, 2–3, 4–7, …"""
    low = 1 << (max(1, count).bit_length() - 1)
    return "1" if low == 1 else f"{low}–{2 * low - 1}"


def labeller(texts: LabelledTexts, labels: Sequence[str] | None, limit: int | None) -> WordLabeller:
    """What labels the first `limit` texts; null stands for all usual labels that the texts have.

    Raises CorpusError for a label that they do not have.
    """
    counts: Counter[str] = Counter()
    headed = False
    for one in islice(texts.texts(), limit):
        counts.update(one.text[slice(*one.spans[i])].lower() for i in one.leading_words())
        headed = headed or bool(one.heads)
    known = _known(texts, headed)
    chosen = tuple(dict.fromkeys(labels if labels is not None else (label for label in USUAL if label in known)))
    check_labels(texts, chosen, headed)
    return WordLabeller(chosen, counts)


def check_labels(texts: LabelledTexts, labels: Sequence[str], headed: bool = True) -> None:
    """Raise CorpusError for a label that the texts do not have; without a look at them their words may have heads."""
    known = _known(texts, headed)
    for label in labels:
        which, _, column = label.partition(".")
        if label not in known and not (which in OTHERS and column in texts.columns and (which != "head" or headed)):
            there = f"There is {', '.join(known)}; previous, next and head may name a column, as in previous.dep."
            raise CorpusError(f"{texts.name} has no label '{label}'.", there, "Use labels that there are.")


def _known(texts: LabelledTexts, headed: bool) -> tuple[str, ...]:
    """The labels that every word of the texts can have."""
    others = tuple(o for o in OTHERS if o != "head" or headed) if PART in texts.columns else ()
    return (*OWN, *texts.columns, *others)


def unread(word: str) -> bool:
    """Whether a word stands for one that was left out of the text."""
    return word.lower() == UNKNOWN


def common(names: Sequence[str | None], most: int, least: int) -> tuple[str, ...]:
    """The classes that are kept: the `most` frequent ones of `least` words or more, and one for all others where there are any."""
    counts = Counter(name for name in names if name is not None)
    kept = sorted((n for n, c in counts.items() if c >= least), key=lambda n: (-counts[n], n))[:most]
    return (*kept, OTHER) if len(kept) < len(counts) else tuple(kept)


LINKED, PLACE = "linked", "linked.position"
LINKS = (LINKED, PLACE)


@dataclass(frozen=True)
class PairTexts:
    """The sentence pairs of one split of a bitext; `linked` where somebody made gold links."""

    name: str
    pairs: tuple[SentencePair, ...]
    notes: tuple[str, ...]
    fingerprint: str

    @property
    def linked(self) -> bool:
        """Whether there are gold links."""
        return self.pairs[0].sure is not None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that its words can have."""
        return (*OWN, *LINKS) if self.linked else OWN


@dataclass(frozen=True)
class PairLabeller:
    """Gives every word of a pair its class of each label, source then target; `counts` are those of each side's words."""

    labels: tuple[str, ...]
    counts: tuple[Counter[str], Counter[str]]

    def __call__(self, pair: SentencePair) -> tuple[dict[str, Names], dict[str, Names]]:
        """The class of each word by label; null where a word carries none."""
        source, target = ([word.lower() for word in side] for side in pair.sides)
        sure = pair.sure or frozenset()
        there = _only(sure, len(source)), _only(frozenset((j, i) for i, j in sure), len(target))
        mine, theirs = (source, target), (target, source)
        first, second = (
            {la: _named(la, mine[i], theirs[i], there[i], self.counts[i]) for la in self.labels} for i in (0, 1)
        )
        return first, second


def _only(links: LinkSet, words: int) -> tuple[int | None, ...]:
    """For each word the one that its one link leads to; null where it has none, or several."""
    found: list[list[int]] = [[] for _ in range(words)]
    for i, j in links:
        found[i].append(j)
    return tuple(ends[0] if len(ends) == 1 else None for ends in found)


def _named(
    label: str, words: Sequence[str], others: Sequence[str], there: Sequence[int | None], counts: Counter[str]
) -> Names:
    if label == "word":
        return tuple(words)
    if label == "position":
        return tuple(position_bin(i) for i in range(len(words)))
    if label == "frequency":
        return tuple(frequency_bin(counts[word]) for word in words)
    return tuple(None if j is None else others[j] if label == LINKED else position_bin(j) for j in there)


def open_pairs(where: str | Path, split: str) -> PairTexts:
    """The pairs of one split of a bitext's folder, or of the embedded bitext; raises CorpusError where there are none."""
    bitext = bitext_corpus() if str(where) == NAME else _folder(where)
    of = {"train": bitext.train, "valid": bitext.valid, "test": bitext.test}
    if not of[split]:
        there = ", ".join(name for name, pairs in of.items() if pairs)
        raise CorpusError(
            f"{bitext.name} has no {split} split.", f"It has {there}.", "Choose one of them with --split."
        )
    return PairTexts(f"{bitext.name}, {split}", of[split], bitext.notes, f"{bitext.fingerprint}-{split}")


def _folder(where: str | Path) -> Bitext:
    try:
        return open_bitext(where)
    except CorpusError as error:
        known = f"Cross-attention is read over sentence pairs, a bitext. {error.known}"
        raise CorpusError(error.given, known, error.todo) from None


def pair_labeller(texts: PairTexts, labels: Sequence[str] | None, limit: int | None) -> PairLabeller:
    """What labels the first `limit` pairs; null stands for all labels that they have. Raises CorpusError for one that they lack."""
    check_pair_labels(texts, labels or ())
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for pair in texts.pairs[:limit]:
        for side, words in zip(counts, pair.sides, strict=True):
            side.update(word.lower() for word in words)
    return PairLabeller(tuple(dict.fromkeys(texts.labels if labels is None else labels)), counts)


def check_pair_labels(texts: PairTexts, labels: Sequence[str]) -> None:
    """Raise CorpusError for a label that sentence pairs do not have."""
    for label in labels:
        if label not in texts.labels:
            more = "" if texts.linked else f"; {' and '.join(LINKS)} are there where a split has gold links"
            there = f"Words of sentence pairs have {', '.join(texts.labels)}{more}."
            raise CorpusError(f"{texts.name} has no label '{label}'.", there, "Use labels that there are.")
