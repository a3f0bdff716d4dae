"""Write results/interchange/README.md from the tables beside it: python tools/interchange.py"""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from minilm import table

from trisect.core.finding import ALIKE, Estimate
from trisect.core.tables import read_table
from trisect.experiments.patch.page import direction, read_sites
from trisect.report.format import spoken_subject
from trisect.report.measures import MeasuredValue, SiteMeasures
from trisect.stats.compare import compare

ROOT = Path(__file__).parents[1] / "results" / "interchange"
HEAD = """# Interchange: whose answer comes

q, k or v of one layer from a donor text in a base text, all positions. Written by `python tools/interchange.py` from the tables here.
Every folder holds `tables/` (Parquet), `figures/` and what was run, as JSON. Bindings and recall speak of one model of one seed, with
intervals over pairs; translation of five seeds of one recipe, recall-eight of eight and recall-course of three, with Student t intervals
over models. Under the tables of translation, recall-eight and recall-course q, k and v are compared by paired differences over models:
Student t, Holm over the three pairs of a row; *alike* is within 0.02.

Not here: MiniLM, which encodes sentences and answers nothing (`trisect patch --pairs` measures how far its output moves), and the
translators of the [Hansards](../alignment/README.md), since no words of those sentences have known roles.
"""
SAID = {
    "bindings": """## A language model that answers from its text

`python tools/bindings_model.py MODEL` trains it: a GPT-2 of two layers with one head of width 64 and a token a word, on texts in
which four names have four things, four boxes hold them, and so on, each with a question. The pairs below are drawn with another seed;
every pair's donor has the same names and things in another order, paired otherwise, and asks for another. Each of q, k and v predicts
an answer of its own: q the base's thing of the name that the donor asks for, k the base's thing where the donor has the name that the
base asks for, v the donor's thing where the base has that name.
""",
    "recall": """## A model that recalls where people were born

`trisect recall --data embedded --recipe embedded --seeds 1 --workers 0` trains it; MODEL is its folder `models/pretrained-1`.
What it knows lies in its weights, so that no place in the text is there for k and v to be about; the change is the way from the
base's to the donor's answer.
""",
}
STACKS = ("", "cross", "dec", "enc")
TRANSLATION = """## Translation models, five seeds

`trisect translate-train --seeds 5 --set pieces=2000 --out tr` trains them: two layers of encoder and of decoder, width 64, on the embedded
bitext of 4,000 pairs, each word one token. A pair is two source sentences of one length with targets begun as far as each other.
Queries of cross-attention are from the target, keys and values from the source: q from the donor predicts the base's word in the role that
the donor is about to translate, k the base's word at the place where the donor has the role that the base asks for, v the donor's word at
the place where the base has that role.
"""

TOGETHER = """## The same models, all of cross-attention at once

One layer's values bring their own answer in about a quarter of pairs. So do those of both layers: the rest is not in the other layer.
With q, k and v of all cross-attention from the donor, so that all that the decoder reads of the source is the donor's, the donor's answer
comes in two thirds of pairs, since the decoder's own words are still the base's. (Of q and k together only one or two pairs of a model
have an answer of their own: that row's own and unchanged answers say nothing.)
"""

LANGUAGE = """## Language models that a study trained, three seeds

`trisect study wikitext2-small --corpus wikitext-2 --only freeze --sites v@1 --seeds 3 --out lm` trains them: five layers of five heads,
width 100; MODEL are its baselines `lm/runs/baseline-…`. Each pair is a passage of WikiText-2 with four pairs of words (A B) in it and
one of the As again; B is to follow. The models answer none as stated, and every interval
of a logit change below holds 0, so that nothing here says what q, k and v do in looking up. Why they do not say B was not measured; the
little training is a guess. The pairs are of a version that put words and passages in lower case, where a vocabulary with capitals does
not know some of them; pairs are now in the text's own case
([decision](../../docs/decisions/0118-induction-pairs-and-layers-at-once.md)).
"""

LARGER = """## Larger language models, three seeds

The baselines of [wikitext2-large-freezing](../wikitext2-large-freezing/README.md), with the same kind of pairs in the text's own case:
five layers of width 200, one epoch of all of WikiText-2. They answer hardly any as stated, so that these models do not look up either,
and nothing here says what q, k and v do in looking up.
"""

LONGER = """## The same after three epochs, five seeds

The same kind of model after three epochs of all of WikiText-2: the baselines of
[wikitext2-large-freezing-three-epochs](../wikitext2-large-freezing-three-epochs/README.md), which are those of
[wikitext2-large](../wikitext2-large/README.md). Three times the training brought no looking up.
"""

EIGHT = """## Models that recall, eight seeds

`trisect recall --data embedded --recipe embedded --seeds 4-11 --workers 0` trains them ([recall](../recall/README.md)); MODEL are its
folders `models/pretrained-4` to `models/pretrained-11`. Whose place comes when the queries, the keys or the values are those of a
question about somebody else? These seeds were run after the rules had been written.
"""

COURSE = """## The course's people, three models that recall

`trisect recall --data birth-places --recipe small --seeds 2-4` trains them on the files of the course's assignment, which are not part of
this project ([recall](../recall/README.md)): three layers of six heads, width 192; MODEL are its folders `models/pretrained-2` to
`models/pretrained-4`. An answer counts as right by its first letter, so that some of the pairs that count have another place. Names and
places are not in the tables.
"""

COURSE_ALL = """## The course's people, all layers at once
"""


def models_part(name: str, head: str) -> list[str]:
    """What a folder of several models holds, as means over models."""
    folder = ROOT / name
    body = json.loads((folder / "patch.json").read_text(encoding="utf-8"))["body"]
    over = read_table(folder / "tables", "over_models").filter(pl.col("head").is_null())
    found: dict[str, dict[str, str]] = {}
    for row in over.sort("stack", "layer").iter_rows(named=True):
        if row["component"] is not None:
            one = MeasuredValue(*(row.get(name) for name in MeasuredValue._fields))
            found.setdefault(one.site, {})[one.measure] = spoken_subject(one, False)
    order = sorted(found, key=_place)
    kinds = [m for m in COLUMNS if any(m in of for of in found.values())]
    rows = [[site, *(found[site].get(m, "–") for m in kinds)] for site in order]
    notes = [f"{note}\n" for note in body["notes"]]
    if name.startswith("language-models"):
        notes += answered_part(read_table(folder / "tables", "measures"))
    return [head, f"`{body['command']}`", "", *notes, *table(["site", *(COLUMNS[m] for m in kinds)], rows)]


def answered_part(measures: pl.DataFrame) -> list[str]:
    """How many of a language model's texts are answered as stated: mean, least and most over models."""
    lines = []
    for (asked,), own in measures.filter(measure="answered").group_by("n", maintain_order=True):
        cells = []
        for group in ("base", "donor"):
            counts = own.filter(group=group)["value"] * asked
            cells.append(f"{counts.mean():.1f} ({counts.min():.0f} to {counts.max():.0f})")
        lines.append([f"answered as stated, of {asked}", *cells, str(own["model"].n_unique())])
    return table(["mean over models (least to most)", "base texts", "donor texts", "models"], lines)


ASKED = {
    "translation": "own",
    "translation-all": "own",
    "recall-eight": "donor",
    "recall-course": "donor",
    "recall-course-all": "donor",
}


def compared_part(measures: pl.DataFrame, asked: str) -> list[str]:
    """q, k and v of each layer compared over models: the share of answers that is asked for, and the change of the logit difference."""
    rows = measures.filter(pl.col("head").is_null(), pl.col("component").is_in(["q", "k", "v"]))
    lines = []
    for measure in (asked, "logit_change"):
        own = rows.filter(measure=measure).sort("stack", "layer", "group", "model", nulls_last=True)
        for (stack, layer, group), at in own.group_by("stack", "layer", "group", maintain_order=True):
            values = at.pivot(on="component", index="model", values="value").drop_nulls().sort("model")
            found = compare({c: values[c].to_list() for c in "qkv"}, ALIKE)
            layers = MeasuredValue("", "plain", layer, None, "q", "", group, None, 0.0).spot
            site = ("" if stack == "plain" else f"{stack}, ") + f"layer{'s' * (not layers.isdigit())} {layers}"
            pairs = "; ".join(
                f"{p.first} − {p.second} {spoken_subject(Estimate('', p.effect, p.low, p.high))}, p {p.p_holm:.2g}"
                for p in found.pairs
            )
            lines.append([site, COLUMNS[measure], found.words("model"), pairs])
    return ["", *table(["q, k, v compared", "measure", "", "differences (95 %), p after Holm"], lines)]


def _place(site: str) -> tuple[int, str, int]:
    """Sort key: stack, layer, component."""
    stack, _, place = site.rpartition(".")
    return STACKS.index(stack), site[-1], 3 * place.count("+") + "qkv".find(place[0])


COLUMNS = {
    "own": "own answer",
    **{f"as {name}": f"as {name}" for name in "qkv"},
    "unchanged": "unchanged",
    "donor": "donor's answer",
    "logit_change": "logit change",
}


def cell(site: SiteMeasures, measure: str) -> str:
    """A number with its interval."""
    one = site.numbers.get(measure)
    return "–" if one is None or one.mean is None else spoken_subject(one, False)


def section(name: str) -> list[str]:
    """What one folder holds."""
    folder = ROOT / name
    body = json.loads((folder / "patch.json").read_text(encoding="utf-8"))["body"]
    measures = read_table(folder / "tables", "measures")
    sites = read_sites(measures)
    kinds = [m for m in COLUMNS if any(s.numbers.get(m) is not None for s in sites)]
    answered = {row["group"]: row["value"] for row in measures.filter(measure="answered").iter_rows(named=True)}
    said = ", ".join(f"{100 * share:.0f} % of {which} texts" for which, share in answered.items())
    both = len({direction(site) for site in sites}) > 1
    into = {"denoise": "", "noise": ", the base's into the donor"}
    rows = [[site.site + (into[direction(site)] if both else ""), *(cell(site, m) for m in kinds)] for site in sites]
    return [
        SAID[name],
        f"`{body['command']}`",
        "",
        *(f"{note}\n" for note in body["notes"]),
        f"Unpatched it answers {said} as stated; {body['counted']} of {body['pairs']} pairs count.",
        "",
        *table(["site", *(COLUMNS[m] for m in kinds)], rows),
    ]


def page() -> str:
    """The page, of every folder that is there."""
    lines = [HEAD, *(line for name in SAID if (ROOT / name).is_dir() for line in section(name))]
    several = {
        "recall-eight": EIGHT,
        "recall-course": COURSE,
        "recall-course-all": COURSE_ALL,
        "translation": TRANSLATION,
        "translation-all": TOGETHER,
        "language-models": LANGUAGE,
        "language-models-large": LARGER,
        "language-models-three-epochs": LONGER,
    }
    for name, head in several.items():
        lines += ["", *models_part(name, head)]
        if name in ASKED:
            lines += compared_part(read_table(ROOT / name / "tables", "measures"), ASKED[name])
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "README.md").write_text(page(), encoding="utf-8")
