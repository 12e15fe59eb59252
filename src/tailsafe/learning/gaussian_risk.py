"""Risks as those of Gaussians with the mean and the standard deviation of the critics' atoms, mean + k std.

k is 1.2711 for CVaR_0.75; every spectrum has one. Where costs are far from Gaussian (rare and large) the risk is not
what it says.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import AugmentedStates
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.risk_estimates import Objective, state_weights, sums_at_the_end, total_costs

# A standard deviation counts as at least this share of the largest return: its gradient at zero has no meaning.
_LEAST_DEVIATION = 1e-4


@dataclass(frozen=True)
class GaussianRisk:
    """Risks as SDAC sees them. shifted: whether gradients count returns together with the cost so far."""

    constraints: Constraints
    shifted: bool

    def objective(self, networks: ActorCritic, states: AugmentedStates, key: PRNGKeyArray) -> Objective:
        """mean + k std to first order around the current policy: linear in the distribution,
        T + k (T^2 - 2 mean T) / (2 std).

        With T = D + b Z only Z + k (2 D Z + b Z^2 - 2 mean Z) / (2 std) depends on the action, divided by b.
        """
        lead, costs = states.discount.ndim, states.cost_so_far.shape[-1]
        flat = jax.tree.map(lambda leaf: leaf.reshape(states.discount.size, *leaf.shape[lead:]), states)
        _, mean, deviation = moments(networks, flat, key, shifted=self.shifted)
        deviation = jnp.maximum(deviation, _LEAST_DEVIATION * self.constraints.largest_return)
        so_far, discount = (
            (jnp.moveaxis(states.cost_so_far, -1, 0), states.discount)
            if self.shifted
            else (jnp.zeros((costs, *states.discount.shape)), jnp.ones_like(states.discount))
        )
        per_cost = (-1, *(1,) * (lead + 1))
        slope = (self.constraints.deviations / (2 * deviation)).reshape(per_cost)
        centre = mean.reshape(per_cost)

        def objective(atoms: Float[Array, "S ... K"]) -> Float[Array, "S ..."]:
            costs = atoms[1:]
            spread = 2 * (so_far[..., None] - centre) * costs + discount[..., None] * costs**2
            return jnp.concatenate([atoms[:1].mean(-1), (costs + slope * spread).mean(-1)])

        return objective

    def critic_values(
        self, networks: ActorCritic, states: AugmentedStates, key: PRNGKeyArray, *, shifted: bool
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy."""
        reward, mean, deviation = moments(networks, states, key, shifted=shifted)
        return jnp.concatenate([reward[None], mean + self.constraints.deviations * deviation])

    def finished_risks(self, steps: Chunk) -> tuple[Float[Array, " C"], Float[Array, ""]]:
        """mean + k std over the episodes that ended among the steps (zero without any), and their number."""
        total = sums_at_the_end(steps)
        ended = steps.done.astype(total.dtype)
        count = ended.sum()
        weights = ended / jnp.maximum(count, 1.0)
        mean = total @ weights
        deviation = jnp.sqrt(jnp.maximum((total - mean[:, None]) ** 2 @ weights, 0.0))
        return mean + self.constraints.deviations * deviation, count

    def sampled_risks(self, total: Float[Array, "C n"], delta: Float[Array, " m"]) -> Float[Array, " C"]:
        """mean + k std of n finished episodes; there is no beta."""
        return total.mean(-1) + self.constraints.deviations * total.std(-1)


def moments(
    networks: ActorCritic, states: AugmentedStates, key: PRNGKeyArray, *, shifted: bool
) -> tuple[Float[Array, ""], Float[Array, " C"], Float[Array, " C"]]:
    """E[Z_R], and mean and standard deviation of all cost atoms pooled over states (B rows) and actions.

    shifted: of D + b Z, early states counting most; else of Z, all alike.
    """
    features = networks.features(states)
    outputs = networks.policy(features)

    def of(actions: Float[Array, "B A"]) -> Float[Array, "1+2C B"]:
        atoms = networks.atoms(jnp.concatenate([features, actions], axis=-1))
        costs = total_costs(states, atoms[1:]) if shifted else atoms[1:]
        return jnp.concatenate([atoms[:1].mean(-1), costs.mean(-1), (costs**2).mean(-1)])

    values = networks.actions.expectation(outputs, networks.actions.noise(key, outputs.shape[:-1]), of)
    # Not a matrix product, which may be of lower precision: the deviation is a difference of large numbers.
    pooled = (values * state_weights(states, shifted=shifted)).sum(-1)
    mean, square = jnp.split(pooled[1:], 2)
    count = states.discount.size * networks.critics.atoms
    return pooled[0], mean, jnp.sqrt(jnp.maximum(square - mean**2, 0.0) * count / (count - 1))
