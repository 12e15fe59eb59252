"""What CPPO, CVaR-CPO and SDPO share: policies that learn by a clipped surrogate objective.

On-policy: an update learns from the newest chunk alone. Critics are of states, Y(s). Advantages, losses and what is
dual are up to the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.common import learn_critics
from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.state import LearnerState, TraceConfig, TraceSettings
from tailsafe.fields import scalar, setting
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.critics import clipped_adam
from tailsafe.learning.surrogate import PolicyLoss, adapted_rate, clipped_loss, improved_policy, surrogate_of
from tailsafe.learning.targets import critic_targets


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


def only_newest_chunk(config: PpoConfig) -> str | None:
    """A line that refuses a memory, or None."""
    if (config.batch_chunks, config.replay_chunks) == (1, 1):
        return None
    return "this algorithm learns from the newest chunk alone: batch_chunks and replay_chunks must be 1"


def ppo_fields(begun: dict[str, Any], settings: PpoSettings, config: PpoConfig) -> dict[str, Any]:
    """The fields of `PpoState`, from those of `LearnerState`."""
    optimizer = clipped_adam(config.policy_clip).init(eqx.filter(begun["policy"], eqx.is_array))
    return begun | {"policy_optimizer": optimizer, "policy_rate": settings.policy_rate}


def update_critics(
    networks: ActorCritic,
    state: Any,
    settings: PpoSettings,
    config: PpoConfig,
    segments: Chunk,
    key: PRNGKeyArray,
) -> tuple[Any, Metrics]:
    """Quantile regression on TD(lambda) targets from the current networks."""
    for_targets, for_order = jax.random.split(key)
    targets, _ = critic_targets(
        networks, segments, settings.gamma, settings.trace, config.target_quantiles, config.projection, for_targets
    )
    return learn_critics(networks, state, settings, config, segments, targets, for_order)


def clipped(networks: ActorCritic, settings: PpoSettings, config: PpoConfig) -> PolicyLoss:
    """PPO's loss, as configured."""
    return partial(
        clipped_loss,
        actions=networks.actions,
        ratio_clip=config.ratio_clip,
        entropy_weight=settings.entropy_weight,
    )


def update_policy(
    networks: ActorCritic,
    state: Any,
    settings: PpoSettings,
    config: PpoConfig,
    segments: Chunk,
    advantage: Float[Array, "T N"],
    loss: PolicyLoss,
    key: PRNGKeyArray,
) -> tuple[Any, Metrics]:
    """The state after the policy's gradient steps, and with the learning rate for the next ones."""
    batch = surrogate_of(networks, segments, advantage)
    bound = settings.radius(state.updates) ** 2 / 2
    found = improved_policy(
        networks,
        batch,
        loss,
        clipped_adam(config.policy_clip),
        state.policy_optimizer,
        state.policy_rate,
        config.policy_iterations,
        config.kl_stop * bound,
        key,
    )
    metrics = {
        "kl": found.kl,
        "policy_iterations": found.iterations.astype(found.kl.dtype),
        "policy_rate": state.policy_rate,
        "entropy": found.entropy,
    }
    rate = adapted_rate(state.policy_rate, found.kl, bound)
    return replace(state, policy=found.policy, policy_optimizer=found.optimizer_state, policy_rate=rate), metrics


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


def lagrangian_fields(begun: dict[str, Any], num_costs: int) -> dict[str, Any]:
    """The fields of `LagrangianState`, from those of `PpoState`: multipliers and auxiliary variables from zero."""
    zero = jnp.zeros(num_costs)
    return begun | {"multiplier": zero, "beta": zero}


def dual_step(
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
