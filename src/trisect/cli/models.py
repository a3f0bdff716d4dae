"""The command check: verify that a model is read as it computes, or that a study is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from trisect.cli.group import main
from trisect.cli.options import columns
from trisect.cli.terminal import say, say_json, say_step
from trisect.core.errors import SpecError, StudyError

COLUMNS = (
    "rows: how far weights are from summing to one; output: how far weights times v are from what the layer hands on, "
    "relative to its size. q, k, v, o: how the matrix was found, and how far it is from giving what was recorded. "
    "cause: what reaches the model's answer when it is changed."
)
C = TypeVar("C", bound=Callable[..., object])


def model_options(function: C) -> C:
    """The argument MODEL, and how it is fetched."""
    for option in (
        click.option("--remote-code", is_flag=True, help="Allow code from the model's repository to run here."),
        click.option("--pickle", is_flag=True, help="Allow weights that are a pickle, which can run code."),
        click.option("--device-map", help="Passed on to from_pretrained, such as auto (needs the package accelerate)."),
        click.option(
            "--device",
            metavar="DEVICE",
            default="auto",
            show_default=True,
            help="Where the model runs: auto, cpu or cuda.",
        ),
        click.option("--dtype", metavar="DTYPE", help="float32, bfloat16, float16 or float64.  [default: as stored]"),
        click.option("--revision", metavar="REVISION", help="A branch, tag or commit of a model on a hub."),
        click.argument("model", metavar="MODEL"),
    ):
        function = option(function)
    return function


@main.command()
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print the proof as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def check(
    model: str,
    revision: str | None,
    dtype: str | None,
    device: str,
    device_map: str | None,
    pickle: bool,
    remote_code: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Verify that a model is read exactly as it computes, layer by layer; or check every file of a results folder.

    Of a model: coverage, laws, projections with residuals and cause, with a verdict per layer. Of a folder of results:
    each file that is not what its run wrote; of a study also what it goes on from, and what to delete.

    \b
    trisect check sentence-transformers/all-MiniLM-L6-v2
    trisect check study
    """
    from trisect import calls
    from trisect.lab.live import screen

    if calls.is_results(model):
        given = {"revision": revision, "dtype": dtype, "device-map": device_map, "pickle": pickle, "json": as_json}
        given |= {"remote-code": remote_code, "device": device != "auto"}
        if wrong := [name for name, value in given.items() if value]:
            known = "It is of models; this is a folder of results, whose files are read."
            raise SpecError(f"--{wrong[0]} was given for {model}.", known, "Leave it out.")
        with screen("trisect check", quiet, say_step):
            found = calls.check(model)
        _say_folder(model, found)
        return
    with screen("trisect check", quiet, say_step):
        proof = calls.prove(model, None, revision, dtype, device, device_map, pickle, remote_code)
    rows = proof.rows()
    if as_json:
        said = {"rows": rows, "notes": proof.notes(), "refused": proof.refusal and str(proof.refusal)}
        say_json(said)
    else:
        for line in columns(rows):
            say(line)
        for note in (
            *proof.notes(),
            COLUMNS,
            f"{sum(not law.failure for law in proof.laws)} of {len(rows)} layers are verified.",
        ):
            say(note)
    if proof.refusal is not None:
        raise proof.refusal


def _say_folder(out: str, found: Sequence[StudyError]) -> None:
    from trisect import calls
    from trisect.experiments.study.check import unfinished
    from trisect.lab.run_folder import is_study

    for error in found:
        say(f"trisect: {error}", err=True)
    if found:
        click.get_current_context().exit(2)
    left, runs = unfinished(Path(out)) if is_study(Path(out)) else (0, 0)
    if left:
        say(f"{left} of {runs} runs are not finished: call 'trisect study' again.")
    if begun := calls.unfinished(out):
        say(
            f"{out} holds the beginning of 'trisect {begun}', which was stopped before its end or still runs. "
            "Call that command again, with the same settings: it goes on from there."
        )
    if calls.lacks_list(out):
        say(
            "Every table and record is whole. There is no list of what the run wrote, so pages and figures were not checked."
        )
        return
    say("Every file that is there is whole." if left or begun else "Every file is whole, and of one run.")
