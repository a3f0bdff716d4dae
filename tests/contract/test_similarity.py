"""Similarity as a whole: what it writes of a model and its texts, which heads are paired, what is left out, and errors."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests import tinyhf
from tests.property.test_own_model_laws import own as own_model
from tests.raw import read_json
from tests.traces import random_projections, random_trace

import trisect
from trisect.claims.models import HeadsAgainstNull, ResampledHeads, judge_heads
from trisect.core.claim import Statistic
from trisect.core.errors import CorpusError, ModelError, SpecError
from trisect.core.subject import Batch, Heads, RowScores, Shape, Subject, Texts
from trisect.core.tables import read_table
from trisect.core.trace import Address, Origin, Projections, Reading, Side
from trisect.experiments.similarity import SIMILARITY, page
from trisect.experiments.similarity.run import (
    AFFINE,
    ELSEWHERE,
    SCORES,
    SHARED_NOTE,
    Nulls,
    compare_with_nulls,
    measure_weights,
    overlap_evidence,
)
from trisect.lab.driver import read_about
from trisect.lab.subject import load
from trisect.measure import similarity
from trisect.papers import matrices
from trisect.report import format as words

DRAWS = 20_000


@dataclass
class Made:
    """A subject made of random heads: `groups` key/value heads, texts of as many tokens as they have characters."""

    layers: tuple[Address, ...] = (Address("plain", 1), Address("plain", 2))
    heads: int = 4
    groups: int = 4
    bias: bool = True
    name: str = "made"
    fingerprint: str = "0123"
    objective: str = "output"
    options: tuple[str, ...] = ("MODEL",)
    notes: tuple[str, ...] = ()
    changes: dict = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        return Shape({address: Heads(self.heads, self.groups) for address in self.layers})

    def projections(self) -> tuple[Projections, ...]:
        options = {"heads": self.heads, "groups": self.groups, "width": 12, "bias": self.bias}
        made = [random_projections(i, address=a, **options) for i, a in enumerate(self.layers)]
        return tuple(replace(p, **self.changes) for p in made)

    def batches(self, texts, size=8, scored=False):
        texts = list(texts)
        for start in range(0, len(texts), size):
            some = texts[start : start + size]
            longest = max(map(len, some))
            real = torch.tensor([[i < len(text) for i in range(longest)] for text in some])
            side = Side(tuple(tuple(text.ljust(longest)) for text in some), real, ~real)
            yield Batch({}, side, None, tuple((start + i, 0) for i in range(len(some))), ("A note of the batch.",))

    def trace(self, batch) -> Reading:
        real = batch.source.real
        traces = []
        for i, address in enumerate(self.layers):
            keys = real.shape[1] + 1 if address.stack == "cross" else None
            sizes = {"texts": len(real), "queries": real.shape[1], "heads": self.heads, "groups": self.groups}
            one = random_trace(i, keys=keys, address=address, **sizes)
            key_real = one.key_real if keys else real
            traces.append(replace(one, query_real=real, key_real=key_real))
        return Reading(self.name, tuple(traces), batch.source, None, batch.rows)

    def each(self, batch, see) -> None:
        for trace in self.trace(batch).traces:
            see(trace)

    def score(self, batch, write=None, hold=None, clean=None) -> RowScores:
        raise NotImplementedError


def texts_of(*texts, name="some texts"):
    return Texts(name, lambda: iter(texts), ("A note of the texts.",))


def run(subject, out, texts=None, **options):
    return trisect.similarity(subject, texts, draws=DRAWS, out=out, quiet=True, **options)


def value(measures, **where):
    found = measures
    for column, wanted in where.items():
        found = found.filter(pl.col(column).is_null() if wanted is None else pl.col(column) == wanted)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with texts, some of them of one token."""
    out = tmp_path_factory.mktemp("whole")
    return run(Made(), out, texts_of("abcdef", "abc", "a", "abcde" * 3))


def test_a_run_with_texts_writes_tables_figures_and_a_page_of_the_tables_alone(whole):
    assert isinstance(Made(), Subject)
    assert read_table(whole.folder / "tables", "measures").equals(whole.tables["measures"])
    assert read_table(whole.folder / "tables", "claims").equals(whole.tables["claims"])
    assert whole.report == whole.folder / "report.html"
    assert (whole.folder / "figures" / "overlap.svg").exists()
    assert (whole.folder / "similarity.json").exists()
    assert whole.notes == ("A note of the texts.", "A note of the batch.")
    sheet = sheet_of(whole)
    mean = value(whole.tables["measures"], measure="overlap", component="q-k", group=None)["value"].mean()
    assert f"overlap by {100 * mean:.1f} %, random matrices by 25." in sheet.answer.replace("\u00a0", " ")
    short = sheet.sections[0].figures[0]
    assert [panel.title for panel in short.panels] == ["Overlap of the matrices", "Of random matrices"]
    assert f"q-k {mean:.3f}" in short.panels[0].alt
    overlaps = [found.words for found in whole.findings if found.measure == "overlap"]
    assert all("0 heads above them and 0 below, after Holm" in text for text in overlaps)
    captions = [figure.caption for section in sheet.sections for figure in section.figures]
    assert len(captions) == 11


def test_every_head_has_every_measure_with_its_null_and_scores_are_of_texts_with_two_tokens(whole):
    for measure, components in (
        ("overlap", ("q-k", "k-v", "q-v")),
        ("least_angle_degrees", ("q-k", "k-v", "q-v")),
        ("cka", ("q-k", "k-v", "q-v")),
        ("cosine", ("q-k", "k-v", "q-v")),
        ("symmetric_share", ("q-k",)),
        ("effective_rank", ("q", "k", "v", "q-k", "v-o")),
    ):
        for component in components:
            for suffix in ("", "_z", "_p", "_p_holm"):
                rows = value(whole.tables["measures"], measure=measure + suffix, component=component, group=None)
                assert rows["head"].sort().to_list() == [1, 1, 2, 2, 3, 3, 4, 4], (measure, component, suffix)
                assert rows["value"].is_not_null().all()
            null = value(whole.tables["measures"], measure=f"{measure}_null", component=component, group=None)
            assert null["layer"].sort().to_list() == [1, 2]
            assert (null["low"] < null["value"]).all()
            assert (null["value"] < null["high"]).all()
            assert (null["n"] >= DRAWS).all()
    p: Any = Made().projections()[1]
    found = similarity.angles(similarity.span(p.w_q), similarity.span(p.w_k))
    rows = value(whole.tables["measures"], measure="overlap", component="q-k", layer=2, group=None).sort("head")
    assert np.allclose(rows["value"].to_numpy(), found.overlap.numpy())
    left, right = similarity.append_bias(p.w_q, p.b_q), similarity.append_bias(p.w_k, p.b_k)
    biased = similarity.angles(similarity.span(left), similarity.span(right))
    rows = value(whole.tables["measures"], measure="overlap", component="q-k", layer=2, group=AFFINE).sort("head")
    assert np.allclose(rows["value"].to_numpy(), biased.overlap.numpy())
    for measure in SCORES:
        rows = value(whole.tables["measures"], measure=measure)
        assert len(rows) == 8
        assert rows["n"].to_list() == [3] * 8
        assert (rows["low"] <= rows["value"]).all()
        assert (rows["value"] <= rows["high"]).all()
    assert value(whole.tables["measures"], measure="score_unequal_share")["value"].to_list() == [1.0] * 8
    cka = value(whole.tables["measures"], measure="cka", group="corpus")
    assert cka["n"].to_list() == [25] * 24
    assert cka["value"].is_between(0, 1).all()


def sheet_of(made):
    return page.page(made.tables, read_about(SIMILARITY, made.folder))


def test_without_texts_only_weights_speak_and_a_head_of_zeros_has_no_numbers(tmp_path, pageless):
    made = run(Made(bias=False), tmp_path / "bare")
    assert made.tables["measures"]["group"].null_count() == len(made.tables["measures"])
    reasons = dict(value(made.tables["claims"], part=None).select("claim", "reason").iter_rows())
    assert reasons["D-3"] == "8 heads; below 30, resampling decides nothing"
    sections = sheet_of(made).sections
    assert "Whether a token scores highest with itself was not measured: that needs texts." in sections[2].words
    assert [len(section.figures) for section in sections] == [2, 0, 1, 2, 2, 0]
    first: Any = Made().projections()[0]
    zero = first.w_v.clone()
    zero[2] = 0
    made = run(Made(layers=(Address("plain", 1),), changes={"w_v": zero}), tmp_path / "zero")
    rows = value(made.tables["measures"], measure="overlap", component="k-v", group=None).sort("head")
    assert rows["value"].is_null().to_list() == [False, False, True, False]
    tested = value(made.tables["measures"], measure="overlap_p", component="k-v", group=None)
    assert tested["head"].sort().to_list() == [1, 2, 4]


def test_grouped_queries_are_paired_with_their_own_keys(tmp_path, pageless):
    subject = Made(groups=2)
    made = run(subject, tmp_path, texts_of("abcdef", "abcd"))
    p: Any = subject.projections()[0]
    rows = value(made.tables["measures"], measure="overlap", component="q-k", layer=1, group=None).sort("head")
    for head, found in enumerate(rows["value"]):
        one = similarity.angles(similarity.span(p.w_q[[head]]), similarity.span(p.w_k[[head // 2]]))
        assert abs(found - float(one.overlap[0])) < 1e-12
    pairs = value(made.tables["measures"], measure="overlap", component="k-v", layer=1, group=None)
    assert pairs["head"].to_list() == [1, 2]
    for component, heads in (("q-k", 4), ("v-o", 4), ("q", 4), ("v", 2)):
        assert len(value(made.tables["measures"], measure="effective_rank", component=component, layer=1)) == heads
    for component, heads in (("q-k", 4), ("k-v", 2), ("q-v", 4)):
        cka = value(made.tables["measures"], measure="cka", group="corpus", component=component, layer=1)["value"]
        assert cka.n_unique() == heads


def test_in_cross_attention_pairs_with_queries_stand_apart_and_change_no_verdict_and_no_other_number(
    tmp_path, pageless
):
    both = (Address("dec", 1), Address("cross", 1))
    made = run(Made(layers=both), tmp_path, texts_of("abcdef", "abcd"))
    for measure in ("overlap", "cosine", "cka", "symmetric_share", "least_angle_degrees"):
        cross = value(made.tables["measures"], measure=measure, stack="cross", group=None)
        assert set(cross["component"]) <= {"k-v"}
        apart = value(made.tables["measures"], measure=measure, group=ELSEWHERE)
        assert set(apart["stack"]) == {"cross"}
        assert set(apart["component"]) == ({"q-k"} if measure == "symmetric_share" else {"q-k", "q-v"})
        assert set(value(made.tables["measures"], measure=measure, stack="dec")["component"]) >= {"q-k"}
    assert len(value(made.tables["measures"], measure="effective_rank", stack="cross", component="q-k")) == 4
    assert not len(value(made.tables["measures"], measure="self_first_share", stack="cross"))
    sheet = sheet_of(made)
    titles = [panel.title for panel in sheet.sections[0].figures[1].panels]
    assert titles == ["decoder, q–k", "cross-attention, k–v", "decoder, k–v", "decoder, q–v"]
    section = next(s for s in sheet.sections if s.title == "What if queries come from elsewhere?")
    assert [panel.title for panel in section.figures[0].panels] == ["cross-attention, q–k", "cross-attention, q–v"]
    table = {row[0]: row[1:] for row in section.tables[0].rows}
    mean = value(made.tables["measures"], measure="overlap", component="q-k", group=ELSEWHERE)["value"].mean()
    assert table["overlap of what is read: q–k"][2] == words.number(float(mean))  # type: ignore[arg-type]
    assert table["overlap of what is read: q–k"][0] == "–"
    # the cross-attention's keys and values enter Holm's family and the claim; pairs with its queries are a family apart
    raw = value(made.tables["measures"], measure="overlap_p", group=None)
    smallest = min(raw["value"].to_list())
    assert len(raw) == 3 * 4 + 4
    firsts = value(made.tables["measures"], measure="overlap_p_holm", group=None)["value"].to_list()
    assert min(firsts) == pytest.approx(min(1.0, 16 * smallest))
    apart = value(made.tables["measures"], measure="overlap_p", group=ELSEWHERE)["value"].to_list()
    adjusted = value(made.tables["measures"], measure="overlap_p_holm", group=ELSEWHERE)["value"].to_list()
    assert len(apart) == 8
    assert min(adjusted) == pytest.approx(min(1.0, 8 * min(apart)))
    parts = made.tables["claims"].filter(claim="D-1", decides=True).filter(pl.col("part").is_not_null())
    own = [value(made.tables["measures"], measure="overlap", component=c, group=None) for c in ("q-k", "k-v", "q-v")]
    assert sorted(parts["n"].to_list()) == sorted(map(len, own))


def test_what_is_no_plain_map_is_left_out_by_name_and_a_model_of_nothing_else_refused(tmp_path, pageless):
    origins = {"q": Origin("normed", "normed per head")}
    layers = tuple(Address("plain", n) for n in range(1, 7))
    made = run(Made(layers, changes={"w_q": None, "b_q": None, "origins": origins}), tmp_path)
    assert made.notes == (
        "What needs it is left out at layer 1, layer 2, layer 3 and 3 more: q is not a plain map of its input but normed "
        "(normed per head).",
    )
    assert set(value(made.tables["measures"], measure="overlap")["component"]) == {"k-v"}
    nothing = dict.fromkeys(("w_q", "w_k", "w_v", "w_o"))
    with pytest.raises(ModelError) as caught:
        run(Made(changes=nothing | {"origins": {}}), tmp_path / "none")
    assert caught.value.problem == "made has no head whose matrices can be compared."
    assert "k is not a plain map of its input." in caught.value.reason
    assert caught.value.todo == "Choose another model."


def test_heads_as_wide_as_the_model_cannot_be_told_apart_and_tied_heads_refute_that_they_differ(tmp_path, pageless):
    p = random_projections(0, heads=2, inner=6, width=6, bias=False)
    weights = {name: getattr(p, name) for name in ("w_q", "w_k", "w_v", "w_o")}
    made = run(Made(layers=(Address("plain", 1),), bias=False, changes=weights), tmp_path / "wide")
    assert set(value(made.tables["measures"], measure="overlap")["value"].round(9)) == {1.0}
    assert value(made.tables["claims"], claim="D-1", part=None)["reason"].to_list() == [
        "heads are as wide as the model, so that random ones overlap as much"
    ]
    p = random_projections(0, heads=4, width=12, bias=False)
    made = run(Made(bias=False, changes={"w_q": p.w_q, "w_k": p.w_q}), tmp_path / "tied")
    found = value(made.tables["claims"], claim="D-1")
    assert found["verdict"][0] == "refuted"
    assert found["effect"][1] == pytest.approx(1 - 3 / 12, abs=0.01)


def test_another_seed_draws_other_matrices(tmp_path, whole, pageless):
    other = run(Made(), tmp_path, seed=1)
    drawn, before = (
        value(r.tables["measures"], measure="overlap_null", component="q-k", group=None) for r in (other, whole)
    )
    assert drawn["value"].to_list() != before["value"].to_list()
    # five standard errors of a mean of draws with a spread below 0.2
    assert np.allclose(drawn["value"], before["value"], atol=5 * 2**0.5 * 0.2 / DRAWS**0.5)


@pytest.mark.parametrize(("alike", "draws", "seed"), [(0, 5, 0), (1, 1, 1), (1, 5, 0), (66, 1, 0)])
def test_with_many_heads_either_verdict_is_within_reach_whatever_the_draws(alike, draws, seed):
    """In 192 dimensions random heads of 8 overlap by a twenty-fourth, give or take 0.007: seven times less than the margin."""
    plain: Any = random_projections(5, heads=66, inner=8, width=192, bias=False)
    found = measure_weights([replace(plain, w_k=torch.cat([plain.w_q[:alike], plain.w_k[alike:]]))])
    table = judge_heads(matrices.SOURCE, overlap_evidence(found, Nulls.of(draws * DRAWS, seed, found)), {})
    row = value(table, claim="D-1", part=None).row(0, named=True)
    assert row["verdict"] == ("refuted" if alike else "supported")
    assert row["p_holm"] < 0.02  # not by the least p-value that there is


def test_draws_are_for_the_correction_that_a_verdict_goes_through():
    """However many parts and claims a source has, one head beyond every draw is refuted after all corrections, and just so."""
    parts = len(matrices.CLAIMS[0].deciding())
    names = [part.effect.name for part in matrices.CLAIMS[0].deciding() if isinstance(part.effect, Statistic)]
    for heads in (6, 12, 66, 96, 144, 384, 1000):
        p_against = np.ones(heads)
        p_against[0] = 1 / (1 + Nulls(0, 0, heads).count())
        zeros = np.zeros(heads)
        evidence: dict[str, Any] = {
            name: HeadsAgainstNull(zeros, np.ones(heads), p_against, lambda head, alpha: (0.0, 0.0)) for name in names
        }
        evidence["symmetric_share"] = ResampledHeads(0.95, 0.95 + np.linspace(-0.1, 0.1, 2001), heads)
        row = value(judge_heads(matrices.SOURCE, evidence, {}), claim="D-1", part=None).row(0, named=True)
        assert row["verdict"] == "refuted"
        assert row["p_holm"] == pytest.approx(2 * heads * parts * len(matrices.CLAIMS) * p_against[0])


def shared_by(layers: int, names: str, **options: Any) -> Made:
    """A subject whose layers have the matrices of the first for these names, and their own for the others."""
    subject = Made(layers=tuple(Address("plain", n) for n in range(1, layers + 1)), **options)
    first, *rest = subject.projections()
    same = {f"{kind}_{name}": getattr(first, f"{kind}_{name}") for kind in "wb" for name in names}
    subject.projections = lambda: (first, *(replace(p, **same) for p in rest))
    return subject


def test_matrices_that_all_layers_share_count_once_on_texts_too(tmp_path, pageless):
    texts = texts_of("abcdef", "abc", "abcde" * 3)
    shared, alone = run(shared_by(6, "qkvo"), tmp_path / "a", texts), run(shared_by(1, "qkvo"), tmp_path / "b", texts)
    of_weights = pl.col("group").is_null() | (pl.col("group") == AFFINE)
    on_texts = (pl.col("measure").is_in(SCORES)) | (pl.col("group") == "corpus")
    one, other = (made.tables["measures"].filter(of_weights & ~on_texts) for made in (shared, alone))
    assert one.equals(other)
    assert set(shared.tables["measures"].filter(on_texts)["layer"]) == set(range(1, 7))  # each reads other vectors
    assert {"Layers 1–6 share one set of weights.", SHARED_NOTE} <= set(shared.notes)
    assert not [note for note in alone.notes if "share" in note or note == SHARED_NOTE]
    first = [made.tables["claims"].filter(claim="D-1").drop("runs") for made in (shared, alone)]
    assert first[0].equals(first[1])
    (whole,) = value(shared.tables["claims"], claim="D-3", part=None)["n"].to_list()
    assert whole == 3  # texts; of heads there are four
    (row,) = shared.tables["claims"].filter(pl.col("sentence").str.starts_with("share of queries")).to_dicts()
    every = value(shared.tables["measures"], measure="self_first_share")["value"]
    assert row["effect"] == pytest.approx(every.mean())
    texts = texts_of(*("abcdef"[: 2 + n % 5] for n in range(40)))
    for names, heads in (("qk", 4), ("k", 40)):
        made = run(shared_by(10, names), tmp_path / names, texts)
        (row,) = made.tables["claims"].filter(pl.col("sentence").str.starts_with("share of queries")).to_dicts()
        assert row["n"] == heads


def test_keys_values_or_one_matrix_that_are_shared_count_once_beside_what_is_not(tmp_path, pageless):
    made = run(shared_by(4, "kv"), tmp_path / "kv")
    overlap, rank = (value(made.tables["measures"], measure=name, group=None) for name in ("overlap", "effective_rank"))
    for table, pair, layers in (
        (overlap, "k-v", 1), (overlap, "q-k", 4), (overlap, "q-v", 4),
        (rank, "k", 1), (rank, "v", 1), (rank, "q", 4), (rank, "q-k", 4), (rank, "v-o", 4),
    ):  # fmt: skip
        assert len(value(table, component=pair)) == 4 * layers, pair
    parts = made.tables["claims"].filter(claim="D-1", decides=True).filter(pl.col("part").is_not_null())
    assert dict(zip(("q-k", "k-v", "q-v"), parts["n"], strict=True)) == {"q-k": 16, "k-v": 4, "q-v": 16}
    assert {"Layers 1–4 share one k and v.", SHARED_NOTE} <= set(made.notes)
    p = random_projections(0, heads=4, width=12, bias=False)
    made = run(Made(bias=False, layers=(Address("plain", 1),), changes={"w_q": p.w_q, "w_k": p.w_q}), tmp_path / "one")
    assert "Layer 1: q and k are one matrix." in made.notes
    raw, adjusted = (value(made.tables["measures"], measure=f"overlap_{name}") for name in ("p", "p_holm"))
    assert len(raw) == 12  # of each pair, counted as the eight that there are: q and k with themselves, and with v
    assert min(adjusted["value"].to_list()) == pytest.approx(8 * min(raw["value"].to_list()))
    for table in (raw, adjusted):
        one, other = (value(table, component=pair).sort("head")["value"] for pair in ("k-v", "q-v"))
        assert one.to_list() == other.to_list()
    subject = shared_by(2, "qkvo")
    first, second = subject.projections()
    subject.projections = lambda: (first, replace(second, b_q=None if second.b_q is None else second.b_q + 1))
    overlap = value(run(subject, tmp_path / "bias").tables["measures"], measure="overlap")
    assert len(value(overlap, component="q-k", group=None)) == 4
    assert len(value(overlap, component="q-k", group=AFFINE)) == 8
    assert len(value(overlap, component="k-v", group=AFFINE)) == 4


def test_beside_the_other_heads_of_a_layer_shared_directions_are_no_likeness_of_one_head():
    """All heads read one half of the input: far above Gaussian matrices, and no nearer to each other than to other heads'."""
    plain: Any = random_projections(1, heads=12, inner=2, width=24)
    half: Any = [w * (torch.arange(24) < 12)[:, None] for w in (plain.w_q, plain.w_k, plain.w_v)]
    shared = replace(plain, w_q=half[0], w_k=half[1], w_v=half[2])
    found = {(m.component, m.measure): m.values for m in measure_weights([shared]) if m.group is None}
    own, among = found["q-v", "overlap"], found["q-v", "overlap_among"]
    every = similarity.overlaps(similarity.span(half[0]), similarity.span(half[2])).numpy()
    np.testing.assert_allclose(np.diag(every), own, atol=1e-12)
    want = [v - np.mean([*np.delete(every[i], i), *np.delete(every[:, i], i)]) for i, v in enumerate(own)]
    np.testing.assert_allclose(among, want, atol=1e-12)
    assert own.mean() > 0.14  # of 2 in 12 dimensions, where 2 in 24 would give 0.083
    assert abs(among.mean()) < 0.05
    tied = replace(shared, w_v=half[0])
    found = {(m.component, m.measure): m.values for m in measure_weights([tied]) if m.group is None}
    assert (found["q-v", "overlap_others_above"] == 0).all()
    assert (found["q-v", "overlap_among"] > 0.5).all()


def test_heads_that_share_a_key_are_not_others():
    grouped: Any = random_projections(2, heads=4, inner=2, width=12)
    shared: Any = replace(grouped, w_k=grouped.w_k[:2], w_v=grouped.w_v[:2], b_k=None, b_v=None)
    found = {(m.component, m.measure): m.values for m in measure_weights([shared]) if m.group is None}
    every = similarity.overlaps(
        similarity.span(shared.w_q), similarity.span(shared.w_k.repeat_interleave(2, 0))
    ).numpy()
    first = every[0, 0] - np.mean([every[0, 2], every[0, 3], every[2, 0], every[3, 0]])
    assert found["q-k", "overlap_among"][0] == pytest.approx(first)
    first: Any = {f"w_{name}": getattr(grouped, f"w_{name}")[:1] for name in "qkvo"} | dict.fromkeys(
        ("b_q", "b_k", "b_v")
    )
    lone = replace(grouped, **first)
    assert not [m for m in measure_weights([lone]) if m.measure.startswith("overlap_among")]


def test_in_every_measure_one_of_144_heads_can_survive():
    """A value beyond every draw of its null has the least p that there is; Holm must leave it below 0.05."""
    options: dict[str, Any] = {"heads": 12, "inner": 2, "width": 6}
    layers = [random_projections(n, address=Address("plain", n), **options) for n in range(1, 13)]
    found, least = measure_weights(layers), dict[str, float]()
    firsts = {m.measure: i for i, m in reversed(list(enumerate(found))) if m.keys[0] is not None}
    for i in firsts.values():
        found[i] = found[i]._replace(values=np.append(1e6, found[i].values[1:]))
    rows: list[Any] = compare_with_nulls(found, Nulls.of(DRAWS, 0, found), lambda *_: None)
    for row in rows:
        if row["measure"].endswith("_p_holm"):
            least[row["measure"]] = min(row["value"], least.get(row["measure"], 1.0))
    assert set(least) == {f"{name}_p_holm" for name in firsts}
    assert len(least) == 6
    assert max(least.values()) < 0.05, least


def test_too_few_draws_and_no_texts_are_refused_with_their_reason(tmp_path):
    with pytest.raises(SpecError, match="With fewer than 20,000 no head could"):
        trisect.similarity(Made(), draws=200, out=tmp_path, quiet=True)
    with pytest.raises(CorpusError, match="The texts 'some texts' are none"):
        run(Made(), tmp_path, texts_of())


@pytest.mark.parametrize(
    ("kind", "stacks", "keys"),
    [
        ("own", {"plain"}, 4),
        ("llama", {"plain"}, 2),
        ("bert", {"plain"}, 4),
        ("bart", {"enc", "dec", "cross"}, 4),
    ],
)
def test_every_maker_of_subjects_goes_through_the_same_measures_and_batches_leave_no_trace(
    tmp_path, pageless, kind, stacks, keys
):
    """Padding in single precision moves q and k by 1e-6 of themselves; shares of order one may move by ten times that."""
    subject = own_model() if kind == "own" else load(getattr(tinyhf, kind)(), tokenizer=tinyhf.tokenizer())
    texts = texts_of("w1 w2 w3 w4 .", "w5 w6 w1", "w2", "w3 , w7 w1 w1 w2 w8 .")
    table = run(subject, tmp_path / "4", texts, batch=4).tables["measures"]
    overlap = value(table, measure="overlap", component="k-v", group=None)
    assert set(overlap["stack"]) == stacks
    assert overlap["head"].max() == keys
    assert value(table, measure="cka", component="k-v", group="corpus")["head"].max() == keys
    first = value(table, measure="self_first_share")
    assert set(first["stack"]) == stacks - {"cross"}
    assert first["head"].max() == 4
    assert first["value"].is_between(0, 1).all()
    assert value(table, measure="symmetric_share")["value"].is_between(0, 1).all()
    if kind in ("own", "bert", "bart"):
        alone = run(subject, tmp_path / "1", texts, batch=1).tables["measures"]
        assert alone.select(pl.exclude("value", "low", "high")).equals(table.select(pl.exclude("value", "low", "high")))
        for column in ("value", "low", "high"):
            before, after = (rows[column].cast(pl.Float64).fill_null(-9).to_numpy() for rows in (alone, table))
            np.testing.assert_allclose(before, after, rtol=0, atol=1e-5)


def test_a_layer_that_is_not_in_a_models_shape_since_it_failed_its_proof_is_left_out(tmp_path, pageless):
    made = Made()
    made.projections = lambda: (*Made().projections(), random_projections(3, heads=4, address=Address("plain", 3)))
    assert set(run(made, tmp_path / "made").tables["measures"]["layer"]) == {1, 2}


def test_the_verdict_and_the_page_name_texts_and_model(tmp_path, pageless):
    texts = replace(texts_of("abcdef", "abc"), fingerprint="feed", options=("--texts", "a b.txt"))
    made = run(Made(options=("MODEL", "--window", "64")), tmp_path, texts, seed=3)
    about = read_json(tmp_path / "similarity.json", "")
    assert about["corpus_fingerprint"] == "feed"
    command = "trisect similarity MODEL --window 64 --texts 'a b.txt' --seed 3"
    assert about["command"] == command
    wanted = {"subject": "made", "fingerprint": "0123", "corpus": "some texts", "corpus_fingerprint": "feed"}
    for runs in made.tables["claims"]["runs"]:
        assert json.loads(runs) == wanted | {"texts": 2, "seed": 3, "draws": DRAWS}
