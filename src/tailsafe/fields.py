"""Settings as fields of dataclasses: each says once what it means, what it may be and what it is by default.

    @dataclass(frozen=True)
    class Config:
        num_envs: int = setting(5, "Environments that are stepped together.", part="sizes")

Everything else about a setting (parsing text, checking ranges, tables for people) is derived from the field. A subclass
that only changes a default writes `num_envs: int = 16`; meaning and range are those of the class it inherits from.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tailsafe.errors import InputError

# What a setting is about, in the order of tables.
Part = Literal["run", "sizes", "networks", "critics", "policy", "constraints", "sampler"]
PARTS: tuple[Part, ...] = get_args(Part)
_KEY = "tailsafe"
T = TypeVar("T")


@dataclass(frozen=True)
class Interval:
    """Numbers from low to high; an open end is not allowed itself, infinity only where that end is closed."""

    low: float
    high: float
    low_open: bool
    high_open: bool

    @staticmethod
    def parse(text: str) -> Interval:
        """`[0, 1)`, `(0, inf]`: square brackets are closed ends, round ones open."""
        low, high = text[1:-1].split(",")
        return Interval(float(low), float(high), text[0] == "(", text[-1] == ")")

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low:g}, {self.high:g}{')' if self.high_open else ']'}"


_POSITIVE = Interval.parse("[1, inf)")
# The largest that a double holds exactly.
_LARGEST_WHOLE = 2**53
_FINITE = Interval.parse("(-inf, inf)")


@dataclass(frozen=True)
class Declaration:
    """What a field says about itself. within: None where any number will do (whole ones: from 1). default: of numbers
    that become arrays, whose fields cannot hold it.
    """

    meaning: str
    part: Part
    within: Interval | None = None
    main: bool = False
    default: float | None = None


def setting(default: T, meaning: str, *, part: Part, within: str | None = None, main: bool = False) -> T:
    """A field that is fixed when a program is compiled.

    within: the range of numbers, as in `[0, 1)`. main: among the few that matter most.
    """
    metadata = {_KEY: Declaration(meaning, part, _interval(within), main)}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


def scalar(default: float, meaning: str, *, part: Part, within: str | None = None, main: bool = False) -> Any:
    """A field that is an array of one number: it may differ between the runs of one program."""
    metadata = {_KEY: Declaration(meaning, part, _interval(within), main, default)}
    return dataclasses.field(default_factory=lambda: _array(default), metadata=metadata)


def _interval(text: str | None) -> Interval | None:
    return None if text is None else Interval.parse(text)


def _array(value: float) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(value, float)


@dataclass(frozen=True)
class Setting:
    """One setting: the name of a field, the type of its values, its default, and what it says about itself."""

    key: str
    kind: Any
    default: Any
    declaration: Declaration

    def parse(self, value: Any) -> Any:
        """`value` (text or not) as the setting's type, in its range; or an `InputError` that says what is allowed."""
        return self._checked(self._converted(value, self.kind))

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        return self._allowed(self.kind)

    def _converted(self, value: Any, kind: Any) -> Any:
        if kind is Any:
            return value
        if get_origin(kind) in (Union, types.UnionType):
            if value is None or (isinstance(value, str) and value.lower() in ("none", "null", "")):
                return None
            return self._converted(value, _not_none(kind))
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise InputError(f"{self.key} is {value!r}; it must be one of {', '.join(get_args(kind))}")
            return value
        if get_origin(kind) is tuple:
            parts = value.strip("()[] ").split(",") if isinstance(value, str) else value
            if not isinstance(parts, list | tuple):
                raise InputError(f"{self.key} is {value!r}; it must be whole numbers, as in 64,64")
            return tuple(self._checked(self._number(part, int)) for part in parts if part != "")
        if kind is bool:
            words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
            if str(value).lower() not in words:
                raise InputError(f"{self.key} is {value!r}; it must be true or false")
            return words[str(value).lower()]
        return self._number(value, kind)

    def _number(self, value: Any, kind: Any) -> int | float:
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value.replace("_", "") if isinstance(value, str) else value)
            if kind is int:
                if number != int(number):
                    raise ValueError
                number = int(number)
        except (TypeError, ValueError, OverflowError):
            what = "a whole number" if kind is int else "a number"
            raise InputError(f"{self.key} is {value!r}; it must be {what}") from None
        if kind is int and abs(number) > _LARGEST_WHOLE:
            raise InputError(f"{self.key} is {value}; no whole number may be above {_LARGEST_WHOLE:,}")
        return number

    def _checked(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        within = self._within(isinstance(value, int))
        if value not in within:
            raise InputError(f"{self.key} is {value:g}; it must be in {within}")
        return value

    def _within(self, whole: bool) -> Interval:
        return self.declaration.within or (_POSITIVE if whole else _FINITE)

    def _allowed(self, kind: Any) -> str:
        if kind is Any:
            return "a file"
        if get_origin(kind) in (Union, types.UnionType):
            return f"{self._allowed(_not_none(kind))}, or none"
        if get_origin(kind) is Literal:
            return " | ".join(get_args(kind))
        if get_origin(kind) is tuple:
            return "whole numbers, as in 64,64"
        if kind is bool:
            return "true | false"
        if kind is int:
            return f"whole number in {self._within(whole=True)}"
        return "number" if self.declaration.within is None else f"number in {self.declaration.within}"


def _not_none(kind: Any) -> Any:
    return next(part for part in get_args(kind) if part is not type(None))


def settings_of(kind: type) -> Mapping[str, Setting]:
    """The declared settings of a dataclass, in the order of its fields; fields that declare nothing are none."""
    declarations = _declarations(kind)
    hints = get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        declaration = declarations.get(field.name)
        if declaration is None:
            continue
        number = declaration.default is not None
        of_type, default = (float, declaration.default) if number else (hints[field.name], field.default)
        found[field.name] = Setting(field.name, of_type, default, declaration)
    return types.MappingProxyType(found)


def _declarations(kind: type) -> dict[str, Declaration]:
    """By field, of the nearest class that has one."""
    found: dict[str, Declaration] = {}
    for ancestor in reversed(kind.__mro__):
        for field in ancestor.__dict__.get("__dataclass_fields__", {}).values():
            if _KEY in field.metadata:
                found[field.name] = field.metadata[_KEY]
    return found
