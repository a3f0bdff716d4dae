"""Text pairs for interchange interventions: base, donor and the answers that q, k and v predict, from a file or from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trisect.core import json_text
from trisect.core.bounds import LINE_BYTES
from trisect.core.errors import CorpusError
from trisect.core.subject import TextOrPair
from trisect.text.long_lines import check_lines

# what is from the donor -> the name of the answer; 'base' where nothing is, 'donor' where all is
ANSWERS = ("base", "q", "k", "v", "q+k", "q+v", "k+v", "donor")
FORM = (
    'A line is a JSON object: {"base": TEXT, "donor": TEXT, "answers": {"base": …, "q": …, "k": …, "v": …, "donor": …}}, '
    "answers as far as they are known; for encoder-decoders a text is [SOURCE, TARGET]"
)


@dataclass(frozen=True)
class TextPair:
    """A base and a donor text, and the answers that are predicted, by what is from the donor (ANSWERS).

    `place` says where it is from, for errors, `kind` of what kind it is, such as a template's name.
    """

    base: TextOrPair
    donor: TextOrPair
    answers: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    kind: str = ""


def read_pairs(path: Path) -> tuple[TextPair, ...]:
    """The pairs of a file of JSON lines; empty lines are skipped. Raises CorpusError naming file and line."""
    try:
        check_lines(path, LINE_BYTES)
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # others (U+2028, ...) stand inside texts
    except (OSError, UnicodeDecodeError) as error:
        known = f"{type(error).__name__}: {error}."
        raise CorpusError(f"{path} cannot be read.", known, "Give a file of pairs, one a line.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                body = json_text.parse(line)
            except ValueError as error:
                raise bad_pair(place, f"it is no JSON ({error})") from None
            found.append(_pair(body, place))
    if not found:
        raise CorpusError(f"{path} holds no pair.", f"{FORM}.", "Give at least one.")
    return tuple(found)


def given_pairs(given: object) -> tuple[TextPair, ...]:
    """Pairs in memory: of TextPair, of mappings as in a file, or of (base, donor). Raises CorpusError by number."""
    if isinstance(given, str | Mapping | TextPair) or not isinstance(given, Iterable):
        raise CorpusError(f"{given!r} are no pairs.", f"{FORM}.", "Give a list of such pairs.")
    found = tuple(_given(one, f"pair {number}") for number, one in enumerate(given, start=1))
    if not found:
        raise CorpusError("No pair was given.", f"{FORM}.", "Give at least one.")
    return found


def bad_pair(place: str, what: str) -> CorpusError:
    """The error of one pair: where it stands and what differs from what it has to be."""
    said = f"P{place[1:]}" if place.startswith("pair ") else place  # a file's name stays as it is
    return CorpusError(f"{said}: {what}.", f"{FORM}.", "Correct the pair, or leave it out.")


def _given(one: object, place: str) -> TextPair:
    if isinstance(one, TextPair):
        return one if one.place else TextPair(one.base, one.donor, one.answers, place, one.kind)
    if isinstance(one, Sequence) and not isinstance(one, str) and len(one) == 2:
        one = {"base": one[0], "donor": one[1]}
    return _pair(one, place)


def _pair(body: object, place: str) -> TextPair:
    if not isinstance(body, Mapping):
        raise bad_pair(place, f"it is {type(body).__name__}, no object")
    if unknown := set(body) - {"base", "donor", "answers", "kind"}:
        raise bad_pair(place, f"it has {sorted(map(str, unknown))[0]!r}, which is no field")
    texts = [_text(body.get(name), name, place) for name in ("base", "donor")]
    if isinstance(texts[0], tuple) != isinstance(texts[1], tuple):
        raise bad_pair(place, "one of its texts has a source and a target, the other has not")
    answers = body.get("answers") or {}
    if not isinstance(answers, Mapping):
        raise bad_pair(place, "its answers are no object")
    if unknown := [name for name in answers if name not in ANSWERS]:
        raise bad_pair(place, f"it has an answer for {unknown[0]!r}, where there are {', '.join(ANSWERS)}")
    if wrong := [name for name, answer in answers.items() if not isinstance(answer, str) or not answer.strip()]:
        raise bad_pair(place, f"its answer for {wrong[0]!r} is {answers[wrong[0]]!r}, no text")
    return TextPair(texts[0], texts[1], dict(answers), place, str(body.get("kind") or ""))


def _text(given: object, name: str, place: str) -> TextOrPair:
    if isinstance(given, str) and given.strip():
        return given
    if isinstance(given, list | tuple) and len(given) == 2 and all(isinstance(t, str) and t.strip() for t in given):
        return given[0], given[1]
    said = f"it has no {name}" if given is None else f"its {name} is {given!r}, no text"
    raise bad_pair(place, said)
