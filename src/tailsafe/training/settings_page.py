"""The settings of an algorithm as rows for people: what each may be, what it means, what the presets make of it.

`tailsafe settings` and the settings page of the documentation print this.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from tailsafe.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM, check_algorithm
from tailsafe.errors import InputError
from tailsafe.fields import Part
from tailsafe.training.config import plain
from tailsafe.training.settings import FAMILIES, PRESETS, known_settings, resolved_values, users_of


@dataclass(frozen=True)
class SettingRow:
    """One setting of an algorithm. defaults: by preset. main: among the few that matter most."""

    key: str
    allowed: str
    defaults: dict[str, Any]
    meaning: str
    part: Part
    main: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinity is "inf"."""
        return {
            "key": self.key,
            "allowed": self.allowed,
            "defaults": {preset: plain(value) for preset, value in self.defaults.items()},
            "meaning": self.meaning,
            "part": self.part,
            "main": self.main,
        }


def describe_settings(algorithm: str = DEFAULT_ALGORITHM, family: str = "navigation") -> list[SettingRow]:
    """Every setting of an algorithm in the order of `fields.PARTS`, with its defaults for a family of tasks."""
    check_algorithm(algorithm)
    if family not in FAMILIES:
        raise InputError(f"unknown family {family!r}; there are: {', '.join(FAMILIES)}")
    values = {preset: resolved_values(preset, family, {}, algorithm) for preset in PRESETS}
    return [
        SettingRow(
            key,
            setting.allowed,
            {preset: of[key] for preset, of in values.items()},
            setting.declaration.meaning,
            setting.declaration.part,
            setting.declaration.main,
        )
        for key, setting in known_settings(algorithm).items()
    ]


def asked_for(names: list[str]) -> tuple[str, str | None]:
    """The algorithm and the setting that words name, in any order; a setting alone is one of the first that has it."""
    algorithm: str | None = None
    key: str | None = None
    for name in names:
        if name in ALGORITHMS and algorithm is None:
            algorithm = name
        elif users_of(name) and key is None:
            key = name
        else:
            keys = {key for each in ALGORITHMS for key in known_settings(each)}
            near = difflib.get_close_matches(name, sorted(keys), n=1, cutoff=0.0)[0]
            there = ", ".join(ALGORITHMS)
            raise InputError(f"unknown algorithm {name!r}; there are: {there}. If you mean a setting: {near}?")
    if key is None:
        return algorithm or DEFAULT_ALGORITHM, None
    users = users_of(key)
    if algorithm is not None and algorithm not in users:
        raise InputError(f"{algorithm} has no setting {key!r}; it belongs to {', '.join(users)}")
    return algorithm or users[0], key


def written(value: Any) -> str:
    """A value as `--set KEY=VALUE` takes it."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, bool | None):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)
