"""The biped's task: starts in the air in the pose of thirty physics steps of its controllers, the same every time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.physics.interface import PhysicsState, Readings, Scalar
from tailsafe.physics.mjcf import EngineName
from tailsafe.tasks.biped_model import (
    HEIGHT_SHIFT,
    MIRRORED,
    REFERENCE,
    SIDES,
    START,
    biped_mjcf,
    motor_constants,
)
from tailsafe.tasks.legged import HISTORY, LeggedState, LeggedTask, Motors, at_rest

_DEGREES = ((-15, 22.5), (-22.5, 22.5), (-50, 80), (-164, -37), (-140, -30))
# Coordinates of the base and of a leg, and where the five motors' joints are in a leg's.
_BASE_NQ, _LEG_NQ, _MOTOR_POSITIONS = 7, 14, (0, 1, 2, 7, 13)
_BASE_NV, _LEG_NV, _MOTOR_VELOCITIES = 6, 13, (0, 1, 2, 6, 12)


@dataclass(frozen=True)
class BipedTask(LeggedTask):
    """Ten controllers; power is the mean over a control step, and the history is what they saw in its last substep."""

    def mjcf(self, engine: EngineName, *, decorations: str = "", all_sensors: bool = False) -> str:
        return biped_mjcf(engine, touchable=self.touchable, decorations=decorations)

    def try_reset(self, key: PRNGKeyArray) -> tuple[LeggedState, Bool[Array, ""]]:
        settled = _settled(self)
        targets = jnp.tile(jnp.asarray(self.pose, float), (HISTORY, 1))
        errors, velocities = (jnp.asarray(rows, float) for rows in (settled.errors, settled.velocities))
        state = at_rest(jnp.zeros(0, float), self.draw_command(key), errors, velocities, targets)
        return state, jnp.ones((), bool)

    def spawn(self, state: LeggedState) -> PhysicsState:
        qpos, qvel = (jnp.asarray(row, float) for row in (_settled(self).qpos, _settled(self).qvel))
        return PhysicsState(time=jnp.zeros((), float), qpos=qpos, qvel=qvel)

    def spawn_readings(self, state: LeggedState) -> Readings:
        settled = _settled(self)
        return Readings(
            sensors=jnp.zeros(0, float),
            touches=jnp.asarray(settled.touches),
            before=jnp.asarray(settled.before, float),
        )

    def power(self, target: Motors, physics: PhysicsState, readings: Readings) -> Scalar:
        """Mean over motors and substeps of |force x velocity|: a substep's force before the gear, the velocity after.

        Forces: kp (u - q) - kd q', clipped.
        """
        stiffness, damping, largest = (jnp.asarray(row, float) for row in motor_constants())
        positions, velocities = self.joints_before(readings)
        forces = jnp.clip(stiffness * (target - positions) - damping * velocities, -largest, largest)
        _, final = self.joints(physics.qpos, physics.qvel)
        return jnp.abs(forces * jnp.concatenate([velocities[1:], final[None]])).mean()

    def entry(self, physics: PhysicsState, readings: Readings) -> tuple[Motors, Motors]:
        positions, velocities = self.joints_before(readings)
        return positions[-1], velocities[-1]


def biped_task() -> BipedTask:
    """The task with the original's numbers."""
    return BipedTask(
        name="biped",
        gymnasium_id="tailsafe/Biped-v0",
        pose=(0.0, 0.0, 0.6882826, -1.5405409, -1.9) * 2,
        lowest=tuple(math.radians(low) for low, _ in _DEGREES) * 2,
        highest=tuple(math.radians(high) for _, high in _DEGREES) * 2,
        filter_weight=0.5,
        lowest_height=0.7,
        speeds=(-1.0, 1.0),
        phases=(0.0, math.pi),
        site=REFERENCE,
        height_shift=HEIGHT_SHIFT,
        positions=tuple(_BASE_NQ + side * _LEG_NQ + i for side in (0, 1) for i in _MOTOR_POSITIONS),
        velocities=tuple(_BASE_NV + side * _LEG_NV + i for side in (0, 1) for i in _MOTOR_VELOCITIES),
        signs=MIRRORED,
        touchable=tuple(f"{side}_foot" for side in SIDES),
        nq=_BASE_NQ + 2 * _LEG_NQ,
        remembered=10,
        solver_iterations=8,
    )


class _Settled(NamedTuple):
    """After the thirty substeps: qpos, qvel, the last ten states before it, touches, and the history's three rows."""

    qpos: NDArray[np.float64]
    qvel: NDArray[np.float64]
    before: NDArray[np.float64]
    touches: NDArray[np.bool_]
    errors: NDArray[np.float64]
    velocities: NDArray[np.float64]


@cache
def _settled(task: BipedTask) -> _Settled:
    """Let the controllers hold the default pose for three control steps, on the C engine whatever comes later."""
    import mujoco  # late: whoever only wants to know the tasks needs no physics

    model = mujoco.MjModel.from_xml_string(task.mjcf("mujoco"))
    data = mujoco.MjData(model)
    data.qpos[:] = START
    signs, pose = np.asarray(task.signs), np.asarray(task.pose)
    data.ctrl[:] = signs * pose
    before: list[Any] = []
    for _ in range(HISTORY * task.substeps):
        before.append(np.concatenate([data.qpos, data.qvel]))
        mujoco.mj_step(model, data)
    # What the controllers saw in the last substep of every group of ten.
    seen = np.asarray(before)[task.substeps - 1 :: task.substeps]
    joints, rates = seen[:, np.asarray(task.positions)], seen[:, model.nq + np.asarray(task.velocities)]
    return _Settled(
        qpos=data.qpos.copy(),
        qvel=data.qvel.copy(),
        before=np.asarray(before[-task.remembered :]),
        touches=data.sensordata[-len(task.touchable) :] > 0,
        errors=pose - signs * joints,
        velocities=signs * rates,
    )
