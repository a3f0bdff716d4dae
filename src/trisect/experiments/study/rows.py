"""From the study's tables to the points and curves of figures and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from trisect.claims.evidence import LEARNED_NATS
from trisect.core.schema import to_json_data
from trisect.core.spec import CorpusData, StudyAbout
from trisect.core.tables import frame
from trisect.report.format import Mean, Point, interval, order, site_position

if TYPE_CHECKING:
    from trisect.core.finding import About
    from trisect.experiments.study.settings import StudyFacts

K = TypeVar("K")
REWINDS = ("rewind_", "midstage_", "criticality")  # how measures of rewinding begin
HEADED = r"\.h\d"
ATTACKED, PLAIN = pl.col("edit") == "attack", pl.col("variant") == "plain"


def minus(points: Iterable[Point], others: Iterable[Point], *by: str, times: float = 1.0) -> list[Point]:
    """The points less `others` at the same places (the fields `by`, else site and seed), times `times`; unpaired ones are left out."""
    by = by or ("site", "seed")
    values = {tuple(getattr(p, name) for name in by): p.value for p in others}
    pairs = ((p, values.get(tuple(getattr(p, name) for name in by))) for p in points)
    return [p._replace(value=times * (p.value - other)) for p, other in pairs if other is not None]


def average(points: Iterable[Point], key: Callable[[Point], K | None]) -> dict[K, Point]:
    """The first point of each key, with the mean of all of them; points with key None are left out."""
    groups: dict[K, list[Point]] = {}
    for point in points:
        if (group := key(point)) is not None:
            groups.setdefault(group, []).append(point)
    return {group: ps[0]._replace(value=sum(p.value for p in ps) / len(ps), at=None) for group, ps in groups.items()}


def over_seeds(points: Iterable[Point]) -> Mean:
    """The mean over sites within each seed, then over seeds."""
    return interval([p.value for p in average(points, lambda p: p.seed).values()])


def sort_labels(labels: pl.Series) -> tuple[str, ...]:
    """Distinct label columns, part of speech and dependency relation first."""
    return tuple(sorted(labels.drop_nulls().unique().to_list(), key=lambda x: ({"pos": 0, "dep": 1}.get(x, 2), x)))


@dataclass(frozen=True)
class StudyRows:
    """The tables of a study with its record, and queries of them.

    Sites of single heads are apart, in `heads`, unless there are no others; a run's `variant` is `plain` unless it is a control.
    """

    runs: pl.DataFrame
    metrics: pl.DataFrame
    sites: pl.DataFrame
    claims: pl.DataFrame
    about: StudyAbout
    controls: pl.DataFrame = field(default_factory=lambda: frame("controls", ()))
    heads: StudyRows | None = None

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], about: StudyAbout) -> StudyRows:
        """Index the tables; a missing one counts as empty, and non-finite values are left out."""
        read = {name: tables.get(name, frame(name, ())) for name in ("runs", "metrics", "sites", "claims", "controls")}
        for name in ("metrics", "sites"):
            read[name] = read[name].filter(pl.col("value").is_not_null() & pl.col("value").is_finite())
        runs = read["runs"].with_columns(pl.col("variant").fill_null("plain"))
        about_runs = ("run", "edit", "site", "label", "strength", "variant", "seed", "epochs", "status")
        read["metrics"] = read["metrics"].join(runs.select(about_runs), on="run")
        read["sites"] = read["sites"].join(runs.select("seed", "status", subject="run"), on="subject")
        return cls(runs, read["metrics"], read["sites"], read["claims"], about, read["controls"])._separate_heads()

    def _separate_heads(self) -> StudyRows:
        """The same rows with those of single heads separate, if there are both."""
        headed = pl.col("site").str.contains(HEADED).fill_null(False)
        edited = self.runs["site"].drop_nulls()
        if not 0 < edited.str.contains(HEADED).sum() < len(edited):
            return self
        single = pl.col("site").is_null() | headed  # baselines, too, have no site
        probed = pl.col("measure").str.starts_with("probe_")  # heads are probed wherever was edited
        apart, rest = (
            replace(
                self,
                runs=self.runs.filter(kind),
                metrics=self.metrics.filter(kind),
                sites=self.sites.filter(kind | probed),
            )
            for kind in (single, ~headed)
        )
        return replace(rest, heads=apart)

    def statement(self, part: str) -> Mapping[str, Any]:
        """A part of the study's statement, such as its rewinding; empty if it has none."""
        return (self.about.get("experiment") or {}).get(part) or {}

    @property
    def corpus(self) -> CorpusData:
        """The record of the study's text; empty if there is none."""
        return self.about.get("corpus") or {}

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds with any run."""
        return tuple(sorted(self.runs["seed"].drop_nulls().unique().to_list()))

    @property
    def baselines(self) -> list[str]:
        """The unedited runs."""
        return self.runs.filter(pl.col("edit") == "none")["run"].to_list()

    @property
    def edit_sites(self) -> tuple[str, ...]:
        """Every site that was attacked, frozen or rewound."""
        measures = pl.any_horizontal(pl.col("measure").str.starts_with(m) for m in REWINDS)
        trained = self.runs.filter(pl.col("edit").is_in(["attack", "freeze"]))["site"].drop_nulls()
        return tuple(sorted({*trained, *self.sites.filter(measures)["site"].drop_nulls()}, key=order))

    @property
    def labels(self) -> tuple[str, ...]:
        """The attacked label columns, pos and dep first."""
        return sort_labels(self.runs.filter(ATTACKED & PLAIN)["label"])

    @property
    def strengths(self) -> tuple[float, ...]:
        """All strengths of attack, weakest first."""
        return self.strengths_of("plain")

    def strengths_of(self, variant: str) -> tuple[float, ...]:
        """The strengths of one variant of attack, weakest first."""
        strengths = self.runs.filter(ATTACKED & (pl.col("variant") == variant))["strength"]
        return tuple(sorted(strengths.drop_nulls().unique().to_list()))

    @property
    def strength(self) -> float | None:
        """The strength in the figures: 1, the verdicts', if it was run, else the nearest."""
        return min(self.strengths, key=lambda s: (abs(math.log(max(s, 1e-9))), s), default=None)

    @property
    def attack_epochs(self) -> tuple[int, ...]:
        """The numbers of epochs of attack training: usually one."""
        return tuple(sorted(self.runs.filter(ATTACKED & PLAIN)["epochs"].drop_nulls().unique().to_list()))

    @cached_property
    def collapses(self) -> frozenset[str]:
        """Attacked runs whose validation loss never falls clearly below the unigram loss, in seeds whose baseline's does."""
        words = {p.seed: p.value for p in self.measure("unigram_loss_nats", "valid")}
        test = (pl.col("split") == "valid") & (pl.col("name") == "loss_nats")
        least = self.metrics.filter(test).group_by("run", "seed", "edit").agg(pl.col("value").min())
        above = [row for row in least.iter_rows() if row[1] in words and row[3] > words[row[1]] - LEARNED_NATS]
        unlearned = {seed for _, seed, edit, _ in above if edit == "none"}
        return frozenset(run for run, seed, edit, _ in above if edit == "attack" and seed not in unlearned)

    def readable(self, points: Iterable[Point]) -> list[Point]:
        """The points of sites without collapsed runs; collapsed runs are drawn and counted, but not interpreted."""
        points = list(points)
        fell = {p.site for p in points if p.run in self.collapses}
        return [p for p in points if p.site not in fell]

    def comparable(self, points: Iterable[Point]) -> list[Point]:
        """The points of layers where no run of any component collapsed, so that means are over the same layers."""
        points = list(points)
        fell = {site_position(p.site).layers for p in points if p.run in self.collapses}
        return [p for p in points if site_position(p.site).layers not in fell]

    def select(self, edit: str, label: str | None, strength: float | None = None, variant: str = "plain") -> pl.Expr:
        """The filter of one experiment's runs; the baseline's edit is `none`, a control's variant is not `plain`.

        Attacks are those of the strength that is shown where none is named, or where it was not run, of the weakest.
        """
        test = (pl.col("edit") == edit) & (pl.col("variant") == variant)
        if label is not None:
            test &= pl.col("label") == label
        if edit == "attack":
            strengths = self.strengths_of(variant)
            shown = self.strength if variant == "plain" or self.strength in strengths else next(iter(strengths), None)
            # None where there is none of it
            test &= pl.col("strength").eq_missing(shown if strength is None else strength)
        return test

    def curves(self, edit: str, split: str, name: str = "loss_nats", label: str | None = None) -> list[Point]:
        """Every epoch of every run of one experiment; the baseline's points have an empty site."""
        test = self.select(edit, label) & (pl.col("split") == split) & (pl.col("name") == name)
        picked = self.metrics.filter(test).sort("site", "seed", "epoch", nulls_last=True)
        columns = picked.select("site", "seed", "value", "epoch", pl.col("status") == "diverged", "run").iter_rows()
        return [Point(site or "", seed, value, float(epoch), *rest) for site, seed, value, epoch, *rest in columns]

    def effects(
        self,
        edit: str,
        split: str,
        label: str | None = None,
        strength: float | None = None,
        name: str = "loss_nats",
        variant: str = "plain",
    ) -> list[Point]:
        """A metric at each run's last epoch less the baseline's of the same seed at that epoch; losses in nats.

        A run that diverged, edited or baseline, enters with its last finite value, and its loss is clipped at the
        baseline's loss at initialisation. A point says whether either of its two runs diverged.
        """
        chosen = self.metrics.filter((pl.col("split") == split) & (pl.col("name") == name))
        base: dict[int, dict[int, float]] = {}
        lost: set[int] = set()
        bare = chosen.filter(pl.col("edit") == "none").select("seed", "epoch", "value", "status")
        for seed, epoch, value, status in bare.iter_rows():
            base.setdefault(seed, {})[epoch] = value
            lost |= {seed} if status == "diverged" else set()
        last = chosen.filter(self.select(edit, label, strength, variant)).sort("epoch")
        last = last.group_by("run", maintain_order=True).last()
        points = []
        for row in last.sort("site", "seed").iter_rows(named=True):
            against = base.get(row["seed"])
            if not against:
                continue
            ceiling = against.get(0, math.inf) if name == "loss_nats" else math.inf
            off, base_off = row["status"] == "diverged", row["seed"] in lost
            value = min(row["value"], ceiling) if off else row["value"]
            paired = against.get(row["epochs"], against[max(against)])
            paired = min(paired, ceiling) if base_off else paired
            points.append(Point(row["site"], row["seed"], value - paired, None, off or base_off, row["run"]))
        return points

    def last(self, edit: str, split: str, name: str, label: str | None = None) -> list[Point]:
        """A metric at the last epoch of every run of one experiment."""
        last = {(point.site, point.seed): point for point in self.curves(edit, split, name, label)}
        return [point._replace(at=None) for point in last.values()]

    def measure(
        self, name: str, split: str, label: str | None = None, subjects: Sequence[str] | None = None
    ) -> list[Point]:
        """A measure of `sites` on one split, for every site and seed; rows without a site have an empty site.

        `label` is the column of a probe or an erasure, `subjects` the runs that are meant where several have the measure.
        """
        picked = self.sites.filter((pl.col("measure") == name) & (pl.col("split") == split))
        if label is not None:
            picked = picked.filter(pl.col("label") == label)
        if subjects is not None:
            picked = picked.filter(pl.col("subject").is_in(subjects))
        picked = picked.sort("site", "seed", "at", nulls_last=True)
        columns = picked.select("site", "seed", "value", "at", pl.col("status") == "diverged", "subject").iter_rows()
        return [Point(site or "", *rest) for site, *rest in columns]

    def rewound(self, name: str) -> list[Point]:
        """A measure on validation with a site's initial weights (α = 0) less that of the final model (α = 1)."""
        points = self.measure(name, "valid")
        return minus((p._replace(at=None) for p in points if p.at == 0), [p for p in points if p.at == 1])


def describe_study(about: About[StudyFacts]) -> StudyAbout:
    """The record beside a study's tables, as JSON-ready data."""
    facts = about.facts
    described: StudyAbout = {
        "corpus": facts.corpus,
        "device": facts.device,
        "precision": facts.precision,
        "wall_seconds": facts.wall_seconds,
        "command": about.command,
        "versions": dict(about.versions),
    }
    if facts.experiment is not None:
        described["experiment"] = to_json_data(facts.experiment)
    return described
