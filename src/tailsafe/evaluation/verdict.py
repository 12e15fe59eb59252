"""How good and how safe a policy is: fresh episodes, every figure with its confidence bounds, a verdict per constraint.

Two intervals are given for every risk. The distribution-free one holds for any distribution of the costs and decides
the verdict by default; the bootstrap one is narrower, has no guarantee, and is blind to what was not sampled. Every
interval holds with the confidence asked for by itself, not all of them together.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.special
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.evaluation.advice import Judgement, next_step
from tailsafe.evaluation.environments import open_stage
from tailsafe.evaluation.episodes import TABLE_NAME, Episodes, Progress, play
from tailsafe.evaluation.exact import ExactEvaluation, evaluate_on_problem
from tailsafe.evaluation.played import Played, beside, other_place, played_in
from tailsafe.files import read_object, write_json
from tailsafe.policies.metadata import ConstraintDescription, PolicyDescription, discounted_length
from tailsafe.policies.policy import POINTS, LoadedPolicy, load_policy
from tailsafe.risk import Mean, SpectralRisk
from tailsafe.risk.bootstrap import bootstrap_interval
from tailsafe.risk.interval import risk_interval

Verdict = Literal["met", "met (bootstrap, no guarantee)", "violated", "cannot tell"]
# What the bootstrap may say at most: it is blind to what was not sampled.
BOOTSTRAP_MET: Verdict = "met (bootstrap, no guarantee)"
# Below this effective number of episodes in the tail, see `tail_episodes`, the bootstrap confirms nothing.
LEAST_TAIL = 50
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


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A policy's report. `episodes` holds the samples behind it; `exact` is for task `finite` alone, and `exact_front`
    for its policies for a range of limits: the same for limits across it. folder: of the run or policy, where it was
    read from one. played: the environment of the episodes, which need not be the run's.
    """

    played: Played
    beta: tuple[tuple[float, ...], ...]
    episodes: Episodes
    seed: int
    confidence: float
    deterministic: bool
    reward: MeanReport
    discounted_reward: MeanReport
    constraints: tuple[ConstraintReport, ...]
    exact: ExactEvaluation | None = None
    folder: Path | None = None
    exact_front: tuple[ExactEvaluation, ...] = ()

    @property
    def policy(self) -> PolicyDescription:
        """What the policy is, in the environment that was played."""
        return self.played.description

    @property
    def next_step(self) -> str | None:
        """What to do now, with the command; None for a policy that has no folder."""
        if self.folder is None:
            return None
        rows = [
            Judgement(
                one.verdict, one.risk > one.description.limit, math.isfinite(one.deciding.high), one.episodes_needed
            )
            for one in self.constraints
        ]
        if self.exact is not None:  # which leaves nothing open
            limits = zip(self.exact.risks, self.exact.limits, strict=True)
            kept = "met" if self.exact.feasible else "violated"
            rows = [Judgement(kept, not self.exact.feasible and risk > limit, True) for risk, limit in limits]
        task, steps = self.policy.task.name, self.policy.steps
        return next_step(self.folder, task, steps, len(self.episodes), rows, self.played.options)

    def to_json(self) -> dict[str, Any]:
        """What `tailsafe evaluate --json` prints and evaluation.json holds."""
        report: dict[str, Any] = {
            "task": self.policy.task.name,
            **self.played.to_json(),
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
        if self.metrics:
            report["metrics"] = [{"name": name, **measured.to_json()} for name, measured in self.metrics.items()]
        if self.exact_front:
            return report | {"exact": [exact.to_json() for exact in self.exact_front]}
        return report if self.exact is None else report | {"exact": self.exact.to_json()}

    @property
    def metrics(self) -> dict[str, MeanReport]:
        """The means of the user's own numbers per episode, with bounds."""
        if self.episodes.metrics is None:
            return {}
        columns = zip(self.policy.task.metrics, self.episodes.metrics.T, strict=True)
        return {name: mean_report(column, self.confidence, self.seed) for name, column in columns}

    def keep(self, folder: Path) -> str | None:
        """Write episodes.csv and, last, evaluation.json into a run's folder.

        An evaluation there whose verdicts were by other bounds, or in another environment, is not overwritten: it
        becomes evaluation.BOUNDS.json or evaluation.ENVIRONMENT.json. Returns a sentence about it.
        """
        own = {report.decided_by for report in self.constraints}
        told = set_earlier_aside(folder / FILE_NAME, own, self.played)
        self.episodes.save(folder / TABLE_NAME, [report.description.name for report in self.constraints])
        self.save(folder / FILE_NAME)
        return told

    def save(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all."""
        write_json(path, self.to_json())

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{report.description.name} {report.verdict}" for report in self.constraints)
        return f"<Evaluation of {self.where}: reward {self.reward.mean:.4g}, {verdicts}>"

    @property
    def where(self) -> str:
        """The environment of the episodes, and the one of training if that was another."""
        other = self.played.trained_in
        return self.policy.task.name if other is None else f"{self.played.name} (trained in {other})"

    def _repr_html_(self) -> str:
        """For notebooks: a row per constraint."""
        rows = "".join(
            f"<tr><th>{html.escape(one.description.name)}</th><td>{html.escape(one.description.risk_measure)}</td>"
            f"<td>{one.risk:.4g} [{one.deciding.low:.4g}, {one.deciding.high:.4g}]</td>"
            f"<td>{one.description.limit:g}/{one.description.unit}</td><td><b>{one.verdict}</b></td></tr>"
            for one in self.constraints
        )
        low, high = self.reward.student.low, self.reward.student.high
        told = f"reward {self.reward.mean:.4g} [{low:.4g}, {high:.4g}] over {len(self.episodes)} episodes"
        return (
            f"<p>{html.escape(self.where)}: {told}</p><table><tr><th>cost</th><th>measure</th><th>risk</th>"
            f"<th>limit</th><th>verdict</th></tr>{rows}</table><p>{html.escape(self.next_step or '')}</p>"
        )

    def __str__(self) -> str:
        lines = [
            f"{len(self.episodes)} episodes of {self.where}, confidence {self.confidence:g}",
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
        if self.next_step is not None:
            lines.append(f"next: {self.next_step}")
        return "\n".join(lines)


def evaluate(
    run: Path | str | LoadedPolicy,
    episodes: int = 500,
    seed: int = 0,
    *,
    limit: float | Sequence[float] | None = None,
    confidence: float = 0.95,
    deterministic: bool = False,
    interval: IntervalName = "distribution-free",
    environment: str | Callable[..., Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
    backend: str = "auto",
    exact: bool = True,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Play `episodes` fresh episodes at the sampler's mode and report reward and risks with confidence bounds.

    Args:
      run: a run folder, a policy's folder or file, `pretrained:NAME`, or a loaded policy.
      episodes: how many.
      seed: of environments and actions; environments are drawn apart from training's (`episodes.SEED_OFFSET`).
      limit: what a policy for a range of limits is asked for, in the unit of training; see `load_policy`.
      confidence: of each interval.
      deterministic: play the likeliest actions instead of random ones (the constraints were on the random policy).
      interval: which bounds decide the verdicts.
      environment: the environment instead of the one that the policy names: its name, or what builds it.
      env_args: arguments of the environment in place of those of the run, one by one.
      trust: build the environment that the policy names, though you have not trained on it on this machine.
      backend: engine of the built-in tasks.
      exact: for task `finite`, also evaluate without sampling and solve for the optimum; for a range of limits without
        `limit` at several of them.
      progress: called with the episodes played and their number.

    Returns:
      Reward, cost rates, risks with bounds, and a verdict for each constraint.

    Examples:
      >>> found = ts.evaluate("pretrained:two-roads", episodes=100)
      >>> [one.description.name for one in found.constraints]
      ['cost']
    """
    if episodes < 2:
        raise InputError(f"episodes is {episodes}; bounds need at least 2")
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; it must be in (0, 1)")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise InputError(f"seed is {seed!r}; it must be a whole number from 0 to {2**31 - 1}")
    if interval not in ("distribution-free", "bootstrap"):
        raise InputError(f"interval is {interval!r}; it must be distribution-free or bootstrap")
    policy = run if isinstance(run, LoadedPolicy) else load_policy(run, limit=limit)
    if isinstance(run, LoadedPolicy) and limit is not None:
        policy = policy.asked(limit)
    stage = open_stage(policy.description, episodes, environment, backend, env_args=env_args, trust=trust)
    try:
        place = played_in(policy.description, stage)
        played = play(policy, stage, episodes, seed, deterministic=deterministic, progress=progress)
    finally:
        stage.close()
    finite = exact and place.description.task.problem is not None
    report = summarize(
        policy,
        played,
        seed,
        confidence,
        deterministic,
        interval,
        evaluate_on_problem(policy, deterministic=deterministic) if finite else None,
        place,
    )
    if finite and policy.description.ranged and limit is None:
        front = tuple(evaluate_on_problem(asked, deterministic=deterministic) for asked in policy.across(POINTS))
        report = replace(report, exact_front=front)
    return report if isinstance(run, LoadedPolicy) else replace(report, folder=Path(run))


def summarize(
    policy: LoadedPolicy,
    episodes: Episodes,
    seed: int,
    confidence: float,
    deterministic: bool = False,
    interval: IntervalName = "distribution-free",
    exact: ExactEvaluation | None = None,
    played: Played | None = None,
) -> Evaluation:
    """The report on episodes that were played. played: the environment; None: the one of training."""
    played = played or Played(policy.description)
    description = played.description
    return Evaluation(
        played=played,
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


def set_earlier_aside(path: Path, decided_by: set[IntervalName], played: Played) -> str | None:
    """Rename an evaluation that was decided by other bounds or in another environment; returns what it said and where
    it is now.
    """
    if not path.is_file():
        return None
    place = None
    try:
        content = read_object(path)
        place, reports = other_place(content, played), content["constraints"]
        bounds = {str(report["interval"]) for report in reports}
        said = ", ".join(f"{report['name']}: {report['verdict']}" for report in reports)
    except (InputError, LookupError, TypeError):
        bounds, said = {"unreadable"}, "cannot be read"
    if bounds <= decided_by and place is None:
        return None
    if place is not None:
        aside, by = beside(path, place), f"in {place}"
    else:
        safe = "-".join(sorted(bounds & {"distribution-free", "bootstrap"})) or "earlier"
        aside, by = path.with_name(f"{path.stem}.{safe}{path.suffix}"), "by other bounds"
    os.replace(path, aside)
    return f"the evaluation {by} ({said}) is kept in {aside}"


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
