"""Expected time and disk of a study, from its shape; rough, and said so."""

from __future__ import annotations

from trisect.core.methods import ON_TRAIN, mapped_layers
from trisect.core.spec import Design, Run
from trisect.lm.fleet import size

PRODUCT = 120e9  # float32 operations a second of one core in the larger products
# seconds per token and unit of width, score and logit, fitted to two sizes on one 2.6 GHz core
WIDTH, SCORE, LOGIT = 8e-8, 6e-9, 4e-9
PROBE = 0.5  # seconds of one probe of 20,000 tokens at width 100, fitted once
BASE = 400_000_000  # bytes of a process with PyTorch that has trained nothing yet
ERASED = 30_000  # tokens of one erasure, those it is fitted on with them


def products(run: Run, vocabulary: int) -> float:
    """Operations of one token's products in one forward pass of one run."""
    m, window = run.model, run.training.window
    layer = 8 * m.width**2 + 4 * m.width * m.feedforward + 4 * window * m.width
    return m.layers * layer + 2 * m.width * vocabulary


def token_seconds(run: Run, vocabulary: int, training: bool) -> float:
    """Seconds of one core for one token of one run, forwards and (in training) backwards."""
    m, window = run.model, run.training.window
    rest = m.layers * (WIDTH * m.width + SCORE * m.heads * window) + LOGIT * vocabulary
    whole = 3 * products(run, vocabulary) / PRODUCT + rest
    if not training:
        return whole / 3
    return whole + (run.edit.token_seconds(m.width) if run.edit else 0.0)


def training_seconds(run: Run, vocabulary: int, train: int, evaluated: int) -> float:
    """Seconds of one core for a whole run over `train` tokens an epoch, evaluated on `evaluated` tokens after each."""
    epochs = run.training.epochs
    return epochs * train * token_seconds(run, vocabulary, True) + (epochs + 1) * evaluated * token_seconds(
        run, vocabulary, False
    )


def rewinding_seconds(baseline: Run, vocabulary: int, evaluated: int, variants: int) -> float:
    """Seconds of one core for one site's curve: on average 0.6 of the layers are run again."""
    return 0.6 * variants * evaluated * token_seconds(baseline, vocabulary, False)


def listening_seconds(run: Run, vocabulary: int, kind: str, experiment: Design) -> float:
    """Seconds of one core for a run's probes of one label, or for one erasure with its random controls."""
    if kind == "erase":
        draws = experiment.erase.draws if experiment.erase else 0
        return (2 + draws) * ERASED * token_seconds(run, vocabulary, False)
    asked = experiment.probe
    if asked is None:
        return 0.0
    # as many folds as FOLDS, of less text each
    times = 1 if asked.fitted == ON_TRAIN else 2
    sites = [site.resolve(run.model.layers, run.model.heads) for site in asked.sites or ()]
    probed = (len(sites) or 3 * run.model.layers) + asked.random_maps * len(mapped_layers(sites))
    return PROBE * times * len(asked.kinds) * probed * run.model.width / 100


def disk_bytes(runs: list[Run], vocabulary: int) -> int:
    """Bytes that stay: every run's final weights, and the baselines' in-projections of every epoch."""
    total = 0
    for run in runs:
        total += 4 * size(run.model, vocabulary)
        if run.edit is None:
            total += 4 * (run.training.epochs + 1) * run.model.layers * 3 * run.model.width * (run.model.width + 1)
    return total


def memory_bytes(experiment: Design, vocabulary: int, members: int) -> int:
    """About how many bytes one worker process holds while it trains `members` runs side by side.

    Of every member the weights, gradients, moments and initial weights; of a step what the backward pass needs.
    """
    m, t = experiment.model, experiment.training
    positions = t.columns * t.window
    layer = 14 * m.width + 3 * m.feedforward + 3 * m.heads * t.window
    step = 4 * positions * (m.layers * layer + 3 * vocabulary)
    return BASE + members * (5 * 4 * size(m, vocabulary) + step)
