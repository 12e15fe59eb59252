"""One environment of a task, as Gymnasium knows it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tailsafe.envs.host import HostBatch
from tailsafe.envs.vector import action_space, check_actions, fps, observation_space, step_info
from tailsafe.errors import InputError
from tailsafe.tasks import action_size, get_task

RENDER_MODES = ("rgb_array", "human")


class TaskEnv(gymnasium.Env[Any, Any]):
    """`gymnasium.make("tailsafe/PointGoal-v0")`: engine `mujoco`, one environment.

    `info["cost"]` is the vector of constrained costs, `info["cost_<component>"]` each of its parts. The episode is
    truncated at the task's own length; a step after that (or before the first reset) is an error.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES)}  # noqa: RUF012

    def __init__(self, task: str, render_mode: str | None = None, width: int = 480, height: int = 480) -> None:
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise InputError(f"unknown render_mode {render_mode!r}; there are: {', '.join(RENDER_MODES)}")
        self.task = get_task(task)
        self.render_mode = render_mode
        # For whoever wraps it, see `envs.declarations`; costs are indicators.
        self.cost_names = tuple(limit.name for limit in self.task.limits)
        self.largest_costs = (1.0,) * len(self.task.limits)
        self.metadata = {**self.metadata, "render_fps": fps(self.task)}
        self.observation_space = observation_space(self.task, np.float64)
        self.action_space = action_space(self.task)
        self._size = (width, height)
        self._batch = HostBatch(self.task, num_envs=1)
        self._seeded = False
        self._ended = True
        self._renderer: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Begin an episode: the first of `seed`, or the next of the running sequence."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._batch.reset(int(self.np_random.integers(2**31)) if seed is None else seed)
            self._seeded = True
        else:
            self._batch.renew(np.ones(1, bool))
        self._ended = False
        if self.render_mode == "human":
            self.render()
        return np.array(self._batch.episode.observation[0]), {}

    def step(self, action: Any) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """One control step."""
        if self._ended:
            raise InputError("the episode has ended (or never begun): call reset() first")
        actions = check_actions(action, (action_size(self.task),))[None]
        step = self._batch.step(actions, renew=False)
        self._ended = bool(step.done[0])
        if self.render_mode == "human":
            self.render()
        info = {name: value[0] for name, value in step_info(step).items()}
        observation = np.array(step.observation[0])
        return observation, float(step.reward[0]), bool(step.terminated[0]), bool(step.truncated[0]), info

    def render(self) -> NDArray[np.uint8] | None:
        """An RGB image (height, width, 3) for `rgb_array`; `human` draws into a window and returns nothing."""
        if self.render_mode is None:
            raise InputError("pass render_mode='rgb_array' or 'human' to gymnasium.make to render")
        if self._renderer is None:
            from tailsafe.envs.rendering import make_renderer

            self._renderer = make_renderer(self.task, self.render_mode, *self._size)
        episode = self._batch.episode
        return self._renderer.draw(episode)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop threads and close windows."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._batch.close()
