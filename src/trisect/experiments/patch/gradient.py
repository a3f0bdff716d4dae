"""Attribution patching: estimate the effect of every head at every position in three passes, and patch the largest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int

from trisect.core.errors import ModelError, SpecError
from trisect.core.subject import SiteTarget, Writer
from trisect.core.tables import INTEGER, REAL, TEXT, NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.patch.page import OF_RUN, TOP
from trisect.experiments.patch.run import PatchedRuns, ReadText, facts_of, prepare, tables
from trisect.experiments.patch.settings import PatchFacts, PatchSettings, read_positions
from trisect.hf.batches import output_at
from trisect.hf.load import Pretrained, read_graph
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.pairs import PatchedSides, answer_places, patched_sides
from trisect.lab.passes import EditedPass, edited_passes
from trisect.measure.patching import attribute, logit_ratio_terms, ratio_of_sums, record, replace_at
from trisect.stats.describe import spearman
from trisect.stats.significance import finite

ATTRIBUTIONS = {
    **{"stack": TEXT, "layer": INTEGER, "head": INTEGER, "component": TEXT, "position": INTEGER},
    # fractions of the logit difference restored, the exact one with its 95 % interval; pairs that have the position
    **{"estimate": REAL, "gradient": REAL, "exact": REAL, "low": REAL, "high": REAL, "n": INTEGER},
}
LayerPart = tuple[Address, str]  # a layer and its q, k or v
REQUIREMENT = (
    "Attribution patching uses the gradient of the logit difference between the base's answer and the donor's."
)


def measure(settings: PatchSettings, context: RunContext) -> Measured[PatchFacts]:
    """Estimate the effect of every head at every position of the sites, and patch the largest estimates one at a time.

    Raises SiteError, SpecError, CorpusError, ModelError.
    """
    subject, edits, prepared = prepare(settings, context.subject)
    if not isinstance(subject, Pretrained) or subject.objective == "output":
        requirement = f"{REQUIREMENT} This needs a pretrained model that predicts tokens."
        raise ModelError(f"{subject.name} was given.", requirement, "Leave --by gradient out.")
    runs = PatchedRuns.begin(prepared)
    estimates = _Estimates(settings, subject, runs, edits)
    parts = prepared.groups(settings.batch)
    with context.progress(f"estimating {len(prepared.pairs)} pairs") as step:
        for done, part in enumerate(parts, 1):
            estimates.add(part)
            step(done, len(parts))
    frames, noted, counted = tables(subject, runs, settings)
    base, donor = (runs.differences[name] for name in ("base", "donor"))
    rows = estimates.rows(float((base - donor)[counted].sum()))
    with context.progress(f"patching the largest {min(TOP, len(rows))}") as step:
        patched = estimates.patch(rows[:TOP], step)
    for row, values in zip(rows, patched, strict=False):
        above, below = logit_ratio_terms(values[counted], base[counted], donor[counted])
        ratio = ratio_of_sums(above, below, settings.seed)
        row |= {"exact": ratio["value"], "low": ratio["low"], "high": ratio["high"]}
    frames["attributions"] = pl.DataFrame(rows, ATTRIBUTIONS)
    ranked = frames["attributions"].head(TOP).select("estimate", "gradient", "exact").to_numpy().astype(float)
    correlations: list[NewRow] = []
    for column, name in enumerate(OF_RUN[1:]):
        value = finite(float(spearman(ranked[:, [column, 2]].T)))
        correlations.append({"subject": subject.name, "measure": name, "value": value, "n": len(ranked)})
    frames["measures"] = pl.concat([frames["measures"], frame("measures", correlations)])
    notes = (*prepared.notes, *noted, *estimates.notes, *subject.notes)
    facts = replace(facts_of(settings, subject, runs, counted), per="head and position")
    return Measured(frames, facts, notes)


class _Estimates:
    """Estimated effects of each head at each position, summed over the pairs that count: corrected, and by the gradient alone."""

    def __init__(
        self, settings: PatchSettings, subject: Pretrained, runs: PatchedRuns, edits: Sequence[EditedPass]
    ) -> None:
        self.settings, self.subject, self.runs = settings, subject, runs
        self.heads: dict[LayerPart, set[int]] = {}  # from 1, over all sites; of k and v key/value heads
        for target in (target for edit in edits for target in edit.targets):
            heads = subject.shape.heads[target.address]
            count = heads.query if target.component == "q" else heads.key
            numbers = self.heads.setdefault((target.address, target.component), set())
            numbers.update(target.heads or range(1, count + 1))
        self.sums: dict[LayerPart, Float[np.ndarray, "2 H T"]] = {}
        self.counts: dict[LayerPart, Int[np.ndarray, " T"]] = {}
        self.plain: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about layers whose estimates are not corrected."""
        return (
            f"Estimates are by gradient alone, since the weights cannot be recomputed from q·k: {', '.join(self.plain)}.",
        ) * bool(self.plain)

    def add(self, part: Int[np.ndarray, " B"]) -> None:
        """Add the estimates of some pairs: a forward and backward pass over the base, a forward pass over the donor."""
        texts, sides = self._read(part)
        base, places = texts["base"], texts["base"].places
        reading = read_graph(self.subject, base.batch)
        assert places is not None
        assert reading.output is not None
        texts["base"] = base._replace(outputs=output_at(reading.output, places))
        self.runs.note(texts, part)
        device = reading.output.device
        logits = reading.output[torch.arange(len(part), device=device), places.to(device)].double()
        ids = (torch.from_numpy(self.runs.predicted[name][part])[:, None].to(device) for name in ("base", "donor"))
        first, second = (logits.gather(1, answers).sum() for answers in ids)
        (first - second).backward()
        counted = torch.from_numpy(self.runs.counted(self.settings.answered)[part])
        for trace in reading.traces:
            components = [component for address, component in self.heads if address == trace.address]
            chosen = sides.queries(trace.stack), sides.keys(trace.stack)
            estimates = attribute(trace, texts["donor"].parts[trace.address], *chosen) if components else {}
            if components and (trace.scale is None or trace.output.grad is None):
                self.plain[str(trace.address)] = None
            for component in components:
                place, is_chosen = (trace.address, component), chosen[component != "q"]
                moves = torch.stack(list(estimates[component])).cpu()[:, counted].sum(1).numpy()
                self.sums[place] = _padded_sum(self.sums.get(place), moves)
                self.counts[place] = _padded_sum(self.counts.get(place), is_chosen[counted].sum(0).cpu().numpy())

    def _read(self, part: Int[np.ndarray, " B"]) -> tuple[dict[str, ReadText], PatchedSides]:
        """Both texts of some pairs, the donor with outputs, q, k and v, and the positions that are patched.

        Raises SpecError if their numbers of tokens differ, or a text has no position of the answer.
        """
        prepared, mask = self.runs.prepared, self.subject.mask
        batches = {name: prepared.batch(self.subject, part, name) for name in ("base", "donor")}
        places = {name: answer_places(batch, mask) for name, batch in batches.items()}
        alike = [
            torch.equal(side.real, other.real)
            for side, other in zip(*((batch.source, batch.target) for batch in batches.values()), strict=True)
            if side is not None and other is not None
        ]
        if not all(alike) or places["base"] is None or places["donor"] is None:
            problem = "Base and donor of a pair differ in their number of tokens, or have no mask each."
            raise SpecError(
                problem, f"{REQUIREMENT} Positions of both have to be the same.", "Give texts of the same length."
            )
        addresses = dict.fromkeys(address for address, _ in self.heads)
        donor = record(self.subject.outputs, batches["donor"], addresses, places["donor"])
        texts = {
            "base": ReadText(batches["base"], places["base"], donor.outputs, {}),
            "donor": ReadText(batches["donor"], places["donor"], *donor),
        }
        positions = read_positions(self.settings.positions or "all")
        sides = patched_sides(batches["base"], batches["donor"], positions, places["base"])
        return texts, sides.cut(batches["donor"], torch.arange(len(part)))

    def rows(self, way: float) -> list[NewRow]:
        """A row for each head at each position, the largest estimate first; `way` is the sum of all pairs' changes, base to donor."""
        estimates: list[NewRow] = []
        for (address, component), sums in self.sums.items():
            counts = self.counts[address, component]
            for head in sorted(self.heads[address, component]):
                for at in np.flatnonzero(counts).tolist():
                    both = [finite(-value / way) if way else None for value in sums[:, head - 1, at].tolist()]
                    where: NewRow = {"stack": address.stack, "layer": address.layer, "head": head}
                    where |= {"component": component, "position": at + 1, "n": int(counts[at])}
                    estimates.append(where | {"estimate": both[0], "gradient": both[1]})
        return sorted(estimates, key=lambda row: -abs(float(row["estimate"] or 0.0)))

    def patch(self, rows: Sequence[NewRow], step: Callable[[int, int], None]) -> Float[np.ndarray, "R N"]:
        """Logit difference by row and pair, with the row's head patched from the donor at the row's position."""
        prepared = self.runs.prepared
        differences = np.full((len(rows), len(prepared.pairs)), np.nan)
        passes, parts = edited_passes(self.subject), prepared.groups(self.settings.batch)
        for done, part in enumerate(parts, 1):
            texts, sides = self._read(part)
            base, donor = texts["base"], texts["donor"]
            passes.begin(base.batch)
            writes: dict[Address, list[tuple[int, Writer]]] = {}
            for number, row in enumerate(rows):
                address, position = Address(str(row["stack"]), int(row["layer"] or 0)), int(row["position"] or 0) - 1
                chosen = sides.queries(address.stack), sides.keys(address.stack)
                only = [mask & (torch.arange(mask.shape[1]) == position) for mask in chosen]
                target = SiteTarget(address, str(row["component"]), (int(row["head"] or 0),))
                writes.setdefault(address, []).append((number, replace_at([target], donor.parts[address], *only)))
            for address, writers in writes.items():
                results = passes.output_each(base.batch, [{address: writer} for _, writer in writers], base.places)
                for (number, _), outputs in zip(writers, results, strict=True):
                    differences[number, part] = self.runs.difference(outputs, part)
            step(done, len(parts))
        return differences


def _padded_sum(sums: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    """The sum of two arrays, the shorter padded along positions."""
    if sums is None:
        return more
    longer, shorter = (sums, more) if sums.shape[-1] >= more.shape[-1] else (more, sums)
    total = longer.copy()
    total[..., : shorter.shape[-1]] += shorter
    return total
