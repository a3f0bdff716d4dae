"""The measurement of one of several models as a job on an engine: what it is asked, what it does, and where its files land."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trisect.core.json_text import Json
from trisect.core.machine import Machine
from trisect.core.processor import processor
from trisect.core.schema import record
from trisect.engine.drive import land
from trisect.engine.jobs import Files, JobDesk, JobOrder, job
from trisect.lab.experiment import Bench, Experiment
from trisect.lab.inputs import ModelSource
from trisect.lab.run_folder import RunFolder
from trisect.lab.units.measuring import write_unit
from trisect.lab.units.travel import beside, decoded, encoded, find_experiment, lay_out, read_texts

TEXTS = "texts"


@record
class UnitJob:
    """One model to be measured: by which experiment, declared in which module, with which settings, and what it is called.

    `laid` are the places at home of what travelled with it, by the name under which it is fetched.
    """

    module: str
    experiment: str
    settings: dict[str, Json]
    called: str
    group: str
    laid: dict[str, str]
    texts: bool


@job
def measure_model(asked: UnitJob, desk: JobDesk) -> None:
    """Open a model, measure it as if it were alone, and leave tables, record and page in the scratch folder."""
    one = find_experiment(asked.module, asked.experiment)
    with tempfile.TemporaryDirectory(prefix="trisect-") as laid:
        lay_out({place: desk.fetch(name) for name, place in asked.laid.items()}, Path(laid))
        settings = decoded(one.settings, asked.settings, Path(laid))
        source: ModelSource = getattr(settings, asked.group)
        desk.say(0.0, f"loading {asked.called}")
        subject: Any = source.open()
        if subject.name != asked.called:
            subject = replace(subject, name=asked.called)
        texts = read_texts(desk.fetch(TEXTS)) if asked.texts else None
        bench = Bench(desk.scratch, Machine(quiet=True), (subject,), texts, show=desk.say)
        write_unit(one, settings, bench, made_on(uses_gpu(source)))


def uses_gpu(source: ModelSource) -> bool:
    """Whether a model is opened on a GPU."""
    return torch.cuda.is_available() and (source.device != "cpu" or source.device_map is not None)


def made_on(gpu: bool, threads: int | None = None) -> str:
    """What sums are computed by: the processor and the threads (null: of this process), or the GPU; last digits follow from it."""
    if gpu:
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads() if threads is None else threads
    return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, threads: {threads}"


@dataclass(frozen=True, eq=False)
class AskedUnit:
    """One of several models: its number from 1, how it is opened, what it is called, and where its page will lie."""

    number: int
    source: ModelSource
    called: str
    page: str


@dataclass(frozen=True, eq=False)
class UnitWork:
    """One model's measurement, as the driver gives it out; `check` raises where what all models read was changed meanwhile."""

    unit: AskedUnit
    key: str
    one: Experiment[Any, Any]
    settings: Any
    group: str
    folder: RunFolder
    texts: Path | None
    far: bool
    check: Callable[[], object]

    @property
    def title(self) -> str:
        """What messages and progress lines call it."""
        return f"{self.one.name} {self.unit.called}"

    @property
    def seconds(self) -> float:
        """Every model as much as another."""
        return 1.0

    def ready(self) -> bool:
        """Always."""
        return True

    def order(self) -> JobOrder:
        """It as a job; on other machines with what lies on this one's disk."""
        sent = set[Path]() if self.far else None
        own = replace(self.settings, **{self.group: self.unit.source}, units=None)
        settings: Any = encoded(own, sent)
        if sent is not None:
            sent |= beside(self.unit.source.model, getattr(own, "checkpoints", ()))
        places = {f"part-{i}": place for i, place in enumerate(sorted(sent or ()))}
        needs, names = dict(places), {name: str(place) for name, place in places.items()}
        asked = UnitJob(
            type(own).__module__,
            self.one.name,
            settings,
            self.unit.called,
            self.group,
            names,
            self.texts is not None,
        )
        needs |= {} if self.texts is None else {TEXTS: self.texts}
        return JobOrder(measure_model, asked, self.folder.path, needs)

    def land(self, files: Files) -> None:
        """Keep the model's files: all are sent when it is measured."""
        with self.folder.unit(self.key, self.one.name) as place:
            land(files, place)
            self.check()

    def ended(self) -> None:
        """Nothing is left to do."""
