"""Means and their bounds, and the largest discounted sum that bounds on risks may rest on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from tailsafe.policies.described_constraint import discounted_length
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.risk import Mean
from tailsafe.risk.bootstrap import bootstrap_interval

# Costs come in single precision: a sum may exceed its bound by rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Interval:
    """Bounds that hold with the evaluation's confidence; inf where there is none."""

    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.high * factor)

    def to_json(self) -> dict[str, float | None]:
        return {"low": self.low, "high": self.high if math.isfinite(self.high) else None}


@dataclass(frozen=True)
class MeanReport:
    """A mean per episode. student: mean -+ t std / sqrt(n), reported as low and high; bootstrap: percentiles."""

    mean: float
    student: Interval
    bootstrap: Interval

    def to_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            **self.student.to_json(),
            "interval": "student",
            "bootstrap": self.bootstrap.to_json(),
        }


def student_interval(samples: NDArray[np.float64], confidence: float) -> Interval:
    """Bounds on the mean of n >= 2 samples: mean -+ t std / sqrt(n)."""
    mean, reach = float(samples.mean()), float(scipy.special.stdtrit(samples.size - 1, (1 + confidence) / 2))
    half = reach * float(samples.std(ddof=1)) / math.sqrt(samples.size)
    return Interval(mean - half, mean + half)


def mean_report(samples: NDArray[np.float64], confidence: float, seed: int) -> MeanReport:
    """Mean of samples (n,), n >= 2, with Student's and bootstrap bounds."""
    resampled = bootstrap_interval(Mean(), samples, confidence, seed=seed)
    return MeanReport(
        float(samples.mean()),
        student_interval(samples, confidence),
        Interval(float(resampled.lower), float(resampled.upper)),
    )


def largest_return(description: PolicyDescription, index: int) -> float:
    """The largest discounted sum of a cost in an episode, a little widened for rounding; inf where unknown.

    From what the environment says about its costs alone: where it says nothing, the learner's own `largest_return` is
    a cap for its critics, which no bound may rest on.
    """
    cost = description.task.largest_costs[index]
    if not math.isfinite(cost):
        return math.inf
    largest = cost * discounted_length(description.gamma, description.task.episode_length)
    return largest * (1 + _ROUNDING) + _ROUNDING
