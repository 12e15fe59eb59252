"""Where things stand at the start of an episode, and where a new goal goes.

Draws are float32 whatever the precision of the caller, so that a seed names the same layout in both engines.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

EXTENT = 1.5
TRIES_PER_OBJECT = 100
GOAL_TRIES = 10_000
_GOAL_TRIES_AT_ONCE = 16

Points = Float[Array, "K 2"]


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], low: Any, high: Any) -> Array:
    """Uniform float32 draws in [low, high), as the caller's default float type."""
    unit = jax.random.uniform(key, shape, jnp.float32)
    return jnp.asarray(low + unit * (high - low), float)


def place(key: PRNGKeyArray, keepouts: tuple[float, ...]) -> tuple[Points, Bool[Array, ""]]:
    """Place objects one after the other in the square [-1.5, 1.5]^2.

    Object k is uniform in the square shrunk by its keepout and must keep the sum of the two keepouts from every
    object before it; it gets 100 tries.

    Returns:
      positions (K, 2) [m], and whether every object found a place.
    """
    count = len(keepouts)
    keepout = jnp.asarray(keepouts, float)
    half = (EXTENT - keepout)[:, None, None]
    candidates = uniform(key, (count, TRIES_PER_OBJECT, 2), -half, half)

    def place_one(placed: Points, k: Any) -> tuple[Points, Any]:
        tries = candidates[k]
        before = jnp.arange(count) < k
        clear = jnp.all(_clear(tries, placed, keepout + keepout[k]) | ~before, axis=1)
        first = jnp.argmax(clear)
        return placed.at[k].set(tries[first]), clear[first]

    positions, found = jax.lax.scan(place_one, jnp.zeros((count, 2), float), jnp.arange(count))
    return positions, jnp.all(found)


def draw_goal(
    key: PRNGKeyArray,
    number: Int[Array, ""],
    keepout: float,
    others: Points,
    others_keepout: tuple[float, ...],
    needed: Any = True,
) -> tuple[Float[Array, " 2"], Bool[Array, ""]]:
    """Goal number `number` of an episode with `key`: a position that keeps its distance from `others`.

    Returns:
      the position [m], and whether 10,000 tries found one. Without `needed` nothing is drawn, not even random numbers:
      most control steps need none, and hashing them would be a good part of the task's work.
    """
    half = EXTENT - keepout
    distance = jnp.asarray(np.asarray(others_keepout) + keepout, float)
    rounds = GOAL_TRIES // _GOAL_TRIES_AT_ONCE

    def unfinished(carry: tuple[Any, Any, Any]) -> Any:
        _, found, attempt = carry
        return needed & ~found & (attempt < rounds)

    def draw(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        _, _, attempt = carry
        goal_number, attempt = _inside_the_loop(number, attempt)
        round_key = jax.random.fold_in(jax.random.fold_in(key, goal_number), attempt)
        tries = uniform(round_key, (_GOAL_TRIES_AT_ONCE, 2), -half, half)
        clear = jnp.all(_clear(tries, others, distance), axis=1)
        first = jnp.argmax(clear)
        return tries[first], clear[first], attempt + 1

    goal, found, _ = jax.lax.while_loop(unfinished, draw, (jnp.zeros(2, float), jnp.bool_(False), jnp.int32(0)))
    return goal, found


def draw_index(key: PRNGKeyArray, number: Int[Array, ""], count: int, needed: Any = True) -> Any:
    """Draw number `number` of an episode with `key`: an index below `count`; 0 without `needed` (see `draw_goal`)."""

    def draw(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        draw_number, _ = _inside_the_loop(number, carry[0])
        return jnp.bool_(True), jax.random.randint(jax.random.fold_in(key, draw_number), (), 0, count, jnp.int32)

    _, index = jax.lax.while_loop(lambda carry: needed & ~carry[0], draw, (jnp.bool_(False), jnp.int32(0)))
    return index


def _inside_the_loop(number: Any, carried: Any) -> tuple[Any, Any]:
    """Both unchanged, and `number` no longer a constant of the loop that carries `carried`.

    XLA moves what is constant in a loop in front of it, where it runs in every control step, needed or not: hashing
    the keys was half of a button task's work.
    """
    tied: tuple[Any, Any] = jax.lax.optimization_barrier((number, carried))  # type: ignore[no-untyped-call]
    return tied


def _clear(tries: Float[Array, "T 2"], others: Points, distance: Float[Array, " K"]) -> Bool[Array, "T K"]:
    offset = tries[:, None, :] - others[None, :, :]
    return jnp.sqrt(jnp.sum(offset * offset, axis=-1)) >= distance
