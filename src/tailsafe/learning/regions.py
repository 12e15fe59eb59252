"""What is estimated per region of a range of limits: values, what episodes cost, gradients in the Fisher metric.

The rows of a region are those whose limit belongs to it, each with its share. Risks of rows with another limit than
that of the region's knot are scaled by the ratio of both: what counts is how much of its own limit each one uses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import Minibatch, initial_states
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.limit_range import LimitRange
from tailsafe.learning.policy_gradient import RowGradients
from tailsafe.learning.risk_estimates import Estimator, state_weights
from tailsafe.learning.sub_risk import SubRisk, values_at
from tailsafe.learning.trust_region import Matvec, conjugate_gradient, inner_products
from tailsafe.optimization.qp import descended_qp


def range_of(constraints: Constraints) -> LimitRange:
    """The range of constraints that have one."""
    assert constraints.range is not None
    return constraints.range


class RegionRows(NamedTuple):
    """How B rows belong to regions. share (R, B): memberships. scale (R, C, B): a knot's limit over that of the row."""

    share: Float[Array, "R B"]
    scale: Float[Array, "R C B"]

    @staticmethod
    def of(constraints: Constraints, delta: Float[Array, "B n"]) -> RegionRows:
        """Of rows that were played at these increments and positions."""
        scale = constraints.knot_limits()[..., None] / constraints.limits(delta).T
        return RegionRows(range_of(constraints).memberships(delta[:, -1]).T, scale)

    def weighted(self, weights: Float[Array, " B"]) -> tuple[Float[Array, "R B"], Float[Array, " R"]]:
        """Weights (B,) of all rows within each region, where they sum to one; and what share of them each region has.

        A region without rows has no weights.
        """
        parts = self.share * weights
        total = parts.sum(-1)
        return parts / jnp.where(total > 0, total, 1.0)[:, None], total / total.sum()

    def means(self, values: Float[Array, "1+C B"], weights: Float[Array, "R B"]) -> Float[Array, "R 1+C"]:
        """Mean J_R and J_C of each region."""
        rewards = weights @ values[0]
        return jnp.concatenate(
            [rewards[:, None], jnp.einsum("rb,rcb,cb->rc", weights, self.scale, values[1:])], axis=-1
        )


def region_values(
    risk: SubRisk,
    networks: ActorCritic,
    minibatch: Minibatch,
    estimator: Estimator,
    modes: Float[Array, "R n"],
    key: PRNGKeyArray,
) -> Float[Array, "R 1+C"]:
    """(J_R, J_C1, ...) of the current policy in every region, by the chosen estimator and without correction.

    Any episode could have begun under any limit: from initial states, values are those at the knots themselves.
    """
    constraints, limits = risk.constraints, range_of(risk.constraints)
    if estimator == "initial":
        observation = minibatch.initial_observation

        def at_knot(delta: Float[Array, " n"], key: PRNGKeyArray) -> Float[Array, " 1+C"]:
            rows = jnp.broadcast_to(delta, (observation.shape[0], delta.shape[0]))
            states = initial_states(observation, rows, constraints.limit.shape[0])
            return values_at(constraints, networks, states, key, shifted=True).mean(-1)

        return jax.vmap(at_knot)(limits.delta_at(modes, limits.knots), jax.random.split(key, limits.regions))
    shifted, states = estimator != "visited", minibatch.states
    states = replace(states, delta=risk.judged_at(states.delta))
    rows = RegionRows.of(constraints, states.delta)
    weights, _ = rows.weighted(state_weights(states, shifted=shifted))
    values = rows.means(values_at(constraints, networks, states, key, shifted=shifted), weights)
    if estimator == "episodes":
        found, ended = finished_in_regions(risk, minibatch)
        return jnp.where(ended[:, None] > 0, values.at[:, 1:].set(found), values)
    return values


def finished_in_regions(risk: SubRisk, minibatch: Minibatch) -> tuple[Float[Array, "R C"], Float[Array, " R"]]:
    """Mean E[g_beta(D)] + I of the episodes that ended in each region (zero without any), and their number."""
    risks, ended = risk.ended_risks(minibatch.steps)
    rows = RegionRows.of(risk.constraints, minibatch.steps.delta)
    share = rows.share * ended
    count = share.sum(-1)
    return jnp.einsum("rb,rcb,cb->rc", share, rows.scale, risks) / jnp.maximum(count, 1e-6)[:, None], count


class RegionGradients(NamedTuple):
    """solved (R, 1 + C, P): F^+ grad, F the Fisher matrix of all rows; image: F times that. gram (R, 1 + C, 1 + C):
    inner products within each region. share (R,): how much of all rows each region has.
    """

    solved: Float[Array, "R 1+C P"]
    image: Float[Array, "R 1+C P"]
    gram: Float[Array, "R 1+C 1+C"]
    share: Float[Array, " R"]


def region_gradients(gradients: RowGradients, rows: RegionRows, horizon: Float[Array, ""]) -> RegionGradients:
    """Natural gradients of every region's reward and risks.

    In the metric of all rows a step for one region is long where it changes the policy in others, so that natural
    gradients of different regions hardly disturb each other.
    """
    weights, share = rows.weighted(gradients.weights)
    scale = jnp.concatenate([jnp.ones_like(rows.scale[:, :1]), rows.scale], axis=1)
    parts = (weights[:, None] * scale)[..., None] * gradients.by_state
    pulled = jax.vmap(jax.vmap(lambda part: gradients.pull_back(part)[0]))(parts) * horizon
    solved, image = conjugate_gradient(gradients.fisher, pulled.reshape(-1, pulled.shape[-1]))
    solved, image = solved.reshape(pulled.shape), image.reshape(pulled.shape)
    return RegionGradients(solved, image, jax.vmap(inner_products)(solved, image), share)


def joint_direction(
    directions: Float[Array, "R P"], natural: RegionGradients, excess: Float[Array, "R C"]
) -> Float[Array, " P"]:
    """The sum of the regions' steps, without what they do to each other's constraints.

    By its own step region r changes its cost i to first order by d_ri. Others may add to that as long as the limit is
    kept; the rest is taken back, by the shortest correction.
    """
    total = directions.sum(0)
    solved, image = (leaf[:, 1:].reshape(-1, total.shape[0]) for leaf in (natural.solved, natural.image))
    own = jnp.einsum("rcp,rp->rc", natural.image[:, 1:], directions)
    allowed = jnp.maximum(own, -excess).reshape(-1)
    gram = inner_products(solved, image)
    taken = descended_qp(gram, image @ total - allowed)
    # Conjugate gradients stop early: of tiny gradients the products may belong to no metric, and the program diverges.
    sound = jnp.isfinite(taken).all() & (taken @ gram @ taken >= 0)
    return total - jnp.where(sound, taken, 0.0) @ solved


def within_radius(direction: Float[Array, " P"], fisher: Matvec, radius: Float[Array, ""]) -> Float[Array, " P"]:
    """The sum of the regions' steps, cut to the radius: where they agree it is longer than their parts allow."""
    squared = direction @ fisher(direction[None])[0]
    return direction * jnp.minimum(1.0, radius / jnp.sqrt(jnp.maximum(squared, 1e-30)))


def nearest_region(limits: LimitRange, position: Float[Array, ...]) -> Bool[Array, "R ..."]:
    """Whether each region is the one that a position belongs to most."""
    chosen = jnp.argmax(limits.memberships(position), axis=-1)
    return chosen == jnp.arange(limits.regions).reshape(-1, *(1,) * chosen.ndim)
