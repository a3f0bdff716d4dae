"""Open any text (the embedded corpus, a folder, a treebank, a Hugging Face dataset) as tokens, texts or labelled texts."""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from trisect.core.errors import CorpusError, check_name, shorten, suggest_closest, unknown_name
from trisect.core.files import digest, digest_file
from trisect.core.spec import Text
from trisect.core.subject import InputSample, TextOrPair, Texts, as_sample
from trisect.text.corpus import Corpus, GrowingArray, Split, counts
from trisect.text.hub import PREFIX, DatasetTexts, is_hub, open_dataset, parse_name
from trisect.text.lines import SPLITS
from trisect.text.readers import (
    CONLLU,
    PUBLISHED,
    WIKITEXT,
    Reader,
    SplitText,
    Token,
    detect_reader,
    find_reader,
    join_tokens,
    missing_split_error,
)
from trisect.text.worlds import BUILT_IN, SAMPLE, generate, is_built_in, is_generated

SAMPLE_FILE = Path(__file__).parent / "sample.conllu"
SAMPLE_NOTE = (
    "The sample is sentences of ordinary English that were written for trisect; parts of speech, relations and heads are those of "
    "Universal Dependencies, by a tagger trained on its English Web Treebank and corrected by reading."
)
SAMPLE_TEXTS = 10_000  # texts that are looked through for what was joined


@dataclass(frozen=True)
class RawSource:
    """A raw text before reading: its name, its reader, a file or rows for each split, and notes on its origin."""

    name: str
    kind: Reader
    parts: Mapping[str, SplitText]
    notes: tuple[str, ...] = ()


def find_source(where: str | Path, name: str | None = None) -> RawSource:
    """Find a raw folder, a file or `hf:NAME[:CONFIG]`, with the named or fitting reader; raises CorpusError."""
    check_name("a corpus", where)
    kind = None if name is None else find_reader(name)
    if is_built_in(where) and kind is not None:
        reason = f"'{where}' comes with trisect and is read by no other reader."
        raise CorpusError(f"The reader {name!r} was named for '{where}'.", reason, "Leave --reader out.")
    if str(where) == SAMPLE:
        return RawSource(SAMPLE, CONLLU, {"test": SAMPLE_FILE}, (SAMPLE_NOTE,))
    if is_hub(where):
        title, rows, notes = open_dataset(str(where))
        return RawSource(title, kind or detect_reader(rows["train"]), rows, notes)
    folder = Path(where)
    if not folder.exists() and (close := suggest_closest(folder.name, BUILT_IN)) != ".":
        reason = f"Texts that come with trisect are {', '.join(BUILT_IN)}; others are a folder, a file or hf:NAME."
        raise CorpusError(f"There is no file or folder {folder}{close}", reason, "Use one of these, or check the path.")
    kind = kind or detect_reader(folder)
    shown = folder.resolve().name.encode(errors="replace").decode()  # a name that is no text cannot enter the tables
    return RawSource(shown, kind, kind.find(folder))


class Ids:
    """Ids of names, in order of first appearance."""

    def __init__(self, limit: int = 2**31 - 1) -> None:
        self._ids: dict[str, int] = {}
        self._limit = limit

    def __getitem__(self, name: str) -> int:
        number = self._ids.setdefault(name, len(self._ids))
        if number >= self._limit:
            reason = f"At most {self._limit:,} fit; {name!r} is one too many."
            raise CorpusError("There are too many different names in one column.", reason, "Use a coarser column.")
        return number

    @property
    def names(self) -> tuple[str, ...]:
        """All names, ordered by id."""
        return tuple(self._ids)


def read(where: str | Path | RawSource, name: str | None = None) -> Corpus:
    """Read a raw text in one pass, with memory bounded by the vocabulary; all types are kept until `Corpus.cut`."""
    source = where if isinstance(where, RawSource) else find_source(where, name)
    kind = source.kind
    types, classes = Ids(), {column: Ids(2**15 - 1) for column in kind.columns}
    for split in ("train", "valid"):
        if split not in source.parts:
            place = next(iter(source.parts.values()))
            assert isinstance(place, Path), "a dataset has both"
            if place == SAMPLE_FILE:
                reason = "It is some 300 sentences to be read, as its test split."
                raise CorpusError(f"'{SAMPLE}' has no {split} split.", reason, "Use 'embedded', or a folder of texts.")
            raise missing_split_error(place.parent, split, kind.files[split], f"name a reader other than '{kind.name}'")
    splits = {}
    for split, part in source.parts.items():
        tokens = GrowingArray(np.int32)
        labels = {column: GrowingArray(np.int16) for column in kind.columns}
        for paragraph in kind.paragraphs(part):
            tokens.append([types[word.lower()] for word in paragraph.words])
            for column in paragraph.labels.keys() - labels.keys():  # a feature that is met for the first time
                classes.setdefault(column, Ids(2**15 - 1))
                labels[column] = GrowingArray(np.int16)
            for column, ids in labels.items():
                classes_of_words = paragraph.labels.get(column) or [None] * len(paragraph.words)
                ids.append([-1] * (len(tokens) - len(classes_of_words) - len(ids)))
                ids.append([-1 if c is None else classes[column][c] for c in classes_of_words])
        splits[split] = Split(tokens.finish(), {column: ids.finish() for column, ids in labels.items()})
    ordered = [c for c in classes if c in kind.columns] + sorted(c for c in classes if c not in kind.columns)
    names = {column: classes[column].names for column in ordered if classes[column].names}
    splits = {
        s: Split(part.tokens, {c: part.labels.get(c, np.full(len(part.tokens), -1, np.int16)) for c in names})
        for s, part in splits.items()
    }
    empty = tuple(f"No word carries a '{c}': the column is left out." for c in classes if c not in names)
    notes = (*source.notes, *kind.notes, *kind.label_notes, *empty)
    return Corpus.make(source.name, types.names, names, splits, notes)


def open_corpus(where: str | Path, name: str | None = None) -> Corpus:
    """Open 'embedded', 'roles', a corpus folder, a raw folder, or hf:NAME[:CONFIG] (with reader `name`, or a fitting one), uncut."""
    check_name("a corpus", where)
    if not _is_tokens(where, name):
        return read(where, name)
    return generate(str(where)) if is_generated(where) else Corpus.load(Path(where))


def absolute_name(where: str | Path) -> str:
    """A text's name that works in any directory: folders as absolute paths, so that experiment.json can be moved."""
    if is_hub(where):
        name, config = parse_name(str(where))
        name = str(Path(name).resolve()) if Path(name).is_dir() else name
        return f"{PREFIX}{name}{f':{config}' if config else ''}"
    return str(where) if is_built_in(where) else str(Path(where).resolve())


def load_text(text: Text) -> Corpus:
    """The text of an experiment, cut to its settings; raises CorpusError if it names none."""
    if text.corpus is None:
        reason = "Its preset leaves the text to you."
        todo = "Name a corpus folder with --corpus, or 'embedded'."
        raise CorpusError("The experiment names no corpus.", reason, todo)
    return open_corpus(text.corpus).cut(text)


STOP = "."
MAX_WRITTEN_TEXTS = 3  # texts that a command is still written out with
LONGEST_SENTENCE = 128  # words, where a corpus folder has no sentence ends


def as_texts(texts: Iterable[TextOrPair]) -> Texts:
    """Texts, pairs and samples (model inputs and batches too); raises CorpusError for none or an empty one.

    The fingerprint of samples is of the files' bytes and of the numbers in memory.
    """
    samples = tuple(map(as_sample, texts))
    if not samples:
        raise CorpusError("No text was given.", "At least one is needed.", "Give a text, or a corpus.")
    if not any(isinstance(text, InputSample) for text in samples):
        for number, text in enumerate(samples, 1):
            if not (" ".join(text) if isinstance(text, tuple) else str(text)).strip():
                reason = "A text has at least one character that is not white space."
                raise CorpusError(f"Text {number} is {shorten(text)}.", reason, "Leave it out, or give its words.")
        short = (
            samples if len(samples) <= MAX_WRITTEN_TEXTS and all(isinstance(text, str) for text in samples) else ("…",)
        )
        options = tuple(str(word) for text in short for word in ("--text", text))
        again = len(samples) - len(set(samples))
        notes = (f"{again:,} of {len(samples):,} texts repeat an earlier one; each counts as often as it was given.",)
        mark = digest(repr(samples), 8)
        return Texts("texts given by hand", lambda: iter(samples), notes if again else (), mark, options)
    marks, words, kinds = hashlib.sha256(), list[str](), dict[str, None]()
    for sample in samples:
        if not isinstance(sample, InputSample):
            reason = "Texts are read by models of text, sound and images by others."
            raise CorpusError(f"{sample!r} was given beside samples.", reason, "Give texts, or samples.")
        for kind, file in (*(("audio", file) for file in sample.audio), *(("image", file) for file in sample.images)):
            kinds[kind] = None
            is_file = isinstance(file, (str, Path)) and Path(file).is_file()
            marks.update(digest_file(Path(str(file))).encode() if is_file else np.asarray(file).tobytes())
            words += [f"--{kind}", Path(str(file)).name] if is_file else []
        marks.update(repr(sample.text).encode())
        words += [] if sample.text is None else ["--text", sample.text]
        for name, value in (sample.inputs or {}).items():
            numbers = value.detach().float().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
            marks.update(name.encode() + np.ascontiguousarray(numbers).tobytes())
    options = tuple(words) if 0 < len(samples) <= MAX_WRITTEN_TEXTS and words else ("--text", "…")
    name = f"{' and '.join(kinds) or 'inputs'} given by hand"
    return Texts(name, lambda: iter(samples), (), marks.hexdigest()[:8], options)


def first_texts(texts: Texts, limit: int) -> Texts:
    """The first `limit` texts; raises CorpusError for a limit below 1."""
    if limit < 1:
        raise CorpusError(f"A limit of {limit} texts.", "At least one is needed.", "Give 1 or more, or leave it out.")
    count, articles = min(limit, sys.maxsize), texts.articles
    return replace(
        texts,
        texts=lambda: islice(texts.texts(), count),
        notes=(*texts.notes, f"Only the first {limit:,} texts are read."),
        options=(*texts.options, "--limit", str(limit)),
        articles=None if articles is None else lambda: islice(articles(), count),
    )


def open_texts(where: str | Path, split: str = "test", reader: str | None = None, published: bool = False) -> Texts:
    """The texts of one split: WikiText paragraphs, joined unless `published`, treebank sentences, lines of plain text, rows of a dataset.

    Words without paragraphs (a corpus folder, generated texts) are cut at full stops. Raises CorpusError where there is no such split.
    """
    if split not in SPLITS:
        raise CorpusError(unknown_name("split", split, SPLITS), f"Splits are {', '.join(SPLITS)}.", "Use one of them.")
    options = _options(where, split, reader)
    if _is_tokens(where, reader):
        corpus = open_corpus(where, reader)
        check_split(corpus.name, split, corpus.splits)
        notes, mark = ("A text is a run of words up to a full stop.",), f"{corpus.fingerprint}-{split}"
        runs = partial(_runs, corpus, split)
        return Texts(f"{corpus.name}, {split}", lambda: (" ".join(words) for words, _ in runs()), notes, mark, options)
    source, kind, part, joined = _open_part(where, split, reader, published)
    return Texts(
        f"{source.name}, {split}",
        lambda: (text for text, _ in kind.texts(part)),
        (*source.notes, kind.unit, *joined),
        _mark(part),
        options,
        lambda: (paragraph.article for _, paragraph in kind.texts(part)),
    )


def _open_part(
    where: str | Path, split: str, reader: str | None, published: bool = False
) -> tuple[RawSource, Reader, SplitText, tuple[str, ...]]:
    """A source, its reader, its split, and a note on joined words, counted in its first texts."""
    source = find_source(where, reader)
    check_split(source.name, split, source.parts)
    kind, part = PUBLISHED if published and source.kind is WIKITEXT else source.kind, source.parts[split]
    count = joined = 0
    for _, paragraph in islice(kind.texts(part), SAMPLE_TEXTS):
        count, joined = count + 1, joined + paragraph.joined
    those = f"the first {SAMPLE_TEXTS:,} texts" if count == SAMPLE_TEXTS else f"{count:,} texts"
    spacing = "spaces beside marks, quotes and brackets, and marks such as @-@"
    note = f"In {those} what WikiText sets apart was joined in {joined:,} places: {spacing}."
    if kind is CONLLU:
        note = f"Of {those} {joined:,} have no '# text' line: what is read is their tokens, joined."
    return source, kind, part, ((note,) if joined else ())


def _options(where: str | Path, split: str, reader: str | None) -> tuple[str, ...]:
    """Command-line words for a text; a folder by its name alone."""
    name = str(where) if is_hub(where) or is_built_in(where) else Path(where).resolve().name
    return ("--corpus", name, "--split", split, *(() if reader is None else ("--reader", reader)))


def _is_tokens(where: str | Path, reader: str | None) -> bool:
    """Whether a text is words without paragraphs: a generated one, or a corpus folder without a named reader."""
    return (is_generated(where) or (Path(where) / "corpus.json").is_file()) and reader is None


def _runs(corpus: Corpus, split: str) -> Iterator[tuple[list[str], slice]]:
    """Words up to a full stop, with their positions in the split."""
    tokens, start = corpus.splits[split].tokens, 0
    for end, token in enumerate(tokens, start=1):
        if corpus.vocabulary[token] == STOP or end - start == LONGEST_SENTENCE or end == len(tokens):
            yield [corpus.vocabulary[t] for t in tokens[start:end]], slice(start, end)
            start = end


def _mark(part: SplitText) -> str:
    """A hash of a file, or of a dataset's rows."""
    if isinstance(part, DatasetTexts):
        return digest("\n".join(part.texts()), 8)
    return digest_file(part, 8)


def check_split(name: str, split: str, splits: Iterable[str]) -> None:
    """Raise CorpusError if a text has no such split."""
    if split not in (available := tuple(splits)):
        other = f", or a corpus that has {split}" * (split == "train")
        todo = f"Choose one with --split, such as --split {available[-1]}{other}."
        raise CorpusError(f"{name} has no {split} split.", f"It has {', '.join(available)}.", todo)


WORD = re.compile(r"<unk>|\w+(?:['’-]\w+)*|[^\w\s]")
Labels = Mapping[str, tuple[str | None, ...]]


class Labelled(NamedTuple):
    """A text, the span of each word (first character, and the one after the last), and each column's labels.

    Words that are written as one (zum: zu dem) share its place, unless they make it up (don't: do n't). `heads` and `article` are
    those of a Paragraph.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    labels: Labels
    heads: tuple[int, ...] = ()
    article: int | None = None

    def leading_words(self) -> list[int]:
        """The first word, from 0, of each span; words with a common span share a model's positions."""
        return [i for i, span in enumerate(self.spans) if not i or span != self.spans[i - 1]]


@dataclass(frozen=True)
class LabelledTexts:
    """The labelled texts of one split; `texts()` restarts at the first. `options` are words of a command line."""

    name: str
    columns: tuple[str, ...]
    texts: Callable[[], Iterator[Labelled]]
    notes: tuple[str, ...]
    fingerprint: str
    options: tuple[str, ...]


def open_labels(where: str | Path, split: str, reader: str | None = None, bare: bool = False) -> LabelledTexts:
    """Sentences of a treebank, from its `# text` lines, or a corpus folder's words up to full stops.

    Raises CorpusError where there is no such split, or no labels; with `bare` a raw text is read too, WikiText joined.
    """
    options = _options(where, split, reader)
    if _is_tokens(where, reader):
        corpus = open_corpus(where, reader)
        check_split(corpus.name, split, corpus.splits)
        if not bare:
            _check_labels(corpus.name, corpus.labels)
        notes = (*corpus.notes, "A text is a run of words up to a full stop, joined by spaces.")
        name, mark = f"{corpus.name}, {split}", f"{corpus.fingerprint}-{split}"
        ids = corpus.splits[split].labels
        classes = {column: (*names, None) for column, names in corpus.labels.items()}  # -1 is the last, None
        runs = lambda: (  # noqa: E731
            _locate_words("", words, {c: tuple(names[n] for n in ids[c][run]) for c, names in classes.items()})
            for words, run in _runs(corpus, split)
        )
        return LabelledTexts(name, tuple(corpus.labels), runs, notes, mark, options)
    source, kind, part, joined = _open_part(where, split, reader)
    name = f"{source.name}, {split}"
    if bare and not kind.columns:
        bare_texts = lambda: (  # noqa: E731
            Labelled(text, tuple(word.span() for word in WORD.finditer(text)), {}, (), paragraph.article)
            for text, paragraph in kind.texts(part)
        )
        return LabelledTexts(name, (), bare_texts, (*source.notes, kind.unit, *joined), _mark(part), options)
    _check_labels(source.name, kind.columns)
    met: set[str] = set()
    count = words = rebuilt = shared = 0
    for text, paragraph in kind.texts(part):
        placed = _locate_words(text, paragraph.words, {}, paragraph.tokens)
        met |= {column for column, names in paragraph.labels.items() if any(names)}
        count, words = count + 1, words + len(placed.spans)
        rebuilt += placed.text != text
        shared += len(placed.spans) - len(placed.leading_words())
    notes = [*source.notes, *kind.label_notes, kind.unit, *joined]
    if rebuilt:
        which = f"In {rebuilt:,} of {count:,} sentences the '# text' line does not hold the words"
        notes.append(f"{which}: what is read is their tokens, joined.")
    if shared:
        which = f"{shared:,} of {words:,} words are written as one with the word before (as French 'du' is for 'de le')"
        notes.append(f"{which}: what is written carries the labels of its first word.")
    columns = tuple(sorted(met, key=lambda c: (kind.columns.index(c) if c in kind.columns else len(met), c)))

    def texts() -> Iterator[Labelled]:
        for text, paragraph in kind.texts(part):
            none = (None,) * len(paragraph.words)
            labels = {column: tuple(paragraph.labels.get(column) or none) for column in columns}
            yield _locate_words(text, paragraph.words, labels, paragraph.tokens)._replace(
                heads=paragraph.heads, article=paragraph.article
            )

    return LabelledTexts(name, columns, texts, tuple(notes), _mark(part), options)


def _check_labels(name: str, columns: Iterable[str]) -> None:
    if not tuple(columns):
        reason = "Erasing takes a label out, so that the words have to carry one."
        todo = "Give a treebank (CoNLL-U), or a corpus that 'trisect corpus annotate' wrote."
        raise CorpusError(f"The words of {name} carry no labels.", reason, todo)


def _locate_words(text: str, words: Sequence[str], labels: Labels, tokens: Sequence[Token] = ()) -> Labelled:
    """Locate words one after the other in a text by its tokens; in the joined tokens if they do not make up the text.

    Words of one token share its place, unless they make it up. Without tokens every word is one.
    """
    tokens = tokens or [Token(word) for word in words]
    spans = _word_spans(text, words, tokens)
    if len(spans) < len(words):
        text = join_tokens(tokens)
        spans = _word_spans(text, words, tokens)
    return Labelled(text, tuple(spans), labels)


def _word_spans(text: str, words: Sequence[str], tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """The spans of words up to the first missing token."""
    spans: list[tuple[int, int]] = []
    end = 0
    for token in tokens:
        as_one = _match_in_order(text, (token.form,), end)
        in_order = as_one if token.words == 1 else _match_in_order(text, words[len(spans) :][: token.words], end)
        if not as_one and not in_order:
            break
        chosen = in_order if in_order and (not as_one or in_order[-1][1] == as_one[0][1]) else as_one * token.words
        spans += chosen
        end = (chosen or as_one)[-1][1]
    return spans


def _match_in_order(text: str, forms: Sequence[str], end: int) -> list[tuple[int, int]]:
    """Spans of tokens in order, ignoring white space; empty if one is missing."""
    spans = []
    for form in forms:
        start = text.find(form, end)
        if start >= 0 and not text[end:start].strip():
            end = start + len(form)
        else:
            start = len(text) - len(text[end:].lstrip())
            end, spelled = start, _spelling(form)
            while end < len(text) and len(_spelling(text[start:end])) < len(spelled):
                end += 1
            if _spelling(text[start:end]) != spelled:
                return []
        spans.append((start, end))
    return spans


def _spelling(text: str) -> str:
    """A normal form that is equal for composed and decomposed é, and for all kinds of space."""
    return re.sub(r"\s", " ", unicodedata.normalize("NFD", text))


def describe(corpus: Corpus, columns: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The output of `trisect corpus show`, JSON-ready: a row for each split, and one for each split, column and class.

    `unknown` are tokens whose type train lacks, `rows` those of so many `columns`; the class None is of tokens without label.
    """
    columns = {"train": 20, "valid": 10, "test": 10} | dict(columns or {})
    seen = {name: counts(split.tokens, len(corpus.vocabulary)) for name, split in corpus.splits.items()}
    splits: list[dict[str, Any]] = []
    labels: list[dict[str, str | int | None]] = []
    for name, split in corpus.splits.items():
        n = len(split.tokens)
        unknown_words = int(seen[name][seen["train"] == 0].sum())
        row = {"split": name, "tokens": n, "types": int((seen[name] > 0).sum()), "unknown": unknown_words}
        splits.append(row | {"columns": columns[name], "rows": n // columns[name]})
        for column, classes in corpus.labels.items():
            train = counts(corpus.splits["train"].labels[column], len(classes))
            tally = counts(split.labels[column], len(classes))
            order = sorted(range(len(classes)), key=lambda i: (-train[i], classes[i]))
            rows = [(classes[i], int(tally[i])) for i in order] + [(None, n - int(tally.sum()))]
            labels += [{"split": name, "label": column, "class": c, "count": k} for c, k in rows]
    return {
        "name": corpus.name,
        "fingerprint": corpus.fingerprint,
        "types": len(corpus.vocabulary),
        "splits": splits,
        "labels": labels,
        "notes": list(corpus.notes),
    }


MARK = "="
SENTENCE_ENDS = frozenset(
    ".!?)'\""
)  # a paragraph ends so, or with a heading; after any other word a mark is part of a formula
MAX_TITLE_TOKENS = 25  # tokens of a title


def article_starts(tokens: Int[np.ndarray, " N"], vocabulary: Sequence[str]) -> Int[np.ndarray, " A"]:
    """The position of each article's first token; empty without headings.

    A heading of level n is a title between n marks and n marks. Two headings may follow one another, so that the marks
    between two titles are those that close the one and open the other.
    """
    marks = np.flatnonzero(np.asarray(tokens) == vocabulary.index(MARK)) if MARK in vocabulary else np.empty(0, int)
    runs = np.split(marks, np.flatnonzero(np.diff(marks) > 1) + 1) if len(marks) else []
    starts, opened, free = [], None, -1  # where a heading opened and at which level; the last token of a heading
    for run in runs:
        start, many = int(run[0]), len(run)
        if opened is not None:
            opening, level = opened
            if many >= level and start - opening - level <= MAX_TITLE_TOKENS:
                if level == 1:
                    starts.append(opening)
                start, many = start + level, many - level
                free, opened = start - 1, None
        # what precedes has to be able to be the end of a paragraph or of a heading
        if many and (start == 0 or free == start - 1 or vocabulary[int(tokens[start - 1])] in SENTENCE_ENDS):
            opened = (start, many)
    return np.array(starts, dtype=int)
