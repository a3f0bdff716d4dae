"""The explorer's arrays: what is packed is what was read, within the stated steps; words as readers know them; bad input."""

import base64
import json
import re
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from markupsafe import escape
from tests import pictures

import trisect
from trisect.core.errors import CorpusError, SpecError, StudyError, TrisectError
from trisect.core.subject import Batch, Heads, Shape, Subject
from trisect.experiments.explore import page, run
from trisect.experiments.explore.page import LADDER, ExplorerPicture, Layer, Words, levels_of, pack, readable, to_steps
from trisect.experiments.explore.run import explore, take_picture
from trisect.lab.run_folder import RunFolder
from trisect.measure import norms as measured

READINGS = {"encoder": pictures.encoder(padding=3), "decoder": pictures.decoder(), "translator": pictures.translator()}
FLOAT = 1e-6  # float32's own rounding, of values below 100


@pytest.fixture(params=["fine", "coarse"])
def coarse(request, monkeypatch):
    """Coarse: as a long text is packed, weights in 255 steps and vectors in 8 bits."""
    if request.param == "coarse":
        monkeypatch.setattr(page, "MAX_FINE_NUMBERS", 0)
    return request.param == "coarse"


def unpacked(packed, n):
    """Layer n of a pack, read by another hand than the page's: weights [H T S], norms, summed, q, k, v."""
    facts, levels = packed.manifest["layers"][n], packed.levels
    H, K, T, S, E = facts["shape"]
    raw = zlib.decompress(packed.chunks[1 + 2 * n], -15)
    normed = facts["summed"] is not None
    norms = np.frombuffer(raw, "<f4", H * S).reshape(H, S) if normed else None
    steps = np.frombuffer(raw, np.uint8 if levels < 256 else "<u2", offset=4 * H * S if normed else 0)
    maps = (steps.reshape(-1, S, T).transpose(0, 2, 1) / levels) ** 2
    assert len(maps) == H + normed
    raw = zlib.decompress(packed.chunks[2 + 2 * n], -15)
    scale = np.frombuffer(raw, "<f4", (H + K) * E).reshape(H + K, 1, E)
    kind, size = np.int8 if packed.manifest["bits"] == 8 else "<i2", (H * T + K * S) * E
    ints = np.frombuffer(raw, kind, size, offset=4 * (H + K) * E)
    q, k = ints[: H * T * E].reshape(H, T, E) * scale[:H], ints[H * T * E :].reshape(K, S, E) * scale[H:]
    raw, V = raw[4 * (H + K) * E + ints.nbytes :], facts["values"]
    scale = np.frombuffer(raw, "<f4", K * V).reshape(K, 1, V)
    v = np.frombuffer(raw, ints.dtype, K * S * V, offset=4 * K * V).reshape(K, S, V) * scale
    return maps[:H], norms, maps[H] * facts["summed"] if normed else None, q, k, v


def contributions_of(packed, n, weights):
    """Contribution weights of layer n's heads and of itself, from the end of a pack and the weights."""
    facts = packed.manifest["layers"][n]
    (H, _, T, S, _), R = facts["shape"], facts["sources"]
    raw = zlib.decompress(packed.chunks[2 + 2 * n], -15)[-(2 * H * R * S + 4 * T + T * S) :]
    f = np.frombuffer(raw, "<i2", H * R * S).reshape(H, R, S).astype(float)
    added = weights @ f.swapaxes(1, 2)
    heads = weights * (added @ f) / (added**2).sum(-1, keepdims=True)
    tops = np.frombuffer(raw, "<f4", T, offset=2 * H * R * S)
    steps = np.frombuffer(raw, np.int8, offset=2 * H * R * S + 4 * T).reshape(T, S) / 127
    return heads, tops[:, None] * steps * np.abs(steps)


@given(arrays.arrays(np.float32, (3, 5), elements=st.floats(0, 50, width=32)), st.sampled_from([*LADDER, 65535]))
def test_steps_lose_no_more_than_they_say(values, levels):
    top = float(values.max())
    back = (levels_of(values, levels, top) / levels) ** 2 * (top or 1)
    bound = (np.sqrt(values * top) + top / (4 * levels)) / levels
    assert (np.abs(back - values) <= bound + FLOAT * top).all()


@given(
    arrays.arrays(np.float32, (2, 4, 3), elements=st.floats(-50, 50, width=32).map(lambda x: round(x, 3))),
    st.sampled_from([8, 16]),
)
def test_vectors_lose_half_a_step(values, bits):
    ints, steps = to_steps(values, bits)
    assert (np.abs(ints * steps[:, None] - values) <= steps[:, None] * 0.5 + FLOAT * np.abs(values)).all()


@pytest.mark.parametrize("name", READINGS)
def test_what_is_packed_is_what_was_read(name, coarse):
    reading = READINGS[name]
    picture = take_picture(reading)
    packed = pack(picture)
    assert packed.levels == (255 if coarse else 65535)
    for n, (trace, layer) in enumerate(zip(reading.traces, picture.layers, strict=True)):
        real = trace.query_real[0], trace.key_real[0]
        weights = trace.weights[0][:, real[0]][:, :, real[1]].numpy()
        manifest: Any = packed.manifest
        facts = manifest["layers"][n]
        assert facts["shape"] == [*weights.shape[:1], trace.k.shape[1], *weights.shape[1:], trace.q.shape[-1]]
        got, norms, summed, q, k, v = unpacked(packed, n)
        L = packed.levels
        assert (np.abs(got - weights) <= np.sqrt(weights) / L + 1 / (4 * L * L) + FLOAT).all()
        steps = 2 ** (manifest["bits"] - 1) - 1
        assert facts["values"] == trace.v.shape[-1]
        for found, part, there in zip((q, k, v), (trace.q, trace.k, trace.v), (real[0], real[1], real[1]), strict=True):
            true = part[0][:, there]
            size = true.abs().amax(1, keepdim=True).numpy() / steps
            assert (np.abs(found - true.numpy()) <= size / 2 + FLOAT).all()
        if trace.w_o is None:
            assert norms is None
            assert layer.lacking == facts["lacking"] == "a gate multiplies the output"
            continue
        for found, true in zip(contributions_of(packed, n, weights), measured.contributions(trace), strict=True):
            true = true[0][..., real[0], :][..., real[1]].numpy()
            assert true.min() < 0
            assert np.abs(found - true).max() <= 0.01 * np.abs(true).max()
            assert np.abs(found.sum(-1) - 1).max() < 0.05
        f = torch.einsum("hse,hed->hsd", trace.values[0][:, real[1]], trace.w_o)
        assert norms == pytest.approx(f.norm(dim=-1).numpy(), rel=1e-5)
        whole = torch.einsum("hts,hsd->tsd", torch.tensor(weights), f).norm(dim=-1).numpy()
        assert (np.abs(summed - whole) <= (np.sqrt(whole * whole.max()) + whole.max() / L) / L + 1e-4).all()
        assert facts["tops"]["summed"][0] == pytest.approx(measured.summed_norms(trace).max().item(), rel=1e-5)


@pytest.mark.parametrize("tokens", [4, 64])
def test_contributions_take_less_than_a_third_of_what_is_there_without_them(tokens):
    picture = take_picture(pictures.encoder(tokens, layers=2, heads=4))
    without = replace(picture, layers=[replace(n, sources=None, contributions=None) for n in picture.layers])
    size, before = (sum(map(len, pack(one).chunks)) for one in (picture, without))
    assert before < size < before * 4 / 3


def test_fewer_steps_where_there_is_less_room(monkeypatch):
    monkeypatch.setattr(page, "MAX_FINE_NUMBERS", 0)
    picture = take_picture(pictures.encoder(64, layers=2, heads=4))
    whole = sum(map(len, pack(picture).chunks))
    sizes = {}
    for share in (1.0, 0.95, 0.9):
        packed = pack(picture, int(whole * share))
        sizes[packed.levels] = sum(map(len, packed.chunks))
        assert sizes[packed.levels] <= whole * share
    assert len(sizes) == 3
    assert max(sizes) == 255
    assert pack(picture, 10).levels == LADDER[-1]


def test_contributions_are_left_out_where_vectors_take_too_much(monkeypatch):
    monkeypatch.setattr(page, "MAX_FINE_NUMBERS", 0)
    picture = take_picture(READINGS["encoder"])
    for limit, lacking in ((10_000, [""] * 2), (2_000, [page.TOO_LONG] * 2)):
        monkeypatch.setattr(page, "MAX_VECTOR_NUMBERS", limit)
        layers: Any = pack(picture).manifest["layers"]
        assert [layer["lacking"] for layer in layers] == lacking
        assert [layer["sources"] > 0 for layer in layers] == [not text for text in lacking]
        assert all(layer["values"] and "stored" not in layer for layer in layers)
    monkeypatch.setattr(page, "MAX_VECTOR_NUMBERS", 1_000)
    packed = pack(picture)
    layers = packed.manifest["layers"]
    assert not packed.manifest["vectors"]
    assert [packed.chunks[2 + 2 * n] for n in range(2)] == [b"", b""]
    assert not any("stored" in layer or layer["sources"] for layer in layers)
    steps = np.frombuffer(zlib.decompress(packed.chunks[1], -15), np.uint8)[4 * 3 * 12 :].reshape(4, 12, 12)
    weights = picture.layers[0].weights
    assert np.array_equal(steps[:3].transpose(0, 2, 1), levels_of(weights, packed.levels))  # all of them


def test_a_text_that_no_page_holds_is_refused():
    weights = np.broadcast_to(np.float32(0), (12, 15_000, 15_000))  # takes no memory
    layer = Layer("plain", 1, weights, np.zeros((12, 15_000, 1)), np.zeros((12, 15_000, 1)))
    words = Words(("a",) * 15_000, (False,) * 15_000)
    with pytest.raises(CorpusError, match="15,000 tokens has 2,700,000,000 attention weights in 'big/model'") as error:
        pack(ExplorerPicture("big/model", [layer], words))
    assert "5,000 tokens of this model" in error.value.reason
    with pytest.raises(CorpusError, match="There is nothing to show"):
        pack(ExplorerPicture("m", [], words))


@pytest.mark.parametrize("name", READINGS)
def test_of_a_long_text_the_largest_weights_of_each_query_are_stored(monkeypatch, name):
    monkeypatch.setattr(page, "MAX_DENSE_WEIGHTS", 0)
    monkeypatch.setattr(page, "STORED_WEIGHTS", 450)
    picture, rows = take_picture(READINGS[name]), page.LONG_LEVELS
    packed = pack(picture)
    manifest: Any = packed.manifest
    for n, (layer, facts) in enumerate(zip(picture.layers, manifest["layers"], strict=True)):
        H, T, S = layer.weights.shape
        keys, planes = facts["stored"], list(layer.weights) + ([] if layer.summed is None else [layer.summed])
        assert 1 <= keys < S
        raw = np.frombuffer(zlib.decompress(packed.chunks[1 + 2 * n], -15), np.uint8)
        if layer.norms is not None:
            assert np.array_equal(raw[: 4 * H * S].view("<f4").reshape(H, S), layer.norms)
            raw = raw[4 * H * S :]
        low, high, steps = raw.reshape(3, len(planes), T, keys).astype(int)
        places = (low + 256 * high).cumsum(axis=-1)
        for cells, at, step in zip(planes, places, steps, strict=True):
            top = 1.0 if cells is not layer.summed else cells.max()
            largest = np.sort(cells, axis=1)[:, -keys:]
            assert np.array_equal(np.sort(np.take_along_axis(cells, at, axis=1), axis=1), largest)
            levels = levels_of(np.take_along_axis(cells, at, axis=1), rows, float(top))
            assert np.array_equal(step, levels)
        stored = np.take_along_axis(layer.weights, places[:H], axis=2).sum() / layer.weights.sum()
        assert facts["share"] == pytest.approx(stored, abs=1e-4)
        assert (facts["values"], facts["sources"], packed.chunks[2 + 2 * n]) == (0, 0, b"")


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16))
def test_a_small_picture_has_the_largest_of_each_square(rows, columns, side):
    maps = np.random.default_rng(rows * columns).uniform(0, 7, (2, rows, columns)).astype(np.float32)
    pixels, tops = page.shrink(maps, side)
    assert pixels.shape == (2, min(rows, side), min(columns, side))
    assert tops == pytest.approx(maps.max(axis=(1, 2)))
    down, across = ([i * n // min(n, side) for i in range(min(n, side) + 1)] for n in (rows, columns))
    for h, i, j in np.ndindex(pixels.shape):
        square = maps[h, down[i] : down[i + 1], across[j] : across[j + 1]]
        assert abs(pixels[h, i, j] - 255 * np.sqrt(square.max() / tops[h])) <= 0.5 + 1e-3


def test_causal_and_plain_layers_are_known_as_such():
    facts: Any = {name: pack(take_picture(r)).manifest["layers"] for name, r in READINGS.items()}
    assert [n["causal"] for n in facts["encoder"]] == [False, False]
    assert [n["causal"] for n in facts["decoder"]] == [True, True]
    assert [n["causal"] for n in facts["translator"]] == [False, True, False]
    assert [n["plain"] for n in facts["decoder"]] == [True, False]  # the second adds a bias
    assert [n["plain"] for n in facts["translator"]] == [True] * 3
    assert [(n["queries"], n["keys"]) for n in facts["translator"]] == [(0, 0), (1, 1), (1, 0)]


@pytest.mark.parametrize(
    ("pieces", "special", "shown"),
    [
        ("[CLS] un ##known word ## [SEP]", (0, 5), "|[CLS]| un|known| word| ##| [SEP]"),
        ("<s> Hello Ġworld ĠÃ© tÃ© ĠâĤ ¬ Ċ Ġ", (0,), "<s>| Hello| world| é|té| ‹e2 82›|‹ac›|↵| ␣"),
        ("▁The ▁cat s ▁ .", (), "The| cat|s| ␣|."),
        ("un@@ known word", (), "un|known| word"),
        ("plain words only", (), "plain| words| only"),
        ("a Ġb", (), "a| b"),
    ],
)
def test_pieces_as_a_reader_knows_them(pieces, special, shown):
    found = pieces.split(" ")
    got = readable(found, [i in special for i in range(len(found))])
    text = "|".join(("" if glued else " ") + text for text, glued in got)
    assert text.lstrip("|") == shown.lstrip("|")


def test_a_piece_of_nothing_is_something_to_see():
    assert [text for text, _ in readable(["", " ", "\n\n", "\t"], [False] * 4)] == ["∅", "␣", "↵↵", "⇥"]


def nasty():
    reading = pictures.encoder(4)
    text = replace(reading.source, tokens=(("[CLS]", pictures.NASTY, "<b>", "[SEP]"),))
    return replace(reading, model=pictures.NASTY, source=text, notes=(pictures.NASTY,), facts={"a<b": pictures.NASTY})


def test_the_page_is_one_file_that_asks_for_nothing_and_escapes_all():
    picture = take_picture(nasty())
    html = page.html(picture)
    assert html == page.html(picture)
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert") == 7  # title, answer, summary, text, two facts and a note
    assert html.count("</script>") == html.count("<script") == 2 + len(pack(picture).chunks)
    outside = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.search(r'(?:src|href)="(?!data:,")|url\(|@import|https?://', outside)
    assert "connect" not in re.findall(r'Policy" content="([^"]+)"', html)[0]
    facts = json.loads(re.findall(r'id="manifest">(.*?)</script>', html, re.S)[0])
    assert facts["sides"][0]["tokens"] == ["[CLS]", pictures.NASTY, "<b>", "[SEP]"]
    chunks = re.findall(r'data-chunk="\d+">(.*?)</script>', html)
    assert [base64.b64decode(c) for c in chunks] == list(pack(picture).chunks)


@pytest.mark.parametrize("name", ["encoder", "translator"])
def test_the_page_begins_with_the_token_that_gets_most_weight_its_shares_and_the_text(name):
    picture = take_picture(READINGS[name])
    layers = [layer for layer in picture.layers if layer.stack == picture.layers[0].stack]
    by_head = np.concatenate([layer.weights for layer in layers]).mean(axis=1)
    token = by_head.mean(axis=0).argmax()
    place = np.unravel_index(np.argmax([layer.weights.mean(axis=1)[:, token] for layer in layers]), (len(layers), 3))
    maps = np.concatenate([layer.weights * layer.norms[:, None] for layer in layers if layer.norms is not None])
    of_norm = (maps[:, :, token].sum(axis=1) / maps.sum(axis=(1, 2))).mean()
    said = page.answer(picture).replace("\u00a0", " ")
    assert f"(token {token + 1}): {100 * by_head[:, token].mean():.1f} % of the weight of {len(by_head)} heads" in said
    assert f"{100 * of_norm:.1f} % of the norm" in said
    assert (
        f"most in layer {place[0] + 1} head {place[1] + 1}, {100 * by_head[:, token].max():.1f} % of its weight."
        in said
    )
    first = next(n for n, layer in enumerate(picture.layers) if layer is layers[place[0]])
    assert f'"first":[{first},{place[1]}]' in page.html(picture)  # the head that is open
    assert ("(encoder)" in said) == (name == "translator")
    texts = re.findall(r"“([^”]+)”", page.html(picture).partition("</header>")[0])
    assert [len(text) > 10 for text in texts] == [True] * (1 + (name == "translator"))
    assert f'<p class="x-answer">{escape(page.answer(picture))}' in page.html(picture)
    without = replace(picture, layers=[replace(layer, norms=None, summed=None) for layer in layers])
    assert "norm" not in page.answer(without)


def test_a_row_that_is_not_there_and_numbers_that_are_none():
    with pytest.raises(CorpusError, match=r"(?s)Row 1 was asked for.*The reading has 1"):
        take_picture(READINGS["encoder"], 1)
    reading = pictures.encoder()
    broken = replace(reading.traces[0], weights=reading.traces[0].weights * torch.nan)
    with pytest.raises(
        TrisectError, match=r"(?s)'tiny/encoder' cannot be shown.*layer 1 hold values that are not finite"
    ):
        take_picture(replace(reading, traces=(broken,)))


class Fake:
    """A subject whose texts have as many windows as they have commas, and one more."""

    name, fingerprint, objective, options, notes = "tiny/encoder", "abc123", "masked", ("tiny/encoder",), ()
    shape = Shape({trace.address: Heads(trace.heads, trace.heads) for trace in READINGS["encoder"].traces})
    projections, score = tuple, dict  # a page asks for none of them

    def batches(self, texts, size=8, scored=False):
        rows = tuple((0, i) for i in range(texts[0].count(",") + 1)) if texts[0] else ()
        for at in range(0, len(rows), size):
            yield Batch({}, READINGS["encoder"].source, None, rows[at : at + size])

    def trace(self, batch):
        assert batch.rows == ((0, 0),)
        return READINGS["encoder"]

    def each(self, batch, see) -> None:
        raise AssertionError


def test_a_long_text_is_read_with_one_layer_in_memory_at_a_time(monkeypatch, tmp_path):
    def manifest(subject, name):
        text = trisect.explore_page(cast(Subject, subject), "a text", out=tmp_path / name).report.read_text()
        return json.loads(re.findall(r'id="manifest">(.*?)</script>', text, re.S)[0])

    class Layerwise(Fake):
        def trace(self, batch):
            raise AssertionError

        def each(self, batch, see):
            for trace in READINGS["encoder"].traces:
                see(trace)

    whole = manifest(Fake(), "a.html")
    for module in (page, run):
        monkeypatch.setattr(module, "MAX_DENSE_WEIGHTS", 0)
    long = manifest(Layerwise(), "b.html")
    assert whole.keys() == long.keys()
    for before, after in zip(whole["layers"], long["layers"], strict=True):
        # of a short text all weights are among the largest
        assert (after["stored"], after["share"]) == (after["shape"][3], pytest.approx(1, abs=1e-4))
        same = before.keys() - {"values", "sources", "lacking"}
        assert {k: after[k] for k in same} == {k: before[k] for k in same}


def test_a_text_becomes_a_page(tmp_path):
    subject = cast(Subject, Fake())
    assert trisect.explore_page(subject, "a text", out=tmp_path).report == tmp_path / "explorer.html"
    made = trisect.explore_page(subject, "a text", out=tmp_path / "new")
    assert made.report == tmp_path / "new" / "explorer.html"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["explorer.html"]  # no lock, no tables, no record
    assert made.answer == page.answer(made.about.facts.picture)  # what the terminal begins with
    assert made.about.facts.picture.model == READINGS["encoder"].model
    assert (made.about.command, made.findings) == ("trisect explore tiny/encoder 'a text'", ())
    path = trisect.explore_page(subject, "one, two", out=tmp_path / "x" / "page.html").report
    assert path == tmp_path / "x" / "page.html"
    assert "The text has 2 windows; this is the first." in path.read_text(encoding="utf-8")
    assert "abc123" in path.read_text(encoding="utf-8")
    with pytest.raises(CorpusError, match="The text is empty"):
        trisect.explore_page(subject, "", out=tmp_path / "none")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for texts, problem in (((), "No text was given"), (("a", "b", "c"), "3 texts were given")):
        with pytest.raises(SpecError, match=problem):
            trisect.explore_page(subject, texts, out=tmp_path / "none" / "page.html")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_text_that_no_page_holds_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MAX_WEIGHTS", 10)
    monkeypatch.setattr(Fake, "trace", Fake.each)
    with pytest.raises(CorpusError, match="attention weights in 'tiny/encoder'"):
        trisect.explore_page(cast(Subject, Fake()), "a text", out=tmp_path)


@pytest.mark.parametrize("out", ["notes.txt", "page.html", "notes", "."])
def test_a_page_is_written_over_a_page_of_ours_and_over_nothing_else(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    subject, place = cast(Subject, Fake()), Path("explorer.html" if out == "." else out)
    for title in ("mine", "report of a study, trisect", "Notes on trisect"):
        text = f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        place.write_text(text)
        with monkeypatch.context() as patch:
            patch.setattr(Fake, "trace", lambda *_: pytest.fail("it was computed first"))
            with pytest.raises(StudyError, match="'trisect explore' did not write it") as error:
                trisect.explore_page(subject, "a text", out=out)
        assert error.value.problem == f"{place} is there already."
        assert place.read_text() == text
    place.unlink()
    trisect.explore_page(subject, "a text", out="page.html" if out == "notes" else out)
    if out != "notes":
        assert trisect.explore_page(subject, "a text", out=out).report.samefile(place)
        before = place.read_bytes()
        with pytest.raises(StudyError, match="was given for a page of 'trisect explore'") as error:
            trisect.explore_page(subject, "another text", out=out)
        assert "the page of another text or model" in error.value.reason
        assert place.read_bytes() == before
    else:  # without a name each question has a page of its own
        names = [trisect.explore_page(subject, text).report.name for text in ("a text", "another text", "a text")]
        assert names == [names[0], names[0].replace(".html", "-2.html"), names[0]]


@pytest.mark.parametrize("name", ["report.html", "tables/report.html", "new.html"])
def test_no_page_is_put_among_the_files_of_a_run_or_a_study(tmp_path, name, monkeypatch):
    monkeypatch.setattr(Fake, "trace", lambda *_: pytest.fail("it was computed first"))
    with RunFolder(tmp_path / "run").stage() as stage:
        for own in ("report.html", "tables/report.html"):
            (stage / own).parent.mkdir(exist_ok=True)
            (stage / own).write_text("a report")
        RunFolder(tmp_path / "run").commit(stage, "norms", "0" * 32)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{}")
    there = sorted(path.name for path in tmp_path.rglob("*"))
    for folder, known in (
        ("run", "a run of 'trisect norms'" if name != "new.html" else "A study or a run"),
        ("study", "A study"),
    ):
        with pytest.raises(StudyError) as error:
            trisect.explore_page(cast(Subject, Fake()), "a text", out=tmp_path / folder / name)
        assert known in error.value.reason
        assert str(tmp_path / folder) in error.value.reason
        assert str(tmp_path / folder / name) in error.value.problem
    assert sorted(path.name for path in tmp_path.rglob("*")) == there
    assert (tmp_path / "run" / "report.html").read_text() == "a report"


def test_a_notebook_gets_a_widget_with_the_same_bytes():
    pytest.importorskip("anywidget")
    shown: Any = explore(READINGS["encoder"])
    packed = pack(take_picture(READINGS["encoder"]))
    starts = json.loads(shown.starts)
    assert [shown.data[a:b] for a, b in pairwise(starts)] == list(packed.chunks)
    assert shown.manifest == page.manifest(packed)
    assert "application/vnd.jupyter.widget-view+json" in shown._repr_mimebundle_()[0]


def test_without_anywidget_a_notebook_gets_the_page_in_a_frame(monkeypatch):
    monkeypatch.setattr(page, "is_installed", lambda package: package != "anywidget")
    shown: Any = explore(nasty())
    html = shown._repr_html_()
    assert html.count("<") == 2  # the frame, whole page inside its attribute
    assert html.startswith("<iframe ")
    assert repr(explore(READINGS["decoder"])) == "<Explorer tiny/decoder · 2 layers × 4 heads · 12 tokens>"


def test_every_script_is_short_and_says_what_it_is():
    folder = Path(page.__file__).parent
    assert {p.name for p in folder.glob("*.js")} == {*page.SCRIPTS, "page.js", "widget.js"}
    for path in folder.glob("*.js"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 400
        assert re.match(r"// \w+: .*[.;]", lines[0])
