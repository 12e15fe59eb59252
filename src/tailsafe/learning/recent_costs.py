"""The discounted cost sums of the latest finished episodes: their risks and quantiles, which multipliers follow."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import Constraints

# Of one sample: alpha n is a whole number as often as not, and rounding must not lift it to the next one.
_ROUNDING = 1e-3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RecentCosts:
    """A ring. sums (C, E): of the latest E episodes; count: of all that have finished so far."""

    sums: Float[Array, "C E"]
    count: Int[Array, ""]

    @staticmethod
    def create(num_costs: int, episodes: int) -> RecentCosts:
        """Of no episode yet."""
        return RecentCosts(jnp.zeros((num_costs, episodes)), jnp.int32(0))

    @property
    def known(self) -> Bool[Array, ""]:
        """Whether any episode has finished."""
        return self.count > 0

    def with_finished(self, steps: Chunk) -> RecentCosts:
        """After the episodes that ended among these steps (T, N); of more than fit, the last ones stay."""
        sums = steps.cost_so_far + steps.discount[..., None] * steps.costs
        done, size = steps.done.reshape(-1), self.sums.shape[-1]
        rank = jnp.cumsum(done)
        place = (self.count + rank - 1) % size
        place = jnp.where(done & (rank > rank[-1] - size), place, size)  # beyond the ring: dropped
        kept = self.sums.at[:, place].set(sums.reshape(-1, sums.shape[-1]).T, mode="drop")
        return RecentCosts(kept, self.count + rank[-1])

    def risks(self, constraints: Constraints) -> tuple[Float[Array, " C"], Float[Array, "C M-1"]]:
        """The step spectra's risks of these episodes, R = inf_beta E[g_beta(D)] + I(beta), and the beta that attains
        them: the empirical quantiles F^-1(alpha_k). Zero before the first episode.
        """
        size = self.sums.shape[-1]
        number = jnp.minimum(self.count, size)
        valid = jnp.arange(size) < number
        ordered = jnp.sort(jnp.where(valid, self.sums, jnp.inf), axis=-1)
        place = jnp.ceil(constraints.alpha * number - _ROUNDING).astype(int) - 1
        place = jnp.clip(place, 0, jnp.maximum(number - 1, 0))
        beta = jnp.where(self.known, jnp.take_along_axis(ordered, place, axis=-1), 0.0)
        worth = constraints.g(jnp.where(valid, self.sums, 0.0), beta) * valid
        risk = worth.sum(-1) / jnp.maximum(number, 1) + constraints.conjugate_integral(beta)
        return jnp.where(self.known, risk, 0.0), beta
