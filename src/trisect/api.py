"""The Python API: a function for each experiment, made from its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from trisect.core.errors import suggest_closest
from trisect.core.schema import Setting, build, flat_settings
from trisect.lab.experiment import Experiment, Reply, Result, Utility


@cache
def function(command: Experiment[Any, Any] | Utility[Any]) -> Callable[..., Any]:
    """The function of an experiment, which returns its Result, or of a utility, which returns its Reply."""
    parameters = signature(command)

    def call(*args: Any, **keywords: Any) -> Result[Any] | Reply:
        for name in keywords.keys() - parameters.parameters.keys():  # Python's own error, with the closest name
            problem = f"trisect.{command.python}() got an unexpected keyword argument {name!r}"
            raise TypeError(problem + suggest_closest(name, parameters.parameters))
        values = parameters.bind(*args, **keywords).arguments
        if isinstance(command, Utility):
            return command.reply(build(command.settings, values))
        from trisect.lab.jobs import screen

        out, quiet = values.pop("out", None), values.pop("quiet", False)
        with screen(f"trisect.{command.python}", quiet):
            from trisect.lab.driver import run  # imported here, since it brings PyTorch and polars

            return run(command, build(command.settings, values), out, quiet)

    call.__name__ = call.__qualname__ = command.python
    call.__module__ = "trisect"
    call.__doc__ = docstring(command)
    call.__signature__ = parameters  # pyright: ignore[reportFunctionMemberAccess]
    return call


def signature(command: Experiment[Any, Any] | Utility[Any]) -> inspect.Signature:
    """The function's parameters: the argument and the `positional` setting by position or name, all others by name.

    Adding a setting therefore breaks no existing call.
    """
    fields = flat_settings(command.settings)
    by_place = [field for field in fields if field.option.argument or field.option.positional]
    parameters = [_parameter(field, inspect.Parameter.POSITIONAL_OR_KEYWORD) for field in by_place]
    parameters += [_parameter(field, inspect.Parameter.KEYWORD_ONLY) for field in fields if field not in by_place]
    if isinstance(command, Utility):
        return inspect.Signature(parameters, return_annotation=Reply)
    parameters += [
        inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | Path | None),
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool),
    ]
    return inspect.Signature(parameters, return_annotation=Result)


def _parameter(field: Setting, kind: Any) -> inspect.Parameter:
    # without the bounds on each item
    item = get_args(field.item)[0] if get_origin(field.item) is Annotated else field.item
    annotation = item | Sequence[item] if field.is_many else field.kind  # a single value is accepted as a list of one
    annotation = annotation | None if field.optional and annotation is not Any else annotation
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, kind, default=default, annotation=annotation)


def docstring(command: Experiment[Any, Any] | Utility[Any]) -> str:
    """The help text of the command, then every setting with its meaning."""
    lines = [command.help.split("\b")[0].strip(), "", "Settings:"]
    for field in flat_settings(
        command.settings
    ):  # the help of an option that begins with 'no-' is about what it turns off
        help = f"Where false: {field.help}" if field.words.startswith("no-") else field.help
        more = [f"one of {', '.join(field.option.choices)}"] if field.option.choices else []
        more += [f"default: {field.option.unset}"] if field.option.unset else []
        lines.append(f"    {field.name}: {help}" + (f" ({'; '.join(more)})" if more else ""))
    if isinstance(command, Experiment):
        lines += [f"    out: {command.leaves}; {command.where} where None.", "    quiet: Show no progress."]
    return "\n".join([*lines, "", "Raises TrisectError for anything that cannot be run."])
