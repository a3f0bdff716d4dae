"""Audits of handles: the right module is named right; a wrong layer, order, factor or copy is not; what never fires is silent."""

import json
import sys
import types
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests import tinyhf, zoo
from torch import nn

import trisect
from trisect.cli import main
from trisect.core.errors import ModelError, SiteError, SpecError, is_installed
from trisect.hf.load import load
from trisect.hf.verify import handle as handles

TEXT = "w1 w2 w3 , w4 w5 w6"


@pytest.fixture(scope="module")
def gpt2():
    return load(tinyhf.gpt2(), tinyhf.tokenizer(False))


@pytest.fixture(scope="module")
def llama():
    return load(tinyhf.llama(), tinyhf.tokenizer(False))


@pytest.fixture(scope="module")
def bert():
    return load(tinyhf.bert(), tinyhf.tokenizer())


def verdicts(audit: Any) -> dict[str, str]:
    return {question: verdict for question, verdict, _ in audit.rows}


def reason(audit: Any, question: str) -> str:
    return next(why for asked, _, why in audit.rows if asked == question)


ALL = dict.fromkeys(("fires", "tensor", "heads", "write"), "right")


def test_the_right_module_is_named_right_and_a_fused_one_by_its_slice(gpt2, llama, bert):
    for model, path, site, axes in (
        (gpt2, "transformer.h.1.attn.c_attn", "q@2", "[B, T, H·E at 0-31 of 96]"),
        (gpt2, "transformer.h.1.attn.c_attn", "v@2.h2", "[B, T, H·E at 64-95 of 96]"),
        (llama, "model.layers.1.self_attn.v_proj", "v@2.h2", "[B, T, H·E]"),
        (bert, "bert.encoder.layer.1.attention.self.value", "v@2.h3", "[B, T, H·E]"),
        (bert, "bert.encoder.layer.0.attention.self.query", "q@1", "[B, T, H·E]"),
    ):
        audit = trisect.audit(model, path, site=site, text=TEXT)
        assert (verdicts(audit), audit.axes, audit.factor) == (ALL, axes, pytest.approx(1, abs=1e-5))
        audit.assert_same()
    assert "key/value head 1 is of query heads 1–2" in reason(
        trisect.audit(llama, path_of(1, "v"), site="v@2", text=TEXT), "heads"
    )


def path_of(layer: int, component: str) -> str:
    return f"model.layers.{layer}.self_attn.{component}_proj"


def test_a_key_before_rotation_and_a_wrong_layer_are_different(llama):
    audit = trisect.audit(llama, path_of(1, "k"), site="k@2.h1", text=TEXT)
    assert verdicts(audit) == ALL | {"tensor": "different"}  # zeros are turned into zeros
    assert "k of layer 2, before rotation" in reason(audit, "tensor")
    audit = trisect.audit(llama, path_of(0, "v"), site="v@2", text=TEXT)
    assert verdicts(audit) == {"fires": "right", "tensor": "different", "heads": "different", "write": "different"}
    assert "v of layer 1" in reason(audit, "tensor")
    with pytest.raises(AssertionError, match="different  v of layer 1, as"):
        audit.assert_same()


def test_stages_before_a_norm_and_an_addition_and_heads_that_are_one_are_named():
    def audit(kind: str, path: str, site: str) -> Any:
        ids = {"input_ids": torch.arange(7, 15)[None]}
        return trisect.audit(load(zoo.build(kind), inputs=ids), path, site=site, text=ids)

    for path, words in (
        ("k_proj", "k of layer 2, before its norm and rotation, as [B, T, H·E]"),
        ("k_norm", "k of layer 2, after its norm, before rotation, as [B, T, H, E]"),
    ):
        assert words in reason(audit("qwen3", f"model.layers.1.self_attn.{path}", "k@2.h1"), "tensor")
    fused = audit("gpt_neox", "gpt_neox.layers.1.attention.query_key_value", "v@2")
    assert (verdicts(fused), fused.axes) == (ALL, "[B, T, H·E at 16-23,40-47,64-71,88-95 of 96]")
    added = audit("deberta", "deberta.encoder.layer.1.attention.self.in_proj", "v@2")
    assert "v of layer 2, before an addition" in reason(added, "tensor")
    grouped = audit("falcon_new", "transformer.h.1.self_attention.query_key_value", "v@2.h1")
    assert verdicts(grouped) == ALL | {"heads": "different", "write": "different"}
    assert "2 of them the same numbers as another's" in reason(grouped, "heads")


def test_heads_that_have_a_part_in_common_are_told_apart():
    """In latent attention the rotated part of a key is one for all heads."""
    ids = {"input_ids": torch.arange(7, 15)[None]}
    model = load(zoo.build("deepseek_v2"), inputs=ids)
    key = model.read(ids)["k@2"].k
    assert torch.equal(key[:, 0, :, -1], key[:, 1, :, -1])
    for change, axes in ((lambda k: k, "[B, H, T, E]"), (lambda k: k.permute(0, 2, 3, 1), "[B, T, E, H]")):
        audit = trisect.audit(model, lambda *_, change=change: change(key), site="k@2.h3", text=ids)
        assert (audit.axes, audit.same) == (axes, True)


def test_a_layer_that_is_used_again_is_known_by_its_call():
    model = load(zoo.build("albert"), tinyhf.tokenizer())
    path = next(name for name, _ in model.model.named_modules() if name.endswith("attention.value"))
    audit = trisect.audit(model, path, site="v@2", text=TEXT)
    assert verdicts(audit) == ALL
    assert "call 2 was compared" in reason(audit, "fires")


def test_a_module_that_never_fires_and_a_write_to_a_copy_are_silent(bert):
    path = "bert.encoder.layer.1.attention.self.value"
    value: Any = bert.model.get_submodule(path)
    value.spare, value.copy = nn.Identity(), nn.Identity()

    def keep(module: Any, _args: Any, made: torch.Tensor) -> None:
        module.copy(made.clone())

    try:
        with value.register_forward_hook(keep):
            assert verdicts(trisect.audit(bert, f"{path}.spare", site="v@2", text=TEXT)) == {"fires": "silent"}
            for end in ("output", "input"):
                audit = trisect.audit(bert, f"{path}.copy", site="v@2", text=TEXT, end=end)
                assert verdicts(audit) == ALL | {"write": "silent"}
            with pytest.raises(AssertionError, match="reach no number of the answer"):
                audit.assert_same()
    finally:
        del value.spare, value.copy


def held(model: Any, site: str) -> torch.Tensor:
    return getattr(model.read(TEXT)[site], site[0])


@pytest.mark.parametrize(
    ("name", "change", "axes"),
    [
        ("as it is", lambda v: v, "[B, H, T, E]"),
        ("heads last", lambda v: v.transpose(1, 2), "[B, T, H, E]"),
        ("batch and heads together", lambda v: v.flatten(0, 1), "[H, T, E]"),
        ("numbers before heads", lambda v: v.permute(0, 2, 3, 1), "[B, T, E, H]"),
        ("numbers before heads, in one axis", lambda v: v.permute(0, 2, 3, 1).flatten(2), "[B, T, E·H]"),
        ("time first", lambda v: v.permute(2, 0, 1, 3).flatten(2), "[T, B, H·E]"),
        ("one of three", lambda v: torch.stack([0 * v, v, 0 * v]).permute(1, 3, 0, 2, 4), "[B, T, 1 at 1 of 3, H, E]"),
    ],
)
def test_a_function_is_a_handle_and_its_axes_are_named(llama, name, change, axes):
    whole = held(llama, "v@2")
    audit = trisect.audit(llama, lambda _model, _inputs: change(whole), site="v@2", text=TEXT)
    assert (verdicts(audit), audit.axes) == ({"fires": "right", "tensor": "right", "heads": "right"}, axes), name


def test_rows_of_a_batch_are_found_apart_and_together(gpt2):
    inputs = {"input_ids": torch.tensor([[7, 8, 9, 10, 11], [13, 14, 15, 16, 17]])}
    whole = gpt2.read(inputs)["q@1"].q
    for change, axes in (
        (lambda q: q, "[B, H, T, E]"),
        (lambda q: q.flatten(0, 1), "[B·H, T, E]"),
        (lambda q: q.transpose(1, 2).flatten(0, 1), "[B·T, H, E]"),
    ):
        assert trisect.audit(gpt2, lambda *_, change=change: change(whole), site="q@1", text=inputs).axes == axes
    assert verdicts(trisect.audit(gpt2, "transformer.h.0.attn.c_attn", site="q@1", text=inputs)) == ALL


def test_factors_heads_said_twice_in_another_order_or_missing_and_noise_are_different(llama):
    whole = held(llama, "v@2")

    def audit(change: Any, site: str = "v@2") -> Any:
        return trisect.audit(llama, lambda _model, _inputs: change(whole), site=site, text=TEXT)

    scaled = audit(lambda v: -3 * v)
    assert (verdicts(scaled)["tensor"], scaled.factor) == ("different", pytest.approx(-3, rel=1e-5))
    repeated = audit(lambda v: v.repeat_interleave(2, 1))
    assert verdicts(repeated) == {"fires": "right", "tensor": "right", "heads": "different"}
    assert reason(repeated, "heads").startswith("in its order: 1, 1, 2, 2;")
    assert reason(audit(lambda v: v.flip(1)), "heads").startswith("in its order: 2, 1;")
    assert verdicts(audit(lambda v: v[:, :1]))["heads"] == "different"
    assert verdicts(audit(lambda v: v[:, :1], "v@2.h1"))["heads"] == "right"
    noise = torch.randn(whole.shape, generator=torch.Generator().manual_seed(0))
    off = audit(lambda v: v + 0.1 * noise)
    assert verdicts(off) == {"fires": "right", "tensor": "different"}
    assert 0.001 < float(reason(off, "tensor").split("off by ")[1].split()[0]) < 1
    assert verdicts(trisect.audit(llama, lambda _model, _inputs: None, site="v@2", text=TEXT)) == {"fires": "silent"}


def test_a_function_that_writes_is_compared_with_an_edit(llama):
    def capture(model: nn.Module, inputs: Any) -> torch.Tensor:
        found = []
        with model.get_submodule(path_of(1, "v")).register_forward_hook(lambda _m, _a, made: found.append(made)):
            model(**inputs)
        return found[0].unflatten(2, (2, 8)).transpose(1, 2)

    def write(model: nn.Module, inputs: Any, tensor: torch.Tensor) -> Any:
        made = tensor.transpose(1, 2).flatten(2)
        with model.get_submodule(path_of(1, "v")).register_forward_hook(lambda _m, _a, _made: made):
            return model(**inputs)

    assert verdicts(trisect.audit(llama, capture, site="v@2.h2", text=TEXT, write=write)) == ALL
    lost = trisect.audit(
        llama, capture, site="v@2.h2", text=TEXT, write=lambda model, inputs, _tensor: model(**inputs).logits
    )
    assert verdicts(lost) == ALL | {"write": "silent"}
    other = lambda model, inputs, tensor: write(model, inputs, tensor.flip(1))  # noqa: E731
    assert verdicts(trisect.audit(llama, capture, site="v@2.h2", text=TEXT, write=other))["write"] == "different"


def test_what_cannot_be_audited_is_refused_in_words(llama, bert):
    path = path_of(1, "v")
    with pytest.raises(ModelError) as error:
        trisect.audit(llama, path.replace("v_proj", "v_prj"), site="v@2", text=TEXT)
    assert "did you mean 'model.layers.1.self_attn.v_proj'?" in error.value.problem
    with pytest.raises(SpecError, match="names 2 of them"):
        trisect.audit(llama, path, site="k+v@2", text=TEXT)
    with pytest.raises(SiteError):
        trisect.audit(llama, path, site="v@9", text=TEXT)
    with pytest.raises(SpecError, match="too short"):
        trisect.audit(llama, path, site="v@2", text="w1 w2")
    with pytest.raises(ModelError, match="was returned"):
        trisect.audit(llama, lambda _model, _inputs: 3, site="v@2", text=TEXT)


def test_on_the_command_line(tmp_path):
    folder = tinyhf.save(tinyhf.bert(), tmp_path / "bert")
    words = ["audit", folder, "--handle", "bert.encoder.layer.1.attention.self.key", "--site", "k@2.h1", "--text", TEXT]
    shown = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False).output
    assert "tensor  right      k of layer 2, as [B, T, H·E]" in shown
    shown = CliRunner().invoke(main, [*map(str, words), "--json", "--quiet"], catch_exceptions=False).output
    assert (json.loads(shown)["same"], [row["verdict"] for row in json.loads(shown)["rows"]]) == (True, ["right"] * 4)
    for place, words[5], status in (("right", "k@2", 0), ("of another layer", "k@1", 1), ("no site of it", "k@9", 2)):
        assert CliRunner().invoke(main, [*map(str, words), "--quiet"], catch_exceptions=False).exit_code == status, (
            place
        )


WRAPPED: list[nn.Module] = []  # by the two stand-ins below


class Lens:
    """A bridge as TransformerLens has it, by hooks on the modules of a Llama."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        WRAPPED.append(module)

    @classmethod
    def boot_transformers(cls, _name: str, hf_model: nn.Module, **_settings: Any) -> "Lens":
        return cls(hf_model)

    def _hooked(self, name: str, hook: Any) -> Any:
        return self.module.get_submodule(path_of(1, name[-1])).register_forward_hook(hook)

    def run_with_cache(self, tokens: Any, **_settings: Any) -> Any:
        cache: dict[str, Any] = {}
        note = lambda _m, _i, out: cache.update({"blocks.1.attn.hook_q": out.unflatten(-1, (-1, 8))})  # noqa: E731
        with self._hooked("hook_q", note):
            return self.module(tokens), cache

    def run_with_hooks(self, tokens: Any, fwd_hooks: Any, **_settings: Any) -> Any:
        ((name, hook),) = fwd_hooks
        with self._hooked(name, lambda _m, _i, out: hook(out, hook=None).flatten(-2)):
            return self.module(tokens)


class Intervenable:
    """A model as pyvene wraps it: what k_proj or v_proj gives, all positions or by head, collected or replaced."""

    def __init__(self, config: dict[str, Any], model: nn.Module) -> None:
        self.config, self.model = config, model
        WRAPPED.append(model)

    def __call__(
        self, base: Any, sources: Any = None, unit_locations: Any = None, source_representations: Any = None
    ) -> Any:
        assert (self.config["layer"], sources) == (1, None)
        by_head, size = self.config["unit"] == "h", self.config["max_number_of_units"]
        assert unit_locations == {"base": [[list(range(size))]]}
        collected = []

        def meet(_m: Any, _i: Any, out: Any) -> Any:
            given = out.unflatten(-1, (size, -1)).transpose(1, 2) if by_head else out
            if self.config["intervention_type"] == "collect":
                return collected.append(given)
            return source_representations.transpose(1, 2).flatten(2) if by_head else source_representations

        name = self.config["component"].removeprefix("head_")[0]
        with self.model.get_submodule(path_of(1, name)).register_forward_hook(meet):
            answer = self.model(**base)
        return (answer, collected), answer


def test_names_of_other_libraries_are_audited_in_a_copy_of_the_model(llama, monkeypatch):
    modules = {name: types.ModuleType(name) for name in ("transformer_lens", "transformer_lens.model_bridge", "pyvene")}
    modules["transformer_lens.model_bridge"].__dict__["TransformerBridge"] = Lens
    kinds = {"CollectIntervention": "collect", "VanillaIntervention": "replace"}
    modules["pyvene"].__dict__.update(kinds, IntervenableModel=Intervenable)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(handles, "require_extra", lambda *_: None)
    WRAPPED.clear()
    audit = trisect.audit(llama, "transformer_lens:blocks.1.attn.hook_q", site="q@2", text=TEXT)
    assert (verdicts(audit), audit.axes) == (ALL | {"tensor": "different"}, "[B, T, H, E]")
    assert "q of layer 2, before rotation" in reason(audit, "tensor")
    audit = trisect.audit(llama, "transformer_lens:blocks.1.attn.hook_rot_q", site="q@2", text=TEXT)
    assert verdicts(audit) == {"fires": "silent"}
    audit = trisect.audit(llama, "pyvene:1.key_output", site="k@2", text=TEXT)
    assert (verdicts(audit), audit.axes) == (ALL | {"tensor": "different"}, "[B, T, H·E]")
    audit = trisect.audit(llama, "pyvene:1.head_value_output", site="v@2", text=TEXT)
    assert (verdicts(audit), audit.axes) == (ALL, "[B, H, T, E]")
    assert {type(module) for module in WRAPPED} == {type(llama.model)}
    assert all(module is not llama.model for module in WRAPPED)
    monkeypatch.setattr(Lens, "run_with_cache", lambda *_, **__: 1 / 0)
    with pytest.raises(ModelError, match="ZeroDivisionError: division by zero") as error:
        trisect.audit(llama, "transformer_lens:blocks.1.attn.hook_q", site="q@2", text=TEXT)
    assert "transformer_lens:blocks.1.attn.hook_q" in error.value.problem
    monkeypatch.setattr(
        Lens, "run_with_cache", lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
    )
    with pytest.raises(trisect.TrisectError, match="memory"):
        trisect.audit(llama, "transformer_lens:blocks.1.attn.hook_q", site="q@2", text=TEXT)
    settings: dict[str, Any] = {"site": "k@2", "text": TEXT}
    changes: tuple[dict[str, Any], ...] = (
        {"end": "input"},
        {"write": lambda _model, _inputs, tensor: tensor},
        {"text": [TEXT, "w1 w2 w3"]},
    )
    for more in changes:
        with pytest.raises(SpecError):
            trisect.audit(llama, "pyvene:1.key_output", **(settings | more))


def test_names_of_libraries_that_are_not_there_are_refused(llama):
    with pytest.raises(ModelError, match="transformer_lens:, pyvene:, nnsight:, nnterp:"):
        trisect.audit(llama, "lens:blocks.1", site="q@2", text=TEXT)
    if not is_installed("pyvene"):
        with pytest.raises(SpecError, match=r"trisect\[peers\]"):
            trisect.audit(llama, "pyvene:1.query_output", site="q@2", text=TEXT)


@pytest.mark.parametrize(
    ("handle", "site", "tensor"),
    [
        ("transformer_lens:blocks.1.attn.hook_k", "k@2", "different"),  # before rotation
        ("pyvene:1.key_output", "k@2", "different"),
        ("pyvene:1.head_value_output", "v@2", "right"),
        ("nnsight:model.layers.1.self_attn.v_proj.output", "v@2", "right"),
        ("nnterp:layers.1.self_attn.v_proj.output", "v@2", "right"),
    ],
)
def test_what_other_libraries_give_where_they_are_installed(llama, handle, site, tensor):
    pytest.importorskip(handle.partition(":")[0])
    audit = trisect.audit(llama, handle, site=site, text=TEXT)
    assert verdicts(audit)["write"] == "right"
    assert verdicts(audit)["tensor"] == tensor
