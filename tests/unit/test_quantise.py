"""Rounding to bits and cuts of rank: known values, what changes nothing, and a plan that stays within its memory."""

import itertools

import numpy as np
import polars as pl
import pytest
import torch
from click.testing import CliRunner
from tests import tiny, tinyhf

import trisect
from trisect.cli import main
from trisect.core.errors import SpecError
from trisect.core.subject import Texts
from trisect.experiments.quantise import page as quantise_page
from trisect.experiments.quantise.page import findings
from trisect.experiments.quantise.run import even_bits, plan_bits
from trisect.lab.units import page as units_page
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel
from trisect.measure.intervention import cut_to_rank, round_to_bits
from trisect.report.sheet import Sheet

WORDS = tiny.corpus().vocabulary
FLAT = initial(tiny.MODEL, len(WORDS), 1).double()
FLAT += 0.4 * torch.randn(FLAT.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
OWN = OwnModel("own", tiny.MODEL, dict(views(FLAT[None], layout(tiny.MODEL, len(WORDS)))), WORDS, 12)
LINES = [" ".join(WORDS[5 + i : 9 + 2 * i]) for i in range(8)]


def numbers(rows):
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def test_a_hand_made_tensor_has_the_known_levels():
    x = numbers([[0.0, 1.0, 2.0, 9.0], [4.0, 1.0, 8.0, 3.0], [1.0, 1.0, 6.5, 5.0]])
    by_token = numbers([[0.0, 0.0, 0.0, 9.0], [1.0, 1.0, 8.0, 1.0], [1.0, 1.0, 6.5, 6.5]])
    by_channel = numbers([[0.0, 1.0, 2.0, 9.0], [4.0, 1.0, 8.0, 3.0], [0.0, 1.0, 8.0, 3.0]])
    assert torch.equal(round_to_bits(x, 1, "token"), by_token)
    assert torch.equal(round_to_bits(x, 1, "channel"), by_channel)
    assert torch.equal(round_to_bits(x, 2, "token")[0, 0, 0], torch.tensor([0.0, 0.0, 3.0, 9.0], dtype=torch.float64))
    assert torch.equal(round_to_bits(numbers([[3.0, 3.0]]), 1, "token"), numbers([[3.0, 3.0]]))


@pytest.mark.parametrize("by", ["channel", "token"])
@pytest.mark.parametrize(("bits", "seed"), [(1, 0), (2, 1), (3, 2), (5, 3), (8, 4), (16, 5)])
def test_a_number_moves_by_half_a_step_at_most_and_padding_stays(bits, by, seed):
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    real = torch.tensor([[True] * 5, [True, True, False, False, True]])
    x = torch.where(real[:, None, :, None], x, torch.inf)
    rounded = round_to_bits(x, bits, by, real)
    kept = real[:, None, :, None].expand_as(x)
    assert torch.equal(rounded[~kept], x[~kept])
    span = 0 * x
    for row in range(2):
        there = x[row][:, real[row]]
        axis = 1 if by == "channel" else 2
        span[row][:, real[row]] = (there.amax(axis, keepdim=True) - there.amin(axis, keepdim=True)).expand_as(there)
    error = (rounded - x)[kept].abs()
    assert (error <= span[kept] / (2**bits - 1) / 2 + 1e-12).all()
    assert bits > 1 or error.max() > 1e-3
    levels = rounded[0, 0, :, 0] if by == "channel" else rounded[0, 0, 0]
    assert len(levels.unique()) <= 2**bits


@pytest.mark.parametrize(("rank", "seed"), [(1, 0), (2, 1), (3, 2), (4, 3), (6, 4)])
def test_a_cut_is_the_nearest_matrix_of_its_rank_and_the_width_changes_nothing(rank, seed):
    x = torch.randn(2, 2, 7, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    real = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
    cut = cut_to_rank(x, rank, real)
    u, s, v = torch.linalg.svd(x[1, 0, :5], full_matrices=False)
    torch.testing.assert_close(cut[1, 0, :5], (u[:, :rank] * s[:rank]) @ v[:rank], rtol=0, atol=1e-10)
    assert torch.equal(cut[1, 0, 5:], x[1, 0, 5:])
    assert (cut - x).abs().max() < 1e-12 if rank >= 4 else (cut - x).abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_is_the_best_that_fits_and_never_needs_more_memory(seed):
    draw = np.random.default_rng(seed)
    memory = draw.uniform(2, 8)
    sizes = draw.choice([4, 6, 8], draw.integers(1, 5)).tolist()
    costs = [dict[int, float](zip((2, 3, 5, 8), draw.random(4).tolist(), strict=True)) for _ in sizes]
    plan = plan_bits(costs, sizes, memory)
    room = memory * sum(sizes)
    fits = [
        one for one in itertools.product((2, 3, 5, 8), repeat=len(sizes)) if sum(np.multiply(one, sizes)) <= room + 1e-9
    ]
    assert sum(np.multiply(plan, sizes)) <= room
    total = [sum(cost[bits] for cost, bits in zip(costs, one, strict=True)) for one in (plan, *fits)]
    assert total[0] == pytest.approx(min(total[1:]))


@pytest.mark.parametrize("memory", [2.0, 2.5, 3.3, 6.0, 7.9])
@pytest.mark.parametrize("sizes", [[4] * 6, [8, 4, 4, 8], [4, 6, 8]])
def test_even_bits_are_next_to_the_memory_and_spend_it_but_for_less_than_a_bit_of_one_place(sizes, memory):
    bits = even_bits(sizes, memory)
    assert {int(memory), int(np.ceil(memory))} >= set(bits)
    assert 0 <= memory * sum(sizes) - sum(np.multiply(bits, sizes)) + 1e-9 < max(sizes)


def test_a_plan_is_held_to_a_tolerance_and_few_texts_are_said_to_raise_the_least_bits(done, tmp_path):
    texts = Texts("made", lambda: iter(LINES), options=("--corpus", "made"))
    plan = done.tables["measures"].filter(measure="plan_change_nats")
    for factor, verdict in ((1.01, "passed"), (0.99, "failed")):
        limit = factor * plan["high"].item()
        again = trisect.quantise(
            OWN, texts, bits=(1, 2, 16), rank=(1,), memory=3, tolerance=limit, out=tmp_path / verdict, quiet=True
        )
        check = again.findings[0]
        assert (check.measure, check.verdict) == ("check", verdict)
        assert check.words in again.report.read_text()
        assert (again.tables["measures"].filter(measure="tolerance").select("value", "group").row(0)) == (
            limit,
            "checked",
        )
    assert all(one.measure != "check" for one in done.findings)
    with pytest.raises(SpecError, match="A tolerance of 1 was given, and there is no plan to hold to it"):
        trisect.quantise(OWN, LINES[3:4], tolerance=1.0, out=tmp_path / "one", quiet=True)
    rows = done.tables["measures"]
    wide = rows.with_columns(pl.when(pl.col("measure") == "loss_change_nats").then(1.0).otherwise("high").alias("high"))
    for table, count in ((wide, 4), (rows.with_columns(high="value"), 0)):
        (least,) = (one for one in findings({"measures": table}, done.about) if one.measure == "least_bits")
        assert (
            f"In {count} of 4 cases (k or v of a layer) the mean alone would allow fewer bits" in least.words
        ) == bool(count)


def test_a_plan_without_a_finite_cost_or_without_an_interval_fails_its_tolerance(done, tmp_path):
    rows = done.tables["measures"]
    held = pl.col("measure") == "tolerance"
    rows = rows.with_columns(
        value=pl.when(held).then(9.0).otherwise("value"), group=pl.when(held).then(pl.lit("checked")).otherwise("group")
    )
    for name, words in (("plan", "it has no finite number"), ("uniform", "it costs")):
        lost = pl.col("measure").is_in([f"{name}_change_nats", "plan_less_uniform_change_nats"])
        table = rows.with_columns(pl.when(lost).then(None).otherwise(n).alias(n) for n in ("value", "low", "high"))
        check = findings({"measures": table}, done.about)[0]
        assert (check.measure, check.verdict) == ("check", "failed" if name == "plan" else "passed")
        assert words in check.words
        assert "a plan at" in check.words
    few = trisect.quantise(OWN, LINES[3:6], bits=(2, 16), tolerance=9.0, out=tmp_path, quiet=True)
    assert few.findings[0].verdict == "failed"
    assert "without an interval" in few.findings[0].words
    assert few.findings[0].words in few.report.read_text()


def test_a_memory_of_no_whole_number_leaves_the_plan_as_much_as_even_bits():
    sizes = [8] * 30
    assert sum(plan_bits([{4: 1.0, 5: 0.0}] * 30, sizes, 4.1)) == sum(even_bits(sizes, 4.1)) == 123


def test_a_memory_that_holds_nothing_is_refused():
    with pytest.raises(SpecError, match=r"A memory of 1.5 bits a number") as error:
        plan_bits([{2: 0.1, 3: 0.0}] * 2, [4, 4], 1.5)
    assert error.value.reason == "The fewest bits come to 2 a number."


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    texts = Texts("made", lambda: iter(LINES), options=("--corpus", "made"))
    out = tmp_path_factory.mktemp("quantise")
    width = tiny.MODEL.width // tiny.MODEL.heads
    return trisect.quantise(OWN, texts, bits=(1, 2, 16), rank=(1, width), memory=3, out=out, quiet=True)


def test_enough_bits_and_the_whole_rank_change_nothing_and_few_bits_do(done):
    changes = done.tables["measures"].filter(measure="loss_change_nats")
    exact = {16: 1e-4, tiny.MODEL.width // tiny.MODEL.heads: 1e-12}  # 2⁻¹⁶ of a span of a few, and sums of float64
    for group, at, value in changes.select("group", "at", "value").rows():
        ranked = group.startswith("rank")
        if at in exact and ranked == (at != 16):
            assert abs(value) < exact[at]
    few = changes.filter(at=1).filter(layer=1, component="v")["value"]
    assert len(few) == 3
    assert few.abs().min() > 1e-4


def test_a_change_is_that_of_the_loss_with_the_function_in_the_model(done):
    rows = done.tables["measures"]
    batch = next(OWN.batches(LINES, 8, scored=True))
    clean = OWN.score(batch)

    def rounded(tensor, where):
        return round_to_bits(tensor, 2, "channel", batch.source.real)

    for sites, place in (("k@2", {"layer": 2}), ("k@all", {"layer": None, "group": "bits by channel, layers 1-2"})):
        edited = OWN.score(batch, OWN.shape.writers({sites: rounded}))
        change = float((edited.total - clean.total).sum() / clean.count.sum())
        found = rows.filter(measure="loss_change_nats", component="k", at=2.0).to_dicts()
        kept = [row for row in found if all(row[name] == value for name, value in place.items())]
        kept = [row for row in kept if row["group"].startswith("bits by channel")]
        assert [row["value"] for row in kept] == [pytest.approx(change, abs=1e-12)]


def test_the_plan_stays_within_its_memory_and_is_tried_on_other_texts(done):
    rows = done.tables["measures"]
    used = {one["measure"]: one["value"] for one in rows.to_dicts() if one["measure"].endswith("_memory")}
    assert used["uniform_memory"] == 3
    assert used["plan_memory"] <= 3
    assert rows.filter(measure="uniform_bits")["value"].to_list() == [3.0] * 4
    bits = rows.filter(measure="plan_bits")
    assert bits["value"].mean() == used["plan_memory"]
    assert sorted(bits.select("component", "layer").rows()) == [("k", 1), ("k", 2), ("v", 1), ("v", 2)]
    costs = [rows.filter(measure=f"{name}_change_nats") for name in ("plan", "uniform", "plan_less_uniform")]
    assert [one["n"].item() for one in costs] == [4, 4, 4]
    plan, uniform, less = (one["value"].item() for one in costs)
    assert less == pytest.approx(plan - uniform)
    batch = next(OWN.batches(LINES[1::2], 8, scored=True))
    clean = OWN.score(batch)
    scales = dict(bits.select("component", "group").rows())
    edits = {
        f"{one['component']}@{one['layer']}": lambda x, where, one=one: round_to_bits(
            x, int(one["value"]), scales[one["component"]].removeprefix("bits by "), batch.source.real
        )
        for one in bits.to_dicts()
    }
    edited = OWN.score(batch, OWN.shape.writers(edits))
    assert plan == pytest.approx(float((edited.total - clean.total).sum() / clean.count.sum()), abs=1e-12)


def test_layers_in_which_the_most_bits_are_too_few_are_not_said_to_need_as_many(done):
    changed = pl.col("measure") == "loss_change_nats"
    large = [pl.when(changed).then(1.0).otherwise(pl.col(name)).alias(name) for name in ("value", "low", "high")]
    found = findings({"measures": done.tables["measures"].with_columns(large)}, done.about)
    (least,) = (one for one in found if one.measure == "least_bits")
    assert "keys (k) need more bits than were tried, as v does, in 2 layers (1, 2)." in least.words
    assert {one.mean for one in least.values} == {None}


def test_heads_are_a_map_and_one_text_has_no_plan(tmp_path):
    made = trisect.quantise(OWN, LINES[3:4], sites="k@all", bits=2, by="token", per="head", out=tmp_path, quiet=True)
    changes = made.tables["measures"].filter(measure="loss_change_nats")
    assert sorted(changes["head"].drop_nulls()) == [1, 1, 2, 2]
    assert any("No bits were planned" in note for note in made.notes)
    assert (tmp_path / "figures" / "quantise-heads-bits-by-token.svg").exists()


def test_the_command_exits_with_1_where_the_plan_costs_more_than_the_tolerance_and_with_2_without_a_plan(tmp_path):
    model = tinyhf.save(tinyhf.gpt2(), tmp_path / "gpt2")
    for number, (limit, tolerance, status) in enumerate(((4, "1e-9", 1), (4, "5", 0), (1, "5", 2))):
        words = ["quantise", model, "--corpus", "sample", "--limit", limit, "--bits", "3,4", "--tolerance", tolerance]
        words += ["--out", tmp_path / f"out-{number}", "--quiet"]
        done = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
        assert done.exit_code == status, done.output
        assert ("Failed: a plan at 3 bits" in done.stderr) == (status == 1)


def test_over_several_models_planned_bits_are_averaged_and_no_tolerance_is_taken(tmp_path, monkeypatch):
    for page in (quantise_page, units_page):  # which take most of the time
        monkeypatch.setattr(page, "page", lambda tables, about: Sheet("t", "k", "l", ()))
    two = [trisect.load(tinyhf.gpt2(seed), tokenizer=tinyhf.tokenizer(False)) for seed in (1, 2)]
    lines, options = ["w1 w2 w3 , w4", "w5 w6 w7 ,"] * 2, {"bits": (3, 4), "by": "token", "out": tmp_path / "out"}
    done = trisect.quantise(two, lines, units="models", quiet=True, **options)
    rows = done.tables["measures"].filter(measure="plan_bits", component="k", layer=1)
    assert rows["model"].n_unique() == 2
    mean = done.tables["over_models"].filter(measure="plan_bits", component="k", layer=1)["value"].item()
    assert mean == pytest.approx(rows["value"].mean())
    assert {"k_less_v", "plan_change"} <= {one.measure for one in done.findings}
    with pytest.raises(SpecError, match="A tolerance was given for several models"):
        trisect.quantise(two, lines, units="models", tolerance=1.0, quiet=True, **options)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"bits": (2, 17)}, "bits holds 17."),
        ({"rank": (0,)}, "rank holds 0."),
        ({"bits": ()}, "Nothing is to be reduced."),
        ({"bits": (4, 8)}, "memory is 3 (3 unless"),
        ({"by": ("row",)}, "by is 'row'"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, named, said):
    with pytest.raises(SpecError) as error:
        trisect.quantise(OWN, LINES, out=tmp_path / "out", quiet=True, **named)
    assert str(error.value).startswith(said)
    assert error.value.todo
