"""Laws of profiles: what a map reads is found, what it drops is not, random maps are calibrated, and no probe sees its test words."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from trisect.measure.profile import Prober, WordClasses, assign_folds, random_maps
from trisect.stats.null import Null

WIDTH, INTO, CLASSES = 24, 4, 5


def world(words=4000, seed=0, noise=1.0):
    """Vectors whose first four numbers carry a label; the rest are noise."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, CLASSES, words)
    x = draw.normal(size=(words, WIDTH)) * noise
    x[:, :4] += 1.5 * draw.normal(size=(CLASSES, 4))[y]
    return x.astype(np.float32), WordClasses("planted", tuple("abcde"), y)


def prober(x, *labels, folds=5, groups=None):
    groups = np.arange(len(x)) // 20 if groups is None else groups
    return Prober(x, labels, assign_folds(groups, folds, np.random.default_rng(1)))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_map_built_to_keep_a_label_lies_above_random_ones_and_one_built_to_drop_it_at_the_majority():
    x, label = world()
    keep, drop = torch.zeros(2, WIDTH, INTO)
    keep[:4] = torch.eye(4)
    drop[10:14] = torch.eye(4)
    asked = prober(x, label)
    found = asked.scores(torch.stack([keep, drop])).accuracy[:, 0]
    null = Null.of(asked.scores(random_maps(WIDTH, INTO, 200, generator())).accuracy[:, 0])
    every = asked.scores(torch.eye(WIDTH)[None]).accuracy[0, 0]
    assert float(null.beyond(found[:1])[0]) == pytest.approx(2 / 201)
    assert found[0] > null.draws[-1]
    assert found[1] < null.draws[0]
    # the kept four numbers hold all that there is; the dropped hold chance, give or take three standard errors
    assert found[0] == pytest.approx(every, abs=0.01)
    assert found[1] == pytest.approx(1 / CLASSES, abs=3 * 0.4 / np.sqrt(len(x)))


def test_a_map_that_drops_a_share_of_a_label_lies_below_in_the_order_of_the_shares():
    x, label = world(8000)
    maps = []
    for kept in (4, 2, 1, 0):
        one = torch.zeros(WIDTH, INTO)
        one[:kept, :kept] = torch.eye(kept)
        one[10 : 14 - kept, kept:] = torch.eye(4 - kept)
        maps.append(one)
    found = prober(x, label).scores(torch.stack(maps))
    assert (np.diff(found.accuracy[:, 0]) < 0).all()
    assert (np.diff(found.bits[:, 0]) < 0).all()
    assert found.bits[0, 0] > 0.3
    assert found.bits[-1, 0] == pytest.approx(0, abs=0.02)


def test_the_p_of_random_heads_is_uniform_among_random_maps():
    x, label = world(1500)
    found = prober(x, label).scores(random_maps(WIDTH, INTO, 400, generator(3))).accuracy[:, 0]
    null = Null.of(found[:200])
    for p in (null.beyond(found[200:]), null.t_p(found[200:])):
        # Kolmogorov's distance of 200 draws, at a level of 0.001: 1.95 / sqrt(200), and a step of 1/100 of p itself
        ends = np.sort(p)
        assert np.abs(ends - np.arange(1, 201) / 200).max() < 1.95 / np.sqrt(200) + 0.07
        assert (p < 0.05).mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200) + 0.02


def test_following_a_map_by_an_invertible_one_changes_nothing():
    x, label = world(1500)
    maps = random_maps(WIDTH, INTO, 6, generator())
    turned = maps @ torch.randn(6, INTO, INTO, generator=generator(4))
    one, other = (prober(x, label).scores(m) for m in (maps, turned))
    assert one.accuracy == pytest.approx(other.accuracy, abs=2 / 1500)  # a word on a border may fall to the other side
    assert one.bits == pytest.approx(other.bits, abs=1e-4)


def test_shifted_and_stretched_vectors_give_the_same_when_the_maps_undo_it():
    x, label = world(1500)
    stretch = torch.linspace(0.5, 3.0, WIDTH)
    maps = random_maps(WIDTH, INTO, 4, generator())
    one = prober(x, label).scores(maps)
    stored = ((x - 7) / stretch.numpy()).astype(np.float16)
    held = Prober(stored, (label,), prober(x, label).fold, stretch)
    other = held.scores(maps)
    assert one.accuracy == pytest.approx(other.accuracy, abs=0.01)
    assert one.bits == pytest.approx(other.bits, abs=0.005)


def test_probes_are_scikit_learns_discriminant_analysis_fold_by_fold():
    x, label = world(900)
    asked = prober(x, label, folds=3)
    maps = random_maps(WIDTH, INTO, 3, generator())
    found, expected = asked.scores(maps), np.zeros(3)
    for i, one in enumerate(maps.numpy()):
        z = x @ one
        for f in range(3):
            fitted = LinearDiscriminantAnalysis(solver="lsqr").fit(z[asked.fold != f], label.y[asked.fold != f])
            expected[i] += np.sum(fitted.predict(z[asked.fold == f]) == label.y[asked.fold == f])
    assert found.accuracy[:, 0] == pytest.approx(expected / 900, abs=0.005)  # a mean counts one word besides its own


def test_probes_see_no_word_of_their_own_group():
    draw = np.random.default_rng(5)
    groups = np.repeat(np.arange(60), 30)
    # every group has a point and a class of its own: found on sight by a probe that has met the group, else at chance
    x = (draw.normal(size=(60, WIDTH))[groups] + 0.1 * draw.normal(size=(1800, WIDTH))).astype(np.float32)
    label = WordClasses("group", tuple("abcde"), draw.integers(0, 5, 60)[groups])
    whole = torch.eye(WIDTH)[None]
    apart = prober(x, label, groups=groups).scores(whole).accuracy[0, 0]
    mixed = prober(x, label, groups=np.arange(1800)).scores(whole).accuracy[0, 0]
    assert apart < 0.45
    assert mixed > 0.55


def test_the_labels_of_a_fold_leave_its_own_predictions_alone():
    x, label = world(1000)
    asked = prober(x, label)
    changed = label.y.copy()
    changed[asked.fold == 0] = np.random.default_rng(2).permutation(changed[asked.fold == 0])
    maps = random_maps(WIDTH, INTO, 2, generator())
    from trisect.measure.profile import _fit

    fits = []
    for y in (label.y, changed):
        part = Prober(x, (WordClasses("planted", label.classes, y),), asked.fold)._label_groups[0]
        fits.append(next(_fit(part.moments, maps, part.spans)))
    for one, other in zip(*fits, strict=True):
        assert torch.equal(one, other)


def test_words_without_a_label_are_as_if_they_were_not_there():
    x, label = world(1200)
    y = label.y.copy()
    y[::3] = -1
    gaps = WordClasses("gaps", label.classes, y)
    asked = prober(x, label, gaps)
    kept = y >= 0
    alone = Prober(x[kept], (WordClasses("gaps", label.classes, y[kept]),), asked.fold[kept])
    maps = random_maps(WIDTH, INTO, 3, generator())
    both, one = asked.scores(maps), alone.scores(maps)
    assert both.accuracy[:, 1] == pytest.approx(one.accuracy[:, 0], abs=1e-12)
    assert not np.allclose(both.accuracy[:, 0], both.accuracy[:, 1])


def test_folds_keep_groups_whole_and_are_of_about_one_size():
    groups = np.repeat(np.arange(50), np.random.default_rng(0).integers(5, 60, 50))
    fold = assign_folds(groups, 5, np.random.default_rng(3))
    assert all(len(set(fold[groups == g])) == 1 for g in range(50))
    sizes = np.bincount(fold)
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() < 60
    assert not np.array_equal(fold, assign_folds(groups, 5, np.random.default_rng(4)))


def resident(name):
    """Bytes of a mapped file that are in this process's memory; 0 where the system does not say."""
    maps = Path("/proc/self/smaps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    starts = [i for i, line in enumerate(lines) if line.endswith(name)]
    return sum(1024 * int(line.split()[1]) for i in starts for line in lines[i : i + 12] if line.startswith("Rss:"))


def test_of_words_on_disk_no_page_stays_in_memory_and_the_numbers_are_the_same(tmp_path):
    x, label = world(20_000)
    path = tmp_path / "words.npy"
    stored = x.astype(np.float16)
    np.save(path, stored)
    mapped = np.load(path, mmap_mode="r")
    maps = random_maps(WIDTH, INTO, 3, generator())
    found, whole = prober(mapped, label).scores(maps), prober(stored, label).scores(maps)
    for on_disk, in_memory in zip(found, whole, strict=True):
        np.testing.assert_array_equal(on_disk, in_memory)
    assert resident(path.name) < mapped.nbytes / 10


def test_a_map_to_nothing_finds_the_majority_and_no_bits_and_of_classes_that_tie_one_alone_is_right():
    x, label = world(1000)
    y = np.where(label.y == 0, 1, label.y)
    found = prober(x, WordClasses("uneven", label.classes, y)).scores(torch.zeros(1, WIDTH, INTO))
    assert found.accuracy[0, 0] == pytest.approx((y == 1).mean())
    assert found.bits[0, 0] == pytest.approx(0, abs=1e-5)
    x = np.ones((400, 8), dtype=np.float32) * np.random.default_rng(0).normal(size=8).astype(np.float32)
    y = np.arange(400) % 2  # two words, one vector: as often as each other in every fold
    tied = prober(x, WordClasses("word", ("in", "born"), y))
    assert tied.identity_scores().accuracy[0, 0] == pytest.approx(0.5, abs=0.02)


def test_scores_of_the_whole_and_of_random_maps_are_the_same_bits_however_they_are_made():
    for width, into, number in ((20, 4, 40), (19, 3, 200), (64, 8, 16)):  # made as they are used, or at once
        draw = generator(5)
        parts = [random_maps(width, into, min(16, number - i), draw) for i in range(0, number, 16)]
        assert torch.equal(torch.cat(parts), random_maps(width, into, number, generator(5)))
    x, label = world(900)
    for scale in (None, torch.rand(WIDTH, generator=generator(2)) + 0.1):
        asked = Prober(x, (label,), assign_folds(np.arange(900) // 20, 5, np.random.default_rng(1)), scale)
        one, other = asked.identity_scores(), asked.scores(torch.eye(WIDTH)[None])
        assert np.array_equal(one.accuracy, other.accuracy)
        assert np.array_equal(one.bits, other.bits)
        steps: list[int] = []
        one = asked.random_scores(INTO, 40, generator(3), steps.append)
        other = asked.scores(random_maps(WIDTH, INTO, 40, generator(3)))
        assert np.array_equal(one.accuracy, other.accuracy)
        assert np.array_equal(one.bits, other.bits)
        assert steps == [16, 32, 40]


def few_vectors(words=4000, different=20, classes=26, width=64):
    """Words of which several are the same vector, and what a look-up of the vector would get right."""
    draw = np.random.default_rng(5)
    table, y = draw.normal(size=(different, width)), draw.integers(0, classes, words)
    at = y % different
    counts = np.zeros((different, classes))
    np.add.at(counts, (at, y), 1)
    label = WordClasses("word", tuple(map(str, range(classes))), y)
    return (10 + table[at]).astype(np.float32), label, counts.max(1).sum() / words


def test_where_there_are_few_different_vectors_a_probe_finds_what_looking_them_up_finds():
    x, label, looked_up = few_vectors()
    asked = prober(x, label)
    assert asked.identity_scores().accuracy[0, 0] == pytest.approx(looked_up, abs=0.02)
    random = asked.scores(random_maps(x.shape[1], 24, 50, generator())).accuracy[:, 0]
    assert random.mean() == pytest.approx(looked_up, abs=0.02)
    assert random.std() < 0.01
