"""Fresh episodes until their discounted sums are settled: what they cost, and how sure that is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from tailsafe.envs.device import DeviceBatch, DeviceState, device_engine
from tailsafe.envs.episodes import environment_keys
from tailsafe.envs.finite import FiniteEnvironments, FiniteState
from tailsafe.evaluation.environments import Stage
from tailsafe.risk import SpectralRisk, StepSpectrum
from tailsafe.tasks import Task, task_units


@dataclass(frozen=True, eq=False)
class SettledEpisodes:
    """n episodes until their discounted sums are settled. costs (n, C): discounted sums. reward (n,): per step."""

    costs: Float[NDArray[np.float64], "n C"]
    reward: Float[NDArray[np.float64], " n"]

    def followed_by(self, others: SettledEpisodes) -> SettledEpisodes:
        """These, then others."""
        return SettledEpisodes(np.concatenate([self.costs, others.costs]), np.concatenate([self.reward, others.reward]))

    def risks(self, measures: Sequence[SpectralRisk]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(C,), (C,): the spectral risks of the discounted sums, and their standard errors."""
        both = [(float(m.risk(x)), standard_error(m, x)) for m, x in zip(measures, self.costs.T, strict=True)]
        risks, errors = np.array(both).T
        return risks, errors


def standard_error(measure: SpectralRisk, samples: Float[NDArray[np.float64], " n"], cells: int = 32) -> float:
    """Of an empirical spectral risk: by Thm. 6.2 it is the mean of g_beta(X) up to a constant, at the best beta.

    It is zero where all samples are equal: good enough to prefer one policy to another, no statement about rare costs.
    """
    step = _discretized(measure, cells)
    values = step.g_beta(samples, step.optimal_beta(samples))
    return float(np.std(values) / math.sqrt(len(samples)))


@lru_cache(maxsize=32)
def _discretized(measure: SpectralRisk, cells: int) -> StepSpectrum:
    """Some measures take a while, and the same few are asked for again and again."""
    return measure.discretize(cells=cells)


def play_settled(policy: Any, stage: Stage, seed: int, steps: int) -> SettledEpisodes:
    """One episode in each environment, all from the start, at most `steps` steps long."""
    gamma, envs = policy.description.gamma, stage.num_envs
    costs = len(policy.description.constraints)
    observation = stage.reset(seed)
    key = jax.random.key(seed)
    paid, weight, alive = np.zeros((envs, costs)), np.ones(envs), np.ones(envs, bool)
    earned, length = np.zeros(envs), np.zeros(envs)
    for step in range(steps):
        actions = policy.choose(
            np.asarray(observation, np.float32),
            paid.astype(np.float32),
            weight.astype(np.float32),
            jax.random.fold_in(key, step),
        )
        moved = stage.step(actions)
        earned += alive * np.asarray(moved.reward, np.float64)
        length += alive
        paid += (alive * weight)[:, None] * np.asarray(moved.costs, np.float64)
        weight = weight * gamma
        alive &= ~(np.asarray(moved.terminated) | np.asarray(moved.truncated))
        if not alive.any():
            break
        observation = np.asarray(moved.observation)
    return SettledEpisodes(paid, earned / length)


class Playing(ABC):
    """What `play_settled` does, as one program for `policies` policies of environments inside JAX.

    All that it plays must be alike but for their tensors: the policies of one run, or of runs of one program.
    """

    def __init__(self, policies: int) -> None:
        self._policies = policies
        self._like: Any = None
        self._run = jax.jit(jax.vmap(self._episodes_of))

    def play(self, policies: Sequence[Any], seeds: Sequence[int]) -> list[SettledEpisodes]:
        """One episode in each environment of each policy, all from the start."""
        if not policies:
            return []
        self._like = self._like or policies[0]
        # The last one fills the row up: a program of another width would have to be compiled.
        filled = [*policies, *[policies[-1]] * (self._policies - len(policies))]
        tensors = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(policy.tensors for policy in filled))
        padded = jnp.asarray([*seeds, *[seeds[-1]] * (len(filled) - len(seeds))], jnp.int32)
        state, paid, reward = self._run(tensors, padded)
        self._check(state)
        rows = zip(np.asarray(paid, np.float64), np.asarray(reward, np.float64), strict=True)
        return [SettledEpisodes(*row) for row in rows][: len(policies)]

    def _check(self, state: Any) -> None:
        """Raise what the last states of the environments tell of; most have nothing to tell."""
        return

    @abstractmethod
    def _episodes_of(self, tensors: Any, seed: Int[Array, ""]) -> tuple[Any, Array, Array]:
        """Last states, discounted costs (N, C) and rewards (N,) of one policy."""


class DevicePlay(Playing):
    """Of built-in tasks on an engine inside JAX."""

    def __init__(self, task: Task[Any], backend: str, policies: int, episodes: int, steps: int) -> None:
        super().__init__(policies)
        self._batch = DeviceBatch(task, device_engine(task, backend))
        self._episodes, self._steps = episodes, steps

    def _check(self, state: DeviceState) -> None:
        self._batch.check(state)

    def _episodes_of(self, tensors: Any, seed: Int[Array, ""]) -> tuple[DeviceState, Array, Array]:
        """Rewards are per step."""
        policy, count = self._like.with_tensors(tensors), self._episodes
        keys = jax.random.split(jax.random.key(seed), self._steps)

        def step(carry: Any, key: Any) -> tuple[Any, None]:
            state, paid, weight, alive, earned, length = carry
            actions = policy.sampled(state.episode.observation, paid, weight, key)
            state, moved = self._batch.move(state, task_units(self._batch.task, actions))
            paid = paid + jnp.where(alive, weight, 0.0)[:, None] * moved.costs
            earned, length = earned + alive * moved.reward, length + alive
            return (state, paid, policy.description.gamma * weight, alive & ~moved.done, earned, length), None

        state = self._batch.init(environment_keys(seed, count))
        costs = len(policy.description.constraints)
        begun = (state, jnp.zeros((count, costs)), jnp.ones(count), jnp.ones(count, bool), jnp.zeros(count))
        (state, paid, _, _, earned, length), _ = jax.lax.scan(step, (*begun, jnp.zeros(count)), keys)
        return state, paid, earned / length


class FinitePlay(Playing):
    """Of a finite problem, whose episodes all have the same length."""

    def __init__(self, environments: FiniteEnvironments, policies: int = 1) -> None:
        super().__init__(policies)
        self._environments = environments

    def _episodes_of(self, tensors: Any, seed: Int[Array, ""]) -> tuple[FiniteState, Array, Array]:
        """Rewards are discounted sums over the length of an episode: their sum is what is maximised."""
        policy, environments = self._like.with_tensors(tensors), self._environments
        problem, count = environments.problem, environments.num_envs
        for_start, for_actions = jax.random.split(jax.random.key(seed))

        def step(carry: Any, key: Any) -> tuple[Any, None]:
            state, earned, paid, weight = carry
            actions = policy.sampled(environments.observe(state), paid, weight, key)
            state, moved = environments.step(state, actions)
            earned = earned + weight * moved.reward
            return (state, earned, paid + weight[:, None] * moved.costs, problem.discount * weight), None

        begun = (environments.init(for_start), jnp.zeros(count), jnp.zeros((count, problem.num_costs)), jnp.ones(count))
        (state, earned, paid, _), _ = jax.lax.scan(step, begun, jax.random.split(for_actions, problem.horizon))
        return state, paid, earned / problem.horizon
