"""Figures of comparisons with a few runs: aggregates over tasks, with bounds that say how few the runs are.

Scores are a list over tasks of arrays (runs of that task,): tasks may have different numbers of runs. Every bootstrap
is stratified: runs are drawn anew within their task, so that no resample lacks one. The aggregates are those of Agarwal
et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021). Safety has its own
(`risk_over_runs`): runs are drawn first and then episodes of each, since episodes of one policy say nothing about the
next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from tailsafe.errors import InputError
from tailsafe.risk import SpectralRisk
from tailsafe.risk.bootstrap import resampled_risks

Floats = NDArray[np.float64]
# One array (runs,) per task; resamples have a leading axis: (resamples, runs).
Scores = Sequence[Floats]
Statistic = Callable[[Scores], Floats]
CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A figure and its bounds at the confidence that was asked for."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


# --- aggregates -------------------------------------------------------------------------------------------------------


def interquartile_mean(scores: Scores) -> Floats:
    """Mean of all scores without the lowest and the highest quarter (rounded down to whole runs), shape (...)."""
    ordered = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(-1))


def performance_profile(scores: Scores, thresholds: ArrayLike) -> Floats:
    """The share of all runs whose score is above each threshold (T,); shape (..., T)."""
    joined, above = np.concatenate(scores, axis=-1), np.asarray(thresholds, np.float64)
    return np.asarray(np.stack([(joined > threshold).mean(-1) for threshold in above], axis=-1))


def probability_of_improvement(first: Scores, second: Scores) -> Floats:
    """How likely a run of the first scores more than one of the second on the same task, averaged over tasks.

    Equal scores count half (Mann and Whitney's U over the number of pairs). Shape (...).
    """
    if len(first) != len(second):
        raise InputError(f"{len(first)} and {len(second)} tasks: both must have scores of the same tasks")
    shares = []
    for x, y in zip(first, second, strict=True):
        difference = x[..., :, None] - y[..., None, :]
        shares.append(((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1)))
    return np.asarray(np.mean(shares, axis=0))


# --- the stratified bootstrap -----------------------------------------------------------------------------------------


def estimate(
    statistic: Statistic,
    scores: Scores,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A statistic of scores with the percentile bounds of the stratified bootstrap."""
    own = _checked(scores, confidence)
    drawn = statistic(resampled(own, resamples, np.random.default_rng(seed)))
    return _bounded(float(statistic(own)), drawn, confidence)


def profile(
    scores: Scores,
    thresholds: ArrayLike,
    confidence: float = CONFIDENCE,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Estimate]:
    """The performance profile with bounds for each threshold by itself."""
    own = _checked(scores, confidence)
    shares = performance_profile(own, thresholds)
    drawn = performance_profile(resampled(own, resamples, np.random.default_rng(seed)), thresholds)
    return [_bounded(float(share), column, confidence) for share, column in zip(shares, drawn.T, strict=True)]


def improvement(
    first: Scores,
    second: Scores,
    confidence: float = CONFIDENCE,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """The probability of improvement with bounds; the runs of both are drawn anew, each by itself."""
    x, y = _checked(first, confidence), _checked(second, confidence)
    generator = np.random.default_rng(seed)
    drawn = probability_of_improvement(resampled(x, resamples, generator), resampled(y, resamples, generator))
    return _bounded(float(probability_of_improvement(x, y)), drawn, confidence)


def resampled(scores: Scores, resamples: int, generator: np.random.Generator) -> list[Floats]:
    """Per task (resamples, runs): its runs, drawn with replacement."""
    return [task[generator.integers(task.size, size=(resamples, task.size))] for task in scores]


# --- safety: runs, then episodes --------------------------------------------------------------------------------------


def risk_over_runs(
    measure: SpectralRisk,
    runs: Sequence[ArrayLike],
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """The mean over training runs of the risk of each run's policy, from episodes of every run.

    runs: per training run its samples (episodes,). Bounds by a bootstrap of two levels: runs are drawn with
    replacement, then episodes within every drawn run. The percentiles are taken further out than the confidence asks
    for, as Student's interval is wider than the normal one (Hesterberg's expanded percentile interval, 2015): plain
    percentiles of few runs are too narrow. Pooling the episodes instead would treat those of one policy as if they told
    about the others.
    """
    own = _checked(runs, confidence)
    generator = np.random.default_rng(seed)
    estimates = [float(measure.risk(samples)) for samples in own]
    within = np.stack([resampled_risks(measure, samples, resamples, generator) for samples in own])
    count = len(own)
    if count == 1:
        return _bounded(estimates[0], within[0], confidence)
    chosen = generator.integers(count, size=(resamples, count))
    # Another replicate for every draw, also where a run is drawn twice.
    replicate = generator.integers(resamples, size=(resamples, count))
    return _bounded(float(np.mean(estimates)), within[chosen, replicate].mean(1), expanded(confidence, count))


def expanded(confidence: float, count: int) -> float:
    """The confidence whose normal quantile is Student's one of `count` values, corrected for their mean square.

    sqrt(n / (n - 1)) t_(n-1): the bootstrap's own variance is that of n values about their mean, without the n - 1.
    """
    student = float(scipy.special.stdtrit(count - 1, (1 + confidence) / 2))
    return float(2 * scipy.special.ndtr(math.sqrt(count / (count - 1)) * student) - 1)


# --- a score that respects limits -------------------------------------------------------------------------------------


def limited_scores(rewards: ArrayLike, kept: ArrayLike, low: float, high: float) -> Floats:
    """Per run: its reward on a scale on which `low` is 0 and `high` is 1, and nothing unless it keeps every limit.

    rewards, kept: (runs,). Where the range is empty, a run that keeps the limits scores 1.
    """
    values, within = np.asarray(rewards, np.float64), np.asarray(kept, bool)
    if values.shape != within.shape:
        raise InputError(f"{values.size} rewards and {within.size} marks of kept limits: one each per run")
    share = (values - low) / (high - low) if high > low else np.ones_like(values)
    return np.where(within, np.clip(share, 0.0, 1.0), 0.0)


def _bounded(value: float, drawn: Floats, confidence: float) -> Estimate:
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(low), float(high))


def _checked(scores: Sequence[Any], confidence: float) -> list[Floats]:
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; it must be in (0, 1)")
    own = [np.asarray(task, np.float64).reshape(-1) for task in scores]
    if not own or not all(task.size for task in own):
        raise InputError("no scores: there must be at least one, and one of every task")
    if not all(np.isfinite(task).all() for task in own):
        raise InputError("scores must be finite numbers")
    return own
