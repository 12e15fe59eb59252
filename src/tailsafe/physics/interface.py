"""What an engine and a task share: the state that is integrated, what is measured, and the model to simulate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
from jaxtyping import Array, Bool, Float

from tailsafe.physics.mjcf import EngineName

Scalar = Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PhysicsState:
    """What an engine integrates: simulation time [s], joint positions (nq,) and velocities (nv,)."""

    time: Scalar
    qpos: Float[Array, " nq"]
    qvel: Float[Array, " nv"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Readings:
    """What an engine measures in a control step, with the forces of the control just applied.

    sensors (S,): the model's sensors that are not contact sensors, in model order.
    touches (K,): whether each of the task's touchable geoms is touched.
    before (H, P = nq + nv): positions and velocities before each of the last H substeps, H as the task asks for.

    Sensors and touches belong to the state after the control step; for a task whose readings lag, to the state before
    its last substep.
    """

    sensors: Float[Array, " S"]
    touches: Bool[Array, " K"]
    before: Float[Array, "H P"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mocap:
    """Poses of the bodies that are moved by hand: position (M, 3) [m], quaternion (M, 4) as (w, x, y, z)."""

    position: Float[Array, "M 3"]
    quaternion: Float[Array, "M 4"]


class Simulated(Protocol):
    """What an engine asks of a task."""

    @property
    def name(self) -> str:
        """What an error calls it, e.g. `point-goal`."""

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""

    @property
    def solver_iterations(self) -> int:
        """Newton iterations that engine `mjx` may take in a physics step."""

    @property
    def line_search_iterations(self) -> int:
        """Steps of the line search in each of them: all are computed, converged or not."""

    @property
    def lagging(self) -> bool:
        """Whether sensors and touches are those of the last substep, without a forward pass after it."""

    @property
    def remembered(self) -> int:
        """How many of the last substeps `Readings.before` shows."""

    @property
    def touchable(self) -> tuple[str, ...]:
        """Geom names behind `Readings.touches`."""

    @property
    def toucher(self) -> str | None:
        """The body whose subtree must touch them, None for anything."""

    def mjcf(self, engine: EngineName, *, decorations: str = "", all_sensors: bool = False) -> str:
        """The physics model for engine `mujoco` or `mjx`."""
