"""Chunks in the shapes that learning needs: rows of augmented states, segments in time, units of one beta."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tailsafe.learning.chunks import Chunk


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """Augmented states and what was done there, one row each; leaves have leading axes (...)."""

    observation: Array
    delta: Array
    cost_so_far: Array
    discount: Array


def rows_of(chunk: Chunk) -> Rows:
    return Rows(chunk.observation, chunk.delta, chunk.cost_so_far, chunk.discount)


def without_initial(batch: Chunk) -> Chunk:
    """`initial_observation` has no time axis; units carry it apart."""
    return replace(batch, initial_observation=batch.observation)


def as_segments(batch: Chunk) -> Chunk:
    """(R, T, N, ...) -> (T, R N, ...): every environment of every chunk is a segment."""
    batch = without_initial(batch)

    def merge(leaf: Array) -> Array:
        chunks, steps, envs, *rest = leaf.shape  # named: a leaf without any entries has no -1
        return jnp.moveaxis(leaf, 0, 1).reshape(steps, chunks * envs, *rest)

    segments: Chunk = jax.tree.map(merge, batch)
    return segments


def joined(batch: Chunk) -> Chunk:
    """(R, T, N, ...) -> (1, R T, N, ...): all chunks as one, for units that span them."""

    def pool(leaf: Array) -> Array:
        return leaf.reshape(1, leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    initial = batch.initial_observation
    pooled: Chunk = jax.tree.map(pool, without_initial(batch))
    return replace(pooled, initial_observation=initial.reshape(1, -1, initial.shape[-1]))


def split_by_unit(leaf: Float[Array, "R T N ..."], groups: int) -> Float[Array, "U B ..."]:
    """Split environments into groups; a unit is one group of one chunk, its rows in the order (T, N / groups)."""
    chunks, steps, envs, *rest = leaf.shape
    leaf = leaf.reshape(chunks, steps, groups, envs // groups, *rest)
    return jnp.moveaxis(leaf, 2, 1).reshape(chunks * groups, steps * (envs // groups), *rest)


def initial_by_unit(initial: Float[Array, "R N O"], groups: int) -> Float[Array, "U N/G O"]:
    chunks, envs, size = initial.shape
    return initial.reshape(chunks * groups, envs // groups, size)
