"""Round q, k and v or reduce their rank: costs text by text, and a plan of bits evaluated on other texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, groupby
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import SpecError
from trisect.core.finding import EQUIVALENCE_MARGIN, ReadFacts
from trisect.core.site import Site
from trisect.core.subject import (
    Batch,
    EditedPasses,
    RowScores,
    SiteTarget,
    Subject,
    TextOrPair,
    Writer,
    edit_writer,
    write_in_order,
)
from trisect.core.tables import NewRow, frame
from trisect.core.trace import Address
from trisect.lab.experiment import Measured, RunContext
from trisect.lab.passes import EditedPass, Tally, edited_passes, plan_edits, what_was_read
from trisect.measure.intervention import cut_to_rank, round_to_bits
from trisect.stats.bootstrap import bootstrap_ratios, value_rows
from trisect.stats.shares import ratios

Way: TypeAlias = tuple[str, int]  # 'bits by channel', 'bits by token' or 'rank', and how many
Reduction: TypeAlias = tuple[EditedPass, Way]
NO_PLAN = "No bits were planned: a plan is of whole layers of k or v, at bits, of at least two articles (texts where none is marked)."
PLAN_TODO = "Leave --sites and --per out, and give --bits and more texts; or leave --tolerance out."


def measure(
    context: RunContext,
    sites: Sequence[Site | str] | None,
    per: str,
    ways: Sequence[Way],
    memory: float,
    tolerance: float | None,
    size: int,
    seed: int,
) -> Measured[ReadFacts]:
    """Apply each reduction to each site in a pass of its own: in one layer or head at a time, and in all layers at once.

    Values are changes of the subject's own loss in nats per predicted token, or of its output where it has no loss; intervals
    are 95 % of a bootstrap over articles (texts where none is marked). Bits are planned on every other article and
    measured on the rest. Raises SiteError, CorpusError, ModelError; SpecError where a `tolerance` is given and nothing is planned.
    """
    subject, texts = context.subject, context.texts
    edits = plan_edits(subject.shape, sites, per)
    joint_edits = () if per == "site" else plan_edits(subject.shape, sites, "site")
    tries = [(edit, way) for edit in (*edits, *(e for e in joint_edits if len(e.addresses) > 1)) for way in ways]
    sizes: dict[tuple[Address, str], int] = {}
    passes, notes = edited_passes(subject), dict.fromkeys(texts.notes)
    count = sum(1 for _ in texts.texts())
    with context.progress(f"{len(tries)} reductions") as step:

        def read(part: Iterable[TextOrPair], sets: Sequence[Sequence[Reduction]], before: int) -> Tally:
            tally = Tally()
            for batch in subject.batches(part, size, scored=True):
                notes.update(dict.fromkeys(batch.notes))
                tally.add(batch, *_score_reductions(passes, batch, sets, sizes))
                step(before + batch.rows[-1][0] + 1, count + count // 2)
            return tally

        tally = read(texts.texts(), [[reduction] for reduction in tries], 0)
        table, articles = tally.table(texts.name), tally.articles(texts)
        units = articles.sums(table, tally.indices)
        rows = _reduction_rows(subject, units, tries, seed)
        plan = _plan_layers(tries, ratios(units[::2, 2:], units[::2, 0]), sizes, memory) if len(units) > 1 else None
        if plan is not None:
            # units stand in the order of their articles: every second one is left to try the plan on
            numbers = np.arange(len(table)) if articles.numbers is None else articles.numbers[list(tally.indices)]
            odd = np.unique(numbers, return_inverse=True)[1] % 2 == 1
            rest = list(compress(tally.indices, odd))
            chosen = set(rest)
            again = read(compress(texts.texts(), (n in chosen for n in range(count))), plan, count)
            others = articles.sums(again.table(texts.name), [rest[n] for n in again.indices])
            rows += _plan_rows(subject, plan, others, sizes, memory, seed)
        elif tolerance is not None:
            problem = f"A tolerance of {tolerance:g} was given, and there is no plan to hold to it."
            raise SpecError(problem, NO_PLAN, PLAN_TODO)
        else:
            notes[NO_PLAN] = None
    limit: NewRow = {"subject": subject.name, "measure": "tolerance", "value": tolerance or EQUIVALENCE_MARGIN}
    rows.append(limit | {"group": "checked" if tolerance else None})
    notes |= dict.fromkeys((*articles.notes, *tally.note_omissions(table), *passes.notes))
    measures = frame("measures", rows)
    if not measures["value"].is_not_null().all():
        notes["Where no number stands, the edited model's loss was not finite."] = None
    facts = ReadFacts(*what_was_read(subject, texts, table), articles=None if articles.numbers is None else len(units))
    return Measured({"measures": measures}, facts, tuple(notes))


@torch.no_grad()
def _score_reductions(
    passes: EditedPasses, batch: Batch, sets: Sequence[Sequence[Reduction]], sizes: dict[tuple[Address, str], int]
) -> tuple[RowScores, list[RowScores]]:
    """Run a batch unedited and under each set of reductions; those of one call may share a pass.

    What stands at the text's own positions is rounded or cut; `sizes` learn how many numbers a token has there.
    """

    def writer_of(edit: EditedPass, way: str, amount: int, address: Address) -> Writer:
        def reduce(tensor: Tensor, where: SiteTarget) -> Tensor:
            side = (batch.queries if where.component == "q" else batch.keys)(where.address.stack)
            same = side.real.shape[1] == tensor.shape[2]
            real = side.real.to(tensor.device) if same else tensor.new_ones(len(tensor), tensor.shape[2]).bool()
            sizes[where.address, where.component] = tensor.shape[1] * tensor.shape[3]
            if way == "rank":
                return cut_to_rank(tensor, amount, real)
            return round_to_bits(tensor, amount, way.removeprefix("bits by "), real)

        return edit_writer([target for target in edit.targets if target.address == address], reduce)

    writes: list[dict[Address, Writer]] = []
    for reductions in sets:
        writers: dict[Address, list[Writer]] = {}
        for edit, (way, amount) in reductions:
            for address in edit.addresses:
                writers.setdefault(address, []).append(writer_of(edit, way, amount, address))
        writes.append({address: partial(write_in_order, of_layer) for address, of_layer in writers.items()})
    clean, scores = passes.score(batch), list[RowScores]()
    for places, group in groupby(writes, tuple):
        if len(places) == 1:
            scores += passes.score_each(batch, [write[places[0]] for write in group], places[0], None, clean)
        else:
            scores += [passes.score(batch, write, None, clean) for write in group]
    return clean, scores


def _plan_layers(
    tries: Sequence[Reduction], costs: Float[np.ndarray, " T"], sizes: Mapping[tuple[Address, str], int], memory: float
) -> list[list[Reduction]] | None:
    """Uniform and planned bits of equal memory for k and v of every layer; None unless both were rounded alone.

    `costs` are the changes of each try; those below 0 count as 0. k and v are each rounded by channel or by token, whichever
    costs less at the most bits tried that `memory` has room for everywhere.
    """
    layers: dict[EditedPass, dict[Way, float]] = {}
    for (edit, way), cost in zip(tries, costs, strict=True):
        is_single = len(edit.addresses) == 1 and edit.site.heads is None and edit.site.components in (("k",), ("v",))
        if is_single and way[0] != "rank":
            layers.setdefault(edit, {})[way] = max(0.0, float(cost)) if math.isfinite(cost) else 1e30
    if not layers:
        return None
    ways = next(iter(layers.values()))
    even = max(bits for _, bits in ways if bits <= memory)
    best = {
        component: min(
            dict.fromkeys(way for way, _ in ways),
            key=lambda way: sum(cost[way, even] for edit, cost in layers.items() if edit.site.components == component),
        )
        for component in {edit.site.components for edit in layers}
    }
    scale = {edit: best[edit.site.components] for edit in layers}
    each = [{bits: cost for (way, bits), cost in layers[edit].items() if way == scale[edit]} for edit in layers]
    numbers = [sizes[edit.address, edit.site.components[0]] for edit in layers]
    # all k before all v: where bits take turns they do so over layers of each
    order = sorted(range(len(numbers)), key=lambda n: list(layers)[n].site.components)
    in_turn = dict(zip(order, even_bits([numbers[n] for n in order], memory), strict=True))
    both = [in_turn[n] for n in range(len(numbers))], plan_bits(each, numbers, memory)
    return [[(edit, (way, bits)) for (edit, way), bits in zip(scale.items(), plan, strict=True)] for plan in both]


def even_bits(sizes: Sequence[int], memory: float) -> list[int]:
    """The same bits at each place, or alternately the two integers around `memory`, within the memory of `plan_bits`."""
    chosen, left = list[int](), 1e-9
    for size in sizes:
        left += memory * size
        chosen.append(min(math.ceil(memory), int(left // size)))
        left -= chosen[-1] * size
    return chosen


def plan_bits(costs: Sequence[Mapping[int, float]], sizes: Sequence[int], memory: float) -> tuple[int, ...]:
    """Choose the bits of each place with the least total `costs`, where size times bits sum to at most memory times all sizes.

    Exact, by dynamic programming (a knapsack with one choice a place); of plans that cost the same the one with the most bits.
    Raises SpecError where nothing is as small.
    """
    unit = math.gcd(*sizes)
    room = math.floor(memory * sum(sizes) / unit + 1e-9)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for cost, size in zip(costs, sizes, strict=True):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for used, (total, chosen) in best.items():
            for bits, more in cost.items():
                place = used + bits * size // unit
                if place <= room and total + more < longer.get(place, (math.inf,))[0]:
                    longer[place] = total + more, (*chosen, bits)
        best = longer
    if not best:
        fewest = sum(min(cost) * size for cost, size in zip(costs, sizes, strict=True)) / sum(sizes)
        problem, least = f"A memory of {memory:g} bits a number.", f"The fewest bits come to {fewest:g} a number."
        raise SpecError(problem, least, "Give more memory, or fewer bits among others.")
    return min(best.items(), key=lambda item: (item[1][0], -item[0]))[1][1]


def _reduction_rows(
    subject: Subject, units: Float[np.ndarray, "N C"], tries: Sequence[Reduction], seed: int
) -> list[NewRow]:
    """Rows of the unedited loss, of every reduction's change, and of k's cost less v's: averaged over layers, and in all at once."""
    unit = "share" if subject.objective == "output" else "nats"
    change = "output_change" if unit == "share" else "loss_change_nats"
    rows: list[NewRow] = [{"measure": "loss_nats"}]
    rows += [edit.row(way) | {"measure": change, "at": float(amount)} for edit, (way, amount) in tries]
    columns = [units[:, 1:]]
    shared: dict[tuple[str, str, int], dict[str, dict[tuple[Address, ...], int]]] = {}
    for i, (edit, (way, amount)) in enumerate(tries, start=2):
        if edit.site.heads is None and edit.site.components in (("k",), ("v",)):
            group = f"{way}, all layers at once" if len(edit.addresses) > 1 else way
            both = shared.setdefault((edit.address.stack, group, amount), {"k": {}, "v": {}})
            both[edit.site.components[0]][edit.addresses] = i
    for (stack, way, amount), both in shared.items():
        if places := [place for place in both["k"] if place in both["v"]]:
            k, v = (units[:, [both[component][place] for place in places]].mean(1) for component in "kv")
            columns.append((k - v)[:, None])
            rows.append({"measure": f"k_less_v_{unit}", "stack": stack, "group": way, "at": float(amount)})
    changes = _with_intervals(subject, np.concatenate(columns, 1), units[:, 0], rows, seed)
    return changes[unit == "share" :]


def _plan_rows(
    subject: Subject,
    plan: Sequence[Sequence[Reduction]],
    units: Float[np.ndarray, "N C"],
    sizes: Mapping[tuple[Address, str], int],
    memory: float,
    seed: int,
) -> list[NewRow]:
    """The planned bits of every layer, bits per number of both plans, and their cost in `units` that the plan was not made from."""
    unit = "share" if subject.objective == "output" else "nats"
    rows: list[NewRow] = []
    for name, reductions in zip(("uniform", "plan"), plan, strict=True):
        numbers = [sizes[edit.address, edit.site.components[0]] for edit, _ in reductions]
        used = sum(bits * n for (_, (_, bits)), n in zip(reductions, numbers, strict=True)) / sum(numbers)
        rows.append({"measure": f"{name}_memory", "value": used})
        rows += [edit.row(way) | {"measure": f"{name}_bits", "value": float(bits)} for edit, (way, bits) in reductions]
    rows = [row | {"subject": subject.name, "at": memory} for row in rows]
    costs: list[NewRow] = [
        {"measure": f"{name}_change_{unit}", "at": memory} for name in ("uniform", "plan", "plan_less_uniform")
    ]
    columns = np.concatenate([units[:, 2:], units[:, 3:4] - units[:, 2:3]], 1)
    return rows + _with_intervals(subject, columns, units[:, 0], costs, seed)


def _with_intervals(
    subject: Subject,
    sums: Float[np.ndarray, "N C"],
    counts: Float[np.ndarray, " N"] | Int[np.ndarray, " N"],
    rows: Sequence[NewRow],
    seed: int,
) -> list[NewRow]:
    """Each row with its mean per token and a 95 % bootstrap interval over the units."""
    numbers = value_rows(ratios(sums, counts), bootstrap_ratios(sums, counts, seed), len(counts))
    return [row | {"subject": subject.name} | columns for row, columns in zip(rows, numbers, strict=True)]
