"""Training: one loop for every kind of environment, that can be stopped at any moment and resumed."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.files import replacing
from tailsafe.physics.compilation import prepare_jax
from tailsafe.risk import SpectralRisk
from tailsafe.runs.checkpoints import Arrays, Checkpoints, from_arrays, latest_common, to_arrays
from tailsafe.runs.config import TrainConfig, Unit
from tailsafe.runs.logs import CsvLog, TensorBoardLog, make_row
from tailsafe.runs.loop import DeviceLoop, HostLoop, RunState, cleared, finite_flags
from tailsafe.runs.plan import Plan, make_plan
from tailsafe.runs.progress import Progress, make_progress
from tailsafe.runs.sharing import share_policy

CONFIG, METRICS, TENSORBOARD, CHECKPOINTS, POLICY = "config.json", "metrics.csv", "tensorboard", "checkpoints", "policy"
_STATE, _ENVIRONMENTS = "state/", "environments/"
_STACK = ("jax", "jaxlib", "numpy", "equinox", "optax", "orbax-checkpoint", "mujoco", "mujoco-mjx", "gymnasium")


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped the run after it was saved."""

    def __init__(self, folder: Path, steps: int, number: int) -> None:
        super().__init__(f"stopped and saved at {steps:,} steps; continue with: tailsafe resume {folder}")
        self.folder, self.steps, self.signal = folder, steps, number


class NonFiniteError(RuntimeError):
    """A number of the run is no longer finite; the last good checkpoint stays."""


@dataclass(frozen=True)
class Run:
    """A run in its folder. steps: control steps taken; seconds: spent on training, over all sessions."""

    folder: Path
    steps: int
    seconds: float

    def evaluate(self, **arguments: Any) -> Any:
        """See `tailsafe.runs.evaluation.evaluate`."""
        return import_module("tailsafe.runs.evaluation").evaluate(self.folder, **arguments)


def train(
    config: TrainConfig,
    *,
    progress: bool = True,
    risks: Sequence[str | SpectralRisk] = (),
    limits: Sequence[tuple[float, Unit]] = (),
) -> Run:
    """Train as `config` says, in a new folder. risks, limits: constraints by the order of the costs (command line)."""
    prepare_jax(mjx=config.backend == "mjx")
    folder = None if config.out is None else _new_folder(config.out)
    plan = make_plan(config, risks, limits)
    if folder is None:
        moment = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = _new_folder(Path("runs") / f"{plan.text}-{config.algorithm}-{moment}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    _write_json(folder / CONFIG, _described(plan, plan.config))
    if config.seeds > 1:
        for seed, place in _members(plan.config, folder):
            place.mkdir(exist_ok=True)
            _write_json(place / CONFIG, _described(plan, plan.config.for_seed(seed)))
    return _run(plan, folder, make_progress(progress))


def resume(folder: str | Path, *, task: Any = None, progress: bool = True) -> Run:
    """Go on with the run in `folder` from its last good checkpoint.

    task: the environment or factory again, where the run was started with one that has no name.
    """
    folder = Path(folder)
    config = read_config(folder)
    prepare_jax(mjx=config.backend == "mjx")
    if config.task is None and task is None:
        raise InputError(f"{folder}: was started from an environment object; go on with ts.resume(folder, task=...)")
    if (folder / "policy").exists() and not (folder / "checkpoints").exists():
        # Without both, the run was stopped before its first checkpoint and begins again.
        raise InputError(
            f"{folder}: has a policy but no checkpoints to go on from; start a new run with: tailsafe train"
        )
    plan = make_plan(replace(config, task=task) if task is not None else config)
    return _run(plan, folder, make_progress(progress))


def read_config(folder: Path) -> TrainConfig:
    """The configuration in a run's folder."""
    path = folder / CONFIG
    try:
        return TrainConfig.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; is {folder} the folder of a run?") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not the configuration of a run ({error})") from None


def _new_folder(path: str | Path) -> Path:
    folder = Path(path)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; choose another folder, or go on with: tailsafe resume {folder}")
    return folder


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _described(plan: Plan, config: TrainConfig) -> dict[str, Any]:
    """The content of config.json: the configuration, and where and with what it was run."""
    content = config.to_json()
    if not plan.saved:
        content["task"] = None
    versions = {name: metadata.version(name) for name in _STACK}
    device = {"backend": jax.default_backend(), "kind": jax.devices()[0].device_kind, "machine": platform.machine()}
    return content | {
        "name": plan.text,
        "family": plan.family,
        "discounted_limits": list(plan.discounted_limits),
        "versions": {"tailsafe": __version__, "python": platform.python_version(), **versions},
        "device": device,
    }


def _members(config: TrainConfig, folder: Path) -> list[tuple[int, Path]]:
    """The seeds of a run and their folders."""
    if config.seeds == 1:
        return [(config.seed, folder)]
    return [(seed, folder / f"seed-{seed}") for seed in range(config.seed, config.seed + config.seeds)]


def _run(plan: Plan, folder: Path, progress: Progress) -> Run:
    """Train until the end, all seeds in one program where environments allow it, else one after the other."""
    members = _members(plan.config, folder)
    groups = [members] if plan.on_device else [[member] for member in members]
    ran = []
    with _Signals() as signals:
        try:
            ran = [_Session(plan, group, folder, progress, signals).run() for group in groups]
        finally:
            progress.stop()
            if not plan.on_device:
                plan.environments.close()  # type: ignore[union-attr]
    return Run(folder, sum(run.steps * len(group) for run, group in zip(ran, groups, strict=True)), _total(ran))


def _total(ran: list[Run]) -> float:
    return sum(run.seconds for run in ran)


class _Signals:
    """The first SIGINT or SIGTERM is a wish to stop; the second one acts as ever."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: Any) -> None:
        self.caught = number
        for known, handler in self._before.items():
            signal.signal(known, handler)

    def wanted(self) -> bool:
        """Whether to stop."""
        return self.caught is not None


class _Session:
    """One stretch of training of one run, or of several in one program."""

    def __init__(
        self, plan: Plan, members: list[tuple[int, Path]], folder: Path, progress: Progress, signals: _Signals
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._seeds = [seed for seed, _ in members]
        self._folders = [place for _, place in members]
        self._progress = progress
        self._signals = signals
        self._checkpoints = [Checkpoints(place / CHECKPOINTS) for place in self._folders]
        self._loop: DeviceLoop | HostLoop
        if plan.on_device:
            self._loop = DeviceLoop(plan.algorithm, plan.environments, plan.settings, self._seeds)  # type: ignore[arg-type]
        else:
            self._loop = HostLoop(plan.algorithm, plan.environments, plan.settings, self._seeds[0])  # type: ignore[arg-type]
        self._flags = jax.jit(finite_flags)

    def run(self) -> Run:
        """From the last checkpoint, or the beginning, to the end."""
        plan, total = self._plan, self._plan.total_updates
        name = f"{plan.text} seed {self._seeds[0]}" + (f"-{self._seeds[-1]}" if len(self._seeds) > 1 else "")
        steps, asked = total * plan.steps_per_update, int(plan.values["total_steps"])
        self._progress.start(name, steps)
        if steps != asked:
            self._progress.say(f"{asked:,} steps rounded up to whole updates of {plan.steps_per_update:,}")
        state = self._loop.begin()
        state, updates, seconds = self._restored(state)
        for place in self._folders:
            CsvLog(place / METRICS).cut(updates)
        boards = [TensorBoardLog(place / TENSORBOARD, self._steps(updates) or None) for place in self._folders]
        log_every, save_every = plan.values["log_every"], plan.checkpoint_updates
        start, begun = time.monotonic() - seconds, updates
        marked, marked_at = time.monotonic(), updates
        try:
            while updates < total:
                ahead = min(log_every - updates % log_every, save_every - updates % save_every, total - updates)
                state = self._loop.advance(state, ahead, self._signals.wanted)
                reached = int(np.asarray(state.updates).reshape(-1)[0])
                updates, seconds = reached, time.monotonic() - start
                finished = updates == total
                if updates % log_every == 0 or finished:
                    now = time.monotonic()
                    # The first stretch compiles: its speed would say nothing.
                    speed = self._steps(updates - marked_at) / max(now - marked, 1e-9)
                    state = self._log(state, updates, seconds, speed, boards)
                    marked, marked_at = now, updates
                stop = self._signals.wanted()
                if updates % save_every == 0 or finished or stop:
                    self._check(state, updates)
                    self._save(state, updates, seconds)
                if stop and not finished:
                    raise RunInterrupted(self._folder, self._steps(updates), self._signals.caught or signal.SIGINT)
        finally:
            for board in boards:
                board.close()
            for checkpoints in self._checkpoints:
                checkpoints.close()
        if begun == total:
            self._progress.say(f"{self._folder}: is complete, {self._steps(total):,} steps")
        return Run(self._folder, self._steps(updates), seconds)

    def _steps(self, updates: int) -> int:
        return updates * self._plan.steps_per_update

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save(self, state: RunState, updates: int, seconds: float) -> None:
        arrays = {_STATE + name: array for name, array in to_arrays(state).items()}
        snapshot = self._loop.snapshot()
        if snapshot is not None:
            arrays |= {_ENVIRONMENTS + name: array for name, array in snapshot.items()}
        meta = {"updates": updates, "steps": self._steps(updates), "seconds": seconds}
        for i, checkpoints in enumerate(self._checkpoints):
            own = arrays if len(self._seeds) == 1 else {name: array[i] for name, array in arrays.items()}
            checkpoints.save(self._steps(updates), own, meta)
            self._share(state, i, updates)

    def _share(self, state: RunState, i: int, updates: int) -> None:
        """The shareable policy beside the checkpoint."""
        learner = state.learner if len(self._seeds) == 1 else jax.tree.map(lambda leaf: leaf[i], state.learner)
        share_policy(self._folders[i] / POLICY, self._plan, learner, self._steps(updates))

    def _restored(self, state: RunState) -> tuple[RunState, int, float]:
        """The state of the last good checkpoint, its updates and seconds; the beginning if there is none."""
        found = latest_common(self._checkpoints)
        if found is None:
            for checkpoints in self._checkpoints:
                checkpoints.drop_after(-1)
            return state, 0, 0.0
        steps, contents = found
        for checkpoints in self._checkpoints:
            checkpoints.drop_after(steps)
        arrays: Arrays = contents[0][0]
        if len(contents) > 1:
            arrays = {name: np.stack([each[name] for each, _ in contents]) for name in contents[0][0]}
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
        tally, finished = jax.device_get((state.tally, state.actor.finished))
        several = len(self._seeds) > 1
        for i, place in enumerate(self._folders):
            own_tally, own_finished = jax.tree.map(lambda leaf, i=i: leaf[i] if several else leaf, (tally, finished))
            metrics = {name: value / max(int(own_tally.count), 1) for name, value in own_tally.sums.items()}
            progress = {"steps": self._steps(updates), "updates": updates, "seconds": round(seconds, 3)}
            row = make_row(self._plan.constraints, self._plan.discounted_limits, metrics, own_finished, progress) | {
                "steps_per_second": round(speed, 1)
            }
            bad = [name for name, value in row.items() if value is not None and not math.isfinite(value)]
            if bad:
                raise self._non_finite(bad[0], updates, self._seeds[i])
            CsvLog(place / METRICS).write(row)
            boards[i].write(row)
            if i == 0:
                self._progress.row(row)
        return replace(state, tally=cleared(state.tally))

    def _check(self, state: RunState, updates: int) -> None:
        """Nothing that is not finite gets into a checkpoint."""
        for name, flags in jax.device_get(self._flags_of(state)).items():
            for seed, good in zip(self._seeds, np.atleast_1d(flags), strict=True):
                if not good:
                    raise self._non_finite(f"the parameters of {name}", updates, seed)

    def _flags_of(self, state: RunState) -> dict[str, Any]:
        flags: dict[str, Any] = (self._flags if len(self._seeds) == 1 else jax.vmap(self._flags))(state.learner)
        return flags

    def _non_finite(self, name: str, updates: int, seed: int) -> NonFiniteError:
        steps = self._steps(updates)
        last = self._checkpoints[0].steps()
        kept = f"the checkpoint at {last[-1]:,} steps is good" if last else "there is no checkpoint yet"
        return NonFiniteError(
            f"{name} is not finite at {steps:,} steps (seed {seed}); {kept}. Try a lower critic_rate or max_kl, a "
            "clip_observation of 10, or check the rewards and costs with: tailsafe check-env"
        )


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Nothing but the caller's own words on stdout."""
    import os
    import sys

    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
