"""Training: one loop for every kind of environment, that can be stopped at any moment and resumed."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import jax

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.files import write_json
from tailsafe.physics.compilation import prepare_jax
from tailsafe.risk import SpectralRisk
from tailsafe.runs.config import TrainConfig, Unit
from tailsafe.runs.loop import HostPrograms
from tailsafe.runs.plan import Plan, make_plan
from tailsafe.runs.progress import Progress, make_progress
from tailsafe.runs.session import CHECKPOINTS, CONFIG, POLICY, Member, NonFiniteError, Session, Stop, Stretch
from tailsafe.runs.signals import Signals

_STACK = ("jax", "jaxlib", "numpy", "equinox", "optax", "orbax-checkpoint", "mujoco", "mujoco-mjx", "gymnasium")


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
    write_configs(plan, folder)
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
    check_resumable(folder)
    plan = make_plan(replace(config, task=task) if task is not None else config)
    return _run(plan, folder, make_progress(progress))


def check_resumable(folder: Path) -> None:
    """Refuse what would begin again over a policy that somebody has, as in a copy without its checkpoints."""
    # Without both, the run was stopped before its first checkpoint and begins again.
    if (folder / POLICY).exists() and not (folder / CHECKPOINTS).exists():
        raise InputError(
            f"{folder}: has a policy but no checkpoints to go on from; start a new run with: tailsafe train"
        )


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
    versions = {name: metadata.version(name) for name in _STACK}
    device = {"backend": jax.default_backend(), "kind": jax.devices()[0].device_kind, "machine": platform.machine()}
    return content | {
        "name": plan.text,
        "family": plan.family,
        "discounted_limits": list(plan.discounted_limits),
        "versions": {"tailsafe": __version__, "python": platform.python_version(), **versions},
        "device": device,
    }


def seed_folders(config: TrainConfig, folder: Path) -> list[tuple[int, Path]]:
    """The seeds of a run and where each is: in the run's folder itself, or in folders of their own."""
    if config.seeds == 1:
        return [(config.seed, folder)]
    return [(seed, folder / f"seed-{seed}") for seed in range(config.seed, config.seed + config.seeds)]


def members_of(plan: Plan, folder: Path) -> list[Member]:
    """The runs of a plan: one for each of its seeds."""
    return [Member(plan, seed, place) for seed, place in seed_folders(plan.config, folder)]


def _run(plan: Plan, folder: Path, progress: Progress) -> Run:
    """Train until the end, all seeds in one program where environments allow it, else one after the other."""
    with Signals() as signals:
        stretch = run_members(members_of(plan, folder), folder, progress, signals)
    if stretch.failed:
        several = f"{len(stretch.failed)} of {plan.config.seeds} seeds failed: " if plan.config.seeds > 1 else ""
        raise NonFiniteError(several + next(iter(stretch.failed.values())))
    return Run(folder, stretch.steps * plan.config.seeds, stretch.seconds)


def run_members(
    members: Sequence[Member], folder: Path, progress: Progress, stop: Stop, programs: HostPrograms | None = None
) -> Stretch:
    """In one program where environments are inside of JAX, else one after the other; a failed one stops no other.

    programs: of environments on the host, of another run of the same shape.
    """
    try:
        if members[0].plan.on_device:
            return Session(members, folder, progress, stop).run()
        return _one_by_one(members, folder, progress, stop, programs or HostPrograms(members[0].plan.algorithm))
    finally:
        progress.stop()
        # On the host all members are seeds of one plan.
        if not members[0].plan.on_device:
            members[0].plan.environments.close()  # type: ignore[union-attr]


def _one_by_one(
    members: Sequence[Member], folder: Path, progress: Progress, stop: Stop, programs: HostPrograms
) -> Stretch:
    ran = [Session([member], folder, progress, stop, programs).run() for member in members]
    failed = {place: why for stretch in ran for place, why in stretch.failed.items()}
    return Stretch(max(stretch.steps for stretch in ran), sum(stretch.seconds for stretch in ran), failed)


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
