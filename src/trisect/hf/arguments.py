"""What foreign functions are called with: their arguments by place and by name, of any type."""

from __future__ import annotations

from typing import Any, TypeAlias

Arguments: TypeAlias = tuple[Any, ...]
NamedArguments: TypeAlias = dict[str, Any]
