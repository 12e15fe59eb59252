"""What a run writes down as it goes: rows of numbers, in one CSV file; other places are in `sinks`."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailsafe.errors import InputError
from tailsafe.files import no_link, open_text, read_object, replacing, write_json
from tailsafe.training.config import Constraint

Row = dict[str, float | int | None]
# In a run's folder: the updates from which its sessions began, and after which a policy was shipped.
SESSIONS = "sessions.json"
_SHIPPED = "shipped"

# A row is of the latest tenth of all finished episodes, but of at least this many, where there are so many.
_FEWEST_EPISODES = 32
# Metrics with one number per cost; those of them that are cost sums are shown in the unit of the limit.
_PER_COST = ("sub_risk", "bias", "cost_critic_loss", "step_cost", "multiplier")
_COST_SUMS = ("sub_risk", "bias")


@dataclass(frozen=True)
class LoggedCost:
    """How the log speaks of one cost: in the unit of its limit, so that all a person reads of it can be compared.

    factor: the unit of the limit per discounted sum. betas: dual variables that its spectrum has; a learner may carry
    more, to be as wide as that of another cost.
    """

    constraint: Constraint
    factor: float
    betas: int

    @property
    def name(self) -> str:
        return self.constraint.name

    @property
    def unit(self) -> str:
        """Behind a number."""
        return per(self.constraint.unit or "")


def per(unit: str) -> str:
    """A unit as it stands behind a number: `/step`, `/episode`, or nothing for the discounted sum."""
    return "" if unit in ("", "discounted") else f"/{unit}"


def make_row(
    logged: Sequence[LoggedCost], metrics: Mapping[str, Any], finished: Any, progress: Mapping[str, float | int]
) -> Row:
    """One row of the log, from the means of the metrics and the latest finished episodes (`Finished`, as NumPy).

    Risks are those of the whole spectrum (not of its steps), of the discounted cost sums of the `recent_episodes`
    latest finished episodes, in the unit of the limit; None before the first has ended. Of a range of limits these are
    episodes with limits from all of it, and `limit` is the highest.
    """
    count, window = int(finished.count), finished.length.shape[0]
    recent = min(count, window, max(_FEWEST_EPISODES, math.ceil(count / 10)))
    latest = (count - 1 - np.arange(recent)) % window
    row: Row = {**progress, "episodes": count, "recent_episodes": recent}
    length, reward = finished.length[latest], finished.reward[latest]
    row["reward"] = float(reward.mean()) if recent else None
    row["episode_length"] = float(length.mean()) if recent else None
    for i, cost in enumerate(logged):
        costs = np.asarray(finished.costs[latest, i], np.float64)
        sums = np.asarray(finished.discounted_costs[latest, i], np.float64)
        row[f"cost_rate_{cost.name}"] = float((costs / length).mean()) if recent else None
        row[f"risk_{cost.name}"] = float(cost.constraint.spectrum.risk(sums)) * cost.factor if recent else None
        row[f"limit_{cost.name}"] = cost.constraint.highest
    for name, value in metrics.items():
        row |= _columns(name, np.asarray(value, np.float64), logged)
    return row


def _columns(name: str, value: np.ndarray, logged: Sequence[LoggedCost]) -> Row:
    """A number as it is; numbers of costs by the costs' names; other vectors by position."""
    if value.ndim == 0:
        return {name: float(value)}
    flat = value.reshape(-1)
    if name == "beta" and flat.size % len(logged) == 0:
        return _beta_columns(flat.reshape(len(logged), -1), logged)
    if name in _PER_COST and flat.size == len(logged):
        factors = [cost.factor if name in _COST_SUMS else 1.0 for cost in logged]
        rows = zip(logged, flat, factors, strict=True)
        return {f"{name}_{cost.name}": float(entry) * factor for cost, entry, factor in rows}
    return {f"{name}_{i}": float(entry) for i, entry in enumerate(flat)}


def _beta_columns(betas: np.ndarray, logged: Sequence[LoggedCost]) -> Row:
    """The dual variables that each spectrum has, in the unit of its limit: beta_COST, or beta_COST_K of several."""
    row: Row = {}
    for cost, own in zip(logged, betas, strict=True):
        used = own[: cost.betas]
        names = [f"beta_{cost.name}"] if used.size == 1 else [f"beta_{cost.name}_{k}" for k in range(used.size)]
        row |= {name: float(entry) * cost.factor for name, entry in zip(names, used, strict=True)}
    return row


def missed(row: Row, logged: Sequence[LoggedCost], margin: float = 0.0) -> list[str]:
    """Of the risks of a row, those above their limits or above what the learner aimed at; or that none is known.

    margin: the share of each limit that the learner keeps free.
    """
    told = []
    if row.get("recent_episodes") == 0:
        told.append("no training episode has ended, so no risk is known: train longer, or end episodes by a time limit")
    for cost in logged:
        risk = row.get(f"risk_{cost.name}")
        # Of a range, episodes with all of its limits: only what the highest allows can be said to be too much.
        limit = cost.constraint.highest
        aim = limit * (1 - margin)
        if risk is None or risk <= aim:
            continue
        what = f"the limit {limit:g}{cost.unit}"
        if risk <= limit:
            what = f"the aim {aim:.3g}{cost.unit}, but within {what} (margin {margin:g})"
        told.append(
            f"{cost.name}: {cost.constraint.spectrum.spec} is {risk:.3g}{cost.unit} over the last "
            f"{row['recent_episodes']} training episodes, above {what}"
        )
    return told


def begin_session(folder: Path, updates: int) -> None:
    """Note that a session resumes at `updates`; rows of later updates are cut from the log."""
    earlier = [start for start in session_starts(folder) if start < updates]
    shipped = 0 if updates == 0 else last_shipped(folder)
    if shipped is not None and shipped > updates:
        shipped = 0  # by a path that was left
    write_json(folder / SESSIONS, {"begun": [*earlier, updates]} | ({} if shipped is None else {_SHIPPED: shipped}))


def note_shipped(folder: Path, updates: int) -> None:
    """Note that the run's policy is the one that ships after so many updates: nothing is left to do."""
    write_json(folder / SESSIONS, {"begun": session_starts(folder), _SHIPPED: updates})


def last_shipped(folder: Path) -> int | None:
    """After how many updates a policy was shipped, 0: none was yet; None where nothing says so, as in older runs."""
    with contextlib.suppress(InputError):
        shipped = read_object(folder / SESSIONS).get(_SHIPPED)
        if type(shipped) is int and shipped >= 0:
            return shipped
    return None


def session_starts(folder: Path) -> list[int]:
    """The updates from which a run's sessions began: their first rows compiled. Without a note of it, the first."""
    with contextlib.suppress(InputError, KeyError):
        begun = read_object(folder / SESSIONS)["begun"]
        if isinstance(begun, list) and all(type(start) is int and start >= 0 for start in begun):
            return begun
    return [0]


class CsvLog:
    """RUN/metrics.csv: one line per row, on the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cut(self, updates: int) -> None:
        """Drop the rows after `updates`, and what a crash left of a last line."""
        if not self._path.exists():
            return
        text = ""
        try:
            with open_text(self._path) as handle:
                text = handle.read()
            rows = list(csv.reader(io.StringIO(text, newline="")))
        except (UnicodeDecodeError, csv.Error):
            rows = []
        if not rows or "updates" not in rows[0]:
            self._set_aside(os.replace)
            return
        column = rows[0].index("updates")
        whole = [len(row) == len(rows[0]) and row[column].isdecimal() and len(row[column]) < 19 for row in rows[1:]]
        # The last one may be what a crash left of a line. It is not if the line is whole, or is all that followed a
        # stray quotation mark.
        torn = not text.endswith("\n") and not any("\n" in cell for cell in rows[-1])
        if not all(whole[:-1] if torn else whole):
            self._set_aside(shutil.copyfile)
        kept = [row for row, good in zip(rows[1:], whole, strict=True) if good and int(row[column]) <= updates]
        with replacing(self._path) as partial, partial.open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle, lineterminator="\n").writerows([rows[0], *kept])

    def last(self) -> int:
        """The latest update that it has a row of; 0 where it has none that can be read."""
        try:
            with open_text(self._path) as handle:
                rows = [row["updates"] for row in csv.DictReader(handle) if row.get("updates")]
        except (OSError, UnicodeDecodeError, csv.Error):
            return 0
        return max((int(updates) for updates in rows if updates.isdecimal() and len(updates) < 19), default=0)

    def write(self, row: Row) -> None:
        """Append a row; the first one writes the header."""
        new = not self._path.exists()
        with open(self._path, "a", newline="", encoding="utf-8", opener=no_link) as handle:
            writer = csv.writer(handle, lineterminator="\n")
            if new:
                writer.writerow(row)
            writer.writerow(["" if value is None else value for value in row.values()])
            handle.flush()
            os.fsync(handle.fileno())

    def _set_aside(self, move: Callable[[Path, Path], Any]) -> None:
        """A damaged log is kept under another name: what is in it exists nowhere else."""
        taken = len(list(self._path.parent.glob(f"{self._path.stem}.damaged*")))
        aside = self._path.with_name(f"{self._path.stem}.damaged{f'-{taken}' if taken else ''}{self._path.suffix}")
        move(self._path, aside)
        logging.getLogger("tailsafe").warning("%s: is damaged; it is kept as %s", self._path, aside.name)
