"""CPPO: a Lagrangian for CVaR on whole-episode costs, by PPO.

Every step of an episode is charged what the whole episode cost beyond the auxiliary variable; there is no cost critic.
Episodes that a chunk cuts count with what they have cost until then: chunks must be long compared with 1 / (1 - gamma).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.measures import only_cvar
from tailsafe.algorithms.ppo import Lagrangian, LagrangianSettings, LagrangianState, PpoConfig, moved_dual
from tailsafe.algorithms.registry import Algorithm
from tailsafe.learning.advantages import at_episode_end
from tailsafe.learning.batches import Rows
from tailsafe.learning.chunks import Chunk
from tailsafe.risk.spectra import SpectralRisk


class Cppo(Lagrangian[PpoConfig]):
    """A critic of the reward, multipliers, and quantiles of the costs of whole episodes."""

    @classmethod
    def refusal(cls, config: PpoConfig, measures: list[SpectralRisk]) -> str | None:
        return only_cvar("cppo", measures) or super().refusal(config, measures)

    @property
    def signals(self) -> int:
        return 1

    def _episode_costs(self, segments: Chunk) -> Float[Array, "T N C"]:
        """For every step, the discounted costs of its episode from its beginning to its end."""
        total = segments.cost_so_far + segments.discount[..., None] * segments.costs
        return at_episode_end(total, jnp.broadcast_to(segments.done[..., None], total.shape))

    def _advantage(self, state: LagrangianState, settings: LagrangianSettings, segments: Chunk) -> Float[Array, "T N"]:
        excess = jnp.maximum(self._episode_costs(segments) - state.beta, 0.0)
        penalty: Array = excess @ state.multiplier
        return self._reward_advantage(state, settings, segments) - penalty

    def _dual(
        self, state: LagrangianState, settings: LagrangianSettings, segments: Chunk, initial: Rows
    ) -> tuple[Any, Metrics]:
        costs = self._episode_costs(segments)
        return moved_dual(state, settings, costs.reshape(-1, self.num_costs).T)


ALGORITHM = Algorithm(Cppo, PpoConfig, LagrangianSettings)
