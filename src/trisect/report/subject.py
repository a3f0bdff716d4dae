"""Words for the model and the texts that a page is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from trisect.core.finding import Comparison, Estimate, Finding, Json, ReadFacts
from trisect.report import format as words
from trisect.report.points import Interval

FEW_TEXTS = 30


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
    """A stack for people: empty for a model's only one, a tower by its name."""
    if stack in STACKS:
        return STACKS[stack]
    tower, _, role = stack.rpartition("_")
    return f"{tower}: {STACKS[role]}" if tower and role in STACKS else stack.replace("_", " ")


def stack_order(stack: str) -> tuple[int, str]:
    """What stacks are sorted by: a model's own first, then its towers."""
    names = list(STACKS)
    return (names.index(stack), "") if stack in names else (len(names), stack)


def spoken(one: Interval, signed: bool = True, text: Callable[[float], str] | None = None) -> str:
    """A number and its interval, as in `+0.120 (95 %: +0.0100 to +0.230)`; `text` spells a number that is no plain one."""
    said = words.number(one.mean, signed) if text is None or one.mean is None else text(one.mean)
    return said if one.low is None else f"{said} (95\u00a0%: {words.ends(one, signed, text=text)})"


def unit(facts: ReadFacts) -> str:
    """The unit of a change: nats of a loss, or a share of the output."""
    return "share" if facts.objective == "output" else "nats"


def axis_unit(facts: ReadFacts) -> str:
    """The unit of a change as an axis or a column has it, where nothing else says what the share is of."""
    return "share of the output" if facts.objective == "output" else "nats"


def corpus(facts: ReadFacts) -> str:
    """The texts by name, number and fingerprint."""
    mark = f", fingerprint {facts.corpus_fingerprint}" if facts.corpus_fingerprint else ""
    return f"{facts.corpus}: {words.several(facts.texts, 'text')}{mark}"


def resampled_words(facts: ReadFacts) -> str:
    """What a bootstrap drew: texts, or the articles that they are of."""
    texts = words.several(facts.texts, "text")
    return texts if facts.articles is None else f"{words.several(facts.articles, 'article')} ({texts})"


def too_few(facts: ReadFacts) -> tuple[str, ...]:
    """A warning where fewer units were drawn than a bootstrap needs."""
    few = facts.units < FEW_TEXTS
    return (f"With fewer than {FEW_TEXTS} {facts.unit}s such intervals are too narrow to lean on.",) if few else ()


def paired_words(compared: Mapping[str, Json] | None, unit: str) -> str:
    """What paired differences over texts or articles say of q, k and v, a sentence with a space before it; empty where none were made."""
    if compared is None:
        return ""
    one = Comparison.of(compared)
    return f" Paired by {unit} (n = {one.n:,}; t tests, Holm over the pairs, margin {one.margin:g}): {one.words(unit)}."


def read_facts(facts: ReadFacts, weights: str = "weights") -> tuple[tuple[str, str], ...]:
    """The model, the texts and how many tokens were read, for a page's end."""
    return (
        ("Model", f"{facts.subject}, {weights} {facts.fingerprint}"),
        ("Texts", corpus(facts)),
        ("Tokens" if facts.objective == "output" else "Predicted tokens", words.count(facts.tokens)),
    )


def unedited(what: str, measures: pl.DataFrame, facts: ReadFacts, more: str = "") -> Finding:
    """What changes are of, and the loss of the model as it is; `what` begins the sentence, as in 'Changes'."""
    said = f"{what} are of {LOSSES[facts.objective]}"
    if facts.objective == "output":
        said += f": the squared length of the change over that of the output, averaged over tokens.{more}"
        return Finding("unedited", said, "share")
    row = measures.filter(pl.col("measure") == "loss_nats").row(0, named=True)
    loss = Estimate("unedited", row["value"], row["low"], row["high"], row["n"])
    said += f", in nats per token. Unedited it is {spoken(loss, False)}."
    return Finding("unedited", said, "nats", (loss,), signed=False)
