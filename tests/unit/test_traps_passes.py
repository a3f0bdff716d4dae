"""Traps of passes, values, threads, addresses and call names: each gave a wrong number or a crash once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import fooling, shrunk, tinyhf, towers, zoo
from tests.fooling import HEADS, LONG, WIDTH, WORDS, Fooling
from tests.unit.test_traps_hidden import Split, loaded, made
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from trisect.core.errors import ModelError, SiteError
from trisect.core.subject import QKV, SiteTarget
from trisect.core.trace import Address
from trisect.hf.batches import first_tensor
from trisect.hf.files.checkpoints import cuts_of
from trisect.hf.hooks.interface_hook import record_interface
from trisect.hf.hooks.product_hook import MIXED
from trisect.hf.load import load
from trisect.hf.verify import examples
from trisect.hf.verify.proof import SUM_BELOW_ONE
from trisect.hf.verify.sources import EnteredFloats

NEAR = 1e-5  # float32, numbers of order one


class Handing(fooling.Attention):
    """Keeps its keys and values for the layers above, which have none of their own."""

    own = True

    def forward(self, x: Tensor, ids: Any) -> Tensor:
        q, k, v = self.heads(x)
        if self.own:
            ids[0] |= {"k": k, "v": v}
        output = self.attend(q, ids[0]["k"], ids[0]["v"], x)
        return self.o_proj(output.transpose(1, 2).flatten(2))


class Handed(Fooling):
    """Its layers are given a dictionary in a list, in which one leaves what the next takes out."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        held: list[dict[str, Tensor]] = [{}]
        for layer in self.layers:
            x = layer(x, held)
        return self.head(x)


def test_what_a_layer_leaves_for_a_later_one_is_there():
    model: Any = Handed()
    for layer in model.layers:
        layer.attn.__class__ = Handing
    model.layers[1].attn.own = False
    first, second = loaded(model).read(fooling.ids(9)).traces
    assert torch.equal(first.k, second.k)
    assert torch.equal(first.v, second.v)
    assert second.projections.origins["v"].parameter == "layers.0.attn.v_proj.weight"
    assert second.stack == "plain"


def test_a_list_that_is_given_twice_is_as_it_was_afterwards():
    own = torch.ones(2, 3)
    twice: list[Any] = [own]
    twice.append(twice)
    entered = EnteredFloats()
    made = entered.enter("layer", (twice, twice), {"held": twice})
    assert made is not None
    assert len(entered.leaves) == 1
    assert made[0][0] is made[1]["held"] is twice
    assert twice[0] is not own
    entered.leave("layer")
    assert twice[0] is own


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints_that_are_always_on(reentrant):
    class Again(fooling.Layer):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            return checkpoint(super().forward, x, ids, use_reentrant=reentrant)  # pyright: ignore[reportReturnType]

    plain: Any = Fooling()
    model: Any = Fooling()
    for layer in model.layers:
        layer.__class__ = Again
    want, got = (loaded(m).read(fooling.ids(9)).traces for m in (plain, model))
    for one, other in zip(want, got, strict=True):
        assert [o.how for o in other.projections.origins.values()] == ["rows"] * 4
        assert torch.equal(one.q, other.q)
        assert other.block is not None


def test_inference_mode():
    model: Any = Fooling()
    with torch.inference_mode():
        trace = loaded(model).read(fooling.ids(9)).traces[0]
        made: Any = Fooling()
    assert trace.projections.origins["q"].how == "rows"
    with pytest.raises(ModelError) as caught:
        loaded(made)
    assert caught.value.problem == "words.weight of Fooling was made in inference mode."


def test_a_tensor_that_a_model_kept_from_inference_mode_is_the_reason_given():
    model: Any = Fooling(out=lambda attention, mixed, x, ids: attention.o_proj(mixed) * kept_from[0])
    with torch.inference_mode():
        kept_from = [torch.ones(1)]
    with pytest.raises(ModelError) as caught:
        loaded(model)
    assert caught.value.problem == "Fooling keeps a tensor that was made in inference mode."


def masked(module: nn.Module) -> None:
    prune.random_unstructured(module, "weight", 0.5)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("change", [weight_norm, parametrizations.weight_norm, masked])
def test_weights_that_are_made_of_others_have_no_name_of_their_own(change):
    model: Any = Fooling()
    for part in (model.attention.q_proj, model.attention.o_proj):
        change(part)
    subject = loaded(model)
    trace = subject.read(fooling.ids(9)).traces[0]
    origins = trace.projections.origins
    assert [o.how for o in origins.values()] == ["rows"] * 4
    assert [o.parameter for o in origins.values()] == [None, *(f"layers.0.attn.{n}_proj.weight" for n in "kv"), None]
    own = model.attention.q_proj.weight.detach().unflatten(0, (HEADS, -1)).transpose(1, 2)
    assert torch.allclose(trace.w_q, own, atol=NEAR)
    with pytest.raises(SiteError, match="cannot be rewound"):
        cuts_of(SiteTarget(Address("plain", 1), "q", None), trace.projections)
    next(p for n, p in model.attention.q_proj.named_parameters() if "weight" in n).data.mul_(1.5)
    with pytest.raises(ModelError, match=r"changed since it was loaded|does not compute"):
        subject.projections()


def test_a_weight_that_is_used_by_its_module_and_without():
    """W_O is the transpose of W_V: what the module multiplies by it is no use of the bare weight."""
    model: Any = Fooling(out=lambda attention, mixed, x, ids: F.linear(mixed, attention.v_proj.weight.T))
    subject = loaded(model)
    trace = subject.read(fooling.ids(9)).traces[0]
    expected = trace.output.transpose(1, 2).flatten(2) @ model.attention.v_proj.weight
    assert torch.allclose(torch.einsum("bhte,hed->btd", trace.output, trace.w_o), expected, atol=NEAR)


class Unfollowed(Fooling):
    """Inference code: its forward switches gradients off."""

    @torch.no_grad()
    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids)


def test_gradients_that_a_model_switches_off_are_the_reason_given():
    trace = loaded(Unfollowed()).read(fooling.ids(9)).traces[0]
    words = [o.words for o in trace.projections.origins.values()]
    off = "where the model switches gradients off, which are needed to find its map"
    assert words == [f"q is made {off}", f"k is made {off}", f"v is made {off}", f"the output goes on {off}"]
    assert trace.w_v is None


class Moving(Fooling):
    """Gives its layers the tokens in another order, and puts the answer back."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(self.moved(input_ids))

    def moved(self, ids: Tensor) -> Tensor:
        return ids


MOVED = {
    "turned": (lambda ids: ids.flip(1), "position 5 of row 1"),
    "rows turned": (lambda ids: ids.flip(0), "position 1 of row 0"),
    "shifted": (lambda ids: ids.roll(1, 1), "position 2 of row 1"),
}


@pytest.mark.parametrize("how", MOVED)
def test_tokens_that_a_model_moves_by_itself_are_not_those_of_its_positions(how):
    model: Any = Moving()
    assert loaded(model).read(fooling.ids(9)).source.ids.equal(fooling.ids(9)["input_ids"])
    model.moved, place = MOVED[how]
    with pytest.raises(ModelError) as caught:
        loaded(model)
    assert caught.value.problem == "Moving moves its tokens to other positions."
    words = f"position 1 of row 1, counted from 0, changes the inputs of attention at {place}."
    assert caught.value.reason.endswith(words)


def by_parity(ids: Tensor) -> Tensor:
    return ids.gather(1, (ids % 2).argsort(dim=1, stable=True))


SORTED = {
    "rising": lambda ids: ids.sort(1).values,
    "falling": lambda ids: ids.sort(1, descending=True).values,
    "by parity": by_parity,
    "smallest first": lambda ids: torch.stack([row.roll(-int(row.argmin())) for row in ids]),
}


@pytest.mark.parametrize("how", SORTED)
def test_tokens_that_a_model_sorts_are_found_whatever_the_order_of_the_example(how):
    model: Any = Moving()
    example = {"input_ids": SORTED[how](fooling.ids()["input_ids"])}
    assert load(model, inputs=example).proof.refusal is None
    model.moved = SORTED[how]
    with pytest.raises(ModelError, match="Two tokens of row 1 are swapped"):
        load(model, inputs=example)


def test_tokens_that_are_alike_to_a_model_say_nothing_of_their_order():
    model: Any = Fooling()
    with torch.no_grad():
        model.words.weight[2:] = model.words.weight[2]
    assert load(model, inputs={"input_ids": torch.tensor([[5, 0, 1, 9, 7, 12, 4]])}).proof.refusal is None


def test_a_model_that_does_not_run_with_other_tokens_is_still_read():
    class Strict(Fooling):
        """Gives up where its tokens are not those that it knows, as where tokens stand for images."""

        def forward(self, input_ids: Tensor) -> Tensor:
            assert torch.equal(input_ids, known), "unknown tokens"
            return super().forward(input_ids)

    known = fooling.ids()["input_ids"]
    subject = loaded(Strict())
    assert len(subject.read(fooling.ids()).traces) == len(subject.addresses)


def test_one_module_at_two_places_is_two_layers_unless_a_cache_mixes_them():
    model: Any = Fooling()
    model.layers[1].attn = model.layers[0].attn
    subject = loaded(model)
    assert [str(a) for a in subject.addresses] == ["layer 1", "layer 2"]
    assert subject.notes == ("Layers 1–2 share one set of weights.",)
    model = tinyhf.gpt2()
    model.transformer.h[1] = model.transformer.h[0]
    with pytest.raises(ModelError) as caught:
        loaded(model)
    assert caught.value.problem == "GPT2LMHeadModel computes something else with a cache than without."
    assert caught.value.reason.startswith("Its module 'transformer.h.0.attn' attends 2 times in a pass, and the cache")
    model.config.use_cache = False
    first, second = loaded(model).read(fooling.ids(9)).traces
    assert first.weights.shape == second.weights.shape == (2, tinyhf.HEADS, 9, 9)
    assert not torch.equal(first.q, second.q)


def test_autocast_that_is_on_in_a_read_alone_is_the_reason_given():
    model = tinyhf.gpt2()
    with torch.autocast("cpu", torch.bfloat16):
        inside = loaded(model)
        assert len(inside.read(fooling.ids(9)).traces) == 2
        with torch.autocast("cpu", enabled=False):
            outside = loaded(model)
        with pytest.raises(ModelError) as caught:
            outside.read(fooling.ids(9))
    assert caught.value.problem == "GPT2LMHeadModel is run inside torch.autocast, in bfloat16."
    assert caught.value.reason == "It was verified outside torch.autocast, where its numbers round differently."
    assert caught.value.todo == "Load it and read it both inside torch.autocast, or both outside."
    with pytest.raises(ModelError, match=r"is run outside torch\.autocast"):
        inside.predict(fooling.ids())


class Talking(Split):
    """Heads whose scores are mixed by a linear map."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        return F.linear(super().scores(q, k, x).permute(0, 2, 3, 1), self.q_proj.weight[:HEADS, :HEADS]).permute(
            0, 3, 1, 2
        )


def test_heads_whose_scores_are_mixed_by_a_map_are_the_reason_given():
    assert loaded(made(Talking)).notes == (f"Left out, layers.0.attn: {MIXED}.",)


def spoil(model: nn.Module, module: str, row: int, position: int) -> None:
    """Make one position of what a module gives no number, from now on."""

    def hook(_module: nn.Module, _args: object, out: torch.Tensor) -> torch.Tensor:
        made = out.clone()
        made[row, position] = torch.nan
        return made

    model.get_submodule(module).register_forward_hook(hook)


@pytest.mark.parametrize(
    ("part", "layer"),
    [("layers.0.self_attn.q_proj", "Layer 1"), ("layers.1.self_attn.v_proj", "Layer 2"), ("layers.0.mlp", "Layer 2")],
)
def test_a_real_position_that_is_no_number_is_refused(part, layer):
    model = zoo.build("llama")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    spoil(model, f"model.{part}", 0, 1)
    with pytest.raises(ModelError) as caught:
        subject.read("w1 w2 w3 w4")
    assert caught.value.problem == f"{layer} of LlamaForCausalLM gives NaN or infinity."
    assert caught.value.reason == "In this read there is NaN or infinity at position 1 of row 0, which is not padding."
    assert caught.value.todo.startswith("Read it in a wider precision")


def test_padding_that_is_no_number_is_read_and_only_where_the_mask_has_it():
    """Iff: the same position is refused as soon as the mask says that it is real. In the last layer, where nothing attends to it."""
    model = zoo.build("bert")
    subject = load(model, tokenizer=tinyhf.tokenizer())
    spoil(model, "bert.encoder.layer.1.attention.self.query", 1, 3)
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    reading = subject.read({"input_ids": ids, "attention_mask": mask})
    assert bool(reading.layer(2).q[1, :, 3].isnan().all())
    with pytest.raises(ModelError, match="position 3 of row 1"):
        subject.read({"input_ids": ids, "attention_mask": torch.ones_like(mask)})
    with pytest.raises(ModelError, match="which is not padding"):
        subject.read({"input_ids": ids})


def test_a_bare_parameter_that_changed_is_seen_without_a_read():
    """XLNet multiplies by parameters that belong to no module of their own, which nothing can be fed to."""
    for part in ("q", "o"):
        model = zoo.build("xlnet")
        subject = load(model, tokenizer=tinyhf.tokenizer())
        assert len(subject.projections()) == 2
        model.get_parameter(f"transformer.layer.1.rel_attn.{part}").data[0, 0] *= 1.5
        with pytest.raises(ModelError) as caught:
            subject.projections()
        assert caught.value.problem == "Layer 2 of XLNetLMHeadModel does not compute what was found on loading."
        assert caught.value.reason == f"In this read transformer.layer.1.rel_attn.{part} is not what it was on loading."


def test_rows_of_a_parameter_of_pytorchs_own_attention_are_seen_without_a_read():
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    subject = load(module, inputs={"src": torch.randn(2, 5, 16)})
    assert len(subject.projections()) == 1
    module.self_attn.in_proj_weight.data[20, 3] += 0.5
    with pytest.raises(ModelError, match="in_proj_weight is not what it was on loading"):
        subject.projections()


THREADS, TIMES = 4, 2


def at_once(jobs: Sequence[Callable[[], list[Tensor]]]) -> list[list[Tensor]]:
    """What jobs give that begin together, a thread each."""
    begin, made, errors = threading.Barrier(len(jobs)), {}, list[BaseException]()

    def run(number: int) -> None:
        try:
            begin.wait(60)
            made[number] = jobs[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(jobs))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    if errors:
        raise errors[0]
    return [made[n] for n in range(len(jobs))]


def used(subject: Any, length: int) -> list[Tensor]:
    """What reading, running and editing a model gives for inputs of one length."""
    inputs, found = fooling.ids(length), list[Tensor]()
    flipped = lambda parts: QKV(-parts.q, parts.k, parts.v)  # noqa: E731
    for _ in range(TIMES):
        found += [t for trace in subject.read(inputs).traces for t in (trace.q, trace.v, trace.weights)]
        found.append(first_tensor(subject.predict(inputs)))
        found.append(first_tensor(subject.predict(inputs, {subject.addresses[0]: flipped})))
        found += [own.w_v for own in subject.projections() if own.w_v is not None]
    return found


@pytest.mark.parametrize("build", [tinyhf.gpt2, Fooling])
def test_one_model_in_several_threads(build):
    model: Any = build()
    subjects = [load(model, inputs=fooling.ids()) for _ in range(2)]
    jobs = [lambda n=n: used(subjects[n % 2], 6 + n) for n in range(THREADS)]
    wanted = [job() for job in jobs]
    same(wanted, at_once(jobs))


def test_two_models_are_loaded_and_read_in_several_threads():
    models: list[Any] = [tinyhf.gpt2(), Fooling(), tinyhf.gpt2(seed=2), Fooling(seed=2)]
    jobs = [lambda n=n, m=m: used(load(m, inputs=fooling.ids()), 6 + n) for n, m in enumerate(models)]
    wanted, fast = [job() for job in jobs], torch.backends.mha.get_fastpath_enabled()
    same(wanted, at_once(jobs))
    assert torch.backends.mha.get_fastpath_enabled() == fast


def same(wanted: Sequence[Sequence[Tensor]], given: Sequence[Sequence[Tensor]]) -> None:
    """Every thread's tensors are those that were wanted of it, bit for bit."""
    for want, got in zip(wanted, given, strict=True):
        assert [torch.equal(a, b) for a, b in zip(want, got, strict=True)] == [True] * len(want)


def own_loss(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """The next token's loss row by row, of the tokens that follow a real one, as transformers would count it."""
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    labels = torch.where((mask[:, 1:] * mask[:, :-1]) > 0, ids[:, 1:], -100)
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none").sum(1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_position_predicts_nothing(side):
    """The first real token of a row that is padded on its left follows padding, which says nothing of it."""
    model = zoo.build("llama")
    subject = load(model)
    ids = torch.randint(6, 99, (2, 8), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    scores = subject.score(subject.batch_of({"input_ids": ids, "attention_mask": mask}))
    assert scores.count.tolist() == [7, 4]
    assert torch.allclose(scores.total, own_loss(model, ids, mask).double(), atol=1e-4)


def test_labels_of_the_inputs_say_what_is_predicted():
    model = zoo.build("llama")
    subject = load(model)
    ids = torch.randint(6, 99, (1, 8), generator=torch.Generator().manual_seed(3))
    labels = ids.clone()
    labels[:, :4] = -100
    scores = subject.score(subject.batch_of({"input_ids": ids, "labels": labels}))
    assert scores.count.tolist() == [4]
    with torch.no_grad():
        assert float(scores.total / 4) == pytest.approx(float(model(input_ids=ids, labels=labels).loss), rel=1e-5)


class Named:
    """Attention that gives its function everything by name, as many models of transformers do."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self.places = places

    def give(self, function: Any) -> Any:
        def call(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **named: Any) -> Any:
            values: dict[str, Any] = {"query": q, "key": k, "value": v, "attention_mask": mask}
            by_name = {place: values.pop(place) for place in self.places}
            return function(module, *values.values(), **by_name, **named)

        return call


@pytest.mark.parametrize(
    "places", [("attention_mask",), ("value", "attention_mask"), ("query", "key", "value", "attention_mask")]
)
def test_what_attention_is_given_by_name_is_read_as_what_is_given_by_place(places, monkeypatch):
    model = zoo.build("llama")
    ids = {"input_ids": torch.arange(6, 14)[None]}
    with torch.no_grad(), record_interface(model) as calls:
        answer = model(**ids).logits
    wrapper, module = Named(places), __import__(type(model).__module__, fromlist=["x"])
    original = module.LlamaAttention.forward

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        own = AttentionInterface.get_interface
        with monkeypatch.context() as patched:
            patched.setattr(AttentionInterface, "get_interface", lambda s, i, d: wrapper.give(own(s, i, d)))
            return original(self, *args, **named)

    monkeypatch.setattr(module.LlamaAttention, "forward", forward)
    with torch.no_grad(), record_interface(model) as named:
        assert torch.equal(model(**ids).logits, answer)
    assert len(named) == len(calls) == 2
    for a, b in zip(calls, named, strict=True):
        assert all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("q", "k", "v", "weights", "output"))
    assert "eager" not in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert load(model).shape.stacks == ("plain",)


def test_a_sink_that_scales_the_output_is_part_of_the_weights():
    """Granite's sliding-window kind scales what attention gives by a factor per query; its weights then sum to less than one."""
    model = shrunk.build("granite_swa")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.add_(2.0)
    ids = {"input_ids": torch.arange(6, 14)[None]}
    subject = load(model)
    for trace in subject.read(ids).traces:
        sums = trace.weights.sum(-1)
        assert sums.min() < 0.9
        assert sums.max() < 1 + 1e-5
        assert (trace.weights @ trace.values - trace.output).abs().max() < 1e-5 * trace.output.abs().max()


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("muse_glimmer_assistant", "Its main input is 'noise_embeds'. No example is known."),
        ("bros", "You have to specify bbox"),
    ],
)
def test_a_model_whose_inputs_are_not_known_is_told_what_to_give(kind, known, monkeypatch):
    model = shrunk.build(kind)
    monkeypatch.delitem(examples.MAKERS, "bbox")
    with pytest.raises(ModelError) as caught:
        load(model)
    assert caught.value.problem.endswith("cannot be tried out.")
    assert known in caught.value.reason
    assert caught.value.todo.startswith("Give an example of its inputs: load(model, inputs={...}), of ")


def test_inputs_beside_the_main_one_are_tried():
    """CLIP takes a text and an image, and says only when it runs that it lacks one."""
    made = towers.build("clip").model
    assert load(made).shape.stacks == ("vision", "text")


@pytest.mark.parametrize("build", [tinyhf.gpt2, tinyhf.bert])
def test_more_tokens_than_positions_are_counted(build):
    subject = load(build())
    model: Any = subject.model
    limit = model.config.max_position_embeddings
    subject.read(torch.full((1, limit), 7))
    words = rf"{limit + 1} tokens were given .*\n.*positions for {limit}\.\n.*shorter"
    with pytest.raises(ModelError, match=words) as found:
        subject.read(torch.full((1, limit + 1), 7))
    assert "index out of range" not in str(found.value)


class ByMap(Split):
    """With a map that makes a number for each head, word by word."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(WIDTH, HEADS)

    def number(self, x: Tensor) -> Tensor:
        return self.extra(x).transpose(1, 2)[..., None]


class ByParameter(Split):
    """With a number for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.linspace(-1, 1, HEADS))

    def number(self, x: Tensor) -> Tensor:
        return self.extra.view(1, -1, 1, 1).expand(len(x), -1, x.shape[1], 1)


class SinkByMap(ByMap):
    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(torch.cat([scores, self.number(x)], -1), -1)[..., :-1]


class SinkBehind(ByParameter):
    """A sink, taken into account after the softmax."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(torch.logsumexp(scores, -1, True) - self.number(x))


class GateByMap(ByMap):
    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(self.number(x))


class GateByParameter(ByParameter):
    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(self.number(x))


class GateOfScores(ByMap):
    """Moves with the keys, and not as a sink does."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(scores.mean(-1, keepdim=True) + self.number(x))


class Router(ByMap):
    """A gate of every key."""

    def weights(self, scores: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(scores, -1) * torch.sigmoid(self.number(x)).transpose(2, 3)


@pytest.mark.parametrize("kind", [SinkByMap, SinkBehind, GateByMap, GateByParameter, GateOfScores, Router])
def test_a_sink_stands_in_the_softmax_and_a_gate_behind_it_is_none(kind):
    law = loaded(made(kind), 9).proof.laws[0]
    assert law.sink == kind.__name__.startswith("Sink")
    assert law.failure == ("" if law.sink else SUM_BELOW_ONE)


class Between(fooling.Attention):
    """Queries of one sequence, keys and values of what is given beside; no position looks ahead."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q, (_, k, v) = self.heads(x)[0], self.heads(ids)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = torch.softmax((q @ k.transpose(2, 3)).masked_fill(ahead, -torch.inf), -1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class Reading(nn.Module):
    """A layer that attends to itself and then to what it is given beside, through a norm for each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.own, self.other = Between(), Between()

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        mine = self.norm1(x)
        x = x + self.own(mine, mine)
        return x + self.other(self.norm2(x), self.norm3(other))


class InStep(nn.Module):
    """Layers that read a second sequence step by step, or the words that they are made of."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.words, self.seconds, self.places = (nn.Embedding(n, WIDTH) for n in (WORDS, WORDS, LONG))
        self.encoder, self.layers = fooling.Layer(), nn.ModuleList([Reading(), Reading()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor, second: Tensor | None = None) -> Tensor:
        x = other = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        if second is not None:
            other = self.encoder(self.seconds(second) + self.places(torch.arange(second.shape[1])), second)
        for layer in self.layers:
            x = layer(x, other)
        return self.head(x)


@pytest.mark.parametrize("second", [None, 0, 1])
def test_two_sequences_that_are_read_in_step_are_two(second):
    torch.manual_seed(0)
    inputs: dict[str, Any] = fooling.ids(9)
    if second is not None:
        inputs["second"] = fooling.ids(9, seed=second)["input_ids"]
    proof = load(InStep().eval(), inputs=inputs).proof
    stacks = {f.module: a.stack for f, a in zip(proof.weights, proof.addresses, strict=True)}
    crossing = {module for module, stack in stacks.items() if "cross" in stack}
    assert crossing == (set() if second is None else {"layers.0.other", "layers.1.other"})
