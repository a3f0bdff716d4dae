"""The plan of a study: its runs, how they are grouped for training, what is left to do, and expected time, memory and disk."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trisect.core import machine
from trisect.core.errors import CorpusError, DamagedFileError, SpecError, StudyError, is_installed, require_extra
from trisect.core.files import Json, digest, read_json, write_json
from trisect.core.machine import Machine
from trisect.core.methods import layers_with_heads
from trisect.core.schema import MAX_RUNS, to_json_data
from trisect.core.site import Site
from trisect.core.spec import Design, Ledger, Run, differences
from trisect.experiments.study.presets import find_experiments, is_preset, only
from trisect.experiments.study.settings import DesignSource
from trisect.lab.folder import Folder
from trisect.lab.jobs import clock
from trisect.lm.fleet import count_parameters
from trisect.lm.matmul import STEP_REVISION
from trisect.text.corpus import Corpus, check_windows, sample_steps, steps
from trisect.text.sources import absolute_name, load_text
from trisect.text.worlds import world_of

# members trained side by side, stored in the ledger so that resumed runs are equal bit for bit: on a CPU more would
# leave the caches, on a GPU fewer would leave most of it idle
FLEET = {"cpu": 8, "cuda": 32}

CORE_OPERATIONS = 120e9  # float32 operations per second of one core in the larger matrix products
# seconds per token and unit of width, score and logit, fitted to two sizes on one 2.6 GHz core
WIDTH_SECONDS, SCORE_SECONDS, LOGIT_SECONDS = 8e-8, 6e-9, 4e-9
PROBE_SECONDS = 0.5  # seconds of one probe of 20,000 tokens at width 100, fitted once
PROCESS_BYTES = 400_000_000  # bytes of a process with PyTorch that has trained nothing yet
ERASURE_TOKENS = 30_000  # tokens of one erasure, including those that it is fitted on
# of one GPU in float32, fitted to an H200 with CUDA graphs (docs/how-to/gpu.md)
GPU_OPERATIONS = (
    26e12  # operations per second in the matrix products of a fleet, limited by memory as much as by arithmetic
)
GPU_STEP = 2.5e-3  # seconds that a step takes however small it is
GPU_ATTACK = 1.2  # factor on the time of a run under attack


@dataclass(frozen=True)
class Task:
    """A unit of work: train a fleet, or evaluate one trained run.

    A baseline is evaluated with its attention cut, one site rewound or replaced by its mean, or a label erased at a site; it
    and attacked runs are probed for a label. `runs` are a fleet's run ids, or the one; an empty `site` stands for all
    sites, an empty `label` for none; `seconds` is the expected cost on one core and does not count in comparisons.
    """

    kind: str
    runs: tuple[str, ...]
    site: str = ""
    label: str = ""
    seconds: float = field(default=1.0, compare=False)

    @property
    def title(self) -> str:
        """Its title in progress lines."""
        name, seed, _ = self.runs[0].rsplit("-", 2)
        if self.kind == "train":
            return f"train {len(self.runs)} runs from {name} ({seed})"
        return f"{' '.join(filter(None, (self.kind, self.label, self.site)))} ({seed})"

    def files(self, folder: Folder) -> list[Path]:
        """The files that exist once it is done."""
        if self.kind == "train":
            return [folder.run(run) for run in self.runs]
        return [folder.evaluation(self.runs[0], self.kind, self.site, self.label)]

    def is_done(self, folder: Folder) -> bool:
        """Whether all of its files exist."""
        return all(path.exists() for path in self.files(folder))


def fleet_name(runs: Sequence[str]) -> str:
    """A short name, determined by the fleet's members."""
    return digest("\n".join(runs), 6)


def evaluations(experiments: Iterable[Design], corpus: str) -> dict[Task, tuple[Design, Run]]:
    """All evaluations of the experiments, each once, with the first design and run that need it."""
    tasks: dict[Task, tuple[Design, Run]] = {}
    for design in (experiment.resolved() for experiment in experiments):
        rewind, erase = design.rewind, design.erase
        probes = [("probe", "", label) for label in (design.probe.labels if design.probe else ())]
        kinds = [("cut", str(Site(("attn",), None)), "")]
        if rewind:
            rewind_kinds = ("rewind", "midstage") if rewind.midstage else ("rewind",)
            kinds += [(kind, str(site), "") for kind in rewind_kinds for site in rewind.sites]
        kinds += probes
        for kind, method in (("ablate", design.ablate), ("interchange", design.interchange)):
            kinds += [(kind, str(site), "") for site in (method.sites if method else ())]
        if erase:
            kinds += [("erase", str(site), label) for label in erase.labels for site in erase.sites]
        for run in design.runs(corpus):
            run_kinds = kinds if run.edit is None else [probe for probe in probes if probe[2] == run.edit.column]
            for kind, site, label in run_kinds:
                tasks.setdefault(Task(kind, (run.id,), site, label), (design, run))
    return tasks


def fleets(runs: Iterable[Run], size: int = FLEET["cpu"]) -> list[list[Run]]:
    """Runs that can be trained side by side (one seed, one training, one label), the baseline's fleet first."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.seed, run.training.epochs, run.edit.column if run.edit else None), []).append(run)
    batches = []
    for group in groups.values():
        count = -(-len(group) // size)
        bounds = [round(i * len(group) / count) for i in range(count + 1)]
        batches += [group[a:b] for a, b in itertools.pairwise(bounds)]
    return sorted(batches, key=lambda fleet: all(run.edit for run in fleet))


def _fleet_ids(runs: Iterable[Run], size: int) -> tuple[tuple[str, ...], ...]:
    """The run ids of each fleet."""
    return tuple(tuple(run.id for run in fleet) for fleet in fleets(runs, size))


def join_ledger(
    folder: Folder,
    experiments: Sequence[Design],
    corpus: str,
    device: str = "cpu",
    precision: str = "float32",
    fleet: int | None = None,
    write: bool = True,
) -> Ledger:
    """The folder's ledger with the experiments added and new runs grouped into fleets; written before any work.

    `corpus` is the fingerprint of their text with its vocabulary; `fleet` is how many runs a new study trains side by side, which the
    `device` decides where it is None.
    Raises StudyError, showing the difference, when the folder belongs to a study of another text, model, training,
    precision or size of fleets: nothing is written then.
    """
    ledger = None
    if folder.ledger.exists() or folder.copy.exists():
        ledger = folder.read_ledger()
        if ledger.precision != precision:
            raise StudyError(
                f"{folder.path} belongs to a study trained with {ledger.precision} matrix products.",
                f"Here {precision} ones are asked for, and the runs of a study are compared with one another.",
                f"Give --precision {ledger.precision}, or choose another folder with --out.",
            )
        if fleet not in (None, ledger.fleet):
            raise StudyError(
                f"{folder.path} belongs to a study with fleets of up to {ledger.fleet} runs.",
                f"Here --fleet {fleet} is asked for; which runs are trained side by side changes results in their last bits.",
                "Leave --fleet out, or choose another folder with --out.",
            )
    else:
        folder.check_empty("study")
    for design in (experiment.resolved() for experiment in experiments):
        if ledger is None:
            size = fleet or FLEET[device]
            ledger = Ledger(corpus, (design,), _fleet_ids(design.runs(corpus), size), size, precision, STEP_REVISION)
            continue
        changes = [f"corpus (there {ledger.corpus!r}, here {corpus!r})"] if corpus != ledger.corpus else []
        if changes := [*changes, *differences(ledger.experiment, design)]:
            raise StudyError(
                f"{folder.path} belongs to another study.",
                "It differs in " + "; ".join(changes) + ".",
                "Choose another folder with --out, or the same text, model and training: seeds, sites and experiments may be added.",
            )
        new = [run for run in design.runs(corpus) if run.id not in ledger.runs]
        has_work = new or evaluations([design], corpus).keys() - evaluations(ledger.asked, corpus)
        # the text is the same by its fingerprint, and may have moved
        previous = tuple(replace(call, text=design.text) for call in ledger.asked)
        grouped = (*ledger.fleets, *_fleet_ids(new, ledger.fleet))
        ledger = replace(ledger, asked=(*previous, design) if has_work else previous, fleets=grouped)
    assert ledger is not None, "a study has a design"
    for path in (folder.ledger, folder.copy) if write else ():
        try:  # a process that was killed between two writes leaves an old copy
            same = read_json(path, "") == to_json_data(ledger)
        except DamagedFileError:  # missing, or altered
            same = False
        if not same:
            write_json(path, to_json_data(ledger))
    return ledger


def repeating(ledger: Ledger) -> Design | tuple[Design, ...]:
    """The designs with which `trisect study` repeats a study bit for bit.

    One design if it makes the same runs in the same fleets and the same evaluations, otherwise one for each call (after a study was
    extended unevenly, or by sites).
    """
    design, corpus = ledger.experiment, ledger.corpus
    same = set(_fleet_ids(design.runs(corpus), ledger.fleet)) == set(ledger.fleets)
    if same and evaluations([design], corpus).keys() == evaluations(ledger.asked, corpus).keys():
        return design
    return ledger.asked


def _forward_operations(run: Run, vocabulary: int) -> float:
    """Operations of the matrix products for one token in a forward pass of one run."""
    m, window = run.model, run.training.window
    layer = 8 * m.width**2 + 4 * m.width * m.feedforward + 4 * window * m.width
    return m.layers * layer + 2 * m.width * vocabulary


def token_seconds(run: Run, vocabulary: int, training: bool) -> float:
    """Seconds of one core for a token of a run, forward and (in training) backward."""
    m, window = run.model, run.training.window
    overhead = m.layers * (WIDTH_SECONDS * m.width + SCORE_SECONDS * m.heads * window) + LOGIT_SECONDS * vocabulary
    step = 3 * _forward_operations(run, vocabulary) / CORE_OPERATIONS + overhead
    if not training:
        return step / 3
    return step + (run.edit.token_seconds(m.width) if run.edit else 0.0)


def _training_seconds(run: Run, corpus: Corpus) -> float:
    """Seconds of one core for a run's training, evaluated after each epoch."""
    step, forward = (token_seconds(run, len(corpus.vocabulary), trains) for trains in (True, False))
    epochs, tokens = run.training.epochs, len(corpus.splits["train"].tokens)
    return epochs * tokens * step + (epochs + 1) * _evaluation_tokens(corpus, run) * forward


def _evaluation_tokens(corpus: Corpus, run: Run) -> int:
    """The approximate number of tokens of each evaluation."""
    training = run.training
    windows = len(sample_steps(corpus.splits["train"], training.columns, training.window, training.train_sample))
    return windows * training.columns * training.window + len(corpus.splits["valid"].tokens)


def _evaluation_tasks(experiments: Sequence[Design], corpus: Corpus) -> list[Task]:
    """All evaluations of each trained run, with expected seconds on one core."""
    tasks = []
    for task, (design, run) in evaluations(experiments, corpus.fingerprint).items():
        points, tokens = 0, _evaluation_tokens(corpus, run)
        if (rewind := design.rewind) and task.kind in ("rewind", "midstage"):
            points = rewind.points if rewind.mode == "exact" else min(rewind.points, 20)
            # of train and valid
            tokens = min(tokens, 2 * rewind.sample_tokens) if rewind.sample_tokens else tokens
        points = {"cut": 1, "ablate": 2, "interchange": 3, "midstage": run.training.epochs + 1}.get(task.kind, points)
        token = token_seconds(run, len(corpus.vocabulary), False)
        seconds = 0.6 * points * tokens * token  # on average 0.6 of the layers are run again
        if task.kind == "erase" and design.erase:
            seconds = (2 + design.erase.draws) * ERASURE_TOKENS * token
        elif task.kind == "probe" and (probe := design.probe):
            sites = [site.resolve(run.model.layers, run.model.heads) for site in probe.sites or ()]
            probed = (len(sites) or 3 * run.model.layers) + probe.random_maps * len(layers_with_heads(sites))
            # cross-validation fits several times, on less text each
            seconds = 2 * PROBE_SECONDS * len(probe.kinds) * probed * run.model.width / 100
        tasks.append(replace(task, seconds=seconds))
    return tasks


def memory_bytes(experiment: Design, vocabulary: int, members: int) -> int:
    """The approximate memory in bytes of a worker process that trains `members` runs side by side.

    Counts the weights, gradients, moments and initial weights of every member, and what the backward pass of a step needs.
    """
    m, t = experiment.model, experiment.training
    positions = t.columns * t.window
    layer = 14 * m.width + 3 * m.feedforward + 3 * m.heads * t.window
    step = 4 * positions * (m.layers * layer + 3 * vocabulary)
    return PROCESS_BYTES + members * (5 * 4 * count_parameters(m, vocabulary) + step)


def makespan(jobs: Sequence[float], workers: int) -> float:
    """The end of the last job if each starts, in order, on the first free worker."""
    ends = [0.0] * workers
    for seconds in jobs:
        heapq.heappush(ends, heapq.heappop(ends) + seconds)
    return max(ends)


def gpu_seconds(fleet: Sequence[Run], corpus: Corpus) -> float:
    """Expected seconds of one GPU for the steps of one fleet's training."""
    run, tokens = fleet[0], len(corpus.splits["train"].tokens)
    positions = run.training.columns * run.training.window
    step = GPU_STEP + len(fleet) * 3 * _forward_operations(run, len(corpus.vocabulary)) * positions / GPU_OPERATIONS
    attacked = any(member.edit is not None and member.edit.column is not None for member in fleet)
    return run.training.epochs * tokens / positions * step * (GPU_ATTACK if attacked else 1.0)


@dataclass(frozen=True)
class Plan:
    """A plan of runs. Memory is a rough estimate for one worker process; `disk_bytes` is the size of results.

    `training` and `evaluation` are the expected seconds of every job on one core, `on_gpu` those of training on one GPU; up to
    `fleet` runs are trained in one job. Label columns that are `missing` from the text are planned anyway.
    """

    experiments: tuple[Design, ...]
    corpus: Corpus
    runs: tuple[Run, ...]
    parameters: int
    disk_bytes: int
    memory_bytes: int
    fleet: int
    training: tuple[float, ...]
    evaluation: tuple[float, ...]
    on_gpu: tuple[float, ...]
    cores: int
    missing: tuple[str, ...] = ()
    gpus: int | None = None
    listed: bool = False

    @property
    def train_seconds(self) -> float:
        """Seconds of one core for all training."""
        return sum(self.training)

    @property
    def rewind_seconds(self) -> float:
        """Seconds of one core for all evaluations."""
        return sum(self.evaluation)

    def words(self) -> tuple[str, ...]:
        """Text, runs, time, memory and disk in words; with `listed` the id of every run before them."""
        text, jobs = self.corpus, (*self.training, *self.evaluation)
        splits = ", ".join(f"{name} {len(split.tokens):,}" for name, split in text.splits.items())
        parts = f"{clock(self.train_seconds)} training, {clock(self.rewind_seconds)} rewinding"
        lines = [
            *(run.id for run in self.runs if self.listed),
            f"text      {text.name}: {splits} tokens, {len(text.vocabulary):,} types",
            *(
                f"labels    no column '{label}': its runs are planned, and a study of this text is refused"
                for label in self.missing
            ),
            f"runs      {len(self.runs)}, of {self.parameters:,} parameters each",
            f"time      roughly {clock(self.train_seconds + self.rewind_seconds)} of one core ({parts})",
            f"jobs      {len(self.training)} of training (up to {self.fleet} runs in one), {len(self.evaluation)} of evaluation; "
            f"the longest roughly {clock(max(jobs, default=0.0))} of one core",
            f"spread    roughly {clock(makespan(jobs, self.cores))} on {self.cores} core{'s' * (self.cores != 1)}",
        ]
        if self.gpus is not None:
            took, longest = clock(makespan(self.on_gpu, self.gpus)), clock(max(self.on_gpu, default=0.0))
            expected = f"training roughly {took} on {self.gpus} (the longest job {longest}): expected, not measured"
            lines.append(f"GPUs      {expected}")
        lines.append(f"memory    roughly {self.memory_bytes / 1e6:,.0f} MB a worker process")
        return (*lines, f"disk      {self.disk_bytes / 1e6:,.0f} MB")

    def data(self) -> dict[str, Any]:
        """The plan as JSON-ready data."""
        jobs = (*self.training, *self.evaluation)
        spread: dict[str, Json] = {
            "fleet": self.fleet,
            "training": len(self.training),
            "evaluation": len(self.evaluation),
            "longest_core_seconds": max(jobs, default=0.0),
            "cores": self.cores,
            "seconds_on_cores": makespan(jobs, self.cores),
        }
        if self.gpus is not None:
            spread |= {"gpus": self.gpus, "training_seconds_on_gpus": makespan(self.on_gpu, self.gpus)}
        return {
            "experiment": to_json_data(self.experiments[0] if len(self.experiments) == 1 else self.experiments),
            "corpus": {
                "name": self.corpus.name,
                "fingerprint": self.corpus.fingerprint,
                "types": len(self.corpus.vocabulary),
                **({"missing_labels": list(self.missing)} if self.missing else {}),
            },
            "parameters": self.parameters,
            "runs": [run.id for run in self.runs],
            "jobs": spread,
            "core_seconds": {"train": self.train_seconds, "rewind": self.rewind_seconds},
            "disk_bytes": self.disk_bytes,
            "memory_bytes": self.memory_bytes,
        }

    def check_machine(self, place: Path) -> None:
        """Raise SpecError if a worker needs more memory than this machine has, or the disk of `place` has too little space."""
        memory, free = machine.memory_bytes(), machine.free_bytes(place)
        for needed, has, resource in (
            (self.memory_bytes, memory, "memory in one worker process"),
            (self.disk_bytes, free, f"disk in {place.absolute()}"),
        ):
            if has is not None and needed > has:
                raise SpecError(
                    f"This would take roughly {needed / 1e9:,.1f} GB of {resource}.",
                    f"This machine has {has / 1e9:,.1f} GB{' free' if resource.startswith('disk') else ''}.",
                    "Choose a smaller model, text or study, or give --force to go on all the same.",
                )


def designs(source: DesignSource) -> tuple[Design, ...]:
    """A preset, an experiment, or the experiments of a file, with some settings replaced.

    `epochs` are those of every run, attacks included, `sites` those of every intervention that can be there (an erasure takes
    all of q, k or v); what is not among `only` is left out. Raises SpecError or SiteError.
    """
    chosen = find_experiments(source.experiment)
    if is_preset(source.experiment) and source.only is None and not is_installed("concept_erasure"):
        chosen = tuple(replace(design, erase=None) for design in chosen)  # a preset runs with what is installed
    if source.only is not None:
        chosen = only(chosen, source.only)
    places = tuple(s if isinstance(s, Site) else Site.parse(s) for s in source.sites)
    changed = []
    for design in chosen:
        if source.corpus is not None:
            design = replace(design, text=replace(design.text, corpus=absolute_name(source.corpus)))
        if source.seeds is not None:
            design = replace(design, seeds=source.seeds)
        if source.epochs is not None:
            attack = design.attack and replace(design.attack, epochs=None)
            design = replace(design, training=replace(design.training, epochs=source.epochs), attack=attack)
        if places:
            # a tie's sites are combinations: those of the source are meant for it where nothing else is run
            methods = ("tie",) if source.only == ("tie",) else ("attack", "control", "rewind", "freeze")
            inner = tuple(s for s in places if set(s.components) <= {"q", "k", "v"})
            sites = dict.fromkeys(methods, places) | {"ablate": inner}
            sites |= dict.fromkeys(("interchange", "erase"), tuple(s for s in inner if not s.heads))
            parts = {
                name: part and (replace(part, sites=chosen_sites) if chosen_sites else None)
                for name, chosen_sites in sites.items()
                for part in [getattr(design, name)]
            }
            parts["edits"] = tuple(dict.fromkeys(replace(edit, site=s) for edit in design.edits for s in places))
            design = replace(design, **parts)
        changed.append(design.resolved())
    return tuple(changed)


def make_plan(*experiments: Design, fleet: int | None = None, without_labels: bool = False) -> Plan:
    """Plan all runs of the experiments (of one text); reads the text, trains nothing.

    `fleet` is how many runs one job trains side by side, as on a CPU where it is None. Raises TrisectError for what cannot be run;
    `without_labels`, label columns that the text does not have are noted instead: expected costs do not depend on their classes.
    """
    text = experiments[0].text
    if any(design.text != text for design in experiments):
        raise SpecError(
            "The experiments have different texts.",
            "What is run in one folder has one text, one model and one training.",
            "Give them the same text.",
        )
    corpus, missing = load_text(text), dict[str, None]()
    for design in experiments:
        parts = (design.attack, design.control, design.probe, design.erase)
        columns = [label for part in parts if part for label in part.labels]
        for label in (*columns, *(edit.column for edit in design.edits if edit.column is not None)):
            if without_labels and label not in corpus.labels:
                missing[label] = None
            else:
                corpus.column(label)
        if design.erase:
            require_extra("concept_erasure", "erase", "Erasing a label")
        if design.interchange:
            world_of(corpus)
        check_windows(corpus, design.training.window)
        steps(corpus.splits["train"], design.training.columns, design.training.window)
        steps(corpus.splits["valid"], design.training.eval_columns, design.training.window)
    tokens = corpus.splits["train"].tokens
    if len(np.unique(tokens)) < 2:
        raise CorpusError(
            f"The text '{corpus.name}' has one word type.",
            f"All {len(tokens):,} of its train tokens are {corpus.vocabulary[int(tokens[0])]!r}.",
            "Give another text, or a smaller min_count.",
        )
    all_runs = (run for design in experiments for run in design.runs(corpus.fingerprint))
    runs = tuple(dict.fromkeys(itertools.islice(all_runs, MAX_RUNS + 1)))
    if len(runs) > MAX_RUNS:
        raise SpecError(
            f"More than {MAX_RUNS:,} runs are asked for.",
            f"One study holds up to {MAX_RUNS:,}.",
            "Name fewer seeds, sites, labels or strengths.",
        )
    members, vocabulary = fleet or FLEET["cpu"], len(corpus.vocabulary)
    # every run's final weights stay, and the baselines' in-projections of every epoch
    disk = 4 * sum(count_parameters(run.model, vocabulary) for run in runs)
    for model, epochs in ((run.model, run.training.epochs) for run in runs if run.edit is None):
        disk += 4 * (epochs + 1) * model.layers * 3 * model.width * (model.width + 1)
    groups = fleets(runs, members)
    return Plan(
        *(experiments, corpus, runs, count_parameters(experiments[0].model, vocabulary), disk),
        max(memory_bytes(design, vocabulary, min(members, len(runs))) for design in experiments),
        members,
        tuple(sum(_training_seconds(run, corpus) for run in group) for group in groups),
        tuple(task.seconds for task in _evaluation_tasks(experiments, corpus) if task.kind != "cut"),
        tuple(gpu_seconds(group, corpus) for group in groups),
        Machine().cores(),
        tuple(missing),
    )


def make_tasks(plan: Plan, folder: Folder, ledger: Ledger) -> list[Task]:
    """All unfinished tasks of the plan: fleets in the ledger's order, then evaluations."""
    by_id, tasks = {run.id: run for run in plan.runs}, list[Task]()
    for fleet in ledger.fleets:
        if planned_runs := [by_id[i] for i in fleet if i in by_id]:
            cost = sum(_training_seconds(run, plan.corpus) for run in planned_runs) * len(fleet) / len(planned_runs)
            tasks.append(Task("train", fleet, seconds=cost))
    tasks += _evaluation_tasks(plan.experiments, plan.corpus)
    pending = [task for task in tasks if not task.is_done(folder)]
    retrained = {run for task in pending if task.kind == "train" for run in task.runs}
    return [task for task in tasks if task in pending or (task.kind != "train" and task.runs[0] in retrained)]
