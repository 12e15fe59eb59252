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
from tailsafe.algorithms.state import FIRST_INTEGRAL, PRECISIONS, PrimalConfig, PrimalSettings, PrimalState
from tailsafe.learning.batches import (
    Rows,
    as_segments,
    initial_by_unit,
    joined,
    rows_of,
    split_by_unit,
    without_initial,
)
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.networks import Policy
from tailsafe.learning.trust_region import Matvec, Step, agreement, conjugate_gradient, fisher_product, inner_products
from tailsafe.optimization.qp import MOST_VARIABLES
from tailsafe.risk.spectra import SpectralRisk

Config = TypeVar("Config", bound=PrimalConfig)
# From atoms of every signal (S, ..., K) to what is to be raised or lowered (S, ...).
Worth = Callable[[Array], Array]


class Taken(NamedTuple):
    """About the actions taken: advantages of every signal, and importance ratios pi / mu."""

    advantages: Float[Array, "... S"]
    ratio: Float[Array, ...]


class Direction(NamedTuple):
    """The step of one unit.

    direction (P,). values (1 + C,): J_R and J_C before it. excess (C,): over the target, smoothed. kl: what it takes.
    signal (1 + C,): agreement of the gradients of two halves of the rows.
    """

    direction: Float[Array, " P"]
    values: Float[Array, " 1+C"]
    excess: Float[Array, " C"]
    kl: Float[Array, ""]
    signal: Float[Array, " 1+C"]


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

    def _primal_beginning(self, key: PRNGKeyArray, settings: Any) -> dict[str, Any]:
        """The fields of `PrimalState`."""
        none = jnp.zeros(self.num_costs)
        begun = self._beginning(key, settings)
        return begun | {
            "bias": none,
            "looks": jnp.int32(0),
            "noise": none,
            "excess": none,
            "excess_weight": jnp.zeros(()),
            "integral": none + FIRST_INTEGRAL,
            "average": begun["policy"],
        }

    def acting(self, state: Any) -> Any:
        return replace(super().acting(state), average=None)

    def shared_policy(self, state: Any) -> Policy:
        average: Policy = state.average
        return average

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
        for_judging, for_order = jax.random.split(key)
        # Time first; chunks and environments are one axis of independent segments.
        segments = as_segments(batch)
        targets, taken = self.judged(state, settings, batch, segments, for_judging)
        state, metrics = self._fitted(
            state, settings, self._critic_features(state, settings, segments), targets, for_order
        )
        return state, metrics, taken

    def judged(
        self, state: Any, settings: PrimalSettings, batch: Chunk, segments: Chunk, key: PRNGKeyArray
    ) -> tuple[Float[Array, "S T B K"], Taken]:
        """TD(lambda) targets of the segments, and what they say about the actions taken in the batch (R, T, N)."""
        for_targets, for_baseline = jax.random.split(key)
        targets, ratio = self.targets(state, settings, segments, for_targets)
        advantages = self._advantages(state, settings, rows_of(segments), targets, for_baseline)
        chunks, steps, envs = batch.reward.shape
        advantages, ratio = (
            jnp.moveaxis(leaf.reshape(steps, chunks, envs, *leaf.shape[2:]), 1, 0) for leaf in (advantages, ratio)
        )
        return targets, Taken(advantages, ratio)

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
        solve = partial(self._unit_step, state, settings, radius)
        by_unit = jax.tree.map(partial(split_by_unit, groups=config.groups), taken)
        steps = jax.vmap(solve)(units, initial, by_unit, keys)
        direction = steps.direction.mean(0)
        bias, variance, looks = self._calibrated(state, settings, units, steps.values)
        aim = settings.aim(state.noise, state.looks)
        error = steps.excess.mean(0) / settings.unit(aim)

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
            "signal_reward": steps.signal[:, 0].mean(),
            "signal": steps.signal[:, 1:].mean(0),
            "share": settings.shares(error, state.integral),
            "margin": 1 - aim / jnp.where(settings.constraints.limit > 0, settings.constraints.limit, 1.0),
        }
        step, more = self._searched(state, settings, units, factor * direction, steps, keys)
        found = steps.values[:, 1:].mean(0) - aim
        policy: Policy = unravel(parameters + step)
        state = replace(
            state,
            policy=policy,
            average=jax.tree.map(lambda old, new: old + settings.averaging * (new - old), state.average, policy),
            bias=bias,
            looks=looks,
            noise=variance,
            excess=settings.smoothing * state.excess + (1 - settings.smoothing) * found,
            excess_weight=settings.smoothing * state.excess_weight + (1 - settings.smoothing),
            integral=settings.integrated(error, state.integral),
        )
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
        radius: Float[Array, ""],
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        taken: Taken,
        key: PRNGKeyArray,
    ) -> Direction:
        """The step of one unit.                                                                               Sec. 7"""
        for_gradient, for_value = jax.random.split(key)
        halves, product = self.gradients(state, settings, unit, taken, for_gradient, initial_observation.shape[0])
        # The gradient is the mean of its halves; how far these agree says how much of it is signal. Mean and half the
        # difference are solved for: noise of the halves must not reach the step through iterations that run out.
        parts = jnp.stack([halves.mean(0), (halves[0] - halves[1]) / 2])
        flat, images = conjugate_gradient(
            product, parts.reshape(-1, parts.shape[-1]), self.config.conjugate_gradient_iterations
        )
        (solved, apart), (image, image_apart) = flat.reshape(parts.shape), images.reshape(parts.shape)
        gram = inner_products(solved, image)
        signal = agreement(
            jnp.stack([solved + apart, solved - apart]), jnp.stack([image + image_apart, image - image_apart])
        )
        values = self.estimates(state, settings, unit, initial_observation, for_value)
        kept = settings.smoothing
        excess = kept * state.excess + (1 - kept) * (values[1:] - settings.aim(state.noise, state.looks))
        excess = excess / (kept * state.excess_weight + (1 - kept))
        step = self._combined(state, settings, solved, gram, excess, radius)
        return Direction(step.direction, values, excess, step.kl, signal)

    def gradients(
        self,
        state: PrimalState,
        settings: PrimalSettings,
        unit: Chunk,
        taken: Taken,
        key: PRNGKeyArray,
        envs: int,
    ) -> tuple[Float[Array, "2 1+C P"], Matvec]:
        """Gradients of J_R and of every J_Ci in the policy's parameters, and products with its Fisher matrix.

        unit: rows (B, ...) in the order (T, envs). The gradients come from two halves of the environments, each an
        estimate by itself; their mean is the estimate from all rows.
        """
        rows = rows_of(unit)
        parameters, unravel = ravel_pytree(state.policy)
        features = self._features(state, settings, rows)
        weights = jnp.ones_like(rows.discount) if self.config.state_weighting == "uniform" else rows.discount
        weights = weights / weights.sum()
        worth = self._worth(state, settings, rows, jax.random.fold_in(key, 1))

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
            noise = self.actions.noise(key, outputs.shape[:-1])
            _, by_state = self.actions.output_gradients(outputs, noise, value_of, 1 + self.num_costs)
        second = jnp.arange(weights.shape[0]) % envs % 2
        shares = 2 * weights * jnp.stack([1 - second, second])
        pulled = jax.vmap(jax.vmap(lambda part: pull_back(part)[0]))(shares[:, None, :, None] * by_state)
        product = fisher_product(outputs_of, parameters, self.actions, weights, self.config.damping)
        return pulled * self._gradient_scale(settings), product

    def estimates(
        self, state: Any, settings: Any, unit: Chunk, initial_observation: Float[Array, "N O"], key: PRNGKeyArray
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy, with the critics' bias corrected: what decides about a limit."""
        return self._values(state, settings, unit, initial_observation, key).at[1:].add(state.bias)

    def initial_atoms(
        self, state: Any, settings: Any, observation: Float[Array, "B O"], key: PRNGKeyArray
    ) -> Float[Array, "S B K"]:
        """The critics' atoms of every signal at the beginning of episodes, at the betas a finished policy acts with."""
        delta = self.shared_delta(state)
        rows = self._initial_rows(observation, jnp.broadcast_to(delta, (observation.shape[0], delta.shape[0])))
        return self._sampled_atoms(state, settings, rows, key)

    @abstractmethod
    def sampled_risks(self, state: Any, settings: Any, total: Float[Array, "C n"]) -> Float[Array, " C"]:
        """The same risks of n finished episodes with these discounted cost sums."""

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
    ) -> tuple[Float[Array, " C"], Float[Array, " C"], Int[Array, ""]]:
        """After another look at the episodes that finished in these units: bias, its noise, how many looks there were.

        Critics of a few updates are precise, but wrong by some amount that changes slowly; finished episodes are right
        on average (a fall that cut one counts as lasting for ever, like everywhere in learning), but few. So the mean
        difference between the two is followed slowly and added to the critics' J_C.
        """
        risks, ended = jax.vmap(partial(self._finished, settings))(units)
        found = (risks * ended[:, None]).sum(0) / jnp.maximum(ended.sum(), 1.0)
        error = found - values[:, 1:].mean(0)
        gain = settings.gain(state.looks)
        seen = ended.sum() > 0
        noise = state.noise + gain * jnp.where(seen, error**2 - state.noise, 0.0)
        return state.bias + gain * jnp.where(seen, error, 0.0), noise, state.looks + seen
