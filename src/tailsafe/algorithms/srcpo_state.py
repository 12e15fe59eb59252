"""What an SRCPO run consists of: its static configuration, its settings as arrays, its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tailsafe.algorithms.state import PrimalConfig, PrimalSettings, PrimalState
from tailsafe.learning.sampler import Sampler
from tailsafe.learning.strategies import Strategy, ViolatedRule


@dataclass(frozen=True)
class SrcpoConfig(PrimalConfig):
    """Of SRCPO: how gradients are combined, and how betas are drawn and learned."""

    # A new beta for every episode of an environment, or for every chunk of a group.
    beta_per: Literal["episode", "chunk"] = "episode"
    # The weights of reward and costs, see `learning.strategies.weights_of`.
    strategy: Strategy = "proposed"
    # Of strategy `proposed`: `paper` and `release`, or its programs as steps (`joint_step`, `linear_step`).
    violated: ViolatedRule = "release"
    # How the sampler learns: by differentiating J(pi; beta) through g_beta, the conjugate and the critics' beta input;
    # by score functions and the inverse Fisher matrix; or by moving beta to where the current policy's sub-risk is
    # least (its quantiles, Thm. 6.2), which needs no derivative of a critic in an input that hardly varies.
    sampler_gradient: Literal["pathwise", "natural", "explicit"] = "pathwise"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Settings(PrimalSettings):
    """Of SRCPO.

    penalty: K. uniform_share: of betas drawn uniformly. max_weight: of costs, see `strategies.weights_of`. ipo_kappa,
    p3o_kappa: of these two strategies. recovery_share, joint_updates: see `recovery_share_after`.
    """

    sampler_rate: Float[Array, ""]
    sampler_deviation: Float[Array, ""]
    penalty: Float[Array, ""]
    uniform_share: Float[Array, ""]
    max_weight: Float[Array, ""]
    ipo_kappa: Float[Array, ""]
    p3o_kappa: Float[Array, ""]
    recovery_share: Float[Array, ""]
    joint_updates: Float[Array, ""]

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
