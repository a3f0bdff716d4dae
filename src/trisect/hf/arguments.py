"""What foreign functions are called with: their arguments by place and by name, of any type; and what models give."""

from __future__ import annotations

from typing import Any, TypeAlias

Arguments: TypeAlias = tuple[Any, ...]
NamedArguments: TypeAlias = dict[str, Any]
ModelOutput: TypeAlias = Any  # of any class: each model has its own
