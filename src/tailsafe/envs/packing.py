"""Batches of pytrees as three matrices.

Handing thirty small arrays to a jitted function and back costs more than the function itself on a CPU, as every array
is wrapped and unwrapped. Packed, a control step passes a handful of matrices, and its results are NumPy views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_KEY_WORDS = 2
_DTYPES: dict[str, Callable[[], Any]] = {
    "floats": lambda: jnp.result_type(float),
    "integers": lambda: jnp.int32,
    "keys": lambda: jnp.uint32,
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """Rows of a batch: floating-point leaves, integers and flags, random keys."""

    floats: Float[Array, "N F"]
    integers: Int[Array, "N I"]
    keys: Int[Array, "N K"]


@dataclass(frozen=True)
class _Leaf:
    """Where a leaf lies: columns `start` to `end` of the matrix called `group`."""

    group: str
    start: int
    end: int
    shape: tuple[int, ...]
    dtype: Any


class Packing:
    """How named pytrees are packed together, learnt from examples without the batch axis."""

    def __init__(self, **examples: Any) -> None:
        used = dict.fromkeys(_DTYPES, 0)
        self._parts: dict[str, tuple[Any, list[_Leaf]]] = {}
        for name, example in examples.items():
            leaves, structure = jax.tree.flatten(example)
            places = []
            for leaf in leaves:
                group = _group(leaf)
                end = used[group] + (_KEY_WORDS if group == "keys" else prod(leaf.shape))
                places.append(_Leaf(group, used[group], end, leaf.shape, leaf.dtype))
                used[group] = end
            self._parts[name] = (structure, places)

    def pack(self, **batches: Any) -> Packed:
        """The leaves of all parts (leading axis N) side by side."""
        columns: dict[str, list[Any]] = {group: [] for group in _DTYPES}
        for name, (_, places) in self._parts.items():
            for place, leaf in zip(places, jax.tree.leaves(batches[name]), strict=True):
                values = jax.random.key_data(leaf) if place.group == "keys" else leaf
                columns[place.group].append(values.reshape(leaf.shape[0], -1).astype(_DTYPES[place.group]()))
        return Packed(**{group: jnp.concatenate(parts, axis=1) for group, parts in columns.items()})

    def unpack(self, packed: Packed, name: str) -> Any:
        """One part again, inside or outside of `jit`; the leaves of NumPy matrices are views where no cast is due."""
        structure, places = self._parts[name]
        leaves = []
        for place in places:
            matrix: Any = getattr(packed, place.group)
            values = matrix[:, place.start : place.end]
            if place.group == "keys":
                leaves.append(jax.random.wrap_key_data(values))
            else:
                leaves.append(values.reshape(values.shape[0], *place.shape).astype(place.dtype, copy=False))
        return jax.tree.unflatten(structure, leaves)


def _group(leaf: Any) -> str:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return "keys"
    return "floats" if jnp.issubdtype(leaf.dtype, jnp.floating) else "integers"
