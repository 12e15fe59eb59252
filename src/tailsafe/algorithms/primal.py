"""What SRCPO and SDAC share: steps in a trust region along natural gradients of the reward and of every risk.

Plain functions; how risks are seen (`risk`) and how gradients are combined (`combine`) is up to the algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.common import learn_critics
from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.registry import ALGORITHMS, algorithm_of
from tailsafe.algorithms.state import FIRST_INTEGRAL, PrimalConfig, PrimalSettings, PrimalState
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.advantages import action_advantages
from tailsafe.learning.batches import ActionAdvantages, Minibatch, as_segments
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.networks import Policy
from tailsafe.learning.policy_gradient import NaturalGradients, natural_gradients, policy_gradients
from tailsafe.learning.risk_estimates import Calibration, RiskModel, calibrated, estimated_values
from tailsafe.learning.targets import critic_targets
from tailsafe.learning.trust_region import Matvec, Step, within_kl
from tailsafe.optimization.qp import MOST_VARIABLES
from tailsafe.risk.spectra import SpectralRisk


class PolicyStep(NamedTuple):
    """The step that one minibatch asks for.

    direction (P,). values (1 + C,): J_R and J_C before it. excess (C,): over the aim, smoothed. kl: what it takes.
    signal (1 + C,): see `NaturalGradients`.
    """

    direction: Float[Array, " P"]
    values: Float[Array, " 1+C"]
    excess: Float[Array, " C"]
    kl: Float[Array, ""]
    signal: Float[Array, " 1+C"]


# From natural gradients, the excess of every risk (C,) and the radius to a step.
Combine = Callable[[NaturalGradients, Array, Array], Step]


def too_many_costs(measures: list[SpectralRisk]) -> str | None:
    """A line that refuses more costs than the dual program takes, or None."""
    if 1 + len(measures) <= MOST_VARIABLES:
        return None
    *others, last = (name for name in ALGORITHMS if not issubclass(algorithm_of(name).config, PrimalConfig))
    return (
        f"{len(measures)} costs are too many for this algorithm's dual program, which takes {MOST_VARIABLES - 1} "
        f"({', '.join(others)} and {last} take any number)"
    )


def primal_fields(begun: dict[str, Any], num_costs: int, regions: int | None = None) -> dict[str, Any]:
    """The fields of `PrimalState`, from those of `LearnerState`. regions: of a range of limits."""
    lead = () if regions is None else (regions,)
    none = jnp.zeros((*lead, num_costs))
    return begun | {
        "bias": none,
        "looks": jnp.zeros(lead, jnp.int32),
        "noise": none,
        "excess": none,
        "excess_weight": jnp.zeros(lead),
        "integral": none + FIRST_INTEGRAL,
        "average": begun["policy"],
        "estimate": none,
        "offset": none,
        "doubt": none,
    }


def targets_and_advantages(
    networks: ActorCritic,
    risk: RiskModel,
    settings: PrimalSettings,
    config: PrimalConfig,
    segments: Chunk,
    chunks: int,
    key: PRNGKeyArray,
) -> tuple[Float[Array, "S T B K"], ActionAdvantages]:
    """TD(lambda) targets of the segments, and what they say about the actions taken in the chunks."""
    for_targets, for_baseline = jax.random.split(key)
    targets, ratio = critic_targets(
        networks, segments, settings.gamma, settings.trace, config.target_quantiles, config.projection, for_targets
    )
    return targets, action_advantages(networks, risk, segments, targets, ratio, chunks, for_baseline)


def update_critics(
    networks: ActorCritic,
    risk: RiskModel,
    state: Any,
    settings: PrimalSettings,
    config: PrimalConfig,
    batch: Chunk,
    key: PRNGKeyArray,
) -> tuple[Any, Metrics, ActionAdvantages]:
    """Quantile regression on TD(lambda) targets from the current networks. Also the advantages of the actions taken."""
    for_targets, for_order = jax.random.split(key)
    segments = as_segments(batch)
    targets, taken = targets_and_advantages(
        networks, risk, settings, config, segments, batch.reward.shape[0], for_targets
    )
    state, metrics = learn_critics(networks, state, settings, config, segments, targets, for_order)
    return state, metrics, taken


def gradients(
    networks: ActorCritic,
    risk: RiskModel,
    config: PrimalConfig,
    scale: Float[Array, ""],
    minibatch: Minibatch,
    key: PRNGKeyArray,
) -> tuple[Float[Array, "2 1+C P"], Matvec]:
    """`policy_gradients`, as configured. scale: from means over states to gradients of J."""
    score, discounted = config.gradient == "score", config.state_weighting == "discounted"
    return policy_gradients(networks, risk, minibatch, scale, key, score=score, discounted=discounted)


def estimates(
    networks: ActorCritic,
    risk: RiskModel,
    state: PrimalState,
    config: PrimalConfig,
    minibatch: Minibatch,
    key: PRNGKeyArray,
) -> Float[Array, " 1+C"]:
    """(J_R, J_C1, ...) of the current policy, with the critics' bias corrected: what decides about a limit."""
    return estimated_values(risk, networks, minibatch, config.estimator, key).at[1:].add(state.bias + state.offset)


def smoothed_excess(state: PrimalState, settings: PrimalSettings, risks: Float[Array, " C"]) -> Float[Array, " C"]:
    """J_C over the aim, averaged with what earlier updates found."""
    kept = settings.smoothing
    excess = kept * state.excess + (1 - kept) * (risks - settings.aim(state.noise, state.looks, state.doubt))
    return excess / (kept * state.excess_weight + (1 - kept))


def policy_step(
    networks: ActorCritic,
    risk: RiskModel,
    state: PrimalState,
    settings: PrimalSettings,
    config: PrimalConfig,
    scale: Float[Array, ""],
    combine: Combine,
    minibatch: Minibatch,
    key: PRNGKeyArray,
) -> PolicyStep:
    """The trust-region step of one (beta, tau): gradients, the Fisher metric, how far risks exceed limits, weights."""
    for_gradient, for_value = jax.random.split(key)
    halves, fisher = gradients(networks, risk, config, scale, minibatch, for_gradient)
    natural = natural_gradients(halves, fisher)
    values = estimates(networks, risk, state, config, minibatch, for_value)
    excess = smoothed_excess(state, settings, values[1:])
    step = combine(natural, excess, settings.radius(state.updates))
    return PolicyStep(step.direction, values, excess, step.kl, natural.signal)


def averaged(
    networks: ActorCritic,
    state: PrimalState,
    settings: PrimalSettings,
    config: PrimalConfig,
    minibatches: Minibatch,
    steps: PolicyStep,
    key: PRNGKeyArray,
) -> tuple[Float[Array, " P"], Metrics]:
    """The mean of the steps, shortened where its KL divergence exceeds kl_cap times the bound. key: for the entropy."""
    actions = networks.actions
    parameters, unravel = ravel_pytree(networks.policy)
    features = networks.features(minibatches.states)
    old = networks.policy(features)

    def kl(step: Array) -> Array:
        new: Policy = unravel(parameters + step)
        return actions.kl(old, new(features)).mean()

    largest = config.kl_cap * settings.radius(state.updates) ** 2 / 2
    direction, spent = within_kl(kl, steps.direction.mean(0), largest, measured=math.isfinite(config.kl_cap))
    return direction, {
        "kl": spent,
        "kl_predicted": steps.kl.mean(),
        "entropy": actions.entropy(old, actions.noise(key, old.shape[:-1])).mean(),
        "objective": steps.values[:, 0].mean(),
        "sub_risk": steps.values[:, 1:].mean(0),
        "violated": (steps.excess > 0).any(-1).mean(),
        "signal_reward": steps.signal[:, 0].mean(),
        "signal": steps.signal[:, 1:].mean(0),
    }


def stepped(
    risk: RiskModel,
    state: Any,
    settings: PrimalSettings,
    minibatches: Minibatch,
    steps: PolicyStep,
    direction: Float[Array, " P"],
) -> tuple[Any, Metrics]:
    """The state after a step of the policy; the estimates from before it move controller and calibration."""
    before = Calibration(state.bias, state.noise, state.looks)
    # Finished training episodes correct the estimates for them; validations are about the policy that ships.
    values = steps.values.at[:, 1:].add(-state.offset)
    after = calibrated(before, risk, minibatches, values, settings.gain(state.looks, state.doubt))
    followed, metrics = following(state, settings, steps, after)
    return replace(moved(state, settings, direction), **followed), metrics


def moved(state: Any, settings: PrimalSettings, direction: Float[Array, " P"]) -> Any:
    """The state with the policy after a step, and the average of policies that a run ships."""
    parameters, unravel = ravel_pytree(state.policy)
    policy: Policy = unravel(parameters + direction)
    newest = settings.newest(state.updates)
    average = jax.tree.map(lambda old, new: old + newest * (new - old), state.average, policy)
    return replace(state, policy=policy, average=average)


def following(
    state: PrimalState, settings: PrimalSettings, steps: PolicyStep, after: Calibration
) -> tuple[dict[str, Array], Metrics]:
    """What a state says about limits, after steps with these values and excesses; by the names of its fields."""
    values = steps.values.at[:, 1:].add(-state.offset)
    aim = settings.aim(state.noise, state.looks, state.doubt)
    limit = settings.constraints.limit
    error = steps.excess.mean(0) / settings.unit(aim)
    metrics = {
        "bias": after.bias,
        "share": settings.shares(error, state.integral),
        "margin": 1 - aim / jnp.where(limit > 0, limit, 1.0),
    }
    kept, newest = settings.smoothing, settings.newest(state.updates)
    return {
        "estimate": state.estimate + newest * (values[:, 1:].mean(0) - state.estimate),
        "bias": after.bias,
        "looks": after.looks,
        "noise": after.noise,
        "excess": kept * state.excess + (1 - kept) * (steps.values[:, 1:].mean(0) - aim),
        "excess_weight": kept * state.excess_weight + (1 - kept),
        "integral": settings.integrated(error, state.integral),
    }, metrics
