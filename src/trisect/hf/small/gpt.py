"""A small character-level GPT of transformers: building, training, saving, and answering questions."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from trisect.core.errors import (
    CorpusError,
    DamagedFileError,
    ModelError,
    SpecError,
    StudyError,
    check_access,
    translate_temporary_errors,
    unknown_name,
)
from trisect.core.files import canonical, digest, replace_file, safe_join
from trisect.core.subject import QKV, Shape, Writer
from trisect.core.trace import Address
from trisect.hf.batches import NO_LIMIT, pad_rows
from trisect.hf.files.fetch import OwnTokenizer, quiet
from trisect.hf.load import Pretrained, load
from trisect.measure.intervention import Means
from trisect.text.birth_places import IGNORED

PAD, MASK, UNKNOWN = "<pad>", "<mask>", "<unk>"
SPECIALS = (PAD, MASK, UNKNOWN)
KINDS = ("gpt2", "llama")


def check_sizes(dropout: float, **sizes: int) -> None:
    """Raise SpecError for a model size below 1, and for a dropout outside [0, 1)."""
    for name, size in sizes.items():
        if size < 1:
            raise SpecError(f"{name} {size}.", "It has to be at least 1.", "Give a larger number.")
    if not 0 <= dropout < 1:
        raise SpecError(f"A dropout of {dropout}.", "It has to be from 0 to below 1.", "Give for example 0.1.")


@dataclass(frozen=True)
class GptShape:
    """A small GPT: `layers`, `heads`, `width` (residual stream) and `block` (context length in characters).

    `kind` 'gpt2' has learned positions, 'llama' rotary ones. `dropout` acts on embeddings,
    attention weights and residuals; in a llama on attention weights alone.
    """

    kind: str = "gpt2"
    layers: int = 4
    heads: int = 8
    width: int = 256
    block: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            problem = unknown_name("kind of model", self.kind, KINDS)
            raise SpecError(problem, f"There are {', '.join(KINDS)}.", "Use one.")
        check_sizes(self.dropout, layers=self.layers, heads=self.heads, width=self.width, block=self.block)
        if self.width % self.heads or (self.kind == "llama" and self.width // self.heads % 2):
            evenly = ", evenly for rotary positions" if self.kind == "llama" else ""
            reason = f"{self.width} is shared by {self.heads} heads{evenly}"
            raise SpecError(f"A width of {self.width}.", f"{reason}.", "Give a multiple of the number of heads.")


def make_tokenizer(characters: Sequence[str], block: int) -> OwnTokenizer:
    """Make a fast tokenizer of single characters, with `<pad>`, `<mask>` and `<unk>`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIALS, *characters))}
    inner = Tokenizer(models.WordLevel(vocabulary, UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return as_fast(inner, block, pad_token=PAD, mask_token=MASK, unk_token=UNKNOWN)


def as_fast(inner: Any, longest: int, **marks: str) -> OwnTokenizer:
    """Wrap a tokenizer of the library tokenizers for transformers; `longest` is its model_max_length."""
    import transformers

    options: dict[str, Any] = {"model_max_length": longest, "clean_up_tokenization_spaces": False, **marks}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **options)


def random_model(kind: Any, config: Any, seed: int) -> nn.Module:
    """Make a model of one of transformers' auto classes with random weights from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # on a CPU the plain product trains such short rows twice as fast as the fused kernel
        return kind.from_config(config, attn_implementation="eager")


def make_model(architecture: GptShape, tokenizer: OwnTokenizer, seed: int) -> nn.Module:
    """Make a causal language model with random weights from the seed."""
    import transformers

    a = architecture
    marks = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.mask_token_id}
    if a.kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=a.block,
            n_embd=a.width,
            n_layer=a.layers,
            n_head=a.heads,
            resid_pdrop=a.dropout,
            embd_pdrop=a.dropout,
            attn_pdrop=a.dropout,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own function, in one kernel
            **marks,
        )
    else:
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=a.block,
            hidden_size=a.width,
            intermediate_size=8 * (a.width // 3),  # three matrices, as large together as GPT-2's two
            num_hidden_layers=a.layers,
            num_attention_heads=a.heads,
            attention_dropout=a.dropout,
            tie_word_embeddings=True,
            **marks,
        )
    return random_model(transformers.AutoModelForCausalLM, config, seed)


def save(model: Any, tokenizer: OwnTokenizer, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face folder, each file atomically; config.json comes last."""
    # a matrix that a training edit shares is written once per component; one that the configuration ties, once
    shared = model.all_tied_weights_keys
    weights = {name: weight.clone() for name, weight in model.state_dict().items() if name not in shared}
    with translate_temporary_errors("A trained model"), tempfile.TemporaryDirectory() as scratch, quiet():
        model.save_pretrained(scratch, state_dict=weights)
        tokenizer.save_pretrained(scratch)
        files = sorted(Path(scratch).iterdir(), key=lambda path: (path.name == "config.json", path.name))
        for path in files:
            content = path.read_bytes()
            replace_file(safe_join(folder, path.name), lambda target, content=content: target.write_bytes(content))


def is_model(folder: Path) -> bool:
    """Whether `save` has finished in that folder."""
    return (folder / "config.json").exists()


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load the weights that `save` wrote into a model of the same architecture; raises DamagedFileError."""
    try:
        load_model(model, folder / "model.safetensors")
    except (SafetensorError, OSError, RuntimeError) as error:
        check_access(folder, error)
        todo = f"Delete {folder} and run the same command again to train it again."
        raise DamagedFileError(f"{folder} cannot be read.", f"{type(error).__name__}: {error}", todo) from error


def ids_of(text: str, tokenizer: OwnTokenizer) -> list[int]:
    """A text's ids, one per character; `<unk>` for characters without a token."""
    vocabulary, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
    return [vocabulary.get(character, unknown) for character in text]


MAX_ANSWER = 64  # most characters of an answer
MAX_QUESTIONS = 128  # questions of one length that are answered at once
UNKNOWN_PIECE = "\N{REPLACEMENT CHARACTER}"  # for a special token inside an answer


class _GeneratedAnswer(NamedTuple):
    """An answer, its log-probability in nats (its end included), and three other measures of confidence.

    `mean_log_probability` is per character, `entropy` the mean entropy of the next character's distribution, both
    in nats; `margin` is the smallest difference of log-probability between first and second choice. `unknown` holds the
    characters of the question without a token.
    """

    text: str
    log_probability: float
    mean_log_probability: float
    entropy: float
    margin: float
    unknown: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Answerer:
    """A character-level model that continues "question<mask>" with an answer, up to the next mask."""

    subject: Pretrained

    @classmethod
    def open(cls, folder: str | Path, device: str = "cpu") -> Answerer:
        """Load and verify a model from its folder; raises ModelError."""
        subject = load(folder, device=device)
        marks = [getattr(subject.tokenizer, f"{mark}_token_id", None) for mark in ("mask", "pad", "unk")]
        if subject.objective != "causal" or None in marks:
            reason = "It has to be a causal language model whose tokenizer has a mask, a pad and an unknown token."
            todo = "Give a model that 'trisect recall' trained."
            raise ModelError(f"{subject.name} answers no questions.", reason, todo)
        return cls(subject)

    @property
    def shape(self) -> Shape:
        """Layers and heads."""
        return self.subject.shape

    @property
    def block(self) -> int:
        """Context length in characters."""
        return int(min(NO_LIMIT, self.subject.tokenizer.model_max_length))

    def unknown(self, text: str) -> tuple[str, ...]:
        """The characters of a text without a token, with repetitions."""
        vocabulary = self.subject.tokenizer.get_vocab()
        return tuple(c for c in text if c not in vocabulary)

    def answer(self, questions: Sequence[str]) -> list[_GeneratedAnswer]:
        """Answer by greedy decoding until a mask; raises CorpusError for a question longer than the context."""
        answers: list[_GeneratedAnswer | None] = [None] * len(questions)
        for places, batch in self._question_batches(questions):
            for place, (ids, numbers) in zip(places, self._greedy(batch), strict=True):
                tokens = self.subject.tokenizer.convert_ids_to_tokens(ids)
                text = "".join(token if len(token) == 1 else UNKNOWN_PIECE for token in tokens)
                total, entropy = float(numbers[:, 0].sum()), float(numbers[:, 1].mean())
                about = (total, total / len(numbers), entropy, float(numbers[:, 2].min()))
                answers[place] = _GeneratedAnswer(text, *about, self.unknown(questions[place]))
        return [answer for answer in answers if answer is not None]

    def represent(self, questions: Sequence[str]) -> Float[np.ndarray, "N D"]:
        """The last hidden state at the mask after each question, before the answer."""
        rows: dict[int, np.ndarray] = {}
        for places, ids in self._question_batches(questions):
            with torch.no_grad():
                output = self.subject.model(input_ids=ids, use_cache=False, output_hidden_states=True)
            rows |= dict(zip(places, output.hidden_states[-1][:, -1].double().cpu().numpy(), strict=True))
        return np.stack([rows[i] for i in range(len(questions))])

    def means(self, questions: Sequence[str], answers: Sequence[str]) -> dict[Address, QKV]:
        """The mean q, k and v of every layer over all characters of the questions with their answers."""
        means_of = {address: Means() for address in self.subject.addresses}
        for ids, real, _ in self._answer_batches(questions, answers):

            def note(address: Address, parts: QKV, real: Tensor = real) -> QKV:
                means_of[address].add(parts, real, real)
                return parts

            self.subject.predict({"input_ids": ids}, {a: lambda p, a=a, n=note: n(a, p) for a in means_of})
        return {address: means.parts() for address, means in means_of.items()}

    def reproduces(
        self, questions: Sequence[str], answers: Sequence[str], write: Mapping[Address, Writer] | None = None
    ) -> Bool[np.ndarray, " N"]:
        """Whether the model, with q, k or v edited, still gives each answer: every character is the arg max.

        One teacher-forced pass decides what greedy decoding would give, since both agree up to the first difference.
        """
        repeated: list[bool] = []
        for ids, real, starts in self._answer_batches(questions, answers):
            choice = self.subject.predict({"input_ids": ids}, write).logits.argmax(-1)[:, :-1]
            place = torch.arange(ids.shape[1] - 1, device=ids.device)
            counts = (place >= torch.tensor(starts, device=ids.device)[:, None]) & real[:, 1:]
            repeated += ((choice == ids[:, 1:]) | ~counts).all(1).tolist()
        return np.array(repeated, dtype=bool)

    def _question_batches(self, questions: Sequence[str]) -> Iterator[tuple[list[int], Tensor]]:
        """Batches of questions of one length, without padding: their indices, and their ids with the mask at the end."""
        lengths: dict[int, list[int]] = {}
        for place, question in enumerate(questions):
            if len(question) + 2 > self.block:
                reason = f"The model's context is {self.block} characters, including the mask and an answer."
                raise CorpusError(f"The question {question[:60]!r} is too long.", reason, "Ask a shorter one.")
            lengths.setdefault(len(question), []).append(place)
        for places in lengths.values():
            for start in range(0, len(places), MAX_QUESTIONS):
                group = places[start : start + MAX_QUESTIONS]
                rows = [[*ids_of(questions[i], self.subject.tokenizer), self._mask] for i in group]
                yield group, torch.tensor(rows, device=next(self.subject.model.parameters()).device)

    def _answer_batches(
        self, questions: Sequence[str], answers: Sequence[str]
    ) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Batches of ids of questions with answers and the final mask, which of them are real, and where answers begin."""
        tokenizer = self.subject.tokenizer
        for start in range(0, len(questions), MAX_QUESTIONS):
            pairs = list(
                zip(questions[start : start + MAX_QUESTIONS], answers[start : start + MAX_QUESTIONS], strict=True)
            )
            both = [(ids_of(q, tokenizer), ids_of(a, tokenizer)) for q, a in pairs]
            rows = [[*question, self._mask, *answer, self._mask][: self.block] for question, answer in both]
            ids = pad_rows(rows, tokenizer.pad_token_id).to(next(self.subject.model.parameters()).device)
            real = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
            yield ids, real.to(ids.device), [len(q) for q, _ in pairs]

    @torch.no_grad()
    def _greedy(self, ids: Tensor) -> list[tuple[list[int], np.ndarray]]:
        """Per row the answer's ids, and per position (including the end) log-probability, entropy and margin."""
        model, steps = self.subject.model, min(MAX_ANSWER, self.block - ids.shape[1])
        chosen, numbers = [], []
        output = model(input_ids=ids, use_cache=True)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        for step in range(steps):
            logs = output.logits[:, -1].double().log_softmax(-1)
            two = logs.topk(2).values
            choice = logs.argmax(-1)
            chosen.append(choice)
            numbers.append(torch.stack([two[:, 0], -(logs.exp() * logs).sum(-1), two[:, 0] - two[:, 1]], 1))
            ended |= choice == self._mask
            if bool(ended.all()) or step + 1 == steps:
                break
            output = model(input_ids=choice[:, None], past_key_values=output.past_key_values, use_cache=True)
        rows, values = torch.stack(chosen, 1).tolist(), torch.stack(numbers, 1).cpu().numpy()
        ends = [row.index(self._mask) if self._mask in row else len(row) for row in rows]
        return [(row[:end], value[: end + 1]) for row, value, end in zip(rows, values, ends, strict=True)]

    @property
    def _mask(self) -> int:
        return int(self.subject.tokenizer.mask_token_id)


PIECES = 4
MIN_ROWS = 8  # fewest rows of a piece
SAVED_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Schedule:
    """Length and learning rate of a training: linear warm-up over `warmup_tokens`, then a cosine to `floor` × rate at `decay_tokens`.

    A step counts batch × block tokens, padding included. Weight decay acts on matrices only. With several `cycles` all
    epochs are repeated with a new optimiser and schedule (Loshchilov & Hutter 2017, SGDR: warm restarts).
    """

    epochs: int
    batch: int
    rate: float
    warmup_tokens: int
    decay_tokens: int
    floor: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    cycles: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "rate", "decay_tokens", "clip", "cycles"):
            if not getattr(self, name) > 0:
                problem = f"A schedule with {name} {getattr(self, name)}."
                raise SpecError(problem, "It has to be above 0.", "Give a larger number.")

    def rate_at(self, tokens: int) -> float:
        """The learning rate of the step that ends after `tokens` tokens."""
        if tokens < self.warmup_tokens:
            return self.rate * tokens / self.warmup_tokens
        done = (tokens - self.warmup_tokens) / max(1.0, self.decay_tokens - self.warmup_tokens)
        return self.rate * max(self.floor, 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


# the rows of an epoch, given its number from 1: each has a `size`, and `targets`, the number of predicted ids
EpochRows = Callable[[int, np.random.Generator], Sequence[Any]]
EpochCallback = Callable[[int, float], object]  # called with an epoch's number and its loss


@dataclass(frozen=True)
class Practice:
    """One training run of a model with context `block` and padding id `padding`.

    A batch is split into `pieces` of rows of similar length, to reduce padding.
    `objective` has loss(model, rows), summed over predicted ids, in nats; None is the causal loss of Examples.
    """

    rows: EpochRows
    schedule: Schedule
    block: int
    padding: int
    seed: int
    objective: Any = None
    pieces: int = PIECES

    def run(self, model: nn.Module, state: Path, report: EpochCallback = lambda epoch, loss: None) -> tuple[float, ...]:
        """Train `model` in place, on its device; returns every epoch's loss in nats per predicted id.

        An epoch's rows, their order and dropout depend on the seed and the epoch's number alone. `state` is a checkpoint
        file that is written about once a minute; if it exists, training resumes from it, to the same weights. Raises
        StudyError if it is of another training or the loss is not finite, DamagedFileError if `state` cannot be read.
        """
        optimizer = _optimizer(model, self.schedule)
        losses = _resume(state, self._mark(model), model, optimizer) if state.exists() else []
        saved = time.monotonic()
        model.train()
        epochs = self.schedule.epochs * self.schedule.cycles
        for number in range(len(losses) + 1, epochs + 1):
            if number > 1 and (number - 1) % self.schedule.epochs == 0:
                optimizer = _optimizer(model, self.schedule)
            losses.append(self._epoch(model, optimizer, number))
            if not math.isfinite(losses[-1]):
                reason = f"The learning rate reached {self.schedule.rate:g}."
                raise StudyError(f"The loss of epoch {number} is not finite.", reason, "Give a lower rate.")
            if number < epochs and time.monotonic() - saved > SAVED_EVERY:
                about = {"mark": self._mark(model), "losses": losses}
                about |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                replace_file(state, lambda scratch, about=about: torch.save(about, scratch))
                saved = time.monotonic()
            report(number, losses[-1])
        model.eval()
        return tuple(losses)

    def _mark(self, model: nn.Module) -> str:
        shapes = [[name, list(p.shape)] for name, p in model.named_parameters()]
        objective = [] if self.objective is None else [repr(self.objective)]
        return digest(canonical([repr(self.schedule), self.block, self.padding, self.seed, shapes, *objective]), 8)

    def _epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
        """Train one epoch; returns the mean loss per predicted id."""
        draw = np.random.default_rng([self.seed, number])
        rows = self.rows(number, draw)
        order = draw.permutation(len(rows))
        steps = math.ceil(len(rows) / self.schedule.batch)
        tokens = (number - 1) % self.schedule.epochs * steps * self.schedule.batch * self.block
        total, count = 0.0, 0
        with torch.random.fork_rng():  # dropout uses the global generator
            torch.manual_seed(int(draw.integers(2**62)))
            for start in range(0, len(rows), self.schedule.batch):
                batch = [rows[i] for i in order[start : start + self.schedule.batch]]
                tokens += self.schedule.batch * self.block
                for group in optimizer.param_groups:
                    group["lr"] = self.schedule.rate_at(tokens)
                loss, predicted = self._step(model, optimizer, batch)
                total, count = total + loss, count + predicted
        return total / max(1, count)

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[Any]) -> tuple[float, int]:
        """Make one update from a batch, in pieces of rows of similar length; returns the summed loss and the number of predicted ids."""
        predicted, total = sum(row.targets for row in batch), 0.0
        optimizer.zero_grad(set_to_none=True)
        ordered = sorted(batch, key=lambda row: row.size)
        size = max(MIN_ROWS, math.ceil(len(ordered) / self.pieces))
        for start in range(0, len(ordered), size):
            piece = ordered[start : start + size]
            if self.objective:
                loss = self.objective.loss(model, piece)
            else:  # next-token loss
                device = next(model.parameters()).device
                ids = pad_rows([row.ids for row in piece], self.padding).to(device)
                labels = pad_rows([row.labels for row in piece], IGNORED).to(device).flatten()
                logits = model(input_ids=ids, use_cache=False).logits.flatten(0, 1)
                loss = F.cross_entropy(logits, labels, reduction="sum")
            (loss / max(1, predicted)).backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), self.schedule.clip)
        optimizer.step()
        return total, predicted


def _optimizer(model: nn.Module, schedule: Schedule) -> torch.optim.AdamW:
    """AdamW with weight decay on the matrices of linear maps, not on embeddings, norms and biases."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed = [p for p in model.parameters() if p.dim() > 1 and id(p) not in tables]
    others = [p for p in model.parameters() if p.dim() < 2 or id(p) in tables]
    groups = [{"params": decayed, "weight_decay": schedule.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=schedule.rate, betas=schedule.betas, fused=True)


def _resume(state: Path, mark: str, model: nn.Module, optimizer: torch.optim.AdamW) -> list[float]:
    """Load a training checkpoint into model and optimizer; returns the losses of the finished epochs."""
    todo = f"Delete {state} and run the same command again: this training then starts from the beginning."
    try:
        about = torch.load(state, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, ValueError, EOFError, UnpicklingError) as error:
        check_access(state, error)
        raise DamagedFileError(f"{state} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if not isinstance(about, dict) or about.get("mark") != mark:
        raise StudyError(f"{state} is of another training.", "Its settings or its seed differ.", todo)
    model.load_state_dict(about["model"])
    optimizer.load_state_dict(about["optimizer"])
    return about["losses"]
