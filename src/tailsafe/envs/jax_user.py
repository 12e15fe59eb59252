"""Batches of a user's JAX environment, as a learner takes them: inside `jit`, `vmap` and `scan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.envs.copies import Layout, check_numbers
from tailsafe.envs.declarations import Costs, declared_costs
from tailsafe.envs.finding import Source
from tailsafe.envs.jax_env import JaxEnv
from tailsafe.envs.spaces import action_space, observation_space
from tailsafe.errors import InputError, place_of
from tailsafe.learning.chunks import Transition
from tailsafe.learning.interface import EnvironmentSpec, JaxEnvironments
from tailsafe.learning.spaces import ActionDescription, ObservationSpace


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UserState:
    """inner: the environments' own states. observation (N, O); steps (N,): of the running episodes. extremes (2, C):
    the least and the most that a step has cost so far, for `check`.
    """

    inner: Any
    observation: Float[Array, "N O"]
    steps: Int[Array, " N"]
    key: PRNGKeyArray
    extremes: Float[Array, "2 C"]


class JaxUserEnvironments:
    """`num_envs` copies of a `JaxEnv`."""

    def __init__(self, env: JaxEnv, num_envs: int, name: str) -> None:
        self.num_envs = num_envs
        self._env = env
        self._name = name
        self.layout = self._layout()
        self.spec = spec_of(self.layout, name)

    def init(self, key: PRNGKeyArray) -> UserState:
        """First episodes."""
        for_reset, key = jax.random.split(key)
        inner, observation = self._reset(for_reset)
        nothing = jnp.zeros((2, len(self.layout.costs)))
        return UserState(inner, observation, jnp.zeros(self.num_envs, jnp.int32), key, nothing)

    def observe(self, state: UserState) -> Float[Array, "N O"]:
        """The latest observations."""
        return state.observation

    def step(self, state: UserState, actions: Float[Array, "N A"]) -> tuple[UserState, Transition]:
        """One step everywhere, and the next episode where one ended."""
        for_reset, key = jax.random.split(state.key)
        native = decode(self.layout.actions, actions)
        inner, seen, reward, cost, terminated = jax.vmap(self._env.step)(state.inner, native)
        last = encode(self.layout.observations, seen, self.num_envs)
        terminated = jnp.broadcast_to(jnp.asarray(terminated, bool), (self.num_envs,))
        steps = state.steps + 1
        length = self.layout.episode_length
        truncated = jnp.zeros_like(terminated) if length is None else (steps >= length) & ~terminated
        done = terminated | truncated

        def renewed() -> tuple[Any, Array]:
            fresh = self._reset(for_reset)
            mixed = jax.tree.map(lambda new, old: _renewed(done, new, old), fresh, (inner, last))
            return mixed[0], mixed[1]

        # Resets can be dear; in most steps no episode ends.
        inner, observation = jax.lax.cond(done.any(), renewed, lambda: (inner, last))
        costs = jnp.asarray(cost, float).reshape(self.num_envs, -1)
        least, most = state.extremes
        extremes = jnp.stack([jnp.minimum(least, costs.min(0)), jnp.maximum(most, costs.max(0))])
        after = UserState(inner, observation, jnp.where(done, 0, steps), key, extremes)
        reward = jnp.asarray(reward, float).reshape(self.num_envs)
        return after, Transition(last, observation, reward, costs, terminated, truncated)

    def check(self, state: UserState) -> None:
        """An `InputError` if a step so far cost what none may; state: of one run, or of several."""
        extremes = np.asarray(state.extremes).reshape(-1, len(self.layout.costs))
        try:
            check_numbers(self.layout.costs, np.zeros(1), extremes)
        except InputError as error:
            raise InputError(f"environment {self._name}: {error}") from None

    def _reset(self, key: PRNGKeyArray) -> tuple[Any, Float[Array, "N O"]]:
        inner, seen = jax.vmap(self._env.reset)(jax.random.split(key, self.num_envs))
        # Strong types, so that a step gives back what it was given.
        inner = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), inner)
        return inner, encode(self.layout.observations, seen, self.num_envs)

    def _layout(self) -> Layout:
        """From the spaces, and one step of one environment to see the costs."""
        env = self._env
        for attribute in ("observation_space", "action_space"):
            if getattr(env, attribute, None) is None:
                raise InputError(f"environment {self._name}: it has no {attribute}")
        try:
            observations, actions = observation_space(env.observation_space), action_space(env.action_space)
            number = _probe(env, observations, actions)
            costs = declared_costs(env, number.size)
            check_numbers(costs, np.zeros(1), number[None])
        except InputError as error:
            raise InputError(f"environment {self._name}: {error}") from None
        return Layout(observations, actions, costs, env.episode_length)


class JaxStage:
    """Environments that live in JAX, stepped from outside; what they answer is checked as a Gymnasium one's is.

    source: of a user's.
    """

    engine: str | None = None

    def __init__(self, environments: JaxEnvironments, source: Source | None = None) -> None:
        self.source = source
        self.num_envs = environments.num_envs
        self.spec = environments.spec
        self._environments = environments
        self._step = jax.jit(environments.step)
        self._state: Any = None
        self._costs = Costs(environments.spec.cost_names, environments.spec.largest_costs)

    def reset(self, seed: int) -> Float[NDArray[Any], "N O"]:
        self._state = jax.jit(self._environments.init)(jax.random.key(seed))
        return np.asarray(self._environments.observe(self._state))

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        self._state, transition = self._step(self._state, actions)
        moved: Transition = jax.tree.map(np.asarray, transition)
        try:
            check_numbers(self._costs, np.asarray(moved.reward), np.asarray(moved.costs))
        except InputError as error:
            raise InputError(f"environment {self.spec.name}: {error}") from None
        return moved

    def close(self) -> None:
        """Nothing to close."""


def spec_of(layout: Layout, name: str) -> EnvironmentSpec:
    """What a learner must know of a user's environment."""
    return EnvironmentSpec(
        name=name,
        observation_size=layout.observations.size,
        actions=layout.actions.build(),
        cost_names=layout.costs.names,
        episode_length=layout.episode_length,
        largest_costs=layout.costs.largest,
        observations=layout.observations,
        native_actions=layout.actions,
    )


def encode(space: ObservationSpace, observation: Any, rows: int) -> Float[Array, "N O"]:
    """As `ObservationSpace.rows`, inside of `jit`; observation: arrays with a leading axis N."""
    columns = []
    for part in space.parts:
        values = jnp.asarray(part.find(observation)).reshape(rows, -1)
        if part.counts is None:
            columns.append(values.astype(float))
            continue
        hot = [jax.nn.one_hot(values[:, i] - part.starts[i], count) for i, count in enumerate(part.counts)]
        columns.append(jnp.concatenate(hot, axis=1))
    return columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1)


def decode(space: ActionDescription, embedded: Float[Array, "N A"]) -> Array:
    """As `ActionDescription.decode`, inside of `jit`."""
    rows = embedded.shape[0]
    if space.low is None or space.high is None:
        index, table = jnp.argmax(embedded, axis=-1), space.combinations()
        return space.start + index if table is None else jnp.asarray(table)[index].reshape(rows, *(space.shape or ()))
    low, high = jnp.asarray(space.low), jnp.asarray(space.high)
    scaled = low + (embedded + 1) / 2 * (high - low)
    scaled = jnp.clip(jnp.rint(scaled) if space.whole else scaled, low, high)
    shape = (space.size,) if space.shape is None else space.shape
    return scaled.reshape(rows, *shape).astype(jnp.int32 if space.whole else scaled.dtype)


def _probe(env: JaxEnv, observations: ObservationSpace, actions: ActionDescription) -> NDArray[np.float64]:
    """The costs of one step, with everything that a step returns looked at."""
    action = decode(actions, jnp.zeros((1, actions.size)))[0]

    def both(key: Any) -> tuple[Any, Any, Any]:
        state, first = env.reset(key)
        return state, first, env.step(state, action)

    try:
        state, first, answer = jax.jit(both)(jax.random.key(0))
    except (Exception, SystemExit) as error:
        raise InputError(f"reset and step do not compile: {place_of(error)}") from error
    if not (isinstance(answer, tuple) and len(answer) == 5):
        raise InputError("step must return (state, observation, reward, cost, terminated)")
    after, *rest = answer
    second, reward, cost, terminated = jax.device_get(rest)
    for where, seen in (("reset", first), ("step", second)):
        rows = observations.rows([jax.device_get(seen)])
        if not np.isfinite(rows).all():
            raise InputError(f"{where} returned an observation with NaN or infinity")
    if _shapes(state) != _shapes(after):
        raise InputError("step returned a state of another structure, shape or type than reset did")
    if np.shape(reward) or np.shape(terminated):
        raise InputError(
            f"the reward has shape {np.shape(reward)} and terminated {np.shape(terminated)}; both must be ()"
        )
    number = np.asarray(cost, np.float64)
    if number.ndim > 1 or number.size == 0:
        raise InputError(f"the cost must be a number or a vector, has shape {number.shape}")
    return np.atleast_1d(number)


def _shapes(tree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves]


def _renewed(done: Array, new: Array, old: Array) -> Array:
    """The new episodes' rows where the old ones are done. What all rows share, as MJX on Warp its contacts, stays."""
    if new.shape[:1] != done.shape:
        return old
    return jnp.where(done.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
