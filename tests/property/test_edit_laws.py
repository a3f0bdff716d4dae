"""Laws of ties, identities, narrow heads, attacks and freezing: each is the torch model that it says, in any fleet."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from bench.plain import names, plain_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr
from tests import tiny

from trisect.core.edits import make_edit
from trisect.core.errors import CorpusError, SpecError
from trisect.core.site import Site
from trisect.core.spec import Run
from trisect.lm import adversary
from trisect.lm.adversary import MAX_DISTANCE, _divergence, _Weighted, control_labels
from trisect.lm.edits import AttackEdit, FreezeEdit
from trisect.lm.feed import Windows, evaluation_pieces
from trisect.lm.fleet import (
    Dropout,
    Representations,
    blocks_of,
    forward,
    generator,
    initial,
    layout,
    mark,
    representation,
    views,
    width_of,
)
from trisect.lm.rewind import blend, evaluate_variants, parts_of
from trisect.lm.train import RunFiles, Trainer, parameters_of, train_fleet
from trisect.text.corpus import Corpus, Split
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


@settings(max_examples=2)
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


CLASSES = len(CORPUS.column("pos"))
MODEL = BASE.model
WIDE_MODEL, EACH = MODEL.width, MODEL.width // MODEL.heads
HEAD_PLACES = layout(MODEL, WORDS)
PIECES = evaluation_pieces(CORPUS, tiny.TRAINING, "valid", (), "cpu")
SITES = ["q@1.h2", "k+v@2.h1", "o@1", "o@2.h1", "attn@2", "ffn@1", "q+o@1-2.h2", "k+ffn@1-2", "attn+ffn@all"]


def place(text: str) -> Site:
    return Site.parse(text).resolve(MODEL.layers, MODEL.heads)


def attack(text: str, variant: str = "plain", strength: float = 1.0) -> Run:
    return replace(BASE, edit=AttackEdit(place(text), "pos", strength, variant))


def moved_off(seed: int) -> torch.Tensor:
    flat = initial(MODEL, WORDS, seed).double()
    return flat + 0.2 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bare(flat: torch.Tensor) -> dict[str, torch.Tensor]:
    return {n: v[0] for n, v in views(flat[None], HEAD_PLACES).items()}


def weights_by_hand(text: str) -> set[str]:
    """The site's entries, as 'name[row,column]', written down from what the words mean."""
    found, site = set(), place(text)
    heads = [h - 1 for h in site.heads or range(1, MODEL.heads + 1)]
    dims = [h * EACH + e for h in heads for e in range(EACH)]
    for part in site.parts():
        component, layer = part.components[0], f"layers.{(part.layers or (0,))[0]}"
        if component in "qkv":
            rows = ["qkv".index(component) * WIDE_MODEL + d for d in dims]
            found |= {f"{layer}.in.weight[{r},{c}]" for r in rows for c in range(WIDE_MODEL)}
            found |= {f"{layer}.in.bias[{r}]" for r in rows}
        elif component == "o":
            found |= {f"{layer}.out.weight[{r},{c}]" for r in range(WIDE_MODEL) for c in dims}
            found |= set() if site.heads else {f"{layer}.out.bias[{r}]" for r in range(WIDE_MODEL)}
        else:
            for name in ("in", "out") if component == "attn" else ("up", "down"):
                rows, columns = HEAD_PLACES[f"{layer}.{name}.weight"].shape
                found |= {f"{layer}.{name}.weight[{r},{c}]" for r in range(rows) for c in range(columns)}
                found |= {f"{layer}.{name}.bias[{r}]" for r in range(rows)}
    return found


@pytest.mark.parametrize("text", [*SITES, "q+v@1-2"])
def test_the_weights_of_a_site_are_those_that_its_words_name(text):
    own, found = views(mark(place(text), MODEL, HEAD_PLACES)[None], HEAD_PLACES), set()
    for name, marks in own.items():
        for index in marks[0].nonzero().tolist():
            found.add(f"{name}[{','.join(map(str, index))}]")
    assert found == weights_by_hand(text)


def hooked(layer: int, inputs: torch.Tensor, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A layer's blocks as torch's own modules compute them: what enters out_proj and what leaves both blocks."""
    model, seen = plain_of(MODEL, WORDS, weights), {}
    model.train()  # torch's fused path skips the submodules; dropout is 0 here
    own = f"encoder.layers.{layer - 1}"
    attention = model.get_submodule(f"{own}.self_attn")
    attention.register_forward_hook(lambda _, __, out: seen.update(attn=out[0]))
    model.get_submodule(f"{own}.linear2").register_forward_hook(lambda _, __, out: seen.update(ffn=out))
    model(inputs)
    out = {kind: weights[f"layers.{layer}.out.{kind}"] for kind in ("weight", "bias")}
    seen["o"] = torch.linalg.solve(out["weight"], (seen["attn"] - out["bias"])[..., None])[..., 0]
    return seen


@pytest.mark.parametrize("layer", [1, 2])
def test_representations_are_what_torchs_own_modules_pass_on(layer):
    flat, inputs = moved_off(3), torch.arange(14).view(2, 7)
    passed = forward(views(flat[None], HEAD_PLACES), inputs, MODEL, blocks=[(b, layer) for b in ("o", "attn", "ffn")])
    theirs = hooked(layer, inputs, bare(flat))
    for block in ("o", "attn", "ffn"):
        # o is found by solving W_O x = y, which loses digits with W_O's condition
        torch.testing.assert_close(passed.blocks[block, layer][0], theirs[block], rtol=1e-7, atol=1e-8)
    head = representation(passed.blocks, 0, place(f"o@{layer}.h2"), MODEL)
    assert torch.equal(head, passed.blocks["o", layer][0, ..., EACH : 2 * EACH].flatten(0, 1).T)


@settings(max_examples=20)
@given(st.sampled_from(SITES), st.integers(0, 99))
def test_pushing_is_the_transpose_of_reading(text, seed):
    site, draw = place(text), torch.Generator().manual_seed(seed)
    shapes = {block: 3 * WIDE_MODEL if block[0] == "qkv" else WIDE_MODEL for block in blocks_of([site], MODEL)}
    kept = {b: torch.randn(2, 3, 4, wide, generator=draw, dtype=torch.float64) for b, wide in shapes.items()}
    x = representation(kept, 1, site, MODEL)
    assert x.shape == (width_of(site, MODEL), 12)
    y = torch.randn(x.shape, generator=draw, dtype=torch.float64)
    into = {block: torch.zeros_like(value) for block, value in kept.items()}
    Representations([(1, site)], MODEL, "cpu").add(y[None], into)
    inner = sum(float((kept[block] * into[block]).sum()) for block in kept)
    assert inner == pytest.approx(float((x * y).sum()), rel=1e-10, abs=1e-10)
    assert all(not value[0].any() for value in into.values())


@settings(max_examples=40)
@given(st.permutations([0, 1, 2, 3]), st.permutations(["q@1", "v@2", "o@2", "q+k@1.h2", "v@1-2.h1", "k@2", "attn@1"]))
def test_representations_read_together_are_those_read_alone(slots, texts):
    sites = [place(text) for text in texts[:4]]
    blocks = blocks_of(sites, MODEL)
    kept = {b: torch.randn(4, 3, 5, 3 * WIDE_MODEL if b[0] == "qkv" else WIDE_MODEL) for b in blocks}
    together = Representations(list(zip(slots, sites, strict=True)), MODEL, "cpu")
    alone = [representation(kept, slot, site, MODEL) for slot, site in zip(slots, sites, strict=True)]
    assert torch.equal(together.read(kept), torch.stack(alone))
    into = {block: value.clone() for block, value in kept.items()}
    together.add(together.read(kept), into)
    added = {block: into[block] - kept[block] for block in kept}
    assert torch.equal(together.read(added), torch.stack(alone) * 2 - torch.stack(alone))
    assert sum(int((value != 0).sum()) for value in added.values()) == together.read(added).numel()


def gradient_by_autograd(trainer: Trainer, slot: int) -> torch.Tensor:
    """d(loss_lm - λ·loss_adv)/dθ straight through the attacker, held still."""
    piece = trainer.windows[0]
    (group,) = (g for g in tiny.attackers_of(trainer) if slot in g.slots)
    i = group.slots.index(slot)
    site, flat = group.sites[i], trainer.flat[slot : slot + 1].clone().requires_grad_()
    leaves = views(flat, trainer.places)
    drop = Dropout(MODEL.dropout, generator("dropout", trainer.seed, 0))
    passed = forward(leaves, piece.inputs, MODEL, drop, blocks=blocks_of([site], MODEL))
    logits = passed.hidden[0].flatten(0, 1) @ leaves["decoder.weight"][0].T + leaves["decoder.bias"][0]
    loss = torch.nn.functional.cross_entropy(logits, piece.targets)
    x, y = representation(passed.blocks, 0, site, MODEL).T, piece.labels["pos"]
    p = {n: v[i].detach() for n, v in views(group.flat, group.places).items()}
    for n in range(1, 5):
        x = torch.nn.functional.leaky_relu(x @ p[f"{n}.weight"].T + p[f"{n}.bias"], 0.01)
        x = torch.nn.functional.batch_norm(x, None, None, p[f"{n}.scale"], p[f"{n}.shift"], training=True)
    adversary = torch.nn.functional.cross_entropy((x @ p["5.weight"].T + p["5.bias"])[y >= 0], y[y >= 0])
    loss = loss - group.strength[i] * adversary
    return torch.autograd.grad(loss, flat)[0][0]


def plainly(*runs: Run) -> Trainer:
    training = replace(BASE.training, optimizer="sgd", rate=1.0, warmup=0, clip=1e9)
    return Trainer([replace(r, training=training) for r in runs], CORPUS, dtype=torch.float64)


def moved(trainer: Trainer) -> torch.Tensor:
    before = trainer.flat.clone()
    trainer.step()
    return trainer.flat - before


def marked(text: str) -> torch.Tensor:
    return mark(place(text), MODEL, HEAD_PLACES)


def test_adversaries_normalise_over_a_batch_as_pytorch_does():
    assert (torch.nn.BatchNorm1d(1).momentum, torch.nn.BatchNorm1d(1).eps) == (adversary.MOMENTUM, adversary.EPSILON)


@pytest.mark.parametrize("texts", [SITES[:5], [*SITES[5:], "q+v@1-2"]])
def test_an_attack_anywhere_follows_loss_lm_minus_lambda_loss_adversary(texts):
    strengths = (1.0, 0.3, 10.0, 1.0, 3.0)
    trainer = plainly(*(attack(text, "plain", s) for text, s in zip(texts, strengths, strict=True)))
    before = trainer.flat.clone()
    steps = moved(trainer)  # attackers are updated first, so the gradient below is taken against the updated ones
    trainer.flat.copy_(before)
    for slot in range(len(texts)):
        torch.testing.assert_close(steps[slot], -gradient_by_autograd(trainer, slot), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("optimizer", [("adamw", 3e-3), ("sgd", 0.1)])
def test_freezing_anywhere_keeps_the_sites_bits_and_moves_everything_else(optimizer):
    training = replace(BASE.training, optimizer=optimizer[0], rate=optimizer[1], weight_decay=0.1)
    sites = [*SITES, "q+v@1-2", "v@all"]
    frozen = [replace(BASE, edit=FreezeEdit(place(text)), training=training) for text in sites]
    trainer = Trainer([replace(BASE, training=training), *frozen], CORPUS)
    start = initial(MODEL, WORDS, BASE.seed)
    for _ in range(3):
        trainer.step()
    for own, text in zip(trainer.flat[1:], sites, strict=True):
        marks = marked(text)
        assert torch.equal(own[marks], start[marks])
        assert not torch.equal(trainer.flat[0][marks], start[marks])  # first it was there, then it is gone
        named = views(marks[None], HEAD_PLACES)
        for name, value in views(own[None], HEAD_PLACES).items():
            if not named[name].all():
                free = ~named[name]
                assert not torch.equal(value[free], views(start[None], HEAD_PLACES)[name][free]), (text, name)


def test_parts_are_the_matrices_that_rewinding_needs_and_their_lack_is_said():
    assert parts_of([place("q@1.h2"), place("v@all")], MODEL) == ("in",)
    assert parts_of([place("o@1.h1")], MODEL) == ("out",)
    assert parts_of([place("attn@1"), place("ffn@2")], MODEL) == ("in", "out", "up", "down")
    last = bare(moved_off(2))
    final, kept = {n: v[None] for n, v in last.items()}, {n: v for n, v in last.items() if ".in." in n}
    with pytest.raises(SpecError, match=r"(?s)'o@2\.h1' .*layers\.2\.out\.weight .*The run kept only in\."):
        evaluate_variants(final, MODEL, PIECES, place("o@2.h1"), blend(kept, last, [0.0]))


def test_a_baseline_keeps_of_every_epoch_the_parts_that_it_is_asked_for(tmp_path):
    training = replace(BASE.training, epochs=1)
    train_fleet(
        [replace(BASE, training=training)], CORPUS, RunFiles(tmp_path / "c", {0: tmp_path / "all"}, ("in", "down"))
    )
    from trisect.lm.snapshots import read_snapshot

    found = read_snapshot(tmp_path / "all" / "0001.safetensors", "")[0]
    assert set(found) == {f"layers.{n}.{m}.{k}" for n in (1, 2) for m in ("in", "down") for k in ("weight", "bias")}


texts = st.integers(0, 10_000).flatmap(
    lambda seed: st.tuples(st.just(seed), st.integers(2, 6), st.integers(40, 120), st.integers(0, 3))
)


def text_of(seed: int, classes: int, words: int, unlabelled: int) -> Corpus:
    """Words with Zipf's frequencies; every third of the last types has no label where `unlabelled` says so."""
    draw = np.random.default_rng(seed)
    share = 1 / np.arange(3, words + 3)
    tokens = draw.choice(words, 3_000, p=share / share.sum()).astype(np.int32)
    labels = draw.choice(classes, 3_000, p=draw.dirichlet(np.full(classes, 5.0))).astype(np.int16)
    labels[(tokens % 3 == 0) & (tokens >= words - 10 * unlabelled)] = -1
    whole = Split(tokens, {"kind": labels})
    names = {"kind": tuple(f"c{i}" for i in range(classes))}
    return Corpus.make("drawn", tuple(f"w{i}" for i in range(words)), names, {"train": whole, "valid": whole})


@settings(max_examples=25)
@given(texts, st.integers(0, 5))
def test_control_labels_are_as_frequent_as_reported_and_close_to_the_prior(parts, seed):
    corpus = text_of(*parts)
    tokens, labels = corpus.splits["train"].tokens, corpus.splits["train"].labels["kind"]
    assume(len(np.unique(labels[labels >= 0])) > 1)
    chance, classes = control_labels(corpus, "kind", seed), len(corpus.column("kind"))
    assert chance[0].shape == (len(corpus.vocabulary),)
    seen = [label for token, label in zip(tokens, labels, strict=True) if label >= 0]
    given_ = [chance[0][token] for token, label in zip(tokens, labels, strict=True) if label >= 0]
    shares = [np.bincount(x, minlength=classes) / len(seen) for x in (seen, given_)]
    distance = sum(max(0.0, a - b) for a, b in zip(*shares, strict=True))
    assert chance[1] == pytest.approx(distance, abs=1e-12)
    assert chance[1] < MAX_DISTANCE == 0.05
    again = control_labels(corpus, "kind", seed)
    assert np.array_equal(again[0], chance[0])
    assert again[1] == chance[1]


def test_control_labels_are_a_function_of_seed_and_column():
    found = [control_labels(CORPUS, c, s)[0] for c, s in [("pos", 1), ("pos", 2), ("dep", 1)]]
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], np.minimum(found[2], CLASSES - 1))


def test_control_labels_tell_nothing_of_the_true_ones():
    """Over seeds, a type's control label equals its most frequent true label as often as chance would have it."""
    tokens, labels = CORPUS.splits["train"].tokens, CORPUS.splits["train"].labels["pos"]
    words = [w for w in range(len(CORPUS.vocabulary)) if ((tokens == w) & (labels >= 0)).sum() in range(1, 6)]
    usual = np.array([np.bincount(labels[(tokens == w) & (labels >= 0)]).argmax() for w in words])
    hits = [np.mean(control_labels(CORPUS, "pos", seed)[0][words] == usual) for seed in range(60)]
    expected = (np.bincount(labels[labels >= 0]) / (labels >= 0).sum())[usual].mean()
    spread = np.std(hits, ddof=1) / np.sqrt(len(hits))
    assert abs(np.mean(hits) - expected) < 4 * spread + 0.01  # redrawn types are a little off the prior


def test_control_labels_that_cannot_be_close_are_refused(monkeypatch):
    monkeypatch.setattr(adversary, "ROUNDS", 3)
    tokens = np.array([0] * 90 + [1] * 10, np.int32)
    part = Split(tokens, {"kind": np.array([0, 1] * 50, np.int16)})
    corpus = Corpus.make("monotone", ("the", "end"), {"kind": ("a", "b")}, {"train": part, "valid": part})
    with pytest.raises(CorpusError, match=r"(?s)'kind' of 'monotone'.* 0\.40, .*'the' alone is 90\u00a0%.*'control'"):
        control_labels(corpus, "kind", 1)


def test_an_attacker_on_control_labels_is_asked_for_those_of_the_next_words_type():
    trainer = Trainer([attack("q@1", "control"), attack("q@1")], CORPUS)
    chance = control_labels(CORPUS, "pos", BASE.seed)
    group, plain = tiny.attackers_of(trainer)
    for window in range(3):
        piece = trainer.windows[window]
        true = piece.labels["pos"].clone()
        true[::5] = -1
        y = group.answers(piece.targets, {"pos": true})
        assert torch.equal(plain.answers(piece.targets, {"pos": true}), true)
        assert torch.equal(y < 0, true < 0)
        for word, label in zip(piece.targets.tolist(), y.tolist(), strict=True):
            assert label in (-1, int(chance[0][word]))
    assert trainer.start_rows() == {0: [("train", "control_distance", chance[1])]}


def test_the_attacked_model_follows_the_control_labels_and_not_the_true_ones():
    """The same text with its labels replaced by the control labels, plainly attacked, trains the same member."""
    chance = control_labels(CORPUS, "pos", BASE.seed)

    def relabelled(part: Split) -> Split:
        return Split(part.tokens, {"pos": chance[0][part.tokens].astype(np.int16)})

    parts = {name: relabelled(part) for name, part in CORPUS.splits.items()}
    other = Corpus.make("other", CORPUS.vocabulary, {"pos": CORPUS.labels["pos"]}, parts)
    one, two = (
        Trainer([attack("k@2", "control")], CORPUS, dtype=torch.float64),
        Trainer([attack("k@2")], other, dtype=torch.float64),
    )
    assert (CORPUS.splits["train"].labels["pos"] >= 0).all()
    for _ in range(3):
        one.step()
        two.step()
    assert torch.equal(one.flat, two.flat)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 8), st.floats(0.01, 20), st.booleans())
def test_the_bounded_loss_is_never_below_zero_and_zero_at_the_prior(seed, classes, scale, empty):
    draw = torch.Generator().manual_seed(seed)
    prior = torch.rand(classes, generator=draw, dtype=torch.float64) + 0.01
    prior[0] *= not empty or classes == 2  # a class that no train token has
    prior /= prior.sum()
    logits = scale * torch.randn(2, classes, 5, generator=draw, dtype=torch.float64)
    found = _divergence(logits, prior)
    assert float(found.min()) >= -1e-12
    expected = rel_entr(prior[None, :, None].numpy(), torch.softmax(logits, 1).numpy()).sum(1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
    at = prior.clamp_min(1e-30).log()[None, :, None].expand(2, -1, 5).clone().requires_grad_()
    least = _divergence(at, prior)
    assert float(least.detach().abs().max()) < 1e-12
    assert float(torch.autograd.grad(least.sum(), at)[0].abs().max()) < 1e-12


@pytest.mark.parametrize("variant", ["bounded", "bounded+site", "control+bounded"])
def test_a_bounded_attack_pushes_nothing_where_its_adversary_outputs_the_prior_and_towards_it_elsewhere(variant):
    trainer = plainly(attack("k@2", variant, 3.0), attack("q@1", variant, 3.0))
    (group,) = tiny.attackers_of(trainer)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, trainer.model.width, 60, generator=draw, dtype=torch.float64)
    y = torch.arange(60) % CLASSES
    y[:7] = -1

    def loss(at: torch.Tensor) -> torch.Tensor:
        logits = group._logits(views(group.flat, group.places), _Weighted(at[..., 7:], y[7:], None), "judge")
        return _divergence(logits, group.prior).mean(1)

    push = group.gradient(x, y)
    assert torch.equal(push[..., :7], torch.zeros_like(push[..., :7]))
    step = 1e-6 * torch.randn(x.shape, generator=draw, dtype=torch.float64)
    # central differences in float64: an error of the square of the step
    slope = (loss(x + step) - loss(x - step)) / 2
    torch.testing.assert_close(3.0 * slope, (push * step).sum((1, 2)), rtol=1e-5, atol=1e-13)
    assert bool((loss(x - 0.01 * push / push.norm()) < loss(x)).all())
    weights = views(group.flat, group.places)
    weights["5.weight"].zero_()
    weights["5.bias"].copy_(group.prior.clamp_min(1e-30).log())
    assert float(loss(x).abs().max()) < 1e-12
    assert float(group.gradient(x, y).abs().max()) < 1e-12


def test_attackers_of_plain_bounded_and_site_attacks_learn_the_same_labels():
    trainer = plainly(*(attack("k@2", variant) for variant in ("plain", "bounded", "site", "bounded+site")))
    trainer.step()
    one, *others = (group.flat for group in tiny.attackers_of(trainer))
    for other in others:
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


CONFINED = {
    "plain": "site",
    "bounded": "bounded+site",
    "control": "control+site",
    "control+bounded": "control+bounded+site",
}


# site -> what makes its representation
REACH = {text: text for text in ("q@1", "k@2", "q+v@2", "v@2.h2", "attn@2", "ffn@2")}
REACH |= {"o@2": "q+k+v@2", "o@2.h1": "q+k+v@2"}


@pytest.mark.parametrize(
    ("text", "variant"), [*((text, "plain") for text in REACH), *(("q+v@2", variant) for variant in CONFINED)]
)
def test_a_site_attack_trains_what_makes_its_representation_as_that_without_and_all_else_by_the_language_loss(
    text, variant
):
    trainer = plainly(BASE, attack(text, variant), attack(text, CONFINED[variant]))
    base, plain, site = moved(trainer)
    marks = marked(REACH[text])
    torch.testing.assert_close(site[~marks], base[~marks], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(site[marks], plain[marks], rtol=1e-9, atol=1e-12)
    least = 1e-3 if "bounded" not in variant else 1e-5  # a fresh adversary's output is close to the prior
    assert float((site[marks] - base[marks]).norm()) > least * float(base[marks].norm())
    # what the attack does besides, below its site
    assert float((plain[~marks] - base[~marks]).norm()) > least * float(base[~marks].norm())


def test_the_prior_of_a_bounded_attack_on_control_labels_is_theirs():
    trainer = Trainer([attack("q@1", "control+bounded"), attack("q@1", "bounded")], CORPUS, dtype=torch.float64)
    drawn, true = tiny.attackers_of(trainer)
    split = CORPUS.splits["train"]
    chance = control_labels(CORPUS, "pos", BASE.seed)[0][split.tokens]
    for group, of in ((drawn, chance), (true, split.labels["pos"])):
        labels = of[split.labels["pos"] >= 0].tolist()
        counted = [sum(label == c for label in labels) / len(labels) for c in range(CLASSES)]
        np.testing.assert_allclose(group.prior.numpy(), counted, rtol=0, atol=1e-12)
    assert 0 < float((drawn.prior - true.prior).abs().sum()) / 2 < MAX_DISTANCE


def test_a_site_attack_of_several_layers_trains_each_by_its_own_part_of_the_gradient():
    trainer = plainly(BASE, attack("q+v@1-2"), attack("q+v@1-2", "site"))
    base, plain, site = moved(trainer)
    upper, whole = marked("q+v@2"), marked("q+v@1-2")
    torch.testing.assert_close(site[~whole], base[~whole], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(site[upper], plain[upper], rtol=1e-10, atol=1e-13)
    lower = whole & ~upper
    assert not torch.allclose(site[lower], plain[lower], rtol=1e-3)
    assert not torch.allclose(site[lower], base[lower], rtol=1e-3)


@pytest.mark.parametrize("variant", ["plain", "control", "bounded", "site", "bounded+site", "control+bounded+site"])
def test_an_attack_of_no_strength_is_no_attack(variant):
    base, none = moved(plainly(BASE, attack("k@2", variant, 0.0)))
    torch.testing.assert_close(base, none, rtol=1e-12, atol=1e-13)
