"""How much memory a run needs, added up and refused before anything is allocated."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from tailsafe.errors import InputError

_FLOAT = 4
# At least, whatever the task: a state of physics or a Python object; of a row: observation, action, reward, costs.
_PER_ENVIRONMENT, _PER_ROW = 1024, 6 * _FLOAT
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def machine_memory() -> int:
    """Bytes that this process can have: of the GPU where JAX computes on one, else of the machine or container."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        found = (device.memory_stats() or {}).get("bytes_limit")
        if found:
            return int(found)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(_CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return whole


def check_values(values: Mapping[str, Any], available: int | None = None) -> None:
    """Refuse settings whose arrays cannot fit, from the settings alone: environments are not made yet.

    A lower bound: inputs and outputs of the networks, and the observations, are left out.
    """
    rows = values["num_envs"] * values["chunk_steps"]
    parts = {
        "num_envs": values["num_envs"] * _PER_ENVIRONMENT,
        "replay_chunks": values.get("replay_chunks", 1) * rows * _PER_ROW,
        "window": values.get("window", 0) * _PER_ROW,
        "validation_episodes": values["validation_episodes"] * _PER_ENVIRONMENT if values["validation_every"] else 0,
    }
    for name in ("policy_hidden", "critic_hidden"):
        sizes = values.get(name) or ()
        parts[name] = _FLOAT * (sum(sizes) + sum(a * b for a, b in itertools.pairwise(sizes)))
    _require(parts, available)


def check_state(algorithm: Any, settings: Any, runs: int, available: int | None = None) -> None:
    """Refuse a learner whose state cannot fit, from the exact shapes of all of its arrays. runs: in one program."""
    state = jax.eval_shape(algorithm.init, jax.random.key(0), settings)
    parts = {f"{name} of {runs} runs" if runs > 1 else name: runs * _bytes(part) for name, part in vars(state).items()}
    _require(parts, available)


def _bytes(tree: Any) -> int:
    return sum(leaf.size * getattr(leaf.dtype, "itemsize", 8) for leaf in jax.tree.leaves(tree))


def _require(parts: Mapping[str, int], available: int | None) -> None:
    total, there = sum(parts.values()), machine_memory() if available is None else available
    if total <= there:
        return
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    named = ", ".join(f"{name} {_text(size)}" for name, size in largest if size > total / 100)
    raise InputError(f"this run would need at least {_text(total)} of memory ({named}); there are {_text(there)}")


def _text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} PB"
