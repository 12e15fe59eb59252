"""A finite constrained Markov decision process with a horizon, and its PROBLEM.json form."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.arrays import require
from tailsafe.errors import InputError

FIELDS = ("horizon", "discount", "initial", "transitions", "rewards", "costs")
COMMENTS = ("name", "description")
# How far probabilities may be from summing to one (numbers typed with five digits or more); they are then made exact.
PROBABILITY_TOLERANCE = 1e-5
LARGEST = 1e12
LONGEST_HORIZON = 1000
_LARGEST_FILE = 2**28
# Risk advantages are divided by discount^t; below this weight of a step nothing but rounding would be left of them.
SMALLEST_WEIGHT = 1e-9


@dataclass(frozen=True, eq=False)
class FiniteCMDP:
    """States 0..S-1, actions 0..A-1, N costs; ends after `horizon` steps.

    Args:
      horizon: T >= 1 steps.
      discount: gamma in (0, 1].
      initial: (S,) rho(s).
      transitions: (S, A, S) P(s' | s, a).
      rewards: (S, A).
      costs: (N, S, A), non-negative.

    Examples:
      >>> problem = ts.FiniteCMDP(
      ...     horizon=1, discount=1.0, initial=[1.0], transitions=[[[1.0], [1.0]]],
      ...     rewards=[[1.0, 2.0]], costs=[[[0.0, 3.0]]],
      ... )
      >>> problem.num_costs
      1
    """

    horizon: int
    discount: float
    initial: np.ndarray
    transitions: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray

    def __post_init__(self) -> None:
        horizon = _number("horizon", self.horizon)
        if int(horizon) != horizon or not 1 <= horizon <= LONGEST_HORIZON:
            raise InputError(f"horizon is {self.horizon!r}; it must be a whole number from 1 to {LONGEST_HORIZON}")
        discount = _number("discount", self.discount)
        if not 0 < discount <= 1:
            raise InputError(f"discount is {discount:g}; it must be in (0, 1]")
        if discount ** (horizon - 1) < SMALLEST_WEIGHT:
            raise InputError(
                f"discount {discount:g} leaves the last of {horizon:g} steps a weight below {SMALLEST_WEIGHT:g}, which "
                "is lost in rounding; shorten the horizon"
            )
        transitions = _array("transitions", self.transitions, ("S", "A", "S"))
        states, actions, _ = transitions.shape
        if transitions.shape[2] != states:
            raise InputError(f"transitions has shape {transitions.shape}; it must be [S][A][S]")
        initial = _array("initial", self.initial, ("S",), (states,))
        rewards = _array("rewards", self.rewards, ("S", "A"), (states, actions))
        costs = _array("costs", self.costs, ("N", "S", "A"), (None, states, actions))
        require("costs", costs, costs >= 0, "costs must be non-negative")
        for name, value in (
            ("horizon", int(horizon)),
            ("discount", discount),
            ("initial", _probabilities("initial", initial)),
            ("transitions", _probabilities("transitions", transitions)),
            ("rewards", rewards),
            ("costs", costs),
        ):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    @property
    def states(self) -> int:
        return int(self.transitions.shape[0])

    @property
    def actions(self) -> int:
        return int(self.transitions.shape[1])

    @property
    def num_costs(self) -> int:
        return int(self.costs.shape[0])

    @property
    def effective_horizon(self) -> float:
        """1 / (1 - gamma), the paper's normaliser of the state distribution; the horizon if gamma is 1."""
        return 1 / (1 - self.discount) if self.discount < 1 else float(self.horizon)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FiniteCMDP:
        """Read the PROBLEM.json object."""
        if not isinstance(data, Mapping):
            raise InputError(f"a problem is an object with the keys {', '.join(FIELDS)}, got {type(data).__name__}")
        missing = [key for key in FIELDS if key not in data]
        unknown = [key for key in data if key not in FIELDS + COMMENTS]
        if missing:
            raise InputError(f"the problem lacks {', '.join(missing)} (it needs {', '.join(FIELDS)})")
        if unknown:
            raise InputError(
                f"the problem has the unknown key {unknown[0]!r} (allowed: {', '.join(FIELDS + COMMENTS)})"
            )
        return cls(**{key: data[key] for key in FIELDS})

    @classmethod
    def load(cls, path: str | Path) -> FiniteCMDP:
        """Read PROBLEM.json. Every complaint starts with the file's name."""
        try:
            data = json.loads(_content(Path(path)))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a text file") from None
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: not JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
        except (ValueError, RecursionError) as error:  # numbers or nesting that no problem has
            raise InputError(f"{path}: not a problem ({error})") from None
        try:
            return cls.from_dict(data)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The PROBLEM.json object."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in values.items()}


def _content(path: Path) -> str:
    """The text of a file, or of a pipe; a device that never ends is cut."""
    with path.open(encoding="utf-8") as handle:
        text = handle.read(_LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        raise ValueError(f"more than {_LARGEST_FILE:,} characters")
    return text


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name} is {value!r}; it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{name} is {number}; it must be finite")
    return number


def _array(name: str, values: Any, axes: tuple[str, ...], shape: tuple[int | None, ...] | None = None) -> np.ndarray:
    """`values` as finite float64 of the wanted shape, or an `InputError` naming the place."""
    wanted = name + "".join(f"[{axis}]" for axis in axes)
    if found := _odd_one_out(values, name):
        raise InputError(f"{found}; it must be numbers in the shape {wanted}")
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: {error}; it must be numbers in the shape {wanted}") from None
    if array.ndim != len(axes) or 0 in array.shape:
        raise InputError(f"{name} has shape {array.shape}; it must be {wanted}, each axis at least 1")
    if shape is not None and any(want not in (None, have) for want, have in zip(shape, array.shape, strict=True)):
        sizes = ", ".join(axis if size is None else f"{axis} = {size}" for axis, size in zip(axes, shape, strict=True))
        raise InputError(f"{name} has shape {array.shape}; it must be {wanted} with {sizes}")
    require(name, array, np.isfinite(array), "every entry must be finite")
    require(name, array, np.abs(array) <= LARGEST, f"entries beyond {LARGEST:g} leave no digits for the others")
    return array


def _odd_one_out(values: Any, path: str) -> str:
    """Where nested lists stop being rectangular or numeric, in words; empty if they do not."""
    if isinstance(values, np.ndarray):
        return ""
    if not isinstance(values, list | tuple):
        number = isinstance(values, int | float | np.number) and not isinstance(values, bool)
        return "" if number else f"{path} is {values!r}"
    lengths = [len(v) if isinstance(v, list | tuple) else None for v in values]
    usual = statistics.mode(lengths) if lengths else None
    for i, (value, length) in enumerate(zip(values, lengths, strict=True)):
        if found := _odd_one_out(value, f"{path}[{i}]"):
            return found
        if length != usual:
            say = ["a number" if n is None else f"a list of {n}" for n in (length, usual)]
            return f"{path}[{i}] is {say[0]}, its neighbours are {say[1]}"
    return ""


def _probabilities(name: str, array: np.ndarray) -> np.ndarray:
    require(name, array, array >= 0, "probabilities must be non-negative")
    sums = array.sum(-1)
    close = np.abs(sums - 1) <= PROBABILITY_TOLERANCE
    require(name, sums, close, "probabilities must sum to 1", says="sums to {:.9g}")
    return np.asarray(array / sums[..., None])
