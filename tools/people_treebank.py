"""Write the texts of the generated people as a treebank, for profiles of recall models: python tools/people_treebank.py FOLDER

A sentence is a line of the pretraining text, a document all lines of one person, so that folds over documents hold people out whole;
every tenth person is in valid.conllu. Features of a word: its Role (first or last name, place, trade, or none); of a first name
RegionAtFirst, the region of the person's birth place, which nothing before it in the text predicts; of a last name RegionAtLast, the
same, which is the family's region for most people, and Family, the region that the family is from, given by the name's ending. A region
is written as the ending of its places. No syntax.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from trisect.core.files import replace_file
from trisect.text.birth_places import People
from trisect.text.generated import FAMILY_ENDS, PLACE_ENDS, people_corpus

WORD = re.compile(r"\w+|[^\w\s]")
WORDS = {"was": "AUX", "in": "ADP", "from": "ADP", "a": "DET", "born": "VERB"}
HELD = 10  # one person in so many is in valid.conllu


def ending(word: str, ends: tuple[str, ...]) -> str:
    """The region of a place or a family, as the ending of the region's places."""
    return PLACE_ENDS[next(i for i, end in enumerate(ends) if word.endswith(end))]


def features(word: str, name: str, place: str) -> tuple[str, str]:
    """Part of speech and features of a word of somebody's line."""
    first, last = name.split()
    if word == first:
        return "PROPN", f"RegionAtFirst={ending(place, PLACE_ENDS)}|Role=First"
    if word == last:
        return "PROPN", f"Family={ending(last, FAMILY_ENDS)}|RegionAtLast={ending(place, PLACE_ENDS)}|Role=Last"
    if word == place:
        return "PROPN", "Role=Place"
    if not word.isalpha():
        return "PUNCT", "Role=None"
    return (WORDS[word], "Role=None") if word in WORDS else ("NOUN", "Role=Trade")


def documents(people: People) -> Iterator[str]:
    """All lines of one person after another, as CoNLL-U."""
    home = {one.name: one.place or "" for part in (people.train, people.valid, people.test) for one in part}
    lines: dict[str, list[str]] = {}
    for line in people.lines:
        lines.setdefault(line.name, []).append(line.text)
    for name, texts in lines.items():
        rows = [f"# newdoc id = {name}"]
        for text in texts:
            rows.append(f"# text = {text}")
            for number, found in enumerate(WORD.findall(text), start=1):
                pos, feats = features(found, name, home[name])
                rows.append("\t".join([str(number), found, found.lower(), pos, "_", feats, "0", "dep", "_", "_"]))
            rows.append("")
        yield "\n".join(rows) + "\n"


def main(folder: Path) -> None:
    """Write both splits."""
    folder.mkdir(parents=True, exist_ok=True)
    made = list(documents(people_corpus()))
    held = made[HELD - 1 :: HELD]
    del made[HELD - 1 :: HELD]
    for split, some in (("train", made), ("valid", held)):
        text = "".join(some)
        replace_file(folder / f"{split}.conllu", lambda scratch, text=text: scratch.write_text(text, encoding="utf-8"))
        print(f"{folder / split}.conllu: {len(some)} people")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"{len(sys.argv) - 1} arguments were given.\nOne is needed: the folder to write to.\nGive it.")
    main(Path(sys.argv[1]))
