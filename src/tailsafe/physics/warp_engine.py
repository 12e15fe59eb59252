"""Engine `warp`: MuJoCo Warp's kernels behind MJX, for `jit`, `vmap` and `scan` on a CUDA GPU (slowly also on a CPU).

It simulates the C engine's own model, without stand-ins and without limits on iterations, in float32. Two runs may
differ in the last bits: the kernels collect contacts in an order that is not fixed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.extras import install_hint
from tailsafe.physics.interface import Mocap, PhysicsState, Readings, Scalar, Simulated
from tailsafe.physics.mjx_engine import import_mjx

ROWS_SETTING, CONTACTS_SETTING = "TAILSAFE_WARP_ROWS", "TAILSAFE_WARP_CONTACTS"


@dataclass(frozen=True)
class Buffers:
    """What is allocated: constraint rows of each world, and contacts (and pairs of near geoms) per world of a batch."""

    rows: int
    contacts: int


# At least twice the rows that a world under random actions needed at most: 50, 90, 144, 194, 46 and 32.
_BUFFERS = {
    "point-goal": Buffers(rows=128, contacts=16),
    "car-goal": Buffers(rows=192, contacts=24),
    "point-button": Buffers(rows=320, contacts=24),
    "car-button": Buffers(rows=400, contacts=40),
    "quadruped": Buffers(rows=128, contacts=24),
    "biped": Buffers(rows=128, contacts=24),
}
_OTHER_BUFFERS = Buffers(rows=400, contacts=40)
# Contacts are pooled over a batch: a small one has less to pool.
_SPARE_CONTACTS = 128


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Use:
    """How much of the buffers a control step used, at most.

    flags: MuJoCo Warp's bits for what did not fit, 0 if all did; rows: constraint rows of this world; contacts: of all
    worlds of the batch together; worlds: how many there are.
    """

    flags: Int[Array, "*n"]
    rows: Int[Array, "*n"]
    contacts: Int[Array, "*n"]
    worlds: Int[Array, "*n"]

    @staticmethod
    def none(shape: tuple[int, ...]) -> Use:
        """Before the first step."""
        zero = jnp.zeros(shape, jnp.int32)
        return Use(zero, zero, zero, zero)

    def merged(self, other: Use) -> Use:
        """Of both."""
        return Use(
            flags=self.flags | other.flags,
            rows=jnp.maximum(self.rows, other.rows),
            contacts=jnp.maximum(self.contacts, other.contacts),
            worlds=jnp.maximum(self.worlds, other.worlds),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Inputs:
    """Of a control step: the state, the actuators' inputs (U,), and mocap poses of every substep (T, M, ...)."""

    physics: PhysicsState
    controls: Array
    mocap: Mocap


def warp_installed() -> bool:
    """Whether the package of the kernels is there."""
    return find_spec("warp") is not None


def import_warp() -> Any:
    """MJX with its Warp implementation, or an error that says how to install it."""
    if not warp_installed():
        raise InputError(f"backend warp needs warp-lang, which is not installed: {install_hint('gpu')}")
    import warp

    warp.config.log_level = max(warp.config.log_level, logging.WARNING)  # one line per kernel that is compiled
    mjx = import_mjx()
    from mujoco.mjx.warp import WARP_INSTALLED

    if not WARP_INSTALLED:
        raise InputError(f"the installed warp-lang {warp.__version__} does not fit mujoco-mjx: {install_hint('gpu')}")
    return mjx


def buffers_for(name: str) -> Buffers:
    """The sizes of a task, unless the environment variables say otherwise."""
    usual = _BUFFERS.get(name, _OTHER_BUFFERS)
    return Buffers(rows=_setting(ROWS_SETTING, usual.rows), contacts=_setting(CONTACTS_SETTING, usual.contacts))


class WarpEngine:
    """Control steps of a task's model.

    `step` is written for one environment like the other engines'. Under `vmap` all environments, and all runs around
    them, become the worlds of one call: contacts share a buffer, whose size must be known when the program is traced.
    """

    def __init__(self, task: Simulated, buffers: Buffers | None = None) -> None:
        self._mjx = import_warp()
        host = mujoco.MjModel.from_xml_string(task.mjcf("mujoco"))
        # Warp never resets a world by itself, and refuses the flag that says so.
        host.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self.name = task.name
        self.substeps = task.substeps
        self.buffers = buffers or buffers_for(task.name)
        self._host = host
        self._model = _quiet(self._mjx.put_model(host, impl="warp"))
        self._touch_sensors = len(task.touchable)
        self._lagging, self._remembered = task.lagging, task.remembered
        self._one, self._many = _batched(self._run)

    def step(
        self, physics: PhysicsState, controls: Float[Array, " U"], mocap: Callable[[Scalar], Mocap]
    ) -> tuple[PhysicsState, Readings]:
        """One control step with `mocap(time)` in every substep, and the readings of its end (lagging: before it)."""
        physics, readings, _ = self.step_counted(physics, controls, mocap)
        return physics, readings

    def step_counted(
        self, physics: PhysicsState, controls: Float[Array, " U"], mocap: Callable[[Scalar], Mocap]
    ) -> tuple[PhysicsState, Readings, Use]:
        """The same, and how far it filled the buffers: `check` must see that."""
        times = physics.time + self._host.opt.timestep * jnp.arange(self.substeps)
        inputs = _Inputs(physics, controls, jax.vmap(mocap)(times))
        result: tuple[PhysicsState, Readings, Use] = self._one(jax.tree.map(_float32, inputs))
        return result

    def check(self, use: Use) -> None:
        """Raise where a buffer was too small: contacts or constraints were left out, and the motion is wrong."""
        flags, rows, contacts, worlds = (np.asarray(part) for part in (use.flags, use.rows, use.contacts, use.worlds))
        if not flags.any():
            return
        if _any(flags, "NEFC", "NJMAX_NNZ"):
            raise InputError(
                f"{self.name} on backend warp needs {rows.max()} constraint rows per world, {self.buffers.rows} are"
                f" allocated: set {ROWS_SETTING} to more, e.g. {2 * int(rows.max())}"
            )
        needed = -(-int(contacts.max()) // max(1, int(worlds.max())))
        raise InputError(
            f"{self.name} on backend warp has {contacts.max()} contacts in {worlds.max()} worlds,"
            f" {self.buffers.contacts} per world are allocated: set {CONTACTS_SETTING} to more,"
            f" e.g. {2 * max(needed, self.buffers.contacts)}"
        )

    def _run(self, inputs: _Inputs) -> tuple[PhysicsState, Readings, Use]:
        """One control step of a batch (leading axis N)."""
        worlds = inputs.controls.shape[0]
        with jax.ensure_compile_time_eval():
            template = self._mjx.make_data(
                self._host,
                impl="warp",
                naconmax=worlds * self.buffers.contacts + _SPARE_CONTACTS,
                njmax=self.buffers.rows,
            )
        step: Callable[..., Any] = jax.vmap(lambda one: self._control_step(template, one))
        after, readings, (flags, rows, contacts) = step(inputs)
        return after, readings, Use(flags, rows, contacts, jnp.full(worlds, worlds, jnp.int32))

    def _control_step(self, template: Any, inputs: _Inputs) -> tuple[PhysicsState, Readings, tuple[Array, ...]]:
        """Substeps, and unless readings lag one more, whose state is dropped: as in the C engine.

        What MuJoCo Warp reads and writes must not be a slice of a longer array. It steps a state in place, and XLA on a
        GPU would have it write into the slice, where the state is not: it would step zeros (docs/performance.md). So
        states are picked while they pass, and poses by a mask.
        """
        start = inputs.physics
        data = template.replace(time=start.time, qpos=start.qpos, qvel=start.qvel, ctrl=inputs.controls)
        before = jnp.zeros((self._remembered, self._host.nq + self._host.nv))
        used = (jnp.int32(0), jnp.int32(0), jnp.int32(0))

        def substep(index: Any, carry: Any) -> Any:
            data, after, before, (flags, rows, contacts) = carry
            moves = index < self.substeps
            before = jnp.where(moves, _pushed(before, jnp.concatenate([data.qpos, data.qvel])), before)
            poses = jax.tree.map(partial(_picked, index=jnp.minimum(index, self.substeps - 1)), inputs.mocap)
            data = data.replace(mocap_pos=poses.position, mocap_quat=poses.quaternion)
            data = self._mjx.step(self._model, data)
            reached = PhysicsState(data.time, data.qpos, data.qvel)
            after = jax.tree.map(partial(jnp.where, moves), reached, after)
            inner = data._impl
            used = (
                flags | (inner.overflow.reshape(()) & _buffer_flags()),
                jnp.maximum(rows, inner.nefc.reshape(())),
                jnp.maximum(contacts, jnp.maximum(inner.nacon.max(), inner.ncollision.max())),
            )
            return data, after, before, used

        count = self.substeps if self._lagging else self.substeps + 1
        data, after, before, used = jax.lax.fori_loop(0, count, substep, (data, start, before, used))
        split = self._host.nsensordata - self._touch_sensors
        readings = Readings(sensors=data.sensordata[:split], touches=data.sensordata[split:] > 0, before=before)
        return after, readings, used


def _pushed(rows: Float[Array, "H P"], row: Float[Array, " P"]) -> Float[Array, "H P"]:
    """The newest row behind the others, without the oldest."""
    return jnp.concatenate([rows, row[None]])[1:]


def _picked(leaf: Float[Array, "T ..."], index: Scalar) -> Float[Array, ...]:
    """`leaf[index]`, computed rather than sliced."""
    here = (jnp.arange(leaf.shape[0]) == index).reshape(-1, *[1] * (leaf.ndim - 1))
    return jnp.where(here, leaf, 0).sum(axis=0)


def _batched(run: Callable[[Any], Any]) -> tuple[Any, Any]:
    """`run`, which takes a batch, as a function of one element and as one of a batch that `vmap` makes larger."""

    @jax.custom_batching.custom_vmap
    def many(inputs: Any) -> Any:
        return run(inputs)

    @many.def_vmap
    def _(size: int, batched: list[Any], inputs: Any) -> tuple[Any, Any]:
        filled = _filled(size, batched[0], inputs)
        width = jax.tree.leaves(filled)[0].shape[1]
        flat = jax.tree.map(lambda leaf: leaf.reshape(size * width, *leaf.shape[2:]), filled)
        result = jax.tree.map(lambda leaf: leaf.reshape(size, width, *leaf.shape[1:]), many(flat))
        return result, jax.tree.map(lambda _: True, result)

    @jax.custom_batching.custom_vmap
    def one(inputs: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], many(jax.tree.map(lambda leaf: leaf[None], inputs)))

    @one.def_vmap
    def _(size: int, batched: list[Any], inputs: Any) -> tuple[Any, Any]:
        result = many(_filled(size, batched[0], inputs))
        return result, jax.tree.map(lambda _: True, result)

    return one, many


def _filled(size: int, batched: Any, inputs: Any) -> Any:
    """Every leaf with the leading axis that some have."""
    return jax.tree.map(lambda leaf, has: leaf if has else jnp.broadcast_to(leaf, (size, *leaf.shape)), inputs, batched)


def _float32(leaf: Any) -> Any:
    return jnp.asarray(leaf, jnp.float32)


def _quiet(model: Any) -> Any:
    """Without the kernels' own lines on overflows: `WarpEngine.check` raises them as errors."""
    return model.tree_replace({"opt._impl.warn_overflow": 0})


def _flag(name: str) -> int:
    from mujoco.mjx.third_party.mujoco_warp._src.types import OverflowType

    return int(OverflowType[name])


def _buffer_flags() -> int:
    """The bits that mean a buffer; the others count iterations of the solver that ran out, as in the C engine."""
    names = ("NEFC", "NJMAX_NNZ", "BROADPHASE", "NARROWPHASE", "CCD", "CONTACT_MATCH", "NVMAX")
    return sum(_flag(name) for name in names)


def _any(flags: NDArray[np.int32], *names: str) -> bool:
    return bool((flags & sum(_flag(name) for name in names)).any())


def _setting(name: str, usual: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return usual
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {text!r}")
    return int(text)
