"""Run ids that must not change: a change here makes every finished study start anew, and needs a new schema number."""

from tests import tiny

from trisect.experiments.study.presets import PRESETS

FIRST = {
    "quick": "baseline-s1-221c2388",
    "wikitext2-small": "baseline-s1-f950cc2d",
    "paper": "baseline-s1-62eeb126",
    "all-layers": "baseline-s1-221c2388",
    "tiny": "baseline-s1-314aef36",
}
LAST = {
    "quick": "attack-site-pos-v@5-s3-58b956ea",
    "wikitext2-small": "attack-site-pos-v@5-s5-8591de2e",
    "paper": "attack-dep-v@5-s5-bc15d3a7",
    "all-layers": "tie-q+k+v@1-5-s5-2b58607f",
    "tiny": "attack-pos-q+v@1-2-s2-16c987cb",
}


def test_ids_of_the_presets_and_of_the_tiny_study():
    found = {e.name: next(iter(e.runs("0123456789abcdef"))).id for e in (*PRESETS, tiny.EXPERIMENT)}
    last = {e.name: list(e.runs("0123456789abcdef"))[-1].id for e in (*PRESETS, tiny.EXPERIMENT)}
    assert found == FIRST
    assert last == LAST
