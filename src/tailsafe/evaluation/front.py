"""The front of runs: reward against risk, over the limits that their policies can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.evaluation.candidates import requests_of
from tailsafe.evaluation.report import Evaluation
from tailsafe.evaluation.verdict import evaluate
from tailsafe.files import write_json
from tailsafe.policies.policy import policy_folders

FILE_NAME = "front.json"
# A run's folder, what it is asked for, episodes played, and how many there are.
ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Point:
    """One policy, asked for one limit per cost. request: in the units of training."""

    run: Path
    name: str
    request: tuple[float, ...]
    evaluation: Evaluation

    def to_json(self) -> dict[str, Any]:
        report = self.evaluation.to_json()
        return {
            "run": str(self.run),
            "request": self.name,
            "limit": list(self.request),
            "unit": [constraint["unit"] for constraint in report["constraints"]],
            "reward": {key: report["reward"][key] for key in ("mean", "low", "high")},
            "risks": [
                {key: constraint[key] for key in ("name", "risk_measure", "risk", "low", "high", "verdict")}
                for constraint in report["constraints"]
            ],
        }


@dataclass(frozen=True, eq=False)
class Front:
    """Points of all runs, in the order of the runs and, within a run, of its limits."""

    points: tuple[Point, ...]
    episodes: int
    confidence: float

    @property
    def costs(self) -> tuple[str, ...]:
        return self.points[0].evaluation.policy.task.cost_names

    def to_json(self) -> dict[str, Any]:
        """What `tailsafe front --json` prints and front.json holds."""
        return {
            "task": self.points[0].evaluation.policy.task.name,
            **self.points[0].evaluation.played.to_json(),
            "costs": list(self.costs),
            "episodes": self.episodes,
            "confidence": self.confidence,
            "points": [point.to_json() for point in self.points],
        }

    def save(self, path: Path) -> None:
        write_json(path, self.to_json())


def front(
    runs: Path | str | Sequence[Path | str],
    points: int = 8,
    episodes: int = 500,
    seed: int = 0,
    *,
    confidence: float = 0.95,
    backend: str = "auto",
    environment: str | Callable[..., Any] | None = None,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
    progress: ProgressCallback = lambda name, done, total: None,
) -> Front:
    """Evaluate every run at the limits it can be asked for, at most `points` of them.

    A run that was trained for one limit is one point; several such runs, trained for several limits, are a front. All
    must have the same task and costs. Every interval holds with `confidence` by itself.
    """
    folders = [
        folder for run in ([runs] if isinstance(runs, Path | str) else runs) for folder in policy_folders(Path(run))
    ]
    if not folders:
        raise InputError("a front needs at least one run")
    asked = [(folder, candidate) for folder in folders for candidate in requests_of(folder, points).candidates]
    policies = [candidate.load() for _, candidate in asked]
    first = policies[0].description.task
    for (folder, _), policy in zip(asked, policies, strict=True):
        task = policy.description.task
        if (task.name, task.cost_names) != (first.name, first.cost_names):
            raise InputError(f"{folder}: is a run of {task.name}; the first is one of {first.name}")
    found = []
    for (folder, candidate), policy in zip(asked, policies, strict=True):
        label = f"{folder} {candidate.name}"
        report = evaluate(
            policy,
            episodes,
            seed,
            confidence=confidence,
            environment=environment,
            env_args=env_args,
            trust=trust,
            backend=backend,
            exact=False,
            progress=lambda done, total, label=label: progress(label, done, total),  # type: ignore[misc]
        )
        found.append(Point(folder, candidate.name, candidate.request, report))
    return Front(tuple(found), episodes, confidence)
