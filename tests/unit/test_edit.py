"""User functions at q, k and v: what they are given, what they change and nothing else, in which passes, and what is refused."""

import threading
from typing import Any

import pytest
import torch
from tests import tiny, tinyhf, zoo

import trisect
from trisect.core.errors import ModelError, SiteError, SpecError
from trisect.core.trace import Address
from trisect.hf.hooks.edit import EDITABLE_MODELS
from trisect.hf.load import load
from trisect.lm.fleet import initial, layout, views
from trisect.lm.reading import OwnModel

pytestmark = pytest.mark.usefixtures("undrawn")  # pages without drawings, which take most of the time

IDS = torch.tensor([[7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18]])


def same(tensor, _where):
    return tensor


def copied(tensor, _where):
    return tensor.clone()


def halved(tensor, _where):
    return 0.5 * tensor


def nothing(tensor, _where):
    return torch.zeros_like(tensor)


def answer(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        made = model(**inputs)
    return made.logits if hasattr(made, "logits") else made.last_hidden_state


@pytest.fixture(scope="module")
def gpt():
    return load(tinyhf.gpt2(), tinyhf.tokenizer(False))


@pytest.fixture(scope="module")
def bart():
    return load(tinyhf.bart(), tinyhf.tokenizer())


KINDS = {
    "gpt2": lambda: tinyhf.gpt2(),  # one fused map
    "llama": lambda: tinyhf.llama(),  # grouped queries, rotary positions
    "bert": lambda: tinyhf.bert(),
    "bart": lambda: tinyhf.bart(),
    "albert": lambda: zoo.build("albert"),  # layers that are one
    "gptj": lambda: zoo.build("gptj"),  # without an interface: its products are followed
    "bloom": lambda: zoo.build("bloom"),
}


def sites(subject: Any) -> list[str]:
    return ["q+k+v@all" if stack == "plain" else f"{stack}.q+k+v@all" for stack in subject.shape.stacks]


@pytest.mark.parametrize("kind", KINDS)
def test_an_identity_changes_nothing_bit_for_bit_and_a_function_does(kind):
    subject = load(KINDS[kind](), tinyhf.tokenizer())
    inputs = {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :4]} if kind == "bart" else {})
    clean = answer(subject.model, inputs)
    stack = subject.shape.stacks[0]
    first = ("" if stack == "plain" else f"{stack}.") + "v@1"
    for function in (same, copied):
        for own in (sites(subject), [f"{first}.h2"]):
            with trisect.edit(subject, dict.fromkeys(own, function)) as model:
                assert model is subject.model
                assert torch.equal(answer(model, inputs), clean)
    with trisect.edit(subject, {f"{first}.h2": halved}) as model:
        assert not torch.equal(answer(model, inputs), clean)
    assert torch.equal(answer(subject.model, inputs), clean)
    assert subject.model not in EDITABLE_MODELS
    assert not any("_compiled_call_impl" in module.__dict__ for module in subject.model.modules())


@pytest.mark.parametrize("kind", ["llama", "albert", "gptj"])
def test_a_function_is_given_a_sites_part_alone_and_where_it_is(kind):
    subject = load(KINDS[kind](), tinyhf.tokenizer())
    seen: dict[Any, torch.Tensor] = {}

    def note(tensor, where):
        seen[where.address, where.component, where.heads] = tensor
        return tensor

    with trisect.edit(subject, {"q@all": note, "v@2.h1": note}) as model:
        answer(model, {"input_ids": IDS})
    read = subject.read({"input_ids": IDS})
    heads = tuple(range(1, read.traces[0].heads + 1))
    first, last = Address("plain", 1), Address("plain", len(read.traces))
    assert {key[:2] for key in seen} >= {(first, "q"), (last, "q"), (Address("plain", 2), "v")}
    torch.testing.assert_close(seen[first, "q", heads], read.traces[0].q)
    torch.testing.assert_close(seen[last, "q", heads], read.traces[-1].q)
    torch.testing.assert_close(seen[Address("plain", 2), "v", (1,)], read.traces[1].v[:, :1])


def test_zeroing_a_head_is_the_zero_of_interventions_and_of_ablate(gpt, tmp_path):
    text = "w1 w2 w3 w4 w5"
    zero = trisect.intervene(gpt, text, {"v@2.h3": "zero"})
    own = trisect.intervene(gpt, text, {"v@2.h3": nothing})
    assert torch.equal(own.after, zero.after)
    assert own.switches == (("v@2.h3", "nothing"),)
    inputs = next(gpt.batches([text])).inputs
    assert torch.equal(gpt.predict(inputs, {"v@2.h3": nothing}).logits[0], zero.after)
    with trisect.edit(gpt, {"v@2.h3": nothing}) as model:
        torch.testing.assert_close(answer(model, inputs)[0], zero.after)
        loss = sum(float(gpt.score(batch).total.sum()) for batch in gpt.batches([text]))
        note = "Measured with an edit: v@2.h3 by nothing."
        assert note in gpt.notes
    clean = sum(float(gpt.score(batch).total.sum()) for batch in gpt.batches([text]))
    table = trisect.ablate(gpt, [text], sites=["v@2.h3"], how="zero", out=tmp_path / "out", quiet=True).tables[
        "measures"
    ]
    rise = table.filter(table["measure"] == "loss_change_nats")["value"][0]
    assert (loss - clean) / 4 == pytest.approx(rise, rel=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bart", "bloom"])
def test_generation_with_an_edit_equals_generation_without_a_cache(kind):
    subject: Any = load(KINDS[kind](), tinyhf.tokenizer(False))
    stack = "dec." if kind == "bart" else ""
    edits = {f"{stack}v@1.h1": nothing, f"{stack}k@2": halved, f"{stack}q@2": lambda tensor, _where: -tensor}
    if kind == "bart":
        edits |= {"enc.v@1": halved, "cross.k@2": halved}
    more = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    plain = subject.model.generate(IDS, **more)
    made = []
    for cached in (True, False):
        with trisect.edit(subject, edits) as model:
            made.append(model.generate(IDS, use_cache=cached, **more))
    assert torch.equal(made[0].sequences, made[1].sequences)
    for one, other in zip(made[0].logits, made[1].logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(made[0].logits[0], plain.logits[0], atol=1e-3)


def test_a_cache_gives_all_keys_and_holds_none_that_are_edited(gpt):
    sizes: list[tuple[str, int]] = []

    def note(tensor, where):
        sizes.append((where.component, tensor.shape[2]))
        return 0 * tensor

    with trisect.edit(gpt, {"q+k@1": note}) as model:
        found = model(IDS[:, :4], use_cache=True).past_key_values
        model(IDS[:, 4:5], past_key_values=found, use_cache=True)
    assert sizes == [("q", 4), ("k", 4), ("q", 1), ("k", 5)]
    assert found.layers[0].keys.abs().min() > 0


def test_blocks_are_nested_the_outer_first_and_readings_are_of_the_edited_model(gpt):
    inputs = {"input_ids": IDS}
    one = lambda tensor, _where: tensor + 1  # noqa: E731
    with trisect.edit(gpt, {"v@1": one}) as model, trisect.edit(gpt, {"v@1.h1": halved, "v@2": same}):
        both = answer(model, inputs)
        read = gpt.read(inputs)
        predicted = gpt.predict(inputs).logits
    narrow = lambda tensor, where: halved(tensor[:, :1] + 1, where)  # noqa: E731
    with pytest.raises(ModelError, match="returned"), trisect.edit(gpt, {"v@1": narrow}):
        answer(gpt.model, inputs)
    with trisect.edit(gpt, {"v@1": one, "v@1.h1": halved}) as model:
        assert torch.equal(answer(model, inputs), both)
    torch.testing.assert_close(predicted, both)
    clean = gpt.read(inputs)
    torch.testing.assert_close(read.traces[0].v[:, 1:], clean.traces[0].v[:, 1:] + 1)
    torch.testing.assert_close(read.traces[0].v[:, :1], 0.5 * (clean.traces[0].v[:, :1] + 1))
    with trisect.edit(gpt, {"v@1": one}):
        with pytest.raises(ModelError, match="is being edited"):
            load(gpt.model)
        gpt.read(inputs)


@pytest.mark.parametrize("kind", ["bloom", "falcon", "gptj", "llama"])
def test_a_reading_inside_is_of_the_edited_pass_once(kind):
    subject: Any = load(zoo.build(kind), tinyhf.tokenizer(False))
    batch = next(subject.batches(["w1 w2 w3 w4"]))
    clean = subject.trace(batch)
    with trisect.edit(subject, {"v@1": nothing}):
        inside = [subject.trace(batch), trisect.read(subject, batch.inputs, grad=True)]
    inside.append(subject.trace(batch, subject.shape.writers({"v@1": nothing})))
    for read in inside:
        assert [trace.layer for trace in read.traces] == [trace.layer for trace in clean.traces]
        assert read.traces[0].v.eq(0).all()
        torch.testing.assert_close(read.traces[1].q.detach(), inside[0].traces[1].q)
    assert not torch.allclose(inside[0].traces[1].q, clean.traces[1].q)
    for trace, before in zip(inside[0].traces[1:], clean.traces[1:], strict=True):
        assert (trace.block is None) == (before.block is None)
        if trace.block is not None and before.block is not None:
            assert not torch.allclose(trace.block.residual, before.block.residual)


def test_an_edit_holds_for_the_thread_that_opened_it(gpt):
    inputs, found = {"input_ids": IDS}, {}
    clean = answer(gpt.model, inputs)

    def other(name, factor):
        with trisect.edit(gpt, {"v@1": lambda tensor, _where: factor * tensor}) as model:
            found[name] = [answer(model, inputs) for _ in range(3)]

    with trisect.edit(gpt, {"v@1": halved}) as model:
        mine = answer(model, inputs)
        threads = [threading.Thread(target=other, args=(n, factor)) for n, factor in enumerate((0.5, 2.0))]
        threads.append(threading.Thread(target=lambda: found.setdefault("plain", [answer(gpt.model, inputs)])))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.equal(answer(model, inputs), mine)
    assert all(torch.equal(one, mine) for one in found[0])
    assert not torch.equal(found[1][0], mine)
    assert torch.equal(found["plain"][0], clean)
    assert torch.equal(answer(gpt.model, inputs), clean)


def test_a_compiled_model_runs_with_its_edits_and_is_compiled_again_afterwards(gpt):
    counted: list[int] = []

    def backend(graph, _example):
        counted.append(1)
        return graph

    compiled: Any = torch.compile(gpt.model, backend=backend)
    with torch.no_grad():
        clean = compiled(input_ids=IDS).logits
        before = len(counted)
        assert before
        with trisect.edit(gpt, {"v@1": halved}) as model:
            assert torch.equal(compiled(input_ids=IDS).logits, model(input_ids=IDS).logits)
            assert not torch.allclose(compiled(input_ids=IDS).logits, clean)
        assert len(counted) == before
        torch.testing.assert_close(compiled(input_ids=IDS).logits, clean)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda tensor, _where: tensor[:, :, :2],
            r"returned \[2, 4, 2, 8\], torch.float32, cpu for v of layer 1, heads 1-4",
        ),
        (lambda tensor, _where: tensor.double(), "returned .*torch.float64"),
        (lambda tensor, _where: tensor.mean(), r"returned \[\], torch.float32, cpu"),
        (lambda _tensor, _where: None, "returned NoneType"),
    ],
)
def test_what_a_function_returns_is_like_what_it_was_given(gpt, function, words):
    with pytest.raises(ModelError, match=words) as error, trisect.edit(gpt, {"v@1": function}) as model:
        model(input_ids=IDS)
    assert "[2, 4, 6, 8], torch.float32, cpu" in error.value.reason
    assert gpt.model not in EDITABLE_MODELS


def test_a_function_may_write_into_what_it_is_given(gpt):
    def wipe(tensor, _where):
        tensor.zero_()
        return tensor

    results = []
    for function in (wipe, nothing):
        with trisect.edit(gpt, {"v@1": function}) as model:
            results.append(answer(model, {"input_ids": IDS}))
    assert torch.equal(*results)


def test_a_site_that_was_not_reached_is_refused(gpt, bart):
    with pytest.raises(ModelError, match="No pass") as error, trisect.edit(gpt, {"v@2": halved}):
        pass
    assert "The edit of v@2 by halved was not made." in str(error.value)
    with (
        pytest.raises(ModelError, match=r"No pass in this thread of .* layer 2"),
        trisect.edit(gpt, {"v@2": halved}) as model,
    ):
        model.transformer.h[0](torch.zeros(1, 3, tinyhf.WIDTH))
    given = bart.model.get_encoder()(input_ids=IDS)
    with pytest.raises(ModelError, match="enc layer 1"), trisect.edit(bart, {"enc.v@1": halved}) as model:
        model(encoder_outputs=given, decoder_input_ids=IDS[:, :3])
    with trisect.edit(bart, {"enc.v@1": halved}) as model:
        given = model.get_encoder()(input_ids=IDS)
        model(encoder_outputs=given, decoder_input_ids=IDS[:, :3])


def test_a_failing_pass_that_is_caught_reaches_no_site(gpt):
    def fails(_tensor, _where):
        raise RuntimeError("no")

    inputs = {"input_ids": IDS}
    for call in (lambda: answer(gpt.model, inputs), lambda: gpt.predict(inputs)):
        with (
            pytest.raises(ModelError, match=r"No pass .* layer 1"),
            trisect.edit(gpt, {"k@1": fails, "v@1": same}),
            pytest.raises(RuntimeError),
        ):
            call()
    with trisect.edit(gpt, {"v@1": same}) as model:
        answer(model, inputs)


def test_a_part_of_a_model_that_attends_in_pieces_is_refused():
    subject: Any = load(zoo.build("longformer"), tinyhf.tokenizer())
    with trisect.edit(subject, {"v@2": nothing}) as model:
        answer(model, {"input_ids": IDS})
        for call in (model.forward, model.longformer):
            with pytest.raises(ModelError, match="call the model itself"):
                call(input_ids=IDS)


@pytest.fixture(scope="module")
def own():
    words = tiny.corpus().vocabulary
    flat = initial(tiny.MODEL, len(words), 1).double()
    return OwnModel("own", tiny.MODEL, dict(views(flat[None], layout(tiny.MODEL, len(words)))), words, 12)


def test_a_model_of_a_study_runs_with_functions_in_every_pass(own):
    text = " ".join(own.vocabulary[5:12])
    (batch,) = own.batches([text])
    clean = own.predict(batch.inputs)
    assert torch.equal(own.predict(batch.inputs, {"q+k+v@all": copied}), clean)
    zero = trisect.intervene(own, text, {"v@2.h1": "zero"}).after
    torch.testing.assert_close(own.predict(batch.inputs, {"v@2.h1": nothing})[0].float(), zero)
    with trisect.edit(own, {"v@2.h1": nothing}) as model:
        assert model is own
        assert torch.equal(own.outputs(batch), own.predict(batch.inputs))
        torch.testing.assert_close(own.outputs(batch)[0].float(), zero)
        assert own.read(text).traces[1].v[:, 0].eq(0).all()
        loss = own.score(batch).total
        assert own.notes == ("Measured with an edit: v@2.h1 by nothing.",)
        assert "Measured with an edit: v@2.h1 by nothing." in own.read(text).notes
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append(own.predict(batch.inputs)))
        thread.start()
        thread.join()
        assert torch.equal(seen[0], clean)
    assert torch.equal(loss, own.score(batch, own.shape.writers({"v@2.h1": nothing})).total)
    assert torch.equal(own.predict(batch.inputs), clean)
    assert own.notes == ()
    more = lambda tensor, _where: tensor + 1  # noqa: E731
    with trisect.edit(own, {"v@1": more}), trisect.edit(own, {"v@1": halved}):
        both = own.predict(batch.inputs)
    torch.testing.assert_close(both, own.predict(batch.inputs, {"v@1": lambda tensor, _where: 0.5 * (tensor + 1)}))


def test_an_edit_of_a_study_s_model_that_no_pass_made_is_refused(own):
    (batch,) = own.batches([" ".join(own.vocabulary[5:9])])

    def fails(_tensor, _where):
        raise RuntimeError("no")

    with pytest.raises(ModelError, match=r"The edit of v@1 by halved was not made"), trisect.edit(own, {"v@1": halved}):
        pass
    with (
        pytest.raises(ModelError, match="was not made"),
        trisect.edit(own, {"v@1": fails}),
        pytest.raises(RuntimeError),
    ):
        own.score(batch)
    with pytest.raises(ModelError, match="was given nothing"):
        own.predict({})
    assert own.notes == ()


@pytest.mark.parametrize(
    ("edits", "kind"),
    [
        ({}, SpecError),
        ({"v@3": halved}, SiteError),
        ({"o@1": halved}, SiteError),
        ({"v@1": "zero"}, SpecError),
        ({"v@1": lambda tensor: tensor}, SpecError),
    ],
)
def test_what_cannot_be_edited_is_said_before_anything_runs(gpt, edits, kind):
    with pytest.raises(kind) as error, trisect.edit(gpt, edits):
        raise AssertionError
    assert error.value.todo
    assert gpt.model not in EDITABLE_MODELS


@pytest.mark.parametrize("kind", ["gpt2", "bloom", "longformer"])
def test_a_function_that_runs_the_edited_model_is_refused(kind):
    subject: Any = load(zoo.build(kind), tinyhf.tokenizer(False))
    inputs = next(subject.batches(["w1 w2 w3 w4"])).inputs
    other: Any = load(zoo.build(kind), tinyhf.tokenizer(False))
    for run in (lambda: subject.model(**inputs), lambda: subject.read(inputs)):
        calls = lambda tensor, _where, run=run: (run(), 0.5 * tensor)[1]  # noqa: E731
        with pytest.raises(ModelError, match="runs the edited model"), trisect.edit(subject, {"v@2": calls}) as model:
            answer(model, inputs)
        with pytest.raises(ModelError, match="runs the edited model"):
            subject.predict(inputs, {"v@2": calls})
    # a part of the model that does not attend may be used, and another model read
    if kind != "longformer":
        norm = subject.model.transformer.ln_f
        scaled = lambda tensor, _where: (norm(torch.ones(norm.weight.shape)), 0.5 * tensor)[1]  # noqa: E731
        assert torch.equal(subject.predict(inputs, {"v@2": scaled})[0], subject.predict(inputs, {"v@2": halved})[0])
    beside = lambda tensor, _where: (other.read(inputs), 0.5 * tensor)[1]  # noqa: E731
    assert torch.equal(subject.predict(inputs, {"v@2": beside})[0], subject.predict(inputs, {"v@2": halved})[0])
