"""The sentences of a study's report, made from its rows alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trisect.claims import claims_hash
from trisect.core.finding import Comparison, Estimate, Finding
from trisect.core.methods import METHODS
from trisect.experiments.study.rows import StudyRows
from trisect.measure.criticality import NODES, TOLERANCE
from trisect.papers.submodules import SOURCE
from trisect.report.format import (
    FEW,
    Mean,
    Point,
    by_component,
    by_site,
    count,
    decimals,
    ends,
    extreme,
    listed,
    number,
    of_seeds,
    order,
    paired,
    place,
    several,
    spoken,
)

VALID = "change of the validation loss"
MEANT = "mean over layers"
BEYOND = "Beyond the paper"  # in place of a number: of figures that the paper has not
SPLIT = {"train": "train", "valid": "validation"}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
LABELS = {"pos": "POS", "dep": "DEP"}


def seeds(rows: StudyRows) -> str:
    """`n = 3 seeds`, for a caption."""
    return f"n\u00a0=\u00a0{several(len(rows.seeds), 'seed')}"


def fitted(rows: StudyRows, kind: str, label: str) -> str:
    """On which text the probes ('probe') or erasers ('erase') of a label were fitted, as an apposition of a caption.

    Rows that say nothing of folds are of studies whose probes and erasers were fitted on train.
    """
    articles = [p.value for p in rows.measure(f"{kind}_articles", "valid", label)]
    if not articles:
        return "fitted on the text that the model was trained on"
    units = ", which are the units of intervals too" if kind == "erase" else ""
    dealt = f"by rows of a window{units}: articles are not marked, or are too uneven in length to be dealt whole"
    said = "fitted on other parts of the held-out text (cross-fitted, "
    said += f"{'by whole articles' if min(articles) > 0 else dealt})"
    if kind == "probe":
        return said
    stated = (rows.about.get("experiment") or {}).get("erase") or {}
    return f"{said}, with the covariance {'' if stated.get('shrinkage', True) else 'not '}shrunk"


def label_name(label: str) -> str:
    """A label column as a reader knows it."""
    return LABELS.get(label, label)


def extremes(points: Sequence[Point], unit: str, signed: bool = True) -> str:
    """Where the mean is highest and where it is lowest, as it stands after a subject; ties are said as ties.

    Numbers that have no sign of their own are called largest and smallest.
    """
    means = by_site(points)

    def bare(mean: Mean) -> str:
        return number(mean.mean, signed) + (f"\u00a0{unit}" if unit else "")

    def where(sites: Sequence[str]) -> str:
        mean = means[sites[0]]
        if len(sites) == 1:
            return f"at {sites[0]}, {spoken(mean, unit, signed)}"
        these = listed(sites) if len(sites) <= FEW else f"{len(sites)} of {several(len(means), 'site')}"
        return f"{bare(mean)} at {these}"

    top, low = extreme(means, 1), extreme(means, -1)
    if len(means) == 1:
        return f"at {top[0]} it is {spoken(means[top[0]], unit, signed)}."
    if len(top) == len(means):
        return f"the same at all {several(len(means), 'site')}: {bare(means[top[0]])}."
    high_word, low_word = ("highest", "lowest") if signed else ("largest", "smallest")
    return f"{high_word} {where(top)}; {low_word} {where(low)}."


WIDE = "At whole width q, k and v of a layer hold the same of a label, and an attack reaches the layers below: no order is read from this."
MARGINS = {"α": 0.05}  # five steps of the grid; of everything else, 0.02 of its unit
MARGIN = 0.02


def ranking(points: Sequence[Point], unit: str, ranks: bool = True, layers: str = "layers") -> str:
    """The components' means over layers, and what paired differences over seeds say of them; empty with fewer than two."""
    means = by_component(points)
    if len(means) < 2:
        return ""
    said = f"Mean over {layers}: {listed([f'{g} {number(m.mean, True)}' for g, m in means.items()])}"
    found = comparison(points, unit)
    return f"{said}: {found.words()}." if ranks and found is not None else f"{said}. {WIDE}"


def comparison(points: Sequence[Point], unit: str) -> Comparison | None:
    """What the components' means over layers say of each other, by paired differences over seeds."""
    return paired(of_seeds(points), MARGINS.get(unit, MARGIN))


class Method(NamedTuple):
    """One method that the study has numbers of: how it is drawn, its title, what its numbers are, and its points.

    `measure` is its findings' word, `noun` and `what` name the number in a table; `label` is the column that is attacked.
    Where it `ranks`, its numbers say which component is largest.
    """

    kind: str
    title: str
    unit: str
    points: list[Point]
    measure: str
    noun: str
    what: str
    label: str = ""
    ranks: bool = True


def methods(rows: StudyRows) -> list[Method]:
    """What the answer's panels show, for each method that the study has."""
    found = []
    for label in rows.labels:
        noun, points = label_name(label), rows.effects("attack", "valid", label)
        found.append(Method("attack", f"Attack on {noun}", "nats", points, "attack", noun, VALID, label, ranks=False))
    points, what = rows.measure("criticality", "train"), "distance from the initial weights that is needed"
    found.append(Method("criticality", "Criticality", "α", points, "criticality", "", what))
    for title, measure, name, noun in (
        ("Rewinding area", "rewinding", "rewind_area", "initial weights"),
        ("Mid-stage area", "midstage", "midstage_area", "weights of every epoch"),
    ):
        points = rows.measure(name, "train")
        found.append(Method("area", title, "nats", points, measure, noun, "area under the rise of the train loss"))
    points = rows.effects("freeze", "valid")
    found.append(Method("freeze", "Freezing", "nats", points, "freezing", "", VALID))
    points = rows.measure("ablate_rise_nats", "valid")
    found.append(Method("ablate", "Mean ablation", "nats", points, "ablation", "replaced by its mean", VALID))
    return [method for method in found if method.points]


LEADS = {
    "attack": "change of the validation loss against the baseline,",
    "criticality": "how far a site must come from its initial to its final weights until the train loss stays near the final one,",
    "area": "rise of the train loss on the way from the initial to the final weights, mean over that way,",
    "freeze": "change of the validation loss against the baseline when the site keeps its initial weights,",
    "ablate": "rise of the trained baseline's validation loss when the site is its mean over train everywhere,",
}


SIGNED = ("attack", "freeze", "ablate")


def findings(rows: StudyRows) -> Iterator[Finding]:
    """For each method what its rows say: where its numbers are largest and smallest, and its components' means."""
    for method in methods(rows):
        own = (method.title, LEADS[method.kind], method.points, method.unit, method.what, method.label, method.ranks)
        shown, signed = "" if method.kind == "criticality" else method.unit, method.kind in SIGNED
        yield finding(rows, method.measure, *own, noun=method.noun, shown=shown, signed=signed, source=SOURCE.key)


def finding(
    rows: StudyRows,
    measure: str,
    title: str,
    start: str,
    every: Sequence[Point],
    unit: str,
    what: str,
    label: str,
    ranks: bool,
    noun: str | None = None,
    shown: str | None = None,
    signed: bool = True,
    source: str = "",
) -> Finding:
    """Extremes over sites and means of components, after `start`; about the label `noun`, where that is not the label's own name.

    Where it `ranks`, components are compared; how much of a label is there at whole width never does (definitions A4).
    Nothing is read of sites where a run collapsed.
    """
    points, alike = rows.readable(every), rows.comparable(every)
    shown = ("" if unit.startswith("of ") else unit) if shown is None else shown
    compared = comparison(alike, unit) if ranks else None
    left, whole = ({place(p.site).layers for p in some if place(p.site).single} for some in (alike, every))
    layers = "layers" if left == whole else f"layer{'s' * (len(left) != 1)} {listed(sorted(left))}"
    said = f"{extremes(points, shown, signed)} {ranking(alike, unit, ranks, layers)}" if points else NOTHING
    return Finding(
        measure,
        f"{start} {said.strip()}{from_collapsed(rows, every)}",
        unit,
        estimates(alike),
        "" if compared is None else compared.words(),
        source,
        title=title,
        what=", ".join(filter(None, (label_name(label) if noun is None else noun, what, MEANT))),
        groups=(label,) if label else (),
        per="seed",
        compared=compared,
    )


def estimates(points: Sequence[Point]) -> tuple[Estimate, ...]:
    """Every component's mean over layers within each seed, then over seeds."""
    return tuple(Estimate(name, *mean) for name, mean in by_component(points).items())


def lead(rows: StudyRows) -> str:
    """How many methods put which component first, by paired differences over seeds; empty where there is nothing to compare."""
    sorts: dict[str, list[str]] = {}
    for one in methods(rows):
        if one.ranks and (found := comparison(one.points, one.unit)) is not None:
            said = "too uncertain" if found.kind == "uncertain" else found.words()
            sorts.setdefault(said, []).append(one.title)
    if not sorts:
        return ""
    tallied = listed([f"{len(titles)}: {said} ({', '.join(titles)})" for said, titles in sorts.items()])
    alone = " One seed says nothing of chance." if len(rows.seeds) == 1 else ""
    return f"Of {several(sum(map(len, sorts.values())), 'method')} that can rank q, k and v, {tallied}.{alone}"


def budget(rows: StudyRows) -> str:
    """What was spent: epochs, optimizer and rate, the attacks' own epochs and strengths, seeds."""
    training = (rows.about.get("experiment") or {}).get("training") or {}
    epochs, optimizer = training.get("epochs", 0), OPTIMIZERS.get(training.get("optimizer", ""), "–")
    said = [f"{several(epochs, 'epoch')} of {optimizer} at rate {training.get('rate', '–')}"]
    if rows.strengths:
        short = [several(n, "epoch") for n in rows.attack_epochs if n != epochs]
        strengths = f"λ = {listed([f'{s:g}' for s in rows.strengths])}"
        said.append(f"attacks {f'for {short[0]} ' if short else ''}with {strengths}")
    return ", ".join([*said, several(len(rows.seeds), "seed")])


def attacked(rows: StudyRows) -> str:
    """With which strength, and for how long, the attacks that the answer shows were made; empty without attacks."""
    if rows.strength is None:
        return ""
    others = [s for s in rows.strengths if s != rows.strength]
    also = f" (also run: {listed([f'{s:g}' for s in others])})" if others else ""
    long = listed([several(n, "epoch") for n in rows.attack_epochs])
    return f" Attacks are shown with λ = {rows.strength:g}{also}, after {long}."


def from_diverged(points: Sequence[Point]) -> str:
    """How many of the values rest on a diverged run, and what became of them; empty where none does."""
    many = sum(p.diverged for p in points)
    said = (
        f" {many} of {several(len(points), 'value')} {'comes' if many == 1 else 'come'} from diverged runs; the final loss of such a "
        "run is the last finite one, clipped at the loss at initialisation."
    )
    return said if many else ""


NOTHING = "not read."


def from_collapsed(rows: StudyRows, points: Sequence[Point], paired: bool = False) -> str:
    """How many of the values' runs collapsed, and what is not read for it; empty where none did.

    Of `paired` values those are not compared of which either one's run collapsed, else nothing is read of the sites.
    """
    fell = [p for p in points if p.run in rows.collapsed]
    if not fell:
        return ""
    many, sites = len({p.run for p in fell}), len({p.site for p in fell})
    theirs = "its site" if many == 1 else "their site" if sites == 1 else f"their {sites} sites"
    left = "sites where one did are not compared" if paired else f"nothing is read from {theirs}"
    return f" {several(many, 'run')} collapsed, that is, never fell clearly below the unigram loss: {left}."


def left_out(rows: StudyRows) -> list[str]:
    """What the paper has and this study has not, in words."""
    parts = {
        "attacks on POS (figures 3 and 4)": "pos" in rows.labels,
        "attacks on DEP (figures 5 and 6)": "dep" in rows.labels,
        "convex rewinding (figures 8 and 9)": rows.measure("rewind_loss_nats", "train"),
        "mid-stage rewinding (figure 10)": rows.measure("midstage_loss_nats", "train"),
        "freezing (figures 11 and 12)": rows.curves("freeze", "valid"),
    }
    return [name for name, there in parts.items() if not there]


POINTS = "percentage points, valid"
Columns = list[tuple[str, str]]  # title, unit


def numbers(rows: StudyRows) -> tuple[Columns, list[tuple[str, list[tuple[str, str]]]]]:
    """The answer's picture as a table: a title and a unit for each column, a row of cells (mean, interval) for each site.

    A column for each method, and for the changes of accuracy in percentage points that attacks, freezing and α = 0 make.
    """
    accuracies = {
        f"Attack on {label_name(label)}: accuracy": rows.readable(
            rows.effects("attack", "valid", label, name="accuracy")
        )
        for label in rows.labels
    }
    accuracies["Initial weights (α = 0): accuracy"] = rows.rewound("rewind_accuracy")
    accuracies["Freezing: accuracy"] = rows.effects("freeze", "valid", name="accuracy")
    columns = [(m.title, m.unit, m.kind in SIGNED, by_site(rows.readable(m.points))) for m in methods(rows)]
    for title, points in accuracies.items():
        if points:
            columns.append((title, POINTS, True, by_site(p._replace(value=100 * p.value) for p in points)))
    places = [2 if unit == POINTS else decimals([m.mean for m in means.values()]) for _, unit, _, means in columns]

    def cell(mean: Mean | None, signed: bool, digits: int) -> tuple[str, str]:
        if mean is None:
            return "–", ""
        return number(mean.mean, signed, digits), "" if mean.low is None else ends(mean, signed, digits)

    return [(title, unit) for title, unit, *_ in columns], [
        (site, [cell(c[3].get(site), c[2], digits) for c, digits in zip(columns, places, strict=True)])
        for site in sorted({site for *_, means in columns for site in means}, key=order)
    ]


SECTIONS = ("text", "model", "training", *METHODS)


def study(rows: StudyRows) -> dict[str, Any]:
    """What the head, the cards and the last section say about the study; `today` is the hash of today's claims, `changed` that runs
    carry another.
    """
    experiment, corpus = rows.about.get("experiment") or {}, rows.about.get("corpus") or {}
    model, splits = experiment.get("model") or {}, corpus.get("splits") or {}
    states = rows.runs["status"].value_counts().sort("status").rows()
    seconds, precision = rows.about.get("wall_seconds"), rows.about.get("precision", "float32")
    # Runs name their text as NAME:FINGERPRINT; the fingerprint alone says whether it is the same text.
    texts = {*rows.runs["corpus"].drop_nulls().unique().to_list(), corpus.get("fingerprint", "–")}
    hashes = [mark for mark in rows.runs["claims_hash"].drop_nulls().unique().sort().to_list() if mark]
    made_by = [json.loads(text) for text in rows.runs["versions"].drop_nulls().unique().sort().to_list()]
    made_by = [versions for versions in made_by if versions] or [rows.about.get("versions") or {}]
    settings = [
        (name, [(key, _setting(key, part[key])) for key in sorted(part)])
        for name in SECTIONS
        if (part := experiment.get(name))
    ]
    if edits := experiment.get("edits"):
        settings.append(("edits", [_edit(one) for one in edits]))
    return {
        "model": f"{several(model.get('layers', 0), 'layer')}, {several(model.get('heads', 0), 'head')}, width {model.get('width', '–')}",
        "corpus": (
            f"{corpus.get('name', '–')} ({count(splits.get('train'))} train and {count(splits.get('valid'))} validation tokens, "
            f"{count(corpus.get('types'))} types)"
        ),
        "budget": budget(rows),
        "seeds": listed([str(s) for s in rows.seeds]) or "–",
        "runs": ", ".join(f"{count(n)} {state}" for state, n in states) or "none",
        "hashes": hashes,
        "today": claims_hash(),
        "many": len(rows.seeds) > 1,
        "changed": any(mark != claims_hash() for mark in hashes),
        "fingerprints": sorted({text.rpartition(":")[2] for text in texts}),
        "wall": _duration(seconds) if seconds else "–",  # none where nobody noted them
        "products": "" if precision == "float32" else f", with {precision} products in training",
        "versions": [", ".join(f"{name} {one[name]}" for name in sorted(one)) or "–" for one in made_by],
        "settings": settings,
    }


def _setting(name: str, value: Any) -> str:
    """One setting in words; what is None is said as what it stands for."""
    if value is None:
        return "as in training" if name == "epochs" else "all"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _edit(edit: Mapping[str, Any]) -> tuple[str, str]:
    """One edit of its own as its kind, and its site and settings in words."""
    own = [f"{name} {edit[name]}" for name in sorted(edit) if name not in ("kind", "site") and edit[name] is not None]
    return edit["kind"], ", ".join((edit["site"], *own))


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def exactness(rows: StudyRows) -> tuple[str, Columns, list[tuple[str, list[str]]]] | None:
    """What the tables say about the curves of figure 8, on the train split: sentences, columns, and cells by site.

    Null without such rows.
    """
    spent = rows.measure("rewind_evaluations", "train")
    if not spent:
        return None
    checks, nodes = rows.measure("rewind_check_nats", "train"), rows.measure("rewind_nodes", "train")
    bands = {  # intervals over sampled rows
        "Rise at α = 0": _band(rows, "rewind_rise_low_nats", "rewind_rise_high_nats"),
        "Area": _band(rows, "rewind_area_low", "rewind_area_high"),
    }
    bands = {title: band for title, band in bands.items() if band}
    how = (rows.about.get("experiment") or {}).get("rewind")
    points = len({p.at for p in rows.measure("rewind_loss_nats", "train")})
    columns = [
        ("Evaluations", f"for {several(points, 'value')} of α, by seed"),
        ("Largest disagreement", "nats, between two interpolants"),
    ]
    columns += [("Nodes of the last interpolant", "by seed")] if nodes else []
    columns += [(title, "nats, 95 % over rows, by seed") for title in bands]
    table = []
    for site in sorted({p.site for p in spent}, key=order):
        worst = [p.value for p in checks if p.site == site]
        cells = [_span(spent, site), number(max(worst)) if worst else "–"]
        cells += [_span(nodes, site)] if nodes else []
        table.append((site, cells + ["; ".join(band.get(site, ["–"])) for band in bands.values()]))
    if (how["mode"] if how else "adaptive") == "exact":
        said = f"Every one of the {several(points, 'value')} of α was evaluated; nothing is interpolated."
    else:
        said = (
            f"The losses at {several(points, 'value')} of α come from {_span(spent)} evaluations per site and seed; where α itself "
            f"was not evaluated, they lie on polynomials through {listed([str(n) for n in NODES])} nested Chebyshev nodes, refined "
            f"until two of them agree within {TOLERANCE:g} nats everywhere. Points beside a crossing of the tolerance of "
            "criticality are always evaluated."
        )
        # 0: nothing is interpolated; some committed tables have no such rows
        last = {(p.site, p.seed): p.value for p in nodes}
        every = [p for p in spent if (last[p.site, p.seed] == 0 if (p.site, p.seed) in last else p.value >= points)]
        if full := sorted({p.site for p in every}, key=order):
            said += f" At {listed(full)} no two agreed in some seed, and every α was evaluated there."
        if checks:
            most = max(checks, key=lambda p: p.value)
            said += f" The largest disagreement of the last two was {number(most.value)} nats ({most.site}, seed {most.seed})."
    if bands:
        sample = how.get("sample_tokens") if how else None
        size = f" ({count(sample)} tokens of each split)" if sample else ""
        said += (
            f" Losses are those of a sample of whole rows{size}, the same rows at every α, site and seed; the intervals in "
            "the table say where the rise over all rows would lie, α by α."
        )
    return said, columns, table


def _band(rows: StudyRows, low: str, high: str) -> dict[str, list[str]]:
    """Each seed's interval in words, by site: of an area, or of what is measured at α = 0."""
    lows, highs = ([p for p in rows.measure(end, "train") if p.at in (None, 0.0)] for end in (low, high))
    high_of, found = {(p.site, p.seed): p.value for p in highs}, dict[str, list[str]]()
    for p in lows:
        if (p.site, p.seed) in high_of:
            said = f"{number(p.value, True)} to {number(high_of[p.site, p.seed], True)}"
            found.setdefault(p.site, []).append(said)
    return found


def _span(points: list[Point], site: str | None = None) -> str:
    mine = sorted(int(p.value) for p in points if site in (None, p.site))
    if not mine:
        return "–"
    return count(mine[0]) if mine[0] == mine[-1] else f"{count(mine[0])} to {count(mine[-1])}"
