"""Primal learners: steps in a trust region along gradients of the reward and of every risk, through the critics.

What an action is worth for a risk, how the risks are estimated and how the gradients are combined is up to the
algorithm; the rest is common.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.algorithms.state import PRECISIONS, PrimalConfig, PrimalSettings, PrimalState
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.networks import Policy
from tailsafe.learning.qp import MOST_VARIABLES
from tailsafe.learning.trust_region import Step, conjugate_gradient, fisher_product, inner_products
from tailsafe.learning.units import Rows, as_segments, initial_by_unit, joined, rows_of, split_by_unit, without_initial
from tailsafe.risk.spectra import SpectralRisk

Config = TypeVar("Config", bound=PrimalConfig)
# From atoms of every signal (S, ..., K) to what is to be raised or lowered (S, ...).
Worth = Callable[[Array], Array]


class Taken(NamedTuple):
    """About the actions taken: advantages of every signal, and importance ratios pi / mu."""

    advantages: Float[Array, "... S"]
    ratio: Float[Array, ...]


class Direction(NamedTuple):
    """The step of one unit: direction (P,), values (1 + C,) before it, excess over the limits (C,), its KL."""

    direction: Float[Array, " P"]
    values: Float[Array, " 1+C"]
    excess: Float[Array, " C"]
    kl: Float[Array, ""]


class PrimalLearner(Learner[Config]):
    """Critics Z(s, a), then a trust-region step for the policy, then whatever else the algorithm learns."""

    @classmethod
    def refusal(cls, config: Config, measures: list[SpectralRisk]) -> str | None:
        if 1 + len(measures) > MOST_VARIABLES:
            return (
                f"{len(measures)} costs are too many for this algorithm's dual program, which takes "
                f"{MOST_VARIABLES - 1} (cppo, cvar_cpo, sdpo and wcsac take any number)"
            )
        return super().refusal(config, measures)

    # --- what algorithms provide --------------------------------------------------------------------------------------

    @abstractmethod
    def _worth(self, state: Any, settings: Any, rows: Rows, key: PRNGKeyArray) -> Worth:
        """What the costs to come are worth at these states: the gradient of its mean is that of J_R and of J_Ci."""

    @abstractmethod
    def _critic_values(
        self,
        state: Any,
        settings: Any,
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        estimator: str,
        key: PRNGKeyArray,
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy, from the critics."""

    @abstractmethod
    def _finished(self, settings: Any, unit: Chunk) -> tuple[Float[Array, " C"], Float[Array, ""]]:
        """The same risks of the episodes that ended in a unit (zero without any), and their number."""

    @abstractmethod
    def _combined(
        self,
        state: Any,
        settings: Any,
        solved: Float[Array, "1+C P"],
        gram: Float[Array, "1+C 1+C"],
        excess: Float[Array, " C"],
        radius: Float[Array, ""],
    ) -> Step:
        """The step from all gradients: solved = F^+ grad, gram: their inner products."""

    def _gradient_scale(self, settings: Any) -> Float[Array, ""]:
        """From means over states to gradients of J: 1 / (1 - gamma)."""
        scale: Array = settings.horizon
        return scale

    # --- learning -----------------------------------------------------------------------------------------------------

    def update(self, state: Any, settings: Any, chunk: Chunk, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """Learn from a chunk: critics, then policy, then sampler. The key is used up."""
        for_batch, for_targets, for_policy, for_rest = jax.random.split(key, 4)
        state = self._received(state, chunk)
        batch = state.replay.batch(for_batch, self.config.batch_chunks)
        with jax.default_matmul_precision(PRECISIONS[self.config.precision].products):
            state, critic_metrics, taken = self.update_critics(state, settings, batch, for_targets)
            newest, taken = jax.tree.map(lambda leaf: leaf[: self.config.policy_chunks], (batch, taken))
            if self.config.join_chunks:
                newest, taken = joined(newest), jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), taken)
            state, policy_metrics, values = self.update_policy(state, settings, newest, taken, for_policy)
            state, other_metrics = self.update_rest(state, settings, newest, values, for_rest)
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics | other_metrics

    def update_rest(
        self, state: Any, settings: Any, batch: Chunk, unit_values: Float[Array, "U C+1"], key: PRNGKeyArray
    ) -> tuple[Any, Metrics]:
        """What is learned after the policy. unit_values: J_R and J_C of every unit, before its step."""
        return state, {}

    def update_critics(
        self, state: Any, settings: PrimalSettings, batch: Chunk, key: PRNGKeyArray
    ) -> tuple[Any, Metrics, Taken]:
        """TD(lambda) targets from the current networks, then quantile regression on them.

        Also returns what the same targets say about the actions taken.
        """
        for_targets, for_order, for_baseline = jax.random.split(key, 3)
        # Time first; chunks and environments are one axis of independent segments.
        segments = as_segments(batch)
        targets, ratio = self.targets(state, settings, segments, for_targets)
        advantages = self._advantages(state, settings, rows_of(segments), targets, for_baseline)
        steps, chunks, envs = batch.reward.shape[1], batch.reward.shape[0], batch.reward.shape[2]
        advantages, ratio = (
            jnp.moveaxis(leaf.reshape(steps, chunks, envs, *leaf.shape[2:]), 1, 0) for leaf in (advantages, ratio)
        )
        state, metrics = self._fitted(
            state, settings, self._critic_features(state, settings, segments), targets, for_order
        )
        return state, metrics, Taken(advantages, ratio)

    def _advantages(
        self, state: Any, settings: Any, rows: Rows, targets: Float[Array, "S T B K"], key: PRNGKeyArray
    ) -> Float[Array, "T B S"]:
        """Advantages of the actions taken: Q from the targets, V from the critics at fresh actions."""
        worth = self._worth(state, settings, rows, jax.random.fold_in(key, 1))
        advantages = worth(targets) - worth(self._sampled_atoms(state, settings, rows, key))
        return jnp.moveaxis(advantages, 0, -1)

    def update_policy(
        self, state: Any, settings: Any, batch: Chunk, taken: Taken, key: PRNGKeyArray
    ) -> tuple[Any, Metrics, Float[Array, "U C+1"]]:
        """One trust-region step per unit (a group of a chunk), averaged. Also returns J_R and J_C of every unit."""
        config = self.config
        units = jax.tree.map(partial(split_by_unit, groups=config.groups), without_initial(batch))
        initial = initial_by_unit(batch.initial_observation, config.groups)
        parameters, unravel = ravel_pytree(state.policy)
        radius = settings.radius(state.updates)
        for_units, for_entropy = jax.random.split(key)
        keys = jax.random.split(for_units, units.reward.shape[0])
        solve = partial(self._unit_step, state, settings, parameters, unravel, radius)
        by_unit = jax.tree.map(partial(split_by_unit, groups=config.groups), taken)
        steps = jax.vmap(solve)(units, initial, by_unit, keys)
        direction = steps.direction.mean(0)
        bias, looks = self._calibrated(state, settings, units, steps.values)

        features = self._features(state, settings, rows_of(units))
        old = state.policy(features)

        def kl(step: Array) -> Array:
            new: Policy = unravel(parameters + step)
            return self.actions.kl(old, new(features)).mean()

        full = kl(direction)
        # KL grows with the square of the step.
        cap = config.kl_cap * radius**2 / 2
        factor = jnp.where(full > cap, jnp.sqrt(cap / jnp.maximum(full, 1e-30)), 1.0)
        spent = jnp.where(full > cap, kl(factor * direction), full) if math.isfinite(config.kl_cap) else full
        noise = self.actions.noise(for_entropy, old.shape[:-1])
        metrics = {
            "kl": spent,
            "kl_predicted": steps.kl.mean(),
            "entropy": self.actions.entropy(old, noise).mean(),
            "objective": steps.values[:, 0].mean(),
            "sub_risk": steps.values[:, 1:].mean(0),
            "bias": bias,
            "violated": (steps.excess > 0).any(-1).mean(),
        }
        step, more = self._searched(state, settings, units, factor * direction, steps, keys)
        state = replace(state, policy=unravel(parameters + step), bias=bias, looks=looks)
        return state, metrics | more, steps.values

    def _searched(
        self, state: Any, settings: Any, units: Chunk, step: Float[Array, " P"], steps: Direction, keys: PRNGKeyArray
    ) -> tuple[Float[Array, " P"], Metrics]:
        """The step that is taken of the one proposed: a line search's place."""
        return step, {}

    def _unit_step(
        self,
        state: PrimalState,
        settings: PrimalSettings,
        parameters: Float[Array, " P"],
        unravel: Any,
        radius: Float[Array, ""],
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        taken: Taken,
        key: PRNGKeyArray,
    ) -> Direction:
        """The step of one unit.                                                                               Sec. 7"""
        for_gradient, for_value = jax.random.split(key)
        rows = rows_of(unit)
        features = self._features(state, settings, rows)
        weights = jnp.ones_like(rows.discount) if self.config.state_weighting == "uniform" else rows.discount
        weights = weights / weights.sum()
        worth = self._worth(state, settings, rows, jax.random.fold_in(for_gradient, 1))

        def value_of(actions: Float[Array, "S B A"]) -> Float[Array, "S B"]:
            inputs = jnp.concatenate(
                [jnp.broadcast_to(features, (*actions.shape[:2], features.shape[-1])), actions], -1
            )
            return worth(self._atoms(state, settings, inputs))

        def outputs_of(parameters: Float[Array, " P"]) -> Float[Array, "B D"]:
            policy: Policy = unravel(parameters)
            return policy(features)

        outputs, pull_back = jax.vjp(outputs_of, parameters)
        if self.config.gradient == "score":
            # Centred before the ratios come in: a constant times a score has mean zero only with them.
            centred = (taken.advantages - weights @ taken.advantages) * taken.ratio[:, None]
            score = jax.grad(lambda outputs: self.actions.log_prob(outputs, unit.raw_action).sum())(outputs)
            by_state = centred.T[..., None] * score
        else:
            noise = self.actions.noise(for_gradient, outputs.shape[:-1])
            _, by_state = self.actions.output_gradients(outputs, noise, value_of, 1 + self.num_costs)
        gradients = jax.vmap(lambda gradient: pull_back(weights[:, None] * gradient)[0])(by_state)
        gradients = gradients * self._gradient_scale(settings)

        product = fisher_product(outputs_of, parameters, self.actions, weights, self.config.damping)
        solved, gradients = conjugate_gradient(product, gradients, self.config.conjugate_gradient_iterations)
        gram = inner_products(solved, gradients)
        values = self._values(state, settings, unit, initial_observation, for_value).at[1:].add(state.bias)
        excess = values[1:] - settings.target
        step = self._combined(state, settings, solved, gram, excess, radius)
        return Direction(step.direction, values, excess, step.kl)

    def _values(
        self, state: Any, settings: Any, unit: Chunk, initial_observation: Float[Array, "N O"], key: PRNGKeyArray
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy, by the configured estimator."""
        if self.config.estimator == "episodes":
            sampled, ended = self._finished(settings, unit)
            estimated = self._critic_values(state, settings, unit, initial_observation, "shifted", key)
            return jnp.where(ended > 0, estimated.at[1:].set(sampled), estimated)
        return self._critic_values(state, settings, unit, initial_observation, self.config.estimator, key)

    def _estimated_rows(self, unit: Chunk, initial_observation: Float[Array, "N O"], estimator: str) -> Rows:
        """The states at which critics are asked for J: those of the unit, or initial ones."""
        rows = rows_of(unit)
        if estimator == "initial":
            return self._initial_rows(initial_observation, rows.delta[: initial_observation.shape[0]])
        return rows

    def _calibrated(
        self, state: PrimalState, settings: PrimalSettings, units: Chunk, values: Float[Array, "U C+1"]
    ) -> tuple[Float[Array, " C"], Int[Array, ""]]:
        """The bias after another look at the episodes that finished in these units, and how many looks there were.

        Critics of a few updates are precise, but wrong by some amount that changes slowly; finished episodes are right
        on average (a fall that cut one counts as lasting for ever, like everywhere in learning), but few. So the mean
        difference between the two is followed slowly and added to the critics' J_C.
        """
        risks, ended = jax.vmap(partial(self._finished, settings))(units)
        found = (risks * ended[:, None]).sum(0) / jnp.maximum(ended.sum(), 1.0)
        error = found - values[:, 1:].mean(0)
        # At first an average with weights 1, 2, 3, ...; then one that forgets.
        gain = jnp.maximum(settings.calibration, 2 / (state.looks + 2)) * (settings.calibration > 0)
        seen = ended.sum() > 0
        return state.bias + gain * jnp.where(seen, error, 0.0), state.looks + seen
