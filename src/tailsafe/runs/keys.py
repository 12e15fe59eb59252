"""The keys of a run's settings: which there are, what values they take, and where their defaults come from.

A key is a field of an algorithm's configuration, a number of its settings, or belongs to the run itself. Presets are
YAML files of such keys; a section named after a family of tasks (`finite`, `navigation`, `legged`, `user`) overrides
what stands above it. A section named after an algorithm, which may have sections for families too, overrides both;
what the algorithm does not know of the rest is left out.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tailsafe.errors import InputError

PRESETS = ("laptop", "paper", "gpu")
FAMILIES = ("finite", "navigation", "legged", "user")
ALGORITHMS = ("srcpo", "cppo", "cvar_cpo", "sdac", "sdpo", "wcsac")

# Numbers of `Settings` that a preset need not name. gamma of a finite problem is its discount.
SCALARS: dict[str, float] = {
    "gamma": 0.99,
    "trace": 0.97,
    "max_kl": 0.001,
    "kl_decay": math.inf,
    "critic_rate": 3e-4,
    "sampler_rate": 3e-4,
    "sampler_deviation": 0.05,
    "penalty": 10.0,
    "margin": 0.0,
    "uniform_share": 0.0,
    "max_weight": 1000.0,
    "recovery_share": 0.7,
    "joint_updates": 50.0,
    "calibration": 0.0,
    "ipo_kappa": 0.05,
    "p3o_kappa": 20.0,
    "policy_rate": 3e-5,
    "entropy_weight": 0.0,
    "multiplier_rate": 0.01,
    "beta_rate": 0.01,
    "largest_multiplier": 1000.0,
    "barrier": 5.0,
    "temperature_rate": 1e-3,
    "polyak": 0.005,
}

# What belongs to the run: types and defaults. What they and all others mean: `tailsafe.runs.settings`.
RUN_TYPES: dict[str, Any] = {
    "total_steps": int,
    "checkpoint_every": int | None,
    "log_every": int,
    "cells": int,
    "least_cells": int,
    "problem": Any,
    "largest_cost": float | None,
    "cut_halted": bool,
}
RUN_DEFAULTS: dict[str, Any] = {
    "total_steps": 1_000_000,
    "checkpoint_every": None,
    "log_every": 10,
    "cells": 5,
    "least_cells": 2,
    "problem": None,
    "largest_cost": None,
    "cut_halted": False,
}

# (lowest, highest); a bound in `_OPEN` is not allowed itself. Whole numbers without an entry are at least 1, others
# finite.
_INF = math.inf
_RANGES: dict[str, tuple[float, float]] = {
    "gamma": (0.0, 1.0),
    "trace": (0.0, 1.0),
    "max_kl": (0.0, _INF),
    "kl_decay": (0.0, _INF),
    "kl_cap": (0.0, _INF),
    "critic_rate": (0.0, _INF),
    "sampler_rate": (0.0, _INF),
    "sampler_deviation": (0.0, _INF),
    "penalty": (0.0, _INF),
    "margin": (0.0, 1.0),
    "uniform_share": (0.0, 1.0),
    "max_weight": (0.0, _INF),
    "recovery_share": (0.0, 1.0),
    "joint_updates": (0.0, _INF),
    "calibration": (0.0, 1.0),
    "ipo_kappa": (0.0, _INF),
    "p3o_kappa": (0.0, _INF),
    "policy_rate": (0.0, _INF),
    "entropy_weight": (0.0, _INF),
    "multiplier_rate": (0.0, _INF),
    "beta_rate": (0.0, _INF),
    "largest_multiplier": (0.0, _INF),
    "barrier": (0.0, _INF),
    "temperature_rate": (0.0, _INF),
    "polyak": (0.0, 1.0),
    "critic_clip": (0.0, _INF),
    "policy_clip": (0.0, _INF),
    "ratio_clip": (0.0, _INF),
    "kl_stop": (0.0, _INF),
    "initial_log_std": (-4.0, 2.0),
    "damping": (0.0, _INF),
    "clip_observation": (0.0, _INF),
    "largest_cost": (0.0, _INF),
    "cells": (2, 64),
    "least_cells": (2, 64),
}
_OPEN = {
    *(
        (name, 0.0)
        for name in ("max_kl", "kl_decay", "kl_cap", "critic_rate", "sampler_deviation", "max_weight", "recovery_share")
    ),
    *((name, 0.0) for name in ("damping", "clip_observation", "largest_cost")),
    *((name, 0.0) for name in ("ipo_kappa", "p3o_kappa", "policy_rate", "barrier", "polyak")),
    *((name, 0.0) for name in ("critic_clip", "policy_clip", "ratio_clip", "kl_stop")),
    *((name, 1.0) for name in ("gamma", "trace", "margin")),
}
_MAY_BE_INFINITE = {"kl_decay", "kl_cap", "critic_clip", "policy_clip"}


def scalar_names(settings: type) -> list[str]:
    """The numbers of an algorithm's settings class."""
    return [field.name for field in dataclasses.fields(settings) if field.name not in ("constraints", "horizon")]


@cache
def key_types(algorithm: str = "srcpo") -> dict[str, Any]:
    """Every key of an algorithm and the type of its values."""
    from tailsafe.algorithms.registry import REGISTRY

    parts = REGISTRY[algorithm]
    return {**get_type_hints(parts.config), **dict.fromkeys(scalar_names(parts.settings), float), **RUN_TYPES}


def parsed(key: str, value: Any, algorithm: str = "srcpo") -> Any:
    """`value` (text or not) as the type of `key`, in its range; or an `InputError` that says what is allowed."""
    known = key_types(algorithm)
    if key not in known:
        users = [name for name in ALGORITHMS if key in key_types(name)]
        if users:
            raise InputError(f"{algorithm} has no setting {key!r}; it belongs to {', '.join(users)}")
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        raise InputError(f"unknown setting {key!r}; did you mean {near[0]}?")
    return _checked(key, _converted(key, value, known[key]))


def _converted(key: str, value: Any, kind: Any) -> Any:
    if kind is Any:
        return value
    if get_origin(kind) in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null", "")):
            return None
        return _converted(key, value, next(part for part in get_args(kind) if part is not type(None)))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InputError(f"{key} is {value!r}; it must be one of {', '.join(get_args(kind))}")
        return value
    if get_origin(kind) is tuple:
        parts = value.strip("()[] ").split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise InputError(f"{key} is {value!r}; it must be whole numbers, as in 64,64")
        return tuple(_checked(key, _converted(key, part, int)) for part in parts if part != "")
    if kind is bool:
        words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if str(value).lower() not in words:
            raise InputError(f"{key} is {value!r}; it must be true or false")
        return words[str(value).lower()]
    return _number(key, value, kind)


def _number(key: str, value: Any, kind: Any) -> Any:
    what = "a whole number" if kind is int else "a number"
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value.replace("_", "") if isinstance(value, str) else value)
        if kind is int:
            if number != int(number):
                raise ValueError
            return int(number)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{key} is {value!r}; it must be {what}") from None
    return number


def _checked(key: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    low, high = _range(key, isinstance(value, int))
    inside = low <= value <= high and not any(key == name and value == bound for name, bound in _OPEN)
    if not inside or (math.isinf(value) and key not in _MAY_BE_INFINITE):
        raise InputError(f"{key} is {value:g}; it must be in {_range_text(key, isinstance(value, int))}")
    return value


def _range(key: str, whole: bool) -> tuple[float, float]:
    return _RANGES.get(key, (1, _INF) if whole else (-_INF, _INF))


def _range_text(key: str, whole: bool) -> str:
    low, high = _range(key, whole)
    left = "(" if (key, float(low)) in _OPEN or math.isinf(low) else "["
    closed = key in _MAY_BE_INFINITE if math.isinf(high) else (key, float(high)) not in _OPEN
    return f"{left}{low:g}, {high:g}{']' if closed else ')'}"


def allowed(key: str, algorithm: str = "srcpo") -> str:
    """What a key may be, in words."""
    return _allowed(key, key_types(algorithm)[key])


def _allowed(key: str, kind: Any) -> str:
    if kind is Any:
        return "a file"
    if get_origin(kind) in (Union, types.UnionType):
        return f"{_allowed(key, next(part for part in get_args(kind) if part is not type(None)))}, or none"
    if get_origin(kind) is Literal:
        return " | ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "whole numbers, as in 64,64"
    if kind is bool:
        return "true | false"
    bounds = "" if kind is float and key not in _RANGES else f" in {_range_text(key, kind is int)}"
    return ("whole number" if kind is int else "number") + bounds


def preset_values(preset: str, family: str, algorithm: str = "srcpo") -> dict[str, Any]:
    """The settings of a preset for a family of tasks and an algorithm."""
    if preset not in PRESETS:
        near = difflib.get_close_matches(str(preset), PRESETS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"unknown preset {preset!r}{hint} (there are: {', '.join(PRESETS)})")
    import yaml

    content = yaml.safe_load(files("tailsafe.runs").joinpath("presets", f"{preset}.yaml").read_text(encoding="utf-8"))
    known = key_types(algorithm)
    # What only others know is left out; what nobody knows is a mistake, and `parsed` says so.
    others = set().union(*map(key_types, ALGORITHMS)) - set(known)
    shared = {key: value for key, value in _for_family(content, family).items() if key not in others}
    own = _for_family(content.get(algorithm) or {}, family)
    return {key: parsed(key, value, algorithm) for key, value in {**shared, **own}.items()}


def _for_family(content: Mapping[str, Any], family: str) -> dict[str, Any]:
    """A preset's keys outside of all sections, overridden by those of a family."""
    general = {key: value for key, value in content.items() if key not in (*FAMILIES, *ALGORITHMS)}
    return {**general, **(content.get(family) or {})}


def resolved_values(preset: str, family: str, overrides: Mapping[str, Any], algorithm: str = "srcpo") -> dict[str, Any]:
    """Every key with its value: defaults, then the preset, then `overrides`; checked one by one and together."""
    from tailsafe.algorithms.registry import REGISTRY

    known = key_types(algorithm)
    values: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(REGISTRY[algorithm].config)}
    values |= {key: SCALARS[key] for key in known if key in SCALARS} | RUN_DEFAULTS
    values |= preset_values(preset, family, algorithm)
    values |= {key: parsed(key, value, algorithm) for key, value in overrides.items()}
    missing = sorted(set(known) - set(values))
    if missing:
        raise InputError(f"the preset {preset} does not set {', '.join(missing)}")
    _check_together(values)
    return values


def _check_together(values: Mapping[str, Any]) -> None:
    def need(holds: bool, rule: str) -> None:
        if not holds:
            raise InputError(rule)

    envs, groups = values["num_envs"], values.get("groups", 1)
    need(envs % groups == 0, f"groups is {groups}; it must divide num_envs, which is {envs}")
    if "critic_minibatches" in values:
        rows = envs * values["chunk_steps"] * values["batch_chunks"]
        parts = values["critic_minibatches"]
        need(parts <= rows, f"critic_minibatches is {parts}; it must not exceed the rows of a batch, which are {rows}")
    for small, large in (("batch_chunks", "replay_chunks"), ("policy_chunks", "batch_chunks")):
        if small not in values:
            continue
        need(
            values[small] <= values[large],
            f"{small} is {values[small]}; it must not exceed {large}, which is {values[large]}",
        )
