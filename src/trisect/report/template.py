"""Fill the template of a page: one environment for all pages, with style and script inside, and the script's hash for its policy."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trisect.core.printable import safe
from trisect.report import format as words

STYLE = Path(__file__).parent / "page.css"
# buttons that save drawings and their numbers, for pages that draw by themselves
SAVE = Path(__file__).parent / "save.js"
FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": words.number,
    "count": words.count,
    "several": words.several,
    "listed": words.listed,
}


def fill(
    template: Path, style: str, script: str = "", filters: Mapping[str, Callable[..., Any]] = FILTERS, **values: Any
) -> str:
    """The template with these values, and besides `style`, `script` and `script_hash` (SHA-256, base64) for its head.

    Everything is escaped but what is Markup, and control characters are shown as
    their signs; a name that the template asks for and nobody gave is an error.
    """
    page = (
        _environment(template.parent, tuple(filters.items()))
        .get_template(template.name)
        .render(
            style=Markup(style),
            script=Markup(script),
            script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            **values,
        )
    )
    return safe(page)


@cache
def _environment(folder: Path, filters: tuple[tuple[str, Callable[..., Any]], ...]) -> Environment:
    """Kept, with the templates that it has compiled: a study writes many pages."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment


def closed(*paths: Path) -> str:
    """Several scripts as one that leaves no name outside itself."""
    return f'"use strict";\n(() => {{\n{"".join(map(read, paths))}}})();\n'


def read(path: Path) -> str:
    """A file that lies beside the code."""
    return path.read_text(encoding="utf-8")
