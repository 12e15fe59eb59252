"""Engine `mujoco`: the C engine, all environments in one native call per control step on a thread pool."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

import mujoco
import mujoco.rollout
import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from tailsafe.physics.interface import Simulated

_CONTROL_SPEC = int(
    mujoco.mjtState.mjSTATE_CTRL | mujoco.mjtState.mjSTATE_MOCAP_POS | mujoco.mjtState.mjSTATE_MOCAP_QUAT
)
_STATE_SPEC = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
# Rows of environments that a thread takes at once: small enough to balance contacts against free motion.
_CHUNK = 2

Floats = NDArray[np.float64]

_log = logging.getLogger(__name__)


class Measured(NamedTuple):
    """After a control step of N environments: `state` = (time, qpos, qvel), and `Readings` of each."""

    state: Float[Floats, "N S"]
    sensors: Float[Floats, "N R"]
    touches: Bool[NDArray[np.bool_], "N K"]
    before: Float[Floats, "N H P"]


class MujocoEngine:
    """Steps `num_envs` copies of a task's model together.

    MuJoCo's sensors of a substep belong to the state *before* it. Unless the task wants just those, the native call
    runs one substep more than the control step has, under the same controls and mocap poses: it delivers sensors and
    contacts of the final state, and its own state is discarded.
    """

    def __init__(self, task: Simulated, num_envs: int, threads: int | None = None) -> None:
        _log_engine_warnings()
        self.model = mujoco.MjModel.from_xml_string(task.mjcf("mujoco"))
        self.num_envs = num_envs
        self.substeps = task.substeps
        model = self.model
        width = mujoco.mj_stateSize(model, _STATE_SPEC)
        if width != 1 + model.nq + model.nv:
            raise RuntimeError(f"the engine's state has {width} numbers, expected time, qpos and qvel alone")
        self.threads = min(threads or _cpu_count(), num_envs)
        self._data = [mujoco.MjData(model) for _ in range(self.threads)]
        self._models = [model] * num_envs
        self._pool = mujoco.rollout.Rollout(nthread=self.threads if self.threads > 1 else 0)
        self._touch_sensors = len(task.touchable)
        self._remembered = task.remembered
        steps = task.substeps if task.lagging else task.substeps + 1
        self._control = np.zeros((num_envs, steps, mujoco.mj_stateSize(model, _CONTROL_SPEC)))
        self._states = np.zeros((num_envs, steps, width))
        self._sensors = np.zeros((num_envs, steps, model.nsensordata))

    def set_mocap(self, mocap: Float[Floats, "N T M7"]) -> None:
        """Mocap poses of the next control steps' substeps: positions (M*3), then quaternions (M*4), per substep."""
        self._control[:, : self.substeps, self.model.nu :] = mocap
        self._control[:, self.substeps :, self.model.nu :] = mocap[:, -1:]

    def step(self, state: Float[Floats, "N S"], controls: Float[Floats, "N U"]) -> Measured:
        """One control step from `state` = (time, qpos, qvel) per environment.

        The arrays of the result are views that the next call overwrites.
        """
        self._control[:, :, : self.model.nu] = controls[:, None, :]
        self._pool.rollout(
            self._models,
            self._data,
            state,
            self._control,
            control_spec=_CONTROL_SPEC,
            skip_checks=True,
            nstep=self._control.shape[1],
            state=self._states,
            sensordata=self._sensors,
            chunk_size=_CHUNK,
        )
        split = self.model.nsensordata - self._touch_sensors
        final = self._sensors[:, -1]
        return Measured(
            state=self._states[:, self.substeps - 1],
            sensors=final[:, :split],
            touches=final[:, split:] > 0,
            before=self._before(state),
        )

    def _before(self, start: Float[Floats, "N S"]) -> Float[Floats, "N H P"]:
        if not self._remembered:
            return np.zeros((self.num_envs, 0, start.shape[1] - 1))
        visited = np.concatenate([start[:, None], self._states[:, : self.substeps - 1]], axis=1)
        return visited[:, -self._remembered :, 1:]

    def raw_call(self, state: Float[Floats, "N S"], controls: Float[Floats, "N U"]) -> Callable[[], None]:
        """The native call of the next control step alone, without the substep for sensors and without effect.

        What the engine could do with no task around it, from the same states and under the same controls.
        """
        control = self._control[:, : self.substeps].copy()
        control[:, :, : self.model.nu] = controls[:, None, :]
        states, sensors = (np.empty_like(rows[:, : self.substeps]) for rows in (self._states, self._sensors))
        return lambda: self._pool.rollout(
            self._models,
            self._data,
            state,
            control,
            control_spec=_CONTROL_SPEC,
            skip_checks=True,
            nstep=self.substeps,
            state=states,
            sensordata=sensors,
            chunk_size=_CHUNK,
        )

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()


def _log_engine_warnings() -> None:
    """Send MuJoCo's warnings to `logging`: left alone it appends them to MUJOCO_LOG.TXT in the working directory.

    The handler is the process's only one, so that one of the user's stays.
    """
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log.warning)


def _cpu_count() -> int:
    """Cores this process may use, which a container or `taskset` may have reduced."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
