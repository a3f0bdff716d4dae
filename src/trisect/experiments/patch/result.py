"""What an interchange left: besides tables and page the shares of answers site by site, as programs read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

from trisect.core.files import Json
from trisect.experiments.patch.page import TOP, correlations_of, direction, mean, place_of, read_sites
from trisect.experiments.patch.predictions import HypothesisRow, read_predictions
from trisect.experiments.patch.settings import PatchFacts
from trisect.lab.experiment import Result


class PatchedSite(NamedTuple):
    """One site in one direction: shares of `n` pairs by the answer that came, and how far outputs moved; None: not known.

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
        found = []
        for site in read_sites(self.tables["measures"]):
            scored = next((site[m] for m in ("own", "unchanged", "output_change") if m in site), None)
            n = 0 if scored is None else scored.n or 0
            others = {name.removeprefix("as "): row.mean for name, row in site.items() if name.startswith("as ")}
            own, unchanged, *rest = (
                mean(site, m) for m in ("own", "unchanged", "donor", "logit_change", "output_change")
            )
            found.append(PatchedSite(place_of(site).site, own, others, unchanged, n, direction(site), *rest))
        return tuple(found)

    @property
    def predictions(self) -> tuple[HypothesisRow, ...]:
        """Every hypothesis at every site and position, beside its controls; empty where the model gives no answers."""
        return read_predictions(self.tables.get("predictions"))

    @property
    def attributions(self) -> pl.DataFrame | None:
        """Estimates by gradient, the largest first, of the first twenty the exact effect beside; None of a run that patched."""
        return self.tables.get("attributions")

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, the sites and predictions among the rest."""
        found = super().data()
        found["sites"] = [site.data() for site in self.sites]
        found["predictions"] = [row.data() for row in self.predictions]
        if self.attributions is not None:
            correlations = correlations_of(self.tables["measures"])
            shown: list[Json] = [dict(row) for row in self.attributions.head(TOP).iter_rows(named=True)]
            found["attributions"] = {"rank_correlation": dict(correlations), "largest": shown}
        return found
