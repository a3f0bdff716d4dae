"""No error echoes more than 200 characters of what was given, however long that is."""

import json

import pytest
from tests import tinyhf

import trisect
from trisect.core.errors import TrisectError
from trisect.text import birth_places, bitext, pairs
from trisect.text.sources import as_texts, open_labels, open_texts

LONG = "x" * 5_000
ROW = f"1\t{LONG}\t_\t_\t_\t_\t_\t_\t_\t_\n"


def put(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


CALLS = {
    "a column": lambda t: open_texts(put(t, "test.conllu", f"{LONG} {LONG}\n").parent),
    "an id": lambda t: open_texts(put(t, "test.conllu", LONG + ROW[1:]).parent),
    "features": lambda t: open_labels(put(t, "test.conllu", f"1\ta\t_\t_\t_\t{LONG}\t0\tx\t_\t_\n").parent, "test"),
    "a link": lambda t: bitext.read_links(put(t, "g", LONG), [(1, 1)]),
    "a number of a link": lambda t: bitext.read_links(put(t, "g", f"{'1' * 5_000}-1"), [(1, 1)]),
    "a base": lambda t: pairs.read_pairs(put(t, "p", json.dumps({"base": [LONG], "donor": "a"}))),
    "a field": lambda t: pairs.read_pairs(put(t, "p", json.dumps({"base": "a", "donor": "b", LONG: 1}))),
    "an answer": lambda t: pairs.read_pairs(put(t, "p", json.dumps({"base": "a", "donor": "b", "answers": {LONG: 1}}))),
    "an answer's text": lambda t: pairs.read_pairs(
        put(t, "p", json.dumps({"base": "a", "donor": "b", "answers": {"q": [LONG]}}))
    ),
    "no JSON": lambda t: pairs.read_pairs(put(t, "p", LONG)),
    "pairs": lambda t: pairs.as_pairs(LONG),
    "a question": lambda t: birth_places.name_in(LONG),
    "blank texts": lambda t: as_texts(["a", " " * 5_000]),
    "a text of a pair": lambda t: trisect.load(tinyhf.gpt2(), tinyhf.tokenizer(False), quiet=True).read((LONG, LONG)),
    "a split": lambda t: open_texts("embedded", LONG),
    "a reader": lambda t: open_texts(t, "test", LONG),
    "a name": lambda t: trisect.texts(LONG),
    "a dataset": lambda t: trisect.texts(f"hf:{LONG}:"),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_quote_what_was_given_by_its_beginning(name, tmp_path):
    with pytest.raises(TrisectError) as caught:
        CALLS[name](tmp_path)
    for sign in ("x", " ", "1"):
        assert sign * 201 not in str(caught.value)
    assert all((caught.value.problem, caught.value.reason, caught.value.todo))
