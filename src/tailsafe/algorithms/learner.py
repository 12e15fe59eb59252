"""What all algorithms share: networks and their inputs, acting, recording, TD(lambda) targets, fitting critics.

An algorithm adds what it keeps (`init`) and how it learns from a chunk (`update`). A run's state is one pytree and
`update` one pure function: `jit`, `vmap` over runs, checkpoints and both kinds of environments come with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.state import PRECISIONS, LearnerConfig, LearnerSettings, LearnerState, TraceSettings
from tailsafe.learning.actions import Actions
from tailsafe.learning.batches import Rows, as_segments, rows_of
from tailsafe.learning.chunks import Chunk, Replay, Transition
from tailsafe.learning.critics import critic_optimizer, fit_critics
from tailsafe.learning.experience import Actor, as_chunk, record
from tailsafe.learning.interface import JaxEnvironments
from tailsafe.learning.networks import Critics, Policy, pooled
from tailsafe.learning.normalizer import Normalizer
from tailsafe.learning.targets import LARGEST_RATIO, td_lambda
from tailsafe.risk.spectra import SpectralRisk

Metrics = dict[str, Array]
Config = TypeVar("Config", bound=LearnerConfig)


class Learner(ABC, Generic[Config]):
    """An algorithm for one kind of task: sizes and actions are fixed, everything else is in the state.

    Learners that are made alike are equal: jitted functions take them as static arguments and are compiled once.
    """

    def __init__(self, config: Config, observation_size: int, actions: Actions, num_costs: int) -> None:
        self.config = config
        self.observation_size = observation_size
        self.actions = actions
        self.num_costs = num_costs
        self._critic_optimizer = critic_optimizer(config.critic_clip)
        self._made_of = (type(self), config, observation_size, actions, num_costs)
        self._hash = hash(self._made_of)  # asked for at every control step

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Learner) and self._made_of == other._made_of)

    def __hash__(self) -> int:
        return self._hash

    @abstractmethod
    def init(self, key: PRNGKeyArray, settings: Any) -> Any:
        """The state before the first update."""

    @abstractmethod
    def update(self, state: Any, settings: Any, chunk: Chunk, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """Learn from a chunk. The key is used up."""

    @classmethod
    def refusal(cls, config: Config, measures: list[SpectralRisk]) -> str | None:
        """Why constraints with these measures cannot be learned, or None."""
        return None

    # --- what differs between kinds of learners -----------------------------------------------------------------------

    @property
    def signals(self) -> int:
        """How many critics there are: one of the reward, then one per cost."""
        return 1 + self.num_costs

    def num_betas(self, settings: LearnerSettings) -> int:
        """How many dual variables the networks see."""
        return 0

    def shared_delta(self, state: Any) -> Float[Array, " n"]:
        """The increments of beta that a finished policy acts with."""
        return jnp.zeros(0)

    def shared_policy(self, state: Any) -> Policy:
        """The policy that a run ships."""
        policy: Policy = state.policy
        return policy

    @property
    def critic_extra(self) -> int:
        """Width of what critics see beside the policy's inputs: an action, if not overridden."""
        return self.actions.size

    def acting(self, state: Any) -> Any:
        """The part of a state that acting needs: handing over the replay at every step would cost more than acting."""
        return replace(state, critics=None, critic_optimizer=None, replay=None)

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _beginning(self, key: PRNGKeyArray, settings: LearnerSettings) -> dict[str, Any]:
        """Fresh networks and an empty memory: the fields of `LearnerState`."""
        config = self.config
        for_policy, for_critics = jax.random.split(key)
        betas = self.num_betas(settings)
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
            inputs + self.critic_extra,
            self.signals,
            config.ensemble,
            config.quantiles,
            config.critic_hidden,
            config.initialization,
        )
        return {
            "policy": policy,
            "critics": critics,
            "critic_optimizer": self._critic_optimizer.init(eqx.filter(critics, eqx.is_array)),
            "normalizer": Normalizer.create(self.observation_size),
            "replay": Replay.create(self._empty_chunk(betas), config.replay_chunks),
            "updates": jnp.int32(0),
        }

    def begin(self, state: Any, settings: Any, observation: Float[Array, "N O"], key: PRNGKeyArray) -> Actor:
        """Environments at the start of their first episodes, each with its beta."""
        empty = jnp.zeros((observation.shape[0], self.num_betas(settings)))
        actor = Actor.create(observation, empty, self.num_costs, self.config.window)
        return replace(actor, delta=self._draw(state, settings, key))

    def _draw(self, state: Any, settings: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Increments of beta for every environment."""
        return jnp.zeros((self.config.num_envs, 0))

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

    # --- acting -------------------------------------------------------------------------------------------------------

    def act(self, state: Any, settings: Any, actor: Actor, key: PRNGKeyArray) -> tuple[Array, Array]:
        """A raw action and its log probability for every environment."""
        rows = Rows(actor.observation, actor.delta, actor.cost_so_far, actor.discount)
        outputs = state.policy(self._features(state, settings, rows))
        raw = self.actions.sample(outputs, self.actions.noise(key, outputs.shape[:-1]))
        return raw, self.actions.log_prob(outputs, raw)

    def record(
        self,
        state: Any,
        settings: Any,
        actor: Actor,
        choice: tuple[Array, Array],
        transition: Transition,
        key: PRNGKeyArray,
    ) -> tuple[Actor, Chunk]:
        """A row of the chunk, and the actor after the step."""
        return record(actor, *choice, transition, settings.gamma, actor.delta)

    def start_chunk(self, state: Any, settings: Any, actor: Actor, key: PRNGKeyArray) -> Actor:
        """Before the first step of a chunk."""
        return actor

    def rollout(
        self,
        state: Any,
        settings: Any,
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

    # --- networks -----------------------------------------------------------------------------------------------------

    def _received(self, state: Any, chunk: Chunk) -> Any:
        """The state with a new chunk in its memory and in its normaliser."""
        normalizer = state.normalizer.update(chunk.observation) if self.config.normalize else state.normalizer
        return replace(state, replay=state.replay.add(chunk), normalizer=normalizer)

    def _features(self, state: LearnerState, settings: LearnerSettings, rows: Rows) -> Float[Array, "... i"]:
        """What networks see of an (augmented) state and a beta."""
        parts = [state.normalizer(rows.observation, self.config.clip_observation)]
        if not self.config.normalize:
            parts = [rows.observation]
        if self.config.augmented:
            limit = settings.constraints.limit
            scale = jnp.where(limit > 0, limit, settings.constraints.largest_return)
            parts += [jnp.minimum(rows.cost_so_far / scale, 10.0), rows.discount[..., None]]
        return jnp.concatenate([*parts, rows.delta], axis=-1)

    def _largest_return(self, settings: LearnerSettings) -> Float[Array, " S-1"]:
        return settings.constraints.largest_return[: self.signals - 1]

    def _atoms(
        self, state: LearnerState, settings: LearnerSettings, inputs: Float[Array, "... B i"]
    ) -> Float[Array, "S B K"]:
        return pooled(state.critics(inputs, self._largest_return(settings)))

    def _atoms_at(
        self, state: LearnerState, settings: LearnerSettings, inputs: Float[Array, "... i"]
    ) -> Float[Array, "S ... K"]:
        """Atoms of every signal for inputs with any leading axes."""
        atoms = self._atoms(state, settings, inputs.reshape(-1, inputs.shape[-1]))
        return atoms.reshape(atoms.shape[0], *inputs.shape[:-1], -1)

    def _initial_rows(self, observation: Float[Array, "B O"], delta: Float[Array, "B n"]) -> Rows:
        count = observation.shape[0]
        return Rows(observation, delta, jnp.zeros((count, self.num_costs)), jnp.ones(count))

    def _sampled_atoms(
        self, state: LearnerState, settings: LearnerSettings, rows: Rows, key: PRNGKeyArray
    ) -> Float[Array, "S ... K"]:
        """Atoms of every signal at (s, a) with a fresh from the current policy."""
        features = self._features(state, settings, rows)
        outputs = state.policy(features)
        raw = self.actions.sample(outputs, self.actions.noise(key, outputs.shape[:-1]))
        return self._atoms_at(state, settings, jnp.concatenate([features, self.actions.embed(raw)], axis=-1))

    # --- critics ------------------------------------------------------------------------------------------------------

    def _next_atoms(
        self, state: LearnerState, settings: LearnerSettings, following: Rows, key: PRNGKeyArray
    ) -> Float[Array, "S ... K"]:
        """What targets bootstrap from, at the states after the steps."""
        return self._sampled_atoms(state, settings, following, key)

    def _critic_features(
        self, state: LearnerState, settings: LearnerSettings, segments: Chunk
    ) -> Float[Array, "... i"]:
        """What critics see of the steps taken."""
        actions = self.actions.embed(segments.raw_action)
        return jnp.concatenate([self._features(state, settings, rows_of(segments)), actions], axis=-1)

    def targets(
        self, state: LearnerState, settings: TraceSettings, segments: Chunk, key: PRNGKeyArray
    ) -> tuple[Float[Array, "S T B K"], Float[Array, "T B"]]:
        """TD(lambda) targets of all signals on segments (T, B), and the importance ratios of the actions taken."""
        config: Any = self.config
        outputs = state.policy(self._features(state, settings, rows_of(segments)))
        log_ratio = self.actions.log_prob(outputs, segments.raw_action) - segments.log_prob
        ratio = jnp.clip(jnp.exp(log_ratio), 0.0, LARGEST_RATIO)
        following = following_rows(segments, settings)
        atoms = jnp.sort(self._next_atoms(state, settings, following, key), axis=-1)
        signals = jnp.concatenate([segments.reward[..., None], segments.costs], axis=-1)[..., : self.signals]
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
            config.target_quantiles,
            config.projection,
        )
        targets = targets.reshape(*targets.shape[:2], *signals.shape[1:])
        return jnp.transpose(targets, (3, 0, 2, 1)), ratio

    def _fitted(
        self,
        state: Any,
        settings: TraceSettings,
        features: Float[Array, "T B i"],
        targets: Float[Array, "S T B K"],
        key: PRNGKeyArray,
    ) -> tuple[Any, Metrics]:
        """The state after quantile regression of the critics on the targets."""
        config: Any = self.config
        features = features.reshape(-1, features.shape[-1])
        wanted = targets.reshape(targets.shape[0], -1, targets.shape[-1])
        if config.critic_minibatches > 1:
            order = jax.random.permutation(key, features.shape[0])
            features, wanted = features[order], wanted[:, order]
        critics, optimizer, losses = fit_critics(
            state.critics,
            state.critic_optimizer,
            self._critic_optimizer,
            features,
            wanted,
            self._largest_return(settings),
            settings.critic_rate * settings.slowing(state.updates),
            config.critic_iterations,
            config.critic_minibatches,
            PRECISIONS[config.precision].critics,
        )
        metrics = {"reward_critic_loss": losses[0]} | ({"cost_critic_loss": losses[1:]} if self.signals > 1 else {})
        return replace(state, critics=critics, critic_optimizer=optimizer), metrics

    def _learned_critics(
        self, state: Any, settings: TraceSettings, batch: Chunk, key: PRNGKeyArray
    ) -> tuple[Any, Metrics]:
        """Targets from the current networks, then regression on them: for algorithms that need nothing in between."""
        for_targets, for_order = jax.random.split(key)
        segments = as_segments(batch)
        targets, _ = self.targets(state, settings, segments, for_targets)
        return self._fitted(state, settings, self._critic_features(state, settings, segments), targets, for_order)


def following_rows(segments: Chunk, settings: LearnerSettings) -> Rows:
    """The augmented states that the steps led to."""
    return Rows(
        segments.next_observation,
        segments.delta,
        segments.cost_so_far + segments.discount[..., None] * segments.costs,
        segments.discount * settings.gamma,
    )
