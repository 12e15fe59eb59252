"""Chunks in the shapes that learning needs: augmented states, segments in time, minibatches of one beta."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from tailsafe.learning.chunks import Chunk


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AugmentedStates:
    """States together with the discounted cost so far D, the discount b = gamma^t, and the increments of beta in force.

    Leaves have any leading axes (...).
    """

    observation: Float[Array, "... O"]
    delta: Float[Array, "... n"]
    cost_so_far: Float[Array, "... C"]
    discount: Float[Array, ...]


def states_of(chunk: Chunk) -> AugmentedStates:
    """Where the steps began."""
    return AugmentedStates(chunk.observation, chunk.delta, chunk.cost_so_far, chunk.discount)


def next_states(chunk: Chunk, gamma: Float[Array, ""]) -> AugmentedStates:
    """Where the steps led to."""
    return AugmentedStates(
        chunk.next_observation,
        chunk.delta,
        chunk.cost_so_far + chunk.discount[..., None] * chunk.costs,
        chunk.discount * gamma,
    )


def initial_states(observation: Float[Array, "B O"], delta: Float[Array, "B n"], num_costs: int) -> AugmentedStates:
    """Where episodes begin: nothing is paid yet, D = 0 and b = 1."""
    count = observation.shape[0]
    return AugmentedStates(observation, delta, jnp.zeros((count, num_costs)), jnp.ones(count))


def without_initial(batch: Chunk) -> Chunk:
    """`initial_observation` has no time axis; minibatches carry it apart."""
    return replace(batch, initial_observation=batch.observation)


def as_segments(batch: Chunk) -> Chunk:
    """(R, T, N, ...) -> (T, R N, ...): every environment of every chunk is a segment."""
    batch = without_initial(batch)

    def merge(leaf: Array) -> Array:
        chunks, steps, envs, *rest = leaf.shape  # named: a leaf without any entries has no -1
        return jnp.moveaxis(leaf, 0, 1).reshape(steps, chunks * envs, *rest)

    segments: Chunk = jax.tree.map(merge, batch)
    return segments


def segments_of(chunk: Chunk) -> Chunk:
    """A chunk (T, N, ...) by itself as segments."""
    return as_segments(jax.tree.map(lambda leaf: leaf[None], chunk))


def joined(batch: Chunk) -> Chunk:
    """(R, T, N, ...) -> (1, R T, N, ...): all chunks as one, for minibatches that span them."""

    def pool(leaf: Array) -> Array:
        return leaf.reshape(1, leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    initial = batch.initial_observation
    pooled: Chunk = jax.tree.map(pool, without_initial(batch))
    return replace(pooled, initial_observation=initial.reshape(1, -1, initial.shape[-1]))


class ActionAdvantages(NamedTuple):
    """About the actions taken: advantages of every signal, and importance ratios pi / mu."""

    advantages: Float[Array, "... S"]
    ratio: Float[Array, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Minibatch:
    """What one policy gradient is computed from: one group of environments of a chunk, (beta, tau) of Algorithm 2.

    steps: leaves (B, ...), in the order (T, N / groups). initial_observation (N / groups, O). taken: about the actions
    of the steps. Several minibatches have one more axis in front.
    """

    steps: Chunk
    initial_observation: Float[Array, "N O"]
    taken: ActionAdvantages

    @property
    def states(self) -> AugmentedStates:
        """Where the steps began."""
        return states_of(self.steps)


def minibatches_of(batch: Chunk, taken: ActionAdvantages, groups: int) -> Minibatch:
    """One minibatch per group of environments of every chunk (R, T, N, ...); without groups one of all rows."""
    if not groups:
        groups = 1
        batch, taken = joined(batch), jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), taken)
    split = partial(split_groups, groups=groups)
    steps, initial = jax.tree.map(split, without_initial(batch)), batch.initial_observation
    chunks, envs, size = initial.shape
    initial = initial.reshape(chunks * groups, envs // groups, size)
    return Minibatch(steps, initial, jax.tree.map(split, taken))


def split_groups(leaf: Shaped[Array, "R T N ..."], groups: int) -> Shaped[Array, "U B ..."]:
    """Split environments into groups: each group of each chunk, its rows in the order (T, N / groups)."""
    chunks, steps, envs, *rest = leaf.shape
    leaf = leaf.reshape(chunks, steps, groups, envs // groups, *rest)
    return jnp.moveaxis(leaf, 2, 1).reshape(chunks * groups, steps * (envs // groups), *rest)
