"""The largest numbers that settings take, and the limits of files that are read whole: each above what any study here could use."""

from __future__ import annotations

from collections.abc import Mapping

WHOLE = 10**9  # of any whole number that says nothing else of itself
SEED = 2**63 - 1  # of a study's seed, as PyTorch takes one
NAME = 200  # characters of a design's name, which its folder has
RUNS = 20_000  # of one study: more are several
FLEET = 1_024  # runs that are trained side by side in one job, and jobs that share a GPU
MODEL: Mapping[str, int] = {"width": 65_536, "layers": 1_000, "heads": 1_024, "feedforward": 262_144}
TRAINING: Mapping[str, int] = {"epochs": 100_000, "columns": 100_000, "eval_columns": 100_000, "window": 100_000}
POINTS = 10_001  # of a rewinding's curve
DRAWS = 10_000_000  # random matrices of a null
RESAMPLES = 1_000_000  # draws of a bootstrap, random subspaces, maps
JSON_BYTES = 16_000_000  # of a statement that a person writes
LINE_BYTES = 10_000_000  # of one line of pairs, links, questions or sentences
TEXT_LINE_BYTES = 250_000_000  # of one line of a corpus, which is read in pieces: some are all one line
