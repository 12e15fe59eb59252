"""Weight strategies: how the gradients of reward and costs are combined into one direction.      Appendix B

Everything is expressed by inner products in the metric of the inverse Fisher matrix, <x, y> = x' F^+ y, so the same
functions serve tables and networks. A strategy returns the weights of

    direction = F^+ ( reward * grad J_R - sum_i costs[i] * grad J_Ci ),

with the factors alpha_t (here: the trust-region radius eps_t) of the update rule already inside.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from tailsafe.learning.qp import nonnegative_qp

ViolatedRule = Literal["paper", "release"]


class Weights(NamedTuple):
    """Weights of the reward gradient and of each cost gradient in the direction; all non-negative."""

    reward: Float[Array, ""]
    costs: Float[Array, " N"]

    def signed(self) -> Float[Array, " 1+N"]:
        """Coefficients of (grad J_R, grad J_C1, ...): rewards are climbed, costs descended."""
        return jnp.concatenate([self.reward[None], -self.costs])


def proposed(
    gram: Float[Array, "1+N 1+N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
    max_weight: Float[Array, ""] | float,
    violated: ViolatedRule = "paper",
) -> Weights:
    """The paper's strategy: one QP whether the constraints are satisfied or violated.

    gram: inner products of (grad J_R, grad J_C1, ..., grad J_CN). excess: J_Ci - d_i. radius: eps_t.

    Satisfied: the smallest step that gains e = eps_t |grad J_R| (the most that fits into the trust region) and keeps
    every linearised constraint; with its multipliers (nu, lambda) the weights are 1 and eps_t min(lambda / (nu eps_t),
    max_weight). The sum runs over all constraints (printed with I_CV, which is empty in this case). Violated: the
    smallest step that meets the violated linearised constraints; lambda normalised to sum one, nu = 0.

    violated: `paper` asks each violated constraint for its excess; `release` asks it for the most that fits into the
    trust region, and keeps satisfied constraints that could become violated there in the program. With one constraint
    both give the same direction.
    """
    above = excess > 0
    sign = jnp.concatenate([-jnp.ones(1, gram.dtype), jnp.ones_like(excess)])
    rows = gram * sign[:, None] * sign[None, :]

    gain = radius * jnp.sqrt(jnp.maximum(gram[0, 0], 0.0))
    multipliers = nonnegative_qp(rows, jnp.concatenate([gain[None], excess]))
    nu = jnp.where(multipliers[0] > 0, multipliers[0], 1.0)  # zero only if the reward has no gradient at all
    satisfied_costs = jnp.minimum(multipliers[1:] / nu, radius * max_weight)

    reach = radius * jnp.sqrt(jnp.maximum(jnp.diagonal(gram)[1:], 0.0))
    joins = above if violated == "paper" else above | (excess + reach >= 0)
    active = joins.astype(gram.dtype)
    asked = excess if violated == "paper" else jnp.where(above, reach, excess)
    recovery = nonnegative_qp(gram[1:, 1:] * active[:, None] * active[None, :], jnp.where(joins, asked, 0.0))
    total = recovery.sum()
    # No gradient can reduce the violation: spread the weight evenly (the step is then zero anyway).
    even = above.astype(gram.dtype) / jnp.maximum(above.sum(), 1)
    violated_costs = jnp.where(total > 0, recovery / jnp.where(total > 0, total, 1.0), even)

    any_violated = jnp.any(above)
    reward = jnp.where(any_violated, 0.0, 1.0).astype(gram.dtype)
    return Weights(reward, jnp.where(any_violated, violated_costs, satisfied_costs))


def step_size(
    gram: Float[Array, "1+N 1+N"],
    weights: Weights,
    radius: Float[Array, ""],
    clip: tuple[Float[Array, ""] | float, Float[Array, ""] | float],
) -> Float[Array, ""]:
    """alpha_t = eps_t / Clip(sqrt(g' F g), g_min, g_max).                              Eq. (trust region alpha)"""
    coefficients = weights.signed()
    length = jnp.sqrt(jnp.maximum(coefficients @ gram @ coefficients, 0.0))
    return radius / jnp.clip(length, *clip)
