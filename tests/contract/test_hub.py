"""Hugging Face datasets: the same text through both doors, by folder and by cache, and every refusal."""

import json
import sys

import pytest
from tests.unit.test_cli import call

from trisect.core.errors import CorpusError
from trisect.core.spec import Text
from trisect.experiments.study.plan import designs
from trisect.experiments.study.settings import DesignSource
from trisect.lab.annotation import annotate
from trisect.text import hub
from trisect.text.hub import DatasetTexts
from trisect.text.readers import PLAIN, WIKITEXT
from trisect.text.sources import find_source, load_text, open_corpus, read

datasets = pytest.importorskip("datasets", reason="Hugging Face datasets are the optional extra trisect[hub]")

LINES = {
    "train": ["", " = The <unk> Title = \n", "", ' He said " no ; " it \'s 1 @,@ 000 \n', " so<br />what ? \n"] * 30,
    "valid": [" a b \n", "", " c <unk> d \n"],
    "test": [" b c \n"],
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """No network, and nothing left in the user's cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def parquet(folder, splits, column="text"):
    folder.mkdir(parents=True)
    datasets.disable_progress_bars()
    for split, rows in splits.items():
        table = datasets.Dataset.from_dict({column: rows, "number": list(range(len(rows)))})
        table.to_parquet(folder / f"{ {'valid': 'validation'}.get(split, split) }-00000-of-00001.parquet")
    return folder


@pytest.fixture
def files(tmp_path):
    """The same text as a WikiText folder: its files' lines are the dataset's rows."""
    folder = tmp_path / "wiki"
    folder.mkdir()
    for split, rows in LINES.items():
        (folder / f"{split}.txt").write_text("".join(row or " \n" for row in rows), encoding="utf-8")
    return folder


def test_the_same_text_through_both_doors_is_the_same_corpus(files, tmp_path):
    folder = parquet(tmp_path / "set", LINES)
    one, other = read(files), open_corpus(f"hf:{folder}")
    assert other.fingerprint == one.fingerprint
    assert other.vocabulary == one.vocabulary
    assert find_source(f"hf:{folder}").kind is WIKITEXT is find_source(files).kind
    assert other.name == "set"
    assert other.notes == ("Read from the Hugging Face dataset set.", *one.notes)
    text = Text(train_tokens=100, min_count=2)
    cut = [load_text(Text(str(place), text.train_tokens, None, 2)) for place in (files, f"hf:{folder}")]
    assert cut[0].fingerprint == cut[1].fingerprint != one.fingerprint


def test_a_reader_may_be_named_rows_are_read_a_batch_at_a_time_and_a_change_changes_the_corpus(tmp_path, monkeypatch):
    folder = parquet(tmp_path / "set", LINES)
    assert find_source(f"hf:{folder}", "plain").kind is PLAIN
    assert open_corpus(f"hf:{folder}", "plain").fingerprint == open_corpus(f"hf:{folder}").fingerprint
    with pytest.raises(CorpusError, match=r"Unknown reader 'html'"):
        open_corpus(f"hf:{folder}", "html")
    changed = parquet(tmp_path / "changed", LINES | {"test": [" b d \n"]})
    assert open_corpus(f"hf:{changed}").fingerprint != open_corpus(f"hf:{folder}").fingerprint
    whole, held = open_corpus(f"hf:{folder}"), []
    monkeypatch.setattr(hub, "BATCH", 7)
    take = datasets.Dataset.iter
    monkeypatch.setattr(
        datasets.Dataset, "iter", lambda self, n: (held.append(len(b["text"])) or b for b in take(self, n))
    )
    assert open_corpus(f"hf:{folder}").fingerprint == whole.fingerprint
    assert max(held) == 7
    rows = find_source(f"hf:{folder}").parts["train"]
    assert isinstance(rows, DatasetTexts)
    assert rows.size() > 1000
    assert rows.checksum() == rows.checksum() != find_source(f"hf:{folder}").parts["valid"].checksum()  # pyright: ignore[reportAttributeAccessIssue]


def test_configurations_saved_folders_other_columns_and_rows_of_many_lines(tmp_path):
    parquet(tmp_path / "set" / "one", {"train": ["a b"], "valid": ["a c"]})
    parquet(tmp_path / "set" / "two", {"train": ["a b", None, "c\r\nd"], "valid": ["e\nf"]})
    configs = "".join(f"- config_name: {c}\n  data_dir: {c}\n" for c in ("one", "two"))
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    two = open_corpus(f"hf:{tmp_path / 'set'}:two")
    assert (two.name, two.vocabulary, len(two.splits["train"].tokens)) == ("set:two", tuple("abcdef"), 4)
    assert [p.words for p in PLAIN.paragraphs(find_source(f"hf:{tmp_path / 'set'}:two").parts["train"])] == (
        [["a", "b"], ["c"], ["d"]]
    )
    for wrong, words in ((":three", "'three' not found. Available: ['one', 'two']"), ("", "Config name is missing")):
        with pytest.raises(CorpusError) as caught:
            open_corpus(f"hf:{tmp_path / 'set'}{wrong}")
        assert caught.value.problem == f"The dataset 'hf:{tmp_path / 'set'}{wrong}' cannot be opened."
        assert words in caught.value.reason
        assert caught.value.todo.startswith("Name a configuration that there is, as hf:NAME:CONFIG")
    saved = datasets.DatasetDict(
        {s: datasets.Dataset.from_dict({"sentence": ["a b"], "id": [1]}) for s in ("train", "dev")}
    )
    saved.save_to_disk(tmp_path / "saved")
    assert open_corpus(f"hf:{tmp_path / 'saved'}").vocabulary == ("a", "b")


def test_a_dataset_can_be_annotated_as_a_folder_can(files, tmp_path):
    pytest.importorskip("spacy", reason="spaCy is the optional extra trisect[annotate]")
    from tests.contract.test_annotate import pipeline

    tagger, folder = pipeline(tmp_path / "tagger"), parquet(tmp_path / "set", LINES)
    steps = []
    one = annotate(files, tagger, tmp_path / "one", workers=1)
    other = annotate(f"hf:{folder}", tagger, tmp_path / "other", workers=1, progress=lambda *n: steps.append(n))
    assert other.fingerprint == one.fingerprint
    assert set(other.labels) == {"pos", "dep"}
    again = annotate(f"hf:{folder}", tagger, tmp_path / "other", workers=1, progress=lambda *_: pytest.fail("again"))
    assert steps
    assert again.fingerprint == one.fingerprint


def test_the_revision_of_a_dataset_on_the_hub_is_noted(tmp_path, monkeypatch):
    """What the library knows of a dataset on the hub, put onto one in a folder."""
    builder = datasets.load_dataset_builder(str(parquet(tmp_path / "set", LINES)))
    builder.repo_id, builder.hash = "a/b", "0123abcd"
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *given: {("a/b", "c"): builder}[given])
    assert open_corpus("hf:a/b:c").notes[0] == "Read from the Hugging Face dataset a/b:c at revision 0123abcd."


def test_a_name_in_an_experiment_and_on_the_command_line_works_from_anywhere(tmp_path, monkeypatch):
    parquet(tmp_path / "set", LINES)
    monkeypatch.chdir(tmp_path)
    here, there = f"hf:{tmp_path / 'set'}", "hf:Salesforce/wikitext:wikitext-2-v1"
    for name, corpus in (("hf:set", here), ("hf:set:one", f"{here}:one"), (there, there)):
        assert designs(DesignSource("quick", name))[0].text.corpus == corpus
    shown = json.loads(call("corpus", "show", "hf:set", "--json").stdout)
    assert [s["split"] for s in shown["splits"]] == ["train", "valid", "test"]
    result = call("plan", "quick", "--corpus", "hf:a/b", "--only", "freeze")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 3


def refused(where):
    with pytest.raises(CorpusError) as caught:
        open_corpus(where)
    return caught.value


@pytest.mark.parametrize("shadowed", [False, True])
def test_no_datasets_package_and_a_folder_of_that_name(monkeypatch, tmp_path, shadowed):
    if shadowed:
        (tmp_path / "datasets").mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        monkeypatch.delitem(sys.modules, "datasets")
    else:
        monkeypatch.setitem(sys.modules, "datasets", None)
    error = refused("hf:a/b")
    assert "the package 'datasets' is not there" in error.problem
    assert "pip install 'trisect[hub]'" in error.todo
    assert not sys.modules.get("datasets")


def test_names_datasets_splits_and_columns_that_are_not_there(tmp_path):
    for name in ("hf:", "hf::one", "hf:a:"):
        error = refused(name)
        assert error.problem == f"'{name}' names no dataset."
        assert "hf:NAME:CONFIG" in error.reason
    error = refused("hf:Salesforce/wikitext:wikitext-2-v1")
    assert error.problem == "The dataset 'hf:Salesforce/wikitext:wikitext-2-v1' cannot be reached."
    assert "Couldn't reach 'Salesforce/wikitext' on the Hub" in error.reason
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nowhere", tmp_path / "empty"):
        error = refused(f"hf:{place}")
        assert error.problem == f"The dataset 'hf:{place}' is not there."
        assert "any data file" in error.reason
    only = parquet(tmp_path / "only", {"train": ["a b"]})
    error = refused(f"hf:{only}")
    assert error.problem == f"The dataset 'hf:{only}' has no valid split."
    assert "validation or valid or dev; its splits are train" in error.reason
    error = refused(f"hf:{parquet(tmp_path / 'lost', {'valid': ['a b'], 'test': ['c d']})}")
    assert "train; its splits are validation, test" in error.reason
    error = refused(f"hf:{parquet(tmp_path / 'numbers', {'train': [1, 2], 'valid': [3, 4]}, 'label')}")
    assert "no column 'text'; it has label, number" in error.problem
    two = datasets.DatasetDict({s: datasets.Dataset.from_dict({"q": ["a"], "a": ["b"]}) for s in ("train", "test")})
    two.save_to_disk(tmp_path / "two")
    assert "q, a" in refused(f"hf:{tmp_path / 'two'}").reason
