"""Is an environment fit to train on? Gymnasium's rules that matter here, and what a constrained learner needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `problem` is empty where all is well."""

    check: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem


class _Broken(Exception):
    """A problem that makes further checks pointless."""


def check_environment(
    make: Callable[[], gymnasium.Env[Any, Any]], max_steps: int = 10_000, seed: int = 0
) -> list[Finding]:
    """Look at spaces, reset, steps, costs, repeatability and episode ends of the environment that `make` builds."""
    findings: list[Finding] = []

    def passed(check: str) -> None:
        findings.append(Finding(check))

    try:
        env = _built(make)
        _check_spaces(env)
        passed("observations are a Box of one axis, actions a bounded one or Discrete")
        _check_reset(env, seed)
        passed("reset returns a finite observation and an info dict")
        steps = _roll(env, seed, max_steps)
        passed("steps return five values: finite observation, finite reward, two flags, info")
        passed("info['cost'] is there, finite and of one shape")
        findings.append(_cost_sign(steps))
        findings.append(_episode_end(steps, max_steps))
        findings.append(_repeats(make, seed, steps))
        env.close()
    except _Broken as broken:
        check, problem = broken.args
        findings.append(Finding(check, problem))
    return findings


@dataclass(frozen=True)
class _Taken:
    observation: np.ndarray[Any, Any]
    reward: float
    cost: np.ndarray[Any, Any]
    terminated: bool
    truncated: bool


def _built(make: Callable[[], Any]) -> gymnasium.Env[Any, Any]:
    env = make()
    if not isinstance(env, gymnasium.Env):
        raise _Broken("environment", f"{type(env).__name__} is not a gymnasium.Env")
    return env


def _check_spaces(env: gymnasium.Env[Any, Any]) -> None:
    seen, chosen = getattr(env, "observation_space", None), getattr(env, "action_space", None)
    if not isinstance(seen, gymnasium.spaces.Box) or len(seen.shape) != 1:
        raise _Broken("spaces", f"observation_space must be a Box of one axis, is {seen}")
    if isinstance(chosen, gymnasium.spaces.Discrete):
        return
    if not isinstance(chosen, gymnasium.spaces.Box) or len(chosen.shape) != 1:
        raise _Broken("spaces", f"action_space must be a Box of one axis or Discrete, is {chosen}")
    if not chosen.is_bounded():
        raise _Broken("spaces", "action_space has no bounds: actions could not be scaled")


def _check_reset(env: gymnasium.Env[Any, Any], seed: int) -> None:
    answer = _call("reset", lambda: env.reset(seed=seed))
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise _Broken("reset", "reset(seed=...) must return (observation, info)")
    _check_observation(env, answer[0], "reset")


def _check_observation(env: gymnasium.Env[Any, Any], observation: Any, where: str) -> None:
    array = np.asarray(observation)
    if array.shape != env.observation_space.shape:
        raise _Broken(where, f"observation has shape {array.shape}, the space says {env.observation_space.shape}")
    if not np.isfinite(array).all():
        raise _Broken(where, "observation holds NaN or infinity")


def _roll(env: gymnasium.Env[Any, Any], seed: int, max_steps: int) -> list[_Taken]:
    env.action_space.seed(seed)
    env.reset(seed=seed)
    steps: list[_Taken] = []
    while len(steps) < max_steps:
        answer = _call("step", lambda: env.step(env.action_space.sample()))
        if not (isinstance(answer, tuple) and len(answer) == 5):
            raise _Broken("step", "step must return (observation, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = answer
        _check_observation(env, observation, f"step {len(steps)}")
        if not np.isfinite(reward):
            raise _Broken(f"step {len(steps)}", f"reward is {reward}")
        if not all(isinstance(flag, (bool, np.bool_)) for flag in (terminated, truncated)):
            raise _Broken(f"step {len(steps)}", "terminated and truncated must be bool")
        cost = _cost(info, len(steps))
        if steps and cost.shape != steps[0].cost.shape:
            raise _Broken("cost", f"info['cost'] changed its shape from {steps[0].cost.shape} to {cost.shape}")
        steps.append(_Taken(np.array(observation), float(reward), cost, bool(terminated), bool(truncated)))
        if terminated or truncated:
            break
    return steps


def _cost(info: Any, step: int) -> np.ndarray[Any, Any]:
    if not isinstance(info, dict) or "cost" not in info:
        raise _Broken("cost", f"step {step} has no info['cost']: the vector of costs, one entry per constraint")
    try:
        cost = np.asarray(info["cost"], float)
    except (TypeError, ValueError):
        raise _Broken("cost", f"info['cost'] must be numbers, is {type(info['cost']).__name__}") from None
    if cost.ndim > 1 or cost.size == 0:
        raise _Broken("cost", f"info['cost'] must be a number or a vector, has shape {cost.shape}")
    if not np.isfinite(cost).all():
        raise _Broken("cost", f"info['cost'] holds NaN or infinity at step {step}")
    return np.atleast_1d(cost)


def _cost_sign(steps: list[_Taken]) -> Finding:
    check = "costs are not negative"
    lowest = min(float(step.cost.min()) for step in steps)
    if lowest < 0:
        return Finding(check, f"a cost of {lowest:g}: more cost must mean less safe, and safe must cost 0")
    return Finding(check)


def _episode_end(steps: list[_Taken], max_steps: int) -> Finding:
    check = "episodes end"
    if not (steps[-1].terminated or steps[-1].truncated):
        return Finding(check, f"no end within {max_steps} steps: wrap it in gymnasium.wrappers.TimeLimit")
    return Finding(check)


def _repeats(make: Callable[[], Any], seed: int, steps: list[_Taken]) -> Finding:
    check = "the same seed gives the same episode"
    again = make()
    repeated = _roll(again, seed, len(steps))
    again.close()
    for index, (first, second) in enumerate(zip(steps, repeated, strict=False)):
        same = np.array_equal(first.observation, second.observation) and first.reward == second.reward
        if not (same and np.array_equal(first.cost, second.cost)):
            return Finding(check, f"a second run with the same seed and actions differs from step {index} on")
    if len(steps) != len(repeated):
        return Finding(check, f"a second run ended after {len(repeated)} steps instead of {len(steps)}")
    return Finding(check)


def _call(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise _Broken(name, f"{name} raised {type(error).__name__}: {error}") from error
