"""Distributional TD(lambda) targets: mixtures of n-step returns as sets of quantiles.

The mixture of two weighted sets of atoms is projected back to K equally weighted atoms at every step of a backward
scan. Both sets are sorted, so an atom's place in the union follows from counting, without sorting again.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Projection = Literal["cell_mean", "interpolate"]
LARGEST_RATIO = 100.0
# Products of ratios up to 100 could overflow; at this weight the one-step atoms have long ceased to matter.
_LARGEST_WEIGHT = 1e6


def project(
    first: Float[Array, "... A"],
    second: Float[Array, "... B2"],
    weight: Float[Array, ...],
    count: int,
    projection: Projection,
) -> Float[Array, "... K"]:
    """The mixture (1 - weight) first + weight second of two sorted sets of atoms, as `count` sorted atoms.

    `cell_mean`: atom k is the mean of the mixture's quantile function over [k/K, (k+1)/K]; keeps the mean exactly.
    `interpolate`: linear interpolation of the atoms over their cumulative midpoints, at the cells' midpoints.
    """
    atoms = jnp.concatenate([first, second], axis=-1)
    start, mass = _intervals(first, second, weight)
    if projection == "cell_mean":
        edges = jnp.arange(count + 1, dtype=atoms.dtype) / count
        low = jnp.maximum(start[..., None, :], edges[:-1, None])
        high = jnp.minimum((start + mass)[..., None, :], edges[1:, None])
        overlap = jnp.maximum(high - low, 0.0)
        # Rounding leaves the overlaps of a cell summing to 1/K only nearly.
        return (overlap * atoms[..., None, :]).sum(-1) / overlap.sum(-1)
    middle = start + mass / 2
    levels = (jnp.arange(count, dtype=atoms.dtype) + 0.5) / count
    # An atom without mass is no point of the quantile function.
    exists = mass[..., None, :] > 0
    below = exists & (middle[..., None, :] <= levels[:, None])
    above = exists & (middle[..., None, :] > levels[:, None])

    def nearest(values: Array, where: Array, side: float) -> Array:
        return side * jnp.max(jnp.where(where, side * values[..., None, :], -jnp.inf), axis=-1)

    left, right = nearest(middle, below, 1.0), nearest(middle, above, -1.0)
    left_atom, right_atom = nearest(atoms, below, 1.0), nearest(atoms, above, -1.0)
    # Constant beyond the outermost midpoints.
    left_atom = jnp.where(jnp.isfinite(left), left_atom, right_atom)
    right_atom = jnp.where(jnp.isfinite(right), right_atom, left_atom)
    inside = jnp.isfinite(left) & jnp.isfinite(right)
    share = jnp.where(inside, (levels - left) / jnp.where(inside, right - left, 1.0), 0.0)
    return left_atom + share * (right_atom - left_atom)


def _intervals(
    first: Float[Array, "... A"], second: Float[Array, "... B2"], weight: Float[Array, ...]
) -> tuple[Float[Array, "... A+B2"], Float[Array, "... A+B2"]]:
    """Where each atom's probability interval begins in the sorted union, and how wide it is. Ties: `first` first."""
    mass_first = ((1 - weight) / first.shape[-1])[..., None]
    mass_second = (weight / second.shape[-1])[..., None]
    # 0/1 in float: sums of up to a hundred of them are exact.
    seconds_below = (second[..., None, :] < first[..., :, None]).astype(first.dtype).sum(-1)
    firsts_below = (first[..., None, :] <= second[..., :, None]).astype(first.dtype).sum(-1)
    start_first = mass_first * jnp.arange(first.shape[-1]) + mass_second * seconds_below
    start_second = mass_second * jnp.arange(second.shape[-1]) + mass_first * firsts_below
    mass = jnp.concatenate(
        [jnp.broadcast_to(mass_first, first.shape), jnp.broadcast_to(mass_second, second.shape)], axis=-1
    )
    return jnp.concatenate([start_first, start_second], axis=-1), mass


def td_lambda(
    signal: Float[Array, "T ..."],
    next_atoms: Float[Array, "T ... K"],
    ratio: Float[Array, "T ..."],
    terminated: Bool[Array, "T ..."],
    done: Bool[Array, "T ..."],
    discount: Float[Array, ""] | float,
    trace: Float[Array, ""] | float,
    count: int,
    projection: Projection,
) -> Float[Array, "T ... count"]:
    """Targets of Z(s_t, a_t) for every t of contiguous segments.                                     Fact sheet 3.4

    signal: rewards or costs. next_atoms: sorted atoms at (s_{t+1}, a'), a' fresh from the policy. ratio: rho_t, clipped.
    terminated cuts the bootstrap; done (terminated or truncated) cuts the trace. The end of a segment bootstraps.

    A normalised mixture of n-step returns, the n-step one with weight proportional to (1 - trace) trace^(n-1) prod rho.
    """
    alive = (1.0 - terminated.astype(next_atoms.dtype))[..., None]
    one_step = signal[..., None] + discount * alive * next_atoms

    def backward(carry: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        later, weight = carry
        one_step, signal, alive, ended, later_ratio = now
        # `later` is P_{t+1}, the target of the next step; `weight` the total weight there.
        weight = jnp.minimum(trace * later_ratio * (1.0 - ended) * weight, _LARGEST_WEIGHT)
        lasting = signal[..., None] + discount * alive * later
        target = project(one_step, lasting, weight / (1 - trace + weight), count, projection)
        return (target, 1 - trace + weight), target

    # rho_{t+1} weighs what follows step t. After the last step only the bootstrap follows, with weight trace / 1.
    later_ratio = jnp.concatenate([ratio[1:], jnp.ones_like(ratio[:1])])
    ended = done.astype(next_atoms.dtype).at[-1].set(0.0)
    even = jnp.full_like(ratio[-1], 0.5)
    last = (project(next_atoms[-1], next_atoms[-1], even, count, projection), jnp.ones_like(ratio[-1]))
    inputs = (one_step, signal, alive, ended, later_ratio)
    return jax.lax.scan(backward, last, inputs, reverse=True)[1]
