"""All algorithms and weight strategies on finite problems: how far from the optimum, and how far beyond the limits.

Nothing is sampled in the evaluation: a learned policy is walked through the augmented states of its problem, and the
optimum is a linear program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailsafe.algorithms.registry import ALGORITHMS
from tailsafe.errors import InputError
from tailsafe.evaluation.exact import evaluate_on_problem
from tailsafe.optimization.strategies import SINGLE_CONSTRAINT
from tailsafe.policies.policy import load_policy
from tailsafe.studies.groups import Group, Rows
from tailsafe.studies.study import Findings, Study
from tailsafe.studies.tables import cells, figures, markdown, over_seeds, with_reach
from tailsafe.tabular.suite import SUITE, Known
from tailsafe.training.config import Constraint, TrainConfig
from tailsafe.training.settings import known_settings

LABELS = ("problem", "method")


@dataclass(frozen=True)
class Method:
    """A column of the comparison: an algorithm, or SRCPO with another weight strategy."""

    label: str
    algorithm: str
    settings: dict[str, Any] = field(default_factory=dict)


METHODS = (
    # As preset: the programs of the proposed strategy as steps that end at the constraint (`strategy: linear`). The
    # strategies themselves are directions of full length.
    Method("srcpo", "srcpo"),
    Method("srcpo/proposed", "srcpo", {"strategy": "proposed"}),
    *(Method(f"srcpo/{name}", "srcpo", {"strategy": name}) for name in ("sdac", "cpo", "pcpo", "crpo", "p3o", "ipo")),
    *(Method(name, name) for name in ALGORITHMS[1:]),
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
    # Some algorithms for a few updates: whether it runs, not what it finds.
    "smoke": Scale(200, 2, ("two prices",), ("srcpo/p3o", "cppo", "wcsac"), _TINY),
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
    names = ["cost"] if len(known.limits) == 1 else [f"cost{i}" for i in range(len(known.limits))]
    wanted = {"problem": known.build(), "cells": 2, **scale.settings, **method.settings}
    settings = {key: value for key, value in wanted.items() if key in known_settings(method.algorithm)}
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


def summary(rows: Rows, scale: str) -> Rows:
    """Per problem and method: gap and violation over seeds."""
    return over_seeds(rows, LABELS, ("gap", "violation"))


def table(found: Findings) -> str:
    """Methods by problems: what is missing of the optimum, and by how much a limit is exceeded, in percent. A dash: the
    method is not for this problem.
    """
    problems, methods = (list(dict.fromkeys(group[label] for group in found.groups)) for label in LABELS)
    texts = {
        (group["problem"], group["method"]): _cell(group, entry)
        for group, entry in cells(found.summary, found.groups, LABELS)
    }
    return markdown(
        ["method", *problems],
        [[method, *(texts.get((problem, method), "-") for problem in problems)] for method in methods],
    )


def _cell(group: dict[str, Any], entry: dict[str, Any] | None) -> str:
    if entry is None:
        return figures(group)
    text = f"{with_reach(entry['gap'], '.1f', 100)} %"
    over = entry["violation"]
    text = text if over["mean"] < 5e-4 else f"{text}, over by {with_reach(over, '.0f', 100)} %"
    what = figures(group)
    return text if what == "final" else f"{text} ({what})"


def draw(found: Findings, runs: Sequence[Group], folder: Path) -> list[str]:
    """Gap and violation of every method, a column per problem."""
    from tailsafe.viz.study import draw_known_optimum

    if not found.summary:
        return []
    draw_known_optimum(found.summary, folder / "known_optimum.png")
    return ["known_optimum.png"]


STUDY = Study(
    "known-optimum",
    "all algorithms and weight strategies on finite problems: gap to the optimum, excess over limits",
    lambda scale: groups(SCALES[scale]),
    lambda scale: measure,
    summary,
    table,
    draw,
)
