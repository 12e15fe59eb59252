"""PPO-Lag: PPO with a Lagrangian (Ray et al. 2019), on the mean or any spectral measure of the costs."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.algorithms.penalized import PenalizedConfig, PenalizedPpo, PenalizedSettings, PenalizedState
from tailsafe.algorithms.registry import Algorithm
from tailsafe.fields import scalar
from tailsafe.learning.multipliers import climbed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PpoLagSettings(PenalizedSettings):
    """With the multipliers' rate."""

    multiplier_rate: Float[Array, ""] = scalar(
        0.05, "Learning rate of the multipliers.", part="constraints", within="[0, inf)", main=True
    )


class PpoLag(PenalizedPpo):
    """Multipliers climb the violation of their constraints."""

    def init(self, key: PRNGKeyArray, settings: PpoLagSettings) -> PenalizedState:
        """Fresh networks, no multipliers."""
        return PenalizedState(**self.penalized_fields(key, settings))

    def moved(
        self, state: PenalizedState, settings: PpoLagSettings, error: Float[Array, " C"], first: Bool[Array, ""]
    ) -> dict[str, Array]:
        return {"multiplier": climbed(state.multiplier, error, settings.multiplier_rate, settings.largest_penalty)}


ALGORITHM = Algorithm(PpoLag, PenalizedConfig, PpoLagSettings)
