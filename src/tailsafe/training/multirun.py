"""Several runs in one program: they may differ in seeds, measures, limits and rates, in all that is an array."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tailsafe.algorithms.registry import algorithm_of
from tailsafe.errors import InputError
from tailsafe.fields import settings_of
from tailsafe.physics.compilation import prepare_jax
from tailsafe.training.config import TrainConfig
from tailsafe.training.lock import held
from tailsafe.training.members import CONFIG, shared_steps
from tailsafe.training.plan import Plan, make_plan
from tailsafe.training.progress import Progress, make_progress
from tailsafe.training.session import SessionResult
from tailsafe.training.settings import RunSettings
from tailsafe.training.signals import Signals, Stop
from tailsafe.training.train import (
    all_folders,
    check_log,
    check_resumable,
    members_of,
    read_config,
    run_members,
    seed_folders,
    write_configs,
)


def programs(configs: Sequence[TrainConfig]) -> list[list[TrainConfig]]:
    """The runs that fit into one program each, in the order of their first ones."""
    found: dict[str, list[TrainConfig]] = {}
    for config in configs:
        found.setdefault(_shape(config), []).append(config)
    return list(found.values())


def train_together(configs: Sequence[TrainConfig], *, progress: bool = True, until: float = math.inf) -> SessionResult:
    """Train runs that fit into one program (`programs`), each to its own folder `out`; existing runs are resumed.

    Every folder is an ordinary run's. Where environments are outside of JAX, runs are trained one after the other.
    until: a moment of `time.monotonic` from which on to stop and save, like a signal: `RunInterrupted`.
    """
    steps, seconds, failed = 0, 0.0, dict[Path, str]()
    with Signals(until) as signals:
        for _, found in trained(configs, make_progress(progress), signals):
            if isinstance(found, Exception):
                raise found
            steps, seconds = max(steps, found.steps), seconds + found.seconds
            failed |= found.failed
    return SessionResult(steps, seconds, failed)


def trained(
    configs: Sequence[TrainConfig], shown: Progress, stop: Stop
) -> Iterator[tuple[list[TrainConfig], SessionResult | Exception]]:
    """The same as it goes: which runs have been trained, and how far or why not.

    All at once in one program, unless they have no checkpoint in common (`_parts`); one after the other where
    environments are outside of JAX. The error of one part is not the end of the others.
    """
    if len(programs(configs)) != 1:
        raise InputError("these runs do not fit into one program: they may differ in seeds, constraints and rates only")
    if any(config.out is None for config in configs):
        raise InputError("runs that are trained together need a folder each: out=...")
    prepare_jax(mjx=configs[0].backend == "mjx")
    own = of_equal_width([_as_begun(config) for config in configs])
    plan = make_plan(own[0])
    if plan.on_device:
        plans = [plan, *map(make_plan, own[1:])]
        for part in _parts(plans):
            try:
                with held(place for i in part for place in all_folders(own[i], own[i].folder)):
                    members = [member for i in part for member in members_of(plans[i], _begun(plans[i]))]
                    found = run_members(members, own[0].folder.parent, shown, stop)
                yield [configs[i] for i in part], found
            except Exception as error:
                yield [configs[i] for i in part], error
        return
    for i, (config, equal) in enumerate(zip(configs, own, strict=True)):
        try:
            # Each has environments of its own, made when it is its turn.
            plan = make_plan(equal) if i else plan
            with held(all_folders(equal, equal.folder)):
                found = run_members(members_of(plan, _begun(plan)), equal.folder, shown, stop)
            yield [config], found
        except Exception as error:
            yield [config], error


def _begun(plan: Plan) -> Path:
    """The run's folder, with its configuration; what is there already must be the same run."""
    folder = plan.config.folder
    if (folder / CONFIG).exists():
        if read_config(folder).to_json() != plan.config.to_json():
            raise InputError(f"{folder}: holds a run with other settings; choose another folder")
        for _, place in seed_folders(plan.config, folder):
            check_resumable(place)
            check_log(plan, place)
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    write_configs(plan, folder)
    return folder


def _parts(plans: Sequence[Plan]) -> list[list[int]]:
    """Which of these can be resumed in one program: those with a checkpoint in common, and those without any."""
    parts: list[tuple[set[int], list[int]]] = []
    for i, plan in enumerate(plans):
        own = shared_steps(members_of(plan, plan.config.folder))
        for at, (shared, part) in enumerate(parts):
            if shared & own or not (shared or own):
                parts[at] = (shared & own, [*part, i])
                break
        else:
            parts.append((own, [i]))
    return [part for _, part in parts]


def of_equal_width(configs: Sequence[TrainConfig]) -> list[TrainConfig]:
    """Runs of one program with spectra of the same number of levels: dual variables are a policy's inputs."""
    cells = [_cells(config) for config in configs]
    if len(set(cells)) == 1:
        return list(configs)
    return [replace(config, settings={**config.settings, "least_cells": max(cells)}) for config in configs]


def _as_begun(config: TrainConfig) -> TrainConfig:
    """With the number of levels that it has if it has begun, also where those that asked for it are finished by now."""
    if not (config.folder / CONFIG).exists():
        return config
    least = read_config(config.folder).settings.get("least_cells", RunSettings.least_cells)
    return replace(config, settings={**config.settings, "least_cells": least})


def _cells(config: TrainConfig) -> int:
    wanted = config.settings.get("cells", RunSettings.cells)
    levels = [constraint.spectrum.discretize(wanted).cells for constraint in config.constraints]
    least: int = config.settings.get("least_cells", RunSettings.least_cells)
    return max([least, *levels])


def _shape(config: TrainConfig) -> str:
    """Equal for runs that fit into one program: all of a configuration that is not an array."""
    data = config.to_json()
    arrays = settings_of(algorithm_of(config.algorithm).settings)
    static = {key: value for key, value in data["settings"].items() if key not in arrays}
    # Environments without a name are themselves alone.
    task = data["task"] if isinstance(config.task, str) else id(config.task)
    # One limit or a range, for each cost; what the numbers are does not matter.
    ranged = any(constraint.ranged for constraint in config.constraints)
    parts = (task, data["algorithm"], data["preset"], data["backend"], len(config.constraints), ranged, static)
    return json.dumps(parts, sort_keys=True)
