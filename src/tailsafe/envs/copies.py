"""Copies of a user's Gymnasium environment, stepped one after the other; every answer is checked.

The one adapter behind training, evaluation, rendering and `check-env`. It knows no JAX: the processes of `workers`
run it too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from tailsafe.envs.declarations import Costs, declared_costs, layers, short, staying
from tailsafe.envs.metrics import Metric, Running
from tailsafe.envs.spaces import action_space, observation_space
from tailsafe.envs.wrappers import five_values
from tailsafe.errors import InputError, place_of
from tailsafe.learning.spaces import ActionDescription, ObservationSpace

# Learners compute in single precision, where more is infinite.
_LARGEST = float(np.finfo(np.float32).max)
Factory = Callable[[], Any]
Watch = Callable[[gymnasium.Env[Any, Any]], None]


@dataclass(frozen=True)
class Layout:
    """What a user's environment is: how its observations and actions become vectors, its costs, its length."""

    observations: ObservationSpace
    actions: ActionDescription
    costs: Costs
    episode_length: int | None


@dataclass(frozen=True, eq=False)
class HostStep:
    """One step of N environments, as in `learning.chunks.Transition`; metrics (N, M): of the episodes so far."""

    next_observation: Float[NDArray[np.float32], "N O"]
    observation: Float[NDArray[np.float32], "N O"]
    reward: Float[NDArray[np.float32], " N"]
    costs: Float[NDArray[np.float32], "N C"]
    terminated: Bool[NDArray[np.bool_], " N"]
    truncated: Bool[NDArray[np.bool_], " N"]
    metrics: Float[NDArray[np.float64], "N M"]

    @property
    def done(self) -> Bool[NDArray[np.bool_], " N"]:
        """Terminated or truncated."""
        return self.terminated | self.truncated


def seeds_of(seed: int, num_envs: int) -> list[int]:
    """The seed of each environment's first episode; later ones draw on with its own randomness."""
    return [int(own) % 2**31 for own in np.random.SeedSequence(seed).generate_state(num_envs)]


class Copies:
    """`num_envs` environments that `make` builds.

    Observations and actions: see `envs.spaces`. Costs: `info["cost"]`, a number or a vector, or the third of six values
    (Safety-Gymnasium). name: for messages. metrics: numbers of `info` to follow. watch: called with the environment
    after every reset and step, before a next episode begins.
    """

    def __init__(
        self,
        make: Factory,
        num_envs: int,
        name: str,
        metrics: Sequence[Metric] = (),
        watch: Watch = lambda env: None,
    ) -> None:
        self.num_envs = num_envs
        self._name = name
        self._watch = watch
        self._cost_shape: tuple[int, ...] | None = None
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            with staying(name):
                self.envs.extend(self._built(make) for _ in range(num_envs))
                self.layout = self._layout(self.envs[0], metrics)
        except BaseException:
            self.close()
            raise
        self._running = Running(metrics, num_envs)
        self._follows = bool(metrics)

    def reset(self, seeds: Sequence[int]) -> Float[NDArray[np.float32], "N O"]:
        """Begin first episodes, one seed each."""
        with staying(self._name):
            return np.concatenate([self._begin(i, seed) for i, seed in enumerate(seeds)])

    def step(self, embedded: Float[NDArray[np.float32], "N A"]) -> HostStep:
        """One step of every copy, and the next episode where one ended. embedded: in [-1, 1], or one-hot."""
        return self.act(self.layout.actions.decode(embedded))

    def act(self, actions: Sequence[Any] | NDArray[Any]) -> HostStep:
        """The same with actions in the environments' own units."""
        with staying(self._name):
            return self._rows(actions)

    def _rows(self, actions: Sequence[Any] | NDArray[Any]) -> HostStep:
        count = self.num_envs
        seen: list[Any] = []
        reward = np.empty(count)
        costs = np.empty((count, len(self.layout.costs)))
        flags = np.empty((2, count), bool)
        for i, env in enumerate(self.envs):
            observation, earned, terminated, truncated, info = self._answer(env, actions[i])
            seen.append(observation)
            reward[i] = self._reward(earned)
            costs[i] = self._cost(info)
            flags[0, i], flags[1, i] = self._flag(terminated, "terminated"), self._flag(truncated, "truncated")
            if self._follows:
                self._running.add(i, info)
            self._watch(env)
        last = self._flat(seen, "step")
        self._check(reward, costs)
        metrics = self._running.values.copy()
        following = last
        ended = np.flatnonzero(flags.any(0))
        if ended.size:
            following = last.copy()
            for k in ended.tolist():
                following[k] = self._begin(k)[0]
        single = costs.astype(np.float32)
        return HostStep(last, following, reward.astype(np.float32), single, flags[0], flags[1], metrics)

    def close(self) -> None:
        """Close every copy. What one of them raises then is reported, and hides no other error."""
        for env in self.envs:
            try:
                env.close()
            except (Exception, SystemExit) as error:
                logging.getLogger("tailsafe").warning(
                    "environment %s: close raised an error: %s", self._name, place_of(error)
                )

    # --- building -----------------------------------------------------------------------------------------------------

    def _built(self, make: Factory) -> gymnasium.Env[Any, Any]:
        env = self._call("it could not be built", make)
        if not isinstance(env, gymnasium.Env):
            raise self.wrong(f"it builds a {type(env).__name__}, which is not a gymnasium.Env")
        for attribute in ("observation_space", "action_space"):
            # A property is code of the user's own.
            if self._call(f"{attribute} cannot be read", partial(getattr, env, attribute, None)) is None:
                raise self.wrong(f"it has no {attribute}")
        return env

    def _layout(self, env: gymnasium.Env[Any, Any], metrics: Sequence[Metric]) -> Layout:
        """From the spaces, and one step to see the costs and the metrics."""
        observations = self._call("observation_space", lambda: observation_space(env.observation_space))
        actions = self._call("action_space", lambda: action_space(env.action_space))
        # Names and bounds can be read once the number of costs is known.
        self.layout = Layout(observations, actions, Costs((), ()), None)
        self._running, self._follows = Running((), self.num_envs), False
        self._begin(0, 0)
        middle = actions.decode(np.zeros((1, actions.size)))[0]
        observation, reward, terminated, truncated, info = self._answer(env, middle)
        cost = self._cost(info).reshape(1, -1)
        self._call("metrics", lambda: [metric.number(info) for metric in metrics])
        length = self._call("spec", lambda: episode_length(env))
        costs = self._call("costs", lambda: declared_costs(env, cost.size))
        self.layout = Layout(observations, actions, costs, length)
        # The rest of the step, too: nothing has been written yet for an environment that is not fit.
        self._flat([observation], "step")
        self._flag(terminated, "terminated"), self._flag(truncated, "truncated")
        self._check(np.asarray([self._reward(reward)]), cost.astype(np.float64))
        return self.layout

    # --- what environments answer -------------------------------------------------------------------------------------

    def _begin(self, i: int, seed: int | None = None) -> Float[NDArray[np.float32], "1 O"]:
        env = self.envs[i]
        answer = self._call("reset raised an error", lambda: env.reset(seed=seed))
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise self.wrong("reset must return (observation, info)")
        self._running.begin(i)
        self._watch(env)
        return self._flat([answer[0]], "reset")

    def _answer(self, env: gymnasium.Env[Any, Any], action: Any) -> Any:
        try:
            answer = env.step(self.layout.actions.one(action))
        except (Exception, SystemExit) as error:
            raise self._raised(f"step raised an error{_sixth(error)}", error) from error
        answer = five_values(answer)
        if not (isinstance(answer, tuple) and len(answer) == 5):
            raise self.wrong("step must return (observation, reward, terminated, truncated, info)")
        return answer

    def _flat(self, observations: Sequence[Any], where: str) -> Float[NDArray[np.float32], "N O"]:
        try:
            with np.errstate(over="ignore"):  # infinities are refused below, in one line
                rows = self.layout.observations.rows(observations)
        except InputError as error:
            raise self.wrong(f"{where} returned a wrong observation: {error}") from None
        if not np.isfinite(rows).all():
            raise self.wrong(f"{where} returned an observation with NaN or infinity")
        return rows

    def _reward(self, reward: Any) -> float:
        if type(reward) is float:
            return reward
        try:
            number = np.asarray(reward)
        except Exception:  # lists of unequal lengths, and objects that refuse
            number = np.asarray(None)
        if number.ndim or number.dtype.kind not in "biuf":
            raise self.wrong(f"step returned the reward {short(reward)}; it must be a number")
        return float(number)

    def _flag(self, flag: Any, name: str) -> bool:
        if flag is True or flag is False:
            return flag
        try:
            truth = np.asarray(flag)
        except Exception:
            truth = np.asarray(None)
        if truth.ndim or truth.dtype.kind != "b":
            raise self.wrong(f"step returned {name} = {short(flag)}; it must be True or False")
        return bool(flag)

    def _cost(self, info: Any) -> NDArray[Any]:
        if not isinstance(info, dict) or "cost" not in info:
            raise self.wrong(
                "step has no info['cost']: the cost of the step, a number or a vector with one entry per constraint"
            )
        given = None
        try:
            given = info["cost"]
            cost = np.asarray(given)
        except Exception:
            cost = np.asarray(None)
        if cost.dtype.kind not in "biuf":
            raise self.wrong(f"info['cost'] is {short(given)}; it must be numbers")
        if cost.ndim > 1 or cost.size == 0:
            raise self.wrong(f"info['cost'] must be a number or a vector, has shape {cost.shape}")
        if self._cost_shape is None:
            self._cost_shape = cost.shape
        if cost.shape != self._cost_shape:
            raise self.wrong(f"info['cost'] changed its shape from {self._cost_shape} to {cost.shape}")
        return cost

    def _check(self, reward: NDArray[np.float64], costs: NDArray[np.float64]) -> None:
        try:
            check_numbers(self.layout.costs, reward, costs)
        except InputError as error:
            raise self.wrong(str(error)) from None

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:  # a user's code may do anything; Ctrl-C is not its doing
            raise self._raised(what, error) from error

    def _raised(self, what: str, error: BaseException) -> InputError:
        if isinstance(error, InputError):
            return self.wrong(str(error))
        return self.wrong(f"{what}: {place_of(error)}")

    def wrong(self, what: str) -> InputError:
        """A complaint about the environment."""
        return InputError(f"environment {self._name}: {what}")


def _sixth(error: BaseException) -> str:
    """What Gymnasium's wrappers raise around an environment of six values says nothing of them."""
    if "too many values to unpack (expected 5" not in str(error):
        return ""
    return " (of six values, as Safety-Gymnasium's? then ts.CostFromStep(env) belongs inside of the other wrappers)"


def check_numbers(declared: Costs, reward: NDArray[Any], costs: NDArray[Any]) -> None:
    """Refuse numbers that no learner may see, and those that disprove what the environment says. costs: (N, C)."""
    # One comparison where all is well; written this way round, NaN is refused too.
    if (np.abs(reward) <= _LARGEST).all() and ((costs >= 0) & (costs <= np.minimum(declared.bounds, _LARGEST))).all():
        return
    if not np.isfinite(reward).all():
        raise InputError(f"step returned the reward {reward[~np.isfinite(reward)][0]}")
    if not np.isfinite(costs).all():
        raise InputError(f"a step cost {_row(costs, ~np.isfinite(costs))}; costs must be finite")
    if (costs < 0).any():
        raise InputError(f"a step cost {_row(costs, costs < 0)}; more cost must mean less safe, and safe must cost 0")
    for what, numbers in (("returned the reward", np.abs(reward)), ("cost", costs)):
        if (numbers > _LARGEST).any():
            raise InputError(f"a step {what} {numbers.max():g}; single precision ends at {_LARGEST:.2g}")
    row, i = np.argwhere(costs > declared.bounds)[0]
    raise InputError(
        f"a step cost {costs[row, i]:g} of {declared.names[i]!r}, above its largest_costs, {declared.largest[i]:g}"
    )


def episode_length(env: Any) -> int | None:
    """After how many steps episodes are cut: what the environment is registered with, or its TimeLimit."""
    for layer in layers(env):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            return int(layer._max_episode_steps)
    steps = getattr(env.spec, "max_episode_steps", None)
    return int(steps) if isinstance(steps, int) and steps > 0 else None


def _row(costs: NDArray[np.float64], bad: NDArray[np.bool_]) -> str:
    values = costs[bad.any(1)][0]
    return f"{values[0]:g}" if values.size == 1 else str(values.tolist())
