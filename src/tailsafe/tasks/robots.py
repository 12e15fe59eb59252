"""The two robots: where they are, how they feel, how they start. Their bodies are in `tailsafe.physics.mjcf`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float

from tailsafe.physics.mjcf import SPAWN_HEIGHT, RobotName
from tailsafe.tasks.rotations import quaternion_matrix, yaw_matrix, yaw_quaternion

MAGNETIC_FIELD = (0.0, -0.5, 0.0)

Vector = Float[Array, " 3"]
Matrix = Float[Array, "3 3"]


class Robot(Protocol):
    """A robot whose joints come first in qpos and qvel."""

    @property
    def name(self) -> RobotName: ...

    @property
    def nq(self) -> int: ...

    @property
    def nv(self) -> int: ...

    @property
    def sensor_parts(self) -> tuple[tuple[str, int], ...]:
        """Name and width of the parts that `feel` concatenates."""

    @property
    def effective_reach(self) -> tuple[float, ...]:
        """See `Task.effective_reach`."""

    @property
    def spawn_accelerometer(self) -> tuple[float, float, float]:
        """What the accelerometer reads at rest at the start of an episode, in the robot frame [m/s^2]."""

    def rest(self, position: Float[Array, " 2"], yaw: Float[Array, ""]) -> Float[Array, " nq"]:
        """Joint positions of a robot placed at `position` [m] with heading `yaw` [rad]."""

    def pose(self, qpos: Float[Array, " n"]) -> tuple[Vector, Matrix]:
        """Origin in the world [m], and rotation from robot to world frame."""

    def feel(self, qpos: Float[Array, " n"], qvel: Float[Array, " m"], accelerometer: Vector) -> Float[Array, " S"]:
        """Body sensors. All but the accelerometer follow from the joint state."""


_COMMON_PARTS = (("accelerometer", 3), ("velocimeter", 3), ("gyro", 3), ("magnetometer", 3))


@dataclass(frozen=True)
class Point:
    """Slides freely over the plane, pushed along its nose (+x) and turned by a velocity servo."""

    name: RobotName = "point"
    nq: int = 3
    nv: int = 3
    sensor_parts: tuple[tuple[str, int], ...] = _COMMON_PARTS
    # Thrust is limited to 0.05; turning is a speed that a servo holds.
    effective_reach: tuple[float, ...] = (0.05, 1.0)
    spawn_accelerometer: tuple[float, float, float] = (0.0, 0.0, 9.81)

    def rest(self, position: Float[Array, " 2"], yaw: Float[Array, ""]) -> Float[Array, " 3"]:
        return jnp.append(position, yaw)

    def pose(self, qpos: Float[Array, " n"]) -> tuple[Vector, Matrix]:
        return jnp.append(qpos[:2], SPAWN_HEIGHT), yaw_matrix(qpos[2])

    def feel(self, qpos: Float[Array, " n"], qvel: Float[Array, " m"], accelerometer: Vector) -> Float[Array, " 12"]:
        _, rotation = self.pose(qpos)
        velocity = jnp.append(qvel[:2], 0.0) @ rotation
        gyro = jnp.zeros(3, qvel.dtype).at[2].set(qvel[2])
        return jnp.concatenate([accelerometer, velocity, gyro, _magnetometer(rotation)])


@dataclass(frozen=True)
class Car:
    """Two driven wheels and a ball that trails along; forward is the body's -y."""

    name: RobotName = "car"
    nq: int = 13
    nv: int = 11
    sensor_parts: tuple[tuple[str, int], ...] = (*_COMMON_PARTS, ("ballangvel_rear", 3), ("ballquat_rear", 9))
    # The torque limit of both wheels.
    effective_reach: tuple[float, ...] = (0.02, 0.02)
    # All three wheels touch the floor at distance zero, which rounding may turn into no contact: of twenty recorded
    # resets fourteen read this value and six that of a car resting on two wheels.
    spawn_accelerometer: tuple[float, float, float] = (0.0, -0.0133941127, 9.52894317)

    def rest(self, position: Float[Array, " 2"], yaw: Float[Array, ""]) -> Float[Array, " 13"]:
        upright = jnp.asarray([1.0, 0.0, 0.0, 0.0], position.dtype)
        return jnp.concatenate(
            [position, jnp.full(1, SPAWN_HEIGHT, position.dtype), yaw_quaternion(yaw), jnp.zeros(2), upright]
        )

    def pose(self, qpos: Float[Array, " n"]) -> tuple[Vector, Matrix]:
        return qpos[:3], quaternion_matrix(qpos[3:7])

    def feel(self, qpos: Float[Array, " n"], qvel: Float[Array, " m"], accelerometer: Vector) -> Float[Array, " 24"]:
        _, rotation = self.pose(qpos)
        ball = quaternion_matrix(qpos[9:13]).reshape(9)
        velocity = qvel[:3] @ rotation
        return jnp.concatenate([accelerometer, velocity, qvel[3:6], _magnetometer(rotation), qvel[8:11], ball])


def _magnetometer(rotation: Matrix) -> Vector:
    return jnp.asarray(MAGNETIC_FIELD, rotation.dtype) @ rotation
