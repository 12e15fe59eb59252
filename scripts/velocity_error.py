"""How well a legged policy follows its commands, against zero actions: velocity_error.py RUN [EPISODES].

Prints the mean squared velocity error per control step (forward and sideways speed, turning rate; the reward without
its power term), of the policy and of zero actions, on engine mujoco, with fresh seeds.
"""

import sys

import jax
import numpy as np

import tailsafe as ts
from tailsafe.envs.host import HostBatch
from tailsafe.tasks import get_task
from tailsafe.tasks.base import task_units

SEED = 10_000


def places(task):
    """Where the parts of an observation are, by name."""
    ends = np.cumsum([width for _, width in task.observation_parts])
    rows = zip(task.observation_parts, ends, strict=True)
    return {name: slice(int(end) - width, int(end)) for (name, width), end in rows}


def mean_error(task, episodes, choose):
    """Mean over episodes and steps."""
    parts = places(task)
    batch = HostBatch(task, episodes)
    batch.reset(SEED)
    total = 0.0
    for step in range(task.episode_length):
        observation = np.asarray(batch.observation)
        result = batch.step(task_units(task, choose(observation, step)), renew=False)
        seen = np.asarray(result.observation)
        speed, spin = seen[:, parts["linear_velocity"]], seen[:, parts["angular_velocity"]]
        forward, turn = seen[:, parts["linear_command"]][:, 0], seen[:, parts["angular_command"]][:, 2]
        total += ((speed[:, 0] - forward) ** 2 + speed[:, 1] ** 2 + (spin[:, 2] - turn) ** 2).mean()
    batch.close()
    return total / task.episode_length


def main(run, episodes=200):
    policy = ts.load_policy(run)
    task = get_task(policy.description.task.name)
    costs = np.zeros((episodes, len(task.limits)), np.float32)
    ones = np.ones(episodes, np.float32)

    def learned(observation, step):
        rows = observation.astype(np.float32)
        return np.asarray(policy.choose(rows, costs, ones, jax.random.key(step)), np.float64)

    def still(observation, step):
        return np.zeros((episodes, len(task.action_reach)))

    own, zero = mean_error(task, episodes, learned), mean_error(task, episodes, still)
    print(f"{task.name}: policy {own:.4f}, zero action {zero:.4f} (m/s)^2 + (rad/s)^2, ratio {own / zero:.3f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
