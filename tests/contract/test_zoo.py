"""The contract with transformers: of 98 kinds of model, 95 are read and proved, and three are refused by name."""

import pytest
import torch
from tests import zoo

from trisect.hf.batches import first_tensor
from trisect.hf.hooks.calls import Edits
from trisect.hf.hooks.interface_hook import eager, record_interface
from trisect.hf.verify.examples import example_inputs
from trisect.hf.verify.proof import prove

REFUSED = {"mamba": "makes no softmax", "reformer": "LocalSelfAttention", "rwkv": "RwkvSelfAttention"}
NORMED, MIXED = {"q": "normed", "k": "normed"}, {"k": "mixed"}
# what q, k, v and W_O are where they are no plain selections; everywhere else they are
ELSE = {
    **dict.fromkeys(("qwen3", "qwen3_moe", "gemma3", "olmo2", "persimmon", "llama4"), NORMED),
    "qwen3_next": NORMED | {"o": "gated"},
    "gemma4": NORMED | {"v": "normed"},
    "bitnet": {"o": "normed"},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), MIXED),
}
PRODUCT = (
    *("deberta", "deberta_v2", "rembert", "mpnet", "squeezebert", "funnel", "xlm", "roformer", "convbert"),
    *("megatron_bert", "big_bird", "longformer", "gpt_neo", "gptj", "codegen", "bloom", "falcon", "falcon_new"),
    *("mpt", "openai_gpt", "xlnet", "xglm", "longt5", "led", "prophetnet", "mvp", "fsmt"),
)
PAIRS = zoo.KINDS["AutoModelForSeq2SeqLM"].split()
CALLS = {"funnel": 3, "jamba": 1, "zamba2": 1, "recurrent_gemma": 1, "whisper": 6} | dict.fromkeys(
    zoo.KINDS["AutoModelForSeq2SeqLM"].split(), 6
)
# one stream of a decoder's two: its last layer's own stream ends there, since only the other predicts
DEAD = {"prophetnet": {"dec layer 2": "writes to q, k, v do not reach the output"}}
# rounding of float32 sums over 64 terms and a softmax of scores of about ten
SMALL = 2e-5


@pytest.fixture(params=zoo.ZOO)
def name(request):
    return request.param


def padded(name, model):
    """The example inputs, with the second row's last two tokens masked where the model takes a mask."""
    inputs = example_inputs(name, model)
    if "input_ids" in inputs and name not in ("funnel", "led", "longformer"):  # which pool, or pad, positions
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, -2:] = 0
    return inputs


def test_it_is_read_or_refused(name):
    model = zoo.build(name)
    proof = prove(name, model)
    if name in REFUSED:
        assert proof.refusal is not None
        assert name in str(proof.refusal)
        assert REFUSED[name] in str(proof.refusal)
        assert proof.weights == ()
        return
    assert proof.refusal is None
    assert proof.words == ("product" if name in PRODUCT else "interface")
    assert len(proof.addresses) == CALLS.get(name, 2)
    for address, found, law in zip(proof.addresses, proof.weights, proof.laws, strict=True):
        assert law.failure == DEAD.get(name, {}).get(str(address), "")
        for part, origin in found.projections.origins.items():
            assert origin.how == ELSE.get(name, {}).get(part, "rows"), (address, part, origin.words)
            if origin.how == "rows":
                assert origin.residual is not None
                assert origin.residual < SMALL
    recorded_is_computed(name, model, proof)


@torch.no_grad()
def recorded_is_computed(name, model, proof):
    """The laws once more, on other inputs (padded where it can be), through the hook that the proof chose."""
    inputs = padded(name, model)
    with proof.hook(model, Edits()) as calls:
        answer = first_tensor(model(**inputs))
    if proof.words == "interface":
        with eager(model):
            plain = first_tensor(model(**inputs))
    else:
        plain = first_tensor(model(**inputs))
    assert torch.equal(answer, plain)
    own = first_tensor(model(**inputs))
    mask = inputs.get("attention_mask")
    real = torch.ones(own.shape[:2], dtype=torch.bool) if mask is None or mask.shape != own.shape[:2] else mask.bool()
    assert (answer - own)[real].abs().max() <= SMALL * own.abs().max()
    for call, found in zip(calls, proof.weights, strict=True):
        assert call.weights is not None
        group = call.weights.shape[1] // call.v.shape[1]
        made = call.weights @ call.v.repeat_interleave(group, 1)
        assert (made - call.output).abs().max() <= SMALL * call.output.abs().max()
        assert call.q.shape[1] % call.k.shape[1] == 0
        projections = found.projections
        if projections.w_v is not None:
            assert projections.w_v.shape[::2] == (call.v.shape[1], call.v.shape[3])
        if mask is not None and call.k.shape[2] == mask.shape[1]:
            assert call.weights[1, :, :, -2:][:, : min(5, call.q.shape[2])].abs().max() < 1e-6


def test_there_are_98_and_the_matrix_is_sharp():
    """With weights as drawn here, a model without its softcap answers differently, so that dropping it would show."""
    model = zoo.build("gemma2")
    inputs = example_inputs("gemma2", model)
    with torch.no_grad(), record_interface(model):
        before = first_tensor(model(**inputs))
    for module in model.modules():
        if getattr(module, "attn_logit_softcapping", None) is not None:
            module.attn_logit_softcapping = None  # type: ignore[assignment]
    with torch.no_grad(), record_interface(model):
        after = first_tensor(model(**inputs))
    assert (before - after).abs().max() > 1000 * SMALL * before.abs().max()
    assert len(zoo.ZOO) == 98
    assert len(zoo.ZOO) - len(REFUSED) == 95
