"""Probing a run: which rows, on which tokens, fitted on held-out text; single heads around attacks; what is refused."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from tests import tiny
from tests.controlled import SEEDS, made

from trisect.core.errors import CorpusError, SpecError
from trisect.core.methods import Probe
from trisect.core.site import Site
from trisect.core.tables import frame
from trisect.experiments.study import figures, probing, removal, words
from trisect.experiments.study.probing import (
    Fold,
    SiteRow,
    _mean_over_folds,
    assign_folds,
    probe,
    random_maps,
    read_folds,
    read_places,
)
from trisect.experiments.study.removal import MAPS, OTHER_HEADS, SITE_HEADS
from trisect.experiments.study.rows import StudyRows
from trisect.lm.feed import evaluation_pieces
from trisect.lm.fleet import initial, layout, views
from trisect.lm.rewind import Curve
from trisect.report.format import by_site
from trisect.text.corpus import Corpus, Split
from trisect.text.sources import article_starts

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


def test_heads_and_blocks_are_sites_too():
    sites = [Site.parse(s) for s in ("k@2.h2", "o@1", "attn@2", "ffn@1", "q@1")]
    rows = probed(sites=sites)
    assert {r.site for r in rows} == {str(s) for s in sites}
    for row in probed(sites=sites[3:4]):
        (same,) = (r for r in rows if (r.site, r.measure) == (row.site, row.measure))
        # products of one site or of several round differently, in float32; a few of some 150 tokens may turn
        assert same.value == pytest.approx(row.value, abs=0.03)


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
    with pytest.raises(CorpusError, match="has no label column 'morph'"):
        probed(label="morph")


def test_a_fold_without_a_number_is_not_counted_as_zero():
    rows = [SiteRow("q@1", "probe_linear_bits", None, "valid", value, n) for value, n in ((0.5, 10), (1.0, 30))]
    assert _mean_over_folds(rows) == [rows[0]._replace(value=0.875, n=40)]
    with pytest.raises(CorpusError) as error:
        _mean_over_folds([*rows, rows[0]._replace(value=None)])
    assert error.value.problem == "probe_linear_bits at q@1 has no mean over folds."
    assert error.value.reason == "1 of 3 folds gave no number."


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


TRAINING = replace(tiny.TRAINING, columns=4, eval_columns=4)
MODEL = replace(tiny.MODEL, width=16)
SITE, MANY_TOKENS = Site.parse("q@1"), 2_000
WORDS = ("a", "b", "c", "d")


def overfitted(random=False):
    """A text of four words. In train a and b tell the next word's label, as if learnt by heart; in validation c and d do."""
    rng, splits = np.random.default_rng(1), {}
    for name, telling in (("train", (0, 1)), ("valid", (2, 3))):
        tokens = rng.integers(4, size=2_400).astype(np.int32)
        label = rng.integers(2, size=2_400)
        if not random:
            for value, word in enumerate(telling):
                label[1:][tokens[:-1] == word] = value
        splits[name] = Split(tokens, {"y": label.astype(np.int16)})
    return Corpus.make("overfitted", WORDS, {"y": ("n", "m")}, splits)


def weights(corpus):
    flat = initial(MODEL, len(corpus.vocabulary), 1).double()
    return {n: v[0] for n, v in views(flat[None], layout(MODEL, len(corpus.vocabulary))).items()}


def bits(corpus):
    found = probe(weights(corpus), MODEL, corpus, TRAINING, "y", ("linear",), (SITE,), 1, MANY_TOKENS)
    return {row.measure: row.value or 0.0 for row in found}["probe_linear_bits"]


def test_a_probe_of_an_over_fitted_text_finds_what_held_out_text_tells():
    assert bits(overfitted()) > 0.4  # half a bit: two words of four tell the label, others than in train


def test_an_eraser_of_an_over_fitted_text_takes_the_label_out_of_held_out_text():
    corpus, left = overfitted(), []
    final = weights(corpus)
    for fold in read_folds(corpus, TRAINING, "y", 1, MANY_TOKENS, torch.device("cpu")):
        changed = dict(final)
        moments = probing.fit(final, MODEL, fold.fit, SITE, "y", 2)
        assert moments.linear_share() > 0.3
        probing.apply(changed, SITE, moments.leace(), MODEL)
        left.append(probing.fit(changed, MODEL, fold.scored, SITE, "y", 2).linear_share())
    assert float(np.mean(left)) < 0.05


def test_nothing_is_found_of_labels_that_say_nothing():
    corpus = overfitted(random=True)
    fold = read_folds(corpus, TRAINING, "y", 1, MANY_TOKENS, torch.device("cpu"))[0]
    with_itself = probing.fit(weights(corpus), MODEL, fold.scored, SITE, "y", 2).linear_share()
    assert with_itself > 0.002  # fitted and scored on the same tokens
    assert bits(corpus) < 0.002


def test_an_erasure_measures_validation_and_shrinkage_changes_what_is_taken_out():
    corpus, rises = overfitted(), {}
    for shrinkage in (True, False):
        rows = probing.erase(weights(corpus), MODEL, corpus, TRAINING, SITE, "y", 1, 1, 60, shrinkage=shrinkage)
        assert {r.split for r in rows} == {"valid"}
        values = {r.measure: r.value for r in rows}
        assert values["erase_rank"] == 1
        rises[shrinkage] = values["erase_rise_nats"]
    assert rises[True] != rises[False]


TEXT = "= one = w w . = = past = = w w . = = end = = = two = w w w x = 3 w . = = = deep = = = w . = three x = w . = four = w"
VOCABULARY = tuple(dict.fromkeys(TEXT.split()))


def test_articles_begin_at_headings_of_the_first_level():
    tokens = np.array([VOCABULARY.index(w) for w in TEXT.split()])
    found = [TEXT.split()[i + 1] for i in article_starts(tokens, VOCABULARY)]
    # headings under a title, formulas and marks after a word that ends nothing begin no article
    assert found == ["one", "two", "three", "four"]
    assert not len(article_starts(tokens, ("w", "v")))


def articles_of(lengths):
    """A text of articles of so many words, each of which has a label."""
    text = [word for n in lengths for word in ("=", "title", "=", *["w", "v"] * ((n - 4) // 2), ".")]
    vocabulary = ("w", "v", "=", "title", ".")
    tokens = np.array([vocabulary.index(word) for word in text], np.int32)
    return Corpus.make(
        "marked",
        vocabulary,
        {"y": ("n", "m")},
        {s: Split(tokens, {"y": (tokens % 2).astype(np.int16)}) for s in ("train", "valid")},
    )


def positions(pieces):
    return {int(s): int(s) + p.inputs.shape[1] for p in pieces for s in p.starts}


def test_folds_are_whole_articles_and_no_row_is_in_two():
    corpus = articles_of([200] * 12)
    pieces = evaluation_pieces(corpus, TRAINING, "valid", ("y",), "cpu")
    folds = assign_folds(corpus, pieces, "y")
    begun = article_starts(corpus.splits["valid"].tokens, corpus.vocabulary)
    seen = [positions(fold.scored) for fold in folds]
    for fold, own in zip(folds, seen, strict=True):
        assert positions(fold.fit).keys() == set().union(*(other for other in seen if other is not own))
        assert set(fold.articles) == {int(np.searchsorted(begun, s, side="right")) for s in own}
    touched = [{int(a) for a in fold.articles} for fold in folds]
    assert not any(a & b for i, a in enumerate(touched) for b in touched[:i])
    every = positions(pieces)
    left_out = every.keys() - set().union(*seen)
    assert len(left_out) <= 2  # at most one row lies across each of two cuts


def test_a_text_without_headings_is_cut_into_stretches_of_equal_share():
    corpus = overfitted()
    folds = assign_folds(corpus, evaluation_pieces(corpus, TRAINING, "valid", ("y",), "cpu"), "y")
    sizes = [sum(p.targets.numel() for p in fold.scored) for fold in folds]
    assert max(sizes) - min(sizes) <= 4 * TRAINING.window
    ends = [positions(fold.scored) for fold in folds]
    assert all(max(a.values()) <= min(b) for a, b in itertools.pairwise(ends))


def dealt(lengths):
    corpus = articles_of(lengths)
    return assign_folds(corpus, evaluation_pieces(corpus, TRAINING, "valid", ("y",), "cpu"), "y")


def share(folds):
    sizes = [sum(int((p.labels["y"] >= 0).sum()) for p in fold.scored) for fold in folds]
    return max(sizes) / sum(sizes)


@pytest.mark.parametrize(
    ("lengths", "most"), [([1000, 200, 200, 200, 1000, 200], 0.45), ([1000, 200, 200, 800, 200], 0.5)]
)
def test_uneven_articles_are_dealt_as_evenly_as_they_can_be(lengths, most):
    folds = dealt(lengths)  # of the first, both cuts of equal shares are next to one article's beginning
    assert all(fold.by_article for fold in folds)
    assert share(folds) < most


# more than half of the text lies in one article, and what follows it is less than a tenth, as in 20,000 words of WikiText-2
UNEVEN = [160, 250, 90, 140, 1080, 150]


def test_articles_of_a_fold_may_lie_apart_where_neighbours_are_uneven():
    folds = dealt(UNEVEN)
    assert all(fold.by_article for fold in folds)
    touched = [set(fold.articles.tolist()) for fold in folds]
    assert {5} in touched  # the longest alone, and no article in two folds
    assert sorted(a for own in touched for a in own) == [1, 2, 3, 4, 5, 6]
    corpus = articles_of(UNEVEN)
    begun = [*article_starts(corpus.splits["valid"].tokens, corpus.vocabulary), sum(UNEVEN) + 1]
    for fold, own in zip(folds, touched, strict=True):  # not a token of any other article is scored
        for start, stop in positions(fold.scored).items():
            assert {int(np.searchsorted(begun, at, side="right")) for at in range(start, stop)} <= own
    assert share(folds) == pytest.approx(1080 / sum(UNEVEN), abs=0.03)


@pytest.mark.parametrize("length", [20, 60])
def test_short_articles_stay_together_where_the_longest_is_alone(length):
    short = [length] * (2_000 // length)
    folds = dealt([*short, 3_000, *short[: len(short) // 4]])
    assert all(fold.by_article for fold in folds)
    assert 0.5 < share(folds) < 0.6
    kept = sum(int((p.labels["y"] >= 0).sum()) for fold in folds for p in fold.scored)
    assert kept > 0.95 * (3_000 + 1.2 * 2_000)
    touched = [set(fold.articles.tolist()) for fold in folds]
    assert {len(short) + 1} in touched


@pytest.mark.parametrize("lengths", [[2000, 200, 200, 200], [1200, 1200], [1200, 1200, 80]])
def test_where_no_three_parts_of_whole_articles_are_even_rows_are_dealt_and_are_the_units(lengths):
    folds = dealt(lengths)
    assert not any(fold.by_article for fold in folds)
    assert share(folds) < 0.4
    units = np.concatenate([fold.articles for fold in folds])
    assert len(np.unique(units)) == len(units)


@pytest.mark.parametrize(
    ("lengths", "said"), [([200] * 12, "by whole articles)"), ([2000, 200, 200], "by rows of a window")]
)
def test_what_was_dealt_reaches_the_captions(lengths, said):
    corpus = articles_of(lengths)
    found = probe(weights(corpus), MODEL, corpus, TRAINING, "y", ("linear",), (SITE,), 1, MANY_TOKENS)
    found += probing.erase(weights(corpus), MODEL, corpus, TRAINING, SITE, "y", 1, 1, MANY_TOKENS)
    measured = pl.DataFrame(
        [row._asdict() | {"label": "y", "subject": "run", "seed": 1, "status": "finished"} for row in found]
    )
    rows = replace(StudyRows.of({}, {}), sites=measured)
    for kind in ("probe", "erase"):
        assert said in words.fit_words(rows, kind, "y")
    assert ("which are the units of intervals too" in words.fit_words(rows, "erase", "y")) == ("rows" in said)


def test_rows_of_one_article_count_once_in_an_interval():
    rng = np.random.default_rng(2)
    nats = np.stack([rng.normal(3, 1, 8), np.full(8, 2.0)])

    def width(times, articles):
        rows = np.repeat(nats, times, 1)
        curve = Curve(rows.mean(1), rows[:, 0], rows.shape[1], rows, np.ones(rows.shape[1], int))
        _, low, high, _ = probing._rises([curve], [Fold([], [], 1, articles, True)])
        return high[0] - low[0]

    alike = width(5, np.repeat(np.arange(8), 5))
    assert alike == pytest.approx(width(1, np.arange(8)))
    assert width(5, np.arange(40)) < alike / 2  # what taking rows for units would say


def test_rows_that_say_nothing_of_folds_are_of_probes_that_were_fitted_on_train():
    for kind in ("probe", "erase"):
        assert words.fit_words(StudyRows.of({}, {}), kind, "pos") == "fitted on the text that the model was trained on"


pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

BEFORE = {"q": 0.6, "k": 0.5, "v": 0.4, "maps": 0.45}
TAKEN = {"own": 0.30, "others": 0.12, "maps": 0.05}  # bits that an attack takes
NAMES = ("removed-pos-linear-heads", "removed-pos-linear-heads-lost")


def with_heads(study, maps=True, layer=1):
    """The study with two heads of each of q, k and v of a layer probed, and three random maps of its input."""
    tables, described = study
    runs = tables["runs"].filter(
        (pl.col("edit") == "none")
        | ((pl.col("edit") == "attack") & (pl.col("label") == "pos") & pl.col("site").str.ends_with(f"@{layer}"))
    )
    rows = []
    for run, site, seed in runs.select("run", "site", "seed").iter_rows():
        fixed = {"subject": run, "label": "pos", "split": "valid", "n": 100}
        attacked = set((site or "").partition("@")[0].split("+")) - {""}
        for c in "qkv":
            lost = 0.0 if not attacked else TAKEN["own" if c in attacked else "others"]
            for head, apart in ((1, -0.02), (2, 0.02)):
                value = BEFORE[c] - lost + apart + 0.001 * seed
                rows.append(fixed | {"site": f"{c}@{layer}.h{head}", "measure": "probe_linear_bits", "value": value})
        for draw, apart in enumerate((-0.1, 0.0, 0.1) if maps else ()):
            value = BEFORE["maps"] - (TAKEN["maps"] if attacked else 0.0) + apart + 0.001 * seed
            own = {"site": f"q+k+v@{layer}", "measure": "probe_linear_random_bits", "at": float(draw), "value": value}
            rows.append(fixed | own)
    sites = pl.concat([tables["sites"], frame("sites", rows)])
    return StudyRows.of({**tables, "sites": sites}, described)


@pytest.fixture(scope="module")
def study():
    return made({})


@pytest.fixture(scope="module")
def rows(study):
    return with_heads(study)


def means(points):
    return {site: mean.mean for site, mean in by_site(points).items()}


def test_heads_and_maps_are_means_of_a_layer(rows):
    subjects = rows.baselines
    assert means(removal.in_heads(rows, "pos", "linear", subjects)) == pytest.approx(
        {f"{c}@1": BEFORE[c] + 0.003 for c in "qkv"}
    )
    assert means(removal.in_maps(rows, "pos", "linear", subjects)) == pytest.approx({"q+k+v@1": BEFORE["maps"] + 0.003})


def test_what_an_attack_takes_is_paired_by_seed_and_kept_apart_by_whose_heads(rows):
    found = removal.information_loss_in_heads(rows, "pos")
    single = {"q@1", "k@1", "v@1"}
    assert single <= {p.site for p in found[SITE_HEADS]}
    for points, whose in zip(found.values(), ("own", "others", "maps"), strict=True):
        assert {p.seed for p in points} == set(SEEDS)
        taken = [p.value for p in points if p.site in single]
        assert taken == pytest.approx([TAKEN[whose]] * len(taken))
    assert "q+k+v@1" not in {p.site for p in found[OTHER_HEADS]}  # there are no others


def test_the_page_compares_heads_with_random_maps(rows):
    drawn = {one.name: one for one in figures.collect(rows)}
    assert [name for name in drawn if name in NAMES] == list(NAMES)
    before, after = (drawn[name] for name in NAMES)
    assert [panel.title for panel in before.panels] == ["Heads", "Random maps"]
    assert "show what any map of that width holds" in before.caption
    assert [panel.title for panel in after.panels][:3] == [SITE_HEADS, OTHER_HEADS, MAPS]
    assert (
        "Attacked there: bits lost by heads of the attacked site less those of other heads of the layer +0.18"
        in after.caption
    )
    assert "less those of random maps +0.25" in after.caption


def test_heads_without_random_maps_say_what_is_missing(study):
    before, after = removal.head_figures(with_heads(study, maps=False))
    assert [panel.title for panel in before.panels] == ["Heads"]
    assert "it is not known what any map of a head's width holds" in before.caption
    assert "those of random maps" not in after.caption


def test_no_heads_no_figures(study):
    assert list(removal.head_figures(StudyRows.of(*study))) == []


def test_one_head_that_is_attacked_is_compared_with_every_other(study):
    rows = with_heads(study)
    site = pl.when(pl.col("site") == "q@1").then(pl.lit("q@1.h2")).otherwise("site").alias("site")
    headed = replace(rows, runs=rows.runs.with_columns(site))._separate_heads()
    assert headed.heads is not None
    for kept in (headed, headed.heads):  # heads are probed, and so are random maps, wherever was edited
        assert means(removal.in_heads(kept, "pos", "linear", kept.baselines)).keys() == {"q@1", "k@1", "v@1"}
        assert removal.in_maps(kept, "pos", "linear", kept.baselines)
    found = removal.information_loss_in_heads(headed.heads, "pos")
    assert means(found[SITE_HEADS]) == pytest.approx({"q@1.h2": TAKEN["own"]})
    # four heads of k and v, and one of q that its attack, made at all of q in these rows, took as much from
    assert means(found[OTHER_HEADS]) == pytest.approx({"q@1.h2": (4 * TAKEN["others"] + TAKEN["own"]) / 5})
    assert means(found[MAPS]) == pytest.approx({"q@1.h2": TAKEN["maps"]})


def test_what_reads_no_layer_has_no_heads_to_lose(study):
    rows = with_heads(study)
    site = pl.when(pl.col("site") == "q@1").then(pl.lit("o@1")).otherwise("site").alias("site")
    found = removal.information_loss_in_heads(replace(rows, runs=rows.runs.with_columns(site)), "pos")
    assert "o@1" not in {p.site for points in found.values() for p in points}


def test_heads_of_attacks_that_collapsed_are_not_compared(study):
    tables, described = study
    lost = tables["runs"].filter((pl.col("edit") == "attack") & (pl.col("site") == "q@1"))["run"].to_list()
    raised = pl.when(pl.col("run").is_in(lost) & (pl.col("name") == "loss_nats")).then(99.0).otherwise("value")
    moved = {**tables, "metrics": tables["metrics"].with_columns(raised.alias("value"))}
    rows = with_heads((moved, described))
    assert set(lost) <= rows.collapses
    _, one = removal.head_figures(rows)
    assert "runs collapsed" in one.caption
    kept = [p for p in removal.information_loss_in_heads(rows, "pos")[SITE_HEADS] if p.site == "q@1"]
    assert kept  # drawn all the same
    assert not rows.readable(kept)
