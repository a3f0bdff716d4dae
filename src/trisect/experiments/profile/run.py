"""Profile of a model: what each head's q, k and v keep and drop of each label, against random maps of the same input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import polars as pl
import torch
from jaxtyping import Int

from trisect.claims.heads import judge_heads
from trisect.core.errors import SpecError
from trisect.core.finding import About
from trisect.core.subject import Subject
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Projections
from trisect.experiments.profile.causal import CausalTwin, erase_labels
from trisect.experiments.profile.check import mlp_rows
from trisect.experiments.profile.exchange import exchange, exchange_rows, held_share
from trisect.experiments.profile.reading import (
    COMPONENTS,
    LayerWords,
    StoredWords,
    WordsRead,
    head_maps,
    read_words,
    weights_of,
)
from trisect.experiments.profile.replicates import profile_replicates
from trisect.experiments.profile.settings import ProfileFacts, ProfileSettings
from trisect.experiments.profile.stages import EPOCHS, EpochWeights, Stage, epochs_of, places_of, stage_rows
from trisect.experiments.profile.statistics import (
    LayerScores,
    MeanTest,
    evidence,
    head_tests,
    mean_over_model,
    mean_over_random,
    pair_tests,
)
from trisect.lab.experiment import Bench, Measured
from trisect.lm.reading import OwnModel
from trisect.measure.profile import MapScores, Prober, WordClasses, deal_folds
from trisect.papers import profile
from trisect.stats.correct import holm
from trisect.stats.tested import ALPHA, finite
from trisect.text.labelled import LabelledTexts, open_labelled
from trisect.text.word_classes import WordLabeller, check_labels, labeller


def check(settings: ProfileSettings) -> None:
    """Raise TrisectError where the corpus, its split or a label is missing."""
    check_labels(open_labelled(settings.corpus, settings.split, settings.reader, bare=True), settings.labels or ())
    if settings.labels is not None and not settings.labels:
        raise SpecError(
            "No label was given.", "A profile is of labels.", "Name labels such as pos, or leave --labels out."
        )


def measure(settings: ProfileSettings, bench: Bench) -> Measured[ProfileFacts]:
    """Read words, fit closed-form probes to every head's q, k and v and to random maps, and compare.

    Texts of one article (or, where none is marked, up to 20 that follow one another) share a fold, and every word is predicted
    by probes that were fitted to other folds. Raises TrisectError.
    """
    subject = bench.subject
    own = isinstance(subject, OwnModel)
    epochs = epochs_of(settings.source, subject, settings.checkpoints)
    revisions = () if own else places_of(settings.source, settings.checkpoints)
    texts = open_labelled(settings.corpus, settings.split, settings.reader, bare=True)
    label = labeller(texts, settings.labels, settings.limit)
    read, scores, checked = _profile(subject, texts, label, settings, bench, epochs, settings.mlp)
    twin = None
    if settings.causal is not None:
        twin = erase_labels(settings, label, read.labels, read.layers, bench)
    stages = [Stage(e.name, [replace(s, heads=s.epochs[i]) for s in scores]) for i, e in enumerate(epochs)]
    for number, one in enumerate(revisions, start=1):
        there = _profile(one.source.open(), texts, label, settings, bench, part=f"layers-{number}")
        stages.append(Stage(one.name, there[1]))
    moved = None
    if subject.objective != "seq2seq":
        with bench.progress("another text's parts"):
            moved = exchange(subject, texts.texts, tuple(read.layers), settings.batch, settings.seed)
    made = chain(
        rows(scores, read.labels),
        stage_rows(stages, label.labels),
        checked,
        () if twin is None else twin.rows,
        () if moved is None else exchange_rows(moved, settings.seed),
    )
    measures = frame("measures", ({"subject": subject.name, **row} for row in made))
    found = evidence(scores, label.labels, settings.seed)
    if moved is not None and (share := held_share(moved, settings.seed)) is not None:
        found["held_share_v"] = share
    facts = _facts(settings, bench, read, texts, stages, twin)

    def judge(about: About[ProfileFacts]) -> pl.DataFrame:
        named = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "words", "draws", "seed")
        return judge_heads(profile.SOURCE, found, {name: getattr(about.facts, name) for name in named})

    notes = (*read.notes, *((EPOCHS,) if epochs else ()), *(() if twin is None else twin.notes))
    notes += () if moved is None else moved.notes
    packages = ("transformers",) if twin is None else ("transformers", "concept-erasure")
    notes, drawn = tuple(dict.fromkeys(notes)), profile_replicates(scores, label.labels, moved, settings.seed)
    return Measured({"measures": measures}, facts, notes, judge, "head", packages=packages, replicates=drawn)


def _profile(
    subject: Subject,
    texts: LabelledTexts,
    label: WordLabeller,
    settings: ProfileSettings,
    bench: Bench,
    epochs: Sequence[EpochWeights] = (),
    mlp: bool = False,
    part: str = "layers",
) -> tuple[WordsRead, list[LayerScores], list[NewRow]]:
    """Read the words in one model, and score its layers one by one; with `mlp` also rows of MLP probes."""
    with bench.progress(f"Words, {subject.name}") as step:
        read = read_words(subject, texts, label, settings, step)
    fold = deal_folds(read.groups, _folds(settings, read), np.random.default_rng([settings.seed, 1]))
    scores: list[LayerScores] = []
    checked: list[NewRow] = []
    with bench.progress(f"{', '.join(label.labels)} in {len(read.layers)} layers") as step:
        layers, state = enumerate(read.layers.items()), {"scores": scores, "checked": checked}
        for number, (address, layer) in bench.going_on(part, layers, state, (LayerScores, MapScores)):

            def advance(share: float, before: int = number) -> None:
                step(int(100 * (before + share)), 100 * len(read.layers))

            scores.append(score_layer(address, layer, read.labels, fold, settings, advance, epochs))
            checked += mlp_rows(address, layer, read.labels, fold, settings.seed) if mlp else ()
    return read, scores, checked


def score_layer(
    address: Address,
    layer: LayerWords,
    labels: tuple[WordClasses, ...],
    fold: Int[np.ndarray, " N"],
    settings: ProfileSettings,
    advance: Callable[[float], object],
    epochs: Sequence[EpochWeights] = (),
) -> LayerScores:
    """Probes of every head's q, k and v (and of earlier epochs'), of random maps as wide, and of the whole input of one layer.

    The moments of one store of words are held at a time: those of the layer's input come last.
    """
    own = {c: _prober(layer.own[c], labels, fold).scores(head_maps(layer, c)) for c in COMPONENTS if c in layer.own}
    taken = _prober(layer.taken, labels, fold)
    heads = {c: own[c] if c in own else taken.scores(head_maps(layer, c)) for c in COMPONENTS}
    widths = {c: layer.heads[c][1] for c in COMPONENTS}
    by_width: dict[int, MapScores] = {}
    for number, into in enumerate(sorted(set(widths.values()))):
        draw = torch.Generator().manual_seed(_seed(settings.seed, address, into))
        base = number / len(set(widths.values()))
        by_width[into] = taken.random_scores(
            into, settings.draws, draw, lambda done, base=base: advance(base + 0.9 * done / settings.draws)
        )
    whole = taken.whole_scores()
    earlier = tuple(_weighed(taken, epoch.projections[address]) for epoch in epochs)
    return LayerScores(address, heads, {c: by_width[w] for c, w in widths.items()}, whole, earlier)


def _weighed(taken: Prober, projections: Projections) -> dict[str, MapScores]:
    """The scores of other weights of the same layer."""
    found = {c: weights_of(projections, c) for c in COMPONENTS}
    return {c: taken.scores(maps[0]) for c, maps in found.items() if maps is not None}


def _prober(stored: StoredWords, labels: tuple[WordClasses, ...], fold: Int[np.ndarray, " N"]) -> Prober:
    return Prober(stored.finish(), labels, fold, stored.scale)


def _seed(seed: int, address: Address, into: int) -> int:
    return int(np.random.default_rng([seed, *str(address).encode(), into]).integers(2**62))


def rows(scores: Sequence[LayerScores], labels: Sequence[WordClasses]) -> Iterator[NewRow]:
    """The table `measures`: heads, random maps, the whole input, means over heads, and pairs; Holm label by label."""
    for at, label in enumerate(labels):
        words = int((label.y >= 0).sum())
        for one in scores:
            yield from _layer_rows(one, at, label, words)
        yield from _head_rows(scores, at, label.name, words)
        yield from _mean_rows(scores, at, label.name)


def _named(address: Address, label: str) -> NewRow:
    return {"stack": address.stack, "layer": address.layer, "group": label}


def _layer_rows(one: LayerScores, at: int, label: WordClasses, words: int) -> Iterator[NewRow]:
    """Random maps, the whole input and the most frequent class; q, k and v in pairs."""
    named = _named(one.address, label.name)
    for component in COMPONENTS:
        null, bits = one.null(component, at), one.nulls[component].bits[:, at]
        of = named | {"component": component, "n": len(null.draws)}
        ends = {"low": null.quantile(ALPHA / 2), "high": null.quantile(1 - ALPHA / 2)}
        yield of | {"measure": "profile_random", "value": null.mean} | ends
        yield of | {"measure": "profile_random_spread", "value": null.spread}
        yield of | {"measure": "profile_random_bits", "value": float(bits.mean())}
    whole = named | {"n": words}
    yield whole | {"measure": "profile_input", "value": float(one.whole.accuracy[0, at])}
    yield whole | {"measure": "profile_input_bits", "value": float(one.whole.bits[0, at])}
    yield whole | {"measure": "profile_majority", "value": label.majority}
    yield from _pair_rows([one], at, named)


def _pair_rows(scores: Sequence[LayerScores], at: int, named: NewRow) -> Iterator[NewRow]:
    for pair, (test, p_holm) in pair_tests(scores, at).items():
        yield from _test_rows(named | {"component": pair}, "profile_difference", test, p_holm)


def _test_rows(named: NewRow, measure: str, test: MeanTest, p_holm: float) -> Iterator[NewRow]:
    """A mean with its interval, and its p after Holm."""
    of = named | {"n": test.n}
    low, high = (finite(end) for end in test.ends)
    yield of | {"measure": measure, "value": test.value, "low": low, "high": high}
    yield of | {"measure": f"{measure}_p_holm", "value": p_holm}


def _head_rows(scores: Sequence[LayerScores], at: int, label: str, words: int) -> Iterator[NewRow]:
    """Every head's numbers; p after Holm over all heads of the model and q, k and v."""
    found = [(one, c, head_tests(one, c, at)) for one in scores for c in COMPONENTS]
    adjusted = iter(holm(np.concatenate([tests.p_drawn for _, _, tests in found])))
    for one, component, tests in found:
        for head in range(len(tests.p)):
            of = _named(one.address, label) | {"component": component, "head": head + 1, "n": words}
            values = {
                "accuracy": tests.accuracy[head],
                "bits": tests.bits[head],
                "z": tests.z[head],
                "p": tests.p[head],
                "p_holm": next(adjusted),
                "among": tests.among[head],
            }
            yield from (of | {"measure": f"profile_{name}", "value": finite(v)} for name, v in values.items())


def _mean_rows(scores: Sequence[LayerScores], at: int, label: str) -> Iterator[NewRow]:
    """Means over heads less random maps; p after Holm over layers and q, k and v. Without a layer: over all layers' heads.

    There Holm is over q, k and v alone.
    """
    found = [(one, c, mean_over_random(one, c, at)) for one in scores for c in COMPONENTS]
    adjusted = holm([test.p for _, _, test in found])
    for (one, component, test), p_holm in zip(found, adjusted, strict=True):
        of, own = _named(one.address, label) | {"component": component}, one.heads[component]
        yield of | {"n": test.n, "measure": "profile_accuracy", "value": float(own.accuracy[:, at].mean())}
        yield of | {"n": test.n, "measure": "profile_bits", "value": float(own.bits[:, at].mean())}
        yield from _test_rows(of, "profile_gain", test, float(p_holm))
    whole = [mean_over_model(scores, c, at) for c in COMPONENTS]
    of: NewRow = {"stack": scores[0].address.stack, "group": label}
    for component, test, p_holm in zip(COMPONENTS, whole, holm([test.p for test in whole]), strict=True):
        yield from _test_rows(of | {"component": component}, "profile_gain", test, float(p_holm))
    yield from _pair_rows(scores, at, of)


def _folds(settings: ProfileSettings, read: WordsRead) -> int:
    """How many folds there are: as many as were asked for, or groups of texts where these are fewer."""
    return min(settings.folds, len(np.unique(read.groups)))


def _facts(
    settings: ProfileSettings,
    bench: Bench,
    read: WordsRead,
    texts: LabelledTexts,
    stages: Sequence[Stage],
    twin: CausalTwin | None,
) -> ProfileFacts:
    return ProfileFacts(
        bench.subject.name,
        bench.subject.fingerprint,
        texts.name,
        texts.fingerprint,
        read.texts,
        len(read.groups),
        len(np.unique(read.groups)),
        tuple(label.name for label in read.labels),
        tuple(len(label.classes) for label in read.labels),
        settings.per,
        settings.draws,
        _folds(settings, read),
        settings.seed,
        settings.limit,
        tuple(stage.name for stage in stages),
        settings.mlp,
        None if twin is None else twin.corpus,
        0 if twin is None else twin.texts,
        "share" if bench.subject.objective == "output" else "nats",
    )
