"""The command serve: a page on this machine to switch q, k or v of a model and see what changes."""

from __future__ import annotations

from typing import Any

import click

from trisect.cli.group import main
from trisect.cli.models import model_options
from trisect.cli.terminal import say, say_step


@main.command()
@model_options
@click.option("--text", multiple=True, help="The text at first; an encoder-decoder takes two, source and target.")
@click.option("--second", multiple=True, help="The text to patch from at first; two for an encoder-decoder.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at: this machine alone.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port.  [default: a free one]")
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
def serve(host: str, port: int, open_: bool, text: tuple[str, ...], second: tuple[str, ...], **fetched: Any) -> None:
    """Serve a page on this machine: type a sentence, switch q, k or v of any site, and see what changes.

    The address that is printed holds a token; without it nothing is answered. Ctrl+C ends it.

    \b
    trisect serve sentence-transformers/all-MiniLM-L6-v2 --open
    """
    from trisect.lab.live import screen

    with screen("trisect serve", line=say_step):
        from trisect.server.run import LOOPBACK, open_page, start  # with PyTorch

        served = start(fetched.pop("model"), text, second, host, port, **fetched)
    say(served.address)
    if host not in LOOPBACK:
        say(f"Whoever has this address can use the model, and what is sent can be read on the way: {host}.", err=True)
    if open_:
        open_page(served.address)
    served.wait()
