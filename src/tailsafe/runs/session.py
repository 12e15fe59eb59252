"""One stretch of training: updates, rows of the log and checkpoints, for one run or for several in one program."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from tailsafe.errors import InputError
from tailsafe.files import write_json
from tailsafe.runs.checkpoints import Arrays, Checkpoints, from_arrays, latest_common, to_arrays
from tailsafe.runs.failures import FAILED, failure
from tailsafe.runs.logs import CsvLog, TensorBoardLog, make_row
from tailsafe.runs.loop import DeviceLoop, HostLoop, HostPrograms, RunState, cleared, finite_flags
from tailsafe.runs.plan import Plan
from tailsafe.runs.progress import Progress
from tailsafe.runs.sharing import share_policy

CONFIG, METRICS, TENSORBOARD, CHECKPOINTS, POLICY = "config.json", "metrics.csv", "tensorboard", "checkpoints", "policy"
_STATE, _ENVIRONMENTS = "state/", "environments/"


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped the run after it was saved."""

    def __init__(self, folder: Path, steps: int, number: int) -> None:
        super().__init__(f"stopped and saved at {steps:,} steps; continue with: tailsafe resume {folder}")
        self.folder, self.steps, self.signal = folder, steps, number


class NonFiniteError(RuntimeError):
    """A number of the run is no longer finite; the last good checkpoint stays."""


class Stop(Protocol):
    """Who may wish a stretch to end before its time. caught: the signal, if it was one."""

    caught: int | None

    def wanted(self) -> bool:
        """Whether to stop after the running updates."""
        ...


@dataclass(frozen=True)
class Member:
    """One run of a stretch: what it is, its seed, where its files are."""

    plan: Plan
    seed: int
    folder: Path


@dataclass(frozen=True)
class Stretch:
    """How far it went. steps: of each run; seconds: of training over all sessions; failed: run folder -> why."""

    steps: int
    seconds: float
    failed: Mapping[Path, str]


class Session:
    """From the last checkpoint, or the beginning, to the end. folder: what a person would resume.

    A run whose numbers are no longer finite is given up, and the others go on. Members share static configuration and
    environments: those of the first are used. programs: of environments on the host, where sessions that come one after
    the other share them.
    """

    def __init__(
        self,
        members: Sequence[Member],
        folder: Path,
        progress: Progress,
        stop: Stop,
        programs: HostPrograms | None = None,
    ) -> None:
        # A run that failed beside others stays given up, unless it is tried again by itself.
        given_up = [(member.folder, failure(member.folder)) for member in members] if len(members) > 1 else []
        self._failed = {place: why for place, why in given_up if why is not None}
        self._members = _to_train([member for member in members if member.folder not in self._failed])
        self._folder = folder
        self._progress = progress
        self._stop = stop
        self._programs = programs
        self._checkpoints = [Checkpoints(member.folder / CHECKPOINTS) for member in self._members]

    def run(self) -> Stretch:
        """Train; what was reached so far is on the disk, whatever happens."""
        if not self._members:
            return Stretch(0, 0.0, self._failed)
        plan, total = self._members[0].plan, self._members[0].plan.total_updates
        loop = self._loop = self._make_loop()
        self._flags = jax.jit(jax.vmap(finite_flags) if loop.several else finite_flags)
        name = f"{plan.text} seed {self._members[0].seed}"
        if len(self._members) > 1:
            name = f"{plan.text}, {len(self._members)} runs, the first"
        steps, asked = plan.total_steps, int(plan.values["total_steps"])
        self._progress.start(name, steps)
        if steps != asked:
            self._progress.say(f"{asked:,} steps rounded up to whole updates of {plan.steps_per_update:,}")
        state, updates, seconds = self._restored(loop.begin())
        for member in self._members:
            CsvLog(member.folder / METRICS).cut(updates)
            (member.folder / FAILED).unlink(missing_ok=True)
        boards = [TensorBoardLog(member.folder / TENSORBOARD, self._steps(updates) or None) for member in self._members]
        log_every, save_every = plan.values["log_every"], plan.checkpoint_updates
        start, begun = time.monotonic() - seconds, updates
        marked, marked_at = time.monotonic(), updates
        try:
            while updates < total and self._healthy():
                ahead = min(log_every - updates % log_every, save_every - updates % save_every, total - updates)
                state = loop.advance(state, ahead, self._stop.wanted)
                updates = int(np.asarray(state.updates).reshape(-1)[0])
                seconds = time.monotonic() - start
                finished = updates == total
                if updates % log_every == 0 or finished:
                    now = time.monotonic()
                    # Of this stretch; the first one of a session compiles.
                    speed = self._steps(updates - marked_at) / max(now - marked, 1e-9)
                    state = self._log(state, updates, seconds, speed, boards)
                    marked, marked_at = now, updates
                stop = self._stop.wanted()
                if updates % save_every == 0 or finished or stop:
                    self._check(state, updates)
                    self._save(state, updates, seconds)
                if stop and not finished:
                    raise RunInterrupted(self._folder, self._steps(updates), self._stop.caught or signal.SIGINT)
        finally:
            for board in boards:
                board.close()
            for checkpoints in self._checkpoints:
                checkpoints.close()
        if begun == total:
            self._progress.say(f"{self._folder}: is complete, {self._steps(total):,} steps")
        return Stretch(self._steps(updates), seconds, self._failed)

    def _make_loop(self) -> DeviceLoop | HostLoop:
        plan = self._members[0].plan
        seeds = [member.seed for member in self._members]
        if not plan.on_device:
            programs = self._programs or HostPrograms(plan.algorithm)
            return HostLoop(programs, plan.environments, plan.settings, seeds[0])  # type: ignore[arg-type]
        settings = [member.plan.settings for member in self._members]
        # Seeds of one plan share its settings; then there is nothing to stack.
        alike = all(one is plan.settings for one in settings)
        return DeviceLoop(plan.algorithm, plan.environments, plan.settings if alike else settings, seeds)  # type: ignore[arg-type]

    def _steps(self, updates: int) -> int:
        return updates * self._members[0].plan.steps_per_update

    def _healthy(self) -> list[tuple[int, Member]]:
        """The runs that go on, with their places on the run axis."""
        return [(i, member) for i, member in enumerate(self._members) if member.folder not in self._failed]

    def _own(self, tree: Any, i: int) -> Any:
        """One run's part of arrays with a run axis."""
        return jax.tree.map(lambda leaf: leaf[i], tree) if self._loop.several else tree

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self, state: RunState, updates: int, seconds: float) -> None:
        arrays = {_STATE + name: array for name, array in to_arrays(state).items()}
        snapshot = self._loop.snapshot()
        if snapshot is not None:
            arrays |= {_ENVIRONMENTS + name: array for name, array in snapshot.items()}
        meta = {"updates": updates, "steps": self._steps(updates), "seconds": seconds}
        for i, member in self._healthy():
            self._checkpoints[i].save(self._steps(updates), self._own(arrays, i), meta)
            share_policy(member.folder / POLICY, member.plan, self._own(state.learner, i), self._steps(updates))

    def _restored(self, state: RunState) -> tuple[RunState, int, float]:
        """The state of the last good checkpoint, its updates and seconds; the beginning if there is none."""
        found = latest_common(self._checkpoints)
        if found is None:
            counts = [len(checkpoints.steps()) for checkpoints in self._checkpoints]
            # One each: the first ones were being written. More: the runs have gone different ways since.
            if len(counts) > 1 and max(counts) > 1 and not shared_steps(self._members):
                ahead = self._members[counts.index(max(counts))].folder
                raise InputError(
                    f"{self._folder}: its runs have no checkpoint in common and cannot go on together; finish them one "
                    f"by one, as with: tailsafe resume {ahead}"
                )
            for checkpoints in self._checkpoints:
                checkpoints.drop_after(-1)
            return state, 0, 0.0
        steps, contents = found
        for checkpoints in self._checkpoints:
            checkpoints.drop_after(steps)
        arrays: Arrays = contents[0][0]
        if self._loop.several:
            rows = [each for each, _ in contents]
            # Where runs are spread over devices, copies of the last one fill the row up.
            rows += [rows[-1]] * (self._loop.width - len(rows))
            arrays = {name: np.stack([each[name] for each in rows]) for name in rows[0]}
        meta = contents[0][1]
        try:
            own = {name.removeprefix(_STATE): array for name, array in arrays.items() if name.startswith(_STATE)}
            state = from_arrays(state, own)
        except (KeyError, ValueError) as error:
            raise InputError(f"{self._folder}: its checkpoints are of another version of tailsafe ({error})") from None
        snapshot = {
            name.removeprefix(_ENVIRONMENTS): array for name, array in arrays.items() if name.startswith(_ENVIRONMENTS)
        }
        return self._loop.restore(snapshot or None, state), int(meta["updates"]), float(meta["seconds"])

    # --- numbers ------------------------------------------------------------------------------------------------------

    def _log(
        self, state: RunState, updates: int, seconds: float, speed: float, boards: list[TensorBoardLog]
    ) -> RunState:
        both = jax.device_get((state.tally, state.actor.finished))
        shown = False
        for i, member in self._healthy():
            tally, episodes = self._own(both, i)
            metrics = {name: value / max(int(tally.count), 1) for name, value in tally.sums.items()}
            progress = {"steps": self._steps(updates), "updates": updates, "seconds": round(seconds, 3)}
            row = make_row(member.plan.constraints, member.plan.discounted_limits, metrics, episodes, progress) | {
                "steps_per_second": round(speed, 1)
            }
            bad = [name for name, value in row.items() if value is not None and not math.isfinite(value)]
            if bad:
                self._give_up(i, bad[0], updates)
                continue
            CsvLog(member.folder / METRICS).write(row)
            boards[i].write(row)
            if not shown:
                self._progress.row(row)
                shown = True
        return replace(state, tally=cleared(state.tally))

    def _check(self, state: RunState, updates: int) -> None:
        """Nothing that is not finite gets into a checkpoint."""
        flags = jax.device_get(self._flags(state.learner))
        for i, _ in self._healthy():
            bad = [name for name, good in flags.items() if not np.atleast_1d(good)[i]]
            if bad:
                self._give_up(i, f"the parameters of {bad[0]}", updates)

    def _give_up(self, i: int, name: str, updates: int) -> None:
        """Mark a run as failed; others beside it go on."""
        member = self._members[i]
        last = self._checkpoints[i].steps()
        kept = f"the checkpoint at {last[-1]:,} steps is good" if last else "there is no checkpoint yet"
        message = (
            f"{name} is not finite at {self._steps(updates):,} steps (seed {member.seed}); {kept}. Try a lower "
            "critic_rate or max_kl, a clip_observation of 10, or check the rewards and costs with: tailsafe check-env"
        )
        self._failed[member.folder] = message
        write_json(member.folder / FAILED, {"error": message})
        if self._healthy():  # else the caller says it
            self._progress.say(f"{member.folder}: given up: {message}")


def _to_train(members: list[Member]) -> list[Member]:
    """Those that can go on together: where they have no checkpoint in common, without those that are complete, as runs
    are that somebody finished by themselves.
    """
    if shared_steps(members):
        return members
    left = [member for member in members if member.plan.total_steps not in _steps_of(member)]
    return left or members


def shared_steps(members: Sequence[Member]) -> set[int]:
    """At which steps all of these runs have a checkpoint; those that were given up do not count."""
    steps = [set(_steps_of(member)) for member in members if len(members) == 1 or failure(member.folder) is None]
    return set.intersection(*steps) if steps else set()


def _steps_of(member: Member) -> list[int]:
    return Checkpoints(member.folder / CHECKPOINTS).steps()
