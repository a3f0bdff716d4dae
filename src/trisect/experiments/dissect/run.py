"""Run all four sources at one small size: train, read and judge, and write the one page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from trisect.core.errors import StudyError
from trisect.core.fields import seeds_up_to
from trisect.core.files import read_json, replace_file, write_json
from trisect.core.finding import Finding
from trisect.core.spec import Design, Machine
from trisect.experiments.ablate.settings import ABLATE, AblateFacts, AblateSettings
from trisect.experiments.align.settings import ALIGN, AlignFacts, AlignSettings
from trisect.experiments.dissect import model_evidence, page
from trisect.experiments.dissect.evidence import Line
from trisect.experiments.dissect.page import SourceFindings
from trisect.experiments.dissect.study_evidence import study_lines
from trisect.experiments.norms.settings import NORMS, NormsFacts, NormsSettings
from trisect.experiments.recall.settings import RECALL, RecallFacts, RecallSettings
from trisect.experiments.similarity.settings import SIMILARITY, SimilarityFacts, SimilaritySettings
from trisect.experiments.study.settings import STUDY, DesignSource, StudyFacts, StudyMachine, StudySettings
from trisect.experiments.theory.settings import THEORY, TheoryFacts, TheorySettings
from trisect.experiments.translate.settings import TRANSLATE, TranslateSettings
from trisect.lab import driver
from trisect.lab.experiment import Result
from trisect.lab.folder import Folder
from trisect.lab.inputs import ModelSource, ModelsSource, TextSource, Workers
from trisect.lab.subject import load
from trisect.lab.versions import versions
from trisect.papers import SOURCES
from trisect.text.generated_bitext import generated
from trisect.text.raw import first_texts, open_texts

NONE: Mapping[str, Any] = {}
TEXTS = 60  # texts that the trained models are read on: enough for claims that resample texts
RECALLED = (1,)  # seeds of the models that recall
TRANSLATED = (1, 2)  # seeds of the translation models
HOW = "mean"  # what an ablated component is replaced by
# the files of the embedded pairs as translate-train leaves them, seen from the folder of the dissection
SOURCE, TARGET, GOLD = (f"translation/pairs/test.{end}" for end in ("source", "target", "pharaoh"))
TRIAL = tuple(f"translation/pairs/trial.{end}" for end in ("source", "target", "pharaoh"))


@dataclass(frozen=True, eq=False)
class Dissection:
    """What was found: the folder, the tables claims and evidence, the page, the lines, and a few sentences."""

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    report: Path
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    findings: tuple[str, ...]


def run_dissect(
    out: Path,
    seeds: int | tuple[int, ...] | None,
    machine: Machine,
    experiment: str | Design = "quick",
    recall: Mapping[str, Any] = NONE,
    translation: Mapping[str, Any] = NONE,
) -> Dissection:
    """Ask all four sources on embedded data and write one page about them into `out`; goes on where it stopped.

    The training study, recall and translation lie in folders of their own, with pages of their own. `seeds` are those of
    the training study, which is `experiment`; `recall` and `translation` are other values for settings of their recipes.
    Raises TrisectError.
    """
    path, began = out / "dissect.json", time.monotonic()
    given = seeds_up_to(seeds) if isinstance(seeds, int) else seeds
    how = StudyMachine(machine.device, machine.workers, machine.precision, machine.track)
    training = StudySettings(DesignSource(experiment, seeds=given), how)

    def check() -> None:
        if not path.exists():
            Folder(out).check_empty("dissection")
        _spent(path)
        driver.check(STUDY, training, out / "training", machine.quiet)
        driver.check(RECALL, _recalling(recall, machine), out / "recall")
        driver.check(TRANSLATE, _translating(translation, machine), out / "translation")

    with Folder(out).locked(check, lambda: _own(out)):
        before = _spent(path)
        write_json(path, {"seconds": before})
        try:
            return _dissect(out, training, machine, before, recall, translation)
        finally:
            with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
                write_json(path, {"seconds": before + time.monotonic() - began})


def _recalling(changes: Mapping[str, Any], machine: Machine) -> RecallSettings:
    """What recall is asked."""
    return RecallSettings(seeds=RECALLED, settings=changes, machine=Workers(machine.device, machine.workers))


def _translating(changes: Mapping[str, Any], machine: Machine) -> TranslateSettings:
    """What the translation models are."""
    return TranslateSettings(seeds=TRANSLATED, settings=changes, machine=Workers(machine.device, machine.workers))


def _spent(path: Path) -> float:
    """Seconds of all calls before; raises DamagedFileError where the file no longer says."""
    return read_json(path, f"Delete {path}: nothing else is lost.")["seconds"] if path.exists() else 0.0


def _own(out: Path) -> list[Path]:
    """Every folder that is written here by no experiment with a lock of its own."""
    reads = [path for path in sorted((out / "reading").glob("seed-*")) if re.fullmatch("seed-[0-9]+", path.name)]
    whole = [out, out / "theory", out / "alignment"]
    whole += [read / name for read in reads for name in ("norms", "similarity", "ablation")]
    return [*whole, *(place / name for place in whole for name in ("tables", "figures", "links"))]


class Reads(NamedTuple):
    """What one trained model was read for."""

    norms: Result[NormsFacts]
    similarity: Result[SimilarityFacts]
    ablation: Result[AblateFacts]


def _dissect(
    out: Path,
    training: StudySettings,
    machine: Machine,
    before: float,
    remembering: Mapping[str, Any],
    translating: Mapping[str, Any],
) -> Dissection:
    began = time.monotonic()
    study = driver.run(STUDY, training, out / "training", machine.quiet)
    theory = driver.run(THEORY, TheorySettings(), out / "theory", machine.quiet)
    recall = driver.run(RECALL, _recalling(remembering, machine), out / "recall", machine.quiet)
    trained = driver.run(TRANSLATE, _translating(translating, machine), out / "translation", machine.quiet)
    pairs = AlignSettings(
        ModelsSource(tuple(trained.paths.values())), SOURCE, TARGET, GOLD, trial=TRIAL, bitext=generated()
    )
    aligned = driver.run(ALIGN, pairs, out / "alignment", machine.quiet)
    reads = {seed: _read(model, out / "reading" / f"seed-{seed}", machine.quiet) for seed, model in _baselines(study)}
    first, studied = f"reading/seed-{next(iter(reads))}", study.findings
    asked = (
        _submodules(study, studied),
        _by_hand(theory, recall),
        _norms(next(iter(reads.values())).norms, aligned, first),
        _matrices(study, studied, next(iter(reads.values())).similarity, first),
    )
    verdicts = {row["claim"]: row["verdict"] for row in page.wholes(asked)}
    lines = _lines(studied, recall, aligned, list(reads.values()), verdicts, first)
    tables = {"claims": page.all_claims(asked), "evidence": page.evidence(lines)}
    for name, table in tables.items():
        replace_file(out / "tables" / f"{name}.parquet", lambda scratch, table=table: table.write_parquet(scratch))
    report = page.write(out, asked, lines, _about(study, before + time.monotonic() - began))
    notes = tuple(dict.fromkeys((*recall.notes, *aligned.notes)))
    return Dissection(out, tables, report, tuple(lines), notes, page.findings(asked, lines))


def _baselines(study: Result[StudyFacts]) -> Iterator[tuple[int, Path]]:
    """Seed and folder of every baseline that did not diverge, by seed."""
    runs = study.tables["runs"].filter(edit="none", status="finished").sort("seed")
    if runs.is_empty():
        known = "Every baseline of the training study diverged."
        raise StudyError(f"{study.folder} has no model to read.", known, "Run it with other seeds: --seeds 4,5,6.")
    for name, seed in runs.select("run", "seed").iter_rows():
        yield seed, Folder(study.folder).run(name).parent


def _read(model: Path, out: Path, quiet: bool) -> Reads:
    subject, texts = load(model), first_texts(open_texts("embedded", "test"), TEXTS)
    source, read = ModelSource(subject), TextSource(texts)
    return Reads(
        driver.run(NORMS, NormsSettings(source, read), out / "norms", quiet),
        driver.run(SIMILARITY, SimilaritySettings(source, read), out / "similarity", quiet),
        driver.run(ABLATE, AblateSettings(source, read, how=HOW), out / "ablation", quiet),
    )


def _submodules(study: Result[StudyFacts], studied: tuple[Finding, ...]) -> SourceFindings:
    claims = study.tables["claims"].filter(source="submodules")
    found = tuple(one for one in studied if one.source != "tying")
    question = "What happens in training when q, k or v of a layer is attacked, rewound or frozen, and does that survive controls?"
    return SourceFindings(
        "Attack, rewinding, freezing", question, found, claims, (("the training study", "training/report.html"),)
    )


def _by_hand(theory: Result[TheoryFacts], recall: Result[RecallFacts]) -> SourceFindings:
    question = "What can attention do when worked by hand, and what does pretraining add to what a model can answer?"
    table = theory.tables["theory"]
    bounded = table.filter(relation="at most")
    held = bounded.filter(pl.col("error") <= pl.col("expected"))
    said = (
        f"{table.height} constructions are computed beside the laws derived for them: of {bounded.height} bounds {held.height} "
        "hold."
    )
    found = (Finding("laws", said), *(one for one in recall.findings if one.claim is None))
    links = (("constructions to move by hand", "theory/theory.html"), ("recall", "recall/report.html"))
    return SourceFindings("By hand, and from memory", question, found, recall.tables["claims"], links)


def _norms(norms: Result[NormsFacts], aligned: Result[AlignFacts], first: str) -> SourceFindings:
    question = "Is attention its weights alone, or do the vectors that they weigh decide what is passed on?"
    links = (("norms", f"{first}/norms/report.html"), ("word alignment", "alignment/report.html"))
    claims = pl.concat([norms.tables["claims"], aligned.tables["claims"]])
    return SourceFindings(
        "Norms",
        question,
        (*norms.findings, *aligned.findings),
        claims,
        links,
    )


def _matrices(
    study: Result[StudyFacts], studied: tuple[Finding, ...], similarity: Result[SimilarityFacts], first: str
) -> SourceFindings:
    question = "Why three matrices: how alike are they, and does a model with fewer learn as well?"
    links = (("similarity", f"{first}/similarity/report.html"), ("tying", "training/report.html"))
    tied = tuple(one for one in studied if one.source == "tying")
    claims = pl.concat([similarity.tables["claims"], study.tables["claims"].filter(source="tying")])
    return SourceFindings("Three matrices, or fewer", question, (*similarity.findings, *tied), claims, links)


def _lines(
    studied: tuple[Finding, ...],
    recall: Result[RecallFacts],
    aligned: Result[AlignFacts],
    reads: list[Reads],
    verdicts: Mapping[str, str],
    first: str,
) -> list[Line]:
    """Every line of evidence that there are numbers for."""
    found = [
        *study_lines(studied, "training/report.html"),
        model_evidence.ablation_line(
            [r.ablation.tables["measures"] for r in reads], HOW, f"{first}/ablation/report.html"
        ),
        model_evidence.norms_line([r.norms.tables["measures"] for r in reads], verdicts, f"{first}/norms/report.html"),
        model_evidence.similarity_line(
            [r.similarity.tables["measures"] for r in reads], verdicts, f"{first}/similarity/report.html"
        ),
        model_evidence.recall_line(recall.findings, verdicts, "recall/report.html"),
        model_evidence.alignment_line(aligned.tables["measures"], verdicts, "alignment/report.html"),
    ]
    return [line for line in found if line is not None]


def _about(study: Result[StudyFacts], seconds: float) -> dict[str, Any]:
    seeds = sorted(study.tables["runs"]["seed"].unique().to_list())
    return {
        "command": "trisect dissect --seeds " + ",".join(map(str, seeds)) + "," * (len(seeds) == 1),
        "seconds": seconds,
        "models": f"{len(study.tables['runs'])} language models of the training study, those of recall and of translation",
        "versions": versions("transformers", "scikit-learn"),
        "citations": tuple(dict.fromkeys(source.citation for source in SOURCES)),
    }
