"""Adding a measure with its page, a source with two claims, a reader, an edit: what has to be touched, from the command to the page."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests import tiny, tinyhf

import trisect
from trisect.core.spec import plain


class Copy:
    """The package in `base`; `changed` says which files differ from the ones that were copied."""

    def __init__(self, base: Path) -> None:
        self.base = base
        shutil.copytree(
            Path(trisect.__file__).parent, base / "trisect"
        )  # with what is compiled: the same times, the same code
        self._before = self._files()

    def _files(self) -> dict[str, str]:
        found = (p for p in self.base.rglob("*") if p.suffix in (".py", ".html", ".css", ".js", ".pyi"))
        return {str(p.relative_to(self.base / "trisect")): p.read_text(encoding="utf-8") for p in found}

    def write(self, path: str, text: str) -> None:
        """Add a file, with its folder."""
        place = self.base / "trisect" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        assert not place.exists()
        place.write_text(text, encoding="utf-8")

    def insert(self, path: str, **after: str) -> None:
        """Put lines behind others, of which each stands once; names are of no meaning."""
        place = self.base / "trisect" / path
        text = place.read_text(encoding="utf-8")
        for pair in after.values():
            anchor, line = pair.split("|")
            assert text.count(anchor) == 1, anchor
            text = text.replace(anchor, f"{anchor}{line}")
        place.write_text(text, encoding="utf-8")

    def changed(self) -> set[str]:
        now = self._files()
        return {name for name in now.keys() | self._before.keys() if now.get(name) != self._before.get(name)}

    def call(self, *args: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
        """The command line of the copy, or a piece of Python, in a process of its own."""
        command = [sys.executable, *(("-m", "trisect.cli", *args) if code is None else ("-c", code, *args))]
        env = {**os.environ, "PYTHONPATH": str(self.base), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


ENTROPY = '''"""How spread attention is: the entropy of each head's weights, averaged over queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from trisect.core.finding import About, Estimate, Finding
from trisect.core.schema import record
from trisect.lab.experiment import RunContext, Experiment, Measured
from trisect.lab.inputs import ModelSource, TextSource

if TYPE_CHECKING:
    import polars as pl

    from trisect.report.sheet import Sheet


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

    \\b
    trisect entropy MODEL --corpus DIR
    """

    name = "entropy"
    settings = EntropySettings
    facts = EntropyFacts
    out = "entropy-{model}"

    def measure(self, settings: EntropySettings, context: RunContext) -> Measured[EntropyFacts]:
        """Mean over real queries of -sum_j a_ij log a_ij, per layer and head."""
        import torch

        from trisect.core.tables import frame

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
        return Measured({"measures": frame("measures", rows)}, facts, context.texts.notes)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> tuple[Finding, ...]:
        """The mean over heads."""
        values = tables["measures"]["value"]
        mean = Estimate("all heads", float(values.mean()), n=len(values))
        return (Finding("entropy", f"Heads spread their attention over {mean.mean:.3f} bits.", "bits", (mean,)),)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> Sheet:
        """A table of all heads."""
        from trisect.report.sheet import Section, Sheet, Table, provenance

        heads = tables["measures"].iter_rows(named=True)
        rows = tuple((f"{r['layer']}.{r['head']}", f"{r['value']:.3f}") for r in heads)
        said = tuple(str(finding) for finding in self.findings(tables, about))
        section = Section("How spread is attention?", said, (), (Table(("head", "bits"), rows),))
        return Sheet("Attention's entropy", "trisect · entropy", about.facts.subject, (section,), provenance(about))


ENTROPY = Entropy()
'''
EXPERIMENTS = "experiments/__init__.py"


@pytest.fixture
def copy(tmp_path) -> Copy:
    return Copy(tmp_path / "src")


def test_a_new_measure_with_its_page_is_one_folder_and_its_place_in_the_tuple(copy, tmp_path):
    model = tinyhf.save(tinyhf.bert(), tmp_path / "bert")
    words = ("entropy", str(model), "--text", "w1 w2 , w3 .", "--text", "w4 w5 w1", "--out", str(tmp_path / "out"))
    unknown = copy.call(*words)
    assert unknown.returncode == 2
    assert "No such command 'entropy'" in unknown.stderr

    copy.write("experiments/entropy/__init__.py", ENTROPY)
    copy.insert(
        EXPERIMENTS,
        first="from trisect.experiments.norms import NORMS\n|from trisect.experiments.entropy import ENTROPY\n",
        second="EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (\n|    ENTROPY,\n",
    )
    assert copy.changed() == {"experiments/entropy/__init__.py", EXPERIMENTS}

    done = copy.call(*words, "--base", "4", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (found,) = said["records"]
    assert (found["measure"], found["unit"]) == ("entropy", "bits")
    table = pl.read_parquet(tmp_path / "out/tables/measures.parquet")
    assert found["values"][0]["mean"] == pytest.approx(table["value"].mean())
    assert set(table["n"]) == {2}
    assert (table["value"] > 0).all()
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "How spread is attention?" in page
    assert found["words"] in page
    assert "trisect entropy MODEL --text" in page
    assert "--base 4" in page

    refused = copy.call(*words, "--base", "1")
    assert refused.returncode == 2
    assert "base is 1.0." in refused.stderr
    assert "above 1" in refused.stderr
    helped = copy.call("entropy", "--help").stdout
    assert "Base of the logarithm." in helped
    assert "[default: 2.0]" in helped
    code = "import trisect; print(trisect.entropy.__doc__)"
    assert "base: Base of the logarithm." in copy.call(code=code).stdout


SOURCE = '''"""A source with two claims about freezing."""

from __future__ import annotations

from trisect.core.claim import Claim, LossChange, Part, Source


def _part(site: str) -> Part:
    effect = LossChange("freeze", (site,), "train")
    return Part(f"{site} train loss change", effect, "above", 0.02, "nats", "of the size of noise")


CLAIMS = (
    Claim("T-1", "Freezing k in layer 1 makes training worse.", "made for a test", (_part("k@1"),)),
    Claim("T-2", "Freezing v everywhere makes training worse.", "made for a test", (_part("v@all"),)),
)
SOURCE = Source("made", "A source made for a test", "Nobody", "Nobody. A source made for a test. 2026.", CLAIMS)
'''


def test_a_new_source_with_two_claims_is_one_file_and_its_place_in_the_tuple(copy, tmp_path):
    copy.write("papers/made.py", SOURCE)
    copy.insert(
        "papers/__init__.py",
        first="from trisect.papers import |made, ",
        second="SOURCES = (\n|    made.SOURCE,\n",
    )
    assert copy.changed() == {"papers/made.py", "papers/__init__.py"}
    listed = json.loads(copy.call("claims", "--json").stdout)
    mine = [row for row in listed if row["source"] == "made"]
    assert [row["claim"] for row in mine] == ["T-1", "T-2"]
    assert {row["citation"] for row in mine} == {"Nobody. A source made for a test. 2026."}

    asked = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, rewind=None)
    (tmp_path / "asked.json").write_text(json.dumps(plain(asked)))
    done = copy.call("study", str(tmp_path / "asked.json"), "--out", str(tmp_path / "out"), "--workers", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert {"T-1", "T-2"} <= set(json.loads(done.stdout)["verdicts"])
    judged = pl.read_parquet(tmp_path / "out/tables/claims.parquet").filter(source="made")
    assert set(judged["claim"]) == {"T-1", "T-2"}
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "Freezing v everywhere makes training worse." in page
    assert "Nobody. A source made for a test. 2026." in page


READER = '''"""Tab-separated words with tags, a blank line between sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trisect.text.lines import SPLITS
from trisect.text.readers.base import Paragraph, Reader, SplitText, lines


def suits(where: SplitText) -> bool:
    """Whether a folder has a file train.tsv."""
    return isinstance(where, Path) and bool(TABBED.candidates(where, "train"))


def paragraphs(part: SplitText) -> Iterator[Paragraph]:
    """A paragraph for each run of lines that are not blank."""
    rows: list[list[str]] = []
    for line in (*lines(part), ""):
        if line.strip():
            rows.append(line.rstrip("\\n").split("\\t"))
        elif rows:
            yield Paragraph([word for word, _ in rows], {"tag": [tag for _, tag in rows]})
            rows = []


TABBED = Reader("tabbed", {s: (f"{s}.tsv",) for s in SPLITS}, suits, paragraphs, columns=("tag",))
'''


def test_a_new_reader_is_one_file_and_its_place_in_the_tuple(copy, tmp_path):
    folder = tmp_path / "tagged"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.tsv").write_text("The\tDT\ncat\tNN\n\nCats\tNN\nsleep\tVB\n", encoding="utf-8")
    unknown = copy.call("corpus", "show", str(folder))
    assert unknown.returncode == 2
    assert "has no train split." in unknown.stderr

    copy.write("text/readers/tabbed.py", READER)
    copy.insert(
        "text/readers/__init__.py",
        first="from trisect.text.readers.english import PLAIN, PUBLISHED, WIKITEXT\n|from trisect.text.readers.tabbed import TABBED\n",
        second="READERS: tuple[Reader, ...] = (|TABBED, ",
    )
    assert copy.changed() == {"text/readers/tabbed.py", "text/readers/__init__.py"}

    shown = copy.call("corpus", "show", str(folder), "--json")
    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert facts["types"] == 4
    train = {row["class"]: row["count"] for row in facts["labels"] if row["split"] == "train" and row["label"] == "tag"}
    assert train == {"NN": 2, "DT": 1, "VB": 1, None: 0}
    assert json.loads(copy.call("corpus", "show", str(folder), "--reader", "tabbed", "--json").stdout) == facts
    assert "tabbed, conllu, wikitext, plain or" in " ".join(copy.call("corpus", "show", "--help").stdout.split())
    refused = copy.call("corpus", "show", str(folder), "--reader", "nothing")
    assert "Readers are tabbed, conllu, wikitext, plain, wikitext-tokens." in refused.stderr

    model = tinyhf.save(tinyhf.bert(), tmp_path / "bert")
    done = copy.call("ablate", str(model), "--corpus", str(folder), "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    assert "its words, joined by spaces" in json.loads(done.stdout)["notes"][0]
    code = f"from trisect.text.sources import open_labelled as o; print([x.labels for x in o({str(folder)!r}, 'test').texts()])"
    assert "('DT', 'NN')" in copy.call(code=code).stdout


DAMP = '''"""Damping: a site's weights and biases start at a share of their initial values, and are trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from trisect.core.edits import in_study
from trisect.core.schema import record
from trisect.core.site import Site
from trisect.lm.edits.base import Objective, Trained, TrainingEdit

if TYPE_CHECKING:
    from trisect.lm.fleet import Member


@record
class DampEdit(TrainingEdit):
    """The site starts at `share` of its initial values."""

    share: float

    kind: ClassVar[str] = "damp"
    title: ClassVar[str] = "Damped starts"
    own_page: ClassVar[bool] = False

    @classmethod
    def place(cls, site: Site) -> Site:
        return in_study(site, cls.kind)

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
'''
EDITS = [
    {"kind": "damp", "site": "q+k@1", "share": 1},
    {"kind": "damp", "site": "q+k@1", "share": 0.5},
    {"kind": "damp", "site": "v@2", "share": 0.5},
    {"kind": "freeze", "site": "q@1"},
]


def test_a_new_edit_is_one_file_and_its_place_in_the_tuple(copy, tmp_path):
    asked = replace(tiny.EXPERIMENT, seeds=(1,), attack=None, freeze=None, rewind=None)
    (tmp_path / "asked.json").write_text(json.dumps({**plain(asked), "edits": EDITS}))
    refused = copy.call("plan", str(tmp_path / "asked.json"))
    assert refused.returncode == 2
    assert "Unknown edit 'damp'." in refused.stderr
    assert not refused.stdout

    copy.write("lm/edits/damp.py", DAMP)
    copy.insert(
        "lm/edits/__init__.py",
        first="FreezeEdit, IdentityEdit, NarrowEdit, TieEdit, TrainingEdit\n|from trisect.lm.edits.damp import DampEdit\n",
        second="    NarrowEdit,\n|    DampEdit,\n",
    )
    assert copy.changed() == {"lm/edits/__init__.py", "lm/edits/damp.py"}

    planned = copy.call("plan", str(tmp_path / "asked.json"), "--runs")
    assert planned.returncode == 0, planned.stderr
    slugs = [line.rpartition("-")[0] for line in planned.stdout.splitlines()[:5]]
    assert slugs == ["baseline-s1", "damp1-q+k@1-s1", "damp0.5-q+k@1-s1", "damp0.5-v@2-s1", "freeze-q@1-s1"]
    done = copy.call("study", str(tmp_path / "asked.json"), "--out", str(tmp_path / "out"), "--workers", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == {"finished": 5}

    runs = pl.read_parquet(tmp_path / "out/tables/runs.parquet")
    metrics = pl.read_parquet(tmp_path / "out/tables/metrics.parquet").join(runs, on="run").sort("split", "epoch")
    assert sorted(runs["edit"]) == ["damp", "damp", "damp", "freeze", "none"]
    whole, frozen = (runs.filter(pl.col("edit") == e)["parameters"].item() for e in ("none", "freeze"))
    assert set(runs.filter(pl.col("edit") == "damp")["parameters"]) == {whole}
    assert frozen < whole

    def losses(start: str) -> list[float]:
        mine = metrics.filter(pl.col("run").str.starts_with(start) & (pl.col("name") == "loss_nats"))
        return mine["value"].to_list()

    # the whole of its initial values is no edit, half of them is one from the start, at each site another
    assert losses("damp1-") == losses("baseline") != losses("damp0.5-q") != losses("damp0.5-v") != losses("baseline")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Damped starts" in page
    for name in ("damp1", "damp0.5"):
        assert f"{name}: validation loss" in page
    assert "q+k@1, share 0.5" in page
