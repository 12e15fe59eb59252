"""Batches of environments on the C engine: native physics, task logic jitted in float64 on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.envs.episodes import Episode, Step, begin, conclude, environment_keys, start
from tailsafe.envs.packing import Packed, Packing
from tailsafe.physics.interface import PhysicsState, Readings
from tailsafe.physics.mujoco_engine import MujocoEngine
from tailsafe.tasks.base import Task, action_size


@contextlib.contextmanager
def float64_on_host() -> Iterator[None]:
    """JAX in double precision on the CPU, for this thread and block alone: the C engine's states are doubles."""
    with jax.enable_x64(True), jax.default_device(_cpu()):
        yield


# Lanes of the jitted programs. XLA's vector code for one lane differs from that for many in the last bit, so that a
# batch of any size goes through programs of this one width, several times or with lanes left idle: environment i is
# then computed by the same instructions whatever the size of its batch.
_WIDTH = 32


class HostBatch:
    """`num_envs` environments on engine `mujoco`.

    One control step is one native call and one jitted call per `_WIDTH` packed states. Lanes whose episode ended begin
    anew in another jitted call, made only when there are any.
    """

    def __init__(self, task: Task[Any], num_envs: int, threads: int | None = None) -> None:
        self.task = task
        self.num_envs = num_envs
        self.engine = MujocoEngine(task, num_envs, threads)
        self._lanes = np.arange(-(-num_envs // _WIDTH) * _WIDTH).reshape(-1, _WIDTH)
        with float64_on_host():
            self._programs = _Programs(task)

    def reset(self, seed: int) -> Episode:
        """Begin the first episode of every environment."""
        with float64_on_host():
            keys = environment_keys(seed, self._lanes.size)
            self._take([self._programs.begin(keys[lanes], lanes < self.num_envs) for lanes in self._lanes])
        return self.episode

    def step(self, actions: Float[NDArray[np.float64], "N A"], *, renew: bool = True) -> Step:
        """One control step everywhere, and the next episode where one ended (unless not `renew`)."""
        with float64_on_host():
            controls = self.next_controls(actions)
            measured = self.engine.step(self._state, controls)
            rows = [part.reshape(self.num_envs, -1) for part in (controls, *measured) if part.size]
            self._take(self._each(self._programs.finish, np.concatenate(rows, axis=1, dtype=np.float64)))
            step: Step = self._part("step")
        if renew and (done := np.asarray(step.done)).any():
            self.renew(done)
        return step

    def next_controls(self, actions: Float[NDArray[np.float64], "N A"]) -> Float[NDArray[np.float64], "N U"]:
        """The actuators' inputs if `actions` came next."""
        controls: NDArray[np.float64] = self.task.controls(np.asarray(actions), self._part("memory"))
        return controls

    def renew(self, done: Bool[NDArray[np.bool_], " N"]) -> Episode:
        """Begin the next episode where `done`."""
        with float64_on_host():
            self._take(self._each(self._programs.renew, done))
        return self.episode

    @property
    def observation(self) -> Float[NDArray[np.float64], "N O"]:
        """What the robots see now."""
        return np.asarray(self._part("observation"))

    @property
    def rows(self) -> Float[NDArray[np.float64], "N S"]:
        """The physics states as the engine takes them: (time, qpos, qvel) per environment."""
        return self._state

    @property
    def episode(self) -> Episode:
        """The running episodes: every leaf has a leading axis N."""
        with float64_on_host():
            episode: Episode = self._part("episode")
        return episode

    @episode.setter
    def episode(self, episode: Episode) -> None:
        with float64_on_host():
            rows = np.minimum(self._lanes, self.num_envs - 1)
            self._take([self._programs.load(jax.tree.map(lambda leaf, row=row: leaf[row], episode)) for row in rows])

    def close(self) -> None:
        """Stop the engine's threads."""
        self.engine.close()

    def _each(self, program: Callable[..., Any], *batches: NDArray[Any]) -> list[Any]:
        """`program` on the packed episodes and on the rows of `batches` (leading axis N), `_WIDTH` lanes at a time."""
        padded = [_padded(batch, self._lanes.size) for batch in batches]
        return [
            program(packed, *(batch[lanes[0] : lanes[0] + _WIDTH] for batch in padded))
            for packed, lanes in zip(self._packed, self._lanes, strict=True)
        ]

    def _join(self, *parts: Array) -> NDArray[Any]:
        """Results of `_each` as one NumPy batch, without the idle lanes."""
        whole = np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0])
        return whole[: self.num_envs]

    def _take(self, results: list[tuple[Packed, Array]]) -> None:
        """Make these the running episodes, and hand the engine what it needs for the next step."""
        self._packed = [packed for packed, _ in results]
        self._seen: Any = jax.tree.map(self._join, *self._packed)
        self._state = np.ascontiguousarray(self._part("state"))
        self.engine.set_mocap(self._join(*(mocap for _, mocap in results)))

    def _part(self, name: str) -> Any:
        return self._programs.packing.unpack(self._seen, name)


class _Programs:
    """The jitted functions of a task on the host, from packed batches to packed batches and the next mocap poses.

    A packed batch holds the episodes, the step that led there, and the states that the next native call takes. The
    poses of its substeps stay beside it: they can be most of the numbers, and no program reads them.
    """

    def __init__(self, task: Task[Any]) -> None:
        self._task = task
        key = jax.eval_shape(jax.random.key, 0)
        episode = jax.eval_shape(lambda key: begin(task, key, jnp.int32(0)), key)
        self._readings = jax.eval_shape(task.spawn_readings, episode.task)
        memory = jax.eval_shape(task.memory, episode.task)
        self._controls = jax.eval_shape(task.controls, jnp.zeros(action_size(task)), memory)
        _, self._step = jax.eval_shape(
            partial(conclude, task), episode, self._controls, episode.physics, self._readings
        )
        state, _ = jax.eval_shape(partial(_prepare, task), episode)
        self.packing = Packing(
            episode=episode,
            step=self._step,
            state=state,
            observation=episode.observation,
            memory=memory,
        )
        self.begin = jax.jit(lambda keys, busy: self._pack(_begin(task, keys, busy)))
        self.renew = jax.jit(lambda packed, done: self._pack(_renew(task, self._episode(packed), done)))
        self.load = jax.jit(self._pack)
        self.finish = jax.jit(self._finish)

    def _episode(self, packed: Packed) -> Any:
        return self.packing.unpack(packed, "episode")

    def _pack(self, episode: Episode, step: Step | None = None) -> tuple[Packed, Float[Array, "N T M7"]]:
        size = episode.steps.shape[0]
        if step is None:
            step = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), self._step)
        state, mocap = jax.vmap(partial(_prepare, self._task))(episode)
        memory = jax.vmap(self._task.memory)(episode.task)
        packed = self.packing.pack(
            episode=episode, step=step, state=state, observation=episode.observation, memory=memory
        )
        return packed, mocap

    def _finish(self, packed: Packed, measured: Float[Array, "N M"]) -> tuple[Packed, Float[Array, "N T M7"]]:
        """measured: controls and the parts of `Measured`, side by side."""
        readings = self._readings

        def finish_one(old: Episode, row: Array) -> tuple[Episode, Step]:
            qpos, qvel = old.physics.qpos, old.physics.qvel
            like = (self._controls, old.physics.time, qpos, qvel, readings.sensors, readings.touches, readings.before)
            ends = np.cumsum([leaf.size for leaf in like])[:-1]
            controls, time, *rest = (
                part.reshape(leaf.shape) for part, leaf in zip(jnp.split(row, ends), like, strict=True)
            )
            qpos, qvel, sensors, touches, before = rest
            physics = PhysicsState(time=time, qpos=qpos, qvel=qvel)
            return conclude(self._task, old, controls, physics, Readings(sensors, touches > 0, before))

        episode, step = jax.vmap(finish_one)(self._episode(packed), measured)
        return self._pack(episode, step)


def _begin(task: Task[Any], keys: PRNGKeyArray, busy: Bool[Array, " N"]) -> Any:
    """The first episodes of the environments with these keys, where `busy`; anything elsewhere."""
    idle = start(task, keys[0], jnp.int32(0), task.try_reset(keys[0])[0])

    def begin_one(lane: tuple[PRNGKeyArray, Any]) -> Any:
        key, wanted = lane
        return jax.lax.cond(wanted, lambda: begin(task, key, jnp.int32(0)), lambda: idle)

    # One after the other: drawing a layout takes between one and hundreds of attempts.
    return jax.lax.map(begin_one, (keys, busy))


def _renew(task: Task[Any], episode: Episode, done: Bool[Array, " N"]) -> Any:
    def renew_one(lane: tuple[Episode, Any]) -> Any:
        old, ended = lane
        return jax.lax.cond(ended, lambda: begin(task, old.key, old.episode + 1), lambda: old)

    return jax.lax.map(renew_one, (episode, done))


def _prepare(task: Task[Any], episode: Episode) -> tuple[Float[Array, " S"], Float[Array, "T M7"]]:
    """What the next native call needs: the state as one row, and mocap poses for every substep."""
    physics = episode.physics
    row = jnp.concatenate([physics.time[None], physics.qpos, physics.qvel])
    times = physics.time + task.timestep * jnp.arange(task.substeps)
    mocap = jax.vmap(lambda time: task.mocap(episode.task, time))(times)
    flat = [poses.reshape(task.substeps, -1) for poses in (mocap.position, mocap.quaternion)]
    return row, jnp.concatenate(flat, axis=1)


def _padded(batch: NDArray[Any], size: int) -> NDArray[Any]:
    """`batch` with rows of zeros up to `size`."""
    if len(batch) == size:
        return batch
    padded = np.zeros((size, *batch.shape[1:]), batch.dtype)
    padded[: len(batch)] = batch
    return padded


@cache
def _cpu() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]
