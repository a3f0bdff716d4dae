"""Translation and alignment on the command line: translate-train, align."""

from __future__ import annotations

import json
from typing import Any

import click

from trisect.cli.group import main
from trisect.cli.models import say_result
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


@main.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--source", required=True, help="A file of source sentences, one a line, words apart by spaces.")
@click.option("--target", required=True, help="The file of their translations.")
@click.option("--gold", help="A file of sure and possible links, Pharaoh (0-0 1p2) or .talp, a line a pair.")
@click.option("--base", type=int, help="From what the links count, 0 or 1.  [default: found out, and said]")
@click.option("--trial", nargs=3, metavar="SOURCE TARGET GOLD", help="Other pairs, to choose the best layer on.")
@click.option("--limit", type=int, help="Read no more than so many pairs.")
@click.option("--revision", help="A branch, tag or commit of a model on a hub.")
@click.option("--dtype", help="float32, bfloat16, float16 or float64.  [default: as stored]")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--pickle", is_flag=True, help="Allow weights that are a pickle, which can run code.")
@click.option("--remote-code", is_flag=True, help="Allow code from the model's repository to run here.")
@click.option("--seed", default=0, show_default=True, help="Of every random draw.")
@click.option("--out", default="align", show_default=True, help="The folder for tables, links, figures and page.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def align(
    models: tuple[str, ...],
    source: str,
    target: str,
    gold: str | None,
    base: int | None,
    trial: tuple[str, str, str] | None,
    limit: int | None,
    revision: str | None,
    dtype: str | None,
    device: str,
    pickle: bool,
    remote_code: bool,
    seed: int,
    out: str,
    as_json: bool,
) -> None:
    """Link words by an encoder-decoder's cross-attention, by weight and by norm, and score the links against gold.

    Several models are one that was trained with several seeds.

    \b
    trisect align translation/seed-1 translation/seed-2 --source test.en --target test.fr --gold test.talp
    """
    from trisect import door

    how: dict[str, Any] = {"revision": revision, "dtype": dtype, "device": device}
    loaded = [door.load(model, **how, pickle=pickle, remote_code=remote_code) for model in models]
    done = door.align(loaded, source, target, gold, out, base, trial, limit, seed)
    for note in () if as_json else done.notes:
        click.echo(note)
    say_result(done, as_json)
