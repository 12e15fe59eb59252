"""A range of limits: every episode has limits of its own, and what is learned about limits is kept per region.

A position in [0, 1] says where in the range a limit is, on a logarithmic scale. Limits of several costs move together:
one position stands for all of them.

Regions are the neighbourhoods of R knots, evenly spread over the positions. Neighbours overlap: an episode belongs to
the knots on both sides of its position, to each the more the nearer it is (linear interpolation). So what is kept per
region is a continuous function of the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LimitRange:
    """spread (C,): log(highest / lowest limit) of every cost. knots (R,): positions of the regions."""

    spread: Float[Array, " C"]
    knots: Float[Array, " R"]

    @staticmethod
    def create(spread: Float[Array, " C"], regions: int) -> LimitRange:
        """With so many regions."""
        return LimitRange(spread, jnp.linspace(0.0, 1.0, regions))

    @property
    def regions(self) -> int:
        """How many there are."""
        return self.knots.shape[0]

    def draw(self, key: PRNGKeyArray, rows: int) -> Float[Array, " rows"]:
        """Positions of episodes: uniform, and the two ends themselves just so often that regions get equal shares."""
        beyond = 0.5 / (self.regions - 1)
        return jnp.clip(jax.random.uniform(key, (rows,), minval=-beyond, maxval=1 + beyond), 0.0, 1.0)

    def memberships(self, position: Float[Array, ...]) -> Float[Array, "... R"]:
        """How much each position belongs to each region; at most two entries are positive, and they sum to one."""
        steps = position[..., None] * (self.regions - 1)
        return jnp.maximum(1.0 - jnp.abs(steps - jnp.arange(self.regions)), 0.0)

    def factors(self, position: Float[Array, ...]) -> Float[Array, "... C"]:
        """The limits at these positions, in parts of the lowest."""
        return jnp.exp(self.spread * position[..., None])

    def delta_at(self, modes: Float[Array, "R n"], position: Float[Array, ...]) -> Float[Array, "... n+1"]:
        """What networks are conditioned on: increments of beta as a function of the limit, and the position itself.

        modes: the increments at the knots.
        """
        return jnp.concatenate([self.memberships(position) @ modes, position[..., None]], axis=-1)
