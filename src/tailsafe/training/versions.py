"""Which versions a run was made with: they decide its numbers, so a run records them and others are told about."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.files import read_object

_STACK = ("jax", "jaxlib", "numpy", "equinox", "optax", "orbax-checkpoint", "mujoco", "mujoco-mjx", "gymnasium")


def versions() -> dict[str, str]:
    """Of tailsafe, Python and what numbers come from, in this process."""
    stack = {name: metadata.version(name) for name in _STACK}
    return {"tailsafe": __version__, "python": platform.python_version(), **stack}


def differences(recorded: Mapping[str, Any]) -> list[str]:
    """What is another version here than the one recorded, as `mujoco 4.0.0 (was 3.5.0)`."""
    return [
        f"{name} {now} (was {recorded[name]})"
        for name, now in versions().items()
        if isinstance(recorded.get(name), str) and recorded[name] != now
    ]


def warn_of_differences(config: Path) -> None:
    """Say which versions differ from those in a run's config.json. Where none are recorded, nothing is said."""
    try:
        recorded = read_object(config).get("versions")
    except InputError:
        return
    if isinstance(recorded, dict) and (found := differences(recorded)):
        logging.getLogger("tailsafe").warning(
            "%s: made with other versions, which may change its numbers: %s", config.parent, ", ".join(found)
        )
