"""SRCPO: spectral-risk-constrained policy optimisation with a learned sampler of dual variables.       Algorithm 2

A run's state is one pytree and `update` one pure function. What differs between the runs of a study is in `Settings`,
whose leaves are arrays; what changes shapes or programs is in `SrcpoConfig`, which is static.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from tailsafe.algorithms.srcpo_model import SrcpoModel, values_to_come
from tailsafe.algorithms.srcpo_state import PRECISIONS, LearnerState, Settings, SrcpoConfig
from tailsafe.learning.actions import Actions
from tailsafe.learning.chunks import Chunk, Replay, Transition
from tailsafe.learning.critics import ADAM, fit_critics
from tailsafe.learning.environments import JaxEnvironments
from tailsafe.learning.experience import Actor, as_chunk, record
from tailsafe.learning.networks import Critics, Policy
from tailsafe.learning.normalizer import Normalizer
from tailsafe.learning.sampler import Sampler
from tailsafe.learning.strategies import joint_step, linear_step, proposed
from tailsafe.learning.targets import LARGEST_RATIO, td_lambda
from tailsafe.learning.trust_region import combined_step, conjugate_gradient, fisher_product, inner_products, step_of
from tailsafe.learning.units import Rows, as_segments, initial_by_unit, joined, rows_of, split_by_unit, without_initial

Metrics = dict[str, Array]

# Where the sampler follows the current policy's quantiles, Adam must forget quickly: near the ends of its range the
# gradients in phi are tiny, and measured by the large ones of long ago they would not move it for hundreds of updates.
_SAMPLER_MEMORY = {"pathwise": 0.999, "natural": 0.999, "explicit": 0.9}


class Taken(NamedTuple):
    """About the actions taken: advantages of every signal, and importance ratios pi / mu."""

    advantages: Float[Array, "... S"]
    ratio: Float[Array, ...]


class Srcpo(SrcpoModel):
    """The algorithm for one kind of task: sizes and actions are fixed, everything else is in the state."""

    def __init__(self, config: SrcpoConfig, observation_size: int, actions: Actions, num_costs: int) -> None:
        super().__init__(config, observation_size, actions, num_costs)
        self._sampler_optimizer = optax.chain(
            optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=_SAMPLER_MEMORY[config.sampler_gradient])
        )

    # --- beginning ----------------------------------------------------------------------------------------------------

    def init(self, key: PRNGKeyArray, settings: Settings) -> LearnerState:
        """Fresh networks, a sampler in the middle of its range, an empty memory."""
        config = self.config
        for_policy, for_critics = jax.random.split(key)
        betas = settings.constraints.num_betas
        inputs = self.observation_size + betas + (self.num_costs + 1 if config.augmented else 0)
        policy = Policy(
            for_policy,
            inputs,
            self.actions,
            config.policy_hidden,
            config.initialization,
            config.fixed_log_std,
            config.initial_log_std,
        )
        critics = Critics(
            for_critics,
            inputs + self.actions.size,
            1 + self.num_costs,
            config.ensemble,
            config.quantiles,
            config.critic_hidden,
            config.initialization,
        )
        sampler = Sampler(jnp.zeros(betas), settings.sampler_deviation)
        return LearnerState(
            policy=policy,
            critics=critics,
            critic_optimizer=ADAM.init(eqx.filter(critics, eqx.is_array)),
            sampler=sampler,
            sampler_optimizer=self._sampler_optimizer.init(sampler.phi),
            normalizer=Normalizer.create(self.observation_size),
            replay=Replay.create(self._empty_chunk(betas), config.replay_chunks),
            bias=jnp.zeros(self.num_costs),
            looks=jnp.int32(0),
            updates=jnp.int32(0),
        )

    def begin(
        self, state: LearnerState, settings: Settings, observation: Float[Array, "N O"], key: PRNGKeyArray
    ) -> Actor:
        """Environments at the start of their first episodes, each group or environment with its beta."""
        actor = Actor.create(
            observation,
            jnp.zeros((observation.shape[0], state.sampler.phi.shape[-1])),
            self.num_costs,
            self.config.window,
        )
        return replace(actor, delta=self._draw(state, settings, key))

    # --- acting -------------------------------------------------------------------------------------------------------

    def act(self, state: LearnerState, settings: Settings, actor: Actor, key: PRNGKeyArray) -> tuple[Array, Array]:
        """A raw action and its log probability for every environment."""
        rows = Rows(actor.observation, actor.delta, actor.cost_so_far, actor.discount)
        outputs = state.policy(self._features(state, settings, rows))
        raw = self.actions.sample(outputs, self.actions.noise(key, outputs.shape[:-1]))
        return raw, self.actions.log_prob(outputs, raw)

    def record(
        self,
        state: LearnerState,
        settings: Settings,
        actor: Actor,
        choice: tuple[Array, Array],
        transition: Transition,
        key: PRNGKeyArray,
    ) -> tuple[Actor, Chunk]:
        """A row of the chunk, and the actor after the step."""
        fresh = self._draw(state, settings, key) if self.config.beta_per == "episode" else actor.delta
        return record(actor, *choice, transition, settings.gamma, fresh)

    def start_chunk(self, state: LearnerState, settings: Settings, actor: Actor, key: PRNGKeyArray) -> Actor:
        """Before the first step of a chunk: new betas, if they change with chunks."""
        if self.config.beta_per == "episode":
            return actor
        return replace(actor, delta=self._draw(state, settings, key))

    def rollout(
        self,
        state: LearnerState,
        settings: Settings,
        actor: Actor,
        environments: JaxEnvironments,
        env_state: Any,
        key: PRNGKeyArray,
    ) -> tuple[Actor, Any, Chunk]:
        """A chunk from environments that live in JAX."""
        for_chunk, for_steps = jax.random.split(key)
        actor = self.start_chunk(state, settings, actor, for_chunk)

        def step(carry: tuple[Actor, Any], key: Array) -> tuple[tuple[Actor, Any], Chunk]:
            actor, env_state = carry
            for_action, for_beta = jax.random.split(key)
            choice = self.act(state, settings, actor, for_action)
            env_state, transition = environments.step(env_state, self.actions.embed(choice[0]))
            actor, row = self.record(state, settings, actor, choice, transition, for_beta)
            return (actor, env_state), row

        keys = jax.random.split(for_steps, self.config.chunk_steps)
        (actor, env_state), rows = jax.lax.scan(step, (actor, env_state), keys)
        return actor, env_state, as_chunk(rows)

    def _draw(self, state: LearnerState, settings: Settings, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Increments for every environment: its own, or one draw per group."""
        config = self.config
        draws = config.num_envs if config.beta_per == "episode" else config.groups
        delta = state.sampler.sample(key, (draws,), settings.uniform_share)
        return jnp.repeat(delta, config.num_envs // draws, axis=0)

    # --- learning -----------------------------------------------------------------------------------------------------

    def update(
        self, state: LearnerState, settings: Settings, chunk: Chunk, key: PRNGKeyArray
    ) -> tuple[LearnerState, Metrics]:
        """Learn from a chunk: critics, then policy, then sampler. The key is used up."""
        for_batch, for_targets, for_policy, for_sampler = jax.random.split(key, 4)
        state = eqx.tree_at(
            lambda state: (state.replay, state.normalizer),
            state,
            (
                state.replay.add(chunk),
                state.normalizer.update(chunk.observation) if self.config.normalize else state.normalizer,
            ),
        )
        batch = state.replay.batch(for_batch, self.config.batch_chunks)
        with jax.default_matmul_precision(PRECISIONS[self.config.precision].products):
            state, critic_metrics, taken = self.update_critics(state, settings, batch, for_targets)
            newest, taken = jax.tree.map(lambda leaf: leaf[: self.config.policy_chunks], (batch, taken))
            if self.config.join_chunks:
                newest, taken = joined(newest), jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), taken)
            state, policy_metrics, values = self.update_policy(state, settings, newest, taken, for_policy)
            state, sampler_metrics = self.update_sampler(state, settings, newest, values, for_sampler)
        state = eqx.tree_at(lambda state: state.updates, state, state.updates + 1)
        return state, critic_metrics | policy_metrics | sampler_metrics

    def update_critics(
        self, state: LearnerState, settings: Settings, batch: Chunk, key: PRNGKeyArray
    ) -> tuple[LearnerState, Metrics, Taken]:
        """TD(lambda) targets from the current networks, then quantile regression on them.

        Also returns what the same targets say about the actions taken.
        """
        for_targets, for_order, for_baseline = jax.random.split(key, 3)
        # Time first; chunks and environments are one axis of independent segments.
        segments = as_segments(batch)
        targets, ratio = self.targets(state, settings, segments, for_targets)
        rows = rows_of(segments)
        advantages = self._advantages(state, settings, rows, targets, for_baseline)
        steps, chunks, envs = batch.reward.shape[1], batch.reward.shape[0], batch.reward.shape[2]
        advantages, ratio = (
            jnp.moveaxis(leaf.reshape(steps, chunks, envs, *leaf.shape[2:]), 1, 0) for leaf in (advantages, ratio)
        )

        actions = self.actions.embed(segments.raw_action)
        features = jnp.concatenate([self._features(state, settings, rows), actions], axis=-1)
        features = features.reshape(-1, features.shape[-1])
        wanted = targets.reshape(targets.shape[0], -1, targets.shape[-1])
        if self.config.critic_minibatches > 1:
            order = jax.random.permutation(for_order, features.shape[0])
            features, wanted = features[order], wanted[:, order]
        critics, optimizer, losses = fit_critics(
            state.critics,
            state.critic_optimizer,
            ADAM,
            features,
            wanted,
            settings.constraints.largest_return,
            settings.critic_rate * settings.slowing(state.updates),
            self.config.critic_iterations,
            self.config.critic_minibatches,
            PRECISIONS[self.config.precision].critics,
        )
        state = eqx.tree_at(lambda state: (state.critics, state.critic_optimizer), state, (critics, optimizer))
        return state, {"reward_critic_loss": losses[0], "cost_critic_loss": losses[1:]}, Taken(advantages, ratio)

    def targets(
        self, state: LearnerState, settings: Settings, segments: Chunk, key: PRNGKeyArray
    ) -> tuple[Float[Array, "S T B K"], Float[Array, "T B"]]:
        """TD(lambda) targets of all signals on segments (T, B), and the importance ratios of the actions taken."""
        following = Rows(
            segments.next_observation,
            segments.delta,
            segments.cost_so_far + segments.discount[..., None] * segments.costs,
            segments.discount * settings.gamma,
        )
        outputs = state.policy(self._features(state, settings, rows_of(segments)))
        log_ratio = self.actions.log_prob(outputs, segments.raw_action) - segments.log_prob
        ratio = jnp.clip(jnp.exp(log_ratio), 0.0, LARGEST_RATIO)
        atoms = jnp.sort(self._sampled_atoms(state, settings, following, key), axis=-1)
        signals = jnp.concatenate([segments.reward[..., None], segments.costs], axis=-1)
        steps = signals.shape[0]

        # Segments and signals are one axis of independent rows.
        def for_every_signal(values: Array) -> Array:
            return jnp.broadcast_to(values[..., None], signals.shape).reshape(steps, -1)

        targets = td_lambda(
            signals.reshape(steps, -1),
            jnp.transpose(atoms, (1, 3, 2, 0)).reshape(steps, atoms.shape[-1], -1),
            for_every_signal(ratio),
            for_every_signal(segments.terminated),
            for_every_signal(segments.done),
            settings.gamma,
            settings.trace,
            self.config.target_quantiles,
            self.config.projection,
        )
        targets = targets.reshape(*targets.shape[:2], *signals.shape[1:])
        return jnp.transpose(targets, (3, 0, 2, 1)), ratio

    def update_policy(
        self,
        state: LearnerState,
        settings: Settings,
        batch: Chunk,
        taken: Taken,
        key: PRNGKeyArray,
    ) -> tuple[LearnerState, Metrics, Float[Array, "U C+1"]]:
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
        directions, values, excess, predicted = jax.vmap(solve)(units, initial, by_unit, keys)
        direction = directions.mean(0)
        bias, looks = self._calibrated(state, settings, units, values)

        rows = rows_of(units)
        features = self._features(state, settings, rows)
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
            "kl_predicted": predicted.mean(),
            "entropy": self.actions.entropy(old, noise).mean(),
            "objective": values[:, 0].mean(),
            "sub_risk": values[:, 1:].mean(0),
            "bias": bias,
            "violated": (excess > 0).any(-1).mean(),
        }
        moved = unravel(parameters + factor * direction)
        state = eqx.tree_at(lambda state: (state.policy, state.bias, state.looks), state, (moved, bias, looks))
        return state, metrics, values

    def _unit_step(
        self,
        state: LearnerState,
        settings: Settings,
        parameters: Float[Array, " P"],
        unravel: Any,
        radius: Float[Array, ""],
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        taken: Taken,
        key: PRNGKeyArray,
    ) -> tuple[Array, Array, Array, Array]:
        """The step of one unit: direction (P,), values (1 + C,) before it, excess over the limits (C,), KL.  Sec. 7"""
        constraints = settings.constraints
        for_gradient, for_value = jax.random.split(key)
        rows = rows_of(unit)
        features = self._features(state, settings, rows)
        beta = constraints.beta(rows.delta)
        budget = constraints.budget(beta, rows.cost_so_far, rows.discount)
        weights = jnp.ones_like(rows.discount) if self.config.state_weighting == "uniform" else rows.discount
        weights = weights / weights.sum()

        def value_of(actions: Float[Array, "S B A"]) -> Float[Array, "S B"]:
            inputs = jnp.concatenate(
                [jnp.broadcast_to(features, (*actions.shape[:2], features.shape[-1])), actions], -1
            )
            return values_to_come(constraints, self._atoms(state, settings, inputs), budget)

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
        gradients = jax.vmap(lambda gradient: pull_back(weights[:, None] * gradient)[0])(by_state) * settings.horizon

        product = fisher_product(outputs_of, parameters, self.actions, weights, self.config.damping)
        solved, gradients = conjugate_gradient(product, gradients, self.config.conjugate_gradient_iterations)
        gram = inner_products(solved, gradients)
        values = self._values(state, settings, unit, initial_observation, for_value).at[1:].add(state.bias)
        excess = values[1:] - constraints.limit * (1 - settings.margin)
        if self.config.violated == "joint":
            step = step_of(solved, gram, joint_step(gram, excess, radius, settings.recovery_share_after(state.updates)))
        elif self.config.violated == "linear":
            step = step_of(solved, gram, linear_step(gram, excess, radius))
        else:
            chosen = proposed(gram, excess, radius, settings.max_weight, self.config.violated)
            step = combined_step(solved, gram, chosen.signed(), excess, radius)
        return step.direction, values, excess, step.kl

    def _calibrated(
        self, state: LearnerState, settings: Settings, units: Chunk, values: Float[Array, "U C+1"]
    ) -> tuple[Float[Array, " C"], Int[Array, ""]]:
        """The bias after another look at the episodes that finished in these units, and how many looks there were.

        Critics of a few updates are precise, but wrong by some amount that changes slowly; finished episodes are right
        on average, but few. So the mean difference between the two is followed slowly and added to the critics' J_C.
        """
        risks, ended = jax.vmap(partial(self._finished, settings))(units)
        found = (risks * ended[:, None]).sum(0) / jnp.maximum(ended.sum(), 1.0)
        error = found - values[:, 1:].mean(0)
        # At first an average with weights 1, 2, 3, ...; then one that forgets.
        gain = jnp.maximum(settings.calibration, 2 / (state.looks + 2)) * (settings.calibration > 0)
        seen = ended.sum() > 0
        return state.bias + gain * jnp.where(seen, error, 0.0), state.looks + seen

    def update_sampler(
        self,
        state: LearnerState,
        settings: Settings,
        batch: Chunk,
        unit_values: Float[Array, "U C+1"],
        key: PRNGKeyArray,
    ) -> tuple[LearnerState, Metrics]:
        """Raise J(pi; beta) = J_R - K sum_i (J_Ci - d_i)_+ in the sampler's parameters."""
        config = self.config
        limit = settings.constraints.limit * (1 - settings.margin)

        def score(values: Float[Array, "... C+1"]) -> Float[Array, ...]:
            return values[..., 0] - settings.penalty * jnp.maximum(values[..., 1:] - limit, 0.0).sum(-1)

        units = jax.tree.map(partial(split_by_unit, groups=config.groups), without_initial(batch))
        if config.sampler_gradient == "natural":
            delta = units.delta.mean(1)
            gradient = -state.sampler.natural_gradient(delta, score(unit_values))
            loss = -score(unit_values).mean()
        else:
            initial = initial_by_unit(batch.initial_observation, config.groups)
            for_delta, for_values = jax.random.split(key)
            keys = jax.random.split(for_values, units.reward.shape[0])

            def loss_of(phi: Array) -> Array:
                sampler = Sampler(phi, state.sampler.deviation)
                fresh = sampler.sample(for_delta, (units.reward.shape[0],))

                def of_unit(unit: Chunk, initial: Array, delta: Array, key: Array) -> Array:
                    rows = rows_of(unit)
                    shifted = config.estimator != "visited"
                    if shifted:  # (D, b) of other betas mean nothing here: from the beginning
                        rows = self._initial_rows(initial, rows.delta[: initial.shape[0]])
                    rows = eqx.tree_at(lambda rows: rows.delta, rows, jnp.broadcast_to(delta, rows.delta.shape))
                    explicit = config.sampler_gradient == "explicit"
                    values = self._values_at(state, settings, rows, shifted=shifted, key=key, explicit=explicit)
                    return values.mean(-1)

                values = jax.vmap(of_unit)(units, initial, fresh, keys)
                if config.sampler_gradient == "explicit":
                    return (values[:, 1:] / settings.constraints.largest_return).sum(-1).mean()
                return -score(values).mean()

            loss, gradient = jax.value_and_grad(loss_of)(state.sampler.phi)
        updates, optimizer = self._sampler_optimizer.update(gradient, state.sampler_optimizer)
        phi = jnp.clip(state.sampler.phi - settings.sampler_rate * updates, -6.0, 6.0)
        state = eqx.tree_at(lambda state: (state.sampler.phi, state.sampler_optimizer), state, (phi, optimizer))
        metrics = {
            "sampler_loss": loss,
            "sampler_mode": state.sampler.mode,
            "beta": settings.constraints.beta(state.sampler.mode).reshape(-1),
        }
        return state, metrics
