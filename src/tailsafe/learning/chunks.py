"""Chunks: what was experienced between two updates, and the replay that keeps the latest of them.

A chunk is T consecutive steps of N environments, time first. D and b (`cost_so_far`, `discount`) are those of *before*
the step: the augmented state the action was chosen in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transition:
    """What environments return for one step; every leaf has a leading axis N.

    next_observation (N, O): the true next one, also where the episode ended. observation (N, O): what the next action
    is chosen from: the same, or a new episode's first. repeats (N,): where a world stands still until the end of its
    episode and the episode was cut there, how many steps with this reward and these costs that makes (this one
    included); 0 elsewhere. None: no environment of this kind cuts episodes.
    """

    next_observation: Float[Array, "N O"]
    observation: Float[Array, "N O"]
    reward: Float[Array, " N"]
    costs: Float[Array, "N C"]
    terminated: Bool[Array, " N"]
    truncated: Bool[Array, " N"]
    repeats: Int[Array, " N"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chunk:
    """T steps of N environments. Leaves (T, N, ...), but `initial_observation` (N, O).

    observation, next_observation: raw. raw_action: before squashing; log_prob: under the policy that acted.
    cost_so_far (T, N, C): D_t; discount (T, N): b_t = gamma^t. delta (T, N, n): increments of beta while acting.
    initial_observation: where the episode that ran at the chunk's first step began.
    """

    observation: Float[Array, "T N O"]
    raw_action: Float[Array, "T N A"]
    log_prob: Float[Array, "T N"]
    reward: Float[Array, "T N"]
    costs: Float[Array, "T N C"]
    terminated: Bool[Array, "T N"]
    truncated: Bool[Array, "T N"]
    next_observation: Float[Array, "T N O"]
    cost_so_far: Float[Array, "T N C"]
    discount: Float[Array, "T N"]
    delta: Float[Array, "T N n"]
    initial_observation: Float[Array, "N O"]

    @property
    def done(self) -> Bool[Array, ...]:
        """Terminated or truncated."""
        return self.terminated | self.truncated


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Replay:
    """The latest chunks in a ring. Leaves of `chunks` have a leading axis R; `added` counts all chunks ever added."""

    chunks: Chunk
    added: Int[Array, ""]

    @staticmethod
    def create(example: Chunk, capacity: int) -> Replay:
        """An empty ring for `capacity` chunks shaped like `example`."""
        empty = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), example)
        return Replay(empty, jnp.int32(0))

    @property
    def capacity(self) -> int:
        return self.chunks.reward.shape[0]

    def add(self, chunk: Chunk) -> Replay:
        """With `chunk` in the place of the oldest."""
        slot = self.added % self.capacity
        chunks = jax.tree.map(lambda ring, new: ring.at[slot].set(new), self.chunks, chunk)
        return Replay(chunks, self.added + 1)

    def batch(self, key: PRNGKeyArray, size: int) -> Chunk:
        """The newest chunk and `size` - 1 older ones, drawn without replacement; leaves get a leading axis `size`.

        While there are not enough, chunks repeat.
        """
        newest = (self.added - 1) % self.capacity
        stored = jnp.minimum(self.added, self.capacity)
        age = (newest - jnp.arange(self.capacity)) % self.capacity
        # The newest comes first, then the stored ones in random order, then empty places.
        order = jnp.where(age == 0, -1.0, jax.random.uniform(key, (self.capacity,)) + (age >= stored))
        ranked = jnp.argsort(order)
        slots = ranked[jnp.arange(size) % jnp.minimum(stored, size)]
        drawn: Chunk = jax.tree.map(lambda ring: ring[slots], self.chunks)
        return drawn

    def rows(self, key: PRNGKeyArray, size: int) -> Chunk:
        """`size` stored steps, drawn uniformly and independently: leaves (size, ...)."""
        _, steps, envs = self.chunks.reward.shape
        stored = jnp.minimum(self.added, self.capacity)
        place = jax.random.randint(key, (size,), 0, stored * steps * envs)
        slot, step, env = place // (steps * envs), place // envs % steps, place % envs
        initial = self.chunks.initial_observation[slot, env]
        drawn: Chunk = jax.tree.map(
            lambda ring: ring[slot, step, env], replace(self.chunks, initial_observation=self.chunks.observation)
        )
        return replace(drawn, initial_observation=initial)
