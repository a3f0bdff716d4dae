"""Attribution patching: the effect of every head at every position estimated in three passes, and the largest of them patched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trisect.core.errors import ModelError, SpecError
from trisect.core.subject import Heads, SiteTarget, Writer
from trisect.core.tables import REAL, TEXT, WHOLE, NewRow, frame
from trisect.core.trace import Address
from trisect.experiments.patch.page import OF_RUN, TOP
from trisect.experiments.patch.run import PatchedRuns, ReadText, facts_of, prepare, tables, token_rows
from trisect.experiments.patch.settings import PatchFacts, PatchSettings, read_positions
from trisect.hf.batches import output_at
from trisect.hf.load import Pretrained, read_graph
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.pairs import PatchedSides, answer_places, patched_sides
from trisect.lab.passes import EditedPass, edited_passes
from trisect.measure.patching import attribute, logit_ratio, put_at, ratio_of_sums, record
from trisect.stats.describe import spearman
from trisect.stats.tested import finite

ATTRIBUTIONS = {
    **{"stack": TEXT, "layer": WHOLE, "head": WHOLE, "component": TEXT, "position": WHOLE},
    # shares of the way, the exact one with its 95 % interval; how many pairs have the position
    **{"estimate": REAL, "gradient": REAL, "exact": REAL, "low": REAL, "high": REAL, "n": WHOLE},
}
LayerPart = tuple[Address, str]  # a layer and its q, k or v
NEEDS = "An estimate by gradient is of how far the base's answer's logit lies above the donor's."


def measure(settings: PatchSettings, context: RunContext) -> Measured[PatchFacts]:
    """Estimate every head at every position that the sites name, and patch the largest estimates, each by itself.

    Raises SiteError, SpecError, CorpusError, ModelError.
    """
    subject, edits, prepared = prepare(settings, context.subject)
    if not isinstance(subject, Pretrained) or subject.objective == "output":
        known = f"{NEEDS} It is of a pretrained model that predicts tokens."
        raise ModelError(f"{subject.name} was given.", known, "Leave --by gradient out.")
    runs = PatchedRuns.begin(prepared)
    estimates = _Estimates(settings, subject, runs, edits)
    parts = prepared.groups(settings.batch)
    with context.progress(f"estimating {len(prepared.pairs)} pairs") as step:
        for done, part in enumerate(parts, 1):
            estimates.add(part, edits)
            step(done, len(parts))
    whole, noted, counted = tables(subject, runs, settings)
    own, other = (runs.differences[name] for name in ("base", "donor"))
    rows = estimates.rows(float((own - other)[counted].sum()))
    with context.progress(f"patching the largest {min(TOP, len(rows))}") as step:
        patched = estimates.patch(rows[:TOP], step)
    for row, values in zip(rows, patched, strict=False):
        above, below, _ = logit_ratio(values[counted], own[counted], other[counted])
        ratio = ratio_of_sums(above, below, settings.seed)
        row |= {"exact": ratio["value"], "low": ratio["low"], "high": ratio["high"]}
    whole["attributions"] = pl.DataFrame(rows, ATTRIBUTIONS)
    ranked = whole["attributions"].head(TOP).select("estimate", "gradient", "exact").to_numpy().astype(float)
    correlations: list[NewRow] = []
    for column, name in enumerate(OF_RUN[1:]):
        value = finite(float(spearman(ranked[:, [column, 2]].T)))
        correlations.append({"subject": subject.name, "measure": name, "value": value, "n": len(ranked)})
    whole["measures"] = pl.concat([whole["measures"], frame("measures", correlations)])
    notes = (*prepared.notes, *noted, *estimates.notes, *subject.notes)
    facts = replace(facts_of(settings, subject, runs, counted), per="head and position")
    return Measured(whole, facts, notes)


def wanted_heads(edits: Sequence[EditedPass], shape: Mapping[Address, Heads]) -> dict[LayerPart, tuple[int, ...]]:
    """The heads, from 1, of each layer's q, k or v that sites name; those of k and v are key/value heads."""
    found: dict[LayerPart, set[int]] = {}
    for target in (target for edit in edits for target in edit.targets):
        count = shape[target.address].query if target.component == "q" else shape[target.address].key
        own = found.setdefault((target.address, target.component), set())
        own.update(target.heads or range(1, count + 1))
    return {place: tuple(sorted(own)) for place, own in found.items()}


class _Estimates:
    """Sums over the pairs that count of what each head at each position is estimated to move, corrected and by the gradient alone."""

    def __init__(
        self, settings: PatchSettings, subject: Pretrained, runs: PatchedRuns, edits: Sequence[EditedPass]
    ) -> None:
        self.settings, self.subject, self.runs = settings, subject, runs
        self.heads = wanted_heads(edits, subject.shape.heads)
        self.sums: dict[LayerPart, Float[np.ndarray, "2 H T"]] = {}
        self.counts: dict[LayerPart, Int[np.ndarray, " T"]] = {}
        self.plain: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Which layers' estimates are not corrected."""
        return (
            f"The gradient alone, since how its weights follow from q·k is not known: {', '.join(self.plain)}.",
        ) * bool(self.plain)

    def add(self, part: Int[np.ndarray, " B"], edits: Sequence[EditedPass]) -> None:
        """Estimate some pairs: a pass over the base and back, and one over the donor."""
        texts, sides = self._read(part)
        base, places = texts["base"], texts["base"].places
        reading = read_graph(self.subject, base.batch)
        assert places is not None
        assert reading.output is not None
        texts["base"] = base._replace(outputs=output_at(reading.output, places))
        self.runs.note(texts, part)
        self.runs.tokens += token_rows(texts, edits, sides, part)
        device = reading.output.device
        logits = reading.output[torch.arange(len(part), device=device), places.to(device)].double()
        ids = (torch.from_numpy(self.runs.predicted[name][part])[:, None].to(device) for name in ("base", "donor"))
        first, second = (logits.gather(1, of).sum() for of in ids)
        (first - second).backward()
        counted = torch.from_numpy(self.runs.counted(self.settings.answered)[part])
        for trace in reading.traces:
            components = [component for address, component in self.heads if address == trace.address]
            chosen = sides.queries(trace.stack), sides.keys(trace.stack)
            found = attribute(trace, texts["donor"].parts[trace.address], *chosen) if components else {}
            if components and (trace.scale is None or trace.output.grad is None):
                self.plain[str(trace.address)] = None
            for component in components:
                self._sum(component, trace.address, found[component], chosen[component != "q"], counted)

    def _sum(
        self,
        component: str,
        address: Address,
        both: Sequence[Float[Tensor, "B H T"]],
        chosen: Bool[Tensor, "B T"],
        counted: Bool[Tensor, " B"],
    ) -> None:
        """Add some pairs' estimates at one place."""
        moves = torch.stack(list(both)).cpu()[:, counted].sum(1).numpy()
        place = address, component
        self.sums[place] = _added(self.sums.get(place), moves)
        self.counts[place] = _added(self.counts.get(place), chosen[counted].sum(0).cpu().numpy())

    def _read(self, part: Int[np.ndarray, " B"]) -> tuple[dict[str, ReadText], PatchedSides]:
        """Both texts of some pairs, of the donor what it gives and its q, k and v, and the positions that are patched.

        Raises SpecError where they have other numbers of tokens, or no place of an answer.
        """
        prepared, mask = self.runs.prepared, self.subject.mask
        batches = {name: prepared.batch(self.subject, part, name) for name in ("base", "donor")}
        places = {name: answer_places(batch, mask) for name, batch in batches.items()}
        alike = [
            torch.equal(side.real, other.real)
            for side, other in zip(*((of.source, of.target) for of in batches.values()), strict=True)
            if side is not None and other is not None
        ]
        if not all(alike) or places["base"] is None or places["donor"] is None:
            given = "Base and donor of a pair have other numbers of tokens, or no mask each."
            raise SpecError(given, f"{NEEDS} Positions of both are the same.", "Give texts of the same length.")
        addresses = dict.fromkeys(address for address, _ in self.heads)
        donor = record(self.subject, batches["donor"], addresses, places["donor"])
        texts = {
            "base": ReadText(batches["base"], places["base"], donor.outputs, {}),
            "donor": ReadText(batches["donor"], places["donor"], *donor),
        }
        wanted = read_positions(self.settings.positions or "all")
        sides = patched_sides(batches["base"], batches["donor"], wanted, places["base"])
        return texts, sides.cut(batches["donor"], torch.arange(len(part)))

    def rows(self, way: float) -> list[NewRow]:
        """A row for each head at each position, the largest estimate first; `way` is what the differences of all pairs sum to."""
        found: list[NewRow] = []
        for (address, component), sums in self.sums.items():
            counts = self.counts[address, component]
            for head in self.heads[address, component]:
                for at in np.flatnonzero(counts).tolist():
                    both = [finite(-value / way) if way else None for value in sums[:, head - 1, at].tolist()]
                    where: NewRow = {"stack": address.stack, "layer": address.layer, "head": head}
                    where |= {"component": component, "position": at + 1, "n": int(counts[at])}
                    found.append(where | {"estimate": both[0], "gradient": both[1]})
        return sorted(found, key=lambda row: -abs(float(row["estimate"] or 0.0)))

    def patch(self, rows: Sequence[NewRow], step: Callable[[int, int], None]) -> Float[np.ndarray, "R N"]:
        """For each row how far the base's answer lies above the donor's once that head is the donor's at that position, by pair."""
        prepared = self.runs.prepared
        found = np.full((len(rows), len(prepared.pairs)), np.nan)
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
                writes.setdefault(address, []).append((number, put_at([target], donor.parts[address], *only)))
            for address, own in writes.items():
                made = passes.output_each(base.batch, [{address: writer} for _, writer in own], base.places)
                for (number, _), outputs in zip(own, made, strict=True):
                    found[number, part] = self.runs.difference(outputs, part)
            step(done, len(parts))
        return found


def _added(sums: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    """Sums and more of them, along as many positions as the longer has."""
    if sums is None:
        return more
    longer, shorter = (sums, more) if sums.shape[-1] >= more.shape[-1] else (more, sums)
    whole = longer.copy()
    whole[..., : shorter.shape[-1]] += shorter
    return whole
