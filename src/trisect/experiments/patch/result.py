"""The result of activation patching: tables, page, and shares of answers by site for programs."""

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
    """One site in one direction: shares of `n` pairs by answer, and changes of the output; None: not known.

    `own` is the share of the answer predicted for the component, `others` those of answers predicted for other components,
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
    """A finished run of activation patching."""

    @property
    def sites(self) -> tuple[PatchedSite, ...]:
        """Every site that was patched, in the order of layers, heads and components; both directions where both were run."""
        sites = []
        for site in read_sites(self.tables["measures"]):
            scored = next((site[m] for m in ("own", "unchanged", "output_change") if m in site), None)
            n = 0 if scored is None else scored.n or 0
            others = {name.removeprefix("as "): row.mean for name, row in site.items() if name.startswith("as ")}
            own_share, unchanged, *rest = (
                mean(site, m) for m in ("own", "unchanged", "donor", "logit_change", "output_change")
            )
            sites.append(PatchedSite(place_of(site).site, own_share, others, unchanged, n, direction(site), *rest))
        return tuple(sites)

    @property
    def predictions(self) -> tuple[HypothesisRow, ...]:
        """Every hypothesis at every site and position, beside its controls; empty if the model gives no answers."""
        return read_predictions(self.tables.get("predictions"))

    @property
    def attributions(self) -> pl.DataFrame | None:
        """Estimates by gradient, the largest first, the first twenty with exact effects; None unless run with by='gradient'."""
        return self.tables.get("attributions")

    def data(self) -> dict[str, Json]:
        """The result as JSON-ready data, the sites and predictions among the rest."""
        body = super().data()
        body["sites"] = [site.data() for site in self.sites]
        body["predictions"] = [row.data() for row in self.predictions]
        if self.attributions is not None:
            correlations = correlations_of(self.tables["measures"])
            shown: list[Json] = [dict(row) for row in self.attributions.head(TOP).iter_rows(named=True)]
            body["attributions"] = {"rank_correlation": dict(correlations), "largest": shown}
        return body
