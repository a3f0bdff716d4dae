"""Loading: a pretrained model as a Subject — what is read is what it computed, and edits do what they name."""

from typing import Any

import pytest
import torch
from tests import tinyhf, zoo
from transformers import BertLMHeadModel

import trisect
from trisect.core.errors import ModelError
from trisect.core.subject import QKV, Subject, check_text
from trisect.core.trace import Address
from trisect.hf.load import load

NEAR = 2e-5  # float32, numbers of order one to ten
TEXTS = ["w1 w2 w3 , w4 w5 .", "w6", "w7 w8 w9 w10 w11 w12 w13 w14 w15"]
MAKERS = {"bert": tinyhf.bert, "gpt2": tinyhf.gpt2, "llama": tinyhf.llama, "bart": tinyhf.bart}


BEYOND = "The token id 999 is not in the vocabulary of GPT2LMHeadModel."


def subject(kind, **options):
    return load(MAKERS[kind](), tinyhf.tokenizer(kind in ("bert", "bart")), **options)


@pytest.fixture(scope="module", params=list(MAKERS))
def one(request):
    return subject(request.param)


def test_a_reading_holds_a_trace_per_layer_and_stack(one):
    reading = one.read(TEXTS)
    wanted = {"bart": 2 + 3 + 3}.get(type(one.model).__name__.lower()[:4], 2)
    assert len(reading.traces) == wanted == len(one.shape.heads)
    assert isinstance(one, Subject)
    for trace in reading.traces:
        rows, heads, ask, see = trace.weights.shape
        assert trace.q.shape[:3] == (rows, heads, ask)
        assert trace.k.shape[2] == trace.v.shape[2] == see
        assert trace.output.shape == (rows, heads, ask, trace.v.shape[-1])
        assert torch.equal(trace.query_real, reading.queries(trace).real)
        assert torch.equal(trace.key_real, reading.keys(trace).real)
        real = trace.query_real[:, None].expand(-1, heads, -1)
        assert (trace.weights.sum(-1)[real] - 1).abs().max() < NEAR
        padded = trace.weights.masked_select(~trace.key_real[:, None, None] & trace.query_real[:, None, :, None])
        assert padded.numel() > 0
        assert padded.abs().max() == 0
        assert (trace.weights @ trace.values - trace.output).abs().max() < NEAR


def test_reading_together_or_alone_and_losses_are_the_models_own(one):
    together = {}
    for batch in one.batches(TEXTS, 3, scored=True):
        scores = one.score(batch)
        together |= dict(zip(batch.rows, zip(scores.total.tolist(), scores.count.tolist(), strict=True), strict=True))
    alone = {}
    for batch in one.batches(TEXTS, 1, scored=True):
        scores = one.score(batch)
        alone[batch.rows[0]] = (scores.total.item(), scores.count.item())
    assert together.keys() == alone.keys()
    for row, (total, count) in together.items():
        assert alone[row][1] == count
        assert alone[row][0] == pytest.approx(total, rel=1e-4, abs=1e-4)  # float32, other shapes sum in another order


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_writer_is_heard_and_nothing_stays_behind(one, name):
    batch = next(one.batches(TEXTS, 3, scored=True))
    clean = one.score(batch)
    state = {key: tensor.clone() for key, tensor in one.model.state_dict().items()}

    def zero(parts: QKV) -> QKV:
        return parts._replace(**{name: torch.zeros_like(getattr(parts, name))})

    for address in one.shape.heads:
        edited = one.score(batch, {address: zero}, clean=clean)
        assert (edited.total - clean.total).abs().max() > 1e-4
    assert torch.equal(one.score(batch, clean=clean).total, clean.total)
    assert all(torch.equal(one.model.state_dict()[key], tensor) for key, tensor in state.items())


def test_held_weights_cut_what_goes_through_the_pattern(one):
    batch = next(one.batches(TEXTS, 3, scored=True))
    clean = one.score(batch)
    reading = one.trace(batch)
    held = {trace.address: trace.weights for trace in reading.traces}
    again = one.score(batch, hold=held, clean=clean)
    assert again.total.tolist() == pytest.approx(clean.total.tolist(), rel=1e-4)  # float32 products in another order

    def zero(parts: QKV) -> QKV:
        return QKV(torch.zeros_like(parts.q), torch.zeros_like(parts.k), parts.v)

    first = next(iter(held))
    silenced = one.score(batch, {first: zero}, held, clean)
    assert silenced.total.tolist() == again.total.tolist()
    assert one.score(batch, {first: zero}, clean=clean).total.tolist() != again.total.tolist()


def test_the_models_own_inputs_can_be_read():
    seeing = load(zoo.build("vit"))
    pixels = torch.randn(3, 3, 16, 16)
    reading = seeing.read({"pixel_values": pixels})
    assert reading.traces[0].weights.shape == (3, 4, 17, 17)
    assert reading.source.tokens[0][0] == "position 1"
    assert seeing.objective == "output"
    with pytest.raises(ModelError, match=r"Text alone was given to ViTModel\."):
        seeing.read("a text")
    with pytest.raises(ModelError, match=r"The inputs hold no tensor\."):
        seeing.read({"pixel_values": None})


def test_own_inputs_know_their_padding_and_windows_are_of_1024_tokens_at_most_unless_longer_are_asked_for():
    one = subject("bert")
    ids = torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0]])
    reading = one.read({"input_ids": ids, "attention_mask": (ids != 0).long()})
    assert reading.source.tokens[1] == ("[CLS]", "w2", "[SEP]", "[PAD]")
    assert reading.source.real.tolist() == (ids != 0).tolist()
    assert reading.source.special.tolist() == [[True, False, False, True], [True, False, True, True]]
    reading = subject("gpt2", window=5).read("w1 w2 w3 w4 w5 w6 w7")
    assert reading.rows == ((0, 0), (0, 5))
    assert reading.notes == ("Texts longer than 5 tokens were cut into windows that do not see each other.",)
    from trisect.hf.batches import choose_window

    tokens = tinyhf.tokenizer(False)
    tokens.model_max_length = 4_096
    one = load(zoo.build("llama", max_position_embeddings=4_096, num_hidden_layers=1), tokens)
    first = next(one.batches(["w1 " * 1_030]))
    assert first.source.real.shape == (2, 1_024)
    assert first.notes[0].endswith("other. The model reads up to 4,096: choose a longer window for that.")
    assert choose_window("m", None, 32_768) == 1_024
    assert choose_window("m", None, 600) == 600
    assert choose_window("m", None, None) == 512
    assert choose_window("m", 32_768, 32_768) == 32_768


def test_a_folder_its_fingerprint_and_the_options_that_load_it_again(tmp_path):
    folder = tinyhf.save(tinyhf.bert(head=False), tmp_path / "model")
    one = trisect.load(folder)
    assert one.name == f"{tmp_path.name}/model"
    assert one.objective == "output"
    same, other = load(tinyhf.bert(head=False)), load(tinyhf.bert(head=False, seed=2))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    with pytest.raises(ModelError, match=r"No text was given\."):
        one.read([])
    folder = tinyhf.save(tinyhf.gpt2(), tmp_path / "causal", False)
    one = load(folder, window=7, dtype="float32")
    assert one.options == ("MODEL", "--dtype", "float32", "--window", "7")
    assert load(folder).options == ("MODEL",)


def test_a_model_has_a_causal_loss_only_where_no_position_sees_a_later_one():
    config = zoo.build("bert").config
    seeing = load(BertLMHeadModel(config), tinyhf.tokenizer())
    assert seeing.objective == "output"
    assert "Its positions see later ones" in seeing.notes[0]
    assert next(seeing.batches(["w1 w2"])).notes == seeing.notes
    config.is_decoder = True
    blind = load(BertLMHeadModel(config), tinyhf.tokenizer())
    assert (blind.objective, blind.notes) == ("causal", ())
    assert load(zoo.build("xlm"), tinyhf.tokenizer()).objective == "masked"


def test_a_layer_that_fails_gives_no_numbers_and_is_said():
    model = tinyhf.bert()
    with torch.no_grad():
        model.get_parameter("bert.encoder.layer.0.attention.output.dense.weight").zero_()
    one = load(model, tinyhf.tokenizer())
    assert one.shape.layers("plain") == (2,)
    assert [p.address.layer for p in one.projections()] == [2]
    assert one.notes == ("Left out, layer 1: writes to q, k, v do not reach the output.",)
    reading = one.read(TEXTS)
    assert [trace.layer for trace in reading.traces] == [2]
    assert reading.notes == one.notes


def test_loading_where_gradients_are_off_and_weights_that_changed_since_are_refused():
    with torch.no_grad():
        one = subject("gpt2")
    assert one.projections()[0].w_q is not None
    one = subject("gpt2")
    with torch.no_grad():
        next(one.model.parameters()).add_(1.0)
    with pytest.raises(ModelError, match=r"The weights of GPT2LMHeadModel have changed since it was loaded\."):
        one.read("w1 w2")


def test_dropout_is_off_while_reading_and_the_modes_come_back():
    model = zoo.build("bert", attention_probs_dropout_prob=0.5).train()
    model.get_submodule("cls").eval()
    modes = [module.training for module in model.modules()]
    one = load(model, tinyhf.tokenizer())
    first, second = one.read("w1 w2 w3"), one.read("w1 w2 w3")
    assert torch.equal(first.traces[0].weights, second.traces[0].weights)
    assert (first.traces[0].weights.sum(-1) - 1).abs().max() < NEAR
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (lambda: trisect.load(None), "None is no model."),
        (lambda: load(torch.nn.Linear(3, 3)), "Linear cannot be tried out."),
        (lambda: load(tinyhf.gpt2(), dtype="float32", revision="x"), "revision, dtype for GPT2LMHeadModel."),
        (lambda: check_text("gpt2", 0, 3, False), "Text 1 is 3."),
        (lambda: subject("gpt2").read({"input_ids": torch.tensor([[999]])}), BEYOND),
        (lambda: subject("gpt2").read(("w1", "w2")), "Text 1 is ('w1', 'w2')."),
        *((lambda n=n: subject("gpt2", window=n), f"A window of {n} tokens.") for n in (0, -3, 25)),
        (lambda: load(zoo.build("mamba")), "MambaForCausalLM has no attention that can be read."),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_or_read(call, given):
    with pytest.raises(ModelError) as error:
        call()
    assert error.value.problem == given


def test_addresses_of_an_encoder_decoder_also_where_source_and_target_are_of_one_length():
    shape = subject("bart").shape
    assert shape.stacks == ("enc", "dec", "cross")
    assert shape.layers("enc") == (1, 2)
    assert shape.layers("cross") == (1, 2, 3)
    assert shape.describe() == (
        "The model has enc: layers 1, 2 with 4 heads; dec: layers 1, 2, 3 with 4 heads; cross: layers 1, 2, 3 with 4 heads."
    )
    assert shape.resolve(trisect.Site.parse("cross.v@3"))[0].address == Address("cross", 3)
    ids = torch.tensor([[7, 8, 9, 10]])
    one = load(tinyhf.bart(), tinyhf.tokenizer(), {"input_ids": ids, "decoder_input_ids": ids})
    assert one.addresses == subject("bart").addresses


@pytest.mark.parametrize(
    ("site", "given"),
    [
        ("v@7", "The site 'v@7' lies outside the model: layer 7."),
        ("enc.v@1", "The site 'enc.v@1' names the stack 'enc'."),
        ("k@1.h3", "The site 'k@1.h3' names head 3 of k."),
        ("ffn@1", "The site 'ffn@1' names ffn."),
        ("pre.k@1", "The site 'pre.k@1' is the projection's output, before rotary positions."),
    ],
)
def test_sites_that_the_model_does_not_have(site, given):
    from trisect.core.errors import SiteError

    with pytest.raises(SiteError) as error:
        subject("llama").shape.resolve(trisect.Site.parse(site))
    assert error.value.problem == given


def test_weights_that_were_handed_out_stay_when_the_model_changes_and_those_inside_take_no_memory():
    model: Any = tinyhf.gpt2()
    subject = load(model, tinyhf.tokenizer(False))
    mine, read = subject.projections()[0], subject.read("w1 w2 w3").traces[0]
    inside, stored = subject.proof.weights[0].projections, model.transformer.h[0].attn.c_attn.weight
    before = {name: getattr(mine, name).clone() for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_o")}
    places = {getattr(inside, name).untyped_storage().data_ptr() for name in ("w_q", "w_k", "w_v")}
    assert places == {stored.untyped_storage().data_ptr()}
    assert inside.w_o is not None
    assert (
        inside.w_o.untyped_storage().data_ptr()
        == model.transformer.h[0].attn.c_proj.weight.untyped_storage().data_ptr()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    for name, value in before.items():
        assert torch.equal(getattr(mine, name), value)
        assert torch.equal(getattr(read.projections, name), value)
