"""When a run cannot write: one line that says what is safe and how to continue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tailsafe.checkpoints import Checkpoints
from tailsafe.errors import InputError


class StorageError(InputError):
    """A run could not write its files; what was saved before is as it was."""


@contextlib.contextmanager
def storing(folder: Path, saved: Checkpoints) -> Iterator[None]:
    """Whatever keeps the block from writing becomes a `StorageError`. folder: what a person would resume."""
    try:
        yield
    except (OSError, InputError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).strip().rstrip(".")
        steps = saved.steps()
        safe = f"the checkpoint at {steps[-1]:,} steps is good" if steps else "there is no checkpoint yet"
        where = "" if str(folder) in reason else f"{folder}: "
        raise StorageError(
            f"{where}{reason}; {safe}. Make room or repair it, then continue with: tailsafe resume {folder}"
        ) from None
