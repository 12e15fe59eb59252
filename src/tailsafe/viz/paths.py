"""Trajectories of a policy through a task, seen from above. Needs matplotlib and no graphics library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from tailsafe.envs.host import float64_on_host
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.tasks import Task
from tailsafe.tasks.goal import GOAL_RADIUS
from tailsafe.tasks.navigation import GOAL_RGBA, HAZARD_RADIUS, HAZARD_RGBA, ROBOT_RGBA
from tailsafe.viz.figures import GREY, ORANGE, check_target, new_figure, save
from tailsafe.viz.walk import Moment, task_of, walk

_PER_ROW = 4


def draw_paths(
    policy: LoadedPolicy,
    path: Path,
    *,
    episodes: int = 4,
    steps: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
) -> list[Moment]:
    """One map per episode: hazards, the goals it drove to in turn, the robot's trajectory and where it paid a cost.

    Hazards, goals and robot have the colours of the video; orange crosses are costs.

    Returns the last moment of each episode.
    """
    check_target(path)
    task = task_of(policy)
    length = min(steps or task.episode_length, task.episode_length)
    columns = min(episodes, _PER_ROW)
    rows = -(-episodes // columns)
    figure = new_figure(3.4 * columns, 3.7 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[episodes:]:
        axes.set_axis_off()
    ends: list[Moment] = []
    costly: list[Any] = []
    goals: list[Any] = []
    for moment in walk(policy, task, episodes, length, seed, deterministic=deterministic):
        if moment.step == 0:
            costly, goals = [], []
            _draw_hazards(panels[moment.episode], task, moment)
        goal = _scenery(task, moment).get("goal")
        if goal is not None and (not goals or not np.allclose(goals[-1], goal)):
            goals.append(goal)
        if (moment.cost >= 1).any():  # foot timing costs a quarter or a half in most steps
            costly.append(moment.trail[-1])
        if moment.last:
            _draw_way(panels[moment.episode], moment, goals, costly)
            ends.append(moment)
    save(figure, path)
    return ends


def _scenery(task: Task[Any], moment: Moment) -> dict[str, Any]:
    with float64_on_host():
        state = jax.tree.map(lambda leaf: leaf[0], moment.state.task)
        return {name: np.asarray(position)[:2] for name, position in task.scenery_positions(state).items()}


def _draw_hazards(axes: Any, task: Task[Any], moment: Moment) -> None:
    from matplotlib.patches import Circle

    for name, position in _scenery(task, moment).items():
        if name.startswith("hazard"):
            axes.add_patch(Circle(position, HAZARD_RADIUS, color=_colour(HAZARD_RGBA), linewidth=0))


def _colour(rgba: str) -> tuple[float, ...]:
    """A colour of the task's model: the map has those of the video."""
    return tuple(float(part) for part in rgba.split())


def _draw_way(axes: Any, moment: Moment, goals: list[Any], costly: list[Any]) -> None:
    from matplotlib.patches import Circle

    for goal in goals:
        axes.add_patch(Circle(goal, GOAL_RADIUS, color=_colour(GOAL_RGBA), linewidth=0))
    robot = _colour(ROBOT_RGBA)
    axes.plot(*moment.trail.T, color=robot, linewidth=1)
    axes.plot(*moment.trail[0], marker="o", color=robot, markersize=6)
    if costly:
        axes.plot(*np.asarray(costly).T, linestyle="none", marker="x", color=ORANGE, markersize=5, markeredgewidth=1.5)
    largest = 1.05 * max(2.0, float(np.abs(moment.trail).max()))
    axes.set(xlim=(-largest, largest), ylim=(-largest, largest), aspect="equal", xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_color(GREY)
    title = f"reward {moment.reward:.1f}, cost {', '.join(f'{cost:g}' for cost in moment.costs)}"
    axes.set_title(title, fontsize=10)
