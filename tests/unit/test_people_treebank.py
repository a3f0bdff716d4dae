"""The generated people's texts as a treebank: every word labelled by what the world says of it, one document a person."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from trisect.text.generated import FAMILY_ENDS, PLACE_ENDS, people_corpus
from trisect.text.sources import open_texts

TOOL = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "tools" / "people_treebank.py")))


def test_every_line_is_a_sentence_and_every_person_one_document(tmp_path: Path) -> None:
    TOOL.main(tmp_path)
    people = people_corpus()
    read = {split: (tmp_path / f"{split}.conllu").read_text(encoding="utf-8") for split in ("train", "valid")}
    texts = [line.removeprefix("# text = ") for body in read.values() for line in body.splitlines() if "# text" in line]
    assert sorted(texts) == sorted(line.text for line in people.lines)
    assert texts[: len(texts) - read["valid"].count("# text")] == list(open_texts(tmp_path, "train").texts())
    documents = {split: body.split("# newdoc id = ")[1:] for split, body in read.items()}
    names = [document.partition("\n")[0] for some in documents.values() for document in some]
    assert sorted(names) == sorted({line.name for line in people.lines})
    assert len(documents["valid"]) == len(names) // TOOL.HELD
    for document in (one for some in documents.values() for one in some):
        name = document.partition("\n")[0]
        assert sum(f"= {line.text}\n" in document for line in people.lines if line.name == name) == document.count(
            "# text"
        )


@pytest.mark.parametrize(("column", "word"), [("morph.RegionAtFirst", 0), ("morph.RegionAtLast", 1)])
def test_the_region_of_a_name_is_that_of_the_persons_place(tmp_path: Path, column: str, word: int) -> None:
    TOOL.main(tmp_path)
    people = people_corpus()
    home = {one.name: one.place or "" for part in (people.train, people.valid, people.test) for one in part}
    feature = column.removeprefix("morph.")
    seen = set()
    for document in (tmp_path / "train.conllu").read_text(encoding="utf-8").split("# newdoc id = ")[1:]:
        name = document.partition("\n")[0]
        for line in document.splitlines():
            cells = line.split("\t")
            found = dict(pair.split("=") for pair in cells[5].split("|")) if len(cells) == 10 else {}
            assert (feature in found) == (len(cells) == 10 and cells[1] == name.split()[word])
            if feature in found:
                assert home[name].endswith(found[feature])
                seen.add(found[feature])
            if "Family" in found:
                assert cells[1].endswith(FAMILY_ENDS[PLACE_ENDS.index(found["Family"])])
    assert seen == set(PLACE_ENDS)
