"""Reasons why a claim or a part has no verdict, as data, and the sentences made of them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

# a sentence for each kind; {have} is also spelt with its unit, {units} is that unit in the plural
SENTENCES = {
    "undecided": "not decided at the measured spread",
    "undecided over": "not decided by a test over {have} {units}",
    "few resampled": "{have units}; below {need}, resampling decides nothing",
    "few trained": "{need} {units} are asked for, {have} given",
    "out of reach": "cannot be decided with {have units}: no outcome reaches the p that is asked for",
    "single": "one {unit} gives numbers and no verdict",
    "single seed": "one seed decides nothing",
    "no spread": "no spread between the {units}, so no t test can be made",
    "not measured": "not measured {detail}",
    "head by head": (
        "tested head by head: the mean over models is of the heads that speak least for it, which noise alone can put "
        "beyond the bound, so that it may support and not refute"
    ),
    "no null": "heads are as wide as the model, so that random ones overlap as much",
    "after Holm": "p is {detail} after Holm's correction over its source's claims",
    "some parts": "{have} of {need} parts, {detail}",
    "some models": "in {have} of {need} models: {detail}",
    "attention not in use": "attention is not in use here",
    "attention not checked": "whether attention is in use was not measured in this study",
    "baseline diverged": "a baseline diverged",
    "other epsilon": "criticality was measured with another ε than 1 % of the final loss",
    "collapsed": "the attack stopped all learning",
    "at floor": "measure at its floor",
    "floor unknown": "whether the measure is off its floor was not measured in this study",
    "other": "{detail}",
}
PLURAL = {"model trained alike": "models trained alike"}
PATTERNS = {
    "{have units}": r"(?P<have>\d+) (?P<unit>[a-z ]+)",
    "{have}": r"(?P<have>\d+)",
    "{need}": r"(?P<need>\d+)",
    "{units}": r"(?P<unit>[a-z ]+)",
    "{unit}": r"(?P<unit>[a-z ]+)",
    "{detail}": r"(?P<detail>.+)",
}


class Reason(NamedTuple):
    """Why there is no verdict: a kind, the number of units, and the number needed.

    `detail` are words that a kind leaves open, and all words of an 'other' one.
    """

    kind: str
    have: int = 0
    unit: str = ""
    need: int = 0
    detail: str = ""

    def __str__(self) -> str:
        plural = PLURAL.get(self.unit, f"{self.unit}s")
        words = {**self._asdict(), "units": plural}
        words["have units"] = f"{self.have} {self.unit if self.have == 1 else plural}"
        return SENTENCES[self.kind].format_map(words)


UNDECIDED = Reason("undecided")
NOT_MEASURED = Reason("not measured", detail="on this model")


@cache
def read_reason(sentence: str | None) -> Reason:
    """The reason from a table's sentence; if there is none, the spread leaves the claim open."""
    if sentence is None:
        return UNDECIDED
    singular = {many: unit for unit, many in PLURAL.items()}
    for kind, template in SENTENCES.items():
        pattern = re.escape(template)
        for name, group in PATTERNS.items():
            pattern = pattern.replace(re.escape(name), group)
        if match := re.fullmatch(pattern, sentence, re.DOTALL):
            words: dict[str, Any] = match.groupdict()
            if "unit" in words:
                words["unit"] = singular.get(words["unit"], words["unit"].removesuffix("s"))
            words |= {name: int(words[name]) for name in ("have", "need") if name in words}
            return Reason(kind, **words)
    raise AssertionError("the last kind has any words")
