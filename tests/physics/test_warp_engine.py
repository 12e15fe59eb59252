"""Engine `warp` on the CPU path of its kernels: the C engine's steps, full buffers, nested batches, broken worlds.

Kernels are compiled at first use, minutes on a CPU, so what runs them is slow. `pip install warp-lang==1.18.0` is
enough for it: no GPU is needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.envs.device import DeviceBatch
from tailsafe.envs.episodes import environment_keys
from tailsafe.envs.host import HostBatch
from tailsafe.envs.training import resolve
from tailsafe.envs.vector import VectorEnv, make_batch
from tailsafe.errors import InputError
from tailsafe.physics import warp_engine
from tailsafe.physics.interface import PhysicsState
from tailsafe.physics.warp_engine import Buffers, Use, WarpEngine, buffers_for, warp_installed
from tailsafe.tasks import TASKS, Task, action_size, task_units

needs_warp = pytest.mark.skipif(not warp_installed(), reason="warp-lang is not installed")


def random_steps(task: Task[Any], num_envs: int, steps: int, every: int) -> tuple[Any, ...]:
    """Control steps of the C engine under held random actions: episodes before, controls, and what it measured."""
    batch = HostBatch(task, num_envs)
    batch.reset(seed=0)
    rng = np.random.default_rng(0)
    kept: list[Any] = []
    action = np.zeros((num_envs, action_size(task)))
    for step in range(steps):
        if step % 5 == 0:
            action = task_units(task, rng.uniform(-1, 1, action.shape))
        if step % every == every - 1:
            controls = batch.next_controls(action)
            measured = batch.engine.step(batch.rows, controls)
            kept.append(
                (jax.tree.map(_words, batch.episode.task), batch.rows.copy(), controls, *(x.copy() for x in measured))
            )
        batch.step(action)
    batch.close()
    return jax.tree.map(lambda *parts: np.concatenate(parts), *kept)


def _words(leaf: Any) -> np.ndarray:
    """A leaf as NumPy array; the random key plays no part here."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def warp_steps(task: Task[Any], states: Any, rows: np.ndarray, controls: np.ndarray) -> tuple[Any, Any, Use]:
    engine = WarpEngine(task)
    nq = engine._host.nq

    @jax.jit
    @jax.vmap
    def step(state: Any, row: Any, control: Any) -> Any:
        physics = PhysicsState(row[0], row[1 : 1 + nq], row[1 + nq :])
        return engine.step_counted(physics, control, lambda time: task.mocap(state, time))

    single = jax.tree.map(lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf, states)
    physics, readings, use = step(single, jnp.asarray(rows, jnp.float32), jnp.asarray(controls, jnp.float32))
    engine.check(use)
    return physics, readings, use


# Median and 90 % quantile of the largest difference in velocity [m/s, rad/s] after one control step. The car's wheels
# and the biped's feet touch or do not touch by rounding, and the biped's controllers chatter.
VELOCITY_BOUNDS = {
    "point-goal": (1e-3, 1e-2),
    "car-goal": (2e-3, 5e-2),
    "point-button": (1e-3, 2e-2),
    "car-button": (5e-3, 0.1),
    "quadruped": (3e-4, 3e-3),
    "biped": (0.03, 0.3),
}


@needs_warp
@pytest.mark.slow
@pytest.mark.parametrize("name", list(TASKS))
def test_one_control_step_is_the_c_engines(name: str, report: Any) -> None:
    """From 1,600 states that the C engine visits: errors as quantiles, and which geoms touch."""
    task = TASKS[name]
    states, rows, controls, after, _, touches, _ = random_steps(task, 32, 250, 5)
    physics, readings, use = warp_steps(task, states, rows, controls)
    nq = physics.qpos.shape[1]
    velocity = np.abs(np.asarray(physics.qvel) - after[:, 1 + nq :]).max(axis=1)
    median, most, far = np.quantile(velocity, [0.5, 0.9, 0.99])
    alike = (np.asarray(readings.touches) == touches).all(axis=1).mean()
    report(
        name,
        f"velocity after one step of {len(rows)}: median {median:.2g}, 90 % {most:.2g}, 99 % {far:.2g}, worst"
        f" {velocity.max():.2g}; touches alike in {100 * alike:.2f} %; rows {int(use.rows.max())}, contacts"
        f" {int(use.contacts.max())} in {len(rows)} worlds",
    )
    assert median < VELOCITY_BOUNDS[name][0]
    assert most < VELOCITY_BOUNDS[name][1]
    assert alike >= 0.99


@needs_warp
@pytest.mark.slow
def test_buffers_that_are_too_small_are_an_error() -> None:
    task = TASKS["point-goal"]
    _, rows, controls, *_ = random_steps(task, 4, 5, 5)
    engine = WarpEngine(task, Buffers(rows=8, contacts=16))
    nq = engine._host.nq
    step = jax.jit(
        jax.vmap(
            lambda row, control: engine.step_counted(
                PhysicsState(row[0], row[1 : 1 + nq], row[1 + nq :]), control, lambda time: task.mocap(None, time)
            )
        )
    )
    _, _, use = step(jnp.asarray(rows, jnp.float32), jnp.asarray(controls, jnp.float32))
    with pytest.raises(
        InputError, match=r"point-goal on backend warp needs \d+ constraint rows per world, 8 are allocated"
    ):
        engine.check(use)


@needs_warp
@pytest.mark.slow
def test_runs_around_environments_are_worlds_of_one_call() -> None:
    """Two runs of two environments give what four environments give."""
    batch = DeviceBatch(TASKS["point-goal"], WarpEngine(TASKS["point-goal"]))
    keys = environment_keys(1, 4)
    actions = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (4, 2)), jnp.float32)
    flat_state, flat = jax.jit(lambda keys: batch.step(batch.init(keys), actions))(keys)
    nested = jax.jit(jax.vmap(lambda keys, actions: batch.step(batch.init(keys), actions)))
    state, step = nested(keys.reshape(2, 2), actions.reshape(2, 2, 2))
    assert int(state.use.worlds.max()) == int(flat_state.use.worlds.max()) == 4
    np.testing.assert_allclose(step.observation.reshape(4, -1), flat.observation, atol=1e-4)
    batch.check(state)


@needs_warp
@pytest.mark.slow
def test_a_broken_world_is_truncated_reset_and_counted() -> None:
    env = VectorEnv(make_batch(TASKS["point-goal"], 4, "warp"))
    env.reset(seed=1)
    action = np.full((4, 2), 0.5)
    env.step(action)
    episode = env.batch.episode
    qvel = jnp.asarray(episode.physics.qvel).at[2, 0].set(jnp.nan)
    env.batch.episode = replace(episode, physics=replace(episode.physics, qvel=qvel))
    observation, reward, _, truncated, info = env.step(action)
    np.testing.assert_array_equal(truncated, [False, False, True, False])
    np.testing.assert_array_equal(info["unstable"], truncated)
    assert reward[2] == -10.0
    assert np.isfinite(observation).all()
    assert env.counts["unstable"] == 1


def test_a_missing_package_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_engine, "find_spec", lambda name: None)
    for asked in (lambda: resolve("point-goal", "warp"), lambda: make_batch(TASKS["point-goal"], 1, "warp")):
        with pytest.raises(InputError, match=r"backend warp needs warp-lang.*: pip install .*warp-lang") as caught:
            asked()
        assert "\n" not in str(caught.value)


def test_sizes_come_from_the_task_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Largest numbers of rows that a world under random actions needed: half of the buffer stays free.
    seen = {"point-goal": 50, "car-goal": 90, "point-button": 144, "car-button": 194, "quadruped": 46, "biped": 32}
    for name, rows in seen.items():
        assert buffers_for(name).rows >= 2 * rows
    monkeypatch.setenv("TAILSAFE_WARP_ROWS", "77")
    assert buffers_for("point-goal").rows == 77
    monkeypatch.setenv("TAILSAFE_WARP_CONTACTS", "many")
    with pytest.raises(InputError, match="TAILSAFE_WARP_CONTACTS must be a whole number of at least 1, got 'many'"):
        buffers_for("point-goal")


def test_use_of_buffers_is_the_most_of_all_steps() -> None:
    first = Use(*(jnp.asarray(part) for part in ([0, 2], [5, 9], [7, 7], [2, 2])))
    second = Use(*(jnp.asarray(part) for part in ([4, 0], [8, 3], [6, 6], [2, 2])))
    merged = Use.none((2,)).merged(first).merged(second)
    assert [part.tolist() for part in jax.tree.leaves(merged)] == [[4, 2], [8, 9], [7, 7], [2, 2]]
