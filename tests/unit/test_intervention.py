"""Switches of q, k or v; another text's parts in one layer; interchange scores by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests import tinyhf

import trisect
from trisect.core.errors import CorpusError, ModelError, SiteError, SpecError
from trisect.core.trace import Address
from trisect.experiments.profile import run
from trisect.experiments.profile.run import Exchange, exchange
from trisect.hf.load import Pretrained, load
from trisect.measure.intervention import Means, PreparedText, intervene
from trisect.measure.patching import (
    UNKNOWN,
    hit_share,
    logit_ratio_terms,
    match_prediction,
    ratio_of_sums,
    record,
    shares,
)
from trisect.text.sources import Labelled

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

TEXT, SECOND = "w1 w2 w3 w4 w5", "w9 w8 w7 w6 w5"
FIRST, LAST = Address("plain", 1), Address("plain", 2)


@pytest.fixture(scope="module")
def gpt():
    return load(tinyhf.gpt2(), tinyhf.tokenizer(False))


@pytest.fixture(scope="module")
def encoder():
    return load(tinyhf.bert(head=False), tinyhf.tokenizer())


def test_what_goes_in_is_zero_the_mean_or_the_second_texts(gpt):
    ready = PreparedText.of(gpt, TEXT, SECOND)
    assert ready.second is not None
    own, other = (record(gpt.outputs, batch, (FIRST, LAST)).parts for batch in (ready.batch, ready.second))
    read = ready.reading(ready.plan({"q@1.h2": "zero", "k@1": "second", "v@2.h1,3": "mean"}))
    first, last = read.traces
    assert not first.q[0, 1].any()
    assert torch.equal(first.q[0, [0, 2, 3]], own[FIRST].q[0, [0, 2, 3]])
    torch.testing.assert_close(first.k, other[FIRST].k)
    mean = last.v[0, [0, 2]]
    assert torch.equal(mean, mean[:, :1].expand_as(mean))
    assert mean.abs().max() > 0.01
    assert not torch.equal(last.v[0, 1], last.v[0, 1, :1].expand_as(last.v[0, 1]))
    torch.testing.assert_close(first.weights, torch.softmax(_scores(first), -1))


def _scores(trace):
    scores = trace.q @ trace.k.transpose(-1, -2) * trace.scale
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)


def test_the_mean_is_of_this_text_as_it_is_without_switches(gpt):
    ready = PreparedText.of(gpt, TEXT)
    means = Means()
    real = ready.batch.source.real
    means.add(record(gpt.outputs, ready.batch, (LAST,)).parts[LAST], real, real)
    both = ready.reading(ready.plan({"v@1": "zero", "v@2": "mean"})).traces[1]
    torch.testing.assert_close(both.v[0, :, 0], means.parts().v[0, :, 0].float())


def test_a_later_switch_takes_the_place_of_an_earlier_one_where_both_are(gpt):
    one = intervene(gpt, TEXT, {"v@all": "zero", "v@2": "second"}, SECOND)
    other = intervene(gpt, TEXT, {"v@1": "zero", "v@2": "second"}, SECOND)
    assert torch.equal(one.after, other.after)
    turned = intervene(gpt, TEXT, {"v@2": "second", "v@all": "zero"}, SECOND)
    assert not torch.equal(one.after, turned.after)
    assert turned.switches == (("v@2", "second"), ("v@all", "zero"))


@pytest.mark.parametrize("how", ["zero", "half", "double", "mean", "second"])
def test_chosen_positions_are_switched_and_no_others(gpt, how):
    every = intervene(gpt, TEXT, {"v@1": how}, SECOND)
    assert torch.equal(intervene(gpt, TEXT, {"v@1": how}, SECOND, positions=range(5)).after, every.after)
    one = intervene(gpt, TEXT, {"v@1": how}, SECOND, positions=(3, 3))
    assert one.positions == (3,)
    assert torch.equal(one.after[:3], one.before[:3])  # a causal model does not see what comes later
    assert float(one.moved[3]) > 0
    assert not torch.equal(one.after[3:], every.after[3:])
    assert "v@1 " + how + " at token 4" in str(one)
    with pytest.raises(CorpusError, match=r"Position 5 is to be switched.\n  The text has 5 tokens, counted from 0.\n"):
        intervene(gpt, TEXT, {"v@1": "zero"}, positions=(5,))


def test_half_and_double_are_what_a_function_makes(gpt):
    for how, factor in {"half": 0.5, "double": 2.0}.items():
        made = intervene(gpt, TEXT, {"v@1": lambda x, where, factor=factor: factor * x})
        assert torch.equal(intervene(gpt, TEXT, {"v@1": how}).after, made.after)


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_one_switch_changes_outputs_as_an_ablation_says(encoder, how, tmp_path):
    done = trisect.ablate(encoder, [TEXT], sites=["v@2.h3"], how=how, out=tmp_path / "out", quiet=True)
    change = intervene(encoder, TEXT, {"v@2.h3": how})
    (value,) = done.tables["measures"]["value"].to_list()
    assert float(change.moved.double().square().mean()) == pytest.approx(value, rel=1e-4)
    assert value > 1e-6


def test_the_whole_second_text_at_every_site_of_a_layer_above_the_embedding_moves_predictions_to_its_own(gpt):
    """q, k and v of layer 1 come from the embeddings alone: what is left of the first text is the residual stream."""
    change = intervene(gpt, TEXT, {"q+k+v@all": "second"}, SECOND)
    assert float(change.moved[0]) > 0
    same = intervene(gpt, TEXT, {"q+k+v@all": "second"}, TEXT)
    torch.testing.assert_close(same.after, same.before)
    assert float(same.moved.max()) < 1e-6


def test_predictions_are_probabilities_and_the_likeliest_of_both_sides(gpt):
    change = intervene(gpt, TEXT, {"v@1": "zero"}, place=2)
    before, after = (part[2].double().softmax(-1).numpy() for part in (change.before, change.after))
    found = change.predictions(5)
    assert {p.number for p in found} == {*np.argsort(-before)[:5].tolist(), *np.argsort(-after)[:5].tolist()}
    assert [p.before for p in found] == sorted((p.before for p in found), reverse=True)
    for p in found:
        assert p[2:] == pytest.approx((before[p.number], after[p.number]), rel=1e-4)
        assert p.token == gpt.token(p.number)
    assert float(change.moved[2]) == pytest.approx(float((before * np.log(before / after)).sum()), rel=1e-3)
    assert intervene(gpt, TEXT, {}).place == 4
    assert "nothing switched" in str(intervene(gpt, TEXT, {}))


def test_a_masked_model_predicts_at_its_mask_and_an_encoder_nothing(encoder):
    masked = load(tinyhf.bert(), tinyhf.tokenizer())
    assert intervene(masked, "w1 [MASK] w2", {"v@1": "zero"}).place == 2
    change = intervene(encoder, TEXT, {"v@1": "zero"})
    assert change.predictions() == ()
    assert change.moved.shape == (7,)
    assert "'w1'" in str(change)


LONG = "w1 w2 w3 w4 w5 w6 w7"


@pytest.mark.parametrize(
    "switches", [{"dec.v@1": "zero"}, {"enc.v@1": "zero", "dec.v@1": "mean"}, {"cross.q@2": "zero"}]
)
def test_a_switch_that_would_do_nothing_is_refused(switches):
    model = load(tinyhf.bart(), tinyhf.tokenizer())
    with pytest.raises(CorpusError) as error:
        intervene(model, (LONG, "w3 w4"), switches, positions=(6,))
    last = list(switches)[-1]
    assert error.value.problem == f"{last} is to be switched to {switches[last]!r} at position 6."
    assert error.value.reason == "That sequence has 4 tokens, counted from 0: the switch would do nothing."
    some = intervene(model, (LONG, "w3 w4"), switches, positions=(1, 6))
    assert some.notes == (f"{last} has 4 tokens to switch: none of token 7.",)
    assert "none of token 7" in str(some)
    assert intervene(model, (LONG, "w3 w4"), {"cross.v@1": "zero"}, positions=(6,)).moved.max() > 0


def test_a_second_text_that_ends_before_the_position_switches_nothing(gpt):
    with pytest.raises(CorpusError, match="That sequence has 2 tokens"):
        intervene(gpt, TEXT, {"v@1": "second"}, "w9 w8", positions=(3,))


def test_texts_of_other_lengths_meet_where_both_are(gpt):
    change = intervene(gpt, TEXT, {"v@1": "second"}, "w9 w8")
    assert change.notes == (
        "The texts have 5 and 2 tokens: only the first 2 positions are replaced by the second text's.",
    )
    read = PreparedText.of(gpt, TEXT, "w9 w8")
    own = PreparedText.of(gpt, TEXT).reading(()).traces[0]
    mixed = read.reading(read.plan({"v@1": "second"})).traces[0]
    assert torch.equal(mixed.v[0, :, 2:], own.v[0, :, 2:])
    assert not torch.equal(mixed.v[0, :, :2], own.v[0, :, :2])


@pytest.mark.parametrize(
    ("switches", "second", "place", "kind", "words"),
    [
        ({"v@3": "zero"}, None, None, SiteError, "outside the model"),
        ({"v@1": "away"}, None, None, SpecError, "switched to 'away'"),
        ({"v@1": "second"}, None, None, SpecError, "no second text was given"),
        ({}, None, 5, CorpusError, "Position 5 was given"),
    ],
)
def test_what_cannot_be_switched_is_said(gpt, switches, second, place, kind, words):
    with pytest.raises(kind, match=words) as error:
        intervene(gpt, TEXT, switches, second, place)
    assert error.value.todo


@pytest.fixture
def changed(gpt, monkeypatch):
    """Has the model's outputs changed by a function, which is given whether they are those with switches."""

    def by(change):
        for kind in (type(gpt), type(gpt.edited_passes())):  # the pass with switches, and the unedited one before it
            plain = kind.outputs
            monkeypatch.setattr(
                kind, "outputs", lambda own, batch, write=None, plain=plain: change(plain(own, batch, write), write)
            )
        return gpt

    return by


def test_a_token_that_is_ruled_out_in_both_passes_moves_nothing(changed):
    def rule_out(made, switched):
        made = made.clone()
        made[..., 3] = -torch.inf
        return made

    change = intervene(changed(rule_out), TEXT, {"v@1": "zero"})
    first, then = (
        part.index_fill(1, torch.tensor([3]), -1e9).log_softmax(-1) for part in (change.before, change.after)
    )
    torch.testing.assert_close(change.moved, (first.exp() * (first - then)).sum(-1))
    assert float(change.moved.min()) > 0
    assert "nan" not in str(change)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_outputs_that_are_no_numbers_are_refused(changed, value):
    broken = changed(lambda made, switched: torch.full_like(made, value) if switched else made)
    with pytest.raises(ModelError, match=r"is not finite \(v@1 to zero\)") as error:
        intervene(broken, TEXT, {"v@1": "zero"})
    assert "5 of 5 positions" in error.value.reason
    assert "Take a switch out" in error.value.todo
    assert intervene(broken, TEXT, {}).moved.tolist() == [0] * 5


def test_a_token_that_a_switch_alone_rules_out_is_refused(changed):
    def rule_out(made, switched):
        made = made.clone()
        made[:, 2, 3] = -torch.inf if switched else 0
        return made

    with pytest.raises(ModelError, match="is not finite") as error:
        intervene(changed(rule_out), TEXT, {"v@1": "zero"})
    assert "1 of 5 positions" in error.value.reason


def test_each_text_that_is_cut_to_the_window_is_said(gpt):
    long = "w1 " * 200
    cut = "Of a {} longer than the model's window the first window is read."
    assert PreparedText.of(gpt, long, long).notes == (cut.format("text"), cut.format("second text"))
    assert cut.format("second text") == PreparedText.of(gpt, TEXT, long).notes[0]
    assert PreparedText.of(gpt, long).notes == (cut.format("text"),)


# in the fourth pair q and the base are alike, in the fifth k is unknown
PREDICTIONS = {"base": [1, 1, 1, 1, 1], "q": [2, 2, 2, 1, 2], "k": [3, 3, 3, 3, UNKNOWN], "v": [4, 4, 4, 4, 4]}


def hits(found):
    return {name: share.hits for name, share in found.items()}


def test_shares_count_the_pairs_whose_four_predictions_differ() -> None:
    """The fourth pair's q is the base's answer and the fifth's k is not known: neither counts, whatever came."""
    found = shares([2, 4, 1, 2, 2], PREDICTIONS, "q")
    assert {share.n for share in found.values()} == {3}
    assert hits(found) == {"base": 1, "q": 1, "k": 0, "v": 1}
    assert found["q"].value == pytest.approx(1 / 3)


def test_a_joint_component_needs_a_prediction_that_is_its_own() -> None:
    """In the second pair q+k predicts what q does, so that nothing could tell them apart."""
    joint = {**{name: of[:2] for name, of in PREDICTIONS.items()}, "q+k": [5, 2]}
    found = shares([5, 2], joint, "q+k")
    assert (found["q+k"].n, hits(found)) == (1, {"base": 0, "q": 0, "k": 0, "v": 0, "q+k": 1})


def test_components_without_predictions_are_left_out() -> None:
    assert shares([1, 1], {"base": [1, 1], "q": [2, 2], "v": [1, 3]}, "q")["v"].n == 1  # equals that are not neighbours
    found = shares([2, 1], {"base": [1, 1], "q": [2, 2]}, "q")
    assert (found["q"].n, found["q"].value, sorted(found)) == (2, 0.5, ["base", "q"])


def test_intervals_reach_to_certainty_only_where_all_pairs_say_so() -> None:
    every, none, most = hit_share(np.ones(20, bool)), hit_share(np.zeros(20, bool)), hit_share(np.arange(20) > 0)
    assert (every.high, none.low) == (1.0, 0.0)
    assert 0.85 < (every.low or 0.0) < 0.95
    assert (most.high or 1.0) < 1.0
    assert hit_share(np.zeros(0, bool)).value is None


def test_which_came_names_the_first_that_predicted_it() -> None:
    assert match_prediction([1, 2, 7, 4, 4], PREDICTIONS) == ("base", "q", "other", "v", "v")
    assert match_prediction([UNKNOWN], {"base": [1], "q": [UNKNOWN]}) == ("other",)


def logit_change(*differences):
    return ratio_of_sums(*logit_ratio_terms(*differences))


def test_logit_change_is_none_at_the_own_run_and_whole_at_the_other() -> None:
    own, other = np.array([3.0, 2.0, 4.0]), np.array([-1.0, -3.0, -2.0])
    assert logit_change(own, own, other)["value"] == 0.0
    assert logit_change(other, own, other)["value"] == 1.0
    half = logit_change((own + other) / 2, own, other)
    assert (half["value"], half["low"]) == pytest.approx((0.5, 0.5))
    assert half["n"] == 3


def test_a_pair_without_room_adds_nothing_to_the_change() -> None:
    """Both runs answer the second pair alike: its own ratio would be 0 / 0."""
    found = logit_change(np.array([0.0, 1.0]), np.array([2.0, 1.0]), np.array([-2.0, 1.0]))
    assert (found["value"], found["n"]) == (pytest.approx(0.5), 1)
    assert logit_change(np.ones(2), np.ones(2), np.ones(2))["value"] is None


WORDS = [f"w{i}" for i in range(1, 30)]


def labelled(words: list[str]) -> Labelled:
    text, spans = " ".join(words), []
    for word in words:
        start = spans[-1][1] + 1 if spans else 0
        spans.append((start, start + len(word)))
    return Labelled(text, tuple(spans), {})


def texts(lengths: tuple[int, ...]) -> Iterator[Labelled]:
    draw = np.random.default_rng(0)
    return iter([labelled([WORDS[int(i)] for i in draw.integers(len(WORDS), size=n)]) for n in lengths])


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def model(request) -> Pretrained:
    return load(getattr(tinyhf, request.param)(), tinyhf.tokenizer())


def layers(model: Pretrained) -> tuple[Address, ...]:
    return tuple(p.address for p in model.projections())


def test_with_the_weights_held_queries_and_keys_change_nothing_and_values_do(model):
    found = exchange(model, lambda: texts((6, 6, 6, 9, 9, 9)), layers(model), 8, 0)
    assert found is not None
    assert found.changes.shape == (6, len(layers(model)), 2, 3)
    free, held = found.changes[:, :, 0], found.changes[:, :, 1]
    assert (free > 0).all()
    assert held[:, :, :2].max() == 0  # q and k, to the bit
    assert (held[:, :, 2] > 0).all()
    share = found.held_share(0)
    assert share is not None
    assert (share.effect, share.n, share.unit) == (1.0, 6, "text")


def test_a_change_is_that_of_the_very_values_of_the_other_text(model):
    """The last layer's q of another text, put in by hand."""
    address = layers(model)[-1]
    found = exchange(model, lambda: texts((7, 7)), (address,), 8, 0)
    assert found is not None
    (batch,) = model.batches((one.text for one in texts((7, 7))), 8, scored=True)
    clean = model.score(batch)
    turned = model.score(batch, {address: lambda parts: parts._replace(q=parts.q.flip(0))}, None, clean)
    moved = turned.total if model.objective == "output" else (turned.total - clean.total).abs()
    np.testing.assert_allclose(found.changes[:, 0, 0, 0], (moved / turned.count).numpy(), rtol=1e-6)


def test_only_texts_of_as_many_tokens_meet(model):
    assert exchange(model, lambda: texts((4, 5, 6, 7)), layers(model), 8, 0) is None
    met = exchange(model, lambda: texts((4, 5, 5, 7)), layers(model), 8, 0)
    assert met is not None
    assert len(met.changes) == 2


def test_rows_are_means_over_texts_with_intervals():
    changes = np.random.default_rng(1).uniform(0.1, 1.0, size=(40, 2, 2, 3))
    found = Exchange((Address("plain", 1), Address("plain", 2)), changes)
    rows = list(found.rows(0))
    assert len(rows) == 3 * 2 * 3
    whole = [r for r in rows if r["layer"] is None and (r["group"], r["component"]) == ("weights held", "v")]
    assert len(whole) == 1
    assert whole[0]["value"] == pytest.approx(changes[:, :, 1, 2].mean())
    low, value, high = (float(whole[0][name] or 0.0) for name in ("low", "value", "high"))
    assert 0 < low < value < high
    assert whole[0]["n"] == 40
    first = next(r for r in rows if r.get("layer") == 2 and (r["group"], r["component"]) == ("weights free", "q"))
    assert first["value"] == pytest.approx(changes[:, 1, 0, 0].mean())


def test_the_share_is_of_all_change_and_says_where_queries_act_besides():
    changes = np.zeros((40, 1, 2, 3))
    changes[:, 0, 1] = (0.1, 0.1, 0.8)
    share = Exchange((Address("plain", 1),), changes).held_share(0)
    assert share is not None
    assert share.effect == pytest.approx(0.8)
    assert Exchange((Address("plain", 1),), np.zeros((40, 1, 2, 3))).held_share(0) is None


def test_texts_are_drawn_up_to_a_number(model, monkeypatch):
    monkeypatch.setattr(run, "TEXTS", 4)
    found = exchange(model, lambda: texts((5,) * 9 + (6,) * 9), layers(model)[:1], 8, 0)
    assert found is not None
    assert len(found.changes) == 4
    assert torch.isfinite(torch.from_numpy(found.changes)).all()
