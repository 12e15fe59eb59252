"""What the quadruped and the biped share: follow a commanded velocity upright, high enough and in step with a clock.

The policy moves the targets of joint controllers around a default pose, through a low-pass filter that starts at zero.
Velocities are those of the base in its heading frame. A robot that has tipped over by 90 degrees stays as it is until
its episode ends: the world is halted, and every further step brings what the falling one brought.

Readings lag: pose, contacts and forces are those of the last physics step, joint positions and velocities are those
after it (docs/legged.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from tailsafe.physics.interface import Mocap, PhysicsState, Readings, Scalar
from tailsafe.tasks.base import AnyArray, CostLimit, Outcome
from tailsafe.tasks.legged_model import TIMESTEP
from tailsafe.tasks.placement import uniform
from tailsafe.tasks.rotations import quaternion_matrix, yaw_matrix

Motors = Float[Array, " A"]

HISTORY = 3
GRAVITY = 9.8
LARGEST_TILT = math.radians(15)
YAW_RATES = (-0.5, 0.5)
CLOCK_RATE = 10.0
CONTROL_PERIOD = 0.02
REWARD_SCALE = 0.1
POWER_WEIGHT = 0.001
LIMITS = (CostLimit("balance", 0.025), CostLimit("height", 0.025), CostLimit("foot_timing", 0.4))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LeggedState:
    """Commands and bookkeeping of one episode.

    start (Q,): what was drawn of the joint positions it starts in. command (2,): forward speed [m/s], yaw rate [rad/s].
    clock: control steps taken. target (A,): the filtered joint targets u [rad]. errors, velocities, targets (3, A): of
    the last three control steps, oldest first. fallen: tipped over by 90 degrees or more. reward, costs (3,): of the
    last step.
    """

    start: Float[Array, " Q"]
    command: Float[Array, " 2"]
    clock: Int[Array, ""]
    target: Motors
    errors: Float[Array, "3 A"]
    velocities: Float[Array, "3 A"]
    targets: Float[Array, "3 A"]
    fallen: Bool[Array, ""]
    reward: Scalar
    costs: Float[Array, " 3"]


class Base(NamedTuple):
    """The robot's base: gravity (3,) [m/s^2] as `LeggedTask.base` says, velocity (3,) [m/s] and spin (3,) [rad/s] in
    the heading frame, height [m], upright: cosine of its tilt."""

    gravity: Float[Array, " 3"]
    velocity: Float[Array, " 3"]
    spin: Float[Array, " 3"]
    height: Scalar
    upright: Scalar


@dataclass(frozen=True)
class LeggedTask(ABC):
    """A legged robot and its task.

    pose (A,): default joint angles q*. lowest, highest (A,): limits of targets [rad]. filter_weight: w of the targets'
    low-pass filter. lowest_height: of the base [m]. speeds: range of the forward command [m/s]. phases: of the legs'
    clocks at time zero [rad]. site (3,): the reference site in the base's frame [m]. height_shift: between the third
    coordinate and the base's height [m]. positions, velocities (A,): where the motors' joints are in qpos and qvel;
    signs (A,): -1 where a joint turns the other way than its target.
    """

    name: str
    gymnasium_id: str
    pose: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    filter_weight: float
    lowest_height: float
    speeds: tuple[float, float]
    phases: tuple[float, ...]
    site: tuple[float, float, float]
    height_shift: float
    positions: tuple[int, ...]
    velocities: tuple[int, ...]
    signs: tuple[int, ...]
    touchable: tuple[str, ...]
    nq: int
    remembered: int
    solver_iterations: int
    line_search_iterations: int = 6
    family: str = "legged"
    episode_length: int = 500
    substeps: int = 10
    timestep: float = TIMESTEP
    limits: tuple[CostLimit, ...] = LIMITS
    lagging: bool = True
    toucher: str | None = None
    followed: str | None = "base"

    @property
    def action_reach(self) -> tuple[float, ...]:
        """Far enough to reach both limits of every target, in single precision as in the original."""
        rows = zip(self.pose, self.lowest, self.highest, strict=True)
        return tuple(float(np.float32(max(abs(low - pose), abs(high - pose)))) for pose, low, high in rows)

    @property
    def effective_reach(self) -> tuple[float, ...]:
        return self.action_reach

    @property
    def observation_parts(self) -> tuple[tuple[str, int], ...]:
        motors, legs = len(self.pose), len(self.phases)
        return (
            ("linear_command", 3),
            ("angular_command", 3),
            ("gravity", 3),
            ("linear_velocity", 3),
            ("angular_velocity", 3),
            ("joint_positions", motors),
            ("joint_velocities", motors),
            ("phases", 2 * legs),
            ("joint_errors", HISTORY * motors),
            ("joint_velocity_history", HISTORY * motors),
            ("joint_targets", HISTORY * motors),
            ("foot_contacts", legs),
            ("height", 1),
        )

    @abstractmethod
    def power(self, target: Motors, physics: PhysicsState, readings: Readings) -> Scalar:
        """What the motors spend in a control step [W]."""

    @abstractmethod
    def entry(self, physics: PhysicsState, readings: Readings) -> tuple[Motors, Motors]:
        """Joint positions and velocities that a control step adds to the history."""

    def scenery(self) -> str:
        return ""

    def scenery_positions(self, state: LeggedState) -> dict[str, Float[Array, " 3"]]:
        return {}

    def mocap(self, state: LeggedState, time: Scalar) -> Mocap:
        return Mocap(position=jnp.zeros((0, 3), float), quaternion=jnp.zeros((0, 4), float))

    def memory(self, state: LeggedState) -> Motors:
        return state.target

    def controls(self, action: AnyArray, memory: AnyArray) -> AnyArray:
        """u <- w u + (1 - w) clip(action + q*), in the joints' directions."""
        pose, lowest, highest, signs = (
            np.asarray(row, action.dtype) for row in (self.pose, self.lowest, self.highest, self.signs)
        )
        wanted = (action + pose).clip(lowest, highest)
        controls: AnyArray = signs * (self.filter_weight * memory + (1 - self.filter_weight) * wanted)
        return controls

    def halted(self, state: LeggedState) -> Bool[Array, ""]:
        return state.fallen

    def advance(
        self, state: LeggedState, controls: Float[Array, " U"], physics: PhysicsState, readings: Readings
    ) -> tuple[LeggedState, Outcome]:
        target = jnp.asarray(self.signs, float) * controls
        position, velocity = self.entry(physics, readings)
        base = self.base(physics, readings)
        clock = state.clock + 1
        costs = jnp.stack(
            [
                (base.upright < math.cos(LARGEST_TILT)).astype(float),
                (base.height < self.lowest_height).astype(float),
                jnp.mean((readings.touches == self.swings(clock)).astype(float)),
            ]
        )
        off_course = (state.command[1] - base.spin[2]) ** 2 + (base.velocity[0] - state.command[0]) ** 2
        off_course += base.velocity[1] ** 2
        reward = -REWARD_SCALE * (off_course + POWER_WEIGHT * self.power(target, physics, readings))
        moved = replace(
            state,
            clock=clock,
            target=target,
            errors=_append(state.errors, target - position),
            velocities=_append(state.velocities, velocity),
            targets=_append(state.targets, target),
            fallen=base.upright <= 0,
            reward=reward,
            costs=costs,
        )
        after: LeggedState = jax.tree.map(lambda old, new: jnp.where(state.fallen, old, new), state, moved)
        outcome = Outcome(
            reward=after.reward,
            costs=after.costs,
            components={limit.name: after.costs[i] for i, limit in enumerate(self.limits)},
            success=jnp.zeros((), bool),
            terminated=jnp.zeros((), bool),
        )
        return after, outcome

    def observe(self, state: LeggedState, physics: PhysicsState, readings: Readings) -> Float[Array, " O"]:
        base = self.base(physics, readings)
        position, velocity = self.joints(physics.qpos, physics.qvel)
        nothing = jnp.zeros(2, float)
        angles = self.angles(state.clock)
        return jnp.concatenate(
            [
                state.command[:1],
                nothing,
                nothing,
                state.command[1:],
                base.gravity,
                base.velocity,
                base.spin,
                position,
                velocity,
                jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1).reshape(-1),
                state.errors.reshape(-1),
                state.velocities.reshape(-1),
                state.targets.reshape(-1),
                readings.touches.astype(float),
                base.height[None],
            ]
        )

    def base(self, physics: PhysicsState, readings: Readings) -> Base:
        """The base at the start of the last substep, moving with the velocities after it.

        The heading is atan2(-R01, R00): the usual yaw of an untilted base alone. `gravity` is R (0, 0, -g) in the
        heading frame: -g times the base's z axis, not gravity as the base feels it.
        """
        pose = readings.before[-1, : self.nq]
        rotation = quaternion_matrix(pose[3:7])
        heading = yaw_matrix(jnp.arctan2(-rotation[0, 1], rotation[0, 0]))
        site = rotation @ jnp.asarray(self.site, float)
        spin = rotation @ physics.qvel[3:6]
        return Base(
            gravity=-GRAVITY * rotation[:, 2] @ heading,
            velocity=(physics.qvel[:3] + jnp.cross(spin, site)) @ heading,
            spin=spin @ heading,
            height=pose[2] + self.height_shift + site[2],
            upright=rotation[2, 2],
        )

    def joints(
        self, qpos: Float[Array, "*T nq"], qvel: Float[Array, "*T nv"]
    ) -> tuple[Float[Array, "*T A"], Float[Array, "*T A"]]:
        """Positions [rad] and velocities [rad/s] of the motors' joints, in the directions of their targets."""
        signs = jnp.asarray(self.signs, float)
        return signs * qpos[..., jnp.asarray(self.positions)], signs * qvel[..., jnp.asarray(self.velocities)]

    def joints_before(self, readings: Readings) -> tuple[Float[Array, "H A"], Float[Array, "H A"]]:
        """The same before each of the remembered substeps."""
        return self.joints(readings.before[:, : self.nq], readings.before[:, self.nq :])

    def angles(self, clock: Int[Array, ""]) -> Float[Array, " L"]:
        """Phase of every leg [rad] after `clock` control steps."""
        turned = jnp.asarray(self.phases, float) + CLOCK_RATE * CONTROL_PERIOD * clock
        return jnp.mod(turned, 2 * jnp.pi)

    def swings(self, clock: Int[Array, ""]) -> Bool[Array, " L"]:
        """Whether every leg should be in the air."""
        return jnp.sin(self.angles(clock)) < 0

    def draw_command(self, key: PRNGKeyArray) -> Float[Array, " 2"]:
        """A command that holds for an episode."""
        speed_key, yaw_key = jax.random.split(key)
        return jnp.stack([uniform(speed_key, (), *self.speeds), uniform(yaw_key, (), *YAW_RATES)])


def at_rest(
    start: Float[Array, " Q"],
    command: Float[Array, " 2"],
    errors: Float[Array, "3 A"],
    velocities: Float[Array, "3 A"],
    targets: Float[Array, "3 A"],
) -> LeggedState:
    """The state at the start of an episode: the filter begins at zero, whatever the history shows."""
    return LeggedState(
        start=start,
        command=command,
        clock=jnp.int32(0),
        target=jnp.zeros(targets.shape[1], float),
        errors=errors,
        velocities=velocities,
        targets=targets,
        fallen=jnp.zeros((), bool),
        reward=jnp.zeros((), float),
        costs=jnp.zeros(len(LIMITS), float),
    )


def _append(history: Float[Array, "3 A"], latest: Motors) -> Float[Array, "3 A"]:
    return jnp.concatenate([history[1:], latest[None]])
