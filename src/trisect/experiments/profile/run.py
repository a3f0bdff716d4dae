"""Profile of a model: what each head's q, k and v encode of each label, against random maps of the same input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.claims.models import LayerMeans, ResampledHeads, judge_heads
from trisect.core.errors import CorpusError, SpecError, require_extra
from trisect.core.finding import About
from trisect.core.subject import QKV, Batch, EditedPasses, Subject, Writer
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address, Projections
from trisect.experiments.profile.page import EXCHANGE_CHANGE, HELD_WEIGHTS, KINDS
from trisect.experiments.profile.reading import (
    COMPONENTS,
    LayerWords,
    ReadSide,
    StoredWords,
    WordsRead,
    head_maps,
    read_pairs,
    read_words,
    weights_of,
)
from trisect.experiments.profile.settings import CROSS, ProfileFacts, ProfileSettings
from trisect.experiments.profile.statistics import (
    LayerScores,
    MeanTest,
    evidence,
    head_tests,
    mean_over_model,
    mean_over_random,
    pair_tests,
)
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.inputs import ModelSource
from trisect.lab.passes import Tally, edited_passes, erasure_rows, fit_erasers, passes, plan_edits, weights_to_hold
from trisect.lab.subject import beside, check_exists, read_epochs
from trisect.lab.word_labels import WordLabels, WordTexts, number_articles
from trisect.lm.reading import OwnModel
from trisect.measure.probes import Examples, probe, whiten
from trisect.measure.profile import MapScores, Prober, WordClasses, assign_folds, random_maps
from trisect.papers import profile
from trisect.stats.bootstrap import bootstrap_ratios, percentile_interval
from trisect.stats.shares import ratios
from trisect.stats.significance import ALPHA, Interval, finite, holm, value_row
from trisect.text.bitext import is_bitext
from trisect.text.labels import (
    OTHER_CLASS,
    PairTexts,
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


def _open_checkpoints(
    source: ModelSource, subject: Subject, names: Sequence[str]
) -> tuple[list[_EpochWeights], list[tuple[str, ModelSource]]]:
    """Checkpoints by name: epochs of a trained model, or revisions, with where each is opened from.

    No revision is loaded yet: what is wrong is met before anything is computed.
    """
    if not names:
        return [], []
    if not isinstance(source.model, (str, Path)):
        reason, todo = "Its revisions are not known.", "Give its name on a hub, or its folder."
        if isinstance(subject, OwnModel):
            reason, todo = "Its epochs lie in the folder of its study.", "Give the study's folder, or a run's."
        raise SpecError("checkpoints of a loaded model were asked for.", reason, todo)
    if isinstance(subject, OwnModel):
        epochs = {str(number): epoch for number, epoch in enumerate(read_epochs(subject, source.model))}
        chosen = list(epochs) if tuple(names) == (ALL,) else list(names)
        if wrong := [name for name in chosen if name not in epochs]:
            reason = f"{subject.name} has epochs 0 to {len(epochs) - 1}."
            raise SpecError(f"There is no epoch {wrong[0]!r}.", reason, f"Use some of them, or '{ALL}'.")
        return [(name, {p.address: p for p in epochs[name].projections()}) for name in chosen], []
    revisions = []
    for name in names:
        place, revision = beside(source.model, name)
        revisions.append((name, replace(source, model=place, revision=revision)))
        check_exists(place, **revisions[-1][1].fetch_options())
    return [], revisions


def _stage_rows(stages: Sequence[_Stage], labels: Sequence[str]) -> Iterator[NewRow]:
    """Means over heads less random maps at every checkpoint (`at` is its number from 0), by layer and over all layers."""
    for (number, (_, scores)), (i, label), c in product(enumerate(stages), enumerate(labels), COMPONENTS):
        tests: list[tuple[int | None, MeanTest]] = [(None, mean_over_model(scores, c, i))]
        tests += [(layer.address.layer, mean_over_random(layer, c, i)) for layer in scores]
        for layer, test in tests:
            place: NewRow = {"stack": scores[0].address.stack, "layer": layer, "component": c, "group": label}
            row = value_row(test.value, test.ends, test.n)
            yield place | {"at": float(number), "measure": "profile_stage_gain"} | row


WORDS = 6_000  # words that are read, evenly over the text
MAPS = 12  # random maps beside the heads


def _mlp_rows(
    address: Address, layer: LayerWords, side: ReadSide, fold: Int[np.ndarray, " N"], seed: int
) -> Iterator[NewRow]:
    """Mean accuracies of MLP probes of a layer's heads and of random maps, for the components of one side's words.

    Fold 0 is predicted, fold 1 ends the fit.
    """
    chosen = np.unique(np.linspace(0, len(fold) - 1, min(WORDS, len(fold))).astype(np.int64))
    draw = torch.Generator().manual_seed(seed)
    inputs = _rows(layer.inputs[side.components[0]], chosen)
    mapped: dict[str, Float[Tensor, "S N E"]] = {}
    for c in side.components:
        vectors = _rows(layer.as_used[c], chosen) if c in layer.as_used else inputs
        mapped[c] = vectors @ head_maps(layer, c)
        name = f"random {mapped[c].shape[2]}"
        if name not in mapped:
            mapped[name] = inputs @ random_maps(inputs.shape[1], mapped[c].shape[2], MAPS, draw)
    for label in side.labels:
        y, folds = torch.from_numpy(label.y[chosen]), torch.from_numpy(fold[chosen])
        parts = [(y >= 0) & (folds == 0), (y >= 0) & (folds == 1), (y >= 0) & (folds > 1)]
        if int(folds.max()) < 2:  # two folds: the fit is ended by what it is fitted to
            parts[2] = parts[1]
        accuracies = dict[str, float]()  # means over maps, of a probe a map
        for name, z in mapped.items():
            test, valid, train = (Examples(z[:, part], y[part]) for part in parts)
            white = whiten(train.x, valid.x, test.x)
            train, valid, test = (Examples(x, part.y) for x, part in zip(white, (train, valid, test), strict=True))
            scores = probe("mlp", train, valid, test, len(label.classes), torch.Generator().manual_seed(seed))
            accuracies[name] = float(scores.accuracy.mean())
        for c in side.components:
            place = _place(address, label.name) | {"component": c}
            random = accuracies[f"random {mapped[c].shape[2]}"]
            yield place | {"measure": "profile_mlp", "value": accuracies[c], "n": len(mapped[c])}
            yield place | {"measure": "profile_mlp_random", "value": random, "n": MAPS}


def _rows(stored: StoredWords, chosen: Int[np.ndarray, " W"]) -> Float[Tensor, "W D"]:
    rows = torch.from_numpy(np.asarray(stored.finish()[chosen], dtype=np.float32))
    return rows * stored.scale


DRAWS = 3  # random subspaces beside each erasure
ERASER_POSITIONS = 10_000  # labelled positions that erasers are fitted to, about
SPLITS = ("test", "valid", "train")


def _erase_labels(
    settings: ProfileSettings,
    label: WordLabeller,
    classes: Sequence[WordClasses],
    addresses: Collection[Address],
    context: RunContext,
) -> tuple[list[NewRow], str, int, tuple[str, ...]]:
    """Erase every label from every layer's q, k or v, all heads together, with erasers fitted on the profile's train split.

    Where a profile is asked for head by head, from each head alone as well. Measured on the first `causal` texts of another split.
    A position carries the label of its own word. Returns rows, the texts that they were measured on by name and number, and notes.
    """
    require_extra("concept_erasure", "erase", "The causal twin of a profile")
    subject = context.subject
    ways = dict.fromkeys(("layer", settings.per))
    edits = tuple(e for per in ways for e in plan_edits(subject.shape, None, per) if e.address in addresses)
    # measured on a split that the profile does not read, where there is one
    fit = other = open_labels(settings.corpus, settings.split, settings.reader, bare=True)
    for split in (split for split in reversed(SPLITS) if split != settings.split):
        with suppress(CorpusError):
            other = open_labels(settings.corpus, split, settings.reader, bare=True)
    fit, other = (relabel(texts, label, classes) for texts in (fit, other))
    marker = WordLabels(subject, {label.name: {c: i for i, c in enumerate(label.classes)} for label in classes}, False)
    fitted = min(ERASER_POSITIONS, settings.words)
    texts = list(islice((text for text in other.texts() if text.spans), settings.causal))
    with context.progress(f"erasing {', '.join(label.labels)} at {len(edits)} place{'s' * (len(edits) != 1)}") as step:
        places = fit_erasers(
            marker, fit, edits, fitted, settings.batch, DRAWS, settings.seed, lambda n: step(min(n, fitted), 4 * fitted)
        )
        sharing, tally = edited_passes(subject), Tally()
        for batch in marker.batches(texts, settings.batch):
            tally.add(batch, *passes(sharing, batch, places))
            step(fitted + int(3 * fitted * (batch.rows[-1][0] + 1) / len(texts)), 4 * fitted)
    table = tally.table(other.name)
    articles = number_articles((text.article for text in texts), tally.indices)
    rows = list(erasure_rows(subject, articles.sums(table, tally.indices), places, DRAWS, settings.seed))
    return rows, other.name, len(table), (*articles.notes, *tally.note_omissions(table), *sharing.notes)


def relabel(texts: LabelledTexts, label: WordLabeller, classes: Sequence[WordClasses]) -> LabelledTexts:
    """The texts with a profile's labels in place of their own, with rare classes merged."""
    names = {label.name: frozenset((None, *label.classes)) for label in classes}

    def relabelled() -> Iterator[Labelled]:
        for text in texts.texts():
            labels = {
                n: tuple(c if c in names[n] else OTHER_CLASS for c in values) for n, values in label(text).items()
            }
            yield text._replace(labels=labels)

    return replace(texts, columns=label.labels, texts=relabelled)


TEXTS = 48  # that are given another's parts; a claim that resamples them asks for 30
SEARCH_TEXTS = 600  # texts among which as many of one length are looked for


class Exchange(NamedTuple):
    """Changes of the loss, without their sign, or of the output: N texts, L layers, weights free and held, and q, k, v."""

    addresses: tuple[Address, ...]
    changes: Float[np.ndarray, "N L 2 3"]
    notes: tuple[str, ...] = ()

    def rows(self, seed: int) -> Iterator[NewRow]:
        """Mean changes with 95 % intervals over texts; without a layer, means over layers."""
        n = len(self.changes)
        flat = np.concatenate([self.changes, self.changes.mean(1, keepdims=True)], 1).reshape(n, -1)
        values, ends = flat.mean(0), percentile_interval(bootstrap_ratios(flat, np.ones(n), seed), n)
        layers = [*((address.stack, address.layer) for address in self.addresses), (self.addresses[0].stack, None)]
        for i, ((stack, layer), kind, component) in enumerate(product(layers, KINDS, COMPONENTS)):
            row = {"stack": stack, "layer": layer, "component": component, "measure": EXCHANGE_CHANGE, "group": kind}
            yield row | value_row(values[i], Interval(ends.low[i], ends.high[i]), n)

    def held_share(self, seed: int) -> ResampledHeads | None:
        """With the weights held, the share of the total change that goes through v, with texts resampled; None if nothing changed."""
        changes = self.changes[:, :, 1].sum(1)
        total, by_v = changes.sum(1), changes[:, 2:]
        if not total.sum() > 0:
            return None
        draws = bootstrap_ratios(by_v, total, seed)[:, 0]
        return ResampledHeads(float(ratios(by_v, total)[0]), draws, len(changes), "text")


def exchange(
    subject: Subject, texts: Callable[[], Iterator[Labelled]], layers: Sequence[Address], size: int, seed: int
) -> Exchange | None:
    """Replace q, k or v by those of another text of the same length, one layer at a time; None if no two texts have one length.

    The other text is one of the same batch. With the weights held, all attention weights are those of the text's own: then
    queries and keys have nothing to act by, and what still changes came by the values (definitions F-2).
    """
    changes, passes = list[Float[np.ndarray, "N L 2 3"]](), edited_passes(subject)
    chosen = _alike(subject, list(islice(texts(), SEARCH_TEXTS)), size, np.random.default_rng([seed, 7]))
    with torch.no_grad():
        for batch in WordTexts(subject).batches(iter(chosen), size):
            # for each row one of the same length from another text; itself if there is none
            draw, lengths = np.random.default_rng([seed, batch.rows[0][0], 6]), batch.source.real.sum(1).tolist()
            donors = torch.arange(len(lengths))
            for length in set(lengths):
                alike = [int(i) for i in draw.permutation([i for i, size in enumerate(lengths) if size == length])]
                for row, other in zip(alike, [*alike[1:], alike[0]], strict=True):
                    if batch.rows[row][0] != batch.rows[other][0]:
                        donors[row] = other
            if (exchanged := donors != torch.arange(len(donors))).any():
                changes.append(_changes(subject, passes, batch, layers, donors)[exchanged.numpy()])
            if sum(map(len, changes)) >= TEXTS:
                break
    return Exchange(tuple(layers), np.concatenate(changes)[:TEXTS], passes.notes) if changes else None


def _alike(subject: Subject, texts: Sequence[Labelled], size: int, draw: np.random.Generator) -> list[Labelled]:
    """Texts that share their number of tokens with another, grouped by length; about TEXTS, from randomly chosen lengths."""
    by_length: dict[int, list[int]] = {}
    for batch in WordTexts(subject).batches(iter(texts), size, scored=False):
        for (text, start), length in zip(batch.rows, batch.source.real.sum(1).tolist(), strict=True):
            if not start:
                by_length.setdefault(length, []).append(text)
    lengths = sorted(length for length, alike in by_length.items() if len(alike) > 1)
    chosen: list[int] = []
    for place in draw.permutation(len(lengths)):
        if len(chosen) < TEXTS:
            chosen += by_length[lengths[place]][:size]
    return [texts[text] for text in chosen]


def _changes(
    subject: Subject, passes: EditedPasses, batch: Batch, layers: Sequence[Address], donors: Int[Tensor, " B"]
) -> Float[np.ndarray, "B L 2 3"]:
    """Passes begin at the edited layer, first with attention weights free, then with all of them held."""
    clean = passes.score(batch)
    changed = np.zeros((len(donors), len(layers), len(KINDS), len(COMPONENTS)))

    def writer(component: str) -> Writer:
        def write(parts: QKV) -> QKV:
            vectors: Tensor = getattr(parts, component)
            return parts._replace(**{component: vectors[donors.to(vectors.device)]})

        return write

    for j, kind in enumerate(KINDS):
        hold = weights_to_hold(subject, batch) if kind == HELD_WEIGHTS else None
        if hold is not None:
            passes.begin(batch, hold)
        for (i, address), (c, component) in product(enumerate(layers), enumerate(COMPONENTS)):
            scores = passes.score(batch, {address: writer(component)}, hold, clean)
            # per token: of the loss in nats without the sign, of the output as a share
            moved = scores.total if subject.objective == "output" else (scores.total - clean.total).abs()
            changed[:, i, j, c] = (moved / scores.count.clamp_min(1)).double().cpu().numpy()
    return changed


OTHER_WORDS = "cross-attention's queries are of other words than its keys and values, and the claim speaks of the words of one text"


def check(settings: ProfileSettings) -> None:
    """Raise TrisectError if the corpus, its split or a label is missing, or settings contradict each other."""
    if settings.attention == CROSS:
        of_texts = {
            "--causal": (settings.causal, "The causal twin erases labels of the words of one text."),
            "--reader": (settings.reader, "A bitext is two files of sentences, which no reader is chosen for."),
        }
        for name, (value, reason) in of_texts.items():
            if value is not None:
                raise SpecError(f"{name} {value} was given with --attention cross.", reason, "Leave it out.")
        check_pair_labels(open_pairs(settings.corpus, settings.split), settings.labels or ())
    else:
        check_labels(_texts(settings), settings.labels or ())
    if settings.labels is not None and not settings.labels:
        todo = "Name labels such as pos, or leave --labels out."
        raise SpecError("No label was given.", "A profile is of labels.", todo)


def _texts(settings: ProfileSettings) -> LabelledTexts:
    try:
        return open_labels(settings.corpus, settings.split, settings.reader, bare=True)
    except CorpusError as error:
        if not is_bitext(settings.corpus):
            raise
        reason = "It is a bitext, sentences of two languages, and self-attention is read over one text."
        todo = "Say --attention cross to profile cross-attention, or give another corpus."
        raise CorpusError(error.problem, reason, todo) from None


def measure(settings: ProfileSettings, context: RunContext) -> Measured[ProfileFacts]:
    """Read words, fit closed-form probes to every head's q, k and v and to random maps, and compare.

    Texts of one article (or, where none is marked, up to 20 that follow one another) share a fold, and every word is predicted
    by probes that were fitted to other folds. Raises TrisectError.
    """
    subject = context.subject
    epochs, revisions = _open_checkpoints(settings.source, subject, settings.checkpoints)
    if settings.attention == CROSS:
        texts = open_pairs(settings.corpus, settings.split)
        label = make_pair_labeller(texts, settings.labels, settings.limit)
        read_in = partial(read_pairs, texts=texts, label=label, settings=settings)
    else:
        texts = _texts(settings)
        label = make_labeller(texts, settings.labels, settings.limit)
        read_in = partial(read_words, texts=texts, label=label, settings=settings)
    read, scores, mlp_rows = _profile(subject, read_in, label.labels, settings, context, epochs, settings.mlp)
    erased: tuple[list[NewRow], str | None, int, tuple[str, ...]] = [], None, 0, ()
    if settings.causal is not None and isinstance(label, WordLabeller):
        erased = _erase_labels(settings, label, read.sides[0].labels, read.layers, context)
    stages: list[_Stage] = [
        (name, [replace(s, heads=s.epochs[i]) for s in scores]) for i, (name, _) in enumerate(epochs)
    ]
    stages += [
        (name, _profile(source.open(), read_in, label.labels, settings, context)[1]) for name, source in revisions
    ]
    exchanged = None
    if subject.objective != "seq2seq" and isinstance(texts, LabelledTexts):
        with context.progress("another text's parts"):
            exchanged = exchange(subject, texts.texts, tuple(read.layers), settings.batch, settings.seed)
    changes, labels = exchanged.rows(settings.seed) if exchanged else (), label.labels
    parts = (rows(scores, read.sides), _stage_rows(stages, labels), mlp_rows, erased[0], changes)
    measures = frame("measures", ({"subject": subject.name, **row} for row in chain(*parts)))
    means, unread = evidence(scores, labels, {address: layer.as_used for address, layer in read.layers.items()})
    values: dict[str, ResampledHeads | LayerMeans] = {**means}
    if exchanged and (share := exchanged.held_share(settings.seed)):
        values["held_share_v"] = share
    facts = _facts(settings, context, read, texts, stages, erased[1:3])

    def judge(about: About[ProfileFacts]) -> pl.DataFrame:
        fields = ("subject", "fingerprint", "corpus", "corpus_fingerprint", "words", "draws", "seed")
        missing = OTHER_WORDS if settings.attention == CROSS else unread
        return judge_heads(profile.SOURCE, values, {name: getattr(about.facts, name) for name in fields}, missing)

    notes = dict.fromkeys((*read.notes, *(EPOCHS,) * bool(epochs), *erased[3], *(exchanged.notes if exchanged else ())))
    packages = ("transformers",) if erased[1] is None else ("transformers", "concept-erasure")
    return Measured({"measures": measures}, facts, tuple(notes), judge, "head", packages=packages)


def _profile(
    subject: Subject,
    read_in: partial[WordsRead],
    labels: Sequence[str],
    settings: ProfileSettings,
    context: RunContext,
    epochs: Sequence[_EpochWeights] = (),
    mlp: bool = False,
) -> tuple[WordsRead, list[LayerScores], list[NewRow]]:
    """Read the words in one model by `read_in`, and score its layers one by one; with `mlp` also rows of MLP probes."""
    with context.progress(f"Words, {subject.name}") as step:
        read = read_in(subject, advance=step)
    folds = [assign_folds(s.groups, _folds(settings, s), np.random.default_rng([settings.seed, 1])) for s in read.sides]
    scores: list[LayerScores] = []
    mlp_rows: list[NewRow] = []
    with context.progress(f"{', '.join(labels)} in {len(read.layers)} layers") as step:
        for number, (address, layer) in enumerate(read.layers.items()):

            def advance(share: float, before: int = number) -> None:
                step(int(100 * (before + share)), 100 * len(read.layers))

            scores.append(score_layer(address, layer, read.sides, folds, settings, advance, epochs))
            for side, fold in zip(read.sides, folds, strict=True) if mlp else ():
                mlp_rows += _mlp_rows(address, layer, side, fold, settings.seed)
    return read, scores, mlp_rows


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
    heads, nulls, inputs = dict[str, MapScores](), dict[str, MapScores](), dict[str, MapScores]()
    earlier: list[dict[str, MapScores]] = [{} for _ in epochs]
    for at, (side, fold) in enumerate(zip(sides, folds, strict=True)):

        def prober(stored: StoredWords, side: ReadSide = side, fold: Int[np.ndarray, " N"] = fold) -> Prober:
            return Prober(stored.finish(), side.labels, fold, stored.scale)

        as_used = [c for c in side.components if c in layer.as_used]
        heads |= {c: prober(layer.as_used[c]).scores(head_maps(layer, c)) for c in as_used}
        of_input = prober(layer.inputs[side.components[0]])
        heads |= {c: of_input.scores(head_maps(layer, c)) for c in side.components if c not in as_used}
        widths = {c: layer.heads[c][1] for c in side.components}
        by_width: dict[int, MapScores] = {}
        for number, into in enumerate(sorted(set(widths.values()))):
            base = at + number / len(set(widths.values()))

            def step(done: int, base: float = base) -> None:
                advance((base + 0.9 * done / settings.draws) / len(sides))

            seed = int(np.random.default_rng([settings.seed, *str(address).encode(), into]).integers(2**62))
            draw = torch.Generator().manual_seed(seed)
            by_width[into] = of_input.random_scores(into, settings.draws, draw, step)
        nulls |= {c: by_width[w] for c, w in widths.items()}
        inputs |= dict.fromkeys(side.components, of_input.identity_scores())
        for of_epoch, (_, epoch) in zip(earlier, epochs, strict=True):
            weights = {c: weights_of(epoch[address], c) for c in side.components}
            of_epoch |= {c: of_input.scores(maps[0]) for c, maps in weights.items() if maps is not None}
    heads, nulls = ({c: arrays[c] for c in COMPONENTS} for arrays in (heads, nulls))
    return LayerScores(address, heads, nulls, inputs, tuple(earlier), layer.weights().hashes())


def rows(scores: Sequence[LayerScores], sides: Sequence[ReadSide]) -> Iterator[NewRow]:
    """The table `measures`: heads, random maps, the whole input, means over heads, and pairs, with Holm's correction per label.

    That of heads is over all heads of the model and q, k and v, that of means over layers and q, k and v; without a layer, over
    the heads of all layers, over q, k and v alone.
    """
    pairs = list(product(scores, COMPONENTS))
    for at, name in enumerate(label.name for label in sides[0].labels):
        labels = {c: side.labels[at] for side in sides for c in side.components}
        words = {c: int((label.y >= 0).sum()) for c, label in labels.items()}
        for layer in scores:
            yield from _layer_rows(layer, at, labels, words)
        by_head = [head_tests(layer, c, at) for layer, c in pairs]
        adjusted = iter(holm(np.concatenate([tests["p_normal"] for tests in by_head])))
        for (layer, c), tests in zip(pairs, by_head, strict=True):
            tests["p_holm"] = np.array([next(adjusted) for _ in tests["p"]])
            for head, measure in product(range(len(tests["p"])), ("accuracy", "bits", "z", "p", "p_holm", "among")):
                place = _place(layer.address, name) | {"component": c, "head": head + 1, "n": words[c]}
                yield place | {"measure": f"profile_{measure}", "value": finite(tests[measure][head])}
        means = [mean_over_random(layer, c, at) for layer, c in pairs]
        for (layer, c), test, p_holm in zip(pairs, means, holm([test.p for test in means]), strict=True):
            place, heads = _place(layer.address, name) | {"component": c}, layer.heads[c]
            yield place | {"n": test.n, "measure": "profile_accuracy", "value": float(heads.accuracy[:, at].mean())}
            yield place | {"n": test.n, "measure": "profile_bits", "value": float(heads.bits[:, at].mean())}
            yield from _test_rows(place, "profile_gain", test, float(p_holm))
        tests_of = [mean_over_model(scores, c, at) for c in COMPONENTS]
        place = _place(scores[0].address, name) | {"layer": None}
        for c, test, p_holm in zip(COMPONENTS, tests_of, holm([test.p for test in tests_of]), strict=True):
            yield from _test_rows(place | {"component": c}, "profile_gain", test, float(p_holm))
        yield from _pair_rows(scores, at, place)


def _place(address: Address, label: str) -> NewRow:
    return {"stack": address.stack, "layer": address.layer, "group": label}


def _layer_rows(
    scores: LayerScores, at: int, labels: Mapping[str, WordClasses], words: Mapping[str, int]
) -> Iterator[NewRow]:
    """Rows of random maps, the whole input and the most frequent class (by component if words differ), and of pairs of q, k and v."""
    place = _place(scores.address, labels["q"].name)
    for component in COMPONENTS:
        null, bits = scores.null(component, at), scores.nulls[component].bits[:, at]
        row = place | {"component": component, "n": len(null.draws)}
        ends = {"low": null.quantile(ALPHA / 2), "high": null.quantile(1 - ALPHA / 2)}
        yield row | {"measure": "profile_random", "value": null.mean} | ends
        yield row | {"measure": "profile_random_spread", "value": null.spread}
        yield row | {"measure": "profile_random_bits", "value": float(bits.mean())}
    for component in COMPONENTS if scores.apart else COMPONENTS[:1]:
        row, read = place | {"n": words[component]}, scores.inputs[component]
        row |= {"component": component} if scores.apart else {}
        yield row | {"measure": "profile_input", "value": float(read.accuracy[0, at])}
        yield row | {"measure": "profile_input_bits", "value": float(read.bits[0, at])}
        yield row | {"measure": "profile_majority", "value": labels[component].majority}
    yield from _pair_rows([scores], at, place)


def _pair_rows(scores: Sequence[LayerScores], at: int, place: NewRow) -> Iterator[NewRow]:
    for pair, (test, p_holm) in pair_tests(scores, at).items():
        yield from _test_rows(place | {"component": pair}, "profile_difference", test, p_holm)


def _test_rows(place: NewRow, measure: str, test: MeanTest, p_holm: float) -> Iterator[NewRow]:
    """A mean with its interval, and p after Holm."""
    yield place | {"measure": measure} | value_row(test.value, test.ends, test.n)
    yield place | {"measure": f"{measure}_p_holm", "value": p_holm, "n": test.n}


def _folds(settings: ProfileSettings, side: ReadSide) -> int:
    """The number of folds: as many as set, or the number of groups if smaller."""
    return min(settings.folds, len(np.unique(side.groups)))


def _facts(
    settings: ProfileSettings,
    context: RunContext,
    read: WordsRead,
    texts: LabelledTexts | PairTexts,
    stages: Sequence[_Stage],
    causal: tuple[str | None, int],
) -> ProfileFacts:
    first, *others = read.sides
    return ProfileFacts(
        context.subject.name,
        context.subject.fingerprint,
        texts.name,
        texts.fingerprint,
        read.texts,
        len(first.groups),
        len(np.unique(first.groups)),
        tuple(label.name for label in first.labels),
        tuple(len(label.classes) for label in first.labels),
        settings.per,
        settings.draws,
        _folds(settings, first),
        settings.seed,
        settings.limit,
        tuple(name for name, _ in stages),
        settings.mlp,
        *causal,
        "share" if context.subject.objective == "output" else "nats",
        settings.attention,
        sum(len(side.groups) for side in others),
        tuple(len(label.classes) for side in others for label in side.labels),
        tuple(c for c in COMPONENTS if any(c in layer.as_used for layer in read.layers.values())),
    )
