"""Batches of environments on a device: physics, task logic and resets in one program, for `jit` and `scan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.envs.episodes import Episode, Step, begin, conclude, environment_keys, start
from tailsafe.physics.compilation import prepare_jax
from tailsafe.physics.mjx_engine import MjxEngine
from tailsafe.physics.warp_engine import Use, WarpEngine
from tailsafe.tasks.base import Task


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NextEpisode:
    """The episode after the running one, drawn ahead: one attempt per control step until one is valid.

    Layouts with many objects take dozens of attempts. Spread over the hundreds of steps of an episode they cost next to
    nothing; drawn at once, every lane of the batch would wait for the unluckiest.
    """

    task: Any
    valid: Bool[Array, ""]
    attempts: Int[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceState:
    """Running episodes and their successors; every leaf has a leading axis N.

    use: how far the buffers of engine `warp` were filled since the start; None on engine `mjx`, which has none.
    """

    episode: Episode
    following: NextEpisode
    use: Use | None = None


class DeviceBatch:
    """Environments on engine `mjx` or `warp`, as pure functions of a `DeviceState`."""

    def __init__(self, task: Task[Any], engine: MjxEngine | WarpEngine | None = None) -> None:
        self.task = task
        self.engine = engine or MjxEngine(task)

    def init(self, keys: PRNGKeyArray) -> DeviceState:
        """Begin the first episode of the environments with these keys (N,)."""
        episode = self.begin_episodes(self.task, keys)
        use = Use.none(episode.steps.shape) if isinstance(self.engine, WarpEngine) else None
        return DeviceState(episode=episode, following=jax.vmap(self._first_attempt)(episode), use=use)

    @staticmethod
    def begin_episodes(task: Task[Any], keys: PRNGKeyArray) -> Episode:
        """The first episodes of the environments with these keys (N,)."""
        return jax.vmap(lambda key: begin(task, key, jnp.int32(0)))(keys)

    def step(self, state: DeviceState, actions: Float[Array, "N A"]) -> tuple[DeviceState, Step]:
        """One control step everywhere. Ended episodes give way to the next; `Step` still shows their last moment."""
        state, step = self.move(state, actions)
        return self.renew(state, step.done), step

    def move(self, state: DeviceState, actions: Float[Array, "N A"]) -> tuple[DeviceState, Step]:
        """One control step everywhere; ended episodes are left as they are."""
        episode, step, use = jax.vmap(self._step_one)(state.episode, actions)
        if use is not None and state.use is not None:
            use = state.use.merged(use)
        return DeviceState(episode, state.following, use), step

    def check(self, state: DeviceState) -> None:
        """Raise an error where a buffer of the engine was too small, outside of JAX. Leaves may have more axes."""
        if state.use is not None and isinstance(self.engine, WarpEngine):
            self.engine.check(state.use)

    def renew(self, state: DeviceState, done: Bool[Array, " N"]) -> DeviceState:
        """Begin the next episode where `done`, and attempt to draw the ones after."""
        attempt = jax.vmap(self._attempt)
        following = jax.lax.cond(
            jnp.all(state.following.valid), lambda following, _: following, attempt, state.following, state.episode
        )
        # An episode that ends early may find its successor not drawn yet.
        following = jax.lax.while_loop(
            lambda following: jnp.any(done & ~following.valid),
            lambda following: attempt(following, state.episode),
            following,
        )
        renewed: DeviceState = jax.lax.cond(
            jnp.any(done),
            self._begin_where,
            lambda _, unchanged: unchanged,
            done,
            replace(state, following=following),
        )
        return renewed

    def _step_one(self, episode: Episode, action: Float[Array, " A"]) -> tuple[Episode, Step, Use | None]:
        controls = self.task.controls(action, self.task.memory(episode.task))
        inputs = (episode.physics, controls, lambda time: self.task.mocap(episode.task, time))
        use = None
        if isinstance(self.engine, WarpEngine):
            physics, readings, use = self.engine.step_counted(*inputs)
        else:
            physics, readings = self.engine.step(*inputs)
        return *conclude(self.task, episode, controls, physics, readings), use

    def _first_attempt(self, episode: Episode) -> NextEpisode:
        drawn, valid = self.task.try_reset(_attempt_key(episode, jnp.int32(0)))
        return NextEpisode(drawn, valid, jnp.int32(1))

    def _attempt(self, following: NextEpisode, episode: Episode) -> NextEpisode:
        drawn, valid = self.task.try_reset(_attempt_key(episode, following.attempts))
        new = NextEpisode(drawn, valid, following.attempts + 1)
        kept: NextEpisode = jax.tree.map(lambda old, new: jnp.where(following.valid, old, new), following, new)
        return kept

    def _begin_where(self, done: Bool[Array, " N"], state: DeviceState) -> DeviceState:
        def begin_one(ended: Any, episode: Episode, following: NextEpisode) -> Any:
            fresh = start(self.task, episode.key, episode.episode + 1, following.task)
            new = DeviceState(fresh, self._first_attempt(fresh))
            old = DeviceState(episode, following)
            return jax.tree.map(lambda before, after: jnp.where(ended, after, before), old, new)

        started: DeviceState = jax.vmap(begin_one)(done, state.episode, state.following)
        return replace(started, use=state.use)


def device_engine(task: Task[Any], backend: str) -> MjxEngine | WarpEngine:
    """The engine called `mjx` or `warp`."""
    return WarpEngine(task) if backend == "warp" else MjxEngine(task)


def _attempt_key(episode: Episode, attempt: Int[Array, ""]) -> PRNGKeyArray:
    """As in `tasks.base.reset`: the same episode is found, drawn ahead or not."""
    return jax.random.fold_in(jax.random.fold_in(episode.key, episode.episode + 1), attempt)


class DeviceRunner:
    """A `DeviceBatch` with its state: the same interface as `HostBatch`, for callers outside of JAX."""

    def __init__(self, task: Task[Any], num_envs: int, backend: str = "mjx") -> None:
        prepare_jax(mjx=backend == "mjx")
        self.task = task
        self.num_envs = num_envs
        batch = DeviceBatch(task, device_engine(task, backend))
        self._check = batch.check
        self._init = jax.jit(batch.init)
        self._step = jax.jit(batch.step)
        self._renew = jax.jit(batch.renew)

    def reset(self, seed: int) -> Episode:
        """Begin the first episode of every environment."""
        self.state: DeviceState = self._init(environment_keys(seed, self.num_envs))
        return self.episode

    def step(self, actions: Float[NDArray[np.float64], "N A"], *, renew: bool = True) -> Step:
        """One control step everywhere, and the next episode where one ended."""
        if not renew:
            raise NotImplementedError("engines on a device begin the next episode within their step")
        step: Step
        self.state, step = self._step(self.state, jnp.asarray(actions, float))
        self._check(self.state)
        return step

    def renew(self, done: Bool[NDArray[np.bool_], " N"]) -> Episode:
        """Begin the next episode where `done`."""
        self.state = self._renew(self.state, jnp.asarray(done))
        return self.episode

    @property
    def observation(self) -> Float[Array, "N O"]:
        """What the robots see now."""
        return self.state.episode.observation

    @property
    def episode(self) -> Episode:
        """The running episodes: every leaf has a leading axis N."""
        return self.state.episode

    @episode.setter
    def episode(self, episode: Episode) -> None:
        self.state = replace(self.state, episode=episode)

    def close(self) -> None:
        """Nothing to stop."""
