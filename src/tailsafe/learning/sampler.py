"""The sampler xi: a distribution over the dual variables beta, learned by raising J(pi; beta).                Section 6

Independent truncated normals on [0, 1], one per increment of beta, with mean sigmoid(phi) and a fixed deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

# Beyond these levels the inverse CDF is lost in single precision.
_LEVELS = (1e-6, 1 - 1e-6)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sampler:
    """phi (n,): the mode of increment k is sigmoid(phi[k]). deviation (): of the untruncated normal.

    Leading axes of phi are samplers side by side: one for each region of a range of limits, or for each draw.
    """

    phi: Float[Array, "... n"]
    deviation: Float[Array, ""]

    @property
    def mode(self) -> Float[Array, "... n"]:
        """The likeliest increments."""
        return jax.nn.sigmoid(self.phi)

    def between(self, memberships: Float[Array, "... R"]) -> Sampler:
        """Of samplers (R, n) of regions: those of draws that belong so much to each; modes are interpolated."""
        mode = memberships @ self.mode
        return Sampler(jnp.log(mode / (1 - mode)), self.deviation)

    def sample(self, key: PRNGKeyArray, rows: tuple[int, ...], uniform_share: Array | float = 0.0) -> Array:
        """Increments (*rows, n) by the inverse CDF, differentiable in phi; a share of them uniform on [0, 1]."""
        for_level, for_share, for_uniform = jax.random.split(key, 3)
        level = jax.random.uniform(for_level, (*rows, self.phi.shape[-1]))
        low, high = self._edges()
        inside = jnp.clip(ndtr(low) + level * (ndtr(high) - ndtr(low)), *_LEVELS)
        drawn = jnp.clip(self.mode + self.deviation * ndtri(inside), 0.0, 1.0)
        explore = jax.random.uniform(for_share, (*rows, 1)) < uniform_share
        return jnp.where(explore, jax.random.uniform(for_uniform, drawn.shape), drawn)

    def log_prob(self, delta: Float[Array, "... n"]) -> Float[Array, ...]:
        """Log density of increments in [0, 1]."""
        low, high = self._edges()
        density = norm.logpdf((delta - self.mode) / self.deviation) - jnp.log(self.deviation)
        return (density - jnp.log(ndtr(high) - ndtr(low))).sum(-1)

    def moments(self) -> tuple[Float[Array, "... n"], Float[Array, "... n"]]:
        """Mean and variance of the truncated increments."""
        low, high = self._edges()
        mass = ndtr(high) - ndtr(low)
        at_low, at_high = norm.pdf(low), norm.pdf(high)
        shift = (at_low - at_high) / mass
        variance = 1 + (low * at_low - high * at_high) / mass - shift**2
        return self.mode + self.deviation * shift, self.deviation**2 * variance

    def natural_gradient(self, delta: Float[Array, "B n"], values: Float[Array, " B"]) -> Float[Array, " n"]:
        """F^+ grad_phi E[J], from score functions at drawn increments and their values J(pi; beta).          Thm. 6.3

        d log p / d mode = (x - E x) / dev^2 and the Fisher information of the mode is Var x / dev^4, per increment; the
        mean value is subtracted as a baseline.
        """
        mean, variance = self.moments()
        score = (delta - mean) / self.deviation**2
        along_mode = ((values - values.mean())[:, None] * score).mean(0)
        slope = self.mode * (1 - self.mode)
        information = variance / self.deviation**4
        # F^-1 g in phi: slope * g / (slope^2 * information).
        return along_mode / jnp.maximum(slope * information, 1e-6)

    def _edges(self) -> tuple[Float[Array, "... n"], Float[Array, "... n"]]:
        return (0.0 - self.mode) / self.deviation, (1.0 - self.mode) / self.deviation
