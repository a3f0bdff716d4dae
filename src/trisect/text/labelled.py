"""Labelled sentences for models with a tokenizer of their own: each word's place in the text and its labels."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trisect.core.errors import CorpusError
from trisect.core.files import digest
from trisect.text.corpus import Corpus
from trisect.text.hub import DatasetTexts, is_hub
from trisect.text.raw import LONGEST_SENTENCE, STOP
from trisect.text.readers.base import Reader, SplitText, Token, join_tokens
from trisect.text.sources import RawSource, find_source, open_corpus
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
