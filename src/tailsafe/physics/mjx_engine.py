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

from tailsafe.physics.interface import Mocap, PhysicsState, Readings, Scalar, Simulated
from tailsafe.physics.mjx_collisions import exact_sphere_cylinder


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
        task: Simulated,
        iterations: int | None = None,
        line_search_iterations: int | None = None,
    ) -> None:
        self._mjx = import_mjx()
        host = mujoco.MjModel.from_xml_string(task.mjcf("mjx"))
        host.opt.iterations = iterations or task.solver_iterations
        host.opt.ls_iterations = line_search_iterations or task.line_search_iterations
        self.substeps = task.substeps
        self._model = self._mjx.put_model(host)
        self._template = self._mjx.make_data(host)
        self._lagging, self._remembered = task.lagging, task.remembered
        self._touchable = jnp.asarray([host.geom(name).id for name in task.touchable], jnp.int32)
        # Whether a touch by each geom counts.
        if task.toucher is None:
            self._counts = jnp.ones(host.ngeom, bool)
        else:
            self._counts = jnp.asarray(host.body_rootid[host.geom_bodyid] == host.body(task.toucher).id)

    def step(
        self, physics: PhysicsState, controls: Float[Array, " U"], mocap: Callable[[Scalar], Mocap]
    ) -> tuple[PhysicsState, Readings]:
        """One control step: `mocap(time)` before every substep, then (unless readings lag) a forward pass at its end.

        That forward pass is the first half of one more substep, whose integration is dropped: the program then
        holds the physics once, which halves its compile time.
        """
        cold = jnp.zeros_like(physics.qvel)
        nothing = (jnp.zeros_like(self._template.sensordata), jnp.zeros(self._touchable.shape, bool))

        def substep(carry: Any, index: Any) -> tuple[Any, Any]:
            state, warmstart, held, _ = carry
            final = index == self.substeps
            # The forward pass at the end still sees the mocap poses of the last substep.
            poses = jax.tree.map(lambda old, new: jnp.where(final, old, new), held, mocap(state.time))
            with exact_sphere_cylinder(self._mjx):
                data = self._mjx.step(self._model, self._load(state, controls, poses, warmstart))
            before = jnp.concatenate([state.qpos, state.qvel]) if self._remembered else jnp.zeros(0)
            after = PhysicsState(data.time, data.qpos, data.qvel)
            state = jax.tree.map(lambda old, new: jnp.where(final, old, new), state, after)
            return (state, data.qacc_warmstart, poses, self._measure(data)), before

        start = (physics, cold, mocap(physics.time), nothing)
        count = self.substeps if self._lagging else self.substeps + 1
        (after, _, _, (sensors, touches)), visited = jax.lax.scan(substep, start, jnp.arange(count))
        before = visited[self.substeps - self._remembered : self.substeps]
        return after, Readings(sensors=sensors, touches=touches, before=before)

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

    def _measure(self, data: Any) -> tuple[Array, Array]:
        """Sensors (S,), and which touchable geoms (K,) are touched."""
        contact = data._impl.contact
        first, second = contact.geom[:, 0], contact.geom[:, 1]
        targets = self._touchable[:, None]
        meets = ((first == targets) & self._counts[second]) | ((second == targets) & self._counts[first])
        return data.sensordata, jnp.any(meets & (contact.dist <= contact.includemargin), axis=1)
