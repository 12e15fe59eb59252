"""Groups of runs: seeds that train in one program, each group once, whatever interrupts the study."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailsafe.files import replacing
from tailsafe.runs.config import TrainConfig
from tailsafe.runs.policy import policy_folders
from tailsafe.runs.session import CONFIG, NonFiniteError
from tailsafe.runs.training import resume, train

RESULT = "result.json"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds. labels: what each of its rows says it is."""

    labels: dict[str, str]
    config: TrainConfig

    @property
    def name(self) -> str:
        """Its folder."""
        return "_".join(self.labels.values()).replace(" ", "-").replace("/", "-")


def run_group(group: Group, folder: Path, measure: Callable[[Path], dict[str, Any]]) -> tuple[Rows, str]:
    """(rows, what happened): one row per seed, from `measure` of its folder. Finished groups are read, not repeated.

    A group whose numbers are no longer finite has no rows; what went wrong is in its result, and it begins anew next
    time. Other errors are left to the caller, and what the group has reached stays.
    """
    place = folder / group.name
    done = _result(place)
    if done is not None and "error" not in done:
        return done["rows"], "was finished"
    if done is not None:
        shutil.rmtree(place)
    begun = time.monotonic()
    try:
        if (place / CONFIG).exists():
            run = resume(place, progress=False)
        else:
            run = train(replace(group.config, out=place), progress=False)
        rows = [
            {**group.labels, "seed": group.config.seed + i, **measure(seed), "seconds": run.seconds}
            for i, seed in enumerate(policy_folders(place))
        ]
    except NonFiniteError as error:
        _write(place, {"error": str(error)})
        return [], f"failed: {error}"
    _write(place, {"rows": rows})
    return rows, f"{time.monotonic() - begun:.0f} s"


def _result(place: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads((place / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def _write(place: Path, content: dict[str, Any]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    with replacing(place / RESULT) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
