"""Arrays against the shapes in signatures, at every call of a test: the type checker of jaxtyping's import hook.

`tests/__init__.py` names the packages it is put on. It looks at arrays alone, and at the axes of all arguments together
before it judges: a signature may say `1+C` before it says `C`, which type checkers that go from left to right refuse.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Union, get_args, get_origin

import jax
import numpy as np

# An axis such as `1+C`, `M-1`, `1+2C`: a number, or one more or less than a multiple of a name.
AXIS = re.compile(r"(?:(\d+)\+)?(\d*)([A-Za-z_]\w*)(?:([+-]\d+))?")


class ShapeError(TypeError):
    """An array does not have the shape, or not the kind of numbers, that a signature says."""


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its annotated arrays checked, those that it returns included."""
    signature = inspect.signature(function)
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    returned = signature.return_annotation
    if function.__name__ == "__init__" or not any(map(_has_arrays, (*hints.values(), returned))):
        # Rows of a vectorised run have one more axis than one of them: a class cannot know.
        return function

    def check(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        result = function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        found = [leaf for name, value in bound.arguments.items() for leaf in leaves(hints[name], value, name)]
        agree([*found, *leaves(returned, result, "what it returns")], function.__qualname__)
        return result

    return check


def agree(found: list[tuple[str, Any, Any]], where: str) -> None:
    """A `ShapeError` unless there are lengths of all axes with which every array is one of those it may be.

    found: of every array what it is called, its hints, itself.
    """
    sizes: dict[str, Any] = {}
    for plain in (True, False):
        for name, hints, array in found:
            if all(_is_plain(hint.dim_str) for hint in hints) != plain:
                continue
            for hint in hints:
                known = fitted(hint.dim_str, array.shape, sizes) if _is_kind(hint, array) else None
                if known is not None:
                    sizes = known
                    break
            else:
                wanted = " or ".join(hint.__name__ for hint in hints)
                raise ShapeError(f"{where}: {name} has {array.dtype} {array.shape}, not {wanted} with {sizes}")


def fitted(axes: str, shape: tuple[int, ...], sizes: dict[str, Any]) -> dict[str, Any] | None:
    """`sizes` with those that an array of this shape adds; None where it does not fit."""
    names, known = axes.split(), dict(sizes)
    many = [i for i, name in enumerate(names) if name.startswith(("...", "*"))]
    if len(shape) < len(names) - len(many) or (not many and len(shape) != len(names)):
        return None
    if many:
        at, rest = many[0], len(names) - many[0] - 1
        middle, name = shape[at : len(shape) - rest], names[at]
        if name != "..." and known.setdefault(name, middle) != middle:
            return None
        names, shape = names[:at] + names[at + 1 :], shape[:at] + shape[len(shape) - rest :]
    for name, size in zip(names, shape, strict=True):
        if name == "_" or (name.startswith("#") and size == 1):
            continue
        if name.isdigit():
            if size != int(name):
                return None
            continue
        before, times, letter, after = _axis(name.removeprefix("#"))
        length, left = divmod(size - before - after, times)
        if left or length < 0 or known.setdefault(letter, length) != length:
            return None
    return known


@cache
def _axis(name: str) -> tuple[int, int, str, int]:
    match = AXIS.fullmatch(name)
    if match is None:
        return 0, 1, name, 0  # a sum of two names: an axis of its own
    before, times, letter, after = match.groups()
    return int(before or 0), int(times or 1), letter, int(after or 0)


@cache
def _is_plain(axes: str) -> bool:
    return all(name.isidentifier() or name.isdigit() or name == "..." for name in axes.split())


def _is_kind(hint: Any, array: Any) -> bool:
    kinds = {"Float": "fV", "Int": "iu", "Bool": "b"}
    return array.dtype.kind in kinds.get(hint.__name__.partition("[")[0], array.dtype.kind)


def leaves(hint: Any, value: Any, name: str) -> Iterator[tuple[str, list[Any], Any]]:
    """The arrays of a value whose shapes its hint says."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, tuple):
        kinds = [parts[0]] * len(value) if len(parts) == 2 and parts[1] is Ellipsis else parts
        for i, (kind, part) in enumerate(zip(kinds, value, strict=False)):
            yield from leaves(kind, part, f"{name}[{i}]")
    elif origin in (list, dict) and isinstance(value, origin):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(parts[-1], part, f"{name}[{key!r}]")
    elif isinstance(value, jax.Array | np.ndarray) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        kinds = parts if origin in (Union, types.UnionType) else (hint,)
        if all(map(_is_array, kinds)) or (origin is not None and any(map(_is_array, kinds))):
            yield name, [kind for kind in kinds if _is_array(kind)], value


def _is_array(hint: Any) -> bool:
    return hasattr(hint, "dim_str")


def _has_arrays(hint: Any) -> bool:
    return _is_array(hint) or any(map(_has_arrays, get_args(hint)))
