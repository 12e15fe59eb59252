"""Runs whose numbers are no longer finite, and what the folders of such runs say. Imports nothing that is slow."""

from __future__ import annotations

from pathlib import Path

from tailsafe.errors import InputError
from tailsafe.files import read_object

# In the folder of a run that failed while others beside it continued: what happened.
FAILED = "failed.json"


class NonFiniteError(RuntimeError):
    """A number of the run is no longer finite; the last good checkpoint stays."""


def failure(folder: Path) -> str | None:
    """Why the run in this folder was given up, if it was."""
    try:
        return str(read_object(folder / FAILED)["error"])
    except (InputError, KeyError):
        return None
