"""Batches of a task as a Gymnasium vector environment, on either engine."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from tailsafe.envs.episodes import Episode, Step
from tailsafe.errors import InputError
from tailsafe.tasks import Task, action_size, get_task, observation_size

Backend = Literal["mujoco", "warp", "mjx"]
BACKENDS: tuple[Backend, ...] = ("mujoco", "warp", "mjx")

# Parts of an observation that cannot leave these bounds; the others have none.
_BOUNDS = {"magnetometer": (-0.5, 0.5), "ballquat_rear": (-1.0, 1.0)}
_LIDAR_BOUNDS = (0.0, 1.0)
# Rounding may carry a bounded value a little over.
_SLACK = 1e-6


class Batch(Protocol):
    """What the two engines' batches have in common."""

    task: Task[Any]
    num_envs: int
    episode: Episode

    @property
    def observation(self) -> Any: ...

    def reset(self, seed: int) -> Episode: ...
    def step(self, actions: Float[NDArray[np.float64], "N A"], *, renew: bool = True) -> Step: ...
    def renew(self, done: Bool[NDArray[np.bool_], " N"]) -> Episode: ...
    def close(self) -> None: ...


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` environments of one task, stepped together.

    An episode that ends is followed by the next within the same step: the returned observation is the new episode's
    first, `info["final_obs"]` holds the true last one of every environment, and reward, costs and flags belong to the
    step that ended it. `info["cost"]` is (N, C), one column per constrained cost; `info["cost_<component>"]`,
    `info["success"]` and `info["unstable"]` are (N,).

    `counts` sums episodes ended, and those that ended because the simulation broke down.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(self, batch: Batch, seed: int = 0) -> None:
        self.batch = batch
        self.task = batch.task
        self.num_envs = batch.num_envs
        self.metadata = {**self.metadata, "render_fps": fps(self.task)}
        self._seed = seed
        self._started = False
        dtype = np.asarray(batch.reset(seed).observation).dtype
        self.single_observation_space = observation_space(self.task, dtype)
        self.single_action_space = action_space(self.task)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.counts = {"episodes": 0, "unstable": 0}

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin new episodes everywhere; with `seed` (one integer) from the start of that seed's sequence."""
        if isinstance(seed, list):
            raise InputError("seed one integer for the whole batch: environment i derives its own from it")
        if seed is not None:
            self._seed = int(seed)
            self.batch.reset(self._seed)
        elif self._started:
            self.batch.renew(np.ones(self.num_envs, bool))
        self._started = True
        return np.asarray(self.batch.observation), {}

    def step(self, actions: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One control step in every environment; `actions` is (N, A)."""
        step = self.batch.step(check_actions(actions, (self.num_envs, action_size(self.task))))
        self._started = True
        done = np.asarray(step.done)
        info = step_info(step)
        if done.any():
            self.counts["episodes"] += int(done.sum())
            self.counts["unstable"] += int(info["unstable"].sum())
            info["final_obs"], info["_final_obs"] = np.asarray(step.observation), done
        return (
            np.asarray(self.batch.observation),
            np.asarray(step.reward),
            np.asarray(step.terminated),
            np.asarray(step.truncated),
            info,
        )

    def close_extras(self, **kwargs: Any) -> None:
        self.batch.close()


def make_vec(
    task: str | Task[Any],
    num_envs: int = 1,
    backend: Backend | Literal["auto"] = "auto",
    seed: int = 0,
    threads: int | None = None,
) -> VectorEnv:
    """A batch of environments.

    Args:
      task: its name (`point-goal`) or Gymnasium id.
      backend: `mujoco` (C engine on `threads` cores, default all), `warp` (CUDA GPU), `mjx` (JAX), or `auto`: see
        `usual_backend`.
      seed: environment i of a seed is the same in a batch of any size and on either engine.
      num_envs: how many.
      threads: of the C engine.

    Returns:
      A vector environment of Gymnasium; `info["cost"]` has a row of costs for each environment.

    Examples:
      >>> envs = ts.make_vec("point-goal", num_envs=2, seed=0)
      >>> envs.num_envs, envs.action_space.shape
      (2, (2, 2))
      >>> envs.close()
    """
    chosen = get_task(task) if isinstance(task, str) else task
    if num_envs < 1:
        raise InputError(f"num_envs must be at least 1, got {num_envs}")
    return VectorEnv(make_batch(chosen, num_envs, backend, threads), seed)


def make_batch(task: Task[Any], num_envs: int, backend: str, threads: int | None = None) -> Batch:
    """The engine's batch of a task."""
    if backend == "auto":
        backend = usual_backend()
    if backend == "mujoco":
        from tailsafe.envs.host import HostBatch

        return HostBatch(task, num_envs, threads)
    if backend in ("warp", "mjx"):
        from tailsafe.envs.device import DeviceRunner

        return DeviceRunner(task, num_envs, backend)
    raise InputError(f"unknown backend {backend!r}; there are: auto, {', '.join(BACKENDS)}")


def usual_backend() -> Backend:
    """The engine for this machine: `mujoco` without a GPU, `warp` on a CUDA GPU where it is installed, else `mjx`."""
    import jax

    if jax.default_backend() == "cpu":
        return "mujoco"
    from tailsafe.physics.warp_engine import warp_installed

    return "warp" if jax.devices()[0].platform in ("gpu", "cuda") and warp_installed() else "mjx"


def check_actions(actions: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """`actions` as float64, or an error that says what is wrong with them."""
    try:
        array = np.asarray(actions, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"actions must be numbers of shape {shape}: {error}") from None
    if array.shape != shape:
        raise InputError(f"actions must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InputError(f"actions must be finite; entry {where} is {array[where]}")
    return array


def step_info(step: Step) -> dict[str, Any]:
    """The info of a step, or of a batch of steps."""
    components = {f"cost_{name}": np.asarray(value) for name, value in step.components.items()}
    return {
        "cost": np.asarray(step.costs),
        **components,
        "cost_sum": np.asarray(step.costs).sum(axis=-1),
        "success": np.asarray(step.success),
        "unstable": np.asarray(step.unstable),
    }


def observation_space(task: Task[Any], dtype: Any) -> gymnasium.spaces.Box:
    """Lidars lie in [0, 1], field and rotation in their bounds; velocities and accelerations have none."""
    low, high = [], []
    for name, width in task.observation_parts:
        bound = _LIDAR_BOUNDS if name.endswith("_lidar") else _BOUNDS.get(name, (-math.inf, math.inf))
        low += [bound[0] - _SLACK] * width
        high += [bound[1] + _SLACK] * width
    assert len(low) == observation_size(task)
    return gymnasium.spaces.Box(np.asarray(low, dtype), np.asarray(high, dtype), dtype=dtype)


def action_space(task: Task[Any]) -> gymnasium.spaces.Box:
    """Actions beyond these bounds are clipped."""
    reach = np.asarray(task.action_reach)
    return gymnasium.spaces.Box(-reach, reach, dtype=np.float64)


def fps(task: Task[Any]) -> int:
    """Control steps per simulated second."""
    return round(1.0 / (task.timestep * task.substeps))
