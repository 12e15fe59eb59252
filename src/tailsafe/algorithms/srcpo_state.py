"""What an SRCPO run consists of: its static configuration, its settings as arrays, its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
from jaxtyping import Array, Float

from tailsafe.algorithms.state import PrimalConfig, PrimalSettings, PrimalState
from tailsafe.fields import scalar, setting
from tailsafe.learning.sampler import Sampler
from tailsafe.optimization.strategies import Strategy

# K: what a violation counts in the sampler's objective; the paper's.
PENALTY = 10.0


@dataclass(frozen=True)
class SrcpoConfig(PrimalConfig):
    """Of SRCPO: how gradients are combined, and how betas are drawn and learned."""

    beta_per: Literal["episode", "chunk"] = setting(
        "episode", "A new beta for every episode of an environment, or for every chunk of a group.", part="sampler"
    )
    # Weights: `optimization.strategies.weights_of`. Steps: `controlled_step`, `joint_step`, `linear_step`.
    strategy: Literal["release", "control", "joint", "linear", Strategy] = setting(
        "release",
        "How gradients are combined. By weights: the paper's (proposed), its authors' (release), or those of sdac, "
        "cpo, pcpo, crpo, p3o, ipo. As steps: each cost gets a share of the trust region (control), the reward is kept "
        "in view (joint), or the step ends at the constraint (linear).",
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
    """Of SRCPO: its sampler."""

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
    uniform_share: Float[Array, ""] = scalar(0.0, "Share of betas drawn uniformly.", part="sampler", within="[0, 1]")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SrcpoState(PrimalState):
    """With the sampler of betas."""

    sampler: Sampler
    sampler_optimizer: Any
