"""What an algorithm is: networks of given shapes, acting with them, and an update.

An algorithm adds what it keeps (`init`) and how it learns from a chunk (`update`), out of functions of
`tailsafe.learning`. A run's state is one pytree and `update` one pure function: `jit`, `vmap` over runs, checkpoints
and both kinds of environments come with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.algorithms.state import ENSEMBLE, LearnerConfig, LearnerSettings
from tailsafe.learning.actions import Actions
from tailsafe.learning.actor_critic import ActorCritic, CriticInput
from tailsafe.learning.batches import AugmentedStates
from tailsafe.learning.chunks import Chunk, Replay, Transition
from tailsafe.learning.critics import critic_optimizer
from tailsafe.learning.experience import Actor, as_chunk, record
from tailsafe.learning.interface import JaxEnvironments
from tailsafe.learning.networks import Critics, Policy
from tailsafe.learning.normalizer import Normalizer
from tailsafe.risk.spectra import SpectralRisk

Metrics = dict[str, Array]
Config = TypeVar("Config", bound=LearnerConfig)


class Learner(ABC, Generic[Config]):
    """An algorithm for one kind of task: sizes and actions are fixed, everything else is in the state.

    Learners that are made alike are equal: jitted functions take them as static arguments and are compiled once.
    """

    # What critics see beside the features of a state.
    critic_input: ClassVar[CriticInput] = "action"
    # Whether every cost has a critic.
    cost_critics: ClassVar[bool] = True
    # Fields of a state that acting does not need: handing them over at every step would cost more than acting.
    not_for_acting: ClassVar[tuple[str, ...]] = ()
    # Whether one policy can be learned for a range of limits.
    takes_range: ClassVar[bool] = False

    def __init__(self, config: Config, observation_size: int, actions: Actions, num_costs: int) -> None:
        self.config = config
        self.observation_size = observation_size
        self.actions = actions
        self.num_costs = num_costs
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
    def objection(cls, config: Config, measures: list[SpectralRisk]) -> str | None:
        """Why constraints with these measures cannot be learned, or None."""
        return None

    # --- what a run ships ---------------------------------------------------------------------------------------------

    def delta_width(self, settings: LearnerSettings) -> int:
        """Entries of what networks are conditioned on, see `Constraints`."""
        return 0

    def num_inputs(self, settings: LearnerSettings) -> int:
        """How many numbers networks see of that."""
        return 0

    def shared_delta(self, state: Any) -> Float[Array, "... n"]:
        """The increments of beta that a finished policy acts with; of a range of limits one row for each region."""
        return jnp.zeros(0)

    def shared_policy(self, state: Any) -> Policy:
        """The policy that a run ships."""
        policy: Policy = state.policy
        return policy

    # --- networks -----------------------------------------------------------------------------------------------------

    def initial_fields(self, key: PRNGKeyArray, settings: LearnerSettings) -> dict[str, Any]:
        """Fresh networks and an empty memory: the fields of `LearnerState`."""
        config, actions = self.config, self.actions
        for_policy, for_critics = jax.random.split(key)
        inputs = self.observation_size + self.num_inputs(settings) + (self.num_costs + 1 if config.augmented else 0)
        policy = Policy(
            for_policy,
            inputs,
            actions,
            config.policy_hidden,
            config.initialization,
            config.fixed_log_std,
            config.initial_log_std,
        )
        more = {"action": actions.size, "state": 0, "outputs": actions.output_size}[self.critic_input]
        critics = Critics(
            for_critics,
            inputs + more,
            1 + self.num_costs if self.cost_critics else 1,
            ENSEMBLE,
            config.quantiles,
            config.critic_hidden,
            config.initialization,
        )
        return {
            "policy": policy,
            "critics": critics,
            "critic_optimizer": critic_optimizer(config.critic_clip).init(eqx.filter(critics, eqx.is_array)),
            "normalizer": Normalizer.create(self.observation_size),
            "replay": Replay.create(self._empty_chunk(self.delta_width(settings)), config.replay_chunks),
            "updates": jnp.int32(0),
        }

    def _empty_chunk(self, width: int) -> Chunk:
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
            delta=jnp.zeros((steps, envs, width)),
            initial_observation=observation[0],
        )

    def networks(self, state: Any, settings: LearnerSettings) -> ActorCritic:
        """Policy and critics of a state, with what their inputs are scaled by."""
        return ActorCritic(
            policy=state.policy,
            critics=state.critics,
            normalizer=state.normalizer if self.config.normalize else None,
            constraints=settings.constraints,
            actions=self.actions,
            clip=self.config.clip_observation,
            augmented=self.config.augmented,
            critic_input=self.critic_input,
        )

    # --- collecting ---------------------------------------------------------------------------------------------------

    def acting(self, state: Any) -> Any:
        """The part of a state that acting needs."""
        unused = ("critics", "critic_optimizer", "replay", *self.not_for_acting)
        return replace(state, **dict.fromkeys(unused))

    def begin(self, state: Any, settings: Any, observation: Float[Array, "N O"], key: PRNGKeyArray) -> Actor:
        """Environments at the start of their first episodes, each with its beta."""
        return Actor.create(observation, self.draw_betas(state, settings, key), self.num_costs, self.config.window)

    def draw_betas(self, state: Any, settings: Any, key: PRNGKeyArray) -> Float[Array, "N n"]:
        """Increments of beta for every environment."""
        return jnp.zeros((self.config.num_envs, 0))

    def start_chunk(self, state: Any, settings: Any, actor: Actor, key: PRNGKeyArray) -> Actor:
        """Before the first step of a chunk."""
        return actor

    def act(self, state: Any, settings: Any, actor: Actor, key: PRNGKeyArray) -> tuple[Array, Array]:
        """A raw action and its log probability for every environment."""
        networks = self.networks(state, settings)
        states = AugmentedStates(actor.observation, actor.delta, actor.cost_so_far, actor.discount)
        outputs, raw = networks.act(networks.features(states), key)
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

    def rollout(
        self,
        state: Any,
        settings: Any,
        actor: Actor,
        environments: JaxEnvironments,
        env_state: Any,
        key: PRNGKeyArray,
    ) -> tuple[Actor, Any, Chunk]:
        """Collect a chunk from environments that live in JAX."""
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
