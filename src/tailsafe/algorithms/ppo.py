"""Learners with a clipped surrogate objective: CPPO, CVaR-CPO and SDPO are this with other advantages or losses.

On-policy: an update learns from the newest chunk alone. Critics are of states, Y(s).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.learner import Learner, Metrics, following_rows
from tailsafe.algorithms.state import PRECISIONS, LearnerState, TraceConfig, TraceSettings
from tailsafe.fields import scalar, setting
from tailsafe.learning.advantages import discounted_suffix, standardized
from tailsafe.learning.batches import Rows, as_segments, rows_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.critics import clipped_adam
from tailsafe.learning.networks import Policy
from tailsafe.risk.spectra import SpectralRisk

# KL over the bound at which a learning rate is halved; one below its inverse is doubled.
_ADAPT = 2.0
_RATES = (1e-7, 1e-1)


@dataclass(frozen=True)
class PpoConfig(TraceConfig):
    """Of learners with a clipped surrogate, whose gradient steps are on the whole chunk."""

    critic_clip: float = 1.0
    policy_iterations: int = setting(20, "Gradient steps of the policy per update, at most.", part="policy", main=True)
    ratio_clip: float = setting(0.2, "PPO's: how far pi / pi_old counts, around 1.", part="policy", within="(0, inf)")
    kl_stop: float = setting(
        2.0,
        "Steps of an update end where the KL divergence exceeds this many times its bound.",
        part="policy",
        within="(0, inf)",
    )
    policy_clip: float = setting(1.0, "Largest norm of the policy's gradient.", part="policy", within="(0, inf]")


@dataclass(frozen=True)
class CriticPpoConfig(PpoConfig):
    """Of those whose critics say how large the risks are."""

    estimator: Literal["visited", "initial"] = setting(
        "visited",
        "How the risks are estimated: by the critics at all visited states as if initial, or at initial ones.",
        part="constraints",
        main=True,
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PpoSettings(TraceSettings):
    """Of learners with a clipped surrogate."""

    policy_rate: Float[Array, ""] = scalar(
        3e-5,
        "Initial learning rate of the policy (Adam); it adapts to the KL divergence.",
        part="policy",
        within="(0, inf)",
        main=True,
    )
    entropy_weight: Float[Array, ""] = scalar(
        0.0, "Weight of the policy's entropy in the objective.", part="policy", within="[0, inf)"
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PpoState(LearnerState):
    """With the policy's optimiser and its adapted learning rate."""

    policy_optimizer: Any
    policy_rate: Float[Array, ""]


class Surrogate(NamedTuple):
    """A chunk as the policy's steps see it: one row per step."""

    features: Float[Array, "B i"]
    raw_action: Float[Array, "B A"]
    log_prob: Float[Array, " B"]
    advantage: Float[Array, " B"]


Config = TypeVar("Config", bound=PpoConfig)


class PpoLearner(Learner[Config]):
    """Advantages, then critics, then the policy, then what is dual."""

    @abstractmethod
    def _advantage(self, state: Any, settings: Any, segments: Chunk) -> Float[Array, "T N"]:
        """What the policy's steps weigh actions with; made before the critics learn."""

    def _dual(self, state: Any, settings: Any, segments: Chunk, initial: Rows) -> tuple[Any, Metrics]:
        """What is learned after the policy."""
        return state, {}

    @property
    def critic_extra(self) -> int:
        return 0

    @classmethod
    def refusal(cls, config: Config, measures: list[SpectralRisk]) -> str | None:
        if (config.batch_chunks, config.replay_chunks) != (1, 1):
            return "this algorithm learns from the newest chunk alone: batch_chunks and replay_chunks must be 1"
        return super().refusal(config, measures)

    def _ppo_beginning(self, key: PRNGKeyArray, settings: PpoSettings) -> dict[str, Any]:
        fields = self._beginning(key, settings)
        optimizer = clipped_adam(self.config.policy_clip).init(eqx.filter(fields["policy"], eqx.is_array))
        return fields | {"policy_optimizer": optimizer, "policy_rate": settings.policy_rate}

    def acting(self, state: Any) -> Any:
        return replace(super().acting(state), policy_optimizer=None)

    # --- critics ------------------------------------------------------------------------------------------------------

    def _state_inputs(self, state: Any, settings: Any, rows: Rows) -> Float[Array, "... i"]:
        """What critics see of states."""
        return self._features(state, settings, rows)

    def _state_atoms(self, state: Any, settings: Any, rows: Rows) -> Float[Array, "S ... K"]:
        return self._atoms_at(state, settings, self._state_inputs(state, settings, rows))

    def _next_atoms(self, state: Any, settings: Any, following: Rows, key: PRNGKeyArray) -> Float[Array, "S ... K"]:
        return self._state_atoms(state, settings, following)

    def _critic_features(self, state: Any, settings: Any, segments: Chunk) -> Float[Array, "... i"]:
        return self._state_inputs(state, settings, rows_of(segments))

    def _reward_advantage(self, state: Any, settings: Any, segments: Chunk) -> Float[Array, "T N"]:
        """GAE with V = the mean of the atoms."""
        now = self._state_atoms(state, settings, rows_of(segments))[0].mean(-1)
        later = self._state_atoms(state, settings, following_rows(segments, settings))[0].mean(-1)
        errors = segments.reward + settings.gamma * (1.0 - segments.terminated) * later - now
        return discounted_suffix(errors, segments.done, settings.gamma * settings.trace)

    # --- learning -----------------------------------------------------------------------------------------------------

    def update(self, state: Any, settings: Any, chunk: Chunk, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """Learn from a chunk: critics, then policy, then multipliers. The key is used up."""
        for_critics, for_policy = jax.random.split(key)
        state = self._received(state, chunk)
        batch = jax.tree.map(lambda leaf: leaf[None], chunk)
        segments = as_segments(batch)
        initial = self._initial_rows(chunk.initial_observation, chunk.delta[0])
        with jax.default_matmul_precision(PRECISIONS[self.config.precision].products):
            advantage = self._advantage(state, settings, segments)
            state, critic_metrics = self._learned_critics(state, settings, batch, for_critics)
            state, policy_metrics = self._improved(state, settings, segments, advantage, initial, for_policy)
            state, dual_metrics = self._dual(state, settings, segments, initial)
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics | dual_metrics

    def _loss(
        self,
        state: Any,
        settings: Any,
        policy: Policy,
        batch: Surrogate,
        initial: Float[Array, "N i"],
        noise: Float[Array, "B A"],
    ) -> Float[Array, ""]:
        """Minus the clipped surrogate and the entropy bonus. initial: features of initial states."""
        outputs = policy(batch.features)
        ratio = jnp.exp(self.actions.log_prob(outputs, batch.raw_action) - batch.log_prob)
        clip = self.config.ratio_clip
        gain = jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * batch.advantage)
        loss: Array = -gain.mean() - settings.entropy_weight * self.actions.entropy(outputs, noise).mean()
        return loss

    def _improved(
        self,
        state: Any,
        settings: Any,
        segments: Chunk,
        advantage: Float[Array, "T N"],
        initial: Rows,
        key: PRNGKeyArray,
    ) -> tuple[Any, Metrics]:
        """The state after the policy's gradient steps, and with the learning rate for the next ones."""
        config, steps = self.config, clipped_adam(self.config.policy_clip)
        features = self._features(state, settings, rows_of(segments))
        features = features.reshape(-1, features.shape[-1])
        raw = segments.raw_action.reshape(-1, self.actions.size)
        old = state.policy(features)
        batch = Surrogate(features, raw, self.actions.log_prob(old, raw), standardized(advantage.reshape(-1)))
        at_start = self._features(state, settings, initial)
        bound = settings.radius(state.updates) ** 2 / 2

        def unfinished(carry: tuple[Array, Policy, Any, Array]) -> Array:
            running: Array = (carry[0] < config.policy_iterations) & (carry[3] <= config.kl_stop * bound)
            return running

        def iterate(carry: tuple[Array, Policy, Any, Array]) -> tuple[Array, Policy, Any, Array]:
            index, policy, optimizer, _ = carry
            noise = self.actions.noise(jax.random.fold_in(key, index), features.shape[:-1])
            gradients = jax.grad(lambda policy: self._loss(state, settings, policy, batch, at_start, noise))(policy)
            updates, optimizer = steps.update(gradients, optimizer)
            policy = eqx.apply_updates(policy, jax.tree.map(lambda step: -state.policy_rate * step, updates))
            return index + 1, policy, optimizer, self.actions.kl(old, policy(features)).mean()

        begin = (jnp.int32(0), state.policy, state.policy_optimizer, jnp.zeros(()))
        taken, policy, optimizer, kl = jax.lax.while_loop(unfinished, iterate, begin)
        factor = jnp.where(kl > _ADAPT * bound, 1 / _ADAPT, jnp.where(kl < bound / _ADAPT, _ADAPT, 1.0))
        noise = self.actions.noise(key, features.shape[:-1])
        metrics = {
            "kl": kl,
            "policy_iterations": taken.astype(kl.dtype),
            "policy_rate": state.policy_rate,
            "entropy": self.actions.entropy(old, noise).mean(),
        }
        rate = jnp.clip(state.policy_rate * factor, *_RATES)
        return replace(state, policy=policy, policy_optimizer=optimizer, policy_rate=rate), metrics


# --- Lagrangians ------------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LagrangianSettings(PpoSettings):
    """Of learners with multipliers and auxiliary variables of CVaR."""

    multiplier_rate: Float[Array, ""] = scalar(
        0.01, "Learning rate of the multipliers.", part="constraints", within="[0, inf)", main=True
    )
    beta_rate: Float[Array, ""] = scalar(
        0.01, "Learning rate of the auxiliary variable of CVaR.", part="constraints", within="[0, inf)"
    )
    largest_multiplier: Float[Array, ""] = scalar(
        1000.0, "Where multipliers are clipped.", part="constraints", within="[0, inf)"
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LagrangianState(PpoState):
    """multiplier (C,): lambda. beta (C,): the auxiliary variable of CVaR, its quantile at the optimum."""

    multiplier: Float[Array, " C"]
    beta: Float[Array, " C"]


class Lagrangian(PpoLearner[Config]):
    """Multipliers and auxiliary variables of CVaR, both from zero."""

    def init(self, key: PRNGKeyArray, settings: LagrangianSettings) -> LagrangianState:
        zero = jnp.zeros(self.num_costs)
        return LagrangianState(**self._ppo_beginning(key, settings), multiplier=zero, beta=zero)


def moved_dual(
    state: LagrangianState, settings: LagrangianSettings, sums: Float[Array, "C B"]
) -> tuple[LagrangianState, Metrics]:
    """Multipliers climb, and auxiliary variables descend, CVaR = beta + E[(X - beta)_+] / tail of cost sums X.

    beta's step is `tail` times the derivative 1 - P(X >= beta) / tail. Both use the old beta.
    """
    tail, beta = settings.constraints.tail, state.beta
    risk = beta + jnp.maximum(sums - beta[:, None], 0.0).mean(-1) / tail
    multiplier = state.multiplier + settings.multiplier_rate * (risk - settings.target)
    above = (sums >= beta[:, None]).astype(sums.dtype).mean(-1)
    moved = replace(
        state,
        multiplier=jnp.clip(multiplier, 0.0, settings.largest_multiplier),
        beta=jnp.clip(beta - settings.beta_rate * (tail - above), 0.0, settings.constraints.largest_return),
    )
    return moved, {"sub_risk": risk, "multiplier": moved.multiplier, "beta": moved.beta}
