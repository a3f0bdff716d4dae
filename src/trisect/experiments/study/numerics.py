"""What trained a study's runs: the step's revision, the products' precision and library, the kind of device; never two in one study."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence

from trisect.core.errors import SpecError, StudyError
from trisect.core.spec import Design
from trisect.core.study_data import LedgerData
from trisect.experiments.study.ledger import step_of
from trisect.experiments.study.tasks import Task
from trisect.lab.folder import Folder
from trisect.lab.runs import read_finished
from trisect.lm.matmul import STEP, agree


def check_precision(experiments: Sequence[Design], precision: str) -> None:
    """Raise SpecError for narrow products in `quick`; warn where effects are asked for that they may hide."""
    if precision == "float32":
        return
    if any(experiment.name == "quick" for experiment in experiments):
        raise SpecError(
            f"The precision {precision!r} was asked for in 'quick'.",
            "At its size large products are a small part of a step, and its effects are small beside what rounding moves.",
            "Leave --precision out.",
        )
    if any(experiment.freeze or experiment.rewind or experiment.tie for experiment in experiments):
        warnings.warn(
            f"{precision} products moved effects of freezing by more than their spread over seeds where that was measured "
            "(docs/explanation/precision.md): compare effects of hundredths of a nat in float32.",
            stacklevel=2,
        )


def check_step(folder: Folder, ledger: LedgerData, tasks: Sequence[Task]) -> None:
    """Raise StudyError where runs are left to train in a study that an earlier revision of the step began."""
    left = sum(len(task.runs) for task in tasks if task.kind == "train")
    if left and (began := step_of(ledger)) != STEP:
        raise StudyError(
            f"{folder.path} belongs to a study that revision {began} of the training step began.",
            f"{left} of its runs are not trained yet, this version trains with revision {STEP}, whose last bits differ, and "
            "the runs of a study are compared with one another.",
            "Go on with the version of trisect that began it, or choose another folder with --out; what is finished can "
            "be reported and evaluated.",
        )


class TrainedSoFar:
    """What trained the runs of a study so far."""

    def __init__(self, folder: Folder, ledger: LedgerData) -> None:
        self.folder, self.found = folder, set[str]()
        self.add([run for run in ledger["runs"] if folder.run(run).exists()])

    @property
    def expected(self) -> str | None:
        """What must train the others, the note that says most; null where nothing is noted yet."""
        return max(self.found, key=lambda said: (len(said), said), default=None)

    def add(self, runs: Sequence[str]) -> None:
        """Note what trained these; raises StudyError where the study has two then."""
        self.found |= {said for run in runs if (said := read_finished(self.folder, run).get("numerics"))}
        if not all(agree(*two) for two in itertools.combinations(sorted(self.found), 2)):
            raise StudyError(
                f"Runs of {self.folder.path} were trained in two ways.",
                f"They are: {'; '.join(sorted(self.found))}. The runs of a study are compared with one another.",
                "Delete the folders of those runs that are to be trained again, and use machines of one kind.",
            )
