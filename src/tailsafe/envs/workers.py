"""A user's environments in several processes, moved by Gymnasium's own `AsyncVectorEnv`.

One process per environment would drown two cores, so every process steps a block of copies: a block is an environment
whose observation is the whole step of its copies, which travels through shared memory. The process that asks steps the
first block itself instead of waiting: to be woken takes longer than a robot's step.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.envs.copies import Copies, Factory, HostStep, Layout, seeds_of
from tailsafe.envs.finding import Found, Source, find_environment
from tailsafe.envs.metrics import Metric
from tailsafe.errors import InputError

# Reward and the two flags, beside two observations, costs and metrics.
_NUMBERS = 3


@dataclass(frozen=True)
class Block:
    """Copies `first` to `first + size` of `total`, in a process of their own. recipe: its source, or what builds it."""

    recipe: Source | Factory
    name: str
    first: int
    size: int
    total: int
    layout: Layout
    metrics: tuple[Metric, ...]

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Called in the process."""
        return _BlockEnv(self)

    @property
    def width(self) -> int:
        """Columns of the table of a step."""
        return 2 * self.layout.observations.size + len(self.layout.costs) + len(self.metrics) + _NUMBERS


class _BlockEnv(gymnasium.Env[Any, Any]):
    """A block as one environment. Its copies are built at the first reset: the main process makes one, too, to ask for
    its spaces.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._copies: Copies | None = None
        self.observation_space = Box(-np.inf, np.inf, (block.size, block.width), np.float32)
        self.action_space = Box(-np.inf, np.inf, (block.size, block.layout.actions.size), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        block = self._block
        if self._copies is None:
            # Ctrl-C goes to all processes of a terminal; the main one decides when to end.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            make = find_environment(block.recipe).make if isinstance(block.recipe, Source) else block.recipe
            self._copies = Copies(make, block.size, block.name, block.metrics)
        own = seeds_of(seed or 0, block.total)[block.first : block.first + block.size]
        table = np.zeros((block.size, block.width), np.float32)
        table[:, : block.layout.observations.size] = self._copies.reset(own)
        return table, {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert self._copies is not None
        rows = self._copies.step(action)
        numbers = np.column_stack([rows.reward, rows.terminated, rows.truncated])
        columns: list[Any] = [rows.next_observation, rows.observation, rows.costs, rows.metrics, numbers]
        return np.concatenate(columns, axis=1).astype(np.float32), 0.0, False, False, {}

    def close(self) -> None:
        if self._copies is not None:
            self._copies.close()


class Workers:
    """As `Copies`, in `workers` processes, which divide `num_envs` evenly; this one is one of them.

    found: builds the copies of the others. make: builds those of this process.
    """

    def __init__(
        self, found: Found, make: Factory, num_envs: int, workers: int, metrics: Sequence[Metric] = ()
    ) -> None:
        if num_envs % workers:
            raise InputError(f"env_workers is {workers}; it must divide num_envs, which is {num_envs}")
        self.num_envs = num_envs
        self._name = name = found.name
        self._size = size = num_envs // workers
        self._metrics = len(metrics)
        recipe = found.source if found.source is not None else found.make
        self._own = Copies(make, size, name, metrics)
        self.layout = self._own.layout
        blocks = [
            Block(recipe, name, first, size, num_envs, self.layout, tuple(metrics))
            for first in range(size, num_envs, size)
        ]
        # Not forked: JAX has threads of its own here.
        self._envs: Any = AsyncVectorEnv(blocks, context="spawn", copy=False)

    def reset(self, seed: int) -> Float[NDArray[np.float32], "N O"]:
        """Begin the first episodes of `seed`, those of `Copies`."""

        def begin() -> tuple[Any, Any]:
            self._envs.reset_async(seed=[seed] * self._envs.num_envs)
            own = self._own.reset(seeds_of(seed, self.num_envs)[: self._size])
            return own, self._envs.reset_wait()[0]

        own, table = self._guarded(begin)
        others = table.reshape(self.num_envs - self._size, -1)[:, : self.layout.observations.size]
        return np.concatenate([own, others])

    def step(self, embedded: Float[NDArray[np.float32], "N A"]) -> HostStep:
        """One step everywhere."""
        actions = np.asarray(embedded, np.float32).reshape(-1, self._size, self.layout.actions.size)

        def move() -> tuple[HostStep, Any]:
            self._envs.step_async(actions[1:])
            own = self._own.step(actions[0])
            return own, self._envs.step_wait()[0]

        own, table = self._guarded(move)
        size, costs = self.layout.observations.size, len(self.layout.costs)
        ends = np.cumsum([size, size, costs, self._metrics])
        last, following, cost, metrics, numbers = np.split(table.reshape(self.num_envs - self._size, -1), ends, axis=1)
        reward, terminated, truncated = numbers.T
        # Copies: the shared memory is written over by the next step.
        return HostStep(
            np.concatenate([own.next_observation, last]),
            np.concatenate([own.observation, following]),
            np.concatenate([own.reward, reward]),
            np.concatenate([own.costs, cost]),
            np.concatenate([own.terminated, terminated > 0]),
            np.concatenate([own.truncated, truncated > 0]),
            np.concatenate([own.metrics, metrics]),
        )

    def close(self) -> None:
        """End the processes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a step was still running
            try:
                self._envs.close(terminate=True)
            except Exception:  # that step's, of a process that has died: it has been told
                for process in self._envs.processes:
                    process.terminate()
                    process.join()
                self._envs.closed = True
        self._own.close()

    def _guarded(self, call: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium says as a warning, with a traceback, what it then raises
            try:
                return call()
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise InputError(f"environment {self._name}: one of its processes ended unexpectedly") from None
