"""Adding a measure with its page, a source with two claims, a reader: what has to be touched, from the command to the page."""

import json
from dataclasses import replace

import polars as pl
import pytest
from tests import tiny, tinyhf
from tests.copied import Copy

from trisect.core.spec import plain

SETTINGS = '''"""What the entropy of attention is asked of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from trisect.core.schema import record
from trisect.lab.inputs import ModelSource, TextSource


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


'''
CLASS = '''"""How spread attention is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trisect.experiments.entropy.settings import EntropyFacts, EntropySettings
from trisect.lab.experiment import Experiment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from trisect.core.finding import About, Finding
    from trisect.lab.experiment import Bench, Measured
    from trisect.report.sheet import Sheet


class Entropy(Experiment[EntropySettings, EntropyFacts]):
    """Measure how spread every head's attention is, as the entropy of its weights.

    \\b
    trisect entropy MODEL --corpus DIR
    """

    name = "entropy"
    settings = EntropySettings
    facts = EntropyFacts
    out = "entropy-{model}"

    def measure(self, settings: EntropySettings, bench: Bench) -> Measured[EntropyFacts]:
        """Mean entropy of every head."""
        from trisect.experiments.entropy.run import measure

        return measure(settings, bench)

    def findings(self, tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> Sequence[Finding]:
        """The mean over heads."""
        from trisect.experiments.entropy.page import findings

        return findings(tables, about)

    def page(self, tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> Sheet:
        """A table of all heads."""
        from trisect.experiments.entropy.page import page

        return page(tables, about)


ENTROPY = Entropy()
'''
RUN = '''"""The entropy of each head's attention weights, averaged over queries."""

from __future__ import annotations

import math

import torch

from trisect.core.tables import frame
from trisect.experiments.entropy.settings import EntropyFacts, EntropySettings
from trisect.lab.experiment import Bench, Measured


def measure(settings: EntropySettings, bench: Bench) -> Measured[EntropyFacts]:
    """Mean over real queries of -sum_j a_ij log a_ij, per layer and head."""
    subject, sums, count = bench.subject, {}, 0
    with torch.no_grad():
        for batch in subject.batches(bench.texts.texts(), 4):
            for trace in subject.trace(batch).traces:
                a, real = trace.weights.double(), trace.query_real.double()
                spread = -(a * a.clamp_min(1e-30).log()).sum(-1) / math.log(settings.base)
                total, n = (spread * real[:, None]).sum((0, 2)), float(real.sum())
                old = sums.get(trace.layer, (0.0, 0.0))
                sums[trace.layer] = (old[0] + total, old[1] + n)
            count += len(batch.rows)
    rows = [
        {"subject": subject.name, "layer": layer, "head": h + 1, "measure": "entropy", "value": float(v / n), "n": count}
        for layer, (total, n) in sums.items()
        for h, v in enumerate(total)
    ]
    facts = EntropyFacts(subject.name, bench.texts.name, settings.base)
    return Measured({"measures": frame("measures", rows)}, facts, bench.texts.notes)
'''
PAGE = '''"""The page of attention's entropy."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from trisect.core.finding import About, Estimate, Finding
from trisect.experiments.entropy.settings import EntropyFacts
from trisect.report.sheet import provenance
from trisect.report.sheet import Section, Sheet, Table


def findings(tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> tuple[Finding, ...]:
    """The mean over heads."""
    values = tables["measures"]["value"]
    mean = Estimate("all heads", float(values.mean()), n=len(values))
    return (Finding("entropy", f"Heads spread their attention over {mean.mean:.3f} bits.", "bits", (mean,)),)


def page(tables: Mapping[str, pl.DataFrame], about: About[EntropyFacts]) -> Sheet:
    """A table of all heads."""
    rows = tuple((f"{r['layer']}.{r['head']}", f"{r['value']:.3f}") for r in tables["measures"].iter_rows(named=True))
    said = tuple(str(finding) for finding in findings(tables, about))
    section = Section("How spread is attention?", said, (), (Table(("head", "bits"), rows),))
    return Sheet("Attention's entropy", "trisect · entropy", about.facts.subject, (section,), provenance(about))
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

    for name, text in (("__init__", CLASS), ("settings", SETTINGS), ("run", RUN), ("page", PAGE)):
        copy.write(f"experiments/entropy/{name}.py", text)
    copy.insert(
        EXPERIMENTS,
        first="from trisect.experiments.norms import NORMS\n|from trisect.experiments.entropy import ENTROPY\n",
        second="EXPERIMENTS: tuple[Experiment[Any, Any], ...] = (\n|    ENTROPY,\n",
    )
    new = {f"experiments/entropy/{name}.py" for name in ("__init__", "settings", "run", "page")}
    assert copy.changed() == {*new, EXPERIMENTS}

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
        second="SOURCES: tuple[Source, ...] = (\n|    made.SOURCE,\n",
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

from trisect.text.corpus import SPLITS
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
        first="from trisect.text.readers.plain import PLAIN\n|from trisect.text.readers.tabbed import TABBED\n",
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
    assert "tabbed, conllu, wikitext or plain" in " ".join(copy.call("corpus", "show", "--help").stdout.split())
    refused = copy.call("corpus", "show", str(folder), "--reader", "nothing")
    assert "Readers are tabbed, conllu, wikitext, plain." in refused.stderr

    model = tinyhf.save(tinyhf.bert(), tmp_path / "bert")
    done = copy.call("ablate", str(model), "--corpus", str(folder), "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    assert "its words, joined by spaces" in json.loads(done.stdout)["notes"][0]
    code = f"from trisect.text.labels import open_labelled as o; print([x.labels for x in o({str(folder)!r}, 'test').texts()])"
    assert "('DT', 'NN')" in copy.call(code=code).stdout
