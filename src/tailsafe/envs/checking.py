"""Is an environment fit to train on? It is played through the adapter that trains on it: both agree in every case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsafe.envs.finding import Found, find_environment
from tailsafe.envs.jax_user import JaxStage
from tailsafe.envs.metrics import Metric
from tailsafe.envs.user import GymnasiumEnvironments, user_environments
from tailsafe.errors import InputError
from tailsafe.learning.spaces import ActionDescription

# A policy is a plain network: of more numbers than this, pixels that is, it will not learn much.
_MANY_NUMBERS = 4096


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. problem: empty where all is well. advice: no obstacle, but worth knowing."""

    check: str
    problem: str = ""
    advice: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class _Episode:
    """T steps of one episode; columns: observation, reward, costs."""

    steps: NDArray[np.float64]
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def check_environment(
    task: Any, max_steps: int = 10_000, seed: int = 0, metrics: Sequence[Metric] = ()
) -> list[Finding]:
    """Look at spaces, steps, costs, repeatability and episode ends of an environment (see `find_environment`)."""
    found = task if isinstance(task, Found) else find_environment(task)
    findings: list[Finding] = []
    check = "it is built, and its spaces can be learned on"
    try:
        environments = _opened(found, metrics)
        spec = environments.spec
        findings.append(Finding(check, advice=_size_advice(spec.observation_size)))
        check = "reset and steps return what they should, with finite numbers and costs of one shape"
        try:
            episode = _roll(environments, spec.native_actions, seed, max_steps)
        finally:
            environments.close()
        findings.append(Finding(check))
        findings.append(Finding(f"costs are not negative: {', '.join(spec.cost_names)}", advice=_bound_advice(spec)))
        findings.append(_end(environments, episode, max_steps))
        check = "the same seed gives the same episode"
        again = _opened(found, metrics)
        try:
            findings.append(_repeats(check, episode, _roll(again, spec.native_actions, seed, len(episode.steps))))
        finally:
            again.close()
        findings.append(_saving(found, environments))
    except InputError as error:
        findings.append(Finding(check, str(error).removeprefix(f"environment {found.name}: ")))
    return findings


def _opened(found: Found, metrics: Sequence[Metric]) -> Any:
    environments = user_environments(found, 1, metrics=metrics)
    return environments if isinstance(environments, GymnasiumEnvironments) else JaxStage(environments)


def _roll(environments: Any, actions: ActionDescription, seed: int, max_steps: int) -> _Episode:
    """Random actions until the first episode ends."""
    rng = np.random.default_rng(seed)
    environments.reset(seed)
    rows = []
    for _ in range(max_steps):
        if actions.kind == "box":
            action = rng.uniform(-1, 1, (1, actions.size))
        else:
            action = np.eye(actions.size)[rng.integers(actions.size, size=1)]
        moved = environments.step(action.astype(np.float32))
        rows.append(np.concatenate([moved.next_observation[0], moved.reward, moved.costs[0]]).astype(np.float64))
        if moved.terminated[0] or moved.truncated[0]:
            return _Episode(np.stack(rows), bool(moved.terminated[0]), bool(moved.truncated[0]))
    return _Episode(np.stack(rows), terminated=False, truncated=False)


def _size_advice(size: int) -> str:
    if size <= _MANY_NUMBERS:
        return ""
    return f"observations are {size:,} numbers, flattened for a plain network: pass features rather than images"


def _bound_advice(spec: Any) -> str:
    unknown = [name for name, largest in zip(spec.cost_names, spec.largest_costs, strict=True) if np.isinf(largest)]
    if not unknown:
        return ""
    return (
        f"the most that a step can cost is not known for {', '.join(unknown)}, so no upper confidence bound holds for "
        "every distribution: declare largest_costs"
    )


def _end(environments: Any, episode: _Episode, max_steps: int) -> Finding:
    check = "episodes end"
    if not episode.ended:
        written_in_jax = not isinstance(environments, GymnasiumEnvironments)
        remedy = "give it an episode_length" if written_in_jax else "wrap it in gymnasium.wrappers.TimeLimit"
        return Finding(check, f"no end within {max_steps} steps: {remedy}")
    if episode.terminated:
        return Finding(check)
    advice = (
        f"after {len(episode.steps)} steps the episode was truncated: the learner adds the value of what would have "
        "followed. If nothing would, return terminated instead"
    )
    return Finding(check, advice=advice)


def _repeats(check: str, first: _Episode, second: _Episode) -> Finding:
    count = min(len(first.steps), len(second.steps))
    different = (first.steps[:count] != second.steps[:count]).any(1)
    if different.any():
        step = int(different.argmax())
        return Finding(check, f"a second run with the same seed and actions differs from step {step} on")
    if len(first.steps) != len(second.steps):
        return Finding(check, f"a second run ended after {len(second.steps)} steps instead of {len(first.steps)}")
    return Finding(check)


def _saving(found: Found, environments: Any) -> Finding:
    check = "runs can be resumed"
    if found.source is None:
        return Finding(
            check, advice="no name leads to it from another process: resume and evaluate need it passed again"
        )
    if not isinstance(environments, GymnasiumEnvironments):
        return Finding(check)
    return Finding(check, advice="a running episode cannot be saved: a resumed run begins new ones")
