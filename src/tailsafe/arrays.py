"""One implementation for NumPy and JAX.

The formulas of `risk` and `tabular` are written once against `xp`, the array namespace of their argument: NumPy in
float64 for data on disk and for exact references, JAX (in the argument's own precision, traced or not) inside
a learner. JAX is never imported here: an argument that is a JAX array has imported it already.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import scipy.special

from tailsafe.errors import InputError

# A NumPy array, a JAX array, or whatever NumPy turns into one.
Array = Any


def namespace(*arrays: Array) -> ModuleType:
    """`jax.numpy` if any argument is a JAX array (concrete or traced), else `numpy`."""
    for array in arrays:
        find = getattr(array, "__array_namespace__", None)
        if find is not None and (xp := find()) is not np:
            return xp  # type: ignore[no-any-return]
    return np


def special(xp: ModuleType) -> ModuleType:
    """The special functions (`ndtr`, `ndtri`) that belong to the namespace `xp`."""
    if xp is np:
        return scipy.special  # type: ignore[no-any-return]
    import jax.scipy.special

    return jax.scipy.special


def as_float(array: Array, xp: ModuleType) -> Array:
    """float64 under NumPy; under JAX the array's own floating type (integers become the default one)."""
    if xp is np:
        return np.asarray(array, dtype=np.float64)
    array = xp.asarray(array)
    return array if xp.issubdtype(array.dtype, xp.floating) else array.astype(float)


def require(name: str, array: np.ndarray, ok: np.ndarray, rule: str, says: str = "is {:g}") -> None:
    """Raise an `InputError` that names the first entry of `array` where `ok` is False: `costs[0][1] is -2; rule`."""
    if not np.all(ok):
        index = np.unravel_index(int(np.argmin(ok)), np.shape(ok))
        place = name + "".join(f"[{i}]" for i in index)
        raise InputError(f"{place} {says.format(array[index])}; {rule}")
