"""Laws of attacks, freezing and rewinding at heads, W_O, and whole attention and feed-forward blocks."""

from dataclasses import replace

import pytest
import torch
from bench.plain import plain_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from trisect.core.errors import SpecError
from trisect.core.site import Site
from trisect.core.spec import Run
from trisect.lm.edits import AttackEdit, FreezeEdit
from trisect.lm.feed import Piece, evaluation_pieces
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
from trisect.lm.loss import token_scores
from trisect.lm.rewind import blend, evaluate_variants, parts_of, stages
from trisect.lm.train import RunFiles, Trainer, train_fleet

CORPUS = tiny.corpus()
WORDS = len(CORPUS.vocabulary)
BASE = next(r for r in tiny.runs() if r.edit is None)
MODEL = BASE.model
WIDE, EACH = MODEL.width, MODEL.width // MODEL.heads
PLACES = layout(MODEL, WORDS)
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
    return {n: v[0] for n, v in views(flat[None], PLACES).items()}


def weights_by_hand(text: str) -> set[str]:
    """The site's entries, as 'name[row,column]', written down from what the words mean."""
    found, site = set(), place(text)
    heads = [h - 1 for h in site.heads or range(1, MODEL.heads + 1)]
    dims = [h * EACH + e for h in heads for e in range(EACH)]
    for part in site.parts():
        component, layer = part.components[0], f"layers.{(part.layers or (0,))[0]}"
        if component in "qkv":
            rows = ["qkv".index(component) * WIDE + d for d in dims]
            found |= {f"{layer}.in.weight[{r},{c}]" for r in rows for c in range(WIDE)}
            found |= {f"{layer}.in.bias[{r}]" for r in rows}
        elif component == "o":
            found |= {f"{layer}.out.weight[{r},{c}]" for r in range(WIDE) for c in dims}
            found |= set() if site.heads else {f"{layer}.out.bias[{r}]" for r in range(WIDE)}
        else:
            for name in ("in", "out") if component == "attn" else ("up", "down"):
                rows, columns = PLACES[f"{layer}.{name}.weight"].shape
                found |= {f"{layer}.{name}.weight[{r},{c}]" for r in range(rows) for c in range(columns)}
                found |= {f"{layer}.{name}.bias[{r}]" for r in range(rows)}
    return found


@pytest.mark.parametrize("text", [*SITES, "q+v@1-2"])
def test_the_weights_of_a_site_are_those_that_its_words_name(text):
    own, found = views(mark(place(text), MODEL, PLACES)[None], PLACES), set()
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
    passed = forward(views(flat[None], PLACES), inputs, MODEL, blocks=[(b, layer) for b in ("o", "attn", "ffn")])
    theirs = hooked(layer, inputs, bare(flat))
    for block in ("o", "attn", "ffn"):
        # o is found by solving W_O x = y, which loses digits with W_O's condition
        torch.testing.assert_close(passed.blocks[block, layer][0], theirs[block], rtol=1e-7, atol=1e-8)
    head = representation(passed.blocks, 0, place(f"o@{layer}.h2"), MODEL)
    assert torch.equal(head, passed.blocks["o", layer][0, ..., EACH : 2 * EACH].flatten(0, 1).T)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(SITES), st.integers(0, 99))
def test_pushing_is_the_transpose_of_reading(text, seed):
    site, draw = place(text), torch.Generator().manual_seed(seed)
    shapes = {block: 3 * WIDE if block[0] == "qkv" else WIDE for block in blocks_of([site], MODEL)}
    kept = {b: torch.randn(2, 3, 4, wide, generator=draw, dtype=torch.float64) for b, wide in shapes.items()}
    x = representation(kept, 1, site, MODEL)
    assert x.shape == (width_of(site, MODEL), 12)
    y = torch.randn(x.shape, generator=draw, dtype=torch.float64)
    into = {block: torch.zeros_like(value) for block, value in kept.items()}
    Representations([(1, site)], MODEL, "cpu").add(y[None], into)
    inner = sum(float((kept[block] * into[block]).sum()) for block in kept)
    assert inner == pytest.approx(float((x * y).sum()), rel=1e-10, abs=1e-10)
    assert all(not value[0].any() for value in into.values())


@settings(max_examples=40, deadline=None)
@given(st.permutations([0, 1, 2, 3]), st.permutations(["q@1", "v@2", "o@2", "q+k@1.h2", "v@1-2.h1", "k@2", "attn@1"]))
def test_representations_read_together_are_those_read_alone(slots, texts):
    sites = [place(text) for text in texts[:4]]
    blocks = blocks_of(sites, MODEL)
    kept = {b: torch.randn(4, 3, 5, 3 * WIDE if b[0] == "qkv" else WIDE) for b in blocks}
    together = Representations(list(zip(slots, sites, strict=True)), MODEL, "cpu")
    alone = [representation(kept, slot, site, MODEL) for slot, site in zip(slots, sites, strict=True)]
    assert torch.equal(together.read(kept), torch.stack(alone))
    into = {block: value.clone() for block, value in kept.items()}
    together.add(together.read(kept), into)
    moved = {block: into[block] - kept[block] for block in kept}
    assert torch.equal(together.read(moved), torch.stack(alone) * 2 - torch.stack(alone))
    assert sum(int((value != 0).sum()) for value in moved.values()) == together.read(moved).numel()


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


@pytest.mark.parametrize("texts", [SITES[:5], [*SITES[5:], "q+v@1-2"]])
def test_an_attack_anywhere_follows_loss_lm_minus_lambda_loss_adversary(texts):
    strengths = (1.0, 0.3, 10.0, 1.0, 3.0)
    trainer = plainly(*(attack(text, "plain", s) for text, s in zip(texts, strengths, strict=True)))
    before = trainer.flat.clone()
    trainer.step()  # attackers are updated first, so the gradient below is taken against the updated ones
    moved = trainer.flat - before
    trainer.flat.copy_(before)
    for slot in range(len(texts)):
        torch.testing.assert_close(moved[slot], -gradient_by_autograd(trainer, slot), rtol=1e-8, atol=1e-10)


REACH = {"o@2": "q+k+v@2", "o@2.h1": "q+k+v@2", "attn@2": "attn@2", "ffn@2": "ffn@2", "v@2.h2": "v@2.h2"}


@pytest.mark.parametrize("text", REACH)
def test_a_site_attack_trains_the_matrices_that_make_its_representation_alone(text):
    trainer = plainly(BASE, attack(text), attack(text, "site"))
    before = trainer.flat.clone()
    trainer.step()
    base, plain, site = trainer.flat - before
    marks = mark(place(REACH[text]), MODEL, PLACES)
    torch.testing.assert_close(site[~marks], base[~marks], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(site[marks], plain[marks], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(site[marks], base[marks], rtol=1e-2)
    assert not torch.allclose(plain[~marks], base[~marks], rtol=1e-2)


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
        marks = mark(place(text), MODEL, PLACES)
        assert torch.equal(own[marks], start[marks])
        assert not torch.equal(trainer.flat[0][marks], start[marks])  # first it was there, then it is gone
        named = views(marks[None], PLACES)
        for name, value in views(own[None], PLACES).items():
            if not named[name].all():
                free = ~named[name]
                assert not torch.equal(value[free], views(start[None], PLACES)[name][free]), (text, name)


def plain_loss(flat: torch.Tensor, pieces: list[Piece]) -> float:
    p, total = views(flat[None], PLACES), 0.0
    for piece in pieces:
        hidden = forward(p, piece.inputs, MODEL).hidden.flatten(1, 2)
        total += float(token_scores(hidden, p["decoder.weight"], p["decoder.bias"], piece.targets).loss.sum())
    return total / sum(piece.targets.numel() for piece in pieces)


@pytest.mark.parametrize("text", SITES)
def test_rewinding_anywhere_equals_loading_the_edited_weights(text):
    site, first, last, alphas = place(text), moved_off(1), moved_off(2), [0.0, 0.37, 1.0]
    parts, pieces = parts_of([site], MODEL), PIECES[:1]
    kept = {n: v for n, v in bare(first).items() if n.split(".")[-2] in parts}
    final, marks = {n: v[None] for n, v in bare(last).items()}, mark(site, MODEL, PLACES)
    convex = evaluate_variants(final, MODEL, pieces, site, blend(kept, bare(last), alphas))
    for i, alpha in enumerate(alphas):
        edited = torch.where(marks, (1 - alpha) * first + alpha * last, last)
        assert convex.loss_nats[i] == pytest.approx(plain_loss(edited, pieces), abs=1e-11)
    assert len({round(x, 6) for x in convex.loss_nats}) == 3
    stage = evaluate_variants(final, MODEL, pieces, site, stages([kept, bare(last)]))
    assert stage.loss_nats == pytest.approx(convex.loss_nats[[0, 2]], abs=1e-12)


def test_parts_are_the_matrices_that_rewinding_needs_and_their_lack_is_said():
    assert parts_of([place("q@1.h2"), place("v@all")], MODEL) == ("in",)
    assert parts_of([place("o@1.h1")], MODEL) == ("out",)
    assert parts_of([place("attn@1"), place("ffn@2")], MODEL) == ("in", "out", "up", "down")
    last = bare(moved_off(2))
    final, kept = {n: v[None] for n, v in last.items()}, {n: v for n, v in last.items() if ".in." in n}
    with pytest.raises(SpecError, match=r"(?s)'o@2\.h1' .*layers\.2\.out\.weight .*Kept are in\."):
        evaluate_variants(final, MODEL, PIECES, place("o@2.h1"), blend(kept, last, [0.0]))


def test_a_baseline_keeps_of_every_epoch_the_parts_that_it_is_asked_for(tmp_path):
    training = replace(BASE.training, epochs=1)
    train_fleet(
        [replace(BASE, training=training)], CORPUS, RunFiles(tmp_path / "c", {0: tmp_path / "all"}, ("in", "down"))
    )
    from trisect.lm.snapshots import read_snapshot

    found = read_snapshot(tmp_path / "all" / "0001.safetensors", "")[0]
    assert set(found) == {f"layers.{n}.{m}.{k}" for n in (1, 2) for m in ("in", "down") for k in ("weight", "bias")}
