"""Distributional TD(lambda) targets: mixtures of n-step returns as sets of quantiles.

The mixture of two weighted sets of atoms is projected back to K equally weighted atoms at every step of a backward
scan. Both sets are sorted, so an atom's place in the union follows from counting, without sorting again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import next_states, states_of
from tailsafe.learning.chunks import Chunk

Projection = Literal["cell_mean", "interpolate"]
LARGEST_RATIO = 100.0
# Products of ratios up to 100 could overflow; at this weight the one-step atoms have long ceased to matter.
_LARGEST_WEIGHT = 1e6


def project(
    first: Float[Array, "F ..."],
    second: Float[Array, "G ..."],
    weight: Float[Array, ...],
    count: int,
    projection: Projection,
) -> Float[Array, "K ..."]:
    """The mixture (1 - weight) first + weight second of two sorted sets of atoms, as `count` sorted atoms.

    Atoms lie along the first axis: sums over them are unrolled into passes over the others, which vectorise on any
    device (as reductions over a short last axis they took three times as long on a CPU).

    `cell_mean`: atom k is the mean of the mixture's quantile function over [k/K, (k+1)/K]; keeps the mean exactly.
    `interpolate`: linear interpolation of the atoms over their cumulative midpoints, at the cells' midpoints.
    """
    start, mass = _intervals(first, second, weight)
    atoms = jnp.concatenate([first, second])
    knots = zip(atoms, start, mass, strict=True)
    cell = jnp.arange(count, dtype=atoms.dtype).reshape(count, *(1,) * weight.ndim)
    return _cell_means(knots, cell, count) if projection == "cell_mean" else _interpolated(knots, cell, count)


Knots = Iterable[tuple[Array, Array, Array]]


def _cell_means(knots: Knots, cell: Float[Array, "K ..."], count: int) -> Float[Array, "K ..."]:
    low, high = cell / count, (cell + 1) / count
    total, covered = jnp.zeros_like(cell), jnp.zeros_like(cell)
    for atom, start, mass in knots:
        overlap = jnp.maximum(jnp.minimum(start + mass, high) - jnp.maximum(start, low), 0.0)
        total, covered = total + overlap * atom, covered + overlap
    # Rounding leaves the overlaps of a cell summing to 1/K only nearly, and means of equal atoms not quite in order: so
    # left, intervals of the next mixture would overlap here and leave cells without any mass there.
    return jax.lax.cummax(total / covered)


def _interpolated(knots: Knots, cell: Float[Array, "K ..."], count: int) -> Float[Array, "K ..."]:
    level = (cell + 0.5) / count
    # Nearest knots on both sides of every level: cumulative midpoint and atom.
    left, left_atom = jnp.full_like(cell, -jnp.inf), jnp.full_like(cell, -jnp.inf)
    right, right_atom = jnp.full_like(cell, jnp.inf), jnp.full_like(cell, jnp.inf)
    for atom, start, mass in knots:
        middle = start + mass / 2
        # An atom without mass is no point of the quantile function.
        below, above = (mass > 0) & (middle <= level), (mass > 0) & (middle > level)
        left = jnp.where(below, jnp.maximum(left, middle), left)
        left_atom = jnp.where(below, jnp.maximum(left_atom, atom), left_atom)
        right = jnp.where(above, jnp.minimum(right, middle), right)
        right_atom = jnp.where(above, jnp.minimum(right_atom, atom), right_atom)
    # Constant beyond the outermost midpoints.
    inside = jnp.isfinite(left) & jnp.isfinite(right)
    left_atom = jnp.where(jnp.isfinite(left), left_atom, right_atom)
    right_atom = jnp.where(jnp.isfinite(right), right_atom, left_atom)
    share = jnp.where(inside, (level - left) / jnp.where(inside, right - left, 1.0), 0.0)
    return left_atom + share * (right_atom - left_atom)


def _intervals(
    first: Float[Array, "F ..."], second: Float[Array, "G ..."], weight: Float[Array, ...]
) -> tuple[Float[Array, "F+G ..."], Float[Array, "F+G ..."]]:
    """Where each atom's probability interval begins in the sorted union, and how wide it is. Ties: `first` first."""

    def index(atoms: Array) -> Array:
        return jnp.arange(atoms.shape[0], dtype=atoms.dtype).reshape(-1, *(1,) * (atoms.ndim - 1))

    mass_first, mass_second = (1 - weight) / first.shape[0], weight / second.shape[0]
    seconds_below, firsts_below = jnp.zeros_like(first), jnp.zeros_like(second)
    for atom in second:
        seconds_below = seconds_below + (atom < first)
    for atom in first:
        firsts_below = firsts_below + (atom <= second)
    start_first = mass_first * index(first) + mass_second * seconds_below
    start_second = mass_second * index(second) + mass_first * firsts_below
    masses = [jnp.broadcast_to(mass_first, first.shape), jnp.broadcast_to(mass_second, second.shape)]
    return jnp.concatenate([start_first, start_second]), jnp.concatenate(masses)


def td_lambda(
    signal: Float[Array, "T ..."],
    next_atoms: Float[Array, "T K ..."],
    ratio: Float[Array, "T ..."],
    terminated: Bool[Array, "T ..."],
    done: Bool[Array, "T ..."],
    discount: Float[Array, ""] | float,
    trace: Float[Array, ""] | float,
    count: int,
    projection: Projection,
) -> Float[Array, "T count ..."]:
    """Targets of Z(s_t, a_t) for every t of contiguous segments.                                         Section 7

    signal: rewards or costs. next_atoms: sorted atoms at (s_{t+1}, a'), a' fresh from the policy. ratio: rho_t,
    clipped. terminated cuts the bootstrap; done (terminated or truncated) cuts the trace. The end of a segment
    bootstraps.

    A normalised mixture of n-step returns, the n-step one with weight proportional to (1 - trace) trace^(n-1) prod rho.
    """
    alive = 1.0 - terminated.astype(next_atoms.dtype)
    one_step = signal[:, None] + discount * alive[:, None] * next_atoms

    def backward(carry: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        later, weight = carry
        one_step, signal, alive, ended, later_ratio = now
        # `later` is P_{t+1}, the target of the next step; `weight` the total weight there.
        weight = jnp.minimum(trace * later_ratio * (1.0 - ended) * weight, _LARGEST_WEIGHT)
        lasting = signal + discount * alive * later
        target = project(one_step, lasting, weight / (1 - trace + weight), count, projection)
        return (target, 1 - trace + weight), target

    # rho_{t+1} weighs what follows step t. After the last step only the bootstrap follows, with weight trace / 1.
    later_ratio = jnp.concatenate([ratio[1:], jnp.ones_like(ratio[:1])])
    ended = done.astype(next_atoms.dtype).at[-1].set(0.0)
    even = jnp.full_like(ratio[-1], 0.5)
    last = (project(next_atoms[-1], next_atoms[-1], even, count, projection), jnp.ones_like(ratio[-1]))
    inputs = (one_step, signal, alive, ended, later_ratio)
    return jax.lax.scan(backward, last, inputs, reverse=True)[1]


def critic_targets(
    networks: ActorCritic,
    segments: Chunk,
    gamma: Float[Array, ""],
    trace: Float[Array, ""],
    count: int,
    projection: Projection,
    key: PRNGKeyArray,
) -> tuple[Float[Array, "S T B K"], Float[Array, "T B"]]:
    """TD(lambda) targets of all signals on segments (T, B), and the importance ratios pi / mu of the actions taken."""
    outputs = networks.policy(networks.features(states_of(segments)))
    log_ratio = networks.actions.log_prob(outputs, segments.raw_action) - segments.log_prob
    ratio = jnp.clip(jnp.exp(log_ratio), 0.0, LARGEST_RATIO)
    atoms = jnp.sort(networks.atoms_at(next_states(segments, gamma), key), axis=-1)
    signals = jnp.concatenate([segments.reward[..., None], segments.costs], axis=-1)[..., : networks.critics.signals]
    steps = signals.shape[0]

    # Segments and signals are one axis of independent rows.
    def for_every_signal(values: Array) -> Array:
        return jnp.broadcast_to(values[..., None], signals.shape).reshape(steps, -1)

    targets = td_lambda(
        signals.reshape(steps, -1),
        jnp.transpose(atoms, (1, 3, 2, 0)).reshape(steps, atoms.shape[-1], -1),
        for_every_signal(ratio),
        for_every_signal(segments.terminated),
        for_every_signal(segments.done),
        gamma,
        trace,
        count,
        projection,
    )
    targets = targets.reshape(*targets.shape[:2], *signals.shape[1:])
    return jnp.transpose(targets, (3, 0, 2, 1)), ratio
