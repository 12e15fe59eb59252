"""Environments as a learner takes them: tasks on either engine, finite problems, and Gymnasium ones.

All of them fit one of the two protocols of `learning.interface`. First episodes of tasks are staggered: environment
i of N begins as if it had taken i / N of its steps, so that episodes do not all end in the same step. Where a world
would stand still until its episode ends, the episode can be cut (`cut_halted`): no action matters any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from tailsafe.envs.device import DeviceBatch, DeviceState, device_engine
from tailsafe.envs.episodes import Episode
from tailsafe.envs.finding import Source, find_environment, nearest
from tailsafe.envs.finite import FiniteEnvironments
from tailsafe.envs.host import HostBatch, float64_on_host
from tailsafe.envs.registration import GYMNASIUM_IDS
from tailsafe.envs.user import user_environments
from tailsafe.envs.vector import BACKENDS, usual_backend
from tailsafe.errors import InputError
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.chunks import Transition
from tailsafe.learning.interface import EnvironmentSpec, HostEnvironments, JaxEnvironments
from tailsafe.learning.spaces import ActionDescription
from tailsafe.physics.compilation import prepare_jax
from tailsafe.physics.warp_engine import import_warp
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.tasks import TASKS, Task, action_size, get_task, observation_size, task_units

FINITE = "finite"


def task_spec(task: Task[Any]) -> EnvironmentSpec:
    """What a learner must know of a task. Its costs are indicators: none exceeds 1 per step."""
    return EnvironmentSpec(
        name=task.name,
        observation_size=observation_size(task),
        actions=BoxActions(action_size(task)),
        cost_names=tuple(limit.name for limit in task.limits),
        episode_length=task.episode_length,
        largest_costs=(1.0,) * len(task.limits),
        limits=tuple(limit.value for limit in task.limits),
        native_actions=ActionDescription.of(
            BoxActions(action_size(task)), [-reach for reach in task.effective_reach], task.effective_reach
        ),
    )


def staggered_steps(episode_length: int, num_envs: int) -> NDArray[np.int32]:
    """(N,): how many steps each environment's first episode is taken to have behind it."""
    return np.asarray(episode_length * np.arange(num_envs) // num_envs, np.int32)


def repeats_of(task: Task[Any], steps: Any, halted: Any) -> Any:
    """(N,): see `Transition.repeats`. steps: control steps taken, the latest included."""
    return (task.episode_length - steps + 1) * halted


class DeviceEnvironments:
    """A task on engine `mjx` or `warp`, as pure functions for `jit`, `vmap` and `scan`."""

    def __init__(self, task: Task[Any], backend: str, num_envs: int, *, cut_halted: bool = False) -> None:
        self.num_envs = num_envs
        self.cut_halted = cut_halted
        self.spec = task_spec(task)
        self._batch = DeviceBatch(task, device_engine(task, backend))
        self._steps = staggered_steps(task.episode_length, num_envs)

    def init(self, key: PRNGKeyArray) -> DeviceState:
        """First episodes, staggered."""
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(self.num_envs))
        state = self._batch.init(keys)
        return replace(state, episode=replace(state.episode, steps=jnp.asarray(self._steps)))

    def observe(self, state: DeviceState) -> Float[Array, "N O"]:
        """What the robots see now."""
        return state.episode.observation

    def step(self, state: DeviceState, actions: Float[Array, "N A"]) -> tuple[DeviceState, Transition]:
        """One control step everywhere."""
        task = self._batch.task
        state, step = self._batch.move(state, task_units(task, actions))
        halted = step.halted & self.cut_halted
        steps = state.episode.steps
        state = self._batch.renew(state, step.done | halted)
        transition = Transition(
            next_observation=step.observation,
            observation=state.episode.observation,
            reward=step.reward,
            costs=step.costs,
            terminated=step.terminated | halted,
            truncated=step.truncated,
            repeats=repeats_of(task, steps, halted) if self.cut_halted else None,
        )
        return state, transition

    def check(self, state: DeviceState) -> None:
        """Raise an error if the physics so far cannot be trusted; see `DeviceBatch.check`."""
        self._batch.check(state)


class MujocoEnvironments:
    """A task on engine `mujoco`: native physics on the host, in double precision; learners get single precision."""

    def __init__(self, task: Task[Any], num_envs: int, threads: int | None = None, *, cut_halted: bool = False) -> None:
        self.num_envs = num_envs
        self.cut_halted = cut_halted
        self.spec = task_spec(task)
        self._batch = HostBatch(task, num_envs, threads)
        self._steps = staggered_steps(task.episode_length, num_envs)

    def reset(self, seed: int) -> Float[NDArray[np.float32], "N O"]:
        """First episodes of `seed`, staggered."""
        episode = self._batch.reset(seed)
        with float64_on_host():
            self._batch.episode = replace(episode, steps=jnp.asarray(self._steps))
        return self._observation()

    def step(self, actions: Float[NDArray[np.float32], "N A"]) -> Transition:
        """One control step everywhere."""
        task = self._batch.task
        step = self._batch.step(task_units(task, np.asarray(actions, np.float64)), renew=False)
        halted = np.asarray(step.halted) & self.cut_halted
        ended = np.asarray(step.done) | halted
        steps = np.asarray(self._batch.episode.steps) if halted.any() else np.zeros(self.num_envs, np.int32)
        if ended.any():
            self._batch.renew(ended)
        leaves: dict[str, Any] = {
            "next_observation": np.asarray(step.observation, np.float32),
            "observation": self._observation(),
            "reward": np.asarray(step.reward, np.float32),
            "costs": np.asarray(step.costs, np.float32),
            "terminated": np.asarray(step.terminated) | halted,
            "truncated": np.asarray(step.truncated),
            "repeats": repeats_of(task, steps, halted) if self.cut_halted else None,
        }
        return Transition(**leaves)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The running episodes as plain arrays, float64 exact; random keys as their words."""
        leaves = jax.tree.leaves(self._batch.episode)
        return {f"{i:03d}": np.asarray(_words(leaf)) for i, leaf in enumerate(leaves)}

    def restore(self, snapshot: dict[str, NDArray[Any]]) -> None:
        """Continue from a snapshot."""
        like: Episode = self._batch.reset(0)
        leaves, structure = jax.tree.flatten(like)
        with float64_on_host():
            values = [_like(old, snapshot[f"{i:03d}"]) for i, old in enumerate(leaves)]
            self._batch.episode = jax.tree.unflatten(structure, values)

    def close(self) -> None:
        """Stop the engine's threads."""
        self._batch.close()

    def _observation(self) -> NDArray[np.float32]:
        return np.asarray(self._batch.observation, np.float32)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _words(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(old: Any, values: NDArray[Any]) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(values)) if _is_key(old) else jnp.asarray(values, old.dtype)


@dataclass(frozen=True)
class Resolved:
    """What a task's name, environment or factory stands for.

    family: `finite`, `navigation`, `legged` or `user`. text: its name for folders. reference: what names it
    in a configuration file, None for an object that has no name. backend: the engine of a built-in task, else "auto".
    make: from the number of environments; for built-in tasks also `cut_halted`, for a user's `workers` and `metrics`.
    """

    family: str
    text: str
    reference: str | Source | None
    backend: str
    make: Callable[..., JaxEnvironments | HostEnvironments]


def resolve(
    task: Any,
    backend: str = "auto",
    problem: FiniteCMDP | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Resolved:
    """Find out what `task` is: a task's name, or see `envs.finding`. arguments: of a user's environment."""
    if backend not in ("auto", *BACKENDS):
        raise InputError(f"unknown backend {backend!r}; there are: auto, {', '.join(BACKENDS)}")
    built_in = isinstance(task, str) and (task == FINITE or task in TASKS or task in GYMNASIUM_IDS)
    if built_in and arguments:
        raise InputError(f"arguments (--env-arg) are for environments of your own; {task} takes none")
    if task == FINITE:
        if problem is None:
            raise InputError("the task finite needs a problem: --set problem=FILE.json")
        return Resolved(FINITE, FINITE, FINITE, "auto", partial(FiniteEnvironments, problem))
    if problem is not None:
        raise InputError(f"a problem is for the task finite, not for {task!r}")
    if built_in:
        return _resolve_task(get_task(task), backend)
    if isinstance(task, str):
        check_name(task)
    if backend != "auto":
        raise InputError(f"backend {backend} is for the built-in tasks; an environment brings its own engine")
    found = find_environment(task, arguments)
    return Resolved("user", found.text, found.source, "auto", partial(user_environments, found))


def check_name(name: str) -> None:
    """An `InputError` that names the nearest one, unless `name` is known or says where an environment is."""
    import gymnasium

    if name in TASKS or name in gymnasium.registry or ":" in name:
        return
    hint = nearest(name, [FINITE, *TASKS, *GYMNASIUM_IDS])
    raise InputError(
        f"unknown task {name!r}{hint or ';'} there are: {FINITE}, {', '.join(TASKS)}, Gymnasium ids, MODULE:CLASS and "
        "FILE.py:CLASS"
    )


def _resolve_task(task: Task[Any], backend: str) -> Resolved:
    if backend == "auto":
        backend = usual_backend()
    if backend == "warp":
        import_warp()  # a missing package is an error now, not after the run's folder was made
    make: Any = partial(MujocoEnvironments, task) if backend == "mujoco" else partial(DeviceEnvironments, task, backend)
    return Resolved(task.family, task.name, task.name, backend, make)


def make_environments(
    task: Any, num_envs: int, backend: str = "auto", seed: int = 0, problem: FiniteCMDP | None = None
) -> JaxEnvironments | HostEnvironments:
    """`num_envs` environments of a task, inside JAX or on the host. Host environments are at the start of `seed`.

    backend: `mujoco`, `warp`, `mjx`, or `auto`: see `usual_backend`.
    """
    if num_envs < 1:
        raise InputError(f"num_envs must be at least 1, got {num_envs}")
    prepare_jax(mjx=backend == "mjx")
    environments = resolve(task, backend, problem).make(num_envs)
    if not is_jax(environments):
        environments.reset(seed)  # type: ignore[union-attr]
    return environments


def is_jax(environments: JaxEnvironments | HostEnvironments) -> bool:
    """Whether environments live inside JAX."""
    return hasattr(environments, "init")
