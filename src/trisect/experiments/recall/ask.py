"""Ask a trained recall model one question: its answer, its confidence, and what it can have read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path
from typing import NamedTuple

from trisect.core.errors import DamagedFileError, ModelError, SpecError, check_accessible
from trisect.core.files import Json, as_record, read_json
from trisect.core.printable import percent
from trisect.core.schema import Many, record
from trisect.experiments.recall.rows import CATEGORIES
from trisect.measure.recall import character_similarity, nearest_names
from trisect.text.birth_places import QUESTION, name_in

CARD = "recall.json"
NEAREST_NAMES = 3
FULL_RISK = 1.0  # the risk at which nothing is held back
MODEL_ADVICE = "Give the folder of a model that 'trisect recall' trained."
MADE_AGAIN = "Call 'trisect recall' again for the folder of the experiment: it writes every card again."


class _NearName(NamedTuple):
    """A name, its similarity and its place."""

    name: str
    similarity: float
    place: str | None


@record
class Threshold:
    """The probability from which the model answers so that at most a share `risk` of answers is wrong; None: it never answers.

    Set on `n` held-out questions, of which it answers the share `coverage`.
    """

    risk: float
    threshold: float | None
    coverage: float
    n: int


@record
class ModelCard:
    """What is known of a model: for each name, whether it was in pretraining and in fine-tuning, and its place; thresholds."""

    names: dict[str, tuple[bool, bool, str | None]]
    thresholds: Many[Threshold]
    question: str = ""


@dataclass(frozen=True)
class RecallReply:
    """A model's reply to one question; `answer` is None if it abstains, and `guess` is the answer that it withholds.

    `probability` is that of the whole guess. `threshold` is None where nothing is held back. `seen` says in which text the
    name was when the model was trained. `nearest` are names that the model met, how alike each is (cosine of weighted character
    n-grams, 0 to 1), and its place where a question says it.
    """

    question: str
    name: str
    answer: str | None
    guess: str
    probability: float
    threshold: Threshold | None
    seen: str
    nearest: tuple[_NearName, ...]
    notes: tuple[str, ...]

    def words(self) -> tuple[str, ...]:
        """The reply as lines for a terminal."""
        answer = "Not confident enough to answer."
        if self.answer is not None:
            answer = self.answer if self.answer.strip() else repr(self.answer)
        lines = [f"{answer}  (probability {self.probability:.3f})"]
        if (rule := self.threshold) is not None:
            wrong, sample = f"at most {100 * rule.risk:g}\u00a0% of its answers wrong", f"{rule.n} held-out questions"
            line = f"It abstains always: on {sample} no threshold kept to {wrong}."
            if rule.threshold is not None:
                answered = f"{percent(rule.coverage)} of them answered"
                line = f"It abstains below {rule.threshold:.3f}, for {wrong}: set on {sample}, {answered}."
            lines.append(line)
        where = "in no text that the model read" if self.seen == "neither" else f"read in {self.seen}"
        lines.append(f"The name {self.name!r} was {where}.")
        near = (f"{n.name} ({n.similarity:.2f}{f', {n.place}' if n.place else ''})" for n in self.nearest)
        nearest = f"Nearest known names: {'; '.join(near)}."
        lines.append(nearest if self.nearest else "No other known name shares a piece with it.")
        return (*lines, *self.notes)

    def data(self) -> dict[str, Json]:
        """The reply as JSON-ready data."""
        return asdict(self)


def ask(model: str | Path, question: str, risk: float | None = None) -> RecallReply:
    """Ask the model in a folder of `trisect recall` a question such as 'Where was NAME born?'.

    It abstains where the probability of its answer is below the threshold that was set on held-out questions for `risk`, a
    share of wrong answers among those given (None: the largest that was set and can be kept; 1: it always answers). Raises
    CorpusError for a question about no name, or one that the model cannot read at once, SpecError for a risk without a
    threshold, ModelError for a folder without recall.json or a model that can be read, DamagedFileError for a recall.json that
    is not what was written.
    """
    from trisect.hf.small.gpt import Answerer

    name, folder = name_in(question), Path(model)
    card = _card(folder)
    rule = _threshold(card.thresholds, risk)
    try:
        answerer = Answerer.open(folder)
    except ModelError as error:
        todo = f"Delete the folder {folder} and call 'trisect recall' again: this model is then made again."
        raise ModelError(error.problem, error.reason, todo) from error
    guess = answerer.answer([question.strip()])[0]
    probability = exp(guess.log_probability)
    seen = CATEGORIES[card.names.get(name, (False, False, None))[:2]]
    abstains = rule is not None and (rule.threshold is None or probability < rule.threshold)
    names = [other for other, row in card.names.items() if (row[0] or row[1]) and other != name]
    # the most similar names by character n-grams, of those that share one
    near = nearest_names(character_similarity([name], names), [name], names, NEAREST_NAMES)
    pairs = zip(near.nearest[0].tolist(), near.similarity[0].tolist(), strict=True)
    nearest = [
        _NearName(names[i], likeness, card.names[names[i]][2]) for i, likeness in pairs if i >= 0 and likeness > 0
    ]
    notes = []
    if guess.unknown:
        counts = Counter(guess.unknown).items()
        characters = ", ".join(f"{c!r}{f' ({n} times)' if n > 1 else ''}" for c, n in counts)
        total = f"{len(guess.unknown)} character{'s'[: len(guess.unknown) > 1]}"
        notes.append(f"{total} of the question not in the vocabulary, read as unknown: {characters}.")
    reads = any(row[0] for row in card.names.values())
    if seen == "neither" and reads and rule is not None and rule.threshold is not None:
        notes.append(
            "The threshold was set on names that the model has read; for this one the stated risk is not kept."
        )
    return RecallReply(
        question.strip(),
        name,
        None if abstains else guess.text,
        guess.text,
        probability,
        rule,
        seen,
        tuple(nearest),
        tuple(notes),
    )


def _card(folder: Path) -> ModelCard:
    """Read recall.json."""
    path = folder / CARD
    check_accessible(folder)
    if not path.is_file():
        what = "there is no such folder" if not folder.is_dir() else f"the folder has no {CARD}"
        reason = f"Questions like {QUESTION.format(name='NAME')!r} need to know which names the model has read: {what}."
        raise ModelError(f"{folder} cannot be asked.", reason, MODEL_ADVICE)
    try:
        card = read_json(path, MADE_AGAIN)
    except DamagedFileError as error:
        if not isinstance(error.__cause__, KeyError | TypeError):
            raise
        reason = "It has no checksum: 'trisect recall' did not write it as it is."
        raise DamagedFileError(f"{path} is no card of a model.", reason, MADE_AGAIN) from error
    if "recipe" in card and "names" not in card:
        reason = f"Its {CARD} holds no names: it is of a whole experiment, whose models lie in {folder / 'models'}."
        raise ModelError(f"{folder} cannot be asked.", reason, "Give the folder of one of these models.")
    try:
        return as_record(card, path, MADE_AGAIN, ModelCard)
    except DamagedFileError as error:
        reason = "It holds something else than names and thresholds."
        raise DamagedFileError(f"{path} is no card of a model.", reason, MADE_AGAIN) from error


def _threshold(thresholds: Sequence[Threshold], risk: float | None) -> Threshold | None:
    """The threshold for a risk; None if no answer is to be withheld."""
    if risk == FULL_RISK or (risk is None and not thresholds):
        return None
    if risk is None:
        return max(thresholds, key=lambda t: (t.threshold is not None, t.risk))
    if rule := next((t for t in thresholds if abs(t.risk - risk) < 1e-9), None):
        return rule
    risks = ", ".join(f"{t.risk:g}" for t in thresholds) or "none"
    reason = f"Thresholds were set on held-out questions for these risks: {risks}."
    raise SpecError(f"A risk of {risk:g}.", reason, f"Give one of them, or {FULL_RISK:g} to see every answer.")
