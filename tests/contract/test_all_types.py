"""All types that transformers builds small: each is read as it computes, or refused by name; none is wrong without a word.

A type counts when its default configuration, with every size set down, gives a small model that runs by itself. All of them
are tried by `make all-types`, whose rows are docs/types.csv; here every forty-eighth, whose outcome has to be that of
its row, and those that were once refused for a reason that was not theirs.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests import counted, judged, shrunk

from trisect.hf.load import load

EVERY = 48
DOCS = Path(__file__).parents[2] / "docs"
LEAST_READ = 8
# with the stacks that they are read by, and what each showed
READ = {
    "deepseek_v4": "plain",  # a map of groups of rows lies behind the mixed values
    "inkling2_text": "dec",  # sinks that a map makes; queries, keys and values by norms of their own
    "nemotron_asr_streaming_encoder": "plain",  # eager attention gives NaN where nothing is attended to
    "nemotron3_diarization_audio": "plain",  # eager attention does not run
    "paligemma": "plain",  # eager attention is another than that which it is loaded with
    "nystromformer": "plain",  # adds to what its weights mixed, in place
}


def rows() -> list[counted.Row]:
    with (DOCS / "types.csv").open(encoding="utf-8") as file:
        return [counted.Row(**row) for row in csv.DictReader(file)]


def test_what_is_built_has_the_outcome_of_its_row_and_none_is_wrong():
    known, found = {row.type: row.outcome for row in rows()}, {}
    with judged.quiet():
        for kind in shrunk.kinds(EVERY):
            how, said = judged.outcome(kind, tries=1)
            if how != "not built":  # in the first of the ways that the whole run tries
                found[kind] = how, said
    assert not {kind: (how, said) for kind, (how, said) in found.items() if how != known[kind]}
    assert sum(how == "read" for how, _ in found.values()) >= LEAST_READ


@pytest.mark.parametrize("kind", READ)
def test_a_type_that_was_once_refused_is_read(kind: str):
    with judged.quiet():
        assert judged.outcome(kind, tries=11) == ("read", READ[kind])


def test_features_of_no_width_are_no_empty_input():
    with judged.quiet():
        model, inputs = shrunk.build_and_run("informer", tries=1)
        assert inputs["past_time_features"].shape[-1] == 0
        assert load(model, inputs=inputs).read(inputs).traces


def test_the_table_of_the_docs_is_that_of_the_run_over_all_types():
    found = rows()
    text = (DOCS / "reliability.md").read_text(encoding="utf-8")
    assert "\n".join(counted.table(found)) in text
    read, attending = counted.share(found)
    assert f"Of the {attending} that ran and attend, {read} ({100 * read / attending:.1f} %) are read" in text.replace(
        "\u202f", ""
    )
    assert read >= 0.95 * attending
    assert not {row.type for row in found if row.outcome in ("wrong", "ended in an error")}
