"""Environments of Brax, MuJoCo Playground and gymnax as `JaxEnv`. None of them is imported: objects are passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from tailsafe.envs.jax_env import JaxEnv


class BraxEnv(JaxEnv):
    """A Brax or MuJoCo Playground environment.

    Args:
      env: as `brax.envs.get_environment(name)` or `mujoco_playground.registry.load(name)` builds it, without wrappers.
      cost: from the state after a step to its cost, a number or a vector; by default `state.info["cost"]`.
      episode_length: steps until an episode is truncated.
      observation: which observation the policy sees, where there are several (Playground's `state`).
    """

    def __init__(
        self,
        env: Any,
        cost: Callable[[Any], Any] = lambda state: state.info["cost"],
        *,
        cost_names: Sequence[str] | None = None,
        largest_costs: Sequence[float] | None = None,
        episode_length: int | None = 1000,
        observation: str = "state",
    ) -> None:
        self._env, self._cost, self._observation = env, cost, observation
        self.cost_names, self.largest_costs = cost_names, largest_costs  # type: ignore[misc, assignment]
        self.episode_length = episode_length
        shape = jax.eval_shape(lambda key: self._seen(env.reset(key)), jax.random.key(0)).shape
        self.observation_space = spaces.Box(-np.inf, np.inf, shape)
        self.action_space = spaces.Box(-1.0, 1.0, (int(env.action_size),))

    def reset(self, key: Any) -> tuple[Any, Any]:
        """A first state and its observation."""
        state = self._env.reset(key)
        return state, self._seen(state)

    def step(self, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One step."""
        state = self._env.step(state, action)
        return state, self._seen(state), state.reward, self._cost(state), state.done > 0

    def _seen(self, state: Any) -> Any:
        return state.obs[self._observation] if hasattr(state.obs, "keys") else state.obs


class GymnaxEnv(JaxEnv):
    """A gymnax environment.

    Args:
      env, params: as `gymnax.make(name)` returns them.
      cost: from (state, action, next state) to the step's cost, a number or a vector.
      episode_length: steps until an episode is truncated; by default what `params` says.

    gymnax calls an episode done when its time is up, too. Here that is a truncation: something would have followed.
    """

    def __init__(
        self,
        env: Any,
        params: Any,
        cost: Callable[[Any, Any, Any], Any],
        *,
        cost_names: Sequence[str] | None = None,
        largest_costs: Sequence[float] | None = None,
        episode_length: int | None = None,
    ) -> None:
        self._env, self._params, self._cost = env, params, cost
        self.cost_names, self.largest_costs = cost_names, largest_costs  # type: ignore[misc, assignment]
        self._limit = own = getattr(params, "max_steps_in_episode", None)
        self._endless = None if own is None else params.replace(max_steps_in_episode=np.iinfo(np.int32).max)
        self.episode_length = episode_length if episode_length is not None else None if own is None else int(own)
        self.observation_space = _space(env.observation_space(params))
        self.action_space = _space(env.action_space(params))

    def reset(self, key: Any) -> tuple[Any, Any]:
        """A first state and its observation."""
        for_reset, key = jax.random.split(key)
        observation, state = self._env.reset_env(for_reset, self._params)
        return (state, key), observation

    def step(self, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One step, without gymnax's own reset."""
        before, key = state
        for_step, key = jax.random.split(key)
        observation, after, reward, done, _ = self._env.step_env(for_step, before, action, self._params)
        return (after, key), observation, reward, self._cost(before, action, after), self._terminated(after, done)

    def _terminated(self, after: Any, done: Any) -> Any:
        """What has ended by more than the time that was up."""
        done = jnp.asarray(done, bool)
        if self._endless is None:
            return done
        otherwise = jnp.asarray(self._env.is_terminal(after, self._endless), bool)
        return jnp.where(after.time >= self._limit, otherwise, done)


def _space(space: Any) -> Any:
    """gymnax's spaces as Gymnasium's."""
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    shape = tuple(space.shape)
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
    return spaces.Box(low, high, shape, np.float32)
