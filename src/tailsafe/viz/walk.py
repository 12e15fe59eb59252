"""Episodes of a policy in a built-in task, step by step, for those who draw them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from tailsafe.envs.host import HostBatch
from tailsafe.envs.training import task_spec
from tailsafe.errors import InputError
from tailsafe.evaluation.environments import check_fits
from tailsafe.evaluation.episodes import SEED_OFFSET
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.tasks import TASKS, Task


@dataclass(frozen=True, eq=False)
class Moment:
    """After `step` control steps of an episode.

    state: the running episode as a batch of one. trail (step + 1, 2): where the robot has been [m]. reward, costs (C,):
    sums so far; cost (C,): of this step. last: the episode ends here.
    """

    episode: int
    step: int
    state: Any
    trail: NDArray[np.float64]
    reward: float
    costs: NDArray[np.float64]
    cost: NDArray[np.float64]
    last: bool


def task_of(policy: LoadedPolicy) -> Task[Any]:
    """The built-in task that the policy was trained for."""
    name = policy.description.task.name
    for task in TASKS.values():
        if name in (task.name, task.gymnasium_id):
            check_fits(policy.description, task_spec(task))
            return task
    raise InputError(f"task {name!r} cannot be shown; there are pictures of: {', '.join(TASKS)}")


def walk(
    policy: LoadedPolicy, task: Task[Any], episodes: int, length: int, seed: int, *, deterministic: bool
) -> Iterator[Moment]:
    """Every step of each episode, from evaluation's environments (see `SEED_OFFSET`), at most `length` of them."""
    batch = HostBatch(task, num_envs=1)
    key = jax.random.fold_in(jax.random.key(seed), SEED_OFFSET)
    gamma, costs = policy.description.gamma, len(policy.description.constraints)
    try:
        batch.reset(seed + SEED_OFFSET)
        for episode in range(episodes):
            if episode:
                batch.renew(np.ones(1, bool))
            paid, weight = np.zeros((1, costs)), np.ones(1)
            reward, total = 0.0, np.zeros(costs)
            trail = [_robot(batch.rows)]
            yield Moment(episode, 0, batch.episode, np.asarray(trail), reward, total, np.zeros(costs), last=False)
            for step in range(1, length + 1):
                actions = policy.choose(
                    batch.observation.astype(np.float32),
                    paid.astype(np.float32),
                    weight.astype(np.float32),
                    jax.random.fold_in(jax.random.fold_in(key, episode), step),
                    deterministic=deterministic,
                )
                moved = batch.step(np.asarray(policy.to_environment(actions), np.float64), renew=False)
                cost = np.asarray(moved.costs, np.float64)
                reward, total = reward + float(moved.reward[0]), total + cost[0]
                paid, weight = paid + weight[:, None] * cost, weight * gamma
                trail.append(_robot(batch.rows))
                ended = bool(np.asarray(moved.done)[0])
                last = ended or step == length
                yield Moment(episode, step, batch.episode, np.asarray(trail), reward, total, cost[0], last)
                if ended:
                    break
    finally:
        batch.close()


def _robot(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where the robot of a batch of one stands (2,) [m]. rows: (time, qpos, qvel); robots' qpos begin with it."""
    return rows[0, 1:3].copy()
