"""Damage, by a seed: to bytes, and to the values of JSON files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

ODD = (None, True, -1, 0, 1e300, 10**30, "", "\x1b[2J[/red]", [], {}, [[[]]], {"a": {"b": []}}, "../../etc/passwd")


def damaged(content: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """A name for what was done, and the result."""
    kinds = [_flip, _cut, _insert, _repeat, _zero]
    if content[:1] == b"{":
        kinds += [_odd_value, _odd_value, _without]
    kind = kinds[rng.integers(len(kinds))]
    return kind.__name__.strip("_"), kind(content, rng)


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    if not content:
        return b"\x01"
    place = int(rng.integers(len(content)))
    return content[:place] + bytes([content[place] ^ (1 << int(rng.integers(8)))]) + content[place + 1 :]


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: int(rng.integers(len(content) + 1))]


def _insert(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content) + 1))
    return content[:place] + rng.bytes(int(rng.integers(1, 9))) + content[place:]


def _repeat(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content) + 1))
    return content[:place] + content[place // 2 :]


def _zero(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content) + 1))
    return content[:place] + bytes(min(64, len(content) - place)) + content[place + 64 :]


def _odd_value(content: bytes, rng: np.random.Generator) -> bytes:
    return _changed(content, rng, lambda: ODD[rng.integers(len(ODD))])


def _without(content: bytes, rng: np.random.Generator) -> bytes:
    return _changed(content, rng, None)


def _changed(content: bytes, rng: np.random.Generator, new: Any) -> bytes:
    data = json.loads(content)
    places = list(_places(data))
    parent, key = places[rng.integers(len(places))]
    if new is None:
        del parent[key]
    else:
        parent[key] = new()
    return json.dumps(data).encode()


def _places(node: Any) -> Any:
    """Every (container, key) of an object."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in list(pairs):
        yield node, key
        if isinstance(child, dict | list):
            yield from _places(child)
