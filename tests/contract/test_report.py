"""The report: what its figures, sentences and cards make of rows, and that the page is one file, safe and repeatable."""

import json
import math
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import pages
from tests.synthetic import about, diverged, study_tables

from trisect.claims import claims_hash, evidence, judge
from trisect.claims.reasons import Reason
from trisect.core import spec
from trisect.core.claim import LossChange
from trisect.core.tables import frame
from trisect.experiments.study import figures, page
from trisect.experiments.study import words as study_words
from trisect.experiments.study.rows import StudyRows
from trisect.report import cards, render, sheet
from trisect.report import format as words
from trisect.report.charts import SharedAxis, _label_heights, _whole_ticks, axis_for
from trisect.report.format import Mean, Point, by_component, by_site, interval, order, site_position

pytestmark = pytest.mark.drawn

SMALL = {"seeds": (1, 2), "epochs": 3, "layers": 2}


def tables_of(effects=None, **shape):
    shape = SMALL | shape
    tables = study_tables(**shape, effects=effects)
    description = about(**shape)
    return {**tables, "claims": judge(tables, description)}, description


def with_value(table: pl.DataFrame, where: pl.Expr, value: float, column: str = "value") -> pl.DataFrame:
    """The table with this value where that is true."""
    return table.with_columns(pl.when(where).then(value).otherwise(pl.col(column)).alias(column))


def combined():
    """A study that attacks combined sites by a label whose name is markup, and does nothing else; no accuracy is a number."""
    sites = tuple(spec.Site.parse(s) for s in ("q@1", "v@all", "q+k@1-2"))
    model, training = spec.Model(40, 2, 4, 40), spec.Training(epochs=2)
    attack = spec.Attack(sites, ("<b>ner</b>",), (0.3, 1.0))
    whole = spec.Design(
        "odd", model=model, training=training, seeds=(1, 2), attack=attack, rewind=None, freeze=None
    ).resolved()
    tables = study_tables((1, 2), 2, 2, ("<b>ner</b>",), {}, whole=whole)
    metrics = with_value(tables["metrics"], pl.col("name") == "accuracy", math.nan)
    tables = {**tables, "metrics": metrics, "sites": frame("sites", ())}
    description = about(**SMALL) | {"experiment": spec.to_json_data(whole)}
    description["corpus"] = description["corpus"] | {"name": "<script>alert(1)</script>", "notes": ["a & b <i>"]}
    return {**tables, "claims": judge(tables, description)}, description


@pytest.fixture(scope="module")
def study():
    return tables_of()


@pytest.fixture(scope="module")
def collected(study):
    """Every figure of the study."""
    return figures.collect(StudyRows.of(*study))


@pytest.fixture(scope="module")
def charts(collected):
    """Their charts by name."""
    return {figure.name: figure.chart() for figure in collected}


FEW = ("answer", "fig08-rewind-heat", "adversary")


@pytest.fixture(scope="module")
def written(study, collected, tmp_path_factory):
    """The page with some of its figures, since each takes a second to draw, and where they lie beside it."""
    folder, rows = tmp_path_factory.mktemp("report"), StudyRows.of(*study)
    few = [figure for figure in collected if figure.name in FEW]
    return folder, sheet.write_page(folder, page.make_sheet(study[0], rows, few))


class Outline(HTMLParser):
    """Tags that are left open, ids, links and outside addresses of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.outside, self.unnamed, self.scripts = [], [], [], [], 0, Counter()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.scripts.update([values.get("type")] if tag == "script" else [])
        if "id" in values:
            self.ids.append(values["id"])
        href = values.get("href") or values.get("src") or values.get("xlink:href") or ""
        if href.startswith("#"):
            self.links.append(href[1:])
        elif href and not href.startswith("data:"):
            self.outside.append(href)
        if tag == "svg" and not (values.get("aria-label") or values.get("aria-hidden")):
            self.unnamed += 1
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(path):
    reader = Outline()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def test_every_figure_of_the_paper_is_drawn_and_numbered(charts):
    assert {int(name[3:5]) for name in charts if name.startswith("fig")} == set(range(3, 13))
    names = {"answer", "fig03-attack-pos-train", "fig06-attack-dep-valid", "fig12-freeze-valid", "adversary"}
    assert names <= set(charts)


def test_components_keep_their_colours_and_shapes(charts):
    spec_of_answer = json.dumps(charts["answer"].to_dict(validate=False))
    scale = '"domain": ["q", "k", "v"], "range": {}'
    assert scale.format('["#0072B2", "#D55E00", "#009E73"]') in spec_of_answer
    assert scale.format('["circle", "square", "triangle-up"]') in spec_of_answer
    assert len({m.colour for m in render.GROUPS.values()} | {render.OTHER_MARK.colour}) == len(render.GROUPS) + 1
    assert len({m.shape for m in render.GROUPS.values()} | {render.OTHER_MARK.shape}) == len(render.GROUPS) + 1


def test_the_page_is_one_whole_file(written):
    path = written[1]
    seen = outline(path)
    assert seen.open == []
    assert seen.outside == []
    assert seen.scripts == {None: 1, "application/json": len(FEW) + 2}  # with the first screen and the row by method
    assert len(seen.ids) == len(set(seen.ids))
    assert set(seen.links) <= set(seen.ids)
    assert seen.unnamed == 0
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    parts = ("attention", "answer-section", "verdicts", "figures", "reproduce")
    places = [text.index(f'id="{part}"') for part in parts]
    assert places == sorted(places)


def test_same_rows_same_bytes_in_any_order(study, collected, tmp_path):
    """Pictures are made of the drawings alone, so that one is made of rows in another order; all show the same numbers."""
    tables, description = study
    shuffled = {name: t.sample(fraction=1.0, shuffle=True, seed=3) for name, t in tables.items() if name != "claims"}
    rows = StudyRows.of(tables | shuffled, description)
    again = figures.collect(rows)
    for one, other in zip(collected, again, strict=True):
        shown, repeated = (
            [f.name, f.caption, *((p.alt, p.series, p.strokes) for view in f.views for p in view.panels)]
            for f in (one, other)
        )
        assert shown == repeated
    written = []
    for name, of, few in (("one", StudyRows.of(tables, description), collected[:1]), ("other", rows, again[:1])):
        sheet.write_page(tmp_path / name, page.make_sheet({}, of, few))
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        written.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    assert len(written[0]) >= 3  # the page, and a figure twice
    assert written[0] == written[1]


def test_attention_comes_first_and_is_worded_as_a_requirement():
    tables, description = tables_of({"self_only": 0.0})
    text = pages.html(tables, StudyRows.of(tables, description), [])
    assert "every verdict below is inconclusive by rule" in text
    required = r"Check failed: attention is in use\.</strong> Required: in every seed, .* Not so in seeds 1, 2\."
    assert re.search(required, text)
    held = r"Check passed: the baseline beats the unigram loss\.</strong> Required: .* Found so in every seed\."
    assert re.search(held, text)
    used, description = tables_of({"self_only": 0.5})
    assert "Yes, by both checks" in pages.html(used, StudyRows.of(used, description), [])


def test_sentences_follow_the_rows():
    for site in ("q@1", "k@2", "v@2"):
        tables, description = tables_of({f"attack-pos-{site}/valid": 1.0, "self_only": 0.5})
        said = {one.title: one for one in study_words.findings(StudyRows.of(tables, description))}["Attack on POS"]
        assert said.words.startswith(f"change of the validation loss against the baseline, highest at {site}, +")
        assert re.search(rf"{site[0]} \+0\.(49|50)", said.words.rpartition("Mean over layers: ")[2])
        assert (said.measure, said.groups, said.unit, said.source) == ("attack", ("pos",), "nats", "submodules")
        assert {e.name: round(e.mean or 0, 1) for e in said.values} == {c: 0.5 if c == site[0] else 0 for c in "qkv"}
        assert said.comparison == ""


def test_a_diverged_run_enters_with_its_last_loss_clipped_at_initialisation():
    tables, description = tables_of()
    run = tables["runs"].filter(edit="attack", site="v@2", label="pos")["run"][0]
    mine = (pl.col("run") == run) & (pl.col("name") == "loss_nats") & (pl.col("epoch") == 1)
    broken = diverged({**tables, "metrics": with_value(tables["metrics"], mine, 40.0)}, run, 1)
    rows = StudyRows.of(broken, description)
    base = {p.seed: p.value for p in rows.last("none", "valid", "loss_nats")}
    start = {p.seed: p.value for p in rows.curves("none", "valid") if p.at == 0}
    (point,) = [p for p in rows.effects("attack", "valid", "pos") if p.diverged]
    assert point.value == pytest.approx(start[point.seed] - base[point.seed])
    caption = next(f.caption for f in figures.collect(rows) if f.name == "fig04-attack-pos-valid")
    assert "1 diverged" in caption
    assert "cut above the loss at initialisation" in caption


def test_a_diverged_baseline_is_clipped_as_in_the_claims_and_named():
    tables, description = tables_of()
    run = tables["runs"].filter(edit="none", seed=2)["run"].item()
    mine = (pl.col("run") == run) & (pl.col("name") == "loss_nats") & (pl.col("epoch") == 1)
    broken = diverged({**tables, "metrics": with_value(tables["metrics"], mine, 40.0)}, run, 1)
    rows = StudyRows.of(broken, description)
    held = evidence.gather(broken)
    for edit, label in (("attack", "pos"), ("freeze", None)):
        found = {(p.site, p.seed): p for p in rows.effects(edit, "valid", label)}
        assert {seed for (_, seed), p in found.items() if p.diverged} == {2}
        for (site, seed), point in found.items():
            read = evidence.read(LossChange(edit, (site,), "valid", label), held, seed)
            assert read is not None
            assert point.value == pytest.approx(read.value)
    captions = {f.name: f.caption for f in figures.collect(rows)}
    assert "2 runs; 1 diverged, and the bold line stops where the first seed is lost." in captions["fig07-baseline"]
    assert "Curves are cut above the loss at initialisation." in captions["fig07-baseline"]
    assert "The baseline diverged in 1 seed." in captions["fig04-attack-pos-valid"]
    assert re.search(r" 36 of 72 values come from diverged runs; .* clipped at the loss at init", captions["answer"])
    text = pages.html({**broken, "claims": judge(broken, description)}, rows, [])
    assert text.count("The baseline diverged in seed 2.") == 2
    assert text.count("Check failed: ") == 2 * 2  # on the first screen too


def test_nothing_is_said_of_divergence_where_there_was_none(collected):
    assert not [f.name for f in collected if "diverged" in f.caption]


def of_sites(values, seeds=(1, 2, 3), spread=0.001):
    """Points whose means are `values`; the seeds differ by `spread`."""
    shift = dict(zip(seeds, np.linspace(-spread, spread, len(seeds)), strict=True))
    return [Point(site, seed, value + shift[seed]) for site, value in values.items() for seed in seeds]


def test_ties_are_said_as_ties():
    flat = of_sites({f"{c}@{n}": 0.0 for n in (1, 2) for c in "qkv"}, spread=0.0)
    assert study_words.extremes(flat, "nats", False) == "the same at all 6 sites: 0.000\u00a0nats."
    assert study_words.ranking(flat, "nats").endswith("q 0.000, k 0.000 and v 0.000: alike within 0.02.")
    one = of_sites({f"{c}@{n}": float(c == "v" and n == 2) for n in (1, 2) for c in "qkv"}, spread=0.0)
    said = "largest at v@2, 1.000 (the same in all 3 seeds); smallest 0.000 at 5 of 6 sites."
    assert study_words.extremes(one, "", False) == said
    two = of_sites({"q@1": 2.0, "k@1": 2.0, "v@1": 1.0}, spread=0.0)
    said = "highest +2.000\u00a0nats at q@1 and k@1; lowest at v@1, +1.000"
    assert study_words.extremes(two, "nats").startswith(said)


def test_components_are_compared_by_paired_differences_over_seeds():
    points = [
        *of_sites({"q@1": -0.5}, spread=2.0),  # what the seeds have in common is in no difference
        *of_sites({"k@1": 0.3}, spread=2.001),
        *of_sites({"v@1": 0.1}, spread=2.003),
    ]
    found = study_words.comparison(points, "nats")
    assert found is not None
    assert found.kind == "most"
    assert study_words.ranking(points, "nats") == "Mean over layers: q −0.500, k +0.300 and v +0.100: k largest."
    apart = [*of_sites({"q@1": 0.5}), *of_sites({"k@1": 0.0}, spread=0.4)]
    open_ = study_words.comparison(apart, "nats")
    assert open_ is not None
    assert open_.words().startswith("too uncertain: about ")
    assert study_words.comparison(of_sites({"q@1": 0.5}), "nats") is None


def test_attacks_and_what_probes_find_at_whole_width_are_not_ranked(study):
    rows = StudyRows.of(*study)
    found = {(one.measure, one.groups): one for one in study_words.findings(rows)}
    assert found["attack", ("pos",)].compared is None
    assert study_words.FULL_WIDTH_NOTE in found["attack", ("pos",)].words
    assert found["freezing", ()].compared is not None
    assert "Attack" not in study_words.lead(rows)


def test_the_lead_counts_methods_by_what_their_paired_differences_say():
    clear = {f"freeze-{c}@{n}/valid": size for c, size in (("q", 0.3), ("k", 0.3), ("v", 0.9)) for n in (1, 2)}
    tables, description = tables_of(clear | {"attack-dep-q@1/valid": 1.0}, seeds=(1, 2, 3, 4, 5))
    said = study_words.lead(StudyRows.of(tables, description))
    assert said.startswith("Of 4 methods that can rank q, k and v, ")
    assert "1: v largest (Freezing)" in said
    assert "DEP" not in said
    tables, description = tables_of({}, seeds=(1,))
    said = study_words.lead(StudyRows.of(tables, description))
    assert "4: too uncertain" in said
    assert said.endswith("With one seed there is no estimate of noise.")


def test_missing_parts_are_left_out_and_named_and_text_from_outside_is_escaped(tmp_path):
    tables, description = combined()
    path = pages.write(tmp_path, tables, description | {"precision": "bfloat16"})
    label, text = words.slug("<b>ner</b>"), path.read_text(encoding="utf-8")
    names = {"answer", "fig07-baseline", "adversary"}
    names |= {f"attack-{label}-{of}" for of in ("train", "valid", "strengths")}
    assert {p.stem for p in (tmp_path / "figures").glob("*.svg")} == names
    for part in ("attacks on POS", "attacks on DEP", "convex rewinding", "mid-stage rewinding", "freezing"):
        assert f"{part} (figure" in text
    assert f"on {description['device']}, with bfloat16 products in training</dd>" in text
    assert outline(path).open == []
    own = text[text.rindex("<script>") : text.rindex("</script>")]
    assert "<script>" not in text.replace(own, "")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<b>" not in text
    assert "a &amp; b &lt;i&gt;" in text
    assert re.fullmatch(r"[\w-]+", label)
    assert label != words.slug("{b}ner{/b}")


def test_combined_sites_have_places_of_their_own():
    rows = StudyRows.of(*combined())
    answer = figures.collect(rows)[0]
    assert [key.name for key in answer.legend] == ["q", "v", "q+k", "baseline"]
    assert rows.edit_sites == ("q@1", "v@1-2", "q+k@1-2")
    assert rows.strength == 1.0


def test_one_seed_has_points_and_no_intervals():
    tables, description = tables_of(seeds=(4,))
    rows = StudyRows.of(tables, description)
    assert all(m.low is None for m in by_site(rows.effects("freeze", "valid")).values())
    drawn = figures.collect(rows)
    assert drawn[0].caption.count("n\u00a0=\u00a01 seed") == 1
    assert not [f.name for f in drawn if "interval" in f.caption or "means over seeds" in f.caption]
    text = pages.html(tables, rows, drawn[:1])
    assert "thin lines are single seeds" not in text
    assert "(one seed)" in text
    assert "nan" not in text.replace("nano", "").lower().replace("inan", "")


def test_nothing_at_all_still_makes_a_page(tmp_path):
    text = pages.write(tmp_path, {}, {}).read_text(encoding="utf-8")
    assert "No intervention has rows yet" in text
    assert not list(tmp_path.glob("figures/*"))


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=8), gap=st.floats(0.01, 1.0))
@settings(max_examples=200)
def test_labels_keep_their_distance_and_their_order(values, gap):
    axis = SharedAxis("nats", -5.0, 5.0)
    placed = _label_heights(values, axis, gap)
    ranked = [placed[i] for i in sorted(range(len(values)), key=lambda i: (values[i], i))]
    assert all(b - a >= gap - 1e-9 for a, b in pairwise(ranked))
    if gap * (len(values) - 1) <= 10:
        assert all(axis.low - 1e-9 <= p <= axis.high + 1e-9 for p in placed)
    if all(abs(a - b) >= gap for i, a in enumerate(values) for b in values[:i]):
        np.testing.assert_allclose(placed, values, atol=1e-12)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.booleans())
@settings(max_examples=200)
def test_a_frame_holds_its_values(values, bend):
    axis = axis_for(values, "nats", zero=True, bend=bend)
    assert axis.outside([*values, 0.0]) == 0
    if axis.linear is not None:
        assert list(axis.ticks()) == sorted(axis.ticks())
        assert 0.0 in axis.ticks()


def test_a_frame_is_cut_where_asked():
    axis = axis_for([1.0, 2.0, 900.0], "nats", ceiling=6.0)
    assert 6.0 < axis.high < 7.0
    assert axis.outside([900.0, 2.0]) == 1


def test_intervals_are_students():
    values = [1.0, 2.0, 4.0]
    found = interval(values)
    half = 4.302652729911275 * np.std(values, ddof=1) / math.sqrt(3)  # the 97.5 % point of t with 2 degrees of freedom
    assert found == (pytest.approx(np.mean(values)), pytest.approx(7 / 3 - half), pytest.approx(7 / 3 + half), 3)
    assert interval([2.0]) == Mean(2.0, None, None, 1)
    assert interval([2.0, 2.0]) == Mean(2.0, None, None, 2)  # no spread, no interval: decision 23


def test_component_means_are_over_layers_then_seeds():
    points = [
        Point("q@1", 1, 1.0),
        Point("q@2", 1, 3.0),
        Point("q@1", 2, 2.0),
        Point("q@2", 2, 6.0),
        Point("v@1-2", 1, 9.0),
    ]
    found = by_component(points)
    assert set(found) == {"q"}
    assert found["q"].mean == pytest.approx(3.0)
    assert found["q"].n == 2


def test_sites_are_ordered_by_layer_then_component():
    sites = ["v@all", "q+k@1-2", "v@1", "k@10", "q@2", "q+k@2", "k@1", "q@1", "k@2,4"]
    assert sorted(sites, key=order) == ["q@1", "k@1", "v@1", "q@2", "q+k@2", "k@10", "q+k@1-2", "k@2,4", "v@all"]
    assert site_position("v@2,4") == ("v", "2,4", 3.0, False)


@pytest.mark.parametrize(
    ("value", "signed", "said"),
    [
        (1.23456, True, "+1.235"),
        (-0.0001, True, "−0.000100"),
        (0.0184, True, "+0.0184"),
        (4.89e-8, False, "4.89e−08"),
        (1e-14, True, "0.000"),
        (0.0, True, "0.000"),
        (None, True, "–"),
        (12345.0, False, "1.23e+04"),
    ],
)
def test_numbers_as_words(value, signed, said):
    assert words.number(value, signed) == said


def test_counts_and_lists_as_words():
    assert words.quantity(1, "seed") == "1 seed"
    assert words.quantity(30000, "token") == "30\u202f000 tokens"
    assert words.join_words(["a", "b", "c"]) == "a, b and c"
    assert words.tally({"supported": 1, "refuted": 0, "inconclusive": 13}) == (
        "Of 14 claims, 1 is supported, 0 refuted and 13 inconclusive."
    )


def claim_row(**values):
    row = {
        "source": "s", "claim": "A-1", "part": "loss", "sentence": "loss change > 0.02 nats", "effect": 0.1, "low": 0.05,
        "high": 0.15, "low_family": 0.0, "high_family": 0.2, "margin": 0.02, "bound": 0.02, "direction": "above",
        "unit": "nats", "margin_reason": "Because.", "decides": True, "p_holm": 0.01, "n": 3, "verdict": None,
        "spread": 0.02, "runs": "[]",
    }  # fmt: skip
    return row | values


def card_of(**values):
    rows = [
        claim_row(part=None, sentence="It over-fits.", verdict="supported") | values,
        claim_row(**values) | {"verdict": None},
    ]
    rows[0] |= {"part": None, "sentence": "It over-fits."}
    (card,) = cards.cards(frame("claims", rows))
    return card


def test_a_card_shows_what_decides():
    card = card_of(verdict="inconclusive", seeds_needed=7, reason="not decided", early_stopping=True, diverged=2, n=3)
    facts = {"Seeds (n)": "3", "Seeds needed": "7", "Paired spread": "0.0200 nats", "p (Holm)": "0.0100"}
    assert dict(card.facts) == facts
    assert card.parts[0].numbers == "+0.100 nats, 95\u00a0% +0.0500 to +0.150"
    assert card.early_stopping.startswith("Explained by early stopping: turned round")
    assert card.diverged == "2 runs of this claim diverged and entered with the last finite loss."
    assert card.replication
    assert card.reasons == ("Because.",)
    assert not card_of(verdict="supported").replication
    assert dict(card_of(verdict="refuted", p_holm=1e-9).facts)["p (Holm)"] == "< 0.001"


def test_every_claim_has_a_card_and_verdicts_differ_in_shape(study):
    assert [c.id for c in cards.cards(study[0]["claims"])] == [f"A-{n}" for n in range(1, 16)]
    shapes = [re.sub(r'\d|class="\w+"', "", str(cards.badge(v))) for v in cards.VERDICTS]
    assert len(set(shapes)) == len(cards.VERDICTS)
    assert "<circle" in cards.badge("supported")
    assert "<rect" in cards.badge("refuted")


def marks(drawing, kind):
    """The first x and the width, where there is one, of every mark of that kind."""
    found = re.findall(rf'class="{kind}"[^>]*', drawing)
    return [[float(n) for n in re.findall(r' (?:x|x1|cx|width)="([0-9.]+)"', mark)] for mark in found]


def test_the_forest_plot_draws_interval_margin_and_claimed_side():
    above = card_of(verdict="supported").parts[0].drawing
    ((bound,), (zero,)) = marks(above, "bound")[0], marks(above, "zero")[0]
    assert zero < bound
    assert marks(above, "claimed")[0] == [bound, pytest.approx(cards.WIDTH - cards.EDGE - bound)]
    assert [len(marks(above, k)) for k in ("ci", "family", "dot", "arrow")] == [1, 1, 1, 0]
    within = card_of(verdict="supported", direction="within").parts[0].drawing
    assert len(marks(within, "bound")) == 2
    wide = card_of(verdict="inconclusive", low_family=-50.0, high_family=50.0).parts[0].drawing
    assert len(marks(wide, "arrow")) == 2
    alone = card_of(verdict="inconclusive", low=None, high=None, low_family=None, high_family=None).parts[0]
    assert [len(marks(alone.drawing, k)) for k in ("ci", "family", "dot")] == [0, 0, 1]
    assert alone.numbers == "+0.100 nats, no interval"
    unknown = dict.fromkeys(("effect", "low", "high", "low_family", "high_family"))
    nothing = card_of(verdict="inconclusive", **unknown).parts[0]
    assert marks(nothing.drawing, "dot") == []
    assert nothing.numbers == "no number"


def test_ids_are_renamed_in_order_and_numbers_shortened():
    text = (
        '<svg id="clip77"><path clip-path="url(#clip77)" d="M1.23456,2h-0.5000"/><text x="3.14159">0.12345</text></svg>'
    )
    assert render.stable(text, "fig") == (
        '<svg id="fig-1"><path clip-path="url(#fig-1)" d="M1.23,2h-0.5"/><text x="3.14">0.12345</text></svg>'
    )


def test_ramps_are_even_and_never_leave_their_ends():
    assert render.ramp(0.0) == render.VIRIDIS[0]
    assert render.ramp(1.0) == render.VIRIDIS[-1]
    assert render.ramp(-1.0) == render.VIRIDIS[0]
    assert render.ramp(0.05) == "#461264"
    assert render.layer_colour(1.0) != render.layer_colour(1.0, dark=True)


def test_the_budget_says_what_attacks_cost(study):
    tables, description = study
    said = study_words.budget(StudyRows.of(tables, description))
    assert said == "3 epochs of SGD at rate 5.0, adversarial removal with λ = 1, 2 seeds"
    short = with_value(tables["runs"], pl.col("edit") == "attack", 2, "epochs")
    rows = StudyRows.of({**tables, "runs": short}, description)
    assert (
        study_words.budget(rows) == "3 epochs of SGD at rate 5.0, adversarial removal for 2 epochs with λ = 1, 2 seeds"
    )
    captions = {f.name: f.caption for f in figures.collect(rows)}
    assert "Attacks are shown with λ = 1, after 2 epochs." in captions["answer"]
    odd = StudyRows.of(*combined())
    assert "adversarial removal with λ = 0.3 and 1," in study_words.budget(odd)
    assert "λ = 1 (also run: 0.3), after 2 epochs." in study_words.attack_words(odd)


def text_marks(node):
    """Every text mark of a chart's specification."""
    if isinstance(node, dict):
        mark = node.get("mark")
        yield from [node] if isinstance(mark, dict) and mark.get("type") == "text" else []
        yield from (found for value in node.values() for found in text_marks(value))
    elif isinstance(node, list):
        yield from (found for value in node for found in text_marks(value))


def test_layers_are_told_apart_by_shape_and_named_in_ink(charts):
    for name in ("fig03-attack-pos-train", "fig07-baseline", "fig10-midstage", "fig12-freeze-valid"):
        whole = charts[name].to_dict(validate=False)
        names = list(text_marks(whole))
        assert names
        assert all(n["mark"]["color"] == render.INK and "color" not in n["encoding"] for n in names)
        text = json.dumps(whole)
        assert name == "fig07-baseline" or all(f'\\"shape\\": \\"{render.layer_shape(i)}\\"' in text for i in (0, 1))
    assert len({render.layer_shape(i) for i in range(8)}) == 8


def test_where_curves_meet_their_names_stand_as_a_list(charts):
    whole = charts["fig10-midstage"].to_dict(validate=False)
    for names in text_marks(whole):
        heights = [row["value"] for row in json.loads(whole["datasets"][names["data"]["name"]])]
        steps = [a - b for a, b in pairwise(heights)]
        assert steps == pytest.approx([steps[0]] * len(steps))
        assert steps[0] > 0


@pytest.mark.parametrize(
    ("last", "ticks"),
    [(0, [0]), (1, [0, 1]), (5, [0, 1, 2, 3, 4, 5]), (8, [0, 2, 4, 6, 8]), (200, [0, 50, 100, 150, 200])],
)
def test_epochs_have_whole_ticks_and_none_twice(last, ticks):
    assert _whole_ticks(last) == ticks


def test_the_adversary_is_drawn_between_none_and_all_and_cut_intervals_are_counted():
    tables, description = tables_of(seeds=(1, 2))
    mine = (pl.col("name") == "adversary_accuracy") & (pl.col("split") == "valid") & (pl.col("epoch") == 3)
    apart = with_value(tables["metrics"], mine & pl.col("run").str.contains("-q@1-s1-"), 0.9)
    rows = StudyRows.of({**tables, "metrics": apart}, description)
    figure = next(f for f in figures.collect(rows) if f.name == "adversary")
    assert '"domain": [0.0, 1.0]' in json.dumps(figure.chart().to_dict(validate=False))
    assert figure.caption.endswith(" 4 ends of intervals reach beyond the frame.")  # both ends, both labels
    mine = (pl.col("measure") == "criticality") & (pl.col("site") == "q@1") & pl.col("subject").str.contains("-s1-")
    rows = StudyRows.of({**tables, "sites": with_value(tables["sites"], mine, 0.9)}, description)
    caption = next(f for f in figures.collect(rows) if "fig09" in f.name).caption
    assert "ends of intervals reach beyond the frame." in caption


def test_the_table_tells_what_happens_to_the_accuracy(study):
    tables, description = study
    rows = StudyRows.of(tables, description)
    heads, table = study_words.numbers(rows)
    columns = [title for title, unit in heads if unit == study_words.POINTS]
    assert columns == [
        "Attack on POS: accuracy", "Attack on DEP: accuracy", "Initial weights (α = 0): accuracy", "Freezing: accuracy",
    ]  # fmt: skip
    last = tables["metrics"].filter(name="accuracy", split="valid", epoch=3)
    points = []
    for seed in (1, 2):
        own, base = (
            last.filter(pl.col("run").str.starts_with(f"{slug}-s{seed}-"))["value"].item()
            for slug in ("freeze-v@2", "baseline")
        )
        points.append(100 * (own - base))
    cells = dict(table)["v@2"]
    assert cells[-1][0] == words.number(sum(points) / 2, True, 2)
    accuracy = tables["sites"].filter(measure="rewind_accuracy", split="valid", site="v@2")
    at = {a: accuracy.filter(pl.col("at") == a)["value"].mean() for a in (0.0, 1.0)}
    assert cells[-2][0] == words.number(100 * (at[0.0] - at[1.0]), True, 2)


def test_columns_of_the_table_have_one_number_of_decimals():
    assert words.decimals([1.5, -0.3]) == 3
    assert words.decimals([1.5, 0.0042, 0.0]) == 4
    assert words.decimals([0.0]) == 3
    assert words.decimals([1e-9]) == 5


def test_the_page_says_how_to_reproduce_and_what_made_the_runs(study):
    tables, description = study
    text = pages.html(tables, StudyRows.of(tables, description), [])
    said = text[text.index('id="reproduce"') :]
    for part in (
        description["command"],
        "trisect study experiment.json --out OUT",
        "torch 9.9.9, trisect 0.1.0",
        "These numbers are made up.",
        f"12 s on {description['device']}</dd>",  # float32 products go without saying
        "epochs as in training, labels pos dep, sites q@1 k@1 v@1 q@2 k@2 v@2, strengths 1.0",
        "epsilon 0.01, midstage yes, mode adaptive, points 101, ",
        "<dt>Freeze</dt><dd>sites q@1 k@1",
    ):
        assert part in said
    assert said.count("0123456789abcdef") == 1
    assert "claims have changed" not in text
    other = {"claims_hash": "f" * 16, "versions": '{"torch": "8"}', "corpus": "synthetic:00"}
    first = pl.int_range(pl.len()) == 0
    changes = [pl.when(first).then(pl.lit(value)).otherwise(name).alias(name) for name, value in other.items()]
    changed = {**tables, "runs": tables["runs"].with_columns(changes)}
    text = pages.html(changed, StudyRows.of(changed, description), [])
    assert text.count("claims have changed since these runs were made") == 2
    assert "f" * 16 in text
    assert claims_hash() in text
    assert "torch 8; other runs: torch 9.9.9, trisect 0.1.0" in text
    assert "fingerprint <code>00, 0123456789abcdef</code>" in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"verdict": "supported"}, "sample size sufficient"),
        ({"verdict": "inconclusive", "seeds_needed": 12, "reason": str(Reason("undecided"))}, "12"),
        ({"verdict": "inconclusive", "reason": str(Reason("undecided"))}, "more than 999"),
        ({"verdict": "inconclusive", "reason": str(Reason("single seed"))}, "not known"),
        ({"verdict": "inconclusive", "reason": str(Reason("at floor"))}, "not testable here"),
    ],
)
def test_seeds_needed_in_words(values, said):
    assert dict(card_of(**values).facts)["Seeds needed"] == said


def test_grey_and_dashed_is_the_baseline_alone(charts):
    whole = json.dumps(charts["fig07-baseline"].to_dict(validate=False)["concat"])
    assert render.BASELINE not in whole
