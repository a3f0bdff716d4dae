"""Birth places on the command line: recall, ask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from trisect.cli.group import main
from trisect.cli.models import say_result
from trisect.cli.study import read_seeds
from trisect.core.errors import SpecError


@main.command()
@click.option("--data", default="embedded", show_default=True, help="A folder of birth places, or 'embedded'.")
@click.option("--seeds", default="1", show_default=True, help="A number of seeds, or the seeds themselves: 1,2,7.")
@click.option("--recipe", help="embedded, small or course.  [default: embedded for 'embedded', else small]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Another value for one of its settings.")
@click.option("--no-examples", is_flag=True, help="Show no questions with their answers on the page.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--workers", type=int, help="Worker processes.  [default: one a core]")
@click.option("--out", default="recall", show_default=True, help="The folder for models, tables, figures and page.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def recall(
    data: str,
    seeds: str,
    recipe: str | None,
    settings: tuple[str, ...],
    no_examples: bool,
    device: str,
    workers: int | None,
    out: str,
    as_json: bool,
) -> None:
    """Ask what pretraining adds: models with and without it, asked where people were born. Goes on where it stopped.

    \b
    trisect recall --out recall
    trisect recall --data birth-places --seeds 2 --set pretraining_epochs=200
    """
    from trisect import door

    chosen, given = read_seeds(seeds), read_settings(settings)
    done = door.recall(data, out, 1 if chosen is None else chosen, recipe, given, not no_examples, device, workers)
    for note in () if as_json else done.notes:
        click.echo(note)
    say_result(done, as_json)


@main.command()
@click.argument("model", metavar="MODEL")
@click.argument("question")
@click.option("--risk", type=float, help="The share of wrong answers that is put up with; 1: always answer.")
@click.option("--json", "as_json", is_flag=True, help="Print the reply as JSON.")
def ask(model: str, question: str, risk: float | None, as_json: bool) -> None:
    """Put one question to a model that recall trained: its answer and how sure it is, or nothing where it is not.

    \b
    trisect ask recall/models/pretrained-1 "Where was Numo Temil born?"
    """
    from trisect import door

    reply = door.ask(Path(model), question, risk)
    if as_json:
        click.echo(json.dumps(asdict(reply), ensure_ascii=False))
        return
    for line in reply.words():
        click.echo(line)


def read_settings(settings: Sequence[str]) -> dict[str, str]:
    """The values of --set NAME=VALUE; raises SpecError for one without '='."""
    pairs = [text.partition("=") for text in settings]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        known = "A setting has a name, '=' and a value."
        raise SpecError(f"--set {wrong[0]}.", known, "Use for example --set layers=2.")
    return {name.strip(): value.strip() for name, _, value in pairs}
