"""A small encoder-decoder made from a transformers config, with a byte-pair encoding shared by both languages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from trisect.core.errors import CorpusError, SpecError
from trisect.hf.batches import pad_rows
from trisect.hf.files.fetch import Options, OwnTokenizer, fetch
from trisect.hf.small.gpt import as_fast, check_sizes, random_model
from trisect.text.birth_places import IGNORED

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
START = "▁"  # in front of a word's first piece
POSITIONS = 512
WordSides = tuple[Sequence[str], Sequence[str]]  # words of a sentence, and of its translation


@dataclass(frozen=True)
class TranslatorShape:
    """A small Transformer: `layers` of encoder and decoder each, `heads`, `width` (residual stream), `inner` (feed-forward)."""

    layers: int = 2
    heads: int = 4
    width: int = 256
    inner: int = 1024
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self.dropout, layers=self.layers, heads=self.heads, width=self.width, inner=self.inner)
        if self.width % self.heads or self.width % 2:
            reason = f"{self.width} is shared by {self.heads} heads, and by the sines and cosines of positions."
            raise SpecError(f"A width of {self.width}.", reason, "Give an even multiple of the number of heads.")


def learn_tokenizer(sentences: Iterable[Sequence[str]], size: int) -> OwnTokenizer:
    """A fast tokenizer of about `size` byte-pair tokens, learnt from the words of both sides, that ends a text with `</s>`.

    No token spans a space, and a word's first token begins with `▁`, so that the tokens of a list of words
    (`is_split_into_words=True`) map back to them. Raises SpecError if there are more than `size` characters.
    """
    texts = [" ".join(words) for words in sentences]
    return learn_pieces(texts, size, POSITIONS, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)


def learn_pieces(texts: Sequence[str], size: int, longest: int, **marks: str) -> OwnTokenizer:
    """Learn a byte-pair tokenizer from any texts; `marks` are special tokens by role: `unk_token`, and an optional `eos_token`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    characters = len({c for text in texts for c in text if not c.isspace()} | {START})
    if len(marks) + characters > size:
        reason = f"The text has {characters} different characters, and there are {len(marks)} special tokens."
        raise SpecError(f"A vocabulary of {size} pieces.", reason, f"Give {2 * (len(marks) + characters)} or more.")
    inner = Tokenizer(models.BPE(unk_token=marks["unk_token"]))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(START, "always", split=False)]
    )
    inner.decoder = decoders.Metaspace(START, "always", split=False)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(marks.values()), show_progress=False)
    inner.train_from_iterator(texts, trainer)
    if end := marks.get("eos_token"):
        inner.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, inner.token_to_id(end))]
        )
    return as_fast(inner, longest, **marks)


def make_model(architecture: TranslatorShape, tokenizer: OwnTokenizer, seed: int) -> nn.Module:
    """A Marian model with random weights from the seed; both sides and the output share one embedding matrix."""
    import transformers

    a = architecture
    config = transformers.MarianConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=len(tokenizer),
        max_position_embeddings=POSITIONS,
        d_model=a.width,
        encoder_layers=a.layers,
        decoder_layers=a.layers,
        encoder_attention_heads=a.heads,
        decoder_attention_heads=a.heads,
        encoder_ffn_dim=a.inner,
        decoder_ffn_dim=a.inner,
        dropout=a.dropout,
        attention_dropout=a.dropout,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        init_std=a.width**-0.5,  # scaled embeddings have entries as large as position embeddings
        share_encoder_decoder_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    return random_model(transformers.AutoModelForSeq2SeqLM, config, seed)


@dataclass(frozen=True)
class _TranslationIds:
    """Token ids of a sentence and of its translation, each with its end token."""

    source: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ids on both sides, for batching by size."""
        return len(self.source) + len(self.target)

    @property
    def targets(self) -> int:
        """Number of ids to predict: all of the target."""
        return len(self.target)


@dataclass(frozen=True)
class TranslationLoss:
    """The loss of translation: every target id is predicted from the source and the target ids before it.

    With `smoothing` ε the target distribution has 1 − ε on the id and ε spread over the vocabulary (Szegedy et al. 2016).
    """

    padding: int
    smoothing: float = 0.0

    def loss(self, model: nn.Module, rows: Sequence[_TranslationIds]) -> Tensor:
        """Cross-entropy in nats, summed over all target ids."""
        logits = self.logits(model, rows)
        labels = pad_rows([row.target for row in rows], IGNORED).to(logits.device)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=self.smoothing)

    def logits(self, model: nn.Module, rows: Sequence[_TranslationIds]) -> Float[Tensor, "B T V"]:
        """Logits for the pairs with teacher forcing; position t predicts target id t."""
        device = next(model.parameters()).device
        return model(
            input_ids=pad_rows([row.source for row in rows], self.padding).to(device),
            attention_mask=pad_rows([[1] * len(row.source) for row in rows], 0).to(device),
            decoder_input_ids=pad_rows([(self.padding, *row.target[:-1]) for row in rows], self.padding).to(device),
            use_cache=False,
        ).logits


def encode(pairs: Iterable[WordSides], tokenizer: OwnTokenizer) -> list[_TranslationIds]:
    """Sentence pairs as token ids with end tokens; raises CorpusError if one is too long for the model."""
    both = list(pairs)
    if not both:
        return []
    texts = ([list(words) for words in side] for side in zip(*both, strict=True))
    sides = (map(tuple, tokenizer(side, is_split_into_words=True).input_ids) for side in texts)
    rows = [_TranslationIds(source, target) for source, target in zip(*sides, strict=True)]
    for number, row in enumerate(rows, start=1):
        if max(len(row.source), len(row.target)) > POSITIONS:
            problem = f"Pair {number}, {' '.join(both[number - 1][0])[:60]!r}."
            reason = f"It has {max(len(row.source), len(row.target))} pieces on a side; the model reads {POSITIONS}."
            raise CorpusError(problem, reason, "Leave it out, for example with a lower --set longest=.")
    return rows


ROWS = 64  # rows of a batch
EXTRA_PIECES = 10  # pieces that a translation may have beyond twice the pieces of its sentence


class _TranslationScore(NamedTuple):
    """Mean loss per target token in nats, and the share of correct top-1 predictions, with teacher forcing."""

    loss_nats: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class Translator:
    """A translation model with its tokenizer."""

    model: nn.Module
    tokenizer: Any

    @classmethod
    def open(cls, folder: Path, device: str = "cpu") -> Translator:
        """Read a model's folder; raises ModelError for one that cannot be read."""
        return cls(*fetch(folder, Options(device=device))[:2])

    @torch.no_grad()
    def score(self, pairs: Sequence[WordSides]) -> _TranslationScore:
        """Loss and accuracy over all target tokens of some pairs, end tokens included."""
        objective = TranslationLoss(self.tokenizer.pad_token_id)
        loss, right, count = 0.0, 0, 0
        ordered = sorted(encode(pairs, self.tokenizer), key=lambda row: row.size)  # batches of rows of similar size
        for start in range(0, len(ordered), ROWS):
            rows = ordered[start : start + ROWS]
            logits = objective.logits(self.model, rows).flatten(0, 1)
            labels = pad_rows([row.target for row in rows], IGNORED).to(logits.device).flatten()
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(-1) == labels).sum())
            count += int((labels != IGNORED).sum())
        return _TranslationScore(loss / count, right / count)

    @torch.no_grad()
    def translate(self, sentences: Sequence[Sequence[str]]) -> list[str]:
        """Greedy translations of sentences, as text."""
        translations = []
        for words in sentences:
            ids = self.tokenizer([list(words)], is_split_into_words=True, return_tensors="pt").input_ids
            ids = ids.to(next(self.model.parameters()).device)
            out = [self.tokenizer.pad_token_id]
            for _ in range(2 * ids.shape[1] + EXTRA_PIECES):
                prefix = torch.tensor([out], device=ids.device)
                answer = self.model(input_ids=ids, decoder_input_ids=prefix, use_cache=False)
                out.append(int(answer.logits[0, -1].argmax()))
                if out[-1] == self.tokenizer.eos_token_id:
                    break
            translations.append(self.tokenizer.decode(out, skip_special_tokens=True).strip())
        return translations
