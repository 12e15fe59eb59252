"""The tasks: one definition each, for both physics engines."""

from __future__ import annotations

from typing import Any

from tailsafe.errors import InputError
from tailsafe.physics.interface import Mocap, PhysicsState, Readings
from tailsafe.tasks.base import Outcome, Task, action_size, observation_size, reset, task_units
from tailsafe.tasks.biped import biped_task
from tailsafe.tasks.button import button_task
from tailsafe.tasks.goal import goal_task
from tailsafe.tasks.quadruped import quadruped_task
from tailsafe.tasks.robots import Car, Point

TASKS: dict[str, Task[Any]] = {
    task.name: task
    for task in (
        goal_task(Point()),
        goal_task(Car()),
        button_task(Point()),
        button_task(Car()),
        quadruped_task(),
        biped_task(),
    )
}


def get_task(name: str) -> Task[Any]:
    """The task called `name` (`point-goal`), also by its Gymnasium id (`tailsafe/PointGoal-v0`)."""
    for task in TASKS.values():
        if name in (task.name, task.gymnasium_id):
            return task
    raise InputError(f"unknown task {name!r}; there are: {', '.join(TASKS)}")


__all__ = [
    "TASKS",
    "Mocap",
    "Outcome",
    "PhysicsState",
    "Readings",
    "Task",
    "action_size",
    "get_task",
    "observation_size",
    "reset",
    "task_units",
]
