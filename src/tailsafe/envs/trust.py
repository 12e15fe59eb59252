"""Whose code may run: environments that this user has trained on, on this machine.

A run names its environment, and building that runs the environment's code. For a run of one's own that is what one
wants; for a downloaded one it would hand the machine to a stranger. So `train` notes every environment the user named
(name, folder and arguments, nothing of the run) in the user's state folder, and `evaluate`, `resume` and `render` build
what is noted there, what is installed and registered with Gymnasium, or what the user asks for (`--env`, `--trust`).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailsafe.envs.finding import Source, find_environment
from tailsafe.errors import InputError
from tailsafe.files import write_json


def state_folder() -> Path:
    """Where tailsafe keeps notes for this user: $XDG_STATE_HOME/tailsafe, by default ~/.local/state/tailsafe."""
    base = os.environ.get("XDG_STATE_HOME") or (os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None)
    return Path(base or Path.home() / ".local" / "state") / "tailsafe"


def remember(source: Source | None) -> None:
    """Note that this user has trained on an environment. Where nothing can be written, `--trust` is needed later."""
    if source is None or not source.names_code or is_known(source):
        return
    note = _note(source)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, source.to_json())
    except (OSError, InputError):
        return


def is_known(source: Source) -> bool:
    """Whether exactly this environment, from this folder and with these arguments, is noted."""
    try:
        return _note(source).is_file()
    except OSError:
        return False


def check_trusted(source: Source, trust: bool = False) -> None:
    """An `InputError` unless the user has asked for this environment, now or in training."""
    if trust or not source.names_code or is_known(source):
        return
    raise InputError(
        f"the run names the environment {source.reference!r}, on which you have not trained on this machine, and "
        "building it runs its code: add --trust if you trust it, or name your own with --env MODULE:CLASS"
    )


def chosen_source(
    source: Source, task: Any = None, arguments: Mapping[str, Any] | None = None, trust: bool = False
) -> Any:
    """What to build for a run that names `source`: what the user names instead (`task`), or that, if it is trusted.

    arguments: in place of those of the run, one by one.
    """
    chosen = {**source.arguments, **(arguments or {})}
    if isinstance(task, str):
        found = find_environment(task, chosen).source
        assert found is not None
        return found
    if task is not None:
        return task
    check_trusted(source, trust)
    return replace(source, arguments=chosen)


def _note(source: Source) -> Path:
    text = json.dumps(source.to_json(), sort_keys=True)
    return state_folder() / "environments" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
