"""Load and verify a Hugging Face model as a Subject that can be read, scored and edited; read sentence pairs and gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trisect.core.errors import ModelError
from trisect.core.subject import (
    QKV,
    Batch,
    InputSample,
    Media,
    ModelInputs,
    Readable,
    RowScores,
    Shape,
    SiteEdits,
    StreamPoint,
    StreamWriters,
    TextOrPair,
    as_sample,
)
from trisect.core.trace import Address, Projections, Reading, Side, Trace, crosses
from trisect.hf.batches import (
    CPU,
    IGNORED,
    RecordedCall,
    TextBatcher,
    copy_to_device,
    find_sides,
    first_tensor,
    longest_window,
    measure_device,
    output_at,
    pad_rows,
    row_scores,
    trace_of,
)
from trisect.hf.files.checkpoints import State, check_state, check_writes, hash_weights
from trisect.hf.files.fetch import Options, fetch, objective_of
from trisect.hf.files.model_errors import check_finite, forward_error
from trisect.hf.files.tokenizers import tokenize
from trisect.hf.forward import (
    HeldWeights,
    OtherCallsError,
    PrefixReuse,
    ProvedModel,
    SharedPasses,
    Written,
    check_after,
    confirm,
    near,
    path_gradients,
    run_forward,
)
from trisect.hf.hooks.calls import (
    Call,
    ModelOutput,
    check_inputs,
    check_model,
    check_readable,
    edits_at,
    evaluating,
    outline,
    synchronized,
    unwrap_model,
    without_recompute,
)
from trisect.hf.hooks.edit import edited_streams, open_edits
from trisect.hf.locate.blocks import watch
from trisect.hf.processor import Processor, is_processor, load_processor
from trisect.hf.verify.agreement import check_weights, rounding_notes
from trisect.hf.verify.laws import check_maps, checking
from trisect.hf.verify.proof import Proof, prove


class _LazyProjections(Sequence[Projections]):
    """The weights of several layers, each copied to the CPU on access; `check` raises if the model's weights have changed."""

    def __init__(self, projections: Sequence[Projections], check: Callable[[], None]) -> None:
        self._projections, self._check = tuple(projections), check

    def __len__(self) -> int:
        return len(self._projections)

    @synchronized
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _LazyProjections(self._projections[index], self._check)
        self._check()
        return self._projections[index].copy_to(CPU)


ANY = "MODEL"  # on a command line, for a model without a name that can be downloaded
PLAIN_NAMES = ("model", "checkpoint", "final", "best", "latest", "weights")
PLACEHOLDERS = ("image", "video", "audio")
MAX_WINDOWS = 1_000  # windows in one Reading, all of them in memory


Take = Callable[[RecordedCall], object]


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A Hugging Face model with the verified structure of its attention. Make one with `load`.

    `model` is never changed: whatever a call sets inside it is reset. `options` are the command-line words that load it in
    the same way; `remarks` say which loss was chosen, and why. `state` is a checksum of its weights when it was verified.
    """

    name: str
    model: nn.Module = field(repr=False)
    tokenizer: Any = field(repr=False)
    objective: str
    proof: Proof = field(repr=False)
    batcher: TextBatcher = field(repr=False)
    state: State | None = field(default=None, repr=False)
    options: tuple[str, ...] = (ANY,)
    remarks: tuple[str, ...] = ()
    restarts: PrefixReuse = field(default_factory=PrefixReuse, repr=False)
    processor: Processor | None = field(default=None, repr=False)
    others: dict[frozenset[str], Pretrained] = field(default_factory=dict, repr=False)

    @property
    def fingerprint(self) -> str:
        """Hex digits of the weights: the same for the same weights."""
        return self._weights_hash

    @functools.cached_property
    def _weights_hash(self) -> str:
        return hash_weights(self.model)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The address of every attention call, in the order in which the model makes them."""
        return self.proof.addresses

    @property
    def shape(self) -> Shape:
        """Layers that attend, and their heads."""
        return self.proof.shape

    @synchronized
    def projections(self) -> Sequence[Projections]:
        """Per-head weights of each verified layer, copied on access; raises ModelError if they have changed since loading."""
        check = functools.partial(check_writes, self.name, self.state, self.model)
        check()
        with evaluating(self.model):
            check_maps(self.model, self.name, self.proof.call_laws(), self.addresses)
        check_state(self.name, self.state, self.model)
        return _LazyProjections([call.projections for call in self.proof.weights if call.valid], check)

    @property
    def notes(self) -> tuple[str, ...]:
        """Attention that is not read or has no linear map, and why; shared weights; remarks about the loss; edits in force."""
        edits = (f"Measured with an edit: {block.words}." for block in open_edits(self.model))
        return (*self.proof.notes(), *self.remarks, *edits)

    def batches(self, texts: Iterable[TextOrPair], size: int = 8, scored: bool = False) -> Iterator[Batch]:
        """Yield texts as batches of at most `size` windows, and a batch for each InputSample; `scored` masks tokens for a masked LM."""
        numbered = ((number, as_sample(text)) for number, text in enumerate(texts))
        for is_sample, group in groupby(numbered, lambda item: isinstance(item[1], InputSample)):
            for batch in (
                self._sample_batches(group, scored) if is_sample else self.batcher.batches(group, size, scored)
            ):
                yield replace(batch, notes=tuple(dict.fromkeys((*batch.notes, *self.notes))))

    def for_sample(self, sample: InputSample) -> Pretrained:
        """The model, verified again if a sample of this kind makes other attention calls than on loading; raises ModelError."""
        inputs, _ = self._sample_inputs(sample)
        try:
            self.batch_of(inputs)
        except OtherCallsError:
            return _verify_with(self, inputs)
        return self

    def _sample_batches(self, samples: Iterable[tuple[int, TextOrPair]], scored: bool) -> Iterator[Batch]:
        """Yield each sample as one batch; raises ModelError if a loss is needed and the sample has no labels."""
        for number, sample in samples:
            inputs, notes = self._sample_inputs(cast(InputSample, sample))
            batch = self.batch_of(inputs)
            if scored and self.objective == "seq2seq" and "labels" not in batch.inputs:
                reason = f"The loss of {self.name} is that of its decoder's output, for which there are no labels."
                raise ModelError(f"Sample {number + 1} came without a text.", reason, "Give the text, or labels.")
            yield replace(batch, rows=((number, 0),) * len(batch.source.tokens), notes=(*batch.notes, *notes))

    def _sample_inputs(self, sample: InputSample) -> tuple[ModelInputs, tuple[str, ...]]:
        """The model's inputs for a sample, with notes on how they were made; raises ModelError if there is no processor."""
        if sample.inputs is not None:
            return sample.inputs, ()
        if self.processor is None:
            reason = "It was given as a module, without the processor that makes inputs of them."
            todo = "Load it with its processor, load(model, processor), or give the processor's outputs to read."
            medium = "Sound was" if sample.audio else "Images were"
            raise ModelError(f"{medium} given to {self.name}.", reason, todo)
        like = next(p for p in self.model.parameters() if p.is_floating_point())
        start = self.batcher.start if "decoder_input_ids" in self.batcher.accepts else None
        return self.processor.inputs(sample, like, self.tokenizer, start)

    def batch_of(self, inputs: ModelInputs) -> Batch:
        """The model's own inputs as a batch: pixels, samples, ids."""
        return _batch_of(self, inputs, lambda _: None)

    def read(
        self,
        texts: TextOrPair | Iterable[TextOrPair] | ModelInputs | Tensor | None = None,
        images: Media = (),
        audio: Media = (),
    ) -> Reading:
        """Read a text, several texts (a pair is source and target), or the model's own inputs: a dict, or its main input.

        `images` or `audio` (a file, an object in memory, or several) go with one text or alone, as the model's processor takes
        them. The model is verified again first for inputs of another kind than it was verified with. All traces are held in
        memory: for many texts use `batches` and `trace`. Raises ModelError for an empty text, for a text without
        a tokenizer, and for more than 1,000 windows.
        """
        pictures, sounds = (
            tuple(media) if isinstance(media, (list, tuple)) else () if media is None else (media,)
            for media in (images, audio)
        )
        if pictures or sounds or texts is None:
            if not pictures and not sounds:
                reason = "A Reading is of at least one, or of an image or a sound."
                raise ModelError("No text was given.", reason, "Give a text.")
            medium = "images" if pictures else "sound"
            if texts is not None and not isinstance(texts, str):
                problem = f"{type(texts).__name__} was given beside {medium}."
                raise ModelError(problem, "They stand beside one text.", "Give one text, or the model's own inputs.")
            if pictures and sounds:
                problem = "Images and sound were given."
                raise ModelError(problem, "A Reading is of one of them.", "Leave one of them out.")
            return self.read(InputSample(texts, sounds, pictures))
        if isinstance(texts, Tensor):
            texts = {str(getattr(self.model, "main_input_name", None) or "input_ids"): texts}
        texts = as_sample(cast(Readable, texts))
        if isinstance(texts, InputSample):
            inputs, notes = self._sample_inputs(texts)
            reading = _read_inputs(self, inputs)
            return replace(reading, notes=(*reading.notes, *notes))
        check_readable(texts)
        samples = [cast(TextOrPair, texts)] if isinstance(texts, (str, tuple)) else list(texts)
        if not samples:
            raise ModelError("No text was given.", "A Reading is of at least one.", "Give a text.")
        batches = list(self.batches(samples, MAX_WINDOWS))
        if len(batches) != 1:
            problem = f"{len(samples):,} texts were given."
            reason = f"A Reading holds at most {MAX_WINDOWS:,} windows, all in memory."
            raise ModelError(problem, reason, "Use batches and trace, one batch at a time.")
        return self.trace(batches[0])

    @torch.no_grad()
    def trace(self, batch: Batch, write: Written = None) -> Reading:
        """Read one batch: a Trace per layer and stack, on the CPU. Raises ModelError where its laws do not hold; not with writers."""
        seen: list[RecordedCall] = []
        self._walk(batch.inputs, seen.append, write=write)
        return _reading(self, batch, seen)

    @torch.no_grad()
    def each(self, batch: Batch, see: Callable[[Trace], object]) -> None:
        """Read one batch layer by layer on the model's device: `see` gets each Trace, which is freed before the next layer.

        Raises ModelError at the end if a layer's laws do not hold in this batch.
        """
        self._walk(batch.inputs, lambda seen: see(trace_of(batch, seen)), on_cpu=False)

    @synchronized
    def _walk(
        self, inputs: ModelInputs, take: Take, pattern: bool = False, write: Written = None, on_cpu: bool = True
    ) -> Sequence[Call]:
        """Run one pass; `take` gets each layer as it is computed (`on_cpu`: copied to the CPU), and its laws are checked."""
        check_writes(self.name, self.state, self.model)
        looks = bool(write) or self.proof.agreement.should_check_laws(inputs)
        laws = self.proof.call_laws() if looks and not (write or open_edits(self.model)) else ()
        scaled = [law.scaled for law in self.proof.laws]

        def meet(call: Call) -> Call:
            if (weights := self.proof.read_at(call)) is not None:
                checker.call(call)
                call = call if scaled[call.order] else call._replace(scale=None)
                block = blocks.pop(weights.projections.address, None)
                take(copy_to_device(CPU if on_cpu else measure_device(call), weights.projections, call, block, on_cpu))
            return outline(call, pattern)

        with (
            torch.no_grad(),
            watch(self.model, self.name, self.proof.around(), looks) as blocks,
            checking(self.model, self.name, laws, self.addresses, inputs) as checker,
        ):
            calls, answer = run_forward(self._with_proof, inputs, edits_at(self.addresses, write), meet, looks=looks)
        check_after(self._with_proof, looks)
        if not write:  # without the hooks
            confirm(self._with_proof, inputs, calls, answer)
        return calls

    @torch.no_grad()
    def score(
        self, batch: Batch, write: Written = None, hold: HeldWeights = None, clean: RowScores | None = None
    ) -> RowScores:
        """The model's own loss of one batch, row by row; see RowScores for the units."""
        return row_scores(self.predict(batch.inputs, write, hold), batch, self.objective, clean)

    @synchronized
    @torch.no_grad()
    def predict(self, inputs: ModelInputs, write: SiteEdits | None = None, hold: HeldWeights = None) -> ModelOutput:
        """The forward's output for the model's own inputs, with edits by address or site (see trisect.edit) and held attention weights."""
        edits = edits_at(self.addresses, self.shape.writers(write or {}), hold)
        calls, answer = run_forward(self._with_proof, inputs, edits)
        if not write and not hold:
            confirm(self._with_proof, inputs, calls, answer)
        return answer

    @property
    def mask(self) -> str | None:
        """The mask of a masked language model; None for the others, which predict the next token."""
        return getattr(self.tokenizer, "mask_token", None) if self.objective == "masked" else None

    def token(self, number: int) -> str:
        """The text of a token, by its id; its number where there is no tokenizer."""
        return str(number) if self.tokenizer is None else str(self.tokenizer.decode([number]))

    def outputs(
        self, batch: Batch, write: Written = None, places: Int[Tensor, "B ..."] | None = None, hold: HeldWeights = None
    ) -> Float[Tensor, "B T V"]:
        """Logits, or last hidden states, of one batch; see AnsweringSubject."""
        return output_at(self.predict(batch.inputs, write, hold), places)

    @synchronized
    @torch.no_grad()
    def stream_outputs(
        self, batch: Batch, streams: StreamWriters, write: Written = None, places: Int[Tensor, "B ..."] | None = None
    ) -> Float[Tensor, "B T V"]:
        """As `outputs`, with the residual stream edited; see StreamSubject. Raises ModelError where no block has a stream."""
        calls = list(zip(self.addresses, self._with_proof.modules, strict=True))
        with edited_streams(self.name, self.model, calls, streams):
            answer = run_forward(self._with_proof, batch.inputs, edits_at(self.addresses, write))[1]
        return output_at(answer, places)

    @synchronized
    def path_gradients(
        self, batch: Batch, places: Int[Tensor, " B"], answers: Int[Tensor, " B"], layers: Sequence[int]
    ) -> dict[tuple[int, str, int], Float[Tensor, "B T D"]]:
        """See StreamSubject."""
        return path_gradients(self._with_proof, batch, places, answers, layers)

    def edited_passes(self) -> SharedPasses:
        """Many edited passes over a batch, each restarted at the layer that it edits if that gives the same numbers."""
        return SharedPasses(self._with_proof, self.objective, self.restarts)

    @property
    def _with_proof(self) -> ProvedModel:
        return ProvedModel(self.name, self.model, self.tokenizer, self.batcher.accepts, self.proof, self.state)


@contextmanager
def sampled_laws(subject: Pretrained) -> Iterator[None]:
    """Check the laws of a sample of reads inside: the first of each kind of inputs, some at random, and at the end the last.

    Raises ModelError at the end if weights changed, or if that read does not compute what was found on loading.
    """
    agreement = subject.proof.agreement
    if agreement.draw is not None:  # inside another command
        yield
        return
    agreement.counts.clear()
    agreement.draw, agreement.unchecked_inputs = Random(0), None
    try:
        yield
    finally:
        left, agreement.draw, agreement.unchecked_inputs = agreement.unchecked_inputs, None, None
    check_state(subject.name, subject.state, subject.model)
    if left is not None:
        subject._walk(left, lambda _seen: None)


def _read_inputs(subject: Pretrained, inputs: ModelInputs) -> Reading:
    seen: list[RecordedCall] = []
    try:
        batch = _batch_of(subject, inputs, seen.append)
    except OtherCallsError:
        return _read_inputs(_verify_with(subject, inputs), inputs)
    return _reading(subject, batch, seen)


@synchronized
def _verify_with(subject: Pretrained, inputs: ModelInputs) -> Pretrained:
    """The model verified with these inputs as the example, since they make other attention calls; raises ModelError if that fails."""
    kind = frozenset(inputs)
    if kind not in subject.others:
        proved = prove(subject.name, subject.model, inputs)
        if proved.refusal is not None:
            raise proved.refusal
        subject.others[kind] = replace(subject, proof=proved, restarts=PrefixReuse(), others={})
    return subject.others[kind]


def _reading(subject: Pretrained, batch: Batch, seen: Sequence[RecordedCall]) -> Reading:
    traces = tuple(trace_of(batch, call) for call in seen)
    about = (batch.source, batch.target, batch.rows, batch.notes, subject.objective)
    return Reading(subject.name, traces, *about, sides=batch.sides)


def _batch_of(subject: Pretrained, inputs: ModelInputs, take: Take) -> Batch:
    """Make a batch of the model's own inputs by one pass over them; `take` gets each recorded call."""
    check_inputs(inputs)
    config = getattr(subject.model, "config", None)
    try:
        calls = subject._walk(inputs, take, pattern=True)
    except (AttributeError, RuntimeError, IndexError, ValueError, TypeError, KeyError) as error:
        limit = longest_window(config, None)
        raise forward_error(subject.name, inputs, subject.batcher.accepts, limit, error) from error
    source, target, beside = find_sides(inputs, subject.tokenizer, calls, subject.addresses)
    rows = tuple((i, 0) for i in range(len(source.tokens)))
    names = [f"{kind}_token_{end}" for kind in PLACEHOLDERS for end in ("id", "index")]
    marks = [n for name in names if isinstance(n := getattr(config, name, None), int)]
    ids, values = inputs.get("input_ids"), dict(inputs)
    if isinstance(ids, Tensor) and marks:
        # placeholder tokens of images, sounds and videos are not predicted
        is_placeholder = torch.isin(ids, torch.tensor(marks, device=ids.device))
        if bool(is_placeholder.any()):
            values.setdefault("labels", ids.masked_fill(is_placeholder, IGNORED))
    return Batch(values, source, target, rows, subject.notes, beside)


def encode_sample(subject: Pretrained, sample: InputSample) -> tuple[InputSample, tuple[str, ...]] | None:
    """Replace sound or images by the model's encoder output, beside the decoder's input; with notes on how inputs were made.

    The encoder runs alone, once. None if the model's forward does not take `encoder_outputs`.
    """
    inputs, notes = subject._sample_inputs(sample)
    main, encoder = str(getattr(subject.model, "main_input_name", "")), getattr(subject.model, "get_encoder", None)
    if not {"encoder_outputs", "decoder_input_ids"} <= subject.batcher.accepts or encoder is None:
        return None
    if main not in inputs or "decoder_input_ids" not in inputs or inputs.keys() & {"encoder_outputs"}:
        return None
    check_state(subject.name, subject.state, subject.model)
    with torch.no_grad(), evaluating(subject.model):
        encoded = first_tensor(encoder()(inputs[main]))
    rest = {name: value for name, value in inputs.items() if name != main}
    return InputSample(inputs=rest | {"encoder_outputs": (encoded,)}), notes


@torch.no_grad()
def decoder_of(subject: Pretrained, sample: InputSample) -> Pretrained | None:
    """The model verified for `encoder_outputs` as inputs (`encode_sample`), after a read of the complete model.

    None if it does not take them, or if its output differs from the complete model's by more than rounding. Raises ModelError.
    """
    encoded = encode_sample(subject, sample)
    if encoded is None or encoded[0].inputs is None:
        return None
    complete = subject.outputs(subject.batch_of(subject._sample_inputs(sample)[0]))
    decoder = subject.for_sample(encoded[0])
    decoded = decoder.outputs(decoder.batch_of(encoded[0].inputs))
    return decoder if near(decoded, complete) else None


@synchronized
def load(
    model: str | Path | nn.Module,
    tokenizer: Any = None,
    inputs: ModelInputs | None = None,
    window: int | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    pickle: bool = False,
    remote_code: bool = False,
    proof: bool = True,
) -> Pretrained:
    """Load a pretrained model from a folder, from a hub by name, or as a module, and verify it.

    `inputs` is an example of the model's own inputs, needed only for an unknown kind of model; `window` limits the tokens
    read at once. Weights are safetensors unless `pickle`, and no code is run from a repository unless `remote_code`.
    With `proof=False` layers that fail verification are left out of every reading instead of raising.
    Raises ModelError if there is no such model, or naming what failed verification.
    """
    check_model(model)
    if isinstance(tokenizer, str):
        reason = "A tokenizer is an object of transformers, such as AutoTokenizer.from_pretrained returns."
        raise ModelError(f"{tokenizer!r} was given as a tokenizer.", reason, "Load it first.")
    if inputs is not None:
        check_inputs(inputs)
    if isinstance(model, nn.Module):
        module = unwrap_model(model)
        name = type(module).__name__
        objective = objective_of(name, getattr(module, "config", None))
        placed = None if device in ("auto", "cpu") else device
        chosen = {"revision": revision, "dtype": dtype, "device_map": device_map, "device": placed}
        if options := [option for option, value in chosen.items() if value is not None]:
            reason = "A module is read as it is, without these options."
            raise ModelError(f"{', '.join(options)} for {name}.", reason, "Leave that out, or give a name or a folder.")
        check_weights(name, module)
        check_finite(name, module)
    else:
        options = Options(revision, dtype, device, device_map, pickle, remote_code)
        module, stored, objective = fetch(model, options)
        tokenizer = tokenizer or stored
        name = folder_name(Path(model)) if Path(model).is_dir() else str(model)
    processor = None
    if not isinstance(model, nn.Module):
        how = {"revision": revision, "trust_remote_code": remote_code}
        processor = Processor(name, functools.cache(functools.partial(load_processor, name, str(model), how)))
    if (inner := getattr(tokenizer, "tokenizer", None)) is not None or is_processor(tokenizer):
        holder, tokenizer = tokenizer, inner
        processor = Processor(name, lambda: holder)
    state, proved = State.of(module), prove(name, module, inputs)
    if proof and proved.refusal is not None:
        raise proved.refusal
    objective, remarks = _settle(objective, module, tokenizer, proved)
    remarks += rounding_notes(module, [call.projections for call in proved.weights], proved.rounding)
    batcher = TextBatcher.of(name, module, tokenizer, objective, window)
    words = {"--revision": revision, "--dtype": dtype, "--window": window}
    called = ANY if isinstance(model, nn.Module) or Path(model).is_dir() else name
    options = (called, *(str(w) for option, value in words.items() if value is not None for w in (option, value)))
    about = (proved, batcher, state.without_changed_buffers(module), options, remarks)
    return Pretrained(name, module, tokenizer, objective, *about, processor=processor)


def _settle(objective: str, model: nn.Module, tokenizer: Any, proved: Proof) -> tuple[str, tuple[str, ...]]:
    """Choose the objective: no causal loss if a position attends to later ones, since the model would see what it predicts."""
    ahead = any(law.ahead for law, a in zip(proved.laws, proved.addresses, strict=True) if a.stack in ("plain", "dec"))
    if objective != "causal" or not ahead:
        return objective, ()
    from transformers.models.auto import modeling_auto as auto

    # XLM is causal or masked, by its attention, whatever the name of its class
    is_masked_lm = type(model).__name__ in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    if is_masked_lm and getattr(tokenizer, "mask_token_id", None) is not None:
        return "masked", ("Its positions see later ones, so its loss is that of a masked language model.",)
    return "output", ("Its positions see later ones, so it has no next-token loss; changes are of its output.",)


def folder_name(folder: Path) -> str:
    """A folder's name, with its parent's if it is a generic one such as "model"."""
    place = folder.resolve()
    return f"{place.parent.name}/{place.name}" if place.name in PLAIN_NAMES else place.name


def piece_spans(model: Pretrained, text: str) -> list[tuple[int, int]]:
    """Character spans (start, end) of every token of a text, without special tokens around it.

    Raises ModelError if the tokenizer has no offsets.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not tokenizer.is_fast:
        tokenizer_words = "no tokenizer" if tokenizer is None else f"the tokenizer {type(tokenizer).__name__}"
        reason = "A tokenizer of the library 'tokenizers' is needed, since only it has character offsets."
        raise ModelError(f"{model.name} comes with {tokenizer_words}.", reason, "Load the model with such a tokenizer.")
    options = {"return_special_tokens_mask": True, "return_offsets_mapping": True}
    encoded = tokenize(model.name, tokenizer, text, **options)
    inner = [i for i, special in enumerate(encoded["special_tokens_mask"]) if not special]
    return [(int(a), int(b)) for a, b in encoded["offset_mapping"][inner[0] : inner[-1] + 1]] if inner else []


SPECIAL, PADDING = -1, -2  # in the place of a word
MARK = "▁"  # before the first piece of a word, in the vocabularies of slow tokenizers
SHIFT_METHOD = "prepare_decoder_input_ids_from_labels"  # a model's own method
WordTuple: TypeAlias = tuple[str, ...]


class Crossed(NamedTuple):
    """A batch of sentence pairs, and the word index (from 0) of every token: −1 special, −2 padding.

    `shifted` belongs to the decoder's input, `predicted` to its labels; `pairs` has the pair number of each row.
    """

    batch: Batch
    source: Int[Tensor, "B S"]
    shifted: Int[Tensor, "B T"]
    predicted: Int[Tensor, "B T"]
    pairs: tuple[int, ...]


def check_crossing(
    subject: Pretrained, why: str = "Word alignments are read from attention between a source and a target."
) -> None:
    """Raise ModelError for a model that is no encoder–decoder or has no tokenizer; `why` says what needs cross-attention."""
    if "cross" not in subject.shape.stacks:
        reason = f"{subject.shape.describe()} {why}"
        raise ModelError(f"{subject.name} has no cross-attention.", reason, "Choose an encoder–decoder model.")
    if subject.tokenizer is None:
        reason = "Sentences are tokenized by the model's own tokenizer."
        raise ModelError(f"{subject.name} came without a tokenizer.", reason, "Give a folder that holds one.")


def cross_batches(
    subject: Pretrained, pairs: Sequence[tuple[WordTuple, WordTuple]], size: int = 16
) -> tuple[list[Crossed], tuple[int, ...]]:
    """Batches of at most `size` pairs of about the same length, and the numbers of pairs too long for the model.

    The decoder reads the target (teacher forcing), shifted as in the model's own training. Raises ModelError if
    there is no cross-attention, or if a token cannot be assigned to one word.
    """
    check_crossing(subject)
    cuts = {i: (cut(subject, pair[0], False), cut(subject, pair[1], True)) for i, pair in enumerate(pairs)}
    batcher, batches = subject.batcher, list[Crossed]()
    sizes = {i: (len(source), len(target)) for i, ((source, _), (target, _)) in cuts.items()}
    fitting = [i for i, both in sizes.items() if max(both) <= batcher.window]
    fitting.sort(key=lambda i: (sum(sizes[i]), i))
    filler = getattr(batcher.tokenizer, "pad_token_id", None)
    filler = 0 if filler is None else int(filler)
    for start in range(0, len(fitting), size):
        numbers = fitting[start : start + size]
        sources, targets = ([cuts[i][side] for i in numbers] for side in (0, 1))
        ids, words = pad_rows([ids for ids, _ in sources], filler), pad_rows([words for _, words in sources], PADDING)
        labels, predicted = (
            pad_rows([sentence[n] for sentence in targets], at) for n, at in enumerate((IGNORED, PADDING))
        )
        # the decoder's input: shifted by the model's own method if it has one
        shift = getattr(subject.model, SHIFT_METHOD, None)
        is_later = labels[:, 1:] != IGNORED
        shown = None if shift is None else shift(labels=labels.to(batcher.device)).cpu()
        if shown is None or not torch.equal(shown[:, 1:][is_later], labels[:, :-1][is_later]):
            start_ids = torch.full_like(labels[:, :1], batcher.start)
            shown = torch.cat([start_ids, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, filler)], 1)
        shifted = torch.cat([torch.full_like(predicted[:, :1], SPECIAL), predicted[:, :-1]], 1)
        shifted = torch.where(predicted == PADDING, PADDING, shifted)
        real, aim = words != PADDING, predicted != PADDING
        inputs = {"input_ids": ids, "attention_mask": real.long(), "decoder_input_ids": shown, "labels": labels}
        accepted = {n: t.to(batcher.device) for n, t in inputs.items() if n in batcher.accepts or n == "labels"}
        read = [[batcher.tokenizer.convert_ids_to_tokens(row) for row in side.tolist()] for side in (ids, shown)]
        source, target = (tuple(tuple(str(token) for token in row) for row in rows) for rows in read)
        sides = Side(source, real, words < 0, ids), Side(target, aim, shifted < 0, shown)
        batch = Batch(accepted, *sides, tuple((i, 0) for i in numbers))
        batches.append(Crossed(batch, words, shifted, predicted, tuple(numbers)))
    return batches, tuple(i for i in cuts if i not in set(fitting))


def cut(subject: Pretrained, words: WordTuple, target: bool) -> tuple[list[int], list[int]]:
    """The token ids of a sentence of words, and the word index of each (−1: special).

    A target ends in a special token, so that every word is a decoder input once.
    """
    tokenizer, text = subject.tokenizer, " ".join(words)
    options = {"add_special_tokens": True, "return_special_tokens_mask": True}
    options |= {"return_offsets_mapping": True} if tokenizer.is_fast else {}
    encoded = tokenize(subject.name, tokenizer, text, target, **options)
    if tokenizer.is_fast:
        word_of = _by_offsets(text, words, encoded["offset_mapping"], encoded["special_tokens_mask"])
    else:
        word_of = _by_marks(subject, words, list(encoded["input_ids"]), encoded["special_tokens_mask"], target)
    ids = [int(i) for i in encoded["input_ids"]]
    if word_of is None:
        reason = "Word alignment needs every token to belong to exactly one word."
        todo = "Use a tokenizer that splits at white space."
        problem = f"Some tokens of {text[:60]!r} in {subject.name} do not belong to single words."
        raise ModelError(problem, reason, todo)
    if target and (not word_of or word_of[-1] != SPECIAL):
        end = getattr(tokenizer, "eos_token_id", None)
        ids, word_of = [*ids, subject.batcher.start if end is None else int(end)], [*word_of, SPECIAL]
    return ids, word_of


def _by_offsets(text: str, words: WordTuple, offsets: Sequence[Any], special: Sequence[int]) -> list[int] | None:
    """The word index of each token, by its first non-space character; None if a token spans several words."""
    ends = list(itertools.accumulate((len(word) for word in words), lambda end, size: end + 1 + size))
    numbers: list[int] = []
    for (start, end), added in zip(offsets, special, strict=True):
        if added:
            numbers.append(SPECIAL)
            continue
        while start < len(text) and text[start] == " ":
            start += 1
        word = next((i for i, e in enumerate(ends) if start < e), None)
        if word is None or end > ends[word] + 1:
            return None
        numbers.append(word)
    return numbers


def _by_marks(
    subject: Pretrained, words: WordTuple, ids: list[int], special: Sequence[int], target: bool
) -> list[int] | None:
    """The word index of each token, by tokenizing word by word, else by the marks at beginnings of words; None if neither works."""
    tokenizer = subject.tokenizer
    inner = [i for i, added in zip(ids, special, strict=True) if not added]
    numbers, alone, beginnings = list[int](), list[int](), list[int]()
    for number, word in enumerate(words):
        pieces = tokenize(subject.name, tokenizer, word, target, add_special_tokens=False)["input_ids"]
        alone += pieces
        numbers += [number] * len(pieces)
        beginnings += [number for piece in tokenizer.convert_ids_to_tokens(pieces) if str(piece).startswith(MARK)]
    if alone != inner:
        # tokens of equal score may be chosen differently within a sentence: then use the marks at beginnings of words
        begins = [str(piece).startswith(MARK) for piece in tokenizer.convert_ids_to_tokens(inner)]
        if sum(begins) != len(beginnings) or not begins[0]:
            return None
        numbers = [beginnings[sum(begins[: i + 1]) - 1] for i in range(len(begins))]
    left = iter(numbers)
    return [SPECIAL if added else next(left) for added in special]


@contextmanager
def _without_weights(model: nn.Module) -> Iterator[None]:
    """Switch off `requires_grad` of all parameters inside; restore it afterwards."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_()


@synchronized
def read_graph(subject: Pretrained, batch: Batch) -> Reading:
    """Read one batch with traces in the autograd graph of its `output` [B T V], logits or last hidden states.

    After a backward pass q, k and v of every trace, and its output, have their `grad`. Tensors stay on the model's device.
    The graph begins at the first layer's q, k and v: weights get no gradient.
    """
    proof, ends = subject.proof, dict[Address, QKV]()
    seen: list[RecordedCall] = []

    def begin(address: Address, parts: QKV) -> QKV:
        ends[address] = QKV(*(t if t.requires_grad else t.detach().requires_grad_() for t in parts))
        for part in ends[address]:
            part.retain_grad()
        return QKV(*(t.clone() for t in ends[address]))  # a model may overwrite its activations

    def meet(call: Call) -> Call:
        weights = proof.read_at(call)
        if weights is not None and weights.projections.address in ends:  # not during a rehearsal
            if call.output.requires_grad:
                call.output.retain_grad()
            scale = call.scale if proof.laws[call.order].scaled else None
            graph_call = call._replace(scale=scale, raw=None, **ends[weights.projections.address]._asdict())
            seen.append(RecordedCall(weights.projections.copy_to(measure_device(call)), graph_call, None))
        return outline(call)

    edits = edits_at(proof.addresses, {address: functools.partial(begin, address) for address in proof.shape.heads})
    with torch.inference_mode(False), torch.enable_grad(), _without_weights(subject.model), without_recompute():
        answer = run_forward(subject._with_proof, batch.inputs, edits, meet, follow=True)[1]
    return replace(_reading(subject, batch, seen), output=first_tensor(answer))


def single_batch(subject: Pretrained, texts: Readable | list[Readable]) -> tuple[Pretrained, Batch]:
    """A text, several texts or the model's own inputs as one batch, and the model verified for them.

    Raises ModelError if they make more than one batch.
    """
    samples = [as_sample(text) for text in (texts if isinstance(texts, list) else [texts])]
    if len(samples) == 1 and isinstance(samples[0], InputSample):
        subject = subject.for_sample(samples[0])
    batches = list(subject.batches(samples, MAX_WINDOWS))
    if len(batches) != 1:
        reason = f"A reading with gradients or with the residual stream takes one batch; they make {len(batches)}."
        raise ModelError(f"{len(samples)} texts were given.", reason, "Read them one by one.")
    return subject, batches[0]


def read_with_gradients(subject: Pretrained, texts: Readable | list[Readable]) -> Reading:
    """Read one batch with its autograd graph, after a verified reading of it; raises ModelError."""
    subject, batch = single_batch(subject, texts)
    return replace(read_graph(subject, batch), notes=subject.trace(batch).notes)


@synchronized
def input_gradients(subject: Pretrained, batch: Batch, places: Int[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """‖g_j ⊙ x_j‖ of every position; x_j enters the first layer.

    g_j is the gradient of the largest logit at position `places` of each row. Raises ModelError if the first layer has no residual
    stream. Source: gradient × input, Denil et al. 2014.
    """
    proved, streams = subject._with_proof, list[Tensor]()

    def enter(x: Tensor) -> Tensor:
        streams.append(x.detach().requires_grad_())
        return streams[-1]

    calls = list(zip(subject.addresses, proved.modules, strict=True))
    first = StreamPoint(next(address for address in subject.addresses if not crosses(address.stack)))
    inside = edited_streams(subject.name, subject.model, calls, {first: enter})
    with torch.inference_mode(False), torch.enable_grad(), _without_weights(subject.model), inside:
        answer = run_forward(proved, batch.inputs, edits_at(subject.addresses, {}), follow=True)[1]
        logits = first_tensor(answer)
        at = logits[torch.arange(len(logits), device=logits.device), places.to(logits.device)]
        (gradient,) = torch.autograd.grad(at.max(-1).values.sum(), streams[-1])
    return (gradient * streams[-1].detach()).norm(dim=-1).cpu()
