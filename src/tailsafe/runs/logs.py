"""What a run writes down as it goes: rows of numbers, to one CSV file and to TensorBoard."""

from __future__ import annotations

import csv
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.files import replacing
from tailsafe.runs.config import Constraint

Row = dict[str, float | int | None]


def make_row(
    constraints: Sequence[Constraint],
    limits: Sequence[float],
    metrics: Mapping[str, Any],
    finished: Any,
    progress: Mapping[str, float | int],
) -> Row:
    """One row of the log, from the means of the metrics and the latest finished episodes (`Finished`, as NumPy).

    Risks are those of the whole spectrum (not of its steps), of the discounted cost sums of the finished episodes; None
    before the first has ended.
    """
    names = [constraint.name for constraint in constraints]
    count = int(finished.count)
    valid = min(count, finished.length.shape[0])
    row: Row = {**progress, "episodes": count}
    length, reward = finished.length[:valid], finished.reward[:valid]
    row["reward"] = float(reward.mean()) if valid else None
    row["episode_length"] = float(length.mean()) if valid else None
    for i, (constraint, limit) in enumerate(zip(constraints, limits, strict=True)):
        costs = np.asarray(finished.costs[:valid, i], np.float64)
        sums = np.asarray(finished.discounted_costs[:valid, i], np.float64)
        row[f"cost_rate_{constraint.name}"] = float((costs / length).mean()) if valid else None
        row[f"risk_{constraint.name}"] = float(constraint.spectrum.risk(sums)) if valid else None
        row[f"limit_{constraint.name}"] = limit
    for name, value in metrics.items():
        row |= _columns(name, np.asarray(value, np.float64), names)
    return row


def _columns(name: str, value: np.ndarray, costs: Sequence[str]) -> Row:
    """A number as it is; one number per cost by the costs' names; other vectors by position."""
    if value.ndim == 0:
        return {name: float(value)}
    per_cost = name in ("sub_risk", "bias", "cost_critic_loss", "step_cost", "multiplier")
    labels = costs if per_cost and value.size == len(costs) else [str(i) for i in range(value.size)]
    return {f"{name}_{label}": float(entry) for label, entry in zip(labels, value.reshape(-1), strict=True)}


class CsvLog:
    """RUN/metrics.csv: one line per row, on the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cut(self, updates: int) -> None:
        """Drop the rows after `updates`, and what a crash left of a last line."""
        if not self._path.exists():
            return
        with self._path.open(newline="", encoding="utf-8") as handle:
            rows = list(csv.reader(handle))
        if not rows or "updates" not in rows[0]:
            self._path.unlink()
            return
        column = rows[0].index("updates")
        kept = [row for row in rows[1:] if len(row) == len(rows[0]) and int(row[column]) <= updates]
        with replacing(self._path) as partial, partial.open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle, lineterminator="\n").writerows([rows[0], *kept])

    def write(self, row: Row) -> None:
        """Append a row; the first one writes the header."""
        new = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle, lineterminator="\n")
            if new:
                writer.writerow(row)
            writer.writerow(["" if value is None else value for value in row.values()])


class TensorBoardLog:
    """RUN/tensorboard: event files."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        logging.getLogger("tensorboardX").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies, about themselves
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=purge_step, write_to_disk=True)

    def write(self, row: Row) -> None:
        """One scalar per column."""
        steps = row["steps"]
        for name, value in row.items():
            if name != "steps" and value is not None and math.isfinite(value):
                self._writer.add_scalar(name, value, steps)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
