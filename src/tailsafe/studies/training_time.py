"""How long every algorithm trains on point-goal: each alone, its speed from compilation to the end of a short run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailsafe.studies.benchmark import Scale, Training, group_of
from tailsafe.studies.conditions import TINY
from tailsafe.studies.groups import Group, Rows
from tailsafe.studies.played import training_speed
from tailsafe.studies.risk_measures import TASK
from tailsafe.studies.study import Study, markdown

# What the paper reports for a run of 5 million steps (hours, means of five runs).
PAPER_STEPS = 5_000_000
PAPER_HOURS = {
    "srcpo": 9 + 52 / 60,
    "cppo": 6 + 17 / 60,
    "cvar_cpo": 4 + 44 / 60,
    "sdac": 8 + 46 / 60,
    "sdpo": 6 + 51 / 60,
    "wcsac": 14 + 18 / 60,
}
_ALL = tuple(PAPER_HOURS)
SCALES = {
    "smoke": Scale({TASK: Training(96, "laptop", TINY)}, 1, 0, "mujoco", ("srcpo", "cppo")),
    "laptop": Scale({TASK: Training(100_000, "laptop", {"log_every": 1})}, 1, 0, "mujoco", _ALL),
    "paper": Scale({TASK: Training(10_000_000, "gpu")}, 1, 0, "mjx", _ALL),
}


def groups(scale: str) -> list[Group]:
    """One run for every algorithm."""
    return [group_of(TASK, algorithm, SCALES[scale]) for algorithm in SCALES[scale].algorithms]


def measure(folder: Path) -> dict[str, Any]:
    """Control steps per second."""
    return {"steps_per_second": training_speed(folder)}


def summary(rows: Rows, scale: str) -> Rows:
    """Per algorithm: speed, hours for as many steps as the paper's runs have, and what the paper reports for them."""
    return [
        {
            "algorithm": row["algorithm"],
            "steps_per_second": row["steps_per_second"],
            "hours": PAPER_STEPS / row["steps_per_second"] / 3600,
            "paper_hours": PAPER_HOURS[row["algorithm"]],
        }
        for row in rows
    ]


def table(entries: Rows) -> str:
    """A row per algorithm."""
    header = ["algorithm", "steps/s", f"minutes for {PAPER_STEPS:,} steps", "minutes in the paper"]
    return markdown(
        header,
        [
            [
                entry["algorithm"],
                f"{entry['steps_per_second']:,.0f}",
                f"{60 * entry['hours']:.1f}",
                f"{60 * entry['paper_hours']:.0f}",
            ]
            for entry in entries
        ],
    )


def draw(rows: Rows, entries: Rows, runs: Sequence[Group], folder: Path) -> list[str]:
    """A bar per algorithm."""
    from tailsafe.viz.training import draw_times

    if not entries:
        return []
    draw_times(entries, PAPER_STEPS, folder / "times.png")
    return ["times.png"]


STUDY = Study(
    "training-time",
    "how long each algorithm trains on point-goal, beside what the paper reports",
    groups,
    lambda scale: measure,
    summary,
    table,
    draw,
)
