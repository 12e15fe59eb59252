"""What a user's environment says about its costs, found through wrappers and checked; and what it may not change."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tailsafe.errors import InputError, place_of

ROUNDING = 1e-5
_LONGEST_NAME = 64
# Discounted sums of it must fit into single precision.
_LARGEST = 1e30


@dataclass(frozen=True)
class Costs:
    """names: one for each cost. largest: the most that a step can cost, inf where the environment does not say."""

    names: tuple[str, ...]
    largest: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """(C,): `largest`, a little widened for the rounding of single precision."""
        return np.minimum(np.asarray(self.largest) * (1 + ROUNDING), np.finfo(np.float64).max)


@contextmanager
def staying(name: str) -> Iterator[None]:
    """Undo the user's code changing the current folder, and say so once: the paths of a run are relative."""
    before = _here()
    try:
        yield
    finally:
        if before and (now := _here()) != before:
            os.chdir(before)
            _tell_left(name, now, before)


def _here() -> str:
    """The current folder; nothing if that has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@functools.cache
def _tell_left(name: str, now: str, before: str) -> None:
    logging.getLogger("tailsafe").warning(
        "environment %s: changed the current folder to %s; it is %s again, where the files of this run go",
        name,
        now,
        before,
    )


def layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps, from the outside in."""
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def declared(env: Any, attribute: str) -> Any:
    """An attribute of the outermost layer that has it, None where none does."""
    for layer in layers(env):
        try:
            value = getattr(layer, attribute, None)
        except (Exception, SystemExit) as error:  # a property is code of the user's own
            raise InputError(f"{attribute} cannot be read: {place_of(error)}") from error
        if value is not None:
            return value
    return None


def declared_costs(env: Any, count: int) -> Costs:
    """`cost_names` and `largest_costs` of an environment with `count` costs."""
    names, largest = declared(env, "cost_names"), declared(env, "largest_costs")
    default = ("cost",) if count == 1 else tuple(f"cost{i}" for i in range(count))
    return Costs(
        default if names is None else _names(_entries("cost_names", names, count, "('slip',)")),
        (math.inf,) * count if largest is None else _bounds(_entries("largest_costs", largest, count, "(1.0,)")),
    )


def _entries(attribute: str, values: Any, count: int, example: str) -> Sequence[Any]:
    try:
        # One more than there may be: an iterator need not end.
        entries = None if isinstance(values, str | bytes | dict | set) else list(itertools.islice(values, count + 1))
    except Exception:
        entries = None
    if entries is None:
        raise InputError(f"{attribute} is {short(values)}; it must be a tuple with one entry per cost, as in {example}")
    if len(entries) != count:
        held = len(entries) if len(entries) <= count else "more"
        raise InputError(f"{attribute} must have one entry per cost, {count} in all; it has {held}")
    return entries


def short(value: Any) -> str:
    """A value of somebody else's on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = ""
    return text if 0 < len(text) < 60 else f"a {type(value).__name__}"


def _names(names: Sequence[Any]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"cost_names holds {short(name)}; names must be texts")
        if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
            raise InputError(f"cost_names holds {name[:80]!r}; names must be 1 to {_LONGEST_NAME} printable characters")
    if len(set(names)) != len(names):
        raise InputError(f"cost_names are {', '.join(names)}; no name may come twice")
    return tuple(names)


def _bounds(bounds: Sequence[Any]) -> tuple[float, ...]:
    for bound in bounds:
        try:
            good = not isinstance(bound, str | bool) and (0 < float(bound) <= _LARGEST or float(bound) == math.inf)
        except Exception:
            good = False
        if not good:
            raise InputError(
                f"largest_costs holds {short(bound)}; each must be a positive number (at most {_LARGEST:g}), inf "
                "where it is not known"
            )
    return tuple(float(bound) for bound in bounds)
