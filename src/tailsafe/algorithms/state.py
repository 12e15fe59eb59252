"""What every learner consists of: its static configuration, its settings as arrays, its state."""

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
class LearnerConfig:
    """What is fixed when a program is compiled, for every algorithm.

    num_envs environments take chunk_steps steps between two updates; the last replay_chunks of these chunks are kept.
    """

    num_envs: int = 5
    chunk_steps: int = 200
    replay_chunks: int = 1
    policy_hidden: tuple[int, ...] = (512, 512)
    critic_hidden: tuple[int, ...] = (512, 512)
    initialization: Initialization = "small"
    # Of box actions before they are squashed: given, or learned from a first value on.
    fixed_log_std: float | None = None
    initial_log_std: float = 0.0
    ensemble: int = 2
    quantiles: int = 25
    augmented: bool = False
    # Observations by running mean and variance, cut at clip_observation deviations. One-hot ones need none of it.
    normalize: bool = True
    clip_observation: float = 10.0
    # Largest norm of a gradient of one critic (all networks of its ensemble).
    critic_clip: float = float("inf")
    # Of matrix products; with bf16 the critics' regression is in bfloat16 and all else in tf32.
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    # How many finished episodes are remembered for the log.
    window: int = 256


@dataclass(frozen=True)
class TraceConfig(LearnerConfig):
    """Of algorithms whose critics learn from TD(lambda) targets, batch_chunks chunks at a time."""

    batch_chunks: int = 1
    target_quantiles: int = 50
    # Gradient steps per update, each on one of critic_minibatches parts of the batch.
    critic_iterations: int = 40
    critic_minibatches: int = 1
    projection: Projection = "interpolate"


@dataclass(frozen=True)
class PrimalConfig(TraceConfig):
    """Of algorithms that step along gradients in a trust region.

    Environments form `groups` groups. Directions of the policy come from the first policy_chunks chunks of the batch,
    one for each group of each chunk, and are averaged.
    """

    replay_chunks: int = 100
    batch_chunks: int = 10
    groups: int = 1
    policy_chunks: int = 10
    # One direction from the policy_chunks together instead of one for each: less noise where betas are per episode.
    join_chunks: bool = False
    conjugate_gradient_iterations: int = 10
    damping: float = 0.01
    # How J_C is estimated for the decision satisfied or violated: from critics at all visited states as if they were
    # initial, at initial states, at visited states shifted by (D, b), or from the episodes that ended.
    estimator: Literal["visited", "initial", "shifted", "episodes"] = "visited"
    # Gradients of J_R and J_C in the policy: through the critics at re-parameterised actions (exact expectations for
    # discrete ones), or advantages times scores, with the TD(lambda) targets as the estimate of Q.
    gradient: Literal["pathwise", "score"] = "pathwise"
    state_weighting: Literal["uniform", "discounted"] = "uniform"
    # The averaged step is shortened where the KL it takes exceeds this many times the bound.
    kl_cap: float = float("inf")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnerSettings:
    """What may differ between runs of one program; every leaf is an array.

    gamma: discount. horizon: 1 / (1 - gamma), or the discounted length of an episode where that is much shorter.
    critic_rate: of Adam. margin: the share of each limit that is kept free.
    """

    constraints: Constraints
    gamma: Float[Array, ""]
    horizon: Float[Array, ""]
    critic_rate: Float[Array, ""]
    margin: Float[Array, ""]

    @property
    def target(self) -> Float[Array, " C"]:
        """What the learner keeps the risks under: the limits less the margin."""
        return self.constraints.limit * (1 - self.margin)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TraceSettings(LearnerSettings):
    """trace: lambda of TD(lambda). max_kl: bound on the KL divergence of an update. kl_decay: the radius of the trust
    region, like critic_rate, decays as 1 / (1 + updates / kl_decay)^0.6 (inf: constant).
    """

    trace: Float[Array, ""]
    max_kl: Float[Array, ""]
    kl_decay: Float[Array, ""]

    def slowing(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """What is left of the speed of policy and critics: slower policies let critics average longer."""
        return (1.0 + updates / self.kl_decay) ** -0.6

    def radius(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """eps_t = sqrt(2 max_kl), decaying with the number of updates."""
        return jnp.sqrt(2 * self.max_kl) * self.slowing(updates)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrimalSettings(TraceSettings):
    """calibration: weight of the newest finished episodes in the correction of the critics' J_C, once it is no longer
    the average of all (0: no correction).
    """

    calibration: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnerState:
    """What every algorithm learns, and the memory it is learned from."""

    policy: Policy
    critics: Critics
    critic_optimizer: Any
    normalizer: Normalizer
    replay: Replay
    updates: Int[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrimalState(LearnerState):
    """bias (C,): what the critics' J_C lack compared with finished episodes. looks: updates in which some finished."""

    bias: Float[Array, " C"]
    looks: Int[Array, ""]
