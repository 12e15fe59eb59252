"""Algorithms compared over tasks by a score that respects limits: aggregates, profiles, who improves on whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tailsafe.studies.groups import Rows
from tailsafe.studies.statistics import (
    Scores,
    estimate,
    improvement,
    interquartile_mean,
    limited_scores,
    performance_profile,
    profile,
)
from tailsafe.studies.tables import markdown, with_bounds

THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(20))


def compare(rows: Rows, groups: Rows) -> dict[str, Any]:
    """Of the rows of finished groups (task, algorithm, reward, excess), and the states of all groups.

    The score of a run: its reward between the lowest and the highest of all finished runs of the task, 0 where the
    estimate of a risk exceeds its limit, and 0 for a run that failed. Algorithms are compared on the tasks that all of
    those have finished which have finished any. Empty where there are none.
    """
    final = [group for group in groups if group["state"] == "final"]
    done = {(group["task"], group["algorithm"]): group["failed"] for group in final}
    algorithms = list(dict.fromkeys(group["algorithm"] for group in final))
    everywhere = list(dict.fromkeys(group["task"] for group in groups))
    tasks = [task for task in everywhere if all((task, algorithm) in done for algorithm in algorithms)]
    rewards = {task: [row["reward"] for row in rows if row["task"] == task] for task in tasks}
    tasks = [task for task in tasks if rewards[task]]
    if not tasks:
        return {}
    ranges = {task: {"low": min(rewards[task]), "high": max(rewards[task])} for task in tasks}
    scores, kept = dict[str, Scores](), dict[str, Scores]()
    for algorithm in algorithms:
        own = [[row for row in rows if (row["task"], row["algorithm"]) == (task, algorithm)] for task in tasks]
        lost = [np.zeros(done[task, algorithm]) for task in tasks]
        within = [np.array([row["excess"] <= 0 for row in part], float) for part in own]
        earned = [
            limited_scores([row["reward"] for row in part], marks > 0, **ranges[task])
            for task, part, marks in zip(tasks, own, within, strict=True)
        ]
        scores[algorithm] = [np.concatenate(pair) for pair in zip(earned, lost, strict=True)]
        kept[algorithm] = [np.concatenate(pair) for pair in zip(within, lost, strict=True)]
    return {
        "tasks": tasks,
        "tasks_left": [task for task in everywhere if task not in tasks],
        "ranges": ranges,
        "thresholds": list(THRESHOLDS),
        "algorithms": [{"algorithm": name, **_aggregates(scores[name], kept[name])} for name in algorithms],
        "improvement": _pairs(scores),
    }


def _aggregates(scores: Scores, kept: Scores) -> dict[str, Any]:
    """runs; score: interquartile mean; kept: share of runs within all limits; profile: over `THRESHOLDS`."""
    return {
        "runs": sum(task.size for task in scores),
        "score": estimate(interquartile_mean, scores).to_json(),
        "kept": estimate(lambda drawn: performance_profile(drawn, [0.5])[..., 0], kept).to_json(),
        "profile": [one.to_json() for one in profile(scores, THRESHOLDS)],
    }


def _pairs(scores: Mapping[str, Scores]) -> Rows:
    return [
        {"first": first, "second": second, **improvement(x, y).to_json()}
        for first, x in scores.items()
        for second, y in scores.items()
        if first != second
    ]


def comparison_tables(found: Mapping[str, Any], compared_with: str) -> str:
    """Aggregates of every algorithm, and how likely `compared_with` improves on it."""
    if not found:
        return ""
    against = {pair["second"]: pair for pair in found["improvement"] if pair["first"] == compared_with}
    left = f"; not finished by all: {', '.join(found['tasks_left'])}" if found["tasks_left"] else ""
    lines = [
        [
            entry["algorithm"],
            str(entry["runs"]),
            with_bounds(entry["score"]),
            with_bounds(entry["kept"]),
            with_bounds(against[entry["algorithm"]]) if entry["algorithm"] in against else "-",
        ]
        for entry in found["algorithms"]
    ]
    header = [
        "algorithm",
        "runs",
        "score (interquartile mean)",
        "runs within limits",
        f"{compared_with} better",
    ]
    return f"\nFinal figures over {', '.join(found['tasks'])}{left}:\n\n{markdown(header, lines)}"
