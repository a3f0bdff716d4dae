"""Laws of the controls of an attack: control labels, the bounded attack, and an attack that reaches its site alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr
from tests import tiny

from trisect.core.errors import CorpusError
from trisect.core.site import Site
from trisect.core.spec import Run
from trisect.lm.adversary import NEAR, _Weighted, control_labels, divergence
from trisect.lm.edits import AttackEdit
from trisect.lm.fleet import mark, views
from trisect.lm.train import Trainer
from trisect.text.corpus import Corpus, Split

CORPUS = tiny.corpus()
BASE = next(r for r in tiny.runs() if r.edit is None)
CLASSES = len(CORPUS.column("pos"))


def attack(place: str, variant: str = "plain", strength: float = 1.0) -> Run:
    site = Site.parse(place).resolve(2, 2)
    return replace(BASE, edit=AttackEdit(site, "pos", strength, variant))


def plainly(*runs: Run) -> Trainer:
    """Steps are gradients: no momentum, no clipping, a rate of 1."""
    training = replace(BASE.training, optimizer="sgd", rate=1.0, warmup=0, clip=1e9)
    return Trainer([replace(r, training=training) for r in runs], CORPUS, dtype=torch.float64)


def moved(trainer: Trainer) -> torch.Tensor:
    before = trainer.flat.clone()
    trainer.step()
    return trainer.flat - before


def own(place: str, trainer: Trainer) -> torch.Tensor:
    return mark(Site.parse(place).resolve(2, 2), trainer.model, trainer.places)


texts = st.integers(0, 10_000).flatmap(
    lambda seed: st.tuples(st.just(seed), st.integers(2, 6), st.integers(40, 120), st.integers(0, 3))
)


def text_of(seed: int, classes: int, words: int, unlabelled: int) -> Corpus:
    """Words with Zipf's frequencies; every third of the last types has no label where `unlabelled` says so."""
    draw = np.random.default_rng(seed)
    share = 1 / np.arange(3, words + 3)
    tokens = draw.choice(words, 3_000, p=share / share.sum()).astype(np.int32)
    labels = draw.choice(classes, 3_000, p=draw.dirichlet(np.full(classes, 5.0))).astype(np.int16)
    labels[(tokens % 3 == 0) & (tokens >= words - 10 * unlabelled)] = -1
    whole = Split(tokens, {"kind": labels})
    names = {"kind": tuple(f"c{i}" for i in range(classes))}
    return Corpus.make("drawn", tuple(f"w{i}" for i in range(words)), names, {"train": whole, "valid": whole})


@settings(max_examples=25, deadline=None)
@given(texts, st.integers(0, 5))
def test_control_labels_are_as_frequent_as_reported_and_close_to_the_prior(parts, seed):
    corpus = text_of(*parts)
    tokens, labels = corpus.splits["train"].tokens, corpus.splits["train"].labels["kind"]
    assume(len(np.unique(labels[labels >= 0])) > 1)
    chance, classes = control_labels(corpus, "kind", seed), len(corpus.column("kind"))
    assert chance[0].shape == (len(corpus.vocabulary),)
    seen = [label for token, label in zip(tokens, labels, strict=True) if label >= 0]
    given_ = [chance[0][token] for token, label in zip(tokens, labels, strict=True) if label >= 0]
    shares = [np.bincount(x, minlength=classes) / len(seen) for x in (seen, given_)]
    distance = sum(max(0.0, a - b) for a, b in zip(*shares, strict=True))
    assert chance[1] == pytest.approx(distance, abs=1e-12)
    assert chance[1] < NEAR == 0.05
    again = control_labels(corpus, "kind", seed)
    assert np.array_equal(again[0], chance[0])
    assert again[1] == chance[1]


def test_control_labels_are_a_function_of_seed_and_column():
    found = [control_labels(CORPUS, c, s)[0] for c, s in [("pos", 1), ("pos", 2), ("dep", 1)]]
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], np.minimum(found[2], CLASSES - 1))


def test_control_labels_tell_nothing_of_the_true_ones():
    """Over seeds, a type's control label equals its most frequent true label as often as chance would have it."""
    tokens, labels = CORPUS.splits["train"].tokens, CORPUS.splits["train"].labels["pos"]
    words = [w for w in range(len(CORPUS.vocabulary)) if ((tokens == w) & (labels >= 0)).sum() in range(1, 6)]
    usual = np.array([np.bincount(labels[(tokens == w) & (labels >= 0)]).argmax() for w in words])
    hits = [np.mean(control_labels(CORPUS, "pos", seed)[0][words] == usual) for seed in range(60)]
    expected = (np.bincount(labels[labels >= 0]) / (labels >= 0).sum())[usual].mean()
    spread = np.std(hits, ddof=1) / np.sqrt(len(hits))
    assert abs(np.mean(hits) - expected) < 4 * spread + 0.01  # redrawn types are a little off the prior


def test_control_labels_that_cannot_be_close_are_refused():
    tokens = np.array([0] * 90 + [1] * 10, np.int32)
    part = Split(tokens, {"kind": np.array([0, 1] * 50, np.int16)})
    corpus = Corpus.make("monotone", ("the", "end"), {"kind": ("a", "b")}, {"train": part, "valid": part})
    with pytest.raises(CorpusError, match=r"(?s)'kind' of 'monotone'.* 0\.40, .*'the' alone is 90\u00a0%.*'control'"):
        control_labels(corpus, "kind", 1)


def test_an_attacker_on_control_labels_is_asked_for_those_of_the_next_words_type():
    trainer = Trainer([attack("q@1", "control"), attack("q@1")], CORPUS)
    chance = control_labels(CORPUS, "pos", BASE.seed)
    group, plain = tiny.attackers_of(trainer)
    for window in range(3):
        piece = trainer.windows[window]
        true = piece.labels["pos"].clone()
        true[::5] = -1
        y = group.answers(piece.targets, {"pos": true})
        assert torch.equal(plain.answers(piece.targets, {"pos": true}), true)
        assert torch.equal(y < 0, true < 0)
        for word, label in zip(piece.targets.tolist(), y.tolist(), strict=True):
            assert label in (-1, int(chance[0][word]))
    assert trainer.start_rows() == {0: [("train", "control_distance", chance[1])]}


def test_the_attacked_model_follows_the_control_labels_and_not_the_true_ones():
    """The same text with its labels replaced by the control labels, plainly attacked, trains the same member."""
    chance = control_labels(CORPUS, "pos", BASE.seed)

    def relabelled(part: Split) -> Split:
        return Split(part.tokens, {"pos": chance[0][part.tokens].astype(np.int16)})

    parts = {name: relabelled(part) for name, part in CORPUS.splits.items()}
    other = Corpus.make("other", CORPUS.vocabulary, {"pos": CORPUS.labels["pos"]}, parts)
    one, two = (
        Trainer([attack("k@2", "control")], CORPUS, dtype=torch.float64),
        Trainer([attack("k@2")], other, dtype=torch.float64),
    )
    assert (CORPUS.splits["train"].labels["pos"] >= 0).all()
    for _ in range(3):
        one.step()
        two.step()
    assert torch.equal(one.flat, two.flat)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.floats(0.01, 20), st.booleans())
def test_the_bounded_loss_is_never_below_zero_and_zero_at_the_prior(seed, classes, scale, empty):
    draw = torch.Generator().manual_seed(seed)
    prior = torch.rand(classes, generator=draw, dtype=torch.float64) + 0.01
    prior[0] *= not empty or classes == 2  # a class that no train token has
    prior /= prior.sum()
    logits = scale * torch.randn(2, classes, 5, generator=draw, dtype=torch.float64)
    found = divergence(logits, prior)
    assert float(found.min()) >= -1e-12
    expected = rel_entr(prior[None, :, None].numpy(), torch.softmax(logits, 1).numpy()).sum(1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
    at = prior.clamp_min(1e-30).log()[None, :, None].expand(2, -1, 5).clone().requires_grad_()
    least = divergence(at, prior)
    assert float(least.detach().abs().max()) < 1e-12
    assert float(torch.autograd.grad(least.sum(), at)[0].abs().max()) < 1e-12


@pytest.mark.parametrize("variant", ["bounded", "bounded+site", "control+bounded"])
def test_a_bounded_attack_pushes_nothing_where_its_adversary_outputs_the_prior_and_towards_it_elsewhere(variant):
    trainer = plainly(attack("k@2", variant, 3.0), attack("q@1", variant, 3.0))
    (group,) = tiny.attackers_of(trainer)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, trainer.model.width, 60, generator=draw, dtype=torch.float64)
    y = torch.arange(60) % CLASSES
    y[:7] = -1

    def loss(at: torch.Tensor) -> torch.Tensor:
        logits = group._logits(views(group.flat, group.places), _Weighted(at[..., 7:], y[7:], None), "judge")
        return divergence(logits, group.prior).mean(1)

    push = group.gradient(x, y)
    assert torch.equal(push[..., :7], torch.zeros_like(push[..., :7]))
    step = 1e-6 * torch.randn(x.shape, generator=draw, dtype=torch.float64)
    # central differences in float64: an error of the square of the step
    slope = (loss(x + step) - loss(x - step)) / 2
    torch.testing.assert_close(3.0 * slope, (push * step).sum((1, 2)), rtol=1e-5, atol=1e-13)
    assert bool((loss(x - 0.01 * push / push.norm()) < loss(x)).all())
    weights = views(group.flat, group.places)
    weights["5.weight"].zero_()
    weights["5.bias"].copy_(group.prior.clamp_min(1e-30).log())
    assert float(loss(x).abs().max()) < 1e-12
    assert float(group.gradient(x, y).abs().max()) < 1e-12


def test_attackers_of_plain_bounded_and_site_attacks_learn_the_same_labels():
    trainer = plainly(*(attack("k@2", variant) for variant in ("plain", "bounded", "site", "bounded+site")))
    trainer.step()
    one, *others = (group.flat for group in tiny.attackers_of(trainer))
    for other in others:
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


CONFINED = {
    "plain": "site",
    "bounded": "bounded+site",
    "control": "control+site",
    "control+bounded": "control+bounded+site",
}


@pytest.mark.parametrize("variant", CONFINED)
@pytest.mark.parametrize("place", ["q@1", "k@2", "q+v@2"])
def test_a_site_attack_trains_its_own_projection_as_that_without_and_all_else_by_the_language_loss(place, variant):
    trainer = plainly(BASE, attack(place, variant), attack(place, CONFINED[variant]))
    base, plain, site = moved(trainer)
    marks = own(place, trainer)
    torch.testing.assert_close(site[~marks], base[~marks], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(site[marks], plain[marks], rtol=1e-10, atol=1e-13)
    least = 1e-3 if "bounded" not in variant else 1e-5  # a fresh adversary's output is close to the prior
    assert float((site[marks] - base[marks]).norm()) > least * float(base[marks].norm())
    # what the attack does besides, below its site
    assert float((plain[~marks] - base[~marks]).norm()) > least * float(base[~marks].norm())


def test_bounded_and_confined_is_neither_of_the_two_alone():
    """Its site moves as the bounded attack moves it, and not as the plain one that is confined."""
    trainer = plainly(attack("k@2", "bounded+site"), attack("k@2", "bounded"), attack("k@2", "site"))
    both, bounded, confined = moved(trainer)
    marks = own("k@2", trainer)
    torch.testing.assert_close(both[marks], bounded[marks], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(both[~marks], confined[~marks], rtol=1e-12, atol=1e-13)
    assert not torch.allclose(both[marks], confined[marks], rtol=1e-3, atol=0)
    assert not torch.allclose(both[~marks], bounded[~marks], rtol=1e-6, atol=0)


def test_the_prior_of_a_bounded_attack_on_control_labels_is_theirs():
    trainer = Trainer([attack("q@1", "control+bounded"), attack("q@1", "bounded")], CORPUS, dtype=torch.float64)
    drawn, true = tiny.attackers_of(trainer)
    split = CORPUS.splits["train"]
    chance = control_labels(CORPUS, "pos", BASE.seed)[0][split.tokens]
    for group, of in ((drawn, chance), (true, split.labels["pos"])):
        labels = of[split.labels["pos"] >= 0].tolist()
        counted = [sum(label == c for label in labels) / len(labels) for c in range(CLASSES)]
        np.testing.assert_allclose(group.prior.numpy(), counted, rtol=0, atol=1e-12)
    assert 0 < float((drawn.prior - true.prior).abs().sum()) / 2 < NEAR


def test_a_site_attack_of_several_layers_trains_each_by_its_own_part_of_the_gradient():
    trainer = plainly(BASE, attack("q+v@1-2"), attack("q+v@1-2", "site"))
    base, plain, site = moved(trainer)
    upper, whole = own("q+v@2", trainer), own("q+v@1-2", trainer)
    torch.testing.assert_close(site[~whole], base[~whole], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(site[upper], plain[upper], rtol=1e-10, atol=1e-13)
    lower = whole & ~upper
    assert not torch.allclose(site[lower], plain[lower], rtol=1e-3)
    assert not torch.allclose(site[lower], base[lower], rtol=1e-3)


@pytest.mark.parametrize("variant", ["control", "bounded", "site", "bounded+site", "control+bounded+site"])
def test_an_attack_of_no_strength_is_no_attack(variant):
    base, none = moved(plainly(BASE, attack("k@2", variant, 0.0)))
    torch.testing.assert_close(base, none, rtol=1e-12, atol=1e-13)
