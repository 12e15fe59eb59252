"""All algorithms on all six tasks, CVaR_0.75 at the tasks' own limits: training curves, fresh episodes at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tailsafe.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM
from tailsafe.risk import parse_spectrum
from tailsafe.studies.comparison import compare, comparison_tables
from tailsafe.studies.conditions import INTERIM_EPISODES, MARGIN, SMALL_ON_GPU, TINY, TUNED, UNTUNED, wide
from tailsafe.studies.groups import Group, Rows
from tailsafe.studies.measuring import numbers, play
from tailsafe.studies.study import Findings, Study
from tailsafe.studies.tables import (
    cells,
    figures,
    markdown,
    over_seeds,
    risk_interval_over_seeds,
    verdict_over_seeds,
    with_bounds,
    with_reach,
)
from tailsafe.tasks import TASKS
from tailsafe.training.config import TrainConfig
from tailsafe.training.settings import known_settings

LABELS = ("task", "algorithm")
# With which the others are compared.
OWN = DEFAULT_ALGORITHM


@dataclass(frozen=True)
class Training:
    """On one task. steps: control steps per run. settings: for all algorithms. on_gpu: in the shapes of `wide`."""

    steps: int
    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_gpu: bool = False


@dataclass(frozen=True)
class Scale:
    """tasks: how each is trained. episodes: of each evaluation."""

    tasks: Mapping[str, Training]
    seeds: int
    episodes: int
    backend: str
    algorithms: tuple[str, ...] = ALGORITHMS


def paper_steps(task: str) -> int:
    """Of a run in the paper."""
    return 10_000_000 if "button" in task else 5_000_000


SCALES = {
    "smoke": Scale(dict.fromkeys(("point-goal", "quadruped"), Training(64, "laptop", TINY)), 1, 2, "mujoco", ("cppo",)),
    "laptop": Scale(dict.fromkeys(TASKS, Training(500_000, "laptop")), 2, 100, "mujoco"),
    "paper": Scale(
        {task: Training(paper_steps(task), "laptop", SMALL_ON_GPU, on_gpu=True) for task in TASKS}, 5, 500, "mjx"
    ),
}


def groups(scale: Scale) -> list[Group]:
    """One for every algorithm on every task."""
    return [group_of(task, algorithm, scale) for task in scale.tasks for algorithm in scale.algorithms]


def group_of(task: str, algorithm: str, scale: Scale) -> Group:
    """An algorithm on a task; settings that it does not have are left out."""
    training = scale.tasks[task]
    shapes = wide(algorithm, TASKS[task].family) if training.on_gpu else {}
    wanted = {"margin": MARGIN, **training.settings, **shapes}
    config = TrainConfig(
        task,
        algorithm=algorithm,
        total_steps=training.steps,
        seeds=scale.seeds,
        preset=training.preset,
        backend=scale.backend,
        settings={key: value for key, value in wanted.items() if key in known_settings(algorithm)},
    )
    return Group({"task": task, "algorithm": algorithm}, config)


def measure(folder: Path, episodes: int) -> dict[str, Any]:
    """Fresh episodes."""
    return numbers(play(folder, episodes))


def summary(rows: Rows, scale: str) -> Rows:
    """Per task and algorithm: reward, the largest excess over a limit, speed and time over seeds; by cost the cost rate
    and the risk over seeds and their episodes, with the verdict on that; of how many seeds all estimates are within.
    """
    entries = over_seeds(rows, LABELS, ("reward", "excess", "steps_per_second", "seconds"))
    for entry in entries:
        own = [row for row in rows if all(row[label] == entry[label] for label in LABELS)]
        entry["cost_rates"] = [
            sum(column) / len(own) for column in zip(*(row["cost_rates"] for row in own), strict=True)
        ]
        measures, count = (
            [parse_spectrum(text) for text in own[0]["risk_measures"]],
            sum(row["episodes"] for row in own),
        )
        entry["risks"] = [
            risk_interval_over_seeds(measure, [row["costs"][i] for row in own]) for i, measure in enumerate(measures)
        ]
        entry["limits"] = own[0]["limits"]
        entry["verdicts"] = [
            verdict_over_seeds(measure, risk, limit, count)
            for measure, risk, limit in zip(measures, entry["risks"], entry["limits"], strict=True)
        ]
        entry["within"] = sum(row["excess"] <= 0 for row in own)
        entry["episodes"] = min(row["episodes"] for row in own)
        entry["steps"] = min(row["steps"] for row in own)
    return entries


def table(found: Findings) -> str:
    """A row per task and algorithm, then the algorithms over all tasks, and what was tuned. Within limits: of how many
    seeds the estimated risks are. Minutes: of the program that trained all seeds.
    """
    header = ["task", "algorithm", "reward", "cost rates", "risks (limits)", "verdicts", "within limits", "episodes"]
    rows = []
    for group, entry in cells(found.summary, found.groups, LABELS):
        row = ["-"] * (len(header) - len(LABELS) + 2)
        if entry is not None:
            limits = zip(entry["risks"], entry["limits"], strict=True)
            row = [
                with_reach(entry["reward"]),
                ", ".join(f"{rate:.3g}" for rate in entry["cost_rates"]),
                ", ".join(f"{with_bounds(risk)} ({limit:g})" for risk, limit in limits),
                ", ".join(entry["verdicts"]),
                f"{entry['within']} / {group['seeds']}",
                f"{entry['seeds']} x {entry['episodes']}",
                f"{entry['steps']:,}",
                f"{entry['seconds']['mean'] / 60:.1f}",
            ]
        rows.append([*(group[label] for label in LABELS), *row, figures(group)])
    algorithms = dict.fromkeys(group["algorithm"] for group in found.groups)
    tuned = [[name, str(TUNED.get(name, UNTUNED))] for name in algorithms]
    parts = [
        markdown([*header, "steps", "minutes", "figures"], rows),
        comparison_tables(found.statistics, OWN),
        f"\nThe same for all: network sizes, steps, a margin of {MARGIN:.0%}. What was tuned on robots' tasks:\n\n",
        markdown(["algorithm", "tuned"], tuned),
    ]
    return "".join(parts)


def draw(found: Findings, runs: Sequence[Group], folder: Path) -> list[str]:
    """Training curves, a row of panels per task; performance profiles of what is finished."""
    from tailsafe.viz.study import draw_profiles
    from tailsafe.viz.training import draw_training

    tasks = list(dict.fromkeys(group.labels["task"] for group in runs))
    by_task = [(task, [group for group in runs if group.labels["task"] == task]) for task in tasks]
    names = ["curves.png"] if draw_training(by_task, "algorithm", None, folder / "curves.png") else []
    if found.statistics:
        draw_profiles(found.statistics, folder / "profiles.png")
        names.append("profiles.png")
    return names


STUDY = Study(
    "benchmark",
    "all algorithms on the six tasks: training curves with bands, rewards and risks of fresh episodes",
    lambda scale: groups(SCALES[scale]),
    lambda scale: partial(measure, episodes=SCALES[scale].episodes),
    summary,
    table,
    draw,
    lambda scale: partial(measure, episodes=min(SCALES[scale].episodes, INTERIM_EPISODES)),
    compare,
)
