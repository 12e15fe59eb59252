"""Acting: how a policy meets environments, step by step, and what is written down about it.

`act` chooses, the environments move, `record` writes a row of the chunk and carries each environment's augmented
coordinates (D, b), its beta and its running totals to the next step. Both are pure, so the same two functions run
inside `scan` with environments on the device, and one call per step with environments on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tailsafe.learning.chunks import Chunk, Transition


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Finished:
    """The latest finished episodes in a ring of W rows; `count` of them ever.

    length (W,); reward (W,): sums; costs (W, C): sums; discounted_costs (W, C): discounted sums.
    """

    count: Int[Array, ""]
    length: Float[Array, " W"]
    reward: Float[Array, " W"]
    costs: Float[Array, "W C"]
    discounted_costs: Float[Array, "W C"]

    @staticmethod
    def create(window: int, costs: int) -> Finished:
        """No episode yet."""
        rows, table = jnp.zeros(window), jnp.zeros((window, costs))
        return Finished(jnp.int32(0), rows, rows, table, table)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Actor:
    """N environments between two steps.

    observation, initial_observation (N, O): the latest, and the running episode's first. cost_so_far (N, C): D_t;
    discount (N,): b_t. delta (N, n): increments of the beta in force. length, reward (N,), costs (N, C): totals of the
    running episode. finished: the latest finished episodes.
    """

    observation: Float[Array, "N O"]
    initial_observation: Float[Array, "N O"]
    cost_so_far: Float[Array, "N C"]
    discount: Float[Array, " N"]
    delta: Float[Array, "N n"]
    length: Float[Array, " N"]
    reward: Float[Array, " N"]
    costs: Float[Array, "N C"]
    finished: Finished

    @staticmethod
    def create(observation: Float[Array, "N O"], delta: Float[Array, "N n"], costs: int, window: int) -> Actor:
        """Everywhere at the beginning of an episode."""
        count = observation.shape[0]
        rows, table = jnp.zeros(count), jnp.zeros((count, costs))
        return Actor(
            observation=observation,
            initial_observation=observation,
            cost_so_far=table,
            discount=jnp.ones(count),
            delta=delta,
            length=rows,
            reward=rows,
            costs=table,
            finished=Finished.create(window, costs),
        )


def record(
    actor: Actor,
    raw_action: Float[Array, "N A"],
    log_prob: Float[Array, " N"],
    transition: Transition,
    gamma: Float[Array, ""],
    fresh_delta: Float[Array, "N n"],
) -> tuple[Actor, Chunk]:
    """One row of the chunk (without the time axis), and the actor after the step.

    fresh_delta: the increments that an environment goes on with where its episode ended (pass `actor.delta` to keep
    them).

    A world that stands still is learned from as a termination that pays and costs what standing still for ever would,
    1 / (1 - gamma) times: the same value to bootstrap from as at any other truncation, without the steps in which no
    action matters. Totals of the episode count it as often as it would have been repeated.
    """
    lasting, counted, discounted = _weights_of_repeats(transition, gamma)
    row = Chunk(
        observation=actor.observation,
        raw_action=raw_action,
        log_prob=log_prob,
        reward=lasting * transition.reward,
        costs=lasting[:, None] * transition.costs,
        terminated=transition.terminated,
        truncated=transition.truncated,
        next_observation=transition.next_observation,
        cost_so_far=actor.cost_so_far,
        discount=actor.discount,
        delta=actor.delta,
        initial_observation=actor.initial_observation,
    )
    done = row.done
    length, reward = actor.length + counted, actor.reward + counted * transition.reward
    costs = actor.costs + counted[:, None] * transition.costs
    cost_so_far = actor.cost_so_far + (actor.discount * discounted)[:, None] * transition.costs

    def unless_done(value: Array, begun: Array | float) -> Array:
        ended = done.reshape(-1, *(1,) * (value.ndim - 1))
        return jnp.where(ended, begun, value)

    after = Actor(
        observation=transition.observation,
        initial_observation=unless_done(actor.initial_observation, transition.observation),
        cost_so_far=unless_done(cost_so_far, 0.0),
        discount=unless_done(actor.discount * gamma, 1.0),
        delta=unless_done(actor.delta, fresh_delta),
        length=unless_done(length, 0.0),
        reward=unless_done(reward, 0.0),
        costs=unless_done(costs, 0.0),
        finished=_finish(actor.finished, done, length, reward, costs, cost_so_far),
    )
    return after, row


def _weights_of_repeats(transition: Transition, gamma: Float[Array, ""]) -> tuple[Array, Array, Array]:
    """How much a step's outcome weighs for learning, in plain sums and in discounted sums; each (N,)."""
    ones = jnp.ones_like(transition.reward)
    if transition.repeats is None:
        return ones, ones, ones
    halted = transition.repeats > 0
    counted = jnp.where(halted, transition.repeats, 1).astype(ones.dtype)
    return jnp.where(halted, 1 / (1 - gamma), 1.0), counted, jnp.where(halted, (1 - gamma**counted) / (1 - gamma), 1.0)


def _finish(
    finished: Finished, done: Bool[Array, " N"], length: Array, reward: Array, costs: Array, discounted: Array
) -> Finished:
    window = finished.length.shape[0]
    place = (finished.count + jnp.cumsum(done) - 1) % window
    # A place beyond the ring drops the row. Where more than `window` episodes end at once, some row of each place
    # stays.
    place = jnp.where(done, place, window)

    def write(ring: Array, rows: Array) -> Array:
        return ring.at[place].set(rows, mode="drop")

    return Finished(
        count=finished.count + done.sum(),
        length=write(finished.length, length),
        reward=write(finished.reward, reward),
        costs=write(finished.costs, costs),
        discounted_costs=write(finished.discounted_costs, discounted),
    )


def as_chunk(rows: Chunk) -> Chunk:
    """Stacked rows (T, N, ...) as a chunk: only the first row's `initial_observation` is kept."""
    fields = dict(vars(rows))
    return Chunk(**{**fields, "initial_observation": rows.initial_observation[0]})
