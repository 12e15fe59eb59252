"""WCSAC with quantile critics: soft actor-critic whose costs are weighed by learned multipliers.

Off-policy: gradient steps on minibatches of single transitions from a large memory. The risk of every state by itself
is averaged over states. With discrete actions the expectations over actions in the steps of policy and multipliers are
exact; targets draw an action. Minibatches are drawn with replacement, from the first chunk on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.common import remember
from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.algorithms.registry import Algorithm
from tailsafe.algorithms.state import PRECISIONS, LearnerConfig, LearnerSettings, LearnerState
from tailsafe.fields import scalar, setting
from tailsafe.learning.actions import DiscreteActions
from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import AugmentedStates, initial_states, next_states, states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.critics import ADAM, clipped_adam, critic_optimizer, quantile_loss
from tailsafe.learning.networks import Critics, Policy

# Logarithms of temperature and multipliers stay within this.
_LARGEST_LOG = 8.0
# Entropy that is asked of discrete actions, as a share of the largest.
_DISCRETE_SHARE = 0.03


@dataclass(frozen=True)
class WcsacConfig(LearnerConfig):
    """Of WCSAC."""

    chunk_steps: int = 20
    replay_chunks: int = 10_000
    policy_iterations: int = setting(10, "Gradient steps of policy and critics per update.", part="policy", main=True)
    minibatch: int = setting(256, "Transitions of one gradient step.", part="sizes")
    policy_clip: float = setting(1.0, "Largest norm of the policy's gradient.", part="policy", within="(0, inf]")
    entropy_target: float | None = setting(
        None,
        "The entropy that the temperature keeps; none: minus the number of actions, or 3 % of the largest for discrete "
        "ones.",
        part="policy",
    )
    estimator: Literal["visited", "initial"] = setting(
        "visited",
        "How the risks are estimated: by the critics at all visited states as if initial, or at initial ones.",
        part="constraints",
        main=True,
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WcsacSettings(LearnerSettings):
    """Of WCSAC: learning rates, and how fast the target critics follow."""

    policy_rate: Float[Array, ""] = scalar(
        3e-5, "Learning rate of the policy (Adam).", part="policy", within="(0, inf)", main=True
    )
    temperature_rate: Float[Array, ""] = scalar(
        1e-3, "Learning rate of the temperature.", part="policy", within="[0, inf)"
    )
    multiplier_rate: Float[Array, ""] = scalar(
        0.01, "Learning rate of the multipliers.", part="constraints", within="[0, inf)", main=True
    )
    polyak: Float[Array, ""] = scalar(
        0.005, "Share of the new critics in their target copies, per step.", part="critics", within="(0, 1]"
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WcsacState(LearnerState):
    """With target copies of the critics, and the logarithms of the temperature () and of the multipliers (C,)."""

    target_critics: Critics
    policy_optimizer: Any
    log_temperature: Float[Array, ""]
    temperature_optimizer: Any
    log_multiplier: Float[Array, " C"]
    multiplier_optimizer: Any


class Wcsac(Learner[WcsacConfig]):
    """Soft actor-critic with a multiplier for every risk."""

    not_for_acting = ("target_critics", "policy_optimizer", "temperature_optimizer", "multiplier_optimizer")

    @property
    def entropy_target(self) -> float:
        """What the temperature keeps the entropy at."""
        if self.config.entropy_target is not None:
            return self.config.entropy_target
        if isinstance(self.actions, DiscreteActions):
            return _DISCRETE_SHARE * math.log(self.actions.size)
        return -float(self.actions.size)

    @property
    def soft(self) -> bool:
        """Whether entropy counts; a fixed deviation leaves nothing to learn about it."""
        return self.config.fixed_log_std is None

    def init(self, key: PRNGKeyArray, settings: WcsacSettings) -> WcsacState:
        fields = self.initial_fields(key, settings)
        nothing = jnp.zeros(self.num_costs)
        return WcsacState(
            **fields,
            target_critics=jax.tree.map(jnp.copy, fields["critics"]),
            policy_optimizer=clipped_adam(self.config.policy_clip).init(eqx.filter(fields["policy"], eqx.is_array)),
            log_temperature=jnp.zeros(()),
            temperature_optimizer=ADAM.init(jnp.zeros(())),
            log_multiplier=nothing,
            multiplier_optimizer=ADAM.init(nothing),
        )

    def update(
        self, state: WcsacState, settings: WcsacSettings, chunk: Chunk, key: PRNGKeyArray
    ) -> tuple[WcsacState, Metrics]:
        """Remember a chunk, then take gradient steps on minibatches. The key is used up."""
        state = remember(state, chunk, normalize=self.config.normalize)

        # The memory does not change here: it stays outside of the loop.
        replay = state.replay

        def step(carry: Any, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            for_batch, for_rest = jax.random.split(key)
            return self.improve(carry, settings, replay.rows(for_batch, self.config.minibatch), for_rest)

        keys = jax.random.split(key, self.config.policy_iterations)
        with jax.default_matmul_precision(PRECISIONS[self.config.precision].products):
            without: Any = replace(state, replay=None)  # type: ignore[arg-type]
            moved, metrics = jax.lax.scan(step, without, keys)
        state = replace(moved, replay=replay, updates=state.updates + 1)
        return state, jax.tree.map(lambda leaf: leaf.mean(0), metrics)

    def improve(
        self, state: WcsacState, settings: WcsacSettings, batch: Chunk, key: PRNGKeyArray
    ) -> tuple[WcsacState, Metrics]:
        """One gradient step of everything on a minibatch: critics, policy, temperature, multipliers."""
        for_target, for_policy = jax.random.split(key)
        targets = self.one_step_targets(state, settings, batch, for_target)
        state, losses = self.step_critics(state, settings, batch, targets)
        networks = self.networks(state, settings)
        state, policy_metrics, risks = self.step_policy(state, settings, batch, for_policy)
        if self.config.estimator == "initial":
            at_start = initial_states(batch.initial_observation, batch.delta, self.num_costs)
            risks = state_wise_values(networks, networks.policy, at_start, for_policy)[0][1:].mean(-1)
        state = self.step_temperature(state, settings, policy_metrics["entropy"])
        state = step_multipliers(state, settings, risks)
        metrics = {"reward_critic_loss": losses[0], "cost_critic_loss": losses[1:], "sub_risk": risks}
        return state, metrics | policy_metrics | {"multiplier": jnp.exp(state.log_multiplier)}

    def one_step_targets(
        self, state: WcsacState, settings: WcsacSettings, batch: Chunk, key: PRNGKeyArray
    ) -> Float[Array, "S B K"]:
        """x + gamma (1 - terminated) Z_target(s', a'); the reward's with -temperature log pi(a' | s') inside."""
        networks = replace(self.networks(state, settings), critics=state.target_critics)
        features = networks.features(next_states(batch, settings.gamma))
        outputs, raw = networks.act(features, key)
        atoms = networks.atoms(jnp.concatenate([features, self.actions.embed(raw)], axis=-1))
        if self.soft:
            surprise = jnp.exp(state.log_temperature) * self.actions.log_prob(outputs, raw)
            atoms = atoms.at[0].add(-surprise[:, None])
        signals = jnp.concatenate([batch.reward[:, None], batch.costs], axis=-1).T
        return signals[..., None] + settings.gamma * (1.0 - batch.terminated)[:, None] * atoms

    def step_critics(
        self, state: WcsacState, settings: WcsacSettings, batch: Chunk, targets: Float[Array, "S B K"]
    ) -> tuple[WcsacState, Float[Array, " S"]]:
        """One step of quantile regression; target critics follow."""
        networks = self.networks(state, settings)
        features = networks.inputs_of_steps(batch)
        dtype = PRECISIONS[self.config.precision].critics

        def loss(critics: Critics) -> tuple[Array, Array]:
            quantiles = critics(features, networks.largest_return, dtype)
            apart = jax.vmap(lambda q, t: quantile_loss(q[None], t[None]))(quantiles, targets)
            return apart.sum(), apart

        gradients, losses = jax.grad(loss, has_aux=True)(state.critics)
        updates, optimizer = critic_optimizer(self.config.critic_clip).update(gradients, state.critic_optimizer)
        critics = eqx.apply_updates(state.critics, jax.tree.map(lambda step: -settings.critic_rate * step, updates))
        lagging = jax.tree.map(lambda old, new: old + settings.polyak * (new - old), state.target_critics, critics)
        return replace(state, critics=critics, critic_optimizer=optimizer, target_critics=lagging), losses

    def step_policy(
        self, state: WcsacState, settings: WcsacSettings, batch: Chunk, key: PRNGKeyArray
    ) -> tuple[WcsacState, Metrics, Float[Array, " C"]]:
        """One step along reward, risks times multipliers, and entropy. Also the risks at the minibatch's states."""
        networks = self.networks(state, settings)
        temperature = jnp.exp(state.log_temperature) if self.soft else jnp.zeros(())

        def loss(policy: Policy) -> tuple[Array, tuple[Array, Array]]:
            values, entropy = state_wise_values(networks, policy, states_of(batch), key)
            values, entropy = values.mean(-1), entropy.mean()
            weighed = jnp.exp(state.log_multiplier) @ values[1:]
            return weighed - values[0] - temperature * entropy, (values, entropy)

        gradients, (values, entropy) = jax.grad(loss, has_aux=True)(state.policy)
        updates, optimizer = clipped_adam(self.config.policy_clip).update(gradients, state.policy_optimizer)
        policy = eqx.apply_updates(state.policy, jax.tree.map(lambda step: -settings.policy_rate * step, updates))
        metrics = {"entropy": entropy, "temperature": temperature, "objective": values[0]}
        return replace(state, policy=policy, policy_optimizer=optimizer), metrics, values[1:]

    def step_temperature(self, state: WcsacState, settings: WcsacSettings, entropy: Float[Array, ""]) -> WcsacState:
        """Descend exp(x) (entropy - target): the temperature grows while there is too little entropy."""
        if not self.soft:
            return state
        gradient = jnp.exp(state.log_temperature) * (entropy - self.entropy_target)
        step, memory = ADAM.update(gradient, state.temperature_optimizer)
        moved = _bounded(state.log_temperature - settings.temperature_rate * step)
        return replace(state, log_temperature=moved, temperature_optimizer=memory)


def state_wise_values(
    networks: ActorCritic, policy: Policy, states: AugmentedStates, key: PRNGKeyArray
) -> tuple[Float[Array, "1+C B"], Float[Array, " B"]]:
    """E[Z_R], the risk of every cost, and the entropy at each state, differentiable in the policy."""
    features, actions = networks.features(states), networks.actions
    outputs = policy(features)
    noise = actions.noise(key, outputs.shape[:-1])

    def of(chosen: Float[Array, "B A"]) -> Float[Array, "1+C B"]:
        atoms = networks.atoms(jnp.concatenate([features, chosen], axis=-1))
        return jnp.concatenate([atoms[:1].mean(-1), networks.constraints.state_wise(atoms[1:])])

    return actions.expectation(outputs, noise, of), actions.entropy(outputs, noise)


def step_multipliers(state: WcsacState, settings: WcsacSettings, risks: Float[Array, " C"]) -> WcsacState:
    """Descend exp(y) (d - risk): a multiplier grows while its risk exceeds the limit."""
    gradient = jnp.exp(state.log_multiplier) * (settings.target - risks)
    step, memory = ADAM.update(gradient, state.multiplier_optimizer)
    moved = _bounded(state.log_multiplier - settings.multiplier_rate * step)
    return replace(state, log_multiplier=moved, multiplier_optimizer=memory)


def _bounded(log: Float[Array, ...]) -> Float[Array, ...]:
    return jnp.clip(log, -_LARGEST_LOG, _LARGEST_LOG)


ALGORITHM = Algorithm(Wcsac, WcsacConfig, WcsacSettings)
