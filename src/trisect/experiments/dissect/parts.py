"""The parts of a dissection, in the order in which they are run and shown, and what their findings say of q, k and v."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trisect.core.errors import StudyError
from trisect.core.finding import Estimate, Finding
from trisect.experiments.ablate import ABLATE
from trisect.experiments.ablate.settings import AblateSettings
from trisect.experiments.align import ALIGN
from trisect.experiments.align.settings import AlignSettings
from trisect.experiments.dissect.page import COMPONENTS, Line
from trisect.experiments.dissect.settings import DissectSettings
from trisect.experiments.norms import NORMS as NORMS_EXPERIMENT
from trisect.experiments.norms.settings import NormsSettings
from trisect.experiments.patch import PATCH
from trisect.experiments.patch.settings import PatchSettings
from trisect.experiments.profile import PROFILE
from trisect.experiments.profile.settings import ProfileSettings
from trisect.experiments.recall import RECALL as RECALL_EXPERIMENT
from trisect.experiments.recall.settings import RecallSettings
from trisect.experiments.similarity import SIMILARITY as SIMILARITY_EXPERIMENT
from trisect.experiments.similarity.settings import SimilaritySettings
from trisect.experiments.study import STUDY
from trisect.experiments.study.settings import DesignSource, StudyMachine, StudySettings
from trisect.experiments.theory import THEORY
from trisect.experiments.theory.settings import TheorySettings
from trisect.experiments.translate import TRANSLATE
from trisect.experiments.translate.settings import TranslateSettings
from trisect.lab.experiment import Experiment, Result
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelSource, ModelsSource, TextSource
from trisect.papers import roles
from trisect.report import format as words
from trisect.report.format import interval, paired
from trisect.report.sheet import present
from trisect.text.generated import bitext_corpus

TEXTS = 60  # texts that the trained models are read on: enough for claims that resample texts
Findings = tuple[Finding, ...]
Results = tuple[Result[Any], ...]
S = TypeVar("S")


@dataclass(frozen=True)
class DissectStep:
    """One run of an experiment: its settings, its folder below the dissection's, and the share of its part's time."""

    experiment: Experiment[Any, Any]
    settings: Any
    place: str
    share: float = 1.0


class PartRunner(Protocol):
    """What a part is run with."""

    def run(self, step: DissectStep) -> Result[Any]:
        """What the step gives; one that is finished is read from its folder. Raises TrisectError."""
        ...

    def results(self, part: str) -> Results:
        """What a part before this one gave."""
        ...


def found(results: Results) -> Iterator[Finding]:
    """What was found besides verdicts, by the first run of each experiment: others are its further models."""
    for result in first_of_each(results):
        yield from (one for one in result.findings if one.claim is None)


def first_of_each(results: Results) -> Results:
    """The first result of each experiment."""
    return tuple({result.about.experiment: result for result in reversed(results)}.values())[::-1]


Steps = Callable[[DissectSettings], tuple[DissectStep, ...]]


@dataclass(frozen=True)
class DissectPart:
    """One part of a dissection.

    `begins` are the steps that can be checked before anything is run; `run` takes the part's steps, one by one, and gives their
    results, those of `begins` where it is left out. `seconds` is about how long it takes on two cores. `page` is where its page
    will be, if not in a folder of its name; `{seed}` in it stands for the seed of each trained model. `evidence` makes lines of
    what was found, one tuple of findings for each result; `says` are the findings that its section quotes.
    """

    name: str
    title: str
    question: str
    seconds: float
    run: Callable[[DissectSettings, PartRunner], Results] | None = None
    evidence: Callable[[Sequence[Findings]], Iterable[Line]] = lambda found: ()
    begins: Steps = lambda settings: ()
    says: Callable[[Results], Iterable[Finding]] = found
    page: str = ""


def trained_models(runner: PartRunner) -> dict[int, Path]:
    """The folder of every baseline of the training study that did not diverge, by its seed; raises StudyError for none."""
    (study,) = runner.results("training")
    runs = study.tables["runs"].filter(edit="none", status="finished").sort("seed")
    if runs.is_empty():
        known = "Every baseline of the training study diverged."
        raise StudyError(f"{study.folder} has no model to read.", known, "Run it with other seeds: --seeds 4,5,6.")
    return {seed: Folder(study.folder).run(name).parent for name, seed in runs.select("run", "seed").iter_rows()}


def each_model(
    experiment: Experiment[S, Any], settings: Callable[[ModelSource, TextSource], S]
) -> Callable[[DissectSettings, PartRunner], Results]:
    """The `run` of a part that reads every trained model over the same texts, in folders NAME/seed-1, NAME/seed-2, …"""

    def run(asked: DissectSettings, runner: PartRunner) -> Results:
        models, texts, name = trained_models(runner), TextSource("embedded", limit=TEXTS), experiment.name
        steps = (
            DissectStep(experiment, settings(ModelSource(model), texts), f"{name}/seed-{seed}", 1 / len(models))
            for seed, model in models.items()
        )
        return tuple(map(runner.run, steps))

    return run


def over_models(
    models: Sequence[Findings],
    found: Finding,
    measure: str,
    read: Callable[[Finding], dict[str, float]] = lambda finding: {
        one.name: one.mean for one in finding.values if one.mean is not None
    },
    margin: float = 0.02,
) -> Finding:
    """`found` with the numbers of the first finding of that measure of each model: means over models, and compared by them."""
    each = [read(one) for findings in models for one in [of(findings, measure)] if one is not None]
    names = dict.fromkeys(name for values in each for name in values)
    values = tuple(Estimate(name, *interval([values[name] for values in each if name in values])) for name in names)
    by_model = {name: {i: one[name] for i, one in enumerate(each) if name in one} for name in names}
    return replace(found, values=values, compared=paired(by_model, margin), per="seed")


def of(findings: Findings, measure: str) -> Finding | None:
    """The first finding of that measure; None where there is none."""
    return next((one for one in findings if one.measure == measure), None)


HOW = "mean"  # what an ablated component is replaced by
WHAT = f"change of the loss when one layer's is replaced by its {HOW}, mean over layers"


def evidence(found: Sequence[Findings]) -> Iterable[Line]:
    """The rise of the loss when a component of one layer is replaced."""
    rise = over_models(found, Finding("ablation", WHAT, "nats", what=WHAT), "mean_change")
    return present(Line.of(rise, "Ablation"))


ABLATION = DissectPart(
    "ablation",
    "Ablation",
    "What does a trained model lose where the queries, keys or values of one layer are replaced by their mean?",
    20.0,
    each_model(ABLATE, lambda model, texts: AblateSettings(model, texts, how=HOW)),
    evidence,
    page="ablate/seed-{seed}/report.html",
)


# the files of the embedded pairs as translate-train leaves them, seen from the folder of the dissection
ENDINGS = ("source", "target", "pharaoh")
# which matrices the links are by: weights are of q and k together, norms have v with them; the word is the decoder's input
LINKED_BY = {"awi weight": "q+k", "awi norm": "v"}


def _translates(asked: DissectSettings) -> tuple[DissectStep, ...]:
    settings = TranslateSettings(seeds=(1, 2), settings=asked.translation or {}, machine=asked.machine)
    return (DissectStep(TRANSLATE, settings, "translation", 0.8),)


def _aligns(asked: DissectSettings, runner: PartRunner) -> Results:
    """Train the translation models, or go on; then align."""
    (trained,) = map(runner.run, _translates(asked))
    models = ModelsSource(tuple(trained.paths.values()))
    source, target, gold = (f"translation/pairs/test.{end}" for end in ENDINGS)
    trial = tuple(f"translation/pairs/trial.{end}" for end in ENDINGS)
    aligned = AlignSettings(models, source, target, gold, trial=trial, bitext=bitext_corpus())
    return trained, runner.run(DissectStep(ALIGN, aligned, "alignment", 0.2))


def alignment_evidence(found: Sequence[Findings]) -> Iterable[Line]:
    """How right links are: 1 − AER, its interval turned, so that more is better, as on other lines."""
    rates = of(found[-1], "aer")
    values = []
    for rate in () if rates is None else rates.values:
        if rate.name in LINKED_BY:
            mean, low, high = (None if end is None else 1 - end for end in (rate.mean, rate.high, rate.low))
            values.append(Estimate(LINKED_BY[rate.name], mean, low, high, rate.n))
    if rates is None or len(values) < len(LINKED_BY):
        return ()
    right = replace(
        rates,
        measure="alignment",
        unit="agreement with gold links",
        values=tuple(values),
        what="1 − AER of links by weights (q and k together) and by norms (v with them), mean over layers",
        per="pair",
        signed=False,
    )
    weight, norm = (one.mean or 0.0 for one in values)
    said = f"norms less weights {words.number(norm - weight, True)}"
    return present(Line.of(right, "Alignment", ("C-5",), said))


ALIGNMENT = DissectPart(
    "alignment",
    "Word alignment",
    "Which words does cross-attention link: those with the highest weights, or those that add the longest vectors?",
    90.0,
    _aligns,
    alignment_evidence,
    _translates,
)


def _laws(results: Results) -> Iterator[Finding]:
    """How many bounds hold, in the place of a line for every construction."""
    found = results[0].findings
    bounded = [one for one in found if one.comparison]
    held = sum(one.comparison == "error ≤ law" for one in bounded)
    said = f"{len(found)} constructions are computed beside the laws derived for them: of {len(bounded)} bounds {held} hold."
    yield Finding("laws", said)


BY_HAND = DissectPart(
    "theory",
    "Attention by hand",
    "What can attention do when worked by hand?",
    10.0,
    lambda asked, runner: (runner.run(DissectStep(THEORY, TheorySettings(), "theory")),),
    says=_laws,
    page="theory/theory.html",
)


NORMS_WHAT = (
    "coefficient of variation over tokens of the weight a (q and k together) and of ‖f(x)‖ (v), mean over heads"
)


def norms_evidence(found: Sequence[Findings]) -> Iterable[Line]:
    """How much the weights (q and k) and the norms (v and W_O) of what is mixed vary over tokens."""
    varied = Finding("norms", NORMS_WHAT, "std / mean", source="norms", what=NORMS_WHAT, signed=False)
    return present(Line.of(over_models(found, varied, "dispersion"), "Norms", ("C-1", "C-2", "C-3", "C-4")))


NORMS = DissectPart(
    "norms",
    "Norms",
    "Is attention its weights alone, or do the vectors that they weigh decide what is passed on?",
    30.0,
    each_model(NORMS_EXPERIMENT, NormsSettings),
    norms_evidence,
    page="norms/seed-{seed}/report.html",
)


def _patches(asked: DissectSettings, runner: PartRunner) -> Results:
    """Patch the pretrained model of recall at every layer."""
    (recall,) = runner.results("recall")
    model = next((path for name, path in recall.paths.items() if name.startswith("pretrained")), None)
    if model is None:
        known = f"It left {', '.join(recall.paths) or 'none'}."
        raise StudyError(f"{recall.folder} has no pretrained model to patch.", known, "Delete it and run this again.")
    settings = PatchSettings(ModelSource(model), task="recall", count=60)
    return (runner.run(DissectStep(PATCH, settings, "patch")),)


PATCHING = DissectPart(
    "patch",
    "Interchange in a model that recalls",
    "Asked about one person with the queries, keys or values of a question about another: whose place is the answer?",
    20.0,
    _patches,
)


PLANTED_WHAT = (
    "share of pairs in which the model gives the answer that the replaced component predicts, at the layer that reads"
)


def planted_evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """The share of pairs in which each component shows itself, which ranks nothing: all three are needed."""
    for one in found[0]:
        if one.measure == "interchange_own":
            values = tuple(
                value._replace(name=value.name[0]) for value in one.values if value.name.endswith(f"@{roles.LAYER}")
            )
            own = replace(one, measure="interchange", values=values, what=PLANTED_WHAT)
            yield from present(Line.of(own, "Interchange", ("F-1",)))


PLANTED = DissectPart(
    "roles",
    "Planted roles",
    "Where it is known what query, key and value have to carry: does each do that, and which methods find it?",
    90.0,
    evidence=planted_evidence,
    begins=lambda asked: (
        DissectStep(STUDY, StudySettings(DesignSource(asked.roles), StudyMachine.of(asked.machine)), "roles"),
    ),
    # shares at single sites stand on the study's own page
    says=lambda results: (one for one in found(results) if one.measure in ("answer", "planted")),
)


def _profiles(asked: DissectSettings, runner: PartRunner) -> Results:
    """One model over the embedded words."""
    model = next(iter(trained_models(runner).values())) if asked.model is None else asked.model
    labels = ("position", "pos", "previous")
    settings = ProfileSettings(ModelSource(model), "embedded", labels=labels, words=4_000)
    return (runner.run(DissectStep(PROFILE, settings, "profile")),)


def profiles_evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """For each label what heads keep of it beyond random maps of the same input."""
    for one in found[0]:
        if one.measure == "profile":
            what = f"{one.title}, accuracy of a probe less that from random maps, mean over heads"
            yield from present(Line.of(replace(one, what=what, per="head"), "Profile", ("F-2", "F-3")))


PROFILES = DissectPart(
    "profile",
    "What each keeps and drops",
    "What do the queries, keys and values of a head keep of a word, and what do they drop, beside random maps of the same input?",
    40.0,
    _profiles,
    profiles_evidence,
)


def recall_evidence(found: Sequence[Findings]) -> Iterable[Line]:
    """The share of retrieved answers that are lost when a component of one layer is replaced by its mean."""
    if (stay := of(found[0], "survival")) is None:
        return ()
    values = tuple(one._replace(mean=1 - one.mean) for one in stay.values if one.mean is not None)
    lost = replace(stay, measure="recall", values=values, what=stay.what.replace("that stay", "lost"))
    return present(Line.of(lost, "Recall", ("B-1", "B-2", "B-3", "B-4"), "no interval, so not ranked"))


RECALL = DissectPart(
    "recall",
    "Answers from memory",
    "What does pretraining add to what a model can answer, and which of q, k and v hold the answers?",
    75.0,
    evidence=recall_evidence,
    begins=lambda asked: (
        DissectStep(
            RECALL_EXPERIMENT,
            RecallSettings(seeds=(1,), settings=asked.recall or {}, machine=asked.machine),
            "recall",
        ),
    ),
)


SIMILARITY_WHAT = "overlap of its row space with those of the other two, mean over heads"
MARGIN = 0.05  # of the dimensions, as in claim D-1


def similarity_evidence(found: Sequence[Findings]) -> Iterable[Line]:
    """The overlap of each component's row space with those of the other two."""
    models: list[Findings] = []
    for findings in found:
        pairs = {one.groups[0]: one.values[0].mean or 0.0 for one in findings if one.measure == "overlap"}
        beside = {c: [value for pair, value in pairs.items() if c in pair.split("-")] for c in COMPONENTS}
        values = tuple(Estimate(c, sum(of) / len(of), n=len(of)) for c, of in beside.items() if of)
        models.append((Finding("similarity", SIMILARITY_WHAT, values=values),))
    own = ("similarity", SIMILARITY_WHAT, "of their dimensions")
    alike = Finding(*own, source="matrices", what=SIMILARITY_WHAT, signed=False)
    return present(Line.of(over_models(models, alike, "similarity", margin=MARGIN), "Similarity", ("D-1", "D-3")))


SIMILARITY = DissectPart(
    "similarity",
    "Three matrices",
    "Why three matrices: how alike are they?",
    40.0,
    each_model(SIMILARITY_EXPERIMENT, SimilaritySettings),
    similarity_evidence,
    page="similarity/seed-{seed}/report.html",
)


# The measures that are evidence, in the order of the table, with their names there.
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


def training_evidence(found: Sequence[Findings]) -> Iterator[Line]:
    """A line for every finding of these measures, by measure."""
    for kind, name in KINDS.items():
        for one in found[0]:
            if one.measure == kind:
                claims = TRAINING_CLAIMS.get((kind, one.groups[0] if one.groups else ""), ())
                yield from present(Line.of(one, name, claims))


TRAINING = DissectPart(
    "training",
    "Rewinding, freezing, tying",
    "What is lost when q, k or v is rewound, frozen, replaced or shared, in all layers at once?",
    120.0,
    evidence=training_evidence,
    begins=lambda asked: (
        DissectStep(
            STUDY,
            StudySettings(DesignSource(asked.study, seeds=asked.seeds), StudyMachine.of(asked.machine)),
            "training",
        ),
    ),
)


PARTS: tuple[DissectPart, ...] = (
    PLANTED,
    TRAINING,
    PROFILES,
    RECALL,
    PATCHING,
    BY_HAND,
    ALIGNMENT,
    NORMS,
    SIMILARITY,
    ABLATION,
)
