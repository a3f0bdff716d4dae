"""Translation: small encoder-decoders trained on a bitext, several seeds side by side, from pairs of files to folders of models."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from trisect.core.errors import CorpusError, StudyError
from trisect.core.files import read_json, write_json
from trisect.core.spec import Machine
from trisect.core.tables import frame, write_table
from trisect.engine.devices import choose_device
from trisect.experiments.translate.settings import RECIPES, TranslationRecipe, choose_translation
from trisect.experiments.translate.training import Apprentice, Place, metric_rows
from trisect.experiments.translate.work import ApprenticeWork
from trisect.hf.small.gpt import is_model
from trisect.lab.folder import Folder
from trisect.lab.jobs import run_jobs
from trisect.lab.settings import check_seeds, difference
from trisect.lab.versions import versions
from trisect.text.bitext import Bitext, Pair, bitext_data, open_bitext
from trisect.text.links import SIDES, write_lines, write_links
from trisect.text.phrases import generated

EMBEDDED = "embedded"
PAIRS = "pairs"  # the folder where the embedded bitext's own files go


@dataclass(frozen=True, eq=False)
class Translated:
    """What was trained: a model folder for each seed, the table metrics, a few translations of each, and notes.

    A translation has the keys `source`, `target` (as the bitext has it) and `made`.
    """

    folder: Path
    models: tuple[Path, ...]
    tables: Mapping[str, pl.DataFrame]
    translations: tuple[tuple[Mapping[str, str], ...], ...]
    notes: tuple[str, ...]


def run_translation(
    data: str | Path | Sequence[str | Path],
    out: Path,
    seeds: Sequence[int],
    recipe: str | None,
    settings: Mapping[str, Any],
    machine: Machine,
    base: int | None = None,
) -> Translated:
    """Train what is not trained yet and score it on the pairs that it did not learn from.

    `data` is 'embedded', a folder as text.bitext.open_bitext reads it, with the `base` of its links, or two files, source
    and target. Interrupted, a call goes on where it stopped; with more seeds it is extended. Models lie in `out`/seed-N.
    Raises TrisectError.
    """
    device, chosen, bitext = _prepared(data, seeds, recipe, settings, machine, base)
    place, began = Place(out), time.monotonic()
    with Folder(out).locked(lambda: _extended(place, chosen, bitext, seeds, device), place.own):
        plan = _extended(place, chosen, bitext, seeds, device)
        write_json(place.plan, plan)
        write_json(place.bitext, bitext_data(bitext))
        team = [Apprentice(seed) for seed in plan["seeds"]]
        left = [
            one
            for one in team
            if not (is_model(place.model(one)) and place.losses(one).exists() and place.scores(one).exists())
        ]
        if _is_embedded(data):
            _spread(place.path / PAIRS, bitext)
        try:
            works = [ApprenticeWork(one, place, chosen, device) for one in left]
            run_jobs(works, machine, device, place.path)
        finally:
            plan["wall_seconds"] += time.monotonic() - began if left else 0.0
            with suppress(StudyError):  # on a full disk the first file that found it so is the one to name
                write_json(place.plan, plan)
        return _collect(place, plan, bitext, team, _called(data))


def check_translation_folder(
    data: str | Path | Sequence[str | Path],
    out: Path,
    seeds: Sequence[int],
    recipe: str | None,
    settings: Mapping[str, Any],
    machine: Machine,
) -> None:
    """Raise what `run_translation` would with the same arguments before it trains anything; changes nothing."""
    device, chosen, bitext = _prepared(data, seeds, recipe, settings, machine, None)
    _extended(Place(out), chosen, bitext, seeds, device)


def _is_embedded(data: str | Path | Sequence[str | Path]) -> bool:
    return isinstance(data, (str, Path)) and str(data) == EMBEDDED


def _prepared(
    data: str | Path | Sequence[str | Path],
    seeds: Sequence[int],
    recipe: str | None,
    settings: Mapping[str, Any],
    machine: Machine,
    base: int | None,
) -> tuple[str, TranslationRecipe, Bitext]:
    """The device, the recipe, and the bitext with the train pairs that are learnt from."""
    device, embedded = choose_device(machine), _is_embedded(data)
    chosen = choose_translation(recipe, embedded, settings)
    check_seeds(seeds)
    bitext = generated() if embedded else open_bitext(data, base=base)
    pairs = bitext.lessons(chosen.longest)
    if not pairs:
        known = f"The {len(bitext.train):,} train pairs are longer, or are in valid or test."
        raise CorpusError(f"No train pair of at most {chosen.longest} words.", known, "Give a larger --set longest=.")
    note = (
        f"Learnt from are {len(pairs):,} different train pairs of at most {chosen.longest} words a side, "
        f"of {len(bitext.train):,} train pairs in all."
    )
    return device, chosen, replace(bitext, train=pairs, notes=(*bitext.notes, note))


def _extended(
    place: Place, recipe: TranslationRecipe, bitext: Bitext, seeds: Sequence[int], device: str
) -> dict[str, Any]:
    """The plan of a folder with these seeds added; raises StudyError where the folder is of another."""
    if not place.plan.exists():
        Folder(place.path).check_empty("translation experiment")
    new = {"recipe": recipe.data(), "bitext": bitext.fingerprint, "device": device}
    moving = f"Move {place.path} away and train again: the plan cannot be made anew."
    old = read_json(place.plan, moving) if place.plan.exists() else {**new, "seeds": [], "wall_seconds": 0.0}
    if differing := [difference(key, old[key], new[key]) for key in new if old[key] != new[key]]:
        todo = "Give what it was begun with, or choose another folder with --out."
        raise StudyError(f"{place.path} belongs to another translation experiment.", f"{'; '.join(differing)}.", todo)
    return {**old, "seeds": sorted({*old["seeds"], *seeds})}


def _spread(folder: Path, bitext: Bitext) -> None:
    """The embedded bitext as files that others read: train, trial and test sentences, and links counted from 0."""
    for split, name in (("train", "train"), ("valid", "trial"), ("test", "test")):
        pairs: tuple[Pair, ...] = getattr(bitext, split)
        for side, end in enumerate(SIDES):
            write_lines(folder / f"{name}.{end}", [" ".join(pair.sides[side]) for pair in pairs])
        write_links(folder / f"{name}.pharaoh", [(pair.sure or (), pair.possible or ()) for pair in pairs], base=0)


def _collect(
    place: Place, plan: Mapping[str, Any], bitext: Bitext, team: Sequence[Apprentice], data: str
) -> Translated:
    """The tables and notes of what is there now."""
    again = "Delete it and call the same command again: what is missing is made anew."
    tables = {"metrics": frame("metrics", [row for one in team for row in metric_rows(one, place, again)])}
    for name, table in tables.items():
        write_table(place.path / "tables", name, table)
    shown = tuple(tuple(read_json(place.scores(one), again)["translations"]) for one in team)
    about = {
        "bitext": f"{bitext.name}, fingerprint {bitext.fingerprint}",
        "command": _command(plan, data),
        "settings": plan["recipe"],
        "seconds": plan["wall_seconds"],
        "notes": list(bitext.notes),
        "versions": versions("transformers", "tokenizers"),
    }
    write_json(place.path / "about.json", about)
    return Translated(place.path, tuple(place.model(one) for one in team), tables, shown, bitext.notes)


def _command(plan: Mapping[str, Any], data: str) -> str:
    recipe, base = plan["recipe"], RECIPES[plan["recipe"]["name"]].data()
    words = ["trisect", "translate-train", *shlex.split(data), "--recipe", recipe["name"]]
    words += [word for key in recipe if recipe[key] != base[key] for word in ("--set", f"{key}={recipe[key]}")]
    words += ["--seeds", ",".join(map(str, plan["seeds"])) + "," * (len(plan["seeds"]) == 1)]
    return shlex.join(words)


def _called(data: str | Path | Sequence[str | Path]) -> str:
    """The data as options of a command; folders and files go by their own names, not by where they lie."""
    if isinstance(data, (str, Path)):
        return shlex.join(["--data", str(data) if str(data) == EMBEDDED else Path(data).resolve().name])
    source, target = (Path(path).name for path in data)
    return shlex.join(["--source", source, "--target", target])
