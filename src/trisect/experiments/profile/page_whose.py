"""Whose words q, k and v are of, as a profile's page says it: of one text, or of the two sides of sentence pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.profile.numbers import LayerSpot, ProfileNumbers
from trisect.report import format as words

if TYPE_CHECKING:
    from trisect.experiments.profile.settings import ProfileFacts

CROSS = "cross"
DIFFERENCES = "Differences of q from k and v are of gains over random maps, since their words are not the same"
APART = "an accuracy follows from how many classes one side's words have, and how often each."
UNJUDGED = (
    "Both claims speak of the words of one text. In cross-attention queries are of words of the target, keys and values of words of the "
    "source, so that the claims are not judged here."
)
CROSS_SAID = "what each reads (cross-attention: q of words of the target, k and v of words of the source)"


def of_each(facts: ProfileFacts) -> str:
    """Of which words a profile is."""
    if facts.attention == CROSS:
        return (
            f"the words of sentence pairs of {facts.corpus}, in cross-attention (queries of each word of the target, as the decoder "
            "reads it, keys and values of each word of the source, at the encoder's output)"
        )
    return f"each word of {facts.corpus}"


def same(facts: ProfileFacts) -> str:
    """What random maps are of, in short."""
    return "what each reads" if facts.attention == CROSS else "the same input"


def same_input(apart: bool) -> str:
    """The same where a sentence stands alone, with whose words they are."""
    return CROSS_SAID if apart else "the same input"


def unit(facts: ProfileFacts) -> str:
    """What is counted: texts or pairs."""
    return "pair" if facts.attention == CROSS else "text"


def counted(facts: ProfileFacts) -> str:
    """How many words there are, of each side."""
    if facts.attention == CROSS:
        return f"{words.count(facts.words)} words of the target (q) and {words.count(facts.source_words)} of the source (k, v)"
    return f"{words.count(facts.words)} words"


def classes(facts: ProfileFacts) -> str:
    """Labels and how many classes they have, on each side."""
    if facts.attention != CROSS:
        return ", ".join(f"{n} ({c} classes)" for n, c in zip(facts.labels, facts.classes, strict=True))
    each = zip(facts.labels, facts.classes, facts.source_classes, strict=True)
    return ", ".join(f"{n} ({c} classes in the target, {d} in the source)" for n, c, d in each)


def titled(label: str, apart: bool) -> str:
    """A label as the title of a finding."""
    return f"{label} (q: target, k and v: source)" if apart else label


def random_maps(numbers: ProfileNumbers, spot: LayerSpot, label: str) -> str:
    """What random maps find, on each side."""
    q, v = (words.number(numbers.value(spot, label, "random", c)) for c in ("q", "v"))
    return f"{q} for q, {v} for k and v" if numbers.apart else q


def references(apart: bool) -> tuple[tuple[str, str, str], ...]:
    """Columns that accuracies are compared with: title, measure, and a component that has it."""
    named = (("most frequent class", "majority"), ("whole input", "input"), ("random maps", "random"))
    if not apart:
        return tuple((title, measure, "q") for title, measure in named)
    sides = (("q", "q"), ("k, v", "v"))
    return tuple((f"{title}, {side}", measure, c) for title, measure in named for side, c in sides)


def beyond(apart: bool) -> str:
    """What heads of one layer are compared by, where that is not their accuracy."""
    return " beyond random maps" if apart else ""


def how(facts: ProfileFacts) -> tuple[str, ...]:
    """How a profile is made, and what it cannot say."""
    cross = facts.attention == CROSS
    dealt = "runs of pairs that follow one another" if cross else "articles, or runs of texts where none is marked,"
    together = "q, k and v are three invertible maps of the same input almost surely"
    if cross:
        together = "q is an invertible map of what the decoder's layer reads almost surely, k and v are of the encoder's output"
    return (
        "The probe is linear discriminant analysis, in closed form from moments. Every word is predicted by a probe that was "
        f"fitted to other texts: {dealt} are dealt into {facts.folds} folds as a whole.",
        f"All heads together, {together}, and hold the same: nothing here says "
        "how much of a label is there. What differs is what one head's few numbers keep of it, so layers are means over heads.",
        *((f"{DIFFERENCES}: {APART}",) if cross else ()),
        "Intervals are 95 % of Student's t over heads; of one head alone, those of random maps.",
    )
