"""A user's own Gymnasium environments as a learner takes them: several copies, stepped one after the other."""

from __future__ import annotations

import copy
import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.learning.actions import Actions, BoxActions, DiscreteActions
from tailsafe.learning.chunks import Transition
from tailsafe.learning.environments import EnvironmentSpec

Factory = Callable[[], gymnasium.Env[Any, Any]]
_WITHOUT_COST = "has no info['cost']: the cost of the step, a number or a vector with one entry per constraint"


class UserEnvironments:
    """`num_envs` copies of what `make` builds.

    Observations: any space Gymnasium can flatten to a vector. Actions: a bounded Box, scaled from [-1, 1] to its own
    bounds, or Discrete. Costs: `info["cost"]`, a number or a vector. Their names are the environment's `cost_names` if
    it has that attribute, their largest values its `largest_costs`.
    """

    def __init__(self, make: Factory, num_envs: int, name: str) -> None:
        self.num_envs = num_envs
        self._name = name
        self._envs = [_built(make, name) for _ in range(num_envs)]
        first = self._envs[0]
        self._observation_space = first.observation_space
        self._action_space = first.action_space
        self._cost_shape: tuple[int, ...] | None = None
        self._costs = 0
        flat = _flat_size(self._observation_space, name)
        actions = _actions(self._action_space, name)
        self._probe(first)
        self.spec = EnvironmentSpec(
            name=name,
            observation_size=flat,
            actions=actions,
            cost_names=_declared(first, "cost_names", self._costs, _default_names(self._costs), name),
            episode_length=None if first.spec is None else first.spec.max_episode_steps,
            largest_costs=_declared(first, "largest_costs", self._costs, (math.inf,) * self._costs, name),
        )

    @property
    def first_action(self) -> int:
        """The number of the first action of a discrete space."""
        return int(getattr(self._envs[0].action_space, "start", 0))

    @property
    def action_bounds(self) -> tuple[list[float], list[float]] | None:
        """(low, high) of a Box, flattened; None for discrete actions."""
        space = self._action_space
        return (space.low.ravel().tolist(), space.high.ravel().tolist()) if isinstance(space, spaces.Box) else None

    def reset(self, seed: int) -> Float[NDArray[np.float32], "N O"]:
        """Begin the first episodes of `seed`; later ones go on with each environment's own randomness."""
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs)
        rows = [self._begin(env, int(own) % 2**31) for env, own in zip(self._envs, seeds, strict=True)]
        return np.stack(rows)

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        """One step in every copy, and the next episode where one ended."""
        rows = [self._step(env, action) for env, action in zip(self._envs, np.asarray(actions), strict=True)]
        return Transition(*(np.stack(column) for column in zip(*rows, strict=True)))  # type: ignore[arg-type]

    def snapshot(self) -> None:
        """Gymnasium environments cannot be saved."""

    def restore(self, snapshot: Any) -> None:
        raise NotImplementedError("a Gymnasium environment cannot be restored")

    def close(self) -> None:
        """Close every copy."""
        for env in self._envs:
            env.close()

    def _probe(self, env: gymnasium.Env[Any, Any]) -> None:
        """One step, to see the costs."""
        env.action_space.seed(0)
        self._begin(env, 0)
        answer = env.step(env.action_space.sample())
        if not (isinstance(answer, tuple) and len(answer) == 5):
            raise self._wrong("step must return (observation, reward, terminated, truncated, info)")
        self._costs = self._cost(answer[4]).size

    def _begin(self, env: gymnasium.Env[Any, Any], seed: int | None = None) -> NDArray[np.float32]:
        answer = env.reset(seed=seed)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise self._wrong("reset must return (observation, info)")
        return self._flat(answer[0], "reset")

    def _step(self, env: gymnasium.Env[Any, Any], action: NDArray[np.float32]) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, info = env.step(_native(self._action_space, action))
        costs = self._cost(info)
        if not math.isfinite(float(reward)):
            raise self._wrong(f"step returned the reward {reward}")
        last = self._flat(observation, "step")
        following = self._begin(env) if terminated or truncated else last
        return last, following, np.float32(float(reward)), costs, np.bool_(terminated), np.bool_(truncated)

    def _flat(self, observation: Any, where: str) -> NDArray[np.float32]:
        try:
            flat = np.asarray(spaces.flatten(self._observation_space, observation), np.float32)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise self._wrong(
                f"{where} returned an observation outside of {self._observation_space}: {error}"
            ) from None
        if flat.shape != spaces.flatten_space(self._observation_space).shape:
            raise self._wrong(f"{where} returned an observation of shape {np.shape(observation)}")
        if not np.isfinite(flat).all():
            raise self._wrong(f"{where} returned an observation with NaN or infinity")
        return flat

    def _cost(self, info: Any) -> NDArray[np.float32]:
        if not isinstance(info, dict) or "cost" not in info:
            raise self._wrong(f"step {_WITHOUT_COST}")
        try:
            cost = np.asarray(info["cost"], np.float32)
        except (TypeError, ValueError):
            raise self._wrong(f"info['cost'] must be numbers, is {type(info['cost']).__name__}") from None
        if cost.ndim > 1 or cost.size == 0:
            raise self._wrong(f"info['cost'] must be a number or a vector, has shape {cost.shape}")
        if self._cost_shape is None:
            self._cost_shape = cost.shape
        if cost.shape != self._cost_shape:
            raise self._wrong(f"info['cost'] changed its shape from {self._cost_shape} to {cost.shape}")
        if not np.isfinite(cost).all():
            raise self._wrong(f"info['cost'] is {info['cost']}; it must be finite")
        if (cost < 0).any():
            raise self._wrong(f"info['cost'] is {info['cost']}; more cost must mean less safe, and safe must cost 0")
        return np.atleast_1d(cost)

    def _wrong(self, what: str) -> InputError:
        return InputError(f"environment {self._name}: {what} (see `tailsafe check-env`)")


def environment_factory(task: Any) -> tuple[Factory, str, str | None]:
    """(what builds it, its name, how to name it in a file) for a Gymnasium id, MODULE:CLASS, environment or factory."""
    if isinstance(task, str):
        return _named_factory(task), task.replace(":", ".").replace("/", "."), task
    if isinstance(task, gymnasium.Env):
        return (lambda: _copied(task)), type(task.unwrapped).__name__, _identity(task)
    if callable(task):
        name = getattr(task, "__qualname__", type(task).__name__)
        return task, name.rpartition(".")[2].strip("<>"), _reference(task)
    raise InputError(f"task must be a name, a gymnasium.Env or what builds one, got {type(task).__name__}")


def _named_factory(name: str) -> Factory:
    if name in gymnasium.registry:
        return lambda: gymnasium.make(name)
    module_name, _, class_name = name.partition(":")
    if not class_name:
        raise InputError(f"{name!r} is no task, no Gymnasium id and not of the form MODULE:CLASS")
    # As `python -m` does: a module beside the user comes first.
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
        if name in gymnasium.registry:  # MODULE:ID, registered by importing the module
            return lambda: gymnasium.make(name)
    except ImportError as error:
        raise InputError(f"cannot import {module_name!r}: {error}") from error
    finally:
        sys.path.remove("")
    factory = getattr(module, class_name, None)
    if not callable(factory):
        raise InputError(f"module {module_name!r} has no class {class_name!r}")
    return factory  # type: ignore[no-any-return]


def _reference(factory: Any) -> str | None:
    """MODULE:NAME if that is where another process would find it."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    if not module or module == "__main__" or getattr(sys.modules.get(module), name, None) is not factory:
        return None
    return f"{module}:{name}"


def _identity(env: gymnasium.Env[Any, Any]) -> str | None:
    """The Gymnasium id of an environment that is what `gymnasium.make(id)` builds, no more and no less."""
    spec = env.spec
    plain = spec is not None and not spec.additional_wrappers and spec == gymnasium.registry.get(spec.id)
    return spec.id if spec is not None and plain else None


def _copied(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """A copy of an environment object, each with a state of its own."""
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise InputError(
            f"{type(env.unwrapped).__name__} cannot be copied ({error}); pass what builds it instead: task=lambda: ..."
        ) from None


def _built(make: Factory, name: str) -> gymnasium.Env[Any, Any]:
    env = make()
    if not isinstance(env, gymnasium.Env):
        raise InputError(f"{name} builds a {type(env).__name__}, not a gymnasium.Env")
    return env


def _flat_size(space: Any, name: str) -> int:
    try:
        flat = spaces.flatten_space(space)
    except (NotImplementedError, TypeError, AttributeError):
        flat = None
    if not isinstance(flat, spaces.Box):
        raise InputError(f"environment {name}: observation_space must be one that flattens to numbers, is {space}")
    return math.prod(flat.shape)


def _actions(space: Any, name: str) -> Actions:
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(int(space.n))
    if not isinstance(space, spaces.Box):
        raise InputError(f"environment {name}: action_space must be a Box or Discrete, is {space}")
    if not space.is_bounded():
        raise InputError(f"environment {name}: action_space has no bounds, so actions cannot be scaled to it")
    return BoxActions(math.prod(space.shape))


def _native(space: Any, action: NDArray[np.float32]) -> Any:
    """What the environment takes, from an embedded action."""
    if isinstance(space, spaces.Discrete):
        return int(space.start + np.argmax(action))
    share = (np.clip(action, -1.0, 1.0).reshape(space.shape) + 1) / 2
    return np.asarray(space.low + share * (space.high - space.low), space.dtype)


def _default_names(count: int) -> tuple[str, ...]:
    return ("cost",) if count == 1 else tuple(f"cost{i}" for i in range(count))


def _declared(env: gymnasium.Env[Any, Any], attribute: str, count: int, default: tuple[Any, ...], name: str) -> Any:
    """What the environment says about its costs, one entry each."""
    values = getattr(env.unwrapped, attribute, None)
    if values is None:
        return default
    if len(values) != count:
        raise InputError(f"environment {name}: {attribute} has {len(values)} entries for {count} costs")
    return tuple(values)
