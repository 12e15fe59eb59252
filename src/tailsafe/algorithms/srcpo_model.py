"""What the networks of SRCPO say about states: their inputs, atoms, and the values J_R and J_C estimated from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.srcpo_state import LearnerState, Settings, SrcpoConfig
from tailsafe.learning.actions import Actions
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.networks import pooled
from tailsafe.learning.units import Rows, rows_of


class SrcpoModel:
    """Sizes and actions of a kind of task, and every way of asking its networks."""

    def __init__(self, config: SrcpoConfig, observation_size: int, actions: Actions, num_costs: int) -> None:
        self.config = config
        self.observation_size = observation_size
        self.actions = actions
        self.num_costs = num_costs

    def _features(self, state: LearnerState, settings: Settings, rows: Rows) -> Float[Array, "... i"]:
        """What networks see of an (augmented) state and a beta."""
        parts = [state.normalizer(rows.observation, self.config.clip_observation)]
        if not self.config.normalize:
            parts = [rows.observation]
        if self.config.augmented:
            limit = settings.constraints.limit
            scale = jnp.where(limit > 0, limit, settings.constraints.largest_return)
            parts += [jnp.minimum(rows.cost_so_far / scale, 10.0), rows.discount[..., None]]
        return jnp.concatenate([*parts, rows.delta], axis=-1)

    def _atoms(self, state: LearnerState, settings: Settings, inputs: Float[Array, "... B i"]) -> Float[Array, "S B K"]:
        return pooled(state.critics(inputs, settings.constraints.largest_return))

    def _initial_rows(self, observation: Float[Array, "B O"], delta: Float[Array, "B n"]) -> Rows:
        count = observation.shape[0]
        return Rows(observation, delta, jnp.zeros((count, self.num_costs)), jnp.ones(count))

    def _empty_chunk(self, betas: int) -> Chunk:
        steps, envs = self.config.chunk_steps, self.config.num_envs
        rows = jnp.zeros((steps, envs))
        observation = jnp.zeros((steps, envs, self.observation_size))
        costs = jnp.zeros((steps, envs, self.num_costs))
        return Chunk(
            observation=observation,
            raw_action=jnp.zeros((steps, envs, self.actions.size)),
            log_prob=rows,
            reward=rows,
            costs=costs,
            terminated=rows > 0,
            truncated=rows > 0,
            next_observation=observation,
            cost_so_far=costs,
            discount=rows,
            delta=jnp.zeros((steps, envs, betas)),
            initial_observation=observation[0],
        )

    def _sampled_atoms(
        self, state: LearnerState, settings: Settings, rows: Rows, key: PRNGKeyArray
    ) -> Float[Array, "S ... K"]:
        """Atoms of every signal at (s, a) with a fresh from the current policy."""
        features = self._features(state, settings, rows)
        outputs = state.policy(features)
        raw = self.actions.sample(outputs, self.actions.noise(key, outputs.shape[:-1]))
        inputs = jnp.concatenate([features, self.actions.embed(raw)], axis=-1)
        atoms = self._atoms(state, settings, inputs.reshape(-1, inputs.shape[-1]))
        return atoms.reshape(atoms.shape[0], *inputs.shape[:-1], -1)

    def _advantages(
        self,
        state: LearnerState,
        settings: Settings,
        rows: Rows,
        targets: Float[Array, "S T B K"],
        key: PRNGKeyArray,
    ) -> Float[Array, "T B S"]:
        """A_R and A_{i,g} = (Q_g - V_g) / b of the actions taken: Q from the targets, V from the critics."""
        constraints = settings.constraints
        budget = constraints.budget(constraints.beta(rows.delta), rows.cost_so_far, rows.discount)
        baseline = self._sampled_atoms(state, settings, rows, key)
        advantages = values_to_come(constraints, targets, budget) - values_to_come(constraints, baseline, budget)
        return jnp.moveaxis(advantages, 0, -1)

    def _values(
        self,
        state: LearnerState,
        settings: Settings,
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        key: PRNGKeyArray,
    ) -> Float[Array, " 1+C"]:
        """(J_R, J_C1, ...) of the current policy at the unit's betas, by the configured estimator."""
        if self.config.estimator == "episodes":
            sampled, ended = self._finished(settings, unit)
            estimated = self._critic_values(state, settings, unit, initial_observation, "shifted", key)
            return jnp.where(ended > 0, estimated.at[1:].set(sampled), estimated)
        return self._critic_values(state, settings, unit, initial_observation, self.config.estimator, key)

    def _finished(self, settings: Settings, unit: Chunk) -> tuple[Float[Array, " C"], Float[Array, ""]]:
        """Mean E[g_beta(D)] + I of the episodes that ended in a unit (zero without any), and their number."""
        constraints = settings.constraints
        beta = constraints.beta(unit.delta)
        total = jnp.moveaxis(unit.cost_so_far + unit.discount[:, None] * unit.costs, -1, 0)
        risks = constraints.g(total[..., None], beta)[..., 0] + constraints.conjugate_integral(beta)
        ended = unit.done.astype(total.dtype)
        return (risks * ended).sum(-1) / jnp.maximum(ended.sum(), 1.0), ended.sum()

    def _critic_values(
        self,
        state: LearnerState,
        settings: Settings,
        unit: Chunk,
        initial_observation: Float[Array, "N O"],
        estimator: str,
        key: PRNGKeyArray,
    ) -> Float[Array, " 1+C"]:
        rows = rows_of(unit)
        if estimator == "initial":
            rows = self._initial_rows(initial_observation, rows.delta[: initial_observation.shape[0]])
        shifted = estimator != "visited"
        values = self._values_at(state, settings, rows, shifted=shifted, key=key)
        # E[g(D_t + b_t Z(s_t))] is the same for every t. Early states say most about the current policy: late ones
        # carry costs that older policies ran up.
        weights = rows.discount if shifted else jnp.ones_like(rows.discount)
        return values @ (weights / weights.sum())

    def _values_at(
        self,
        state: LearnerState,
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


def values_to_come(
    constraints: Constraints, atoms: Float[Array, "S ... K"], budget: Float[Array, "C ... M-1"]
) -> Float[Array, "S ..."]:
    """E[Z_R] and E[g_budget(Z_i)]: what an action can still change of J_R and J_Ci, divided by b."""
    return jnp.concatenate([atoms[:1].mean(-1), constraints.g(atoms[1:], budget).mean(-1)])
