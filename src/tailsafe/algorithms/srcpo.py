"""SRCPO: spectral-risk-constrained policy optimisation with a learned sampler of dual variables.       Algorithm 2"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.primal import PrimalLearner, Taken, Worth
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.srcpo_state import Settings, SrcpoConfig, SrcpoState
from tailsafe.learning.actions import Actions
from tailsafe.learning.batches import Rows, initial_by_unit, rows_of, split_by_unit, without_initial
from tailsafe.learning.chunks import Chunk, Transition
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.experience import Actor, record
from tailsafe.learning.sampler import Sampler
from tailsafe.learning.trust_region import Step, combined_step, step_of
from tailsafe.optimization.strategies import (
    SINGLE_CONSTRAINT,
    Kappa,
    controlled_step,
    joint_step,
    linear_step,
    proposed,
    weights_of,
)
from tailsafe.risk.spectra import SpectralRisk

__all__ = ["Metrics", "Srcpo", "Taken", "values_to_come"]

# Where the sampler follows the current policy's quantiles, Adam must forget quickly: near the ends of its range the
# gradients in phi are tiny, and measured by the large ones of long ago they would not move it for hundreds of updates.
_SAMPLER_MEMORY = {"pathwise": 0.999, "natural": 0.999, "explicit": 0.9, "quantile": 0.9}
# Below this discount nothing changes a discounted sum any more: a long episode has said what it has to say.
_MATURE = 0.02
# Finished episodes of one batch whose quantiles say more than critics that are still learning.
_MANY_EPISODES = 64


class Srcpo(PrimalLearner[SrcpoConfig]):
    """Policies and critics see a beta; a sampler learns which."""

    def __init__(self, config: SrcpoConfig, observation_size: int, actions: Actions, num_costs: int) -> None:
        super().__init__(config, observation_size, actions, num_costs)
        self._sampler_optimizer = optax.chain(
            optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=_SAMPLER_MEMORY[config.sampler_gradient])
        )

    @classmethod
    def refusal(cls, config: SrcpoConfig, measures: list[SpectralRisk]) -> str | None:
        if config.strategy in SINGLE_CONSTRAINT and len(measures) > 1:
            return (
                f"strategy {config.strategy} does not say what to do about violations among {len(measures)} "
                "constraints; it takes one (proposed, sdac, crpo and p3o take several)"
            )
        return super().refusal(config, measures)

    # --- beginning and acting -----------------------------------------------------------------------------------------

    def num_betas(self, settings: Any) -> int:
        return int(settings.constraints.num_betas)

    def shared_delta(self, state: SrcpoState) -> Float[Array, " n"]:
        return state.sampler.mode

    def acting(self, state: SrcpoState) -> Any:
        unused: dict[str, Any] = {"sampler_optimizer": None}
        return replace(super().acting(state), **unused)

    def init(self, key: PRNGKeyArray, settings: Settings) -> SrcpoState:
        """Fresh networks, a sampler at its start, an empty memory."""
        begun = jnp.log(settings.sampler_start / (1 - settings.sampler_start))
        sampler = Sampler(jnp.full(settings.constraints.num_betas, begun), settings.sampler_deviation)
        return SrcpoState(
            **self._primal_beginning(key, settings),
            sampler=sampler,
            sampler_optimizer=self._sampler_optimizer.init(sampler.phi),
        )

    def record(
        self,
        state: SrcpoState,
        settings: Settings,
        actor: Actor,
        choice: tuple[Array, Array],
        transition: Transition,
        key: PRNGKeyArray,
    ) -> tuple[Actor, Chunk]:
        """A row of the chunk, and the actor after the step."""
        fresh = self._draw(state, settings, key) if self.config.beta_per == "episode" else actor.delta
        return record(actor, *choice, transition, settings.gamma, fresh)

    def start_chunk(self, state: SrcpoState, settings: Settings, actor: Actor, key: PRNGKeyArray) -> Actor:
        """Before the first step of a chunk: new betas, if they change with chunks."""
        if self.config.beta_per == "episode":
            return actor
        return replace(actor, delta=self._draw(state, settings, key))

    def _draw(self, state: SrcpoState, settings: Settings, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Increments for every environment: its own, or one draw per group."""
        config = self.config
        draws = config.num_envs if config.beta_per == "episode" else config.groups
        delta = state.sampler.sample(key, (draws,), settings.uniform_share)
        return jnp.repeat(delta, config.num_envs // draws, axis=0)

    # --- values and steps ---------------------------------------------------------------------------------------------

    def _worth(self, state: SrcpoState, settings: Settings, rows: Rows, key: PRNGKeyArray) -> Worth:
        """E[Z_R] and E[g_budget(Z_i)]: A_R and A_{i,g} = (Q_g - V_g) / b are differences of these."""
        constraints = settings.constraints
        so_far, discount = rows.cost_so_far, rows.discount
        if self.config.slope == "visited":
            so_far, discount = jnp.zeros_like(so_far), jnp.ones_like(discount)
        budget = constraints.budget(constraints.beta(rows.delta), so_far, discount)
        return partial(values_to_come, constraints, budget=budget)

    def _combined(
        self, state: SrcpoState, settings: Settings, solved: Array, gram: Array, excess: Array, radius: Array
    ) -> Step:
        config = self.config
        if config.strategy != "proposed":
            kappa = Kappa(settings.ipo_kappa, settings.p3o_kappa)
            chosen = weights_of(config.strategy, gram, excess, radius, settings.max_weight, kappa)
            return combined_step(solved, gram, chosen.signed(), excess, radius)
        if config.violated == "joint":
            share = settings.recovery_share_after(state.updates)
            return step_of(solved, gram, joint_step(gram, excess, radius, share))
        if config.violated == "control":
            shares = settings.shares(excess / settings.unit(settings.aim(state.noise, state.looks)), state.integral)
            return step_of(solved, gram, controlled_step(gram, shares, radius))
        if config.violated == "linear":
            return step_of(solved, gram, linear_step(gram, excess, radius))
        chosen = proposed(gram, excess, radius, settings.max_weight, config.violated)
        return combined_step(solved, gram, chosen.signed(), excess, radius)

    def _finished(self, settings: Settings, unit: Chunk) -> tuple[Float[Array, " C"], Float[Array, ""]]:
        """Mean E[g_beta(D)] + I of the episodes that ended in a unit (zero without any), and their number."""
        constraints = settings.constraints
        beta = constraints.beta(unit.delta)
        total = jnp.moveaxis(unit.cost_so_far + unit.discount[:, None] * unit.costs, -1, 0)
        risks = constraints.g(total[..., None], beta)[..., 0] + constraints.conjugate_integral(beta)
        matured = unit.done | (unit.discount * settings.gamma <= _MATURE)
        ended = (matured & (unit.discount > _MATURE)).astype(total.dtype)
        return (risks * ended).sum(-1) / jnp.maximum(ended.sum(), 1.0), ended.sum()

    def sampled_risks(self, state: SrcpoState, settings: Settings, total: Float[Array, "C n"]) -> Float[Array, " C"]:
        constraints = settings.constraints
        beta = constraints.beta(state.sampler.mode)
        risks: Array = constraints.g(total, beta).mean(-1) + constraints.conjugate_integral(beta)
        return risks

    def _critic_values(
        self,
        state: SrcpoState,
        settings: Settings,
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        estimator: str,
        key: PRNGKeyArray,
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy at the unit's betas."""
        rows = self._estimated_rows(unit, initial_observation, estimator)
        if estimator == "initial":
            rows = self._at_present(state, rows)
        shifted = estimator != "visited"
        values = self._values_at(state, settings, rows, shifted=shifted, key=key)
        # E[g(D_t + b_t Z(s_t))] is the same for every t. Early states say most about the current policy: late ones
        # carry costs that older policies ran up.
        weights = rows.discount if shifted else jnp.ones_like(rows.discount)
        return values @ (weights / weights.sum())

    def _values_at(
        self,
        state: SrcpoState,
        settings: Settings,
        rows: Rows,
        *,
        shifted: bool,
        key: PRNGKeyArray,
        explicit: bool = False,
    ) -> Float[Array, "1+C B"]:
        """E[Z_R] and E[g_beta(D + b Z_i)] + I_i per state, or with D = 0 and b = 1 for every state if not `shifted`.

        Differentiable in the rows' increments, but not through the policy's choice of action; `explicit`: through
        g_beta and I alone, not through the critics' input either.
        """
        constraints = settings.constraints
        features = self._features(state, settings, rows)
        if explicit:
            features = jax.lax.stop_gradient(features)
        beta = constraints.beta(rows.delta)
        outputs = jax.lax.stop_gradient(state.policy(features))
        noise = self.actions.noise(key, outputs.shape[:-1])

        def of(actions: Float[Array, "B A"]) -> Float[Array, "1+C B"]:
            atoms = self._atoms(state, settings, jnp.concatenate([features, actions], axis=-1))
            costs = atoms[1:]
            if shifted:
                costs = jnp.moveaxis(rows.cost_so_far, -1, 0)[..., None] + rows.discount[:, None] * costs
            return jnp.concatenate([atoms[:1].mean(-1), constraints.g(costs, beta).mean(-1)])

        values = self.actions.expectation(outputs, noise, of)
        return values.at[1:].add(constraints.conjugate_integral(beta))

    def _at_present(self, state: SrcpoState, rows: Any) -> Any:
        """With the betas of now, not with those that episodes began with many updates ago."""
        if self.config.beta_per == "chunk":
            return rows
        return replace(rows, delta=jnp.broadcast_to(state.sampler.mode, rows.delta.shape))

    def _calibrated(self, state: Any, settings: Any, units: Chunk, values: Array) -> tuple[Array, Array, Array]:
        if self.config.estimator == "initial":
            units = self._at_present(state, units)
        return super()._calibrated(state, settings, units, values)

    # --- the sampler --------------------------------------------------------------------------------------------------

    def _at_quantiles(
        self, state: SrcpoState, settings: Settings, batch: Chunk, key: PRNGKeyArray
    ) -> Float[Array, " n"]:
        """phi a share (`sampler_rate`) of the way to the quantiles of the discounted costs.

        Of the episodes that finished in the batch, if these are many; else of the critics' returns from initial states.
        No further than I(beta) = d less the margin: beyond it no policy satisfies the constraint.
        """
        mode = state.sampler.mode
        observations = batch.initial_observation.reshape(-1, self.observation_size)
        rows = self._initial_rows(observations, jnp.broadcast_to(mode, (observations.shape[0], mode.shape[0])))
        atoms = self._sampled_atoms(state, settings, rows, key)[1:].reshape(self.num_costs, -1)
        quantiles = jax.vmap(jnp.quantile)(atoms, settings.constraints.alpha)
        total = (batch.cost_so_far + batch.discount[..., None] * batch.costs).reshape(-1, self.num_costs)
        ended = batch.done.reshape(-1)
        count = ended.sum()
        # Sorted, with what has not ended behind all else: quantile alpha is number floor(alpha count).
        ordered = jnp.sort(jnp.where(ended[:, None], total, jnp.inf), axis=0)
        place = jnp.minimum(jnp.floor(settings.constraints.alpha * count).astype(int), jnp.maximum(count - 1, 0))
        seen = jax.vmap(lambda column, place: column[place])(ordered.T, place)
        quantiles = jnp.where(count >= _MANY_EPISODES, seen, quantiles)
        limit = settings.constraints.limit
        free = jnp.where(limit > 0, settings.aim(state.noise, state.looks) / jnp.where(limit > 0, limit, 1.0), 1.0)
        wanted = settings.constraints.increments(quantiles, free)
        mode = jnp.clip(mode + jnp.minimum(settings.sampler_rate, 1.0) * (wanted - mode), 0.0025, 0.9975)
        return jnp.log(mode / (1 - mode))

    def update_rest(
        self,
        state: SrcpoState,
        settings: Settings,
        batch: Chunk,
        unit_values: Float[Array, "U C+1"],
        key: PRNGKeyArray,
    ) -> tuple[SrcpoState, Metrics]:
        """Raise J(pi; beta) = J_R - K sum_i (J_Ci - d_i)_+ in the sampler's parameters."""
        config = self.config
        limit = settings.aim(state.noise, state.looks)

        def score(values: Float[Array, "... C+1"]) -> Float[Array, ...]:
            return values[..., 0] - settings.penalty * jnp.maximum(values[..., 1:] - limit, 0.0).sum(-1)

        units = jax.tree.map(partial(split_by_unit, groups=config.groups), without_initial(batch))
        if config.sampler_gradient == "quantile":
            phi = self._at_quantiles(state, settings, batch, key)
            loss, gradient = -score(unit_values).mean(), state.sampler.phi - phi
        elif config.sampler_gradient == "natural":
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
        if config.sampler_gradient != "quantile":
            phi = jnp.clip(state.sampler.phi - settings.sampler_rate * updates, -6.0, 6.0)
        state = eqx.tree_at(lambda state: (state.sampler.phi, state.sampler_optimizer), state, (phi, optimizer))
        metrics = {
            "sampler_loss": loss,
            "sampler_mode": state.sampler.mode,
            "beta": settings.constraints.beta(state.sampler.mode).reshape(-1),
        }
        return state, metrics


def values_to_come(
    constraints: Constraints, atoms: Float[Array, "S ... K"], budget: Float[Array, "C ... M-1"]
) -> Float[Array, "S ..."]:
    """E[Z_R] and E[g_budget(Z_i)]: what an action can still change of J_R and J_Ci, divided by b."""
    return jnp.concatenate([atoms[:1].mean(-1), constraints.g(atoms[1:], budget).mean(-1)])


ALGORITHM = Algorithm(Srcpo, SrcpoConfig, Settings)
