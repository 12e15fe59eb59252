"""The networks of one state together: what policy and critics see, and what critics say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.learning.actions import Actions
from tailsafe.learning.batches import AugmentedStates, states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import Constraints
from tailsafe.learning.networks import Critics, Policy, pooled
from tailsafe.learning.normalizer import Normalizer

# Beside the features of a state: an action, nothing, or what the policy returns there.
CriticInput = Literal["action", "state", "outputs"]
# Of the cost so far, in units of the limit.
_LARGEST_SHARE_PAID = 10.0


@dataclass(frozen=True)
class ActorCritic:
    """Policy and critics with all that their inputs and outputs are scaled by.

    normalizer: None where observations are seen as they are. clip: of normalised ones. augmented: whether networks see
    (D, b). critic_input: what critics see beside the features of a state.
    """

    policy: Policy
    critics: Critics
    normalizer: Normalizer | None
    constraints: Constraints
    actions: Actions
    clip: float
    augmented: bool
    critic_input: CriticInput

    @property
    def largest_return(self) -> Float[Array, " S-1"]:
        """Where the quantiles of the cost critics are cut."""
        return self.constraints.largest_return[: self.critics.signals - 1]

    def features(self, states: AugmentedStates) -> Float[Array, "... i"]:
        """What networks see of an (augmented) state and a beta."""
        parts = [states.observation if self.normalizer is None else self.normalizer(states.observation, self.clip)]
        if self.augmented:
            limit = self.constraints.limits(states.delta)
            scale = jnp.where(limit > 0, limit, self.constraints.largest_return)
            parts += [jnp.minimum(states.cost_so_far / scale, _LARGEST_SHARE_PAID), states.discount[..., None]]
        return jnp.concatenate([*parts, self.constraints.shown(states.delta)], axis=-1)

    def act(self, features: Float[Array, "... i"], key: PRNGKeyArray) -> tuple[Array, Array]:
        """The policy's outputs (..., D) and a raw action (..., A) drawn from them."""
        outputs = self.policy(features)
        return outputs, self.actions.sample(outputs, self.actions.noise(key, outputs.shape[:-1]))

    def state_inputs(self, features: Float[Array, "... i"], policy: Policy | None = None) -> Float[Array, "... j"]:
        """What critics of states see; the input `outputs` is that of `policy`, the current one if not given."""
        if self.critic_input == "state":
            return features
        return jnp.concatenate([features, self.actions.shown((policy or self.policy)(features))], axis=-1)

    def inputs_of_steps(self, steps: Chunk) -> Float[Array, "... j"]:
        """What critics see of the steps taken."""
        features = self.features(states_of(steps))
        if self.critic_input == "action":
            return jnp.concatenate([features, self.actions.embed(steps.raw_action)], axis=-1)
        return self.state_inputs(features)

    def atoms(self, inputs: Float[Array, "... B j"]) -> Float[Array, "S B K"]:
        """Atoms of every signal for inputs (B, j), or (S, B, j): its own for every signal."""
        return pooled(self.critics(inputs, self.largest_return))

    def atoms_at(self, states: AugmentedStates, key: PRNGKeyArray | None = None) -> Float[Array, "S ... K"]:
        """Atoms of every signal at states, under the current policy.

        key: for critics of actions, which see a fresh one.
        """
        features = self.features(states)
        if self.critic_input == "action":
            assert key is not None
            _, raw = self.act(features, key)
            inputs = jnp.concatenate([features, self.actions.embed(raw)], axis=-1)
        else:
            inputs = self.state_inputs(features)
        atoms = self.atoms(inputs.reshape(-1, inputs.shape[-1]))
        return atoms.reshape(atoms.shape[0], *inputs.shape[:-1], -1)
