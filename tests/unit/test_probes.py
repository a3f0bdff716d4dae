"""Probing a run: which rows it gives, on which tokens, and what it refuses."""

import numpy as np
import pytest
import torch
from tests import tiny

from trisect.core.errors import CorpusError, SpecError
from trisect.core.methods import Probe
from trisect.core.site import Site
from trisect.core.tables import frame
from trisect.experiments.study import probing
from trisect.experiments.study.probing import SiteRow, _mean_over_folds, probe, random_maps, read_folds, read_places
from trisect.lm.fleet import initial, layout, views
from trisect.text.corpus import Corpus, Split

CORPUS = tiny.corpus()
FLAT = initial(tiny.MODEL, len(CORPUS.vocabulary), 1)
FINAL = {n: v[0] for n, v in views(FLAT[None], layout(tiny.MODEL, len(CORPUS.vocabulary))).items()}
SITES = tuple(Site.parse(s) for s in ("q@1", "q+v@1-2", "k@2"))
TOKENS = 300


def probed(corpus=CORPUS, kinds=("linear",), label="pos", sites=SITES, seed=1, maps=0):
    return probe(FINAL, tiny.MODEL, corpus, tiny.TRAINING, label, kinds, sites, seed, TOKENS, maps=maps)


def relabelled(keep):
    """The corpus with the part-of-speech labels of all validation tokens but the first few taken away."""
    valid = CORPUS.splits["valid"]
    pos = np.where(np.arange(len(valid.tokens)) < keep, valid.labels["pos"], -1).astype(np.int16)
    splits = {**CORPUS.splits, "valid": Split(valid.tokens, {**valid.labels, "pos": pos})}
    return Corpus.make("cut", CORPUS.vocabulary, CORPUS.labels, splits)


def test_a_run_has_a_row_for_every_site_and_measure_on_the_same_tokens():
    rows = probed(kinds=("linear", "mlp"))
    names = {
        f"probe_{kind}_{m}" for kind in ("linear", "mlp") for m in ("accuracy", "bits", "selectivity", "control_bits")
    }
    assert {r.measure for r in rows} == names | {"probe_majority", "probe_articles"}
    assert len(rows) == len(SITES) * 10
    assert {r.site for r in rows} == {str(s) for s in SITES}
    assert len({r.n for r in rows if r.measure != "probe_articles"}) == 1
    assert {(r.split, r.at) for r in rows} == {("valid", None)}
    assert all(r.value is not None and (r.measure.endswith(("bits", "articles")) or abs(r.value) <= 1) for r in rows)
    table = frame("sites", [{"subject": "run", "label": "pos", **r._asdict()} for r in rows])
    assert table.height == len(rows)


def test_heads_and_blocks_are_sites_too():
    sites = [Site.parse(s) for s in ("k@2.h2", "o@1", "attn@2", "ffn@1", "q@1")]
    rows = probed(sites=sites)
    assert {r.site for r in rows} == {str(s) for s in sites}
    for row in probed(sites=sites[3:4]):
        (same,) = (r for r in rows if (r.site, r.measure) == (row.site, row.measure))
        # products of one site or of several round differently, in float32; a few of some 150 tokens may turn
        assert same.value == pytest.approx(row.value, abs=0.03)


def test_the_same_run_gives_the_same_rows_and_another_seed_others():
    kinds, sites = ("mlp",), SITES[:1]
    assert probed(kinds=kinds, sites=sites) == probed(kinds=kinds, sites=sites)
    assert probed(kinds=kinds, sites=sites) != probed(kinds=kinds, sites=sites, seed=2)


def test_tokens_without_a_label_are_left_out():
    (row,) = (r for r in probed(relabelled(60), sites=SITES[:1]) if r.measure == "probe_linear_bits")
    assert 3 * 5 <= row.n < 60


def test_the_budget_counts_tokens_and_the_rows_read_are_drawn_from_all_of_validation():
    def read(seed):
        folds = read_folds(CORPUS, tiny.TRAINING, "pos", seed, TOKENS, torch.device("cpu"))
        return torch.cat([piece.targets for fold in folds for piece in fold.scored])

    assert len(read(1)) <= TOKENS + tiny.TRAINING.window
    assert len(read(1)) >= TOKENS - 3 * tiny.TRAINING.window  # rows that lie across two folds are left out
    assert not np.array_equal(read(1), read(2))


def test_selectivity_is_left_out_where_there_are_no_control_labels(monkeypatch):
    def none(corpus, column, seed):
        raise CorpusError("none", "none", "none")

    monkeypatch.setattr(probing, "control_labels", none)
    assert {r.measure for r in probed()} == {
        "probe_linear_accuracy",
        "probe_linear_bits",
        "probe_majority",
        "probe_articles",
    }


def test_a_column_with_too_few_labels_is_refused():
    with pytest.raises(CorpusError) as caught:
        probed(relabelled(9))
    assert caught.value.problem == "The label column 'pos' of 'cut' cannot be probed."
    assert caught.value.reason.endswith("carry a label: too few for 3 folds of 5 or more.")
    assert caught.value.todo == "Use another column, or a longer text."
    with pytest.raises(CorpusError, match="has no label column 'morph'"):
        probed(label="morph")


def test_a_fold_without_a_number_is_not_counted_as_zero():
    rows = [SiteRow("q@1", "probe_linear_bits", None, "valid", value, n) for value, n in ((0.5, 10), (1.0, 30))]
    assert _mean_over_folds(rows) == [rows[0]._replace(value=0.875, n=40)]
    with pytest.raises(CorpusError) as error:
        _mean_over_folds([*rows, rows[0]._replace(value=None)])
    assert error.value.problem == "probe_linear_bits at q@1 has no mean over folds."
    assert error.value.reason == "1 of 3 folds gave no number."
    assert error.value.todo == "Use a longer text, or another label."


def heads(*names: str) -> tuple[Site, ...]:
    return tuple(Site.parse(name) for name in names)


def test_a_random_map_reads_what_a_head_with_its_weights_reads():
    each = tiny.MODEL.width // tiny.MODEL.heads
    cpu = torch.device("cpu")
    drawn = random_maps(tiny.MODEL, 2, 2, 1, cpu)
    weights = {n: v.clone() for n, v in FINAL.items()}
    rows = slice(tiny.MODEL.width, tiny.MODEL.width + each)  # the first head of k
    weights["layers.2.in.weight"][rows] = drawn[1].weight
    weights["layers.2.in.bias"][rows] = 3.0
    (fold, *_) = read_folds(CORPUS, tiny.TRAINING, "pos", 1, TOKENS, cpu)
    x, y, _ = read_places(weights, tiny.MODEL, fold.scored, "pos", [*heads("k@2.h1"), *drawn])
    assert x.shape == (3, len(y), each)
    head, other, same = x
    assert torch.allclose(head - 3.0, same, atol=1e-5)
    assert not torch.allclose(other, same, atol=0.1)


def test_random_maps_are_of_the_layers_whose_heads_are_probed_and_a_seed_has_its_own():
    sites = heads("q@1", "o@2.h1", "v@1.h2")
    rows = probed(sites=sites, maps=3)
    random = [r for r in rows if "_random_" in r.measure]
    assert {r.site for r in random} == {"q+k+v@1"}
    assert len([r for r in random if r.measure.endswith("random_bits")]) == 3
    rest = [r for r in rows if "_random_" not in r.measure]
    assert [(r.site, r.measure) for r in rest] == [(r.site, r.measure) for r in probed(sites=sites)]
    cpu = torch.device("cpu")
    (one,), (again,), (other,) = (random_maps(tiny.MODEL, 1, 1, seed, cpu) for seed in (1, 1, 2))
    assert torch.equal(one.weight, again.weight)
    assert not torch.equal(one.weight, other.weight)
    assert one.weight.shape == (4, 8)


def test_random_maps_without_a_head_to_compare_are_refused():
    for sites in (None, heads("q@1", "k@2"), heads("o@1.h1")):
        with pytest.raises(SpecError, match=r"random_maps is 2, and no head of q, k or v is probed\."):
            Probe(sites, random_maps=2)
    with pytest.raises(SpecError):
        Probe(heads("q@1.h1"), random_maps=-1)
    assert Probe(heads("q@1.h1"), random_maps=2).random_maps == 2
