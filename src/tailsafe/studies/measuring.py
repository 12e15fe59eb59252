"""What studies of simulated robots measure: fresh episodes of a trained policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsafe.evaluation.report import Evaluation
from tailsafe.evaluation.verdict import evaluate

SEED = 0


def play(folder: Path, episodes: int) -> Evaluation:
    """Evaluate on engine mujoco; evaluation.json and episodes.csv go into the run's folder, as by the command."""
    found = evaluate(folder, episodes, SEED, interval="bootstrap", backend="mujoco")
    found.keep(folder)
    return found


def numbers(found: Evaluation) -> dict[str, Any]:
    """reward: mean per episode. Per constraint, in the order of the costs: constraints (their names), risk_measures,
    cost_rates, risks and limits per step (or in the unit of the limit), verdicts by bootstrap, and `costs`: the
    discounted sum of every episode in that unit, sorted. excess: the largest share by which a risk exceeds its limit.
    """
    reports = found.constraints
    sums = found.episodes.discounted_costs.T
    factors = [found.policy.unit_factor(report.description) for report in reports]
    return {
        "reward": found.reward.mean,
        "constraints": [report.description.name for report in reports],
        "risk_measures": [report.description.risk_measure for report in reports],
        "cost_rates": [report.cost_rate for report in reports],
        "risks": [report.risk for report in reports],
        "limits": [report.description.limit for report in reports],
        "verdicts": [report.verdict for report in reports],
        "costs": [_sorted(factor * own) for factor, own in zip(factors, sums, strict=True)],
        "excess": max(report.risk / report.description.limit - 1 for report in reports),
        "steps": found.policy.steps,
        "episodes": len(found.episodes),
    }


def episode_rates(found: Evaluation) -> list[list[float]]:
    """Per cost: its rate in every episode, sorted."""
    rates = found.episodes.costs / found.episodes.length[:, None]
    return [_sorted(column) for column in rates.T]


def _sorted(values: NDArray[np.float64]) -> list[float]:
    return [round(float(value), 6) for value in np.sort(values)]
