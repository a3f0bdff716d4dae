"""What an interchange left: besides tables and page the shares of answers site by site, as programs read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

from trisect.core.json_text import Json
from trisect.experiments.patch.settings import PatchFacts
from trisect.experiments.patch.words import SiteKey, place_of, site_order
from trisect.lab.experiment import Result


class PatchedSite(NamedTuple):
    """One site in one direction: shares of `n` pairs by the answer that came, and how far outputs moved; null: not known.

    `own` is the share of the answer that the component itself predicts, `others` those of the others' predictions,
    `unchanged` that of the patched text's answer, `donor` that of the other text's.
    """

    site: str
    own: float | None
    others: Mapping[str, float | None]
    unchanged: float | None
    n: int
    how: str
    donor: float | None
    logit_change: float | None
    output_change: float | None

    def data(self) -> dict[str, Json]:
        """The site as JSON-ready data."""
        return {**self._asdict(), "others": dict(self.others)}


class Patched(Result[PatchFacts]):
    """A finished interchange."""

    @property
    def sites(self) -> tuple[PatchedSite, ...]:
        """Every site that was patched, in the order of layers, heads and components; both directions where both were run."""
        return read_patched(self.tables["measures"])

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, the sites among the rest."""
        found = super().data()
        found["sites"] = [site.data() for site in self.sites]
        return found


def read_patched(measures: pl.DataFrame) -> tuple[PatchedSite, ...]:
    """The table `measures` by site."""
    found: dict[SiteKey, dict[str, tuple[float | None, int]]] = {}
    for row in measures.filter(pl.col("measure") != "answered").iter_rows(named=True):
        key = (row["stack"], row["layer"], row["head"], row["component"], row["group"])
        found.setdefault(key, {})[row["measure"]] = (row["value"], row["n"])
    return tuple(_site(key, found[key]) for key in sorted(found, key=site_order))


def _site(key: SiteKey, numbers: Mapping[str, tuple[float | None, int]]) -> PatchedSite:
    scored = numbers.get("own") or numbers.get("unchanged") or numbers.get("output_change") or (None, 0)
    own, unchanged, donor, logits, output = (
        numbers.get(name, (None, 0))[0] for name in ("own", "unchanged", "donor", "logit_change", "output_change")
    )
    others = {name.removeprefix("as "): of[0] for name, of in numbers.items() if name.startswith("as ")}
    how = key[4].partition(",")[0]
    return PatchedSite(place_of(*key), own, others, unchanged, scored[1], how, donor, logits, output)
