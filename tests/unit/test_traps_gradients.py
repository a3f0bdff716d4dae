"""Traps of gradients, by which W_O is found; and of commands that edit: what is edited is what the model goes on with."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import fooling, tinyhf, zoo
from tests.contract.test_traps import said
from tests.fooling import HEADS, HIDDEN, WIDTH, Fooling
from tests.unit.test_traps_hidden import OnePattern, Split
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize

import trisect
from trisect.core.errors import CorpusError, ModelError
from trisect.experiments.explore.run import take_picture
from trisect.experiments.norms.run import OTHER_INPUT
from trisect.hf.load import load
from trisect.hf.locate.affine import ForwardRecord, OutLaw, detach_after_maps, map_law, out_law
from trisect.hf.locate.output_projection import compare_with_gradients
from trisect.hf.verify.proof import Proof, prove
from trisect.measure import norms

Change = Callable[[Tensor], Tensor]
NEAR = 1e-5  # float32, numbers of order one


def eight_bits() -> Change:
    """Fake quantisation whose range is set, as a model that was trained with it has."""
    made = FakeQuantize()
    made(torch.linspace(-2, 2, WIDTH))
    made.disable_observer()
    return made


CHANGES: dict[str, Callable[[], Change]] = {name: lambda change=change: change for name, change in HIDDEN.items()}
CHANGES["to eight bits"] = eight_bits


class Layer(fooling.Layer):
    """A layer whose sums are given as a function of itself, x and what attention makes of a norm of x."""

    def __init__(self, sums: Callable[..., Tensor], change: Change, seed: int) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.sums = sums
        self.change: Any = change

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.sums(self, x, self.attn(self.norm1(x), ids))

    def behind(self, x: Tensor) -> Tensor:
        """x with the feed-forward block's part."""
        return x + self.down(torch.tanh(self.up(self.norm2(x))))


def model_of(sums: Callable[..., Tensor], change: Change = lambda y: y, both: bool = False) -> Any:
    """Two layers, the first or both with those sums."""
    model: Any = Fooling()
    with torch.random.fork_rng():
        for i in range(1 + both):
            model.layers[i] = Layer(sums, change, i)
    return model.eval()


def origins(proof: Proof) -> list[str]:
    return [found.projections.origins["o"].how for found in proof.weights]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_a_change_behind_a_norm_that_its_gradient_hides(name, kind):
    """What a layer is given is then no norm's, so that no block is found around it."""
    change = CHANGES[name]()
    subject = load(Fooling(inside=change).to(kind), inputs=fooling.ids())
    first, second = subject.proof.weights
    assert first.around is None or first.around.kind != "pre"
    assert second.around is not None
    assert second.around.kind == "pre"


def test_without_an_output_projection_a_layer_has_no_norms_and_the_layer_above_its_own():
    """The values of the first layer's sum are rounded to eight bits, straight through."""
    model = model_of(lambda layer, x, a: layer.behind(x + layer.change(a)), eight_bits())
    subject = load(model, inputs=fooling.ids())
    assert origins(subject.proof) == ["mixed", "rows"]
    first, second = subject.proof.weights
    assert (first.projections.w_o, first.projections.b_o, first.around) == (None, None, None)
    words = "the result of layers.0.attn.o_proj changes what follows by another amount than its gradient says"
    assert any(note.startswith(f"Layer 1, o: {words}") for note in subject.notes)
    assert second.around is not None
    one, other = subject.read(fooling.ids(9)).traces
    with pytest.raises(ModelError, match="changes what follows by another amount than its gradient says"):
        norms.summed_norms(one)
    made: list[Any] = []
    with model.get_submodule("layers.1.attn").register_forward_hook(lambda _m, _a, out: made.append(out)):
        model(**fooling.ids(9))
    assert (norms.attention_output(other) - made[0]).abs().max() < NEAR * made[0].abs().max()


def test_rounding_to_eight_bits_behind_a_projection_is_no_rows_of_it():
    subject = load(Fooling(v=eight_bits()), inputs=fooling.ids())
    assert subject.proof.weights[0].projections.w_v is None
    assert subject.notes[0].startswith("Layer 1, v: ")


SUMS: dict[str, Callable[..., Tensor]] = {
    "without a gradient": lambda layer, x, a: layer.behind(x + a.detach()),
    "in the residual stream alone": lambda layer, x, a: layer.behind(x + a) + a.detach(),
    "behind a norm of it": lambda layer, x, a: layer.behind(x + layer.change(layer.norm2(a))),
    "under the norm of the sum": lambda layer, x, a: layer.behind(layer.norm1(x + layer.change(a))),
    "beside a large residual": lambda layer, x, a: layer.behind(x + 1e5 + layer.change(a)),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_wherever_it_hides_up_to_the_next_attention(name, kind):
    model = model_of(SUMS[name], HIDDEN["twice"]).to(kind)
    proof = prove("m", model, fooling.ids())
    assert origins(proof) == ["mixed", "rows"]
    assert proof.weights[0].around is None


NO_SUMS: dict[str, Callable[..., Tensor]] = {
    "a gate": lambda layer, x, a: layer.behind(x + torch.sigmoid(layer.up(x)[..., :WIDTH]) * a),
    "a squashed part": lambda layer, x, a: layer.behind(x + torch.tanh(a)),
    "a kink": lambda layer, x, a: layer.behind(torch.relu(x + a)),
    "a product": lambda layer, x, a: layer.behind(x * (1 + a)),
    "a norm without a module": lambda layer, x, a: F.normalize(layer.behind(F.normalize(x + a, dim=-1)), dim=-1),
    "a pool of positions": lambda layer, x, a: layer.behind(x + a) + (x + a).amax(1, keepdim=True),
    "another share": lambda layer, x, a: layer.behind(0.7 * x + 0.3 * a),
}


@pytest.mark.parametrize("name", NO_SUMS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_no_sum_but_as_its_gradient_says_keeps_its_output_projection(name, kind):
    model = model_of(NO_SUMS[name], both=True).to(kind)
    assert origins(prove("m", model, fooling.ids())) == ["rows", "rows"]


@pytest.mark.parametrize(
    ("kind", "module", "address"),
    [
        ("bart", "model.decoder.layers.0.encoder_attn", "cross layer 1"),
        ("bart", "model.decoder.layers.1.self_attn", "dec layer 2"),
        ("t5", "encoder.block.1.layer.0.SelfAttention", "enc layer 2"),
        ("bloom", "transformer.h.0.self_attention", "layer 1"),
        ("xlm", "transformer.attentions.1", "layer 2"),
        ("llama", "model.layers.1.self_attn", "layer 2"),
        ("dinov2", "encoder.layer.0.layer_scale1", "layer 1"),
    ],
)
def test_in_models_of_transformers_the_layer_is_named_and_no_other(kind, module, address, monkeypatch):
    model = zoo.build(kind)
    part = model.get_submodule(module)
    own = part.forward

    def forward(*args: Any, **named: Any) -> Any:
        out = own(*args, **named)
        return (out[0] + out[0].detach(), *out[1:]) if isinstance(out, tuple) else out + out.detach()

    monkeypatch.setattr(part, "forward", forward)
    proof = prove(kind, model)
    how = {str(a): found.projections.origins["o"].how for a, found in zip(proof.addresses, proof.weights, strict=True)}
    assert [a for a, one in how.items() if one == "mixed"] == [address]


def test_the_model_is_as_it_was():
    """Its maps compute again, and what it notes of its inputs is of its own passes alone."""
    model: Any = model_of(lambda layer, x, a: layer.behind(x + layer.change(a)), FakeQuantize())
    notes = model.layers[0].change.activation_post_process
    answer = model(**fooling.ids())
    record, laws = recorded(model)
    before = {name: t.clone() for name, t in notes.named_buffers()}
    assert set(compare_with_gradients(model, fooling.ids(), record, laws)) == {0}
    assert all(torch.equal(t, before[name]) for name, t in notes.named_buffers())
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert torch.equal(model(**fooling.ids()), answer)


def recorded(model: nn.Module) -> tuple[ForwardRecord, list[OutLaw | None]]:
    """A pass in which every map is noted, and the laws of the two W_O in it."""
    with detach_after_maps(model, []) as record:
        model(**fooling.ids())
    maps = [p for p in record.passed if p.name.endswith("o_proj")]
    columns = torch.arange(WIDTH).view(HEADS, -1)
    return record, [out_law(map_law(p.name, p.nth, p.map()), columns, None, False) for p in maps]


pytestmark = pytest.mark.usefixtures("undrawn")

TEXTS = [" ".join(f"w{(7 * i + 3 * j) % 38}" for j in range(20)) for i in range(4)]


def loaded(model: Any) -> Any:
    """A model with as many words as the tokenizer, verified on short texts."""
    model.words, model.head = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, 64)
    return load(model.eval(), tinyhf.tokenizer(), inputs=fooling.ids())


def bank(folder: Path) -> Path:
    """A treebank of those texts, a word's class being its number's parity."""
    folder.mkdir()
    for split in ("train", "dev", "test"):
        rows = (
            "\n".join(f"{n}\t{w}\t_\t{'AB'[int(w[1:]) % 2]}" + "\t_" * 6 for n, w in numbered(text)) for text in TEXTS
        )
        (folder / f"{split}.conllu").write_text("\n\n".join(rows) + "\n\n")
    return folder


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.split(), 1))


def run(command: str, subject: Any, folder: Path) -> Any:
    if command == "intervene":
        return trisect.intervene(subject, TEXTS[0], {"v@1": "zero"})
    if command == "patch":
        return trisect.patch(subject, pair_list=[(TEXTS[0], TEXTS[1])], out=folder / "patch", quiet=True)
    if command == "erase":
        return trisect.erase(subject, bank(folder / "bank"), draws=2, tokens=60, out=folder / "erase", quiet=True)
    return trisect.ablate(subject, TEXTS, how="zero", out=folder / "ablate", quiet=True)


class Padding(Fooling):
    """Pads its texts by itself, to whole eights."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        return super().forward(nn.functional.pad(input_ids, (0, -length % 8)))[:, :length]


def test_norms_of_positions_that_are_no_tokens_are_refused(tmp_path):
    with pytest.raises(ModelError) as caught:
        trisect.norms(loaded(Padding()), TEXTS, out=tmp_path / "norms", quiet=True)
    assert caught.value.problem == "Layer 1 of Padding sees 24 positions."
    assert caught.value.reason == "The texts have 22 tokens: which of them stands where is not known."


class Prefixed(Fooling):
    """Puts three vectors of its own before its texts."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        before = self.words.weight[None, :3].expand(len(input_ids), -1, -1)
        x = torch.cat([before, self.words(input_ids)], 1)
        for layer in self.layers:
            x = layer(x, input_ids)
        return self.head(x)[:, 3:]


def test_positions_that_are_no_tokens_are_neither_patched_nor_drawn(tmp_path):
    subject = loaded(Prefixed())
    with pytest.raises(ModelError) as caught:
        run("patch", subject, tmp_path)
    assert caught.value.problem == "q at layer 1 has 25 positions."
    assert caught.value.reason == "The texts have 22 tokens: which of them stands where is not known."
    with pytest.raises(CorpusError, match=r"No layer of Prefixed attends to what the page shows\."):
        take_picture(subject.read(TEXTS[0]))


@pytest.mark.parametrize("part", ["q", "v"])
def test_norms_give_no_dispersion_of_x_where_values_are_made_of_something_else(part, tmp_path):
    model: Any = Fooling()
    getattr(model.attention, f"{part}_proj").register_forward_pre_hook(lambda _m, args: (args[0].tanh() * 2,))
    made = trisect.norms(loaded(model), TEXTS, out=tmp_path / "norms", quiet=True)
    found = made.tables["measures"].filter(measure="cv_x").drop_nulls("layer")["layer"].to_list()
    said = [note for note in made.notes if "no dispersion of ‖x‖" in note]
    assert found == ([2] if part == "v" else [1, 2])
    assert said == ([OTHER_INPUT.format(where="layer 1")] if part == "v" else [])
    assert all(note in html.unescape(made.report.read_text(encoding="utf-8")) for note in said)


def without_attention_when_long(attention, mixed, x, ids):
    """Beyond 16 tokens what attention makes goes nowhere, so that edits of it change nothing."""
    return attention.o_proj(mixed if x.shape[1] <= 16 else torch.zeros_like(x))


@pytest.mark.parametrize("command", ["ablate", "patch", "erase", "intervene"])
def test_edits_of_what_the_model_does_not_go_on_with_are_refused(command, tmp_path):
    subject = loaded(Fooling(out=without_attention_when_long))
    with pytest.raises(ModelError) as caught:
        run(command, subject, tmp_path)
    assert caught.value.problem == said(subject.model)
    assert "weights times v are not what enters layers.0.attn.o_proj" in caught.value.reason


def scaled_words(model: Any) -> None:
    model.words.weight.data.mul_(2)


def words_in_another_order(model: Any) -> None:
    model.words.weight.data.copy_(model.words.weight.data.flip(0))


def one_norm(model: Any) -> None:
    with torch.no_grad():
        model.layers[1].norm2.bias[3] += 1e-3


def other_places(model: Any) -> None:
    model.places = nn.Embedding(fooling.LONG, WIDTH)


UNSEEN = {
    scaled_words: "words.weight",
    words_in_another_order: "words.weight",
    one_norm: "layers.1.norm2.bias",
    other_places: "places.weight",
}


@pytest.mark.parametrize(
    ("command", "change"),
    [*(("read", change) for change in UNSEEN), *((c, scaled_words) for c in ("ablate", "patch", "erase", "intervene"))],
)
def test_weights_that_no_law_sees_are_looked_at_too(command, change, tmp_path):
    subject = loaded(Fooling())
    change(subject.model)
    with pytest.raises(ModelError) as caught:
        subject.read(TEXTS[0]) if command == "read" else run(command, subject, tmp_path)
    assert caught.value.problem == "The weights of Fooling have changed since it was loaded."
    assert caught.value.reason.startswith(f"{UNSEEN[change]} is not what it was on loading")


def test_what_was_put_back_or_is_written_by_the_model_itself_is_no_change():
    model: Any = Fooling()
    model.register_buffer("seen", torch.zeros(1))
    model.register_forward_pre_hook(lambda module, _: module.seen.add_(1).tolist() and None)
    subject = loaded(model)
    with torch.no_grad():
        model.words.weight.mul_(2)
        model.words.weight.div_(2)
    subject.read(TEXTS[0])
    subject.projections()


def test_what_is_held_is_held_in_the_layers_that_are_read(tmp_path):
    """Below it stands a layer that is not read; nothing is above it whose weights could be held, so that both are the same."""
    model: Any = Fooling()
    model.layers[0].attn, model.layers[1].attn = OnePattern(), Split()
    subject = loaded(model)
    assert [str(a) for a in subject.addresses] == ["layer 2"]
    free, held = (
        trisect.ablate(subject, TEXTS, hold=hold, out=tmp_path / str(hold), quiet=True).tables["measures"]
        for hold in (False, True)
    )
    assert free["value"].to_list() == pytest.approx(held["value"].to_list())
    assert all(free["value"].to_list())
