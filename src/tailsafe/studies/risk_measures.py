"""CVaR, Pow and Wang at three levels each on point-goal, with one limit: what a measure and its level do to costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.algorithms.registry import DEFAULT_ALGORITHM
from tailsafe.risk import parse_spectrum
from tailsafe.studies.conditions import INTERIM_EPISODES, MARGIN, SMALL_ON_GPU, TINY, wide
from tailsafe.studies.groups import Group, Rows
from tailsafe.studies.measuring import episode_rates, numbers, play
from tailsafe.studies.study import Findings, Study
from tailsafe.studies.tables import (
    cells,
    figures,
    markdown,
    over_seeds,
    risk_interval_over_seeds,
    with_bounds,
    with_reach,
)
from tailsafe.training.config import Constraint, TrainConfig

LABELS = ("measure", "level")
TASK, COST, LIMIT = "point-goal", "collision", 0.025
LEVELS: dict[str, tuple[str, ...]] = {
    "cvar": ("0.25", "0.5", "0.75"),
    "pow": ("0.5", "0.75", "0.9"),
    "wang": ("0.5", "1.0", "1.5"),
}
# Levels with cost rates of a similar size (docs/results.md), for the picture that compares the measures.
COMPARED = {"cvar": "0.5", "pow": "0.5", "wang": "0.5"}


@dataclass(frozen=True)
class Scale:
    """steps: control steps per run. episodes: of each evaluation. levels: of each measure."""

    steps: int
    seeds: int
    episodes: int
    preset: str
    backend: str
    levels: dict[str, tuple[str, ...]] = field(default_factory=lambda: LEVELS)
    settings: dict[str, Any] = field(default_factory=dict)


SCALES = {
    "smoke": Scale(64, 1, 2, "laptop", "mujoco", {"cvar": ("0.25", "0.5"), "pow": ("0.5",), "wang": ("0.5",)}, TINY),
    "laptop": Scale(500_000, 2, 200, "laptop", "mujoco"),
    # As the benchmark trains SRCPO: as many steps as the paper's runs have, small updates, wide rollouts.
    "paper": Scale(5_000_000, 5, 500, "laptop", "mjx", settings=SMALL_ON_GPU | wide(DEFAULT_ALGORITHM, "navigation")),
}


def groups(scale: Scale) -> list[Group]:
    """One for every level of every measure."""
    return [_group(scale, measure, level) for measure, levels in scale.levels.items() for level in levels]


def _group(scale: Scale, measure: str, level: str) -> Group:
    config = TrainConfig(
        TASK,
        constraints=[Constraint(COST, parse_spectrum(f"{measure}:{level}"), LIMIT, "step")],
        total_steps=scale.steps,
        seeds=scale.seeds,
        preset=scale.preset,
        backend=scale.backend,
        settings={"margin": MARGIN, **scale.settings},
    )
    return Group({"measure": measure, "level": level}, config)


def measure(folder: Path, episodes: int) -> dict[str, Any]:
    """Fresh episodes; `rates`: the cost rate of every one, `costs`: its discounted sum per step, both sorted."""
    found = play(folder, episodes)
    own = numbers(found)
    return {
        "reward": own["reward"],
        "cost_rate": own["cost_rates"][0],
        "risk": own["risks"][0],
        "verdict": own["verdicts"][0],
        "steps": own["steps"],
        "episodes": own["episodes"],
        "costs": own["costs"][0],
        "rates": episode_rates(found)[0],
    }


def summary(rows: Rows, scale: str) -> Rows:
    """Per measure and level: reward and cost rate over seeds, the risk over seeds and their episodes, percentiles of
    cost rates over all episodes.
    """
    entries = over_seeds(rows, LABELS, ("reward", "cost_rate"))
    for entry in entries:
        own = [row for row in rows if (row["measure"], row["level"]) == (entry["measure"], entry["level"])]
        spectrum = parse_spectrum(f"{entry['measure']}:{entry['level']}")
        entry["risk"] = risk_interval_over_seeds(spectrum, [row["costs"] for row in own])
        rates = np.concatenate([row["rates"] for row in own])
        entry["percentiles"] = {str(p): float(np.percentile(rates, p)) for p in (50, 75, 90, 95, 99)}
        entry["verdicts"] = [row["verdict"] for row in own]
        entry["steps"] = min(row["steps"] for row in own)
    return entries


def table(found: Findings) -> str:
    """A row per measure and level."""
    header = ["measure", "level", "reward", "cost rate", "risk per step", "50 %", "95 %", "99 %", "met / seeds"]
    rows = []
    for group, entry in cells(found.summary, found.groups, LABELS):
        row = ["-"] * (len(header) - len(LABELS))
        if entry is not None:
            row = [
                with_reach(entry["reward"]),
                with_reach(entry["cost_rate"]),
                with_bounds(entry["risk"]),
                *(f"{entry['percentiles'][p]:.4f}" for p in ("50", "95", "99")),
                f"{sum(verdict.startswith('met') for verdict in entry['verdicts'])} / {entry['seeds']}",
            ]
        steps = f"{entry['steps']:,}" if entry is not None else "-"
        rows.append([*(group[label] for label in LABELS), *row, steps, figures(group)])
    return markdown([*header, "steps", "figures"], rows)


def draw(found: Findings, runs: Sequence[Group], folder: Path) -> list[str]:
    """Scatter with ellipses, distributions of measures and of levels of CVaR, training curves."""
    from tailsafe.viz.risk_measures import draw_distributions, draw_scatter
    from tailsafe.viz.training import draw_training

    names, rows = [], found.rows
    if rows:
        draw_scatter(rows, LIMIT, folder / "scatter.png")
        names.append("scatter.png")
    compared = [row for row in rows if COMPARED[row["measure"]] == row["level"]]
    of_cvar = [row for row in rows if row["measure"] == "cvar"]
    for shown, title, name in (
        (compared, "Cost rates under three measures", "measures.png"),
        (of_cvar, "Cost rates under levels of CVaR", "cvar_levels.png"),
    ):
        if shown:
            draw_distributions(shown, title, folder / name)
            names.append(name)
    if draw_training([(TASK, runs)], "measure", "level", folder / "curves.png"):
        names.append("curves.png")
    return names


STUDY = Study(
    "risk-measures",
    "CVaR, Pow and Wang at three levels each on point-goal: reward against costs, distributions, curves",
    lambda scale: groups(SCALES[scale]),
    lambda scale: partial(measure, episodes=SCALES[scale].episodes),
    summary,
    table,
    draw,
    lambda scale: partial(measure, episodes=min(SCALES[scale].episodes, INTERIM_EPISODES)),
)
