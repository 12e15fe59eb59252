"""Weight strategies: how the gradients of reward and costs are combined into one direction.      Appendix B

Everything is expressed by inner products in the metric of the inverse Fisher matrix, <x, y> = x' F^+ y, so the same
functions serve tables and networks. A strategy returns the weights of

    direction = F^+ ( reward * grad J_R - sum_i costs[i] * grad J_Ci ),

with the factors alpha_t (here: the trust-region radius eps_t) of the update rule already inside.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tailsafe.optimization.qp import nonnegative_qp

Strategy = Literal["proposed", "sdac", "cpo", "pcpo", "crpo", "p3o", "ipo"]
# What they do about a violation is defined for a single constraint only.
SINGLE_CONSTRAINT: tuple[Strategy, ...] = ("cpo", "pcpo", "ipo")


# Largest weight of a cost, in units of the radius.
MAX_WEIGHT = 1000.0
# Of `joint`: the share of the trust region that violated constraints get first, and after how many updates more.
_RECOVERY_SHARE, _JOINT_UPDATES = 0.7, 40.0
_BISECTIONS = 30
# Relative errors of a step that still counts, in single precision.
_TOLERANCE = 1e-3
# Share of what is asked of a violated constraint, below which reward is given up for it.
_WORTHWHILE = 0.1
# Of the squared radius: a step back to the constraints that is longer than this leaves no room for the reward.
_NEARLY_ALL = 0.999
# Of its squared length: what a gradient must have at right angles to another, in single precision.
_PARALLEL = 1e-5


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
    violated: Literal["paper", "release"] = "paper",
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
    multipliers, _ = _smallest_step(gram, excess, _reach(gram, radius)[0])
    nu = jnp.where(multipliers[0] > 0, multipliers[0], 1.0)  # zero only if the reward has no gradient at all
    satisfied = Weights(jnp.ones_like(nu), jnp.minimum(multipliers[1:] / nu, radius * max_weight))
    return _either(excess, satisfied, _projection(gram, excess, radius, violated))


class Kappa(NamedTuple):
    """The penalty coefficients kappa of two strategies."""

    ipo: Float[Array, ""] | float
    p3o: Float[Array, ""] | float


KAPPA = Kappa(ipo=0.05, p3o=20.0)


def weights_of(
    strategy: Strategy | Literal["release"],
    gram: Float[Array, "1+N 1+N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
    max_weight: Float[Array, ""] | float = MAX_WEIGHT,
    kappa: Kappa = KAPPA,
) -> Weights:
    """The weights of a strategy, with alpha_t = eps_t = `radius`; every cost weight is at most radius * max_weight
    where constraints are satisfied, and they sum to one where not.

    `proposed`, `release`: see `proposed`.
    Satisfied: `cpo`, `sdac`: multipliers of the step within the linearised constraints and the trust region that gains
    most. `pcpo`, `crpo`, `p3o`: the reward alone. `ipo`: kappa / (d_i - J_Ci), a log barrier's gradient.
    Violated: `sdac`, `pcpo`: as `proposed`. `crpo`, `cpo`, `ipo`: one violated constraint alone, the one with the
    largest excess. `p3o`: all violated ones alike, and the reward with 1 / (kappa number of them).
    `cpo`, `pcpo` and `ipo` say nothing about violations among several constraints: see `SINGLE_CONSTRAINT`.
    """
    if strategy in ("proposed", "release"):
        return proposed(gram, excess, radius, max_weight, "release" if strategy == "release" else "paper")
    one, none = jnp.ones((), gram.dtype), jnp.zeros_like(excess)
    most = radius * max_weight
    if strategy in ("cpo", "sdac"):
        step = linear_step(gram, jnp.minimum(excess, 0.0), radius)
        nu = jnp.where(step[0] > 0, step[0], 1.0)
        satisfied = Weights(one, jnp.minimum(jnp.maximum(-step[1:], 0.0) / nu, most))
    elif strategy == "ipo":
        # On the limit itself the barrier's slope is endless, and the cap applies.
        slope = kappa.ipo / jnp.where(excess < 0, -excess, 1.0)
        satisfied = Weights(one, jnp.where(excess < 0, jnp.minimum(slope, most), most))
    else:
        satisfied = Weights(one, none)

    above = (excess > 0).astype(gram.dtype)
    if strategy in ("sdac", "pcpo"):
        violated = _projection(gram, excess, radius, "paper")
    elif strategy == "p3o":
        count = jnp.maximum(above.sum(), 1.0)
        violated = Weights(jnp.minimum(1 / (kappa.p3o * count), most), above / count)
    else:
        worst = jnp.zeros_like(excess).at[jnp.argmax(excess)].set(1.0)
        violated = Weights(0 * one, worst)
    return _either(excess, satisfied, violated)


def _either(excess: Float[Array, " N"], satisfied: Weights, violated: Weights) -> Weights:
    chosen: Weights = jax.tree.map(lambda cs, cv: jnp.where(jnp.any(excess > 0), cv, cs), satisfied, violated)
    return chosen


def _projection(
    gram: Float[Array, "1+N 1+N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
    rule: Literal["paper", "release"],
) -> Weights:
    """The shortest step back to the violated constraints: its multipliers, normalised to sum one; see `proposed`."""
    above = excess > 0
    reach = _reach(gram, radius)[1:]
    joins = above if rule == "paper" else above | (excess + reach >= 0)
    active = joins.astype(gram.dtype)
    asked = excess if rule == "paper" else jnp.where(above, reach, excess)
    multipliers = nonnegative_qp(gram[1:, 1:] * active[:, None] * active[None, :], jnp.where(joins, asked, 0.0))
    total = multipliers.sum()
    # No gradient can reduce the violation: spread the weight evenly (the step is then zero anyway).
    even = above.astype(gram.dtype) / jnp.maximum(above.sum(), 1)
    costs = jnp.where(total > 0, multipliers / jnp.where(total > 0, total, 1.0), even)
    return Weights(jnp.zeros((), gram.dtype), costs)


def sdac_step(
    gram: Float[Array, "1+N 1+N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
    recovery: Float[Array, ""] | float,
) -> tuple[Float[Array, " 1+N"], Bool[Array, ""]]:
    """SDAC's own step: the most reward within the linearised constraints and the trust region, else a recovery.

    Constraints that cannot be met together inside the trust region are recovered from: each is asked for its excess
    plus `recovery` (zeta), or for the most a step can do if that is less, and the shortest such step is stretched or
    cut to the radius.

    Returns:
      coefficients of (F^+ grad J_R, F^+ grad J_C1, ...), and whether they are a recovery.
    """
    reach = _reach(gram, radius)[1:]
    costs = gram[1:, 1:]
    asked = jnp.minimum(excess, reach)
    shortest = nonnegative_qp(costs, asked)
    recovers = shortest @ costs @ shortest > _NEARLY_ALL * radius**2
    direction = nonnegative_qp(costs, jnp.minimum(excess + recovery, reach))
    length = _length(direction @ costs @ direction)
    scaled = direction * radius / jnp.where(length > 0, length, 1.0)
    step = _best_step(gram, asked, excess, radius, may_lose=True)
    return jnp.where(recovers, jnp.concatenate([jnp.zeros(1, gram.dtype), -scaled]), step), recovers


def joint_step(
    gram: Float[Array, "1+N 1+N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
    recovery_share: Float[Array, ""] | float,
) -> Float[Array, " 1+N"]:
    """The best step for the reward in the trust region, in both cases; for gradients that are mostly noise.

    Satisfied constraints are kept, to first order. Violated ones are asked for `recovery_share` of the most that fits
    into the trust region, as long as this takes no loss of reward, and what is left of it goes to the reward (the
    update rule allows the reward a weight in the violated case too). Noise makes gradients long, so that the excess
    seems to be in reach when it is not: it does not matter here. Where next to nothing can be had without a loss, as
    with parallel gradients, a loss is taken.

    Returns:
      coefficients of (F^+ grad J_R, F^+ grad J_C1, ...).
    """
    above = excess > 0
    reach = _reach(gram, radius)
    asked = jnp.where(above, recovery_share * reach[1:], excess)
    without_loss = _best_step(gram, asked, excess, radius, may_lose=False)
    changes = gram @ without_loss
    # Parallel gradients: there is no such step, and what the program answered instead does lose.
    stuck = jnp.any(above & (-changes[1:] < _WORTHWHILE * asked)) | (changes[0] < -_TOLERANCE * reach[0])
    return jnp.where(stuck, _best_step(gram, asked, excess, radius, may_lose=True), without_loss)


def recovery_share_after(updates: Int[Array, ""]) -> Float[Array, ""]:
    """How much of the trust region a violated constraint gets from `joint_step`: from 0.7 towards one.

    The rest of the radius, which the reward gets at right angles, stays constant for 40 updates and then falls with
    their number (the update rule multiplies it by alpha_t, which vanishes).
    """
    early = jnp.minimum(1.0, _JOINT_UPDATES / jnp.maximum(updates, 1))
    for_reward = jnp.sqrt(1 - jnp.square(jnp.asarray(_RECOVERY_SHARE))) * early
    return jnp.sqrt(1 - for_reward**2)


def controlled_step(
    gram: Float[Array, "1+N 1+N"], shares: Float[Array, " N"], radius: Float[Array, ""]
) -> Float[Array, " 1+N"]:
    """The best step for the reward in the trust region that reduces cost i by shares[i] of the most a step could.

    A share of 1 is a pure recovery, 0 holds the cost to first order, -1 leaves it free. Asked in shares of what is in
    reach, a reduction keeps its meaning when noise makes gradients long: a linearised excess would seem to be in reach.

    Returns:
      coefficients of (F^+ grad J_R, F^+ grad J_C1, ...).
    """
    asked = jnp.minimum(shares, 1 - _TOLERANCE) * _reach(gram, radius)[1:]
    return _best_step(gram, asked, asked, radius, may_lose=True)


def linear_step(
    gram: Float[Array, "1+N 1+N"], excess: Float[Array, " N"], radius: Float[Array, ""]
) -> Float[Array, " 1+N"]:
    """The best step for the reward within the linearised constraints and the trust region; for precise gradients.

    Where a violated constraint cannot be met inside the trust region, it is reduced as far as that reaches. Unlike the
    directions of `proposed` this is a step: it ends where the constraint does, from both sides.

    Returns:
      coefficients of (F^+ grad J_R, F^+ grad J_C1, ...).
    """
    # A hair inside the trust region, where there is a step to find.
    asked = jnp.minimum(excess, (1 - _TOLERANCE) * _reach(gram, radius)[1:])
    return _best_step(gram, asked, excess, radius, may_lose=True)


def _best_step(
    gram: Float[Array, "1+N 1+N"],
    asked: Float[Array, " N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
    *,
    may_lose: bool,
) -> Float[Array, " 1+N"]:
    """The step of at most `radius` that reduces costs as `asked` and gains most; a loss only if it `may_lose`.

    Constraints that no step of this length can break are left out. If what is asked does not fit, the shortest step
    that has it all (without a loss, unless it may lose) is cut to the radius.
    """
    if may_lose and gram.shape[0] == 2:
        return _best_step_of_two(gram, asked[0], radius)
    reach = _reach(gram, radius)
    most = reach[0]
    active = (excess + reach[1:] >= 0).astype(gram.dtype)
    asked = asked * active
    on = jnp.concatenate([jnp.ones(1, gram.dtype), active])
    within = gram * on[:, None] * on[None, :]
    # Rounding, next to what a step of this length can do.
    slack = 1e-3 * _TOLERANCE * reach

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        multipliers, squared = _smallest_step(within, asked, middle)
        # Parallel gradients: no step has this gain within the constraints, and the dual's finite answer is none either.
        changes = within @ Weights(multipliers[0], multipliers[1:]).signed()
        gained = changes[0] >= middle - jnp.maximum(_TOLERANCE * jnp.abs(middle), slack[0])
        kept = jnp.all(changes[1:] <= -asked + jnp.maximum(_TOLERANCE * jnp.abs(asked), slack[1:]))
        fits = gained & kept & (squared <= radius**2)
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    # Every step in the trust region gains at least -most.
    least = -most if may_lose else jnp.zeros_like(most)
    gain, _ = jax.lax.fori_loop(0, _BISECTIONS, halve, (least, most))
    if may_lose:
        # Nothing fits: what is too long to be taken as it is may also lose more than that.
        heard = jnp.ones_like(on).at[0].set(jnp.where(gain > least, 1.0, 0.0))
        within = within * heard[:, None] * heard[None, :]
    multipliers, squared = _smallest_step(within, asked, gain)
    cut = jnp.minimum(1.0, radius / jnp.sqrt(jnp.maximum(squared, 1e-30)))
    return Weights(cut * multipliers[0], cut * multipliers[1:]).signed()


def _best_step_of_two(
    gram: Float[Array, "2 2"], asked: Float[Array, ""], radius: Float[Array, ""]
) -> Float[Array, " 2"]:
    """`_best_step` for a reward and one cost, in closed form: exact where gradients are parallel, on any processor.

    Along the reward gradient, if the cost allows the whole step. Else the cost is reduced just as asked, and what is
    left of the radius goes along the part of the reward gradient at right angles to the cost's, if there is one.
    """
    squared_reward, across, squared_cost = gram[0, 0], gram[0, 1], gram[1, 1]
    climbing, paying = _length(squared_reward), _length(squared_cost)
    rises, costs = climbing > 0, paying > 0
    whole = radius / jnp.where(rises, climbing, 1.0) * rises
    cost = jnp.where(costs, squared_cost, 1.0)
    # Of the radius: how much the reduction takes. More than all of it is cut.
    taken = jnp.clip(asked / jnp.where(costs, paying, 1.0), -radius, radius) * costs
    right = squared_reward - across**2 / cost * costs
    parallel = right <= _PARALLEL * squared_reward
    aside = jnp.sqrt(jnp.maximum(radius**2 - taken**2, 0.0) / jnp.where(parallel, 1.0, right)) * ~parallel
    along_cost = (-taken * paying - aside * across) / cost * costs
    free = -asked >= whole * across
    return jnp.where(free, jnp.stack([whole, jnp.zeros_like(whole)]), jnp.stack([aside, along_cost]))


def _reach(gram: Float[Array, "1+N 1+N"], radius: Float[Array, ""]) -> Float[Array, " 1+N"]:
    """The most by which a step of this length can change the reward and each cost, to first order."""
    return radius * _length(jnp.diagonal(gram))


def _smallest_step(
    gram: Float[Array, "1+N 1+N"], asked: Float[Array, " N"], gain: Float[Array, ""]
) -> tuple[Float[Array, " 1+N"], Float[Array, ""]]:
    """Multipliers of the shortest step that gains `gain` and reduces costs as `asked`, and its squared length."""
    sign = jnp.concatenate([-jnp.ones(1, gram.dtype), jnp.ones_like(asked)])
    rows = gram * sign[:, None] * sign[None, :]
    multipliers = nonnegative_qp(rows, jnp.concatenate([gain[None], asked]))
    return multipliers, multipliers @ rows @ multipliers


def _length(squared: Float[Array, ...]) -> Float[Array, ...]:
    return jnp.sqrt(jnp.maximum(squared, 0.0))


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
