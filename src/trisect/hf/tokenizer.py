"""Tokenizers of transformers as far as they are called here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer of any model: texts to ids, and ids to the texts of tokens."""

    @property
    def is_fast(self) -> bool:
        """Whether it says where in a text its tokens stand."""
        ...

    def __len__(self) -> int:
        """How many tokens there are."""
        ...

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Ids and masks of texts; which, and for how many texts, the options say."""
        ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """The tokens of ids."""
        ...

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """The text of ids."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Every token with its id."""
        ...


@runtime_checkable
class OwnTokenizer(Tokenizer, Protocol):
    """One that was made here: it has a token for padding, and one for what is masked where its model needs that."""

    @property
    def pad_token_id(self) -> int:
        """The id of padding."""
        ...

    @property
    def mask_token_id(self) -> int:
        """The id of the mask."""
        ...

    @property
    def eos_token_id(self) -> int:
        """The id of a text's end."""
        ...

    @property
    def unk_token_id(self) -> int:
        """The id of what is unknown."""
        ...

    def save_pretrained(self, save_directory: str | Path) -> Sequence[str]:
        """Write it as files into a folder."""
        ...
