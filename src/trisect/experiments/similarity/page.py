"""Similarity's page: how alike the three matrices of every head are, against random ones, and what scores do on texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.experiments.similarity.numbers import Head, SimilarityNumbers
from trisect.papers import matrices
from trisect.report import format as words
from trisect.report.blocks import TextBlock
from trisect.report.heatmaps import grid
from trisect.report.multiples import sentences, small_multiples
from trisect.report.panels import Figure
from trisect.report.provenance import provenance, verdict_findings
from trisect.report.sheet import Section, Sheet, Table
from trisect.report.subject import stack_words

if TYPE_CHECKING:
    from trisect.experiments.similarity.settings import SimilarityFacts

PAIRS = ("q-k", "k-v", "q-v")
RANKS = ("q", "k", "v", "q-k", "v-o")
CORPUS, AFFINE, ELSEWHERE = "corpus", "with biases", "queries from elsewhere"
PRODUCTS = {"q-k": "W_Q W_Kᵀ", "v-o": "W_V W_O", "q": "W_Q", "k": "W_K", "v": "W_V"}
NAMES = {
    "overlap": "overlap of what is read",
    "least_angle_degrees": "least angle (degrees)",
    "symmetric_share": "symmetric share",
    "cosine": "cosine of the flattened matrices",
    "cka": "linear CKA, inputs of unit covariance",
    "effective_rank": "effective rank",
}
REFERENCES = (
    matrices.SOURCE.citation,
    "Åke Björck, Gene Golub. Numerical Methods for Computing Angles Between Linear Subspaces. Mathematics of Computation 27, 1973.",
    "Alan Edelman, Brian Sutton. The Beta-Jacobi Matrix Model, the CS Decomposition, and Generalized Singular Value Problems. "
    "Foundations of Computational Mathematics 8, 2008.",
    "Simon Kornblith et al. Similarity of Neural Network Representations Revisited. ICML 2019.",
    "Olivier Roy, Martin Vetterli. The Effective Rank: a Measure of Effective Dimensionality. EUSIPCO 2007.",
    "Sture Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.",
)


def page(tables: Mapping[str, pl.DataFrame], about: About[SimilarityFacts]) -> Sheet:
    """The page from the tables measures and claims."""
    numbers, facts = SimilarityNumbers.of(tables["measures"]), about.facts
    texts = f", and its scores on {facts.corpus}" if facts.corpus else ""
    name = words.called(facts.subject, about.command)
    lede = f"The query, key and value matrices of every head of {name}{texts}. This speaks of this one model."
    sections = [
        _alike(numbers),
        Section("What the claims come to", (_rule(facts),), cards=tables["claims"]),
        _score(numbers, facts),
        _ranks(numbers),
        _described(numbers, facts),
        *_elsewhere(numbers),
        _compared(numbers, facts),
    ]
    if about.notes:
        sections.append(Section("Notes", tuple(about.notes)))
    own = provenance(about, *_facts(facts), timed=False)
    return Sheet(f"Why three matrices? {name}", "Similarity", lede, tuple(sections), own, REFERENCES)


def findings(tables: Mapping[str, pl.DataFrame], about: About[SimilarityFacts]) -> tuple[Finding, ...]:
    """How alike each pair is, how symmetric the score, and every verdict with its reason."""
    numbers = SimilarityNumbers.of(tables["measures"])
    found = [_overlap(numbers, pair) for pair in PAIRS if numbers.get("overlap", pair)]
    if numbers.get("symmetric_share", "q-k"):
        said = f"Symmetric share of the score: {_against_null(numbers, 'symmetric_share', 'q-k')} on average."
        values = _estimates(numbers, "symmetric_share", "q-k")
        found.append(_finding("symmetric_share", said, values, _sides(numbers, "symmetric_share", "q-k"), "q-k"))
    return (*found, *verdict_findings(tables["claims"]))


def _finding(measure: str, said: str, values: tuple[Estimate, ...], sides: tuple[int, int], pair: str) -> Finding:
    compared = f"{sides[0]} heads above random matrices, {sides[1]} below, after Holm" if len(values) > 1 else ""
    return Finding(
        measure, said, "share", values, compared, matrices.SOURCE.key, groups=(pair,), per="head", signed=False
    )


def _estimates(numbers: SimilarityNumbers, measure: str, pair: str) -> tuple[Estimate, ...]:
    """The mean over heads, and beside it that of random matrices where there is one."""
    heads, null = numbers.get(measure, pair), numbers.null(measure, pair)
    mean = Estimate(pair, _mean(heads), n=len(heads))
    return (mean,) if null is None else (mean, Estimate("random", null))


def _sides(numbers: SimilarityNumbers, measure: str, pair: str) -> tuple[int, int]:
    """How many heads lie above random matrices, and how many below."""
    heads = numbers.get(measure, pair)
    return sum(h.side == 1 for h in heads), sum(h.side == -1 for h in heads)


def _alike(numbers: SimilarityNumbers) -> Section:
    said = (
        "A head's matrix reads a part of its input, as many directions as the head is wide. The overlap of two matrices is the "
        "mean squared cosine of the principal angles between what they read: 1 where they read the same, 0 where one reads "
        "only what the other is blind to. It stays what it is when a head is rewritten as (W_Q G, W_K G⁻ᵀ), which is the same head."
    )
    found = [replace(_overlap(numbers, pair), title=_dash(pair)) for pair in PAIRS if numbers.get("overlap", pair)]
    fold = sentences(found, "Overlaps in words")
    figures = [
        *_short(numbers, "similarity-short", "Pair by pair", _ALIKE, PAIRS),
        *_grids(numbers, "overlap", PAIRS, "overlap", "Figure 1", "How much two matrices read the same", _OVERLAP),
    ]
    question, notes = "Do two matrices of a head read the same?", (TextBlock(said, "quiet"),)
    return Section(question, _most_alike(numbers), tuple(figures), (fold,) if fold else (), blocks=notes)


def _most_alike(numbers: SimilarityNumbers) -> tuple[str, ...]:
    """The pair that is most alike, in a sentence; empty where no pair was measured."""
    pairs = [pair for pair in PAIRS if numbers.get("overlap", pair)]
    if not pairs:
        return ()
    most = max(pairs, key=lambda pair: _mean(numbers.get("overlap", pair)))
    heads = words.several(len(numbers.get("overlap", most)), "head")
    return (
        f"Overlap is largest for {_dash(most)}: {_against_null(numbers, 'overlap', most)} on average over {heads}.",
    )


def _short(
    numbers: SimilarityNumbers, name: str, title: str, kinds: Sequence[tuple[str, str, str]], components: Sequence[str]
) -> Iterable[Figure]:
    """Means over heads as a row of small panels, of measures with their titles and units; none where there is nothing."""
    short = []
    for measure, said, unit in kinds:
        found = {c: numbers.get(measure, c) for c in components}
        values = tuple(Estimate(c, _mean(heads), n=len(heads)) for c, heads in found.items() if heads)
        short.append(Finding(measure, "", unit, values, title=said, signed=measure == "cosine"))
    drawn = small_multiples(name, title, "Means over heads; each panel has an axis of its own.", short)
    return () if drawn is None else (drawn,)


_ALIKE = (("overlap", "Overlap", "share"), ("cosine", "Cosine of the matrices", "cosine"), ("cka", "Linear CKA", "CKA"))


_OVERLAP = "Overlap of what two matrices of a head read: 0 nothing in common, 1 the same."
_CKA = "Linear CKA of what two matrices make of inputs of unit covariance."


def _overlap(numbers: SimilarityNumbers, pair: str) -> Finding:
    values, sides = _estimates(numbers, "overlap", pair), _sides(numbers, "overlap", pair)
    return _finding("overlap", f"Overlap of {_overlaps(numbers, pair)}", values, sides, pair)


def _overlaps(numbers: SimilarityNumbers, pair: str) -> str:
    heads = numbers.get("overlap", pair)
    null = numbers.null("overlap", pair)
    said = f"{_dash(pair)}: {words.number(_mean(heads))} on average over {words.several(len(heads), 'head')}"
    if null is not None:
        above, below = _sides(numbers, "overlap", pair)
        said += f", random matrices of the shape {words.number(null)}; {above} heads above them and {below} below, after Holm"
    among = numbers.get("overlap_among", pair)
    if among:
        first = sum(h.value == 0 for h in numbers.get("overlap_others_above", pair))
        said += (
            f"; minus that with its layer's other heads {words.number(_mean(among), True)}, {first} above all of them"
        )
    most = max(heads, key=lambda h: h.value)
    return f"{said}. Most: {words.number(most.value)} at {_of(most.stack)}layer {most.layer} head {most.head}."


def _rule(facts: SimilarityFacts) -> str:
    return (
        "D-1 is tested head by head: it is refuted where one head's overlap lies above that of random matrices by more than the "
        f"margin, after correction for all heads and pairs, and supported where every head lies below that line; its intervals are "
        f"those of {words.count(facts.draws_made)} random matrices. The other heads of the layer, which read the same input, are "
        "shown beside them and do not decide. D-3 resamples heads "
        "with replacement, and texts too where they are behind the number. Both speak of this one model."
    )


def _score(numbers: SimilarityNumbers, facts: SimilarityFacts) -> Section:
    shares = numbers.get("symmetric_share", "q-k")
    said, more, figures = [], [], []
    if shares:
        null = numbers.null("symmetric_share", "q-k")
        above, below = _sides(numbers, "symmetric_share", "q-k")
        said.append(
            f"By squared size {words.number(_mean(shares))} of the score is symmetric, averaged over heads (random matrices: "
            f"{words.number(null)})."
        )
        more.append(
            "The score of two inputs is x W_Q W_Kᵀ y. Its symmetric part is the same both ways round, its antisymmetric part turns "
            f"its sign. {above} heads are more symmetric than random matrices and {below} less, after Holm."
        )
        caption = (
            "Share of W_Q W_Kᵀ that is symmetric, by squared size: 1 a similarity, 0 its opposite, random matrices ½."
        )
        figures += _grids(
            numbers, "symmetric_share", ("q-k",), "share", "Figure 2", "How symmetric the score is", caption
        )
    elif not numbers.get("symmetric_share", "q-k", ELSEWHERE):
        said.append(
            "How symmetric the score is was not measured: no layer has queries and keys that are plain maps of their input. With a "
            "norm behind them the score is not x W_Q W_Kᵀ y (see the notes)."
        )
    if facts.corpus:
        more += _on_texts(numbers, facts)
        named = (
            (
                "score_correlation",
                "correlation",
                "A score and its reverse",
                "Correlation of s_ij and s_ji over pairs of tokens: 1 a symmetric score, 0 unrelated.",
            ),
            (
                "self_first_share",
                "share",
                "Does a token score highest with itself?",
                "Share of queries for which no other key scores as high as their own.",
            ),
            (
                "self_ahead_share",
                "share",
                "A token's score with itself among others",
                "Mean share of other keys that score lower than the query's own; ½ by chance.",
            ),
        )
        for i, (measure, unit, title, caption) in enumerate(named):
            sign = measure == "score_correlation"
            tail = f" Before the mask; n\u00a0=\u00a0{words.several(facts.texts or 0, 'text')} of {facts.corpus}."
            figures += _grids(numbers, measure, ("q-k",), unit, f"Figure {3 + i}", title, caption + tail, CORPUS, sign)
    else:
        said.append("Whether a token scores highest with itself was not measured: that needs texts.")
    notes = tuple(TextBlock(one, "quiet") for one in more)
    return Section("Is the score a similarity?", tuple(said), tuple(figures), blocks=notes)


def _on_texts(numbers: SimilarityNumbers, facts: SimilarityFacts) -> list[str]:
    found = {
        m: numbers.get(m, "q-k", CORPUS)
        for m in ("score_unequal_share", "score_correlation", "self_first_share", "self_ahead_share")
    }
    if not found["score_unequal_share"]:
        return [
            "On the texts no score was compared: queries and keys are never of one sequence, or texts have one token."
        ]
    mean = {name: words.number(_mean(heads)) for name, heads in found.items() if heads}
    said = (
        f"On {words.several(facts.texts or 0, 'text')} of {facts.corpus}, before the mask and before any position bias, s_ij "
        f"differs from s_ji by more than rounding in {mean['score_unequal_share']} of the pairs of tokens, averaged over heads; "
        f"their correlation is {mean.get('score_correlation', '–')}. A token scores highest with itself for "
        f"{mean['self_first_share']} of the queries, and above {mean['self_ahead_share']} of the other keys (by chance ½). With "
        "rotary positions the scores are those of the turned vectors."
    )
    return [said]


def _ranks(numbers: SimilarityNumbers) -> Section:
    said = (
        "The effective rank counts the directions that matter: the exponential of the entropy of the singular values' shares. Of "
        "W_Q W_Kᵀ and W_V W_O it belongs to the head; of a single matrix it changes with the basis that the head is written in."
    )
    have = tuple(c for c in RANKS if numbers.get("effective_rank", c))
    lines = tuple((PRODUCTS[c], _against_null(numbers, "effective_rank", c)) for c in have)
    short = _short(
        numbers, "ranks-short", "Matrix by matrix", (("effective_rank", "Effective rank", "directions"),), RANKS
    )
    fold = Table(("", "mean"), lines, "Mean effective rank", folded=True, label="Mean effective rank")
    title, caption = "Directions that a head uses", "Effective rank of a head's products."
    figures = _grids(numbers, "effective_rank", have[3:] or have, "directions", "Figure 6", title, caption)
    means = [f"{PRODUCTS[c]} {words.number(_mean(numbers.get('effective_rank', c)))}" for c in have]
    lead = f"On average over heads, directions in use: {words.listed(means)}."
    return Section(
        "How many directions does a head use?", (lead,), (*short, *figures), (fold,), blocks=(TextBlock(said, "quiet"),)
    )


def _described(numbers: SimilarityNumbers, facts: SimilarityFacts) -> Section:
    said = (
        "The cosine of two flattened matrices and linear CKA change when a head is rewritten in another basis, so that no verdict "
        "rests on them. They say how alike the weights and the representations are as this model happens to hold them."
    )
    texts = f"Linear CKA of q, k and v over the tokens of {facts.corpus}, as attention used them."
    title, flat = "Cosine of the flattened matrices", "Cosine of two matrices of a head."
    figures = [
        *_grids(numbers, "cosine", PAIRS, "cosine", "Figure 7", title, flat, None, True),
        *_grids(numbers, "cka", PAIRS, "CKA", "Figure 8", "Linear CKA from weights", _CKA),
        *_grids(numbers, "cka", PAIRS, "CKA", "Figure 9", "Linear CKA on texts", texts, CORPUS),
    ]
    return Section("Described, not judged", (said,), tuple(figures))


def _elsewhere(numbers: SimilarityNumbers) -> Iterable[Section]:
    """How attention to another sequence differs from attention to its own; nothing where there is none."""
    if not numbers.get("overlap", "q-k", ELSEWHERE):
        return
    named = [("overlap", pair) for pair in PAIRS] + [("symmetric_share", "q-k"), ("effective_rank", "q-k")]
    lines = []
    for measure, component in named:
        heads = [*numbers.get(measure, component), *numbers.get(measure, component, ELSEWHERE)]
        means = [[h.value for h in heads if h.stack == stack] for stack in ("enc", "dec", "cross")]
        cells = (words.number(sum(some) / len(some)) if some else "–" for some in means)
        null = numbers.null(measure, component)
        null = numbers.null(measure, component, ELSEWHERE) if null is None else null
        lines.append((f"{NAMES[measure]}: {_dash(component)}", *cells, words.number(null)))
    said = (
        "In cross-attention the queries are made of the decoder's vectors, the keys and values of the encoder's. What W_Q reads "
        "there is compared with what W_K and W_V read as if both were of one space, which they share only as far as training made "
        "them: it is described beside attention within one sequence, and no verdict rests on it."
    )
    caption = f"{_OVERLAP} In cross-attention, where queries come from elsewhere."
    figures = _grids(
        numbers, "overlap", ("q-k", "q-v"), "overlap", "Figure 10", "Queries from elsewhere", caption, ELSEWHERE
    )
    table = Table(
        ("Mean over heads", "encoder", "decoder", "cross", "random"), tuple(lines), "By where queries come from"
    )
    yield Section("What if queries come from elsewhere?", (said,), tuple(figures), (table,))


def _compared(numbers: SimilarityNumbers, facts: SimilarityFacts) -> Section:
    rows = []
    for (measure, component, group), heads in numbers.heads.items():
        null = numbers.null(measure, component, group)
        if null is None:
            continue
        scores = [h.z for h in heads if h.z is not None]
        name = f"{NAMES[measure]}{f', {group}' if group in (AFFINE, ELSEWHERE) else ''}"
        cells = (
            words.number(_mean(heads)),
            words.number(null),
            words.number(sum(scores) / len(scores), True) if scores else "–",
        )
        sides = (str(sum(h.side == 1 for h in heads)), str(sum(h.side == -1 for h in heads)), str(len(heads)))
        rows.append((f"{name}: {_dash(component)}", *cells, *sides))
    columns = ("measure", "mean", "random", "mean z", "above", "below", "heads")
    caption = "Means over heads; above and below count heads that differ from random matrices after Holm, two-sided."
    said = (
        f"Random matrices are Gaussian and of the same shape, at least {words.count(facts.draws)} draws for each shape, more where many "
        "heads need a smaller p. Holm's family is one measure over all heads, pairs and layers, and for effective ranks all heads "
        "of one component. 'With biases' compares the affine maps: each matrix with its bias as one more row."
    )
    return Section("Against random matrices", (said,), (), (Table(columns, tuple(sorted(rows)), caption),))


def _grids(
    numbers: SimilarityNumbers,
    measure: str,
    components: Sequence[str],
    unit: str,
    number: str,
    title: str,
    caption: str,
    group: str | None = None,
    diverging: bool = False,
) -> Iterable[Figure]:
    """One figure of heat maps: a panel for each stack and component; none where nothing was measured."""
    values: dict[str, list[tuple[int, int, float]]] = {}
    marked: dict[str, set[tuple[int, int]]] = {}
    for component in components:
        for head in numbers.get(measure, component, group):
            panel = f"{_of(head.stack)}{_dash(component)}"
            values.setdefault(panel, []).append((head.layer, head.head, head.value))
            if head.side:
                marked.setdefault(panel, set()).add((head.layer, head.head))
    if not values:
        return
    if marked:
        caption += " Dots: heads that differ from random matrices, p < 0.05 after Holm."
    count = words.several(max(len(rows) for rows in values.values()), "head")
    name = f"{measure.replace('_', '-')}{'-' + group.replace(' ', '-') if group else ''}"
    yield grid(name, number, title, f"{caption} {count} a panel.", values, unit, diverging, None, marked)


def _against_null(numbers: SimilarityNumbers, measure: str, component: str) -> str:
    said, null = words.number(_mean(numbers.get(measure, component))), numbers.null(measure, component)
    return said if null is None else f"{said} (random: {words.number(null)})"


def _mean(heads: Sequence[Head]) -> float:
    return sum(h.value for h in heads) / len(heads)


def _of(stack: str) -> str:
    return f"{said}, " if (said := stack_words(stack)) else ""


def _dash(component: str) -> str:
    return component.replace("-", "–")


def _facts(facts: SimilarityFacts) -> Iterable[tuple[str, str]]:
    yield "Model", f"{facts.subject}, weights {facts.fingerprint}"
    if facts.corpus:
        read = f"{words.several(facts.texts or 0, 'text')}, {words.several(facts.tokens or 0, 'token')}"
        yield "Texts", f"{facts.corpus}: {read}"
    yield "Random matrices", f"{words.count(facts.draws)} draws a shape at least, seed {facts.seed}"
