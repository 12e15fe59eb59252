"""Recorded steps of the original tasks, as states of ours.

A recording is one `.npz` of consecutive control steps. Arrays with T+1 rows describe the world between steps: row t
right before step t, row t+1 right after it. The folder is `tests/recordings`, or the one that the environment
variable TAILSAFE_RECORDINGS names.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tailsafe.tasks import TASKS, PhysicsState, Readings, Task
from tailsafe.tasks.button import ButtonState
from tailsafe.tasks.goal import GoalState

NAVIGATION = tuple(name for name, task in TASKS.items() if task.family == "navigation")
FOLDER = Path(os.environ.get("TAILSAFE_RECORDINGS") or Path(__file__).parent / "recordings")
ORIGINAL_NAMES = {
    "point-goal": "SafetyPointGoal1-v0",
    "car-goal": "SafetyCarGoal1-v0",
    "point-button": "SafetyPointButton1-v0",
    "car-button": "SafetyCarButton1-v0",
}

BOX_CONTACT, WHEEL_CONTACT = 1, 4


@dataclass(frozen=True)
class Recording:
    """All recorded steps of one task, stacked over episodes. `layout[name]` has one row per step."""

    task: Task[Any]
    arrays: dict[str, np.ndarray]
    layout: dict[str, np.ndarray]
    parts: tuple[tuple[str, int, int], ...]
    contact_names: tuple[str, ...]
    episodes: int

    @property
    def steps(self) -> int:
        return len(self.arrays["action"])

    def pick(self, rows: np.ndarray) -> Recording:
        """These steps alone."""
        return replace(
            self,
            arrays={key: values[rows] for key, values in self.arrays.items()},
            layout={key: values[rows] for key, values in self.layout.items()},
        )

    @property
    def rough(self) -> np.ndarray:
        """Steps whose contacts the engines are known to resolve differently, and the step out of the spawn pose."""
        bits = self.arrays["touch_bits"] & (BOX_CONTACT | WHEEL_CONTACT)
        return (bits != 0) | self.spawn

    @property
    def spawn(self) -> np.ndarray:
        return self.arrays["before_time"] == 0

    @property
    def touches(self) -> np.ndarray:
        """Recorded contacts of the robot, in the order of the task's touchable geoms: (steps, K) bool."""
        column = {name.removesuffix("obj"): i for i, name in enumerate(self.contact_names)}
        return self.arrays["contacts"][:, [column[name] for name in self.task.touchable]] > 0


def recorded_files(name: str) -> list[Path]:
    """The recordings of a task, by what they say they are."""
    return [path for path in sorted(FOLDER.glob("*.npz")) if _meta(path)["task"] == ORIGINAL_NAMES[name]]


def load(name: str) -> Recording:
    """Every recorded step of the task `name`."""
    files = recorded_files(name)
    if not files:
        raise FileNotFoundError(f"no recordings of {ORIGINAL_NAMES[name]} in {FOLDER}")
    return _load(TASKS[name], files)


def load_one(path: Path) -> Recording:
    """The recorded steps of one episode."""
    names = {original: name for name, original in ORIGINAL_NAMES.items()}
    return _load(TASKS[names[_meta(path)["task"]]], [path])


def _load(task: Task[Any], files: list[Path]) -> Recording:
    episodes = [(_meta(path), dict(np.load(path, allow_pickle=False))) for path in files]
    meta = episodes[0][0]
    arrays: dict[str, list[np.ndarray]] = {}
    layout: dict[str, list[np.ndarray]] = {}
    for _, episode in episodes:
        steps = len(episode["action"])
        _into_our_coordinates(task, episode)
        for key, values in episode.items():
            if key.startswith(("layout", "obs_reset", "meta", "mocap_quat")):
                continue
            if len(values) == steps + 1:
                before, after = values[:-1], values[1:]
                if key == "qpos" and task.name.startswith("point"):
                    before, after = _within_a_turn(before, after)
                arrays.setdefault(f"before_{key}", []).append(before)
                arrays.setdefault(f"after_{key}", []).append(after)
            else:
                arrays.setdefault(key, []).append(values)
        for key, values in _layout(episode).items():
            layout.setdefault(key, []).append(np.broadcast_to(values, (steps, *values.shape)))
    return Recording(
        task=task,
        arrays={key: np.concatenate(values) for key, values in arrays.items()},
        layout={key: np.concatenate(values) for key, values in layout.items()},
        parts=tuple((name, start, end) for name, start, end in meta["obs_parts"]),
        contact_names=tuple(meta["contact_names"]),
        episodes=len(episodes),
    )


def physics(recording: Recording, when: str, origin: np.ndarray | None = None) -> PhysicsState:
    """Rows of physics states, `when` = "before" or "after" each step; `origin` (steps, 2) moves the world."""
    arrays = recording.arrays
    qpos = arrays[f"{when}_qpos"]
    if origin is not None:
        qpos = qpos.copy()
        for column in _position_columns(recording.task, qpos.shape[1]):
            qpos[:, column : column + 2] -= origin
    return PhysicsState(
        time=jnp.asarray(arrays[f"{when}_time"], float),
        qpos=jnp.asarray(qpos, float),
        qvel=jnp.asarray(arrays[f"{when}_qvel"], float),
    )


def task_state(recording: Recording, when: str, origin: np.ndarray | None = None) -> Any:
    """Rows of task states, `when` = "before" or "after" each step."""
    arrays, layout = recording.arrays, recording.layout
    shift = np.zeros((recording.steps, 2)) if origin is None else origin

    def at(points: np.ndarray) -> jax.Array:
        return jnp.asarray(points[..., :2] - shift[(slice(None), *[None] * (points.ndim - 2))], float)

    common = {
        "robot": at(layout["agent"]),
        "robot_yaw": jnp.asarray(layout["agent_yaw"], float),
        "hazards": at(layout["hazards"]),
        "distance": jnp.asarray(arrays[f"{when}_last_dist_goal"], float),
        "key": jax.random.split(jax.random.key(0), recording.steps),
    }
    if "goal" in recording.task.name:
        return GoalState(
            vase=at(layout["vases"][:, 0]),
            vase_yaw=jnp.asarray(layout["vases_yaw"][:, 0], float),
            goal=at(arrays[f"{when}_goal_pos"]),
            goals=jnp.zeros(recording.steps, jnp.int32),
            **common,
        )
    return ButtonState(
        buttons=at(layout["buttons"]),
        gremlins=at(layout["gremlins"]),
        gremlin_yaws=jnp.asarray(layout["gremlins_yaw"], float),
        designated=jnp.asarray(arrays[f"{when}_goal_button"], jnp.int32),
        presses=jnp.zeros(recording.steps, jnp.int32),
        timer=jnp.asarray(arrays[f"{when}_button_timer"], jnp.int32),
        **common,
    )


def with_recorded_goal(recording: Recording, state: Any, origin: np.ndarray | None = None) -> Any:
    """`state` after a step, with the goal or button that the original drew where the step was a success."""
    recorded = task_state(recording, "after", origin)
    if isinstance(state, GoalState):
        return replace(state, goal=recorded.goal)
    return replace(state, designated=recorded.designated)


def moved_goal(state: Any, origin: np.ndarray) -> Any:
    """`state` with its goal back in the recording's coordinates."""
    return replace(state, goal=np.asarray(state.goal, float) + origin) if isinstance(state, GoalState) else state


def readings(recording: Recording) -> Readings:
    """What the original measured after each step."""
    return Readings(
        sensors=jnp.asarray(recording.arrays["obs"][:, :3], float),
        touches=jnp.asarray(recording.touches),
        before=jnp.zeros((recording.steps, 0, 0), float),
    )


def _meta(path: Path) -> dict[str, Any]:
    return json.loads(str(np.load(path, allow_pickle=False)["meta"]))


def _layout(episode: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [str(name) for name in episode["layout_names"]]
    groups = {
        "hazards": "hazard",
        "vases": "vase",
        "buttons": "button",
        "gremlins": "gremlin",
    }
    layout = {"agent": episode["layout_pos"][0], "agent_yaw": episode["layout_rot"][0]}
    for group, prefix in groups.items():
        rows = [i for i, name in enumerate(names) if name.startswith(prefix)]
        layout[group] = episode["layout_pos"][rows]
        layout[f"{group}_yaw"] = episode["layout_rot"][rows]
    return layout


def _into_our_coordinates(task: Task[Any], episode: dict[str, np.ndarray]) -> None:
    """The original point's slides run along its axes at spawn; ours along the world's."""
    if not task.name.startswith("point"):
        return
    yaw = float(episode["layout_rot"][0])
    turn = np.asarray([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    qpos, qvel = episode["qpos"], episode["qvel"]
    qpos[:, :2] = episode["layout_pos"][0, :2] + qpos[:, :2] @ turn.T
    qpos[:, 2] += yaw
    qvel[:, :2] = qvel[:, :2] @ turn.T


def _within_a_turn(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole turns taken off the point's heading, equally before and after: large angles cost digits in float32."""
    before, after = before.copy(), after.copy()
    turns = 2 * np.pi * np.round(before[:, 2] / (2 * np.pi))
    before[:, 2] -= turns
    after[:, 2] -= turns
    return before, after


def _position_columns(task: Task[Any], width: int) -> list[int]:
    robot = 3 if task.name.startswith("point") else 13
    return [0, *range(robot, width, 7)]


def layouts(kind: str) -> list[dict[str, np.ndarray]]:
    """The distinct recorded layouts of the `goal` or `button` tasks. One seed means one layout, for either robot."""
    files = [path for robot in ("point", "car") for path in recorded_files(f"{robot}-{kind}")]
    return list({found["robot"].tobytes(): found for found in map(_positions, files)}.values())


def _positions(path: Path) -> dict[str, np.ndarray]:
    """Positions on the floor of a recorded layout, by kind: (K, 2)."""
    found = _layout(dict(np.load(path, allow_pickle=False)))
    return {
        "robot": found["agent"][None, :2],
        "vase": found["vases"][:, :2],
        **{kind: found[kind][:, :2] for kind in ("hazards", "buttons", "gremlins")},
    }
