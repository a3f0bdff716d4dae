"""Strings from outside: an error in three parts, or what an independent reading of the same string gives."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import tiny

from trisect.cli import main
from trisect.core.errors import CorpusError, SiteError, TrisectError
from trisect.core.site import COMPONENTS, Site
from trisect.core.spec import to_json_data
from trisect.text.corpus import Corpus
from trisect.text.lines import XML_FORBIDDEN
from trisect.text.sources import open_corpus

many = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
few = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])

# --- sites

number = st.one_of(st.integers(0, 12), st.integers(0, 2_000)).map(str)
numbers = st.lists(
    st.one_of(number, st.tuples(number, number).map("-".join), st.sampled_from(["all", "", "1-", "٣", "1234567"])),
    min_size=1,
    max_size=3,
).map(",".join)
built = st.builds(
    lambda stack, pre, parts, layers, heads: f"{stack}{pre}{'+'.join(parts)}@{layers}{heads}",
    st.sampled_from(["", "", "enc.", "cross.", "mid."]),
    st.sampled_from(["", "", "pre."]),
    st.lists(st.sampled_from([*COMPONENTS, "q", "k", "v", "w", ""]), min_size=1, max_size=3),
    numbers,
    st.one_of(st.just(""), numbers.map(".h{}".format)),
)


@st.composite
def mutated(draw, texts, alphabet):
    """A text with a few characters put in, taken out or replaced."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 2))):
        at, cut, new = draw(st.integers(0, len(text))), draw(st.integers(0, 1)), draw(st.sampled_from(["", *alphabet]))
        text = text[:at] + new + text[at + cut :]
    return text


sites = st.one_of(
    built, mutated(built, "@.+-, hqx0\n\x00é"), st.text(max_size=12), st.text("qkv@+-,.h123all ", max_size=9)
)


def site_by_hand(text):
    """(components, layers, heads, stack, pre) or None, read without a regular expression for the whole."""
    left, at, right = text.strip().partition("@")
    layers, dot, heads = right.partition(".")
    first, stop, rest = left.partition(".")
    named = (
        first[:1].isascii()
        and first[:1].islower()
        and all(c.isascii() and (c.islower() or c.isdigit() or c == "_") for c in first)
    )
    taken = first in ("pre", "plain", "encoder", "decoder")
    stack, left = (first, rest) if stop and named and not taken else ("", left)
    pre, left = left.startswith("pre."), left.removeprefix("pre.")
    parts = left.split("+")
    if not at or any(p not in ("q", "k", "v", "o", "attn", "ffn") for p in parts) or (dot and heads[:1] != "h"):
        return None
    found = []
    for listed in (layers, heads[1:] if dot else "all"):
        several = set()
        for piece in listed.split(",") if listed != "all" else ():
            ends = piece.split("-")
            if len(ends) > 2 or any(not (e.isascii() and e.isdigit() and len(e) <= 6) for e in ends):
                return None
            low, high = int(ends[0]), int(ends[-1])
            if low < 1 or high < low:
                return None
            several |= set(range(low, high + 1))
        found.append(several if listed != "all" else None)
    if (found[1] is not None and {"attn", "ffn"} & set(parts)) or (pre and set(parts) - {"q", "k", "v"}):
        return None
    return set(parts), found[0], found[1], stack, pre


@many
@given(sites)
def test_a_site_is_an_error_or_what_it_says(text):
    expected = site_by_hand(text)
    if expected is None:
        with pytest.raises(SiteError, match=r"is not a site|names several sites") as caught:
            Site.parse(text)
        assert all(caught.value.args)
        return
    site = Site.parse(text)
    layers, heads = (None if n is None else set(n) for n in (site.layers, site.heads))
    assert (set(site.components), layers, heads, site.stack, site.pre) == expected
    assert Site.parse(str(site)) == site


LISTS = st.one_of(st.none(), st.lists(st.integers(1, 60), min_size=1, max_size=8).map(tuple))
COMPONENT_LISTS = st.lists(st.sampled_from(["q", "k", "v", "o"]), min_size=1, max_size=4).map(tuple)


@given(
    st.builds(Site, COMPONENT_LISTS, LISTS, LISTS, st.sampled_from(["", "enc", "dec", "cross"])),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_a_site_is_read_as_it_is_written_and_resolves_exactly_when_it_lies_inside(site, layers, heads):
    assert Site.parse(str(site)) == site
    inside = site.stack == "" and max(site.layers or (1,)) <= layers and max(site.heads or (1,)) <= heads
    try:
        resolved = site.resolve(layers, heads)
    except SiteError:
        assert not inside
    else:
        assert inside
        assert len(resolved.parts()) == len(resolved.components) * len(resolved.layers or ())


# --- treebanks

cell = st.one_of(
    st.sampled_from(["_", "NOUN", "VERB", "nsubj", "root", "Dog", "1", "Case=Gen|Number=Sing"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r"), max_size=6),
)
word = st.builds(
    lambda number, cells: "\t".join([number, *cells]),
    st.one_of(st.integers(0, 30).map(str), st.sampled_from(["1-2", "8.1", "", "x", "٣", "²", "1-", "-1"])),
    st.one_of(
        st.lists(cell.filter(bool), min_size=9, max_size=9),
        st.lists(cell, min_size=9, max_size=9),
        st.lists(cell, max_size=11),
    ),
)
good_word = st.builds(
    lambda number, cells: "\t".join([str(number), *cells]),
    st.integers(1, 30),
    st.lists(cell.filter(bool), min_size=9, max_size=9),
)
line = st.one_of(
    good_word, good_word, good_word, st.just(""), st.just("# text = x"), st.just("1-2\t" + "_\t" * 8 + "_")
)
end = st.sampled_from(["\n", "\n", "\r\n", "\r"])
treebank = st.one_of(
    st.lists(st.tuples(line, end).map("".join), max_size=8),
    st.lists(st.tuples(st.one_of(line, word, st.text(max_size=9)), end).map("".join), max_size=6),
).map("".join)


def as_bytes(texts):
    """UTF-8, at times with a byte-order mark, or no text at all."""
    encoded = texts.map(lambda text: text.encode(errors="surrogatepass"))
    return st.one_of(encoded, encoded, encoded, encoded.map(b"\xef\xbb\xbf".__add__), st.binary(max_size=40))


def split_lines(content):
    """Lines as line feeds end them, and a return before; None where a text has returns alone."""
    lines = content.decode("utf-8-sig").split("\n")
    return None if len(lines) == 1 and "\r" in lines[0] else lines


def words_by_hand(rows):
    """The cells of a sentence's words; None where ids, heads or features are none, or words are withheld."""
    words, end = [], 0
    for cells in rows:
        place = re.fullmatch(r"([0-9]{1,9})(([-.])([0-9]{1,9}))?", cells[0])
        if len(cells) != 10 or place is None or int(place[1]) != len(words) + (place[3] != "."):
            return None
        if place[3] == "-":
            if int(place[4]) <= int(place[1]) or end > len(words):
                return None
            end = int(place[4])
        elif place[3] is None:
            features = [] if cells[5] == "_" else [feature.split("=") for feature in cells[5].split("|")]
            bad_features = any(len(pair) != 2 or not all(pair) for pair in features) or set(cells[5]) & XML_FORBIDDEN
            head = cells[6] == "_" or (re.fullmatch(r"[0-9]{1,9}", cells[6]) and cells[6] != cells[0])
            if not all((cells[1], cells[3], cells[4], cells[5], cells[7])) or bad_features or not head:
                return None
            words.append(cells)
    withheld = len(words) > 1 and {cells[1] for cells in words} == {"_"}
    beyond = any(cells[6] != "_" and int(cells[6]) > len(words) for cells in words)
    return None if end > len(words) or withheld or beyond else words


def treebank_by_hand(content):
    """[(word, pos, tag, dep, morph)] or None."""
    try:
        lines = split_lines(content)
    except UnicodeDecodeError:
        return None
    found, rows = [], []
    for text in [] if lines is None else (*lines, ""):
        text = text.rstrip("\r\n")
        if text.strip():
            rows += [] if text[0] == "#" else [text.split("\t")]
            continue
        if (words := words_by_hand(rows)) is None:
            return None
        rows = []
        found += [(cells[1].lower(), *(None if cells[i] == "_" else cells[i] for i in (3, 4, 7, 5))) for cells in words]
    return None if lines is None else found


def read(train, valid, kind, suffix, folder):
    for split, content in (("train", train), ("valid", valid)):
        (folder / f"{split}.{suffix}").write_bytes(content)
    return open_corpus(folder, kind)


def agree(one, other, kind, suffix, by_hand, rows):
    """Reading two files gives what reading them by hand gives, or an error exactly where that does."""
    expected = {"train": by_hand(one), "valid": by_hand(other)}
    refused = any(part is None or len(part) < 2 for part in expected.values())
    with tempfile.TemporaryDirectory() as place:
        if refused:
            with pytest.raises(CorpusError) as caught:
                read(one, other, kind, suffix, Path(place))
            assert all(caught.value.args)
        else:
            corpus = read(one, other, kind, suffix, Path(place))
            assert {split: rows(corpus, split) for split in ("train", "valid")} == expected


def treebank_rows(corpus: Corpus, split):
    part = corpus.splits[split]
    columns = [
        [None if i < 0 else corpus.labels[c][i] for i in part.labels[c]]
        if c in part.labels
        else [None] * len(part.tokens)
        for c in ("pos", "tag", "dep", "morph")
    ]
    return list(zip((corpus.vocabulary[i] for i in part.tokens), *columns, strict=True))


@many
@given(as_bytes(treebank), as_bytes(treebank))
def test_a_treebank_is_an_error_or_what_it_says(train, valid):
    agree(train, valid, "conllu", "conllu", treebank_by_hand, treebank_rows)


# --- running text

piece = st.one_of(
    st.sampled_from(
        ["<unk>", " = Title = ", "@-@", "<br />", "<BR />", '"', "'", ".", ",", ";", ":", "?!", "()", " the Cat "]
    ),
    # Σ lower-cases by what surrounds it (ς ends a word): a whole line, as by hand here, may differ from word by word
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="Σ"), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r", "\x0b", "\x85", "\u2028", "\u3000", "\x00", "\ufeff"]),
)
wikitext = st.lists(piece, max_size=14).map("".join)


def wikitext_by_hand(content):
    """torchtext's basic_english, rule by rule; None where the bytes are no text."""
    try:
        lines = split_lines(content)
    except UnicodeDecodeError:
        return None
    found = []
    if lines is None:
        return None
    for text in lines:
        text = text.lower()
        for old, new in (
            ("'", " ' "),
            ('"', ""),
            (".", " . "),
            ("<br />", " "),
            (",", " , "),
            ("(", " ( "),
            (")", " ) "),
        ):
            text = text.replace(old, new)
        for old, new in (("!", " ! "), ("?", " ? "), (";", " "), (":", " ")):
            text = text.replace(old, new)
        found += text.split()
    return found


@many
@given(as_bytes(wikitext), as_bytes(wikitext))
def test_running_text_is_an_error_or_what_it_says(train, valid):
    def rows(corpus, split):
        return [corpus.vocabulary[i] for i in corpus.splits[split].tokens]

    agree(train, valid, "wikitext", "txt", wikitext_by_hand, rows)


# --- the same through the command line


def call(*words):
    """The command ends with 0, or with 2 and one message in three parts."""
    said = CliRunner().invoke(main, [str(w) for w in words])
    assert said.exit_code in (0, 2), said.exception
    assert isinstance(said.exception, SystemExit | None), said.exception
    if said.exit_code == 2:
        assert re.match(r"trisect: .*\n  .*\n  .*\n", said.stderr), said.stderr
    return said


@few
@given(as_bytes(treebank), as_bytes(treebank), as_bytes(wikitext), as_bytes(wikitext))
def test_the_command_line_never_shows_a_traceback_for_a_text(tree, other_tree, text, other_text):
    with tempfile.TemporaryDirectory() as place:
        for kind, suffix, train, valid in (
            ("conllu", "conllu", tree, other_tree),
            ("wikitext", "txt", text, other_text),
        ):
            try:
                corpus = read(train, valid, kind, suffix, Path(place))
            except TrisectError:
                assert call("corpus", "show", place, "--reader", kind).exit_code == 2
            else:
                said = call("corpus", "show", place, "--reader", kind, "--json")
                assert json.loads(said.stdout)["splits"][0]["tokens"] == len(corpus.splits["train"].tokens)


@few
@given(sites.filter(lambda text: not text.startswith("-")))
def test_the_command_line_never_shows_a_traceback_for_a_site(text):
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "tiny.json"
        file.write_text(json.dumps(to_json_data(tiny.EXPERIMENT)))
        try:
            fits = Site.parse(text).resolve(2, 2)
        except SiteError:
            assert call("plan", file, "--sites", text).exit_code == 2
        else:
            said = call("plan", file, "--sites", text, "--json")
            if said.exit_code == 0:
                assert json.loads(said.stdout)["experiment"]["freeze"]["sites"] == [str(fits)]
