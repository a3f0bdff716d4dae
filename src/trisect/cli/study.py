"""Commands other than experiments: report, claims, corpus, check and serve."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from trisect.cli.group import main, open_page, say, say_json, say_step
from trisect.cli.options import columns, parameters_of
from trisect.core.errors import SpecError, StudyError, translate_system_errors
from trisect.lab.inputs import ModelSource
from trisect.text.readers import HELP


@main.command()
@click.argument("out", metavar="OUT")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print where the page is as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def report(out: str, opens: bool, as_json: bool, quiet: bool) -> None:
    """Rebuild the page and figures of a folder without training or measuring.

    OUT is the results folder of any command. For a study the tables are rebuilt too, from its finished runs; for several models
    the page that covers all of them. A README.md with a summary is written, unless the folder has one that was written by hand.

    \b
    trisect report study
    trisect report norms
    """
    from trisect import calls
    from trisect.lab.jobs import screen

    with screen("trisect report", quiet, say_step):
        page = calls.render(out).report.resolve()
    say_json({"report": str(page)}) if as_json else say(page)
    if opens:
        open_page(page)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def claims(as_json: bool) -> None:
    """Print every claim with its parts, margins and reasons, as fixed before any data.

    \b
    trisect claims
    """
    from trisect.claims import listing

    rows, lines, last = listing(), list[str](), ""
    for row in rows:
        if row["claim"] != last:
            last, citation = row["claim"], str(row["citation"]).split(". ")[0].rstrip(".")
            lines.append(f"{last}  {row['claim_sentence']}  [{citation}, {row['where']}]")
        lines.append(f"      {row['sentence']}{'' if row['decides'] else '  (shown, does not decide)'}")
        lines.append(f"          margin {row['margin']:g} {row['unit']}: {row['reason']}")
    say_json(rows, 1) if as_json else say("\n".join(lines))


@main.group()
def corpus() -> None:
    """Show what a text holds, or label one."""


@corpus.command()
@click.argument("folder", metavar="DIR")
@click.option("--reader", help=f"{HELP}.  [default: detected]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def show(folder: str, reader: str | None, as_json: bool, quiet: bool) -> None:
    """Print a text's splits, tokens, types, rows and columns, and its labels.

    \b
    trisect corpus show embedded
    """
    from trisect.lab.jobs import screen
    from trisect.text.sources import describe, open_corpus

    with screen("trisect corpus show", quiet, say_step), translate_system_errors():
        facts = describe(open_corpus(folder, reader))
    if as_json:
        say_json(facts, 1)
        return
    say(f"{facts['name']}  {facts['types']:,} types  fingerprint {facts['fingerprint']}")
    for row in facts["splits"]:
        shape = f"{row['rows']:,} rows × {row['columns']} columns"
        unseen = f", {row['unknown']:,} of them of types that train lacks" if row["unknown"] else ""
        say(f"{row['split']:<6} {row['tokens']:,} tokens = {shape}; {row['types']:,} types{unseen}")
    labels: dict[str, list[str]] = {}
    for row in facts["labels"]:
        counts = labels.setdefault(row["label"], [])
        if row["split"] == "train" and row["count"]:
            counts.append(f"{row['class'] or '(none)'} {row['count']:,}")
    for label, counts in labels.items():
        say(f"{label}    " + ", ".join(counts))
    for note in facts["notes"]:
        say(note)


@corpus.command()
@click.argument("source", metavar="CORPUS")
@click.option("--pipeline", required=True, help="Name or folder of a spaCy pipeline.")
@click.option("--out", required=True, help="Folder for the annotated corpus; --corpus takes it.")
@click.option("--reader", help=f"{HELP}.  [default: detected]")
@click.option("--placeholder", default="Unk", show_default=True, help="What the tagger reads in place of <unk>.")
@click.option(
    "--columns",
    multiple=True,
    help="Columns to add, out of pos,tag,dep,ent.  [default: pos,dep, and tag,ent where the pipeline sets them]",
)
@click.option("--workers", type=int, help="Worker processes.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print the folder and any notes as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def annotate(
    source: str,
    pipeline: str,
    out: str,
    reader: str | None,
    placeholder: str,
    columns: tuple[str, ...],
    workers: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Label every token with spaCy's part of speech, tag, relation and entity type.

    \b
    trisect corpus annotate wikitext-2 --pipeline en_core_web_sm --out wikitext-2-labelled
    """
    from trisect.lab.annotation import annotate as annotate_corpus
    from trisect.lab.jobs import bar

    with bar("annotate", quiet) as progress:
        names = [piece.strip() for text in columns for piece in text.split(",")] or None
        annotated = annotate_corpus(source, pipeline, out, reader, placeholder, workers, progress, names)
    if as_json:
        say_json({"folder": out, "notes": list(annotated.notes)})
        return
    for note in annotated.notes:
        say(note, err=True)
    say(out)


COLUMN_HELP = (
    "rows: how far weights are from summing to one; output: how far weights times v are from the layer's attention output, "
    "relative to its size. q, k, v, o: how the matrix was found, and how far its results are from the recorded ones. "
    "cause: the components whose change reaches the model's answer."
)
Function = TypeVar("Function", bound=Callable[..., object])


def _model_options(function: Function) -> Function:
    """Click parameters for the argument MODEL and its fetch options, as in measuring commands."""
    parameters = [parameter for parameter in parameters_of(ModelSource) if parameter.name != "window"]
    # where click's own decorators store theirs
    function.__dict__.setdefault("__click_params__", []).extend(reversed(parameters))
    return function


@main.command()
@_model_options
@click.option("--json", "as_json", is_flag=True, help="Print the proof as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def check(model: str, as_json: bool, quiet: bool, **load_options: Any) -> None:
    """Verify that a model is read exactly as it computes, layer by layer; or check every file of a results folder.

    For a model it prints coverage, laws, projections with residuals, and cause, with a verdict per layer. For a folder of results
    it lists each file that differs from what its run wrote; for a study also where it resumes, and what to delete.

    \b
    trisect check sentence-transformers/all-MiniLM-L6-v2
    trisect check study
    """
    from trisect import calls
    from trisect.lab.jobs import screen

    if calls.is_results(model):
        options = {**load_options, "device": load_options["device"] != "auto", "json": as_json}
        if wrong := [name.replace("_", "-") for name, value in options.items() if value]:
            reason = "It is an option for models; this is a folder of results."
            raise SpecError(f"--{wrong[0]} was given for {model}.", reason, "Leave it out.")
        with screen("trisect check", quiet, say_step):
            errors = calls.check(model)
        _say_check(model, errors)
        return
    with screen("trisect check", quiet, say_step):
        proof = calls.prove(model, **load_options)
    rows = proof.rows()
    if as_json:
        say_json({"rows": rows, "notes": proof.notes(), "refused": proof.refusal and str(proof.refusal)})
    else:
        count = f"{sum(not law.failure for law in proof.laws)} of {len(rows)} layers are verified."
        say("\n".join([*columns(rows), *proof.notes(), COLUMN_HELP, count]))
    if proof.refusal is not None:
        raise proof.refusal


def _say_check(out: str, errors: Sequence[StudyError]) -> None:
    from trisect.experiments.study.run import count_left
    from trisect.lab.run_folder import RunFolder, is_study

    for error in errors:
        say(f"trisect: {error}", err=True)
    if errors:
        click.get_current_context().exit(2)
    left, runs = count_left(Path(out)) if is_study(Path(out)) else (0, 0)
    if left:
        say(f"{left} of {runs} runs are not finished: call 'trisect study' again.")
    if partial := RunFolder(Path(out)).units_command:
        say(
            f"{out} has partial results of 'trisect {partial}', which was interrupted or is running. "
            "Call that command again, with the same settings: it goes on from there."
        )
    say("Every file that exists is complete." if left or partial else "Every listed file is complete, and of one run.")


@main.command()
@_model_options
@click.option("--text", multiple=True, help="The text at first; an encoder-decoder takes two, source and target.")
@click.option("--second", multiple=True, help="The text to patch from at first; two for an encoder-decoder.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at: this machine alone.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port.  [default: a free one]")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def serve(
    host: str, port: int, opens: bool, text: tuple[str, ...], second: tuple[str, ...], **load_options: Any
) -> None:
    """Serve a page on this machine: type a sentence, switch q, k or v of any site, and see what changes.

    The address that is printed holds a token; without it nothing is answered. Ctrl+C ends it.

    \b
    trisect serve sentence-transformers/all-MiniLM-L6-v2 --open
    trisect serve lookup/models/seed-1
    """
    from trisect.lab.jobs import screen

    with screen("trisect serve", line=say_step):
        from trisect.server.run import LOOPBACK, start  # with PyTorch

        served = start(load_options.pop("model"), text, second, host, port, **load_options)
    say(served.address)
    if host not in LOOPBACK:
        say(f"Anyone with this address can use the model, and its traffic is not encrypted: {host}.", err=True)
    if opens:
        webbrowser.open(served.address)
    served.wait()
