"""Findings: what an experiment found, as data with the words made from it, and where its tables are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

F = TypeVar("F")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Estimate(NamedTuple):
    """One number of a finding: of what, its mean, its 95 % interval (null where there is none), and over how many units."""

    name: str
    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    `measure` says what was measured, in a word that programs may ask for, `words` is the sentence made from the rest, which
    stands after `title` where there is one.
    `values` are its numbers in `unit`; `comparison` is what they say of each other, as in 'v > k, q'. `source` is the key
    of the source that asks, empty where none does. Where it is a claim's verdict, `claim` is its id and `verdict` one of
    supported, refuted, inconclusive; `part` names the claim's part where it is about one.
    `what` names the number itself, for a table; `groups` are what it is about besides components: a label column, a control;
    `per` is what its n counts, such as seed. A `signed` number is a difference, and ranks by its size.
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

    def __str__(self) -> str:
        return f"{self.title}: {self.words}" if self.title else self.words

    def data(self) -> dict[str, Json]:
        """The finding as JSON-ready data."""
        own: dict[str, Json] = asdict(self)
        own["values"] = [dict(estimate._asdict()) for estimate in self.values]
        return own

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Finding:
        """The finding that such data, or a record that is read back, is of."""
        values = tuple(Estimate(**one) if isinstance(one, Mapping) else Estimate(*one) for one in given["values"])
        return cls(**{**given, "values": values, "groups": tuple(given["groups"])})


@dataclass(frozen=True)
class About(Generic[F]):
    """Where tables are from: the command that repeats them, seconds of work, software, notes, and the experiment's facts.

    `facts` is the experiment's own frozen dataclass: model, texts, settings, whatever its page says of them.
    """

    experiment: str
    command: str
    seconds: float
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    claims_hash: str | None
    facts: F


@dataclass(frozen=True)
class ReadFacts:
    """What an experiment notes that reads one model over texts: the model, the texts, how many and how many tokens.

    `objective` is what the model predicts: causal, masked, seq2seq, or output for one without a loss, whose tokens are
    those read; else they are those predicted.
    """

    subject: str
    fingerprint: str
    objective: str
    corpus: str
    corpus_fingerprint: str
    texts: int
    tokens: int
