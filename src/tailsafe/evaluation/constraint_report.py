"""One constraint of an evaluation: its risk with both intervals, and the verdict that is read from one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tailsafe.evaluation.bounds import Interval, largest_return
from tailsafe.evaluation.episodes import Episodes
from tailsafe.policies.described_constraint import ConstraintDescription
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.risk import SpectralRisk
from tailsafe.risk.bootstrap import bootstrap_interval
from tailsafe.risk.interval import risk_interval

Verdict = Literal["met", "met (bootstrap, no guarantee)", "violated", "cannot tell"]
# What the bootstrap may say at most: it is blind to what was not sampled.
BOOTSTRAP_MET: Verdict = "met (bootstrap, no guarantee)"
# Below this effective number of episodes in the tail, see `tail_episodes`, the bootstrap confirms nothing.
LEAST_TAIL = 50
IntervalName = Literal["distribution-free", "bootstrap"]
# The number of episodes that a verdict would need is looked for up to here.
_MOST_EPISODES = 200_000


@dataclass(frozen=True)
class ConstraintReport:
    """One constraint. risk and both intervals are in the unit of the limit as given; cost_rate is cost per step.

    decided_by: the interval behind the verdict. episodes_needed: about how many would let the distribution-free bound
    confirm a limit that the estimate keeps; None where it does, or where no number of them would. tail_episodes: see
    the function of this name.
    """

    description: ConstraintDescription
    risk: float
    free: Interval
    bootstrap: Interval
    cost_rate: float
    discounted_risk: float
    largest_return: float
    decided_by: IntervalName
    episodes_needed: int | None
    tail_episodes: float = math.inf

    @property
    def deciding(self) -> Interval:
        """The interval that the verdict is read from."""
        return self.free if self.decided_by == "distribution-free" else self.bootstrap

    @property
    def verdict(self) -> Verdict:
        found = verdict(self.deciding, self.description.limit)
        if found != "met" or self.decided_by == "distribution-free":
            return found
        return BOOTSTRAP_MET if self.tail_episodes >= LEAST_TAIL else "cannot tell"

    def to_json(self) -> dict[str, Any]:
        described = self.description
        return {
            "name": described.name,
            "risk_measure": described.risk_measure,
            "limit": described.limit,
            "unit": described.unit,
            "risk": self.risk,
            **self.deciding.to_json(),
            "cost_rate": self.cost_rate,
            "verdict": self.verdict,
            "interval": self.decided_by,
            "distribution_free": self.free.to_json(),
            "bootstrap": self.bootstrap.to_json(),
            "discounted_risk": self.discounted_risk,
            "discounted_limit": described.discounted_limit,
            "largest_return": self.largest_return if math.isfinite(self.largest_return) else None,
            "episodes_needed": self.episodes_needed,
            "tail_episodes": round(self.tail_episodes, 1) if math.isfinite(self.tail_episodes) else None,
        }


def constraint_report(
    description: PolicyDescription,
    index: int,
    episodes: Episodes,
    confidence: float,
    interval: IntervalName = "distribution-free",
    seed: int = 0,
) -> ConstraintReport:
    """The risk of one cost's discounted sum, in the unit of its limit, with both intervals."""
    constraint = description.constraints[index]
    samples = episodes.discounted_costs[:, index]
    measure = constraint.measure
    factor = description.unit_factor(constraint)
    largest = largest_return(description, index)
    # A cost above what was called the largest disproves the bound; without one nothing is said from above.
    upper = largest if math.isfinite(largest) and samples.max() <= largest else None
    estimate = float(measure.risk(samples))
    free = risk_interval(measure, samples, confidence, upper)
    resampled = bootstrap_interval(measure, samples, confidence, seed=seed)
    if samples.max() == samples.min():
        # Resamples of equal costs are equal: the bootstrap knows nothing of how far others could be.
        resampled = free
    return ConstraintReport(
        description=constraint,
        risk=estimate * factor,
        free=Interval(float(free.lower), float(free.upper)).scaled(factor),
        bootstrap=Interval(float(resampled.lower), float(resampled.upper)).scaled(factor),
        cost_rate=float(episodes.cost_rate[index]),
        discounted_risk=estimate,
        largest_return=math.inf if upper is None else upper,
        decided_by=interval,
        episodes_needed=episodes_needed(measure, samples, confidence, upper, constraint.discounted_limit),
        tail_episodes=tail_episodes(measure, samples.size),
    )


def tail_episodes(measure: SpectralRisk, episodes: int) -> float:
    """How many of n episodes the risk rests on: 1 / sum of squared weights of the ranks; n (1 - level) for CVaR."""
    weights = np.diff(measure.integral(np.arange(episodes + 1) / episodes))
    return float(1 / np.sum(weights**2))


def verdict(interval: Interval, limit: float) -> Verdict:
    """met: even the upper bound keeps the limit. violated: even the lower bound exceeds it."""
    if interval.high <= limit:
        return "met"
    return "violated" if interval.low > limit else "cannot tell"


def episodes_needed(
    measure: SpectralRisk, samples: NDArray[np.float64], confidence: float, upper: float | None, limit: float
) -> int | None:
    """About how many samples like these would put the distribution-free upper bound under the limit.

    None where these are enough, or where more of the same could not do it.
    """
    if upper is None or float(measure.risk(samples)) >= limit:
        return None
    copies = 1
    while copies * samples.size <= _MOST_EPISODES:
        if risk_interval(measure, np.repeat(samples, copies), confidence, upper).upper <= limit:
            return None if copies == 1 else copies * samples.size
        copies *= 2
    return None
