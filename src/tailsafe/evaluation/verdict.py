"""How good and how safe a policy is: fresh episodes, every figure with its confidence bounds, a verdict per constraint.

Two intervals are given for every risk. The distribution-free one holds for any distribution of the costs and decides
the verdict by default; the bootstrap one is narrower, has no guarantee, and is blind to what was not sampled. Every
interval holds with the confidence asked for by itself, not all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.evaluation.bounds import mean_report
from tailsafe.evaluation.constraint_report import IntervalName, constraint_report
from tailsafe.evaluation.environments import open_stage
from tailsafe.evaluation.episodes import Episodes, ProgressCallback, play
from tailsafe.evaluation.exact import ExactEvaluation, evaluate_on_problem
from tailsafe.evaluation.played_environment import PlayedEnvironment, played_in
from tailsafe.evaluation.report import Evaluation
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.policy import POINTS, load_policy


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
    progress: ProgressCallback = lambda done, total: None,
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
    played: PlayedEnvironment | None = None,
) -> Evaluation:
    """The report on episodes that were played. played: the environment; None: the one of training."""
    played = played or PlayedEnvironment(policy.description)
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
