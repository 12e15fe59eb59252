"""Gradient steps of a policy on a clipped surrogate objective (PPO), which end where its KL divergence is used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from tailsafe.learning.actions import Actions
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.advantages import standardized
from tailsafe.learning.batches import states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.networks import Policy

# KL over the bound at which a learning rate is halved; one below its inverse is doubled.
_ADAPT = 2.0
_RATES = (1e-7, 1e-1)


class Surrogate(NamedTuple):
    """A chunk as the policy's steps see it: one row per step."""

    features: Float[Array, "B i"]
    raw_action: Float[Array, "B A"]
    log_prob: Float[Array, " B"]
    advantage: Float[Array, " B"]


# From a policy, the rows, and noise of actions (B, A) to what is descended.
PolicyLoss = Callable[[Policy, Surrogate, Array], Array]


def surrogate_of(networks: ActorCritic, segments: Chunk, advantage: Float[Array, "T N"]) -> Surrogate:
    """The rows of segments, with the probabilities of the current policy and advantages of mean 0 and deviation 1."""
    features = networks.features(states_of(segments))
    features = features.reshape(-1, features.shape[-1])
    raw = segments.raw_action.reshape(-1, segments.raw_action.shape[-1])
    log_prob = networks.actions.log_prob(networks.policy(features), raw)
    return Surrogate(features, raw, log_prob, standardized(advantage.reshape(-1)))


def clipped_loss(
    policy: Policy,
    batch: Surrogate,
    noise: Float[Array, "B A"],
    actions: Actions,
    ratio_clip: float,
    entropy_weight: Float[Array, ""],
) -> Float[Array, ""]:
    """Minus the clipped surrogate and the entropy bonus."""
    outputs = policy(batch.features)
    ratio = jnp.exp(actions.log_prob(outputs, batch.raw_action) - batch.log_prob)
    gain = jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 1 - ratio_clip, 1 + ratio_clip) * batch.advantage)
    loss: Array = -gain.mean() - entropy_weight * actions.entropy(outputs, noise).mean()
    return loss


class Improved(NamedTuple):
    """After the steps: the policy, its optimiser, how many steps there were, KL(old || new), the old one's entropy."""

    policy: Policy
    optimizer_state: Any
    iterations: Int[Array, ""]
    kl: Float[Array, ""]
    entropy: Float[Array, ""]


def improved_policy(
    networks: ActorCritic,
    batch: Surrogate,
    loss: PolicyLoss,
    optimizer: optax.GradientTransformation,
    optimizer_state: Any,
    rate: Float[Array, ""],
    most_iterations: int,
    largest_kl: Float[Array, ""],
    key: PRNGKeyArray,
) -> Improved:
    """Gradient steps on all rows, until there were `most_iterations` or the KL divergence exceeds `largest_kl`."""
    actions = networks.actions
    old = networks.policy(batch.features)

    def unfinished(carry: tuple[Array, Policy, Any, Array]) -> Array:
        running: Array = (carry[0] < most_iterations) & (carry[3] <= largest_kl)
        return running

    def iterate(carry: tuple[Array, Policy, Any, Array]) -> tuple[Array, Policy, Any, Array]:
        index, policy, optimizer_state, _ = carry
        noise = actions.noise(jax.random.fold_in(key, index), batch.features.shape[:-1])
        gradients = jax.grad(lambda policy: loss(policy, batch, noise))(policy)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        policy = eqx.apply_updates(policy, jax.tree.map(lambda step: -rate * step, updates))
        return index + 1, policy, optimizer_state, actions.kl(old, policy(batch.features)).mean()

    begin = (jnp.int32(0), networks.policy, optimizer_state, jnp.zeros(()))
    iterations, policy, optimizer_state, kl = jax.lax.while_loop(unfinished, iterate, begin)
    noise = actions.noise(key, batch.features.shape[:-1])
    return Improved(policy, optimizer_state, iterations, kl, actions.entropy(old, noise).mean())


def adapted_rate(rate: Float[Array, ""], kl: Float[Array, ""], bound: Float[Array, ""]) -> Float[Array, ""]:
    """The learning rate for the next update: halved where the KL was twice its bound, doubled where it was half."""
    factor = jnp.where(kl > _ADAPT * bound, 1 / _ADAPT, jnp.where(kl < bound / _ADAPT, _ADAPT, 1.0))
    return jnp.clip(rate * factor, *_RATES)
