"""Findings of an experiment, as data with words made from them, and the origin of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Generic, NamedTuple, TypeVar

from trisect.core.files import Json
from trisect.core.schema import read, record

F = TypeVar("F")
EQUIVALENCE_MARGIN = 0.02  # nats per token, or share of the output
NOT_TESTED = "not tested"  # the verdict on a claim with a part that was not measured
PASSED, FAILED = "passed", "failed"  # the verdict of a check; a command with a failed check exits with 1
MOST_UNITS = 1000  # the largest sample size that is reported as needed


class Estimate(NamedTuple):
    """A number of a finding: its name, mean, 95 % interval (None without one), and the number of units."""

    name: str
    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


class PairedDifference(NamedTuple):
    """`first` less `second` over paired units: mean, 95 % interval, p after Holm over all pairs, and equivalence.

    `alike` is the result of two one-sided tests against ±margin; `above` is whether the difference is significantly above 0
    after Holm and they are not alike. `first` is the component with the larger mean.
    """

    first: str
    second: str
    effect: float
    low: float | None
    high: float | None
    p_holm: float
    alike: bool
    above: bool


class Comparison(NamedTuple):
    """Paired comparison of several components (definitions E) over `n` units; `needed` if they leave it undecided.

    `names` are sorted by their means, largest first. `kind` is most (one is above all others), above (some are above some),
    alike (all pairs within the margin) or uncertain; `needed` is None if more than MOST_UNITS units are needed.
    """

    kind: str
    names: tuple[str, ...]
    pairs: tuple[PairedDifference, ...]
    n: int
    margin: float
    needed: int | None = None

    @property
    def largest(self) -> str | None:
        """The component above all others, or None."""
        return self.names[0] if self.kind == "most" else None

    def words(self, unit: str = "seed") -> str:
        """`v largest`, `v and k above q`, `alike within 0.02`, or `too uncertain: about 12 seeds needed, 3 run`."""
        match self.kind:
            case "most":
                return f"{self.names[0]} largest"
            case "above":
                above: dict[tuple[str, ...], list[str]] = {}  # components by those that they are above
                for name in self.names:
                    if lower := tuple(p.second for p in self.pairs if p.first == name and p.above):
                        above.setdefault(lower, []).append(name)
                return "; ".join(f"{' and '.join(names)} above {' and '.join(low)}" for low, names in above.items())
            case "alike":
                return f"alike within {self.margin:g}"
            case _ if self.n < 2:
                return f"too uncertain: {self.n} {unit}{'s' * (self.n != 1)} run, too few for a test"
            case _ if any(pair.low is None for pair in self.pairs):
                return f"too uncertain: no spread over {self.n:,} {unit}s, so no t test"
            case _:
                needed = f"about {self.needed:,} {unit}s" if self.needed else f"more than {MOST_UNITS:,} {unit}s"
                return f"too uncertain: {needed} needed, {self.n:,} run"

    def data(self) -> dict[str, Json]:
        """The comparison as JSON-ready data."""
        pairs: list[Json] = [dict(pair._asdict()) for pair in self.pairs]
        return {**self._asdict(), "names": list(self.names), "pairs": pairs}

    @classmethod
    def from_data(cls, data: object) -> Comparison:
        """The comparison from its data, or from a record."""
        return read(cls, data, "a comparison")


@record
class Finding:
    """One finding of an experiment.

    `measure` is the name of the measure, `words` the sentence made of the other fields, which follows `title` if there is one.
    `values` are its numbers in `unit`; `comparison` is their order in words, such as 'v > k, q'. `source` is the key of the
    source whose question it answers, or empty. For a claim's verdict, `claim` is its id and `verdict` is supported, refuted
    or inconclusive; `part` is the name of the claim's part if it is about one.
    `what` is the label of the number in a table; `groups` are what it is about besides components: a label column, a control;
    `per` is the unit that n counts, such as seed. `signed` is whether the number is a difference. `compared` is the paired
    comparison of the numbers of q, k and v, None if they are not ranked.
    """

    measure: str
    words: str
    unit: str = ""
    values: tuple[Estimate, ...] = ()
    comparison: str = ""
    source: str = ""
    claim: str | None = None
    verdict: str | None = None
    part: str | None = None
    title: str = ""
    what: str = ""
    groups: tuple[str, ...] = ()
    per: str = ""
    signed: bool = True
    compared: Comparison | None = None

    def __str__(self) -> str:
        return f"{self.title}: {self.words}" if self.title else self.words

    def data(self) -> dict[str, Json]:
        """The finding as JSON-ready data."""
        fields: dict[str, Json] = asdict(self)
        fields["values"] = [dict(estimate._asdict()) for estimate in self.values]
        fields["compared"] = None if self.compared is None else self.compared.data()
        return fields


@dataclass(frozen=True)
class About(Generic[F]):
    """The origin of tables: the command that repeats them, seconds of work, software, notes, and the experiment's facts.

    `facts` is the experiment's own frozen dataclass: model, texts, settings, and whatever else its page states.
    """

    experiment: str
    command: str
    seconds: float
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    claims_hash: str | None
    facts: F


@record
class ReadFacts:
    """Facts of an experiment that reads one model over texts: the model, the texts, and numbers of texts and tokens.

    `objective` is what the model predicts: causal, masked, seq2seq, or output for a model without a loss. `tokens`
    counts predicted tokens, for output all that were read. `articles` is the number of resampled articles; None if texts were resampled.
    """

    subject: str
    fingerprint: str
    objective: str
    corpus: str
    corpus_fingerprint: str
    texts: int
    tokens: int
    articles: int | None = field(default=None, kw_only=True)

    @property
    def unit(self) -> str:
        """The resampled unit: article or text."""
        return "text" if self.articles is None else "article"

    @property
    def units(self) -> int:
        """The number of resampled units."""
        return self.texts if self.articles is None else self.articles
