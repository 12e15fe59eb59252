"""The legged robots in batches on both engines: same motion, the sheet's statistics, repeatability, broken states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tailsafe
from tailsafe.envs.device import DeviceRunner
from tailsafe.envs.host import HostBatch, float64_on_host
from tailsafe.envs.vector import VectorEnv, make_batch
from tailsafe.physics.interface import PhysicsState
from tailsafe.physics.mjx_engine import MjxEngine
from tailsafe.tasks import TASKS, Task, task_units

NAMES = ("quadruped", "biped")


def disturbed_steps(task: Task[Any], num_envs: int, size: float) -> list[np.ndarray]:
    """Control steps of the C engine under small random actions: rows before, controls, and what was measured."""
    batch = HostBatch(task, num_envs)
    batch.reset(seed=0)
    rng = np.random.default_rng(0)
    kept = []
    for step in range(60):
        actions = task_units(task, size * rng.normal(size=(num_envs, len(task.action_reach))))
        if step % 12 == 6:
            controls = batch.next_controls(actions)
            measured = batch.engine.step(batch.rows, controls)
            kept.append((batch.rows.copy(), controls, *(part.copy() for part in measured)))
        batch.step(actions)
    batch.close()
    return [np.concatenate(parts) for parts in zip(*kept, strict=True)]


def mjx_step(task: Task[Any]) -> Any:
    """(rows of the C engine, controls) -> (physics, readings) of engine mjx, for a batch."""
    engine = MjxEngine(task)

    def step(row: Any, control: Any) -> Any:
        physics = PhysicsState(row[0], row[1 : 1 + task.nq], row[1 + task.nq :])
        return engine.step(physics, control, lambda time: task.mocap(None, time))

    return jax.vmap(step)


# Medians and 90 % quantiles of the largest difference in velocity after a control step [rad/s, m/s]. In double
# precision the quadruped agrees to 1e-13 and 1e-5. The biped's controllers chatter, and its loops are held a little
# differently by the two engines.
VELOCITY_BOUNDS = {"quadruped": (3e-4, 3e-3), "biped": (0.03, 0.3)}


@pytest.mark.parametrize("name", ["quadruped", pytest.param("biped", marks=pytest.mark.slow)])
def test_mjx_takes_the_c_engines_steps(name: str, report: Any) -> None:
    """In single precision, with the iterations and contacts it is limited to; feet touch alike in nearly every step."""
    task: Any = TASKS[name]
    first, controls, after, _, touches, before = disturbed_steps(task, 16, 0.05)
    nq = task.nq
    step = jax.jit(mjx_step(task))
    physics, readings = step(jnp.asarray(first, jnp.float32), jnp.asarray(controls, jnp.float32))
    velocity = np.abs(np.asarray(physics.qvel) - after[:, 1 + nq :]).max(axis=1)
    position = np.abs(np.asarray(physics.qpos) - after[:, 1 : 1 + nq]).max(axis=1)
    alike = (np.asarray(readings.touches) == touches).all(axis=1).mean()
    median, most = np.quantile(velocity, [0.5, 0.9])
    report(name, f"velocity: median {median:.2g}, 90 % {most:.2g}; position 90 % {np.quantile(position, 0.9):.2g}")
    assert touches.any()
    assert alike >= 0.95
    assert median < VELOCITY_BOUNDS[name][0]
    assert most < VELOCITY_BOUNDS[name][1]
    # So are the states that the tasks read before the last substeps: the biped's first is where the step began.
    seen = np.abs(np.asarray(readings.before) - before).max(axis=2)
    assert seen.shape == (len(first), task.remembered)
    if name == "biped":
        assert seen[:, 0].max() < 1e-5
    assert np.median(seen[:, -1]) < VELOCITY_BOUNDS[name][0]
    assert np.median(np.abs(before[:, -1] - after[:, 1:]).max(axis=1)) > 10 * VELOCITY_BOUNDS[name][0]


def test_mjx_takes_the_bipeds_model_and_measures_what_the_c_engine_does() -> None:
    """Traced, not compiled, which takes several times as long; how it moves is in the slow test above."""
    task: Any = TASKS["biped"]
    batch = HostBatch(task, 3)
    batch.reset(seed=0)
    controls = batch.next_controls(np.zeros((3, len(task.action_reach))))
    rows = batch.rows.copy()
    after, _, touches, before = batch.engine.step(batch.rows, controls)
    batch.close()
    physics, readings = jax.eval_shape(mjx_step(task), jnp.asarray(rows), jnp.asarray(controls))
    assert (1 + physics.qpos.shape[1] + physics.qvel.shape[1],) == after.shape[1:]
    assert physics.qpos.shape == (3, task.nq)
    assert readings.touches.shape == touches.shape
    assert readings.before.shape == before.shape


# --- the sheet's sanity values ------------------------------------------------------------------------------------


def walk(batch: Any, actions: Any, steps: int = 500) -> tuple[Any, Any, Any]:
    """(heights (T, N), costs (T, N, 3), steps until fallen (N,), T where never) of one episode everywhere."""
    heights, costs, fallen = [], [], np.full(batch.num_envs, steps)
    for step in range(steps - 1):  # the episode continues: no reset within it
        taken = batch.step(actions(batch.num_envs))
        heights.append(np.asarray(taken.observation)[:, -1])
        costs.append(np.asarray(taken.costs))
        tipped = np.asarray(batch.episode.task.fallen)
        fallen[tipped & (fallen == steps)] = step + 1
    return np.asarray(heights), np.asarray(costs), fallen


def zero(task: Any) -> Any:
    return lambda num_envs: np.zeros((num_envs, len(task.action_reach)))


def uniform(task: Any) -> Any:
    rng = np.random.default_rng(0)
    return lambda num_envs: task_units(task, rng.uniform(-1, 1, (num_envs, len(task.action_reach))))


ENGINES = ["mujoco", pytest.param("mjx", marks=pytest.mark.slow)]


@pytest.mark.parametrize("engine", ENGINES)
def test_quadruped_stands_under_zero_action(engine: Any, report: Any) -> None:
    """The sheet saw 2 of 20 and 1 of 40 resets fall; the others stand at 0.404 m on four feet, out of step half the
    time. If one in twenty falls, 1 to 14 of 96 do with probability 0.99.
    """
    task = TASKS["quadruped"]
    batch = make_batch(task, 96, engine)
    batch.reset(seed=0)
    heights, costs, fallen = walk(batch, zero(task))
    batch.close()
    down = fallen < 500
    report(engine, f"{down.sum()} of 96 fell, height {np.median(heights[-1]):.4f}, costs {costs.mean(axis=(0, 1))}")
    assert 1 <= down.sum() <= 14
    assert np.median(heights[-1]) == pytest.approx(0.404, abs=0.003)
    balance, height, timing = costs.mean(axis=(0, 1))
    assert timing == pytest.approx(0.5, abs=0.02)
    # Who has fallen pays both for the rest of the episode, and hardly anybody else does.
    share = (1 - fallen / 500).mean()
    assert balance == pytest.approx(share, abs=0.03)
    assert height == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("engine", ENGINES)
def test_biped_falls_under_zero_action(engine: Any, report: Any) -> None:
    """The sheet's values are among ours: down at step 114, mean costs 0.84, 0.81 and 0.49.

    Its controllers chatter, so that rounding decides when exactly: starts that differ by a billionth spread.
    """
    task = TASKS["biped"]
    batch = make_batch(task, 32, engine)
    episode = batch.reset(seed=0)
    qpos = np.array(episode.physics.qpos)
    size = 1e-9 if engine == "mujoco" else 1e-6  # what single precision can tell apart
    qpos[:, 7:10] += np.random.default_rng(0).uniform(-size, size, (32, 3)).astype(qpos.dtype)
    batch.episode = replace(episode, physics=replace(episode.physics, qpos=qpos))
    _, costs, fallen = walk(batch, zero(task))
    batch.close()
    means = costs.mean(axis=0)
    report(engine, f"fell at {np.quantile(fallen, [0, 0.5, 1])}, costs {means.min(axis=0)} to {means.max(axis=0)}")
    assert fallen.min() <= 114 <= fallen.max()
    assert (means.min(axis=0) <= [0.845, 0.815, 0.495]).all()
    assert (means.max(axis=0) >= [0.835, 0.805, 0.485]).all()
    assert fallen.max() < 150


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_random_actions_tip_robots_over(name: str, engine: Any, report: Any) -> None:
    """The sheet: within 25 to 80 steps, with a balance cost of about 0.96."""
    task = TASKS[name]
    batch = make_batch(task, 32, engine)
    batch.reset(seed=0)
    _, costs, fallen = walk(batch, uniform(task))
    batch.close()
    report(f"{name} {engine}", f"fell at {np.quantile(fallen, [0.05, 0.5, 0.95])}, costs {costs.mean(axis=(0, 1))}")
    assert 25 <= np.median(fallen) <= 80
    assert costs[..., 0].mean() == pytest.approx(0.96, abs=0.03)


# --- repeatability and broken states ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_batch_sizes(name: str) -> None:
    """On engine mujoco: any batch size computes the same to the bit, over a reset; seeds and environments differ."""
    task = replace(TASKS[name], episode_length=12)
    rng = np.random.default_rng(0)
    actions = task_units(task, rng.uniform(-0.3, 0.3, (20, 33, len(task.action_reach))))

    def roll(size: int, seed: int) -> list[Any]:
        envs = VectorEnv(make_batch(task, size, "mujoco"))
        rows = [envs.reset(seed=seed)[0]]
        for action in actions[:, :size]:
            observation, reward, _, truncated, info = envs.step(action)
            rows += [observation, reward, truncated, info["cost"]]
        envs.close()
        return rows

    full = roll(33, 5)
    assert len(np.unique(full[0][:, :6], axis=0)) == 33  # commands
    for size in (33, 3, 1):
        for one, other in zip(full, roll(size, 5), strict=True):
            np.testing.assert_array_equal(one[:size], other)
    assert not np.array_equal(full[0][:, :6], roll(33, 6)[0][:, :6])


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_simulation_is_truncated_and_reset(name: str) -> None:
    envs = tailsafe.make_vec(name, 3, "mujoco", seed=0)
    envs.reset(seed=0)
    actions = np.zeros(envs.action_space.shape)
    envs.step(actions)
    episode = envs.batch.episode
    with float64_on_host():
        qvel = jnp.asarray(episode.physics.qvel).at[1, 8].set(jnp.nan)
    envs.batch.episode = replace(episode, physics=replace(episode.physics, qvel=qvel))
    observation, reward, _, truncated, info = envs.step(actions)
    np.testing.assert_array_equal(truncated, [False, True, False])
    assert reward[1] == -10.0
    assert not info["cost"][1].any()
    assert np.isfinite(observation).all()
    observation, reward, *_ = envs.step(actions)
    assert np.isfinite(observation).all()
    assert np.isfinite(reward).all()
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_mjx_begins_the_same_episodes_and_resets(name: str) -> None:
    task = replace(TASKS[name], episode_length=6)
    device, host = DeviceRunner(task, 3), HostBatch(task, 3)
    device.reset(seed=2)
    host.reset(seed=2)
    np.testing.assert_allclose(device.observation, host.observation, atol=2e-5)
    for _ in range(6):
        ours, theirs = (batch.step(np.zeros((3, len(task.action_reach)))) for batch in (device, host))
    assert np.asarray(ours.truncated).all()
    assert np.asarray(theirs.truncated).all()
    np.testing.assert_allclose(device.observation, host.observation, atol=2e-5)
    host.close()
