"""Training: one loop for every kind of environment, that can be stopped at any moment and resumed."""

from __future__ import annotations

import contextlib
import html
import itertools
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import jax

from tailsafe.checkpoints import Checkpoints
from tailsafe.envs.finding import Source
from tailsafe.envs.trust import chosen_source, remember
from tailsafe.errors import InputError
from tailsafe.files import read_object, write_json
from tailsafe.physics.compilation import prepare_jax
from tailsafe.policies.pretrained import is_pretrained
from tailsafe.risk import SpectralRisk
from tailsafe.training.config import Limit, TrainConfig, Unit
from tailsafe.training.failures import NonFiniteError
from tailsafe.training.lock import LOCK, held
from tailsafe.training.logs import CsvLog
from tailsafe.training.members import CHECKPOINTS, CONFIG, METRICS, POLICY, PlannedRun
from tailsafe.training.plan import Plan, make_plan
from tailsafe.training.progress import Progress, make_progress
from tailsafe.training.restart import set_run_aside
from tailsafe.training.session import Callback, Session, SessionResult
from tailsafe.training.settings import parsed
from tailsafe.training.signals import Signals, Stop
from tailsafe.training.sinks import check_sinks
from tailsafe.training.start import check_fits, constraints_of, following, read_start
from tailsafe.training.versions import versions, warn_of_differences


@dataclass(frozen=True)
class Run:
    """A run in its folder. steps: control steps taken; seconds: spent on training, over all sessions."""

    folder: Path
    steps: int
    seconds: float
    task: Any = field(default=None, repr=False, compare=False)

    def evaluate(self, episodes: int = 500, seed: int = 0, **arguments: Any) -> Any:
        """Evaluate the policy, and keep the result in the run's folder, where `tailsafe report` finds it.

        See `tailsafe.evaluate` for the arguments. Of a run with several seeds: a list, one for each.
        """
        verdict = import_module("tailsafe.evaluation.verdict")
        folders = import_module("tailsafe.policies.policy").policy_folders(self.folder)
        if callable(self.task) and "environment" not in arguments:
            arguments["environment"] = self.task
        found = []
        for place in folders:
            found.append(verdict.evaluate(place, episodes, seed, **arguments))
            found[-1].keep(place)
        return found[0] if len(found) == 1 else found

    def policy(self, seed: int = 0, limit: float | Sequence[float] | None = None) -> Any:
        """The trained policy, see `tailsafe.load_policy`. seed: of its random actions."""
        return import_module("tailsafe.policies.policy").load_policy(self.folder, seed, limit)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<p>run <code>{html.escape(str(self.folder))}</code>: {self.steps:,} steps in {self.seconds:.0f} s</p>"


def train(
    config: TrainConfig,
    *,
    progress: bool = True,
    callback: Callback | None = None,
    risks: Sequence[str | SpectralRisk] = (),
    limits: Sequence[tuple[Limit, Unit]] = (),
) -> Run:
    """Train as `config` says, in a new folder.

    Args:
      config: what to train.
      progress: show a bar where somebody watches.
      callback: called with every row of the log: a dict of the columns of metrics.csv, and the `seed` it is of. If it
        returns False the run is saved and ends there, all of its seeds, as if it had been interrupted; `resume` takes
        it further. Whatever else it returns, None included, lets the run continue.
      risks, limits: constraints by the order of the costs (command line).

    Returns:
      The run: its folder, and how to evaluate it.

    Examples:
      >>> constraint = ts.Constraint("cost", ts.CVaR(0.75), limit=2.0)
      >>> problem = {"problem": "examples/two_roads.json"}
      >>> config = ts.TrainConfig("finite", constraints=[constraint], settings=problem, out="runs/roads")
      >>> run = ts.train(config, progress=False)
      >>> policy = ts.load_policy(run.folder)
    """
    check_sinks(config.log)
    prepare_jax(mjx=config.backend == "mjx")
    folder = None if config.out is None else _new_folder(config.out)
    plan = planned(config, risks, limits)
    remember(plan.source)
    if folder is None:
        moment = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = _free_folder(Path("runs") / f"{plan.text}-{config.algorithm}-{moment}")
    with held(all_folders(plan.config, folder)):
        _new_folder(folder)  # another process may have been faster
        write_configs(plan, folder)
        return _run(plan, folder, make_progress(progress), callback)


def planned(config: TrainConfig, risks: Sequence[str | SpectralRisk], limits: Sequence[tuple[Limit, Unit]]) -> Plan:
    """The plan; of a run that starts from another one, with what it takes over from that."""
    if config.start is None:
        return make_plan(config, risks, limits)
    start = read_start(config.start)
    place = config.start if is_pretrained(config.start) else Path(config.start).resolve()
    config = following(replace(config, start=place), start)
    plan = make_plan(config, risks, limits, constraints_of(start))
    check_fits(plan, start)
    return plan


def resume(
    folder: str | Path,
    *,
    steps: int | None = None,
    task: Any = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
    restart: bool = False,
    progress: bool = True,
    callback: Callback | None = None,
) -> Run:
    """Resume the run in `folder` from its last good checkpoint.

    Args:
      folder: of the run; nothing else is needed.
      steps: train this many control steps beyond the end that was planned so far, also where it has been reached; all
        seeds. The path is that of a run that was planned this long from the beginning, bit for bit.
      task: the environment again, where the run was started with one that has no name, or in another place.
      env_args: its arguments (default: the run's).
      trust: build the environment that the run names, though you have not trained on it on this machine.
      restart: set aside what the run has learned and logged, and begin again.
      progress: show a bar where somebody watches.
      callback: see `train`.

    Returns:
      The run, as `train` returns it.

    Examples:
      >>> run = ts.resume("runs/roads", steps=1, progress=False)
    """
    folder = Path(folder)
    config = read_config(folder)
    if steps is not None:
        parsed("total_steps", steps)
    check_sinks(config.log)
    prepare_jax(mjx=config.backend == "mjx")
    if config.task is None and task is None:
        raise InputError(f"{folder}: was started from an environment object: ts.resume(folder, task=...)")
    config = in_environment(config, task, env_args, trust)
    warn_of_differences(folder / CONFIG)
    with held(all_folders(config, folder)):
        for _, place in seed_folders(config, folder):
            if not restart:
                check_resumable(place)
        plan = make_plan(config)
        for _, place in seed_folders(config, folder):
            if restart:
                set_run_aside(place)
            check_log(plan, place)
        if steps is not None:
            plan = plan.extended(steps)
            write_configs(plan, folder)
        shown = make_progress(progress)
        if plan.config.backend == "warp":
            shown.say("backend warp is not deterministic: resumed from the exact state, but later bits may differ")
        return _run(plan, folder, shown, callback)


def check_resumable(folder: Path) -> None:
    """Refuse what would begin again over a policy that somebody has, as in a copy without its checkpoints."""
    # Without both, the run was stopped before its first checkpoint and begins again.
    if (folder / POLICY).exists() and not Checkpoints(folder / CHECKPOINTS).steps():
        raise InputError(
            f"{folder}: has a policy but no checkpoints to resume from; start from it with: tailsafe train TASK --from "
            f"{folder}, or set it aside and begin again with: tailsafe resume --restart {folder}"
        )


def check_log(plan: Plan, folder: Path) -> None:
    """Refuse what would empty a log that reaches beyond the first checkpoint, where there is none any more."""
    logged = CsvLog(folder / METRICS).last()
    if logged > plan.checkpoint_updates and not Checkpoints(folder / CHECKPOINTS).steps():
        raise InputError(
            f"{folder}: has a log of {logged * plan.steps_per_update:,} steps but no checkpoints to resume from; put "
            f"them back, or set the log aside and begin again with: tailsafe resume --restart {folder}"
        )


def read_config(folder: Path) -> TrainConfig:
    """The configuration in a run's folder."""
    if is_pretrained(folder):
        raise InputError(f"{folder}: has no checkpoints; start from it with: tailsafe train TASK --from {folder}")
    path = folder / CONFIG
    try:
        if not path.is_file():
            raise InputError(f"{path}: no such file; is {folder} the folder of a run?")
        return TrainConfig.from_json(read_object(path))
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{path}: not the configuration of a run ({' '.join(str(error).split())[:200]})") from None


def _new_folder(path: str | Path) -> Path:
    folder = Path(path)
    if folder.exists() and not (folder.is_dir() and not _taken(folder)):
        raise InputError(f"{folder}: exists already; choose another folder, or resume with: tailsafe resume {folder}")
    return folder


def _free_folder(path: Path) -> Path:
    """The path, with a number where runs began within the same second."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([path], numbered) if not folder.exists())


def _taken(folder: Path) -> bool:
    """Whether there is something in it, but for what `held` has put there."""
    return any(child.name != LOCK and not (child.is_dir() and not _taken(child)) for child in folder.iterdir())


def all_folders(config: TrainConfig, folder: Path) -> list[Path]:
    """Of a run and of its seeds: those that one process at a time may write to."""
    return [folder, *(place for _, place in seed_folders(config, folder))]


def write_configs(plan: Plan, folder: Path) -> None:
    """config.json of each seed and, last, of the run: where that is, all are."""
    if plan.config.seeds > 1:
        for member in members_of(plan, folder):
            member.folder.mkdir(exist_ok=True)
            write_json(member.folder / CONFIG, _described(plan, plan.config.for_seed(member.seed)))
    write_json(folder / CONFIG, _described(plan, plan.config))


def _described(plan: Plan, config: TrainConfig) -> dict[str, Any]:
    """The content of config.json: the configuration, and where and with what it was run."""
    content = config.to_json()
    if not plan.saved:
        content["task"] = None
    device = {"backend": jax.default_backend(), "kind": jax.devices()[0].device_kind, "machine": platform.machine()}
    return content | {
        "name": plan.text,
        "family": plan.family,
        "discounted_limits": list(plan.discounted_limits),
        "versions": versions(),
        "device": device,
    }


def seed_folders(config: TrainConfig, folder: Path) -> list[tuple[int, Path]]:
    """The seeds of a run and where each is: in the run's folder itself, or in folders of their own."""
    if config.seeds == 1:
        return [(config.seed, folder)]
    return [(seed, folder / f"seed-{seed}") for seed in range(config.seed, config.seed + config.seeds)]


def members_of(plan: Plan, folder: Path) -> list[PlannedRun]:
    """The runs of a plan: one for each of its seeds."""
    return [PlannedRun(plan, seed, place) for seed, place in seed_folders(plan.config, folder)]


def _run(plan: Plan, folder: Path, progress: Progress, callback: Callback | None = None) -> Run:
    """Train until the end, all seeds in one program where environments allow it, else one after the other."""
    with Signals() as signals:
        result = run_members(members_of(plan, folder), folder, progress, signals, callback=callback)
    if result.failed:
        several = f"{len(result.failed)} of {plan.config.seeds} seeds failed: " if plan.config.seeds > 1 else ""
        raise NonFiniteError(several + next(iter(result.failed.values())))
    task = None if isinstance(plan.config.task, str | Source) else plan.config.task
    return Run(folder, result.steps * plan.config.seeds, result.seconds, task)


def in_environment(config: TrainConfig, task: Any, env_args: Mapping[str, Any] | None, trust: bool) -> TrainConfig:
    """A run's configuration with its environment, or with the one that the user names instead; see `resume`."""
    if isinstance(config.task, Source):
        return replace(config, task=chosen_source(config.task, task, env_args, trust))
    if task is not None:
        return replace(config, task=task, env_args=env_args or {})
    if env_args:
        raise InputError(f"arguments (--env-arg) are for environments of your own; {config.task} takes none")
    return config


def run_members(
    members: Sequence[PlannedRun],
    folder: Path,
    progress: Progress,
    stop: Stop,
    callback: Callback | None = None,
) -> SessionResult:
    """In one program where environments are inside of JAX, else one after the other; a failed one stops no other."""
    try:
        if members[0].plan.on_device:
            return Session(members, folder, progress, stop, callback=callback).run()
        return _one_by_one(members, folder, progress, stop, callback)
    finally:
        progress.stop()
        # On the host all members are seeds of one plan.
        if not members[0].plan.on_device:
            members[0].plan.environments.close()  # type: ignore[union-attr]


def _one_by_one(
    members: Sequence[PlannedRun],
    folder: Path,
    progress: Progress,
    stop: Stop,
    callback: Callback | None,
) -> SessionResult:
    ran: list[SessionResult] = []
    for member in members:
        ran.append(Session([member], folder, progress, stop, callback).run())
        if ran[-1].ended:
            break
    failed = {place: why for result in ran for place, why in result.failed.items()}
    steps, seconds = max(result.steps for result in ran), sum(result.seconds for result in ran)
    return SessionResult(steps, seconds, failed, ran[-1].ended)


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
