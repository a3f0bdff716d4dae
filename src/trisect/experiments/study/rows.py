"""From the study's tables to the points and curves that figures and sentences are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from trisect.claims.evidence import LEARNED_NATS, later
from trisect.core.schema import plain
from trisect.core.study_data import StudyAbout
from trisect.core.tables import frame
from trisect.report.format import Point, order, place

if TYPE_CHECKING:
    from trisect.core.finding import About
    from trisect.experiments.study.settings import StudyFacts

REWINDS = ("rewind_", "midstage_", "criticality")  # how measures of rewinding begin
HEADED = r"\.h\d"
PLAIN = (pl.col("edit") == "attack") & (pl.col("variant") == "plain")


def _label_order(label: str) -> tuple[int, str]:
    return {"pos": 0, "dep": 1}.get(label, 2), label


@dataclass(frozen=True)
class StudyRows:
    """The tables of a study with its `about`, asked in the figures' own terms.

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
        """Take the tables; a missing one is an empty one, and values that are no numbers are left out."""
        kept = {name: tables.get(name, frame(name, ())) for name in ("runs", "metrics", "sites", "claims", "controls")}
        for name in ("metrics", "sites"):
            kept[name] = kept[name].filter(pl.col("value").is_not_null() & pl.col("value").is_finite())
        runs = later(kept["runs"], "variant").with_columns(pl.col("variant").fill_null("plain"))
        about_runs = ("run", "edit", "site", "label", "strength", "variant", "seed", "epochs", "status")
        kept["metrics"] = kept["metrics"].join(runs.select(about_runs), on="run")
        seeds = runs.select(pl.col("run").alias("subject"), "seed", "status")
        kept["sites"] = later(kept["sites"], "label").join(seeds, on="subject")
        return cls(runs, kept["metrics"], kept["sites"], kept["claims"], about, kept["controls"])._split()

    def _split(self) -> StudyRows:
        """The same rows with those of single heads apart, where there are both."""
        headed = pl.col("site").str.contains(HEADED).fill_null(False)
        edited = self.runs["site"].drop_nulls()
        if not 0 < edited.str.contains(HEADED).sum() < len(edited):
            return self
        few = pl.col("site").is_null() | headed  # baselines, too, have no site
        probed = pl.col("measure").str.starts_with("probe_")  # heads are probed wherever was edited
        heads = {n: getattr(self, n).filter(few) for n in ("runs", "metrics")}
        whole = {n: getattr(self, n).filter(~headed) for n in ("runs", "metrics")}
        apart = replace(self, **heads, sites=self.sites.filter(few | probed))
        return replace(self, **whole, sites=self.sites.filter(~headed | probed), heads=apart)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have any run."""
        return tuple(sorted(self.runs["seed"].drop_nulls().unique().to_list()))

    @property
    def edited(self) -> tuple[str, ...]:
        """Every site that was attacked, frozen or rewound."""
        rewound = self.sites.filter(pl.any_horizontal(pl.col("measure").str.starts_with(m) for m in REWINDS))["site"]
        trained = self.runs.filter(pl.col("edit").is_in(["attack", "freeze"]))["site"]
        return tuple(sorted({*trained.drop_nulls().to_list(), *rewound.drop_nulls().to_list()}, key=order))

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns that were attacked, pos and dep first."""
        found = self.runs.filter(PLAIN)["label"].drop_nulls().unique().to_list()
        return tuple(sorted(found, key=_label_order))

    @property
    def controlled(self) -> tuple[str, ...]:
        """The label columns of which an attack has a control."""
        found = self.runs.filter((pl.col("edit") == "attack") & (pl.col("variant") != "plain"))["label"]
        return tuple(sorted(found.drop_nulls().unique().to_list(), key=_label_order))

    @property
    def strengths(self) -> tuple[float, ...]:
        """The strengths of attack that were run, weakest first."""
        return self.strengths_of("plain")

    def strengths_of(self, variant: str) -> tuple[float, ...]:
        """The strengths that one variant of attack was run with, weakest first."""
        found = self.runs.filter((pl.col("edit") == "attack") & (pl.col("variant") == variant))["strength"]
        return tuple(sorted(found.drop_nulls().unique().to_list()))

    @cached_property
    def collapsed(self) -> frozenset[str]:
        """Attacked runs whose validation loss never falls clearly below the unigram loss, in seeds whose baseline's does."""
        words = {p.seed: p.value for p in self.measure("unigram_loss_nats", "valid")}
        test = (pl.col("split") == "valid") & (pl.col("name") == "loss_nats")
        least = self.metrics.filter(test).group_by("run", "seed", "edit").agg(pl.col("value").min())
        above = [row for row in least.iter_rows() if row[1] in words and row[3] > words[row[1]] - LEARNED_NATS]
        unlearned = {seed for _, seed, edit, _ in above if edit == "none"}
        return frozenset(run for run, seed, edit, _ in above if edit == "attack" and seed not in unlearned)

    def readable(self, points: Iterable[Point]) -> list[Point]:
        """The points of the sites where no run collapsed: collapsed runs are drawn and counted, and nothing is read from them."""
        points = list(points)
        fell = {p.site for p in points if p.run in self.collapsed}
        return [p for p in points if p.site not in fell]

    def comparable(self, points: Iterable[Point]) -> list[Point]:
        """Those of the layers where no run of any component collapsed: means over layers are then of the same layers."""
        points = list(points)
        fell = {place(p.site).layers for p in points if p.run in self.collapsed}
        return [p for p in points if place(p.site).layers not in fell]

    @property
    def strength(self) -> float | None:
        """The strength that the figures show: 1, the one of the verdicts, if it was run, else the one nearest to it."""
        return min(self.strengths, key=lambda s: (abs(math.log(max(s, 1e-9))), s), default=None)

    def _control_strength(self, variant: str) -> float | None:
        """The strength of a control: that of the attacks that are shown, if it was run with it, else its first."""
        known = self.strengths_of(variant)
        return self.strength if self.strength in known else next(iter(known), None)

    def chosen(self, edit: str, label: str | None, strength: float | None = None, variant: str = "plain") -> pl.Expr:
        """The filter of one experiment's runs; the baseline's edit is `none`, a control's variant is not `plain`."""
        test = (pl.col("edit") == edit) & (pl.col("variant") == variant)
        if label is not None:
            test &= pl.col("label") == label
        if edit == "attack":
            known = self.strength if variant == "plain" else self._control_strength(variant)
            # null where there is none of it
            test &= pl.col("strength").eq_missing(known if strength is None else strength)
        return test

    def curves(self, edit: str, split: str, name: str = "loss_nats", label: str | None = None) -> list[Point]:
        """Every epoch of every run of one experiment; the baseline's points have the empty site."""
        test = self.chosen(edit, label) & (pl.col("split") == split) & (pl.col("name") == name)
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
        last = chosen.filter(self.chosen(edit, label, strength, variant)).sort("epoch")
        last = last.group_by("run", maintain_order=True).last()
        points = []
        for row in last.sort("site", "seed").iter_rows(named=True):
            against = base.get(row["seed"])
            if not against:
                continue
            most = against.get(0, math.inf) if name == "loss_nats" else math.inf
            off, base_off = row["status"] == "diverged", row["seed"] in lost
            value = min(row["value"], most) if off else row["value"]
            paired = against.get(row["epochs"], against[max(against)])
            paired = min(paired, most) if base_off else paired
            points.append(Point(row["site"], row["seed"], value - paired, None, off or base_off, row["run"]))
        return points

    def last(self, edit: str, split: str, name: str, label: str | None = None) -> list[Point]:
        """A metric at the last epoch of every run of one experiment."""
        kept: dict[tuple[str, int], Point] = {}
        for point in self.curves(edit, split, name, label):
            kept[point.site, point.seed] = point._replace(at=None)
        return list(kept.values())

    def measure(
        self, name: str, split: str, label: str | None = None, subjects: Sequence[str] | None = None
    ) -> list[Point]:
        """A measure of `sites` on one split, every site and seed; rows without a site have the empty site.

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

    def rewound_accuracy(self) -> list[Point]:
        """Validation accuracy with a site's initial weights (α = 0) less that of the final model (α = 1), a share."""
        points = self.measure("rewind_accuracy", "valid")
        final = {(p.site, p.seed): p.value for p in points if p.at == 1}
        return [
            p._replace(value=p.value - final[p.site, p.seed], at=None)
            for p in points
            if p.at == 0 and (p.site, p.seed) in final
        ]

    @property
    def attack_epochs(self) -> tuple[int, ...]:
        """For how many epochs attacks were trained: one number, as a rule."""
        return tuple(sorted(self.runs.filter(PLAIN)["epochs"].drop_nulls().unique().to_list()))


def described(about: About[StudyFacts]) -> StudyAbout:
    """What is said of a study beside its tables, as JSON-ready data."""
    facts = about.facts
    said: StudyAbout = {
        "corpus": facts.corpus,
        "device": facts.device,
        "precision": facts.precision,
        "wall_seconds": facts.wall_seconds,
        "command": about.command,
        "versions": dict(about.versions),
    }
    if facts.experiment is not None:
        said["experiment"] = plain(facts.experiment)
    return said
