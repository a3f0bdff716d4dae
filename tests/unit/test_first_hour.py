"""What is tried in the first hour: looking at a reading, keeping it, and giving things the short way."""

import json
from typing import Any

import pytest
import torch
import xarray
from safetensors import safe_open
from tests import tinyhf, towers, zoo

import trisect
from trisect.core import errors, trace
from trisect.core.errors import CorpusError, ModelError, SiteError, SpecError
from trisect.core.site import Site
from trisect.core.trace import Address
from trisect.hf.load import load
from trisect.lab.inputs import open_any
from trisect.measure import norms


@pytest.fixture(scope="module")
def gpt2():
    return load(tinyhf.gpt2(), tinyhf.tokenizer(False))


@pytest.fixture(scope="module")
def reading(gpt2):
    return gpt2.read(["w1 w2 w3 , w4", "w6 w7"])


@pytest.fixture(scope="module")
def bart():
    return load(tinyhf.bart(), tinyhf.tokenizer()).read([("w1 w2 w3", "w4 w5")])


def test_a_reading_says_what_it_is_in_one_line(reading):
    assert repr(reading) == "<Reading of GPT2LMHeadModel: 2 × 5 tokens; reading[…] of 'layer 1', 'layer 2'>"
    assert repr(reading.traces[0]) == "<Trace of layer 1: 2 rows, 4 heads, 5 queries × 5 keys>"


def test_a_reading_is_arrays_by_name_and_a_table_of_weights(reading, bart):
    arrays, table = reading.to_dict(), reading.to_pandas()
    assert {at: sorted(of) for at, of in arrays.items()}["layer 2"][:3] == ["k", "key_real", "output"]
    assert arrays["layer 1"]["v"].shape == tuple(reading["v@1"].v.shape)
    assert len(table) == 2 * 4 * (5 * 5 + 2 * 2)  # layers, heads, pairs of tokens without padding
    first = table[(table["layer"] == 2) & (table["head"] == 3) & (table["row"] == 0) & (table["query"] == 4)]
    assert list(first["key_token"]) == list(reading.source.tokens[0])
    assert list(first["weight"]) == reading["q@2.h3"].weights[0, 0, 4].tolist()
    crossing = bart.to_pandas().query("stack == 'cross'")
    assert set(crossing["key_token"]) == set(bart.source.tokens[0])


def test_an_intervention_is_a_line_a_table_and_json(gpt2):
    found = trisect.intervene(gpt2, "w1 w2 w3", {"v@2": "zero"})
    assert repr(found) == "<Intervention in GPT2LMHeadModel: v@2 zero; 3 positions>"
    assert list(found.to_pandas()["moved"]) == pytest.approx(found.moved.tolist())
    assert [one["token"] for one in json.loads(json.dumps(found.to_dict()))["positions"]] == list(found.tokens)


@pytest.mark.parametrize("package", ["pandas", "xarray"])
def test_a_package_that_is_not_there_is_asked_for_by_name(reading, package, monkeypatch):
    monkeypatch.setattr(errors, "is_installed", lambda _package: False)
    with pytest.raises(SpecError, match=f"pip install {package}"):
        getattr(reading, f"to_{package}")()


def test_the_screen_of_help_names_what_there_is():
    shown = trisect.__doc__ or ""
    assert len(shown.splitlines()) <= 24
    for name in ("load", "read", "edit", "patch", "compose", "norms", "profile", "MeasureName"):
        assert f"trisect.{name}" in shown
        assert hasattr(trisect, name)


def test_a_command_and_its_function_have_one_name_and_so_have_options_and_settings():
    """A name that a package has is another's, and texts are one argument."""
    from trisect.api import signature
    from trisect.cli import main
    from trisect.experiments import EXPERIMENTS, UTILITIES

    everywhere = {"out", "json", "as_json", "quiet", "open", "opens", "help"}
    texts = {"texts", "corpus", "split", "reader", "limit", "text", "audio", "image"}
    for one in (*EXPERIMENTS, *UTILITIES):
        other = {"explore": "explore_page", "theory": "theory_page"}
        assert one.python == other.get(one.name, one.name.replace("-", "_"))
        settings = set(signature(one).parameters)
        for option in main.commands[one.name].params:
            assert option.name in settings | everywhere | texts, (one.name, option.name)


def test_a_loaded_model_prints_no_tensors(gpt2):
    assert repr(gpt2) == "Pretrained(name='GPT2LMHeadModel', objective='causal', options=('MODEL',), remarks=())"
    assert repr(gpt2.proof) == "<Proof of GPT2LMHeadModel: 2 of 2 attention layers verified>"
    assert list(gpt2.proof.to_pandas()["verdict"]) == ["verified", "verified"]
    assert json.loads(json.dumps(gpt2.proof.to_dict()))["layers"][1]["layer"] == "layer 2"


def test_a_trace_is_found_by_its_words_its_address_and_its_site(reading, bart):
    for where in ("layer 2", Address("plain", 2), "k@2", Site.parse("q@2")):
        assert reading[where] is reading.traces[1]
    assert reading.layer(2) is reading.traces[1]
    assert bart["cross layer 2"] is bart["cross.v@2"] is bart.layer(2, "cross")
    for bad, given, known in (
        ("layer 9", "'layer 9' was asked for.", "The reading has layer 1, layer 2."),
        ("cross.k@1", "'cross.k@1' was asked for.", "The reading has layer 1, layer 2."),
        ("k@1-2", "'k@1-2' was asked for.", "The reading has layer 1, layer 2."),
    ):
        with pytest.raises(SiteError) as caught:
            reading[bad]
        assert (caught.value.problem, caught.value.reason) == (given, known)
    with pytest.raises(SiteError, match="The reading has the stacks enc, dec, cross"):
        bart.layer(1)


def test_a_site_with_heads_is_a_trace_of_those_alone():
    """LLaMA's queries share keys in pairs: head 1 of k is that of the queries 1 and 2."""
    reading = load(tinyhf.llama(), tinyhf.tokenizer()).read("w1 w2 w3 w4")
    whole = reading["layer 2"]
    for where, queries, shared in (("q@2.h3", [2], [1]), ("k@2.h1", [0, 1], [0]), ("q+v@2.h1-2", None, None)):
        if queries is None:
            with pytest.raises(SiteError) as caught:
                reading[where]
            assert caught.value.reason == "Layer 2 has heads 1-4 of q, heads 1-2 of v."
            continue
        part = reading[where]
        for name in ("q", "weights", "output"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[:, queries]), name
        for name in ("k", "v"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[:, shared]), name
        assert torch.equal(part.keys, whole.keys[:, queries])
        assert part.w_o is not None
        assert whole.w_o is not None
        assert torch.equal(part.w_o, whole.w_o[queries])
        assert part.projections.origins["k"].rows is not None
        assert (part.block, part.projections.b_o, len(part.projections.origins["k"].rows)) == (None, None, 1)
        assert torch.equal(norms.head_norms(part), norms.head_norms(whole)[:, queries])
    with pytest.raises(SiteError, match="Layer 2 has heads 1-2 of k"):
        reading["k@2.h3"]


def test_norms_of_heads_alone_are_refused_where_the_sum_of_all_is_normed():
    reading = load(zoo.build("gemma2"), tinyhf.tokenizer()).read("w1 w2 w3")
    with pytest.raises(ModelError, match="only some heads are read, and the norm behind W_O takes the sum of all"):
        norms.head_norms(reading["q@1.h2"])


@pytest.mark.parametrize(
    ("where", "known"), [("ffn@2", "no ffn"), ("o@2", "no o"), ("pre.k@1", "after norms and rotary positions")]
)
def test_a_site_that_no_trace_holds_is_refused(reading, where, known):
    with pytest.raises(SiteError) as caught:
        reading[where]
    assert caught.value.problem == f"'{where}' was asked for."
    assert known in caught.value.reason
    assert f"reading['layer {where[-1]}']" in caught.value.todo


def test_a_reading_is_kept_with_its_tokens(reading, tmp_path):
    path = reading.save(tmp_path / "x.safetensors")
    with safe_open(path, "pt") as kept:
        assert torch.equal(kept.get_tensor("layer 2.weights"), reading.traces[1].weights)
        said = json.loads(kept.metadata()["reading"])
    assert said["model"] == reading.model
    assert [tuple(row) for row in said["source"]] == list(reading.source.tokens)
    with pytest.raises(SpecError, match=r"Give a name that ends in \.safetensors"):
        reading.save(tmp_path / "x.pt")


def test_a_reading_as_labelled_arrays(reading, bart):
    for one in (reading, bart):
        made = one.to_xarray()
        assert isinstance(made, xarray.Dataset)
        assert set(made.data_vars) == {f"{t.address}.{n}".replace(" ", "_") for t in one.traces for n in trace.AXES}
        assert torch.equal(
            torch.tensor(made["layer_1.v"].values) if one is reading else one.traces[0].v, one.traces[0].v
        )


def test_a_tensor_is_the_models_main_input(gpt2):
    ids = torch.tensor([[7, 8, 9, 10]])
    assert torch.equal(gpt2.read(ids).traces[0].q, gpt2.read({"input_ids": ids}).traces[0].q)
    made = towers.build("timesformer")
    pixels = made.inputs["pixel_values"]
    assert len(load(made.model, inputs=made.inputs).read(pixels).traces) == 4


def test_a_text_in_the_place_of_a_folder_is_a_text(tmp_path):
    given = open_any("The cat sat on the mat.")
    assert list(given.texts()) == ["The cat sat on the mat."]
    folder = tmp_path / "two words"
    folder.mkdir()
    with pytest.raises(CorpusError, match="two words"):
        open_any(str(folder))
    for misspelt in (f"{tmp_path}/two wrds", f"{folder}/te xts", "/no where/at all"):
        with pytest.raises(CorpusError, match="There is no file or folder"):
            open_any(misspelt)
    with pytest.raises(SpecError, match="The name of a corpus is ''"):
        open_any("")


def test_explore_takes_a_model_and_a_text(gpt2):
    shown: Any = trisect.explore(gpt2, "w1 w2 w3")
    assert type(trisect.explore(gpt2.read("w1 w2 w3"))).__name__ == type(shown).__name__
    with pytest.raises(ModelError, match="Give a text beside the model"):
        trisect.explore(gpt2)
