"""Laws of a ledger: what it says of a study in one place follows from what it says in another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from itertools import chain

from trisect.core.schema import read
from trisect.core.spec import Model, Run, Training, read_experiment
from trisect.core.study_data import DesignData, LedgerData

# methods whose evaluations are done alike in all of a study, each with what designs say of it besides, call by call
HOW = {
    "rewind": ("sites", "midstage"),
    "probe": ("labels",),
    "erase": ("sites", "labels"),
    "interchange": ("sites",),
}


def contradiction(ledger: LedgerData, runs: Mapping[str, Run]) -> str:
    """What the ledger says that its own runs and designs deny, as words; empty where all agrees.

    `runs` are its runs as read. A checksum can be made for any content, and a run's id is the hash of its statement alone.
    """
    return next(chain(_of_runs(ledger, runs), _of_designs(ledger), _asked(ledger, runs)), "")


def _of_runs(ledger: LedgerData, runs: Mapping[str, Run]) -> Iterator[str]:
    """Text, model and training are one for all runs; attacks may be shorter."""
    base = ledger["base"]
    model, training = read(Model, base["model"], "the ledger"), read(Training, base["training"], "the ledger")
    for name, run in runs.items():
        if run.corpus != base["corpus"]:
            yield f"its base has the text {base['corpus']!r}, and {name} {run.corpus!r}"
        ends = run.training.epochs if run.edit is not None else training.epochs
        yield from _other(model, run.model, name)
        yield from _other(replace(training, epochs=ends), run.training, name)


def _of_designs(ledger: LedgerData) -> Iterator[str]:
    """Each design has the base's model and training, and evaluates as the base says; what the base says, some design asks."""
    base = ledger["base"]
    model, training = read(Model, base["model"], "the ledger"), read(Training, base["training"], "the ledger")
    statements = (ledger["experiment"], *ledger.get("asked", ()))
    for one in statements:
        design = read_experiment(one, "the ledger")
        yield from _other(model, design.model, "a design")
        yield from _other(training, design.training, "a design")
        if design.attack and (last := design.attack.epochs or training.epochs) != base["attack_epochs"]:
            yield f"its base has attacks of {base['attack_epochs']} epochs, and a design of {last}"
        for name, besides in HOW.items():
            yield from _evaluated_alike(name, base.get(name) or {}, one.get(name) or {}, besides)
    for name in ("attack", *HOW):
        said = base.get("attack_epochs" if name == "attack" else name)
        if said is not None and not any(one.get(name) for one in statements):
            yield f"its base has {name} {said!r}, and no design"


def _other(base: Model | Training, here: Model | Training, whose: str) -> Iterator[str]:
    """Settings that are not the base's."""
    for one in fields(base):
        there, mine = getattr(base, one.name), getattr(here, one.name)
        if there != mine:
            yield f"its base has {one.name} {there!r}, and {whose} {mine!r}"


def _evaluated_alike(
    name: str, base: Mapping[str, object], design: Mapping[str, object], besides: Collection[str]
) -> Iterator[str]:
    """A method as the base has it and as a design does; of a sample it says something only where one is drawn."""
    if not design:
        return
    if not base:
        yield f"its base has no {name}, and a design has"
    for key in base.keys() | (design.keys() - set(besides) - {"sample_seed"}):
        if base.get(key) != design.get(key):
            yield f"its base has {name} {key} {base.get(key)!r}, and a design {design.get(key)!r}"


def _asked(ledger: LedgerData, runs: Mapping[str, Run]) -> Iterator[str]:
    """Its runs are those of what was asked, call by call; ledgers from before that was noted say nothing.

    Where such a ledger was extended since, the first of them is the union of all calls before. Seeds and sites of different
    calls are crossed there, so that it may make runs that no call made; every part of them is one of a run that is there.
    """
    if "asked" not in ledger:
        return
    corpus = ledger["base"]["corpus"]
    made = [{run.id: run for run in _design_runs(one, corpus)} for one in ledger["asked"]]
    of = {run for one in made for run in one}
    crossed = set[str]()
    if made and ledger.get("step", 1) == 1:  # later steps began their studies with what was asked
        there = {part for run in runs.values() for part in _parts(run)}
        crossed = {name for name, run in made[0].items() if _parts(run) <= there}.difference(*made[1:])
    if odd := (of ^ runs.keys()) - (crossed - runs.keys()):
        yield f"{min(odd)} is a run of {'its designs' if min(odd) in of else 'it'} alone"


def _parts(run: Run) -> set[tuple[str, object]]:
    """What a union of designs puts together in another way: the seed, the training's length, and each setting of the edit."""
    edit = run.edit
    settings = {} if edit is None else {"kind": edit.kind} | {one.name: getattr(edit, one.name) for one in fields(edit)}
    return {("seed", run.seed), ("epochs", run.training.epochs), *settings.items()}


def _design_runs(statement: DesignData, corpus: str) -> Iterator[Run]:
    return read_experiment(statement, "the ledger").runs(corpus)
