# Made by `make docs` from trisect.__init__ and the experiments' settings.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trisect import measure as measure
from trisect import theory as theory
from trisect.core.methods import Attack as Attack
from trisect.core.methods import Control as Control
from trisect.text.corpus import Corpus as Corpus
from trisect.core.spec import Design as Design
from trisect.core.edits import Edit as Edit
from trisect.core.methods import Erase as Erase
from trisect.core.methods import Freeze as Freeze
from trisect.core.machine import Machine as Machine
from trisect.core.tables import MeasureName as MeasureName
from trisect.core.spec import Model as Model
from trisect.core.methods import Probe as Probe
from trisect.core.trace import Reading as Reading
from trisect.core.methods import Rewind as Rewind
from trisect.core.spec import Run as Run
from trisect.core.site import Site as Site
from trisect.experiments.study.result import Study as Study
from trisect.core.spec import Text as Text
from trisect.core.subject import Texts as Texts
from trisect.core.methods import Tie as Tie
from trisect.core.trace import Trace as Trace
from trisect.core.spec import Training as Training
from trisect.core.errors import TrisectError as TrisectError
from trisect.lab.annotation import annotate as annotate
from trisect.calls import chart as chart
from trisect.calls import check as check
from trisect.calls import corpus as corpus
from trisect.calls import direct_logits as direct_logits
from trisect.calls import edit as edit
from trisect.calls import explore as explore
from trisect.calls import intervene as intervene
from trisect.calls import list_claims as list_claims
from trisect.lab.subject import load as load
from trisect.calls import logit_lens as logit_lens
from trisect.calls import prove as prove
from trisect.calls import read as read
from trisect.calls import render as render
from trisect.calls import serve as serve
from trisect.calls import switchboard as switchboard
from trisect.calls import texts as texts
from trisect.lab.experiment import Result
from trisect.experiments.compose.run import Composed
from trisect.experiments.patch.result import Patched
from trisect.experiments.profile import Profile
from trisect.experiments.ablate.settings import AblateFacts
from trisect.experiments.align.settings import AlignFacts
from trisect.experiments.bench.settings import BenchmarkFacts
from trisect.experiments.compare.settings import CompareFacts
from trisect.experiments.compose.settings import ComposeFacts
from trisect.experiments.dissect.settings import DissectFacts
from trisect.experiments.erase.settings import EraseFacts
from trisect.experiments.explore.settings import ExploreFacts
from trisect.experiments.lookup.settings import LookupFacts
from trisect.experiments.norms.settings import NormsFacts
from trisect.experiments.patch.settings import PatchFacts
from trisect.experiments.profile.settings import ProfileFacts
from trisect.experiments.quantise import ReadFacts
from trisect.experiments.recall.settings import RecallFacts
from trisect.experiments.checkpoints.settings import RewindFacts
from trisect.experiments.similarity.settings import SimilarityFacts
from trisect.experiments.study.settings import StudyFacts
from trisect.experiments.theory.settings import TheoryFacts
from trisect.experiments.translate.settings import TranslateFacts
from trisect.experiments.recall.ask import RecallReply
from trisect.hf.verify.handle import Audit
from trisect.experiments.study.plan import Plan

def ablate(
    model: Any,
    texts: Any = None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    text: str | Sequence[str] = (),
    audio: Any | Sequence[Any] = (),
    image: Any | Sequence[Any] = (),
    split: str = 'test',
    reader: str | None = None,
    limit: int | None = None,
    edits: Mapping[str, Any] | None = None,
    sites: Site | str | Sequence[Site | str] | None = None,
    how: str = 'mean',
    per: str = 'layer',
    hold: bool = False,
    batch: int = 8,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[AblateFacts]: ...

def align(
    models: Any | Sequence[Any],
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    pickle: bool = False,
    remote_code: bool = False,
    target: str | Path | None = None,
    gold: str | Path | None = None,
    base: int | None = None,
    trial: str | Path | Sequence[str | Path] | None = None,
    limit: int | None = None,
    batch: int = 16,
    marker: str | None = None,
    spans: str | Path | None = None,
    word: str = '\\S+',
    draws: int = 10000,
    seed: int = 0,
    bitext: Any = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[AlignFacts]: ...

def bench(
    files: str | Path | Sequence[str | Path] = (),
    *,
    functions: Any | Sequence[Any] = (),
    methods: str | Sequence[str] = (),
    worlds: str | Sequence[str] = (),
    seeds: int | Sequence[int] = (1, 2, 3, 4, 5),
    pairs: int = 32,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[BenchmarkFacts]: ...

def compare(
    models: Any | Sequence[Any],
    texts: Any = None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    pickle: bool = False,
    remote_code: bool = False,
    text: str | Sequence[str] = (),
    audio: Any | Sequence[Any] = (),
    image: Any | Sequence[Any] = (),
    split: str = 'test',
    reader: str | None = None,
    limit: int | None = None,
    what: str | Sequence[str] | None = None,
    pairs: str | Path | None = None,
    task: str | None = None,
    batch: int = 8,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[CompareFacts]: ...

def compose(
    model: Any,
    pairs: str | Path | None = None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    base: Any = None,
    donor: Any = None,
    into: Site | str | None = None,
    pair_list: Any = None,
    task: str | None = None,
    corpus: str | Path | None = None,
    split: str = 'valid',
    reader: str | None = None,
    count: int = 50,
    exact: int = 20,
    batch: int = 16,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Composed: ...

def dissect(
    *,
    seeds: int | Sequence[int] | None = None,
    device: str = 'auto',
    workers: int | None = None,
    engine: str | None = None,
    model: Any = None,
    corpus: str | Path = 'embedded',
    lookup: Mapping[str, str | float | int | bool | None] | None = None,
    study: str | Path | Design = 'all-layers',
    roles: str | Path | Design = 'roles-quick',
    recall: Mapping[str, str | float | int | bool | None] | None = None,
    translation: Mapping[str, str | float | int | bool | None] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[DissectFacts]: ...

def erase(
    model: Any,
    corpus: str | Path,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    labels: str | Sequence[str] = ('pos',),
    split: str = 'test',
    reader: str | None = None,
    limit: int | None = None,
    sites: Site | str | Sequence[Site | str] | None = None,
    draws: int = 10,
    per: str = 'layer',
    whose: str | None = None,
    tokens: int = 20000,
    shrinkage: bool = True,
    batch: int = 8,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[EraseFacts]: ...

def explore_page(
    model: Any,
    text: Any | Sequence[Any] = (),
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    image: Any | Sequence[Any] = (),
    audio: Any | Sequence[Any] = (),
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[ExploreFacts]: ...

def lookup(
    *,
    corpus: str | Path = 'embedded',
    reader: str | None = None,
    seeds: int | Sequence[int] = (1, 2, 3, 4, 5),
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    edits: str | Sequence[str] = (),
    pairs: int = 200,
    device: str = 'auto',
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[LookupFacts]: ...

def norms(
    model: Any,
    texts: Any = None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    text: str | Sequence[str] = (),
    audio: Any | Sequence[Any] = (),
    image: Any | Sequence[Any] = (),
    split: str = 'test',
    reader: str | None = None,
    limit: int | None = None,
    block: str = 'attention',
    batch: int = 8,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[NormsFacts]: ...

def patch(
    model: Any,
    pairs: str | Path | None = None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    base: Any = None,
    donor: Any = None,
    sites: Site | str | Sequence[Site | str] | None = None,
    pair_list: Any = None,
    task: str | None = None,
    corpus: str | Path | None = None,
    split: str = 'valid',
    reader: str | None = None,
    count: int = 100,
    per: str = 'layer',
    positions: str | None = None,
    path: str = 'all',
    how: str = 'denoise',
    by: str = 'patch',
    answered: bool = False,
    batch: int = 16,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Patched: ...

def profile(
    model: Any,
    corpus: str | Path,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    attention: str = 'self',
    labels: str | Sequence[str] | None = None,
    split: str = 'train',
    reader: str | None = None,
    limit: int | None = None,
    words: int = 40000,
    per: str = 'layer',
    draws: int = 200,
    checkpoints: str | Sequence[str] = (),
    mlp: bool = False,
    causal: int | None = None,
    folds: int = 5,
    batch: int = 16,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Profile: ...

def quantise(
    model: Any,
    texts: Any = None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    text: str | Sequence[str] = (),
    audio: Any | Sequence[Any] = (),
    image: Any | Sequence[Any] = (),
    split: str = 'test',
    reader: str | None = None,
    limit: int | None = None,
    sites: Site | str | Sequence[Site | str] | None = None,
    bits: int | Sequence[int] = (2, 3, 4, 8),
    by: str | Sequence[str] = ('channel', 'token'),
    rank: int | Sequence[int] = (),
    per: str = 'layer',
    memory: float = 3.0,
    tolerance: float | None = None,
    batch: int = 8,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[ReadFacts]: ...

def recall(
    data: str | Path = 'embedded',
    *,
    seeds: int | Sequence[int] = (1,),
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = 'auto',
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[RecallFacts]: ...

def rewind(
    model: str | Path,
    texts: Any = None,
    *,
    initial: str,
    final: str,
    text: str | Sequence[str] = (),
    audio: Any | Sequence[Any] = (),
    image: Any | Sequence[Any] = (),
    split: str = 'test',
    reader: str | None = None,
    limit: int | None = None,
    stages: str | Sequence[str] = (),
    sites: Site | str | Sequence[Site | str] | None = None,
    points: int = 101,
    epsilon: float = 0.01,
    exact: bool = False,
    window: int | None = None,
    device: str = 'auto',
    dtype: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    batch: int = 8,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[RewindFacts]: ...

def similarity(
    model: Any,
    texts: Any = None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    text: str | Sequence[str] | None = None,
    audio: Any | Sequence[Any] | None = None,
    image: Any | Sequence[Any] | None = None,
    split: str | None = None,
    reader: str | None = None,
    limit: int | None = None,
    draws: int = 20000,
    batch: int = 8,
    seed: int = 0,
    units: str | None = None,
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[SimilarityFacts]: ...

def study(
    experiment: str | Path | Design = 'quick',
    *,
    corpus: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    epochs: int | None = None,
    sites: Site | str | Sequence[Site | str] = (),
    only: str | Sequence[str] | None = None,
    device: str = 'auto',
    workers: int | None = None,
    engine: str | None = None,
    precision: str = 'float32',
    fleet: int | None = None,
    force: bool = False,
    join: str | Path | Sequence[str | Path] = (),
    out: str | Path | None = None,
    quiet: bool = False,
) -> Study: ...

def theory_page(
    names: str | Sequence[str] = (),
    *,
    beta: float | Sequence[float] = (),
    dim: int | None = None,
    keys: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[TheoryFacts]: ...

def translate_train(
    data: str | Path | None = None,
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    seeds: int | Sequence[int] = (1, 2),
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    keep: int | None = None,
    device: str = 'auto',
    workers: int | None = None,
    engine: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Result[TranslateFacts]: ...

def ask(
    model: str | Path,
    question: str,
    *,
    risk: float | None = None,
) -> RecallReply: ...

def audit(
    model: Any,
    handle: Any,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = 'auto',
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    window: int | None = None,
    site: Site | str,
    text: Any,
    end: str = 'output',
    write: Any = None,
) -> Audit: ...

def plan(
    experiment: str | Path | Design = 'quick',
    *,
    corpus: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    epochs: int | None = None,
    sites: Site | str | Sequence[Site | str] = (),
    only: str | Sequence[str] | None = None,
    force: bool = False,
    runs: bool = False,
    fleet: int | None = None,
    workers: int | None = None,
    gpus: int | None = None,
) -> Plan: ...
