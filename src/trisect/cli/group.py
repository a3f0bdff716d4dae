"""Group: the command line's frame — one message and exit 2 for bad input, 130 when interrupted."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from trisect.cli.terminal import check_words, of_stream, say, settle_streams, unprinted
from trisect.core.door import door, refused
from trisect.core.errors import TrisectError

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Look": ("explore", "serve", "theory", "ask"),
    "Measure": ("norms", "similarity", "profile", "ablate", "patch", "erase", "align", "rewind", "compare"),
    "Train": ("dissect", "study", "recall", "translate-train", "plan"),
    "Manage": ("check", "report", "claims", "corpus"),
}


class _Group(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands by what they are for, each with the whole first sentence of its help; any other command under 'More'."""
        known = [name for names in SECTIONS.values() for name in names]
        sections = {**SECTIONS, "More": tuple(sorted(set(self.commands) - set(known)))}
        for title, names in sections.items():
            rows = [(name, self.commands[name].get_short_help_str(200)) for name in names if name in self.commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **named: Any) -> Any:
        """As click's, with standard streams that are there and arguments that are texts."""
        settle_streams()
        # At the end nothing is searched for garbage: with torch that is a second after the last line.
        atexit.register(gc.freeze)
        try:
            return super().main(args, *rest, **named)
        except OSError as error:  # of what click itself prints or reads; a command's own are met where they arise
            say(f"trisect: {unprinted(error) if of_stream(error) else refused(error)}", err=True)
            sys.exit(2)

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
    trisect explore MODEL "a sentence" --open    every attention head of a pretrained model, as one page
    trisect dissect --out study                  the whole study on embedded data, and one page

    MODEL is a folder, a name on the Hugging Face hub, or a study's folder.
    """
