"""CVaR-CPO: a Lagrangian for CVaR with cost critics and a budget that shrinks along the episode.

The auxiliary variable beta, less what was paid, is the budget q_t = (beta - D_t) / gamma^t that is left. The risk to
come is W(s, q) = E[(Y_C(s) - q)_+], and along a path W_t = gamma W_{t+1}: a TD error without a reward.
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
from tailsafe.algorithms.ppo import CriticPpoConfig, LagrangianSettings, LagrangianState
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.state import PRECISIONS
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.advantages import discounted_suffix, reward_advantage
from tailsafe.learning.batches import AugmentedStates, initial_states, next_states, segments_of, states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import Constraints
from tailsafe.risk.spectra import SpectralRisk


class CvarCpo(Learner[CriticPpoConfig]):
    """Critics Y_R(s) and Y_C(s), multipliers, and auxiliary variables."""

    critic_input = "state"
    not_for_acting = ("policy_optimizer",)

    @classmethod
    def objection(cls, config: CriticPpoConfig, measures: list[SpectralRisk]) -> str | None:
        return only_cvar("cvar_cpo", measures) or ppo.only_newest_chunk(config)

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
            advantage = penalized_advantage(networks, state, settings, segments)
            state, critic_metrics = ppo.update_critics(networks, state, *fixed, for_critics)
            networks = self.networks(state, settings)
            loss = ppo.clipped(networks, settings, self.config)
            state, policy_metrics = ppo.update_policy(networks, state, *fixed, advantage, loss, for_policy)
            visited = self.config.estimator == "visited"
            initial = initial_states(chunk.initial_observation, chunk.delta[0], self.num_costs)
            atoms = self.networks(state, settings).atoms_at(states_of(segments) if visited else initial)[1:]
            state, dual_metrics = ppo.dual_step(state, settings, atoms.reshape(self.num_costs, -1))
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics | dual_metrics


def budget_left(constraints: Constraints, beta: Float[Array, " C"], states: AugmentedStates) -> Float[Array, "C T N"]:
    """What is left of the budget, q_+. Every episode is measured by the beta in force now."""
    lead = (1,) * (states.discount.ndim + 1)
    wide = jnp.broadcast_to(beta.reshape(-1, *lead), (beta.shape[0], *states.discount.shape, 1))
    return constraints.budget(wide, states.cost_so_far, states.discount)[..., 0]


def risk_advantages(
    networks: ActorCritic, state: LagrangianState, settings: LagrangianSettings, segments: Chunk
) -> Float[Array, "C T N"]:
    """GAE of W. With W = E[(Y - q_+)_+] + (-q)_+ the second parts differ by what a step paid beyond its budget.

    Written so, nothing grows like gamma^-t, and a terminated episode keeps what it has overspent.
    """
    now, later = states_of(segments), next_states(segments, settings.gamma)
    left, left_later = (budget_left(settings.constraints, state.beta, states) for states in (now, later))
    risk, risk_later = (
        jnp.maximum(networks.atoms_at(states)[1:] - budget[..., None], 0.0).mean(-1)
        for states, budget in ((now, left), (later, left_later))
    )
    overspent = jnp.maximum(jnp.moveaxis(segments.costs, -1, 0) - left, 0.0)
    errors = overspent + settings.gamma * (1.0 - segments.terminated) * risk_later - risk
    decay = settings.gamma * settings.trace
    done = jnp.broadcast_to(segments.done[:, None], (segments.done.shape[0], left.shape[0], *left.shape[2:]))
    return jnp.moveaxis(discounted_suffix(jnp.moveaxis(errors, 0, 1), done, decay), 1, 0)


def penalized_advantage(
    networks: ActorCritic, state: LagrangianState, settings: LagrangianSettings, segments: Chunk
) -> Float[Array, "T N"]:
    """GAE of the reward, less multipliers times that of the risks to come."""
    risks = risk_advantages(networks, state, settings, segments)
    penalty: Array = jnp.einsum("c,ctn->tn", state.multiplier, risks)
    return reward_advantage(networks, segments, settings.gamma, settings.trace) - penalty


ALGORITHM = Algorithm(CvarCpo, CriticPpoConfig, LagrangianSettings)
