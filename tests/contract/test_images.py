"""Images beside a text, or alone: by the model's own processor, as a file or as its outputs; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from PIL import Image
from tests import tinyhf, towers, zoo
from tokenizers import Tokenizer, models, pre_tokenizers

import trisect
from trisect.core.errors import ModelError, SpecError
from trisect.core.subject import InputSample
from trisect.hf.load import load

tf = cast(Any, transformers)
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
def subject(folder):
    return load(folder)


def same(one: Any, other: Any) -> bool:
    pairs = zip(one.traces, other.traces, strict=True)
    return all(a.stack == b.stack and torch.equal(a.weights, b.weights) for a, b in pairs)


def test_what_a_processor_gives_is_read_by_a_model_that_was_loaded_with_a_text_alone(subject, folder, picture):
    made = tf.AutoProcessor.from_pretrained(folder)(
        text="<image> w1 w2", images=Image.open(picture).convert("RGB"), return_tensors="pt"
    )
    reading = subject.read(made)
    assert {t.stack for t in reading.traces} == {"plain", "vision"}
    assert reading.source.tokens[0] == ("<image>",) * PATCHES + ("w1", "w2")
    assert same(reading, load(folder, inputs=made).read(made))
    assert {t.stack for t in subject.read("w1 w2").traces} == {"plain"}


def test_a_file_beside_a_text_is_what_the_processor_makes_of_it(subject, folder, picture):
    named = subject.read("<image> w1 w2", images=picture)
    assert named.notes == ()
    before = subject.read("w1 w2", images=[str(picture)])
    assert before.notes == ("The text names no place for images, with <image>: they stand before it.",)
    assert before.source.tokens == named.source.tokens
    assert same(named, before)
    other = subject.read("<image> w1 w2", images=Image.new("RGB", (20, 30)))
    assert not same(named, other)
    module: Any = load(subject.model, processor())
    assert same(module.read("<image> w1 w2", images=picture), named)


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


def test_the_explorer_shows_a_text_with_an_image(subject, picture, tmp_path):
    page = trisect.explore_page(subject, "w1 w2", image=[picture], out=tmp_path).report.read_text()
    assert "&lt;image&gt;" in page or "\\u003cimage" in page or "<image>" in page
    assert "they stand before it" in page
    with pytest.raises(SpecError, match="2 texts were given beside an image"):
        trisect.explore_page(subject, ["w1", "w2"], image=[picture], out=tmp_path / "two")


def test_what_cannot_be_read_says_why(subject, folder, picture, tmp_path):
    text = tmp_path / "text.png"
    text.write_text("no image")
    (tmp_path / "bert").mkdir()
    cast(Any, tinyhf.bert()).save_pretrained(tmp_path / "bert")
    bert = load(tmp_path / "bert")
    refused = {
        (subject, "w1", tmp_path / "none.png"): "There is no such file.",
        (subject, "w1", text): "UnidentifiedImageError",
        (bert, None, picture): "Its folder has none of processor_config.json, preprocessor_config.json.",
        (load(subject.model), "w1", picture): "It is a module, without the processor that makes inputs of them.",
    }
    for (model, said, image), known in refused.items():
        with pytest.raises(ModelError) as caught:
            model.read(said, images=image)
        assert known in str(caught.value)
        assert len(str(caught.value).split("\n")) == 3
    with pytest.raises(ModelError, match="list was given beside images"):
        subject.read(["w1", "w2"], images=picture)
    with pytest.raises(ModelError, match="No text was given"):
        subject.read()


def test_an_image_too_large_to_open_is_refused_before_it_fills_the_memory(subject, picture, monkeypatch):
    with monkeypatch.context() as less:
        less.setattr(Image, "MAX_IMAGE_PIXELS", 599)  # of 600
        with pytest.raises(ModelError) as caught:
            subject.read("w1", images=picture)
    given, known, todo = str(caught.value).split("\n  ")
    assert given == f"The image '{picture}' cannot be opened."
    assert known.startswith("DecompressionBombWarning: Image size (600 pixels) exceeds limit of 599 pixels")
    assert todo == "Give an image file, such as PNG or JPEG."
    assert subject.read("w1", images=picture).traces


def test_inputs_of_another_kind_say_how_to_measure_with_them(subject, folder, picture):
    made = tf.AutoProcessor.from_pretrained(folder)(text="<image> w1", images=Image.open(picture), return_tensors="pt")
    with pytest.raises(ModelError, match=r"or load it with these as an example: load\(model, inputs=...\)"):
        subject.batch_of(made)
    seeing = load(Path(folder), inputs=made)
    assert float(seeing.score(seeing.batch_of(made)).count) == 1.0


def test_measures_read_an_image_beside_a_text_by_a_model_that_was_loaded_with_a_text_alone(subject, picture, tmp_path):
    """It is verified with such a sample first: the vision tower attends as well."""
    sample = InputSample("<image> w1 w2", images=(str(picture),))
    table = trisect.ablate(subject, texts=[sample], how="zero", out=tmp_path / "out", quiet=True).tables["measures"]
    assert set(table["stack"].drop_nulls()) > {"text"} or len(set(table["stack"].drop_nulls())) > 1
