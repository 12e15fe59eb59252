"""Environments to play a saved policy in, found by the name that the policy carries."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.learning.chunks import Transition
from tailsafe.learning.environments import JaxEnvironments
from tailsafe.runs.description import PolicyDescription
from tailsafe.runs.policy import own_units
from tailsafe.tasks.base import task_units

# How many episodes run side by side at most. Environments that are Python objects gain nothing from more.
_MOST_BATCHED, _MOST_SINGLE = 128, 8


class Stage(Protocol):
    """The part of `HostEnvironments` that playing needs."""

    num_envs: int

    def reset(self, seed: int) -> Float[NDArray[Any], "N O"]:
        """Begin the first episodes of `seed`."""

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        """One step everywhere, leaves as NumPy arrays; ended episodes give way to new ones. actions: embedded."""

    def close(self) -> None: ...


def open_stage(
    description: PolicyDescription, episodes: int, environment: Callable[[], Any] | None = None, backend: str = "auto"
) -> Stage:
    """Environments for `episodes` episodes of the task the policy names, as many side by side as is useful.

    environment: builds the user's own Gymnasium environment instead. backend: the engine of the built-in tasks.

    A task that is named MODULE:CLASS is imported, if it is a Gymnasium environment: evaluating a stranger's policy runs
    the environment that it names, from modules of this machine. (Loading it runs nothing.)
    """
    name = description.task.name
    if environment is not None:
        return SingleStage(description, environment, min(episodes, _MOST_SINGLE))
    if description.task.problem is not None:
        from tailsafe.tabular.problem import FiniteCMDP
        from tailsafe.tasks.finite import FiniteEnvironments

        problem = FiniteCMDP.from_dict(description.task.problem)
        return JaxStage(FiniteEnvironments(problem, min(episodes, 8 * _MOST_BATCHED), name))
    from tailsafe.tasks import TASKS

    for task in TASKS.values():
        if name in (task.name, task.gymnasium_id):
            from tailsafe.envs.vector import make_batch

            return BatchStage(make_batch(task, min(episodes, _MOST_BATCHED), backend))
    return SingleStage(description, _factory(name), min(episodes, _MOST_SINGLE))


class JaxStage:
    """Environments that live in JAX, stepped from outside."""

    def __init__(self, environments: JaxEnvironments) -> None:
        self.num_envs = environments.num_envs
        self._environments = environments
        self._step = jax.jit(environments.step)
        self._state: Any = None

    def reset(self, seed: int) -> Float[NDArray[Any], "N O"]:
        self._state = jax.jit(self._environments.init)(jax.random.key(seed))
        return np.asarray(self._environments.observe(self._state))

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        self._state, transition = self._step(self._state, actions)
        return jax.tree.map(np.asarray, transition)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Nothing to close."""


class BatchStage:
    """A batch of a built-in task on either engine."""

    def __init__(self, batch: Any) -> None:
        self.num_envs = batch.num_envs
        self._batch = batch

    def reset(self, seed: int) -> Float[NDArray[Any], "N O"]:
        self._batch.reset(seed)
        return np.asarray(self._batch.observation)

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        step = self._batch.step(task_units(self._batch.task, np.asarray(actions, np.float64)))
        leaves: dict[str, Any] = {
            name: np.asarray(getattr(step, name)) for name in ("reward", "costs", "terminated", "truncated")
        }
        last, latest = np.asarray(step.observation), np.asarray(self._batch.observation)
        return Transition(next_observation=last, observation=latest, **leaves)  # type: ignore[arg-type]

    def close(self) -> None:
        self._batch.close()


class SingleStage:
    """Gymnasium environments, one object each."""

    def __init__(self, description: PolicyDescription, make: Callable[[], Any], num_envs: int) -> None:
        self.num_envs = num_envs
        self._description = description
        self._envs: Sequence[gymnasium.Env[Any, Any]] = [make() for _ in range(num_envs)]

    def reset(self, seed: int) -> Float[NDArray[Any], "N O"]:
        return np.stack([self._observation(env.reset(seed=seed + i)[0]) for i, env in enumerate(self._envs)])

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        return _stacked(
            [self._one(*pair) for pair in zip(self._envs, own_units(self._description, actions), strict=True)]
        )

    def _one(self, env: gymnasium.Env[Any, Any], action: Any) -> dict[str, Any]:
        observation, reward, terminated, truncated, info = env.step(action)
        if "cost" not in info:
            raise InputError(f"{self._description.task.name}: a step has no info['cost']")
        last = self._observation(observation)
        return {
            "next_observation": last,
            "observation": self._observation(env.reset()[0]) if terminated or truncated else last,
            "reward": float(reward),
            "costs": np.atleast_1d(np.asarray(info["cost"], np.float64)),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }

    def _observation(self, observation: Any) -> NDArray[Any]:
        row = np.asarray(observation, np.float32).reshape(-1)
        if row.size != self._description.task.observation_size:
            raise InputError(
                f"{self._description.task.name}: an observation has {row.size} entries, the policy takes "
                f"{self._description.task.observation_size}"
            )
        return row

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _stacked(rows: Sequence[dict[str, Any]]) -> Transition:
    leaves: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return Transition(**leaves)


def _factory(name: str) -> Callable[[], Any]:
    """What builds the Gymnasium id or MODULE:CLASS called `name`; only environments are ever called."""
    if name in gymnasium.registry:
        return lambda: gymnasium.make(name)
    module_name, _, class_name = name.partition(":")
    if not class_name:
        raise InputError(
            f"{name!r} is no task, no Gymnasium id and not of the form MODULE:CLASS: pass environment=, a function "
            "that builds the environment"
        )
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except (ImportError, ValueError) as error:
        raise InputError(f"cannot import the environment {name!r} of this policy: {error}") from None
    finally:
        sys.path.remove("")
    if not (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        raise InputError(f"{name!r} is no Gymnasium environment class; pass environment=, a function that builds one")
    return found
