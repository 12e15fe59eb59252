"""Groups of runs: trained as few programs as their shapes allow, measured, never repeated once they are finished."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailsafe.files import replacing
from tailsafe.runs.config import TrainConfig
from tailsafe.runs.together import programs, train_together
from tailsafe.runs.training import seed_folders

RESULT = "result.json"
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
    what a person is told. A group that is not `finished` has more to do when the study is called again.
    """

    labels: dict[str, str]
    rows: Rows
    failed: Rows
    note: str
    finished: bool = True


@dataclass(frozen=True)
class Job:
    """Groups that train in one program, what is measured of each run, and how long it may take.

    until: a moment of `time.time`, from which on to stop and save. shown: whether training tells how it goes.
    """

    groups: tuple[Group, ...]
    measure: Measure
    until: float = math.inf
    shown: bool = False

    def run(self) -> list[Outcome]:
        """Train and measure. Whatever goes wrong with these runs is part of the outcome; stopping is not."""
        begun = time.monotonic()
        until = begun + self.until - time.time()
        try:
            stretch = train_together([group.config for group in self.groups], progress=self.shown, until=until)
        except Exception as error:
            return [broken(group, error) for group in self.groups]
        seconds = time.monotonic() - begun
        outcomes = []
        for group in self.groups:
            own = {seed: stretch.failed.get(place) for seed, place in seed_folders(group.config, _place(group))}
            failed = [{**group.labels, "seed": seed, "error": why} for seed, why in own.items() if why]
            try:
                rows = [
                    {**group.labels, "seed": seed, **self.measure(place), "seconds": stretch.seconds}
                    for seed, place in seed_folders(group.config, _place(group))
                    if not own[seed]
                ]
            except Exception as error:
                outcomes.append(broken(group, error))
                continue
            _write(_place(group), {"rows": rows, "failed": failed})
            lost = f", {len(failed)} of {len(own)} runs failed" if failed else ""
            outcomes.append(Outcome(group.labels, rows, failed, f"{seconds:.0f} s{lost}"))
        return outcomes


def finished(group: Group) -> Outcome | None:
    """What an earlier call found, if it came to the end of the group."""
    try:
        content = json.loads((_place(group) / RESULT).read_text(encoding="utf-8"))
        return Outcome(group.labels, content["rows"], content.get("failed", []), "was finished")
    except (OSError, ValueError, KeyError):
        return None


def jobs(groups: Sequence[Group], measure: Measure, until: float = math.inf, shown: bool = False) -> list[Job]:
    """One for all groups that fit into one program."""
    owners = {str(group.config.out): group for group in groups}
    batches = programs([group.config for group in groups])
    return [Job(tuple(owners[str(config.out)] for config in batch), measure, until, shown) for batch in batches]


def _place(group: Group) -> Path:
    return Path(group.config.out)  # type: ignore[arg-type]


def broken(group: Group, error: Exception) -> Outcome:
    """Something else than numbers went wrong: the group has no result and goes on next time from what it has."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    place = _place(group)
    place.mkdir(parents=True, exist_ok=True)
    with replacing(place / "error.txt") as partial:
        partial.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return Outcome(group.labels, [], [{**group.labels, "error": text}], f"failed: {text}", finished=False)


def _write(place: Path, content: dict[str, Any]) -> None:
    with replacing(place / RESULT) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
