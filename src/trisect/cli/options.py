"""Commands from experiments' settings: options, parsing, and the summary in the terminal."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING
from typing import Any

import click

from trisect.cli.group import open_page, say, say_json, say_step
from trisect.core.errors import SpecError
from trisect.core.finding import FAILED, NOT_TESTED, Finding
from trisect.core.machine import without_collection
from trisect.core.schema import MAX_SEEDS, Setting, build, flat_settings, read_word
from trisect.lab.experiment import Command, Experiment, Utility

OPEN_OPTION = click.Option(["--open", "opens"], is_flag=True, help="Open the page in a browser at the end.")
QUIET = click.Option(["--quiet"], is_flag=True, help="Show no progress.")
RANGE_PATTERN = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
TYPES = {int: click.INT, float: click.FLOAT, str: click.STRING}


class _MultiValueCommand(click.Command):
    """A command whose options for several sites take all following words that are sites: --sites q@all k@1.

    Those that hold files or folders take all words up to the next option: --join seed-1 seed-2.
    """

    def __init__(self, site_options: frozenset[str], path_options: frozenset[str], **rest: Any) -> None:
        super().__init__(**rest)
        self.site_options, self.path_options = site_options, path_options

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the words after such an option before click parses them."""
        joined: list[str] = []
        for word in args:
            if len(joined) > 1 and joined[-2] in self.site_options and "@" in word and not word.startswith("-"):
                joined[-1] += f" {word}"
            elif len(joined) > 1 and joined[-2] in self.path_options and not word.startswith("-"):
                joined += [joined[-2], word]
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


def experiment_command(experiment: Experiment[Any, Any]) -> click.Command:
    """The command of an experiment."""

    def call(out: str | None, as_json: bool, quiet: bool, opens: bool = False, **values: Any) -> None:
        from trisect.lab.jobs import screen  # with rich, which --help does without

        settings = build(experiment.settings, parse_options(experiment.settings, values))
        if out is not None:
            from trisect.lab.run_folder import check_output_path  # with polars

            check_output_path(out, bool(experiment.single))
        with nullcontext() if quiet else screen(f"trisect {experiment.name}", line=say_step):
            with without_collection():
                from trisect.lab.driver import run  # with PyTorch, without which wrong words are met

            result = run(experiment, settings, out, quiet)
        if as_json:
            say_json(result.data())
        else:  # the answer, the number of verdicts, notes, and paths of what was made and of the page
            lines = finding_lines(result.findings, result.answer, result.paged)
            for line in () if quiet else (*lines, *result.notes):
                say(line)
            for path in result.paths.values() if result.makes else ():
                say(f"{result.makes.removesuffix('s')}  {path.resolve()}")
            if result.paged:
                say(f"report  {result.report.resolve()}")
        if opens:
            open_page(result.report)
        failed = [finding for finding in result.findings if finding.verdict == FAILED]
        for finding in failed if as_json or quiet else ():
            say(f"trisect: {finding}", err=True)
        if failed:
            click.get_current_context().exit(1)

    parameters = [
        *parameters_of(experiment.settings),
        click.Option(["--out"], help=f"{experiment.leaves}.  [default: {experiment.where}]"),
        *([OPEN_OPTION] if experiment.paged else []),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
        click.Option(["--quiet"], is_flag=True, help="Show no progress, and print only where the results are."),
    ]
    return _make_command(experiment, parameters, call)


def utility_command(tool: Utility[Any]) -> click.Command:
    """The command of a utility."""

    def call(as_json: bool, quiet: bool, **values: Any) -> None:
        from trisect.lab.jobs import screen  # with rich, which --help does without

        with screen(f"trisect {tool.name}", quiet, say_step):
            reply = tool.reply(build(tool.settings, parse_options(tool.settings, values)))
        if as_json:
            say_json(reply.data())
        else:
            say("\n".join(reply.words()))
        if tool.failed(reply):
            click.get_current_context().exit(1)

    flag = click.Option(["--json", "as_json"], is_flag=True, help="Print the reply as JSON.")
    return _make_command(tool, [*parameters_of(tool.settings), flag, QUIET], call)


def _make_command(command: Command[Any], parameters: list[click.Parameter], call: Callable[..., None]) -> click.Command:
    """Make a click command with these parameters."""
    fields = [field for field in flat_settings(command.settings) if field.is_many and not field.option.argument]
    options = (frozenset(f"--{f.words}" for f in fields if f.option.many == many) for many in ("words", "paths"))
    text, mark, examples = command.help.partition("\b\n")  # examples are printed last, after the options
    epilog = f"Examples:\n\n{mark}{textwrap.indent(examples, '    ')}" if examples else None
    return _MultiValueCommand(
        *options, name=command.name, help=text.rstrip(), epilog=epilog, params=parameters, callback=call
    )


def parameters_of(settings: type[Any]) -> list[click.Parameter]:
    """A click parameter for every field with an option: arguments first."""
    parameters = [_parameter(field) for field in flat_settings(settings) if field.words or field.option.argument]
    return sorted(parameters, key=lambda parameter: isinstance(parameter, click.Option))


def _parameter(field: Setting) -> click.Parameter:
    option, name = field.option, field.name
    kind = TYPES.get(field.item, click.STRING)
    if option.argument:
        shown = option.metavar or (f"{name.upper()}..." if field.is_many else name.upper())
        count = -1 if field.is_many or option.many == "models" else 1
        default_of = {} if field.is_many or field.default is MISSING else {"default": field.default}
        return click.Argument([name], metavar=shown, nargs=count, required=field.required, type=kind, **default_of)
    flag = f"--{field.words}"
    if field.kind is bool and option.value is None:
        return click.Option([flag, name], is_flag=True, help=field.help)
    text = field.help
    if any(choice not in text for choice in option.choices):
        text += f"  [one of: {', '.join(option.choices)}]"
    if option.unset is not None:
        text += f"  [default: {option.unset}]"
    shown = option.unset is None and field.default not in (MISSING, None, ())
    rest: dict[str, Any] = {"help": text, "metavar": option.metavar, "show_default": shown, "required": field.required}
    if field.is_many and option.count is not None:
        return click.Option([flag, name], nargs=option.count, **rest)
    default = None if field.default is MISSING or field.kind is bool else field.default
    if field.is_many and option.many == "seeds" and default:  # seeds 1 to n are written as their number, n
        is_count = default == tuple(range(1, len(default) + 1))
        default = [str(len(default)) if is_count else ",".join(map(str, default))]
    kind = click.STRING if option.many in ("commas", "seeds") else kind  # each is parsed from the whole word
    has_several = field.is_many or option.many == "pairs"
    return click.Option([flag, name], multiple=has_several, type=kind, default=default, **rest)


def parse_options(settings: type[Any], values: Mapping[str, object]) -> dict[str, object]:
    """Convert click's values for `build`."""
    return {field.name: _value(field, values[field.name]) for field in flat_settings(settings) if field.name in values}


def _value(field: Setting, value: Any) -> Any:
    option = field.option
    if field.kind is bool:
        if option.value is not None:
            if value not in (None, option.value):
                reason = f"The only value is {option.value!r}."
                todo = f"Use --{field.words} {option.value}, or leave it out."
                raise SpecError(f"--{field.words} {value} was given.", reason, todo)
            return value is not None
        return not value if field.words.startswith("no-") else value
    if option.many == "pairs":
        pairs = [text.partition("=") for text in value or ()]
        if wrong := [name for name, sign, _ in pairs if not sign]:
            reason, todo = "A setting has a name, '=' and a value.", f"Use for example --{field.words} layers=2."
            raise SpecError(f"--{field.words} {wrong[0]} was given.", reason, todo)
        return {name.strip(): setting.strip() for name, _, setting in pairs} or None
    if value is None and field.required:
        raise SpecError(
            f"--{field.words} was not given.",
            f"It is needed: {field.help}",
            f"Give --{field.words} {option.metavar or field.name.upper()}.",
        )
    if value is None or (field.is_many and value == () and not field.required):
        return None if field.optional else field.default
    if field.is_many and option.many == "commas":
        return tuple(read_word(field, piece.strip()) for text in value for piece in str(text).split(","))
    if field.is_many and option.many == "seeds":
        if len(value) > 1:
            reason = "Seeds are a single list, or a number of seeds."
            raise SpecError(f"--{field.words} was given {len(value)} times.", reason, f"Write --{field.words} 1,2,7.")
        return _read_seeds(value[0])
    return value


def _read_seeds(text: str) -> int | tuple[int, ...]:
    """A number of seeds, or a list of seeds with commas and ranges; raises SpecError for other text."""
    seeds: list[int] = []
    for piece in text.removesuffix(",").split(","):
        span = RANGE_PATTERN.fullmatch(piece.strip())
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if not 0 <= last - first < MAX_SEEDS:
            reason = "Seeds are whole numbers: how many (5), a list (1,2,7), or a range (3-6)"
            todo = "Use for example --seeds 5, or --seeds 7-7 for seed 7."
            raise SpecError(f"{text!r} are not seeds.", f"{reason}, at most {MAX_SEEDS:,} of them.", todo)
        seeds.extend(range(first, last + 1))
    return seeds[0] if text.strip().isdecimal() else tuple(seeds)


VERDICTS = {"supported": "supported", "refuted": "refuted", "inconclusive": "undecided", NOT_TESTED: NOT_TESTED}
MAX_ANSWER_LINES = 3  # of the answer and other findings; the page has all


def finding_lines(findings: Sequence[Finding], answer: str = "", paged: bool = True) -> list[str]:
    """Findings as lines for the terminal: the answer, at most three lines if there is a page; then counted verdicts."""
    answers = [str(finding) for finding in findings if finding.measure == "answer"]
    others = [str(finding) for finding in findings if finding.claim is None and finding.measure != "answer"]
    lines = list(dict.fromkeys(filter(None, (answer, *answers, *others))))
    verdicts = Counter(finding.verdict for finding in findings if finding.claim is not None and finding.part is None)
    counts = [f"{verdicts[name]} {word}" for name, word in VERDICTS.items() if verdicts[name]]
    tally = [f"claims: {', '.join(counts)} (trisect claims prints what they say, the page why)"] if counts else []
    return [*(lines[:MAX_ANSWER_LINES] if paged else lines), *tally]


def columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Rows as aligned columns, without cutting anything off."""
    if not rows:
        return []
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
