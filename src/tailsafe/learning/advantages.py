"""Generalised advantage estimation over segments in time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
