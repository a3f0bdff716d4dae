"""The sentences of a study's report, made from its rows alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from trisect.core.finding import Estimate, Finding
from trisect.experiments.study.rows import StudyRows
from trisect.papers.submodules import SOURCE
from trisect.report import points as of_means
from trisect.report.format import COMPONENT, FEW, listed, number, several, spoken
from trisect.report.points import Mean, Point, by_component, by_site, extreme

VALID = "change of the validation loss"
MEANT = "mean over layers"
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}


KNOWN_LABELS = {"pos": "POS", "dep": "DEP"}


def seeds(rows: StudyRows) -> str:
    """`n = 3 seeds`, for a caption."""
    return f"n\u00a0=\u00a0{several(len(rows.seeds), 'seed')}"


def label_name(label: str) -> str:
    """A label column as a reader knows it."""
    return KNOWN_LABELS.get(label, label)


def extremes(points: Sequence[Point], unit: str, signed: bool = True) -> str:
    """Where the mean is highest and where it is lowest, as it stands after a subject; ties are said as ties.

    Numbers that have no sign of their own are called largest and smallest.
    """
    means = by_site(points)
    top, low = extreme(means, 1), extreme(means, -1)
    if len(means) == 1:
        return f"at {top[0]} it is {spoken(means[top[0]], unit, signed)}."
    if len(top) == len(means):
        return f"the same at all {several(len(means), 'site')}: {_bare(means[top[0]], unit, signed)}."
    high_word, low_word = ("highest", "lowest") if signed else ("largest", "smallest")
    ends = ((high_word, top), (low_word, low))
    return "; ".join(f"{word} {_where(means, sites, unit, signed)}" for word, sites in ends) + "."


def _where(means: Mapping[str, Mean], sites: Sequence[str], unit: str, signed: bool) -> str:
    mean = means[sites[0]]
    if len(sites) == 1:
        return f"at {sites[0]}, {spoken(mean, unit, signed)}"
    place = listed(sites) if len(sites) <= FEW else f"{len(sites)} of {several(len(means), 'site')}"
    return f"{_bare(mean, unit, signed)} at {place}"


def _bare(mean: Mean, unit: str, signed: bool) -> str:
    return number(mean.mean, signed) + (f"\u00a0{unit}" if unit else "")


def ranked(points: Sequence[Point], signed: bool = True) -> tuple[list[str], list[str]]:
    """Components by the size of their mean over layers, largest first, and those not told apart from the first."""
    return of_means.ranked(by_component(points), signed)


def ranking(points: Sequence[Point], signed: bool = True) -> str:
    """The components' means over layers, largest first; says which are not told apart from the first."""
    means = by_component(points)
    rank, rivals = ranked(points, signed)
    if len(rank) < 2:
        return ""
    said = [f"{g} {number(means[g].mean, signed)}" for g in rank]
    tail = f" ({listed([rank[0], *rivals])} are not told apart)" if rivals else ""
    return f"Mean over layers{' (largest change first)' if signed else ''}: {listed(said)}{tail}."


class Method(NamedTuple):
    """One method that the study has numbers of: how it is drawn, its title, what its numbers are, and its points.

    `measure` is its findings' word, `noun` and `what` name the number in a table; `label` is the column that is attacked.
    """

    kind: str
    title: str
    unit: str
    points: list[Point]
    measure: str
    noun: str
    what: str
    label: str = ""


def methods(rows: StudyRows) -> list[Method]:
    """What the answer's panels show, for each method that the study has."""
    found = []
    for label in rows.labels:
        noun, points = label_name(label), rows.effects("attack", "valid", label)
        found.append(Method("attack", f"Attack on {noun}", "nats", points, "attack", noun, VALID, label))
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
        signed = method.kind in SIGNED
        shown = "" if method.kind == "criticality" else method.unit
        said = f"{LEADS[method.kind]} {extremes(method.points, shown, signed)} {ranking(method.points, signed)}".strip()
        yield Finding(
            method.measure,
            said,
            method.unit,
            estimates(method.points),
            compared(method.points),
            SOURCE.key,
            title=method.title,
            what=", ".join(filter(None, (method.noun, method.what, MEANT))),
            groups=(method.label,) if method.label else (),
            per="seed",
        )


def finding(measure: str, title: str, start: str, points: Sequence[Point], unit: str, what: str, label: str) -> Finding:
    """A finding on one label that no source asks for: extremes over sites and means of components, after `start`."""
    shown = "" if unit.startswith("of ") else unit
    return Finding(
        measure,
        f"{start} {extremes(points, shown)} {ranking(points)}".strip(),
        unit,
        estimates(points),
        compared(points),
        title=title,
        what=f"{label_name(label)}, {what}, {MEANT}",
        groups=(label,),
        per="seed",
    )


def estimates(points: Sequence[Point]) -> tuple[Estimate, ...]:
    """Every component's mean over layers within each seed, then over seeds."""
    return tuple(Estimate(name, *mean) for name, mean in by_component(points).items())


def compared(points: Sequence[Point], signed: bool = True) -> str:
    """What the components' means say of each other, as in `order_of`."""
    return order_of(by_component(points), signed)


def order_of(means: Mapping[str, Mean], signed: bool = True) -> str:
    """The largest, those not told apart from it, and the others: `v ≈ k > q`; empty with fewer than two."""
    rank, rivals = of_means.ranked(means, signed)
    if len(rank) < 2:
        return ""
    rest = ", ".join(name for name in rank[1:] if name not in rivals)
    return " ≈ ".join([rank[0], *rivals]) + (f" > {rest}" if rest else "")


def lead(rows: StudyRows) -> str:
    """Which component has the largest mean over layers, and in how many methods; empty where there is nothing to rank.

    A method whose intervals overlap, or whose means tie, is counted for none.
    """
    first: dict[str, list[str]] = {}
    open_ones: list[str] = []
    kinds = set()
    for method in methods(rows):
        signed = method.kind in SIGNED
        rank, rivals = ranked(method.points, signed)
        if len(rank) < 2:
            continue
        kinds.add(signed)
        if rivals:
            open_ones.append(f"{method.title} ({listed([rank[0], *rivals])})")
        else:
            first.setdefault(rank[0], []).append(method.title)
    if not kinds:
        return ""
    total = sum(map(len, first.values())) + len(open_ones)
    what = " or ".join(["largest change"] * (True in kinds) + ["largest mean"] * (False in kinds))
    parts = [
        f"{COMPONENT.get(g, g)} in {len(first[g])} ({', '.join(first[g])})"
        for g in sorted(first, key=lambda g: -len(first[g]))
    ]
    said = []
    if parts:
        said.append(f"Of {several(total, 'method')}, the {what} over layers belongs to {listed(parts)}.")
    if open_ones:
        start = (
            "No method tells"
            if not parts
            else "One does not tell"
            if len(open_ones) == 1
            else f"{len(open_ones)} do not tell"
        )
        said.append(f"{start} the first apart from others: {'; '.join(open_ones)}.")
    if len(rows.seeds) == 1:
        said.append("One seed says nothing of chance.")
    return " ".join(said)


def budget(rows: StudyRows) -> str:
    """What was spent: epochs, optimizer and rate, the attacks' own epochs and strengths, seeds."""
    training = (rows.about.get("experiment") or {}).get("training") or {}
    epochs = training.get("epochs", 0)
    said = [
        f"{several(epochs, 'epoch')} of {OPTIMIZERS.get(training.get('optimizer', ''), '–')} at rate {training.get('rate', '–')}"
    ]
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
    verb = "comes" if many == 1 else "come"
    return (
        f" {many} of {several(len(points), 'value')} {verb} from diverged runs; the final loss of such a run is the last finite "
        "one, clipped at the loss at initialisation."
        if many
        else ""
    )


def left_out(rows: StudyRows) -> list[str]:
    """What the paper has and this study has not, in words."""
    gone = []
    for label in ("pos", "dep"):
        if label not in rows.labels:
            gone.append(f"attacks on {label_name(label)} (figures {'3 and 4' if label == 'pos' else '5 and 6'})")
    if not rows.measure("rewind_loss_nats", "train"):
        gone.append("convex rewinding (figures 8 and 9)")
    if not rows.measure("midstage_loss_nats", "train"):
        gone.append("mid-stage rewinding (figure 10)")
    if not rows.curves("freeze", "valid"):
        gone.append("freezing (figures 11 and 12)")
    return gone
