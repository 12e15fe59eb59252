"""What an SRCPO run consists of: its static configuration, its settings as arrays, its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tailsafe.algorithms.state import PrimalConfig, PrimalSettings, PrimalState
from tailsafe.fields import scalar, setting
from tailsafe.learning.sampler import Sampler
from tailsafe.optimization.strategies import Strategy, ViolatedRule


@dataclass(frozen=True)
class SrcpoConfig(PrimalConfig):
    """Of SRCPO: how gradients are combined, and how betas are drawn and learned."""

    beta_per: Literal["episode", "chunk"] = setting(
        "episode", "A new beta for every episode of an environment, or for every chunk of a group.", part="sampler"
    )
    # See `optimization.strategies.weights_of`.
    strategy: Strategy = setting(
        "proposed",
        "The weights of reward and costs, by the names of the algorithms they come from.",
        part="constraints",
    )
    # The last three are programs as steps: `joint_step`, `linear_step`, `controlled_step`.
    violated: ViolatedRule = setting(
        "release",
        "Of strategy proposed: the paper's program, the release's, or steps that keep the reward in view (joint), "
        "end at the constraint (linear) or give each cost a share of the trust region (control).",
        part="constraints",
    )
    # Pathwise: J(pi; beta) is differentiated through g_beta, the conjugate and the critics. Natural: with the inverse
    # Fisher matrix. Explicit: beta moves to where the current policy's sub-risk is least (Thm. 6.2), which needs no
    # derivative of a critic in an input that hardly varies.
    sampler_gradient: Literal["pathwise", "natural", "explicit", "quantile"] = setting(
        "pathwise",
        "How the sampler learns: through the critics' beta input (pathwise), by score functions (natural), or towards "
        "the quantiles of the current policy's costs (explicit; quantile: a share sampler_rate of the way).",
        part="sampler",
    )
    regions: int = setting(
        8,
        "Of a range of limits (0.01..0.05/step): parts in which estimates, weights and the sampler are kept apart.",
        part="constraints",
        within="[2, 64]",
    )
    # A policy that does not see (D, b) can only follow the mean over them. As if every visited state were initial, far
    # more rows have a say, in nearly the same direction.
    slope: Literal["shifted", "visited"] = setting(
        "shifted",
        "How returns count in the gradient of a risk: together with the cost so far (shifted), or as if every visited "
        "state were initial (visited).",
        part="policy",
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Settings(PrimalSettings):
    """Of SRCPO: its sampler, and the numbers of its strategies (`strategies.weights_of`, `recovery_share_after`)."""

    sampler_rate: Float[Array, ""] = scalar(
        3e-4, "Learning rate of the sampler (Adam).", part="sampler", within="[0, inf)"
    )
    sampler_deviation: Float[Array, ""] = scalar(
        0.05,
        "How widely betas are drawn around the mode; a range of 1 is all that can matter.",
        part="sampler",
        within="(0, inf)",
    )
    sampler_start: Float[Array, ""] = scalar(
        0.5,
        "Where the sampler's mode begins in its range; from the top it follows the costs of the first policy down.",
        part="sampler",
        within="(0, 1)",
    )
    penalty: Float[Array, ""] = scalar(
        10.0, "K: what a violation counts in the sampler's objective.", part="sampler", within="[0, inf)"
    )
    uniform_share: Float[Array, ""] = scalar(0.0, "Share of betas drawn uniformly.", part="sampler", within="[0, 1]")
    max_weight: Float[Array, ""] = scalar(
        1000.0, "Largest weight of a cost, in units of the radius.", part="constraints", within="(0, inf)"
    )
    ipo_kappa: Float[Array, ""] = scalar(
        0.05, "Of strategy ipo: weight of the barrier.", part="constraints", within="(0, inf)"
    )
    p3o_kappa: Float[Array, ""] = scalar(
        20.0, "Of strategy p3o: weight of the violated costs.", part="constraints", within="(0, inf)"
    )
    recovery_share: Float[Array, ""] = scalar(
        0.7,
        "Of rule joint: the share of the trust region that violated constraints get first.",
        part="constraints",
        within="(0, 1]",
    )
    joint_updates: Float[Array, ""] = scalar(
        50.0,
        "Of rule joint: updates after which the reward's part falls as 1 / t.",
        part="constraints",
        within="[0, inf)",
    )

    def recovery_share_after(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """How much of the trust region a violated constraint gets (rule `joint`): from `recovery_share` towards one.

        The rest of the radius, which the reward gets at right angles, stays constant for `joint_updates` updates and
        then falls with their number (the update rule multiplies it by alpha_t, which vanishes).
        """
        early = jnp.minimum(1.0, self.joint_updates / jnp.maximum(updates, 1))
        for_reward = jnp.sqrt(1 - self.recovery_share**2) * early
        return jnp.sqrt(1 - for_reward**2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SrcpoState(PrimalState):
    """With the sampler of betas."""

    sampler: Sampler
    sampler_optimizer: Any
