"""CVaR-CPO: a Lagrangian for CVaR with cost critics and a budget that shrinks along the episode.

The auxiliary variable beta, less what was paid, is the budget q_t = (beta - D_t) / gamma^t that is left. The risk to
come is W(s, q) = E[(Y_C(s) - q)_+], and along a path W_t = gamma W_{t+1}: a TD error without a reward.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from tailsafe.algorithms.learner import Metrics, following_rows
from tailsafe.algorithms.measures import only_cvar
from tailsafe.algorithms.ppo import CriticPpoConfig, Lagrangian, LagrangianSettings, LagrangianState, moved_dual
from tailsafe.algorithms.registry import Algorithm
from tailsafe.learning.advantages import discounted_suffix
from tailsafe.learning.batches import Rows, rows_of
from tailsafe.learning.chunks import Chunk
from tailsafe.risk.spectra import SpectralRisk


class CvarCpo(Lagrangian[CriticPpoConfig]):
    """Critics Y_R(s) and Y_C(s), multipliers, and auxiliary variables."""

    @classmethod
    def refusal(cls, config: CriticPpoConfig, measures: list[SpectralRisk]) -> str | None:
        return only_cvar("cvar_cpo", measures) or super().refusal(config, measures)

    def _left(self, state: LagrangianState, settings: LagrangianSettings, rows: Rows) -> Float[Array, "C T N"]:
        """What is left of the budget, q_+. Every episode is measured by the beta in force now."""
        beta = jnp.broadcast_to(
            state.beta.reshape(-1, *(1,) * (rows.discount.ndim + 1)), (self.num_costs, *rows.discount.shape, 1)
        )
        return settings.constraints.budget(beta, rows.cost_so_far, rows.discount)[..., 0]

    def _risk_advantages(
        self, state: LagrangianState, settings: LagrangianSettings, segments: Chunk
    ) -> Float[Array, "C T N"]:
        """GAE of W. With W = E[(Y - q_+)_+] + (-q)_+ the second parts differ by what a step paid beyond its budget.

        Written so, nothing grows like gamma^-t, and a terminated episode keeps what it has overspent.
        """
        now, later = rows_of(segments), following_rows(segments, settings)
        left, left_later = self._left(state, settings, now), self._left(state, settings, later)
        risk, risk_later = (
            jnp.maximum(self._state_atoms(state, settings, rows)[1:] - budget[..., None], 0.0).mean(-1)
            for rows, budget in ((now, left), (later, left_later))
        )
        overspent = jnp.maximum(jnp.moveaxis(segments.costs, -1, 0) - left, 0.0)
        errors = overspent + settings.gamma * (1.0 - segments.terminated) * risk_later - risk
        decay = settings.gamma * settings.trace
        done = jnp.broadcast_to(segments.done[:, None], (segments.done.shape[0], self.num_costs, *left.shape[2:]))
        return jnp.moveaxis(discounted_suffix(jnp.moveaxis(errors, 0, 1), done, decay), 1, 0)

    def _advantage(self, state: LagrangianState, settings: LagrangianSettings, segments: Chunk) -> Float[Array, "T N"]:
        risks = self._risk_advantages(state, settings, segments)
        penalty: Array = jnp.einsum("c,ctn->tn", state.multiplier, risks)
        return self._reward_advantage(state, settings, segments) - penalty

    def _dual(
        self, state: LagrangianState, settings: LagrangianSettings, segments: Chunk, initial: Rows
    ) -> tuple[Any, Metrics]:
        rows = rows_of(segments) if self.config.estimator == "visited" else initial
        atoms = self._state_atoms(state, settings, rows)[1:]
        return moved_dual(state, settings, atoms.reshape(self.num_costs, -1))


ALGORITHM = Algorithm(CvarCpo, CriticPpoConfig, LagrangianSettings)
