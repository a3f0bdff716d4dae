"""Parquet tables: the columns of each, written atomically with a checksum over their bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import polars as pl

from trisect.core.errors import DamagedFileError, check_access
from trisect.core.files import digest, inside, replace_file

TEXT, REAL, WHOLE = pl.String, pl.Float64, pl.Int64
UNSIGNED = b"trisect-checksum:" + b"0" * 32  # Parquet has no checksum of its own that polars writes or reads
SIGNED = re.compile(rb"trisect-checksum:([0-9a-f]{32})")
RUN = re.compile(rb"trisect-run:([0-9a-f]{32})")

Scalar: TypeAlias = str | float | int | bool | None
TableRow: TypeAlias = Mapping[str, Scalar]  # column -> value, on its way into a table
NewRow: TypeAlias = dict[str, Scalar]  # the same while it is put together

SCHEMAS: dict[str, dict[str, type[pl.DataType]]] = {
    "runs": {
        "run": TEXT,  # its id, the name of its folder
        "edit": TEXT,  # none, or the kind of edit: attack, freeze, tie, identity, narrow, …
        "site": TEXT,  # what was edited, as in q@1; null of the baseline
        "label": TEXT,  # of an attack: the column that it removes
        "strength": REAL,  # λ of an attack
        "variant": TEXT,  # of an attack: plain, or the controls that it is, joined by +
        "seed": WHOLE,  # of weights, batches and dropout
        "epochs": WHOLE,  # that it was to be trained for
        "status": TEXT,  # finished, diverged
        "diverged_step": WHOLE,  # None where it finished
        "parameters": WHOLE,  # that it trains: what is tied counts once, what is frozen never
        "corpus": TEXT,  # the text's name and fingerprint
        "device": TEXT,  # cpu or cuda
        "wall_seconds": REAL,  # of its training
        "versions": TEXT,  # of the packages that trained it, as JSON
        "claims_hash": TEXT,  # of the claims that were listed before it
        "revision": WHOLE,  # of the rules that were in force when it was trained
    },
    "metrics": {
        "run": TEXT,  # its id
        "epoch": WHOLE,  # 0 is before training
        "split": TEXT,  # train and valid in evaluation mode; train_running with dropout, while training
        "name": TEXT,  # such as loss_nats or accuracy
        "value": REAL,  # in the unit that the name ends in; accuracy is a share
    },
    "sites": {
        "subject": TEXT,  # a run's id
        "site": TEXT,  # as in q@1 or v@2.h4
        "measure": TEXT,  # such as rewind_area or probe_linear_accuracy
        "label": TEXT,  # of probes and erasure: the column
        "at": REAL,  # alpha, epoch, draw, or None
        "split": TEXT,  # train, valid, test
        "value": REAL,  # in the measure's unit, which its name ends in where it has one
        "n": WHOLE,  # how many tokens, texts or pairs the value is of
    },
    "measures": {
        "subject": TEXT,  # a model's name
        "stack": TEXT,  # plain, enc, dec, cross
        "layer": WHOLE,  # None: of the whole model
        "head": WHOLE,  # None: of the whole layer
        "component": TEXT,  # q, k, v, a pair such as q-k, or None
        "measure": TEXT,  # such as cv_a or overlap
        "group": TEXT,  # a category of tokens, a kind of edit, or None
        "at": REAL,  # α, an epoch or a checkpoint, or None
        "value": REAL,  # in the measure's unit
        "low": REAL,  # of the 95 % interval
        "high": REAL,  # of the 95 % interval
        "n": WHOLE,  # how many units the value is of
    },
    "answers": {
        "model": TEXT,  # plain, pretrained, left-out
        "seed": WHOLE,  # of the model
        "name": TEXT,  # whom the question is about
        "split": TEXT,  # train, valid, test, invented
        "category": TEXT,  # where the model met the name: pretraining and fine-tuning, pretraining only, …, neither
        "question": TEXT,  # as the model was asked
        "gold": TEXT,  # the right answer
        "answer": TEXT,  # the model's own
        "correct": pl.Boolean,  # None where no text says what is right
        "log_probability": REAL,  # of the whole answer and its end, nats
        "mean_log_probability": REAL,  # the same per character
        "entropy": REAL,  # of the next character, mean over the answer, nats
        "margin": REAL,  # the smallest lead over the second choice, nats
        "known_place": pl.Boolean,  # whether the answer is a place of the fine-tuning text
        "place_count": WHOLE,  # how often the answer is one in the fine-tuning text
        "nearest": TEXT,  # the name of the fine-tuning text that is most alike
        "nearest_place": TEXT,  # that name's place
    },
    "controls": {
        "source": TEXT,  # its key
        "claim": TEXT,  # such as A-1
        "part": TEXT,  # of the claim
        "control": TEXT,  # control, bounded, site, bounded+site: the variant that the attack is compared with
        "effect": REAL,  # of the attack, as the claim's part has it
        "control_effect": REAL,  # the same of the control
        "difference": REAL,  # effect less that of the control, paired by seed
        "low": REAL,  # of the 95 % interval of the difference
        "high": REAL,  # of the 95 % interval of the difference
        "n": WHOLE,  # seeds
        "reading": TEXT,  # survives, does not survive, undecided
    },
    "translations": {
        "run": TEXT,  # translation/SEED
        "pair": WHOLE,  # from 1, in the order of the text
        "source": TEXT,  # the sentence
        "target": TEXT,  # as the text has it
        "made": TEXT,  # the model's translation
    },
    "claims": {
        "source": TEXT,  # its key
        "claim": TEXT,  # such as F-1
        "part": TEXT,  # None in the row of the whole claim
        "sentence": TEXT,  # what is claimed
        "effect": REAL,  # measured; of a whole claim that of the part nearest its threshold
        "low": REAL,  # of the 95 % interval
        "high": REAL,  # of the 95 % interval
        "low_family": REAL,  # of the interval at the level of the source's family of claims
        "high_family": REAL,  # of the same
        "margin": REAL,  # fixed before the data
        "bound": REAL,  # the margin with its sign: the line that the effect is claimed to be above or below of
        "direction": TEXT,  # above, below, within
        "unit": TEXT,  # of effect and margin
        "margin_reason": TEXT,  # why this margin
        "decides": pl.Boolean,  # false where a part is shown and does not enter the verdict
        "p": REAL,  # two-sided, uncorrected
        "p_holm": REAL,  # after Holm over the source's claims; null of a part
        "n": WHOLE,  # units: seeds, texts, heads or models
        "verdict": TEXT,  # supported, refuted, inconclusive, not tested
        "reason": TEXT,  # why it is inconclusive or cannot be tested, else None
        "spread": REAL,  # standard deviation over units
        "seeds_needed": WHOLE,  # units that would decide at this spread
        "effect_best_valid": REAL,  # the effect at the epoch of the best validation loss
        "effect_matched_train": REAL,  # the effect at matched train loss
        "early_stopping": pl.Boolean,  # whether an earlier reading lies on the bound's other side
        "above_unigram": REAL,  # of a learned fraction: the same, counted from the unigram loss
        "diverged": WHOLE,  # runs of it that diverged
        "runs": TEXT,  # those that the verdict rests on
        "revision": WHOLE,  # of the rules
        "collapsed": WHOLE,  # runs of it whose attack stopped all learning
        "over": TEXT,  # what n counts where it is not the source's own unit: model
    },
}

ROW = ("stack", "layer", "head", "component", "measure", "group", "at")  # what names a number of the table `measures`

# columns that tables of earlier versions lack
LATER = {
    "runs": ("variant", "revision"),
    "sites": ("label",),
    "claims": ("revision", "collapsed", "over"),
}
LATER_TABLES = ("controls",)  # tables that studies of earlier versions lack
# what a study holds; pretrained models have rows of "measures"
STUDY_TABLES = tuple(name for name in SCHEMAS if name not in ("measures", "answers", "translations"))


def frame(name: str, rows: Iterable[TableRow | Mapping[str, object]]) -> pl.DataFrame:
    """Rows as the table of that name: its columns and no others, sorted so that the order of work leaves no trace."""
    schema = SCHEMAS[name]
    rows = list(rows)
    unknown = {key for row in rows for key in row} - set(schema)
    assert not unknown, f"columns not in {name}: {unknown}"
    table = pl.DataFrame([{c: row.get(c) for c in schema} for row in rows], schema=schema, orient="row")
    return table if name.startswith("claims") else table.sort(list(schema), nulls_last=True)


def write_table(folder: Path, name: str, table: pl.DataFrame, run: str = "") -> Path:
    """Write `folder/NAME.parquet` whole or not at all, in its metadata a checksum of its bytes with zeros in its place.

    `run` are the 32 hex digits of the run that the table belongs to, which stand there too.
    """
    path = inside(folder, f"{name}.parquet")
    stream = io.BytesIO()
    table.write_parquet(stream, metadata={"trisect": UNSIGNED.decode() + (f" trisect-run:{run}" if run else "")})
    content = stream.getvalue()
    assert content.count(UNSIGNED) == 1
    signed = content.replace(UNSIGNED, UNSIGNED[:-32] + digest(content).encode())
    replace_file(path, lambda scratch: scratch.write_bytes(signed))
    return path


def run_of_table(content: bytes) -> str | None:
    """The run that a table's bytes say to belong to; None where they say nothing."""
    return mark[1].decode() if (mark := RUN.search(content)) else None


def read_table(folder: Path, name: str, again: str = "") -> pl.DataFrame:
    """Read `folder/NAME.parquet`; raises DamagedFileError when it is missing, damaged or has other columns.

    `again` says what to do then; a study's tables are made again from its runs.

    A table of an earlier version carries no checksum and is taken as it is; columns that came later are None in it, and
    a table that came later is empty. One of several models has a column `model` before its own.
    """
    path = folder / f"{name}.parquet"
    if name in LATER_TABLES and folder.is_dir() and not path.exists():
        return frame(name, ())
    schema = SCHEMAS.get(name)  # None: a table that one experiment alone has
    todo = again or f"Delete {path} and call 'trisect report' on the study: tables are made again from its runs."
    try:
        content = path.read_bytes()
        if (mark := SIGNED.search(content)) and digest(SIGNED.sub(UNSIGNED, content)).encode() != mark[1]:
            raise ValueError("its content does not match its checksum")
        table = pl.read_parquet(io.BytesIO(content))
    except (Exception, pl.exceptions.PanicException) as error:
        check_access(path, error)
        raise DamagedFileError(f"The table {path} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if schema is None:
        return table
    schema = {"model": TEXT, **schema} if "model" in table.columns else schema
    later = {column: kind for column, kind in schema.items() if column in LATER.get(name, ())}
    table = table.with_columns(pl.lit(None, kind).alias(c) for c, kind in later.items() if c not in table.columns)
    table = table.select(list(schema)) if set(table.columns) == set(schema) else table
    if dict(table.schema) != dict(pl.Schema(schema)):
        raise DamagedFileError(
            f"The table {path} has other columns than '{name}'.", f"It has {', '.join(table.columns)}.", todo
        )
    return table
