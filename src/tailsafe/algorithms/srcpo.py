"""SRCPO: spectral-risk-constrained policy optimisation with a learned sampler of dual variables.       Algorithm 2

An epoch of the paper's pseudo-code is one chunk and one `update`:

    for every episode (or chunk):  beta ~ uniform with probability eps, else beta ~ xi_phi    Srcpo.draw_betas
        collect tau with pi_theta(. | s; beta), store (beta, tau) in D                        Srcpo.rollout, remember
    sample (beta, tau) from D                                                                 Replay.batch
    critics Z_R, Z_C by quantile regression                                                   Srcpo.update_critics
    policy gradients by the update rule, theta += their average                               Srcpo.update_policy
    gradients of the sampler, phi += their average                                            Srcpo.update_sampler

`docs/method.md`, "The practical algorithm", names the function behind every formula.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms import primal, srcpo_range
from tailsafe.algorithms.common import remember
from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.srcpo_state import PENALTY, Settings, SrcpoConfig, SrcpoState
from tailsafe.algorithms.state import PRECISIONS
from tailsafe.learning.batches import ActionAdvantages, Minibatch, minibatches_of
from tailsafe.learning.chunks import Chunk, Transition
from tailsafe.learning.experience import Actor, record
from tailsafe.learning.networks import Policy
from tailsafe.learning.policy_gradient import NaturalGradients
from tailsafe.learning.sampler import Sampler
from tailsafe.learning.sampler_step import (
    descended,
    moved_to_quantiles,
    pathwise_gradient,
    penalized,
    sampler_optimizer,
    score_gradient,
)
from tailsafe.learning.sub_risk import SubRisk
from tailsafe.learning.trust_region import Step, combined_step, step_of
from tailsafe.optimization.strategies import (
    SINGLE_CONSTRAINT,
    controlled_step,
    joint_step,
    linear_step,
    recovery_share_after,
    weights_of,
)
from tailsafe.risk.spectra import SpectralRisk


class Srcpo(Learner[SrcpoConfig]):
    """Policies and critics see a beta; a sampler learns which."""

    not_for_acting = ("average", "sampler_optimizer")
    takes_range = True

    @classmethod
    def objection(cls, config: SrcpoConfig, measures: list[SpectralRisk]) -> str | None:
        if config.strategy in SINGLE_CONSTRAINT and len(measures) > 1:
            return (
                f"strategy {config.strategy} does not say what to do about violations among {len(measures)} "
                "constraints; it takes one (proposed, sdac, crpo and p3o take several)"
            )
        return primal.too_many_costs(measures)

    def init(self, key: PRNGKeyArray, settings: Settings) -> SrcpoState:
        """Fresh networks, a sampler at its start, an empty memory."""
        begun = jnp.log(settings.sampler_start / (1 - settings.sampler_start))
        constraints, limits = settings.constraints, settings.constraints.range
        regions = None if limits is None else limits.regions
        shape = (constraints.num_betas,) if regions is None else (regions, constraints.num_betas)
        sampler = Sampler(jnp.full(shape, begun), settings.sampler_deviation)
        return SrcpoState(
            **primal.primal_fields(self.initial_fields(key, settings), self.num_costs, regions),
            sampler=sampler,
            sampler_optimizer=sampler_optimizer(self.config.sampler_gradient).init(sampler.phi),
        )

    # --- collect ------------------------------------------------------------------------------------------------------

    def draw_betas(self, state: SrcpoState, settings: Settings, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Increments for every environment: its own, or one draw per group. Of a range, its own limit as well."""
        config = self.config
        if settings.constraints.range is not None:
            return srcpo_range.draw_betas(state, settings, config.num_envs, key)
        draws = config.num_envs if config.beta_per == "episode" else max(config.groups, 1)
        delta = state.sampler.sample(key, (draws,), settings.uniform_share)
        return jnp.repeat(delta, config.num_envs // draws, axis=0)

    def start_chunk(self, state: SrcpoState, settings: Settings, actor: Actor, key: PRNGKeyArray) -> Actor:
        """Before the first step of a chunk: new betas, if they change with chunks."""
        if self.betas_of_episodes(settings):
            return actor
        return replace(actor, delta=self.draw_betas(state, settings, key))

    def record(
        self,
        state: SrcpoState,
        settings: Settings,
        actor: Actor,
        choice: tuple[Array, Array],
        transition: Transition,
        key: PRNGKeyArray,
    ) -> tuple[Actor, Chunk]:
        """A row of the chunk, and the actor after the step: with a new beta where an episode ended."""
        fresh = self.draw_betas(state, settings, key) if self.betas_of_episodes(settings) else actor.delta
        return record(actor, *choice, transition, settings.gamma, fresh)

    # --- update -------------------------------------------------------------------------------------------------------

    def update(
        self, state: SrcpoState, settings: Settings, chunk: Chunk, key: PRNGKeyArray
    ) -> tuple[SrcpoState, Metrics]:
        """Learn from a chunk: critics, then policy, then sampler. The key is used up."""
        config = self.config
        for_batch, for_critics, for_policy, for_sampler = jax.random.split(key, 4)
        state = remember(state, chunk, normalize=config.normalize)
        batch = state.replay.batch(for_batch, config.batch_chunks)
        with jax.default_matmul_precision(PRECISIONS[config.precision].products):
            state, critic_metrics, taken = self.update_critics(state, settings, batch, for_critics)
            # With a range of limits, rows of all limits together: regions share them out.
            ranged = settings.constraints.range is not None
            minibatches = minibatches_of(batch, taken, 0 if ranged else config.groups)
            state, policy_metrics, values = self.update_policy(state, settings, minibatches, for_policy)
            state, sampler_metrics = self.update_sampler(state, settings, minibatches, values, for_sampler)
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics | sampler_metrics

    def update_critics(
        self, state: SrcpoState, settings: Settings, batch: Chunk, key: PRNGKeyArray
    ) -> tuple[SrcpoState, Metrics, ActionAdvantages]:
        """Quantile regression of Z_R and Z_C on TD(lambda) targets; what these say about the actions taken."""
        networks, risk = self.networks(state, settings), self.risk(state, settings)
        return primal.update_critics(networks, risk, state, settings, self.config, batch, key)

    def update_policy(
        self, state: SrcpoState, settings: Settings, minibatches: Minibatch, key: PRNGKeyArray
    ) -> tuple[SrcpoState, Metrics, Float[Array, "U 1+C"]]:
        """The average of one trust-region step per (beta, tau). Also J_R and J_C of every one, before its step.

        With a range of limits: the sum of one step per region.
        """
        networks, risk = self.networks(state, settings), self.risk(state, settings)
        if settings.constraints.range is not None:
            fixed_of_range = (networks, risk, state, settings, self.config, self.combine)
            return srcpo_range.update_policy(*fixed_of_range, minibatches, key)
        for_steps, for_entropy = jax.random.split(key)
        fixed = (networks, risk, state, settings, self.config, self.gradient_scale(settings))
        step = partial(primal.policy_step, *fixed, partial(self.combine, state, settings))
        steps = jax.vmap(step)(minibatches, jax.random.split(for_steps, minibatches.steps.reward.shape[0]))
        direction, metrics = primal.averaged(networks, state, settings, self.config, minibatches, steps, for_entropy)
        state, more = primal.stepped(risk, state, settings, minibatches, steps, direction)
        return state, metrics | more, steps.values

    def update_sampler(
        self,
        state: SrcpoState,
        settings: Settings,
        minibatches: Minibatch,
        values: Float[Array, "U 1+C"],
        key: PRNGKeyArray,
    ) -> tuple[SrcpoState, Metrics]:
        """Raise J(pi; beta) = J_R - K sum_i (J_Ci - d_i)_+ in the sampler's parameters.

        values: J_R and J_C of every (beta, tau), or of every region of a range of limits.
        """
        rule, networks, sampler = self.config.sampler_gradient, self.networks(state, settings), state.sampler
        aim, penalty = self.aim(state, settings), PENALTY
        if rule == "quantile":
            wanted = moved_to_quantiles(sampler, networks, minibatches, settings.sampler_rate, aim, key)
            loss, gradient = -penalized(values, penalty, aim).mean(), sampler.phi - wanted
        elif rule == "natural":
            loss, gradient = score_gradient(sampler, minibatches, values, penalty, aim)
        else:
            shifted, explicit = self.config.estimator != "visited", rule == "explicit"
            loss, gradient = pathwise_gradient(
                sampler, networks, minibatches, penalty, aim, key, shifted=shifted, explicit=explicit
            )
        step, memory = sampler_optimizer(rule).update(gradient, state.sampler_optimizer)
        phi = wanted if rule == "quantile" else descended(sampler.phi, settings.sampler_rate * step)
        sampler = replace(sampler, phi=phi)
        constraints, limits = settings.constraints, settings.constraints.range
        metrics = {"sampler_loss": loss, "sampler_mode": sampler.mode}
        if limits is None:
            metrics["beta"] = constraints.beta(sampler.mode).reshape(-1)
        else:
            metrics["region_beta"] = constraints.beta(limits.delta_at(sampler.mode, limits.knots)).reshape(-1)
        return replace(state, sampler=sampler, sampler_optimizer=memory), metrics

    # --- choices ------------------------------------------------------------------------------------------------------

    def risk(self, state: SrcpoState, settings: Settings) -> SubRisk:
        """How risks are seen. Where initial states tell them, at the betas of now, not of many updates ago."""
        at_present = self.config.estimator == "initial" and self.betas_of_episodes(settings)
        now = state.sampler.mode if at_present else None
        return SubRisk(settings.constraints, settings.gamma, self.config.slope, now)

    def betas_of_episodes(self, settings: Settings) -> bool:
        """Whether betas change with episodes: where limits do, betas have to."""
        return self.config.beta_per == "episode" or settings.constraints.range is not None

    def aim(self, state: SrcpoState, settings: Settings) -> Float[Array, "... C"]:
        """What the learner keeps each risk under; of a range, in each region."""
        if settings.constraints.range is not None:
            return srcpo_range.aims(state, settings)
        return settings.aim(state.noise, state.looks, state.doubt)

    def gradient_scale(self, settings: Settings) -> Float[Array, ""]:
        """From means over states to gradients of J: 1 / (1 - gamma)."""
        return settings.horizon

    def combine(
        self,
        state: SrcpoState,
        settings: Settings,
        natural: NaturalGradients,
        excess: Float[Array, " C"],
        radius: Float[Array, ""],
    ) -> Step:
        """The step of the chosen strategy.                                                              Appendix B"""
        config, (solved, gram, _) = self.config, natural
        if config.strategy == "joint":
            return step_of(solved, gram, joint_step(gram, excess, radius, recovery_share_after(state.updates)))
        if config.strategy == "control":
            aim = settings.aim(state.noise, state.looks, state.doubt)
            shares = settings.shares(excess / settings.unit(aim), state.integral)
            return step_of(solved, gram, controlled_step(gram, shares, radius))
        if config.strategy == "linear":
            return step_of(solved, gram, linear_step(gram, excess, radius))
        chosen = weights_of(config.strategy, gram, excess, radius)
        return combined_step(solved, gram, chosen.signed(), excess, radius)

    # --- what a run ships ---------------------------------------------------------------------------------------------

    def delta_width(self, settings: Any) -> int:
        return int(settings.constraints.delta_width)

    def num_inputs(self, settings: Any) -> int:
        return int(settings.constraints.num_inputs)

    def shared_delta(self, state: SrcpoState) -> Float[Array, "... n"]:
        return state.sampler.mode

    def shared_policy(self, state: SrcpoState) -> Policy:
        return state.average


ALGORITHM = Algorithm(Srcpo, SrcpoConfig, Settings)
