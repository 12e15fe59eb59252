"""Environments to play a saved policy in, found by what the policy says about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.envs.copies import Watch
from tailsafe.envs.finding import Source, find_environment
from tailsafe.envs.jax_user import JaxStage, JaxUserEnvironments
from tailsafe.envs.metrics import parse_metrics
from tailsafe.envs.trust import chosen_source
from tailsafe.envs.user import user_environments
from tailsafe.errors import InputError
from tailsafe.learning.chunks import Transition
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.learning.spaces import ActionDescription
from tailsafe.policies.metadata import PolicyDescription
from tailsafe.tasks.base import Task

# How many episodes run side by side at most. Environments that are Python objects gain nothing from more.
_MOST_BATCHED, _MOST_SINGLE = 128, 8


class Stage(Protocol):
    """The part of `HostEnvironments` that playing needs. source: of a user's environment, engine: of ours."""

    num_envs: int
    spec: EnvironmentSpec
    source: Source | None
    engine: str | None

    def reset(self, seed: int) -> Float[NDArray[Any], "N O"]:
        """Begin the first episodes of `seed`."""

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        """One step everywhere, leaves as NumPy arrays; ended episodes give way to new ones. actions: embedded."""

    def close(self) -> None: ...


def open_stage(
    description: PolicyDescription,
    episodes: int,
    environment: str | Callable[..., Any] | None = None,
    backend: str = "auto",
    *,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Stage:
    """Environments for `episodes` episodes of the task the policy names, as many side by side as is useful.

    environment: another one instead, by name or as what builds it. backend: the engine of the built-in tasks.
    env_args, trust: see `open_user_stage`.
    """
    task = built_in(description) if environment is None else _built_in(environment)
    if env_args and (task is not None or (environment is None and description.task.problem is not None)):
        name = description.task.name if task is None else task.name
        raise InputError(f"arguments (--env-arg) are for environments of your own; {name} takes none")
    if environment is None and description.task.problem is not None:
        from tailsafe.envs.finite import FiniteEnvironments
        from tailsafe.tabular.problem import FiniteCMDP

        problem = FiniteCMDP.from_dict(description.task.problem)
        environments = FiniteEnvironments(problem, min(episodes, 8 * _MOST_BATCHED), description.task.name)
        check_fits(description, environments.spec)
        return JaxStage(environments)
    if task is not None:
        from tailsafe.envs.training import task_spec
        from tailsafe.envs.vector import make_batch, usual_backend

        check_fits(description, task_spec(task))
        engine = usual_backend() if backend == "auto" else backend
        batch = make_batch(task, min(episodes, _MOST_BATCHED), engine)
        return BatchStage(batch, engine=engine, actions=description.actions)
    count = min(episodes, _MOST_SINGLE)
    return open_user_stage(description, count, environment, env_args=env_args, trust=trust)


def built_in(description: PolicyDescription) -> Task[Any] | None:
    """The built-in task that a policy was trained for, if it is one."""
    return _built_in(description.task.name)


def _built_in(name: Any) -> Task[Any] | None:
    from tailsafe.tasks import TASKS

    return next((task for task in TASKS.values() if name in (task.name, task.gymnasium_id)), None)


def open_user_stage(
    description: PolicyDescription,
    num_envs: int,
    environment: Any = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    trust: bool = False,
    watch: Watch = lambda env: None,
) -> Stage:
    """A user's environments: those the policy names, if the user has trained on them or trusts it, or `environment`.

    env_args: arguments in place of those of the run. A stranger's policy can be loaded without running anything; the
    environment that it names is code (see `envs.trust`).
    """
    task = description.task
    if task.source is not None:
        source = Source.from_json(task.source)
    elif environment is None and ":" not in task.name and "/" not in task.name:
        raise InputError(f"no name leads to the environment {task.name!r} of this policy: pass environment=, or --env")
    else:
        source = Source(task.name)
    found = find_environment(chosen_source(source, environment, env_args, trust))
    environments = user_environments(found, num_envs, metrics=parse_metrics(task.metrics), watch=watch)
    try:
        check_fits(description, environments.spec)
    except InputError:
        if not isinstance(environments, JaxUserEnvironments):
            environments.close()
        raise
    stage: Stage = (
        JaxStage(environments, found.source) if isinstance(environments, JaxUserEnvironments) else environments
    )
    return stage if built_in(description) is None else _InPolicysUnits(stage, description.actions)


def check_fits(description: PolicyDescription, spec: EnvironmentSpec) -> None:
    """Refuse an environment that a policy was not made for."""
    task = description.task
    if spec.observation_size != task.observation_size:
        raise InputError(
            f"{spec.name}: an observation has {spec.observation_size} entries, the policy takes {task.observation_size}"
        )
    if len(spec.cost_names) != len(task.cost_names):
        raise InputError(
            f"{spec.name}: has {len(spec.cost_names)} costs, the policy was trained on {len(task.cost_names)} costs"
        )
    if spec.cost_names != task.cost_names and set(spec.cost_names) == set(task.cost_names):
        raise InputError(
            f"{spec.name}: its costs are {', '.join(spec.cost_names)}, in this order; the policy was trained on "
            f"{', '.join(task.cost_names)}"
        )
    if spec.actions != description.actions.build():
        raise InputError(f"{spec.name}: its actions are {spec.actions}, the policy's {description.actions.build()}")


class _InPolicysUnits:
    """A stage that takes actions in the units in which a policy for a built-in task acts, which need not fill the box.

    A point's thrust is full at 0.05 (`Task.effective_reach`), and so it is in an environment made of such a task.
    """

    def __init__(self, stage: Stage, actions: ActionDescription) -> None:
        self.num_envs, self.spec, self.source, self.engine = stage.num_envs, stage.spec, stage.source, stage.engine
        self.reset, self.close = stage.reset, stage.close
        self._stage, self._actions = stage, actions

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        native = self.spec.native_actions
        if native is None or native.low is None or native.high is None:
            return self._stage.step(actions)
        low, high = np.asarray(native.low), np.asarray(native.high)
        within = 2 * (self._actions.decode(actions) - low) / (high - low) - 1
        return self._stage.step(np.clip(within, -1, 1).astype(np.float32))


class BatchStage:
    """A batch of a built-in task on either engine. watch: called with the batch after a reset and after every step,
    before ended episodes give way to new ones. actions: those of the policy that plays, whose reach may be that of an
    earlier version; by default those of this version's learners.
    """

    source: Source | None = None

    def __init__(
        self,
        batch: Any,
        watch: Callable[[Any], None] | None = None,
        *,
        engine: str | None = None,
        actions: ActionDescription | None = None,
    ) -> None:
        from tailsafe.envs.training import task_spec

        self.num_envs = batch.num_envs
        self.spec = task_spec(batch.task)
        self.engine = engine
        described = actions or self.spec.native_actions
        self._reach = 1.0 if described is None else np.asarray(described.high)  # boxes around zero
        self._batch = batch
        self._watch = watch

    def reset(self, seed: int) -> Float[NDArray[Any], "N O"]:
        self._batch.reset(seed)
        if self._watch is not None:
            self._watch(self._batch)
        return np.asarray(self._batch.observation)

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        watched = self._watch is not None
        step = self._batch.step(np.asarray(actions, np.float64) * self._reach, renew=not watched)
        if self._watch is not None:
            self._watch(self._batch)
            if np.asarray(step.done).any():
                self._batch.renew(np.asarray(step.done))
                self._watch(self._batch)
        leaves: dict[str, Any] = {
            name: np.asarray(getattr(step, name)) for name in ("reward", "costs", "terminated", "truncated")
        }
        last, latest = np.asarray(step.observation), np.asarray(self._batch.observation)
        return Transition(next_observation=last, observation=latest, **leaves)  # type: ignore[arg-type]

    def close(self) -> None:
        self._batch.close()
