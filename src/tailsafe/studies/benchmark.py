"""All algorithms on all six tasks, CVaR_0.75 at the tasks' own limits: training curves, fresh episodes at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tailsafe.runs.config import TrainConfig
from tailsafe.runs.keys import ALGORITHMS, key_types
from tailsafe.studies.conditions import INTERIM_EPISODES, MARGIN, SMALL_ON_GPU, TINY, WIDE
from tailsafe.studies.groups import Group, Rows
from tailsafe.studies.played import numbers, play, training_speed
from tailsafe.studies.study import Study, markdown, over_seeds, with_reach
from tailsafe.tasks import TASKS


@dataclass(frozen=True)
class Training:
    """On one task. steps: control steps per run. settings: for all algorithms. shapes: settings by algorithm."""

    steps: int
    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """tasks: how each is trained. episodes: of each evaluation."""

    tasks: Mapping[str, Training]
    seeds: int
    episodes: int
    backend: str
    algorithms: tuple[str, ...] = ALGORITHMS


def _navigation(steps: int) -> Training:
    """With as many steps as the paper's runs have."""
    return Training(steps, "laptop", SMALL_ON_GPU, WIDE)


_LEGGED = Training(60_000_000, "gpu")
SCALES = {
    "smoke": Scale(dict.fromkeys(("point-goal", "quadruped"), Training(64, "laptop", TINY)), 1, 2, "mujoco", ("cppo",)),
    "laptop": Scale(dict.fromkeys(TASKS, Training(500_000, "laptop")), 2, 100, "mujoco"),
    "paper": Scale(
        {
            name: _LEGGED if task.family == "legged" else _navigation(10_000_000 if "button" in name else 5_000_000)
            for name, task in TASKS.items()
        },
        5,
        500,
        "mjx",
    ),
}


def groups(scale: Scale) -> list[Group]:
    """One for every algorithm on every task."""
    return [group_of(task, algorithm, scale) for task in scale.tasks for algorithm in scale.algorithms]


def group_of(task: str, algorithm: str, scale: Scale) -> Group:
    """An algorithm on a task; settings that it does not have are left out."""
    training = scale.tasks[task]
    wanted = {"margin": MARGIN, **training.settings, **training.shapes.get(algorithm, {})}
    config = TrainConfig(
        task,
        algorithm=algorithm,
        total_steps=training.steps,
        seeds=scale.seeds,
        preset=training.preset,
        backend=scale.backend,
        settings={key: value for key, value in wanted.items() if key in key_types(algorithm)},
    )
    return Group({"task": task, "algorithm": algorithm}, config)


def measure(folder: Path, episodes: int) -> dict[str, Any]:
    """Fresh episodes, and the speed of training."""
    return {**numbers(play(folder, episodes)), "steps_per_second": training_speed(folder)}


def summary(rows: Rows, scale: str) -> Rows:
    """Per task and algorithm: reward, the largest excess over a limit, speed, time; risks and cost rates by cost."""
    entries = over_seeds(rows, ("task", "algorithm"), ("reward", "excess", "steps_per_second", "seconds"))
    for entry in entries:
        own = [row for row in rows if (row["task"], row["algorithm"]) == (entry["task"], entry["algorithm"])]
        for name in ("risks", "cost_rates"):
            entry[name] = [sum(column) / len(own) for column in zip(*(row[name] for row in own), strict=True)]
        entry["limits"] = own[0]["limits"]
        entry["met"] = sum(row["excess"] <= 0 for row in own)
        entry["steps"] = min(row["steps"] for row in own)
    return entries


def table(entries: Rows) -> str:
    """A row per task and algorithm. Within limits: of how many seeds the estimated risks are. Minutes: of the program
    that trained all seeds.
    """
    header = ["task", "algorithm", "reward", "cost rates", "risks (limits)", "within limits", "steps", "minutes"]
    return markdown(
        header,
        [
            [
                entry["task"],
                entry["algorithm"],
                with_reach(entry["reward"]),
                ", ".join(f"{rate:.3g}" for rate in entry["cost_rates"]),
                ", ".join(f"{r:.3g} ({limit:g})" for r, limit in zip(entry["risks"], entry["limits"], strict=True)),
                f"{entry['met']} / {entry['seeds']}",
                f"{entry['steps']:,}",
                f"{entry['seconds']['mean'] / 60:.1f}",
            ]
            for entry in entries
        ],
    )


def draw(rows: Rows, entries: Rows, runs: Sequence[Group], folder: Path) -> list[str]:
    """Training curves, a row of panels per task."""
    from tailsafe.viz.training import draw_training

    tasks = list(dict.fromkeys(group.labels["task"] for group in runs))
    by_task = [(task, [group for group in runs if group.labels["task"] == task]) for task in tasks]
    return ["curves.png"] if draw_training(by_task, "algorithm", None, folder / "curves.png") else []


STUDY = Study(
    "benchmark",
    "all algorithms on the six tasks: training curves with bands, rewards and risks of fresh episodes",
    lambda scale: groups(SCALES[scale]),
    lambda scale: partial(measure, episodes=SCALES[scale].episodes),
    summary,
    table,
    draw,
    lambda scale: partial(measure, episodes=min(SCALES[scale].episodes, INTERIM_EPISODES)),
)
