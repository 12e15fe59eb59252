"""Gymnasium's spaces as `learning.spaces` describes them, or one line that says why one cannot be used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from tailsafe.errors import InputError
from tailsafe.learning.spaces import MOST_COMBINATIONS, ActionDescription, ObservationPart, ObservationSpace

# A step of one environment is an array of so many; more is a mistake, and would end a process for want of memory.
MOST_NUMBERS, MOST_CHOICES = 10_000_000, 65_536
_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
_ACTIONS = "a bounded Box, Discrete, MultiDiscrete or MultiBinary"


def observation_space(space: Any) -> ObservationSpace:
    """How observations of a Gymnasium space are flattened."""
    described = ObservationSpace(tuple(_parts(space, ())))
    if described.size > MOST_NUMBERS:
        raise InputError(f"observation_space makes {described.size:,} numbers; there may be up to {MOST_NUMBERS:,}")
    if described.size == 0:
        raise InputError("observation_space is empty: a policy needs something to look at")
    return described


def _parts(space: Any, path: tuple[str | int, ...]) -> list[ObservationPart]:
    if isinstance(space, spaces.Dict):
        return [part for key, inner in space.spaces.items() for part in _parts(inner, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [part for i, inner in enumerate(space.spaces) for part in _parts(inner, (*path, i))]
    if isinstance(space, spaces.Discrete):
        return [ObservationPart(path, (), (int(space.n),), (int(space.start),))]
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts = _choices(space)
        return [ObservationPart(path, tuple(space.nvec.shape), counts, starts)]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return [ObservationPart(path, tuple(space.shape))]
    raise InputError(f"observation_space must be {_OBSERVATIONS}; {_where(path)}is {_short(space)}")


def action_space(space: Any) -> ActionDescription:
    """How a learner's actions become those of a Gymnasium space."""
    if isinstance(space, spaces.Discrete):
        if space.n > MOST_CHOICES:
            raise InputError(f"action_space has {space.n:,} choices; there may be up to {MOST_CHOICES:,}")
        return ActionDescription("discrete", int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return _combined(tuple(space.nvec.shape), *_choices(space), str(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape)
        return _combined(shape, (2,) * math.prod(shape), (0,) * math.prod(shape), str(space.dtype))
    if not isinstance(space, spaces.Box):
        raise InputError(f"action_space must be {_ACTIONS}, is {_short(space)}")
    if not space.is_bounded():
        raise InputError(f"action_space has no bounds, so actions cannot be scaled to it; it is {_short(space)}")
    if not math.prod(space.shape):
        raise InputError("action_space is empty: a policy needs something to choose")
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
    if (low > high).any():
        raise InputError(f"action_space has a lower bound above its upper one; it is {_short(space)}")
    return ActionDescription(
        "box", low.size, tuple(low.tolist()), tuple(high.tolist()), shape=tuple(space.shape), dtype=str(space.dtype)
    )


def _combined(
    shape: tuple[int, ...], counts: tuple[int, ...], starts: tuple[int, ...], dtype: str
) -> ActionDescription:
    size = math.prod(counts)
    if not counts or size > MOST_COMBINATIONS:
        raise InputError(f"action_space has {size} combinations of choices; there may be 1 to {MOST_COMBINATIONS}")
    return ActionDescription("discrete", size, shape=shape, dtype=dtype, counts=counts, starts=starts)


def _choices(space: spaces.MultiDiscrete) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(int(n) for n in space.nvec.ravel()), tuple(int(n) for n in np.ravel(space.start))


def _where(path: tuple[str | int, ...]) -> str:
    return f"its {'.'.join(map(str, path))} " if path else "it "


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) < 100 else type(space).__name__
