"""What sessions save of their runs: states and environments as checkpoints, put back into a loop later."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.checkpoints import (
    Arrays,
    Checkpoints,
    Content,
    from_arrays,
    latest_common,
    pass_over,
    readable,
    to_arrays,
)
from tailsafe.errors import InputError
from tailsafe.training.loop import DeviceLoop, HostLoop, RunState
from tailsafe.training.members import CHECKPOINTS, PlannedRun, shared_steps
from tailsafe.training.plan import Plan
from tailsafe.training.storage import storing

_STATE, _ENVIRONMENTS = "state/", "environments/"
Loop = DeviceLoop | HostLoop


class SavedRuns:
    """Checkpoints of the runs of a session. folder: what a person would resume.

    fresh: whether there was no checkpoint to begin from, once `restored` was called.
    """

    def __init__(self, members: Sequence[PlannedRun], folder: Path) -> None:
        self.fresh = False
        self._members, self._folder = members, folder
        self._checkpoints = [Checkpoints(member.folder / CHECKPOINTS) for member in members]

    def save(self, i: int, steps: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """A checkpoint of one run."""
        self._checkpoints[i].save(steps, arrays, meta)

    def steps(self, i: int) -> list[int]:
        """At which steps one run has checkpoints."""
        return self._checkpoints[i].steps()

    def storing(self) -> contextlib.AbstractContextManager[None]:
        """What cannot be written in the block becomes one line that says what is safe."""
        return storing(self._folder, self._checkpoints[0])

    def close(self) -> None:
        """Wait for what is being written. Where the disk is full, that has been said."""
        for checkpoints in self._checkpoints:
            with contextlib.suppress(OSError):
                checkpoints.close()

    def restored(self, loop: Loop) -> tuple[RunState, int, float]:
        """The state of the last good checkpoint, its updates and seconds; the beginning if there is none."""
        state = loop.begin()
        passed: dict[int, str] = {}
        for steps, contents in readable(self._checkpoints, passed):
            try:
                restored = _fitted(loop, state, contents)
            except (LookupError, TypeError, ValueError) as error:
                pass_over(passed, steps, f"it is of another version of tailsafe ({' '.join(str(error).split())})")
                continue
            with self.storing():
                for checkpoints in self._checkpoints:
                    for unusable in passed:
                        checkpoints.set_aside(unusable)
                    checkpoints.drop_after(steps)
            return restored
        if passed:
            reasons = "; ".join(f"{steps}: {reason}" for steps, reason in sorted(passed.items()))
            raise InputError(
                f"{self._folder}: none of its checkpoints can be used ({reasons}). Nothing was changed; set them aside "
                f"and begin again with: tailsafe resume --restart {self._folder}"
            )
        counts = [len(checkpoints.steps()) for checkpoints in self._checkpoints]
        # One each: the first ones were being written. More: the runs were resumed apart since.
        if len(counts) > 1 and max(counts) > 1 and not shared_steps(self._members):
            ahead = self._members[counts.index(max(counts))].folder
            raise InputError(
                f"{self._folder}: its runs have no checkpoint in common and cannot be resumed together; finish them "
                f"one by one, as with: tailsafe resume {ahead}"
            )
        for checkpoints in self._checkpoints:
            checkpoints.drop_after(-1)
        self.fresh = True
        return state, 0, 0.0


def loop_of(members: Sequence[PlannedRun]) -> Loop:
    """The loop that trains these runs in one program; outside of JAX there is one run alone."""
    plan = members[0].plan
    seeds = [member.seed for member in members]
    if not plan.on_device:
        return HostLoop(plan.algorithm, plan.environments, plan.settings, seeds[0])  # type: ignore[arg-type]
    settings = [member.plan.settings for member in members]
    # Seeds of one plan share its settings; then there is nothing to stack.
    alike = all(one is plan.settings for one in settings)
    return DeviceLoop(plan.algorithm, plan.environments, plan.settings if alike else settings, seeds)  # type: ignore[arg-type]


def arrays_of(loop: Loop, state: RunState) -> Arrays:
    """What a checkpoint holds: the state, and environments that live outside of it."""
    arrays = {_STATE + name: array for name, array in to_arrays(state).items()}
    snapshot = loop.snapshot()
    if snapshot is not None:
        arrays |= {_ENVIRONMENTS + name: array for name, array in snapshot.items()}
    return arrays


def reopen(plan: Plan, folder: Path) -> tuple[Loop, RunState, int]:
    """One run at its newest checkpoint: its loop, its state and its steps. Nothing in the folder is changed."""
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    try:
        found = latest_common([checkpoints])
    finally:
        checkpoints.close()
    if found is None:
        raise InputError(f"{folder}: has no checkpoint to look into; train for longer, or copy its checkpoints along")
    steps, contents = found
    loop = loop_of([PlannedRun(plan, plan.config.seed, folder)])
    try:
        return loop, _put_back(loop, loop.begin(), contents[0][0]), steps
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: its checkpoints are of another version of tailsafe ({error})") from None


def _fitted(loop: Loop, state: RunState, contents: list[Content]) -> tuple[RunState, int, float]:
    """A state like `state` from what every run's checkpoint holds. Raises where it does not fit."""
    arrays: Arrays = contents[0][0]
    if loop.several:
        rows = [each for each, _ in contents]
        # Where runs are spread over devices, copies of the last one fill the row up.
        rows += [rows[-1]] * (loop.width - len(rows))
        arrays = {name: np.stack([each[name] for each in rows]) for name in rows[0]}
    meta = contents[0][1]
    return _put_back(loop, state, arrays), int(meta["updates"]), float(meta["seconds"])


def _put_back(loop: Loop, state: RunState, arrays: Arrays) -> RunState:
    """A checkpoint's arrays in the place of a fresh state, environments included."""
    own = {name.removeprefix(_STATE): array for name, array in arrays.items() if name.startswith(_STATE)}
    state = from_arrays(state, own)
    snapshot = {
        name.removeprefix(_ENVIRONMENTS): array for name, array in arrays.items() if name.startswith(_ENVIRONMENTS)
    }
    return loop.restore(snapshot or None, state)
