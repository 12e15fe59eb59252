"""SDAC: risks as those of Gaussians (`learning.gaussian_risk`), and steps with a recovery mode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms import primal
from tailsafe.algorithms.common import remember
from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.state import PRECISIONS, PrimalConfig, PrimalSettings, PrimalState
from tailsafe.fields import setting
from tailsafe.learning.batches import ActionAdvantages, Minibatch, minibatches_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.gaussian_risk import GaussianRisk
from tailsafe.learning.networks import Policy
from tailsafe.learning.policy_gradient import NaturalGradients
from tailsafe.learning.trust_region import Step, step_of
from tailsafe.optimization.strategies import sdac_step
from tailsafe.risk.spectra import SpectralRisk

# Of the line search: shrinking factor, tries, and how much of the KL bound a step may take.
_DECAY, _TRIES, _KL_SHARE = 0.8, 10, 1.5


@dataclass(frozen=True)
class SdacConfig(PrimalConfig):
    """Of SDAC. By default one direction from all rows of the batch."""

    critic_clip: float = 1.0
    groups: int = 0
    # Without the factor, predicted changes are that much too small.
    surrogate: Literal["theory", "release"] = setting(
        "theory",
        "theory: surrogates have the factor 1 / (1 - gamma); release: they do not.",
        part="policy",
    )
    line_search: bool = setting(
        False,
        "Shorten a step until its KL divergence fits, satisfied constraints stay so and reward is kept.",
        part="policy",
    )


class Sdac(Learner[SdacConfig]):
    """Critics Z(s, a) without beta; constraints on mean + k std."""

    not_for_acting = ("average",)

    @classmethod
    def objection(cls, config: SdacConfig, measures: list[SpectralRisk]) -> str | None:
        return primal.too_many_costs(measures)

    def init(self, key: PRNGKeyArray, settings: PrimalSettings) -> PrimalState:
        """Fresh networks, an empty memory."""
        return PrimalState(**primal.primal_fields(self.initial_fields(key, settings), self.num_costs))

    # --- update -------------------------------------------------------------------------------------------------------

    def update(
        self, state: PrimalState, settings: PrimalSettings, chunk: Chunk, key: PRNGKeyArray
    ) -> tuple[PrimalState, Metrics]:
        """Learn from a chunk: critics, then policy. The key is used up."""
        config = self.config
        for_batch, for_critics, for_policy, _ = jax.random.split(key, 4)  # as SRCPO, whose sampler has the last
        state = remember(state, chunk, normalize=config.normalize)
        batch = state.replay.batch(for_batch, config.batch_chunks)
        with jax.default_matmul_precision(PRECISIONS[config.precision].products):
            state, critic_metrics, taken = self.update_critics(state, settings, batch, for_critics)
            minibatches = minibatches_of(batch, taken, config.groups)
            state, policy_metrics = self.update_policy(state, settings, minibatches, for_policy)
        return replace(state, updates=state.updates + 1), critic_metrics | policy_metrics

    def update_critics(
        self, state: PrimalState, settings: PrimalSettings, batch: Chunk, key: PRNGKeyArray
    ) -> tuple[PrimalState, Metrics, ActionAdvantages]:
        """Quantile regression on TD(lambda) targets; what these say about the actions taken."""
        networks, risk = self.networks(state, settings), self.risk(state, settings)
        return primal.update_critics(networks, risk, state, settings, self.config, batch, key)

    def update_policy(
        self, state: PrimalState, settings: PrimalSettings, minibatches: Minibatch, key: PRNGKeyArray
    ) -> tuple[PrimalState, Metrics]:
        """The average of one trust-region step per minibatch, shortened by a line search where there is one."""
        networks, risk = self.networks(state, settings), self.risk(state, settings)
        for_steps, for_entropy = jax.random.split(key)
        keys = jax.random.split(for_steps, minibatches.steps.reward.shape[0])
        fixed = (networks, risk, state, settings, self.config, self.gradient_scale(settings))
        step = partial(primal.policy_step, *fixed, partial(self.combine, settings))
        steps = jax.vmap(step)(minibatches, keys)
        direction, metrics = primal.averaged(networks, state, settings, self.config, minibatches, steps, for_entropy)
        if self.config.line_search:
            direction, found = self.line_search(state, settings, minibatches, steps.excess.max(0), direction, keys)
            metrics |= found
        state, more = primal.stepped(risk, state, settings, minibatches, steps, direction)
        return state, metrics | more

    def line_search(
        self,
        state: PrimalState,
        settings: PrimalSettings,
        minibatches: Minibatch,
        excess: Float[Array, " C"],
        step: Float[Array, " P"],
        keys: PRNGKeyArray,
    ) -> tuple[Float[Array, " P"], Metrics]:
        """Shrink the step until the KL is within bounds, no satisfied constraint is broken, and the reward not worse.

        While a constraint is violated the reward may get worse. After the last try the policy stays as it is.
        """
        parameters, unravel = ravel_pytree(state.policy)
        networks, risk = self.networks(state, settings), self.risk(state, settings)
        shifted = self.config.estimator != "visited"
        features = networks.features(minibatches.states)
        old_outputs = networks.policy(features)
        bound = _KL_SHARE * settings.radius(state.updates) ** 2 / 2
        scale = self.gradient_scale(settings)

        def values_of(policy: Policy) -> Float[Array, " 1+C"]:
            candidate = replace(networks, policy=policy)
            values = partial(risk.critic_values, candidate, shifted=shifted)
            return jax.vmap(lambda states, key: values(states, key=key))(minibatches.states, keys).mean(0)

        before = values_of(state.policy)

        def acceptable(factor: Float[Array, ""]) -> Array:
            policy = unravel(parameters + factor * step)
            change = scale * (values_of(policy) - before)
            kl = self.actions.kl(old_outputs, policy(features)).mean()
            worse = (change[0] < 0) & jnp.all(excess <= 0)
            return (kl <= bound) & ~worse & jnp.all(change[1:] <= jnp.maximum(-excess, 0.0))

        def shrink(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            tries, factor, _ = carry
            factor = _DECAY * factor
            return tries + 1, factor, acceptable(factor)

        one = jnp.ones(())
        _, factor, good = jax.lax.while_loop(
            lambda carry: ~carry[2] & (carry[0] < _TRIES), shrink, (jnp.int32(0), one, acceptable(one))
        )
        kept = jnp.where(good, factor, 0.0)
        taken = self.actions.kl(old_outputs, unravel(parameters + kept * step)(features)).mean()
        return kept * step, {"step_share": kept, "kl": taken}

    # --- choices ------------------------------------------------------------------------------------------------------

    def risk(self, state: PrimalState, settings: PrimalSettings) -> GaussianRisk:
        """How risks are seen."""
        return GaussianRisk(settings.constraints, self.config.estimator != "visited")

    def gradient_scale(self, settings: PrimalSettings) -> Float[Array, ""]:
        """From means over states to gradients of J: 1 / (1 - gamma), or 1."""
        return settings.horizon if self.config.surrogate == "theory" else jnp.ones(())

    def combine(
        self, settings: PrimalSettings, natural: NaturalGradients, excess: Float[Array, " C"], radius: Float[Array, ""]
    ) -> Step:
        """The best reward step within the linearised constraints; back to them where they cannot be met."""
        coefficients, _ = sdac_step(natural.gram, excess, radius, settings.target.min())
        return step_of(natural.solved, natural.gram, coefficients)

    def shared_policy(self, state: PrimalState) -> Policy:
        return state.average


ALGORITHM = Algorithm(Sdac, SdacConfig, PrimalSettings)
