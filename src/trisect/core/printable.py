"""Make text safe for XML, HTML and terminals: control characters as visible symbols, invalid characters as U+FFFD."""

from __future__ import annotations

import re

from trisect.core.files import Json

REPLACEMENT = "\ufffd"
# Characters that XML 1.0 does not allow or that control a terminal: C0 and C1 controls except tab and line ends, surrogates,
# and the two noncharacters at the end of each plane
_PLANES = "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(17))
_UNSAFE = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff{_PLANES}]")


def safe(text: str) -> str:
    """Replace control characters by their symbols (NUL by ␀), and invalid characters by U+FFFD."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_symbol, text)


def safe_data(value: Json) -> Json:
    """JSON-ready data with all strings safe, keys included."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, dict):
        return {safe(key): safe_data(item) for key, item in value.items()}
    return [safe_data(item) for item in value] if isinstance(value, list) else value


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else REPLACEMENT


def percent(share: float, decimals: int = 0) -> str:
    """A share from 0 to 1, as in `41.3 %`, with a true minus sign."""
    return f"{share:.{decimals}%}".replace("%", "\u00a0%").replace("-", "\u2212")
