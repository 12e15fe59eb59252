"""Groups of runs: trained as few programs as their shapes allow, measured, never repeated once they are finished."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.files import read_object, replacing, write_json
from tailsafe.policies.policy import TENSORS_NAME
from tailsafe.studies.times import training_times
from tailsafe.training.config import TrainConfig
from tailsafe.training.failures import failure
from tailsafe.training.members import POLICY
from tailsafe.training.multirun import of_equal_width, programs, trained
from tailsafe.training.progress import make_progress
from tailsafe.training.session import SessionResult
from tailsafe.training.signals import RunInterrupted, Signals, Stop
from tailsafe.training.train import seed_folders
from tailsafe.viz.run import read_curves

RESULT = "result.json"
# In a run's folder: what was measured of its policy before the end, and at the end (of a group, run by run: one
# evaluation may take as long as a call of the study has).
INTERIM, MEASURED = "interim.json", "measured.json"
Rows = list[dict[str, Any]]
Measure = Callable[[Path], dict[str, Any]]


def name_of(labels: Mapping[str, str]) -> str:
    """A folder's name."""
    return "_".join(labels.values()).replace(" ", "-").replace("/", "-").replace(":", "-")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds. labels: what each of its rows says it is."""

    labels: dict[str, str]
    config: TrainConfig

    @property
    def name(self) -> str:
        """Its folder."""
        return name_of(self.labels)

    @property
    def folder(self) -> Path:
        """Where its runs are."""
        return self.config.folder

    def inside(self, folder: Path) -> Group:
        """The same, with its runs in a folder of the study."""
        return replace(self, config=replace(self.config, out=folder / self.name))


@dataclass(frozen=True)
class Outcome:
    """Of a group. rows: one per seed that was trained and measured. failed: what went wrong with the others. note:
    what a person is told. broken: training or measuring itself went wrong; there are no rows, and the next call tries
    again. interim: its runs were measured as they are.
    """

    labels: dict[str, str]
    rows: Rows
    failed: Rows
    note: str
    broken: bool = False
    interim: bool = False


@dataclass(frozen=True)
class Job:
    """Groups that train in one program, what is measured of each run, and how long it may take.

    until: a moment of `time.time`, from which on to stop and save. shown: whether training tells how it goes.
    """

    groups: tuple[Group, ...]
    measure: Measure
    until: float = math.inf
    shown: bool = False

    def run(self) -> Iterator[Outcome]:
        """Train and measure, group by group as they are ready.

        Whatever goes wrong with these runs is part of their outcome. A signal or the end of the time stops training
        and, between two runs, measuring: `RunInterrupted`.
        """
        owners = {group.config.folder: group for group in self.groups}
        with Signals(time.monotonic() + self.until - time.time()) as stop:
            try:
                for configs, found in trained([group.config for group in self.groups], make_progress(self.shown), stop):
                    for config in configs:
                        group = owners[config.folder]
                        if isinstance(found, Exception):
                            yield broken(group, found)
                        else:
                            yield self._measured(group, found, stop)
            except Exception as error:
                # Of all of them at once: those that are finished by now have said so.
                for group in self.groups:
                    if finished(group) is None:
                        yield broken(group, error)

    def _measured(self, group: Group, result: SessionResult, stop: Signals) -> Outcome:
        started = time.monotonic()
        rows, failed = [], []
        try:
            for seed, place in seed_folders(group.config, group.config.folder):
                if stop.wanted():
                    raise RunInterrupted(group.config.folder, result.steps, stop.caught or signal.SIGINT)
                labels = {**group.labels, "seed": seed}
                why = result.failed.get(place)
                if why is None:
                    rows.append({**labels, **_once(place, MEASURED, self.measure), **_training(place)})
                else:
                    failed.append({**labels, "error": why})
        except Exception as error:
            return broken(group, error)
        write_json(group.config.folder / RESULT, {"config": _digest(group.config), "rows": rows, "failed": failed})
        lost = f", {len(failed)} of {group.config.seeds} runs failed" if failed else ""
        note = f"trained in {result.seconds:.0f} s, measured in {time.monotonic() - started:.0f} s{lost}"
        return Outcome(group.labels, rows, failed, note)


def finished(group: Group) -> Outcome | None:
    """What an earlier call found, if it came to the end of the group; refused if that was of other runs."""
    try:
        content = read_object(group.config.folder / RESULT)
        rows, failed, held = content["rows"], content["failed"], content["config"]
    except (InputError, KeyError):
        return None
    if not all(isinstance(part, list) and all(isinstance(row, dict) for row in part) for part in (rows, failed)):
        return None
    if held != _digest(group.config):
        raise InputError(f"{group.config.folder}: holds results of other settings; choose another folder with --out")
    return Outcome(group.labels, rows, failed, "was finished")


def so_far(group: Group, measure: Measure, stop: Stop) -> Outcome:
    """Of the policies that its runs have by now; what is left to train stays left. A policy is measured once."""
    rows, failed = [], []
    for seed, place in seed_folders(group.config, group.config.folder):
        labels = {**group.labels, "seed": seed}
        why = failure(place)
        if why is not None:
            failed.append({**labels, "error": why})
            continue
        if not (place / POLICY / TENSORS_NAME).exists():
            continue
        if stop.wanted():
            raise RunInterrupted(group.config.folder, 0, stop.caught or signal.SIGINT)
        try:
            rows.append({**labels, **_once(place, INTERIM, measure), **_training(place), "interim": True})
        except Exception as error:
            failed.append({**labels, "error": _one_line(error)})
    note = f"{len(rows)} of {group.config.seeds} runs measured as they are"
    return Outcome(group.labels, rows, failed, note, interim=True)


def _once(place: Path, name: str, measure: Measure) -> dict[str, Any]:
    """What is measured of a run's policy; from the file `name` in its folder where that is of this policy."""
    held = hashlib.sha256((place / POLICY / TENSORS_NAME).read_bytes()).hexdigest()
    with contextlib.suppress(InputError, KeyError, TypeError, ValueError):
        content = read_object(place / name)
        if content["policy"] == held:
            return dict(content["measured"])
    measured = measure(place)
    write_json(place / name, {"policy": held, "measured": measured})
    return measured


def of_one_width(groups: Sequence[Group]) -> list[Group]:
    """All groups of a study as they train together, so that any of them can begin without the others."""
    batches = programs([group.config for group in groups])
    equal = {config.folder: config for batch in batches for config in of_equal_width(batch)}
    return [replace(group, config=equal[group.config.folder]) for group in groups]


def jobs(groups: Sequence[Group], measure: Measure, until: float = math.inf, shown: bool = False) -> list[Job]:
    """One for all groups that fit into one program."""
    owners = {group.config.folder: group for group in groups}
    batches = programs([group.config for group in groups])
    return [Job(tuple(owners[config.folder] for config in batch), measure, until, shown) for batch in batches]


def _digest(config: TrainConfig) -> str:
    """Of all that a run is, but for its folder."""
    return hashlib.sha256(json.dumps(config.to_json(), sort_keys=True).encode()).hexdigest()


def steps_so_far(group: Group) -> int:
    """That every run of the group has done, by its log; 0 before the first row."""
    found = []
    for _, place in seed_folders(group.config, group.config.folder):
        try:
            found.append(int(read_curves(place).columns["steps"][-1]))
        except (InputError, KeyError, IndexError):
            return 0
    return min(found)


def _training(place: Path) -> dict[str, float]:
    """seconds of training, of the whole program where it shared one, and its speed."""
    times = training_times(place)
    return {"seconds": times.seconds, "steps_per_second": times.steps_per_second}


def broken(group: Group, error: Exception) -> Outcome:
    """Something else than numbers went wrong: the group has no result; the next call resumes it."""
    text = _one_line(error)
    place = group.config.folder
    # Where the folder itself is what is wrong, the text has to do.
    with contextlib.suppress(OSError, InputError):
        place.mkdir(parents=True, exist_ok=True)
        with replacing(place / "error.txt") as partial:
            partial.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return Outcome(group.labels, [], [{**group.labels, "error": text}], f"failed: {text}", broken=True)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
