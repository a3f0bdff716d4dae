"""Format numbers, counts, names and inputs as words; data points of figures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import polars as pl

from trisect.claims.reasons import UNDECIDED, read_reason
from trisect.core.errors import SiteError, join_words
from trisect.core.files import digest
from trisect.core.finding import Comparison, Estimate, Finding, Json, ReadFacts
from trisect.core.printable import percent
from trisect.core.site import Site, format_spans
from trisect.papers import source_of
from trisect.stats.paired import compare, summary, t_interval
from trisect.stats.significance import ROUNDING, nan_to_none


class HasInterval(Protocol):
    """An object with a 95 % interval (ends None without one): a Mean, an Estimate, a row of a table."""

    @property
    def mean(self) -> float | None: ...  # noqa: D102

    @property
    def low(self) -> float | None: ...  # noqa: D102

    @property
    def high(self) -> float | None: ...  # noqa: D102


def side(estimate: HasInterval) -> int:
    """1 or −1 for an interval above or below 0, else 0."""
    return 0 if estimate.low is None or estimate.high is None else (estimate.low > 0) - (estimate.high < 0)


class _SitePosition(NamedTuple):
    """The position of a site in a figure: its group (`q`, `q+k`), its layers as spelled, and their mean as depth.

    `single` is one layer, all of its heads together.
    """

    group: str
    layers: str
    depth: float
    single: bool


class Point(NamedTuple):
    """A number of one seed at one site; `at` is an epoch, an alpha, or None; `run` is its run.

    `diverged`: a run behind it diverged.
    """

    site: str
    seed: int
    value: float
    at: float | None = None
    diverged: bool = False
    run: str = ""


class Mean(NamedTuple):
    """A mean over seeds with its 95 % Student interval; None with one seed, or equal values."""

    mean: float
    low: float | None
    high: float | None
    n: int


@cache
def site_position(site: str) -> _SitePosition:
    """Parse a site of the rows; combined components and several layers have positions of their own."""
    parsed = Site.parse(site)
    group = "+".join(parsed.components)
    if parsed.layers is None:
        return _SitePosition(group, "all", math.inf, False)
    depth = sum(parsed.layers) / len(parsed.layers)
    return _SitePosition(group, str(parsed).rpartition("@")[2], depth, len(parsed.layers) == 1 and parsed.heads is None)


def order(site: str) -> tuple[bool, float, str, bool, int, str]:
    """Sort key of sites: single layers first, upwards; then q, k, v, then combinations."""
    position = site_position(site)
    rank = "qkv".find(position.group) if len(position.group) == 1 else 3
    return (not position.single, position.depth, position.layers, rank < 0, rank, position.group)


def interval(values: Sequence[float]) -> Mean:
    """Mean and 95 % Student t interval of one number per seed."""
    sample = summary(values)
    low, high = t_interval(sample)
    return Mean(float(sample.mean), nan_to_none(low), nan_to_none(high), len(values))


def alike(a: float, b: float) -> bool:
    """Whether two means are equal but for rounding."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=ROUNDING)


def extreme(means: Mapping[str, Mean], way: int) -> list[str]:
    """The sites with the highest (`way` 1) or lowest (−1) mean: several if equal."""
    best = max(means.values(), key=lambda m: way * m.mean)
    return [name for name, m in means.items() if alike(m.mean, best.mean)]


def by_site(points: Iterable[Point]) -> dict[str, Mean]:
    """Mean over seeds of each site, in the order of `order`."""
    groups: dict[str, list[float]] = {}
    for point in points:
        groups.setdefault(point.site, []).append(point.value)
    return {site: interval(groups[site]) for site in sorted(groups, key=order)}


def of_seeds(points: Iterable[Point]) -> dict[str, dict[int, float]]:
    """Mean over layers of every component's single-layer sites, by component and seed, in the order of q, k and v."""
    groups: dict[str, dict[int, list[float]]] = {}
    for point in points:
        position = site_position(point.site)
        if position.single:
            groups.setdefault(position.group, {}).setdefault(point.seed, []).append(point.value)
    names = sorted(groups, key=lambda g: order(f"{g}@1"))
    return {name: {seed: math.fsum(v) / len(v) for seed, v in groups[name].items()} for name in names}


def compare_by_seed(by_seed: Mapping[str, Mapping[int, float]], margin: float) -> Comparison | None:
    """Components compared over the seeds that have all of them; None with fewer than two components."""
    if len(by_seed) < 2:
        return None
    seeds = sorted(set.intersection(*(set(values) for values in by_seed.values())))
    return compare({name: [values[seed] for seed in seeds] for name, values in by_seed.items()}, margin)


def by_component(points: Iterable[Point]) -> dict[str, Mean]:
    """Mean over layers within each seed, then over seeds, of every component's single-layer sites."""
    return {name: interval(list(values.values())) for name, values in of_seeds(points).items()}


COMPONENT_NAMES = {
    "q": "queries",
    "k": "keys",
    "v": "values",
    "o": "output",
    "attn": "attention",
    "ffn": "feed-forward network",
}
GROUP = {"q": "q: queries", "k": "k: keys", "v": "v: values"}
FEW_UNITS, ZERO_TOLERANCE = 3, 1e-12
_RUN = re.compile(r"(.+)-s([0-9]+)-[0-9a-f]{8}")  # the id of a study's run
MODEL_WORDS = {
    "plain": " without pretraining",
    "pretrained": " with pretraining",
    "left-out": " pretrained with names left out",
    "seed": "",
}
# A folder whose name says nothing, below one whose name does.
_FOLDER = re.compile(r"(.+)/(?:model|checkpoint|final|best|latest|weights)")
_MODEL_FOLDER = re.compile(
    rf"({'|'.join(MODEL_WORDS)})-([0-9]+)"
)  # the folder of a model that recall or translate trained


def number(value: float | None, signed: bool = False, places: int | None = None) -> str:
    """A number with a true minus sign, three decimals, and below 0.1 three significant digits; a dash for None.

    `places` fixes the decimals, for a column of a table.
    """
    if value is None:
        return "–"
    size, sign = abs(value), "+" if signed else ""
    if places is None and ZERO_TOLERANCE < size < 0.1:
        form = f".{2 - math.floor(math.log10(size))}f" if size >= 1e-6 else ".2e"
    else:
        form = f".{3 if places is None else places}f" if size < 1000 else ".3g"
    text = f"{value:{sign}{form}}"
    if not float(text):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def ends(
    estimate: HasInterval, signed: bool = False, places: int | None = None, text: Callable[[float], str] | None = None
) -> str:
    """The ends of an interval, as in `0.191 to 0.270`, or a dash; `text` formats an end.

    Those of a share are no further apart than a share can be.
    """
    if estimate.low is None or estimate.high is None:
        return "–"
    if text is share:
        return " to ".join(share(min(max(end, 0.0), 1.0)) for end in (estimate.low, estimate.high))
    return " to ".join(text(end) if text else number(end, signed, places) for end in (estimate.low, estimate.high))


def cells(
    estimate: HasInterval | None,
    signed: bool = False,
    places: int | None = None,
    text: Callable[[float], str] | None = None,
) -> tuple[str, str]:
    """A number and its interval as two cells of a table; dashes for None."""
    if estimate is None or estimate.mean is None:
        return "–", "–"
    return text(estimate.mean) if text else number(estimate.mean, signed, places), ends(estimate, signed, places, text)


def p_value(value: float | None) -> str:
    """A p-value; small ones as `< 0.001`."""
    return "< 0.001" if value is not None and value < 0.001 else number(value)


def share(value: float) -> str:
    """A share in per cent with one decimal and a true minus sign."""
    return percent(value, 1)


def decimals(values: Sequence[float]) -> int:
    """The number of decimals for a column of a table: three, and up to five for small numbers."""
    sizes = [abs(v) for v in values if abs(v) > ZERO_TOLERANCE]
    return min(5, max(3, 1 - math.floor(math.log10(min(sizes))))) if sizes else 3


def count(value: int | None) -> str:
    """A whole number with thin spaces between thousands."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def quantity(n: int, noun: str, plural: str | None = None) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count(n)} {noun if n == 1 else plural or noun + 's'}"


def sample(n: int, noun: str) -> str:
    """`n = 30 texts`, for a caption."""
    return f"n\u00a0=\u00a0{quantity(n, noun)}"


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def display_name(name: str, command: str = "") -> str:
    """A model's name for readers: for models that trisect trained, the kind and seed, as in `baseline, seed 1`.

    Several of one kind, as in `seed-1, seed-2`, are one name: `models of seeds 1 and 2`. A folder such as
    `model` below one with a name is left out where the `command` of a record says MODEL, as it does of folders: a hub's
    OWNER/model stands there as it is. Any other name stays.
    """
    if run := _RUN.fullmatch(name):
        return f"{run[1].replace('-', ' ')}, seed {run[2]}"
    if "MODEL" in command.split() and (plain := _FOLDER.fullmatch(name)):
        return plain[1]
    names = name.split(", ")
    parsed = [match for part in names if (match := _MODEL_FOLDER.fullmatch(part))]
    if len(parsed) < len(names) or len({match[1] for match in parsed}) > 1:
        return name
    kind, seeds = MODEL_WORDS[parsed[0][1]], join_words([match[2] for match in parsed])
    return f"model{kind}, seed {seeds}" if len(parsed) == 1 else f"models{kind}, seeds {seeds}"


def display_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of several models for readers; their own names if two would be equal."""
    shown = tuple(map(display_name, names))
    return shown if len(set(shown)) == len(shown) else tuple(names)


def slug(text: str) -> str:
    """A text as part of a file's name, with a hash if characters are replaced."""
    plain = re.sub(r"[^\w-]+", "-", text, flags=re.ASCII).strip("-")
    return plain if plain == text and len(text) <= 80 else f"{plain[:24] or 'label'}-{digest(text, 3)}"


def mean_words(mean: Mean, unit: str = "", signed: bool = True) -> str:
    """A mean with its interval, as in `+0.120 nats (95 %: +0.0100 to +0.230)`."""
    unit = f"\u00a0{unit}" if unit else ""
    spread = "one seed" if mean.n < 2 else f"the same in all {mean.n} seeds"
    spread = spread if mean.low is None else f"95\u00a0%: {ends(mean, signed)}"
    return f"{number(mean.mean, signed)}{unit} ({spread})"


def tally(verdicts: Mapping[str, int]) -> str:
    """The number of claims by verdict."""
    supported = verdicts.get("supported", 0)
    parts = [f"{supported} {'is' if supported == 1 else 'are'} supported"]
    parts += [f"{verdicts.get(v, 0)} {v}" for v in ("refuted", "inconclusive")]
    parts += [f"{verdicts['not tested']} not tested"] if verdicts.get("not tested") else []
    return f"Of {quantity(sum(verdicts.values()), 'claim')}, {join_words(parts)}."


ClaimRow = dict[str, Any]  # a row of the table claims


def verdict_lines(claims: pl.DataFrame) -> list[tuple[ClaimRow, str]]:
    """Each claim's row with a line: verdict, weakest part with its bound, and the reason if it is inconclusive."""
    lines = []
    for row, weakest in weakest_parts(claims):
        line = f"{row['claim']}  {row['verdict']}: {row['sentence']}" + f" {weakest}" * bool(weakest)
        lines.append((row, line + (f" ({remark})" if (remark := why_open(row)) else "")))
    return lines


# units that are shares of what can be counted
COUNT_UNITS = ("of pairs", "of the questions", "of the queries", "of the names")


def weakest_parts(claims: pl.DataFrame) -> Iterator[tuple[ClaimRow, str]]:
    """Each claim's row with its weakest part: effect, interval and bound; empty if it has none.

    As in `Its own answer 0.1 % of pairs (95 %: 0.0 % to 0.3 %; bound: below 5 %)`.
    """
    parts = claims.filter(pl.col("part").is_not_null(), pl.col("decides")).to_dicts()
    same = ("source", "claim", "effect", "bound", "direction", "margin_reason")
    for row in claims.filter(pl.col("part").is_null()).iter_rows(named=True):
        weakest = next((part for part in parts if all(part[name] == row[name] for name in same)), None)
        if weakest is None or row["effect"] is None or row["low"] is None:
            yield row, ""
            continue
        numbers, bound = [row["effect"], row["low"], row["high"]], f"{row['bound']:g}".replace("-", "−")
        if row["unit"] == "of pairs":  # no difference, so that neither end is beyond what a share can be
            numbers = [min(max(value, 0.0), 1.0) for value in numbers]
        if row["unit"] in COUNT_UNITS:
            (effect, low, high), bound = map(share, numbers), percent(row["bound"])
        else:
            effect, low, high = (number(value, True) for value in numbers)
        sign = {"above": "above ", "below": "below ", "within": "within ±"}[row["direction"]]
        span = f"(95\u00a0%: {low} to {high}; bound: {sign}{bound})"
        yield row, f"{capital(weakest['part'])} {effect} {row['unit']} {span}"


def why_open(row: ClaimRow) -> str:
    """Why a claim is undecided, in words; empty if it is decided."""
    if row["reason"] is None or read_reason(row["reason"]) != UNDECIDED:
        return row["reason"] or ""
    if not row.get("seeds_needed"):
        return "too uncertain at the measured spread"
    source = source_of(row["source"])
    varies, needs = row.get("over") or source.unit, row.get("over") or source.needs or source.unit
    run = f", {count(row['n'])} run" if varies == needs else ""
    return f"too uncertain: about {quantity(row['seeds_needed'], needs)} needed{run}"


FEW_TEXTS = 30
ABLATION_AND_PATCHING = (
    "Ablation may rank q first, and patching v, in one model, and both be true: without its queries a head reads other tokens, whose "
    "values are not those that are needed; another text's values bring what that text has at the tokens that are read."
)
LOSSES = {
    "causal": "the model's own loss, of each next token",
    "masked": "the model's own loss, of tokens hidden from it",
    "seq2seq": "the model's own loss, of each token of the target",
    "output": "the model's output, since it has no loss",
}
STACKS = {
    "plain": "",
    "enc": "encoder",
    "dec": "decoder",
    "cross": "cross-attention",
    "merged": "self- and cross-attention",
}


def stack_words(stack: str) -> str:
    """A stack for readers: empty for a model's only one, a tower by its name."""
    if stack in STACKS:
        return STACKS[stack]
    tower, _, role = stack.rpartition("_")
    return f"{tower}: {STACKS[role]}" if tower and role in STACKS else stack.replace("_", " ")


def site_words(site: str) -> str:
    """A site for readers, as in "the values of layer 6, head 2"; other names are returned unchanged."""
    try:
        spec = Site.parse(site)
    except SiteError:
        return site
    where = (
        "all layers"
        if spec.layers is None
        else f"layer{'s' * (len(spec.layers) > 1)} {format_spans(spec.layers).replace(',', ', ')}"
    )
    where += (
        ""
        if spec.heads is None
        else f", head{'s' * (len(spec.heads) > 1)} {format_spans(spec.heads).replace(',', ', ')}"
    )
    stack = f" in {'the ' * (spec.stack in ('enc', 'dec'))}{stack_words(spec.stack)}" if spec.stack else ""
    before = ", before rotary positions" * spec.pre
    return f"the {join_words([COMPONENT_NAMES.get(c, c) for c in spec.components])} of {where}{stack}{before}"


def stack_order(stack: str) -> tuple[int, str]:
    """Sort key of stacks: a model's own first, then its towers."""
    names = list(STACKS)
    return (names.index(stack), "") if stack in names else (len(names), stack)


def number_words(estimate: HasInterval, signed: bool = True, text: Callable[[float], str] | None = None) -> str:
    """A number and its interval, as in `+0.120 (95 %: +0.0100 to +0.230)`; `text` formats the number."""
    value = number(estimate.mean, signed) if text is None or estimate.mean is None else text(estimate.mean)
    return value if estimate.low is None else f"{value} (95\u00a0%: {ends(estimate, signed, text=text)})"


def unit(facts: ReadFacts) -> str:
    """The unit of a change: nats of a loss, or a share of the output."""
    return "share" if facts.objective == "output" else "nats"


def axis_unit(facts: ReadFacts) -> str:
    """The unit of a change for axes and columns."""
    return "share of the output" if facts.objective == "output" else "nats"


def corpus(facts: ReadFacts) -> str:
    """The texts by name, number and fingerprint."""
    mark = f", fingerprint {facts.corpus_fingerprint}" if facts.corpus_fingerprint else ""
    return f"{facts.corpus}: {quantity(facts.texts, 'text')}{mark}"


def sample_words(facts: ReadFacts) -> str:
    """The bootstrap's units: texts, or their articles."""
    texts = quantity(facts.texts, "text")
    return texts if facts.articles is None else f"{quantity(facts.articles, 'article')} ({texts})"


def too_few(facts: ReadFacts) -> tuple[str, ...]:
    """A warning for fewer units than a bootstrap needs."""
    is_few = facts.units < FEW_TEXTS
    return (f"With fewer than {FEW_TEXTS} {facts.unit}s such intervals are too narrow to lean on.",) if is_few else ()


def comparison_words(compared: Mapping[str, Json] | None, unit: str) -> str:
    """Paired differences of q, k and v over texts or articles, a sentence after a space; empty without them."""
    if compared is None:
        return ""
    comparison = Comparison.from_data(compared)
    tests = f"n = {comparison.n:,}; t tests, Holm over the pairs, margin {comparison.margin:g}"
    return f" Paired by {unit} ({tests}): {comparison.words(unit)}."


def read_facts(facts: ReadFacts, weights: str = "weights") -> tuple[tuple[str, str], ...]:
    """The model, the texts and the number of tokens, for the end of a page."""
    return (
        ("Model", f"{facts.subject}, {weights} {facts.fingerprint}"),
        ("Texts", corpus(facts)),
        ("Tokens" if facts.objective == "output" else "Predicted tokens", count(facts.tokens)),
    )


def baseline_finding(changes: str, measures: pl.DataFrame, facts: ReadFacts, more: str = "") -> Finding:
    """The reference of changes: the unedited model's loss; `changes` begins the sentence, as in 'Changes'."""
    sentence = f"{changes} are of {LOSSES[facts.objective]}"
    if facts.objective == "output":
        sentence += f": the squared length of the change over that of the output, averaged over tokens.{more}"
        return Finding("unedited", sentence, "share")
    row = measures.filter(pl.col("measure") == "loss_nats").row(0, named=True)
    loss = Estimate("unedited", row["value"], row["low"], row["high"], row["n"])
    sentence += f", in nats per token. Unedited it is {number_words(loss, False)}."
    return Finding("unedited", sentence, "nats", (loss,), signed=False)
