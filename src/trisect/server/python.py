"""The Python that does what a served page shows."""

from __future__ import annotations

from trisect.server.state import PageState


def python(source: str, state: PageState) -> str:
    """A program that loads the model, switches the same sites and prints the outcome; `source` is what `trisect.load` is given."""
    loaded = f"model = trisect.load({source})" if source else "model = ...  # the model that trisect.serve was given"
    rest = [f"    {{{', '.join(f'{site!r}: {how!r}' for site, how in state.switches)}}},"]
    if state.donor is not None:
        rest.append(f"    second={state.donor!r},")
    if state.place is not None:
        rest.append(f"    place={state.place},")
    if state.positions:
        rest.append(f"    positions={state.positions!r},")
    lines = [
        "import trisect",
        "",
        loaded,
        "change = trisect.intervene(",
        "    model,",
        f"    {state.given!r},",
        *rest,
        ")",
    ]
    return "\n".join([*lines, "print(change)", ""])
