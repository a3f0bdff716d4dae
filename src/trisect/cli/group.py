"""The command group: one message and exit 2 for bad input, 130 when interrupted."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import json
import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from trisect.core.errors import (
    DISK_FULL_ERRORS,
    SpecError,
    StudyError,
    TrisectError,
    file_error,
    translate_system_errors,
)
from trisect.core.machine import versions
from trisect.core.printable import safe


def say(text: object, err: bool = False) -> None:
    """Print a line (to standard error if `err`), with control characters as symbols."""
    _print(safe(str(text)), err)


def say_step(words: str) -> None:
    """Print a step that begins to standard error."""
    say(words, err=True)


def say_json(data: Any, indent: int | None = None) -> None:
    """Print data as JSON: characters unchanged if standard output can encode them, else escaped."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    text = json.dumps(data, indent=indent, ensure_ascii=encoding != "utf8")
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only JSON's escapes can represent
        text = json.dumps(data, indent=indent, ensure_ascii=True)
    _print(text)


def open_page(page: Path) -> None:
    """Open a page in the browser, or print that there is none."""
    if not webbrowser.open(page.resolve().as_uri()):
        say(f"No browser could be opened here. Open the page yourself: {page.resolve()}", err=True)


def _print(text: str, err: bool = False) -> None:
    """Print; raises StudyError if standard output fails, and prints no more to it."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _output_error(error) from error


def _output_error(error: OSError) -> StudyError:
    """The error for a failed standard output, to which nothing more is printed."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  else flushing at exit would fail again
    full = error.errno in DISK_FULL_ERRORS
    return StudyError(
        "The results could not be printed.",
        "The disk that standard output is on is full." if full else f"The system says: {error.strerror or error}.",
        f"{'Free some space' if full else 'Send it elsewhere'} and run the same command again: nothing is lost.",
    )


STREAM_ERRORS = (errno.EPIPE, errno.EBADF, errno.EIO, errno.EFBIG)  # of a closed or full standard stream
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Look": ("explore", "serve", "theory", "ask"),
    "Measure": (
        "norms",
        "similarity",
        "profile",
        "ablate",
        "quantise",
        "patch",
        "compose",
        "erase",
        "align",
        "rewind",
        "compare",
        "bench",
    ),
    "Train": ("dissect", "study", "lookup", "recall", "translate-train", "plan"),
    "Manage": ("check", "audit", "report", "claims", "corpus"),
}


class _Group(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands by purpose, each with the first sentence of its help; others under 'More'."""
        listed = [name for names in SECTIONS.values() for name in names]
        sections = {**SECTIONS, "More": tuple(sorted(set(self.commands) - set(listed)))}
        for title, names in sections.items():
            rows = [(name, self.commands[name].get_short_help_str(200)) for name in names if name in self.commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **named: Any) -> Any:
        """As click's, with closed standard streams redirected to the null device, and unencodable characters escaped.

        The descriptor of a closed stream would otherwise be reused for the next file that is opened, and output be written into it.
        """
        for number in (0, 1, 2):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        atexit.register(gc.freeze)  # no garbage collection at exit, which takes a second with torch
        try:
            return super().main(args, *rest, **named)
        except OSError as error:  # from click's own reading and printing; `invoke` handles those of commands
            is_stream_error = error.filename is None and error.errno in (*DISK_FULL_ERRORS, *STREAM_ERRORS)
            say(f"trisect: {_output_error(error) if is_stream_error else file_error(error)}", err=True)
            sys.exit(2)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; exits with 2 for an argument that the system's encoding cannot represent."""
        for word in args:
            try:
                word.encode()
            except UnicodeEncodeError:
                reason = f"It cannot be encoded in {sys.getfilesystemencoding()}, the encoding of file names here."
                todo = "Set PYTHONUTF8=1 in the environment, or use another name."
                say(f"trisect: {SpecError(f'{word!a} was given.', reason, todo)}", err=True)
                ctx.exit(2)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Print one message and exit with 2 for bad input and errors of the system, with 130 when interrupted."""
        try:
            with translate_system_errors():
                return super().invoke(ctx)
        except TrisectError as error:
            say(f"trisect: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            say("Stopped. Run the same command again: it goes on from what is finished.", err=True)
            ctx.exit(130)


def _show_version(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    """Print the versions of trisect, Python, torch and transformers, without importing any of them, and exit."""
    if is_set and not ctx.resilient_parsing:
        numbers = versions("transformers")
        others = ", ".join(f"{name} {numbers[name]}" for name in ("python", "torch", "transformers"))
        click.echo(f"trisect {numbers['trisect']} ({others})")
        ctx.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show versions and exit."
)
def main() -> None:
    """What do the query, key and value submodules of a Transformer each do?

    Which command for my question?

    \b
    trisect explore MODEL "a sentence"   what does each head look at?
    trisect serve MODEL                  and if I switch q, k or v off?
    trisect norms MODEL                  what is really added?
    trisect profile MODEL                what do q, k and v encode?
    trisect ablate MODEL                 what breaks without them?
    trisect patch MODEL                  which of them carries the answer?
    trisect compose MODEL                what makes them?
    trisect dissect                      all of it, in models whose roles are known

    MODEL is a folder, a name on the Hugging Face hub, or a study's folder, such as trisect study quick --out study makes.
    """
