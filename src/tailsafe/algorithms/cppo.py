"""CPPO: a Lagrangian for CVaR on whole-episode costs, by PPO.

Every step of an episode is charged what the whole episode cost beyond the auxiliary variable; there is no cost critic.
Episodes that a chunk cuts count with what they have cost until then: chunks must be long compared with 1 / (1 - gamma).
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms import ppo
from tailsafe.algorithms.common import remember
from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.algorithms.measures import only_cvar
from tailsafe.algorithms.ppo import LagrangianSettings, LagrangianState, PpoConfig
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.state import PRECISIONS
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.advantages import at_episode_end, reward_advantage
from tailsafe.learning.batches import segments_of
from tailsafe.learning.chunks import Chunk
from tailsafe.risk.spectra import SpectralRisk


class Cppo(Learner[PpoConfig]):
    """A critic of the reward, multipliers, and quantiles of the costs of whole episodes."""

    critic_input = "state"
    cost_critics = False
    not_for_acting = ("policy_optimizer",)

    @classmethod
    def objection(cls, config: PpoConfig, measures: list[SpectralRisk]) -> str | None:
        return only_cvar("cppo", measures) or ppo.only_newest_chunk(config)

    def init(self, key: PRNGKeyArray, settings: LagrangianSettings) -> LagrangianState:
        """Fresh networks, no multipliers."""
        fields = ppo.ppo_fields(self.initial_fields(key, settings), settings, self.config)
        return LagrangianState(**ppo.lagrangian_fields(fields, self.num_costs))

    def update(
        self, state: LagrangianState, settings: LagrangianSettings, chunk: Chunk, key: PRNGKeyArray
    ) -> tuple[LagrangianState, Metrics]:
        """Learn from a chunk: critics, then policy, then multipliers. The key is used up."""
        for_critics, for_policy = jax.random.split(key)
        state = remember(state, chunk, normalize=self.config.normalize)
        segments = segments_of(chunk)
        fixed = (settings, self.config, segments)
        with jax.default_matmul_precision(PRECISIONS[self.config.precision].products):
            networks = self.networks(state, settings)
            advantage = charged_advantage(networks, state, settings, segments)
            state, critic_metrics = ppo.update_critics(networks, state, *fixed, for_critics)
            networks = self.networks(state, settings)
            loss = ppo.clipped(networks, settings, self.config)
            state, policy_metrics = ppo.update_policy(networks, state, *fixed, advantage, loss, for_policy)
            sums = episode_costs(segments).reshape(-1, self.num_costs).T
            state, dual_metrics = ppo.dual_step(state, settings, sums)
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics | dual_metrics


def episode_costs(segments: Chunk) -> Float[Array, "T N C"]:
    """For every step, the discounted costs of its episode from its beginning to its end."""
    total = segments.cost_so_far + segments.discount[..., None] * segments.costs
    return at_episode_end(total, jnp.broadcast_to(segments.done[..., None], total.shape))


def charged_advantage(
    networks: ActorCritic, state: LagrangianState, settings: LagrangianSettings, segments: Chunk
) -> Float[Array, "T N"]:
    """GAE of the reward, less multipliers times what the whole episode cost beyond the auxiliary variables."""
    excess = jnp.maximum(episode_costs(segments) - state.beta, 0.0)
    penalty: Array = excess @ state.multiplier
    return reward_advantage(networks, segments, settings.gamma, settings.trace) - penalty


ALGORITHM = Algorithm(Cppo, PpoConfig, LagrangianSettings)
