"""Sound and images, by the model's own processor, as files or as its outputs: read by every measure, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch
import transformers
from PIL import Image
from tests import tinyhf, towers, zoo
from tests.raw import call
from tokenizers import Tokenizer, models, pre_tokenizers

import trisect
from trisect.core.errors import ModelError, SpecError, TrisectError
from trisect.core.subject import InputSample
from trisect.hf.files import fetch
from trisect.hf.load import load
from trisect.hf.processor import open_image, open_sound
from trisect.server.answering import INPUT_NAMES, PageModel, PageState

tf = cast(Any, transformers)
RATE = 16_000


def save_whisper(place: Path, seconds: int, layers: int) -> Path:
    """A small Whisper with sharp weights that reads so many seconds, and its processor."""
    sizes = {"encoder_layers": 1, "decoder_layers": layers, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    widths = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_mel_bins": 8, "vocab_size": 40}
    lengths = {"max_source_positions": 50 * seconds, "max_target_positions": 20}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = tf.WhisperConfig(**sizes, **widths, **lengths, **ids, suppress_tokens=[], begin_suppress_tokens=[])
    torch.manual_seed(3)
    cast(Any, zoo.sharpen(tf.WhisperForConditionalGeneration(config))).save_pretrained(place)
    tf.WhisperFeatureExtractor(feature_size=8, chunk_length=seconds, hop_length=160).save_pretrained(place)
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{n}" for n in range(30)), ",", *(f"W{n}" for n in range(5))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tf.PreTrainedTokenizerFast(tokenizer_object=inner, **specials).save_pretrained(place)
    return place


def vit_config(layers: int) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "image_size": 8, "patch_size": 4}
    return tf.ViTConfig(num_hidden_layers=layers, num_attention_heads=2, **sizes)


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Path:
    """A model that reads one second."""
    return save_whisper(tmp_path_factory.mktemp("models") / "speech", 1, 1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Path, Path]:
    """A model that reads eight seconds, and recordings of thirteen words by two speakers."""
    place, draw = tmp_path_factory.mktemp("recorded"), np.random.default_rng(1)
    for speaker in ("high", "low"):
        (place / "words" / speaker).mkdir(parents=True)
        for number in range(13):
            wave = draw.standard_normal(4_000).astype(np.float32) / 4
            soundfile.write(place / "words" / speaker / f"w{number}.wav", wave, RATE, subtype="FLOAT")
    return save_whisper(place / "model", 8, 2), place / "words"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A small ViT with sharp weights, and its processor."""
    place = tmp_path_factory.mktemp("models") / "pictures"
    torch.manual_seed(3)
    cast(Any, zoo.sharpen(tf.ViTModel(vit_config(2)))).save_pretrained(place)
    tf.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def sounds(tmp_path_factory) -> list[Path]:
    """Two sounds at the model's rate, then one of two channels at another rate."""
    place = tmp_path_factory.mktemp("sounds")
    draw = np.random.default_rng(0)
    waves = [draw.standard_normal(8_000).astype(np.float32) / 4 for _ in range(2)]
    for number, wave in enumerate(waves):
        soundfile.write(place / f"{number}.wav", wave, RATE, subtype="FLOAT")
    soundfile.write(place / "stereo.flac", draw.standard_normal((4_000, 2)) / 8, 8_000)
    return [place / "0.wav", place / "1.wav", place / "stereo.flac"]


@pytest.fixture(scope="module")
def subject(speech):
    return load(speech)


def test_a_sound_is_what_the_models_processor_makes_of_it_and_its_loss_of_what_is_said(
    subject, speech, sounds, tmp_path
):
    wave = soundfile.read(sounds[0], dtype="float32")[0]
    features = tf.WhisperFeatureExtractor.from_pretrained(speech)(wave, sampling_rate=RATE, return_tensors="pt")
    ids = torch.tensor([[1, 5, 6]])
    own = subject.read({"input_features": features["input_features"], "decoder_input_ids": ids})
    named = subject.read("w1 w2 w3", audio=sounds[0])
    assert named.target.tokens[0] == ("<s>", "w1", "w2")
    for mine, theirs in zip(named.traces, own.traces, strict=True):
        assert torch.equal(mine.weights, theirs.weights)
    assert "padded with silence to 1 s" in " ".join(named.notes)
    stereo = subject.read(audio=str(sounds[2]))
    both = soundfile.read(sounds[2], dtype="float32")[0]
    from scipy.signal import resample_poly

    one = resample_poly(both.mean(axis=1), 2, 1).astype(np.float32)
    assert torch.equal(stereo.traces[0].weights, subject.read(audio=one).traces[0].weights)
    said = " ".join(stereo.notes)
    assert "2 channels" in said
    assert "8,000 to 16,000" in said
    assert "No text was given" in said
    whole = sounds[0].read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[: len(whole) // 2])
    wave, notes = open_sound(tmp_path / "cut.wav", RATE)
    assert 0 < len(wave) < 8_000
    assert "not as long as its header says" in notes[0]
    (batch,) = subject.batches([InputSample("w1 w2", (str(sounds[0]),))], scored=True)
    with torch.no_grad():
        made = subject.model(**batch.inputs)
    expected = torch.nn.functional.cross_entropy(made.logits[0], torch.tensor([4 + 1, 4 + 2]), reduction="sum")
    assert float(subject.score(batch).total) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(ModelError, match="came without a text"):
        list(subject.batches([InputSample(audio=(str(sounds[0]),))], scored=True))


@pytest.mark.parametrize(("command", "more"), [("norms", []), ("ablate", ["--sites", "cross.v@1"]), ("explore", [])])
def test_commands_read_sound(command, more, speech, sounds, tmp_path):
    files = sounds[:1] if command == "explore" else sounds[:2]
    words = [command, speech, *(w for f in files for w in ("--audio", f))]
    words += [] if command == "explore" else ["--text", "w1 w2 w3", "--text", "w4 w5 w6"]
    result = call(*words, *more, "--out", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.output
    assert str(sounds[0].parent) not in result.output


def test_a_command_reads_images_and_python_a_processors_outputs_and_batches(pictures, tmp_path):
    draw = torch.Generator().manual_seed(0)
    files = []
    for number in range(3):
        noise = torch.randint(0, 255, (10, 9, 3), generator=draw, dtype=torch.uint8)
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(noise.numpy()).save(files[-1])
    words = ["ablate", pictures, *(w for f in files for w in ("--image", f)), "--how", "zero"]
    result = call(*words, "--out", tmp_path / "named", "--quiet")
    assert result.exit_code == 0, result.output
    subject = load(pictures)
    processor = tf.ViTImageProcessor.from_pretrained(pictures)
    made = [dict(processor(images=Image.open(f).convert("RGB"), return_tensors="pt")) for f in files]
    batches = [subject.batch_of(one) for one in made]
    tables = [
        trisect.ablate(subject, texts=given, how="zero", out=tmp_path / name, quiet=True).tables["measures"]
        for name, given in (("inputs", made), ("batches", batches))
    ]
    import polars as pl

    named = pl.read_parquet(tmp_path / "named" / "tables" / "measures.parquet")
    assert named["value"].to_list() == tables[0]["value"].to_list() == tables[1]["value"].to_list()
    assert max(tables[0]["value"].to_list()) > 0
    zero = trisect.intervene(subject, made[0], {"v@all": "zero"})
    served = trisect.serve(subject, made[0], batches[1], wait=False)
    served.stop()
    page = PageModel(subject, inputs={INPUT_NAMES[0]: made[0], INPUT_NAMES[1]: batches[1]})
    answer = page.answer(PageState(INPUT_NAMES[:1], INPUT_NAMES[1:], (("v@all", "zero"),)), "").words
    assert answer["moved"] == [round(float(m), 9) for m in zero.moved]
    assert "    inputs,  # those that trisect.serve was given" in cast(str, answer["python"])
    assert float(zero.moved.max()) > 0
    trisect.norms(subject, texts=made, out=tmp_path / "norms", quiet=True)
    changes = [
        trisect.patch(subject, base=base, donor=donor, sites=("v@1",), out=tmp_path / f"patch {n}", quiet=True)
        for n, (base, donor) in enumerate((made[:2], batches[:2]))
    ]
    assert changes[0].tables["interchanges"].equals(changes[1].tables["interchanges"])
    with pytest.raises(ModelError, match="failed with the inputs 'pixels'"):
        subject.read({"pixels": made[0]["pixel_values"]})
    with pytest.raises(TrisectError, match="a list of numbers") as refused:
        trisect.erase(subject, cast(Any, made), out=tmp_path / "erased")
    assert "tensor" not in str(refused.value)


def test_a_picture_is_turned_as_its_camera_says_and_nothing_of_it_is_left_out_unsaid(tmp_path):
    turned = Image.Exif()
    turned[274] = 6
    plain = Image.fromarray(np.arange(18, dtype=np.uint8).reshape(2, 3, 3))
    plain.save(tmp_path / "turned.png", exif=turned)
    assert cast(Any, open_image(tmp_path / "turned.png")[0]).size == (2, 3)
    assert open_image(tmp_path / "turned.png")[1] == ()
    plain.convert("RGBA").rotate(45).save(tmp_path / "clear.png")
    assert "clear.png has transparent parts" in open_image(tmp_path / "clear.png")[1][0]
    plain.save(tmp_path / "two.gif", save_all=True, append_images=[plain.rotate(180)])
    Image.fromarray(np.full((2, 2), 999, np.uint16)).save(tmp_path / "deep.png")
    for file, known in (("two.gif", "It holds 2 pictures"), ("deep.png", "not 8 bits")):
        with pytest.raises(ModelError, match=known):
            open_image(tmp_path / file)


def test_an_encoder_of_images_with_a_decoder_of_text_is_read(tmp_path):
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    saying = tf.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=20, **ids)
    config = tf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit_config(1), saying)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    torch.manual_seed(3)
    place = tmp_path / "model"
    cast(Any, zoo.sharpen(tf.VisionEncoderDecoderModel(config=config))).save_pretrained(place)
    tf.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(place)
    tinyhf.tokenizer().save_pretrained(place)
    model = load(place)
    assert (model.objective, model.shape.stacks) == ("seq2seq", ("enc", "dec", "cross"))
    noise = np.random.default_rng(0).integers(0, 255, (9, 9, 3), dtype=np.uint8)
    (batch,) = model.batches([InputSample("the cat", images=(Image.fromarray(noise),))], scored=True)
    assert float(model.score(batch).total) > 0


@pytest.mark.parametrize("command", ["norms", "ablate", "explore", "profile", "align", "erase"])
@pytest.mark.parametrize("kind", ["sound", "images"])
def test_text_alone_is_refused_before_weights_are_read(command, kind, speech, pictures, tmp_path, monkeypatch):
    def unread(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(fetch, "fetch", unread)
    monkeypatch.setattr("trisect.hf.load.fetch", unread)
    (tmp_path / "a.txt").write_text("w1 w2\n")
    own = {
        "norms": ["--text", "w1 w2"],
        "ablate": ["--text", "w1 w2"],
        "explore": ["w1 w2"],
        "profile": ["--corpus", "embedded"],
        "erase": ["--corpus", "embedded"],
        "align": ["--source", str(tmp_path / "a.txt"), "--target", str(tmp_path / "a.txt")],
    }[command]
    model = speech if kind == "sound" else pictures
    result = call(command, model, *own, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"It takes {kind}." in result.output
    assert ("--audio" if kind == "sound" else "--image") in result.output


def test_what_is_no_sound_or_does_not_go_together_says_why(subject, speech, sounds, tmp_path):
    (tmp_path / "text.wav").write_text("no sound")
    soundfile.write(tmp_path / "long.wav", np.zeros(RATE + 1), RATE)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    for file, known in (
        (tmp_path / "none.wav", "There is no such file."),
        (tmp_path / "text.wav", "LibsndfileError"),
        (tmp_path / "long.wav", "reads 1 s at a time"),
        (tmp_path / "empty.wav", "at least one sample"),
        (np.zeros((2, 3)), "Samples are one row"),
        (np.ones(9, np.int16), "type int16"),
        (np.array([0.1, np.nan, np.inf]), "2 of 3"),
    ):
        with pytest.raises(ModelError, match=known):
            subject.read(audio=file)
    with pytest.raises(SpecError, match="--text 1 times"):
        trisect.norms(speech, audio=tuple(map(str, sounds[:2])), text=("w1",), out=tmp_path / "out")
    for ask in (trisect.norms, trisect.explore_page):  # refused before the model is loaded
        with pytest.raises(SpecError, match=r"--audio 'nosuch\.wav' was given"):
            ask(tmp_path / "model that is not there", audio=("nosuch.wav",), out=tmp_path / "out")
    with pytest.raises(SpecError, match="both given"):
        trisect.norms(speech, audio=(str(sounds[0]),), texts="embedded", out=tmp_path / "out")
    with pytest.raises(TrisectError, match="beside samples"):
        trisect.norms(speech, texts=["w1", {"input_features": torch.zeros(1)}], out=tmp_path / "out")
    bert = tinyhf.save(tinyhf.bert(), tmp_path / "bert")
    with pytest.raises(ModelError, match="no processor"):
        load(bert).read(audio=sounds[0])
    with pytest.raises(ModelError, match="without the processor"):
        load(subject.model).read(audio=sounds[0])


CROSS = ("cross.q@2", "cross.q@all", "cross.k@all", "cross.v@all")


def predicted(done: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows of the table of predictions, by site, position and hypothesis."""
    return {(row["site"], row["position"], row["hypothesis"]): row for row in done.tables["predictions"].to_dicts()}


def test_pairs_of_recorded_words_are_patched_judged_and_encoded_once_and_a_pair_of_itself_changes_nothing(
    recorded, tmp_path
):
    model, words = load(recorded[0]), recorded[1]
    encoded = []
    encoder = cast(Any, model.model).get_encoder()
    handle = encoder.register_forward_hook(lambda _m, given, _out: encoded.append(given))
    made = {"task": "audio-words", "corpus": words, "count": 12, "per": "site", "quiet": True}
    done = trisect.patch(model, sites=CROSS, out=tmp_path / "once", **made)
    handle.remove()
    # of the 24 sounds each once, and the first as the whole model reads it
    assert 24 <= len(encoded) <= 24 + 6
    rows = predicted(done)
    assert {("cross.q@2", "last", "q-place"), ("cross.k@1-2", "all", "k-content")} <= rows.keys()
    assert not {key for key in rows if key[:2] == ("cross.q@1-2", "all")}, (
        "base and donor have said other numbers of words"
    )
    assert all(row["used"] >= 8 and row["unrelated_nats"] is not None for row in rows.values() if row["shift_nats"])
    claims = done.tables["claims"]
    assert set(claims["claim"]) == {"G-3", "G-4"}
    assert "G-3" in done.report.read_text(encoding="utf-8")
    assert any("said by 2 speakers" in note for note in done.notes)
    # with the encoder in every pass, which is so where it is patched, the numbers are the same to rounding
    whole = predicted(trisect.patch(model, sites=(*CROSS, "enc.q@1"), out=tmp_path / "whole", **made))
    for key, row in rows.items():
        assert row["used"] == whole[key]["used"]
        assert row["share"] == whole[key]["share"]
        for name in ("shift_nats", "unrelated_nats", "residual_nats"):
            assert row[name] == pytest.approx(whole[key][name], abs=1e-3), (key, name)
    sound = {"audio": str(words / "low" / "w3.wav"), "text": " W1, w2,"}
    answers = {"base": " w4", "donor": " w4", "q-place": " w5", "q-content": " w6"}
    pairs = [{"base": sound, "donor": sound, "answers": answers}] * 2
    done = trisect.patch(model, pair_list=pairs, sites=CROSS, per="site", out=tmp_path / "same", quiet=True)
    shifts = done.tables["predictions"]["shift_nats"].drop_nulls()
    assert len(shifts) > 20
    assert np.abs(shifts.to_numpy()).max() < 1e-5
    assert done.tables["interchanges"]["answer"].n_unique() == 1


PATCHES = 16


def pixels() -> Any:
    return tf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})


def processor() -> Any:
    """LLaVA's, over whole words."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "<none>", "<image>", *(f"w{n}" for n in range(90))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    specials = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=inner, **specials, additional_special_tokens=["<image>"])
    given = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return tf.LlavaProcessor(image_processor=pixels(), tokenizer=tokenizer, **given)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures") / "noise.png"
    noise = torch.randint(0, 255, (20, 30, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save(place)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "llava"
    model: Any = zoo.sharpen(towers.llava().model)
    model.save_pretrained(place)
    processor().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def image_subject(folder):
    return load(folder)


def same(one: Any, other: Any) -> bool:
    pairs = zip(one.traces, other.traces, strict=True)
    return all(a.stack == b.stack and torch.equal(a.weights, b.weights) for a, b in pairs)


def test_an_image_beside_a_text_is_what_the_processor_makes_of_it(image_subject, folder, picture):
    made = tf.AutoProcessor.from_pretrained(folder)(
        text="<image> w1 w2", images=Image.open(picture).convert("RGB"), return_tensors="pt"
    )
    reading = image_subject.read(made)
    assert {t.stack for t in reading.traces} == {"plain", "vision"}
    assert reading.source.tokens[0] == ("<image>",) * PATCHES + ("w1", "w2")
    assert same(reading, load(folder, inputs=made).read(made))
    assert {t.stack for t in image_subject.read("w1 w2").traces} == {"plain"}
    named = image_subject.read("<image> w1 w2", images=picture)
    scaled = "Images are scaled or cut to 16 × 16 pixels, as the model reads them."
    assert named.notes == (scaled,)
    before = image_subject.read("w1 w2", images=[str(picture)])
    assert before.notes == ("The text has no placeholder <image> for images: they are put before it.", scaled)
    assert before.source.tokens == named.source.tokens
    assert same(named, before)
    other = image_subject.read("<image> w1 w2", images=Image.new("RGB", (20, 30)))
    assert not same(named, other)
    module: Any = load(image_subject.model, processor())
    assert same(module.read("<image> w1 w2", images=picture), named)
    made = tf.AutoProcessor.from_pretrained(folder)(text="<image> w1", images=Image.open(picture), return_tensors="pt")
    with pytest.raises(ModelError, match=r"or load it with these as an example: load\(model, inputs=...\)"):
        image_subject.batch_of(made)
    seeing = load(Path(folder), inputs=made)
    assert float(seeing.score(seeing.batch_of(made)).count) == 1.0


def test_a_model_of_images_alone_is_read_from_a_file(tmp_path, picture):
    model: Any = cast(Any, zoo.build("vit"))
    model.save_pretrained(tmp_path)
    pixels().save_pretrained(tmp_path)
    found = load(tmp_path)
    reading = found.read(images=picture)
    made = pixels()(images=Image.open(picture).convert("RGB"), return_tensors="pt")
    assert same(reading, found.read(made))
    with pytest.raises(ModelError) as caught:
        found.read("w1", images=picture)
    assert str(caught.value).endswith("Its processor takes images alone.\n  Leave the text out.")


def test_the_explorer_and_measures_read_an_image_beside_a_text(image_subject, picture, tmp_path):
    """A model that was loaded with a text alone is verified with such a sample first: the vision tower attends as well."""
    page = trisect.explore_page(image_subject, "w1 w2", image=[picture], out=tmp_path).report.read_text()
    assert "&lt;image&gt;" in page or "\\u003cimage" in page or "<image>" in page
    assert "they are put before it" in page
    with pytest.raises(SpecError, match="2 texts were given beside an image"):
        trisect.explore_page(image_subject, ["w1", "w2"], image=[picture], out=tmp_path / "two")
    sample = InputSample("<image> w1 w2", images=(str(picture),))
    table = trisect.ablate(image_subject, texts=[sample], how="zero", out=tmp_path / "out", quiet=True).tables[
        "measures"
    ]
    assert set(table["stack"].drop_nulls()) > {"text"} or len(set(table["stack"].drop_nulls())) > 1


def test_an_image_that_cannot_be_read_or_is_too_large_says_why(image_subject, folder, picture, tmp_path, monkeypatch):
    text = tmp_path / "text.png"
    text.write_text("no image")
    (tmp_path / "bert").mkdir()
    cast(Any, tinyhf.bert()).save_pretrained(tmp_path / "bert")
    bert = load(tmp_path / "bert")
    refused = {
        (image_subject, "w1", tmp_path / "none.png"): "There is no such file.",
        (image_subject, "w1", text): "UnidentifiedImageError",
        (bert, None, picture): "Its folder has none of processor_config.json, preprocessor_config.json.",
        (
            load(image_subject.model),
            "w1",
            picture,
        ): "It was given as a module, without the processor that makes inputs of them.",
    }
    for (model, said, image), known in refused.items():
        with pytest.raises(ModelError) as caught:
            model.read(said, images=image)
        assert known in str(caught.value)
        assert len(str(caught.value).split("\n")) == 3
    with pytest.raises(ModelError, match="list was given beside images"):
        image_subject.read(["w1", "w2"], images=picture)
    with pytest.raises(ModelError, match="No text was given"):
        image_subject.read()
    with monkeypatch.context() as less:
        less.setattr(Image, "MAX_IMAGE_PIXELS", 599)  # of 600
        with pytest.raises(ModelError) as caught:
            image_subject.read("w1", images=picture)
    given, known, todo = str(caught.value).split("\n  ")
    assert given == f"The image '{picture}' cannot be opened."
    assert known.startswith("DecompressionBombWarning: Image size (600 pixels) exceeds limit of 599 pixels")
    assert todo == "Give an image file, such as PNG or JPEG."
    assert image_subject.read("w1", images=picture).traces
