"""The environment that a policy was really played in, which need not be the one that it was trained in.

Verdicts and certificates are about that one: what its steps can cost at most, how long its episodes are, and so what a
limit per episode means.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailsafe.envs.finding import Source
from tailsafe.evaluation.environments import Stage, built_in
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.policies.described_constraint import ConstraintDescription
from tailsafe.policies.described_task import TaskDescription
from tailsafe.policies.metadata import PolicyDescription


@dataclass(frozen=True)
class PlayedEnvironment:
    """description: of the policy, with the environment that is played in place of the one of training. trained_in: the
    environment of training where that is another one, else None. engine: of a built-in task.
    """

    description: PolicyDescription
    trained_in: str | None = None
    engine: str | None = None

    @property
    def name(self) -> str:
        """The environment with its arguments."""
        return environment_text(self.description.task.name, _arguments(self.description.task))

    @property
    def options(self) -> str:
        """What says on the command line that another environment than the run's is to be played."""
        if self.trained_in is None or self.description.task.source is None:
            return ""
        source = Source.from_json(self.description.task.source)
        given = [f"{key}={_argument(value)}" for key, value in source.arguments.items()]
        return "".join(
            f" {name} {shlex.quote(value)}"
            for name, value in (("--env", source.reference), *(("--env-arg", each) for each in given))
        )

    def to_json(self) -> dict[str, Any]:
        """For the files of a verdict."""
        task = self.description.task
        environment = {
            "name": task.name,
            "arguments": _arguments(task),
            "engine": self.engine,
            "costs": list(task.cost_names),
            "largest_costs": [cost if math.isfinite(cost) else None for cost in task.largest_costs],
            "episode_length": task.episode_length,
        }
        return {"environment": environment, "trained_in": self.trained_in}


def other_place(content: Mapping[str, Any], played: PlayedEnvironment) -> str | None:
    """The environment that an earlier verdict is about, if it is another one. Files of earlier versions do not say."""
    environment = content.get("environment")
    if not isinstance(environment, dict) or not isinstance(environment.get("name"), str):
        return None
    own = played.to_json()["environment"]
    same = all(environment.get(key) == own[key] for key in ("name", "arguments"))
    return None if same else str(environment["name"])


def beside(path: Path, place: str) -> Path:
    """Where a file goes that is about another environment."""
    safe = re.sub(r"\W+", "-", place)[-40:].strip("-") or "earlier"
    return path.with_name(f"{path.stem}.{safe}{path.suffix}")


def played_in(description: PolicyDescription, stage: Stage) -> PlayedEnvironment:
    """What is true of a policy in the environments of a stage."""
    task, spec, source = description.task, stage.spec, stage.source
    own = _named_by(description, spec, source)
    now = replace(
        task,
        name=task.name if own else spec.name,
        cost_names=spec.cost_names,
        episode_length=spec.episode_length,
        largest_costs=spec.largest_costs,
        problem=task.problem if own else None,
        source=task.source if own else None if source is None else source.to_json(),
    )
    same = own and not _differences(task, now)
    pairs = zip(description.constraints, spec.cost_names, strict=True)
    limits = tuple(_restated(one, name, description, now) for one, name in pairs)
    trained_in = None if same else _training(task, now, source)
    return PlayedEnvironment(replace(description, task=now, constraints=limits), trained_in, stage.engine)


def _named_by(description: PolicyDescription, spec: EnvironmentSpec, source: Source | None) -> bool:
    """Whether the environment is the one that the policy names. Of one without a name this cannot be known."""
    task, name = description.task, spec.name if source is None else source.reference
    plain = source is None or not source.arguments
    if task.source is not None:
        return source == Source.from_json(task.source)
    known = built_in(description)
    if known is not None:
        return plain and name in (known.name, known.gymnasium_id)
    if task.problem is not None or ":" in task.name or "/" in task.name:
        return plain and name == task.name
    return True


def _restated(
    constraint: ConstraintDescription, name: str, description: PolicyDescription, now: TaskDescription
) -> ConstraintDescription:
    """A constraint as stated, in the environment that is played; on the discounted sum where its unit says nothing
    there.
    """
    named, unit = replace(constraint, name=name), constraint.unit
    if now.episode_length is None and (unit == "episode" or (unit == "step" and description.gamma == 1)):
        return replace(named, limit=constraint.discounted_limit, unit="discounted")
    plain = replace(constraint, limit=constraint.discounted_limit, unit="discounted")
    there = replace(description, task=now, constraints=(plain,) * len(description.constraints))
    if description.factor_of(unit) == there.factor_of(unit):
        return named
    return replace(named, discounted_limit=constraint.limit / there.factor_of(unit))


def _training(task: TaskDescription, now: TaskDescription, source: Source | None) -> str:
    """The environment of training, so that it can be told from the one that is played."""
    text = environment_text(task.name, _arguments(task))
    if text != environment_text(now.name, _arguments(now)):
        return text
    folder = None if task.source is None else Source.from_json(task.source).folder
    moved = [f"from {folder}"] if folder is not None and source is not None and source.folder != folder else []
    return ", ".join([text, *moved, *_differences(task, now)])


def _differences(before: TaskDescription, now: TaskDescription) -> list[str]:
    """What the environment of training said about itself that this one does not. To say more is no difference."""
    bounds = [(a, b) for a, b in zip(before.largest_costs, now.largest_costs, strict=True) if math.isfinite(a)]
    found = []
    if before.episode_length != now.episode_length:
        length = before.episode_length
        found.append("with episodes of any length" if length is None else f"with episodes of {length} steps")
    if before.cost_names != now.cost_names:
        found.append(f"with costs {' and '.join(before.cost_names)}")
    if any(a != b for a, b in bounds):
        found.append(f"with steps that cost at most {' and '.join(f'{cost:g}' for cost in before.largest_costs)}")
    return found


def _arguments(task: TaskDescription) -> dict[str, Any]:
    return {} if task.source is None else dict(Source.from_json(task.source).arguments)


def environment_text(name: str, arguments: Mapping[str, Any]) -> str:
    """An environment with its arguments, for people."""
    given = ", ".join(f"{key}={_argument(value)}" for key, value in arguments.items())
    return f"{name}({given})" if given else name


def _argument(value: Any) -> str:
    """As `parse_arguments` reads it back."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)
