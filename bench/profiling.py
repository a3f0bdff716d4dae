"""Closed-form probes of many maps of one layer's input, against scikit-learn's logistic regression head by head.

python bench/profiling.py                  time, on made vectors
python bench/profiling.py MODEL CORPUS     agreement, on the heads of one layer of a model
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings

import numpy as np
import torch
from jaxtyping import Float
from paired import one_core, summary
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from trisect.experiments.profile.reading import COMPONENTS, head_maps, read_words
from trisect.experiments.profile.settings import ProfileSettings
from trisect.lab.inputs import ModelSource
from trisect.measure.profile import Prober, WordClasses, deal_folds, random_maps
from trisect.text.labels import labeller, open_labelled

WIDTH, INTO, HEADS, DRAWS, FOLDS = 384, 32, 36, 200, 5
WORDS, CLASSES, ROUNDS = 20_000, 17, 3
SINGLE = 2  # maps of a round that logistic regression is fitted to; the cost of a map is the same for all


def made(seed: int) -> Prober:
    """Words whose class moves their vector by a random step of its own."""
    draw = np.random.default_rng(seed)
    y = draw.choice(CLASSES, WORDS, p=(shares := 1 / np.arange(1, CLASSES + 1)) / shares.sum())
    x = draw.normal(size=(WORDS, WIDTH)) @ draw.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH)
    x += 0.5 * draw.normal(size=(CLASSES, WIDTH))[y]
    label = WordClasses("made", tuple(map(str, range(CLASSES))), y)
    return Prober(x.astype(np.float16), (label,), deal_folds(np.arange(WORDS) // 20, FOLDS, draw))


def regression(z: Float[np.ndarray, "N E"], label: WordClasses, fold: np.ndarray) -> tuple[float, float]:
    """Accuracy and bits of scikit-learn's logistic regression, cross-fitted over the same folds."""
    right, gained = 0.0, 0.0
    for f in range(int(fold.max()) + 1):
        train, test = fold != f, fold == f
        scaler = StandardScaler().fit(z[train])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = LogisticRegression(max_iter=300).fit(scaler.transform(z[train]), label.y[train])
        shares = fitted.predict_proba(scaler.transform(z[test]))
        place = {c: i for i, c in enumerate(fitted.classes_)}
        columns = np.array([place.get(c, -1) for c in label.y[test]])
        own = np.where(columns >= 0, shares[np.arange(len(columns)), columns], 1e-12)
        counts = np.bincount(label.y[train], minlength=len(label.classes)) + 1
        right += (shares.argmax(1) == columns).sum()
        gained += (np.log(own.clip(1e-12)) - np.log(counts / counts.sum())[label.y[test]]).sum()
    return right / len(z), gained / len(z) / math.log(2)


@one_core()
def rows() -> list[dict[str, object]]:
    """One row: all heads and random maps of a layer."""
    spent, gaps = [], []
    for seed in range(ROUNDS):
        prober, draw = made(seed), torch.Generator().manual_seed(seed)
        maps = random_maps(WIDTH, INTO, HEADS + DRAWS, draw)
        began = time.process_time()
        for one in maps[:SINGLE].numpy():
            gaps.append(regression(np.asarray(prober.x, np.float32) @ one, prober.labels[0], prober.fold)[0])
        between = time.process_time()
        found = prober.scores(maps).accuracy[:SINGLE, 0]
        ended = time.process_time()
        gaps[-SINGLE:] = [float(f) - g for f, g in zip(found, gaps[-SINGLE:], strict=True)]
        spent.append(((between - began) * (HEADS + DRAWS) / SINGLE, ended - between))
    done = summary(spent)
    row = {
        "what": f"probes of {HEADS + DRAWS} maps {WIDTH} → {INTO} of one layer, {WORDS:,} words, {CLASSES} classes",
        "plain": f"{done.plain:.0f} s",
        "ours": f"{done.ours:.1f} s",
        "ratio": done.ratio,
        "low": done.low,
        "high": done.high,
        "notes": [
            f"Plain: scikit-learn's logistic regression (L-BFGS), {SINGLE} maps a round, times {(HEADS + DRAWS) // SINGLE}; both with "
            f"{FOLDS} folds. Accuracy of the closed form less that of logistic regression: {min(gaps):+.4f} to {max(gaps):+.4f}."
        ],
    }
    return [row]


@one_core()
def agreement(model: str, corpus: str, label: str = "pos") -> dict[str, float]:
    """How far the closed form and logistic regression agree over the heads of the middle layer of a model."""
    settings = ProfileSettings(ModelSource(model), corpus, labels=(label,), words=8_000)
    subject, texts = settings.source.open(), open_labelled(corpus, "train", bare=True)
    read = read_words(subject, texts, labeller(texts, settings.labels, None), settings, lambda *_: None)
    fold = deal_folds(read.groups, FOLDS, np.random.default_rng(0))
    layer = list(read.layers.values())[len(read.layers) // 2]
    x = np.asarray(layer.taken["q"].finish(), np.float32) * layer.taken["q"].scale.numpy()
    prober, ours, theirs = Prober(x, read.labels, fold), [], []
    for component in COMPONENTS:
        assert component not in layer.own, "its heads are maps of what is read"
        found = head_maps(layer, component)
        scores = prober.scores(found)
        for i, one in enumerate(found.numpy()):
            ours.append((scores.accuracy[i, 0], scores.bits[i, 0]))
            theirs.append(regression(x @ one, read.labels[0], fold))
    a, b = np.array(ours), np.array(theirs)
    return {
        "heads": float(len(a)),
        "words": float(len(x)),
        "accuracy_closed_form": float(a[:, 0].mean()),
        "accuracy_regression": float(b[:, 0].mean()),
        "accuracy_correlation": float(np.corrcoef(a[:, 0], b[:, 0])[0, 1]),
        "bits_closed_form": float(a[:, 1].mean()),
        "bits_regression": float(b[:, 1].mean()),
        "bits_correlation": float(np.corrcoef(a[:, 1], b[:, 1])[0, 1]),
    }


if __name__ == "__main__":
    done = agreement(*sys.argv[1:]) if sys.argv[1:] else rows()
    print(json.dumps(done, indent=2, ensure_ascii=False))
