"""Group: the command line's frame — one message and exit 2 for bad input, 130 when interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from trisect.cli.terminal import check_words, say, settle_streams
from trisect.core.door import door
from trisect.core.errors import TrisectError


class _Group(click.Group):
    def main(self, args: Sequence[str] | None = None, *rest: Any, **named: Any) -> Any:
        """As click's, with standard streams that are there and arguments that are texts."""
        settle_streams()
        return super().main(args, *rest, **named)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; exit 2 for an argument that is no text."""
        try:
            check_words(args)
        except TrisectError as error:
            say(f"trisect: {error}", err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Print one message and leave with 2 for bad input and for what the system refuses, with 130 when interrupted."""
        try:
            with door():
                return super().invoke(ctx)
        except TrisectError as error:
            say(f"trisect: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            say("Stopped. Call the same command again: it goes on from what is finished.", err=True)
            ctx.exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trisect")
def main() -> None:
    """What do the query, key and value submodules of a Transformer each do?

    \b
    trisect dissect --out study            all four sources on embedded data, and one page
    trisect study quick --out training     train, attack, rewind, freeze, tie; judge; report
    trisect plan paper --corpus DIR        what would be run, and how long it would take
    trisect corpus annotate DIR ...        label a text with spaCy
    trisect norms MODEL --corpus DIR       where a pretrained model's attention takes its information from
    trisect explore MODEL "a text"         one page to look into every head
    trisect theory                         attention worked by hand, and a page to move it with
    trisect recall --out recall            what pretraining adds: models asked where people were born
    trisect align MODEL --source ...       word links from an encoder-decoder's attention
    """
