"""Probe and erase a label at a trained run's sites, on tokens of the validation split.

They are fitted on validation as well, on other articles than they are scored on. A model knows the text that it was trained on
by heart in part: what tells the next word there tells little of it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import CorpusError
from trisect.core.methods import input_site, layers_with_heads
from trisect.core.site import Site
from trisect.core.spec import Model, Training
from trisect.lm.adversary import control_labels
from trisect.lm.feed import Piece, evaluation_pieces
from trisect.lm.fleet import COMPONENT_ROW, Block, blocks_of, forward, generator, representation, width_of
from trisect.lm.rewind import Curve, Variants, draw_rows, evaluate_variants
from trisect.measure import probes
from trisect.measure.probes import Eraser, Examples, LabelMoments
from trisect.stats.shares import paired_band
from trisect.stats.significance import finite
from trisect.text.corpus import Corpus
from trisect.text.sources import article_starts

FOLDS = 3
# of the tokens read for fitting, the last in so many stop the probe; as many labelled ones has a fold at least
HELD_OUT = 5
# of the labelled tokens, in one fold: else articles are too uneven to be dealt
MAX_FOLD_SHARE, MIN_FOLD_SHARE = 0.6, 0.1
MIN_LABEL_SHARE = 0.95  # of the labelled tokens, where articles of a fold lie apart: rows across two folds are left out
TOKENS = 20_000  # of validation that are read, about
BOUNDLESS = 10**9  # rows that the text could have had: those that are read stand for more of its kind

Parameters = Mapping[str, Tensor]


class SiteRow(NamedTuple):
    """A row of the table `sites` without its run and label; `at` is a draw, α, an epoch, or None."""

    site: str | None
    measure: str
    at: float | None
    split: str
    value: float | None
    n: int


class Fold(NamedTuple):
    """A fit part and a scored part; `articles` has the article of each scored row.

    `number` counts from 1. Folds are whole articles (`by_article`), or made of rows, each of which counts as an article.
    """

    fit: list[Piece]
    scored: list[Piece]
    number: int
    articles: Int[np.ndarray, " R"]
    by_article: bool


def read_folds(
    corpus: Corpus, training: Training, label: str, seed: int, tokens: int, device: torch.device
) -> list[Fold]:
    """Folds of held-out text of about `tokens` tokens, to fit on and to score; raises CorpusError."""
    corpus.column(label)
    valid = evaluation_pieces(corpus, training, "valid", (label,), device)
    return assign_folds(corpus, draw_rows(valid, tokens, "probe", seed), label)


def assign_folds(corpus: Corpus, pieces: Sequence[Piece], label: str) -> list[Fold]:
    """Split rows of the validation text into folds of consecutive whole articles, as equal in labelled tokens as possible.

    Rows that lie across two folds are left out. Where a fold would have more than MOST of the labelled tokens, or less than
    FEWEST, articles of a fold lie apart: the longest first, each to the smallest fold; or, where that parts so many short
    articles that less than LEAST of the tokens stays, the longest article alone and the others in their order. Where that is
    not even either, or the text marks no articles, rows that follow one another are dealt, in equal shares, and are the units.
    Raises CorpusError where a fold would have fewer than HELD_OUT labelled tokens.
    """
    rows = [(p, r) for p, piece in enumerate(pieces) for r in range(len(piece.inputs))]
    start = np.concatenate([piece.starts for piece in pieces if piece.starts is not None])
    assert len(start) == len(rows), "a piece of no split has no place in it"
    stop = start + np.array([pieces[p].inputs.shape[1] for p, _ in rows])
    counts = np.concatenate([(p.labels[label] >= 0).view(p.inputs.shape).sum(1).cpu().numpy() for p in pieces])
    part = corpus.splits["valid"]
    begins = article_starts(part.tokens, corpus.vocabulary) if part.documents is None else np.empty(0, dtype=int)

    def select(mask: np.ndarray) -> list[Piece]:
        chosen: dict[int, list[int]] = {}
        for (p, r), here in zip(rows, mask, strict=True):
            if here:
                chosen.setdefault(p, []).append(r)
        return [pieces[p].some_rows(rows_of_piece) for p, rows_of_piece in chosen.items()]

    for by_article, fold in _fold_assignments(begins, start, stop, counts):
        sizes = np.array([counts[fold == f].sum() for f in range(FOLDS)])
        even = not by_article or (
            sizes.max() <= MAX_FOLD_SHARE * sizes.sum() and sizes.min() >= MIN_FOLD_SHARE * sizes.sum()
        )
        if sizes.min() >= HELD_OUT and even:
            article = np.searchsorted(begins, start, side="right") if by_article else np.arange(len(rows))
            return [
                Fold(select((fold >= 0) & (fold != f)), select(fold == f), f + 1, article[fold == f], by_article)
                for f in range(FOLDS)
            ]
    raise CorpusError(
        f"The label column '{label}' of '{corpus.name}' cannot be probed.",
        f"Of the valid tokens that are read {int(counts.sum())} carry a label: too few for {FOLDS} folds of {HELD_OUT} or more.",
        "Use another column, or a longer text.",
    )


def _fold_assignments(
    begins: Int[np.ndarray, " A"],
    start: Int[np.ndarray, " R"],
    stop: Int[np.ndarray, " R"],
    counts: Int[np.ndarray, " R"],
) -> Iterator[tuple[bool, Int[np.ndarray, " R"]]]:
    """Assignments of rows to folds, the best first: whether folds are whole articles, and each row's fold (−1: in two)."""

    def between(cuts: Int[np.ndarray, " C"]) -> Int[np.ndarray, " R"]:
        """The fold of each row, given the first rows of all folds but the first."""
        fold = np.searchsorted(cuts, start, side="right")
        return np.where(np.searchsorted(cuts, stop, side="left") == fold, fold, -1)

    first, last = np.searchsorted(begins, start, side="right"), np.searchsorted(begins, stop, side="left")
    if (cuts := _cuts(first, start, counts, FOLDS)) is not None:
        yield True, between(begins[np.searchsorted(begins, cuts, side="right") - 1])
    sizes = np.bincount(first, counts, minlength=len(begins) + 1)
    # each article's fold: the longest first, each to the fold that is the smallest by then (Graham 1969, LPT)
    smallest, totals = np.zeros(len(sizes), dtype=int), np.zeros(FOLDS)
    for unit in np.argsort(-sizes, kind="stable"):
        smallest[unit] = totals.argmin()
        totals[smallest[unit]] += sizes[unit]
    # or the first holds the longest alone, the others the rest in their order, as even as can be
    assignment, rest = np.zeros(len(sizes), dtype=int), np.delete(np.arange(len(sizes)), int(sizes.argmax()))
    if (cuts := _cuts(rest, rest, sizes[rest], FOLDS - 1)) is not None:
        assignment[rest] = 1 + np.searchsorted(cuts, rest, side="right")
    for fold_of in (smallest, assignment):
        inside = np.array([len(set(fold_of[a : z + 1])) == 1 for a, z in zip(first, last, strict=True)])
        if counts[inside].sum() >= MIN_LABEL_SHARE * counts.sum():
            yield True, np.where(inside, fold_of[first], -1)
    if (cuts := _cuts(start, start, counts, FOLDS)) is not None:
        yield False, between(cuts)


def _cuts(
    units: Int[np.ndarray, " R"], start: Int[np.ndarray, " R"], counts: Int[np.ndarray, " R"], folds: int
) -> Int[np.ndarray, " C"] | None:
    """The first rows of all folds but the first, chosen among the starts of units for the most even folds (least squares).

    `units` says of each row which one it lies in, in their order. None where there are fewer units than folds.
    """
    _, unit = np.unique(units, return_inverse=True)
    sums = np.concatenate([[0], np.cumsum(np.bincount(unit, counts))])
    end = len(sums) - 1
    if end < folds:
        return None
    # uneven[j]: squares of the best folds of the first j units; begins[f][j]: where the last of them begins
    uneven, begins = sums**2, []
    for _ in range(1, folds):
        squares = [uneven[:j] + (sums[j] - sums[:j]) ** 2 for j in range(1, len(sums))]
        best = [int(errors.argmin()) for errors in squares]
        begins.append([0, *best])
        uneven = np.array([np.inf, *(errors[i] for errors, i in zip(squares, best, strict=True))])
    cuts = []
    for begin in reversed(begins):
        end = begin[end]
        cuts.append(start[unit == end].min())
    return np.array(cuts[::-1])


class _RandomMap(NamedTuple):
    """A random map of a layer's input: independent normal weights, by the number of the draw from 0."""

    layer: int
    draw: int
    weight: Float[Tensor, "I D"]


Probed: TypeAlias = Site | _RandomMap


def probe(
    final: Parameters,
    model: Model,
    corpus: Corpus,
    training: Training,
    label: str,
    kinds: Sequence[str],
    sites: Sequence[Site],
    seed: int,
    tokens: int = TOKENS,
    maps: int = 0,
) -> list[SiteRow]:
    """Accuracy, bits of V-information and selectivity of probes for the next word's label, at each resolved site.

    `final` are a run's weights without a member axis. Rows are drawn from validation, about so many `tokens`, and dealt into
    folds (see `assign_folds`): each is scored by probes that were fitted to the others and stopped by the last fifth of those.
    Tokens without a label are left out. Selectivity is the accuracy less that on control
    labels, which every word type drew by chance (Hewitt & Liang 2019, section 2), `control_bits` those found of them; both are
    left out where there are no such labels. So many random `maps` of each layer's input of which a head is probed are probed like
    heads; they are a seed's own, the same in all its runs, and their rows have q, k and v of the layer as their site. Raises CorpusError.
    """
    classes = len(corpus.column(label))
    try:
        chance = control_labels(corpus, label, seed)[0]
    except CorpusError:  # none are as frequent as the true ones: probes say what they say without
        chance = None
    rows: list[SiteRow] = []
    device = final["decoder.bias"].device
    random = [m for layer in layers_with_heads(sites) for m in random_maps(model, layer, maps, seed, device)]
    folds = read_folds(corpus, training, label, seed, tokens, device)
    by_width: dict[int, list[Probed]] = {}
    for place in (*sites, *random):
        width = width_of(place, model) if isinstance(place, Site) else len(place.weight)
        by_width.setdefault(width, []).append(place)
    for fold in folds:
        for _, places in sorted(by_width.items()):
            train, test = (read_places(final, model, rows, label, places, chance) for rows in (fold.fit, fold.scored))
            x = probes.whiten(train[0], test[0])
            for kind in kinds:
                draw = generator("probe", kind, label, seed, fold.number)
                rows += _rows(kind, (x[0], *train[1:]), (x[1], *test[1:]), places, classes, draw)
            majority, n = probes.majority(train[1], test[1], classes), len(test[1])
            named = [str(site) for site in places if isinstance(site, Site)]
            rows += [SiteRow(site, "probe_majority", None, "valid", majority, n) for site in named]
    return [*_mean_over_folds(rows), *_article_rows("probe", sites, folds)]


def random_maps(model: Model, layer: int, number: int, seed: int, device: torch.device) -> list[_RandomMap]:
    """Random maps of a layer's input with the width of a head."""
    draw = generator("random maps", layer, seed)
    shape = (number, model.width // model.heads, model.width)
    return [_RandomMap(layer, n, w.to(device)) for n, w in enumerate(torch.randn(shape, generator=draw))]


def _article_rows(kind: str, sites: Sequence[Site], folds: Sequence[Fold]) -> list[SiteRow]:
    """The number of whole articles in the folds; 0 if single rows were assigned."""
    articles = np.concatenate([fold.articles for fold in folds])
    count, n = len(np.unique(articles)) if all(fold.by_article for fold in folds) else 0, len(articles)
    return [SiteRow(str(site), f"{kind}_articles", None, "valid", float(count), n) for site in sites]


def _mean_over_folds(rows: Sequence[SiteRow]) -> list[SiteRow]:
    """Each site's measures over all folds, with every token counted once; raises CorpusError if a fold has no number."""
    groups: dict[tuple[str | None, str, float | None], list[SiteRow]] = {}
    for row in rows:
        groups.setdefault((row.site, row.measure, row.at), []).append(row)
    means = []
    for (site, measure, _), group in groups.items():
        values = [row.value for row in group if row.value is not None]
        if len(values) < len(group):
            raise CorpusError(
                f"{measure} at {site} has no mean over folds.",
                f"{len(group) - len(values)} of {len(group)} folds gave no number.",
                "Use a longer text, or another label.",
            )
        n = sum(row.n for row in group)
        mean = sum(row.n * value for row, value in zip(group, values, strict=True)) / n
        means.append(group[0]._replace(value=mean, n=n))
    return means


# at each place the representation [S N I], and each token's class and control class of the next word [N]
Read: TypeAlias = tuple[Tensor, Tensor, "Tensor | None"]


@torch.no_grad()
def read_places(
    final: Parameters,
    model: Model,
    pieces: Sequence[Piece],
    label: str,
    places: Sequence[Probed],
    chance: Int[np.ndarray, " V"] | None = None,
) -> Read:
    """Arrays of equal width at tokens whose next word has a label, in the order of the text."""
    members = {n: v[None] for n, v in final.items()}
    inputs: set[Block] = {("in", place.layer) for place in places if isinstance(place, _RandomMap)}
    blocks = [*blocks_of([place for place in places if isinstance(place, Site)], model), *sorted(inputs)]
    x, y, words = [], [], []
    for piece in pieces:
        labelled = piece.labels[label] >= 0
        outputs = forward(members, piece.inputs, model, blocks=blocks).blocks
        rows = [
            representation(outputs, 0, place, model).T
            if isinstance(place, Site)
            else outputs["in", place.layer][0].flatten(0, 1) @ place.weight.T
            for place in places
        ]
        x.append(torch.stack([activations[labelled] for activations in rows]))
        y.append(piece.labels[label][labelled])
        words.append(piece.label_words((label,))[labelled])
    control = None if chance is None else torch.from_numpy(chance).to(y[0])[torch.cat(words)]
    return torch.cat(x, 1), torch.cat(y), control


def _rows(
    kind: str, train: Read, test: Read, places: Sequence[Probed], classes: int, draw: torch.Generator
) -> list[SiteRow]:
    """Scores of probes that are fitted to one part, with early stopping on its last tokens, on the other."""
    cut = len(train[1]) * (HELD_OUT - 1) // HELD_OUT

    def score(y: Int[Tensor, " N"], truth: Int[Tensor, " M"]) -> probes.ProbeScores:
        fit, stop = Examples(train[0][:, :cut], y[:cut]), Examples(train[0][:, cut:], y[cut:])
        return probes.probe(kind, fit, stop, Examples(test[0], truth), classes, draw)

    labels = score(train[1], test[1])
    measures = {"accuracy": labels.accuracy, "bits": labels.bits}
    if train[2] is not None and test[2] is not None:
        control = score(train[2], test[2])
        measures |= {"selectivity": labels.accuracy - control.accuracy, "control_bits": control.bits}
    rows = []
    for name, values in measures.items():
        for place, value in zip(places, values, strict=True):
            where = (str(place), f"probe_{kind}_{name}", None)
            if isinstance(place, _RandomMap):
                where = (str(input_site(place.layer)), f"probe_{kind}_random_{name}", float(place.draw))
            rows.append(SiteRow(*where, "valid", float(value), len(test[1])))
    return rows


def erase(
    final: Parameters,
    model: Model,
    corpus: Corpus,
    training: Training,
    site: Site,
    label: str,
    draws: int,
    seed: int,
    tokens: int = TOKENS,
    shrinkage: bool = True,
) -> list[SiteRow]:
    """Rise of the validation loss with the next word's label erased at a resolved site of q, k or v, with controls.

    `final` are a baseline's weights without a member axis. Rows are drawn from validation and dealt into folds as whole
    articles: LEACE is fitted to all but one and applied at every token of that one, and the interval is over articles,
    else over rows (see `assign_folds`). Components of one
    layer are erased together, layers one after the other, each as those below leave it. Each of `draws` controls takes out a
    random subspace of the same rank, in the same whitened space about the same mean.
    Raises CorpusError without labels enough, SpecError without the extra `erase`.
    """
    folds = read_folds(corpus, training, label, seed, tokens, final["decoder.bias"].device)
    curves, ranks, counts, explained = list[Curve](), list[float](), list[int](), list[float]()
    for fold in folds:
        leace, randoms = dict(final), [dict(final) for _ in range(draws)]
        draw, rank, count, shares = generator("erase", str(site), label, seed, fold.number), 0, 0, []
        for layer in sorted(site.layers or ()):
            layer_site = Site(site.components, (layer,), site.heads)
            moments = fit(leace, model, fold.fit, layer_site, label, len(corpus.column(label)), shrinkage)
            eraser = moments.leace()
            rank, count = rank + eraser.rank, moments.count
            shares.append(moments.linear_share())
            apply(leace, layer_site, eraser, model)
            for changed in randoms:
                apply(changed, layer_site, moments.random(eraser.rank, draw), model)
        curves.append(_curve(final, model, fold.scored, site, [leace, *randoms]))
        ranks.append(float(rank))
        counts.append(count)
        explained.append(float(np.mean(shares)))
    rises, low, high, n = _rises(curves, folds)
    fitted = round(float(np.mean(counts)))
    rows = [
        ("erase_rise_nats", None, rises[0], n),
        ("erase_rise_low_nats", None, low[0], n),
        ("erase_rise_high_nats", None, high[0], n),
        *(("erase_random_rise_nats", float(i), rise, n) for i, rise in enumerate(rises[1:], 1)),
        ("erase_rank", None, np.mean(ranks), fitted),
        ("erase_explained", None, np.mean(explained), fitted),
    ]
    return [
        *(SiteRow(str(site), name, at, "valid", finite(value), n) for name, at, value, n in rows),
        *_article_rows("erase", (site,), folds),
    ]


def fit(
    parameters: Parameters,
    model: Model,
    pieces: list[Piece],
    site: Site,
    label: str,
    classes: int,
    shrinkage: bool = True,
) -> LabelMoments:
    """Fit to the representation at a site of one layer, at tokens whose next word has a label."""
    device = parameters["decoder.bias"].device
    moments = LabelMoments(model.width * len(site.components), classes, device, shrinkage=shrinkage)
    for piece in pieces:
        x, y, _ = read_places(parameters, model, [piece], label, [site])
        moments.add(x[0], y)
    return moments


def apply(parameters: dict[str, Tensor], site: Site, eraser: Eraser, model: Model) -> None:
    """Write the erasure into the rows of a layer's in-projection that make the site."""
    starts = [COMPONENT_ROW[component] * model.width for component in site.components]
    rows = torch.cat([torch.arange(start, start + model.width) for start in starts])
    names = [f"layers.{(site.layers or (1,))[0]}.in.{kind}" for kind in ("weight", "bias")]
    for name, values in zip(names, eraser.compose_projection(*(parameters[name][rows] for name in names)), strict=True):
        parameters[name] = parameters[name].index_copy(0, rows.to(values.device), values)


def loss_rises(
    final: Parameters, model: Model, pieces: list[Piece], site: Site, changed: Sequence[Parameters]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Each changed model's rise of the loss with its 95 % interval over rows, and the number of tokens."""
    return _rises([_curve(final, model, pieces, site, changed)], [])


def _curve(final: Parameters, model: Model, pieces: list[Piece], site: Site, changed: Sequence[Parameters]) -> Curve:
    """Losses of each changed model, and last those of the unchanged one."""
    variants = Variants([*changed, final], torch.eye(len(changed) + 1, dtype=torch.float64))
    return evaluate_variants({n: v[None] for n, v in final.items()}, model, pieces, site, variants)


def _rises(curves: Sequence[Curve], folds: Sequence[Fold]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Rises over the last variant, all folds together, with intervals over the folds' articles, or over rows."""
    nats = np.concatenate([curve.row_nats for curve in curves], 1)
    tokens = np.concatenate([curve.row_tokens for curve in curves])
    if folds:
        articles = np.concatenate([fold.articles for fold in folds])
        member = (np.unique(articles)[:, None] == articles).astype(float)
        nats, tokens = nats @ member.T, (member @ tokens).astype(int)
    band, n = paired_band(nats, tokens, BOUNDLESS), int(tokens.sum())
    losses = nats.sum(1) / n
    return losses[:-1] - losses[-1], band.low[:-1], band.high[:-1], n
