"""What a search may choose: for each setting a range or a list of values, from the declarations or from a person."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from tailsafe.algorithms.registry import DEFAULT_ALGORITHM
from tailsafe.errors import InputError
from tailsafe.fields import Setting
from tailsafe.training.settings import known_settings, parsed
from tailsafe.training.settings_page import written

# A positive number is searched from a fifth of the preset's value to five times that; a whole one from half to double.
_FACTOR, _WHOLE_FACTOR = 5.0, 2.0
# Of a bounded interval, how far around the preset's value.
_SHARE = 1 / 3
# Ranges that span this factor are searched on a logarithmic scale.
_LOGARITHMIC = 10.0
_DIGITS = 4
# They change what is asked for, not how well it is learned: the length of a run, the problem, what limits are about.
_FIXED = ("total_steps", "problem", "gamma")


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    low: float
    high: float
    log: bool
    whole: bool

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def value(self, number: float) -> int | float:
        """A number as it is trained with: one that can be written down, inside the range."""
        if self.whole:
            return int(number)
        return min(max(float(f"{number:.{_DIGITS}g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{as_text(self.low)}..{as_text(self.high)}"


@dataclass(frozen=True)
class Choices:
    """One of these values."""

    values: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as text, which any storage can keep."""
        return tuple(map(as_text, self.values))

    def __str__(self) -> str:
        return ("/" if isinstance(self.values[0], tuple) else ",").join(self.texts)


Space = dict[str, Range | Choices]


def as_text(value: Any) -> str:
    """A value as `--set KEY=VALUE` takes it, with all its digits."""
    return repr(value) if isinstance(value, float) and math.isfinite(value) else written(value)


def default_space(
    values: Mapping[str, Any], fixed: Mapping[str, Any] = {}, algorithm: str = DEFAULT_ALGORITHM
) -> Space:
    """The settings that matter most, around a preset's `values` and within what each may be.

    fixed: settings that somebody chose; they stay, and so do those of the run itself.
    """
    found: Space = {}
    for key, setting in known_settings(algorithm).items():
        declared = setting.declaration
        if not declared.main or declared.part == "run" or key in (*_FIXED, *fixed):
            continue
        around = _around(setting, values[key])
        if around is not None:
            found[key] = around
    return found


def _around(setting: Setting, value: Any) -> Range | Choices | None:
    """A range or choices around a value; None for what there is nothing to choose of."""
    if get_origin(setting.kind) is Literal:
        return Choices(get_args(setting.kind))
    if setting.kind is bool:
        return Choices((False, True))
    if get_origin(setting.kind) is tuple:
        scaled = {tuple(max(1, round(width * factor)) for width in value) for factor in (0.5, 1, 2)}
        return Choices(tuple(sorted(scaled))) if value else None
    if setting.kind is int:
        if setting.declaration.part == "sizes":  # the program's shapes: few, and multiples of each other
            return Choices(tuple(sorted({max(1, value // 2), value, 2 * value})))
        low, high = max(1, math.floor(value / _WHOLE_FACTOR)), math.ceil(value * _WHOLE_FACTOR)
        return Range(*_kept(setting, low, high), log=True, whole=True)
    if setting.kind is float and math.isfinite(value):
        return Range(*_kept(setting, *_reach(setting, value)), log=value > 0 and not _bounded(setting), whole=False)
    return None


def _bounded(setting: Setting) -> bool:
    within = setting.declaration.within
    return within is not None and math.isfinite(within.low) and math.isfinite(within.high)


def _reach(setting: Setting, value: float) -> tuple[float, float]:
    within = setting.declaration.within
    if within is not None and _bounded(setting):
        reach = _SHARE * (within.high - within.low)
        return value - reach, value + reach
    # Zero is no scale: something that can be switched on is searched up to 1.
    return (value / _FACTOR, value * _FACTOR) if value > 0 else (value, value + 1.0)


def _kept(setting: Setting, low: float, high: float) -> tuple[float, float]:
    """Cut where the setting's own range ends; an end that is not allowed itself is not reached."""
    within = setting.declaration.within
    if within is None:
        return low, high
    inside = 1e-3 * (high - low)
    low = low if low in within else within.low + inside * within.low_open
    high = high if high in within else within.high - inside * within.high_open
    return low, high


def parse_space(
    asked: Mapping[str, str | Sequence[Any]] | Sequence[str],
    fixed: Mapping[str, Any] = {},
    algorithm: str = DEFAULT_ALGORITHM,
) -> Space:
    """`KEY=LOW..HIGH` or `KEY=a,b,c` (layers: `64,64/128,128`), or the same as a mapping, whose lists are choices."""
    pairs = asked.items() if isinstance(asked, Mapping) else map(_pair, asked)
    found: Space = {}
    for key, text in pairs:
        setting = _searched(key, algorithm)
        if key in fixed:
            raise InputError(f"{key} is both set and searched; choose one of the two")
        if key in found:
            raise InputError(f"{key} is searched twice; give one range for it")
        found[key] = _range_of(setting, text) if isinstance(text, str) and ".." in text else _choices_of(setting, text)
    return found


def _pair(text: str) -> tuple[str, str]:
    key, equals, values = text.partition("=")
    if not equals:
        raise InputError(f"--tune {text!r}: write KEY=LOW..HIGH or KEY=a,b,c, as in max_kl=0.001..0.1")
    return key.strip(), values.strip()


def _searched(key: str, algorithm: str) -> Setting:
    if key not in known_settings(algorithm):
        parsed(key, None, algorithm)  # says which one is meant
    if key in _FIXED:
        raise InputError(f"{key} cannot be searched: trials with other values of it cannot be compared")
    return known_settings(algorithm)[key]


def _range_of(setting: Setting, text: str) -> Range:
    if setting.kind not in (int, float):
        raise InputError(f"{setting.key} has no range; list its values, as in {setting.key}=A,B ({setting.allowed})")
    low, high = (setting.parse(end.strip()) for end in text.split("..", 1))
    if not low < high or not math.isfinite(high):
        raise InputError(f"{setting.key}={text}: the range must go from a smaller to a larger finite number")
    return Range(low, high, log=low > 0 and high / low >= _LOGARITHMIC, whole=setting.kind is int)


def _choices_of(setting: Setting, asked: str | Sequence[Any]) -> Choices:
    layers = get_origin(setting.kind) is tuple
    values = asked.split("/" if layers else ",") if isinstance(asked, str) else asked
    chosen = tuple(dict.fromkeys(setting.parse(one.strip() if isinstance(one, str) else one) for one in values))
    if not chosen:
        raise InputError(f"{setting.key}: list at least one value ({setting.allowed})")
    return Choices(chosen)


def refused_dropped(space: Space, objection: Callable[[str, Any], InputError | None]) -> Space:
    """The space without the choices that are refused even where everything else is as in the preset."""
    kept: Space = {}
    for key, one in space.items():
        if isinstance(one, Choices):
            values = tuple(value for value in one.values if objection(key, value) is None)
            if not values:
                raise InputError(f"{key}: none of {one} can be used: {objection(key, one.values[0])}")
            kept[key] = Choices(values)
        else:
            kept[key] = one
    return kept
