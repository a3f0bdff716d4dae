"""Adding a measure with its page, a source with two claims, a reader, an edit: one object and its place in a tuple, and no more."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import polars as pl
import pytest
import torch
from pydantic import Field
from tests import tiny, tinyhf
from tests.raw import call, write_splits

import trisect
from trisect import experiments, papers
from trisect.cli import main
from trisect.cli.options import experiment_command
from trisect.core.claim import Claim, LossChange, Part, Source
from trisect.core.edits import _KINDS, check_study_site, register
from trisect.core.finding import About, Estimate, Finding
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.core.spec import to_json_data
from trisect.core.tables import frame
from trisect.lab.experiment import Experiment, Measured, RunContext
from trisect.lab.inputs import ModelSource, TextSource
from trisect.lm.fleet import Member
from trisect.lm.training_edit import Objective, Trained, TrainingEdit
from trisect.report.sheet import Section, Sheet, Table, provenance
from trisect.text import readers
from trisect.text.lines import SPLITS
from trisect.text.readers import Paragraph, Reader, SplitText
from trisect.text.readers import lines as read_lines
from trisect.text.sources import open_labels


def place(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, new: Any) -> None:
    """Put something first in a module's tuple, as whoever imported the tuple has it too."""
    before = getattr(module, name)
    for other in [m for n, m in sys.modules.items() if n.startswith("trisect") and vars(m).get(name) is before]:
        monkeypatch.setattr(other, name, (new, *before))


def reply(*words: object) -> Any:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@record
class EntropySettings:
    """Model and texts, and the base of the logarithm."""

    source: ModelSource
    read: TextSource
    base: Annotated[float, Field(description="Base of the logarithm.", gt=1.0)] = 2.0


@dataclass(frozen=True)
class EntropyFacts:
    """Model and texts."""

    subject: str
    corpus: str
    base: float


class Entropy(Experiment[EntropySettings, EntropyFacts]):
    """Measure how spread every head's attention is, as the entropy of its weights.

    \b
    trisect entropy MODEL --corpus DIR
    """

    name = "entropy"
    settings = EntropySettings
    facts = EntropyFacts
    out = "entropy-{model}"

    def measure(self, settings: EntropySettings, context: RunContext) -> Measured[EntropyFacts]:
        """Mean over real queries of -sum_j a_ij log a_ij, per layer and head."""
        subject, sums, count = context.subject, {}, 0
        with torch.no_grad():
            for batch in subject.batches(context.texts.texts(), 4):
                for trace in subject.trace(batch).traces:
                    a, real = trace.weights.double(), trace.query_real.double()
                    spread = -(a * a.clamp_min(1e-30).log()).sum(-1) / math.log(settings.base)
                    total, n = (spread * real[:, None]).sum((0, 2)), float(real.sum())
                    old = sums.get(trace.layer, (0.0, 0.0))
                    sums[trace.layer] = (old[0] + total, old[1] + n)
                count += len(batch.rows)
        own = {"subject": subject.name, "measure": "entropy", "n": count}
        rows = [
            {**own, "layer": layer, "head": h + 1, "value": float(v / n)}
            for layer, (total, n) in sums.items()
            for h, v in enumerate(total)
        ]
        facts = EntropyFacts(subject.name, context.texts.name, settings.base)
        return Measured({"measures": frame("measures", rows)}, facts, tuple(context.texts.notes))

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> tuple[Finding, ...]:
        """The mean over heads."""
        values = tables["measures"]["value"]
        mean = Estimate("all heads", values.to_numpy().mean(), n=len(values))
        return (Finding("entropy", f"Heads spread their attention over {mean.mean:.3f} bits.", "bits", (mean,)),)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> Sheet:
        """A table of all heads."""
        heads = tables["measures"].iter_rows(named=True)
        rows = tuple((f"{r['layer']}.{r['head']}", f"{r['value']:.3f}") for r in heads)
        said = tuple(str(finding) for finding in self.findings(tables, about))
        section = Section("How spread is attention?", said, (), (Table(("head", "bits"), rows),))
        return Sheet("Attention's entropy", "trisect · entropy", about.facts.subject, (section,), provenance(about))


def test_a_new_measure_with_its_page_is_one_class_and_its_place_in_the_tuple(tmp_path, monkeypatch):
    model = tinyhf.save(tinyhf.bert(), tmp_path / "bert")
    words = ("entropy", model, "--text", "w1 w2 , w3 .", "--text", "w4 w5 w1", "--out", tmp_path / "out")
    assert "No such command 'entropy'" in call(*words).stderr
    one = Entropy()
    place(monkeypatch, experiments, "EXPERIMENTS", one)
    monkeypatch.setitem(main.commands, one.name, experiment_command(one))  # as the command line does for each of them

    (found,) = reply(*words, "--base", 4)["records"]
    assert (found["measure"], found["unit"]) == ("entropy", "bits")
    table = pl.read_parquet(tmp_path / "out/tables/measures.parquet")
    assert found["values"][0]["mean"] == pytest.approx(table["value"].mean())
    assert set(table["n"]) == {2}
    assert (table["value"] > 0).all()
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    for text in ("How spread is attention?", found["words"], "trisect entropy MODEL --text", "--base 4"):
        assert text in page
    refused = call(*words, "--base", 1)
    assert (refused.exit_code, "base is 1.0." in refused.stderr, "above 1" in refused.stderr) == (2, True, True)
    assert "Base of the logarithm." in call("entropy", "--help").stdout
    assert "base: Base of the logarithm." in str(trisect.entropy.__doc__)  # pyright: ignore[reportAttributeAccessIssue]


def freezing(site: str) -> Part:
    effect = LossChange("freeze", (site,), "train")
    return Part(f"{site} train loss change", effect, "above", 0.02, "nats", "of the size of noise")


SOURCE_CLAIMS = (
    Claim("T-1", "Freezing k in layer 1 makes training worse.", "made for a test", (freezing("k@1"),)),
    Claim("T-2", "Freezing v everywhere makes training worse.", "made for a test", (freezing("v@all"),)),
)
SOURCE = Source("made", "A source made for a test", "Nobody", "Nobody. A source made for a test. 2026.", SOURCE_CLAIMS)


def test_a_new_source_with_two_claims_is_one_object_and_its_place_in_the_tuple(tmp_path, monkeypatch):
    place(monkeypatch, papers, "SOURCES", SOURCE)
    mine = [row for row in reply("claims") if row["source"] == "made"]
    assert [row["claim"] for row in mine] == ["T-1", "T-2"]
    assert {row["citation"] for row in mine} == {"Nobody. A source made for a test. 2026."}

    asked = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, rewind=None)
    (tmp_path / "asked.json").write_text(json.dumps(to_json_data(asked)))
    done = reply("study", tmp_path / "asked.json", "--out", tmp_path / "out", "--workers", 0)
    assert {"T-1", "T-2"} <= set(done["verdicts"])
    judged = pl.read_parquet(tmp_path / "out/tables/claims.parquet").filter(source="made")
    assert set(judged["claim"]) == {"T-1", "T-2"}
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "Freezing v everywhere makes training worse." in page
    assert "Nobody. A source made for a test. 2026." in page


def suits(where: SplitText) -> bool:
    """Whether a folder has a file train.tsv."""
    return isinstance(where, Path) and bool(TABBED.candidates(where, "train"))


def paragraphs(part: SplitText) -> Iterator[Paragraph]:
    """A paragraph for each run of lines that are not blank."""
    rows: list[list[str]] = []
    for line in (*read_lines(part), ""):
        if line.strip():
            rows.append(line.rstrip("\n").split("\t"))
        elif rows:
            yield Paragraph([word for word, _ in rows], {"tag": [tag for _, tag in rows]})
            rows = []


TABBED = Reader("tabbed", {s: (f"{s}.tsv",) for s in SPLITS}, suits, paragraphs, columns=("tag",))


def test_a_new_reader_is_one_object_and_its_place_in_the_tuple(tmp_path, monkeypatch):
    folder = write_splits(tmp_path / "tagged", "The\tDT\ncat\tNN\n\nCats\tNN\nsleep\tVB\n", "tsv")
    assert "has no train split." in call("corpus", "show", folder).stderr
    place(monkeypatch, readers, "READERS", TABBED)

    facts = reply("corpus", "show", folder)
    assert facts["types"] == 4
    train = {row["class"]: row["count"] for row in facts["labels"] if row["split"] == "train" and row["label"] == "tag"}
    assert train == {"NN": 2, "DT": 1, "VB": 1, None: 0}
    assert reply("corpus", "show", folder, "--reader", "tabbed") == facts
    assert ("DT", "NN") in [text.labels["tag"] for text in open_labels(str(folder), "test").texts()]

    model = tinyhf.save(tinyhf.bert(), tmp_path / "bert")
    done = reply("ablate", model, "--corpus", folder, "--sites", "v@1", "--out", tmp_path / "out")
    assert "its words, joined by spaces" in done["notes"][0]


@record
class DampEdit(TrainingEdit):
    """The site starts at `share` of its initial values."""

    share: float

    kind: ClassVar[str] = "damp"
    title: ClassVar[str] = "Damped starts"
    has_own_figures: ClassVar[bool] = False

    @classmethod
    def check_site(cls, site: Site) -> Site:
        return check_study_site(site, cls.kind)

    @property
    def column(self) -> None:
        return

    def token_seconds(self, width: int) -> float:
        return 0.0

    def prepare(self, member: Member) -> None:
        member.row[member.mark(self.site)] *= self.share

    @classmethod
    def objectives(cls, edits: Mapping[int, TrainingEdit], fleet: Trained) -> Sequence[Objective]:
        return ()


EDITS = [
    {"kind": "damp", "site": "q+k@1", "share": 1},
    {"kind": "damp", "site": "q+k@1", "share": 0.5},
    {"kind": "damp", "site": "v@2", "share": 0.5},
    {"kind": "freeze", "site": "q@1"},
]


def test_a_new_edit_is_one_class_and_its_place_in_the_tuple(tmp_path, monkeypatch):
    asked = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, freeze=None, rewind=None)
    (tmp_path / "asked.json").write_text(json.dumps({**to_json_data(asked), "edits": EDITS}))
    refused = call("plan", tmp_path / "asked.json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Unknown edit 'damp'." in refused.stderr
    monkeypatch.setitem(_KINDS, "damp", DampEdit)  # taken out again at the end
    register((DampEdit,))

    planned = call("plan", tmp_path / "asked.json", "--runs")
    slugs = [line.rpartition("-")[0] for line in planned.stdout.splitlines()[:5]]
    assert slugs == ["baseline-s1", "damp1-q+k@1-s1", "damp0.5-q+k@1-s1", "damp0.5-v@2-s1", "freeze-q@1-s1"]
    done = reply("study", tmp_path / "asked.json", "--out", tmp_path / "out", "--workers", 0)
    assert done["runs"] == {"finished": 5}

    runs = pl.read_parquet(tmp_path / "out/tables/runs.parquet")
    metrics = pl.read_parquet(tmp_path / "out/tables/metrics.parquet").join(runs, on="run").sort("split", "epoch")
    assert sorted(runs["edit"]) == ["damp", "damp", "damp", "freeze", "none"]
    whole, frozen = (runs.filter(edit=e)["parameters"].item() for e in ("none", "freeze"))
    assert set(runs.filter(edit="damp")["parameters"]) == {whole}
    assert frozen < whole

    def losses(start: str) -> list[float]:
        mine = metrics.filter(pl.col("run").str.starts_with(start), name="loss_nats")
        return mine["value"].to_list()

    # the whole of its initial values is no edit, half of them is one from the start, at each site another
    assert losses("damp1-") == losses("baseline") != losses("damp0.5-q") != losses("damp0.5-v") != losses("baseline")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Damped starts" in page
    for name in ("damp1", "damp0.5"):
        assert f"{name}: validation loss" in page
    assert "q+k@1, share 0.5" in page
