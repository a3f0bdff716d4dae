"""Corpora: cutting, saving, loading, windows, and every refusal."""

import errno

import numpy as np
import pytest

from trisect.core.errors import CorpusError, DamagedFileError
from trisect.core.files import write_json
from trisect.core.spec import Text
from trisect.text import corpus as text_corpus
from trisect.text.corpus import Corpus, Split, batch, sample_steps, steps


def split(words, pos=None):
    tokens = np.array(words, np.int32)
    return Split(tokens, {"pos": np.array([0] * len(words) if pos is None else pos, np.int16)})


@pytest.fixture
def small():
    # a a a b b c d | b e <unk>
    parts = {
        "train": split([1, 1, 1, 2, 2, 3, 4], [0, 0, 1, 1, 0, 1, 0]),
        "valid": split([2, 5, 0, 1], [1, 0, -1, 0]),
        "test": split([3, 4]),
    }
    return Corpus.make("small", ("<unk>", "a", "b", "c", "d", "e"), {"pos": ("X", "Y", "Z")}, parts, ("A note.",))


def test_cut_leaves_real_labels_on_words_it_turns_into_unk(small):
    cut = small.cut(Text(min_count=2))
    assert cut.splits["valid"].labels["pos"].tolist() == [1, 0, -1, 0]
    assert cut.labels == small.labels


def test_cut_takes_the_first_tokens_and_says_so(small):
    cut = small.cut(Text(train_tokens=4, valid_tokens=2, min_count=2))
    assert {name: len(s.tokens) for name, s in cut.splits.items()} == {"train": 4, "valid": 2, "test": 2}
    assert cut.vocabulary == ("a", "<unk>")
    assert cut.notes == (
        "A note.",
        "Only the first 4 of 7 train tokens are used.",
        "Only the first 2 of 4 valid tokens are used.",
        "Types seen fewer than 2 times in train (25.0\u00a0% of its tokens) become <unk>.",
    )


def test_cut_is_the_same_through_a_temporary_file(small, monkeypatch):
    whole = small.cut(Text(min_count=2))
    monkeypatch.setattr(text_corpus, "CHUNK", 3)
    pieces = small.cut(Text(min_count=2))
    assert isinstance(pieces.splits["train"].tokens, np.memmap)
    assert not isinstance(whole.splits["train"].tokens, np.memmap)
    assert pieces.fingerprint == whole.fingerprint


def test_saved_and_loaded_is_mapped_and_the_same(small, tmp_path):
    loaded = Corpus.load(small.save(tmp_path / "deep" / "corpus"))
    assert loaded.fingerprint == small.fingerprint
    for name in ("name", "vocabulary", "labels", "notes"):
        assert getattr(loaded, name) == getattr(small, name)
    assert list(loaded.splits) == ["train", "valid", "test"]
    for name, part in loaded.splits.items():
        assert isinstance(part.tokens, np.memmap)
        assert part.tokens.tolist() == small.splits[name].tokens.tolist()
        assert part.labels["pos"].tolist() == small.splits[name].labels["pos"].tolist()


def test_a_corpus_can_be_saved_over_the_folder_it_is_mapped_from(small, tmp_path):
    loaded = Corpus.load(small.save(tmp_path))
    loaded.save(tmp_path)
    assert Corpus.load(tmp_path).fingerprint == small.fingerprint


def test_a_full_disk_leaves_nothing_that_reads_as_a_corpus(small, tmp_path, monkeypatch):
    small.save(tmp_path)

    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(text_corpus.np, "save", full)
    with pytest.raises(Exception, match="The disk is full"):
        small.save(tmp_path)
    with pytest.raises(CorpusError, match="is not a corpus folder"):
        Corpus.load(tmp_path)


@pytest.mark.parametrize("name", ["train.npy", "valid.column-1.npy"])
def test_a_damaged_array_is_named_with_what_to_delete(small, tmp_path, name):
    path = small.save(tmp_path) / name
    Corpus.load(tmp_path)
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(body)
    with pytest.raises(DamagedFileError) as caught:
        Corpus.load(tmp_path)
    assert caught.value.problem == f"{path} is damaged."
    assert str(tmp_path) in caught.value.todo


def test_a_missing_a_short_and_a_foreign_array_are_damage(small, tmp_path):
    path = small.save(tmp_path) / "train.npy"
    np.save(path, np.zeros(7, np.int64))
    with pytest.raises(DamagedFileError, match=r"It holds int64 of shape \(7,\), not int32 of shape \(7,\)"):
        Corpus.load(tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DamagedFileError, match=r"train.npy cannot be read"):
        Corpus.load(tmp_path)
    path.unlink()
    with pytest.raises(DamagedFileError, match="FileNotFoundError"):
        Corpus.load(tmp_path)


def test_damaged_or_newer_corpus_json(small, tmp_path):
    path = small.save(tmp_path) / "corpus.json"
    path.write_text(path.read_text().replace("small", "smell"))
    with pytest.raises(DamagedFileError, match="does not match its checksum"):
        Corpus.load(tmp_path)
    write_json(path, {"format": 99})
    with pytest.raises(DamagedFileError, match="has format 99"):
        Corpus.load(tmp_path)


def test_no_corpus_folder(tmp_path):
    with pytest.raises(CorpusError, match="There is no such folder"):
        Corpus.load(tmp_path / "none")
    with pytest.raises(CorpusError, match=r"It holds no corpus.json"):
        Corpus.load(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        ({"train": 0, "valid": 5}, "The train split of 'x' has 0 tokens."),
        ({"train": 5}, "The valid split of 'x' has 0 tokens."),
    ],
)
def test_an_empty_or_one_token_corpus_is_refused(sizes, given):
    parts = {name: split([0] * n) for name, n in sizes.items()}
    with pytest.raises(CorpusError) as caught:
        Corpus.make("x", ("a",), {"pos": ("X",)}, parts)
    assert caught.value.problem == given


def test_label_columns(small):
    assert small.column("pos") == ("X", "Y", "Z")
    with pytest.raises(CorpusError, match=r"has no label column 'ner'.\n  It has pos."):
        small.column("ner")
    bare = Corpus.make(
        "bare", ("a",), {}, {"train": Split(np.zeros(4, np.int32)), "valid": Split(np.zeros(4, np.int32))}
    )
    with pytest.raises(CorpusError, match=r"no label columns at all.\n.*trisect corpus annotate"):
        bare.column("pos")


@pytest.mark.parametrize(("pos", "known"), [([1] * 7, "Only 'Y' occurs."), ([-1] * 7, "No class occurs.")])
def test_a_label_with_one_class_in_train_is_refused(small, pos, known):
    parts = {**small.splits, "train": split([1, 1, 1, 2, 2, 3, 4], pos)}
    corpus = Corpus.make("small", small.vocabulary, small.labels, parts)
    with pytest.raises(CorpusError, match="fewer than two classes in the train split of 'small'") as caught:
        corpus.column("pos")
    assert caught.value.reason == known


@pytest.mark.parametrize("step", [-1, 2])
def test_a_step_outside_the_split(step):
    with pytest.raises(IndexError, match="of 2"):
        batch(split(list(range(11))), 2, 3, step)


def test_too_few_tokens_for_the_columns():
    with pytest.raises(CorpusError, match=r"A split of 39 tokens is too short.\n  20 columns need at least 40 tokens"):
        steps(split([0] * 39), 20, 35)
    assert steps(split([0] * 40), 20, 35) == 1


def test_a_sample_of_windows():
    part = split([0] * 20 * 71)  # 70 rows with a next one: two full windows
    assert sample_steps(part, 20, 35, None) == (0, 1)
    assert sample_steps(part, 20, 35, 1) == (1,)
    assert sample_steps(part, 20, 35, 10**9) == (0, 1)
    longer = split([0] * 20 * 360)  # ten full windows and a short one
    assert steps(longer, 20, 35) == 11
    assert sample_steps(longer, 20, 35, 2 * 700) == (2, 7)
    assert sample_steps(longer, 20, 35, 10**9) == tuple(range(10))
    assert sample_steps(split([0] * 40), 20, 35, 700) == (0,)  # no full window at all


def test_a_growing_array_that_cannot_grow(monkeypatch):
    grown = text_corpus.GrowingArray(np.int32)
    grown.append([1, 2])

    class Full:
        def write(self, _bytes):
            raise OSError(errno.ENOSPC, "No space left on device")

    grown._file.close()
    monkeypatch.setattr(grown, "_file", Full())
    with pytest.raises(CorpusError, match=r"more than 2 tokens could not be kept[\s\S]*No space left[\s\S]*TMPDIR"):
        grown.append([3])


ESCAPING = (
    *("/../../../../tmp/PWN", "../../x", "..", ".", "a/b", "c/b", "a\\b", "", "x" * 300, "pos", "Gender[psor]", "ä"),
)


def test_a_label_column_of_any_name_is_kept_inside_the_folder(tmp_path):
    labels: dict[str, tuple[str, ...]] = dict.fromkeys(map(str, ESCAPING), ("X", "Y"))

    def part(n, shift):
        ids = {name: (np.arange(n) // (i + 1) + shift).astype(np.int16) % 2 for i, name in enumerate(ESCAPING)}
        return Split(np.arange(n, dtype=np.int32) % 3, ids)

    made = Corpus.make("wild", ("a", "b", "c"), labels, {"train": part(40, 0), "valid": part(30, 1)})
    folder = tmp_path / "deep" / "corpus"
    loaded = Corpus.load(made.save(folder))
    assert loaded.fingerprint == made.fingerprint
    for name, split in made.splits.items():
        for label, ids in split.labels.items():
            assert loaded.splits[name].labels[label].tolist() == ids.tolist(), label
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.parent != folder] == []
    assert sorted(p.name for p in folder.iterdir() if "column" in p.name) == sorted(
        f"{split}.column-{i}.npy" for split in ("train", "valid") for i in range(1, len(ESCAPING) + 1)
    )


def test_columns_that_differ_only_before_a_slash_are_told_apart_by_the_fingerprint():
    def made(labels):
        tokens = np.arange(6, dtype=np.int32) % 2
        parts = {s: Split(tokens, {"a/b": np.array(labels, np.int16)}) for s in ("train", "valid")}
        parts["valid"] = Split(tokens, {"a/b": np.zeros(6, np.int16)})
        return Corpus.make("x", ("a", "b"), {"a/b": ("X", "Y")}, parts).fingerprint

    assert made([0, 1, 0, 1, 0, 1]) != made([1, 1, 0, 1, 0, 1])


@pytest.mark.parametrize("name", ["a\0b", "\x1b[31m", "\ud800"])
def test_a_label_column_that_no_page_can_show_is_refused(small, name):
    parts = {s: Split(p.tokens, {name: p.labels["pos"]}) for s, p in small.splits.items()}
    with pytest.raises(CorpusError, match="Control characters cannot be shown") as caught:
        Corpus.make("x", small.vocabulary, {name: ("X", "Y", "Z")}, parts)
    assert caught.value.problem == f"The corpus 'x' has a label column {name!r}."


def test_the_fingerprint_is_a_function_of_the_content_alone(small):
    assert small.fingerprint == "1dfa40f91d11e32d"  # as the first version made it
