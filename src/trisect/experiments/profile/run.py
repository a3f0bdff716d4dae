"""Profile of a model: what each head's q, k and v keep and drop of each label, against random maps of the same input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Int

from trisect.claims.heads import judge_heads
from trisect.core.errors import CorpusError, SpecError
from trisect.core.finding import About
from trisect.core.subject import Subject
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Projections
from trisect.experiments.profile.causal import CausalTwin, erase_labels
from trisect.experiments.profile.check import mlp_rows
from trisect.experiments.profile.exchange import exchange, exchange_rows, held_share
from trisect.experiments.profile.pairs import check_pairs, crossing, no_bitext, read_pairs
from trisect.experiments.profile.reading import (
    COMPONENTS,
    LayerWords,
    ReadSide,
    StoredWords,
    WordsRead,
    as_used,
    head_maps,
    read_words,
    weights_of,
)
from trisect.experiments.profile.replicates import profile_replicates
from trisect.experiments.profile.settings import CROSS, ProfileFacts, ProfileSettings
from trisect.experiments.profile.stages import EPOCHS, EpochWeights, Stage, epochs_of, places_of, stage_rows
from trisect.experiments.profile.statistics import (
    LayerScores,
    MeanTest,
    barred,
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
from trisect.text.bitext import is_bitext
from trisect.text.labelled import LabelledTexts, open_labelled
from trisect.text.pair_classes import check_pair_labels, open_pairs, pair_labeller
from trisect.text.word_classes import WordLabeller, check_labels, labeller

OTHER_WORDS = "cross-attention's queries are of other words than its keys and values, and the claim speaks of the words of one text"


def check(settings: ProfileSettings) -> None:
    """Raise TrisectError where the corpus, its split or a label is missing, or what is asked has no meaning together."""
    if settings.attention == CROSS:
        check_pairs(settings)
        check_pair_labels(open_pairs(settings.corpus, settings.split), settings.labels or ())
    else:
        check_labels(_texts(settings), settings.labels or ())
    if settings.labels is not None and not settings.labels:
        raise SpecError(
            "No label was given.", "A profile is of labels.", "Name labels such as pos, or leave --labels out."
        )


def _texts(settings: ProfileSettings) -> LabelledTexts:
    try:
        return open_labelled(settings.corpus, settings.split, settings.reader, bare=True)
    except CorpusError as error:
        raise (no_bitext(error) if is_bitext(settings.corpus) else error) from None


class ReadCorpus(NamedTuple):
    """Texts or sentence pairs, their labels, and what reads their words in a model; `texts` and `label` of texts alone."""

    name: str
    fingerprint: str
    labels: tuple[str, ...]
    read: Callable[[Subject, Callable[[int, int], object]], WordsRead]
    texts: LabelledTexts | None = None
    label: WordLabeller | None = None

    @classmethod
    def of(cls, settings: ProfileSettings) -> ReadCorpus:
        """What the settings name; raises CorpusError."""
        if settings.attention == CROSS:
            pairs = open_pairs(settings.corpus, settings.split)
            side = pair_labeller(pairs, settings.labels, settings.limit)
            reads = lambda subject, step: read_pairs(subject, pairs, side, settings, step)  # noqa: E731
            return cls(pairs.name, pairs.fingerprint, side.labels, reads)
        texts = _texts(settings)
        label = labeller(texts, settings.labels, settings.limit)
        reads = lambda subject, step: read_words(subject, texts, label, settings, step)  # noqa: E731
        return cls(texts.name, texts.fingerprint, label.labels, reads, texts, label)


def check_model(settings: ProfileSettings, subject: Subject) -> None:
    """Raise ModelError for a model without cross-attention where that is asked for."""
    if settings.attention == CROSS:
        crossing(subject)


def measure(settings: ProfileSettings, bench: Bench) -> Measured[ProfileFacts]:
    """Read words, fit closed-form probes to every head's q, k and v and to random maps, and compare.

    Texts of one article (or, where none is marked, up to 20 that follow one another) share a fold, and every word is predicted
    by probes that were fitted to other folds. Raises TrisectError.
    """
    subject = bench.subject
    check_model(settings, subject)
    own = isinstance(subject, OwnModel)
    epochs = epochs_of(settings.source, subject, settings.checkpoints)
    revisions = () if own else places_of(settings.source, settings.checkpoints)
    corpus = ReadCorpus.of(settings)
    read, scores, checked = _profile(subject, corpus, settings, bench, epochs, settings.mlp)
    twin = None
    if settings.causal is not None and corpus.label is not None:
        twin = erase_labels(settings, corpus.label, read.labels, read.layers, bench)
    stages = [Stage(e.name, [replace(s, heads=s.epochs[i]) for s in scores]) for i, e in enumerate(epochs)]
    for one in revisions:
        there = _profile(one.source.open(), corpus, settings, bench)
        stages.append(Stage(one.name, there[1]))
    moved = None
    if subject.objective != "seq2seq" and corpus.texts is not None:
        with bench.progress("another text's parts"):
            moved = exchange(subject, corpus.texts.texts, tuple(read.layers), settings.batch, settings.seed)
    made = chain(
        rows(scores, read.sides),
        stage_rows(stages, corpus.labels),
        checked,
        () if twin is None else twin.rows,
        () if moved is None else exchange_rows(moved, settings.seed),
    )
    measures = frame("measures", ({"subject": subject.name, **row} for row in made))
    unread = barred(scores, corpus.labels, {address: layer.own for address, layer in read.layers.items()})
    found = evidence(scores, corpus.labels, settings.seed, unread)
    if moved is not None and (share := held_share(moved, settings.seed)) is not None:
        found["held_share_v"] = share
    facts = _facts(settings, bench, read, corpus, stages, twin)

    def judge(about: About[ProfileFacts]) -> pl.DataFrame:
        named = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "words", "draws", "seed")
        missing = OTHER_WORDS if settings.attention == CROSS else unread
        return judge_heads(profile.SOURCE, found, {name: getattr(about.facts, name) for name in named}, missing)

    notes = (*read.notes, *((EPOCHS,) if epochs else ()), *(() if twin is None else twin.notes))
    notes += () if moved is None else moved.notes
    packages = ("transformers",) if twin is None else ("transformers", "concept-erasure")
    notes, drawn = tuple(dict.fromkeys(notes)), profile_replicates(scores, corpus.labels, moved, settings.seed)
    return Measured({"measures": measures}, facts, notes, judge, "head", packages=packages, replicates=drawn)


def _profile(
    subject: Subject,
    corpus: ReadCorpus,
    settings: ProfileSettings,
    bench: Bench,
    epochs: Sequence[EpochWeights] = (),
    mlp: bool = False,
) -> tuple[WordsRead, list[LayerScores], list[NewRow]]:
    """Read the words in one model, and score its layers one by one; with `mlp` also rows of MLP probes."""
    with bench.progress(f"Words, {subject.name}") as step:
        read = corpus.read(subject, step)
    folds = [deal_folds(s.groups, _folds(settings, s), np.random.default_rng([settings.seed, 1])) for s in read.sides]
    scores: list[LayerScores] = []
    checked: list[NewRow] = []
    with bench.progress(f"{', '.join(corpus.labels)} in {len(read.layers)} layers") as step:
        for number, (address, layer) in enumerate(read.layers.items()):

            def advance(share: float, before: int = number) -> None:
                step(int(100 * (before + share)), 100 * len(read.layers))

            scores.append(score_layer(address, layer, read.sides, folds, settings, advance, epochs))
            for side, fold in zip(read.sides, folds, strict=True) if mlp else ():
                checked += mlp_rows(address, layer, side, fold, settings.seed)
    return read, scores, checked


def score_layer(
    address: Address,
    layer: LayerWords,
    sides: Sequence[ReadSide],
    folds: Sequence[Int[np.ndarray, " N"]],
    settings: ProfileSettings,
    advance: Callable[[float], object],
    epochs: Sequence[EpochWeights] = (),
) -> LayerScores:
    """Probes of every head's q, k and v (and of earlier epochs'), of random maps as wide, and of all that each reads, of one layer.

    Words of one side after the other. The moments of one store of words are held at a time: those of the layer's input come last.
    """
    heads, nulls, wholes = dict[str, MapScores](), dict[str, MapScores](), dict[str, MapScores]()
    earlier: list[dict[str, MapScores]] = [{} for _ in epochs]
    for at, (side, fold) in enumerate(zip(sides, folds, strict=True)):
        own = [c for c in side.components if c in layer.own]
        heads |= {c: _prober(layer.own[c], side.labels, fold).scores(head_maps(layer, c)) for c in own}
        taken = _prober(layer.taken[side.components[0]], side.labels, fold)
        heads |= {c: taken.scores(head_maps(layer, c)) for c in side.components if c not in own}
        widths = {c: layer.heads[c][1] for c in side.components}
        by_width: dict[int, MapScores] = {}
        for number, into in enumerate(sorted(set(widths.values()))):
            draw = torch.Generator().manual_seed(_seed(settings.seed, address, into))
            base, parts = at + number / len(set(widths.values())), len(sides)
            by_width[into] = taken.random_scores(
                into,
                settings.draws,
                draw,
                lambda done, base=base, parts=parts: advance((base + 0.9 * done / settings.draws) / parts),
            )
        nulls |= {c: by_width[w] for c, w in widths.items()}
        wholes |= dict.fromkeys(side.components, taken.whole_scores())
        for found, epoch in zip(earlier, epochs, strict=True):
            found |= _weighed(taken, epoch.projections[address], side.components)
    heads, nulls = ({c: of[c] for c in COMPONENTS} for of in (heads, nulls))
    return LayerScores(address, heads, nulls, wholes, tuple(earlier))


def _weighed(taken: Prober, projections: Projections, components: Sequence[str]) -> dict[str, MapScores]:
    """The scores of other weights of the same layer."""
    found = {c: weights_of(projections, c) for c in components}
    return {c: taken.scores(maps[0]) for c, maps in found.items() if maps is not None}


def _prober(stored: StoredWords, labels: tuple[WordClasses, ...], fold: Int[np.ndarray, " N"]) -> Prober:
    return Prober(stored.finish(), labels, fold, stored.scale)


def _seed(seed: int, address: Address, into: int) -> int:
    return int(np.random.default_rng([seed, *str(address).encode(), into]).integers(2**62))


def rows(scores: Sequence[LayerScores], sides: Sequence[ReadSide]) -> Iterator[NewRow]:
    """The table `measures`: heads, random maps, the whole input, means over heads, and pairs; Holm label by label."""
    for at, label in enumerate(sides[0].labels):
        labels = {c: side.labels[at] for side in sides for c in side.components}
        words = {c: int((of.y >= 0).sum()) for c, of in labels.items()}
        for one in scores:
            yield from _layer_rows(one, at, labels, words)
        yield from _head_rows(scores, at, label.name, words)
        yield from _mean_rows(scores, at, label.name)


def _named(address: Address, label: str) -> NewRow:
    return {"stack": address.stack, "layer": address.layer, "group": label}


def _layer_rows(
    one: LayerScores, at: int, labels: Mapping[str, WordClasses], words: Mapping[str, int]
) -> Iterator[NewRow]:
    """Random maps, the whole input and the most frequent class (of each component where words differ); q, k and v in pairs."""
    named = _named(one.address, labels["q"].name)
    for component in COMPONENTS:
        null, bits = one.null(component, at), one.nulls[component].bits[:, at]
        of = named | {"component": component, "n": len(null.draws)}
        ends = {"low": null.quantile(ALPHA / 2), "high": null.quantile(1 - ALPHA / 2)}
        yield of | {"measure": "profile_random", "value": null.mean} | ends
        yield of | {"measure": "profile_random_spread", "value": null.spread}
        yield of | {"measure": "profile_random_bits", "value": float(bits.mean())}
    for component in COMPONENTS if one.apart else COMPONENTS[:1]:
        whole = named | {"n": words[component]} | ({"component": component} if one.apart else {})
        yield whole | {"measure": "profile_input", "value": float(one.wholes[component].accuracy[0, at])}
        yield whole | {"measure": "profile_input_bits", "value": float(one.wholes[component].bits[0, at])}
        yield whole | {"measure": "profile_majority", "value": labels[component].majority}
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


def _head_rows(scores: Sequence[LayerScores], at: int, label: str, words: Mapping[str, int]) -> Iterator[NewRow]:
    """Every head's numbers; p after Holm over all heads of the model and q, k and v."""
    found = [(one, c, head_tests(one, c, at)) for one in scores for c in COMPONENTS]
    adjusted = iter(holm(np.concatenate([tests.p_drawn for _, _, tests in found])))
    for one, component, tests in found:
        for head in range(len(tests.p)):
            of = _named(one.address, label) | {"component": component, "head": head + 1, "n": words[component]}
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


def _folds(settings: ProfileSettings, side: ReadSide) -> int:
    """How many folds there are: as many as were asked for, or groups of texts where these are fewer."""
    return min(settings.folds, len(np.unique(side.groups)))


def _facts(
    settings: ProfileSettings,
    bench: Bench,
    read: WordsRead,
    corpus: ReadCorpus,
    stages: Sequence[Stage],
    twin: CausalTwin | None,
) -> ProfileFacts:
    return ProfileFacts(
        bench.subject.name,
        bench.subject.fingerprint,
        corpus.name,
        corpus.fingerprint,
        read.texts,
        len(read.groups),
        len(np.unique(read.groups)),
        tuple(label.name for label in read.labels),
        tuple(len(label.classes) for label in read.labels),
        settings.per,
        settings.draws,
        _folds(settings, read.sides[0]),
        settings.seed,
        settings.limit,
        tuple(stage.name for stage in stages),
        settings.mlp,
        None if twin is None else twin.corpus,
        0 if twin is None else twin.texts,
        "share" if bench.subject.objective == "output" else "nats",
        settings.attention,
        sum(len(side.groups) for side in read.sides[1:]),
        tuple(len(label.classes) for side in read.sides[1:] for label in side.labels),
        tuple(c for c in COMPONENTS if c in as_used(read.layers)),
    )
