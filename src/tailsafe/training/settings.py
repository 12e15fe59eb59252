"""The settings of a run: which there are, and where their values come from.

A setting is a field of the run, of an algorithm's static configuration or of its settings (`tailsafe.fields`). Presets
are YAML files of such keys; a section named after a family of tasks (`finite`, `navigation`, `legged`, `user`)
overrides what stands above it. A section named after an algorithm, which may have sections for families too, overrides
both; what the algorithm does not know of the rest is left out.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tailsafe.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_of
from tailsafe.errors import InputError
from tailsafe.fields import PARTS, Setting, setting, settings_of

PRESETS = ("laptop", "paper", "gpu")
FAMILIES = ("finite", "navigation", "legged", "user")


@dataclass(frozen=True)
class RunSettings:
    """What belongs to the run, whatever the algorithm."""

    total_steps: int = setting(1_000_000, "Control steps over all environments.", part="run", main=True)
    checkpoint_every: int | None = setting(
        None, "Steps between two checkpoints; none: a twentieth of total_steps.", part="run"
    )
    log_every: int = setting(10, "Updates between two rows of the log.", part="run")
    validation_every: int = setting(
        0,
        "Steps between two validations: the policy that would be shipped plays fresh episodes, which correct the "
        "estimates of its risks and decide which policy is shipped in the end; 0: never.",
        part="run",
        within="[0, inf)",
    )
    validation_episodes: int = setting(
        256, "Episodes of a validation, as long as their discounted costs still grow.", part="run"
    )
    request_episodes: int = setting(
        0,
        "Of a range of limits, at the end: fresh episodes at each place of a grid, which say where a request is "
        "answered best; 0: each at its own place.",
        part="run",
        within="[0, inf)",
    )
    cells: int = setting(
        5,
        "Levels of the step spectra that stand for Pow, Wang and custom spectra; CVaR and the mean need no choice.",
        part="run",
        within="[2, 64]",
        main=True,
    )
    least_cells: int = setting(
        2,
        "Spectra with fewer levels are padded to this many: runs with different measures then fit one program.",
        part="run",
        within="[2, 64]",
    )
    problem: Any = setting(None, "Of the task finite: its problem, a JSON file.", part="run")
    largest_cost: float | None = setting(
        None, "The most a step can cost, for environments that do not say.", part="run", within="(0, inf)"
    )
    cut_halted: bool = setting(
        False,
        "Training episodes of robots that fell and would lie still end there; evaluation never cuts.",
        part="run",
    )
    env_workers: int = setting(
        1, "Processes that step a user's Gymnasium environments; divides num_envs.", part="run", within="[1, 1024]"
    )


@cache
def known_settings(algorithm: str = DEFAULT_ALGORITHM) -> Mapping[str, Setting]:
    """Every setting of an algorithm by its name, in the order of tables: by what it is about."""
    parts = algorithm_of(algorithm)
    found = {**settings_of(RunSettings), **settings_of(parts.config), **settings_of(parts.settings)}
    ordered = sorted(found.values(), key=lambda each: PARTS.index(each.declaration.part))
    return types.MappingProxyType({each.key: each for each in ordered})


def users_of(key: str) -> list[str]:
    """The algorithms that have a setting of this name."""
    return [algorithm for algorithm in ALGORITHMS if key in known_settings(algorithm)]


def parsed(key: str, value: Any, algorithm: str = DEFAULT_ALGORITHM) -> Any:
    """`value` (text or not) as the type of `key`, in its range; or an `InputError` that says what is allowed."""
    known = known_settings(algorithm)
    if key not in known:
        users = users_of(key)
        if users:
            raise InputError(f"{algorithm} has no setting {key!r}; it belongs to {', '.join(users)}")
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        raise InputError(f"unknown setting {key!r}; did you mean {near[0]}?")
    return known[key].parse(value)


def preset_values(preset: str, family: str, algorithm: str = DEFAULT_ALGORITHM) -> dict[str, Any]:
    """The settings of a preset for a family of tasks and an algorithm."""
    if preset not in PRESETS:
        near = difflib.get_close_matches(str(preset), PRESETS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"unknown preset {preset!r}{hint} (there are: {', '.join(PRESETS)})")
    import yaml

    content = yaml.safe_load(
        files("tailsafe.training").joinpath("presets", f"{preset}.yaml").read_text(encoding="utf-8")
    )
    # What only others know is left out; what nobody knows is a mistake, and `parsed` says so.
    others = set().union(*map(known_settings, ALGORITHMS)) - set(known_settings(algorithm))
    shared = {key: value for key, value in _for_family(content, family).items() if key not in others}
    own = _for_family(content.get(algorithm) or {}, family)
    return {key: parsed(key, value, algorithm) for key, value in {**shared, **own}.items()}


def _for_family(content: Mapping[str, Any], family: str) -> dict[str, Any]:
    """A preset's keys outside of all sections, overridden by those of a family."""
    general = {key: value for key, value in content.items() if key not in (*FAMILIES, *ALGORITHMS)}
    return {**general, **(content.get(family) or {})}


def resolved_values(
    preset: str, family: str, overrides: Mapping[str, Any], algorithm: str = DEFAULT_ALGORITHM
) -> dict[str, Any]:
    """Every key with its value: defaults, then the preset, then `overrides`; checked one by one and together."""
    values: dict[str, Any] = {key: known.default for key, known in known_settings(algorithm).items()}
    values |= preset_values(preset, family, algorithm)
    values |= {key: parsed(key, value, algorithm) for key, value in overrides.items()}
    _check_together(values)
    return values


def _check_together(values: Mapping[str, Any]) -> None:
    def need(holds: bool, rule: str) -> None:
        if not holds:
            raise InputError(rule)

    envs, groups = values["num_envs"], values.get("groups", 1)
    need(not groups or envs % groups == 0, f"groups is {groups}; it must divide num_envs, which is {envs}")
    workers = values.get("env_workers", 1)
    need(envs % workers == 0, f"env_workers is {workers}; it must divide num_envs, which is {envs}")
    if "critic_minibatches" in values:
        rows = envs * values["chunk_steps"] * values["batch_chunks"]
        parts = values["critic_minibatches"]
        need(parts <= rows, f"critic_minibatches is {parts}; it must not exceed the rows of a batch, which are {rows}")
    if "batch_chunks" in values:
        batch, kept = values["batch_chunks"], values["replay_chunks"]
        need(batch <= kept, f"batch_chunks is {batch}; it must not exceed replay_chunks, which is {kept}")
