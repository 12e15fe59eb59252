"""SDPO: state-wise risk through critics that see the policy's outputs, with a log barrier.

Critics Y(s, outputs of the policy at s) carry the gradient of the risk into the policy. The risk of every state by
itself is averaged over states: less than the risk of the whole, so limits can be broken where start states differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.learner import Metrics
from tailsafe.algorithms.ppo import CriticPpoConfig, PpoLearner, PpoSettings, PpoState, Surrogate
from tailsafe.algorithms.registry import Algorithm
from tailsafe.fields import scalar
from tailsafe.learning.batches import Rows, rows_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.networks import Policy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SdpoSettings(PpoSettings):
    """Of SDPO."""

    barrier: Float[Array, ""] = scalar(
        5.0, "The log barrier counts with 1 / barrier.", part="constraints", within="(0, inf)"
    )


class Sdpo(PpoLearner[CriticPpoConfig]):
    """Reward by PPO within the limits; beyond them the first risk that exceeds its own is lowered alone."""

    @property
    def critic_extra(self) -> int:
        return self.actions.output_size

    def init(self, key: PRNGKeyArray, settings: SdpoSettings) -> PpoState:
        return PpoState(**self._ppo_beginning(key, settings))

    def _state_inputs(self, state: Any, settings: Any, rows: Rows) -> Float[Array, "... i"]:
        features = self._features(state, settings, rows)
        return jnp.concatenate([features, self.actions.shown(state.policy(features))], axis=-1)

    def _advantage(self, state: PpoState, settings: SdpoSettings, segments: Chunk) -> Float[Array, "T N"]:
        return self._reward_advantage(state, settings, segments)

    def state_risks(
        self, state: PpoState, settings: SdpoSettings, policy: Policy, features: Float[Array, "B i"]
    ) -> Float[Array, " C"]:
        """Mean over states of the risk of each, with gradients through the policy's outputs."""
        inputs = jnp.concatenate([features, self.actions.shown(policy(features))], axis=-1)
        return settings.constraints.state_wise(self._atoms(state, settings, inputs)[1:]).mean(-1)

    def _loss(
        self,
        state: PpoState,
        settings: SdpoSettings,
        policy: Policy,
        batch: Surrogate,
        initial: Float[Array, "N i"],
        noise: Float[Array, "B A"],
    ) -> Float[Array, ""]:
        risks = self.state_risks(state, settings, policy, batch.features)
        value = risks
        if self.config.estimator == "initial":
            # Initial states say how large the risk is; all states, as many as an episode has, say where it comes from.
            level = jax.lax.stop_gradient(self.state_risks(state, settings, policy, initial))
            value = level + settings.horizon * (risks - jax.lax.stop_gradient(risks))
        room = settings.target - value
        # log(room + 1e-8) where there is room; the other branch must not make its gradient infinite.
        barrier = -jnp.log(jnp.where(room > 0, room, 1.0) + 1e-8).sum() / settings.barrier
        within = super()._loss(state, settings, policy, batch, initial, noise) + barrier
        first = jnp.argmax(room < 0)
        loss: Array = jnp.where((room < 0).any(), value[first], within)
        return loss

    def _dual(self, state: PpoState, settings: SdpoSettings, segments: Chunk, initial: Rows) -> tuple[Any, Metrics]:
        rows = rows_of(segments) if self.config.estimator == "visited" else initial
        features = self._features(state, settings, rows)
        risks = self.state_risks(state, settings, state.policy, features.reshape(-1, features.shape[-1]))
        return state, {"sub_risk": risks, "violated": (risks > settings.target).any().astype(risks.dtype)}


ALGORITHM = Algorithm(Sdpo, CriticPpoConfig, SdpoSettings)
