"""A small character-level GPT and its tokenizer, made from a transformers config and saved as a Hugging Face folder."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trisect.core.door import check_barred, temporary_room
from trisect.core.errors import DamagedFileError, SpecError, unknown
from trisect.core.files import inside, replace_file
from trisect.hf.fetch import quiet
from trisect.hf.tokenizer import OwnTokenizer

PAD, MASK, UNKNOWN = "<pad>", "<mask>", "<unk>"
SPECIALS = (PAD, MASK, UNKNOWN)
KINDS = ("gpt2", "llama")


@dataclass(frozen=True)
class GptShape:
    """A small GPT: `layers`, `heads`, `width` (residual stream) and `block` (characters read at once).

    `kind` 'gpt2' has learned positions, as the assignment's model; 'llama' has rotary ones. `dropout` is on embeddings,
    attention weights and residuals; a llama has it on attention weights alone.
    """

    kind: str = "gpt2"
    layers: int = 4
    heads: int = 8
    width: int = 256
    block: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(unknown("kind of model", self.kind, KINDS), f"There are {', '.join(KINDS)}.", "Use one.")
        for name in ("layers", "heads", "width", "block"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} {getattr(self, name)}.", "A model has at least one.", "Give a larger number.")
        if self.width % self.heads or (self.kind == "llama" and self.width // self.heads % 2):
            known = f"{self.width} is shared by {self.heads} heads" + (
                ", evenly for rotary positions" * (self.kind == "llama")
            )
            raise SpecError(f"A width of {self.width}.", f"{known}.", "Give a multiple of the number of heads.")
        if not 0 <= self.dropout < 1:
            raise SpecError(f"A dropout of {self.dropout}.", "It is a share below 1.", "Give for example 0.1.")


def make_tokenizer(characters: Sequence[str], block: int) -> OwnTokenizer:
    """A fast tokenizer whose tokens are single characters, and `<pad>`, `<mask>`, `<unk>`."""
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIALS, *characters))}
    inner = Tokenizer(models.WordLevel(vocabulary, UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    made: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        mask_token=MASK,
        unk_token=UNKNOWN,
        model_max_length=block,
        clean_up_tokenization_spaces=False,
    )
    return made


def make_model(architecture: GptShape, tokenizer: OwnTokenizer, seed: int) -> nn.Module:
    """A causal language model with random weights, a function of the seed."""
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
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # on a CPU the plain product trains such short rows twice as fast as the fused kernel
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def save(model: Any, tokenizer: OwnTokenizer, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face folder, each file whole or not at all; config.json comes last."""
    with temporary_room("A trained model"), tempfile.TemporaryDirectory() as scratch, quiet():
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        files = sorted(Path(scratch).iterdir(), key=lambda path: (path.name == "config.json", path.name))
        for path in files:
            content = path.read_bytes()
            replace_file(inside(folder, path.name), lambda target, content=content: target.write_bytes(content))


def is_model(folder: Path) -> bool:
    """Whether `save` finished there."""
    return (folder / "config.json").exists()


def load_weights(model: nn.Module, folder: Path) -> None:
    """Put the weights that `save` wrote into a model of the same architecture; raises DamagedFileError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        load_model(model, folder / "model.safetensors")
    except (SafetensorError, OSError, RuntimeError) as error:
        check_barred(folder, error)
        todo = f"Delete {folder} and call the same command again: it is trained again."
        raise DamagedFileError(f"{folder} cannot be read.", f"{type(error).__name__}: {error}", todo) from error


def ids_of(text: str, tokenizer: OwnTokenizer) -> list[int]:
    """A text's ids, one a character; what the tokenizer does not have is `<unk>`."""
    vocabulary, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
    return [vocabulary.get(character, unknown) for character in text]
