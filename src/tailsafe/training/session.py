"""A session of training: updates, rows of the log and checkpoints, for one run or for several in one program."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tailsafe.algorithms.state import PrimalState
from tailsafe.envs.user import GymnasiumEnvironments
from tailsafe.files import write_json
from tailsafe.physics.compilation import make_room
from tailsafe.training.failures import FAILED, failure
from tailsafe.training.logs import CsvLog, Row, begin_session, make_row, missed, note_shipped
from tailsafe.training.loop import RunState, cleared, finite_flags
from tailsafe.training.members import METRICS, POLICY, PlannedRun, not_shipped, to_train
from tailsafe.training.plan import Plan
from tailsafe.training.policy_file import share_policy
from tailsafe.training.progress import Progress
from tailsafe.training.rehearsal import rehearse
from tailsafe.training.requests import settle_requests
from tailsafe.training.saved_runs import SavedRuns, arrays_of, loop_of
from tailsafe.training.signals import RunInterrupted, Stop
from tailsafe.training.sinks import Sink, open_sinks
from tailsafe.training.start import check_fits, read_start, started
from tailsafe.training.validation import Choice, Validations

# Called with every row of the log and the `seed` it is of; False ends the run there.
Callback = Callable[[Row], Any]


@dataclass(frozen=True)
class SessionResult:
    """How far a session went. steps: of each run; seconds: of training over all sessions; failed: run folder -> why;
    ended: whether a callback ended it before its time.
    """

    steps: int
    seconds: float
    failed: Mapping[Path, str]
    ended: bool = False


class Session:
    """From the last checkpoint, or the beginning, to the end. folder: what a person would resume.

    A run whose numbers are no longer finite is given up; the others continue. Members share static configuration and
    environments: those of the first are used.
    """

    def __init__(
        self,
        members: Sequence[PlannedRun],
        folder: Path,
        progress: Progress,
        stop: Stop,
        callback: Callback | None = None,
    ) -> None:
        # A run that failed beside others stays given up, unless it is tried again by itself.
        given_up = [(member.folder, failure(member.folder)) for member in members] if len(members) > 1 else []
        self._failed = {place: why for place, why in given_up if why is not None}
        self._members = to_train([member for member in members if member.folder not in self._failed])
        self._folder = folder
        self._progress = progress
        self._stop = stop
        self._callback = callback
        self._ended = False
        self._last: dict[Path, Row] = {}
        self._saved = SavedRuns(self._members, folder)

    def run(self) -> SessionResult:
        """Train; what was reached so far is on the disk, whatever happens."""
        if not self._members:
            return SessionResult(0, 0.0, self._failed)
        plan, total = self._members[0].plan, self._members[0].plan.total_updates
        make_room()
        loop = self._loop = loop_of(self._members)
        self._flags = jax.vmap(finite_flags) if loop.several else finite_flags
        name = f"{plan.text} seed {self._members[0].seed}"
        if len(self._members) > 1:
            name = f"{plan.text}, {len(self._members)} runs, the first"
        steps, asked = plan.total_steps, int(plan.values["total_steps"])
        self._progress.start(name, steps, {cost.name: cost.unit for cost in plan.logged_costs})
        if steps != asked:
            self._progress.say(f"{asked:,} steps rounded up to whole updates of {plan.steps_per_update:,}")
        state, updates, seconds = self._saved.restored(loop)
        if updates == 0:
            rehearse(plan, self._own(state.learner, 0))
        with self._saved.storing():
            if self._saved.fresh and any(member.plan.config.start is not None for member in self._members):
                state = self._started(state)
                self._save(state, 0, 0.0)  # from here on the run's folder is enough
            for member in self._members:
                CsvLog(member.folder / METRICS).cut(updates)
                begin_session(member.folder, updates)
                (member.folder / FAILED).unlink(missing_ok=True)
            sinks = [self._sinks(member, updates) for member in self._members]
        log_every, save_every = plan.values["log_every"], plan.checkpoint_updates
        periods = [every for every in (log_every, save_every, plan.validation_updates) if every]
        self._validations = Validations([(each.plan, each.seed, each.folder) for each in self._members], updates)
        start, first = time.monotonic() - seconds, updates
        marked, marked_at = time.monotonic(), updates
        try:
            while updates < total and self._healthy():
                ahead = min(*(every - updates % every for every in periods), total - updates)
                state = loop.advance(state, ahead, self._stop.wanted)
                self._stop.settle()
                updates = int(np.asarray(state.updates).reshape(-1)[0])
                seconds = time.monotonic() - start
                finished = updates == total
                state = self._validated(state, updates)
                if updates % log_every == 0 or finished:
                    now = time.monotonic()
                    # Of this stretch; the first one of a session compiles.
                    speed = self._steps(updates - marked_at) / max(now - marked, 1e-9)
                    with self._saved.storing():
                        state = self._log(state, updates, seconds, speed, sinks)
                    marked, marked_at = now, updates
                stop = self._stop.wanted()
                if updates % save_every == 0 or finished or stop or self._ended:
                    self._check(state, updates)
                    with self._saved.storing():
                        self._save(state, updates, seconds)
                if self._ended:
                    break
                if stop and not finished:
                    raise RunInterrupted(self._folder, self._steps(updates), self._stop.caught or signal.SIGINT)
            if updates >= total > first:
                self._ship(dict(self._healthy()), updates)
            elif first >= total:
                self._ship_late(state, updates)
        finally:
            self._validations.close()
            for close in [one.close for own in sinks for one in own] + [self._saved.close]:
                # Where the disk is full, that has been said.
                with contextlib.suppress(OSError):
                    close()
        if first >= total:
            self._progress.say(
                f"{self._folder}: is complete, {self._steps(first):,} steps; train it further with: tailsafe resume "
                f"{self._folder} --steps N"
            )
        self._tell_missed()
        return SessionResult(self._steps(updates), seconds, self._failed, self._ended)

    def _sinks(self, member: PlannedRun, updates: int) -> list[Sink]:
        config = member.plan.config.for_seed(member.seed).to_json()
        return open_sinks(member.plan.config.log, member.folder, config, self._steps(updates))

    def _tell_missed(self) -> None:
        """Say which limits the last episodes of training exceeded."""
        for _, member in self._healthy():
            margin = float(member.plan.values["margin"])
            for words in missed(self._last.get(member.folder, {}), member.plan.logged_costs, margin):
                self._progress.say(f"{self._name_of(member)}{words}")

    @staticmethod
    def _followed(member: PlannedRun) -> Mapping[str, float | None]:
        """The user's own numbers, where environments follow any."""
        environments = member.plan.environments
        return environments.followed() if isinstance(environments, GymnasiumEnvironments) else {}

    def _steps(self, updates: int) -> int:
        return updates * self._members[0].plan.steps_per_update

    def _healthy(self) -> list[tuple[int, PlannedRun]]:
        """The runs that continue, with their places on the run axis."""
        return [(i, member) for i, member in enumerate(self._members) if member.folder not in self._failed]

    def _own(self, tree: Any, i: int) -> Any:
        """One run's part of arrays with a run axis."""
        return jax.tree.map(lambda leaf: leaf[i], tree) if self._loop.several else tree

    # --- validation ---------------------------------------------------------------------------------------------------

    def _validated(self, state: RunState, updates: int) -> RunState:
        """The state after the validation that is due, if there is one."""
        if not self._validations.due(updates):
            return state
        learners = {i: self._own(state.learner, i) for i, _ in self._healthy()}
        with self._saved.storing():
            risks, errors = map(jnp.asarray, self._validations.of(learners, updates, self._steps(updates)))
        learner = state.learner
        if not isinstance(learner, PrimalState):
            return state
        if not self._loop.several:
            return replace(state, learner=learner.corrected(risks[0], errors[0]))
        # Copies of the last run fill the row up.
        filling = [(0, self._loop.width - len(risks)), (0, 0)]
        risks, errors = (jnp.pad(leaf, filling, mode="edge") for leaf in (risks, errors))
        return replace(state, learner=jax.vmap(PrimalState.corrected)(learner, risks, errors))

    def _ship(self, members: Mapping[int, PlannedRun], updates: int) -> None:
        """At the end: of the validated policies, the one that is shipped."""
        with self._saved.storing():
            choices = self._validations.ship(list(members))
            for member in members.values():
                settle_requests(member.folder / POLICY, member.plan, member.seed)
                note_shipped(member.folder, updates)
        for i, choice in choices.items():
            self._progress.say(f"{self._name_of(members[i])}{_choice_words(choice, members[i].plan)}")

    def _ship_late(self, state: RunState, updates: int) -> None:
        """A run may end between its last checkpoint and its policy: ship what it would have shipped."""
        late = {i: member for i, member in self._healthy() if not_shipped(member.folder, updates)}
        if not late:
            return
        self._progress.say(f"{self._folder}: was stopped before its policy was written; doing that now")
        with self._saved.storing():
            for i, member in late.items():
                share_policy(member.folder / POLICY, member.plan, self._own(state.learner, i), self._steps(updates))
        self._ship(late, updates)

    def _name_of(self, member: PlannedRun) -> str:
        return f"seed {member.seed}, " if len(self._members) > 1 else ""

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self, state: RunState, updates: int, seconds: float) -> None:
        arrays = arrays_of(self._loop, state)
        meta = {"updates": updates, "steps": self._steps(updates), "seconds": seconds}
        for i, member in self._healthy():
            self._saved.save(i, self._steps(updates), self._own(arrays, i), meta)
            share_policy(member.folder / POLICY, member.plan, self._own(state.learner, i), self._steps(updates))

    def _started(self, state: RunState) -> RunState:
        """The beginning, from the policies that the runs start from."""
        plans = [member.plan for member in self._members]
        starts = {plan.config.start: read_start(plan.config.start) for plan in plans if plan.config.start is not None}
        for plan in plans:
            if plan.config.start is not None:
                check_fits(plan, starts[plan.config.start])
        for start in starts.values():
            self._progress.say(f"starts from {start.words}")
        pairs = [None if plan.config.start is None else (starts[plan.config.start], plan) for plan in plans]
        return started(state, self._loop.several, pairs + pairs[-1:] * (self._loop.width - len(pairs)))

    # --- numbers ------------------------------------------------------------------------------------------------------

    def _log(self, state: RunState, updates: int, seconds: float, speed: float, sinks: list[list[Sink]]) -> RunState:
        both = jax.device_get((state.tally, state.actor.finished))
        shown = False
        for i, member in self._healthy():
            tally, episodes = self._own(both, i)
            metrics = {name: value / max(int(tally.count), 1) for name, value in tally.sums.items()}
            progress = {"steps": self._steps(updates), "updates": updates, "seconds": round(seconds, 3)}
            row = make_row(member.plan.logged_costs, metrics, episodes, progress)
            row["steps_per_second"] = round(speed, 1)
            row |= self._validations.row(i)
            row |= {f"metric_{name}": value for name, value in self._followed(member).items()}
            bad = [name for name, value in row.items() if value is not None and not math.isfinite(value)]
            if bad:
                self._give_up(i, bad[0], updates)
                continue
            self._last[member.folder] = row
            CsvLog(member.folder / METRICS).write(row)
            for sink in sinks[i]:
                sink.write(row)
            if self._callback is not None and self._callback(row | {"seed": member.seed}) is False:
                self._ended = True
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
        """Mark a run as failed; others beside it continue."""
        member = self._members[i]
        last = self._saved.steps(i)
        kept = f"the checkpoint at {last[-1]:,} steps is good" if last else "there is no checkpoint yet"
        message = (
            f"{name} is not finite at {self._steps(updates):,} steps (seed {member.seed}); {kept}. Try a lower "
            "critic_rate or max_kl, a clip_observation of 10, or check the rewards and costs with: tailsafe check-env"
        )
        self._failed[member.folder] = message
        write_json(member.folder / FAILED, {"error": message})
        if self._healthy():  # else the caller says it
            self._progress.say(f"{member.folder}: given up: {message}")


def _choice_words(choice: Choice, plan: Plan) -> str:
    """Which policy a run ships, and why."""
    entry = choice.entry
    costs = zip(plan.logged_costs, entry.risks, entry.errors, strict=True)
    found = ", ".join(
        f"{cost.name} {risk * cost.factor:.3g} ± {error * cost.factor:.1g}{cost.unit}" for cost, risk, error in costs
    )
    if choice.kept:
        why = f"of {choice.finalists} played again the most rewarding that stays under the limits"
    else:
        why = f"none of {choice.finalists} played again stays under the limits; it comes closest"
    return f"ships the policy at {entry.steps:,} steps ({why}): {found}"
