"""Methods that score a site, each a plain function, and how well they find the known sites.

A method takes a model as `trisect.load` returns it (its module is `model.model`), pairs of texts whose base and donor differ in one
property, and a site such as `v@2.h3`. It returns a number, larger if the property reaches the answer (the token after the base)
through q, k or v there. Methods are called site by site; readings that they share are cached.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import runpy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import SpecError, TrisectError, on_step, unknown_name
from trisect.core.site import Site
from trisect.core.subject import QKV, Batch, SiteTarget
from trisect.core.tables import INTEGER, REAL, TEXT, NewRow
from trisect.core.trace import Address, Trace
from trisect.experiments.bench.settings import BenchmarkFacts, BenchmarkSettings
from trisect.hf.load import Pretrained, read_graph
from trisect.hf.small.lookup import WORLDS, build_world
from trisect.lab.experiment import Measured, RunContext
from trisect.measure.composition import composition_scores
from trisect.measure.norms import contributions, transformed_norms
from trisect.measure.patching import attribute, record, replace_at
from trisect.stats.paired import summary, t_interval
from trisect.stats.significance import finite
from trisect.text.pairs import TextPair

SCHEMAS = {
    "scores": {
        **{"world": TEXT, "seed": INTEGER, "property": TEXT, "site": TEXT, "truth": pl.Boolean},  # true: positive
        **{"method": TEXT, "score": REAL},  # in the method's own unit
    },
    "seeds": {"world": TEXT, "method": TEXT, "seed": INTEGER, "auroc": REAL},
    # means over seeds with 95 % intervals; world 'all' is the mean over worlds
    "auroc": {"world": TEXT, "method": TEXT, "value": REAL, "low": REAL, "high": REAL, "n": INTEGER},
    "worlds": {"world": TEXT, "sentence": TEXT, "sites": INTEGER, "positive": INTEGER, "negative": INTEGER},
    "methods": {"method": TEXT, "sentence": TEXT, "source": TEXT},
}


class _PairReading(NamedTuple):
    """Bases read with the gradients of their answers' logits, q, k and v of the donors, the answers' ids and logits, and the weights'
    composition scores by writer, layer, component and head.
    """

    batch: Batch
    traces: Mapping[int, Trace]
    donors: Mapping[Address, QKV]
    answers: Int[Tensor, " B"]
    logits: Float[Tensor, " B"]
    compositions: Mapping[tuple[str, int, str, int], float]


def read_pairs(model: Pretrained, texts: Sequence[TextPair]) -> _PairReading:
    """Read both texts of every pair in two forward passes and a backward pass; readings are cached."""
    return _read(model, tuple((str(pair.base), str(pair.donor), str(pair.answers["base"])) for pair in texts))


@lru_cache(maxsize=2)
def _read(model: Pretrained, texts: tuple[tuple[str, str, str], ...]) -> _PairReading:
    bases, donors, answers = zip(*texts, strict=True)
    batch, other = (next(iter(model.batches(side, len(side)))) for side in (bases, donors))
    reading, parts = read_graph(model, batch), record(model.outputs, other, model.addresses).parts
    assert reading.output is not None, "a reading with gradients has the model's output"
    ids = torch.tensor(model.tokenizer.convert_tokens_to_ids(list(answers)))
    logits = reading.output[:, -1].gather(1, ids[:, None].to(reading.output.device))[:, 0]
    logits.sum().backward()
    traces = {trace.layer: trace for trace in reading.traces}
    return _PairReading(batch, traces, parts, ids, logits.detach(), composition_scores(traces))


def place_of(site: Site) -> tuple[str, int, int]:
    """Component, layer and head of a site of one head; heads of k and v are key/value heads."""
    assert site.layers is not None, "a site of one layer"
    assert site.heads is not None, "a site of one head"
    return site.components[0], site.layers[0], site.heads[0]


def _queries_of(trace: Trace, component: str, head: int) -> list[int]:
    """The query heads, from 0, that read a head of q, k or v."""
    return [head - 1] if component == "q" else [h for h in range(trace.heads) if h // trace.group == head - 1]


def chance(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """A random number, the control."""
    return int(hashlib.sha256(f"{model.fingerprint} {texts} {site}".encode()).hexdigest()[:12], 16) / 16**12


def attention(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """The largest attention weight of the last position."""
    component, layer, head = place_of(site)
    trace = read_pairs(model, texts).traces[layer]
    return float(trace.weights[:, _queries_of(trace, component, head), -1].detach().amax(-1).mean(0).max())


def norm(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """The largest a‖f(x)‖ of the last position (Kobayashi et al. 2020): attention weight times the length of what it adds."""
    component, layer, head = place_of(site)
    trace = read_pairs(model, texts).traces[layer]
    lengths = trace.weights.detach()[:, :, -1] * transformed_norms(trace).detach()
    return float(lengths[:, _queries_of(trace, component, head)].amax(-1).mean(0).max())


def contribution(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """The largest contribution weight of the last position: the share of the head's output that comes from one key, by projection."""
    component, layer, head = place_of(site)
    trace = read_pairs(model, texts).traces[layer]
    return float(contributions(trace)[0][:, _queries_of(trace, component, head), -1].amax(-1).mean(0).max())


def difference(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """Relative change of the site's activation from base to donor: whether it encodes the property, used or not."""
    component, layer, head = place_of(site)
    reading = read_pairs(model, texts)
    base = getattr(reading.traces[layer], component)[:, head - 1].detach()
    donor = getattr(reading.donors[Address("plain", layer)], component)[:, head - 1]
    return float((donor - base).norm() / base.norm().clamp_min(1e-30))


def composition(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """Weights alone (Elhage et al. 2021): how strongly an earlier head's output is read here, or of v also what it writes later."""
    (component, layer, head), reading = place_of(site), read_pairs(model, texts)
    heads = _queries_of(reading.traces[layer], component, head) if component == "v" else []
    writers = {f"{layer}.h{h + 1}" for h in heads}
    scores = reading.compositions.items()
    return max((s for (w, *reader), s in scores if reader == [layer, component, head] or w in writers), default=0.0)


def contrast(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """Contrastive covariance (after arXiv 2602.04752): how far the site's covariance with its partner differs between base and donor.

    At the last position: q with the key that it attends to, that key with q, the value with what the output matrices read for the
    answer. The Frobenius norm of E[base ⊗ partner] − E[donor ⊗ partner], divided by that of the first.
    """
    component, layer, head = place_of(site)
    reading = read_pairs(model, texts)
    trace, donors = reading.traces[layer], reading.donors[Address("plain", layer)]
    values = []
    for h in _queries_of(trace, component, head):
        weights, key_head = trace.weights[:, h, -1, :, None].detach(), h // trace.group
        means = [(weights * part[:, key_head].detach()).sum(1) for part in (trace.k, donors.k, trace.v, donors.v)]
        assert trace.w_o is not None, "a model whose output projection is known"
        answers = model.model.get_output_embeddings().weight[reading.answers].detach() @ trace.w_o[h].T  # pyright: ignore[reportCallIssue]
        query = trace.q[:, h, -1].detach()
        sides = {"q": (query, donors.q[:, h, -1], means[0]), "k": (means[0], means[1], query)}
        base, donor, partner = (sides | {"v": (means[2], means[3], answers)})[component]
        values.append(float(((base - donor).T @ partner).norm() / (base.T @ partner).norm().clamp_min(1e-30)))
    return max(values)


def gradient(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """Attribution patching (Nanda 2023): gradient of the answer's logit times the difference to the donor, over all positions."""
    return _attribution(read_pairs(model, texts), site, corrected=False)


def atp_star(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """AtP* (Kramár et al. 2024): the same, with the attention weights that the donor's q or k gives computed, not linear."""
    return _attribution(read_pairs(model, texts), site, corrected=True)


def _attribution(reading: _PairReading, site: Site, corrected: bool) -> float:
    (component, layer, head), every = place_of(site), reading.batch.source.real
    both = attribute(reading.traces[layer], reading.donors[Address("plain", layer)], every, every)
    return float(both[component][0 if corrected else 1][:, head - 1].sum(-1).abs().mean())


def ablation(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """Mean ablation: how far the answer's logit moves with the site at its mean over texts, position by position."""
    return _effect(model, tuple((str(pair.base), str(pair.base), str(pair.answers["base"])) for pair in texts), site)


def patching(model: Pretrained, texts: Sequence[TextPair], site: Site) -> float:
    """Activation patching: how far the answer's logit moves with the donor's in place of the site, a pass for each site."""
    return _effect(model, tuple((str(pair.base), str(pair.donor), str(pair.answers["base"])) for pair in texts), site)


@lru_cache(maxsize=256)
def _effect(model: Pretrained, texts: tuple[tuple[str, str, str], ...], site: Site) -> float:
    """Mean absolute change of the answer's logit where the site is the donor's, or, if donors are the bases, at its mean over these."""
    (component, layer, head), reading = place_of(site), _read(model, texts)
    address, every = Address("plain", layer), reading.batch.source.real
    source = reading.donors[address]
    if all(base == donor for base, donor, _ in texts):
        source = QKV(*(part.mean(0, keepdim=True).expand_as(part) for part in source))
    write = replace_at([SiteTarget(address, component, (head,))], source, every, every)
    outputs = model.outputs(reading.batch, {address: write}, places=every.sum(1) - 1)[:, 0]
    return float((outputs.gather(1, reading.answers[:, None].to(outputs.device))[:, 0] - reading.logits).abs().mean())


ScoreFunction: TypeAlias = Callable[[Pretrained, Sequence[TextPair], Site], float]
METHODS: Mapping[str, ScoreFunction] = {
    method.__name__: method
    for method in (
        *(chance, attention, norm, contribution, difference, composition, contrast),
        *(ablation, gradient, atp_star, patching),
    )
}


def measure(settings: BenchmarkSettings, context: RunContext) -> Measured[BenchmarkFacts]:
    """Score every method at every site of every world's models; raises SpecError for a method that fails."""
    methods, worlds = choose(settings)
    rows: dict[str, list[NewRow]] = {name: [] for name in SCHEMAS}
    jobs = [(name, seed) for name in worlds for seed in settings.seeds]
    with context.progress(f"scoring {len(methods)} methods") as step:
        for done, (name, seed) in enumerate(jobs, 1):
            with on_step(lambda words: None):  # of each model's verification
                model, texts, truth = build_world(WORLDS[name], seed, settings.pairs)
            scored = score_sites(methods, model, texts, truth)
            named: NewRow = {"world": name, "seed": seed}
            rows["scores"] += [named | row for row in scored]
            rows["seeds"] += [named | {"method": m, "auroc": area(scored, m)} for m in methods]
            if seed == settings.seeds[0]:
                positive = sum(len(sites) for sites in truth.values())
                sites = len(scored) // len(methods) // len(truth)
                counts = {"sites": sites, "positive": positive, "negative": sites * len(truth) - positive}
                rows["worlds"].append({"world": name, "sentence": WORLDS[name].sentence, **counts})
            step(done, len(jobs))
    areas = pl.DataFrame(rows["seeds"], SCHEMAS["seeds"])
    mean_areas = areas.group_by("method", "seed", maintain_order=True).agg(
        pl.col("auroc").mean(), pl.lit("all").alias("world")
    )
    both = pl.concat([areas, mean_areas.select(areas.columns)]) if len(worlds) > 1 else areas
    for (world, method), part in both.group_by("world", "method", maintain_order=True):
        sample = summary(part["auroc"].to_numpy())
        low, high = (finite(np.clip(end, 0, 1)) for end in t_interval(sample))
        value = {"value": finite(sample.mean), "low": low, "high": high, "n": len(part)}
        rows["auroc"].append({"world": world, "method": method, **value})
    for name, method in methods.items():
        sentence = (inspect.getdoc(method) or "").split("\n")[0]
        code = getattr(method, "__code__", None)
        source = "built-in" if METHODS.get(name) is method else Path(code.co_filename).name if code else "an object"
        rows["methods"].append({"method": name, "sentence": sentence, "source": source})
    tables = {name: pl.DataFrame(records, SCHEMAS[name]) for name, records in rows.items()}
    return Measured(tables, BenchmarkFacts(settings.seeds, settings.pairs), packages=("transformers", "scikit-learn"))


def choose(settings: BenchmarkSettings) -> tuple[dict[str, ScoreFunction], tuple[str, ...]]:
    """The methods by name, built-in ones first, and the worlds; raises SpecError for unknown ones."""
    for kind, names, options in (("method", settings.methods, METHODS), ("world", settings.worlds, WORLDS)):
        if strange := [name for name in names if name not in options]:
            problem = unknown_name(kind, strange[0], options)
            raise SpecError(problem, f"There are {', '.join(options)}.", "Use one of them.")
    methods = {name: METHODS[name] for name in settings.methods or METHODS}
    others: list[Any] = [method for file in settings.files for method in _read_methods(Path(file))]
    for method in others + list(settings.functions):
        name = str(getattr(method, "__name__", type(method).__name__))
        if not callable(method) or name in methods:
            problem = f"{name} is {'the name of two methods' if callable(method) else 'no function'}."
            raise SpecError(problem, f"Methods so far are {', '.join(methods)}.", "Give functions of other names.")
        methods[name] = cast(ScoreFunction, method)
    return methods, settings.worlds or tuple(name for name, world in WORLDS.items() if not world.trained)


def _read_methods(file: Path) -> list[ScoreFunction]:
    """The public functions of a Python file that take a model, texts and a site; raises SpecError if there is none."""
    requirement = "A method is a function (model, texts, site) -> score of a Python file."
    if not file.is_file():
        raise SpecError(f"{file} is no file.", requirement, "Give the path of an existing file.")
    try:
        namespace = runpy.run_path(str(file), run_name=file.stem)
    except (Exception, SystemExit) as error:
        raise SpecError(f"{file} cannot be run: {type(error).__name__}: {error}", requirement, "Correct it.") from error
    functions = [f for name, f in namespace.items() if inspect.isfunction(f) and not name.startswith("_")]
    methods = [f for f in functions if f.__module__ == file.stem and len(inspect.signature(f).parameters) == 3]
    if not methods:
        raise SpecError(f"{file} has no such function.", requirement, "Define one: def method(model, texts, site): ...")
    return methods


def score_sites(
    methods: Mapping[str, ScoreFunction],
    model: Pretrained,
    texts: Mapping[str, tuple[TextPair, ...]],
    truth: Mapping[str, frozenset[Site]],
) -> list[NewRow]:
    """A row for each property, method and site; raises SpecError for a score that is not a finite number."""
    heads = model.shape.heads.items()
    counts = {(a.layer, c): h.query if c == "q" else h.key for a, h in heads for c in "qkv"}
    sites = [Site((c,), (layer,), (h,)) for (layer, c), count in counts.items() for h in range(1, count + 1)]
    rows: list[NewRow] = []
    for name, pairs in texts.items():
        for method, score in methods.items():
            for site in sites:
                try:
                    value = float(score(model, pairs, site))
                except TrisectError:
                    raise
                except Exception as error:
                    problem = f"{method} fails at {site}: {type(error).__name__}: {error}"
                    requirement = "It is called with a model, pairs of texts and a site, and returns a number."
                    raise SpecError(problem, requirement, "Correct the method.") from error
                if not math.isfinite(value):
                    problem = f"{method} returned {value} at {site}."
                    requirement = "A score is a finite number, larger where the site matters."
                    raise SpecError(problem, requirement, "Return 0 where nothing is known.")
                row = {"property": name, "site": str(site), "truth": site in truth[name]}
                rows.append(row | {"method": method, "score": value})
    return rows


def area(rows: Sequence[NewRow], method: str) -> float:
    """AUROC of a method over the properties and sites of one model: how often a positive scores above a negative, ties half."""
    from sklearn.metrics import roc_auc_score

    selection = [row for row in rows if row["method"] == method]
    truth = [bool(row["truth"]) for row in selection]
    return float(roc_auc_score(truth, [float(row["score"] or 0.0) for row in selection]))
