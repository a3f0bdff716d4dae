"""Parquet tables: their columns, written atomically with a checksum over their bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeAlias

import polars as pl

from trisect.core.errors import DamagedFileError, check_access
from trisect.core.files import digest, replace_file, safe_join

TEXT, REAL, INTEGER = pl.String, pl.Float64, pl.Int64
EMPTY_CHECKSUM = b"trisect-checksum:" + b"0" * 32  # Parquet has no checksum of its own that polars writes or reads
CHECKSUM_PATTERN = re.compile(rb"trisect-checksum:([0-9a-f]{32})")
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
        "seed": INTEGER,  # of weights, batches and dropout
        "epochs": INTEGER,  # that it was to be trained for
        "status": TEXT,  # finished, diverged
        "diverged_step": INTEGER,  # None where it finished
        "parameters": INTEGER,  # that it trains: what is tied counts once, what is frozen never
        "corpus": TEXT,  # the text's name and fingerprint
        "device": TEXT,  # cpu or cuda
        "wall_seconds": REAL,  # of its training
        "versions": TEXT,  # of the packages that trained it, as JSON
        "claims_hash": TEXT,  # of the claims that were listed before it
        "revision": INTEGER,  # of the rules that were in force when it was trained
    },
    "metrics": {
        "run": TEXT,  # its id
        "epoch": INTEGER,  # 0 is before training
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
        "n": INTEGER,  # how many tokens, texts or pairs the value is of
    },
    "measures": {
        "subject": TEXT,  # a model's name
        "stack": TEXT,  # plain, enc, dec, cross
        "layer": INTEGER,  # None: of the whole model
        "head": INTEGER,  # None: of the whole layer
        "component": TEXT,  # q, k, v, a pair such as q-k, or None
        "measure": TEXT,  # such as cv_a or overlap
        "group": TEXT,  # a category of tokens, a kind of edit, or None
        "at": REAL,  # α, an epoch or a checkpoint, or None
        "value": REAL,  # in the measure's unit
        "low": REAL,  # of the 95 % interval
        "high": REAL,  # of the 95 % interval
        "n": INTEGER,  # how many units the value is of
    },
    "answers": {
        "model": TEXT,  # plain, pretrained, left-out
        "seed": INTEGER,  # of the model
        "name": TEXT,  # whom the question is about
        "split": TEXT,  # train, valid, test, invented
        "category": TEXT,  # where the name occurred: pretraining and fine-tuning, pretraining only, …, neither
        "question": TEXT,  # as the model was asked
        "gold": TEXT,  # the right answer
        "answer": TEXT,  # the model's own
        "correct": pl.Boolean,  # None where no text says what is right
        "log_probability": REAL,  # of the whole answer and its end, nats
        "mean_log_probability": REAL,  # the same per character
        "entropy": REAL,  # of the next character, mean over the answer, nats
        "margin": REAL,  # the smallest lead over the second choice, nats
        "known_place": pl.Boolean,  # whether the answer is a place of the fine-tuning text
        "place_count": INTEGER,  # how often the answer is one in the fine-tuning text
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
        "n": INTEGER,  # seeds
        "reading": TEXT,  # survives, does not survive, undecided
    },
    "translations": {
        "run": TEXT,  # translation/SEED
        "pair": INTEGER,  # from 1, in the order of the text
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
        "n": INTEGER,  # units: seeds, texts, heads or models
        "verdict": TEXT,  # supported, refuted, inconclusive, not tested
        "reason": TEXT,  # why it is inconclusive or cannot be tested, else None
        "spread": REAL,  # standard deviation over units
        "seeds_needed": INTEGER,  # units that would decide at this spread
        "effect_best_valid": REAL,  # the effect at the epoch of the best validation loss
        "effect_matched_train": REAL,  # the effect at matched train loss
        "early_stopping": pl.Boolean,  # whether an earlier reading lies on the bound's other side
        "above_unigram": REAL,  # of a learned fraction: the same, counted from the unigram loss
        "diverged": INTEGER,  # runs of it that diverged
        "runs": TEXT,  # those that the verdict rests on
        "revision": INTEGER,  # of the rules
        "collapsed": INTEGER,  # runs of it whose attack stopped all learning
        "over": TEXT,  # what n counts where it is not the source's own unit: model
    },
}


class MeasureName(StrEnum):
    """The name of a measure in the columns `measure` or `name`: a string with unit, meaning and equation.

    Any may carry an ending: `_low`, `_high` (95 % interval), `_p` (one test), `_p_holm` (after Holm over its family), `_z`
    (standard deviations from its null), `_null` (mean of the null), `_sd` (over models).
    """

    unit: str
    meaning: str
    equation: str

    def __new__(cls, name: str, unit: str, meaning: str, equation: str = "") -> Self:
        """Make a member from its line."""
        member = str.__new__(cls, name)
        member._value_, member.unit, member.meaning, member.equation = name, unit, meaning, equation
        return member

    # study, rewind
    LOSS_NATS = "loss_nats", "nats", "loss at an epoch, per token", "−mean log p(next word)"
    ACCURACY = (
        "accuracy",
        "share",
        "tokens whose likeliest next word is right (metrics); answers that are right (recall)",
    )
    SMOOTHED_LOSS_NATS = "smoothed_loss_nats", "nats", "loss with label smoothing, of translators"
    ADVERSARY_LOSS_NATS = "adversary_loss_nats", "nats", "loss of the adversary on its label"
    ADVERSARY_ACCURACY = "adversary_accuracy", "share", "labels that the adversary predicts"
    UNIGRAM_LOSS_NATS = "unigram_loss_nats", "nats", "loss of word frequencies on validation", "−mean log f(word)"
    SELF_ONLY_LOSS_NATS = (
        "self_only_loss_nats",
        "nats",
        "loss where each token attends to itself alone (A2)",
        "L(a = I)",
    )
    REWIND_LOSS_NATS = (
        "rewind_loss_nats",
        "nats",
        "loss with a site's weights at θ(α) (A5)",
        "L(θ(α)), θ(α) = (1 − α) θ⁰ + α θᶠ",
    )
    REWIND_ACCURACY = "rewind_accuracy", "share", "accuracy with a site's weights at θ(α)"
    REWIND_RISE = "rewind_rise", "nats, or share of the output", "rise at α", "L(θ(α)) − L(θᶠ)"
    REWIND_AREA = "rewind_area", "as the rise", "mean of the rise over α", "mean_α L(θ(α)) − L(θᶠ)"
    CRITICALITY = (
        "criticality",
        "α",
        "least α from which on the rise stays below 1 %",
        "min α: L(θ(α′)) < 1.01 L(θᶠ) for all α′ ≥ α",
    )
    CRITICALITY_FIRST = "criticality_first", "α", "the other reading of it", "min α: L(θ(α)) < 1.01 L(θᶠ)"
    REWIND_CHECK_NATS = "rewind_check_nats", "nats", "largest gap between the last two interpolants of the rise"
    REWIND_NODES = "rewind_nodes", "count", "nodes of the interpolant"
    REWIND_EVALUATIONS = "rewind_evaluations", "count", "values of α at which the loss was computed"
    MIDSTAGE_LOSS_NATS = "midstage_loss_nats", "nats", "loss with a site's weights of epoch `at` (A6)", "L(θᵉ)"
    MIDSTAGE_ACCURACY = "midstage_accuracy", "share", "accuracy with them"
    MIDSTAGE_RISE = "midstage_rise", "nats", "rise with them", "L(θᵉ) − L(θᶠ)"
    MIDSTAGE_AREA = "midstage_area", "nats", "mean of that rise over epochs"
    ABLATE_RISE_NATS = "ablate_rise_nats", "nats", "rise with a site's mean in its place", "L(x̄) − L(x)"
    ERASE_RISE_NATS = "erase_rise_nats", "nats", "rise with a label erased by LEACE", "L(r(x)) − L(x)"
    ERASE_RANDOM_RISE_NATS = "erase_random_rise_nats", "nats", "the same of random subspaces of that rank, mean"
    ERASE_EXCESS_NATS = "erase_excess_nats", "nats", "what the label costs beyond its rank", "erase rise − random rise"
    ERASE_RANK = "erase_rank", "count", "rank of what is erased"
    ERASE_EXPLAINED = "erase_explained", "share", "variance of the site in what is erased"
    ERASE_ARTICLES = "erase_articles", "count", "articles that are resampled"
    PROBE_LINEAR_ACCURACY = "probe_linear_accuracy", "share", "accuracy of a linear probe on held-out articles"
    PROBE_LINEAR_BITS = "probe_linear_bits", "bits", "V-information of the label in the site", "H(y) − H(y | x)"
    PROBE_LINEAR_CONTROL_BITS = "probe_linear_control_bits", "bits", "the same of control labels"
    PROBE_LINEAR_SELECTIVITY = "probe_linear_selectivity", "bits", "beyond control labels", "bits − control bits"
    PROBE_MAJORITY = "probe_majority", "share", "the commonest class"
    PROBE_ARTICLES = "probe_articles", "count", "articles that are resampled"
    INTERCHANGE_OWN = "interchange_own", "share of pairs", "answers that the patched component predicts (F1)"
    INTERCHANGE_AS_Q = "interchange_as_q", "share of pairs", "answers that q predicts"
    INTERCHANGE_AS_K = "interchange_as_k", "share of pairs", "answers that k predicts"
    INTERCHANGE_AS_V = "interchange_as_v", "share of pairs", "answers that v predicts"
    INTERCHANGE_OTHERS = "interchange_others", "share of pairs", "answers that the two others predict"
    INTERCHANGE_UNCHANGED = "interchange_unchanged", "share of pairs", "answers of the base"
    INTERCHANGE_RISE_NATS = (
        "interchange_rise_nats",
        "nats",
        "rise of the loss of the base's answer",
        "L(patched) − L(base)",
    )
    AUROC = (
        "auroc",
        "share",
        "how well a method, or a score, separates: one measure each, such as `auroc_interchange` (F2)",
        "P(s⁺ > s⁻) + P(s⁺ = s⁻) / 2",
    )
    # norms (Kobayashi et al. 2020, 2021, 2024)
    CV_X = "cv_x", "ratio", "variation over tokens of ‖x‖ (C1)", "sd ‖x‖ / mean ‖x‖"
    CV_F = "cv_f", "ratio", "… of ‖f(x)‖", "f_h(x) = (x W_V + b_V) W_O"
    CV_A = "cv_a", "ratio", "… of the weight a"
    CV_AF = "cv_af", "ratio", "… of a ‖f(x)‖"
    DISPERSION = "dispersion", "ratio", "the four of them, as a finding"
    MEAN_A = "mean_a", "share", "mean weight of a category's tokens"
    MEAN_F = "mean_f", "norm", "mean ‖f(x)‖ of a category's tokens"
    WEIGHT_SHARE = "weight_share", "share", "a category's share of the weight (C2)", "Σ_i Σ_{j ∈ C} a_ij / Σ_i Σ_j a_ij"
    NORM_SHARE = (
        "norm_share",
        "share",
        "a category's share by norm",
        "Σ_i Σ_{j ∈ C} a_ij ‖f(x_j)‖ / Σ_i Σ_j a_ij ‖f(x_j)‖",
    )
    BLOCK_SHARE = "block_share", "share", "the same through the residual connection and the norm around attention"
    NORM_HEADS_SHARE = "norm_heads_share", "share", "by norm, head by head"
    WEIGHT_SUM = "weight_sum", "share", "a category's weight, mean over queries", "Σ_{j ∈ C} a_ij"
    NORM_SUM = "norm_sum", "norm", "the same by norm", "Σ_{j ∈ C} a_ij ‖f(x_j)‖"
    BLOCK_SUM = "block_sum", "norm", "the same through the residual connection and the norm around attention"
    CONTRIBUTION_SHARE = (
        "contribution_share",
        "share",
        "a category's contribution weights",
        "Σ_{j ∈ C} a_ij f(x_j)·o_i / ‖o_i‖²",
    )
    SINK_TEXTS = "sink_texts", "share of texts", "in which a token gets more than 0.3 of a head's weight: a sink"
    SINK_WEIGHT = "sink_weight", "share", "of a head's weight that sinks get"
    SINK_CONTRIBUTION = "sink_contribution", "share", "of a head's output that sinks contribute"
    SINK_NORM = "sink_norm", "ratio", "mean ‖f(x)‖ of sinks over that of other tokens"
    SINK_SHARE = "sink_share", "share", "of sinks that are of a category"
    DORMANT_TEXTS = "dormant_texts", "share of texts", "in which a head's mean ‖o‖ is below a quarter of its layer's"
    WITHOUT_SINKS = (
        "without_sinks",
        "nats",
        "change of the loss when sinks, or as many other tokens, are given no weight",
    )
    ROLLOUT_GRADIENT = "rollout_gradient", "ρ", "of a rollout over all layers and gradient × input, within a text"
    SPEARMAN_A_F = "spearman_a_f", "ρ", "of a and ‖f(x)‖ within a category (C3)"
    SPEARMAN_A_F_LAYERS = "spearman_a_f_layers", "ρ", "of their means over layers"
    SPEARMAN_RANK_F = (
        "spearman_rank_f",
        "ρ",
        "of frequency rank and ‖f(x)‖; `_words`: without special tokens; `_within`: ranks within the text (C4)",
    )
    SPEARMAN_RANK_A = "spearman_rank_a", "ρ", "of frequency rank and a"
    MIXING_RATIO = "mixing_ratio", "share", "of a position what comes from others", "‖context‖ / (‖context‖ + ‖own‖)"
    MEAN_MIXING_RATIO = "mean_mixing_ratio", "share", "its mean over layers"
    EXPANSION_RATE = (
        "expansion_rate",
        "ratio",
        "length of attention's map for x of unit variance",
        "√(E ‖Σ_h f_h(x) + b_O‖² / E ‖(x, 1)‖²)",
    )
    # ablate, quantise, erase
    LOSS_CHANGE_NATS = "loss_change_nats", "nats", "loss with the edit less without", "L(edited) − L"
    OUTPUT_CHANGE = "output_change", "share", "change of the output of a model without loss", "‖y′ − y‖² / ‖y‖²"
    UNEDITED = "unedited", "nats", "the loss without an edit"
    MEAN_CHANGE = "mean_change", "as the change", "mean over layers of a component"
    LARGEST_CHANGE = "largest_change", "as the change", "largest over layers"
    K_LESS_V_NATS = "k_less_v_nats", "nats", "what reducing k costs more than v", "ΔL(k) − ΔL(v)"
    K_LESS_V_SHARE = "k_less_v_share", "share", "the same of the output"
    PLAN_BITS = "plan_bits", "bits", "of a number of k or v in a layer, as planned"
    UNIFORM_BITS = "uniform_bits", "bits", "the same bits everywhere, or two neighbouring whole numbers in turn"
    PLAN_MEMORY = "plan_memory", "bits", "mean over all numbers of k and v", "Σ bits · numbers / Σ numbers"
    UNIFORM_MEMORY = "uniform_memory", "bits", "mean over all numbers of k and v with even bits"
    PLAN_CHANGE_NATS = "plan_change_nats", "nats", "held-out loss with the plan, less without", "L(plan) − L"
    PLAN_CHANGE_SHARE = "plan_change_share", "share", "the same of the output"
    UNIFORM_CHANGE_NATS = "uniform_change_nats", "nats", "with even bits"
    UNIFORM_CHANGE_SHARE = "uniform_change_share", "share", "the same of the output"
    PLAN_LESS_UNIFORM_CHANGE_NATS = "plan_less_uniform_change_nats", "nats", "the difference of both"
    PLAN_LESS_UNIFORM_CHANGE_SHARE = "plan_less_uniform_change_share", "share", "the same of the output"
    TOLERANCE = "tolerance", "nats or share", "the change that counts as small"
    # patch
    ANSWERED = "answered", "share of pairs", "answers of the unpatched model that are as stated"
    OWN = "own", "share of pairs", "answers that the patched component predicts (F1)"
    AS_Q = "as q", "share of pairs", "answers that q predicts, where another is patched"
    AS_K = "as k", "share of pairs", "… that k predicts"
    AS_V = "as v", "share of pairs", "… that v predicts"
    DONOR = "donor", "share of pairs", "answers of the donor"
    UNCHANGED = "unchanged", "share of pairs", "answers of the base"
    LOGIT_CHANGE = (
        "logit_change",
        "share of the way",
        "0: the patched text, 1: the other",
        "Σ (d − d_patched) / Σ (d − d_other), d a logit difference",
    )
    ATTRIBUTION_CORRELATION = (
        "attribution_correlation",
        "ρ",
        "by gradient: ranks of estimates and exact effects of the largest twenty (AtP*)",
    )
    GRADIENT_CORRELATION = "gradient_correlation", "ρ", "the same without the correction for q and k"
    PATH_EFFECT_NATS = "path_effect_nats", "nats", "largest effect of a path (compose)"
    # profile (F3)
    PROFILE_ACCURACY = "profile_accuracy", "share", "accuracy of a probe of q, k or v of a head"
    PROFILE_BITS = "profile_bits", "bits", "V-information of the label there", "H(y) − H(y | x)"
    PROFILE_RANDOM = "profile_random", "share", "accuracy in random maps of the same input"
    PROFILE_RANDOM_BITS = "profile_random_bits", "bits", "V-information in random maps"
    PROFILE_GAIN = "profile_gain", "share", "beyond random maps", "accuracy − random"
    PROFILE = "profile", "share", "the same as a finding"
    PROFILE_DIFFERENCE = "profile_difference", "share", "between the gains of two components"
    PROFILE_MAJORITY = "profile_majority", "share", "the commonest class"
    PROFILE_AMONG = "profile_among", "share", "heads of the layer that are below a head"
    # similarity (D1, D3)
    OVERLAP = "overlap", "share", "of the row spaces of two matrices", "mean cos² of principal angles"
    LEAST_ANGLE_DEGREES = "least_angle_degrees", "degrees", "the least of these angles"
    SYMMETRIC_SHARE = (
        "symmetric_share",
        "share",
        "of S, the symmetric part of M = W_Q W_Kᵀ = S + A",
        "‖S‖² / (‖S‖² + ‖A‖²)",
    )
    COSINE = "cosine", "−1 to 1", "of flattened matrices; depends on the basis", "⟨W, W′⟩ / ‖W‖ ‖W′‖"
    EFFECTIVE_RANK = "effective_rank", "dimensions", "of a matrix", "exp(−Σ p log p), p = σ / Σ σ"
    CKA = "cka", "share", "linear CKA of two representations over tokens", "‖XᵀY‖² / ‖XᵀX‖ ‖YᵀY‖"
    # align (C5)
    AER = "aer", "share", "alignment error rate of links A, sure S, possible P", "1 − (|A∩S| + |A∩P|) / (|A| + |S|)"
    PRECISION = "precision", "share", "links that are possible", "|A∩P| / |A|"
    RECALL = "recall", "share", "sure links that are predicted", "|A∩S| / |S|"
    AER_DIFFERENCE = "aer_difference", "share", "by norm less by weight"
    AER_BEST = "aer_best", "share", "in the layer that other pairs chose"
    AER_BEST_DIFFERENCE = "aer_best_difference", "share", "by norm less by weight there"
    AER_HEAD = "aer_head", "share", "within one text, of the head that the other half of the texts chooses"
    PRECISION_HEAD = "precision_head", "share", "its precision"
    RECALL_HEAD = "recall_head", "share", "its recall"
    AER_BY_LENGTH = "aer_by_length", "share", "by the length of the sentence"
    LINKED = "linked", "share of target words", "with a link"
    AGREEMENT = "agreement", "share of target words", "with the same link by weight and by norm"
    # recall (B2 to B4)
    MEAN_PROBABILITY = "mean_probability", "share", "of the answers of a group"
    ECE = "ece", "share", "expected calibration error over 15 bins", "Σ_b n_b / n |accuracy_b − confidence_b|"
    PROBABILITY_EXCESS = "probability_excess", "share", "mean probability less accuracy"
    RELIABILITY = "reliability", "share", "accuracy in a bin"
    RISK = "risk", "share", "wrong answers among those given at a coverage"
    AURC = "aurc", "share", "area under that curve", "∫₀¹ risk d coverage"
    THRESHOLD = "threshold", "probability", "least probability that keeps a stated risk"
    THRESHOLD_COVERAGE = "threshold_coverage", "share", "answers above it"
    MATCH = "match", "share", "answers that are the nearest name's place"
    MATCH_EXPECTED = "match_expected", "share", "the same under random pairings"
    MATCH_EXCESS = "match_excess", "share", "beyond random pairings", "match − expected"
    MATCH_P = "match_p", "p", "by permutation"
    SURVIVAL = "survival", "share", "answers that stay with the mean of q, k or v in its place"
    SURVIVAL_ZERO = "survival_zero", "share", "the same with 0"
    # lookup (Olsson et al. 2022), by checkpoint
    TEXT_NATS = "text_nats", "nats a piece", "loss on the text"
    FIRST_NATS = "first_nats", "nats a piece", "loss on random pieces"
    SECOND_NATS = "second_nats", "nats a piece", "loss on the same when they come again"
    INDUCTION = (
        "induction",
        "share",
        "weight of a head on the piece after the earlier copy",
        "mean a(i, j + 1), x_j = x_i",
    )
    PREVIOUS = "previous", "share", "weight of a head on the piece before", "mean a(i, i − 1)"


ROW = ("stack", "layer", "head", "component", "measure", "group", "at")  # what names a number of the table `measures`

# what a study holds; pretrained models have rows of "measures"
STUDY_TABLES = tuple(name for name in SCHEMAS if name not in ("measures", "answers", "translations"))


def frame(name: str, rows: Iterable[TableRow | Mapping[str, object]]) -> pl.DataFrame:
    """Rows as the table of that name, with its columns and sorted, so that the order of work does not matter."""
    schema = SCHEMAS[name]
    rows = list(rows)
    unknown = {key for row in rows for key in row} - set(schema)
    assert not unknown, f"columns not in {name}: {unknown}"
    table = pl.DataFrame([{c: row.get(c) for c in schema} for row in rows], schema=schema, orient="row")
    return table if name.startswith("claims") else table.sort(list(schema), nulls_last=True)


def write_table(folder: Path, name: str, table: pl.DataFrame, run: str = "") -> Path:
    """Write `folder/NAME.parquet` atomically, with a checksum of its bytes (with zeros in its place) in its metadata.

    `run` are the 32 hex digits of the run that the table belongs to, which stand there too.
    """
    path = safe_join(folder, f"{name}.parquet")
    stream = io.BytesIO()
    table.write_parquet(stream, metadata={"trisect": EMPTY_CHECKSUM.decode() + (f" trisect-run:{run}" if run else "")})
    content = stream.getvalue()
    assert content.count(EMPTY_CHECKSUM) == 1
    signed = content.replace(EMPTY_CHECKSUM, EMPTY_CHECKSUM[:-32] + digest(content).encode())
    replace_file(path, lambda scratch: scratch.write_bytes(signed))
    return path


def run_of_table(content: bytes) -> str | None:
    """The run in a table's metadata; None if there is none."""
    return mark[1].decode() if (mark := RUN.search(content)) else None


def read_table(folder: Path, name: str, again: str = "") -> pl.DataFrame:
    """Read `folder/NAME.parquet`; raises DamagedFileError if it is missing, damaged or has other columns.

    `again` says what to do then; a study's tables are made again from its runs.

    One of several models has a column `model` before its own.
    """
    path = folder / f"{name}.parquet"
    schema = SCHEMAS.get(name)  # None: a table that one experiment alone has
    todo = again or f"Delete {path} and call 'trisect report' on the study: tables are made again from its runs."
    try:
        content = path.read_bytes()
        mark = CHECKSUM_PATTERN.search(content)
        if mark is None or digest(CHECKSUM_PATTERN.sub(EMPTY_CHECKSUM, content)).encode() != mark[1]:
            raise ValueError("its content does not match its checksum")
        table = pl.read_parquet(io.BytesIO(content))
    except (Exception, pl.exceptions.PanicException) as error:
        check_access(path, error)
        raise DamagedFileError(f"The table {path} cannot be read.", f"{type(error).__name__}: {error}", todo) from error
    if schema is None:
        return table
    schema = {"model": TEXT, **schema} if "model" in table.columns else schema
    if dict(table.schema) != dict(pl.Schema(schema)):
        raise DamagedFileError(
            f"The table {path} has other columns than '{name}'.", f"It has {', '.join(table.columns)}.", todo
        )
    return table
