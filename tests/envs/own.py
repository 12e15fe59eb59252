"""Environments of a user: every kind of space, and everything that can be wrong with one."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Own(gymnasium.Env[Any, Any]):
    """Three steps of random observations; the reward is 1, the cost 0.5. What is wrong is a class attribute away."""

    observation_space: Any = spaces.Box(-1, 1, (2,))
    action_space: Any = spaces.Box(-1, 1, (2,))
    cost: Any = 0.5
    reward: Any = 1.0

    def __init__(self, length: int = 3, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space = copy.deepcopy(type(self).observation_space)  # with randomness of its own

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.time += 1
        info = {"cost": self.cost, "success": self.time == self.length, "speed": float(self.time)}
        return self.observation_space.sample(), self.reward, self.time >= self.length, False, info


def variant(**attributes: Any) -> type[Own]:
    return type("Variant", (Own,), attributes)


IMAGE = spaces.Box(0, 255, (4, 3, 3), np.uint8)
OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (2,)),
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "image": IMAGE,
    "discrete": spaces.Discrete(4, start=2),
    "multi": spaces.MultiDiscrete([2, 3], start=[0, 5]),
    "binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(
        {
            "where": spaces.Box(-1, 1, (2,)),
            "mode": spaces.Discrete(3),
            "deep": spaces.Tuple([IMAGE, spaces.Discrete(2)]),
        }
    ),
}
ACTIONS = {
    "vector": spaces.Box(-1, 1, (2,)),
    "column": spaces.Box(-2, 3, (2, 1)),
    "scalar": spaces.Box(0, 1, ()),
    "double": spaces.Box(np.float64(-0.1), np.float64(0.1), (2,), np.float64),
    "whole": spaces.Box(-1, 5, (2,), np.int64),
    "fixed": spaces.Box(np.array([0.0, 1.0], np.float32), np.array([0.0, 2.0], np.float32)),
    "discrete": spaces.Discrete(3, start=5),
    "multi": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "binary": spaces.MultiBinary(2),
}


class SixValues(Own):
    """As Safety-Gymnasium's."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, info.pop("cost"), terminated, truncated, info


class Quits(Own):
    def step(self, action: Any) -> Any:
        raise SystemExit(0)


class Breaks(Own):
    def __init__(self) -> None:
        raise RuntimeError("no robot here")


class Refuses:
    """An answer that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError


class NoSpace(Own):
    @property
    def observation_space(self) -> Any:
        raise RuntimeError("no space")

    @observation_space.setter
    def observation_space(self, _: Any) -> None: ...


class NoNames(Own):
    @property
    def cost_names(self) -> Any:
        raise RuntimeError("no names")


class Odd(Own):
    def step(self, action: Any) -> Any:
        return (Refuses(), *super().step(action)[1:])


class BadEnd(Own):
    def close(self) -> None:
        raise SystemExit(0)


class Moves(Own):
    """As environments do that load their models by relative names."""

    def __init__(self, folder: str, when: str) -> None:
        super().__init__()
        self.folder, self.when = folder, when
        self.move("built")

    def move(self, when: str) -> None:
        if when == self.when:
            os.chdir(self.folder)

    def reset(self, **arguments: Any) -> Any:
        self.move("reset")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self.move("stepped")
        return super().step(action)


class Dies(Own):
    """As a process does that is killed for its memory; not the one of the tests."""

    def step(self, action: Any) -> Any:
        if self.time == 1 and multiprocessing.parent_process() is not None:
            os._exit(1)
        return super().step(action)


class FailsAtHome(Own):
    """In the second step, in the process that asks."""

    def step(self, action: Any) -> Any:
        if self.time == 1 and multiprocessing.parent_process() is None:
            raise RuntimeError("not here")
        return super().step(action)


class SpeedCost(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A cost on a wrapper, with its name and bound."""

    cost_names, largest_costs = ("speed",), (1.0,)


WRONG: dict[str, tuple[Any, str]] = {
    "negative bound": (variant(largest_costs=(-1,)), "largest_costs holds -1"),
    "nan bound": (variant(largest_costs=(float("nan"),)), "largest_costs holds nan"),
    "text bound": (variant(largest_costs=("1",)), "largest_costs holds '1'"),
    "boundless bound": (variant(largest_costs=(10**400,)), "each must be a positive number"),
    "bound beyond single precision": (variant(largest_costs=(1e300,)), "at most 1e+30"),
    "endless names": (variant(cost_names=map(str, itertools.count())), "one entry per cost, 1 in all; it has more"),
    "names that raise": (NoNames, "cost_names cannot be read: RuntimeError: no names"),
    "space that raises": (NoSpace, "observation_space cannot be read: RuntimeError: no space"),
    "ragged reward": (variant(reward=[1, [2, 3]]), "it must be a number"),
    "reward beyond single precision": (variant(reward=1e300), "the reward 1e+300; single precision ends at"),
    "cost beyond single precision": (variant(cost=1e300), "a step cost 1e+300; single precision ends at"),
    "reward that refuses": (variant(reward=Refuses()), "the reward a Refuses"),
    "cost that refuses": (variant(cost=Refuses()), "is a Refuses"),
    "observation that refuses": (Odd, "is not an array"),
    "endless observation": (variant(observation_space=spaces.MultiDiscrete([10**9] * 3)), "3,000,000,000 numbers"),
    "endless choice": (variant(action_space=spaces.Discrete(10**10)), "10,000,000,000 choices"),
    "names twice": (variant(cost_names=("a", "a"), cost=np.ones(2)), "no name may come twice"),
    "names no text": (variant(cost_names=(3,)), "names must be texts"),
    "name is a text": (variant(cost_names="cost"), "must be a tuple"),
    "above the bound": (variant(largest_costs=(0.25,)), "above its largest_costs, 0.25"),
    "text cost": (variant(cost="0.5"), "it must be numbers"),
    "nan cost": (variant(cost=float("nan")), "costs must be finite"),
    "negative cost": (variant(cost=-0.5), "safe must cost 0"),
    "matrix cost": (variant(cost=np.ones((1, 1))), "has shape (1, 1)"),
    "empty observation": (variant(observation_space=spaces.Box(-1, 1, (0,))), "is empty"),
    "text observation": (variant(observation_space=spaces.Text(3)), "observation_space must be"),
    "no reward": (variant(reward=None), "the reward None"),
    "array reward": (variant(reward=np.ones(2)), "it must be a number"),
    "nan reward": (variant(reward=float("nan")), "the reward nan"),
    "unbounded action": (variant(action_space=spaces.Box(-np.inf, np.inf, (1,))), "has no bounds"),
    "too many choices": (variant(action_space=spaces.MultiDiscrete([50, 50])), "2500 combinations"),
    "dict action": (variant(action_space=spaces.Dict({"a": spaces.Discrete(2)})), "action_space must be"),
    "ends the program": (Quits, "SystemExit: 0"),
    "does not begin": (Breaks, "RuntimeError: no robot here"),
    "not an environment": (dict, "not a gymnasium.Env"),
}
