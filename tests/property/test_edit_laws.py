"""Laws of ties, identities and narrow heads: each is the torch model that it says it is, alone and in any fleet."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from bench.plain import names, plain_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from trisect.core.edits import make_edit
from trisect.core.site import Site
from trisect.core.spec import Run
from trisect.lm.adversary import control_labels
from trisect.lm.edits import AttackEdit
from trisect.lm.feed import Windows
from trisect.lm.fleet import count_parameters, forward, initial, layout, views
from trisect.lm.train import RunFiles, Trainer, parameters_of, train_fleet
from trisect.text.corpus import steps as text_steps

CORPUS = tiny.corpus()
WORDS = len(CORPUS.vocabulary)
BASE = next(r for r in tiny.runs() if r.edit is None)
PLACES = layout(BASE.model, WORDS)
WIDE, HEADS = BASE.model.width, BASE.model.heads
ROWS = {c: slice(i * WIDE, (i + 1) * WIDE) for i, c in enumerate("qkv")}
OPTIMIZERS = [("adamw", 3e-3), ("sgd", 0.3)]

Weights = Mapping[str, torch.Tensor]  # in trisect's names
Build = Callable[[Weights], dict[str, torch.Tensor]]  # distinct parameters -> whole weights


def run(kind: str, place: str, width: int | None = None) -> Run:
    return replace(BASE, edit=make_edit(kind, Site.parse(place).resolve(2, 2), {"width": width}))


def attacked(place: str, variant: str) -> Run:
    return replace(BASE, edit=AttackEdit(Site.parse(place).resolve(2, 2), "pos", 1.0, variant))


def still(one: Run, optimizer: tuple[str, float]) -> Run:
    """Without dropout, whose masks torch draws otherwise; clipped often, and with decay."""
    training = replace(
        one.training, optimizer=optimizer[0], rate=optimizer[1], weight_decay=0.1, clip=0.5, warmup=4, decay=1.0
    )
    return replace(one, model=replace(one.model, dropout=0.0), training=training)


def trained(runs: list[Run], steps: int = 20, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    trainer = Trainer(runs, CORPUS, dtype=dtype)
    for _ in range(steps):
        trainer.step()
    return trainer.flat


def start() -> dict[str, torch.Tensor]:
    return {n: v[0].clone() for n, v in views(initial(BASE.model, WORDS, BASE.seed).double()[None], PLACES).items()}


def torch_trained(one: Run, distinct: Weights, build: Build, steps: int = 20) -> dict[str, torch.Tensor]:
    """Whole weights after training torch's own modules on distinct parameters, by torch's own clipping and optimiser."""
    model, training, theirs = plain_of(one.model, WORDS, start()), one.training, names(one.model, WORDS)
    leaves = {n: torch.nn.Parameter(v.clone()) for n, v in distinct.items()}
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    optimizer = kind(leaves.values(), lr=training.rate, weight_decay=training.weight_decay)
    count = text_steps(CORPUS.splits["train"], training.columns, training.window)
    windows = Windows(CORPUS, training, (), "cpu")
    for step in range(steps):
        piece = windows[step % count]
        weights = {theirs[n]: v for n, v in build(leaves).items()}
        logits = torch.func.functional_call(model, weights, piece.inputs)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), piece.targets).backward()
        torch.nn.utils.clip_grad_norm_(leaves.values(), training.clip)
        optimizer.param_groups[0]["lr"] = training.rate * min(1.0, (step + 1) / training.warmup)
        optimizer.step()
    return {n: v.detach() for n, v in build(leaves).items()}


def agree(one: Run, distinct: Weights, build: Build) -> None:
    """The member, trained beside a baseline, is the torch model; and has as many parameters."""
    ours = trained([replace(one, edit=None), one])
    expected = torch_trained(one, distinct, build)
    for name, value in views(ours, PLACES).items():
        # twenty steps of the same sums in another order
        torch.testing.assert_close(value[1], expected[name], rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    assert not torch.allclose(ours[0], ours[1], atol=1e-3)


def blocks(weights: Weights, layer: int) -> dict[str, torch.Tensor]:
    return {
        f"{layer}.{c}.{k}": weights[f"layers.{layer}.in.{k}"][r] for c, r in ROWS.items() for k in ("weight", "bias")
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("place", ["q+k@1", "k+v@all", "q+v@2", "q+k+v@all"])
def test_a_tied_member_is_a_torch_model_whose_projections_are_one_parameter(place, optimizer):
    one = still(run("tie", place), optimizer)
    assert one.edit is not None
    layers, shared = one.edit.site.layers or (), one.edit.site.components
    begun = start()
    distinct = {n: v for n, v in begun.items() if not any(n.startswith(f"layers.{i}.in") for i in layers)}
    owner = {c: shared[0] if c in shared else c for c in "qkv"}
    for n in layers:
        distinct |= {name: v for name, v in blocks(begun, n).items() if owner[name.split(".")[1]] == name.split(".")[1]}

    def build(leaves: Weights) -> dict[str, torch.Tensor]:
        whole = {n: v for n, v in leaves.items() if n in PLACES}
        for n in layers:
            for kind in ("weight", "bias"):
                whole[f"layers.{n}.in.{kind}"] = torch.cat([leaves[f"{n}.{owner[c]}.{kind}"] for c in "qkv"])
        return whole

    agree(one, distinct, build)
    assert parameters_of(one.model, WORDS, one.edit) == sum(v.numel() for v in distinct.values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("place", ["q@all", "v@2", "k@1"])
def test_an_identity_is_a_torch_model_without_that_projection(place, optimizer):
    one = still(run("identity", place), optimizer)
    assert one.edit is not None
    layers, gone = one.edit.site.layers or (), one.edit.site.components[0]
    begun = start()
    distinct = {n: v for n, v in begun.items() if not any(n.startswith(f"layers.{i}.in") for i in layers)}
    for n in layers:
        distinct |= {name: v for name, v in blocks(begun, n).items() if name.split(".")[1] != gone}
    fixed = {"weight": torch.eye(WIDE, dtype=torch.float64), "bias": torch.zeros(WIDE, dtype=torch.float64)}

    def build(leaves: Weights) -> dict[str, torch.Tensor]:
        whole = {n: v for n, v in leaves.items() if n in PLACES}
        for n in layers:
            for kind, value in fixed.items():
                parts = [value if c == gone else leaves[f"{n}.{c}.{kind}"] for c in "qkv"]
                whole[f"layers.{n}.in.{kind}"] = torch.cat(parts)
        return whole

    agree(one, distinct, build)
    assert parameters_of(one.model, WORDS, one.edit) == sum(v.numel() for v in distinct.values())


def test_an_identitys_representation_is_the_layers_input():
    own = views(trained([run("identity", "v@2")], 3), PLACES)
    inputs = torch.arange(12).view(2, 6)
    seen: list[torch.Tensor] = []
    reference = plain_of(replace(BASE.model, dropout=0.0), WORDS, {n: v[0] for n, v in own.items()})
    attention = reference.get_submodule("encoder.layers.1.self_attn")
    attention.register_forward_hook(lambda _, given, keywords, __: seen.append(given[0]), with_kwargs=True)
    reference.train()(inputs)
    v = forward(own, inputs, BASE.model, blocks=[("qkv", 2)]).blocks["qkv", 2][0, ..., ROWS["v"]]
    torch.testing.assert_close(v, seen[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("place", "width"), [("q+k+v@all", 1), ("q+k+v@2", 3)])
def test_a_narrow_member_is_a_torch_model_with_masked_weights(place, width, optimizer):
    one = still(run("narrow", place, width=width), optimizer)
    assert one.edit is not None
    kept = (torch.arange(WIDE) % (WIDE // HEADS) < width).double()
    masks = {n: torch.ones_like(v) for n, v in start().items()}
    for n in one.edit.site.layers or ():
        masks[f"layers.{n}.in.weight"] *= kept.repeat(3)[:, None]
        masks[f"layers.{n}.in.bias"] *= kept.repeat(3)
        masks[f"layers.{n}.out.weight"] *= kept[None]
    agree(one, start(), lambda leaves: {n: v * masks[n] for n, v in leaves.items()})
    assert parameters_of(one.model, WORDS, one.edit) == int(sum(m.sum() for m in masks.values()))


EDITED = [
    BASE,
    run("tie", "q+k+v@all"),
    run("tie", "q+v@1.h2"),
    run("identity", "q@all"),
    run("narrow", "q+k+v@all", width=2),
    run("freeze", "k@1"),
    attacked("k@2", "plain"),
    attacked("q@1", "control"),
    attacked("k@2", "bounded"),
    attacked("q+v@1-2", "site"),
    attacked("k@1", "bounded+site"),
    attacked("q@1.h2", "plain"),
    attacked("attn@2", "plain"),
    attacked("o@1", "plain"),
    attacked("ffn@1", "site"),
    run("freeze", "o@2.h1"),
    run("freeze", "ffn@all"),
]


@settings(max_examples=2, deadline=None)
@given(st.permutations(range(len(EDITED))), st.sampled_from(OPTIMIZERS))
def test_a_member_trained_alone_and_in_any_fleet_agrees_whatever_the_edits(order, optimizer):
    training = replace(BASE.training, optimizer=optimizer[0], rate=optimizer[1] / 3, weight_decay=0.1)
    runs = [replace(EDITED[i], training=training) for i in order]
    together = trained(runs, 10)
    for slot in (0, 4, len(runs) - 1):
        # an attack multiplies rounding, which differs between products of many members and of one
        torch.testing.assert_close(together[slot], trained([runs[slot]], 10)[0], rtol=1e-9, atol=1e-9)


def test_a_fleet_of_all_edits_goes_on_from_a_snapshot_to_the_same_bits(tmp_path):
    trainer, again = Trainer(EDITED, CORPUS), Trainer(EDITED, CORPUS)
    trainer.step()
    trainer.save(tmp_path / "x", None)
    again.load(tmp_path / "x")
    for t in (trainer, again):
        t.step()
        t.step()
    assert torch.equal(trainer.flat, again.flat)
    assert trainer.evaluate() == again.evaluate()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_an_accelerator_edits_of_all_kinds_train_as_on_a_cpu():
    """Without dropout, whose masks each device draws otherwise; in float64."""
    runs = [still(one, OPTIMIZERS[1]) for one in EDITED]
    here, there = (Trainer(runs, CORPUS, device, dtype=torch.float64) for device in ("cpu", "cuda"))
    for _ in range(5):
        here.step()
        there.step()
    torch.testing.assert_close(there.flat.cpu(), here.flat, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_tied_stays_equal_to_the_bit_and_starts_as_its_first_component(optimizer):
    training = replace(BASE.training, optimizer=optimizer[0], rate=optimizer[1], weight_decay=0.1)
    runs = [replace(one, training=training) for one in EDITED[:3]]
    begun = views(initial(BASE.model, WORDS, BASE.seed)[None], PLACES)
    for steps in (0, 5):
        own = views(trained(runs, steps, torch.float32), PLACES)
        each = WIDE // HEADS
        for name in ("layers.1.in.weight", "layers.1.in.bias", "layers.2.in.weight"):
            base, tied, head = own[name].view(3, 3, HEADS, each, -1)
            assert torch.equal(tied[0], tied[1])
            assert torch.equal(tied[0], tied[2])
            if name.startswith("layers.1"):
                assert torch.equal(head[0, 1], head[2, 1])
                assert steps == 0 or not torch.equal(head[0, 0], head[2, 0])
            if steps == 0:
                assert torch.equal(tied[0], begun[name].view(3, HEADS, each, -1)[0])
            else:
                assert not torch.equal(tied[0], base[0])


def test_counts_of_parameters_by_hand():
    whole, square = count_parameters(BASE.model, WORDS), WIDE * WIDE + WIDE
    assert parameters_of(BASE.model, WORDS) == whole
    for edited, without in (
        (run("tie", "q+k+v@all"), 4 * square),
        (run("tie", "q+k@1.h1"), square // HEADS),
        (run("identity", "v@all"), 2 * square),
        (run("freeze", "q+k@2"), 2 * square),
        (attacked("q@1", "plain"), 0),
    ):
        assert parameters_of(BASE.model, WORDS, edited.edit) == whole - without
    narrow = run("narrow", "q+k+v@1", width=3)  # of 4 dimensions a head: a quarter of q, k, v and of W_O's columns goes
    assert parameters_of(BASE.model, WORDS, narrow.edit) == whole - (3 * square + WIDE * WIDE) // 4


def test_the_distance_of_control_labels_is_a_row_of_epoch_0_of_those_attacks_alone(tmp_path):
    runs = [attacked("q@1", variant) for variant in ("plain", "control", "bounded", "site")]
    outcomes = train_fleet(runs, CORPUS, RunFiles(tmp_path / "checkpoint", {}))
    distance = control_labels(CORPUS, "pos", BASE.seed)[1]
    for one, outcome in zip(runs, outcomes, strict=True):
        found = [row for row in outcome.rows if row[2] == "control_distance"]
        assert one.edit is not None
        assert found == (
            [(0, "train", "control_distance", distance)] if one.edit.setting("variant") == "control" else []
        )
        names = {(epoch, split) for epoch, split, name, _ in outcome.rows if name == "adversary_accuracy"}
        assert {(2, "train"), (2, "valid"), (2, "train_running")} <= names
        assert outcome.status == "finished"


def test_a_fleet_of_edits_that_was_stopped_ends_as_if_it_had_not_been(tmp_path):
    runs = [BASE, run("tie", "q+k+v@all"), run("identity", "q@all"), run("narrow", "q+k+v@all", 2)]
    whole = train_fleet(runs, CORPUS, RunFiles(tmp_path / "a", {}))

    class StoppedError(Exception):
        pass

    def stop(progress):
        if progress.epoch == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_fleet(runs, CORPUS, RunFiles(tmp_path / "b", {}), progress=stop)
    again = train_fleet(runs, CORPUS, RunFiles(tmp_path / "b", {}))
    for one, other in zip(whole, again, strict=True):
        assert one.rows == other.rows
        assert all(one.final[name].equal(other.final[name]) for name in one.final)
    assert len({str(outcome.rows) for outcome in whole}) == len(runs)
