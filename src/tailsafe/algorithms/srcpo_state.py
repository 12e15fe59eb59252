"""What an SRCPO run consists of: its static configuration, its settings as arrays, its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tailsafe.learning.chunks import Replay
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.networks import Critics, Initialization, Policy
from tailsafe.learning.normalizer import Normalizer
from tailsafe.learning.sampler import Sampler
from tailsafe.learning.strategies import ViolatedRule
from tailsafe.learning.targets import Projection


class Precision(NamedTuple):
    """products: of all matrix products of float32 numbers. critics: what the critics' regression is computed in."""

    products: str
    critics: DTypeLike | None = None


PRECISIONS = {
    "float32": Precision("float32"),
    "tf32": Precision("tensorfloat32"),
    # Targets, values and directions keep the better products: they are a small part of an update.
    "bf16": Precision("tensorfloat32", jnp.bfloat16),
}


@dataclass(frozen=True)
class SrcpoConfig:
    """What is fixed when a program is compiled.

    num_envs environments take chunk_steps steps between two updates; they form `groups` groups. An update learns from
    batch_chunks chunks, the newest and others from the last replay_chunks; policy directions come from the
    policy_chunks newest of the batch, one for each group of each chunk, and are averaged.
    """

    num_envs: int = 5
    chunk_steps: int = 200
    groups: int = 1
    replay_chunks: int = 100
    batch_chunks: int = 10
    policy_chunks: int = 10
    # One direction from the policy_chunks together instead of one for each: less noise where betas are per episode.
    join_chunks: bool = False
    # A new beta for every episode of an environment, or for every chunk of a group.
    beta_per: Literal["episode", "chunk"] = "episode"
    policy_hidden: tuple[int, ...] = (512, 512)
    critic_hidden: tuple[int, ...] = (512, 512)
    initialization: Initialization = "small"
    # Of box actions before they are squashed: given, or learned from a first value on.
    fixed_log_std: float | None = None
    initial_log_std: float = 0.0
    ensemble: int = 2
    quantiles: int = 25
    target_quantiles: int = 50
    # Gradient steps per update, each on one of critic_minibatches parts of the batch.
    critic_iterations: int = 40
    critic_minibatches: int = 1
    projection: Projection = "interpolate"
    conjugate_gradient_iterations: int = 10
    damping: float = 0.01
    # How J_C is estimated for the decision satisfied or violated: from critics at all visited states as if they were
    # initial, at initial states, at visited states shifted by (D, b), or from the episodes that ended.
    estimator: Literal["visited", "initial", "shifted", "episodes"] = "visited"
    # Gradients of J_R and J_C in the policy: through the critics at re-parameterised actions (exact expectations for
    # discrete ones), or advantages times scores, with the TD(lambda) targets as the estimate of Q.
    gradient: Literal["pathwise", "score"] = "pathwise"
    # See `learning.strategies`: `paper` and `release` in `proposed`, `joint_step`, `linear_step`.
    violated: ViolatedRule = "release"
    state_weighting: Literal["uniform", "discounted"] = "uniform"
    # How the sampler learns: by differentiating J(pi; beta) through g_beta, the conjugate and the critics' beta input;
    # by score functions and the inverse Fisher matrix; or by moving beta to where the current policy's sub-risk is
    # least (its quantiles, Thm. 6.2), which needs no derivative of a critic in an input that hardly varies.
    sampler_gradient: Literal["pathwise", "natural", "explicit"] = "pathwise"
    augmented: bool = False
    # Observations by running mean and variance, cut at clip_observation deviations. One-hot ones need none of it.
    normalize: bool = True
    clip_observation: float = 10.0
    # The averaged step is shortened where the KL it takes exceeds this many times the bound.
    kl_cap: float = float("inf")
    # Of matrix products; with bf16 the critics' regression is in bfloat16 and all else in tf32.
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    # How many finished episodes are remembered for the log.
    window: int = 256


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Settings:
    """What may differ between runs of one program; every leaf is an array.

    gamma: discount; trace: lambda of TD(lambda). horizon: 1 / (1 - gamma), or the discounted length of an episode where
    that is much shorter. max_kl: bound of the trust region, whose radius, like critic_rate, decays as
    1 / (1 + updates / kl_decay)^0.6 (inf: constant). penalty: K. margin: the share of each limit that is kept free.
    uniform_share: of betas drawn uniformly.
    max_weight: of costs, see `strategies.proposed`. recovery_share, joint_updates: see `recovery_share_after`.
    calibration: weight of the newest finished episodes in the correction of the critics' J_C, once it is no longer the
    average of all (0: no correction).
    """

    constraints: Constraints
    gamma: Float[Array, ""]
    trace: Float[Array, ""]
    horizon: Float[Array, ""]
    max_kl: Float[Array, ""]
    kl_decay: Float[Array, ""]
    critic_rate: Float[Array, ""]
    sampler_rate: Float[Array, ""]
    sampler_deviation: Float[Array, ""]
    penalty: Float[Array, ""]
    margin: Float[Array, ""]
    uniform_share: Float[Array, ""]
    max_weight: Float[Array, ""]
    recovery_share: Float[Array, ""]
    joint_updates: Float[Array, ""]
    calibration: Float[Array, ""]

    def slowing(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """What is left of the speed of policy and critics: slower policies let critics average longer."""
        return (1.0 + updates / self.kl_decay) ** -0.6

    def radius(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """eps_t = sqrt(2 max_kl), decaying with the number of updates."""
        return jnp.sqrt(2 * self.max_kl) * self.slowing(updates)

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
class LearnerState:
    """All that is learned, and the memory it is learned from."""

    policy: Policy
    critics: Critics
    critic_optimizer: Any
    sampler: Sampler
    sampler_optimizer: Any
    normalizer: Normalizer
    replay: Replay
    # What the critics' J_C lack compared with finished episodes (C,).
    bias: Float[Array, " C"]
    # Updates in which episodes finished.
    looks: Int[Array, ""]
    updates: Int[Array, ""]
