"""Batches: determinism, batch size, episode ends, bad input, broken simulations, on the C engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import tailsafe
from tailsafe.envs.host import float64_on_host
from tailsafe.envs.training import task_spec
from tailsafe.envs.vector import VectorEnv, make_batch
from tailsafe.errors import InputError
from tailsafe.tasks import TASKS, observation_size, task_units
from tests.recorded import NAVIGATION


def short(name: str, length: int) -> Any:
    """A task whose episodes end after `length` steps."""
    return replace(TASKS[name], episode_length=length)


def roll(envs: VectorEnv, actions: np.ndarray, seed: int) -> list[Any]:
    observation, _ = envs.reset(seed=seed)
    trajectory = [observation]
    for action in actions:
        observation, reward, terminated, truncated, info = envs.step(action)
        trajectory.append((observation, reward, info["cost"], terminated, truncated))
    return trajectory


def assert_same(first: list[Any], second: list[Any], pick: Any = slice(None)) -> None:
    for one, other in zip(first, second, strict=True):
        for a, b in zip(
            one if isinstance(one, tuple) else (one,), other if isinstance(other, tuple) else (other,), strict=True
        ):
            np.testing.assert_array_equal(a[pick], b)


def drive(rng: np.random.Generator, steps: int, num_envs: int) -> np.ndarray:
    """Full speed ahead with some steering: things happen."""
    actions = rng.uniform(-1, 1, (steps, num_envs, 2))
    actions[..., 0] = 1.0
    return actions


@pytest.mark.parametrize("name", ["point-goal", "car-button"])
def test_seeds_and_batch_sizes(name: str) -> None:
    """Same seed, same trajectory; other seed or environment, another; any batch size holds the same environments."""
    actions = drive(np.random.default_rng(0), 60, 5)
    five = VectorEnv(make_batch(short(name, 25), 5, "mujoco"))
    first = roll(five, actions, seed=7)
    assert_same(first, roll(five, actions, seed=7))
    assert not np.array_equal(first[0], roll(five, actions[:1], seed=8)[0])
    assert len(np.unique(first[0][:, -16:], axis=0)) == 5
    two = VectorEnv(make_batch(short(name, 25), 2, "mujoco", threads=1))
    assert_same(first, roll(two, actions[:, :2], seed=7), pick=slice(0, 2))
    five.close()
    two.close()


@pytest.mark.parametrize("name", ["car-goal", "point-button"])
def test_every_batch_size_computes_the_same_to_the_bit(name: str) -> None:
    """Observations, rewards and costs over two resets: those of the 33 environments of the largest batch."""
    actions = drive(np.random.default_rng(3), 25, 33)
    trajectories = {}
    for size in (33, 32, 8, 3, 1):
        envs = VectorEnv(make_batch(short(name, 10), size, "mujoco"))
        trajectories[size] = roll(envs, actions[:, :size], seed=11)
        assert envs.counts["episodes"] == 2 * size
        assert_same(trajectories[33], trajectories[size], pick=slice(0, size))
        envs.close()


def test_episode_ends_and_final_observations() -> None:
    """At its length an episode is truncated: the step shows the next one's first observation, `final_obs` the last."""
    actions = drive(np.random.default_rng(1), 13, 3)
    ending, endless = (VectorEnv(make_batch(short("point-button", n), 3, "mujoco")) for n in (10, 1000))
    ending.reset(seed=3)
    endless.reset(seed=3)
    for index, action in enumerate(actions):
        observation, reward, terminated, truncated, info = ending.step(action)
        assert not terminated.any()
        assert truncated.all() == (index == 9)
        if index < 10:
            expected, expected_reward, *_ = endless.step(action)
            last = info["final_obs"] if index == 9 else observation
            np.testing.assert_array_equal(last, expected)
            np.testing.assert_array_equal(reward, expected_reward)
        if index == 9:
            assert info["_final_obs"].all()
            assert not np.array_equal(observation, expected)
            np.testing.assert_array_equal(ending.batch.episode.steps, 0)
            np.testing.assert_array_equal(ending.batch.episode.physics.time, 0.0)
    assert ending.counts == {"episodes": 3, "unstable": 0}
    # The second episode is not the first again.
    assert not np.array_equal(ending.reset(seed=3)[0], observation)


def test_reset_without_seed_continues() -> None:
    envs = tailsafe.make_vec("point-goal", 2, "mujoco", seed=5)
    first, _ = envs.reset()
    second, _ = envs.reset()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(envs.reset(seed=5)[0], first)
    np.testing.assert_array_equal(envs.reset()[0], second)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.full((2, 2), np.nan), r"finite; entry \(0, 0\) is nan"),
        (np.asarray([[0.0, 0.0], [0.0, np.inf]]), r"entry \(1, 1\) is inf"),
        (np.zeros((2, 3)), r"shape \(2, 2\), got \(2, 3\)"),
        (np.zeros(2), "shape"),
        ([["left", "right"]] * 2, "numbers"),
    ],
)
def test_bad_actions_are_refused(actions: Any, message: str) -> None:
    envs = tailsafe.make_vec("point-goal", 2, "mujoco")
    before = np.asarray(envs.batch.episode.observation)
    with pytest.raises(InputError, match=message):
        envs.step(actions)
    np.testing.assert_array_equal(envs.batch.episode.observation, before)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="unknown task 'maze'; there are: point-goal"):
        tailsafe.make_vec("maze")
    with pytest.raises(InputError, match="unknown backend"):
        tailsafe.make_vec("point-goal", backend="bullet")
    with pytest.raises(InputError, match="at least 1"):
        tailsafe.make_vec("point-goal", num_envs=0)


@pytest.mark.parametrize("bad", [np.nan, 1e12])
def test_a_broken_simulation_is_truncated_reset_and_counted(
    bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    envs = tailsafe.make_vec("point-goal", 3, "mujoco", seed=0)
    envs.reset(seed=0)
    envs.step(np.ones((3, 2)))
    episode = envs.batch.episode
    last = np.asarray(episode.observation)
    with float64_on_host():
        qvel = jnp.asarray(episode.physics.qvel).at[1, 0].set(bad)
    envs.batch.episode = replace(episode, physics=replace(episode.physics, qvel=qvel))
    observation, reward, terminated, truncated, info = envs.step(np.ones((3, 2)))
    np.testing.assert_array_equal(truncated, [False, True, False])
    np.testing.assert_array_equal(info["unstable"], [False, True, False])
    assert not terminated.any()
    assert reward[1] == -10.0
    assert info["cost"][1] == 0.0
    np.testing.assert_array_equal(info["final_obs"][1], last[1])
    assert np.isfinite(observation).all()
    assert np.isfinite(reward).all()
    assert envs.counts == {"episodes": 1, "unstable": 1}
    observation, *_ = envs.step(np.ones((3, 2)))
    assert np.isfinite(observation).all()
    # MuJoCo complains to the log, not into a file in the user's folder.
    assert not list(tmp_path.iterdir())
    assert "simulation is unstable" in caplog.text


@pytest.mark.parametrize("name", NAVIGATION)
def test_shapes_and_costs(name: str) -> None:
    task = TASKS[name]
    envs = tailsafe.make_vec(name, 4, "mujoco")
    actions = drive(np.random.default_rng(2), 200, 4)
    for action in actions:
        observation, reward, _, _, info = envs.step(action)
        assert observation.shape == (4, observation_size(task))
        assert info["cost"].shape == (4, len(task.limits))
        parts = [values for key, values in info.items() if key.startswith("cost_") and key != "cost_sum"]
        np.testing.assert_array_equal(info["cost"][:, 0], np.max(parts, axis=0))
        assert envs.observation_space.contains(observation)
        assert reward.shape == (4,)
    envs.close()


@pytest.mark.parametrize("name", NAVIGATION)
def test_nothing_lies_beyond_what_learners_reach(name: str) -> None:
    """Larger actions than `effective_reach` are the same trajectory, half of it is another."""
    task = TASKS[name]
    reach = np.asarray(task.effective_reach)
    drawn = np.random.default_rng(1).choice([-1.0, 1.0], (30, 4, 2)) * np.asarray(task.action_reach)
    whole, least, half = (
        roll(VectorEnv(make_batch(task, 4, "mujoco")), actions, seed=3)
        for actions in (drawn, np.clip(drawn, -reach, reach), np.clip(drawn, -reach / 2, reach / 2))
    )
    assert_same(whole, least)
    assert not np.allclose(whole[-1][0], half[-1][0])


def test_learners_act_within_reach() -> None:
    """-1 and 1 are full thrust, no more, and policy files say so."""
    for name in NAVIGATION:
        task = TASKS[name]
        np.testing.assert_array_equal(task_units(task, np.ones((1, 2)))[0], task.effective_reach)
        described = task_spec(task).native_actions
        assert described is not None
        assert described.high == task.effective_reach
        np.testing.assert_allclose(described.decode(np.ones((1, 2)))[0], task.effective_reach, rtol=1e-6)
