"""What summaries and tables of studies share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tailsafe.evaluation.bounds import Interval, student_interval
from tailsafe.evaluation.constraint_report import BOOTSTRAP_MET, LEAST_TAIL, Verdict, tail_episodes, verdict
from tailsafe.risk import SpectralRisk
from tailsafe.studies.groups import Rows
from tailsafe.studies.statistics import CONFIDENCE, risk_over_runs

# Of the risk of every group: a table has hundreds.
_RESAMPLES = 4000


def over_seeds(rows: Rows, labels: Sequence[str], numbers: Sequence[str]) -> Rows:
    """Per combination of labels: how many seeds, and for each number its mean and Student's interval over them."""
    keys = list(dict.fromkeys(tuple(row[label] for label in labels) for row in rows))
    found = []
    for key in keys:
        own = [row for row in rows if tuple(row[label] for label in labels) == key]
        entry: dict[str, Any] = {**dict(zip(labels, key, strict=True)), "seeds": len(own)}
        found.append(entry | {name: interval([row[name] for row in own]) for name in numbers})
    return found


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean, and Student's bounds at `CONFIDENCE`; a single value is its own bounds."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return {"mean": mean, "low": mean, "high": mean}
    found = student_interval(np.asarray(values, float), CONFIDENCE)
    return {"mean": mean, "low": found.low, "high": found.high}


def risk_interval_over_seeds(measure: SpectralRisk, costs: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean over seeds of a risk, with the bounds of both levels: seeds, and episodes (`risk_over_runs`)."""
    return risk_over_runs(measure, costs, resamples=_RESAMPLES).to_json()


def verdict_over_seeds(measure: SpectralRisk, risk: Mapping[str, float], limit: float, episodes: int) -> Verdict:
    """On the mean risk over seeds. As of a single policy, the bootstrap confirms nothing with few episodes in the tail
    (of all seeds together) or where nothing varies.
    """
    found = verdict(Interval(risk["low"], risk["high"]), limit)
    if found != "met":
        return found
    enough = tail_episodes(measure, episodes) >= LEAST_TAIL and risk["low"] < risk["high"]
    return BOOTSTRAP_MET if enough else "cannot tell"


def cells(entries: Rows, groups: Rows, labels: Sequence[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Every group of a study with its entry of the summary, None where it has no figures."""
    own = {tuple(entry[label] for label in labels): entry for entry in entries}
    for group in groups:
        yield group, own.get(tuple(group[label] for label in labels))


def figures(group: Mapping[str, Any]) -> str:
    """What the figures of a group are: final, interim, or none and why."""
    if group["state"] in ("final", "interim"):
        text = str(group["state"])
        if group["state"] == "interim":
            text += f" at {group['steps']:,} of {group['total_steps']:,} steps"
        if group["failed"]:
            text += f", {group['failed']} of {group['seeds']} runs failed"
        return text
    return f"none: {group['note']}"


def with_reach(value: Mapping[str, float], digits: str = ".3g", factor: float = 1.0) -> str:
    """`mean ± half of the interval`."""
    reach = value["high"] - value["mean"]
    return f"{factor * value['mean']:{digits}}" + (f" ± {factor * reach:{digits}}" if reach else "")


def with_bounds(value: Mapping[str, float], digits: str = ".3g") -> str:
    """`mean [low, high]`, of bounds that are not symmetric."""
    return f"{value['mean']:{digits}} [{value['low']:{digits}}, {value['high']:{digits}}]"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table. Bars inside of cells would end them."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", "/") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
