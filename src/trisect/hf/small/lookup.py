"""Small language models with or without feed-forward networks, trained or built by hand, and measures of their induction heads."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.random import Generator
from torch import Tensor, nn

from trisect.core.errors import SpecError, StudyError
from trisect.core.files import digest
from trisect.core.site import Site
from trisect.core.trace import Address, Projections
from trisect.hf.files.fetch import OwnTokenizer
from trisect.hf.load import Pretrained, load
from trisect.hf.small.gpt import (
    PAD,
    UNKNOWN,
    Practice,
    Schedule,
    as_fast,
    check_sizes,
    is_model,
    load_weights,
    random_model,
    save,
)
from trisect.hf.small.translator import learn_pieces
from trisect.text.birth_places import IGNORED, Example
from trisect.text.pairs import TextPair
from trisect.text.worlds import INDUCTION, ROLES

ROWS = 32  # rows of random tokens that induction is measured on


@dataclass(frozen=True)
class LookupShape:
    """Sizes of a language model: `layers`, `heads`, `width` (residual stream), `inner` (feed-forward, 0: none), `block` (context).

    `spread` is the standard deviation of initial weights; positions are rotary, the slowest with a period of about 2π · `base`.
    """

    layers: int = 2
    heads: int = 4
    width: int = 128
    inner: int = 0
    block: int = 96
    spread: float = 0.1
    base: float = 100.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.dropout, layers=self.layers, heads=self.heads, width=self.width, block=self.block)
        if self.width % (2 * self.heads):
            reason = f"{self.width} is shared by {self.heads} heads, evenly for rotary positions."
            raise SpecError(f"A width of {self.width}.", reason, "Give an even multiple of the number of heads.")


def learn_tokenizer(lines: Sequence[str], size: int, block: int) -> OwnTokenizer:
    """A fast byte-pair tokenizer of about `size` tokens, which adds no special tokens."""
    return learn_pieces(lines, size, block, pad_token=PAD, unk_token=UNKNOWN)


def make_model(architecture: LookupShape, tokenizer: OwnTokenizer, seed: int, edit: str = "") -> nn.Module:
    """Make a Llama model with random weights from the seed; with `inner` 0 its feed-forward networks are frozen with output 0.

    In every layer the components that `edit` names share one matrix ("tie-k+v"), or are frozen at initialisation ("freeze-q+k").
    """
    import transformers

    a = architecture
    positions: dict[str, Any] = {"rope_theta": a.base}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=a.block,
        hidden_size=a.width,
        intermediate_size=a.inner or 1,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        initializer_range=a.spread,
        **positions,
        attention_dropout=a.dropout,
        attention_bias=True,  # with which a head can attend to a position whatever its token
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = random_model(transformers.AutoModelForCausalLM, config, seed)
    for name, p in model.named_parameters():
        if not a.inner and ".mlp." in name:
            p.requires_grad_(False)
            if "down_proj" in name:
                nn.init.zeros_(p)
    kind, _, components = edit.partition("-")
    for block in model.model.layers if edit else ():
        maps = [getattr(block.self_attn, f"{component}_proj") for component in components.split("+")]
        for linear in maps:
            if kind == "tie":
                linear.weight, linear.bias = maps[0].weight, maps[0].bias
            else:
                linear.requires_grad_(False)
    return model


FLAT = 1e8  # a norm's epsilon, so large that in float32 the norm is a constant factor


def _assemble_model(
    words: Sequence[str],
    layers: Sequence[Projections],
    embedding: Float[Tensor, "V D"],
    answers: Float[Tensor, "V D"],
    positions: Float[Tensor, "T D"] | None = None,
) -> tuple[nn.Module, OwnTokenizer]:
    """Build an attention-only model: x = embedding + positions (None: rotary), each layer adds Σ_h a_h v_h w_o[h], logits answers · x."""
    import transformers

    (heads, width, inner), keys = layers[0].w_q.shape, len(layers[0].w_k)  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
    shared: dict[str, Any] = {"vocab_size": len(words), "bos_token_id": None, "eos_token_id": None}
    shared |= {"tie_word_embeddings": False}
    if positions is not None:
        sizes = {"n_embd": width, "n_layer": len(layers), "n_head": heads, "n_inner": 1, "n_positions": len(positions)}
        config = transformers.GPT2Config(layer_norm_epsilon=FLAT, **sizes, **shared)
    else:
        sizes = {"hidden_size": width, "intermediate_size": 1, "num_hidden_layers": len(layers), "head_dim": inner}
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": keys, "max_position_embeddings": MAX_WORDS}
        config = transformers.LlamaConfig(rms_norm_eps=FLAT, attention_bias=True, **sizes, **shared)
    model: Any = random_model(transformers.AutoModelForCausalLM, config, 0).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.fill_(FLAT**0.5 if name.endswith("weight") and ("norm" in name or ".ln_" in name) else 0.0)
        model.get_input_embeddings().weight.copy_(embedding)
        model.get_output_embeddings().weight.copy_(answers)
        if positions is not None:
            model.transformer.wpe.weight.copy_(positions)
        blocks = model.transformer.h if positions is not None else model.model.layers
        for block, part in zip(blocks, layers, strict=True):
            maps: list[Any] = [part.w_q, part.w_k, part.w_v]
            flat = [m.transpose(0, 1).reshape(width, -1) for m in maps]
            biases = zip(flat, (part.b_q, part.b_k, part.b_v), strict=True)
            shifts = [torch.zeros(m.shape[1]) if b is None else b.reshape(-1) for m, b in biases]
            out: Any = part.w_o
            if positions is not None:
                block.attn.c_attn.weight.copy_(torch.cat(flat, 1))
                block.attn.c_attn.bias.copy_(torch.cat(shifts))
                block.attn.c_proj.weight.copy_(out.reshape(-1, width))
                continue
            linear = (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
            for module, m, b in zip(linear, flat, shifts, strict=True):
                module.weight.copy_(m.T)
                module.bias.copy_(b)
            block.self_attn.o_proj.weight.copy_(out.reshape(-1, width).T)
    return model, _word_tokenizer(words)


def _word_tokenizer(words: Sequence[str]) -> OwnTokenizer:
    """Make a tokenizer whose tokens are these words; the last one is the unknown token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[-1]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return as_fast(inner, MAX_WORDS, unk_token=words[-1])


LAYERS, HEADS, EDGE, WIDTH = 2, 4, 32, 128
SLOW = [*range(8, 16), *range(24, 32)]  # dimensions of a head that rotary positions turn by less than 0.01 a token
FAST = [*range(8), *range(16, 24)]
RATES = 10_000.0 ** (-np.arange(8) / 16)  # angles of these rotations per position
NOISE = 0.05  # size of the contributions of irrelevant heads to the answer
PREVIOUS = 8.0  # margin of the previous position's attention logit
START = "start"
MAX_WORDS, SEGMENT = 16, 8  # words of a text, and of a repeated segment
Codes: TypeAlias = Float[np.ndarray, "N D"]
# by kind of text and property: the label column in which the donor differs
COLUMNS = {
    "roles": {"asked": "question.a", "key": "item.a", "value": "item.b", "other": "item.c"},
    "induction": {"asked": "question.own", "key": "value.before", "value": "value.own"},
}


class _PlantedWorld(NamedTuple):
    """A model, built by hand or trained, in which the heads that compute the answer are known, and its texts.

    One head looks up: its q reads what is asked for, its k what can be matched, its v the answer, and the matching logit is ahead by
    `sharpness`. Of `roles` all three stand in one word, and one head answers, in either layer. Of `induction` and `lookup` a head
    of the first layer copies each word to the next position, where k of the second layer's head reads it. `keys` are key/value
    heads, `rotary` positions are a llama's (else learned ones, a GPT-2's), with `shared` W_K = W_V. All other heads have random
    weights and change the answer by NOISE; with `decoys` they attend to the same word as the answering head, with logits 1.5 times
    as large, and write another property that nothing reads. A `trained` world learns `roles` with all output maps but
    one head's fixed at zero; what that head's q, k and v do is learned.
    """

    sentence: str
    text: str = "roles"
    rotary: bool = False
    keys: int = HEADS
    shared: bool = False
    sharpness: float = 3.0
    decoys: bool = False
    properties: tuple[str, ...] = ("asked", "key", "value", "other")
    trained: bool = False


WORLDS: Mapping[str, _PlantedWorld] = {
    "roles": _PlantedWorld("One head looks up an item by a and answers with its b."),
    "roles-grouped": _PlantedWorld("The same with two query heads to a key/value head.", "roles", True, 2),
    "roles-rotary": _PlantedWorld("The same with rotary positions.", "roles", True),
    "roles-shared": _PlantedWorld("The same with W_K = W_V: k also holds b, v also a.", shared=True),
    "roles-decoys": _PlantedWorld(
        "All other heads look there more sharply and carry c, which is not read.", decoys=True
    ),
    "roles-saturated": _PlantedWorld("The softmax is saturated: logits ahead by 20.", sharpness=20.0),
    "induction": _PlantedWorld("A head copies each word to the next, where another looks it up.", "induction"),
    "induction-grouped": _PlantedWorld("The same with grouped queries and rotary positions.", "induction", True, 2),
    "induction-shared": _PlantedWorld("The same with W_K = W_V and rotary positions.", "induction", True, shared=True),
    "induction-saturated": _PlantedWorld("The same, saturated as above.", "induction", sharpness=20.0),
    "lookup": _PlantedWorld("A segment of words comes again, and what followed is the answer.", "lookup", True),
    "composition": _PlantedWorld(
        "Induction where keys alone change: weights decide.", "induction", properties=("key",)
    ),
    "roles-trained": _PlantedWorld("Roles, trained with one head that can write.", rotary=True, trained=True),
}
TRAINED = LookupShape(LAYERS, HEADS, WIDTH, block=MAX_WORDS)
DOCUMENTS = 12_800  # documents of an epoch
SCHEDULE = Schedule(5, 128, 3e-3, 100_000, 5 * DOCUMENTS * MAX_WORDS, weight_decay=0.0)


def build_world(
    world: _PlantedWorld, seed: int, pairs: int
) -> tuple[Pretrained, dict[str, tuple[TextPair, ...]], dict[str, frozenset[Site]]]:
    """A world's model for a seed, text pairs by the property in which the donor differs, and the true sites of each property."""
    rng = np.random.default_rng([seed, list(WORLDS.values()).index(world)])
    if world.trained:
        layer, head = (int(rng.integers(count)) for count in (LAYERS, HEADS))
        sites = {n: {Site((c,), (layer + 1,), (head + 1,))} for n, c in zip(world.properties, "qkv", strict=False)}
        texts = {name: _draw_pairs(world.text, name, pairs, seed) for name in world.properties}
        model = load(*_train_world(seed, layer, head))
        return model, texts, {name: frozenset(sites.get(name, ())) for name in texts}
    square = np.concatenate([np.ones((WIDTH, 1)), rng.standard_normal((WIDTH, WIDTH - 1))], 1)
    left = np.linalg.qr(square)[0].T[1:]  # directions with mean 0, which a norm does not centre

    def take(count: int) -> Codes:
        nonlocal left
        codes, left = left[:count], left[count:]
        return codes

    vocabulary = (ROLES if world.text == "roles" else INDUCTION).vocabulary
    words, places = (*vocabulary, START, "<unk>"), take(MAX_WORDS)
    embedding, answers = np.zeros((2, len(words), WIDTH))
    if world.text == "roles":
        key, value, other, query, *_ = (take(6) for _ in range(6))
        size = ROLES.keys * ROLES.values * ROLES.rests
        a, b, c = np.unravel_index(np.arange(size), (ROLES.keys, ROLES.values, ROLES.rests))
        embedding[:size] = key[a] + value[b] + other[c]
        embedding[size : 2 * size] = query[a] + take(6)[b] + take(6)[c]
        out = answers[2 * size : len(vocabulary)] = take(ROLES.values)
        places, layer = 0 * places, int(rng.integers(LAYERS))
    else:
        query = value = other = embedding[: len(vocabulary)] = take(len(vocabulary))
        key = take(len(vocabulary))
        out = answers[: len(vocabulary)] = take(len(vocabulary))
        layer = LAYERS - 1
    heads, (head, copier) = _HeadMaps(world, rng, out, left), rng.integers(HEADS, size=2).tolist()
    for at, h in [(at, h) for at in range(LAYERS) for h in range(HEADS)] if world.decoys else ():
        heads.look_up(at, h, 1.5 * query, key, other, left[: len(other)])
    heads.look_up(layer, head, query, key, value, out)
    site = {c: Site((c,), (layer + 1,), ((head if c == "q" else head * world.keys // HEADS) + 1,)) for c in "qkv"}
    truth = {"asked": {site["q"]}, "key": {site["k"]}, "value": {site["v"]}, "other": set[Site]()}
    if world.text != "roles":
        heads.copy_previous(copier, places, value, key)
        truth["key"].add(Site(("v",), (1,), (copier * world.keys // HEADS + 1,)))
    tables = [torch.from_numpy(table).float() for table in (embedding, answers, places)]
    module, tokenizer = _assemble_model(words, heads.projections(), *tables[: 2 if world.rotary else 3])
    names = [name for name in world.properties if name != "other" or world.text == "roles"]
    texts = {name: _draw_pairs(world.text, name, pairs, seed) for name in names}
    return load(module, tokenizer), texts, {name: frozenset(truth[name]) for name in names}


def _train_world(seed: int, layer: int, head: int) -> tuple[nn.Module, OwnTokenizer]:
    """A model that learned to answer documents of roles, in which one head's output map alone is not zero.

    It is trained once per seed and recipe, and is cached in XDG_CACHE_HOME (default ~/.cache). Raises StudyError.
    """
    tokenizer = _word_tokenizer((*ROLES.vocabulary, UNKNOWN))
    model: Any = make_model(TRAINED, tokenizer, seed)
    size, recipe = TRAINED.width // HEADS, f"{TRAINED} {SCHEDULE} {DOCUMENTS} {layer} {head} {ROLES.vocabulary}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = home / "trisect" / f"roles-trained-{digest(recipe.encode(), 8)}" / f"seed-{seed}"
    if is_model(place):
        load_weights(model, place)
        return model.eval(), tokenizer
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"Models that the bench trains are cached there: {error.strerror}."
        raise StudyError(f"{place} cannot be written.", reason, "Set XDG_CACHE_HOME to a folder that can.") from error
    handles = []
    for number, block in enumerate(model.model.layers):
        weight = block.self_attn.o_proj.weight
        mask = torch.zeros_like(weight)
        mask[:, head * size : (head + 1) * size] = float(number == layer)
        with torch.no_grad():
            weight.mul_(mask)
        handles.append(weight.register_hook(mask.mul))

    def rows(_epoch: int, draw: Generator) -> list[Example]:
        documents = ROLES.write(ROLES.draw(DOCUMENTS, draw)).tolist()
        return [Example(tuple(ids[:-1]), (*[IGNORED] * (len(ids) - 2), ids[-1])) for ids in documents]

    Practice(rows, SCHEDULE, MAX_WORDS, 0, seed, pieces=1).run(model, place / "state.pt")
    for handle in handles:
        handle.remove()
    save(model, tokenizer, place)
    (place / "state.pt").unlink(missing_ok=True)
    return model, tokenizer


class _HeadMaps:
    """Weights of all heads of a model under construction: random at first, adding NOISE to the answer."""

    def __init__(self, world: _PlantedWorld, rng: Generator, out: Codes, spare: Codes) -> None:
        self.world, self.rng = world, rng
        counts = HEADS, world.keys, world.keys
        self.q, self.k, self.v = (0.6 * rng.standard_normal((LAYERS, n, WIDTH, EDGE)) for n in counts)
        self.v *= not world.shared  # where W_K = W_V both are their sum
        writes = (NOISE, out), (len(spare) ** -0.5, spare)
        sides = [size * rng.standard_normal((LAYERS, HEADS, EDGE, len(to))) @ to for size, to in writes]
        self.o = np.add(*sides) / math.sqrt(EDGE)
        self.b_q, self.b_k = np.zeros((LAYERS, HEADS, EDGE)), np.zeros((LAYERS, world.keys, EDGE))

    def frame(self, count: int, dimensions: Sequence[int]) -> Float[np.ndarray, "N E"]:
        """Random orthonormal vectors in some of a head's dimensions."""
        vectors = np.zeros((count, EDGE))
        vectors[:, dimensions] = np.linalg.qr(self.rng.standard_normal((len(dimensions), len(dimensions))))[0][:count]
        return vectors

    def look_up(self, layer: int, head: int, query: Codes, key: Codes, value: Codes, out: Codes) -> None:
        """Set a head's q and k to match the code `query` with `key`, and its v and o to map `value` to `out`."""
        key_head = head * self.world.keys // HEADS
        match, carry = self.frame(len(key), SLOW), self.frame(len(value), FAST)
        self.q[layer, head] = self.world.sharpness * math.sqrt(EDGE) * query.T @ match
        self.k[layer, key_head], self.v[layer, key_head] = key.T @ match, value.T @ carry
        self.o[layer, head] = carry.T @ out

    def copy_previous(self, head: int, places: Codes, code: Codes, before: Codes) -> None:
        """Set a head of the first layer to attend to the previous position and copy its word."""
        key_head, size, rotary = head * self.world.keys // HEADS, PREVIOUS * math.sqrt(EDGE), self.world.rotary
        match, carry = self.frame(len(places), SLOW), self.frame(len(code), SLOW if rotary else FAST)
        self.q[0, head] = 0 if rotary else size * places[1:].T @ match[:-1]
        self.k[0, key_head], self.v[0, key_head] = 0 if rotary else places.T @ match, code.T @ carry
        self.o[0, head] = carry.T @ before
        if rotary:  # q is turned back by one position
            turns = np.stack([np.cos(RATES), -np.sin(RATES)]) * size / (1 - np.cos(RATES)).sum()
            self.b_q[0, head, FAST], self.b_k[0, key_head, FAST[:8]] = turns.ravel(), 1.0

    def projections(self) -> list[Projections]:
        """The layers' weights."""
        both = self.k + self.v
        k, v, b_v = (both, both, self.b_k) if self.world.shared else (self.k, self.v, 0 * self.b_k)
        layers = zip(self.q, k, v, self.o, self.b_q, self.b_k, b_v, strict=True)
        maps: list[Any] = [[torch.from_numpy(part).float() for part in parts] for parts in layers]
        return [Projections(Address("plain", n), {}, *parts) for n, parts in enumerate(maps, 1)]


def _draw_pairs(text: str, name: str, count: int, seed: int) -> tuple[TextPair, ...]:
    """Bases and donors that differ in one property, with the base's answer; bases are the same for every property."""
    if text != "lookup":
        pairs = (ROLES if text == "roles" else INDUCTION).near_pairs(count, seed, COLUMNS[text][name])
        start = [] if text == "roles" else [START]
        rows = zip(pairs.base, pairs.donor, pairs.unchanged, strict=True)
        texts = [(" ".join((*start, *b)), " ".join((*start, *d)), answer) for b, d, answer in rows]
        return tuple(TextPair(base, donor, {"base": answer}) for base, donor, answer in texts)
    texts, rng, more = [], np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    for _ in range(count):
        pairs = rng.permutation(INDUCTION.vocabulary).tolist()
        segment, at = pairs[:SEGMENT], int(rng.integers(1, SEGMENT - 1))
        other = int(more.choice([n for n in range(1, SEGMENT - 1) if n not in (at, at + 1)]))
        changed, end = list(segment), segment[at - 1 : at + 1]
        if name == "key":
            changed[at], changed[other] = changed[other], changed[at]
        elif name == "value":
            changed[at + 1] = pairs[SEGMENT]
        donor = (START, *changed, *(segment[other - 1 : other + 1] if name == "asked" else end))
        texts.append(TextPair(" ".join((START, *segment, *end)), " ".join(donor), {"base": segment[at + 1]}))
    return tuple(texts)


class _HeadWeights(NamedTuple):
    """A head's mean attention weight on the previous token, and on the token after an earlier copy (`induction`)."""

    layer: int
    head: int
    previous: float
    induction: float


class InductionMeasure(NamedTuple):
    """Loss in nats on a text, and on the first and second copy of random tokens, with every head's attention weights there."""

    text: float
    first: float
    second: float
    heads: tuple[_HeadWeights, ...]


@torch.no_grad()
def measure_induction(model: Any, windows: Int[Tensor, "R T"], pieces: Int[Tensor, " P"]) -> InductionMeasure:
    """Losses of a model on windows of a text and on equally long rows of random `pieces` repeated once (Olsson et al. 2022), and the
    induction weights of its heads in these rows. `pieces` should be tokens that the model was trained on.
    """
    half, device = windows.shape[1] // 2, model.get_input_embeddings().weight.device
    draw = torch.Generator().manual_seed(5)
    ids = pieces[torch.randint(len(pieces), (ROWS, half), generator=draw)].repeat(1, 2).to(device)

    def losses(ids: Tensor, logits: Tensor) -> Tensor:
        rows = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        return rows.view(len(ids), -1)

    windows = windows.to(device)
    text = losses(windows, model(input_ids=windows, use_cache=False).logits)
    output = model(input_ids=ids, use_cache=False, output_attentions=True)
    random = losses(ids, output.logits)
    at = torch.arange(half, 2 * half - 1, device=device)
    heads = [
        _HeadWeights(layer, head, *(float(weights[:, head - 1, at, at - back].mean()) for back in (1, half - 1)))
        for layer, weights in enumerate(output.attentions, start=1)
        for head in range(1, weights.shape[1] + 1)
    ]
    copies = float(random[:, : half - 1].mean()), float(random[:, half:].mean())
    return InductionMeasure(float(text.mean()), *copies, tuple(heads))
