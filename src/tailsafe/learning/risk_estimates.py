"""How large the objective and the risks are: by the critics, and corrected by what finished episodes say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import AugmentedStates, Minibatch, initial_states
from tailsafe.learning.chunks import Chunk

# From atoms of every signal (S, ..., K) to what is to be raised or lowered (S, ...): the gradient of its mean over
# states, in the policy, is that of J_R and of every J_Ci.
Objective = Callable[[Array], Array]
Estimator = Literal["visited", "initial", "shifted", "episodes"]


class RiskModel(Protocol):
    """How an algorithm sees risks: `sub_risk.SubRisk` or `gaussian_risk.GaussianRisk`."""

    def objective(self, networks: ActorCritic, states: AugmentedStates, key: PRNGKeyArray) -> Objective:
        """What return distributions at these states are worth."""

    def critic_values(
        self, networks: ActorCritic, states: AugmentedStates, key: PRNGKeyArray, *, shifted: bool
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy by the critics at these states (B rows).

        shifted: costs to come count together with the cost so far; else as if every state were initial.
        """

    def finished_risks(self, steps: Chunk) -> tuple[Float[Array, " C"], Float[Array, ""]]:
        """The same risks of the episodes that ended among these steps (zero without any), and their number."""

    def sampled_risks(self, total: Float[Array, "C n"], delta: Float[Array, " m"]) -> Float[Array, " C"]:
        """The same risks of n finished episodes with these discounted cost sums, at these increments of beta."""


def estimated_values(
    risk: RiskModel, networks: ActorCritic, minibatch: Minibatch, estimator: Estimator, key: PRNGKeyArray
) -> Float[Array, " 1+C"]:
    """(J_R, J_C1, ...) of the current policy, by the chosen estimator and without correction."""
    states = minibatch.states
    if estimator == "initial":
        observation = minibatch.initial_observation
        states = initial_states(observation, states.delta[: observation.shape[0]], states.cost_so_far.shape[-1])
    values = risk.critic_values(networks, states, key, shifted=estimator != "visited")
    if estimator == "episodes":
        sampled, ended = risk.finished_risks(minibatch.steps)
        return jnp.where(ended > 0, values.at[1:].set(sampled), values)
    return values


class Calibration(NamedTuple):
    """bias (C,): what the critics' J_C lack compared with finished episodes; noise (C,): variance of that difference
    between updates; looks (): updates in which episodes finished.
    """

    bias: Float[Array, " C"]
    noise: Float[Array, " C"]
    looks: Int[Array, ""]


def calibrated(
    before: Calibration,
    risk: RiskModel,
    minibatches: Minibatch,
    values: Float[Array, "U 1+C"],
    gain: Float[Array, ...],
) -> Calibration:
    """After another look at the episodes that finished in these minibatches, with weight `gain`.

    Critics of a few updates are precise, but wrong by some amount that changes slowly; finished episodes are right
    on average (a fall that cut one counts as lasting for ever, like everywhere in learning), but few. So the mean
    difference between the two is followed slowly and added to the critics' J_C.
    """
    risks, ended = jax.vmap(risk.finished_risks)(minibatches.steps)
    found = (risks * ended[:, None]).sum(0) / jnp.maximum(ended.sum(), 1.0)
    return looked(before, found, values[:, 1:].mean(0), ended.sum() > 0, gain)


def looked(
    before: Calibration, found: Float[Array, " C"], expected: Float[Array, " C"], seen: Array, gain: Float[Array, ...]
) -> Calibration:
    """After a look at finished episodes with these risks, where critics expected others. seen: if there were any."""
    error = found - expected
    return Calibration(
        before.bias + gain * jnp.where(seen, error, 0.0),
        before.noise + gain * jnp.where(seen, error**2 - before.noise, 0.0),
        before.looks + seen,
    )


def total_costs(states: AugmentedStates, costs: Float[Array, "C B K"]) -> Float[Array, "C B K"]:
    """D + b Z: atoms of the discounted cost sums of whole episodes."""
    return jnp.moveaxis(states.cost_so_far, -1, 0)[..., None] + states.discount[:, None] * costs


def state_weights(states: AugmentedStates, *, shifted: bool) -> Float[Array, " B"]:
    """How much each state counts in a mean; they sum to one.

    E[g(D_t + b_t Z(s_t))] is the same for every t. Early states say most about the current policy: late ones carry
    costs that older policies ran up.
    """
    weights = states.discount if shifted else jnp.ones_like(states.discount)
    return weights / weights.sum()


def sums_at_the_end(steps: Chunk) -> Float[Array, "C B"]:
    """The discounted cost sums of episodes up to and with each step."""
    return jnp.moveaxis(steps.cost_so_far + steps.discount[:, None] * steps.costs, -1, 0)
