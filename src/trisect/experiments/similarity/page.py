"""The page of similarity: W_Q, W_K and W_V compared with random matrices, and scores on texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.papers import matrices
from trisect.report import format as words
from trisect.report.charts import Figure
from trisect.report.format import stack_words
from trisect.report.maps import head_maps
from trisect.report.measures import MeasuredValue, Measures
from trisect.report.sheet import (
    Section,
    Sheet,
    Table,
    notes_section,
    present,
    provenance,
    quiet,
    small_multiples,
    verdict_findings,
)
from trisect.stats.significance import ALPHA

if TYPE_CHECKING:
    from trisect.experiments.similarity.settings import SimilarityFacts


PAIRS = ("q-k", "k-v", "q-v")
_RANKS = ("q", "k", "v", "q-k", "v-o")
CORPUS, AFFINE = "corpus", "with biases"
ELSEWHERE = "queries from elsewhere"  # of cross-attention: q reads other vectors than k and v
_PRODUCTS = {"q-k": "W_Q W_Kᵀ", "v-o": "W_V W_O", "q": "W_Q", "k": "W_K", "v": "W_V"}
NAMES = {
    "overlap": "overlap of what is read",
    "least_angle_degrees": "least angle (degrees)",
    "symmetric_share": "symmetric share",
    "cosine": "cosine of the flattened matrices",
    "cka": "linear CKA, inputs of unit covariance",
    "effective_rank": "effective rank",
}
_ON_TEXTS = {  # unit, title and caption
    "score_correlation": (
        "correlation",
        "A score and its reverse",
        "Correlation of s_ij and s_ji over pairs of tokens: 1 a symmetric score, 0 unrelated.",
    ),
    "self_first_share": (
        "share",
        "Does a token score highest with itself?",
        "Share of queries for which no other key scores as high as their own.",
    ),
    "self_ahead_share": (
        "share",
        "A token's score with itself among others",
        "Mean share of other keys that score lower than the query's own; ½ by chance.",
    ),
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


class _HeadMeasure(NamedTuple):
    """Every head's value of a measure; for random matrices, their mean, the heads' z, and the side of those significant after Holm."""

    rows: Measures
    null: float | None
    scores: tuple[float, ...]
    sides: Mapping[tuple[str, int | None, int | None], int]

    @classmethod
    def of(cls, measures: Measures, measure: str, component: str, group: str | None = None) -> _HeadMeasure:
        """The heads of a measure; null means are averaged over shapes."""
        rows, null, scores, tests = (
            measures.where(f"{measure}{tail}", component=component, group=group)
            for tail in ("", "_null", "_z", "_p_holm")
        )
        clear = {(r.stack, r.layer, r.head) for r in tests if r.value < ALPHA}
        sides = {(r.stack, r.layer, r.head): (r.value > 0) - (r.value < 0) for r in scores}
        z, sides = tuple(r.value for r in scores), {head: side for head, side in sides.items() if head in clear}
        return cls(rows, null.mean if null else None, z, sides)

    @property
    def mean(self) -> float:
        """The mean over heads."""
        return self.rows.mean

    @property
    def against(self) -> str:
        """The mean, and that of random matrices if there is one."""
        return words.number(self.mean) + ("" if self.null is None else f" (random: {words.number(self.null)})")

    def beyond(self, side: int) -> int:
        """The number of heads above (1) or below (−1) random matrices."""
        return list(self.sides.values()).count(side)

    def finding(self, measure: str, text: str, pair: str) -> Finding:
        """The mean over heads, and that of random matrices."""
        values = [Estimate(pair, self.mean, n=len(self.rows))]
        values += [] if self.null is None else [Estimate("random", self.null)]
        compared = f"{self.beyond(1)} heads above random matrices, {self.beyond(-1)} below, after Holm"
        compared *= len(values) > 1
        fields = (measure, text, "share", tuple(values), compared, matrices.SOURCE.key)
        return Finding(*fields, groups=(pair,), per="head", signed=False)


def page(tables: Mapping[str, pl.DataFrame], about: About[SimilarityFacts]) -> Sheet:
    """The page from the tables measures and claims."""
    numbers, facts = Measures.of(tables["measures"]), about.facts
    name = words.display_name(facts.subject, about.command)
    texts = f", scores on {facts.corpus}, {words.quantity(facts.texts or 0, 'text')}" if facts.corpus else ""
    overlaps = {pair: _HeadMeasure.of(numbers, "overlap", pair) for pair in PAIRS}
    heads = words.quantity(max(len(overlaps[pair].rows) for pair in PAIRS), "head")
    lede = f"{name} · weights of {heads}{texts} · compared with {words.count(facts.draws_made)} random matrices"
    answer = "No layer has queries, keys and values that are plain maps of their input."
    if measured := sorted((pair for pair in PAIRS if overlaps[pair].rows), key=lambda pair: -overlaps[pair].mean):
        named = {"q-k": "W_Q and W_K", "k-v": "W_K and W_V", "q-v": "W_Q and W_V"}
        largest = overlaps[measured[0]]
        answer = (
            f"Of a head's three matrices {named[measured[0]]} read the most similar directions of their input: they overlap by "
            f"{words.share(largest.mean)}{'' if largest.null is None else f', random matrices by {words.share(largest.null)}'}."
        )
    rule = (
        "D-1 is tested head by head: it is refuted where one head's overlap lies above that of random matrices by more than the "
        f"margin, after correction for all heads and pairs, and supported where every head lies below that line; its intervals are "
        f"those of {words.count(facts.draws_made)} random matrices. The other heads of the layer, which read the same input, are "
        "shown beside them and do not decide. D-3 resamples heads "
        "with replacement, and texts too where they are behind the number. Both speak of this one model."
    )
    sections = present(
        _alike(numbers),
        Section("Results of the claims", (rule,), cards=tables["claims"]),
        _score(numbers, facts),
        _ranks(numbers),
        _description(numbers, facts),
        _elsewhere(numbers),
        _null_table(numbers, facts),
        notes_section(about),
    )
    read = f"{words.quantity(facts.texts or 0, 'text')}, {words.quantity(facts.tokens or 0, 'token')}"
    about_run = (
        ("Model", f"{facts.subject}, weights {facts.fingerprint}"),
        *((("Texts", f"{facts.corpus}: {read}"),) if facts.corpus else ()),
        ("Random matrices", f"{words.count(facts.draws)} draws a shape at least, seed {facts.seed}"),
    )
    title = f"How alike are the query, key and value matrices of {name}?"
    sources = provenance(about, *about_run, timed=False)
    return Sheet(title, "trisect · similarity", lede, sections, sources, REFERENCES, answer)


def findings(tables: Mapping[str, pl.DataFrame], about: About[SimilarityFacts]) -> tuple[Finding, ...]:
    """The similarity of each pair, the symmetry of scores, and every verdict with its reason."""
    numbers = Measures.of(tables["measures"])
    findings = list(_overlaps(numbers))
    score = _HeadMeasure.of(numbers, "symmetric_share", "q-k")
    if score.rows:
        text = f"Symmetric share of the score: {score.against} on average."
        findings.append(score.finding("symmetric_share", text, "q-k"))
    return (*findings, *verdict_findings(tables["claims"]))


def _overlaps(numbers: Measures) -> Iterator[Finding]:
    """The overlap of each pair's row spaces, against random matrices and the layer's other heads."""
    for pair in PAIRS:
        heads = _HeadMeasure.of(numbers, "overlap", pair)
        if not heads.rows:
            continue
        text = f"Overlap of {_dash(pair)}: {words.number(heads.mean)} on average over {words.quantity(len(heads.rows), 'head')}"
        if heads.null is not None:
            above, below = heads.beyond(1), heads.beyond(-1)
            text += f", random matrices of the shape {words.number(heads.null)}; {above} heads above them and {below} below, after Holm"
        if among := _among(numbers, pair):
            text += f"; minus that with its layer's other heads {among}"
        top = max(heads.rows, key=lambda row: row.value)
        text += f". Most: {words.number(top.value)} at {_of(top.stack)}layer {top.layer} head {top.head}."
        yield heads.finding("overlap", text, pair)


def _among(numbers: Measures, pair: str) -> str:
    """A pair's overlap minus that with the layer's other heads, and how many heads lie above all of them; empty if not measured."""
    among, above = (numbers.where(f"overlap_{name}", component=pair, group=None) for name in ("among", "others_above"))
    first = sum(row.value == 0 for row in above)
    return f"{words.number(among.mean, True)}, {first} above all of them" if among else ""


def _alike(numbers: Measures) -> Section:
    text = (
        "A head's matrix reads a part of its input, as many directions as the head is wide. The overlap of two matrices is the "
        "mean squared cosine of the principal angles between what they read: 1 where they read the same, 0 where one reads "
        "only what the other is blind to. It stays what it is when a head is rewritten as (W_Q G, W_K G⁻ᵀ), which is the same head."
    )
    figures = (
        *present(_short(numbers, "similarity-short", "Pair by pair", _OVERLAP_SERIES, PAIRS)),
        *_grids(numbers, "overlap", PAIRS, "overlap", "Figure 1", "How much two matrices read the same", _OVERLAP),
    )
    among = "; ".join(f"{_dash(pair)} {heads}" for pair in PAIRS if (heads := _among(numbers, pair)))
    others = [f"Minus the overlap with the other heads of the layer, mean over heads: {among}."] * bool(among)
    return Section("Do two matrices of a head read the same?", (), figures, blocks=quiet([text, *others]))


def _short(
    numbers: Measures, name: str, title: str, kinds: Sequence[tuple[str, str, str]], components: Sequence[str]
) -> Figure | None:
    """Means over heads as a row of small panels, for measures with titles and units; None if there are none."""
    short = []
    for measure, heading, unit in kinds:
        means = {e.name: e for e in numbers.where(measure, group=None).means()}
        values = tuple(means[c] for c in components if c in means)
        short.append(Finding(measure, "", unit, values, title=heading, signed=measure == "cosine"))
    return small_multiples(name, title, "Means over heads, on one axis where units are the same.", short)


_OVERLAP_SERIES = (("overlap", "Overlap of the matrices", "share"), ("overlap_null", "Of random matrices", "share"))
_OVERLAP = "Overlap of what two matrices of a head read: 0 nothing in common, 1 the same."
_CKA = "Linear CKA of what two matrices make of inputs of unit covariance."


def _score(numbers: Measures, facts: SimilarityFacts) -> Section:
    """The symmetry of scores, by weights and on texts."""
    shares = _HeadMeasure.of(numbers, "symmetric_share", "q-k")
    text, more, figures = [], [], []
    if shares.rows:
        text.append(
            f"By squared size {words.number(shares.mean)} of the score is symmetric, averaged over heads (random matrices: "
            f"{words.number(shares.null)})."
        )
        more.append(
            "The score of two inputs is x W_Q W_Kᵀ y. Its symmetric part is the same both ways round, its antisymmetric part turns "
            f"its sign. {shares.beyond(1)} heads are more symmetric than random matrices and {shares.beyond(-1)} less, after Holm."
        )
        caption = (
            "Share of W_Q W_Kᵀ that is symmetric, by squared size: 1 a similarity, 0 its opposite, random matrices ½."
        )
        figures += _grids(
            numbers, "symmetric_share", ("q-k",), "share", "Figure 2", "How symmetric the score is", caption
        )
    elif not numbers.where("symmetric_share", component="q-k", group=ELSEWHERE):
        text.append(
            "How symmetric the score is was not measured: no layer has queries and keys that are plain maps of their input. With a "
            "norm behind them the score is not x W_Q W_Kᵀ y (see the notes)."
        )
    if facts.corpus:
        by_measure = {m: numbers.where(m, component="q-k", group=CORPUS) for m in ("score_unequal_share", *_ON_TEXTS)}
        mean = {name: words.number(rows.mean) for name, rows in by_measure.items() if rows}
        more.append(
            f"On {words.quantity(facts.texts or 0, 'text')} of {facts.corpus}, before the mask and before any position bias, s_ij "
            f"differs from s_ji by more than rounding in {mean['score_unequal_share']} of the pairs of tokens, averaged over heads; "
            f"their correlation is {mean.get('score_correlation', '–')}. A token scores highest with itself for "
            f"{mean['self_first_share']} of the queries, and above {mean['self_ahead_share']} of the other keys (by chance ½). With "
            "rotary positions the scores are those of the turned vectors."
            if mean
            else "On the texts no score was compared: queries and keys are never of one sequence, or texts have one token."
        )
        tail = f" Before the mask; {words.sample(facts.texts or 0, 'text')} of {facts.corpus}."
        for number, (measure, (unit, title, caption)) in enumerate(_ON_TEXTS.items(), start=3):
            sign = measure == "score_correlation"
            figures += _grids(numbers, measure, ("q-k",), unit, f"Figure {number}", title, caption + tail, CORPUS, sign)
    else:
        text.append("Whether a token scores highest with itself was not measured: that needs texts.")
    return Section("Is the score a similarity?", tuple(text), tuple(figures), blocks=quiet(more))


def _ranks(numbers: Measures) -> Section:
    text = (
        "The effective rank counts the directions that matter: the exponential of the entropy of the singular values' shares. Of "
        "W_Q W_Kᵀ and W_V W_O it belongs to the head; of a single matrix it changes with the basis that the head is written in."
    )
    ranks = {c: _HeadMeasure.of(numbers, "effective_rank", c) for c in _RANKS}
    have = tuple(c for c in _RANKS if ranks[c].rows)
    kinds = (("effective_rank", "Effective rank", "directions"),)
    short = _short(numbers, "ranks-short", "Matrix by matrix", kinds, _RANKS)
    lines, caption = tuple((_PRODUCTS[c], ranks[c].against) for c in have), "Mean effective rank"
    fold = Table(("", "mean"), lines, caption, folded=True, label=caption)
    title, said_of = "Directions that a head uses", "Effective rank of a head's products."
    maps = _grids(numbers, "effective_rank", have[3:] or have, "directions", "Figure 6", title, said_of)
    means = words.join_words([f"{_PRODUCTS[c]} {words.number(ranks[c].mean)}" for c in have])
    lead = (f"On average over heads, directions in use: {means}.",)
    figures = (*present(short), *maps)
    return Section("How many directions does a head use?", lead, figures, (fold,), blocks=quiet([text]))


def _description(numbers: Measures, facts: SimilarityFacts) -> Section:
    text = (
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
    return Section("Described, not judged", (text,), tuple(figures))


def _elsewhere(numbers: Measures) -> Section | None:
    """Cross-attention compared with self-attention; None without cross-attention."""
    if not numbers.where("overlap", component="q-k", group=ELSEWHERE):
        return None
    named = [("overlap", pair) for pair in PAIRS] + [("symmetric_share", "q-k"), ("effective_rank", "q-k")]
    lines = []
    for measure, component in named:
        same, other = (_HeadMeasure.of(numbers, measure, component, group) for group in (None, ELSEWHERE))
        means = Measures((*same.rows, *other.rows)).by("stack")
        cells = (words.number(means[stack].mean) if stack in means else "–" for stack in ("enc", "dec", "cross"))
        null = words.number(other.null if same.null is None else same.null)
        lines.append((f"{NAMES[measure]}: {_dash(component)}", *cells, null))
    text = (
        "In cross-attention the queries are made of the decoder's vectors, the keys and values of the encoder's. What W_Q reads "
        "there is compared with what W_K and W_V read as if both were of one space, which they share only as far as training made "
        "them: it is described beside attention within one sequence, and no verdict rests on it."
    )
    caption, title = f"{_OVERLAP} In cross-attention, where queries come from elsewhere.", "Queries from elsewhere"
    figures = _grids(numbers, "overlap", ("q-k", "q-v"), "overlap", "Figure 10", title, caption, ELSEWHERE)
    columns = ("Mean over heads", "encoder", "decoder", "cross", "random")
    table = Table(columns, tuple(lines), "By where queries come from")
    return Section("What if queries come from elsewhere?", (text,), tuple(figures), (table,))


def _null_table(numbers: Measures, facts: SimilarityFacts) -> Section:
    """Every measure with a null distribution, and the number of heads that differ from it."""
    rows = []
    for measure, component, group in numbers.by("measure", "component", "group"):
        heads = _HeadMeasure.of(numbers, measure, component, group)
        if heads.null is None:
            continue
        z = sum(heads.scores) / len(heads.scores) if heads.scores else None
        name = f"{NAMES[measure]}{f', {group}' if group in (AFFINE, ELSEWHERE) else ''}"
        cells = (words.number(heads.mean), words.number(heads.null), words.number(z, True))
        sides = (str(heads.beyond(1)), str(heads.beyond(-1)), str(len(heads.rows)))
        rows.append((f"{name}: {_dash(component)}", *cells, *sides))
    columns = ("measure", "mean", "random", "mean z", "above", "below", "heads")
    caption = "Means over heads; above and below count heads that differ from random matrices after Holm, two-sided."
    text = (
        f"Random matrices are Gaussian and of the same shape, at least {words.count(facts.draws)} draws for each shape, more where many "
        "heads need a smaller p. Holm's family is one measure over all heads, pairs and layers, and for effective ranks all heads "
        "of one component. 'With biases' compares the affine maps: each matrix with its bias as one more row."
    )
    return Section("Against random matrices", (text,), (), (Table(columns, tuple(sorted(rows)), caption),))


def _grids(
    numbers: Measures,
    measure: str,
    components: Sequence[str],
    unit: str,
    number: str,
    title: str,
    caption: str,
    group: str | None = None,
    diverging: bool = False,
) -> Iterable[Figure]:
    """Heat maps, a panel for each stack and component; empty if nothing was measured."""
    measures_by_component = {c: _HeadMeasure.of(numbers, measure, c, group) for c in components}
    rows = Measures(tuple(row for heads in measures_by_component.values() for row in heads.rows))
    if not rows:
        return
    sides = {(c, *head) for c, heads in measures_by_component.items() for head, side in heads.sides.items() if side}

    def is_clear(row: MeasuredValue) -> bool:
        return (row.component, row.stack, row.layer, row.head) in sides

    if any(map(is_clear, rows)):
        caption += " Dots: heads that differ from random matrices, p < 0.05 after Holm."
    count = words.quantity(max(map(len, rows.by("stack", "component").values())), "head")
    name = f"{measure.replace('_', '-')}{'-' + group.replace(' ', '-') if group else ''}"
    yield head_maps(
        (name, number, title),
        f"{caption} {count} a panel.",
        rows,
        unit,
        diverging,
        marked=is_clear,
        title=lambda row: _of(row.stack) + _dash(row.component or ""),
    )


def _of(stack: str) -> str:
    return f"{name}, " if (name := stack_words(stack)) else ""


def _dash(component: str) -> str:
    return component.replace("-", "–")
