"""All algorithms and weight strategies on finite problems: how far from the optimum, and how far beyond the limits.

Nothing is sampled in the evaluation: a learned policy is walked through the augmented states of its problem, and the
optimum is a linear program's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from tailsafe.errors import InputError
from tailsafe.files import replacing
from tailsafe.learning.strategies import SINGLE_CONSTRAINT
from tailsafe.runs.config import Constraint, TrainConfig
from tailsafe.runs.exact import evaluate_on_problem
from tailsafe.runs.policy import load_policy
from tailsafe.studies.groups import Group, Rows, run_group
from tailsafe.tabular.suite import SUITE, Known

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Method:
    """A column of the comparison: an algorithm, or SRCPO with another weight strategy."""

    label: str
    algorithm: str
    settings: dict[str, Any] = field(default_factory=dict)


METHODS = (
    # As preset: the programs of the proposed strategy as steps that end at the constraint (`violated: linear`). The
    # strategies themselves are directions of full length.
    Method("srcpo", "srcpo"),
    Method("srcpo/proposed", "srcpo", {"strategy": "proposed", "violated": "paper"}),
    *(Method(f"srcpo/{name}", "srcpo", {"strategy": name}) for name in ("sdac", "cpo", "pcpo", "crpo", "p3o", "ipo")),
    *(Method(name, name) for name in ("cppo", "cvar_cpo", "sdac", "sdpo", "wcsac")),
)


@dataclass(frozen=True)
class Scale:
    """How much of it: control steps per run, seeds, problems and methods by name, and settings for all."""

    steps: int
    seeds: int
    problems: tuple[str, ...]
    methods: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)


_ALL = tuple(known.name for known in SUITE), tuple(method.label for method in METHODS)
_TINY = {"num_envs": 8, "policy_hidden": (8,), "critic_hidden": (8,), "quantiles": 5, "log_every": 1}
SCALES = {
    # Every algorithm for a few updates: whether it runs, not what it finds.
    "smoke": Scale(200, 2, ("two prices",), ("srcpo", "srcpo/p3o", "sdac", "sdpo", "cppo", "cvar_cpo", "wcsac"), _TINY),
    # Smaller batches than the preset's: hours on two cores instead of a day.
    "laptop": Scale(100_000, 5, *_ALL, {"num_envs": 64}),
    "paper": Scale(1_000_000, 5, *_ALL),
}


def groups(scale: Scale) -> list[Group]:
    """What there is to train; strategies for one constraint skip problems with two."""
    found = []
    for known in (known for known in SUITE if known.name in scale.problems):
        for method in (method for method in METHODS if method.label in scale.methods):
            single = method.settings.get("strategy") in SINGLE_CONSTRAINT
            if not (single and len(known.limits) > 1):
                found.append(_group(known, method, scale))
    return found


def _group(known: Known, method: Method, scale: Scale) -> Group:
    from tailsafe.runs.keys import key_types

    names = ["cost"] if len(known.limits) == 1 else [f"cost{i}" for i in range(len(known.limits))]
    wanted = {"problem": known.build(), "cells": 2, **scale.settings, **method.settings}
    settings = {key: value for key, value in wanted.items() if key in key_types(method.algorithm)}
    config = TrainConfig(
        "finite",
        algorithm=method.algorithm,
        constraints=[
            Constraint(name, known.measure, limit, "discounted")
            for name, limit in zip(names, known.limits, strict=True)
        ],
        total_steps=scale.steps,
        seeds=scale.seeds,
        preset="laptop",
        settings=settings,
    )
    return Group({"problem": known.name, "method": method.label}, config)


def measure(folder: Path) -> dict[str, Any]:
    """gap: the missing share of the optimum (negative only beyond a limit). violation: the largest share by which a
    risk exceeds its limit, 0 within all of them.
    """
    exact = evaluate_on_problem(load_policy(folder))
    if exact.optimum is None or not all(exact.limits):
        raise InputError(f"{folder}: no policy keeps these limits, or one of them is zero; there is no gap to measure")
    optimum = exact.optimum
    excess = [risk / limit - 1 for risk, limit in zip(exact.risks, exact.limits, strict=True)]
    return {
        "reward": exact.reward,
        "optimum": optimum,
        "gap": (optimum - exact.reward) / abs(optimum),
        "risks": list(exact.risks),
        "limits": list(exact.limits),
        "violation": max(0.0, *excess),
    }


def summary(rows: Rows) -> Rows:
    """Per problem and method: mean and interval of gap and violation over seeds (Student's t)."""
    keys = list(dict.fromkeys((row["problem"], row["method"]) for row in rows))
    found = []
    for problem, method in keys:
        own = [row for row in rows if (row["problem"], row["method"]) == (problem, method)]
        entry: dict[str, Any] = {"problem": problem, "method": method, "seeds": len(own)}
        for name in ("gap", "violation"):
            entry[name] = _interval([row[name] for row in own])
        found.append(entry)
    return found


def _interval(values: Sequence[float]) -> dict[str, float]:
    mean, count = float(np.mean(values)), len(values)
    reach = 0.0
    if count > 1:
        level = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
        reach = level * float(np.std(values, ddof=1)) / count**0.5
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def run(scale: str, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Train what is missing in `folder`, measure all of it, write results.json, table.md and a picture."""
    from tailsafe.viz.study import draw_known_optimum

    wanted = groups(SCALES[scale])
    rows: Rows = []
    failed = []
    for index, group in enumerate(wanted, 1):
        found, what = run_group(group, folder, measure)
        rows += found
        if not found:
            failed.append({**group.labels, "error": what})
        say(f"{index}/{len(wanted)} {group.labels['problem']}, {group.labels['method']}: {what}")
    entries = summary(rows)
    result = {"study": "known-optimum", "scale": scale, "summary": entries, "failed": failed, "rows": rows}
    with replacing(folder / "results.json") as partial:
        partial.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    with replacing(folder / "table.md") as partial:
        partial.write_text(table(entries), encoding="utf-8")
    draw_known_optimum(entries, folder / "known_optimum.png")
    return result


def table(entries: Rows) -> str:
    """Markdown: methods by problems, `gap % (violation %)`."""
    problems = list(dict.fromkeys(entry["problem"] for entry in entries))
    methods = list(dict.fromkeys(entry["method"] for entry in entries))
    cells = {(entry["problem"], entry["method"]): _cell(entry) for entry in entries}
    lines = [f"| method | {' | '.join(problems)} |", f"|{'---|' * (1 + len(problems))}"]
    lines += [
        f"| {method} | {' | '.join(cells.get((problem, method), '-') for problem in problems)} |" for method in methods
    ]
    return "\n".join(lines) + "\n"


def _cell(entry: dict[str, Any]) -> str:
    gap, over = entry["gap"], entry["violation"]
    text = f"{100 * gap['mean']:.1f} ± {100 * (gap['high'] - gap['mean']):.1f}"
    if over["mean"] < 5e-4:
        return text
    return f"{text}, over by {100 * over['mean']:.0f} ± {100 * (over['high'] - over['mean']):.0f}"
