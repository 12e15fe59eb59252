"""The report of an evaluation: as JSON, in words, as a table of a notebook, and in a run's folder."""

from __future__ import annotations

import html
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailsafe.errors import InputError
from tailsafe.evaluation.advice import Judgement, next_step
from tailsafe.evaluation.bounds import MeanReport, mean_report
from tailsafe.evaluation.constraint_report import ConstraintReport, IntervalName
from tailsafe.evaluation.episodes import TABLE_NAME, Episodes
from tailsafe.evaluation.exact import ExactEvaluation
from tailsafe.evaluation.played_environment import PlayedEnvironment, beside, other_place
from tailsafe.files import read_object, write_json
from tailsafe.policies.metadata import PolicyDescription

FILE_NAME = "evaluation.json"


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A policy's report. `episodes` holds the samples behind it; `exact` is for task `finite` alone, and `exact_front`
    for its policies for a range of limits: the same for limits across it. folder: of the run or policy, where it was
    read from one. played: the environment of the episodes, which need not be the run's.
    """

    played: PlayedEnvironment
    beta: tuple[tuple[float, ...], ...]
    episodes: Episodes
    seed: int
    confidence: float
    deterministic: bool
    reward: MeanReport
    discounted_reward: MeanReport
    constraints: tuple[ConstraintReport, ...]
    exact: ExactEvaluation | None = None
    folder: Path | None = None
    exact_front: tuple[ExactEvaluation, ...] = ()

    @property
    def policy(self) -> PolicyDescription:
        """What the policy is, in the environment that was played."""
        return self.played.description

    @property
    def next_step(self) -> str | None:
        """What to do now, with the command; None for a policy that has no folder."""
        if self.folder is None:
            return None
        rows = [
            Judgement(
                one.verdict, one.risk > one.description.limit, math.isfinite(one.deciding.high), one.episodes_needed
            )
            for one in self.constraints
        ]
        if self.exact is not None:  # which leaves nothing open
            limits = zip(self.exact.risks, self.exact.limits, strict=True)
            kept = "met" if self.exact.feasible else "violated"
            rows = [Judgement(kept, not self.exact.feasible and risk > limit, True) for risk, limit in limits]
        task, steps = self.policy.task.name, self.policy.steps
        return next_step(self.folder, task, steps, len(self.episodes), rows, self.played.options)

    def to_json(self) -> dict[str, Any]:
        """What `tailsafe evaluate --json` prints and evaluation.json holds."""
        report: dict[str, Any] = {
            "task": self.policy.task.name,
            **self.played.to_json(),
            "algorithm": self.policy.algorithm,
            "steps": self.policy.steps,
            "episodes": len(self.episodes),
            "seed": self.seed,
            "confidence": self.confidence,
            "deterministic": self.deterministic,
            "reward": self.reward.to_json(),
            "discounted_reward": self.discounted_reward.to_json(),
            "episode_length": float(self.episodes.length.mean()),
            "beta": [list(beta) for beta in self.beta],
            "constraints": [constraint.to_json() for constraint in self.constraints],
        }
        if self.metrics:
            report["metrics"] = [{"name": name, **measured.to_json()} for name, measured in self.metrics.items()]
        if self.exact_front:
            return report | {"exact": [exact.to_json() for exact in self.exact_front]}
        return report if self.exact is None else report | {"exact": self.exact.to_json()}

    @property
    def metrics(self) -> dict[str, MeanReport]:
        """The means of the user's own numbers per episode, with bounds."""
        if self.episodes.metrics is None:
            return {}
        columns = zip(self.policy.task.metrics, self.episodes.metrics.T, strict=True)
        return {name: mean_report(column, self.confidence, self.seed) for name, column in columns}

    def keep(self, folder: Path) -> str | None:
        """Write episodes.csv and, last, evaluation.json into a run's folder.

        An evaluation there whose verdicts were by other bounds, or in another environment, is not overwritten: it
        becomes evaluation.BOUNDS.json or evaluation.ENVIRONMENT.json. Returns a sentence about it.
        """
        own = {report.decided_by for report in self.constraints}
        told = set_earlier_aside(folder / FILE_NAME, own, self.played)
        self.episodes.save(folder / TABLE_NAME, [report.description.name for report in self.constraints])
        self.save(folder / FILE_NAME)
        return told

    def save(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all."""
        write_json(path, self.to_json())

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{report.description.name} {report.verdict}" for report in self.constraints)
        return f"<Evaluation of {self.where}: reward {self.reward.mean:.4g}, {verdicts}>"

    @property
    def where(self) -> str:
        """The environment of the episodes, and the one of training if that was another."""
        other = self.played.trained_in
        return self.policy.task.name if other is None else f"{self.played.name} (trained in {other})"

    def _repr_html_(self) -> str:
        """For notebooks: a row per constraint."""
        rows = "".join(
            f"<tr><th>{html.escape(one.description.name)}</th><td>{html.escape(one.description.risk_measure)}</td>"
            f"<td>{one.risk:.4g} [{one.deciding.low:.4g}, {one.deciding.high:.4g}]</td>"
            f"<td>{one.description.limit:g}/{one.description.unit}</td><td><b>{one.verdict}</b></td></tr>"
            for one in self.constraints
        )
        low, high = self.reward.student.low, self.reward.student.high
        told = f"reward {self.reward.mean:.4g} [{low:.4g}, {high:.4g}] over {len(self.episodes)} episodes"
        return (
            f"<p>{html.escape(self.where)}: {told}</p><table><tr><th>cost</th><th>measure</th><th>risk</th>"
            f"<th>limit</th><th>verdict</th></tr>{rows}</table><p>{html.escape(self.next_step or '')}</p>"
        )

    def __str__(self) -> str:
        lines = [
            f"{len(self.episodes)} episodes of {self.where}, confidence {self.confidence:g}",
            f"reward {self.reward.mean:.4g} [{self.reward.student.low:.4g}, {self.reward.student.high:.4g}]",
        ]
        for report in self.constraints:
            limit = f"{report.description.limit:g}/{report.description.unit}"
            lines.append(
                f"{report.description.name}: {report.description.risk_measure} {report.risk:.4g} "
                f"[{report.deciding.low:.4g}, {report.deciding.high:.4g}], limit {limit}: {report.verdict}"
            )
        if self.exact is not None:
            risks = ", ".join(f"{risk:.6g}" for risk in self.exact.risks)
            kept = "kept" if self.exact.feasible else "broken"
            lines.append(
                f"exactly: reward {self.exact.reward:.6g}, optimum {self.exact.optimum}, risks {risks}: {kept}"
            )
        if self.next_step is not None:
            lines.append(f"next: {self.next_step}")
        return "\n".join(lines)


def set_earlier_aside(path: Path, decided_by: set[IntervalName], played: PlayedEnvironment) -> str | None:
    """Rename an evaluation that was decided by other bounds or in another environment; returns what it said and where
    it is now.
    """
    if not path.is_file():
        return None
    place = None
    try:
        content = read_object(path)
        place, reports = other_place(content, played), content["constraints"]
        bounds = {str(report["interval"]) for report in reports}
        said = ", ".join(f"{report['name']}: {report['verdict']}" for report in reports)
    except (InputError, LookupError, TypeError):
        bounds, said = {"unreadable"}, "cannot be read"
    if bounds <= decided_by and place is None:
        return None
    if place is not None:
        aside, by = beside(path, place), f"in {place}"
    else:
        safe = "-".join(sorted(bounds & {"distribution-free", "bootstrap"})) or "earlier"
        aside, by = path.with_name(f"{path.stem}.{safe}{path.suffix}"), "by other bounds"
    os.replace(path, aside)
    return f"the evaluation {by} ({said}) is kept in {aside}"
