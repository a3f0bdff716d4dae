"""Finished runs and evaluations into tidy tables, claims last."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import polars as pl

from trisect import claims
from trisect.claims.controls import judge_controls
from trisect.core.edits import read_edit
from trisect.core.files import read_record
from trisect.core.spec import read_run
from trisect.core.study_data import FinishedRun, LedgerData, RewindData, StudyAbout
from trisect.core.tables import STUDY_TABLES, frame, read_table
from trisect.experiments.study.evaluation import CurveData, EvaluationData
from trisect.experiments.study.planted import planted_rows
from trisect.experiments.study.rows import StudyRows
from trisect.experiments.study.tasks import evaluation_advice
from trisect.lab.folder import Folder
from trisect.lab.runs import read_finished
from trisect.measure.criticality import criticality, mean_difference

CURVES = ("loss_nats", "accuracy", "rise_low_nats", "rise_high_nats")  # the last two where the rows were a sample


def collect(folder: Folder, about: StudyAbout) -> dict[str, pl.DataFrame]:
    """Every table, made from what the study has finished."""
    ledger = folder.read_ledger()
    done = {run: read_finished(folder, run) for run in ledger["runs"] if folder.run(run).exists()}
    corpus = about.get("corpus", {}).get("name", "")
    tables = {
        "runs": frame("runs", [_run_row(run, body, corpus) for run, body in done.items()]),
        "metrics": frame("metrics", [row for run, body in done.items() for row in _metric_rows(run, body)]),
        "sites": frame(
            "sites",
            [row for run in done for row in _site_rows(folder, run, ledger)],
        ),
    }
    if scored := planted_rows(StudyRows.of(tables, about)):
        tables["sites"] = pl.concat([tables["sites"], frame("sites", scored)])
    tables["claims"] = claims.judge(tables, about)
    earlier = claims.revision_of(tables["runs"]) < claims.REVISION
    tables["claims_revised"] = claims.judge(tables, about, claims.REVISION) if earlier else frame("claims_revised", ())
    tables["controls"] = judge_controls(tables, about)
    return tables


def read_tables(folder: Folder) -> dict[str, pl.DataFrame]:
    """The tables of a study as they lie on disk."""
    return {name: read_table(folder.tables, name) for name in STUDY_TABLES}


def _run_row(run: str, body: FinishedRun, corpus: str) -> dict[str, Any]:
    spec = body["spec"]
    edit = None if spec["edit"] is None else read_edit(spec["edit"])
    return (
        {
            "run": run,
            "edit": edit.kind if edit else "none",
            "site": str(edit.site) if edit else None,
            **{name: edit.setting(name) if edit else None for name in ("label", "strength", "variant")},
            "seed": spec["seed"],
            "epochs": read_run(spec).training.epochs,
            "corpus": f"{corpus}:{spec['corpus']}",
            "versions": json.dumps(body["versions"], sort_keys=True),
        }
        | {k: body[k] for k in ("status", "diverged_step", "parameters", "device", "wall_seconds", "claims_hash")}
        | {"revision": body.get("revision", 1)}
    )


def _metric_rows(run: str, body: FinishedRun) -> list[dict[str, Any]]:
    return [{"run": run, "epoch": e, "split": s, "name": n, "value": v} for e, s, n, v in body["metrics"]]


def _site_rows(folder: Folder, run: str, ledger: LedgerData) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.evaluations(run).glob("*.json")):
        kind, _, site = path.stem.partition("-")
        body = read_record(path, evaluation_advice(path), EvaluationData)
        kind, site = body.get("kind", kind), body.get("site", site)  # in the file's name alone where it is older
        if body.get("diverged"):
            continue
        rows += [{"subject": run} | row for row in body.get("rows", ())]
        for split, curve in (("train", body.get("train")), ("valid", body.get("valid"))):
            if curve is None:
                continue
            shared = {"subject": run, "split": split, "n": curve["n"]}
            if kind == "cut":
                rows.append(shared | {"site": site, "measure": "self_only_loss_nats", "value": curve["loss_nats"][0]})
                rows.append(
                    shared | {"site": None, "measure": "unigram_loss_nats", "value": body.get("unigram", {}).get(split)}
                )
                continue
            shared |= {"site": site}
            for name in [n for n in CURVES if n in curve]:
                rows += [
                    shared | {"measure": f"{kind}_{name}", "at": a, "value": v}
                    for a, v in zip(curve["at"], curve[name], strict=True)
                ]
            rows += [shared | {"measure": m, "value": v} for m, v in _summary(kind, curve, ledger)]
            rows += [shared | {"measure": f"{kind}_{m}", "value": curve.get(m)} for m in ("area_low", "area_high")]
            if kind == "rewind":
                check = {m: curve.get(m, body.get(m)) for m in ("check_nats", "evaluations", "nodes")}
                rows += [shared | {"measure": f"rewind_{m}", "value": v} for m, v in check.items()]
    return [row for row in rows if row["value"] is not None and np.isfinite(row["value"])]  # missing stays missing


def _summary(kind: str, curve: CurveData, ledger: LedgerData) -> list[tuple[str, float]]:
    losses = np.array(curve["loss_nats"], dtype=float)
    if kind == "midstage":
        return [("midstage_area", mean_difference(losses, losses[-1]))]
    found = criticality(np.array(curve["at"]), losses, cast("RewindData", ledger["base"]["rewind"])["epsilon"])
    return [("criticality", found.score), ("criticality_first", found.first), ("rewind_area", found.area)]
