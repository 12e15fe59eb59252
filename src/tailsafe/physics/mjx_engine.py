"""Engine `mjx`: physics as a pure JAX function of one environment, for `jit`, `vmap` and `scan` on CPU or GPU."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Float

from tailsafe.physics.mjx_collisions import exact_sphere_cylinder
from tailsafe.tasks.base import Mocap, PhysicsState, Readings, Scalar, Task

# Every one of them is computed in every Newton iteration, converged or not. Recordings show no difference between 3
# and 8 with any robot; with 2 the vase's velocity moves.
LINE_SEARCH_ITERATIONS = 3


def import_mjx() -> Any:
    """MJX, without the lines about its optional Warp backend that it prints when first imported."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from mujoco import mjx
    return mjx


class MjxEngine:
    """One control step of a task's model, with a fixed number of solver iterations.

    Between substeps only time, positions, velocities and the solver's warm start are carried; MJX's large `Data` is
    rebuilt from a constant template, which keeps the loop's memory small.
    """

    def __init__(
        self,
        task: Task[Any],
        iterations: int | None = None,
        line_search_iterations: int = LINE_SEARCH_ITERATIONS,
    ) -> None:
        self._mjx = import_mjx()
        host = mujoco.MjModel.from_xml_string(task.mjcf("mjx"))
        host.opt.iterations = iterations or task.solver_iterations
        host.opt.ls_iterations = line_search_iterations
        self.substeps = task.substeps
        self._model = self._mjx.put_model(host)
        self._template = self._mjx.make_data(host)
        robot = host.body("agent").id
        self._of_robot = jnp.asarray(host.body_rootid[host.geom_bodyid] == robot)
        self._touchable = jnp.asarray([host.geom(name).id for name in task.touchable], jnp.int32)

    def step(
        self, physics: PhysicsState, controls: Float[Array, " U"], mocap: Callable[[Scalar], Mocap]
    ) -> tuple[PhysicsState, Readings]:
        """One control step: `mocap(time)` before every substep, then a forward pass at the final state.

        That forward pass is the first half of one more substep, whose integration is dropped: the program then
        holds the physics once, which halves its compile time.
        """
        cold = jnp.zeros_like(physics.qvel)
        nothing = Readings(
            sensors=jnp.zeros_like(self._template.sensordata), touches=jnp.zeros(self._touchable.shape, bool)
        )

        def substep(carry: Any, index: Any) -> tuple[Any, None]:
            state, warmstart, held, _ = carry
            final = index == self.substeps
            # The forward pass at the end still sees the mocap poses of the last substep.
            poses = jax.tree.map(lambda old, new: jnp.where(final, old, new), held, mocap(state.time))
            with exact_sphere_cylinder(self._mjx):
                data = self._mjx.step(self._model, self._load(state, controls, poses, warmstart))
            after = PhysicsState(data.time, data.qpos, data.qvel)
            state = jax.tree.map(lambda old, new: jnp.where(final, old, new), state, after)
            return (state, data.qacc_warmstart, poses, self._measure(data)), None

        start = (physics, cold, mocap(physics.time), nothing)
        (after, _, _, readings), _ = jax.lax.scan(substep, start, jnp.arange(self.substeps + 1))
        return after, readings

    def _load(self, state: PhysicsState, controls: Array, mocap: Mocap, warmstart: Array) -> Any:
        return self._template.replace(
            time=state.time,
            qpos=state.qpos,
            qvel=state.qvel,
            qacc_warmstart=warmstart,
            ctrl=controls,
            mocap_pos=mocap.position,
            mocap_quat=mocap.quaternion,
        )

    def _measure(self, data: Any) -> Readings:
        contact = data._impl.contact
        first, second = contact.geom[:, 0], contact.geom[:, 1]
        other = jnp.where(self._of_robot[first], second, jnp.where(self._of_robot[second], first, -1))
        touching = (contact.dist <= 0) & (other == self._touchable[:, None])
        return Readings(sensors=data.sensordata, touches=jnp.any(touching, axis=1))
