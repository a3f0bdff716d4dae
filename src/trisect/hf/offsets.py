"""Character offsets of tokens: where in a text each piece of a model's tokenizer stands."""

from __future__ import annotations

from trisect.core.errors import ModelError
from trisect.hf.load import Pretrained


def piece_spans(model: Pretrained, text: str) -> list[tuple[int, int]]:
    """First character and the one after the last of every piece of a text, special tokens around it left out.

    Raises ModelError where the tokenizer does not say.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not tokenizer.is_fast:
        what = "no tokenizer" if tokenizer is None else f"the tokenizer {type(tokenizer).__name__}"
        known = "A tokenizer of the library 'tokenizers' is needed, since it says where in a text each piece stands."
        raise ModelError(f"{model.name} comes with {what}.", known, "Load the model with such a tokenizer.")
    made = tokenizer(text, return_special_tokens_mask=True, return_offsets_mapping=True, verbose=False)
    own = [i for i, special in enumerate(made["special_tokens_mask"]) if not special]
    return [(int(a), int(b)) for a, b in made["offset_mapping"][own[0] : own[-1] + 1]] if own else []
