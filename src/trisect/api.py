"""The Python API of experiments: a function each, made from its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from trisect.core.schema import Setting, build, flat
from trisect.lab.experiment import Experiment, Reply, Result, Utility

EMPTY = inspect.Parameter.empty
R = TypeVar("R")


@cache
def function(experiment: Experiment[Any, Any]) -> Callable[..., Result[Any]]:
    """The function of an experiment: inputs by place or name, other settings by name, `out`, and `quiet`."""
    chosen = signature(experiment)

    def call(*args: Any, **named: Any) -> Result[Any]:
        from trisect.lab.jobs import screen

        given = chosen.bind(*args, **named).arguments
        out, quiet = given.pop("out", None), given.pop("quiet", False)
        with screen(f"trisect.{experiment.python}", quiet):
            from trisect.lab.driver import run  # with PyTorch and polars, which `import trisect` does without

            return run(experiment, build(experiment.settings, given), out, quiet)

    return _describe(call, experiment)


def utility(one: Utility[Any]) -> Callable[..., Reply]:
    """The function of a utility: inputs by place or name, other settings by name."""
    chosen = signature(one)

    def call(*args: Any, **named: Any) -> Reply:
        return one.reply(build(one.settings, chosen.bind(*args, **named).arguments))

    return _describe(call, one)


def _describe(call: Callable[..., R], one: Experiment[Any, Any] | Utility[Any]) -> Callable[..., R]:
    """The function with the name, parameters and documentation of its settings."""
    call.__name__ = call.__qualname__ = one.python
    call.__module__ = "trisect"
    call.__doc__ = docstring(one)
    call.__signature__ = signature(one)  # pyright: ignore[reportFunctionMemberAccess]
    return call


def signature(experiment: Experiment[Any, Any] | Utility[Any]) -> inspect.Signature:
    """Parameters in the order of the settings: those that are inputs may be given by place."""
    fields = list(flat(experiment.settings))
    placed = sorted((one for one in fields if _is_input(one)), key=lambda one: not one.required)
    rest = [one for one in fields if not _is_input(one)]
    parameters = [_parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in placed]
    parameters += [_parameter(one, inspect.Parameter.KEYWORD_ONLY) for one in rest]
    if isinstance(experiment, Utility):
        return inspect.Signature(parameters, return_annotation=Reply)
    parameters += [
        inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | Path | None),
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool),
    ]
    return inspect.Signature(parameters, return_annotation=Result)


def _is_input(one: Setting) -> bool:
    """Whether a setting is what the experiment is about: an argument, texts, or data."""
    return one.option.argument or one.option.placed or one.required or one.name in ("texts", "data")


def _parameter(one: Setting, kind: Any) -> inspect.Parameter:
    default = EMPTY if one.default is MISSING else one.default
    # one value stands for itself, or for so many seeds
    item = get_args(one.item)[0] if get_origin(one.item) is Annotated else one.item  # without the bounds of each
    own = item | Sequence[item] if one.several else one.kind
    annotation = own | None if one.optional and own is not Any else own
    return inspect.Parameter(one.name, kind, default=default, annotation=annotation)


def docstring(experiment: Experiment[Any, Any] | Utility[Any]) -> str:
    """What the command's help says, then every setting with what it is."""
    head = experiment.help.split("\b")[0].strip()
    lines = []
    for one in flat(experiment.settings):  # the help of an option that begins with 'no-' is about what it turns off
        help = f"Where false: {one.help}" if one.words.startswith("no-") else one.help
        said = [f"one of {', '.join(one.option.choices)}"] if one.option.choices else []
        said += [f"default: {one.option.unset}"] if one.option.unset else []
        lines.append(f"    {one.name}: {help}" + (f" ({'; '.join(said)})" if said else ""))
    if isinstance(experiment, Experiment):
        lines.append(f"    out: {experiment.leaves}; {experiment.where} where null.")
        lines.append("    quiet: Show no progress.")
    return "\n".join([head, "", "Settings:", *lines, "", "Raises TrisectError for anything that cannot be run."])
