"""The algorithms by name, and what each is made of.

A new algorithm is a module of this package that ends with `ALGORITHM = Algorithm(...)`, and its name here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailsafe.errors import InputError

if TYPE_CHECKING:
    from tailsafe.algorithms.learner import Learner
    from tailsafe.algorithms.state import LearnerConfig, LearnerSettings

# Each is the name of its module. Modules are imported when they are needed: names alone do not wait for JAX.
ALGORITHMS = ("srcpo", "cppo", "cvar_cpo", "sdac", "sdpo", "wcsac", "ppo_lag", "ppo_pid")
DEFAULT_ALGORITHM = ALGORITHMS[0]


@dataclass(frozen=True)
class Algorithm:
    """A learner and the classes of its static configuration and of its settings."""

    learner: type[Learner[Any]]
    config: type[LearnerConfig]
    settings: type[LearnerSettings]


def check_algorithm(name: str) -> None:
    """An `InputError` unless there is an algorithm of this name."""
    if name not in ALGORITHMS:
        raise InputError(f"unknown algorithm {name!r}; there are: {', '.join(ALGORITHMS)}")


@cache
def algorithm_of(name: str) -> Algorithm:
    """What the algorithm of this name is made of."""
    check_algorithm(name)
    found: Algorithm = import_module(f"tailsafe.algorithms.{name}").ALGORITHM
    return found
