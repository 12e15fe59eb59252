"""Beginning again: what a run has left behind is set aside, never deleted."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

from tailsafe.errors import InputError
from tailsafe.training.failures import FAILED
from tailsafe.training.logs import SESSIONS
from tailsafe.training.members import CHECKPOINTS, METRICS, POLICY
from tailsafe.training.sinks import TENSORBOARD
from tailsafe.training.validation import FOLDER as VALIDATION

# Verdicts and certificates are about the policy that goes.
_FOUND = ("evaluation", "certificate", "front", "diagnosis")
_ABOUT_IT = tuple(f"{what}*{kind}" for what in _FOUND for kind in (".json", ".png"))
_OF_A_RUN = (CHECKPOINTS, METRICS, SESSIONS, TENSORBOARD, POLICY, FAILED, VALIDATION, "episodes*.csv", "certificate")


def set_run_aside(folder: Path) -> Path | None:
    """Move all that training and evaluation left in a run's folder into one of its own there; None if there is nothing.

    The configuration stays: the run can begin again.
    """
    there = [path for pattern in (*_OF_A_RUN, *_ABOUT_IT) for path in sorted(folder.glob(pattern))]
    if not there:
        return None
    aside = folder / f"set-aside-{datetime.now().strftime('%Y%m%d-%H%M%S-%f')}"
    try:
        aside.mkdir()
        for path in there:
            shutil.move(path, aside / path.name)
    except OSError as error:
        raise InputError(f"{aside}: {error.strerror or error}") from None
    return aside
