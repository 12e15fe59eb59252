"""Runs that failed while others beside them continued: what their folders say. Imports nothing that is slow."""

from __future__ import annotations

from pathlib import Path

from tailsafe.errors import InputError
from tailsafe.files import read_object

# In the folder of such a run: what happened.
FAILED = "failed.json"


def failure(folder: Path) -> str | None:
    """Why the run in this folder was given up, if it was."""
    try:
        return str(read_object(folder / FAILED)["error"])
    except (InputError, KeyError):
        return None
