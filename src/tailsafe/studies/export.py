"""A study as tidy tables for other tools: one observation per line, one variable per column, CSV.

runs.csv: a line per measured run. constraints.csv: per run and constraint. curves.csv: per run and logged row.
episodes.csv: per run and fresh episode. summary.csv: per group and quantity. groups.csv: the state of every group.
statistics.csv: per statistic, of all groups together. Files without a line are not written.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.evaluation.episodes import TABLE_NAME, read_episodes
from tailsafe.files import new_folder, read_object
from tailsafe.studies.groups import Group, Rows
from tailsafe.training.train import seed_folders
from tailsafe.viz.run import read_curves

RESULTS = "results.json"
# Of one number per constraint.
PER_CONSTRAINT = ("constraints", "risk_measures", "cost_rates", "risks", "limits", "verdicts")
# Of one number per episode: episodes.csv has them.
PER_EPISODE = ("costs", "rates")
_CURVES = ("steps", "updates", "seconds", "episodes", "reward", "episode_length")
_BOUNDS = {"mean", "low", "high"}


def read_results(folder: Path) -> dict[str, Any]:
    """results.json of a study's folder."""
    path = folder / RESULTS
    content = read_object(path)
    rows = content.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: is not the result of a study")
    return content


def export(results: Mapping[str, Any], groups: Sequence[Group], target: Path) -> list[str]:
    """Write the tables into the new folder `target`; their names. groups: with their folders."""
    tables = {
        "runs.csv": [_run(row) for row in results["rows"]],
        "constraints.csv": [line for row in results["rows"] for line in _constraints(row)],
        "curves.csv": [line for group in groups for line in _curves(group)],
        "episodes.csv": [line for group in groups for line in _episodes(group)],
        "summary.csv": [line for entry in results["summary"] for line in _quantities(entry)],
        "groups.csv": list(results.get("groups", [])),
        "failed.csv": list(results["failed"]),
        "statistics.csv": list(_statistics(results.get("statistics") or {})),
    }
    written = {name: lines for name, lines in tables.items() if lines}
    with new_folder(target) as partial:
        for name, lines in written.items():
            _write(partial / name, lines)
    return list(written)


def _write(path: Path, lines: Rows) -> None:
    header = list(dict.fromkeys(key for line in lines for key in line))
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, header, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _run(row: Mapping[str, Any]) -> dict[str, Any]:
    """Labels, seed and single numbers. figures: final or interim."""
    own = {key: value for key, value in row.items() if not isinstance(value, list | dict) and key != "interim"}
    return {**own, "figures": _figures(row)}


def _constraints(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    lists = {key: row[key] for key in PER_CONSTRAINT if isinstance(row.get(key), list)}
    count = len(lists.get("risks", ()))
    for i in range(count):
        own = {key.removesuffix("s"): values[i] for key, values in lists.items() if len(values) == count}
        yield {**_labels(row), "number": i, **own, "figures": _figures(row)}


def _labels(row: Mapping[str, Any]) -> dict[str, Any]:
    """The texts before the seed, and the seed."""
    names = list(row)
    return {key: row[key] for key in names[: names.index("seed") + 1]} if "seed" in row else {}


def _figures(row: Mapping[str, Any]) -> str:
    return "interim" if row.get("interim") else "final"


def _seeds(group: Group) -> Iterator[tuple[dict[str, Any], Path]]:
    for seed, place in seed_folders(group.config, group.config.folder):
        yield {**group.labels, "seed": seed}, place


def _curves(group: Group) -> Iterator[dict[str, Any]]:
    """A line per cost of every logged row: rate, risk and limit of the discounted sum."""
    for labels, place in _seeds(group):
        try:
            run = read_curves(place)
        except InputError:
            continue  # not started
        for i in range(run.columns["steps"].size):
            shared = {name: _number(run.columns[name][i]) for name in _CURVES if name in run.columns}
            for cost in run.named("risk_"):
                own = {name: run.columns.get(f"{name}_{cost}") for name in ("cost_rate", "risk", "limit")}
                yield {
                    **labels,
                    **shared,
                    "cost": cost,
                    **{name: _number(column[i]) for name, column in own.items() if column is not None},
                }


def _number(value: float) -> float | int | str:
    """Whole numbers as such, an empty cell for none."""
    return "" if value != value else int(value) if float(value).is_integer() else float(value)


def _episodes(group: Group) -> Iterator[dict[str, Any]]:
    """A line per cost of every episode that the last evaluation of a run has played."""
    for labels, place in _seeds(group):
        try:
            played, names = read_episodes(place / TABLE_NAME)
        except InputError:
            continue  # not evaluated
        for i in range(len(played)):
            for j, name in enumerate(names):
                yield {
                    **labels,
                    "episode": i,
                    "reward": _number(played.reward[i]),
                    "length": _number(played.length[i]),
                    "cost_name": name,
                    "cost": _number(played.costs[i, j]),
                    "discounted_cost": _number(played.discounted_costs[i, j]),
                }


def _quantities(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A line per number of an entry: its value, with bounds where it has some. Lists are numbered."""
    labels = {key: value for key, value in entry.items() if isinstance(value, str)}
    for key, value in entry.items():
        if key in labels:
            continue
        if isinstance(value, dict) and not set(value) >= _BOUNDS:
            parts = [(f"{key} {name}", "", one) for name, one in value.items()]
        elif isinstance(value, list):
            parts = [(key, str(i), one) for i, one in enumerate(value)]
        else:
            parts = [(key, "", value)]
        for name, number, one in parts:
            yield {**labels, "quantity": name, "number": number, **_bounded(one)}


def _bounded(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"value": value["mean"], "low": value["low"], "high": value["high"]}
    return {"value": value, "low": "", "high": ""}


def _statistics(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """statistic: score, kept, profile (at a threshold) or improvement (of an algorithm on another)."""
    for entry in found.get("algorithms", ()):
        own = {"algorithm": entry["algorithm"], "other": "", "threshold": ""}
        for name in ("score", "kept"):
            yield {"statistic": name, **own, **_bounded(entry[name])}
        for threshold, one in zip(found["thresholds"], entry["profile"], strict=True):
            yield {"statistic": "profile", **own, "threshold": threshold, **_bounded(one)}
    for pair in found.get("improvement", ()):
        names = {"algorithm": pair["first"], "other": pair["second"], "threshold": ""}
        yield {"statistic": "improvement", **names, **_bounded(pair)}
