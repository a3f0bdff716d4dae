"""The sentences of a study's report, computed from its rows alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from trisect.claims import claims_hash
from trisect.core.finding import Comparison, Estimate, Finding
from trisect.core.methods import METHODS
from trisect.experiments.study.rows import StudyRows
from trisect.measure.criticality import NODES, TOLERANCE
from trisect.papers.submodules import SOURCE
from trisect.report import format as words

VALID = "change of the validation loss"
LAYER_MEAN = "mean over layers"
BEYOND = "Beyond the paper"  # in place of a number, for figures that the paper does not have
SPLIT = {"train": "train", "valid": "validation"}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
LABELS = {"pos": "POS", "dep": "DEP"}


def seeds(rows: StudyRows) -> str:
    """`n = 3 seeds`, for a caption."""
    return words.sample(len(rows.seeds), "seed")


def fit_words(rows: StudyRows, kind: str, label: str) -> str:
    """The text that probes ('probe') or erasers ('erase') of a label were fitted on, as a clause of a caption.

    Without rows of folds, they were fitted on the train split.
    """
    articles = [p.value for p in rows.measure(f"{kind}_articles", "valid", label)]
    if not articles:
        return "fitted on the text that the model was trained on"
    units = ", which are the units of intervals too" if kind == "erase" else ""
    uneven = f"by rows of a window{units}: articles are not marked, or are too uneven in length to stay whole"
    folds = "by whole articles" if min(articles) > 0 else uneven
    text = f"fitted on other parts of the held-out text (cross-fitted, {folds})"
    if kind == "erase":
        text += f", with the covariance {'' if rows.statement('erase').get('shrinkage', True) else 'not '}shrunk"
    return text


def label_name(label: str) -> str:
    """The display name of a label column."""
    return LABELS.get(label, label)


def extremes(points: Sequence[words.Point], unit: str, signed: bool = True) -> str:
    """The sites with the highest and the lowest mean, as a predicate; without a sign, the largest and smallest."""
    means = words.by_site(points)
    bare = {s: words.number(m.mean, signed) + (f"\u00a0{unit}" if unit else "") for s, m in means.items()}
    top, low = words.extreme(means, 1), words.extreme(means, -1)
    if len(means) == 1:
        return f"at {top[0]} it is {words.mean_words(means[top[0]], unit, signed)}."
    count_words = words.quantity(len(means), "site")
    if len(top) == len(means):
        return f"the same at all {count_words}: {bare[top[0]]}."
    parts = []
    for word, sites in zip(("highest", "lowest") if signed else ("largest", "smallest"), (top, low), strict=True):
        if len(sites) == 1:
            parts.append(f"{word} at {sites[0]}, {words.mean_words(means[sites[0]], unit, signed)}")
        else:
            names = words.join_words(sites) if len(sites) <= words.FEW_UNITS else f"{len(sites)} of {count_words}"
            parts.append(f"{word} {bare[sites[0]]} at {names}")
    return f"{'; '.join(parts)}."


FULL_WIDTH_NOTE = (
    "At full width q, k and v of a layer encode the same of a label, and an attack reaches the layers below: this is no "
    "ranking."
)
MARGINS = {"α": 0.05}  # five steps of the grid; for all other units 0.02
MARGIN = 0.02


def ranking(points: Sequence[words.Point], unit: str, ranks: bool = True, layers: str = "layers") -> str:
    """The components' means over layers, and their comparison by paired differences over seeds; empty with fewer than two."""
    means = words.by_component(points)
    if len(means) < 2:
        return ""
    text = f"Mean over {layers}: {words.join_words([f'{g} {words.number(m.mean, True)}' for g, m in means.items()])}"
    compared = comparison(points, unit)
    return f"{text}: {compared.words()}." if ranks and compared is not None else f"{text}. {FULL_WIDTH_NOTE}"


def comparison(points: Sequence[words.Point], unit: str) -> Comparison | None:
    """The components' means over layers compared, by paired differences over seeds."""
    return words.compare_by_seed(words.of_seeds(points), MARGINS.get(unit, MARGIN))


class Method(NamedTuple):
    """A method with numbers in the study: its kind of figure, title, unit and points.

    `measure` is the measure of its findings, `noun` and `what` name the number in a table, `start` begins the sentence about it;
    `label` is the attacked column. If it `ranks`, its numbers can be compared between components.
    """

    kind: str
    title: str
    unit: str
    points: list[words.Point]
    measure: str
    noun: str
    what: str
    start: str
    label: str = ""
    ranks: bool = True

    @property
    def signed(self) -> bool:
        """Whether its numbers are changes; else they are distances and areas."""
        return self.kind not in ("criticality", "area")


def methods(rows: StudyRows) -> list[Method]:
    """Every method with numbers in the study, as the answer's panels show them."""
    attack = f"{VALID} against the baseline,"
    distance = "how far a site has to move from its initial to its final weights until the train loss stays near the final one,"
    area = "rise of the train loss on the way from the initial to the final weights, mean over that way,"
    under, needed = "area under the rise of the train loss", "distance from the initial weights that is needed"
    criticality, rewinding = rows.measure("criticality", "train"), rows.measure("rewind_area", "train")
    midstage = rows.measure("midstage_area", "train")
    freezing, ablation = rows.effects("freeze", "valid"), rows.measure("ablate_rise_nats", "valid")
    freeze = f"{VALID} against the baseline when the site keeps its initial weights,"
    ablate = "rise of the trained baseline's validation loss when the site is its mean over train everywhere,"
    every = [
        Method("attack", f"Attack on {noun}", "nats", points, "attack", noun, VALID, attack, label, ranks=False)
        for label in rows.labels
        for noun, points in [(label_name(label), rows.effects("attack", "valid", label))]
    ]
    every += [
        Method("criticality", "Criticality", "α", criticality, "criticality", "", needed, distance),
        Method("area", "Rewinding area", "nats", rewinding, "rewinding", "initial weights", under, area),
        Method("area", "Mid-stage area", "nats", midstage, "midstage", "weights of every epoch", under, area),
        Method("freeze", "Freezing", "nats", freezing, "freezing", "", VALID, freeze),
        Method("ablate", "Mean ablation", "nats", ablation, "ablation", "replaced by its mean", VALID, ablate),
    ]
    return [method for method in every if method.points]


def findings(rows: StudyRows) -> Iterator[Finding]:
    """A finding for each method: sites with the largest and smallest numbers, and its components' means."""
    return (finding(rows, method, SOURCE.key) for method in methods(rows))


def finding(rows: StudyRows, method: Method, source: str = "") -> Finding:
    """Extremes over sites and means of components, after the method's `start`.

    If it `ranks`, components are compared; measures of a label at full width never do (definitions A4). Sites where a run
    collapsed are left out.
    """
    points, alike, unit = rows.readable(method.points), rows.comparable(method.points), method.unit
    compared = comparison(alike, unit) if method.ranks else None
    text = NOT_READ
    if points:
        left, every = (
            {words.site_position(p.site).layers for p in group if words.site_position(p.site).single}
            for group in (alike, method.points)
        )
        layers = "layers" if left == every else f"layer{'s' * (len(left) != 1)} {words.join_words(sorted(left))}"
        shown = "" if unit == "α" or unit.startswith("of ") else unit
        text = f"{extremes(points, shown, method.signed)} {ranking(alike, unit, method.ranks, layers)}".strip()
    return Finding(
        method.measure,
        f"{method.start} {text}{collapse_words(rows, method.points)}",
        unit,
        estimates(alike),
        "" if compared is None else compared.words(),
        source,
        title=method.title,
        what=", ".join(filter(None, (method.noun, method.what, LAYER_MEAN))),
        groups=(method.label,) if method.label else (),
        per="seed",
        compared=compared,
    )


def estimates(points: Sequence[words.Point]) -> tuple[Estimate, ...]:
    """Every component's mean over layers within each seed, then over seeds."""
    return tuple(Estimate(name, *mean) for name, mean in words.by_component(points).items())


def lead(rows: StudyRows) -> str:
    """How many methods rank which component first, by paired differences over seeds; empty if there is nothing to compare."""
    sorts: dict[str, list[str]] = {}
    for method in methods(rows):
        if method.ranks and (compared := comparison(method.points, method.unit)) is not None:
            result = "too uncertain" if compared.kind == "uncertain" else compared.words()
            sorts.setdefault(result, []).append(method.title)
    if not sorts:
        return ""
    counts = words.join_words([f"{len(titles)}: {result} ({', '.join(titles)})" for result, titles in sorts.items()])
    caveat = " With one seed there is no estimate of noise." if len(rows.seeds) == 1 else ""
    return f"Of {words.quantity(sum(map(len, sorts.values())), 'method')} that can rank q, k and v, {counts}.{caveat}"


def budget(rows: StudyRows) -> str:
    """The training budget: epochs, optimizer and rate, epochs and strengths of the attacks, seeds."""
    training = rows.statement("training")
    epochs, optimizer = training.get("epochs", 0), OPTIMIZERS.get(training.get("optimizer", ""), "–")
    parts = [f"{words.quantity(epochs, 'epoch')} of {optimizer} at rate {training.get('rate', '–')}"]
    if rows.strengths:
        short = [f"for {words.quantity(n, 'epoch')} " for n in rows.attack_epochs if n != epochs]
        strengths = words.join_words([f"{s:g}" for s in rows.strengths])
        parts.append(f"adversarial removal {''.join(short[:1])}with λ = {strengths}")
    return ", ".join([*parts, words.quantity(len(rows.seeds), "seed")])


def attack_words(rows: StudyRows) -> str:
    """Strength and epochs of the attacks in the answer; empty without attacks."""
    if rows.strength is None:
        return ""
    others = [f"{s:g}" for s in rows.strengths if s != rows.strength]
    also = f" (also run: {words.join_words(others)})" if others else ""
    long = words.join_words([words.quantity(n, "epoch") for n in rows.attack_epochs])
    return f" Attacks are shown with λ = {rows.strength:g}{also}, after {long}."


def divergence_words(points: Sequence[words.Point]) -> str:
    """How many values come from diverged runs, and how these are treated; empty if there are none."""
    if not (many := sum(p.diverged for p in points)):
        return ""
    return (
        f" {many} of {words.quantity(len(points), 'value')} {'comes' if many == 1 else 'come'} from diverged runs; the final loss of such "
        "a run is the last finite one, clipped at the loss at initialisation."
    )


NOT_READ = "not read."


def collapse_words(rows: StudyRows, points: Sequence[words.Point], paired: bool = False) -> str:
    """How many runs collapsed, and what is left out: their sites, or comparisons of `paired` values; may be empty."""
    fell = [p for p in points if p.run in rows.collapses]
    if not fell:
        return ""
    many, sites = len({p.run for p in fell}), len({p.site for p in fell})
    places = "its site" if many == 1 else "their site" if sites == 1 else f"their {sites} sites"
    left = "sites where one did are not compared" if paired else f"nothing is read from {places}"
    return f" {words.quantity(many, 'run')} collapsed, that is, never fell clearly below the unigram loss: {left}."


POINTS = "percentage points, valid"
Columns = list[tuple[str, str]]  # title, unit


def numbers(rows: StudyRows) -> tuple[Columns, list[tuple[str, list[tuple[str, str]]]]]:
    """The answer's figure as a table: a title and a unit for each column, a row of cells (mean, interval) for each site.

    It has a column for each method, and for the changes of accuracy (percentage points) by attacks, freezing and α = 0.
    """
    attacks = {label: rows.effects("attack", "valid", label, name="accuracy") for label in rows.labels}
    accuracies = {f"Attack on {label_name(label)}: accuracy": rows.readable(ps) for label, ps in attacks.items()}
    accuracies["Initial weights (α = 0): accuracy"] = rows.rewound("rewind_accuracy")
    accuracies["Freezing: accuracy"] = rows.effects("freeze", "valid", name="accuracy")
    columns = [(m.title, m.unit, m.signed, words.by_site(rows.readable(m.points))) for m in methods(rows)]
    columns += [
        (title, POINTS, True, words.by_site(p._replace(value=100 * p.value) for p in points))
        for title, points in accuracies.items()
        if points
    ]
    cells = {site: list[tuple[str, str]]() for *_, means in columns for site in means}
    for _, unit, signed, means in columns:
        digits = 2 if unit == POINTS else words.decimals([m.mean for m in means.values()])
        for site, row in cells.items():
            mean = means.get(site)
            bounds = "" if mean is None or mean.low is None else words.ends(mean, signed, digits)
            row.append((words.number(mean and mean.mean, signed, digits), bounds))
    return [(title, unit) for title, unit, *_ in columns], sorted(cells.items(), key=lambda row: words.order(row[0]))


def study(rows: StudyRows) -> dict[str, str]:
    """Model, text, budget, seeds and runs of the study, for the head of its page and for cards."""
    model, corpus = rows.statement("model"), rows.corpus
    splits, states = corpus.get("splits") or {}, rows.runs["status"].value_counts().sort("status").rows()
    sizes = ", ".join(words.quantity(model.get(name, 0), name.removesuffix("s")) for name in ("layers", "heads"))
    tokens = {name: words.count(splits.get(name)) for name in ("train", "valid")}
    return {
        "model": f"{sizes}, width {model.get('width', '–')}",
        "corpus": (
            f"{corpus.get('name', '–')} ({tokens['train']} train and {tokens['valid']} validation tokens, "
            f"{words.count(corpus.get('types'))} word types)"
        ),
        "budget": budget(rows),
        "seeds": words.join_words([str(s) for s in rows.seeds]) or "–",
        "runs": ", ".join(f"{words.count(n)} {state}" for state, n in states) or "none",
    }


def provenance(rows: StudyRows) -> dict[str, str]:
    """Provenance of the runs, and all settings of the study, by name."""
    corpus, seconds = rows.corpus, round(rows.about.get("wall_seconds") or 0)
    precision, wall = rows.about.get("precision", "float32"), "–"  # none in old runs
    if seconds:
        hours, minutes = divmod(seconds // 60, 60)
        wall = f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"
        wall = f"{hours} h {minutes} min" if hours else wall
    facts = {"Wall time": f"{wall} on {rows.about.get('device', '–')}"}
    if precision != "float32":
        facts["Wall time"] += f", with {precision} products in training"
        facts["Rounding"] = "bfloat16 products move effects of hundredths of a nat; compare small ones in float32"
    # Runs name their text as NAME:FINGERPRINT; the fingerprint alone says whether it is the same text.
    texts = {*rows.runs["corpus"].drop_nulls().unique().to_list(), corpus.get("fingerprint", "–")}
    prints = Markup("<code>{}</code>").format(", ".join(sorted({text.rpartition(":")[2] for text in texts})))
    facts["Corpus"] = Markup("{}, fingerprint {}").format(corpus.get("name", "–"), prints)
    changed = Markup(
        ". <strong>The claims have changed since these runs were made</strong>: today their hash is <code>{}</code>"
    )
    hashes = claims_hashes(rows)
    facts["Claims"] = Markup("hash <code>{}</code>").format(", ".join(hashes) or "–")
    facts["Claims"] += changed.format(claims_hash()) if {*hashes} - {claims_hash()} else ""
    versions = [json.loads(text) for text in rows.runs["versions"].drop_nulls().unique().sort().to_list()]
    versions = [installed for installed in versions if installed] or [rows.about.get("versions") or {}]
    listed = (", ".join(f"{name} {version}" for name, version in sorted(each.items())) or "–" for each in versions)
    facts["Made by"] = "; other runs: ".join(listed)

    def setting(name: str, value: object) -> str:
        """One setting in words; None as its meaning."""
        if value is None:
            return "as in training" if name == "epochs" else "all"
        if isinstance(value, (list, tuple)):
            return " ".join(map(str, value))
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)

    for group in ("text", "model", "training", *METHODS):
        if part := rows.statement(group):
            facts[group.capitalize()] = ", ".join(f"{key} {setting(key, part[key])}" for key in sorted(part))
    edits = []
    for edit in (rows.about.get("experiment") or {}).get("edits") or ():
        settings = (f"{k} {v}" for k, v in sorted(edit.items()) if k not in ("kind", "site") and v is not None)
        edits.append(f"{edit['kind']} {', '.join((edit['site'], *settings))}")
    return facts | ({"Edits": ", ".join(edits)} if edits else {})


def claims_hashes(rows: StudyRows) -> list[str]:
    """Hashes of the claims in the runs' records."""
    return [mark for mark in rows.runs["claims_hash"].drop_nulls().unique().sort().to_list() if mark]


def exactness(rows: StudyRows) -> str | None:
    """How exact figure 8 is on the train split, if measured: evaluations, largest disagreement, and the sample's interval."""
    spent, checks = (rows.measure(f"rewind_{name}", "train") for name in ("evaluations", "check_nats"))
    if not spent:
        return None
    last = {(p.site, p.seed): p.value for p in rows.measure("rewind_nodes", "train")}
    how, points = rows.statement("rewind"), len({p.at for p in rows.measure("rewind_loss_nats", "train")})
    if how.get("mode") == "exact":
        text = f"Every one of the {words.quantity(points, 'value')} of α was evaluated; nothing is interpolated."
    else:
        values = sorted({int(p.value) for p in spent})
        span = " to ".join(words.count(n) for n in dict.fromkeys((values[0], values[-1])))
        text = (
            f"The losses at {words.quantity(points, 'value')} of α come from {span} evaluations per site and seed; where α itself "
            f"was not evaluated, they lie on polynomials through {words.join_words([str(n) for n in NODES])} nested Chebyshev nodes, "
            f"refined until two of them agree within {TOLERANCE:g} nats everywhere."
        )
        # no nodes: nothing is interpolated; some committed tables have no such rows
        if full := {p.site for p in spent if last.get((p.site, p.seed), float(p.value < points)) == 0}:
            text += f" At {words.join_words(sorted(full, key=words.order))} no two agreed in some seed, and every α was evaluated there."
        if checks:
            largest = max(checks, key=lambda p: p.value)
            text += f" The largest disagreement of the last two was {words.number(largest.value)} nats"
            text += f" ({largest.site}, seed {largest.seed})."
    lows, highs = (
        {(p.site, p.seed): p.value for p in rows.measure(f"rewind_rise_{end}_nats", "train") if p.at == 0.0}
        for end in ("low", "high")
    )
    if interval_keys := lows.keys() & highs.keys():
        size = f" of {words.count(how['sample_tokens'])} tokens of each split" if how.get("sample_tokens") else ""
        widest = max(sorted(interval_keys), key=lambda key: highs[key] - lows[key])
        interval = f"{words.number(lows[widest], True)} to {words.number(highs[widest], True)}"
        text += (
            f" Losses are those of a sample of whole rows{size}, the same at every α, site and seed; the widest 95\u00a0% interval of "
            f"the rise at α\u00a0=\u00a00 over all rows is {interval} nats ({widest[0]}, seed {widest[1]})."
        )
    return text
