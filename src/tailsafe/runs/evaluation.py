"""How good and how safe a policy is: fresh episodes, every figure with its confidence bounds, a verdict per constraint.

Two intervals are given for every risk. The distribution-free one holds for any distribution of the costs and decides
the verdict by default; the bootstrap one is narrower, has no guarantee, and is blind to what was not sampled. Every
interval holds with the confidence asked for by itself, not all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.special
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.files import write_json
from tailsafe.risk import Mean, SpectralRisk
from tailsafe.risk.bootstrap import bootstrap_interval
from tailsafe.risk.interval import risk_interval
from tailsafe.runs.description import ConstraintDescription, PolicyDescription, discounted_length
from tailsafe.runs.episodes import TABLE_NAME, Episodes, Progress, play
from tailsafe.runs.exact import ExactEvaluation, evaluate_on_problem
from tailsafe.runs.policy import LoadedPolicy, load_policy
from tailsafe.runs.stage import open_stage

Verdict = Literal["met", "violated", "cannot tell"]
IntervalName = Literal["distribution-free", "bootstrap"]
FILE_NAME = "evaluation.json"
# Costs come in single precision: a sum may exceed its bound by rounding.
_ROUNDING = 1e-6
# The number of episodes that a verdict would need is looked for up to here.
_MOST_EPISODES = 200_000


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


@dataclass(frozen=True)
class ConstraintReport:
    """One constraint. risk and both intervals are in the unit of the limit as given; cost_rate is cost per step.

    decided_by: the interval behind the verdict. episodes_needed: about how many would let the distribution-free bound
    confirm a limit that the estimate keeps; None where it does, or where no number of them would.
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

    @property
    def deciding(self) -> Interval:
        """The interval that the verdict is read from."""
        return self.free if self.decided_by == "distribution-free" else self.bootstrap

    @property
    def verdict(self) -> Verdict:
        return verdict(self.deciding, self.description.limit)

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
        }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A policy's report. `episodes` holds the samples behind it; `exact` is for task `finite` alone."""

    policy: PolicyDescription
    beta: tuple[tuple[float, ...], ...]
    episodes: Episodes
    seed: int
    confidence: float
    deterministic: bool
    reward: MeanReport
    discounted_reward: MeanReport
    constraints: tuple[ConstraintReport, ...]
    exact: ExactEvaluation | None = None

    def to_json(self) -> dict[str, Any]:
        """What `tailsafe evaluate --json` prints and evaluation.json holds."""
        report: dict[str, Any] = {
            "task": self.policy.task.name,
            "algorithm": self.policy.algorithm,
            "steps": self.policy.steps,
            "episodes": len(self.episodes),
            "seed": self.seed,
            "confidence": self.confidence,
            "deterministic": self.deterministic,
            "reward": self.reward.to_json(),
            "discounted_reward": self.discounted_reward.to_json(),
            "episode_length": float(self.episodes.length.mean()),
            "beta": [list(beta) for beta in self.beta],
            "constraints": [constraint.to_json() for constraint in self.constraints],
        }
        return report if self.exact is None else report | {"exact": self.exact.to_json()}

    def keep(self, folder: Path) -> None:
        """Write episodes.csv and, last, evaluation.json into a run's folder."""
        self.episodes.save(folder / TABLE_NAME, [report.description.name for report in self.constraints])
        self.save(folder / FILE_NAME)

    def save(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all."""
        write_json(path, self.to_json())

    def __str__(self) -> str:
        lines = [
            f"{len(self.episodes)} episodes of {self.policy.task.name}, confidence {self.confidence:g}",
            f"reward {self.reward.mean:.4g} [{self.reward.student.low:.4g}, {self.reward.student.high:.4g}]",
        ]
        for report in self.constraints:
            limit = f"{report.description.limit:g}/{report.description.unit}"
            lines.append(
                f"{report.description.name}: {report.description.risk_measure} {report.risk:.4g} "
                f"[{report.deciding.low:.4g}, {report.deciding.high:.4g}], limit {limit}: {report.verdict}"
            )
        if self.exact is not None:
            risks = ", ".join(f"{risk:.6g}" for risk in self.exact.risks)
            kept = "kept" if self.exact.feasible else "broken"
            lines.append(
                f"exactly: reward {self.exact.reward:.6g}, optimum {self.exact.optimum}, risks {risks}: {kept}"
            )
        return "\n".join(lines)


def evaluate(
    run: Path | str | LoadedPolicy,
    episodes: int = 500,
    seed: int = 0,
    *,
    confidence: float = 0.95,
    deterministic: bool = False,
    interval: IntervalName = "distribution-free",
    environment: Callable[[], Any] | None = None,
    backend: str = "auto",
    exact: bool = True,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Play `episodes` fresh episodes at the sampler's mode and report reward and risks with confidence bounds.

    Args:
      run: a run folder, a policy's folder or file, or a loaded policy.
      seed: of environments and actions; environments are drawn apart from training's (`episodes.SEED_OFFSET`).
      deterministic: play the likeliest actions instead of random ones (the constraints were on the random policy).
      interval: which bounds decide the verdicts.
      environment: builds the Gymnasium environment, for tasks that no name leads to.
      backend: engine of the built-in tasks.
      exact: for task `finite`, also evaluate without sampling and solve for the optimum.
    """
    if episodes < 2:
        raise InputError(f"episodes is {episodes}; bounds need at least 2")
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; it must be in (0, 1)")
    if interval not in ("distribution-free", "bootstrap"):
        raise InputError(f"interval is {interval!r}; it must be distribution-free or bootstrap")
    policy = run if isinstance(run, LoadedPolicy) else load_policy(run)
    stage = open_stage(policy.description, episodes, environment, backend)
    try:
        played = play(policy, stage, episodes, seed, deterministic=deterministic, progress=progress)
    finally:
        stage.close()
    finite = exact and policy.description.task.problem is not None
    return summarize(
        policy,
        played,
        seed,
        confidence,
        deterministic,
        interval,
        evaluate_on_problem(policy, deterministic=deterministic) if finite else None,
    )


def summarize(
    policy: LoadedPolicy,
    episodes: Episodes,
    seed: int,
    confidence: float,
    deterministic: bool = False,
    interval: IntervalName = "distribution-free",
    exact: ExactEvaluation | None = None,
) -> Evaluation:
    """The report on episodes that were played."""
    description = policy.description
    return Evaluation(
        policy=description,
        beta=tuple(tuple(beta) for beta in policy.beta),
        episodes=episodes,
        seed=seed,
        confidence=confidence,
        deterministic=deterministic,
        reward=mean_report(episodes.reward, confidence, seed),
        discounted_reward=mean_report(episodes.discounted_reward, confidence, seed),
        constraints=tuple(
            constraint_report(description, i, episodes, confidence, interval, seed)
            for i in range(len(description.constraints))
        ),
        exact=exact,
    )


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
    )


def verdict(interval: Interval, limit: float) -> Verdict:
    """met: even the upper bound keeps the limit. violated: even the lower bound exceeds it."""
    if interval.high <= limit:
        return "met"
    return "violated" if interval.low > limit else "cannot tell"


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
