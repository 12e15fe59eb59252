"""How long every algorithm trains on point-goal: each alone, its speed from compilation to the end of a short run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailsafe.studies.benchmark import Scale, Training, group_of
from tailsafe.studies.conditions import TINY
from tailsafe.studies.groups import Group, Rows
from tailsafe.studies.risk_measures import TASK
from tailsafe.studies.study import Findings, Study
from tailsafe.studies.tables import cells, figures, markdown

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
SCALES = {
    "smoke": Scale({TASK: Training(96, "laptop", TINY)}, 1, 0, "mujoco", ("srcpo", "cppo")),
    "laptop": Scale({TASK: Training(100_000, "laptop", {"log_every": 1})}, 1, 0, "mujoco"),
    "paper": Scale({TASK: Training(10_000_000, "gpu")}, 1, 0, "mjx"),
}


def groups(scale: str) -> list[Group]:
    """One run for every algorithm."""
    return [group_of(TASK, algorithm, SCALES[scale]) for algorithm in SCALES[scale].algorithms]


def measure(folder: Path) -> dict[str, Any]:
    """Nothing but what every row says: seconds and control steps per second."""
    return {}


def summary(rows: Rows, scale: str) -> Rows:
    """Per algorithm: speed, hours for as many steps as the paper's runs have, and what the paper reports for them (None
    for algorithms that it does not have).
    """
    return [
        {
            "algorithm": row["algorithm"],
            "steps_per_second": row["steps_per_second"],
            "seconds": row["seconds"],
            "hours": PAPER_STEPS / row["steps_per_second"] / 3600,
            "paper_hours": PAPER_HOURS.get(row["algorithm"]),
        }
        for row in rows
    ]


def table(found: Findings) -> str:
    """A row per algorithm."""
    header = ["algorithm", "steps/s", f"minutes for {PAPER_STEPS:,} steps", "minutes in the paper", "figures"]
    rows = []
    for group, entry in cells(found.summary, found.groups, ("algorithm",)):
        paper = PAPER_HOURS.get(group["algorithm"])
        rows.append(
            [
                group["algorithm"],
                f"{entry['steps_per_second']:,.0f}" if entry else "-",
                f"{60 * entry['hours']:.1f}" if entry else "-",
                f"{60 * paper:.0f}" if paper is not None else "not in the paper",
                figures(group),
            ]
        )
    return markdown(header, rows)


def draw(found: Findings, runs: Sequence[Group], folder: Path) -> list[str]:
    """A bar per algorithm."""
    from tailsafe.viz.training import draw_times

    if not found.summary:
        return []
    draw_times(found.summary, PAPER_STEPS, folder / "times.png")
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
