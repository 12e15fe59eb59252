"""Runs that failed while others beside them continued: what their folders say. Imports nothing that is slow."""

from __future__ import annotations

import json
from pathlib import Path

# In the folder of such a run: what happened.
FAILED = "failed.json"


def failure(folder: Path) -> str | None:
    """Why the run in this folder was given up, if it was."""
    try:
        return str(json.loads((folder / FAILED).read_text(encoding="utf-8"))["error"])
    except (OSError, ValueError, KeyError):
        return None
