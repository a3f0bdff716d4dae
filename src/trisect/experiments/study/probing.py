"""Probing a trained run: what fresh classifiers find of a label at its sites, on tokens of the validation split.

They are fitted on validation as well, on other articles than they are scored on. A model knows the text that it was trained on
by heart in part: what says the next word there says little of it elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias, assert_never

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError
from trisect.core.methods import ARTICLES, Fitted, input_site, mapped_layers
from trisect.core.site import Site
from trisect.core.spec import Model, Training
from trisect.experiments.study.folds import Fold, deal
from trisect.lm.controls import control_labels
from trisect.lm.feed import Piece, evaluation_pieces
from trisect.lm.fleet import Block, forward, generator
from trisect.lm.places import blocks_of, representation, width_of
from trisect.lm.rewind import draw_rows
from trisect.measure import probes
from trisect.measure.probes import Examples
from trisect.text.corpus import Corpus

# tokens read for fitting on train and for scoring, about; of held-out text TRAIN for both
TRAIN, VALID = 20_000, 10_000
HELD = 5  # of the tokens read for fitting, the last in so many stop the probe


class SiteRow(NamedTuple):
    """A row of the table `sites`, but for whose it is and which label it speaks of; `at` is a draw, or null."""

    site: str
    measure: str
    at: float | None
    split: str
    value: float | None
    n: int


class RandomMap(NamedTuple):
    """A random map of what enters a layer: independent normal weights, the number of the draw from 0 on."""

    layer: int
    draw: int
    weight: Float[Tensor, "I D"]


Probed: TypeAlias = Site | RandomMap


class Read(NamedTuple):
    """What was read: the representation at each place, and each token's class and control class of the next word."""

    x: Float[Tensor, "S N I"]
    y: Int[Tensor, " N"]
    control: Int[Tensor, " N"] | None


def probe(
    final: Mapping[str, Tensor],
    model: Model,
    corpus: Corpus,
    training: Training,
    label: str,
    kinds: Sequence[str],
    sites: Sequence[Site],
    seed: int,
    tokens: tuple[int, int] = (TRAIN, VALID),
    fitted: Fitted = ARTICLES,
    maps: int = 0,
) -> list[SiteRow]:
    """Accuracy, bits of V-information and selectivity of probes of the next word's label, at each resolved site.

    `final` are a run's weights without a member axis. Rows are drawn from validation, about tokens[0] of them, and dealt into
    folds (see `deal`): each is scored by probes that were fitted to the others and stopped by the last fifth of those.
    With `fitted` 'train' probes are fitted to whole windows spread over train and scored on rows drawn from validation,
    `tokens` being about how many of each. Tokens without a label are left out. Selectivity is the accuracy less that on control
    labels, which every word type drew by chance (Hewitt & Liang 2019, section 2), `control_bits` those found of them; both are
    left out where there are no such labels. So many random `maps` of each layer's input of which a head is probed are probed like
    heads; they are a seed's own, the same in all its runs, and their rows have q, k and v of the layer as their site. Raises CorpusError.
    """
    whole = {n: v[None] for n, v in final.items()}
    classes, chance = len(corpus.column(label)), _chance(corpus, label, seed)
    rows: list[SiteRow] = []
    device = final["decoder.bias"].device
    drawn = [one for layer in mapped_layers(sites) for one in random_maps(model, layer, maps, seed, device)]
    folds = read_folds(corpus, training, label, seed, tokens, device, fitted)
    for fold in folds:
        rows += _of_fold(whole, model, fold, label, kinds, [*sites, *drawn], chance, classes, seed)
    return [*_joined(rows), *dealt_rows("probe", sites, folds)]


def random_maps(model: Model, layer: int, number: int, seed: int, device: torch.device) -> list[RandomMap]:
    """Random maps of a layer's input to as many numbers as a head has."""
    draw = generator("random maps", layer, seed)
    shape = (number, model.width // model.heads, model.width)
    return [RandomMap(layer, n, w.to(device)) for n, w in enumerate(torch.randn(shape, generator=draw))]


def dealt_rows(kind: str, sites: Sequence[Site], folds: Sequence[Fold]) -> list[SiteRow]:
    """Of how many whole articles the folds of held-out text are, 0 where rows were dealt; nothing where train was fitted to."""
    own = [fold.articles for fold in folds if fold.articles is not None]
    if not own:
        return []
    articles, n = np.concatenate(own), sum(len(some) for some in own)
    many = len(np.unique(articles)) if all(fold.whole for fold in folds) else 0
    return [SiteRow(str(site), f"{kind}_articles", None, "valid", float(many), n) for site in sites]


def _of_fold(
    whole: Mapping[str, Tensor],
    model: Model,
    fold: Fold,
    label: str,
    kinds: Sequence[str],
    places: Sequence[Probed],
    chance: Int[np.ndarray, " V"] | None,
    classes: int,
    seed: int,
) -> list[SiteRow]:
    """What probes fitted to one fold's others find in it."""
    rows: list[SiteRow] = []
    key = (fold.number,) if fold.number else ()
    for width in sorted({_width(place, model) for place in places}):
        own = [place for place in places if _width(place, model) == width]
        train, test = (_read(whole, model, some, label, own, chance) for some in (fold.fit, fold.scored))
        train, test = (r._replace(x=x) for r, x in zip((train, test), probes.whiten(train.x, test.x), strict=True))
        for kind in kinds:
            rows += _rows(kind, train, test, own, classes, generator("probe", kind, label, seed, *key))
        rows += [
            SiteRow(str(site), "probe_majority", None, "valid", probes.majority(train.y, test.y, classes), len(test.y))
            for site in own
            if isinstance(site, Site)
        ]
    return rows


def _width(place: Probed, model: Model) -> int:
    return width_of(place, model) if isinstance(place, Site) else len(place.weight)


def _joined(rows: Sequence[SiteRow]) -> list[SiteRow]:
    """Each site's measures over all folds, every token counted once."""
    found: dict[tuple[str, str, float | None], list[SiteRow]] = {}
    for row in rows:
        found.setdefault((row.site, row.measure, row.at), []).append(row)
    return [of[0] if len(of) == 1 else _mean(of) for of in found.values()]


def _mean(rows: Sequence[SiteRow]) -> SiteRow:
    """Over folds, by their tokens; raises CorpusError where one of them has no number."""
    values = [row.value for row in rows if row.value is not None]
    if len(values) < len(rows):
        given = f"{rows[0].measure} at {rows[0].site} has no mean over folds."
        known = f"{len(rows) - len(values)} of {len(rows)} folds gave no number."
        raise CorpusError(given, known, "Use a longer text, or another label.")
    n = sum(row.n for row in rows)
    return rows[0]._replace(value=sum(row.n * value for row, value in zip(rows, values, strict=True)) / n, n=n)


def read_folds(
    corpus: Corpus,
    training: Training,
    label: str,
    seed: int,
    tokens: tuple[int, int],
    device: torch.device,
    fitted: Fitted,
) -> list[Fold]:
    """What is fitted on and what is measured: folds of held-out text, or train and validation; raises CorpusError."""
    corpus.column(label)
    match fitted:
        case "train":
            return [Fold(*read_pieces(corpus, training, label, seed, tokens, device))]
        case "articles" | "held-out":
            valid = evaluation_pieces(corpus, training, "valid", (label,), device)
            return deal(
                corpus, "valid", draw_rows(valid, tokens[0], "probe", seed), label, HELD, apart=fitted == ARTICLES
            )
        case _:
            assert_never(fitted)


def read_pieces(
    corpus: Corpus, training: Training, label: str, seed: int, tokens: tuple[int, int], device: torch.device
) -> tuple[list[Piece], list[Piece]]:
    """Windows of train for fitting and rows of validation for scoring; raises CorpusError without labels enough."""
    corpus.column(label)
    read = evaluation_pieces(corpus, replace(training, train_sample=tokens[0]), "train", (label,), device)
    scored = draw_rows(evaluation_pieces(corpus, training, "valid", (label,), device), tokens[1], "probe", seed)
    for split, pieces, least in (("train", read, 2 * HELD), ("valid", scored, 1)):
        if (count := sum(int((p.labels[label] >= 0).sum()) for p in pieces)) < least:
            raise CorpusError(
                f"The label column '{label}' of '{corpus.name}' cannot be probed.",
                f"Of the {split} tokens that are read {count} carry a label, and at least {least} are needed.",
                "Use another column, or a longer text.",
            )
    return read, scored


def _chance(corpus: Corpus, label: str, seed: int) -> Int[np.ndarray, " V"] | None:
    """Each word type's control label; null where none are as frequent as the true ones."""
    try:
        return control_labels(corpus, label, seed).of_type
    except CorpusError:
        return None  # probes say what they say without it


@torch.no_grad()
def _read(
    final: Mapping[str, Tensor],
    model: Model,
    pieces: Sequence[Piece],
    label: str,
    places: Sequence[Probed],
    chance: Int[np.ndarray, " V"] | None,
) -> Read:
    """Equally wide places at the tokens whose next word carries a label, in the order of the text."""
    inputs: set[Block] = {("in", place.layer) for place in places if isinstance(place, RandomMap)}
    blocks = [*blocks_of([place for place in places if isinstance(place, Site)], model), *sorted(inputs)]
    found, y, words = [], [], []
    for piece in pieces:
        known = piece.labels[label] >= 0
        kept = forward(final, piece.inputs, model, blocks=blocks).kept
        found.append(torch.stack([_taken(kept, place, model)[known] for place in places]))
        y.append(piece.labels[label][known])
        words.append(piece.spoken((label,))[known])
    drawn = None if chance is None else torch.from_numpy(chance).to(y[0])[torch.cat(words)]
    return Read(torch.cat(found, 1), torch.cat(y), drawn)


def _taken(kept: Mapping[Block, Tensor], place: Probed, model: Model) -> Float[Tensor, "N I"]:
    """One place's representation, one row a token."""
    if isinstance(place, Site):
        return representation(kept, 0, place, model).T
    return kept["in", place.layer][0].flatten(0, 1) @ place.weight.T


def _rows(
    kind: str, train: Read, test: Read, places: Sequence[Probed], classes: int, draw: torch.Generator
) -> list[SiteRow]:
    cut = len(train.y) * (HELD - 1) // HELD

    def found(y: Int[Tensor, " N"], scored: Int[Tensor, " M"]) -> probes.ProbeScores:
        fit, held = Examples(train.x[:, :cut], y[:cut]), Examples(train.x[:, cut:], y[cut:])
        return probes.probe(kind, fit, held, Examples(test.x, scored), classes, draw)

    own = found(train.y, test.y)
    values = {"accuracy": own.accuracy, "bits": own.bits}
    if train.control is not None and test.control is not None:
        by_chance = found(train.control, test.control)
        values |= {"selectivity": own.accuracy - by_chance.accuracy, "control_bits": by_chance.bits}
    return [
        _row(f"probe_{kind}", name, place, float(value), len(test.y))
        for name, several in values.items()
        for place, value in zip(places, several, strict=True)
    ]


def _row(kind: str, name: str, place: Probed, value: float, n: int) -> SiteRow:
    if isinstance(place, Site):
        return SiteRow(str(place), f"{kind}_{name}", None, "valid", value, n)
    return SiteRow(str(input_site(place.layer)), f"{kind}_random_{name}", float(place.draw), "valid", value, n)
