"""Advantages: generalised estimation over segments in time, and of single actions from their critics' targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import ActionAdvantages, next_states, states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.risk_estimates import RiskModel


def discounted_suffix(
    errors: Float[Array, "T ..."], done: Bool[Array, "T ..."], decay: Float[Array, ""] | float
) -> Float[Array, "T ..."]:
    """A_t = errors_t + decay (1 - done_t) A_{t+1}: with TD errors and decay = gamma lambda, GAE.

    done cuts the sum; the end of a segment does too.
    """
    alive = 1.0 - done.astype(errors.dtype)

    def backward(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        error, alive = now
        total = error + decay * alive * later
        return total, total

    return jax.lax.scan(backward, jnp.zeros_like(errors[0]), (errors, alive), reverse=True)[1]


def at_episode_end(values: Float[Array, "T ..."], done: Bool[Array, "T ..."]) -> Float[Array, "T ..."]:
    """For every step, the value at the end of its episode, or at the segment's end where that comes first."""

    def backward(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        value, ended = now
        found = jnp.where(ended, value, later)
        return found, found

    return jax.lax.scan(backward, values[-1], (values, done), reverse=True)[1]


def standardized(advantages: Float[Array, ...]) -> Float[Array, ...]:
    """Mean zero, unbiased standard deviation one."""
    return (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)


def reward_advantage(
    networks: ActorCritic, segments: Chunk, gamma: Float[Array, ""], trace: Float[Array, ""]
) -> Float[Array, "T B"]:
    """GAE of the reward, with V = the mean of the atoms of critics of states."""
    now = networks.atoms_at(states_of(segments))[0].mean(-1)
    later = networks.atoms_at(next_states(segments, gamma))[0].mean(-1)
    errors = segments.reward + gamma * (1.0 - segments.terminated) * later - now
    return discounted_suffix(errors, segments.done, gamma * trace)


def action_advantages(
    networks: ActorCritic,
    risk: RiskModel,
    segments: Chunk,
    targets: Float[Array, "S T B K"],
    ratio: Float[Array, "T B"],
    chunks: int,
    key: PRNGKeyArray,
) -> ActionAdvantages:
    """A_R and A_{i,g} of the actions taken: Q from the targets, V from the critics at fresh actions.

    segments: (T, R N, ...) of `chunks` chunks. Leaves of the result: (R, T, N, ...).
    """
    states = states_of(segments)
    objective = risk.objective(networks, states, jax.random.fold_in(key, 1))
    advantages = objective(targets) - objective(networks.atoms_at(states, key))

    def by_chunk(leaf: Array) -> Array:
        steps, both, *rest = leaf.shape
        return jnp.moveaxis(leaf.reshape(steps, chunks, both // chunks, *rest), 1, 0)

    return ActionAdvantages(by_chunk(jnp.moveaxis(advantages, 0, -1)), by_chunk(ratio))
