"""The parts of a dissection in their order, and what their findings say of q, k and v."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from trisect.core.errors import StudyError, is_installed
from trisect.core.finding import Estimate, Finding
from trisect.core.spec import Design
from trisect.experiments.ablate import ABLATE
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.align import ALIGN
from trisect.experiments.align.settings import AlignSettings
from trisect.experiments.compose import COMPOSE
from trisect.experiments.dissect.page import COMPONENTS, Line
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.lookup import LookupStudy
from trisect.experiments.lookup.settings import LookupSettings
from trisect.experiments.norms import NORMS
from trisect.experiments.norms.settings import NormsSettings
from trisect.experiments.patch import PATCH
from trisect.experiments.patch.settings import PatchSettings
from trisect.experiments.profile import PROFILE
from trisect.experiments.profile.settings import ProfileSettings
from trisect.experiments.recall import RECALL
from trisect.experiments.recall.settings import RecallSettings
from trisect.experiments.similarity import SIMILARITY
from trisect.experiments.similarity.settings import SimilaritySettings
from trisect.experiments.study import STUDY
from trisect.experiments.study.settings import DesignSource, StudyMachine, StudySettings
from trisect.experiments.theory import THEORY
from trisect.experiments.theory.settings import TheorySettings
from trisect.experiments.translate import TRANSLATE
from trisect.experiments.translate.settings import TranslateSettings
from trisect.lab.experiment import Experiment, Result
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelSource, ModelsSource, TextSource, Workers
from trisect.papers import roles
from trisect.report import format as words
from trisect.report.format import compare_by_seed, interval
from trisect.report.sheet import NAMES, present
from trisect.text.generated import bitext_corpus

LOOKUP = LookupStudy(PATCH, COMPOSE)
LOOKUP_PAIRS = 60
ROLES = "roles-quick"
MAX_MODELS = 3  # of the trained models are read: for a look in minutes
# of the study with known roles: what needs no attacks, which `trisect study roles-quick` adds
METHODS = ("rewind", "freeze", "erase", "ablate", "interchange")
TEXTS = 60  # texts that the trained models are read on: enough for claims that resample texts
Findings = tuple[Finding, ...]
Results = tuple[Result[Any], ...]
S = TypeVar("S")


@dataclass(frozen=True)
class DissectStep:
    """One run of an experiment: its settings, its subfolder, and its share of the part's time."""

    experiment: Experiment[Any, Any]
    settings: Any
    place: str
    share: float = 1.0


def _part_findings(results: Results) -> Iterator[Finding]:
    """Findings other than verdicts."""
    return (finding for result in results for finding in result.findings if finding.claim is None)


RunStep = Callable[[DissectStep], Result[Any]]  # a finished step is read from its folder; raises TrisectError
PartRun = Callable[[DissectSettings, RunStep, Mapping[str, Results]], Results]
EvidenceLines = Callable[[Sequence[Findings]], Iterable["Line | None"]]


@dataclass(frozen=True)
class DissectPart:
    """One part of a dissection.

    `begins` are the steps that can be checked before anything is run; `run` runs the part's steps, with the results of the parts
    before it, and returns theirs: those of `begins` where it is left out. `seconds` is about how long it takes on two cores. `page`
    is where its page will be, if not in a folder of its name; `{seed}` in it stands for the seed of each trained model. `evidence`
    makes lines of the findings of each result; `says` are the findings that its section quotes, of the first result of each
    experiment: others are its further models.
    """

    name: str
    title: str
    question: str
    seconds: float
    run: PartRun | None = None
    evidence: EvidenceLines = lambda models: ()
    begins: Callable[[DissectSettings], tuple[DissectStep, ...]] = lambda settings: ()
    says: Callable[[Results], Iterable[Finding]] = _part_findings
    page: str = ""


def baseline_models(done: Mapping[str, Results]) -> dict[int, Path]:
    """The folders of all baselines of the training study that did not diverge, by seed; raises StudyError if there are none."""
    (study,) = done["training"]
    runs = study.tables["runs"].filter(edit="none", status="finished").sort("seed")
    if runs.is_empty():
        reason = "Every baseline of the training study diverged."
        raise StudyError(f"{study.folder} has no model to read.", reason, "Run it with other seeds: --seeds 4,5,6.")
    return {seed: Folder(study.folder).run(name).parent for name, seed in runs.select("run", "seed").iter_rows()}


def each_model(experiment: Experiment[S, Any], settings: Callable[[ModelSource, TextSource], S]) -> PartRun:
    """Return the `run` of a part that reads the first trained models over the same texts, in folders NAME/seed-1, NAME/seed-2, …"""

    def run_models(_: DissectSettings, run: RunStep, done: Mapping[str, Results]) -> Results:
        models = list(baseline_models(done).items())[:MAX_MODELS]
        texts, name = TextSource("embedded", limit=TEXTS), experiment.name
        return tuple(
            run(DissectStep(experiment, settings(ModelSource(model), texts), f"{name}/seed-{seed}", 1 / len(models)))
            for seed, model in models
        )

    return run_models


def over_models(models: Sequence[Findings], shown: Finding, measure: str, margin: float = 0.02) -> Finding:
    """`shown` with means over models of each model's first finding of that measure, compared over models."""
    each = [
        {value.name: value.mean for value in finding.values if value.mean is not None}
        for findings in models
        for finding in present(_first(findings, measure))
    ]
    names = dict.fromkeys(name for values in each for name in values)
    by_model = {name: {i: values[name] for i, values in enumerate(each) if name in values} for name in names}
    means = tuple(Estimate(name, *interval(list(values.values()))) for name, values in by_model.items())
    return replace(shown, values=means, compared=compare_by_seed(by_model, margin), per="seed")


def _first(findings: Findings, measure: str) -> Finding | None:
    """The first finding of that measure; None if there is none."""
    return next((finding for finding in findings if finding.measure == measure), None)


# --- models that look up


def _lookups(settings: DissectSettings) -> tuple[DissectStep, ...]:
    recipe, machine = settings.lookup or {}, settings.machine
    models = LookupSettings(settings.corpus, seeds=(1, 2), settings=recipe, pairs=LOOKUP_PAIRS, machine=machine)
    return (DissectStep(LOOKUP, models, "lookup"),)


def _answers(results: Results) -> Iterator[Finding]:
    """The lines for q, k and v's own answers, and the other lines."""
    for finding in _part_findings(results):
        component = finding.measure.removeprefix("shift_")
        name = NAMES.get(component, "").capitalize()
        yield replace(finding, measure="answer", title=name, groups=(component,)) if name else finding


# --- synthetic tasks with known roles, and training


def _calibration(settings: DissectSettings) -> dict[str, Any]:
    """Seeds and methods of the study with known roles, erasure where its package is installed; of another study its own."""
    methods = tuple(method for method in METHODS if method != "erase" or is_installed("concept_erasure"))
    return {"seeds": (1, 2, 3), "only": methods} if settings.roles == ROLES else {}


def _study(design: str | Path | Design, machine: Workers, place: str, **more: Any) -> tuple[DissectStep, ...]:
    return (DissectStep(STUDY, StudySettings(DesignSource(design, **more), StudyMachine.of(machine)), place),)


def _role_lines(models: Sequence[Findings]) -> Iterator[Line | None]:
    """The share of pairs in which each component shows its answer; it ranks nothing, since all three are needed."""
    quantity = "share of pairs in which the model gives the answer that the replaced component predicts, at the layer that reads"
    if (shares := _first(models[0], "interchange_own")) is not None:
        at_reader = (value for value in shares.values if value.name.endswith(f"@{roles.LAYER}"))
        values = tuple(value._replace(name=value.name[0]) for value in at_reader)
        yield Line.of(replace(shares, measure="interchange", values=values, what=quantity), "Interchange", ("F-1",))


# The measures of the training study that are evidence, in the order of the table, with their names there.
KINDS = {
    "all_layers": "All layers at once",
    "attack": "Attack",
    "control": "Attack minus control",
    "probe": "Removed by the attack",
    "erasure": "Erasure",
    "rewinding": "Rewinding",
    "midstage": "Mid-stage rewinding",
    "freezing": "Freezing",
    "tying": "Tying",
    "ablation": "Ablation in the study",
}
# The claims that speak of a measure, and of one label where it is about a label.
TRAINING_CLAIMS = {
    ("attack", "pos"): ("A-1", "A-2", "A-3", "A-4", "A-5", "A-9"),
    ("attack", "dep"): ("A-6", "A-7", "A-8", "A-9"),
    ("all_layers", "rewinding"): ("A-15",),
    ("all_layers", "freezing"): ("A-15",),
    ("rewinding", ""): ("A-10", "A-11", "A-14"),
    ("midstage", ""): ("A-12",),
    ("freezing", ""): ("A-13", "A-14"),
    ("tying", ""): ("D-2",),
}


def training_lines(models: Sequence[Findings]) -> Iterator[Line | None]:
    """Lines for all findings of these measures, by measure."""
    for kind, name in KINDS.items():
        for finding in models[0]:
            if finding.measure == kind:
                label = finding.groups[0] if finding.groups else ""
                yield Line.of(finding, name, TRAINING_CLAIMS.get((kind, label), ()))


# --- models that are trained for a part


def _profile(settings: DissectSettings, run: RunStep, done: Mapping[str, Results]) -> Results:
    """One model over the embedded words."""
    model = next(iter(baseline_models(done).values())) if settings.model is None else settings.model
    labels = ("position", "pos", "previous")
    profile = ProfileSettings(ModelSource(model), "embedded", labels=labels, words=4_000)
    return (run(DissectStep(PROFILE, profile, "profile")),)


def _profile_lines(models: Sequence[Findings]) -> Iterator[Line | None]:
    """For each label, the accuracy of heads beyond random maps of the same input."""
    for finding in models[0]:
        if finding.measure == "profile":
            quantity = f"{finding.title}, accuracy of a probe less that from random maps, mean over heads"
            yield Line.of(replace(finding, what=quantity, per="head"), "Profile", ("F-2", "F-3"))


def _recall_lines(models: Sequence[Findings]) -> Iterator[Line | None]:
    """The share of retrieved answers lost with a component of one layer replaced by its mean."""
    if (stay := _first(models[0], "survival")) is not None:
        values = tuple(value._replace(mean=1 - value.mean) for value in stay.values if value.mean is not None)
        lost = replace(stay, measure="recall", values=values, what=stay.what.replace("that stay", "lost"))
        yield Line.of(lost, "Recall", ("B-1", "B-2", "B-3", "B-4"), "no interval, so not ranked")


def _patch(_: DissectSettings, run: RunStep, done: Mapping[str, Results]) -> Results:
    """Patch the pretrained model of recall at every layer."""
    (recall,) = done["recall"]
    model = next((path for name, path in recall.paths.items() if name.startswith("pretrained")), None)
    if model is None:
        reason = f"It left {', '.join(recall.paths) or 'none'}."
        raise StudyError(f"{recall.folder} has no pretrained model to patch.", reason, "Delete it and run this again.")
    return (run(DissectStep(PATCH, PatchSettings(ModelSource(model), task="recall", count=60), "patch")),)


def _laws(results: Results) -> Iterator[Finding]:
    """The number of laws that hold, in place of a line for each construction."""
    bounds = [finding.comparison for finding in results[0].findings if finding.comparison]
    count = f"{len(results[0].findings)} constructions are computed beside the laws derived for them"
    yield Finding("laws", f"{count}: of {len(bounds)} bounds {bounds.count('error ≤ law')} hold.")


# the files of the embedded pairs as translate-train leaves them, seen from the folder of the dissection
ENDINGS = ("source", "target", "pharaoh")
# which matrices the links are by: weights are of q and k together, norms have v with them; the word is the decoder's input
LINKED_BY = {"awi weight": "q+k", "awi norm": "v"}


def _translation(settings: DissectSettings) -> tuple[DissectStep, ...]:
    recipe = TranslateSettings(seeds=(1,), settings=settings.translation or {}, machine=settings.machine)
    return (DissectStep(TRANSLATE, recipe, "translation", 0.8),)


def _align(settings: DissectSettings, run: RunStep, _: Mapping[str, Results]) -> Results:
    """Train the translation models, or resume; then align."""
    (trained,) = map(run, _translation(settings))
    source, target, gold = (f"translation/pairs/test.{end}" for end in ENDINGS)
    trial = tuple(f"translation/pairs/trial.{end}" for end in ENDINGS)
    models = ModelsSource(tuple(trained.paths.values()))
    alignment = AlignSettings(models, source, target, gold=gold, trial=trial, bitext=bitext_corpus())
    return trained, run(DissectStep(ALIGN, alignment, "alignment", 0.2))


def alignment_lines(models: Sequence[Findings]) -> Iterator[Line | None]:
    """Alignment lines: 1 − AER, with its interval, so that larger is better as in other lines."""
    rates = _first(models[-1], "aer")
    if rates is None:
        return
    values = []
    for rate in rates.values:
        if rate.name in LINKED_BY:
            mean, low, high = (None if end is None else 1 - end for end in (rate.mean, rate.high, rate.low))
            values.append(Estimate(LINKED_BY[rate.name], mean, low, high, rate.n))
    if len(values) < len(LINKED_BY):
        return
    right = replace(
        rates,
        measure="alignment",
        unit="agreement with gold links",
        values=tuple(values),
        what="1 − AER of links by weights (q and k together) and by norms (v with them), mean over layers",
        per="pair",
        signed=False,
    )
    weight, norm = (value.mean or 0.0 for value in values)
    yield Line.of(right, "Alignment", ("C-5",), f"norms less weights {words.number(norm - weight, True)}")


# --- what every trained model is read for


def _mean_lines(measure: str, shown: Finding, name: str, claims: tuple[str, ...] = ()) -> EvidenceLines:
    """The `evidence` of a line as means over models."""
    return lambda models: (Line.of(over_models(models, shown, measure), name, claims),)


NORMS_WHAT = (
    "coefficient of variation over tokens of the weight a (q and k together) and of ‖f(x)‖ (v), mean over heads"
)
ABLATION_WHAT = "change of the loss when one layer's is replaced by its mean, mean over layers"


def _similarity_lines(models: Sequence[Findings]) -> Iterator[Line | None]:
    """The overlap of each component's row space with those of the other two; the margin is claim D-1's."""
    quantity = "overlap of its row space with those of the other two, mean over heads"
    alike = Finding("similarity", quantity, "of their dimensions", source="matrices", what=quantity, signed=False)
    overlaps: list[Findings] = []
    for findings in models:
        pairs = {f.groups[0]: f.values[0].mean or 0.0 for f in findings if f.measure == "overlap"}
        by_component = {c: [value for pair, value in pairs.items() if c in pair.split("-")] for c in COMPONENTS}
        values = tuple(Estimate(c, sum(group) / len(group), n=len(group)) for c, group in by_component.items() if group)
        overlaps.append((replace(alike, values=values),))
    yield Line.of(over_models(overlaps, alike, "similarity", margin=0.05), "Similarity", ("D-1", "D-3"))


PARTS: tuple[DissectPart, ...] = (
    DissectPart(
        "lookup",
        "Models that look up in their text",
        "In models that learnt to look up what followed a word before: what do a query, a key and a value each say, and who made them?",
        60.0,
        begins=_lookups,
        says=_answers,
    ),
    DissectPart(
        "roles",
        "Synthetic task with known roles",
        "Where it is known what query, key and value have to carry: does each do that, and which methods find it?",
        55.0,
        evidence=_role_lines,
        begins=lambda settings: _study(settings.roles, settings.machine, "roles", **_calibration(settings)),
        # shares at single sites stand on the study's own page
        says=lambda results: (f for f in _part_findings(results) if f.measure in ("answer", "planted")),
    ),
    DissectPart(
        "training",
        "Rewinding, freezing, tying",
        "What is lost when q, k or v is rewound, frozen, replaced or shared, in all layers at once?",
        80.0,
        evidence=training_lines,
        begins=lambda settings: _study(settings.study, settings.machine, "training", seeds=settings.seeds),
    ),
    DissectPart(
        "profile",
        "What each encodes more and less of",
        "What do the queries, keys and values of a head keep of a word, and what do they drop, beside random maps of the same input?",
        40.0,
        _profile,
        _profile_lines,
    ),
    DissectPart(
        "recall",
        "Answers from memory",
        "What does pretraining add to what a model can answer, and which of q, k and v hold the answers?",
        75.0,
        evidence=_recall_lines,
        begins=lambda settings: (
            DissectStep(
                RECALL,
                RecallSettings(seeds=(1,), settings=settings.recall or {}, machine=settings.machine),
                "recall",
            ),
        ),
    ),
    DissectPart(
        "patch",
        "Interchange in a model that recalls",
        "Asked about one person with the queries, keys or values of a question about another: whose place is the answer?",
        20.0,
        _patch,
    ),
    DissectPart(
        "theory",
        "Attention by hand",
        "What can attention do when worked by hand?",
        10.0,
        lambda settings, run, done: (run(DissectStep(THEORY, TheorySettings(), "theory")),),
        says=_laws,
        page="theory/theory.html",
    ),
    DissectPart(
        "alignment",
        "Word alignment",
        "Which words does cross-attention link: those with the highest weights, or those that add the longest vectors?",
        55.0,
        _align,
        alignment_lines,
        _translation,
    ),
    DissectPart(
        "norms",
        "Norms",
        "Is attention its weights alone, or do the vectors that they weigh decide what is passed on?",
        20.0,
        each_model(NORMS, NormsSettings),
        _mean_lines(
            "dispersion",
            Finding("norms", NORMS_WHAT, "std / mean", source="norms", what=NORMS_WHAT, signed=False),
            "Norms",
            ("C-1", "C-2", "C-3", "C-4"),
        ),
        page="norms/seed-{seed}/report.html",
    ),
    DissectPart(
        "similarity",
        "Three matrices",
        "Why three matrices: how alike are they?",
        25.0,
        each_model(SIMILARITY, SimilaritySettings),
        _similarity_lines,
        page="similarity/seed-{seed}/report.html",
    ),
    DissectPart(
        "ablation",
        "Ablation",
        "What does a trained model lose where the queries, keys or values of one layer are replaced by their mean?",
        15.0,
        each_model(ABLATE, lambda model, texts: AblateSettings(model, texts, how="mean")),
        _mean_lines("mean_change", Finding("ablation", ABLATION_WHAT, "nats", what=ABLATION_WHAT), "Ablation"),
        page="ablate/seed-{seed}/report.html",
    ),
)
