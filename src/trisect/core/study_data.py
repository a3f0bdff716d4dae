"""What a study keeps as JSON, as types: statements of designs and runs, its ledger, its description, its finished runs."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from trisect.core.files import Json
from trisect.core.machine import PRECISIONS
from trisect.core.methods import Fitted
from trisect.core.schema import FLEET, one_of

# kind, site, label, strength, and a kind's own settings
EditData: TypeAlias = dict[str, str | float | int | bool | None]


class ModelData(TypedDict, total=False):
    """The shape of a model; what is not said stands at its default."""

    width: int
    layers: int
    heads: int
    feedforward: int
    dropout: float
    idle: list[int]


class TextData(TypedDict, total=False):
    """Which text, and how much of it."""

    corpus: str | None
    train_tokens: int | None
    valid_tokens: int | None
    min_count: int


class TrainingData(TypedDict, total=False):
    """How runs are trained."""

    epochs: int
    columns: int
    eval_columns: int
    window: int
    optimizer: str
    rate: float
    warmup: int
    decay: float
    weight_decay: float
    clip: float
    train_sample: int | None


class MethodData(TypedDict):
    """What a design says of attacks, freezing, controls, ties or ablation: each has some of these beside its sites."""

    sites: list[str]
    labels: NotRequired[list[str]]
    strengths: NotRequired[list[float]]
    epochs: NotRequired[int | None]
    variants: NotRequired[list[str]]
    strength: NotRequired[float]
    identity: NotRequired[list[str]]
    narrow: NotRequired[bool]


class RewindData(TypedDict):
    """How sites are rewound; a design says also which, a ledger how alone."""

    points: int
    epsilon: float
    mode: str
    sites: NotRequired[list[str]]
    midstage: NotRequired[bool]
    sample_tokens: NotRequired[int | None]
    sample_seed: NotRequired[int]


class ProbeData(TypedDict):
    """How labels are probed, and in a design which."""

    sites: list[str] | None
    kinds: list[str]
    labels: NotRequired[list[str]]
    fitted: NotRequired[Fitted | None]  # missing in what was written under revision 1: on train
    random_maps: NotRequired[int]  # missing where there are none, as there then never were


class EraseData(TypedDict):
    """How labels are erased, and in a design which, and where."""

    draws: int
    sites: NotRequired[list[str]]
    labels: NotRequired[list[str]]
    fitted: NotRequired[Fitted | None]  # as in ProbeData
    shrinkage: NotRequired[bool]  # missing where it is on, as it then always was


class InterchangeData(TypedDict):
    """How values are exchanged between runs of the model, and in a design where."""

    pairs: int
    sites: NotRequired[list[str]]


HowData: TypeAlias = RewindData | ProbeData | EraseData | InterchangeData


class DesignData(TypedDict):
    """A design as `plain` gives it: what a settings file of a study holds."""

    name: str
    text: TextData
    model: ModelData
    training: TrainingData
    seeds: list[int]
    attack: NotRequired[MethodData | None]
    rewind: NotRequired[RewindData | None]
    freeze: NotRequired[MethodData | None]
    control: NotRequired[MethodData | None]
    tie: NotRequired[MethodData | None]
    probe: NotRequired[ProbeData | None]
    erase: NotRequired[EraseData | None]
    ablate: NotRequired[MethodData | None]
    interchange: NotRequired[InterchangeData | None]
    edits: NotRequired[list[EditData]]


class RunData(TypedDict):
    """A run's statement, of which its id is the hash."""

    schema: int
    corpus: str
    model: ModelData
    training: TrainingData
    seed: int
    edit: EditData | None


class BaseData(TypedDict):
    """What is one for all runs of a folder, and how their evaluations are done."""

    schema: int
    corpus: str
    model: ModelData
    training: TrainingData
    attack_epochs: int | None
    rewind: RewindData | None
    probe: NotRequired[ProbeData]
    erase: NotRequired[EraseData]
    interchange: NotRequired[InterchangeData]


class LedgerData(TypedDict):
    """What was asked of a study, call by call, its runs by id, and which of them are trained side by side."""

    base: BaseData
    experiment: DesignData
    runs: dict[str, RunData]
    fleets: list[list[str]]
    asked: NotRequired[list[DesignData]]  # these are missing in ledgers from before there were any
    fleet: NotRequired[Annotated[int, Field(ge=1, le=FLEET)]]
    precision: NotRequired[Annotated[str, one_of(*PRECISIONS)]]
    step: NotRequired[Annotated[int, Field(ge=1)]]


class CorpusData(TypedDict, total=False):
    """What is noted of a study's text: tokens of each split, class names of each label column."""

    name: str
    fingerprint: str
    types: int
    splits: dict[str, int]
    labels: dict[str, list[str]]
    notes: list[str]


class NotedStudy(TypedDict):
    """What a study's file about.json holds; seconds are of all calls."""

    corpus: CorpusData
    device: str
    precision: NotRequired[str]
    wall_seconds: NotRequired[float]
    command: NotRequired[str]


class StudyAbout(TypedDict, total=False):
    """What is said of a study beside its tables; seconds are of all calls."""

    corpus: CorpusData
    experiment: DesignData
    device: str
    precision: str
    wall_seconds: float
    command: str
    versions: dict[str, str]


class FinishedRun(TypedDict):
    """What a finished run's file holds; `metrics` are rows of epoch, split, name and value."""

    format: NotRequired[int]
    spec: RunData
    status: str
    diverged_step: int | None
    parameters: int
    versions: dict[str, str]
    claims_hash: str
    revision: NotRequired[int]
    device: str
    precision: NotRequired[str]
    recorded: NotRequired[Json]
    numerics: NotRequired[str]
    wall_seconds: float
    metrics: list[tuple[int, str, str, float | None]]
