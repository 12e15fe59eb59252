"""Batches of environments on the C engine: native physics, task logic jitted in float64 on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.envs.episodes import Episode, Step, begin, conclude, environment_keys
from tailsafe.physics.mujoco_engine import MujocoEngine
from tailsafe.tasks.base import PhysicsState, Readings, Task


@contextlib.contextmanager
def float64_on_host() -> Iterator[None]:
    """JAX in double precision on the CPU, for this thread and block alone: the C engine's states are doubles."""
    with jax.enable_x64(True), jax.default_device(_cpu()):
        yield


class HostBatch:
    """`num_envs` environments on engine `mujoco`.

    One control step is one native call and one jitted call. Lanes whose episode ended begin anew in a second jitted
    call, made only when there are any.
    """

    def __init__(self, task: Task[Any], num_envs: int, threads: int | None = None) -> None:
        self.task = task
        self.num_envs = num_envs
        self.engine = MujocoEngine(task, num_envs, threads)
        self._controls = jax.jit(jax.vmap(task.controls))
        self._begin = jax.jit(partial(_begin, task))
        self._finish = jax.jit(partial(_finish, task))
        self._renew = jax.jit(partial(_renew, task))
        self._prepare = jax.jit(jax.vmap(partial(_prepare, task)))

    def reset(self, seed: int) -> Episode:
        """Begin the first episode of every environment."""
        with float64_on_host():
            self.episode = self._begin(environment_keys(seed, self.num_envs))
        return self.episode

    def step(self, actions: Float[NDArray[np.float64], "N A"], *, renew: bool = True) -> Step:
        """One control step everywhere, and the next episode where one ended (unless not `renew`)."""
        with float64_on_host():
            controls = self._controls(self._episode.task, actions)
            state, sensors, touches = self.engine.step(self._state, np.asarray(controls))
            step: Step
            episode, step, prepared = self._finish(self._episode, state, sensors, touches)
            self._load(episode, prepared)
        if renew and (done := np.asarray(step.done)).any():
            self.renew(done)
        return step

    def renew(self, done: Bool[NDArray[np.bool_], " N"]) -> Episode:
        """Begin the next episode where `done`."""
        with float64_on_host():
            self.episode = self._renew(self._episode, done)
        return self.episode

    @property
    def rows(self) -> Float[NDArray[np.float64], "N S"]:
        """The physics states as the engine takes them: (time, qpos, qvel) per environment."""
        return self._state

    @property
    def episode(self) -> Episode:
        """The running episodes: every leaf has a leading axis N."""
        return self._episode

    @episode.setter
    def episode(self, episode: Episode) -> None:
        with float64_on_host():
            self._load(episode, self._prepare(episode))

    def close(self) -> None:
        """Stop the engine's threads."""
        self.engine.close()

    def _load(self, episode: Episode, prepared: tuple[Array, Array]) -> None:
        state, mocap = prepared
        self._episode = episode
        self._state = np.asarray(state)
        self.engine.set_mocap(np.asarray(mocap))


def _begin(task: Task[Any], keys: PRNGKeyArray) -> Any:
    # One after the other: drawing a layout takes between one and hundreds of attempts.
    return jax.lax.map(lambda key: begin(task, key, jnp.int32(0)), keys)


def _renew(task: Task[Any], episode: Episode, done: Bool[Array, " N"]) -> Any:
    def renew_one(lane: tuple[Episode, Any]) -> Any:
        old, ended = lane
        return jax.lax.cond(ended, lambda: begin(task, old.key, old.episode + 1), lambda: old)

    return jax.lax.map(renew_one, (episode, done))


def _finish(
    task: Task[Any],
    episode: Episode,
    state: Float[Array, "N S"],
    sensors: Float[Array, "N R"],
    touches: Bool[Array, "N K"],
) -> tuple[Episode, Step, tuple[Array, Array]]:
    def finish_one(old: Episode, row: Array, sensors: Array, touches: Array) -> tuple[Episode, Step, Any]:
        nq = old.physics.qpos.shape[0]
        physics = PhysicsState(time=row[0], qpos=row[1 : 1 + nq], qvel=row[1 + nq :])
        new, step = conclude(task, old, physics, Readings(sensors, touches))
        return new, step, _prepare(task, new)

    return jax.vmap(finish_one)(episode, state, sensors, touches)


def _prepare(task: Task[Any], episode: Episode) -> tuple[Float[Array, " S"], Float[Array, "T M7"]]:
    """What the next native call needs: the state as one row, and mocap poses for every substep."""
    physics = episode.physics
    row = jnp.concatenate([physics.time[None], physics.qpos, physics.qvel])
    times = physics.time + task.timestep * jnp.arange(task.substeps)
    mocap = jax.vmap(lambda time: task.mocap(episode.task, time))(times)
    flat = [poses.reshape(task.substeps, -1) for poses in (mocap.position, mocap.quaternion)]
    return row, jnp.concatenate(flat, axis=1)


@cache
def _cpu() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]
