"""Findings of an experiment, as data with words made from them, and the origin of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Generic, NamedTuple, TypeVar

from trisect.core.files import Json
from trisect.core.schema import read, record

F = TypeVar("F")
EQUIVALENCE_MARGIN = 0.02  # nats a token, or of the output's share: components that differ by less are alike
NOT_TESTED = "not tested"  # the verdict on a claim of which something was not measured
PASSED, FAILED = "passed", "failed"  # the verdict of a finding that is a check; a command exits with 1 where one failed
MOST_UNITS = 1000  # with more of them than that, no number is said that would tell


class Estimate(NamedTuple):
    """A number of a finding: its name, mean, 95 % interval (None without one), and the number of units."""

    name: str
    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


class PairedDifference(NamedTuple):
    """`first` less `second` over paired units: mean, 95 % interval, p after Holm over all pairs, and equivalence.

    `alike` is two one-sided tests against ±margin; `above` that the difference is larger than 0 after Holm and they are
    not alike, the mean being positive: `first` is always the one with the larger mean.
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

    `names` stand in the order of their means, largest first. `kind` is most (one is above all others), above (some are
    above some), alike (all pairs within the margin) or uncertain; `needed` is None where a thousand units would not tell.
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
                above: dict[tuple[str, ...], list[str]] = {}  # which components lie above the same ones
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

    `measure` says what was measured, in a word that programs may ask for, `words` is the sentence made from the rest, which
    stands after `title` where there is one.
    `values` are its numbers in `unit`; `comparison` is what they say of each other, as in 'v > k, q'. `source` is the key
    of the source that asks, empty where none does. Where it is a claim's verdict, `claim` is its id and `verdict` one of
    supported, refuted, inconclusive; `part` names the claim's part where it is about one.
    `what` names the number itself, for a table; `groups` are what it is about besides components: a label column, a control;
    `per` is what its n counts, such as seed. A `signed` number is a difference. `compared` is what the same units say of the
    numbers of q, k and v by paired differences, None where they are not to be ranked.
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

    `facts` is the experiment's own frozen dataclass: model, texts, settings, whatever its page says of them.
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

    `objective` is what the model predicts: causal, masked, seq2seq, or output for one without a loss, whose tokens are
    those read; else they are those predicted. `articles` is how many articles were resampled; None where texts were.
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
