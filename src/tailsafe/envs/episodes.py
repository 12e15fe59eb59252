"""Episodes: how a control step ends and how the next episode begins, for one environment and either engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from tailsafe.physics.interface import PhysicsState, Readings, Scalar
from tailsafe.tasks.base import Outcome, Task, reset

# What the original pays when its simulator fails.
UNSTABLE_REWARD = -10.0
# Beyond this MuJoCo itself calls a position or velocity bad.
_LARGEST = 1e10


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Episode:
    """One running episode.

    key: the environment's own key; episode: how many it has begun before this one (episode e is drawn with
    fold_in(key, e)); steps: control steps taken; observation (O,): the latest.
    """

    physics: PhysicsState
    task: Any
    key: PRNGKeyArray
    episode: Int[Array, ""]
    steps: Int[Array, ""]
    observation: Float[Array, " O"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Step:
    """What a control step returned. `observation` is the true last one, also where the episode ended.

    reward (), costs (C,), components: parts of the cost by name, success, terminated, truncated as in `Outcome`;
    unstable: the simulation broke down (then the step is truncated, pays -10, costs nothing, and shows the
    observation from before it); halted: the world stands still from here on.
    """

    observation: Float[Array, " O"]
    reward: Scalar
    costs: Float[Array, " C"]
    components: dict[str, Scalar]
    success: Bool[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    unstable: Bool[Array, ""]
    halted: Bool[Array, ""]

    @property
    def done(self) -> Bool[Array, ...]:
        return self.terminated | self.truncated


def environment_keys(seed: int | Int[Array, ""], num_envs: int) -> PRNGKeyArray:
    """One key per environment. Environment i has the same key in a batch of any size."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(num_envs))


def begin(task: Task[Any], key: PRNGKeyArray, episode: Int[Array, ""]) -> Episode:
    """Draw and start episode number `episode` of the environment with `key`."""
    return start(task, key, episode, reset(task, jax.random.fold_in(key, episode)))


def start(task: Task[Any], key: PRNGKeyArray, episode: Int[Array, ""], state: Any) -> Episode:
    """Start an episode that has been drawn already."""
    physics = task.spawn(state)
    return Episode(
        physics=physics,
        task=state,
        key=key,
        episode=episode,
        steps=jnp.int32(0),
        observation=task.observe(state, physics, task.spawn_readings(state)),
    )


def conclude(
    task: Task[Any], episode: Episode, controls: Float[Array, " U"], physics: PhysicsState, readings: Readings
) -> tuple[Episode, Step]:
    """Judge the control step that took `episode` to `physics`. No reset: the caller decides."""
    halted = task.halted(episode.task)
    moves = _is_stable(episode, physics, readings) & ~halted
    stable = moves | halted  # what a halted world would have done does not matter
    # Nothing that is not a number gets past this line.
    physics = jax.tree.map(lambda new, old: jnp.where(moves, new, old), physics, episode.physics)
    readings = _finite(readings, physics, moves)
    state, outcome = task.advance(episode.task, controls, physics, readings)
    observation = jnp.where(moves, task.observe(state, physics, readings), episode.observation)
    steps = episode.steps + 1
    after = Episode(
        physics=physics, task=state, key=episode.key, episode=episode.episode, steps=steps, observation=observation
    )
    return after, _step(outcome, observation, stable, steps >= task.episode_length, task.halted(state))


def _finite(readings: Readings, physics: PhysicsState, moves: Bool[Array, ""]) -> Readings:
    """The readings of a step that counts; else zeros, and a robot that has not moved."""
    still = jnp.concatenate([physics.qpos, physics.qvel]) if readings.before.size else 0.0
    return Readings(
        sensors=jnp.where(moves, readings.sensors, 0.0),
        touches=readings.touches & moves,
        before=jnp.where(moves, readings.before, still),
    )


def _step(outcome: Outcome, observation: Array, stable: Any, timed_out: Any, halted: Any) -> Step:
    return Step(
        observation=observation,
        reward=jnp.where(stable, outcome.reward, UNSTABLE_REWARD),
        costs=jnp.where(stable, outcome.costs, 0.0),
        components={name: jnp.where(stable, value, 0.0) for name, value in outcome.components.items()},
        success=outcome.success & stable,
        terminated=outcome.terminated & stable,
        truncated=timed_out | ~stable,
        unstable=~stable,
        halted=halted & stable,
    )


def _is_stable(episode: Episode, physics: PhysicsState, readings: Readings) -> Bool[Array, ""]:
    """Finite, of credible size, and the clock advanced (the C engine stops early when it meets a bad state)."""

    def credible(values: Array) -> Any:
        return jnp.all(jnp.isfinite(values) & (jnp.abs(values) < _LARGEST))

    advanced = physics.time > episode.physics.time
    parts = (physics.qpos, physics.qvel, readings.sensors)  # `before` is finite where these are
    return jnp.all(jnp.stack([advanced, *map(credible, parts)]))
