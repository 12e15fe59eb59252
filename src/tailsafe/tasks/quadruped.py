"""The quadruped's task: starts a little tilted with its joints disturbed, a few centimetres above the floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.physics.interface import PhysicsState, Readings, Scalar
from tailsafe.physics.mjcf import EngineName
from tailsafe.tasks.legged import HISTORY, LeggedState, LeggedTask, Motors, at_rest
from tailsafe.tasks.placement import uniform
from tailsafe.tasks.quadruped_model import (
    CONTACT_MARGIN,
    HIPS,
    LEGS,
    LINK,
    SHOULDER,
    TOE_RADIUS,
    TORQUE_LIMIT,
    TORQUE_STIFFNESS,
    quadruped_mjcf,
)
from tailsafe.tasks.rotations import quaternion_matrix

START_HEIGHT = 0.45
NOISE = 0.1
# Feet 0.4 m below the hips.
_LEG_POSE = (0.0, -math.acos(0.8), 2 * math.acos(0.8))
_BASE_NV, _NV = 6, 18


@dataclass(frozen=True)
class QuadrupedTask(LeggedTask):
    """Twelve position servos; power and history are those at the end of a control step."""

    def mjcf(self, engine: EngineName, *, decorations: str = "", all_sensors: bool = False) -> str:
        return quadruped_mjcf(engine, touchable=self.touchable, decorations=decorations)

    def try_reset(self, key: PRNGKeyArray) -> tuple[LeggedState, Bool[Array, ""]]:
        tilt_key, joint_key, command_key = jax.random.split(key, 3)
        quaternion = jnp.zeros(4, float).at[0].set(1.0) + uniform(tilt_key, (4,), -NOISE, NOISE)
        pose, lowest, highest = (jnp.asarray(row, float) for row in (self.pose, self.lowest, self.highest))
        joints = jnp.clip(pose + uniform(joint_key, (len(self.pose),), -NOISE, NOISE), lowest, highest)
        position = jnp.asarray([0.0, 0.0, START_HEIGHT], float)
        start = jnp.concatenate([position, quaternion / jnp.linalg.norm(quaternion), joints])
        nothing = jnp.zeros((HISTORY, len(self.pose)), float)
        state = at_rest(start, self.draw_command(command_key), nothing, nothing, jnp.tile(joints, (HISTORY, 1)))
        return state, jnp.ones((), bool)

    def spawn(self, state: LeggedState) -> PhysicsState:
        return PhysicsState(time=jnp.zeros((), float), qpos=state.start, qvel=jnp.zeros(_NV, float))

    def spawn_readings(self, state: LeggedState) -> Readings:
        """At the start itself: nothing has moved yet. A tilted robot may touch the floor there."""
        return Readings(
            sensors=jnp.zeros(0, float),
            touches=toe_heights(state.start) <= CONTACT_MARGIN,
            before=jnp.concatenate([state.start, jnp.zeros(_NV, float)])[None],
        )

    def power(self, target: Motors, physics: PhysicsState, readings: Readings) -> Scalar:
        """Sum of |force x velocity|: the force of the last substep, the velocity after it."""
        positions, _ = self.joints_before(readings)
        _, velocity = self.joints(physics.qpos, physics.qvel)
        force = jnp.clip(TORQUE_STIFFNESS * (target - positions[-1]), -TORQUE_LIMIT, TORQUE_LIMIT)
        return jnp.abs(force * velocity).sum()

    def entry(self, physics: PhysicsState, readings: Readings) -> tuple[Motors, Motors]:
        return self.joints(physics.qpos, physics.qvel)


def quadruped_task() -> QuadrupedTask:
    """The task with the original's numbers."""
    legs = len(LEGS)
    motors = len(_LEG_POSE) * legs
    return QuadrupedTask(
        name="quadruped",
        gymnasium_id="tailsafe/Quadruped-v0",
        pose=_LEG_POSE * legs,
        lowest=(-1.0, -3.0, -2.0) * legs,
        highest=(1.0, 1.5, 2.5) * legs,
        filter_weight=0.75,
        lowest_height=0.35,
        speeds=(-1.0, 2.0),
        phases=(0.0, math.pi, math.pi, 0.0),
        site=(0.0, 0.0, 0.0),
        height_shift=0.0,
        positions=tuple(range(_BASE_NV + 1, _BASE_NV + 1 + motors)),
        velocities=tuple(range(_BASE_NV, _BASE_NV + motors)),
        signs=(1,) * motors,
        touchable=tuple(f"toe_{leg}" for leg in LEGS),
        nq=_NV + 1,
        remembered=1,
        solver_iterations=5,
    )


def toe_heights(qpos: Float[Array, " 19"]) -> Float[Array, " 4"]:
    """Gap between every toe and the floor [m], negative below it."""
    rotation = quaternion_matrix(qpos[3:7])
    abduct, thigh, knee = qpos[7:].reshape(len(LEGS), 3).T
    hips = jnp.asarray([HIPS[leg] for leg in LEGS], float)
    side = jnp.sign(hips[:, 1]) * SHOULDER
    # In the leg's plane, then turned about the hip's x axis. Thigh and knee turn about -y.
    forward = LINK * (jnp.sin(thigh) + jnp.sin(thigh + knee))
    down = LINK * (jnp.cos(thigh) + jnp.cos(thigh + knee))
    across = side * jnp.cos(abduct) + down * jnp.sin(abduct)
    up = side * jnp.sin(abduct) - down * jnp.cos(abduct)
    toes = hips + jnp.stack([forward, across, up], axis=1)
    return qpos[2] + toes @ rotation[2] - TOE_RADIUS
