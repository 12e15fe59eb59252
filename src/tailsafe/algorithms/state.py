"""What every learner consists of: its static configuration, its settings as arrays, its state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tailsafe.fields import scalar, setting
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


# Of the reach of a trust region for reducing a cost: what is left at right angles goes to the reward.
_PROMPT_SHARE, _LARGEST_SHARE = 0.5, 0.9
# Skill first: a policy that learns caution before it can do anything has little to give up, and does not learn more.
FIRST_INTEGRAL = -0.1
# Weight of a validation beside those before it, and what it leaves of the rate at which finished training episodes
# correct the critics: they are fewer, so that their correction wanders.
_VALIDATION_GAIN, _VALIDATED_CALIBRATION = 0.4, 0.2
# Of the limit. While the policy changes fast, estimates are so noisy that caution would leave nothing to aim at.
_MOST_CAUTION = 0.2


# Networks per critic, whose atoms are pooled.
ENSEMBLE = 2


@dataclass(frozen=True)
class LearnerConfig:
    """What is fixed when a program is compiled, for every algorithm."""

    num_envs: int = setting(5, "Environments that are stepped together.", part="sizes", main=True)
    chunk_steps: int = setting(200, "Steps of every environment between two updates: a chunk.", part="sizes", main=True)
    replay_chunks: int = setting(1, "How many of the last chunks are kept.", part="sizes")
    policy_hidden: tuple[int, ...] = setting((512, 512), "Hidden layers of the policy.", part="networks", main=True)
    critic_hidden: tuple[int, ...] = setting((512, 512), "Hidden layers of every critic.", part="networks", main=True)
    initialization: Initialization = setting(
        "small",
        "Initial weights: normal with deviation 0.01 (small), or scaled by the number of a layer's inputs (lecun).",
        part="networks",
    )
    fixed_log_std: float | None = setting(
        None,
        "Logarithm of the standard deviation of box actions before squashing; none: it is learned.",
        part="networks",
    )
    initial_log_std: float = setting(
        0.0, "Initial value of a learned log standard deviation.", part="networks", within="[-4, 2]"
    )
    quantiles: int = setting(
        25, "Atoms of one network of a critic, of which there are two.", part="networks", within="[1, 1000]"
    )
    augmented: bool = setting(
        False, "Policy and critics also see the discounted cost so far and the discount.", part="networks"
    )
    normalize: bool = setting(
        True, "Normalise observations by their running mean and variance; one-hot ones need none.", part="networks"
    )
    clip_observation: float = setting(
        10.0, "Normalised observations are clipped at this many deviations.", part="networks", within="(0, inf)"
    )
    critic_clip: float = setting(
        float("inf"), "Largest norm of a critic's gradient (its whole ensemble).", part="critics", within="(0, inf]"
    )
    precision: Literal["float32", "tf32", "bf16"] = setting(
        "float32",
        "Of matrix products; with bf16 the critics' regression is in bfloat16 and all else in tf32.",
        part="networks",
    )
    window: int = setting(256, "How many finished episodes the log remembers.", part="sizes")


@dataclass(frozen=True)
class TraceConfig(LearnerConfig):
    """Of algorithms whose critics learn from TD(lambda) targets, batch_chunks chunks at a time."""

    batch_chunks: int = setting(
        1, "Chunks that an update learns from: the newest, and older ones at random.", part="sizes"
    )
    critic_iterations: int = setting(40, "Gradient steps of the critics per update.", part="critics", main=True)
    critic_minibatches: int = setting(
        1, "Parts of the batch; each gradient step of the critics takes one.", part="critics"
    )
    projection: Projection = setting(
        "interpolate",
        "How mixtures of distributions become atoms: means over cells of equal mass, or interpolated quantiles.",
        part="critics",
    )

    @property
    def target_quantiles(self) -> int:
        """Atoms of the TD(lambda) targets: as many as a critic's networks have together."""
        return ENSEMBLE * self.quantiles


@dataclass(frozen=True)
class PrimalConfig(TraceConfig):
    """Of algorithms that step along gradients in a trust region.

    Directions of the policy come from the chunks of the batch: one for each of `groups` groups of environments of each
    chunk, which are averaged, or one for all rows together.
    """

    replay_chunks: int = 100
    batch_chunks: int = 10
    groups: int = setting(
        1,
        "Groups of environments, a divisor of num_envs; each gives a direction per chunk of the batch, and these are "
        "averaged. 0: one direction from the whole batch, with less noise where betas are per episode.",
        part="sizes",
        within="[0, inf)",
    )
    estimator: Literal["visited", "initial", "shifted", "episodes"] = setting(
        "visited",
        "How the risks are estimated: by the critics at all visited states as if initial (visited), at initial ones "
        "(initial), at visited ones together with the cost so far (shifted), or by those episodes that ended "
        "(episodes).",
        part="constraints",
        main=True,
    )
    gradient: Literal["pathwise", "score"] = setting(
        "pathwise",
        "Of reward and risks: through the critics at re-parameterised actions, exact for discrete ones (pathwise), or "
        "advantages from the TD(lambda) targets times scores (score).",
        part="policy",
    )
    state_weighting: Literal["uniform", "discounted"] = setting(
        "uniform", "States count alike, or by gamma^t.", part="policy"
    )
    kl_cap: float = setting(
        float("inf"),
        "The step is shortened where its KL divergence exceeds this many times the bound.",
        part="policy",
        within="(0, inf]",
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LearnerSettings:
    """What may differ between runs of one program; every leaf is an array.

    horizon: 1 / (1 - gamma), or the discounted length of an episode where that is much shorter.
    """

    constraints: Constraints
    horizon: Float[Array, ""]
    gamma: Float[Array, ""] = scalar(
        0.99, "Discount; of a finite problem its own.", part="critics", within="[0, 1)", main=True
    )
    critic_rate: Float[Array, ""] = scalar(
        3e-4, "Learning rate of the critics (Adam).", part="critics", within="(0, inf)", main=True
    )
    margin: Float[Array, ""] = scalar(
        0.0,
        "Share of every limit that is kept free, because risk estimates are delayed and noisy.",
        part="constraints",
        within="[0, 1)",
        main=True,
    )

    @property
    def target(self) -> Float[Array, " C"]:
        """What the learner keeps the risks under: the limits less the margin."""
        return self.constraints.limit * (1 - self.margin)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TraceSettings(LearnerSettings):
    """Of algorithms with TD(lambda) targets and a bound on the KL divergence of an update."""

    trace: Float[Array, ""] = scalar(0.97, "lambda of TD(lambda).", part="critics", within="[0, 1)")
    max_kl: Float[Array, ""] = scalar(
        0.001, "Bound on the KL divergence of an update.", part="policy", within="(0, inf)", main=True
    )
    kl_decay: Float[Array, ""] = scalar(
        float("inf"),
        "Updates after which the trust region's radius and critic_rate begin to fall, as "
        "(1 + updates / kl_decay)^-0.6; inf: both stay constant.",
        part="policy",
        within="(0, inf]",
    )

    warmup: Float[Array, ""] = scalar(
        0.0,
        "Updates at first in which the policy stays as it is, and only critics and sampler learn.",
        part="policy",
        within="[0, inf)",
    )

    def slowing(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """What is left of the speed of policy and critics: slower policies let critics average longer."""
        return (1.0 + jnp.maximum(updates - self.warmup, 0.0) / self.kl_decay) ** -0.6

    def radius(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """eps_t = sqrt(2 max_kl), decaying with the number of updates; zero during the warm-up."""
        return jnp.sqrt(2 * self.max_kl) * self.slowing(updates) * (updates >= self.warmup)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrimalSettings(TraceSettings):
    """Of algorithms that step along gradients in a trust region."""

    calibration: Float[Array, ""] = scalar(
        0.0,
        "Weight of the newest finished episodes in the correction of the critics' risks, once it is no longer the "
        "average of all; 0: no correction.",
        part="constraints",
        within="[0, 1]",
    )
    smoothing: Float[Array, ""] = scalar(
        0.0,
        "What is kept of earlier estimates of an excess (0: the latest alone).",
        part="constraints",
        within="[0, 1)",
    )
    proportional: Float[Array, ""] = scalar(
        1.5,
        "Of rule control: share of the trust region that goes to a cost, per excess in units of its limit.",
        part="constraints",
        within="[0, inf)",
    )
    integral: Float[Array, ""] = scalar(
        0.005, "Of rule control: what the share gains per update and excess.", part="constraints", within="[0, inf)"
    )

    averaging: Float[Array, ""] = scalar(
        1.0,
        "Weight of the newest policy in the average of parameters that a run ships; 1: the newest alone.",
        part="policy",
        within="(0, 1]",
    )

    caution: Float[Array, ""] = scalar(
        0.0,
        "Standard errors of a risk estimate by which the learner aims below the limit, at most a fifth of it.",
        part="constraints",
        within="[0, inf)",
        main=True,
    )

    def newest(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """Weight of the newest policy in the average, which begins with no more than a tenth of all so far."""
        return jnp.maximum(self.averaging, 1 / (1 + 0.1 * updates))

    def gain(self, looks: Int[Array, ""], doubt: Float[Array, " C"] | float = 0.0) -> Float[Array, ...]:
        """Weight of the newest finished episodes: first an average with weights 1, 2, 3, ...; then one that forgets."""
        kept = jnp.where(jnp.asarray(doubt) > 0, _VALIDATED_CALIBRATION, 1.0) * self.calibration
        return jnp.maximum(kept, 2 / (looks + 2)) * (self.calibration > 0)

    def aim(
        self, noise: Float[Array, " C"], looks: Int[Array, ""], doubt: Float[Array, " C"] | float = 0.0
    ) -> Float[Array, " C"]:
        """What the learner keeps each risk under: the target less `caution` standard errors of its estimate.

        noise (C,): variance of what one update's finished episodes say about the estimate. Averaged with a gain a, its
        standard error is sqrt(noise a / (2 - a)). doubt (C,): the standard error by validations, once there are any.
        """
        gain = self.gain(looks)
        error = jnp.where(jnp.asarray(doubt) > 0, doubt, jnp.sqrt(noise * gain / (2 - gain)))
        return jnp.maximum(self.target - self.caution * error, (1 - _MOST_CAUTION) * self.target)

    def unit(self, aim: Float[Array, " C"]) -> Float[Array, " C"]:
        """What an excess is measured in: the aim, or the largest return where that is zero."""
        return jnp.where(aim > 0, aim, self.constraints.largest_return)

    def shares(self, error: Float[Array, " C"], integral: Float[Array, " C"]) -> Float[Array, " C"]:
        """The share of the trust region's reach that goes into reducing each cost, by a PI rule on its excess."""
        prompt = jnp.clip(self.proportional * error, -1.0, _PROMPT_SHARE)
        return jnp.clip(prompt + integral, -1.0, _LARGEST_SHARE)

    def integrated(self, error: Float[Array, " C"], integral: Float[Array, " C"]) -> Float[Array, " C"]:
        """The integral after an update. It is kept in bounds, so that it cannot wind up."""
        moved = integral + self.integral * jnp.clip(error, -1.0, 1.0)
        return jnp.clip(moved, -0.3, 0.5)


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
    """bias (C,): what the critics' J_C lack compared with finished episodes. looks: updates in which some finished.
    noise (C,): variance of that difference between updates.

    excess (C,): smoothed sum of J_C - d; excess_weight: of what it is made of, towards one. integral (C,): of rule
    control. average: of the latest policies' parameters, which is what a run ships.

    estimate (C,): J_C as estimated, averaged like the policies. offset (C,): what validations say is missing of it;
    doubt (C,): standard error of the offset, 0 before the first validation.

    With a range of limits all but `average` have one more axis in front, the regions.
    """

    bias: Float[Array, " C"]
    looks: Int[Array, ""]
    noise: Float[Array, " C"]
    excess: Float[Array, " C"]
    excess_weight: Float[Array, ""]
    integral: Float[Array, " C"]
    average: Policy
    estimate: Float[Array, " C"]
    offset: Float[Array, " C"]
    doubt: Float[Array, " C"]

    def corrected(self, risks: Float[Array, " C"], errors: Float[Array, " C"]) -> PrimalState:
        """After a validation: what the averaged policy's risks are, by fresh episodes, with their standard errors.

        The difference to what was estimated for the policies of the average is followed by an average that forgets.
        """
        first = self.doubt == 0
        gain = jnp.where(first, 1.0, _VALIDATION_GAIN)
        offset = self.offset + gain * (risks - self.estimate - self.offset)
        doubt = jnp.sqrt((gain * errors) ** 2 + ((1 - gain) * self.doubt) ** 2)
        return replace(self, offset=offset, doubt=jnp.maximum(doubt, 1e-9))
