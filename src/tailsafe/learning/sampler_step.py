"""How the sampler learns: gradients of J(pi; beta) in its parameters, or a step towards quantiles.            Section 6

J(pi; beta) = J_R - K sum_i (J_Ci - d_i)_+ for one sampled beta.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import Minibatch, initial_states
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.regions import nearest_region
from tailsafe.learning.sampler import Sampler
from tailsafe.learning.sub_risk import values_at

# Finished episodes of one batch whose quantiles say more than critics that are still learning.
_MANY_EPISODES = 64
# Where the mode ends when it follows quantiles.
_ENDS = (0.0025, 0.9975)
# Where phi ends otherwise.
_LARGEST_PHI = 6.0
# Where the sampler follows the current policy's quantiles, Adam must forget quickly: near the ends of its range the
# gradients in phi are tiny, and measured by the large ones of long ago they would not move it for hundreds of updates.
_MEMORY = {"pathwise": 0.999, "natural": 0.999, "explicit": 0.9, "quantile": 0.9}


def sampler_optimizer(rule: str) -> optax.GradientTransformation:
    """Adam for the sampler's parameters, after gradients are cut to norm 1; rule: how these come about."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=_MEMORY[rule]))


def descended(phi: Float[Array, "*R n"], step: Float[Array, "*R n"]) -> Float[Array, "*R n"]:
    """phi - step, kept where the sampler still moves."""
    return jnp.clip(phi - step, -_LARGEST_PHI, _LARGEST_PHI)


def penalized(values: Float[Array, "... 1+C"], penalty: float, limit: Float[Array, "... C"]) -> Float[Array, ...]:
    """J(pi; beta) of (J_R, J_C1, ...)."""
    return values[..., 0] - penalty * jnp.maximum(values[..., 1:] - limit, 0.0).sum(-1)


def score_gradient(
    sampler: Sampler, minibatches: Minibatch, values: Float[Array, "U 1+C"], penalty: float, limit: Array
) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    """-J and its natural gradient, by score functions at the betas that were drawn."""
    found = penalized(values, penalty, limit)
    return -found.mean(), -sampler.natural_gradient(minibatches.steps.delta.mean(1), found)


def pathwise_gradient(
    sampler: Sampler,
    networks: ActorCritic,
    minibatches: Minibatch,
    penalty: float,
    limit: Array,
    key: PRNGKeyArray,
    *,
    shifted: bool,
    explicit: bool,
) -> tuple[Float[Array, ""], Float[Array, "*R n"]]:
    """-J at fresh betas and its gradient through g_beta, the conjugate and the critics' input.

    limit (C,), or (R, C) with a range of limits: what each region's sampler keeps. shifted: risks are those from
    initial states; else of all visited ones as if initial. explicit: descend the risks alone, and only through g_beta
    and the conjugate (Theorem 6.2), in units of the largest returns.
    """
    constraints, limits = networks.constraints, networks.constraints.range
    count = minibatches.steps.reward.shape[0] if limits is None else limits.regions
    for_delta, for_values = jax.random.split(key)
    keys = jax.random.split(for_values, count)
    if limits is not None:  # every region hears all states
        minibatches = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0], (count, *leaf.shape[1:])), minibatches)

    def loss_of(phi: Array) -> Array:
        fresh = Sampler(phi, sampler.deviation).sample(for_delta, (count,))
        if limits is not None:
            fresh = jnp.concatenate([fresh, limits.knots[:, None]], axis=-1)

        def of_one(minibatch: Minibatch, delta: Array, key: Array) -> Array:
            states = minibatch.states
            if shifted:  # (D, b) of other betas mean nothing here: from the beginning
                observation = minibatch.initial_observation
                states = initial_states(observation, states.delta[: observation.shape[0]], constraints.limit.shape[0])
            states = replace(states, delta=jnp.broadcast_to(delta, states.delta.shape))
            return values_at(constraints, networks, states, key, shifted=shifted, explicit=explicit).mean(-1)

        values = jax.vmap(of_one)(minibatches, fresh, keys)
        if explicit:
            return (values[:, 1:] / constraints.largest_return).sum(-1).mean()
        return -penalized(values, penalty, limit).mean()

    return jax.value_and_grad(loss_of)(sampler.phi)


def moved_to_quantiles(
    sampler: Sampler,
    networks: ActorCritic,
    minibatches: Minibatch,
    share: Float[Array, ""],
    aim: Float[Array, "... C"],
    key: PRNGKeyArray,
) -> Float[Array, "... n"]:
    """phi after its mode went a share of the way to the quantiles of the discounted costs.

    Of the episodes that finished in the batch, if these are many; else of the critics' returns from initial states.
    No further than I(beta) = the aim: beyond it no policy satisfies the constraint.

    With a range of limits: aim (R, C), phi (R, n), one sampler for each region, which follows the episodes whose limits
    are nearest to its own.
    """
    constraints, mode, limits = networks.constraints, sampler.mode, networks.constraints.range
    finished = _finished(minibatches, constraints.limit.shape[0])
    if limits is None:
        quantiles = _cost_quantiles(networks, minibatches, mode, *finished, key)
        return _towards(constraints, mode, quantiles, share, aim)

    position = minibatches.steps.delta[..., -1].reshape(-1)
    near = nearest_region(limits, position)
    knots = constraints.knot_limits()

    def of_region(mode: Array, delta: Array, near: Array, limit: Array, aim: Array, key: Array) -> Array:
        total = finished.total * limit / (constraints.limit * limits.factors(position))
        quantiles = _cost_quantiles(networks, minibatches, delta, total, finished.ended & near, key)
        return _towards(constraints.with_limit(limit), mode, quantiles, share, aim)

    keys = jax.random.split(key, limits.regions)
    return jax.vmap(of_region)(mode, limits.delta_at(mode, limits.knots), near, knots, aim, keys)


class _Finished(NamedTuple):
    """total (B, C): the discounted costs of every row's episode up to there. ended (B,): whether it ended there."""

    total: Float[Array, "B C"]
    ended: Bool[Array, " B"]


def _finished(minibatches: Minibatch, costs: int) -> _Finished:
    steps = minibatches.steps
    total = (steps.cost_so_far + steps.discount[..., None] * steps.costs).reshape(-1, costs)
    return _Finished(total, steps.done.reshape(-1))


def _towards(
    constraints: Constraints,
    mode: Float[Array, " n"],
    quantiles: Float[Array, "C M-1"],
    share: Float[Array, ""],
    aim: Float[Array, " C"],
) -> Float[Array, " n"]:
    """phi after the mode went a share of the way to these quantiles."""
    limit = constraints.limit
    free = jnp.where(limit > 0, aim / jnp.where(limit > 0, limit, 1.0), 1.0)
    wanted = constraints.increments(quantiles, free)
    mode = jnp.clip(mode + jnp.minimum(share, 1.0) * (wanted - mode), *_ENDS)
    return jnp.log(mode / (1 - mode))


def _cost_quantiles(
    networks: ActorCritic,
    minibatches: Minibatch,
    delta: Float[Array, " n"],
    total: Float[Array, "B C"],
    ended: Bool[Array, " B"],
    key: PRNGKeyArray,
) -> Float[Array, "C M-1"]:
    """Of the totals of the rows that ended, if these are many; else of the critics' returns at `delta`."""
    constraints = networks.constraints
    observations = minibatches.initial_observation
    observations = observations.reshape(-1, observations.shape[-1])
    costs = constraints.limit.shape[0]
    states = initial_states(observations, jnp.broadcast_to(delta, (observations.shape[0], delta.shape[0])), costs)
    atoms = networks.atoms_at(states, key)[1:].reshape(costs, -1)
    expected = jax.vmap(jnp.quantile)(atoms, constraints.alpha)
    count = ended.sum()
    # Sorted, with what has not ended behind all else: quantile alpha is number floor(alpha count).
    ordered = jnp.sort(jnp.where(ended[:, None], total, jnp.inf), axis=0)
    place = jnp.minimum(jnp.floor(constraints.alpha * count).astype(int), jnp.maximum(count - 1, 0))
    seen = jax.vmap(lambda column, place: column[place])(ordered.T, place)
    return jnp.where(count >= _MANY_EPISODES, seen, expected)
