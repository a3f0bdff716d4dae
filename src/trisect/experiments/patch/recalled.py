"""Text pairs for a recall model: a question about one person, and about another whose name is as long."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trisect.core.errors import DamagedFileError, SpecError
from trisect.core.files import read_json
from trisect.text.birth_places import QUESTION
from trisect.text.pairs import TextPair

CARD = "recall.json"
MASK = "<mask>"  # ends a question (hf.small.gpt)
TRAINED = "Give the folder of a model that 'trisect recall' trained."


def recall_pairs(model: object, count: int, seed: int) -> tuple[tuple[TextPair, ...], tuple[str, ...]]:
    """Pairs of questions about people whose place a text of questions says, in a model's folder that `trisect recall` wrote.

    Names are as long as each other, so that characters stand at the same positions, and places begin with different
    characters, by which an answer is recognised; the answer of a pair is that first character. Raises SpecError where there
    is no such folder, or no such pair.
    """
    places = _places(model)
    by_length: dict[int, list[str]] = {}
    for name in sorted(places):
        by_length.setdefault(len(name), []).append(name)
    able = {n: names for n, names in by_length.items() if len({places[name][0] for name in names}) > 1}
    if not able:
        known = f"{len(places)} names have a known place, and no two of one length have places that begin differently."
        raise SpecError("The task 'recall' was asked for.", known, "Give pairs of your own with --pairs.")
    draw, lengths = np.random.default_rng([seed, 12]), sorted(able)
    weights = np.array([len(able[n]) for n in lengths], dtype=float)
    found = []
    while len(found) < count:
        names = able[lengths[int(draw.choice(len(lengths), p=weights / weights.sum()))]]
        one, other = (names[int(i)] for i in draw.integers(len(names), size=2))
        if places[one][0] != places[other][0]:
            texts = [QUESTION.format(name=name) + MASK for name in (one, other)]
            answers = {"base": places[one][0], "donor": places[other][0]}
            found.append(TextPair(texts[0], texts[1], answers, f"pair {len(found) + 1} of recall", "birth place"))
    note = "Names of a pair are as long as each other; an answer is recognised by the first character of the place."
    return tuple(found), (note,)


def _places(model: object) -> dict[str, str]:
    """The place of every name that has one on the model's card."""
    path = Path(model) / CARD if isinstance(model, str | Path) else None
    if path is None or not path.is_file():
        known = f"It needs the names that the model has read, which stand in its folder's {CARD}: there is none."
        raise SpecError(f"The task 'recall' was asked for with {model!s:.80}.", known, TRAINED)
    todo = "Call 'trisect recall' again for the folder of the experiment: it writes every card."
    names, places = read_json(path, todo).get("names"), dict[str, str]()
    for name, row in names.items() if isinstance(names, dict) else ():
        if not isinstance(row, list) or len(row) != 3:
            names = None
        elif isinstance(row[2], str) and row[2]:
            places[name] = row[2]
    if not isinstance(names, dict):
        raise DamagedFileError(f"{path} is no card of a model.", "It holds something else than names.", todo)
    return places
