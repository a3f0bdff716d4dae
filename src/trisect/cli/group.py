"""Group: the command line's frame — one message and exit 2 for bad input, 130 when interrupted."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

from trisect.core.errors import TrisectError


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Print one message and leave with 2 for bad input, with 130 when interrupted."""
        try:
            return super().invoke(ctx)
        except TrisectError as error:
            click.echo(f"trisect: {error}", err=True)
            ctx.exit(2)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what is left to say would fail once more at the end
            click.echo(
                "trisect: What was found could not be printed.\n  The disk that standard output is on is full.",
                err=True,
            )
            click.echo("  Free some space and call the same command again: nothing is lost.", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("Stopped. Call the same command again: it goes on from what is finished.", err=True)
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
