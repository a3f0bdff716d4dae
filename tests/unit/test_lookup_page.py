"""A lookup study's numbers and page: which models formed, what exceeds the controls, in which order, and what is judged."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from trisect.core.finding import About
from trisect.core.tables import frame
from trisect.experiments.dissect import page as dissect
from trisect.experiments.dissect.parts import PARTS
from trisect.experiments.dissect.settings import DissectFacts, PartFacts
from trisect.experiments.lookup.page import LookupNumbers, Shift, _role, findings, judge_lookups, page
from trisect.experiments.lookup.settings import LookupFacts
from trisect.report.sheet import html

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

STEPS = (0, 100, 200, 300, 400)
FORMED = {1: 300, 2: 300, 3: 200, 4: 300, 5: 300}  # and seed 6 never
ABOUT = About("lookup", "trisect lookup", 1.0, (), {}, None, LookupFacts("wiki, fingerprint 0", {"steps": 100}))


def measures(seed, step):
    formed = step >= FORMED.get(seed, 10**9)
    weights = {(1, 1): 0.02, (2, 1): 0.03, (2, 2): (0.5 if formed else 0.02) + 0.01 * seed / 10}
    own = {"subject": f"seed-{seed}", "stack": "plain", "at": float(step)}
    for name, value in (("text", 5.0), ("first", 7.0), ("second", 3.0 if formed else 6.9)):
        yield own | {"measure": f"{name}_nats", "value": value}
    for (layer, head), value in weights.items():
        yield own | {"measure": "induction", "layer": layer, "head": head, "value": value}
    for head, value in ((1, 0.1), (2, 0.9)):
        yield own | {"measure": "previous", "layer": 1, "head": head, "value": value}


def shift(seed, step, component, lead):
    """Layer 1 says nothing at all; layer 2 what its component predicts, k a checkpoint before the others."""
    when = FORMED.get(seed, 10**9) - (100 if component == "k" else 0)
    gained = lead + 0.01 * seed if step >= when else 0.0
    for layer in (1, 2):
        for name in ("base", "q", "k", "v"):
            nats = 4.0 + gained * (layer == 2) * (name == component)
            controls = {"unrelated_nats": 4.0, "residual_nats": 6.0}
            yield {
                **{"seed": seed, "step": step, "site": f"{component}@{layer}", "position": "all", "hypothesis": name},
                **{"share": 0.2, "kept": 0.5, "shift_nats": None if name == "base" else nats, **controls},
            }


def path(seed, step, lead):
    """Head 2 of layer 1 makes keys alone, head 1 queries and values; an unrelated donor does a tenth of it."""
    formed = step >= FORMED.get(seed, 10**9)
    for component in "qkv":
        for writer, makes in (("1.h1", "qv"), ("1.h2", "k"), ("all writers", "qkv")):
            fall = (lead + 0.01 * seed) * formed * (component in makes)
            where = {"seed": seed, "step": step, "writer": writer, "into": f"{component}@2"}
            yield (
                where | {"direct": fall, "unrelated": fall / 10},
                where | {**{"hypothesis": component, "shift_nats": 2 * fall}, **{"unrelated_nats": fall / 5}},
            )


def tables(lead=3.0, came="qkv"):
    predictions = [row for s in range(1, 7) for at in STEPS for c in "qkv" for row in shift(s, at, c, lead)]
    texts = {"base": "a b c a", "donor": "c d a c", "own_base": " b", "own_donor": " d"}
    answers = {f"answer_{name}": f" {name}" for name in ("base", "q", "k", "v", "donor")}
    examples = [
        {"seed": 1, "step": 400, "pair": pair, "layer": 2, "component": c, "answer": f" {c}" if on else " x"}
        | {"came": c if on else "other", **texts, **answers}
        for pair in (1, 2)
        for c in "qkv"
        for on in [pair == 2 and c in came]
    ]
    both = [rows for s in range(1, 7) for at in STEPS for rows in path(s, at, lead)]
    found = {
        "paths": pl.DataFrame([one for one, _ in both]),
        "shifts": pl.DataFrame([other for _, other in both]),
        "measures": frame("measures", [row for s in range(1, 7) for at in STEPS for row in measures(s, at)]),
        "predictions": pl.DataFrame(predictions, infer_schema_length=None),
        "examples": pl.DataFrame(examples),
    }
    return found | {"claims": judge_lookups(LookupNumbers.of(found), {"seeds": [1]})}


def with_edit(shown, edit, change):
    """Models of the same seeds with an edit, whose losses differ by `change` ± 0.002 and whose k says nothing."""
    changed = pl.when(pl.col("measure") == "text_nats").then(pl.col("value") + change).otherwise(pl.col("value"))
    spread = pl.col("subject").str.tail(1).cast(pl.Int64) % 2 * 0.004 - 0.002
    changed += pl.when(pl.col("measure") == "text_nats").then(spread).otherwise(0.0)
    measures = shown["measures"].with_columns(value=changed, subject=pl.concat_str(pl.lit(f"{edit}-"), "subject"))
    last = shown["predictions"].filter(step=STEPS[-1])
    silent = pl.when(pl.col("site") == "k@2").then(4.0).otherwise(pl.col("shift_nats"))
    edited = last.with_columns(edit=pl.lit(edit), shift_nats=silent)
    names = [(f"lookup/{n}", 3.0) for n in range(1, 7)] + [(f"lookup/{edit}-seed-{n}", 3.25) for n in range(1, 7)]
    metrics = [
        {"run": run, "epoch": epoch, "split": "train", "name": "loss_nats", "value": value + (epoch == 1)}
        for run, value in names
        for epoch in (1, 2)
    ]
    return shown | {
        "measures": pl.concat([shown["measures"], measures]),
        "predictions": pl.concat([shown["predictions"].with_columns(edit=pl.lit("")), edited], how="diagonal"),
        "metrics": frame("metrics", metrics),
    }


@pytest.mark.parametrize(("change", "verdict"), [(0.01, "alike within ±0.02\u00a0nats"), (0.3, "different")])
def test_an_edited_model_is_compared_with_the_plain_one_of_its_seed(change, verdict):
    plain, shown = tables(), with_edit(tables(), "tie-k+v", change)
    both = findings(shown, ABOUT)
    assert [str(one) for one in both if "tie" not in one.measure] == [str(one) for one in findings(plain, ABOUT)]
    loss, excess = (one for one in both if "tie" in one.measure)
    assert (loss.measure, loss.values[1].mean) == ("loss_tie-k+v", pytest.approx(0.25))
    assert loss.values[0].mean == pytest.approx(change, abs=1e-9)
    assert verdict in loss.words
    assert {value.name: value.mean for value in excess.values} == pytest.approx({"q": 2.525, "k": 0.0, "v": 2.525})
    assert excess.words == (
        "induction heads form in 5 of 6 models, in 5 of 6 plain ones; own answers less their controls: q +2.525, k 0.000 and v +2.525 "
        "nats, plain q +2.525, k +2.525 and v +2.525."
    )
    section = page(shown, ABOUT).sections[2]
    assert [panel.title for panel in section.figures[0].panels] == ["Plain", "One matrix for k and v"]
    assert [row[0] for row in section.tables[0].rows] == [
        f"{edit}, seed {seed}" for edit in ("plain", "tie-k+v") for seed in range(1, 7)
    ]


@pytest.mark.parametrize(("second", "shows"), [(6.0, True), (4.4, False)])
def test_of_two_models_each_is_shown_and_has_to_exceed_its_controls(second, shows):
    shifts = {
        n: Shift(own=own, other=4.0, unrelated=3.0, residual=7.0, share=0.5, answered=1.0)
        for n, own in ((1, 9.0), (2, second))
    }
    numbers: Any = SimpleNamespace(shifts=lambda component: shifts)
    said = str(_role(numbers, "k"))
    assert said.startswith("The key says") == shows
    assert f"nats (+9.000 and +{second:.3f})" in said


def test_models_that_formed_are_those_whose_head_and_loss_say_so_to_the_end():
    numbers = LookupNumbers.of(tables())
    assert numbers.formed == {seed: float(step) for seed, step in FORMED.items()}
    assert (numbers.induction_head(1).layer, numbers.induction_head(1).head) == (2, 2)
    lost = tables()
    again = pl.when(pl.col("at") == 400, pl.col("measure") == "second_nats").then(6.9).otherwise(pl.col("value"))
    lost["measures"] = lost["measures"].with_columns(value=again)
    assert LookupNumbers.of(lost).formed == {}


def test_a_lead_is_over_the_largest_other_and_taken_up_where_half_of_it_is_there():
    numbers = LookupNumbers.of(tables())
    one = numbers.shift(2, "q", 400.0)
    assert one is not None
    assert (one.own, one.other, one.unrelated, one.residual) == pytest.approx((7.02, 4.0, 4.0, 6.0))
    assert {c: numbers.takes_up(3, c) for c in "qkv"} == {"q": 200, "k": 100, "v": 200}
    assert numbers.takes_up(6, "q") is None
    assert numbers.before(1) == 100
    assert [round(one.excess, 2) for one in numbers.shifts("q", early=True).values()] == [0.0] * 5


@pytest.mark.parametrize(("lead", "verdict"), [(3.0, "supported"), (0.2, "refuted")])
def test_only_what_exceeds_the_others_by_a_nat_in_five_models_is_supported(lead, verdict):
    claims = tables(lead)["claims"]
    whole = claims.filter(pl.col("part").is_null())
    assert whole["claim"].to_list() == ["G-1", "G-2"]
    assert whole["verdict"].to_list() == [verdict, verdict]
    parts = claims.filter(pl.col("claim") == "G-1", pl.col("part").is_not_null())
    assert parts["n"].to_list() == [5] * 9
    made = claims.filter(pl.col("claim") == "G-2", pl.col("part").is_not_null())
    assert made["effect"].to_list() == pytest.approx([lead + 0.03, lead + 0.03, 1.8 * (lead + 0.03), 0.0])
    assert parts.filter(pl.col("part").str.contains("unrelated"))["effect"].to_list() == pytest.approx(
        [lead + 0.03] * 3
    )


def test_the_page_begins_with_one_pair_and_says_each_role_beside_its_control():
    shown = tables()
    sheet = page(shown, ABOUT)
    assert "by +7.0, +7.0 and +7.0 nats; from an unrelated text by" in sheet.answer
    assert [section.title for section in sheet.sections][:4] == [
        "What do q, k and v say?",
        "What writes q, k and v?",
        "Which of them comes first?",
        "When do they learn to look up?",
    ]
    lines = sheet.sections[0].tables[0].rows
    assert [name for name, _ in lines] == ["base", "donor", "predicted", "came"]
    assert lines[2][1] == lines[3][1] == "q from the donor: q; k from the donor: k; v from the donor: v"
    said = [str(one) for one in findings(shown, ABOUT)]
    assert said[0].startswith("Induction heads formed in 5 of 6 models")
    assert all("+7.030" in line and "+4.000" in line for line in said[1:4])
    assert "through k +3.030" in said[4].replace("\u00a0", " ")
    assert "through q 0.000, through v 0.000; through k k's own answer gains +6.060 on it" in said[4]
    assert said[4].endswith("from an unrelated donor +0.606.")
    assert said[5] == (
        "Most to its own answer is put into q another head in 5, into k the previous-token head in 5 and into v another head in 5 "
        "of 5 models."
    )
    assert "k at step 180" in said[6]
    assert "first of the three is k in 5 of 5 models" in said[6]
    made = sheet.sections[1].tables[0].rows
    assert made[0][:6] == ("1", "1.h2 (0.90)", "0.000 of +3.010", "+3.010 of +3.010", "0.000 of +3.010", "+6.020")
    assert made[5][0] == "6 (not formed)"
    assert made[5][2] == "0.000 of 0.000"
    assert [panel.title for panel in sheet.sections[1].figures[0].panels] == [
        "Models that formed heads",
        "Models that did not",
    ]
    assert (
        "In the 1 model that did not form them it ends at q 0.000, k 0.000 and v 0.000 nats." in sheet.sections[2].words
    )
    assert "lookup-training" in html(sheet)


def test_a_pair_in_which_not_all_came_says_so_and_without_any_there_is_no_such_section():
    pair = page(tables(came="qk"), ABOUT).sections[0].tables[0]
    assert "In 0 of 2 pairs" in pair.caption
    bare = {name: table for name, table in tables().items() if name in ("measures", "claims")}
    assert page(bare, ABOUT).sections[0].title == "When do they learn to look up?"


def answers(shown):
    """What a dissection takes from such a study."""
    study: Any = SimpleNamespace(findings=findings(shown, ABOUT), about=ABOUT)
    return tuple(PARTS[0].says((study,)))


@pytest.mark.parametrize(("lead", "shows"), [(3.0, True), (0.2, False)])
def test_a_dissection_begins_with_the_pair_and_says_of_each_only_what_exceeds_its_controls(lead, shows):
    shown = tables(lead)
    facts = DissectFacts(
        (PartFacts("lookup", "Looking up", "What?", answers(shown), ("G-1",), {}),), "6 models", lookup="2 layers"
    )
    about = About("dissect", "trisect dissect", 1.0, (), {}, None, facts)
    sheet = dissect.page({**shown, "evidence": dissect.as_table(())}, about)
    text = html(replace(sheet, sections=sheet.sections[:1]))
    assert [text.index(word) for word in ("a b c a", "c d a c", "q from the donor: q;")] == sorted(
        text.index(word) for word in ("a b c a", "c d a c", "q from the donor: q;")
    )
    assert "Induction heads formed in 5 of 6 models" in text
    assert "Each is a model of 2 layers." in text
    said = dissect.findings({**shown, "evidence": dissect.as_table(())}, about)[:3]
    assert [(one.measure, one.groups) for one in said] == [("answer", (c,)) for c in "qkv"]
    for one in said:
        assert one.words.startswith("Not shown here: ") != shows
        assert "an unrelated donor&#39;s +4.000, with all of the donor&#39;s residual stream there +6.000" in text
    before = {**shown, "measures": shown["measures"].filter(pl.col("at") < 200)}
    bare = html(dissect.page({**before, "evidence": dissect.as_table(())}, about))
    assert "In 6 models no induction head formed" in bare
