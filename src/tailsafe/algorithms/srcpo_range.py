"""SRCPO for a range of limits: one policy, and one constraint of each cost for every region of the range.

Estimates, calibration, controller and sampler are kept per region (`learning.limit_range`). Each region combines its
own gradients, in its part of the trust region; the policy takes the sum of their steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms import primal
from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.primal import PolicyStep
from tailsafe.algorithms.srcpo_state import Settings, SrcpoConfig, SrcpoState
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import Minibatch
from tailsafe.learning.policy_gradient import NaturalGradients, row_gradients
from tailsafe.learning.regions import (
    RegionGradients,
    RegionRows,
    finished_in_regions,
    joint_direction,
    range_of,
    region_gradients,
    region_values,
    within_radius,
)
from tailsafe.learning.risk_estimates import Calibration, looked
from tailsafe.learning.sub_risk import SubRisk
from tailsafe.learning.trust_region import Step

# Fields of a state with an axis of regions in front.
_PER_REGION = ("bias", "looks", "noise", "excess", "excess_weight", "integral", "estimate", "offset", "doubt")
# Standard errors of its risk estimates by which a region aims below its limits, at least: it hears only of its own
# episodes, so that it knows less than a run for one limit.
_LEAST_CAUTION = 1.5
# As `Srcpo.combine`: state and settings of one region, its natural gradients, excess and radius to a step.
Combine = Callable[[SrcpoState, Settings, NaturalGradients, Array, Array], Step]


def draw_betas(state: SrcpoState, settings: Settings, rows: int, key: PRNGKeyArray) -> Float[Array, "N n+1"]:
    """For every episode a limit of the range, and increments of beta for that limit."""
    limits = range_of(settings.constraints)
    for_position, for_increments = jax.random.split(key)
    position = limits.draw(for_position, rows)
    sampler = state.sampler.between(limits.memberships(position))
    increments = sampler.sample(for_increments, (rows,), settings.uniform_share)
    return jnp.concatenate([increments, position[:, None]], axis=-1)


def in_regions(of_one: Callable[..., Any], state: SrcpoState, settings: Settings, *per_region: Any) -> Any:
    """`of_one(state, settings, *rest)` of every region, whose state and settings are those of a run with one limit."""
    own: dict[str, Any] = {name: getattr(state, name) for name in _PER_REGION}

    def of_region(own: dict[str, Any], limit: Array, *rest: Any) -> Any:
        constraints = settings.constraints.with_limit(limit)
        caution = jnp.maximum(settings.caution, _LEAST_CAUTION)
        return of_one(replace(state, **own), replace(settings, constraints=constraints, caution=caution), *rest)

    return jax.vmap(of_region)(own, settings.constraints.knot_limits(), *per_region)


def aims(state: SrcpoState, settings: Settings) -> Float[Array, "R C"]:
    """What each region keeps its risks under."""
    aimed: Array = in_regions(lambda own, at: at.aim(own.noise, own.looks, own.doubt), state, settings)
    return aimed


def update_policy(
    networks: ActorCritic,
    risk: SubRisk,
    state: SrcpoState,
    settings: Settings,
    config: SrcpoConfig,
    combine: Combine,
    minibatches: Minibatch,
    key: PRNGKeyArray,
) -> tuple[SrcpoState, Metrics, Float[Array, "R 1+C"]]:
    """One step that is the sum of those of all regions. Also J_R and J_C of each, before the step.

    minibatches: a single one, with rows of all limits.
    """
    for_steps, for_values, for_entropy = jax.random.split(key, 3)
    minibatch: Minibatch = jax.tree.map(lambda leaf: leaf[0], minibatches)
    gradients = row_gradients(
        networks,
        risk,
        minibatch,
        for_steps,
        score=config.gradient == "score",
        discounted=config.state_weighting == "discounted",
    )
    rows = RegionRows.of(settings.constraints, minibatch.states.delta)
    natural = region_gradients(gradients, rows, settings.horizon)
    values = region_values(risk, networks, minibatch, config.estimator, state.sampler.mode, for_values)
    values = values.at[:, 1:].add(state.bias + state.offset)
    radius = settings.radius(state.updates)
    steps, excess = _steps(state, settings, combine, natural, values, radius)
    joint = joint_direction(steps.direction, natural, excess)
    direction = within_radius(joint, gradients.fisher, radius)
    taken = PolicyStep(direction[None], values, excess, steps.kl.sum()[None], jnp.zeros((1, values.shape[-1])))
    direction, metrics = primal.averaged(networks, state, settings, config, minibatches, taken, for_entropy)
    metrics = {name: value for name, value in metrics.items() if not name.startswith("signal")}
    followed, more = _followed(risk, state, settings, minibatch, values, excess)
    return replace(primal.moved(state, settings, direction), **followed), metrics | more, values


def _steps(
    state: SrcpoState,
    settings: Settings,
    combine: Combine,
    natural: RegionGradients,
    values: Float[Array, "R 1+C"],
    radius: Float[Array, ""],
) -> tuple[Step, Float[Array, "R C"]]:
    """Every region's step, and its excess. Of the squared radius each has the share that it has of the rows."""

    def of_one(
        own: SrcpoState, at: Settings, solved: Array, gram: Array, share: Array, values: Array
    ) -> tuple[Step, Array]:
        excess = primal.smoothed_excess(own, at, values[1:])
        gradients = NaturalGradients(solved, gram, jnp.zeros(gram.shape[0]))
        return combine(own, at, gradients, excess, radius * jnp.sqrt(share)), excess

    parts = (natural.solved, natural.gram, natural.share)
    found: tuple[Step, Array] = in_regions(of_one, state, settings, *parts, values)
    return found


def _followed(
    risk: SubRisk,
    state: SrcpoState,
    settings: Settings,
    minibatch: Minibatch,
    values: Float[Array, "R 1+C"],
    excess: Float[Array, "R C"],
) -> tuple[dict[str, Array], Metrics]:
    """What the state says about limits after this update, by region; the log hears how much of each limit is used."""

    def of_one(
        own: SrcpoState, at: Settings, found: Array, ended: Array, values: Array, excess: Array
    ) -> tuple[dict[str, Array], Metrics]:
        before = Calibration(own.bias, own.noise, own.looks)
        after = looked(before, found, values[1:] - own.offset, ended > 0, at.gain(own.looks, own.doubt))
        steps = PolicyStep(jnp.zeros(0), values[None], excess[None], jnp.zeros(()), values)
        return primal.following(own, at, steps, after)

    found, ended = finished_in_regions(risk, minibatch)
    followed, metrics = in_regions(of_one, state, settings, found, ended, values, excess)
    used = values[:, 1:] / settings.constraints.knot_limits()
    shown = {f"region_{name}": metrics[name].reshape(-1) for name in ("share", "margin")}
    return followed, shown | {"bias": metrics["bias"].mean(0), "region_use": used.reshape(-1)}
