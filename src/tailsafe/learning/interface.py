"""Environments as a learner sees them: inside JAX, or on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.learning.actions import Actions
from tailsafe.learning.chunks import Transition
from tailsafe.learning.spaces import ActionDescription, ObservationSpace


@dataclass(frozen=True)
class EnvironmentSpec:
    """What a learner must know before it can be built.

    largest_costs: the largest cost of one step, per cost (1 for indicators; inf where unknown). limits: the task's own
    limits per step, if it has any. episode_length: steps until truncation, if fixed. observations, native_actions: how
    the environment's own become the learner's; None: vectors, and [-1, 1] or counted from 0.
    """

    name: str
    observation_size: int
    actions: Actions
    cost_names: tuple[str, ...]
    episode_length: int | None
    largest_costs: tuple[float, ...]
    limits: tuple[float, ...] | None = None
    observations: ObservationSpace | None = None
    native_actions: ActionDescription | None = None


class JaxEnvironments(Protocol):
    """Environments that live in JAX: pure functions of their own state, for `jit`, `vmap` and `scan`."""

    num_envs: int
    spec: EnvironmentSpec

    def init(self, key: PRNGKeyArray) -> Any:
        """The state of `num_envs` environments at the start of an episode."""

    def observe(self, state: Any) -> Float[Array, "N O"]:
        """The latest observations."""

    def step(self, state: Any, actions: Float[Array, "N A"]) -> tuple[Any, Transition]:
        """One step everywhere; ended episodes give way to new ones. actions: embedded, in [-1, 1] or one-hot."""


class HostEnvironments(Protocol):
    """Environments outside of JAX, with state of their own."""

    num_envs: int
    spec: EnvironmentSpec

    def reset(self, seed: int) -> Float[NDArray[np.float32], "N O"]:
        """Begin the first episodes of `seed`; returns the observations."""

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        """One step everywhere, leaves as NumPy arrays; ended episodes give way to new ones. actions: embedded."""

    def snapshot(self) -> Any | None:
        """A pytree of arrays from which `restore` continues exactly, or None where environments cannot be saved."""

    def restore(self, snapshot: Any) -> None: ...
    def close(self) -> None: ...
