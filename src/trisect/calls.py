"""Python calls that are no experiments: models, texts, corpora, and the files and claims of studies."""

from __future__ import annotations

import json
import re
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from trisect.core.errors import ModelError, SpecError, StudyError, check_name, translate_system_errors
from trisect.core.files import is_scratch
from trisect.core.subject import EditFunction, InputSample, ModelInputs, Readable, Texts
from trisect.core.trace import Reading
from trisect.lab.experiment import Result
from trisect.lab.inputs import open_any
from trisect.lab.jobs import screen
from trisect.lab.run_folder import MANIFEST, RunFolder, is_study
from trisect.lab.subject import check_folder, load
from trisect.lm.reading import edit_own
from trisect.text.corpus import Corpus
from trisect.text.sources import open_corpus

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from polars import DataFrame

    from trisect.core.trace import Unembedding, WrittenStream
    from trisect.experiments.explore.page import Framed
    from trisect.hf.verify.proof import Proof
    from trisect.measure.intervention import Intervention, PreparedText
    from trisect.report.notebook import Chart
    from trisect.server.run import ServedPage
    from trisect.theory import Construction


@translate_system_errors()
def texts(
    where: str | Path | Sequence[Readable] | Texts,
    split: str = "test",
    reader: str | None = None,
    limit: int | None = None,
) -> Texts:
    """Texts of one split of a corpus ('embedded', a folder, hf:NAME), or a list of texts."""
    return open_any(where, split, reader, limit)


def chart(result: Construction) -> Chart:
    """A chart of the result of a function of `trisect.theory`: closed forms over computed values."""
    from trisect.experiments.theory.page import chart as draw

    return draw(result)


@translate_system_errors()
def prove(
    model: Any,
    inputs: ModelInputs | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
) -> Proof:
    """The proof that a pretrained model is read correctly: `rows()` as a table, `refusal` None or the error to raise."""
    from trisect.hf.load import load as load_pretrained

    check_folder(model)
    with screen("trisect.prove"):
        return load_pretrained(
            model, None, inputs, None, revision, dtype, device, device_map, pickle, remote_code, proof=False
        ).proof


@translate_system_errors()
def explore(reading: Any, text: Any = None, row: int = 0) -> AnyWidget | Framed:
    """Explore every head of one row of a Reading, or of a model and a text, in a notebook.

    A text may be a pair, source and target; the row counts from 0.
    """
    from trisect.experiments.explore.run import explore as show

    if isinstance(text, int):
        text, row = None, text
    if isinstance(reading, Reading):
        return show(reading, row)
    if text is None:
        problem = f"{type(reading).__name__} was given, and no text."
        raise ModelError(
            problem, "A view is into a Reading, or into a model and a text.", "Give a text beside the model."
        )
    subject = load(reading) if not hasattr(reading, "trace") else reading
    return show(subject.read(text), row, subject, text)


@translate_system_errors()
def intervene(
    model: Any,
    text: Readable,
    switches: Mapping[str, str | EditFunction],
    second: Readable | None = None,
    place: int | None = None,
    positions: Sequence[int] = (),
) -> Intervention:
    """The outputs of a model for a text with q, k or v of some sites replaced, and without.

    `switches` says for each site, such as 'v@3.h2' or 'q@all', 'zero', 'half', 'double', 'mean' (over its positions, per head),
    'second': what the text `second` has at the same positions, or a function as in `trisect.edit`. Predictions are of
    position `place`, from 0: the mask's or the last one where None. `positions`, from 0, are those that are switched; empty are all.
    """
    from trisect.measure.intervention import intervene as switch

    return switch(model if hasattr(model, "outputs") else load(model), text, switches, second, place, positions)


@contextmanager
def edit(model: Any, edits: Mapping[str, EditFunction]) -> Iterator[Any]:
    """Context manager: a model runs with functions at q, k or v of its sites (in calls, `generate`, measures); yields the module.

    A model of a study has no module: it gives the model, which is read, scored or measured.

    `edits` holds for each site, such as 'v@3.h2' or 'q@all', a function (tensor, where) -> tensor. `tensor` is a copy of
    what the site holds: [B, H, T, E] of q, [B, K, S, E] of k, [B, K, S, V] of v, H or K being the heads that it names, with
    device, dtype and graph; q and k are after rotary positions. `where` has `address` (stack, layer), `component`, `heads`.
    What is returned goes on, and has the same shape, dtype and device.

    A key/value cache holds keys and values unedited: at each step q is of the new positions, k and v of all that the cache
    gives (a static one's empty places too), edited again. Blocks are nested, outer functions first, and hold for their
    thread; passes of others wait for its own. The attention implementation stays; torch.compile runs eagerly.
    Raises SiteError, SpecError; and ModelError for another kind of tensor, and for a site that a pass, or all, did not reach.
    """
    from trisect.hf.hooks.edit import editing

    if not edits:
        raise SpecError(
            "No function is given.", "A block without edits changes nothing.", 'Give for example {"v@3": fn}.'
        )
    subject: Any = model if hasattr(model, "outputs") else load(model)
    if not hasattr(subject, "proof"):
        with edit_own(subject, edits):
            yield subject
        return
    addresses = dict(zip(subject.addresses, (layer.module for layer in subject.proof.weights), strict=True))
    with editing(subject.name, subject.model, addresses, subject.proof.hook, subject.shape, edits):
        yield subject.model


@translate_system_errors()
def read(
    model: Any, texts: Any = None, images: Any = (), audio: Any = (), grad: bool = False, stream: bool = False
) -> Reading:
    """Read texts, images or sound: a Trace of q, k, v, weights and output per layer, as `trisect.load(model).read` does.

    With `grad` traces keep their graph: after a backward pass of any function of `reading.output` [B, T, V] (logits, or last
    hidden states) `trace.q.grad`, `trace.k.grad`, `trace.v.grad` are its derivatives by what enters the dot product. Tensors
    then stay on the model's device; weights get no gradient. With `stream`, `reading.stream` is the residual stream [B, T, D] and
    what each head, feed-forward block, bias and embedding adds to it: `reading.stream["3.h2"]`, verified to sum to it.
    Raises ModelError, also where they do not.
    """
    subject: Any = model if hasattr(model, "outputs") else load(model)
    if not grad and not stream:
        return subject.read(texts, images, audio) if images or audio else subject.read(texts)
    if grad and stream:
        reason = "The stream is read in passes without a graph."
        raise SpecError("Gradients and the stream were asked for.", reason, "Read twice, once with each.")
    if not hasattr(subject, "proof"):
        what = "Gradients" if grad else "Writers of the stream"
        reason = "A model of a study is computed without a graph, and its norms stand behind the sums."
        raise ModelError(f"{what} of {subject.name} were asked for.", reason, "Give a pretrained model.")
    from trisect.hf.load import read_with_gradients, single_batch

    media = [tuple(items) if isinstance(items, (list, tuple)) else (items,) for items in (audio, images)]
    sample = InputSample(texts, media[0], media[1]) if any(media) else texts
    if grad:
        return read_with_gradients(subject, sample)
    from trisect.measure.composition import read_stream

    subject, batch = single_batch(subject, sample)
    reading = subject.trace(batch)
    return replace(reading, stream=read_stream(subject, batch, reading))


@translate_system_errors()
def direct_logits(
    model: Any,
    text: Readable,
    token: str | int | None = None,
    against: str | int | None = None,
    place: int | None = None,
) -> DataFrame:
    """Direct logit attribution: the contribution of each head, each of its source tokens, and every other writer to a token's logit.

    A table of token, against, writer ('3.h2', '3.mlp', '3.bias', 'embedding', 'position', 'constant'), layer, head, source (a
    position from 0; None for a writer as a whole), source_token and logit. Rows without a source sum to the logit of `token`, a
    word or an id, less that of `against`; the sources of a head sum to the head. None is the model's own prediction at `place`,
    which counts from 0: where None that of a mask, else the last. The final norm is linear with its scale held at this pass's value;
    its shift and the output's bias are 'constant'. Of a long text the first window is read.
    Raises ModelError where writers do not sum to the stream, or logits are not one map of a norm of it. Source: Elhage et al. 2021.
    """
    from trisect.measure.logits import direct_table, lens_logits

    ready, stream, unembedding = _writers_of(model, text)
    at, size = ready.place(place), len(unembedding.weight)
    other = None if against is None else _token_number(ready.subject, against, size)
    if token is None:
        *_, (_, logits) = lens_logits(stream, unembedding)
        number = int(logits[0, at].argmax())
    else:
        number = _token_number(ready.subject, token, size)
    return direct_table(stream, unembedding, ready.side.tokens[0], ready.subject.token, at, number, other)


@translate_system_errors()
def logit_lens(model: Any, text: Readable, top: int = 5) -> DataFrame:
    """The logit lens: predictions after each layer, through the final norm and the unembedding.

    A table of layer (0: the embedding), position (from 0), token, rank (1 to `top`), prediction, probability, and kl_nats: of the
    model's own distribution from this layer's. The norm takes each layer's own scale; the last layer's predictions are the model's.
    Of a long text the first window is read. Raises ModelError as `direct_logits`. Source: nostalgebraist 2020.
    """
    from trisect.measure.logits import lens_table

    if not isinstance(top, int) or top < 1:
        raise SpecError(f"top={top} was given.", "It is how many predictions are listed.", "Give 1 or more.")
    ready, stream, unembedding = _writers_of(model, text)
    return lens_table(stream, unembedding, ready.side.tokens[0], ready.subject.token, top)


def _writers_of(model: Any, text: Readable) -> tuple[PreparedText, WrittenStream, Unembedding]:
    """A text made ready, the sum that its stream is, and how logits are made of it; raises ModelError where they are not."""
    from trisect.hf.locate.blocks import find_unembedding
    from trisect.measure.composition import read_stream
    from trisect.measure.intervention import PreparedText

    subject: Any = model if hasattr(model, "outputs") else load(model)
    ready = PreparedText.of(subject, text)
    stream = read_stream(subject, ready.batch)
    return ready, stream, find_unembedding(subject, subject.model, ready.batch)


def _token_number(subject: Any, token: str | int, size: int) -> int:
    """The id of a token; raises SpecError for an unknown token, and for a word of several pieces."""
    if not isinstance(token, str):
        if isinstance(token, SupportsIndex) and 0 <= index(token) < size:
            return index(token)
        reason = f"{subject.name} has logits of {size:,} tokens, counted from 0."
        raise SpecError(f"Token {token} was asked for.", reason, "Give one of them.")
    from trisect.hf.files.tokenizers import tokenize

    if subject.tokenizer is None:
        raise SpecError(f"The token {token!r} was asked for.", f"{subject.name} has no tokenizer.", "Give its number.")
    pieces = tokenize(subject.name, subject.tokenizer, token, add_special_tokens=False)["input_ids"]
    unknown = len(pieces) != 1 or pieces[0] == getattr(subject.tokenizer, "unk_token_id", None)
    number = subject.tokenizer.get_vocab().get(token) if unknown else pieces[0]
    if number is None:
        reason = f"To its tokenizer that is {', '.join(map(repr, map(subject.token, pieces))) or 'nothing'}."
        raise SpecError(f"The token {token!r} was asked for.", reason, "Give one of them, or a token's number.")
    return number


@translate_system_errors()
def serve(
    model: Any,
    text: Readable | Sequence[str] = (),
    second: Readable | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    open: bool = False,
    wait: bool = True,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
) -> ServedPage:
    """Serve a page on this machine, to replace q, k or v of any site of a model and see the changes.

    `model` is what `trisect.load` takes or returns; `text` and `second` stand in the page at first, also as a processor's
    outputs or a Batch. Prints the address and
    returns when interrupted; where `wait` is false, returns at once, and `stop()` of what is returned ends it. Needs the
    extra `trisect[serve]`.
    """
    from trisect.server.run import start

    named = {"revision": revision, "dtype": dtype, "device": device, "device_map": device_map}
    with screen("trisect serve"):
        served = start(model, text, second, host, port, **named, pickle=pickle, remote_code=remote_code)
    if open:
        webbrowser.open(served.address)
    if wait:
        print(served.address, flush=True)
        served.wait()
    return served


@translate_system_errors()
def switchboard(model: Any, text: str | Sequence[str] = (), second: str | Sequence[str] = ()) -> AnyWidget:
    """The page of `serve` in a notebook, answered by the kernel.

    `model` is what `trisect.load` takes or returns. Needs the extra `trisect[notebook]`.
    """
    from trisect.server.widget import switchboard as show

    texts = ((words,) if isinstance(words, str) else tuple(words) for words in (text, second))
    named = isinstance(model, (str, Path))
    return show(load(model) if not hasattr(model, "outputs") else model, repr(str(model)) if named else "", *texts)


@translate_system_errors()
def render(out: str | Path) -> Result[Any]:
    """Make page, figures and README.md of a folder again, for any command; measures and trains nothing.

    A study's tables are made again too, from its finished runs. Raises StudyError for a folder without results, or whose
    tables do not make a page.
    """
    from trisect.experiments import EXPERIMENTS
    from trisect.experiments.study import STUDY
    from trisect.experiments.study.run import render_report
    from trisect.lab.driver import rebuild

    check_name("a folder of results", out)
    return render_report(STUDY, Path(out)) if is_study(Path(out)) else rebuild(EXPERIMENTS, Path(out))


@translate_system_errors()
def check(out: str | Path) -> list[StudyError]:
    """Read all files of a study, or those that finished runs of another command list; an error for each that is damaged, altered
    or of another run, saying what to do. Of an interrupted command over several models, finished ones are read. Changes nothing.
    """
    from trisect.experiments.study.run import check_study

    check_name("a folder of results", out)
    folder, run = Path(out), RunFolder(Path(out))
    if is_study(folder) or not is_results(folder):
        errors = check_study(folder)
        again = f"Call 'trisect report {out}': it makes tables, figures and report again from the runs."
        for error in run.check(again) if run.has_run else []:
            path = re.split(r" (?:is|was|belongs) [a-z ]+\.$", error.problem)[0]
            if not any(path in other.problem for other in errors):
                errors.append(error)
        return errors
    # of a dissection those of its parts too; other programs write files of that name as well
    paths = (
        path for path in sorted(folder.rglob(MANIFEST)) if not any(map(is_scratch, path.relative_to(folder).parts))
    )
    places = [path.parent for path in paths if path.parent == folder or not _is_foreign(path)]
    return [error for place in places for error in (check(place) if is_study(place) else RunFolder(place).check())]


def _is_foreign(path: Path) -> bool:
    """Whether a file is JSON without the body that every file of trisect's has."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return not (isinstance(content, dict) and "body" in content)


def is_results(out: str | Path) -> bool:
    """Whether a folder has a study, a finished run, or finished units of one."""
    run = RunFolder(Path(out))
    return is_study(run.path) or run.has_run or bool(run.units_command)


def list_claims() -> list[dict[str, object]]:
    """Every claim with its parts, margins and reasons, as fixed before any data."""
    from trisect import claims
    from trisect.report.notebook import Listing

    return Listing(claims.listing())


@translate_system_errors()
def corpus(where: str | Path = "embedded", reader: str | None = None) -> Corpus:
    """A tokenized corpus: 'embedded', a corpus folder, or a raw folder read by `reader` (detected when None)."""
    return open_corpus(where, reader)
