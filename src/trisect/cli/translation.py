"""Translation on the command line: translate-train."""

from __future__ import annotations

import json
from typing import Any

import click

from trisect.cli.group import main
from trisect.cli.people import read_settings
from trisect.cli.study import read_seeds
from trisect.core.errors import SpecError

SHOWN = 3  # translations that a terminal shows of each model


@main.command("translate-train")
@click.option("--data", help="A folder with a bitext, or 'embedded'.  [default: embedded]")
@click.option("--source", help="A file of source sentences, one a line (with --target, instead of --data).")
@click.option("--target", help="The file of their translations.")
@click.option("--seeds", default="2", show_default=True, help="A number of seeds, or the seeds themselves: 1,2,7.")
@click.option("--recipe", help="embedded or small.  [default: embedded for 'embedded', else small]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Another value for one of its settings.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--workers", type=int, help="Worker processes.  [default: one a core]")
@click.option("--out", default="translation", show_default=True, help="The folder for models and tables.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def translate_train(
    data: str | None,
    source: str | None,
    target: str | None,
    seeds: str,
    recipe: str | None,
    settings: tuple[str, ...],
    device: str,
    workers: int | None,
    out: str,
    as_json: bool,
) -> None:
    """Train small encoder-decoders on a bitext, one a seed, for align to read. Goes on where it stopped.

    \b
    trisect translate-train --out translation
    trisect translate-train --source train.en --target train.fr --seeds 3
    """
    from trisect import door

    if (source is None) != (target is None) or (data is not None and source is not None):
        known = "Sentences come from --data, or from --source and --target together."
        given = ", ".join(f"--{n} {v}" for n, v in (("data", data), ("source", source), ("target", target)) if v)
        raise SpecError(f"{given} was given.", known, "Give one or the other.")
    chosen, given = read_seeds(seeds), read_settings(settings)
    place: Any = [source, target] if source is not None else "embedded" if data is None else data
    done = door.translate_train(place, out, 2 if chosen is None else chosen, recipe, given, device, workers)
    if as_json:
        click.echo(json.dumps({"models": [str(path.resolve()) for path in done.models], "notes": list(done.notes)}))
        return
    for note in done.notes:
        click.echo(note)
    for path, made in zip(done.models, done.translations, strict=True):
        click.echo(f"model  {path.resolve()}")
        for one in made[:SHOWN]:
            click.echo(f"  {one['source']}  →  {one['made']}  (the text has: {one['target']})")
