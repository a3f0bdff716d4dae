"""Reading models, against a plain way each: norms, nulls of similarity, probes, the proof, looks at the laws, edited passes."""

from __future__ import annotations

import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import memory
import numpy as np
import torch
import transformers
from jaxtyping import Float
from paired import Row, one_core, paired, row, summary, timed
from real import mini_lm
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tests import tinyhf
from torch import Tensor, nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from trisect.core.subject import Batch
from trisect.core.trace import Address, Origin, Projections, Side, Trace
from trisect.experiments.similarity.run import Nulls, compare_with_nulls, measure_weights
from trisect.hf.load import Pretrained, load, read_graph, sampled_laws
from trisect.hf.verify.examples import example_inputs
from trisect.lab.passes import edited_passes, plan_edits
from trisect.measure.norms import transformed_and_layer_norms
from trisect.measure.patching import attribute, record, replace_at
from trisect.measure.profile import Prober, WordClasses, assign_folds, random_maps
from trisect.measure.similarity import (
    angles,
    product_rank,
    random_map_pairs,
    random_product_ranks,
    random_subspaces,
    span,
    symmetric_share,
    white_cka,
)

LAYERS, HEADS, WIDTH, INNER = 12, 12, 768, 64  # of BERT-base and GPT-2 small
ROUNDS = 3


def random_trace(texts: int, tokens: int) -> Trace:
    """One layer of BERT-base's shape from random inputs and weights."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(texts, HEADS, tokens, INNER, generator=draw) for _ in "qkv")
    w_o = torch.randn(HEADS, INNER, WIDTH, generator=draw) * WIDTH**-0.5
    real = torch.ones(texts, tokens, dtype=torch.bool)
    weights = torch.softmax(q @ k.mT * INNER**-0.5, -1)
    projections = Projections(Address("plain", 1), {"o": Origin("rows", "random")}, w_o=w_o)
    return Trace(Address("plain", 1), q, k, v, weights, weights @ v, real, real, projections, INNER**-0.5)


@torch.no_grad()
def norms_naive(trace: Trace) -> tuple[Tensor, Tensor]:
    """Per head and per layer from all weighted vectors, [B H T T D], as the formula is written."""
    assert trace.w_o is not None
    f = torch.einsum("bhte,hed->bhtd", trace.v, trace.w_o)
    vectors = trace.weights[..., None] * f[:, :, None]
    return vectors.norm(dim=-1), vectors.sum(1).norm(dim=-1)


@torch.no_grad()
def norms_ours(trace: Trace) -> tuple[Tensor, Tensor]:
    """The same two by trisect."""
    transformed, layer = transformed_and_layer_norms(trace)
    return trace.weights * transformed[:, :, None], layer


@one_core()
def norms_rows() -> list[Row]:
    """Norms of one layer against every transformed vector, and of all layers beside BERT-base's own forward pass."""
    trace = random_trace(8, 128)
    apart = [(a - b).abs().max() / b.abs().max() for a, b in zip(norms_ours(trace), norms_naive(trace), strict=True)]
    pair = paired(lambda: norms_naive(trace), lambda: norms_ours(trace), ROUNDS)
    what = f"norms of one layer, batch 8 of 128 tokens ({HEADS} heads of {INNER}, width {WIDTH})"
    notes = [
        "Both give the norms per head and per layer. Plain: every weighted vector as an array [B H T T D].",
        f"Largest difference of the two: {float(max(apart)):.1e} of the largest norm.",
    ]
    rows = [row(what, f"{pair.plain:.2f} s", f"{1000 * pair.ours:.0f} ms", pair, notes)]
    subject = load(BertModel(BertConfig(attn_implementation="eager")).eval())
    for tokens in (128, 512):
        batch = subject.batch_of({"input_ids": torch.randint(10, 20_000, (8, tokens))})
        with torch.no_grad():
            traces = subject.trace(batch).traces
            pair = paired(lambda b=batch: subject.model(**b.inputs), lambda t=traces: [*map(norms_ours, t)], ROUNDS)
        what = f"norms of all 12 layers beside BERT-base's eager forward pass, batch 8 of {tokens} tokens"
        rows.append(row(what, f"{pair.plain:.2f} s", f"{pair.ours:.2f} s", pair))
    return rows


DRAWS = 20_000  # of every null
WHOLE = 100  # random heads of each round are drawn whole; the cost of a draw is the same for all


def drawn_whole(seed: int) -> None:
    """Random matrices as they are, and everything that is measured of two of them."""
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(WHOLE, WIDTH, INNER, generator=draw, dtype=torch.float64) for _ in "qk")
    angles(span(q), span(k))
    for measure in (white_cka, symmetric_share, product_rank):
        measure(q, k)


def drawn_small(seed: int) -> None:
    """The same numbers through small matrices."""
    draw = np.random.default_rng(seed)
    random_subspaces(draw, WIDTH, INNER, INNER, DRAWS)
    random_map_pairs(draw, WIDTH, INNER, INNER, DRAWS)
    random_product_ranks(draw, WIDTH, INNER, DRAWS)


def random_heads() -> list[Projections]:
    """Random heads with biases, of BERT-base's shape."""
    draw, origins = torch.Generator().manual_seed(0), dict.fromkeys("qkvo", Origin("rows", "random"))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    heads = []
    for n in range(1, LAYERS + 1):
        maps, shifts = [normal(HEADS, WIDTH, INNER) for _ in "qkv"], [normal(HEADS, INNER) for _ in "qkv"]
        out = normal(HEADS, INNER, WIDTH)
        heads.append(Projections(Address("plain", n), origins, *maps, out, *shifts, normal(WIDTH)))
    return heads


@one_core()
def similarity_rows() -> list[Row]:
    """The nulls of a shape against drawing the random matrices whole, and a whole 12 × 12 model."""
    seeds = iter(range(10**6))
    spent = timed({"plain": lambda: drawn_whole(next(seeds)), "ours": lambda: drawn_small(next(seeds))}, ROUNDS)
    pair = summary(([one * DRAWS / WHOLE for one in spent["plain"]], spent["ours"]))
    what = f"nulls of one shape: {DRAWS:,} pairs of random {WIDTH} × {INNER} matrices"
    note = (
        f"Plain: Gaussian matrices drawn whole, {WHOLE} a round, times {DRAWS // WHOLE}. Both: overlap, least angle, CKA, symmetric "
        "share, effective rank of the product. The two have the same distribution (tests/property/test_similarity_laws.py)."
    )
    nulls = row(what, f"{pair.plain:.0f} s", f"{pair.ours:.1f} s", pair, [note])
    began = time.process_time()
    nulls_of_all = Nulls(DRAWS, 0, LAYERS * HEADS)
    compare_with_nulls(measure_weights(random_heads()), nulls_of_all, lambda *_: None)
    whole = time.process_time() - began
    what = f"similarity of a {LAYERS} × {HEADS} model, width {WIDTH}: every measure, null, z, p and Holm"
    note = (
        f"In one thread, with biases, {DRAWS:,} draws of every null at least and {nulls_of_all.count():,} of those "
        "that verdicts rest on. Less than a minute was asked for."
    )
    return [nulls, row(what, "–", f"{whole:.1f} s", notes=[note])]


MAPS, FOLDS, WORDS, CLASSES = 236, 5, 20_000, 17
SINGLE = 2  # maps of a round that logistic regression is fitted to; the cost of a map is the same for all


def labelled_words(seed: int) -> Prober:
    """Words of width 384 whose class moves their vector by a random step of its own."""
    draw, width = np.random.default_rng(seed), 384
    y = draw.choice(CLASSES, WORDS, p=(shares := 1 / np.arange(1, CLASSES + 1)) / shares.sum())
    x = draw.normal(size=(WORDS, width)) @ draw.normal(size=(width, width)) / math.sqrt(width)
    x += 0.5 * draw.normal(size=(CLASSES, width))[y]
    label = WordClasses("made", tuple(map(str, range(CLASSES))), y)
    return Prober(x.astype(np.float16), (label,), assign_folds(np.arange(WORDS) // 20, FOLDS, draw))


def regression(z: Float[np.ndarray, "N E"], y: np.ndarray, fold: np.ndarray) -> float:
    """Accuracy of scikit-learn's logistic regression, cross-fitted over the same folds."""
    right = 0
    for f in range(int(fold.max()) + 1):
        scaler = StandardScaler().fit(z[fold != f])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = LogisticRegression(max_iter=300).fit(scaler.transform(z[fold != f]), y[fold != f])
        right += int((fitted.predict(scaler.transform(z[fold == f])) == y[fold == f]).sum())
    return right / len(z)


@one_core()
def probe_rows() -> list[Row]:
    """Closed-form probes of all heads and random maps of a layer, against logistic regression map by map."""
    spent, gaps = [], []
    for seed in range(ROUNDS):
        prober, draw = labelled_words(seed), torch.Generator().manual_seed(seed)
        maps = random_maps(384, 32, MAPS, draw)
        began = time.process_time()
        x = np.asarray(prober.x, np.float32)
        theirs = [regression(x @ one, prober.labels[0].y, prober.fold) for one in maps[:SINGLE].numpy()]
        between = time.process_time()
        ours = prober.scores(maps).accuracy[:SINGLE, 0]
        spent.append(((between - began) * MAPS / SINGLE, time.process_time() - between))
        gaps += [float(a) - b for a, b in zip(ours, theirs, strict=True)]
    pair = summary(zip(*spent, strict=True))
    what = f"probes of {MAPS} maps 384 → 32 of one layer, {WORDS:,} words, {CLASSES} classes"
    note = (
        f"Plain: scikit-learn's logistic regression (L-BFGS), {SINGLE} maps a round, times {MAPS // SINGLE}; both with "
        f"{FOLDS} folds. Accuracy of the closed form less that of logistic regression: {min(gaps):+.4f} to {max(gaps):+.4f}."
    )
    return [row(what, f"{pair.plain:.0f} s", f"{pair.ours:.1f} s", pair, [note])]


@one_core()
def load_rows() -> list[Row]:
    """A model in memory loaded and verified beside a forward pass of its example: passes are plain over ours."""
    whisper = partial(transformers.WhisperForConditionalGeneration, transformers.WhisperConfig(vocab_size=51_864))
    sizes = {"BERT-base": partial(BertModel, BertConfig()), "GPT-2 small": partial(GPT2LMHeadModel, GPT2Config())}
    rows = []
    for name, build in (sizes | {"Whisper tiny.en": whisper, "TinyLlama (1.1 billion)": memory.llama}).items():
        model = build().eval()
        run = torch.no_grad()(partial(model, **example_inputs(name, model)))
        pair = paired(run, partial(load, model), ROUNDS)
        passes = f"{1 / pair.ratio:.1f} passes"
        what = f"{name} loaded and verified; plain: a pass of its example"
        rows.append(row(what, f"{pair.plain:.2f} s", f"{pair.ours:.2f} s ({passes})", pair))
    return rows


@one_core()
def gradient_rows(pairs: int = 4) -> list[Row]:
    """Attribution patching of q, k and v of all heads at all positions, beside a forward pass over as many texts."""
    model, rows = GPT2LMHeadModel(GPT2Config(attn_implementation="eager")).eval(), []
    for tokens in (24, 128):
        texts = [_batch_of(torch.randint(GPT2Config().vocab_size, (pairs, tokens))) for _ in range(2)]
        pair = paired(
            torch.no_grad()(partial(model, **texts[0].inputs)), partial(estimate, load(model), *texts), ROUNDS
        )
        what = f"attribution patching, 12 × 12 heads, {tokens} tokens; plain: a forward pass"
        rows.append(row(what, f"{pair.plain:.2f} s", f"{pair.ours:.2f} s ({1 / pair.ratio:.1f} passes)", pair))
    return rows


def estimate(subject: Pretrained, base: Batch, donor: Batch) -> None:
    """The effect of each head at each position on the difference of two logits at the end."""
    reading, real = read_graph(subject, base), base.source.real
    parts = record(subject.outputs, donor, [*subject.shape.heads], torch.full((len(real),), real.shape[1] - 1)).parts
    assert reading.output is not None
    (reading.output[:, -1, 0] - reading.output[:, -1, 1]).sum().backward()
    for trace in reading.traces:
        attribute(trace, parts[trace.address], real, real)


@one_core()
def read_rows(rounds: int = 2) -> list[Row]:
    """Reading q, k, v and weights as a command does, with its checks, beside plain hooks and TransformerLens."""
    rows = []
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 5}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "attn_implementation": "eager"}
    mini = BertModel.from_pretrained(mini_lm(), attn_implementation="eager")
    models = {
        "MiniLM": mini.eval(),
        "stories-260k's size": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval(),
    }
    cases = [(f"{name}, 200 sentences", model, sentences(model)) for name, model in models.items()]
    for tokens in (128, 256, 512, 1_024, 2_048):
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_positions=2_048, attn_implementation="eager")).eval()
        ids = [{"input_ids": torch.randint(model.config.vocab_size, (1, tokens))} for _ in range(4)]
        cases.append((f"GPT-2's layers, {tokens:,} tokens", model, ids))
    for what, model, ids in cases:
        subject, lens = load(model), None if model is mini else lens_of(deepcopy(model))
        batches = [*map(subject.batch_of, ids)]
        ways = {"hooks": partial(read_plain, model, ids), "": partial(read_ours, subject, batches)}
        ways |= {} if lens is None else {LENS: partial(read_lens, lens, ids)}
        rows += rows_by_peer(f"reading {what}", timed(ways, rounds), lambda seconds: f"{seconds:.2f} s")
    return rows


def sentences(model: Any) -> list[dict[str, Tensor]]:
    """200 random sentences of 8 to 63 tokens in padded batches of 16."""
    each, size = torch.randint(8, 64, (200,)).split(16), model.config.vocab_size
    masks = [(torch.arange(int(lengths.max())) < lengths[:, None]).long() for lengths in each]
    return [{"input_ids": torch.randint(size, mask.shape), "attention_mask": mask} for mask in masks]


@torch.no_grad()
def read_plain(model: Any, batches: Sequence[dict[str, Tensor]]) -> None:
    """A hook on each layer's maps to q, k and v, and the attention weights that the model returns; nothing is copied."""
    ends = ("c_attn", "query", "key", "value", "q_proj", "k_proj", "v_proj")
    maps = [module for name, module in model.named_modules() if name.endswith(ends)]
    for inputs in batches:
        outputs: list[Tensor] = []
        hooks = [m.register_forward_hook(lambda _m, _i, out, outputs=outputs: outputs.append(out)) for m in maps]
        model(**inputs, output_attentions=True)
        for hook in hooks:
            hook.remove()


def read_ours(subject: Pretrained, batches: Sequence[Batch]) -> None:
    """The reads of a command, with its checks."""
    with sampled_laws(subject):
        for batch in batches:
            subject.each(batch, lambda _trace: None)


@torch.no_grad()
def read_lens(bridge: Any, batches: Sequence[dict[str, Tensor]]) -> None:
    """The same four from a cache of TransformerLens."""
    wanted = tuple(f"attn.hook_{name}" for name in ("q", "k", "v", "pattern"))
    for inputs in batches:
        rest = {"attention_mask": inputs.get("attention_mask"), "prepend_bos": False}
        bridge.run_with_cache(inputs["input_ids"], names_filter=lambda name: name.endswith(wanted), **rest)


PEERS = {"TransformerLens": "transformer_lens", "nnsight": "nnsight"}
LENS, SIGHT = (f"{name} {version(module)}" if find_spec(module) else "" for name, module in PEERS.items())


def lens_of(model: nn.Module) -> Any | None:
    """The model in TransformerLens, which changes it; None where that is not installed."""
    if not LENS:
        return None
    boot = import_module("transformer_lens.model_bridge").TransformerBridge.boot_transformers
    return boot("gpt2", hf_model=model, tokenizer=tinyhf.tokenizer(False), device="cpu")


def rows_by_peer(
    what: str, spent: dict[str, list[float]], words: Callable[[float], str], notes: Sequence[str] = ()
) -> list[Row]:
    """A row of ours (the way without a name) beside all peers; the ratio is that of the nearest."""
    pairs = {peer: summary((spent[peer], spent[""])) for peer in spent if peer}
    nearest = min(pairs.values(), key=lambda pair: pair.ratio)
    shown = [words(pair.plain).partition(" ") for pair in pairs.values()]  # the unit once, at the end
    plain = f"{' / '.join(number for number, *_ in shown)} {shown[-1][2]}"
    return [row(f"{what}; plain: {' / '.join(pairs)}", plain, words(nearest.ours), nearest, notes)]


PATCHED = (4, 9)  # layers; those between cost what lies between
Patched = tuple[tuple[str, int, int], ...]  # component, layer and head of each pass, counted from 1


@torch.no_grad()
def patched_plain(model: GPT2LMHeadModel, sites: Patched, base: Tensor, donor: Tensor) -> list[Tensor]:
    """One hook that keeps what c_attn gives for the donor, and one that puts a head's q, k or v of it into the base."""
    cache: dict[int, Tensor] = {}
    layers = [block.attn.c_attn for block in model.transformer.h]
    hooks = [m.register_forward_hook(lambda _m, _i, out, n=n: cache.update({n: out})) for n, m in enumerate(layers, 1)]
    model(donor)
    for hook in hooks:
        hook.remove()
    logits = []
    for _, n, columns in columns_of(model, sites):

        def put_head(_m: object, _i: object, out: Tensor, n: int = n, columns: slice = columns) -> Tensor:
            new = out.clone()
            new[..., columns] = cache[n][..., columns]
            return new

        hook = layers[n - 1].register_forward_hook(put_head)
        logits.append(model(base).logits[:, -1])
        hook.remove()
    return logits


def columns_of(model: GPT2LMHeadModel, sites: Patched) -> Iterator[tuple[str, int, slice]]:
    """Where in its layer's c_attn each site stands."""
    inner = model.config.n_embd // model.config.n_head
    for part, n, head in sites:
        start = "qkv".index(part) * model.config.n_embd + (head - 1) * inner
        yield part, n, slice(start, start + inner)


def patched_ours(subject: Pretrained, sites: Patched, *texts: Tensor) -> list[Tensor]:
    """The same as `trisect patch` does it: both texts read, then the edits of a layer in passes that begin there."""
    base, donor = (_batch_of(ids) for ids in texts)
    edits = plan_edits(subject.shape, [f"{part}@{n}.h{head}" for part, n, head in sites], "head")
    real, addresses = base.source.real, [edit.address for edit in edits]
    places = torch.full((len(real),), real.shape[1] - 1)
    with sampled_laws(subject):
        passes, logits = edited_passes(subject), []
        record(passes.read, base, addresses, places)
        parts = record(subject.outputs, donor, addresses, places).parts
        for address, group in groupby(edits, lambda edit: edit.address):
            writes = [{address: replace_at(e.targets, parts[address], real, real)} for e in group]
            logits += [outputs[:, 0] for outputs in passes.output_each(base, writes, places)]
    return logits


def _batch_of(ids: Tensor) -> Batch:
    """A batch of texts that are tokenized."""
    tokens = tuple(tuple(map(str, row)) for row in ids.tolist())
    real = torch.ones_like(ids, dtype=torch.bool)
    side = Side(tokens, real, ~real, ids)
    return Batch({"input_ids": ids}, side, None, tuple((i, 0) for i in range(len(ids))))


@torch.no_grad()
def patched_lens(bridge: Any, sites: Patched, base: Tensor, donor: Tensor) -> list[Tensor]:
    """The same in TransformerLens: a cache of the donor, and a pass with a hook for each head."""
    ends = tuple(f"attn.hook_{name}" for name in "qkv")
    _, cache = bridge.run_with_cache(donor, names_filter=lambda name: name.endswith(ends), prepend_bos=False)
    logits = []
    for part, n, head in sites:
        name = f"blocks.{n - 1}.attn.hook_{part}"

        def put_head(value: Tensor, hook: Any, name: str = name, head: int = head) -> Tensor:
            new = value.clone()
            new[:, :, head - 1] = cache[name][:, :, head - 1]
            return new

        logits.append(bridge.run_with_hooks(base, fwd_hooks=[(name, put_head)], prepend_bos=False)[:, -1])
    return logits


@torch.no_grad()
def patched_sight(wrapped: Any, sites: Patched, base: Tensor, donor: Tensor) -> list[Tensor]:
    """The same in nnsight: a trace that saves c_attn of the donor, and a trace for each head."""
    cache, answers = [], []
    with wrapped.trace({"input_ids": donor}):
        for block in wrapped.transformer.h:
            cache.append(block.attn.c_attn.output.save())
    for _, n, columns in columns_of(wrapped, sites):
        with wrapped.trace({"input_ids": base}):
            wrapped.transformer.h[n - 1].attn.c_attn.output[..., columns] = cache[n - 1][..., columns]
            logits = wrapped.output.logits[:, -1].save()
        answers.append(logits)
    return answers


WAYS: dict[str, tuple[Callable[[GPT2LMHeadModel], Any], Callable[..., list[Tensor]]]] = {
    "hooks": (lambda model: model, patched_plain),
    LENS: (lens_of, patched_lens),
    SIGHT: (lambda m: import_module("nnsight").LanguageModel(m, tokenizer=tinyhf.tokenizer(False)), patched_sight),
    "": (load, patched_ours),
}
SMALL = (GPT2Config(), 12, PATCHED, 2, 24)


@one_core()
def patching_rows() -> list[Row]:
    """Interchange interventions by head: pairs a second beside hooks, TransformerLens and nnsight, in turn; then whole processes."""
    tiny = GPT2Config(vocab_size=512, n_embd=64, n_layer=5, n_head=8)
    shapes = ((tiny, 8, range(1, 6), 4, 24), SMALL, (GPT2Config(), 12, PATCHED, 1, 128))
    rows, used = [row for shape in shapes for row in patched_rows(*shape)], {name: [] for name in WAYS}
    for name in [*WAYS] * 2:
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        used[name].append([float(number) for number in done.stdout.split()[-2:]])
    for i, (what, words) in enumerate((("", "{:.1f} s"), ("memory of ", "{:,.0f} MiB"))):
        spent = {name: [numbers[i] for numbers in of] for name, of in used.items()}
        rows += rows_by_peer(f"{what}a process of 144 such patches, 24 tokens", spent, words.format)
    return rows


def patching_way(
    name: str, config: GPT2Config, heads: int, layers: Sequence[int], pairs: int, tokens: int
) -> tuple[Patched, Callable[[], list[Tensor]]]:
    """So many heads of q, k and v of these layers, and one way of patching them, made ready."""
    torch.manual_seed(0)
    (make, patch), model = WAYS[name], GPT2LMHeadModel(config).eval()
    sites = tuple((part, n, head) for n in layers for part in "qkv" for head in range(1, heads + 1))
    texts = [torch.randint(config.vocab_size, (pairs, tokens)) for _ in range(2)]
    return sites, partial(patch, make(model), sites, *texts)


def patched_rows(config: GPT2Config, heads: int, layers: Sequence[int], pairs: int, tokens: int) -> list[Row]:
    """Rows of one model."""
    ready = {name: patching_way(name, config, heads, layers, pairs, tokens) for name in WAYS}
    ways, sites = {name: way for name, (_, way) in ready.items()}, ready[""][0]
    answers: dict[str, Tensor] = {}
    keep = lambda name: answers.__setitem__(name, torch.stack(ways[name]()))  # noqa: E731
    spent = timed({name: partial(keep, name) for name in ways}, 2)
    apart = (f"{name} {(answer - answers['']).abs().max():.1e}" for name, answer in answers.items() if name)
    notes = ["Hooks: on c_attn, in the model's own attention, whole passes; all end with the last logits."]
    notes.append(f"Largest difference of logits from ours: {', '.join(apart)}.")
    ends = f"in {pairs} pair{'s' * (pairs > 1)} of texts; two rounds."
    notes.append(f"q, k and v of {heads} heads of each of layers {[*layers]}, each by itself, {ends}")
    what = f"patching by head, {config.n_layer} × {config.n_head} heads, {tokens} tokens"
    return rows_by_peer(what, spent, lambda seconds: f"{len(sites) * pairs / seconds:.1f} pairs/s", notes)


if __name__ == "__main__":
    torch.set_num_threads(1)
    patching_way(sys.argv[1], *SMALL)[1]()
    status = Path("/proc/self/status").read_text()  # of this program alone, since it began
    print(time.process_time(), int(status.partition("VmHWM:")[2].split()[0]) / 1024)
