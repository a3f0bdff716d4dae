"""Read a text for the explorer, as a page or in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from trisect.core.errors import CorpusError, ModelError, TrisectError
from trisect.core.subject import Batch, SeeingSubject, StreamSubject, Subject
from trisect.core.trace import Reading, Side, Trace
from trisect.experiments.explore.page import (
    MAX_DENSE_WEIGHTS,
    ExplorerPicture,
    Framed,
    Layer,
    LongLayer,
    TokenLogits,
    Words,
    check_length,
    count_keys,
    show,
    trim_layer,
)
from trisect.experiments.explore.settings import ExploreFacts, ExploreSettings
from trisect.lab.experiment import Measured, RunContext
from trisect.measure.composition import read_stream
from trisect.measure.logits import head_tokens, lens_logits
from trisect.measure.norms import layer_contributions, summed_norms, transformed_norms

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from trisect.core.subject import TextOrPair
    from trisect.hf.load import Pretrained

# Rows of log a - scale·q·k that vary by less are constant: what float32 leaves of a softmax.
MAX_SPREAD = 0.02
MAX_LOGIT_ROWS = 6_000  # heads times positions whose words a page holds
MAX_PRODUCTS = 100_000_000_000  # that are computed for them: some seconds
TOP_WORDS, LENS_WORDS = 4, 3  # words of a head that are raised, and as many lowered; of a layer


def measure(settings: ExploreSettings, context: RunContext) -> Measured[ExploreFacts]:
    """Read the text for the explorer's page.

    Of a text longer than the model's window the first window is shown, and the page says so. Raises CorpusError for a text
    without tokens or too long for a page.
    """
    subject = context.subject
    if settings.image or settings.audio:
        medium = "An image" if settings.image else "A sound"
        if not isinstance(subject, SeeingSubject):
            words = "It is one of a study, and reads words."
            raise ModelError(f"{medium} was given to {subject.name}.", words, "Leave it out.")
        text = settings.text[0] if settings.text else None
        picture = take_picture(subject.read(text, settings.image, settings.audio))
    else:
        texts: TextOrPair = settings.text[0] if len(settings.text) == 1 else (settings.text[0], settings.text[1])
        batch = next(iter(subject.batches([texts], size=1)), None)
        if batch is None:
            raise CorpusError("The text is empty.", "Nothing was read.", "Give a text of at least one token.")
        source, target = (int(side.real[0].sum()) for side in (batch.source, batch.target or batch.source))
        sizes = {"dec": (target, target), "cross": (target, source)}
        shapes = [(h.query, *sizes.get(a.stack, (source, source))) for a, h in subject.shape.heads.items()]
        weights = sum(map(prod, shapes))
        check_length(subject.name, shapes)
        windows = sum(len(part.rows) for part in subject.batches([texts], size=8))
        note = (f"The text has {windows} windows; this is the first.",) * (windows > 1)
        if weights > MAX_DENSE_WEIGHTS:
            keys = count_keys((heads, queries) for heads, queries, _ in shapes)
            picture = _long_picture(subject, batch, keys, sum(heads for heads, _, _ in shapes))
        else:
            reading = subject.trace(batch)
            picture = with_logits(take_picture(reading), subject, batch, reading)
        picture = replace(picture, notes=(*picture.notes, *note))
    picture = replace(picture, facts=(*picture.facts, ("Fingerprint", subject.fingerprint)))
    return Measured({}, ExploreFacts(picture), packages=())


def _long_picture(subject: Subject, batch: Batch, keys: int, heads: int) -> ExplorerPicture:
    """The first row of a batch, read with one layer in memory at a time; of each query the `keys` largest weights."""
    about = (batch.source, batch.target, batch.rows, batch.notes, subject.objective)
    reading, layers, others = Reading(subject.name, (), *about, sides=batch.sides), list[LongLayer](), list[str]()
    target = None if batch.target is None else _words(batch.target, 0)
    facts = (("Model", subject.name),)
    picture = ExplorerPicture(subject.name, (), _words(batch.source, 0), target, batch.notes, facts, long_layers=layers)

    def see(trace: Trace) -> None:
        if _is_shown(reading, trace):
            layers.append(trim_layer(picture, _layer(_row(trace, 0), subject.name, is_long=True), keys, heads))
        else:
            others.append(trace.stack)

    subject.each(batch, see)
    if not layers:
        raise _nothing_shown(subject.name)
    return replace(
        picture, notes=(*picture.notes, *_left_out(others), "What heads say is left out: the text is too long.")
    )


def _is_shown(reading: Reading, trace: Trace) -> bool:
    """Whether a layer's queries and keys are positions of the source or the target."""
    queries, keys, sides = reading.queries(trace), reading.keys(trace), (reading.source, reading.target)
    lengths = (queries.real.shape[1], keys.real.shape[1])
    return all(any(side is s for s in sides) for side in (queries, keys)) and lengths == trace.weights.shape[2:]


def explore(reading: Reading, row: int = 0, subject: Subject | None = None, text: object = None) -> AnyWidget | Framed:
    """The explorer of one row of a reading, for a notebook: an anywidget, or without that package an object with HTML.

    `row` counts from 0. What heads add to logits is shown of one `text` that a `subject` reads in one window. Raises CorpusError when
    the reading has no such row.
    """
    picture = take_picture(reading, row)
    if subject is None or not isinstance(text, str) or len(reading.source.tokens) > 1:
        return show(picture)
    return show(with_logits(picture, subject, next(iter(subject.batches([text], size=1))), reading))


def with_logits(picture: ExplorerPicture, subject: Subject, batch: Batch, reading: Reading) -> ExplorerPicture:
    """The picture of a batch's first row with direct logit contributions and the logit lens; with a note where they are refused.

    Of a long text, or a large model, at its last positions alone, which the page says.
    """
    from trisect.hf.locate.blocks import find_unembedding

    if not isinstance(subject, StreamSubject):
        return picture
    try:
        stream = read_stream(subject, batch, reading)
        pretrained = cast("Pretrained", subject)
        unembedding = find_unembedding(subject, pretrained.model, batch)
    except ModelError as error:
        return replace(picture, notes=(*picture.notes, f"What heads say is not shown. {error.problem} {error.reason}"))
    heads, length = sum(trace.heads for trace in reading.traces), stream.output.shape[1]
    limit = min(MAX_LOGIT_ROWS // heads, MAX_PRODUCTS // (heads * unembedding.weight.numel()))
    first = max(0, length - max(1, limit))
    raised = [(n.numpy(), v.numpy()) for n, v in head_tokens(stream, unembedding, first, TOP_WORDS)]
    shares = [logits[0].softmax(-1) for _, logits in lens_logits(stream, unembedding, first)]
    best = [share.topk(min(LENS_WORDS, share.shape[-1])) for share in shares]
    lens = np.stack([b.indices.cpu().numpy() for b in best])
    likely = np.stack([b.values.float().cpu().numpy() for b in best])
    chosen = np.unique(np.concatenate([n.ravel() for n in (*(n for n, _ in raised), lens)]))
    tokenizer, numbers = pretrained.tokenizer, chosen.tolist()
    tokens = tuple(map(str, numbers if tokenizer is None else tokenizer.convert_ids_to_tokens(numbers)))
    places = [np.searchsorted(chosen, n) for n, _ in raised]
    logits = TokenLogits(tokens, first, places, [v for _, v in raised], np.searchsorted(chosen, lens), likely)
    return replace(picture, logits=logits)


def take_picture(reading: Reading, row: int = 0) -> ExplorerPicture:
    """One row of a reading, without padding, as an ExplorerPicture; raises CorpusError for a row that does not exist."""
    rows = len(reading.source.tokens)
    if not 0 <= row < rows:
        there_are = f"The reading has {rows}, counted from 0."
        raise CorpusError(f"Row {row} was asked for.", there_are, "Choose one of them.")
    facts = (("Model", reading.model), *((k.capitalize(), v) for k, v in reading.facts.items() if k != "model"))
    shown = [trace for trace in reading.traces if _is_shown(reading, trace)]
    if not shown:
        raise _nothing_shown(reading.model)
    layers = tuple(_layer(_row(trace, row), reading.model) for trace in shown)
    target = None if reading.target is None else _words(reading.target, row)
    notes = (*reading.notes, *_left_out(t.stack for t in reading.traces if all(t is not s for s in shown)))
    if rows > 1:
        notes = (*notes, f"The reading has {rows} rows; this is row {row}, counted from 0.")
    return ExplorerPicture(reading.model, layers, _words(reading.source, row), target, notes, facts)


def _nothing_shown(model: str) -> CorpusError:
    none = f"No layer of {model} attends to what the page shows."
    return CorpusError(none, "Its positions are neither the source's nor the target's.", "Look at its traces.")


def _left_out(stacks: Iterable[str]) -> tuple[str, ...]:
    """A note on the stacks of layers that are not shown; none without such."""
    names = ", ".join(dict.fromkeys(stacks))
    return (f"Not shown, since it attends to other positions: {names}.",) if names else ()


def _words(side: Side, row: int) -> Words:
    places = [i for i, real in enumerate(side.real[row].tolist()) if real]
    special = side.special[row].tolist()
    return Words(tuple(side.tokens[row][i] for i in places), tuple(bool(special[i]) for i in places))


def _row(trace: Trace, row: int) -> Trace:
    """One row of a trace without padding or its block."""
    queries, keys = trace.query_real[row].bool(), trace.key_real[row].bool()
    w_o = trace.projections.w_o

    def cut(values: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return values[row : row + 1, :, real].detach().float().cpu()

    return replace(
        trace,
        q=cut(trace.q, queries),
        k=cut(trace.k, keys),
        v=cut(trace.v, keys),
        output=cut(trace.output, queries),
        weights=cut(trace.weights, queries)[..., keys.cpu()],
        query_real=queries[queries][None].cpu(),
        key_real=keys[keys][None].cpu(),
        projections=replace(trace.projections, w_o=None if w_o is None else w_o.detach().float().cpu()),
        block=None,
    )


def _layer(trace: Trace, model: str, is_long: bool = False) -> Layer:
    """A trace of one row as the page has it; of a long text without contributions."""
    if not bool(trace.weights.isfinite().all()):
        values = f"The weights of {trace.address} hold values that are not finite."
        raise TrisectError(f"{model!r} cannot be shown.", values, "Load the model in float32, or look at its weights.")
    plain = False  # whether log a - scale·q·k is one number along each row: the softmax of scale·q·k is the weights
    if trace.scale is not None:
        plain = True
        for weights, q, k in zip(trace.weights[0], trace.q[0], trace.keys[0], strict=True):
            rest, counted = (weights.clamp_min(1e-30).log() - q @ k.mT * trace.scale).numpy(), weights.numpy() > 1e-6
            high = np.where(counted, rest, -np.inf).max(axis=-1)
            low = np.where(counted, rest, np.inf).min(axis=-1)
            plain = plain and bool(((high - low)[counted.any(axis=-1)] < MAX_SPREAD).all())
    norms = summed = sources = shares = None
    lacking = ""
    if trace.w_o is None:
        origin = trace.projections.origins.get("o")
        lacking = origin.words if origin is not None else "the output's map was not found"
    else:
        norms = transformed_norms(trace)[0].float().numpy()
        summed = summed_norms(trace)[0].float().numpy()
        if not is_long:
            shares = layer_contributions(trace)[0].float().numpy()
            f = (trace.values @ torch.linalg.qr(trace.w_o.mT, mode="r").R.mT)[0].double()
            axes = torch.linalg.eigh(f.mT @ f).eigenvectors.flip(-1)  # so that most numbers are near 0, and pack well
            sources = (f @ axes).mT[:, : f.shape[1]].float().numpy()
    return Layer(
        trace.stack,
        trace.layer,
        trace.weights[0].numpy(),
        trace.q[0].numpy(),
        trace.k[0].numpy(),
        norms,
        summed,
        trace.scale,
        plain,
        lacking,
        trace.v[0].numpy(),
        sources,
        shares,
    )
