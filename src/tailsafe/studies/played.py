"""What studies of simulated robots measure: fresh episodes of a trained policy, and how fast it was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.runs.evaluation import Evaluation, evaluate

SEED = 0


def play(folder: Path, episodes: int) -> Evaluation:
    """Evaluate on engine mujoco; evaluation.json and episodes.csv go into the run's folder, as by the command."""
    found = evaluate(folder, episodes, SEED, interval="bootstrap", backend="mujoco")
    found.keep(folder)
    return found


def numbers(found: Evaluation) -> dict[str, Any]:
    """reward: mean per episode. Per constraint, in the order of the costs: cost_rates, risks and limits per step (or in
    the unit of the limit), verdicts by bootstrap. excess: the largest share by which a risk exceeds its limit.
    """
    reports = found.constraints
    return {
        "reward": found.reward.mean,
        "cost_rates": [report.cost_rate for report in reports],
        "risks": [report.risk for report in reports],
        "limits": [report.description.limit for report in reports],
        "verdicts": [report.verdict for report in reports],
        "excess": max(report.risk / report.description.limit - 1 for report in reports),
        "steps": found.policy.steps,
    }


def episode_rates(found: Evaluation) -> list[list[float]]:
    """Per cost: its rate in every episode, sorted."""
    rates = found.episodes.costs / found.episodes.length[:, None]
    return [[round(float(rate), 6) for rate in np.sort(column)] for column in rates.T]


def training_speed(folder: Path) -> float:
    """Control steps per second: the median of the faster half of the log, without rows in which a program compiled."""
    from tailsafe.viz.run import read_curves

    speeds = np.sort(read_curves(folder).columns["steps_per_second"])
    return float(np.median(speeds[speeds.size // 2 :]))
