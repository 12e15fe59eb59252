"""SDPO: state-wise risk through critics that see the policy's outputs, with a log barrier.

Critics Y(s, outputs of the policy at s) carry the gradient of the risk into the policy. The risk of every state by
itself is averaged over states: less than the risk of the whole, so limits can be broken where start states differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms import ppo
from tailsafe.algorithms.common import remember
from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.algorithms.ppo import CriticPpoConfig, PpoSettings, PpoState
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.state import PRECISIONS
from tailsafe.fields import scalar
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.advantages import reward_advantage
from tailsafe.learning.batches import initial_states, segments_of, states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.networks import Policy
from tailsafe.learning.surrogate import PolicyLoss, Surrogate
from tailsafe.risk.spectra import SpectralRisk


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SdpoSettings(PpoSettings):
    """Of SDPO."""

    barrier: Float[Array, ""] = scalar(
        5.0, "The log barrier counts with 1 / barrier.", part="constraints", within="(0, inf)"
    )


class Sdpo(Learner[CriticPpoConfig]):
    """Reward by PPO within the limits; beyond them the first risk that exceeds its own is lowered alone."""

    critic_input = "outputs"
    not_for_acting = ("policy_optimizer",)

    @classmethod
    def objection(cls, config: CriticPpoConfig, measures: list[SpectralRisk]) -> str | None:
        return ppo.only_newest_chunk(config)

    def init(self, key: PRNGKeyArray, settings: SdpoSettings) -> PpoState:
        """Fresh networks."""
        return PpoState(**ppo.ppo_fields(self.initial_fields(key, settings), settings, self.config))

    def update(
        self, state: PpoState, settings: SdpoSettings, chunk: Chunk, key: PRNGKeyArray
    ) -> tuple[PpoState, Metrics]:
        """Learn from a chunk: critics, then policy, then what its risks are. The key is used up."""
        for_critics, for_policy = jax.random.split(key)
        state = remember(state, chunk, normalize=self.config.normalize)
        segments = segments_of(chunk)
        fixed = (settings, self.config, segments)
        with jax.default_matmul_precision(PRECISIONS[self.config.precision].products):
            networks = self.networks(state, settings)
            advantage = reward_advantage(networks, segments, settings.gamma, settings.trace)
            state, critic_metrics = ppo.update_critics(networks, state, *fixed, for_critics)
            networks = self.networks(state, settings)
            initial = networks.features(initial_states(chunk.initial_observation, chunk.delta[0], self.num_costs))
            loss = self.loss(networks, settings, initial)
            state, policy_metrics = ppo.update_policy(networks, state, *fixed, advantage, loss, for_policy)
            networks = self.networks(state, settings)
            features = initial if self.config.estimator == "initial" else networks.features(states_of(segments))
            risks = state_risks(networks, state.policy, features.reshape(-1, features.shape[-1]))
            violated = (risks > settings.target).any().astype(risks.dtype)
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics | {
            "sub_risk": risks,
            "violated": violated,
        }

    def loss(self, networks: ActorCritic, settings: SdpoSettings, initial: Float[Array, "N i"]) -> PolicyLoss:
        """PPO's loss with a log barrier, or a violated risk. initial: features of initial states."""
        within = ppo.clipped(networks, settings, self.config)

        def loss_of(policy: Policy, batch: Surrogate, noise: Float[Array, "B A"]) -> Float[Array, ""]:
            risks = state_risks(networks, policy, batch.features)
            value = risks
            if self.config.estimator == "initial":
                # Initial states say how large the risk is; all states, as many as an episode has, where it comes from.
                level = jax.lax.stop_gradient(state_risks(networks, policy, initial))
                value = level + settings.horizon * (risks - jax.lax.stop_gradient(risks))
            room = settings.target - value
            # log(room + 1e-8) where there is room; the other branch must not make its gradient infinite.
            barrier = -jnp.log(jnp.where(room > 0, room, 1.0) + 1e-8).sum() / settings.barrier
            allowed = within(policy, batch, noise) + barrier
            first = jnp.argmax(room < 0)
            loss: Array = jnp.where((room < 0).any(), value[first], allowed)
            return loss

        return loss_of


def state_risks(networks: ActorCritic, policy: Policy, features: Float[Array, "B i"]) -> Float[Array, " C"]:
    """Mean over states of the risk of each, with gradients through the policy's outputs."""
    atoms = networks.atoms(networks.state_inputs(features, policy))
    return networks.constraints.state_wise(atoms[1:]).mean(-1)


ALGORITHM = Algorithm(Sdpo, CriticPpoConfig, SdpoSettings)
