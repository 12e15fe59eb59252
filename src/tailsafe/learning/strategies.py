"""Weight strategies: how the gradients of reward and costs are combined into one direction.      Appendix B

Everything is expressed by inner products in the metric of the inverse Fisher matrix, <x, y> = x' F^+ y, so the same
functions serve tables and networks. A strategy returns the weights of

    direction = F^+ ( reward * grad J_R - sum_i costs[i] * grad J_Ci ),

with the factors alpha_t (here: the trust-region radius eps_t) of the update rule already inside.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tailsafe.learning.qp import nonnegative_qp

ViolatedRule = Literal["paper", "release", "joint"]


_BISECTIONS = 30


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
    recovery_share: Float[Array, ""] | float = 1.0,
) -> Weights:
    """The paper's strategy: one QP whether the constraints are satisfied or violated.

    gram: inner products of (grad J_R, grad J_C1, ..., grad J_CN). excess: J_Ci - d_i. radius: eps_t.

    Satisfied: the smallest step that gains e = eps_t |grad J_R| (the most that fits into the trust region) and keeps
    every linearised constraint; with its multipliers (nu, lambda) the weights are 1 and eps_t min(lambda / (nu eps_t),
    max_weight). The sum runs over all constraints (printed with I_CV, which is empty in this case). Violated: the
    smallest step that meets the violated linearised constraints; lambda normalised to sum one, nu = 0.

    violated: `paper` asks each violated constraint for its excess; `release` asks it for the most that fits into the
    trust region, and keeps satisfied constraints that could become violated there in the program. With one constraint
    both give the same direction. `joint` asks it for `recovery_share` of the most, and climbs the reward as far as the
    rest of the trust region allows (the update rule lets the reward have a weight of up to alpha_t max_weight here).
    """
    sign = jnp.concatenate([-jnp.ones(1, gram.dtype), jnp.ones_like(excess)])
    rows = gram * sign[:, None] * sign[None, :]

    gain = radius * jnp.sqrt(jnp.maximum(gram[0, 0], 0.0))
    multipliers = nonnegative_qp(rows, jnp.concatenate([gain[None], excess]))
    nu = jnp.where(multipliers[0] > 0, multipliers[0], 1.0)  # zero only if the reward has no gradient at all
    satisfied_costs = jnp.minimum(multipliers[1:] / nu, radius * max_weight)

    any_violated = jnp.any(excess > 0)
    reward, recovering = _recover(gram, excess, radius, max_weight, violated, recovery_share)
    return Weights(
        jnp.where(any_violated, reward, 1.0).astype(gram.dtype), jnp.where(any_violated, recovering, satisfied_costs)
    )


def _recover(
    gram: Float[Array, "1+N 1+N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
    max_weight: Float[Array, ""] | float,
    rule: ViolatedRule,
    recovery_share: Float[Array, ""] | float,
) -> tuple[Float[Array, ""], Float[Array, " N"]]:
    """Weights of reward and costs, the latter of sum one, where a constraint is violated."""
    above = excess > 0
    reach = radius * jnp.sqrt(jnp.maximum(jnp.diagonal(gram)[1:], 0.0))
    joins = above if rule == "paper" else above | (excess + reach >= 0)
    active = joins.astype(gram.dtype)
    most = {"paper": excess, "release": reach, "joint": recovery_share * reach}[rule]
    asked = jnp.where(above, most, excess) * active
    on = jnp.concatenate([jnp.ones(1, gram.dtype) if rule == "joint" else jnp.zeros(1, gram.dtype), -active])
    rows = gram * on[:, None] * on[None, :]
    program = partial(_smallest_step, rows, asked)
    # The smallest step that recovers, and the largest gain of reward on top of it that still fits.
    gain = (
        _largest_fitting(program, radius, radius * jnp.sqrt(jnp.maximum(gram[0, 0], 0.0))) if rule == "joint" else 0.0
    )
    multipliers, _ = program(gain)
    # Spread evenly where no gradient can reduce the violation (the step is then zero anyway), and where the step for
    # the reward reduces the costs as asked without their help: the rule wants their weights to be at least
    # 1 / (eps_t max_weight) of the reward's.
    even = above.astype(gram.dtype) / jnp.maximum(above.sum(), 1)
    reward, costs = multipliers[0], multipliers[1:]
    costs = costs + even * jnp.maximum(reward / (radius * max_weight) - costs.sum(), 0.0)
    total = costs.sum()
    safe = jnp.where(total > 0, total, 1.0)
    return reward / safe, jnp.where(total > 0, costs / safe, even)


def _smallest_step(
    rows: Float[Array, "1+N 1+N"], asked: Float[Array, " N"], gain: Float[Array, ""] | float
) -> tuple[Float[Array, " 1+N"], Float[Array, ""]]:
    """Multipliers of the shortest step that gains `gain` and reduces costs as `asked`, and its squared length."""
    multipliers = nonnegative_qp(rows, jnp.concatenate([jnp.full(1, gain, rows.dtype), asked]))
    return multipliers, multipliers @ rows @ multipliers


def _largest_fitting(program: Any, radius: Float[Array, ""], most: Float[Array, ""]) -> Float[Array, ""]:
    """The largest gain up to `most` whose step stays within the radius, by bisection; zero if none does."""

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        fits = program(middle)[1] <= radius**2
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    fitting: Array = jax.lax.fori_loop(0, _BISECTIONS, halve, (jnp.zeros_like(most), most))[0]
    return fitting


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
