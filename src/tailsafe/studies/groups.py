"""Groups of runs: trained as few programs as their shapes allow, measured, never repeated once they are finished."""

from __future__ import annotations

import contextlib
import csv
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
from tailsafe.files import replacing, write_json
from tailsafe.runs.config import TrainConfig
from tailsafe.runs.failures import failure
from tailsafe.runs.policy import TENSORS_NAME
from tailsafe.runs.progress import make_progress
from tailsafe.runs.session import METRICS, POLICY, RunInterrupted, Stop, Stretch
from tailsafe.runs.signals import Signals
from tailsafe.runs.together import of_equal_width, programs, trained
from tailsafe.runs.training import seed_folders

RESULT = "result.json"
# In a run's folder: what was measured of its policy before the end.
INTERIM = "interim.json"
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

    def inside(self, folder: Path) -> Group:
        """The same, with its runs in a folder of the study."""
        return replace(self, config=replace(self.config, out=folder / self.name))


@dataclass(frozen=True)
class Outcome:
    """Of a group. rows: one per seed that was trained and measured. failed: what went wrong with the others. note:
    what a person is told. Where training or measuring itself broke there are no rows, and the next call tries again.
    """

    labels: dict[str, str]
    rows: Rows
    failed: Rows
    note: str


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

    def _measured(self, group: Group, stretch: Stretch, stop: Signals) -> Outcome:
        begun = time.monotonic()
        rows, failed = [], []
        try:
            for seed, place in seed_folders(group.config, group.config.folder):
                if stop.wanted():
                    raise RunInterrupted(group.config.folder, stretch.steps, stop.caught or signal.SIGINT)
                labels = {**group.labels, "seed": seed}
                why = stretch.failed.get(place)
                if why is None:
                    rows.append({**labels, **self.measure(place), "seconds": _seconds(place)})
                else:
                    failed.append({**labels, "error": why})
        except Exception as error:
            return broken(group, error)
        write_json(group.config.folder / RESULT, {"config": _digest(group.config), "rows": rows, "failed": failed})
        lost = f", {len(failed)} of {group.config.seeds} runs failed" if failed else ""
        note = f"trained in {stretch.seconds:.0f} s, measured in {time.monotonic() - begun:.0f} s{lost}"
        return Outcome(group.labels, rows, failed, note)


def finished(group: Group) -> Outcome | None:
    """What an earlier call found, if it came to the end of the group; refused if that was of other runs."""
    try:
        content = json.loads((group.config.folder / RESULT).read_text(encoding="utf-8"))
        rows, failed, held = content["rows"], content["failed"], content["config"]
    except (OSError, ValueError, KeyError):
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
            rows.append({**labels, **_interim(place, measure), "seconds": _seconds(place), "interim": True})
        except Exception as error:
            failed.append({**labels, "error": _one_line(error)})
    return Outcome(group.labels, rows, failed, f"{len(rows)} of {group.config.seeds} runs measured as they are")


def _interim(place: Path, measure: Measure) -> dict[str, Any]:
    held = hashlib.sha256((place / POLICY / TENSORS_NAME).read_bytes()).hexdigest()
    with contextlib.suppress(OSError, ValueError, KeyError):
        content = json.loads((place / INTERIM).read_text(encoding="utf-8"))
        if content["policy"] == held:
            return dict(content["measured"])
    measured = measure(place)
    write_json(place / INTERIM, {"policy": held, "measured": measured})
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


def _seconds(place: Path) -> float:
    """Of training, by the run's own log: of the whole program where it shared one."""
    with (place / METRICS).open(newline="", encoding="utf-8") as handle:
        return float(list(csv.DictReader(handle))[-1]["seconds"])


def broken(group: Group, error: Exception) -> Outcome:
    """Something else than numbers went wrong: the group has no result and goes on next time from what it has."""
    text = _one_line(error)
    place = group.config.folder
    # Where the folder itself is what is wrong, the text has to do.
    with contextlib.suppress(OSError, InputError):
        place.mkdir(parents=True, exist_ok=True)
        with replacing(place / "error.txt") as partial:
            partial.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return Outcome(group.labels, [], [{**group.labels, "error": text}], f"failed: {text}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
