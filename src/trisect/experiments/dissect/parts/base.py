"""What a part of a dissection is: how it is run in folders of its own, and what its findings say of q, k and v."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trisect.core.errors import StudyError
from trisect.core.finding import Estimate, Finding
from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.settings import DissectSettings
from trisect.lab.experiment import Experiment, Result
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelSource, TextSource
from trisect.report.points import interval, paired

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


@dataclass(frozen=True)
class DissectPart:
    """One part of a dissection.

    `run` takes its steps, one by one, and gives their results; `begins` are those that can be checked before anything is
    run. `seconds` is about how long it takes on two cores. `page` is where its page will be, if not in a folder of its
    name; `{seed}` in it stands for the seed of each trained model. `evidence` makes lines of what was found, one tuple of
    findings for each result; `says` are the findings that its section quotes.
    """

    name: str
    title: str
    question: str
    seconds: float
    run: Callable[[DissectSettings, PartRunner], Results]
    evidence: Callable[[Sequence[Findings]], Iterable[Line]] = lambda found: ()
    begins: Callable[[DissectSettings], tuple[DissectStep, ...]] = lambda settings: ()
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
        models, texts = trained_models(runner), TextSource("embedded", limit=TEXTS)
        steps = [
            DissectStep(
                experiment, settings(ModelSource(model), texts), f"{experiment.name}/seed-{seed}", 1 / len(models)
            )
            for seed, model in models.items()
        ]
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
    """The first finding of that measure; null where there is none."""
    return next((one for one in findings if one.measure == measure), None)
