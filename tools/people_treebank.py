"""Write the texts of the generated people as a treebank, for profiles of recall models: python tools/people_treebank.py FOLDER

One sentence a line of the pretraining text; every tenth is in valid.conllu. Of each word part of speech and role (first or last name,
place, trade, or none); of the words of a name, which stand before the place is said, the region that the person's place is in, by its
ending. No syntax.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from trisect.core.files import replace_file
from trisect.text.birth_places import People
from trisect.text.generated_people import _PLACE_ENDS as ENDS
from trisect.text.generated_people import generated

WORD = re.compile(r"\w+|[^\w\s]")
NAME = ("First", "Last")
WORDS = {"was": "AUX", "in": "ADP", "from": "ADP", "a": "DET", "born": "VERB"}


def roles(people: People) -> dict[str, tuple[str, str]]:
    """Part of speech and role of the words that are somebody's or some place's."""
    names = [line.name.split() for line in people.lines]
    places = {one.place for part in (people.train, people.valid, people.test) for one in part if one.place}
    found = {first: ("PROPN", "First") for first, _ in names}
    return found | {last: ("PROPN", "Last") for _, last in names} | dict.fromkeys(places, ("PROPN", "Place"))


def sentences(people: People) -> Iterator[str]:
    """Every line as CoNLL-U."""
    known = roles(people)
    home = {one.name: one.place for part in (people.train, people.valid, people.test) for one in part}
    for line in people.lines:
        rows = [f"# text = {line.text}"]
        for number, found in enumerate(WORD.finditer(line.text), start=1):
            word = found.group()
            other = (
                ("PUNCT", "None")
                if not word.isalpha()
                else (WORDS[word], "None")
                if word in WORDS
                else ("NOUN", "Trade")
            )
            pos, role = known.get(word, other)
            region = f"Region={next(end for end in ENDS if home[line.name].endswith(end))}|" if role in NAME else ""
            feats = f"{region}Role={role}"
            rows.append("\t".join([str(number), word, word.lower(), pos, "_", feats, "0", "dep", "_", "_"]))
        yield "\n".join(rows) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    made = list(sentences(generated()))
    held = made[9::10]
    del made[9::10]
    for split, some in (("train", made), ("valid", held)):
        text = "\n".join(some) + "\n"
        replace_file(folder / f"{split}.conllu", lambda scratch, text=text: scratch.write_text(text, encoding="utf-8"))
        print(f"{folder / split}.conllu: {len(some)} sentences")
