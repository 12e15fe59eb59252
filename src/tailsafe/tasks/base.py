"""What a task is: pure functions between a physics engine and a learner.

An engine integrates a `PhysicsState` and measures `Readings`; everything else (where things stand, what the robot
sees, what it earns and what it costs, how an episode begins) is a pure JAX function of those two, the task's own
state and a random key. The functions are written for one environment and any float type: the C engine calls them
jitted and vmapped in float64, the MJX engine inside its own program in float32. No second implementation exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.physics.interface import Mocap, PhysicsState, Readings, Scalar, Simulated

State = TypeVar("State")
# A NumPy or a JAX array.
AnyArray = TypeVar("AnyArray", bound=Any)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outcome:
    """What one control step brought.

    reward: (); costs (C,): the constrained costs, one per limit; components: every part of the cost by name;
    success: the task's goal was met in this step; terminated: the episode cannot continue.
    """

    reward: Scalar
    costs: Float[Array, " C"]
    components: dict[str, Scalar]
    success: Bool[Array, ""]
    terminated: Bool[Array, ""]


@dataclass(frozen=True)
class CostLimit:
    """The limit a task comes with: `value` per control step, as in the paper's cost rates."""

    name: str
    value: float


class Task(Simulated, Protocol[State]):
    """What a task adds to its model: resets, observations, rewards, costs. `State` is a pytree of its choosing."""

    @property
    def gymnasium_id(self) -> str: ...

    @property
    def family(self) -> str:
        """Whose presets it is trained with: `navigation` or `legged`."""

    @property
    def episode_length(self) -> int:
        """Control steps until an episode is truncated."""

    @property
    def timestep(self) -> float:
        """Seconds per physics step."""

    @property
    def action_reach(self) -> tuple[float, ...]:
        """Actions lie in the box of these half widths around zero."""

    @property
    def effective_reach(self) -> tuple[float, ...]:
        """What of that box a learner acts in: beyond these half widths an actuator is at its force limit, and all
        actions are one.
        """

    @property
    def observation_parts(self) -> tuple[tuple[str, int], ...]:
        """Name and width of each part of the observation, in order."""

    @property
    def limits(self) -> tuple[CostLimit, ...]:
        """One entry per constrained cost."""

    @property
    def followed(self) -> str | None:
        """The body that a camera follows, None for one that sees the whole arena."""

    def scenery(self) -> str:
        """MJCF of what only the eye sees: one static body per name that `scenery_positions` places."""

    def scenery_positions(self, state: State) -> dict[str, Float[Array, " 3"]]:
        """Where the scenery stands [m]."""

    def try_reset(self, key: PRNGKeyArray) -> tuple[State, Bool[Array, ""]]:
        """One attempt at drawing an episode, and whether it is a valid one."""

    def spawn(self, state: State) -> PhysicsState:
        """The physics state an episode starts in."""

    def spawn_readings(self, state: State) -> Readings:
        """What the engine measures there."""

    def memory(self, state: State) -> Float[Array, " F"]:
        """What of the state, besides the action, decides the next controls."""

    def controls(self, action: AnyArray, memory: AnyArray) -> AnyArray:
        """Actuator inputs (..., nu) of a control step under `action` (..., A) with `memory` (..., F).

        NumPy arrays give NumPy arrays: for so little work the C engine does not wait for JAX.
        """

    def halted(self, state: State) -> Bool[Array, ""]:
        """Whether the world stands still: physics and observation stay what they are until the episode ends."""

    def mocap(self, state: State, time: Scalar) -> Mocap:
        """Poses of the mocap bodies during the substep that starts at `time`."""

    def advance(
        self, state: State, controls: Float[Array, " U"], physics: PhysicsState, readings: Readings
    ) -> tuple[State, Outcome]:
        """Judge a control step under `controls` by the physics after it."""

    def observe(self, state: State, physics: PhysicsState, readings: Readings) -> Float[Array, " O"]:
        """What the robot sees."""


def action_size(task: Task[Any]) -> int:
    """Width of an action."""
    return len(task.action_reach)


def task_units(task: Task[Any], embedded: AnyArray) -> AnyArray:
    """A learner's actions (..., A) in [-1, 1] as the task's, as far as these make a difference."""
    scaled: AnyArray = embedded * np.asarray(task.effective_reach, embedded.dtype)
    return scaled


def observation_size(task: Task[Any]) -> int:
    """Width of the observation."""
    return sum(width for _, width in task.observation_parts)


def reset(task: Task[State], key: PRNGKeyArray, max_attempts: int = 10_000) -> State:
    """Draw an episode: attempts with keys fold_in(key, 0), fold_in(key, 1), ... until one is valid."""

    def unfinished(carry: tuple[State, Any, Any]) -> Any:
        _, valid, attempt = carry
        return ~valid & (attempt < max_attempts)

    def next_attempt(carry: tuple[State, Any, Any]) -> tuple[State, Any, Any]:
        _, _, attempt = carry
        return (*task.try_reset(jax.random.fold_in(key, attempt)), attempt + 1)

    state, valid = task.try_reset(jax.random.fold_in(key, 0))
    state, _, _ = jax.lax.while_loop(unfinished, next_attempt, (state, valid, jax.numpy.int32(1)))
    return state
