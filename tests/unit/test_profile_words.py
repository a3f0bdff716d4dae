"""What a profile says of its rows: sentences by rule, where nothing is carried, and layers as words."""

from trisect.core.finding import About
from trisect.core.tables import frame
from trisect.experiments.profile.page import COMPONENTS, PAIRS, findings
from trisect.experiments.profile.settings import ProfileFacts
from trisect.report.maps import label_maps

NULL = 0.5


def rows(gains, label="position", whole=0.8, majority=0.3):
    """Rows of layers whose q, k and v lie so far above random maps; a gain of a tenth or more is beyond doubt."""
    for layer, three in enumerate(gains, start=1):
        of = {"subject": "m", "stack": "plain", "layer": layer, "group": label, "n": 12}
        yield of | {"measure": "profile_input", "value": whole}
        yield of | {"measure": "profile_majority", "value": majority}
        for c, gain in zip(COMPONENTS, three, strict=True):
            p = 0.001 if abs(gain) >= 0.1 else 0.5
            yield of | {"component": c, "measure": "profile_random", "value": NULL, "low": NULL, "high": NULL}
            yield of | {"component": c, "measure": "profile_accuracy", "value": NULL + gain}
            yield of | {"component": c, "measure": "profile_gain", "value": gain, "low": gain, "high": gain}
            yield of | {"component": c, "measure": "profile_gain_p_holm", "value": p}
    of = {"subject": "m", "stack": "plain", "group": label, "n": 36}
    means = [sum(column) / len(gains) for column in zip(*gains, strict=True)]
    named = {**dict(zip(COMPONENTS, means, strict=True))}
    for pair in PAIRS:
        named[pair] = named[pair[0]] - named[pair[2]]
    for c, gain in named.items():
        measure = "profile_difference" if "-" in c else "profile_gain"
        p = 0.001 if abs(gain) >= 0.05 else 0.5
        yield of | {"component": c, "measure": measure, "value": gain, "low": gain, "high": gain}
        yield of | {"component": c, "measure": f"{measure}_p_holm", "value": p}


def said(*given):
    table = frame("measures", (row for one in given for row in one))
    labels = tuple(dict.fromkeys(table["group"]))
    facts = ProfileFacts("m", "", "c", "", 1, 1, 1, labels, (), "layer", 200, 5, 0, None)
    about = About("profile", "", 0.0, (), {}, None, facts)
    return findings({"measures": table, "claims": frame("claims", ())}, about)


def test_who_keeps_it_who_drops_it_and_where():
    (answer, one) = said(rows([(0.2, 0.1, -0.1), (0.3, 0.1, 0.0), (0.2, 0.0, -0.2)]))
    assert str(one) == (
        "position: queries and keys keep it, values drop it. Above random maps by 0.02 or more: q in every layer, "
        "k in layers 1–2; below random maps by 0.02 or more: v in layers 1, 3. Clearest in layer 2, "
        "probe accuracy: q 0.800, k 0.600, v 0.500, random maps 0.500."
    )
    assert one.comparison == "q > v, k > v, q > k"
    assert [(e.name, round(e.mean or 0.0, 3)) for e in one.values] == [("q", 0.233), ("k", 0.067), ("v", -0.1)]
    assert answer.words.endswith("heads: queries keep position; keys keep position; values drop position.")


def test_differences_that_are_not_clear_are_not_said():
    (one,) = said(rows([(0.01, 0.0, -0.01), (0.0, 0.01, 0.0)]))
    assert one.words.startswith(
        "neither kept nor dropped over all heads together. In no layer does a mean over heads lie 0.02 or more from random maps after Holm."
    )
    assert one.comparison == "alike, or too uncertain"


def test_what_no_layer_carries_is_neither_kept_nor_dropped():
    (one,) = said(rows([(0.2, 0.2, -0.2)], whole=0.31))
    assert one.words.startswith(
        "not carried: in no layer does a linear probe of the whole input tell its position in the text"
    )


def test_a_label_that_some_layers_carry_names_the_others():
    table = [*rows([(0.2, 0.1, -0.1), (0.2, 0.1, -0.1)])]
    for row in table:
        if row.get("layer") == 2 and row["measure"] == "profile_input":
            row["value"] = 0.3
    assert str(said(table)[1]).endswith("Not carried in layer 2.")


def test_a_map_of_labels_marks_and_says_its_ends():
    cells = [("q", "1", "pos", 0.2, True), ("q", "2", "pos", -0.1, False), ("q", "2", "dep", float("nan"), False)]
    figure = label_maps(("n", "Figure 1", "t"), "c", cells, "accuracy")
    (panel,) = figure.panels
    assert panel.alt == (
        "q: queries: heat map of labels by layer, in accuracy. Highest 0.2 for pos at layer 1, lowest -0.1 for pos at layer 2. 1 marked."
    )
    assert figure.ramp == (-0.2, 0.2, "accuracy")
