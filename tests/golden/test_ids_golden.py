"""Run ids that must not change: a change here makes every finished study start anew, and needs a new schema number."""

from tests import tiny

from trisect.core.files import canonical, digest
from trisect.experiments.study.presets import PRESETS, find_experiments

IDS = {  # of the first and the last run, and a hash of all
    "quick": ("baseline-s1-221c2388", "attack-site-pos-v@5-s3-58b956ea", "1046cd8611742aadd28ae8666d5b6189"),
    "wikitext2-small": ("baseline-s1-f950cc2d", "attack-site-pos-v@5-s5-8591de2e", "e094020fad53a1bb399cc6474c731468"),
    "paper": ("baseline-s1-62eeb126", "attack-dep-v@5-s5-bc15d3a7", "5d1022c7cf2bca0efd127f8d2767780d"),
    "all-layers": ("baseline-s1-221c2388", "tie-q+k+v@1-5-s5-2b58607f", "68448c492717205f174e31e3c50ef1c4"),
    "roles": ("baseline-s1-4e5753f3", "attack-control-question.c-q@2-s5-23a107f0", "80f2d4a4d81746810de6aaa06447c9fc"),
    "tiny": ("baseline-s1-314aef36", "attack-pos-q+v@1-2-s2-16c987cb", "0d3ce4390c9b3bf5898faa111e7340ff"),
}


def test_ids_of_the_presets_and_of_the_tiny_study():
    found = {}
    for design in (*PRESETS, find_experiments("roles")[0], tiny.EXPERIMENT):
        ids = [run.id for run in design.runs("0123456789abcdef")]
        found[design.name] = (ids[0], ids[-1], digest(canonical(ids)))
    assert found == IDS
