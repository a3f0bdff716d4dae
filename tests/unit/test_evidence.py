"""Comparisons of q, k and v from a dissection's parts: what they count, turn, leave out and show; links between its pages."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests import aligned, tinyhf
from tests.controlled import everywhere, made

import trisect
from trisect.core.finding import Estimate, Finding
from trisect.experiments.ablate import ABLATE
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.align import page as alignment_page
from trisect.experiments.dissect import parts
from trisect.experiments.dissect.page import Line, as_table, from_table, section, summary
from trisect.experiments.dissect.run import links_from
from trisect.experiments.study import page
from trisect.experiments.study.rows import StudyRows
from trisect.hf.load import load
from trisect.lab import driver
from trisect.lab.inputs import ModelSource, TextSource
from trisect.report.format import Mean, by_component, interval
from trisect.report.sheet import MARK, Document, Sheet, StudyLink, present, with_links
from trisect.report.sheet import html as sheet_html
from trisect.stats.paired import compare

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

PARTS = {part.name: part for part in parts.PARTS}


def lines_of(part, models) -> list[Line]:
    return list(present(*PARTS[part].evidence(models)))


def aligned_findings(models=1, measures=None):
    scored = aligned.planted((0.5, 0.5), (0.9, 0.9), models=models)
    tables = aligned.tables(scored)
    measures = tables["measures"] if measures is None else measures(tables["measures"])
    return alignment_page.findings({**tables, "measures": measures}, aligned.about(scored)), tables["measures"], scored


@pytest.mark.parametrize("models", [1, 3])
def test_an_alignments_line_is_1_less_the_error_rate_with_its_interval_turned(models):
    findings, measures, scored = aligned_findings(models)
    (line,) = parts.alignment_lines([findings])
    assert line is not None
    for component, kind in (("q", "weight"), ("k", "weight"), ("v", "norm")):
        whole = measures.filter(pl.col("layer").is_null(), subject=scored.name, measure="aer", group=f"awi {kind}")
        (row,) = whole.to_dicts()
        assert line.means[component] == (1 - row["value"], 1 - row["high"], 1 - row["low"], 40)
    assert line.compared is None  # q and k share a number, so that the line is shown and not counted
    assert (line.claims, line.source) == (("C-5",), "alignment")
    assert line.words.startswith("norms less weights +0.3") or line.words.startswith("norms less weights +0.4")


def test_without_gold_links_there_is_no_line():
    findings, _, _ = aligned_findings(measures=lambda rows: rows.filter(~pl.col("measure").str.starts_with("aer")))
    assert list(parts.alignment_lines([findings])) == []


def of_model(measure, **values):
    return (Finding(measure, "", values=tuple(Estimate(name.replace("_", "+"), v) for name, v in values.items())),)


def test_a_line_over_models_is_the_mean_of_each_with_its_interval():
    models = [of_model("mean_change", q=0.1, k=0.2, v=0.3), of_model("mean_change", q=0.3, k=0.2, v=0.7)]
    (line,) = lines_of("ablation", models)
    assert (line.means["q"], line.means["v"]) == (interval([0.1, 0.3]), interval([0.3, 0.7]))
    assert (line.kind, line.per, line.signed) == ("ablation", "seed", True)
    assert line.compared == compare({"q": [0.1, 0.3], "k": [0.2, 0.2], "v": [0.3, 0.7]}, 0.02)
    (alone,) = lines_of("ablation", [of_model("mean_change", q=0.1, v=0.3), of_model("other", q=9.0)])
    assert (alone.means["q"], alone.means.get("k")) == (interval([0.1]), None)
    assert lines_of("ablation", [of_model("other", q=9.0)]) == []


def test_weights_are_of_q_and_k_together_so_that_norms_rank_nothing():
    (line,) = lines_of("norms", [of_model("dispersion", q_k=1.2, v=0.3), of_model("dispersion", q_k=1.4, v=0.1)])
    assert line.means == {"q": interval([1.2, 1.4]), "k": interval([1.2, 1.4]), "v": interval([0.3, 0.1])}
    assert line.compared is None


def test_a_components_similarity_is_its_mean_overlap_with_the_other_two():
    def overlaps(**pairs):
        return tuple(
            Finding(
                "overlap", "", values=(Estimate(pair, v), Estimate("random", 0.9)), groups=(pair.replace("_", "-"),)
            )
            for pair, v in pairs.items()
        )

    models = [overlaps(q_k=0.4, q_v=0.2, k_v=0.1), overlaps(q_k=0.2, q_v=0.2, k_v=0.1)]
    (line,) = lines_of("similarity", models)
    assert [mean.mean for mean in line.means.values()] == pytest.approx([0.25, 0.2, 0.15])
    (odd,) = lines_of("similarity", [overlaps(q_k=0.4)])
    assert odd.means == {"q": interval([0.4]), "k": interval([0.4])}


def test_recalls_line_is_what_is_lost_and_is_not_ranked():
    values = (Estimate("q", 0.9, n=40), Estimate("v", 0.2, n=40))
    (line,) = lines_of("recall", [(Finding("survival", "", "of the answers", values, what="x that stay y"),)])
    assert {name: mean.mean for name, mean in line.means.items()} == {"q": pytest.approx(0.1), "v": 0.8}
    assert (line.kind, line.what, line.compared, line.claims[0]) == ("recall", "x lost y", None, "B-1")
    assert lines_of("recall", [()]) == []


def test_a_finding_of_the_training_study_is_a_line_with_the_claims_that_speak_of_it():
    rows = StudyRows.of(*made(everywhere("attack-pos-k@1", -0.3, 0.3) | everywhere("tie-q+k+v@1-5", 0.4, 0.4)))
    lines = [line for line in parts.training_lines([page.with_verdicts(rows)]) if line is not None]
    kinds = [one.kind for one in lines]
    # criticality is shown on the study's page alone
    assert set(kinds) == set(parts.KINDS) - {"all_layers", "ablation"}
    attack = next(one for one in lines if one.kind == "attack" and one.what.startswith("POS"))
    points = by_component(rows.effects("attack", "valid", "pos"))
    assert attack.means == {c: points[c] for c in "qkv"}
    assert attack.claims == ("A-1", "A-2", "A-3", "A-4", "A-5", "A-9")
    assert (attack.name, attack.source, attack.unit) == ("Attack", "submodules", "nats")
    assert next(one for one in lines if one.kind == "tying").claims == ("D-2",)
    assert [kinds.index(kind) for kind in parts.KINDS if kind in kinds] == sorted(map(kinds.index, set(kinds)))
    assert Line.of(Finding("attack", "", values=(Estimate("all", 0.1, None, None, 3),))) is None


def line(kind, q, k, v, **more):
    numbers = {c: x for c, x in zip("qkv", (q, k, v), strict=True) if x is not None}
    means = {c: x if isinstance(x, Mean) else Mean(x, x - 0.01, x + 0.01, 5) for c, x in numbers.items()}
    return Line(kind, "submodules", "POS, change", "nats", means, **more)


def seeds(q, k, v, margin=0.02):
    """Five seeds with these means, each component with a spread of its own."""
    noise = np.array([-2, -1, 0, 1, 2]) / 1000
    return compare({"q": q + noise, "k": k - noise, "v": v + noise[::-1] * 2}, margin)


def test_a_line_says_what_paired_differences_say():
    assert line("attack", 0.1, 0.2, 0.9, compared=seeds(0.1, 0.2, 0.9)).largest == "v largest"
    assert line("attack", 0.1, 0.11, 0.09, compared=seeds(0.1, 0.11, 0.09, 0.05)).largest == "alike within 0.05"
    assert line("attack", 0.1, 0.2, 0.9).largest == "–"
    few = compare({"q": [0.1, 0.5], "v": [0.3, 0.1]}, 0.02)
    uncertain = line("attack", 0.3, None, 0.2, compared=few, per="text").largest
    assert uncertain.startswith("too uncertain: about ")
    assert uncertain.endswith("texts needed, 2 run")


def test_lines_are_counted_and_not_added_up():
    one, last = seeds(0.9, 0.1, 0.2), seeds(0.1, 0.2, 0.9)
    lines = [
        line("tying", 0.1, 0.2, 0.9, compared=last),
        line("freezing", 0.1, 0.2, 0.9, compared=last),
        line("freezing", 0.9, 0.1, 0.2, compared=one),
        line("norms", 0.1, 0.1, 0.1),
        line("ablation", 0.1, 0.1, 0.1, compared=compare({"q": [0.1], "k": [0.2]}, 0.02)),
    ]
    said = summary(lines)
    assert said.startswith("Of 4 comparisons ")
    for part in ("2: v largest (tying, freezing)", "1: q largest (freezing)", "1: too uncertain to say (ablation)"):
        assert part in said
    assert summary([line("norms", None, None, 0.1)]) == ""


def test_the_table_says_verdicts_links_and_how_many_and_escapes():
    change = {"claims": ("A-1", "A-2"), "words": "<i>so</i>", "link": "page.html#answer"}
    odd = line("attack", 0.1, None, 0.9, compared=seeds(0.1, 0.2, 0.9), **change)
    one = Mean(0.5, None, None, 1)
    other = Line("recall", "recall", "x", "nats", dict.fromkeys("qkv", one), "name")
    shown = section([odd, other], {"A-1": "refuted"})
    first, second = shown.tables[0].rows
    assert first[1:3] == ("Xie and Jiang", "POS, change, nats; n\u00a0=\u00a05 seeds")
    assert first[-2:] == ("v largest", "A-1 refuted; <i>so</i>")
    assert first[4] == "–"
    assert second[2].endswith("1 name")
    text = sheet_html(Sheet("T", "k", "lede", (shown,)))
    assert '<a href="page.html#answer">Attack</a>' in text
    assert "&lt;i&gt;so&lt;/i&gt;" in text
    assert "<i>so</i>" not in text


def test_lines_are_the_same_read_back_from_their_table_with_those_of_a_kind_together():
    lines = [
        line("attack", 0.1, None, -0.9, claims=("A-1", "A-2"), words="so", link="page.html#answer", name="Attacks"),
        line("recall", Mean(0.5, None, None, 1), 0, 0, per="name", signed=False, compared=seeds(0.1, 0.2, 0.9)),
        line("attack", 0.2, 0.3, 0.4),
    ]
    assert from_table(as_table(lines)) == [lines[0], lines[2], lines[1]]
    assert from_table(as_table([])) == []


PAGES = (
    ("The answer", {"": "report.html"}),
    ("By hand", {"": "theory/theory.html"}),
    ("Ablation", {"seed 1": "ablate/seed-1/report.html", "seed 2": "ablate/seed-2/report.html"}),
)


def test_every_page_links_to_all_and_marks_itself():
    front = links_from(PAGES, "report.html")
    assert [(one.title, one.href, one.here) for one in front] == [
        ("The answer", "", True),
        ("By hand", "theory/theory.html", False),
        ("Ablation", "ablate/seed-1/report.html", False),
    ]
    second = links_from(PAGES, "ablate/seed-2/report.html")
    assert [one.href for one in second] == ["../../report.html", "../../theory/theory.html", ""]
    assert second[2].models == (("seed 1", "../seed-1/report.html"), ("seed 2", ""))


@pytest.mark.parametrize("page", ["other/report.html", "ablate/seed-3/report.html", "theory.html", ""])
def test_what_is_no_page_of_it_has_no_links(page):
    assert links_from(PAGES, page) == ()


def test_a_page_keeps_its_links_when_it_is_made_again_or_run_again_and_has_none_elsewhere(tmp_path):
    model = load(tinyhf.gpt2(), tinyhf.tokenizer(False))
    asked = AblateSettings(ModelSource(model), TextSource(["w1 w2 w3"]), sites=("v@1",), how="zero")
    links = links_from(PAGES, "ablate/seed-1/report.html")
    first = driver.run(ABLATE, asked, tmp_path / "linked", True, links).report
    page = first.read_text(encoding="utf-8")
    assert '<a href="../../theory/theory.html">By hand</a>' in page
    assert '<span aria-current="page">seed 1</span>' in page
    trisect.render(tmp_path / "linked")
    assert first.read_text(encoding="utf-8") == page
    driver.run(ABLATE, asked, tmp_path / "linked", True)
    assert '<a href="../../theory/theory.html">By hand</a>' in first.read_text(encoding="utf-8")
    alone = driver.run(ABLATE, asked, tmp_path / "alone", True).report.read_text(encoding="utf-8")
    assert "By hand" not in alone


def test_a_page_of_its_own_has_the_links_at_its_mark_and_titles_are_escaped():
    page = Document("x.html", f"<body>{MARK}<p>y</p></body>")
    made = with_links(page, (StudyLink("a < b", "z.html"), StudyLink("here", "", True)))
    assert isinstance(made, Document)
    assert '<a href="z.html">a &lt; b</a>' in made.html
    assert '<span aria-current="page">here</span>' in made.html
    assert MARK not in made.html
    assert with_links(page, ()) is page
