"""All types that transformers builds small: each is read as it computes, or refused by name; none is wrong without a word.

A type counts when its default configuration, with every size set down, gives a small model that runs by itself. Every
eleventh type is tried here, and those that were once refused for a reason that was not theirs; all of them by
`bench/reliability/all_types.py`, whose counts docs/reliability.md gives.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest
from tests import counted, judged, shrunk

from trisect.hf.load import load

EVERY = 11
DOCS = Path(__file__).parents[2] / "docs"
SLOW = ("kimi_linear",)  # read, in 11 s of a processor
LEAST_READ = 38
# what is refused has no attention of queries and keys, or attention that is no softmax over them, or answers in two ways
TRUE = ("makes no softmax", "in two ways", "in pieces", "without a softmax")
# with the stacks that they are read by, and what each showed
READ = {
    "inkling2_text": "dec",  # sinks that a map makes; queries, keys and values by norms of their own
    "nemotron_asr_streaming_encoder": "plain",  # eager attention gives NaN where nothing is attended to
    "nemotron3_diarization_audio": "plain",  # eager attention does not run
    "paligemma": "plain",  # eager attention is another than that which it is loaded with
    "nystromformer": "plain",  # adds to what its weights mixed, in place
}


def test_every_type_is_read_or_refused_by_name_and_none_is_wrong():
    found: dict[str, dict[str, str]] = defaultdict(dict)
    with judged.quiet():
        for kind in shrunk.kinds(EVERY):
            if kind not in SLOW:
                how, said = judged.outcome(kind, tries=1)
                found[how][kind] = said
    counts = {how: len(of) for how, of in found.items()}
    print(counts)
    assert not found["wrong"], found["wrong"]
    assert not {k: said for k, said in found["refused"].items() if not any(words in said for words in TRUE)}
    assert counts["read"] >= LEAST_READ, counts
    attending = [k for k, said in found["refused"].items() if "makes no softmax" not in said]
    assert counts["read"] >= 0.95 * (counts["read"] + len(attending)), attending


@pytest.mark.parametrize("kind", READ)
def test_a_type_that_was_once_refused_is_read(kind: str):
    with judged.quiet():
        assert judged.outcome(kind, tries=1) == ("read", READ[kind])


def test_features_of_no_width_are_no_empty_input():
    with judged.quiet():
        model, inputs = shrunk.build_and_run("informer", tries=1)
        assert inputs["past_time_features"].shape[-1] == 0
        assert load(model, inputs=inputs).read(inputs).traces


def test_the_table_of_the_docs_is_that_of_the_run_over_all_types():
    with (DOCS / "types.csv").open(encoding="utf-8") as file:
        rows = [counted.Row(**row) for row in csv.DictReader(file)]
    text = (DOCS / "reliability.md").read_text(encoding="utf-8")
    assert "\n".join(counted.table(rows)) in text
    read, attending = counted.share(rows)
    assert f"Of the {attending} that ran and attend, {read} ({read / attending:.1%}) are read" in text.replace(
        "\u202f", ""
    )
    assert read >= 0.95 * attending
    assert not any(row.outcome == "wrong" for row in rows)
