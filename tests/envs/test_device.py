"""Engine `mjx`: resets inside the program, agreement with the C engine, broken simulations."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.envs.device import DeviceBatch, DeviceRunner
from tailsafe.envs.episodes import Episode, environment_keys
from tailsafe.envs.host import HostBatch, float64_on_host
from tailsafe.envs.vector import VectorEnv
from tailsafe.tasks import TASKS, Task
from tests.recorded import NAVIGATION

LENGTH, ENVS = 12, 4


@cache
def runner(name: str) -> DeviceRunner:
    """Episodes of twelve steps, four environments."""
    return DeviceRunner(short(name), ENVS)


def short(name: str) -> Task[Any]:
    return replace(TASKS[name], episode_length=LENGTH)


def actions(steps: int, num_envs: int = ENVS) -> np.ndarray:
    drawn = np.random.default_rng(0).uniform(-1, 1, (steps, num_envs, 2))
    drawn[..., 0] = 1.0
    return drawn


def test_both_engines_run_the_same_episodes() -> None:
    """The same seed means the same layouts in both, episode after episode, and nearly the same motion."""
    device = runner("point-goal")
    host = HostBatch(short("point-goal"), ENVS)
    device.reset(seed=3)
    host.reset(seed=3)
    for index, action in enumerate(actions(2 * LENGTH + 3)):
        ours, theirs = device.step(action), host.step(action)
        np.testing.assert_array_equal(ours.truncated, (index + 1) % LENGTH == 0)
        np.testing.assert_array_equal(ours.truncated, theirs.truncated)
        np.testing.assert_array_equal(device.episode.episode, host.episode.episode)
        np.testing.assert_allclose(device.episode.task.hazards, host.episode.task.hazards, atol=1e-6)
        np.testing.assert_allclose(device.episode.physics.qpos[:, :2], host.episode.physics.qpos[:, :2], atol=1e-3)
        np.testing.assert_allclose(ours.reward, theirs.reward, atol=1e-3)
    assert int(device.episode.episode[0]) == 2
    host.close()


def test_resets_are_deterministic_and_lanes_differ() -> None:
    device = VectorEnv(runner("point-goal"))
    first, _ = device.reset(seed=3)
    steps = [device.step(action) for action in actions(LENGTH)]
    assert len(np.unique(first, axis=0)) == ENVS
    np.testing.assert_array_equal(device.reset(seed=3)[0], first)
    again = [device.step(action) for action in actions(LENGTH)]
    for one, other in zip(steps, again, strict=True):
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b)
    assert steps[-1][4]["_final_obs"].all()
    assert not np.array_equal(steps[-1][4]["final_obs"], steps[-1][0])


def test_a_broken_simulation_is_truncated_reset_and_counted() -> None:
    device = VectorEnv(runner("point-goal"))
    device.reset(seed=1)
    device.step(actions(1)[0])
    episode: Episode = device.batch.episode
    last = np.asarray(episode.observation)
    qvel = episode.physics.qvel.at[2, 0].set(jnp.nan)
    device.batch.episode = replace(episode, physics=replace(episode.physics, qvel=qvel))
    observation, reward, terminated, truncated, info = device.step(actions(1)[0])
    np.testing.assert_array_equal(truncated, [False, False, True, False])
    np.testing.assert_array_equal(info["unstable"], truncated)
    assert not terminated.any()
    assert reward[2] == -10.0
    np.testing.assert_array_equal(info["final_obs"][2], last[2])
    assert np.isfinite(observation).all()
    assert device.counts["unstable"] == 1


def test_layouts_do_not_depend_on_the_batch() -> None:
    """Environment i begins the same episodes in a batch of any size, on both engines."""
    for name in ("point-goal", "car-button"):
        task = TASKS[name]
        begin = jax.jit(DeviceBatch.begin_episodes, static_argnums=0)
        large = begin(task, environment_keys(9, 5))
        small = begin(task, environment_keys(9, 2))
        np.testing.assert_array_equal(large.observation[:2], small.observation)
        host = HostBatch(task, 2, threads=1)
        np.testing.assert_allclose(host.reset(9).observation, small.observation, atol=2e-5)
        host.close()


@pytest.mark.slow
def test_steps_hardly_depend_on_the_batch() -> None:
    """XLA compiles another program for another size: only rounding differs (on engine `mujoco` nothing does)."""
    small, large = DeviceRunner(TASKS["point-goal"], 2), DeviceRunner(TASKS["point-goal"], 5)
    small.reset(9)
    large.reset(9)
    rng = np.random.default_rng(0)
    for _ in range(10):
        action = rng.uniform(-1, 1, (5, 2))
        first, second = small.step(action[:2]), large.step(action)
        np.testing.assert_allclose(first.observation, second.observation[:2], atol=1e-4)
        np.testing.assert_allclose(first.reward, second.reward[:2], atol=1e-5)
        np.testing.assert_array_equal(first.costs, second.costs[:2])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAVIGATION)
def test_engines_agree_in_distribution(name: str, report: Any) -> None:
    """Episodes under random and scripted driving: mean reward and cost within three standard errors."""
    episodes, length = 64, 200
    task = replace(TASKS[name], episode_length=length)
    for policy in ("random", "forward"):
        results = {}
        for engine, batch, seed in (
            ("mujoco", HostBatch(task, episodes), 100),
            ("mjx", DeviceRunner(task, episodes), 200),
        ):
            rng = np.random.default_rng(seed)
            batch.reset(seed)
            totals = np.zeros((2, episodes))
            held = rng.uniform(-1, 1, (episodes, 2))
            for index in range(length):
                if index % 10 == 0:
                    held = rng.uniform(-1, 1, (episodes, 2))
                action = held if policy == "random" else np.stack([np.ones(episodes), 0.3 * held[:, 1]], axis=1)
                step = batch.step(action)
                totals += np.stack([np.asarray(step.reward), np.asarray(step.costs)[:, 0]])
            results[engine] = totals
            batch.close()
        for row, quantity in enumerate(("reward", "cost")):
            a, b = results["mujoco"][row], results["mjx"][row]
            error = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / episodes)
            report(name, f"{policy} {quantity}: mujoco {a.mean():.3f}, mjx {b.mean():.3f}, standard error {error:.3f}")
            assert abs(a.mean() - b.mean()) <= 3 * error + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["point-button", "car-goal", "car-button"])
def test_the_other_tasks_step_and_reset(name: str) -> None:
    device = runner(name)
    device.reset(seed=0)
    for action in actions(LENGTH + 2):
        step = device.step(action)
        assert np.isfinite(step.observation).all()
        assert not np.asarray(step.unstable).any()
    np.testing.assert_array_equal(device.episode.episode, 1)
    with float64_on_host():
        assert np.isfinite(device.episode.observation).all()
