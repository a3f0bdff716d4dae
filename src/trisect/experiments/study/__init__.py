"""A training study: attack, freeze, tie, rewind, probe and erase q, k and v of small language models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trisect.experiments.study.settings import PlanSettings, StudyFacts, StudySettings
from trisect.lab.experiment import TrainingExperiment, Utility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.core.machine import Machine
    from trisect.experiments.study.plan import Plan
    from trisect.experiments.study.result import Study
    from trisect.experiments.study.run import JoinedStudy, PreparedStudy
    from trisect.report.sheet import Sheet


class TrainStudy(TrainingExperiment[StudySettings, StudyFacts]):
    """Train small language models with interventions on q, k and v, test the sources' claims, and report. Call it again to resume.

    \b
    trisect study --join seed-1 seed-2 --out both
    trisect study quick --seeds 1 --only rewind --out study
    """

    name = "study"
    settings = StudySettings
    facts = StudyFacts
    source = "submodules"
    out = "study-{name}"

    @property
    def returns(self) -> type[Study]:
        """The class of a run's result."""
        from trisect.experiments.study.result import Study

        return Study

    def prepare(self, settings: StudySettings, machine: Machine) -> PreparedStudy | JoinedStudy:
        """Prepare the work of the settings: a study to run, or studies of other seeds to join."""
        from trisect.experiments.study.run import JoinedStudy, PreparedStudy

        return JoinedStudy.prepare(settings) if settings.join else PreparedStudy.prepare(settings, machine)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[StudyFacts]) -> Sequence[Finding]:
        """The findings, as data."""
        from trisect.experiments.study.page import with_verdicts
        from trisect.experiments.study.rows import StudyRows, describe_study

        return with_verdicts(StudyRows.of(tables, describe_study(about)))

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[StudyFacts]) -> Sheet:
        """The page, from the tables and the record alone."""
        from trisect.experiments.study.page import page

        return page(tables, about)


STUDY = TrainStudy()


class PlanStudy(Utility[PlanSettings]):
    """Show how many runs a study has, their parameters, and the expected time, memory and disk; run nothing.

    \b
    trisect plan quick
    """

    name = "plan"
    settings = PlanSettings

    @property
    def gives(self) -> type[Plan]:
        """The class of the reply."""
        from trisect.experiments.study.plan import Plan

        return Plan

    def answer(self, settings: PlanSettings) -> Plan:
        """The plan of the settings, also for a text without labels; raises TrisectError for what else cannot be run."""
        from trisect.experiments.study.plan import designs, make_plan

        plan = make_plan(*designs(settings.what), fleet=settings.fleet, without_labels=True)
        plan = replace(plan, listed=settings.runs, cores=settings.workers or plan.cores, gpus=settings.gpus)
        if not settings.force:
            plan.check_machine(Path())
        return plan


PLAN = PlanStudy()
