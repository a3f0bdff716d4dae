"""Rewinding between published checkpoints of one model: criticality and mid-stage curves of q, k and v without training."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from trisect.core.errors import ModelError, SiteError, SpecError
from trisect.core.files import write_json
from trisect.core.site import Site
from trisect.core.subject import Shape, Target, Texts
from trisect.core.tables import frame, write_table
from trisect.core.trace import Projections
from trisect.experiments.checkpoints.interpolation import Bench, How, Place, rewind
from trisect.lab.live import bar
from trisect.lab.versions import versions

if TYPE_CHECKING:
    from trisect.hf.checkpoints import Cut, Values


@dataclass(frozen=True, eq=False)
class CheckpointsResult:
    """What was found: the table sites, the page, notes on the way, and a few sentences for a terminal."""

    folder: Path
    tables: Mapping[str, pl.DataFrame]
    report: Path
    notes: tuple[str, ...]
    findings: tuple[str, ...]


def run_checkpoints(
    model: str | Path,
    initial: str,
    final: str,
    stages: Sequence[str] | None,
    texts: Texts,
    out: Path,
    sites: Sequence[Site | str] | None = None,
    points: int = 101,
    epsilon: float = 0.01,
    exact: bool = False,
    batch: int = 8,
    seed: int = 0,
    quiet: bool = False,
    window: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    pickle: bool = False,
    remote_code: bool = False,
) -> CheckpointsResult:
    """Rewind sites of revision `final` of a model towards `initial` (A5) and to each of `stages` (A6), and write a page.

    Revisions are subfolders of a local folder, else revisions of a hub. A site's components, layers and heads are
    rewound together; null is q, k and v of every layer, one at a time. `points` α are on the grid; unless `exact` they
    are interpolated between nodes that check themselves. `epsilon` is the share of the final loss that counts as a drop.
    The table `sites` has the measures of a study's rewinding, with `n` the predicted tokens; intervals are 95 % of a
    bootstrap over texts, drawn with `seed`. Raises TrisectError.
    """
    from trisect.hf.checkpoints import locate, read_cuts
    from trisect.hf.fetch import Options
    from trisect.hf.load import load

    _check(points, epsilon, batch)
    stages = tuple(stages or ())
    where = {revision: locate(model, revision) for revision in (initial, *stages, final)}[final]
    subject = load(where[0], None, None, window, where[1], dtype, device, None, pickle, remote_code)
    spots, notes = plan_places(subject.shape, subject.projections(), sites)
    if subject.objective == "output":
        known = "Rewinding is measured in its loss."
        raise ModelError(f"{model} has no loss of its own.", known, "Give a model with its language-model head.")
    bench, how = Bench(subject, subject.model, texts, batch), How(points, epsilon, exact, seed)
    options = Options(None, dtype, "cpu", None, pickle, remote_code)

    def read(revision: str) -> list[Values]:
        cuts = [cut for spot in spots for cut in spot.cuts]
        values = iter(read_cuts(model, revision, cuts, subject.model, options))
        return [tuple(next(values) for _ in spot.cuts) for spot in spots]

    title = f"rewinding {len(spots)} sites"
    with bar(title, quiet) as told:
        rows, said = rewind(bench, spots, read, initial, stages, how, told)
    name = Path(model).resolve().name if Path(model).is_dir() else str(model)
    chosen = [str(w) for o, v in {"--window": window, "--dtype": dtype}.items() if v is not None for w in (o, v)]
    table = frame("sites", [row | {"subject": f"{name}@{final}"} for row in rows])
    about = _about(bench, texts, (*notes, *said)) | {"subject": f"{name}@{final}"} | how._asdict()
    about |= {"initial": initial, "stages": list(stages), "final": final}
    called = "MODEL" if Path(model).is_dir() else str(model)
    return _write(out, table, about | {"command": _command(called, initial, final, stages, texts, sites, how, chosen)})


def _about(bench: Bench, texts: Texts, notes: Sequence[str]) -> dict[str, Any]:
    cut = [note for batch in bench.batches for note in batch.notes]
    return {
        "fingerprint": bench.subject.fingerprint,
        "objective": bench.subject.objective,
        "corpus": texts.name,
        "corpus_fingerprint": texts.fingerprint,
        "texts": len(bench.tokens),
        "tokens": int(bench.tokens.sum()),
        "passes": bench.tried,
        "notes": list(dict.fromkeys((*texts.notes, *notes, *cut))),
        "versions": versions("transformers"),
    }


def plan_places(
    shape: Shape, projections: Sequence[Projections], sites: Sequence[Site | str] | None
) -> tuple[list[Place], list[str]]:
    """The sites with their weights, and notes on those whose weights serve more than was named.

    Where layers share weights a site grows to all that they serve, and is rewound once. Raises SiteError.
    """
    from trisect.hf.checkpoints import cuts_of

    if sites is not None and not sites:
        raise SiteError("No site was given.", shape.words(), "Leave the sites out for q, k and v of every layer.")
    known = {p.address: p for p in projections}
    if sites is None:
        stacks = ["" if s == "plain" else s for s in shape.stacks]
        every = [Site((c,), None, stack=stack) for stack in stacks for c in ("q", "k", "v")]
        wanted = [t._replace(heads=None) for site in every for t in shape.resolve(site)]
        groups = [(Site((t.component,), (t.address.layer,), None, t.address.site.stack), (t,)) for t in wanted]
    else:
        parsed = [Site.parse(s) if isinstance(s, str) else s for s in sites]
        groups = [(site, shape.resolve(site)) for site in parsed]
    serving = {}
    for address in shape.heads:
        for component in ("q", "k", "v"):
            origin = known[address].origins[component]
            if origin.parameter is not None and origin.rows is not None:
                target = Target(address, component, None)
                serving[target] = cuts_of(target, known[address])[0]
    places: dict[Site, Place] = {}
    notes: dict[str, None] = {}
    for site, targets in groups:
        cuts = tuple(dict.fromkeys(cut for t in targets for cut in cuts_of(t, known[t.address])))
        grown = _grow(site, targets, cuts, serving)
        if (
            grown.layers != tuple(dict.fromkeys(t.address.layer for t in targets))
            or grown.components != site.components
        ):
            notes[f"{grown} is one set of weights, and is rewound as one."] = None
        for t in targets:
            if (origin := known[t.address].origins[t.component]).how != "rows":
                notes[f"{t.component} of {t.address} is not a selection of weights alone: {origin.words}."] = None
        places.setdefault(grown, Place(grown, cuts))
    return list(places.values()), list(notes)


def _grow(site: Site, targets: Sequence[Target], cuts: Sequence[Cut], serving: Mapping[Target, Cut]) -> Site:
    """The site with every component and layer of its stack that its weights serve."""
    units: dict[str, set[int]] = {}
    for cut in cuts:
        units.setdefault(cut.parameter, set()).update(cut.units)
    stack = targets[0].address.stack
    own = {(t.component, t.address.layer) for t in targets}
    own |= {
        (t.component, t.address.layer)
        for t, cut in serving.items()
        if t.address.stack == stack and not units.get(cut.parameter, set()).isdisjoint(cut.units)
    }
    return Site(tuple(c for c, _ in own), tuple(n for _, n in own), site.heads, site.stack)


def _command(
    model: str,
    initial: str,
    final: str,
    stages: Sequence[str],
    texts: Texts,
    sites: Sequence[Site | str] | None,
    how: How,
    chosen: Sequence[str],
) -> str:
    words = ["trisect", "rewind", model, *chosen, "--initial", initial, "--final", final]
    words += ["--stages", ",".join(stages)] if stages else []
    words += [*texts.options, *(["--sites", " ".join(map(str, sites))] if sites is not None else [])]
    words += ["--points", str(how.points), "--epsilon", f"{how.epsilon:g}", *(["--exact"] if how.exact else [])]
    return shlex.join([*words, "--seed", str(how.seed)])


def _write(out: Path, table: pl.DataFrame, about: dict[str, Any]) -> CheckpointsResult:
    from trisect.experiments.checkpoints import page

    write_table(out / "tables", "sites", table)
    write_json(out / "checkpoints.json", about)
    tables, report = {"sites": table}, page.write(out, table, about)
    return CheckpointsResult(out, tables, report, tuple(about["notes"]), page.findings(table, about))


def _check(points: int, epsilon: float, batch: int) -> None:
    for name, value, good, known in (
        ("points", points, points >= 2, "A curve has at least two points."),
        ("epsilon", epsilon, 0 < epsilon < 1, "It is a share of the final loss, above 0 and below 1."),
        ("batch", batch, batch >= 1, "A batch has at least one text."),
    ):
        if not good:
            raise SpecError(f"{name} is {value!r}.", known, "Leave it out for what is usual.")
