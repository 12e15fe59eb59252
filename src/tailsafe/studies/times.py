"""How long training took, by a run's own log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailsafe.training.logs import session_starts
from tailsafe.viz.run import read_curves


@dataclass(frozen=True)
class Times:
    """seconds: of training, with what was compiled once. steps_per_second: control steps, compilation left out."""

    seconds: float
    steps_per_second: float


def training_times(folder: Path) -> Times:
    """From RUN/metrics.csv. The first row of a session has compiled: it says nothing about the speed, and in a session
    that resumed a run it counts as if its program had been there.
    """
    columns = read_curves(folder).columns
    steps, seconds = (np.diff(columns[name], prepend=0.0) for name in ("steps", "seconds"))
    rows = np.searchsorted(columns["updates"], session_starts(folder), side="right")
    first = np.unique(rows[rows < steps.size])
    speeds = steps / np.maximum(seconds, 1e-9)
    warm = np.delete(speeds, first)
    # Where every row begins a session, the fastest of them is nearest to the truth.
    speed = float(np.median(warm)) if warm.size else float(speeds.max())
    again = first[first > 0]
    compiled = np.maximum(seconds[again] - steps[again] / speed, 0.0)
    return Times(float(columns["seconds"][-1] - compiled.sum()), speed)
