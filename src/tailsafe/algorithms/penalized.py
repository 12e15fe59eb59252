"""What PPO-Lag and PPO-PID share: PPO on the reward less multipliers times spectral risks.

A spectral measure enters by its dual form, R(X) = inf_beta E[g_beta(X)] + I(beta). At the minimising beta, the
quantiles of the discounted cost sums, the risk's gradient in the policy is that of E[g_beta(X)] (the envelope theorem);
for the mean, g(x) = x. So multipliers and quantiles follow the latest finished episodes, which are right whatever
critics believe, and the critics of the costs only say which action leads to more of E[g_beta].
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.algorithms import ppo
from tailsafe.algorithms.common import remember
from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.algorithms.ppo import PpoConfig, PpoSettings, PpoState
from tailsafe.algorithms.state import PRECISIONS
from tailsafe.fields import scalar, setting
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.advantages import discounted_suffix, reward_advantage
from tailsafe.learning.batches import next_states, segments_of, states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.recent_costs import RecentCosts
from tailsafe.risk.spectra import SpectralRisk

_SMALL = 1e-8


@dataclass(frozen=True)
class PenalizedConfig(PpoConfig):
    """Of PPO-Lag and PPO-PID."""

    risk_episodes: int = setting(
        64,
        "Latest finished episodes that risks and quantiles are measured on; more are less noisy, and older.",
        part="constraints",
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PenalizedSettings(PpoSettings):
    """Of PPO-Lag and PPO-PID. Multipliers are in deviations of the reward's advantage per limit."""

    largest_penalty: Float[Array, ""] = scalar(
        100.0,
        "Largest multiplier, in standard deviations of the reward's advantage per limit.",
        part="constraints",
        within="[0, inf)",
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PenalizedState(PpoState):
    """multiplier (C,): lambda, in deviations of the reward's advantage per limit. recent: what it follows."""

    multiplier: Float[Array, " C"]
    recent: RecentCosts


class PenalizedPpo(Learner[PenalizedConfig]):
    """Critics Y_R(s) and Y_C(s), multipliers, and the costs of the latest episodes."""

    critic_input = "state"
    not_for_acting: ClassVar[tuple[str, ...]] = ("policy_optimizer", "recent")

    @classmethod
    def objection(cls, config: PenalizedConfig, measures: list[SpectralRisk]) -> str | None:
        return ppo.only_newest_chunk(config)

    @abstractmethod
    def moved(self, state: Any, settings: Any, error: Float[Array, " C"], first: Bool[Array, ""]) -> dict[str, Array]:
        """Fields of the state, `multiplier` among them, after another look at the constraints.

        error (C,): (risk - target) / unit. first: whether nobody has looked before.
        """

    def penalized_fields(self, key: PRNGKeyArray, settings: PenalizedSettings) -> dict[str, Any]:
        """The fields of `PenalizedState`: fresh networks, no multipliers."""
        begun = ppo.ppo_fields(self.initial_fields(key, settings), settings, self.config)
        recent = RecentCosts.create(self.num_costs, self.config.risk_episodes)
        return begun | {"multiplier": jnp.zeros(self.num_costs), "recent": recent}

    def update(self, state: Any, settings: PenalizedSettings, chunk: Chunk, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """Learn from a chunk: multipliers, then critics, then policy. The key is used up."""
        for_critics, for_policy = jax.random.split(key)
        state = remember(state, chunk, normalize=self.config.normalize)
        segments = segments_of(chunk)
        fixed = (settings, self.config, segments)
        with jax.default_matmul_precision(PRECISIONS[self.config.precision].products):
            state, beta, dual_metrics = self._looked(state, settings, segments)
            networks = self.networks(state, settings)
            weights = state.multiplier / unit(settings)
            advantage = penalized_advantage(networks, settings, segments, weights, beta)
            state, critic_metrics = ppo.update_critics(networks, state, *fixed, for_critics)
            networks = self.networks(state, settings)
            loss = ppo.clipped(networks, settings, self.config)
            state, policy_metrics = ppo.update_policy(networks, state, *fixed, advantage, loss, for_policy)
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics | dual_metrics

    def _looked(
        self, state: Any, settings: PenalizedSettings, segments: Chunk
    ) -> tuple[Any, Float[Array, "C M-1"], Metrics]:
        """Risks of the latest episodes, and the multipliers after them; where no episode has ended, those of before."""
        recent = state.recent.with_finished(segments)
        risk, beta = recent.risks(settings.constraints)
        error = (risk - settings.target) / unit(settings)
        moved = self.moved(state, settings, error, ~state.recent.known)
        news = recent.count > state.recent.count
        kept = {name: jnp.where(news, value, getattr(state, name)) for name, value in moved.items()}
        state = replace(state, recent=recent, **kept)
        return state, beta, {"sub_risk": risk, "multiplier": state.multiplier, "beta": beta}


def unit(settings: PenalizedSettings) -> Float[Array, " C"]:
    """What an excess is measured in: the target, or the largest return where that is zero."""
    return jnp.where(settings.target > 0, settings.target, settings.constraints.largest_return)


def spectral_advantages(
    networks: ActorCritic, settings: PenalizedSettings, segments: Chunk, beta: Float[Array, "C M-1"]
) -> Float[Array, "C T N"]:
    """GAE of E[g_beta(D + b Z)] / b, what is still to come of the sub-risks, counted from each step.

    With q = (beta - D)_+ / b, what is left of beta, and q' that of the next step, Z = c + gamma Z' gives

        g_q(Z) = g_q(c) + gamma g_q'(Z') up to a constant:  (Z - q)_+ = (c - q)_+ + gamma (Z' - q')_+

    so that this is the ordinary GAE of a cost g_q(c) with the value E[g_q(Z)]; for the mean, of the cost itself.
    """
    constraints, gamma = settings.constraints, settings.gamma
    now, later = states_of(segments), next_states(segments, gamma)
    lead = (1,) * now.discount.ndim
    shape = (beta.shape[0], *now.discount.shape, beta.shape[-1])
    wide = jnp.broadcast_to(beta.reshape(beta.shape[0], *lead, -1), shape)
    left, left_later = (constraints.budget(wide, states.cost_so_far, states.discount) for states in (now, later))
    value, value_later = (
        constraints.g(networks.atoms_at(states)[1:], budget).mean(-1)
        for states, budget in ((now, left), (later, left_later))
    )
    paid = constraints.g(jnp.moveaxis(segments.costs, -1, 0)[..., None], left)[..., 0]
    errors = paid + gamma * (1.0 - segments.terminated) * value_later - value
    done = jnp.broadcast_to(segments.done, errors.shape)
    suffix = discounted_suffix(jnp.moveaxis(errors, 1, 0), jnp.moveaxis(done, 1, 0), gamma * settings.trace)
    return jnp.moveaxis(suffix, 0, 1)


def penalized_advantage(
    networks: ActorCritic,
    settings: PenalizedSettings,
    segments: Chunk,
    weights: Float[Array, " C"],
    beta: Float[Array, "C M-1"],
) -> Float[Array, "T N"]:
    """A_R / std(A_R) - sum_i weights_i A_i. The reward's scale is taken out, so that multipliers know none.

    The surrogate standardises the whole: the usual division by 1 + lambda would change nothing.
    """
    reward = reward_advantage(networks, segments, settings.gamma, settings.trace)
    risks = spectral_advantages(networks, settings, segments, beta)
    return reward / (reward.std() + _SMALL) - jnp.einsum("c,ctn->tn", weights, risks)
