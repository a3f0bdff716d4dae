"""Beside studies on the command line: dissect, report, claims, and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trisect.cli.group import main
from trisect.cli.terminal import open_page, say, say_json, say_step
from trisect.core.door import door
from trisect.text.readers import HELP

if TYPE_CHECKING:
    from trisect.claims import ListedPart
    from trisect.text.overview import CorpusFacts


@main.command()
@click.argument("out", metavar="OUT")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print where the page is as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def report(out: str, opens: bool, as_json: bool, quiet: bool) -> None:
    """Rebuild the page and figures of a folder without training or measuring.

    OUT is what any command left: its tables and its record. Of a study the tables are rebuilt too, from its finished runs;
    of several models the page over all of them.

    \b
    trisect report study
    trisect report norms-gpt2
    """
    from trisect import calls
    from trisect.lab.live import screen

    with screen("trisect report", quiet, say_step):
        made = calls.render(out).report.resolve()
    say_json({"report": str(made)}) if as_json else say(made)
    if opens:
        open_page(made)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def claims(as_json: bool) -> None:
    """Print every claim with its parts, margins and reasons, as fixed before any data.

    \b
    trisect claims
    """
    from trisect.claims import listing

    rows = listing()
    say_json(rows, 1) if as_json else say("\n".join(_claim_lines(rows)))


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
    from trisect.lab.live import screen
    from trisect.text.overview import describe
    from trisect.text.sources import open_corpus

    with screen("trisect corpus show", quiet, say_step), door():
        facts = describe(open_corpus(folder, reader))
    say_json(facts, 1) if as_json else say("\n".join(_corpus_lines(facts)))


@corpus.command()
@click.argument("source", metavar="CORPUS")
@click.option("--pipeline", required=True, help="Name or folder of a spaCy pipeline.")
@click.option("--out", required=True, help="Folder for the annotated corpus; --corpus takes it.")
@click.option("--reader", help=f"{HELP}.  [default: detected]")
@click.option("--placeholder", default="Unk", show_default=True, help="What the tagger is shown for <unk>.")
@click.option(
    "--columns",
    multiple=True,
    help="Some of pos,tag,dep,ent.  [default: pos,dep, and tag,ent where the pipeline sets them]",
)
@click.option("--workers", type=int, help="Worker processes.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print the folder and what there is to note as JSON.")
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
    from trisect import calls
    from trisect.lab.live import bar

    with bar("annotate", quiet) as progress:
        made = calls.annotate(source, pipeline, out, reader, placeholder, workers, progress, _names(columns))
    if as_json:
        say_json({"folder": out, "notes": list(made.notes)})
        return
    for note in made.notes:
        say(note, err=True)
    say(out)


def _names(given: Sequence[str]) -> list[str] | None:
    return [piece.strip() for text in given for piece in text.split(",")] or None


def _claim_lines(rows: Sequence[ListedPart]) -> list[str]:
    lines, last = [], ""
    for row in rows:
        if row["claim"] != last:
            lines.append(
                f"{row['claim']}  {row['claim_sentence']}  [{row['citation'].split('. ')[0].rstrip('.')}, {row['where']}]"
            )
            last = row["claim"]
        lines.append(f"      {row['sentence']}{'' if row['decides'] else '  (shown, does not decide)'}")
        lines.append(f"          margin {row['margin']:g} {row['unit']}: {row['reason']}")
    return lines


def _corpus_lines(facts: CorpusFacts) -> list[str]:
    lines = [f"{facts['name']}  {facts['types']:,} types  fingerprint {facts['fingerprint']}"]
    for row in facts["splits"]:
        shape = f"{row['rows']:,} rows × {row['columns']} columns"
        unseen = f", {row['unknown']:,} of them of types that train lacks" if row["unknown"] else ""
        lines.append(f"{row['split']:<6} {row['tokens']:,} tokens = {shape}; {row['types']:,} types{unseen}")
    for column in dict.fromkeys(row["label"] for row in facts["labels"]):
        counts = [
            (r["class"], r["count"])
            for r in facts["labels"]
            if r["label"] == column and r["split"] == "train" and r["count"]
        ]
        lines.append(f"{column}    " + ", ".join(f"{name or '(none)'} {count:,}" for name, count in counts))
    return lines + facts["notes"]
