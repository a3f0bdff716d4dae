"""Laws of erasure: no linear trace is left, nothing else is lost, and controls take out as much of the same space."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from trisect.core import errors
from trisect.core.errors import SpecError
from trisect.core.site import Site
from trisect.experiments.study import probing
from trisect.experiments.study.probing import read_folds
from trisect.lm.feed import evaluation_pieces
from trisect.lm.fleet import forward, initial, layout, views
from trisect.lm.loss import token_scores
from trisect.measure.probes import Examples, LabelMoments, majority, probe, whiten

N, WIDTH, CLASSES = 700, 7, 4
EXACT = 1e-10  # float64, through one eigenvalue decomposition of a well-conditioned covariance


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def planted(seed=0):
    y = torch.randint(CLASSES, (N,), generator=torch.Generator().manual_seed(seed))
    x = normal(N, WIDTH, seed=seed) @ normal(WIDTH, WIDTH, seed=seed + 1) + 3
    return x + torch.nn.functional.one_hot(y, CLASSES).double() @ normal(CLASSES, WIDTH, seed=seed + 2) * 3, y


def moments(x, y, classes=CLASSES, shrinkage=True):
    found = LabelMoments(x.shape[1], classes, shrinkage=shrinkage)
    for rows in torch.arange(len(x)).split(300):
        found.add(x[rows], y[rows])
    return found


def covariance(x, y, classes=CLASSES):
    z = torch.nn.functional.one_hot(y, classes).double()
    return (x - x.mean(0)).T @ (z - z.mean(0)) / len(x)


@settings(max_examples=8)
@given(st.integers(0, 2**16))
def test_after_leace_no_class_is_correlated_with_anything_and_the_mean_stays(seed):
    x, y = planted(seed)
    eraser = moments(x, y).leace()
    erased = eraser(x)
    size = float(covariance(x, y).abs().max())
    assert float(covariance(erased, y).abs().max()) < EXACT * size
    assert float((erased.mean(0) - x.mean(0)).abs().max()) < EXACT * float(x.abs().max())
    assert eraser.rank == CLASSES - 1
    # taken out once is taken out
    assert float((eraser(erased) - erased).abs().max()) < EXACT * float(x.abs().max())


def test_a_linear_probe_finds_nothing_beyond_the_majority_after_leace():
    x, y = planted()
    erased = moments(x, y).leace()(x)

    def found(of):
        seen = Examples(whiten(of[None])[0], y)
        return probe("linear", seen, seen, seen, CLASSES, torch.Generator())

    before, after = found(x), found(erased)
    assert before.accuracy[0] > 0.8
    assert before.bits[0] > 1
    # on the tokens that it is fitted to, where the best linear classifier's loss is that of the prior
    assert abs(float(after.bits[0])) < 1e-3
    assert float(after.accuracy[0]) <= majority(y, y, CLASSES) + 0.02


@settings(max_examples=8)
@given(st.integers(0, 2**16), st.integers(1, WIDTH))
def test_a_random_subspace_takes_out_as_many_directions_of_the_whitened_space(seed, rank):
    x, y = planted(seed)
    of = moments(x, y)
    eraser = of.random(rank, torch.Generator().manual_seed(seed))
    erased = eraser(x)
    assert float((erased.mean(0) - x.mean(0)).abs().max()) < EXACT * float(x.abs().max())
    # an eraser is a projection around the mean, and its trace the directions that it leaves
    mean = x.mean(0)
    kept = eraser(mean + torch.eye(WIDTH, dtype=torch.float64)) - mean
    assert float(torch.trace(kept)) == pytest.approx(WIDTH - rank, abs=1e-6)
    # without shrinkage whitening is by the sample's own covariance, in which as much variance is left
    bare = moments(x, y, shrinkage=False).random(rank, torch.Generator().manual_seed(seed))(x)
    inner = torch.linalg.inv(torch.cov(x.T, correction=0))
    left = float(torch.trace(inner @ torch.cov(bare.T, correction=0)))
    assert left == pytest.approx(WIDTH - rank, abs=1e-6)
    assert float((eraser(erased) - erased).abs().max()) < EXACT * float(x.abs().max())


@settings(max_examples=8)
@given(st.integers(0, 2**16))
def test_erasing_what_a_projection_makes_is_another_projection(seed):
    x, y = planted(seed)
    weight, bias, read = normal(WIDTH, 5, seed=seed), normal(WIDTH, seed=seed + 1), normal(20, 5, seed=seed + 2)
    eraser = moments(x, y).leace()
    other = eraser.compose_projection(weight, bias)
    made = read @ other[0].T + other[1]
    assert float((made - eraser(read @ weight.T + bias)).abs().max()) < EXACT * 100


def test_what_is_linear_is_said_as_a_share():
    x, y = planted()
    whole = torch.cat([x, torch.nn.functional.one_hot(y, CLASSES).double() * 50], 1)
    noise = normal(N, WIDTH, seed=50)
    # the share that noise explains of N labels is about WIDTH / N; shrinkage takes a little off the largest
    assert moments(whole, y).linear_share() == pytest.approx(1, abs=0.05)
    assert moments(noise, y).linear_share() < 3 * WIDTH / N
    assert moments(moments(x, y).leace()(x), y).linear_share() < 1e-12
    assert 0.3 < moments(x, y).linear_share() < 1


def test_classes_that_never_occur_and_empty_batches_change_nothing():
    x, y = planted()
    plain, other = moments(x, y), moments(x, y + 1, CLASSES + 3)
    other.add(x[:0], y[:0])
    assert other.leace().rank == plain.leace().rank
    assert float((other.leace()(x) - plain.leace()(x)).abs().max()) < 1e-8
    assert other.count == N


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(errors, "is_installed", lambda package: False)
    with pytest.raises(SpecError) as caught:
        LabelMoments(2, 2)
    assert caught.value.problem == "Erasing a label needs the package concept-erasure."
    assert "trisect[erase]" in caught.value.todo


CORPUS = tiny.corpus()
FLAT = initial(tiny.MODEL, len(CORPUS.vocabulary), 1).double()
FLAT += 0.4 * normal(len(FLAT), seed=4)
FINAL = {n: v[0] for n, v in views(FLAT[None], layout(tiny.MODEL, len(CORPUS.vocabulary))).items()}
READ = evaluation_pieces(CORPUS, tiny.TRAINING, "train", ("pos",), "cpu")


def erased_at(site, parameters):
    moments = probing.fit(parameters, tiny.MODEL, READ, site, "pos", len(CORPUS.column("pos")))
    changed = dict(parameters)
    probing.apply(changed, site, moments.leace(), tiny.MODEL)
    return moments, changed


@pytest.mark.parametrize("spelt", ["k@2", "q+v@1"])
def test_a_models_weights_can_carry_the_erasure_and_nothing_but_the_site_changes(spelt):
    site = Site.parse(spelt)
    before, changed = erased_at(site, FINAL)
    after, _ = erased_at(site, changed)
    assert before.linear_share() > 0.02
    assert after.linear_share() < EXACT
    layer = (site.layers or (0,))[0]
    for name in FINAL:
        same = torch.equal(FINAL[name], changed[name])
        assert same == (name not in (f"layers.{layer}.in.weight", f"layers.{layer}.in.bias"))
    kept = [row for row, c in enumerate("qkv") if c not in spelt]
    for name in (f"layers.{layer}.in.weight", f"layers.{layer}.in.bias"):
        for row in kept:
            assert torch.equal(FINAL[name][row * 8 : row * 8 + 8], changed[name][row * 8 : row * 8 + 8])


def rows(site, label="pos", draws=2):
    found = probing.erase(FINAL, tiny.MODEL, CORPUS, tiny.TRAINING, Site.parse(site), label, draws, 1, tokens=200)
    return {(r.measure, r.at): r for r in found}


def test_where_a_label_takes_every_direction_its_controls_do_too():
    assert len(CORPUS.column("dep")) > tiny.MODEL.width
    found = rows("v@1", "dep")
    assert found["erase_rank", None].value == tiny.MODEL.width
    rise = found["erase_rise_nats", None].value
    assert rise is not None
    assert abs(rise) > 1e-4
    for n in (1.0, 2.0):
        # all that is left is the mean, whichever the directions were
        assert found["erase_random_rise_nats", n].value == pytest.approx(rise, abs=1e-8)
    low, high = (found[f"erase_rise_{end}_nats", None].value for end in ("low", "high"))
    assert low is not None
    assert high is not None
    assert low < rise < high


def test_the_rise_is_that_of_the_model_with_the_weights_replaced():
    site, nats, tokens = Site.parse("k@2"), 0.0, 0
    for fold in read_folds(CORPUS, tiny.TRAINING, "pos", 1, 200, torch.device("cpu")):
        erased = dict(FINAL)
        fitted = probing.fit(erased, tiny.MODEL, fold.fit, site, "pos", len(CORPUS.column("pos")))
        probing.apply(erased, site, fitted.leace(), tiny.MODEL)
        for parameters, sign in ((FINAL, -1), (erased, 1)):
            p = {name: v[None] for name, v in parameters.items()}
            for piece in fold.scored:
                hidden = forward(p, piece.inputs, tiny.MODEL).hidden.flatten(1, 2)
                scores = token_scores(hidden, p["decoder.weight"], p["decoder.bias"], piece.targets)
                nats += sign * float(scores.loss.sum())
        tokens += sum(piece.tokens for piece in fold.scored)
    # two ways to sum the same losses in float64
    assert rows("k@2")["erase_rise_nats", None].value == pytest.approx(nats / tokens, abs=1e-9)


def test_layers_are_erased_one_after_the_other_and_draws_are_a_function_of_the_seed():
    first, second = rows("v@1-2"), rows("v@1-2")
    assert first == second
    classes = int((torch.bincount(torch.cat([p.labels["pos"] for p in READ])) > 0).sum())
    # what a layer norm gives lies in a plane, so that one direction of layer 2 never varies
    assert first["erase_rank", None].value == min(classes - 1, 8) + min(classes - 1, 7)
    draws = {first["erase_random_rise_nats", n].value for n in (1.0, 2.0)}
    assert len(draws) == 2
    for name in ("k@1", "k@2"):
        site = Site.parse(name)
        left = dict(FINAL)
        for n in (1, 2):
            here = Site(("k",), (n,))
            probing.apply(left, here, probing.fit(left, tiny.MODEL, READ, here, "pos", classes).leace(), tiny.MODEL)
        assert probing.fit(left, tiny.MODEL, READ, site, "pos", classes).linear_share() < EXACT
