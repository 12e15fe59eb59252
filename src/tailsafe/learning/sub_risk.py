"""The sub-risk at given dual variables, J_Ci(pi; beta) = E[g_beta(G_Ci)] + I(beta), from critics and from episodes.

Sections 5 and 7 of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import AugmentedStates
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.risk_estimates import Objective, state_weights, sums_at_the_end, total_costs

# Below this discount nothing changes a discounted sum any more: a long episode has said what it has to say.
_MATURE = 0.02


@dataclass(frozen=True)
class SubRisk:
    """Risks as SRCPO sees them.

    slope: whether the gradient of a risk counts returns together with the cost so far (shifted), or as if every
    visited state were initial. now (n,): increments at which values and episodes are judged (of a range of limits
    (R, n): those of its regions); None: those that were in force.
    """

    constraints: Constraints
    gamma: Float[Array, ""]
    slope: Literal["shifted", "visited"]
    now: Float[Array, " n"] | None = None

    def objective(self, networks: ActorCritic, states: AugmentedStates, key: PRNGKeyArray) -> Objective:
        """E[Z_R] and E[g_budget(Z_i)]: A_R and A_{i,g} = (Q_g - V_g) / b are differences of these."""
        so_far, discount = states.cost_so_far, states.discount
        if self.slope == "visited":
            so_far, discount = jnp.zeros_like(so_far), jnp.ones_like(discount)
        budget = self.constraints.budget(self.constraints.beta(states.delta), so_far, discount)
        return partial(values_to_come, self.constraints, budget=budget)

    def critic_values(
        self, networks: ActorCritic, states: AugmentedStates, key: PRNGKeyArray, *, shifted: bool
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy: the mean of `values_at` over states."""
        states = replace(states, delta=self.judged_at(states.delta))
        values = values_at(self.constraints, networks, states, key, shifted=shifted)
        return values @ state_weights(states, shifted=shifted)

    def finished_risks(self, steps: Chunk) -> tuple[Float[Array, " C"], Float[Array, ""]]:
        """Mean E[g_beta(D)] + I of the episodes that ended among the steps (zero without any), and their number."""
        risks, ended = self.ended_risks(steps)
        return (risks * ended).sum(-1) / jnp.maximum(ended.sum(), 1.0), ended.sum()

    def judged_at(self, delta: Float[Array, "... n"]) -> Float[Array, "... n"]:
        """The increments at which rows are judged that were played at these."""
        if self.now is None:
            return delta
        limits = self.constraints.range
        return jnp.broadcast_to(self.now, delta.shape) if limits is None else limits.delta_at(self.now, delta[..., -1])

    def ended_risks(self, steps: Chunk) -> tuple[Float[Array, "C B"], Float[Array, " B"]]:
        """g_beta(D) + I of every step's episode up to there, and whether it ended there (1, else 0)."""
        beta = self.constraints.beta(self.judged_at(steps.delta))
        total = sums_at_the_end(steps)
        risks = self.constraints.g(total[..., None], beta)[..., 0] + self.constraints.conjugate_integral(beta)
        matured = steps.done | (steps.discount * self.gamma <= _MATURE)
        return risks, (matured & (steps.discount > _MATURE)).astype(total.dtype)

    def sampled_risks(self, total: Float[Array, "C n"], delta: Float[Array, " m"]) -> Float[Array, " C"]:
        """E[g_beta(G)] + I of n finished episodes with these discounted cost sums."""
        beta = self.constraints.beta(delta)
        risks: Array = self.constraints.g(total, beta).mean(-1) + self.constraints.conjugate_integral(beta)
        return risks


def values_to_come(
    constraints: Constraints, atoms: Float[Array, "S ... K"], budget: Float[Array, "C ... M-1"]
) -> Float[Array, "S ..."]:
    """E[Z_R] and E[g_budget(Z_i)]: what an action can still change of J_R and J_Ci, divided by b."""
    return jnp.concatenate([atoms[:1].mean(-1), constraints.g(atoms[1:], budget).mean(-1)])


def values_at(
    constraints: Constraints,
    networks: ActorCritic,
    states: AugmentedStates,
    key: PRNGKeyArray,
    *,
    shifted: bool,
    explicit: bool = False,
) -> Float[Array, "1+C B"]:
    """E[Z_R] and E[g_beta(D + b Z_i)] + I_i per state, or with D = 0 and b = 1 for every state if not `shifted`.

    Differentiable in the states' increments, but not through the policy's choice of action; `explicit`: through
    g_beta and I alone, not through the critics' input either.
    """
    features = networks.features(states)
    if explicit:
        features = jax.lax.stop_gradient(features)
    beta = constraints.beta(states.delta)
    outputs = jax.lax.stop_gradient(networks.policy(features))
    noise = networks.actions.noise(key, outputs.shape[:-1])

    def of(actions: Float[Array, "B A"]) -> Float[Array, "1+C B"]:
        atoms = networks.atoms(jnp.concatenate([features, actions], axis=-1))
        costs = total_costs(states, atoms[1:]) if shifted else atoms[1:]
        return jnp.concatenate([atoms[:1].mean(-1), constraints.g(costs, beta).mean(-1)])

    values = networks.actions.expectation(outputs, noise, of)
    return values.at[1:].add(constraints.conjugate_integral(beta))
