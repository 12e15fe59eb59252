"""Running mean and variance of observations."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_LEAST_VARIANCE = 1e-8
# Weight of the initial guess (mean 0, variance 1): the first few observations cannot make a variance vanish.
_INITIAL_COUNT = 1.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Normalizer:
    """count (): observations seen; mean (O,), variance (O,): of all of them."""

    count: Float[Array, ""]
    mean: Float[Array, " O"]
    variance: Float[Array, " O"]

    @staticmethod
    def create(size: int) -> Normalizer:
        """Nothing seen: the identity."""
        return Normalizer(jnp.asarray(_INITIAL_COUNT), jnp.zeros(size), jnp.ones(size))

    def update(self, observations: Float[Array, "... O"]) -> Normalizer:
        """Merge the statistics of a batch, by the parallel variance formula."""
        rows = observations.reshape(-1, observations.shape[-1])
        mean, variance = rows.mean(0), rows.var(0)
        # Counts stop growing in effect at 1e8, below float32's exact integers by a margin that keeps the mean alive.
        total = self.count + rows.shape[0]
        share = rows.shape[0] / total
        difference = mean - self.mean
        merged = (1 - share) * self.variance + share * variance + share * (1 - share) * difference**2
        return Normalizer(jnp.minimum(total, 1e8), self.mean + share * difference, merged)

    @property
    def deviation(self) -> Float[Array, " O"]:
        """What differences to the mean are divided by; never zero."""
        return jnp.sqrt(self.variance + _LEAST_VARIANCE)

    def __call__(self, observations: Float[Array, "... O"], clip: float) -> Float[Array, "... O"]:
        """(x - mean) / std, cut at +-clip."""
        scaled = (observations - self.mean) / self.deviation
        return jnp.clip(scaled, -clip, clip)
