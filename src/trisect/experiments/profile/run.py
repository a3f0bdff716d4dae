"""Profile of a model: what each head's q, k and v encode of each label, against random maps of the same input."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.claims.models import LayerMeans, ResampledHeads, judge_heads
from trisect.core.errors import CorpusError, SpecError, need_extra
from trisect.core.files import digest
from trisect.core.finding import About
from trisect.core.subject import Batch, EditedPasses, Parts, Subject, Writer
from trisect.core.tables import ROW, NewRow, frame
from trisect.core.trace import Address, Projections
from trisect.experiments.profile.page import EXCHANGED, HELD, KINDS
from trisect.experiments.profile.reading import (
    COMPONENTS,
    PAIRED,
    LayerWords,
    ReadSide,
    StoredWords,
    WordsRead,
    check_pairs,
    head_maps,
    no_bitext,
    read_pairs,
    read_words,
    weights_of,
)
from trisect.experiments.profile.settings import CROSS, ProfileFacts, ProfileSettings
from trisect.experiments.profile.statistics import (
    LayerScores,
    MeanTest,
    evidence,
    gains_over_heads,
    head_tests,
    mean_over_model,
    mean_over_random,
    pair_tests,
)
from trisect.lab.experiment import Measured, Replicates, RunContext
from trisect.lab.inputs import ModelSource
from trisect.lab.passes import Tally, edited_passes, erasure_rows, fit_erasers, passes, plan_edits, weights_to_hold
from trisect.lab.subject import beside, check_crossing, check_there, read_epochs
from trisect.lab.word_labels import WordLabels, WordTexts, number_articles
from trisect.lm.reading import OwnModel
from trisect.measure.probes import Examples, probe, whiten
from trisect.measure.profile import MapScores, Prober, WordClasses, deal_folds, random_maps
from trisect.papers import profile
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval
from trisect.stats.shares import ratios
from trisect.stats.tested import ALPHA, Interval, Reals, finite, holm, value_row
from trisect.text.bitext import is_bitext
from trisect.text.labels import (
    OTHER,
    WordLabeller,
    check_labels,
    check_pair_labels,
    make_labeller,
    make_pair_labeller,
    open_pairs,
)
from trisect.text.sources import Labelled, LabelledTexts, open_labels

ALL = "all"
EPOCHS = (
    "Of a study's epochs the weights of q, k and v are kept, not whole models: at each epoch they are applied to what the layers of "
    "the final model read."
)
_Stage = tuple[str, Sequence[LayerScores]]  # a checkpoint by name, and what probes found in its layers
_EpochWeights = tuple[str, dict[Address, Projections]]  # an epoch of a study, and the weights of its layers' q, k and v


def open_checkpoints(
    source: ModelSource, subject: Subject, wanted: Sequence[str]
) -> tuple[list[_EpochWeights], list[tuple[str, ModelSource]]]:
    """The checkpoints that are wanted, by name: epochs of a model that a study trained, or revisions and where each is opened from.

    No revision is loaded yet: what is wrong is met before anything is computed. Raises SpecError or ModelError for one that is not there.
    """
    if not wanted:
        return [], []
    if not isinstance(source.model, (str, Path)):
        known, todo = "Its revisions are not known.", "Give its name on a hub, or its folder."
        if isinstance(subject, OwnModel):
            known, todo = "Its epochs lie in the folder of its study.", "Give the study's folder, or a run's."
        raise SpecError("checkpoints of a loaded model were asked for.", known, todo)
    if isinstance(subject, OwnModel):
        there = read_epochs(subject, source.model)
        names = [str(n) for n in range(len(there))]
        chosen = names if tuple(wanted) == (ALL,) else list(wanted)
        if wrong := [name for name in chosen if name not in names]:
            known = f"{subject.name} has epochs 0 to {len(there) - 1}."
            raise SpecError(f"There is no epoch {wrong[0]!r}.", known, f"Use some of them, or '{ALL}'.")
        return [(name, {p.address: p for p in there[int(name)].projections()}) for name in chosen], []
    found = []
    for name in wanted:
        place, revision = beside(source.model, name)
        found.append((name, replace(source, model=place, revision=revision)))
        check_there(place, **found[-1][1].fetch_options())
    return [], found


def stage_rows(stages: Sequence[_Stage], labels: Sequence[str]) -> Iterator[NewRow]:
    """Means over heads less random maps at every checkpoint, `at` its number from 0: layer by layer, and over all layers."""
    for (number, (_, scores)), (i, label), c in product(enumerate(stages), enumerate(labels), COMPONENTS):
        tests: list[tuple[int | None, MeanTest]] = [(None, mean_over_model(scores, c, i))]
        tests += [(one.address.layer, mean_over_random(one, c, i)) for one in scores]
        for layer, test in tests:
            low, high = (finite(end) for end in test.ends)
            named: NewRow = {"stack": scores[0].address.stack, "layer": layer, "component": c, "group": label}
            ends = {"value": test.value, "low": low, "high": high, "n": test.n}
            yield named | {"at": float(number), "measure": "profile_stage_gain"} | ends


WORDS = 6_000  # words that are read, evenly over the text
MAPS = 12  # random maps beside the heads


def mlp_rows(
    address: Address, layer: LayerWords, side: ReadSide, fold: Int[np.ndarray, " N"], seed: int
) -> Iterator[NewRow]:
    """Mean accuracies of MLP probes of one layer's heads and of random maps, of the components of one side's words.

    Fold 0 is predicted, fold 1 ends the fit.
    """
    chosen = np.unique(np.linspace(0, len(fold) - 1, min(WORDS, len(fold))).astype(np.int64))
    draw = torch.Generator().manual_seed(seed)
    taken = _rows(layer.taken[side.components[0]], chosen)
    mapped: dict[str, Float[Tensor, "S N E"]] = {}
    for c in side.components:
        own = _rows(layer.own[c], chosen) if c in layer.own else taken
        mapped[c] = own @ head_maps(layer, c)
        name = f"random {mapped[c].shape[2]}"
        if name not in mapped:
            mapped[name] = taken @ random_maps(taken.shape[1], mapped[c].shape[2], MAPS, draw)
    for label in side.labels:
        y, folds = torch.from_numpy(label.y[chosen]), torch.from_numpy(fold[chosen])
        parts = [(y >= 0) & (folds == 0), (y >= 0) & (folds == 1), (y >= 0) & (folds > 1)]
        if int(folds.max()) < 2:  # two folds: the fit is ended by what it is fitted to
            parts[2] = parts[1]
        found = dict[str, float]()  # the mean over maps of the accuracy of a probe a map
        for name, z in mapped.items():
            test, held, train = (Examples(z[:, part], y[part]) for part in parts)
            white = whiten(train.x, held.x, test.x)
            train, held, test = (Examples(x, part.y) for x, part in zip(white, (train, held, test), strict=True))
            scores = probe("mlp", train, held, test, len(label.classes), torch.Generator().manual_seed(seed))
            found[name] = float(scores.accuracy.mean())
        of = {"stack": address.stack, "layer": address.layer, "group": label.name}
        for c in side.components:
            random = found[f"random {mapped[c].shape[2]}"]
            yield of | {"component": c, "measure": "profile_mlp", "value": found[c], "n": len(mapped[c])}
            yield of | {"component": c, "measure": "profile_mlp_random", "value": random, "n": MAPS}


def _rows(stored: StoredWords, chosen: Int[np.ndarray, " W"]) -> Float[Tensor, "W D"]:
    rows = torch.from_numpy(np.asarray(stored.finish()[chosen], dtype=np.float32))
    return rows * stored.scale


DRAWS = 3  # random subspaces beside each erasure
FITTED = 10_000  # labelled positions that erasers are fitted to, about
SPLITS = ("test", "valid", "train")


def erase_labels(
    settings: ProfileSettings,
    label: WordLabeller,
    classes: Sequence[WordClasses],
    addresses: Collection[Address],
    context: RunContext,
) -> tuple[list[NewRow], str, int, tuple[str, ...]]:
    """Erase every label from every layer's q, k or v, all heads together, with erasers fitted to the profile's own split.

    Where a profile is asked for head by head, from each head alone as well. Measured on the first `causal` texts of another split.
    A position carries the label of its own word. Returns rows, the texts that they were measured on by name and number, and notes.
    Raises TrisectError.
    """
    need_extra("concept_erasure", "erase", "The causal twin of a profile")
    subject, wanted = context.subject, settings.causal or 0
    ways = dict.fromkeys(("layer", settings.per))
    edits = tuple(e for per in ways for e in plan_edits(subject.shape, None, per) if e.address in addresses)
    # measured on a split that the profile does not read, where there is one
    fit = other = open_labels(settings.corpus, settings.split, settings.reader, bare=True)
    for split in (split for split in reversed(SPLITS) if split != settings.split):
        with suppress(CorpusError):
            other = open_labels(settings.corpus, split, settings.reader, bare=True)
    fit, other = (relabel(texts, label, classes) for texts in (fit, other))
    marker = WordLabels(subject, {one.name: {c: i for i, c in enumerate(one.classes)} for one in classes}, False)
    fitted = min(FITTED, settings.words)
    with context.progress(f"erasing {', '.join(label.labels)} at {len(edits)} places") as step:
        places = fit_erasers(
            marker, fit, edits, fitted, settings.batch, DRAWS, settings.seed, lambda n: step(min(n, fitted), 4 * fitted)
        )
        sharing, tally, texts = (
            edited_passes(subject),
            Tally(),
            list(islice((one for one in other.texts() if one.spans), wanted)),
        )
        for batch in marker.batches(texts, settings.batch):
            tally.add(batch, *passes(sharing, batch, places))
            step(fitted + int(3 * fitted * (batch.rows[-1][0] + 1) / len(texts)), 4 * fitted)
    table = tally.table(other.name)
    articles = number_articles((one.article for one in texts), tally.indices)
    rows = list(erasure_rows(subject, articles.sums(table, tally.indices), places, DRAWS, settings.seed))
    return rows, other.name, len(table), (*articles.notes, *tally.note_omissions(table), *sharing.notes)


def relabel(texts: LabelledTexts, label: WordLabeller, classes: Sequence[WordClasses]) -> LabelledTexts:
    """The texts with a profile's labels in the place of their own, rare classes as one."""
    known = {one.name: frozenset((None, *one.classes)) for one in classes}

    def texts_of() -> Iterator[Labelled]:
        for one in texts.texts():
            names = label(one)
            yield one._replace(labels={n: tuple(c if c in known[n] else OTHER for c in of) for n, of in names.items()})

    return replace(texts, columns=label.labels, texts=texts_of)


TEXTS = 48  # that are given another's parts; a claim that resamples them asks for 30
LOOKED = 600  # texts among which as many of one length are looked for


class Exchange(NamedTuple):
    """Changes of the loss, without their sign, or of the output: N texts, L layers, weights free and held, and q, k, v."""

    addresses: tuple[Address, ...]
    changes: Float[np.ndarray, "N L 2 3"]
    notes: tuple[str, ...] = ()
    mark: str = ""  # of the texts

    def rows(self, seed: int) -> Iterator[tuple[NewRow, Replicates]]:
        """Mean changes with 95 % intervals over texts, each with its draws; without a layer of the mean over layers."""
        n = len(self.changes)
        flat = np.concatenate([self.changes, self.changes.mean(1, keepdims=True)], 1).reshape(n, -1)
        drawn, values = bootstrap_ratios(flat, np.ones(n), seed), flat.mean(0)
        ends = percentile_interval(drawn, n)
        layers = [*((address.stack, address.layer) for address in self.addresses), (self.addresses[0].stack, None)]
        for i, ((stack, layer), kind, component) in enumerate(product(layers, KINDS, COMPONENTS)):
            row = {"stack": stack, "layer": layer, "component": component, "measure": EXCHANGED, "group": kind}
            row |= value_row(values[i], Interval(ends.low[i], ends.high[i]), n)
            yield row, Replicates(drawn[:, i], n, self.mark, "text")

    def held_share(self, seed: int) -> ResampledHeads | None:
        """With the weights held, the share of all change that goes by v, texts being resampled; None where nothing changed."""
        held = self.changes[:, :, 1].sum(1)
        total = held.sum(1)
        if not total.sum() > 0:
            return None
        draws = bootstrap_ratios(held[:, 2:], total, seed)[:, 0]
        return ResampledHeads(float(ratios(held[:, 2:], total)[0]), draws, len(held), "text")


def exchange(
    subject: Subject, texts: Callable[[], Iterator[Labelled]], layers: Sequence[Address], size: int, seed: int
) -> Exchange | None:
    """Put q, k or v of another text of as many tokens in each layer, one at a time; None where no two are as long.

    The other text is one of the same batch. With the weights held, all attention weights are those of the text's own: then
    queries and keys have nothing to act by, and what still changes came by the values (definitions F-2).
    """
    found, passes, read = list[Float[np.ndarray, "N L 2 3"]](), edited_passes(subject), list[str]()
    chosen = _alike(subject, list(islice(texts(), LOOKED)), size, np.random.default_rng([seed, 7]))
    with torch.no_grad():
        for batch in WordTexts(subject).batches(iter(chosen), size):
            donors = _donors(batch, np.random.default_rng([seed, batch.rows[0][0], 6]))
            if (given := donors != torch.arange(len(donors))).any():
                read += [chosen[text].text for (text, _), on in zip(batch.rows, given.tolist(), strict=True) if on]
                found.append(_changes(subject, passes, batch, layers, donors)[given.numpy()])
            if sum(map(len, found)) >= TEXTS:
                break
    mark = digest(json.dumps(read[:TEXTS]), 8)
    return Exchange(tuple(layers), np.concatenate(found)[:TEXTS], passes.notes, mark) if found else None


def _alike(subject: Subject, given: Sequence[Labelled], size: int, draw: np.random.Generator) -> list[Labelled]:
    """Texts of which another has as many tokens, those of one length together; about TEXTS, from lengths that are drawn."""
    of: dict[int, list[int]] = {}
    for batch in WordTexts(subject).batches(iter(given), size, scored=False):
        for (text, start), length in zip(batch.rows, batch.source.real.sum(1).tolist(), strict=True):
            if not start:
                of.setdefault(length, []).append(text)
    lengths = sorted(length for length, alike in of.items() if len(alike) > 1)
    kept: list[list[int]] = []
    for place in draw.permutation(len(lengths)):
        if sum(map(len, kept)) < TEXTS:
            kept.append(of[lengths[place]][:size])
    return [given[text] for alike in kept for text in alike]


def _donors(batch: Batch, draw: np.random.Generator) -> Int[Tensor, " B"]:
    """For each row the place of another of as many tokens, of another text; its own where there is none."""
    lengths, donors = batch.source.real.sum(1).tolist(), list(range(len(batch.rows)))
    for length in set(lengths):
        alike = [int(i) for i in draw.permutation([i for i, own in enumerate(lengths) if own == length])]
        for one, other in zip(alike, [*alike[1:], alike[0]], strict=True):
            if batch.rows[one][0] != batch.rows[other][0]:
                donors[one] = other
    return torch.tensor(donors)


def _changes(
    subject: Subject, passes: EditedPasses, batch: Batch, layers: Sequence[Address], donors: Int[Tensor, " B"]
) -> Float[np.ndarray, "B L 2 3"]:
    """Passes begin at the layer that is edited, first with all weights free, then with all of them held."""
    clean = passes.score(batch)
    changed = np.zeros((len(donors), len(layers), len(KINDS), len(COMPONENTS)))

    def writer(component: str) -> Writer:
        def write(parts: Parts) -> Parts:
            there: Tensor = getattr(parts, component)
            return parts._replace(**{component: there[donors.to(there.device)]})

        return write

    for j, kind in enumerate(KINDS):
        hold = weights_to_hold(subject, batch) if kind == HELD else None
        if hold is not None:
            passes.begin(batch, hold)
        for (i, address), (c, component) in product(enumerate(layers), enumerate(COMPONENTS)):
            scores = passes.score(batch, {address: writer(component)}, hold, clean)
            # per token: of the loss in nats without the sign, of the output as a share
            moved = scores.total if subject.objective == "output" else (scores.total - clean.total).abs()
            changed[:, i, j, c] = (moved / scores.count.clamp_min(1)).double().cpu().numpy()
    return changed


RowKey = tuple[str | float | int | bool | None, ...]


def profile_replicates(
    scores: Sequence[LayerScores], labels: Sequence[str], moved: Sequence[tuple[NewRow, Replicates]], seed: int
) -> Mapping[RowKey, Replicates]:
    """Means over heads beyond random maps, layer by layer and over the model; what another text's parts change.

    Heads are counted by their place, texts by what they hold.
    """
    found = {tuple(row.get(name) for name in ROW): drawn for row, drawn in moved if drawn.units > 1}
    stack = scores[0].address.stack
    # by the layer, or by how many heads each layer has, and how many of them are counted
    together: dict[tuple[int | None, ...], list[tuple[RowKey, Reals]]] = {}
    for at, label in enumerate(labels):
        for c in COMPONENTS:
            for one in scores:
                named, own = (*one.address, None, c, "profile_gain", label, None), one.gains(c, at)
                together.setdefault((one.address.layer, len(own)), []).append((named, own))
            whole, gains = (stack, None, None, c, "profile_gain", label, None), gains_over_heads(scores, c, at)
            heads = (len(one.heads[c].accuracy) for one in scores)
            together.setdefault((None, *heads, len(gains)), []).append((whole, gains))
    for heads, own in together.items():
        values = np.stack([one for _, one in own], 1)
        if len(values) < 2:  # one head is no sample of heads
            continue
        drawn = bootstrap_ratios(values, np.ones(len(values)), seed)
        found |= {
            named: Replicates(drawn[:, i], len(values), f"heads {heads}", "head") for i, (named, _) in enumerate(own)
        }
    return found


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
        return open_labels(settings.corpus, settings.split, settings.reader, bare=True)
    except CorpusError as error:
        raise (no_bitext(error) if is_bitext(settings.corpus) else error) from None


class _ReadCorpus(NamedTuple):
    """Texts or sentence pairs, their labels, and what reads their words in a model; `texts` and `label` of texts alone."""

    name: str
    fingerprint: str
    labels: tuple[str, ...]
    read: Callable[[Subject, Callable[[int, int], object]], WordsRead]
    texts: LabelledTexts | None = None
    label: WordLabeller | None = None

    @classmethod
    def of(cls, settings: ProfileSettings) -> _ReadCorpus:
        """What the settings name; raises CorpusError."""
        if settings.attention == CROSS:
            pairs = open_pairs(settings.corpus, settings.split)
            side = make_pair_labeller(pairs, settings.labels, settings.limit)
            reads = lambda subject, step: read_pairs(subject, pairs, side, settings, step)  # noqa: E731
            return cls(pairs.name, pairs.fingerprint, side.labels, reads)
        texts = _texts(settings)
        label = make_labeller(texts, settings.labels, settings.limit)
        reads = lambda subject, step: read_words(subject, texts, label, settings, step)  # noqa: E731
        return cls(texts.name, texts.fingerprint, label.labels, reads, texts, label)


def check_model(settings: ProfileSettings, subject: Subject) -> None:
    """Raise ModelError for a model without cross-attention where that is asked for."""
    if settings.attention == CROSS:
        check_crossing(subject, PAIRED)


def measure(settings: ProfileSettings, context: RunContext) -> Measured[ProfileFacts]:
    """Read words, fit closed-form probes to every head's q, k and v and to random maps, and compare.

    Texts of one article (or, where none is marked, up to 20 that follow one another) share a fold, and every word is predicted
    by probes that were fitted to other folds. Raises TrisectError.
    """
    subject = context.subject
    check_model(settings, subject)
    epochs, revisions = open_checkpoints(settings.source, subject, settings.checkpoints)
    corpus = _ReadCorpus.of(settings)
    read, scores, checked = _profile(subject, corpus, settings, context, epochs, settings.mlp)
    erased: tuple[list[NewRow], str | None, int, tuple[str, ...]] = [], None, 0, ()
    if settings.causal is not None and corpus.label is not None:
        erased = erase_labels(settings, corpus.label, read.labels, read.layers, context)
    stages: list[_Stage] = [
        (name, [replace(s, heads=s.epochs[i]) for s in scores]) for i, (name, _) in enumerate(epochs)
    ]
    stages += [(name, _profile(source.open(), corpus, settings, context)[1]) for name, source in revisions]
    moved = None
    if subject.objective != "seq2seq" and corpus.texts is not None:
        with context.progress("another text's parts"):
            moved = exchange(subject, corpus.texts.texts, tuple(read.layers), settings.batch, settings.seed)
    changes = [] if moved is None else list(moved.rows(settings.seed))
    made = chain(
        rows(scores, read.sides), stage_rows(stages, corpus.labels), checked, erased[0], (row for row, _ in changes)
    )
    measures = frame("measures", ({"subject": subject.name, **row} for row in made))
    means, unread = evidence(scores, corpus.labels, {address: layer.own for address, layer in read.layers.items()})
    found: dict[str, ResampledHeads | LayerMeans] = {**means}
    if moved is not None and (share := moved.held_share(settings.seed)) is not None:
        found["held_share_v"] = share
    facts = _facts(settings, context, read, corpus, stages, erased[1:3])

    def judge(about: About[ProfileFacts]) -> pl.DataFrame:
        named = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "words", "draws", "seed")
        missing = OTHER_WORDS if settings.attention == CROSS else unread
        return judge_heads(profile.SOURCE, found, {name: getattr(about.facts, name) for name in named}, missing)

    notes = (*read.notes, *((EPOCHS,) if epochs else ()), *erased[3], *(() if moved is None else moved.notes))
    packages = ("transformers",) if erased[1] is None else ("transformers", "concept-erasure")
    drawn = profile_replicates(scores, corpus.labels, changes, settings.seed)
    noted = tuple(dict.fromkeys(notes))
    return Measured({"measures": measures}, facts, noted, judge, "head", packages=packages, replicates=drawn)


def _profile(
    subject: Subject,
    corpus: _ReadCorpus,
    settings: ProfileSettings,
    context: RunContext,
    epochs: Sequence[_EpochWeights] = (),
    mlp: bool = False,
) -> tuple[WordsRead, list[LayerScores], list[NewRow]]:
    """Read the words in one model, and score its layers one by one; with `mlp` also rows of MLP probes."""
    with context.progress(f"Words, {subject.name}") as step:
        read = corpus.read(subject, step)
    folds = [deal_folds(s.groups, _folds(settings, s), np.random.default_rng([settings.seed, 1])) for s in read.sides]
    scores: list[LayerScores] = []
    checked: list[NewRow] = []
    with context.progress(f"{', '.join(corpus.labels)} in {len(read.layers)} layers") as step:
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
    epochs: Sequence[_EpochWeights] = (),
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
        for found, (_, epoch) in zip(earlier, epochs, strict=True):
            weights = {c: weights_of(epoch[address], c) for c in side.components}
            found |= {c: taken.scores(maps[0]) for c, maps in weights.items() if maps is not None}
    heads, nulls = ({c: of[c] for c in COMPONENTS} for of in (heads, nulls))
    return LayerScores(address, heads, nulls, wholes, tuple(earlier), layer.weights().hashes())


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


def _place(address: Address, label: str) -> NewRow:
    return {"stack": address.stack, "layer": address.layer, "group": label}


def _layer_rows(
    one: LayerScores, at: int, labels: Mapping[str, WordClasses], words: Mapping[str, int]
) -> Iterator[NewRow]:
    """Random maps, the whole input and the most frequent class (of each component where words differ); q, k and v in pairs."""
    named = _place(one.address, labels["q"].name)
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
    adjusted = iter(holm(np.concatenate([tests["p_normal"] for _, _, tests in found])))
    for one, component, tests in found:
        tests["p_holm"] = np.array([next(adjusted) for _ in tests["p"]])
        for head in range(len(tests["p"])):
            of = _place(one.address, label) | {"component": component, "head": head + 1, "n": words[component]}
            for name in ("accuracy", "bits", "z", "p", "p_holm", "among"):
                yield of | {"measure": f"profile_{name}", "value": finite(tests[name][head])}


def _mean_rows(scores: Sequence[LayerScores], at: int, label: str) -> Iterator[NewRow]:
    """Means over heads less random maps; p after Holm over layers and q, k and v. Without a layer: over all layers' heads.

    There Holm is over q, k and v alone.
    """
    found = [(one, c, mean_over_random(one, c, at)) for one in scores for c in COMPONENTS]
    adjusted = holm([test.p for _, _, test in found])
    for (one, component, test), p_holm in zip(found, adjusted, strict=True):
        of, own = _place(one.address, label) | {"component": component}, one.heads[component]
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
    context: RunContext,
    read: WordsRead,
    corpus: _ReadCorpus,
    stages: Sequence[_Stage],
    causal: tuple[str | None, int],
) -> ProfileFacts:
    return ProfileFacts(
        context.subject.name,
        context.subject.fingerprint,
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
        tuple(name for name, _ in stages),
        settings.mlp,
        *causal,
        "share" if context.subject.objective == "output" else "nats",
        settings.attention,
        sum(len(side.groups) for side in read.sides[1:]),
        tuple(len(label.classes) for side in read.sides[1:] for label in side.labels),
        tuple(c for c in COMPONENTS if any(c in layer.own for layer in read.layers.values())),
    )
