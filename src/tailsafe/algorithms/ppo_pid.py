"""PPO-PID: PPO whose multipliers a PID controller sets (Stooke et al. 2020), on the mean or any spectral measure.

A plain Lagrangian is integral control: the multiplier is late by a quarter of a period, and risk and reward oscillate.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.algorithms.penalized import PenalizedConfig, PenalizedPpo, PenalizedSettings, PenalizedState
from tailsafe.algorithms.registry import Algorithm
from tailsafe.fields import scalar
from tailsafe.learning.multipliers import Controller, Gains, controlled


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PpoPidSettings(PenalizedSettings):
    """With the controller's gains. Errors are shares of the limit."""

    pid_proportional: Float[Array, ""] = scalar(
        0.5, "Multiplier per excess, in shares of the limit.", part="constraints", within="[0, inf)", main=True
    )
    pid_integral: Float[Array, ""] = scalar(
        0.05, "What the multiplier gains per update and excess.", part="constraints", within="[0, inf)", main=True
    )
    pid_derivative: Float[Array, ""] = scalar(
        0.5, "Multiplier per growth of the excess between two updates.", part="constraints", within="[0, inf)"
    )
    pid_smoothing: Float[Array, ""] = scalar(
        0.5,
        "What the proportional and the derivative term keep of earlier excesses.",
        part="constraints",
        within="[0, 1)",
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PpoPidState(PenalizedState):
    """integral (C,), error (C,): see `learning.multipliers.Controller`."""

    integral: Float[Array, " C"]
    error: Float[Array, " C"]


class PpoPid(PenalizedPpo):
    """Multipliers follow the violation, its sum and its growth."""

    not_for_acting = (*PenalizedPpo.not_for_acting, "integral", "error")

    def init(self, key: PRNGKeyArray, settings: PpoPidSettings) -> PpoPidState:
        """Fresh networks, no multipliers."""
        zero = jnp.zeros(self.num_costs)
        return PpoPidState(**self.penalized_fields(key, settings), integral=zero, error=zero)

    def moved(
        self, state: PpoPidState, settings: PpoPidSettings, error: Float[Array, " C"], first: Bool[Array, ""]
    ) -> dict[str, Array]:
        gains = Gains(settings.pid_proportional, settings.pid_integral, settings.pid_derivative, settings.pid_smoothing)
        # Nothing has grown before the second look.
        before = Controller(state.integral, jnp.where(first, error, state.error))
        after, multiplier = controlled(before, error, gains, settings.largest_penalty)
        return {"multiplier": multiplier, "integral": after.integral, "error": after.error}


ALGORITHM = Algorithm(PpoPid, PenalizedConfig, PpoPidSettings)
